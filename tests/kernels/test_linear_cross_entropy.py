"""Losses, gradients and samples are those of a softmax over all words, though no two tiles of
logits ever meet.
"""

from __future__ import annotations

import pytest
import torch

from electra.kernels.fused_modules import FusedMLMHead
from electra.kernels.linear_cross_entropy import (
    MAX_LOGIT_ROWS,
    fused_linear_cross_entropy,
    linear_cross_entropy_reference,
)
from electra.kernels.low_precision import LowPrecisionCopies
from electra.model import networks
from electra.model.networks import Generator, cross_entropy
from electra.model.shape import EncoderShape
from electra.objectives.settings import (
    AllTokensMLMConfig,
    MaskedLMConfig,
    ReplacedTokenDetectionConfig,
    ReplaceMLMConfig,
)
from tests.conftest import toy_batch, toy_objective

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NO_COPIES = LowPrecisionCopies()
# The interpreter multiplies bf16 as if it were integers.
LOW = [torch.float16, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float16]
# No multiples of a tile, nor of a part of a vector: less than one, and a few of each.
SMALL, WIDE = (5, 50, 16), (150, 900, 200)


def inputs(
    count: int, vocabulary: int, width: int, dtype: torch.dtype, *, seed: int = 0
) -> list[torch.Tensor]:
    """Vectors, table and bias such that some words are likely and most are not; values that `dtype`
    holds exactly.
    """
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, width, generator=rng)
    weight = torch.randn(vocabulary, width, generator=rng) * (3 / width**0.5)
    bias, labels = (
        torch.randn(vocabulary, generator=rng),
        torch.randint(vocabulary, (count,), generator=rng),
    )
    uniform = torch.rand(count, 2, generator=rng)
    return [
        tensor.to(DEVICE)
        for tensor in (hidden.to(dtype), weight.to(dtype).float(), bias, labels, uniform)
    ]


def in_float64(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]


def ours_and_plain(count: int, vocabulary: int, width: int, dtype: torch.dtype):
    """Losses and gradients of both, with unequal weights on the losses and none on every third."""
    hidden, weight, bias, labels, _ = inputs(count, vocabulary, width, dtype)
    weights = torch.linspace(-1, 1, count, device=DEVICE) * (
        torch.arange(count, device=DEVICE) % 3 > 0
    )
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    losses, sampled = fused_linear_cross_entropy(*leaves, labels, NO_COPIES)
    assert sampled is None
    plain = in_float64(*leaves)
    expected, _ = linear_cross_entropy_reference(*plain, labels.cpu(), torch.zeros(count, 2))
    return (
        (losses, *torch.autograd.grad((losses * weights).sum(), leaves)),
        (expected, *torch.autograd.grad((expected * weights.cpu()).sum(), plain)),
    )


