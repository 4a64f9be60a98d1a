"""Cut a corpus into shards: the same bytes for the same text, however many workers, parts or
interruptions it takes.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import UserError
from electra.data.corpus import (
    Document,
    Progress,
    ignore_progress,
    no_text_error,
    read_indexed_sources,
)
from electra.data.corpus_check import check_at_start
from electra.data.examples import ExampleBuilder, Examples, NumberedDocument
from electra.data.manifest import (
    MANIFEST,
    PROGRESS,
    TOKENIZER,
    Manifest,
    ShardSettings,
)
from electra.data.options import ShardOptions, describe_changes
from electra.data.parts import part_folder, select_sources
from electra.data.shard_writer import (
    ShardWriter,
    check_same_settings,
    read_progress,
    remove_shards,
)
from electra.data.sources import Report, Source, check_outside_corpus, resolve, warn
from electra.data.wordpiece import WordPiece
from electra.file_lock import folder_lock

SHARD_BYTES = 64 * 1024 * 1024
# What a worker takes at a time; large enough to hide the cost of sending it.
BLOCK_CHARACTERS = 1_000_000
# Below this one process is quicker than starting several: the tokenizer's own threads use every
# core, and only the cutting, an eighth of the work, is left to one.
LARGE_CORPUS_BYTES = 32 * 1024 * 1024
FILE_DOCUMENTS = 2**40  # more than any file holds: documents numbered by file never share a number
OF_ONE_PART = ("part", "inputs")  # settings in which the parts of the same work differ
DEFAULTS = ShardOptions()

Block = list[NumberedDocument]


def shard(
    corpus: Sequence[str | Path],
    *,
    tokenizer: WordPiece,
    output_dir: str | Path,
    options: ShardOptions = DEFAULTS,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> Manifest:
    """Cut a corpus into shards in `output_dir` and return their manifest.

    Finished shards are not cut again, and an interrupted call is continued.

        shard(["texts/"], tokenizer=tokenizer, output_dir="rows", options=ShardOptions(length=512))
    """
    output_dir, warnings = Path(output_dir), WarningLog(report)
    check_outside_corpus(output_dir, corpus)
    sources = resolve(corpus, report=warnings.add)
    own_sources = select_sources(sources, options)
    folder = part_folder(output_dir, options)
    if options.overwrite or not (folder / MANIFEST).is_file():
        check_sources(own_sources, options)
    settings = shard_settings(options, shard_bytes, tokenizer, sources, own_sources)
    if not options.overwrite and (folder / MANIFEST).is_file():
        return read_finished(folder, settings)
    check_other_parts(folder, settings, overwrite=options.overwrite)
    atomic.check_links(folder / TOKENIZER, inside=output_dir)
    with folder_lock(folder):
        remove_stale(folder, output_dir, overwrite=options.overwrite)
        if (folder / MANIFEST).is_file():  # of the process that held the lock until now
            return read_finished(folder, settings)
        return write_shards(
            ShardWriter.open(folder, settings, tokenizer),
            own_sources,
            workers=options.workers or default_workers(own_sources.values()),
            progress=progress,
            warnings=warnings,
        )


class WarningLog:
    """Warnings that are reported at once and stored in the manifest."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.messages: list[str] = []

    def add(self, message: str) -> None:
        self.messages.append(message)
        self.report(message)


def check_sources(own_sources: Mapping[int, Source], options: ShardOptions) -> None:
    """Raise UserError where the beginnings of this part's files tell what stops its cutting."""
    check_at_start(
        list(own_sources.values()),
        text_field=options.text_field,
        document=options.document,
        may_be_empty=options.reads_some_files,
    )


# ---- settings and folders ------------------------------------------------------------------------


def shard_settings(
    options: ShardOptions,
    shard_bytes: int,
    tokenizer: WordPiece,
    sources: Sequence[Source],
    own_sources: Mapping[int, Source],
) -> ShardSettings:
    """Return the settings that decide the bytes of the shards, with a fingerprint of the text."""
    if shard_bytes < 1:
        raise UserError(f"shard_bytes={shard_bytes} must be at least 1")
    inputs = [source.identity() for source in sources]
    for index, source in own_sources.items():
        inputs[index] = source.fingerprint()
    part, parts = options.part_numbers
    return ShardSettings(
        length=options.length,
        seed=options.seed,
        held_out=options.held_out,
        part=part,
        parts=parts,
        by_file=options.by_file,
        shard_bytes=shard_bytes,
        text_field=options.text_field,
        document=options.document,
        tokenizer=tokenizer.fingerprint,
        inputs=inputs,
    )


def read_finished(folder: Path, settings: ShardSettings) -> Manifest:
    """Return the manifest of finished shards; raise UserError if other settings made them."""
    manifest = Manifest.read(folder / MANIFEST)
    check_same_settings(folder, settings, dataclasses.asdict(manifest.settings))
    if (folder / PROGRESS).is_file():  # killed between the manifest and its removal
        (folder / PROGRESS).unlink()
    return manifest


def check_other_parts(folder: Path, settings: ShardSettings, *, overwrite: bool) -> None:
    """Raise UserError where a finished part of the same work was cut with other settings, with
    which `merge` would not join this one.
    """
    for other in sorted(folder.parent.glob(f"part-*-of-{settings.parts:05}")):
        if overwrite or settings.parts == 1 or other == folder or not (other / MANIFEST).is_file():
            continue
        try:
            saved = dataclasses.asdict(Manifest.read(other / MANIFEST).settings)
        except UserError:  # `merge` names damaged parts
            continue
        current = dataclasses.asdict(settings) | {name: saved[name] for name in OF_ONE_PART}
        if changes := describe_changes(current, saved):
            raise UserError(
                f"{other}: was cut with other settings: {changes}; cut every part with the same, "
                "choose another folder, or start over with --overwrite for every part"
            )
        return  # the others agree with the first


