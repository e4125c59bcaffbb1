"""A service among clients that are many, slow, rude or gone; and its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from served import HOST, save_states_model, save_text_model, server
from torchsdm import SDMClassifier

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

RNG = np.random.default_rng(0)
LABELS = np.arange(300) % 2
STATES = (RNG.normal(size=(300, 4)) + 2.0 * LABELS[:, None]).astype(np.float32)
ONE = {"hidden_states": STATES[:1].tolist()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_states_model(tmp_path_factory.mktemp("load"), STATES, LABELS)


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory):
    """A model that reads texts, which takes its time."""
    texts = [f"the {number} film was {'great' if number % 2 else 'awful'}" for number in range(80)]
    return save_text_model(tmp_path_factory.mktemp("load"), texts, [0, 1] * 40)


LONG = {"texts": ["a film of great length " * 40] * 60}


@pytest.fixture(scope="module")
def limited(model):
    """A service with little patience."""
    with server(model, "--max-megabytes", "1", "--body-seconds", "1") as running:
        yield running


def test_64_clients_at_once_are_all_answered_rightly(model):
    expected = SDMClassifier.load(model).decide(STATES[:64]).confidence.tolist()
    with server(model) as running, ThreadPoolExecutor(64) as pool:

        def ask(number):
            rows = [
                running.ask("/v1/decide", {"hidden_states": [STATES[number].tolist()]})[1]["decisions"]
                for _ in range(3)
            ]
            return [row["confidence"] for (row,) in rows]

        assert list(pool.map(ask, range(64))) == [[one] * 3 for one in expected]
        assert running.ask("/v1/guard")[1]["guard"]["n_seen"] == 192
        assert running.metric("torchsdm_batch_rows_count") < 192  # some were answered together


def test_a_full_queue_says_when_to_come_back(slow_model):
    with server(slow_model, "--max-waiting", "2") as running, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: running.raw("/v1/decide", LONG), range(12)))
        full = [headers for status, headers, _ in answers if status == 429]
        assert {status for status, _, _ in answers} == {200, 429}
        assert all(int(headers["retry-after"]) >= 1 for headers in full)
        rows = [json.loads(body)["decisions"] for status, _, body in answers if status == 200]
        assert all(len(one) == 60 for one in rows) and len(rows) >= 3
        assert running.ask("/v1/decide", {"texts": ["fine again"]})[0] == 200


def test_what_has_arrived_is_answered_before_the_end(slow_model):
    with server(slow_model) as running, ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(running.ask, "/v1/decide", LONG) for _ in range(5)]
        running.wait_for(lambda: running.metric("torchsdm_queue_length") > 0)
        running.process.send_signal(signal.SIGTERM)
        assert [one.result()[0] for one in asking] == [200] * 5
        running.process.wait(timeout=20)
    assert "Traceback" not in running.process.stderr


# --- Rude clients, by hand -------------------------------------------------------------------------------------------


def head(length=None, path="/v1/decide", **more):
    lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}", "Content-Type: application/json"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in more.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def talk(running, *parts, pause=0.0, timeout=15):
    """What comes back when these bytes are sent, until the server closes or the time is over."""
    received = b""
    with socket.create_connection((HOST, running.port), timeout=timeout) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while chunk := connection.recv(65536):
                received += chunk
                length = re.search(rb"content-length: (\d+)", received.lower())
                if length and len(received.partition(b"\r\n\r\n")[2]) >= int(length[1]):
                    break
        except (ConnectionError, TimeoutError):
            pass
    return received


def status_of(received):
    return int(received.split(b" ", 2)[1]) if received else 0


def is_well(running):
    return running.ask("/v1/decide", ONE)[0] == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(limited):
    received = talk(limited, head(10_000_000))
    assert status_of(received) == 413 and b'{"error":"The body may have at most 1 MB.' in received
    chunk = b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"
    received = talk(limited, head(**{"Transfer-Encoding": "chunked"}), *[chunk] * 30)
    assert status_of(received) == 413 and is_well(limited)
    assert limited.raw("/v1/decide", b" " * 5_000_000)[0] in (413, 0)  # a client that does not listen while it sends


def test_a_slow_body_is_given_up(limited):
    start = time.monotonic()
    received = talk(limited, head(100), b'{"hidden', b'_states"', pause=0.3)
    assert status_of(received) == 408 and time.monotonic() - start < 6 and is_well(limited)


def test_a_slow_head_is_given_up(limited):
    start = time.monotonic()
    assert talk(limited, b"POST /v1/decide HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", pause=0.3) == b""
    assert 0.5 < time.monotonic() - start < 6
    assert talk(limited) == b""  # who connects and says nothing
    assert is_well(limited)


def test_who_leaves_in_the_middle_costs_nobody_anything(limited):
    for _ in range(20):
        with socket.create_connection((HOST, limited.port)) as connection:
            connection.sendall(head(1000) + b'{"hidden_states": [[1, 2')
    with socket.create_connection((HOST, limited.port)) as connection:  # or before the answer
        body = json.dumps(ONE).encode()
        connection.sendall(head(len(body)) + body)
    assert is_well(limited) and "Traceback" not in limited.process.stderr


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"POST /v1/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 400_000 + b"\r\n",
    ],
)
def test_what_is_not_http_is_refused(limited, sent):
    assert status_of(talk(limited, sent)) in (0, 400) and is_well(limited)


def test_a_bent_name_and_another_site_s_page_are_refused(limited):
    assert limited.ask("/v1/model", Host="evil.org")[0] == 421
    assert limited.ask("/v1/decide", ONE, Origin="http://evil.org")[0] == 403
    assert limited.ask("/v1/decide", json.dumps(ONE).encode(), content_type="text/plain")[0] == 415
    status, headers, _ = limited.raw("/v1/decide", method="OPTIONS", Origin="http://evil.org")
    assert status == 403 and not [name for name in headers if name.startswith("access-control")]
    headers = limited.raw("/v1/model")[1]
    assert headers["x-content-type-options"] == "nosniff" and "server" not in headers
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_the_numbers_add_up(model):
    with server(model) as running:
        rows = [*STATES[:10].tolist(), (STATES[0] + 50).tolist(), None]
        answers = running.ask("/v1/decide", {"hidden_states": rows})[1]["decisions"]
        running.ask("/v1/decide", {"hidden_states": "no"})
        running.ask("/nowhere")
        for lane in {row["lane"] for row in answers}:
            n = sum(row["lane"] == lane for row in answers)
            assert running.metric(f'torchsdm_decisions_total{{lane="{lane}"}}') == n
        assert running.metric("torchsdm_similarity_zero_total") == sum(row["similarity"] == 0 for row in answers)
        n_far = sum(row["distance_quantile"] == 0 for row in answers)
        assert running.metric("torchsdm_distance_quantile_zero_total") == n_far >= 1
        for labels, n in (('route="/v1/decide",status="200"', 1), ('route="/v1/decide",status="422"', 1),
                          ('route="none",status="404"', 1)):  # fmt: skip
            assert running.metric(f"torchsdm_requests_total{{{labels}}}") == n
        assert running.metric('torchsdm_request_seconds_count{route="/v1/decide"}') == 2
        state = running.ask("/v1/guard")[1]["guard"]
        assert running.metric("torchsdm_guard_log_martingale") == pytest.approx(state["log_martingale"])
        assert running.metric("torchsdm_guard_seen") == state["n_seen"] == 11


def test_who_leaves_the_queue_takes_the_question_along(slow_model):
    body = json.dumps(LONG).encode()
    head = f"POST /v1/decide HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with server(slow_model) as running, ThreadPoolExecutor(1) as pool:
        stayed = pool.submit(running.ask, "/v1/decide", {"texts": LONG["texts"] * 4})
        time.sleep(0.1)  # it is being answered
        leaving = [socket.create_connection((HOST, running.port)) for _ in range(4)]
        for one in leaving:
            one.sendall(head.encode() + b"\r\n\r\n" + body)
        running.wait_for(lambda: running.metric("torchsdm_queue_length") == 4)
        for one in leaving:
            one.close()
        assert len(stayed.result()[1]["decisions"]) == 240
        running.wait_for(lambda: running.metric("torchsdm_queue_length") == 0)
        running.wait_for(lambda: running.metric('torchsdm_requests_total{route="/v1/decide",status="499"}') == 4)
        assert running.metric("torchsdm_decisions_total") == 240 == running.ask("/v1/guard")[1]["guard"]["n_seen"]
