"""The kernels mask and splice as the plain functions do, with the same random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from electra import kernels
from electra.data.batches import Batch
from electra.kernels import corruption, fused_modules
from electra.kernels.corruption import fused_mask_tokens, fused_replace_tokens
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Corruption, Masked, mask_tokens, replace_tokens
from electra.objectives.masking import Masking
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ReplacedTokenDetectionConfig
from tests.conftest import ToyVocabulary, toy_batch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = ToyVocabulary()
UNIGRAMS = torch.arange(1, 51).float() / torch.arange(1, 51).sum()
MASKINGS = {
    "default": Masking(),
    "all hidden": Masking(keep=0.0),
    "bert": Masking(keep=0.1, random=0.1),
    "half of the row": Masking(rate=0.5, keep=0.2, random=0.5),
    "nearly all": Masking(rate=0.9),
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def batch_of(lengths: list[int], *, length: int, seed: int = 0) -> Batch:
    return toy_batch(lengths, length=length, seed=seed).to(DEVICE)


def ours_and_plain(
    batch: Batch, masking: Masking, *, rate: Tensor | None = None, seed: int = 0
) -> tuple[Masked, Masked]:
    ours = fused_mask_tokens(batch, masking, VOCABULARY, seeded(seed), rate=rate)
    return ours, mask_tokens(batch, masking, VOCABULARY, seeded(seed), rate=rate)


def assert_same(ours: Masked, plain: Masked, batch: Batch) -> None:
    """Draws of a row with too few candidates name something else there, in any order."""
    assert ours.input_ids.equal(plain.input_ids)
    assert ours.scored.equal(plain.scored)
    assert ours.distinct
    is_word = (plain.labels >= 5) & (plain.positions < batch.lengths[:, None])
    assert is_word[plain.scored].all()
    for name in ("positions", "labels"):
        mine, others = getattr(ours, name), getattr(plain, name)
        assert mine.dtype == others.dtype
        assert mine[is_word].equal(others[is_word]), name
    assert ours.labels.equal(batch.input_ids.gather(1, ours.positions))
    for row in ours.positions.tolist():
        assert len(set(row)) == len(row)


@pytest.mark.parametrize("length", [16, 77])
@pytest.mark.parametrize("masking", MASKINGS.values(), ids=MASKINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_any_length_are_masked_as_by_the_plain_function(length, masking, seed):
    lengths = [3, length, 4, length // 2, 5, length - 1]
    batch = batch_of(lengths, length=length, seed=seed)
    assert_same(*ours_and_plain(batch, masking, seed=seed), batch)


@pytest.mark.parametrize("length", [128, 512])
def test_rows_of_many_blocks_are_masked_as_by_the_plain_function(length):
    batch = batch_of([length, length - 70, 3], length=length)
    assert_same(*ours_and_plain(batch, Masking(keep=0.1, random=0.1)), batch)


@pytest.mark.parametrize("rate", [0.3, 0.15, 0.01])
def test_a_rate_on_the_device_decides_how_many_draws_are_scored(rate):
    masking = Masking(rate=0.4, final_rate=0.01)
    batch, tensor = batch_of([32, 30, 10, 4], length=32), torch.tensor(rate, device=DEVICE)
    ours, plain = ours_and_plain(batch, masking, rate=tensor)
    assert_same(ours, plain, batch)
    assert ours.scored.sum(dim=1).tolist()[0] == max(1, round(rate * 32))


@pytest.mark.parametrize("rate", [0.15, 0.25, 0.5])
def test_as_many_draws_are_scored_at_every_length_where_the_product_ends_in_a_half(rate):
    batch = batch_of(list(range(3, 65)), length=64)
    ours, plain = ours_and_plain(batch, Masking(rate=rate))
    assert ours.scored.sum(dim=1).tolist() == plain.scored.sum(dim=1).tolist()


def test_a_row_of_special_tokens_never_chooses_a_position_twice():
    """It has five words, and eleven draws of which seven are scored: beyond the words the plain
    function takes any position.
    """
    batch = batch_of([16, 16], length=16)
    batch.input_ids[0, :8] = VOCABULARY.sep
    batch.input_ids[0, 8:11] = VOCABULARY.mask
    batch.input_ids[0, 11:] = 7
    ours, plain = ours_and_plain(batch, Masking(rate=0.45, final_rate=0.7, keep=0.0))
    assert ours.scored.equal(plain.scored)
    assert ours.scored.sum(dim=1).tolist() == [7, 7]
    assert ours.positions[0, :5].equal(plain.positions[0, :5])
    assert sorted(ours.positions[0].tolist()) == [0, 1, 2, 3, 4, 5, *range(11, 16)]
    assert ours.positions[1].equal(plain.positions[1])


def test_equal_keys_are_ranked_by_position(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(shape, 0.5).to(DEVICE))
    batch = batch_of([16], length=16)
    masked = fused_mask_tokens(batch, Masking(rate=0.2), VOCABULARY, None)
    assert masked.positions.tolist() == [[1, 2, 3]]
    assert masked.labels.equal(batch.input_ids[:, 1:4])


@pytest.mark.parametrize("length", [16, 77, 128])
@pytest.mark.parametrize("rate", [0.15, 0.9])
def test_samples_are_put_into_the_text_as_by_the_plain_function(length, rate):
    batch = batch_of([3, length, length // 2], length=length)
    masked = mask_tokens(batch, Masking(rate=rate), VOCABULARY, seeded(0))
    sampled = torch.randint(50, masked.positions.shape, generator=seeded(1), device=DEVICE)
    sampled[1, 0] = masked.labels[1, 0]
    ours = fused_replace_tokens(batch.input_ids, masked, sampled)
    plain = replace_tokens(batch.input_ids, masked, sampled)
    assert (ours.input_ids.dtype, ours.is_replaced.dtype) == (torch.int64, torch.bool)
    assert ours.input_ids.equal(plain.input_ids)
    assert ours.is_replaced.equal(plain.is_replaced)
    assert not ours.is_replaced[1, masked.positions[1, 0]]


# ---- inside an objective -------------------------------------------------------------------------

SHAPE = EncoderShape(
    layers=1,
    width=32,
    heads=2,
    feedforward=64,
    embedding=24,
    positions=32,
    dropout=0.0,
    attention_dropout=0.0,
)


def objective(masking: Masking) -> ReplacedTokenDetection:
    torch.manual_seed(0)
    config = ReplacedTokenDetectionConfig(masking=masking)
    model = config.build(encoder=SHAPE, vocabulary=VOCABULARY, unigrams=UNIGRAMS)
    assert isinstance(model, ReplacedTokenDetection)
    return model.to(DEVICE)


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that fused modules call, one after another."""
    calls: list[str] = []

    def spy(name: str):
        def call(*inputs, **options):
            calls.append(name)
            return getattr(corruption, name)(*inputs, **options)

        return call

    for name in ("fused_mask_tokens", "fused_replace_tokens"):
        monkeypatch.setattr(fused_modules, name, spy(name))
    return calls


