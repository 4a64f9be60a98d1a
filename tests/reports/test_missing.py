"""What a report says of runs that are missing."""

from __future__ import annotations

from dataclasses import replace

from electra.reports.blocks import Bullets
from electra.reports.missing import missing_section
from electra.reports.report import write_report
from tests.experiments import invented


def test_what_was_not_run_and_what_has_not_ended_is_listed():
    findings = invented.efficiency()
    absent = {("replace", 0), ("replace", 1), ("bert", 1)}
    results = [finding for finding in findings.results if (finding.arm, finding.seed) not in absent]
    results[-1] = invented.finding(invented.ARMS[6], 1, mean=0, index=6, steps=900)
    _, listed = missing_section(replace(findings, results=results))
    assert isinstance(listed, Bullets)
    assert list(listed.items) == [
        ("Not run.", "Replace MLM: no seed"),
        ("Not run.", "BERT: seed 1"),
        (
            "In part.",
            "Adversarial ELECTRA, seed 1: 900 of 2,000 steps; not scored on glue/sst-2, glue/qnli",
        ),
        ("Published only.", "Not ours to run: GPT"),
    ]


def test_a_trial_that_nobody_has_begun_makes_a_page_too(tmp_path):
    write_report([replace(invented.efficiency(), results=[], tasks=(), corpus={})], tmp_path)
    text = (tmp_path / "index.md").read_text()
    assert "Nothing was run yet" in text
    assert "- **Not run.** BERT: no seed" in text
