from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from electra.config import UserError
from electra.data.tables import find_table
from electra.tasks.conll import Sentence, sentences_from_rows, sentences_from_text
from electra.tasks.conll_columns import LAST, ColumnChoice
from tests.tasks.toys import written
from tests.wording import wording_of

wording = wording_of(__file__)

COLUMNS = """-DOCSTART- -X- O O

Anna NNP I-NP I-PER
lives VBZ I-VP O

-DOCSTART- -X- O O

Rome NNP I-NP I-LOC
"""


def read(
    path: Path, *, words: int | None = None, column: int = LAST, labelled: bool = True
) -> list[Sentence]:
    choice = ColumnChoice(words, column)
    table = find_table(path)
    return list(sentences_from_text(table, choice, labelled=labelled, known={"O", "NOUN"}))


def read_rows(path: Path, *, labelled: bool = True) -> list[Sentence]:
    return list(
        sentences_from_rows(
            find_table(path), words=("tokens",), tags=("tags", "ner_tags"), labelled=labelled
        )
    )


# ---- columns -------------------------------------------------------------------------------------


def test_a_blank_line_ends_a_sentence_and_document_marks_are_no_words(tmp_path: Path) -> None:
    path = written(tmp_path / "train.txt", COLUMNS)
    assert read(path) == [
        Sentence(f"{path}:3", ("Anna", "lives"), ("I-PER", "O")),
        Sentence(f"{path}:8", ("Rome",), ("I-LOC",)),
    ]


def test_the_column_with_the_tag_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "train.txt", COLUMNS)
    assert [sentence.tags for sentence in read(path, column=1)] == [("NNP", "VBZ"), ("NNP",)]


def test_the_last_sentence_needs_no_blank_line(tmp_path: Path) -> None:
    assert [s.words for s in read(written(tmp_path / "a.conll", "a O\n\n\n\nb O\nc O"))] == [
        ("a",),
        ("b", "c"),
    ]


def test_a_no_break_space_is_a_word(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a.conll", "\u00a0\tO\nb\tO\n"))[0].words == ("\u00a0", "b")


@pytest.mark.parametrize("line", ["sat", "sat VBD O extra"])
def test_a_ragged_line_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "train.txt", f"the DT O\ndog NN O\n{line}\n")
    with pytest.raises(
        UserError, match=rf"train.txt:3: \d columns where the lines before have 3: '{line}'"
    ):
        read(path)


@pytest.mark.parametrize("column", [0, 2, -2, -3])
def test_a_column_that_holds_no_tag_is_refused(tmp_path: Path, column: int) -> None:
    path = written(tmp_path / "train.txt", "the O\n")
    with pytest.raises(
        UserError,
        match=f"train.txt:1: 2 columns .the O., so --column {column} is not one with a tag",
    ):
        read(path, column=column)


def test_words_without_tags_are_refused_where_tags_are_needed(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=wording("words_without_tags_are_refused_where_tags_are_needed")
    ):
        read(written(tmp_path / "words.txt", "the\ndog\n"))


@pytest.mark.parametrize(("labelled", "words"), [(True, 2), (False, 100)])
def test_a_file_without_a_blank_line_is_warned_of(
    tmp_path: Path, labelled: bool, words: int
) -> None:
    path = written(tmp_path / "a.conll", "Anna O\n" * words)
    message = f"a.conll:1: the file is one sentence of {words} words; a blank line ends a sentence"
    with pytest.warns(UserWarning, match=message):
        assert len(read(path, labelled=labelled)) == 1


@pytest.mark.filterwarnings("error")
def test_two_sentences_and_a_short_one_to_be_tagged_are_not_warned_of(tmp_path: Path) -> None:
    assert len(read(written(tmp_path / "a.conll", "Anna O\nsat O\n\nYes O\n"))) == 2
    assert len(read(written(tmp_path / "b.conll", "Anna O\nsat O\n"), labelled=False)) == 1


# ---- CoNLL-U -------------------------------------------------------------------------------------


CONLLU = (
    "1\tAnna\tAnna\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n"
    "2-3\tcannot\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tcan\tcan\tAUX\tMD\t_\t0\troot\t_\t_\n"
    "3\tnot\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_\n"
    "3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_\n\n"
    "1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_\n"
)


@pytest.mark.parametrize("name", ["a.conllu", "a.conll", "a.txt"])
def test_words_and_tags_of_conllu_are_its_forms_and_upos(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, CONLLU)
    assert read(path) == [
        Sentence(f"{path}:1", ("Anna", "can", "not"), ("PROPN", "AUX", "PART")),
        Sentence(f"{path}:7", ("10 000",), ("NUM",)),
    ]
    assert [s.words for s in read(path, labelled=False)] == [("Anna", "can", "not"), ("10 000",)]


