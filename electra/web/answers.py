"""Fine-tuned models: the inputs of a request become examples, and answers become JSON."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from electra.config import UserError
from electra.data.tables import table_of_rows
from electra.tasks.choose import Choice, Choose
from electra.tasks.classify import Classify
from electra.tasks.features import Features
from electra.tasks.inference import answer_chunk
from electra.tasks.input_rows import columns_with_list, input_columns
from electra.tasks.models import FinetunedModel
from electra.tasks.task import Answer, AnyTask, Example
from electra.tasks.vocabulary_fit import mostly_unknown_texts
from electra.web.requests import (
    Limits,
    RequestError,
    check_keys,
    check_text,
    json_type,
    take_text,
    take_texts,
)
from electra.web.tokens import utf16_offsets

# What the JSON of an input may hold, by the kind of task.
KEYS = {
    "classify": ("text", "text_pair"),
    "glue": ("text", "text_pair"),
    "tag": ("text", "tokens"),
    "span": ("question", "context"),
    "choose": ("context", "question", "options"),
}


@dataclass(frozen=True)
class Input:
    """One input of a request, as the task reads it."""

    example: Example
    text: str  # that offsets of the answer count in
    word_spans: Sequence[tuple[int, int]] = ()  # of a sentence to tag


class TextNotes(NamedTuple):
    """What an answer says of its text besides what the model found."""

    cut: bool  # longer than the model reads
    mostly_unknown: bool  # most of its tokens are [UNK]


@dataclass(frozen=True)
class Answerer:
    """A fine-tuned model that answers requests."""

    model: FinetunedModel
    takes_any: bool  # a text or a pair: its folder does not say what it was fine-tuned on
    device: torch.device

    @property
    def task(self) -> AnyTask:
        return self.model.task

    @property
    def kind(self) -> str:
        """What the page shows: classify, multi-label, score, tag, span or choose."""
        if not isinstance(self.task, Classify):
            return self.task.kind
        if self.task.regression:
            return "score"
        if self.task.multi_label:
            return "multi-label"
        return "classify"

    @property
    def takes(self) -> str:
        if self.takes_any:
            return "text or pair"
        if self.task.kind in ("classify", "glue") and len(input_columns(self.task)) == 2:
            return "pair"
        return {"span": "pair", "choose": "pair"}.get(self.task.kind, "text")

    def answer(self, examples: Sequence[Example]) -> list[tuple[Answer, TextNotes]]:
        """Return the answer to each example, and the notes on its text."""
        cut, unknown = set(), set()

        def inspect(features: Features, _: Sequence[Example]) -> None:
            cut.update(features.examples[features.truncated].tolist())
            unknown.update(mostly_unknown_texts(features, self.model.tokenizer).tolist())

        answers = answer_chunk([self.model], examples, inspect, self.device)
        return [
            (answer, TextNotes(cut=index in cut, mostly_unknown=index in unknown))
            for index, answer in enumerate(answers)
        ]

    # ---- inputs ----------------------------------------------------------------------------------

    def parse(self, body: Mapping[str, Any], limits: Limits) -> list[Input]:
        """Return the inputs of a request."""
        check_keys(body, ("inputs",), where="The body")
        inputs = body.get("inputs")
        if not isinstance(inputs, list) or not inputs:
            raise RequestError(400, "'inputs' must be an array with at least one input.")
        if len(inputs) > limits.inputs:
            raise RequestError(
                413,
                f"{len(inputs):,} inputs, where a request takes at most {limits.inputs}; send "
                "several requests, or a table.",
            )
        parsed = []
        for number, given in enumerate(inputs):
            parsed.append(self.parse_input(given, f"inputs[{number}]", limits))
        return parsed

    def parse_input(self, given: Any, where: str, limits: Limits) -> Input:
        if isinstance(given, str):
            given = {self.bare_key(where): given}
        if not isinstance(given, dict):
            raise RequestError(400, f"{where} is {json_type(given)}; {self.expected}.")
        self.check_input_keys(given, where)
        if self.task.kind == "tag":
            return self.parse_sentence(given, where, limits)
        values = self.values(given, where, limits)
        task = self.task
        if self.takes_any and len(values) == 2:
            task = replace(task, text_pair="text_pair")  # type: ignore[call-arg]
        columns = input_columns(task)
        if isinstance(task, Choose):
            columns = columns_with_list(task)
        if len(values) != len(columns):
            raise RequestError(400, f"{where}: {self.expected}.")
        row = dict(zip(columns, values, strict=True))
        text = given.get("context", "")
        return Input(read_example(task, row, where), text)

    def check_input_keys(self, given: Mapping[str, Any], where: str) -> None:
        """Refuse a key that no model of this kind has, and one that this model does not take."""
        taken = self.keys
        for key in given:
            if key not in KEYS[self.task.kind]:
                check_keys({key: None}, taken, where=where)
            elif key not in taken and given[key] is not None:
                raise RequestError(400, f"{where}: this model takes no {key}; {self.expected}.")

    @property
    def keys(self) -> Sequence[str]:
        """The keys that an input of this model may have."""
        keys = KEYS[self.task.kind]
        if self.takes == "text" and "text_pair" in keys:
            return ("text",)
        if isinstance(self.task, Choose) and not self.task.question:
            return ("context", "options")
        return keys

    def bare_key(self, where: str) -> str:
        """Return the key that a bare string stands for."""
        if self.task.kind == "tag" or self.takes != "pair":
            return "text"
        raise RequestError(400, f"{where} is a string; {self.expected}.")

    @property
    def expected(self) -> str:
        shapes = {
            "tag": 'give a string or {"tokens": […]}',
            "span": 'give {"question": …, "context": …}',
            "choose": 'give {"context": …, "options": […]}',
        }
        if isinstance(self.task, Choose) and self.task.question:
            return 'give {"context": …, "question": …, "options": […]}'
        if self.takes == "pair":
            return shapes.get(self.task.kind, 'give {"text": …, "text_pair": …}')
        return shapes.get(self.task.kind, 'give a string or {"text": …}')

    def values(self, given: Mapping[str, Any], where: str, limits: Limits) -> list[Any]:
        """Return the values of an input in the order of the task's columns."""
        if self.task.kind == "choose":
            return self.choose_values(given, where, limits)
        if self.task.kind == "span":
            return [take_text(given, key, where=where, limits=limits) for key in KEYS["span"]]
        values = [take_text(given, "text", where=where, limits=limits)]
        if given.get("text_pair") is not None:
            values.append(take_text(given, "text_pair", where=where, limits=limits))
        return values

    def choose_values(self, given: Mapping[str, Any], where: str, limits: Limits) -> list[Any]:
        values: list[Any] = [take_text(given, "context", where=where, limits=limits)]
        assert isinstance(self.task, Choose)
        if self.task.question:
            values.append(take_text(given, "question", where=where, limits=limits))
        options = take_texts(given, "options", where=where, limits=limits)
        if len(options) > limits.inputs:
            raise RequestError(413, f"{where}: at most {limits.inputs} options are taken.")
        return [*values, options]

    def parse_sentence(self, given: Mapping[str, Any], where: str, limits: Limits) -> Input:
        """Return a sentence, split at white space as `electra predict` does."""
        if ("text" in given) == ("tokens" in given):
            raise RequestError(400, f"{where}: {self.expected}.")
        if "text" in given:
            text = take_text(given, "text", where=where, limits=limits)
        else:
            words = take_texts(given, "tokens", where=where, limits=limits)
            if any(word.split() != [word] for word in words):
                raise RequestError(
                    400, f"{where}: a token is empty or holds white space; give one word each."
                )
            text = check_text(" ".join(words), where=where, limits=limits)
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        if not spans:
            raise RequestError(400, f"{where}: the text has no words; type a sentence.")
        row = {input_columns(self.task)[0]: [text[start:end] for start, end in spans]}
        return Input(read_example(self.task, row, where), text, spans)

    def batch_key(self, examples: Sequence[Example]) -> Hashable:
        """Return what the examples of a batch must share: choices need equally many options."""
        choices = [example for example in examples if isinstance(example, Choice)]
        counts = {len(choice.options) for choice in choices}
        if len(counts) > 1:
            raise RequestError(
                400, "The inputs have different numbers of options; send a request for each number."
            )
        return frozenset(counts)

    # ---- answers ---------------------------------------------------------------------------------

    def describe(self, given: Input, answer: Answer, notes: TextNotes) -> dict[str, Any]:
        """Return the answer to one input as JSON."""
        record = self.task.record(given.example, answer)
        offsets = utf16_offsets(given.text)
        if self.kind == "tag":
            shown = describe_tags(given, record, offsets)
        elif self.kind == "span":
            shown = describe_span(record, offsets)
            shown["alternatives"] = [describe_span(a, offsets) for a in record["alternatives"]]
        elif self.kind == "choose":
            probabilities = record["probabilities"]
            shown = {
                "choice": int(np.argmax(probabilities)),
                "option": record["option"],
                "probabilities": probabilities,
            }
        else:
            names = ("label", "labels", "score", "probabilities")
            shown = {name: record[name] for name in names if name in record}
        return shown | notes._asdict()


