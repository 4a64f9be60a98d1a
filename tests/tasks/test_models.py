"""Fine-tuned models: transformers reads ours and computes the same logits, and we read its."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers

from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.data.tables import find_table
from electra.model import huggingface, model_config
from electra.model.families import build_encoder, build_networks, family_of
from electra.model.networks import Generator
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.verify import stock_logits
from electra.tasks import find_task
from electra.tasks.features import TaskBatch
from electra.tasks.inference import answer_examples, predict
from electra.tasks.models import (
    FinetunedModel,
    Pretrained,
    build_network,
    load_pretrained,
    load_tuned,
    model_folder,
    save_tuned,
)
from electra.tasks.task import move_last_to_first
from tests.tasks.toys import TOYS, tiny_model, toy_tokenizer, written
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

HELD_BY = {
    "classes": "ElectraForSequenceClassification",
    "scores": "ElectraForSequenceClassification",
    "simple": "ElectraForQuestionAnswering",
    "tags": "ElectraForTokenClassification",
    "choices": "ElectraForMultipleChoice",
}
ByHeart = Callable[[str], Path]


def examples_of(model: FinetunedModel, path: Path) -> list[Any]:
    return list(model.task.read([find_table(path)], labelled=True))


def both_logits(model: FinetunedModel, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours and theirs. Of one unit at a time, since the rows of a choice are one question to
    transformers.
    """
    architecture = json.loads((model.folder / "config.json").read_text())["architectures"][0]
    stock = getattr(transformers, architecture).from_pretrained(model.folder).eval()
    features = model.task.features(
        examples_of(model, path), model.tokenizer, length=model.length, training=False
    )
    batches = [features.collate(np.array([unit])) for unit in range(len(features))]
    with torch.no_grad():
        ours = [model.network.logits(*batch[:3]).flatten() for batch in batches]
        theirs = [stock_logits(stock, transformers_inputs(batch)).flatten() for batch in batches]
    return torch.cat(ours), torch.cat(theirs)


def transformers_inputs(batch: TaskBatch) -> dict[str, torch.Tensor]:
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "attention_mask": batch.attention_mask.long(),
    }


# ---- a fresh head --------------------------------------------------------------------------------

FRESH = {
    "classes": ("classify", {"labels": ("a", "b"), "regression": False}),
    "scores": ("classify", {"regression": True}),
    "tags": ("tag", {"labels": ("O", "B-x", "I-x")}),
    "choices": ("choose", {}),
    "simple": ("span", {"head_kind": "simple"}),
    "joint": ("span", {"unanswerable": True}),
}


@pytest.mark.parametrize("name", FRESH)
@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_a_fresh_head_begins_with_glorots_weights_unless_berts_are_asked_for(
    family: Any, name: str
) -> None:
    torch.manual_seed(0)
    task_name, options = FRESH[name]
    task = find_task(task_name, **options)
    shape = EncoderShape(family=family, layers=1, width=256, heads=4, feedforward=8, embedding=8)
    source = Pretrained(
        Path(),
        toy_tokenizer(),
        build_encoder(shape, vocabulary=9),
        prediction_head=None,
        loaded=None,
    )
    for layer in linear_layers(build_network(source, task, dropout=0.0).head):
        outputs, inputs = layer.weight.shape
        deviation = (2 / (inputs + outputs)) ** 0.5  # 0.088 for 256 and 2
        assert layer.weight.std().item() == pytest.approx(deviation, rel=0.15)
        assert layer.weight.abs().max() <= 3**0.5 * deviation
        assert not layer.bias.any()
    for layer in linear_layers(build_network(source, task, dropout=0.0, head_init="normal").head):
        assert layer.weight.abs().max() <= 0.04


def linear_layers(head: torch.nn.Module) -> list[torch.nn.Linear]:
    return [layer for layer in head.modules() if isinstance(layer, torch.nn.Linear)]


def test_officially_words_are_tagged_with_what_pre_training_learnt_of_the_second_segment(
    tiny: Path,
) -> None:
    types = load_pretrained(tiny).encoder.state_dict()["embeddings.token_type_embeddings.weight"]
    for conventions, token_type in (("default", 0), ("official", 1)):
        task = find_task("tag", labels=("O", "B-x", "I-x"), conventions=conventions)
        network = build_network(load_pretrained(tiny), task, dropout=0.0)
        table = network.encoder.state_dict()["embeddings.token_type_embeddings.weight"]
        assert table[0].equal(types[token_type])
        assert table[1].equal(types[1])


