"""Rows of texts with a label: what classifications read from tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self

from electra.config import UserError
from electra.data.sources import warn
from electra.data.table_layout import has_columns
from electra.data.tables import (
    LocatedRow,
    Table,
    find_column,
    read_lines,
    read_rows,
    require_column,
    require_text,
)
from electra.tasks.conll import refuse_conll
from electra.tasks.features import Array
from electra.tasks.labels import label_text
from electra.tasks.splits import locate_files
from electra.tasks.task import Files, Task

TEXT_PAIR = "text_pair"  # the column of second texts that is found by its name


@dataclass(frozen=True, slots=True)
class Text:
    """One row: its text or texts, and its label as the file spells it."""

    where: str
    first: str
    second: str | None = None
    label: str | None = None
    id: str | None = None
    row: Mapping[str, Any] | None = field(default=None, compare=False)  # as read, to predict
    labels: tuple[str, ...] | None = None  # of a row that may have several; or `label` holds them

    @property
    def is_complete(self) -> bool:
        """Whether no text is empty."""
        return all(text is None or text.strip() for text in (self.first, self.second))


class Columns(NamedTuple):
    """The columns of a row; empty where there is none."""

    text: str
    text_pair: str
    label: str
    id: str


@dataclass(frozen=True, kw_only=True)
class TextTask(Task[Text, Array]):
    """A task on a text or a pair of texts; it knows the columns that they and the label are in."""

    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    inference_options: ClassVar[tuple[str, ...]] = (
        "text",
        "text_pair",
        "label",
        "label_part",
        "delimiter",
        "header",
    )
    text: str = "text"
    # Empty: there is none. None: TEXT_PAIR, if the first row has it; fit_labels sets it by the
    # training data, and a model that transformers fine-tuned does not say.
    text_pair: str | None = None
    label: str = "label"
    # coarse: only what stands before the first colon
    label_part: Literal["fine", "coarse"] | None = None
    delimiter: str | None = None  # of files with columns; None: detected
    header: bool | None = None  # whether the first line names the columns; None: detected

    def locate(self, data: str) -> Files:
        return locate_files(data)

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Text]:
        task = self
        for source in tables:
            blank = 0
            names: list[str] | None = None
            for where, row in self.rows(source, labelled=labelled):
                if task.text_pair is None:
                    task = task.find_pair(row)
                if names != list(row):  # mostly all rows have the same, in the same order
                    columns = task.find_columns(row, where, labelled=labelled, earlier=names or ())
                    names = list(row)
                example = task.example(row, where, columns, labelled=labelled)
                blank += not example.is_complete
                yield example
            if blank:
                part = "one of their texts" if task.text_pair else "text"
                warn(f"{source}: rows without {part}: {blank}; they are kept")

    def rows(self, source: Table, *, labelled: bool) -> Iterator[LocatedRow]:
        """Yield the rows of a table; plain text without labels has one text a line."""
        refuse_conll(source)
        columns = [name for name in (self.text, self.text_pair) if name]
        may_be_plain = source.format == "text" and not (labelled or self.delimiter)
        if may_be_plain and not self.text_pair and not has_columns(source.source, columns):
            return ((where, {self.text: line}) for where, line in read_lines(source))
        if labelled:
            columns += self.label_columns(Columns("", "", self.label, ""))
        table = replace(source, delimiter=self.delimiter or "", header=self.header)
        return read_rows(table, columns=columns)

    def find_pair(self, row: Mapping[str, Any]) -> Self:
        """Return the task that reads pairs if this first row has a column for them."""
        columns = self.columns(row)
        taken = (columns.text, *self.label_columns(columns))
        is_pair = row.get(TEXT_PAIR) is not None and TEXT_PAIR not in taken
        return replace(self, text_pair=TEXT_PAIR if is_pair else "")

    def remember_pair(self, examples: Sequence[Text]) -> Self:
        """Return the task that reads pairs from now on, if the training examples are some."""
        if self.text_pair is not None:
            return self
        is_pair = bool(examples) and examples[0].second is not None
        return replace(self, text_pair=TEXT_PAIR if is_pair else "")

    @property
    def pair_note(self) -> str:
        """The end of the description of a task that reads pairs."""
        if not self.text_pair:
            return ""
        return f"; pairs: {self.text}, {self.text_pair}"

    def columns(self, row: Mapping[str, Any]) -> Columns:
        """Return the columns that a row's texts and label are in."""
        text, text_pair, label = (
            find_column(row, name) for name in (self.text, self.text_pair or "", self.label)
        )
        return Columns(text, text_pair, label, "id" if "id" in row else "")

    def find_columns(
        self, row: Mapping[str, Any], where: str, *, labelled: bool, earlier: Sequence[str]
    ) -> Columns:
        """Return the columns of a row; raise UserError where it lacks one that is needed, or where
        one is named for two purposes.

        `earlier` are the columns of the row before.
        """
        columns = self.columns(row)
        if columns.text == columns.text_pair:
            refuse_same_column(where, columns.text, "--text", "--text-pair")
        for flag, name in zip(("--text", "--text-pair"), columns, strict=False):
            if name:
                require_column(row, name, where, flag=flag, may_be_number=True, earlier=earlier)
        if labelled:
            for name in self.label_columns(columns):
                for flag, text in zip(("--text", "--text-pair"), columns, strict=False):
                    if name == text:
                        refuse_same_column(where, name, flag, "--label")
                require_column(
                    row, name, where, flag="--label", may_be_number=True, earlier=earlier
                )
        return columns

    def example(
        self, row: Mapping[str, Any], where: str, columns: Columns, *, labelled: bool
    ) -> Text:
        """Return a row as an example, given the columns that were found for it."""
        # To predict, a missing text is read as CSV's empty cell is.
        first = require_text(row, columns.text, where, may_be_missing=not labelled)
        second, id = None, None
        if columns.text_pair:
            second = require_text(row, columns.text_pair, where, may_be_missing=not labelled)
        if columns.id and row.get(columns.id) is not None:
            id = str(row[columns.id])
        label, labels = self.read_label(row, columns, where, labelled=labelled)
        return Text(where, first, second, label, id, None if labelled else row, labels)

    def label_columns(self, columns: Columns) -> tuple[str, ...]:
        """Return the columns that a row's label is in."""
        return (columns.label,)

    def read_label(
        self, row: Mapping[str, Any], columns: Columns, where: str, *, labelled: bool
    ) -> tuple[str | None, tuple[str, ...] | None]:
        """Return the label of a row, and its labels where it may have several."""
        value = row.get(columns.label)
        label = self.canonical_label(label_text(value, where))
        if label and self.label_part == "coarse":
            label = label.partition(":")[0]
        if labelled and label is None:
            raise UserError(
                f"{where}: {columns.label!r} holds {value!r}, which is no label; fill it in, or "
                "leave the row out"
            )
        return label, None

    def canonical_label(self, label: str | None) -> str | None:
        """Return the label that a spelling stands for."""
        return label


def refuse_same_column(where: str, name: str, first: str, second: str) -> NoReturn:
    raise UserError(
        f"{where}: {first} and {second} are both the column {name!r}; name another one for one of "
        "them"
    )
