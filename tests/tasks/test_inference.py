"""Inference with one model or several: answers do not depend on the batch, and only models of one
task are averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.config import UserError
from electra.data.tables import find_table
from electra.tasks import inference
from electra.tasks.inference import (
    PartScores,
    answer_examples,
    ensemble_task,
    evaluate,
    predict,
    stream_answers,
)
from electra.tasks.models import FinetunedModel, load_tuned
from tests.tasks.toys import BY_HEART, TOYS, keyword_rows, written
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

ByHeart = Callable[[str], Path]


@pytest.fixture(scope="module")
def two(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[FinetunedModel]:
    """Models of one task that are of two minds."""
    run = tmp_path_factory.mktemp("two") / "run"
    TOYS["classes"].learnt(tiny, run, seeds=2, flags=[*BY_HEART, "--max-steps", "6"])
    return [load_tuned(run / f"seed-{seed}" / "model") for seed in (0, 1)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return written(tmp_path / "rows.csv", keyword_rows(9, seed=3))


def test_several_models_answer_with_the_mean_of_their_probabilities(
    two: list[FinetunedModel], rows: Path
) -> None:
    examples = list(two[0].task.read([find_table(rows)], labelled=True))
    first, second, both = (
        answer_examples(two[:1], examples),
        answer_examples(two[1:], examples),
        answer_examples(two, examples),
    )
    assert not np.allclose(first, second)
    assert np.allclose(both, (np.array(first) + np.array(second)) / 2)


def test_scores_are_of_the_averaged_answers(two: list[FinetunedModel], rows: Path) -> None:
    examples = list(two[0].task.read([find_table(rows)], labelled=True))
    answers = answer_examples(two, examples)
    task = two[0].task
    expected = PartScores(task.score(examples, answers), task.class_scores(examples, answers))
    assert evaluate(two, {"dev": [find_table(rows)]}) == {"dev": expected}


def test_models_of_different_tasks_are_not_averaged(by_heart: ByHeart, rows: Path) -> None:
    models = [load_tuned(by_heart(name)) for name in ("classes", "scores")]
    with pytest.raises(UserError, match=wording("models_of_different_tasks_are_not_averaged")):
        next(predict(models, [rows]))


def test_models_with_other_labels_are_not_averaged(
    two: list[FinetunedModel], tiny: Path, tmp_path: Path, rows: Path
) -> None:
    data = written(tmp_path / "other.csv", "text,label\nthe dog,good\nthe cat,bad\n")
    TOYS["classes"].learnt(
        tiny, tmp_path / "run", train=[data], dev=[data], flags=[*BY_HEART, "--max-steps", "1"]
    )
    with pytest.raises(UserError, match=wording("models_with_other_labels_are_not_averaged")):
        evaluate([two[0], load_tuned(tmp_path / "run")], {"dev": [find_table(rows)]})


def test_an_answer_does_not_depend_on_the_batch_it_is_read_in(
    two: list[FinetunedModel], rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = list(two[0].task.read([find_table(rows)], labelled=True))
    at_once = answer_examples(two[:1], examples)
    monkeypatch.setitem(inference.BATCH_TOKENS, "cpu", 1)
    assert np.allclose(answer_examples(two[:1], examples), at_once, atol=1e-6)


@pytest.mark.parametrize("bound", ["CHUNK_EXAMPLES", "CHUNK_CHARACTERS"])
def test_no_more_is_read_than_a_chunk_holds_and_the_order_stays(
    two: list[FinetunedModel], rows: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = list(two[0].task.read([find_table(rows)], labelled=True))
    monkeypatch.setattr(
        inference, bound, 2 if bound == "CHUNK_EXAMPLES" else len(repr(examples[0])) + 1
    )
    read = 0

    def source():
        nonlocal read
        for example in examples:
            read += 1
            yield example

    answered = stream_answers(two[:1], source(), device=torch.device("cpu"))
    found = [next(answered)]
    assert read == 2  # a thread, which a GPU has, would read on
    found += answered
    assert [example.where for example, _ in found] == [example.where for example in examples]
    assert np.allclose([said for _, said in found], answer_examples(two[:1], examples), atol=1e-6)


def test_texts_that_were_cut_are_counted_over_all_chunks_and_warned_of_once(
    two: list[FinetunedModel], rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = list(two[0].task.read([find_table(rows)], labelled=True))
    monkeypatch.setattr(inference, "CHUNK_EXAMPLES", 2)
    short = replace(two[0], length=4)
    with pytest.warns(UserWarning, match="were cut") as warned:
        list(stream_answers([short], examples))
    (message,) = [str(warning.message) for warning in warned]
    assert message.startswith(f"{len(examples)} of {len(examples)} texts are longer than the 4 ")
    assert examples[0].where in message


def test_texts_that_are_mostly_unknown_are_counted_over_all_chunks_and_warned_of_once(
    two: list[FinetunedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the dog", "\N{CLOUD} dog \N{CLOUD}", "the dog \N{CLOUD}", "\N{CLOUD}"]
    asked = written(tmp_path / "asked.txt", "\n".join(texts) + "\n")
    monkeypatch.setattr(inference, "CHUNK_EXAMPLES", 2)
    with pytest.warns(UserWarning, match=r"^2 of 4 texts are mostly \[UNK\]") as warned:
        assert len(list(predict(two, [asked]))) == len(texts)
    assert len(warned) == 1


def test_the_threshold_of_several_models_is_the_mean_of_theirs_as_their_odds_are(
    by_heart: ByHeart,
) -> None:
    model = load_tuned(by_heart("joint"))
    models = [replace(model, task=replace(model.task, null_threshold=at)) for at in (-1.0, 4.0)]
    assert ensemble_task(models).null_threshold == 1.5


def test_different_heads_are_not_averaged(by_heart: ByHeart, tmp_path: Path) -> None:
    asked = written(tmp_path / "asked.jsonl", TOYS["joint"].content)
    with pytest.raises(UserError, match=wording("different_heads_are_not_averaged")):
        next(predict([load_tuned(by_heart(name)) for name in ("joint", "simple")], [asked]))


def test_a_classifier_is_asked_about_plain_text_line_by_line(
    two: list[FinetunedModel], tmp_path: Path
) -> None:
    assert (
        len(list(predict(two, [written(tmp_path / "asked.txt", "the dog\na cat, perhaps\n")]))) == 2
    )


def test_an_empty_file_cannot_be_scored_and_gives_no_predictions(
    two: list[FinetunedModel], tmp_path: Path
) -> None:
    empty = written(tmp_path / "empty.csv", "text,label\n")
    with pytest.raises(
        UserError, match=wording("an_empty_file_cannot_be_scored_and_gives_no_predictions")
    ):
        evaluate(two, {"dev": [find_table(empty)]})
    assert list(predict(two, [empty])) == []
