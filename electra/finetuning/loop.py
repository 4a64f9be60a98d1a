"""The other loop: a pre-trained encoder and a fresh head become a model of one task, once for each
seed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra import atomic
from electra.config import RunFailed, UserError
from electra.console import told
from electra.data.batches import random_key
from electra.engine.distributed import World
from electra.engine.hardware import Speed, autocast, free_bytes, resolve_precision, resolve_speed
from electra.engine.optimizer import build_optimizer, layer_share
from electra.engine.settings import OptimizerConfig, Precision
from electra.engine.train_step import NotFinite, Steps, build_steps
from electra.engine.training_state import capture, restore
from electra.finetuning.results import RESULT, facts
from electra.finetuning.setup import Assignment
from electra.model import huggingface
from electra.model.memory import kept_by_encoder
from electra.runs import checkpoint, run_dir
from electra.runs.journal import Journal, Window
from electra.tasks.answering import outputs, unit_batches
from electra.tasks.features import Array, epoch_order
from electra.tasks.models import Pretrained, build_network, load_pretrained, save_tuned
from electra.tasks.task import Network

Scores = dict[str, dict[str, float]]  # part of the dev data → metric → value


@dataclass
class Tuner:
    """Everything that one process needs to take a step."""

    assignment: Assignment
    seed: int
    output_dir: Path
    world: World
    network: Network
    optimizer: torch.optim.AdamW
    settings: OptimizerConfig
    scaler: torch.amp.GradScaler
    precision: Precision
    max_steps: int
    micro_batch_size: int
    weights: Array  # how much of each unit is scored
    step: int = 0
    seconds: float = 0.0
    diverged: bool = False
    order: tuple[int, list[Array]] = field(default=(-1, []))
    steps: Steps = field(init=False)  # built when weights and slots are what they were

    @property
    def multiple(self) -> int:
        """Rows are padded to multiples of this: compiled code is made, and a graph captured, once
        for each width.
        """
        compiled = self.assignment.tuning.compile == "on"
        return 32 if compiled else 16 if self.world.device.type == "cuda" else 1

    def units(self, step: int) -> Array:
        """The examples of a step, counted from 1."""
        tuning, lengths = self.assignment.tuning, self.assignment.train.lengths
        epoch, place = divmod(step - 1, -(-len(lengths) // tuning.batch_size))
        if self.order[0] != epoch:
            batches = epoch_order(
                lengths, batch_size=tuning.batch_size, seed=self.seed, epoch=epoch
            )
            self.order = (epoch, batches)
        return self.order[1][place]


def finetune_seed(
    assignment: Assignment,
    seed: int,
    output_dir: Path,
    world: World,
    *,
    interrupted: Callable[[], bool],
    quiet: bool = False,
) -> dict[str, Any] | None:
    """Train, score and save one seed, from where its folder was left; None when it was stopped
    early.
    """
    tuner = assembled(assignment, seed, output_dir, world)
    damaged: list[str] = []
    with told(damaged.append):
        found = checkpoint.newest(output_dir)
    if found is not None:
        tuner.step = found.step
        # What drops out is keyed by micro-batch, so cut them as before, whatever memory is free
        # today.
        tuner.micro_batch_size = (
            assignment.tuning.micro_batch_size or found.state["micro_batch_size"]
        )
        tuner.seconds, tuner.diverged = found.state["seconds"], found.state["diverged"]
        restore(
            found.tensors(),
            module=tuner.network,
            optimizer=tuner.optimizer,
            updates=found.step - found.state["skipped"],
        )
        tuner.scaler.load_state_dict(found.state["scaler"])
    begin(tuner, skipped=found.state["skipped"] if found else 0)
    world.wait()
    if world.leads:
        output_dir.mkdir(parents=True, exist_ok=True)
        checkpoint.forget_after(output_dir, tuner.step)
    with Journal(
        output_dir / run_dir.METRICS if world.leads else None,
        max_steps=tuner.max_steps,
        after=tuner.step,
        quiet=quiet,
    ) as journal:
        for text in damaged:
            journal.say(text)
        if found is not None:
            journal.say(f"seed {seed}: continuing from {found.folder} at step {found.step:,}")
        try:
            if not endured(tuner, journal, interrupted):
                return None
            return finish(tuner, journal)
        except OSError as error:
            raise RunFailed(
                f"seed {seed}, after step {tuner.step}: {error}; the same command goes on from "
                "the last "
                "checkpoint once that is put right"
            ) from error


def assembled(assignment: Assignment, seed: int, output_dir: Path, world: World) -> Tuner:
    """The network from the seed, on the device, ready to be called."""
    tuning = assignment.tuning
    torch.manual_seed(random_key(seed, "head"))
    source: Pretrained = load_pretrained(
        assignment.model, dropout=tuning.dropout, random_weights=assignment.loaded is None
    )
    network = build_network(source.encoder, assignment.task, dropout=tuning.dropout).to(
        world.device
    )
    steps = tuning.steps(len(assignment.train))
    settings = tuning.optimizer(steps=steps)
    layers, official = assignment.shape.layers, tuning.layer_counting == "official"
    precision = resolve_precision(tuning.precision, world.device)
    return Tuner(
        assignment,
        seed,
        output_dir,
        world,
        network,
        optimizer=build_optimizer(
            network,
            settings,
            share=lambda name: layer_share(
                name, layers=layers, decay=tuning.layer_decay, official=official
            ),
        ),
        settings=settings,
        scaler=torch.amp.GradScaler(world.device.type, enabled=precision == "fp16"),
        precision=precision,
        max_steps=steps,
        micro_batch_size=tuning.micro_batch_size or fitting(assignment, world),
        weights=assignment.task.weight(assignment.train),
    )


def begin(tuner: Tuner, *, skipped: int = 0) -> None:
    """Weights and slots are in place; from here on they move."""
    tuner.steps = build_steps(
        tuner.network,
        lambda loss: {"loss": loss},
        tuner.optimizer,
        tuner.settings,
        world=tuner.world,
        max_steps=tuner.max_steps,
        scaler=tuner.scaler,
        skipped=skipped,
        precision=tuner.precision,
        speed=speed_of(tuner.assignment, tuner.world),
    )


def speed_of(assignment: Assignment, world: World) -> Speed:
    """How steps are taken; refuses what this machine or task cannot do."""
    tuning, frozen = assignment.tuning, bool(assignment.task.frozen)
    speed = resolve_speed(
        tuning,
        resolve_precision(tuning.precision, world.device),
        world.device,
        flag="--",
        head_width=assignment.shape.head_width,
        causal=assignment.shape.causal,
        compile_on_gpu=False,
    )
    if frozen and tuning.cuda_graph == "on":
        raise UserError(
            "--cuda-graph on: the head of a frozen encoder reads lengths back, which no graph "
            "can; leave "
            "it at auto"
        )
    return speed._replace(cuda_graph=speed.cuda_graph and not frozen)


def fitting(assignment: Assignment, world: World) -> int:
    """Examples in one pass: an even share of the batch, halved until it should fit in memory."""
    shape, rows = assignment.shape, assignment.train
    low_precision = resolve_precision(assignment.tuning.precision, world.device) != "fp32"
    per_example = (
        rows.together * int(rows.lengths.max()) * kept_by_encoder(shape, 2 if low_precision else 4)
    )
    size = -(-assignment.tuning.batch_size // world.size)
    while size > 1 and size * per_example > 0.7 * free_bytes(world.device):
        size = -(-size // 2)
    return world.least(size)


def endured(tuner: Tuner, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Trained to the end, or until its gradient broke: such a run is kept and marked, and scored as
    it stands.
    """
    try:
        return train(tuner, journal, interrupted)
    except NotFinite as found:
        journal.warn(f"seed {tuner.seed}: {found}; training ends here")
        tuner.step, tuner.diverged = found.step - 1, True
        return True


