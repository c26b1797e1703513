"""Peers are learned as dense references say, and settings are chosen without any test row."""

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

import rvfl_jax
from experiments import beyond, estimator, peers, plant_margin
from experiments import fashion_mnist as fm
from experiments.results_file import ResultsFile
from tests.streams import blobs

SMALL = estimator.Config(seeds=1, plant_seeds=1, num_nodes=8, fashion_rows=200)


def stream_of(rows, features, classes, tasks=2, batches=6, seed=0):
    X, y = blobs(rows, features=features, classes=classes)
    make = rvfl_jax.class_incremental_stream
    return make(X.astype(np.float32), y, num_tasks=tasks, num_batches=batches, seed=seed)


@pytest.fixture(scope="module")
def case():
    stream = stream_of(160, 5, 4)
    X, y = blobs(60, features=5, classes=4, seed=1)
    columns = np.searchsorted(stream.classes, y)
    return fm.Case(stream, X.astype(np.float32), y, columns, None)


@pytest.fixture
def problem(monkeypatch, case):
    """What the estimator is measured on, with test rows as the test sets them."""
    given = {"test": (case.Z_test, case.columns)}
    monkeypatch.setattr(
        estimator, "problem", lambda config, name, seed: (case.stream, *given["test"])
    )
    return given


# --- rows held out ----------------------------------------------------------------------------


def test_rows_held_out_are_a_share_of_each_class_and_leave_the_stream():
    stream = stream_of(150, 3, 3, tasks=1)
    part, X, y = peers.held_out(stream, 0.2, seed=0)
    used, left = stream.weight > 0, part.weight > 0
    assert not (left & ~used).any()
    assert stream.X.shape == part.X.shape
    for label in range(3):
        of_class = (stream.y == label) & used
        assert np.sum(y == label) == round(0.2 * of_class.sum())
        assert np.sum((part.y == label) & left) == of_class.sum() - np.sum(y == label)
    gone = stream.X[used & ~left]
    np.testing.assert_array_equal(gone, X.astype(np.float32))
    np.testing.assert_array_equal(stream.y[used & ~left], y)
    again = peers.held_out(stream, 0.2, seed=0)[1]
    np.testing.assert_array_equal(X, again)
    assert not np.array_equal(X, peers.held_out(stream, 0.2, seed=1)[1])


def test_no_class_is_held_out_whole_and_none_is_left_out():
    y = np.array([0] * 100 + [1] * 3 + [2] * 2 + [3])
    held = peers.held_out_rows(y, 0.2, seed=0)
    assert [int(held[y == label].sum()) for label in range(4)] == [20, 1, 1, 0]


def test_batches_come_without_padding_or_empty_ones(case):
    weight = case.stream.weight.copy()
    weight[2] = 0
    found = list(peers.batches_of(case.stream._replace(weight=weight)))
    assert len(found) == case.stream.num_batches - 1
    assert sum(len(y) for _, y in found) == int((weight > 0).sum())
    assert found[0][0].dtype == np.float64


# --- the rule ---------------------------------------------------------------------------------


def test_the_best_on_held_out_rows_is_chosen_and_edges_are_told():
    grid = [{"a": 1.0}, {"a": 2.0}, {"a": 3.0}, {"b": 1.0}, {"b": 2.0}, {"b": 3.0}]
    record = peers.best_of(grid, [0.1, 0.9, 0.2, 0.5, 0.5, 0.5])
    assert (record["chosen"], record["edge"]) == ({"a": 2.0}, False)
    assert record["held-out accuracy"] == [0.1, 0.9, 0.2, 0.5, 0.5, 0.5]
    record = peers.best_of(grid, [0.1, 0.2, 0.9, 0.5, 0.5, 0.5])
    assert (record["chosen"], record["edge"]) == ({"a": 3.0}, True), "last of its own names"
    record = peers.best_of(grid, [0.1, 0.1, 0.1, 0.7, 0.7, 0.7])
    assert (record["chosen"], record["edge"]) == ({"b": 2.0}, False), "the middle of equals"
    choices = [peers.best_of(grid, row) for row in np.eye(6)[:2]]
    assert peers.shown_over_seeds(choices) == "a 1 (edge) / 2"
    choices.append(peers.best_of(grid, np.eye(6)[4]))
    assert peers.shown_over_seeds(choices) == "a 1 (edge) / a 2 / b 2"
    choices.pop()
    assert peers.shown_over_seeds(choices[1:] * 2) == "a 2"
    assert peers.shown({}) == peers.NOTHING


