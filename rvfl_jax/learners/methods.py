"""The compared methods as one table: what each is, what it needs to know, keeps, and comes from."""

from typing import Literal, NamedTuple

Family = Literal[
    "bound",
    "statistics",
    "recursive ridge",
    "forward ridge",
    "replay",
    "regularisation",
]


class Method(NamedTuple):
    """One row.

    Attributes:
        title: as its authors write it.
        family: of ideas.
        memory: numbers in its state but for some vectors, by s features, m classes, N random
            features, P parameters of a network, r rows kept.
        source: where it was published.
        boundaries: "none" if it is never told where a task ends, "given" if it must be.
        passes: over the rows of a batch, by default.
        keeps_rows: whether rows of the stream are in its state.
        exact: whether any batches in any order end in the fit of all rows at once.
        style: whether it learns along a stream, and so can be a style of the command line; else
            it is an offline expert.
    """

    title: str
    family: Family
    memory: str
    source: str
    boundaries: Literal["none", "given"] = "none"
    passes: int = 1
    keeps_rows: bool = False
    exact: bool = True
    style: bool = True


STATISTICS, RIDGE = "s^2 + s m", "N^2 + N (s + m)"
REPLAY, ANCHORED = "P + r (s + m)", "3 P + r (s + m)"

# Each in the module of its name, which has the function of that name that makes it.
METHODS: dict[str, Method] = {
    "finetune": Method("Finetune", "bound", "P", "", exact=False),
    "joint": Method("Joint", "bound", "P", "", passes=10, exact=False, style=False),
    "ncm": Method("NCM", "statistics", "s m", "Mensink et al. 2013"),
    "simplecil": Method("SimpleCIL", "statistics", "s m", "Zhou et al. 2023"),
    "slda": Method("SLDA", "statistics", STATISTICS, "Hayes & Kanan 2020"),
    "lda": Method("LDA + OAS", "statistics", STATISTICS, "Hayes & Kanan 2020; Chen et al. 2010"),
    "ranpac": Method("RanPAC", "statistics", RIDGE, "McDonnell et al. 2023", exact=False),
    "randumb": Method("RanDumb", "statistics", RIDGE, "Prabhu et al. 2024"),
    "klda": Method("KLDA", "statistics", RIDGE, "Momeni et al. 2025"),
    "acil": Method("ACIL", "recursive ridge", RIDGE, "Zhuang et al. 2022"),
    "gacl": Method("GACL", "recursive ridge", RIDGE, "Zhuang et al. 2024, NeurIPS (GACL)"),
    "foal": Method("F-OAL", "recursive ridge", RIDGE, "Zhuang et al. 2024, NeurIPS (F-OAL)"),
    "dsal": Method(
        "DS-AL", "recursive ridge", "2 N^2 + N (s + 2 m)", "Zhuang et al. 2024, AAAI", exact=False
    ),
    # The same learner twice; tables have the second.
    "replay": Method(
        "Replay", "replay", REPLAY, "Chaudhry et al. 2019", keeps_rows=True, exact=False
    ),
    "er": Method("ER", "replay", REPLAY, "Chaudhry et al. 2019", keeps_rows=True, exact=False),
    "derpp": Method(
        "DER++",
        "replay",
        "P + r (s + 2 m)",
        "Buzzega et al. 2020",
        keeps_rows=True,
        exact=False,
    ),
    "agem": Method(
        "A-GEM",
        "replay",
        REPLAY,
        "Chaudhry et al. 2019, ICLR",
        keeps_rows=True,
        exact=False,
    ),
    "gem": Method(
        "GEM",
        "replay",
        REPLAY,
        "Lopez-Paz & Ranzato 2017",
        boundaries="given",
        keeps_rows=True,
        exact=False,
    ),
    "gss": Method(
        "GSS", "replay", REPLAY, "Aljundi et al. 2019, NeurIPS", keeps_rows=True, exact=False
    ),
    "ewc": Method(
        "EWC",
        "regularisation",
        ANCHORED,
        "Kirkpatrick et al. 2017",
        boundaries="given",
        keeps_rows=True,
        exact=False,
    ),
    "online_ewc": Method(
        "Online EWC",
        "regularisation",
        ANCHORED,
        "Schwarz et al. 2018",
        boundaries="given",
        keeps_rows=True,
        exact=False,
    ),
    "si": Method(
        "SI", "regularisation", "4 P", "Zenke et al. 2017", boundaries="given", exact=False
    ),
    "mas": Method(
        "MAS",
        "regularisation",
        ANCHORED,
        "Aljundi et al. 2018",
        boundaries="given",
        keeps_rows=True,
        exact=False,
    ),
    "task_free_mas": Method(
        "MAS, task-free",
        "regularisation",
        ANCHORED,
        "Aljundi et al. 2019, CVPR",
        keeps_rows=True,
        exact=False,
    ),
    "lwf": Method(
        "LwF", "regularisation", "2 P", "Li & Hoiem 2016", boundaries="given", exact=False
    ),
}


def module_of(name: str) -> str:
    """The module of a method of the table."""
    return f"rvfl_jax.learners.{name}"
