"""Proof that a model folder holds the network it was written from: stock transformers' logits."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.model.family import ExportedNetwork
from electra.model.shape import EncoderShape

MAX_LENGTH = 512  # of the rows that are compared
Inputs = dict[str, Tensor]  # input_ids, token_type_ids and attention_mask, as transformers has them


def verify(network: ExportedNetwork, folder: Path, *, tolerance: float = 1e-4) -> float:
    """Return the largest difference between our logits and transformers' from this folder.

    Raise RuntimeError where it is more than rounding. The rows are random and padded.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    assert network.architecture is not None
    stock_class = getattr(transformers, network.architecture)
    stock = stock_class.from_pretrained(folder, local_files_only=True).eval()
    ours: Any = copy.deepcopy(network)
    ours = ours.to("cpu", torch.float32).eval()
    inputs = random_rows(network, length=proof_length(network.encoder.shape))
    with torch.no_grad():
        theirs = stock_logits(stock, inputs)
    difference, allowed = compare_logits(ours, inputs, theirs, tolerance=tolerance)
    if not difference <= allowed:
        raise RuntimeError(
            f"{folder}: transformers computes other logits from this folder than the network that "
            f"was saved, by up to {difference:.1e} (up to {allowed:.1e} would be rounding)"
        )
    return difference


def compare_logits(
    network: ExportedNetwork, inputs: Inputs, theirs: Tensor, *, tolerance: float = 1e-4
) -> tuple[float, float]:
    """Return the largest difference of other logits from a network's, and what rounding allows."""
    attention_mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        logits = network.logits(inputs["input_ids"], inputs["token_type_ids"], attention_mask)
    if theirs.ndim > logits.ndim:  # our one logit of two labels
        theirs = theirs[..., 1] - theirs[..., 0]
    differences = (logits - theirs).abs()
    if differences.shape[:2] == attention_mask.shape:
        differences = differences[attention_mask]  # the two may disagree on padding
    # Rounding grows with what is rounded, and a trained generator's logits reach 20.
    allowed = tolerance * max(1.0, theirs.abs().max().item())
    return float(differences.max()), allowed


def proof_length(shape: EncoderShape) -> int:
    """Return how long rows must be for a window to hide something; a very wide one would take
    minutes.
    """
    if shape.local_attention is None or shape.global_every == 1:
        return 64
    return max(64, min(shape.local_attention, MAX_LENGTH))


def random_rows(network: ExportedNetwork, *, rows: int = 2, length: int = 64) -> Inputs:
    """Return rows of random tokens, all but the first half as long as that one."""
    length = min(length, network.encoder.shape.positions)
    rng = torch.Generator().manual_seed(0)
    input_ids = torch.randint(network.encoder.vocabulary, (rows, length), generator=rng)
    positions = torch.arange(length)
    lengths = torch.full((rows, 1), max(1, length // 2))
    lengths[0] = length
    return {
        "input_ids": input_ids,
        "token_type_ids": (positions > length // 2).long().expand_as(input_ids),
        "attention_mask": (positions < lengths).long(),
    }


def stock_logits(stock: Any, inputs: Inputs) -> Tensor:
    """Return the logits of a transformers model, in the form that its class takes rows."""
    architecture = type(stock).__name__
    accepted = inspect.signature(stock.forward).parameters  # ModernBERT has no token types
    inputs = {name: tensor for name, tensor in inputs.items() if name in accepted}
    if architecture.endswith("ForMultipleChoice"):  # the rows are the choices of one question
        output = stock(**{name: tensor[None] for name, tensor in inputs.items()})
        return output.logits  # type: ignore[no-any-return]
    output = stock(**inputs)
    if architecture.endswith("ForQuestionAnswering"):
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.logits  # type: ignore[no-any-return]
