"""The files of a report, and the command that writes them."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.escape import escape_markdown
from electra.experiments import findings_file
from electra.reports.blocks import Fold, Picture
from electra.reports.html import inline_svg
from electra.reports.markdown import render_markdown
from electra.reports.report import slug, write_report
from tests.experiments import invented
from tests.reports.conftest import only_auc
from tests.wording import wording_of

wording = wording_of(__file__)

EVIL = "<script>alert(1)</script> | `x` *y* [z](http://e)"


def test_everything_shown_is_escaped(without_figures, tmp_path):
    findings = invented.efficiency()
    arms = tuple(replace(arm, label=EVIL, note=EVIL) for arm in findings.trial.arms)
    made = replace(findings.results[0], provenance={"recipe": {"a": EVIL}, "hardware": EVIL})
    trial = replace(findings.trial, title=EVIL, source=EVIL, question=EVIL, caveat=EVIL, arms=arms)
    write_report([replace(findings, trial=trial, results=[made])], tmp_path)
    assert "<script" not in (tmp_path / "index.html").read_text()
    outside = re.sub(r"```toml.*?```", "", (tmp_path / "index.md").read_text(), flags=re.DOTALL)
    assert r"\<script\>alert(1)\</script\> \| \`x\` \*y\* \[z\](http://e)" in outside
    assert not re.search(r"(?<!\\)(<script|\| `x|\*y|\[z)", outside)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b", r"a \| b"),
        ("# no heading", r"\# no heading"),
        ("- no item", r"\- no item"),
        ("1. no item", r"1\. no item"),
        ("3.5 points", "3.5 points"),
        ("-1.8 points", "-1.8 points"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_stays_text_in_markdown(text, shown):
    assert escape_markdown(text) == shown


def test_a_fence_is_longer_than_any_in_its_text():
    assert "\n````toml\na ``` b\n````\n" in render_markdown([Fold("title", "a ``` b")])


def test_two_figures_on_one_page_do_not_share_names():
    svg = '<?xml?><svg><path id="m1"/><use href="#m1" clip-path="url(#p1)"/></svg>'
    first, second = (inline_svg(Picture(name, "title", svg)) for name in ("one", "two"))
    assert '<path id="one-m1"/><use href="#one-m1" clip-path="url(#one-p1)"/>' in first
    assert "two-m1" in second


def test_the_html_page_needs_nothing_beside_it(written):
    text = (written / "index.html").read_text()
    assert not re.search(r'\b(src|href)="(?!#)', text)
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text


def test_the_markdown_page_refers_to_figures_that_are_there(written):
    pytest.importorskip("matplotlib")
    named = re.findall(r"!\[.*?\]\((.*?)\)", (written / "index.md").read_text())
    assert named == [f"efficiency-trial-1of4-{kind}.svg" for kind in ("scores", "costs", "auc")]
    assert all((written / name).is_file() for name in named)


def test_without_matplotlib_the_numbers_are_reported_and_figures_named_as_missing(
    without_figures, tmp_path
):
    write_report([invented.efficiency()], tmp_path)
    assert "pip install matplotlib" in html.unescape((tmp_path / "index.html").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "findings.json",
        "index.html",
        "index.md",
    ]


def test_a_file_name_holds_nothing_of_a_path():
    odd = replace(
        invented.efficiency(),
        trial=replace(invented.EFFICIENCY, name="../Odd name"),
        budget="1/256",
    )
    assert re.fullmatch(r"odd-name-trial-1of256-[0-9a-f]{8}", slug(odd))


def test_nothing_to_report_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match=wording("nothing_to_report_is_a_mistake")):
        write_report([], tmp_path)


# ---- the command ---------------------------------------------------------------------------------


def test_a_report_made_from_its_own_data_is_the_same_report(written, tmp_path, capsys):
    assert main(["trials", "report", str(written / findings_file.FILE), "--to", str(tmp_path)]) == 0
    assert "efficiency: 14 of 14 runs done" in capsys.readouterr().out
    first, second = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (written, tmp_path)
    )
    assert first == second


def test_a_report_needs_no_torch(written, tmp_path):
    argv = ["trials", "report", str(written / findings_file.FILE), "--to", str(tmp_path)]
    script = (
        "import sys; from electra.__main__ import main; sys.modules['matplotlib'] = None; "
        f"main({argv!r}); sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=240).returncode
        == 0
    )
    assert (tmp_path / "index.md").is_file()


@pytest.mark.parametrize(
    ("place", "complaint"), [("nowhere", "no such folder or file"), ("index.md", "read as JSON")]
)
def test_a_place_without_findings_is_refused(place, complaint, without_figures, tmp_path, capsys):
    write_report([invented.efficiency()], tmp_path)
    assert main(["trials", "report", str(tmp_path / place)]) == 2
    assert complaint in capsys.readouterr().err


HOSTILE_KEYS = ["eval_/../../target/PWNED_loss", 'eval_x"><img src=x onerror=a>_loss']


def test_a_key_of_a_journal_neither_leaves_the_folder_nor_becomes_a_tag(tmp_path):
    findings = invented.efficiency(seeds=1)
    first = findings.results[0]
    journal = [
        {"step": step, "flops": 1e9 * step, "minutes": step, **dict.fromkeys(HOSTILE_KEYS, 1.0)}
        for step in (1, 2)
    ]
    (tmp_path / "target").mkdir()
    written = write_report(
        [replace(findings, results=[replace(first, journal=journal)])], tmp_path / "a" / "report"
    )
    assert {path.parent for path in written} == {tmp_path / "a" / "report"}
    assert not list((tmp_path / "target").iterdir())
    assert len([path for path in written if path.suffix == ".svg"]) >= 2
    assert all(path.is_file() for path in written)
    page = (tmp_path / "a" / "report" / "index.html").read_text()
    assert "<img" not in page
    assert "&lt;img" in page


def test_a_label_with_control_characters_leaves_an_svg_that_can_be_read(tmp_path):
    findings = invented.efficiency(seeds=1)
    arms = tuple(replace(arm, label=f"{arm.label}\x1b[2J\0") for arm in findings.trial.arms)
    results = [
        replace(finding, journal=[only_auc(entry) for entry in finding.journal])
        for finding in findings.results
    ]
    trial = replace(findings.trial, arms=arms)
    written = write_report([replace(findings, trial=trial, results=results)], tmp_path)
    for path in written:
        assert "\x1b" not in path.read_text()
        if path.suffix == ".svg":
            ElementTree.parse(path)


def test_a_title_of_two_paragraphs_does_not_end_its_html_block():
    shown = render_markdown([Fold("title\n\n[link](http://e)", "text")])
    assert "<summary>title [link](http://e)</summary>" in shown
