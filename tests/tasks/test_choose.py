from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra.config import UserError
from electra.data.tables import find_table
from electra.data.wordpiece import WordPiece
from electra.model.verify import verify
from electra.tasks.choose import Choice, Choose
from electra.tasks.input_rows import input_row
from electra.tasks.task import Network
from tests.tasks.toys import answers, overfit, toy_encoder, toy_tokenizer, written
from tests.wording import wording_of

wording = wording_of(__file__)

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3,label\n"
    '0,v1,3,"The dog sat. He","The dog sat.",He,gold,ran.,"sells, rome",is a mat,lives,1\n'
)
PASSAGE = {
    "article": "Anna lives in Rome.",
    "questions": ["Anna lives in _ .", "Who lives in Rome?"],
    "options": [["Paris", "Rome", "Acme", "home"], ["a dog", "a cat", "he", "Anna"]],
    "answers": ["B", "D"],
    "id": "high1.txt",
}


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return toy_tokenizer()


def read(task: Choose, path: Path, *, labelled: bool = True) -> list[Choice]:
    return list(task.read([find_table(path)], labelled=labelled))


def row(**changes: Any) -> str:
    return json.dumps(
        {"context": "the dog", "options": ["sat", "ran", "sells", "is"], "label": 0} | changes
    )


def choice(context: str, options: str, answer: int | None, where: str = "train.jsonl:1") -> Choice:
    parts = tuple(options.split("|"))
    return Choice(where, context, parts, parts, answer)


# ---- layouts -------------------------------------------------------------------------------------


def test_swag_is_read_from_its_official_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "train.csv", SWAG)
    assert read(Choose.from_name("swag"), path) == [
        Choice(
            f"{path}:2",
            "The dog sat.",
            ("He ran.", "He sells, rome", "He is a mat", "He lives"),
            ("ran.", "sells, rome", "is a mat", "lives"),
            1,
        )
    ]


def test_a_passage_of_race_gives_a_choice_for_each_question_and_a_blank_is_filled(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "train.jsonl", json.dumps(PASSAGE))
    blank, plain = read(Choose.from_name("race"), path)
    assert blank.completions == (
        "Anna lives in Paris .",
        "Anna lives in Rome .",
        "Anna lives in Acme .",
        "Anna lives in home .",
    )
    assert plain.completions[3] == "Who lives in Rome? Anna"
    assert [(c.id, c.answer, c.context) for c in (blank, plain)] == [
        ("high1.txt-0", 1, PASSAGE["article"]),
        ("high1.txt-1", 3, PASSAGE["article"]),
    ]


def test_race_is_also_read_one_question_a_row(tmp_path: Path) -> None:
    flat = {
        "example_id": "7",
        "article": "a",
        "question": "Who?",
        "options": ["b", "c", "A", "d"],
        "answer": "A",
    }
    (found,) = read(Choose.from_name("race"), written(tmp_path / "dev.jsonl", json.dumps(flat)))
    assert (found.answer, found.id) == (
        0,
        "7",
    )  # A is a position, though it is also the text of another option


def test_the_folders_that_race_was_released_in_are_found(tmp_path: Path) -> None:
    for split, level in (("train", "middle"), ("train", "high"), ("dev", "high"), ("test", "high")):
        (tmp_path / split / level).mkdir(parents=True)
        written(tmp_path / split / level / "1.txt", json.dumps(PASSAGE))
    task = Choose.from_name("race")
    files = task.locate(str(tmp_path))
    assert [len(files.train), len(files.dev["dev"]), len(files.test["test"])] == [2, 1, 1]
    assert len(list(task.read(files.train, labelled=True))) == 4


def test_the_files_of_swag_are_found(tmp_path: Path) -> None:
    for name in ("train.csv", "val.csv", "test.csv", "train_full.csv"):
        written(tmp_path / name, SWAG)
    files = Choose.from_name("swag").locate(str(tmp_path))
    assert [
        found.source.name for found in (*files.train, *files.dev["dev"], *files.test["test"])
    ] == ["train.csv", "val.csv", "test.csv"]


@pytest.mark.parametrize("label", [2, "2", "C", "c", "sells", " sells "])
def test_a_label_is_a_position_a_letter_or_a_text(tmp_path: Path, label: Any) -> None:
    lines = "\n".join([row(label=label), row(label=0)])
    examples = read(Choose.from_name("choose"), written(tmp_path / "a.jsonl", lines))
    assert [example.answer for example in examples] == [2, 0]


