"""Next-sentence prediction: which second segments come from elsewhere, and what it costs not to
notice.
"""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.data.batches import Batch
from electra.data.examples import Span, cut_document, pad_rows
from electra.objectives.corruption import masked_counts
from electra.objectives.next_sentence import MAX_SURPLUS, swap_segments
from electra.objectives.settings import MaskedLMConfig
from tests.conftest import toy_batch
from tests.objectives.test_objectives import VOCABULARY, objective, seeded

CONFIG = MaskedLMConfig(next_sentence=True)
BATCH = toy_batch(
    [16, 16, 4, 9, 9, 12]
)  # the third has one segment, and no other ends where the last one's does


def second_words(batch, row):
    """The second segment without the [SEP] that ends it."""
    return batch.input_ids[row][batch.token_type_ids[row] == 1].tolist()[:-1]


def may_take(batch, row, other):
    """Whether row's second segment may become other's: the rule once more, row by row."""
    length = batch.input_ids.shape[1]
    is_full, is_giver_full = (int(batch.lengths[each]) == length for each in (row, other))
    surplus = len(second_words(batch, other)) - len(second_words(batch, row))
    return is_full == is_giver_full and 0 <= surplus <= (length * MAX_SURPLUS if is_full else 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(min_value=3, max_value=16), min_size=1, max_size=7), st.integers(0, 1000)
)
def test_a_strange_segment_is_how_another_begins_and_nothing_else_changes(lengths, seed):
    batch = toy_batch(lengths, seed=seed)
    paired = swap_segments(batch, seeded(seed))
    assert paired.batch._replace(input_ids=batch.input_ids) == batch
    for row in range(len(lengths)):
        givers = [
            other for other in range(len(lengths)) if other != row and may_take(batch, row, other)
        ]
        assert paired.scored[row] == bool(second_words(batch, row) and givers)
        if not paired.is_random[row]:
            assert paired.batch.input_ids[row].equal(batch.input_ids[row])
            continue
        found = second_words(paired.batch, row)
        assert found in [second_words(batch, other)[: len(found)] for other in givers]
        outside = (batch.token_type_ids[row] == 0) | (batch.input_ids[row] == VOCABULARY.sep)
        assert paired.batch.input_ids[row][outside].equal(batch.input_ids[row][outside])


def test_half_of_the_second_segments_come_from_elsewhere():
    paired = swap_segments(toy_batch([16] * 4000), seeded())
    assert paired.scored.all()
    assert paired.is_random.float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_short_rows_beside_a_long_one_do_not_make_long_segments_follow_more_often():
    long = [
        swap_segments(toy_batch([16, 5, 5, 5, 16]), seeded(seed)).is_random[0]
        for seed in range(2000)
    ]
    assert sum(map(int, long)) / 2000 == pytest.approx(0.5, abs=0.04)


def test_a_full_row_is_given_the_next_longer_segment_where_that_is_near():
    input_ids, begins = (
        100 * torch.arange(5)[:, None] + torch.arange(64),
        torch.tensor([20, 29, 30, 31, 40]),
    )
    lengths = torch.full((5,), 64)
    batch = Batch(input_ids, (torch.arange(64) >= begins[:, None]).long(), lengths, lengths)
    for seed in range(10):
        paired = swap_segments(batch, seeded(seed))
        assert paired.scored.tolist() == [False, False, True, True, False]
        for row in paired.is_random.nonzero()[:, 0].tolist():
            expected = input_ids[row - 1, begins[row - 1] :][: 63 - begins[row]]
            assert paired.batch.input_ids[row].equal(
                torch.cat([input_ids[row, : begins[row]], expected, input_ids[row, 63:]])
            )


def test_a_segment_that_ends_with_its_line_is_given_no_other_that_was_or_must_be_cut():
    batch = toy_batch([16, 14, 12, 9, 10])  # 6, 5, 4, 3 and 3 words; a full row could spare one
    assert [len(second_words(batch, row)) for row in range(5)] == [6, 5, 4, 3, 3]
    assert swap_segments(batch, seeded()).scored.tolist() == [False, False, False, True, True]


