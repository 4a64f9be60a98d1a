"""The nine GLUE tasks: a table of the layouts of their official files and of the hub's.

MNLI's second dev set and the diagnostic set are parts of `glue/mnli`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from electra.config import UserError, suggest_or_list
from electra.data.sources import HUB_NAME, warn
from electra.data.tables import LocatedRow, Table, find_table, is_hub_name, read_lines, read_rows
from electra.settings import as_flag
from electra.tasks.classify import Classify
from electra.tasks.metrics import REGRESSION_METRICS
from electra.tasks.splits import list_folder, split_files
from electra.tasks.task import Files
from electra.tasks.texts import Columns, Text

NO_MAJORITY = "-"  # MNLI's annotators gave no label a majority; nobody scores these pairs
SECRET = "-1"  # the hub's label of test rows
IDS = ("index", "idx", "id")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The columns, labels and files of a task.

    Of several columns, the official files have the first and the hub the last. Classes are spelled
    and ordered as in the official files; the hub numbers them alike, under names of its own.
    """

    folder: str
    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ("0", "1")
    hub_labels: tuple[str, ...] = ()
    extent: tuple[float, ...] = ()  # the scores that a regression may have
    metrics: tuple[str, ...] = ("accuracy",)
    swapped: bool = False
    header: tuple[str, ...] = ()  # the columns of files that do not name them
    has_ragged_lines: bool = False  # in the official release
    # Each part and the stems that its file may have. The hub's split is the second stem of dev and
    # the first of test.
    dev: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"dev": ("dev", "validation")}
    )
    test: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"test": ("test",)})

    @property
    def hub_config(self) -> str:
        return normalize_name(self.folder)


NLI = ("entailment", "not_entailment")

LAYOUTS = {  # in the order of the paper's tables
    "glue/cola": Layout(
        folder="CoLA",
        first=("sentence",),
        hub_labels=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
        header=("source", "label", "star", "sentence"),
    ),
    "glue/sst-2": Layout(folder="SST-2", first=("sentence",), hub_labels=("negative", "positive")),
    "glue/mrpc": Layout(
        folder="MRPC",
        first=("#1 String", "sentence1"),
        second=("#2 String", "sentence2"),
        label=("Quality", "label"),
        hub_labels=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        swapped=True,
    ),
    "glue/sts-b": Layout(
        folder="STS-B",
        first=("sentence1",),
        second=("sentence2",),
        label=("score", "label"),
        labels=(),
        extent=(0.0, 5.0),
        metrics=REGRESSION_METRICS,
        swapped=True,
    ),
    "glue/qqp": Layout(
        folder="QQP",
        first=("question1",),
        second=("question2",),
        label=("is_duplicate", "label"),
        hub_labels=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        has_ragged_lines=True,
    ),
    "glue/mnli": Layout(
        folder="MNLI",
        first=("sentence1", "premise"),
        second=("sentence2", "hypothesis"),
        label=("gold_label", "label"),
        labels=("entailment", "neutral", "contradiction"),
        dev={
            "matched": ("dev_matched", "validation_matched", "dev"),
            "mismatched": ("dev_mismatched", "validation_mismatched"),
        },
        test={"matched": ("test_matched", "test"), "mismatched": ("test_mismatched",)},
    ),
    "glue/qnli": Layout(folder="QNLI", first=("question",), second=("sentence",), labels=NLI),
    "glue/rte": Layout(folder="RTE", first=("sentence1",), second=("sentence2",), labels=NLI),
    "glue/wnli": Layout(
        folder="WNLI",
        first=("sentence1",),
        second=("sentence2",),
        hub_labels=("not_entailment", "entailment"),
    ),
}
GLUE = tuple(LAYOUTS)


