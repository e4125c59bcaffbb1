"""The long trials import each other by name, whether they are run or tested."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
