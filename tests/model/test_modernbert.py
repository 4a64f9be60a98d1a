"""ModernBERT: the same numbers as stock transformers, out and in; its own arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from electra.checksums import CHECKSUMS
from electra.config import SettingError, UserError
from electra.model import huggingface, model_config
from electra.model.disentangled import DisentangledEmbedding
from electra.model.families import build_encoder, build_masked_lm, build_networks
from electra.model.modernbert_encoder import rotary_angles, rotate
from electra.model.modernbert_family import SIZES, ModernBertFamily
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.verify import verify
from electra.model.weight_files import FACTORS

VOCABULARY = 50
TINY = EncoderShape(
    family="modernbert",
    layers=3,
    width=32,
    heads=2,
    feedforward=48,
    embedding=32,
    positions=64,
    dropout=0.0,
    attention_dropout=0.0,
)
SHAPES = {
    "plain": TINY,
    "factorised": replace(TINY, embedding=8),
    "windows": replace(TINY, global_every=2, local_attention=6, local_rope_theta=300.0),
    "theta": replace(TINY, rope_theta=160_000.0),
}


def randomised(network: Any, seed: int = 0) -> Any:
    """Return the network with weights large enough that every part of it matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def pair(shape: EncoderShape, **generator: Any) -> tuple[Generator, Discriminator]:
    settings = GeneratorShape(**{"width": 16, "heads": 2, "layers": 2, **generator})
    first, second = build_networks(shape, settings, vocabulary=VOCABULARY)
    assert first is not None
    return randomised(first), randomised(second)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("tie", ["none", "embeddings", "gradient-disentangled"])
def test_both_networks_compute_the_logits_of_stock_transformers(
    shape: EncoderShape, tie: str, tmp_path: Path
) -> None:
    generator, discriminator = pair(shape, tie=tie)
    huggingface.save(generator, tmp_path / "generator", role="generator")
    huggingface.save(discriminator, tmp_path / "discriminator", role="discriminator")
    assert verify(generator, tmp_path / "generator", tolerance=1e-5) < 1e-4
    assert verify(discriminator, tmp_path / "discriminator", tolerance=1e-5) < 1e-4


def test_the_softmax_of_the_two_labels_is_the_sigmoid_of_our_logit(tmp_path: Path) -> None:
    from transformers import ModernBertForTokenClassification

    _, discriminator = pair(TINY)
    huggingface.save(discriminator, tmp_path / "discriminator", role="discriminator")
    stock = ModernBertForTokenClassification.from_pretrained(tmp_path / "discriminator").eval()
    assert stock.config.id2label == {0: "original", 1: "replaced"}
    assert stock.config.classifier_pooling == "mean"  # for who fine-tunes it with transformers
    input_ids = torch.randint(VOCABULARY, (2, 10))
    mask = torch.ones_like(input_ids)
    with torch.no_grad():
        theirs = stock(input_ids=input_ids, attention_mask=mask).logits.softmax(-1)[..., 1]
        ours = discriminator.logits(input_ids, torch.zeros_like(input_ids), mask.bool()).sigmoid()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["ModernBertModel", "ModernBertForMaskedLM"])
def test_a_stock_folder_gives_the_hidden_states_of_stock_transformers(
    name: str, tmp_path: Path
) -> None:
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=64,
        local_attention=8,
        **ModernBertFamily().special_tokens(pad=0, cls=2, sep=3),
    )
    torch.manual_seed(0)
    stock = randomised(getattr(transformers, name)(config))
    stock.save_pretrained(tmp_path)
    assert model_config.role_of(tmp_path) == "encoder"
    network, report = huggingface.load_encoder(tmp_path)
    encoder = network.encoder
    missing = {
        "ModernBertModel": ("head.dense.weight", "head.norm.weight"),
        "ModernBertForMaskedLM": (),
    }
    assert report.missing == missing[name]
    assert encoder.shape.global_every == 3  # stock ModernBERT
    assert encoder.shape.rope_theta == 160_000
    input_ids = torch.randint(VOCABULARY, (2, 30))
    mask = torch.ones_like(input_ids)
    mask[1, 20:] = 0
    with torch.no_grad():
        model = getattr(stock, "model", stock)
        theirs = model(input_ids=input_ids, attention_mask=mask).last_hidden_state
        ours = encoder.eval()(input_ids, torch.zeros_like(input_ids), mask.bool())
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [TINY, SHAPES["windows"], EncoderShape(layers=1)])
def test_to_load_a_network_draws_no_random_numbers(shape: EncoderShape, tmp_path: Path) -> None:
    saved = randomised(build_masked_lm(shape, vocabulary=VOCABULARY))
    huggingface.save(saved, tmp_path / "model", role="encoder")
    before = torch.get_rng_state()
    network, report = huggingface.load_encoder(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)
    assert report.missing == ()
    torch.testing.assert_close(
        dict(network.encoder.state_dict()), dict(saved.encoder.state_dict()), rtol=0, atol=0
    )


