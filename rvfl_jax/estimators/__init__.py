"""The learners as scikit-learn estimators: learned, merged, saved and exported.

`EdRVFLClassifier` and `EdRVFLRegressor` follow scikit-learn (pipelines, grid search, pandas and polars,
any hashable label).

| you have | you take |
|---|---|
| batches, in any order and of any size | `partial_fit`; the readout is that of one `fit` on all rows, to 1e-13 |
| a model trained elsewhere on other rows | `rvfl_jax.merge(a, b)`, exactly as if learned together (one integer `random_state`) |
| rows that have to go | `unlearn(X, y)`, exactly as if never seen |
| a stream that drifts | `forgetting=0.999`: what a row is worth after one more row |
| such a stream, and no idea of how fast | `PrequentialForgetting(model)`: several factors side by side, and the one whose guesses are best |
| the inputs of the next batch, before their labels | `k=1.0` and `partial_fit(X, y, X_next=...)` |
| features of several scales | `scale="first"`: standardised for good by the rows that came first |
| no idea of lambda | `ridge="auto"`: by generalised cross-validation of the sums, anew for every readout |
| another map than random layers in mind | `feature_map="fourier"`, `"sparse"`, `"none"`, or a function of JAX arrays |
| numbers to predict | `EdRVFLRegressor` |
| several labels a row | `EdRVFLMultiLabelClassifier`: one D^T D for all labels, a threshold for each |
| a stream of river, or CapyMOA | `rvfl_jax.adapters` |
| columns of a data frame, or texts | `IncrementalPipeline` of scikit-learn's steps and the estimator |
| a sparse matrix of up to 8,192 columns | the same methods; some thousand rows at a time are made dense |
| rows of classes that nobody has shown | `predict(X, unknown=...)` with `novelty_score="blended"`; `novelty(X)` |
| how sure it is | `predict_proba`, calibrated; `predict_std`, the deviation of each score |
| states of `edrvfl` and no estimator | `merge_states`, `unlearn_rows`, `with_prior` |

## What is kept

**Sums, not inverses.** In double precision with a constant k an estimator keeps D^T D and D^T Y and
nothing else of size d x d: `partial_fit` takes half a Gram, `merge` adds, `unlearn` subtracts, and a
readout is solved when it is asked for. Rows of small calls wait until they are worth a product, and
count all the same. On a CPU one half of D^T D is kept, and NumPy's BLAS multiplies where XLA would take
twice as long, its products shared among as many threads as there are cores; a solution takes one half
more for as long as it lasts. Asked after every call it follows by low rank, with one more d x d array
for as long. Everything else (-kF-Bayes, the paper's cold start, `solver="square_root"`, single
precision) keeps the state of `edrvfl`.

**Whole or not at all.** Whatever `fit`, `partial_fit` or `unlearn` raises, an interrupt included, the
model is the one before, to the bit. One thread may learn while others predict: every answer is
that of one model that stood. A row too large for the precision is a `NumericalError` that names it.

## Columns, texts, sparse rows

scikit-learn's `Pipeline` has no `partial_fit`. `IncrementalPipeline` is that class with one: its first call
fits every step, a `ColumnTransformer` say, and later calls only transform, since what is learned is a
sum over rows as they were transformed. It has `unlearn` too. Its docstring grows a classifier of intents from
sentences by `HashingVectorizer(n_features=1024)`; embeddings of a sentence model are rows like any other.
Of a sparse matrix with more than 8,192 columns each estimator says so: every input has a direct link,
and the Gram matrix is of that width. Hash to fewer, or put scikit-learn's
`SparseRandomProjection(1024, dense_output=True)` between. Of six intents with eight sentences each the first
got all of 24 other sentences right with five seeds, the second 22 to 24.

A model that `rvfl-jax fit` made with texts, categories or lists takes features:
`rvfl_jax.data.read_columns(FOLDER).features(frame)` makes them.

## Several labels a row

`EdRVFLMultiLabelClassifier` takes y as scikit-learn's indicator matrix; the labels share D^T D. 10,000
rows of 64 features in batches of 500 and one prediction took 0.44 s of a processor with one label and
0.65 s with 100, and 0.38 s for every label with an `EdRVFLClassifier` of its own (two sub-learners,
N = 256). Thresholds are chosen by guesses of rows before they are learned:

| macro F1 %, five seeds | `threshold="f1"`, in batches of 200 | after `fit` | 0.5 | best on the test rows themselves |
|---|---|---|---|---|
| Fashion-MNIST, 10,000 rows, its 10 classes and 4 unions of them | 85.3 | 85.3 | 83.3 | 85.7 |
| scikit-learn's `make_multilabel_classification`, 8,000 rows, 30 labels | 33.5 | 33.7 | 10.9 | 35.3 |

`threshold="accuracy"` gives the fewest errors label by label, at about the accuracy of 0.5 on both (within
0.1 points); its F1 lies between. "f1" pays for rare labels with errors: on the drawn set 86.6 % of labels
are right with it in place of 90.8. Scores are those of least squares: their order is what to trust, and
they are not calibrated as those of `EdRVFLClassifier` are. Records: `python -m experiments.several_labels`.

## Beside others

| classes one after another, 50 batches (plants: 100) | digits | Fashion-MNIST, 10,000 rows | plant margin |
|---|---|---|---|
| `EdRVFLClassifier` | 98.0 %, 0.4 s | 83.6 %, 5.1 s | 80.9 %, 0.5 s |
| gfdl, `partial_fit` | 98.7 %, 0.5 s | 83.9 %, 3.2 s | 81.2 %, 1.1 s |
| streaming LDA on 512 random nodes | 98.4 %, 0.03 s | 83.6 %, 0.7 s | 83.0 %, 0.02 s |
| streaming LDA | 95.6 %, 0.002 s | 80.9 %, 0.2 s | 79.5 %, 0.002 s |
| nearest class mean | 89.7 %, 0.001 s | 67.6 %, 0.01 s | 76.8 %, 0.002 s |
| scikit-learn's `SGDClassifier` | 84.4 %, 0.2 s | 56.7 %, 0.5 s | 35.7 %, 2.8 s |
| river's softmax regression | 85.9 %, 0.3 s | 59.5 %, 30 s | 35.9 %, 1.6 s |
| `RidgeClassifier`, refitted on all rows kept | 98.4 %, 1.0 s | 83.6 %, 17 s | 80.5 %, 1.9 s |

Every method but the nearest class mean, which has nothing to choose, chose among nine settings by
its accuracy on training rows held out, anew on each seed; three seeds, ten on the plants;
settings are in the table. Ours, gfdl and `RidgeClassifier`
have 512 ReLU nodes as well, gfdl with `lecun_uniform` weights as ours; river chose on 2,000 rows.
On equal terms ours, gfdl and streaming LDA on random nodes are within 0.7 points on digits and
Fashion-MNIST (gfdl first on both, 0.7 and 0.2 ahead of ours); on the plants, with
twelve leaves a species, LDA on nodes is on average 2.1 points ahead of ours and 1.7 of gfdl. Seconds
are processor seconds of a warm pass over all batches (river and `RidgeClassifier`: of the only pass),
taken while other work ran. 5,000 calls with 1 to 64 rows, 40 classes appearing on the way: 13
compilations, 8.3 ms a call (N = 256), 66 (N = 64) and 168 times (N = 256, eight refits, one of them
slow) the throughput of refitting scikit-learn's ridge at the same points, and the scores of one
`fit` to 3e-14; protocols are under experiments.

## Feature maps, and lambda from the sums

| accuracy %, lambda by `ridge="auto"`, N = 512 | digits | letter | plant margin | Fashion-MNIST | CIFAR-100 features |
|---|---|---|---|---|---|
| `feature_map="layers"` | 98.5 | 88.8 | 79.6 | 83.6 | 64.2 |
| `"fourier"` | 98.6 | 89.6 | 81.1 | 83.4 | 63.7 |
| `"sparse"` | 98.4 | 87.8 | 79.5 | 83.6 | 64.2 |
| `"none"`, ridge regression | 93.8 | 55.2 | 56.6 | 80.8 | 62.3 |
| `"none"`, `readout="discriminant"` | 95.5 | 69.9 | 77.8 | 80.9 | 64.2 |

Three seeds, 10,000 rows of the last two. Random nodes matter, which kind they are of hardly does; on
features that a network made, the discriminant of the inputs alone does as well at a third of the width.
`ridge="auto"` is not the default: against `ridge=1.0` it is within 0.4 points on three of the five, but
loses 0.4 to 0.5 on CIFAR-100's features, and up to 2 on the plants, since squared error wants more
shrinkage than accuracy over a hundred classes. Take it where inputs are of a size at which 1 means
nothing; it goes with their squares. Every readout then costs the eigenvectors of D^T D (0.03 s for
d = 321, 0.5 s for d = 1089, on one core), and none is updated by low rank.

## Probabilities

Scores of one-hot regression are estimates of probabilities, so that their softmax
is almost flat. `predict_proba` raises them to a power that makes the mean confidence of guesses
their accuracy; each batch is guessed before it is learned, by the last readout solved, which knows
at least half of the rows: no rows are held out.

| expected calibration error | softmax of scores | `predict_proba`, new classes task by task | in random order | after `fit` |
|---|---|---|---|---|
| CIFAR-100, frozen ImageNet features | 0.647 | 0.015 | 0.013 | 0.012 |
| Fashion-MNIST, raw pixels | 0.657 | 0.016 | 0.013 | 0.013 |
| CIFAR-100, features trained on its labels | 0.778 | 0.109 | 0.118 | 0.120 |

## Long tails

One learned state is asked in several ways by `set_params(readout=...,
class_balance=...)`, without another pass.

| balanced accuracy % | CIFAR-100, 100:1 | all rows | letter, 100:1 | all rows |
|---|---|---|---|---|
| `readout="ridge"` | 37.9 ± 0.7 | 66.1 ± 0.1 | 63.2 ± 2.7 | 88.8 ± 0.1 |
| the same, `class_balance=0.5` | 55.4 ± 0.9 | 66.1 ± 0.1 | 77.7 ± 1.2 | 88.8 ± 0.0 |
| the same, `class_balance=1` | 47.3 ± 0.6 | 66.1 ± 0.1 | 58.6 ± 1.0 | 88.8 ± 0.1 |
| `readout="discriminant"` | 56.8 ± 0.9 | 66.0 ± 0.1 | 72.8 ± 0.5 | 82.5 ± 0.4 |
| the same, `class_balance=1` | 57.6 ± 0.9 | 66.0 ± 0.1 | 74.1 ± 0.4 | 82.5 ± 0.4 |
| `readout="nearest_mean"` | 54.1 ± 0.3 | 58.4 ± 0.1 | 54.5 ± 1.2 | 58.7 ± 0.3 |

Take `class_balance=0.5` where rare classes matter (these rows of the test set told so; chosen on a
held-out fifth of the long-tailed training rows, one seed each, it is 0.5 on letter and 0.75 on
CIFAR-100): it gains 17.5 points on CIFAR-100 and 14.6 on
letter over plain ridge, and costs nothing where classes are even. `"discriminant"` is one to two
points better still on CIFAR-100's features, where classes are many and alike in shape, and four to five
worse on letter. `"nearest_mean"` wins only on features that were trained for these classes.
"""
