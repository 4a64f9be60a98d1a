"""Fine-tune an encoder into an embedder of texts, by the losses of sentence-transformers."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra import __version__, atomic
from electra.config import UserError
from electra.console import PROGRESS_SECONDS
from electra.data.shuffle import random_key, shuffle_indices
from electra.data.tables import find_table
from electra.exports.embedder import embedder_card, write_embedder
from electra.exports.folder import require_packages
from electra.file_lock import folder_lock
from electra.finetuning.dev_data import refuse_same_data
from electra.finetuning.finetune import reporter
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.output_dir import RUN, check_output_dir, remove_results
from electra.finetuning.results import SeedResult, Summary, format_score
from electra.finetuning.setup import NO_TABLES, Tables, describe_tables, join_names
from electra.finetuning.similar_data import METRICS, Pairs, read_pairs
from electra.finetuning.similar_settings import SimilarConfig, load_similar_config
from electra.model.card import render_card
from electra.provenance import commit, environment
from electra.runs import run_dir
from electra.runs.signals import stop_signals
from electra.settings import as_dict, as_toml
from electra.tasks.models import Pretrained, load_pretrained, weights_hash
from electra.tasks.sentence_transformer import Pooling
from electra.tasks.task import Files

TASK = "similar"
PACKAGES = ("sentence_transformers", "accelerate", "datasets")
Interrupted = Callable[[], bool]


@dataclass(frozen=True)
class SimilarSetup:
    """Everything about such a fine-tuning except its seed."""

    source: Pretrained
    config: SimilarConfig
    options: FinetuneOptions
    train: Pairs
    dev: Pairs
    data: dict[str, Any]  # files and numbers of pairs
    say: Callable[[str], None]

    @property
    def metric(self) -> str:
        return METRICS[self.dev.form]

    @property
    def pooling(self) -> Pooling:
        config = self.config
        return Pooling(pool=config.pooling, normalize=config.normalize, length=config.length)

    def identity(self) -> dict[str, Any]:
        """Return what two fine-tunings must share to be the same. Paths are no part of it."""
        weights = "random"
        if self.source.loaded is not None:
            weights = weights_hash(self.source.folder)
        model = {"weights": weights, "tokenizer": self.source.tokenizer.fingerprint}
        identity = {"model": model, "task": {"kind": TASK}, "data": self.data}
        identity["config"] = as_dict(self.config)
        return dict(json.loads(json.dumps(identity)))


def finetune_similar(
    model: str | Path, output_dir: Path, options: FinetuneOptions, tables: Tables = NO_TABLES
) -> Summary | None:
    """Train an embedder once for each seed; return None when it was stopped early."""
    require_packages(PACKAGES, extra="sentence-transformers", purpose="--task similar")
    setup = prepare_similar(model, options, output_dir, tables)
    with folder_lock(output_dir), stop_signals() as interrupted:
        if options.overwrite:
            remove_results(output_dir)
        atomic.write_json(output_dir / RUN, setup.identity())
        atomic.write_json(output_dir / run_dir.ENVIRONMENT, environment())
        atomic.write(output_dir / run_dir.CONFIG, as_toml(setup.config))
        runs = train_seeds(setup, output_dir, interrupted)
        steps = sum(run.steps for run in runs)
        if len(runs) < options.seeds:
            run_dir.set_status(output_dir, "stopped", step=steps)
            setup.say("stopped early; the same command goes on with the seed that was stopped")
            return None
        summary = summarize(setup, runs)
        remove_others(summary, output_dir, options)
        summary.save(output_dir)
        run_dir.set_status(output_dir, "finished", step=steps)
    return summary


def train_seeds(
    setup: SimilarSetup, output_dir: Path, interrupted: Interrupted
) -> list[SeedResult]:
    """Train the seeds that are not finished; return the results, up to where it was stopped."""
    runs: list[SeedResult] = []
    for seed in range(setup.options.seed, setup.options.seed + setup.options.seeds):
        run_dir.set_status(output_dir, "running", step=sum(run.steps for run in runs))
        folder = output_dir / f"seed-{seed}"
        result = SeedResult.load(folder) or train_seed(setup, seed, folder, interrupted)
        if result is None:
            break
        runs.append(result)
        setup.say(str(result))
    return runs


# ---- set-up --------------------------------------------------------------------------------------


def prepare_similar(
    model: str | Path, options: FinetuneOptions, output_dir: Path, tables: Tables = NO_TABLES
) -> SimilarSetup:
    """Read and check everything that the training needs, and say what it will do."""
    config = load_similar_config(options.config, options.flags)
    check_alone(options)
    files = find_pair_files(options, config, tables)
    source = load_pretrained(model, random_weights=options.random_weights)
    positions = source.encoder.shape.positions
    if config.length > positions:
        raise UserError(
            f"--length {config.length}: the model has only {positions} positions; use that or less"
        )
    train, dev = read_splits(files, config)
    data = {
        "train": describe_tables(files.train, len(train)),
        "dev": {"dev": describe_tables(files.dev["dev"], len(dev))},
    }
    setup = SimilarSetup(
        source, config, options, train, dev, data, say=reporter(quiet=options.quiet)
    )
    check_output_dir(output_dir, setup.identity(), options)
    setup.say(
        f"{source.folder}: {len(train):,} {train.form} to train on, {len(dev):,} to score on; "
        f"{config.steps(len(train)):,} steps of {config.batch_size}, learning rate "
        f"{config.learning_rate:g}"
    )
    return setup


def read_splits(files: Files, config: SimilarConfig) -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and those to score on."""
    train = read_pairs(files.train, config)
    if config.dev_share:
        train, dev = split_pairs(train, config.dev_share)
    else:
        dev = read_pairs(files.dev["dev"], config, train.form)
    if len(train) < 2 or len(dev) < 2:
        raise UserError(f"{join_names(files.train)}: at least two pairs to train and to score on")
    return train, dev


