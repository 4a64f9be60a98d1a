"""How long arms train: budgets scale whole schedules, and equal compute is equal operations."""

from __future__ import annotations

from fractions import Fraction

import pytest

from electra.config import SettingError, UserError
from electra.experiments.budget import plan_stages
from electra.experiments.plan import Arm, Stage, Trial, load_scale, load_trial, trial_names
from electra.pretraining.recipe import load_recipe
from electra.settings import as_dict, differing_keys
from tests.wording import wording_of

wording = wording_of(__file__)

WHOLE = Fraction(1)


def stages(trial: str, arm: str, scale: str = "paper", budget: Fraction = WHOLE, seed: int = 0):
    loaded = load_trial(trial)
    return plan_stages(loaded, loaded.arm(arm), load_scale(scale), budget=budget, seed=seed)


def runnable() -> list[tuple[str, str]]:
    return [(name, arm.name) for name in trial_names() for arm in load_trial(name).runnable_arms()]


@pytest.mark.parametrize("scale", ["paper", "trial", "smoke"])
@pytest.mark.parametrize(("trial", "arm"), runnable(), ids="/".join)
def test_every_arm_has_a_valid_recipe_at_every_scale(trial, arm, scale):
    for stage in stages(trial, arm, scale):
        assert stage.steps >= 1
        assert stage.recipe.training.eval_steps % stage.recipe.training.logging_steps == 0


def test_the_paper_scale_at_budget_one_is_the_recipe():
    (stage,) = stages("efficiency", "electra")
    changed = differing_keys(as_dict(stage.recipe), as_dict(load_recipe("base")))
    assert changed == ["training.stop_on_collapse"], "a collapsed arm is scored like the others"
    assert not stage.recipe.training.stop_on_collapse


def test_a_small_budget_warms_up_for_a_sixth_of_its_steps():
    (stage,) = stages("efficiency", "electra", budget=Fraction(1, 256))  # of 766,000 steps
    assert (stage.steps, stage.recipe.optimizer.warmup_steps) == (2992, 499)


def test_a_share_of_the_steps_is_a_schedule_of_its_own():
    (stage,) = stages("small-models", "electra-small-6.25", "trial")
    scale = load_scale("trial")
    assert stage.steps == scale.steps / 16
    assert stage.recipe.optimizer.warmup_steps == round(stage.steps * scale.warmup_ratio)


def test_fewer_steps_of_bert_are_whole_schedules_of_their_own():
    shorter = [
        stages("bert-ablations", arm)[0]
        for arm in ("bert", "bert-50", "bert-20", "left-to-right-20")
    ]
    assert [(stage.steps, stage.recipe.optimizer.warmup_steps) for stage in shorter] == [
        (1_000_000, 10_000),
        (500_000, 10_000),
        (200_000, 10_000),
        (200_000, 10_000),
    ]


def test_a_longer_arm_warms_up_no_longer():
    (usual,), (longer,) = (stages("large", arm) for arm in ("electra-400k", "electra-1.75m"))
    assert longer.steps == 1_750_000
    assert longer.recipe.optimizer.warmup_steps == usual.recipe.optimizer.warmup_steps == 10_000


@pytest.mark.parametrize("arm", ["all-tokens-mlm", "replace-mlm", "electra-15", "bert"])
@pytest.mark.parametrize("budget", [WHOLE, Fraction(1, 100)])
def test_equal_compute_means_equal_operations_to_within_half_a_step(arm, budget):
    (reference,), (other,) = (
        stages("efficiency", name, "trial", budget) for name in ("electra", arm)
    )
    assert abs(other.flops - reference.flops) <= 0.5 * other.flops_per_step


def test_each_bert_of_the_widths_has_the_operations_of_the_electra_of_its_width():
    for width in (1, 2, 3, 4, 6):
        (electra,), (bert,) = (
            stages("width", f"{kind}-{width}", "trial") for kind in ("electra", "bert")
        )
        assert bert.recipe.encoder == electra.recipe.encoder
        assert abs(bert.flops - electra.flops) <= 0.5 * bert.flops_per_step


