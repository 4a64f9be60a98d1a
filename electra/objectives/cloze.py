"""The discriminator as a masked language model: how likely each word is at a place, by both
networks together.

    p(x | context) ∝ p_G(x) · D(x) / (a · (1 − D(x)) + p_G(x)),    a = (1 − r) / r

D(x) is the discriminator's probability that x is the original when it stands there, p_G the
generator's when the place is masked, r the share of positions that was masked in training. The
paper scores the generator's best hundred words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.pair import Discriminator, Generator

TOP = 100


class Cloze(NamedTuple):
    """Candidates for one place in each row, best first."""

    words: Tensor  # [B, top] ids
    probabilities: Tensor  # [B, top] that add up to one
    generator: Tensor  # [B, top] the generator's own, over the whole vocabulary


@torch.no_grad()
def cloze(
    generator: Generator,
    discriminator: Discriminator,
    batch: Batch,
    places: Tensor,
    *,
    mask: int,
    mask_rate: float = 0.15,
    top: int = TOP,
) -> Cloze:
    """What may stand at `places` [B]; networks in eval mode. The discriminator reads every row
    `top` times.
    """
    at = places[:, None]
    hidden = batch.input_ids.scatter(1, at, mask)
    chances = (
        generator(hidden, batch.token_type_ids, batch.attention_mask, at)[:, 0].float().softmax(-1)
    )  # [B, V]
    likely = chances.topk(min(top, chances.shape[-1]), dim=-1)
    count = likely.indices.shape[1]
    rows = batch.input_ids.repeat_interleave(count, dim=0).scatter(
        1, at.repeat_interleave(count, dim=0), likely.indices.reshape(-1, 1)
    )
    token_type_ids, attention_mask = (
        each.repeat_interleave(count, dim=0)
        for each in (batch.token_type_ids, batch.attention_mask)
    )
    doubts = (
        discriminator(rows, token_type_ids, attention_mask)
        .gather(1, at.repeat_interleave(count, dim=0))
        .view_as(likely.values)
    )
    original = torch.sigmoid(-doubts.float())  # a positive logit says "replaced"
    odds = (1 - mask_rate) / mask_rate
    weights = likely.values * original / (odds * (1 - original) + likely.values)
    probabilities, order = (weights / weights.sum(-1, keepdim=True)).sort(dim=-1, descending=True)
    return Cloze(likely.indices.gather(1, order), probabilities, likely.values.gather(1, order))
