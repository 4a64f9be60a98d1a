"""Measure inference on a GPU: `electra predict` and `electra embed` against transformers.

    python -m benchmarks.inference_gpu [--only predict embed] [--sides SIDE …] [--texts 8192]
                                       [--rounds 2] [--model DIR] [--quick] [--output FILE.json]

predict: a classifier (without --model, one of ELECTRA-Small's shape with random weights) reads
texts of 5 to 120 words. Ours is what the command does: it reads a .csv file, predicts in bf16 on a
GPU, and writes JSON lines. The peer is transformers' `pipeline("text-classification")` on a list of
the same texts, in batches of 32 and of 256.

embed: the mean over the tokens of the last layer. Ours reads a list and writes an .npy file. The
peers return an array: sentence-transformers' `encode`, where it is installed, and a plain loop over
transformers' model in batches of 256 texts that were sorted by length.

All sides read the same texts, cut at 128 tokens, with the same weights. The first round, of fewer
texts, warms up. The models are loaded before the clock starts. A side's result is compared with
ours.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import inference_tables
from benchmarks.finetune_cpu import VOCABULARY, write_texts
from benchmarks.harness import (
    Result,
    build_parser,
    check_counts,
    provenance,
    read_earlier,
    run_main,
    write_result,
)
from electra.cli.inference import load_models, write_predictions
from electra.data.normalization import Normalization
from electra.data.vocabulary import build_wordpiece
from electra.data.wordpiece import SPECIAL_TOKENS
from electra.model.families import build_encoder
from electra.model.shape import EncoderShape
from electra.pretraining.recipe import load_recipe
from electra.tasks.classify import Classify
from electra.tasks.embed import embed, write_embeddings
from electra.tasks.embed_options import EmbedOptions
from electra.tasks.inference import default_device
from electra.tasks.models import load_pretrained, save_tuned
from electra.tasks.task import Network

LENGTH = 128
Values = npt.NDArray[np.floating[Any]]  # [texts, …] what a side computed
Side = Callable[["Texts"], Callable[[], Values]]  # the inner call, which reads it, is not timed


@dataclass(frozen=True)
class Texts:
    """Texts, in memory and as a file, and a folder for what is written."""

    texts: list[str]
    table: Path

    @classmethod
    def write(cls, table: Path, count: int) -> Texts:
        write_texts(table, count)
        with table.open(encoding="utf8", newline="") as file:
            return cls([row["text"] for row in csv.DictReader(file)], table)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    result = read_earlier(options.output)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = options.model or save_classifier(folder / "model", quick=options.quick)
        count, few = options.texts, min(512, options.texts)
        if options.quick:
            count, few = 24, 4
        warm, texts = (Texts.write(folder / f"{number}.csv", number) for number in (few, count))
        for part in options.only:
            for entry in measure_part(options, PARTS[part], model, (warm, texts)):
                result[part] = entry
                if options.output:
                    write_result(options.output, result)
    print("\n" + inference_tables.inference_speed(result))
    entries = [result[part] for part in options.only if part in result]
    sides = dict(chain.from_iterable(entry["sides"].items() for entry in entries))
    if failed := [name for name, side in sides.items() if "failed" in side]:
        print(f"failed: {', '.join(failed)}", flush=True)
        sys.exit(1)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    names = [*PARTS["predict"], *PARTS["embed"]]
    parser.add_argument("--sides", nargs="+", choices=names, help="only these sides")
    parser.add_argument("--texts", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", type=Path, help="a fine-tuned classifier of texts")
    parser.add_argument("--quick", action="store_true", help="one layer and few texts")
    parser.add_argument("--output", help="the JSON file to write; it keeps the other part")
    options = parser.parse_args(arguments)
    check_counts(parser, options, "texts", "rounds")
    return options


def save_classifier(folder: Path, *, quick: bool) -> Path:
    """Save a classifier of ELECTRA-Small's shape with random weights."""
    shape: EncoderShape = load_recipe("small").encoder
    if quick:
        shape = replace(shape, layers=1)
    words = (f"word{number}" for number in range(VOCABULARY - len(SPECIAL_TOKENS)))
    entries = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = build_wordpiece(Normalization().build_tokenizer(), entries)
    task = Classify(name="classify", labels=("no", "yes"), regression=False, metrics=("accuracy",))
    torch.manual_seed(0)
    encoder = build_encoder(shape, vocabulary=tokenizer.size)
    network = Network(encoder, task.head(shape.width, dropout=0.0))
    save_tuned(network, task, tokenizer, folder, length=LENGTH, extra={})
    return folder


def measure_part(
    options: argparse.Namespace,
    sides: dict[str, Callable[[Path], Side]],
    model: Path,
    data: tuple[Texts, Texts],
) -> Iterator[Result]:
    """Yield the entry of a part after every side; the first side is what others are compared to."""
    warm, texts = data
    entry: Result = {"texts": len(texts.texts), "sides": {}, "made": provenance()}
    reference: Values | None = None
    ours: dict[str, float] = {}  # texts a second
    for name, build in sides.items():
        if options.sides and name not in options.sides:
            continue
        if name.startswith("st_") and importlib.util.find_spec("sentence_transformers") is None:
            print(f"{name} is left out: sentence-transformers is not installed", flush=True)
            continue
        try:
            side = build(model)
            side(warm)
            measured, values = time_rounds(side, texts, options.rounds)
        except Exception as error:  # the other sides are still worth their time
            print(f"{name} failed: {error}", flush=True)
            entry["sides"][name] = {"failed": type(error).__name__}
            yield entry
            continue
        if reference is None:
            reference = values
        measured["largest_difference"] = float(np.abs(values - reference).max())
        if name.startswith("ours"):
            ours[name] = measured["examples_per_second"]
        else:
            measured["beside"] = dict(ours)
        entry["sides"][name] = measured
        print(f"{name}: {measured['examples_per_second']:,.0f} texts/s", flush=True)
        yield entry


