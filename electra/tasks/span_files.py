"""Read questions and the paragraphs that hold their answers.

The layout is detected for each file, so a training set may join several:

    SQuAD   .json, a document: {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …,
            "question": …, "answers": [{"text": …, "answer_start": …}], "is_impossible": …}]}]}]}
    MRQA    .jsonl, each line with "qas": {"context": …, "qas": [{"qid": …, "question": …,
            "answers": [text, …], "detected_answers": [{"char_spans": [[first, last], …]}]}]};
            a first line {"header": …} is skipped
    rows    .csv, .tsv, .jsonl, .parquet or the hub, of your own: question, context, answers, and
            id if there is one. `answers` is a text (its offset, if known, in a column
            answer_start), a list of texts or of {"text": …, "answer_start": …}, or
            {"text": [ … ], "answer_start": [ … ]}. A column `answer` will do too.

Offsets count characters. Where there is none, the first occurrence of the text is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from electra.config import UserError
from electra.data.sources import warn
from electra.data.tables import (
    Table,
    find_table,
    parse_number,
    read_json,
    read_rows,
    require_column,
    require_text,
)

MRQA_NAMES = {
    "mrqa": "mrqa",
    "triviaqa": "TriviaQA-web",
    "newsqa": "NewsQA",
    "searchqa": "SearchQA",
    "naturalquestions": "NaturalQuestionsShort",
}


def mrqa_file_names(name: str) -> tuple[str, ...]:
    """Return the names that MRQA's files may have; its own archive has a folder for each split."""
    in_folder = f"{{split}}/{name}.jsonl"
    return "{split}.jsonl.gz", "{split}.jsonl", f"{in_folder}.gz", in_folder


# The names of each data set's files, the likeliest first.
FILE_NAMES: dict[str, tuple[str, ...]] = {
    "squad-1.1": ("{split}-v1.1.json",),
    "squad-2.0": ("{split}-v2.0.json",),
    "span": (
        "{split}.json",
        "{split}.jsonl",
        "{split}.jsonl.gz",
        "{split}.csv",
        "{split}.tsv",
        "{split}.parquet",
    ),
    **{task: mrqa_file_names(name) for task, name in MRQA_NAMES.items()},
}
SHOWN_CHARACTERS = 20  # of what stands where an answer should
AnswerSpan = tuple[str, int | None]  # the text, and its offset if it is known


