"""A trial as data: which runs answer a question of the paper, what it published, and how large ours are.

A trial (`paper/*.toml`) has arms: rows of a table, or lines and points of a figure. A scale (`scales/*.toml`) says what
the paper's small, base and large networks become, and how long the reference arm trains; `paper` changes nothing.
No torch here: `electra trials list` is a usage line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Settings = dict[str, Any]  # dotted keys of a recipe, "objective.generator.fraction", and their values
Size = Literal["small", "base", "large"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One pre-training of an arm; a later one starts from the weights of the one before."""

    recipe: str
    size: Size
    settings: Settings = field(default_factory=dict)  # over the recipe and over what the scale says
    share: float = 1.0  # of the arm's steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A row of the table, or a point of the figure. Without stages it is a published row, not ours to run."""

    name: str  # in folders and on the command line
    label: str  # in tables and figures
    stages: tuple[Stage, ...] = ()
    compute: Literal["reference", "own"] = "own"  # reference: as many operations as the trial's reference arm
    share: float = 1.0  # of the steps: "6.25 % trained" is 0.0625
    series: str = ""  # the line of a figure that this arm is a point of
    x: float | None = None  # where on that line: a width, a generator's share
    published: dict[str, Any] = field(default_factory=dict)  # column → value, a number or text such as "84.1/90.9"
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One question of the paper."""

    name: str
    title: str
    source: str  # "Clark et al. 2020, table 5"
    question: str
    reference: str  # the arm whose operations others may be given
    columns: tuple[str, ...]  # of the table: tasks and averages, as `published` names them
    arms: tuple[Arm, ...]
    x_label: str = ""  # of a figure over `Arm.x`
    expected: tuple[str, ...] = ()  # arms from best to worst, as the paper orders them
    caveat: str = ""  # what makes ours and theirs incomparable, beside the budget


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
    warmup_share: float | None = None  # of the steps; None: as the recipe's steps and warm-up have it
    settings: Settings = field(default_factory=dict)  # of every run
    sizes: dict[Size, Settings] = field(default_factory=dict)
    objectives: dict[str, Settings] = field(default_factory=dict)  # by objective.name: a learning rate found for it
    evaluation: Evaluation
