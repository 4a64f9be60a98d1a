"""Published numbers, and ours for the same networks."""

from __future__ import annotations

import pytest

from electra.model.flops import inference, official, parameters, standard
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.workload import LMHead, Workload

SMALL = EncoderShape()
BASE = EncoderShape(layers=12, width=768, heads=12, feedforward=3072, embedding=768)
LARGE = EncoderShape(layers=24, width=1024, heads=16, feedforward=4096, embedding=1024)
VOCABULARY = 30522


def electra(
    shape: EncoderShape, *, fraction: float, length: int, mask_rate: float = 0.15
) -> Workload:
    return Workload(
        encoder=shape,
        generator=GeneratorShape(fraction=fraction).beside(shape),
        vocabulary=VOCABULARY,
        length=length,
        mask_rate=mask_rate,
    )


def bert(shape: EncoderShape, *, length: int) -> Workload:
    return Workload(
        heads=(LMHead(),), network="encoder", encoder=shape, vocabulary=VOCABULARY, length=length
    )


ELECTRA_SMALL = electra(SMALL, fraction=1 / 4, length=128)
ELECTRA_BASE = electra(BASE, fraction=1 / 3, length=512)
ELECTRA_LARGE = electra(LARGE, fraction=1 / 4, length=512, mask_rate=0.25)


@pytest.mark.parametrize(
    ("work", "encoder", "head", "generator"),
    [
        (ELECTRA_SMALL, 13.48e6, 0.07e6, 0.65e6),
        (ELECTRA_BASE, 108.9e6, 0.59e6, 9.9e6),
        (ELECTRA_LARGE, 334.1e6, 1.05e6, 19.5e6),
    ],
    ids=["small", "base", "large"],
)
def test_every_size_has_the_published_number_of_parameters(
    work: Workload, encoder: float, head: float, generator: float
) -> None:
    counted = parameters(work)
    assert counted.encoder == pytest.approx(encoder, rel=1e-3)
    assert counted.head == pytest.approx(head, abs=0.005e6)
    assert counted.generator == pytest.approx(generator, abs=0.05e6)


@pytest.mark.parametrize(
    ("work", "batch", "steps", "published"),
    [
        (ELECTRA_SMALL, 128, 1_000_000, 1.294e18),
        (ELECTRA_BASE, 256, 766_000, 6.425e19),
        (ELECTRA_LARGE, 2048, 400_000, 7.118e20),
        (ELECTRA_LARGE, 2048, 1_750_000, 3.114e21),
        (bert(SMALL, length=128), 128, 1_450_000, 1.419e18),
        (bert(BASE, length=512), 256, 1_000_000, 6.428e19),
        (bert(LARGE, length=512), 256, 1_000_000, 1.917e20),
    ],
    ids=[
        "ELECTRA-Small",
        "ELECTRA-Base",
        "ELECTRA-400K",
        "ELECTRA-1.75M",
        "BERT-Small",
        "BERT-Base",
        "BERT-Large",
    ],
)
def test_official_training_operations_are_those_of_the_paper_s_script(
    work: Workload, batch: int, steps: int, published: float
) -> None:
    assert official(work).training * work.length * batch * steps == pytest.approx(
        published, rel=1e-3
    )


@pytest.mark.parametrize(
    ("work", "batch", "steps", "per_token", "total"),
    [
        (ELECTRA_SMALL, 128, 1_000_000, 70.2e6, 1.15e18),
        (ELECTRA_BASE, 256, 766_000, 667.7e6, 6.70e19),
        (ELECTRA_LARGE, 2048, 400_000, 2169e6, 9.10e20),
    ],
    ids=["small", "base", "large-400K"],
)
def test_standard_training_operations_are_three_forward_passes_of_matrix_products(
    work: Workload, batch: int, steps: int, per_token: float, total: float
) -> None:
    cost = standard(work)
    assert cost.training == pytest.approx(per_token, rel=1e-3)
    assert cost.training * work.length * batch * steps == pytest.approx(total, rel=5e-3)


@pytest.mark.parametrize(
    ("shape", "published"), [(SMALL, 3.68e9), (BASE, 2.86e10)], ids=["small", "base"]
)
def test_inference_on_128_tokens_costs_what_the_paper_s_script_says(
    shape: EncoderShape, published: float
) -> None:
    assert inference(shape, vocabulary=VOCABULARY, length=128)["official"] == pytest.approx(
        published, rel=2e-3
    )
