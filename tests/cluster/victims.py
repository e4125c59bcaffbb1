"""Who works on the cluster now, to be killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def working(name):
    """(process, parent) of every worker that is running a task or an actor of this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().decode(errors="replace")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has just ended
            continue
        if title.startswith(f"ray::{name}"):
            found.append((int(folder.name), parent))
    return found


def kill_worker(name):
    """Kill a process that is running a task of this name."""
    os.kill(working(name)[0][0], signal.SIGKILL)


def lose_node(nodes, name):
    """Lose the node of such a process."""
    raylets = {process.process.pid: node for node in nodes.workers for process in node.all_processes["raylet"]}
    nodes.lose(raylets[working(name)[0][1]])
