"""The README is true: its commands run as written, its tables are what the code and the kept
results say.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks import tables
from electra.shipped import shipped_models
from tests.conftest import toy_text

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf8")

# What makes a documented command small enough to run here: settings only, never another command.
SMALLER = (
    "--data.vocab-size 300 --encoder.layers 1 --encoder.width 16 --encoder.heads 1 "
    "--encoder.feedforward 32 "
    "--encoder.embedding 16 --batch-size 4 --max-steps 2"
).split()


def commands(language: str = "sh") -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    return [
        line.split("   #")[0].strip()
        for block in blocks
        for line in block.splitlines()
        if line.strip()
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder as a user has it: texts in it, and nothing else."""
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts" / "one.txt").write_text(toy_text(300), encoding="utf8")
    (tmp_path / "my-texts" / "two.txt").write_text(toy_text(300, seed=1), encoding="utf8")
    return tmp_path


def run(command: str, home: Path, *more: str) -> str:
    argv = shlex.split(command)
    assert argv[0] == "electra"
    done = subprocess.run(
        [sys.executable, "-m", "electra", *argv[1:], *more],
        cwd=home,
        text=True,
        timeout=720,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def test_the_two_commands_at_the_top_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf8")
    assert commands()[:2] == ["make quickstart", "make test"]
    assert re.search(r"^quickstart:", makefile, flags=re.MULTILINE)
    assert re.search(r"^test:", makefile, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_report_of_the_kept_trials_is_what_their_findings_say(tmp_path):
    run(f"electra trials report {ROOT / 'docs' / 'trials' / 'findings.json'} --to report", tmp_path)
    kept = {path.name: path.read_bytes() for path in (ROOT / "docs" / "trials").iterdir()}
    made = {
        path.name: path.read_bytes()
        for path in (tmp_path / "report").iterdir()
        if path.name != "index.html"
    }
    assert kept.keys() == made.keys()
    assert [
        name for name in kept if name.endswith((".md", ".json")) and kept[name] != made[name]
    ] == []


def test_one_command_makes_models_that_transformers_loads(home):
    (command,) = [c for c in commands() if c.startswith("electra pretrain modern-small --corpus")]
    run(command, home, *SMALLER)
    from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification, AutoTokenizer

    discriminator, generator = home / "runs/mine/discriminator", home / "runs/mine/generator"
    tokenizer = AutoTokenizer.from_pretrained(discriminator)
    batch = tokenizer("the old dog sees", "the house .", return_tensors="pt")
    model = AutoModelForTokenClassification.from_pretrained(discriminator)
    assert model.config.id2label == {0: "original", 1: "replaced"}
    assert model(**batch).logits.shape == (*batch["input_ids"].shape, 2)
    logits = AutoModelForMaskedLM.from_pretrained(generator)(**batch).logits
    assert logits.shape[-1] == len(tokenizer)


@pytest.mark.slow
def test_the_same_command_with_the_papers_small_makes_an_electra(home):
    (command,) = [c for c in commands() if c.startswith("electra pretrain modern-small --corpus")]
    run(command.replace("modern-small", "small").replace("mine", "paper"), home, *SMALLER)
    from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

    discriminator, generator = home / "runs/paper/discriminator", home / "runs/paper/generator"
    tokenizer = AutoTokenizer.from_pretrained(discriminator)
    batch = tokenizer("the old dog sees", "the house .", return_tensors="pt")
    assert batch["token_type_ids"].sum() > 0
    model = ElectraForPreTraining.from_pretrained(discriminator)
    assert model(**batch).logits.shape == batch["input_ids"].shape
    logits = ElectraForMaskedLM.from_pretrained(generator)(**batch).logits
    assert logits.shape[-1] == len(tokenizer)


@pytest.mark.slow
def test_the_stages_stand_alone(home):
    stages = ("electra vocab", "electra shard", "electra pretrain", "electra describe")
    _, vocab, shard, pretrain, describe = [c for c in commands() if c.startswith(stages)]
    run(vocab.replace("30522", "300"), home)
    run(shard, home)
    run(pretrain, home, *SMALLER[2:])
    (show,) = [c for c in commands() if c.startswith("electra show")]
    assert "P(replaced)" in run(show, home)
    assert "<svg" in (home / "sentence.svg").read_text(encoding="utf8")
    assert "parameters" in run(describe, home)


@pytest.mark.slow
def test_the_same_run_stands_on_one_node_or_on_several(home):
    lines = re.findall(r"^torchrun(?:.*\\\n)*.*", README, flags=re.MULTILINE)
    one, several = [
        line.replace("\\\n", " ")
        .replace("torchrun", f"{sys.executable} -m torch.distributed.run")
        .replace("--nproc-per-node 8", "--nproc-per-node 2")
        for line in lines
    ]
    assert "--nnodes 4" in several
    with socket.socket() as free:
        free.bind(("localhost", 0))
        here = f"localhost:{free.getsockname()[1]}"
    several = several.replace("--nnodes 4 --nproc-per-node 2", "--nnodes 2 --nproc-per-node 1")
    several = several.replace("node1:29500", here)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for command, nodes in ((one, 1), (several, 2)):
        argv = [*shlex.split(command), *SMALLER, "--objective.generator.fraction", "1.0"]
        started = [
            subprocess.Popen(
                argv,
                cwd=home,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for _ in range(nodes)
        ]
        for process in started:
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output
    assert (home / "runs/large/discriminator/model.safetensors").exists()


@pytest.mark.slow
def test_a_model_becomes_answers_as_the_readme_says(home, tiny):
    shutil.copytree(tiny, home / "runs/mine/discriminator")
    reviews(home / "train.csv", column="review", label="stars")
    reviews(home / "dev.csv", column="review", label="stars", animal="cat")
    (home / "new.csv").write_text("review\nan old dog\na green house\n", encoding="utf8")
    (home / "glue/RTE").mkdir(parents=True)
    for split in ("train", "dev"):
        (home / f"glue/RTE/{split}.tsv").write_text(
            "index\tsentence1\tsentence2\tlabel\n"
            + "".join(
                f"{split}-{n}\tthe dog sees\tthe cat sees\t{'not_' * (n % 2)}entailment\n"
                for n in range(6)
            ),
            encoding="utf8",
        )
    glue, own, evaluate, predict, embed = [
        c
        for c in commands()
        if c.startswith(
            ("electra finetune", "electra evaluate", "electra predict", "electra embed")
        )
    ]
    assert "median of 2 seeds" in run(
        glue.replace("--seeds 5", "--seeds 2"), home, "--max-steps", "2"
    )
    run(own, home, "--max-steps", "2")
    assert "accuracy" in run(evaluate, home)
    run(predict, home)
    assert len((home / "answers.jsonl").read_text(encoding="utf8").splitlines()) == 2
    run(embed, home)
    assert (home / "vectors.parquet").stat().st_size > 0


@pytest.mark.slow
def test_models_are_exported_and_served_as_the_readme_says(home, tiny):
    shutil.copytree(tiny, home / "runs/mine/discriminator")
    reviews(home / "train.csv", column="review", label="stars")
    reviews(home / "dev.csv", column="review", label="stars", animal="cat")
    _, own = [c for c in commands() if c.startswith("electra finetune")]
    run(own, home, "--max-steps", "2")
    (export,) = [c for c in commands() if c.startswith("electra export")]
    run(export, home)
    assert (home / "stars-onnx" / "model.onnx").stat().st_size > 0
    (serve,) = [c for c in commands() if c.startswith("electra serve")]
    server = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(serve), "--port", "0"],
        cwd=home,
        text=True,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    try:
        printed = iter(server.stderr.readline, "")
        (address,) = next(found for line in printed if (found := re.findall(r"http://\S+", line)))
        with urllib.request.urlopen(f"{address}api/models", timeout=240) as answer:
            kinds = [model["kind"] for model in json.load(answer)["models"]]
    finally:
        server.terminate()
    assert kinds == ["pretraining", "classify"]
    assert server.wait(timeout=240) == 0


def reviews(path, *, column, label, animal="dog"):
    path.write_text(
        f"{column},{label}\n"
        + "".join(f"a {word} {animal},{word}\n" for word in ("good", "bad") * 8),
        encoding="utf8",
    )


@pytest.mark.slow
def test_the_python_of_the_readme_runs(home, monkeypatch):
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    keys = [flag.removeprefix("--").replace("-", "_") for flag in SMALLER[::2]]
    settings = dict(zip(keys, SMALLER[1::2], strict=True))
    small = program.replace("max_steps=20_000", f"settings={settings}")
    small = small.replace("seeds=3", 'settings={"max_steps": 2}').replace(
        "runs/mine", "runs/python"
    )
    assert small.count("settings=") == 2
    reviews(home / "train.csv", column="text", label="label")
    reviews(home / "dev.csv", column="text", label="label", animal="cat")
    subprocess.run(
        [sys.executable, "-c", small],
        cwd=home,
        check=True,
        timeout=720,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert (home / "runs/python/discriminator/model.safetensors").exists()
    assert (home / "runs/tuned/results.json").exists()


@pytest.mark.parametrize("document", tables.DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_are_what_the_recipes_and_the_kept_results_say(document):
    text = document.read_text(encoding="utf8")
    assert tables.fill_tables(text) == text, "run `python -m benchmarks.tables`"


def literal_pieces(folder: Path) -> list[str]:
    """Return the literal text of every string in the code, f-strings cut at their values."""
    pieces = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                pieces.append(node.value)
    return pieces


def test_the_messages_that_troubleshooting_quotes_are_in_the_code():
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf8")
    quotes = re.findall(r"^> `(.*)`$", text, flags=re.MULTILINE)
    pieces = literal_pieces(ROOT / "electra")
    for quote in quotes:
        if quote.startswith("OutOfMemoryError"):  # this one is torch's
            continue
        for part in quote.split("…"):
            part = part.strip(" :;.%()")  # punctuation between two values
            assert any(part in piece for piece in pieces), part


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


@pytest.mark.slow
def test_quickstart_shows_what_it_learned(tmp_path):
    output = run(f"electra quickstart --output-dir {tmp_path / 'quick'} --max-steps 30", tmp_path)
    for part in (
        "generator loss",
        "held-out scores",
        "average precision",
        "discriminator",
        "articles",
        "quickstart.svg",
        "random weights",
        "pre-trained here",
        *(f"{name}, shipped" for name in shipped_models()),
        "always the same answer",
        "Pre-training",
        "what next",
    ):
        assert part in output
    assert (tmp_path / "quick" / "generator" / "model.safetensors").exists()
    (predict,) = re.findall(r"electra predict .*", output)
    answers = [line for line in run(predict, tmp_path).splitlines() if line.startswith("{")]
    assert len(answers) > 100
    assert all('"probabilities"' in answer for answer in answers)
