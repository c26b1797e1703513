"""The command line: `rvfl-jax`, or `python -m rvfl_jax`.

`run`, `sweep`, `fit`, `partial-fit`, `predict`, `evaluate`, `unlearn`, `undo`, `inspect`, `export`,
`embed`; each has `--help`. On a table with features and a column of labels:

```bash
rvfl-jax fit digits.csv --label target --out digits-model
rvfl-jax predict digits-model digits.csv --format jsonl | tail -1
rvfl-jax evaluate digits-model digits.csv
rvfl-jax inspect digits-model
rvfl-jax export digits-model --out digits-predictor.npz
```

`partial-fit` goes on learning, `unlearn` takes rows out again, `undo` brings back the model before the
last change. Results go to standard output in UTF-8, all else to standard error; bad input is one
line with the place of the fault, exit status 2, and nothing written. `--k bayes` takes the adaptive
strength, whose path `inspect` tells.

- **One model.** `rvfl_jax.load_model("digits-model")` is the estimator again, standardisation and
  `feature_names_in_` with it: it takes raw rows, scores what `evaluate` says, and goes on learning.
  Labels are text there. The commands also go on with a classifier that Python saved (`--label` names
  the label column).
- **One rule for tables**: CSV, TSV, either gzip'd, Parquet, and npz (`X`, `y` and, for names of
  features, `columns`), or a CSV from standard input (`-`). The same table gives the same model to
  the last bit in every format, or is refused with the same words. A feature is a finite number, or a
  text that is one; booleans, dates, empty fields, null, NaN and `1_000` are refused, with the line
  of the file or the row. Labels are text; 0 and 0.0 are one label, 007 and 7 are two, and an empty one,
  null, NaN or NaT is refused. A first column without a name and the index that pandas saves are left
  out, with a note; of a CSV nobody can tell whether a column with a name was an index.
- **Columns** that are no numbers are said once, to `fit`: `--text`, `--categorical`, `--id` (which
  `predict` repeats before each prediction), `--time` (rows of a table are learned in its order; numbers
  or ISO 8601 dates), `--ignore` or `--features`, and `--impute mean`, `median` or `zero`. A Parquet column of lists
  of numbers, all of one length, is one feature an element. All of this is in the model, and every later
  command reads tables alike: a needed column that is missing is named, an unknown one refused (unless
  `--features` was given). Random weights are drawn once, so that a category met after `fit` has no feature: its
  row has zeros there, and `partial-fit` names it. Texts are hashed to `--text-width` features; neither these nor
  categories are standardised. With any of these options `fit` reads the table twice, and
  holds standard input in memory; with `--time` the features of the whole table are in memory at once. In
  Python `rvfl_jax.data.read_columns`, of the folder or of an exported file, turns data frames or
  records into features.
- **Cron jobs and retries.** A model keeps fingerprints of the tables that it has learned, and refuses
  one again without `--again`, in whatever format. `partial-fit` names the classes that it adds. A
  second writer on a model waits (`--wait`, 60 s), and then gives up with status 2: of 20 pairs of
  `partial-fit` at once none lost a row.
- **Starting.** A command keeps what it compiles in `~/.cache/rvfl-jax/programs` (or under
  `$XDG_CACHE_HOME`): the second `predict` on 1,000 rows takes 1.1 s of CPU (20 columns; 1.4 with 256). `--no-cache` compiles
  anew, what nobody has read for 30 days is removed, and `JAX_COMPILATION_CACHE_DIR` wins where it is
  set. The package itself sets nothing of JAX's. A program of your own gets the same by
  `jax.config.update("jax_compilation_cache_dir", FOLDER)` and
  `jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)` before its first call.
- **Tomorrow's batch.** `evaluate` scores the rows of classes it knows and counts the others by class.
- **As rows come.** `predict digits-model -` prints a row's prediction when the row is there. Where a
  later row is bad, those before it have been printed; from a file nothing is printed before all of it
  has been found good.

`fit`, `run` and `sweep` refuse what is in the way of their `--out` before they begin, and replace
earlier results with `--force` alone (or where `run --resume` goes on with its own).
"""
