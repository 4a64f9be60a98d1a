"""What the banner of a trial says first."""

from __future__ import annotations

from dataclasses import replace

from electra.experiments.plan import load_scale, load_trial
from electra.reports.banner import banner
from electra.reports.blocks import Banner, Heading, Paragraph
from electra.reports.markdown import render_markdown
from electra.reports.report import page
from tests.experiments import invented


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
    results = [replace(invented.efficiency().results[0], arm=name) for name in names]
    return replace(
        invented.efficiency(),
        trial=load_trial(trial),
        scale=replace(load_scale("paper"), **scale),
        budget="1",
        results=results,
    )


def test_the_papers_settings_are_claimed_only_for_its_scale_its_budget_and_its_recipes():
    claim = "The paper's settings on our corpus"
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
        line.startswith("Our steps, not the published ones: BERT-Small, BERT-Base.")
        for line in banner(at_paper_scale(trial="small-models")).lines
    )
    assert not any(
        "Our steps" in line for line in banner(at_paper_scale(trial="weight-tying")).lines
    )


def test_the_banner_is_the_first_thing_below_the_question(without_figures):
    blocks = list(page([invented.efficiency()]))
    chapter = blocks[
        next(
            i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.level == 2
        ) :
    ]
    assert [type(block) for block in chapter[:3]] == [Heading, Paragraph, Banner]


def test_a_trial_of_ones_own_is_not_said_to_be_the_papers(without_figures):
    findings = invented.efficiency()
    arms = tuple(replace(arm, published={}) for arm in findings.trial.arms if arm.stages)
    trial = replace(findings.trial, name="own", source="own", expected=(), caveat="", arms=arms)
    text = render_markdown(list(page([replace(findings, trial=trial)])))
    assert "Experiments of our own" in text
    assert "A trial of our own, which the paper does not have" in text
    assert "ublished" not in text
    assert text.count("the paper") == 1