def train(tuner: Tuner, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Read, descend, update, say, save. False when it was stopped early, with a checkpoint."""
    tuning, window = tuner.assignment.tuning, Window()
    rows, before = tuner.assignment.train, tuner.seconds
    began = time.monotonic()
    tuner.network.train()
    for step in range(tuner.step + 1, tuner.max_steps + 1) if not tuner.diverged else ():
        units = tuner.units(step)
        loss = descend(tuner, units, step=step)
        rate = tuner.steps.update(step)
        tuner.step, tuner.seconds = step, before + time.monotonic() - began
        window.add({"loss": loss}, int(rows.sizes[units].sum()))
        stopping = tuner.world.any(interrupted())
        if step % tuning.logging_steps == 0 or stopping or step == tuner.max_steps:
            norm, numbers = tuner.steps.settle(), window.close(tuner.world.sum)
            del numbers[
                "data_wait"
            ]  # rows lie in memory: nothing is waited for, and nothing measured
            journal.record(
                step,
                {
                    **numbers,
                    "learning_rate": rate,
                    "grad_norm": norm,
                    "epoch": step * tuning.batch_size / len(rows),
                },
            )
        if tuning.eval_steps and step % tuning.eval_steps == 0 and step < tuner.max_steps:
            for part, scores in scored(tuner).items():
                journal.record(step, scores, prefix=f"{part}_")
        if (step % tuning.save_steps == 0 and step < tuner.max_steps) or stopping:
            save(tuner)
        journal.advance(step)
        if stopping and step < tuner.max_steps:
            return False
    return True


def descend(tuner: Tuner, units: Array, *, step: int) -> Tensor:
    """The gradients of this process's part of a step; returns the loss of that part."""
    assignment, world = tuner.assignment, tuner.world
    size = tuner.micro_batch_size
    pieces = [units[at : at + size] for at in range(0, len(units), size)]
    mine = range(len(pieces))[world.rank :: world.size]
    count = float(tuner.weights[units].sum()) if assignment.tuning.loss == "mean" else 1.0
    # A process without a part passes with weight zero, since the others wait for it.
    passes = [
        (
            random_key(tuner.seed, step, number),
            assignment.train.take(
                pieces[number], multiple=tuner.multiple, most=assignment.shape.positions
            ),
        )
        for number in mine or [0]
    ]
    return tuner.steps.descend(passes, weight=bool(mine) / count)["loss"]


def save(tuner: Tuner) -> None:
    tuner.steps.settle()
    if tuner.world.leads:
        checkpoint.write(
            tuner.output_dir,
            capture(tuner.network, tuner.optimizer),
            step=tuner.step,
            state={
                "skipped": tuner.steps.skipped,
                "scaler": tuner.scaler.state_dict(),
                "seconds": tuner.seconds,
                "diverged": tuner.diverged,
                "micro_batch_size": tuner.micro_batch_size,
            },
        )
        checkpoint.rotate(tuner.output_dir, keep=1)


# ---- scoring -------------------------------------------------------------------------------------


def answers(tuner: Tuner, part: str) -> list[Any]:
    """The leading process's answers to one part of the dev data; every process reads its share."""
    examples, features = tuner.assignment.dev[part]
    world = tuner.world
    found = outputs(
        tuner.network,
        features,
        device=world.device,
        autocast=autocast(tuner.precision, world.device),
        batches=unit_batches(features, world.device)[world.rank :: world.size],
    )
    found = {unit: output for each in world.everyones(found) for unit, output in each.items()}
    if not world.leads:
        return []
    decoded: list[Any] = tuner.assignment.task.decode(
        examples, features, [found[u] for u in range(len(features))]
    )
    return decoded


def scored(tuner: Tuner) -> Scores:
    said = {part: answers(tuner, part) for part in tuner.assignment.dev}
    task = tuner.assignment.task
    return (
        {part: task.score(tuner.assignment.dev[part][0], said[part]) for part in said}
        if tuner.world.leads
        else {}
    )


def finish(tuner: Tuner, journal: Journal) -> dict[str, Any]:
    """Score, write predictions, model and result; the result last, for with it the seed is done."""
    said = {part: answers(tuner, part) for part in tuner.assignment.dev}
    result = concluded(tuner, said, journal) if tuner.world.leads else {}
    return dict(tuner.world.from_leader(result))


def concluded(tuner: Tuner, said: dict[str, list[Any]], journal: Journal) -> dict[str, Any]:
    dev, place = tuner.assignment.dev, tuner.output_dir
    first, (examples, _) = next(iter(dev.items()))
    task = tuner.assignment.task.tuned(examples, said[first])
    scores = {part: task.score(dev[part][0], said[part]) for part in said}
    for part, each in scores.items():
        journal.record(tuner.step, each, prefix=f"{part}_")
    for part, found in said.items():
        lines = (
            json.dumps(task.record(example, answer), ensure_ascii=False) + "\n"
            for example, answer in zip(dev[part][0], found, strict=True)
        )
        atomic.write(place / f"predictions-{part}.jsonl", "".join(lines))
    score, trivial = scores[first][task.metric], float(task.trivial(examples))
    result = {
        "seed": tuner.seed,
        "score": score,
        "scores": scores,
        "trivial": trivial,
        "degenerate": bool(score <= trivial + 1e-9),
        "diverged": tuner.diverged,
        "steps": tuner.step,
        "micro_batch_size": tuner.micro_batch_size,
        "seconds": round(tuner.seconds, 2),
    }
    stored = save_tuned(
        tuner.network,
        task,
        tuner.assignment.words,
        place / "model",
        length=tuner.assignment.tuning.length,
        extra={"electra_result": result},
        facts=facts(tuner.assignment, result),
    )
    if (
        stored.architecture is not None and not tuner.diverged
    ):  # of what is no number nothing can be proven
        huggingface.verify(stored, place / "model")
    atomic.write_json(place / RESULT, result)
    for _, path in checkpoint.numbered(place):
        shutil.rmtree(path)
    return result
