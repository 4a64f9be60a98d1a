"""Heads on a ModernBERT: stock transformers computes the same logits from our folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import electra
from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.model import huggingface
from electra.model.families import build_encoder, build_networks
from electra.model.modernbert_family import ModernBertFamily
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.verify import verify
from electra.tasks import find_task
from electra.tasks.features import TaskBatch
from electra.tasks.models import load_tuned, save_tuned
from electra.tasks.task import AnyTask, Network, move_mean_to_first
from tests.tasks.toys import toy_tokenizer

SHAPE = EncoderShape(
    family="modernbert",
    layers=2,
    width=32,
    heads=2,
    feedforward=48,
    embedding=16,
    positions=64,
    dropout=0.0,
    attention_dropout=0.0,
)
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "SequenceClassification": (
        "classify",
        {"labels": ("a", "b", "c"), "metrics": ("accuracy",), "regression": False},
    ),
    "TokenClassification": ("tag", {"labels": ("O", "B-x", "I-x")}),
    "QuestionAnswering": ("squad-1.1", {"head_kind": "simple"}),
    "MultipleChoice": ("choose", {}),
}


def toy_network(task: AnyTask, *, pooling: str = "cls") -> Network:
    torch.manual_seed(0)
    encoder = build_encoder(SHAPE, vocabulary=toy_tokenizer().size)
    network = Network(encoder, task.head(32, dropout=0.0), pooling=pooling)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return network.eval()


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [
        *((name, "cls") for name in TASKS),
        ("SequenceClassification", "mean"),
        ("MultipleChoice", "mean"),
    ],
)
def test_stock_transformers_computes_the_same_logits_and_the_folder_loads_again(
    architecture: str, pooling: str, tmp_path: Path
) -> None:
    name, options = TASKS[architecture]
    task = find_task(name, pooling=pooling, **options)
    network = toy_network(task, pooling=pooling)
    stored = save_tuned(network, task, toy_tokenizer(), tmp_path / "model", length=32, extra={})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == [f"ModernBertFor{architecture}"]
    assert config["classifier_pooling"] == pooling
    assert verify(stored, tmp_path / "model", tolerance=1e-5) < 1e-4
    again = load_tuned(tmp_path / "model").network
    assert verify(again, tmp_path / "model", tolerance=1e-5) < 1e-4
    assert again.pooling == pooling


def test_the_head_of_a_frozen_encoder_reads_the_mean_too() -> None:
    task = find_task("classify", **TASKS["SequenceClassification"][1])
    networks = {}
    for pooling in ("cls", "mean"):
        torch.manual_seed(0)
        encoder = build_encoder(SHAPE, vocabulary=toy_tokenizer().size)
        head = task.head(32, dropout=0.0)
        networks[pooling] = Network(encoder, head, frozen="last", pooling=pooling).eval()
    ids = torch.arange(10)[None]
    batch = TaskBatch(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), {})
    hidden = networks["cls"].hidden_states(batch)
    mean = move_mean_to_first(hidden, batch.attention_mask)
    assert torch.equal(networks["mean"].hidden_states(batch), mean)
    assert not torch.equal(hidden, mean)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("architecture", TASKS)
def test_a_folder_that_transformers_made_gives_the_same_logits(
    architecture: str, pooling: str, tmp_path: Path
) -> None:
    import transformers

    tokenizer = toy_tokenizer()
    config = transformers.ModernBertConfig(
        vocab_size=tokenizer.size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        classifier_pooling=pooling,  # read by classes and choices alone
        **ModernBertFamily().special_tokens(pad=0, cls=2, sep=3),
    )
    torch.manual_seed(0)
    stock = getattr(transformers, f"ModernBertFor{architecture}")(config)
    stock.save_pretrained(tmp_path)
    tokenizer.copy_to(tmp_path)
    assert verify(load_tuned(tmp_path).network, tmp_path, tolerance=1e-5) < 1e-4


def test_a_pooling_that_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    task = find_task("classify", labels=("a", "b"), metrics=("accuracy",), regression=False)
    network = toy_network(task)
    save_tuned(network, task, toy_tokenizer(), tmp_path / "model", length=32, extra={})
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text()) | {"classifier_pooling": "max"}
    del config["electra_task"]
    path.write_text(json.dumps(config))
    (tmp_path / "model" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match="classifier_pooling must be one of 'cls', 'mean'"):
        load_tuned(tmp_path / "model")


def test_the_scores_of_a_regression_are_the_same_from_its_folder(tmp_path: Path) -> None:
    task = find_task("glue/sts-b")
    network = toy_network(task)
    stored = save_tuned(network, task, toy_tokenizer(), tmp_path / "model", length=32, extra={})
    assert verify(stored, tmp_path / "model", tolerance=1e-5) < 1e-4
    again = load_tuned(tmp_path / "model").network
    ids = torch.arange(10)[None]
    rows = ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)
    torch.testing.assert_close(again.logits(*rows), network.logits(*rows))


def test_the_mean_leaves_padding_out() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[2.0], [4.0], [6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert move_mean_to_first(hidden, mask)[:, 0].flatten().tolist() == [2.0, 4.0]
    assert torch.equal(move_mean_to_first(hidden, mask)[:, 1:], hidden[:, 1:])


def test_a_discriminator_is_no_tagger_although_it_has_the_class_of_one(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    generator = GeneratorShape(width=16, heads=2, layers=2)
    _, discriminator = build_networks(SHAPE, generator, vocabulary=tokenizer.size)
    huggingface.save(
        discriminator, tmp_path, role="discriminator", tokenizer_files=tokenizer.copy_to
    )
    with pytest.raises(UserError, match="an encoder without a task; fine-tune it first"):
        load_tuned(tmp_path)
    assert electra.load(tmp_path).task is None
