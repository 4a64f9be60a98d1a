"""Models for tasks: which folder is meant, what is in it, and a fine-tuned network ⇄ a transformers
folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from electra import __version__, atomic, tasks
from electra.config import UserError
from electra.data.sources import HUB_NAME
from electra.data.wordpiece import WordPiece
from electra.model import huggingface
from electra.model.card import task_card
from electra.model.dropout import Dropout
from electra.model.encoder import Attention, Encoder
from electra.model.huggingface import CONFIG, Loaded
from electra.model.layers import layer_width
from electra.tasks.task import AnyTask, Network, Task

TASK, LENGTH, RESULTS = "electra_task", "electra_length", "results.json"
WANTED = [
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "vocab.txt",
    "special_tokens_map.json",
]  # of a hub repository; never a pickle


# ---- which folder --------------------------------------------------------------------------------


def model_folder(given: str | Path) -> Path:
    """A model folder itself, the one to fine-tune in a pre-training run, the best of a fine-tuning,
    or the hub's.
    """
    path = atomic.resolve_folder(Path(given).expanduser())
    if (path / CONFIG).is_file():
        return path
    for role in ("discriminator", "encoder"):
        if (atomic.resolve_folder(path / role) / CONFIG).is_file():
            return atomic.resolve_folder(path / role)
    if (path / RESULTS).is_file():
        best = huggingface.read_json(path, RESULTS).get("best_model")
        if (
            isinstance(best, str)
            and Path(best).name == "model"
            and (path / best / CONFIG).is_file()
        ):
            return path / best
        raise UserError(
            f"{path}: {RESULTS} names no model that is there; name one of its seed-N/model folders"
        )
    if path.is_dir():
        raise UserError(
            f"{path}: no model there; name a folder with {CONFIG} and model.safetensors, a run "
            "folder of "
            "`electra pretrain`, or the output folder of `electra finetune`"
        )
    if HUB_NAME.fullmatch(str(given)) and ":" not in str(given):
        return from_hub(str(given))
    raise UserError(f"{given}: no such model folder")


def from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=WANTED))
    except Exception as error:  # each of the hub's clients raises its own kinds
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{name}: no such folder, and the hub does not answer for a model of that name "
            f"({reason}); "
            f"without a network, fetch its files elsewhere ({', '.join(WANTED[:2])}, tokenizer "
            "files) and "
            "name their folder"
        ) from None


def weights_hash(folder: Path) -> str:
    """Of the weights' content, so that a result says which model it is of, wherever that was moved."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


# ---- a model to fine-tune ------------------------------------------------------------------------


@dataclass(frozen=True)
class Pretrained:
    """A folder whose encoder is to be used, and its tokenizer."""

    folder: Path
    tokenizer: WordPiece
    encoder: Encoder
    loaded: Loaded | None  # None: random weights


def load_pretrained(
    given: str | Path, *, dropout: float | None = None, random_weights: bool = False
) -> Pretrained:
    """The encoder of a discriminator or of a masked LM that stands alone. A generator is refused."""
    folder = model_folder(given)
    if huggingface.role_of(folder) == "generator":
        beside = folder.parent / "discriminator"
        where = (
            f": {beside}"
            if (beside / CONFIG).is_file()
            else ", the folder or hub model named …-discriminator"
        )
        raise UserError(
            f"{folder} holds a generator, the small network that only proposes replacements; use "
            "the "
            f"discriminator{where}. (If this is a masked LM that stands alone, say so in its "
            f"{CONFIG}: "
            f'"electra_role": "encoder")'
        )
    tokenizer = tokenizer_of(folder)
    encoder, loaded = huggingface.load_encoder(folder, filled=not random_weights)
    if dropout is not None:
        set_dropout(encoder, dropout)
    return Pretrained(folder, tokenizer, encoder, loaded)


def tokenizer_of(folder: Path) -> WordPiece:
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise UserError(
            f"{folder}: a model without its tokenizer: neither tokenizer.json nor vocab.txt is "
            "there; copy "
            "the files of the tokenizer that it was pre-trained with into this folder"
        )
    tokenizer = WordPiece.load(folder)
    _, vocabulary, _ = huggingface.load_shape(folder)
    if tokenizer.size > vocabulary:
        raise UserError(
            f"{folder}: its tokenizer has {tokenizer.size} entries, its network only {vocabulary}; "
            "they do not "
            "belong together"
        )
    return tokenizer


def set_dropout(encoder: Encoder, rate: float) -> None:
    """Fine-tuning drops out at its own rate, whatever pre-training did."""
    encoder.shape = replace(encoder.shape, dropout=rate, attention_dropout=rate)
    for module in encoder.modules():
        if isinstance(module, Dropout):
            module.rate = rate
        elif isinstance(module, Attention):
            module.dropout = rate


def build_network(encoder: Encoder, task: Task[Any, Any], *, dropout: float) -> Network:
    """A fresh head on an encoder."""
    shape = encoder.shape
    width = layer_width(task.frozen or "last", shape.width, layers=shape.layers)
    return Network(encoder, task.head(width, dropout=dropout), frozen=task.frozen)


# ---- a fine-tuned model at rest ------------------------------------------------------------------


