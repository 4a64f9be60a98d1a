"""The rendezvous of the processes of a run, and the check that they run the same thing."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from electra import __version__
from electra.config import UserError
from electra.engine.collectives import all_gather_json
from electra.provenance import commit
from electra.settings import differing_keys, fingerprint

PREFIX_KEY = "electra/prefix"
MAX_DIFFERENCES = 8  # in an error message


def process_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def software_versions() -> dict[str, Any]:
    """Return what must be equal on all ranks before anything else is worth comparing."""
    return {"electra": __version__, "commit": commit(), "torch": torch.__version__}


def assert_same_on_all_ranks(values: Mapping[str, Any]) -> None:
    """Raise UserError on every rank where one has another value than rank 0; keys are dotted."""
    if not dist.is_initialized():
        return
    (main_name, main_values), *others = all_gather_json([process_name(), dict(values)])
    lines = []
    for rank, (name, rank_values) in enumerate(others, start=1):
        for key in differing_keys(main_values, rank_values):
            if key == "commit" and None in (main_values.get(key), rank_values.get(key)):
                continue  # git did not tell it in time
            lines.append(
                f"\n  {key}: {main_values.get(key)!r} in rank 0 ({main_name}), "
                f"{rank_values.get(key)!r} in rank {rank} ({name})"
            )
    if not lines:
        return
    shown = "".join(lines[:MAX_DIFFERENCES])
    if len(lines) > MAX_DIFFERENCES:
        shown += f"\n  and {len(lines) - MAX_DIFFERENCES} more"
    raise UserError(
        f"the processes of this run are not alike:{shown}\nStart all of them with the same code "
        "and command, on folders that all of them see."
    )


def fresh_rendezvous(store: Store, rank: int, size: int) -> Store:
    """Return a prefix of torchrun's store that no earlier process has used.

    Torchrun keeps its store when it restarts processes: the addresses of dead ones are still there,
    and a process that reads one before its successor has written waits for it in vain. Each node
    counts restarts for itself, so they give no common name. Therefore each process brings a token,
    and the prefix is named after the tokens of all living ones: rank 0 publishes the name until
    all processes have found their token in it.
    """
    token = uuid.uuid4().hex
    store.set(f"electra/token/{rank}", token)
    while True:
        if rank == 0:
            prefix = publish_prefix(store, size)
            if all(store.check([f"{prefix}/{other}"]) for other in range(1, size)):
                store.set(f"{prefix}/all", "")
                return PrefixStore(prefix, store)
        elif store.check([PREFIX_KEY]):
            prefix, tokens = json.loads(store.get(PREFIX_KEY))
            if token in tokens:
                store.set(f"{prefix}/{rank}", "")
                if store.check([f"{prefix}/all"]):
                    return PrefixStore(prefix, store)
        time.sleep(0.02)


def publish_prefix(store: Store, size: int) -> str:
    """Publish the prefix that the present tokens of all ranks give, and return it."""
    tokens = [store.get(f"electra/token/{rank}").decode() for rank in range(size)]
    prefix = f"electra/{fingerprint(tokens)}"
    store.set(PREFIX_KEY, json.dumps([prefix, tokens]))
    return prefix
