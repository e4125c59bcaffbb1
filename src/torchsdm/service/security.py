"""Who may ask, and how much: decided from the head of a request, before its body is read.

Every request passes here, whatever its path. What is refused is told in the same shape as everywhere, ``{"error":
...}``, and every answer has the headers that keep a browser from doing more with it than was meant.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from starlette.datastructures import Headers
from starlette.responses import Response

from torchsdm.service.failures import refusal
from torchsdm.service.settings import MEGABYTE, ServiceSettings

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Requests that anybody may make, wherever the service listens: whoever starts containers has no token.
_HEALTH = re.compile(r"/v1/health(/live|/ready)?|/v2/health/(live|ready)")
#: The page itself, which has no secrets: a browser that opens it cannot send a token before the page asks for one.
_PAGE = re.compile(r"/(page/.*)?")
_INFERENCE = re.compile(r"/v2/models/[^/]+/infer")
#: Requests with a body that change nothing; every other one is a write.
_QUESTIONS = re.compile(rf"/v1/(decide|explain|preview)|{_INFERENCE.pattern}")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_BODIES_AT_ONCE = 4  # as many bodies of the largest size are held in memory at once
_LINGER_SECONDS = 2.0  # for a client to notice that its body is not wanted

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class SecurityHeaders:
    """Adds the headers to every answer that does not have its own."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                message["headers"] = given + [pair for pair in _RAW_HEADERS if pair[0] not in names]
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class Gate:
    """Refuses by the head: strange hosts and origins, missing tokens, bodies that are not JSON.

    Who asks for ranges of bytes is given the whole, as HTTP allows: answers are small.
    """

    def __init__(self, app: App, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings
        self._hosts = {*_LOCAL_NAMES, settings.host, *settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            refused = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"range"]
        await self.app(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        # A page of another site cannot ask in the name of its visitor: neither under a name of its own that leads to
        # this machine (DNS rebinding), nor directly.
        if (self.settings.is_local or self.settings.allowed_hosts) and _name_of(host) not in self._hosts:
            return refusal(421, f"This service does not answer under the name {host!r}. Start it with --allow-host.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return refusal(403, f"Pages of {origin} may not ask this service.")
        if not self._may(method, path, headers.get("authorization", "")):
            return refusal(
                401, "This needs the service's token: Authorization: Bearer TOKEN.", {"www-authenticate": "Bearer"}
            )
        if method in ("POST", "PUT", "PATCH"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            # Triton's client says nothing about JSON, and calls tensors a stream of bytes.
            is_tensors = _INFERENCE.fullmatch(path) is not None and kind in ("", "application/octet-stream")
            if kind != "application/json" and not is_tensors:
                return refusal(415, f"A body must be JSON, with content-type application/json. Got {kind!r}.")
        return None

    def _may(self, method: str, path: str, authorization: str) -> bool:
        token = self.settings.token
        if token is None or not needs_token(method, path, self.settings.is_local):
            return True
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode(), token.encode())  # in constant time
        return same and scheme.lower() == "bearer"


def needs_token(method: str, path: str, is_local: bool) -> bool:
    """Whether a service that has a token demands it of a request; of questions only if others can reach it."""
    is_page = method in ("GET", "HEAD") and _PAGE.fullmatch(path) is not None
    if is_page or _HEALTH.fullmatch(path):
        return False
    is_question = method in ("GET", "HEAD", "OPTIONS") or _QUESTIONS.fullmatch(path) is not None
    return not (is_question and is_local)


class BodyLimit:
    """Reads the body for the application: at most so many bytes, in at most so many seconds, in bounded memory."""

    def __init__(self, app: App, settings: ServiceSettings) -> None:
        self.app = app
        self._max_bytes, self._max_seconds = settings.max_body, settings.body_seconds
        self.n_held = 0  # bytes of all requests at the moment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        n_declared = int(declared) if declared.isdecimal() else 0  # the server has refused what is no number
        body = _Body(self, receive)
        try:
            refused = self.refusal(n_declared, n_declared) or await self._read(body)
            if refused is not None:
                await _send_and_linger(refused, scope, receive, send)
            elif not body.is_gone:
                await self.app(scope, body.receive, send)
        finally:
            self.n_held -= body.n_bytes

    async def _read(self, body: _Body) -> Response | None:
        try:
            return await asyncio.wait_for(body.read(), self._max_seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return refusal(408, f"The body did not arrive within {self._max_seconds:g} seconds.", _CLOSE)

    def refusal(self, n_bytes: int, n_new: int) -> Response | None:
        """Why a body of so many bytes, of which so many are yet to be held, is not read; None if it is."""
        if n_bytes > self._max_bytes:
            limit = f"{self._max_bytes / MEGABYTE:g} MB"
            return refusal(413, f"The body may have at most {limit}. Send fewer inputs at once.", _CLOSE)
        if self.n_held + n_new > _BODIES_AT_ONCE * self._max_bytes:
            return refusal(429, "Too many large requests at once. Come back later.", {"retry-after": "1", **_CLOSE})
        return None


class _Body:
    """The body of one request, as far as it has arrived."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self.limit, self._receive = limit, receive
        self.n_bytes, self.is_gone, self._is_taken = 0, False, False
        self._parts: list[bytes] = []

    async def read(self) -> Response | None:
        """Read all of it, or as much as is allowed; returns the refusal then."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.is_gone = True
                return None
            part = message.get("body", b"")
            refused = self.limit.refusal(self.n_bytes + len(part), len(part))
            if refused is not None:
                self._parts.clear()
                return refused
            self._parts.append(part)
            self.n_bytes += len(part)
            self.limit.n_held += len(part)
            if not message.get("more_body", False):
                return None

    async def receive(self) -> Message:
        """What the application gets: the body at once, and afterwards what the server says."""
        if self._is_taken:
            return await self._receive()
        self._is_taken, body = True, b"".join(self._parts)
        self._parts.clear()
        return {"type": "http.request", "body": body, "more_body": False}


_CLOSE = {"connection": "close"}


async def _send_and_linger(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer while the client still sends, and let it: a connection that is closed at once may lose the answer."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    until = time.monotonic() + _LINGER_SECONDS
    try:
        while (left := until - time.monotonic()) > 0:
            message = await asyncio.wait_for(receive(), left)
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                break
    except (TimeoutError, asyncio.TimeoutError):
        pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _name_of(host: str) -> str:
    """The name in a Host header, without the port."""
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
