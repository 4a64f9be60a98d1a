"""What a GPU's memory shows: graphs of all shapes share the memory of the largest, and tensors of
more than 2³¹ values. `pytest -m gpu`
"""

from __future__ import annotations

import pytest
import torch

from electra.data.batches import Batch, largest_batches, pack_rows
from electra.engine.distributed import World
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.settings import OptimizerConfig
from electra.engine.train_step import Execution, OptimizerSetup, build_train_step
from electra.model.memory import reserved_bytes, training_bytes
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.workload import Workload
from electra.objectives.settings import ReplacedTokenDetectionConfig
from tests.conftest import ToyVocabulary

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
VOCABULARY = 2048
SMALL = EncoderShape(
    layers=4, width=256, heads=4, feedforward=1024, embedding=128, positions=128, dropout=0.1
)
BASE = EncoderShape(
    layers=12, width=768, heads=12, feedforward=3072, embedding=768, positions=512, dropout=0.1
)


def build_steps(shape: EncoderShape):
    device, config = torch.device("cuda", 0), OptimizerConfig(learning_rate=1e-4, warmup_steps=10)
    objective = (
        ReplacedTokenDetectionConfig()
        .build(
            encoder=shape,
            vocabulary=ToyVocabulary(size=VOCABULARY),
            unigrams=torch.full((VOCABULARY,), 1 / VOCABULARY),
        )
        .to(device)
    )
    optimizer = build_optimizer(objective, config, low_precision=torch.bfloat16)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    return build_train_step(
        objective,
        lambda loss: {"loss": loss.total, **loss.parts},
        OptimizerSetup(optimizer, config, 1000, scaler),
        Execution(World(0, 1, device), "bf16", Speed(True, True, False)),
    )


def random_batch(rows: int, length: int, *, seed: int) -> Batch:
    """Rows a tenth to all of which are padding, so that packed batches have every size."""
    rng = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(5, VOCABULARY, (rows, length), generator=rng)
    shortest = int(torch.randint(length // 8, length, (1,), generator=rng))
    lengths = torch.randint(shortest, length + 1, (rows,), generator=rng)
    packing = pack_rows(lengths.numpy(), length)
    return Batch(input_ids, torch.zeros_like(input_ids), lengths, lengths, packing)


def reserved_after_steps(shape: EncoderShape, rows: int, steps: int) -> list[int]:
    """Reserved memory after the largest graphs were captured, and after every step then."""
    torch.cuda.empty_cache()
    others = torch.cuda.memory_reserved()
    train_step, length = build_steps(shape), shape.positions
    train_step.capture_first(largest_batches(random_batch(rows, length, seed=0)))
    reserved = [torch.cuda.memory_reserved() - others]
    for step in range(1, steps + 1):
        train_step.forward_backward([(step, random_batch(rows, length, seed=step))])
        train_step.optimizer_step(step)
        reserved.append(torch.cuda.memory_reserved() - others)
    train_step.synchronize()
    assert len(train_step.graphed.graphs) > 4, "shapes varied"
    return reserved


def assert_pool_stays(reserved: list[int]) -> None:
    """The pool of the graphs is as large as the first, largest graph. A shape that is new runs
    plainly beside it, and the next capture gives that memory back.
    """
    sizes = [size >> 20 for size in reserved]
    assert min(reserved[len(reserved) // 2 :]) <= 1.05 * reserved[0], sizes
    assert max(reserved) < 2 * reserved[0], sizes


def test_300_steps_of_all_packed_shapes_keep_the_pool_of_the_largest_graph():
    assert_pool_stays(reserved_after_steps(SMALL, 64, 300))


def test_300_steps_of_base_reserve_what_describe_says():
    reserved = reserved_after_steps(BASE, 16, 300)
    assert_pool_stays(reserved)
    work = Workload(
        encoder=BASE,
        generator=GeneratorShape().beside(BASE),
        vocabulary=VOCABULARY,
        length=BASE.positions,
    )
    terms = training_bytes(work, rows=16, activation_bytes=2, kernels=True)
    terms |= reserved_bytes(work, terms, scored_rows=0)
    estimate = sum(terms.values())
    assert 0.7 * estimate < max(reserved) < 1.2 * estimate


ROWS, WIDTH = 2**21 + 64, 1024  # more than 2³¹ values
FAR = slice(2**21, None)  # the rows beyond them


def test_rows_beyond_2_to_the_31_values_have_the_norm_and_the_gradients_of_near_ones():
    from electra.kernels.dropout import DropoutSite
    from electra.kernels.norm import add_pre_norm, add_pre_norm_gradients

    def passes(values, gradient):
        summed, normed = add_pre_norm(values, values, weight, site, 1e-5)
        _, d_values, _ = add_pre_norm_gradients((gradient, None), summed, weight, site, 1e-5)
        return normed, d_values

    site = DropoutSite(0.0, torch.zeros(1, 2, dtype=torch.int32, device="cuda"), 0)
    values = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    gradient, weight = values.roll(1), torch.randn(WIDTH, device="cuda")
    far = passes(values, gradient)
    near = passes(values[FAR].clone(), gradient[FAR].clone())
    for ours, theirs in zip(far, near, strict=True):
        assert ours[FAR].equal(theirs)


def test_tokens_beyond_2_to_the_31_values_have_the_losses_and_logits_of_near_ones():
    from electra.kernels.linear_cross_entropy import fused_linear_cross_entropy
    from electra.kernels.low_precision import LowPrecisionCopies
    from electra.kernels.rtd_head import RTDHeadWeights, rtd_head

    hidden = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    dense = torch.randn(WIDTH, WIDTH, device="cuda") / 32
    ones, zero = torch.ones(WIDTH, device="cuda"), torch.zeros(1, device="cuda")
    head = RTDHeadWeights(dense, ones, None, ones[None], zero)
    logits = rtd_head(hidden[None], head, LowPrecisionCopies())[0]
    expected = rtd_head(hidden[None, FAR].clone(), head, LowPrecisionCopies())[0]
    torch.testing.assert_close(logits[FAR], expected, atol=0.1, rtol=0.01)
    labels = torch.arange(ROWS, device="cuda") % 64
    tensors = (dense[:64], torch.zeros(64, device="cuda"))
    losses, _ = fused_linear_cross_entropy(hidden, *tensors, labels, LowPrecisionCopies())
    near, _ = fused_linear_cross_entropy(
        hidden[FAR].clone(), *tensors, labels[FAR], LowPrecisionCopies()
    )
    torch.testing.assert_close(losses[FAR], near)
