"""Extractive question answering: the span of a paragraph that answers a question, if any does.

A paragraph that is too long is read in windows that overlap. In training, the target of a window
without the answer is [CLS], whether or not the question has an answer elsewhere: it is what lets
scores of several windows be compared. (Reference code and BERT do the same.) Such a window counts
as unanswerable; in the official code only those of an unanswerable question do.
"""

from __future__ import annotations

import math
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from electra.config import UserError, suggest_or_list
from electra.data.sources import warn
from electra.data.tables import Table, find_table, is_hub_name
from electra.data.wordpiece import WordPiece
from electra.tasks.features import IGNORE_INDEX, Features, Row
from electra.tasks.span_files import FILE_NAMES, Question, QuestionReader, find_file
from electra.tasks.span_heads import JointHead, SimpleHead, Spans, joint_spans, simple_spans
from electra.tasks.span_windows import Paragraph, Window, encode_questions, max_context, windows
from electra.tasks.squad_metrics import best_threshold, exact_match, f1
from electra.tasks.task import Files, Head, Outputs, Task, first_and_count, softmax

Measure = Callable[[str, Sequence[str]], float]  # of a prediction against its references

HEADS = ("joint", "simple")
MAX_CANDIDATES = 20
MAX_ALTERNATIVES = 4  # in a record


