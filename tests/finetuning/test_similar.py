"""An embedder trained by sentence-transformers: it learns, and its folder is what embed reads."""

from __future__ import annotations

import json
import random
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import electra
from electra.__main__ import main
from electra.config import UserError
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.similar import training_arguments
from electra.finetuning.similar_data import Pairs
from electra.finetuning.similar_settings import SimilarConfig, load_similar_config
from electra.finetuning.similar_setup import SimilarSetup, prepare_similar
from tests.tasks.toys import written

WORDS = "anna berg lives in paris visits rome the to sat ran on a mat".split()
TOPICS = "dog cat home acme corp sells".split()


def similar_rows(count: int, *, seed: int, form: str) -> str:
    """Texts about one thing each; a pair is about the same one, a negative about another."""
    rng = random.Random(seed)

    def text(topic: str) -> str:
        return " ".join(rng.sample([topic, topic, *rng.sample(WORDS, 2)], 4))

    lines = {"triplets": ["text,positive,negative"], "scores": ["text,text_pair,score"]}[form]
    for _ in range(count):
        topic, other = rng.sample(TOPICS, 2)
        if form == "triplets":
            lines.append(f"{text(topic)},{text(topic)},{text(other)}")
        else:
            lines.append(f"{text(topic)},{text(topic)},1.0")
            lines.append(f"{text(topic)},{text(other)},0.0")
    return "\n".join(lines) + "\n"


def test_settings_come_from_files_then_the_environment_then_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "own.toml", "epochs = 1.0\nlength = 8\nbatch_size = 4\n")
    monkeypatch.setenv("ELECTRA_FINETUNE_LENGTH", "16")
    monkeypatch.setenv("ELECTRA_FINETUNE_BATCH_SIZE", "6")
    config = load_similar_config([file], ["--batch-size", "9"])
    assert (config.epochs, config.length, config.batch_size) == (1.0, 16, 9)


def test_a_variable_of_no_setting_of_an_embedder_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELECTRA_FINETUNE_LAYER_DECAY", "0.9")
    with pytest.raises(UserError, match="ELECTRA_FINETUNE_LAYER_DECAY"):
        load_similar_config([], [])


@pytest.mark.parametrize(
    ("given", "flag"), [({"verbose": True}, "--verbose"), ({"recipe": "bert"}, "--recipe")]
)
def test_an_option_that_an_embedder_does_not_take_is_refused(
    given: dict[str, Any], flag: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"no {flag}$"):
        prepare_similar("no-model", FinetuneOptions(**given), tmp_path)


def test_a_step_has_batch_size_pairs_however_many_gpus_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentence_transformers import SentenceTransformerTrainingArguments

    class OnFourGPUs(SentenceTransformerTrainingArguments):
        @cached_property
        def _setup_devices(self) -> torch.device:
            self._n_gpu, self.distributed_state = 4, None
            return torch.device("cpu")

    monkeypatch.setattr("sentence_transformers.SentenceTransformerTrainingArguments", OnFourGPUs)
    theirs = OnFourGPUs(output_dir=str(tmp_path), per_device_train_batch_size=20)
    assert theirs.train_batch_size == 80
    pairs = Pairs("pairs", ["a b"] * 64, ["a c"] * 64, [], [])
    setup = SimpleNamespace(config=SimilarConfig(batch_size=20), train=pairs)
    ours = training_arguments(cast(SimilarSetup, setup), 0, tmp_path)
    assert (ours.n_gpu, ours.train_batch_size) == (1, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "least"), [("triplets", 0.8), ("scores", 0.5)])
def test_an_embedder_learns_which_texts_are_similar(
    form: str, least: float, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = written(tmp_path / "train.csv", similar_rows(200, seed=0, form=form))
    dev = written(tmp_path / "dev.csv", similar_rows(40, seed=1, form=form))
    words = ["finetune", tiny, "--task", "similar", "--train", train, "--dev", dev, "--json"]
    words += ["--output-dir", tmp_path / "out", "--learning-rate", "3e-3", "--epochs", "4"]
    words += ["--batch-size", "20", "--length", "16"]
    assert main([*map(str, words)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["median"] > least
    assert main([*map(str, words)]) == 0  # it is finished, and says so again
    assert json.loads(capsys.readouterr().out)["median"] == summary["median"]

    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "out" / summary["best_model"]
    texts = ["anna sat on the mat", "the dog ran home"]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.asarray(electra.embed(tmp_path / "out", texts)) == pytest.approx(theirs, abs=1e-5)
    assert main(["describe", str(tmp_path / "out")]) == 0
    assert "vectors of texts, mean pooling" in capsys.readouterr().out
    assert "sentence-transformers" in (folder / "README.md").read_text(encoding="utf8")


@pytest.mark.slow
def test_rows_of_python_train_an_embedder_too(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"a": f"the {word} sat", "b": f"a {word} ran"} for word in (*TOPICS, *WORDS)]
    result = electra.finetune(
        tiny,
        "similar",
        train=rows,
        text="a",
        text_pair="b",
        output_dir=tmp_path / "out",
        settings={"dev_share": 0.2, "max_steps": 2, "batch_size": 8, "length": 16},
        quiet=True,
    )
    assert result.metric == "retrieval_accuracy"
    assert "widget" not in capfd.readouterr().err  # a bar of the library's
    assert electra.embed(result, ["anna sat"]).vectors[0].shape == (32,)