def test_every_peer_tries_as_many_configurations_as_ours():
    for name, peer in peers.PEERS.items():
        for count in (len(plant_margin.CANDIDATES), len(beyond.CANDIDATES)):
            grid = [{}] if peer.grid is None else peer.grid(count)
            assert len(grid) == (1 if name == "nearest class mean" else count)
            assert len({tuple(settings.items()) for settings in grid}) == len(grid)
    sizes = {name: len(method.grid) for name, method in estimator.METHODS.items()}
    assert sizes.pop("nearest class mean") == 1
    assert set(sizes.values()) == {estimator.CONFIGURATIONS}


def test_a_peers_choice_is_what_trying_each_alone_says(case):
    part, X, y = peers.held_out(case.stream, 0.2, 3)
    for name in ("streaming LDA", "SGD (scikit-learn)"):
        peer = peers.PEERS[name]
        record = peers.choose(peer, case.stream, 3, share=0.2, count=6)
        alone = [
            np.mean(peer.fit(part, 3, **settings)(X).argmax(axis=1) == y)
            for settings in record["grid"]
        ]
        np.testing.assert_array_equal(record["held-out accuracy"], alone)
        at = record["grid"].index(record["chosen"])
        assert alone[at] == max(alone)
        assert len(set(alone)) > 1, "there is something to choose"


def test_no_test_row_enters_a_choice(case, problem):
    poisoned = fm.Case(
        case.stream,
        np.full_like(case.Z_test, np.nan),
        case.y_test[::-1],
        np.zeros_like(case.columns),
        None,
    )
    for name in peers.PEERS:
        want = peers.choose(peers.PEERS[name], case.stream, 0, share=0.25, count=9)
        assert plant_margin.choice(poisoned, name, 0) == want
    methods = ("EdRVFLClassifier", "streaming LDA on nodes", "SGDClassifier")
    want = {name: estimator.choice(SMALL, "digits", name, 0) for name in methods}
    problem["test"] = (poisoned.Z_test, poisoned.columns)
    for name in methods:
        found = estimator.choice(SMALL, "digits", name, 0)
        assert found == want[name]
        assert found["chosen"] in estimator.METHODS[name].grid


def test_large_scores_that_differ_little_are_told_apart(case):
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((len(case.columns), len(case.stream.classes)))
    found = beyond.accuracies(case, scores)
    assert beyond.accuracies(case, scores + 1e10) == found
    assert 0 < found["class_incremental"] < 1


def test_what_is_chosen_learns_all_training_rows(case):
    record = beyond.of_peer(case, "streaming LDA", 0)
    assert len(record["choice"]["grid"]) == len(beyond.CANDIDATES)
    scores = peers.streaming_lda(case.stream, **record["choice"]["chosen"])(case.Z_test)
    reached = np.mean(scores.argmax(axis=1) == case.columns)
    assert record["class_incremental"] == pytest.approx(reached)


def test_the_balance_chosen_is_the_best_on_rows_held_out():
    X, y = blobs(400, features=6, classes=4)
    rows = estimator.tail_rows(y, 20, seed=0)
    X, y = X[rows], y[rows]
    record = estimator.balance_chosen(SMALL, X, y, 0)
    held = peers.held_out_rows(y, 0.2, 0)
    model = estimator.model_of(SMALL, 0).fit(X[~held], y[~held])
    reached = []
    for balance in estimator.BALANCES:
        guess = model.set_params(class_balance=balance).predict(X[held])
        reached.append(np.mean([np.mean(guess[y[held] == c] == c) for c in np.unique(y[held])]))
    assert record["held-out accuracy"] == pytest.approx(reached)
    assert reached[estimator.BALANCES.index(record["chosen"]["class_balance"])] == max(reached)


