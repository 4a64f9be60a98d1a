"""Bars and sentences that compare the quickstart's fine-tunings."""

from __future__ import annotations

import io
import statistics
import xml.etree.ElementTree
from pathlib import Path

import pytest

from electra.cli.comparison import Finetuned, describe_gain, describe_shipped, print_bars
from electra.cli.show import draw_picture
from electra.console import Terminal
from electra.finetuning.results import SeedResult, Summary
from electra.objectives.trace import TracedToken


def summary(*scores: float, baseline: float = 0.0, sentences: int = 4000) -> Summary:
    runs = []
    for seed, score in enumerate(scores):
        result = SeedResult(
            seed=seed,
            score=score,
            scores={"dev": {"f1": score}},
            baseline=baseline,
            degenerate=False,
            diverged=False,
            steps=sentences // 32,
            micro_batch_size=32,
            seconds=1.0,
        )
        runs.append(result)
    data = {"train": {"examples": sentences}, "dev": {"dev": {"examples": 1700}}}
    return Summary(
        task="tag",
        metric="f1",
        split="dev",
        baseline=baseline,
        median=statistics.median(scores),
        mean=statistics.fmean(scores),
        sd=None,
        best=max(scores),
        runs=runs,
        made={"data": data},
    )


RANDOM = Finetuned("random weights", 2, 64, summary(0.38, 0.37, 0.40))
OWN = Finetuned("pre-trained here", 2, 64, summary(0.46, 0.42, 0.48))


def shipped(*scores: float) -> Finetuned:
    return Finetuned("small-en, shipped", 12, 256, summary(*scores, sentences=1600))


def bars(*compared: Finetuned, width: int = 128) -> list[str]:
    console = Terminal(width=width, file=io.StringIO())
    print_bars(compared, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("pretrained", "words"),
    [
        ((0.60, 0.58, 0.62), "brought 10.0 points"),
        ((0.51, 0.49, 0.53), "made no clear difference"),
        ((0.44, 0.46, 0.20), "cost 6.0 points"),
        ((0.40, 0.38, 0.42), "cost 10.0 points"),
    ],
)
def test_the_comparison_states_a_gain_a_loss_or_no_clear_difference(
    pretrained: tuple[float, ...], words: str
) -> None:
    assert words in describe_gain(summary(*pretrained), summary(0.50, 0.48, 0.52))


@pytest.mark.parametrize(
    ("score", "words"),
    [(0.60, "14.0 points more"), (0.45, "no clear difference"), (0.30, "16.0 points less")],
)
def test_the_shipped_model_may_be_better_worse_or_neither(score: float, words: str) -> None:
    sentence = describe_shipped(shipped(score), OWN)
    assert sentence.startswith(f"small-en, shipped: {words}")
    for difference in ("12 layers, width 256", "1,600 sentences, 50 steps", "4,000 sentences"):
        assert difference in sentence


def test_a_bar_is_as_long_as_the_median_and_every_seed_has_a_dot() -> None:
    title, *rows = bars(RANDOM, OWN, shipped(0.80))  # 80 columns for 80 points
    assert "F1 on the same 1,700 sentences" in title
    first, second, third = rows[0], rows[4], rows[8]
    assert (first.count("█"), second.count("█"), third.count("█")) == (38, 46, 80)
    assert [first[:14], second[:16], third[:17]] == [
        one.weights for one in (RANDOM, OWN, shipped(1))
    ]
    assert [row.split()[-1] for row in (first, second, third)] == ["38.0", "46.0", "80.0"]
    axis = rows[6].index("│")
    assert [place - axis for place, mark in enumerate(rows[6]) if mark == "●"] == [42, 46, 48]
    assert rows[6].endswith("46.0, 42.0, 48.0")
    assert rows[10].startswith("1,600 sentences, 50 steps")
    assert rows[10].endswith("● one seed")


def test_the_baseline_has_a_row_of_its_own() -> None:
    assert bars(RANDOM, OWN)[-1].split() == ["always", "the", "same", "answer", "│", "0.0"]
    half = Finetuned("random weights", 2, 64, summary(0.6, baseline=0.5))
    assert "█" in bars(half)[-1]


@pytest.mark.parametrize("width", [20, 80, 100])
def test_bars_fit_in_the_terminal(width: int) -> None:
    _, *rows = bars(RANDOM, OWN, shipped(0.0), width=width)
    assert max(map(len, rows)) <= width


def test_scores_of_zero_are_drawn() -> None:
    assert "0.0" in bars(Finetuned("random weights", 2, 64, summary(0.0, 0.0)))[1]


def test_the_picture_shows_the_bars_below_the_sentence(tmp_path: Path) -> None:
    token = TracedToken("the", "the", None, "the", 0.1)
    path = tmp_path / "picture.svg"
    draw_picture([token], path, compared=[RANDOM, OWN, shipped(0.6)])
    texts = [
        text for text in xml.etree.ElementTree.parse(path).getroot().itertext() if text.strip()
    ]
    shown = "\n".join(texts).replace("\xa0", " ")
    labels = ["original", "random weights", "pre-trained here", "small-en, shipped", "always the"]
    places = [shown.index(label) for label in labels]
    assert places == sorted(places)
