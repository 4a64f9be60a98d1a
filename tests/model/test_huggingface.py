from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra.model.electra_family import SHAPE_KEYS
from electra.model.family import ExportedNetwork
from electra.model.verify import verify
from tests.wording import wording_of

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is first imported, which reads it then

from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.model import huggingface, model_config
from electra.model.card import model_card
from electra.model.card_content import CardContent
from electra.model.electra_encoder import ElectraEncoder
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape, GeneratorShape

wording = wording_of(__file__)

TINY = EncoderShape(layers=2, width=32, heads=4, feedforward=64, embedding=16, positions=24)
SMALL = EncoderShape()
BASE = EncoderShape(layers=2, width=768, heads=12, feedforward=3072, embedding=768)
LARGE = EncoderShape(layers=2, width=1024, heads=16, feedforward=4096, embedding=1024)
SIZES = {
    "small": SMALL,
    "small generator": GeneratorShape().beside(SMALL),
    "base": BASE,
    "base generator": GeneratorShape(fraction=1 / 3).beside(BASE),
    "small generator that shares nothing": GeneratorShape(tie="none").beside(SMALL),
    "large": LARGE,
    "large generator": GeneratorShape().beside(LARGE),
    "causal": replace(TINY, causal=True),
}
SIZES_WITH_MARKS = [
    pytest.param(size, marks=[pytest.mark.slow] * size.startswith("large")) for size in SIZES
]
VOCABULARY = 1000
KINDS = [Discriminator, Generator]


def network(
    kind: type[ExportedNetwork], shape: EncoderShape = TINY, *, seed: int = 0
) -> ExportedNetwork:
    torch.manual_seed(seed)
    built = kind(ElectraEncoder(shape, vocabulary=VOCABULARY)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 1:  # biases and norms start alike, and mixed up would not show
                parameter.add_(0.02 * torch.randn_like(parameter))
    return built


def role(built: ExportedNetwork) -> huggingface.Role:
    return "discriminator" if isinstance(built, Discriminator) else "generator"


def logits(built: ExportedNetwork) -> Tensor:
    input_ids = torch.randint(VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(5))
    positions = (torch.arange(24).expand_as(input_ids),) if isinstance(built, Generator) else ()
    with torch.no_grad():
        return built(
            input_ids, input_ids % 2, torch.arange(24) < torch.tensor([[24], [9]]), *positions
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


@pytest.fixture
def saved(folder: Path) -> Path:
    """A folder without checksums, as stock transformers writes it."""
    huggingface.save(network(Discriminator), folder, role="discriminator")
    (folder / CHECKSUMS).unlink()
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (path.parent / CHECKSUMS).unlink(missing_ok=True)


# ---- the same logits as transformers -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES_WITH_MARKS)
def test_transformers_computes_our_logits_from_our_folder(
    kind: type[ExportedNetwork], size: str, folder: Path
) -> None:
    built = network(kind, SIZES[size])
    huggingface.save(built, folder, role=role(built))
    assert verify(built, folder, tolerance=1e-5) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES_WITH_MARKS)
def test_we_compute_transformers_logits_from_its_folder(
    kind: type[ExportedNetwork], size: str, folder: Path
) -> None:
    built = network(kind, SIZES[size])
    save_stock(built.architecture, SIZES[size], folder)
    report = huggingface.load(built, folder)
    assert not report.missing
    assert not report.unexpected
    assert verify(built, folder, tolerance=1e-5) <= 1e-5


def test_verification_fails_when_the_folder_holds_other_weights(saved: Path) -> None:
    with pytest.raises(
        RuntimeError, match=wording("verification_fails_when_the_folder_holds_other_weights")
    ):
        verify(network(Discriminator, seed=1), saved)


def save_stock(architecture: str, shape: EncoderShape, folder: Path, **options: Any) -> None:
    import transformers

    keys = {key: getattr(shape, field) for field, key in SHAPE_KEYS.items()}
    torch.manual_seed(7)
    stock = getattr(transformers, architecture)(
        transformers.ElectraConfig(vocab_size=VOCABULARY, **keys)
    )
    stock.save_pretrained(folder, **options)


def test_a_causal_model_is_one_in_its_folder_too(folder: Path) -> None:
    huggingface.save(network(Generator, SIZES["causal"]), folder, role="encoder")
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["is_decoder"]) == (["ElectraForCausalLM"], True)
    assert model_config.load_shape(folder)[0].causal
    with pytest.raises(UserError, match=wording("a_causal_model_is_one_in_its_folder_too")):
        huggingface.load(network(Generator), folder)


