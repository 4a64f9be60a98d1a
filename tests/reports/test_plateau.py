from __future__ import annotations

from dataclasses import replace

import pytest

from electra.reports import curves, figures, plateau
from electra.reports.report import chapter
from tests.experiments import invented
from tests.reports.text import text_of


def with_journal(*entries, **more):
    """Return a finished run with these held-out losses of a discriminator and a baseline of 0.5."""
    journal = [
        {
            "step": step,
            "flops": 1.0 * step,
            "minutes": 0.1 * step,
            "eval_mlm_loss": 3.0,
            "eval_baseline_mlm_loss": 6.0,
            "eval_rtd_loss": loss,
            "eval_baseline_rtd_loss": 0.5,
            **more,
        }
        for step, loss in entries
    ]
    return replace(invented.efficiency().results[0], journal=journal, steps=9, max_steps=9)


def findings_with(*results):
    return replace(invented.efficiency(), results=list(results))


def test_the_loss_of_the_network_that_is_fine_tuned_comes_before_its_generators():
    finding = with_journal((1, 0.5), (2, 0.4))
    assert plateau.own_loss(finding) == "rtd_loss"
    assert plateau.loss_shares(finding) == {1: 1.0, 2: 0.8}
    masked = replace(
        finding,
        journal=[
            {key: value for key, value in entry.items() if "rtd" not in key}
            for entry in finding.journal
        ],
    )
    assert plateau.own_loss(masked) == "mlm_loss"
    assert plateau.loss_shares(masked) == {1: 0.5, 2: 0.5}
    restoring = replace(
        finding,
        journal=[
            {key.replace("rtd", "restore"): value for key, value in entry.items()}
            for entry in finding.journal
        ],
    )
    assert plateau.own_loss(restoring) == "restore_loss"
    assert plateau.own_loss(replace(finding, journal=[])) is None


def in_two_stages(*entries):
    finding = with_journal(*entries)
    first = [
        {
            "step": 100 * i,
            "flops": 1.0,
            "minutes": 0.1,
            "eval_mlm_loss": 3.0,
            "eval_baseline_mlm_loss": 6.0,
        }
        for i in (1, 2)
    ]
    return replace(
        finding,
        journal=first + [{**entry, "step": 200 + entry["step"]} for entry in finding.journal],
        earlier_steps=200,
    )


def test_of_several_stages_the_last_counts_from_its_own_beginning():
    finding = in_two_stages((1, 0.5), (2, 0.4))
    assert plateau.loss_shares(finding) == {201: 1.0, 202: 0.8}
    assert plateau.step_left(finding) == 2
    assert plateau.plateau_rows(findings_with(finding))[0][-2] == "2 of the last stage"


def test_a_generator_on_its_own_is_not_taken_for_the_network_to_come():
    assert plateau.loss_shares(in_two_stages()) == {}


def test_what_was_not_finite_is_left_out():
    assert plateau.loss_shares(with_journal((1, None), (2, 0.4))) == {2: 0.8}


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ((0.5, 0.49, 0.48, 0.3), 3),
        (
            (0.3, 0.5, 0.48, 0.47),
            3,
        ),  # an early lead that is lost, as against a generator that draws nonsense
        ((0.3, 0.3, 0.3, 0.3), 1),
        ((0.5, 0.4, 0.4, 0.49), None),
        ((0.5, 0.5, 0.5, 0.5), None),
    ],
)
def test_a_network_has_left_the_plateau_when_it_never_comes_back(losses, step):
    assert plateau.step_left(with_journal(*enumerate(losses, start=1))) == step


def test_the_table_says_what_networks_came_to_and_which_seeds_are_stuck():
    free, stuck = (
        with_journal((1, 0.5), (2, loss), eval_auc=auc) for loss, auc in ((0.4, 0.7), (0.5, 0.5))
    )
    assert plateau.plateau_rows(findings_with(free)) == [
        ["ELECTRA", "replaced or original", "0.400", "0.500", "80.0", "2", "0.700"]
    ]
    grown = replace(
        free, journal=[{**entry, "eval_auc": 0.5 + 0.1 * entry["step"]} for entry in free.journal]
    )
    assert plateau.plateau_rows(findings_with(grown))[0][-1] == "0.700"
    later = with_journal((1, 0.5), (5000, 0.4), eval_auc=0.7)
    assert plateau.plateau_rows(findings_with(free, replace(later, seed=1)))[0][-2] == "2 to 5,000"
    (row,) = plateau.plateau_rows(findings_with(free, replace(stuck, seed=1)))
    assert row[2:] == [
        "0.450 ± 0.071",
        "0.500 ± 0.000",
        "90.0 ± 14.1",
        "not by 1 of 2 seeds",
        "0.600 ± 0.141",
    ]


def test_a_run_that_has_not_ended_says_nothing_yet():
    assert plateau.plateau_rows(findings_with(replace(with_journal((1, 0.4)), steps=5))) == []


def test_table_and_curve_stand_in_the_report(monkeypatch):
    monkeypatch.setattr(figures, "is_available", lambda: False)
    text = text_of(chapter(findings_with(with_journal((1, 0.5), (2, 0.4)))))
    assert "### What pre-training came to" in text
    assert "| ELECTRA | replaced or original | 0.400 | 0.500 | 80.0 | 2 | – |" in text


def test_the_curve_of_shares_has_the_plateau_as_its_level():
    findings = findings_with(with_journal((1, 0.5), (2, 0.4)))
    assert [point["value"] for point in curves.curve(findings.results[0], curves.SHARE)] == [
        1.0,
        0.8,
    ]
    assert curves.baseline_level(findings, curves.SHARE) == 1.0
