"""Questions and the paragraphs that hold their answers.

The layout is seen from the file itself, so a training set may join several:

    SQuAD   .json, a document: {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
            "answers": [{"text": …, "answer_start": …}], "is_impossible": …}]}]}]}
    MRQA    .jsonl, each line with "qas": {"context": …, "qas": [{"qid": …, "question": …, "answers": [text, …],
            "detected_answers": [{"char_spans": [[first, last], …]}]}]}; a first line {"header": …}
            is passed over
    rows    .csv, .tsv, .jsonl, .parquet or the hub, of your own: question, context, answers, and id if there is one.
            `answers` is a text (its offset, if known, in a column answer_start), a list of texts or
            of {"text": …, "answer_start": …}, or {"text": [ … ], "answer_start": [ … ]}. A column
            `answer` will do too.

Offsets count characters. Where there is none, the first occurrence of the text is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from electra.config import UserError
from electra.data.tables import (
    Table,
    parse_number,
    read_json,
    read_rows,
    require_column,
    require_text,
)

AROUND = 20  # characters shown of what stands where an answer should


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a paragraph. Without `references` it has no answer, or nobody has said
    which.
    """

    where: str
    id: str
    question: str
    context: str
    references: tuple[str, ...] = ()
    span: tuple[int, int] | None = (
        None  # the answer to learn: its first character, and the one behind its last
    )


@dataclass(frozen=True, kw_only=True)
class QuestionReader:
    """Reads any of the layouts. The first three are the columns of rows of one's own."""

    question: str
    context: str
    answers: str
    labelled: bool  # answers are read, and must be there and right
    unanswerable: bool  # a question may have none

    def read(self, tables: Sequence[Table]) -> Iterator[Question]:
        places: dict[str, str] = {}
        for table in tables:  # of questions without answers the ids are the asker's own affair
            places.clear()
            for found in self.squad(table) if table.format == "json" else self.lines(table):
                if self.labelled and found.id in places:
                    raise UserError(
                        f"{found.where}: id {found.id!r} was seen before, at {places[found.id]}; "
                        "answers "
                        "are handed in by id, so give each question its own"
                    )
                if self.labelled:
                    places[found.id] = found.where
                yield found

    def squad(self, table: Table) -> Iterator[Question]:
        for a, article in enumerate(entries(read_json(table), "data", str(table))):
            for p, paragraph in enumerate(entries(article, "paragraphs", f"{table}, data[{a}]")):
                where = f"{table}, data[{a}].paragraphs[{p}]"
                context = require_text(paragraph, "context", where)
                for q, asked in enumerate(entries(paragraph, "qas", where)):
                    place = f"{where}.qas[{q}]"
                    name = str(require_column(asked, "id", place))
                    found = Question(
                        f"{table}, question {name}", name, require_text(asked, "question", place), context
                    )
                    yield self.squad_answered(found, asked) if self.labelled else found

    def squad_answered(self, found: Question, asked: Mapping[str, Any]) -> Question:
        answers = entries(asked, "answers", found.where)
        if asked.get("is_impossible") and answers:
            raise UserError(
                f"{found.where}: is_impossible, but has the answer {answers[0].get('text')!r}; "
                "leave out one of the two"
            )
        return self.answered(found, listed_answers(answers, found.where))

    def lines(self, table: Table) -> Iterator[Question]:
        """MRQA or rows of one's own, line by line."""
        for where, row in read_rows(table):
            if "qas" in row:
                yield from self.mrqa(row, where)
            elif "header" not in row or self.question in row:
                yield self.row(row, where)

    def mrqa(self, paragraph: Mapping[str, Any], where: str) -> Iterator[Question]:
        context = require_text(paragraph, "context", where)
        for q, asked in enumerate(entries(paragraph, "qas", where)):
            name = str(asked.get("qid") or asked.get("id") or f"{where}, qas[{q}]")
            place = f"{where}, question {name}"
            found = Question(place, name, require_text(asked, "question", place), context)
            if self.labelled:
                answers = [
                    answer for answer, _ in listed_answers(require_column(asked, "answers", place), place)
                ]
                if not answers:
                    raise UserError(
                        f"{place}: no answer; the MRQA layout has one for every question"
                    )
                span = detected(asked, context, place) or first_occurrence(answers, context)
                found = replace(found, references=tuple(answers), span=span)
            yield found

    def row(self, row: Mapping[str, Any], where: str) -> Question:
        name = str(row["id"]) if row.get("id") not in (None, "") else where
        place = where if name == where else f"{where}, question {name}"
        require_column(row, self.question, where, flag="--question")
        require_column(row, self.context, where, flag="--context")
        found = Question(
            place, name, require_text(row, self.question, where), require_text(row, self.context, where)
        )
        if not self.labelled:
            return found
        column = "answer" if self.answers not in row and "answer" in row else self.answers
        value = require_column(row, column, where, flag="--answers")
        if isinstance(value, str):
            value = (
                [{"text": value, "answer_start": row.get("answer_start")}] if value.strip() else []
            )
        return self.answered(found, listed_answers(value, place))

    def answered(self, found: Question, answers: Sequence[tuple[str, int | None]]) -> Question:
        if answers:
            spans = [span_of(answer, start, found) for answer, start in answers]
            return replace(found, references=tuple(answer for answer, _ in answers), span=spans[0])
        if self.unanswerable:
            return found
        raise UserError(
            f"{found.where}: no answer; if questions may have none, use --task squad-2.0 or "
            "--unanswerable"
        )


