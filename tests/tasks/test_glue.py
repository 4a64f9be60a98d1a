from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from electra.config import UserError
from electra.data.tables import find_table, table_of_rows
from electra.tasks.glue import GLUE, LAYOUTS, Glue, available_tasks
from electra.tasks.submissions import server_file, write_glue
from electra.tasks.texts import Text
from tests.wording import wording_of

wording = wording_of(__file__)

# The first lines of each task's files, with the columns of the official release.
PAIR = "index\tsentence1\tsentence2\tlabel\n0\tIt rained.\tIt was wet.\t"
STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2"
)
OFFICIAL = {
    "glue/cola": ("CoLA/train.tsv", 'gj04\t0\t*\tThe "books" was read.\n'),
    "glue/sst-2": ("SST-2/train.tsv", "sentence\tlabel\na fine film \t1\n"),
    "glue/mrpc": (
        "MRPC/train.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tHe went .\tHe left .\n",
    ),
    "glue/sts-b": (
        "STS-B/train.tsv",
        f"{STS}\tscore\n0\tnews\tx\t2012\t1\tnone\tnone\tIt rains.\tIt pours.\t3.800\n",
    ),
    "glue/qqp": (
        "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tWho?\tWhom?\t0\n",
    ),
    "glue/mnli": (
        "MNLI/train.tsv",
        f"{MNLI}\tlabel1\tgold_label\n0\t1\t2\tx\tx\tx\tx\tx\tIt rained.\tIt was wet."
        "\tneutral\tneutral\n",
    ),
    "glue/qnli": (
        "QNLI/train.tsv",
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tentailment\n",
    ),
    "glue/rte": ("RTE/train.tsv", f"{PAIR}not_entailment\n"),
    "glue/wnli": ("WNLI/train.tsv", f"{PAIR}1\n"),
}
EXPECTED = {  # first, second, label, id
    "glue/cola": ('The "books" was read.', None, "0", None),
    "glue/sst-2": ("a fine film ", None, "1", None),
    "glue/mrpc": ("He went .", "He left .", "1", None),
    "glue/sts-b": ("It rains.", "It pours.", "3.800", "0"),
    "glue/qqp": ("Who?", "Whom?", "0", "5"),
    "glue/mnli": ("It rained.", "It was wet.", "neutral", "0"),
    "glue/qnli": ("Who?", "He did.", "entailment", "0"),
    "glue/rte": ("It rained.", "It was wet.", "not_entailment", "0"),
    "glue/wnli": ("It rained.", "It was wet.", "1", "0"),
}


def write(path: Path, content: str = "index\tsentence1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf8")
    return path


def read(name: str, path: Path, *, labelled: bool = True) -> list[Text]:
    return list(Glue.from_name(name).read([find_table(path)], labelled=labelled))


# ---- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GLUE)
def test_official_files_are_read_from_the_glue_folder_and_from_the_tasks_own(
    tmp_path: Path, name: str
) -> None:
    file, content = OFFICIAL[name]
    write(tmp_path / file, content)
    task = Glue.from_name(name)
    for data in (tmp_path, tmp_path / LAYOUTS[name].folder):
        (example,) = task.read(task.locate(str(data)).train, labelled=True)
        assert (example.first, example.second, example.label, example.id) == EXPECTED[name]
        task.check([example])


def test_tasks_are_in_the_papers_order_with_its_metrics() -> None:
    assert {name.removeprefix("glue/"): Glue.from_name(name).metrics for name in GLUE} == {
        "cola": ("matthews_correlation",),
        "sst-2": ("accuracy",),
        "mrpc": ("accuracy", "f1"),
        "sts-b": ("spearmanr", "pearson"),
        "qqp": ("accuracy", "f1"),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
    }
    assert [name for name in GLUE if Glue.from_name(name).swapped] == ["glue/mrpc", "glue/sts-b"]


def test_a_task_answers_to_the_hubs_spelling_and_no_other_name() -> None:
    assert [Glue.from_name(name).name for name in ("glue/sst2", "glue/STS-B", "glue/stsb")] == [
        "glue/sst-2",
        "glue/sts-b",
        "glue/sts-b",
    ]
    with pytest.raises(
        UserError, match=wording("a_task_answers_to_the_hubs_spelling_and_no_other_name")
    ):
        Glue.from_name("glue/mprc")


def test_colas_test_file_has_a_line_of_names_and_its_others_have_none(tmp_path: Path) -> None:
    (test,) = read(
        "glue/cola",
        write(tmp_path / "test.tsv", "index\tsentence\n0\tBill left.\n"),
        labelled=False,
    )
    (dev,) = read("glue/cola", write(tmp_path / "dev.tsv", "gj04\t1\t\tBill left.\n"))
    assert (test.first, test.label, test.id) == ("Bill left.", None, "0")
    assert (dev.first, dev.label, dev.where) == ("Bill left.", "1", f"{tmp_path}/dev.tsv:1")


