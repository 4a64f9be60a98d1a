"""Extractive question answering: which characters of a paragraph answer a question, and whether any
do.

A paragraph that is too long is read in windows that overlap. In training, the target of a window
without the answer is [CLS], whether or not the question has an answer elsewhere: it is what lets
scores of several windows be compared. (Reference code and BERT do the same; there a window counts
as unanswerable only if its question is.)
"""

from __future__ import annotations

import math
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from electra import atomic
from electra.config import UserError, suggest_or_list
from electra.data.sources import warn
from electra.data.tables import Table, find_table, is_hub_name
from electra.data.wordpiece import WordPiece
from electra.tasks.features import IGNORED, Features, Row
from electra.tasks.span_files import Question, QuestionReader
from electra.tasks.span_heads import JointHead, SimpleHead, Spans, joint_spans, simple_spans
from electra.tasks.span_scores import best_threshold, exact_match, f1
from electra.tasks.span_windows import Paragraph, encoded, widest, windows
from electra.tasks.task import Files, Head, Outputs, Task, first_and_count

# The names of a data set's files, the likeliest first. MRQA's own archive has a folder for each
# split.
MRQA_NAMES = {
    "mrqa": "mrqa",
    "triviaqa": "TriviaQA-web",
    "newsqa": "NewsQA",
    "searchqa": "SearchQA",
    "naturalquestions": "NaturalQuestionsShort",
}
FILES = {
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
    **{
        task: (
            "{split}.jsonl.gz",
            "{split}.jsonl",
            f"{{split}}/{name}.jsonl.gz",
            f"{{split}}/{name}.jsonl",
        )
        for task, name in MRQA_NAMES.items()
    },
}
HEADS = ("joint", "simple")
CANDIDATES = 20
SHOWN_ALTERNATIVES = 4


