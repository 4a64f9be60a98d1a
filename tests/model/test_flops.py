from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Literal

import pytest
import torch

from electra.model.electra_encoder import ElectraEncoder
from electra.model.families import build_masked_lm, build_networks
from electra.model.flops import official, parameters, standard
from electra.model.networks import Generator
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.workload import LinearHead, LMHead, Workload
from electra.objectives.settings import MaskedLMConfig

SHAPE = EncoderShape(layers=3, width=128, heads=2, feedforward=512, embedding=64, positions=32)
VOCABULARY = 100


def count(*networks: torch.nn.Module) -> int:
    return sum(p.numel() for p in {p for network in networks for p in network.parameters()})


@pytest.mark.parametrize(
    ("tie", "fraction"), [("none", 0.5), ("embeddings", 0.5), ("embeddings", 1.0), ("all", 1.0)]
)
@pytest.mark.parametrize("embedding", [64, 128])
@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_parameters_in_closed_form_are_those_of_the_modules(
    tie: Literal["none", "embeddings", "all"],
    fraction: float,
    embedding: int,
    family: Literal["electra", "modernbert"],
) -> None:
    shape = replace(SHAPE, layers=2, feedforward=256, embedding=embedding, family=family)
    settings = GeneratorShape(tie=tie, fraction=fraction)
    generator, discriminator = build_networks(shape, settings, vocabulary=VOCABULARY)
    assert generator is not None
    counted = parameters(
        Workload(
            encoder=shape,
            generator=settings.beside(shape),
            tie=tie,
            vocabulary=VOCABULARY,
            length=16,
        )
    )
    assert counted.encoder == count(discriminator.encoder)
    assert counted.encoder + counted.head == count(discriminator)
    assert counted.total == count(discriminator, generator)
    assert counted.shared == count(generator) - counted.generator


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_a_disentangled_table_is_counted_once_for_each_network(
    family: Literal["electra", "modernbert"],
) -> None:
    shape = replace(SHAPE, family=family)
    settings = GeneratorShape(tie="gradient-disentangled", fraction=0.5)
    generator, discriminator = build_networks(shape, settings, vocabulary=VOCABULARY)
    assert generator is not None
    work = Workload(
        encoder=shape,
        generator=settings.beside(shape),
        tie="gradient-disentangled",
        vocabulary=VOCABULARY,
        length=16,
    )
    assert parameters(work).total == count(discriminator, generator)


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_parameters_of_a_masked_lm_are_those_of_the_module(
    family: Literal["electra", "modernbert"],
) -> None:
    shape = replace(SHAPE, family=family)
    counted = parameters(
        Workload(
            heads=(LMHead(),), network="encoder", encoder=shape, vocabulary=VOCABULARY, length=32
        )
    )
    assert counted.total == count(build_masked_lm(shape, vocabulary=VOCABULARY))
    assert counted.generator == counted.shared == 0


def test_standard_operations_are_the_matrix_products_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    settings, length, predicted = GeneratorShape(fraction=0.5), 32, 8
    generator, discriminator = build_networks(SHAPE, settings, vocabulary=VOCABULARY)
    assert generator is not None
    input_ids = torch.zeros(1, length, dtype=torch.long)
    attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        discriminator(input_ids, input_ids, attention_mask)
        generator(input_ids, input_ids, attention_mask, input_ids[:, :predicted])
    work = Workload(
        encoder=SHAPE,
        generator=settings.beside(SHAPE),
        vocabulary=VOCABULARY,
        length=length,
        mask_rate=predicted / length,
    )
    assert counter.get_total_flops() == length * standard(work).forward


def test_replacements_by_chance_cost_the_discriminator_alone() -> None:
    by_chance = Workload(encoder=SHAPE, vocabulary=VOCABULARY, length=32)
    for convention in (standard, official):
        assert list(convention(by_chance).networks) == ["discriminator"]


def test_a_frozen_generator_costs_its_forward_pass_and_no_other() -> None:
    beside = GeneratorShape(fraction=0.5).beside(SHAPE)
    work = Workload(
        encoder=SHAPE,
        generator=beside,
        tie="none",
        generator_is_trained=False,
        vocabulary=VOCABULARY,
        length=32,
    )
    for convention, whole in ((standard, 3), (official, 2)):
        discriminator, generator = (
            sum(terms.values()) for terms in convention(work).networks.values()
        )
        assert convention(work).training == pytest.approx(whole * discriminator + generator)
        assert convention(replace(work, generator_is_trained=True)).training == pytest.approx(
            whole * (discriminator + generator)
        )


def test_a_masked_lm_counts_its_vocabulary_and_no_rtd_head() -> None:
    (terms,) = standard(
        Workload(
            heads=(LMHead(),), network="encoder", encoder=SHAPE, vocabulary=VOCABULARY, length=32
        )
    ).networks.values()
    assert terms["MLM head"] == pytest.approx(0.15 * (2 * 128 * 64 + 2 * 64 * VOCABULARY))
    assert "RTD head" not in terms


