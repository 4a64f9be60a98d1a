"""The two heads against their formulas, written out plainly in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.tasks.features import Features, Row, TaskBatch
from electra.tasks.span_heads import MASKED_SCORE, JointHead, SimpleHead, in_paragraph

WIDTH = 8
# [CLS] q q [SEP] p p p p [SEP], [CLS] q [SEP] p p [SEP]: the second row is three tokens shorter
ROWS = Features.from_rows(
    [
        Row(0, range(9), 4, {"start": 5, "end": 6, "impossible": 0}),
        Row(1, range(6), 3, {"start": 0, "end": 0, "impossible": 1}),
    ]
)
MAY_BE = [[0, 4, 5, 6, 7], [0, 3, 4]]


@pytest.fixture
def batch() -> TaskBatch:
    return ROWS.collate(np.array([0, 1]))


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def joint(*, beam: int = 20, unanswerable: bool = True, official: bool = False) -> JointHead:
    torch.manual_seed(0)
    head = JointHead(
        WIDTH, beam=beam, unanswerable=unanswerable, official=official, hidden=16
    ).double()
    for parameter in head.parameters():  # biases too, which begin at zero
        torch.nn.init.normal_(parameter, std=0.5)
    return head


def chosen(logits: Tensor, row: int) -> Tensor:
    """Log-probabilities over the tokens of a row that may be chosen, the rest left at −inf."""
    spread = torch.full_like(logits, -torch.inf)
    spread[MAY_BE[row]] = logits[MAY_BE[row]].log_softmax(0)
    return spread


def plain_start(head: JointHead, hidden: Tensor, row: int) -> Tensor:
    return chosen(head.start(hidden[row])[:, 0], row)


def plain_end(head: JointHead, hidden: Tensor, row: int, start: int) -> Tensor:
    joined = torch.cat([hidden[row, start].expand(9, -1), hidden[row]], dim=1)
    return chosen(head.end(F.gelu(head.end_hidden(joined)))[:, 0], row)


def plain_answerable(head: JointHead, hidden: Tensor, row: int) -> Tensor:
    expected = (plain_start(head, hidden, row).exp()[:, None] * hidden[row]).sum(0)
    expand, contract = head.answerable
    logit: Tensor = contract(F.gelu(expand(torch.cat([hidden[row, 0], expected]))))[0]
    return logit


def test_only_the_second_segment_without_its_separator_is_the_paragraph(batch: TaskBatch) -> None:
    assert [row.nonzero()[:, 0].tolist() for row in in_paragraph(batch)] == [[4, 5, 6, 7], [3, 4]]


@pytest.mark.parametrize("unanswerable", [True, False])
def test_the_joint_loss_is_half_of_both_ends_and_half_of_answerability(
    batch: TaskBatch, hidden: Tensor, unanswerable: bool
) -> None:
    head = joint(unanswerable=unanswerable)
    spans = [
        -(plain_start(head, hidden, row)[start] + plain_end(head, hidden, row, start)[end]) / 2
        for row, (start, end) in enumerate([(5, 6), (0, 0)])
    ]
    expected = sum(spans)
    if unanswerable:
        expected = (
            expected
            - 0.5 * F.logsigmoid(plain_answerable(head, hidden, 0))
            - 0.5 * F.logsigmoid(-plain_answerable(head, hidden, 1))
        )
    torch.testing.assert_close(head.loss(hidden, batch).double(), expected, rtol=1e-6, atol=1e-5)


@torch.no_grad()
def test_the_joint_head_scores_every_pair_as_the_chain_rule_does(
    batch: TaskBatch, hidden: Tensor
) -> None:
    head = joint()
    outputs = head(hidden, batch)
    for row, places in enumerate([[4, 5, 6, 7], [3, 4]]):
        found = {
            (int(start), int(end)): float(score)
            for start, ends, scores in zip(
                outputs["starts"][row], outputs["ends"][row], outputs["scores"][row], strict=True
            )
            for end, score in zip(ends, scores, strict=True)
            if score > MASKED_SCORE / 2
        }
        expected = {
            (s, e): float(plain_start(head, hidden, row)[s] + plain_end(head, hidden, row, s)[e])
            for s in places
            for e in places
        }
        assert found == pytest.approx(expected, abs=1e-5)
        assert float(outputs["answerable"][row]) == pytest.approx(
            float(plain_answerable(head, hidden, row)), abs=1e-5
        )


@torch.no_grad()
def test_officially_cls_and_the_last_separator_take_part_in_the_softmax_and_in_the_search(
    batch: TaskBatch, hidden: Tensor
) -> None:
    head = joint(official=True)
    outputs = head(hidden, batch)
    for row, places in enumerate([[0, 4, 5, 6, 7, 8], [0, 3, 4, 5]]):
        starts = head.start(hidden[row])[places, 0].log_softmax(0)
        found = head.start_scores(hidden, batch)[row, places]
        torch.testing.assert_close(found.double(), starts, rtol=1e-5, atol=1e-5)
        allowed = outputs["scores"][row] > MASKED_SCORE / 2
        assert set(outputs["ends"][row][allowed].tolist()) == set(places)
        assert set(outputs["starts"][row][allowed.any(1)].tolist()) == set(places)


def test_officially_answerability_is_learnt_where_every_question_has_an_answer(
    batch: TaskBatch, hidden: Tensor
) -> None:
    head = joint(unanswerable=False, official=True)
    assert "answerable" in head(hidden, batch)
    head.loss(hidden, batch).backward()
    assert all(layer.weight.grad.any() for layer in head.answerable)


def test_a_narrow_beam_keeps_the_best_starts_and_for_each_its_best_ends(
    batch: TaskBatch, hidden: Tensor
) -> None:
    wide, narrow = joint()(hidden, batch), joint(beam=2)(hidden, batch)
    assert narrow["ends"].shape == (2, 2, 2)
    for name in ("starts", "ends", "scores"):
        kept: Any = wide[name][:, :2] if name == "starts" else wide[name][:, :2, :2]
        assert torch.equal(narrow[name], kept)


def test_the_joint_head_has_no_answerability_where_every_question_has_an_answer(
    batch: TaskBatch, hidden: Tensor
) -> None:
    head = joint(unanswerable=False)
    assert set(head(hidden, batch)) == {"starts", "ends", "scores"}
    assert not [name for name, _ in head.named_parameters() if name.startswith("answerable")]


def test_scores_are_float32_whatever_the_encoder_computes_in(
    batch: TaskBatch, hidden: Tensor
) -> None:
    for head in (joint().bfloat16(), SimpleHead(WIDTH).bfloat16()):
        outputs = head(hidden.bfloat16(), batch)
        assert {value.dtype for value in outputs.values()} <= {torch.float32, torch.int64}
        assert head.loss(hidden.bfloat16(), batch).dtype == torch.float32


def test_padding_changes_nothing(hidden: Tensor) -> None:
    alone, beside = ROWS.collate(np.array([1])), ROWS.collate(np.array([0, 1]))
    for head in (joint(), SimpleHead(WIDTH).double()):
        both = head.loss(hidden, beside) - head.loss(hidden[:1], ROWS.collate(np.array([0])))
        torch.testing.assert_close(head.loss(hidden[1:, :6], alone), both, rtol=1e-5, atol=1e-5)


def test_the_simple_loss_is_the_mean_of_two_cross_entropies_over_real_tokens(
    batch: TaskBatch, hidden: Tensor
) -> None:
    head = SimpleHead(WIDTH).double()
    expected = torch.zeros((), dtype=torch.float64)
    for row, (length, start, end) in enumerate([(9, 5, 6), (6, 0, 0)]):
        logits = head.output(hidden[row, :length]).log_softmax(0)
        expected -= (logits[start, 0] + logits[end, 1]) / 2
    torch.testing.assert_close(head.loss(hidden, batch).double(), expected, rtol=1e-6, atol=1e-5)


def test_the_simple_head_is_the_one_of_transformers(batch: TaskBatch, hidden: Tensor) -> None:
    from transformers import ElectraConfig, ElectraForQuestionAnswering

    head = SimpleHead(WIDTH)
    stock = ElectraForQuestionAnswering(
        ElectraConfig(
            vocab_size=10,
            embedding_size=4,
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
    ).eval()
    assert type(stock).__name__ == f"ElectraFor{head.architecture}"
    stock.qa_outputs.load_state_dict(head.output.state_dict())
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        theirs = stock(ids)
        ours = head(stock.electra(ids).last_hidden_state, batch)
    assert torch.equal(ours["start_logits"], theirs.start_logits)
    assert torch.equal(ours["end_logits"], theirs.end_logits)
