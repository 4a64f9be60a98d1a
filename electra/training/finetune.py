"""The other loop: a pre-trained encoder and a fresh head become a model of one task, once for each seed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from electra import atomic
from electra.config import RunFailed
from electra.data.batches import random_key
from electra.model import huggingface
from electra.model.flops import kept_by_encoder
from electra.tasks.answering import outputs, unit_batches
from electra.tasks.features import Array, epoch_order
from electra.tasks.models import Pretrained, build_network, load_pretrained, save_tuned
from electra.tasks.task import Network
from electra.training import checkpoint, folder
from electra.training.assignment import Assignment, told
from electra.training.journal import Journal, Window
from electra.training.optimizer import (
    build_optimizer,
    clip_and_step,
    gradient_norm,
    is_sound,
    layer_share,
    set_step,
)
from electra.training.parallel import World, accumulating, autocast, free_bytes, resolve_precision, wrap
from electra.training.recipe import OptimizerConfig
from electra.training.results import RESULT, facts

Scores = dict[str, dict[str, float]]  # part of the dev data → metric → value


@dataclass
class Tuner:
    """Everything that one process needs to take a step."""

    assignment: Assignment
    seed: int
    output_dir: Path
    world: World
    network: Network
    wrapped: nn.Module
    optimizer: torch.optim.AdamW
    settings: OptimizerConfig
    scaler: torch.amp.GradScaler
    precision: str
    steps: int
    micro_batch_size: int
    weights: Array  # how much of each unit is scored
    step: int = 0
    skipped: int = 0
    seconds: float = 0.0
    diverged: bool = False
    order: tuple[int, list[Array]] = field(default=(-1, []))

    @property
    def multiple(self) -> int:
        """Rows are padded to multiples of this: tensor cores like eights, and compiled code is made once a width."""
        compiled = self.assignment.tuning.compile == "on"
        return 32 if compiled else 8 if self.world.device.type == "cuda" else 1

    def units(self, step: int) -> Array:
        """The examples of a step, counted from 1."""
        tuning, lengths = self.assignment.tuning, self.assignment.train.lengths
        epoch, place = divmod(step - 1, -(-len(lengths) // tuning.batch_size))
        if self.order[0] != epoch:
            batches = epoch_order(lengths, batch_size=tuning.batch_size, seed=self.seed, epoch=epoch)
            self.order = (epoch, batches)
        return self.order[1][place]


def finetune_seed(assignment: Assignment, seed: int, output_dir: Path, world: World, *,
                  interrupted: Callable[[], bool], quiet: bool = False) -> dict[str, Any] | None:
    """Train, score and save one seed, from where its folder was left; None when it was stopped early."""
    tuner = assembled(assignment, seed, output_dir, world)
    damaged: list[str] = []
    with told(damaged.append):
        found = checkpoint.newest(output_dir)
    if found is not None:
        tuner.step, tuner.skipped = found.step, found.state["skipped"]
        # What drops out is keyed by micro-batch, so cut them as before, whatever memory is free today.
        tuner.micro_batch_size = assignment.tuning.micro_batch_size or found.state["micro_batch_size"]
        tuner.seconds, tuner.diverged = found.state["seconds"], found.state["diverged"]
        checkpoint.load(found, module=tuner.network, optimizer=tuner.optimizer, updates=found.step - tuner.skipped)
        tuner.scaler.load_state_dict(found.state["scaler"])
    world.wait()
    if world.leads:
        output_dir.mkdir(parents=True, exist_ok=True)
        checkpoint.forget_after(output_dir, tuner.step)
    with Journal(output_dir / folder.METRICS if world.leads else None, max_steps=tuner.steps, after=tuner.step,
                 quiet=quiet) as journal:
        for text in damaged:
            journal.say(text)
        if found is not None:
            journal.say(f"seed {seed}: continuing from {found.folder} at step {found.step:,}")
        try:
            if not train(tuner, journal, interrupted):
                return None
            return finish(tuner, journal)
        except OSError as error:
            raise RunFailed(f"seed {seed}, after step {tuner.step}: {error}; the same command goes on from the last "
                            "checkpoint once that is put right") from error


def assembled(assignment: Assignment, seed: int, output_dir: Path, world: World) -> Tuner:
    """The network from the seed, on the device, ready to be called."""
    tuning = assignment.tuning
    torch.manual_seed(random_key(seed, "head"))
    source: Pretrained = load_pretrained(assignment.model, dropout=tuning.dropout,
                                         random_weights=assignment.loaded is None)
    network = build_network(source.encoder, assignment.task, dropout=tuning.dropout).to(world.device)
    steps = tuning.steps(len(assignment.train))
    settings = tuning.optimizer(steps=steps)
    layers, official = assignment.shape.layers, tuning.layer_counting == "official"
    precision = resolve_precision(tuning.precision, world.device)
    return Tuner(
        assignment, seed, output_dir, world, network,
        wrapped=wrap(network, world, compiled=tuning.compile == "on"),
        optimizer=build_optimizer(network, settings, share=lambda name: layer_share(
            name, layers=layers, decay=tuning.layer_decay, official=official)),
        settings=settings, scaler=torch.amp.GradScaler(world.device.type, enabled=precision == "fp16"),
        precision=precision, steps=steps, micro_batch_size=tuning.micro_batch_size or fitting(assignment, world),
        weights=assignment.task.weight(assignment.train))


def fitting(assignment: Assignment, world: World) -> int:
    """Examples in one pass: an even share of the batch, halved until it should fit in memory."""
    shape, rows = assignment.shape, assignment.train
    low_precision = resolve_precision(assignment.tuning.precision, world.device) != "fp32"
    per_example = rows.together * int(rows.lengths.max()) * kept_by_encoder(shape, 2 if low_precision else 4)
    size = -(-assignment.tuning.batch_size // world.size)
    while size > 1 and size * per_example > 0.7 * free_bytes(world.device):
        size = -(-size // 2)
    return world.least(size)


def train(tuner: Tuner, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Read, descend, update, say, save. False when it was stopped early, with a checkpoint."""
    tuning, window = tuner.assignment.tuning, Window()
    rows, before = tuner.assignment.train, tuner.seconds
    began = time.monotonic()
    tuner.network.train()
    for step in range(tuner.step + 1, tuner.steps + 1) if not tuner.diverged else ():
        units = tuner.units(step)
        loss = descend(tuner, units, step=step)
        rate, norm = update(tuner, step=step)
        if tuner.diverged:  # kept and marked, not hidden: it is scored as it stands
            journal.warn(f"seed {tuner.seed}: the gradient is not finite in step {step}; training ends here")
            break
        tuner.step, tuner.seconds = step, before + time.monotonic() - began
        window.add({"loss": loss}, int(rows.sizes[units].sum()))
        stopping = tuner.world.any(interrupted())
        if step % tuning.logging_steps == 0 or stopping or step == tuner.steps:
            numbers = window.close(tuner.world.sum)
            del numbers["data_wait"]  # rows lie in memory: nothing is waited for, and nothing measured
            journal.record(step, {**numbers, "learning_rate": rate, "grad_norm": norm,
                                  "epoch": step * tuning.batch_size / len(rows)})
        if tuning.eval_steps and step % tuning.eval_steps == 0 and step < tuner.steps:
            for part, scores in scored(tuner).items():
                journal.record(step, scores, prefix=f"{part}_")
        if (step % tuning.save_steps == 0 and step < tuner.steps) or stopping:
            save(tuner)
        journal.advance(step)
        if stopping and step < tuner.steps:
            return False
    return True


