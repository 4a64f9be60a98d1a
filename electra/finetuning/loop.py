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
from electra.console import redirect_warnings
from electra.data.shuffle import random_key
from electra.engine.distributed import World
from electra.engine.hardware import Speed, autocast, free_bytes, resolve_precision, resolve_speed
from electra.engine.optimizer import build_optimizer, layer_lr_scale
from electra.engine.settings import OptimizerConfig, Precision
from electra.engine.train_step import NonFiniteGradient, TrainStep, build_train_step
from electra.engine.training_state import capture, restore
from electra.finetuning.results import RESULT, facts
from electra.finetuning.setup import FinetuneSetup
from electra.model import huggingface
from electra.model.memory import encoder_bytes
from electra.runs import checkpoint, run_dir
from electra.runs.journal import Journal, Window
from electra.tasks.features import Array, epoch_batches
from electra.tasks.inference import compute_outputs, inference_batches
from electra.tasks.models import Pretrained, build_network, load_pretrained, save_tuned
from electra.tasks.task import Network

Scores = dict[str, dict[str, float]]  # part of the dev data → metric → value


@dataclass
class FinetuneState:
    """Everything that one process needs to take a step."""

    setup: FinetuneSetup
    seed: int
    output_dir: Path
    world: World
    network: Network
    optimizer: torch.optim.AdamW
    optimizer_config: OptimizerConfig
    scaler: torch.amp.GradScaler
    precision: Precision
    max_steps: int
    micro_batch_size: int
    weights: Array  # how much of each unit is scored
    step: int = 0
    seconds: float = 0.0
    diverged: bool = False
    order: tuple[int, list[Array]] = field(default=(-1, []))
    steps: TrainStep = field(init=False)  # built when weights and slots are what they were

    @property
    def multiple(self) -> int:
        """Rows are padded to multiples of this: compiled code is made, and a graph captured, once
        for each width.
        """
        compiled = self.setup.config.compile == "on"
        return 32 if compiled else 16 if self.world.device.type == "cuda" else 1

    def units(self, step: int) -> Array:
        """The examples of a step, counted from 1."""
        settings, lengths = self.setup.config, self.setup.train.lengths
        epoch, place = divmod(step - 1, -(-len(lengths) // settings.batch_size))
        if self.order[0] != epoch:
            batches = epoch_batches(
                lengths, batch_size=settings.batch_size, seed=self.seed, epoch=epoch
            )
            self.order = (epoch, batches)
        return self.order[1][place]


def finetune_seed(
    setup: FinetuneSetup,
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
    state = assembled(setup, seed, output_dir, world)
    damaged: list[str] = []
    with redirect_warnings(damaged.append):
        found = checkpoint.newest(output_dir)
    if found is not None:
        state.step = found.step
        # What drops out is keyed by micro-batch, so cut them as before, whatever memory is free
        # today.
        state.micro_batch_size = setup.config.micro_batch_size or found.state["micro_batch_size"]
        state.seconds, state.diverged = found.state["seconds"], found.state["diverged"]
        restore(
            found.tensors(),
            module=state.network,
            optimizer=state.optimizer,
            updates=found.step - found.state["skipped"],
        )
        state.scaler.load_state_dict(found.state["scaler"])
    begin(state, skipped=found.state["skipped"] if found else 0)
    world.barrier()
    if world.is_main:
        output_dir.mkdir(parents=True, exist_ok=True)
        checkpoint.forget_after(output_dir, state.step)
    with Journal(
        output_dir / run_dir.METRICS if world.is_main else None,
        max_steps=state.max_steps,
        after=state.step,
        quiet=quiet,
    ) as journal:
        for text in damaged:
            journal.say(text)
        if found is not None:
            journal.say(f"seed {seed}: continuing from {found.folder} at step {found.step:,}")
        try:
            if not train_or_diverge(state, journal, interrupted):
                return None
            return finish(state, journal)
        except OSError as error:
            raise RunFailed(
                f"seed {seed}, after step {state.step}: {error}; the same command goes on from "
                "the last "
                "checkpoint once that is put right"
            ) from error


def assembled(setup: FinetuneSetup, seed: int, output_dir: Path, world: World) -> FinetuneState:
    """The network from the seed, on the device, ready to be called."""
    settings = setup.config
    torch.manual_seed(random_key(seed, "head"))
    source: Pretrained = load_pretrained(
        setup.model, dropout=settings.dropout, random_weights=setup.loaded is None
    )
    network = build_network(source.encoder, setup.task, dropout=settings.dropout).to(world.device)
    steps = settings.steps(len(setup.train))
    optimizer_config = settings.optimizer(steps=steps)
    layers, official = setup.shape.layers, settings.layer_counting == "official"
    precision = resolve_precision(settings.precision, world.device)
    return FinetuneState(
        setup,
        seed,
        output_dir,
        world,
        network,
        optimizer=build_optimizer(
            network,
            optimizer_config,
            lr_scale=lambda name: layer_lr_scale(
                name, layers=layers, decay=settings.layer_decay, official=official
            ),
        ),
        optimizer_config=optimizer_config,
        scaler=torch.amp.GradScaler(world.device.type, enabled=precision == "fp16"),
        precision=precision,
        max_steps=steps,
        micro_batch_size=settings.micro_batch_size or fitting(setup, world),
        weights=setup.task.weight(setup.train),
    )


def begin(state: FinetuneState, *, skipped: int = 0) -> None:
    """Weights and slots are in place; from here on they move."""
    state.steps = build_train_step(
        state.network,
        lambda loss: {"loss": loss},
        state.optimizer,
        state.optimizer_config,
        world=state.world,
        max_steps=state.max_steps,
        scaler=state.scaler,
        skipped=skipped,
        precision=state.precision,
        speed=speed_of(state.setup, state.world),
    )


def speed_of(setup: FinetuneSetup, world: World) -> Speed:
    """How steps are taken; refuses what this machine or task cannot do."""
    settings, frozen = setup.config, bool(setup.task.frozen)
    speed = resolve_speed(
        settings,
        resolve_precision(settings.precision, world.device),
        world.device,
        flag="--",
        head_width=setup.shape.head_width,
        causal=setup.shape.causal,
        compile_on_gpu=False,
    )
    if frozen and settings.cuda_graph == "on":
        raise UserError(
            "--cuda-graph on: the head of a frozen encoder reads lengths back, which no graph "
            "can; leave "
            "it at auto"
        )
    return speed._replace(cuda_graph=speed.cuda_graph and not frozen)


def fitting(setup: FinetuneSetup, world: World) -> int:
    """Examples in one pass: an even share of the batch, halved until it should fit in memory."""
    shape, rows = setup.shape, setup.train
    low_precision = resolve_precision(setup.config.precision, world.device) != "fp32"
    per_example = (
        rows.num_choices * int(rows.lengths.max()) * encoder_bytes(shape, 2 if low_precision else 4)
    )
    size = -(-setup.config.batch_size // world.size)
    while size > 1 and size * per_example > 0.7 * free_bytes(world.device):
        size = -(-size // 2)
    return world.all_min(size)


def train_or_diverge(
    state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]
) -> bool:
    """Trained to the end, or until its gradient broke: such a run is kept and marked, and scored as
    it stands.
    """
    try:
        return train(state, journal, interrupted)
    except NonFiniteGradient as found:
        journal.warn(f"seed {state.seed}: {found}; training ends here")
        state.step, state.diverged = found.step - 1, True
        return True


def train(state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Read, descend, update, say, save. False when it was stopped early, with a checkpoint."""
    settings, window = state.setup.config, Window()
    rows, before = state.setup.train, state.seconds
    began = time.monotonic()
    state.network.train()
    for step in range(state.step + 1, state.max_steps + 1) if not state.diverged else ():
        units = state.units(step)
        loss = forward_backward(state, units, step=step)
        rate = state.steps.optimizer_step(step)
        state.step, state.seconds = step, before + time.monotonic() - began
        window.add({"loss": loss}, int(rows.token_counts[units].sum()))
        stopping = state.world.any_rank(interrupted())
        if step % settings.logging_steps == 0 or stopping or step == state.max_steps:
            norm, numbers = state.steps.synchronize(), window.close(state.world.all_reduce_sum)
            del numbers[
                "data_wait"
            ]  # rows lie in memory: nothing is waited for, and nothing measured
            journal.record(
                step,
                {
                    **numbers,
                    "learning_rate": rate,
                    "grad_norm": norm,
                    "epoch": step * settings.batch_size / len(rows),
                },
            )
        if settings.eval_steps and step % settings.eval_steps == 0 and step < state.max_steps:
            for part, scores in scored(state).items():
                journal.record(step, scores, prefix=f"{part}_")
        if (step % settings.save_steps == 0 and step < state.max_steps) or stopping:
            save(state)
        journal.advance(step)
        if stopping and step < state.max_steps:
            return False
    return True


def forward_backward(state: FinetuneState, units: Array, *, step: int) -> Tensor:
    """The gradients of this process's part of a step; returns the loss of that part."""
    setup, world = state.setup, state.world
    size = state.micro_batch_size
    pieces = [units[at : at + size] for at in range(0, len(units), size)]
    mine = range(len(pieces))[world.rank :: world.size]
    count = float(state.weights[units].sum()) if setup.config.loss == "mean" else 1.0
    # A process without a part passes with weight zero, since the others wait for it.
    micro_batches = [
        (
            random_key(state.seed, step, number),
            setup.train.collate(
                pieces[number], pad_to_multiple_of=state.multiple, max_length=setup.shape.positions
            ),
        )
        for number in mine or [0]
    ]
    return state.steps.forward_backward(micro_batches, weight=bool(mine) / count)["loss"]


def save(state: FinetuneState) -> None:
    state.steps.synchronize()
    if state.world.is_main:
        checkpoint.write(
            state.output_dir,
            capture(state.network, state.optimizer),
            step=state.step,
            state={
                "skipped": state.steps.skipped,
                "scaler": state.scaler.state_dict(),
                "seconds": state.seconds,
                "diverged": state.diverged,
                "micro_batch_size": state.micro_batch_size,
            },
        )
        checkpoint.rotate(state.output_dir, keep=1)


# ---- scoring -------------------------------------------------------------------------------------


def answers(state: FinetuneState, part: str) -> list[Any]:
    """The leading process's answers to one part of the dev data; every process reads its share."""
    examples, features = state.setup.dev[part]
    world = state.world
    found = compute_outputs(
        state.network,
        features,
        device=world.device,
        autocast=autocast(state.precision, world.device),
        batches=inference_batches(features, world.device)[world.rank :: world.size],
    )
    found = {unit: output for each in world.all_gather(found) for unit, output in each.items()}
    if not world.is_main:
        return []
    decoded: list[Any] = state.setup.task.decode(
        examples, features, [found[u] for u in range(len(features))]
    )
    return decoded


def scored(state: FinetuneState) -> Scores:
    said = {part: answers(state, part) for part in state.setup.dev}
    task = state.setup.task
    return (
        {part: task.score(state.setup.dev[part][0], said[part]) for part in said}
        if state.world.is_main
        else {}
    )


def finish(state: FinetuneState, journal: Journal) -> dict[str, Any]:
    """Score, write predictions, model and result; the result last, for with it the seed is done."""
    said = {part: answers(state, part) for part in state.setup.dev}
    result = write_result(state, said, journal) if state.world.is_main else {}
    return dict(state.world.broadcast(result))


def write_result(
    state: FinetuneState, said: dict[str, list[Any]], journal: Journal
) -> dict[str, Any]:
    dev, place = state.setup.dev, state.output_dir
    first, (examples, _) = next(iter(dev.items()))
    task = state.setup.task.fit_threshold(examples, said[first])
    scores = {part: task.score(dev[part][0], said[part]) for part in said}
    for part, each in scores.items():
        journal.record(state.step, each, prefix=f"{part}_")
    for part, found in said.items():
        lines = (
            json.dumps(task.record(example, answer), ensure_ascii=False) + "\n"
            for example, answer in zip(dev[part][0], found, strict=True)
        )
        atomic.write(place / f"predictions-{part}.jsonl", "".join(lines))
    score, baseline = scores[first][task.metric], float(task.baseline(examples))
    result = {
        "seed": state.seed,
        "score": score,
        "scores": scores,
        "baseline": baseline,
        "degenerate": bool(score <= baseline + 1e-9),
        "diverged": state.diverged,
        "steps": state.step,
        "micro_batch_size": state.micro_batch_size,
        "seconds": round(state.seconds, 2),
    }
    stored = save_tuned(
        state.network,
        task,
        state.setup.tokenizer,
        place / "model",
        length=state.setup.config.length,
        extra={"electra_result": result},
        facts=facts(state.setup, result),
    )
    if (
        stored.architecture is not None and not state.diverged
    ):  # of what is no number nothing can be proven
        huggingface.verify(stored, place / "model")
    atomic.write_json(place / RESULT, result)
    for _, path in checkpoint.numbered(place):
        shutil.rmtree(path)
    return result
