"""Classification heads on the vector of [CLS]: the paper's, and the one of transformers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.dropout import Dropout
from electra.model.encoder import initialise, initialise_glorot
from electra.model.gelu import gelu
from electra.tasks.features import TaskBatch
from electra.tasks.task import Head

ARCHITECTURE = "SequenceClassification"


def max_labels(family: str, width: int) -> float:
    """Return how many labels a family's class in transformers holds in a linear head's form."""
    if family == "electra":  # two rows of its dense layer for each: `LinearHead.to_transformers`
        return width // 2
    return math.inf


class ClassificationHead(Head):
    """Logits [R, labels] from the vector of [CLS], with cross-entropy; or a score, with MSE.

    A regression learns the range `extent` of the labels as 0 to 1 (official code), so that its loss
    has the same size whatever their unit. `forward` returns scores in the labels' unit.
    """

    class_weights: Tensor | None  # [labels]

    def __init__(self, *, regression: bool, extent: Sequence[float] = ()) -> None:
        super().__init__()
        self.regression = regression
        self.low, high = extent or (0.0, 1.0)
        self.scale = (high - self.low) or 1.0
        self.register_buffer("class_weights", None, persistent=False)

    def set_class_weights(self, weights: Sequence[float]) -> None:
        """Weigh the loss of each example by its class. The weights are no part of the model."""
        self.class_weights = torch.tensor(weights, dtype=torch.float32)

    @abstractmethod
    def logits(self, vectors: Tensor) -> Tensor:
        """Compute logits [R, labels] from vectors [R, D]."""

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        logits = self.logits(hidden[:, 0])
        if self.regression:
            logits = self.low + self.scale * logits.float()
        return {"logits": logits}

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        logits, target = self.logits(hidden[:, 0]).float(), batch.labels["target"]
        if self.regression:
            return F.mse_loss(logits[:, 0], (target - self.low) / self.scale, reduction="sum")
        return F.cross_entropy(logits, target, weight=self.class_weights, reduction="sum")


class LinearHead(ClassificationHead):
    """The paper's head: dropout, then one linear layer."""

    architecture = ARCHITECTURE

    def __init__(
        self,
        width: int,
        outputs: int,
        *,
        dropout: float,
        regression: bool,
        extent: Sequence[float] = (),
    ) -> None:
        super().__init__(regression=regression, extent=extent)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, outputs)
        initialise_glorot(self.output)  # reference code: its framework's default

    def logits(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.output(self.dropout(vectors))
        return logits

    def class_in(self, family: str) -> str | None:
        outputs, width = self.output.weight.shape
        if outputs > max_labels(family, width):
            return None
        return self.architecture

    def fold(self) -> LinearHead:
        """Return a head without a range, whose weights compute the scores in the labels' unit."""
        if (self.low, self.scale) == (0.0, 1.0):
            return self
        outputs, width = self.output.weight.shape
        folded = LinearHead(width, outputs, dropout=0.0, regression=self.regression)
        folded = folded.to(self.output.weight)
        with torch.no_grad():
            folded.output.weight.copy_(self.scale * self.output.weight)
            folded.output.bias.copy_(self.scale * self.output.bias + self.low)
        return folded

    def to_transformers(self, family: str) -> ClassificationHead:
        """Return a head of transformers that computes the same logits.

        ELECTRA's has a dense layer and gelu before its output layer. Since gelu(z) − gelu(−z) = z,
        they become the identity with

        dense: [W; −W; 0]        output: [I, −I, 0]
        """
        outputs, width = self.output.weight.shape
        folded = self.fold()
        if family != "electra" or self.class_in(family) is None:
            return folded
        head = ElectraClassificationHead(width, outputs, regression=self.regression)
        head = head.to(self.output.weight)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.zero_()
            for sign, rows in ((1, slice(0, outputs)), (-1, slice(outputs, 2 * outputs))):
                head.dense.weight[rows] = sign * folded.output.weight
                head.dense.bias[rows] = sign * folded.output.bias
                head.output.weight[:, rows] = sign * torch.eye(outputs)
        return head


class MultiLabelHead(LinearHead):
    """A linear head that learns each label by itself: binary cross-entropy, summed over labels."""

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            self.logits(hidden[:, 0]).float(),
            batch.labels["target"],
            pos_weight=self.class_weights,
            reduction="sum",
        )


class ElectraClassificationHead(ClassificationHead):
    """The head of transformers' ElectraForSequenceClassification."""

    architecture = ARCHITECTURE

    def __init__(self, width: int, outputs: int, *, regression: bool, dropout: float = 0.0) -> None:
        super().__init__(regression=regression)
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.output = nn.Linear(width, outputs)
        self.apply(initialise)

    def logits(self, vectors: Tensor) -> Tensor:
        features = gelu(self.dense(self.dropout(vectors)))
        logits: Tensor = self.output(self.dropout(features))
        return logits
