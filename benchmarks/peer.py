"""Theirs: a pre-training step of transformers' two ELECTRA models in a plain loop, and its
`Trainer`.

The pre-training step shares nothing of ours but masking and sampling: logits over the vocabulary at
every position, as `ElectraForMaskedLM` computes them, and the two networks' embeddings tied the way
its users tie them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.engine.hardware import autocast
from electra.model.sampling import sample
from electra.objectives.corruption import Vocabulary, mask_tokens, replace_tokens
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.pretraining.recipe import Recipe

Step = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Words:
    """A vocabulary by its numbers alone, which a compiler takes for constants. Defaults are BERT's."""

    size: int = 30_522
    pad: int = 0
    unk: int = 100
    cls: int = 101
    sep: int = 102
    mask: int = 103

    @classmethod
    def of(cls, words: Vocabulary) -> Words:
        return cls(words.size, words.pad, words.unk, words.cls, words.sep, words.mask)


# ---- pre-training --------------------------------------------------------------------------------


def pretraining_step(
    recipe: Recipe,
    words: Words,
    *,
    device: torch.device,
    precision: str = "fp32",
    compiled: bool = False,
) -> Step:
    """Masking to update; the loss comes back as it lies on the device. Compiled: everything before
    the backward pass, in torch's default mode.
    """
    generator, discriminator = networks(recipe, words, device)
    parameters = list(
        {id(p): p for network in (generator, discriminator) for p in network.parameters()}.values()
    )
    optimizer = torch.optim.AdamW(
        parameters, lr=recipe.optimizer.learning_rate, weight_decay=0.01, fused=True
    )
    objective = recipe.objective
    assert isinstance(objective, ReplacedTokenDetectionConfig)

    def loss_of(batch: Batch) -> Tensor:
        masked = mask_tokens(batch, objective.masking, words, None)
        attention_mask = batch.attention_mask.long()
        logits = generator(
            input_ids=masked.input_ids,
            token_type_ids=batch.token_type_ids,
            attention_mask=attention_mask,
        ).logits
        chosen = logits.gather(1, masked.positions[..., None].expand(-1, -1, words.size))
        targets = masked.originals.masked_fill(~masked.scored, -100)
        mlm = F.cross_entropy(chosen.flatten(0, 1).float(), targets.flatten())
        corrupted = replace_tokens(batch.input_ids, masked, sample(chosen, rng=None))
        said = discriminator(
            input_ids=corrupted.input_ids,
            token_type_ids=batch.token_type_ids,
            attention_mask=attention_mask,
        ).logits
        # Its own loss would pick the real tokens by index: the GPU waits for their count, and a
        # compiled graph breaks.
        each = F.binary_cross_entropy_with_logits(
            said.float(), corrupted.replaced.float(), reduction="none"
        )
        rtd = (each * attention_mask).sum() / attention_mask.sum()
        return objective.generator_weight * mlm + objective.discriminator_weight * rtd

    if compiled:
        # what was compiled for another batch would make this one's shapes dynamic
        torch.compiler.reset()
    called = torch.compile(loss_of) if compiled else loss_of

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            loss = called(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.optimizer.max_grad_norm)
        optimizer.step()
        return loss.detach()

    return step


def networks(recipe: Recipe, words: Words, device: torch.device) -> tuple[Any, Any]:
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    shape, small = recipe.encoder, recipe.workload(words.size).generator
    assert small is not None
    generator, discriminator = (
        network(
            ElectraConfig(
                num_hidden_layers=s.layers,
                hidden_size=s.width,
                num_attention_heads=s.heads,
                intermediate_size=s.feedforward,
                embedding_size=s.embedding,
                vocab_size=words.size,
                max_position_embeddings=s.positions,
                hidden_dropout_prob=s.dropout,
                attention_probs_dropout_prob=s.attention_dropout,
                pad_token_id=words.pad,
            )
        ).train()
        for network, s in ((ElectraForMaskedLM, small), (ElectraForPreTraining, shape))
    )
    generator.electra.embeddings.word_embeddings = discriminator.electra.embeddings.word_embeddings
    generator.electra.embeddings.position_embeddings = (
        discriminator.electra.embeddings.position_embeddings
    )
    generator.tie_weights()
    return generator.to(device), discriminator.to(device)


# ---- fine-tuning ---------------------------------------------------------------------------------


def build_trainer(
    model: Path,
    rows: Sequence[dict[str, Any]],
    words: Any,
    *,
    place: Path,
    batch_size: int,
    sampling: str,
    seed: int,
    collate: Callable[[list[Any]], Any] | None = None,
    callbacks: Sequence[Any] = (),
    logging_steps: int = 50,
    **settings: Any,
) -> Any:
    """A `Trainer` on encoded rows of two classes, with fused AdamW and whatever it does when left
    alone.
    """
    from transformers import (
        DataCollatorWithPadding,
        ElectraForSequenceClassification,
        Trainer,
        TrainingArguments,
        logging,
    )

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    arguments = TrainingArguments(
        output_dir=str(place),
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        learning_rate=3e-4,
        warmup_steps=0.1,
        optim="adamw_torch_fused",
        train_sampling_strategy=sampling,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=logging_steps,
        seed=seed,
        **settings,
    )
    network = ElectraForSequenceClassification.from_pretrained(model, num_labels=2)
    return Trainer(
        model=network,
        args=arguments,
        train_dataset=list(rows),
        processing_class=words,
        data_collator=collate or DataCollatorWithPadding(words),
        callbacks=list(callbacks),
    )
