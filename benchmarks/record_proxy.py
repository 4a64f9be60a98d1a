"""Score discriminators on held-out rows that are corrupted alike for all of them.

A discriminator's own loss and AUC depend on its generator, so they compare no two settings. Here
15 % of the tokens are drawn from the unigram distribution instead, by a fixed seed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from electra.data.dataloader import eval_batches
from electra.data.shards import Shards
from electra.model import huggingface
from electra.tasks.inference import default_device
from electra.tasks.models import model_folder

RATE, SEED = 0.15, 0
ROWS, BATCH = 1024, 128


@torch.no_grad()
def score_fixed_corruption(model: Path, shards: Shards) -> dict[str, float]:
    """Return average precision and AUC of a discriminator on rows of these shards."""
    device = default_device()
    network = huggingface.load_discriminator(model_folder(model)).to(device)
    rng = torch.Generator().manual_seed(SEED)
    counts = torch.from_numpy(shards.counts).double() + 1
    special = torch.tensor([shards.tokenizer.cls, shards.tokenizer.sep, shards.tokenizer.pad])
    logits, labels = [], []
    for batch in eval_batches(shards.held_out, micro_batch_size=BATCH, max_rows=ROWS):
        ids = batch.input_ids
        is_word = batch.attention_mask & ~torch.isin(ids, special)
        chosen = is_word & (torch.rand(ids.shape, generator=rng) < RATE)
        drawn = torch.multinomial(counts, ids.numel(), replacement=True, generator=rng)
        corrupted = torch.where(chosen, drawn.view_as(ids), ids)
        inputs = (corrupted, batch.token_type_ids, batch.attention_mask)
        found = network.logits(*(tensor.to(device) for tensor in inputs)).float().cpu()
        logits.append(found[is_word])
        labels.append((corrupted != ids)[is_word])
    scores, replaced = torch.cat(logits).numpy(), torch.cat(labels).numpy()
    return {
        "average_precision": round(float(average_precision_score(replaced, scores)), 4),
        "auc": round(float(roc_auc_score(replaced, scores)), 4),
    }
