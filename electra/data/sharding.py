"""Documents become shards: the same bytes for the same text, however many workers, parts or
interruptions it takes.
"""

from __future__ import annotations

import dataclasses
import heapq
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from electra.config import UserError
from electra.data.corpus import Document, Progress, ignore_progress, read_indexed_sources
from electra.data.examples import Cutter, Cuttings, Passage
from electra.data.manifest import MANIFEST, Manifest, ShardSettings, part_name
from electra.data.shard_writer import Writer, check_same_settings, clear
from electra.data.sources import Report, Source, check_outside_corpus, resolve, warn
from electra.data.wordpiece import WordPiece

SHARD_BYTES = 64 * 1024 * 1024
BLOCK_CHARACTERS = (
    1_000_000  # what a worker takes at a time; enough to hide the cost of handing it over
)
# Below this one process is quicker than starting several: the tokenizer's own threads use every
# core, and only the cutting, an eighth of the work, is left to one.
LARGE_CORPUS_BYTES = 32 * 1024 * 1024
FILE_DOCUMENTS = 2**40  # more than any file holds: documents numbered by file never share a number


def shard(
    inputs: Sequence[str | Path],
    *,
    tokenizer: WordPiece,
    output_dir: str | Path,
    length: int = 128,
    held_out: float = 0.005,
    seed: int = 0,
    part: tuple[int, int] = (1, 1),
    by_file: bool = False,
    text_field: str = "text",
    workers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> Manifest:
    """Pack a corpus into `output_dir`. Done before: its manifest is returned. Interrupted: it goes
    on from there.

    A document's number decides how it is cut. Numbered through the corpus, every part reads all of
    it, though it cuts only its own blocks: right for a few parts of any files. Numbered `by_file`,
    a part reads its own files alone, and the rows are others than without, but the same for any
    number of parts.
    """
    warnings: list[str] = []

    def note(message: str) -> None:
        warnings.append(message)
        report(message)

    check_settings(
        length=length, held_out=held_out, part=part, workers=workers, shard_bytes=shard_bytes
    )
    check_outside_corpus(Path(output_dir), inputs)
    sources = resolve(inputs, report=note)
    read = own_files(sources, part) if by_file else dict(enumerate(sources))
    settings = ShardSettings(
        length=length,
        seed=seed,
        held_out=held_out,
        part=part[0],
        parts=part[1],
        by_file=by_file,
        shard_bytes=shard_bytes,
        text_field=text_field,
        tokenizer=tokenizer.fingerprint,
        inputs=[
            source.fingerprint() if place in read else source.identity()
            for place, source in enumerate(sources)
        ],
    )
    folder = own_folder(Path(output_dir), part=part, overwrite=overwrite)
    if overwrite:
        clear(folder)
    if (folder / MANIFEST).is_file():
        return finished(folder, settings)
    (Path(output_dir) / MANIFEST).unlink(
        missing_ok=True
    )  # of a merger: it cannot vouch for a part still to be made
    writer = Writer.begin(folder, settings, tokenizer)
    documents = read_indexed_sources(
        read,
        text_field=text_field,
        progress=lambda f: progress(0.99 * f),
        report=note,
        may_be_empty=by_file and part[1] > 1,
    )
    cutter = Cutter(length=length, held_out=held_out, seed=seed)
    try:
        own = own_blocks(blocks(documents, by_file=by_file), settings, done=writer.state.blocks)
        for number, cuttings in cut_in_order(
            own, cutter, tokenizer, workers or worthwhile_workers(read.values())
        ):
            writer.add(cuttings, number)
        manifest = writer.finish(warnings, report)
    except OSError as error:
        raise OSError(
            f"{error}; once that is put right, the same command goes on after the last complete "
            "shard"
        ) from error
    progress(1.0)
    return manifest


def parse_part(text: str | None) -> tuple[int, int]:
    """`i/N` as numbers; where nothing is said, this task's place in a Slurm array, or the whole."""
    if text is None:
        index, first, step, count = (
            whole_variable(f"SLURM_ARRAY_TASK_{word}") for word in ("ID", "MIN", "STEP", "COUNT")
        )
        return (
            ((index - (first or 0)) // (step or 1) + 1, count)
            if index is not None and count
            else (1, 1)
        )
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise UserError(f"--part {text}: write it as i/N, for example 1/8")
    return int(part), int(parts)


def whole_variable(name: str) -> int | None:
    text = os.environ.get(name)
    if text and not text.isdecimal():
        raise UserError(
            f"{name}={text!r} in the environment is no whole number; unset it, or say --part i/N"
        )
    return int(text) if text else None


# ---- before the work -----------------------------------------------------------------------------


def check_settings(
    *, length: int, held_out: float, part: tuple[int, int], workers: int | None, shard_bytes: int
) -> None:
    if not 8 <= length < 2**16:
        raise UserError(
            f"length={length} must be between 8 and {2**16 - 1} tokens; 128 and 512 are usual"
        )
    if not 0 <= held_out < 1:
        raise UserError(
            f"held_out={held_out} is a share of the documents; it must be at least 0 and below 1"
        )
    if not 1 <= part[0] <= part[1]:
        raise UserError(
            f"part {part[0]}/{part[1]} does not exist; parts are counted from 1, as in "
            f"1/{max(1, part[1])}"
        )
    if workers is not None and workers < 1:
        raise UserError(f"workers={workers} must be at least 1")
    if shard_bytes < 1:
        raise UserError(f"shard_bytes={shard_bytes} must be at least 1")


def finished(folder: Path, settings: ShardSettings) -> Manifest:
    manifest = Manifest.read(folder / MANIFEST)
    check_same_settings(folder, settings, dataclasses.asdict(manifest.settings))
    return manifest


def own_folder(output_dir: Path, *, part: tuple[int, int], overwrite: bool) -> Path:
    """Where this part goes: nothing that belongs to another division of the work lies there."""
    number, total = part
    others = [
        p.name
        for p in output_dir.glob("part-*-of-*")
        if total == 1 or not p.name.endswith(f"-of-{total:05}")
    ]
    if others and not overwrite:
        raise UserError(
            f"{output_dir}: holds {others[0]}, of another division of the work; choose another "
            "folder, or "
            "remove those parts"
        )
    if total == 1:
        return output_dir
    if (output_dir / MANIFEST).is_file() and not Manifest.read(output_dir / MANIFEST).is_merged:
        raise UserError(
            f"{output_dir}: holds the whole corpus already, not parts of it; choose another folder"
        )
    return output_dir / part_name(number, total)


# ---- the work ------------------------------------------------------------------------------------


def own_files(sources: Sequence[Source], part: tuple[int, int]) -> dict[int, Source]:
    """The files that a part reads, by their place in the corpus: the largest first, each to whom
    has least to read.
    """
    number, total = part
    if len(sources) < total:
        raise UserError(
            f"by file, {len(sources)} files are too few for {total} parts; choose at most "
            f"{len(sources)} "
            "parts, or leave --by-file out: then every part reads the whole corpus and cuts its "
            "share"
        )
    loads = [
        (0, each) for each in range(1, total + 1)
    ]  # bytes and part; a heap, as equal loads are
    own = {}
    for place in sorted(range(len(sources)), key=lambda place: -sources[place].size):
        load, reader = heapq.heappop(loads)
        heapq.heappush(loads, (load + max(1, sources[place].size), reader))
        if reader == number:
            own[place] = sources[place]
    return dict(sorted(own.items()))


def blocks(
    documents: Iterable[tuple[int, Document]], *, by_file: bool = False
) -> Iterator[list[Passage]]:
    """Documents in portions whose borders depend on the text alone, numbered through; or of one
    file each, and numbered within it.
    """
    block: list[Passage] = []
    size = file = ordinal = 0
    for place, document in documents:
        if by_file and place != file:
            if block:
                yield block
            block, size, file, ordinal = [], 0, place, 0
        block.append(Passage(file * FILE_DOCUMENTS + ordinal, document.lines))
        ordinal += 1
        size += sum(map(len, document.lines))
        if size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def own_blocks(
    every: Iterable[list[Passage]], settings: ShardSettings, *, done: int
) -> Iterator[tuple[int, list[Passage]]]:
    """Blocks of the whole corpus are dealt to the parts like cards; those before `done` are on disk
    already.
    """
    for number, block in enumerate(every):
        if number >= done and (settings.by_file or number % settings.parts == settings.part - 1):
            yield number, block


def worthwhile_workers(sources: Collection[Source]) -> int:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    size = sum(source.size for source in sources)
    is_endless = any(source.kind == "hub" for source in sources)
    return cores if is_endless or size >= LARGE_CORPUS_BYTES else 1


def cut_in_order(
    own: Iterable[tuple[int, list[Passage]]], cutter: Cutter, wordpiece: WordPiece, workers: int
) -> Iterator[tuple[int, Cuttings]]:
    if workers == 1:
        for number, block in own:
            yield number, cutter.rows(block, wordpiece)
        return
    pending: deque[tuple[int, Future[Cuttings]]] = deque()
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(cutter, wordpiece.definition, wordpiece.config),
    )
    try:
        for number, block in own:
            pending.append((number, pool.submit(cut_block, block)))
            if len(pending) > 2 * workers:  # bounds the memory, whatever the size of the corpus
                number, future = pending.popleft()
                yield number, future.result()
        for number, future in pending:
            yield number, future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process died, most likely for want of memory; the same command with fewer "
            "--workers goes on after the last complete shard"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


worker: tuple[Cutter, WordPiece]  # of this process, set once by start_worker


def start_worker(cutter: Cutter, definition: str, config: dict[str, Any]) -> None:
    global worker
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # one core each: there are as many workers as cores
    )
    worker = cutter, WordPiece(definition, config=config)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """A worker waiting for its next block would outlive a run that was killed."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def cut_block(block: list[Passage]) -> Cuttings:
    cutter, wordpiece = worker
    return cutter.rows(block, wordpiece)
