"""A model at rest: our weights ⇄ a transformers folder. Only `verify` imports transformers."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from electra import atomic
from electra.config import SettingError, UserError, convert
from electra.files import read_json_object
from electra.model.encoder import INITIAL_DEVIATION, NORM_EPSILON, SEGMENTS, Encoder
from electra.model.flops import encoder_parameters
from electra.model.shape import EncoderShape

Role = Literal["discriminator", "generator", "encoder"]


class Network(Protocol):
    """An encoder and a head: a discriminator, a generator, or a network of some task."""

    encoder: Encoder

    @property
    def architecture(self) -> str | None:
        """The transformers class that holds it; None where none does, and the head keeps its own
        names.
        """

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """What that class computes, at every position."""

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor, as nn.Module names them."""


class Bare(nn.Module):
    """An encoder alone, to be filled from a folder with whatever head."""

    architecture = None

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(input_ids, token_type_ids, attention_mask)
        return hidden


CONFIG, WEIGHTS, INDEX, CARD = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "README.md",
)
SHARD_BYTES = 5_000_000_000  # what the hub recommends for one file
UNHELD_PARAMETERS, FEW_PARAMETERS = (
    400_000_000,
    1_000_000,
)  # Large, where a folder holds no weights; or built at once

# ---- the name table: a module of ours, and theirs; its weight and bias keep their names ----------

