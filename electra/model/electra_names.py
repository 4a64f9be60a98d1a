"""The ELECTRA family in transformers: names of tensors and settings, classes, fixed values.

A table names a module of ours and the module of theirs; weight and bias keep their names.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from electra.model.encoder import NORM_EPSILON, SEGMENTS, Encoder

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
    "ElectraForPreTraining": {
        "dense": "discriminator_predictions.dense",
        "output": "discriminator_predictions.dense_prediction",
    },
    "ElectraForMaskedLM": LANGUAGE_MODEL,
    "ElectraForCausalLM": LANGUAGE_MODEL,
    "ElectraForSequenceClassification": {
        "head.dense": "classifier.dense",
        "head.output": "classifier.out_proj",
    },
    "ElectraForTokenClassification": {"head.output": "classifier"},
    "ElectraForQuestionAnswering": {"head.output": "qa_outputs"},
    "ElectraForMultipleChoice": {
        "head.dense": "sequence_summary.summary",
        "head.output": "classifier",
    },
}
NO_HEAD = "ElectraModel"
# Tensors of stock files that repeat others: the word embeddings once more, and position ids that
# older versions stored.
REDUNDANT = {
    "generator_lm_head.weight",
    "electra.embeddings.position_ids",
    "embeddings.position_ids",
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
FIXED_KEYS = {  # what an Encoder cannot be otherwise
    "model_type": "electra",
    "hidden_act": "gelu",
    "layer_norm_eps": NORM_EPSILON,
    "type_vocab_size": SEGMENTS,
}


class ExportedNetwork(Protocol):
    """An encoder and a head: a discriminator, a generator, or a network of some task."""

    encoder: Encoder

    @property
    def architecture(self) -> str | None:
        """The transformers class that holds it; None where none does.

        A head that no class holds keeps its own names.
        """

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return what that class computes, at every position."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return every tensor, as nn.Module names them."""


def name_table(network: ExportedNetwork) -> dict[str, list[str]]:
    """Return, for each tensor of ours, the tensors of theirs whose rows it stacks."""
    modules = module_table(network)
    table = {}
    for key in network.state_dict():
        module, _, kind = key.rpartition(".")
        names = modules.get(module, module)
        table[key] = [f"{name}.{kind}" for name in names.split()]
    return table


def module_table(network: ExportedNetwork) -> dict[str, str]:
    """Return, for each module of ours that transformers names otherwise, the modules of theirs."""
    modules = dict(EMBEDDINGS)
    if network.architecture is not None:
        modules |= HEADS[network.architecture]
    for number in range(network.encoder.shape.layers):
        for ours, theirs in BLOCK.items():
            names = [f"electra.encoder.layer.{number}.{name}" for name in theirs.split()]
            modules[f"encoder.blocks.{number}.{ours}"] = " ".join(names)
    return modules
