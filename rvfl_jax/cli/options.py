"""Commands of `rvfl-jax` and their options, read into a namespace without importing JAX."""

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rvfl_jax import __version__
from rvfl_jax.learners import REGISTERED

EXAMPLES = """\
examples:
  rvfl-jax run
      digits, five tasks of two classes: ridge, forward and Bayes, five seeds
  rvfl-jax run --styles ridge --k 0.5 1.414 --seeds 10 --out results/k
      ridge against two constant forward strengths
  rvfl-jax run --dataset fashion-mnist --batches 20 --num-layers 1 --num-nodes 2000 --ridge 1
      60,000 images in one pass
  rvfl-jax run --dataset features.npz --tasks 10 --batches 200 --precision single
      your own features: arrays X and y, or X_train, y_train, X_test and y_test
  rvfl-jax run --dataset fashion-mnist --checkpoint kept/ --resume
      the same command goes on after Ctrl-C, a kill or a power cut, to the same bits
"""


SWEEP_EXAMPLES = """\
examples:
  rvfl-jax sweep --k lin:0:3:64 --seeds 10
      64 strengths, each with ten networks, in one compiled program
  rvfl-jax sweep --k 0 0.5 1 2 --ridge log:1e-3:10:9
      a heat map of k and lambda
  rvfl-jax sweep --kappa log:0.1:10:8 --sigma log:1e-4:1:8 --orders 5
      -kF-Bayes over five task orders
"""


EMBED_EXAMPLES = """\
examples:
  rvfl-jax embed --model timm:vit_base_patch16_224.augreg_in21k --images birds/ --out birds.npz
      a folder with one folder a class, or with train/ and test/ of such
  rvfl-jax embed --model timm:vit_base_patch16_224.augreg_in21k --images new/ --out new.npz
      new images, without labels; `files` in new.npz names them row by row
  rvfl-jax embed --model hf:facebook/dinov2-base --images cifar100.npz --out features.npz
      arrays X_train, y_train, X_test and y_test of uint8 images
  rvfl-jax run --dataset features.npz --tasks 10 --batches 200
      learn what came out
"""


MODEL_EXAMPLES = {
    "fit": """\
examples:
  rvfl-jax fit flowers.csv --label species --out flowers/
  rvfl-jax fit big.parquet --out big/ --num-nodes 1000 --batch-rows 4096
  rvfl-jax fit mail.parquet --id id --time date --text subject --categorical folder --out mail/
      what the columns are, once for all later commands; lists of numbers are embeddings
  zcat rows.csv.gz | rvfl-jax fit - --out rows/ --k bayes
      a CSV from standard input; rvfl-jax fit rows.csv.gz reads the file itself
""",
    "partial-fit": """\
examples:
  rvfl-jax partial-fit flowers/ more.csv
      new rows, new classes among them, which are named on standard error
  rvfl-jax partial-fit flowers/ more.csv --again
      the same rows once more; without --again they are refused
  rvfl-jax partial-fit flowers/ more.csv --out flowers-and-more/
""",
    "unlearn": """\
examples:
  rvfl-jax unlearn flowers/ wrong.csv
      as if these rows had never been learned
""",
    "undo": """\
examples:
  rvfl-jax undo flowers/
      the model before the last fit --force, partial-fit or unlearn
  rvfl-jax undo flowers/
      and that one again
""",
    "predict": """\
examples:
  rvfl-jax predict flowers/ unseen.csv > predictions.csv
  rvfl-jax predict flowers/ unseen.csv --format jsonl --probabilities
  rvfl-jax predict flowers/ unseen.csv --unknown "no known flower" --false-alarms 0.02
      for models of fit --novelty-score blended
  tail -f -n +1 arriving.csv | rvfl-jax predict flowers/ -
      a prediction for each row as it comes
""",
    "evaluate": """\
examples:
  rvfl-jax evaluate flowers/ held_out.csv
      rows of classes not yet learned are counted by themselves, and how well they are told
  rvfl-jax evaluate flowers/ tomorrow.parquet && rvfl-jax partial-fit flowers/ tomorrow.parquet
""",
    "inspect": """\
examples:
  rvfl-jax inspect flowers/
  rvfl-jax inspect flowers/ | jq .rows_of_class
""",
    "export": """\
examples:
  rvfl-jax export flowers/ --out flowers.npz
      its docstring, python -m pydoc rvfl_jax.serving, says how to read that file
  rvfl-jax export flowers/ --out flowers.npz --batch-size 64 --force
      calls of 64 rows each
  rvfl-jax export flowers/ --format onnx --out flowers.onnx
      for onnxruntime and others; pip install "rvfl-jax[onnx]" has what writes and reads it
""",
}

