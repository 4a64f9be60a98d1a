"""Who may ask: the checks of Host, Origin, token and rate that come before every endpoint.

A page of a foreign site must reach neither a server on loopback (its name may resolve to 127.0.0.1,
"DNS rebinding") nor, with the cookies or addresses of a browser, one on the network.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electra.web.requests import RequestError

MAX_CLIENTS = 10_000  # whose rates are remembered
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN_PATHS = ("/", "/api/health")  # that need no token: the page asks for it itself
PAGE_PATH = "/page/"


def error_response(error: RequestError) -> JSONResponse:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)


class RateLimit:
    """A token bucket for each client: so many requests at once, and so many a second."""

    def __init__(self, per_second: float, *, burst_seconds: float = 4.0) -> None:
        self.per_second = per_second
        self.burst = per_second * burst_seconds
        self.clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, client: str) -> None:
        """Count a request; raise RequestError where the client has sent too many."""
        if not self.per_second:
            return
        now = time.monotonic()
        left, before = self.clients.pop(client, (self.burst, now))
        left = min(self.burst, left + (now - before) * self.per_second)
        allowed = left >= 1
        self.clients[client] = (left - allowed, now)
        if len(self.clients) > MAX_CLIENTS:
            self.clients.popitem(last=False)
        if not allowed:
            raise RequestError(
                429,
                f"More than {self.per_second:g} requests a second; wait a second, and put several "
                "inputs into one request.",
                retry_after=max(1, math.ceil((1 - left) / self.per_second)),
            )


class Guard:
    """Refuses what may not ask, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, *, token: str | None, rate_limit: RateLimit) -> None:
        self.app, self.token, self.rate_limit = app, token, rate_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        is_read = scope["method"] in ("GET", "HEAD")

        async def receive_body() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if not is_read:  # a body without an end would otherwise be received for ever
                    headers["Connection"] = "close"
            await send(message)

        answer = self.app
        try:
            self.check(scope)
        except RequestError as error:
            answer = error_response(error)
        await answer(scope, receive_body, send_with_headers)

    def check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if self.token is None:
            check_local_host(host)
        if scope["method"] not in ("GET", "HEAD"):
            check_origin(headers.get("origin"), host)
        if path.startswith("/api/"):
            client = scope.get("client") or ("", 0)
            self.rate_limit.check(str(client[0]))
        if self.token is not None and not path.startswith(PAGE_PATH) and path not in OPEN_PATHS:
            check_token(headers.get("authorization", ""), self.token)


def check_local_host(host: str) -> None:
    """Refuse a name that is not this machine's own. Without a token nothing else protects it."""
    if not is_loopback(host_name(host)):
        raise RequestError(
            403,
            "This server answers on this machine alone; open it as http://localhost with its port.",
        )


def host_name(host: str) -> str:
    """Return the name of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Return whether a name or an address means this machine."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_origin(origin: str | None, host: str) -> None:
    """Refuse what a page of another site sends: a browser always names the page's origin."""
    if origin is None:
        return
    try:
        parts = urlsplit(origin)
        is_own = parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
    except ValueError:
        is_own = False
    if not is_own:
        raise RequestError(
            403, "Another site sent this request; open the page of this server and send it there."
        )


def check_token(authorization: str, token: str) -> None:
    scheme, _, given = authorization.partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
    if scheme.lower() != "bearer" or not is_right:
        raise RequestError(
            401,
            "This server needs the token that it printed when it started; open the address that "
            "it printed, or send the header Authorization: Bearer TOKEN.",
        )
