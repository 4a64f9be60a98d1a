"""Detect how a delimited file is laid out: its delimiter, and whether it has a header line."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from electra.config import UserError
from electra.data.lines import read_lines
from electra.data.sources import Source, warn

DELIMITER_NAMES = {
    "tab": "\t",
    r"\t": "\t",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
}
DETECTED = ("\t", ",", ";", "|")
DEFAULTS = {"csv": ",", "tsv": "\t"}
# Takes the place of a delimiter of several characters, and of the first space of a line.
UNIT_SEPARATOR = "\x1f"
DETECTION_LINES, MAX_DETECTION_CHARACTERS = 200, 1_000_000
MAX_NAME_CHARACTERS = 40  # of a column in a header line; longer cells are data
# A label before the first space, as in TREC ("DESC:manner How …") and fastText.
LABELLED_LINE = re.compile(r"([A-Z]+:[A-Za-z]+|__label__\S+)[ \t]+\S")
LABELLED_COLUMNS = ("label", "text")
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # before the header, for Excel
NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?\s*")


@dataclass(frozen=True)
class Layout:
    """How the lines of a file become rows. Without `names` the first line has them."""

    delimiter: str
    quoted: bool  # a quote around a field is no part of it
    names: Sequence[str] | None = None
    has_separator_line: bool = False  # above the header

    @property
    def dialect(self) -> dict[str, Any]:
        """The arguments of csv.reader."""
        delimiter = self.delimiter
        if self.is_replaced:
            delimiter = UNIT_SEPARATOR
        if self.quoted:
            return {"delimiter": delimiter, "strict": True}
        return {"delimiter": delimiter, "quoting": csv.QUOTE_NONE}

    @property
    def is_replaced(self) -> bool:
        """Whether csv.reader cannot split lines as this delimiter does."""
        return self.delimiter == " " or len(self.delimiter) > 1

    def prepare_line(self, line: str) -> str:
        """Return a line that csv.reader splits. A space separates only the first two fields."""
        if not self.is_replaced:
            return line
        if self.delimiter == " ":
            return UNIT_SEPARATOR.join(line.split(maxsplit=1))
        return line.replace(self.delimiter, UNIT_SEPARATOR)

    def split(self, lines: Sequence[str]) -> list[list[str]]:
        """Split lines into fields, as far as they can be."""
        prepared = [self.prepare_line(line) + "\n" for line in lines]
        rows = []
        try:
            for fields in csv.reader(prepared, **self.dialect):
                if fields:
                    rows.append(fields)
        except csv.Error:  # a field may continue behind the lines that are looked at
            pass
        return rows


def detect_layout(
    source: Source,
    *,
    format: str,
    delimiter: str = "",
    header: Sequence[str] | bool | None = None,
    columns: Sequence[str] = (),
) -> Layout:
    """Return the layout of a file from what is known of it and from its first lines.

    `columns` are the names or the numbers by which its columns will be asked for.
    """
    lines, separator = split_separator_line(first_lines(source))
    if not delimiter and format not in DEFAULTS and are_labelled(lines):
        return Layout(" ", quoted=False, names=LABELLED_COLUMNS)
    layout = choose_layout(lines, format, parse_delimiter(delimiter) or separator)
    if layout is None:
        raise UserError(
            f"{source.display_name}: no delimiter separates all of its lines into columns; name "
            "it with --delimiter tab, ';' or any other; --delimiter space where a label stands "
            "before the first space"
        )
    rows = layout.split(lines)
    if format == "tsv" and not layout.quoted:
        warn_of_quotes(rows, where=source.display_name)
    names = header
    if header is None or isinstance(header, bool):
        names = None
        if rows and not has_header(rows, columns, header, where=source.display_name):
            names = [str(number) for number in range(len(rows[0]))]
    assert not isinstance(names, bool)
    return Layout(layout.delimiter, layout.quoted, names, has_separator_line=bool(separator))


def split_separator_line(lines: list[str]) -> tuple[list[str], str]:
    """Return the lines without Excel's `sep=;`, and the delimiter that it names, if any."""
    if lines and (match := SEPARATOR_LINE.fullmatch(lines[0])):
        return lines[1:], match[1]
    return lines, ""


