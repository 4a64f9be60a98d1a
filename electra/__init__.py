"""Pre-train text encoders by replaced token detection (ELECTRA), from plain text to a model that
transformers loads.

    import electra

    run = electra.pretrain("modern-small", corpus="texts/", max_steps=20_000)
    tuned = electra.finetune(run, "classify", train="reviews.csv", text="review", label="stars")
    model = electra.load(tuned)
    model.predict(["A film to see twice.", "Two hours of rain."])
    electra.evaluate(model, "test.csv").score
    electra.embed(run, ["one text", "another"]).vectors
    electra.export(tuned, to="onnx", output_dir="stars-onnx")

The folders, each of which imports only from itself and from those above it:

    config.py, settings.py, setting_docs.py, renamed.py
                    settings as data: decode, collect and describe them; former names
    files.py, atomic.py, checksums.py, file_lock.py, escape.py
                    files that others wrote; writing, checking, locking; text as text
    console.py, provenance.py, shipped.py
                    messages; versions and hardware; models that come with the package
    data/           text becomes batches: corpora, WordPiece, shards, the data loader
    model/          token ids become vectors: encoders and their transformers formats
    objectives/     vectors become a pre-training loss: RTD, MLM and the ablations of the paper
    tasks/          vectors become answers: classification, tagging, question answering
    exports/        ONNX, sentence-transformers and the hub
    kernels/        the same modules, faster on a GPU
    engine/         one update: train step, optimizer, distributed processes
    runs/           run folders: checkpoints, journal, lock, signals
    pretraining/    recipe, options, set-up, loop, export, diagnosis
    finetuning/     recipe, options, set-up, loop, seeds, results
    recipes/        the settings of published runs, as TOML files
    experiments/    the trials of the paper: plan, arms, budget, sweep, findings
    reports/        tables, plots and pages of trials and fine-tunings
    web/            the page and the JSON endpoints of `electra serve`
    api/            the functions below: the options of the commands as keywords
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
    "load_recipe": "electra.api.recipes",
    "pretrain": "electra.api.pretraining",
    "finetune": "electra.api.finetuning",
    "load": "electra.api.model",
    "model_path": "electra.shipped",
    "evaluate": "electra.api.model",
    "embed": "electra.api.model",
    "export": "electra.api.exporting",
    "push": "electra.api.exporting",
}
__all__ = [
    "Recipe",
    "Shards",
    "UserError",
    "WordPiece",
    "__version__",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "load",
    "load_recipe",
    "model_path",
    "pretrain",
    "push",
    "shard",
    "train_wordpiece",
]

if TYPE_CHECKING:
    from electra.api.exporting import export, push
    from electra.api.finetuning import finetune
    from electra.api.model import embed, evaluate, load
    from electra.api.pretraining import pretrain
    from electra.api.recipes import load_recipe
    from electra.config import UserError
    from electra.data.sharding import shard
    from electra.data.shards import Shards
    from electra.data.vocabulary import train_wordpiece
    from electra.data.wordpiece import WordPiece
    from electra.pretraining.recipe import Recipe
    from electra.shipped import model_path


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'electra' has no attribute {name!r}")
    return getattr(importlib.import_module(PUBLIC[name]), name)
