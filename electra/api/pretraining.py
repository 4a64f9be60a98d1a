"""The function `electra.pretrain`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra import atomic
from electra.api.keywords import field_values, takes_keywords
from electra.api.random_numbers import own_random_numbers
from electra.api.recipes import RecipeArguments, build_recipe
from electra.api.results import PretrainResult
from electra.api.rows import Data, PathName, as_items, holds_rows, rows_table
from electra.config import UserError
from electra.data.tables import Table, require_text
from electra.pretraining.asked_data import check_asked_data
from electra.pretraining.options import PretrainOptions
from electra.pretraining.pretrain import pretrain as run_pretraining
from electra.pretraining.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class PretrainArguments(PretrainOptions, RecipeArguments):
    """The arguments of `pretrain`.

    Parameters
    ----------
    output_dir
        The run folder: models, checkpoints, metrics. The default is runs/RECIPE. The run that it
        holds is continued.
    corpus
        Text to train on: a file, a folder, a pattern such as "texts/*.txt", a list of them, or a
        DataFrame or list of dicts with a document in each row. The vocabulary and the shards are
        written to OUTPUT_DIR/data unless they are there already.
    data
        A folder of shards from `electra shard`, instead of a corpus.
    """

    recipe: str | Path | Recipe = field(kw_only=False)
    corpus: Data | None = None  # type: ignore[assignment]
    data: PathName | None = None  # type: ignore[assignment]
    output_dir: PathName | None = None
    max_steps: int | None = None
    seed: int | None = None
    settings: Mapping[str, object] | None = None
    config: PathName | Sequence[PathName] | None = None
    tokenizer: PathName | None = None  # type: ignore[assignment]
    init_from: PathName | None = None  # type: ignore[assignment]


@takes_keywords(PretrainArguments)
def pretrain(arguments: PretrainArguments) -> PretrainResult:
    """Pre-train a model with the settings of a recipe, on text (`corpus`) or on shards (`data`).

        result = electra.pretrain("small", corpus="texts/", max_steps=50_000)

    Ctrl-C, or the interrupt of a notebook, writes a checkpoint before it raises KeyboardInterrupt;
    the same call continues from there.
    """
    recipe, asked = build_recipe(arguments)
    output_dir = run_folder(arguments)
    options = field_values(PretrainOptions, arguments)
    check_asked_data(recipe, asked, PretrainOptions(**options), output_dir)
    options["corpus"] = find_corpus(arguments, output_dir)
    with own_random_numbers(quiet=arguments.quiet):
        outcome = run_pretraining(recipe, output_dir=output_dir, **options)
    if outcome.status != "finished":
        raise KeyboardInterrupt(
            f"stopped at step {outcome.step:,} with a checkpoint; the same call continues"
        )
    return PretrainResult(
        outcome.output_dir, outcome.step, outcome.scores, outcome.status, outcome.verdict.text
    )


def run_folder(arguments: PretrainArguments) -> Path:
    """Return the run folder that was named, or the default one of the recipe."""
    if arguments.output_dir is not None:
        return Path(arguments.output_dir)
    if isinstance(arguments.recipe, Recipe):
        raise UserError("output_dir= is missing: the folder to keep this run in")
    return Path("runs") / Path(arguments.recipe).stem


def find_corpus(arguments: PretrainArguments, output_dir: Path) -> Sequence[str | Path] | None:
    """Return the paths of the corpus; rows become a file in the run folder."""
    if arguments.corpus is None:
        return None
    items: list[Any] = as_items(arguments.corpus, name="corpus")
    if not holds_rows(items, name="corpus"):
        return [str(Path(item)) for item in items]
    return [write_rows(rows_table(items, name="corpus"), arguments.text_field, output_dir / "data")]


def write_rows(table: Table, column: str, folder: Path) -> Path:
    """Write the texts of rows to a file whose name holds their hash: another corpus is another
    file.
    """
    lines = []
    for where, row in table.rows or ():
        lines.append(json.dumps({column: require_text(row, column, where)}, ensure_ascii=False))
    path = folder / f"corpus-{table.hash_rows()[:12]}.jsonl"
    atomic.make_folder(folder)
    atomic.write(path, "\n".join(lines) + "\n")
    return path
