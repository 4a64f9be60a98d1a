"""Heads for extractive QA: the reference code's joint head (after XLNet), and BERT's simple one."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.encoder import initialise_glorot
from electra.model.gelu import gelu
from electra.tasks.features import Array, TaskBatch
from electra.tasks.task import Head, Outputs

JOINT_WIDTH = 512
ANSWERABLE_WEIGHT = 0.5
Spans = tuple[Array, Array, Array]  # starts, ends and scores of many
# The score of what cannot be chosen; finite, so that a row of nothing else gives no NaN.
MASKED_SCORE = -1e30


class JointHead(Head):
    """Predicts the end given the start, and whether the row holds an answer at all.

        h ─ start ─ softmax ┬ p(start) ─ Σ p·h, h_cls ─ 512 ─ gelu ─ answerable
                            └ h_start, h ─ 512 ─ gelu ─ end ─ softmax ─ p(end | start)

    Training chooses among the tokens of the paragraph and [CLS], the target of a row without the
    answer; the search among the former alone. In the `official` code both choose among these and
    the paragraph's [SEP], and every task has the answerability. No class of transformers holds this
    head.
    """

    def __init__(
        self,
        width: int,
        *,
        beam: int,
        unanswerable: bool,
        official: bool = False,
        hidden: int = JOINT_WIDTH,
    ) -> None:
        super().__init__()
        self.beam, self.official = beam, official
        self.start = nn.Linear(width, 1)
        self.end_hidden, self.end = nn.Linear(2 * width, hidden), nn.Linear(hidden, 1)
        layers = []
        if unanswerable or official:
            layers = [nn.Linear(2 * width, hidden), nn.Linear(hidden, 1)]
        self.answerable = nn.ModuleList(layers)
        for layer in (self.start, self.end_hidden, self.end, *layers):
            initialise_glorot(layer)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        """Search the best starts [R, K] and for each the best ends [R, K, K].

        Their scores are log p(start) + log p(end | start).
        """
        outside = ~self.searched(batch)
        start_scores = self.start_scores(hidden, batch)
        beam = min(self.beam, hidden.shape[1])
        best, starts = start_scores.masked_fill(outside, MASKED_SCORE).topk(beam)  # [R, K]
        index = starts[..., None].expand(-1, -1, hidden.shape[-1])
        start_part, token_part = self.end_parts(hidden.gather(1, index), hidden)
        scores, ends = [], []
        # One start at a time: all at once would need [R, K, T, 512], gigabytes for a batch of long
        # rows.
        for k in range(beam):
            end_scores = self.end_scores(start_part[:, k], token_part, batch)
            top = end_scores.masked_fill(outside, MASKED_SCORE).topk(beam)
            scores.append(top.values)
            ends.append(top.indices)
        outputs = {
            "starts": starts,
            "ends": torch.stack(ends, 1),
            "scores": best[..., None] + torch.stack(scores, 1),
        }
        if self.answerable:
            outputs["answerable"] = self.answerable_logits(hidden, start_scores)
        return outputs

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        start, end = batch.labels["start"][:, None], batch.labels["end"][:, None]
        start_scores = self.start_scores(hidden, batch)
        index = start[..., None].expand(-1, -1, hidden.shape[-1])
        start_part, token_part = self.end_parts(hidden.gather(1, index), hidden)
        end_scores = self.end_scores(start_part[:, 0], token_part, batch)
        loss = -(start_scores.gather(1, start) + end_scores.gather(1, end)).sum() / 2
        if not self.answerable:
            return loss
        has_answer = 1 - batch.labels["impossible"].float()
        logits = self.answerable_logits(hidden, start_scores)
        return loss + ANSWERABLE_WEIGHT * F.binary_cross_entropy_with_logits(
            logits, has_answer, reduction="sum"
        )

    def searched(self, batch: TaskBatch) -> Tensor:
        """Mark the tokens [R, T] that the search may choose."""
        if self.official:
            return self.choosable(batch)
        return in_paragraph(batch)

    def choosable(self, batch: TaskBatch) -> Tensor:
        """Mark the tokens [R, T] that training may choose."""
        allowed = in_paragraph(batch)
        if self.official:
            allowed = (batch.token_type_ids == 1) & batch.attention_mask
        allowed[:, 0] = True
        return allowed

    def start_scores(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        return log_softmax_over(self.start(hidden), self.choosable(batch))

    def end_parts(self, starts: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the two terms of the end's first layer, W [h_start; h_i] + b, apart.

        So each vector is multiplied once, not once for each that it is joined with.
        """
        start_weight, token_weight = self.end_hidden.weight.chunk(2, dim=1)
        start_part = F.linear(starts, start_weight)
        return start_part, F.linear(hidden, token_weight, self.end_hidden.bias)

    def end_scores(self, start_part: Tensor, token_part: Tensor, batch: TaskBatch) -> Tensor:
        """Compute log p(end | start) [R, T] for one start a row."""
        logits = self.end(gelu(start_part[:, None] + token_part))
        return log_softmax_over(logits, self.choosable(batch))

    def answerable_logits(self, hidden: Tensor, start_scores: Tensor) -> Tensor:
        """Compute the log-odds [R] that the row holds the answer."""
        expand, contract = self.answerable
        expected = torch.einsum("rt,rtd->rd", start_scores.exp().to(hidden.dtype), hidden)
        logit: Tensor = contract(gelu(expand(torch.cat([hidden[:, 0], expected], dim=-1))))
        return logit.squeeze(-1).float()


