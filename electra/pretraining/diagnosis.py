"""What is wrong with a run, in words: before it starts, while it seems to train, and when a number
is not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.data.dataloader import DataLoader
from electra.data.shards import Shards
from electra.data.shuffle import random_key
from electra.engine.fsdp import is_sharded, local_tensor, reshard
from electra.engine.hardware import autocast
from electra.kernels import enable
from electra.pretraining.recipe import Recipe

if TYPE_CHECKING:
    from electra.pretraining.run import Run

MANY_EPOCHS = 40
# tokens: a healthy small network may take tens of millions to leave the plateau (docs/log.md)
PATIENCE = 50_000_000


def advice(recipe: Recipe, shards: Shards) -> list[str]:
    """Settings that are allowed and usually regretted."""
    found = [str(warning) for warning in shards.manifest.warnings]
    epochs = recipe.training.max_steps * recipe.training.batch_size / len(shards.train)
    if epochs > MANY_EPOCHS:
        found.append(
            f"{shards.folder} is small for this recipe: each row will be seen {epochs:,.0f} "
            "times; add text, "
            f"or lower --max-steps"
        )
    work = recipe.workload(recipe.data.vocab_size)
    generator = (
        work.generator if work.generator_is_trained else None
    )  # frozen, it is as large as the first stage was
    if generator is not None and generator.width > recipe.encoder.width / 2:
        found.append(
            f"the generator is {generator.width} wide beside a discriminator of "
            f"{recipe.encoder.width}; the "
            f"paper found a quarter to a half best, a stronger one makes the task too hard"
        )
    return found


def alarms(scores: dict[str, float], recipe: Recipe, *, step: int) -> list[str]:
    """Networks that still know nothing long after warm-up. The total loss alone does not show it."""
    found: list[str] = []
    tokens = step * recipe.training.batch_size * recipe.data.length
    if tokens < PATIENCE or step < 1.5 * recipe.optimizer.warmup_steps:
        return found
    if "rtd_loss" in scores and scores["rtd_loss"] > 0.99 * scores["baseline_rtd_loss"]:
        found.append(
            f"step {step}: the discriminator sits at the trivial solution (loss "
            f"{scores['rtd_loss']:.4f}; "
            f"{scores['baseline_rtd_loss']:.4f} without looking at the text); a lower learning "
            "rate, a longer "
            f"warm-up or a smaller batch usually frees it"
        )
    # Of a generator that does not learn to be likely, this loss is an observation.
    by_likelihood = getattr(recipe.objective, "generator_training", "mlm") == "mlm"
    if (
        by_likelihood
        and "mlm_loss" in scores
        and scores["mlm_loss"] > 0.98 * scores["baseline_mlm_loss"]
    ):
        found.append(
            f"step {step}: the masked LM only copies, and knows how frequent words are (loss "
            f"{scores['mlm_loss']:.3f}; {scores['baseline_mlm_loss']:.3f} without looking at "
            "context); a lower "
            f"learning rate or a longer warm-up usually frees it"
        )
    if "restore_loss" in scores and scores["restore_loss"] > 0.99 * scores["baseline_restore_loss"]:
        found.append(
            f"step {step}: the encoder restores no more than by copying what it reads and knowing "
            "how "
            f"frequent words are (loss {scores['restore_loss']:.4f}; "
            f"{scores['baseline_restore_loss']:.4f} "
            "without looking at context); a lower learning rate or a longer warm-up usually "
            "frees it"
        )
    if "lm_loss" in scores and scores["lm_loss"] > 0.98 * scores["baseline_lm_loss"]:
        found.append(
            f"step {step}: the left-to-right LM only knows how frequent words are (loss "
            f"{scores['lm_loss']:.3f}; {scores['baseline_lm_loss']:.3f} without looking at "
            "context); a lower "
            f"learning rate or a longer warm-up usually frees it"
        )
    return found


def first_bad_tensor(run: Run, step: int) -> str:
    """The first tensor of this step that is not finite, found by taking the step's forward passes
    again, plainly. All processes take as many, whatever they find, and say the same.
    """
    settings = run.recipe.training
    batches = DataLoader(
        run.shards.train,
        batch_size=settings.batch_size,
        micro_batch_size=run.micro_batch_size,
        seed=settings.seed,
    )
    share = run.world.my_micro_batches(batches.micro_batches_per_step)
    enable(run.objective, False)
    named = list(run.objective.named_parameters())
    found = [
        (0, f"the weight {name}")
        for name, parameter in named
        if not torch.isfinite(local_tensor(parameter)).all()
    ]
    passes = list(zip(share, batches.load_step(step, share), strict=True))
    idle = (
        [passes[-1]]
        * (run.world.max_micro_batches_per_rank(batches.micro_batches_per_step) - len(passes))
        if is_sharded(run.objective)
        else []
    )
    for micro_batch, batch in [*passes, *idle]:
        torch.manual_seed(random_key(settings.seed, step, micro_batch))
        with autocast(settings.precision, run.world.device):
            if output := first_bad_output(run.objective, batch.to(run.world.device)):
                found.append((1, f"{output} (micro-batch {micro_batch})"))
    reshard(run.objective)
    if (
        run.world.size == 1 and not found
    ):  # later steps may have overwritten it; alone, it can be had again
        enable(run.objective, settings.kernels == "on")
        run.steps.forward_backward(
            [(random_key(settings.seed, step, micro_batch), batch) for micro_batch, batch in passes]
        )
    found += [
        (2, f"the gradient of {name}")
        for name, parameter in named
        if parameter.grad is not None and not torch.isfinite(local_tensor(parameter.grad)).all()
    ]
    first = min(
        (suspect for each in run.world.all_gather(found) for suspect in each),
        key=lambda suspect: suspect[0],
        default=(3, "a gradient"),
    )
    return first[1]


@torch.no_grad()
def first_bad_output(objective: nn.Module, batch: Batch) -> str | None:
    bad: list[str] = []

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                bad.append(f"the output of {name}")

        return look

    hooks = [
        module.register_forward_hook(watch(name))
        for name, module in objective.named_modules()
        if name
    ]
    try:
        loss = objective(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return bad[0] if bad else None if torch.isfinite(loss.total) else "the loss"
