"""What a run says about its networks: while it trains, and at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from electra.objectives.metrics import PLATEAU_RATIO, RTD_METRICS, Metric
from electra.pretraining import verdict as verdict_module
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import Recipe, load_recipe
from electra.pretraining.verdict import (
    diagnosis_step,
    judge,
    lasting_collapse,
    plateau_warnings,
    still_left,
    update_left_plateau,
)
from tests.conftest import TOY_FLAGS

RECIPE = load_recipe("small")  # 1,000,000 steps, evaluated every 5,000
QUICK = load_recipe("small", flags=["--warmup-steps", "5"])
TENTH = 100_000
HEALTHY = {
    "rtd_loss": 0.2,
    "baseline_rtd_loss": 0.35,
    "auc": 0.9,
    "mlm_loss": 3.0,
    "baseline_mlm_loss": 6.0,
    "mlm_accuracy": 0.4,
    "baseline_mlm_accuracy": 0.195,
}
NO_DISCRIMINATOR = HEALTHY | {"rtd_loss": 0.3499, "auc": 0.54}
COLLAPSED = NO_DISCRIMINATOR | {"auc": 0.5, "logit_std": 0.0}
NO_GENERATOR = HEALTHY | {"mlm_loss": 6.01, "mlm_accuracy": 0.194}


# ---- the verdict ---------------------------------------------------------------------------------


def test_networks_that_use_the_context_are_worth_fine_tuning() -> None:
    verdict = judge(HEALTHY, RECIPE)
    assert (verdict.fine_tuning, verdict.change) == ("likely", "")
    assert len(verdict.networks) == 2
    assert verdict.networks[0].startswith("discriminator: has learned to use the context")


@pytest.mark.parametrize(
    ("name", "rate"), [("modern-small", "--muon-learning-rate"), ("modern-tiny", "--learning-rate")]
)
def test_the_rate_to_change_is_the_one_that_moves_the_blocks(name: str, rate: str) -> None:
    assert judge(NO_GENERATOR, load_recipe(name)).change.endswith(f" {rate}")


def test_a_model_that_is_worse_than_none_says_so_and_what_to_change() -> None:
    verdict = judge(NO_DISCRIMINATOR | NO_GENERATOR | {"rtd_loss": 0.3499, "auc": 0.54}, RECIPE)
    assert verdict.fine_tuning == "unlikely"
    assert "AUC 0.540 (0.500 with one answer for all tokens)" in verdict.networks[0]
    assert "accuracy 19.4% (19.5% without looking at the context)" in verdict.networks[1]
    for remedy in ("more steps", "--learning-rate", "modern-small", "modernbert"):
        assert remedy in verdict.change


def test_a_modernbert_is_not_told_to_become_one() -> None:
    change = judge(NO_DISCRIMINATOR, load_recipe("modern-tiny")).change
    assert "more steps" in change
    assert "modernbert" not in change


def test_a_discriminator_beside_a_generator_at_its_baseline_is_doubtful() -> None:
    verdict = judge(NO_GENERATOR, RECIPE)
    assert verdict.fine_tuning == "doubtful"
    assert verdict.networks[0].startswith("discriminator: is better than its baseline; loss 0.2000")


def test_a_discriminator_that_gives_all_tokens_one_answer_has_collapsed() -> None:
    verdict = judge(COLLAPSED, RECIPE)
    assert verdict.fine_tuning == "unlikely"
    assert (
        "(the discriminator has collapsed: it gives all tokens one answer)" in verdict.networks[0]
    )
    assert verdict.change.startswith(
        "begin again with more --warmup-steps than 10,000 or --optimizer.bias-correction true or "
        "a lower --learning-rate; "
    )
    early = judge(COLLAPSED | {"logit_std": 0.02}, RECIPE)  # has not begun to learn
    assert "collapsed" not in "".join(early.networks)
    assert early.change.startswith("train for more steps")


def test_after_a_collapse_nothing_is_advised_that_is_so_already() -> None:
    change = judge(COLLAPSED, load_recipe("modern-small", flags=["--warmup-steps", "400"])).change
    assert change.startswith("begin again with a lower --muon-learning-rate; ")


def test_one_encoder_that_predicts_words_is_not_said_to_ignore_the_context() -> None:
    one, two = load_recipe("modern-tiny"), load_recipe("modern-small")
    assert judge(NO_DISCRIMINATOR, one).fine_tuning == "early"
    assert judge(NO_DISCRIMINATOR, two).fine_tuning == "unlikely"
    assert judge(NO_DISCRIMINATOR | {"mlm_loss": 6.01}, one).fine_tuning == "unlikely"
    assert judge(NO_GENERATOR, one).fine_tuning == "doubtful"


def test_a_network_above_its_baseline_is_not_said_to_know_what_that_knows() -> None:
    generator = judge(NO_GENERATOR, RECIPE).networks[1]
    assert "(the generator knows hardly more than how frequent words are)" in generator
    generator = judge(NO_GENERATOR | {"mlm_loss": 10.3}, RECIPE).networks[1]
    assert "(the generator is worse than its baseline); loss 10.300 (6.000 without" in generator


def test_the_verdict_and_the_line_of_a_generator_agree() -> None:
    for loss in (6.01, 10.3):  # at its baseline, and worse
        verdict = judge(NO_GENERATOR | {"mlm_loss": loss}, RECIPE)
        assert "its generator has learned little or nothing" in verdict.text
        assert verdict.networks[1].startswith("generator: has learned little or nothing")


def test_two_losses_of_one_network_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Metric(
        name="clm_loss",
        title="restored words, loss",
        network="discriminator",
        baseline=6.0,
        plateau_ratio=PLATEAU_RATIO,
        predicts="original words",
        plateau_meaning="the head knows word frequencies only",
    )
    objective = type(RECIPE.objective)
    monkeypatch.setattr(objective, "metrics", lambda _: (*RTD_METRICS, own))
    verdict = judge(HEALTHY | {"clm_loss": 5.9}, RECIPE)
    assert verdict.fine_tuning == "partly"
    first, second = verdict.networks
    assert first.startswith("discriminator (replaced or original): has learned to use the context")
    assert second.startswith("discriminator (original words): has learned little or nothing")
    (message,) = messages({}, HEALTHY, QUICK, 20)
    assert message.startswith("step 20: the discriminator (replaced or original) has left")


def test_the_criterion_is_that_of_the_trials() -> None:
    at = HEALTHY | {"rtd_loss": PLATEAU_RATIO * 0.35}
    assert judge(at, RECIPE).fine_tuning == "unlikely"
    assert judge(at | {"rtd_loss": at["rtd_loss"] - 1e-6}, RECIPE).fine_tuning == "likely"


def test_a_run_without_scores_has_no_verdict_on_them() -> None:
    assert judge({}, RECIPE).fine_tuning == "unknown"


def test_a_loss_that_is_not_a_number_is_not_a_success() -> None:
    assert judge(HEALTHY | {"rtd_loss": float("nan")}, RECIPE).fine_tuning == "unlikely"


@pytest.mark.parametrize("name", ["adversarial-base", "two-stage-base"])
def test_a_generator_that_does_not_learn_to_be_likely_is_not_judged(name: str) -> None:
    verdict = judge(NO_GENERATOR, load_recipe(name))
    assert (verdict.fine_tuning, len(verdict.networks)) == ("likely", 1)


# ---- while it trains -----------------------------------------------------------------------------


def warnings_of(
    scores: dict[str, float],
    recipe: Recipe = RECIPE,
    *,
    step: int,
    before: dict[str, float] | None = None,
) -> list[str]:
    return plateau_warnings(scores, recipe, step=step, before=before or {})


def test_a_run_that_learns_gives_no_warning() -> None:
    assert warnings_of(HEALTHY, step=TENTH) == []


def test_a_network_on_the_plateau_is_warned_of_once_after_a_tenth_of_the_run() -> None:
    warned = []
    for step in range(5_000, 1_000_001, 5_000):
        warned += [step] * len(warnings_of(NO_DISCRIMINATOR, step=step))
    assert warned == [TENTH]
    (warning,) = warnings_of(NO_DISCRIMINATOR, step=TENTH)
    assert "10% of the run: the discriminator is hardly better than one answer" in warning
    assert "more steps" in warning


def test_a_run_of_a_few_hundred_steps_is_warned_too() -> None:
    recipe = load_recipe("tiny")  # 1,400 steps, evaluated every 350
    assert len(warnings_of(NO_DISCRIMINATOR | NO_GENERATOR, recipe, step=350)) == 1
    assert warnings_of(NO_GENERATOR, recipe, step=700) == []
    assert warnings_of(NO_GENERATOR, recipe, step=1_400) == [], "the verdict says it"


def test_a_short_run_of_a_long_recipe_is_warned_once_and_before_its_end() -> None:
    flags = ["--max-steps", "8000", "--warmup-steps", "100"]  # evaluated every 5,000
    recipe = load_recipe("small", flags=flags)
    assert diagnosis_step(recipe) == 800
    warned = [step for step in (800, 5_000, 8_000) if warnings_of(NO_GENERATOR, recipe, step=step)]
    assert warned == [800]
    assert diagnosis_step(load_recipe("modern-small")) == 500, "an evaluation of the recipe"


@pytest.mark.usefixtures("few_threads")
def test_a_short_run_is_evaluated_at_the_step_of_the_diagnosis(
    toy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_module, "MIN_DIAGNOSED_STEPS", 1)
    flags = [*TOY_FLAGS, "--max-steps", "10", "--warmup-steps", "1", "--eval-steps", "50"]
    pretrain(load_recipe("tiny", flags=flags), data=toy_shards, output_dir=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["step"] for entry in entries if "eval_rtd_loss" in entry] == [1, 10]


def test_there_is_no_warning_during_warm_up() -> None:
    recipe = load_recipe("tiny", flags=["--warmup-steps", "600"])
    assert warnings_of(NO_GENERATOR, recipe, step=350) == []
    assert len(warnings_of(NO_GENERATOR, recipe, step=700)) == 1


def test_a_collapse_is_warned_of_at_the_first_evaluation_that_shows_it() -> None:
    (warning,) = warnings_of(COLLAPSED, step=5_000)
    assert "has collapsed: it gives all tokens one answer" in warning
    assert "more --warmup-steps" in warning
    assert len(warnings_of(COLLAPSED, step=40_000, before=HEALTHY)) == 1
    assert warnings_of(COLLAPSED, step=45_000, before=COLLAPSED) == []
    assert len(warnings_of(COLLAPSED, step=TENTH, before=COLLAPSED)) == 1, "the diagnosis"
    both = COLLAPSED | {"mlm_loss": 6.01, "mlm_accuracy": 0.194}
    discriminator, generator = warnings_of(both, step=TENTH, before=COLLAPSED)
    assert "Begin again with" in discriminator
    assert "If that stays so: train for more steps" in generator


def test_a_loss_that_an_earlier_version_took_for_off_the_plateau_is_not_said_to_be_back_there() -> (
    None
):
    scores = HEALTHY | {"mlm_loss": 5.6, "baseline_mlm_loss": 6.13}  # 91 %
    left = still_left({"mlm_loss": 10_000, "rtd_loss": 15_000}, scores, RECIPE)
    assert left == {"rtd_loss": 15_000}
    assert update_left_plateau(left, scores, RECIPE, step=50_000, tokens=10**9) == []


def test_a_collapse_in_two_evaluations_after_warm_up_stops_a_long_run_before_its_end() -> None:
    def stops(
        recipe: Recipe = RECIPE, *, step: int = 20_000, before: dict[str, float] = COLLAPSED
    ) -> bool:
        return lasting_collapse(COLLAPSED, recipe, step=step, before=before) != ""

    assert stops()
    assert not stops(before=HEALTHY)
    assert not stops(before={}), "the first evaluation"
    assert not stops(step=10_000), "the end of its warm-up"
    assert not stops(step=RECIPE.training.max_steps), "the verdict says it"
    assert not stops(load_recipe("small", flags=["--stop-on-collapse", "false"]))
    trial = load_recipe("small", flags=["--max-steps", "999", "--warmup-steps", "10"])
    assert not stops(trial, step=500), "too short"
    assert lasting_collapse(HEALTHY, RECIPE, step=20_000, before=COLLAPSED) == ""


def test_a_collapse_is_announced_to_stop_the_run_where_the_next_evaluation_may() -> None:
    announced = []
    for step in (5_000, 10_000, 15_000, 990_000, 995_000):
        (warning,) = warnings_of(COLLAPSED, step=step, before=HEALTHY)
        if warning.endswith("The run stops if the next evaluation finds the same"):
            announced.append(step)
    assert announced == [10_000, 15_000, 990_000], "neither in warm-up nor at the end"
    flags = ["--max-steps", "10000", "--eval-steps", "9500", "--warmup-steps", "500"]
    rare = load_recipe("small", flags=flags)  # its diagnosis, at step 1,000, is an evaluation too
    (warning,) = warnings_of(COLLAPSED, rare, step=1_000, before=HEALTHY)
    assert warning.endswith("The run stops if the next evaluation finds the same")


def test_equal_logits_are_no_collapse_if_their_order_or_loss_says_otherwise() -> None:
    (rtd_loss, *_) = RECIPE.objective.metrics()
    assert rtd_loss.has_collapsed(COLLAPSED)
    assert not rtd_loss.has_collapsed(COLLAPSED | {"auc": 0.68}), "it tells tokens apart"
    assert not rtd_loss.has_collapsed(COLLAPSED | {"rtd_loss": float("nan")})


@pytest.mark.parametrize("name", ["replace-mlm-base", "all-tokens-mlm-base"])
def test_an_encoder_that_only_copies_gives_a_warning(name: str) -> None:
    recipe = load_recipe(name)
    scores = {"restore_loss": 0.4999, "baseline_restore_loss": 0.5}
    step = -(-recipe.training.max_steps // 10 // 5_000) * 5_000
    (warning,) = warnings_of(scores, recipe, step=step)
    assert "the encoder does hardly more than copy the tokens it reads" in warning


def messages(
    left: dict[str, int], scores: dict[str, float], recipe: Recipe, step: int
) -> list[str]:
    return update_left_plateau(left, scores, recipe, step=step, tokens=100 * step)


def test_a_network_that_leaves_the_plateau_is_said_to_once_with_step_and_tokens() -> None:
    left: dict[str, int] = {}
    assert len(messages(left, NO_DISCRIMINATOR, QUICK, 10)) == 1, "the generator"
    (message,) = messages(left, HEALTHY, QUICK, 20)
    assert message.startswith("step 20: the discriminator has left the plateau after 2,000 tokens")
    assert messages(left, HEALTHY, QUICK, 30) == []
    assert left == {"mlm_loss": 10, "rtd_loss": 20}


def test_no_network_is_said_to_leave_the_plateau_in_warm_up() -> None:
    left: dict[str, int] = {}
    assert messages(left, HEALTHY, QUICK, QUICK.optimizer.warmup_steps) == []
    assert len(messages(left, HEALTHY, QUICK, QUICK.optimizer.warmup_steps + 1)) == 2


def test_a_network_that_falls_back_has_not_left_the_plateau() -> None:
    left = {"mlm_loss": 10, "rtd_loss": 20}
    (message,) = messages(left, NO_DISCRIMINATOR, QUICK, 30)
    assert message.startswith("step 30: the discriminator is back on the plateau; loss 0.3")
    assert left == {"mlm_loss": 10}
    assert messages(left, NO_DISCRIMINATOR, QUICK, 40) == []


# ---- at its end ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_threads")
def test_the_verdict_is_printed_and_written_to_the_status_and_the_model_card(
    toy_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, "--max-steps", "2", "--warmup-steps", "1"])
    outcome = pretrain(recipe, data=toy_shards, output_dir=tmp_path / "run")
    assert outcome.verdict.fine_tuning == "unlikely"
    printed = capsys.readouterr().err
    assert all(line in printed for line in outcome.verdict.lines)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["verdict"]["fine_tuning"] == "unlikely"
    assert status["verdict"]["networks"] == list(outcome.verdict.networks)
    assert (status["step"], status["max_steps"]) == (2, 2)
    card = (tmp_path / "run" / "discriminator" / "README.md").read_text()
    assert "| Verdict | fine" in card