def test_a_row_with_one_segment_or_without_company_is_not_scored():
    assert swap_segments(BATCH, seeded()).scored.tolist() == [True, True, False, True, True, False]
    alone = swap_segments(toy_batch([16]), seeded())
    assert (alone.scored.tolist(), alone.is_random.tolist()) == ([False], [False])


def test_swapping_is_one_graph_whatever_the_batch_holds():
    torch._dynamo.reset()
    swap = torch.compile(
        lambda batch: swap_segments(batch, None), backend="eager", fullgraph=True, dynamic=False
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ([16, 16, 9, 4], [4, 4, 4, 4], [9, 12, 9, 12]):
            torch.manual_seed(0)
            found = swap(toy_batch(lengths))
            torch.manual_seed(0)
            assert found.batch.input_ids.equal(
                swap_segments(toy_batch(lengths), None).batch.input_ids
            )


# ---- what gives the answer away ------------------------------------------------------------------

LENGTH, STOP, CONTINUATIONS = (
    64,
    5,
    25,
)  # ids from CONTINUATIONS on are pieces that continue a word


def toy_line(rng):
    """Words of one to three pieces, and a full stop."""
    line = []
    for _ in range(rng.randint(2, 9)):
        line.append(rng.randrange(STOP + 1, CONTINUATIONS))
        line += rng.choices(range(CONTINUATIONS, VOCABULARY.size), k=rng.choice([0, 0, 1, 2]))
    return [*line, STOP]


def packed_text(documents):
    """Rows of many lines a document, cut as shards are: ids [rows, T] and where the segments end
    [rows, 2].
    """
    rng, tokens, spans = random.Random(0), [], []
    for _ in range(documents):
        lines, begin = [toy_line(rng) for _ in range(rng.randint(4, 16))], len(tokens)
        tokens += chain.from_iterable(lines)
        spans += [
            Span(*(begin + place for place in span))
            for span in cut_document([*map(len, lines)], length=LENGTH, rng=rng)
        ]
    order = rng.sample(range(len(spans)), len(spans))
    return pad_rows(
        np.array(tokens), [spans[place] for place in order], length=LENGTH, tokenizer=VOCABULARY
    )


@pytest.fixture(scope="module")
def segments():
    """Return features of the second segment of every scored row, and whether it is random."""
    input_ids, ends = (torch.from_numpy(found.astype("int64")) for found in packed_text(4000))
    place, rng, found = torch.arange(LENGTH), seeded(), []
    for some, (first_end, last_end) in zip(
        input_ids.split(256), (each.T for each in ends.split(256)), strict=True
    ):
        token_type_ids = (place >= first_end[:, None]) & (place < last_end[:, None])
        paired = swap_segments(Batch(some, token_type_ids.long(), last_end, last_end), rng)
        first, last = (
            paired.batch.input_ids.gather(1, at.clamp(max=LENGTH - 1)[:, None])[:, 0]
            for at in (first_end, last_end - 2)
        )
        columns = {
            "full": last_end == LENGTH,
            "first": first,
            "last": last,
            "words": last_end - first_end - 1,
            "strange": paired.is_random,
        }
        found.append({name: column[paired.scored] for name, column in columns.items()})
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


RULES = {
    "it begins within a word": lambda found: found["first"] >= CONTINUATIONS,
    "it ends with a full stop": lambda found: found["last"] == STOP,
    "it ends within a word": lambda found: found["last"] >= CONTINUATIONS,
    "it is long": lambda found: found["words"] > found["words"].median(),
    "it is short": lambda found: found["words"] < found["words"].float().quantile(0.2),
    "its row is full": lambda found: found["full"],
}


@pytest.mark.parametrize("rows", ["all", "full", "shorter"])
@pytest.mark.parametrize("rule", RULES)
def test_no_simple_rule_tells_strange_segments_from_those_that_follow(segments, rule, rows):
    among = {
        "all": segments["full"] | True,
        "full": segments["full"],
        "shorter": ~segments["full"],
    }[rows]
    assert among.sum() > 1000
    for chosen in (RULES[rule](segments) & among, ~RULES[rule](segments) & among):
        count, strange = int(chosen.sum()), int((chosen & segments["strange"]).sum())
        assert abs(strange - count / 2) <= 4 * (count / 4) ** 0.5, f"{strange} of {count}: not prob"


# ---- the loss ------------------------------------------------------------------------------------


def test_the_loss_is_a_plain_recomputation_row_by_row():
    model = objective(CONFIG).double()
    loss, (paired, masked, _) = model(BATCH, seeded(1)), model.encode(BATCH, seeded(1))
    assert 0 < paired.is_random.sum() < 4, "the seed is one that gives both kinds"
    hidden = model.encoder.encoder(masked.input_ids, BATCH.token_type_ids, BATCH.attention_mask)
    mistakes, losses = [], []
    for row in (0, 1, 3, 4):
        probs = (model.nsp_head.weight @ hidden[row, 0] + model.nsp_head.bias).softmax(-1)
        mistakes.append(-probs[int(paired.is_random[row])].log())
    probs = model.encoder.logits(
        masked.input_ids, BATCH.token_type_ids, BATCH.attention_mask
    ).softmax(-1)
    for row, place in masked.scored.nonzero().tolist():
        position = masked.positions[row, place]
        losses.append(-probs[row, position, paired.batch.input_ids[row, position]].log())
    nsp, mlm = sum(mistakes).item() / 6, (sum(losses) / len(losses)).item()
    assert loss.parts["nsp"].item() == pytest.approx(nsp, rel=1e-6)
    assert loss.parts["mlm"].item() == pytest.approx(mlm, rel=1e-6)
    assert loss.total.item() == pytest.approx(mlm + nsp, rel=1e-6)


def test_shares_of_the_micro_batches_add_up_to_the_loss_of_the_whole_batch():
    model = objective(CONFIG)
    parts = [
        BATCH._replace(
            input_ids=BATCH.input_ids[i : i + 3],
            token_type_ids=BATCH.token_type_ids[i : i + 3],
            lengths=BATCH.lengths[i : i + 3],
        )
        for i in (0, 3)
    ]
    shares = [model(part, seeded(i)).total.item() for i, part in enumerate(parts)]
    alone = [
        model(part._replace(step_lengths=part.lengths), seeded(i)).parts
        for i, part in enumerate(parts)
    ]
    counts = [int(masked_counts(part.lengths, CONFIG.masking, length=16).sum()) for part in parts]
    mlm = sum(found["mlm"].item() * n for found, n in zip(alone, counts, strict=True)) / sum(counts)
    assert sum(shares) == pytest.approx(
        mlm + sum(found["nsp"].item() for found in alone) / 2, rel=1e-6
    )


def test_the_layer_that_tells_segments_apart_is_in_the_checkpoint_and_in_no_exported_network():
    model = objective(CONFIG)
    model(BATCH, seeded()).total.backward()
    assert model.nsp_head.weight.grad.any()
    exported = {id(p) for network in model.networks().values() for p in network.parameters()}
    own = [name for name, p in model.named_parameters() if id(p) not in exported]
    assert (list(model.networks()), own) == (["encoder"], ["nsp_head.weight", "nsp_head.bias"])


def test_accuracy_stands_beside_that_of_always_saying_follows():
    model, batch = objective(CONFIG).eval(), toy_batch([16] * 40)
    torch.nn.init.zeros_(model.nsp_head.weight)
    model.nsp_head.bias.data = torch.tensor([1.0, 0.0])
    scores = model.measure(batch, seeded()).scores()
    following = 1 - swap_segments(batch, seeded()).is_random.double().mean().item()
    assert scores["nsp_accuracy"] == scores["baseline_nsp_accuracy"] == pytest.approx(following)
    assert scores["mlm_loss"] == pytest.approx(model(batch, seeded()).parts["mlm"].item(), rel=1e-5)
    assert scores["nsp_loss"] == pytest.approx(model(batch, seeded()).parts["nsp"].item(), rel=1e-5)


def test_without_it_a_masked_lm_draws_and_computes_what_it_always_did():
    plain, both = objective(MaskedLMConfig()), objective(CONFIG)
    assert "nsp_head.weight" not in plain.state_dict()
    assert all(
        plain.state_dict()[name].equal(tensor)
        for name, tensor in both.state_dict().items()
        if not name.startswith("nsp_head.")
    )
