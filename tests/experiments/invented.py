"""Findings that nobody found, in realistic sizes: seven arms of a table, and a figure over
generator sizes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from electra.experiments.findings import Finding, Findings, Score
from electra.experiments.plan import Arm, Evaluation, Scale, Stage, Trial

STEPS, TOKENS = 2000, 60_000_000
TASKS = ("glue/sst-2", "glue/qnli")
BASE = Stage(recipe="base", size="base")
SCALE = Scale(
    name="trial",
    title="6 layers, 256 wide, rows of 128",
    steps=8000,
    evaluation=Evaluation(tasks=TASKS),
)
ARMS = (
    Arm(name="electra", label="ELECTRA", stages=(BASE,), published={"GLUE": 85.0}),
    Arm(
        name="all-tokens",
        label="All-Tokens MLM",
        stages=(BASE,),
        compute="reference",
        published={"GLUE": 84.3},
    ),
    Arm(
        name="replace",
        label="Replace MLM",
        stages=(BASE,),
        compute="reference",
        published={"GLUE": 82.4},
    ),
    Arm(
        name="electra-15",
        label="ELECTRA 15 %",
        stages=(BASE,),
        compute="reference",
        published={"GLUE": 82.4},
    ),
    Arm(name="bert", label="BERT", stages=(BASE,), compute="reference", published={"GLUE": 82.2}),
    Arm(
        name="two-stage",
        label="Two-stage ELECTRA, discriminator from generator",
        stages=(BASE, BASE),
        note="the generator is frozen in the second half",
    ),
    Arm(name="adversarial", label="Adversarial ELECTRA", stages=(BASE,)),
    Arm(name="gpt", label="GPT", published={"GLUE": 78.8}),
)
EFFICIENCY = Trial(
    name="efficiency",
    title="Where the gain comes from",
    source="Clark et al. 2020, table 5",
    question="Is it the loss over all tokens, or that [MASK] is never seen in fine-tuning?",
    reference="electra",
    columns=("GLUE",),
    arms=ARMS,
    expected=("electra", "all-tokens", "replace", "electra-15", "bert"),
)
MEANS = {
    "electra": 74.6,
    "all-tokens": 73.1,
    "replace": 69.0,
    "electra-15": 70.9,
    "bert": 70.8,
    "two-stage": 71.9,
    "adversarial": 73.0,
}  # Replace MLM below BERT: what the paper does not have


def efficiency(*, seeds: int = 2, means: dict[str, float] = MEANS) -> Findings:
    results = [
        finding(arm, seed, mean=means[arm.name], index=index)
        for index, arm in enumerate(ARMS[:7])
        for seed in range(seeds)
    ]
    return Findings(
        trial=EFFICIENCY,
        scale=SCALE,
        budget="1/4",
        tasks=TASKS,
        results=results,
        corpus={"tokens": 103_000_000, "rows": 830_000, "vocabulary": 8192, "length": 128},
    )


def generator_size() -> Findings:
    """D widths as series, G widths along x, and a generator that has no size."""
    arms = tuple(
        Arm(
            name=f"d{width}-g{size}",
            label=f"D {width}, G {size}",
            stages=(BASE,),
            series=f"D {width} wide",
            x=size / width,
        )
        for width in (256, 192, 128)
        for size in (32, 64, 96, 128)
        if size <= width
    )
    arms = (*arms, Arm(name="unigram", label="unigram generator", stages=(BASE,), series="unigram"))
    trial = Trial(
        name="generator-size",
        title="How large the generator should be",
        source="Clark et al. 2020, figure 3",
        question="How large should the generator be?",
        reference="d256-g64",
        columns=(),
        arms=arms,
        x_label="width of the generator, as a share of the discriminator's",
    )
    means = [
        75 - 6 * abs((arm.x or 1.4) - 0.4) + 2 * index / len(arms) for index, arm in enumerate(arms)
    ]
    results = [
        finding(arm, seed, mean=mean, index=i)
        for i, (arm, mean) in enumerate(zip(arms, means, strict=True))
        for seed in range(2)
    ]
    return replace(efficiency(), trial=trial, results=results)


def finding(arm: Arm, seed: int, *, mean: float, index: int, steps: int = STEPS) -> Finding:
    operations = 1.9e15 if arm.compute == "reference" else 1.9e15 + 2e13 * index
    minutes, wobble = 1.4 + 0.15 * index + 0.02 * seed, 0.3 * math.sin(7 * index + 3 * seed)
    scores = [
        Score(task=task, metric="accuracy", values=((mean + wobble + shift) / 100,), baseline=0.505)
        for task, shift in zip(TASKS, (4.0, -4.0), strict=True)
    ]
    recipe = {
        "objective": {"name": arm.name},
        "optimizer": {"learning_rate": 5e-4},
        "training": {"seed": seed, "max_steps": STEPS, "batch_size": 256},
    }
    return Finding(
        arm=arm.name,
        seed=seed,
        runs=(Path(f"/somewhere/runs/{arm.name}-0123abc{seed}"),),
        done=steps == STEPS,
        steps=steps,
        max_steps=STEPS,
        tokens=TOKENS * steps // STEPS,
        minutes=minutes,
        flops=operations,
        official_flops=1.12 * operations,
        journal=journal(arm, steps, operations, minutes, index=index, wobble=wobble),
        scores=scores if steps == STEPS else [],
        provenance={
            "recipe": recipe,
            "electra": "0.1.0",
            "commit": "0123456789ab",
            "date": f"2026-11-1{seed}",
            "versions": {"torch": "2.11.0"},
            "hardware": "NVIDIA H200",
        },
    )


def journal(
    arm: Arm, steps: int, operations: float, minutes: float, *, index: int, wobble: float
) -> list[dict]:
    entries = []
    for step in range(50, steps + 1, 50):
        done = step / STEPS
        entry = {
            "step": step,
            "time": 1.7e9 + step,
            "tokens_seen": TOKENS * step // STEPS,
            "minutes": minutes * done,
            "flops": operations * done,
        }
        entries.append({**entry, "loss": 20.0 - done, "learning_rate": 5e-4 * (1 - done)})
        curve = 1 - math.exp(-(3 + 0.25 * index) * done) + 0.02 * wobble
        held_out = {
            "mlm_loss": 7.2 - 3.4 * curve,
            "baseline_mlm_loss": 7.23,
            "mlm_accuracy": 0.05 + 0.35 * curve,
        }
        if "electra" in arm.name or arm.name in ("two-stage", "adversarial"):
            held_out |= {
                "rtd_loss": 0.41 - 0.12 * curve,
                "auc": 0.5 + 0.42 * curve * done**0.3,
                "rtd_accuracy": 0.86,
            }
        if arm.name in ("replace", "all-tokens"):
            held_out |= {"restore_loss": 7.2 - 4 * curve}
        entries.append({**entry, **{f"eval_{key}": value for key, value in held_out.items()}})
    return entries
