"""Model folders of tasks: find one, load its encoder, save and load fine-tuned networks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from electra import __version__, atomic
from electra.checksums import CHECKSUMS, hash_file
from electra.config import UserError
from electra.data.sources import HUB_NAME, warn
from electra.data.stock_tokenizer import compare_rows
from electra.data.wordpiece import WordPiece
from electra.escape import first_line
from electra.files import check_inside, read_json_object_or_empty
from electra.model import huggingface, model_config
from electra.model.card import task_card
from electra.model.card_content import NOTHING_RECORDED, CardContent
from electra.model.encoder import Encoder, initialise
from electra.model.families import build_encoder
from electra.model.huggingface import LoadReport
from electra.model.weight_files import CONFIG, read_json
from electra.shipped import describe_shipped, resolve_shipped
from electra.tasks.model_task import TASK, head_input_width, read_task
from electra.tasks.sentence_transformer import MODULES, ST_CONFIG, TRANSFORMER_CONFIG, read_length
from electra.tasks.task import AnyTask, Network, Task

LENGTH, RESULTS = "electra_length", "results.json"
RUN, STATUS = "run.json", "status.json"  # of a fine-tuning: its identity, and how it stands
# The files of a hub repository that are downloaded: never a pickle.
HUB_FILES = [
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "vocab.txt",
    "special_tokens_map.json",
    CHECKSUMS,
    MODULES,  # and what else says how an embedder pools
    TRANSFORMER_CONFIG,
    ST_CONFIG,
    "*_Pooling/config.json",
]
MIN_LENGTH = 8
MAX_WINDOW = 512  # of questions, by default: a longer paragraph is read in several windows


# ---- which folder --------------------------------------------------------------------------------


def model_folder(model: str | Path) -> Path:
    """Return the model folder that is meant by a path, a shipped model's name or one on the hub.

    A path is a model folder itself, a pre-training run (its discriminator or encoder), or a
    fine-tuning run (its best model).
    """
    path = atomic.resolve_folder(resolve_shipped(model).expanduser())
    if (path / CONFIG).is_file():
        return path
    for role in ("discriminator", "encoder"):
        if (atomic.resolve_folder(path / role) / CONFIG).is_file():
            return atomic.resolve_folder(path / role)
    if (path / RESULTS).is_file():
        return best_model(path)
    model_config.check_is_exported(path)
    check_is_finished(path)
    if path.is_dir():
        raise UserError(
            f"{path}: no model there; name a folder with {CONFIG} and model.safetensors, a run "
            "folder of `electra pretrain`, or the output folder of `electra finetune`"
        )
    if HUB_NAME.fullmatch(str(model)) and ":" not in str(model):
        return download(str(model))
    if path.is_file():
        raise UserError(
            f"{path}: a file, and a model is a folder; data is named as in `electra evaluate MODEL "
            "--dev FILE` and `electra predict MODEL FILE`"
        )
    raise UserError(f"{model}: no such model folder{describe_shipped(str(model))}")


def check_is_finished(path: Path) -> None:
    """Raise UserError for the folder of a fine-tuning that is not finished."""
    if not (path / RUN).is_file():
        return
    status = read_json_object_or_empty(path / STATUS).get("status", "not started")
    message = f"{path}: a fine-tuning ({status}) without its results yet; the same `electra "
    message += "finetune` command continues it"
    for config in sorted(path.glob(f"seed-*/model/{CONFIG}"))[:1]:
        message += f"; {config.parent} is the model of a seed that is finished"
    raise UserError(message)


def best_model(run: Path) -> Path:
    """Return the best model of a fine-tuning run."""
    best = read_json(run, RESULTS).get("best_model")
    if best:
        folder = run / check_inside(best, source=run / RESULTS, key="best_model")
        if folder.name == "model" and (folder / CONFIG).is_file():
            return folder
    raise UserError(
        f"{run}: {RESULTS} names no model that is there; name one of its seed-N/model folders"
    )


def download(name: str) -> Path:
    """Download a model from the hub and return its folder."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=HUB_FILES)
    except Exception as error:  # each of the hub's clients raises its own kinds
        reason = first_line(error)
        raise UserError(
            f"{name}: no such folder, and the hub does not answer for a model of that name "
            f"({reason}); without a network, fetch its files elsewhere ({', '.join(HUB_FILES[:2])}"
            ", tokenizer files) and name their folder"
        ) from None
    return Path(folder)


