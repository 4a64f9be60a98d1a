"""The functions of `import electra`, as a program or a notebook calls them."""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch

import electra
from electra.api import random_numbers
from electra.api.random_numbers import own_random_numbers
from electra.api.results import FinetuneResult, PretrainResult
from electra.config import SettingError
from electra.pretraining.recipe import load_recipe
from electra.tasks.classify import Classify
from tests.tasks.toys import keyword_rows, written

pytestmark = pytest.mark.usefixtures("few_threads")

FUNCTIONS = [electra.pretrain, electra.finetune, electra.evaluate, electra.embed, electra.load]
ROWS = [
    {"review": line.split(",")[0], "stars": line.split(",")[1]}
    for line in keyword_rows(30).splitlines()[1:]
]
FEW = {"max_steps": 3, "batch_size": 4, "length": 16}
TINY_RUN = {
    "batch_size": 4,
    "micro_batch_size": 4,
    "eval_rows": 4,
    "encoder": {"layers": 1, "width": 16, "heads": 2, "feedforward": 16, "embedding": 8},
    "data": {"length": 16, "vocab_size": 150},
}


class Frame:
    """A DataFrame, as far as we know one."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self.rows


@pytest.fixture(scope="module")
def tuned(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    return electra.finetune(
        tiny,
        "classify",
        train=Frame(ROWS),
        text="review",
        label="stars",
        output_dir=tmp_path_factory.mktemp("tuned") / "run",
        settings=FEW,
        quiet=True,
    )


# ---- what is shown -------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_help_names_and_explains_every_keyword(function: Callable[..., object]) -> None:
    documentation = inspect.getdoc(function)
    assert documentation is not None
    for name, parameter in inspect.signature(function).parameters.items():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        assert parameter.annotation is not parameter.empty
        assert "Parameter(" not in str(parameter.annotation)
        assert f"\n{name}\n    " in documentation
    assert "--" not in documentation.replace("----------", "")


def test_a_keyword_that_is_misspelt_is_refused_with_the_one_that_was_meant(tiny: Path) -> None:
    with pytest.raises(
        TypeError, match=r"^pretrain\(\) .*'max_step'; did you mean max_steps\? Or is it"
    ):
        electra.pretrain("tiny", corpus="x.txt", max_step=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r'settings=\{"learning_rate": …\}$'):
        electra.pretrain("tiny", corpus="x.txt", learning_rate=1e-3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^finetune\(\) missing a required argument: 'task'$"):
        electra.finetune(tiny)  # type: ignore[call-arg]


# ---- pretrain ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    return electra.pretrain(
        "tiny",
        corpus=str(toy_corpus),
        max_steps=2,
        settings=TINY_RUN,
        output_dir=tmp_path_factory.mktemp("pretrained") / "run",
        quiet=True,
    )


def test_pretrain_takes_one_path_as_a_string_and_settings_as_a_dict(run: PretrainResult) -> None:
    assert run.step == 2
    assert (run.output_dir / "discriminator" / "model.safetensors").is_file()
    assert electra.embed(run, ["the old dog"]).vectors.shape == (1, 16)
    assert str(run.output_dir) in run._repr_html_()


def test_pretrain_returns_the_status_and_the_verdict_that_are_in_the_run_folder(
    run: PretrainResult,
) -> None:
    written = json.loads((run.output_dir / "status.json").read_text())
    assert (run.status, run.verdict) == (written["status"], written["verdict"]["text"])
    assert run.verdict in run._repr_html_()


def test_pretrain_prints_nothing_when_quiet_and_leaves_the_signal_handlers_alone(
    toy_corpus: Path, run: PretrainResult, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    again = electra.pretrain(
        "tiny",
        corpus=toy_corpus,
        max_steps=2,
        settings=TINY_RUN,
        output_dir=run.output_dir,
        quiet=True,
    )
    assert (again.step, again.output_dir) == (run.step, run.output_dir)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_writes_a_checkpoint_and_is_raised(
    run: PretrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object, step: int) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("electra.runs.journal.Journal.advance", interrupt)
    before = signal.getsignal(signal.SIGINT)
    recipe = load_recipe("tiny", flags=["--batch-size", "4", "--micro-batch-size", "4"])
    with pytest.raises(KeyboardInterrupt):
        electra.pretrain(
            recipe,
            data=run.output_dir / "data" / "shards",
            max_steps=50,
            output_dir=tmp_path / "run",
            settings=TINY_RUN,
            quiet=True,
        )
    assert list((tmp_path / "run").glob("checkpoint-*"))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("settings", [{"encoder.layers": 6}, {"encoder": {"layers": 6}}], ids=str)
def test_a_recipe_is_loaded_with_the_settings_and_keywords_of_pretrain(
    settings: dict[str, object],
) -> None:
    recipe = electra.load_recipe("small", max_steps=5, settings=settings)
    assert (recipe.training.max_steps, recipe.encoder.layers) == (5, 6)
    assert electra.load_recipe(recipe, seed=3).encoder.layers == 6
    with pytest.raises(electra.UserError, match=r"mean settings..encoder\.layers"):
        electra.load_recipe("small", settings={"encoder.layrs": 6})


def test_pretrain_refuses_a_setting_that_shards_contradict(
    run: PretrainResult, tmp_path: Path
) -> None:
    shards = run.output_dir / "data" / "shards"
    for recipe in ("tiny", load_recipe("tiny")):
        with pytest.raises(SettingError, match=r"data\.vocab_size=99 has no effect") as refusal:
            electra.pretrain(
                recipe, data=shards, settings={"vocab_size": 99}, output_dir=tmp_path / "other"
            )
        assert refusal.value.key == "data.vocab_size"
    assert not (tmp_path / "other").exists()


def test_pretrain_reads_the_rows_of_a_frame(tmp_path: Path) -> None:
    frame = Frame([{"body": f"the {row['review']} ."} for row in ROWS])
    with pytest.raises(electra.UserError, match="corpus, row 1: no column 'bodi'; did you mean"):
        electra.pretrain("tiny", corpus=frame, text_field="bodi", output_dir=tmp_path / "run")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, r"give either corpus= \(text files\) or data= \(shards from `electra.shard`\)"),
        ({"corpus": 3}, "corpus is a int; give a path"),
        ({"corpus": "x.txt", "resume": "auto", "overwrite": True}, "overwrite=True .*'never'"),
        ({"data": "x", "init_from": "no folder"}, "init_from='no folder': no such folder"),
        ({"settings": {"learning_rat": 1}}, 'settings: unknown .*mean settings."learning_rate"'),
        ({"settings": {"seed": 1.5}}, "settings: training.seed must be a whole number"),
        ({"settings": ["--seed"]}, "settings is a list; give a dict"),
    ],
)
def test_the_checks_of_the_command_line_speak_of_keywords(
    tmp_path: Path, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(electra.UserError, match=message):
        electra.pretrain("tiny", output_dir=tmp_path / "run", **keywords)


def pretrain_on_the_shards_of(
    run: PretrainResult, output_dir: Path, **keywords: Any
) -> PretrainResult:
    shards = run.output_dir / "data" / "shards"
    keywords |= {"data": shards, "settings": TINY_RUN, "output_dir": output_dir}
    return electra.pretrain("tiny", **keywords)


def test_a_training_in_another_thread_waits_and_says_so(
    run: PretrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        results.append(pretrain_on_the_shards_of(run, tmp_path / "run", max_steps=2))

    # capsys would lose what a thread writes while it is read.
    said: Queue[str] = Queue()
    monkeypatch.setattr(random_numbers, "to_stderr", said.put)
    results: list[PretrainResult] = []
    thread = threading.Thread(target=train)
    with own_random_numbers(quiet=True):
        thread.start()
        assert said.get(timeout=60).startswith("another thread of this process is training; wait")
        assert not (tmp_path / "run").exists()
    thread.join()
    assert results[0].scores == run.scores


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_trains_while_a_thread_of_its_parent_does() -> None:
    is_training, may_end = threading.Event(), threading.Event()

    def train() -> None:
        with own_random_numbers(quiet=True):
            is_training.set()
            may_end.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    is_training.wait(60)
    child = os.fork()
    if not child:
        os._exit(not random_numbers.training_lock.acquire(timeout=5))
    may_end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_training_leaves_the_random_numbers_of_the_program_as_they_were(
    run: PretrainResult, tiny: Path, tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    pretrain_on_the_shards_of(run, tmp_path / "run", max_steps=1, quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    columns = {"text": "review", "label": "stars"}
    settings = FEW | {"max_steps": 1}
    folder = tmp_path / "tuned"
    electra.finetune(
        tiny, "classify", train=ROWS, output_dir=folder, settings=settings, quiet=True, **columns
    )
    assert torch.equal(torch.get_rng_state(), before)


# ---- finetune ------------------------------------------------------------------------------------


def test_finetune_holds_out_a_tenth_of_the_rows_without_dev_data(tuned: FinetuneResult) -> None:
    data = tuned.summary.made["data"]
    assert (data["train"]["examples"], data["dev"]["dev"]["examples"]) == (27, 3)
    assert data["train"]["files"][0]["name"] == "train"
    assert (tuned.task, tuned.metric) == ("classify", "accuracy")
    assert tuned.score == tuned.summary.median


def test_a_finished_finetuning_is_found_again_by_the_same_rows(
    tiny: Path, tuned: FinetuneResult
) -> None:
    keywords: dict[str, Any] = {"text": "review", "label": "stars", "settings": FEW, "quiet": True}
    again = electra.finetune(tiny, "classify", train=ROWS, output_dir=tuned.output_dir, **keywords)
    assert again.summary.runs == tuned.summary.runs
    with pytest.raises(electra.UserError, match=r"holds another [^∎]*Use another output_dir="):
        electra.finetune(tiny, "classify", train=ROWS[:20], output_dir=tuned.output_dir, **keywords)


def test_finetune_reads_files_and_has_a_folder_of_its_own_by_default(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train = written(tmp_path / "train.csv", keyword_rows(20))
    result = electra.finetune(tiny, "classify", train=str(train), settings=FEW)
    assert result.output_dir == Path("runs/tiny-classify")
    assert "no dev data: a share of 0.1 of train is held out" in capsys.readouterr().err
    both = electra.evaluate([result, result], train)
    assert both.score == electra.evaluate(result, [train]).score
    assert "accuracy" in both._repr_html_()


def test_rows_to_train_on_are_no_rows_to_score_on(tiny: Path, tmp_path: Path) -> None:
    keywords: dict[str, Any] = {"text": "review", "label": "stars", "output_dir": tmp_path / "run"}
    with pytest.raises(electra.UserError, match=r"dev is the same data .*dev_on_train=True"):
        electra.finetune(tiny, "classify", train=ROWS, dev=Frame(ROWS), **keywords)


@pytest.mark.parametrize(
    ("task", "keywords", "message"),
    [
        ("classify", {}, "no training data; name files with train="),
        (
            "classify",
            {"train": ROWS[:3], "text": "review", "label": "stars"},
            "no dev example in 3 .* with dev=",
        ),
        ("classify", {"train": []}, "train is empty"),
        ("classify", {"train": {"text": ["a"]}}, "train is a dict; give a path"),
        ("classify", {"train": [*ROWS, "x.csv"]}, "train, item 31 is a str; give paths alone"),
        ("classify", {"train": ROWS}, r"train, row \d+: no column 'text'.*right one with text="),
        ("classify", {"train": ROWS, "words": "review"}, "words= does not go with task='classify'"),
        ("classify", {"train": ROWS, "seeds": 0}, "^seeds=0: at least one run is needed"),
        ("classify", {"train": ROWS, "layer": "mix"}, "layer='mix' goes with frozen=True"),
        ("classify", {"train": ROWS, "layer": 0}, "layer=0 goes with frozen=True"),
        ("classify", {"train": ROWS, "settings": {"length": 999}}, '"] = 999: the model'),
        ("classifi", {"train": ROWS}, "^task='classifi': unknown; did you mean classify"),
        ("glue", {"data": "glue"}, "name one: glue/rte"),
        (None, {"train": ROWS}, "task is a NoneType; give a Task, or the name of one: .*classify"),
        (Classify, {"train": ROWS}, r"Classify is a class; .* instance of it: task=Classify\(\)"),
    ],
)
def test_finetune_says_which_keyword_is_wrong(
    tiny: Path, tmp_path: Path, task: Any, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(electra.UserError, match=message):
        electra.finetune(tiny, task, output_dir=tmp_path / "run", quiet=True, **keywords)


# ---- load, predict, evaluate, embed --------------------------------------------------------------


def test_predict_answers_texts_rows_frames_and_files_alike(
    tuned: FinetuneResult, tmp_path: Path
) -> None:
    model = electra.load(tuned)
    texts = [row["review"] for row in ROWS[:4]]
    answers = model.predict(texts)
    assert [answer["review"] for answer in answers] == texts
    assert {"label", "probability", "probabilities"} <= set(answers[0])
    labels = [answer["label"] for answer in answers]
    file = written(tmp_path / "new.csv", "\n".join(["review", *texts]) + "\n")
    renamed = [{"body": text} for text in texts]
    for same in (
        model.predict(file),
        model.predict([{"review": text} for text in texts]),
        model.predict(Frame([{"review": text} for text in texts])),  # type: ignore[arg-type]
        model.predict(renamed, text="body"),
        electra.load([tuned, tuned]).predict(texts),
    ):
        assert [answer["label"] for answer in same] == labels
    assert len(answers[1:3]) == 2
    assert not model.predict([])


def test_a_pair_is_given_as_a_tuple(tiny: Path, tmp_path: Path) -> None:
    rows = [{"text": r["review"], "text_pair": r["review"], "label": r["stars"]} for r in ROWS]
    result = electra.finetune(
        tiny,
        "classify",
        train=rows,
        dev=rows,
        dev_on_train=True,
        settings=FEW,
        output_dir=tmp_path / "run",
        quiet=True,
    )
    model = electra.load(result)
    assert len(model.predict([("a dog", "the dog")])) == 1
    with pytest.raises(electra.UserError, match=r"inputs, row 2: 1 values.*takes 2: text and"):
        model.predict([("a dog", "the dog"), "alone"])


@pytest.mark.parametrize(
    ("kind", "item"),
    [("tags", "anna lives in paris"), ("tags", ["anna", "lives"]), ("joint", ("who", "anna sat"))],
)
def test_bare_inputs_fit_the_task(kind: str, item: object, by_heart: Callable[[str], Path]) -> None:
    assert len(electra.load(by_heart(kind)).predict([item])) == 1


def test_a_string_is_a_path_and_the_message_shows_how_a_text_is_given(
    tuned: FinetuneResult,
) -> None:
    with pytest.raises(electra.UserError, match=r"a dog: no such file .*list: \['a dog'\]"):
        electra.load(tuned).predict("a dog")


def test_each_function_says_what_it_takes(tuned: FinetuneResult) -> None:
    row: Any = {"text": ["a"]}
    nothing: Any = None
    with pytest.raises(electra.UserError, match=r"inputs is a dict; give a list of texts, a list"):
        electra.load(tuned).predict(row)
    with pytest.raises(electra.UserError, match=r"texts is a dict; give a list of texts, a list"):
        electra.embed(tuned, row)
    with pytest.raises(electra.UserError, match=r"data is a dict; give a path, a list of paths, a"):
        electra.evaluate(tuned, row)
    with pytest.raises(electra.UserError, match=r"model is a NoneType; give the folder of a model"):
        electra.load(nothing)


def test_a_path_in_a_list_of_texts_is_refused(tuned: FinetuneResult) -> None:
    with pytest.raises(electra.UserError, match=r"inputs, item 2 is a path.*give one file by its"):
        electra.load(tuned).predict(["a dog", Path("new.csv")])


def test_a_pretrained_model_has_embeddings_and_no_predictions(tiny: Path) -> None:
    model = electra.load(tiny)
    assert model.task is None
    embeddings = electra.embed(model, ["a dog", "a cat sat"])
    assert np.asarray(embeddings).shape == (2, 32)
    assert embeddings.texts == ("a dog", "a cat sat")
    assert np.asarray(electra.embed(model, [])).shape == (0, 32)
    with pytest.raises(electra.UserError, match="pre-trained, but without a task"):
        model.predict(["a dog"])
    with pytest.raises(electra.UserError, match=r"^texts, item 2: half a surrogate pair"):
        electra.embed(model, ["a dog", "a cat\ud83d"])


def test_embed_takes_rows_columns_and_files(tuned: FinetuneResult, tmp_path: Path) -> None:
    file = written(tmp_path / "texts.txt", "a dog\na cat sat\n")
    first = electra.embed(tuned, file)
    rows = electra.embed(tuned, [{"review": "a dog"}, {"review": "a cat sat"}], text="review")
    column = electra.embed(tuned, np.array(["a dog", "a cat sat"]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(first.vectors, rows.vectors)
    np.testing.assert_array_equal(first.vectors, column.vectors)
    tokens = electra.embed(tuned, ["a dog", "a cat sat"], pool="tokens")
    assert [len(vectors) for vectors in tokens.vectors] == [4, 5]
    numbered = electra.embed(tuned, file, layer=0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(numbered.vectors, electra.embed(tuned, file, layer="0").vectors)
    with pytest.raises(electra.UserError, match="texts, item 2 is a int; give texts alone"):
        electra.embed(tuned, ["a dog", 7])
    with pytest.raises(electra.UserError, match=r"a dog: no such file .*list: \['a dog'\]"):
        electra.embed(tuned, "a dog")
    with pytest.raises(electra.UserError, match=r"no column 'text'.*right one with text=$"):
        electra.embed(tuned, [{"review": "a dog"}])
    with pytest.raises(electra.UserError, match=r"pool must be one of .*'mean'.* found 'max'"):
        electra.embed(tuned, file, pool="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_text_is_answered_as_an_empty_one_and_counted(
    tuned: FinetuneResult, missing: float | None
) -> None:
    inputs = ["a dog", missing]
    with pytest.warns(UserWarning, match="inputs: rows without text: 1; they are kept") as warned:
        answers = electra.load(tuned).predict(inputs)
    assert warned[0].filename == __file__  # the line of the caller, and none of the package
    assert answers[1]["probabilities"] == electra.load(tuned).predict([""])[0]["probabilities"]
    for texts in (inputs, [{"text": item} for item in inputs]):
        with pytest.warns(UserWarning, match="texts: rows without text: 1; they are kept"):
            embeddings = electra.embed(tuned, texts)
        assert embeddings.texts == ("a dog", "")


def test_a_missing_text_is_refused_in_training_with_the_remedy(tiny: Path, tmp_path: Path) -> None:
    rows = [{"text": "a dog", "label": "x"}, {"text": float("nan"), "label": "y"}]
    with pytest.raises(electra.UserError, match="train, row 2: 'text' is missing; fill it in, or"):
        electra.finetune(tiny, "classify", train=rows, output_dir=tmp_path / "run", quiet=True)


def test_evaluate_scores_rows(tuned: FinetuneResult) -> None:
    scores = electra.evaluate(tuned, ROWS)
    assert scores.score == scores.scores["dev"]["accuracy"]
    with pytest.raises(electra.UserError, match="data, row 1: no column 'rating'"):
        electra.evaluate(tuned, ROWS, label="rating")


def test_options_of_the_task_are_settings_of_evaluate_and_predict(
    tuned: FinetuneResult, tmp_path: Path
) -> None:
    lines = [f"{row['stars']};{row['review']}" for row in ROWS]
    file = written(tmp_path / "no_header.csv", "\n".join(lines) + "\n")
    with pytest.raises(electra.UserError, match=r'say settings\["header"\] = False and .*text=1 '):
        electra.evaluate(tuned, file)
    numbers: dict[str, Any] = {"text": 1, "settings": {"header": False}}
    assert electra.evaluate(tuned, file, label=0, **numbers).scores == (
        electra.evaluate(tuned, ROWS).scores
    )
    answers = electra.load(tuned).predict(file, **numbers)
    assert [answer["1"] for answer in answers] == [row["review"] for row in ROWS]
    with pytest.raises(electra.UserError, match=r'^settings\["epochs"\] = 3 is no option of class'):
        electra.evaluate(tuned, file, settings={"epochs": 3})


def test_a_model_that_is_not_there_is_refused_in_python_words(tmp_path: Path) -> None:
    with pytest.raises(electra.UserError, match=r"run folder of `electra\.pretrain`"):
        electra.load(tmp_path)


# ---- the notebook --------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Path(electra.__file__).parents[1] / "docs" / "notebook.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "clear the outputs before the notebook is committed"
            exec("".join(cell["source"]), names)
    assert names["run"].step == 60
    assert names["tuned"].score > names["tuned"].baseline
    assert [answer["label"] for answer in names["answers"]] == ["cats", "dogs"]
    assert names["vectors"].shape == (2, 64)