class Candidate(NamedTuple):
    """Characters of the paragraph, and their probability among all candidates."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class SpanAnswer:
    """The candidates, best first; none if the paragraph has no token.

    `null_odds` is the log of the odds that there is no answer, if the task allows for that: above
    the task's threshold the answer is "", whatever the candidates.
    """

    candidates: tuple[Candidate, ...]
    null_odds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Span(Task[Question, SpanAnswer]):
    """Fields: the head, whether questions may lack an answer, columns, and limits in tokens.

    The columns are those of own rows, and the limits are the reference code's.
    """

    kind: ClassVar[str] = "span"
    pools: ClassVar[bool] = False
    inputs: ClassVar[tuple[str, ...]] = ("question", "context")
    inference_options: ClassVar[tuple[str, ...]] = (
        "question",
        "context",
        "answers",
        "null_threshold",
    )
    metric: str = "f1"
    head_kind: str = "joint"
    unanswerable: bool = False
    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    null_threshold: float = 0.0
    stride: int = 128
    question_length: int = 64
    answer_length: int = 30
    beam: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_kind not in HEADS:
            raise UserError(f"--head must be one of {', '.join(HEADS)}, found {self.head_kind!r}")
        for name in ("stride", "question_length", "answer_length", "beam"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"--{name.replace('_', '-')} must be at least 1, found {getattr(self, name)}"
                )

    @property
    def metric_names(self) -> tuple[str, ...]:
        if not self.unanswerable:
            return "f1", "exact_match"
        return "f1", "exact_match", "best_f1", "best_exact_match"

    @classmethod
    def from_name(cls, name: str = "span", **options: Any) -> Self:
        """Build squad-1.1, squad-2.0, a set of MRQA, or span for your own data."""
        if name not in FILE_NAMES:
            raise UserError(f"--task {name}: no such task{suggest_or_list(name, FILE_NAMES)}")
        return cls(name=name, **{"unanswerable": name == "squad-2.0", **options})

    # ---- examples --------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        """Find the train and dev files that exist. The official test sets are secret."""
        if is_hub_name(data):
            train = find_table(data, split="train")
            validation = replace(train, split="validation")
            return Files(train=(train,), dev={"dev": (validation,)}, test={})
        files = Files(train=find_file(self.name, data, "train"), dev={}, test={})
        if dev := find_file(self.name, data, "dev"):
            files = replace(files, dev={"dev": dev})
        if not files.train and not files.dev:
            expected = ", ".join(pattern.format(split="dev") for pattern in FILE_NAMES[self.name])
            raise UserError(
                f"{data}: no {expected}, and none for train; name your files with --train and --dev"
            )
        return files

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Question]:
        return QuestionReader(
            question=self.question,
            context=self.context,
            answers=self.answers,
            labelled=labelled,
            unanswerable=self.unanswerable,
        ).read(tables)

    # ---- features and head -----------------------------------------------------------------------

    def features(
        self, examples: Sequence[Question], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        """Encode windows. Training omits questions whose answer no window holds."""
        rows: list[Row] = []
        omitted: list[str] = []
        encoded = encode_questions(examples, tokenizer)
        for index, (question, question_ids, paragraph) in enumerate(encoded):
            # Half a row is the paragraph's, however short the rows.
            kept = question_ids[: min(self.question_length, (length - 3) // 2)]
            room = length - len(kept) - 3
            spans = windows(len(paragraph.ids), room=room, stride=self.stride)
            target = paragraph.token_span(question.span)
            question_rows = [
                window_row(index, kept, paragraph, window, tokenizer, target=target)
                for window in spans
            ]
            if not training:  # only `decode` reads these; they double the memory of a training set
                add_characters(question_rows, paragraph, spans)
            if training and self.is_omitted(question, question_rows, target):
                omitted.append(question.where)
                continue
            for row in question_rows:
                row.truncated = len(kept) < len(question_ids)
                if self.conventions == "official":
                    row.row_labels["impossible"] = int(not question.references)
            rows += question_rows
        if omitted:
            warn(
                f"{first_and_count(omitted)}: left out of training, since no window holds the "
                "answer whole, or the file does not say where it is"
            )
        return Features.from_rows(rows)

    def is_omitted(
        self, question: Question, rows: Sequence[Row], target: tuple[int, int] | None
    ) -> bool:
        """Say whether no row holds the answer, which is not to be learnt as no answer.

        The official code does learn it so, unless it cannot find the answer at all.
        """
        lacks_answer = all(row.row_labels["impossible"] for row in rows)
        if self.conventions == "official":
            lacks_answer = target is None
        return bool(question.references) and lacks_answer

    def head(self, width: int, *, dropout: float) -> Head:
        """Build a head; neither has dropout, as in the code they come from."""
        if self.head_kind == "simple":
            return SimpleHead(width)
        official = self.conventions == "official"
        return JointHead(width, beam=self.beam, unanswerable=self.unanswerable, official=official)

    def with_transformers_config(self, config: Mapping[str, Any], *, folder: Path) -> Self:
        return replace(self, head_kind="simple")

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Question], features: Features, outputs: Sequence[Outputs]
    ) -> list[SpanAnswer]:
        rows_of_example: list[list[int]] = [[] for _ in examples]
        for row, example in enumerate(features.examples):
            rows_of_example[example].append(row)
        answers = []
        for question, rows in zip(examples, rows_of_example, strict=True):
            spans = [self.window_spans(features, row, outputs[row]) for row in rows]
            answers.append(self.answer(question.context, spans, [outputs[row] for row in rows]))
        return answers

    def window_spans(self, features: Features, row: int, output: Outputs) -> Spans:
        """Return the spans of one window that may be an answer, in characters."""
        offset = features.offsets[row]
        last = int(features.offsets[row + 1] - offset - 2)
        first = int(features.second_starts[row])
        if "scores" in output:
            starts, ends, scores = joint_spans(output)
        else:
            starts, ends, scores = simple_spans(output, first=first, last=last, beam=self.beam)
        in_order = (first <= starts) & (starts <= ends) & (ends <= last)
        allowed = in_order & (ends - starts < self.answer_length)
        starts, ends, scores = offset + starts[allowed], offset + ends[allowed], scores[allowed]
        # BERT's rule: a span counts only in the window that has most context of its first token.
        counts = features.token_labels["is_max_context"][starts] == 1
        first_characters = features.token_labels["starts"][starts[counts]]
        last_characters = features.token_labels["ends"][ends[counts]]
        return first_characters, last_characters, scores[counts]

    def answer(
        self, context: str, spans: Sequence[Spans], outputs: Sequence[Outputs]
    ) -> SpanAnswer:
        """Return the answer of all windows of a paragraph together."""
        starts, ends, scores = (np.concatenate(column) for column in zip(*spans, strict=True))
        best = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
        candidates = merge_candidates(
            Candidate(int(starts[i]), include_accents(context, int(ends[i])), float(probability))
            for i, probability in zip(best, softmax(scores[best]), strict=True)
        )
        if not self.unanswerable:
            return SpanAnswer(candidates)
        if "answerable" in outputs[0]:
            return SpanAnswer(candidates, -max(float(output["answerable"]) for output in outputs))
        if not candidates:
            return SpanAnswer(candidates)
        null = min(float(output["start_logits"][0] + output["end_logits"][0]) for output in outputs)
        return SpanAnswer(candidates, null - float(scores[best[0]]))

    def combine(self, answers: Sequence[SpanAnswer]) -> SpanAnswer:
        weight = 1 / len(answers)
        candidates: list[Candidate] = []
        for answer in answers:
            for start, end, probability in answer.candidates:
                candidates.append(Candidate(start, end, probability * weight))
        null_odds = sum(answer.null_odds for answer in answers) * weight
        return SpanAnswer(merge_candidates(candidates), null_odds)

    def ensemble_key(self) -> tuple[object, ...]:
        return *super().ensemble_key(), self.head_kind, self.unanswerable

    def ensemble(self, tasks: Sequence[Self]) -> Self:
        """Return the task with the mean of the models' thresholds, as the odds are their mean."""
        thresholds = [task.null_threshold for task in tasks]
        return replace(self, null_threshold=float(np.mean(thresholds)))

    def text(self, example: Question, answer: SpanAnswer) -> str:
        """Return the text of an answer; empty if there is probably none."""
        if not answer.candidates or (self.unanswerable and answer.null_odds > self.null_threshold):
            return ""
        return example.context[answer.candidates[0].start : answer.candidates[0].end]

    def record(self, example: Question, answer: SpanAnswer) -> dict[str, Any]:
        answers: list[dict[str, Any]] = [
            {"answer": example.context[start:end], "probability": probability, "start": start}
            for start, end, probability in answer.candidates
        ]
        if not self.text(example, answer):
            probability = no_answer_probability(answer)
            answers.insert(0, {"answer": "", "probability": probability, "start": None})
        record = {"id": example.id, **answers[0]}
        if self.unanswerable:
            record["null_odds"] = answer.null_odds
        return record | {"alternatives": answers[1 : 1 + MAX_ALTERNATIVES]}

    # ---- scores ----------------------------------------------------------------------------------

    def score(
        self, examples: Sequence[Question], answers: Sequence[SpanAnswer]
    ) -> dict[str, float]:
        """Compute `f1` and `exact_match`.

        Where questions may lack an answer, these are taken at `null_threshold`, and the `best_`
        ones at the threshold that is best for these very examples, which is what SQuAD 2.0's
        tables call F1 and EM.
        """
        scores: dict[str, float] = {}
        has_answer = np.array([bool(example.references) for example in examples])
        for name, measure in (("f1", f1), ("exact_match", exact_match)):
            values = np.array(self.measure(examples, answers, measure))
            scores[name] = float(values.mean())
            if not self.unanswerable:
                continue
            for part, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
                if chosen.any():
                    scores[f"{part}_{name}"] = float(values[chosen].mean())
            best, threshold = self.best_score(examples, answers, measure)
            scores |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
        return scores

    def measure(
        self, examples: Sequence[Question], answers: Sequence[SpanAnswer], measure: Measure
    ) -> list[float]:
        """Return the measure of each answer."""
        pairs = zip(examples, answers, strict=True)
        return [
            measure(self.text(example, answer), example.references) for example, answer in pairs
        ]

    def best_score(
        self, examples: Sequence[Question], answers: Sequence[SpanAnswer], measure: Measure
    ) -> tuple[float, float]:
        """Return the highest mean of this measure over all thresholds, and its threshold."""
        always_answered = replace(self, unanswerable=False).measure(examples, answers, measure)
        silent = [float(not example.references) for example in examples]
        return best_threshold(always_answered, silent, [answer.null_odds for answer in answers])

    def fit_threshold(self, examples: Sequence[Question], answers: Sequence[SpanAnswer]) -> Self:
        """Return the task with the threshold that is best for the F1 of these examples.

        Scores of the same examples at it are the official protocol, and a little flattering.
        """
        if not self.unanswerable:
            return self
        return replace(self, null_threshold=self.best_score(examples, answers, f1)[1])

    def baseline(self, examples: Sequence[Question]) -> float:
        """Compute the F1 of never giving an answer."""
        return sum(not example.references for example in examples) / max(1, len(examples))


