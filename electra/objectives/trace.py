"""One sentence through a pre-trained pair: what was masked, sampled, and found to be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from electra.config import UserError
from electra.data.batches import Batch
from electra.data.lines import check_encodable
from electra.data.sources import warn
from electra.data.wordpiece import WordPiece
from electra.model import huggingface, model_config
from electra.model.encoder import ZerosForRandomValues
from electra.model.shape import GeneratorShape
from electra.model.weight_files import CONFIG as MODEL_CONFIG
from electra.objectives.masking import Masking
from electra.objectives.rtd import ReplacedTokenDetection, RTDOutput
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.shipped import suggest_shipped


@dataclass(frozen=True)
class Prediction:
    """What the generator predicted for one masked token."""

    sampled: str
    top_k: list[tuple[str, float]]  # the likeliest tokens and their probabilities


@dataclass(frozen=True)
class TracedToken:
    """One token on its way through both networks."""

    original: str
    masked: str  # what the generator reads
    prediction: Prediction | None  # of a masked position
    corrupted: str  # what the discriminator reads
    p_replaced: float  # the discriminator's probability that the token was replaced

    @property
    def replaced(self) -> bool:
        return self.corrupted != self.original


def trace_original(folder: Path, text: str) -> list[TracedToken]:
    """Return the tokens of a text as it is, [CLS] and [SEP] included, as a discriminator that has
    no generator beside it reads them.
    """
    network, tokenizer = huggingface.load_discriminator(folder), WordPiece.load(folder)
    batch = text_batch(text, tokenizer, positions=network.encoder.shape.positions)
    with torch.no_grad():
        logits = network.logits(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    tokens = tokenizer.tokens(batch.input_ids[0].tolist())
    return [
        TracedToken(token, token, None, token, p_replaced)
        for token, p_replaced in zip(tokens, logits[0].sigmoid().tolist(), strict=True)
    ]


def text_batch(text: str, tokenizer: WordPiece, *, positions: int) -> Batch:
    """Return a batch of one text; raise UserError where it is empty or not UTF-8, and warn where
    the model reads only a part of it.
    """
    check_encodable(text, "the text")
    token_ids = tokenizer.encode([text])[0]
    if not token_ids:
        raise UserError("the text is empty; give a sentence")
    shown = token_ids[: positions - 2]
    if len(shown) < len(token_ids):
        warn(
            f"the text has {len(token_ids):,} tokens, and the model reads the first {len(shown):,}"
        )
    unknown = shown.count(tokenizer.unk)
    if unknown:
        warn(f"{unknown:,} of {len(shown):,} tokens are [UNK]: not in the model's vocabulary")
    input_ids = torch.tensor([[tokenizer.cls, *shown, tokenizer.sep]])
    lengths = torch.tensor([input_ids.shape[1]])
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=lengths,
        step_lengths=lengths,
    )


class Pair:
    """A generator and a discriminator, loaded from a run folder."""

    def __init__(self, run: Path) -> None:
        folders = {name: run / name for name in ("discriminator", "generator")}
        if has_model(run):  # a shipped model, with a generator in it
            folders["discriminator"] = run
        missing = [str(folder) for folder in folders.values() if not has_model(folder)]
        if missing:
            model_config.check_is_exported(run)
            raise UserError(
                f"{run}: no model in {' or '.join(missing)}; name the folder of a finished ELECTRA "
                f"run{suggest_shipped(run)}"
            )
        model_config.check_one_family(*folders.values())
        self.tokenizer = WordPiece.load(folders["discriminator"])
        encoder, vocabulary, _ = model_config.load_shape(folders["discriminator"])
        small, _, _ = model_config.load_shape(folders["generator"])
        generator = GeneratorShape(
            tie="none",
            layers=small.layers,
            width=small.width,
            heads=small.heads,
            feedforward=small.feedforward,
            embedding=small.embedding,
        )
        config = ReplacedTokenDetectionConfig(masking=Masking(keep=0.0), generator=generator)
        unigrams = torch.full((vocabulary,), 1 / vocabulary)
        with ZerosForRandomValues():
            self.objective = ReplacedTokenDetection(
                config, encoder=encoder, vocabulary=self.tokenizer, unigrams=unigrams
            ).eval()
        for name, network in self.objective.networks().items():
            huggingface.load(network, folders[name])
        self.positions = encoder.positions

    @torch.no_grad()
    def trace(self, text: str, *, seed: int = 0, top: int = 3) -> list[TracedToken]:
        """Run both networks on one text, and return its tokens, [CLS] and [SEP] included."""
        tokenizer = self.tokenizer
        batch = text_batch(text, tokenizer, positions=self.positions)
        output = self.objective.predict(batch, torch.Generator().manual_seed(seed))
        predictions = self.predictions(output, top=top)
        columns = zip(
            tokenizer.tokens(batch.input_ids[0].tolist()),
            tokenizer.tokens(output.masked.input_ids[0].tolist()),
            tokenizer.tokens(output.corrupted.input_ids[0].tolist()),
            output.disc_logits[0].sigmoid().tolist(),
            strict=True,
        )
        return [
            TracedToken(original, masked, predictions.get(position), corrupted, p_replaced)
            for position, (original, masked, corrupted, p_replaced) in enumerate(columns)
        ]

    def predictions(self, output: RTDOutput, *, top: int) -> dict[int, Prediction]:
        """Return the generator's predictions for the only row of a batch, by position."""
        assert output.mlm is not None
        assert output.mlm.logits is not None
        predictions = {}
        for index, position in enumerate(output.masked.positions[0].tolist()):
            if output.masked.scored[0, index]:
                probs, tokens = output.mlm.logits[0, index].softmax(-1).topk(top)
                sampled = self.tokenizer.tokens([int(output.corrupted.input_ids[0, position])])[0]
                names = self.tokenizer.tokens(tokens.tolist())
                likeliest = list(zip(names, probs.tolist(), strict=True))
                predictions[position] = Prediction(sampled, likeliest)
        return predictions


def has_model(folder: Path) -> bool:
    return (folder / MODEL_CONFIG).is_file()
