"""A tiny good example of everything that a user may be handed, and the commands that read it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from electra.__main__ import main
from electra.config import RunFailed
from electra.experiments import findings, findings_file

PROSE = "the old dog sees the house .\n\nthe quiet river , it crosses\nthe bridge .\n" * 9
ROWS = [("the old dog sees", "dogs"), ("the quiet cat sees", "cats")] * 4
SETTINGS = (
    "--data.length 16 --data.vocab-size 100 --encoder.layers 1 --encoder.width 16 "
    "--encoder.heads 2 --encoder.feedforward 16 --encoder.embedding 16 --encoder.positions 16 "
    "--objective.generator.fraction 1 --batch-size 2 --micro-batch-size 2 --max-steps 2 "
    "--warmup-steps 1 --logging-steps 1 --eval-steps 2 --eval-rows 2 --save-steps 1"
).split()
TUNING = "--max-steps 1 --batch-size 2 --length 16 --epochs 1 --quiet".split()


@dataclass(frozen=True)
class Case:
    """A folder to change, and a command that reads it.

    In the command INPUT is the changed folder, OUTPUT the only folder that may be written to, and
    GOOD the folder of the unchanged examples.
    """

    what: str
    folder: str  # of GOOD
    command: str
    in_place: bool = False  # the command continues in the changed folder
    cost: int = 1  # how many times longer it takes than others

    @property
    def needs(self) -> set[str]:
        """The names of the examples that the command reads."""
        words = [word for word in self.command.split() if word.startswith("GOOD/")]
        return {self.folder, *(word.split("/")[1] for word in words)}


CASES = [
    Case("corpus: vocab", "corpus", "vocab INPUT --output-dir OUTPUT/t --vocab-size 100", cost=2),
    Case(
        "corpus: shard",
        "corpus",
        "shard INPUT --output-dir OUTPUT/s --tokenizer GOOD/tokenizer --length 16 --workers 1",
    ),
    Case(
        "tokenizer: shard",
        "tokenizer",
        "shard GOOD/corpus/a.txt --output-dir OUTPUT/s --tokenizer INPUT --length 16 --workers 1",
    ),
    Case(
        "tokenizer: vocab",
        "tokenizer",
        "vocab GOOD/corpus --output-dir INPUT --vocab-size 100",
        in_place=True,
    ),
    Case("shards: verify", "shards", "shard --verify --output-dir INPUT", in_place=True),
    Case("shards: merge", "shards", "shard --merge --output-dir INPUT", in_place=True),
    Case(
        "shards: pretrain",
        "shards",
        "pretrain GOOD/recipe/a.toml --data INPUT --output-dir OUTPUT/r --quiet",
        cost=10,
    ),
    Case("recipe: describe", "recipe", "describe INPUT/a.toml"),
    Case("recipe: print-config", "recipe", "pretrain INPUT/a.toml --print-config"),
    Case(
        "recipe: finetune",
        "tuning",
        "finetune GOOD/model --task classify --recipe INPUT/a.toml --print-config "
        "--output-dir OUTPUT/f",
    ),
    Case(
        "run: resume",
        "stopped",
        "pretrain GOOD/recipe/a.toml --data GOOD/shards --output-dir INPUT --max-steps 3 "
        "--resume-schedule stretch --quiet",
        in_place=True,
        cost=10,
    ),
    Case("run: describe", "run", "describe INPUT"),
    Case("run: show", "run", "show INPUT dog --output OUTPUT/a.svg", cost=3),
    Case("model: describe", "model", "describe INPUT --json"),
    Case("model: embed", "model", "embed INPUT GOOD/tables/a.csv --output OUTPUT/a.npy", cost=2),
    Case(
        "model: finetune",
        "model",
        "finetune INPUT --task classify --train GOOD/tables/a.csv --dev GOOD/tables/a.csv "
        f"--dev-on-train --output-dir OUTPUT/f {' '.join(TUNING)}",
        cost=10,
    ),
    Case(
        "tuned: predict", "tuned", "predict INPUT GOOD/tables/a.csv --output OUTPUT/a.csv", cost=2
    ),
    Case("tuned: evaluate", "tuned", "evaluate INPUT --dev GOOD/tables/a.csv", cost=2),
    Case(
        "tuned: finetune again",
        "tuned",
        "finetune GOOD/model --task classify --train GOOD/tables/a.csv --dev GOOD/tables/a.csv "
        f"--dev-on-train --output-dir INPUT {' '.join(TUNING)}",
        in_place=True,
        cost=5,
    ),
    Case("table: predict", "tables", "predict GOOD/tuned INPUT/a.csv --output OUTPUT/a.jsonl"),
    Case("table: evaluate", "tables", "evaluate GOOD/tuned --dev INPUT/b.jsonl"),
    Case("table: embed", "tables", "embed GOOD/model INPUT/c.parquet --output OUTPUT/a.parquet"),
    Case(
        "table: finetune",
        "tables",
        "finetune GOOD/model --task classify --train INPUT/a.csv --dev INPUT/b.jsonl "
        f"--output-dir OUTPUT/f {' '.join(TUNING)}",
        cost=10,
    ),
    Case("trials: report", "sweep", "trials report INPUT --to OUTPUT/r"),
    Case("findings: report", "findings", "trials report INPUT/findings.json --to OUTPUT/r"),
]


def make_inputs(good: Path, *, with_models: bool = True) -> None:
    """Make the good examples, mostly by the commands themselves."""
    write_corpus(good / "corpus")
    write_tables(good / "tables")
    run("vocab GOOD/corpus --output-dir GOOD/tokenizer --vocab-size 100", good)
    shard = "shard GOOD/corpus --output-dir GOOD/shards --tokenizer GOOD/tokenizer --length 16"
    run(f"{shard} --workers 1 --held-out 0.2", good)
    write_recipes(good)
    if with_models:
        make_models(good)


def make_models(good: Path) -> None:
    """Make the examples that networks have to be trained for."""
    run("pretrain GOOD/recipe/a.toml --data GOOD/shards --output-dir GOOD/run --quiet", good)
    shutil.copytree(good / "run", good / "stopped")
    shutil.copytree(good / "run" / "discriminator", good / "model")
    files = (
        "--train GOOD/tables/a.csv --dev GOOD/tables/a.csv --dev-on-train --output-dir GOOD/tuned"
    )
    run(f"finetune GOOD/model --task classify {files} {' '.join(TUNING)}", good)
    write_sweep(good / "sweep", good / "run")
    (good / "findings").mkdir()
    findings_file.save(findings.collect(good / "sweep"), good / "findings" / "findings.json")


def usable_cases(good: Path) -> list[Case]:
    """Return the cases whose examples were made."""
    return [case for case in CASES if all((good / name).is_dir() for name in case.needs)]


def run(command: str, good: Path) -> None:
    code = main(fill(command, {"GOOD": good}))
    if code != 0:
        raise RunFailed(f"`electra {command}` on good input ended with exit code {code}")


def fill(command: str, folders: dict[str, Path]) -> list[str]:
    """Return the arguments of a command with the folders in their places."""
    return [fill_word(word, folders) for word in command.split()]


def fill_word(word: str, folders: dict[str, Path]) -> str:
    first, slash, rest = word.partition("/")
    if first in folders:
        return f"{folders[first]}{slash}{rest}"
    return word


def write_corpus(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text(PROSE, encoding="utf8")
    lines = [json.dumps({"text": text}) for text in PROSE.split("\n\n")]
    (folder / "b.jsonl").write_text("\n".join(lines), encoding="utf8")
    pyarrow.parquet.write_table(pyarrow.table({"text": PROSE.split("\n")}), folder / "c.parquet")
    (folder / "d.txt.gz").write_bytes(gzip.compress(PROSE.encode()))


def write_tables(folder: Path) -> None:
    folder.mkdir(parents=True)
    lines = ["text,label", *(f"{text},{label}" for text, label in ROWS)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    rows = [{"text": text, "label": label} for text, label in ROWS]
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf8")
    columns: dict[str, Sequence[str]] = {"text": [text for text, _ in ROWS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "c.parquet")


def write_recipes(good: Path) -> None:
    from electra.finetuning.recipe import FinetuneConfig
    from electra.pretraining.recipe import load_recipe
    from electra.settings import as_toml

    for name in ("recipe", "tuning"):
        (good / name).mkdir()
    text = as_toml(load_recipe("tiny", flags=SETTINGS))
    (good / "recipe" / "a.toml").write_text(text, encoding="utf8")
    (good / "tuning" / "a.toml").write_text(as_toml(FinetuneConfig()), encoding="utf8")


def write_sweep(folder: Path, run: Path) -> None:
    """Write the plan of one arm, whose run is there and scored."""
    from electra.experiments.plan import load_scale, load_trial
    from electra.experiments.plan_file import SCHEDULE, PlanEntry, PlanFile, PlannedRun, PlannedTask

    for name in ("metrics.jsonl", "status.json", "config.toml", "environment.json"):
        (folder / "runs" / "a").mkdir(parents=True, exist_ok=True)
        shutil.copy(run / name, folder / "runs" / "a" / name)
    (folder / "runs" / "a" / "rte").mkdir()
    scores = {"metric": "accuracy", "baseline": 0.5, "runs": [{"score": 0.6, "seed": 0}]}
    results = folder / "runs" / "a" / "rte" / "results.json"
    results.write_text(json.dumps(scores), encoding="utf8")
    planned = PlannedRun(folder="runs/a", steps=2, flops_per_step=1e9, official_flops_per_step=1e9)
    tasks = {"glue/rte": PlannedTask(folder="runs/a/rte", seeds=1)}
    entry = PlanEntry(arm="electra", seed=0, runs=[planned], tasks=tasks)
    plan = PlanFile(
        trial=asdict(load_trial("efficiency")),
        scale=asdict(load_scale("smoke")),
        budget="1",
        schedule=SCHEDULE,
        tasks=["glue/rte"],
        corpus={"tokens": 1000},
        entries=[asdict(entry)],
    )
    (folder / "efficiency-smoke-1.json").write_text(json.dumps(asdict(plan)), encoding="utf8")
