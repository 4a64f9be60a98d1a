"""Bytes and JSON values go from process to process; test_distributed.py has several of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from electra.engine.collectives import (
    all_gather_bytes,
    all_gather_json,
    as_bytes,
    as_tensor,
    broadcast_bytes,
    broadcast_json,
)
from electra.engine.distributed import World, wrap_module


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("data", [b"", b"\0", b"weights\xff\0"])
def test_bytes_arrive_as_they_were_sent_empty_ones_too(data: bytes) -> None:
    assert all_gather_bytes(data) == [data]
    assert broadcast_bytes(data) == data


def test_bytes_are_padded_to_the_longest_and_cut_again() -> None:
    tensor = as_tensor(b"ab", 5)
    assert tensor.tolist() == [97, 98, 0, 0, 0]
    assert as_bytes(tensor, 2) == b"ab"


@pytest.mark.parametrize("value", [None, 1, 0.1, "größer", [1, [2, None]], {"a": {"b": True}}])
def test_json_values_arrive_as_they_were_sent(value: object) -> None:
    assert all_gather_json(value) == [value]
    assert broadcast_json(value) == value


def test_what_json_does_not_have_is_not_sent() -> None:
    with pytest.raises(TypeError):
        broadcast_json(object())


def test_ddp_gives_no_advice_against_a_setting_that_resuming_needs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    world = World(rank=0, size=2, device=torch.device("cpu"))  # size one would not be wrapped
    wrapped = wrap_module(nn.LayerNorm(3), world, compiled=False)
    wrapped(torch.ones(3)).sum().backward()
    assert capfd.readouterr().err == ""
