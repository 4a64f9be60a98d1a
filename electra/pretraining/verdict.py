"""What the networks of a run know beyond their baselines, and what that means for fine-tuning.

The criterion is that of the trials: a network has left the plateau when its held-out loss is below
its metric's `plateau_ratio` of its baseline's. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from electra.objectives.metrics import Metric
from electra.pretraining.budget import MAX_WARMUP_SHARE
from electra.pretraining.recipe import Recipe

# whether fine-tuning from the model is likely to help
FineTuning = Literal["likely", "partly", "doubtful", "early", "unlikely", "unknown"]
SENTENCES: dict[FineTuning, str] = {
    "likely": "fine-tuning from this model is likely to help: its network uses the context",
    "partly": (
        "fine-tuning from this model may help, but less than it could: its network is better than "
        "its baseline by one of its losses, and has learned little or nothing by another"
    ),
    "doubtful": (
        "fine-tuning from this model may help, but less than it could: its network is better than "
        "its baseline, but its generator has learned little or nothing, and its replacements are "
        "easy to find"
    ),
    "early": (
        "fine-tuning from this model may help a little: its encoder predicts masked words from the "
        "context, but hardly finds replacements yet"
    ),
    "unlikely": (
        "fine-tuning from this model is unlikely to help, and random weights may score higher: its "
        "network knows hardly more than an answer that ignores the context"
    ),
    "unknown": (
        "whether fine-tuning from this model helps is not known: no held-out rows have been scored"
    ),
}
NO_REVIVAL = "more steps alone revived no collapsed network that we saw"
# A network that is still on the plateau after one in so many steps is warned of.
DIAGNOSIS_SHARE = 10
MIN_DIAGNOSED_STEPS = 1_000  # a tenth of fewer steps shows little


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a run has taught its networks, in plain words."""

    fine_tuning: FineTuning
    networks: tuple[str, ...]  # a sentence for each
    change: str  # what to change; empty where nothing is amiss

    @property
    def text(self) -> str:
        """The verdict in one sentence."""
        return SENTENCES[self.fine_tuning]

    @property
    def lines(self) -> list[str]:
        """Everything the verdict says, a sentence a line."""
        lines = [f"verdict: {self.text}", *self.networks]
        if self.change:
            lines.append(f"what to change: {self.change}")
        return lines

    def facts(self) -> dict[str, Any]:
        """Return the verdict as JSON values, for status.json."""
        return {
            "fine_tuning": self.fine_tuning,
            "text": self.text,
            "networks": list(self.networks),
            "change": self.change,
        }


def judge(scores: Mapping[str, float], recipe: Recipe) -> Verdict:
    """Return the verdict about networks with these held-out scores."""
    metrics = recipe.objective.metrics()
    judged = [metric for metric in judged_metrics(metrics) if metric.name in scores]
    if not judged:
        return Verdict(fine_tuning="unknown", networks=(), change="")
    at_baseline = [metric for metric in judged if metric.is_at_baseline(scores)]
    has_collapsed = any(metric.has_collapsed(scores) for metric in judged)
    fine_tuning: FineTuning = "likely"
    if judged[0] in at_baseline:  # objectives list the loss of the network to fine-tune first
        fine_tuning = "unlikely"
        if is_one_encoder(recipe) and len(at_baseline) < len(judged) and not has_collapsed:
            fine_tuning = "early"
    elif any(metric.network == "generator" for metric in at_baseline):
        fine_tuning = "doubtful"
    elif at_baseline:
        fine_tuning = "partly"
    change = ""
    if at_baseline:
        change = what_to_change(recipe)
    if has_collapsed:
        change = f"begin again with {remedies_for_collapse(recipe)}; {NO_REVIVAL}"
    sentences = []
    for metric in judged:
        learned = "has learned to use the context"
        if fine_tuning == "doubtful" and metric is judged[0]:
            # The words of a generator at its baseline stand out.
            learned = "is better than its baseline"
        sentences.append(describe_network(metric, metrics, scores, learned=learned))
    return Verdict(fine_tuning=fine_tuning, networks=tuple(sentences), change=change)


