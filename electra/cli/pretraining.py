"""Commands from text to a pre-trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from electra.cli import (
    DONE,
    STOPPED_EARLY,
    Integer,
    PathList,
    Settings,
    StringList,
    app,
    check_flags,
    check_output_dir,
    require_corpus,
)
from electra.config import UserError
from electra.data.options import ShardOptions, VocabularyOptions

DEFAULT_VOCABULARY, DEFAULT_SHARDS = VocabularyOptions(), ShardOptions()


@app.command
def vocab(
    *corpus: str,
    output_dir: Path,
    options: Annotated[VocabularyOptions, Parameter(name="*")] = DEFAULT_VOCABULARY,
) -> int:
    """Train a WordPiece vocabulary on your text.

    Parameters
    ----------
    corpus
        Files (.txt .jsonl .parquet, also .gz .xz .bz2 .zst), folders, globs, or owner/name:config
        on the hub.
    output_dir
        The tokenizer folder to write; transformers loads it too.
    """
    from electra.console import progress_bars
    from electra.data.vocabulary import train_wordpiece

    with progress_bars() as (stage, report):
        tokenizer = train_wordpiece(
            require_corpus(corpus),
            check_output_dir(output_dir),
            options=options,
            progress=stage("vocabulary"),
            report=report,
        )
    print(f"{output_dir}: {tokenizer.size:,} entries")
    return DONE


@app.command
def shard(
    *corpus: str,
    output_dir: Path,
    tokenizer: Path | None = None,
    options: Annotated[ShardOptions, Parameter(name="*")] = DEFAULT_SHARDS,
    merge: bool = False,
    verify: bool = False,
) -> int:
    """Cut text into rows of tokens, packed in memory-mapped shards.

    Parameters
    ----------
    corpus
        Files, folders, globs or hub names, as for `vocab`.
    output_dir
        Where the shards go. Interrupted, the same command goes on; finished, it does nothing.
    tokenizer
        Folder from `electra vocab`, or any transformers tokenizer folder.
    merge
        Only check that all parts in OUTPUT_DIR are there, alike and whole, and write one manifest
        for them.
    verify
        Only check the shards in OUTPUT_DIR against their checksums.
    """
    if merge and verify:
        raise UserError("--merge and --verify do one thing each; a merge checks every file, too")
    if merge:
        return merge_shards(output_dir)
    if verify:
        return verify_shards(output_dir)
    if tokenizer is None:
        raise UserError(
            "--tokenizer is missing: a folder from `electra vocab`, or any transformers tokenizer "
            "folder"
        )
    return cut_shards(corpus, output_dir, tokenizer, options)


def cut_shards(
    corpus: Sequence[str], output_dir: Path, tokenizer: Path, options: ShardOptions
) -> int:
    """Cut shards and print what they hold; the part is by default that of a Slurm array task."""
    from electra.console import progress_bars
    from electra.data.sharding import shard, slurm_part
    from electra.data.wordpiece import WordPiece

    if options.part is None:
        options = dataclasses.replace(options, part=slurm_part())
    with progress_bars() as (stage, report):
        manifest = shard(
            require_corpus(corpus),
            tokenizer=WordPiece.load(tokenizer),
            output_dir=check_output_dir(output_dir),
            options=options,
            progress=stage("shards"),
            report=report,
        )
    print(
        f"{output_dir}: {manifest.rows:,} rows of {manifest.length}, {manifest.tokens:,} tokens, "
        f"{manifest.fill:.1%} filled; {manifest.held_out_rows:,} rows held out"
    )
    return DONE


def merge_shards(folder: Path) -> int:
    """Merge the parts of shards and print what they hold."""
    from electra.console import progress_bars
    from electra.data.merging import merge

    with progress_bars() as (stage, report):
        made = merge(folder, progress=stage("checking"), report=report)
    print(
        f"{folder}: {made.rows:,} rows of {made.length}, every file as it was written; one manifest"
    )
    return DONE


def verify_shards(folder: Path) -> int:
    """Verify shards against their checksums and print what they hold."""
    from electra.data.shards import Shards

    shards = Shards.open(folder)
    shards.verify()
    print(f"{folder}: {shards.manifest.rows:,} rows, every file as it was written")
    return DONE


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a pre-training begins with, besides its recipe.

    Parameters
    ----------
    corpus
        Text to train on; vocabulary and shards are made in OUTPUT_DIR/data unless they are there.
    data
        Shards from `electra shard`, instead of a corpus.
    tokenizer
        With --corpus: use this tokenizer folder instead of training a vocabulary.
    text_field
        With --corpus: field or column that holds the text of .jsonl and .parquet.
    resume
        auto (continue this run if it is there), never, or a checkpoint folder.
    overwrite
        With --resume never: start over in a folder that holds a run.
    init_from
        Start from the weights in a run folder or a transformers ELECTRA folder, with a fresh
        optimiser.
    """

    corpus: StringList = None
    data: Path | None = None
    tokenizer: Path | None = None
    text_field: str = "text"
    resume: str = "auto"
    overwrite: bool = False
    init_from: Path | None = None


