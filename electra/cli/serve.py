"""The command that serves models: a page for the browser and JSON endpoints."""

from __future__ import annotations

from importlib.util import find_spec

from electra.cli import DONE, Integer, app
from electra.config import UserError


@app.command
def serve(
    *models: str, port: Integer = 8000, host: str = "127.0.0.1", rate_limit: Integer = 100
) -> int:
    """Serve models to a browser and as JSON, by default only on this machine.

    Parameters
    ----------
    models
        Folders, or names of models that come with the package: pre-training runs (also while they
        train), networks of one, fine-tuned models of ours or transformers'. Two are shown side by
        side.
    port
        Port to listen on; 0 takes a free one.
    host
        Address to listen on. All but loopback addresses need a token, which is printed.
    rate_limit
        Requests a second that each client may send; 0: no limit.
    """
    if not models:
        raise UserError("name at least one model folder or run folder: electra serve RUN")
    if rate_limit < 0:
        raise UserError(f"--rate-limit {rate_limit}: must not be negative; 0 means no limit")
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise UserError("electra serve needs: pip install starlette uvicorn")
    from electra.web.server import serve as run

    run(models, host=host, port=port, rate=rate_limit)
    return DONE
