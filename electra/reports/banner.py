"""The banner of a trial: at what scale and budget its numbers were made, and from how much text."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from electra.experiments.budget import is_named_recipe
from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import load_scale
from electra.reports.blocks import Banner
from electra.reports.missing import is_started
from electra.reports.numbers import as_count, as_range
from electra.reports.samples import findings_of

SCHEDULE = (
    "Every schedule is fresh and fully decayed: an arm warms up and decays to zero within its own "
    "steps. None is a checkpoint on the way of a longer run."
)
PUBLISHED = (
    "Published values stand beside ours for their order, not for their height: they were made with "
    "the paper's networks, corpus and budget."
)
# The facts of a corpus: key, and the sentence part that holds its number.
CORPUS_FACTS = {
    "tokens": "{:,} tokens",
    "rows": "{:,} rows",
    "vocabulary": "vocabulary of {:,}",
    "length": "rows of at most {:,}",
}


def banner(findings: Findings) -> Banner:
    """Return the banner of a trial."""
    is_paper_scale = findings.scale == load_scale("paper") and findings.budget in ("1", "1/1")
    changed = changed_arms(findings, is_paper_scale)
    lines = [describe_scale(findings), describe_corpus(findings), SCHEDULE]
    by_flops = [arm for arm in findings.trial.runnable_arms() if arm.compute == "reference"]
    if by_flops:
        labels = ", ".join(arm.label for arm in by_flops)
        steps = "Steps by FLOPs"
        if findings.trial.has_published:
            steps = "Our steps, not the published ones"
        lines.append(
            f"{steps}: {labels}. Each of these arms takes as many steps as give it the FLOPs of "
            "the arm that it is compared with, by the standard count."
        )
    if findings.trial.has_published and (changed or not is_paper_scale):
        lines.append(PUBLISHED)
    if findings.trial.caveat:
        lines.append(findings.trial.caveat)
    if not findings.trial.is_built_in:
        return Banner("A trial of our own, which the paper does not have", lines)
    return Banner(headline(is_paper_scale, changed), lines)


def changed_arms(findings: Findings, is_paper_scale: bool) -> list[str]:
    """Return the labels of arms that were run and are not the recipe they name."""
    labels = []
    for arm in findings.trial.runnable_arms():
        if not findings_of(findings, arm):
            continue
        is_recipe = is_paper_scale and is_named_recipe(
            findings.trial, arm, findings.scale, budget=Fraction(1)
        )
        if not is_recipe:
            labels.append(arm.label)
    return labels


def headline(is_paper_scale: bool, changed: Sequence[str]) -> str:
    if not is_paper_scale:
        return "These are not the paper's numbers, and cannot be at this scale and budget"
    if changed:
        labels = ", ".join(changed)
        return f"These are not the paper's numbers: settings or steps are ours for {labels}"
    return "The paper's settings on our corpus"


def describe_scale(findings: Findings) -> str:
    steps = "steps"
    if findings.scale.steps:
        steps = f"{findings.scale.steps:,} steps"
    return (
        f"Scale {findings.scale.name}: {findings.scale.title}. Budget {findings.budget}, as a "
        f"share of that scale's {steps}."
    )


def describe_corpus(findings: Findings) -> str:
    """Return how much text an arm saw, and how often the same."""
    corpus = findings.corpus
    known = [key for key in CORPUS_FACTS if isinstance(corpus.get(key), int)]
    facts = [CORPUS_FACTS[key].format(corpus[key]) for key in known]
    text = f"Corpus: {', '.join(facts) or 'unknown'}."
    run = counted(findings)
    if not run:
        return f"{text} Nothing was run yet."
    tokens = sorted(finding.tokens for finding in run)
    seen = as_range(as_count(tokens[0]), as_count(tokens[-1]))
    return f"Each arm saw {seen} tokens{describe_epochs(tokens, corpus.get('tokens'))}. {text}"


def counted(findings: Findings) -> list[Finding]:
    """Return the findings that are done; where there is none, those that were started."""
    done = [finding for finding in findings.results if finding.done]
    return done or [finding for finding in findings.results if is_started(finding)]


def describe_epochs(tokens_seen: Sequence[int], tokens: object) -> str:
    if not isinstance(tokens, int) or tokens <= 0:
        return ""
    fewest, most = (f"{seen / tokens:.2g}" for seen in (tokens_seen[0], tokens_seen[-1]))
    return f", {as_range(fewest, most)} epochs"
