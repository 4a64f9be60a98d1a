"""Where an answer begins and ends: the reference code's joint head (after XLNet), and BERT's simple
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.encoder import initialise, initialise_glorot
from electra.model.gelu import gelu
from electra.tasks.features import Array, TaskBatch
from electra.tasks.task import Head

JOINT_WIDTH = 512
ANSWERABLE_WEIGHT = 0.5
Spans = tuple[Array, Array, Array]  # starts, ends and scores of many
NEVER = (
    -1e30
)  # the score of what cannot be chosen; finite, so that a row of nothing else gives no NaN


class JointHead(Head):
    """The end is chosen in the light of the start; a third part says whether the row holds an
    answer at all.

        h ─ start ─ softmax ┬ p(start) ─ Σ p·h, h_cls ─ 512 ─ gelu ─ answerable
                            └ h_start, h ─ 512 ─ gelu ─ end ─ softmax ─ p(end | start)

    Tokens of the paragraph may be chosen, and [CLS], the target of a row without the answer. No
    class of transformers holds this head.
    """

    def __init__(
        self, width: int, *, beam: int, unanswerable: bool, hidden: int = JOINT_WIDTH
    ) -> None:
        super().__init__()
        self.beam = beam
        self.start = nn.Linear(width, 1)
        self.end_hidden, self.end = nn.Linear(2 * width, hidden), nn.Linear(hidden, 1)
        layers = [nn.Linear(2 * width, hidden), nn.Linear(hidden, 1)] if unanswerable else []
        self.answerable = nn.ModuleList(layers)
        for layer in (self.start, self.end_hidden, self.end, *layers):
            initialise_glorot(layer)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        """The best starts [R, K] and for each the best ends [R, K, K], with log p(start) + log
        p(end | start).
        """
        paragraph, start_scores = in_paragraph(batch), self.start_scores(hidden, batch)
        beam = min(self.beam, hidden.shape[1])
        best, starts = start_scores.masked_fill(~paragraph, NEVER).topk(beam)  # [R, K]
        chosen = hidden.gather(1, starts[..., None].expand(-1, -1, hidden.shape[-1]))  # [R, K, D]
        begun, tokens = self.halves(chosen, hidden)
        # One start at a time: all at once would need [R, K, T, 512], gigabytes for a batch of long
        # rows.
        scores, ends = zip(
            *(
                self.end_scores(begun[:, k], tokens, batch)
                .masked_fill(~paragraph, NEVER)
                .topk(beam)
                for k in range(beam)
            ),
            strict=True,
        )
        found = {
            "starts": starts,
            "ends": torch.stack(ends, 1),
            "scores": best[..., None] + torch.stack(scores, 1),
        }
        return found | (
            {"answerable": self.answerability(hidden, start_scores)} if self.answerable else {}
        )

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        start, end = batch.labels["start"][:, None], batch.labels["end"][:, None]
        start_scores = self.start_scores(hidden, batch)
        right = hidden.gather(1, start[..., None].expand(-1, -1, hidden.shape[-1]))  # [R, 1, D]
        begun, tokens = self.halves(right, hidden)
        end_scores = self.end_scores(begun[:, 0], tokens, batch)
        loss = -(start_scores.gather(1, start) + end_scores.gather(1, end)).sum() / 2
        if not self.answerable:
            return loss
        holds = 1 - batch.labels["impossible"].float()
        return loss + ANSWERABLE_WEIGHT * F.binary_cross_entropy_with_logits(
            self.answerability(hidden, start_scores), holds, reduction="sum"
        )

    def start_scores(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        return log_softmax_over(self.start(hidden), batch)

    def halves(self, starts: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer of the end, W [h_start; h_i] + b, as two sums: each vector is multiplied
        once, not once for each it is joined with.
        """
        of_start, of_token = self.end_hidden.weight.chunk(2, dim=1)
        return F.linear(starts, of_start), F.linear(hidden, of_token, self.end_hidden.bias)

    def end_scores(self, begun: Tensor, tokens: Tensor, batch: TaskBatch) -> Tensor:
        return log_softmax_over(self.end(gelu(begun[:, None] + tokens)), batch)

    def answerability(self, hidden: Tensor, start_scores: Tensor) -> Tensor:
        """Log-odds [R] that the row holds the answer."""
        expand, contract = self.answerable
        expected = torch.einsum("rt,rtd->rd", start_scores.exp().to(hidden.dtype), hidden)
        logit: Tensor = contract(gelu(expand(torch.cat([hidden[:, 0], expected], dim=-1))))
        return logit.squeeze(-1).float()


class SimpleHead(Head):
    """BERT's: two vectors, one softmax each, over all tokens; [CLS] stands for no answer."""

    architecture = "ElectraForQuestionAnswering"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, 2)
        self.apply(initialise)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        starts, ends = self.output(hidden).float().unbind(-1)
        return {"start_logits": starts, "end_logits": ends}

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        logits = (
            self.output(hidden).float().masked_fill(~batch.attention_mask[..., None], NEVER)
        )  # [R, T, 2]
        return sum(
            (
                F.cross_entropy(logits[..., side], batch.labels[name], reduction="sum") / 2
                for side, name in enumerate(("start", "end"))
            ),
            start=logits.new_zeros(()),
        )


def log_softmax_over(logits: Tensor, batch: TaskBatch) -> Tensor:
    """Log-probabilities [R, T], from logits [R, T, 1], over the tokens that may be chosen in
    training.
    """
    may_be = in_paragraph(batch)
    may_be[:, 0] = True
    return logits.squeeze(-1).float().masked_fill(~may_be, NEVER).log_softmax(-1)


def in_paragraph(batch: TaskBatch) -> Tensor:
    """The second segment without its [SEP], the last real token of a row."""
    followed = F.pad(batch.attention_mask[:, 1:], (0, 1), value=False)
    return (batch.token_type_ids == 1) & followed


# ---- what `decode` makes of their outputs --------------------------------------------------------


def joint_spans(output: Mapping[str, Any], *, first: int, last: int, beam: int) -> Spans:
    """All pairs in the beam; some are outside the paragraph if it is shorter than that."""
    ends = output["ends"].astype(np.int64)  # [K, K]
    starts = np.broadcast_to(output["starts"].astype(np.int64)[:, None], ends.shape)
    return starts.ravel(), ends.ravel(), output["scores"].ravel()


def simple_spans(output: Mapping[str, Any], *, first: int, last: int, beam: int) -> Spans:
    """The paragraph's best starts, each with its best ends; a score is the sum of two logits."""
    start_logits, end_logits = (
        output["start_logits"][first : last + 1],
        output["end_logits"][first : last + 1],
    )
    starts, ends = (
        np.argsort(-logits, kind="stable")[:beam] for logits in (start_logits, end_logits)
    )
    pairs = [axis.ravel() for axis in np.meshgrid(starts, ends, indexing="ij")]
    return first + pairs[0], first + pairs[1], start_logits[pairs[0]] + end_logits[pairs[1]]