@pytest.mark.parametrize("scale", ["paper", "trial"])
def test_two_stages_take_as_many_steps_each_and_the_operations_of_the_joint_training_together(
    scale,
):
    (joint,), (first, second) = (
        stages("training-algorithms", arm, scale) for arm in ("joint", "two-stage")
    )
    assert first.flops_per_step != pytest.approx(second.flops_per_step, rel=0.1)
    assert first.steps == second.steps
    assert first.flops + second.flops == pytest.approx(joint.flops, rel=1e-3)


def test_stages_share_the_steps_that_the_operations_given_allow():
    parts = (
        Stage(recipe="bert-base", size="base", share=0.25),
        Stage(recipe="base", size="base", share=0.75),
    )
    trial = Trial(
        name="x",
        title="x",
        source="x",
        question="?",
        reference="a",
        arms=(
            Arm(name="a", label="a", stages=(Stage(recipe="base", size="base"),)),
            Arm(name="b", label="b", stages=parts, compute="reference", share=0.5),
        ),
    )
    scale = load_scale("trial")
    (whole,) = plan_stages(trial, trial.arms[0], scale, budget=WHOLE, seed=0)
    first, second = plan_stages(trial, trial.arms[1], scale, budget=WHOLE, seed=0)
    assert second.steps == pytest.approx(3 * first.steps, abs=2)
    assert first.flops + second.flops == pytest.approx(whole.flops / 2, rel=1e-3)


def test_widths_of_the_paper_are_its_own_and_heads_stay_as_wide():
    shapes = [stages("width", f"electra-{sixths}")[0].recipe.encoder for sixths in (1, 2, 3, 4, 6)]
    assert [shape.width for shape in shapes] == [128, 256, 384, 512, 768]
    assert {shape.head_width for shape in shapes} == {64}
    assert all(shape.feedforward == 4 * shape.width == 4 * shape.embedding for shape in shapes)


def test_a_setting_of_the_arm_wins_over_the_scales():
    (stage,) = stages("weight-tying", "all", "trial")
    assert stage.recipe.objective.generator.fraction == 1.0
    assert stage.recipe.objective.generator.tie == "all"


def test_how_often_a_run_speaks_is_no_part_of_what_it_is():
    identity = stages("efficiency", "electra", "trial")[0].identity()
    assert "training.seed" in identity
    assert "training.max_steps" in identity
    assert "training.eval_steps" not in identity
    assert "training.kernels" not in identity


def test_a_budget_too_small_for_a_step_is_refused_with_one_that_is_not():
    with pytest.raises(
        UserError,
        match=wording("a_budget_too_small_for_a_step_is_refused_with_one_that_is_not"),
    ):
        stages("efficiency", "electra", "smoke", Fraction(1, 1000))
    assert stages("efficiency", "electra", "smoke", Fraction(1, 16))[0].steps == 1


def test_operations_follow_the_vocabulary_that_the_shards_turned_out_to_have():
    trial, scale = load_trial("efficiency"), load_scale("smoke")
    (nominal,), (smaller,) = (
        plan_stages(trial, trial.arm("bert"), scale, budget=WHOLE, seed=0, vocabularies=sizes)
        for sizes in ({}, {32: 176})
    )
    assert smaller.recipe.data.vocab_size == 176
    assert smaller.flops_per_step < nominal.flops_per_step


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"encoder.layrs": 3}, "encoder.layrs"), ({"encoder.heads": 5}, "encoder.width")],
)
def test_an_arms_settings_that_do_not_go_are_refused_with_the_file_and_the_arm(settings, key):
    stages = (Stage(recipe="small", size="small", settings=settings),)
    arm = Arm(name="five", label="five", stages=stages)
    texts = dict.fromkeys(("name", "title", "source", "question"), "own")
    trial = Trial(**texts, reference="five", arms=(arm,))
    with pytest.raises(SettingError, match=r"own\.toml, arm five: .*encoder") as caught:
        plan_stages(trial, arm, load_scale("paper"), budget=WHOLE, seed=0)
    assert caught.value.key == key
