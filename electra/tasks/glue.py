"""The nine GLUE tasks, as their official files or the hub have them: a table of layouts, and
nothing else that differs.

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
from electra.tasks.classify import Classify, Columns, Text
from electra.tasks.folders import split_files
from electra.tasks.metrics import OF_NUMBERS
from electra.tasks.task import Files

NO_AGREEMENT = "-"  # MNLI's annotators gave no label a majority; nobody scores these pairs
SECRET = "-1"  # the hub's label of test rows
IDS = ("index", "idx", "id")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a task's texts and labels are. Of several columns, the official files have the first
    and the hub the last.

    Classes are spelled and ordered as in the official files; the hub numbers them alike, under
    names of its own.
    """

    folder: str
    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ("0", "1")
    hub_labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    swapped: bool = False
    header: tuple[str, ...] = ()  # of files without a line of names
    has_ragged_lines: bool = False  # as released
    # Each part and the stems that its file may have; of dev, the second one is the hub's split, of
    # test the first.
    dev: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"dev": ("dev", "validation")}
    )
    test: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"test": ("test",)})

    @property
    def hub_config(self) -> str:
        return plain(self.folder)


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
        metrics=OF_NUMBERS,
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
    """One of the nine. `text`, `text_pair` and `label` name columns of other files than the
    official ones.
    """

    kind: ClassVar[str] = "glue"
    text: str = ""
    label: str = ""

    @classmethod
    def from_name(cls, name: str = "", **options: Any) -> Self:
        name = official(name)
        layout = LAYOUTS[name]
        fixed: dict[str, Any] = {
            "metric": layout.metrics[0],
            "metrics": layout.metrics,
            "labels": layout.labels,
            "regression": not layout.labels,
            "swapped": layout.swapped,
        }
        return cls(name=name, **fixed | options)

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.name]

    def locate(self, data: str) -> Files:
        if is_hub_name(data):
            return self.on_hub(data)
        folder = folder_of(self.layout, Path(data).expanduser())
        found = {part: split_files(folder, stems) for part, stems in self.layout.dev.items()}
        secret = {part: split_files(folder, stems) for part, stems in self.layout.test.items()}
        if self.name == "glue/mnli":
            secret["diagnostic"] = diagnostic(folder)
        files = Files(
            train=split_files(folder, ("train",)),
            dev={part: each for part, each in found.items() if each},
            test={part: each for part, each in secret.items() if each},
        )
        if not (files.train or files.dev or files.test):
            raise UserError(
                f"{folder}: holds no {self.layout.folder} files; train.tsv, "
                f"{next(iter(self.layout.dev.values()))[0]}.tsv and so on are expected, found "
                f"{', '.join(sorted(path.name for path in folder.iterdir())[:8]) or 'nothing'}"
            )
        if files.dev and (unscored := [part for part in found if part not in files.dev]):
            warn(
                f"{folder}: no {unscored[0]} part of the dev data; scored on "
                f"{', '.join(files.dev)} alone"
            )
        return files

    def on_hub(self, data: str) -> Files:
        """nyu-mll/glue stands for its configuration of this task's name; any other data set is
        taken as it is given.
        """
        name = HUB_NAME.fullmatch(data)
        assert name is not None
        if name["dataset"].endswith("/glue") and not name["config"]:
            data = f"{name['dataset']}:{self.layout.hub_config}" + (
                f"@{name['revision']}" if name["revision"] else ""
            )
        train = find_table(data, split="train")
        return Files(
            train=(train,),
            dev={
                part: (replace(train, split=stems[1]),) for part, stems in self.layout.dev.items()
            },
            test={
                part: (replace(train, split=stems[0]),) for part, stems in self.layout.test.items()
            },
        )

    def rows(self, source: Table, *, labelled: bool) -> Iterator[LocatedRow]:
        ragged: list[str] = []
        header = self.layout.header if is_headless(source, self.layout.header) else None
        undecided = 0
        for where, row in read_rows(
            source, header=header, ragged=ragged.append if self.layout.has_ragged_lines else None
        ):
            if labelled and row.get("gold_label") == NO_AGREEMENT:
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
                f"{source}: left out {undecided} pairs labelled {NO_AGREEMENT!r}, on which "
                "annotators did not agree"
            )

    def columns(self, row: Mapping[str, Any]) -> Columns:
        layout = self.layout
        return Columns(
            self.text or present(layout.first, row),
            self.text_pair or present(layout.second, row),
            self.label or present(layout.label, row),
            next((name for name in IDS if name in row), ""),
        )

    def meaning(self, label: str | None) -> str | None:
        return None if label is None or label == SECRET else self.other_spellings.get(label, label)

    @cached_property
    def other_spellings(self) -> dict[str, str]:
        """The hub's names of classes, and the numbers under which it stores them."""
        return dict(zip(self.layout.hub_labels, self.labels, strict=False)) | {
            str(n): name for n, name in enumerate(self.labels)
        }

    def check(self, examples: Sequence[Text]) -> None:
        for example in examples:
            if self.labels and example.label is not None and example.label not in self.labels:
                raise UserError(
                    f"{example.where}: label {example.label!r} is none of {self.layout.folder}'s, "
                    "which "
                    f"are {', '.join(self.labels)}; is this the file of another task?"
                )
        super().check(examples)

    @property
    def description(self) -> str:
        return f"{self.layout.folder}, a {self.task_type} scored by {' and '.join(self.metrics)}"