# ---- rows ----------------------------------------------------------------------------------------


def window_row(
    index: int,
    question_ids: Sequence[int],
    paragraph: Paragraph,
    window: Window,
    tokenizer: WordPiece,
    *,
    target: tuple[int, int] | None,
) -> Row:
    """Build `[CLS] question [SEP] window [SEP]`; its target is [CLS] unless it holds the answer."""
    begin, end = window
    second_start = len(question_ids) + 2
    window_ids = paragraph.ids[begin:end]
    ids = [tokenizer.cls, *question_ids, tokenizer.sep, *window_ids, tokenizer.sep]
    labels: dict[str, float] = {"start": 0, "end": 0, "impossible": 1}
    if target is not None and begin <= target[0] and target[1] < end:
        shift = second_start - begin
        labels = {"start": target[0] + shift, "end": target[1] + shift, "impossible": 0}
    return Row(index, array("i", ids), second_start, labels)


def add_characters(rows: Sequence[Row], paragraph: Paragraph, spans: Sequence[Window]) -> None:
    """Add each token's first and last character, and whether its context is widest here."""
    outside = array("i", [IGNORE_INDEX])
    for row, (begin, end), is_max_context in zip(rows, spans, max_context(spans), strict=True):
        assert row.second_start is not None
        before = outside * row.second_start
        row.token_labels = {
            "starts": before + paragraph.starts[begin:end] + outside,
            "ends": before + paragraph.ends[begin:end] + outside,
            "is_max_context": [0] * row.second_start + is_max_context + [0],
        }


# ---- answers -------------------------------------------------------------------------------------


def no_answer_probability(answer: SpanAnswer) -> float:
    # The logistic function, without its overflow.
    return 0.5 + 0.5 * math.tanh(answer.null_odds / 2)


def include_accents(context: str, end: int) -> int:
    """Move the end behind combining accents: no token has them, but the answer does."""
    while end < len(context) and unicodedata.combining(context[end]):
        end += 1
    return end


def merge_candidates(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the best candidates first, with the probabilities of equal spans added."""
    probabilities: dict[tuple[int, int], float] = {}
    for start, end, probability in candidates:
        probabilities[start, end] = probabilities.get((start, end), 0.0) + probability
    order = sorted(probabilities.items(), key=lambda item: -item[1])[:MAX_CANDIDATES]
    return tuple(Candidate(start, end, probability) for (start, end), probability in order)