def weights_hash(folder: Path) -> str:
    """Return a hash of the weights, which names the model of a result wherever it was moved."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(bytes.fromhex(hash_file(path)))
    return digest.hexdigest()[:16]


# ---- a model to fine-tune ------------------------------------------------------------------------


@dataclass(frozen=True)
class Pretrained:
    """The encoder of a model folder, and its tokenizer."""

    folder: Path
    tokenizer: WordPiece
    encoder: Encoder
    prediction_head: nn.Module | None  # where the family has one
    loaded: LoadReport | None  # None: random weights


def load_pretrained(
    model: str | Path, *, dropout: float | None = None, random_weights: bool = False
) -> Pretrained:
    """Load the encoder of a discriminator or of a masked LM; raise UserError for a generator."""
    folder = model_folder(model)
    if model_config.role_of(folder) == "generator":
        refuse_generator(folder)
    tokenizer = load_tokenizer(folder)
    loaded = None
    if random_weights:
        network = huggingface.EncoderOnly(huggingface.build_encoder(folder))
    else:
        network, loaded = huggingface.load_encoder(folder)
    if dropout is not None:
        network.encoder.set_dropout(dropout)
    return Pretrained(folder, tokenizer, network.encoder, network.prediction_head, loaded)


def refuse_generator(folder: Path) -> None:
    beside = folder.parent / "discriminator"
    where = ", the folder or hub model named …-discriminator"
    if (beside / CONFIG).is_file():
        where = f": {beside}"
    raise UserError(
        f"{folder} holds a generator, the small network that only proposes replacements; use the "
        f"discriminator{where}. (If this is a masked LM that stands alone, say so in its {CONFIG}: "
        f'"electra_role": "encoder")'
    )


def load_tokenizer(folder: Path) -> WordPiece:
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise UserError(
            f"{folder}: a model without its tokenizer: neither tokenizer.json nor vocab.txt is "
            "there; copy the files of the tokenizer that it was pre-trained with into this folder"
        )
    tokenizer = WordPiece.load(folder, needs_mask=False)
    _, vocabulary, _ = model_config.load_shape(folder)
    if tokenizer.size > vocabulary:
        raise UserError(
            f"{folder}: its tokenizer has {tokenizer.size} entries, its network only {vocabulary}; "
            "if tokens were added, save both again after "
            "`model.resize_token_embeddings(len(tokenizer))`; else put in the model's own tokenizer"
        )
    return tokenizer


def build_network(
    source: Pretrained, task: Task[Any, Any], *, dropout: float, head_init: str = "glorot"
) -> Network:
    """Build a network with a fresh head on an encoder.

    The family's prediction head keeps what it learnt in pre-training, as in stock transformers.
    """
    source.encoder.begin_with_token_type(task.first_token_type)
    head = task.head(head_input_width(task, source.encoder.shape), dropout=dropout)
    if head_init == "normal":
        head.apply(initialise)
    network = Network(source.encoder, head, frozen=task.frozen, pooling=task.pooling)
    if network.prediction_head is not None:
        network.prediction_head = source.prediction_head
    return network


# ---- fine-tuned models ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FinetunedModel:
    """A fine-tuned network, with everything that inference needs."""

    folder: Path
    network: Network
    task: AnyTask
    tokenizer: WordPiece
    length: int


def save_tuned(
    network: Network,
    task: Task[Any, Any],
    tokenizer: WordPiece,
    folder: Path,
    *,
    length: int,
    extra: Mapping[str, Any],
    card: CardContent = NOTHING_RECORDED,
) -> Network:
    """Write a transformers folder; return the network in the form that the folder holds."""
    head = network.head.fold()
    family = network.family
    if network.architecture:
        head = head.to_transformers(family.name)
    stored = Network(network.encoder, head, frozen=task.frozen, pooling=task.pooling)
    stored.reader, stored.prediction_head = network.reader, network.prediction_head
    config = {
        **task.config(),
        TASK: task.settings(),
        LENGTH: length,
        **family.special_tokens(pad=tokenizer.pad, cls=tokenizer.cls, sep=tokenizer.sep),
        **family.task_config(pooling=task.pooling),
        "electra_version": __version__,
        **extra,
    }
    read_length = length  # what pipelines of transformers cut a text to
    if task.has_windows:
        read_length = network.encoder.shape.positions
    huggingface.save(
        stored,
        folder,
        role="encoder",
        config_extra=config,
        card=task_card(task.name, card, architecture=stored.architecture),
        tokenizer_files=lambda path: tokenizer.copy_to(
            path, model_max_length=read_length, model_input_names=family.model_input_names
        ),
    )
    return stored


def load_tuned(model: str | Path, *, task: Task[Any, Any] | None = None) -> FinetunedModel:
    """Load a folder that `electra finetune` wrote, or one of transformers' task classes.

    Of the latter, `task` says how files are read, and its network reads rows as its own tokenizer
    makes them.
    """
    folder = model_folder(model)
    config = read_json(folder, CONFIG)
    architecture = model_config.architecture_of(config)
    shape, vocabulary, _ = model_config.load_shape(folder)
    stored_task, is_stock = read_task(folder, config, shape, task)
    width = head_input_width(stored_task, shape)

    def build() -> Network:
        return Network(
            build_encoder(shape, vocabulary=vocabulary),
            stored_task.stored_head(width, architecture=architecture),
            frozen=stored_task.frozen,
            pooling=stored_task.pooling,
        )

    network, loaded = huggingface.build_and_load(build, folder)
    if loaded.missing:
        raise UserError(
            f"{folder}: {loaded.missing[0]} is missing; fine-tune it first with `electra finetune`"
        )
    stated = {} if is_stock else config
    length = stored_length(folder, stated, stored_task, positions=shape.positions)
    tokenizer = load_tokenizer(folder)
    if is_stock:
        read_as_transformers(folder, tokenizer, network, stored_task)
    return FinetunedModel(folder, network.eval(), stored_task, tokenizer, length)


def stored_length(folder: Path, config: Mapping[str, Any], task: AnyTask, *, positions: int) -> int:
    """Return how long the rows of a fine-tuned model are."""
    longest = positions
    if task.kind == "span":
        longest = min(positions, MAX_WINDOW)
    length = config.get(LENGTH, stock_length(folder, longest))
    if not isinstance(length, int) or not MIN_LENGTH <= length <= positions:
        raise UserError(
            f"{folder / CONFIG}: {LENGTH} must be a number from {MIN_LENGTH} to {positions}, "
            f"found {length!r}"
        )
    return length


def read_as_transformers(
    folder: Path, tokenizer: WordPiece, network: Network, task: AnyTask
) -> None:
    """Let a network that transformers fine-tuned read the rows of its own tokenizer; raise
    UserError where tasks make others.
    """
    has_segments = "token_type_ids" in network.family.model_input_names
    found = compare_rows(tokenizer, folder, with_segments=has_segments)
    if found.stock_segments is None:
        warn(f"{folder}: its rows were not compared with those of transformers: {found.single}")
        return
    if has_segments and not any(found.stock_segments):
        network.encoder.ignore_token_types()
    if found.single or (found.pair and task.kind in ("span", "choose")):
        raise UserError(
            f"{folder}: transformers' tokenizer makes other rows than the model would read here: "
            f"{found.single or found.pair}; use the model with transformers, or fine-tune it again "
            "with `electra finetune`"
        )
    if found.pair:
        warn(
            f"{folder}: its answers for pairs of texts are others than transformers': "
            f"{found.pair}; for these, fine-tune it again with `electra finetune`"
        )


def stock_length(folder: Path, positions: int) -> int:
    """Return to how many tokens transformers cuts a text: where nothing is stated, all positions.

    Its tokenizers state a huge number where they have no limit.
    """
    stated = read_length(folder) or positions
    if MIN_LENGTH <= stated <= positions:
        return stated
    return positions
