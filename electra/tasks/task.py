"""A task: example → features → head → loss → decode → score. To add one is to write these methods
and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from electra.data.tables import Table
from electra.data.wordpiece import WordPiece
from electra.model.encoder import Encoder
from electra.model.layers import LayerReader
from electra.tasks.features import Array, Features, TaskBatch

Example = TypeVar("Example")  # what the task reads; `where` says from which file and line
Answer = TypeVar(
    "Answer"
)  # what a model says of one: probabilities, so that several models can be averaged
Outputs = Mapping[str, Any]  # of one unit, as numpy arrays


@dataclass(frozen=True)
class Files:
    """The files of a data set in its official layout. `dev` and `test` may have several parts; the
    first one counts.
    """

    train: tuple[Table, ...]
    dev: dict[str, tuple[Table, ...]]
    test: dict[str, tuple[Table, ...]]


class Head(nn.Module, ABC):
    """The vectors of a batch become what `decode` needs; and, against the targets, a loss."""

    architecture: str | None = None  # the transformers class that holds this head, if one does

    def stock(self) -> Head:
        """This head in the form that its transformers class holds."""
        return self

    @abstractmethod
    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        """From vectors [R, T, D]; the first axis of every output is the unit (a row, or rows that
        stay together).
        """

    @abstractmethod
    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        """Summed over what is scored in the batch (see `Task.weight`)."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[Example, Answer]):
    """One kind of question about text. Its fields, what was learnt from training data among them,
    are plain data: a model folder carries them, and `restore` makes the task again.
    """

    kind: ClassVar[str]  # classify, span, tag, choose: how a saved model says which class reads it
    reading: ClassVar[
        tuple[str, ...]
    ] = ()  # fields that may differ when a model is asked: how files call things
    name: str  # glue/rte, squad-2.0, classify
    metric: str  # the score that counts
    # which layers of a frozen encoder the head reads; empty: the encoder is trained, its last layer
    frozen: str = ""

    @abstractmethod
    def locate(self, data: str) -> Files:
        """The files of `--data`: a folder in the official layout, or a name on the hub."""

    @abstractmethod
    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Example]:
        """Examples, one by one. `labelled` ones must have their answer; others may."""

    def learn(self, examples: Sequence[Example]) -> Self:
        """The task with what only training examples can tell: its labels, whether it is a
        regression.
        """
        return self

    @property
    def announcement(self) -> str:
        """What was found in the training data, for the user to disagree with."""
        return ""

    def check(self, examples: Sequence[Example]) -> None:
        """Refuse examples that cannot be scored: a label never seen in training, say."""

    @abstractmethod
    def features(
        self, examples: Sequence[Example], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        """Rows of at most `length` tokens, in the order of their examples; an example may give
        several.
        """

    @abstractmethod
    def head(self, width: int, *, dropout: float) -> Head:
        """A fresh head for vectors of this width."""

    def stored_head(self, width: int, *, architecture: str) -> Head:
        """A head to be filled from a model folder of this transformers class."""
        return self.head(width, dropout=0.0)

    def weight(self, features: Features) -> Array:
        """How much of each unit is scored, to take means over: one, or its number of scored tokens."""
        return np.ones(len(features))

    @abstractmethod
    def decode(
        self, examples: Sequence[Example], features: Features, outputs: Sequence[Outputs]
    ) -> list[Answer]:
        """One answer for each example, from the outputs for each unit of its features."""

    @abstractmethod
    def combine(self, answers: Sequence[Answer]) -> Answer:
        """The answer of several models of this task to one example: the mean of their
        probabilities.
        """

    @abstractmethod
    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, float]:
        """Scores in [−1, 1], `metric` among them."""

    @abstractmethod
    def baseline(self, examples: Sequence[Example]) -> float:
        """`metric` of the best answer that ignores the text. A run that is no better has learnt
        nothing.
        """

    def tuned(self, examples: Sequence[Example], answers: Sequence[Answer]) -> Self:
        """The task with what is chosen on dev once a model is trained: a threshold, say."""
        return self

    @abstractmethod
    def record(self, example: Example, answer: Answer) -> dict[str, Any]:
        """A line of the predictions; plain JSON."""

    def config(self) -> dict[str, Any]:
        """What transformers should find in config.json beside the shape: id2label, say."""
        return {}

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def restore(cls, settings: Mapping[str, Any]) -> Self:
        hints = get_type_hints(cls)
        return cls(
            **{
                key: as_declared(value, hints.get(key), key)
                for key, value in settings.items()
                if key != "kind"
            }
        )


def as_declared(value: Any, hint: Any, key: str) -> Any:
    """A value from JSON as its field declares it: a tuple, something that may be missing, or a
    plain value.
    """
    if get_origin(hint) is tuple and isinstance(value, (list, tuple)):
        return tuple(as_declared(item, get_args(hint)[0], key) for item in value)
    plain = get_args(hint) or (hint,)
    if (
        get_origin(hint) is tuple
        or not isinstance(value, plain)
        or (isinstance(value, bool) and bool not in plain)
    ):
        raise ValueError(f"{key} is {value!r}")
    return value


class Network(nn.Module):
    """An encoder and a task's head. Calling it gives the summed loss; `answer` gives what is
    decoded.
    """

    def __init__(self, encoder: Encoder, head: Head, *, frozen: str = "") -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.reader = LayerReader(encoder.shape.layers, frozen) if frozen else None
        if frozen:
            self.encoder.requires_grad_(False)

    @property
    def architecture(self) -> str | None:
        """The transformers class that holds this network; a frozen or causal encoder's head is ours
        alone.
        """
        return None if self.reader or self.encoder.shape.causal else self.head.architecture

    def forward(self, batch: TaskBatch) -> Tensor:
        return self.head.loss(self.vectors(batch), batch)

    def answer(self, batch: TaskBatch) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.head(self.vectors(batch), batch)
        return outputs

    def logits(self, ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """What stock transformers computes from this network's folder; several kinds of them side
        by side.
        """
        found = list(self.answer(TaskBatch(ids, token_type_ids, attention_mask, {})).values())
        return found[0] if len(found) == 1 else torch.stack(found, dim=-1)

    def vectors(self, batch: TaskBatch) -> Tensor:
        if self.reader is None:
            hidden: Tensor = self.encoder(
                batch.input_ids, batch.token_type_ids, batch.attention_mask
            )
            return last_first(hidden, batch.attention_mask) if self.encoder.shape.causal else hidden
        self.encoder.eval()  # features that are frozen do not drop out
        with torch.no_grad():
            layers = self.encoder.layers(
                batch.input_ids, batch.token_type_ids, batch.attention_mask
            )
        read: Tensor = self.reader(layers)
        return read


def last_first(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Vectors [R, T, D] with that of the last token, a [SEP], in the place of [CLS]. To a causal
    encoder [CLS] is the same before every text; only the last token has seen all of it, and heads
    read the first.
    """
    last = (
        (attention_mask.sum(dim=1) - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[-1])
    )
    return torch.cat([hidden.gather(1, last), hidden[:, 1:]], dim=1)


def first_and_count(found: Iterable[str]) -> str:
    """'a (and 3 more)', for messages about many."""
    names = list(found)
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
