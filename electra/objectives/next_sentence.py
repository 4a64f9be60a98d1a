"""NextSentence: the other task that BERT has beside its masked LM. Does the second segment follow the first?"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.encoder import initialise_glorot
from electra.model.flops import CLASSES
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Masked, Vocabulary, mask_tokens, masked_in_step
from electra.objectives.measures import Loss, Tally, quotient
from electra.objectives.mlm import MaskedLM, guess_words, word_tallies
from electra.objectives.settings import MaskedLMConfig


class Paired(NamedTuple):
    """A batch whose second segments are, half of the time, another row's text."""

    batch: Batch
    strange: Tensor  # [B] bool: the second segment comes from elsewhere
    scored: Tensor  # [B] bool: there is a second segment, and another row that could have given one


class NextSentence(MaskedLM):
    """Loss = the masked LM's + the cross-entropy of "follows" against "comes from elsewhere", by the first vector.

    The layer that tells the two apart belongs to this loss: checkpoints hold it, the exported encoder, a plain masked
    LM, does not.
    """

    def __init__(self, config: MaskedLMConfig, *, encoder: EncoderShape, vocabulary: Vocabulary,
                 unigrams: Tensor) -> None:
        super().__init__(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
        self.verdict = nn.Linear(encoder.width, CLASSES)
        initialise_glorot(self.verdict)

    def read(self, batch: Batch, rng: torch.Generator | None) -> tuple[Paired, Masked, Tensor]:
        """Swap, mask, encode: the vectors are [B, T, D]."""
        paired = swap_segments(batch, self.vocabulary, rng)
        masked = mask_tokens(paired.batch, self.config.masking, self.vocabulary, rng, unigrams=self.unigrams)
        return paired, masked, self.encoder.encoder(masked.ids, batch.types, batch.real)

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        paired, masked, hidden = self.read(batch, rng)
        guesses = guess_words(self.encoder, paired.batch, masked, rng, hidden=hidden)
        mlm = guesses.losses.sum() / masked_in_step(batch, self.config.masking)
        # A mean over all rows of the step, those that are not scored too: how many of the other processes' rows have
        # two segments is not known here, their number is. One row in ten has one segment, so this weighs nine tenths.
        nsp = verdict_losses(self.verdict(hidden[:, 0]), paired).sum() / len(batch.step_lengths)
        return Loss(mlm + nsp, {"mlm": mlm.detach(), "nsp": nsp.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        """The trivial answer is that every segment follows: at least half do."""
        paired, masked, hidden = self.read(batch, rng)
        verdicts = self.verdict(hidden[:, 0])
        logits = self.encoder.words(self.encoder.transform(self.encoder.at(hidden, masked.positions)))
        return Tally(word_tallies(logits, masked, self.unigrams) | {
            "nsp_loss": quotient(verdict_losses(verdicts, paired), paired.scored),
            "nsp_accuracy": quotient(verdicts.argmax(-1) == paired.strange, paired.scored),
            "trivial_nsp_accuracy": quotient(~paired.strange, paired.scored),
        })


def verdict_losses(verdicts: Tensor, paired: Paired) -> Tensor:
    """[B] how wrong each verdict was; zero for the rows that do not count."""
    return F.cross_entropy(verdicts.float(), paired.strange.long(), reduction="none") * paired.scored


def swap_segments(batch: Batch, vocabulary: Vocabulary, rng: torch.Generator | None) -> Paired:
    """Half of the second segments become as many words of another row, the last ones that it has.

    As many, so that lengths stay what every process believes them to be. Where no other row has so many, this one
    stays as it is and is not scored: its length would give the answer away.
    """
    rows, length = batch.ids.shape
    two = (batch.types == 1).any(dim=1)
    if rows == 1:
        return Paired(batch, torch.zeros_like(two), torch.zeros_like(two))
    device = batch.ids.device
    chosen = torch.rand(rows, device=device, generator=rng) < 0.5
    place = torch.arange(length, device=device)
    words = batch.real & (batch.ids != vocabulary.cls) & (batch.ids != vocabulary.sep)
    second = (batch.types == 1) & (place < batch.lengths[:, None] - 1)  # without the [SEP] that ends it
    # Any row that can give, and not any row whether it can or not: then long segments would follow more often, and
    # lengths give the answer away.
    able = (words.sum(dim=1) >= second.sum(dim=1)[:, None]).fill_diagonal_(False)  # [B, B]: row by giver
    other = (torch.rand(rows, rows, device=device, generator=rng) + able.float()).argmax(dim=1)
    scored = two & able.any(dim=1)
    strange = chosen & scored
    # Every row's words pushed to the right end, in their order: sorting puts whatever is no word before them.
    pushed = batch.ids.gather(1, torch.where(words, place, -1).argsort(dim=1, stable=True))[other]
    from_the_end = (length - batch.lengths[:, None] + 1 + place).clamp(max=length - 1)  # the last word of a row → T − 1
    ids = torch.where(second & strange[:, None], pushed.gather(1, from_the_end), batch.ids)
    return Paired(batch._replace(ids=ids), strange, scored)
