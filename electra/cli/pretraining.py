"""Commands from text to a pre-trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from electra.cli import (
    DONE,
    STOPPED_EARLY,
    Integer,
    PathList,
    Settings,
    app,
    beside,
    check_flags,
    check_output_dir,
    is_main_rank,
    print_next_commands,
    print_next_pretraining,
    require_corpus,
)
from electra.config import UserError
from electra.console import Terminal, print_data, progress_bars, to_stderr, to_stdout
from electra.data.options import ShardOptions, VocabularyOptions
from electra.pretraining.asked_data import check_data_flags
from electra.pretraining.options import PretrainOptions, RecipeOverrides
from electra.setting_docs import as_commented_toml
from electra.settings import find_recipe
from electra.shipped import resolve_shipped, shipped_models

if TYPE_CHECKING:
    from electra.pretraining.recipe import Recipe

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
        Files (.txt .jsonl .json .csv .tsv .parquet, also .gz .xz .bz2 .zst), folders, globs, or
        owner/name:config on the hub.
    output_dir
        The tokenizer folder to write; transformers loads it too.
    """
    from electra.data.vocabulary import train_wordpiece

    with progress_bars() as (stage, report):
        tokenizer = train_wordpiece(
            require_corpus(corpus),
            check_output_dir(output_dir),
            options=options,
            progress=stage("vocabulary"),
            report=report,
        )
    to_stdout(f"{output_dir}: {tokenizer.size:,} entries")
    shards = beside(output_dir, "shards")
    print_next_commands(
        ("shard", *corpus, "--tokenizer", output_dir, "--output-dir", shards, "--length", "128")
    )
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
        Where the shards go. If it is interrupted, the same command continues.
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
    from electra.data.parts import slurm_part
    from electra.data.sharding import shard
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
    to_stdout(
        f"{output_dir}: {manifest.rows:,} rows of {manifest.length}, {manifest.tokens:,} tokens, "
        f"{manifest.fill:.1%} filled; {manifest.held_out_rows:,} rows held out"
    )
    if options.part is None:
        print_next_pretraining(output_dir, manifest.length)
    return DONE


def merge_shards(folder: Path) -> int:
    """Merge the parts of shards and print what they hold."""
    from electra.data.merging import merge

    with progress_bars() as (stage, report):
        made = merge(folder, progress=stage("checking"), report=report)
    to_stdout(
        f"{folder}: {made.rows:,} rows of {made.length}, every file as it was written; one manifest"
    )
    print_next_pretraining(folder, made.length)
    return DONE


def verify_shards(folder: Path) -> int:
    """Verify shards against their checksums and print what they hold."""
    from electra.data.shards import Shards

    shards = Shards.open(folder)
    shards.verify()
    to_stdout(f"{folder}: {shards.manifest.rows:,} rows, every file as it was written")
    return DONE


NO_OPTIONS, NO_OVERRIDES = PretrainOptions(), RecipeOverrides()


@app.command
def pretrain(
    recipe: str,
    *settings: Settings,
    output_dir: Path | None = None,
    options: Annotated[PretrainOptions, Parameter(name="*", consume_multiple=True)] = NO_OPTIONS,
    overrides: Annotated[RecipeOverrides, Parameter(name="*")] = NO_OVERRIDES,
    dry_run: bool = False,
    print_config: bool = False,
) -> int:
    """Pre-train a generator and a discriminator (or a masked LM) with the settings of a recipe.

    Any setting of the recipe may follow as --section.key VALUE, or --key VALUE where that is clear:
    --batch-size 64 --learning-rate 2e-4 --encoder.layers 6 --objective.masking.rate 0.25.
    `--print-config` lists them all.

    Parameters
    ----------
    recipe
        modern-tiny, modern-small, modern-small-deep (ModernBERT, for minutes); modern-base,
        modern-large (scores not measured yet); small, base, large, as published, small-official,
        and tiny; bert-small, bert-small-official, bert-base, bert-large, bert-nsp-base,
        left-to-right-base, electra-15-base, replace-mlm-base, all-tokens-mlm-base,
        adversarial-base, two-stage-generator-base, two-stage-base, unigram-base,
        random-replacement-base; or a TOML file.
    output_dir
        The run folder: models, checkpoints, metrics.jsonl, status.json. Not needed with --dry-run
        or --print-config.
    dry_run
        Print the settings, the sizes and the costs, look at the data, the disk and the memory,
        measure the time of a step, and write nothing.
    print_config
        Print all settings as TOML, with their choices and what they mean, and do nothing else.
    """
    flags = [*settings, *overrides.flags()]
    loaded = load_with_flags(recipe, flags, overrides.config, "pretrain", budget=overrides.budget)
    if dry_run or not print_config:
        check_data_flags(loaded, flags, overrides, options, output_dir)
    if dry_run or print_config:
        return print_recipe(recipe, loaded, output_dir, options if dry_run else None)
    return start_pretraining(loaded, output_dir, options)


def print_recipe(
    name: str, recipe: Recipe, output_dir: Path | None, dry_run: PretrainOptions | None
) -> int:
    """Print the settings of a recipe, and what a run with the options of a dry run would find."""
    if dry_run is None:
        print_data(as_commented_toml(recipe).rstrip())
        return DONE
    from electra.cli.describe import print_dry_run

    print_dry_run(name, recipe, output_dir, dry_run)
    return DONE