def losses(model: ReplacedTokenDetection, batch: Batch) -> dict[str, Tensor]:
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        loss = model(batch, seeded(1))
        measured = model.eval().measure(batch, seeded(2)).means
    return {"total": loss.total, **loss.parts, **measured}


@pytest.mark.parametrize("masking", [Masking(), Masking(rate=0.3, final_rate=0.1, random=0.1)])
def test_an_objective_has_the_same_losses_with_these_kernels_and_without(masking, kernel_calls):
    batch = batch_of([32, 9, 3, 20], length=32)
    plain_model, model = objective(masking), objective(masking)
    kernels.fuse(model.corruption)
    plain, ours = losses(plain_model, batch), losses(model, batch)
    assert kernel_calls == ["fused_mask_tokens", "fused_replace_tokens"] * 2
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        assert ours[name].equal(expected), name


@pytest.mark.parametrize(
    ("masking", "length", "expected"),
    [
        (Masking(draws="official"), 16, []),
        (Masking(prefer="rare"), 16, ["fused_replace_tokens"]),
        (Masking(), 513, []),
    ],
    ids=["official", "rare", "long"],
)
def test_what_the_kernels_do_not_know_the_plain_functions_do(
    masking, length, expected, kernel_calls
):
    batch, results = batch_of([length, 4], length=length), []
    for fused in (False, True):
        module = Corruption(VOCABULARY)
        if fused:
            kernels.fuse(module)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            masked = module.mask(batch, masking, seeded(0), unigrams=UNIGRAMS.to(DEVICE))
            corrupted = module.replace(batch.input_ids, masked, masked.labels.flip(0))
        results.append([*masked, *corrupted])
    assert kernel_calls == expected
    *tensors, plain_ids, plain_replaced = results[0]
    *fused_tensors, fused_ids, fused_replaced = results[1]
    assert fused_ids.equal(plain_ids)
    assert fused_replaced.equal(plain_replaced)
    assert fused_tensors[-1] == tensors[-1]
    for ours, plain in zip(fused_tensors[:-1], tensors[:-1], strict=True):
        assert ours.equal(plain)


def test_in_full_precision_and_after_unfuse_the_plain_functions_run(kernel_calls):
    model, batch = objective(Masking()), batch_of([16], length=16)
    kernels.fuse(model)
    model.mask(batch, seeded(0))
    kernels.unfuse(model)
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        model.mask(batch, seeded(0))
    assert kernel_calls == []


def test_a_checkpoint_holds_nothing_of_it():
    assert not any(name.startswith("corruption") for name in objective(Masking()).state_dict())
