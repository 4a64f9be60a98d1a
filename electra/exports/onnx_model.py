"""A network as an ONNX graph: written by torch's exporter, compared with ours by ONNX Runtime."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra import atomic
from electra.config import RunFailed, UserError
from electra.escape import first_line
from electra.model import huggingface, model_config
from electra.model.encoder import Encoder
from electra.model.families import family_of
from electra.model.family import ExportedNetwork
from electra.model.verify import Inputs, compare_logits, random_rows
from electra.model.weight_files import CONFIG, read_json
from electra.tasks.classification_heads import LinearHead, max_labels
from electra.tasks.model_task import has_task
from electra.tasks.models import load_tuned
from electra.tasks.sentence_transformer import Pooling, read_pooling
from electra.tasks.task import Network

MODEL = "model.onnx"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
MAX_FILE_BYTES = 1_800_000_000  # a protobuf holds 2 GB; weights of larger models stand beside it
CHECKED = ((1, 3), (2, 17), (3, 128), (5, 64))  # rows and tokens of what is compared
OUTPUTS = {"QuestionAnswering": ["start_logits", "end_logits"]}  # of other heads: logits
HIDDEN, SENTENCE = "last_hidden_state", "sentence_embedding"


# ---- the networks --------------------------------------------------------------------------------


def load_network(folder: Path) -> ExportedNetwork:
    """Load the network of any model folder with its head, as electra computes it."""
    if has_task(folder):
        return check_class(load_tuned(folder).network, folder)
    head = model_config.head_of(read_json(folder, CONFIG))
    family = family_of(model_config.load_shape(folder)[0])
    network_class: Any = huggingface.EncoderOnly
    if model_config.role_of(folder) == "discriminator" and head:
        network_class = family.discriminator_class
    elif head in ("MaskedLM", "CausalLM"):
        network_class = family.generator_class
    network, loaded = huggingface.build_and_load(
        lambda: network_class(huggingface.build_encoder(folder)), folder
    )
    if loaded.missing and network.architecture is not None:
        raise UserError(f"{folder}: {loaded.missing[0]} is missing; copy the folder again")
    return check_class(network.eval(), folder)


def check_class(network: ExportedNetwork, folder: Path) -> ExportedNetwork:
    """Raise UserError for a network that no class of transformers computes."""
    if network.architecture is None and not isinstance(network, huggingface.EncoderOnly):
        remedy = "fine-tune without --frozen, and questions with --head simple"
        if limit := exceeded_limit(network):
            remedy = f"of {limit} labels at most it has one; run this model with `electra predict`"
        raise UserError(
            f"{folder}: its head has no class in transformers, whose graph is what is exported; "
            f"{remedy}"
        )
    return network


def exceeded_limit(network: ExportedNetwork) -> int | None:
    """Return how many labels a class of transformers holds, where a network has more."""
    if not isinstance(network, Network) or not isinstance(network.head, LinearHead):
        return None
    outputs, width = network.head.output.weight.shape
    limit = max_labels(network.family.name, width)
    if network.reader or network.encoder.shape.causal or outputs <= limit:
        return None
    return int(limit)


def class_name(network: ExportedNetwork) -> str:
    """Return the class of transformers that computes a network."""
    return network.architecture or family_of(network.encoder.shape).model_class


def output_names(network: ExportedNetwork, pooling: Pooling | None) -> list[str]:
    """Return the names of the graph's outputs: those that transformers has."""
    if network.architecture is not None:
        return OUTPUTS.get(network.architecture.partition("For")[2], ["logits"])
    if pooling is None:
        return [HIDDEN]
    return [HIDDEN, SENTENCE]