def start_pretraining(recipe: Recipe, output_dir: Path | None, options: PretrainOptions) -> int:
    """Pre-train, and print the verdict and what to type next."""
    if output_dir is None:
        raise UserError("--output-dir is missing: the folder to keep this run in")
    from electra.pretraining.pretrain import pretrain as run

    outcome = run(recipe, output_dir=output_dir, **vars(options))
    if is_main_rank():
        if options.quiet and outcome.verdict.fine_tuning == "unlikely":
            to_stderr(f"warning: {output_dir}: {outcome.verdict.text}")
        if outcome.status == "finished" and not options.quiet:
            print_uses(output_dir)
    if outcome.status == "finished":
        return DONE
    return STOPPED_EARLY


def print_uses(run: Path) -> None:
    """Print the commands that use the models of a finished run."""
    model = run / "encoder"
    commands: list[tuple[str | Path, ...]] = []
    if (run / "discriminator").is_dir():
        model = run / "discriminator"
        if (run / "generator").is_dir():
            commands.append(("show", run, "A sentence of your own."))
    data = ("--train", "train.csv", "--dev", "dev.csv", "--output-dir", f"{run}-classify")
    commands.append(("finetune", run, "--task", "classify", *data))
    commands.append(("embed", model, "texts.txt", "--output", f"{run}-embeddings.parquet"))
    print_next_commands(*commands)


def load_with_flags(
    recipe: str,
    flags: Sequence[str],
    config: Sequence[Path] | None,
    command: str,
    *,
    budget: str | None = None,
) -> Recipe:
    """Load a recipe, at a budget if one is given.

    An unknown flag is refused with the option or setting it may have meant.
    """
    from electra.pretraining.budget import apply_budget
    from electra.pretraining.recipe import Recipe, load_recipe

    check_flags(flags, command, Recipe)
    loaded = load_recipe(recipe, files=config or [], flags=flags)
    return apply_budget(loaded, budget, flags)


@app.command
def describe(
    recipe: str,
    *settings: Settings,
    config: PathList = None,
    world_size: Integer = 1,
    json: bool = False,
) -> int:
    """Print the networks, parameters, FLOPs, tokens and memory of a recipe or a model; of a
    fine-tuned model its task and scores.

    Parameters
    ----------
    recipe
        A recipe's name or TOML file, the folder of a run, a fine-tuning or a model, or the name of
        a model that comes with the package.
    config
        TOML files that change settings of the recipe.
    world_size
        Number of processes that train together: print the memory of each, also with --parallel
        zero1 or fsdp.
    json
        Print JSON.
    """
    from electra.cli.describe import as_json, describe_folder, describe_recipe, print_description

    folder = resolve_shipped(recipe)
    if folder.is_dir():
        check_no_settings(recipe, settings, config)
        if print_if_finetuned(folder, json=json):
            return DONE
        description = describe_folder(folder, world_size=world_size)
    else:
        find_recipe(recipe, kind="recipe or model", other_names=shipped_models())
        loaded = load_with_flags(recipe, settings, config, "describe")
        description = describe_recipe(loaded, name=recipe, world_size=world_size)
    if json:
        print_data(as_json(description))
    else:
        print_description(description, Terminal())
    return DONE


def print_if_finetuned(folder: Path, *, json: bool) -> bool:
    """Print the description of a fine-tuned model; return False where the folder holds none."""
    from electra.cli import describe_finetuned as finetuned

    model = finetuned.find_finetuned(folder)
    if model is None:
        return False
    description = finetuned.describe_finetuned(folder, model)
    if json:
        print_data(finetuned.as_json(description))
    else:
        finetuned.print_finetuned(description, Terminal())
    return True


def check_no_settings(folder: str, settings: Sequence[str], config: PathList) -> None:
    """Raise UserError for settings beside a folder, which has its own."""
    from electra.pretraining.recipe import Recipe

    check_flags(settings, "describe", Recipe)
    if settings or config:
        raise UserError(
            f"{folder} is a folder and carries its own settings; "
            f"{' '.join(settings) or '--config'} goes with a recipe"
        )


@app.command
def show(
    model: Path, text: str | None = None, *, seed: Integer = 0, output: Path | None = None
) -> int:
    """Show replaced token detection on one sentence: the masked tokens, the generator's samples,
    and the discriminator's probability that each token was replaced.

    Parameters
    ----------
    model
        A run folder with discriminator/ and generator/, a discriminator's folder, or the name of a
        model that comes with the package. A discriminator alone reads the sentence as it is.
    text
        The sentence; there is a default one.
    seed
        Another seed masks other tokens and samples other replacements.
    output
        Also draw it to a file that ends in .svg or .html.
    """
    from electra.cli.show import check_picture, draw_picture, print_trace, trace_sentence

    if output is not None:
        check_picture(output)
    tokens = trace_sentence(model, text, seed=seed)
    print_trace(tokens, Terminal())
    if output is not None:
        draw_picture(tokens, output)
    return DONE


@app.command
def quickstart(
    *, output_dir: Path = Path("runs/quickstart"), max_steps: Integer | None = None
) -> int:
    """Pre-train a tiny encoder on the docstrings of installed libraries, and fine-tune it, random
    weights and the model that comes with electra on the same task, in minutes.

    Parameters
    ----------
    output_dir
        The run folder.
    max_steps
        Steps of the pre-training and of each fine-tuning, instead of the recipe's.
    """
    from electra.cli.quickstart import quickstart as run

    if run(output_dir, max_steps=max_steps):
        return DONE
    return STOPPED_EARLY
