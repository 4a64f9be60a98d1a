"""The files of a sentence-transformers folder: how an encoder's vectors become one of each text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from electra import __version__, atomic
from electra.checksums import verify_if_listed
from electra.config import UserError
from electra.files import check_inside, parse_json, read_bounded_text, read_json_object_or_empty
from electra.model.weight_files import read_json
from electra.tasks.embed_options import EmbedOptions

MODULES = "modules.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
ST_CONFIG = "config_sentence_transformers.json"
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"
FILES = (
    MODULES,
    TRANSFORMER_CONFIG,
    ST_CONFIG,
    f"{POOLING}/config.json",
    f"{NORMALIZE}/config.json",
)
# The names of the modules that every version of the library loads.
MODULE_TYPES = {
    "": "sentence_transformers.models.Transformer",
    POOLING: "sentence_transformers.models.Pooling",
    NORMALIZE: "sentence_transformers.models.Normalize",
}
# The key of a way to pool in 1_Pooling/config.json, as every version of the library reads it.
POOLING_KEYS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """How the vectors of a text's tokens become one, and how many tokens are read."""

    pool: Literal["mean", "cls"] = "mean"
    normalize: bool = False
    length: int | None = None


def write_pooling(folder: Path, pooling: Pooling, *, width: int) -> None:
    """Write the files that make a transformers folder one of sentence-transformers."""
    paths = ["", POOLING]
    if pooling.normalize:
        paths.append(NORMALIZE)
    modules = []
    for index, path in enumerate(paths):
        modules.append({"idx": index, "name": str(index), "path": path, "type": MODULE_TYPES[path]})
        if path:
            (folder / path).mkdir()
    atomic.write_json(folder / MODULES, modules)
    modes = {key: mode == pooling.pool for mode, key in POOLING_KEYS.items()}
    config = {"word_embedding_dimension": width, **modes, "include_prompt": True}
    atomic.write_json(folder / POOLING / "config.json", config)
    if pooling.normalize:
        atomic.write_json(folder / NORMALIZE / "config.json", {})
    transformer = {"max_seq_length": pooling.length, "do_lower_case": False}
    atomic.write_json(folder / TRANSFORMER_CONFIG, transformer)
    library = {"__version__": {"electra": __version__}, "prompts": {}, "default_prompt_name": None}
    atomic.write_json(folder / ST_CONFIG, {**library, "similarity_fn_name": "cosine"})


def read_pooling(folder: Path) -> Pooling | None:
    """Return how a sentence-transformers folder pools; None for a folder of another kind.

    Raise UserError for one that does more with the vectors than pooling and normalisation.
    """
    if not (folder / MODULES).is_file():
        return None
    pool: Literal["mean", "cls"] = "mean"
    normalize = False
    for module in read_modules(folder):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            path = check_inside(module.get("path"), source=folder / MODULES, key="path")
            pool = read_pooling_mode(folder / path)
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UserError(
                f"{folder / MODULES}: names the module {kind}; electra embed computes mean and cls "
                "pooling and normalisation alone. Load this folder with SentenceTransformer"
            )
    if read_json_object_or_empty(folder / ST_CONFIG).get("default_prompt_name"):
        raise UserError(
            f"{folder / ST_CONFIG}: default_prompt_name adds a prompt to every text, which electra "
            "embed does not; load this folder with SentenceTransformer"
        )
    return Pooling(pool=pool, normalize=normalize, length=read_length(folder))


def read_modules(folder: Path) -> list[Mapping[str, Any]]:
    """Return the modules that modules.json lists."""
    path = folder / MODULES
    verify_if_listed(path)
    try:
        modules = parse_json(read_bounded_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}; export it again") from None
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise UserError(f"{path}: must hold a list of modules; export the folder again")
    return modules


def read_pooling_mode(folder: Path) -> Literal["mean", "cls"]:
    """Return how a module pools, as new or old versions of the library write it."""
    config = read_json(folder, "config.json")
    active = config.get("pooling_mode")
    if active is None:
        modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        names = {key: mode for mode, key in POOLING_KEYS.items()}
        active = ", ".join(names.get(key, key) for key in modes)
    if active == "mean":
        return "mean"
    if active == "cls":
        return "cls"
    raise UserError(
        f"{folder / 'config.json'}: pools by {active or 'nothing'}; electra embed pools by mean or "
        "cls. Load this folder with SentenceTransformer"
    )


def read_length(folder: Path) -> int | None:
    """Return how many tokens sentence-transformers reads of a text, where that is stated."""
    stated = read_json_object_or_empty(folder / TRANSFORMER_CONFIG).get("max_seq_length")
    if stated is None:
        stated = read_json_object_or_empty(folder / "tokenizer_config.json").get("model_max_length")
    if isinstance(stated, int) and stated > 0:
        return stated
    return None


def complete_options(options: EmbedOptions, folder: Path, *, positions: int) -> EmbedOptions:
    """Return the options with what the folder says of pooling, where they do not say it."""
    stated = read_pooling(folder) or Pooling()
    length = options.length
    if length is None:
        length = min(stated.length or positions, positions)
    normalize = options.normalize
    if normalize is None:
        normalize = stated.normalize and options.pool != "tokens"
    return replace(
        options,
        pool=options.pool or stated.pool,
        normalize=normalize,
        length=length,
    )
