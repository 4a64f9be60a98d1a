"""What every objective with a generator has in common: mask, generate, sample, replace."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.networks import Generator
from electra.model.sampling import Sampling, sample
from electra.objectives.corruption import Corrupted, Masked
from electra.objectives.masking_objective import MaskingObjective
from electra.objectives.measures import sum_and_count
from electra.objectives.mlm import MLMOutput, mlm_forward, mlm_sums
from electra.objectives.settings import GeneratingConfig
from electra.objectives.vocabulary import Vocabulary


class Generated(NamedTuple):
    """A batch after the generator has replaced its masked tokens."""

    masked: Masked
    mlm: MLMOutput | None  # the generator's output, where it is a network
    sampled: Tensor  # [B, P] the sampled tokens
    corrupted: Corrupted


class Generating(MaskingObjective):
    """A generator learns to predict masked tokens; its samples make what a main network reads.

    Samples carry no gradient: the main network's loss reaches the generator only through what the
    two share.
    """

    noise: Tensor  # [V] the distribution that replacements without a generator network come from

    def __init__(
        self,
        config: GeneratingConfig,
        generator: Generator | None,
        *,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(config.masking, vocabulary=vocabulary, unigrams=unigrams)
        self.config, self.generator = config, generator
        self.sampling = Sampling(
            temperature=config.temperature, disallow_correct=config.disallow_correct
        )
        specials = [
            vocabulary.pad,
            vocabulary.unk,
            vocabulary.cls,
            vocabulary.sep,
            vocabulary.mask,
        ]
        noise = torch.ones_like(unigrams)
        if config.generator.kind == "unigram":
            noise = unigrams
        noise = noise.index_fill(0, torch.tensor(specials), 0.0)
        self.register_buffer("noise", noise, persistent=False)

    def generate(
        self, batch: Batch, rng: torch.Generator | None = None, *, keep_logits: bool = False
    ) -> Generated:
        """Mask tokens, run the generator, and put its samples into the text."""
        masked = self.mask(batch, rng)
        mlm, sampled = self.run_generator(batch, masked, rng, keep_logits=keep_logits)
        corrupted = self.corruption.replace(batch.input_ids, masked, sampled)
        return Generated(masked, mlm, sampled, corrupted)

    def run_generator(
        self,
        batch: Batch,
        masked: Masked,
        rng: torch.Generator | None,
        *,
        keep_logits: bool = False,
    ) -> tuple[MLMOutput | None, Tensor]:
        """Return the generator's output, where it is a network, and sampled tokens [B, P]."""
        if self.generator is None:
            return None, self.sample_noise(masked, rng)
        mlm = mlm_forward(
            self.generator, batch, masked, rng, sampling=self.sampling, keep_logits=keep_logits
        )
        assert mlm.sampled is not None
        return mlm, mlm.sampled

    def sample_noise(self, masked: Masked, rng: torch.Generator | None) -> Tensor:
        """Sample replacements [B, P] that ignore the context: unigrams, or a uniform choice."""
        if self.config.disallow_correct:  # one distribution for each position, not one for all
            logits = self.noise.log().expand(*masked.positions.shape, -1)
            return sample(logits, banned=masked.labels, rng=rng)
        count = masked.positions.numel()
        drawn = torch.multinomial(self.noise, count, replacement=True, generator=rng)
        return drawn.view_as(masked.positions)

    def mlm_loss(self, mlm: MLMOutput, batch: Batch) -> Tensor:
        """Return the generator's loss: a mean over the masked tokens of the whole step."""
        return mlm.token_loss.sum() / self.masked_in_step(batch)

    def generator_sums(self, mlm: MLMOutput | None, masked: Masked) -> dict[str, Tensor]:
        """Return the generator's masked-LM metrics and its entropy; none where it is no network."""
        if mlm is None or mlm.logits is None:
            return {}
        sums = mlm_sums(mlm.logits, masked, self.unigrams)
        sums["generator_entropy"] = sum_and_count(entropies(mlm.logits), masked.scored)
        return sums

    def generators(self) -> dict[str, Generator]:
        """Return the generator under the name it is exported by, where it is a network."""
        if self.generator is None:
            return {}
        return {"generator": self.generator}


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy [...] in nats of the distributions that logits [..., V] describe."""
    log_probs = logits.float().log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)