def test_what_a_folder_lacks_begins_with_the_values_of_a_fresh_network(tmp_path: Path) -> None:
    import transformers

    stock = transformers.ModernBertModel(
        transformers.ModernBertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            **ModernBertFamily().special_tokens(pad=0, cls=2, sep=3),
        )
    )
    stock.save_pretrained(tmp_path)
    torch.manual_seed(5)
    fresh = huggingface.EncoderOnly(huggingface.build_encoder(tmp_path))
    torch.manual_seed(5)
    network, report = huggingface.load_encoder(tmp_path)
    assert "head.dense.weight" in report.missing
    assert network.prediction_head is not None
    assert fresh.prediction_head is not None
    weights = network.prediction_head.dense.weight
    assert torch.equal(weights, fresh.prediction_head.dense.weight)
    assert weights.std() > 0


def test_a_window_that_a_folder_states_by_its_half_is_read_as_transformers_does(
    tmp_path: Path,
) -> None:
    saved = randomised(build_masked_lm(SHAPES["windows"], vocabulary=VOCABULARY))
    huggingface.save(saved, tmp_path / "model", role="encoder")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 1}))
    (tmp_path / "model" / CHECKSUMS).unlink()
    shape, _, _ = model_config.load_shape(tmp_path / "model")
    assert shape.local_attention == 2
    network = build_masked_lm(shape, vocabulary=VOCABULARY)
    huggingface.load(network, tmp_path / "model")
    assert verify(network, tmp_path / "model", tolerance=1e-5) < 1e-4


def test_the_proof_of_an_export_reads_rows_that_its_window_cuts(tmp_path: Path) -> None:
    shape = replace(SHAPES["windows"], positions=128, local_attention=128)  # the stock window
    network = randomised(build_masked_lm(shape, vocabulary=VOCABULARY))
    huggingface.save(network, tmp_path, role="encoder")
    assert verify(network, tmp_path, tolerance=1e-5) < 1e-4
    network.encoder.shape = replace(shape, local_attention=126)
    with pytest.raises(RuntimeError, match="transformers computes other logits"):
        verify(network, tmp_path)


@pytest.mark.parametrize("tie", ["embeddings", "gradient-disentangled"])
def test_a_saved_pair_fills_another_one(tie: str, tmp_path: Path) -> None:
    saved, loaded = pair(TINY, tie=tie), pair(TINY, tie=tie)
    for network, role in zip(saved, ("generator", "discriminator"), strict=True):
        huggingface.save(network, tmp_path / role, role=role)  # type: ignore[arg-type]
    for network in loaded:
        randomised(network, seed=1)
    for network, role in zip(loaded, ("generator", "discriminator"), strict=True):
        assert not huggingface.load(network, tmp_path / role).missing
        assert verify(network, tmp_path / role, tolerance=1e-5) < 1e-4


def test_a_saved_generator_with_fewer_layers_than_global_every_fills_another_one(
    tmp_path: Path,
) -> None:
    shape = replace(TINY, global_every=3, local_attention=6)
    saved, _ = pair(shape)
    huggingface.save(saved, tmp_path, role="generator")
    assert model_config.load_shape(tmp_path)[0].global_every == 2  # all that layer_types tells
    loaded, _ = pair(shape)
    assert not huggingface.load(randomised(loaded, seed=1), tmp_path).missing
    assert verify(loaded, tmp_path, tolerance=1e-5) < 1e-4


