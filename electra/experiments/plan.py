"""A trial as data: the runs that answer a question of the paper, and what the paper published.

A trial (`paper/*.toml`) has arms: rows of a table, or lines and points of a figure. A scale
(`scales/*.toml`) says what the paper's small, base and large networks become, and how long the
reference arm trains; the scale `paper` changes nothing. No torch here: `electra trials list` must
answer at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from electra.config import Layer, SettingError, UserError, build, flatten, suggest
from electra.files import read_toml

Settings = dict[str, Any]  # dotted keys of a recipe, "objective.generator.fraction" → value
Size = Literal["small", "base", "large"]
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
PAPER, SCALES = Path(__file__).parent / "paper", Path(__file__).parent / "scales"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One pre-training run of an arm; a later one starts from the weights of the one before."""

    recipe: str  # the name of a built-in one, or a TOML file
    size: Size
    # As a share of what this size has at the scale; heads and feed-forward are scaled with it.
    width: float = 1.0
    settings: Settings = field(default_factory=dict)  # over the recipe's and the scale's
    share: float = 1.0  # of the arm's steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A row of the table, or a point of the figure. An arm without stages is a published row that
    cannot be run here.
    """

    name: str  # in folders and on the command line
    # In tables and figures; {width} stands for the arm's share of the size's width at a scale.
    label: str
    stages: tuple[Stage, ...] = ()
    compute: Literal["reference", "own"] = "own"  # reference: the FLOPs of the reference arm
    reference: str = ""  # the arm whose FLOPs it gets, where that is not the trial's
    share: float = 1.0  # of the steps, or of the reference's FLOPs: "6.25 % trained" is 0.0625
    series: str = ""  # the line of a figure that this arm is a point of
    x: float | None = None  # where on that line: a width, a generator's share
    # Column → value: a number, or text such as "84.1/90.9".
    published: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    also: tuple[str, ...] = ()  # arms that are the same run at a scale, left out for this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One question of the paper."""

    name: str
    title: str
    source: str  # "Clark et al. 2020, table 5"
    question: str
    reference: str  # the arm whose FLOPs others may be given
    columns: tuple[str, ...] = ()  # of the table: tasks and averages, as `published` names them
    arms: tuple[Arm, ...]
    tasks: tuple[str, ...] = ()  # to score on; none: the scale's
    more_tasks: tuple[str, ...] = ()  # in addition to those
    x_label: str = ""  # of a figure over `Arm.x`
    x_is_width: bool = False  # x is the share of the size's width at a scale
    expected: tuple[str, ...] = ()  # arms from best to worst, as the paper orders them
    caveat: str = ""  # what makes our numbers and theirs incomparable, beside the budget

    def __post_init__(self) -> None:
        self.check_names()
        ours = [arm.name for arm in self.arms if arm.stages]
        named = {"reference": self.reference}
        named |= {f"expected[{index}]": name for index, name in enumerate(self.expected)}
        for index, arm in enumerate(self.arms):
            named[f"arms[{index}].reference"] = arm.reference or self.reference
        for key, name in named.items():
            if name not in ours:
                raise SettingError(
                    key,
                    f"{key}={name!r}: no arm to run has this name; those are {', '.join(ours)}",
                )
        for arm in self.arms:
            if unknown := arm.published.keys() - set(self.columns):
                raise SettingError(
                    "arms",
                    f"arm {arm.name!r} has a published {sorted(unknown)[0]!r}, which is none of "
                    "columns",
                )

    def check_names(self) -> None:
        """Raise for a name that two arms have, or that cannot be part of others'."""
        names: set[str] = set()
        for index, arm in enumerate(self.arms):
            key = f"arms[{index}].name"
            if not NAME.fullmatch(arm.name):
                raise SettingError(
                    key,
                    f"{key}={arm.name!r} must be made of a-z, 0-9, '-' and '.', and begin with a "
                    "letter or digit; rename the arm",
                )
            if arm.name in names:
                raise SettingError(
                    key,
                    f"{key}={arm.name!r} is used twice, and a report would show the numbers of one "
                    "arm for both; give each arm a name of its own",
                )
            names.add(arm.name)

    @property
    def is_built_in(self) -> bool:
        """Whether it is one of the paper's; no other may have the name of one of those."""
        return self.name in trial_names()

    @property
    def has_published(self) -> bool:
        """Whether a report has values, or an order of the arms, to set ours beside."""
        return bool(self.expected) or any(arm.published for arm in self.arms)

    def source_of(self, arm: Arm) -> str:
        """Return where an arm's settings were set, for errors about them."""
        source = f"{self.name}.toml"
        if self.is_built_in:
            source = f"trial {self.name}"
        return f"{source}, arm {arm.name}"

    def arm(self, name: str) -> Arm:
        """Return the arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def runnable_arms(self, names: tuple[str, ...] = ()) -> list[Arm]:
        """Return the arms that can be run: those of these names, or all."""
        runnable = [arm for arm in self.arms if arm.stages]
        if not names:
            return runnable
        return [arm for arm in runnable if {arm.name, *arm.also} & set(names)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How a pre-trained network is fine-tuned and scored."""

    tasks: tuple[str, ...]
    seeds: int = 1  # of fine-tuning, for each pre-trained network
    recipe: str = "paper"  # of fine-tuning
    settings: Settings = field(default_factory=dict)  # over the recipe's
    settings_of: dict[str, Settings] = field(default_factory=dict)  # by task, over both


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """What the paper's network sizes become."""

    name: str
    title: str
    steps: int | None = None  # of a reference arm at budget 1; None: as its recipe says
    warmup_ratio: float | None = None  # of the steps; None: as with `pretrain --budget`
    settings: Settings = field(default_factory=dict)  # of every run
    sizes: dict[Size, Settings] = field(default_factory=dict)
    # By objective.name, such as the learning rate that was found for it.
    objectives: dict[str, Settings] = field(default_factory=dict)
    evaluation: Evaluation


