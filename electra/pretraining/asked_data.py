"""Compare the data settings that a user asks for with shards, or a tokenizer, that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra.config import Layer, Layers, SettingError, as_text, flatten
from electra.pretraining.options import PretrainOptions, RecipeOverrides

if TYPE_CHECKING:
    from electra.data.wordpiece import WordPiece
    from electra.pretraining.recipe import Recipe

SECTION = "data."
COMMANDS = {  # in which a setting takes effect where shards are made beforehand
    "vocab_size": "`electra vocab`",
    "cased": "`electra vocab`",
    "keep_accents": "`electra vocab`",
    "held_out": "`electra shard`",
}


class Fact(NamedTuple):
    """The value of a setting with which data were made, in words."""

    value: Any
    text: str


def check_data_flags(
    recipe: Recipe,
    flags: Sequence[str],
    overrides: RecipeOverrides,
    options: PretrainOptions,
    output_dir: Path | None,
) -> None:
    """Do `check_asked_data` for the settings of a command."""
    from electra.pretraining.recipe import override_layers  # imports torch, which --help spares

    asked = override_layers(overrides.config or [], flags)
    check_asked_data(recipe, asked, options, output_dir)


def check_asked_data(
    recipe: Recipe,
    asked: Mapping[str, Layer],
    options: PretrainOptions,
    output_dir: Path | None,
) -> None:
    """Raise SettingError where a setting that the user asks for, in the layers beside the recipe,
    would have no effect, since the data are made already with another value.

    What a recipe says by itself is no wish, and a run that continues is compared with its own
    settings.
    """
    keys = {key for layer in asked.values() for key, _ in flatten(layer)}
    names = [name for name in COMMANDS if SECTION + name in keys]
    if not names or continues_run(options, output_dir):
        return
    made, facts = facts_of_data(options)
    for name in names:
        value = getattr(recipe.data, name)
        if name in facts and value != facts[name].value:
            key = SECTION + name
            raise SettingError(
                key,
                f"{Layers(asked).source_of(key)}: {key}={as_text(value)} has no effect: "
                f"{made} {facts[name].text}; leave it out{other_remedy(name, options)}",
            )


def continues_run(options: PretrainOptions, output_dir: Path | None) -> bool:
    """Return whether a start resumes from a checkpoint."""
    from electra.runs.checkpoint import list_checkpoints

    if options.resume != "auto":
        return options.resume != "never"
    return output_dir is not None and bool(list_checkpoints(output_dir))


def facts_of_data(options: PretrainOptions) -> tuple[str, dict[str, Fact]]:
    """Return a name for the data that are there, and the settings they were made with."""
    from electra.data.shards import Shards
    from electra.data.wordpiece import WordPiece
    from electra.pretraining.export import find_tokenizer_folder

    if options.data is not None:
        shards = Shards.open(options.data)
        share = shards.manifest.settings.held_out
        held_out = Fact(share, f"hold out {share:g} of the documents")
        return f"the shards in {options.data}", {
            "held_out": held_out,
            **facts_of_tokenizer(shards.tokenizer, verb="have"),
        }
    folder = options.tokenizer or find_tokenizer_folder(options.init_from)
    if folder is not None:
        return f"the tokenizer in {folder}", facts_of_tokenizer(WordPiece.load(folder), verb="has")
    return "", {}


def facts_of_tokenizer(tokenizer: WordPiece, *, verb: str) -> dict[str, Fact]:
    """Return the settings of a vocabulary, as far as they show in its tokenizer.

    A vocabulary may keep accents without being asked to, so a kept accent contradicts nothing.
    """
    kinds = {True: "a cased vocabulary", False: "a vocabulary in lower case"}
    is_cased = "a" not in tokenizer.normalize("A")
    facts = {
        "vocab_size": Fact(tokenizer.size, f"{verb} a vocabulary of {tokenizer.size:,} entries"),
        "cased": Fact(is_cased, f"{verb} {kinds[is_cased]}"),
    }
    if tokenizer.normalize("é") == "e":
        facts["keep_accents"] = Fact(False, f"{verb} a vocabulary without accents")
    return facts


def other_remedy(name: str, options: PretrainOptions) -> str:
    """Return how a setting takes effect, where it is not to be left out."""
    if options.data is not None:
        return f", or set it in {COMMANDS[name]} and cut other shards"
    if options.tokenizer is not None:
        return ", or leave out --tokenizer to train a vocabulary with it"
    return ": the text must be cut by the tokenizer of --init-from"
