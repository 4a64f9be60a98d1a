"""A model folder states the checksums of its files, and no file with another content is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from electra.checksums import CHECKSUMS, read_checksums, verify_if_listed
from electra.config import UserError
from electra.model import huggingface
from electra.model.networks import Discriminator
from electra.tasks.models import load_pretrained, load_tuned
from tests.tasks.toys import toy_encoder, toy_tokenizer

FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_the_file_is_one_that_sha256sum_checks(model: Path) -> None:
    assert set(FILES) <= read_checksums(model).keys()
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS], cwd=model, check=True)


@pytest.mark.parametrize("file", FILES)
def test_a_changed_file_is_refused_with_its_name_and_a_remedy(model: Path, file: str) -> None:
    flip(model / file, bit=8 * ((model / file).stat().st_size - 2))
    with pytest.raises(UserError, match=rf"{file} is damaged: .*; copy .* remove {model}"):
        load_pretrained(model)
    (model / CHECKSUMS).unlink()
    if file == "model.safetensors":
        load_pretrained(model)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_has_become_huge_is_refused_before_it_is_hashed(model: Path, file: str) -> None:
    os.truncate(model / file, 3 * 10**11)  # takes no place on the disk, but minutes to read
    with pytest.raises(UserError, match=rf"{file} is damaged: 300,000,000,000 bytes long"):
        verify_if_listed(model / file)


def test_a_fine_tuned_model_is_verified_too(
    by_heart: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(load_tuned(by_heart("classes")).folder, tmp_path / "model"))
    load_tuned(folder)
    flip(folder / "model.safetensors", bit=8 * 20_000)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load_tuned(folder)


def test_every_shard_of_a_large_model_is_verified(tmp_path: Path) -> None:
    network = Discriminator(toy_encoder(toy_tokenizer()))
    huggingface.save(network, tmp_path / "m", role="discriminator", shard_bytes=30_000)
    for path in (tmp_path / "m").glob("model*"):
        flip(path, bit=8 * (path.stat().st_size - 2))
        with pytest.raises(UserError, match=f"{path.name} is damaged"):
            huggingface.load(network, tmp_path / "m")
        flip(path, bit=8 * (path.stat().st_size - 2))


def test_the_card_may_be_edited_and_files_may_be_added(model: Path) -> None:
    (model / "README.md").write_text("# Mine\n")
    (model / "special_tokens_map.json").write_text("{}")
    load_pretrained(model)


def test_a_change_on_purpose_is_read_once_the_checksums_are_removed(model: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"hidden_dropout_prob": 0.3}
    (model / "config.json").write_text(json.dumps(config))
    (model / CHECKSUMS).unlink()
    assert load_pretrained(model).encoder.shape.dropout == 0.3


def test_a_damaged_list_of_checksums_is_refused(model: Path) -> None:
    content = (model / CHECKSUMS).read_text()
    for damaged in (content[:-1], content.replace("  ", " "), content.upper(), "\n"):
        (model / CHECKSUMS).write_text(damaged)
        with pytest.raises(UserError, match=f"{CHECKSUMS} is damaged: .*; copy or export"):
            load_pretrained(model)
