"""The interface of a task: example → features → head → loss → decode → score.

To add a task is to write the methods of `Task` and nothing else. `Network` joins an encoder and a
task's head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from electra.config import UserError, build, suggest_or_list
from electra.data.tables import Table
from electra.data.wordpiece import WordPiece
from electra.model.encoder import Encoder
from electra.model.families import family_of
from electra.model.layers import LayerReader
from electra.tasks.class_scores import ClassScores
from electra.tasks.features import Array, Features, TaskBatch

Outputs: TypeAlias = Mapping[str, Array]  # of one unit


class Example(Protocol):
    """What a task reads. Only the task itself knows more of it than where it was read.

    Where it has an attribute `row`, the row that it was read from, predictions begin with its
    columns.
    """

    @property
    def where(self) -> str:
        """The file and the line, for error messages."""


# A model's answer to one example, as probabilities, so that several models can be averaged. Only
# the task itself looks into it.
Answer: TypeAlias = object

ExampleT = TypeVar("ExampleT", bound=Example)
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Files:
    """The files of a data set in its official layout.

    `dev` and `test` may have several parts; the first part of `dev` is the one whose score counts.
    """

    train: tuple[Table, ...]
    dev: dict[str, tuple[Table, ...]]
    test: dict[str, tuple[Table, ...]]


class Head(nn.Module, ABC):
    """A head computes a task's outputs, and its loss, from the encoder's hidden states."""

    # What transformers calls a network with this head, without the family's prefix:
    # SequenceClassification, for instance. None: it has no class for it.
    architecture: str | None = None

    def class_in(self, family: str) -> str | None:
        """Return `architecture`, or None where this family's class cannot hold the head."""
        return self.architecture

    def fold(self) -> Head:
        """Return this head with what only training has apart folded into its weights."""
        return self

    def to_transformers(self, family: str) -> Head:
        """Return this head in the form that its transformers class holds."""
        return self

    @abstractmethod
    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        """Compute the outputs from hidden states [R, T, D]; the first axis of each is the unit."""

    @abstractmethod
    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        """Compute the loss, summed over what is scored in the batch (see `Task.weight`)."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[ExampleT, AnswerT]):
    """A task defines its examples, features, head, decoding and scores.

    Its fields, those learnt from training data included, are plain data: a model folder stores
    them (`settings`), and `from_settings` builds the task again.
    """

    kind: ClassVar[str]  # classify, span, tag, choose: the key of the class in a saved model
    # Fields that may be set again for inference: the columns of the files, mostly.
    inference_options: ClassVar[tuple[str, ...]] = ()
    # What a bare input, such as a text or a pair of texts, fills, in the order of its parts: fields
    # that hold names of columns, or columns. Empty: inputs are rows.
    inputs: ClassVar[tuple[str, ...]] = ()
    pools: ClassVar[bool] = True  # one vector stands for a row; False: the head reads every token
    name: str  # glue/rte, squad-2.0, classify
    metric: str  # the score that counts
    # The layers of a frozen encoder that the head reads. Empty: the encoder is trained too, and the
    # head reads its last layer.
    frozen: str = ""
    # What stands for a whole row: the vector of [CLS], or the mean of all (ModernBERT alone).
    pooling: Literal["cls", "mean"] = "cls"
    # How spans and tags are encoded, learnt and searched: our way, or that of the official code.
    conventions: Literal["default", "official"] = "default"

    def __post_init__(self) -> None:
        if self.metric and self.metric_names and self.metric not in self.metric_names:
            hint = suggest_or_list(self.metric, self.metric_names)
            raise UserError(f"--metric {self.metric}: {self.name} is not scored by it{hint}")

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that `metric` may be; empty where only `score` knows them."""
        return ()

    @classmethod
    def from_name(cls, name: str, **options: Any) -> Self:
        """Build the task that the command line calls `name`; options are fields of the task."""
        return cls(name=name, **options)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build the task that `settings` describe; raise UserError for a wrong field."""
        plain = {key: value for key, value in settings.items() if key != "kind"}
        return build(cls, plain, source="electra_task")

    def settings(self) -> dict[str, Any]:
        """Return the fields of the task and its kind as plain data."""
        return {"kind": self.kind, **asdict(self)}

    def with_windows(self) -> Self:
        """Return the task that reads texts longer than a row in several rows."""
        return self

    @property
    def has_windows(self) -> bool:
        """Whether texts longer than a row are read in several rows: tags and spans always."""
        return not self.pools

    # ---- examples --------------------------------------------------------------------------------

    @abstractmethod
    def locate(self, data: str) -> Files:
        """Find the files of `--data`: a folder in the official layout, or a name on the hub."""

    @abstractmethod
    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[ExampleT]:
        """Yield the examples; `labelled` ones must have their label, others may have one."""

    def stratum(self, example: ExampleT) -> str:
        """Return the label whose share is to be the same in training and in dev data, if any."""
        return ""

    def fit_labels(self, examples: Sequence[ExampleT]) -> Self:
        """Return the task with what the training examples determine: its labels, for instance."""
        return self

    def fit_weights(self, examples: Sequence[ExampleT]) -> Self:
        """Return the task with the weights of its classes, where they follow from the examples."""
        return self

    @property
    def description(self) -> str:
        """A line on what was found in the training data, for the user to disagree with."""
        return ""

    @property
    def weights_note(self) -> str:
        """A line on the weights of the classes, where they differ."""
        return ""

    def check(self, examples: Sequence[ExampleT]) -> None:
        """Raise UserError for an example that cannot be scored, such as one of an unknown label."""

    @abstractmethod
    def features(
        self, examples: Sequence[ExampleT], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        """Encode the examples, in order, as one or more rows each of at most `length` tokens."""

    def weight(self, features: Features) -> Array:
        """Return how much of each unit is scored, to take means over: 1, or its scored tokens."""
        return np.ones(len(features))

    # ---- head ------------------------------------------------------------------------------------

    @property
    def first_token_type(self) -> int:
        """The pre-trained token type that the first segment of a row begins with."""
        return 0

    @abstractmethod
    def head(self, width: int, *, dropout: float) -> Head:
        """Build a fresh head for hidden states of this width."""

    def stored_head(self, width: int, *, architecture: str) -> Head:
        """Build the head whose weights a model folder of this transformers class holds."""
        return self.head(width, dropout=0.0)

    def config(self) -> dict[str, Any]:
        """Return what config.json tells transformers beside the shape: id2label, for instance."""
        return {}

    def with_transformers_config(self, config: Mapping[str, Any], *, folder: Path) -> Self:
        """Return the task with what config.json says of a model that transformers fine-tuned."""
        return self

    # ---- answers ---------------------------------------------------------------------------------

    @abstractmethod
    def decode(
        self, examples: Sequence[ExampleT], features: Features, outputs: Sequence[Outputs]
    ) -> list[AnswerT]:
        """Return one answer per example, from the outputs of each unit of the features."""

    @abstractmethod
    def combine(self, answers: Sequence[AnswerT]) -> AnswerT:
        """Average the answers that several models of this task give to one example."""

    def ensemble_key(self) -> tuple[object, ...]:
        """Return what two tasks must share for the answers of their models to be averaged."""
        return self.kind, self.config()

    def ensemble(self, tasks: Sequence[Self]) -> Self:
        """Return the task that scores averaged answers, given the tasks of all the models."""
        return self

    @abstractmethod
    def score(self, examples: Sequence[ExampleT], answers: Sequence[AnswerT]) -> dict[str, float]:
        """Compute the scores, `metric` among them; most are in [−1, 1], errors in any unit."""

    def class_scores(
        self, examples: Sequence[ExampleT], answers: Sequence[AnswerT]
    ) -> list[ClassScores]:
        """Compute precision, recall and F1 of each class, where there are classes."""
        return []

    @abstractmethod
    def baseline(self, examples: Sequence[ExampleT]) -> float:
        """Compute `metric` for the best answer that ignores the text."""

    def fit_threshold(self, examples: Sequence[ExampleT], answers: Sequence[AnswerT]) -> Self:
        """Return the task with the thresholds that are chosen on dev once a model is trained."""
        return self

    @abstractmethod
    def record(self, example: ExampleT, answer: AnswerT) -> dict[str, Any]:
        """Return one line of the predictions, as plain JSON."""


# Any task, to code that hands its examples and answers from one of its methods to the next.
AnyTask: TypeAlias = Task[Example, Answer]


class Network(nn.Module):
    """An encoder and a task's head; calling it computes the summed loss of a batch."""

    def __init__(
        self, encoder: Encoder, head: Head, *, frozen: str = "", pooling: str = "cls"
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.pooling = encoder, head, pooling
        self.family = family_of(encoder.shape)
        # Between encoder and head, where the family's classes have one.
        self.prediction_head = None
        if not frozen and head.architecture is not None:
            self.prediction_head = self.family.build_prediction_head(encoder.shape.width)
        self.reader = LayerReader(encoder.shape.layers, frozen) if frozen else None
        if frozen:
            self.encoder.requires_grad_(False)

    @property
    def architecture(self) -> str | None:
        """The transformers class that holds this network; none holds a frozen or causal encoder."""
        head = self.head.class_in(self.family.name)
        if self.reader or self.encoder.shape.causal or head is None:
            return None
        return self.family.task_class(head)

    def forward(self, batch: TaskBatch) -> Tensor:
        return self.head.loss(self.hidden_states(batch), batch)

    def outputs(self, batch: TaskBatch) -> dict[str, Tensor]:
        """Compute what the task decodes."""
        outputs: dict[str, Tensor] = self.head(self.hidden_states(batch), batch)
        return outputs

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute what transformers computes from this network's folder; several logits stacked."""
        batch = TaskBatch(input_ids, token_type_ids, attention_mask, {})
        logits = list(self.outputs(batch).values())
        if len(logits) == 1:
            return logits[0]
        return torch.stack(logits, dim=-1)

    def hidden_states(self, batch: TaskBatch) -> Tensor:
        """Compute the vectors [R, T, D] that the head reads."""
        inputs = batch.input_ids, batch.token_type_ids, batch.attention_mask
        if self.reader is None:
            hidden: Tensor = self.encoder(*inputs)
        else:
            self.encoder.eval()  # no dropout in frozen features
            with torch.no_grad():
                layers = self.encoder.hidden_states(*inputs)
            hidden = self.reader(layers)
        if self.encoder.shape.causal:
            return move_last_to_first(hidden, batch.attention_mask)
        if self.pooling == "mean":
            hidden = move_mean_to_first(hidden, batch.attention_mask)
        if self.prediction_head is not None:
            hidden = self.prediction_head(hidden)
        return hidden


def move_last_to_first(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Replace the first vector of each row, [R, T, D], by that of its last token, a [SEP].

    To a causal encoder [CLS] is the same before every text; only the last token has seen all of it,
    and heads read the first.
    """
    last = (attention_mask.sum(dim=1) - 1).clamp(min=0)
    index = last[:, None, None].expand(-1, 1, hidden.shape[-1])
    return torch.cat([hidden.gather(1, index), hidden[:, 1:]], dim=1)


def move_mean_to_first(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Replace the first vector of each row, [R, T, D], by the mean of its tokens."""
    weights = attention_mask[..., None].to(hidden.dtype)
    mean = (hidden * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)
    return torch.cat([mean, hidden[:, 1:]], dim=1)


def softmax(logits: Array) -> Array:
    """Return probabilities [..., C] of logits [..., C]; none of none."""
    greatest = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(logits - greatest)
    probabilities: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def first_and_count(names: Iterable[str]) -> str:
    """Format many names as 'a (and 3 more)'."""
    first, *others = names
    if not others:
        return first
    return f"{first} (and {len(others)} more)"
