"""Trace one sentence through a pre-trained generator and discriminator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from electra.config import UserError
from electra.data.batches import Batch
from electra.data.wordpiece import WordPiece
from electra.model import huggingface
from electra.model.shape import GeneratorShape
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import Masking, ReplacedTokenDetectionConfig


@dataclass(frozen=True)
class Prediction:
    """The generator's prediction for one masked token."""

    sampled: str
    top_k: list[tuple[str, float]]  # the likeliest tokens and their probabilities


@dataclass(frozen=True)
class TracedToken:
    """One token of a sentence, as each network reads it."""

    original: str
    masked: str  # what the generator reads
    prediction: Prediction | None  # of a masked position
    corrupted: str  # what the discriminator reads
    p_replaced: float  # the discriminator's probability that the token was replaced

    @property
    def replaced(self) -> bool:
        return self.corrupted != self.original


class Pair:
    """A generator and a discriminator, from a run folder."""

    def __init__(self, run: Path) -> None:
        folders = {name: run / name for name in ("discriminator", "generator")}
        if missing := [
            str(folder)
            for folder in folders.values()
            if not (folder / huggingface.CONFIG).is_file()
        ]:
            raise UserError(
                f"{run}: no model in {' or '.join(missing)}; name the folder of a finished "
                "ELECTRA run"
            )
        self.wordpiece = WordPiece.load(folders["discriminator"])
        encoder, vocabulary, _ = huggingface.load_shape(folders["discriminator"])
        small, _, _ = huggingface.load_shape(folders["generator"])
        config = ReplacedTokenDetectionConfig(
            masking=Masking(keep=0.0),
            generator=GeneratorShape(
                tie="none",
                layers=small.layers,
                width=small.width,
                heads=small.heads,
                feedforward=small.feedforward,
            ),
        )
        self.objective = ReplacedTokenDetection(
            config,
            encoder=encoder,
            vocabulary=self.wordpiece,
            unigrams=torch.full((vocabulary,), 1 / vocabulary),
        ).eval()
        for name, network in self.objective.networks().items():
            huggingface.load(network, folders[name])
        self.positions = encoder.positions

    @torch.no_grad()
    def trace(self, text: str, *, seed: int = 0, top_k: int = 3) -> list[TracedToken]:
        """Mask, sample and discriminate the tokens of one text, [CLS] and [SEP] included."""
        tokenizer, ids = self.wordpiece, self.wordpiece.encode([text])[0]
        if not ids:
            raise UserError("the text is empty; give a sentence")
        row = torch.tensor([[tokenizer.cls, *ids[: self.positions - 2], tokenizer.sep]])
        lengths = torch.tensor([row.shape[1]])
        batch = Batch(
            input_ids=row,
            token_type_ids=torch.zeros_like(row),
            lengths=lengths,
            step_lengths=lengths,
        )
        play = self.objective.play(batch, torch.Generator().manual_seed(seed))
        assert play.guesses is not None
        predictions = {}
        for place, position in enumerate(play.masked.positions[0].tolist()):
            if play.masked.scored[0, place]:
                chances, likeliest = play.guesses[0, place].softmax(-1).topk(top_k)
                predictions[position] = Prediction(
                    tokenizer.tokens([int(play.corrupted.input_ids[0, position])])[0],
                    list(zip(tokenizer.tokens(likeliest.tolist()), chances.tolist(), strict=True)),
                )
        columns = (
            tokenizer.tokens(ids[0].tolist())
            for ids in (row, play.masked.input_ids, play.corrupted.input_ids)
        )
        doubts = play.doubts[0].sigmoid().tolist()
        return [
            TracedToken(original, masked, predictions.get(position), corrupted, p_replaced)
            for position, (original, masked, corrupted, p_replaced) in enumerate(
                zip(*columns, doubts, strict=True)
            )
        ]