# ---- what is in a folder -------------------------------------------------------------------------


def test_a_folder_says_what_it_is(folder: Path) -> None:
    huggingface.save(
        network(Generator),
        folder,
        role="encoder",
        config_extra={"pad_token_id": 3},
        card="# A card\n",
        tokenizer_files=lambda fresh: (fresh / "vocab.txt").write_text("[PAD]\n") and None,
    )
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
        "vocab.txt",
        CHECKSUMS,
    }
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["electra_role"], config["pad_token_id"]) == (
        ["ElectraForMaskedLM"],
        "encoder",
        3,
    )
    assert model_config.load_shape(folder) == (TINY, VOCABULARY, "encoder")


def test_weights_are_float32_and_the_tied_table_is_stored_once(folder: Path) -> None:
    huggingface.save(network(Generator).to(torch.bfloat16), folder, role="generator")
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert "generator_lm_head.bias" in tensors
    assert "generator_lm_head.weight" not in tensors
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded_bit_for_bit(kind: type[ExportedNetwork], folder: Path) -> None:
    built, other = network(kind), network(kind, seed=1)
    huggingface.save(built, folder, role=role(built))
    huggingface.load(other, folder)
    assert all(
        torch.equal(other.state_dict()[name], tensor) for name, tensor in built.state_dict().items()
    )


def test_weights_above_the_limit_are_split_and_found_again_by_us_and_by_transformers(
    folder: Path,
) -> None:
    built, other = network(Discriminator), network(Discriminator, seed=1)
    huggingface.save(built, folder, role="discriminator", shard_bytes=30_000)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert not huggingface.load(other, folder).missing
    assert verify(other, folder, tolerance=1e-5) <= 1e-5


# ---- saving never loses a model ------------------------------------------------------------------


def test_saving_over_a_model_replaces_it(saved: Path) -> None:
    huggingface.save(network(Discriminator, seed=1), saved, role="discriminator")
    loaded = network(Discriminator)
    huggingface.load(loaded, saved)
    assert torch.equal(logits(loaded), logits(network(Discriminator, seed=1)))
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_model_and_no_rubbish(saved: Path) -> None:
    def full(fresh: Path) -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match=wording("a_failed_save_leaves_the_old_model_and_no_rubbish")):
        huggingface.save(
            network(Discriminator, seed=1), saved, role="discriminator", tokenizer_files=full
        )
    loaded = network(Discriminator, seed=2)
    huggingface.load(loaded, saved)
    assert torch.equal(logits(loaded), logits(network(Discriminator)))
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_after_a_crash_between_the_two_renames_the_old_model_is_found_and_the_next_save_succeeds(
    saved: Path,
) -> None:
    saved.rename(saved.with_name(".model.old"))
    assert model_config.role_of(saved) == "discriminator"
    assert not huggingface.load(network(Discriminator, seed=1), saved).missing
    huggingface.save(network(Discriminator), saved, role="discriminator")
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all my work")
    with pytest.raises(UserError, match=wording("a_folder_of_something_else_is_not_replaced")):
        huggingface.save(network(Discriminator), tmp_path, role="discriminator")
    assert (tmp_path / "thesis.txt").exists()