TABLES = (
    " A table ends in .csv, .tsv, .csv.gz or .tsv.gz, with a header, in .parquet, or in .npz with X"
    " and y (and `columns`, names of features), or is - for a CSV from standard input, in UTF-8."
    " A feature is a finite number or, in any format, a text that is one; booleans, dates, empty"
    " fields, null and NaN are refused, unless options of fit say what a column is. Labels are"
    " text; 0 and 0.0 are one label, 007 and 7 are two; an empty one, null, NaN or NaT"
    " is refused. A first column without a name and pandas' saved index are left out, with a note."
)


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="rvfl-jax",
        description="Online class-incremental learning with randomised networks, in one pass.",
    )
    parser.add_argument("--version", action="version", version=f"rvfl-jax {__version__}")
    parser.add_argument(
        "--list-methods",
        action=_ListMethods,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="print what run --styles takes, method by method, and exit",
    )
    commands = parser.add_subparsers(
        dest="command", title="commands", required=True, metavar="command"
    )
    run = commands.add_parser(
        "run",
        help="compare styles on a class-incremental stream",
        description="Learn a class-incremental stream in one pass with each style, compare with"
        " the offline expert, print a table, and write results.json and curves.png.",
        epilog=EXAMPLES,
        formatter_class=_Formatter,
    )
    _add_data_options(run)
    _add_network_options(run)
    _add_style_options(run)
    _add_run_options(run)
    sweep = commands.add_parser(
        "sweep",
        help="try a grid in one program and choose without test data",
        description="Run every configuration of a grid along the stream in one compiled program,"
        " choose by the prequential loss (of each batch before it is learned), test the choice"
        " once, print a table, and write sweep.json and sweep.png. Values are numbers,"
        " lin:low:high:count or log:low:high:count.",
        epilog=SWEEP_EXAMPLES,
        formatter_class=_Formatter,
    )
    _add_data_options(sweep)
    _add_network_options(sweep, ridge=False)
    _add_sweep_options(sweep)
    _add_embed_command(commands)
    _add_model_commands(commands)
    for command in commands.choices.values():
        command.add_argument(
            "--no-cache",
            action="store_true",
            help="compile anew, and keep no program for the next process",
        )
    return parser


def _add_embed_command(commands: Any) -> None:
    embed = commands.add_parser(
        "embed",
        help="turn images into a feature file with a pretrained model",
        description="Embed images with a frozen model and write an .npz file that the other"
        " commands read. Finished blocks are kept, so that a killed job goes on; a complete file"
        " of the same images and model is left as it is. timm: and hf: models need"
        " pip install 'rvfl-jax[embed]'; where their hub cannot be reached, what was downloaded"
        " before is taken.",
        epilog=EMBED_EXAMPLES,
        formatter_class=_Formatter,
    )
    _add_embed_options(embed)


