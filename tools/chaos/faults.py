"""Disturb works of the command and see what is left: python faults.py [--kills N] [--others N] ...

After each fault everything that was whole before opens, no half file is read, and the same command run again ends with
the outcome of a run that nobody disturbed. What fails is kept in its folder, with the words of the process.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.chaos import works as made
from tools.chaos.trials import started
from tools.chaos.works import Work
from torchsdm.errors import TorchSDMError
from warm_process import SDM, WarmProcess

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
LIMITED = """
import resource, sys
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv.pop(1)),) * 2)
"""


class Broken(AssertionError):
    """A promise that was not kept."""


@dataclass
class Straight:
    """A run of a work that nobody disturbed."""

    seconds: float
    bytes: int
    outcome: Hashable


@dataclass
class Tally:
    """What was tried, and how it ended."""

    ended: dict[str, Counter[str]] = field(default_factory=dict)
    broken: list[dict[str, str]] = field(default_factory=list)

    def add(self, fault: str, work: str, how: str) -> None:
        self.ended.setdefault(f"{fault}: {work}", Counter())[how] += 1

    def count(self, fault: str, *how: str) -> int:
        """Trials of a fault that ended in one of these ways."""
        counters = (counter for key, counter in self.ended.items() if key.startswith(f"{fault}: "))
        return sum(counter[word] for counter in counters for word in (how or counter))


# --- Running a work --------------------------------------------------------------------------------------------------


def start(work: Work, folder: Path, program: str = SDM, *before: object) -> WarmProcess:
    return WarmProcess(program, *before, *work.command, cwd=folder, env=made.environment(folder))


def finish(work: Work, folder: Path) -> None:
    """Run the command to its end."""
    process = start(work, folder)
    if process.wait(timeout=300):
        raise Broken(f"run again, it failed: {process.stderr[-1500:]}")


def run_straight(work: Work, place: Path) -> Straight:
    folder = place / "straight"
    folder.mkdir()
    work.prepare(folder)
    before = disk_usage(folder)
    finish(work, folder)  # what is compiled or converted at first use is there now
    outcome, used = work.outcome(folder), disk_usage(folder) - before
    shutil.rmtree(folder)
    folder.mkdir()
    work.prepare(folder)
    begun = time.monotonic()
    finish(work, folder)
    seconds = time.monotonic() - begun
    if work.outcome(folder) != outcome:
        raise Broken(f"{work.name}: two runs that nobody disturbed differ")
    shutil.rmtree(folder)
    return Straight(seconds, used, outcome)


def disk_usage(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def check_whole(work: Work, folder: Path) -> None:
    try:
        work.check(folder)
    except (TorchSDMError, AssertionError) as error:
        raise Broken(f"after the fault: {error}") from error


def is_done(work: Work, folder: Path, straight: Straight) -> bool:
    """Whether the outcome is there already: the command was disturbed after its work, and need not be run again."""
    try:
        return work.outcome(folder) == straight.outcome
    except (TorchSDMError, AssertionError, FileNotFoundError):
        return False


def end_well(work: Work, folder: Path, straight: Straight) -> None:
    """Run the command again, and compare its outcome."""
    if not is_done(work, folder, straight):
        finish(work, folder)
        check_outcome(work, folder, straight)


def check_outcome(work: Work, folder: Path, straight: Straight) -> None:
    try:
        outcome = work.outcome(folder)
    except (TorchSDMError, AssertionError) as error:
        raise Broken(f"at the end: {error}") from error
    if outcome != straight.outcome:
        raise Broken("the outcome differs from that of a run that nobody disturbed")


def spoken(process: WarmProcess, *, may_trace: bool = False) -> str:
    """How a process ended: 'done', 'said' (one sentence of ours) or 'died'; anything else is broken."""
    code, said = process.poll(), process.stderr.strip().splitlines()
    if code == 0:
        return "done"
    if code is not None and code < 0:
        return "died"
    sentences = [line for line in said if line.startswith("sdm: ") and not line.startswith("sdm: warning")]
    if code == 1 and sentences and (may_trace or "Traceback" not in process.stderr):
        return "said"
    raise Broken(f"exit code {code}: {process.stderr[-1500:]}")


# --- Faults ----------------------------------------------------------------------------------------------------------

Fault = Callable[[Work, Path, random.Random, Straight], str]


def kill(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """kill -9 at a random moment of the run."""
    process = start(work, folder)
    time.sleep(rng.uniform(0, 1.1 * straight.seconds))
    process.send_signal(signal.SIGKILL)
    process.wait()
    return spoken(process)


def full_disk(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """A file system that becomes full somewhere on the way, and then has space again."""
    room = disk_usage(folder) + int(rng.uniform(0, 1.05) * straight.bytes)
    with mounted(folder, max(4096, room)) as resize:
        process = start(work, folder)
        process.wait()
        how = spoken(process)
        check_whole(work, folder)
        resize("size=256m")
        end_well(work, folder, straight)
    return how


def read_only(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """A file system that can only be read, and is writable later."""
    made.environment(folder)
    with mounted(folder, 256 << 20) as remount:
        before = made.folder_bytes(folder)
        remount("ro")
        process = start(work, folder)
        process.wait()
        how = spoken(process)
        if made.folder_bytes(folder) != before:
            raise Broken("a file system that can only be read has changed")
        check_whole(work, folder)
        remount("rw")
        end_well(work, folder, straight)
    return how


def little_memory(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """An address space that ends somewhere on the way."""
    room = int(2 ** rng.uniform(20, 29))  # 1 to 512 MB more than after the imports
    process = start(work, folder, LIMITED + SDM, room)
    process.wait()
    return spoken(process, may_trace=True)  # of a thread in which a library failed


def clock_jump(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """A clock that jumps by years, forwards or backwards, in the middle of the run."""
    stamp = folder.parent / "stamp"
    stamp.write_text(f"{rng.choice('+-')}{rng.randint(1, 4000)}d\n", encoding="ascii")
    jumping = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(stamp), "FAKETIME_NO_CACHE": "1"}
    command = [sys.executable, "-c", SDM, *work.command]
    environment = {**made.environment(folder), **jumping, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with open(folder.parent / "said", "w+b") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
        while process.poll() is None:
            time.sleep(rng.uniform(0, 0.5))
            stamp.write_text(f"{rng.choice('+-')}{rng.randint(1, 4000)}d\n", encoding="ascii")
        if process.returncode:
            said.seek(0)
            raise Broken(f"exit code {process.returncode}: {said.read()[-1500:].decode()}")
    return "done"


def two_at_once(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """The same command twice at once: each ends well, or says why it does not."""
    first = start(work, folder)
    time.sleep(rng.uniform(0, straight.seconds))
    second = start(work, folder)
    first.wait()
    second.wait()
    ends = sorted((spoken(first), spoken(second)))
    if "done" not in ends:
        raise Broken(f"neither of two got through: {first.stderr[-700:]} {second.stderr[-700:]}")
    return " and ".join(ends)


def reader(work: Work, folder: Path, rng: random.Random, straight: Straight) -> str:
    """Somebody who reads all the time meanwhile."""
    process = start(work, folder)
    while process.poll() is None:
        check_whole(work, folder)
    process.wait()
    return spoken(process)


FAULTS: dict[str, Fault] = {
    "kill -9": kill,
    "full disk": full_disk,
    "read-only": read_only,
    "little memory": little_memory,
    "clock jumps": clock_jump,
    "two at once": two_at_once,
    "a reader meanwhile": reader,
}


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[Callable[[str], None]]:
    """The same folder on a file system of its own, which can be mounted again with other options."""
    copy = folder.with_name("before")
    shutil.copytree(folder, copy, symlinks=True)

    def mount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)

    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        shutil.copytree(copy, folder, symlinks=True, dirs_exist_ok=True)
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # models that were loaded there may still be mapped
        shutil.rmtree(copy)


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(["mount", "-t", "tmpfs", "none", place], capture_output=True, check=False)
        return done.returncode == 0 and subprocess.run(["umount", place], check=False).returncode == 0


def unable() -> dict[str, str]:
    """Faults that cannot be made here, and why."""
    missing = {} if can_mount() else dict.fromkeys(("full disk", "read-only"), "no file system can be mounted here")
    return missing if FAKETIME.exists() else missing | {"clock jumps": "libfaketime is not installed"}


# --- Trials ----------------------------------------------------------------------------------------------------------


def trial(fault: str, work: Work, straight: Straight, place: Path, seed: int, tally: Tally) -> None:
    """One fault; afterwards the same command again, which half of the time is killed, too."""
    rng = random.Random(f"{fault} {work.name} {seed}")
    folder = place / "trial" / "folder"
    folder.mkdir(parents=True)
    work.prepare(folder)
    try:
        tally.add(fault, work.name, FAULTS[fault](work, folder, rng, straight))
        check_whole(work, folder)
        while fault == "kill -9" and rng.random() < 0.5:
            tally.add(fault, work.name, kill(work, folder, rng, straight))
            check_whole(work, folder)
        if fault not in ("full disk", "read-only"):
            end_well(work, folder, straight)
    except Broken as error:
        kept = tempfile.mkdtemp(prefix="broken-")
        shutil.move(place / "trial", kept)
        what = {"fault": fault, "work": work.name, "seed": str(seed), "what": str(error), "folder": kept}
        tally.broken.append(what)
        print(json.dumps(what), file=sys.stderr, flush=True)
    shutil.rmtree(place / "trial", ignore_errors=True)


def run(place: Path, n_kills: int, n_others: int, only: str, seed: int) -> dict[str, Any]:
    """Kills of all works in turn until there are enough, then some of every other fault for each of them."""
    begun, tally, left_out = time.monotonic(), Tally(), unable()
    chosen = [work for work in made.works(place) if only in ("", work.name)]
    straight = {work.name: run_straight(work, place) for work in chosen}
    for name, one in straight.items():
        print(f"{name}: {one.seconds:.1f} s, {one.bytes / 1024:.0f} kB undisturbed", file=sys.stderr)
    number = seed * 10**6
    while tally.count("kill -9", "died") < n_kills:
        for work in chosen:
            if not work.real or number % 4 == 0:  # a language model takes longer to load than all else
                trial("kill -9", work, straight[work.name], place, number, tally)
        number += 1
    print(f"killed {tally.count('kill -9', 'died')} times", file=sys.stderr)
    for fault in (fault for fault in FAULTS if fault != "kill -9" and fault not in left_out):
        for number in range(seed * 10**6, seed * 10**6 + n_others):
            for work in chosen:
                trial(fault, work, straight[work.name], place, number, tally)
        print(f"{fault}: {tally.count(fault)} times", file=sys.stderr)
    return {
        "kills": tally.count("kill -9", "died"),
        "kills_with_a_real_language_model": sum(
            tally.ended[f"kill -9: {work.name}"]["died"] for work in chosen if work.real
        ),
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        "ended": {key: dict(counter) for key, counter in sorted(tally.ended.items())},
        "left_out": left_out,
        "broken": tally.broken,
    }


if __name__ == "__main__":
    sys.exit(started(__doc__, run, kills=500, others=5, only=""))
