"""The discriminator as a masked language model: how likely each word is, by both networks.

    p(x | context) ∝ p_G(x) · D(x) / (a · (1 − D(x)) + p_G(x)),    a = (1 − r) / r

D(x) is the discriminator's probability that x is the original when it stands there, p_G the
generator's when the position is masked, r the fraction of positions that was masked in training.
The paper scores the generator's best hundred words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.networks import Discriminator, Generator

TOP = 100


class Cloze(NamedTuple):
    """Candidates for one position in each row, best first."""

    token_ids: Tensor  # [B, top]
    probs: Tensor  # [B, top] that add up to one
    generator_probs: Tensor  # [B, top] the generator's own, over the whole vocabulary


@torch.no_grad()
def cloze(
    generator: Generator,
    discriminator: Discriminator,
    batch: Batch,
    positions: Tensor,
    *,
    mask: int,
    mask_rate: float = 0.15,
    top: int = TOP,
) -> Cloze:
    """Rank what may stand at `positions` [B]; both networks are in eval mode.

    The discriminator reads every row `top` times.
    """
    at = positions[:, None]
    masked_ids = batch.input_ids.scatter(1, at, mask)
    logits = generator(masked_ids, batch.token_type_ids, batch.attention_mask, at)
    probs = logits[:, 0].float().softmax(-1)  # [B, V]
    likely = probs.topk(min(top, probs.shape[-1]), dim=-1)
    count = likely.indices.shape[1]
    repeated_at = at.repeat_interleave(count, dim=0)
    rows = batch.input_ids.repeat_interleave(count, dim=0)
    rows = rows.scatter(1, repeated_at, likely.indices.reshape(-1, 1))
    token_type_ids = batch.token_type_ids.repeat_interleave(count, dim=0)
    attention_mask = batch.attention_mask.repeat_interleave(count, dim=0)
    disc_logits = discriminator(rows, token_type_ids, attention_mask)
    disc_logits = disc_logits.gather(1, repeated_at).view_as(likely.values)
    original = torch.sigmoid(-disc_logits.float())  # a positive logit says "replaced"
    odds = (1 - mask_rate) / mask_rate
    weights = likely.values * original / (odds * (1 - original) + likely.values)
    ranked, order = (weights / weights.sum(-1, keepdim=True)).sort(dim=-1, descending=True)
    return Cloze(likely.indices.gather(1, order), ranked, likely.values.gather(1, order))
