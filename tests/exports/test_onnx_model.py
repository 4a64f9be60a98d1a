"""ONNX graphs: ONNX Runtime alone computes from the folder what electra computes from the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from tokenizers import Tokenizer

import electra
from electra.__main__ import main
from electra.checksums import read_checksums, verify_file
from electra.config import RunFailed, UserError
from electra.exports import onnx_model
from electra.exports.export import ExportResult, export_model
from electra.exports.onnx_int8 import measure_loss
from electra.exports.options import ExportOptions
from electra.model.families import build_encoder, build_networks
from electra.model.huggingface import EncoderOnly, save
from electra.model.networks import Generator
from electra.model.shape import EncoderShape, GeneratorShape
from electra.tasks import find_task
from electra.tasks.models import build_network, load_pretrained, model_folder, save_tuned
from tests.tasks.test_modernbert import SHAPE, TASKS, toy_network
from tests.tasks.test_stock_tokenizers import PAIR, stock_model
from tests.tasks.toys import TOYS, tiny_model, toy_tokenizer, written

ONE_LAYER = EncoderShape(
    layers=1, width=32, heads=2, feedforward=64, embedding=16, positions=64, dropout=0.0
)


def exported(model: Path, folder: Path, **options: bool) -> ExportResult:
    return export_model(model, "onnx", folder, ExportOptions(**options))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_graph_ignores_the_token_types_that_a_stock_models_tokenizer_does_not_give(
    tmp_path: Path,
) -> None:
    folder = stock_model(tmp_path / "stock")
    exported(folder, tmp_path / "onnx")
    row = Tokenizer.from_file(str(tmp_path / "onnx/tokenizer.json")).encode(*PAIR)
    assert any(row.type_ids)
    session = onnxruntime.InferenceSession(tmp_path / "onnx/model.onnx")
    columns = {
        "input_ids": row.ids,
        "attention_mask": row.attention_mask,
        "token_type_ids": row.type_ids,
    }
    arrays = {name: np.array([values]) for name, values in columns.items()}
    (logits,) = session.run(["logits"], arrays)
    stock = transformers.ElectraForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        theirs = stock(**tokenizer(*PAIR, return_tensors="pt")).logits
    assert np.abs(theirs.numpy() - logits).max() < 1e-5


@pytest.mark.slow
def test_onnx_runtime_reads_texts_of_any_length_and_number_as_electra_does(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    network = EncoderOnly(build_encoder(ONE_LAYER, vocabulary=tokenizer.size)).eval()
    save(network, tmp_path / "model", role="encoder", tokenizer_files=tokenizer.copy_to)
    result = exported(tmp_path / "model", tmp_path / "onnx")
    assert result.difference < 1e-5

    backend = Tokenizer.from_file(str(tmp_path / "onnx/tokenizer.json"))
    backend.enable_padding()
    encodings = backend.encode_batch(["anna sat", "the dog ran home to paris", "why"])
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    arrays = {
        name: np.array([getattr(each, attribute) for each in encodings])
        for name, attribute in columns.items()
    }
    session = onnxruntime.InferenceSession(tmp_path / "onnx/model.onnx")
    (hidden,) = session.run(["last_hidden_state"], arrays)
    mask = torch.from_numpy(arrays["attention_mask"]).bool()
    ids, types = torch.from_numpy(arrays["input_ids"]), torch.from_numpy(arrays["token_type_ids"])
    with torch.no_grad():
        ours = network.logits(ids, types, mask)
    assert np.abs(ours.numpy() - hidden)[arrays["attention_mask"] > 0].max() < 1e-5
    for name in (checksums := read_checksums(tmp_path / "onnx")):
        verify_file(tmp_path / "onnx" / name, checksums)
    assert {"model.onnx", "config.json", "tokenizer.json"} <= checksums.keys()
    assert "input_ids, attention_mask, token_type_ids" in (tmp_path / "onnx/README.md").read_text()


def test_a_graph_that_computes_something_else_is_refused_and_nothing_is_left(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def __init__(self, path: Path, *, has_choices: bool) -> None:
            pass

        def logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.ones(inputs["input_ids"].shape)

    monkeypatch.setattr("electra.exports.export.OnnxSession", Wrong)
    monkeypatch.setattr(onnx_model, "write_onnx", lambda stock, path, **_: path.touch())
    with pytest.raises(RunFailed, match=r"model.onnx: .* by up to \d"):
        exported(tiny, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


def test_dev_data_that_is_missing_is_refused_before_the_graph_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = TASKS["QuestionAnswering"]
    task, tokenizer = find_task(name, **options), toy_tokenizer()
    save_tuned(toy_network(task), task, tokenizer, tmp_path / "model", length=32, extra={})
    monkeypatch.delattr(onnx_model, "write_onnx")
    with pytest.raises(UserError, match=r"no-such.csv: no such file"):
        export_model(
            tmp_path / "model", "onnx", tmp_path / "onnx", ExportOptions(dev=["no-such.csv"])
        )


class Session:
    """A graph with these logits."""

    def __init__(self, *logits: float) -> None:
        self.values = torch.tensor(logits).reshape(-1, 2)

    def logits(self, inputs: object) -> torch.Tensor:
        return self.values


def test_what_8_bits_change_is_counted_as_the_task_decides(tiny: Path) -> None:
    network = onnx_model.load_network(tiny)
    graphs: Any = {"onnx": Session(1, 2, 3, 4), "int8": Session(-1, 2, 3, 4)}
    assert measure_loss(network, graphs, "single_label_classification").share == 1.0
    assert measure_loss(network, graphs, "multi_label_classification").share == 0.75
    assert "correlation of the scores" in str(measure_loss(network, graphs, "regression"))


def test_a_head_that_transformers_does_not_have_is_refused_with_a_remedy(
    tmp_path: Path,
) -> None:
    task, tokenizer = find_task("squad-2.0"), toy_tokenizer()
    save_tuned(toy_network(task), task, tokenizer, tmp_path / "model", length=32, extra={})
    with pytest.raises(UserError, match=r"no class in transformers.*--head simple"):
        exported(tmp_path / "model", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_more_labels_than_transformers_holds_are_refused_with_the_limit(tmp_path: Path) -> None:
    labels = tuple(f"class {number}" for number in range(17))
    task = find_task("classify", labels=labels, metrics=("accuracy",), regression=False)
    network = build_network(load_pretrained(tiny_model(tmp_path / "tiny")), task, dropout=0.0)
    save_tuned(network, task, toy_tokenizer(), tmp_path / "model", length=32, extra={})
    with pytest.raises(UserError, match="of 16 labels at most it has one; run this model with"):
        exported(tmp_path / "model", tmp_path / "onnx")


# ---- every head of both families -----------------------------------------------------------------


def run_example(texts: list[str]) -> None:
    """Run the program of docs/export.md on these texts, in the folder that holds stars-onnx."""
    page = Path(__file__).parents[2] / "docs/export.md"
    _, program, *_ = page.read_text(encoding="utf8").split("```python\n")
    program = program.partition("```")[0].replace(
        '["A film to see twice.", "Two hours of rain."]', repr(texts)
    )
    exec(compile(program, str(page), "exec"), {})


@pytest.mark.slow
def test_the_program_of_the_documentation_runs(
    by_heart: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"export {by_heart('classes')} --to onnx --output-dir stars-onnx".split()
    assert main(words) == 0
    assert "ONNX Runtime computes what electra does" in capsys.readouterr().out
    texts = ["anna lives in paris the dog", "berg visits rome the cat"]
    run_example(texts)
    answers = electra.load(by_heart("classes")).predict(texts)
    assert capsys.readouterr().out.strip() == str([answer["label"] for answer in answers])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "choices"])
def test_a_fine_tuned_model_scores_the_same_as_onnx_and_nearly_so_with_8_bits(
    name: str, by_heart: Callable[[str], Path], tmp_path: Path
) -> None:
    toy = TOYS[name]
    dev = written(tmp_path / toy.file, toy.content)
    options = ExportOptions(int8=True, dev=[dev])
    result = export_model(by_heart(name), "onnx", tmp_path / "onnx", options)
    assert result.scores["onnx"] == pytest.approx(result.scores["electra"], abs=1e-6)
    assert result.int8 is not None
    assert 0 < result.int8.difference < 0.2 * result.int8.largest
    assert result.int8.share > 0.7
    assert result.scores["int8"]["accuracy"] >= result.scores["electra"]["accuracy"] - 0.15
    assert "8-bit weights" in (tmp_path / "onnx/README.md").read_text(encoding="utf8")
    assert "int8" in (tmp_path / "onnx/README.md").read_text(encoding="utf8")


@pytest.mark.slow
def test_a_model_for_questions_has_two_outputs(tmp_path: Path) -> None:
    name, options = TASKS["QuestionAnswering"]
    task, tokenizer = find_task(name, **options), toy_tokenizer()
    save_tuned(toy_network(task), task, tokenizer, tmp_path / "model", length=32, extra={})
    assert exported(tmp_path / "model", tmp_path / "onnx").difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "onnx/model.onnx")
    assert [each.name for each in session.get_outputs()] == ["start_logits", "end_logits"]


@pytest.mark.slow
def test_both_networks_of_a_pre_training_are_exported(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    generator, discriminator = build_networks(SHAPE, GeneratorShape(), vocabulary=tokenizer.size)
    assert generator is not None
    for role, network in (("generator", generator), ("discriminator", discriminator)):
        save(network, tmp_path / role, role=role, tokenizer_files=tokenizer.copy_to)  # type: ignore[arg-type]
        folder = tmp_path / f"{role}-onnx"
        assert exported(tmp_path / role, folder, int8=True).difference < 1e-4
        config = json.loads((folder / "config.json").read_text(encoding="utf8"))
        assert config["architectures"] == [network.architecture]


@pytest.mark.slow
def test_a_left_to_right_lm_is_exported(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", network=Generator, role="encoder", causal=True)
    assert exported(model, tmp_path / "onnx").difference < 1e-5


@pytest.mark.slow
def test_an_embedder_keeps_its_pooling_as_a_second_output(tiny: Path, tmp_path: Path) -> None:
    options = ExportOptions(normalize=True)
    export_model(tiny, "sentence-transformers", tmp_path / "st", options)
    exported(tmp_path / "st", tmp_path / "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx/model.onnx")
    ids = np.array([[2, 8, 9, 3]])
    inputs = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    hidden, vectors = session.run(["last_hidden_state", "sentence_embedding"], inputs)
    mean = hidden.mean(axis=1)
    assert vectors == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)
    assert model_folder(tmp_path / "onnx") == tmp_path / "onnx"
