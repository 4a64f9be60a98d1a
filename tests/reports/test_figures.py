from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from electra.reports import figures
from electra.reports.blocks import INK
from electra.reports.curves import curve, mean_curve
from electra.reports.figure_style import look
from tests.experiments import invented

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def pictures():
    return {
        picture.name: picture.svg for picture in figures.draw(invented.efficiency(), "efficiency")
    }


def test_a_table_has_bars_costs_and_a_curve_for_each_measure(pictures):
    assert list(pictures) == [
        f"efficiency-{kind}"
        for kind in (
            "scores",
            "costs",
            "plateau",
            "mlm-loss",
            "mlm-accuracy",
            "restore-loss",
            "rtd-loss",
            "auc",
        )
    ]


def test_a_figure_of_the_paper_is_drawn_along_its_axis_with_every_line_named():
    first = next(iter(figures.draw(invented.generator_size(), "generator-size")))
    assert first.name == "generator-size-figure"
    for label in (
        "D 256 wide",
        "D 192 wide",
        "D 128 wide",
        "unigram generator",
        "width of the generator",
    ):
        assert label in first.svg


def test_every_figure_is_well_formed_and_names_its_arms(pictures):
    for name, svg in pictures.items():
        ElementTree.fromstring(svg)
        assert "ELECTRA 15 %" in svg or name == "efficiency-restore-loss"


def test_every_figure_says_at_what_scale_and_budget_it_was_made_and_whose_numbers_it_shows(
    pictures,
):
    for svg in pictures.values():
        assert "trial scale, budget 1/4: ours, not the paper's numbers" in svg.replace(
            "&#x27;", "'"
        )


def test_a_published_panel_is_promised_only_where_there_is_one():
    findings = invented.efficiency(seeds=1)
    bare = replace(
        findings,
        trial=replace(
            findings.trial,
            columns=("generator accuracy",),
            arms=tuple(replace(arm, published={}) for arm in findings.trial.arms),
        ),
    )
    first, other = (next(iter(figures.draw(each, "x"))) for each in (findings, bare))
    assert first.title == "Scores: ours, and in a panel of their own the published ones"
    assert other.title == "Scores: ours"
    assert "published" not in other.svg


def test_the_same_findings_give_the_same_bytes_whatever_the_user_has_set(pictures):
    import matplotlib

    with matplotlib.rc_context(
        {"lines.linewidth": 9, "axes.facecolor": "red", "svg.hashsalt": None}
    ):
        again = next(iter(figures.draw(invented.efficiency(), "efficiency")))
    assert again.svg == pictures["efficiency-scores"]
    assert "<dc:date>" not in again.svg


def test_nothing_is_black_or_white_so_that_it_reads_on_either(pictures):
    for svg in pictures.values():
        assert INK in svg
        assert "#000000" not in svg
        assert "#ffffff" not in svg


def test_the_looks_of_forty_arms_are_forty():
    assert len({str(look(index)) for index in range(40)}) == 40
    assert len({look(index)["color"] for index in range(8)}) == 8


def test_a_curve_leaves_out_what_was_not_finite():
    finding = invented.efficiency().results[0]
    journal = [
        {"step": 1, "flops": 1.0, "minutes": 0.1, "eval_auc": None},
        {"step": 2, "flops": 2.0, "minutes": 0.2, "eval_auc": 0.6},
    ]
    assert curve(replace(finding, journal=journal), "auc") == [
        {"step": 2, "value": 0.6, "flops": 2.0, "minutes": 0.2}
    ]


def test_a_mean_curve_ends_where_the_first_of_its_seeds_does():
    long = [{"step": step, "value": 1.0, "flops": step, "minutes": step} for step in (1, 2, 3)]
    assert [
        point["value"]
        for point in mean_curve([long, [{**point, "value": 3.0} for point in long[:2]]])
    ] == [2.0, 2.0]


def test_dollars_and_angles_in_a_label_are_shown_and_not_obeyed():
    findings = invented.efficiency(seeds=1)
    arms = (replace(findings.trial.arms[0], label="$x$ <b>"), *findings.trial.arms[1:])
    first = next(
        iter(figures.draw(replace(findings, trial=replace(findings.trial, arms=arms)), "x"))
    )
    assert "$x$ &lt;b&gt;" in first.svg


def test_findings_without_tasks_have_curves_and_no_scores():
    findings = invented.efficiency(seeds=1)
    bare = replace(
        findings, tasks=(), results=[replace(finding, scores=[]) for finding in findings.results]
    )
    assert next(iter(figures.draw(bare, "x"))).name == "x-plateau"