def test_a_message_about_a_generator_names_settings_that_there_are(tmp_path: Path) -> None:
    saved, _ = pair(replace(TINY, rope_theta=500.0))
    huggingface.save(saved, tmp_path, role="generator")
    generator, _ = pair(TINY)
    with pytest.raises(UserError, match=r"set encoder\.rope_theta to 500"):
        huggingface.load(generator, tmp_path, section="objective.generator")
    generator, _ = pair(TINY, layers=1)
    with pytest.raises(UserError, match=r"set objective\.generator\.layers to 2"):
        huggingface.load(generator, tmp_path, section="objective.generator")


def test_without_its_factors_a_folded_table_cannot_fill_a_factorised_network(
    tmp_path: Path,
) -> None:
    _, discriminator = pair(SHAPES["factorised"])
    huggingface.save(discriminator, tmp_path / "model", role="discriminator")
    (tmp_path / "model" / FACTORS).unlink()
    (tmp_path / "model" / CHECKSUMS).unlink()
    assert model_config.load_shape(tmp_path / "model")[0].embedding == 32
    with pytest.raises(UserError, match=r"set encoder\.embedding to 32"):
        huggingface.load(discriminator, tmp_path / "model")


def test_factors_of_another_table_are_refused(tmp_path: Path) -> None:
    _, discriminator = pair(SHAPES["factorised"])
    huggingface.save(discriminator, tmp_path / "model", role="discriminator")
    factors = (tmp_path / "model" / FACTORS).read_bytes()
    huggingface.save(randomised(discriminator, seed=1), tmp_path / "model", role="discriminator")
    (tmp_path / "model" / FACTORS).write_bytes(factors)
    (tmp_path / "model" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=r"does not belong to the model\.safetensors beside it"):
        huggingface.load(discriminator, tmp_path / "model")


@pytest.mark.parametrize("labels", [2, 5])
def test_the_labels_of_a_tagger_are_no_rtd_head(labels: int, tmp_path: Path) -> None:
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        num_labels=labels,
        layer_types=["full_attention"] * TINY.layers,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}},
        **{key: getattr(TINY, field) for field, (key, _) in SIZES.items()},
        **ModernBertFamily().special_tokens(pad=0, cls=2, sep=3),
    )
    transformers.ModernBertForTokenClassification(config).save_pretrained(tmp_path)
    _, discriminator = pair(TINY)
    report = huggingface.load(discriminator, tmp_path)
    assert report.missing == ("classifier.weight", "classifier.bias")
    assert report.unexpected == ("classifier.bias", "classifier.weight")