# --- the peers --------------------------------------------------------------------------------


def test_streaming_lda_of_many_features_is_the_dense_solution():
    """More features than rows, one class a batch: the shrunk pooled covariance, inverted."""
    stream = stream_of(40, 90, 4, tasks=4, batches=4)
    used = stream.weight > 0
    X, y = stream.X[used].astype(float), stream.y[used]
    means = np.stack([X[y == label].mean(axis=0) for label in range(4)])
    covariance = (X - means[y]).T @ (X - means[y]) / len(X)
    for shrinkage in (1e-3, 0.3):
        precision = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * np.eye(90))
        want = X @ precision @ means.T - 0.5 * np.einsum("ms,st,mt->m", means, precision, means)
        found = peers.streaming_lda(stream, shrinkage=shrinkage)(X)
        np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-8 * np.abs(want).max())


def test_sgd_stands_behind_what_its_scaler_has_seen(case):
    model, scaler = SGDClassifier(loss="log_loss", random_state=5), StandardScaler()
    for X, y in peers.batches_of(case.stream):
        scaler.partial_fit(X)
        model.partial_fit(scaler.transform(X), y, classes=np.arange(4))
    want = model.decision_function(scaler.transform(case.Z_test.astype(float)))
    np.testing.assert_array_equal(peers.sgd(case.stream, 5)(case.Z_test.astype(float)), want)
    slow = peers.Sgd(4, 5, eta0=1e-3).model
    assert (slow.learning_rate, slow.eta0, slow.alpha) == ("constant", 1e-3, 1e-4)


def test_classes_never_met_are_never_guessed():
    X, y = blobs(30, features=3, classes=2)
    for model in (peers.NearestClassMean(4), peers.StreamingLDA(4)):
        model.partial_fit(X, y)
        assert set(model.predict(X)) <= {0, 1}


def test_the_last_refit_is_the_whole_of_it(problem, case):
    record = estimator.choice(SMALL, "digits", "RidgeClassifier refitted", 0)
    part, X, y = peers.held_out(case.stream, 0.2, 0)
    for settings, reached in zip(record["grid"], record["held-out accuracy"], strict=True):
        model = peers.learn(estimator.Refitted(SMALL, 0, **settings), part)
        assert np.mean(model.predict(X) == y) == reached


def test_a_choice_on_fewer_rows_has_as_many_of_each_class(case):
    some = estimator.some_rows(case.stream, 80, seed=0)
    counts = [np.sum((some.y == label) & (some.weight > 0)) for label in range(4)]
    assert counts == [20] * 4
    assert estimator.some_rows(case.stream, None, 0) is case.stream


# --- tables -----------------------------------------------------------------------------------


def test_every_row_of_the_peers_has_its_settings(tmp_path, problem):
    file = ResultsFile(tmp_path / "results.json", SMALL)
    for name, method in estimator.METHODS.items():
        if name in ("gfdl", "river softmax"):
            continue
        chosen = file.once(
            f"choice | digits | {name} | seed 0", estimator.choice, SMALL, "digits", name, 0
        )["chosen"]
        record = file.once(
            f"peers | digits | {name} | seed 0",
            *(estimator.beside_peers, SMALL, "digits", name, 0, chosen),
        )
        assert record["settings"] == chosen
        assert record["test rows"] == 60, "all of them"
        assert len(record["seconds"]) == (1 if name in estimator.SLOW else 2)
        assert method.fixed
    for nodes in (64, 256):
        record = {"compilations": 1, "largest difference to one fit": 0.0, "ratio": 1.0}
        record |= {"seconds a call": 0.1, "seconds a refit": [0.1]}
        file.once(f"many calls | N = {nodes}", lambda record=record: record)
    estimator.write_tables(SMALL, file, tmp_path / "table.md")
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert len(rows) == len(estimator.PROBLEMS) * len(estimator.METHODS), "gaps have rows too"
    for _, name, chosen, fixed, accuracy, *_, seeds in rows:
        assert chosen
        assert fixed == estimator.METHODS[name].fixed
        assert (accuracy == "") == (chosen == "not installed") == (seeds == "0")


