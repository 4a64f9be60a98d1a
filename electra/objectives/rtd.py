"""ReplacedTokenDetection: ELECTRA (Clark et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.data.batches import Batch
from electra.model.families import build_networks
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Corrupted, Masked
from electra.objectives.generating import Generating
from electra.objectives.measures import Loss, MetricSums, rtd_histogram, sum_and_count
from electra.objectives.mlm import MLMOutput
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.objectives.vocabulary import Vocabulary


class RTDOutput(NamedTuple):
    """What both networks made of a batch."""

    masked: Masked
    mlm: MLMOutput | None  # the generator's output, where it is a network
    sampled: Tensor  # [B, P] the sampled tokens
    corrupted: Corrupted
    disc_logits: Tensor  # [B, T] the discriminator's: above zero means "replaced"


class ReplacedTokenDetection(Generating):
    """The generator's masked-LM loss + 50 · the discriminator's binary cross-entropy.

    The discriminator is scored on every token, or on the masked ones alone. A frozen generator runs
    without dropout, and nothing ever changes it.
    """

    config: ReplacedTokenDetectionConfig

    def __init__(
        self,
        config: ReplacedTokenDetectionConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        generator, discriminator = build_networks(
            encoder, config.generator_settings(encoder), vocabulary=vocabulary.size
        )
        super().__init__(config, generator, vocabulary=vocabulary, unigrams=unigrams)
        self.discriminator = discriminator
        if config.generator_training == "frozen":
            assert generator is not None
            generator.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.generator is not None and self.config.generator_training == "frozen":
            self.generator.eval()
        return self

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        """Compute the loss of one micro-batch, step by step as the paper has it."""
        config = self.config
        # 1. Mask 15 % of the tokens.
        masked = self.mask(batch, rng)
        # 2. The generator predicts them, and samples a token for each without gradient.
        mlm, sampled = self.run_generator(batch, masked, rng)
        # 3. The samples replace the masked tokens. One that equals the original is not replaced.
        corrupted = self.corruption.replace(batch.input_ids, masked, sampled)
        # 4. The discriminator classifies every token: original or replaced?
        disc_logits = self.discriminator(
            corrupted.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
        )
        # 5. Both losses are means over the scored tokens of the whole step: mlm + 50 · rtd.
        token_loss = rtd_token_loss(disc_logits, corrupted.is_replaced)
        weighted = token_loss * self.token_weights(masked, batch)
        rtd_loss = weighted.sum() / self.scored_in_step(batch)
        main = Loss(config.discriminator_weight * rtd_loss, {"rtd": rtd_loss.detach()})
        output = RTDOutput(masked, mlm, sampled, corrupted, disc_logits)
        return self.add_generator_loss(main, output, batch)

    def add_generator_loss(self, main: Loss, output: RTDOutput, batch: Batch) -> Loss:
        """Add the weighted masked-LM loss to the discriminator's; only report it if frozen."""
        if output.mlm is None:
            return main
        mlm_loss = self.mlm_loss(output.mlm, batch)
        total = main.total
        if self.config.generator_training == "mlm":
            total = main.total + self.config.generator_weight * mlm_loss
        return Loss(total, {"mlm": mlm_loss.detach(), **main.parts})

    def predict(self, batch: Batch, rng: torch.Generator | None = None) -> RTDOutput:
        """Run both networks and keep the generator's logits, for metrics and for people."""
        generated = self.generate(batch, rng, keep_logits=True)
        disc_logits = self.discriminator(
            generated.corrupted.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
        )
        return RTDOutput(*generated, disc_logits)

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        output = self.predict(batch, rng)
        is_replaced = output.corrupted.is_replaced
        weights = self.token_weights(output.masked, batch)
        sums = self.generator_sums(output.mlm, output.masked)
        sums["rtd_loss"] = sum_and_count(rtd_token_loss(output.disc_logits, is_replaced), weights)
        return MetricSums(sums, rtd_histogram(output.disc_logits, is_replaced, weights))

    def token_weights(self, masked: Masked, batch: Batch) -> Tensor:
        """Return [B, T] how often each token is scored: once, or as often as it was drawn."""
        if self.config.scored == "all":
            return batch.attention_mask
        draws = torch.zeros_like(batch.input_ids)
        return draws.scatter_add_(1, masked.positions, masked.scored.long())

    def scored_in_step(self, batch: Batch) -> Tensor:
        """Count the scored tokens of the whole step."""
        if self.config.scored == "all":
            return batch.step_lengths.sum()
        return self.masked_in_step(batch)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": self.discriminator, **self.generators()}


def rtd_token_loss(disc_logits: Tensor, is_replaced: Tensor) -> Tensor:
    """Return the binary cross-entropy [B, T] of each token."""
    return F.binary_cross_entropy_with_logits(
        disc_logits.float(), is_replaced.float(), reduction="none"
    )