def _add_model_commands(commands: Any) -> None:
    """fit, partial-fit, unlearn, undo, predict, evaluate, inspect and export."""
    meanings = {
        "fit": "learn a table and write a model",
        "partial-fit": "continue learning with another table",
        "unlearn": "take the rows of a table out of a model",
        "undo": "bring back the model before the last change",
        "predict": "print the label of every row of a table",
        "evaluate": "print accuracy and calibration on a labelled table",
        "inspect": "print what a model has learned",
        "export": "write a file that predicts with JAX and NumPy alone, or an ONNX graph",
    }
    without_table = ("undo", "inspect", "export")
    for name, meaning in meanings.items():
        parser = commands.add_parser(
            name,
            help=meaning,
            description=f"{meaning[0].upper()}{meaning[1:]}."
            + ("" if name in without_table else TABLES)
            + " Results go to standard output, all else to standard error; bad input is one line"
            " and exit status 2.",
            epilog=MODEL_EXAMPLES[name],
            formatter_class=_Formatter,
        )
        if name != "fit":
            parser.add_argument("model", type=Path, help="folder that fit wrote")
        if name not in without_table:
            parser.add_argument("data", help="table, or - for standard input")
            parser.add_argument(
                "--batch-rows",
                type=int,
                default=1024,
                help="number of rows learned or predicted at once",
            )
            parser.add_argument(
                "--label",
                default="label" if name == "fit" else None,
                help="name of the label column" + " (default: that of fit)" * (name != "fit"),
            )
        parser.add_argument("--debug", action="store_true", help="show where an error came from")
        if name in ("fit", "partial-fit", "unlearn", "undo"):
            parser.add_argument(
                "--wait",
                type=float,
                default=60.0,
                metavar="SECONDS",
                help="how long to wait for another process that writes the model, before giving up",
            )
        if name in ("partial-fit", "unlearn"):
            parser.add_argument(
                "--again",
                action="store_true",
                help="take a table even if that was done with it before",
            )
        _OWN_OPTIONS.get(name, lambda parser: None)(parser)


def _add_partial_fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write to (default: the model itself)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing model in --out")


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the .npz or .onnx file to write"
    )
    parser.add_argument(
        "--format",
        choices=("jax", "onnx"),
        help="of the file (default: onnx for a name that ends in .onnx, else jax)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="ROWS",
        help="number of rows of every call (default: any number)",
    )


def _add_predict_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("csv", "jsonl"), default="csv", help="format of the output"
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="print the probability of every class, not only of the best",
    )
    parser.add_argument(
        "--unknown",
        metavar="LABEL",
        help="label of rows that are unlike all classes; needs a model made with --novelty-score",
    )
    _add_false_alarms(parser)
    parser.add_argument(
        "--id",
        metavar="NAME",
        help="column to repeat before each prediction (default: that of fit)",
    )


def _add_false_alarms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--false-alarms",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="wanted share of rows of known classes that are taken for unknown",
    )


def _number_or_auto(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or auto, got {text!r}") from None


def _add_fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to write the model to"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing model")
    parser.add_argument(
        "--num-layers", type=int, default=2, metavar="L", help="number of sub-learners"
    )
    parser.add_argument(
        "--num-nodes", type=int, default=256, metavar="N", help="hidden nodes of each sub-learner"
    )
    parser.add_argument(
        "--ridge",
        type=_number_or_auto,
        default=1.0,
        help="regularisation strength lambda, or auto: by generalised cross-validation",
    )
    parser.add_argument("--k", default="0", help="forward strength, or bayes for an adaptive one")
    parser.add_argument("--kappa", type=float, default=1.0, help="scale of the adaptive k")
    parser.add_argument("--sigma", type=float, default=1e-5, help="noise level of the adaptive k")
    parser.add_argument(
        "--activation", default="relu", help="activation: relu, leaky_relu, sigmoid, tanh or swish"
    )
    parser.add_argument(
        "--feature-map",
        choices=("layers", "fourier", "sparse", "none"),
        default="layers",
        help="random layers, random Fourier features, a sparse projection, or the columns alone",
    )
    parser.add_argument(
        "--class-balance",
        type=float,
        default=0.0,
        help="how far rare classes are favoured: 0 for not at all, 0.5 to 1 where they matter",
    )
    parser.add_argument(
        "--scale",
        choices=("first", "none"),
        default="first",
        help="standardise features by the first --batch-rows rows, or leave them",
    )
    parser.add_argument(
        "--novelty-score",
        choices=("none", "blended", "relative_mahalanobis", "mahalanobis", "leverage"),
        default="none",
        metavar="SCORE",
        help="score every row before it is learned by how unlike the others it is, for --unknown"
        " of predict: blended (tells best), relative_mahalanobis (costs least), mahalanobis,"
        " leverage or none",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    _add_column_options(parser)


def _add_column_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "columns",
        "What the columns of a table are. It becomes part of the model, and later commands read"
        " tables alike. A name with a comma goes into double quotes. A Parquet column of lists of"
        " numbers, all of one length, is one feature an element.",
    )
    for name, meaning in (
        (
            "features",
            "columns to learn from, beside the next two (default: all others)",
        ),
        ("categorical", "columns with one feature a value; values first met later have none"),
        ("text", "columns of texts, whose words are hashed to --text-width features"),
        ("ignore", "columns not to learn from"),
    ):
        group.add_argument(f"--{name}", type=_column_names, metavar="NAMES", help=meaning)
    group.add_argument("--id", metavar="NAME", help="column that names rows; predict repeats it")
    group.add_argument(
        "--time",
        metavar="NAME",
        help="column of numbers or ISO 8601 dates, in whose order rows of a table are learned",
    )
    group.add_argument(
        "--impute",
        choices=("refuse", "mean", "median", "zero"),
        default="refuse",
        help="what stands for a missing number, by this table; a missing category or text is all"
        " zeros then",
    )
    group.add_argument(
        "--text-width", type=int, default=512, metavar="N", help="number of features of each text"
    )


