"""What every request passes, whatever its path, before FastAPI sees it: the envelope, the gate, the limit of its body.

The gate decides from the head, before a body is read. Refusals have the same shape as everywhere, ``{"error": ...}``.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchsdm.service.failures import refusal
from torchsdm.service.metrics import Metrics
from torchsdm.service.settings import MEGABYTE, ServiceSettings

_LOGGER = logging.getLogger(__name__)

#: Requests that need no token wherever the service listens: an orchestrator has none.
_HEALTH = re.compile(r"/v1/health(/live|/ready)?|/v2/health/(live|ready)")
#: The page itself, which has no secrets: a browser that opens it cannot send a token before the page asks for one.
_PAGE = re.compile(r"/(page/.*)?")
_INFERENCE = re.compile(r"/v2/models/[^/]+/infer")
#: Requests with a body that change nothing; every other one is a write.
_QUESTIONS = re.compile(rf"/v1/(decide|explain|preview)|{_INFERENCE.pattern}")
_BYTES = "application/octet-stream"
_CLOSE = {"connection": "close"}
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


class Envelope:
    """Counts every request, by its route, and gives every answer the headers that limit what a browser does with it.

    An unexpected failure is answered with an id, which is in the log beside the traceback.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                message["headers"] = given + [pair for pair in _RAW_HEADERS if pair[0] not in names]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            name = secrets.token_hex(6)
            _LOGGER.exception("failure %s: %s %r", name, scope["method"], scope["path"])
            if status:  # the answer has begun
                raise
            said = f"An unexpected error occurred. The service's log has it as failure {name}."
            await refusal(500, said)(scope, receive, send_with_headers)
        finally:
            self.metrics.count_request(scope, status, time.perf_counter() - start)


class Gate:
    """Refuses by the head: other hosts and origins, missing tokens, bodies that are not JSON."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            # Triton's client says nothing about JSON, and calls tensors a stream of bytes. JSON is in front of them.
            is_tensors = _INFERENCE.fullmatch(scope["path"]) is not None and _kind(headers) in ("", _BYTES)
            refused = self._refusal(scope["method"], scope["path"], headers, is_tensors)
            if refused is not None:
                await refused(scope, receive, send)
                return
            left_out = (b"range", b"content-type") if is_tensors else (b"range",)
            passed = [header for header in scope["headers"] if header[0] not in left_out]
            scope["headers"] = [*passed, (b"content-type", b"application/json")] if is_tensors else passed
        await self.app(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Headers, is_tensors: bool) -> Response | None:
        host, settings = headers.get("host", ""), self.settings
        # A page of another site cannot ask in the name of its visitor: neither under a name of its own that leads to
        # this machine (DNS rebinding), nor directly.
        if settings.is_local or settings.allowed_hosts:
            name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
            if name not in (*_LOCAL_NAMES, *settings.allowed_hosts):
                return refusal(421, f"This service does not answer to the name {host!r}. Start it with --allow-host.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return refusal(403, f"Pages of {origin} may not use this service.")
        if settings.token is not None and needs_token(method, path, settings.is_local):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_same = hmac.compare_digest(given.strip().encode(), settings.token.encode())  # in constant time
            if not is_same or scheme.lower() != "bearer":
                said = "The service's token is required: Authorization: Bearer TOKEN."
                return refusal(401, said, {"www-authenticate": "Bearer"})
        if method in ("POST", "PUT", "PATCH") and not is_tensors and _kind(headers) != "application/json":
            return refusal(415, f"A body must be JSON, with content-type application/json. Got {_kind(headers)!r}.")
        return None


def _kind(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def needs_token(method: str, path: str, is_local: bool) -> bool:
    """Whether a service that has a token demands it of a request; of questions only if others can reach it."""
    is_page = method in ("GET", "HEAD") and _PAGE.fullmatch(path) is not None
    if is_page or _HEALTH.fullmatch(path):
        return False
    is_question = method in ("GET", "HEAD", "OPTIONS") or _QUESTIONS.fullmatch(path) is not None
    return not (is_question and is_local)


class BodyLimit:
    """Reads the body for the application: at most so many bytes, in at most so many seconds, in bounded memory."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self._settings = app, settings
        self.n_held = 0  # bytes of all requests at the moment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        n_declared = int(declared) if declared.isdecimal() else 0  # the server has refused other values
        parts: list[bytes] = []
        try:
            refused = self._refusal(n_declared, n_declared) or await self._read(scope, receive, parts)
            if refused is not None:
                await _send_and_linger(refused, scope, receive, send)
                return
            parts[:] = [b"".join(parts)]
            messages: list[Message] = [{"type": "http.request", "body": parts[0], "more_body": False}]

            async def receive_whole() -> Message:
                """The body at once, and afterwards what the server says."""
                return messages.pop() if messages else await receive()

            await self.app(scope, receive_whole, send)
        except ClientDisconnect:
            pass
        finally:
            self.n_held -= sum(map(len, parts))

    async def _read(self, scope: Scope, receive: Receive, parts: list[bytes]) -> Response | None:
        """Read all of the body, or as much as is allowed; returns the refusal then."""

        async def read() -> Response | None:
            n_bytes = 0
            async for part in Request(scope, receive).stream():
                n_bytes += len(part)
                refused = self._refusal(n_bytes, len(part))
                if refused is not None:
                    return refused
                parts.append(part)
                self.n_held += len(part)
            return None

        seconds = self._settings.body_seconds
        try:
            return await asyncio.wait_for(read(), seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return refusal(408, f"The body did not arrive within {seconds:g} seconds.", _CLOSE)

    def _refusal(self, n_bytes: int, n_new: int) -> Response | None:
        """Why a body of so many bytes, of which so many are yet to be held, is not read; None if it is."""
        most = self._settings.max_body
        if n_bytes > most:
            return refusal(413, f"The body may have at most {most / MEGABYTE:g} MB. Send fewer inputs at once.", _CLOSE)
        if self.n_held + n_new > _BODIES_AT_ONCE * most:
            return refusal(429, "Too many large requests at once. Try again later.", {"retry-after": "1", **_CLOSE})
        return None


async def _send_and_linger(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer while the client still sends, and let it: a connection that is closed at once may lose the answer."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})

    async def drain() -> None:
        async for _ in Request(scope, receive).stream():
            pass

    with suppress(TimeoutError, asyncio.TimeoutError, ClientDisconnect):
        await asyncio.wait_for(drain(), _LINGER_SECONDS)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
