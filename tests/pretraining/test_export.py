"""Exporting networks, and initialising them from model folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra.config import UserError
from electra.data.shards import Shards
from electra.model import huggingface
from electra.model.families import build_masked_lm
from electra.objectives.objective import Objective
from electra.pretraining.export import initialise_from, network_facts
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import Recipe, load_recipe
from electra.runs import checkpoint
from tests.conftest import TOY_FLAGS
from tests.wording import wording_of

wording = wording_of(__file__)

QUICK = ["--batch-size", "4", "--max-steps", "2", "--eval-rows", "4", "--warmup-steps", "1"]
pytestmark = pytest.mark.usefixtures("few_threads")


def toy(recipe: str = "tiny", *more: str) -> Recipe:
    return load_recipe(recipe, flags=[*TOY_FLAGS, *QUICK, *more])


def build_objective_with_seed(recipe: Recipe, shards: Shards, *, seed: int) -> Objective:
    torch.manual_seed(seed)
    size = shards.tokenizer.size
    return recipe.objective.build(
        encoder=recipe.encoder,
        vocabulary=shards.tokenizer,
        unigrams=torch.full((size,), 1 / size),
    )


def changed_parts(objective: Objective, before: dict[str, torch.Tensor]) -> set[str]:
    """The parts of the objective that are not as they were; the generator's shared embeddings count
    as shared.
    """
    shared = "generator.encoder.embeddings"
    return {
        "shared"
        if name.startswith(shared) or "discriminator.encoder.embeddings" in name
        else name.split(".")[0]
        for name, tensor in objective.state_dict().items()
        if not tensor.equal(before[name])
    }


@pytest.fixture(scope="module")
def shards(toy_shards: Path) -> Shards:
    return Shards.open(toy_shards)


@pytest.fixture(scope="module")
def finished(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    pretrain(toy(), data=toy_shards, output_dir=folder, quiet=True)
    return folder


@pytest.fixture
def objective(shards: Shards) -> Objective:
    return build_objective_with_seed(toy(), shards, seed=1)


def initialise(objective: Objective, source: Path, shards: Shards) -> tuple[list[str], set[str]]:
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    return initialise_from(objective, source, shards), changed_parts(objective, before)


# ---- in ------------------------------------------------------------------------------------------


def test_a_run_folder_fills_both_networks_exactly(
    objective: Objective, finished: Path, shards: Shards
) -> None:
    messages, filled = initialise(objective, finished, shards)
    assert filled == {"shared", "generator", "discriminator"}
    assert [text.partition(":")[0] for text in messages] == [
        f"generator from {finished / 'generator'}",
        f"discriminator from {finished / 'discriminator'}",
    ]
    for name, network in objective.networks().items():
        other = build_objective_with_seed(toy(), shards, seed=2)
        initialise_from(other, finished, shards)
        assert all(
            tensor.equal(other.networks()[name].state_dict()[key])
            for key, tensor in network.state_dict().items()
        )


def test_a_discriminator_alone_fills_itself_and_what_the_generator_shares(
    objective: Objective, finished: Path, shards: Shards
) -> None:
    source = finished / "discriminator"
    messages, filled = initialise(objective, source, shards)
    assert filled == {"shared", "discriminator"}
    assert (
        messages[1]
        == f"generator: no model in {source}, freshly initialised except for what it shares"
    )


def test_a_discriminator_alone_fills_a_table_that_is_shared_without_gradients(
    finished: Path, shards: Shards
) -> None:
    tie = ("--objective.generator.tie", "gradient-disentangled")
    objective = build_objective_with_seed(toy("tiny", *tie), shards, seed=1)
    initialise(objective, finished / "discriminator", shards)
    generator, discriminator = (
        objective.networks()[name].encoder.embeddings.word_embeddings
        for name in ("generator", "discriminator")
    )
    stored = load_file(finished / "discriminator" / "model.safetensors")
    table = stored["electra.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(generator.weight, table, rtol=0, atol=1e-7)
    assert discriminator.weight.equal(generator.weight)
    assert not discriminator.delta.any()


def test_a_generator_alone_fills_itself_and_what_the_discriminator_shares(
    objective: Objective, finished: Path, shards: Shards
) -> None:
    messages, filled = initialise(objective, finished / "generator", shards)
    assert filled == {"shared", "generator"}
    assert messages[1].startswith("discriminator: no model in")


def test_a_stock_discriminator_is_loaded_and_its_tensors_are_counted(
    objective: Objective, tmp_path: Path, shards: Shards
) -> None:
    stock = ElectraForPreTraining(stock_config(shards))
    stock.save_pretrained(tmp_path)
    messages, filled = initialise(objective, tmp_path, shards)
    assert filled == {"shared", "discriminator"}
    assert messages[0].startswith(f"discriminator from {tmp_path}: ")
    assert messages[0].endswith(" tensors loaded")
    table = objective.networks()["discriminator"].encoder.embeddings.word_embeddings.weight
    assert table.equal(stock.electra.embeddings.word_embeddings.weight)


def test_a_stock_body_without_a_head_is_loaded_and_the_fresh_head_is_named(
    objective: Objective, tmp_path: Path, shards: Shards
) -> None:
    ElectraForPreTraining(stock_config(shards)).electra.save_pretrained(tmp_path)
    messages, filled = initialise(objective, tmp_path, shards)
    assert "freshly initialised: " in messages[0]
    assert "shared" in filled


def test_a_masked_lm_takes_a_masked_lm(tmp_path: Path, shards: Shards) -> None:
    ElectraForMaskedLM(stock_config(shards)).save_pretrained(tmp_path)
    messages, filled = initialise(
        build_objective_with_seed(toy("bert-small"), shards, seed=1), tmp_path, shards
    )
    assert filled == {"encoder"}
    assert messages[0].startswith(f"encoder from {tmp_path}: ")


def test_a_masked_lm_takes_the_body_of_a_discriminator_and_says_what_is_fresh_and_unused(
    finished: Path, shards: Shards
) -> None:
    messages, _ = initialise(
        build_objective_with_seed(toy("bert-small"), shards, seed=1),
        finished / "discriminator",
        shards,
    )
    assert "freshly initialised: " in messages[0]
    assert "left unused: discriminator_predictions" in messages[0]


def test_an_encoder_and_its_generator_are_filled_by_what_had_their_parts(
    finished: Path, shards: Shards
) -> None:
    """Both are masked LMs, so the role decides."""
    for role, name in (("generator", "generator"), ("discriminator", "encoder")):
        model = build_objective_with_seed(
            toy("replace-mlm-base", "--objective.generator.fraction", "0.5"), shards, seed=1
        )
        messages, _ = initialise(model, finished / role, shards)
        assert messages[0].startswith(f"{name} from {finished / role}: ")


def test_a_stock_model_of_another_vocabulary_is_refused(
    objective: Objective, tmp_path: Path, shards: Shards
) -> None:
    ElectraForPreTraining(
        stock_config(shards, vocab_size=shards.tokenizer.size + 1)
    ).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=rf"vocab_size is {shards.tokenizer.size + 1}, but the network to fill has"
    ):
        initialise_from(objective, tmp_path, shards)


def test_a_stock_model_whose_table_is_padded_beyond_its_tokenizer_is_loaded(
    objective: Objective, tmp_path: Path, shards: Shards
) -> None:
    size = shards.tokenizer.size
    stock = ElectraForPreTraining(stock_config(shards, vocab_size=size + 7))
    stock.save_pretrained(tmp_path)
    shards.tokenizer.copy_to(tmp_path)
    messages, filled = initialise(objective, tmp_path, shards)
    assert filled == {"shared", "discriminator"}
    assert "7 rows of word embeddings left out" in messages[0]
    table = objective.networks()["discriminator"].encoder.embeddings.word_embeddings.weight
    assert table.equal(stock.electra.embeddings.word_embeddings.weight[:size])


def test_a_folder_without_a_model_is_refused_with_what_was_looked_for(
    objective: Objective, tmp_path: Path, shards: Shards
) -> None:
    with pytest.raises(
        UserError, match=wording("a_folder_without_a_model_is_refused_with_what_was_looked_for")
    ):
        initialise_from(objective, tmp_path, shards)


# ---- out -----------------------------------------------------------------------------------------


def test_a_new_run_starts_from_the_models_of_another_and_says_so(
    finished: Path, toy_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = pretrain(toy(), data=toy_shards, output_dir=tmp_path / "run", init_from=finished)
    assert outcome.step == 2
    assert f"discriminator from {finished / 'discriminator'}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("role", "loader"),
    [("discriminator", ElectraForPreTraining), ("generator", ElectraForMaskedLM)],
)
def test_a_model_folder_says_what_it_is_and_how_it_was_made(
    finished: Path, role: str, loader: type
) -> None:
    written = json.loads((finished / role / "config.json").read_text())
    assert (written["electra_role"], written["electra_step"]) == (role, 2)
    assert written["electra_recipe"]["training"]["max_steps"] == 2
    card = (finished / role / "README.md").read_text()
    assert "| Steps | 2 of 2 |" in card
    assert f"| Vocabulary | {written['vocab_size']:,} |" in card
    assert f"| Class in transformers | {loader.__name__} |" in card
    stock = loader.from_pretrained(finished / role, local_files_only=True)
    assert stock.config.vocab_size == written["vocab_size"]
    parameters = sum(parameter.numel() for parameter in stock.base_model.parameters())
    assert f"| Parameters of the encoder | {parameters:,} |" in card


def test_a_card_counts_a_folded_table_as_it_is_written() -> None:
    shape = replace(load_recipe("modern-tiny").encoder, embedding=16)
    network = build_masked_lm(shape, vocabulary=50)
    written = huggingface.named_tensors(network)
    encoder = [tensor.numel() for name, tensor in written.items() if name.startswith("model.")]
    assert network_facts(network)["Parameters of the encoder"] == f"{sum(encoder):,}"


def test_averaged_weights_are_what_is_exported_and_the_card_says_so(
    toy_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--ema-decay", "0.5", "--objective.masking.final-rate", "0.1"]
    pretrain(toy("tiny", *flags), data=toy_shards, output_dir=run)
    assert wording("averaged_weights_are_what_is_exported_and_the_card_says_so") in (
        capsys.readouterr().err
    )
    weights, state = checkpoint.latest(run).tensors()
    exported = load_file(run / "discriminator" / "model.safetensors")
    (table,) = [name for name in weights if name.endswith("word_embeddings.weight")]
    assert exported["electra.embeddings.word_embeddings.weight"].equal(state[f"{table}.ema"])
    assert not weights[table].equal(state[f"{table}.ema"])
    card = (run / "generator/README.md").read_text(encoding="utf8")
    assert "exponential moving average, decay 0.5" in card
    assert "from 0.15 to 0.1; held-out rows are always masked at 0.1" in card


def stock_config(shards: Shards, **changes: object) -> ElectraConfig:
    shape = {
        "vocab_size": shards.tokenizer.size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "embedding_size": 16,
        "max_position_embeddings": 32,
    }
    return ElectraConfig(**shape | changes)


def copy_of(finished: Path, folder: Path, note: str) -> tuple[Path, Path]:
    """Copy a finished run, complete the discriminator's card by hand, and return both."""
    run = shutil.copytree(finished, folder)
    card = run / "discriminator" / "README.md"
    card.write_text(card.read_text(encoding="utf8") + note, encoding="utf8")
    return run, card


