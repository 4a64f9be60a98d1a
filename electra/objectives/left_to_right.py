"""LeftToRight: every token predicts the next one and sees no later one, as GPT does."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.families import build_masked_lm
from electra.model.memory import LOGITS_CHUNK
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.objectives.measures import Loss, MetricSums, sum_and_count
from electra.objectives.objective import Objective
from electra.objectives.settings import LeftToRightConfig
from electra.objectives.vocabulary import Vocabulary


class LeftToRight(Objective):
    """The mean cross-entropy of every token but the first of each row. Nothing is random."""

    def __init__(
        self,
        config: LeftToRightConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        # A token that sees the next one has nothing to predict; a Recipe refuses this.
        assert encoder.causal
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.config = config
        self.encoder = build_masked_lm(encoder, vocabulary=vocabulary.size)

    def predict_next(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return predicted embeddings [B·(T − 1), E] of the next tokens, and those tokens."""
        hidden = self.encoder.encoder(
            batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
        )
        predicted = self.encoder.transform(hidden[:, :-1]).flatten(0, 1)
        return predicted, batch.input_ids[:, 1:].flatten()

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        predicted, labels = self.predict_next(batch)
        token_loss = self.encoder.token_loss(predicted, labels)
        scored = batch.attention_mask[:, 1:].flatten()
        lm_loss = (token_loss * scored).sum() / (batch.step_lengths - 1).sum()
        return Loss(lm_loss, {"lm": lm_loss.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        """Compute loss and accuracy.

        The baseline knows how frequent each token is and, beyond that, where segments end.
        """
        predicted, labels = self.predict_next(batch)
        scored, is_end = batch.attention_mask[:, 1:].flatten(), labels == self.vocabulary.sep
        chunks = torch.split(predicted, LOGITS_CHUNK)
        tokens = torch.cat([self.encoder.lm_logits(rows).argmax(-1) for rows in chunks])
        baseline_loss = -self.unigrams.log()[labels] * ~is_end
        baseline_correct = is_end | (labels == self.unigrams.argmax())
        return MetricSums(
            {
                "lm_loss": sum_and_count(self.encoder.token_loss(predicted, labels), scored),
                "lm_accuracy": sum_and_count(tokens == labels, scored),
                "baseline_lm_loss": sum_and_count(baseline_loss, scored),
                "baseline_lm_accuracy": sum_and_count(baseline_correct, scored),
            }
        )

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder}
