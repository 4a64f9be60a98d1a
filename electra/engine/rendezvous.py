"""How the processes of a run find each other, and whether they run the same thing."""

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
from electra.provenance import commit
from electra.settings import fingerprint

MOST_LINES = 8


def here() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def code() -> dict[str, Any]:
    """What must be alike before anything else is worth comparing."""
    return {"electra": __version__, "commit": commit(), "torch": torch.__version__}


def assert_same_on_all_ranks(facts: Mapping[str, Any]) -> None:
    """Refuse, on every process alike, to go on where one has another value than the leading one. A
    commit that git did not tell in time is none.
    """
    if not dist.is_initialized():
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (here(), dict(facts)))
    (leader, wanted), *others = everyone
    lines = [
        f"\n  {key}: {wanted.get(key)!r} in rank 0 ({leader}), {found.get(key)!r} in rank {rank} "
        f"({place})"
        for rank, (place, found) in enumerate(others, start=1)
        for key in sorted(wanted.keys() | found.keys())
        if wanted.get(key) != found.get(key)
        and not (key == "commit" and None in (wanted.get(key), found.get(key)))
    ]
    if lines:
        more = [f"\n  and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
        raise UserError(
            f"the processes of this run are not alike:{''.join(lines[:MOST_LINES] + more)}\nStart "
            "all of "
            f"them with the same code and command, on folders that all of them see."
        )


def fresh_rendezvous(store: Store, rank: int, size: int) -> Store:
    """A part of torchrun's store that no process was in before.

    Torchrun keeps its store when it restarts processes: the addresses of dead ones are still there,
    and who reads one before its successor has written waits for it in vain. Restarts are counted by
    each node for itself, so they give no common name. Therefore everybody brings a token of its
    own, and the place is named after those of all the living: the leading process names it until
    all have found their token in the name.
    """
    mine = uuid.uuid4().hex
    store.set(f"electra/token/{rank}", mine)
    while True:
        if rank == 0:
            tokens = [store.get(f"electra/token/{each}").decode() for each in range(size)]
            name = f"electra/{fingerprint(tokens)}"
            store.set("electra/meeting", json.dumps([name, tokens]))
            if all(store.check([f"{name}/{each}"]) for each in range(1, size)):
                store.set(f"{name}/all", "")
                return PrefixStore(name, store)
        elif store.check(["electra/meeting"]):
            name, tokens = json.loads(store.get("electra/meeting"))
            if mine in tokens:
                store.set(f"{name}/{rank}", "")
                if store.check([f"{name}/all"]):
                    return PrefixStore(name, store)
        time.sleep(0.02)