@dataclass(frozen=True, kw_only=True)
class Glue(Classify):
    """One of the nine. `text`, `text_pair` and `label` name the columns of your own files."""

    kind: ClassVar[str] = "glue"
    text: str = ""
    text_pair: str | None = ""
    label: str = ""

    @classmethod
    def from_name(cls, name: str = "", **options: Any) -> Self:
        name = canonical_name(name)
        layout = LAYOUTS[name]
        for option in ("multi_label", "label_separator", "threshold"):
            if options.get(option) is not None:
                raise UserError(f"{as_flag(option)} does not go with {name}: a row has one label")
        fields: dict[str, Any] = {
            "metric": layout.metrics[0],
            "metrics": layout.metrics,
            "labels": layout.labels,
            "extent": layout.extent,
            "regression": not layout.labels,
            "swapped": layout.swapped,
        }
        return cls(name=name, **fields | options)

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.name]

    def locate(self, data: str) -> Files:
        if is_hub_name(data):
            return self.on_hub(data)
        folder = task_folder(self.layout, Path(data).expanduser())
        dev, test = part_files(folder, self.layout.dev), part_files(folder, self.layout.test)
        if self.name == "glue/mnli" and (diagnostic := diagnostic_files(folder)):
            test["diagnostic"] = diagnostic
        files = Files(train=split_files(folder, ("train",)), dev=dev, test=test)
        if not (files.train or files.dev or files.test):
            dev_stem = next(iter(self.layout.dev.values()))[0]
            raise UserError(
                f"{folder}: holds no {self.layout.folder} files; train.tsv, {dev_stem}.tsv and so "
                f"on are expected, found {list_folder(folder)}"
            )
        missing = [part for part in self.layout.dev if part not in dev]
        if dev and missing:
            warn(
                f"{folder}: no {missing[0]} part of the dev data; scored on {', '.join(dev)} alone"
            )
        return files

    def on_hub(self, data: str) -> Files:
        """Return the splits of a data set; nyu-mll/glue means its configuration of the task."""
        name = HUB_NAME.fullmatch(data)
        assert name is not None
        if name["dataset"].endswith("/glue") and not name["config"]:
            data = f"{name['dataset']}:{self.layout.hub_config}"
            if name["revision"]:
                data += f"@{name['revision']}"
        train = find_table(data, split="train")
        files = Files(train=(train,), dev={}, test={})
        for part, stems in self.layout.dev.items():
            files.dev[part] = (replace(train, split=stems[1]),)
        for part, stems in self.layout.test.items():
            files.test[part] = (replace(train, split=stems[0]),)
        return files

    def rows(self, source: Table, *, labelled: bool) -> Iterator[LocatedRow]:
        ragged: list[str] = []
        reading: dict[str, Any] = {}
        if self.layout.has_ragged_lines:
            reading["ragged"] = ragged.append
        if is_headless(source, self.layout.header):
            reading["header"] = self.layout.header
        undecided = 0
        table = replace(source, delimiter=self.delimiter or "", header=self.header)
        for where, row in read_rows(table, **reading):
            if labelled and row.get("gold_label") == NO_MAJORITY:
                undecided += 1
            else:
                yield where, row
        if ragged:
            warn(
                f"{ragged[0]}; left out {len(ragged)} such lines, which the release of "
                f"{self.layout.folder} has"
            )
        if undecided:
            warn(
                f"{source}: left out {undecided} pairs labelled {NO_MAJORITY!r}, on which "
                "annotators did not agree"
            )

    def columns(self, row: Mapping[str, Any]) -> Columns:
        layout = self.layout
        return Columns(
            self.text or first_present(layout.first, row),
            self.text_pair or first_present(layout.second, row),
            self.label or first_present(layout.label, row),
            next((name for name in IDS if name in row), ""),
        )

    def canonical_label(self, label: str | None) -> str | None:
        if label is None or label == SECRET:
            return None
        return self.hub_spellings.get(label, label)

    @cached_property
    def hub_spellings(self) -> dict[str, str]:
        """The labels by the hub's names for them, and by the numbers under which it stores them."""
        spellings = dict(zip(self.layout.hub_labels, self.labels, strict=False))
        return spellings | {str(number): label for number, label in enumerate(self.labels)}

    def check(self, examples: Sequence[Text]) -> None:
        for example in examples:
            if self.labels and example.label is not None and example.label not in self.labels:
                raise UserError(
                    f"{example.where}: label {example.label!r} is none of {self.layout.folder}'s, "
                    f"which are {', '.join(self.labels)}; is this the file of another task?"
                )
        super().check(examples)

    @property
    def description(self) -> str:
        return f"{self.layout.folder}, a {self.task_type} scored by {' and '.join(self.metrics)}"


def canonical_name(name: str) -> str:
    """Return the task's name as we spell it: glue/sst2 and glue/SST-2 are glue/sst-2."""
    known = {normalize_name(task): task for task in GLUE}
    if normalize_name(name) not in known:
        raise UserError(f"{name}: no such GLUE task{suggest_or_list(name, GLUE)}")
    return known[normalize_name(name)]


def normalize_name(name: str) -> str:
    return name.lower().replace("-", "")


def available_tasks(data: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks that a GLUE folder (or one task's own) has data for, and the other tasks."""
    if is_hub_name(data):
        return GLUE, ()
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise UserError(f"{data}: no such folder, nor a data set on the hub")
    available = tuple(name for name in GLUE if has_train_and_dev(LAYOUTS[name], folder))
    return available, tuple(name for name in GLUE if name not in available)


def has_train_and_dev(layout: Layout, folder: Path) -> bool:
    own = subfolder(folder, layout.folder)
    if own is None:
        if normalize_name(folder.resolve().name) != normalize_name(layout.folder):
            return False
        own = folder
    return bool(split_files(own, ("train",)) and part_files(own, layout.dev))


def task_folder(layout: Layout, data: Path) -> Path:
    """Return the folder of a task: the one of its name in GLUE's, or the given one itself."""
    if not data.is_dir():
        raise UserError(f"{data}: no such folder, nor a data set on the hub")
    return subfolder(data, layout.folder) or data


def subfolder(data: Path, name: str) -> Path | None:
    for path in sorted(data.iterdir()):
        if path.is_dir() and normalize_name(path.name) == normalize_name(name):
            return path
    return None


def part_files(folder: Path, parts: Mapping[str, Sequence[str]]) -> dict[str, tuple[Table, ...]]:
    """Return the files of each part that has some."""
    files = {part: split_files(folder, stems) for part, stems in parts.items()}
    return {part: tables for part, tables in files.items() if tables}


def diagnostic_files(folder: Path) -> tuple[Table, ...]:
    """Return the unlabelled set beside MNLI's folder, for a model of MNLI to answer."""
    beside = folder.resolve().parent / "diagnostic"
    if not beside.is_dir():
        return ()
    return split_files(beside, ("diagnostic",))


def first_present(names: Sequence[str], row: Mapping[str, Any]) -> str:
    """Return the first of these columns that a row has; if none, the one an error should name."""
    for name in names:
        if name in row:
            return name
    return next(iter(names), "")


def is_headless(source: Table, header: Sequence[str]) -> bool:
    """Say whether a file begins with an example, as CoLA's training and dev files do."""
    if not header or source.format != "tsv":
        return False
    first = next((line for _, line in read_lines(source)), "").split("\t")
    return len(first) == len(header) and not set(first) & set(header)