def test_every_row_behind_an_encoder_has_its_settings_and_gaps_a_reason(tmp_path, case):
    file = ResultsFile(tmp_path / "results.json", beyond.Config())
    for encoder in ("raw pixels", "100 random patches"):
        for name in peers.PEERS:
            label = f"Fashion-MNIST | {encoder} | seed 0 | {name}"
            file.once(label, beyond.of_peer, case, name, 0)
    beyond.tabulate(file, tmp_path)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.split("\n\n")[0].splitlines()[2:]]
    assert len(rows) == 2 * len(peers.PEERS) + 1
    assert all(len(row[5].strip()) > 5 for row in rows)
    assert "left out: 3,200 random features already; nodes make it 2.6 times the work" in text
    for name in peers.PEERS:
        assert f"- {name}: {peers.PEERS[name].fixed}." in text
    beyond.draw(file, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_lambda_is_that_of_least_gcv_among_as_many(case, monkeypatch):
    import jax

    learner = beyond.readout_of(1)
    record, _ = beyond.learned(case, learner, jax.random.key(0))
    choice = record["choice"]
    assert len(choice["GCV"]) == len(beyond.CANDIDATES)
    at = list(choice["candidates"]).index(choice["chosen"]["lambda"])
    assert choice["GCV"][at] == min(choice["GCV"])
    fine, _ = beyond.learned(case, learner, jax.random.key(0), fine=True)
    np.testing.assert_array_equal(fine["choice"]["candidates"], beyond.FINE)
    assert len(beyond.FINE) == len(beyond.CANDIDATES)
    monkeypatch.setattr(beyond, "CANDIDATES", np.logspace(8, 10, 3))
    assert beyond.learned(case, learner, jax.random.key(0))[0]["choice"]["edge"]


def test_the_table_of_the_plants_has_all_settings_and_its_picture_all_curves(tmp_path, case):
    config = plant_margin.Config(seeds=2)
    file = ResultsFile(tmp_path / "results.json", config)
    rng = np.random.default_rng(0)
    for seed in range(2):
        ridge = peers.best_of([{"lambda": value} for value in (1.0, 10.0, 100.0)], [0, 1, 0])
        file.once(f"seed {seed} | choice", lambda ridge=ridge: ridge | {"ridge": 10.0})
        for name in (*plant_margin.STRENGTHS, plant_margin.FINE_TUNED):
            curve = {"evaluated": list(range(6)), "curves": {"seen": rng.uniform(0.5, 1, 6)}}
            file.once(f"seed {seed} | {name}", lambda curve=curve: curve)
        file.once(
            f"seed {seed} | {plant_margin.OFFLINE}", lambda: {"accuracy_class_incremental": 0.9}
        )
        for name in peers.PEERS:
            chosen = file.once(
                f"seed {seed} | choice of {name}", plant_margin.choice, case, name, seed
            )["chosen"]
            record = file.once(
                f"seed {seed} | {name}", plant_margin.over_tasks, case, name, seed, chosen
            )
            scores = peers.PEERS[name].fit(case.stream, seed, **chosen)(case.Z_test.astype(float))
            reached = np.mean(scores.argmax(axis=1) == case.columns)
            assert record["curves"]["seen"][-1] == pytest.approx(reached)
    plant_margin.tabulate(config, file, tmp_path)
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert len(rows) == len(plant_margin.STRENGTHS) + 2 + len(peers.PEERS)
    assert all(row[3] and row[4] for row in rows)
    assert rows[0][3] == "lambda 10"
    plant_margin.draw(config, file, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_labels_are_moved_apart_in_their_order():
    placed = plant_margin._apart([80.0, 79.0, 3.0, 81.0], 5.0)
    order = np.argsort([80.0, 79.0, 3.0, 81.0])
    assert (np.diff(placed[order]) >= 5.0 - 1e-6).all()
