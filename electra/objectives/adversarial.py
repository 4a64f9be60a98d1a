"""AdversarialDetection: the generator learns to fool the discriminator (paper, section 3.2).

A sample has no derivative, so the gradient is REINFORCE's, of one sample at each masked position:

    R = −log D(x̂) if x̂ is the original, else −log(1 − D(x̂))    the discriminator's loss there,
                                                                D the probability of "original"
    ∇ E[R] ≈ ∇ log p_G(x̂) · (R − b)                             b = a linear function of the
                                                                generator's last hidden state,
                                                                fitted to R

The reward baseline b takes variance away and adds no bias.
"""

from __future__ import annotations

from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.encoder import initialise_glorot
from electra.model.networks import Generator
from electra.model.shape import EncoderShape
from electra.objectives.measures import Loss
from electra.objectives.mlm import MLMOutput, mlm_token_loss
from electra.objectives.rtd import ReplacedTokenDetection, RTDOutput, rtd_token_loss
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.objectives.vocabulary import Vocabulary

# Nothing else learns from the baseline's error, and Adam divides its scale away; but gradients are
# clipped together, and with a weight of 1 it would be most of their norm.
BASELINE_WEIGHT = 0.01


class AdversarialDetection(ReplacedTokenDetection):
    """The generator ascends the discriminator's loss; its masked-LM loss is only reported.

    The reward baseline belongs to this loss: checkpoints hold it, the exported generator does not.
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

    def add_generator_loss(self, main: Loss, output: RTDOutput, batch: Batch) -> Loss:
        """Add the REINFORCE loss of the generator and the squared error of its baseline."""
        assert output.mlm is not None
        masked, scored = output.masked, output.masked.scored
        losses = rtd_token_loss(output.disc_logits, output.corrupted.is_replaced)
        rewards = losses.detach().gather(1, masked.positions)
        # Detached: the encoder's states are for words, not for how well the discriminator does.
        expected = self.baseline(output.mlm.hidden_states.detach()).squeeze(-1).float()
        advantages = (rewards - expected.detach()) * scored
        reinforce = advantages * self.sample_nll(output.mlm, output)
        count = self.masked_in_step(batch)
        reward = (rewards * scored).sum() / count
        error = ((rewards - expected).square() * scored).sum() / count
        reinforce = reinforce.sum() / count
        total = main.total + self.config.generator_weight * reinforce + BASELINE_WEIGHT * error
        mlm_loss = self.mlm_loss(output.mlm, batch)
        parts = {"mlm": mlm_loss.detach(), **main.parts}
        return Loss(total, {**parts, "reward": reward, "baseline": error.detach()})

    def sample_nll(self, mlm: MLMOutput, output: RTDOutput) -> Tensor:
        """Return −log p_G(x̂) [B, P] of the sampled tokens; zero where not scored.

        Where there are no logits this is one more pass over the vocabulary: the first was for the
        original tokens.
        """
        sampled = output.masked._replace(labels=output.sampled)
        if mlm.logits is not None:
            return mlm_token_loss(mlm.logits, sampled)
        prediction = self.generator.predict(mlm.hidden_states, output.sampled)
        return prediction.token_loss * output.masked.scored
