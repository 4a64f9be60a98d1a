"""The options of a fine-tuning that are not settings of its recipe. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from cyclopts import Parameter

from electra.config import UserError
from electra.model.card_content import CardContent
from electra.runs.trackers import check_trackers

# One flag takes all the values that follow it: --train a.csv b.csv
Paths = Annotated[Sequence[str | Path], Parameter(consume_multiple=True, show_default=False)]
# The command line collects these itself: it takes settings without the word --flags.
Flags = Annotated[Sequence[str], Parameter(parse=False)]


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """Options of a fine-tuning besides its model, its task and its folder.

    Parameters
    ----------
    data
        Folder with the official files in their official layout, or with train.* and dev.*; or a
        name on the hub.
    train
        Training files, instead of those in --data: .csv .tsv .txt .json .jsonl .parquet, or the
        task's own format.
    dev
        Files to score on, instead of those in --data. --dev-share 0.1 takes a part of the training
        data.
    dev_on_train
        Allow a training file as dev data: its score shows only what was memorised.
    seeds
        Number of runs. All are reported, and their median.
    seed
        The first seed.
    recipe
        paper, official, bert, or a TOML file.
    config
        TOML files that change settings of the recipe.
    flags
        Settings of the recipe as on the command line: ["--learning-rate", "1e-4"].
    search
        Search over learning rate, epochs and batch size with this many trainings, choose by the
        score on dev, and train the best settings with --seeds. Settings that you give are not
        searched.
    search_minutes
        The same with a budget in minutes of training.
    random_weights
        Use only the shape and the tokenizer of the model: the score without pre-training.
    keep
        Keep the models of all seeds, or only the best one.
    resume
        auto (continue the fine-tuning in the folder, if there is one) or never.
    overwrite
        With --resume never: start over in a folder that holds a fine-tuning.
    report
        Write report.html and curves.svg: scores, learning curves and the worst mistakes. The page
        quotes texts of the dev data; --no-report leaves it out.
    report_to
        tensorboard, wandb, trackio, or several with commas between, beside metrics.jsonl; or none.
    language
        Language of the text, for the model cards: an ISO 639 code such as de, or several (de,en).
    license
        Licence of the models, for their cards: an identifier that the hub knows, such as apache-2.0
        or cc-by-sa-4.0, or other.
    quiet
        Print no progress.
    verbose
        Print the learning rate of each layer.
    """

    data: str | None = None
    train: Paths = ()
    dev: Paths = ()
    dev_on_train: bool = False
    seeds: int = 1
    seed: int = 0
    recipe: str = "paper"
    config: Paths = ()
    flags: Flags = ()
    search: int | None = None
    search_minutes: float | None = None
    random_weights: bool = False
    keep: Literal["all", "best"] = "all"
    resume: Literal["auto", "never"] = "auto"
    overwrite: bool = False
    report: Annotated[bool, Parameter(negative="--no-report")] = True
    report_to: str = "none"
    language: str | None = None
    license: str | None = None
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        for name in ("train", "dev", "config"):  # from Python, one path may come without a list
            value = getattr(self, name)
            if isinstance(value, (str, PathLike)):
                object.__setattr__(self, name, [value])
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: at least one run is needed")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must not be negative")
        if self.overwrite and self.resume != "never":
            raise UserError("--overwrite starts over and so needs --resume never")
        CardContent(self.language, self.license)  # refuses what no card can state
        check_trackers(self.report_to)
        self.check_search()

    def check_search(self) -> None:
        """Raise UserError for a search that cannot choose."""
        if self.search is not None and self.search_minutes is not None:
            raise UserError("--search and --search-minutes are two budgets; give one of them")
        if self.search is not None and self.search < 2:
            raise UserError(f"--search {self.search}: at least 2 trainings are needed to choose")
        if self.search_minutes is not None and not 0 < self.search_minutes < float("inf"):
            raise UserError(f"--search-minutes {self.search_minutes:g}: must be above 0")
        if self.dev_on_train and (self.search or self.search_minutes):
            raise UserError(
                "--search chooses by the score on dev, which with --dev-on-train is the training "
                "data; name other data with --dev, or use --dev-share 0.1"
            )

    @property
    def card(self) -> CardContent:
        """What the model cards state besides the facts of the fine-tuning."""
        return CardContent(self.language, self.license)


DEFAULTS = FinetuneOptions()


@dataclass(frozen=True, kw_only=True)
class FrozenEncoder:
    """Whether the encoder is trained, and which of its layers a task reads if it is not.

    Parameters
    ----------
    frozen
        Do not train the encoder: its vectors are features for a small network (for tags a two-layer
        BiLSTM).
    layer
        With --frozen: last, sum-last-4, concat-last-4 (the default), mix, or a number.
    """

    frozen: bool = False
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.layer is not None:
            object.__setattr__(self, "layer", str(self.layer))  # layer=0 from Python
        if self.layer and not self.frozen:
            raise UserError(
                f"--layer {self.layer} goes with --frozen: an encoder that is trained is read at "
                "its last layer"
            )

    def task_options(self) -> dict[str, str]:
        """Return the options that a task takes of a frozen encoder."""
        if not self.frozen:
            return {}
        return {"frozen": self.layer or "concat-last-4"}


class FinetuneKeywords(TypedDict, total=False):
    """The fields of `FinetuneOptions` as keywords, for type checkers."""

    data: str | None
    train: Sequence[str | Path]
    dev: Sequence[str | Path]
    dev_on_train: bool
    seeds: int
    seed: int
    recipe: str
    config: Sequence[str | Path]
    flags: Sequence[str]
    search: int | None
    search_minutes: float | None
    random_weights: bool
    keep: Literal["all", "best"]
    resume: Literal["auto", "never"]
    overwrite: bool
    report: bool
    report_to: str
    language: str | None
    license: str | None
    quiet: bool
    verbose: bool
