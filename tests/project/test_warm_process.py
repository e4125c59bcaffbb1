"""The processes that tests start: each has a folder, an environment, streams and state of its own, and ends alone."""

from __future__ import annotations

import os
import signal
import time

import torch

import warm_process
from warm_process import WarmProcess

CODE = """
import os, sys, warnings
import torch, torchsdm
print(sys.argv[1:], os.getcwd(), os.environ.get("OF_THIS"), torch.get_num_threads(), hasattr(torchsdm, "left_behind"))
print(sorted(set(globals()) - {"__name__", "__builtins__", "os", "sys", "warnings", "torch", "torchsdm"}))
torchsdm.left_behind = os.environ["OF_NEXT"] = "by the first"
torch.set_num_threads(7)
os.chdir("/")
sys.exit(3)
"""


def test_a_process_knows_nothing_of_the_test_or_of_the_one_before(tmp_path):
    for threads in (1, 2):
        environment = {**os.environ, "OF_THIS": "own", "OMP_NUM_THREADS": str(threads)}
        done = warm_process.run(CODE, "-k", 2, cwd=tmp_path, env=environment)
        assert done.returncode == 3 and done.stderr == ""
        assert done.stdout == f"['-k', '2'] {tmp_path.resolve()} own {threads} False\n[]\n"
    assert "OF_NEXT" not in os.environ and torch.get_num_threads() == 1


def test_an_error_is_a_traceback_and_an_exit_code(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("1 / 0\n", encoding="utf-8")
    done = warm_process.run(script)
    assert done.returncode == 1 and "script.py" in done.stderr and "ZeroDivisionError" in done.stderr


def test_signals_reach_it():
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        waiting = "import sys, time\ntry:\n    print('ready', flush=True); time.sleep(60)\nexcept KeyboardInterrupt:\n"
        process = WarmProcess(waiting + "    sys.exit(130)")
        while process.poll() is None and process.stdout != "ready\n":
            time.sleep(0.001)
        process.send_signal(number)
        assert process.wait() == code, process.stderr
    assert WarmProcess("import time; time.sleep(60)").wait(timeout=0.1) == -signal.SIGKILL