@dataclass(frozen=True)
class Tuned:
    """A network that answers, with everything needed to ask it."""

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
    facts: Mapping[str, object],
) -> Network:
    """Write a transformers folder; returns the network in the form that lies there."""
    head = network.head.to_transformers() if network.architecture else network.head
    stored = Network(network.encoder, head, frozen=task.frozen)
    stored.reader = network.reader
    config = {
        **task.config(),
        TASK: task.settings(),
        LENGTH: length,
        "pad_token_id": tokenizer.pad,
        "electra_version": __version__,
        **extra,
    }
    huggingface.save(
        stored,
        folder,
        role="encoder",
        config_extra=config,
        card=task_card(task.name, architecture=stored.architecture, facts=facts),
        tokenizer_files=lambda path: tokenizer.copy_to(
            path, model_max_length=network.encoder.shape.positions
        ),
    )
    return stored


def load_tuned(given: str | Path, *, task: Task[Any, Any] | None = None) -> Tuned:
    """A folder that `electra finetune` wrote, or one of transformers' task classes (then `task`
    says how to read).
    """
    folder = model_folder(given)
    config = huggingface.read_json(folder, CONFIG)
    architecture = huggingface.architecture_of(config)
    if TASK in config:
        stored: AnyTask = tasks.restore_task(config[TASK], source=str(folder / CONFIG))
    else:
        stored = stock_task(folder, config, architecture, task)
    shape, vocabulary, _ = huggingface.load_shape(folder)
    encoder = Encoder(shape, vocabulary=vocabulary)
    width = layer_width(stored.frozen or "last", shape.width, layers=shape.layers)
    network = Network(
        encoder, stored.stored_head(width, architecture=architecture), frozen=stored.frozen
    )
    loaded = huggingface.load(network, folder)
    if loaded.missing:
        raise UserError(
            f"{folder}: {loaded.missing[0]} is missing; fine-tune it first with `electra finetune`"
        )
    length = config.get(LENGTH, min(shape.positions, 512))
    if not isinstance(length, int) or not 8 <= length <= shape.positions:
        raise UserError(
            f"{folder / CONFIG}: {LENGTH} must be a number from 8 to {shape.positions}, found "
            f"{length!r}"
        )
    return Tuned(folder, network.eval(), stored, tokenizer_of(folder), length)


STOCK = {
    "ElectraForSequenceClassification": "classify",
    "ElectraForTokenClassification": "tag",
    "ElectraForQuestionAnswering": "span",
    "ElectraForMultipleChoice": "choose",
}


def stock_task(folder: Path, config: Mapping[str, Any], architecture: str, asked: Any) -> Any:
    """How to read a model that transformers fine-tuned: its class says the kind, its config the
    labels.
    """
    if architecture not in STOCK:
        raise UserError(
            f"{folder}: an encoder without a task; fine-tune it first: electra finetune {folder} "
            "--task …"
        )
    kinds = (
        (STOCK[architecture], "glue")
        if STOCK[architecture] == "classify"
        else (STOCK[architecture],)
    )
    if asked is not None and asked.kind not in kinds:
        raise UserError(
            f"{folder} is of class {architecture}, which --task {asked.name} does not fit"
        )
    task: Any = asked or tasks.find_task(STOCK[architecture])
    if architecture == "ElectraForQuestionAnswering":
        return replace(task, head_kind="simple")
    if architecture == "ElectraForMultipleChoice":
        return replace(task, projected=is_projected(folder, config))
    labels = stock_labels(
        config, otherwise=getattr(asked, "labels", ()), source=str(folder / CONFIG)
    )
    if architecture == "ElectraForTokenClassification":
        return replace(task, labels=labels)
    regression = config.get("problem_type") == "regression" or len(labels) == 1
    if asked is not None and asked.labels and len(asked.labels) != len(labels):
        raise UserError(
            f"{folder} tells {len(labels)} classes apart ({', '.join(labels)}), and {asked.name} "
            "has "
            f"{len(asked.labels)}: {', '.join(asked.labels)}"
        )
    metrics = task.metrics or (("spearmanr",) if regression else ("accuracy",))
    return replace(
        task,
        labels=() if regression else labels,
        regression=regression,
        metrics=metrics,
        metric=task.metric or metrics[0],
    )


def stock_labels(
    config: Mapping[str, Any], *, otherwise: tuple[str, ...], source: str
) -> tuple[str, ...]:
    """Names of classes. LABEL_0 and LABEL_1 are what transformers writes when nobody named them:
    then they are those of the task that was asked for, or the numbers that the training data had.
    """
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or names.keys() != {str(number) for number in range(len(names))}:
        raise UserError(
            f"{source}: id2label must name the classes '0', '1' and so on, found "
            f"{str(names)[:60]!r}"
        )
    labels = tuple(str(names[str(number)]) for number in range(len(names)))
    if labels != tuple(f"LABEL_{number}" for number in range(len(labels))):
        return labels
    return otherwise if len(otherwise) == len(labels) else tuple(map(str, range(len(labels))))


def is_projected(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether transformers puts a dense layer and gelu before the scores, as it does unless told
    otherwise.
    """
    found = config.get("summary_type", "first"), config.get("summary_activation", "gelu")
    projected = config.get("summary_use_proj", True) is True
    if found[0] != "first" or (found[1] or None) != ("gelu" if projected else None):
        raise UserError(
            f"{folder / CONFIG}: summary_type {found[0]!r} with summary_activation {found[1]!r}; "
            "only the "
            "first vector, through a dense layer with gelu or as it is, can be read"
        )
    return projected
