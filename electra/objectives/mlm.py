"""MaskedLM: BERT's objective, the twin that every claim is compared with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.families import build_masked_lm
from electra.model.networks import Discriminator, Generator, cross_entropy
from electra.model.sampling import Sampling
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Masked
from electra.objectives.masking_objective import MaskingObjective
from electra.objectives.measures import Loss, MetricSums, sum_and_count
from electra.objectives.settings import MaskedLMConfig
from electra.objectives.vocabulary import Vocabulary


class MaskedLM(MaskingObjective):
    """One encoder predicts the tokens that were masked."""

    def __init__(
        self,
        config: MaskedLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(config.masking, vocabulary=vocabulary, unigrams=unigrams)
        self.config = config
        self.encoder = build_masked_lm(encoder, vocabulary=vocabulary.size)

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        masked = self.mask(batch, rng)
        output = mlm_forward(self.encoder, batch, masked)
        mlm_loss = output.token_loss.sum() / self.masked_in_step(batch)
        return Loss(mlm_loss, {"mlm": mlm_loss.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        masked = self.mask(batch, rng)
        output = mlm_forward(self.encoder, batch, masked, keep_logits=True)
        assert output.logits is not None
        return MetricSums(mlm_sums(output.logits, masked, self.unigrams))

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder}


class MLMOutput(NamedTuple):
    """What a masked LM says of the masked positions."""

    token_loss: Tensor  # [B, P] cross-entropy of each label; zero where a position is not scored
    sampled: Tensor | None  # [B, P] one token each, where samples were asked for
    logits: Tensor | None  # [B, P, V], where they were ever in memory
    hidden_states: Tensor  # [B, P, D] the encoder's, at the masked positions


def mlm_forward(
    network: Generator,
    batch: Batch,
    masked: Masked,
    rng: torch.Generator | None = None,
    *,
    sampling: Sampling | None = None,
    keep_logits: bool = False,
) -> MLMOutput:
    """Run a masked LM on the masked text, at the masked positions; `sampling` asks for samples."""
    hidden = network.hidden_at(
        masked.input_ids,
        batch.token_type_ids,
        batch.attention_mask,
        masked.positions,
        batch.packing,
    )
    prediction = network.predict(
        hidden, masked.labels, sampling=sampling, keep_logits=keep_logits, rng=rng
    )
    token_loss = prediction.token_loss * masked.scored
    return MLMOutput(token_loss, prediction.sampled, prediction.logits, hidden)


def mlm_token_loss(logits: Tensor, masked: Masked) -> Tensor:
    """Return the cross-entropy [B, P] of each label; zero where a position is not scored."""
    return cross_entropy(logits, masked.labels) * masked.scored


def mlm_sums(logits: Tensor, masked: Masked, unigrams: Tensor) -> dict[str, Tensor]:
    """Return loss and accuracy at the masked positions, and their baselines.

    The baseline copies the token it reads where that was kept, and otherwise knows only how
    frequent each token is: copying alone scores the fraction of kept tokens.
    """
    is_kept = masked.input_ids.gather(1, masked.positions) == masked.labels
    baseline_loss = -unigrams.log()[masked.labels] * ~is_kept
    baseline_correct = is_kept | (masked.labels == unigrams.argmax())
    return {
        "mlm_loss": sum_and_count(mlm_token_loss(logits, masked), masked.scored),
        "mlm_accuracy": sum_and_count(logits.argmax(-1) == masked.labels, masked.scored),
        "baseline_mlm_loss": sum_and_count(baseline_loss, masked.scored),
        "baseline_mlm_accuracy": sum_and_count(baseline_correct, masked.scored),
    }
