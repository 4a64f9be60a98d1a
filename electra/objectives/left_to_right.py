"""LeftToRight: every token predicts the next one and sees no later one. What BERT is without both
directions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.encoder import Encoder
from electra.model.memory import ROWS_OF_LOGITS
from electra.model.pair import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Vocabulary
from electra.objectives.measures import Loss, Tally, quotient
from electra.objectives.objective import Objective
from electra.objectives.restore import surprises_everywhere


class LeftToRight(Objective):
    """The mean surprise at every real token but the first of each row. Nothing is drawn at random."""

    def __init__(self, *, encoder: EncoderShape, vocabulary: Vocabulary, unigrams: Tensor) -> None:
        assert encoder.causal, (
            "a token that sees the next one has nothing to predict; a Recipe refuses this"
        )
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.encoder = Generator(Encoder(encoder, vocabulary=vocabulary.size))

    def read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The vectors [B·(T − 1), E] that the next words should have, and those words [B·(T − 1)]."""
        hidden = self.encoder.encoder(batch.input_ids, batch.token_type_ids, batch.attention_mask)
        return self.encoder.transform(hidden[:, :-1]).flatten(0, 1), batch.input_ids[
            :, 1:
        ].flatten()

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        predicted, following = self.read(batch)
        surprises = surprises_everywhere(self.encoder, predicted, following)
        lm = (surprises * batch.attention_mask[:, 1:].flatten()).sum() / (
            batch.step_lengths - 1
        ).sum()
        return Loss(lm, {"lm": lm.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        """The trivial reader knows how frequent each word is and, beyond that, where segments end."""
        predicted, following = self.read(batch)
        scored, ends = batch.attention_mask[:, 1:].flatten(), following == self.vocabulary.sep
        words = torch.cat(
            [self.encoder.words(rows).argmax(-1) for rows in torch.split(predicted, ROWS_OF_LOGITS)]
        )
        return Tally(
            {
                "lm_loss": quotient(
                    surprises_everywhere(self.encoder, predicted, following), scored
                ),
                "lm_accuracy": quotient(words == following, scored),
                "baseline_lm_loss": quotient(-self.unigrams.log()[following] * ~ends, scored),
                "baseline_lm_accuracy": quotient(
                    ends | (following == self.unigrams.argmax()), scored
                ),
            }
        )

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder}
