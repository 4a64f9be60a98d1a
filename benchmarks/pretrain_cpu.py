"""One training step of `small` on a CPU, against the same step written with transformers' two ELECTRA models.

    python -m benchmarks.pretrain_cpu [--rows 16] [--repeats 5] [--output benchmarks/results/pretrain_cpu.json]

Both sides read the same rows, mask 15 %, sample replacements, clip at 1.0 and update with fused AdamW, in float32 with
the recipe's dropout. The peer shares nothing of ours but the masking: logits over the vocabulary at every position, as
`ElectraForMaskedLM` computes them, and the two networks' embeddings tied the way its users tie them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from benchmarks.evidence import keep
from electra.data.batches import Batch
from electra.objectives import build_objective
from electra.objectives.corruption import fill_masks, mask_tokens, sample
from electra.training.optimizer import build_optimizer, set_step
from electra.training.recipe import Recipe, load_recipe

VOCABULARY = 30_522


@dataclass(frozen=True)
class Words:
    """BERT's special tokens."""

    size: int = VOCABULARY
    pad: int = 0
    unk: int = 100
    cls: int = 101
    sep: int = 102
    mask: int = 103


def rows(count: int, length: int, *, seed: int) -> Batch:
    """Full rows of words drawn by Zipf's law: what a step costs does not depend on which words they are."""
    rng = torch.Generator().manual_seed(seed)
    ranks = 1 / torch.arange(1, VOCABULARY - 1000)
    ids = 1000 + torch.multinomial(ranks, count * length, replacement=True, generator=rng).view(count, length)
    ids[:, 0], ids[:, length // 2], ids[:, -1] = Words.cls, Words.sep, Words.sep
    lengths = torch.full((count,), length)
    types = (torch.arange(length) > length // 2).long().expand(count, length).contiguous()
    return Batch(ids, types, lengths, lengths)


def ours(recipe: Recipe) -> Callable[[Batch], float]:
    objective = build_objective(recipe.objective, encoder=recipe.encoder, vocabulary=Words(),
                                unigrams=torch.full((VOCABULARY,), 1 / VOCABULARY))
    optimizer = build_optimizer(objective, recipe.optimizer)

    def step(batch: Batch) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = objective(batch)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        set_step(optimizer, recipe.optimizer, step=100, max_steps=1000)
        optimizer.step()
        return float(loss.total.detach())

    return step


def peer(recipe: Recipe) -> Callable[[Batch], float]:
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    shape, small = recipe.encoder, recipe.workload(VOCABULARY).generator
    assert small is not None
    sizes = [dict(num_hidden_layers=s.layers, hidden_size=s.width, num_attention_heads=s.heads,
                  intermediate_size=s.feedforward, embedding_size=s.embedding, vocab_size=VOCABULARY)
             for s in (small, shape)]
    generator = ElectraForMaskedLM(ElectraConfig(**sizes[0]))
    discriminator = ElectraForPreTraining(ElectraConfig(**sizes[1]))
    generator.electra.embeddings.word_embeddings = discriminator.electra.embeddings.word_embeddings
    generator.electra.embeddings.position_embeddings = discriminator.electra.embeddings.position_embeddings
    generator.tie_weights()
    parameters = list({id(p): p for net in (generator, discriminator) for p in net.parameters()}.values())
    optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.01, fused=True)
    generator.train()
    discriminator.train()

    def step(batch: Batch) -> float:
        optimizer.zero_grad(set_to_none=True)
        masked = mask_tokens(batch, recipe.objective.masking, Words(), None)
        real = batch.real.long()
        logits = generator(input_ids=masked.ids, token_type_ids=batch.types, attention_mask=real).logits
        chosen = logits.gather(1, masked.positions[..., None].expand(-1, -1, VOCABULARY))
        mlm = F.cross_entropy(chosen.flatten(0, 1), masked.originals.flatten())
        corrupted = fill_masks(batch.ids, masked, sample(chosen, rng=None))
        rtd = discriminator(input_ids=corrupted.ids, token_type_ids=batch.types, attention_mask=real,
                            labels=corrupted.replaced.long()).loss
        loss = mlm + 50 * rtd
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe)
    torch.manual_seed(0)
    steps = {"ours": ours(recipe), "transformers": peer(recipe)}
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
        print(f"{name:<14} {median[name]:7.3f} s/step  {tokens / median[name]:8,.0f} tokens/s  "
              f"(min {min(times):.3f}, max {max(times):.3f}, n {len(times)})")
    print(f"ours is {median['transformers'] / median['ours']:.2f} times as fast")
    if options.output:
        keep(options.output, {"seconds": seconds, "tokens": tokens, "threads": torch.get_num_threads(),
                              "ratio": median["transformers"] / median["ours"]})


if __name__ == "__main__":
    main()