def test_other_columns_of_conllu_can_be_named(tmp_path: Path) -> None:
    (first, _) = read(written(tmp_path / "a.conllu", CONLLU), words=2, column=4)
    assert first.words == ("Anna", "can", "not")
    assert first.tags == ("NNP", "MD", "RB")


def test_a_file_of_single_words_is_conllu_by_its_ending(tmp_path: Path) -> None:
    content = "1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"
    assert read(written(tmp_path / "a.conllu", content))[0].words == ("Go",)


NUMBERED = "1\tAnna\tB-PER\t-\n2\tsat\tO\t-\n\n1\tYes\tO\t-\n"


def test_numbers_of_words_are_refused_as_words_with_the_remedy(tmp_path: Path) -> None:
    path = written(tmp_path / "a.iob2", NUMBERED)
    with pytest.raises(UserError, match=r"a\.iob2:1: the first column counts .* --words 1"):
        read(path)
    assert [s.words for s in read(path, words=1, column=2)] == [("Anna", "sat"), ("Yes",)]
    assert read(path, words=0, column=2)[0].words == ("1", "2")


def test_the_column_with_the_words_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "B-PER NNP Anna\nO VBD sat\n")
    assert [(s.words, s.tags) for s in read(path, words=-1, column=0)] == [
        (("Anna", "sat"), ("B-PER", "O"))
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (2, ":1: 2 columns .the O., so --words 2 is none of them"),
        (1, ":1: 2 columns .the O., so --column -1 is not one with a tag; --words 1 holds"),
    ],
)
def test_a_column_that_holds_no_words_is_refused(tmp_path: Path, words: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(written(tmp_path / "a.conll", "the O\n"), words=words)


def test_the_marks_of_documents_of_conll_2012_are_no_words(tmp_path: Path) -> None:
    content = "#begin document (a); part 000\nthe DT O\n\nAnna NNP B-PER\n#end document\n"
    (one, two) = read(written(tmp_path / "a.conll", content))
    assert (one.words, two.words) == (("the",), ("Anna",))


# ---- comments ------------------------------------------------------------------------------------


def test_comments_of_conllu_are_no_words(tmp_path: Path) -> None:
    commented = "#newdoc\n# sent_id = 1\n# text = " + "a " * 7 + "\n" + CONLLU
    path = written(tmp_path / "a.conllu", commented)
    assert [s.words for s in read(path)] == [("Anna", "can", "not"), ("10 000",)]


@pytest.mark.filterwarnings("error")
def test_comments_before_a_sentence_have_another_number_of_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "# text = Anna sat\nAnna O\nsat O\n\n#\n# sent 2\nYes O\n")
    assert read(path) == [
        Sentence(f"{path}:2", ("Anna", "sat"), ("O", "O")),
        Sentence(f"{path}:7", ("Yes",), ("O",)),
    ]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("line", ["# O", "# NUM", "# B-PER", "#\tSYM", "#tag O", "0 O\n# newpar"])
def test_a_sign_with_a_tag_of_other_words_is_a_word(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "a.conll", f"{line}\n1 O\n\nyes NUM\n")
    assert len(read(path)[0].words) == line.count("\n") + 2


def test_a_comment_that_looks_like_a_word_with_a_tag_makes_no_tag(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "# newpar\nAnna O\n\n# newpar\nsat O\n")
    with pytest.warns(UserWarning, match=r"a\.conll:1: '# newpar' is read as a comment") as warned:
        assert [s.words for s in read(path)] == [("Anna",), ("sat",)]
    assert len(warned) == 1


@pytest.mark.filterwarnings("error")
def test_the_tag_of_the_penn_treebank_for_a_number_sign_is_no_comment(tmp_path: Path) -> None:
    (first, _) = read(written(tmp_path / "a.pos", "# #\n400 CD\nmillion CD\n\nYes UH\n"))
    assert (first.words, first.tags) == (("#", "400", "million"), ("#", "CD", "CD"))


def test_lines_without_tabs_are_comments_where_tabs_separate_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "# newpar\nAnna\tO\n\n#\tO\n")
    assert [s.words for s in read(path)] == [("Anna",), ("#",)]


def test_a_ragged_line_below_a_comment_is_refused_by_its_own_number(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "# text = Anna sat\nAnna O\nsat\n")
    with pytest.raises(UserError, match=r"a\.conll:3: 1 columns where the lines before have 2"):
        read(path)


