"""The command: `python -m experiments.compared tune|tables|curves|widths|pictures`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.compared import settings, tables, tuning
from experiments.compared.contenders import contenders
from experiments.compared.settings import Setting
from experiments.compared.spaces import CONFIGURATIONS, spaces
from experiments.settings import RESULTS

QUICK_CONFIGURATIONS = 4

Work = Literal["tune", "tables", "curves", "widths", "pictures"]


def main(
    work: Annotated[Work, tyro.conf.Positional],
    names: Annotated[str, tyro.conf.arg(name="settings")] = "a,b,c,d,e",
    methods: str = "",
    seeds: int = 5,
    quick: bool = False,
    out: Path = RESULTS,
) -> None:
    """Tune, measure, vary batches or widths, or draw; what is kept already is not made again.

    Args:
        work: what to do.
        names: of the settings, letters with commas between.
        methods: names with commas between; all when empty.
        seeds: of order and random numbers.
        quick: small networks, few rows and configurations, one seed.
        out: folder of the folders of results.
    """
    chosen, count = settings.named(names), CONFIGURATIONS
    if quick:
        chosen, count, seeds = [settings.quick(one) for one in chosen], QUICK_CONFIGURATIONS, 1
        out = out / "compared_quick"
    wanted = _methods(methods)
    for setting in _there(chosen):
        if work == "tune":
            _tune(setting, wanted, count, out)
        elif work == "tables":
            tables.measure(setting, wanted, seeds=seeds, count=count, out=out)
            print(tables.tabulate(setting, seeds=seeds, count=count, out=out).read_text("utf-8"))
        elif work == "curves":
            from experiments.compared import curves

            curves.measure(setting, wanted, seeds=seeds, count=count, out=out)
        elif work == "widths":
            from experiments.compared import widths

            widths.measure(setting, wanted, seeds=seeds, count=count, out=out)
        else:
            from experiments.compared import pictures

            pictures.draw(setting, seeds=seeds, count=count, out=out)


def _methods(names: str) -> list[str]:
    known = list(contenders())
    wanted = [name for name in names.split(",") if name] or known
    if not set(wanted) <= set(known):
        raise SystemExit(f"--methods: expected some of {', '.join(known)}, got {names}")
    return wanted


def _there(chosen: list[Setting]) -> list[Setting]:
    """Settings whose data are at hand; of the others a line is said."""
    there = []
    for setting in chosen:
        try:
            settings.case_of(setting, 0)
        except (OSError, ValueError) as missing:
            print(f"{setting.name}: skipped, {missing}", file=sys.stderr, flush=True)
            continue
        there.append(setting)
    return there


def _tune(setting: Setting, wanted: list[str], count: int, out: Path) -> None:
    if setting.tuned_as is not None:
        print(f"{setting.name}: takes what {setting.tuned_as} chose", file=sys.stderr, flush=True)
        return
    known, found = spaces(setting), contenders()
    for name in wanted:
        if name in known:
            tuning.choice_of(name, found[name], setting, count=count, out=out)


if __name__ == "__main__":
    tyro.cli(main)
