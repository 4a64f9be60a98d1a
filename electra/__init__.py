"""Pre-train text encoders by replaced token detection (ELECTRA), from plain text to a model that
transformers loads.

    from electra import finetune, load_recipe, load_tuned, predict, pretrain, shard, train_wordpiece

    tokenizer = train_wordpiece(["texts/"], "vocabulary")
    shard(["texts/"], tokenizer=tokenizer, output_dir="rows")
    pretrain(load_recipe("small"), data="rows", output_dir="runs/small")
    finetune("runs/small", "glue/rte", data="glue/", output_dir="runs/rte", seeds=5)
    answers = list(predict([load_tuned("runs/rte")], ["new.tsv"]))

The folders, each of which imports only from itself and from those above it:

    config.py, settings.py, files.py, atomic.py, file_lock.py, console.py, provenance.py
                    what every folder may import: settings as data, files, messages, versions
    data/           text becomes batches: corpora, WordPiece, shards, the data loader
    model/          token ids become vectors: encoders and their transformers formats
    objectives/     vectors become a pre-training loss: RTD, MLM and the ablations of the paper
    tasks/          vectors become answers: classification, tagging, question answering
    kernels/        the same modules, faster on a GPU
    engine/         one update: train step, optimizer, distributed processes
    runs/           run folders: checkpoints, journal, lock, signals
    pretraining/    recipe, options, set-up, loop, export, diagnosis
    finetuning/     recipe, options, set-up, loop, seeds, results
    recipes/        the settings of published runs, as TOML files
    experiments/    the trials of the paper: plan, arms, budget, sweep, findings
    reports/        tables, plots and pages of the findings
    cli/            the commands: they parse, call and print

Nine concepts: Document, WordPiece, Shard, Batch, Encoder, Objective, Task, Recipe, Trial.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The module of each public name, imported when the name is first used: `import electra` is quick.
PUBLIC = {
    "UserError": "electra.config",
    "train_wordpiece": "electra.data.vocabulary",
    "WordPiece": "electra.data.wordpiece",
    "shard": "electra.data.sharding",
    "Shards": "electra.data.shards",
    "Recipe": "electra.pretraining.recipe",
    "load_recipe": "electra.pretraining.recipe",
    "pretrain": "electra.pretraining.pretrain",
    "finetune": "electra.finetuning.finetune",
    "load_tuned": "electra.tasks.models",
    "predict": "electra.tasks.inference",
}
__all__ = [
    "Recipe",
    "Shards",
    "UserError",
    "WordPiece",
    "__version__",
    "finetune",
    "load_recipe",
    "load_tuned",
    "predict",
    "pretrain",
    "shard",
    "train_wordpiece",
]

if TYPE_CHECKING:
    from electra.config import UserError
    from electra.data.sharding import shard
    from electra.data.shards import Shards
    from electra.data.vocabulary import train_wordpiece
    from electra.data.wordpiece import WordPiece
    from electra.finetuning.finetune import finetune
    from electra.pretraining.pretrain import pretrain
    from electra.pretraining.recipe import Recipe, load_recipe
    from electra.tasks.inference import predict
    from electra.tasks.models import load_tuned


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'electra' has no attribute {name!r}")
    return getattr(importlib.import_module(PUBLIC[name]), name)