# ---- reading -------------------------------------------------------------------------------------

# The paper's order; trials that the paper does not have come after.
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
)


def trial_names() -> list[str]:
    """Return the names of the built-in trials in the paper's order."""
    names = {path.stem for path in PAPER.glob("*.toml")}
    return [*(name for name in ORDER if name in names), *sorted(names - set(ORDER))]


def load_trial(name: str) -> Trial:
    """Load a built-in trial, or one from a TOML file."""
    path = find_file(name, "trial", PAPER)
    values = {**read_toml(path), "name": name_of_file(path, "trial", PAPER)}
    trial = build_trial(values, source=f"trial {name}")
    arms = [replace(arm, stages=tuple(place_recipes(arm.stages, path))) for arm in trial.arms]
    return replace(trial, arms=tuple(arms))


def place_recipes(stages: Iterable[Stage], trial: Path) -> Iterator[Stage]:
    """Yield the stages with the paths of recipe files, which are relative to the trial's file.

    They become absolute, so that the same trial is run and reported from any folder.
    """
    for stage in stages:
        recipe = stage.recipe
        if Path(recipe).suffix == ".toml":
            recipe = str((trial.parent / recipe).resolve())
        yield replace(stage, recipe=recipe)


def load_scale(name: str) -> Scale:
    """Load a built-in scale, or one from a TOML file."""
    path = find_file(name, "scale", SCALES)
    values = {**read_toml(path), "name": name_of_file(path, "scale", SCALES)}
    return build_scale(values, source=f"scale {name}")


def find_file(name: str, kind: str, built_in: Path) -> Path:
    """Return the TOML file of a built-in trial or scale, or the file that is named itself."""
    path = built_in / f"{name}.toml"
    if "/" not in name and path.is_file():
        return path
    if Path(name).suffix == ".toml":
        return Path(name)
    known = sorted(path.stem for path in built_in.glob("*.toml"))
    hint = suggest(name, known) or f"; there are {', '.join(known)}"
    raise UserError(f"unknown {kind} {name!r}{hint}")


def name_of_file(path: Path, kind: str, built_in: Path) -> str:
    """Return the name of a trial or scale: that of its file, since it becomes part of others'."""
    if not NAME.fullmatch(path.stem):
        raise UserError(
            f"{path}: a {kind} is called by the name of its file, which may hold a-z, 0-9, '-' "
            "and '.'; rename it"
        )
    if path.parent != built_in and (built_in / path.name).is_file():
        raise UserError(
            f"{path}: {path.stem} is a built-in {kind}, and your results would look like its; "
            "rename the file"
        )
    return path.stem


def build_trial(values: Layer, *, source: str) -> Trial:
    """Build a trial of nested settings, as TOML has them, or of dotted ones."""
    for arm in tables(values.get("arms")):
        for stage in tables(arm.get("stages")):
            stage["settings"] = flatten_table(stage.get("settings", {}))
    return build(Trial, values, source=source)


def build_scale(values: Layer, *, source: str) -> Scale:
    """Build a scale of nested settings, as TOML has them, or of dotted ones."""
    values["settings"] = flatten_table(values.get("settings", {}))
    for key in ("sizes", "objectives"):
        section = values.get(key, {})
        if isinstance(section, dict):
            section = {name: flatten_table(settings) for name, settings in section.items()}
        values[key] = section
    return build(Scale, values, source=source)


def tables(values: Any) -> list[Layer]:
    """Return the tables of a list. `build` refuses anything else with its key."""
    if not isinstance(values, (list, tuple)):
        return []
    return [value for value in values if isinstance(value, dict)]


def flatten_table(value: Any) -> Any:
    """Return a table with dotted keys. `build` refuses anything else with its key."""
    if isinstance(value, dict):
        return dict(flatten(value))
    return value
