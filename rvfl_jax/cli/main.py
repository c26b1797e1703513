"""The command line: `rvfl-jax`, or `python -m rvfl_jax`."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rvfl_jax.cli.options import build_parser
from rvfl_jax.cli.start import begin

if TYPE_CHECKING:
    from rvfl_jax.runs.comparison import Comparison, Progress

# As shells tell that a signal, 2 or 13, ended a process.
INTERRUPTED = 128 + 2
NOBODY_READS = 128 + 13
# Options that are no part of what `run` and `sweep` compute.
_OF_THE_PROCESS = ("command", "no_cache", "out", "force", "quiet")


def command() -> None:
    """The process `rvfl-jax`: `main`, which Ctrl-C ends at once."""
    signal.signal(signal.SIGINT, _stop)
    _open_streams()
    status = main(alone=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Of a full disk or a reader that is gone `main` has told; the end of the process need not.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _open_streams() -> None:
    """Output in UTF-8, as input is, whatever the locale; no file may get a standard number.

    What libraries print to standard error would end up in a file that was opened as number 2.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    if sys.stderr is None:
        # Else what is printed there goes to standard output.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _stop(number: int, frame: Any) -> None:
    # An exception could be lost in a callback of XLA, whose threads would then outlive what they
    # work on. What is on disk is whole at any moment, so that nothing needs to be tidied up.
    del number, frame
    if os.isatty(2):
        os.write(2, b"\r\033[K\033[?25h")
    os.write(2, _interrupted("--checkpoint" in sys.argv).encode())
    os._exit(INTERRUPTED)


def _interrupted(kept: bool) -> str:
    return "rvfl-jax: interrupted" + "; --resume goes on" * kept + "\n"


def main(argv: Sequence[str] | None = None, *, alone: bool = False) -> int:
    """Run the command line.

    Args:
        argv: words of the command; those of this process when None.
        alone: whether nothing else runs in this process, so that what holds for all of it may be
            set: JAX's cache, how things are imported.

    Returns:
        The exit status.
    """
    arguments = build_parser().parse_args(argv)
    try:
        if sys.stdout is None:
            raise ValueError("standard output: expected it to be open, got it closed")
        if alone:
            begin(arguments.command, cache=not arguments.no_cache)
        status = _ACTIONS.get(arguments.command, _model_command)(arguments)
        # What cannot be written is an error of this command, and not of the end of the process.
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # As `head` does with what it has read enough of.
        return NOBODY_READS
    except (ValueError, OSError, ImportError) as error:
        if getattr(arguments, "debug", False):
            raise
        print(f"rvfl-jax: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ArithmeticError as error:
        from rvfl_jax.core.checks import NumericalError

        if getattr(arguments, "debug", False) or not isinstance(error, NumericalError):
            raise
        print(f"rvfl-jax: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = getattr(arguments, "checkpoint", None) is not None
        print(_interrupted(kept), end="", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    # Deferred, so that --help and errors of usage come at once.
    from rich.console import Console

    from rvfl_jax.cli.compare import Config, compare, plain, save_results
    from rvfl_jax.cli.report import closing_lines, title_of
    from rvfl_jax.files.results_folder import check_folder, check_results, config_of
    from rvfl_jax.plots import comparison_figure, comparison_table

    options = {
        name: value
        for name, value in vars(arguments).items()
        if name not in (*_OF_THE_PROCESS, "checkpoint", "resume", "every")
    }
    options["k"] = tuple(options["k"])
    config = Config(**options)
    names = ("results.json", "curves.png")
    # A run that is resumed to its end makes the same results again.
    mine = plain(asdict(config))
    ours = arguments.resume and config_of(arguments.out / "results.json") == mine
    check_results(arguments.out, names, force=arguments.force or ours)
    if arguments.checkpoint is not None:
        check_folder("--checkpoint", arguments.checkpoint)
    with _progress(arguments.quiet) as progress:
        result: Comparison = compare(
            config,
            progress,
            checkpoint=arguments.checkpoint,
            resume=arguments.resume,
            every=arguments.every,
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_results(config, result, arguments.out / "results.json")
    comparison_figure(result).savefig(arguments.out / "curves.png", dpi=150)
    console = Console()
    console.print(comparison_table(result, title_of(config, result)))
    for line in closing_lines(result):
        console.print(line, highlight=False)
    console.print(f"Wrote {arguments.out / 'results.json'} and {arguments.out / 'curves.png'}.")
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from rvfl_jax.cli.report import sweep_lines
    from rvfl_jax.cli.sweep import SweepConfig, drawn_axes, run_sweep, save_sweep
    from rvfl_jax.files.results_folder import check_results
    from rvfl_jax.plots import heat_map, sweep_table

    options = {
        name: value for name, value in vars(arguments).items() if name not in _OF_THE_PROCESS
    }
    for name in ("k", "kappa", "sigma", "ridge", "weight_scale"):
        if name in options:
            options[name] = tuple(value for values in options[name] for value in values)
    config = SweepConfig(**options)
    check_results(arguments.out, ("sweep.json", "sweep.png"), force=arguments.force)
    with _progress(arguments.quiet) as progress:
        outcome = run_sweep(config, None if arguments.quiet else progress)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_sweep(outcome, arguments.out / "sweep.json")
    figure = heat_map(outcome.result, *drawn_axes(outcome.result), value=config.criterion)
    figure.savefig(arguments.out / "sweep.png", dpi=150)
    console = Console()
    console.print(sweep_table(outcome.result, config.criterion))
    for line in sweep_lines(outcome):
        console.print(line, highlight=False)
    console.print(f"Wrote {arguments.out / 'sweep.json'} and {arguments.out / 'sweep.png'}.")
    return 0


def _model_command(arguments: argparse.Namespace) -> int:
    from rvfl_jax.cli import models

    return int(getattr(models, arguments.command.replace("-", "_"))(arguments))


def _embed(arguments: argparse.Namespace) -> int:
    from rvfl_jax.encoders import embed_images, load_image_model, open_images
    from rvfl_jax.encoders.embedding import check_out

    check_out(arguments.out)
    images = open_images(arguments.images)
    model = load_image_model(arguments.model, random_weights=arguments.random_weights)
    new = embed_images(
        model,
        images,
        arguments.out,
        batch_size=arguments.batch_size,
        progress=not arguments.quiet,
    )
    done = "Wrote" if new else "Nothing to do: there are already"
    print(f"{done} features of {len(images.split)} images, {model.description}: {arguments.out}")
    return 0


@contextmanager
def _progress(quiet: bool) -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if quiet:
        yield lambda label, done, total: None
        return
    columns = (BarColumn(), TextColumn("{task.description}, ETA"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        show: Callable[..., None] = bar.update
        yield lambda label, done, total: show(task, description=label, completed=done, total=total)


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "sweep": _sweep,
    "embed": _embed,
}


if __name__ == "__main__":
    command()
