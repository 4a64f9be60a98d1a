"""Score a seed's network on the dev data, and write its predictions, its model and its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from electra import atomic
from electra.config import RunFailed, UserError, suggest_or_list
from electra.data.stock_tokenizer import warn_of_other_rows
from electra.engine.distributed import World
from electra.engine.hardware import autocast
from electra.finetuning.results import Scores, SeedResult
from electra.finetuning.state import FinetuneState, save_checkpoint
from electra.finetuning.summary import model_card_facts
from electra.model.verify import verify
from electra.runs import checkpoint, run_dir
from electra.runs.journal import Journal
from electra.tasks.class_scores import ClassScores
from electra.tasks.features import Array
from electra.tasks.inference import compute_outputs, inference_batches
from electra.tasks.metrics import direction
from electra.tasks.mistakes import analyse
from electra.tasks.models import save_tuned
from electra.tasks.task import Answer, AnyTask, Outputs

Answers = dict[str, list[Answer]]  # by dev split
ANALYSIS = "analysis.json"  # of one seed, on the first dev split


def evaluate(state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Score the network as it is on every dev split. Return False when stopped early.

    The evaluation is then still due, and a run that is resumed begins with it.
    """
    state.evaluation_due = True
    answers = predict_dev(state, journal, interrupted)
    if answers is None:
        return False
    task, score = state.setup.task, None
    if state.world.is_main:
        by_split = score_splits(state, task, answers)
        for split, scores in by_split.items():
            journal.record(state.step, scores, prefix=f"{split}_")
        score = next(iter(by_split.values()))[task.metric]
    state.evaluation_due = False
    if state.early_stopping:
        add_evaluation(state, journal, float(state.world.broadcast(score)))
    return True


def add_evaluation(state: FinetuneState, journal: Journal, score: float) -> None:
    """Pass an evaluation to early stopping, and say when it ends the training."""
    stopping = state.early_stopping
    assert stopping is not None
    stopping.add(score, state.step, state.network)
    if stopping.is_over and state.step < state.last_step:
        metric = state.setup.task.metric
        journal.info(
            f"seed {state.seed}: stopped after step {state.step:,} of {state.max_steps:,}: the "
            f"{metric} of step {stopping.best_step:,}, {stopping.best_score:.4f}, is the best; its "
            "weights are kept"
        )


def predict_dev(
    state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]
) -> Answers | None:
    """Predict every dev split. Return None when stopped early."""
    answers = {}
    for name in state.setup.dev:
        predicted = predict_split(state, name, journal, interrupted)
        if predicted is None:
            journal.info(
                f"seed {state.seed}: asked to stop while scoring {name}; the scoring begins again "
                "when the run continues"
            )
            return None
        answers[name] = predicted
    return answers


def predict_split(
    state: FinetuneState, name: str, journal: Journal, interrupted: Callable[[], bool]
) -> list[Answer] | None:
    """Predict one dev split: every rank computes a part, and the main rank gets the answers.

    Return None in every rank when one of them was asked to stop.
    """
    split, world = state.setup.dev[name], state.world
    batches = inference_batches(split.features, world.device)[world.rank :: world.size]
    mine = compute_outputs(
        state.network,
        split.features,
        device=world.device,
        autocast=autocast(state.precision, world.device),
        batches=until(interrupted, journal.track(batches, f"scoring {name}")),
    )
    if world.any_rank(interrupted()):
        return None
    by_unit = gather_outputs(world, mine)
    if not world.is_main:
        return []
    in_order = [by_unit[unit] for unit in range(len(split.features))]
    return state.setup.task.decode(split.examples, split.features, in_order)


def until(interrupted: Callable[[], bool], batches: Iterable[Array]) -> Iterator[Array]:
    """Yield batches until the run is asked to stop."""
    for batch in batches:
        if interrupted():
            return
        yield batch


def gather_outputs(world: World, mine: dict[int, Outputs]) -> dict[int, Outputs]:
    """Return the outputs that all processes computed, by unit; arrays travel as safetensors."""
    if world.size == 1:
        return mine
    named: dict[str, Array] = {}
    for unit, outputs in mine.items():
        named |= {f"{unit}/{name}": np.asarray(array) for name, array in outputs.items()}
    by_unit: dict[int, dict[str, Array]] = {}
    for part in world.all_gather_bytes(safetensors.numpy.save(named)):
        for key, array in safetensors.numpy.load(part).items():
            number, name = key.split("/", 1)
            by_unit.setdefault(int(number), {})[name] = array
    return dict(by_unit)


def score_splits(state: FinetuneState, task: AnyTask, answers: Answers) -> Scores:
    dev = state.setup.dev
    by_split = {name: task.score(dev[name].examples, answers[name]) for name in answers}
    for scores in by_split.values():
        if task.metric not in scores:
            hint = suggest_or_list(task.metric, scores)
            raise UserError(f"--metric {task.metric}: {task.name} is not scored by it{hint}")
    return by_split


def score_classes(
    state: FinetuneState, task: AnyTask, answers: Answers
) -> dict[str, list[ClassScores]]:
    """Compute the scores of each class on every dev split, if the task has classes."""
    dev = state.setup.dev
    classes = {name: task.class_scores(dev[name].examples, answers[name]) for name in answers}
    return {name: scores for name, scores in classes.items() if scores}


