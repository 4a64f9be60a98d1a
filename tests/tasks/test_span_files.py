"""Questions in every layout become the same thing; what is wrong with a file is said with its
place.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from electra.config import UserError
from electra.data.tables import find_table
from electra.tasks.span import Span
from electra.tasks.span_files import Question

CONTEXT = "The river rises in the Alps. It ends in the sea."
ALPS = (23, 27)


def squad_file(path: Path, *questions: dict[str, Any], context: str = CONTEXT) -> Path:
    path.write_text(
        json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]})
    )
    return path


def asked(identity: str = "q1", *answers: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": identity,
        "question": "Where does it rise?",
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
        **more,
    }


def read(*paths: Path, task: Span | None = None, labelled: bool = True) -> list[Question]:
    return list(
        (task or Span.from_name("span")).read(
            [find_table(path) for path in paths], labelled=labelled
        )
    )


def refusal(*paths: Path, task: Span | None = None) -> str:
    with pytest.raises(UserError) as refused:
        read(*paths, task=task)
    return str(refused.value)


def mrqa_file(path: Path, **question: Any) -> Path:
    lines = [
        {"header": {"dataset": "TriviaQA", "split": "train"}},
        {
            "id": "",
            "context": CONTEXT,
            "qas": [{"qid": "m1", "question": "Where does it rise?", **question}],
        },
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


def test_squad_mrqa_and_rows_of_ones_own_give_the_same_question(tmp_path: Path) -> None:
    squad = squad_file(tmp_path / "a.json", asked("q1", ("Alps", 23)))
    mrqa = mrqa_file(
        tmp_path / "b.jsonl.gz",
        answers=["Alps"],
        detected_answers=[{"text": "Alps", "char_spans": [[23, 26]]}],
    )
    row = {"question": "Where does it rise?", "context": CONTEXT}
    forms: list[Any] = [
        "Alps",
        ["Alps"],
        [{"text": "Alps", "answer_start": 23}],
        {"text": ["Alps"], "answer_start": [23]},
    ]
    (tmp_path / "c.jsonl").write_text(
        "\n".join(json.dumps(row | {"answers": form}) for form in forms)
    )
    (tmp_path / "d.csv").write_text(
        f"id,question,context,answer,answer_start\nd1,Where does it rise?,{CONTEXT},Alps,23\n"
    )
    found = read(squad, mrqa, tmp_path / "c.jsonl", tmp_path / "d.csv")
    assert len(found) == 7
    assert {(q.question, q.context, q.references, q.span) for q in found} == {
        ("Where does it rise?", CONTEXT, ("Alps",), ALPS)
    }
    assert [q.id for q in found] == [
        "q1",
        "m1",
        *(f"{tmp_path}/c.jsonl:{n}" for n in (1, 2, 3, 4)),
        "d1",
    ]


def test_an_answer_without_offset_is_where_it_first_occurs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"question": "?", "context": "a b a b", "answers": ["b"]})
    )
    assert read(tmp_path / "a.jsonl")[0].span == (2, 3)


def test_the_first_answer_is_learnt_and_all_are_references(tmp_path: Path) -> None:
    (found,) = read(squad_file(tmp_path / "a.json", asked("q1", ("the Alps", 19), ("Alps", 23))))
    assert (found.span, found.references) == ((19, 27), ("the Alps", "Alps"))


def test_a_detected_answer_of_mrqa_may_be_spelled_otherwise_and_undetected_ones_are_searched(
    tmp_path: Path,
) -> None:
    loud = mrqa_file(
        tmp_path / "a.jsonl.gz",
        answers=["ALPS"],
        detected_answers=[{"text": "ALPS", "char_spans": [[23, 26]]}],
    )
    assert read(loud)[0].span == ALPS
    assert (
        read(mrqa_file(tmp_path / "b.jsonl.gz", answers=["Jura", "Alps"], detected_answers=[]))[
            0
        ].span
        == ALPS
    )


def test_an_mrqa_question_whose_answer_is_not_found_is_kept_for_scoring_without_a_span(
    tmp_path: Path,
) -> None:
    (found,) = read(mrqa_file(tmp_path / "a.jsonl.gz", answers=["Jura"], detected_answers=[]))
    assert (found.references, found.span) == (("Jura",), None)


def test_answers_are_not_looked_at_where_none_are_needed(tmp_path: Path) -> None:
    (found,) = read(squad_file(tmp_path / "a.json", asked("q1", ("Jura", 3))), labelled=False)
    assert (found.references, found.span) == ((), None)


def test_a_question_may_be_without_answer_only_where_the_task_says_so(tmp_path: Path) -> None:
    path = squad_file(tmp_path / "a.json", asked("q1", is_impossible=True))
    assert read(path, task=Span.from_name("squad-2.0"))[0].references == ()
    assert refusal(path, task=Span.from_name("squad-1.1")) == (
        f"{path}, question q1: no answer; if questions may have none, use --task squad-2.0 or "
        "--unanswerable"
    )


def test_an_empty_cell_is_a_question_without_answer(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,context,answer,answer_start\nWhy?,Because.,,\n")
    assert (
        read(tmp_path / "a.csv", task=Span.from_name("span", unanswerable=True))[0].references == ()
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            ("Alps", 20),
            "the answer 'Alps' should stand at character 20, where 'he Alps. It ends in the ' "
            "stands; correct "
            "answer_start",
        ),
        (("Alps", 99), "should stand at character 99, where the paragraph of 48 has ended"),
        (
            ("Jura", None),
            "question q1: the answer 'Jura' does not occur in the paragraph; spell it as the "
            "paragraph does",
        ),
        (("Alps", -1), "answer_start must be a whole number from 0, found -1"),
        (("Alps", 2.5), "answer_start must be a whole number from 0, found 2.5"),
        ((" ", 3), "an answer without text"),
    ],
)
def test_an_answer_that_is_not_in_its_paragraph_is_refused(
    tmp_path: Path, answer: tuple[str, Any], message: str
) -> None:
    path = squad_file(tmp_path / "a.json", asked("q1", answer))
    assert refusal(path).startswith(f"{path}, question q1: ")
    assert message in refusal(path)


def test_an_answer_of_a_question_said_to_be_impossible_is_refused(tmp_path: Path) -> None:
    path = squad_file(tmp_path / "a.json", asked("q1", ("Alps", 23), is_impossible=True))
    assert "question q1: is_impossible, but has the answer 'Alps'" in refusal(
        path, task=Span.from_name("squad-2.0")
    )


def test_an_id_that_a_file_has_twice_is_refused_unless_the_file_is_only_asked_about(
    tmp_path: Path,
) -> None:
    path = squad_file(tmp_path / "a.json", asked("q1", ("Alps", 23)), asked("q1", ("Alps", 23)))
    assert f"{path}, question q1: id 'q1' was seen before, at {path}, question q1" in refusal(path)
    assert len(list(Span.from_name("squad-1.1").read([find_table(path)], labelled=False))) == 2


def test_files_that_are_joined_may_have_ids_in_common(tmp_path: Path) -> None:
    both = [
        find_table(squad_file(tmp_path / name, asked("q1", ("Alps", 23))))
        for name in ("a.json", "b.json")
    ]
    assert len(list(Span.from_name("squad-1.1").read(both, labelled=True))) == 2


def test_rows_name_the_line_of_the_mistake_and_the_columns_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"q,context,answer\nWhere?,{CONTEXT},Alps\n")
    assert "a.csv:2: no column 'question'" in refusal(tmp_path / "a.csv")
    assert "columns here are q, context, answer; name the right one with --question" in refusal(
        tmp_path / "a.csv"
    )
    assert read(tmp_path / "a.csv", task=Span.from_name("span", question="q"))[0].span == ALPS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[1]",
            ": no list of objects 'data', as the layouts of SQuAD and MRQA have; keys here are "
            "none, since it is list",
        ),
        ('{"data": [{"title": "x"}]}', ", data[0]: no list of objects 'paragraphs'"),
        (
            '{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}',
            ", data[0].paragraphs[0]: 'context' is int, not text",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "", "qas": [3]}]}]}',
            ".paragraphs[0]: no list of objects 'qas'",
        ),
        ("{", ": not valid JSON"),
    ],
)
def test_a_document_that_is_not_squad_is_refused_with_the_place(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "a.json").write_text(content)
    assert message in refusal(tmp_path / "a.json")


@pytest.mark.parametrize("span", [[23], [23, 60], [-1, 4], "23", [26, 23]])
def test_a_detected_answer_outside_its_paragraph_is_refused(tmp_path: Path, span: Any) -> None:
    path = mrqa_file(
        tmp_path / "a.jsonl.gz", answers=["Alps"], detected_answers=[{"char_spans": [span]}]
    )
    assert (
        f"a.jsonl.gz:2, question m1: char_spans {span!r} must be [first, last] within"
        in refusal(path)
    )


@pytest.mark.parametrize(
    "answers", [3, {"text": "Alps"}, {"text": ["Alps"], "answer_start": [1, 2]}, [3]]
)
def test_answers_of_an_unknown_form_are_refused_with_their_line(
    tmp_path: Path, answers: Any
) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"question": "?", "context": CONTEXT, "answers": answers})
    )
    assert refusal(tmp_path / "a.jsonl").startswith(f"{tmp_path}/a.jsonl:1: ")


def test_empty_questions_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": " ", "context": CONTEXT, "answers": [CONTEXT[:5]]}))
    with pytest.warns(UserWarning, match=r"a\.jsonl: without a question or its paragraph: 1; they"):
        read(path)