@pytest.mark.parametrize("embedding", [TINY.width, TINY.width // 2])
def test_rows_that_pad_the_table_of_the_same_tokenizer_are_cut(
    embedding: int, tmp_path: Path
) -> None:
    shape = replace(TINY, embedding=embedding)
    padded, network = (build_masked_lm(shape, vocabulary=rows) for rows in (64, 50))
    huggingface.save(padded, tmp_path, role="encoder")
    report = huggingface.load(network, tmp_path, may_cut=True)
    assert report.cut_rows == 14
    assert "14 rows of word embeddings left out" in str(report)
    input_ids = torch.arange(50).view(2, 25)
    token_type_ids = torch.zeros_like(input_ids)
    attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
    with torch.no_grad():
        expected, found = (
            each.eval().logits(input_ids, token_type_ids, attention_mask)
            for each in (padded, network)
        )
    torch.testing.assert_close(found, expected[..., :50])


def test_a_masked_lm_with_an_output_of_its_own_is_refused_though_its_config_is_silent(
    tmp_path: Path,
) -> None:
    network = build_masked_lm(TINY, vocabulary=VOCABULARY)
    huggingface.save(network, tmp_path, role="encoder")
    (tmp_path / CHECKSUMS).unlink()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    expected = r"decoder\.weight differs from model\.embeddings\.tok_embeddings\.weight"
    with pytest.raises(UserError, match=expected):
        huggingface.load(network, tmp_path)


@pytest.mark.parametrize(("rows", "may_cut"), [(64, False), (40, True)])
def test_a_table_of_another_vocabulary_is_refused(rows: int, may_cut: bool, tmp_path: Path) -> None:
    huggingface.save(build_masked_lm(TINY, vocabulary=rows), tmp_path, role="encoder")
    expected = rf"vocab_size is {rows}.*vocabulary=50, the entries of its tok"
    with pytest.raises(UserError, match=expected):
        huggingface.load(build_masked_lm(TINY, vocabulary=50), tmp_path, may_cut=may_cut)


def test_networks_of_the_other_family_are_refused(tmp_path: Path) -> None:
    electra = EncoderShape(layers=2, width=32, heads=2, feedforward=48, embedding=32, positions=64)
    huggingface.save(build_masked_lm(electra, vocabulary=50), tmp_path / "model", role="generator")
    with pytest.raises(UserError, match=r"model_type is electra.*encoder\.family=modernbert"):
        huggingface.load(build_masked_lm(TINY, vocabulary=50), tmp_path / "model")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention_bias", True, "attention_bias is True"),
        ("mlp_bias", True, "mlp_bias is True"),
        ("norm_bias", True, "norm_bias is True"),
        ("hidden_activation", "silu", "hidden_activation is 'silu'"),
        ("layer_types", ["sliding_attention"] * 3, "layer_types must hold 3 names"),
        ("layer_types", "full_attention", "layer_types"),
        ("rope_scaling", {"type": "linear"}, "rope_scaling is set"),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn"}}, "only rope_type 'default'"),
        ("rope_parameters", {"full_attention": {"type": "linear"}}, "only rope_type 'default'"),
        ("rope_parameters", {"rope_theta": 1e4}, "must have the keys full_attention and sliding"),
        ("rope_parameters", [1e4], "must have the keys full_attention and sliding"),
        (
            "model_type",
            "bert",
            "only ELECTRA and ModernBERT models can be loaded; use it with transformers",
        ),
        ("hidden_size", "wide", "hidden_size"),
        ("num_attention_heads", 3, r"hidden_size: encoder\.width=32 does not split"),
        ("local_attention", 0, r"local_attention: encoder\.local_attention=0 must be above 0"),
        ("sliding_window", "narrow", "sliding_window"),
        ("sliding_window", 0, "sliding_window is 0; it must be at least 1"),
        ("global_attn_every_n_layers", -1, "global_attn_every_n_layers is -1; it must be"),
        ("mlp_dropout", 2, r"mlp_dropout: encoder\.dropout=2"),
    ],
)
def test_what_cannot_be_represented_is_refused_with_its_key(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    huggingface.save(build_masked_lm(TINY, vocabulary=50), tmp_path / "model", role="encoder")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text()) | {key: value}
    if key == "global_attn_every_n_layers":  # of older folders, which have no layer_types
        del config["layer_types"]
    path.write_text(json.dumps(config))
    (tmp_path / "model" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=message):
        model_config.load_shape(tmp_path / "model")


