"""A report of invented findings."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from electra.reports.report import write_report
from tests.experiments import invented


@pytest.fixture
def without_figures(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of one trial."""
    folder = tmp_path_factory.mktemp("report")
    findings = invented.efficiency()
    write_report(
        [
            replace(
                findings,
                results=[
                    replace(finding, journal=[only_auc(entry) for entry in finding.journal])
                    for finding in findings.results
                ],
            )
        ],
        folder,
    )
    return folder


def only_auc(entry):
    """Every measure is a figure, and a figure takes half a second."""
    return {
        key: value
        for key, value in entry.items()
        if not key.startswith("eval_") or key == "eval_auc"
    }