class StockNetwork(nn.Module):
    """A network of transformers that takes its inputs in order and returns a tuple of tensors."""

    def __init__(self, folder: Path, network: ExportedNetwork) -> None:
        super().__init__()
        import transformers

        transformers.utils.logging.disable_progress_bar()
        stock_class = getattr(transformers, class_name(network))
        options = {"local_files_only": True, "dtype": torch.float32, "attn_implementation": "sdpa"}
        self.stock = stock_class.from_pretrained(folder, **options).eval()
        copy_token_types(network.encoder, self.stock)
        self.pooling = read_pooling(folder)
        self.outputs = output_names(network, self.pooling)
        accepted = inspect.signature(self.stock.forward).parameters
        known = ("input_ids", "attention_mask", "token_type_ids")  # ModernBERT has no token types
        self.inputs = [name for name in known if name in accepted]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, inputs, strict=True))
        found = self.stock(**given)
        if self.outputs[-1] != SENTENCE:
            return tuple(found[name] for name in self.outputs)
        return found[HIDDEN], self.pool(found[HIDDEN], given["attention_mask"])

    def pool(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute the vector of each text as sentence-transformers does."""
        assert self.pooling is not None
        vectors = hidden[:, 0]
        if self.pooling.pool == "mean":
            weights = attention_mask[:, :, None].to(hidden.dtype)
            vectors = (hidden * weights).sum(1) / weights.sum(1)
        if self.pooling.normalize:
            vectors = F.normalize(vectors, dim=-1)
        return vectors


def copy_token_types(encoder: Encoder, stock: nn.Module) -> None:
    """Give a network of transformers our token types, which may ignore those of its folder."""
    ours = dict(encoder.named_parameters()).get("embeddings.token_type_embeddings.weight")
    for name, parameter in stock.named_parameters():
        if ours is not None and name.endswith("token_type_embeddings.weight"):
            parameter.data.copy_(ours)


# ---- writing -------------------------------------------------------------------------------------


def write_onnx(stock: StockNetwork, path: Path, *, has_choices: bool) -> None:
    """Write the graph of a network, for any number of rows and tokens."""
    axes = {"batch": 2, "choices": 3, "sequence": 11}  # with their lengths in an example
    if not has_choices:
        del axes["choices"]
    example = tuple(torch.ones(*axes.values(), dtype=torch.long) for _ in stock.inputs)
    dynamic = {index: torch.export.Dim(name) for index, name in enumerate(axes)}
    size = sum(parameter.nbytes for parameter in stock.parameters())
    try:
        with quiet_exporter(), atomic.default_mode(path):
            torch.onnx.export(
                stock,
                example,
                path,
                dynamo=True,
                dynamic_shapes=(tuple(dynamic for _ in stock.inputs),),
                input_names=stock.inputs,
                output_names=stock.outputs,
                external_data=size > MAX_FILE_BYTES,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = first_line(error)
        raise RunFailed(f"torch's ONNX exporter cannot write this network: {reason}") from error


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence what the exporter says of other packages and of its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# ---- ONNX Runtime --------------------------------------------------------------------------------


class OnnxSession:
    """A graph in ONNX Runtime, on the CPU."""

    def __init__(self, path: Path, *, has_choices: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        self.inputs = [each.name for each in self.session.get_inputs()]
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.has_choices = has_choices

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs for rows; those of a multiple-choice model are of one question."""
        arrays = {}
        for name in self.inputs:
            tensor = inputs[name]
            if self.has_choices and tensor.ndim == 2:
                tensor = tensor[None]
            arrays[name] = tensor.long().cpu().numpy()
        found = self.session.run(self.outputs, arrays)
        return {
            name: torch.from_numpy(each) for name, each in zip(self.outputs, found, strict=True)
        }

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the logits in the form that our networks have them, several stacked."""
        found = [tensor for name, tensor in self.run(inputs).items() if name != SENTENCE]
        if len(found) == 1:
            return found[0]
        return torch.stack(found, dim=-1)


def largest_difference(network: ExportedNetwork, session: OnnxSession, path: Path) -> float:
    """Return the largest difference between our logits and the graph's, over several shapes.

    Raise RunFailed where it is more than rounding.
    """
    largest = 0.0
    for inputs in sample_inputs(network, CHECKED):
        difference, allowed = compare_logits(network, inputs, session.logits(inputs))
        largest = max(largest, difference)
        if not difference <= allowed:
            rows, length = inputs["input_ids"].shape
            raise RunFailed(
                f"{path.name}: ONNX Runtime computes other outputs than the model, by up to "
                f"{difference:.1e} for {rows} rows of {length} tokens (up to {allowed:.1e} would "
                "be rounding); nothing was written. Other versions of torch, onnxscript and "
                "onnxruntime may differ"
            )
    return largest


def sample_inputs(network: ExportedNetwork, shapes: Sequence[tuple[int, int]]) -> Iterator[Inputs]:
    """Yield rows of random tokens, all but the first half as long as that one and padded."""
    for rows, length in shapes:
        yield random_rows(network, rows=rows, length=length)
