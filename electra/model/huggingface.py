"""A model at rest: our weights ⇄ a transformers folder. Transformers itself is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from electra import atomic
from electra.checksums import write_checksums
from electra.config import SettingError, UserError, convert
from electra.model.electra_names import (
    FIXED_KEYS,
    HEADS,
    LANGUAGE_MODEL,
    NO_HEAD,
    REDUNDANT,
    SHAPE_KEYS,
    ExportedNetwork,
    name_table,
)
from electra.model.encoder import INITIAL_DEVIATION, Encoder
from electra.model.flops import encoder_parameters
from electra.model.shape import EncoderShape
from electra.model.weight_files import (
    CARD,
    CONFIG,
    INDEX,
    WEIGHTS,
    find_tensors,
    read_json,
    read_tensor,
)

Role = Literal["discriminator", "generator", "encoder"]
SHARD_BYTES = 5_000_000_000  # what the hub recommends for one file
# Parameters that a config may promise: where the folder holds no weights (Large), and in any case.
MAX_WITHOUT_WEIGHTS, ALWAYS_ALLOWED = 400_000_000, 1_000_000


class EncoderOnly(nn.Module):
    """An encoder alone, to be filled from a folder with whatever head."""

    architecture = None

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(input_ids, token_type_ids, attention_mask)
        return hidden


# ---- writing -------------------------------------------------------------------------------------


def save(
    network: ExportedNetwork,
    folder: Path,
    *,
    role: Role,
    tokenizer_files: Callable[[Path], None] | None = None,
    config_extra: Mapping[str, Any] | None = None,
    card: str = "",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that stock transformers loads.

    A crash at any moment leaves the old folder or the new one.
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
        # All but the card, which its owner completes by hand.
        write_checksums(fresh, [path.name for path in fresh.iterdir()])
        if card:
            (fresh / CARD).write_text(card, encoding="utf8")


def config_of(network: ExportedNetwork, *, role: Role) -> dict[str, Any]:
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


def write_weights(network: ExportedNetwork, folder: Path, *, shard_bytes: int) -> None:
    """Write the tensors in float32 under transformers' names, in one file or in shards."""
    shards = split_tensors(named_tensors(network), shard_bytes=shard_bytes)
    if len(shards) == 1:
        write_safetensors(shards[0], folder / WEIGHTS)
        return
    weight_map: dict[str, str] = {}
    total_size = 0
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
        total_size += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    atomic.write_json(folder / INDEX, index)


def write_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    with atomic.default_mode(path):
        save_file(tensors, path, metadata={"format": "pt"})


def named_tensors(network: ExportedNetwork) -> dict[str, Tensor]:
    """Return copies of all tensors on the CPU, under transformers' names."""
    table = name_table(network)
    tensors: dict[str, Tensor] = {}
    for key, ours in network.state_dict().items():
        chunks = ours.detach().to("cpu", torch.float32).chunk(len(table[key]))
        for name, chunk in zip(table[key], chunks, strict=True):
            tensors[name] = chunk.clone()  # views may not be saved
    return tensors


