"""The HTTP service, the tools for agents and the command."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import numpy as np

from tools.chaos.harness import Case, Target, Wrong
from tools.chaos.mutations import (
    NUMBERS,
    TEXTS,
    any_text,
    changed_bytes,
    changed_value,
    changed_values,
    json_bytes,
)
from tools.chaos.seeds import TEXTS as GOOD_TEXTS
from torchsdm.errors import TorchSDMError
from torchsdm.model.changes import read_history

WIDTH = 24  # of the states of the tiny encoder
STATE = np.linspace(-1, 1, WIDTH).round(3).tolist()
_SIGNED = {"who": "Ada", "why": "looked at it"}
_POINT = {"hidden_states": [STATE], "labels": ["good"]}
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/decide", {"texts": GOOD_TEXTS[:2]}),
    ("POST", "/v1/decide", {"hidden_states": [STATE, STATE]}),
    ("POST", "/v1/explain", {"texts": GOOD_TEXTS[:1], "k": 2}),
    ("POST", "/v1/explain", {"hidden_states": [STATE], "k": 3}),
    ("POST", "/v1/preview", {"changes": [{"what": "add", **_POINT, "ids": ["p"]}]}),
    ("POST", "/v1/exemplars", {**_SIGNED, "changes": [{"what": "add", **_POINT}]}),
    (
        "POST",
        "/v1/exemplars",
        {**_SIGNED, "changes": [{"what": "add", "texts": ["a text"], "labels": ["bad"]}], "key": "k"},
    ),
    ("POST", "/v1/exemplars", {**_SIGNED, "changes": [{"what": "add_calibration", **_POINT}]}),
    ("POST", "/v1/exemplars", {**_SIGNED, "changes": [{"what": "relabel", "ids": [1], "labels": ["good"]}]}),
    ("POST", "/v1/exemplars", {**_SIGNED, "changes": [{"what": "remove", "ids": [2]}]}),
    ("POST", "/v1/exemplars", {**_SIGNED, "changes": [{"what": "undo", "version": 1}]}),
    ("POST", "/v1/recalibrate", {**_SIGNED, "alpha": 0.8, "min_class_count": 1, "policy": "either"}),
    ("POST", "/v1/guard", {"reason": "new data", "who": "Ada", "key": "g"}),
    ("POST", "/v1/reload", {}),
    ("POST", "/v1/review", {"rows": [{"text": "one", "label": "good", "id": 1}, {"text": "two"}]}),
    ("POST", "/v1/review", {"name": "new.jsonl", "content": '{"text": "three"}\n'}),
    ("POST", "/v1/review", {"name": "new.csv", "content": "id,text\n1,three\n"}),
    ("POST", "/v1/review/label", {"row": 1, "label": "good", "who": "Ada"}),
    ("POST", "/v1/review/unlabel", {"who": "Ada"}),
    ("POST", "/v1/review/preview", {"recalibrate": False}),
    ("POST", "/v1/review/add", {"who": "Ada", "why": "reviewed", "recalibrate": False}),
    ("POST", "/v1/review/undo", {"version": 1, "who": "Ada", "why": "wrong"}),
    ("DELETE", "/v1/review", None),
]
PAGES = [
    *(
        "/",
        "/page/api.js",
        "/page/../app.py",
        "/v1/model",
        "/v1/guard",
        "/v1/changes?after=0",
        "/v1/health",
        "/metrics",
    ),
    *("/v1/signals", "/v1/map", "/v1/map/examples?of=calibration&positions=0,1", "/v1/recent", "/v1/review?limit=5"),
    *("/v1/map/examples?of=queue&positions=1", "/v1/review/points", "/v1/review/export.csv", "/v1/review/export.jsonl"),
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/model", "/v2/models/model/ready", "/openapi.json"),
]


class _Service(Target):
    """A service in this process, asked as a server asks it: a head and a body."""

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self._running = False
        self.acknowledged: set[int] = set()

    def _start(self) -> None:
        from torchsdm.service import ServiceSettings, create_app

        self.model = Path(shutil.copytree(self.seeds / "text-model", self.own / "model"))
        self.loop = asyncio.new_event_loop()
        self.app = create_app(self.model, ServiceSettings(max_body=1 << 21, texts=True))
        self.lifespan = self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self.lifespan.__aenter__())
        while not self.app.state.serving.is_warm:
            self.loop.run_until_complete(asyncio.sleep(0.01))
        self._running = True

    def read(self, folder: Path) -> None:
        if not self._running:
            self._start()
        head = json.loads((folder / "head.json").read_text())
        body = (folder / "body").read_bytes()
        status, headers, content = self.loop.run_until_complete(self._ask(head, body))
        self._check(head, status, headers, content)

    async def _ask(self, head: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        path, _, query = head["path"].partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": head["method"],
            "scheme": "http",
            "path": path,
            "raw_path": quote(path, errors="surrogatepass").encode(),
            "query_string": query.encode("utf-8", "surrogatepass"),
            "headers": [
                (name.encode("latin-1", "replace"), base64.b64decode(value)) for name, value in head["headers"]
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        given, answer = False, {"status": 0, "headers": [], "body": b""}

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.sleep(30)
                return {"type": "http.disconnect"}
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer["status"], answer["headers"] = message["status"], message["headers"]
            else:
                answer["body"] += message.get("body", b"")

        await asyncio.wait_for(self.app(scope, receive, send), 60)
        return answer["status"], {n.decode().lower(): v.decode("latin-1") for n, v in answer["headers"]}, answer["body"]

    def _check(self, head: dict[str, Any], status: int, headers: dict[str, str], content: bytes) -> None:
        if status == 0 or status >= 500 or b"Traceback" in content:
            raise Wrong(f"{status} {content[:300]!r} for {head['method']} {head['path'][:80]}")
        if status >= 400:
            said = json.loads(content)
            if set(said) != {"error"} or not isinstance(said["error"], str) or not said["error"].strip():
                raise Wrong(f"{status} {content[:300]!r}")
            raise TorchSDMError(said["error"])
        if status == 200 and "json" in headers.get("content-type", "") and "ndjson" not in headers["content-type"]:
            said = json.loads(content, parse_constant=_refuse)
            changes = said.get("changes", ()) if isinstance(said, dict) and head["method"] == "POST" else ()
            self.acknowledged |= {one["version"] for one in changes}

    def close(self) -> None:
        if self._running:
            self.loop.run_until_complete(self.lifespan.__aexit__(None, None, None))
            self.loop.close()
            known = {change.version for change in read_history(self.model)}
            if not self.acknowledged <= known:
                raise Wrong(f"changes {self.acknowledged - known} were acknowledged and are not in the log")
        super().close()


def _refuse(name: str) -> None:
    raise Wrong(f"{name} in an answer")


def _request(method: str, path: str, body: bytes, **headers: Any) -> Case:
    given = {"host": b"127.0.0.1", "content-type": b"application/json", "content-length": str(len(body)).encode()}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = {
        "method": method,
        "path": path.encode("utf-8", "replace").decode(),  # as servers decode it
        "headers": [[name, base64.b64encode(value).decode()] for name, value in given.items()],
    }
    return {"head.json": json.dumps(head).encode(), "body": body}


class Bodies(_Service):
    """Bodies of every route: JSON with values that nobody expects, and what is no JSON."""

    name = "http-bodies"

    def case(self, random: Random) -> Case:
        method, path, good = random.choice(REQUESTS)
        if random.random() < 0.1:
            return _request(method, path, changed_bytes(random, json.dumps(good).encode()))
        bad = changed_values(random, good)
        return _request(method, path, json_bytes(random, bad))


class Heads(_Service):
    """Paths, queries, methods and headers."""

    name = "http-heads"

    def case(self, random: Random) -> Case:
        method, path, good = random.choice([*REQUESTS, *(("GET", page, None) for page in PAGES)])
        body, headers = json.dumps(good).encode(), {}
        how = random.randrange(5)
        if how == 0:
            path = random.choice([path + "/", path + any_text(random), "/" + any_text(random), path.replace("/", "//")])
        elif how == 1:
            path = re.sub("=[^&]*", lambda _: "=" + quote(any_text(random), errors="surrogatepass"), path)
            path += random.choice(
                ["", "?after=" + str(random.choice(NUMBERS)), "&limit=-1", "?status=open&order=x", "?%ff=%fe"]
            )
        elif how == 2:
            method = random.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW", ""])
        elif how == 3:
            name = random.choice(
                ["host", "origin", "authorization", "content-type", "content-length", "accept", "range", "expect"]
            )
            value = random.choice(
                [any_text(random).encode("utf-8", "surrogatepass"), b"\xff\xfe", b"bytes=-1", b"[::1", b"9" * 400]
            )
            headers[name] = value
        else:
            return _request(method, path, changed_bytes(random, body))
        return _request(method, path, b"" if good is None else body, **headers)


class Tensors(_Service):
    """The Open Inference Protocol with binary tensors whose lengths lie."""

    name = "http-tensors"

    def case(self, random: Random) -> Case:
        n = random.choice([0, 1, 2])
        data = np.array([STATE] * n, dtype="<f4").tobytes()
        words = b"".join(len(one).to_bytes(4, "little") + one for one in (b"one", "é".encode())[:n])
        tensor: dict[str, Any] = {"name": "hidden_states", "shape": [n, WIDTH], "datatype": "FP32"}
        if random.random() < 0.4:
            tensor, data = {"name": "texts", "shape": [n], "datatype": "BYTES"}, words
        if random.random() < 0.7:
            tensor["parameters"] = {"binary_data_size": len(data)}
        else:
            tensor["data"], data = ([STATE] * n if tensor["name"] == "hidden_states" else ["one", "two"][:n]), b""
        asked: Any = {
            "inputs": [tensor],
            "outputs": [{"name": "confidence", "parameters": {"binary_data": True}}],
            "id": "1",
        }
        if random.random() < 0.4:
            del asked["outputs"]
            asked["parameters"] = {"binary_data_output": True}
        how = random.randrange(4)
        if how <= 1:
            asked = changed_values(random, asked)
        elif how == 2:
            asked["inputs"] = changed_value(random, asked["inputs"])
        text = json_bytes(random, asked)
        length = str(len(text))
        if random.random() < 0.2:
            length = random.choice(
                [str(random.choice(NUMBERS)), "٣", "1_0", "0x10", "", " 5", "1e3", "9" * 30, any_text(random)[:50]]
            )
        if random.random() < 0.4:
            data = changed_bytes(random, data, words)[: 1 << 16]
        head = {"inference_header_content_length": length.encode("utf-8", "surrogatepass")}
        kind = random.choice([b"application/octet-stream", b"application/json"])
        return _request("POST", "/v2/models/model/infer", text + data, content_type=kind, **head)


class Tools(Target):
    """The tools of ``sdm mcp``."""

    name = "mcp-tools"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.server: Any = None
        self.taught = 0

    def case(self, random: Random) -> Case:
        tool, good = random.choice(
            [
                ("decide", {"texts": GOOD_TEXTS[:2]}),
                ("decide", {"texts": GOOD_TEXTS[:1], "answers": ["yes"]}),
                ("explain", {"text": GOOD_TEXTS[0], "k": 2}),
                ("describe_model", {"a": 1}),
                (
                    "add_example",
                    {"text": "new", "label": "good", "why": "said so", "allow_new_label": False, "key": "k"},
                ),
            ]
        )
        bad = changed_values(random, good)
        return {"call.json": json.dumps([tool, bad if isinstance(bad, dict) else {"texts": bad}]).encode()}

    def read(self, folder: Path) -> None:
        from mcp.server.mcpserver.exceptions import ToolError
        from pydantic import ValidationError

        from torchsdm.application import LiveModel
        from torchsdm.service.tools import create_tools

        if self.server is None:
            model = shutil.copytree(self.seeds / "text-model", self.own / "model")
            self.live = LiveModel.open(model, who="Ada")
            self.server = create_tools(self.live, texts=True, writable=True)
        tool, arguments = json.loads((folder / "call.json").read_text())
        try:
            asyncio.run(self.server.call_tool(tool, arguments))
        except ToolError as error:
            cause = error.__cause__
            while isinstance(cause, ToolError):
                cause = cause.__cause__
            if not isinstance(cause, TorchSDMError | ValidationError | None):
                raise Wrong(f"{type(cause).__name__}: {cause!s:.200}") from cause
            raise TorchSDMError(str(error)[:1000]) from None

    def close(self) -> None:
        if self.server is not None:
            self.live.close()
        super().close()


_HARMLESS = [text for text in TEXTS if not text.startswith(("/", "..", "~", "file:", "\\")) and text != "."]


class Command(Target):
    """Arguments of the command ``sdm``; run in the folder of the case, with names that stay in it."""

    name = "command"
    writes = True
    CALLS = (
        ("predict", "MODEL", "states.npz", "-o", "out.jsonl", "-k", "2"),
        ("predict", "MODEL", "states.jsonl", "--no-guard", "--json", "-o", "out.csv"),
        ("predict", "MODEL", "states.npz", "--guard", "guard.json"),
        ("explain", "MODEL", "states.jsonl", "--only", "s1"),
        ("evaluate", "MODEL", "states.npz"),
        ("log", "MODEL"),
        ("undo", "MODEL", "1"),
        ("guard", "guard.json"),
        ("recalibrate", "MODEL", "--alpha", "0.8"),
        ("update", "MODEL", "states.npz"),
        ("export", "MODEL", "-o", "exported"),
        ("--config", "command.toml", "log", "MODEL"),
        ("train", "states.npz", "-o", "trained", "--rounds", "1", "--epochs", "1", "--filters", "2"),
        ("certify", "MODEL", "states.npz", "--alpha", "0.7"),
        ("choose", "states.npz", "--alpha", "0.9"),
        ("audit", "states.npz"),
        ("compact", "MODEL"),
    )

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        names = ("states.npz", "states.jsonl", "guard.json")
        self.files: Case = {name: (seeds / name).read_bytes() for name in names}
        self.files["command.toml"] = b"[log]\njson = true\n"

    def case(self, random: Random) -> Case:
        words = list(random.choice(self.CALLS))
        for _ in range(random.choice([0, 1, 1, 2])):
            place = random.randrange(1, len(words)) if len(words) > 1 else 0
            how = random.randrange(5)
            if how == 0:
                del words[place]
            elif how == 1:
                words.insert(place, random.choice(_HARMLESS))
            elif how == 2:
                words[place] = str(random.choice([*NUMBERS, 0.5, float("nan"), float("inf"), -0.1]))
            elif how == 3:
                words[place] = random.choice(_HARMLESS)
            else:
                words.append(random.choice(words))
        files = dict(self.files)
        if random.random() < 0.3:
            name = random.choice(sorted(files))
            content = files[name]
            assert isinstance(content, bytes)
            files[name] = changed_bytes(random, content)
        words = [word for word in words if word not in ("-", "MODELMODEL")]
        return {**files, "words.json": json.dumps(words or ["log"]).encode()}

    def read(self, folder: Path) -> None:
        from sdm_command import call

        words = json.loads((folder / "words.json").read_text())
        shutil.copytree(self.seeds / "model", folder / "MODEL")
        before = os.getcwd()
        os.chdir(folder)
        try:
            done = call(*words)
        finally:
            os.chdir(before)
        if "Traceback" in done.stderr or "This should not happen" in done.stderr or done.returncode not in (0, 1, 2):
            raise Wrong(f"{done.returncode}: {done.stderr[-300:]} for {words!r:.300}")
        if done.returncode == 1:
            lines = [line for line in done.stderr.splitlines() if not line.startswith("sdm: warning")]
            if len(lines) != 1 or not lines[0].startswith("sdm: "):
                raise Wrong(f"more than a sentence: {done.stderr[:300]} for {words!r:.200}")
            raise TorchSDMError(lines[0])
        if done.returncode == 2:
            raise TorchSDMError(done.stderr[-1000:])


SERVICE_TARGETS: dict[type[Target], float] = {
    Bodies: 3,
    Heads: 3,
    Tensors: 4,
    Tools: 1,
    Command: 0.3,
}
