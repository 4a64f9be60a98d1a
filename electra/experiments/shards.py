"""The shards that the runs of a sweep read."""

from __future__ import annotations

from typing import Any

from electra import atomic
from electra.config import UserError
from electra.console import ignore, to_stderr
from electra.data.prepare import DataConfig
from electra.data.shards import Shards
from electra.experiments.budget import plan_stages
from electra.experiments.sweep import Sweep
from electra.file_lock import wait_for_lock


def open_shards(sweep: Sweep, *, quiet: bool = False) -> dict[int, Shards]:
    """Return shards for every length of row that the arms need, by that length.

    Those of a corpus are cut where they are missing.
    """
    configs: dict[int, DataConfig] = {}
    for seed, trial, arm in sweep.runs():
        for stage in plan_stages(trial, arm, sweep.scale, budget=sweep.budget, seed=seed):
            configs[stage.recipe.data.length] = stage.recipe.data
    if sweep.data is None:
        return {length: cut_shards(sweep, data, quiet=quiet) for length, data in configs.items()}
    shards = Shards.open(sweep.data)
    for length in configs:
        if length != shards.length:
            raise UserError(
                f"{sweep.data} holds rows of {shards.length} tokens, but these arms need rows of "
                f"{length} at scale {sweep.scale.name}; cut those with `electra shard --length "
                f"{length}`, or give text with --corpus"
            )
    return {shards.length: shards}


def cut_shards(sweep: Sweep, data: DataConfig, *, quiet: bool) -> Shards:
    """Cut the sweep's corpus into shards, unless that is done already."""
    from electra.console import progress_bars
    from electra.data.prepare import prepare_data

    assert sweep.corpus is not None
    folder = sweep.output_dir / "data" / f"{data.vocab_size}x{data.length}"
    atomic.check_links(folder, inside=sweep.output_dir)
    say = to_stderr
    if quiet:
        say = ignore
    with wait_for_lock(folder, say=say), progress_bars(quiet=quiet) as (stage, report):
        return Shards.open(prepare_data(sweep.corpus, folder, data, stage=stage, report=report))


def check_size(shards: Shards, batch_size: int) -> None:
    """Raise where the shards are too small for a batch, before every arm fails of it."""
    rows, held_out_rows = shards.manifest.rows, shards.manifest.held_out_rows
    if rows < batch_size:
        raise UserError(
            f"{shards.folder} holds {rows} rows for training, fewer than one batch of "
            f"{batch_size}; add text, or choose a smaller --scale"
        )
    if not held_out_rows:
        raise UserError(
            f"{shards.folder} has no held-out rows to measure progress on; separate documents by "
            "blank lines, or cut it with a larger `electra shard --held-out` share"
        )


def describe_corpus(shards: Shards) -> dict[str, Any]:
    """Return the facts about a corpus that plan files and reports hold."""
    manifest = shards.manifest
    return {
        "fingerprint": shards.fingerprint,
        "tokens": manifest.tokens,
        "rows": manifest.rows,
        "held_out_rows": manifest.held_out_rows,
        "documents": manifest.documents,
        "vocabulary": manifest.vocab_size,
        "length": manifest.length,
    }
