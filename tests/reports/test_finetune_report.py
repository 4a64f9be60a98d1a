"""The page about a fine-tuning: what is on it, what it needs, and what it does not believe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.finetuning.results import SeedResult, Summary
from electra.reports import figures
from electra.reports.finetune_report import write_finetune_report
from electra.tasks.analysis import Analysis, ExampleList, Points, confusion_matrix, plain
from tests.tasks.toys import TOYS, written

HOSTILE = "<script>alert('1')</script>\x1b[31m</td>"


def seed_result(seed: int, score: float) -> SeedResult:
    return SeedResult(
        seed=seed,
        score=score,
        scores={"dev": {"accuracy": score, "f1": 0.25}},
        baseline=0.5,
        degenerate=score <= 0.5,
        diverged=False,
        steps=20,
        micro_batch_size=8,
        seconds=3.0,
    )


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    """Two seeds with journals, the second one the best."""
    for seed in (0, 1):
        entries = [{"step": step, "loss": 1 / (step + seed)} for step in range(1, 21)]
        entries.append({"step": 20, "dev_accuracy": 0.5 + 0.1 * seed})
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        lines = [json.dumps(entry) + "\n" for entry in entries]
        (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf8")
    return Summary(
        task="classify",
        metric="accuracy",
        split="dev",
        baseline=0.5,
        median=0.65,
        mean=0.65,
        sd=0.05,
        best=0.7,
        runs=[seed_result(0, 0.6), seed_result(1, 0.7)],
        made={"model": "small", "recipe": "paper", "settings": {"epochs": 3.0}},
        best_model="seed-1/model",
    )


def page_of(folder: Path, summary: Summary, analysis: Analysis | None = None) -> str:
    if analysis is not None:
        (folder / "seed-1" / "analysis.json").write_text(json.dumps(asdict(analysis)))
    write_finetune_report(folder, summary)
    return (folder / "report.html").read_text(encoding="utf8")


def mistakes(*texts: str) -> ExampleList:
    rows = tuple((plain(text), plain("a"), plain("b")) for text in texts)
    return ExampleList(title="Worst", note="Some.", head=("text", "truth", "answer"), rows=rows)


def test_the_page_has_scores_settings_curves_matrix_and_mistakes(
    summary: Summary, tmp_path: Path
) -> None:
    matrix = confusion_matrix(["a", "a", "b"], ["a", "b", "b"])
    page = page_of(
        tmp_path, summary, Analysis(examples=3, matrix=matrix, lists=(mistakes("a text"),))
    )
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "classify: accuracy 65.0 ± 5.0" in shown
    assert "median of 2 seeds" in shown
    assert "60.0" in shown
    assert "epochs" in shown
    assert "a text" in shown
    assert '<td style="--share:0.50">1<small>50 %</small></td>' in page
    assert page.count("<svg") == 1
    assert (tmp_path / "curves.svg").read_text(encoding="utf8").count("seed 1") == 1


def test_the_page_fetches_and_runs_nothing(summary: Summary, tmp_path: Path) -> None:
    page = page_of(tmp_path, summary, Analysis(examples=1, lists=(mistakes(HOSTILE),)))
    assert "default-src 'none'" in page
    assert not re.search(r"<script|\x1b|<link|<img|src=|@import", page)
    assert not re.search(r"href=\"(?!#)", page)
    assert "&lt;script&gt;" in page


def test_a_page_of_the_longest_lists_stays_small(summary: Summary, tmp_path: Path) -> None:
    texts = ["ж" * 100_000] * 50
    points = Points(true=tuple(map(float, range(2000))), predicted=(0.5,) * 2000)
    analysis = Analysis(examples=1, points=points, lists=(mistakes(*texts), mistakes(*texts)))
    assert len(page_of(tmp_path, summary, analysis).encode()) < 2_000_000


def test_without_matplotlib_the_page_says_what_to_install(
    summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "is_available", lambda: False)
    said: list[str] = []
    write_finetune_report(tmp_path, summary, said.append)
    assert said[0] == f"report: {tmp_path / 'report.html'}"
    assert "pip install matplotlib" in said[1]
    assert "pip install matplotlib" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "curves.svg").exists()


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"examples": 1, "classes": [{"label": "a"}]}',
        '{"examples": 1, "matrix": {"labels": ["a", "b"], "counts": [[1]]}}',
        '{"examples": 1, "lists": [{"title": "", "note": "", "head": ["a"], "rows": [[]]}]}',
        '{"examples": 1, "points": {"true": [1.0], "predicted": []}}',
    ],
)
def test_a_damaged_analysis_costs_only_its_examples(
    summary: Summary, tmp_path: Path, damage: str
) -> None:
    (tmp_path / "seed-1" / "analysis.json").write_text(damage)
    said: list[str] = []
    write_finetune_report(tmp_path, summary, said.append)
    assert said[0].startswith("warning: ")
    assert "analysis.json" in said[0]
    assert "seconds" in (tmp_path / "report.html").read_text()


def test_seeds_that_learnt_nothing_are_in_a_banner(summary: Summary, tmp_path: Path) -> None:
    runs = [replace(run, degenerate=True) for run in summary.runs]
    assert "Nothing was learnt." in page_of(tmp_path, replace(summary, runs=runs))


def test_a_metric_that_is_not_finite_has_no_point(summary: Summary, tmp_path: Path) -> None:
    path = tmp_path / "seed-0" / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": null}\n{"step": 2, "loss": 0.5}\n')
    assert "<svg" in page_of(tmp_path, summary)


# ---- the commands --------------------------------------------------------------------------------


@pytest.fixture
def argv(tiny: Path, tmp_path: Path, few_threads: None) -> list[str]:
    rows = written(tmp_path / "rows.csv", TOYS["classes"].content)
    command = f"finetune {tiny} --task classify --train {rows} --dev {rows} --dev-on-train"
    options = f"--output-dir {tmp_path / 'run'} --max-steps 2 --length 16 --batch-size 4"
    return [*command.split(), *options.split()]


def test_finetune_writes_a_page_and_names_it(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    page = tmp_path / "run" / "report.html"
    assert f"report: {page}" in capsys.readouterr().err
    assert "Confusion matrix" in page.read_text(encoding="utf8")


def test_no_report_leaves_no_text_of_the_data_in_the_folder(
    argv: list[str], tmp_path: Path
) -> None:
    assert main([*argv, "--no-report"]) == 0
    names = {path.name for path in (tmp_path / "run").rglob("*")}
    assert not names & {"report.html", "curves.svg", "analysis.json"}


def test_evaluate_writes_a_page_about_any_file(
    by_heart: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, page = written(tmp_path / "rows.csv", TOYS["classes"].content), tmp_path / "page.html"
    argv = ["evaluate", str(by_heart("classes")), "--dev", str(rows), "--report"]
    assert main([*argv, str(page)]) == 0
    assert f"report: {page}" in capsys.readouterr().err
    assert "Confusion matrix" in page.read_text(encoding="utf8")
    for wrong, message in (("page.pdf", "ends with .html"), ("none/page.html", "no folder")):
        assert main([*argv, str(tmp_path / wrong)]) == 2
        assert message in capsys.readouterr().err
