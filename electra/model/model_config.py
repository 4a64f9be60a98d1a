"""What a model folder says of its network, and whether it fits a network that is to be filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from electra import atomic
from electra.config import UserError, convert
from electra.model.families import FAMILIES, family_of
from electra.model.family import OTHER_MODEL, WORD_EMBEDDINGS, Family, Role
from electra.model.flops import encoder_parameters
from electra.model.shape import DROPOUTS, EncoderShape, GeneratorShape
from electra.model.weight_files import (
    CONFIG,
    FACTORS,
    find_tensors,
    read_json,
    read_tensor,
    tensor_shape,
)

TABLE = f"{WORD_EMBEDDINGS}.weight"
# Classes of transformers with the head of a task, without the prefix of the family.
TASK_HEADS = (
    "SequenceClassification",
    "TokenClassification",
    "QuestionAnswering",
    "MultipleChoice",
)
RUN_CONFIG = "config.toml"  # of a run, as electra.runs.run_dir has it
# Parameters that a config may promise: where the folder holds no weights (Large), and in any case.
MAX_WITHOUT_WEIGHTS, ALWAYS_ALLOWED = 400_000_000, 1_000_000


def check_is_exported(folder: Path) -> None:
    """Raise UserError where a folder is a pre-training run that has not written its models."""
    models = [atomic.resolve_folder(folder / role) / CONFIG for role in get_args(Role)]
    checkpoints = [path.name for path in folder.glob("checkpoint-*") if path.is_dir()]
    is_run = checkpoints and (folder / RUN_CONFIG).is_file()
    if not is_run or any(model.is_file() for model in models):
        return
    # Of the names with the most digits, the one that sorts last.
    newest = max(checkpoints, key=lambda name: (len(name), name))
    raise UserError(
        f"{folder} is a pre-training run that has not written its models yet ({newest}); the same "
        "`electra pretrain` command continues it and writes them"
    )


def role_of(folder: Path) -> Role:
    """Return what the model in a folder is: by `electra_role`, or by its class.

    A network with the head of a task is an encoder. Where transformers fine-tuned it, the config
    still has the role of the model that it began with.
    """
    folder = atomic.resolve_folder(folder)
    config = read_json(folder, CONFIG)
    head = head_of(config)
    family = find_family(config, str(folder / CONFIG))
    role = config.get("electra_role") or family.roles.get(head, "encoder")
    if role not in get_args(Role):
        raise UserError(
            f"{folder / CONFIG}: electra_role must be one of {', '.join(get_args(Role))}, found "
            f"{role!r}"
        )
    if head not in TASK_HEADS:
        return role
    if role == "discriminator" and family.has_rtd_labels(config) and holds_rtd_head(folder, family):
        return role
    return "encoder"


def holds_rtd_head(folder: Path, family: Family) -> bool:
    """Return whether the head of two labels in a folder may be that of RTD.

    The logit of `original` is zero there. A tagger of two labels that nobody named, fine-tuned from
    a discriminator, has the same config, but other weights.
    """
    name = family.rtd_weight
    try:
        path = find_tensors(folder, verify=False)[name]
        shape = tensor_shape(path, name, remedy="copy the folder again")
        weight = read_tensor(path, name, shape=shape)
    except (UserError, KeyError):  # what loads the weights says what is wrong with them
        return True
    return not weight[0].any()


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the first class that a config.json names, empty where it names none."""
    match config.get("architectures"):
        case [str(first), *_]:
            return first
    return ""


def head_of(config: Mapping[str, Any]) -> str:
    """Return the name of its class behind `For`, empty where there is none."""
    return architecture_of(config).partition("For")[2]


def load_shape(folder: Path) -> tuple[EncoderShape, int, Role]:
    """Return the shape, the vocabulary size and the role of the model in a folder."""
    folder = atomic.resolve_folder(folder)
    config, source = read_json(folder, CONFIG), str(folder / CONFIG)
    family = find_family(config, source)
    family.check_config(config, source)
    shape = family.read_shape(config, source)
    if (folder / FACTORS).is_file():
        _, width = tensor_shape(folder / FACTORS, TABLE, remedy="remove the file")
        shape = replace(shape, embedding=width)
    vocabulary = convert(config.get("vocab_size", 30522), int, source=source, key="vocab_size")
    if vocabulary < 1:
        raise UserError(f"{source}: vocab_size is {vocabulary}; it must be at least 1")
    check_size(folder, shape, vocabulary)
    return shape, vocabulary, role_of(folder)


def find_family(config: Mapping[str, Any], source: str) -> Family:
    """Return the family that a config.json names."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = " and ".join(family.title for family in FAMILIES.values())
        raise UserError(
            f"{source}: model_type is {model_type!r}; only {known} models can be loaded; "
            f"{OTHER_MODEL}"
        )
    return FAMILIES[model_type]


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


# ---- whether it fits -----------------------------------------------------------------------------


def check_one_family(*folders: Path) -> None:
    """Refuse models that would be the networks of one run and are of different families."""
    families = {folder: load_shape(folder)[0].family for folder in folders}
    if len(set(families.values())) > 1:
        found = (f"{folder / CONFIG}: model_type is {name}" for folder, name in families.items())
        raise UserError(
            f"{' and '.join(found)}, but both networks of a run are of one family; put models of "
            "one family there, or name one of the folders alone"
        )


def check_family(ours: EncoderShape, folder: Path) -> None:
    """Refuse a folder with a model of another family than the network to fill."""
    shape, _, _ = load_shape(folder)
    if ours.family != shape.family:
        raise UserError(
            f"{folder / CONFIG}: model_type is {shape.family}, but the network to fill has "
            f"encoder.family={ours.family}, and both networks of a run are of one family; take a "
            f"recipe with encoder.family={shape.family}, or name another folder"
        )


def check_fits(ours: EncoderShape, folder: Path, *, section: str) -> None:
    """Refuse a folder whose config differs from the shape of the network to fill.

    By configuration, since a wrong number of heads would not show in the shapes of tensors.
    """
    check_family(ours, folder)
    shape, _, _ = load_shape(folder)
    family, config = family_of(ours), read_json(atomic.resolve_folder(folder), CONFIG)
    expected_shape, found_shape = family.simplify(ours), family.simplify(shape)
    stated, expected, remedies = [], [], []
    for field, key in family.stated_by.items():
        theirs = getattr(found_shape, field)
        if field in DROPOUTS or getattr(expected_shape, field) == theirs:
            continue  # dropout is of training, not of the weights
        setting = f"{section}.{field}"
        if not hasattr(GeneratorShape, field):  # a generator has the discriminator's
            setting = f"encoder.{field}"
        if isinstance(config.get(key), (list, dict)):  # layer_types, rope_parameters
            stated.append(f"{field} by {key} is {theirs}")
        else:
            stated.append(f"{key} is {theirs}")
        expected.append(f"{setting}={getattr(expected_shape, field)}")
        remedies.append(f"{setting} to {theirs}")
    if stated:
        raise UserError(
            f"{folder / CONFIG}: {', '.join(dict.fromkeys(stated))}, but the network to fill has "
            f"{', '.join(expected)}; set {' and '.join(remedies)} or name another folder"
        )
