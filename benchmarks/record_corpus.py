"""Make the shards of `benchmarks.record`: filter the text, train a vocabulary, cut rows.

    python -m benchmarks.record_corpus PART.jsonl.xz … --folder DIR --lengths 128 [64 256]
                                       [--sources wiki books openstax] [--keep-out GLUE SQUAD …]
                                       [--vocab-sizes 30522] [--workers 16]

A line of a part is a JSON object with `text`, paragraphs separated by line ends, and `source`.
--sources keeps these sources alone. --keep-out names folders of dev sets: a paragraph of the corpus
that shares 13 words in a row with one of their dev files is removed. DIR/corpus.json says how much
text of each source is left and how much was removed. DIR/128 are the shards of all the text,
DIR/128-fifth and DIR/128-thirtieth those of every fifth and thirtieth document, for runs of many
epochs. Of further lengths only a fifth is cut: DIR/64-fifth. DIR/128-16384 and DIR/128-16384-fifth
are rows of 128 with a further vocabulary, of that size. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.harness import BAD_INPUT, ELECTRA, Result, build_parser, check_counts, run_main
from electra import atomic
from electra.config import UserError

NGRAM = 13  # words in a row (Brown et al. 2020, appendix C)
SLICES = {"": 1, "-fifth": 5, "-thirtieth": 30}  # every which document
WORKERS_PER_PART = 3  # each reads its part whole and keeps a third of its documents
FACTS = "corpus.json"
OPENERS: dict[str, Callable[..., IO[Any]]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


class Job(NamedTuple):
    """A share of one part for one worker: documents whose number has this remainder."""

    part: Path
    number: int  # of the part
    remainder: int


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    start = time.perf_counter()
    text = options.folder / "text"
    if (options.folder / FACTS).exists():
        check_text(options)
    else:
        filter_text(options, text)
    vocab_size, *more_sizes = options.vocab_sizes
    tokenizer = find_or_train_vocabulary(options.folder, "vocabulary", vocab_size)
    first = options.lengths[0]
    for length in options.lengths:
        for name, every in SLICES.items():
            if every == 5 or length == first:
                make_shards(options, tokenizer, f"{length}{name}", length=length, every=every)
    for size in more_sizes:
        tokenizer = find_or_train_vocabulary(options.folder, f"vocabulary-{size}", size)
        for name in ("", "-fifth"):
            place = f"{first}-{size}{name}"
            make_shards(options, tokenizer, place, length=first, every=SLICES[name])
    print(f"{options.folder}: {time.perf_counter() - start:.0f} s", flush=True)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--sources", nargs="+", help="by default all")
    parser.add_argument("--keep-out", nargs="+", type=Path, default=[])
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[30_522])
    parser.add_argument("--workers", type=int, default=16)
    options = parser.parse_args(arguments)
    check_counts(parser, options, "workers")
    for path in (*options.parts, *options.keep_out):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
    return options


def find_or_train_vocabulary(folder: Path, name: str, size: int) -> Path:
    """Return the folder of a vocabulary, which is trained on a fifth of the text. What is whole
    stays, and other settings are refused: so does `electra vocab`.
    """
    tokenizer = folder / name
    files = slice_files(folder / "text", 5)
    electra("vocab", *files, "--output-dir", tokenizer, "--vocab-size", str(size))
    return tokenizer


def make_shards(
    options: argparse.Namespace, tokenizer: Path, name: str, *, length: int, every: int
) -> None:
    """Cut rows of one length from every so many documents."""
    files = slice_files(options.folder / "text", every)
    flags = ["--length", str(length), "--workers", str(options.workers), "--held-out", "0.01"]
    place = ["--output-dir", options.folder / name]
    electra("shard", *files, "--tokenizer", tokenizer, *place, *flags)


def electra(*arguments: str | Path) -> None:
    done = subprocess.run([*ELECTRA, *map(str, arguments)], check=False)
    if done.returncode == BAD_INPUT:  # of which it has told
        sys.exit(BAD_INPUT)
    done.check_returncode()


def slice_files(text: Path, every: int) -> list[str]:
    """Return the files of every fifth or thirtieth document, or of all."""
    names = {1: "*.jsonl", 5: "fifth-*.jsonl", 30: "fifth-thirtieth-*.jsonl"}
    return sorted(str(path) for path in text.glob(names[every]))


def check_text(options: argparse.Namespace) -> None:
    """Raise UserError where the text that is there already is of other parts or sources, or keeps
    other texts out.
    """
    facts = read_facts(options.folder)
    sources, kept_out = kept_sources(facts), len(ngrams_of(dev_texts(options.keep_out)))
    is_same = (
        sorted(part.name for part in options.parts) == sorted(facts["parts"])
        and sources.keys() == set(options.sources or facts["sources"])
        and kept_out == facts["kept_out_ngrams"]
    )
    if not is_same:
        raise UserError(
            f"{options.folder}: holds the text of {', '.join(sources)} of "
            f"{', '.join(facts['parts'])}, without {facts['kept_out_ngrams']:,} word sequences of "
            f"dev sets (--keep-out has {kept_out:,}); name these, or another --folder"
        )


# ---- the text ------------------------------------------------------------------------------------


def filter_text(options: argparse.Namespace, text: Path) -> None:
    """Write the text that is kept, in files by slice, and how much that is."""
    text.mkdir(parents=True, exist_ok=True)
    for path in text.glob("*.jsonl"):  # of an interrupted command, perhaps with other parts
        path.unlink()
    kept_out = ngrams_of(dev_texts(options.keep_out))
    jobs = []
    for number, part in enumerate(options.parts):
        jobs += [Job(part, number, remainder) for remainder in range(WORKERS_PER_PART)]
    work = partial(filter_part, text=text, sources=options.sources, kept_out=kept_out)
    totals: dict[str, Counter[str]] = {}
    with ProcessPoolExecutor(min(options.workers, len(jobs))) as workers:
        for counts in workers.map(work, jobs):
            for source, counted in counts.items():
                totals.setdefault(source, Counter()).update(counted)
    if options.sources and (unknown := set(options.sources) - set(totals)):
        raise UserError(
            f"--sources {' '.join(sorted(unknown))}: not in these parts, whose sources are "
            f"{', '.join(sorted(totals))}"
        )
    facts = {
        "parts": [part.name for part in options.parts],
        "sources": {source: dict(counted) for source, counted in sorted(totals.items())},
        "kept_out_ngrams": len(kept_out),
    }
    atomic.write_json(options.folder / FACTS, facts)
    print(json.dumps(facts, indent=1), flush=True)


def filter_part(
    job: Job, *, text: Path, sources: Sequence[str] | None, kept_out: frozenset[str]
) -> dict[str, Counter[str]]:
    """Write a worker's documents of a part and return the characters kept and removed by source."""
    counts: dict[str, Counter[str]] = {}
    names = ("", "fifth-", "fifth-thirtieth-")
    ending = f"{job.number}-{job.remainder}.jsonl"
    files = {name: (text / f"{name}{ending}").open("w", encoding="utf8") for name in names}
    with open_text(job.part) as lines:
        for number, line in enumerate(lines):
            if number % WORKERS_PER_PART != job.remainder:
                continue
            document = json.loads(line)
            counted = counts.setdefault(document["source"], Counter())
            if sources and document["source"] not in sources:
                counted["left_out"] += len(document["text"])
                continue
            paragraphs = document["text"].split("\n")
            clean = [part for part in paragraphs if kept_out.isdisjoint(ngrams(part, kept_out))]
            kept = "\n".join(clean)
            counted["kept"] += len(kept)
            counted["removed"] += len(document["text"]) - len(kept)
            counted["documents"] += 1
            # Shuffled documents: a remainder of their number is as good as a random choice.
            own_number = number // WORKERS_PER_PART
            name = names[(own_number % 5 == 0) + (own_number % 30 == 0)]
            if kept.strip():
                row = {"text": kept, "source": document["source"]}
                files[name].write(json.dumps(row) + "\n")
    for file in files.values():
        file.close()
    return counts