# ---- ours, in transformers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", HELD_BY)
def test_stock_transformers_computes_the_same_logits_from_our_folder(
    by_heart: ByHeart, name: str
) -> None:
    model = load_tuned(by_heart(name))
    assert json.loads((model.folder / "config.json").read_text())["architectures"] == [
        HELD_BY[name]
    ]
    ours, theirs = both_logits(model, by_heart(name).parent / TOYS[name].file)
    assert ours.std() > 0.1, "logits that are all alike would prove nothing"
    assert ours.sub(theirs).abs().max() < 1e-4


def test_a_pipeline_of_transformers_says_our_labels_with_our_probabilities(
    by_heart: ByHeart,
) -> None:
    folder = load_tuned(by_heart("classes")).folder
    pipeline = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    asked = "dog rome in rome the a on"  # one of the eight
    (ours,) = predict(
        [load_tuned(folder)], [written(folder.parent / "asked.jsonl", json.dumps({"text": asked}))]
    )
    (theirs,) = pipeline(asked)
    assert theirs["label"] == ours["label"] == "dogs"
    assert theirs["score"] == pytest.approx(ours["probability"], abs=1e-5)
    assert pipeline.tokenizer.model_max_length == load_tuned(folder).length


def test_a_pipeline_does_not_cut_texts_that_are_read_in_windows(by_heart: ByHeart) -> None:
    model = load_tuned(by_heart("tags"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(model.folder))
    assert tokenizer.model_max_length == model.network.encoder.shape.positions > model.length


@pytest.mark.parametrize("name", ["joint", "frozen"])
def test_a_head_that_transformers_cannot_hold_says_so_in_its_card(
    by_heart: ByHeart, name: str
) -> None:
    folder = load_tuned(by_heart(name)).folder
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["ElectraModel"]
    assert "Stock transformers has no class for this head" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", TOYS)
def test_a_folder_gives_back_the_answers_of_the_network_that_was_saved(
    by_heart: ByHeart, name: str
) -> None:
    run = by_heart(name)
    kept = [
        json.loads(line)
        for line in (run / "seed-0" / "predictions-dev.jsonl").read_text().splitlines()
    ]
    model = load_tuned(run)
    examples = examples_of(model, run.parent / TOYS[name].file)
    found = [
        model.task.record(*pair)
        for pair in zip(examples, answer_examples([model], examples), strict=True)
    ]
    for ours, theirs in zip(found, kept, strict=True):
        for key in ("label", "answer", "tags", "choice", "null_odds", "probability", "score"):
            assert ours.get(key) == (
                pytest.approx(theirs[key], abs=1e-4)
                if isinstance(theirs.get(key), float)
                else theirs.get(key)
            ), key


# ---- theirs, with us -----------------------------------------------------------------------------


def stock_folder(folder: Path, architecture: str, **settings: Any) -> Path:
    """A model that transformers itself made, its weights large enough to tell answers apart."""
    tokenizer = toy_tokenizer()
    config = transformers.ElectraConfig(
        vocab_size=tokenizer.size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.3,
        **{"max_position_embeddings": 64, **settings},
    )
    torch.manual_seed(0)
    getattr(transformers, architecture)(config).save_pretrained(folder)
    tokenizer.copy_to(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "architecture", "settings"),
    [
        ("classes", "ElectraForSequenceClassification", {"id2label": {0: "cats", 1: "dogs"}}),
        ("scores", "ElectraForSequenceClassification", {"num_labels": 1}),
        (
            "tags",
            "ElectraForTokenClassification",
            {"id2label": dict(enumerate(["O", "B-PER", "B-LOC"]))},
        ),
        ("simple", "ElectraForQuestionAnswering", {}),
        ("choices", "ElectraForMultipleChoice", {}),
        (
            "choices",
            "ElectraForMultipleChoice",
            {"summary_use_proj": False, "summary_activation": ""},
        ),
    ],
)
def test_a_model_that_transformers_made_is_read_and_agrees(
    tmp_path: Path, name: str, architecture: str, settings: dict[str, Any]
) -> None:
    toy = TOYS[name]
    folder = stock_folder(tmp_path / "stock", architecture, **settings)
    model = load_tuned(folder, task=find_task(toy.task, **toy.options))
    path = written(tmp_path / toy.file, toy.content)
    ours, theirs = both_logits(model, path)
    assert ours.std() > 0.01
    assert ours.sub(theirs).abs().max() < 1e-4
    examples = examples_of(model, path)
    model.task.check(examples)
    scores = model.task.score(examples, answer_examples([model], examples))
    assert 0 <= scores.get(model.task.metric, 0) <= 1 or name == "scores"