class Candidate(NamedTuple):
    """Characters of the paragraph, and their share of the probability of all candidates."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class SpanAnswer:
    """The best candidates, best first; none if the paragraph has no token. `null_odds` is the log
    of the odds that there is no answer, if the task allows for that: above the task's threshold it
    is "", whatever the candidates.
    """

    candidates: tuple[Candidate, ...]
    null_odds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Span(Task[Question, SpanAnswer]):
    """Fields: the head, whether questions may lack an answer, the columns of one's own rows, and
    the reference code's limits in tokens.
    """

    kind: ClassVar[str] = "span"
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
        if self.head_kind not in HEADS:
            raise UserError(f"--head must be one of {', '.join(HEADS)}, found {self.head_kind!r}")
        for name in ("stride", "question_length", "answer_length", "beam"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"--{name.replace('_', '-')} must be at least 1, found {getattr(self, name)}"
                )

    @classmethod
    def from_name(cls, name: str = "span", **options: Any) -> Self:
        """squad-1.1, squad-2.0, a set of MRQA, or span for data of one's own."""
        if name not in FILES:
            raise UserError(f"--task {name}: no such task{suggest_or_list(name, FILES)}")
        return cls(name=name, **{"unanswerable": name == "squad-2.0", **options})

    # ---- reading ---------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        """A part that is not there is left out. The official test sets are secret."""
        if is_hub_name(data):
            whole = find_table(data, split="train")
            return Files(
                train=(whole,), dev={"dev": (replace(whole, split="validation"),)}, test={}
            )
        train, dev = (
            tuple(
                find_table(path)
                for pattern in FILES[self.name]
                if (path := Path(data, pattern.format(split=split))).is_file()
            )[:1]
            for split in ("train", "dev")
        )
        if not train and not dev:
            wanted = ", ".join(pattern.format(split="dev") for pattern in FILES[self.name])
            raise UserError(
                f"{data}: no {wanted}, and none for train; name your files with --train and --dev"
            )
        return Files(train=train, dev={"dev": dev} if dev else {}, test={})

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Question]:
        return QuestionReader(
            question=self.question,
            context=self.context,
            answers=self.answers,
            labelled=labelled,
            unanswerable=self.unanswerable,
        ).read(tables)

    # ---- windows ---------------------------------------------------------------------------------

    def features(
        self, examples: Sequence[Question], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        """Training leaves out a question whose answer no window holds: it would teach that there is
        none.
        """
        rows: list[Row] = []
        lost: list[str] = []
        for number, (question, asked, paragraph) in enumerate(encoded(examples, tokenizer)):
            # Half a row is the paragraph's, however short the rows.
            kept = asked[: min(self.question_length, (length - 3) // 2)]
            found = self.rows(
                number,
                kept,
                paragraph,
                tokenizer,
                target=paragraph.tokens(question.span),
                room=length - len(kept) - 3,
                training=training,
            )
            if training and question.references and all(row.values["impossible"] for row in found):
                lost.append(question.where)
                continue
            for row in found:
                row.was_cut = len(kept) < len(asked)
            rows += found
        if lost:
            warn(
                f"{first_and_count(lost)}: left out of training, since no window holds the answer "
                "whole, or the file "
                "does not say where it is"
            )
        return Features.of(rows)

    def rows(
        self,
        number: int,
        asked: Sequence[int],
        paragraph: Paragraph,
        tokenizer: WordPiece,
        *,
        target: tuple[int, int] | None,
        room: int,
        training: bool,
    ) -> list[Row]:
        """`[CLS] question [SEP] window [SEP]` for each window."""
        cut = windows(len(paragraph.ids), room=room, stride=self.stride)
        second = len(asked) + 2
        found = []
        for begin, end in cut:
            holds = target is not None and begin <= target[0] and target[1] < end
            start, last = (
                (place - begin + second for place in target) if holds and target else (0, 0)
            )
            row = Row(
                number,
                array(
                    "i",
                    [
                        tokenizer.cls,
                        *asked,
                        tokenizer.sep,
                        *paragraph.ids[begin:end],
                        tokenizer.sep,
                    ],
                ),
                second,
                {"start": start, "end": last, "impossible": int(not holds)},
            )
            if not training:  # what only `decode` reads would double the memory of a training set
                outside = array("i", [IGNORED])
                row.tokens = {
                    name: outside * second + values[begin:end] + outside
                    for name, values in (("starts", paragraph.starts), ("ends", paragraph.ends))
                }
            found.append(row)
        if not training:
            for row, is_widest in zip(found, widest(cut), strict=True):
                row.tokens["widest"] = [0] * second + is_widest + [0]
        return found

    # ---- answers ---------------------------------------------------------------------------------

    def head(self, width: int, *, dropout: float) -> Head:
        """Neither head drops anything out, as in the code they come from."""
        if self.head_kind == "simple":
            return SimpleHead(width)
        return JointHead(width, beam=self.beam, unanswerable=self.unanswerable)

    def decode(
        self, examples: Sequence[Question], features: Features, outputs: Sequence[Outputs]
    ) -> list[SpanAnswer]:
        of_example: list[list[int]] = [[] for _ in examples]
        for row, example in enumerate(features.examples):
            of_example[example].append(row)
        return [
            self.answer(
                example.context,
                [self.candidates(features, row, outputs[row]) for row in rows],
                [outputs[row] for row in rows],
            )
            for example, rows in zip(examples, of_example, strict=True)
        ]

    def candidates(self, features: Features, row: int, output: Outputs) -> Spans:
        """The spans of one window that may be an answer, in characters."""
        begin, last = features.begins[row], features.begins[row + 1] - features.begins[row] - 2
        first = int(features.seconds[row])
        spans = joint_spans if "scores" in output else simple_spans
        starts, ends, scores = spans(output, first=first, last=int(last), beam=self.beam)
        inside = (
            (first <= starts)
            & (starts <= ends)
            & (ends <= last)
            & (ends - starts < self.answer_length)
        )
        starts, ends, scores = begin + starts[inside], begin + ends[inside], scores[inside]
        # BERT's rule: a span counts in the window that shows most around its first token, and in no
        # other.
        here = features.tokens["widest"][starts] == 1
        return (
            features.tokens["starts"][starts[here]],
            features.tokens["ends"][ends[here]],
            scores[here],
        )

    def answer(
        self, context: str, found: Sequence[Spans], outputs: Sequence[Outputs]
    ) -> SpanAnswer:
        """Of all windows together."""
        starts, ends, scores = (np.concatenate(column) for column in zip(*found, strict=True))
        best = np.argsort(-scores, kind="stable")[:CANDIDATES]
        shares = np.exp(scores[best] - scores[best[:1]])
        candidates = ranked(
            Candidate(int(starts[i]), with_marks(context, int(ends[i])), float(share))
            for i, share in zip(best, shares / shares.sum(), strict=True)
        )
        if not self.unanswerable:
            return SpanAnswer(candidates)
        if "answerable" in outputs[0]:
            return SpanAnswer(candidates, -max(float(output["answerable"]) for output in outputs))
        null = min(float(output["start_logits"][0] + output["end_logits"][0]) for output in outputs)
        return SpanAnswer(candidates, null - float(scores[best[0]]) if candidates else 0.0)

    def combine(self, answers: Sequence[SpanAnswer]) -> SpanAnswer:
        share = 1 / len(answers)
        return SpanAnswer(
            ranked(
                Candidate(found.start, found.end, found.probability * share)
                for answer in answers
                for found in answer.candidates
            ),
            sum(answer.null_odds for answer in answers) * share,
        )

    def ensemble_key(self) -> tuple[object, ...]:
        return *super().ensemble_key(), self.head_kind, self.unanswerable

    def ensemble(self, tasks: Sequence[Self]) -> Self:
        """Return the task with the mean of the models' thresholds, as the odds are their mean."""
        thresholds = [task.null_threshold for task in tasks]
        return replace(self, null_threshold=float(np.mean(thresholds)))

    def text(self, example: Question, answer: SpanAnswer) -> str:
        """The answer itself; empty if there is probably none."""
        if not answer.candidates or (self.unanswerable and answer.null_odds > self.null_threshold):
            return ""
        return example.context[answer.candidates[0].start : answer.candidates[0].end]

    def record(self, example: Question, answer: SpanAnswer) -> dict[str, Any]:
        given = [
            {"answer": example.context[start:end], "probability": share, "start": start}
            for start, end, share in answer.candidates
        ]
        if not self.text(example, answer):
            given.insert(
                0, {"answer": "", "probability": no_answer_probability(answer), "start": None}
            )
        odds = {"null_odds": answer.null_odds} if self.unanswerable else {}
        return {
            "id": example.id,
            **given[0],
            **odds,
            "alternatives": given[1 : 1 + SHOWN_ALTERNATIVES],
        }

    # ---- scores ----------------------------------------------------------------------------------

    def score(
        self, examples: Sequence[Question], answers: Sequence[SpanAnswer]
    ) -> dict[str, float]:
        """`f1` and `exact_match`. Where questions may lack an answer, these are taken at
        `null_threshold`, and the `best_` ones at the threshold that is best for these very
        examples, which is what SQuAD 2.0's tables call F1 and EM.
        """
        found: dict[str, float] = {}
        has = np.array([bool(example.references) for example in examples])
        for name, measure in (("f1", f1), ("exact_match", exact_match)):
            scores = np.array(
                [
                    measure(self.text(e, a), e.references)
                    for e, a in zip(examples, answers, strict=True)
                ]
            )
            found[name] = float(scores.mean())
            if self.unanswerable:
                found |= {
                    f"{part}_{name}": float(scores[chosen].mean())
                    for part, chosen in (("has_answer", has), ("no_answer", ~has))
                    if chosen.any()
                }
                found[f"best_{name}"], found[f"best_{name}_threshold"] = self.best(
                    examples, answers, measure
                )
        return found

    def best(
        self,
        examples: Sequence[Question],
        answers: Sequence[SpanAnswer],
        measure: Callable[[str, Sequence[str]], float],
    ) -> tuple[float, float]:
        """(mean, threshold) where the mean of this measure is highest."""
        always = replace(self, unanswerable=False)
        return best_threshold(
            [
                measure(always.text(e, a), e.references)
                for e, a in zip(examples, answers, strict=True)
            ],
            [float(not example.references) for example in examples],
            [answer.null_odds for answer in answers],
        )

    def fit_threshold(self, examples: Sequence[Question], answers: Sequence[SpanAnswer]) -> Self:
        """The task with the threshold that is best for the F1 of these examples, to be kept with
        the model. Scores of the same examples at it are the official protocol, and a little
        flattering.
        """
        return (
            replace(self, null_threshold=self.best(examples, answers, f1)[1])
            if self.unanswerable
            else self
        )

    def baseline(self, examples: Sequence[Question]) -> float:
        """Of never giving an answer."""
        return sum(not example.references for example in examples) / max(1, len(examples))


def write_squad(
    path: Path, task: Span, examples: Sequence[Question], answers: Sequence[SpanAnswer]
) -> None:
    """{id: text}, which SQuAD's official evaluation reads; and for its --na-prob-file,
    NAME.na_prob.json beside it.
    """
    pairs = list(zip(examples, answers, strict=True))
    atomic.write_json(path, {example.id: task.text(example, answer) for example, answer in pairs})
    if task.unanswerable:
        atomic.write_json(
            path.with_name(f"{path.stem}.na_prob.json"),
            {example.id: no_answer_probability(answer) for example, answer in pairs},
        )


def no_answer_probability(answer: SpanAnswer) -> float:
    return 0.5 + 0.5 * math.tanh(
        answer.null_odds / 2
    )  # the logistic function, without its overflow


def with_marks(context: str, end: int) -> int:
    """An accent that is a character of its own is no part of the token whose letter carries it, but
    of the answer.
    """
    while end < len(context) and unicodedata.combining(context[end]):
        end += 1
    return end


def ranked(found: Iterator[Candidate]) -> tuple[Candidate, ...]:
    """Best first, the same characters counted together."""
    shares: dict[tuple[int, int], float] = {}
    for start, end, share in found:
        shares[start, end] = shares.get((start, end), 0.0) + share
    order = sorted(shares.items(), key=lambda item: -item[1])[:CANDIDATES]
    return tuple(Candidate(start, end, share) for (start, end), share in order)