# ---- other people's folders ----------------------------------------------------------------------


def test_a_bare_stock_encoder_fills_all_but_the_head(folder: Path) -> None:
    save_stock("ElectraModel", TINY, folder)
    report = huggingface.load(network(Discriminator), folder)
    assert report.missing == (
        "discriminator_predictions.dense.weight",
        "discriminator_predictions.dense.bias",
        "discriminator_predictions.dense_prediction.weight",
        "discriminator_predictions.dense_prediction.bias",
    )
    assert model_config.role_of(folder) == "encoder"
    assert "freshly initialised: discriminator_predictions.dense.weight" in str(report)


def test_a_generator_fills_a_discriminator_s_encoder_and_its_head_is_left_unused(
    folder: Path,
) -> None:
    huggingface.save(network(Generator), folder, role="generator")
    report = huggingface.load(network(Discriminator, seed=1), folder)
    assert "generator_predictions.dense.weight" in report.unexpected
    assert "discriminator_predictions.dense.weight" in report.missing


def test_a_sharded_stock_folder_loads(folder: Path) -> None:
    save_stock("ElectraForPreTraining", TINY, folder, max_shard_size="50KB")
    assert (folder / "model.safetensors.index.json").exists()
    assert not huggingface.load(network(Discriminator), folder).missing


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("ElectraForPreTraining", "discriminator"),
        ("ElectraForMaskedLM", "generator"),
        ("ElectraForSequenceClassification", "encoder"),
    ],
)
def test_the_role_of_a_stock_folder_follows_from_its_architecture(
    saved: Path, architecture: str, expected: str
) -> None:
    edit(saved / "config.json", architectures=[architecture], electra_role=None)
    assert model_config.role_of(saved) == expected


def test_names_that_older_versions_stored_besides_are_no_surprise(folder: Path) -> None:
    huggingface.save(network(Generator), folder, role="generator")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    extra = {
        "generator_lm_head.weight": tensors["electra.embeddings.word_embeddings.weight"].clone(),
        "electra.embeddings.position_ids": torch.arange(24)[None],
    }
    save_file(tensors | extra, path, metadata={"format": "pt"})
    (folder / CHECKSUMS).unlink()
    assert huggingface.load(network(Generator), folder).unexpected == ()


@pytest.mark.parametrize("shard_bytes", [30_000, huggingface.SHARD_BYTES])
def test_others_may_read_the_weights_if_the_umask_lets_them(folder: Path, shard_bytes: int) -> None:
    before = os.umask(0o022)
    try:
        huggingface.save(
            network(Discriminator), folder, role="discriminator", shard_bytes=shard_bytes
        )
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o644"}


# ---- what is refused -----------------------------------------------------------------------------


def refusal(folder: Path, built: ExportedNetwork | None = None) -> str:
    built = built or network(Discriminator)
    before = {name: tensor.clone() for name, tensor in built.state_dict().items()}
    with pytest.raises(UserError) as caught:
        huggingface.load(built, folder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in built.state_dict().items())
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "ours"),
    [
        ("hidden_size", 64, "encoder.width=32"),
        ("num_attention_heads", 2, "encoder.heads=4"),
        ("num_hidden_layers", 3, "encoder.layers=2"),
        ("vocab_size", 999, "vocabulary=1000"),
    ],
)
def test_a_model_of_another_shape_is_refused_by_its_key(
    saved: Path, key: str, value: int, ours: str
) -> None:
    edit(saved / "config.json", **{key: value})
    assert f"config.json: {key} is {value}" in (message := refusal(saved))
    assert ours in message


@pytest.mark.parametrize(
    ("key", "value"), [("model_type", "bert"), ("hidden_act", "gelu_new"), ("type_vocab_size", 4)]
)
def test_a_model_that_our_encoder_cannot_be_is_refused(
    saved: Path, key: str, value: object
) -> None:
    edit(saved / "config.json", **{key: value})
    assert f"{key} is {value!r}" in refusal(saved)