def first_lines(source: Source) -> list[str]:
    """Return the lines at the start of a file that are not blank, few and bounded."""
    lines, characters = [], 0
    for _, line in islice(read_lines(source), DETECTION_LINES):
        if line.strip():
            lines.append(line)
        characters += len(line)
        if characters > MAX_DETECTION_CHARACTERS:
            break
    return lines


def parse_delimiter(given: str) -> str:
    """Return a delimiter that may be given by its name."""
    return DELIMITER_NAMES.get(given.lower(), given)


def are_labelled(lines: Sequence[str]) -> bool:
    """Return whether every line begins with a label as TREC and fastText write it."""
    return bool(lines) and all(LABELLED_LINE.match(line) for line in lines)


def choose_layout(lines: Sequence[str], format: str, delimiter: str) -> Layout | None:
    """Return the layout with the given or the detected delimiter; None where there is none."""
    if delimiter:
        return Layout(delimiter, quoted=format == "csv" or delimiter in ",;")
    usual = DEFAULTS.get(format)
    if usual and (not lines or usual in lines[0]):
        return Layout(usual, quoted=format == "csv")
    for candidate in DETECTED:
        layout = Layout(candidate, quoted=format == "csv" or candidate in ",;")
        counts = {len(fields) for fields in layout.split(lines)}
        if len(counts) == 1 and counts.pop() > 1:
            return layout
    if not usual:
        return None
    return Layout(header_delimiter(lines) or usual, quoted=format == "csv")


def header_delimiter(lines: Sequence[str]) -> str | None:
    """Return the delimiter that gives most rows as many fields as the header; another row may hold
    one that should have been quoted.
    """
    for candidate in DETECTED:
        layout = Layout(candidate, quoted=candidate in ",;")
        counts = [len(fields) for fields in layout.split(lines)]
        if counts and counts[0] > 1 and 2 * (counts.count(counts[0]) - 1) > len(counts) - 1:
            return candidate
    return None


def has_columns(source: Source, columns: Sequence[str]) -> bool:
    """Return whether text has these columns, by name or number, rather than one text a line."""
    lines, separator = split_separator_line(first_lines(source))
    if are_labelled(lines):
        return True
    layout = choose_layout(lines, "text", separator)
    if layout is None:
        return False
    first = layout.split(lines)[0]
    numbers: list[str] = []
    if layout.delimiter != ",":  # which prose has, too
        numbers = [str(number) for number in range(len(first))]
    return all(name in first or name in numbers for name in columns)


def warn_of_quotes(rows: Sequence[Sequence[str]], *, where: str) -> None:
    """Warn of TSV whose cells seem to be quoted as in CSV: the quotes would be read as text."""
    begun = [cell for row in rows for cell in row if cell.startswith('"')]
    doubled = [cell for cell in begun if '""' in cell[1:-1]]
    if doubled and all(is_quoted(cell) for cell in begun):
        warn(
            f"{where}: cells such as {doubled[0][:40]} look quoted, and in .tsv a quote is an "
            "ordinary character; name the file .csv if quotes are no part of the text"
        )


def is_quoted(cell: str) -> bool:
    """Return whether CSV would take this cell for a quoted one."""
    return len(cell) > 1 and cell.endswith('"') and '"' not in cell[1:-1].replace('""', "")


def has_header(
    rows: Sequence[Sequence[str]], columns: Sequence[str], header: bool | None, *, where: str
) -> bool:
    """Return whether the first of these rows names the columns."""
    if header is not None:
        return header
    if not columns or not all(name.isdecimal() for name in columns):
        return True  # who asks for names expects them
    first = rows[0]
    if list(first) == [str(number) for number in range(len(first))]:
        return True  # as pandas writes columns that have no names
    if not are_names(first, rows[1:]):
        return False
    warn(f"{where}:1: read as a header line ({', '.join(first)}); --no-header makes it data")
    return True


def are_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return whether a row could be a header: short texts that do not come again below it."""
    if len(set(first)) < len(first) or any(looks_like_data(name) for name in first):
        return False
    for position, name in enumerate(first):
        if any(row[position : position + 1] == [name] for row in others):
            return False
    return True


def looks_like_data(name: str) -> bool:
    """Return whether a cell of a first line is probably not the name of a column."""
    return not name.strip() or len(name) > MAX_NAME_CHARACTERS or bool(NUMBER.fullmatch(name))
