"""Who may ask, decided from a request's head; and how much of its body is read."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("fastapi")

from torchsdm.service import ServiceSettings
from torchsdm.service.metrics import Metrics
from torchsdm.service.security import SECURITY_HEADERS, BodyLimit, Envelope, Gate

TOKEN = "0123456789abcdef"
LOCAL = {"host": "127.0.0.1:8000"}
JSON = {"content-type": "application/json"}
BEARER = {"authorization": f"Bearer {TOKEN}"}


async def echo(scope, receive, send):
    """An application that answers with the body it got."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def asked(app, method="GET", path="/v1/model", headers=None, parts=(b"",), pause=0.0):
    """Status, headers and body of the answer to a request whose body comes in parts."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages:
        messages[-1]["more_body"] = False
    sent, read = [], 0

    async def receive():
        nonlocal read
        read += 1
        await asyncio.sleep(pause)
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b""}
    asyncio.run(app(scope, receive, send))
    if not sent:
        return None, {}, b"", read
    answer = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], {n.decode(): v.decode() for n, v in sent[0]["headers"]}, answer, read


def status(settings, method="GET", path="/v1/model", **headers):
    return asked(Gate(echo, settings), method, path, {**headers})[0]


# --- Tokens ----------------------------------------------------------------------------------------------------------

WRITES = ["/v1/exemplars", "/v1/recalibrate", "/v1/reload", "/v1/guard", "/v1/something/new", "/v2/models/a/unload"]
QUESTIONS = ["/v1/decide", "/v1/explain", "/v1/preview", "/v2/models/model/infer"]


def test_without_a_token_this_machine_may_do_everything():
    for path in (*WRITES, *QUESTIONS):
        assert status(ServiceSettings(), "POST", path, **LOCAL, **JSON) == 200


def test_with_a_token_writes_demand_it_on_this_machine_too():
    settings = ServiceSettings(token=TOKEN)
    for path in WRITES:
        assert status(settings, "POST", path, **LOCAL, **JSON) == 401, path
        assert status(settings, "POST", path, **LOCAL, **JSON, **BEARER) == 200, path
    for path in QUESTIONS:
        assert status(settings, "POST", path, **LOCAL, **JSON) == 200, path
    assert status(settings, **LOCAL) == 200


def test_whoever_comes_from_elsewhere_needs_it_for_everything_but_health_and_the_bare_page():
    settings = ServiceSettings(host="0.0.0.0", token=TOKEN)
    for method, path in (
        *(("POST", path) for path in (*WRITES, *QUESTIONS)),
        ("GET", "/metrics"),
        ("POST", "/"),
        ("GET", "/openapi.json"),
        ("GET", "/v1/review"),
        ("GET", "/pages"),
    ):
        assert status(settings, method, path, host="example.org", **JSON) == 401, path
        assert status(settings, method, path, host="example.org", **JSON, **BEARER) == 200, path
    for path in (
        "/v1/health",
        "/v1/health/live",
        "/v1/health/ready",
        "/v2/health/live",
        "/v2/health/ready",
        "/",
        "/page/main.js",
    ):
        assert status(settings, path=path, host="example.org") == 200
    assert status(settings, path="/v1/health/../model", host="example.org") == 401
    for path in ("/", "/page/main.js"):  # the page itself, which asks people for the token
        assert status(settings, path=path, host="example.org") == 200
        assert status(settings, "POST", path, host="example.org", **JSON) == 401


@pytest.mark.parametrize(
    "given", ["", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer é", "Bearer "]
)
def test_another_token_is_none(given):
    code, headers, body, _ = asked(
        Gate(echo, ServiceSettings(token=TOKEN)), "POST", "/v1/exemplars", {**LOCAL, **JSON, "authorization": given}
    )
    assert code == 401 and headers["www-authenticate"] == "Bearer" and TOKEN not in body.decode()


# --- Pages of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "localhost:1", "[::1]:8000", "[::1]", "127.0.0.1"])
def test_names_of_this_machine_are_answered(host):
    assert status(ServiceSettings(), host=host) == 200


@pytest.mark.parametrize("host", ["evil.org", "127.0.0.1.evil.org", "localhost.evil.org:8000", "", "[::2]", "[", "::1"])
def test_a_name_that_was_bent_to_this_machine_is_not(host):
    assert status(ServiceSettings(), host=host) == 421
    assert asked(Gate(echo, ServiceSettings()))[0] == 421  # no name at all


def test_another_name_can_be_allowed():
    settings = ServiceSettings(token=TOKEN, allowed_hosts=("sdm.example.org",))
    assert status(settings, host="sdm.example.org", **BEARER) == status(settings, **LOCAL, **BEARER) == 200
    assert status(settings, host="evil.org", **BEARER) == 421


def test_behind_a_proxy_every_question_needs_the_token():
    settings = ServiceSettings(token=TOKEN, allowed_hosts=("sdm.example.org",))
    for method, path in (("GET", "/v1/review"), ("GET", "/v1/model"), ("POST", "/v1/explain")):
        assert status(settings, method, path, host="sdm.example.org", **JSON) == 401, path
        assert status(settings, method, path, **LOCAL, **JSON) == 401, path
    assert status(settings, path="/v1/health", host="sdm.example.org") == 200


@pytest.mark.parametrize("origin", ["http://evil.org", "null", "https://127.0.0.1:9999", "http://127.0.0.1:8000.evil"])
def test_pages_of_other_origins_may_not_ask(origin):
    assert status(ServiceSettings(), **LOCAL, origin=origin) == 403
    assert status(ServiceSettings(), **LOCAL, origin="http://127.0.0.1:8000") == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_any_page_may_send_is_refused(kind):
    assert status(ServiceSettings(), "POST", "/v1/exemplars", **LOCAL, **{"content-type": kind}) == 415
    assert status(ServiceSettings(), "POST", "/v1/exemplars", **LOCAL) == 415
    assert status(ServiceSettings(), "POST", "/v1/decide", **LOCAL, **{"content-type": "application/JSON; x=1"}) == 200


def test_tensors_may_be_declared_as_triton_s_client_does():
    for kind in ({}, {"content-type": "application/octet-stream"}, JSON):
        assert status(ServiceSettings(), "POST", "/v2/models/model/infer", **LOCAL, **kind) == 200
    assert status(ServiceSettings(), "POST", "/v2/models/model/infer", **LOCAL, **{"content-type": "text/plain"}) == 415


def test_every_answer_has_the_headers():
    for app in (echo, Gate(echo, ServiceSettings())):  # an answer and a refusal
        headers = asked(Envelope(app, Metrics()))[1]
        assert headers.items() >= SECURITY_HEADERS.items()
    assert "'unsafe" not in SECURITY_HEADERS["content-security-policy"]
    assert "default-src 'none'" in SECURITY_HEADERS["content-security-policy"]


# --- Bodies ----------------------------------------------------------------------------------------------------------


def limited(**settings):
    return BodyLimit(echo, ServiceSettings(max_body=10, **settings))


def test_a_body_in_parts_is_passed_on_whole():
    assert asked(limited(), "POST", parts=[b"one ", b"", b"two"])[2] == b"one two"
    assert asked(limited(), "POST", parts=[b"0123456789"])[2] == b"0123456789"


def test_a_body_that_is_too_large_is_refused_before_it_is_read():
    limit = limited()
    code, headers, body, read = asked(limit, "POST", headers={"content-length": "11"}, parts=[])
    assert (code, read) == (413, 1) and json.loads(body)["error"].startswith("The body may have at most")
    assert headers["connection"] == "close"


def test_a_body_without_a_length_is_read_only_as_far_as_allowed():
    limit = limited()
    code, _, _, _ = asked(limit, "POST", parts=[b"012345", b"678901", b"x", b"y"])
    assert code == 413 and limit.n_held == 0
    declared = {"content-length": "3"}
    assert asked(limit, "POST", headers=declared, parts=[b"0123456789", b"0"])[0] == 413  # whatever was declared


def test_a_body_that_never_ends_is_given_up():
    code, _, body, _ = asked(limited(body_seconds=0.1), "POST", parts=[b"1", b"2", b"3"], pause=0.06)
    assert code == 408 and b"0.1 seconds" in body


def test_a_client_that_leaves_is_not_answered():
    limit = limited()
    messages = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        raise AssertionError(message)

    asyncio.run(limit({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send))
    assert limit.n_held == 0


def test_bodies_together_take_bounded_memory():
    limit, codes = None, []

    async def slow_echo(scope, receive, send):
        await asyncio.sleep(0.1)
        await echo(scope, receive, send)

    limit = BodyLimit(slow_echo, ServiceSettings(max_body=10))

    async def one():
        messages = [{"type": "http.request", "body": b"0123456789", "more_body": False}]

        async def receive():
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                codes.append((message["status"], dict(message["headers"]).get(b"retry-after")))

        headers = [(b"content-length", b"10")]
        await limit({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)

    async def all_at_once():
        await asyncio.gather(*(one() for _ in range(7)))

    asyncio.run(all_at_once())
    assert sorted(codes, key=str) == [(200, None)] * 4 + [(429, b"1")] * 3 and limit.n_held == 0
