"""Choose positions, mask them, replace them by samples.

Every function has static shapes (a row predicts at `P` positions, of which the first `count` are
scored) and reads nothing back from the device, so that a whole step can be captured as one graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.objectives.masking import Masking
from electra.objectives.vocabulary import Vocabulary


class Masked(NamedTuple):
    """What the generator reads, and what it must predict."""

    input_ids: Tensor  # [B, T] with most chosen tokens masked
    positions: Tensor  # [B, P] the chosen positions
    labels: Tensor  # [B, P] the original tokens there
    scored: Tensor  # [B, P] bool: short rows choose fewer than P
    distinct: bool  # no position of a row is chosen twice


class Corrupted(NamedTuple):
    """What the discriminator reads, and what it must predict."""

    input_ids: Tensor  # [B, T]
    is_replaced: Tensor  # [B, T] bool


class Corruption(nn.Module):
    """Masks tokens and replaces them, by the functions below.

    It is a module, without any state, so that a faster class can take its place.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def mask(
        self,
        batch: Batch,
        masking: Masking,
        rng: torch.Generator | None,
        *,
        unigrams: Tensor | None = None,
        rate: Tensor | None = None,
    ) -> Masked:
        """Choose positions and mask most of them, as `mask_tokens` does."""
        return mask_tokens(batch, masking, self.vocabulary, rng, unigrams=unigrams, rate=rate)

    def replace(self, input_ids: Tensor, masked: Masked, sampled: Tensor) -> Corrupted:
        """Put the samples into the original text, as `replace_tokens` does."""
        return replace_tokens(input_ids, masked, sampled)


def masked_counts(
    lengths: Tensor, masking: Masking, *, length: int, rate: Tensor | None = None
) -> Tensor:
    """Return how many positions each row predicts, at the masking's rate or at `rate`, a scalar.

    A function of the row's length alone, so that every process knows the step's sum. Reference
    code: round(rate · n), n counting [CLS] and [SEP], at least one, at most
    `masking.max_predictions`. The last bound (three tokens of a row are special) matters only for
    rates far above the published ones.
    """
    wanted = torch.round(lengths * (masking.rate if rate is None else rate)).long()
    most = masking.max_predictions(length)
    return torch.minimum(wanted.clamp(1, most), (lengths - 3).clamp(min=1))


def mask_tokens(
    batch: Batch,
    masking: Masking,
    vocabulary: Vocabulary,
    rng: torch.Generator | None,
    *,
    unigrams: Tensor | None = None,
    rate: Tensor | None = None,
) -> Masked:
    """Choose positions and mask most of them; the rest keep their token, or get a random one."""
    input_ids = batch.input_ids
    positions, scored = choose_positions(
        batch, masking, vocabulary, rng, unigrams=unigrams, rate=rate
    )
    coin = torch.rand(positions.shape, device=input_ids.device, generator=rng)
    is_masked = scored & (coin < 1 - masking.keep - masking.random)
    masked_ids = torch.where(anywhere(positions, is_masked, input_ids), vocabulary.mask, input_ids)
    if masking.random:
        is_random = scored & (coin >= 1 - masking.random)
        tokens = torch.randint(
            vocabulary.size, positions.shape, device=input_ids.device, generator=rng
        )
        random_ids = torch.zeros_like(masked_ids).scatter_reduce_(
            1, positions, tokens * is_random, "amax"
        )
        masked_ids = torch.where(anywhere(positions, is_random, input_ids), random_ids, masked_ids)
    labels = input_ids.gather(1, positions)
    return Masked(masked_ids, positions, labels, scored, distinct=masking.draws == "distinct")


def choose_positions(
    batch: Batch,
    masking: Masking,
    vocabulary: Vocabulary,
    rng: torch.Generator | None,
    *,
    unigrams: Tensor | None = None,
    rate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return positions [B, P] of ordinary tokens, and which of them are scored.

    Special tokens and padding are never chosen. To prefer rare words needs `unigrams` [V]: a token
    weighs one over the root of its frequency, half as much as would make every entry of the
    vocabulary come up equally often.
    """
    length = batch.input_ids.shape[1]
    candidates = batch.attention_mask
    for special in (vocabulary.cls, vocabulary.sep, vocabulary.mask):
        candidates = candidates & (batch.input_ids != special)
    weights = candidates.float()
    if masking.prefer == "rare":
        assert unigrams is not None
        weights = weights * unigrams[batch.input_ids].rsqrt()
    most = masking.max_predictions(length)
    if masking.draws == "distinct":
        positions = draw_distinct(candidates, weights, masking, most, rng)
    else:
        positions = torch.multinomial(weights, most, replacement=True, generator=rng)
    counts = masked_counts(batch.lengths, masking, length=length, rate=rate)
    scored = torch.arange(most, device=batch.input_ids.device) < counts[:, None]
    return positions, scored


def draw_distinct(
    candidates: Tensor,
    weights: Tensor,
    masking: Masking,
    count: int,
    rng: torch.Generator | None,
) -> Tensor:
    """Draw `count` positions of each row without replacement, by ranking random keys.

    Drawing with replacement would mask some tokens twice and so too few (13.8 % of 128, not 15 %).
    """
    keys = torch.rand(candidates.shape, device=candidates.device, generator=rng)
    if masking.prefer == "rare":
        # The largest u^(1/w) are a weighted draw; by their logarithms, since so near to one they
        # would coincide.
        keys = keys.clamp(min=2**-25).log() / weights
    return torch.where(candidates, keys, -math.inf).topk(count, dim=1).indices


def replace_tokens(input_ids: Tensor, masked: Masked, sampled: Tensor) -> Corrupted:
    """Put the samples into the original text. A sample equal to the original is not replaced.

    Two draws of one position (official masking only) leave the mean of their ids there, whatever
    token that is: a bug its authors know of, kept because published numbers were made with it.
    """
    if masked.distinct:
        tokens = torch.where(masked.scored, sampled, masked.labels)
        corrupted = input_ids.scatter(1, masked.positions, tokens)
        return Corrupted(corrupted, corrupted != input_ids)
    draws = torch.zeros_like(input_ids).scatter_add_(1, masked.positions, masked.scored.long())
    total = torch.zeros_like(input_ids).scatter_add_(1, masked.positions, sampled * masked.scored)
    corrupted = torch.where(draws > 0, total // draws.clamp(min=1), input_ids)
    return Corrupted(corrupted, corrupted != input_ids)


def anywhere(positions: Tensor, which: Tensor, like: Tensor) -> Tensor:
    """Return [B, T], true at every position that some chosen draw names."""
    return torch.zeros_like(like).scatter_reduce_(1, positions, which.long(), "amax").bool()
