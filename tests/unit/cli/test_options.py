"""What verbs share."""

from __future__ import annotations

import gc
import subprocess
import sys

import torch  # noqa: F401  (so that it has been imported here)

from torchsdm.cli._options import importing

FRESH = """
import gc
from torchsdm.cli._options import importing
try:
    with importing():
        assert not gc.isenabled()
        raise ImportError
except ImportError:
    pass
assert gc.isenabled() and gc.get_freeze_count() > 1000
gc.unfreeze()
gc.disable()
with importing():
    pass
assert not gc.isenabled() and gc.get_freeze_count() == 0
"""


def test_collection_pauses_while_a_fresh_process_imports():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_collection_is_left_alone_where_torch_has_been_imported():
    frozen = gc.get_freeze_count()
    with importing():
        assert gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == frozen
