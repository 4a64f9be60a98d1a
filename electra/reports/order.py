"""The section of a report on the order of the arms: ours against the published one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from electra.experiments.findings import Findings
from electra.reports.blocks import Block, Bullets, Paragraph
from electra.reports.comparison import (
    Pair,
    compare_arms,
    describe_gaps,
    describe_peaks,
    found_order,
    published_order,
)
from electra.reports.numbers import as_range
from electra.reports.samples import arms_at_baseline, averages, shared_tasks


def order_section(findings: Findings) -> Iterator[Block]:
    """Yield the order found and the order published, pair by pair, and contradictions as such."""
    if not averages(findings):
        yield Paragraph(
            "No arm is done and scored on a task, so that nothing can be said of their order."
        )
        return
    is_figure = any(arm.x is not None for arm in findings.trial.arms)
    if findings.trial.expected or not is_figure:
        orders = [("Found:", found_order(findings))]
        if findings.trial.has_published:
            published = published_order(findings.trial) or "no order of these arms"
            orders.append(("Published:", published))
        yield Bullets(orders)
    yield Paragraph(legend(findings))
    at_baseline = ", ".join(arm.label for arm in arms_at_baseline(findings))
    if at_baseline:
        text = (
            f"{at_baseline}: less than a point above an answer that ignores the text, so that a "
            "comparison with them says nothing."
        )
        yield Bullets([("At the baseline:", text)])
    pairs = compare_arms(findings)
    if pairs:
        yield Bullets([(f"{pair.outcome.capitalize()}:", f"{pair}.") for pair in pairs])
    sentences = [*describe_gaps(findings), *describe_peaks(findings)]
    if sentences:
        yield Bullets([("", f"{sentence}.") for sentence in sentences])
    if findings.trial.expected:
        yield Paragraph(conclusion(findings))


def legend(findings: Findings) -> str:
    """Return how to read the signs, and how much they are worth with so few seeds."""
    counts = {sample.seeds for sample in averages(findings).values()}
    text = (
        f"Compared by {', '.join(shared_tasks(findings))}. > is a difference of more than 2 "
        "standard errors"
    )
    if max(counts) > 1:
        text += ", ≈ a smaller one"
    if 1 in counts:
        text += ", >? one whose spread is not known, because an arm has a single seed"
    several = [count for count in counts if count > 1]
    if not several:
        return f"{text}. With one seed no spread is known, and no order is established."
    text += f". With n={min(several)} the spread itself is uncertain"
    pairs = compare_arms(findings, only_neighbours=False)
    rates = sorted(pair.false_positive_rate for pair in pairs if pair.error is not None)
    if rates:
        share = as_range(f"{rates[0]:.0%}", f"{rates[-1]:.0%}")
        text += (
            f": two arms that do not differ would come out as > in {share} of such comparisons, "
            f"depending on how unlike their spreads are, and {len(rates)} are made here"
        )
    return f"{text}."


def conclusion(findings: Findings) -> str:
    """Return the sentences for a reader who reads nothing else."""
    pairs = compare_arms(findings, only_neighbours=False)
    if not pairs:
        return (
            "Fewer than two of the arms that the paper orders were scored, so that its order was "
            "not tested."
        )
    text = f"{describe_outcomes(pairs)}. {describe_direction(pairs)}"
    against = [pair for pair in pairs if pair.outcome == "contradicts the paper"]
    if against:
        contradictions = "; ".join(map(describe_contradiction, against))
        return f"{text} This run contradicts the paper's order: {contradictions}."
    if any(pair.outcome == "as published" for pair in pairs):
        return f"{text} Nothing here contradicts the paper."
    return f"{text} Nothing here contradicts the paper, and nothing confirms it."


def describe_outcomes(pairs: Sequence[Pair]) -> str:
    """Return how many pairs came out in which way."""
    counts = Counter(pair.outcome for pair in pairs)
    text = (
        f"Of all {len(pairs)} pairs of arms that the paper ranks, {counts['as published']} came "
        f"out as published, {counts['contradicts the paper']} against it, "
        f"{counts['not decided']} within 2 standard errors"
    )
    if counts["no spread known"]:
        text += f", {counts['no spread known']} without a known spread"
    if counts["says nothing"]:
        text += f", and {counts['says nothing']} with an arm at the baseline"
    return text


def describe_direction(pairs: Sequence[Pair]) -> str:
    """Return how many pairs lie in the paper's direction, whatever their spread."""
    above_baseline = [pair for pair in pairs if not pair.at_baseline]
    apart = [pair for pair in above_baseline if not pair.is_tie]
    others = ""
    if len(above_baseline) < len(pairs):
        others = " others"
    same = sum(pair.difference > 0 for pair in apart)
    return (
        f"Spread aside, {same} of the {len(apart)}{others} that the paper tells apart lie in its "
        "direction."
    )


def describe_contradiction(pair: Pair) -> str:
    relation = "above"
    if pair.is_tie:
        relation = "equal to"
    return f"{pair.better.label} is not {relation} {pair.worse.label} ({pair.difference:+.1f})"
