"""Networks of the ModernBERT family by their kernels, against the plain modules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra import kernels
from electra.config import UserError
from electra.data.batches import Batch
from electra.kernels import fused_bases, fused_modernbert, fused_modules
from electra.model.families import build_networks
from electra.model.modernbert_encoder import ModernBertEncoder
from electra.model.networks import Discriminator, Generator
from electra.model.sampling import Sampling
from electra.model.shape import EncoderShape, GeneratorShape
from tests.conftest import toy_batch
from tests.kernels.test_packing import batch_of
from tests.wording import wording_of

wording = wording_of(__file__)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 50
SHAPE = EncoderShape(
    family="modernbert",
    layers=2,
    width=16,
    heads=1,
    feedforward=24,
    embedding=16,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)
VARIANTS = {
    "tied": (SHAPE, GeneratorShape(layers=1, width=16)),
    "gradient-disentangled": (
        SHAPE,
        GeneratorShape(layers=1, width=16, tie="gradient-disentangled"),
    ),
    "one encoder": (SHAPE, GeneratorShape(fraction=1.0, tie="all")),
    "projections": (
        replace(SHAPE, embedding=8),
        GeneratorShape(layers=1, width=12, heads=2, tie="gradient-disentangled"),
    ),
    "windows": (
        replace(SHAPE, global_every=2, local_attention=4, local_rope_theta=100.0),
        GeneratorShape(layers=1, width=16),
    ),
}


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels in float32, where they differ from the plain modules by rounding alone."""
    for module in (fused_bases, fused_modernbert, fused_modules):
        monkeypatch.setattr(module, "active_autocast_dtype", lambda _: torch.float32)