def is_degenerate(score: float, baseline: float, metric: str) -> bool:
    """Return whether a score is no better than a baseline that can be beaten."""
    if direction(metric) > 0:
        return bool(baseline < 1 and score <= baseline + 1e-9)
    return bool(baseline > 0 and score >= baseline - 1e-9)


def score_and_save(
    state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]
) -> SeedResult | None:
    """Score the trained network, and write predictions, model and result.

    Return None when stopped early, with a checkpoint.
    """
    if state.early_stopping:
        state.early_stopping.load_best(state.network, state.optimizer)
    answers = predict_dev(state, journal, interrupted)
    if answers is None:
        # A run that diverged continues from an earlier checkpoint, and diverges again.
        if not state.diverged:
            save_checkpoint(state)
        return None
    values = None
    if state.world.is_main:
        values = asdict(write_result(state, answers, journal))
    return SeedResult(**state.world.broadcast(values))


def write_result(state: FinetuneState, answers: Answers, journal: Journal) -> SeedResult:
    """Write predictions, model and result. The result is last: with it the seed is finished."""
    if state.setup.cross_validated:
        result = adopt_result(state, state.setup.cross_validated)
        return finish_seed(state, state.setup.task, result)
    first, split = next(iter(state.setup.dev.items()))
    task = state.setup.task.fit_threshold(split.examples, answers[first])
    scores = score_splits(state, task, answers)
    if state.selected_step is None:  # or its evaluation is recorded
        for name, values in scores.items():
            journal.record(state.step, values, prefix=f"{name}_")
    atomic.sync(state.output_dir / run_dir.METRICS)
    for name in answers:
        write_predictions(state, task, name, answers[name])
    if state.setup.report:
        write_analysis(state, task, answers[first], journal)
    score, baseline = scores[first][task.metric], float(task.baseline(split.examples))
    result = SeedResult(
        seed=state.seed,
        score=score,
        scores=scores,
        baseline=baseline,
        degenerate=is_degenerate(score, baseline, task.metric),
        diverged=state.diverged,
        steps=state.step,
        micro_batch_size=state.micro_batch_size,
        seconds=round(state.seconds, 2),
        classes=score_classes(state, task, answers),
        selected_step=state.selected_step,
    )
    return finish_seed(state, task, result)


def adopt_result(state: FinetuneState, cross_validated: SeedResult) -> SeedResult:
    """Return the scores of the folds as the result of the model that is trained on all data."""
    atomic.sync(state.output_dir / run_dir.METRICS)
    metric = state.setup.task.metric
    return replace(
        cross_validated,
        degenerate=is_degenerate(cross_validated.score, cross_validated.baseline, metric),
        diverged=state.diverged,
        steps=state.step,
        micro_batch_size=state.micro_batch_size,
        seconds=round(state.seconds, 2),
    )


def finish_seed(state: FinetuneState, task: AnyTask, result: SeedResult) -> SeedResult:
    """Write the model of a seed and then its result."""
    save_model(state, task, result)
    result.save(state.output_dir)
    remove_checkpoints(state.output_dir)
    return result


def remove_checkpoints(seed_dir: Path) -> None:
    """Remove the checkpoints of a seed that is finished, and unfinished ones."""
    checkpoint.remove_partial(seed_dir)
    for _, folder in checkpoint.list_checkpoints(seed_dir):
        checkpoint.remove(folder)


def write_predictions(
    state: FinetuneState, task: AnyTask, name: str, answers: Sequence[Answer]
) -> None:
    """Write one JSON line for each example of a dev split."""
    lines = []
    for example, answer in zip(state.setup.dev[name].examples, answers, strict=True):
        lines.append(json.dumps(task.record(example, answer), ensure_ascii=False) + "\n")
    atomic.write(state.output_dir / f"predictions-{name}.jsonl", "".join(lines))


def write_analysis(
    state: FinetuneState, task: AnyTask, answers: Sequence[Answer], journal: Journal
) -> None:
    """Write what the answers to the first dev split show. A training is not lost for it."""
    split = next(iter(state.setup.dev.values()))
    try:
        analysis = analyse(task, split.examples, answers)
    except Exception as error:  # of a task of the user's own, whose answers may have any form
        journal.warn(f"no examples for the report: {type(error).__name__}: {error}")
        return
    atomic.write_json(state.output_dir / ANALYSIS, asdict(analysis))


def save_model(state: FinetuneState, task: AnyTask, result: SeedResult) -> None:
    """Write the model folder, and verify it against transformers where that has a class for it."""
    folder = state.output_dir / "model"
    short = replace(result, classes={}, folds=[])  # the other results are in result.json
    try:
        stored = save_tuned(
            state.network,
            task,
            state.setup.tokenizer,
            folder,
            length=state.setup.config.length,
            extra={"electra_result": asdict(short)},
            card=replace(state.setup.card, facts=model_card_facts(state.setup, result)),
        )
    except (OSError, SafetensorError) as error:
        raise RunFailed(f"{folder}: cannot be written: {error}") from error
    # Outputs that are not finite cannot be compared.
    if stored.architecture is not None and not state.diverged:
        verify(stored, folder)
        warn_of_other_rows(state.setup.tokenizer, folder, stored.family.model_input_names)
