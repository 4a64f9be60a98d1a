"""Heads that read the first vector of a row: the paper's, and the one transformers has, which can
hold it exactly.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.dropout import Dropout
from electra.model.encoder import initialise
from electra.model.gelu import gelu
from electra.tasks.features import TaskBatch
from electra.tasks.task import Head

ARCHITECTURE = "ElectraForSequenceClassification"


class VectorHead(Head):
    """Logits [R, labels] from the vector of [CLS]; or one score, against which the error is
    squared.
    """

    def __init__(self, *, regression: bool) -> None:
        super().__init__()
        self.regression = regression

    @abstractmethod
    def logits(self, vectors: Tensor) -> Tensor:
        """[R, D] to [R, labels]."""

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        return {"logits": self.logits(hidden[:, 0])}

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        logits, target = self.logits(hidden[:, 0]).float(), batch.labels["target"]
        if self.regression:
            return F.mse_loss(logits[:, 0], target, reduction="sum")
        return F.cross_entropy(logits, target, reduction="sum")


class LinearHead(VectorHead):
    """The paper's: dropout, then one linear layer."""

    def __init__(self, width: int, outputs: int, *, dropout: float, regression: bool) -> None:
        super().__init__(regression=regression)
        self.architecture = ARCHITECTURE if 2 * outputs <= width else None
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, outputs)
        initialise(self.output)

    def logits(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.output(self.dropout(vectors))
        return found

    def to_transformers(self) -> VectorHead:
        """transformers puts dense and gelu in front of its output layer; gelu(z) − gelu(−z) = z
        sees through them.

        dense: [W; −W; 0]        output: [I, −I, 0]
        """
        outputs, width = self.output.weight.shape
        if self.architecture is None:
            return self
        stock = StockHead(width, outputs, regression=self.regression).to(self.output.weight)
        with torch.no_grad():
            for parameter in stock.parameters():
                parameter.zero_()
            for sign, at in ((1, slice(0, outputs)), (-1, slice(outputs, 2 * outputs))):
                stock.dense.weight[at] = sign * self.output.weight
                stock.dense.bias[at] = sign * self.output.bias
                stock.output.weight[:, at] = sign * torch.eye(outputs)
        return stock


class StockHead(VectorHead):
    """transformers' ElectraClassificationHead."""

    architecture = ARCHITECTURE

    def __init__(self, width: int, outputs: int, *, regression: bool, dropout: float = 0.0) -> None:
        super().__init__(regression=regression)
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.output = nn.Linear(width, outputs)
        self.apply(initialise)

    def logits(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.output(self.dropout(gelu(self.dense(self.dropout(vectors)))))
        return found
