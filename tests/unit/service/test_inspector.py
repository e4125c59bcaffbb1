"""The page and its routes, without a browser."""

from __future__ import annotations

import json
import re
import shutil

import pytest

testclient = pytest.importorskip("fastapi.testclient")


@pytest.fixture(scope="module")
def client(trained, tmp_path_factory):
    from torchsdm.service import ServiceSettings, create_app

    path = shutil.copytree(trained, tmp_path_factory.mktemp("inspector") / "model")
    with testclient.TestClient(create_app(path, ServiceSettings()), base_url="http://127.0.0.1") as opened:
        yield opened


def test_the_page_has_no_inline_code_and_asks_nobody_else(client):
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert "style=" not in page.text and not re.search(r"<script(?![^>]*src=)", page.text)
    loaded, waiting = set(), ["page/main.js", "page/style.css", "page/icon.svg"]
    while waiting:
        address = waiting.pop()
        answer = client.get(f"/{address}")
        assert answer.status_code == 200, address
        if address.endswith(".js"):
            assert "javascript" in answer.headers["content-type"]
            assert "http://" not in answer.text.replace("http://www.w3.org", "") and "https://" not in answer.text
            folder = address.rpartition("/")[0]
            for found in re.findall(r'from ?"\./([\w./]+)"', answer.text):
                if f"{folder}/{found}" not in loaded:
                    waiting.append(f"{folder}/{found}")
        loaded.add(address)
    assert {
        "page/try.js",
        "page/map.js",
        "page/review.js",
        "page/health.js",
        "page/checks.js",
        "page/vendor/hooks.js",
    } <= loaded
    assert client.get("/page/../app.py").status_code == 404 and client.get("/page/").status_code == 404


def test_the_map_names_its_points_and_gives_texts_only_where_it_may(client):
    drawn = client.get("/v1/map").json()
    assert drawn["version"] == 0 and len(drawn["points"]["labels"]) > 0
    found = client.get("/v1/map/examples?of=calibration&positions=0,2").json()["examples"]
    assert len(found) == 2 and all(one["text"] is None for one in found)
    for wrong in ("x", "-1", "100000"):
        answer = client.get(f"/v1/map/examples?of=calibration&positions={wrong}")
        assert answer.status_code == 422 and answer.json()["error"].startswith("positions")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/review", b'{"rows": [{"text": "a", "label": NaN}]}'),
        ("/v1/review", b'{"rows": ' + b"[" * 100_000),
        ("/v1/review", b'{"name": "\\ud800.csv", "content": "text\\na\\n"}'),
        ("/v1/review/label", b'{"row": 1000000000000000000000000000000, "who": "Ada", "label": 1}'),
        ("/v1/review?offset=99999999999999999999999", None),
    ],
)
def test_what_cannot_be_read_is_told_as_everywhere(client, path, body):
    headers = {"content-type": "application/json"}
    answer = client.get(path) if body is None else client.post(path, content=body, headers=headers)
    assert answer.status_code == 422 and list(answer.json()) == ["error"]


def test_what_came_in_is_counted(client):
    decided = client.post("/v1/decide", json={"hidden_states": [[0, 0, 0, 0], [2, 2, 2, 2]]}).json()["decisions"]
    lanes = [one["lanes"] for one in client.get("/v1/recent").json()["minutes"]]
    assert sum(sum(one.values()) for one in lanes) == 2 and {row["lane"] for row in decided} <= set(lanes[0])


@pytest.mark.parametrize(
    "body",
    [{}, {"rows": 1}, {"rows": [{}]}, {"name": "a.pdf", "content": ""}, {"name": "a.csv"}, {"rows": [{"text": "a"}]}],
)
def test_a_queue_that_cannot_be_filled_says_why(client, body):
    answer = client.post("/v1/review", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 422 and answer.json()["error"].endswith(".")
    assert client.get("/v1/review").json()["n"] == 0