NOTHING_GIVEN = Beginning()


@app.command
def pretrain(
    recipe: str,
    *settings: Settings,
    output_dir: Path | None = None,
    beginning: Annotated[Beginning, Parameter(name="*")] = NOTHING_GIVEN,
    max_steps: Integer | None = None,
    seed: Integer | None = None,
    config: PathList = None,
    dry_run: bool = False,
    print_config: bool = False,
    quiet: bool = False,
) -> int:
    """Pre-train a generator and a discriminator (or a masked LM) as a recipe says.

    Any setting of the recipe may follow as --section.key VALUE, or --key VALUE where that is clear:
    --batch-size 64 --learning-rate 2e-4 --encoder.layers 6 --objective.masking.rate 0.25.
    `--print-config` lists them all.

    Parameters
    ----------
    recipe
        tiny, small, small-official, base, large, bert-small, bert-small-official, bert-base,
        bert-large, bert-nsp-base, left-to-right-base, electra-15-base, replace-mlm-base,
        all-tokens-mlm-base, adversarial-base, two-stage-generator-base, two-stage-base,
        unigram-base, random-replacement-base, or a TOML file.
    output_dir
        The run folder: models, checkpoints, metrics.jsonl, status.json. Needed unless nothing is to
        be done.
    max_steps
        Steps to train for.
    seed
        Decides everything that is random.
    config
        TOML files that change settings of the recipe; later ones win, and settings on this line win
        over all.
    dry_run
        Say what would be done and what it costs, and do nothing.
    print_config
        Print the settings as TOML and do nothing.
    quiet
        No progress.
    """
    from electra.pretraining.recipe import Recipe, load_recipe
    from electra.settings import as_toml

    check_flags(settings, "pretrain", Recipe)
    short = {"--max-steps": max_steps, "--seed": seed}
    flags = [
        *settings,
        *(
            word
            for name, value in short.items()
            if value is not None
            for word in (name, str(value))
        ),
    ]
    chosen = load_recipe(recipe, files=config or [], flags=flags)
    if print_config or dry_run:
        print(as_toml(chosen), end="\n" if dry_run else "")
        return describe(recipe, *flags, config=config) if dry_run else DONE
    if output_dir is None:
        raise UserError("--output-dir is missing: the folder to keep this run in")
    from electra.pretraining.pretrain import pretrain as run

    if beginning.corpus is not None:
        require_corpus(beginning.corpus)
    outcome = run(chosen, output_dir=output_dir, quiet=quiet, **vars(beginning))
    return DONE if outcome.status == "finished" else STOPPED_EARLY


@app.command
def describe(
    recipe: str,
    *settings: Settings,
    config: PathList = None,
    world_size: Integer = 1,
    json: bool = False,
) -> int:
    """Say what a recipe or a model is: networks, parameters, operations in both conventions,
    tokens, memory.

    Parameters
    ----------
    recipe
        A recipe's name or TOML file, or a run or model folder.
    config
        TOML files that change settings of the recipe.
    world_size
        So many processes train together: what each of them needs of memory, also with --parallel
        fsdp.
    json
        For machines.
    """
    from rich.console import Console

    from electra.cli.describe import as_json, describe_folder, describe_recipe, show
    from electra.pretraining.recipe import Recipe, load_recipe

    check_flags(settings, "describe", Recipe)
    if Path(recipe).is_dir():
        if settings or config:
            raise UserError(
                f"{recipe} is a folder and carries its own settings; "
                f"{' '.join(settings) or '--config'} "
                f"goes with a recipe"
            )
        described = describe_folder(Path(recipe), world_size=world_size)
    else:
        described = describe_recipe(
            load_recipe(recipe, files=config or [], flags=settings),
            name=recipe,
            world_size=world_size,
        )
    if json:
        print(as_json(described))
    else:
        show(described, Console())
    return DONE


@app.command
def show(model: Path, text: str | None = None, *, seed: Integer = 0) -> int:
    """Put one sentence through a run: what was masked, what the generator guessed, what the
    discriminator doubts.

    Parameters
    ----------
    model
        A run folder with discriminator/ and generator/.
    text
        The sentence; one of ours when left out.
    seed
        Another seed masks and guesses otherwise.
    """
    from rich.console import Console

    from electra.cli.show import worked_sentence

    worked_sentence(model, text, seed=seed, console=Console())
    return DONE


@app.command
def quickstart(
    *, output_dir: Path = Path("runs/quickstart"), max_steps: Integer | None = None
) -> int:
    """See the whole of it in minutes: this machine's own libraries' prose to a tiny ELECTRA, and
    that to a classifier.

    Parameters
    ----------
    output_dir
        The run folder.
    max_steps
        Of pre-training, and of each fine-tuning: fewer or more than the recipe's.
    """
    from electra.cli.quickstart import quickstart as run

    return DONE if run(output_dir, max_steps=max_steps) else STOPPED_EARLY