def find_file(task_name: str, data: str, split: str) -> tuple[Table, ...]:
    """Return the file of a split with the likeliest name, if there is one."""
    for pattern in FILE_NAMES[task_name]:
        path = Path(data, pattern.format(split=split))
        if path.is_file():
            return (find_table(path),)
    return ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a paragraph. Without `references` it has no answer, or none is known."""

    where: str
    id: str
    question: str
    context: str
    references: tuple[str, ...] = ()
    # The answer to learn: its first character, and the one behind its last.
    span: tuple[int, int] | None = None
    row: Mapping[str, Any] | None = field(default=None, compare=False)  # as read, to predict


@dataclass(frozen=True, kw_only=True)
class QuestionReader:
    """Reads questions in any of the layouts; the first three fields are columns of own rows."""

    question: str
    context: str
    answers: str
    labelled: bool  # answers are read, and must be there and right
    unanswerable: bool  # a question may have none

    def read(self, tables: Sequence[Table]) -> Iterator[Question]:
        for source in tables:
            questions = self.questions(source)
            if self.labelled:
                questions = refuse_repeated_ids(questions)
            blank = 0
            for question in questions:
                blank += not (question.question.strip() and question.context.strip())
                yield question
            if blank:
                warn(f"{source}: without a question or its paragraph: {blank}; they are kept")

    def questions(self, source: Table) -> Iterator[Question]:
        if source.format == "json":
            return self.squad(source)
        return self.lines(source)

    def squad(self, source: Table) -> Iterator[Question]:
        for a, article in enumerate(list_of_objects(read_json(source), "data", str(source))):
            where = f"{source}, data[{a}]"
            title = {"title": article["title"]} if "title" in article else {}
            for p, paragraph in enumerate(list_of_objects(article, "paragraphs", where)):
                titled = title | paragraph
                yield from self.squad_paragraph(titled, source, f"{where}.paragraphs[{p}]")

    def squad_paragraph(
        self, paragraph: Mapping[str, Any], source: Table, where: str
    ) -> Iterator[Question]:
        context = require_text(paragraph, "context", where)
        for q, entry in enumerate(list_of_objects(paragraph, "qas", where)):
            entry_where = f"{where}.qas[{q}]"
            id = str(require_column(entry, "id", entry_where))
            question_text = require_text(entry, "question", entry_where)
            question = Question(f"{source}, question {id}", id, question_text, context)
            if self.labelled:
                question = self.with_squad_answers(question, entry)
            else:
                question = replace(question, row=question_row(paragraph, entry))
            yield question

    def with_squad_answers(self, question: Question, entry: Mapping[str, Any]) -> Question:
        answers = list_of_objects(entry, "answers", question.where)
        if entry.get("is_impossible") and answers:
            raise UserError(
                f"{question.where}: is_impossible, but has the answer {answers[0].get('text')!r}; "
                "leave out one of the two"
            )
        return self.with_answers(question, parse_answers(answers, question.where))

    def lines(self, source: Table) -> Iterator[Question]:
        """Read MRQA or own rows, line by line."""
        for where, row in read_rows(source):
            if "qas" in row:
                yield from self.mrqa(row, where)
            elif "header" not in row or self.question in row:
                yield self.row(row, where)

    def mrqa(self, paragraph: Mapping[str, Any], where: str) -> Iterator[Question]:
        context = require_text(paragraph, "context", where)
        for q, entry in enumerate(list_of_objects(paragraph, "qas", where)):
            id = str(entry.get("qid") or entry.get("id") or f"{where}, qas[{q}]")
            entry_where = f"{where}, question {id}"
            question_text = require_text(entry, "question", entry_where)
            question = Question(entry_where, id, question_text, context)
            if self.labelled:
                question = with_mrqa_answers(question, entry)
            else:
                question = replace(question, row=question_row(paragraph, entry))
            yield question

    def row(self, row: Mapping[str, Any], where: str) -> Question:
        id = row.get("id")
        question_where = f"{where}, question {id}"
        if id in (None, ""):
            id = question_where = where
        require_column(row, self.question, where, flag="--question")
        require_column(row, self.context, where, flag="--context")
        question_text = require_text(row, self.question, where)
        context = require_text(row, self.context, where)
        question = Question(question_where, str(id), question_text, context)
        if not self.labelled:
            return replace(question, row=row)
        column = self.answers
        if column not in row and "answer" in row:
            column = "answer"
        value = require_column(row, column, where, flag="--answers")
        if isinstance(value, str):
            answer = {"text": value, "answer_start": row.get("answer_start")}
            value = [answer] if value.strip() else []
        return self.with_answers(question, parse_answers(value, question_where))

    def with_answers(self, question: Question, answers: Sequence[AnswerSpan]) -> Question:
        if answers:
            spans = [locate_answer(answer, start, question) for answer, start in answers]
            references = tuple(answer for answer, _ in answers)
            return replace(question, references=references, span=spans[0])
        if self.unanswerable:
            return question
        raise UserError(
            f"{question.where}: no answer; if questions may have none, use --task squad-2.0 or "
            "--unanswerable"
        )


def question_row(paragraph: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a question: those of its paragraph, and its own."""
    return {key: value for key, value in paragraph.items() if key != "qas"} | dict(entry)


def refuse_repeated_ids(questions: Iterator[Question]) -> Iterator[Question]:
    """Raise UserError for an id that occurs twice: answers are scored by id."""
    seen: dict[str, str] = {}
    for question in questions:
        if question.id in seen:
            raise UserError(
                f"{question.where}: id {question.id!r} was seen before, at {seen[question.id]}; "
                "answers are handed in by id, so give each question its own"
            )
        seen[question.id] = question.where
        yield question


# ---- answers -------------------------------------------------------------------------------------


