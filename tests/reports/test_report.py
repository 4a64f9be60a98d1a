from __future__ import annotations

import html
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.experiments import findings_file
from electra.experiments.plan import load_scale, load_trial
from electra.reports import page, provenance
from electra.reports.page import Banner, Bullets, Fold, Grid, Heading, Paragraph, Picture
from electra.reports.report import (
    banner,
    chapter,
    costs,
    order,
    report,
    scores,
    slug,
    verdict,
    whole,
)
from tests.experiments import invented


@pytest.fixture
def without_figures(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of one trial."""
    folder = tmp_path_factory.mktemp("report")
    findings = invented.efficiency()
    report(
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


def words(blocks) -> str:
    return page.markdown(blocks).replace("\\", "")


# ---- what is said --------------------------------------------------------------------------------


def test_the_banner_says_scale_budget_tokens_and_that_these_are_not_the_papers_numbers():
    shown = banner(invented.efficiency())
    assert (
        shown.headline
        == "These are not the paper's numbers, and cannot be at this scale and budget"
    )
    text = " ".join(shown.lines)
    for fact in (
        "Scale trial: 6 layers, 256 wide",
        "Budget 1/4, as a share of that scale's 8,000 steps",
        "103,000,000 tokens",
        "Each arm saw 60.0M tokens, 0.58 epochs",
        "fresh and fully decayed",
    ):
        assert fact in text


def at_paper_scale(*names: str, trial: str = "efficiency", **scale):
    found = [replace(invented.efficiency().results[0], arm=name) for name in names]
    return replace(
        invented.efficiency(),
        trial=load_trial(trial),
        scale=replace(load_scale("paper"), **scale),
        budget="1",
        results=found,
    )


def test_the_papers_settings_are_claimed_only_for_its_scale_its_budget_and_its_recipes():
    claim = "The paper's settings on a corpus of ours"
    assert banner(at_paper_scale("electra")).headline == claim
    assert banner(replace(at_paper_scale("electra"), budget="1/2")).headline != claim
    assert (
        banner(at_paper_scale("electra", settings={"encoder.layers": 2})).headline != claim
    )  # of the same name
    assert (
        banner(at_paper_scale("electra", "bert")).headline
        == "These are not the paper's numbers: settings or steps are ours for BERT"
    )


def test_steps_that_are_ours_by_flops_are_said_to_be():
    assert any(
        line.startswith("Steps of ours, and not the published ones: BERT-Small, BERT-Base.")
        for line in banner(at_paper_scale(trial="small-models")).lines
    )
    assert not any(
        "Steps of ours" in line for line in banner(at_paper_scale(trial="weight-tying")).lines
    )


def test_the_banner_is_the_first_thing_below_the_question(without_figures):
    blocks = list(whole([invented.efficiency()]))
    chapter = blocks[
        next(
            i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.level == 2
        ) :
    ]
    assert [type(block) for block in chapter[:3]] == [Heading, Paragraph, Banner]


def test_ours_stand_beside_the_published_which_are_labelled():
    table = scores(invented.efficiency())
    assert table.head == [
        "arm",
        "glue/sst-2 accuracy",
        "glue/qnli accuracy",
        "average of 2",
        "published: GLUE",
    ]
    assert list(table.rows[1]) == [
        "All-Tokens MLM",
        "77.1 ± 0.3 (n=2)",
        "69.1 ± 0.3 (n=2)",
        "73.1 ± 0.3 (n=2)",
        "84.3",
    ]
    assert list(table.rows[-2]) == ["GPT (published only)", "–", "–", "–", "78.8"]
    assert list(table.rows[-1]) == ["an answer that ignores the text", "50.5", "50.5", "50.5", ""]


def test_the_accuracy_of_generators_on_our_held_out_rows_stands_beside_the_published():
    findings = invented.efficiency()
    trial = replace(
        findings.trial,
        columns=("generator accuracy",),
        arms=tuple(
            replace(arm, published={"generator accuracy": 65.0} if arm.name == "electra" else {})
            for arm in invented.ARMS
        ),
    )
    found = [
        replace(
            finding,
            journal=[
                {
                    "step": 2000,
                    "eval_mlm_accuracy": 0.4 + 0.02 * finding.seed,
                    **({} if finding.arm == "bert" else {"eval_generator_entropy": 2.5}),
                }
            ],
        )
        for finding in findings.results
    ]
    table = scores(replace(findings, trial=trial, results=found))
    assert table.head[-3:] == [
        "held-out rows of ours: generator accuracy, points",
        "held-out rows of ours: generator entropy, nats",
        "published: generator accuracy",
    ]
    rows = {row[0]: list(row[-3:]) for row in table.rows}
    assert rows["ELECTRA"] == ["41.0 ± 1.4 (n=2)", "2.5 ± 0.0 (n=2)", "65.0"]
    assert rows["BERT"] == ["–", "–", "–"]  # it has no generator
    assert len({len(row) for row in table.rows}) == 1


def test_the_cost_of_an_arm_is_given_in_both_conventions():
    table = costs(invented.efficiency())
    assert dict(zip(table.head, table.rows[0], strict=True)) == {
        "arm": "ELECTRA",
        "parameters": "–",
        "seeds done": "2 of 2",
        "FLOPs, standard": "1.90e15",
        "FLOPs, official script's": "2.13e15",
        "minutes": "1.41",
        "steps": "2,000",
        "tokens": "60.0M",
        "epochs": "0.58",
    }


def test_the_weights_of_the_network_that_is_fine_tuned_are_counted():
    shape = {
        "layers": 4,
        "width": 128,
        "heads": 2,
        "feedforward": 512,
        "embedding": 128,
        "positions": 64,
    }
    findings = invented.efficiency()
    made = {"recipe": {"encoder": shape}}
    table = costs(
        replace(
            findings,
            corpus={**findings.corpus, "vocabulary": 4096},
            results=[replace(finding, provenance=made) for finding in findings.results],
        )
    )
    assert {row[1] for row in table.rows} == {"1.3M"}  # 4 × 198,272 and 128 × (4,096 + 64 + 2 + 2)


def test_a_contradiction_is_said_plainly():
    assert verdict(invented.efficiency()) == (
        "Of all 10 pairs of arms that the paper ranks, 7 came out as published, 2 against it, 1 "
        "within 2 standard "
        "errors. Spread aside, 8 of the 9 that the paper tells apart lie in its direction. This "
        "run contradicts the "
        "paper's order: Replace MLM is not equal to ELECTRA 15 % (-1.9); Replace MLM is not above "
        "BERT (-1.8)."
    )


def test_one_seed_establishes_nothing_and_the_report_says_so():
    findings = invented.efficiency(seeds=1)
    assert "With one seed no spread is known, and no order is established." in words(
        order(findings)
    )
    assert verdict(findings).endswith(
        "Nothing here contradicts the paper, and nothing confirms it."
    )


def test_arms_that_have_learnt_nothing_are_named():
    said = words(
        order(invented.efficiency(means={**invented.MEANS, "bert": 50.6, "replace": 50.4}))
    )
    assert (
        "At the trivial level:** Replace MLM, BERT: less than a point above an answer that "
        "ignores the text" in said
    )
    assert "At the trivial level" not in words(order(invented.efficiency()))


def test_a_comparison_with_an_arm_that_has_learnt_nothing_counts_neither_for_nor_against():
    findings = invented.efficiency(means={**invented.MEANS, "replace": 50.4})
    said = words(order(findings))
    assert "Says nothing:** All-Tokens MLM is" in said
    assert "but Replace MLM is at the trivial level; the paper has All-Tokens MLM above" in said
    assert (
        "Of all 10 pairs of arms that the paper ranks, 5 came out as published, 0 against it"
        in said
    )
    assert "and 4 with an arm at the trivial level" in said
    assert "Nothing here contradicts the paper" in said


def test_two_seeds_are_few_and_the_report_says_how_few():
    said = words(order(invented.efficiency()))
    assert (
        "two arms that do not differ would come out as > in 19% to 29% of such comparisons" in said
    )
    assert "and 10 are made here" in said


def test_how_networks_were_scored_is_said_below_their_scores(without_figures):
    findings = invented.efficiency()
    how = replace(findings.scale.evaluation, settings={"max_train_examples": 25_000})
    said = words(chapter(replace(findings, scale=replace(findings.scale, evaluation=how))))
    assert "Fine-tuned by recipe paper with max_train_examples = 25000; " in said
    assert "; 1 fine-tuning seed for each pre-trained network; " in said
    assert "Between the fine-tuning seeds" not in said


def test_the_spread_between_fine_tuning_seeds_is_said_where_it_is_known(without_figures):
    findings = invented.efficiency()
    several = [
        replace(
            finding, scores=[replace(score, values=(0.7, 0.8, 0.75)) for score in finding.scores]
        )
        for finding in findings.results
    ]
    said = words(chapter(replace(findings, results=several)))
    assert "; 3 fine-tuning seeds for each pre-trained network; " in said
    assert f"standard deviation is, in points and on average, 5.0 on {findings.tasks[0]}" in said


def test_what_was_not_run_and_what_has_not_ended_is_listed():
    findings = invented.efficiency()
    absent = {("replace", 0), ("replace", 1), ("bert", 1)}
    kept = [finding for finding in findings.results if (finding.arm, finding.seed) not in absent]
    kept[-1] = invented.finding(invented.ARMS[6], 1, mean=0, index=6, steps=900)
    _, listed = provenance.missing(replace(findings, results=kept))
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


def test_settings_show_what_is_shared_once_and_what_is_an_arms_own():
    _, shared, first, *_ = provenance.settings(invented.efficiency())
    assert isinstance(shared, Fold)
    assert (
        shared.text
        == "optimizer.learning_rate = 0.0005\ntraining.max_steps = 2000\ntraining.batch_size = 256"
    )
    assert isinstance(first, Fold)
    assert first.text == (
        '# electra-0123abc0, electra-0123abc1\nobjective.name = "electra"\n'
        "training.seed = 0, 1  # by seed"
    )


def test_an_earlier_stage_shows_what_it_had_otherwise():
    first = {"training": {"seed": 1, "max_steps": 8}}
    last = {"training": {"seed": 1, "max_steps": 9}, "init_from": "one"}
    assert provenance.flat([first, last]) == {
        "training.seed": 1,
        "training.max_steps": 9,
        "init_from": "one",
        "stage 1: training.max_steps": 8,
        "stage 1: init_from": None,
    }


def test_versions_and_hardware_are_shown_once_where_all_runs_share_them():
    _, table = provenance.environment(invented.efficiency())
    assert isinstance(table, Grid)
    assert dict(table.rows)["hardware"] == "NVIDIA H200"
    assert dict(table.rows)["date"] == "2026-11-10; 2026-11-11"


def test_a_trial_that_nobody_has_begun_makes_a_page_too(tmp_path):
    report([replace(invented.efficiency(), results=[], tasks=(), corpus={})], tmp_path)
    text = (tmp_path / "index.md").read_text()
    assert "Nothing was run yet" in text
    assert "- **Not run.** BERT: no seed" in text


# ---- how it is written ---------------------------------------------------------------------------

EVIL = "<script>alert(1)</script> | `x` *y* [z](http://e)"


def test_everything_shown_is_escaped(without_figures, tmp_path):
    findings = invented.efficiency()
    arms = tuple(replace(arm, label=EVIL, note=EVIL) for arm in findings.trial.arms)
    made = replace(findings.results[0], provenance={"recipe": {"a": EVIL}, "hardware": EVIL})
    trial = replace(findings.trial, title=EVIL, source=EVIL, question=EVIL, caveat=EVIL, arms=arms)
    report([replace(findings, trial=trial, results=[made])], tmp_path)
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
    assert page.plain(text) == shown


def test_a_fence_is_longer_than_any_in_its_text():
    assert "\n````toml\na ``` b\n````\n" in page.markdown([Fold("title", "a ``` b")])


def test_two_figures_on_one_page_do_not_share_names():
    svg = '<?xml?><svg><path id="m1"/><use href="#m1" clip-path="url(#p1)"/></svg>'
    first, second = (page.inlined(Picture(name, "title", svg)) for name in ("one", "two"))
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
    report([invented.efficiency()], tmp_path)
    assert "pip install 'electra[plots]'" in html.unescape((tmp_path / "index.html").read_text())
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
    assert slug(odd) == "odd-name-trial-1of256"


def test_nothing_to_report_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="no findings to report"):
        report([], tmp_path)


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
    script = (
        "import sys; from electra.__main__ import main; sys.modules['matplotlib'] = None; "
        f"main(['trials', 'report', {str(written / findings_file.FILE)!r}, '--to', {str(tmp_path)!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode
        == 0
    )
    assert (tmp_path / "index.md").is_file()


@pytest.mark.parametrize(
    ("place", "complaint"), [("nowhere", "no such folder or file"), ("index.md", "read as JSON")]
)
def test_a_place_without_findings_is_refused(place, complaint, without_figures, tmp_path, capsys):
    report([invented.efficiency()], tmp_path)
    assert main(["trials", "report", str(tmp_path / place)]) == 2
    assert complaint in capsys.readouterr().err
