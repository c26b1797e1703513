"""The folder of a model: several writers, killed ones, links, undo, and files of before."""

import copy
import io
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.cli.main import main
from rvfl_jax.cli.model_folder import BEFORE, LOCK
from rvfl_jax.estimators.save import notes_of
from rvfl_jax.files import locks
from rvfl_jax.files.checkpoint import load_checkpoint_file, save_checkpoint, write_npz
from tests.cli.test_model_commands import FIT, called, table
from tests.cli.test_resume_commands import nobody
from tests.streams import environment

# The bar is 20; each pair of processes takes some ten seconds.
WRITERS = int(os.environ.get("RVFL_JAX_WRITERS", "2"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Bytes of a model of 3 classes, and the tables a.csv and b.csv."""
    folder = tmp_path_factory.mktemp("learned")
    table(classes=3).to_csv(folder / "first.csv", index=False)
    assert main(["fit", str(folder / "first.csv"), *FIT, "--out", str(folder / "m")]) == 0
    table(seed=1).to_csv(folder / "a.csv", index=False)
    table(seed=2).to_csv(folder / "b.csv", index=False)
    return folder, (folder / "m" / "model.npz").read_bytes()


@pytest.fixture
def model(learned, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.npz").write_bytes(learned[1])
    return folder


def rows_of(folder):
    return rvfl_jax.load_model(folder).num_rows_seen_


def arrays_of(folder):
    return load_checkpoint_file(folder / "model.npz").arrays


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@contextmanager
def held(folder):
    """Another process writes."""
    program = (
        "import sys; from rvfl_jax.files import locks; from pathlib import Path\n"
        "with locks.alone(Path(sys.argv[1]), wait=9, waiting=print):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    line = [sys.executable, "-c", program, str(folder / LOCK)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_writer_waits_and_then_refuses(learned, model, capsys):
    before = (model / "model.npz").read_bytes()
    with held(model) as process:
        for command in (["partial-fit", model, learned[0] / "a.csv"], ["undo", model]):
            status, out, err = called(capsys, *command, "--wait", "0.2")
            waiting, refused = err.splitlines()
            assert (status, out) == (2, "")
            assert waiting == f"{model}: waiting for another process that writes it"
            assert "expected no other process to write it, got one for 0.2 s" in refused
        assert called(capsys, "evaluate", model, learned[0] / "a.csv")[0] == 0
        assert (model / "model.npz").read_bytes() == before
        threading.Timer(0.3, process.kill).start()
        assert called(capsys, "partial-fit", model, learned[0] / "a.csv")[0] == 0
    assert rows_of(model) == len(table(classes=3)) + len(table())


@pytest.mark.parametrize("wait", ["-1", "nan", "inf"])
def test_unusable_waits(learned, model, capsys, wait):
    status, _, err = called(capsys, "partial-fit", model, learned[0] / "a.csv", "--wait", wait)
    assert status == 2
    assert "--wait: expected seconds of at least 0" in err


def test_no_rows_are_lost_between_threads(learned, model):
    statuses = {}

    def learn(name):
        statuses[name] = main(["partial-fit", str(model), str(learned[0] / name)])

    writers = [threading.Thread(target=learn, args=(name,)) for name in ("a.csv", "b.csv")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert statuses == {"a.csv": 0, "b.csv": 0}
    assert rows_of(model) == len(table(classes=3)) + 2 * len(table())


@pytest.mark.slow
def test_no_rows_are_lost_between_processes(learned, tmp_path):
    lost = 0
    for trial in range(WRITERS):
        folder = tmp_path / f"m{trial}"
        folder.mkdir()
        (folder / "model.npz").write_bytes(learned[1])
        lines = [
            [sys.executable, "-m", "rvfl_jax", "partial-fit", str(folder), str(learned[0] / name)]
            for name in ("a.csv", "b.csv")
        ]
        writers = [
            subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL) for line in lines
        ]
        done = [writer.wait(timeout=300) == 0 for writer in writers]
        lost += rows_of(folder) != len(table(classes=3)) + sum(done) * len(table())
        assert all(done)
    print(f"{WRITERS} pairs of writers, rows lost with status 0: {lost}")
    assert lost == 0


def test_locks_end_with_their_process(tmp_path):
    (tmp_path / LOCK).touch()
    with held(tmp_path) as process:
        process.kill()
        process.wait()
        with locks.alone(tmp_path / LOCK, wait=0.5, waiting=print):
            pass


def test_only_one_fit_begins_a_model(learned, tmp_path, capsys, monkeypatch):
    """Another process may have written it while this one learned."""
    out = tmp_path / "new"
    note = rvfl_jax.cli.kept_model.KeptModel.note

    def and_another_writes(self, *arguments):
        note(self, *arguments)
        out.mkdir()
        (out / "model.npz").write_bytes(learned[1])

    monkeypatch.setattr("rvfl_jax.cli.kept_model.KeptModel.note", and_another_writes)
    status, _, err = called(capsys, "fit", learned[0] / "a.csv", *FIT, "--out", out)
    assert status == 2
    assert "expected no model there yet" in err
    assert (out / "model.npz").read_bytes() == learned[1]


def test_a_table_is_learned_once(learned, model, capsys):
    a, b = learned[0] / "a.csv", learned[0] / "b.csv"
    assert called(capsys, "partial-fit", model, a)[0] == 0
    before = (model / "model.npz").read_bytes()
    table(seed=1).sample(frac=1, random_state=0).to_parquet(
        learned[0] / "again.parquet", index=False
    )
    for source in (a, learned[0] / "again.parquet", learned[0] / "first.csv"):
        status, out, err = called(capsys, "partial-fit", model, source, "--batch-rows", 50)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{source}: expected rows not yet learned, got a table learned before" in err
        assert "--again" in err
        assert (model / "model.npz").read_bytes() == before
    assert called(capsys, "partial-fit", model, b)[0] == 0
    assert called(capsys, "partial-fit", model, a, "--again")[0] == 0
    assert rows_of(model) == len(table(classes=3)) + 3 * len(table())
    assert json.loads(called(capsys, "inspect", model)[1])["tables"] == 4


def test_unlearned_tables_were_never_there(learned, model, capsys):
    a, before = learned[0] / "a.csv", arrays_of(model)
    assert called(capsys, "partial-fit", model, a)[0] == 0
    status, out, err = called(capsys, "unlearn", model, a)
    assert (status, out) == (0, "")
    assert err == f"Wrote {model}: {len(table(classes=3))} rows, 3 classes.\n"
    after = arrays_of(model)
    gram, moment = (f"['known'].sums.{name}" for name in ("gram", "moment"))
    width = before[moment].shape[-1]
    np.testing.assert_allclose(after[gram], before[gram], atol=1e-9)
    np.testing.assert_allclose(after[moment][..., :width], before[moment], atol=1e-9)
    # A retry takes nothing out twice, and the table may be learned again.
    assert called(capsys, "partial-fit", model, a)[0] == 0
    part = table(seed=1).iloc[:50]
    part.to_csv(learned[0] / "part.csv", index=False)
    assert called(capsys, "unlearn", model, learned[0] / "part.csv")[0] == 0
    status, _, err = called(capsys, "unlearn", model, learned[0] / "part.csv")
    assert status == 2
    assert "expected rows not yet unlearned, got a table unlearned before; --again" in err
    assert rows_of(model) == len(table(classes=3)) + len(table()) - 50


def test_rows_that_were_never_learned_are_not_unlearned(learned, model, capsys):
    before = (model / "model.npz").read_bytes()
    status, _, err = called(capsys, "unlearn", model, learned[0] / "a.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "expected" in err
    assert (model / "model.npz").read_bytes() == before


@pytest.mark.parametrize("links", [True, False])
def test_the_model_before_comes_back(learned, model, capsys, monkeypatch, links):
    if not links:  # as on some file systems

        def no_links(*_):
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr("os.link", no_links)
    first = (model / "model.npz").read_bytes()
    status, _, err = called(capsys, "undo", model)
    assert (status, err.count("\n")) == (2, 1)
    assert "expected a model before the last change, found none" in err
    assert called(capsys, "partial-fit", model, learned[0] / "a.csv")[0] == 0
    second = (model / "model.npz").read_bytes()
    assert called(capsys, "partial-fit", model, learned[0] / "b.csv")[0] == 0
    third = (model / "model.npz").read_bytes()
    for expected in (second, third, second):
        status, out, err = called(capsys, "undo", model)
        assert (status, out) == (0, "")
        assert err.startswith(f"Brought back {model}: ")
        assert (model / "model.npz").read_bytes() == expected
    # What was taken back may be learned again.
    assert called(capsys, "partial-fit", model, learned[0] / "b.csv")[0] == 0
    assert called(capsys, "fit", learned[0] / "b.csv", *FIT, "--out", model, "--force")[0] == 0
    assert called(capsys, "undo", model)[0] == 0
    assert rows_of(model) == len(table(classes=3)) + 2 * len(table())
    assert first not in (second, third)
    assert {path.name for path in model.iterdir()} == {"model.npz", BEFORE, LOCK}


@pytest.mark.parametrize("changes", [0, 1])
@pytest.mark.parametrize("written", [False, True])
def test_a_change_that_fails_keeps_the_model_before(
    learned, model, capsys, monkeypatch, changes, written
):
    for name in ("a.csv", "b.csv")[:changes]:
        assert called(capsys, "partial-fit", model, learned[0] / name)[0] == 0
    there = {path.name: path.read_bytes() for path in model.iterdir()}
    save = rvfl_jax.save_model

    def fails(*arguments, **options):
        if written:
            save(*arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rvfl_jax.cli.kept_model.save_model", fails)
    third = table(seed=3)
    third.to_csv(learned[0] / "third.csv", index=False)
    assert called(capsys, "partial-fit", model, learned[0] / "third.csv")[0] == 2
    now = {path.name: path.read_bytes() for path in model.iterdir()}
    if written:
        assert now[BEFORE] == there["model.npz"]
        assert now["model.npz"] != there["model.npz"]
    else:
        assert now == there | {LOCK: b""}


@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_undo_is_whole_at_every_moment(learned, model, capsys, monkeypatch, moment):
    assert called(capsys, "partial-fit", model, learned[0] / "a.csv")[0] == 0
    whole = {(model / name).read_bytes() for name in ("model.npz", BEFORE)}
    replace, count = os.replace, {"before": 0, "within": 1, "after": 2}[moment]
    calls = []

    def interrupted(*arguments):
        if len(calls) == count:
            raise KeyboardInterrupt
        calls.append(arguments)
        replace(*arguments)

    monkeypatch.setattr("os.replace", interrupted)
    assert called(capsys, "undo", model)[0] == (0 if moment == "after" else 130)
    monkeypatch.undo()
    assert (model / "model.npz").read_bytes() in whole
    assert not list(model.glob("*.part"))


def test_a_damaged_model_is_not_brought_back(learned, model, capsys):
    assert called(capsys, "partial-fit", model, learned[0] / "a.csv")[0] == 0
    before = (model / "model.npz").read_bytes()
    (model / BEFORE).write_bytes(learned[1][:-99])
    status, _, err = called(capsys, "undo", model)
    assert (status, err.count("\n")) == (2, 1)
    assert f"{model / BEFORE}: the checkpoint is damaged" in err
    assert (model / "model.npz").read_bytes() == before


def test_litter_of_killed_writers_is_swept(learned, model, capsys):
    names = ("model.npz", BEFORE)
    litter = [model / f"{name}.{uuid4().hex}.part" for name in names]
    others = [model / "model.npz.bak.part", model / f"other.npz.{uuid4().hex}.part"]
    for path in (*litter, *others):
        path.write_bytes(b"half")
    assert called(capsys, "partial-fit", model, learned[0] / "a.csv")[0] == 0
    assert not any(path.exists() for path in litter)
    assert all(path.exists() for path in others)


def test_what_another_writes_is_no_litter(tmp_path):
    path = tmp_path / "x.npz"
    part = tmp_path / f"x.npz.{uuid4().hex}.part"
    with part.open("wb") as file:
        assert locks.try_lock(file.fileno())
        write_npz(path, {"x": np.zeros(3)})
        assert part.exists()
    write_npz(path, {"x": np.ones(3)})
    assert not part.exists()


def test_a_killed_writer_leaves_litter_that_is_swept(tmp_path):
    path = tmp_path / "x.npz"
    program = (
        "import os, signal, sys; from pathlib import Path; from rvfl_jax.files import checkpoint\n"
        "die = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.replace_file(Path(sys.argv[1]), die)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], env=environment(), check=False)
    assert len(list(tmp_path.glob("x.npz.*.part"))) == 1
    save_checkpoint(path, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_a_link_stays_a_link(learned, tmp_path, capsys):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "m"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "real.npz").write_bytes(learned[1])
    (folder / "model.npz").symlink_to(elsewhere / "real.npz")
    assert called(capsys, "partial-fit", folder, learned[0] / "a.csv")[0] == 0
    assert (folder / "model.npz").is_symlink()
    assert (elsewhere / "real.npz").read_bytes() != learned[1]
    assert called(capsys, "undo", folder)[0] == 0
    assert (folder / "model.npz").is_symlink()
    assert (elsewhere / "real.npz").read_bytes() == learned[1]
    assert [p.name for p in elsewhere.iterdir()] == ["real.npz"]


def test_the_file_of_a_model_means_the_model(learned, model, capsys):
    a = learned[0] / "a.csv"
    expected = called(capsys, "predict", model, a)
    assert called(capsys, "predict", model / "model.npz", a) == expected
    (model / "other.npz").write_bytes(learned[1])
    for path, said in ((model / "other.npz", "got a file"), (a, "got a file"), (model / "x", "no")):
        status, out, err = called(capsys, "predict", path, a)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{path}: expected" in err
        assert said in err
    for command in (["partial-fit", model / "nowhere", a], ["undo", model / "nowhere"]):
        assert called(capsys, *command)[0] == 2
        assert not (model / "nowhere").exists()


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling"])
def test_unusable_folders_are_refused_before_anything_begins(
    learned, model, tmp_path, capsys, monkeypatch, kind
):
    file = tmp_path / "file"
    file.write_text("mine")
    out = {"file": file, "below a file": file / "m", "dangling": tmp_path / "link"}[kind]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    def learns(*_, **__):
        raise AssertionError("expected nothing to begin")

    for name in ("models.read_parts", "compare.compare", "sweep.run_sweep"):
        monkeypatch.setattr(f"rvfl_jax.cli.{name}", learns)
    a = learned[0] / "a.csv"
    for command in (["fit", a], ["partial-fit", model, a], ["run"], ["sweep", "--k", "1"]):
        status, printed, err = called(capsys, *command, "--out", out)
        assert (status, printed, err.count("\n")) == (2, "", 1)
        assert f"--out: expected a folder, got {out}" in err
    command = ["run", "--out", tmp_path / "results", "--checkpoint", out]
    status, printed, err = called(capsys, *command)
    assert (status, printed, err.count("\n")) == (2, "", 1)
    assert f"--checkpoint: expected a folder, got {out}" in err
    assert file.read_text() == "mine"
    for out, message in ((file / "p.npz", "--out: expected a folder"), (tmp_path, "expected a fi")):
        status, printed, err = called(capsys, "export", model, "--out", out, "--force")
        assert (status, printed, err.count("\n")) == (2, "", 1)
        assert message in err


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="users are those of POSIX")
def test_a_folder_of_somebody_else_is_refused_before_anything_begins(learned, capsys, monkeypatch):
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr("rvfl_jax.cli.models.read_parts", None)
        with nobody():
            found = called(capsys, "fit", learned[0] / "a.csv", "--out", f"{folder}/m")
    status, out, err = found
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--out: expected a folder to write to, got {folder}/m: permission denied" in err


def test_another_folder_is_not_overwritten_unasked(learned, model, tmp_path, capsys):
    a, other = learned[0] / "a.csv", tmp_path / "other"
    assert called(capsys, "partial-fit", model, a, "--out", other)[0] == 0
    before = (other / "model.npz").read_bytes()
    assert (model / "model.npz").read_bytes() == learned[1]
    command = ["partial-fit", model, learned[0] / "b.csv", "--out", other]
    status, _, err = called(capsys, *command)
    assert status == 2
    assert "--force replaces it" in err
    assert (other / "model.npz").read_bytes() == before
    assert called(capsys, *command, "--force")[0] == 0
    assert called(capsys, "partial-fit", model, a, "--out", model)[0] == 0
    bad = tmp_path / "bad.csv"
    bad.write_text("a\n")
    assert called(capsys, "partial-fit", model, bad, "--out", tmp_path / "third")[0] == 2
    assert not (tmp_path / "third").exists()


def test_models_of_before_keep_their_scale(learned, model, capsys):
    """Commands of earlier releases noted mean and deviation beside a model that had none."""
    a = learned[0] / "a.csv"
    expected = called(capsys, "predict", model, a)[1]
    checkpoint = load_checkpoint_file(model / "model.npz")
    arrays, described = checkpoint.arrays, checkpoint.metadata["metadata"]
    mean, scale = (arrays.pop(f"['{name}']").tolist() for name in ("mean", "scale"))
    described["parameters"].pop("scale")
    described["feature_names"] = None
    described["notes"]["table"] |= {"mean": mean, "scale": scale}
    described["notes"].pop("tables")
    _rewrite(model / "model.npz", arrays, described)
    assert called(capsys, "predict", model, a)[1] == expected
    loaded = rvfl_jax.load_model(model)
    assert loaded.scale == "first"
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "d", "e"]
    assert called(capsys, "partial-fit", model, a)[0] == 0
    assert "mean" not in load_checkpoint_file(model / "model.npz").metadata["metadata"]["notes"]
    assert rows_of(model) == len(table(classes=3)) + len(table())


def _rewrite(path, arrays, described):
    """A checkpoint of these arrays, by the names that they have in the file."""
    with np.load(path) as file:
        metadata = json.loads(file["metadata"].tobytes())
    metadata["arrays"] = {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()}
    metadata["metadata"] = described
    members = {f"array {name}": array for name, array in arrays.items()}
    members["metadata"] = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
    write_npz(path, members)


def test_python_and_the_command_line_have_one_model(learned, model, tmp_path, capsys):
    features, y = table().drop(columns="species"), table()["species"]
    table().to_csv(tmp_path / "t.csv", index=False)

    def score(folder):
        found = json.loads(called(capsys, "evaluate", folder, tmp_path / "t.csv")[1])
        return found["accuracy"] * found["rows_of_known_classes"] / found["rows"]

    here = rvfl_jax.load_model(model)
    assert here.score(features, y) == pytest.approx(score(model))
    assert here.feature_names_in_.tolist() == [*features.columns]
    # Python goes on, and so does the command line, to the same bits.
    here.partial_fit(features, y)
    rvfl_jax.save_model(here, tmp_path / "python")
    assert called(capsys, "partial-fit", model, tmp_path / "t.csv")[0] == 0
    same(arrays_of(tmp_path / "python"), arrays_of(model))
    assert here.score(features, y) == pytest.approx(score(model)) == score(tmp_path / "python")
    assert here.score(features, y) > 0.9
    # What the command line noted of tables stays with a model, until it begins anew.
    status, _, err = called(capsys, "partial-fit", tmp_path / "python", learned[0] / "first.csv")
    assert status == 2
    assert "got a table learned before" in err
    rvfl_jax.save_model(copy.deepcopy(here), tmp_path / "copy")
    assert notes_of(tmp_path / "copy") == notes_of(tmp_path / "python") != {}
    rvfl_jax.save_model(here.fit(features, y), tmp_path / "anew")
    assert notes_of(tmp_path / "anew") == {}
    with pytest.raises(ValueError, match="feature names"):
        rvfl_jax.load_model(model).partial_fit(features[["b", "a", "c", "d", "e"]], y)


def test_models_made_in_python_learn_on_the_command_line(tmp_path, capsys):
    X, y = table().drop(columns="species"), np.arange(len(table())) % 3
    options = {"num_layers": 1, "num_nodes": 12, "random_state": 0, "scale": "first"}
    made = rvfl_jax.EdRVFLClassifier(**options).partial_fit(X, y)
    rvfl_jax.save_model(made, tmp_path / "m")
    table().assign(species=y + 1.0).to_csv(tmp_path / "t.csv", index=False)
    status, _, err = called(capsys, "partial-fit", tmp_path / "m", tmp_path / "t.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "expected a column 'label'" in err
    command = ["partial-fit", tmp_path / "m", tmp_path / "t.csv", "--label", "species"]
    status, _, err = called(capsys, *command)
    assert (status, err.splitlines()[-1]) == (0, "New classes: 3.")
    made.partial_fit(X, y + 1)
    assert rvfl_jax.load_model(tmp_path / "m").classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(
        rvfl_jax.load_model(tmp_path / "m").predict_proba(X), made.predict_proba(X)
    )
    regressor = rvfl_jax.EdRVFLRegressor(num_layers=1, num_nodes=12).partial_fit(X, y)
    rvfl_jax.save_model(regressor, tmp_path / "r")
    status, _, err = called(capsys, "predict", tmp_path / "r", tmp_path / "t.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "expected a classifier, got EdRVFLRegressor" in err


def test_labels_of_before_are_the_same_classes(tmp_path, capsys):
    """Earlier releases kept "0.0" of a table as it stood."""
    X = table().drop(columns="species")
    y = np.array(["0.0", "1.0", "2"])[np.arange(len(X)) % 3]
    options = {"num_layers": 1, "num_nodes": 12, "random_state": 0, "scale": "first"}
    made = rvfl_jax.EdRVFLClassifier(**options).partial_fit(X, y)
    rvfl_jax.save_model(made, tmp_path / "m")
    for text in (y, np.arange(len(X)) % 3):
        X.assign(label=text).to_csv(tmp_path / "t.csv", index=False)
        found = json.loads(called(capsys, "evaluate", tmp_path / "m", tmp_path / "t.csv")[1])
        assert found["accuracy"] == pytest.approx(made.score(X, y))
        assert set(found["accuracy_by_class"]) == {"0.0", "1.0", "2"}
    status, _, err = called(capsys, "partial-fit", tmp_path / "m", tmp_path / "t.csv")
    assert (status, err) == (0, f"Wrote {tmp_path / 'm'}: {2 * len(X)} rows, 3 classes.\n")


@pytest.mark.slow
def test_predictions_come_while_rows_come(learned, model):
    """In a process of its own: a row's prediction is there before the next row is written."""
    line = [sys.executable, "-m", "rvfl_jax", "predict", str(model), "-"]
    rows = (learned[0] / "a.csv").read_text().splitlines(keepends=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(line, env=environment(), **pipes) as process:
        process.stdin.write(rows[0])
        seen = []
        for row in rows[1:6]:
            process.stdin.write(row)
            process.stdin.flush()
            seen.append(process.stdout.readline())
            if len(seen) == 1:
                assert seen[0] == "label,probability\n"
                seen.append(process.stdout.readline())
        process.stdin.write("1,2,x\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 2
    assert len(seen) == 6


def test_streams_are_utf_8_and_open(monkeypatch):
    from rvfl_jax.cli import main as cli

    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", None)
    cli._open_streams()
    print("Dürrholz \u4e2d", flush=True)
    assert out.buffer.getvalue().decode() == "Dürrholz \u4e2d\n"
    print("lost", file=sys.stderr)
    sys.stderr.close()


@pytest.mark.parametrize(
    ("redirected", "status", "message"),
    [
        (">&-", 2, "rvfl-jax: standard output: expected it to be open, got it closed\n"),
        ("<&-", 2, "rvfl-jax: -: expected a table on standard input, which is closed\n"),
        (">/dev/full", 2, "rvfl-jax: [Errno 28] No space left on device\n"),
        ("2>&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
@pytest.mark.slow
def test_closed_and_full_streams(learned, model, redirected, status, message):
    source = "-" if redirected == "<&-" else learned[0] / "a.csv"
    repeated = "--probabilities --format jsonl" if "true" in redirected else ""
    line = f"{sys.executable} -m rvfl_jax predict {model} {source} {repeated} {redirected}"
    finished = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert (finished.returncode, finished.stderr) == (status, message)


def test_locks_wait(tmp_path):
    told = []
    with locks.alone(tmp_path / "x", wait=0, waiting=print):
        begun = time.monotonic()
        with (
            pytest.raises(TimeoutError),
            locks.alone(tmp_path / "x", wait=0.2, waiting=lambda: told.append(1)),
        ):
            pass
        assert 0.2 <= time.monotonic() - begun < 5
    assert told == [1]
