"""ModernBERT with its parts exchanged: each variant differs in that part alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.block_variants import BLOCKS, LearnedPositions, attend_without_angles
from electra.model.modernbert_encoder import ModernBertBlock, ModernBertEmbeddings, rotary_angles
from electra.model.shape import EncoderShape
from tests.conftest import TOY_FLAGS

SHAPE = EncoderShape(
    family="modernbert",
    layers=2,
    width=32,
    heads=2,
    feedforward=86,
    embedding=32,
    dropout=0.0,
    attention_dropout=0.0,
)
VISIBLE = torch.ones(1, 1, 1, 5, dtype=torch.bool)


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def context() -> tuple[torch.Tensor, ...]:
    return VISIBLE, *rotary_angles(5, SHAPE.head_width, 10_000.0, torch.device("cpu"))


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_has_as_many_parameters_as_modernberts(kind):
    norm = SHAPE.width  # of the first block, which reads what is normalised
    expected = parameters(ModernBertBlock(SHAPE, 0)) + norm * kind[0]
    assert parameters(BLOCKS[kind](SHAPE, 0)) == expected


def test_the_output_of_a_post_norm_block_is_normalised_and_that_of_others_is_not():
    hidden = 3 + 2 * torch.randn(1, 5, SHAPE.width, generator=torch.Generator().manual_seed(0))
    for (post_norm, _), block_class in BLOCKS.items():
        deviation = block_class(SHAPE, 1)(hidden, *context()).std(-1, unbiased=False)
        assert torch.allclose(deviation, torch.ones(1, 5), atol=1e-3) == post_norm


def test_without_rotary_angles_a_block_does_not_tell_positions_apart(monkeypatch):
    block = ModernBertBlock(SHAPE, 1)
    hidden = torch.randn(1, 5, SHAPE.width, generator=torch.Generator().manual_seed(0))
    rotary = block(hidden, *context())
    assert not torch.allclose(block(hidden.flip(1), *context()).flip(1), rotary, atol=1e-6)
    monkeypatch.setattr(type(block.attention), "forward", attend_without_angles)
    plain = block(hidden, *context())
    assert torch.allclose(block(hidden.flip(1), *context()).flip(1), plain, atol=1e-6)


def test_learned_positions_are_added_to_the_words():
    ids = torch.zeros(1, 5, dtype=torch.long)
    words = ModernBertEmbeddings(SHAPE, vocabulary=7)(ids)
    assert torch.equal(words[0, 0], words[0, 1])
    learned = LearnedPositions(SHAPE, vocabulary=7)(ids)
    assert not torch.allclose(learned[0, 0], learned[0, 1])


@pytest.mark.slow
def test_a_variant_is_pre_trained_and_fine_tuned(toy_shards, tmp_path):
    root = Path(__file__).parent.parent
    (tmp_path / "a.csv").write_text("text,label\n" + "the dog,x\nthe cat,y\n" * 20)
    (tmp_path / "b.csv").write_text("text,label\nthe old dog,x\nthe old cat,y\n")

    def run(*command: object) -> None:
        launcher = [sys.executable, "-m", "benchmarks.block_variants", "learned,post-norm,gelu"]
        subprocess.run([*launcher, *map(str, command)], cwd=root, check=True, timeout=240)

    flags = [*TOY_FLAGS, "--kernels", "off"]
    run("pretrain", "modern-tiny", "--data", toy_shards, "--output-dir", tmp_path / "run", *flags)
    tables = ("--train", tmp_path / "a.csv", "--dev", tmp_path / "b.csv", "--epochs", 1)
    run("finetune", tmp_path / "run", "--task", "classify", *tables, "--output-dir", tmp_path / "x")
    assert (tmp_path / "x" / "results.json").is_file()