EMBEDDINGS = {
    "encoder.embeddings.word_embeddings": "electra.embeddings.word_embeddings",
    "encoder.embeddings.position_embeddings": "electra.embeddings.position_embeddings",
    "encoder.embeddings.token_type_embeddings": "electra.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "electra.embeddings.LayerNorm",
    "encoder.projection": "electra.embeddings_project",
}
BLOCK = {  # under encoder.blocks.N, and electra.encoder.layer.N
    # rows, in this order
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
    "": "generator_lm_head",  # the bias alone: its weight is the word table
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
# Found in stock files, but told by others: the word table once more, and a count from 0 that older
# versions stored.
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


def name_table(network: Network) -> dict[str, list[str]]:
    """Each tensor of ours, and the tensors of theirs whose rows it stacks."""
    modules = EMBEDDINGS | (HEADS[network.architecture] if network.architecture else {})
    for number in range(network.encoder.shape.layers):
        for ours, theirs in BLOCK.items():
            modules[f"encoder.blocks.{number}.{ours}"] = " ".join(
                f"electra.encoder.layer.{number}.{name}" for name in theirs.split()
            )
    table = {}
    for key in network.state_dict():
        module, _, kind = key.rpartition(".")
        own = "" if key.startswith("encoder.") or network.architecture else module
        table[key] = [f"{name}.{kind}" for name in (own or modules[module]).split()]
    return table


# ---- writing -------------------------------------------------------------------------------------


def save(
    network: Network,
    folder: Path,
    *,
    role: Role,
    tokenizer_files: Callable[[Path], None] | None = None,
    config_extra: Mapping[str, Any] | None = None,
    card: str = "",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that stock transformers loads. A crash at any moment leaves the old folder or
    the new one.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise UserError(
            f"{folder} holds something else than a model and would be replaced; name another folder"
        )
    with atomic.replace_folder(folder) as fresh:
        atomic.write_json(fresh / CONFIG, config_of(network, role=role) | dict(config_extra or {}))
        write_weights(network, fresh, shard_bytes=shard_bytes)
        if tokenizer_files is not None:
            tokenizer_files(fresh)
        if card:
            (fresh / CARD).write_text(card, encoding="utf8")


def config_of(network: Network, *, role: Role) -> dict[str, Any]:
    shape = network.encoder.shape
    return {
        "architectures": [network.architecture or NO_HEAD],
        "electra_role": role,
        **FIXED_KEYS,
        **{key: getattr(shape, field) for field, key in SHAPE_KEYS.items()},
        "vocab_size": network.encoder.vocabulary,
        "initializer_range": INITIAL_DEVIATION,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def write_weights(network: Network, folder: Path, *, shard_bytes: int) -> None:
    table = name_table(network)
    tensors: dict[str, Tensor] = {}
    for key, ours in network.state_dict().items():
        rows = ours.detach().to("cpu", torch.float32).chunk(len(table[key]))
        tensors.update(
            zip(table[key], (part.clone() for part in rows), strict=True)
        )  # views may not be saved
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    atomic.write_json(
        folder / INDEX,
        {
            "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
            "weight_map": weight_map,
        },
    )


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What a folder gave: tensors of ours that it filled and did not fill, tensors of theirs that
    had no place.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        if self.missing:
            parts.append(f"freshly initialised: {', '.join(self.missing)}")
        if self.unexpected:
            parts.append(f"left unused: {', '.join(self.unexpected)}")
        return "; ".join(parts)


def role_of(folder: Path) -> Role:
    folder = atomic.resolve_folder(folder)
    config = read_json(folder, CONFIG)
    by_architecture: dict[str, Role] = {
        "ElectraForPreTraining": "discriminator",
        "ElectraForMaskedLM": "generator",
    }
    role = config.get("electra_role") or by_architecture.get(architecture_of(config), "encoder")
    if role not in get_args(Role):
        raise UserError(
            f"{folder / CONFIG}: electra_role must be one of {', '.join(get_args(Role))}, found "
            f"{role!r}"
        )
    return role


def architecture_of(config: Mapping[str, Any]) -> str:
    found = config.get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else ""


def load_shape(folder: Path) -> tuple[EncoderShape, int, Role]:
    """The shape, the size of the vocabulary and the role of the model in a folder."""
    folder = atomic.resolve_folder(folder)
    config, source = read_json(folder, CONFIG), str(folder / CONFIG)
    for key, fixed in FIXED_KEYS.items():
        found = config.get(key, None if key == "model_type" else fixed)
        if found != fixed:
            raise UserError(
                f"{source}: {key} is {found!r}; only ELECTRA models with {key} {fixed!r} can be "
                "loaded"
            )
    hints = get_type_hints(EncoderShape)
    values = {}
    for field in fields(EncoderShape):
        key = SHAPE_KEYS[
            field.name
        ]  # where a stock config is silent, its default is ours: ELECTRA-Small
        values[field.name] = convert(
            config.get(key, field.default), hints[field.name], source=source, key=key
        )
    try:
        shape = EncoderShape(**values)
    except SettingError as error:
        raise error.in_section("encoder.").with_source(source) from None
    vocabulary = convert(config.get("vocab_size", 30522), int, source=source, key="vocab_size")
    if vocabulary < 1:
        raise UserError(f"{source}: vocab_size is {vocabulary}; it must be at least 1")
    check_size(folder, shape, vocabulary)
    return shape, vocabulary, role_of(folder)


def check_size(folder: Path, shape: EncoderShape, vocabulary: int) -> None:
    promised = encoder_parameters(
        shape, vocabulary
    )  # each at least a byte, so refused before memory is taken for it
    held = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file())
    if promised > (max(held, FEW_PARAMETERS) if held else UNHELD_PARAMETERS):
        raise UserError(
            f"{folder / CONFIG}: describes a network of {promised:,} parameters, and the weights "
            "beside it "
            f"are {held:,} bytes; copy or download both again"
        )


def load_encoder(folder: Path, *, filled: bool = True) -> tuple[Encoder, Loaded | None]:
    """The encoder of any ELECTRA folder, whatever its head; unfilled, the same network from random
    weights.
    """
    shape, vocabulary, _ = load_shape(folder)
    encoder = Encoder(shape, vocabulary=vocabulary)
    return encoder, load(Bare(encoder), folder) if filled else None


def load(network: Network, folder: Path, *, section: str = "encoder") -> Loaded:
    """Copy a folder's weights into `network`. A head that the folder lacks stays as it is; nothing
    else may lack.

    `section` is where the settings of this network stand, for a message that says what to change.
    """
    folder = atomic.resolve_folder(folder)
    check_fits(network, folder, section=section)
    places = tensor_files(folder)
    ours, found, used = network.state_dict(), {}, set(REDUNDANT)
    for key, names in name_table(network).items():
        names = [name if name in places else name.removeprefix("electra.") for name in names]
        if all(name in places for name in names):
            rows, *rest = ours[key].shape
            parts = [
                read_tensor(places[name], name, shape=[rows // len(names), *rest]) for name in names
            ]
            found[key] = torch.cat(parts)
            used.update(names)
        elif key.startswith("encoder."):
            raise UserError(
                f"{folder}: {names[0]} is missing; the folder is damaged or not an ELECTRA model"
            )
    with torch.no_grad():
        for key, tensor in found.items():
            ours[key].copy_(tensor)
    return Loaded(
        loaded=tuple(found),
        missing=tuple(key for key in ours if key not in found),
        unexpected=tuple(sorted(set(places) - used)),
    )


def check_fits(network: Network, folder: Path, *, section: str) -> None:
    """Compare by configuration: a wrong number of heads would go unnoticed by the shapes of
    tensors.
    """
    shape, vocabulary, _ = load_shape(folder)
    pairs = {
        f"{section}.{field}": (key, getattr(network.encoder.shape, field), getattr(shape, field))
        for field, key in SHAPE_KEYS.items()
        if "dropout" not in field
    }
    pairs["vocabulary"] = ("vocab_size", network.encoder.vocabulary, vocabulary)
    for ours, (theirs, wanted, found) in pairs.items():
        if wanted != found:
            raise UserError(
                f"{folder / CONFIG}: {theirs} is {found}, but the network to fill has "
                f"{ours}={wanted}; "
                f"set {ours} to {found} or name another folder"
            )
    is_tied = read_json(folder, CONFIG).get("tie_word_embeddings", True) is not False
    if HEADS.get(network.architecture or "") is LANGUAGE_MODEL and not is_tied:
        raise UserError(
            f"{folder / CONFIG}: tie_word_embeddings is false; a generator here predicts with the "
            "word "
            "table it reads with, so such a model can only fill a discriminator"
        )


def tensor_files(folder: Path) -> dict[str, Path]:
    """Each tensor in the folder and the file that holds it."""
    if (folder / INDEX).exists():
        found = read_json(folder, INDEX).get("weight_map")
        weight_map = convert(found, dict, source=str(folder / INDEX), key="weight_map")
        for file in weight_map.values():
            if not re.fullmatch(r"[\w.-]+\.safetensors", str(file)) or not is_within(
                folder, str(file)
            ):
                raise UserError(
                    f"{folder / INDEX}: weight_map names {file!r}, which is not a file of this "
                    "folder in "
                    "the safetensors format; download the model again from where you trust it"
                )
        return {name: folder / file for name, file in weight_map.items()}
    if (folder / WEIGHTS).exists():
        with opened(folder / WEIGHTS) as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    if (folder / "pytorch_model.bin").exists():
        raise UserError(
            f"{folder}: pytorch_model.bin is a pickle, which can run code when opened, and is not "
            "read; "
            "convert it where you trust it: load it with transformers, then save_pretrained(FOLDER)"
        )
    raise UserError(f"{folder}: neither {WEIGHTS} nor {INDEX} is there")


def is_within(folder: Path, file: str) -> bool:
    """Whether a file is where its name says, or where the hub's cache keeps the files of a
    snapshot.
    """
    home, attention_mask = Path(os.path.realpath(folder)), Path(os.path.realpath(folder / file))
    return attention_mask.parent == home or (
        home.parent.name == "snapshots" and attention_mask.parent == home.parent.parent / "blobs"
    )


def read_tensor(path: Path, name: str, *, shape: list[int]) -> Tensor:
    with opened(path) as file:
        if name not in file.keys():  # noqa: SIM118 (not a mapping)
            raise UserError(f"{path}: {name} is missing, though {INDEX} places it there")
        if (found := file.get_slice(name).get_shape()) != shape:
            raise UserError(
                f"{path}: {name} is {found} where the {CONFIG} beside it promises {shape}; the "
                "two files "
                "do not belong together"
            )
        tensor: Tensor = file.get_tensor(name)
    return tensor.to(torch.float32)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}; copy or download it again") from None


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder."""
    remedy = f"name a folder that holds {CONFIG} and {WEIGHTS}"
    return read_json_object(folder / name, remedy=remedy)


# ---- proving -------------------------------------------------------------------------------------


def verify(network: Network, folder: Path, *, tolerance: float = 1e-4) -> float:
    """The largest difference between our logits and stock transformers' from this folder, on random
    padded rows.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    assert network.architecture is not None
    stock = (
        getattr(transformers, network.architecture)
        .from_pretrained(folder, local_files_only=True)
        .eval()
    )
    ours: Any = copy.deepcopy(network)
    ours = ours.to("cpu", torch.float32).eval()
    length = min(64, network.encoder.shape.positions)
    source = torch.Generator().manual_seed(0)
    input_ids = torch.randint(network.encoder.vocabulary, (2, length), generator=source)
    token_type_ids = (torch.arange(length) > length // 2).long().expand_as(input_ids)
    attention_mask = torch.arange(length) < torch.tensor([[length], [max(1, length // 2)]])
    with torch.no_grad():
        theirs = stock_logits(stock, input_ids, token_type_ids, attention_mask)
        differences = (ours.logits(input_ids, token_type_ids, attention_mask) - theirs).abs()
    if differences.shape[:2] == attention_mask.shape:
        differences = differences[
            attention_mask
        ]  # where there is only padding, the two may disagree
    difference = float(differences.max())
    # Rounding grows with what is rounded, and a trained generator's logits reach 20.
    allowed = tolerance * max(1.0, theirs.abs().max().item())
    if not difference <= allowed:
        raise RuntimeError(
            f"{folder}: transformers computes other logits from this folder than the network that "
            "was "
            f"saved, by up to {difference:.1e} (up to {allowed:.1e} would be rounding)"
        )
    return difference


def stock_logits(
    stock: Any, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor
) -> Tensor:
    """What a transformers model says of these rows, whichever way its class takes rows and gives
    logits.
    """
    if (
        type(stock).__name__ == "ElectraForMultipleChoice"
    ):  # the two rows as the options of one question
        rows = (tensor[None] for tensor in (input_ids, token_type_ids, attention_mask.long()))
        names = ("input_ids", "token_type_ids", "attention_mask")
        return stock(**dict(zip(names, rows, strict=True))).logits  # type: ignore[no-any-return]
    output = stock(
        input_ids=input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask.long()
    )
    if type(stock).__name__ == "ElectraForQuestionAnswering":
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.logits  # type: ignore[no-any-return]