@pytest.mark.parametrize(
    ("key", "value"),
    [("decoder_bias", False), ("classifier_bias", True), ("classifier_activation", "relu")],
)
def test_a_head_that_cannot_be_represented_is_refused_where_it_is_used(
    key: str, value: object, tmp_path: Path
) -> None:
    tokens = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, key: value}
    config = ModernBertFamily().shape_config(TINY) | tokens
    torch.manual_seed(0)
    stock_config = transformers.ModernBertConfig(
        vocab_size=50, bos_token_id=2, eos_token_id=3, **config
    )
    stock = transformers.ModernBertForMaskedLM(stock_config).eval()
    stock.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"{key} is {value!r}.*use it with transformers itself"):
        huggingface.load(build_masked_lm(TINY, vocabulary=50), tmp_path)
    network, report = huggingface.load_encoder(tmp_path)
    assert bool(report.missing) == (key != "decoder_bias"), "the hidden layer before the output"
    ids = torch.arange(5, 15)[None]
    ones = torch.ones_like(ids)
    with torch.no_grad():
        theirs = stock.base_model(input_ids=ids, attention_mask=ones).last_hidden_state
        ours = network.eval().logits(ids, 0 * ones, ones.bool())
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_theta": 1e4}, "rope_theta.*belongs to family='modernbert'"),
        ({"global_every": 3}, "global_every.*belongs to family='modernbert'"),
        ({"family": "modernbert", "causal": True}, "causal.*belongs to family='electra'"),
        ({"family": "modernbert", "rope_theta": -1.0}, "rope_theta.*above 0"),
        (
            {"family": "modernbert", "width": 36, "heads": 4},
            "width=36 does not split into heads=4 heads of an even width.* does is 40",
        ),
        (
            {"family": "modernbert", "width": 63, "heads": 4},
            "width=63 does not split into heads=4 equal heads; the next width that does is 64",
        ),
    ],
)
def test_settings_of_one_family_are_refused_in_the_other(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        EncoderShape(**settings)


def test_padding_changes_no_token() -> None:
    encoder = randomised(build_encoder(SHAPES["windows"], vocabulary=VOCABULARY))
    input_ids = torch.randint(5, VOCABULARY, (1, 12))
    types, mask = torch.zeros_like(input_ids), torch.ones_like(input_ids).bool()
    alone = encoder(input_ids[:, :7], types[:, :7], mask[:, :7])
    mask[:, 7:] = False
    torch.testing.assert_close(encoder(input_ids, types, mask)[:, :7], alone)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_padding_that_no_window_connects_to_a_token_leaves_gradients_finite(
    dropout: float,
) -> None:
    shape = replace(SHAPES["windows"], attention_dropout=dropout)
    encoder = randomised(build_encoder(shape, vocabulary=VOCABULARY)).train()
    input_ids = torch.randint(5, VOCABULARY, (2, 20))
    mask = torch.ones_like(input_ids).bool()
    mask[1, 3:] = False  # a window reaches three tokens
    hidden = encoder(input_ids, torch.zeros_like(input_ids), mask)
    assert hidden.isfinite().all()
    hidden[mask].square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all(), name


def test_rotary_scores_depend_on_distance_alone() -> None:
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    angles = rotary_angles(20, 8, 10_000.0, torch.device("cpu"))
    queries = rotate(query.expand(1, 1, 20, 8), *angles)[0, 0]
    keys = rotate(key.expand(1, 1, 20, 8), *angles)[0, 0]
    scores = queries @ keys.T
    torch.testing.assert_close(scores[3, 5], scores[10, 12])
    assert not torch.isclose(scores[3, 5], scores[3, 6])


def test_a_window_hides_what_is_farther_than_half_of_it() -> None:
    shape = replace(TINY, layers=2, global_every=2, local_attention=6)
    encoder = randomised(build_encoder(shape, vocabulary=VOCABULARY))
    local = encoder.blocks[1]
    _, context = encoder.contexts(torch.ones(1, 12).bool())
    hidden = torch.randn(1, 12, 32)
    far = hidden.clone()
    far[:, 9:] = torch.randn(1, 3, 32)
    torch.testing.assert_close(local(hidden, *context)[:, :6], local(far, *context)[:, :6])
    assert not torch.allclose(local(hidden, *context)[:, 6], local(far, *context)[:, 6])


def test_only_the_generator_moves_a_gradient_disentangled_table() -> None:
    generator, discriminator = pair(TINY, tie="gradient-disentangled")
    embedding = discriminator.encoder.embeddings.word_embeddings
    assert isinstance(embedding, DisentangledEmbedding)
    assert embedding.shared is generator.encoder.embeddings.word_embeddings
    input_ids = torch.randint(VOCABULARY, (2, 10))
    mask = torch.ones_like(input_ids).bool()
    discriminator(input_ids, torch.zeros_like(input_ids), mask).sum().backward()
    assert embedding.shared.weight.grad is None
    assert embedding.delta.grad is not None
    generator.logits(input_ids, torch.zeros_like(input_ids), mask).sum().backward()
    assert embedding.shared.weight.grad is not None


def test_the_difference_of_a_disentangled_table_starts_at_zero() -> None:
    settings = GeneratorShape(width=16, heads=2, tie="gradient-disentangled")
    generator, discriminator = build_networks(TINY, settings, vocabulary=VOCABULARY)
    assert generator is not None
    assert torch.equal(discriminator.encoder.word_embeddings, generator.word_embeddings)


def test_a_folder_that_does_not_fit_says_what_its_lists_mean(tmp_path: Path) -> None:
    huggingface.save(pair(SHAPES["windows"])[1], tmp_path, role="discriminator")
    with pytest.raises(UserError) as refused:
        model_config.check_fits(replace(TINY, width=16), tmp_path, section="encoder")
    message = str(refused.value)
    assert "hidden_size is 32, " in message
    assert "global_every by layer_types is 2" in message
    assert "local_rope_theta by rope_parameters is 300.0" in message
    assert "encoder.local_rope_theta to 300.0" in message
