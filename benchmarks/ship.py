"""Turn a pre-trained run into a model that comes with the package.

    python -m benchmarks.ship RUN NAME --corpus DIR --license cc-by-sa-4.0 [--language en]
                              [--arm NAME] [--stage final] [--record record.json]
                              [--generator] [--models electra/models] [--shard-bytes 15000000]

Writes MODELS/NAME: the discriminator of RUN in bf16 with its tokenizer, and with --generator its
generator beside it. Stock transformers must compute the same logits from it, but for rounding. The
card states the sources of the text (DIR/corpus.json), the facts of the run, and the scores of its
arm, if one is named, from the result file of `benchmarks.record`; those of its other seeds, and of
the rounded weights, too; and those of beyond_glue.json beside that file. A folder of more than
45 MB is refused.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.beyond_glue import OUTPUT
from benchmarks.beyond_tables import below_chance, beyond_glue
from benchmarks.harness import Result, build_parser, read_earlier, run_main
from benchmarks.markdown import RESULTS, table_header, table_row
from benchmarks.minimal_pairs import score_sentences
from benchmarks.record_corpus import kept_sources, read_facts
from benchmarks.record_results import read_record
from benchmarks.shipped_tables import ARM, STAGE, shipped_limits, shipped_scores
from electra import atomic
from electra.checksums import CHECKSUMS, write_checksums
from electra.cli.quickstart import SHIPPED
from electra.config import UserError
from electra.model import huggingface, model_config
from electra.model.families import build_masked_lm
from electra.model.family import ExportedNetwork
from electra.model.verify import verify
from electra.model.weight_files import CARD, FACTORS, INDEX, write_tensors
from electra.shipped import MODELS
from electra.tasks.models import load_tokenizer

MAX_BYTES = 45_000_000
# bf16 keeps 8 bits of a weight; logits are sums over many of them.
TOLERANCE = 0.05
# What a test compares: sum of log P(original) of each sentence, by the model as it was shipped.
EXPECTED = "expected_scores.json"
# Source of the text → what it is, and its terms.
TERMS = {
    "wiki": "Wikipedia (2019), by its contributors, CC BY-SA 3.0",
    "books": "Project Gutenberg, public domain in the United States",
    # As the prefaces in the text say; those of 30 books state CC BY 4.0, those of two do not.
    "openstax": "OpenStax textbooks, CC BY 4.0; *Business Law I Essentials* and *Introduction to "
    "Business 2e* CC BY-NC-SA 4.0",
}
KEPT_OUT = (
    "Removed are paragraphs that share 13 words in a row with a dev set of GLUE, SQuAD or RACE, in "
    "characters. The files of CoNLL were not compared."
)
FIXTURE = (
    "The chef who ran to the stores is out of food.",
    "The chef who ran to the stores are out of food.",
    "Water boils at a hundred degrees.",
    "Water boils at a hundred friends.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    run, target = options.run, options.models / options.name
    if not (run / "discriminator").is_dir():
        raise UserError(f"{run}: no discriminator/ there; name a finished run of `pretrain`")
    with atomic.replace_folder(target) as fresh:
        write_bf16(run / "discriminator", fresh, shard_bytes=options.shard_bytes)
        card = (run / "discriminator" / CARD).read_text(encoding="utf8")
        (fresh / CARD).write_text(complete_card(card, options), encoding="utf8")
        network = huggingface.load_discriminator(run / "discriminator")
        difference = verify(network, fresh, tolerance=TOLERANCE)
        if options.generator:
            (fresh / "generator").mkdir()
            write_bf16(run / "generator", fresh / "generator", shard_bytes=options.shard_bytes)
            verify(load_generator(run / "generator"), fresh / "generator", tolerance=TOLERANCE)
        atomic.write_json(fresh / EXPECTED, score_fixture(fresh))
        size = sum(path.stat().st_size for path in fresh.rglob("*") if path.is_file())
        if size > MAX_BYTES:
            raise UserError(
                f"{target}: {size:,} bytes, more than {MAX_BYTES:,}; leave out --generator"
            )
    print(f"{target}: {size / 1e6:.1f} MB; logits differ by up to {difference:.3f} from float32")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--corpus", type=Path, help="folder of benchmarks.record_corpus")
    parser.add_argument("--license", default="not stated")
    parser.add_argument("--language", default="en")
    parser.add_argument("--record", type=Path, default=RESULTS / "record.json")
    parser.add_argument("--stage", default=STAGE)
    parser.add_argument("--arm", default="", help="of this run, in the record")
    parser.add_argument("--generator", action="store_true")
    parser.add_argument("--shard-bytes", type=int, default=huggingface.SHARD_BYTES)
    return parser.parse_args(arguments)


def write_bf16(source: Path, target: Path, *, shard_bytes: int) -> None:
    """Copy a model folder with its weights in bf16; transformers computes in float32 as before."""
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name not in (INDEX, CHECKSUMS, CARD):
            shutil.copyfile(path, target / path.name)
    tensors = {}
    for path in sorted(source.glob("*.safetensors")):
        if path.name != FACTORS:  # they would not be the factors of rounded weights
            tensors |= load_file(path)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    write_tensors(rounded, target, shard_bytes=shard_bytes)
    write_checksums(target, [path.name for path in target.iterdir() if path.is_file()])


def load_generator(folder: Path) -> ExportedNetwork:
    shape, vocabulary, _ = model_config.load_shape(folder)
    network = build_masked_lm(shape, vocabulary=vocabulary)
    huggingface.load(network, folder)
    return network


def score_fixture(folder: Path) -> list[float]:
    """Return the score of each sentence of the fixture by a model folder."""
    network = huggingface.load_discriminator(folder)
    return list(score_sentences(FIXTURE, network, load_tokenizer(folder), len(FIXTURE)))


# ---- the card ------------------------------------------------------------------------------------


def complete_card(card: str, options: argparse.Namespace) -> str:
    """Return the card of the run with data, licences, scores and limits after its facts."""
    card = card.replace(f"# {options.run.name}-discriminator", f"# {options.name}")
    _, front, body = card.split("---\n", 2)
    stated = {"language": options.language, "license": options.license}
    kept = [line for line in front.splitlines() if line.partition(":")[0] not in stated]
    card = "\n".join(
        ["---", *(f"{key}: {value}" for key, value in stated.items()), *kept, "---", ""]
    )
    card += body
    card = card.replace("| Language | not recorded |", f"| Language | {options.language} |")
    card = card.replace("| Licence | not recorded |", f"| Licence | {options.license} |")
    if not options.generator:
        card = card.replace("; the generator beside it does.", ".")
    sources = read_sources(options.corpus)
    return "\n".join([card.rstrip(), *describe_model(sources, options)]) + "\n"


def describe_model(sources: Mapping[str, Result], options: argparse.Namespace) -> list[str]:
    """Return what the card says after the facts of the run."""
    lines = [*describe_text(sources), *describe_license(options.license, sources)]
    lines += [*describe_scores(options), *describe_beyond(options)]
    return [*lines, *describe_limits(sources, options)]


def describe_limits(sources: Mapping[str, Result], options: argparse.Namespace) -> list[str]:
    """Return what the model is for, and what it is not."""
    characters = sum(counts["kept"] for counts in sources.values())
    record = read_record(options.record)
    measured = shipped_limits(record, name=options.name, stage=options.stage, arm=options.arm)
    return [
        "",
        "## Use and limits",
        "",
        "- For fine-tuning on English text, which is lower-cased. Pre-training had rows of 128 "
        "tokens; up to 512 are read. Most signs of other scripts, and emojis, are [UNK].",
        f"- Minutes of pre-training on {characters / 1e6:.0f} million characters of text: models "
        "that read more know more.",
        "- The text holds what its sources hold, old books among them, with their prejudices. "
        "Nobody has measured those of the model: test it before it decides about people.",
        "- Dev sets chose the settings of pre-training, of which about fifty were tried in runs of "
        "up to 2.5 minutes; those of fine-tuning, about twenty; and which of three long runs is "
        "shipped (six tasks). The tasks beyond GLUE chose none. No test set was used but that of "
        "CoNLL-2000, which has no dev set.",
        "",
        *marked("shipped_limits", measured, options),
    ]


def describe_license(name: str, sources: Mapping[str, Result]) -> list[str]:
    """Return what the licence asks of those who use the model or make another from it."""
    if name != "cc-by-sa-4.0":
        return []
    text = (
        "The weights are under [CC BY-SA 4.0](https://creativecommons.org/licenses/by-sa/4.0/): "
        "name the model, its sources and your changes, and share what you make from it under the "
        "same licence. The code of electra is under Apache-2.0. The licence cannot grant more than "
        "the sources do."
    )
    if "openstax" in sources:
        text += (
            " Some textbooks allow no commercial use; who must do without them pre-trains without "
            "the source `openstax`."
        )
    return ["", "## Licence", "", text]


def read_sources(corpus: Path | None) -> dict[str, Result]:
    """Return the sources whose text was kept, with how much of it was."""
    return kept_sources(read_facts(corpus) if corpus else {})


def describe_text(sources: Mapping[str, Result]) -> list[str]:
    """Return the sources of the text and their sizes."""
    if not sources:
        return ["", "## Text", "", "not recorded"]
    header = table_header("source", "terms", "characters", "removed: in a dev set")
    lines = ["", "## Text", "", *header]
    for source, counts in sources.items():
        kept, removed = f"{counts['kept']:,}", f"{counts['removed']:,}"
        lines.append(table_row(source, TERMS.get(source, "not recorded"), kept, removed))
    return [*lines, "", KEPT_OUT]


def describe_scores(options: argparse.Namespace) -> list[str]:
    """Return the scores of the arm that this run is."""
    record = read_record(options.record)
    scores = shipped_scores(record, stage=options.stage, arm=options.arm)
    return ["", "## Scores", "", *marked("shipped_scores", scores, options)]


def marked(name: str, text: str, options: argparse.Namespace) -> list[str]:
    """Return a text between marks where `benchmarks.tables` writes it anew: of small-en alone."""
    if (options.name, options.stage, options.arm) != (SHIPPED, STAGE, ARM):
        return [text]
    return [f"<!-- {name}: python -m benchmarks.tables -->", text, f"<!-- /{name} -->"]


def describe_beyond(options: argparse.Namespace) -> list[str]:
    """Return the scores on tasks beyond GLUE, which the file beside the record has of the run that
    is shipped.
    """
    result, name = read_earlier(options.record.with_name(OUTPUT.name)), options.name
    if name not in result.get("models", []) or (options.stage, options.arm) != (STAGE, ARM):
        return []
    own = {key: run for key, run in result["runs"].items() if run["model"] == name}
    table = beyond_glue({**result, "models": [name], "runs": own}).rstrip()
    wrong = below_chance(list(own.values()))
    return ["", table, *(["", wrong] if wrong else [])]


if __name__ == "__main__":
    run_main(main)
