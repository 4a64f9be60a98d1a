"""The commands finetune, evaluate, predict and embed, and one clear message for every mistake."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import electra
from electra.__main__ import main
from electra.checksums import CHECKSUMS
from electra.model.networks import Generator
from tests.finetuning.test_finetune import glue_folder
from tests.tasks.toys import BY_HEART, TOYS, keyword_rows, option_rows, tiny_model, written
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

ByHeart = Callable[[str], Path]
FEW = [*BY_HEART, "--max-steps", "2"]


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail and write nothing, and return its one message."""

    def run(*arguments: object) -> str:
        before = sorted(path for path in tmp_path.rglob("*"))
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said
        (message,) = [line for line in said.splitlines() if line.startswith("error: ")]
        assert sorted(path for path in tmp_path.rglob("*")) == before
        return message.removeprefix("error: ")

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return written(tmp_path / "rows.csv", keyword_rows(8))


def model_of(by_heart: ByHeart, name: str) -> Path:
    return by_heart(name) / "seed-0" / "model"


# ---- good input ----------------------------------------------------------------------------------


def test_from_a_table_to_scores_and_predictions(
    tiny: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output = tmp_path / "run", tmp_path / "said.csv"
    assert (
        main(
            [
                "finetune",
                str(tiny),
                "--task",
                "classify",
                "--train",
                str(rows),
                "--dev",
                str(rows),
                "--dev-on-train",
                "--output-dir",
                str(run),
                *BY_HEART,
                "--json",
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert (printed["median"], printed["protocol"]) == (1.0, "one seed")
    assert main(["evaluate", str(run), "--dev", str(rows), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = ("accuracy", "f1", "roc_auc", "average_precision")
    assert printed["scores"] == {"dev": dict.fromkeys(names, 1.0)}
    assert [scores["label"] for scores in printed["classes"]["dev"]] == ["cats", "dogs"]
    assert (
        main(
            ["predict", str(run), str(run / "seed-0" / "model"), str(rows), "--output", str(output)]
        )
        == 0
    )
    assert "8 predictions" in capsys.readouterr().out
    with output.open() as stream:
        assert [row["label"] for row in csv.DictReader(stream)] == ["dogs", "cats"] * 4


def test_a_file_without_examples_is_warned_of(
    by_heart: ByHeart, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("text\n", encoding="utf8")
    assert main(["predict", str(model_of(by_heart, "classes")), str(empty)]) == 0
    assert capsys.readouterr().err.endswith(f"warning: {empty}: no examples there\n")


def test_predictions_go_to_standard_output_as_json_lines(
    by_heart: ByHeart, rows: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["predict", str(model_of(by_heart, "classes")), str(rows)]) == 0
    found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["label"] for line in found] == ["dogs", "cats"] * 4
    assert all(0.5 < line["probability"] <= 1 for line in found)


def test_columns_that_are_called_otherwise_are_named(
    by_heart: ByHeart, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "rows.csv", keyword_rows(8, header="sentence,animal"))
    columns = ["--text", "sentence", "--label=animal"]
    assert main(["evaluate", str(model_of(by_heart, "classes")), *columns, "--dev", str(rows)]) == 0
    assert "accuracy 1.0000" in capsys.readouterr().out
    assert (
        main(
            [
                "predict",
                *columns,
                str(model_of(by_heart, "classes")),
                str(rows),
                "--output",
                str(tmp_path / "said.jsonl"),
            ]
        )
        == 0
    )
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert (
        [line["label"] for line in said] == [line["gold"] for line in said] == ["dogs", "cats"] * 4
    )


def test_texts_that_were_cut_to_be_asked_about_are_counted_on_standard_error(
    by_heart: ByHeart, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "long.csv", f"text,label\nthe dog,dogs\n{'the cat ' * 30},cats\n")
    for words in (["evaluate", "--dev"], ["predict"]):
        assert main([words[0], str(model_of(by_heart, "classes")), *words[1:], str(rows)]) == 0
        said = capsys.readouterr().err
        assert (
            wording("texts_that_were_cut_to_be_asked_about_are_counted_on_standard_error") in said
        )
        assert said.count("\n") == 1, "and no line of source code"


@pytest.mark.parametrize("first", ["the dog,\nthe cat,cats\n", "the dog,dogs\nthe cat,\n"])
def test_a_table_of_predictions_is_whole_when_only_some_rows_are_labelled(
    by_heart: ByHeart, tmp_path: Path, first: str
) -> None:
    output = tmp_path / "said.tsv"
    rows = written(tmp_path / "some.csv", f"text,label\n{first}")
    assert (
        main(["predict", str(model_of(by_heart, "classes")), str(rows), "--output", str(output)])
        == 0
    )
    assert len(output.read_text().splitlines()) == 3


def test_glue_prints_the_average_and_what_is_missing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = glue_folder(tmp_path / "glue")
    assert (
        main(
            [
                "finetune",
                str(tiny),
                "--task",
                "glue",
                "--data",
                str(data),
                "--output-dir",
                str(tmp_path / "run"),
                *FEW,
                "--quiet",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert wording("glue_prints_the_average_and_what_is_missing") in printed
    assert (
        "no data for glue/sst-2, glue/mrpc, glue/sts-b, glue/qqp, glue/mnli, glue/qnli, glue/wnli"
        in " ".join(printed.split())
    )


def test_a_folder_of_glue_becomes_files_that_are_called_as_its_server_wants(
    tiny: Path, tmp_path: Path
) -> None:
    task = tmp_path / "glue" / "RTE"
    task.mkdir(parents=True)
    pairs = [f"{n}\tthe cat sat\tthe dog sat" for n in range(4)]
    for split in ("train", "dev"):
        labels = ("entailment", "not_entailment") * 2
        written(
            task / f"{split}.tsv",
            "index\tsentence1\tsentence2\tlabel\n"
            + "".join(f"{pair}\t{label}\n" for pair, label in zip(pairs, labels, strict=True)),
        )
    written(task / "test.tsv", "\n".join(["index\tsentence1\tsentence2", *pairs]) + "\n")
    model, answers = tmp_path / "run", tmp_path / "submission"
    assert (
        main(
            [
                "finetune",
                str(tiny),
                "--task",
                "glue/rte",
                "--data",
                str(tmp_path / "glue"),
                "--dev-on-train",
                "--output-dir",
                str(model),
                "--max-steps",
                "1",
                "--quiet",
            ]
        )
        == 0
    )
    assert (
        main(
            [
                "predict",
                str(model),
                str(tmp_path / "glue"),
                "--form",
                "glue",
                "--output",
                str(answers),
            ]
        )
        == 0
    )
    header, *lines = (answers / "RTE.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2", "3"]
    assert {line.split("\t")[1] for line in lines} <= {"entailment", "not_entailment"}


def test_questions_are_answered_in_the_form_that_squads_evaluation_takes(
    by_heart: ByHeart, tmp_path: Path
) -> None:
    asked = written(tmp_path / "asked.jsonl", TOYS["joint"].content)
    assert (
        main(
            [
                "predict",
                str(by_heart("joint")),
                str(asked),
                "--form",
                "squad",
                "--output",
                str(tmp_path / "said.json"),
            ]
        )
        == 0
    )
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["q0"], said["q7"]) == ("anna", "")
    assert json.loads((tmp_path / "said.na_prob.json").read_text())["q7"] > 0.5


def test_settings_can_be_seen_before_anything_is_done(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "finetune",
                str(tiny),
                "--task",
                "glue/rte",
                "--output-dir",
                str(tmp_path / "run"),
                "--print-config",
                "--batch-size",
                "16",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "epochs = 10.0" in printed
    assert "batch_size = 16" in printed
    assert "length = 64" in printed, "the model has no more positions"
    assert not (tmp_path / "run").exists()
    main(
        [
            "finetune",
            str(tiny),
            "--task",
            "glue/stsb",
            "--print-config",
        ]
    )
    printed = capsys.readouterr().out
    assert "epochs = 10.0" in printed, "another spelling of glue/sts-b"
    assert '\nschedule = "linear"  # linear, cosine, constant, wsd; how the rate falls' in printed
    assert "\n# dev_share is unset  # a number; share of the training data to score" in printed
    assert main(["finetune", str(tiny), "--task", "classify"]) == 2
    assert "--output-dir is missing" in capsys.readouterr().err


def test_texts_become_vectors(tiny: Path, rows: Path, tmp_path: Path) -> None:
    import numpy as np

    assert main(["embed", str(tiny), str(rows), "--output", str(tmp_path / "vectors.npy")]) == 0
    assert np.load(tmp_path / "vectors.npy").shape == (8, 32)


def test_a_sentence_on_the_command_line_becomes_a_vector(tiny: Path, tmp_path: Path) -> None:
    import numpy as np

    output = str(tmp_path / "vectors.npy")
    assert main(["embed", str(tiny), "the dog, and a cat", "--output", output]) == 0
    (vector,) = np.load(output)
    (expected,) = electra.embed(tiny, ["the dog, and a cat"]).vectors
    np.testing.assert_allclose(vector, expected, atol=1e-6)


def test_standard_input_becomes_vectors(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    for number, words in enumerate((["--output"], ["--length", "32", "--output"])):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a dog\na cat\n")))
        output = tmp_path / f"{number}.npy"
        assert main(["embed", str(tiny), "-", *words, str(output)]) == 0
        assert np.load(output).shape == (2, 32)


def test_long_inference_is_not_silent(
    by_heart: ByHeart,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("electra.console.PROGRESS_SECONDS", 0.0)
    model = str(model_of(by_heart, "classes"))
    assert main(["evaluate", model, "--dev", str(rows)]) == 0
    assert main(["predict", model, str(rows), "--output", str(tmp_path / "said.csv")]) == 0
    assert main(["embed", model, str(rows), "--output", str(tmp_path / "vectors.npy")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert {"1 of 1 batches", "8 predictions", "8 texts"} <= set(lines)


# ---- mistakes in the data ------------------------------------------------------------------------

DATA = "text,label\nthe dog,dogs\nthe cat,cats\n"
PARAGRAPH = {
    "context": "anna lives in rome",
    "qas": [{"id": "q1", "question": "who", "answers": [{"text": "berg", "answer_start": 40}]}],
}
SQUAD = json.dumps({"data": [{"title": "t", "paragraphs": [PARAGRAPH]}]})
THREE = option_rows().replace("a cat,a mat,0", "a cat,,0", 1)


@pytest.mark.parametrize(
    ("task", "name", "train", "dev", "message"),
    [
        (
            "classify",
            "x.csv",
            DATA,
            DATA + "the mat,mats\n",
            "dev-x.csv:4: label 'mats' was never seen in training, where they are cats, dogs",
        ),
        (
            "classify",
            "x.csv",
            DATA + "the mat,nan\n",
            DATA,
            "train-x.csv:4: 'label' holds 'nan', which is no label",
        ),
        ("classify", "x.jsonl", '{"text": "a", "label": NaN}\n', DATA, "train-x.jsonl:1: "),
        ("classify", "x.csv", DATA, "text,label\n", "dev-x.csv: no examples; the dev set is empty"),
        ("classify", "x.csv", DATA, "", "dev-x.csv: no examples; the dev set is empty"),
        ("classify", "x.csv", "text,label\n", DATA, "train-x.csv: no examples to train on"),
        (
            "classify",
            "x.csv",
            "text,label\na,dogs\nb,dogs\n",
            DATA,
            "train-x.csv:2: all 2 training rows have the same label, 'dogs'",
        ),
        (
            "classify",
            "x.csv",
            DATA.replace("text", "sentence"),
            DATA,
            "train-x.csv:2: no column 'text'; columns here are "
            "sentence, label; name the right one with --text",
        ),
        ("span", "x.json", SQUAD, SQUAD, "question q1: the answer 'berg'"),
        (
            "ner",
            "x.txt",
            "anna B-PER\nlives\n\n",
            "anna B-PER\n\n",
            "train-x.txt:2: 1 columns where the lines before have 2",
        ),
        (
            "ner",
            "x.txt",
            "anna B-PER\n\n",
            "rome B-LOC\n\n",
            "dev-x.txt:1: 'rome' in this sentence is tagged 'B-LOC', which training never saw",
        ),
        ("choose", "x.csv", THREE, option_rows(), "train-x.csv:3: 4 options where 3 are expected"),
        ("choose", "x.csv", option_rows(), THREE, "dev-x.csv:2: 3 options where 4 are expected"),
        ("classify", "x.docx", DATA, DATA, "rows are read from .csv, .tsv, .txt, .json"),
    ],
)
def test_a_mistake_in_the_data_is_named_with_its_place(
    error_of: Callable[..., str],
    tiny: Path,
    tmp_path: Path,
    task: str,
    name: str,
    train: str,
    dev: str,
    message: str,
) -> None:
    files = [
        written(tmp_path / f"{part}-{name}", content)
        for part, content in (("train", train), ("dev", dev))
    ]
    options = ["--options", "a,b,c,d"] if task == "choose" else []
    said = error_of(
        "finetune",
        tiny,
        "--task",
        task,
        "--train",
        files[0],
        "--dev",
        files[1],
        "--dev-on-train",
        "--output-dir",
        tmp_path / "run",
        *options,
        *FEW,
    )
    assert message in said
    assert str(tmp_path) in said, "where the file lies"


# ---- mistakes on the command line ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "clasify"], "--task clasify: unknown; did you mean classify?"),
        (["--task", "simlar"], "--task simlar: unknown; did you mean similar?"),
        (["--recipe", "papr"], "unknown fine-tuning recipe 'papr'; did you mean paper?"),
        (["--length", "65"], "--length 65: the model has only 64 positions"),
        (
            ["--too-long", "refuse", "--length", "8"],
            "rows.csv:2: longer than 8 tokens, as 7 more are",
        ),
        (["--learning-rat", "1"], "unknown setting --learning-rat; did you mean --learning-rate?"),
        (["--learning-rate", "fast"], "learning_rate must be a finite number, found 'fast'"),
        (["--lable", "x"], "unknown setting --lable"),
        (["--lr", "1e-4"], "unknown setting --lr; did you mean --learning-rate?"),
        (["--bs", "8"], "unknown setting --bs; did you mean --batch-size?"),
        (["--max-seq-length", "8"], "did you mean --length?"),
        (["--output", "run"], "unknown setting --output; did you mean --output-dir?"),
        (["--seeds", "0"], "--seeds 0: at least one run is needed"),
        (["--overwrite"], "--overwrite starts over and so needs --resume never"),
        (["--text"], "--text needs a value"),
        (["--swapped", "perhaps"], "swapped must be true or false, found 'perhaps'"),
        (["--frozen", "--layer", "7"], "--layer 7: this encoder has 2 layers"),
        (["--metric", "f2"], "metric 'f2' does not fit a classification"),
        (["--precision", "fp16"], "fp16"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_before_anything_is_written(
    error_of: Callable[..., str],
    tiny: Path,
    rows: Path,
    tmp_path: Path,
    words: list[str],
    message: str,
) -> None:
    settings: dict[str, list[str]] = {
        "--task": ["classify"],
        "--output-dir": [str(tmp_path / "run")],
        "--train": [str(rows)],
        "--dev": [str(rows)],
        "--dev-on-train": [],
        "--max-steps": ["2"],
        "--length": ["32"],
    }
    for place, word in enumerate(words):
        if word.startswith("--"):
            settings[word] = [
                value for value in words[place + 1 : place + 2] if not value.startswith("--")
            ]
    assert message in error_of(
        "finetune", tiny, *(w for flag, values in settings.items() for w in (flag, *values))
    )


def test_training_and_dev_data_are_asked_for(
    error_of: Callable[..., str], tiny: Path, rows: Path, tmp_path: Path
) -> None:
    words = ("finetune", tiny, "--task", "classify", "--output-dir", tmp_path / "run")
    assert "no training data; name files with --train, or a folder" in error_of(*words)
    assert "no dev data to score on; name a file with --dev" in error_of(*words, "--train", rows)
    assert "nowhere: no such folder" in error_of(*words, "--data", "nowhere")


def test_an_output_folder_that_is_a_file_or_somebody_elses_is_refused(
    error_of: Callable[..., str], tiny: Path, rows: Path, tmp_path: Path
) -> None:
    words = (
        "finetune",
        tiny,
        "--task",
        "classify",
        "--train",
        rows,
        "--dev",
        rows,
        "--dev-on-train",
        *FEW,
        "--output-dir",
    )
    assert "is a file; name a folder" in error_of(*words, rows)
    assert "is a file; name a folder" in error_of(*words, rows, "--dry-run")
    assert "holds something else than a fine-tuning" in error_of(*words, tmp_path)


# ---- mistakes in models --------------------------------------------------------------------------


def test_a_model_that_cannot_be_fine_tuned_is_refused_with_the_reason(
    error_of: Callable[..., str], tiny: Path, rows: Path, tmp_path: Path
) -> None:
    bare = Path(
        shutil.copytree(
            tiny, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "vocab*")
        )
    )
    generator = tiny_model(tmp_path / "generator", network=Generator, role="generator")
    words = (
        "--task",
        "classify",
        "--train",
        rows,
        "--dev",
        rows,
        "--dev-on-train",
        "--output-dir",
        tmp_path / "run",
        *FEW,
    )
    assert "a model without its tokenizer" in error_of("finetune", bare, *words)
    assert "holds a generator, the small network that only proposes" in error_of(
        "finetune", generator, *words
    )
    assert "nowhere: no such model folder" in error_of("finetune", "nowhere", *words)
    file = written(tmp_path / "data.csv", "text,label\n")
    assert "a file, and a model is a folder; data is" in error_of("evaluate", str(file))
    assert "no model there" in error_of("finetune", tmp_path, *words)


def damaged(by_heart: ByHeart, folder: Path, **changes: Any) -> Path:
    shutil.copytree(model_of(by_heart, "classes"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["electra_task"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / CHECKSUMS).unlink()
    return folder


def test_a_model_that_cannot_be_asked_is_refused_with_the_reason(
    error_of: Callable[..., str], by_heart: ByHeart, tiny: Path, rows: Path, tmp_path: Path
) -> None:
    torn = damaged(by_heart, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:1000])
    alien = damaged(by_heart, tmp_path / "alien", kind="rhyme")
    newer = damaged(by_heart, tmp_path / "newer", tune="major")
    wrong = damaged(by_heart, tmp_path / "wrong", labels=5)
    empty = damaged(by_heart, tmp_path / "empty")
    (empty / "config.json").write_text("{")
    for folder, message in (
        (torn, "model.safetensors: cannot be read"),
        (alien, "unknown kind of task 'rhyme'"),
        (newer, "electra_task cannot be read"),
        (wrong, "labels must be a list, found int 5"),
        (empty, "config.json: cannot be read as JSON"),
        (tiny, "an encoder without a task; fine-tune it first"),
    ):
        assert message in error_of("predict", folder, rows)
        assert message in error_of("evaluate", folder, "--dev", rows)


def test_evaluate_refuses_a_word_among_scores_with_advice_that_it_does_not_refuse(
    error_of: Callable[..., str], by_heart: ByHeart, rows: Path
) -> None:
    """Whether a model answers with scores was decided when it was fine-tuned."""
    message = error_of("evaluate", model_of(by_heart, "scores"), "--dev", rows)
    assert "is not a number, and this is a regression" in message
    assert "or fine-tune with --regression false for classes" in message


def test_questions_to_a_model_that_make_no_sense_are_refused(
    error_of: Callable[..., str], by_heart: ByHeart, rows: Path, tmp_path: Path
) -> None:
    model = model_of(by_heart, "classes")
    assert "electra predict MODEL INPUT" in error_of("predict", model)
    assert "written as .jsonl, .csv, .tsv" in error_of(
        "predict", model, rows, "--output", tmp_path / "said.txt"
    )
    assert "no folder" in error_of(
        "predict", model, rows, "--output", tmp_path / "nowhere" / "said.csv"
    )
    assert "nowhere.csv: no such file" in error_of("predict", model, "nowhere.csv")
    assert "INPUT is empty; name a file" in error_of("predict", model, "")
    assert "echo nowhere | electra" in error_of("embed", model, "nowhere", "--output", "v.npy")
    assert f"{rows}: a file, where a model is expected: `electra predict` reads one" in error_of(
        "predict", model, rows, "more.csv"
    )
    assert "unknown option --outptu for classify; did you mean --output?" in error_of(
        "predict", model, rows, "--outptu", "said.csv"
    )
    assert "unknown option --txt for classify; did you mean --text?" in error_of(
        "predict", model, rows, "--txt", "text"
    )
    assert "unknown option --labels" in error_of(
        "evaluate", model, "--labels", "a,b", "--dev", rows
    )
    assert "only models of one task" in error_of("predict", model, model_of(by_heart, "tags"), rows)
    assert "--form squad needs a model of that benchmark" in error_of(
        "predict", model, rows, "--form", "squad", "--output", tmp_path / "said.json"
    )
    assert "name it with --output" in error_of("predict", model, rows, "--form", "squad")
    assert "give --data" in error_of("evaluate", model)
    words = ("--task", "glue", "--data", tmp_path, "--output-dir", tmp_path / "run")
    assert "settings of one task" in error_of("finetune", model, *words, "--print-config")
    assert "must not be negative" in error_of("finetune", model, *words, "--seed", "-1")
    assert "--regression was decided when" in error_of(
        "predict", model, rows, "--regression", "true"
    )
    assert "--dev names files" in error_of("evaluate", model, "--dev", rows, "--split", "test")
    assert "name a number from 3" in error_of(
        "embed", model, rows, "--output", tmp_path / "v.npy", "--length", "1"
    )
    assert "name at least one model" in error_of("evaluate", "--dev", rows)
    assert "was fine-tuned for classify, not for ner" in error_of(
        "evaluate", model, "--task", "ner", "--dev", rows
    )
    other = written(tmp_path / "other.csv", "text,label\nthe mat,mats\n")
    assert "other.csv:2: label 'mats' was never seen in training" in error_of(
        "evaluate", model, "--dev", other
    )