def test_comments_do_not_hide_the_columns_of_a_text_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "# text = Anna sat\nAnna B-PER\nsat O\n")
    assert [s.words for s in read(path, labelled=False)] == [("Anna", "sat")]
    prose = written(tmp_path / "b.txt", "# Title\n\nHello\n")
    assert [s.words for s in read(prose, labelled=False)] == [("#", "Title"), ("Hello",)]


# ---- text to be tagged ---------------------------------------------------------------------------


def test_text_to_be_tagged_may_have_a_sentence_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "input.txt", "Anna lives in Rome .\n\nShe sat .\n")
    assert read(path, labelled=False) == [
        Sentence(f"{path}:1", ("Anna", "lives", "in", "Rome", "."), None),
        Sentence(f"{path}:3", ("She", "sat", "."), None),
    ]


def test_sentences_that_happen_to_be_equally_long_are_not_taken_for_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "input.txt", "Anna sat\nShe ran\n")
    assert [sentence.words for sentence in read(path, labelled=False)] == [
        ("Anna", "sat"),
        ("She", "ran"),
    ]


def test_text_to_be_tagged_may_have_a_word_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "input.txt", "Anna\nsat\n\nRome\n")
    assert [sentence.words for sentence in read(path, labelled=False)] == [
        ("Anna", "sat"),
        ("Rome",),
    ]


@pytest.mark.parametrize("content", [COLUMNS, "dog NOUN\ncat NOUN\n"])
def test_a_file_with_tags_is_read_as_columns_when_there_is_nothing_to_learn(
    tmp_path: Path, content: str
) -> None:
    found = read(written(tmp_path / "test.txt", content), labelled=False)
    assert found[0].words in (("Anna", "lives"), ("dog", "cat"))
    assert found[0].tags is None


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_hold_lists_or_text_with_blanks_between(tmp_path: Path) -> None:
    lists = written(
        tmp_path / "a.jsonl", json.dumps({"tokens": ["Anna", "sat"], "tags": ["B-PER", "O"]})
    )
    cells = written(tmp_path / "a.csv", "tokens,tags\nAnna sat,B-PER O\n")
    pyarrow.parquet.write_table(
        pyarrow.table({"tokens": [["Anna", "sat"]], "ner_tags": [["B-PER", "O"]]}),
        tmp_path / "a.parquet",
    )
    for path in (lists, cells, tmp_path / "a.parquet"):
        assert [(s.words, s.tags) for s in read_rows(path)] == [(("Anna", "sat"), ("B-PER", "O"))]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ('["Ada", "lives here"]', ("Ada", "lives here")),
        ('["1", "[", "\\u00e9"]', ("1", "[", "é")),
        ("[]", ()),
        ("[ 1 ]", ("[", "1", "]")),
        ("[1]", ("[1]",)),
        ('[ " no " ]', ("[", '"', "no", '"', "]")),
    ],
)
def test_json_of_a_list_in_a_cell_is_the_list(
    tmp_path: Path, cell: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", encoding="utf8", newline="") as file:
        csv.writer(file).writerows([["tokens"], [cell]])
    assert read_rows(path, labelled=False)[0].words == words


@pytest.mark.parametrize("cell", ["['Ada', 'lives']", "['Ada' 'lives']", '["Ada" "lives"]'])
def test_a_list_in_a_cell_that_is_not_json_is_refused(tmp_path: Path, cell: str) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({"tokens": cell}))
    with pytest.raises(UserError, match=wording("a_list_in_a_cell_that_is_not_json_is_refused")):
        read_rows(path, labelled=False)


def test_rows_without_tags_can_be_read_to_be_tagged(tmp_path: Path) -> None:
    assert (
        read_rows(written(tmp_path / "a.jsonl", '{"tokens": ["a"]}'), labelled=False)[0].tags
        is None
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "2 words in 'tokens', but 1 tags in 'tags'"),
        (
            {"tokens": ["a"], "tags": [3]},
            "'tags' holds 3, which is int, not text; write tags by their names",
        ),
        ({"tokens": ["a", None]}, "'tokens' holds None, .*; write every word as text$"),
        ({"tokens": 7, "tags": ["O"]}, "'tokens' is int; a list of texts is expected"),
        ({"tokens": ["a"]}, "no column 'tags'.*with --tags"),
        ({"word": ["a"]}, "no column 'tokens'.*columns here are word.*with --words"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_by_its_line(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    path = written(tmp_path / "a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n' + json.dumps(row))
    with pytest.raises(UserError, match=f"a.jsonl:2: {message}"):
        read_rows(path)


def test_empty_words_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({"tokens": ["a", ""], "tags": ["O", "O"]}))
    with pytest.warns(UserWarning, match=r"a\.jsonl: words without text: 1; they are kept"):
        read_rows(path)