def test_positions_are_counted_from_1_if_the_training_labels_are(tmp_path: Path) -> None:
    lines = "context,a,b,answer\nit was _,sat,ran,1\nit was _,sat,ran,2\n"
    task = Choose.from_name("choose", options=("a", "b"), label="answer")
    examples = read(task, written(tmp_path / "train.csv", lines))
    assert [example.answer for example in examples] == [0, 1]
    fitted = task.fit_labels(examples)
    assert fitted.first_label == 1
    (dev,) = read(fitted, written(tmp_path / "dev.csv", "context,a,b,answer\nit,sat,ran,1\n"))
    assert dev.answer == 0  # though this file alone might count from 0
    said = fitted.record(dev, np.array([0.1, 0.9]))
    assert (said["choice"], said["option"], said["gold"]) == (2, "ran", 1)
    with pytest.raises(UserError, match="write a number from 1 to 2"):
        read(fitted, written(tmp_path / "dev.csv", "context,a,b,answer\nit,sat,ran,0\n"))


@pytest.mark.parametrize(
    ("labels", "options", "first"),
    [([1, 2, 3, 4], "sat|ran|is|on", 1), ([0, 3], "sat|ran|is|on", 0), ([1, 2], "1|2|3|4", 0)],
)
def test_labels_are_counted_from_0_if_one_is_0_or_is_the_text_of_an_option(
    tmp_path: Path, labels: list[int], options: str, first: int
) -> None:
    lines = [row(label=label, options=options.split("|")) for label in labels]
    table = find_table(written(tmp_path / "a.jsonl", "\n".join(lines)))
    assert Choose.from_name("choose").with_first_label([table]).first_label == first


@pytest.mark.parametrize("labels", [["1", "1"], [1, 2, 3]])
def test_labels_that_may_be_counted_from_0_or_1_are_refused_unless_the_first_is_named(
    tmp_path: Path, labels: list[Any]
) -> None:
    path = written(tmp_path / "a.jsonl", "\n".join(row(label=label) for label in labels))
    with pytest.raises(UserError, match=r"4 options are 1.*say which with --first-label 0 or"):
        read(Choose.from_name("choose"), path)
    for first in (0, 1):
        examples = read(Choose.from_name("choose", first_label=first), path)
        assert [example.answer for example in examples] == [int(each) - first for each in labels]
    with pytest.raises(UserError, match="--first-label 2: positions are counted from 0 or from 1"):
        Choose.from_name("choose", first_label=2)


def test_questions_whose_answer_is_always_the_first_are_a_warning_about_the_data(
    tmp_path: Path,
) -> None:
    task = Choose.from_name("choose")
    examples = read(task, written(tmp_path / "a.jsonl", "\n".join([row()] * 10)))
    with pytest.warns(UserWarning, match=r"a\.jsonl:1: the right answer is the same option \(0"):
        fitted = task.fit_labels(examples)
    with pytest.warns(UserWarning, match="Check --label, or shuffle the options"):
        fitted.check(examples)


def test_options_may_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "context,a,b,label\nthe dog,sat,ran,b\n")
    assert read(Choose.from_name("choose", options=("a", "b")), path)[0].options == ("sat", "ran")


def test_a_cell_of_a_table_holds_its_list_of_options_as_json(tmp_path: Path) -> None:
    content = 'context,options,label\nx,"[""She left."", ""It rained.""]",1\ny,"[""a"", ""b""]",0\n'
    (found, _) = read(Choose.from_name("choose"), written(tmp_path / "a.csv", content))
    assert (found.options, found.answer) == (("She left.", "It rained."), 1)


def test_a_model_of_option_columns_also_takes_a_list(tmp_path: Path) -> None:
    task = Choose.from_name("choose", options=("a", "b", "c"), count=3)
    path = written(tmp_path / "a.jsonl", '{"context": "x", "options": ["1", "2", "3"]}')
    (found,) = read(task, path, labelled=False)
    assert found.options == ("1", "2", "3")
    expected = {"context": "x", "options": ["1", "2", "3"]}
    assert input_row(task, ("x", ["1", "2", "3"]), "row 1") == expected
    apart = {"context": "x", "a": "1", "b": "2", "c": "3"}
    assert input_row(task, ("x", "1", "2", "3"), "row 1") == apart
    with pytest.raises(UserError, match="2 options where 3 are expected"):
        read(
            task,
            written(tmp_path / "b.jsonl", '{"context": "x", "options": ["1", "2"]}'),
            labelled=False,
        )


