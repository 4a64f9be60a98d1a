"""Masking and splicing, one kernel each, of draws that are distinct and uniform.

A draw's place is its key's rank, and every position counts for itself how many keys come first:

    place(t) = #{s: key(s) > key(t), or key(s) = key(t) and s < t}

Candidates have their random keys, everything else a key below all of those. So the places of a row
are a permutation, and no two positions write the same draw. The random numbers are those of
`electra.objectives.corruption`, drawn by the same calls in the same order, and so are the results;
only equal keys may come in another order there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.data.batches import Batch
from electra.objectives.corruption import Corrupted, Masked
from electra.objectives.masking import Masking
from electra.objectives.vocabulary import Vocabulary

MAX_LENGTH = 512  # of rows: every position looks at every other
BLOCK = 64  # positions of a program, and how many others it looks at together


def can_mask(masking: Masking, *, length: int) -> bool:
    """Return whether the kernel masks rows of `length` tokens in this way."""
    is_common = masking.draws == "distinct" and masking.prefer == "uniform"
    return is_common and masking.max_predictions(length) <= length <= MAX_LENGTH


def can_replace(masked: Masked) -> bool:
    """Return whether the kernel puts samples at these positions."""
    return masked.distinct and masked.input_ids.shape[1] <= MAX_LENGTH


def fused_mask_tokens(
    batch: Batch,
    masking: Masking,
    vocabulary: Vocabulary,
    rng: torch.Generator | None,
    *,
    rate: Tensor | None = None,
) -> Masked:
    """Choose positions and mask most of them; the rest keep their token, or get a random one."""
    input_ids, device = batch.input_ids.contiguous(), batch.input_ids.device
    (rows, length), most = input_ids.shape, masking.max_predictions(batch.input_ids.shape[1])
    keys = torch.rand(rows, length, device=device, generator=rng)
    coin, tokens = torch.rand(rows, most, device=device, generator=rng), None
    if masking.random:
        tokens = torch.randint(vocabulary.size, (rows, most), device=device, generator=rng)
    masked_ids, positions = torch.empty_like(input_ids), input_ids.new_empty(rows, most)
    labels, scored = torch.empty_like(positions), torch.empty_like(positions, dtype=torch.bool)
    mask_forward[grid(input_ids)](
        *(input_ids, batch.lengths.contiguous(), keys, coin, tokens),
        *(masked_ids, positions, labels, scored),
        *(masking.rate if rate is None else rate, 1 - masking.keep - masking.random),
        *(1 - masking.random, vocabulary.cls, vocabulary.sep, vocabulary.mask),
        *(length, most),
        RATE_TENSOR=rate is not None,
        RANDOM=tokens is not None,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return Masked(masked_ids, positions, labels, scored, distinct=True)


def fused_replace_tokens(input_ids: Tensor, masked: Masked, sampled: Tensor) -> Corrupted:
    """Put the samples into the original text. A sample equal to the original is not replaced."""
    input_ids, positions = input_ids.contiguous(), masked.positions.contiguous()
    corrupted = torch.empty_like(input_ids)
    is_replaced = torch.empty_like(input_ids, dtype=torch.bool)
    replace_forward[grid(input_ids)](
        *(input_ids, positions, masked.scored.contiguous(), sampled.contiguous()),
        *(corrupted, is_replaced, input_ids.shape[1], positions.shape[1]),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return Corrupted(corrupted, is_replaced)


def grid(input_ids: Tensor) -> tuple[int, int]:
    """Return how many programs there are: rows, and blocks of a row."""
    rows, length = input_ids.shape
    return rows, triton.cdiv(length, BLOCK)


@triton.jit
def mask_forward(
    input_ids,
    lengths,
    keys,
    coin,
    tokens,
    masked_ids,
    positions,
    labels,
    scored,
    rate,
    masked_below,
    random_from,
    cls_id,
    sep_id,
    mask_id,
    length,
    most,
    RATE_TENSOR: tl.constexpr,
    RANDOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the masked tokens of one block of a row, and the draws that chose them."""
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, real_tokens = own < length, tl.load(lengths + row)
    text, text_keys = input_ids + row * length, keys + row * length
    specials = (cls_id, sep_id, mask_id)
    token, own_key = load_keys(text, text_keys, own, length, real_tokens, specials)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, length, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, other_key = load_keys(text, text_keys, other, length, real_tokens, specials)
        is_larger = other_key[None, :] > own_key[:, None]
        is_earlier = (other_key[None, :] == own_key[:, None]) & (other[None, :] < own[:, None])
        place += tl.sum((is_larger | is_earlier).to(tl.int32), axis=1)
    if RATE_TENSOR:
        rate = tl.load(rate)
    is_chosen = inside & (place < most)
    is_scored = is_chosen & is_within_count(place, real_tokens, rate)
    draw = row * most + place
    tossed = tl.load(coin + draw, mask=is_chosen, other=1.0)
    new_token = tl.where(is_scored & (tossed < masked_below), mask_id, token)
    if RANDOM:
        random_token = tl.load(tokens + draw, mask=is_chosen, other=0)
        new_token = tl.where(is_scored & (tossed >= random_from), random_token, new_token)
    tl.store(masked_ids + row * length + own, new_token, mask=inside)
    tl.store(positions + draw, own, mask=is_chosen)
    tl.store(labels + draw, token, mask=is_chosen)
    tl.store(scored + draw, is_scored, mask=is_chosen)


@triton.jit
def load_keys(text, text_keys, position, length, real_tokens, specials):
    """Load tokens and keys at some positions of a row: −1 where a token is no candidate, and −2
    beyond the row.
    """
    cls_id, sep_id, mask_id = specials
    inside = position < length
    token = tl.load(text + position, mask=inside, other=0)
    is_word = (token != cls_id) & (token != sep_id) & (token != mask_id)
    key = tl.load(text_keys + position, mask=inside, other=0.0)
    key = tl.where(is_word & (position < real_tokens), key, -1.0)
    return token, tl.where(inside, key, -2.0)


@triton.jit
def is_within_count(place, real_tokens, rate):
    """Return whether the draws at these places are scored, as `masked_counts` has it.

    The product is rounded half to even by comparisons alone. An addition would become one
    instruction with the product, and read it before it is rounded to float32.
    """
    wanted, half_above = real_tokens.to(tl.float32) * rate, place + 0.5
    is_rounded_up = (wanted == half_above) & (place % 2 == 1)
    is_wanted = (wanted > half_above) | is_rounded_up
    return (place == 0) | (is_wanted & (place < real_tokens - 3))


@triton.jit
def replace_forward(
    input_ids,
    positions,
    scored,
    sampled,
    corrupted,
    is_replaced,
    length,
    most,
    BLOCK: tl.constexpr,
):
    """Write one block of a row, with the samples of the draws that chose its positions."""
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, offset = own < length, row * length + own
    token = tl.load(input_ids + offset, mask=inside, other=0)
    change = tl.zeros_like(token)
    for start in range(0, most, BLOCK):
        place = start + tl.arange(0, BLOCK)
        draw = row * most + place
        is_scored = tl.load(scored + draw, mask=place < most, other=0) != 0
        position = tl.load(positions + draw, mask=is_scored, other=-1)
        sample = tl.load(sampled + draw, mask=is_scored, other=0)
        is_here = position[None, :] == own[:, None]  # at most one draw of a row is
        change += tl.sum(tl.where(is_here, sample[None, :] - token[:, None], 0), axis=1)
    tl.store(corrupted + offset, token + change, mask=inside)
    tl.store(is_replaced + offset, change != 0, mask=inside)