@pytest.mark.parametrize("family", ["electra", "modernbert"])
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("classes", ("cats", "dogs", "birds")),
        ("classes", ("original", "replaced")),  # as transformers leaves it where nobody names two
        ("tags", ("O", "B-PER", "B-LOC")),
        ("tags", ("original", "replaced")),
    ],
)
def test_a_discriminator_that_transformers_fine_tuned_is_read_and_agrees(
    tmp_path: Path, family: Literal["electra", "modernbert"], name: str, labels: tuple[str, ...]
) -> None:
    source, target = save_discriminator(tmp_path / "ours", family), tmp_path / "fine-tuned"
    named = {"id2label": dict(enumerate(labels)), "label2id": {x: i for i, x in enumerate(labels)}}
    config = transformers.AutoConfig.from_pretrained(source, **named)
    classes = {"classes": "SequenceClassification", "tags": "TokenClassification"}
    stock = getattr(transformers, f"AutoModelFor{classes[name]}").from_config(config)
    encoder = transformers.AutoModel.from_pretrained(source)
    stock.base_model.load_state_dict(encoder.state_dict())
    stock.save_pretrained(target)
    toy_tokenizer().copy_to(target)
    assert json.loads((target / "config.json").read_text())["electra_role"] == "discriminator"
    assert model_config.role_of(source) == "discriminator"
    assert model_config.role_of(target) == "encoder"
    toy = TOYS[name]
    model = load_tuned(target)
    ours, theirs = both_logits(model, written(tmp_path / toy.file, toy.content))
    assert ours.std() > 1e-4
    assert ours.sub(theirs).abs().max() < 1e-6


def save_discriminator(folder: Path, family: Literal["electra", "modernbert"]) -> Path:
    shape = EncoderShape(family=family, layers=2, width=16, heads=2, feedforward=16, embedding=16)
    tokenizer = toy_tokenizer()
    _, network = build_networks(shape, GeneratorShape(), vocabulary=tokenizer.size)
    ids = family_of(shape).special_tokens(pad=tokenizer.pad, cls=tokenizer.cls, sep=tokenizer.sep)
    huggingface.save(
        network,
        folder,
        role="discriminator",
        config_extra=ids,
        tokenizer_files=tokenizer.copy_to,
    )
    return folder


def test_classes_that_nobody_named_are_numbers_or_those_of_the_task(tmp_path: Path) -> None:
    folder = stock_folder(tmp_path / "stock", "ElectraForSequenceClassification")
    assert load_tuned(folder).task.labels == ("0", "1")
    assert load_tuned(folder, task=find_task("glue/rte")).task.labels == (
        "entailment",
        "not_entailment",
    )


def test_a_task_that_does_not_fit_the_class_is_refused(tmp_path: Path) -> None:
    folder = stock_folder(tmp_path / "stock", "ElectraForTokenClassification")
    with pytest.raises(UserError, match=wording("a_task_that_does_not_fit_the_class_is_refused")):
        load_tuned(folder, task=find_task("glue/rte"))


def test_a_summary_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = stock_folder(tmp_path / "stock", "ElectraForMultipleChoice", summary_activation="tanh")
    with pytest.raises(UserError, match=wording("a_summary_that_cannot_be_read_is_refused")):
        load_tuned(folder)


# ---- which folder --------------------------------------------------------------------------------


def test_a_fine_tuning_stands_for_its_best_model(by_heart: ByHeart, tmp_path: Path) -> None:
    run = shutil.copytree(by_heart("classes"), tmp_path / "run")
    assert model_folder(run) == run / "seed-0" / "model"
    shutil.rmtree(run / "seed-0")
    with pytest.raises(UserError, match=wording("a_fine_tuning_stands_for_its_best_model")):
        model_folder(run)


def test_an_unfinished_fine_tuning_is_refused_with_its_status_and_the_seed_that_it_has(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "status.json").write_text('{"status": "stopped"}')
    message = r"a fine-tuning \(stopped\) .*the same `electra finetune` command continues it"
    with pytest.raises(UserError, match=f"{message}$"):
        model_folder(tmp_path)
    seed = tiny_model(tmp_path / "seed-0" / "model")
    with pytest.raises(UserError, match=f"{message}; {seed} is the model of a seed"):
        model_folder(tmp_path)