def test_a_missing_column_of_options_is_refused_with_the_flag_that_names_several(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "a.csv", "context,a,b,answer\nthe dog,sat,ran,2\n")
    with pytest.raises(UserError, match=r"no column 'options'.*--options a,b,c,d for a column"):
        read(Choose.from_name("choose"), path)
    with pytest.raises(UserError, match=r"no column 'label'.*with --label$"):
        read(Choose.from_name("choose", options=("a", "b")), path)


@pytest.mark.parametrize("label", [None, "", -1])
def test_an_answer_may_lack_only_where_none_is_needed(tmp_path: Path, label: Any) -> None:
    path = written(tmp_path / "a.jsonl", row(label=label))
    assert read(Choose.from_name("choose"), path, labelled=False)[0].answer is None
    with pytest.raises(UserError, match=wording("an_answer_may_lack_only_where_none_is_needed")):
        read(Choose.from_name("choose"), path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label": 4},
            "label 4 is none of the options; write a number from 0 to 3, a letter from A to D, or "
            "the text",
        ),
        ({"label": "jumps"}, "label 'jumps' is none of the options"),
        ({"options": ["sat", "sat"], "label": "sat"}, "label 'sat' is the text of several options"),
        (
            {"options": ["1", "3", "0"], "label": "1"},
            "label '1' is a position and also the text of option 0",
        ),
        ({"options": "sat"}, "'options' holds 'sat'; a list of texts is expected"),
        ({"options": [1, 2]}, r"'options' holds '\[1, 2\]'; a list of texts is expected"),
        ({"options": ["sat"]}, "1 options where at least 2 are expected"),
        ({"context": 3}, "'context' is int, not text"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_by_its_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = written(tmp_path / "a.jsonl", row() + "\n" + row(**changes))
    with pytest.raises(UserError, match=f"a.jsonl:2: {message}"):
        read(Choose.from_name("choose"), path)


def test_a_passage_whose_lists_differ_in_length_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps(PASSAGE | {"answers": ["A"]}))
    with pytest.raises(
        UserError, match=wording("a_passage_whose_lists_differ_in_length_is_refused")
    ):
        read(Choose.from_name("race"), path)


# ---- as many options everywhere ------------------------------------------------------------------


def test_a_question_with_three_options_among_questions_of_four_is_refused(tmp_path: Path) -> None:
    three = row(options=["sat", "ran", "is"])
    task = Choose.from_name("choose")
    examples = read(task, written(tmp_path / "train.jsonl", row() + "\n" + three))
    with pytest.raises(
        UserError, match=wording("a_question_with_three_options_among_questions_of_four_is_refused")
    ):
        task.fit_labels(examples)
    learnt = task.fit_labels(examples[:1])
    assert learnt.count == 4
    with pytest.raises(
        UserError,
        match=wording("a_question_with_three_options_among_questions_of_four_is_refused_2"),
    ):
        read(learnt, written(tmp_path / "dev.jsonl", three))


def test_an_empty_cell_is_an_option_that_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path / "train.csv", SWAG.replace("lives", ""))
    with pytest.raises(UserError, match=wording("an_empty_cell_is_an_option_that_is_missing")):
        read(Choose.from_name("swag", count=4), path)


def test_a_task_survives_its_settings() -> None:
    task = Choose.from_name("swag", count=4)
    assert Choose.from_settings(json.loads(json.dumps(task.settings()))) == task


def test_a_model_that_others_trained_takes_as_many_options_as_the_questions_have(
    tokenizer: WordPiece,
) -> None:
    task, examples = (
        Choose.from_name("choose"),
        [Choice("here", "a", ("dog", "cat", "mat"), ("dog", "cat", "mat"))] * 2,
    )
    assert task.features(examples, tokenizer, length=16, training=False).num_choices == 3
    with pytest.raises(
        UserError,
        match=wording("a_model_that_others_trained_takes_as_many_options_as_the_questions_have"),
    ):
        task.features(
            [*examples, Choice("there", "a", ("dog", "cat"), ("dog", "cat"))],
            tokenizer,
            length=16,
            training=False,
        )


# ---- features ------------------------------------------------------------------------------------


def test_an_option_is_a_row_and_those_of_a_question_stay_together(tokenizer: WordPiece) -> None:
    task = Choose.from_name("choose", count=2)
    features = task.features(
        [choice("the dog", "sat|ran home", 1)], tokenizer, length=16, training=True
    )
    batch = features.collate(np.array([0]))
    assert [
        tokenizer.tokens(row[attention_mask].tolist())
        for row, attention_mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ] == ["[CLS] the dog [SEP] sat [SEP]".split(), "[CLS] the dog [SEP] ran home [SEP]".split()]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1]]
    assert batch.labels["target"].tolist() == [1, 1]


