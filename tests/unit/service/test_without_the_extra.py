"""The room can be imported without FastAPI; what needs it says what to install."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(["fastapi", "starlette", "pydantic", "pydantic_core", "uvicorn", "prometheus_client"]))
from torchsdm.errors import MissingExtraError
from torchsdm.service import ServiceSettings, create_app, run_service
for make in (create_app, run_service):
    try:
        make("model", ServiceSettings())
    except MissingExtraError as error:
        print(error)
"""


def test_what_is_missing_is_named():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = "sdm serve needs fastapi, which is not installed. Run: pip install 'torchsdm[serve]'\n"
    assert done.stdout == said * 2