def time_rounds(side: Side, texts: Texts, rounds: int) -> tuple[Result, Values]:
    """Return texts a second of each round, and what the last one computed."""
    rates = []
    for _ in range(rounds):
        start = time.perf_counter()
        read_values = side(texts)  # what it computed is on the host: the device has finished
        rates.append(len(texts.texts) / (time.perf_counter() - start))
    measured = {"examples_per_second": median(rates), "rounds": rates}
    return measured, read_values()


# ---- predict -------------------------------------------------------------------------------------


def our_predictions(model: Path) -> Side:
    models = load_models([str(model)], None, [], command="predict")

    def run(texts: Texts) -> Callable[[], Values]:
        output = texts.table.with_suffix(".jsonl")
        write_predictions(models, str(texts.table), output, "records")
        return partial(read_probabilities, output)

    return run


def read_probabilities(path: Path) -> Values:
    lines = path.read_text(encoding="utf8").splitlines()
    return np.array([list(json.loads(line)["probabilities"].values()) for line in lines])


def pipeline_predictions(model: Path, *, batch_size: int, dtype: torch.dtype) -> Side:
    from transformers import logging, pipeline

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    classify = pipeline(
        "text-classification", model=str(model), device=default_device(), dtype=dtype, top_k=None
    )
    labels = list(classify.model.config.label2id)

    def run(texts: Texts) -> Callable[[], Values]:
        answers = classify(texts.texts, batch_size=batch_size, truncation=True, max_length=LENGTH)
        return partial(scores_of_answers, answers, labels)

    return run


def scores_of_answers(answers: list[list[dict[str, Any]]], labels: list[str]) -> Values:
    scores = [{each["label"]: each["score"] for each in answer} for answer in answers]
    return np.array([[score[label] for label in labels] for score in scores])


# ---- embed ---------------------------------------------------------------------------------------


def our_vectors(model: Path, *, precision: str) -> Side:
    source, device = load_pretrained(model), default_device()
    options = EmbedOptions(pool="mean", length=LENGTH, precision=precision)  # type: ignore[arg-type]

    def run(texts: Texts) -> Callable[[], Values]:
        output = texts.table.with_suffix(".npy")
        vectors = embed(source.encoder, source.tokenizer, texts.texts, options, device=device)
        write_embeddings(output, vectors, source.tokenizer, pool=options.pool)
        return partial(np.load, output)

    return run


def loop_vectors(model: Path, *, dtype: torch.dtype, batch_size: int = 256) -> Side:
    """A plain loop over transformers' model, with the texts sorted by length."""
    from transformers import AutoModel, AutoTokenizer

    device = default_device()
    tokenizer = AutoTokenizer.from_pretrained(model)
    encoder = AutoModel.from_pretrained(model, dtype=dtype).to(device).eval()

    def run(texts: Texts) -> Callable[[], Values]:
        order = sorted(range(len(texts.texts)), key=lambda n: len(texts.texts[n]))
        vectors = np.empty((len(order), encoder.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = tokenizer(
                [texts.texts[n] for n in indices],
                padding=True,
                truncation=True,
                max_length=LENGTH,
                return_tensors="pt",
            ).to(device)
            with torch.inference_mode():
                hidden = encoder(**batch).last_hidden_state.float()
            mask = batch["attention_mask"][..., None]
            vectors[indices] = ((hidden * mask).sum(1) / mask.sum(1)).cpu().numpy()
        return lambda: vectors

    return run


def sentence_transformer_vectors(model: Path, *, batch_size: int, dtype: torch.dtype) -> Side:
    from sentence_transformers import SentenceTransformer

    # A folder that says nothing of pooling gets a mean over the tokens.
    encoder = SentenceTransformer(
        str(model), device=str(default_device()), model_kwargs={"dtype": dtype}
    )
    encoder.max_seq_length = LENGTH

    def run(texts: Texts) -> Callable[[], Values]:
        vectors = encoder.encode(texts.texts, batch_size=batch_size, show_progress_bar=False)
        return lambda: vectors.astype(np.float32)

    return run


FP32, BF16 = torch.float32, torch.bfloat16
PARTS: dict[str, dict[str, Callable[[Path], Side]]] = {
    "predict": {
        "ours": our_predictions,
        "pipeline_256_bf16": partial(pipeline_predictions, batch_size=256, dtype=BF16),
        "pipeline_32_bf16": partial(pipeline_predictions, batch_size=32, dtype=BF16),
        "pipeline_256_fp32": partial(pipeline_predictions, batch_size=256, dtype=FP32),
        "pipeline_32_fp32": partial(pipeline_predictions, batch_size=32, dtype=FP32),
    },
    "embed": {
        "ours_fp32": partial(our_vectors, precision="fp32"),
        "ours_bf16": partial(our_vectors, precision="bf16"),
        "loop_256_fp32": partial(loop_vectors, dtype=FP32),
        "loop_256_bf16": partial(loop_vectors, dtype=BF16),
        "st_32_fp32": partial(sentence_transformer_vectors, batch_size=32, dtype=FP32),
        "st_256_fp32": partial(sentence_transformer_vectors, batch_size=256, dtype=FP32),
        "st_256_bf16": partial(sentence_transformer_vectors, batch_size=256, dtype=BF16),
    },
}


if __name__ == "__main__":
    run_main(main)