class SimpleHead(Head):
    """BERT's head: two vectors, one softmax each, over all tokens; [CLS] stands for no answer."""

    architecture = "QuestionAnswering"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, 2)
        initialise_glorot(self.output)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        starts, ends = self.output(hidden).float().unbind(-1)
        return {"start_logits": starts, "end_logits": ends}

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        padding = ~batch.attention_mask[..., None]
        logits = self.output(hidden).float().masked_fill(padding, MASKED_SCORE)  # [R, T, 2]
        loss: Tensor = logits.new_zeros(())
        for side, name in enumerate(("start", "end")):
            side_loss = F.cross_entropy(logits[..., side], batch.labels[name], reduction="sum")
            loss = loss + side_loss / 2
        return loss


def log_softmax_over(logits: Tensor, allowed: Tensor) -> Tensor:
    """Compute log-probabilities [R, T] over the tokens that are allowed, from [R, T, 1]."""
    return logits.squeeze(-1).float().masked_fill(~allowed, MASKED_SCORE).log_softmax(-1)


def in_paragraph(batch: TaskBatch) -> Tensor:
    """Mark the second segment without its [SEP], the last token of a row that is not padding."""
    is_followed = F.pad(batch.attention_mask[:, 1:], (0, 1), value=False)
    return (batch.token_type_ids == 1) & is_followed


# ---- what `decode` makes of their outputs --------------------------------------------------------


def joint_spans(output: Outputs) -> Spans:
    """Return all pairs in the beam; some are outside a paragraph that is shorter than the beam."""
    ends = output["ends"].astype(np.int64)  # [K, K]
    starts = np.broadcast_to(output["starts"].astype(np.int64)[:, None], ends.shape)
    return starts.ravel(), ends.ravel(), output["scores"].ravel()


def simple_spans(output: Outputs, *, first: int, last: int, beam: int) -> Spans:
    """Return the paragraph's best starts, each with the best ends, scored by the sum of logits."""
    start_logits = output["start_logits"][first : last + 1]
    end_logits = output["end_logits"][first : last + 1]
    best_starts = np.argsort(-start_logits, kind="stable")[:beam]
    best_ends = np.argsort(-end_logits, kind="stable")[:beam]
    grid = np.meshgrid(best_starts, best_ends, indexing="ij")
    starts, ends = (axis.ravel() for axis in grid)
    return first + starts, first + ends, start_logits[starts] + end_logits[ends]