def is_one_encoder(recipe: Recipe) -> bool:
    """Return whether the network to fine-tune is also what predicts masked words."""
    return recipe.workload(recipe.data.vocab_size).tie == "all"


def judged_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return the losses that show whether a network has left the plateau."""
    return [metric for metric in metrics if metric.plateau_ratio is not None]


def describe_network(
    metric: Metric, metrics: Sequence[Metric], scores: Mapping[str, float], *, learned: str
) -> str:
    """Return what a network knows, with its numbers beside those of its baseline.

    `learned` is what to say of one that has left the plateau.
    """
    state = learned
    if metric.is_at_baseline(scores):
        state = f"has learned little or nothing ({metric.explain_baseline(scores)})"
    numbers = [describe_score(metric, scores)]
    # The number after a loss is the one that people know: an AUC or an accuracy.
    following = metrics[metrics.index(metric) + 1 :][:1]
    numbers += [describe_score(other, scores) for other in following if other.name in scores]
    return f"{name_network(metric, metrics)}: {state}; {', '.join(numbers)}"


def name_network(metric: Metric, metrics: Sequence[Metric]) -> str:
    """Return the network of a loss, with what it predicts where several losses judge it."""
    losses = [other for other in judged_metrics(metrics) if other.network == metric.network]
    if len(losses) == 1:
        return metric.network
    return f"{metric.network} ({metric.predicts or metric.name})"


def describe_score(metric: Metric, scores: Mapping[str, float]) -> str:
    name = metric.title.rpartition(", ")[2]
    text = f"{name} {metric.form.format(scores[metric.name])}"
    baseline = metric.baseline_in(scores)
    if baseline is None:
        return text
    return f"{text} ({metric.form.format(baseline)} {metric.baseline_answer})"


def learning_rate_flag(recipe: Recipe) -> str:
    if recipe.optimizer.name == "muon" and recipe.optimizer.muon_learning_rate is not None:
        return "--muon-learning-rate"  # the other one moves no matrix of a block
    return "--learning-rate"


def remedies_for_collapse(recipe: Recipe) -> str:
    """Return the settings with which to begin again where a network has collapsed."""
    config, changes = recipe.optimizer, []
    if config.warmup_steps < int(MAX_WARMUP_SHARE * recipe.training.max_steps):
        changes.append(f"more --warmup-steps than {config.warmup_steps:,}")
    if not config.bias_correction:
        changes.append("--optimizer.bias-correction true")
    changes.append(f"a lower {learning_rate_flag(recipe)}")
    return " or ".join(changes)


def what_to_change(recipe: Recipe) -> str:
    """Return the settings that usually bring a network off the plateau."""
    if recipe.encoder.family == "modernbert":
        return f"train for more steps, or try another {learning_rate_flag(recipe)}"
    return (
        "train for more steps (the paper's `small` needed tens of thousands to leave the plateau), "
        "try another --learning-rate, or begin with `electra pretrain modern-tiny` or "
        '`modern-small` (encoder.family = "modernbert"), whose rotary positions left it within '
        "hundreds; learned ones make the plateau"
    )


# ---- during the run ------------------------------------------------------------------------------


def format_scores(metrics: Sequence[Metric], scores: Mapping[str, float]) -> str:
    """Return held-out scores by their keys in metrics.jsonl, each beside its baseline."""
    texts = []
    for metric in metrics:
        if not metric.is_shown or metric.name not in scores:
            continue
        text = f"{metric.name} {metric.form.format(scores[metric.name])}"
        baseline = metric.baseline_in(scores)
        if baseline is not None:
            text += f" ({metric.form.format(baseline)})"
        texts.append(text)
    if not texts:
        return ""
    return f"held-out (baseline): {'  '.join(texts)}"


def update_left_plateau(
    left: dict[str, int], scores: Mapping[str, float], recipe: Recipe, *, step: int, tokens: int
) -> list[str]:
    """Note the step at which each loss left the plateau, and return a message for each new one.

    A network that falls back is no longer noted. In warm-up a discriminator may only have learned
    to find the words of an untrained generator.
    """
    messages, metrics = [], recipe.objective.metrics()
    for metric in judged_metrics(metrics):
        network = name_network(metric, metrics)
        if metric.name not in scores or metric.is_at_baseline(scores):
            if left.pop(metric.name, None) is not None and metric.name in scores:
                messages.append(
                    f"step {step:,}: the {network} is back on the plateau; "
                    f"{describe_score(metric, scores)}"
                )
        elif metric.name not in left and step > recipe.optimizer.warmup_steps:
            left[metric.name] = step
            messages.append(
                f"step {step:,}: the {network} has left the plateau after {tokens:,} "
                f"tokens; {describe_score(metric, scores)}"
            )
    return messages


def still_left(
    left: Mapping[str, int], scores: Mapping[str, float], recipe: Recipe
) -> dict[str, int]:
    """Return the losses that had left the plateau, without those that these scores put on it: the
    version that began the run may have had another limit.
    """
    judged = judged_metrics(recipe.objective.metrics())
    at_baseline = {metric.name for metric in judged if metric.is_at_baseline(scores)}
    return {name: step for name, step in left.items() if name not in at_baseline}


def diagnosis_step(recipe: Recipe) -> int:
    """Return the step at which networks on the plateau are warned of: the first evaluation after a
    tenth of the run, or that step itself where the evaluation would come late.

    During warm-up no network is expected to have learned anything.
    """
    training = recipe.training
    due = max(-(-training.max_steps // DIAGNOSIS_SHARE), recipe.optimizer.warmup_steps)
    evaluation = -(-due // training.eval_steps) * training.eval_steps
    if training.max_steps >= MIN_DIAGNOSED_STEPS and evaluation > training.max_steps / 2:
        return due
    return evaluation


def next_evaluation(recipe: Recipe, step: int) -> int:
    """Return the step of the evaluation after this one."""
    eval_steps, due = recipe.training.eval_steps, diagnosis_step(recipe)
    regular = (step // eval_steps + 1) * eval_steps
    if step < due:
        return min(regular, due)
    return regular


def plateau_warnings(
    scores: Mapping[str, float], recipe: Recipe, *, step: int, before: Mapping[str, float]
) -> list[str]:
    """Return warnings about networks on the plateau, at the step of the diagnosis, and about one
    that has collapsed since the evaluation `before`.

    The total loss alone does not show it. The end of the run has its own verdict.
    """
    training = recipe.training
    if step == training.max_steps:
        return []
    is_due, warnings = step == diagnosis_step(recipe), []
    for metric in judged_metrics(recipe.objective.metrics()):
        has_collapsed = metric.has_collapsed(scores)
        is_new = has_collapsed and not metric.has_collapsed(before)
        if is_new or (is_due and metric.is_at_baseline(scores)):
            advice = f"If that stays so: {what_to_change(recipe)}"
            if has_collapsed:
                advice = f"Begin again with {remedies_for_collapse(recipe)}; {NO_REVIVAL}"
                if stops_on_collapse(recipe, next_evaluation(recipe, step)):
                    advice += ". The run stops if the next evaluation finds the same"
            warnings.append(
                f"step {step:,}, {step / training.max_steps:.0%} of the run: "
                f"{metric.explain_baseline(scores)}; {describe_score(metric, scores)}. {advice}"
            )
    return warnings


def stops_on_collapse(recipe: Recipe, step: int) -> bool:
    """Return whether a collapse that lasts would stop the run at this step.

    During warm-up, and in a run of a few steps, a small network may hardly have moved. The end of
    the run has its own verdict.
    """
    training = recipe.training
    is_long = training.max_steps >= MIN_DIAGNOSED_STEPS
    is_within = recipe.optimizer.warmup_steps < step < training.max_steps
    return training.stop_on_collapse and is_long and is_within


def lasting_collapse(
    scores: Mapping[str, float], recipe: Recipe, *, step: int, before: Mapping[str, float]
) -> str:
    """Return which network has collapsed in this evaluation and the one `before`; "" if none has,
    or if the run is not to stop for it.
    """
    if not stops_on_collapse(recipe, step):
        return ""
    for metric in judged_metrics(recipe.objective.metrics()):
        if metric.has_collapsed(scores) and metric.has_collapsed(before):
            return f"{metric.explain_baseline(scores)}, as in the evaluation before"
    return ""