# ---- answers -------------------------------------------------------------------------------------


def listed_answers(value: Any, where: str) -> list[tuple[str, int | None]]:
    """Each answer's text, and its offset if it is known."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        texts = value.get("text")
        starts = value.get("answer_start") or [None] * len(texts if isinstance(texts, list) else ())
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise UserError(
                f"{where}: answers need a list 'text' and an equally long list 'answer_start', "
                "found "
                f"{value!r}"
            )
        value = [
            {"text": answer, "answer_start": start}
            for answer, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(value, list):
        raise UserError(f"{where}: answers are {type(value).__name__}, not a text or a list")
    found = []
    for item in value:
        item = item if isinstance(item, Mapping) else {"text": item}
        answer = require_text(item, "text", where)
        if not answer.strip():
            raise UserError(
                f"{where}: an answer without text; a question without answer has an empty list"
            )
        found.append((answer, offset(item.get("answer_start"), where)))
    return found


def offset(value: Any, where: str) -> int | None:
    if value is None or value == "":
        return None
    found = parse_number(value)
    if found is None or found < 0 or found != int(found):
        raise UserError(f"{where}: answer_start must be a whole number from 0, found {value!r}")
    return int(found)


def span_of(answer: str, start: int | None, found: Question) -> tuple[int, int]:
    if start is None:
        start = found.context.find(answer)
        if start < 0:
            raise UserError(
                f"{found.where}: the answer {answer!r} does not occur in the paragraph; spell it "
                "as the "
                "paragraph does"
            )
    end = start + len(answer)
    if found.context[start:end] != answer:
        stands = found.context[start : end + AROUND]
        raise UserError(
            f"{found.where}: the answer {answer!r} should stand at character {start}, where "
            + (
                f"{stands!r} stands"
                if stands
                else f"the paragraph of {len(found.context)} has ended"
            )
            + "; mend answer_start, or leave it out to take the first occurrence"
        )
    return start, end


def detected(asked: Mapping[str, Any], context: str, where: str) -> tuple[int, int] | None:
    """The first place at which MRQA's makers found an answer. Case and marks may differ from the
    answer's own text.
    """
    for answer in entries(asked, "detected_answers", where) if "detected_answers" in asked else []:
        for span in answer.get("char_spans") or ():
            whole = (
                isinstance(span, list)
                and len(span) == 2
                and all(type(place) is int for place in span)
            )
            if not whole or not 0 <= span[0] <= span[1] < len(context):
                raise UserError(
                    f"{where}: char_spans {span!r} must be [first, last] within the paragraph of "
                    f"{len(context)} characters"
                )
            return span[0], span[1] + 1  # MRQA counts the last character in
    return None


def first_occurrence(answers: Sequence[str], context: str) -> tuple[int, int] | None:
    places = [(context.find(answer), answer) for answer in answers if answer in context]
    return (places[0][0], places[0][0] + len(places[0][1])) if places else None


def entries(value: Any, key: str, where: str) -> list[dict[str, Any]]:
    """The objects listed under a key."""
    found = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        keys = (
            ", ".join(map(str, value))
            if isinstance(value, Mapping)
            else f"none, since it is {type(value).__name__}"
        )
        raise UserError(
            f"{where}: no list of objects {key!r}, as the layouts of SQuAD and MRQA have; keys "
            "here are "
            f"{keys or 'none'}"
        )
    return found