@pytest.mark.parametrize(
    "path", ["../stranger/model", "ABSOLUTE", "seed-0/../../stranger/model", "a\0/model", 7]
)
def test_a_best_model_outside_of_its_folder_is_refused(path: object, tmp_path: Path) -> None:
    stranger = tiny_model(tmp_path / "stranger" / "model")
    if path == "ABSOLUTE":
        path = str(stranger)
    (tmp_path / "run").mkdir()
    results = tmp_path / "run" / "results.json"
    results.write_text(json.dumps({"best_model": path}), encoding="utf8")
    with pytest.raises(UserError, match=rf"{results}: best_model="):
        model_folder(tmp_path / "run")


def test_a_generator_is_refused_with_the_discriminator_beside_it(tmp_path: Path) -> None:
    tiny_model(tmp_path / "discriminator")
    generator = tiny_model(tmp_path / "generator", network=Generator, role="generator")
    with pytest.raises(
        UserError, match=f"holds a generator.* use the discriminator: {tmp_path / 'discriminator'}"
    ):
        load_pretrained(generator)
    assert load_pretrained(tmp_path).folder == tmp_path / "discriminator"


def test_a_tokenizer_with_more_words_than_the_network_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "tiny")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["zebra"] = 999
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / CHECKSUMS).unlink()
    with pytest.raises(
        UserError, match=wording("a_tokenizer_with_more_words_than_the_network_is_refused")
    ):
        load_pretrained(folder)


def test_random_weights_keep_nothing_of_the_folder_but_shape_and_tokenizer(tiny: Path) -> None:
    filled, fresh = load_pretrained(tiny), load_pretrained(tiny, random_weights=True)
    assert fresh.loaded is None
    assert fresh.encoder.shape == filled.encoder.shape
    table_of = "embeddings.word_embeddings.weight"
    assert not fresh.encoder.state_dict()[table_of].equal(filled.encoder.state_dict()[table_of])


def test_a_length_beyond_the_positions_is_refused_in_a_folder_too(
    by_heart: ByHeart, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(load_tuned(by_heart("classes")).folder, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text()) | {"electra_length": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / CHECKSUMS).unlink()
    with pytest.raises(
        UserError, match=wording("a_length_beyond_the_positions_is_refused_in_a_folder_too")
    ):
        load_tuned(folder)


def test_scores_on_a_frozen_encoder_come_back_in_their_unit(tiny: Path, tmp_path: Path) -> None:
    task = find_task("glue/sts-b", frozen="last")
    network = build_network(load_pretrained(tiny), task, dropout=0.0).eval()
    save_tuned(network, task, toy_tokenizer(), tmp_path / "model", length=32, extra={})
    again = load_tuned(tmp_path / "model").network
    assert again.architecture is None
    ids = torch.arange(10)[None]
    rows = ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)
    torch.testing.assert_close(again.logits(*rows), network.logits(*rows))


# ---- a causal encoder ----------------------------------------------------------------------------


def test_of_a_causal_encoder_the_last_token_stands_for_the_text(tmp_path: Path) -> None:
    """Its [CLS] has seen nothing else, and every text would get the same answer."""
    model = tiny_model(tmp_path / "causal", network=Generator, role="encoder", causal=True)
    assert TOYS["classes"].learnt(model, tmp_path / "run").median == 1.0
    tuned = load_tuned(tmp_path / "run")
    assert tuned.network.encoder.shape.causal
    said = [
        json.loads(line)["label"] for line in (tmp_path / "run/seed-0/predictions-dev.jsonl").open()
    ]
    assert said == [
        predicted["label"] for predicted in predict([tuned], [tmp_path / "classes.csv"])
    ]
    assert json.loads((tuned.folder / "config.json").read_text())["architectures"] == [
        "ElectraModel"
    ]
    assert "no class for this head" in (tuned.folder / "README.md").read_text()


def test_the_last_vector_takes_the_first_place_and_the_others_keep_theirs() -> None:
    hidden = 10 * torch.arange(2.0)[:, None, None] + torch.arange(4.0)[:, None]
    moved = move_last_to_first(hidden, torch.tensor([[True] * 4, [True, True, False, False]]))
    assert moved.squeeze(-1).tolist() == [[3, 1, 2, 3], [11, 11, 12, 13]]
