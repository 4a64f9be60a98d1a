"""One training step of `small` on a CPU, against the same step written with transformers' two
ELECTRA models.

    python -m benchmarks.pretrain_cpu [--rows 16] [--repeats 5] [--output
    benchmarks/results/pretrain_cpu.json]

Both sides read the same rows, mask 15 %, sample replacements, clip at 1.0 and update with fused
AdamW, in float32 with the recipe's dropout.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.harness import build_parser, run_main, write_result
from benchmarks.peer import Step, Words, pretraining_step
from electra.data.batches import Batch
from electra.engine.optimizer import build_optimizer, set_learning_rate
from electra.pretraining.recipe import Recipe, load_recipe


def rows(count: int, length: int, *, seed: int) -> Batch:
    """Full rows of words drawn by Zipf's law: what a step costs does not depend on which words they
    are.
    """
    rng = torch.Generator().manual_seed(seed)
    ranks = 1 / torch.arange(1, Words.size - 1000)
    ids = 1000 + torch.multinomial(ranks, count * length, replacement=True, generator=rng).view(
        count, length
    )
    ids[:, 0], ids[:, length // 2], ids[:, -1] = Words.cls, Words.sep, Words.sep
    lengths = torch.full((count,), length)
    token_type_ids = (torch.arange(length) > length // 2).long().expand(count, length).contiguous()
    return Batch(ids, token_type_ids, lengths, lengths)


def ours(recipe: Recipe) -> Step:
    objective = recipe.objective.build(
        encoder=recipe.encoder,
        vocabulary=Words(),
        unigrams=torch.full((Words.size,), 1 / Words.size),
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
    torch.manual_seed(0)
    steps = {
        "ours": ours(recipe),
        "transformers": pretraining_step(recipe, Words(), device=torch.device("cpu")),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(options.repeats + 1):
        batch = rows(options.rows, recipe.data.length, seed=repeat)
        for name, step in steps.items():  # in turn, so that a slow moment of the machine hits both
            began = time.perf_counter()
            step(batch)
            if repeat:  # the first warms up
                seconds[name].append(time.perf_counter() - began)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    tokens = options.rows * recipe.data.length
    for name, times in seconds.items():
        print(
            f"{name:<14} {median[name]:7.3f} s/step  {tokens / median[name]:8,.0f} tokens/s  "
            f"(min {min(times):.3f}, max {max(times):.3f}, n {len(times)})"
        )
    print(f"ours is {median['transformers'] / median['ours']:.2f} times as fast")
    if options.output:
        write_result(
            options.output,
            {
                "seconds": seconds,
                "tokens": tokens,
                "threads": torch.get_num_threads(),
                "ratio": median["transformers"] / median["ours"],
            },
        )


if __name__ == "__main__":
    run_main(main)
