from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from electra.config import UserError
from electra.experiments import findings_file
from tests.experiments import invented


def test_findings_come_back_as_they_were_kept(tmp_path):
    several = [invented.efficiency(), invented.generator_size()]
    findings_file.save(several, tmp_path / "findings.json")
    assert findings_file.load(tmp_path / "findings.json") == [
        findings_file.condense(findings) for findings in several
    ]


def test_to_condense_twice_changes_nothing_more():
    once = findings_file.condense(invented.efficiency())
    assert findings_file.condense(once) == once


def test_a_long_curve_is_thinned_to_points_that_include_its_ends():
    finding = invented.efficiency().results[0]
    long = [{"step": step, "eval_auc": 0.5} for step in range(5000)]
    steps = [
        entry["step"] for entry in findings_file.held_out_entries(replace(finding, journal=long))
    ]
    assert len(steps) == 200
    assert (steps[0], steps[-1]) == (0, 4999)


def test_only_what_a_report_shows_of_a_journal_is_kept():
    finding = findings_file.condense(invented.efficiency()).results[0]
    assert {key for entry in finding.journal for key in entry} == {
        "step",
        "tokens_seen",
        "flops",
        "minutes",
        "eval_mlm_loss",
        "eval_baseline_mlm_loss",
        "eval_mlm_accuracy",
        "eval_rtd_loss",
        "eval_auc",
        "eval_rtd_accuracy",
    }
    assert finding.runs == (Path("electra-0123abc0"),)  # where it lay is nobody's business


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must hold a JSON object, found list"),
        ("{}", "no findings of trials"),
        (
            '{"form": 2, "findings": []}',
            "findings of form 2, another version's: this one reads form 3",
        ),
        ('{"form": 3, "findings": [{}]}', r"findings\[0\]\.trial is missing"),
    ],
)
def test_a_file_that_holds_no_findings_is_refused(text, complaint, tmp_path):
    (tmp_path / "findings.json").write_text(text)
    with pytest.raises(UserError, match=complaint):
        findings_file.load(tmp_path / "findings.json")


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (("budget",), 3, r"budget must be a string, found int 3"),
        (
            ("results", 0, "steps"),
            "many",
            r"results\[0\]\.steps must be a whole number, found str 'many'",
        ),
        (
            ("trial", "arms", 0, "compute"),
            "none",
            r"arms\[0\]\.compute must be one of 'reference', 'own', found 'none'",
        ),
        (("scale", "colour"), "red", r"unknown key findings\[0\]\.scale\.colour"),
        (
            ("results", 0, "scores", 0, "values"),
            [],
            r"scores\[0\]\.values=\[\] must hold a score for each fine-tuning seed",
        ),
        (
            ("results", 0, "journal", 1, "eval_auc"),
            "high",
            r"journal\[1\]\.eval_auc must be a whole number or a finite number, found str 'high'",
        ),
        (("results", 0, "journal", 1, "step"), None, r"journal\[1\]\.step must be a whole number"),
        (("results", 0, "provenance", "recipe"), "small", r"provenance\.recipe is a section"),
        (("results", 0, "tokens"), 10**400, r"tokens must be a whole number, found int 1000"),
        (("corpus", "tokens"), "many", r"corpus\.tokens must be a whole number"),
        (("trial", "title"), "\ud800", r"cannot be read as JSON: holds half of a surrogate pair"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_place(place, value, complaint, tmp_path):
    path = tmp_path / "findings.json"
    findings_file.save([invented.efficiency()], path)
    values = json.loads(path.read_text())
    *sections, last = place
    inner = values["findings"][0]
    for section in sections:
        inner = inner[section]
    inner[last] = value
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=complaint) as refusal:
        findings_file.load(path)
    assert "electra trials report`" in str(refusal.value)
