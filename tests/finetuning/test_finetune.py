"""Fine-tuning with several seeds in one folder: its results, and when the folder is continued."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from rich.console import Console

import electra
from electra import __version__, atomic
from electra.__main__ import main
from electra.config import RunFailed, UserError
from electra.finetuning import seed_job
from electra.finetuning.finetune import finetune, finetune_glue
from electra.finetuning.options import FinetuneKeywords, FinetuneOptions
from electra.finetuning.results import (
    SeedResult,
    Summary,
    other_scores,
    summary_notes,
    summary_table,
)
from electra.runs import run_dir
from electra.tasks import find_task, vocabulary_fit
from electra.tasks.models import load_tuned
from tests.conftest import files_of
from tests.tasks.toys import BY_HEART, TOYS, keyword_rows, tiny_model, written
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

FEW = [*BY_HEART, "--max-steps", "3"]
Learn = Callable[..., Summary]


@pytest.fixture
def learn(tiny: Path, tmp_path: Path) -> Learn:
    """Three steps on eight sentences, into the same folder each time."""

    def run_learning(**options: Any) -> Summary:
        return TOYS["classes"].learnt(
            options.pop("model", tiny), tmp_path / "run", **{"flags": FEW} | options
        )

    return run_learning


# ---- results -------------------------------------------------------------------------------------


def test_results_say_everything_that_makes_the_number(learn: Learn, tmp_path: Path) -> None:
    learn(seeds=3, recipe="official")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    scores = sorted(run["score"] for run in results["runs"])
    assert (results["task"], results["metric"], results["split"]) == ("classify", "accuracy", "dev")
    assert results["protocol"] == "median of 3 seeds"
    assert [run["seed"] for run in results["runs"]] == [0, 1, 2]
    assert (results["median"], results["best"]) == (scores[1], scores[2])
    assert results["mean"] == pytest.approx(sum(scores) / 3)
    assert results["sd"] is not None
    made = results["made"]
    assert (made["recipe"], made["electra"]) == ("official", __version__)
    assert made["selection"] == "none: the last step's weights"
    assert made["settings"]["max_steps"] == 3
    assert made["data"]["train"]["files"][0]["name"] == "classes.csv"
    assert len(made["weights"]) == len(made["settings_hash"]) == 16
    assert "commit" in made


def test_the_status_is_current_within_a_seed_and_between_two(
    learn: Learn, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int, int]] = []

    def record(folder: Path, status: str, *, step: int, seeds_done: int) -> None:
        written.append((status, step, seeds_done))

    monkeypatch.setattr(run_dir, "set_status", record)
    monkeypatch.setattr(run_dir, "STATUS_SECONDS", 0.0)
    learn(seeds=2, flags=[*FEW, "--logging-steps", "1"])
    first = [("running", step, 0) for step in range(4)]
    second = [("running", step, 1) for step in range(3, 7)]
    assert written == [*first, *second, ("running", 6, 2), ("finished", 6, 2)]


def test_a_model_card_states_the_language_and_the_licence(learn: Learn, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--license 'my own'"):
        learn(license="my own")
    learn(language="en", license="mit")
    card = (tmp_path / "run" / "seed-0" / "model" / "README.md").read_text(encoding="utf8")
    assert '\nlanguage: "en"\nlicense: "mit"\npipeline_tag: "text-classification"\n' in card


def test_hashes_of_settings_and_weights_tell_fine_tunings_apart(
    learn: Learn, tiny: Path, tmp_path: Path
) -> None:
    first = learn().made
    second = (
        TOYS["classes"]
        .learnt(
            tiny_model(tmp_path / "other", positions=32),
            tmp_path / "second",
            flags=[*FEW, "--epochs", "2"],
        )
        .made
    )
    assert first["settings_hash"] != second["settings_hash"]
    assert first["weights"] != second["weights"]


def test_a_run_that_learnt_nothing_is_marked_and_counts_in_the_median(learn: Learn) -> None:
    summary = learn(seeds=2, flags=[*FEW, "--learning-rate", "1e-12"])
    assert summary.degenerate == [0, 1]
    assert all(run.score <= summary.baseline == 0.5 for run in summary.runs)
    assert summary.median == pytest.approx(sum(run.score for run in summary.runs) / 2)


def test_dev_data_with_one_answer_is_told_apart_from_a_model_that_learnt_nothing(
    learn: Learn, tmp_path: Path
) -> None:
    dev = written(tmp_path / "dev.csv", "text,label\n" + "the dog sat,dogs\n" * 4)
    summary = learn(dev=[dev], flags=[*FEW, "--learning-rate", "1e-12"])
    assert (summary.baseline, summary.degenerate) == (1.0, [])
    assert str(summary.runs[0]).endswith(
        "warning: every dev example has the same answer, so the score says nothing"
    )


def test_a_folder_holds_what_is_promised(learn: Learn, tmp_path: Path) -> None:
    learn(seeds=2)
    model = [
        "README.md",
        "checksums.sha256",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    expected = ["config.toml", "environment.json", "results.json", "run.json", "status.json"]
    of_seed = [
        "analysis.json",
        "metrics.jsonl",
        "predictions-dev.jsonl",
        "result.json",
        *(f"model/{name}" for name in model),
    ]
    expected += [f"seed-{number}/{name}" for number in (0, 1) for name in of_seed]
    files = set(files_of(tmp_path / "run"))
    assert set(expected) <= files
    assert {name for name in files - set(expected) if not name.endswith("vocab.txt")} == set()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"


def test_the_best_model_alone_may_be_kept(learn: Learn, tmp_path: Path) -> None:
    summary = learn(seeds=3, keep="best")
    assert [
        str(path.relative_to(tmp_path / "run"))
        for path in sorted((tmp_path / "run").glob("seed-*/model"))
    ] == [summary.best_model]
    assert load_tuned(tmp_path / "run").folder == tmp_path / "run" / summary.best_model


def test_a_threshold_is_shown_as_it_is_and_a_score_in_points(
    by_heart: Callable[[str], Path],
) -> None:
    results = json.loads((by_heart("joint") / "results.json").read_text())
    results.pop("protocol")
    runs = [SeedResult(**run) for run in results.pop("runs")]
    summary = Summary(**results, runs=runs)
    threshold = runs[0].scores["dev"]["best_f1_threshold"]
    assert f"best_f1_threshold {threshold:.4f}" in other_scores(summary)
    assert "exact_match 100.0" in other_scores(summary)


def test_a_table_of_several_tasks_has_an_average_that_names_what_it_lacks(learn: Learn) -> None:
    summary, screen = learn(), io.StringIO()
    Console(width=80, file=screen).print(summary_table([summary, summary]))
    assert f"average of 2 {100 * summary.median:.1f}" in " ".join(screen.getvalue().split())
    notes = summary_notes([summary, summary], ["glue/cola", "glue/rte"])
    assert notes[-1] == "no data for glue/cola, glue/rte; the average is without them"


# ---- going on ------------------------------------------------------------------------------------


def test_more_seeds_are_added_to_those_that_are_done(
    learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn()
    before, trained = files_of(tmp_path / "run" / "seed-0"), []
    finetune_seed = seed_job.finetune_seed

    def recording(setup: Any, seed: int, *rest: Any, **more: Any) -> SeedResult | None:
        trained.append(seed)
        return finetune_seed(setup, seed, *rest, **more)

    monkeypatch.setattr(seed_job, "finetune_seed", recording)
    assert len(learn(seeds=3).runs) == 3
    assert trained == [1, 2]
    assert files_of(tmp_path / "run" / "seed-0") == before


def test_what_only_changes_how_a_run_is_watched_may_change(learn: Learn) -> None:
    learn()
    assert learn(flags=[*FEW, "--logging-steps", "1", "--save-steps", "2"]).runs


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (
            {"flags": [*FEW, "--learning-rate", "1e-3", "--epochs", "9"]},
            "config.learning_rate: here 0.003, asked 0.001",
        ),
        ({"model": "longer"}, "model.weights: here"),
        ({"dev": "other.csv"}, "data.dev.dev.examples: here 8, asked 6"),
        ({"random_weights": True}, "asked 'random'"),
    ],
    ids=["settings", "model", "data", "random weights"],
)
def test_another_fine_tuning_in_the_same_folder_is_refused_with_what_differs(
    learn: Learn, tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    learn()
    before = files_of(tmp_path / "run")
    if "model" in change:
        change = {"model": tiny_model(tmp_path / "longer", positions=32)}
    if "dev" in change:
        change = {"dev": [written(tmp_path / "other.csv", keyword_rows(6))]}
    with pytest.raises(
        UserError,
        match=wording("another_fine_tuning_in_the_same_folder_is_refused_with_what_differs"),
    ) as error:
        learn(**change)
    assert key in str(error.value)
    assert files_of(tmp_path / "run") == before


def test_starting_over_needs_two_words_and_spares_what_is_not_its_own(
    learn: Learn, tmp_path: Path
) -> None:
    learn(seeds=2)
    notes = written(tmp_path / "run" / "notes.txt", "mine")
    (tmp_path / "run" / "seed-of-an-idea").mkdir()
    with pytest.raises(
        UserError, match=wording("starting_over_needs_two_words_and_spares_what_is_not_its_own")
    ):
        learn(overwrite=True)
    with pytest.raises(
        UserError, match=wording("starting_over_needs_two_words_and_spares_what_is_not_its_own_2")
    ):
        learn(resume="never")
    learn(resume="never", overwrite=True, flags=[*FEW, "--learning-rate", "1e-3"])
    assert not (tmp_path / "run" / "seed-1").exists()
    assert notes.exists()
    assert (tmp_path / "run" / "seed-of-an-idea").is_dir()


def test_a_folder_that_holds_something_else_is_not_written_to(learn: Learn, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    written(tmp_path / "run" / "thesis.tex", "mine")
    for options in ({}, {"resume": "never", "overwrite": True}):
        with pytest.raises(
            UserError, match=wording("a_folder_that_holds_something_else_is_not_written_to")
        ):
            learn(**options)
    assert list(files_of(tmp_path / "run")) == ["thesis.tex"]


def test_a_run_file_that_cannot_be_read_says_how_to_start_over(
    learn: Learn, tmp_path: Path
) -> None:
    learn()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(
        UserError,
        match=wording("a_run_file_that_cannot_be_read_says_how_to_start_over"),
    ):
        learn()


def test_a_seed_whose_result_was_lost_is_trained_again_to_the_same_score(
    learn: Learn, tmp_path: Path
) -> None:
    before = learn().runs[0]
    (tmp_path / "run" / "seed-0" / "result.json").write_text('{"seed"')
    after = learn().runs[0]
    assert (before.score, before.scores, before.steps) == (after.score, after.scores, after.steps)


@pytest.mark.parametrize("is_finished", [True, False])
def test_what_a_killed_seed_left_is_removed_when_the_run_goes_on(
    learn: Learn, tmp_path: Path, is_finished: bool
) -> None:
    learn()
    seed = tmp_path / "run" / "seed-0"
    for name in ("checkpoint-2", ".checkpoint-3.partial"):
        (seed / name).mkdir()
        written(seed / name / "state.json", "{")
    if not is_finished:
        (seed / "result.json").unlink()
    learn()
    assert not list(seed.glob("*checkpoint-*"))


def test_a_seed_whose_model_folder_holds_something_else_is_refused_before_it_trains(
    learn: Learn, tmp_path: Path
) -> None:
    learn()
    seed = tmp_path / "run" / "seed-0"
    (seed / "result.json").unlink()
    (seed / "model" / "config.json").unlink()
    entries = (seed / "metrics.jsonl").stat().st_mtime_ns
    with pytest.raises(UserError, match="model holds something else"):
        learn()
    assert (seed / "metrics.jsonl").stat().st_mtime_ns == entries


@pytest.mark.parametrize("error", [UserError("no"), ValueError("no")])
def test_a_run_that_ends_with_any_error_has_the_status_failed(
    learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(seed_job, "finetune_seed", fail)
    with pytest.raises(type(error), match="no"):
        learn()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["message"]) == ("failed", "no")


@pytest.mark.parametrize("name", ["seed-0/metrics.jsonl", "results.json"])
def test_a_file_that_cannot_be_written_is_named_and_the_same_command_goes_on(
    learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = atomic.write

    def full(path: Path, content: str) -> None:
        if path == tmp_path / "run" / name:
            raise OSError(f"{path}: cannot be written: No space left on device")
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write", full)
        with pytest.raises(
            RunFailed,
            match=wording("a_file_that_cannot_be_written_is_named_and_the_same_command_goes_on"),
        ) as error:
            learn()
    assert str(tmp_path / "run" / name) in str(error.value)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"
    assert learn().runs


def test_a_folder_of_an_earlier_version_is_refused_with_the_key_that_was_renamed(
    learn: Learn, tmp_path: Path
) -> None:
    learn()
    run, result = tmp_path / "run" / "run.json", tmp_path / "run" / "seed-0" / "result.json"
    content = result.read_text()
    result.write_text(content.replace('"baseline"', '"trivial"'))
    with pytest.raises(
        UserError,
        match=wording("a_folder_of_an_earlier_version_is_refused_with_the_key_that_was_renamed"),
    ):
        learn()
    result.write_text(content)
    run.write_text(run.read_text().replace('"config"', '"tuning"'))
    with pytest.raises(
        UserError,
        match=wording("a_folder_of_an_earlier_version_is_refused_with_the_key_that_was_renamed_2"),
    ):
        learn()
    assert learn(resume="never", overwrite=True).runs


def test_a_setting_that_an_earlier_version_did_not_know_had_its_default_there(
    learn: Learn, tmp_path: Path
) -> None:
    learn()
    path = tmp_path / "run" / "run.json"
    identity = json.loads(path.read_text())
    del identity["config"]["decay_ratio"]
    path.write_text(json.dumps(identity))
    assert [run.seed for run in learn(seed=1).runs] == [0, 1]


def test_seeds_that_were_run_before_count_too(learn: Learn) -> None:
    learn(seeds=2)
    assert [run.seed for run in learn(seed=7).runs] == [0, 1, 7]


# ---- what is passed on ---------------------------------------------------------------------------


def test_a_fine_tuned_model_gives_its_encoder_and_gets_a_fresh_head(
    by_heart: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's MNLI first, then RTE."""
    TOYS["scores"].learnt(by_heart("classes"), tmp_path / "run", flags=FEW, quiet=False)
    stderr = capsys.readouterr().err
    assert "left unused: classifier.dense.bias" in stderr
    assert "the head for classify is fresh" in stderr


