"""Hours of bad luck (``make chaos``): damaged input, kill -9, full disks, load. It uses helpers of the tests."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tests", "tests/cluster")]
