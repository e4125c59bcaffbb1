"""Run cases against a reader and say what broke: in a process of its own, with little memory, and watched.

A case is a folder of files. Reading it may succeed or be refused with an exception of torchsdm; everything else is a
failure: another exception, a crash, a case that takes too long or too much memory, a program that is started, a
connection that is opened, a file that is changed.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from torchsdm.errors import TorchSDMError

MEGABYTE = 1 << 20
MEMORY = 1024 * MEGABYTE  #: address space that a target may take beyond what it starts with
RESIDENT = 256 * MEGABYTE  #: and how much of it in memory
SECONDS = 10  #: of the processor that a case may take
LONGEST_MESSAGE = 4000  #: characters of an error
OUTSIDE = "outside"  #: a file beside the folder of a case, that links lead to and nobody may change
_SECRET = b"nobody may write here\n" * 100


@dataclass(frozen=True)
class Link:
    """A symbolic link in a case."""

    to: str


Case = dict[str, bytes | Link]


class Target:
    """Something that reads input; ``seeds`` has good input."""

    name = ""
    writes = False  #: whether it may write into the folder of the case

    def __init__(self, seeds: Path) -> None:
        self.seeds = seeds
        self.own = Path(tempfile.mkdtemp(prefix="target-", dir=seeds.parent))
        """A folder for what it keeps from case to case."""

    def case(self, random: Random) -> Case:
        """The files of a case."""
        raise NotImplementedError

    def read(self, folder: Path) -> None:
        """Read a case; raises an exception of torchsdm if it cannot be used."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what was opened."""
        shutil.rmtree(self.own, ignore_errors=True)


class Wrong(AssertionError):
    """Input was read, but something about it or afterwards is not as it must be."""


class Forbidden(PermissionError):
    """Input made the library do what no input may; it is stopped before it happens."""


class TooSlow(BaseException):
    """A case took too long."""


@dataclass
class Failure:
    """A case that broke something."""

    target: str
    seed: int
    number: int
    kind: str
    what: str
    where: str = ""


@dataclass
class Report:
    """What came of the cases of a target."""

    target: str
    cases: int = 0
    refused: int = 0
    seconds: float = 0.0
    megabytes: int = 0
    """By which the process grew at most."""
    failures: list[Failure] = field(default_factory=list)


def files_of(folder: Path) -> Case:
    """A folder as a case."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_case(case: Case, folder: Path) -> None:
    """Write the files of a case into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in case.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.to)
        else:
            path.write_bytes(content)


def random_of(target: str, seed: int, number: int) -> Random:
    """By which a case is made, and made again."""
    return Random(f"{target}/{seed}/{number}")


# --- What may not happen ---------------------------------------------------------------------------------------------

_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _Audit:
    """Stops programs that are started, connections, unpickling, and files opened to be written elsewhere."""

    def __init__(self) -> None:
        self.folders: tuple[str, ...] = ()
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folders:
            return
        if event in _FORBIDDEN:
            self._stop(f"{event} {arguments!r:.200}")
        if event == "open" and isinstance(arguments[0], str | bytes) and (arguments[2] or 0) & _WRITING:
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith((*self.folders, "/dev/", "/proc/")) and "__pycache__" not in path:
                self._stop(f"write {path}")

    def _stop(self, what: str) -> None:
        self.seen.append(what)
        raise Forbidden(what)

    @contextmanager
    def watching(self, *folders: Path) -> Iterator[None]:
        self.seen.clear()
        self.folders = tuple(map(os.path.realpath, folders))
        try:
            yield
        finally:
            self.folders = ()


def _limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _says_memory(error: BaseException | None) -> bool:
    """Whether an error comes from memory that was asked for and not there."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _where(error: BaseException) -> str:
    """The last lines of ours that an error passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torchsdm/" in frame.filename]
    return " < ".join(f"{frame.filename.rpartition('/torchsdm/')[2]}:{frame.lineno}" for frame in frames[:-4:-1])


# --- Running ---------------------------------------------------------------------------------------------------------


def run_cases(
    target: Target, seed: int, numbers: range, folder: Path, note: Callable[[int], None] = lambda _: None
) -> Report:
    """Run cases in this process."""
    report, audit, work = Report(target.name), _Audit(), folder / "case"
    signal.signal(signal.SIGPROF, _too_slow)
    (folder / OUTSIDE).write_bytes(_SECRET)
    warnings.simplefilter("ignore")
    for number in (-1, *numbers):  # -1 counts for none: imports and first calls take memory
        note(number)
        random = random_of(target.name, seed, number)
        case = target.case(random)
        write_case(case, work)
        if number == numbers.start:
            _limit_memory()
            begin, peak = time.monotonic(), _peak()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        failure, is_refused = None, False
        try:
            with audit.watching(folder, target.own):
                target.read(work)
        except TorchSDMError as error:
            is_refused = True
            if _says_memory(error):
                failure = ("memory", f"{type(error).__name__}: {error!s:.300}", _where(error))
            elif len(str(error)) > LONGEST_MESSAGE:
                failure = (
                    "message",
                    f"{type(error).__name__} of {len(str(error))} characters: {error!s:.200}",
                    _where(error),
                )
        except TooSlow as error:
            failure = ("slow", f"more than {SECONDS} s", _where(error))
        except Exception as error:
            kind = "memory" if _says_memory(error) else "wrong" if isinstance(error, Wrong) else "exception"
            failure = (kind, f"{type(error).__name__}: {error!s:.300}", _where(error))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if audit.seen:
            failure = ("executed", audit.seen[0], "")
        if (folder / OUTSIDE).read_bytes() != _SECRET:
            failure = ("outside", "a file outside of the folder was changed", "")
            (folder / OUTSIDE).write_bytes(_SECRET)
        if failure is None and not target.writes and not _is_unchanged(case, work):
            failure = ("changed", "files of the input were changed", "")
        if number < 0:
            continue
        if failure is None and _peak() - peak > max(RESIDENT, report.megabytes * MEGABYTE):
            failure = ("memory", f"{(_peak() - peak) // MEGABYTE} MB", "")
        report.megabytes = max(report.megabytes, (_peak() - peak) // MEGABYTE)
        report.cases += 1
        report.refused += is_refused
        if failure is not None:
            kind, what, where = failure
            what = what.encode("ascii", "backslashreplace").decode()
            report.failures.append(Failure(target.name, seed, number, kind, what, where))
    report.seconds = round(time.monotonic() - begin, 1)
    target.close()
    return report


def _too_slow(*_: object) -> None:
    raise TooSlow


def _is_unchanged(case: Case, folder: Path) -> bool:
    return all(isinstance(content, Link) or (folder / name).read_bytes() == content for name, content in case.items())


class Progress:
    """The number of the case that a process is at, which its parent can read even if it dies."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes((-2).to_bytes(8, "little", signed=True))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def note(self, number: int) -> None:
        """Called by the process before each case."""
        self._map[:8] = number.to_bytes(8, "little", signed=True)

    def read(self) -> int:
        """The case that it is at; -2 before the first."""
        return int.from_bytes(self._map[:8], "little", signed=True)


def child(target: Target, seed: int, numbers: range, folder: Path) -> None:
    """What a process does: run cases, and write the report."""
    faulthandler.enable()
    os.environ["TORCHSDM_CACHE"] = str(folder / "cache")
    tempfile.tempdir = str(target.own)
    report = run_cases(target, seed, numbers, folder, Progress(folder / "progress").note)
    (folder / "report.json").write_text(json.dumps(asdict(report)))
