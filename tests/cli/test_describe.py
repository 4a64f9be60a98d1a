"""Numbers of a recipe or a model, the same wherever they are asked for."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra import shipped
from electra.__main__ import main
from electra.cli.describe import (
    Description,
    as_json,
    describe_folder,
    describe_recipe,
    print_description,
)
from electra.config import UserError
from electra.pretraining.recipe import load_recipe
from electra.settings import as_dict, as_toml
from tests.wording import wording_of

wording = wording_of(__file__)

STOCK = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "embedding_size": 12,
    "max_position_embeddings": 40,
}


@pytest.fixture(scope="module")
def small() -> Description:
    return describe_recipe(load_recipe("small"), name="small")


def test_small_is_described_with_the_published_numbers(small: Description) -> None:
    assert small.parameters.encoder == pytest.approx(13.48e6, rel=1e-3)
    assert small.tokens == 1_000_000 * 128 * 128
    assert small.official.training * small.tokens == pytest.approx(1.294e18, rel=1e-3)
    assert small.standard.training == pytest.approx(70.2e6, rel=1e-3)


def test_both_networks_are_described_and_a_masked_lm_has_one(small: Description) -> None:
    assert list(small.networks) == ["discriminator", "generator"]
    assert list(describe_recipe(load_recipe("bert-small"), name="x").networks) == ["encoder"]


def test_an_encoder_that_restores_is_described_beside_its_generator() -> None:
    base, fewer, replace, everything = (
        describe_recipe(load_recipe(name), name=name)
        for name in ("base", "electra-15-base", "replace-mlm-base", "all-tokens-mlm-base")
    )
    assert list(replace.networks) == list(everything.networks) == ["encoder", "generator"]
    assert replace.parameters.encoder == everything.parameters.encoder == base.parameters.encoder
    assert everything.parameters.head == replace.parameters.head + 768 + 1
    assert fewer.standard == base.standard, "every token passes the head, judged or not"
    everywhere = 0.85 * (2 * 768 * 768 + 2 * 768 * 30522) + 2 * 768
    assert everything.standard.forward - replace.standard.forward == pytest.approx(everywhere)


def test_a_network_that_does_not_learn_is_described_by_one_pass() -> None:
    flags = ["--objective.generator-training", "frozen", "--objective.generator.tie", "none"]
    frozen = describe_recipe(load_recipe("small", flags=flags), name="frozen")
    assert frozen.standard.passes == {"discriminator": 3, "generator": 1}
    assert frozen.official.passes == {"discriminator": 2, "generator": 1}
    console = Console(width=120, record=True, file=io.StringIO())
    print_description(frozen, console)
    shown = " ".join(console.export_text().replace("│", " ").split())
    assert "generator: passes in a training step 1 1" in shown
    assert "discriminator: passes in a training step 3 2" in shown


def test_the_family_of_the_networks_is_said() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    print_description(describe_recipe(load_recipe("modern-tiny"), name="x"), console)
    shown = " ".join(console.export_text().replace("│", " ").split())
    assert "family modernbert modernbert" in shown


def test_the_memory_of_a_step_grows_with_the_rows_taken_at_a_time() -> None:
    few, many = (
        describe_recipe(load_recipe("small", flags=["--micro-batch-size", rows]), name="x").memory
        for rows in ("1", "128")
    )
    assert list(few) == ["fp32 (a CPU)", "bf16, kernels (a GPU)"]
    for way, terms in few.items():
        assert 5 * sum(terms.values()) < sum(many[way].values()) < 128 * sum(terms.values())


@pytest.mark.parametrize(
    ("batch_size", "world_size", "rows"),
    [(128, 1, 128), (128, 3, 32), (100, 8, 10), (200, 1, 100), (131, 2, 1)],
)
def test_the_rows_taken_at_a_time_make_up_the_batch_as_a_run_demands(
    batch_size: int, world_size: int, rows: int
) -> None:
    """Of 128 tokens, so that 128 of them are the usual number of tokens."""
    recipe = load_recipe("small", flags=["--batch-size", str(batch_size)])
    described = describe_recipe(recipe, name="x", world_size=world_size)
    assert described.micro_batch == rows
    load_recipe("small", flags=f"--batch-size {batch_size} --micro-batch-size {rows}".split())


def test_an_objective_with_too_few_rows_for_each_process_is_refused_as_its_run_is() -> None:
    """Next sentence prediction needs two rows in a micro-batch."""
    recipe = load_recipe("bert-nsp-base", flags=["--batch-size", "4"])
    assert describe_recipe(recipe, name="x", world_size=2).micro_batch == 2
    with pytest.raises(UserError, match="equal micro-batches of 2 or more that give each of 4"):
        describe_recipe(recipe, name="x", world_size=4)


@pytest.mark.parametrize(
    ("flags", "ways"),
    [
        (["--precision", "bf16"], ["bf16, kernels"]),
        (["--precision", "fp32"], ["fp32"]),
        (["--precision", "fp16"], ["fp16"]),
        (["--precision", "bf16", "--training.kernels", "off"], ["bf16"]),
        (["--activation-checkpointing", "true"], ["fp32 (a CPU)", "bf16 (a GPU)"]),
        (["--encoder.heads", "1"], ["fp32 (a CPU)", "bf16 (a GPU)"]),
        (["--encoder.heads", "2"], ["fp32 (a CPU)", "bf16, kernels (a GPU)"]),
    ],
)
def test_memory_is_estimated_for_every_precision_that_the_recipe_leaves_open(
    flags: list[str], ways: list[str]
) -> None:
    assert list(describe_recipe(load_recipe("small", flags=flags), name="x").memory) == ways


def test_each_of_many_processes_needs_less_memory_with_fsdp() -> None:
    def memory(*flags: str, world_size: int = 8) -> dict[str, float]:
        recipe = load_recipe(
            "large", flags=["--precision", "bf16", "--training.kernels", "off", *flags]
        )
        return describe_recipe(recipe, name="large", world_size=world_size).memory["bf16"]

    alone, whole, parts = memory(world_size=1), memory(), memory("--parallel", "fsdp")
    again = memory("--parallel", "fsdp", "--activation-checkpointing", "true")
    assert whole == alone, "the rows at a time are the same, and so is all the rest"
    for term in ("weights", "gradients", "optimizer"):
        assert parts[term] == whole[term] / 8
    assert parts["weights in low precision"] == whole["weights in low precision"]
    assert parts["gathered weights and gradients"] < 0.2 * (whole["weights"] + whole["gradients"])
    assert sum(again.values()) < sum(parts.values()) / 3
    assert sum(parts.values()) < 0.9 * sum(whole.values())


def test_zero1_keeps_the_kernels_and_shards_the_optimizer_state_alone() -> None:
    whole, parts = (
        describe_recipe(load_recipe("large", flags=flags), name="large", world_size=8)
        for flags in (["--precision", "bf16"], ["--precision", "bf16", "--parallel", "zero1"])
    )
    expected = dict(whole.memory["bf16, kernels"])
    expected["optimizer"] /= 8
    assert parts.memory["bf16, kernels"] == expected


def test_zero1_is_described_only_with_the_kernels_that_a_run_of_it_needs() -> None:
    def ways(*flags: str, world_size: int = 8) -> list[str]:
        recipe = load_recipe("large", flags=["--parallel", "zero1", *flags])
        return list(describe_recipe(recipe, name="large", world_size=world_size).memory)

    assert ways() == ["bf16, kernels (a GPU)"]
    assert ways(world_size=1) == ["fp32 (a CPU)", "bf16, kernels (a GPU)"]
    for flags in (["--precision", "fp32"], ["--training.kernels", "off"]):
        assert len(ways(*flags, world_size=1)) > 0
        with pytest.raises(UserError, match=wording("zero1_is_refused_without_kernels")):
            ways(*flags)


def test_muon_keeps_less_optimizer_state_than_adamw() -> None:
    def optimizer_bytes(name: str) -> list[float]:
        recipe = load_recipe("modern-small", flags=["--optimizer.name", name])
        return [terms["optimizer"] for terms in describe_recipe(recipe, name="x").memory.values()]

    encoder = load_recipe("modern-small").encoder
    block = 4 * encoder.width**2 + 3 * encoder.width * encoder.feedforward
    cpu, gpu = (
        adamw - muon
        for adamw, muon in zip(optimizer_bytes("adamw"), optimizer_bytes("muon"), strict=True)
    )
    assert cpu > 4 * encoder.layers * block  # and the blocks of the generator
    assert gpu == cpu / 2  # the kernels keep the updates in bf16 beside the momentum


def test_the_memory_of_many_processes_says_so_and_needs_a_row_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "describe",
        "small",
        "--parallel",
        "fsdp",
        "--activation-checkpointing",
        "true",
        "--world-size",
    ]
    assert main([*words, "4"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "memory of a step on each of 4 GPUs, fsdp, estimated" in shown
    assert "blocks computed again" in shown
    assert main([*words, "4", "--micro-batch-size", "64"]) == 2
    assert "a step has 2 micro-batches, too few for so many processes" in capsys.readouterr().err
    assert main([*words, "1000"]) == 2
    assert "--world-size 1000: must be from 1 to training.batch_size=128" in capsys.readouterr().err


def test_the_json_holds_the_numbers_of_the_tables(small: Description) -> None:
    values = json.loads(as_json(small))
    console = Console(width=120, record=True, file=io.StringIO())
    print_description(small, console)
    shown = console.export_text()
    assert f"{values['parameters']['encoder']:,}" in shown
    assert f"{values['official']['training_total']:.3g}" in shown
    assert values["networks"]["generator"]["width"] == 64


@pytest.mark.parametrize(
    ("model", "networks"),
    [(ElectraForPreTraining, ["discriminator", "generator"]), (ElectraForMaskedLM, ["encoder"])],
)
def test_a_stock_model_is_described_by_its_shape_and_says_what_is_assumed(
    tmp_path: Path, model: type, networks: list[str]
) -> None:
    stock = model(ElectraConfig(**STOCK))
    stock.save_pretrained(tmp_path)
    described = describe_folder(tmp_path)
    main = next(iter(described.networks.values()))
    assert list(described.networks) == networks
    assert (main.layers, main.width, main.embedding, described.vocabulary, described.length) == (
        2,
        24,
        12,
        60,
        40,
    )
    assert described.parameters.encoder == sum(p.numel() for p in stock.electra.parameters())
    assert "no recipe recorded" in described.name


def test_a_run_that_has_no_model_yet_is_described_by_its_settings(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(as_toml(load_recipe("tiny")))
    described = describe_folder(tmp_path)
    assert described.name == f"{tmp_path} (no model yet)"
    assert described.parameters == describe_recipe(load_recipe("tiny"), name="x").parameters


def test_a_folder_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=wording("a_folder_of_another_kind_of_model_is_refused")):
        describe_folder(tmp_path)


def test_a_recipe_that_is_no_table_is_refused(tmp_path: Path) -> None:
    ElectraForPreTraining(ElectraConfig(**STOCK)).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"electra_recipe": "small"}))
    with pytest.raises(UserError, match="electra_recipe"):
        describe_folder(tmp_path)


def test_a_model_of_an_objective_that_is_not_registered_is_described_by_its_shape(
    tmp_path: Path,
) -> None:
    ElectraForPreTraining(ElectraConfig(**STOCK)).save_pretrained(tmp_path)
    by_shape = describe_folder(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    recorded = {"electra_recipe": {"objective": {"name": "rtd-clm", "weight": 2.0}}}
    (tmp_path / "config.json").write_text(json.dumps(values | recorded))
    described = describe_folder(tmp_path)
    assert described.standard == by_shape.standard
    assert "its objective 'rtd-clm' is not registered here; rows of" in described.name


def test_a_recipe_of_the_other_family_is_refused(tmp_path: Path) -> None:
    ElectraForPreTraining(ElectraConfig(**STOCK)).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    recorded = {"electra_recipe": as_dict(load_recipe("modern-tiny"))}
    (tmp_path / "config.json").write_text(json.dumps(values | recorded))
    with pytest.raises(UserError, match=r"electra_recipe has encoder\.family=modernbert"):
        describe_folder(tmp_path)


@pytest.mark.parametrize(("typed", "meant"), [("small_en", "small-en"), ("smal", "small")])
def test_a_misspelt_name_is_answered_with_the_nearest_recipe_or_model(
    typed: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "small-en").mkdir()
    (tmp_path / "small-en" / "config.json").write_text("{}", encoding="utf8")
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    assert main(["describe", typed]) == 2
    message = f"unknown recipe or model '{typed}'; did you mean {meant}?"
    assert message in " ".join(capsys.readouterr().err.split())
