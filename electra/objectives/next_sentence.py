"""NextSentence: the other task that BERT has beside its masked LM. Does the second segment follow
the first?
"""

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

MOST_SURPLUS = (
    1 / 16
)  # of a row's length: so much longer a segment may be than the one whose place it takes


class Paired(NamedTuple):
    """A batch of whose scored second segments half are another row's."""

    batch: Batch
    strange: Tensor  # [B] bool: the second segment comes from elsewhere
    # [B] bool: there is a second segment, and another row has one to give that looks like it
    scored: Tensor


class NextSentence(MaskedLM):
    """Loss = the masked LM's + the cross-entropy of "follows" against "comes from elsewhere", by
    the first vector.

    The layer that tells the two apart belongs to this loss: checkpoints hold it, the exported
    encoder, a plain masked LM, does not.
    """

    def __init__(
        self,
        config: MaskedLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
        self.verdict = nn.Linear(encoder.width, CLASSES)
        initialise_glorot(self.verdict)

    def read(self, batch: Batch, rng: torch.Generator | None) -> tuple[Paired, Masked, Tensor]:
        """Swap, mask, encode: the vectors are [B, T, D]."""
        paired = swap_segments(batch, rng)
        masked = mask_tokens(
            paired.batch, self.config.masking, self.vocabulary, rng, unigrams=self.unigrams
        )
        return (
            paired,
            masked,
            self.encoder.encoder(masked.input_ids, batch.token_type_ids, batch.attention_mask),
        )

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        paired, masked, hidden = self.read(batch, rng)
        guesses = guess_words(self.encoder, paired.batch, masked, rng, hidden=hidden)
        mlm = guesses.losses.sum() / masked_in_step(batch, self.config.masking)
        # A mean over all rows of the step, those that are not scored too: how many of the other
        # processes' rows are is not known here, their number is. So the task weighs as much as the
        # share of rows that are scored.
        nsp = verdict_losses(self.verdict(hidden[:, 0]), paired).sum() / len(batch.step_lengths)
        return Loss(mlm + nsp, {"mlm": mlm.detach(), "nsp": nsp.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        """The trivial answer is that every segment follows: at least half do."""
        paired, masked, hidden = self.read(batch, rng)
        verdicts = self.verdict(hidden[:, 0])
        logits = self.encoder.words(
            self.encoder.transform(self.encoder.at(hidden, masked.positions))
        )
        return Tally(
            word_tallies(logits, masked, self.unigrams)
            | {
                "nsp_loss": quotient(verdict_losses(verdicts, paired), paired.scored),
                "nsp_accuracy": quotient(verdicts.argmax(-1) == paired.strange, paired.scored),
                "baseline_nsp_accuracy": quotient(~paired.strange, paired.scored),
            }
        )


def verdict_losses(verdicts: Tensor, paired: Paired) -> Tensor:
    """[B] how wrong each verdict was; zero for the rows that do not count."""
    return (
        F.cross_entropy(verdicts.float(), paired.strange.long(), reduction="none") * paired.scored
    )


def swap_segments(batch: Batch, rng: torch.Generator | None) -> Paired:
    """Half of the second segments become as many of the first words of another row's second
    segment.

    As many, so that lengths stay what every process believes them to be; the first, so that a
    strange segment begins with a line, as one that follows does. A row that nobody can give to
    stays as it is and is not scored.
    """
    rows, length = batch.input_ids.shape
    place = torch.arange(length, device=batch.input_ids.device)
    giver, scored = find_givers(batch, rng)
    strange = scored & (torch.rand(rows, device=batch.input_ids.device, generator=rng) < 0.5)
    begins = batch.lengths - batch.token_type_ids.sum(dim=1)
    given = batch.input_ids[giver].gather(
        1, (place + (begins[giver] - begins)[:, None]).clamp(0, length - 1)
    )
    second = (batch.token_type_ids == 1) & (
        place < batch.lengths[:, None] - 1
    )  # without the [SEP] that ends it
    input_ids = torch.where(second & strange[:, None], given, batch.input_ids)
    return Paired(batch._replace(input_ids=input_ids), strange, scored)


def find_givers(batch: Batch, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """[B] another row whose second segment looks like each row's own, and [B] whether there is one.

    A full row's second segment was cut anywhere, and may be given another such segment, cut again.
    A shorter row's ends with its line, where a cut one would give the answer away: it may be given
    only one that ends so at the same length.
    """
    rows, length = batch.input_ids.shape
    sizes = batch.token_type_ids.sum(
        dim=1
    )  # of the second segments, with the [SEP]; 0 where there is none
    full = batch.lengths == length
    surplus = sizes - sizes[:, None]  # [B, B]: row by giver
    # The longer a full row's second segment, the longer its first line: not much is cut, and from
    # the nearest in size.
    enough = (surplus >= 0) & (surplus <= full[:, None] * int(length * MOST_SURPLUS))
    able = ((sizes > 0)[:, None] & (full == full[:, None]) & enough).fill_diagonal_(False)
    cost = surplus + torch.rand(rows, rows, device=batch.input_ids.device, generator=rng)
    return cost.masked_fill(~able, torch.inf).argmin(dim=1), able.any(dim=1)
