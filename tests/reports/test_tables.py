"""The tables of scores and costs."""

from __future__ import annotations

from dataclasses import replace

from electra.reports.report import chapter
from electra.reports.tables import cost_table, score_table
from tests.experiments import invented
from tests.reports.text import text_of


def test_ours_stand_beside_the_published_which_are_labelled():
    table = score_table(invented.efficiency())
    assert table.head == [
        "arm",
        "glue/sst-2 accuracy",
        "glue/qnli accuracy",
        "average of 2",
        "published: GLUE",
    ]
    assert list(table.rows[1]) == [
        "All-Tokens MLM",
        "77.1 ± 0.3 (n=2)",
        "69.1 ± 0.3 (n=2)",
        "73.1 ± 0.3 (n=2)",
        "84.3",
    ]
    assert list(table.rows[-2]) == ["GPT (published only)", "–", "–", "–", "78.8"]
    assert list(table.rows[-1]) == ["an answer that ignores the text", "50.5", "50.5", "50.5", ""]


def test_the_accuracy_of_generators_on_our_held_out_rows_stands_beside_the_published():
    findings = invented.efficiency()
    trial = replace(
        findings.trial,
        columns=("generator accuracy",),
        arms=tuple(
            replace(arm, published={"generator accuracy": 65.0} if arm.name == "electra" else {})
            for arm in invented.ARMS
        ),
    )
    results = [
        replace(
            finding,
            journal=[
                {
                    "step": 2000,
                    "eval_mlm_accuracy": 0.4 + 0.02 * finding.seed,
                    **({} if finding.arm == "bert" else {"eval_generator_entropy": 2.5}),
                }
            ],
        )
        for finding in findings.results
    ]
    table = score_table(replace(findings, trial=trial, results=results))
    assert table.head[-3:] == [
        "held-out rows of ours: generator accuracy, points",
        "held-out rows of ours: generator entropy, nats",
        "published: generator accuracy",
    ]
    rows = {row[0]: list(row[-3:]) for row in table.rows}
    assert rows["ELECTRA"] == ["41.0 ± 1.4 (n=2)", "2.5 ± 0.0 (n=2)", "65.0"]
    assert rows["BERT"] == ["–", "–", "–"]  # it has no generator
    assert len({len(row) for row in table.rows}) == 1


def test_the_cost_of_an_arm_is_given_in_both_conventions():
    table = cost_table(invented.efficiency())
    assert dict(zip(table.head, table.rows[0], strict=True)) == {
        "arm": "ELECTRA",
        "parameters": "–",
        "seeds done": "2 of 2",
        "FLOPs, standard": "1.90e15",
        "FLOPs, official script's": "2.13e15",
        "minutes": "1.41",
        "steps": "2,000",
        "tokens": "60.0M",
        "epochs": "0.58",
    }


def test_the_weights_of_the_network_that_is_fine_tuned_are_counted():
    shape = {
        "layers": 4,
        "width": 128,
        "heads": 2,
        "feedforward": 512,
        "embedding": 128,
        "positions": 64,
    }
    findings = invented.efficiency()
    made = {"recipe": {"encoder": shape}}
    table = cost_table(
        replace(
            findings,
            corpus={**findings.corpus, "vocabulary": 4096},
            results=[replace(finding, provenance=made) for finding in findings.results],
        )
    )
    assert {row[1] for row in table.rows} == {"1.3M"}  # 4 × 198,272 and 128 × (4,096 + 64 + 2 + 2)


def test_how_networks_were_scored_is_said_below_their_scores(without_figures):
    findings = invented.efficiency()
    how = replace(findings.scale.evaluation, settings={"max_train_examples": 25_000})
    text = text_of(chapter(replace(findings, scale=replace(findings.scale, evaluation=how))))
    assert "Fine-tuned by recipe paper with max_train_examples = 25000; " in text
    assert "; 1 fine-tuning seed for each pre-trained network; " in text
    assert "Between the fine-tuning seeds" not in text


def test_the_spread_between_fine_tuning_seeds_is_said_where_it_is_known(without_figures):
    findings = invented.efficiency()
    several = [
        replace(
            finding, scores=[replace(score, values=(0.7, 0.8, 0.75)) for score in finding.scores]
        )
        for finding in findings.results
    ]
    text = text_of(chapter(replace(findings, results=several)))
    assert "; 3 fine-tuning seeds for each pre-trained network; " in text
    assert f"standard deviation is, in points and on average, 5.0 on {findings.tasks[0]}" in text
