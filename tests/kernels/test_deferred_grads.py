"""Gradients that are added up past autograd are those that autograd would have returned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra.kernels import column_sums, deferred_grads, fuse
from electra.kernels.deferred_grads import DeferredGradients, split_sums
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.packing import PackedRows
from electra.model.electra_encoder import ElectraEncoder
from electra.model.encoder import Encoder
from electra.model.modernbert_encoder import ModernBertEncoder
from electra.model.shape import EncoderShape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FAMILIES: dict[str, Any] = {"electra": ElectraEncoder, "modernbert": ModernBertEncoder}


def build(
    family: Any = "electra", *, layers: int = 1, width: int = 16
) -> tuple[Encoder, LowPrecisionCopies]:
    """Return an encoder and the registry of its blocks."""
    torch.manual_seed(0)
    sizes = {"width": width, "feedforward": width, "embedding": width, "positions": 4}
    shape = EncoderShape(family=family, layers=layers, heads=1, **sizes)
    encoder: Encoder = FAMILIES[family](shape, vocabulary=5).to(DEVICE)
    low_precision = fuse(encoder)
    # Embeddings take kernels of their own, and time in an interpreter.
    encoder.embeddings.forward = lambda *ids: encoder.word_embeddings[ids[0]].half()
    low_precision.register([(each, each.detach().half()) for each in encoder.parameters()])
    return encoder, low_precision


def loss_of(encoder: Encoder, *, calls: int = 1, layer: int = -1) -> Tensor:
    """Every time the same random numbers. A second call has other tokens."""
    torch.manual_seed(1)
    loss = torch.zeros((), device=DEVICE)
    for call in range(calls):
        ids = torch.tensor([[1, 2, 3 + call]], device=DEVICE)
        rows = PackedRows.from_mask(torch.ones_like(ids, dtype=torch.bool))
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            states = list(encoder.packed_states(ids, ids, rows))  # type: ignore[operator]
        weights = torch.linspace(-1, 1, states[layer].numel(), device=DEVICE)
        loss = loss + (states[layer].float().view(-1) * weights).sum()
    return loss


def block_parameters(encoder: Encoder) -> list[nn.Parameter]:
    return [each for each in encoder.blocks.parameters() if each.requires_grad]


def autograds_gradients(encoder: Encoder, **options: int) -> tuple[Tensor | None, ...]:
    loss = loss_of(encoder, **options)
    return torch.autograd.grad(loss, block_parameters(encoder), allow_unused=True)


def deferred_gradients(
    encoder: Encoder,
    low_precision: LowPrecisionCopies,
    targets: Iterable[tuple[Tensor, Tensor]] = (),
    **options: int,
) -> list[Tensor | None]:
    with low_precision.defer_gradients(targets) as deferred:
        gradients = autograds_gradients(encoder, **options)
    return deferred.merge_into(block_parameters(encoder), gradients)


def assert_same(ours: list[Tensor | None], autograds: tuple[Tensor | None, ...]) -> None:
    for our, expected in zip(ours, autograds, strict=True):
        if our is None or expected is None:
            assert our is expected
        else:
            assert our.equal(expected)


@pytest.mark.parametrize(
    ("family", "layers", "calls", "layer"),
    [
        ("electra", 1, 2, -1),
        pytest.param("electra", 2, 1, 1, marks=pytest.mark.slow),
        pytest.param("modernbert", 2, 2, -1, marks=pytest.mark.slow),
        pytest.param("modernbert", 2, 1, 1, marks=pytest.mark.slow),
    ],
    ids=["twice", "an inner layer", "modernbert twice", "an inner layer of modernbert"],
)
def test_deferred_gradients_of_blocks_are_autograds_bit_for_bit(
    family: str, layers: int, calls: int, layer: int
) -> None:
    encoder, low_precision = build(family, layers=layers)
    expected = autograds_gradients(encoder, calls=calls, layer=layer)
    assert_same(deferred_gradients(encoder, low_precision, calls=calls, layer=layer), expected)


@pytest.mark.parametrize(
    ("family", "width", "calls"),
    [
        ("electra", 72, 1),
        pytest.param("electra", 72, 2, marks=pytest.mark.slow),
        pytest.param("modernbert", 32, 2, marks=pytest.mark.slow),
    ],
)
def test_products_are_written_to_their_targets_and_a_second_one_is_added(
    family: str, width: int, calls: int
) -> None:
    encoder, low_precision = build(family, width=width)
    expected = autograds_gradients(encoder, calls=calls)
    parameters = block_parameters(encoder)
    nan = float("nan")
    targets = [(parameter, torch.full_like(parameter.detach(), nan)) for parameter in parameters]
    merged = deferred_gradients(encoder, low_precision, targets, calls=calls)
    assert_same(merged, expected)
    for (parameter, target), gradient in zip(targets, merged, strict=True):
        assert (gradient is target) == (parameter.ndim == 2)


def test_the_sums_of_many_blocks_are_added_up_in_one_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches: list[int] = []
    launched: list[int] = []
    reduce_to_flat = column_sums.reduce_to_flat

    def counted(partials: list[Tensor]) -> Tensor:
        launches.append(len(partials))
        return reduce_to_flat(partials)

    monkeypatch.setattr(deferred_grads, "reduce_to_flat", counted)
    monkeypatch.setattr(column_sums, "MAX_TENSORS", 9)
    parameters = [torch.empty(2, 8, device=DEVICE), torch.empty(8, device=DEVICE)]
    deferred, expected = DeferredGradients(), []
    for number in range(7):
        partials = [torch.randn(5, 20, device=DEVICE), torch.randn(3, 4, device=DEVICE)]
        if number == 1:  # other shapes wait for their like
            partials = [torch.randn(5, 24, device=DEVICE)]
        block = [parameter.clone() for parameter in parameters]
        expected += zip(block, split_sums(partials, block), strict=True)
        launches.clear()
        deferred.add_sums(partials, block)
        launched += launches
    assert launched == [8], "four blocks of two tensors; a fifth would be too many"
    launches.clear()
    merged = deferred.merge_into([each for each, _ in expected], [None] * len(expected))
    assert sorted(launches) == [1, 4]
    assert_same(merged, tuple(gradient for _, gradient in expected))


def test_large_partial_sums_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_grads, "MAX_BYTES", 100)
    parameter, deferred = torch.zeros(8, device=DEVICE), DeferredGradients()
    deferred.add_sums([torch.ones(3, 8, device=DEVICE)], [parameter])
    assert deferred.gradients == {}
    deferred.add_sums([torch.ones(3, 8, device=DEVICE)], [parameter])
    assert deferred.waiting == {}
    assert deferred.gradients[parameter].eq(6).all()


def test_a_parameter_used_in_blocks_twice_and_elsewhere_gets_the_sum_of_all() -> None:
    parameter, deferred = torch.zeros(8, device=DEVICE), DeferredGradients()
    partials = torch.randn(2, 3, 8, device=DEVICE)
    deferred.add_sums([partials[0]], [parameter])
    deferred.add_sums([partials[1]], [parameter])
    (gradient,) = deferred.merge_into([parameter], [torch.ones(8, device=DEVICE)])
    assert torch.allclose(gradient, partials.sum((0, 1)) + 1, atol=1e-5)


def test_autograd_calls_the_hook_of_a_parameter_and_gets_all_gradients_then() -> None:
    parameter, low_precision = nn.Parameter(torch.zeros(3)), LowPrecisionCopies()
    low_precision.register([(parameter, parameter.detach().half())])
    with low_precision.defer_gradients() as deferred:
        assert low_precision.deferred is deferred
    handle = parameter.register_hook(lambda gradient: None)
    with low_precision.defer_gradients():
        assert low_precision.deferred is None
    handle.remove()
    with low_precision.defer_gradients() as deferred:
        assert low_precision.deferred is deferred


def test_a_frozen_parameter_gets_no_gradient_and_its_neighbours_keep_theirs() -> None:
    encoder, low_precision = build()
    encoder.get_parameter("blocks.0.expand.bias").requires_grad_(False)
    expected = autograds_gradients(encoder)
    assert_same(deferred_gradients(encoder, low_precision), expected)


def test_after_an_error_autograd_gets_all_gradients_again() -> None:
    low_precision = LowPrecisionCopies()
    with pytest.raises(ZeroDivisionError), low_precision.defer_gradients():
        raise ZeroDivisionError
    assert low_precision.deferred is None
