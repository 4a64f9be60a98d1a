"""What is installed from a wheel, away from the checkout, is whole and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import toy_text

ROOT = Path(__file__).parent.parent
SMALL = "--vocab-size 300 --max-steps 2 --warmup-steps 1 --eval-rows 4".split()

pytestmark = pytest.mark.slow


def run(*argv: object, cwd: Path = ROOT) -> str:
    """Run a command without the checkout on its path."""
    without = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, argv)),
        cwd=cwd,
        env=without | {"OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=240,
    )
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no network, and no wheel of hatchling to build with")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", folder)
    (path,) = folder.glob("electra-*.whl")
    return path


@pytest.fixture(scope="module")
def electra(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a fresh environment, which takes all but electra from the running one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched last, and its own .pth files are not read: an editable
    # install of electra there is not seen.
    (packages / "running.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf8")
    return folder / "bin" / "electra"


def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "electra"
    kept = {
        str(path.relative_to(ROOT))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "electra/recipes/tiny.toml" in kept
    assert kept - packed == set()


def test_an_installed_wheel_runs_away_from_the_checkout(electra: Path, tmp_path: Path) -> None:
    code = "import electra; print(electra.__file__)"
    imported = run(electra.with_name("python"), "-c", code, cwd=tmp_path)
    assert Path(imported.strip()).is_relative_to(electra.parent.parent)
    assert "pretrain" in run(electra, "--help", cwd=tmp_path)
    assert "discriminator" in run(electra, "describe", "small", cwd=tmp_path)
    assert "efficiency" in run(electra, "trials", "list", cwd=tmp_path)
    (tmp_path / "texts.txt").write_text(toy_text(300), encoding="utf8")
    words = ("pretrain", "tiny", "--corpus", "texts.txt", "--output-dir", "run", *SMALL)
    run(electra, *words, cwd=tmp_path)
    assert (tmp_path / "run" / "discriminator" / "model.safetensors").is_file()


def test_a_wheel_has_the_extras_that_the_installation_page_lists(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    extras = set(re.findall(r"^Provides-Extra: (.*)$", archive.read(name).decode(), re.MULTILINE))
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf8")
    listed = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert listed == extras


def test_an_installed_wheel_brings_a_model_with_it(electra: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text\nA film to see twice.\nA dog.\n", encoding="utf8")
    run(electra, "embed", "small-en", "texts.csv", "--output", "vectors.npy", cwd=tmp_path)
    assert np.load(tmp_path / "vectors.npy").shape == (2, 256)
    assert "P(replaced)" in run(electra, "show", "small-en", "The dog sees.", cwd=tmp_path)
    code = (
        "import electra; from transformers import AutoModel; "
        'print(AutoModel.from_pretrained(electra.model_path("small-en")).config.hidden_size)'
    )
    assert run(electra.with_name("python"), "-c", code, cwd=tmp_path).split()[-1] == "256"