def read_example(task: AnyTask, row: dict[str, Any], where: str) -> Example:
    """Return the example that a row describes; raise RequestError where the task refuses it."""
    try:
        table = table_of_rows([(where, row)], name="inputs")
        return next(iter(task.read([table], labelled=False)))
    except UserError as error:
        raise RequestError(400, f"{error}.") from None


def describe_tags(
    given: Input, record: Mapping[str, Any], offsets: Sequence[int]
) -> dict[str, Any]:
    """Return the words with their tags, and the entities, where the tags are those of entities."""
    tokens, entities = [], []
    for (start, end), tag in zip(given.word_spans, record["tags"], strict=True):
        token = {"text": given.text[start:end], "start": offsets[start], "end": offsets[end]}
        tokens.append(token | {"tag": tag})
    for entity in record.get("entities", ()):
        start = given.word_spans[entity["start"]][0]
        end = given.word_spans[entity["end"] - 1][1]
        entities.append(
            {
                "label": entity["type"],
                "start": offsets[start],
                "end": offsets[end],
                "text": given.text[start:end],
                "probability": entity["probability"],
            }
        )
    return {"tokens": tokens, "entities": entities}


def describe_span(record: Mapping[str, Any], offsets: Sequence[int]) -> dict[str, Any]:
    start = record["start"]
    if start is None:
        place = {"start": None, "end": None}
    else:
        place = {"start": offsets[start], "end": offsets[start + len(record["answer"])]}
    return {"answer": record["answer"], **place, "probability": record["probability"]}