def check_alone(options: FinetuneOptions) -> None:
    """Raise UserError for what this training does not take."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("--task similar trains in one process; start it without torchrun")
    if options.data or options.recipe != "paper" or options.search is not None:
        raise UserError(
            "--task similar takes --train, --dev and settings; no --data, --recipe or --search"
        )


def find_pair_files(options: FinetuneOptions, config: SimilarConfig, tables: Tables) -> Files:
    """Return the files to train and to score on."""
    train = tables.get("train") or [find_table(path) for path in options.train]
    dev = tables.get("dev") or [find_table(path) for path in options.dev]
    if not train:
        raise UserError("similar: no training data; name files with --train")
    if bool(dev) == bool(config.dev_share):
        raise UserError(
            "similar: name dev data to score on with --dev, or set a part of the training data "
            "aside with --dev-share 0.1; one of the two"
        )
    files = Files(train=tuple(train), dev={"dev": tuple(dev or train)}, test={})
    if dev and not options.dev_on_train:
        refuse_same_data(files)
    return files


def split_pairs(pairs: Pairs, share: float) -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and those to score on, the same for every seed."""
    count = len(pairs)
    order = shuffle_indices(np.arange(count), size=count, key=random_key("dev share"))
    held_out = set(order[: max(1, round(share * count))].tolist())
    train = [index for index in range(count) if index not in held_out]
    return pairs.select(train), pairs.select(sorted(held_out))


# ---- one seed ------------------------------------------------------------------------------------


