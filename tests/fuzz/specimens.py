"""A valid example of every file and folder that the package reads, and its reader."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from rich.console import Console

from electra.checksums import CHECKSUMS, write_checksums
from electra.cli import show
from electra.config import RECIPES
from electra.console import ignore
from electra.data.corpus import read_corpus
from electra.data.options import ShardOptions, VocabularyOptions
from electra.data.records import read_record
from electra.data.sharding import shard
from electra.data.shards import Shards
from electra.data.tables import find_table
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece
from electra.engine.training_state import capture
from electra.experiments import findings, findings_file
from electra.experiments.plan_file import PlanFile
from electra.finetuning.output_dir import read_identity
from electra.pretraining import resume
from electra.pretraining.recipe import load_recipe
from electra.reports import figures
from electra.reports.markdown import render_markdown
from electra.reports.report import page
from electra.runs import checkpoint, journal, run_dir
from electra.settings import as_dict, as_toml
from electra.tasks import find_task
from electra.tasks.models import load_pretrained, load_tuned, save_tuned
from electra.tasks.task import Network
from tests.experiments.invented import efficiency
from tests.tasks.toys import (
    keyword_rows,
    option_rows,
    question_rows,
    tagged_words,
    tiny_model,
    toy_encoder,
    toy_tokenizer,
)


@dataclass(frozen=True)
class Specimen:
    """Valid files, and a function that reads all of them."""

    root: Path
    files: tuple[str, ...]
    read: Callable[[], object]
    names_its_file: bool = True  # in its errors; flags have no file


def consume(iterator: Iterator[Any]) -> None:
    for _ in iterator:
        pass


def read_task_file(name: str, path: Path, **options: Any) -> None:
    """Read a table as fine-tuning does: with labels, which the task learns, and without."""
    task = find_task(name, **options)
    examples = list(task.read([find_table(path)], labelled=True))
    if examples:
        task.fit_labels(examples)
    consume(task.read([find_table(path)], labelled=False))


PROSE = "the old dog sees the house .\n\nthe quiet river – it crosses\nthe bridge .\n" * 3
JSONL = "".join(
    json.dumps({"text": line, "id": n}) + "\n" for n, line in enumerate(PROSE.split("\n\n"))
)
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "toy",
            "paragraphs": [
                {
                    "context": "the old dog sees",
                    "qas": [
                        {
                            "id": str(n),
                            "question": "who ?",
                            "answers": [{"text": "dog", "answer_start": 8}],
                        }
                        for n in range(3)
                    ],
                }
            ],
        }
    ],
}
RACE = {
    "id": "1",
    "article": "the dog",
    "questions": ["who _ ?", "why"],
    "answers": ["A", "B"],
    "options": [["a", "b"], ["c", "d"]],
}
STATE = {"status": "running", "step": 3, "time": 1.5}
METRICS = "".join(
    json.dumps(
        {"step": n, "time": 1.5, "mlm": 5.0 - n, "tokens_seen": n * 10, "tokens_per_second": 9.0}
    )
    + "\n"
    for n in range(1, 6)
)


def file_specimen(
    root: Path, name: str, content: bytes | str, read: Callable[[Path], object]
) -> Specimen:
    path = root / name
    root.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Specimen(root, (name,), lambda: read(path))


def corpus_specimen(root: Path, name: str, content: bytes | str) -> Specimen:
    return file_specimen(
        root, name, content, lambda path: consume(read_corpus([path], report=ignore))
    )


def parquet(path: Path) -> bytes:
    path.parent.mkdir(parents=True)
    pyarrow.parquet.write_table(
        pyarrow.table({"text": PROSE.split("\n"), "id": list(range(13))}),
        path,
        compression="none",
        use_dictionary=False,
    )
    return path.read_bytes()


def run_folder(root: Path) -> Specimen:
    """Return a run that stopped after step 4."""
    (root / "checkpoint-4").mkdir(parents=True)
    recipe = load_recipe("small")
    (root / run_dir.CONFIG).write_text(as_toml(recipe), encoding="utf8")
    (root / run_dir.STATUS).write_text(json.dumps(STATE), encoding="utf8")
    (root / run_dir.METRICS).write_text(METRICS, encoding="utf8")
    (root / "run.json").write_text(json.dumps({"task": {"name": "x"}}), encoding="utf8")
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    checkpoint.write(root, capture(module, optimizer), step=4, state={"recipe": as_dict(recipe)})

    def read() -> None:
        # As whoever hands over a folder would: a reader must not rely on checksums.
        write_checksums(root / "checkpoint-4", [*checkpoint.TENSORS, checkpoint.STATE])
        run_dir.get_status(root)
        read_identity(root)
        show.print_curves(root, Console(quiet=True))
        findings.with_minutes(journal.read_metrics(root / run_dir.METRICS))
        resume.find_resume_point(recipe, root, resume="auto", overwrite=False)

    return Specimen(
        root,
        (
            run_dir.CONFIG,
            run_dir.STATUS,
            run_dir.METRICS,
            "run.json",
            "checkpoint-4/state.json",
            "checkpoint-4/weights.safetensors",
        ),
        read,
    )


def trial_folder(root: Path) -> Specimen:
    """Return a plan of two arms, one of them run and scored."""
    root.mkdir(parents=True)
    whole = asdict(efficiency(seeds=1))
    run = {
        "folder": "runs/electra",
        "steps": 5,
        "flops_per_step": 1e9,
        "official_flops_per_step": 1e9,
    }
    entries = [
        {
            "arm": arm,
            "seed": 0,
            "runs": [run],
            "tasks": {"glue/rte": {"folder": "runs/electra/rte", "seeds": 1}},
        }
        for arm in ("electra", "bert")
    ]
    filed = asdict(
        PlanFile(
            trial=whole["trial"],
            scale=whole["scale"],
            budget="1/4",
            schedule="linear",
            tasks=["glue/rte"],
            corpus=whole["corpus"],
            entries=entries,
        )
    )
    (root / "efficiency.json").write_text(json.dumps(filed), encoding="utf8")
    (root / "runs/electra/rte").mkdir(parents=True)
    (root / "runs/electra/metrics.jsonl").write_text(METRICS, encoding="utf8")
    (root / "runs/electra/status.json").write_text(json.dumps(STATE), encoding="utf8")
    (root / "runs/electra/config.toml").write_text("[training]\nseed = 1\n", encoding="utf8")
    environment = {"electra": "0", "packages": {"torch": "2"}, "gpus": ["x"], "python": "3.11"}
    (root / "runs/electra/environment.json").write_text(json.dumps(environment), encoding="utf8")
    (root / "runs/electra/rte/results.json").write_text(
        json.dumps({"metric": "accuracy", "baseline": 0.5, "runs": [{"score": 0.6, "seed": 0}]}),
        encoding="utf8",
    )
    return Specimen(
        root,
        (
            "efficiency.json",
            "runs/electra/metrics.jsonl",
            "runs/electra/status.json",
            "runs/electra/config.toml",
            "runs/electra/environment.json",
            "runs/electra/rte/results.json",
        ),
        lambda: findings.collect(root),
    )


def findings_file_specimen(root: Path) -> Specimen:
    root.mkdir(parents=True)
    several = efficiency(seeds=1)
    findings_file.save([replace(several, results=several.results[:2])], root / "findings.json")

    def read() -> None:
        # Without figures: each takes half a second.
        with mock.patch.object(figures, "is_available", return_value=False):
            render_markdown(page(findings_file.load(root / "findings.json"))).encode()

    return Specimen(root, ("findings.json",), read)


def shard_folder(root: Path) -> Specimen:
    """Return shards small enough to be changed anywhere."""
    root.parent.mkdir()
    (root.parent / "shard.txt").write_text(PROSE * 9, encoding="utf8")
    tokenizer = train_wordpiece(
        [root.parent / "shard.txt"],
        root.parent / "words",
        options=VocabularyOptions(vocab_size=100),
        report=ignore,
    )
    shard(
        [root.parent / "shard.txt"],
        tokenizer=tokenizer,
        output_dir=root,
        options=ShardOptions(length=16, held_out=0.2, workers=1),
        report=ignore,
    )
    # Without its own checksum, as in earlier versions: other checks must hold without it.
    manifest = read_record(root / "manifest.json", remedy="")
    (root / "manifest.json").write_text(json.dumps(manifest), encoding="utf8")

    def read() -> None:
        shards = Shards.open(root)
        assert shards.tokenizer.size == len(shards.counts)
        for rows in (shards.train, shards.held_out):
            rows.take(np.arange(len(rows)))
        shards.verify()

    return Specimen(
        root,
        (
            "manifest.json",
            "inputs.jsonl",
            "train-00000.ids.npy",
            "train-00000.ends.npy",
            "counts.npy",
        ),
        read,
    )


def tokenizer_folder(root: Path) -> Specimen:
    root.parent.mkdir()
    (root.parent / "words.txt").write_text(PROSE * 9, encoding="utf8")
    train_wordpiece(
        [root.parent / "words.txt"], root, options=VocabularyOptions(vocab_size=100), report=ignore
    )

    def read() -> None:
        tokenizer = WordPiece.load(root)
        assert len(tokenizer.fingerprint) == 16
        assert tokenizer.size
        tokenizer.encode(["the old dog [MASK] sees", "x" * 300])
        train_wordpiece(
            [root.parent / "words.txt"],
            root,
            options=VocabularyOptions(vocab_size=100),
            report=ignore,
        )

    return Specimen(root, ("tokenizer.json", "tokenizer_config.json", "vocabulary.json"), read)


def model_folder(root: Path) -> Specimen:
    tiny_model(root)
    (root / CHECKSUMS).unlink()  # a reader must not rely on checksums
    return Specimen(
        root,
        ("config.json", "config.json", "model.safetensors", "tokenizer.json"),
        lambda: load_pretrained(root),
    )


def tuned_folder(root: Path) -> Specimen:
    tokenizer = toy_tokenizer()
    task = find_task(
        "classify", labels=("a", "b"), metrics=("accuracy",), metric="accuracy", regression=False
    )
    save_tuned(
        Network(toy_encoder(tokenizer), task.head(32, dropout=0.0)),
        task,
        tokenizer,
        root,
        length=32,
        extra={},
    )
    (root / CHECKSUMS).unlink()
    return Specimen(root, ("config.json",), lambda: load_tuned(root))


def recipe_flags(root: Path) -> Specimen:
    """Return flags as the lines of a file, so that they change like any other."""
    good = (
        "--batch-size\n12\n--encoder.width=32\n--optimizer.betas\n0.9,0.99\n"
        "--objective.generator.fraction\n0.5"
    )
    made = file_specimen(
        root,
        "flags",
        good,
        lambda path: load_recipe(
            "small", flags=path.read_bytes().decode("utf8", "surrogateescape").split("\n")
        ),
    )
    return replace(made, names_its_file=False)


def specimens(root: Path) -> dict[str, Callable[[], Specimen]]:
    """Return functions that make the specimens, by name."""

    def task_specimen(name: str, task: str, file: str, content: str, **options: Any) -> Specimen:
        return file_specimen(
            root / name, file, content, lambda path: read_task_file(task, path, **options)
        )

    return {
        "text": lambda: corpus_specimen(root / "text", "a.txt", PROSE),
        "jsonl": lambda: corpus_specimen(root / "jsonl", "a.jsonl", JSONL),
        "gzip": lambda: corpus_specimen(
            root / "gzip", "a.txt.gz", gzip.compress(PROSE.encode(), mtime=0)
        ),
        "zstd": lambda: corpus_specimen(
            root / "zstd", "a.txt.zst", pyarrow.compress(PROSE.encode(), "zstd", asbytes=True)
        ),
        "parquet": lambda: corpus_specimen(
            root / "parquet", "a.parquet", parquet(root / "made" / "a.parquet")
        ),
        "recipe": lambda: file_specimen(
            root / "recipe",
            "a.toml",
            (RECIPES / "small.toml").read_bytes(),
            lambda path: load_recipe(str(path)),
        ),
        "flags": lambda: recipe_flags(root / "flags"),
        "csv": lambda: task_specimen("csv", "classify", "a.csv", keyword_rows(8)),
        "tsv": lambda: task_specimen(
            "tsv", "choose", "a.tsv", option_rows().replace(",", "\t"), options=tuple("abcd")
        ),
        "rows": lambda: task_specimen("rows", "classify", "a.jsonl", JSONL, label="id"),
        "questions": lambda: task_specimen(
            "questions", "span", "a.jsonl", question_rows(), unanswerable=True
        ),
        "squad": lambda: task_specimen("squad", "squad-1.1", "a.json", json.dumps(SQUAD)),
        "race": lambda: task_specimen("race", "race", "a.json", json.dumps(RACE)),
        "conll": lambda: task_specimen("conll", "ner", "a.txt", tagged_words()),
        "tokenizer": lambda: tokenizer_folder(root / "tokenizer" / "words"),
        "model": lambda: model_folder(root / "model"),
        "tuned": lambda: tuned_folder(root / "tuned"),
        "shards": lambda: shard_folder(root / "shards" / "rows"),
        "run": lambda: run_folder(root / "run"),
        "trial": lambda: trial_folder(root / "trial"),
        "findings file": lambda: findings_file_specimen(root / "findings_file"),
    }


NAMES = tuple(specimens(Path()))