def test_the_context_gives_way_to_the_options(tokenizer: WordPiece) -> None:
    task = Choose.from_name("choose", count=2)
    features = task.features(
        [choice("the dog sat on a mat", "ran home|is", 0)], tokenizer, length=8, training=True
    )
    first, second = (
        tokenizer.tokens(features.input_ids[begin:end].tolist())
        for begin, end in zip(features.offsets, features.offsets[1:], strict=False)
    )
    assert first == "[CLS] the dog sat [SEP] ran home [SEP]".split()
    assert second == "[CLS] the dog sat on [SEP] is [SEP]".split()
    assert features.truncated.all()


def test_of_a_completion_that_is_too_long_the_end_is_kept(tokenizer: WordPiece) -> None:
    task = Choose.from_name("choose", count=2)
    features = task.features(
        [choice("the dog", "why did he ran home|is", 0)], tokenizer, length=6, training=True
    )
    assert (
        tokenizer.tokens(features.input_ids[: features.offsets[1]].tolist())
        == "[CLS] [SEP] he ran home [SEP]".split()
    )


# ---- answers -------------------------------------------------------------------------------------


def test_scores_become_probabilities_of_the_options_and_a_record() -> None:
    task = Choose.from_name("choose", count=2)
    examples = [choice("a", "sat|ran", 1), choice("a", "is|he", 1)]
    found = task.decode(
        examples, None, [{"logits": np.log([1.0, 3.0])}, {"logits": np.log([4.0, 1.0])}]
    )  # type: ignore[arg-type]
    assert np.allclose(found, [[0.25, 0.75], [0.8, 0.2]])
    assert task.score(examples, found) == {"accuracy": 0.5}
    assert task.record(examples[0], found[0]) == {
        "choice": 1,
        "option": "ran",
        "probabilities": [0.25, 0.75],
        "gold": 1,
    }
    assert np.allclose(task.combine([found[0], found[1]]), [0.525, 0.475])


def test_the_best_answer_that_ignores_the_text_is_the_commonest_position() -> None:
    examples = [choice("a", "b|c", answer) for answer in (0, 1, 1, 1)]
    assert Choose.from_name("choose", count=2).baseline(examples) == 0.75


# ---- the head ------------------------------------------------------------------------------------


def test_stock_transformers_computes_the_same_scores(tokenizer: WordPiece, tmp_path: Path) -> None:
    from transformers import ElectraForMultipleChoice

    from electra.model import huggingface

    task = Choose.from_name("choose", count=3)
    network = Network(toy_encoder(tokenizer), task.head(32, dropout=0.1)).eval()
    torch.nn.init.normal_(network.head.output.weight)
    huggingface.save(network, tmp_path / "model", role="encoder", config_extra=task.config())
    stock = ElectraForMultipleChoice.from_pretrained(tmp_path / "model").eval()
    features = task.features(
        [choice("the dog", "sat|ran home|is", 1), choice("a cat", "on|he|to a mat", 0)],
        tokenizer,
        length=16,
        training=False,
    )
    batch = features.collate(np.array([0, 1]))
    ids, token_type_ids, attention_mask = (tensor.reshape(2, 3, -1) for tensor in batch[:3])
    with torch.no_grad():
        theirs = stock(
            input_ids=ids, token_type_ids=token_type_ids, attention_mask=attention_mask.long()
        ).logits
        torch.testing.assert_close(network.outputs(batch)["logits"], theirs, atol=1e-4, rtol=0)
    assert verify(network, tmp_path / "model") < 1e-4


def test_a_network_learns_eight_choices_by_heart(tokenizer: WordPiece, few_threads: None) -> None:
    contexts = ["the dog", "a cat", "anna", "carla berg", "he", "acme corp", "paris", "rome"]
    eight = [
        choice(context, "sat|ran|sells|is home", place % 4)
        for place, context in enumerate(contexts)
    ]
    task = Choose.from_name("choose").fit_labels(eight)
    features = task.features(eight, tokenizer, length=16, training=True)
    network = Network(toy_encoder(tokenizer), task.head(32, dropout=0.0))
    assert overfit(network, task, features, steps=300, rate=1e-3) < 0.05
    assert task.score(eight, answers(network, task, eight, features)) == {"accuracy": 1.0}