def descend(tuner: Tuner, units: Array, *, step: int) -> Tensor:
    """Forward and backward over this process's part of a step; returns the loss of that part."""
    assignment, world = tuner.assignment, tuner.world
    size = tuner.micro_batch_size
    pieces = [units[at:at + size] for at in range(0, len(units), size)]
    mine = range(len(pieces))[world.rank::world.size]
    count = float(tuner.weights[units].sum()) if assignment.tuning.loss == "mean" else 1.0
    tuner.optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=world.device)
    for number in mine or [0]:  # a process without a part passes with weight zero, since the others wait for it
        torch.manual_seed(random_key(tuner.seed, step, number))
        batch = assignment.train.take(pieces[number], multiple=tuner.multiple, most=assignment.shape.positions)
        with accumulating(tuner.wrapped, last=not mine or number == mine[-1]):
            with autocast(tuner.precision, world.device):
                loss = tuner.wrapped(batch.to(world.device)) * (bool(mine) / count)
            # DDP takes the mean over processes, but the parts of a step's loss are to be added up.
            tuner.scaler.scale(loss * world.size).backward()
        total += loss.detach()
    return total


def update(tuner: Tuner, *, step: int) -> tuple[float, float]:
    """Clip and step; a gradient that is not finite changes nothing and marks the run."""
    rate = set_step(tuner.optimizer, tuner.settings, step=step, max_steps=tuner.steps, skipped=tuner.skipped)
    norm = gradient_norm(tuner.network, tuner.optimizer, tuner.scaler)
    if not is_sound(norm, tuner.scaler):
        tuner.diverged = True
        return rate, float("nan")
    tuner.skipped += not clip_and_step(tuner.network, tuner.optimizer, tuner.scaler, norm=norm,
                                       max_norm=tuner.settings.max_grad_norm)
    return rate, float(norm)


