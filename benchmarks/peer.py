"""What we are compared with: transformers' two networks in a plain loop, and its `Trainer`.

The pre-training step shares only masking and sampling with ours, and ties the embeddings of two
networks of one width as users of transformers do. It computes logits over the vocabulary at every
position, as `ElectraForMaskedLM` and `ModernBertForMaskedLM` do. With `gather_first` it takes their
networks apart, as a user who cares for speed would, and computes logits at masked positions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.engine.hardware import autocast
from electra.model.families import family_of
from electra.model.sampling import sample
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Masked, mask_tokens, replace_tokens
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.objectives.vocabulary import Vocabulary
from electra.pretraining.recipe import Recipe

Step = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class SpecialIds:
    """Size and special ids of a vocabulary, constants to a compiler. Defaults are BERT's."""

    size: int = 30_522
    pad: int = 0
    unk: int = 100
    cls: int = 101
    sep: int = 102
    mask: int = 103

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> SpecialIds:
        return cls(
            vocabulary.size,
            vocabulary.pad,
            vocabulary.unk,
            vocabulary.cls,
            vocabulary.sep,
            vocabulary.mask,
        )


# ---- pre-training --------------------------------------------------------------------------------


def pretraining_step(
    recipe: Recipe,
    vocabulary: SpecialIds,
    *,
    device: torch.device,
    precision: str = "fp32",
    compile_mode: str | None = None,
    gather_first: bool = False,
) -> Step:
    """Return a function that takes one step, from masking to the update, and returns the loss.

    Compiled, in a mode of torch.compile, is everything before the backward pass.
    """
    generator, discriminator = build_networks(recipe, vocabulary, device)
    shared = {id(p): p for network in (generator, discriminator) for p in network.parameters()}
    parameters = list(shared.values())
    optimizer = torch.optim.AdamW(
        parameters, lr=recipe.optimizer.learning_rate, weight_decay=0.01, fused=True
    )
    peer_loss = PeerLoss(generator, discriminator, recipe, vocabulary, gather_first=gather_first)
    compute_loss = peer_loss.compute
    if compile_mode is not None:
        # Code compiled for another batch would make the shapes of this one dynamic.
        torch.compiler.reset()
        compute_loss = torch.compile(compute_loss, mode=compile_mode)

    def step(batch: Batch) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            loss: Tensor = compute_loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.optimizer.max_grad_norm)
        optimizer.step()
        return loss.detach()

    return step


class PeerLoss:
    """The loss of replaced token detection, computed with transformers' two networks."""

    def __init__(
        self,
        generator: Any,
        discriminator: Any,
        recipe: Recipe,
        vocabulary: SpecialIds,
        *,
        gather_first: bool,
    ) -> None:
        assert isinstance(recipe.objective, ReplacedTokenDetectionConfig)
        self.generator, self.discriminator = generator, discriminator
        self.objective, self.vocabulary = recipe.objective, vocabulary
        self.has_token_types = recipe.encoder.family == "electra"
        self.predict = self.predict_everywhere
        if gather_first:
            self.predict = self.predict_masked

    def compute(self, batch: Batch) -> Tensor:
        """Return the weighted loss of one micro-batch."""
        masked = mask_tokens(batch, self.objective.masking, self.vocabulary, None)
        attention_mask = batch.attention_mask.long()
        inputs = {"attention_mask": attention_mask}
        if self.has_token_types:
            inputs["token_type_ids"] = batch.token_type_ids
        predicted = self.predict(masked, inputs)
        targets = masked.labels.masked_fill(~masked.scored, -100)
        mlm = F.cross_entropy(predicted.flatten(0, 1).float(), targets.flatten())
        corrupted = replace_tokens(batch.input_ids, masked, sample(predicted, rng=None))
        disc_logits = self.discriminator(input_ids=corrupted.input_ids, **inputs).logits
        if disc_logits.dim() == 3:  # of the labels `original` and `replaced`
            disc_logits = disc_logits[..., 1] - disc_logits[..., 0]
        # Its own loss would select the real tokens by index: the GPU waits for their count, and a
        # compiled graph breaks.
        token_loss = F.binary_cross_entropy_with_logits(
            disc_logits.float(), corrupted.is_replaced.float(), reduction="none"
        )
        rtd = (token_loss * attention_mask).sum() / attention_mask.sum()
        return self.objective.generator_weight * mlm + self.objective.discriminator_weight * rtd

    def predict_everywhere(self, masked: Masked, inputs: dict[str, Tensor]) -> Tensor:
        """Return the generator's logits [B, P, V], taken from those of all positions."""
        logits = self.generator(input_ids=masked.input_ids, **inputs).logits
        return gather_positions(logits, masked.positions)

    def predict_masked(self, masked: Masked, inputs: dict[str, Tensor]) -> Tensor:
        """Return the same logits, from the hidden states of the masked positions."""
        hidden = self.generator.base_model(input_ids=masked.input_ids, **inputs)[0]
        gathered = gather_positions(hidden, masked.positions)
        logits: Tensor
        if self.has_token_types:
            transformed = self.generator.generator_predictions(gathered)
            logits = self.generator.generator_lm_head(transformed)
        else:
            logits = self.generator.decoder(self.generator.head(gathered))
        return logits


