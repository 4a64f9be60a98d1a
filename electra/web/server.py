"""The process of `electra serve`: its socket, its signals, and a clean stop."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from electra.config import UserError
from electra.console import ignore, redirect_warnings, to_stderr
from electra.web.guard import is_loopback
from electra.web.models import Served, load_models
from electra.web.requests import Limits
from electra.web.routes import build_app

TOKEN = "ELECTRA_SERVE_TOKEN"  # in the environment: the token, for a server that starts again
MIN_TOKEN = 16  # characters
MAX_CONNECTIONS = 1_000
MORE_SECONDS = 5.0  # to send the last answers, after the queues were emptied


def serve(given: Sequence[str], *, host: str, port: int, rate: int) -> None:
    """Serve models until a signal stops the process."""
    token = choose_token(host)
    limits = Limits()
    with bind(host, port) as bound:  # before models are loaded, which takes longer
        models = load_models(given, limits)
        app = build_app(models, limits=limits, token=token, rate=rate)
        for number, model in enumerate(models):
            to_stderr(f"model {number}, {model.name}: {model.summary}")
        to_stderr(f"open {address(bound, host, token)} (Ctrl-C stops)")
        with redirect_warnings(ignore):
            run(app, models, bound, limits)
    to_stderr("stopped")


def choose_token(host: str) -> str | None:
    """Return the token that clients must send; loopback alone needs none."""
    given = os.environ.get(TOKEN, "")
    if given and (len(given) < MIN_TOKEN or not given.isascii() or not given.isprintable()):
        raise UserError(
            f"{TOKEN} must be at least {MIN_TOKEN} printable ASCII characters; `openssl rand -hex "
            "24` makes one"
        )
    if given:
        return given
    if is_loopback(host):
        return None
    return secrets.token_urlsafe(24)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise UserError where none can be bound."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: must be from 0 to 65535; 0 takes a free one")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"--host {host}: no such address; use 127.0.0.1 for this machine alone, or 0.0.0.0"
        ) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen(MAX_CONNECTIONS)
    except OSError as error:
        bound.close()
        raise UserError(f"--port {port}: {bind_problem(error)}") from None
    return bound


def bind_problem(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; choose another --port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return "needs the rights of root; choose a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "--host is not an address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"cannot be opened: {error.strerror}; choose another"


def address(bound: socket.socket, host: str, token: str | None) -> str:
    """Return the address to open in a browser."""
    port = bound.getsockname()[1]
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    if ":" in host:
        host = f"[{host}]"
    query = ""
    if token is not None:
        query = f"?token={token}"
    return f"http://{host}:{port}/{query}"


class Server(uvicorn.Server):
    """A server that finishes its queues when it is stopped, and then ends without an error."""

    def __init__(self, config: uvicorn.Config, models: Sequence[Served], limits: Limits) -> None:
        super().__init__(config)
        self.models, self.limits = models, limits

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM. Uvicorn's own would raise them again at the end."""
        before = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for model in self.models:
            loop.call_later(self.limits.stop_seconds, model.worker.abandon)
        await super().shutdown(sockets)
        for model in self.models:
            model.worker.abandon()


def run(app: ASGIApp, models: Sequence[Served], bound: socket.socket, limits: Limits) -> None:
    """Run the server until it is stopped."""
    for model in models:
        model.worker.thread.start()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=int(limits.stop_seconds + MORE_SECONDS),
    )
    Server(config, models, limits).run(sockets=[bound])