def test_mnli_has_two_dev_sets_and_a_diagnostic_set_beside_it(tmp_path: Path) -> None:
    for name in ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        write(tmp_path / "MNLI" / f"{name}.tsv")
    write(tmp_path / "diagnostic" / "diagnostic.tsv")
    files = Glue.from_name("glue/mnli").locate(str(tmp_path))
    assert {part: found.source.name for part, (found,) in files.dev.items()} == {
        "matched": "dev_matched.tsv",
        "mismatched": "dev_mismatched.tsv",
    }
    assert list(files.test) == ["matched", "mismatched", "diagnostic"]


def test_mnli_with_one_dev_file_has_the_matched_part_alone_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "MNLI" / "dev_matched.tsv")
    with pytest.warns(
        UserWarning, match=wording("mnli_with_one_dev_file_has_the_matched_part_alone_and_says_so")
    ):
        assert list(Glue.from_name("glue/mnli").locate(str(tmp_path)).dev) == ["matched"]


def test_pairs_on_which_annotators_did_not_agree_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "dev_matched.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\nc\td\tneutral\n"
    )
    with pytest.warns(
        UserWarning,
        match=wording("pairs_on_which_annotators_did_not_agree_are_left_out_and_counted"),
    ):
        assert [example.first for example in read("glue/mnli", path)] == ["c"]
    assert len(read("glue/mnli", path, labelled=False)) == 2


def test_the_broken_lines_of_qqps_release_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.tsv",
        OFFICIAL["glue/qqp"][1] + "6\t1\t2\tWhat\n7\t1\t2\tWhen?\tWhere?\t1\n",
    )
    with pytest.warns(
        UserWarning,
        match=wording("the_broken_lines_of_qqps_release_are_left_out_and_counted"),
    ):
        assert [example.id for example in read("glue/qqp", path)] == ["5", "7"]


def test_a_broken_line_of_any_other_task_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=wording("a_broken_line_of_any_other_task_is_an_error")):
        read("glue/rte", write(tmp_path / "train.tsv", OFFICIAL["glue/rte"][1] + "1\n"))


def test_a_label_of_another_task_is_refused_with_those_of_this_one(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=wording("a_label_of_another_task_is_refused_with_those_of_this_one"),
    ):
        Glue.from_name("glue/rte").check(
            read("glue/rte", write(tmp_path / "train.tsv", f"{PAIR}neutral\n"))
        )


def test_a_file_of_another_layout_is_refused_with_the_columns_it_has(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=wording("a_file_of_another_layout_is_refused_with_the_columns_it_has")
    ):
        read("glue/qnli", write(tmp_path / "train.tsv", OFFICIAL["glue/rte"][1]))


def test_other_columns_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", "a,b\nIt rained.,It was wet.\n")
    (example,) = Glue.from_name("glue/rte", text="a", text_pair="b").read(
        [find_table(path)], labelled=False
    )
    assert (example.first, example.second) == ("It rained.", "It was wet.")


def test_what_was_learnt_survives_a_model_folder() -> None:
    task = Glue.from_name("glue/sts-b").fit_labels(
        [Text("x:1", "a", "b", "0.0"), Text("x:2", "a", "b", "5.0")]
    )
    assert task.description == "STS-B, a regression scored by spearmanr and pearson"
    assert Glue.from_settings(json.loads(json.dumps(task.settings()))) == task


def test_the_similarity_of_two_sentences_is_learnt_from_0_to_1_whatever_the_training_scores() -> (
    None
):
    examples = [Text("x:1", "a", "b", "1.0"), Text("x:2", "a", "b", "4.5")]
    head = Glue.from_name("glue/sts-b").fit_labels(examples).head(8, dropout=0.0)
    assert (head.low, head.scale) == (0.0, 5.0)


# ---- what there is -------------------------------------------------------------------------------


def test_available_tasks_have_training_and_dev_data(tmp_path: Path) -> None:
    for file in (
        "RTE/train.tsv",
        "RTE/dev.tsv",
        "CoLA/train.tsv",
        "MNLI/train.tsv",
        "MNLI/dev_mismatched.tsv",
    ):
        write(tmp_path / file)
    found, missing = available_tasks(str(tmp_path))
    assert found == ("glue/mnli", "glue/rte")
    assert missing == (
        "glue/cola",
        "glue/sst-2",
        "glue/mrpc",
        "glue/sts-b",
        "glue/qqp",
        "glue/qnli",
        "glue/wnli",
    )
    assert available_tasks(str(tmp_path / "RTE"))[0] == ("glue/rte",)


def test_a_folder_without_the_tasks_files_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path / "RTE" / "notes.md")
    with pytest.raises(
        UserError, match=wording("a_folder_without_the_tasks_files_is_refused_with_what_it_holds")
    ):
        Glue.from_name("glue/rte").locate(str(tmp_path))
    with pytest.raises(
        UserError, match=wording("a_folder_without_the_tasks_files_is_refused_with_what_it_holds_2")
    ):
        available_tasks(str(tmp_path / "nowhere"))


