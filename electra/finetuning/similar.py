"""Fine-tune an encoder into an embedder of texts, by the losses of sentence-transformers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from electra import __version__, atomic
from electra.console import PROGRESS_SECONDS
from electra.exports.embedder import embedder_card, write_embedder
from electra.exports.folder import require_packages
from electra.file_lock import folder_lock
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.output_dir import remove_other_models, remove_results
from electra.finetuning.results import SeedResult, Summary, format_score
from electra.finetuning.setup import NO_TABLES, Tables
from electra.finetuning.similar_setup import SimilarSetup, prepare_similar
from electra.model.card import render_card
from electra.model.card_content import describe_origin
from electra.provenance import commit, environment
from electra.runs import run_dir
from electra.runs.signals import stop_signals
from electra.settings import as_dict, as_toml
from electra.tasks import SIMILAR
from electra.tasks.models import RUN, load_pretrained

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import TrainerControl, TrainerState, TrainingArguments

PACKAGES = ("sentence_transformers", "accelerate", "datasets")
Interrupted = Callable[[], bool]


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
            setup.say("stopped early; the same command continues with the seed that was stopped")
            return None
        summary = summarize(setup, runs)
        if options.keep == "best":
            remove_other_models(summary, output_dir)
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
    model: SentenceTransformer,
    setup: SimilarSetup,
    seed: int,
    folder: Path,
    interrupted: Interrupted,
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
    model.model_card_data.widget = [{}]  # without one it chooses texts, below a bar of progress
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
    arguments = SentenceTransformerTrainingArguments(
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
    # Otherwise the trainer reads a batch for each GPU that it sees, and a step has that many times
    # `batch_size` pairs. It sets this attribute itself where a model has to stay whole.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def stopping_callback(setup: SimilarSetup, interrupted: Interrupted) -> Any:
    """Return what the trainer calls after each step: it stops, and reports progress."""
    from transformers import TrainerCallback

    class StopAndReport(TrainerCallback):  # type: ignore[misc]
        said = time.monotonic()

        def on_step_end(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            **_: object,
        ) -> None:
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
        "Task": SIMILAR,
        f"{setup.metric} on dev": format_score(result.score, setup.metric),
        "Vectors that know nothing": format_score(result.baseline, setup.metric),
        "Seed": result.seed,
        "Steps": f"{result.steps:,}",
        "Fine-tuned from": describe_origin(setup.source.folder),
        "Training data": f"{len(setup.train):,} {setup.train.form}",
        "electra": __version__,
    }
    use = "An embedder of texts: vectors of similar texts are close by their cosine."
    content = replace(setup.options.card, facts=facts)
    card = render_card(SIMILAR, use, content, pipeline="sentence-similarity", tags=["electra"])
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
    made = {
        "date": time.strftime("%Y-%m-%d"),
        "electra": __version__,
        "commit": commit(),
        "settings": as_dict(setup.config),
        "model": setup.source.folder.name,
        "data": setup.data,
    }
    return Summary.of_runs(runs, task=SIMILAR, metric=setup.metric, made=made)