def test_the_command_of_a_finished_run_leaves_whole_models_and_their_cards_as_they_are(
    finished: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run, card = copy_of(finished, tmp_path / "run", "Made by hand.")
    weights = run / "generator" / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-4])  # damaged: written again
    pretrain(toy(), data=toy_shards, output_dir=run, quiet=True)
    assert card.read_text(encoding="utf8").endswith("Made by hand.")
    assert weights.read_bytes() == before


def test_models_are_written_again_where_the_card_is_to_say_more_or_the_run_was_longer(
    finished: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run, card = copy_of(finished, tmp_path / "run", "Made by hand.")
    pretrain(toy(), data=toy_shards, output_dir=run, quiet=True, license="mit")
    assert 'license: "mit"' in card.read_text(encoding="utf8")
    card.write_text(card.read_text(encoding="utf8") + "Made by hand.", encoding="utf8")
    pretrain(toy(), data=toy_shards, output_dir=run, quiet=True, license="mit")  # it does already
    assert card.read_text(encoding="utf8").endswith("Made by hand.")
    longer = toy("tiny", "--max-steps", "3")
    pretrain(longer, data=toy_shards, output_dir=run, quiet=True, resume_schedule="stretch")
    assert "| Steps | 3 of 3 |" in card.read_text(encoding="utf8")
