from __future__ import annotations

from dataclasses import replace

import pytest

from electra.reports.comparison import (
    Pair,
    compare_arms,
    describe_gaps,
    describe_peaks,
    found_order,
    published_order,
)
from electra.reports.samples import Sample, average, averages, ranking_column, shared_tasks
from tests.experiments import invented

ELECTRA, BERT = invented.ARMS[0], invented.ARMS[4]


def pair(better: tuple[float, ...], worse: tuple[float, ...], *, is_tie: bool = False) -> Pair:
    return Pair(better=ELECTRA, worse=BERT, ours=(Sample(better), Sample(worse)), is_tie=is_tie)


def test_a_sample_shows_its_mean_its_spread_and_how_many_seeds_it_has():
    assert str(Sample((70.0, 72.0))) == "71.0 ± 1.4 (n=2)"
    assert str(Sample((70.0,))) == "70.0 (n=1)"


def test_a_difference_of_more_than_two_standard_errors_confirms_or_contradicts():
    low, high = (70.0, 71.0), (72.0, 73.0)  # sd √½ each, so 2 standard errors are 2·√½ = 1.41
    assert pair(high, low).error == pytest.approx(0.5**0.5)
    assert pair(high, low).outcome == "as published"
    assert pair(low, high).outcome == "contradicts the paper"


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        (1.5, "not decided"),
        (1.99, "not decided"),
        (2.01, "as published"),
        (-1.5, "not decided"),
        (-2.01, "contradicts the paper"),
    ],
)
def test_two_standard_errors_are_the_border(errors, outcome):
    low = (70.0, 72.0)  # sd √2 and n=2 each, so the standard error of the difference is √(1 + 1)
    assert pair(tuple(value + errors * 2**0.5 for value in low), low).outcome == outcome


def test_a_difference_within_two_standard_errors_decides_nothing():
    assert pair((70.0, 72.0), (71.0, 72.0)).outcome == "not decided"
    assert "within 2 standard errors" in str(pair((70.0, 72.0), (71.0, 72.0)))


def test_arms_with_one_score_are_level():
    assert str(pair((70.0, 72.0), (71.0, 71.0))).startswith(
        "ELECTRA is level with BERT, within 2 standard errors"
    )


def test_with_one_seed_no_spread_is_known_whatever_the_difference():
    alone = pair((80.0,), (60.0, 61.0))
    assert alone.outcome == "no spread known"
    assert str(alone) == (
        "ELECTRA is 19.5 points above BERT; ELECTRA ran with one seed, so no spread is known and "
        "nothing follows; the paper has ELECTRA above"
    )


def test_arms_that_were_published_as_equal_contradict_when_they_are_surely_apart():
    assert pair((72.0, 73.0), (70.0, 71.0), is_tie=True).outcome == "contradicts the paper"
    assert pair((72.0, 73.0), (72.0, 73.0), is_tie=True).outcome == "not decided"


def test_the_order_found_is_written_with_what_is_sure_and_what_is_not():
    order = found_order(invented.efficiency())
    assert order.startswith("ELECTRA > All-Tokens MLM ≈ Adversarial ELECTRA > ")
    assert order.endswith("ELECTRA 15 % ≈ BERT > Replace MLM")


def test_the_order_published_has_equal_arms_as_equal():
    assert (
        published_order(invented.EFFICIENCY)
        == "ELECTRA > All-Tokens MLM > Replace MLM = ELECTRA 15 % > BERT"
    )


def test_a_seed_that_misses_a_task_has_no_average():
    findings = invented.efficiency()
    first, *rest = findings.results
    assert average(replace(first, scores=first.scores[:1]), findings.tasks) is None
    some = replace(findings, results=[replace(first, scores=first.scores[:1], done=False), *rest])
    assert averages(some)["electra"].seeds == 1


def test_pairs_skip_arms_that_were_not_scored():
    findings = invented.efficiency()
    without = replace(
        findings, results=[finding for finding in findings.results if finding.arm != "replace"]
    )
    named = [(pair.better.name, pair.worse.name) for pair in compare_arms(without)]
    assert named == [
        ("electra", "all-tokens"),
        ("all-tokens", "electra-15"),
        ("electra-15", "bert"),
    ]


@pytest.mark.parametrize(
    ("ours", "chance"),
    [
        (((1.0, 3.0), (5.0, 7.0)), 0.184),  # Student's t with 2 degrees of freedom, beyond ±2
        (((1.0, 3.0), (5.0, 5.0)), 0.295),  # one degree: the spread is that of one arm alone
        (((5.0, 5.0), (5.0, 5.0)), 0.184),
        (((1.0, 3.0) * 100, (1.0, 3.0) * 100), 0.046),
    ],
)
def test_two_equal_arms_with_two_seeds_each_look_apart_in_a_fifth_of_cases_or_more(ours, chance):
    first, second = (Sample(values) for values in ours)
    pair = Pair(better=invented.ARMS[0], worse=invented.ARMS[1], ours=(first, second))
    assert pair.false_positive_rate == pytest.approx(chance, abs=0.001)


def test_the_average_is_the_published_column_that_ranks():
    assert ranking_column(replace(invented.EFFICIENCY, columns=("CoLA", "GLUE", "FLOPs"))) == "GLUE"
    unranked = tuple(replace(arm, published={}) for arm in invented.ARMS)
    assert (
        ranking_column(replace(invented.EFFICIENCY, columns=("generator accuracy",), arms=unranked))
        is None
    )


def test_arms_are_compared_by_the_tasks_that_all_of_them_have():
    findings = invented.efficiency()
    more = replace(findings.results[0].scores[0], task="glue/rte")
    some = replace(
        findings,
        tasks=(*findings.tasks, "glue/rte"),
        results=[
            replace(finding, scores=[*finding.scores, more])
            if finding.arm == "electra"
            else finding
            for finding in findings.results
        ],
    )
    assert shared_tasks(some) == ["glue/sst-2", "glue/qnli"]
    assert averages(some) == averages(findings)
    assert list(averages(some, some.tasks)) == ["electra"]


def test_a_run_that_was_never_to_be_scored_takes_no_task_from_the_others():
    findings = invented.efficiency()
    first, *rest = findings.results
    assert shared_tasks(replace(findings, results=[replace(first, scores=[]), *rest])) == list(
        findings.tasks
    )


def test_a_figure_says_where_each_of_its_lines_is_highest():
    first, *_ = describe_peaks(invented.generator_size())
    assert first.startswith("D 256 wide: highest at 0.375 with 75.")


def test_a_figure_with_two_lines_says_how_far_they_are_apart():
    findings = invented.generator_size()
    arms = tuple(arm for arm in findings.trial.arms if arm.series in ("D 256 wide", "D 128 wide"))
    gaps = describe_gaps(replace(findings, trial=replace(findings.trial, arms=arms)))
    assert [gap.partition(":")[0] for gap in gaps] == [
        "At 0.25, D 256 wide against D 128 wide",
        "At 0.5, D 256 wide against D 128 wide",
    ]
    assert describe_gaps(findings) == []  # three lines have no one gap
