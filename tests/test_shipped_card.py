"""The card of a model that comes with the package says what the result files hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import electra
from benchmarks import ship
from benchmarks.harness import Result
from benchmarks.shipped_tables import ARM, shipped_limits
from electra.model.weight_files import CARD

NAME, TASKS = "small-en", ("glue/cola", "glue/rte")
MADE = {"hardware": "a GPU", "torch": "2", "commit": "abc", "date": "2026-11-18"}


def sources_of(card: str) -> dict[str, Result]:
    """Return what the card's table says of each source, which corpus.json said when it shipped."""
    rows = re.findall(r"^\| (\w+) \| .+ \| ([\d,]+) \| ([\d,]+) \|$", card, re.MULTILINE)
    counts: dict[str, Result] = {}
    for source, *numbers in rows:
        kept, removed = (int(number.replace(",", "")) for number in numbers)
        counts[source] = {"kept": kept, "removed": removed}
    return counts


def test_the_card_of_small_en_is_what_is_written_from_the_result_files_today() -> None:
    card = (electra.model_path(NAME) / CARD).read_text(encoding="utf8")
    flags = ["run", NAME, "--arm", ARM, "--license", "cc-by-sa-4.0"]
    written = ship.describe_model(sources_of(card), ship.parse_options(flags))
    assert card[card.index("\n## Text") :] == "\n".join(written) + "\n"


def test_scores_beyond_glue_come_from_the_folder_of_the_record(tmp_path: Path) -> None:
    flags = ["run", NAME, "--arm", ARM, "--record", str(tmp_path / "record.json")]
    card = "\n".join(ship.describe_model({}, ship.parse_options(flags)))
    assert "CoNLL-2003" not in card
    score = {"model": NAME, "task": "ner", "metric": "f1", "baseline": 0.0, "score": 0.5}
    runs = {f"{NAME}: ner, seed 0": {**score, "settings": "", "made": MADE}}
    content = {"models": [NAME], "runs": runs}
    (tmp_path / "beyond_glue.json").write_text(json.dumps(content), encoding="utf8")
    card = "\n".join(ship.describe_model({}, ship.parse_options(flags)))
    assert "| CoNLL-2003 entities, F1, dev | 50.0 | 0.0 | default |" in card


def test_the_card_of_another_run_has_no_marks_for_the_scores_of_this_one() -> None:
    flags = ["run", NAME, "--arm", "18x256, vocabulary 16k"]
    card = "\n".join(ship.describe_model({}, ship.parse_options(flags)))
    assert "18x256" not in card
    assert "<!--" not in card


def run_of(scores: dict[str, list[float]], **facts: Any) -> Result:
    tuned: dict[str, Result] = {}
    for task, values in scores.items():
        tuned[task] = {"flags": "", "scores": values}
        if values:
            tuned[task]["median"] = sorted(values)[len(values) // 2]
    shipped = {"stage": "final", "arm": ARM, "seed": 0, "settings": "s", "minutes": 19.0}
    return {**shipped, "made": MADE, "tuned": tuned, **facts}


def limits_of(**runs: Result) -> list[str]:
    shipped = run_of({"glue/cola": [0.50, 0.52, 0.54], "glue/rte": [0.6, 0.6, 0.6]})
    return shipped_limits({"runs": {"shipped": shipped, **runs}}).splitlines()


def test_one_seed_of_pre_training_says_nothing_of_others() -> None:
    seeds, rounding, *others = limits_of(
        unscored=run_of({"glue/rte": [0.5]}, stage="quarter", seed=1),
        other_settings=run_of({task: [0.5] for task in TASKS}, seed=1, settings="t"),
        same_seed=run_of({task: [0.5] for task in TASKS}, stage="quarter"),
    )
    assert seeds.endswith(
        "One seed of pre-training. How much the scores depend on it is not known."
    )
    assert rounding.endswith("The tasks were scored with the weights before that.")
    assert not others


def test_other_seeds_have_their_minutes_their_means_and_the_task_they_differ_most_on() -> None:
    quarter = {"stage": "quarter", "minutes": 4.75}
    one = run_of({"glue/cola": [0.40], "glue/rte": [0.50]}, seed=1, **quarter)
    two = run_of({"glue/cola": [0.44], "glue/rte": [0.52]}, seed=2, **quarter)
    assert limits_of(one=one)[0].endswith(
        "Another, of 4.75 minutes, has a mean of 45.0 on the same tasks."
    )
    assert limits_of(one=one, two=two)[0].endswith(
        "Others, of 4.75 minutes, have means of 45.0 and 48.0 on the same tasks; single tasks "
        "differ by up to 4.0 points (glue/cola)."
    )


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({}, True),
        ({"model": "another"}, False),
        ({"made": {"hardware": "a CPU", "date": "2026-11-17"}}, False),
    ],
    ids=["this model", "another model", "an earlier model of this name"],
)
def test_rounded_weights_are_compared_seed_by_seed_with_those_before(
    facts: Result, is_told: bool
) -> None:
    made = {"hardware": "a CPU", "date": "2026-11-18"}
    rounded = run_of({"glue/cola": [0.51, 0.55]}, stage="finetuning", model=NAME, made=made)
    rounded["tuned"]["glue/cola"]["seeds"] = [0, 2]
    told = limits_of(rounded=rounded | facts)[1].endswith(
        "As shipped, glue/cola has 51.0 (50.0 before; seed 0), 55.0 (54.0 before; seed 2) on a CPU."
    )
    assert told == is_told


def test_rounded_weights_with_other_settings_of_fine_tuning_are_not_compared() -> None:
    tuned = run_of({"glue/cola": [0.51]}, stage="finetuning", model=NAME)
    tuned["tuned"]["glue/cola"]["flags"] = "--epochs 10"
    assert "As shipped" not in limits_of(tuned=tuned)[1]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"settings": "--epochs 10"}, "with `--epochs 10`: glue/cola 52.0 (51.0, 52.0, 53.0)."),
        ({"settings": ""}, None),  # those of the table
        ({"made": {"hardware": "a CPU", "date": MADE["date"]}}, None),
        ({"model": "another"}, None),
    ],
    ids=["other settings", "these settings", "other hardware", "another model"],
)
def test_other_settings_of_fine_tuning_are_told_of_the_same_hardware(
    facts: Result, told: str | None
) -> None:
    run = run_of({"glue/cola": [0.51, 0.52, 0.53], "glue/rte": []}, stage="finetuning", model=NAME)
    run |= {"settings": "--epochs 10"} | facts
    for entry in run["tuned"].values():
        entry["flags"] = run["settings"]
    run["tuned"]["glue/mrpc"] = {"flags": "--max-steps 9 --epochs 10", "scores": [0.9]}  # of a part
    _, _, *others = limits_of(tuned=run)
    assert others == ([f"- As shipped, {told}"] if told else [])


def test_settings_of_which_nothing_has_been_scored_are_not_told() -> None:
    begun = run_of({}, stage="finetuning", model=NAME, settings="--epochs 10")
    del begun["tuned"]
    _, _, *others = limits_of(begun=begun)
    assert not others
