"""The main job from the command line: results, picture, table, errors."""

import argparse
import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import jax
import matplotlib.image
import numpy as np
import pytest

from rvfl_jax.cli import main as cli
from rvfl_jax.cli.compare import Config, compare, make_learners
from rvfl_jax.cli.options import build_parser
from rvfl_jax.metrics import PROTOCOLS
from rvfl_jax.runs.comparison import covered
from tests.compilations import counted_compilations
from tests.streams import environment

SMALL = ["--batches", "10", "--num-layers", "2", "--num-nodes", "16", "--seeds", "2"]


def all_styles(out):
    return ["run", *SMALL, "--k", "1.414", "--out", str(out)]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """One run of all styles, with all that it printed."""
    out = tmp_path_factory.mktemp("run")
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        assert cli.main(all_styles(out)) == 0
    return out, printed.getvalue()


def test_table_and_closing_lines(outcome):
    check_printed(outcome[1])


@pytest.mark.slow
def test_a_process_of_its_own_prints_and_writes_the_same(outcome, tmp_path):
    command = [sys.executable, "-m", "rvfl_jax", *all_styles(tmp_path)]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment()
    )
    assert finished.returncode == 0, finished.stderr
    check_printed(finished.stdout)
    here, there = (json.loads((f / "results.json").read_text()) for f in (outcome[0], tmp_path))
    assert there["styles"].keys() == here["styles"].keys()
    np.testing.assert_allclose(there["offline"]["ACC"], here["offline"]["ACC"], atol=1e-6)


def check_printed(printed):
    for word in ("-R", "-F", "-kF-Bayes", "-kF (k=1.414)", "offline", "ACC", "BWT", "FWT"):
        assert word in printed
    assert "samples per second" in printed
    assert "1,347 samples in one pass" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_results_file(outcome):
    out, _ = outcome
    results = json.loads((out / "results.json").read_text())
    assert results["config"]["batches"] == 10
    assert results["protocols"] == list(PROTOCOLS)
    assert set(results["versions"]) == {"rvfl-jax", "jax", "jaxlib", "numpy"}
    assert set(results["styles"]) == {"-R", "-F", "-kF-Bayes", "-kF (k=1.414)"}
    ridge = results["styles"]["-R"]
    assert len(ridge["runs"]) == len(ridge["metrics"]["ACC"]) == 2
    assert np.shape(ridge["runs"][0]["R"]["seen"]) == (5, 5)
    offline = results["offline"]
    for name in PROTOCOLS:
        got = ridge["metrics"][f"accuracy_{name}"]
        np.testing.assert_allclose(got, offline[f"accuracy_{name}"], atol=1e-6)
    np.testing.assert_allclose(ridge["metrics"]["ACC"], offline["ACC"], atol=1e-6)
    assert np.shape(results["styles"]["-kF-Bayes"]["runs"][0]["k_next"]) == (10, 2)