def test_text_that_the_vocabulary_does_not_know_is_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"\N{GRINNING FACE} \N{CLOUD},{number % 2}" for number in range(8)]
    data = written(tmp_path / "train.csv", "\n".join(["text,label", *rows]) + "\n")
    files = ["--train", str(data), "--dev", str(data), "--dev-on-train"]
    argv = ["finetune", str(tiny), "--task", "classify", *files, *FEW]
    assert main([*argv, "--output-dir", str(tmp_path / "run")]) == 0
    assert "100% of the training text is [UNK]" in " ".join(capsys.readouterr().err.split())


def test_text_whose_words_fall_into_pieces_is_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_fit, "MIN_VOCABULARY", 1)
    monkeypatch.setattr(vocabulary_fit, "MIN_WORDS", 16)
    rows = [f"jup quzx,{number % 2}" for number in range(8)]
    data = written(tmp_path / "train.csv", "\n".join(["text,label", *rows]) + "\n")
    files = ["--train", str(data), "--dev", str(data), "--dev-on-train"]
    argv = ["finetune", str(tiny), "--task", "classify", *files, *FEW]
    assert main([*argv, "--output-dir", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: a word of the text falls into 3.5 pieces on average" in said


def test_the_rate_of_every_layer_is_shown_when_asked(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rates(output_dir: Path, *flags: str) -> dict[str, float]:
        TOYS["classes"].learnt(
            tiny,
            output_dir,
            flags=[
                "--max-steps",
                "1",
                "--length",
                "32",
                "--learning-rate",
                "1e-3",
                "--layer-decay",
                "0.5",
                *flags,
            ],
            quiet=False,
            verbose=True,
        )
        lines = [
            line.strip().rsplit(" ", 1)
            for line in capsys.readouterr().err.splitlines()
            if line.startswith("  ")
        ]
        return {name.strip(): float(rate) for name, rate in lines}

    assert rates(tmp_path / "ours") == {
        "head": 1e-3,
        "layer 2": 5e-4,
        "layer 1": 2.5e-4,
        "embeddings": 1.25e-4,
    }
    assert rates(tmp_path / "official", "--layer-counting", "official") == {
        "head": 1e-3,
        "layer 2": 2.5e-4,
        "layer 1": 1.25e-4,
        "embeddings": 6.25e-5,
    }


def test_at_least_one_seed_is_needed() -> None:
    with pytest.raises(UserError, match=wording("at_least_one_seed_is_needed")):
        FinetuneOptions(seeds=0)


def test_options_are_the_same_in_python_and_on_the_command_line() -> None:
    assert get_type_hints(FinetuneKeywords) == get_type_hints(FinetuneOptions)
    keywords = inspect.signature(electra.finetune).parameters
    for option in dataclasses.fields(FinetuneOptions):
        assert option.name in keywords or option.name == "flags"  # in Python a dict: settings
    assert "random_weights\n    Use only the shape" in (electra.finetune.__doc__ or "")


def test_every_glue_task_whose_data_is_there_is_run_and_the_others_are_named(
    tiny: Path, tmp_path: Path
) -> None:
    data = glue_folder(tmp_path / "glue")
    options = FinetuneOptions(data=str(data), flags=FEW, quiet=True)
    results = finetune_glue(tiny, tmp_path / "run", options)
    assert results.finished
    assert [summary.task for summary in results.summaries] == ["glue/cola", "glue/rte"]
    assert [summary.metric for summary in results.summaries] == ["matthews_correlation", "accuracy"]
    assert results.missing == [
        f"glue/{name}" for name in ("sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "wnli")
    ]
    assert (tmp_path / "run" / "rte" / "results.json").exists()


def glue_folder(folder: Path) -> Path:
    """CoLA and RTE in their official layout."""
    for name in ("CoLA", "RTE"):
        (folder / name).mkdir(parents=True)
    for split in ("train", "dev"):
        written(
            folder / "CoLA" / f"{split}.tsv",
            "".join(
                f"{split}\t{n % 2}\t*\tthe {'dog' if n % 2 else 'cat'} sat\n" for n in range(8)
            ),
        )
        written(
            folder / "RTE" / f"{split}.tsv",
            "index\tsentence1\tsentence2\tlabel\n"
            + "".join(
                f"{split}-{n}\tthe dog ran\tthe {'dog' if n % 2 else 'cat'} "
                f"ran\t{'' if n % 2 else 'not_'}entailment\n"
                for n in range(8)
            ),
        )
    return folder


def test_glue_needs_a_folder_and_no_single_files(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=wording("glue_needs_a_folder_and_no_single_files")):
        finetune_glue(tiny, tmp_path / "run", FinetuneOptions(train=["train.tsv"]))


def test_a_model_is_fine_tuned_by_the_name_of_a_task_from_python(
    tiny: Path, tmp_path: Path
) -> None:
    data = glue_folder(tmp_path / "glue")
    summary = finetune(
        tiny, "glue/rte", output_dir=tmp_path / "run", data=str(data), flags=FEW, quiet=True
    )
    assert summary is not None
    assert summary.task == "glue/rte"
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(
        UserError, match=wording("a_model_is_fine_tuned_by_the_name_of_a_task_from_python")
    ):
        find_task("glue/rt")
