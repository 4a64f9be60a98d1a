"""At a scale, arms are named by what they are there, and no run stands for two of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.data.shards import Shards
from electra.experiments.arms import at_scale
from electra.experiments.jobs import build_jobs
from electra.experiments.plan import load_scale, load_trial, trial_names
from electra.experiments.sweep import Sweep
from tests.wording import wording_of

wording = wording_of(__file__)


def arms(trial: str, scale: str):
    return at_scale(load_trial(trial), load_scale(scale)).runnable_arms()


@pytest.mark.parametrize(
    ("scale", "shares"),
    [
        ("paper", ["1/6", "1/3", "1/2", "2/3", "1"]),
        ("trial", ["1/8", "3/8", "1/2", "5/8", "1"]),
        ("smoke", ["1/2", "1"]),
    ],
)
def test_a_width_is_named_and_drawn_as_the_share_that_it_is(scale, shares):
    electras = [arm for arm in arms("width", scale) if arm.series == "ELECTRA"]
    assert [arm.label for arm in electras] == [f"ELECTRA, {share} wide" for share in shares]
    assert [arm.x for arm in electras] == [float(Fraction(share)) for share in shares]


@pytest.mark.parametrize("scale", ["paper", "trial", "smoke"])
@pytest.mark.parametrize("name", trial_names())
def test_no_label_of_ours_names_a_width_or_a_number_of_steps(name, scale):
    for arm in arms(name, scale):
        assert not re.search(r"\b\d{3}|\d[KMkm]\b|\{", f"{arm.label} {arm.series}"), arm.label


def test_arms_that_have_the_same_width_at_a_scale_are_one_and_say_so():
    first, *_ = arms("width", "smoke")
    assert first.also == ("electra-2", "electra-3", "electra-4")
    assert first.note == (
        "One run for electra-1, electra-2, electra-3, electra-4: at this scale they have the same "
        "width."
    )
    assert [(arm.name, arm.reference) for arm in arms("width", "smoke")[2:]] == [
        ("bert-1", "electra-1"),
        ("bert-6", "electra-6"),
    ]


def test_an_arm_that_was_merged_can_still_be_asked_for(tmp_path, capsys):
    assert (
        main(
            [
                "trials",
                "run",
                "width",
                "--arms",
                "electra-3",
                "--budget",
                "smoke",
                "--dry-run",
                "--output-dir",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert (
        "width: electra-1 and electra-2 and electra-3 and electra-4 are the same run at this scale"
        in output
    )


def test_arms_that_stand_for_different_things_are_not_merged():
    scale = load_scale("smoke")
    alike = replace(
        scale,
        sizes={
            "small": scale.sizes["base"],
            "base": scale.sizes["base"],
            "large": scale.sizes["base"],
        },
        settings=scale.settings
        | {
            "objective.generator.fraction": 0.5,
            "optimizer.learning_rate": 1e-3,
            "optimizer.warmup_steps": 1,
            "training.max_steps": 8,
        },
    )
    trial = load_trial("small-models")
    trial = replace(
        trial, expected=(), arms=tuple(arm for arm in trial.arms if not arm.name.startswith("bert"))
    )
    with pytest.raises(
        UserError, match=wording("arms_that_stand_for_different_things_are_not_merged")
    ):
        at_scale(trial, alike)


def test_a_budget_at_which_two_arms_take_as_many_steps_is_refused(toy_shards, tmp_path):
    options = Sweep(
        trials=[load_trial("small-models")],
        scale=load_scale("smoke"),
        budget=Fraction(9, 16),
        output_dir=tmp_path,
        arms=("electra-small-6.25", "electra-small-12.5"),
    )
    with pytest.raises(
        UserError, match=wording("a_budget_at_which_two_arms_take_as_many_steps_is_refused")
    ):
        build_jobs(options, {32: Shards.open(toy_shards)}, {})
    assert not list(tmp_path.glob("*.json"))


def test_what_a_report_reads_has_the_labels_of_the_scale(toy_shards, tmp_path):
    width = at_scale(load_trial("width"), load_scale("smoke"))
    build_jobs(
        Sweep(trials=[width], scale=load_scale("smoke"), budget=Fraction(1), output_dir=tmp_path),
        {32: Shards.open(toy_shards)},
        {},
    )
    filed = json.loads((tmp_path / "width-smoke-1.json").read_text(encoding="utf8"))
    assert [arm["label"] for arm in filed["trial"]["arms"]] == [
        "ELECTRA, 1/2 wide",
        "ELECTRA, 1 wide",
        "BERT, 1/2 wide",
        "BERT, 1 wide",
    ]
