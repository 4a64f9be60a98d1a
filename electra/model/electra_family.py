"""The ELECTRA family in transformers: names of tensors and settings, classes, fixed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from electra.config import convert
from electra.model.electra_encoder import NORM_EPSILON, SEGMENTS, ElectraEncoder
from electra.model.family import ExportedNetwork, Family
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape

EMBEDDINGS = {
    "encoder.embeddings.word_embeddings": "electra.embeddings.word_embeddings",
    "encoder.embeddings.position_embeddings": "electra.embeddings.position_embeddings",
    "encoder.embeddings.token_type_embeddings": "electra.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "electra.embeddings.LayerNorm",
    "encoder.projection": "electra.embeddings_project",
}
BLOCK = {  # under encoder.blocks.N, and electra.encoder.layer.N
    # stacked rows, in this order
    "attention.query_key_value": "attention.self.query attention.self.key attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}
LANGUAGE_MODEL = {
    "dense": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "": "generator_lm_head",  # the bias alone: its weight is the word embeddings
}
HEADS = {  # by the class that holds them; a head that no class holds keeps its own names
    "PreTraining": {
        "dense": "discriminator_predictions.dense",
        "output": "discriminator_predictions.dense_prediction",
    },
    "MaskedLM": LANGUAGE_MODEL,
    "CausalLM": LANGUAGE_MODEL,
    "SequenceClassification": {
        "head.dense": "classifier.dense",
        "head.output": "classifier.out_proj",
    },
    "TokenClassification": {"head.output": "classifier"},
    "QuestionAnswering": {"head.output": "qa_outputs"},
    "MultipleChoice": {
        "head.dense": "sequence_summary.summary",
        "head.output": "classifier",
    },
}
SHAPE_KEYS = {  # a field of EncoderShape, and its key in config.json
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feedforward": "intermediate_size",
    "embedding": "embedding_size",
    "positions": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "causal": "is_decoder",
}


class ElectraFamily(Family):
    """The paper's networks: BERT's encoder with a head of one hidden layer."""

    name = "electra"
    prefix = "Electra"
    title = "ELECTRA"
    encoder_class = ElectraEncoder
    discriminator_class = Discriminator
    generator_class = Generator
    base_prefix = "electra."
    model_input_names = ("input_ids", "token_type_ids", "attention_mask")
    fixed_keys = {
        "hidden_act": "gelu",
        "layer_norm_eps": NORM_EPSILON,
        "type_vocab_size": SEGMENTS,
    }
    word_embeddings = "electra.embeddings.word_embeddings.weight"
    output_table = "generator_lm_head.weight"
    # With position ids that older versions stored.
    redundant = frozenset(
        (output_table, "electra.embeddings.position_ids", "embeddings.position_ids")
    )

    stated_by = SHAPE_KEYS
    roles = {"PreTraining": "discriminator", "MaskedLM": "generator"}

    def shape_config(self, shape: EncoderShape) -> dict[str, Any]:
        return {key: getattr(shape, field) for field, key in SHAPE_KEYS.items()}

    def read_shape(self, config: Mapping[str, Any], source: str) -> EncoderShape:
        hints, defaults = get_type_hints(EncoderShape), EncoderShape()
        values: dict[str, Any] = {"family": self.name}
        for field, key in SHAPE_KEYS.items():
            # Where a stock config is silent, its default is ours: ELECTRA-Small.
            value = config.get(key, getattr(defaults, field))
            values[field] = convert(value, hints[field], source=source, key=key)
        return self.build_shape(values, source)

    def module_table(self, network: ExportedNetwork) -> dict[str, str]:
        modules = dict(EMBEDDINGS)
        if network.architecture is not None:
            modules |= HEADS[network.architecture.removeprefix("ElectraFor")]
        for number in range(network.encoder.shape.layers):
            for ours, theirs in BLOCK.items():
                names = [f"electra.encoder.layer.{number}.{name}" for name in theirs.split()]
                modules[f"encoder.blocks.{number}.{ours}"] = " ".join(names)
        return modules
