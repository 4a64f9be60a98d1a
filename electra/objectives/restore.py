"""ReplaceMLM and AllTokensMLM: the steps between BERT and ELECTRA (paper, section 3.5).

An encoder reads the text with the generator's replacements and predicts the original tokens: at the
masked positions, or at every one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.encoder import initialise_glorot
from electra.model.families import build_generator, build_masked_lm
from electra.model.memory import LOGITS_CHUNK
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.objectives.generating import Generated, Generating
from electra.objectives.measures import Loss, MetricSums, sum_and_count
from electra.objectives.mlm import mlm_forward
from electra.objectives.settings import AllTokensMLMConfig, ReplaceMLMConfig
from electra.objectives.vocabulary import Vocabulary


class Restoring(Generating):
    """What the two have in common: an encoder with a masked LM's head beside the generator."""

    config: ReplaceMLMConfig | AllTokensMLMConfig

    def __init__(
        self,
        config: ReplaceMLMConfig | AllTokensMLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        main = build_masked_lm(encoder, vocabulary=vocabulary.size)
        generator = build_generator(config.generator, beside=main.encoder)
        super().__init__(config, generator, vocabulary=vocabulary, unigrams=unigrams)
        self.encoder = main

    def add_losses(self, restore: Tensor, generated: Generated, batch: Batch) -> Loss:
        """Add the encoder's weighted loss and the generator's, where that is a network."""
        total = self.config.encoder_weight * restore
        parts = {"restore": restore.detach()}
        if generated.mlm is None:
            return Loss(total, parts)
        mlm_loss = self.mlm_loss(generated.mlm, batch)
        total = total + self.config.generator_weight * mlm_loss
        return Loss(total, {"mlm": mlm_loss.detach(), **parts})

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder, **self.generators()}


class ReplaceMLM(Restoring):
    """BERT's loss at the masked positions, where the encoder reads replacements, never a [MASK]."""

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        generated = self.generate(batch, rng)
        corrupted = generated.masked._replace(input_ids=generated.corrupted.input_ids)
        output = mlm_forward(self.encoder, batch, corrupted)
        restore_loss = output.token_loss.sum() / self.masked_in_step(batch)
        return self.add_losses(restore_loss, generated, batch)

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        generated = self.generate(batch, rng, keep_logits=True)
        masked, input_ids = generated.masked, generated.corrupted.input_ids
        corrupted = masked._replace(input_ids=input_ids)
        output = mlm_forward(self.encoder, batch, corrupted, keep_logits=True)
        assert output.logits is not None
        sums = self.generator_sums(generated.mlm, masked)
        sums |= restore_sums(
            output.token_loss,
            output.logits.argmax(-1),
            read=input_ids.gather(1, masked.positions),
            labels=masked.labels,
            scored=masked.scored,
            unigrams=self.unigrams,
        )
        return MetricSums(sums)


class AllTokensMLM(Restoring):
    """p(x) = D·1[x = the token read] + (1 − D)·softmax(…)ₓ at every token; D is a copy gate.

    The gate belongs to this loss: checkpoints hold it, the exported encoder, a plain masked LM,
    does not.
    """

    def __init__(
        self,
        config: AllTokensMLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
        self.gate = nn.Linear(encoder.width, 1)
        initialise_glorot(self.gate)

    def encode(self, input_ids: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return predicted embeddings [B·T, E] and gate logits [B, T]: above zero means "copy"."""
        hidden = self.encoder.encoder(
            input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
        )
        predicted = self.encoder.transform(hidden).flatten(0, 1)
        return predicted, self.gate(hidden).squeeze(-1).float()

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        generated = self.generate(batch, rng)
        predicted, gates = self.encode(generated.corrupted.input_ids, batch)
        token_loss = self.encoder.token_loss(predicted, batch.input_ids.flatten())
        losses = mixture_loss(
            token_loss.view_as(batch.input_ids), gates, is_kept=~generated.corrupted.is_replaced
        )
        restore_loss = (losses * batch.attention_mask).sum() / batch.step_lengths.sum()
        return self.add_losses(restore_loss, generated, batch)

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        generated = self.generate(batch, rng, keep_logits=True)
        input_ids = generated.corrupted.input_ids
        predicted, gates = self.encode(input_ids, batch)
        losses, tokens = [], []
        for start in range(0, len(predicted), LOGITS_CHUNK):
            rows = slice(start, start + LOGITS_CHUNK)
            logits = self.encoder.lm_logits(predicted[rows])
            log_probs = mixture(logits, gates.flatten()[rows], input_ids.flatten()[rows])
            labels = batch.input_ids.flatten()[rows, None]
            losses.append(-log_probs.gather(1, labels).squeeze(1))
            tokens.append(log_probs.argmax(-1))
        sums = self.generator_sums(generated.mlm, generated.masked)
        sums |= restore_sums(
            torch.cat(losses).view_as(input_ids),
            torch.cat(tokens).view_as(input_ids),
            read=input_ids,
            labels=batch.input_ids,
            scored=batch.attention_mask,
            unigrams=self.unigrams,
        )
        return MetricSums(sums)


def mixture_loss(token_loss: Tensor, gates: Tensor, *, is_kept: Tensor) -> Tensor:
    """Return −log p(original) of the mixture, from −log softmax(…) of it.

    The gate helps where the original was kept. Computed in logarithms throughout: a gate that is
    sure either way rounds D or 1 − D to zero.
    """
    generated = F.logsigmoid(-gates) - token_loss
    return -torch.where(is_kept, torch.logaddexp(F.logsigmoid(gates), generated), generated)


def mixture(logits: Tensor, gates: Tensor, read: Tensor) -> Tensor:
    """Return log p [N, V], the whole distribution of some rows, for metrics."""
    generated = F.logsigmoid(-gates)[:, None] + logits.float().log_softmax(-1)
    copied = torch.logaddexp(F.logsigmoid(gates)[:, None], generated.gather(1, read[:, None]))
    return generated.scatter(1, read[:, None], copied)


def restore_sums(
    losses: Tensor,
    tokens: Tensor,
    *,
    read: Tensor,
    labels: Tensor,
    scored: Tensor,
    unigrams: Tensor,
) -> dict[str, Tensor]:
    """Return loss and accuracy of the predicted tokens, and their baselines.

    The baseline copies the token it reads, as sure of it as the batch's fraction of kept tokens
    warrants, and otherwise knows only how frequent each token is.
    """
    is_kept = read == labels
    fraction = (is_kept & scored).sum() / scored.sum()
    baseline_loss = -(fraction * is_kept + (1 - fraction) * unigrams[labels]).log()
    return {
        "restore_loss": sum_and_count(losses, scored),
        "restore_accuracy": sum_and_count(tokens == labels, scored),
        "baseline_restore_loss": sum_and_count(baseline_loss, scored),
        "baseline_restore_accuracy": sum_and_count(is_kept, scored),
    }