class Networks(nn.Module):
    def __init__(self, generator: Generator, discriminator: Discriminator) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        inputs = (batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
        positions = torch.tensor([[1, 4, 4], [2, 0, 5], [1, 1, 0]], device=DEVICE)
        positions = positions[: len(batch.input_ids)]
        labels = batch.input_ids.gather(1, positions)
        hidden = self.generator.hidden_at(*inputs[:3], positions, batch.packing)
        predicted = self.generator.predict(hidden, labels)
        logits = self.discriminator(*inputs)[batch.attention_mask]
        return {"token_loss": predicted.token_loss, "logits": logits}


def build(variant: str, *, fused: bool) -> Networks:
    torch.manual_seed(0)
    shape, generator_shape = VARIANTS[variant]
    generator, discriminator = build_networks(shape, generator_shape, vocabulary=VOCABULARY)
    assert generator is not None
    networks = Networks(generator, discriminator).to(DEVICE)
    for name, parameter in networks.named_parameters():
        noise = 0.3 * torch.randn(parameter.shape, device=DEVICE)
        parameter.data.add_(noise * (not name.endswith("norm.weight")))
    if fused:
        kernels.fuse(networks)
    return networks


def results(
    networks: Networks, batch: Batch, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Outputs and gradients by name; under autocast where a dtype is given."""
    with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype is not None):
        outputs = networks(batch)
    loss = sum(
        (value.float() * torch.linspace(-1, 2, value.numel(), device=DEVICE).view_as(value)).sum()
        for value in outputs.values()
    )
    assert isinstance(loss, Tensor)
    loss.backward()
    gradients = {
        name: parameter.grad
        for name, parameter in networks.named_parameters()
        if parameter.grad is not None
    }
    return {**outputs, **gradients}


# What a query beyond the end of its row becomes is not a number, and not stored.
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_are_those_of_the_plain_modules(variant: str) -> None:
    torch.manual_seed(0)
    batch = batch_of([7, 6, 2], 8)
    assert batch.packing is not None
    ours = results(build(variant, fused=True), batch)
    plain = results(build(variant, fused=False), batch)
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        assert (ours[name] - expected).norm() <= 2e-5 * expected.norm(), name


def test_under_autocast_they_agree_to_its_precision() -> None:
    batch, found = toy_batch([16, 9]).to(DEVICE), []
    for fused in (False, True):
        found.append(results(build("tied", fused=fused), batch, torch.float16))
    plain, ours = found
    assert ours["logits"].dtype == torch.float32
    for name, expected in plain.items():
        assert (ours[name] - expected).norm() < 0.03 * expected.norm(), name


@pytest.mark.usefixtures("in_float32")
def test_hidden_states_are_the_stream_of_every_layer_and_at_last_its_norm() -> None:
    torch.manual_seed(0)
    encoder = ModernBertEncoder(SHAPE, vocabulary=VOCABULARY).to(DEVICE)
    batch = toy_batch([16, 9]).to(DEVICE)
    inputs = (batch.input_ids, batch.token_type_ids, batch.attention_mask)
    plain = encoder.hidden_states(*inputs)
    kernels.fuse(encoder)
    ours = encoder.hidden_states(*inputs)
    for our, their in zip(ours, plain, strict=True):
        torch.testing.assert_close(our[batch.attention_mask], their[batch.attention_mask])
    assert encoder(*inputs).equal(ours[-1])
    gradients = []
    for states in (plain, ours):
        read = (states[1] * batch.attention_mask[..., None]).square().sum()
        gradients += torch.autograd.grad(read, encoder.word_embeddings)
    assert (gradients[1] - gradients[0]).norm() < 1e-4 * gradients[0].norm()


def test_torchs_seed_decides_what_drops_out() -> None:
    shape = replace(SHAPE, dropout=0.3, attention_dropout=0.3)
    encoder = ModernBertEncoder(shape, vocabulary=VOCABULARY).to(DEVICE)
    kernels.fuse(encoder)
    batch = toy_batch([16, 9]).to(DEVICE)

    def hidden(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            output = encoder(batch.input_ids, batch.token_type_ids, batch.attention_mask)
        return output[batch.attention_mask]

    assert hidden(1).equal(hidden(1))
    assert not hidden(1).equal(hidden(2))
    encoder.eval()
    assert hidden(1).equal(hidden(2))


def test_without_dropout_nothing_is_drawn() -> None:
    encoder = ModernBertEncoder(SHAPE, vocabulary=VOCABULARY).to(DEVICE)
    kernels.fuse(encoder)
    batch = toy_batch([16, 9]).to(DEVICE)
    before = torch.get_rng_state()
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        encoder(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    assert torch.get_rng_state().equal(before)


def test_rows_longer_than_the_positions_are_refused_with_a_remedy() -> None:
    encoder = ModernBertEncoder(SHAPE, vocabulary=VOCABULARY).to(DEVICE)
    kernels.fuse(encoder)
    input_ids = torch.zeros(1, SHAPE.positions + 1, dtype=torch.int64, device=DEVICE)
    with (
        torch.autocast(DEVICE.type, dtype=torch.float16),
        pytest.raises(
            UserError, match=wording("rows_longer_than_the_positions_are_refused_with_a_remedy")
        ),
    ):
        encoder(input_ids, input_ids, torch.ones_like(input_ids, dtype=torch.bool))


def test_in_full_precision_and_after_unfuse_the_plain_path_runs() -> None:
    batch = toy_batch([16, 9]).to(DEVICE)
    plain, fused = (build("tied", fused=on) for on in (False, True))
    expected = plain(batch)
    assert all(fused(batch)[name].equal(value) for name, value in expected.items())
    kernels.unfuse(fused)
    assert [type(part) for part in fused.modules()] == [type(part) for part in plain.modules()]


def test_samples_come_from_the_generators_distribution() -> None:
    networks = build("tied", fused=True)
    generator = networks.generator
    hidden = torch.randn(1, 3, 16, device=DEVICE)
    labels = torch.tensor([[3, 7, 9]], device=DEVICE)
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        predicted = generator.predict(hidden, labels, sampling=Sampling())
    assert predicted.logits is None
    assert predicted.sampled is not None
    assert ((predicted.sampled >= 0) & (predicted.sampled < VOCABULARY)).all()
    expected = F.cross_entropy(
        generator.lm_logits(generator.transform(hidden)).flatten(0, 1),
        labels.flatten(),
        reduction="none",
    )
    torch.testing.assert_close(predicted.token_loss.flatten(), expected, rtol=0.01, atol=0.02)
