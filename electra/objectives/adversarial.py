"""AdversarialDetection: the generator learns to fool the discriminator instead of to be likely
(paper, section 3.2).

A sample has no derivative, so the gradient is REINFORCE's, of one sample at each masked position:

    R = −log D(x̂) if x̂ is the original, else −log(1 − D(x̂))      the discriminator's loss there, D the chance it gives
                                                                  to "original"
    ∇ E[R] ≈ ∇ log p_G(x̂) · (R − b)                               b = a linear function of the generator's last vector,
                                                                  fitted to R: it takes variance
                                                                  away and adds no bias
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.encoder import initialise_glorot
from electra.model.pair import Generator
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Vocabulary, masked_in_step
from electra.objectives.measures import Loss
from electra.objectives.mlm import word_losses
from electra.objectives.rtd import Play, ReplacedTokenDetection, doubt_losses
from electra.objectives.settings import ReplacedTokenDetectionConfig

# Nothing else learns from the baseline's error, and Adam divides its scale away; but gradients are
# clipped together, and with a weight of 1 it would be most of their norm.
BASELINE_WEIGHT = 0.01


class AdversarialDetection(ReplacedTokenDetection):
    """The discriminator's loss as ever; the generator ascends it. Its masked-LM loss is reported
    and never descended.

    The baseline belongs to this loss: checkpoints hold it, the exported generator does not.
    """

    generator: Generator

    def __init__(
        self,
        config: ReplacedTokenDetectionConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
        self.baseline = nn.Linear(self.generator.encoder.shape.width, 1)
        initialise_glorot(self.baseline)

    def main_loss(self, play: Play, batch: Batch) -> Loss:
        assert play.hidden is not None
        main, scored = super().main_loss(play, batch), play.masked.scored
        rewards = doubt_losses(play).detach().gather(1, play.masked.positions)
        # Detached: what the encoder says of a place is for words, not for how well the
        # discriminator does there.
        expected = self.baseline(play.hidden.detach()).squeeze(-1).float()
        advantages = (rewards - expected.detach()) * scored
        # One more pass over the vocabulary where there are no logits: the first was for the
        # originals.
        fooling = advantages * self.surprises_of_own_words(play)
        count = masked_in_step(batch, self.config.masking)
        reward, error, fooling = (
            each.sum() / count
            for each in (rewards * scored, (rewards - expected).square() * scored, fooling)
        )
        return Loss(
            main.total + self.config.generator_weight * fooling + BASELINE_WEIGHT * error,
            {**main.parts, "reward": reward, "baseline": error.detach()},
        )

    def surprises_of_own_words(self, play: Play) -> Tensor:
        """[B, P] −log p_G(x̂), zero at the places that do not count."""
        own = play.masked._replace(originals=play.sampled)
        if play.guesses is not None:
            return word_losses(play.guesses, own)
        from electra.kernels.linear_cross_entropy import fused_linear_cross_entropy
        from electra.kernels.low_precision import COPIES_ON_PARAMETERS

        assert play.hidden is not None
        predicted = self.generator.transform(play.hidden).flatten(0, 1)
        low = predicted.to(torch.get_autocast_dtype(predicted.device.type))
        losses, _ = fused_linear_cross_entropy(
            low,
            self.generator.table,
            self.generator.bias,
            play.sampled.flatten(),
            COPIES_ON_PARAMETERS,
        )
        return losses.view_as(play.sampled) * play.masked.scored
