"""Rows with several labels: how they are read, scored, saved, and served by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

import electra
from electra.__main__ import main
from electra.config import UserError
from electra.data.tables import find_table
from electra.tasks import find_task, restore_task
from electra.tasks.classify import Classify
from electra.tasks.multi_label import MultiLabel
from electra.tasks.texts import Text
from tests.tasks.toys import written
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

WORDS = ("cat", "dog", "mat")


def animal_rows(count: int) -> str:
    """CSV whose labels are the words of WORDS that the text holds."""
    lines = ["text,label"]
    for number in range(count):
        held = [word for bit, word in enumerate(WORDS) if number >> bit & 1]
        lines.append(f"the {' '.join(held)} ran,{'|'.join(held)}")
    return "\n".join(lines) + "\n"


def read(path: Path, content: str, **options: Any) -> tuple[MultiLabel, list[Text]]:
    task = find_task("classify", multi_label=True, **options)
    assert isinstance(task, MultiLabel)
    examples = list(task.read([find_table(written(path, content))], labelled=True))
    return task.fit_labels(examples), examples


def labels_in(path: Path, content: str, **options: Any) -> list[tuple[str, ...]]:
    task, examples = read(path, content, **options)
    return [task.labels_of(example) for example in examples]


# ---- reading -------------------------------------------------------------------------------------

EXPECTED = [("a", "b"), ("b",), ()]


@pytest.mark.parametrize("separator", ["|", ";", ","])
def test_the_separator_of_labels_is_detected(tmp_path: Path, separator: str) -> None:
    rows = f'text,label\nx,"a{separator} b"\ny,b\nz,\n'
    assert labels_in(tmp_path / "a.csv", rows) == EXPECTED


@pytest.mark.parametrize("cell", ["['a', 'b']", "['a' 'b']", "[]"])
def test_a_list_as_text_is_refused_with_the_remedy(tmp_path: Path, cell: str) -> None:
    rows = f'text,label\nx,a|b\ny,"{cell}"\n'
    with pytest.raises(UserError, match=r"a\.csv:3: 'label' holds a list as text.*labels as a\|b"):
        read(tmp_path / "a.csv", rows)


def test_a_named_separator_alone_splits(tmp_path: Path) -> None:
    rows = 'text,label\nx,"a,1|b"\ny,b\n'
    assert labels_in(tmp_path / "a.csv", rows, label_separator="|") == [("a,1", "b"), ("b",)]
    rows = "text,label\nx,a b\ny,b\n"
    assert labels_in(tmp_path / "b.csv", rows, label_separator="space") == EXPECTED[:2]


def test_lists_are_read_as_they_are(tmp_path: Path) -> None:
    lines = [{"text": "x", "label": ["a", "b", "a"]}, {"text": "y", "label": "b"}]
    lines += [{"text": "z", "label": []}, {"text": "w", "label": None}]
    content = "\n".join(map(json.dumps, lines))
    assert labels_in(tmp_path / "a.jsonl", content) == [*EXPECTED, ()]


@pytest.mark.parametrize("missing", ["null", "NaN"])
def test_what_is_no_label_in_a_list_is_refused(tmp_path: Path, missing: str) -> None:
    rows = f'{{"text": "x", "label": ["a", "b"]}}\n{{"text": "y", "label": ["b", {missing}]}}\n'
    with pytest.raises(UserError, match=wording("what_is_no_label_in_a_list_is_refused")):
        read(tmp_path / "a.jsonl", rows)


def test_a_column_of_0_and_1_may_stand_for_each_label(tmp_path: Path) -> None:
    rows = "text,rude,toxic,calm\nx,1.0,1,0\ny,0.0,true,0\nz,0,0,0\n"
    task, examples = read(tmp_path / "a.csv", rows, label="rude,toxic,calm")
    assert task.labels == ("rude", "toxic", "calm")  # as they were named; one may never occur
    assert [task.labels_of(e) for e in examples] == [("rude", "toxic"), ("toxic",), ()]


def test_labels_that_differ_only_in_case_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"'Toxic' \(1 rows\) and 'toxic' \(2 rows\)"):
        read(tmp_path / "a.csv", "text,label\nx,toxic|rude\ny,Toxic\nz,toxic\n")


@pytest.mark.parametrize(
    ("rows", "options", "key"),
    [
        ("text,label\nx,a|b\ny,a;b\n", {}, "two_separators"),
        ("text,label\nx,\ny,a\n", {}, "one_label"),
        ("text,a,b\nx,1,0\ny,maybe,1\n", {"label": "a,b"}, "no_indicator"),
        ("text,a\nx,1\n", {"label": "a,b"}, "no_column"),
        ("text,label\nx,a|b\n", {"metric": "accuracy"}, "metric"),
        ("text,label\nx,a|b\n", {"threshold": 1.5}, "threshold"),
        ("text,label\nx,a|b\n", {"regression": True}, "regression"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, rows: str, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(UserError, match=wording(f"what_cannot_be_is_refused_{key}")):
        read(tmp_path / "a.csv", rows, **options)


def test_a_label_that_training_never_saw_is_refused(tmp_path: Path) -> None:
    task, _ = read(tmp_path / "a.csv", "text,label\nx,a|b\n")
    with pytest.raises(UserError, match=wording("a_label_that_training_never_saw_is_refused")):
        task.check([Text("b.csv:7", "x", None, "a|d")])


def test_rows_that_never_have_two_labels_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="none of the 2 training rows has two labels"):
        read(tmp_path / "a.csv", "text,label\nx,a\ny,b\n")


@pytest.mark.parametrize("option", [{"threshold": 0.3}, {"label_separator": "|"}])
def test_options_of_several_labels_go_with_multi_label(option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="goes with --multi-label"):
        find_task("classify", **option)
    with pytest.raises(UserError, match="does not go with glue/rte"):
        find_task("glue/rte", **option)


# ---- scores --------------------------------------------------------------------------------------


def test_scores_equal_those_of_scikit_learn(tmp_path: Path) -> None:
    task, examples = read(tmp_path / "a.csv", animal_rows(40))
    answers = np.random.default_rng(0).random((40, 3))
    true, given = task.indicators(examples), answers >= 0.5
    assert task.score(examples, list(answers)) == {
        "f1_micro": pytest.approx(f1_score(true, given, average="micro")),
        "f1_macro": pytest.approx(f1_score(true, given, average="macro")),
        "exact_match": pytest.approx(accuracy_score(true, given)),
        "roc_auc": pytest.approx(roc_auc_score(true, answers, average="macro")),
    }


def test_the_threshold_decides_which_labels_are_given(tmp_path: Path) -> None:
    task, examples = read(tmp_path / "a.csv", "text,label\nx,a|b\n", threshold=0.3)
    answer = np.array([0.4, 0.2])
    record = task.record(examples[0], answer)
    assert record["labels"] == ["a"]
    assert record["probabilities"] == {"a": 0.4, "b": 0.2}
    assert record["gold"] == ["a", "b"]
    assert task.score(examples, [answer])["f1_micro"] == pytest.approx(2 / 3)


def test_the_baseline_is_the_best_set_that_ignores_the_text(tmp_path: Path) -> None:
    rows = "text,label\n" + "x,a|b\n" * 2 + "y,a\n" * 3 + "z,c\n"
    task, examples = read(tmp_path / "a.csv", rows)
    assert task.baseline(examples) == pytest.approx(10 / 14)  # a: 5 of 6 right, 5 of 8 found
    exact, _ = read(tmp_path / "b.csv", rows, metric="exact_match")
    assert exact.baseline(examples) == 0.5
    ranked, _ = read(tmp_path / "c.csv", rows, metric="roc_auc")
    assert ranked.baseline(examples) == 0.5


def test_a_saved_task_reads_the_same_labels(tmp_path: Path) -> None:
    task, _ = read(tmp_path / "a.csv", "text,label\nx,a;b\n")
    settings = json.loads(json.dumps(task.settings()))
    assert restore_task(settings, source="config.json") == task


def test_a_multi_label_folder_of_transformers_is_taken_as_such(tmp_path: Path) -> None:
    config = {"problem_type": "multi_label_classification", "id2label": {"0": "a", "1": "b"}}
    task = Classify.from_name("classify").with_transformers_config(config, folder=tmp_path)
    assert isinstance(task, MultiLabel)
    assert (task.labels, task.metric) == (("a", "b"), "f1_micro")


# ---- commands ------------------------------------------------------------------------------------


def test_python_takes_lists_and_columns(tiny: Path, tmp_path: Path) -> None:
    rows = [{"text": f"the {word}", "is_cat": word == "cat", "is_dog": 1} for word in WORDS * 4]
    result = electra.finetune(
        tiny,
        "classify",
        train=rows,
        output_dir=tmp_path / "run",
        label=["is_cat", "is_dog"],
        multi_label=True,
        class_weights={"is_cat": 2.0},
        settings={"max_steps": 1, "length": 32, "threshold": 0.4},
        quiet=True,
    )
    assert result.metric == "f1_micro"
    assert "<th>precision</th>" in result._repr_html_()
    (answer,) = electra.load(result).predict(["the cat"])
    assert set(answer["probabilities"]) == {"is_cat", "is_dog"}


@pytest.mark.slow
def test_from_a_table_of_several_labels_to_a_pipeline_of_transformers(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import pipeline

    data, run = written(tmp_path / "rows.csv", animal_rows(48)), tmp_path / "run"
    table, new = tmp_path / "out.csv", written(tmp_path / "new.txt", "the dog mat ran\nthe ran\n")
    train = ["--train", data, "--dev", data, "--dev-on-train", "--output-dir", run]
    learn = ["--max-steps", "80", "--learning-rate", "3e-3", "--length", "32"]

    def command(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    command("finetune", tiny, "--task", "classify", "--multi-label", *train, *learn)
    scores = json.loads(command("evaluate", run, "--dev", data, "--json"))
    assert scores["scores"]["dev"]["exact_match"] == 1.0
    assert [label["label"] for label in scores["classes"]["dev"]] == list(WORDS)
    command("predict", run, new, "--output", table)
    assert [line.split(",")[1] for line in table.read_text().splitlines()] == [
        "labels",
        "dog|mat",
        "",
    ]
    records = [json.loads(line) for line in command("predict", run, new).splitlines()]
    model = run / "seed-0" / "model"
    config = json.loads((model / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    stock = pipeline("text-classification", model=str(model), top_k=None)
    for record in records:
        for answer in stock([record["text"]])[0]:
            assert record["probabilities"][answer["label"]] == pytest.approx(
                answer["score"], abs=1e-5
            )
    for key in ("electra_task", "electra_length", "electra_result", "electra_role"):
        config.pop(key, None)  # what is left is a folder of stock transformers
    (model / "checksums.sha256").unlink()
    (model / "config.json").write_text(json.dumps(config))
    (answer, _) = [json.loads(line) for line in command("predict", model, new).splitlines()]
    assert answer["labels"] == ["dog", "mat"]