def official(name: str) -> str:
    """glue/sst2 and glue/SST-2 are glue/sst-2."""
    known = {plain(each): each for each in GLUE}
    if plain(name) not in known:
        raise UserError(f"{name}: no such GLUE task{suggest_or_list(name, GLUE)}")
    return known[plain(name)]


def available(data: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks that can be trained and scored with a GLUE folder (or one task's own), and those
    that cannot.
    """
    if is_hub_name(data):
        return GLUE, ()
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise UserError(f"{data}: no such folder, nor a data set on the hub")
    found = tuple(name for name in GLUE if is_whole(Glue.from_name(name), folder))
    return found, tuple(name for name in GLUE if name not in found)


def is_whole(task: Glue, folder: Path) -> bool:
    own = subfolder(folder, task.layout.folder)
    if own is None:
        if plain(folder.resolve().name) != plain(task.layout.folder):
            return False
        own = folder
    return bool(
        split_files(own, ("train",))
        and any(split_files(own, stems) for stems in task.layout.dev.values())
    )


def folder_of(layout: Layout, data: Path) -> Path:
    """The folder of a task: the one of its name in GLUE's, or the given one itself."""
    if not data.is_dir():
        raise UserError(f"{data}: no such folder, nor a data set on the hub")
    return subfolder(data, layout.folder) or data


def subfolder(data: Path, name: str) -> Path | None:
    return next(
        (
            path
            for path in sorted(data.iterdir())
            if path.is_dir() and plain(path.name) == plain(name)
        ),
        None,
    )


def diagnostic(folder: Path) -> tuple[Table, ...]:
    """The unlabelled set beside MNLI's folder, for a model of MNLI to answer."""
    beside = folder.resolve().parent / "diagnostic"
    return split_files(beside, ("diagnostic",)) if beside.is_dir() else ()


def plain(name: str) -> str:
    return name.lower().replace("-", "")


def present(names: Sequence[str], row: Mapping[str, Any]) -> str:
    """The first of these columns that a row has; where it has none, the one that an error should
    name.
    """
    return next((name for name in names if name in row), names[0] if names else "")


def is_headless(source: Table, header: Sequence[str]) -> bool:
    """CoLA's training and dev files begin with an example, its test file with the names of its
    columns.
    """
    if not header or source.format != "tsv":
        return False
    first = next((line for _, line in read_lines(source)), "").split("\t")
    return len(first) == len(header) and not set(first) & set(header)
