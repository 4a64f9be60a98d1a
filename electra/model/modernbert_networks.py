"""Generator and discriminator of the ModernBERT family, over its prediction head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from electra.model.encoder import Encoder, initialise, initialise_glorot
from electra.model.gelu import gelu
from electra.model.modernbert_encoder import ModernBertEncoder, layer_norm
from electra.model.networks import Discriminator, Generator


class PredictionHead(nn.Module):
    """The hidden layer before the output of every ModernBERT class: dense, GELU, norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width, bias=False)
        self.norm = layer_norm(width)
        initialise(self.dense)

    def forward(self, hidden: Tensor) -> Tensor:
        normalised: Tensor = self.norm(gelu(self.dense(hidden)))
        return normalised


class ModernBertDiscriminator(Discriminator):
    """Classifies every token, as a ModernBertForTokenClassification of two labels."""

    architecture = "ModernBertForTokenClassification"

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)
        self.encoder = encoder
        self.prediction_head = PredictionHead(encoder.shape.width)
        self.output = nn.Linear(encoder.shape.width, 1)
        initialise_glorot(self.output)

    def rtd_head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.output(self.prediction_head(hidden)).squeeze(-1)
        return logits


class ModernBertGenerator(Generator):
    """Predicts tokens by the table it reads with, which the head sees through the projection."""

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)
        self.encoder = encoder
        self.prediction_head = PredictionHead(encoder.shape.width)
        self.bias = nn.Parameter(torch.zeros(encoder.vocabulary))

    @property
    def architecture(self) -> str:
        return "ModernBertForMaskedLM"

    def transform(self, hidden: Tensor) -> Tensor:
        assert isinstance(self.encoder, ModernBertEncoder)
        return self.encoder.embeddings.unproject(self.prediction_head(hidden))