def check_earlier(
    folder: Path, sources: Sequence[Source], tokenizer: WordPiece, options: ShardOptions
) -> None:
    """Raise UserError where a folder holds shards, or some of them, that `shard` would refuse."""
    if (folder / MANIFEST).is_file():
        saved = dataclasses.asdict(Manifest.read(folder / MANIFEST).settings)
    elif (folder / PROGRESS).is_file():
        _, saved = read_progress(folder / PROGRESS)
    else:
        return
    own_sources = select_sources(sources, options)
    settings = shard_settings(options, SHARD_BYTES, tokenizer, sources, own_sources)
    check_same_settings(folder, settings, saved)


def remove_stale(folder: Path, output_dir: Path, *, overwrite: bool) -> None:
    """Remove earlier shards if asked to, and a merge, which does not cover a part still to cut."""
    if overwrite:
        remove_shards(folder)
    if folder != output_dir:
        (output_dir / MANIFEST).unlink(missing_ok=True)


# ---- the work of one part ------------------------------------------------------------------------


def write_shards(
    writer: ShardWriter,
    sources: Mapping[int, Source],
    *,
    workers: int,
    progress: Progress,
    warnings: WarningLog,
) -> Manifest:
    """Read, cut and write the documents of one part, after those that are on disk already."""
    settings = writer.settings
    documents = read_indexed_sources(
        sources,
        text_field=settings.text_field,
        document=settings.document,
        progress=lambda fraction: progress(0.99 * fraction),
        report=warnings.add,
        may_be_empty=settings.reads_some_files,
    )
    blocks = group_documents(documents, by_file=settings.by_file)
    own_blocks = select_blocks(blocks, settings, done=writer.state.blocks)
    builder = ExampleBuilder(length=settings.length, held_out=settings.held_out, seed=settings.seed)
    try:
        for number, examples in build_in_order(own_blocks, builder, writer.tokenizer, workers):
            writer.add(examples, number)
        if not (writer.holds_rows or settings.reads_some_files) and writer.state.documents:
            remove_shards(writer.folder)
            raise no_text_error(sources.values())
        manifest = writer.finish(warnings.messages, warnings.report)
    except OSError as error:
        raise OSError(
            f"{error}; once that is fixed, the same command continues after the last complete shard"
        ) from error
    progress(1.0)
    return manifest


def group_documents(
    documents: Iterable[tuple[int, Document]], *, by_file: bool = False
) -> Iterator[Block]:
    """Group documents into blocks whose borders depend on the text alone. Number the documents
    through the corpus; or, with `by_file`, within their file, and let no block span two files.
    """
    block: Block = []
    size = file = ordinal = 0
    for source_index, document in documents:
        if by_file and source_index != file:
            if block:
                yield block
            block, size, file, ordinal = [], 0, source_index, 0
        block.append(NumberedDocument(file * FILE_DOCUMENTS + ordinal, document.lines))
        ordinal += 1
        size += sum(map(len, document.lines))
        if size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def select_blocks(
    blocks: Iterable[Block], settings: ShardSettings, *, done: int
) -> Iterator[tuple[int, Block]]:
    """Yield the blocks of this part with their numbers, without the first `done`. Numbered through
    the corpus, blocks go to the parts in turn.
    """
    for number, block in enumerate(blocks):
        is_own = settings.by_file or number % settings.parts == settings.part - 1
        if number >= done and is_own:
            yield number, block


# ---- worker processes ----------------------------------------------------------------------------


def default_workers(sources: Collection[Source]) -> int:
    """Return the number of worker processes: all cores for a large corpus, otherwise one."""
    size = sum(source.size for source in sources)
    is_streamed = any(source.kind == "hub" for source in sources)
    if not is_streamed and size < LARGE_CORPUS_BYTES:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_in_order(
    blocks: Iterable[tuple[int, Block]], builder: ExampleBuilder, tokenizer: WordPiece, workers: int
) -> Iterator[tuple[int, Examples]]:
    """Build the examples of every block, in worker processes where there are several, and yield
    them in the order of the blocks.
    """
    if workers == 1:
        for number, block in blocks:
            yield number, builder.build(block, tokenizer)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(builder, tokenizer.definition, tokenizer.config),
    )
    try:
        yield from submit_in_order(pool, blocks, max_pending=2 * workers)
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process died, most likely for want of memory; the same command with fewer "
            "--workers continues after the last complete shard"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def submit_in_order(
    pool: ProcessPoolExecutor, blocks: Iterable[tuple[int, Block]], *, max_pending: int
) -> Iterator[tuple[int, Examples]]:
    """Yield what the workers build; `max_pending` bounds the memory for any size of corpus."""
    pending: deque[tuple[int, Future[Examples]]] = deque()
    for number, block in blocks:
        pending.append((number, pool.submit(build_block, block)))
        if len(pending) > max_pending:
            number, future = pending.popleft()
            yield number, future.result()
    for number, future in pending:
        yield number, future.result()


worker: tuple[ExampleBuilder, WordPiece]  # of this process, set once by start_worker


def start_worker(builder: ExampleBuilder, definition: str, config: dict[str, Any]) -> None:
    """Load the tokenizer in a worker process."""
    global worker
    # One core each: there are as many workers as cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    worker = builder, WordPiece(definition, config=config)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """End this worker with its parent, which it would outlive while waiting for its next block."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def build_block(block: Block) -> Examples:
    """Build the examples of one block in a worker process."""
    builder, tokenizer = worker
    return builder.build(block, tokenizer)