def test_results_are_not_replaced_unasked(outcome, monkeypatch, capsys, tmp_path):
    out, _ = outcome
    before = (out / "results.json").read_bytes()

    def begins(*_, **__):
        raise ValueError("it begins")

    monkeypatch.setattr("rvfl_jax.cli.compare.compare", begins)
    resumed = ["--checkpoint", str(tmp_path), "--resume"]
    (tmp_path / "results.json").write_text('{"config": {}}')
    elsewhere = ["run", *SMALL, "--out", str(tmp_path)]
    for arguments, message in (
        (all_styles(out), f"{out}: expected no results.json there yet; --force replaces it"),
        ([*all_styles(out), "--force"], "it begins"),
        # A run that goes on replaces its own results, and no others.
        ([*all_styles(out), *resumed], "it begins"),
        ([*all_styles(out), *resumed, "--ridge", "2"], f"{out}: expected no results.json there"),
        ([*elsewhere, *resumed], f"{tmp_path}: expected no results.json there yet"),
    ):
        assert cli.main([*arguments, "--quiet"]) == 2
        assert capsys.readouterr().err.startswith(f"rvfl-jax: {message}")
    assert (out / "results.json").read_bytes() == before
    monkeypatch.setattr("rvfl_jax.cli.sweep.run_sweep", begins)
    (tmp_path / "sweep.png").touch()
    assert sweep_command(tmp_path) == 2
    assert "expected no sweep.png there yet" in capsys.readouterr().err
    assert sweep_command(tmp_path, "--force") == 2
    assert "it begins" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_unusable_data_are_one_line(command, capsys, tmp_path):
    whole = io.BytesIO()
    np.savez(whole, X=np.eye(40), y=np.arange(40) % 4)
    array = io.BytesIO()
    np.save(array, np.eye(3))
    flipped = bytearray(whole.getvalue())
    flipped[len(flipped) // 3] ^= 4
    contents = [b"", whole.getvalue()[:-99], bytes(flipped), array.getvalue(), b"label,a\n"]
    for i, content in enumerate(contents):
        for kind in ("npz", "parquet", "csv.gz", "CSV"):
            path = tmp_path / f"data{i}.{kind}"
            path.write_bytes(content)
            arguments = [command, *SMALL, "--quiet", "--dataset", str(path)]
            assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.count("\n") == 1
            assert path.name in captured.err
    assert not (tmp_path / "out").exists()


def test_picture(outcome):
    out, _ = outcome
    picture = matplotlib.image.imread(out / "curves.png")
    assert picture.shape[1] >= 1200
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50


@pytest.mark.slow
def test_every_style_takes_at_most_three_compilations():
    label, per_label = ["start"], {}

    def progress(new_label, *_):
        style = new_label.split(": ")[-1]
        per_label[label[0]] = per_label.get(label[0], 0) + len(made)
        made.clear()
        label[0] = style

    jax.clear_caches()
    with counted_compilations() as made:
        compare(Config(batches=10, num_layers=1, num_nodes=13, seeds=5), progress)
    assert all(0 < per_label[style] <= 3 for style in ("-R", "-F", "-kF-Bayes")), per_label


@pytest.mark.slow
def test_forward_transfer_compares_with_experts_on_one_task():
    """With one task a class-incremental expert on that task is the offline expert."""
    result = compare(Config(tasks=2, batches=2, num_layers=1, num_nodes=16, seeds=1, ridge=1.0))
    history = result.styles["-R"].histories[0]
    R = history.R["class_incremental"]
    FWT = result.styles["-R"].metrics["FWT"][0]
    R_ind_of_second_task = R[1, 1] - FWT
    assert R[1, 1] - 0.2 < R_ind_of_second_task <= 1


@pytest.mark.slow
def test_reused_k_is_named_and_blurred_streams_run():
    config = Config(
        batches=12,
        blur=0.4,
        num_layers=1,
        num_nodes=12,
        seeds=1,
        styles=("bayes",),
        reuse_k=True,
        precision="single",
        evaluate="4",
    )
    seen = []
    result = compare(config, lambda *report: seen.append(report))
    (style,) = result.styles.values()
    assert list(result.styles) == ["-kF-Bayes (reused k)"]
    assert style.histories[0].evaluated.tolist() == [3, 7, 11]
    assert "ACC" not in style.metrics
    assert seen[-1] == ("done", 12, 12)


def test_large_runs_report_every_chunk(monkeypatch):
    monkeypatch.setattr("rvfl_jax.cli.compare.LARGE_RUN", 0)
    seen = []
    compare(
        Config(batches=10, num_layers=1, num_nodes=12, seeds=1, styles=("ridge",)),
        lambda label, done, total: seen.append(done),
    )
    assert {1, 2, 5, 10} <= set(seen)


@pytest.mark.slow
def test_collapse_of_k_is_told(capsys, tmp_path):
    """Batches of 135 rows with 64 + 4 features of rank below: sigma decides."""
    arguments = ["--batches", "10", "--num-layers", "1", "--num-nodes", "4", "--seeds", "1"]
    status = cli.main(["run", *arguments, "--styles", "bayes", "--out", str(tmp_path), "--quiet"])
    assert status == 0
    assert "sigma alone decided" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "mnits"], "dataset: expected one of digits"),
        (
            ["--styles", "ridge,lasso"],
            "dsal, replay, er, derpp, agem, gem, gss",
        ),
        (["--styles", "lasso"], "got 'lasso'; rvfl-jax --list-methods tells of each"),
        (["--styles", ""], "styles: expected at least one"),
        (["--tasks", "50"], "num_tasks: expected at most 10"),
        (["--batches", "3"], "num_batches: expected 5"),
        (["--ridge", "0"], "ridge: expected finite and greater than 0"),
        (["--k", "-1"], "k: expected finite and at least 0"),
        (["--sigma", "-1"], "sigma"),
        (["--activation", "step"], "activation: expected one of relu"),
        (["--seeds", "0"], "seeds: expected an integer of at least 1"),
        (["--evaluate", "never"], "evaluate: expected batch, task or an integer"),
        (["--evaluate", "often"], "evaluate: expected batch, task or an integer"),
    ],
)
def test_errors_are_one_line_and_write_nothing(arguments, message, capsys, tmp_path):
    out = tmp_path / "out"
    assert cli.main(["run", *SMALL, "--quiet", *arguments, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not out.exists()


def test_numerical_failure_is_one_line(monkeypatch, capsys, tmp_path):
    rng = np.random.default_rng(0)
    X = 1e200 * rng.normal(size=(80, 3))
    np.savez(tmp_path / "huge.npz", X=X, y=np.arange(80) % 4)
    arguments = ["run", *SMALL, "--quiet", "--tasks", "2", "--out", str(tmp_path / "out")]
    assert cli.main([*arguments, "--dataset", str(tmp_path / "huge.npz")]) == 1
    assert "Remedy" in capsys.readouterr().err


def test_help(capsys):
    for arguments in (["--help"], ["run", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed
    assert "--cold-start" in printed


def test_learners_are_named_as_in_the_paper():
    assert list(make_learners(Config())) == ["-R", "-F", "-kF-Bayes"]


def test_nested_and_overlapping_spans_count_once():
    assert covered([]) == 0
    assert covered([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (7.0, 8.0)]) == 6


def sweep_command(tmp_path, *options):
    small = ["--num-layers", "1", "--num-nodes", "8", "--batches", "10", "--seeds", "2"]
    return cli.main(["sweep", *small, "--quiet", "--out", str(tmp_path), *options])


@pytest.mark.slow
def test_sweep_writes_results_and_a_picture(tmp_path, capsys):
    assert sweep_command(tmp_path, "--k", "0", "lin:0.5:1:2", "--ridge", "log:0.1:10:2") == 0
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["axes"] == ["k", "ridge", "seed"]
    np.testing.assert_allclose(content["coords"]["k"], [0, 0.5, 1])
    np.testing.assert_allclose(content["coords"]["ridge"], [0.1, 10])
    losses = np.array(content["prequential_loss"]).mean(axis=-1)
    k, ridge = np.unravel_index(np.argmin(losses), losses.shape)
    assert content["best"] == {
        "k": content["coords"]["k"][k],
        "ridge": content["coords"]["ridge"][ridge],
    }
    assert 0 < content["test_of_the_best"]["accuracy_class_incremental"] <= 1
    assert {"key", "versions", "device", "data", "learner"} <= set(content["provenance"])
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    output = capsys.readouterr().out
    assert "the best 6 of 6 configurations" in output
    assert max(len(line) for line in output.splitlines()) <= 80


@pytest.mark.slow
def test_sweep_of_the_adaptive_strength_over_orders(tmp_path):
    options = ("--kappa", "0.5", "2", "--orders", "2", "--criterion", "prequential_accuracy")
    assert sweep_command(tmp_path, *options) == 0
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["axes"] == ["kappa", "ridge", "seed", "stream"]
    assert np.shape(content["prequential_loss"]) == (2, 1, 2, 2)


@pytest.mark.parametrize("value", ["lin:0:1", "log:0:1:3", "cubic:0:1:3", "lin:a:1:3", "x"])
def test_sweep_rejects_values_it_cannot_read(tmp_path, value, capsys):
    with pytest.raises(SystemExit):
        sweep_command(tmp_path, "--k", value)
    assert "expected a number, lin:low:high:count" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--k", "1", "--kappa", "1"), "k: expected either k or kappa and sigma"),
        (("--k", "-1"), "k: expected finite and at least 0"),
        (("--seeds", "0"), "seeds, orders: expected at least 1"),
    ],
)
def test_sweep_errors_are_one_line(tmp_path, options, message, capsys):
    assert sweep_command(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_tells_what_every_option_is():
    (commands,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert {"run", "sweep", "embed", "fit", "export"} < set(commands.choices)
    examples = [parser.epilog for parser in commands.choices.values()]
    assert len(set(examples)) == len(examples)
    for name, parser in commands.choices.items():
        assert f"rvfl-jax {name} " in parser.epilog
        untold = [a.dest for a in parser._actions if not (a.help and a.help.strip())]
        assert not untold, name
        text = parser.format_help()
        for said in ("(default: None)", "(default: False)", "(default: ())"):
            assert said not in text, name
        longest = max(map(len, text[: text.index("examples:")].splitlines()))
        assert longest < shutil.get_terminal_size().columns, name