# ---- the hub -------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class Answer:
        sha = "abc"

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: Answer)


@pytest.mark.usefixtures("hub")
def test_the_hub_is_asked_for_the_tasks_own_configuration_and_splits() -> None:
    files = Glue.from_name("glue/sst-2").locate("nyu-mll/glue")
    assert [str(*found) for found in (files.train, files.dev["dev"], files.test["test"])] == [
        "nyu-mll/glue:sst2/train",
        "nyu-mll/glue:sst2/validation",
        "nyu-mll/glue:sst2/test",
    ]
    files = Glue.from_name("glue/mnli").locate("nyu-mll/glue:mnli")
    assert [str(*found) for found in (*files.dev.values(), *files.test.values())] == [
        f"nyu-mll/glue:mnli/{split}"
        for split in (
            "validation_matched",
            "validation_mismatched",
            "test_matched",
            "test_mismatched",
        )
    ]
    assert available_tasks("nyu-mll/glue") == (GLUE, ())


@pytest.mark.parametrize(
    ("name", "row", "label"),
    [
        ("glue/cola", {"sentence": "a", "label": "acceptable", "idx": 4}, "1"),
        (
            "glue/mrpc",
            {"sentence1": "a", "sentence2": "b", "label": "not_equivalent", "idx": 4},
            "0",
        ),
        ("glue/qqp", {"question1": "a", "question2": "b", "label": "duplicate", "idx": 4}, "1"),
        ("glue/wnli", {"sentence1": "a", "sentence2": "b", "label": "entailment", "idx": 4}, "1"),
        (
            "glue/mnli",
            {"premise": "a", "hypothesis": "b", "label": "contradiction", "idx": 4},
            "contradiction",
        ),
        ("glue/rte", {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 4}, "not_entailment"),
        ("glue/sts-b", {"sentence1": "a", "sentence2": "b", "label": 3.5, "idx": 4}, "3.5"),
    ],
)
def test_the_hubs_columns_and_class_names_mean_the_official_ones(
    name: str, row: dict[str, object], label: str
) -> None:
    table = table_of_rows([("row 1", row)], name="hub")
    (example,) = Glue.from_name(name).read([table], labelled=True)
    assert (example.first, example.label, example.id) == ("a", label, "4")


@pytest.mark.parametrize("label", [None, -1, -1.0])
def test_the_hubs_secret_labels_are_none(label: float | None) -> None:
    row = {"sentence1": "a", "sentence2": "b", "label": label, "idx": 0}
    table = table_of_rows([("row 1", row)], name="hub")
    (example,) = Glue.from_name("glue/sts-b").read([table], labelled=False)
    assert example.label is None


# ---- the server ----------------------------------------------------------------------------------


def test_a_submission_has_an_index_and_the_label_as_the_server_spells_it(tmp_path: Path) -> None:
    examples = [Text("x:1", "a", "b", id="10"), Text("x:2", "a", "b", id="11")]
    write_glue(
        tmp_path / "RTE.tsv",
        Glue.from_name("glue/rte"),
        examples,
        [np.array([0.2, 0.8]), np.array([0.7, 0.3])],
    )
    assert (
        tmp_path / "RTE.tsv"
    ).read_text() == "index\tprediction\n10\tnot_entailment\n11\tentailment\n"


def test_an_id_cannot_add_a_line_to_a_submission(tmp_path: Path) -> None:
    examples = [Text("x:1", "a", "b", id="1\n2\tentailment")]
    write_glue(tmp_path / "RTE.tsv", Glue.from_name("glue/rte"), examples, [np.array([1.0, 0.0])])
    assert len((tmp_path / "RTE.tsv").read_text(encoding="utf8").splitlines()) == 2


def test_a_submission_of_scores_keeps_to_the_scale(tmp_path: Path) -> None:
    examples = [Text("x:1", "a", "b")] * 3
    answers = [np.array([score]) for score in (-0.2, 2.71828, 5.1)]
    write_glue(tmp_path / "STS-B.tsv", Glue.from_name("glue/sts-b"), examples, answers)
    assert (
        tmp_path / "STS-B.tsv"
    ).read_text() == "index\tprediction\n0\t0.000\n1\t2.718\n2\t5.000\n"


def test_the_server_knows_a_file_by_its_name() -> None:
    assert [server_file(name, "test") for name in GLUE if name != "glue/mnli"] == [
        "CoLA.tsv",
        "SST-2.tsv",
        "MRPC.tsv",
        "STS-B.tsv",
        "QQP.tsv",
        "QNLI.tsv",
        "RTE.tsv",
        "WNLI.tsv",
    ]
    assert [server_file("glue/mnli", part) for part in ("matched", "mismatched", "diagnostic")] == [
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "AX.tsv",
    ]
