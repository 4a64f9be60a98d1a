"""A trial as data: which runs answer a question of the paper, what it published, and how large ours
are.

A trial (`paper/*.toml`) has arms: rows of a table, or lines and points of a figure. A scale
(`scales/*.toml`) says what the paper's small, base and large networks become, and how long the
reference arm trains; `paper` changes nothing. No torch here: `electra trials list` is a usage line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from electra.config import Layer, SettingError, UserError, build, flatten, suggest
from electra.files import read_toml

Settings = dict[
    str, Any
]  # dotted keys of a recipe, "objective.generator.fraction", and their values
Size = Literal["small", "base", "large"]
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
PAPER, SCALES = Path(__file__).parent / "paper", Path(__file__).parent / "scales"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One pre-training of an arm; a later one starts from the weights of the one before."""

    recipe: str
    size: Size
    width: float = (
        1.0  # as a share of what this size has at the scale; heads and feed-forward go along
    )
    settings: Settings = field(default_factory=dict)  # over the recipe and over what the scale says
    share: float = 1.0  # of the arm's steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A row of the table, or a point of the figure. Without stages it is a published row, not ours
    to run.
    """

    name: str  # in folders and on the command line
    # in tables and figures; {width} stands for the share of the size's width that it has at a scale
    label: str
    stages: tuple[Stage, ...] = ()
    compute: Literal["reference", "own"] = (
        "own"  # reference: as many operations as the reference arm
    )
    reference: str = ""  # the arm meant by that, where it is not the trial's
    share: float = (
        1.0  # of the steps (or of the reference's operations): "6.25 % trained" is 0.0625
    )
    series: str = ""  # the line of a figure that this arm is a point of
    x: float | None = None  # where on that line: a width, a generator's share
    published: dict[str, Any] = field(
        default_factory=dict
    )  # column → value, a number or text such as "84.1/90.9"
    note: str = ""
    also: tuple[
        str, ...
    ] = ()  # arms that come out as the same run at a scale, and are left out for this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One question of the paper."""

    name: str
    title: str
    source: str  # "Clark et al. 2020, table 5"
    question: str
    reference: str  # the arm whose operations others may be given
    columns: tuple[str, ...] = ()  # of the table: tasks and averages, as `published` names them
    arms: tuple[Arm, ...]
    tasks: tuple[str, ...] = ()  # to be scored on; none: the scale's
    more_tasks: tuple[str, ...] = ()  # beside those
    x_label: str = ""  # of a figure over `Arm.x`
    x_is_width: bool = False  # as a share of the size's, as it is at a scale
    expected: tuple[str, ...] = ()  # arms from best to worst, as the paper orders them
    caveat: str = ""  # what makes ours and theirs incomparable, beside the budget

    def __post_init__(self) -> None:
        ours = [arm.name for arm in self.arms if arm.stages]
        named = [("reference", self.reference), *(("expected", name) for name in self.expected)]
        named += [("arms", arm.reference or self.reference) for arm in self.arms]
        for key, name in named:
            if name not in ours:
                raise SettingError(
                    key,
                    f"{name!r} is named, but no arm to run has this name; those are "
                    f"{', '.join(ours)}",
                )
        for arm in self.arms:
            if unknown := arm.published.keys() - set(self.columns):
                raise SettingError(
                    "arms",
                    f"arm {arm.name!r} has a published {sorted(unknown)[0]!r}, which is none of "
                    "columns",
                )

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def to_run(self, names: tuple[str, ...] = ()) -> list[Arm]:
        """The arms of these names, or all that are ours to run."""
        return [
            arm
            for arm in self.arms
            if arm.stages and (not names or {arm.name, *arm.also} & set(names))
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How a pre-trained network is scored."""

    tasks: tuple[str, ...]
    seeds: int = 1  # of fine-tuning, for each pre-trained network
    recipe: str = "paper"  # of fine-tuning
    settings: Settings = field(default_factory=dict)  # over it
    settings_of: dict[str, Settings] = field(default_factory=dict)  # by task, over both


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """What the paper's sizes become."""

    name: str
    title: str
    steps: int | None = None  # of a reference arm at budget 1; None: as its recipe says
    warmup_share: float | None = (
        None  # of the steps; None: as the recipe's steps and warm-up have it
    )
    settings: Settings = field(default_factory=dict)  # of every run
    sizes: dict[Size, Settings] = field(default_factory=dict)
    objectives: dict[str, Settings] = field(
        default_factory=dict
    )  # by objective.name: a learning rate found for it
    evaluation: Evaluation


# ---- reading -------------------------------------------------------------------------------------

ORDER = (
    "small-models",
    "weight-tying",
    "generator-size",
    "training-algorithms",
    "efficiency",
    "width",
    "bert-ablations",
    "squad",
    "large",
)  # the paper's; trials that it does not have come after


def trials() -> list[str]:
    found = {path.stem for path in PAPER.glob("*.toml")}
    return [*(name for name in ORDER if name in found), *sorted(found - set(ORDER))]


def load_trial(name: str) -> Trial:
    """A built-in trial, or a TOML file of one's own."""
    path = named(name, "trial", PAPER)
    return built_trial(
        {**read_toml(path), "name": own_name(path, "trial", PAPER)}, source=f"trial {name}"
    )


def load_scale(name: str) -> Scale:
    """A built-in scale, or a TOML file of one's own."""
    path = named(name, "scale", SCALES)
    return built_scale(
        {**read_toml(path), "name": own_name(path, "scale", SCALES)}, source=f"scale {name}"
    )


def own_name(path: Path, kind: str, built_in: Path) -> str:
    """What files and tables call it: the name of its file, which becomes part of other files'
    names.
    """
    if not NAME.fullmatch(path.stem):
        raise UserError(
            f"{path}: a {kind} is called by the name of its file, which may hold a-z, 0-9, '-' "
            "and '.'; "
            "rename it"
        )
    if path.parent != built_in and (built_in / path.name).is_file():
        raise UserError(
            f"{path}: {path.stem} is a built-in {kind}, and results of yours would pass for its; "
            "rename "
            "the file"
        )
    return path.stem


def built_trial(values: Layer, *, source: str) -> Trial:
    for arm in tables(values.get("arms")):
        for stage in tables(arm.get("stages")):
            stage["settings"] = flat(stage.get("settings", {}))
    return build(Trial, values, source=source)


def built_scale(values: Layer, *, source: str) -> Scale:
    values["settings"] = flat(values.get("settings", {}))
    for section in ("sizes", "objectives"):
        found = values.get(section, {})
        values[section] = (
            {name: flat(part) for name, part in found.items()} if isinstance(found, dict) else found
        )
    return build(Scale, values, source=source)


def tables(found: Any) -> list[Layer]:
    """Those of a list that are tables; whatever else stands there is refused by its key when the
    whole is built.
    """
    return (
        [part for part in found if isinstance(part, dict)]
        if isinstance(found, (list, tuple))
        else []
    )


def flat(section: Any) -> Any:
    return dict(flatten(section)) if isinstance(section, dict) else section


def named(name: str, kind: str, folder: Path) -> Path:
    if (built_in := folder / f"{name}.toml").is_file() and "/" not in name:
        return built_in
    if (path := Path(name)).suffix == ".toml":
        return path
    known = sorted(path.stem for path in folder.glob("*.toml"))
    raise UserError(
        f"unknown {kind} {name!r}{suggest(name, known) or '; there are ' + ', '.join(known)}"
    )
