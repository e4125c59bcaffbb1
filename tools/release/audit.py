"""Look for known weaknesses of the pinned versions: make audit

pip-audit asks a service on the internet. It also ends well if the service knows nothing of the packages, as behind a
mirror; so what was looked at is counted. Exit code 1: something was found. 3: not everything could be looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tools.release.pins import HASHED

FOUND, NOT_LOOKED = 1, 3


def audited() -> str:
    """What pip-audit answers, as JSON; empty if it did not answer."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(HASHED), "--disable-pip", "--no-deps"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        print(done.stderr.strip().rpartition("\n")[2], file=sys.stderr)
    return done.stdout


def verdict(answer: str) -> tuple[int, str]:
    """Exit code and sentence for an answer of pip-audit."""
    packages: list[dict[str, Any]] = json.loads(answer)["dependencies"] if answer else []
    weak = [f"{one['name']} {one['version']}: {bug['id']}" for one in packages for bug in one.get("vulns", [])]
    n_skipped = sum("skip_reason" in one for one in packages)
    if weak:
        return FOUND, "Known weaknesses:\n  " + "\n  ".join(weak)
    if not packages:
        return NOT_LOOKED, "The service that knows weaknesses cannot be reached from here: nothing was looked at."
    if n_skipped:
        return (
            NOT_LOOKED,
            f"The service knows nothing of {n_skipped} of {len(packages)} packages: they were not looked at.",
        )
    return 0, f"No known weakness in {len(packages)} packages."


if __name__ == "__main__":
    code, sentence = verdict(audited())
    print(sentence, file=sys.stderr)
    sys.exit(code)
