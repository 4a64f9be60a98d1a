"""Folders for sentence-transformers: the library gives our vectors, and continues with training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import electra
from electra.__main__ import main
from electra.checksums import read_checksums, verify_file
from electra.config import RunFailed, UserError
from electra.exports import embedder
from electra.exports.export import export_model
from electra.exports.options import ExportOptions
from electra.model.families import build_networks
from electra.model.huggingface import save
from electra.model.networks import Generator
from electra.model.shape import GeneratorShape
from tests.tasks.test_modernbert import SHAPE
from tests.tasks.toys import tiny_model, toy_tokenizer

TEXTS = ["anna sat on the mat", "why", "the dog ran home to paris " * 20, ""]


def exported(model: Path, folder: Path, **options: object) -> Path:
    given = ExportOptions(**options)  # type: ignore[arg-type]
    export_model(model, "sentence-transformers", folder, given)
    return folder


@pytest.mark.slow  # importing the library takes ten seconds
def test_sentence_transformers_gives_the_vectors_of_embed(tiny: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = exported(tiny, tmp_path / "st", pool="cls", normalize=True, length=24)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.asarray(electra.embed(folder, TEXTS)) == pytest.approx(theirs, abs=1e-5)
    assert theirs.shape == (4, 32)
    for name in (checksums := read_checksums(folder)):
        if "/" not in name:
            verify_file(folder / name, checksums)
    assert "modules.json" in checksums
    assert "library_name: sentence-transformers" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_vectors_that_differ_are_refused_and_nothing_is_left(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "TOLERANCE", -1.0)
    with pytest.raises(RunFailed, match=r"other vectors than electra embed, by up to \d"):
        exported(tiny, tmp_path / "st")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_not_replaced(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf8")
    with pytest.raises(UserError, match="holds something else"):
        exported(tiny, tmp_path)
    with pytest.raises(UserError, match="is the model itself"):
        exported(tiny, tiny, overwrite=True)
    assert (tmp_path / "notes.txt").exists()


def test_the_folder_of_the_shell_is_not_replaced(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is the folder you are in"):
        exported(tiny, Path())


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tiny: Path) -> None:
    with pytest.raises(UserError, match="--output-dir /proc/none: cannot be written"):
        exported(tiny, Path("/proc/none"))


def test_a_link_stays_and_the_folder_that_it_names_is_written(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "compare_vectors", lambda *_: 0.0)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    exported(tiny, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk/modules.json").is_file()


@pytest.mark.slow
def test_an_earlier_export_is_replaced_only_if_asked(tiny: Path, tmp_path: Path) -> None:
    folder = exported(tiny, tmp_path / "st")
    with pytest.raises(UserError, match="--overwrite"):
        exported(tiny, folder)
    exported(tiny, folder, overwrite=True, length=16)
    assert '"max_seq_length": 16' in (folder / "sentence_bert_config.json").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "onnx", "--normalize"], "--normalize goes with --to sentence-transformers"),
        (["--to", "sentence-transformers", "--int8"], "--int8 goes with --to onnx"),
        (["--to", "sentence-transformers", "--length", "900"], "this encoder has 64 positions"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_work(
    words: list[str],
    message: str,
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", str(tiny), *words, "--output-dir", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_says_at_once_what_it_does(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise UserError("stopped")

    monkeypatch.setattr("electra.exports.export.export_model", stop)
    main(["export", str(tiny), "--to", "onnx", "--output-dir", str(tmp_path / "onnx")])
    assert capsys.readouterr().err.startswith(f"exporting {tiny} to onnx;")


def test_a_package_that_is_not_installed_is_named_with_its_extra(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="needs the extra sentence-transformers"):
        exported(tiny, tmp_path / "st")


def test_a_generator_and_a_causal_encoder_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "generator", network=Generator, role="generator")
    with pytest.raises(UserError, match="holds a generator"):
        exported(model, tmp_path / "st")
    causal = tiny_model(tmp_path / "causal", network=Generator, role="encoder", causal=True)
    with pytest.raises(UserError, match="a causal encoder"):
        exported(causal, tmp_path / "st")


@pytest.mark.slow
def test_training_continues_in_sentence_transformers(tmp_path: Path) -> None:
    """For a few steps, of a ModernBERT; what it saves is embedded here as there."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    tokenizer = toy_tokenizer()
    _, discriminator = build_networks(SHAPE, GeneratorShape(), vocabulary=tokenizer.size)
    save(
        discriminator,
        tmp_path / "model",
        role="discriminator",
        tokenizer_files=tokenizer.copy_to,
        config_extra={"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    )
    folder = exported(tmp_path / "model", tmp_path / "st", normalize=True)
    model = SentenceTransformer(str(folder), device="cpu")
    before = model.encode(TEXTS)
    pairs = {"anchor": ["the dog sat", "a cat ran"] * 4, "positive": ["dog on mat", "cat home"] * 4}
    arguments = Arguments(
        output_dir=str(tmp_path / "trainer"),
        max_steps=3,
        learning_rate=1e-2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict(pairs),
        loss=MultipleNegativesRankingLoss(model),
    ).train()
    after = model.encode(TEXTS)
    assert np.abs(before - after).max() > 1e-3
    model.save_pretrained(str(tmp_path / "continued"))
    again = np.asarray(electra.embed(tmp_path / "continued", TEXTS))
    assert again == pytest.approx(after, abs=1e-5)