def train_seed(
    setup: SimilarSetup, seed: int, folder: Path, interrupted: Interrupted
) -> SeedResult | None:
    """Train one embedder and score it; return None when it was stopped early."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="electra-similar-") as temporary:
        start = Path(temporary) / "start"
        source = setup.source
        write_embedder(
            source.encoder,
            source.tokenizer,
            start,
            pooling=setup.pooling,
            config_extra={},
            card="",
        )
        model = SentenceTransformer(str(start), local_files_only=True)
        if not train(model, setup, seed, Path(temporary), interrupted):
            return None
        scores = setup.dev.evaluate(lambda texts: model.encode(texts, show_progress_bar=False))
        result = seed_result(setup, seed, scores, seconds=time.monotonic() - began)
        model.save_pretrained(str(Path(temporary) / "trained"), create_model_card=False)
        save_model(setup, Path(temporary) / "trained", folder / "model", result)
    result.save(folder)
    return result


def train(
    model: Any, setup: SimilarSetup, seed: int, folder: Path, interrupted: Interrupted
) -> bool:
    """Train a model with the library's own trainer; return False when it was stopped early."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer import losses
    from transformers import PrinterCallback

    loss_class = losses.MultipleNegativesRankingLoss
    if setup.train.form == "scores":
        loss_class = losses.CoSENTLoss
    model.model_card_data.generate_widget_examples = False  # it would embed texts for a card
    trainer = SentenceTransformerTrainer(
        model,
        args=training_arguments(setup, seed, folder),
        train_dataset=Dataset.from_dict(setup.train.columns()),
        loss=loss_class(model),
        callbacks=[stopping_callback(setup, interrupted)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return not interrupted()


def training_arguments(setup: SimilarSetup, seed: int, folder: Path) -> Any:
    """Return our settings as those of the library's trainer."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    config, steps = setup.config, setup.config.steps(len(setup.train))
    sampler = "no_duplicates"  # a text twice in a step would be its own negative
    if setup.train.form == "scores":
        sampler = "batch_sampler"
    return SentenceTransformerTrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=min(config.batch_size, len(setup.train)),
        learning_rate=config.learning_rate,
        warmup_steps=round(config.warmup_ratio * steps),
        weight_decay=config.weight_decay,
        seed=seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=torch.cuda.is_available(),
        batch_sampler=sampler,
    )


def stopping_callback(setup: SimilarSetup, interrupted: Interrupted) -> Any:
    """Return what the trainer calls after each step: it stops, and says at times how far it is."""
    from transformers import TrainerCallback

    class StopAndReport(TrainerCallback):  # type: ignore[misc]
        said = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if interrupted():
                control.should_training_stop = True
            if time.monotonic() - self.said >= PROGRESS_SECONDS:
                self.said = time.monotonic()
                setup.say(f"step {state.global_step:,} of {state.max_steps:,}")

    return StopAndReport()


def seed_result(
    setup: SimilarSetup, seed: int, scores: dict[str, float], *, seconds: float
) -> SeedResult:
    score, baseline = scores[setup.metric], setup.dev.baseline()
    return SeedResult(
        seed=seed,
        score=score,
        scores={"dev": scores},
        baseline=baseline,
        degenerate=not score > baseline,
        diverged=not np.isfinite(score),
        steps=setup.config.steps(len(setup.train)),
        micro_batch_size=setup.config.batch_size,
        seconds=seconds,
    )


def save_model(setup: SimilarSetup, trained: Path, folder: Path, result: SeedResult) -> None:
    """Write what the library trained as a folder of ours, compared with `electra embed`."""
    source = load_pretrained(trained)
    facts: dict[str, object] = {
        "Task": TASK,
        f"{setup.metric} on dev": format_score(result.score, setup.metric),
        "Vectors that know nothing": format_score(result.baseline, setup.metric),
        "Seed": result.seed,
        "Steps": f"{result.steps:,}",
        "Fine-tuned from": setup.source.folder.name,
        "Training data": f"{len(setup.train):,} {setup.train.form}",
        "electra": __version__,
    }
    use = "An embedder of texts: vectors of similar texts are close by their cosine."
    content = replace(setup.options.card, facts=facts)
    card = render_card(TASK, use, content, pipeline="sentence-similarity", tags=["electra"])
    write_embedder(
        source.encoder,
        setup.source.tokenizer,
        folder,
        pooling=setup.pooling,
        config_extra={"electra_version": __version__, "electra_result": asdict(result)},
        card=embedder_card(card, setup.pooling),
    )


# ---- all seeds -----------------------------------------------------------------------------------


def summarize(setup: SimilarSetup, runs: Sequence[SeedResult]) -> Summary:
    """Summarize the runs of all seeds as those of other tasks are."""
    scores = [run.score for run in runs]
    best = max(runs, key=lambda run: run.score)
    sd = None
    if len(scores) > 1:
        sd = statistics.stdev(scores)
    made = {
        "date": time.strftime("%Y-%m-%d"),
        "electra": __version__,
        "commit": commit(),
        "settings": as_dict(setup.config),
        "model": setup.source.folder.name,
        "data": setup.data,
    }
    return Summary(
        task=TASK,
        metric=setup.metric,
        split="dev",
        baseline=runs[0].baseline,
        median=statistics.median(scores),
        mean=statistics.fmean(scores),
        sd=sd,
        best=best.score,
        runs=list(runs),
        made=made,
        best_model=f"seed-{best.seed}/model",
    )


def remove_others(summary: Summary, output_dir: Path, options: FinetuneOptions) -> None:
    """Remove all models but the best one, where that was asked for."""
    if options.keep != "best":
        return
    for run in summary.runs:
        model = f"seed-{run.seed}/model"
        if model != summary.best_model:
            atomic.remove_folder(output_dir / model, ignore_errors=True)
