"""Reading a foreign model, shards or run executes nothing and reads nothing outside its folder."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from torch import nn

from electra.checksums import CHECKSUMS, write_checksums
from electra.config import UserError
from electra.data.dataset import load_integers
from electra.data.records import read_record, write_record
from electra.data.shards import Shards
from electra.data.wordpiece import WordPiece
from electra.engine.training_state import restore
from electra.model.model_config import load_shape
from electra.model.weight_files import is_within
from electra.runs import checkpoint
from electra.tasks.models import load_pretrained
from tests.wording import wording_of

wording = wording_of(__file__)

INDEX = "model.safetensors.index.json"


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def opened_marker(tmp_path: Path) -> Path:
    return tmp_path / "sprung"


@pytest.fixture
def trap(opened_marker: Path) -> bytes:
    """A pickle whose opening leaves a file behind."""
    content = pickle.dumps(Trap(opened_marker))
    pickle.loads(content)
    assert opened_marker.exists()
    opened_marker.unlink()
    return content


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A model folder without checksums: whoever hands one over can write matching ones."""
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    (folder / CHECKSUMS).unlink()
    return folder


def index(model: Path, file: str) -> None:
    """Write an index that says that all tensors of the model are in this file."""
    with safe_open(model / "model.safetensors", framework="np") as weights:
        names = list(weights.keys())
    (model / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(names, file)}), encoding="utf8"
    )


# ---- pickles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", ["pytorch_model.bin", "model.pt", "model.pkl", "model.safetensors"]
)
@pytest.mark.parametrize("indexed", [False, True])
def test_a_pickle_for_weights_is_refused_and_not_opened(
    model: Path, trap: bytes, opened_marker: Path, file: str, indexed: bool
) -> None:
    if indexed:
        index(model, file)
    (model / "model.safetensors").unlink()
    (model / file).write_bytes(trap)
    with pytest.raises(UserError, match=str(model)):
        load_pretrained(model)
    assert not opened_marker.exists()


@pytest.mark.parametrize("file", ["counts.npy", "train-00000.ids.npy", "train-00000.ends.npy"])
@pytest.mark.parametrize("as_array", [False, True])
def test_a_pickle_among_shards_is_refused_and_not_opened(
    toy_shards: Path, tmp_path: Path, trap: bytes, opened_marker: Path, file: str, as_array: bool
) -> None:
    rows = Path(shutil.copytree(toy_shards, tmp_path / "rows"))
    (rows / file).write_bytes(trap)
    if as_array:
        np.save(rows / file, np.array([Trap(opened_marker)], dtype=object), allow_pickle=True)
    manifest = read_record(rows / "manifest.json", remedy="")
    for each in manifest["files"]:
        each["bytes"] = (rows / each["name"]).stat().st_size
    write_record(rows / "manifest.json", manifest)
    with pytest.raises(UserError, match=rf"{file}: damaged"):
        Shards.open(rows)
    with pytest.raises(UserError, match=rf"{file}: damaged"):
        load_integers(rows / file)
    assert not opened_marker.exists()


@pytest.mark.slow
def test_code_beside_a_tokenizer_is_not_run(model: Path, opened_marker: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "evil.py").write_text(
        f"open({str(opened_marker)!r}, 'w')\nclass Evil: pass\n", encoding="utf8"
    )
    (model / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
        ),
        encoding="utf8",
    )
    try:
        WordPiece.load(model)
    except UserError as error:
        assert str(model) in str(error)  # noqa: PT017 (to be read without that code would do as well)
    assert not opened_marker.exists()


# ---- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        "../stranger.safetensors",
        "ABSOLUTE",
        "link.safetensors",
        "loop.safetensors",
        "..",
        "sub/../../stranger.safetensors",
        "",
        "a\0.safetensors",
    ],
)
def test_an_index_cannot_name_a_file_outside_of_its_folder(model: Path, file: str) -> None:
    stranger = model.parent / "stranger.safetensors"
    shutil.copy(model / "model.safetensors", stranger)
    (model / "link.safetensors").symlink_to(stranger)
    (model / "loop.safetensors").symlink_to(model / "loop.safetensors")
    index(model, str(stranger) if file == "ABSOLUTE" else file)
    with pytest.raises(UserError, match=INDEX if "loop" not in file else "loop"):
        load_pretrained(model)


