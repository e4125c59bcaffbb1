"""Hidden states on disk: one kind of block, stored by content.

A block is one safetensors file with the states of some documents, named by a digest of everything that affects them:
texts, answers, language model, prompt, settings. So a changed text or setting gives a new name, a stored block is never
extracted again, and a damaged one is.

``StatesStore`` is a folder of blocks, such as the cache; several processes can use it at once. The folder of one run,
as ``sdm embed`` writes it, has the same blocks and lists them in order (``torchsdm.data.folder``).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from torchsdm.data.documents import Document
from torchsdm.data.labelled import StatesOrigin
from torchsdm.files import replace_file, strict_json, writing_to
from torchsdm.validation import Array


@dataclass(frozen=True)
class ExtractedStates:
    """What a language model makes of N documents."""

    hidden_states: Array
    """h, (N, D) float32; (N, 1 + segments, D) with segments."""
    label_logits: Array | None
    """The language model's own logits of the label words (N, C), in the order of the prompt's ``label_words``."""
    n_tokens: Array
    """Tokens of each document under the prompt, as run (N,)."""
    n_cut: Array
    """Tokens that each document lost because it was too long (N,)."""

    def __len__(self) -> int:
        return len(self.hidden_states)

    @classmethod
    def concatenate(cls, blocks: Sequence[ExtractedStates]) -> ExtractedStates:
        """The states of several blocks, one after the other."""
        logits = [block.label_logits for block in blocks if block.label_logits is not None]
        return cls(
            np.concatenate([block.hidden_states for block in blocks]),
            np.concatenate(logits) if logits else None,
            np.concatenate([block.n_tokens for block in blocks]),
            np.concatenate([block.n_cut for block in blocks]),
        )


Make = Callable[[], ExtractedStates]  # runs the language model
_REMEDY = " Set TORCHSDM_CACHE (or cache=...) to a writable folder."


# --- Blocks ----------------------------------------------------------------------------------------------------------


def block_name(origin: StatesOrigin, documents: Sequence[Document]) -> str:
    """The name of a block's file: a digest of everything that affects its states."""
    content = [[document.text, document.answer] for document in documents]
    return f"{digest({'origin': origin.identity(), 'documents': content})}.safetensors"


def read_block(path: Path) -> tuple[ExtractedStates, float] | None:
    """A stored block, and the seconds that it took to extract; None if it is absent or damaged and has to be made."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as archive:
            arrays: dict[str, Any] = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
            facts = archive.metadata()
        if facts["sha256"] != _content_digest(arrays):
            return None
        return ExtractedStates(**{"label_logits": None, **arrays}), float(facts.get("seconds", 0))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_block(path: Path, states: ExtractedStates, **facts: str) -> None:
    """Store a block atomically, with its digest."""
    arrays = {name: np.ascontiguousarray(array) for name, array in vars(states).items() if array is not None}
    replace_file(path, save(arrays, {**facts, "sha256": _content_digest(arrays)}))


def digest(value: Any) -> str:
    """A digest of plain values, to name them by."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:32]


def _content_digest(arrays: Mapping[str, Array]) -> str:
    hashed = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape} ".encode())
        hashed.update(array.tobytes())
    return hashed.hexdigest()


# --- A store of blocks -----------------------------------------------------------------------------------------------


@dataclass
class ExtractionCounts:
    """What a store was asked for."""

    n_documents: int = 0
    n_extracted: int = 0
    """Documents that were not in the store."""
    n_tokens: int = 0
    n_cut: int = 0
    """Documents that were too long."""
    seconds: float = 0.0
    """How long all of them took to extract, now or when they were stored."""


class StatesStore:
    """Blocks of states in a folder, made once and reused; processes that want the same block wait for each other.

    The folder is created when the first block is stored.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.counts = ExtractionCounts()
        """Over all blocks requested from this object."""

    def block(self, origin: StatesOrigin, documents: Sequence[Document], make: Make) -> ExtractedStates:
        """The states of some documents, made if they are not stored."""
        path = self.directory / block_name(origin, documents)
        stored = read_block(path)
        if stored is None:
            with self._locked(digest(origin.identity())):
                stored = read_block(path)
                if stored is None:
                    begin = time.perf_counter()
                    stored = make(), time.perf_counter() - begin
                    with writing_to(self.directory, _REMEDY):
                        write_block(path, stored[0], seconds=str(stored[1]))
                    self.counts.n_extracted += len(stored[0])
        states, seconds = stored
        self.counts.n_documents += len(documents)
        self.counts.n_tokens += int(states.n_tokens.sum())
        self.counts.n_cut += int((states.n_cut > 0).sum())
        self.counts.seconds += seconds
        return states

    def has(self, origin: StatesOrigin, documents: Sequence[Document]) -> bool:
        """Whether there is a file of the states of some documents; only ``block`` finds out if it is damaged."""
        return (self.directory / block_name(origin, documents)).is_file()

    def origin(self, settings: str, make: Callable[[], StatesOrigin]) -> StatesOrigin:
        """The origin of an extractor's states, by the digest of its settings; once stored, no model is needed."""
        name = f"origin-{settings}"
        path = self.directory / f"{name}.json"
        stored = _read_origin(path)
        if stored is None:
            with self._locked(name):
                stored = _read_origin(path) or make()
                with writing_to(self.directory, _REMEDY):
                    replace_file(path, strict_json(stored.to_json()).encode())
        return stored

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Lock a name: another process that wants it waits, then finds it stored."""
        with writing_to(self.directory, _REMEDY):
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / f".{name}.lock").acquire()  # the system releases it if we are killed
        with lock:
            yield


def _read_origin(path: Path) -> StatesOrigin | None:
    """A stored origin; None if it is absent or damaged."""
    try:
        return StatesOrigin.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
