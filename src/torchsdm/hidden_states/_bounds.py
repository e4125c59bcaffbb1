"""The text of a chat template, which is a stranger's program, within bounds of time and memory."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

from torchsdm.errors import InvalidInputError

SECONDS = 10  #: of the processor
LONGEST = 1_000_000  #: characters of the text, about as many as the longest context has
_MEMORY = 1 << 28  # bytes beyond what this process has
_WAIT = 6 * SECONDS  # on a machine that is busy


def bounded_text(make: Callable[[], str], what: str) -> str:
    """The text that ``make`` returns; ``what`` names it in the error where that takes too much, or fails.

    A chat template is a program that comes with a language model. It cannot reach anything (jinja's sandbox), but it
    can run forever or fill the memory. So it is run in a copy of this process that the system stops in time; a system
    without copies of processes runs it here.
    """
    if not hasattr(os, "fork"):
        return _checked(_attempt(make), what)
    reader, writer = Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a copy must not use threads; it does not
        child = os.fork()
    if child == 0:
        try:
            reader.close()
            _limit_this_process()
            writer.send_bytes(_attempt(make))
        finally:
            os._exit(0)
    writer.close()
    try:
        answer = reader.recv_bytes() if reader.poll(_WAIT) else b""
    except (EOFError, OSError):  # it was stopped
        answer = b""
    finally:
        reader.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return _checked(answer, what)


def _attempt(make: Callable[[], str]) -> bytes:
    """The text after a plus, or what went wrong after a minus; whatever a template raises is its author's."""
    try:
        return b"+" + make()[: LONGEST + 1].encode("utf-8", "surrogatepass")
    except MemoryError:
        return b""
    except Exception as error:
        return b"-" + str(error)[:1000].encode("utf-8", "surrogatepass")


def _checked(answer: bytes, what: str) -> str:
    text = answer[1:].decode("utf-8", "surrogatepass")
    if answer[:1] == b"-":
        raise InvalidInputError(f"{what} refuses the prompt: {text}.")
    if not answer or len(text) > LONGEST:
        raise InvalidInputError(
            f"{what} takes more than {SECONDS} s or {_MEMORY >> 20} MB, or makes more than {LONGEST:,} characters. Set "
            "use_chat=False, or use a model that you trust."
        )
    return text


def _limit_this_process() -> None:
    import resource

    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    if sys.platform == "linux":
        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = size + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