def test_replacements_that_are_restored_cost_a_second_network_with_a_vocabulary() -> None:
    beside = GeneratorShape(fraction=0.5).beside(SHAPE)
    work = Workload(
        heads=(LMHead(),),
        network="encoder",
        encoder=SHAPE,
        generator=beside,
        vocabulary=VOCABULARY,
        length=32,
    )
    both = standard(work).networks
    assert list(both) == ["encoder", "generator"]
    assert both["encoder"]["MLM head"] == pytest.approx(0.15 * (2 * 128 * 64 + 2 * 64 * 100))
    assert both["generator"]["MLM head"] == pytest.approx(0.15 * (2 * 64 * 64 + 2 * 64 * 100))


def test_all_tokens_pay_for_the_vocabulary_at_every_position_and_for_a_gate() -> None:
    work = Workload(
        heads=(LMHead("all"), LinearHead("copy gate")),
        network="encoder",
        encoder=SHAPE,
        generator=GeneratorShape(fraction=0.5).beside(SHAPE),
        vocabulary=VOCABULARY,
        length=32,
    )
    ours, theirs = standard(work).networks, official(work).networks
    assert ours["encoder"]["MLM head"] == 2 * 128 * 64 + 2 * 64 * 100
    assert theirs["encoder"]["MLM head"] == 2 * 128 * 64 + 14 * 64 + (2 * 64 + 7) * 100
    assert ours["encoder"]["copy gate"] == theirs["encoder"]["copy gate"] == 2 * 128
    assert ours["generator"]["MLM head"] == pytest.approx(0.15 * (2 * 64 * 64 + 2 * 64 * 100))
    assert "copy gate" not in ours["generator"]


def test_a_left_to_right_lm_pays_for_the_vocabulary_at_every_position_but_the_last() -> None:
    causal = replace(SHAPE, causal=True)
    work = Workload(
        heads=(LMHead("next"),), network="encoder", encoder=causal, vocabulary=VOCABULARY, length=32
    )
    (ours,), (theirs,) = (convention(work).networks.values() for convention in (standard, official))
    assert ours["MLM head"] == pytest.approx(31 / 32 * (2 * 128 * 64 + 2 * 64 * VOCABULARY))
    assert theirs["MLM head"] == pytest.approx(
        31 / 32 * (2 * 128 * 64 + 14 * 64 + (2 * 64 + 7) * VOCABULARY)
    )
    masked = standard(
        Workload(
            heads=(LMHead(),), network="encoder", encoder=SHAPE, vocabulary=VOCABULARY, length=32
        )
    ).networks["encoder"]
    assert ours["attention"] == masked["attention"], (
        "what causal attention throws away was computed, by convention"
    )
    assert ours.keys() == masked.keys()


def test_the_operations_of_a_left_to_right_pass_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape, length = replace(SHAPE, causal=True), 32
    network = Generator(ElectraEncoder(shape, vocabulary=VOCABULARY)).eval()
    input_ids = torch.zeros(1, length, dtype=torch.long)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        network.lm_logits(
            network.transform(network.encoder(input_ids, input_ids, input_ids == 0)[:, :-1])
        )
    work = Workload(
        heads=(LMHead("next"),),
        network="encoder",
        encoder=shape,
        vocabulary=VOCABULARY,
        length=length,
    )
    assert counter.get_total_flops() == length * standard(work).forward


@pytest.mark.parametrize("embedding", [64, 128])
def test_the_operations_of_a_modernbert_pass_are_those_that_torch_counts(embedding: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    length = 32
    shape = replace(SHAPE, family="modernbert", feedforward=192, embedding=embedding)
    network = build_masked_lm(shape, vocabulary=VOCABULARY).eval()
    input_ids = torch.zeros(1, length, dtype=torch.long)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        network.logits(input_ids, input_ids, input_ids == 0)
    work = Workload(
        heads=(LMHead("all"),),
        network="encoder",
        encoder=shape,
        vocabulary=VOCABULARY,
        length=length,
    )
    assert counter.get_total_flops() == length * standard(work).forward


def test_next_sentence_prediction_costs_two_classes_a_row() -> None:
    plain, both = (
        MaskedLMConfig(next_sentence=asked).workload(SHAPE, vocabulary=VOCABULARY, length=32)
        for asked in (False, True)
    )
    for convention in (standard, official):
        assert 32 * (convention(both).forward - convention(plain).forward) == pytest.approx(
            2 * 128 * 2
        )
    assert parameters(both).head == parameters(plain).head + 2 * 128 + 2


def test_costs_are_counted_without_torch() -> None:
    code = "import sys, electra.model.flops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
