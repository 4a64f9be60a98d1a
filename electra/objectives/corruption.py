"""Choose positions, mask them, sample replacements, splice them in.

Every function has static shapes (a row predicts at `P` places, of which the first `count` are real)
and reads nothing back from the device, so that a whole step can be captured as one graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.objectives.settings import Masking


class Vocabulary(Protocol):
    """What an objective knows of the words: how many there are, and which are not words."""

    @property
    def size(self) -> int: ...

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Masked(NamedTuple):
    """What the generator reads, and what it must say."""

    input_ids: Tensor  # [B, T] with most chosen tokens hidden
    positions: Tensor  # [B, P] the chosen positions
    originals: Tensor  # [B, P] the tokens that stood there
    scored: Tensor  # [B, P] bool: short rows choose fewer than P
    distinct: bool  # no position of a row is chosen twice


class Corrupted(NamedTuple):
    """What the discriminator reads, and what it must say."""

    input_ids: Tensor  # [B, T]
    replaced: Tensor  # [B, T] bool


def masked_counts(lengths: Tensor, masking: Masking, *, length: int) -> Tensor:
    """How many positions each row predicts: a function of its length alone, so that every process
    knows the step's sum.

    Reference code: round(rate · n), n counting [CLS] and [SEP], at least one, at most
    `masking.most`. The last bound (three of a row are not words) matters only for rates far above
    the published ones.
    """
    wanted = torch.round(lengths * masking.rate).long()
    return torch.minimum(wanted.clamp(1, masking.most(length)), (lengths - 3).clamp(min=1))


def masked_in_step(batch: Batch, masking: Masking) -> Tensor:
    """The predicted positions of the whole step, over all its micro-batches and processes."""
    return masked_counts(batch.step_lengths, masking, length=batch.input_ids.shape[1]).sum()


def mask_tokens(
    batch: Batch,
    masking: Masking,
    vocabulary: Vocabulary,
    rng: torch.Generator | None,
    *,
    unigrams: Tensor | None = None,
) -> Masked:
    """Choose positions and hide most of them: the rest keep their token, or get a random one."""
    positions, scored = choose_positions(batch, masking, vocabulary, rng, unigrams=unigrams)
    coin = torch.rand(positions.shape, device=batch.input_ids.device, generator=rng)
    hidden = scored & (coin < 1 - masking.keep - masking.random)
    input_ids = torch.where(
        anywhere(positions, hidden, batch.input_ids), vocabulary.mask, batch.input_ids
    )
    if masking.random:
        swapped = scored & (coin >= 1 - masking.random)
        words = torch.randint(
            vocabulary.size, positions.shape, device=batch.input_ids.device, generator=rng
        )
        drawn = torch.zeros_like(input_ids).scatter_reduce_(1, positions, words * swapped, "amax")
        input_ids = torch.where(anywhere(positions, swapped, batch.input_ids), drawn, input_ids)
    return Masked(
        input_ids,
        positions,
        batch.input_ids.gather(1, positions),
        scored,
        distinct=masking.draws == "distinct",
    )


def choose_positions(
    batch: Batch,
    masking: Masking,
    vocabulary: Vocabulary,
    rng: torch.Generator | None,
    *,
    unigrams: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Positions [B, P] among the words of each row, and which of them count. Special tokens and
    padding never do.

    To prefer rare words needs `unigrams` [V], how frequent each is: a word weighs one over the root
    of that, half as much as would make every word of the vocabulary come up equally often.
    """
    length = batch.input_ids.shape[1]
    counts = masked_counts(batch.lengths, masking, length=length)
    candidates = batch.attention_mask
    for special in (vocabulary.cls, vocabulary.sep, vocabulary.mask):
        candidates = candidates & (batch.input_ids != special)
    weights = candidates.float()
    if masking.prefer == "rare":
        assert unigrams is not None
        weights = weights * unigrams[batch.input_ids].rsqrt()
    most = masking.most(length)
    if masking.draws == "distinct":
        # Drawing with replacement would mask some tokens twice and so too few (13.8 % of 128, not
        # 15 %); rank instead.
        keys = torch.rand(candidates.shape, device=batch.input_ids.device, generator=rng)
        if masking.prefer == "rare":
            # The largest u^(1/w) are a weighted draw; by their logarithms, since so near to one
            # they would coincide.
            keys = keys.clamp(min=2**-25).log() / weights
        positions = torch.where(candidates, keys, -math.inf).topk(most, dim=1).indices
    else:
        positions = torch.multinomial(weights, most, replacement=True, generator=rng)
    scored = torch.arange(most, device=batch.input_ids.device) < counts[:, None]
    return positions, scored


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    banned: Tensor | None = None,
    rng: torch.Generator | None,
) -> Tensor:
    """One token for each row of logits, by the Gumbel-max trick: −log(−log u) of a uniform u is
    Gumbel. Never the one that is banned there.
    """
    noise = (
        torch.rand(logits.shape, dtype=torch.float32, device=logits.device, generator=rng)
        .log_()
        .neg_()
        .log_()
    )
    keys = (logits.detach().float() / temperature).sub_(noise)
    if banned is not None:
        keys.scatter_(-1, banned.unsqueeze(-1), -math.inf)
    return keys.argmax(dim=-1)


def fill_masks(input_ids: Tensor, masked: Masked, sampled: Tensor) -> Corrupted:
    """Splice the samples into the original text. A token that was guessed right counts as original.

    Two draws of one position (official masking only) leave the mean of their ids there, whatever
    word that is: a bug its authors know of, kept because published numbers were made with it.
    """
    if masked.distinct:
        spliced = input_ids.scatter(
            1, masked.positions, torch.where(masked.scored, sampled, masked.originals)
        )
        return Corrupted(spliced, spliced != input_ids)
    written = torch.zeros_like(input_ids).scatter_add_(1, masked.positions, masked.scored.long())
    total = torch.zeros_like(input_ids).scatter_add_(1, masked.positions, sampled * masked.scored)
    spliced = torch.where(written > 0, total // written.clamp(min=1), input_ids)
    return Corrupted(spliced, spliced != input_ids)


def anywhere(positions: Tensor, which: Tensor, like: Tensor) -> Tensor:
    """[B, T] true at every position that some chosen draw names."""
    return torch.zeros_like(like).scatter_reduce_(1, positions, which.long(), "amax").bool()
