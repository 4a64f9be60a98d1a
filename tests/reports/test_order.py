"""What a report says of the order of the arms."""

from __future__ import annotations

from electra.reports.order import conclusion, order_section
from tests.experiments import invented
from tests.reports.text import text_of


def test_a_contradiction_is_said_plainly():
    assert conclusion(invented.efficiency()) == (
        "Of all 10 pairs of arms that the paper ranks, 7 came out as published, 2 against it, 1 "
        "within 2 standard "
        "errors. Spread aside, 8 of the 9 that the paper tells apart lie in its direction. This "
        "run contradicts the "
        "paper's order: Replace MLM is not equal to ELECTRA 15 % (-1.9); Replace MLM is not above "
        "BERT (-1.8)."
    )


def test_one_seed_establishes_nothing_and_the_report_says_so():
    findings = invented.efficiency(seeds=1)
    assert "With one seed no spread is known, and no order is established." in text_of(
        order_section(findings)
    )
    assert conclusion(findings).endswith(
        "Nothing here contradicts the paper, and nothing confirms it."
    )


def test_arms_that_have_learnt_nothing_are_named():
    text = text_of(
        order_section(invented.efficiency(means={**invented.MEANS, "bert": 50.6, "replace": 50.4}))
    )
    assert (
        "At the baseline:** Replace MLM, BERT: less than a point above an answer that "
        "ignores the text" in text
    )
    assert "At the baseline" not in text_of(order_section(invented.efficiency()))


def test_a_comparison_with_an_arm_that_has_learnt_nothing_counts_neither_for_nor_against():
    findings = invented.efficiency(means={**invented.MEANS, "replace": 50.4})
    text = text_of(order_section(findings))
    assert "Says nothing:** All-Tokens MLM is" in text
    assert "but Replace MLM is at the baseline; the paper has All-Tokens MLM above" in text
    assert (
        "Of all 10 pairs of arms that the paper ranks, 5 came out as published, 0 against it"
        in text
    )
    assert "and 4 with an arm at the baseline" in text
    assert "Nothing here contradicts the paper" in text


def test_two_seeds_are_few_and_the_report_says_how_few():
    text = text_of(order_section(invented.efficiency()))
    assert (
        "two arms that do not differ would come out as > in 19% to 29% of such comparisons" in text
    )
    assert "and 10 are made here" in text