def test_a_number_written_as_text_is_refused_by_its_key(saved: Path) -> None:
    edit(saved / "config.json", hidden_size="32")
    assert "config.json: hidden_size must be a whole number" in refusal(saved)


def test_weights_that_contradict_their_config_are_refused_with_both_shapes(saved: Path) -> None:
    path = saved / "model.safetensors"
    name = "electra.encoder.layer.1.attention.self.key.weight"
    save_file(load_file(path) | {name: torch.zeros(16, 32)}, path)
    assert f"{name} is [16, 32] where the config.json beside it promises [32, 32]" in refusal(saved)


def test_a_pickle_is_never_opened(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert "save_pretrained" in refusal(saved)


def test_an_index_that_points_out_of_its_folder_is_refused(folder: Path) -> None:
    huggingface.save(network(Discriminator), folder, role="discriminator", shard_bytes=30_000)
    edit(folder / "model.safetensors.index.json", weight_map={"x": "../elsewhere.safetensors"})
    assert "not a file of this folder" in refusal(folder)


def test_half_a_file_is_refused_and_changes_nothing(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    assert "model.safetensors: cannot be read" in refusal(saved)


def test_an_encoder_tensor_that_is_not_there_is_refused(saved: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    del tensors["electra.encoder.layer.1.output.dense.bias"]
    save_file(tensors, saved / "model.safetensors")
    assert "encoder.layer.1.output.dense.bias is missing" in refusal(saved)


def test_an_untied_generator_is_refused(folder: Path) -> None:
    huggingface.save(
        network(Generator), folder, role="generator", config_extra={"tie_word_embeddings": False}
    )
    assert "tie_word_embeddings is false" in refusal(folder, network(Generator))


def test_a_generator_whose_weights_are_untied_is_refused_though_its_config_is_silent(
    folder: Path,
) -> None:
    huggingface.save(network(Generator), folder, role="generator")
    (folder / CHECKSUMS).unlink()
    tensors = load_file(folder / "model.safetensors")
    table = tensors["electra.embeddings.word_embeddings.weight"]
    save_file({**tensors, "generator_lm_head.weight": table.clone()}, folder / "model.safetensors")
    huggingface.load(network(Generator), folder)
    save_file({**tensors, "generator_lm_head.weight": 2 * table}, folder / "model.safetensors")
    assert "generator_lm_head.weight differs from electra.embeddings.word" in refusal(
        folder, network(Generator)
    )


def test_a_folder_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    assert "nowhere: no config.json there" in refusal(tmp_path / "nowhere")


# ---- the card ------------------------------------------------------------------------------------


def test_a_card_says_which_model_to_fine_tune_and_which_fills_masks() -> None:
    assert "**fine-tune this one**" in model_card("tiny", CardContent(), role="discriminator")
    generator = model_card("tiny", CardContent(), role="generator")
    assert "**fills masks**" in generator
    assert 'pipeline_tag: "fill-mask"' in generator


def test_a_card_states_given_facts_and_calls_the_rest_not_recorded() -> None:
    content = CardContent(language="en", facts={"Steps": 500, "Energy": None})
    card = model_card("tiny", content, role="discriminator")
    assert 'language: "en"' in card
    assert "| Steps | 500 |" in card
    assert "| Energy | not recorded |" in card
    assert "| Licence | not recorded |" in card
    assert "license:" not in card


def test_a_card_shows_names_as_text() -> None:
    name = "a | <img src=x> [b](http://e)\n\n# c\x1b[2J"
    card = model_card(name, CardContent(facts={name: name}), role="encoder")
    assert "<img" not in card.replace("\\<", "")
    assert "\x1b" not in card
    assert "\n# c" not in card
    assert card.count(r"a \| \<img src=x\> \[b\](http://e) # c\\x1b\[2J") == 3
