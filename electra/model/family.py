"""What a family of encoders is: its classes here and in transformers, and the names of tensors.

A table maps the names of our modules to those of transformers; weight and bias keep their names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from electra.config import SettingError, UserError
from electra.model.disentangled import DisentangledEmbedding
from electra.model.encoder import Encoder
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape

Role = Literal["discriminator", "generator", "encoder"]
WORD_EMBEDDINGS = "encoder.embeddings.word_embeddings"
OTHER_MODEL = "use it with transformers itself, or begin with small-en or a model of your own"


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


class Family(ABC):
    """A family of encoders: its classes here, and everything that transformers calls otherwise."""

    name: ClassVar[str]  # encoder.family, and model_type in config.json
    prefix: ClassVar[str]  # of the class names in transformers
    title: ClassVar[str]  # in messages
    encoder_class: ClassVar[type[Encoder]]
    discriminator_class: ClassVar[type[Discriminator]]
    generator_class: ClassVar[type[Generator]]
    # Under which tensors of a model without a head are stored with a head; empty: the same.
    base_prefix: ClassVar[str]
    model_input_names: ClassVar[tuple[str, ...]]  # that its classes take, as tokenizers name them
    # What an encoder of this family cannot be otherwise, by the key in config.json.
    fixed_keys: ClassVar[dict[str, Any]]
    # The same of the prediction head, and of a masked LM's output.
    head_keys: ClassVar[dict[str, Any]] = {}
    output_keys: ClassVar[dict[str, Any]] = {}
    # Our names of the RTD head where other tasks have a head of the same name.
    rtd_output: ClassVar[tuple[str, ...]] = ()
    rtd_weight: ClassVar[str] = ""  # of its output, in a stock file
    # The word embeddings in a stock file, and the same table once more, as a masked LM's output.
    word_embeddings: ClassVar[str]
    output_table: ClassVar[str]
    # Tensors of stock files that repeat others.
    redundant: ClassVar[frozenset[str]]
    # A field of EncoderShape, and the key in config.json that states it.
    stated_by: ClassVar[dict[str, str]]

    def build_prediction_head(self, width: int) -> nn.Module | None:
        """Return the hidden layer that the family's classes have before every output, if any."""
        return None

    # ---- config.json -----------------------------------------------------------------------------

    @property
    def model_class(self) -> str:
        """The class of transformers without a head."""
        return f"{self.prefix}Model"

    def task_class(self, head: str) -> str:
        """Return the class of transformers with this head: SequenceClassification, for instance."""
        return f"{self.prefix}For{head}"

    # What a model of a class is, where its folder does not say so by `electra_role`.
    roles: ClassVar[dict[str, Role]]

    def special_tokens(self, *, pad: int, cls: int | None, sep: int | None) -> dict[str, Any]:
        """Return the keys of config.json that name special tokens."""
        return {"pad_token_id": pad}

    def task_config(self, *, pooling: str) -> dict[str, Any]:
        """Return the keys of config.json that describe a fine-tuned network."""
        return {}

    def head_config(self, network: ExportedNetwork) -> dict[str, Any]:
        """Return the keys of config.json that describe the head of a pre-trained network."""
        return {}

    def has_rtd_labels(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config.json has the labels of RTD, in a class that tasks have too."""
        return False

    @abstractmethod
    def shape_config(self, shape: EncoderShape) -> dict[str, Any]:
        """Return the keys of config.json that describe a shape."""

    @abstractmethod
    def read_shape(self, config: Mapping[str, Any], source: str) -> EncoderShape:
        """Return the shape that a config.json describes; raise UserError with the key."""

    def check_config(self, config: Mapping[str, Any], source: str) -> None:
        """Refuse a config.json with values that an encoder of this family cannot have."""
        self.check_keys(self.fixed_keys, config, source)

    def check_head(self, network: ExportedNetwork, config: Mapping[str, Any], source: str) -> None:
        """Refuse a config.json with values that the head of a network to fill cannot have."""
        self.check_keys(self.head_keys, config, source)
        if isinstance(network, Generator):
            self.check_keys(self.output_keys, config, source)

    def check_keys(self, keys: Mapping[str, Any], config: Mapping[str, Any], source: str) -> None:
        for key, fixed in keys.items():
            stated = config.get(key, fixed)  # a silent config has the fixed values
            if stated != fixed:
                raise UserError(
                    f"{source}: {key} is {stated!r}; only {self.title} models with {key} {fixed!r} "
                    f"can be loaded; {OTHER_MODEL}"
                )

    def has_our_head(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config.json describes the prediction head as this family has it."""
        return all(config.get(key, fixed) == fixed for key, fixed in self.head_keys.items())

    def simplify(self, shape: EncoderShape) -> EncoderShape:
        """Return the shape whose settings without an effect are the same in every such network."""
        return shape

    def build_shape(self, values: Mapping[str, Any], source: str) -> EncoderShape:
        try:
            return EncoderShape(**values)
        except SettingError as error:
            key = self.stated_by[error.relative_key]
            raise UserError(f"{source}: {key}: {error.in_section('encoder.')}") from None

    # ---- tensors ---------------------------------------------------------------------------------

    @abstractmethod
    def module_table(self, network: ExportedNetwork) -> dict[str, str]:
        """Return the names that transformers has for our modules, where they differ.

        Several names, separated by a space, are modules whose rows ours stacks, in this order.
        """

    def name_table(self, network: ExportedNetwork) -> dict[str, list[str]]:
        """Return, for each stored tensor, the tensors of theirs whose rows it stacks."""
        modules = self.module_table(network)
        table = {}
        for key in self.stored_tensors(network):
            module, _, kind = key.rpartition(".")
            names = modules.get(module, module)
            table[key] = [f"{name}.{kind}" for name in names.split()]
        return table

    def stored_tensors(self, network: ExportedNetwork) -> dict[str, Tensor]:
        """Return the tensors of a network in the form that transformers holds, by our names."""
        tensors = dict(network.state_dict())
        embedding: Any = network.encoder.embeddings
        if isinstance(embedding.word_embeddings, DisentangledEmbedding):
            tensors = {
                key: tensor
                for key, tensor in tensors.items()
                if not key.startswith(f"{WORD_EMBEDDINGS}.")
            }
            tensors[f"{WORD_EMBEDDINGS}.weight"] = embedding.word_embeddings.weight
        return tensors

    def embedding_factors(self, network: ExportedNetwork) -> dict[str, Tensor]:
        """Return the tensors that a folded table was made of, by our names; none where none was.

        They are stored beside the model, since the table alone does not give them back.
        """
        return {}

    def load_tensors(self, network: ExportedNetwork, stored: Mapping[str, Tensor]) -> None:
        """Copy tensors, in the form that transformers holds, into a network."""
        parameters = network.state_dict()
        embedding: Any = network.encoder.embeddings
        with torch.no_grad():
            for key, tensor in stored.items():
                if key in parameters:
                    parameters[key].copy_(tensor)
                elif key == f"{WORD_EMBEDDINGS}.weight":
                    embedding.word_embeddings.set_weight(tensor)