_OWN_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "fit": _add_fit_options,
    "partial-fit": _add_partial_fit_options,
    "predict": _add_predict_options,
    "evaluate": _add_false_alarms,
    "export": _add_export_options,
}


class _ListMethods(argparse.Action):
    """As --version does, it prints and ends, without a command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from rvfl_jax.cli.methods import print_methods

        if sys.stdout is not None:
            print_methods(sys.stdout)
        parser.exit()


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults that say something, examples as they are typed, all else wrapped."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == ():
            return action.help
        return super()._get_help_string(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data and stream")
    group.add_argument(
        "--dataset",
        default="digits",
        help="digits, fashion-mnist, or a file: .npz, or .csv, .tsv (or .gz of these) or .parquet"
        " with a label column",
    )
    group.add_argument(
        "--label", default="label", help="label column of a file that is not an .npz"
    )
    group.add_argument(
        "--tasks", type=int, default=5, metavar="Q", help="number of tasks, each of new classes"
    )
    group.add_argument(
        "--batches", type=int, default=50, metavar="T", help="number of batches in the whole stream"
    )
    group.add_argument(
        "--order",
        choices=("tasks", "classes", "none"),
        default="tasks",
        help="what a seed shuffles: the order of tasks made of neighbouring classes (as the"
        " paper does), which classes make a task, or nothing",
    )
    group.add_argument(
        "--blur", type=float, default=0.0, help="how widely rows mix across task boundaries, 0 to 1"
    )


def _add_network_options(parser: argparse.ArgumentParser, *, ridge: bool = True) -> None:
    group = parser.add_argument_group("network")
    group.add_argument(
        "--num-layers", type=int, default=3, metavar="L", help="number of sub-learners"
    )
    group.add_argument(
        "--num-nodes", type=int, default=128, metavar="N", help="hidden nodes of each sub-learner"
    )
    if ridge:
        group.add_argument(
            "--ridge", type=float, default=0.1, help="regularisation strength lambda"
        )
    group.add_argument(
        "--activation", default="relu", help="activation: relu, leaky_relu, sigmoid, tanh or swish"
    )
    group.add_argument(
        "--weight-init", default="lecun_uniform", help="distribution of the random weights"
    )
    group.add_argument(
        "--ensemble",
        choices=("mean", "median"),
        default="mean",
        help="how the sub-learners' outputs are combined",
    )


def _add_style_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("styles")
    group.add_argument(
        "--styles",
        type=_names,
        default="ridge,forward,bayes",
        help="comma-separated: ridge (-R, k=0), forward (-F, k=1), bayes (-kF-Bayes);"
        f" other methods: {', '.join(REGISTERED)}; rvfl-jax --list-methods tells of each",
    )
    group.add_argument(
        "--k", type=float, nargs="+", default=(), help="run -kF with each of these strengths, too"
    )
    group.add_argument("--kappa", type=float, default=1.0, help="scale of the adaptive k")
    group.add_argument("--sigma", type=float, default=1e-5, help="noise level of the adaptive k")
    group.add_argument(
        "--estimator",
        choices=("inverse_trace", "trace", "random_diagonal", "random_variance"),
        default="inverse_trace",
        metavar="NAME",
        help="estimator of the adaptive k: %(choices)s",
    )
    group.add_argument(
        "--reuse-k",
        action="store_true",
        help="take out the forward term with the strength that it was added with",
    )
    group.add_argument(
        "--cold-start",
        choices=("exact", "paper"),
        default="exact",
        help="with paper, the Gram matrix of batch 1 never enters",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--seeds",
        type=int,
        help="number of seeds (default: 5, or 1 from 10,000 training rows on)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--solver",
        choices=("auto", "blocked", "covariance", "information"),
        default="auto",
        help="algebraic form of the update; auto takes the fastest for the stream",
    )
    group.add_argument(
        "--evaluate",
        default="batch",
        help="when to evaluate the test set: after each batch, each task, or every E batches",
    )
    group.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="folder to keep finished work in"
    )
    group.add_argument(
        "--resume", action="store_true", help="continue with what --checkpoint holds, if anything"
    )
    group.add_argument(
        "--every",
        type=int,
        metavar="BATCHES",
        help="number of batches between two checkpoints (default: about 20 checkpoints a run)",
    )
    _add_output_options(group)


def _add_sweep_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("grid")
    for name, meaning in (
        ("k", "constant forward strengths"),
        ("kappa", "scales of the adaptive k, in place of --k"),
        ("sigma", "noise levels of the adaptive k, in place of --k"),
        ("weight-scale", "factors on the random weights"),
    ):
        group.add_argument(
            f"--{name}",
            type=_values,
            nargs="+",
            help=f"{meaning} (default: none)",
            default=argparse.SUPPRESS,
        )
    group.add_argument(
        "--ridge",
        type=_values,
        nargs="+",
        help="regularisation strengths lambda (default: 0.1)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--seeds", type=int, default=3, help="number of networks for every configuration"
    )
    group.add_argument(
        "--orders", type=int, default=1, help="number of task orders for every configuration"
    )
    group = parser.add_argument_group("run")
    group.add_argument(
        "--criterion",
        choices=("prequential_loss", "prequential_accuracy"),
        default="prequential_loss",
        help="criterion by which the best configuration is chosen",
    )
    _add_output_options(group)


def _add_output_options(group: Any) -> None:
    """What `run` and `sweep` ask alike."""
    group.add_argument(
        "--precision",
        choices=("double", "single"),
        default="double",
        help="precision of all arithmetic",
    )
    group.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder of the results"
    )
    group.add_argument("--force", action="store_true", help="replace existing results")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


def _add_embed_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, help="the model: timm:NAME, hf:NAME, or resnet56:FILE.npz"
    )
    parser.add_argument(
        "--images",
        required=True,
        type=Path,
        metavar="PATH",
        help="folder of class folders or of new images, or an .npz file",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="the .npz file to write"
    )
    parser.add_argument("--batch-size", type=int, default=64, help="number of images at once")
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="leave the model untrained, with seed 0, to try things out",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _values(text: str) -> tuple[float, ...]:
    """One number, or lin:low:high:count, or log:low:high:count."""
    kind, *rest = text.split(":")
    try:
        if not rest:
            return (float(text),)
        low, high, count = float(rest[0]), float(rest[1]), int(rest[2])
        fits = kind in ("lin", "log") and len(rest) == 3 and count >= 1
        if not fits or (kind == "log" and not (low > 0 and high > 0)):
            raise ValueError
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(
            f"expected a number, lin:low:high:count or log:low:high:count, got {text!r}"
        ) from None
    steps = [i / max(count - 1, 1) for i in range(count)]
    if kind == "lin":
        return tuple(low + (high - low) * step for step in steps)
    return tuple(low * (high / low) ** step for step in steps)


def _column_names(text: str) -> tuple[str, ...]:
    """Names between commas, as a line of a CSV has them."""
    (names,) = csv.reader([text], skipinitialspace=True)
    found = tuple(name for name in names if name.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"expected names of columns, got {text!r}")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