def save(tuner: Tuner) -> None:
    if tuner.world.leads:
        checkpoint.save(tuner.output_dir, step=tuner.step, module=tuner.network, optimizer=tuner.optimizer,
                        state={"skipped": tuner.skipped, "scaler": tuner.scaler.state_dict(),
                               "seconds": tuner.seconds, "diverged": tuner.diverged,
                               "micro_batch_size": tuner.micro_batch_size})
        checkpoint.rotate(tuner.output_dir, keep=1)


# ---- scoring -------------------------------------------------------------------------------------------------------

def answers(tuner: Tuner, part: str) -> list[Any]:
    """The leading process's answers to one part of the dev data; every process reads its share."""
    examples, features = tuner.assignment.dev[part]
    world = tuner.world
    found = outputs(tuner.network, features, device=world.device, autocast=autocast(tuner.precision, world.device),
                    batches=unit_batches(features, world.device)[world.rank::world.size])
    if world.size > 1:
        everyone: list[Any] = [None] * world.size
        dist.all_gather_object(everyone, found)
        found = {unit: output for each in everyone for unit, output in each.items()}
    if not world.leads:
        return []
    decoded: list[Any] = tuner.assignment.task.decode(examples, features, [found[u] for u in range(len(features))])
    return decoded


def scored(tuner: Tuner) -> Scores:
    said = {part: answers(tuner, part) for part in tuner.assignment.dev}
    task = tuner.assignment.task
    return {part: task.score(tuner.assignment.dev[part][0], said[part]) for part in said} if tuner.world.leads else {}


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
        lines = (json.dumps(task.record(example, answer), ensure_ascii=False) + "\n"
                 for example, answer in zip(dev[part][0], found, strict=True))
        atomic.write(place / f"predictions-{part}.jsonl", "".join(lines))
    score, trivial = scores[first][task.metric], float(task.trivial(examples))
    result = {"seed": tuner.seed, "score": score, "scores": scores, "trivial": trivial,
              "degenerate": bool(score <= trivial + 1e-9), "diverged": tuner.diverged, "steps": tuner.step,
              "micro_batch_size": tuner.micro_batch_size, "seconds": round(tuner.seconds, 2)}
    stored = save_tuned(tuner.network, task, tuner.assignment.words, place / "model",
                        length=tuner.assignment.tuning.length, extra={"electra_result": result},
                        facts=facts(tuner.assignment, result))
    if stored.architecture is not None and not tuner.diverged:  # of what is no number nothing can be proven
        huggingface.verify(stored, place / "model")
    atomic.write_json(place / RESULT, result)
    for _, path in checkpoint.numbered(place):
        shutil.rmtree(path)
    return result