def gather_positions(vectors: Tensor, positions: Tensor) -> Tensor:
    """Return the vectors [B, P, D] at these positions [B, P]."""
    return vectors.gather(1, positions[..., None].expand(-1, -1, vectors.shape[-1]))


def build_networks(recipe: Recipe, vocabulary: SpecialIds, device: torch.device) -> tuple[Any, Any]:
    """Return transformers' generator and discriminator with tied embeddings."""
    generator_shape = recipe.workload(vocabulary.size).generator
    assert generator_shape is not None
    build = {"electra": build_electra, "modernbert": build_modernbert}[recipe.encoder.family]
    generator, discriminator = build(generator_shape, recipe.encoder, vocabulary)
    generator.tie_weights()
    return generator.to(device), discriminator.to(device)


def build_electra(
    generator_shape: EncoderShape, shape: EncoderShape, vocabulary: SpecialIds
) -> tuple[Any, Any]:
    from transformers import ElectraForMaskedLM, ElectraForPreTraining

    generator = ElectraForMaskedLM(electra_config(generator_shape, vocabulary)).train()
    discriminator = ElectraForPreTraining(electra_config(shape, vocabulary)).train()
    tied, embeddings = generator.electra.embeddings, discriminator.electra.embeddings
    tied.word_embeddings = embeddings.word_embeddings
    tied.position_embeddings = embeddings.position_embeddings
    return generator, discriminator


def build_modernbert(
    generator_shape: EncoderShape, shape: EncoderShape, vocabulary: SpecialIds
) -> tuple[Any, Any]:
    from transformers import ModernBertForMaskedLM, ModernBertForTokenClassification

    # Without a projection of embeddings, a narrower generator needs a table of its own.
    of_its_width = replace(generator_shape, embedding=generator_shape.width)
    generator = ModernBertForMaskedLM(modernbert_config(of_its_width, vocabulary)).train()
    config = modernbert_config(shape, vocabulary)
    discriminator = ModernBertForTokenClassification(config).train()
    if generator_shape.width == shape.width:
        embeddings = discriminator.model.embeddings
        generator.model.embeddings.tok_embeddings = embeddings.tok_embeddings
    return generator, discriminator


def modernbert_config(shape: EncoderShape, vocabulary: SpecialIds) -> Any:
    from transformers import ModernBertConfig

    assert not shape.has_projection, "transformers' ModernBERT has no projection of embeddings"
    family = family_of(shape)
    special = family.special_tokens(pad=vocabulary.pad, cls=vocabulary.cls, sep=vocabulary.sep)
    return ModernBertConfig(
        vocab_size=vocabulary.size,
        num_labels=2,
        **family.fixed_keys,
        **family.shape_config(shape),
        **special,
    )


def electra_config(shape: EncoderShape, vocabulary: SpecialIds) -> Any:
    from transformers import ElectraConfig

    return ElectraConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.width,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feedforward,
        embedding_size=shape.embedding,
        vocab_size=vocabulary.size,
        max_position_embeddings=shape.positions,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.attention_dropout,
        pad_token_id=vocabulary.pad,
    )


# ---- fine-tuning ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How a `Trainer` samples and logs; `settings` are further arguments of transformers'."""

    output_dir: Path
    batch_size: int
    sampling: str
    seed: int
    logging_steps: int = 50
    settings: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> Any:
        from transformers import TrainingArguments

        return TrainingArguments(
            output_dir=str(self.output_dir),
            per_device_train_batch_size=self.batch_size,
            per_device_eval_batch_size=self.batch_size,
            learning_rate=3e-4,
            warmup_steps=0.1,
            optim="adamw_torch_fused",
            train_sampling_strategy=self.sampling,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=self.logging_steps,
            seed=self.seed,
            **self.settings,
        )


def build_trainer(
    model: Path,
    rows: Sequence[dict[str, Any]],
    tokenizer: Any,
    options: TrainerOptions,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    callbacks: Sequence[Any] = (),
) -> Any:
    """Return a `Trainer` on encoded rows of two classes, with fused AdamW and its defaults."""
    from transformers import (
        DataCollatorWithPadding,
        ElectraForSequenceClassification,
        Trainer,
        logging,
    )

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    arguments = options.arguments()
    return Trainer(
        model=ElectraForSequenceClassification.from_pretrained(model, num_labels=2),
        args=arguments,
        train_dataset=list(rows),
        processing_class=tokenizer,
        data_collator=collate or DataCollatorWithPadding(tokenizer),
        callbacks=list(callbacks),
    )