def parse_answers(value: Any, where: str) -> list[AnswerSpan]:
    """Return each answer's text, and its offset if it is known."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = transpose_answers(value, where)
    if not isinstance(value, list):
        raise UserError(f"{where}: answers are {type(value).__name__}, not a text or a list")
    answers = []
    for item in value:
        if not isinstance(item, Mapping):
            item = {"text": item}
        answer = require_text(item, "text", where)
        if not answer.strip():
            raise UserError(
                f"{where}: an answer without text; a question without answer has an empty list"
            )
        answers.append((answer, parse_offset(item.get("answer_start"), where)))
    return answers


def transpose_answers(columns: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return {"text": [ … ], "answer_start": [ … ]} as a list of answers."""
    texts, starts = columns.get("text"), columns.get("answer_start")
    if isinstance(texts, list) and not starts:
        starts = [None] * len(texts)
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise UserError(
            f"{where}: answers need a list 'text' and an equally long list 'answer_start', found "
            f"{columns!r}"
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": answer, "answer_start": start} for answer, start in pairs]


def parse_offset(value: Any, where: str) -> int | None:
    if value is None or value == "":
        return None
    offset = parse_number(value)
    if offset is None or offset < 0 or offset != int(offset):
        raise UserError(f"{where}: answer_start must be a whole number from 0, found {value!r}")
    return int(offset)


def locate_answer(answer: str, start: int | None, question: Question) -> tuple[int, int]:
    """Return the characters of an answer; raise UserError where the paragraph has another text."""
    if start is None:
        start = question.context.find(answer)
        if start < 0:
            raise UserError(
                f"{question.where}: the answer {answer!r} does not occur in the paragraph; spell "
                "it as the paragraph does"
            )
    end = start + len(answer)
    if question.context[start:end] != answer:
        stands = question.context[start : end + SHOWN_CHARACTERS]
        problem = f"{stands!r} stands"
        if not stands:
            problem = f"the paragraph of {len(question.context)} has ended"
        raise UserError(
            f"{question.where}: the answer {answer!r} should stand at character {start}, where "
            f"{problem}; correct answer_start, or leave it out to take the first occurrence"
        )
    return start, end


def with_mrqa_answers(question: Question, entry: Mapping[str, Any]) -> Question:
    where, context = question.where, question.context
    answers = [
        answer for answer, _ in parse_answers(require_column(entry, "answers", where), where)
    ]
    if not answers:
        raise UserError(f"{where}: no answer; the MRQA layout has one for every question")
    span = detected_span(entry, context, where) or first_occurrence(answers, context)
    return replace(question, references=tuple(answers), span=span)


def detected_span(entry: Mapping[str, Any], context: str, where: str) -> tuple[int, int] | None:
    """Return the first place at which MRQA's makers found an answer.

    Case and marks may differ from the answer's own text.
    """
    if "detected_answers" not in entry:
        return None
    for answer in list_of_objects(entry, "detected_answers", where):
        for span in answer.get("char_spans") or ():
            is_pair = isinstance(span, list) and len(span) == 2
            if (
                not is_pair
                or any(type(offset) is not int for offset in span)
                or not 0 <= span[0] <= span[1] < len(context)
            ):
                raise UserError(
                    f"{where}: char_spans {span!r} must be [first, last] within the paragraph of "
                    f"{len(context)} characters"
                )
            return span[0], span[1] + 1  # MRQA counts the last character in
    return None


def first_occurrence(answers: Sequence[str], context: str) -> tuple[int, int] | None:
    """Return the characters of the first of the answers that occurs in the paragraph."""
    for answer in answers:
        start = context.find(answer)
        if start >= 0:
            return start, start + len(answer)
    return None


def list_of_objects(value: Any, key: str, where: str) -> list[dict[str, Any]]:
    """Return the objects listed under a key; raise UserError where there is no such list."""
    objects = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        if isinstance(value, Mapping):
            keys = ", ".join(map(str, value))
        else:
            keys = f"none, since it is {type(value).__name__}"
        raise UserError(
            f"{where}: no list of objects {key!r}, as the layouts of SQuAD and MRQA have; keys "
            f"here are {keys or 'none'}"
        )
    return objects