def test_links_into_the_cache_of_the_hub_are_followed(model: Path, tmp_path: Path) -> None:
    snapshot, blobs = (
        tmp_path / "models--a--b" / "snapshots" / "0123",
        tmp_path / "models--a--b" / "blobs",
    )
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    shutil.copy(model / "model.safetensors", blobs / "89ab")
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs/89ab"))
    assert is_within(snapshot, "model.safetensors")


@pytest.mark.parametrize("name", ["../stranger.npy", "/etc/passwd", "..", ""])
def test_a_manifest_cannot_name_a_file_outside_of_its_folder(
    toy_shards: Path, tmp_path: Path, name: str
) -> None:
    rows = Path(shutil.copytree(toy_shards, tmp_path / "rows"))
    manifest = read_record(rows / "manifest.json", remedy="")
    manifest["files"][0]["name"] = name
    write_record(rows / "manifest.json", manifest)
    with pytest.raises(
        UserError, match=wording("a_manifest_cannot_name_a_file_outside_of_its_folder")
    ):
        Shards.open(rows)


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 2**40, "num_attention_heads": 1},
        {"vocab_size": 2**40},
        {"max_position_embeddings": 10**15},
        {"intermediate_size": 10**12},
        {"embedding_size": 10**9},
        {"vocab_size": 10**30},
        {"num_hidden_layers": 10**6},
        {"vocab_size": 0},
        {"vocab_size": -1},
        {"hidden_size": 0},
        {"num_hidden_layers": 1.5},
        {"vocab_size": float("nan")},
        {"hidden_size": True},
        {"hidden_size": [[]]},
    ],
    ids=str,
)
def test_a_network_of_absurd_size_is_refused_before_it_is_built(
    model: Path, sizes: dict[str, object]
) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf8"))
    (model / "config.json").write_text(json.dumps(config | sizes), encoding="utf8")
    with pytest.raises(
        UserError, match=wording("a_network_of_absurd_size_is_refused_before_it_is_built")
    ):
        load_shape(model)


@pytest.mark.parametrize(
    "lie", ["header too long", "offsets too far", "shape too large", "unknown kind", "no tensors"]
)
def test_a_header_that_lies_about_its_tensors_is_refused(model: Path, lie: str) -> None:
    content = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    first = next(name for name in header if name != "__metadata__")
    if lie == "offsets too far":
        header[first]["data_offsets"][1] = 2**62
    elif lie == "shape too large":
        header[first]["shape"] = [2**31, 2**31]
    elif lie == "unknown kind":
        header[first]["dtype"] = "PICKLE"
    elif lie == "no tensors":
        header = {}
    changed = json.dumps(header).encode()
    length = 2**63 if lie == "header too long" else len(changed)
    (model / "model.safetensors").write_bytes(
        length.to_bytes(8, "little") + changed + content[8 + size :]
    )
    with pytest.raises(UserError, match=str(model)):
        load_pretrained(model)


def test_a_checkpoint_that_is_a_pickle_is_not_one(
    tmp_path: Path, trap: bytes, opened_marker: Path
) -> None:
    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    for name in checkpoint.TENSORS:
        (folder / name).write_bytes(trap)
    state = json.dumps({"format": checkpoint.FORMAT, "step": 4})
    (folder / checkpoint.STATE).write_text(state)
    write_checksums(folder, [*checkpoint.TENSORS, checkpoint.STATE])
    found = checkpoint.open_checkpoint(folder)
    with pytest.raises(SafetensorError):
        restore(found.tensors(), module=nn.Linear(1, 1), optimizer=None, updates=4)  # type: ignore[arg-type]
    assert not opened_marker.exists()


def test_an_array_whose_header_ends_early_is_refused(toy_shards: Path, tmp_path: Path) -> None:
    rows = Path(shutil.copytree(toy_shards, tmp_path / "rows"))
    header = b"{'descr': '<i8', 'shape': (1,\n"
    changed = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header
    (rows / "counts.npy").write_bytes(changed.ljust((rows / "counts.npy").stat().st_size, b"\0"))
    with pytest.raises(UserError, match=wording("an_array_whose_header_ends_early_is_refused")):
        _ = Shards.open(rows).counts
