"""The ModernBERT family in transformers: names of tensors and settings, classes, fixed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from electra.config import UserError, convert
from electra.model.family import WORD_EMBEDDINGS, ExportedNetwork, Family
from electra.model.modernbert_encoder import (
    NORM_EPSILON,
    ModernBertEmbeddings,
    ModernBertEncoder,
    global_layers,
)
from electra.model.modernbert_networks import (
    ModernBertDiscriminator,
    ModernBertGenerator,
    PredictionHead,
)
from electra.model.shape import DROPOUTS, EncoderShape

OUTSIDE_BLOCKS = {
    WORD_EMBEDDINGS: "model.embeddings.tok_embeddings",
    "encoder.embeddings.norm": "model.embeddings.norm",
    "encoder.final_norm": "model.final_norm",
    "prediction_head.dense": "head.dense",
    "prediction_head.norm": "head.norm",
}
BLOCK = {  # under encoder.blocks.N, and model.layers.N
    "attention_norm": "attn_norm",
    "attention.query_key_value": "attn.Wqkv",
    "attention.output": "attn.Wo",
    "feedforward_norm": "mlp_norm",
    "expand": "mlp.Wi",
    "contract": "mlp.Wo",
}
OUTPUTS = {  # by the class that holds them
    "MaskedLM": {"": "decoder"},  # the bias alone: its weight is the word embeddings
    "TokenClassification": {"output": "classifier", "head.output": "classifier"},
    "SequenceClassification": {"head.output": "classifier"},
    "QuestionAnswering": {"head.output": "classifier"},
    "MultipleChoice": {"head.output": "classifier"},
}
SIZES = {  # a field of EncoderShape, its key in config.json, and the default of stock transformers
    "layers": ("num_hidden_layers", 22),
    "width": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12),
    "feedforward": ("intermediate_size", 1152),
    "positions": ("max_position_embeddings", 8192),
    "local_attention": ("local_attention", 128),
}
GLOBAL, LOCAL = "full_attention", "sliding_attention"
STOCK_THETA = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
STOCK_GLOBAL_EVERY = 3
RTD_LABELS = {"0": "original", "1": "replaced"}
PROJECTION = "encoder.embeddings.projection.weight"


class ModernBertFamily(Family):
    """Pre-norm, rotary positions, GeGLU and no biases: what stock ModernBERT holds."""

    name = "modernbert"
    prefix = "ModernBert"
    title = "ModernBERT"
    encoder_class = ModernBertEncoder
    discriminator_class = ModernBertDiscriminator
    generator_class = ModernBertGenerator
    base_prefix = "model."
    model_input_names = ("input_ids", "attention_mask")
    fixed_keys = {
        "hidden_activation": "gelu",
        "norm_eps": NORM_EPSILON,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    head_keys = {"classifier_bias": False, "classifier_activation": "gelu"}
    output_keys = {"decoder_bias": True}
    rtd_output = ("output.weight", "output.bias")  # of a tagger: its labels
    rtd_weight = "classifier.weight"
    word_embeddings = "model.embeddings.tok_embeddings.weight"
    output_table = "decoder.weight"
    redundant = frozenset((output_table,))

    stated_by = {
        **{field: key for field, (key, _) in SIZES.items()},
        "embedding": "hidden_size",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "rope_theta": "rope_parameters",
        "local_rope_theta": "rope_parameters",
        "global_every": "layer_types",
    }
    roles = {}  # a masked LM of this family stands alone, unless its folder says otherwise

    def build_prediction_head(self, width: int) -> PredictionHead:
        return PredictionHead(width)

    # ---- config.json -----------------------------------------------------------------------------

    def special_tokens(self, *, pad: int, cls: int | None, sep: int | None) -> dict[str, Any]:
        # Stock defaults lie outside of smaller vocabularies, and are refused there.
        return {
            "pad_token_id": pad,
            "cls_token_id": cls,
            "sep_token_id": sep,
            "bos_token_id": cls,
            "eos_token_id": sep,
        }

    def task_config(self, *, pooling: str) -> dict[str, Any]:
        return {"classifier_pooling": pooling}

    def head_config(self, network: ExportedNetwork) -> dict[str, Any]:
        # What transformers would pool in fine-tuning; its own default is [CLS].
        pooling = self.task_config(pooling="mean")
        if not isinstance(network, ModernBertDiscriminator):
            return pooling
        return {
            **pooling,
            "id2label": RTD_LABELS,
            "label2id": {"original": 0, "replaced": 1},
        }

    def has_rtd_labels(self, config: Mapping[str, Any]) -> bool:
        is_tagger = config.get("architectures") == [ModernBertDiscriminator.architecture]
        return is_tagger and config.get("id2label") == RTD_LABELS

    def shape_config(self, shape: EncoderShape) -> dict[str, Any]:
        config = {key: getattr(shape, field) for field, (key, _) in SIZES.items()}
        layer_types = [GLOBAL if is_global else LOCAL for is_global in global_layers(shape)]
        return {
            **config,
            "layer_types": layer_types,
            "rope_parameters": {
                GLOBAL: {"rope_type": "default", "rope_theta": shape.rope_theta},
                LOCAL: {"rope_type": "default", "rope_theta": shape.local_rope_theta},
            },
            "embedding_dropout": shape.dropout,
            "mlp_dropout": shape.dropout,
            "attention_dropout": shape.attention_dropout,
        }

    def read_shape(self, config: Mapping[str, Any], source: str) -> EncoderShape:
        values: dict[str, Any] = {"family": self.name}
        for field, (key, default) in SIZES.items():
            values[field] = convert(config.get(key, default), int, source=source, key=key)
        if "sliding_window" in config:  # half of the window; transformers prefers it
            half = positive(config["sliding_window"], source, "sliding_window")
            values["local_attention"] = 2 * half
        for field in DROPOUTS:
            key = self.stated_by[field]
            values[field] = convert(config.get(key, 0.0), float, source=source, key=key)
        values |= {
            "embedding": values["width"],
            "global_every": read_global_every(config, values["layers"], source),
            "rope_theta": read_theta(config, GLOBAL, "global_rope_theta", source),
            "local_rope_theta": read_theta(config, LOCAL, "local_rope_theta", source),
        }
        return self.build_shape(values, source)

    def simplify(self, shape: EncoderShape) -> EncoderShape:
        # A generator of fewer layers than `global_every` is the one that its layer_types describe.
        assert shape.global_every is not None
        shape = replace(shape, global_every=min(shape.global_every, shape.layers))
        if shape.global_every == 1:  # no layer has a window
            return replace(shape, local_attention=None, local_rope_theta=None)
        return shape

    # ---- tensors ---------------------------------------------------------------------------------

    def module_table(self, network: ExportedNetwork) -> dict[str, str]:
        modules = dict(OUTSIDE_BLOCKS)
        if network.architecture is not None:
            modules |= OUTPUTS[network.architecture.removeprefix("ModernBertFor")]
        for number in range(network.encoder.shape.layers):
            for ours, theirs in BLOCK.items():
                modules[f"encoder.blocks.{number}.{ours}"] = f"model.layers.{number}.{theirs}"
        return modules

    def stored_tensors(self, network: ExportedNetwork) -> dict[str, Tensor]:
        """Fold the projection into the table, and give the RTD head its second label.

        Of the labels `original` and `replaced` the first has the logit zero, so that their softmax
        is the sigmoid of ours.
        """
        tensors = super().stored_tensors(network)
        embeddings = cast(ModernBertEmbeddings, network.encoder.embeddings)
        tensors.pop(PROJECTION, None)
        tensors[f"{WORD_EMBEDDINGS}.weight"] = embeddings.folded_table()
        if isinstance(network, ModernBertDiscriminator):
            for key in self.rtd_output:
                tensors[key] = torch.cat([torch.zeros_like(tensors[key]), tensors[key]])
        return tensors

    def embedding_factors(self, network: ExportedNetwork) -> dict[str, Tensor]:
        embeddings = cast(ModernBertEmbeddings, network.encoder.embeddings)
        if embeddings.projection is None:
            return {}
        return {
            f"{WORD_EMBEDDINGS}.weight": embeddings.word_embeddings.weight,
            PROJECTION: embeddings.projection.weight,
        }

    def load_tensors(self, network: ExportedNetwork, stored: Mapping[str, Tensor]) -> None:
        converted = dict(stored)
        if isinstance(network, ModernBertDiscriminator):
            for key in self.rtd_output & stored.keys():
                original, replaced = stored[key].chunk(2)
                converted[key] = replaced - original
        super().load_tensors(network, converted)


def positive(value: Any, source: str, key: str) -> int:
    """Return a number of a config.json; refuse one that is below 1 by its key."""
    number: int = convert(value, int, source=source, key=key)
    if number < 1:
        raise UserError(f"{source}: {key} is {number}; it must be at least 1")
    return number


def read_theta(config: Mapping[str, Any], layer_type: str, old_key: str, source: str) -> float:
    """Return the base of the rotary positions of one type of layers."""
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not parameters.keys() <= STOCK_THETA.keys():
        raise UserError(
            f"{source}: rope_parameters is {parameters!r}; it must have the keys {GLOBAL} and "
            f"{LOCAL}, as ModernBERT's has"
        )
    stated = parameters.get(layer_type) or {}
    if not isinstance(stated, dict) or rope_type(stated) != "default":
        raise UserError(
            f"{source}: rope_parameters.{layer_type} is {stated!r}; only rope_type 'default' can "
            "be loaded"
        )
    if config.get("rope_scaling"):
        raise UserError(f"{source}: rope_scaling is set; only unscaled positions can be loaded")
    theta = stated.get("rope_theta", config.get(old_key, STOCK_THETA[layer_type]))
    base: float = convert(
        theta, float, source=source, key=f"rope_parameters.{layer_type}.rope_theta"
    )
    return base


def rope_type(stated: Mapping[str, Any]) -> Any:
    """Return how positions are scaled; older files say it by the key `type`."""
    return stated.get("rope_type", stated.get("type", "default"))


def read_global_every(config: Mapping[str, Any], layers: int, source: str) -> int:
    """Return of how many layers one has global attention; refuse a pattern that is not so."""
    stated = config.get("layer_types")
    if stated is None:
        every = config.get("global_attn_every_n_layers", STOCK_GLOBAL_EVERY)
        return positive(every, source, "global_attn_every_n_layers")
    names = convert(stated, list[str], source=source, key="layer_types")
    later = (number for number, name in enumerate(names) if number and name == GLOBAL)
    every = next(later, max(1, len(names)))
    expected = [LOCAL if number % every else GLOBAL for number in range(layers)]
    if names != expected:
        raise UserError(
            f"{source}: layer_types must hold {layers} names, {GLOBAL} at every n-th layer from "
            f"the first and {LOCAL} elsewhere; this model cannot be loaded"
        )
    return every
