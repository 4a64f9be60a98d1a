"""Ours beside theirs, with seeds and spread: a folder with a Markdown page, an HTML page, figures,
and the data.

Whoever reads a number here must see at what scale and budget it was made. So a banner comes first,
published values are labelled wherever they stand, and contradictions are said in words.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from electra import atomic
from electra.config import UserError, build
from electra.experiments import findings_file
from electra.experiments.budget import is_named_recipe
from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm, load_scale
from electra.model.flops import encoder_parameters
from electra.model.shape import EncoderShape
from electra.reports import ordering, plateau, plots, provenance
from electra.reports.page import (
    Banner,
    Block,
    Bullets,
    Contents,
    Grid,
    Heading,
    Paragraph,
    Picture,
    html,
    markdown,
)

TITLE = "Trials: ours beside the paper's"
INSTALL = "pip install 'electra[plots]'"
NOTHING = "–"
LEARNED = (
    "Each network's own loss on held-out rows at the end: mean ± standard deviation over seeds. "
    "100 % is the "
    "plateau, where a network knows how frequent things are and no more; it has left where its "
    "loss stays below "
    f"{100 * plateau.LEFT:.0f} %. Losses of different tasks do not compare, nor do those of "
    "discriminators with "
    "different generators."
)
GENERATOR = {
    "eval_mlm_accuracy": "generator accuracy, points",
    "eval_generator_entropy": "generator entropy, nats",
}


def report(several: Sequence[Findings], folder: Path) -> list[Path]:
    """Write the report; the pages come last, so that what they refer to is there."""
    if not several:
        raise UserError("there are no findings to report; `electra trials run` makes some")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--to {folder} is a file; name a folder")
    several = [findings_file.condense(findings) for findings in several]
    blocks = list(whole(several))
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        folder / f"{block.name}.svg": block.svg for block in blocks if isinstance(block, Picture)
    }
    written |= {
        folder / "index.md": markdown(blocks),
        folder / "index.html": html(blocks, title=TITLE),
    }
    findings_file.save(several, folder / findings_file.FILE)
    for path, text in written.items():
        atomic.write(path, text)
    return [folder / findings_file.FILE, *written]


def whole(several: Sequence[Findings]) -> Iterator[Block]:
    yield Heading(1, TITLE)
    yield Paragraph(
        "Experiments of the ELECTRA paper, run by electra trials run. Scores are in points: for "
        "each "
        "pre-trained network the median over its fine-tuning seeds, then mean ± standard "
        "deviation over n "
        "pre-training seeds. What is labelled published is the paper's, or of the source that it "
        "names."
    )
    if not plots.is_available():
        yield Paragraph(
            f"Without figures: matplotlib is not installed ({INSTALL}). The numbers are all here."
        )
    yield Contents([(heading(findings), slug(findings)) for findings in several])
    for findings in several:
        yield from chapter(findings)


def chapter(findings: Findings) -> Iterator[Block]:
    yield Heading(2, heading(findings), anchor=slug(findings))
    yield Paragraph(f"{findings.trial.question} (Source: {findings.trial.source}.)")
    yield banner(findings)
    yield Heading(3, "Scores")
    yield scores(findings)
    if findings.tasks:
        yield Paragraph(how_scored(findings))
    if rows := plateau.rows(findings):
        yield Heading(3, "What pre-training came to")
        yield Grid(
            [
                "arm",
                "task",
                "loss",
                "of an answer that ignores the text",
                "share of that, %",
                "left the plateau at step",
                "AUC",
            ],
            rows,
        )
        yield Paragraph(LEARNED)
    yield Heading(3, "The order of the arms")
    yield from order(findings)
    yield Heading(3, "Cost")
    yield costs(findings)
    if (
        most := max(
            (finding.provenance.get("concurrency") or 1 for finding in findings.results), default=1
        )
    ) > 1:
        yield Paragraph(
            f"Minutes are by the clock, while up to {most} runs shared the machine: they say more "
            "of its "
            "load than of an arm."
        )
    if notes := [(f"{arm.label}:", arm.note) for arm in findings.trial.arms if arm.note]:
        yield Bullets(notes)
    pictures = list(plots.draw(findings, slug(findings))) if plots.is_available() else []
    if pictures:
        yield Heading(3, "Figures")
        yield from pictures
    yield from provenance.missing(findings)
    yield from provenance.settings(findings)
    yield from provenance.environment(findings)


def heading(findings: Findings) -> str:
    return f"{findings.trial.title} ({findings.scale.name} scale, budget {findings.budget})"


def slug(findings: Findings) -> str:
    """Also the beginning of file names, so nothing that a path or an address would take for its
    own.
    """
    parts = (findings.trial.name, findings.scale.name, findings.budget.replace("/", "of"))
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")


def banner(findings: Findings) -> Banner:
    is_whole = findings.scale == load_scale("paper") and findings.budget in ("1", "1/1")
    own = [
        arm.label
        for arm in findings.trial.runnable_arms()
        if ordering.of_arm(findings, arm)
        and not (
            is_whole and is_named_recipe(findings.trial, arm, findings.scale, budget=Fraction(1))
        )
    ]
    ran = [finding for finding in findings.results if finding.done] or list(
        filter(provenance.started, findings.results)
    )
    size = (
        f"Scale {findings.scale.name}: {findings.scale.title}. Budget {findings.budget}, as "
        "a share of that scale's "
        f"{f'{findings.scale.steps:,} ' if findings.scale.steps else ''}steps."
    )
    lines = [
        size,
        corpus(findings, ran),
        "Every schedule is fresh and fully decayed: an arm warms up and decays to zero within its "
        "own steps. None "
        "is a checkpoint on the way of a longer run.",
    ]
    if given := [arm.label for arm in findings.trial.runnable_arms() if arm.compute == "reference"]:
        lines.append(
            f"Steps of ours, and not the published ones: {', '.join(given)}. So many give an arm "
            "the "
            "operations of the one it is compared with, by the standard count of FLOPs."
        )
    if own or not is_whole:
        lines.append(
            "Published values stand beside ours for their order, not for their height: they were "
            "made with "
            "the paper's networks, corpus and budget."
        )
    if findings.trial.caveat:
        lines.append(findings.trial.caveat)
    return Banner(headline(is_whole, own), lines)


def headline(is_whole: bool, own: Sequence[str]) -> str:
    """`own` are the arms that are not the recipe they name."""
    if not is_whole:
        return "These are not the paper's numbers, and cannot be at this scale and budget"
    if own:
        return f"These are not the paper's numbers: settings or steps are ours for {', '.join(own)}"
    return "The paper's settings on a corpus of ours"


def corpus(findings: Findings, ran: Sequence[Finding]) -> str:
    """How much text an arm saw, and how often the same."""
    about = findings.corpus
    facts = [
        f"{about[key]:,} {word}" if isinstance(about.get(key), int) else ""
        for key, word in (("tokens", "tokens"), ("rows", "rows"))
    ]
    facts += [
        f"{word} {about[key]:,}" if isinstance(about.get(key), int) else ""
        for key, word in (("vocabulary", "vocabulary of"), ("length", "rows of at most"))
    ]
    text = f"Corpus: {', '.join(fact for fact in facts if fact) or 'unknown'}."
    if not ran:
        return f"{text} Nothing was run yet."
    seen = sorted(finding.tokens for finding in ran)
    each = " to ".join(dict.fromkeys((count(seen[0]), count(seen[-1]))))
    return f"Each arm saw {each} tokens{epochs(seen, about.get('tokens'))}. {text}"


def epochs(seen: Sequence[int], tokens: object) -> str:
    if not isinstance(tokens, int) or tokens <= 0:
        return ""
    times = " to ".join(dict.fromkeys(f"{number / tokens:.2g}" for number in (seen[0], seen[-1])))
    return f", {times} epochs"


# ---- tables --------------------------------------------------------------------------------------


def scores(findings: Findings) -> Grid:
    """Ours by task and on average, then what was published, in columns that say so."""
    trial, means = findings.trial, averaged(findings)
    metrics = {score.task: score.metric for finding in findings.results for score in finding.scores}
    head = ["arm", *(f"{task} {metrics.get(task, '')}".strip() for task in findings.tasks)]
    head += [f"average of {len(tasks)}" for tasks in means]
    columns = [
        column for column in trial.columns if any(column in arm.published for arm in trial.arms)
    ]
    guesses = (
        {name: found for name in GENERATOR if (found := generators(findings, name))}
        if "generator accuracy" in trial.columns
        else {}
    )
    rows = []
    for arm in trial.arms:
        cells = [ordering.points(ordering.of_arm(findings, arm), task) for task in findings.tasks]
        cells += [ordering.averages(findings, tasks).get(arm.name) for tasks in means]
        rows.append(
            [
                arm.label if arm.stages else f"{arm.label} (published only)",
                *(str(cell) if cell else NOTHING for cell in cells),
                *(found.get(arm.name, NOTHING) for found in guesses.values()),
                *(published(arm, column) for column in columns),
            ]
        )
    levels = [ordering.baseline(findings, task) for task in findings.tasks]
    if any(level is not None for level in levels):
        levels += [ordering.baseline(findings, *tasks) for tasks in means]
        shown = [NOTHING if level is None else f"{level:.1f}" for level in levels]
        shown += [guessed(findings) if name == "eval_mlm_accuracy" else "" for name in guesses]
        rows.append(["an answer that ignores the text", *shown, *[""] * len(columns)])
    head += [f"held-out rows of ours: {GENERATOR[name]}" for name in guesses]
    return Grid([*head, *(f"published: {column}" for column in columns)], rows)


def how_scored(findings: Findings) -> str:
    """How networks were fine-tuned, and how often each."""
    how = findings.scale.evaluation
    own = {
        f"{task}: {key}": value
        for task, settings in how.settings_of.items()
        for key, value in settings.items()
    }
    settings = ", ".join(f"{key} = {value}" for key, value in {**how.settings, **own}.items())
    scores = [score for finding in findings.results for score in finding.scores]
    seeds = sorted({len(score.values) for score in scores})
    times = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))) if seeds else "no"
    spreads = {
        task: statistics.fmean(found)
        for task in findings.tasks
        if (
            found := [
                100 * statistics.stdev(score.values)
                for score in scores
                if score.task == task and len(score.values) > 1
            ]
        )
    }
    within = ", ".join(f"{spread:.1f} on {task}" for task, spread in spreads.items())
    return (
        f"Fine-tuned by recipe {how.recipe}{f' with {settings}' if settings else ''}; {times} "
        "fine-tuning "
        f"seed{'' if seeds == [1] else 's'} for each pre-trained network; scored on dev sets."
        + (
            " Between the fine-tuning seeds of one network the standard deviation is, in points "
            "and on average, "
            f"{within}."
            if within
            else ""
        )
    )


def generators(findings: Findings, measure: str) -> dict[str, str]:
    """By arm, at the end of the runs that have ended. A masked LM measures its own words, and is no
    generator.
    """
    shown = {}
    for arm in findings.trial.arms:
        entries = [
            [entry for entry in finding.journal if entry.get("eval_generator_entropy") is not None]
            for finding in ordering.of_arm(findings, arm)
            if finding.steps == finding.max_steps
        ]
        if values := [
            each[-1][measure] for each in entries if each and each[-1].get(measure) is not None
        ]:
            factor = 100 if measure == "eval_mlm_accuracy" else 1
            shown[arm.name] = str(ordering.Sample(tuple(factor * value for value in values)))
    return shown


def guessed(findings: Findings) -> str:
    """What guessing the commonest word gets where a generator is measured, in points."""
    known = [
        100 * entry["eval_baseline_mlm_accuracy"]
        for finding in findings.results
        for entry in finding.journal
        if entry.get("eval_generator_entropy") is not None
        and entry.get("eval_baseline_mlm_accuracy") is not None
    ]
    return f"{statistics.fmean(known):.1f}" if known else ""


def averaged(findings: Findings) -> list[Sequence[str]]:
    """The tasks to average over: those that arms share, then all of them, where these are several
    and not the same.
    """
    several = (ordering.shared_tasks(findings), list(findings.tasks))
    return [tasks for i, tasks in enumerate(several) if len(tasks) > 1 and tasks not in several[:i]]


def published(arm: Arm, column: str) -> str:
    value = arm.published.get(column)
    if value is None:
        return NOTHING
    return (
        f"{value:g}".replace("e+", "e") if isinstance(value, float) and value >= 1e6 else str(value)
    )


def costs(findings: Findings) -> Grid:
    """Means over the seeds that are done; where none is, over those that were begun."""
    rows, seeds = [], len({finding.seed for finding in findings.results})
    for arm in findings.trial.arms:
        found = [
            finding for finding in ordering.of_arm(findings, arm) if provenance.started(finding)
        ]
        done = [finding for finding in found if finding.done]
        counted = done or found
        if not counted:
            continue
        mean = {
            name: statistics.fmean(getattr(finding, name) for finding in counted)
            for name in ("flops", "official_flops", "minutes", "steps", "tokens")
        }
        size = findings.corpus.get("tokens")
        rows.append(
            [
                arm.label,
                weights(counted, findings),
                f"{len(done)} of {seeds}",
                power(mean["flops"]),
                power(mean["official_flops"]),
                f"{mean['minutes']:.3g}",
                f"{mean['steps']:,.0f}",
                count(mean["tokens"]),
                f"{mean['tokens'] / size:.2g}" if size else NOTHING,
            ]
        )
    return Grid(
        [
            "arm",
            "parameters",
            "seeds done",
            "FLOPs, standard",
            "FLOPs, official script's",
            "minutes",
            "steps",
            "tokens",
            "epochs",
        ],
        rows,
    )


def weights(found: Sequence[Finding], findings: Findings) -> str:
    """How many the network has that is fine-tuned; generators and heads are not counted."""
    recipes, words = (
        [finding.provenance.get("recipe") for finding in found],
        findings.corpus.get("vocabulary"),
    )
    shapes = [
        build(EncoderShape, recipe["encoder"], source="recipe")
        for recipe in recipes
        if isinstance(recipe, dict) and isinstance(recipe.get("encoder"), dict)
    ]
    if not shapes or not isinstance(words, int):
        return NOTHING
    return " to ".join(dict.fromkeys(count(encoder_parameters(shape, words)) for shape in shapes))


def power(number: float) -> str:
    """1.23e15: of operations, a power of ten is what a reader compares."""
    return re.sub(r"e\+?0*(?=\d)", "e", f"{number:.2e}")


def count(number: float) -> str:
    return f"{number / 1e6:,.1f}M" if number >= 1e6 else f"{number:,.0f}"


# ---- the claim -----------------------------------------------------------------------------------


def order(findings: Findings) -> Iterator[Block]:
    """The order found against the order published, pair by pair, and contradictions as such."""
    samples = ordering.averages(findings)
    if not samples:
        yield Paragraph(
            "No arm is done and scored on a task, so that nothing can be said of their order."
        )
        return
    is_figure = any(arm.x is not None for arm in findings.trial.arms)
    if findings.trial.expected or not is_figure:
        yield Bullets(
            [
                ("Found:", ordering.found_order(findings)),
                (
                    "Published:",
                    ordering.published_order(findings.trial) or "no order of these arms",
                ),
            ]
        )
    yield Paragraph(legend(findings))
    if at_baseline := ordering.at_baseline(findings):
        named = ", ".join(arm.label for arm in at_baseline)
        yield Bullets(
            [
                (
                    "At the trivial level:",
                    f"{named}: less than a point above an answer that ignores the text, "
                    "so that a comparison with them says nothing.",
                )
            ]
        )
    if pairs := ordering.pairs(findings):
        yield Bullets([(f"{pair.verdict.capitalize()}:", f"{pair}.") for pair in pairs])
    if sentences := [*ordering.gaps(findings), *ordering.peaks(findings)]:
        yield Bullets([("", f"{sentence}.") for sentence in sentences])
    if findings.trial.expected:
        yield Paragraph(verdict(findings))


def legend(findings: Findings) -> str:
    """How to read the signs, and how much they are worth with so few seeds."""
    counts = {sample.seeds for sample in ordering.averages(findings).values()}
    text = (
        f"Compared by {', '.join(ordering.shared_tasks(findings))}. "
        "> is a difference of more than 2 standard errors"
    )
    text += ", ≈ a smaller one" if max(counts) > 1 else ""
    text += (
        ", >? one whose spread is not known, because an arm has a single seed"
        if 1 in counts
        else ""
    )
    fewest = min((count for count in counts if count > 1), default=None)
    if fewest is None:
        return text + ". With one seed no spread is known, and no order is established."
    text += f". With n={fewest} the spread itself is uncertain"
    if chances := sorted(
        pair.chance for pair in ordering.pairs(findings, neighbours=False) if pair.error is not None
    ):
        share = " to ".join(dict.fromkeys(f"{chance:.0%}" for chance in (chances[0], chances[-1])))
        text += (
            f": two arms that do not differ would come out as > in {share} of such comparisons, "
            "depending on how "
            f"unlike their spreads are, and {len(chances)} are made here"
        )
    return text + "."


def verdict(findings: Findings) -> str:
    """The sentence for whoever reads only one."""
    pairs = ordering.pairs(findings, neighbours=False)
    if not pairs:
        return "Fewer than two of the arms that the paper orders were scored, so that its order was not tested."
    counts = Counter(pair.verdict for pair in pairs)
    against = [pair for pair in pairs if pair.verdict == "contradicts the paper"]
    agreed = counts["as published"]
    text = (
        f"Of all {len(pairs)} pairs of arms that the paper ranks, {agreed} came out as published, "
        f"{len(against)} "
        f"against it, {counts['not decided']} within 2 standard errors"
    )
    text += (
        f", {counts['no spread known']} without a known spread" if counts["no spread known"] else ""
    )
    text += (
        f", and {counts['says nothing']} with an arm at the trivial level"
        if counts["says nothing"]
        else ""
    )
    apart = [pair for pair in pairs if not pair.is_tie and not pair.at_baseline]
    text += (
        f". Spread aside, {sum(pair.difference > 0 for pair in apart)} of the {len(apart)}"
        f"{' others' if counts['says nothing'] else ''} that the paper tells apart lie in its "
        "direction."
    )
    if not against:
        return (
            text
            + " Nothing here contradicts the paper"
            + ("." if agreed else ", and nothing confirms it.")
        )
    named = "; ".join(
        f"{pair.better.label} is not {'equal to' if pair.is_tie else 'above'} {pair.worse.label} "
        f"({pair.difference:+.1f})"
        for pair in against
    )
    return f"{text} This run contradicts the paper's order: {named}."
