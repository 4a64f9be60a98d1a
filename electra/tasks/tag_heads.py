"""Heads that label every token: a linear layer, or a BiLSTM on a frozen encoder's vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from electra.model.dropout import Dropout
from electra.model.encoder import initialise_glorot
from electra.tasks.features import IGNORE_INDEX, TaskBatch
from electra.tasks.task import Head

LSTM_LAYERS = 2  # BERT, section 5.3


class TagHead(Head):
    """Dropout and one linear layer, each token by itself: BERT's tagger, with no CRF."""

    architecture: str | None = "TokenClassification"

    def __init__(self, width: int, *, labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, labels)
        initialise_glorot(self.output)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        return {"logits": self.output(self.dropout(hidden))}  # [R, T, labels]

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        logits = self(hidden, batch)["logits"]
        return F.cross_entropy(
            logits.float().flatten(0, 1),
            batch.labels["target"].flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
        )


class BiLSTMHead(TagHead):
    """BERT's feature-based tagger: a BiLSTM between the frozen vectors and the linear layer."""

    architecture = None

    def __init__(self, width: int, *, labels: int, lstm_width: int, dropout: float) -> None:
        super().__init__(2 * lstm_width, labels=labels, dropout=dropout)
        self.lstm = nn.LSTM(
            width, lstm_width, num_layers=LSTM_LAYERS, bidirectional=True, batch_first=True
        )

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        # Packed, so that the backward direction starts at a row's last token, not in its padding.
        lengths = batch.attention_mask.sum(1).cpu()
        with torch.autocast(hidden.device.type, enabled=False):
            packed = pack_padded_sequence(
                hidden.float(), lengths, batch_first=True, enforce_sorted=False
            )
            packed_states, _ = self.lstm(packed)
            states, _ = pad_packed_sequence(
                packed_states, batch_first=True, total_length=hidden.shape[1]
            )
        return super().forward(states, batch)
