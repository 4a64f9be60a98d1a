"""Measure one training step of `small` on a CPU against transformers' two ELECTRA models.

    python -m benchmarks.pretrain_cpu [--rows 16] [--repeats 5]
                                      [--output benchmarks/results/pretrain_cpu.json]

Both sides read the same rows, mask 15 %, sample replacements, clip at 1.0 and update with fused
AdamW, in float32 with the recipe's dropout.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.harness import build_parser, run_main, write_result
from benchmarks.peer import SpecialIds, Step, pretraining_step
from electra.data.batches import Batch
from electra.engine.optimizer import build_optimizer, set_learning_rate
from electra.pretraining.recipe import Recipe, load_recipe


def zipf_batch(count: int, length: int, *, seed: int) -> Batch:
    """Return full rows of tokens drawn by Zipf's law; which tokens they are costs no time."""
    rng = torch.Generator().manual_seed(seed)
    weights = 1 / torch.arange(1, SpecialIds.size - 1000)
    drawn = torch.multinomial(weights, count * length, replacement=True, generator=rng)
    ids = 1000 + drawn.view(count, length)
    ids[:, 0], ids[:, length // 2], ids[:, -1] = SpecialIds.cls, SpecialIds.sep, SpecialIds.sep
    lengths = torch.full((count,), length)
    token_type_ids = (torch.arange(length) > length // 2).long().expand(count, length).contiguous()
    return Batch(ids, token_type_ids, lengths, lengths)


def our_step(recipe: Recipe) -> Step:
    """Return a function that takes one step of ours and returns the loss."""
    objective = recipe.objective.build(
        encoder=recipe.encoder,
        vocabulary=SpecialIds(),
        unigrams=torch.full((SpecialIds.size,), 1 / SpecialIds.size),
    )
    optimizer = build_optimizer(objective, recipe.optimizer)

    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = objective(batch)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        set_learning_rate(optimizer, recipe.optimizer, step=100, max_steps=1000)
        optimizer.step()
        return loss.total.detach()

    return step


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe)
    seconds = measure(recipe, rows=options.rows, repeats=options.repeats)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    tokens, ratio = options.rows * recipe.data.length, medians["transformers"] / medians["ours"]
    for name, times in seconds.items():
        print(
            f"{name:<14} {medians[name]:7.3f} s/step  {tokens / medians[name]:8,.0f} tokens/s  "
            f"(min {min(times):.3f}, max {max(times):.3f}, n {len(times)})"
        )
    print(f"ours is {ratio:.2f} times as fast")
    if options.output:
        threads = torch.get_num_threads()
        result = {"seconds": seconds, "tokens": tokens, "threads": threads, "ratio": ratio}
        write_result(options.output, result)


def measure(recipe: Recipe, *, rows: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each step of both sides; the first step warms up."""
    torch.manual_seed(0)
    steps = {
        "ours": our_step(recipe),
        "transformers": pretraining_step(recipe, SpecialIds(), device=torch.device("cpu")),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        batch = zipf_batch(rows, recipe.data.length, seed=repeat)
        for name, step in steps.items():  # in turn, so that a slow moment of the machine hits both
            start = time.perf_counter()
            step(batch)
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    run_main(main)
