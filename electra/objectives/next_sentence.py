"""NextSentence: BERT's second task. Does the second segment follow the first?"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.encoder import initialise_glorot
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Masked
from electra.objectives.measures import Loss, MetricSums, sum_and_count
from electra.objectives.mlm import MaskedLM, mlm_sums
from electra.objectives.settings import NEXT_SENTENCE_CLASSES, MaskedLMConfig
from electra.objectives.vocabulary import Vocabulary

# A segment may be longer than the one it replaces by this fraction of a row's length.
MAX_SURPLUS = 1 / 16


class SegmentPairs(NamedTuple):
    """A batch in which half of the scored second segments come from another row."""

    batch: Batch
    is_random: Tensor  # [B] bool: the second segment comes from elsewhere
    # [B] bool: there is a second segment, and another row has one to give that looks like it.
    scored: Tensor


class NextSentence(MaskedLM):
    """The masked LM's loss + the cross-entropy of "follows" against "random", read at [CLS].

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
        self.nsp_head = nn.Linear(encoder.width, NEXT_SENTENCE_CLASSES)
        initialise_glorot(self.nsp_head)

    def encode(
        self, batch: Batch, rng: torch.Generator | None
    ) -> tuple[SegmentPairs, Masked, Tensor]:
        """Swap segments, mask tokens, and return the hidden states [B, T, D]."""
        pairs = swap_segments(batch, rng)
        masked = self.mask(pairs.batch, rng)
        hidden = self.encoder.encoder(
            masked.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
        )
        return pairs, masked, hidden

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        pairs, masked, hidden = self.encode(batch, rng)
        chosen = self.encoder.gather(hidden, masked.positions)
        token_loss = self.encoder.predict(chosen, masked.labels).token_loss * masked.scored
        mlm_loss = token_loss.sum() / self.masked_in_step(batch)
        # A mean over all rows of the step, those that are not scored too: how many of the other
        # processes' rows are is not known here, their number is. So the task weighs as much as the
        # fraction of rows that are scored.
        nsp_loss = nsp_row_loss(self.nsp_head(hidden[:, 0]), pairs).sum() / len(batch.step_lengths)
        parts = {"mlm": mlm_loss.detach(), "nsp": nsp_loss.detach()}
        return Loss(mlm_loss + nsp_loss, parts)

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        """Compute the metrics of both tasks; the baseline says that every segment follows."""
        pairs, masked, hidden = self.encode(batch, rng)
        nsp_logits = self.nsp_head(hidden[:, 0])
        chosen = self.encoder.gather(hidden, masked.positions)
        sums = mlm_sums(
            self.encoder.lm_logits(self.encoder.transform(chosen)), masked, self.unigrams
        )
        is_correct = nsp_logits.argmax(-1) == pairs.is_random
        sums["nsp_loss"] = sum_and_count(nsp_row_loss(nsp_logits, pairs), pairs.scored)
        sums["nsp_accuracy"] = sum_and_count(is_correct, pairs.scored)
        sums["baseline_nsp_accuracy"] = sum_and_count(~pairs.is_random, pairs.scored)
        return MetricSums(sums)


def nsp_row_loss(nsp_logits: Tensor, pairs: SegmentPairs) -> Tensor:
    """Return the cross-entropy [B] of each row; zero where a row is not scored."""
    losses = F.cross_entropy(nsp_logits.float(), pairs.is_random.long(), reduction="none")
    return losses * pairs.scored


def swap_segments(batch: Batch, rng: torch.Generator | None) -> SegmentPairs:
    """Replace half of the second segments by as many tokens of another row's second segment.

    As many, so that lengths stay what every process believes them to be. The first ones, so that a
    random segment begins with a line, as one that follows does. A row that no other can give to
    stays as it is and is not scored.
    """
    rows, length = batch.input_ids.shape
    place = torch.arange(length, device=batch.input_ids.device)
    giver, scored = find_givers(batch, rng)
    coin = torch.rand(rows, device=batch.input_ids.device, generator=rng)
    is_random = scored & (coin < 0.5)
    begins = batch.lengths - batch.token_type_ids.sum(dim=1)
    sources = (place + (begins[giver] - begins)[:, None]).clamp(0, length - 1)
    given = batch.input_ids[giver].gather(1, sources)
    is_second = batch.token_type_ids == 1
    is_second = is_second & (place < batch.lengths[:, None] - 1)  # without its final [SEP]
    input_ids = torch.where(is_second & is_random[:, None], given, batch.input_ids)
    return SegmentPairs(batch._replace(input_ids=input_ids), is_random, scored)


def find_givers(batch: Batch, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return [B] a row whose second segment looks like each row's own, and [B] if there is one.

    A full row's second segment was cut anywhere, and may be given another such segment, cut again.
    A shorter row's ends with its line, where a cut one would give the answer away: it may be given
    only one that ends so at the same length.
    """
    rows, length = batch.input_ids.shape
    sizes = batch.token_type_ids.sum(dim=1)  # of second segments with their [SEP]; 0 for none
    is_full = batch.lengths == length
    surplus = sizes - sizes[:, None]  # [B, B]: row by giver
    # The longer a full row's second segment, the longer its first line: not much is cut, and from
    # the nearest in size.
    allowed = is_full[:, None] * int(length * MAX_SURPLUS)
    is_enough = (surplus >= 0) & (surplus <= allowed)
    able = (sizes > 0)[:, None] & (is_full == is_full[:, None]) & is_enough
    able = able.fill_diagonal_(False)
    cost = surplus + torch.rand(rows, rows, device=batch.input_ids.device, generator=rng)
    return cost.masked_fill(~able, torch.inf).argmin(dim=1), able.any(dim=1)