def open_text(path: Path) -> IO[str]:
    return OPENERS.get(path.suffix, open)(path, "rt", encoding="utf8")


# ---- 13 words in a row ---------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def ngrams(text: str, wanted: frozenset[str] | None = None) -> Iterator[str]:
    """Yield every 13 words in a row; nothing where nothing is wanted."""
    if wanted is not None and not wanted:
        return
    words = words_of(text)
    for first in range(len(words) - NGRAM + 1):
        yield " ".join(words[first : first + NGRAM])


def ngrams_of(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(ngram for text in texts for ngram in ngrams(text))


def dev_texts(folders: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of dev files, and every string of those that are JSON."""
    for folder in folders:
        for path in sorted(folder.rglob("*dev*")):
            if path.is_dir() or path.suffix not in (".tsv", ".txt", ".json", ".jsonl", ".csv"):
                continue
            content = path.read_text(encoding="utf8")
            if path.suffix == ".json":
                yield from strings_in(json.loads(content))
                continue
            for line in content.splitlines():
                if path.suffix == ".jsonl":
                    yield from strings_in(json.loads(line))
                else:
                    yield from line.split("\t")


def strings_in(value: Any) -> Iterator[str]:
    """Yield every string within a JSON value."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from strings_in(item)
        case dict():
            yield from strings_in(list(value.values()))


def kept_sources(facts: Result) -> Result:
    """Return the sources whose text was kept, with how much of it was."""
    return {name: counts for name, counts in facts.get("sources", {}).items() if "kept" in counts}


def read_facts(folder: Path) -> Result:
    """Return what a corpus holds, for a result file; nothing where it was made otherwise."""
    if not (folder / FACTS).is_file():
        return {}
    facts: Result = json.loads((folder / FACTS).read_text(encoding="utf8"))
    return facts


if __name__ == "__main__":
    run_main(main)
