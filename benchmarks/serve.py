"""Measure `electra serve`: requests a second and latency, with batches and one request at a time.

python -m benchmarks.serve [--clients 32] [--requests 320] [--output benchmarks/results/serve.json]

The model is a classifier of ELECTRA-Small's shape with random weights. Clients and server share the
machine. Each client sends its next text when its last one is answered.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import httpx
import torch

from benchmarks.harness import Result, build_parser, check_counts, run_main, write_result
from electra.data.normalization import Normalization
from electra.data.vocabulary import build_wordpiece
from electra.data.wordpiece import SPECIAL_TOKENS
from electra.model.families import build_encoder
from electra.model.shape import EncoderShape
from electra.tasks.classify import Classify
from electra.tasks.models import save_tuned
from electra.tasks.task import Network

VOCABULARY, WORDS = 30_522, 24  # of the model, of a text
START = """
import sys
import electra.web.batching as batching
from electra.__main__ import main
batching.BATCH_ITEMS = int(sys.argv[1])
sys.exit(main(["serve", sys.argv[2], "--port", "0", "--rate-limit", "0"]))
"""


def write_model(folder: Path) -> Path:
    """Write a classifier of ELECTRA-Small's shape."""
    torch.manual_seed(0)
    words = [f"w{number}" for number in range(VOCABULARY - len(SPECIAL_TOKENS))]
    entries = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = build_wordpiece(Normalization().build_tokenizer(), entries)
    task = Classify(name="classify", labels=("a", "b"), regression=False, metrics=("accuracy",))
    encoder = build_encoder(EncoderShape(), vocabulary=tokenizer.size)
    network = Network(encoder, task.head(encoder.shape.width, dropout=0.0))
    save_tuned(network, task, tokenizer, folder, length=128, extra={})
    return folder


@contextmanager
def running(model: Path, *, batch_items: int) -> Iterator[str]:
    """Run a server and yield its address."""
    argv = [sys.executable, "-c", START, str(batch_items), str(model)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            matches = (re.search(r"open (http://\S+:\d+)", line) for line in lines)
            match = next(filter(None, matches))
            assert match is not None
            yield match[1]
        finally:
            process.terminate()


async def measure(address: str, *, clients: int, requests: int) -> Result:
    """Send requests from so many clients; return their rate and the percentiles of latency."""
    latencies: list[float] = []
    numbers = iter(range(requests))

    async def send_all(client: httpx.AsyncClient) -> None:
        for number in numbers:
            text = " ".join(f"w{(number * 31 + place * 7) % 30_000}" for place in range(WORDS))
            start = time.perf_counter()
            answer = await client.post("/api/models/0/predict", json={"inputs": [text]})
            latencies.append(time.perf_counter() - start)
            answer.raise_for_status()

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        start = time.perf_counter()
        await asyncio.gather(*(send_all(client) for _ in range(clients)))
        seconds = time.perf_counter() - start
    return {
        "requests_per_second": round(requests / seconds, 1),
        "p50_ms": round(1000 * median(latencies), 1),
        "p95_ms": round(1000 * quantiles(latencies, n=20)[-1], 1),
    }


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--output")
    options = parser.parse_args()
    check_counts(parser, options, "clients", "requests")
    results: Result = {"clients": options.clients, "requests": options.requests, "words": WORDS}
    with TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model")
        for name, items in (("one_at_a_time", 1), ("batched", 64)):
            with running(model, batch_items=items) as address:
                asyncio.run(measure(address, clients=2, requests=8))  # warm-up
                sizes = {"alone": 1, "together": options.clients}
                results[name] = {}
                for key, clients in sizes.items():
                    requests = min(options.requests, 40 * clients)
                    measured = asyncio.run(measure(address, clients=clients, requests=requests))
                    results[name][key] = measured
                    print(f"{name:<14} {clients:>3} clients: {measured}")
    if options.output:
        write_result(options.output, results)


if __name__ == "__main__":
    run_main(main)