def split_tensors(tensors: Mapping[str, Tensor], *, shard_bytes: int) -> list[dict[str, Tensor]]:
    """Split tensors into shards of at most so many bytes, in their order."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        size = sum(each.nbytes for each in shards[-1].values())
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    return shards


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """Tensors of ours that a folder filled and did not fill, and tensors of its own left unused."""

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
    """Return the first class that a config.json names, empty where it names none."""
    match config.get("architectures"):
        case [str(first), *_]:
            return first
    return ""


def load_shape(folder: Path) -> tuple[EncoderShape, int, Role]:
    """Return the shape, the vocabulary size and the role of the model in a folder."""
    folder = atomic.resolve_folder(folder)
    config, source = read_json(folder, CONFIG), str(folder / CONFIG)
    check_family(config, source)
    hints = get_type_hints(EncoderShape)
    values = {}
    for field in fields(EncoderShape):
        key = SHAPE_KEYS[field.name]
        # Where a stock config is silent, its default is ours: ELECTRA-Small.
        value = config.get(key, field.default)
        values[field.name] = convert(value, hints[field.name], source=source, key=key)
    try:
        shape = EncoderShape(**values)
    except SettingError as error:
        raise error.in_section("encoder.").with_source(source) from None
    vocabulary = convert(config.get("vocab_size", 30522), int, source=source, key="vocab_size")
    if vocabulary < 1:
        raise UserError(f"{source}: vocab_size is {vocabulary}; it must be at least 1")
    check_size(folder, shape, vocabulary)
    return shape, vocabulary, role_of(folder)


def check_family(config: Mapping[str, Any], source: str) -> None:
    """Refuse a config.json with values that an Encoder cannot have."""
    stated = {**FIXED_KEYS, "model_type": None, **config}  # a silent config has the fixed values
    for key, fixed in FIXED_KEYS.items():
        if stated[key] != fixed:
            raise UserError(
                f"{source}: {key} is {stated[key]!r}; only ELECTRA models with {key} {fixed!r} can "
                "be loaded"
            )


def check_size(folder: Path, shape: EncoderShape, vocabulary: int) -> None:
    """Refuse a config that promises far more parameters than the weight files can hold.

    Each is at least a byte, so it is refused before memory is taken for it.
    """
    promised = encoder_parameters(shape, vocabulary)
    held = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file())
    allowed = max(held, ALWAYS_ALLOWED)
    if not held:
        allowed = MAX_WITHOUT_WEIGHTS
    if promised > allowed:
        raise UserError(
            f"{folder / CONFIG}: describes a network of {promised:,} parameters, and the weights "
            f"beside it are {held:,} bytes; copy or download both again"
        )


def load_encoder(folder: Path) -> tuple[Encoder, LoadReport]:
    """Load the encoder of any ELECTRA folder, whatever its head."""
    encoder = build_encoder(folder)
    return encoder, load(EncoderOnly(encoder), folder)


def build_encoder(folder: Path) -> Encoder:
    """Build the encoder that a folder describes, with random weights."""
    shape, vocabulary, _ = load_shape(folder)
    return Encoder(shape, vocabulary=vocabulary)


def load(network: ExportedNetwork, folder: Path, *, section: str = "encoder") -> LoadReport:
    """Copy a folder's weights into `network`; a head that the folder lacks stays as it is.

    `section` is where the settings of this network stand, for a message that says what to change.
    """
    folder = atomic.resolve_folder(folder)
    check_fits(network, folder, section=section)
    files = find_tensors(folder)
    parameters = network.state_dict()
    loaded: dict[str, Tensor] = {}
    used = set(REDUNDANT)
    for key, full_names in name_table(network).items():
        names = [strip_prefix(name, files) for name in full_names]
        if all(name in files for name in names):
            rows, *rest = parameters[key].shape
            shape = [rows // len(names), *rest]
            loaded[key] = torch.cat([read_tensor(files[name], name, shape=shape) for name in names])
            used.update(names)
        elif key.startswith("encoder."):
            raise UserError(
                f"{folder}: {names[0]} is missing; the folder is damaged or not an ELECTRA model"
            )
    with torch.no_grad():
        for key, tensor in loaded.items():
            parameters[key].copy_(tensor)
    return LoadReport(
        loaded=tuple(loaded),
        missing=tuple(key for key in parameters if key not in loaded),
        unexpected=tuple(sorted(set(files) - used)),
    )


def strip_prefix(name: str, files: Mapping[str, Path]) -> str:
    """Return the name that a folder knows a tensor by: an ElectraModel's have no prefix."""
    if name in files:
        return name
    return name.removeprefix("electra.")


def check_fits(network: ExportedNetwork, folder: Path, *, section: str) -> None:
    """Refuse a folder whose config differs from the network's shape.

    By configuration, since a wrong number of heads would not show in the shapes of tensors.
    """
    shape, vocabulary, _ = load_shape(folder)
    pairs = {
        f"{section}.{field}": (key, getattr(network.encoder.shape, field), getattr(shape, field))
        for field, key in SHAPE_KEYS.items()
        if "dropout" not in field
    }
    pairs["vocabulary"] = ("vocab_size", network.encoder.vocabulary, vocabulary)
    for setting, (key, ours, theirs) in pairs.items():
        if ours != theirs:
            raise UserError(
                f"{folder / CONFIG}: {key} is {theirs}, but the network to fill has "
                f"{setting}={ours}; set {setting} to {theirs} or name another folder"
            )
    is_tied = read_json(folder, CONFIG).get("tie_word_embeddings", True) is not False
    if HEADS.get(network.architecture or "") is LANGUAGE_MODEL and not is_tied:
        raise UserError(
            f"{folder / CONFIG}: tie_word_embeddings is false; a generator here predicts with the "
            "word embeddings it reads with, so such a model can only fill a discriminator"
        )
