"""Pre-train a text encoder by replaced token detection (ELECTRA): from plain text to a model that
transformers loads.

    text ── train_wordpiece ──► tokenizer ── shard ──► rows ── pretrain ──► discriminator/ ── finetune ──► answers

    from electra import finetune, load_recipe, load_tuned, predict, pretrain, shard, train_wordpiece

    tokenizer = train_wordpiece(["texts/"], "vocabulary")
    shard(["texts/"], tokenizer=tokenizer, output_dir="rows")
    pretrain(load_recipe("small"), data="rows", output_dir="runs/small")
    finetune("runs/small", "glue/rte", data="glue/", output_dir="runs/rte", seeds=5)
    answers = list(predict([load_tuned("runs/rte")], ["new.tsv"]))

Nine words to know: Document, WordPiece, Shard, Batch, Encoder, Objective, Task, Recipe, Trial. The
folders stand in the order in which data flows through them, and each imports only from those before
it:

    config      settings as data                     objectives  vectors become a pre-training loss
    data        text becomes batches                 recipes     named runs, as TOML
    kernels     the same sums, faster on a GPU       tasks       vectors become answers
    model       ids become vectors                   training    losses become weights
                                                     trials      weights become evidence
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Looked up when first used, so that `import electra` costs nothing.
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