@pytest.mark.parametrize(
    "size",
    [
        SMALL,
        pytest.param(
            WIDE,
            marks=pytest.mark.skipif(
                DEVICE.type == "cuda",
                reason="wide vectors in 32 bits outgrow a multiprocessor; only the interpreter "
                "has room",
            ),
        ),
    ],
)
def test_losses_and_gradients_are_those_of_cross_entropy(size):
    ours, plain = ours_and_plain(*size, torch.float32)
    for our, their in zip(ours, plain, strict=True):
        assert our.dtype == torch.float32
        torch.testing.assert_close(our.cpu().double(), their, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", LOW)
def test_in_low_precision_only_the_gradients_of_logits_are_rounded(dtype):
    """The losses are as exact as in float32, and the gradients of the float32 weights arrive in
    float32.
    """
    ours, plain = ours_and_plain(*WIDE, dtype)
    assert [our.dtype for our in ours] == [torch.float32, dtype, torch.float32, torch.float32]
    torch.testing.assert_close(ours[0].cpu().double(), plain[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(ours[3].cpu().double(), plain[3], atol=2e-5, rtol=2e-5)
    for our, their in zip(ours[1:3], plain[1:3], strict=True):
        assert (our.cpu().double() - their).norm() < 3 * torch.finfo(dtype).eps * their.norm()


def test_a_row_whose_loss_counts_for_nothing_gets_no_gradient():
    hidden, weight, bias, labels, _ = inputs(7, 300, 32, torch.float32)
    losses, _ = fused_linear_cross_entropy(hidden.requires_grad_(), weight, bias, labels, NO_COPIES)
    losses[[0, 1, 2, 4, 5, 6]].sum().backward()
    assert not hidden.grad[3].any()
    assert hidden.grad[[0, 1, 2, 4, 5, 6]].any(dim=1).all()


def test_gradients_of_more_rows_than_are_held_at_once_add_up(monkeypatch):
    whole, _ = ours_and_plain(300, 200, 16, torch.float32)
    monkeypatch.setattr("electra.kernels.linear_cross_entropy.MAX_LOGIT_ROWS", 128)
    parts, _ = ours_and_plain(300, 200, 16, torch.float32)
    assert MAX_LOGIT_ROWS > 300
    for our, their in zip(parts, whole, strict=True):
        torch.testing.assert_close(our, their, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("size", [(20, 300, 16), (20, 300, 200)])
def test_the_sampled_word_is_where_the_distribution_functions_pass_the_uniform_numbers(
    size, temperature
):
    hidden, weight, bias, labels, uniform = inputs(*size, LOW[-1])
    losses, sampled = fused_linear_cross_entropy(
        hidden, weight, bias, labels, NO_COPIES, uniform=uniform, temperature=temperature
    )
    plain = in_float64(hidden, weight, bias)
    expected_losses, expected = linear_cross_entropy_reference(
        *plain, labels.cpu(), uniform.cpu().double(), temperature
    )
    torch.testing.assert_close(
        losses.cpu().double(), expected_losses, atol=2e-5, rtol=2e-5
    )  # never tempered
    ambiguous = torch.zeros(len(expected), dtype=torch.bool)
    for more in torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]]) * 1e-5:
        near = (uniform.cpu().double() + more).clamp(0, 1 - 1e-9)
        _, other = linear_cross_entropy_reference(*plain, labels.cpu(), near, temperature)
        ambiguous |= other != expected
    assert not ambiguous.all()
    assert ((sampled.cpu() == expected) | ambiguous).all()


def test_the_first_number_draws_the_tile_and_the_second_alone_the_word_inside_it():
    """No bias, so that all words are equally likely: 64 in each of the first two tiles, 32 in the
    third.
    """
    uniform = torch.tensor([[0.1, 0.26], [0.3, 0.26], [0.3, 0.76], [0.7, 0.26], [0.9, 0.26]])
    _, sampled = fused_linear_cross_entropy(
        torch.zeros(5, 16, device=DEVICE),
        torch.zeros(160, 16, device=DEVICE),
        torch.zeros(160, device=DEVICE),
        torch.zeros(5, dtype=torch.int64, device=DEVICE),
        NO_COPIES,
        uniform=uniform.to(DEVICE),
    )
    assert sampled.tolist() == [16, 16, 48, 64 + 16, 128 + 8]


def test_samples_follow_the_softmax_over_tiles_and_inside_them():
    """By Pearson's statistic: of the words, of the tiles, and of tiles with places inside them."""
    hidden, weight, bias, _, _ = inputs(1, 150, 16, torch.float32, seed=1)
    bias *= 0.5
    count, tile = 50_000, 64
    samples = draw_many(hidden, 0.3 * weight, bias, count)
    expected = count * (hidden @ (0.3 * weight).T + bias).softmax(-1)[0].cpu()
    found = torch.bincount(samples, minlength=150)
    assert pearson(found, expected) < 149 + 5 * (2 * 149) ** 0.5
    tiles = torch.arange(150) // tile
    places = 2 * tiles + (torch.arange(150) % 2)  # even and odd words of each tile
    for parts, groups in ((3, tiles), (6, places)):
        group_counts = torch.zeros(parts).index_add_(0, groups, found.float())
        group_expected = torch.zeros(parts).index_add_(0, groups, expected)
        assert pearson(group_counts, group_expected) < parts + 5 * (2 * parts) ** 0.5


def draw_many(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, count: int
) -> torch.Tensor:
    """Draw by the kernel; in the interpreter, where it would take minutes, by the reference, whose
    words it draws.
    """
    labels = torch.zeros(count, dtype=torch.int64, device=DEVICE)
    uniform = torch.rand(count, 2, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    tensors = (hidden.expand(count, -1), weight, bias, labels)
    if DEVICE.type == "cuda":
        _, samples = fused_linear_cross_entropy(*tensors, NO_COPIES, uniform=uniform)
    else:
        _, samples = linear_cross_entropy_reference(*tensors, uniform)
    assert samples is not None
    return samples.cpu()


def pearson(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return Σ (found − expected)² / expected, about as large as there are parts."""
    return float(((found - expected).square() / expected).sum())


@pytest.mark.parametrize("word", [0, 127, 128, 299])
def test_a_word_that_has_all_the_mass_is_always_drawn_and_costs_nothing(word):
    """Its neighbours' shares underflow to zero: no uniform number, not even at the ends, may fall
    on them.
    """
    _, weight, bias, _, _ = inputs(1, 300, 16, torch.float32)
    bias[word] = 1e4
    uniform = torch.tensor([0.0, 1e-38, 0.5, 1 - 2**-24], device=DEVICE)
    labels = torch.full((4,), word, device=DEVICE)
    losses, sampled = fused_linear_cross_entropy(
        torch.zeros(4, 16, device=DEVICE),
        weight,
        bias,
        labels,
        NO_COPIES,
        uniform=uniform[:, None].expand(-1, 2),
    )
    assert sampled.tolist() == [word] * 4
    assert not losses.any()


def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last_word_that_have_mass():
    bias = torch.zeros(300, device=DEVICE)
    bias[:10], bias[290:] = -1e4, -1e4
    _, sampled = fused_linear_cross_entropy(
        torch.zeros(2, 16, device=DEVICE),
        torch.zeros(300, 16, device=DEVICE),
        bias,
        torch.zeros(2, dtype=torch.int64, device=DEVICE),
        NO_COPIES,
        uniform=torch.tensor([[0.0], [1 - 2**-24]], device=DEVICE).expand(-1, 2),
    )
    assert sampled.tolist() == [10, 289]


# ---- inside an objective -------------------------------------------------------------------------

SHAPE = EncoderShape(
    layers=1,
    width=32,
    heads=2,
    feedforward=64,
    embedding=16,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)
OBJECTIVES = pytest.mark.parametrize(
    "config", [ReplacedTokenDetectionConfig(), MaskedLMConfig()], ids=["rtd", "mlm"]
)


def fuse_head(network: Generator) -> None:
    """Let the head alone run its kernel; its encoder stays as it is."""
    network.__class__ = FusedMLMHead
    network.low_precision = LowPrecisionCopies()


def objective(config, *, fused: bool):
    model = toy_objective(config, SHAPE)
    generator = model.networks()["encoder" if isinstance(config, MaskedLMConfig) else "generator"]
    if fused:
        fuse_head(generator)
    return model.to(DEVICE), generator


def low_precision() -> torch.autocast:
    return torch.autocast(DEVICE.type, dtype=LOW[-1])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


@OBJECTIVES
def test_an_objective_without_logits_has_the_masked_lm_loss_and_gradients_of_one_with_them(
    config, monkeypatch
):
    results, calls = [], []
    monkeypatch.setattr(
        networks,
        "cross_entropy",
        lambda *logits: (calls.append("logits"), cross_entropy(*logits))[1],
    )
    for fused in (False, True):
        model, generator = objective(config, fused=fused)
        calls.clear()
        with low_precision():
            loss = model(toy_batch([16, 9, 12]).to(DEVICE), seeded())
        assert calls == ([] if fused else ["logits"])
        loss.total.backward()
        results.append((loss.parts["mlm"].item(), generator.bias.grad, generator.dense.weight.grad))
    (plain_loss, *plain), (fused_loss, *fused_gradients) = results
    assert fused_loss == pytest.approx(plain_loss, rel=2e-3)
    for ours, theirs in zip(fused_gradients, plain, strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@OBJECTIVES
def test_held_out_scores_are_the_same_with_the_kernels_and_without(config):
    scores = []
    for fused in (False, True):
        model, _ = objective(config, fused=fused)
        with low_precision():
            scores.append(
                model.eval().measure(toy_batch([16, 9, 12]).to(DEVICE), seeded()).scores()
            )
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    "config",
    [ReplaceMLMConfig(), AllTokensMLMConfig()],
    ids=["replace-mlm", "all-tokens-mlm"],
)
def test_an_encoder_that_restores_has_the_loss_and_gradients_of_one_with_logits(config):
    """The generator computes logits both times, so both encoders read the same corrupted text."""
    results = []
    for fused in (False, True):
        model, _ = objective(config, fused=False)
        encoder = model.networks()["encoder"]
        if fused:
            fuse_head(encoder)
        with low_precision():
            loss = model(toy_batch([16, 9, 12]).to(DEVICE), seeded())
        loss.total.backward()
        results.append(
            (
                loss.parts["restore"].item(),
                encoder.bias.grad,
                encoder.dense.weight.grad,
                encoder.word_embeddings.grad,
            )
        )
    (plain_loss, *plain), (fused_loss, *fused_gradients) = results
    assert fused_loss == pytest.approx(plain_loss, rel=2e-3)
    for ours, theirs in zip(fused_gradients, plain, strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_the_likelihood_of_sampled_tokens_is_the_same_without_logits_as_with_them():
    config = ReplacedTokenDetectionConfig(generator_training="adversarial")
    model, generator = objective(config, fused=False)
    results = []
    for keep_logits in (True, False):
        with low_precision():
            output = model.predict(toy_batch([16, 9, 12]).to(DEVICE), seeded())
            mlm = output.mlm
            if not keep_logits:
                mlm = mlm._replace(logits=None)
                fuse_head(generator)
            losses = model.sample_nll(mlm, output)
        model.zero_grad()
        losses.sum().backward()
        gradients = (
            generator.bias.grad,
            generator.dense.weight.grad,
            generator.word_embeddings.grad,
        )
        results.append((losses.detach(), *gradients))
    assert (results[0][0] > 0).equal(output.masked.scored)
    for plain, fused in zip(*results, strict=True):
        assert (plain - fused).norm() < 0.02 * plain.norm()


def test_in_full_precision_an_objective_keeps_to_the_plain_path():
    losses = [
        objective(ReplacedTokenDetectionConfig(), fused=fused)[0](
            toy_batch([16, 9]).to(DEVICE), seeded()
        )
        for fused in (False, True)
    ]
    assert losses[0].total.equal(losses[1].total)


def test_the_seed_alone_decides_what_is_sampled():
    model, _ = objective(ReplacedTokenDetectionConfig(), fused=True)
    with low_precision():
        outputs = [
            model.generate(toy_batch([16, 9, 12]).to(DEVICE), seeded(seed), keep_logits=False)
            for seed in (1, 1, 2)
        ]
    assert outputs[0].mlm.logits is None
    first, second, other = (output.corrupted.input_ids for output in outputs)
    assert first.equal(second)
    assert not first.equal(other)
