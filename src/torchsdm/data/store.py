"""Hidden states on disk: one kind of block, stored by content.

A block is one safetensors file with the states of some documents, named by a digest of everything that affects them:
texts, answers, language model, prompt, settings. So a changed text or setting gives a new name, a stored block is never
extracted again, and a damaged one is.

``StatesStore`` is a folder of blocks, such as the cache; several processes can use it at once. ``StatesFolder`` has the
blocks of one run in order, as ``sdm embed`` writes it. Next to each block are its ids, labels and texts as JSONL, and a
manifest names every finished block with its digest and says what the states were made from. It is replaced atomically
after each block, so it never names half a block. A different run (language model, prompt or input) is refused, not
mixed in.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from torchsdm.data.documents import Document
from torchsdm.data.labelled import ExtractedStates, StatesOrigin
from torchsdm.data.source import MANIFEST_NAME
from torchsdm.errors import CheckpointError, InvalidInputError, ModelFileError
from torchsdm.files import (
    describe_file,
    file_problem,
    is_file_entry,
    only_writer,
    parse_json,
    remove_unfinished,
    replace_file,
    strict_json,
    writing_to,
)
from torchsdm.validation import Array
from torchsdm.wording import shortened

Make = Callable[[], ExtractedStates]  # runs the language model
_REMEDY = " Set TORCHSDM_CACHE (or cache=...) to a writable folder."
_FORMAT = "torchsdm-states"
_FORMAT_VERSION = 1


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


# --- The folder of a run ---------------------------------------------------------------------------------------------


@dataclass
class FolderWriter:
    """Writes the states of one run, resuming an earlier one. Use it as a context manager.

    The directory is created if missing; one made from another origin or other documents is refused.
    """

    directory: Path
    origin: StatesOrigin
    documents: str
    """The fingerprint of all of them."""
    n_rows: int
    shard_size: int
    """Documents per block; a resumed run keeps the size it started with."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is worth recording but does not affect states, such as versions."""
    n_extracted: int = field(default=0, init=False)
    """Documents that this object had to extract."""

    def __enter__(self) -> FolderWriter:
        with writing_to(self.directory), ExitStack() as held:
            held.enter_context(only_writer(self.directory))
            self._manifest = self._resume()
            self.shard_size = int(self._manifest["shard_size"])
            remove_unfinished(self.directory)
            self._write_manifest(self._manifest)  # before any block: files next to a manifest are ours
            self._held = held.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._held.close()

    @property
    def n_finished(self) -> int:
        """Number of finished blocks."""
        return len(self._manifest["shards"])

    def counted(self, name: str) -> int:
        """The sum of a count over all finished blocks."""
        return sum(int(shard["counts"][name]) for shard in self._manifest["shards"])

    def has(self, documents: Sequence[Document]) -> bool:
        """Whether there is a file of the states of some documents; only ``add`` finds out if it is damaged."""
        return (self.directory / block_name(self.origin, documents)).is_file()

    def add(self, documents: Sequence[Document], make: Make) -> ExtractedStates:
        """The states of the next documents, made if they are not stored, and listed in the manifest."""
        path = self.directory / block_name(self.origin, documents)
        stored = read_block(path)
        states = make() if stored is None else stored[0]
        if len(states) != len(documents):
            raise InvalidInputError(
                f"The states of FolderWriter.add must have {len(documents)} rows. Got {len(states)}."
            )
        columns = ("id", "text", "label", "answer")
        kept = ({name: getattr(one, name) for name in columns if getattr(one, name) is not None} for one in documents)
        lines = [json.dumps(example, ensure_ascii=False, allow_nan=False) for example in kept]
        examples = self.directory / f"examples-{self.n_finished:05d}.jsonl"
        with writing_to(self.directory, " Finished blocks are kept."):
            if stored is None:
                write_block(path, states)
            replace_file(examples, "".join(f"{line}\n" for line in lines).encode())
            shard = {
                "rows": len(lines),
                "counts": {"documents_cut": int((states.n_cut > 0).sum()), "tokens_cut": int(states.n_cut.sum())},
                "states": describe_file(path),
                "examples": describe_file(examples),
            }
            manifest = {**self._manifest, "shards": [*self._manifest["shards"], shard]}
            self._write_manifest(manifest)
        self._manifest = manifest
        self.n_extracted += len(states) if stored is None else 0
        return states

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        replace_file(self.directory / MANIFEST_NAME, f"{strict_json(manifest)}\n".encode())

    def _resume(self) -> dict[str, Any]:
        """The manifest to resume from: a new one, or that of an earlier run up to its first damaged block."""
        now: dict[str, Any] = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "origin": {**json.loads(strict_json(self.origin.to_json())), "documents": {"fingerprint": self.documents}},
            "facts": dict(self.facts),
            "n_rows": self.n_rows,
            "shard_size": self.shard_size,
            "shards": [],
        }
        stored = begun_folder(self.directory)
        if stored is None:
            if any(self.directory.glob("[!.]*.safetensors")):
                raise CheckpointError(
                    f"{self.directory} contains safetensors files that are not ours. Use a separate directory."
                )
            return now
        then = stored.manifest
        differences = (
            stored.origin.difference(StatesOrigin.from_json(now["origin"])),
            ("documents fingerprint", then["origin"]["documents"]["fingerprint"], self.documents),
            ("number of documents", then["n_rows"], self.n_rows),
        )
        for what, old, new in filter(None, differences):
            if old != new:
                raise CheckpointError(
                    f"{self.directory} was made with a different {what}: {shortened(repr(old))} then, "
                    f"{shortened(repr(new))} now. Use another directory, or remove this one to start over."
                )
        sound = takewhile(lambda shard: stored.problem_of(shard, with_digest=True) is None, then["shards"])
        return {**then, "shards": list(sound)}


@dataclass(frozen=True)
class StatesFolder:
    """A folder that ``FolderWriter`` wrote, checked on opening."""

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = False) -> StatesFolder:
        """Open a folder, checking that every finished block is present and complete; ``verify`` checks digests too."""
        directory = Path(directory)
        stored = cls(directory, _read_manifest(directory / MANIFEST_NAME))
        for shard in stored.manifest["shards"]:
            stored._check(shard, with_digest=verify)
        return stored

    @property
    def origin(self) -> StatesOrigin:
        """What the states were made from."""
        return StatesOrigin.from_json(self.manifest["origin"])

    def problem_of(self, shard: Mapping[str, Any], *, with_digest: bool = False) -> str | None:
        """What is wrong with the files of a block; None if nothing is."""
        entries = (shard[kind] for kind in ("states", "examples"))
        problems = (file_problem(self.directory, entry, with_digest=with_digest) for entry in entries)
        return next(filter(None, problems), None)

    def _check(self, shard: Mapping[str, Any], *, with_digest: bool) -> None:
        problem = self.problem_of(shard, with_digest=with_digest)
        if problem is not None:
            raise ModelFileError(f"{problem} Run the extraction again; it redoes this block.")

    @property
    def n_finished_rows(self) -> int:
        """Number of finished rows."""
        return sum(int(shard["rows"]) for shard in self.manifest["shards"])

    def check_complete(self) -> None:
        """Refuse an unfinished run."""
        if self.n_finished_rows != self.manifest["n_rows"]:
            raise ModelFileError(
                f"{self.directory} is not finished: {self.n_finished_rows} of {self.manifest['n_rows']} rows are "
                "done. Run the extraction again; it resumes where it stopped."
            )

    def block_examples(self) -> Iterator[list[dict[str, Any]]]:
        """The ids, texts and labels of each block in turn."""
        for shard in self.manifest["shards"]:
            path = self.directory / shard["examples"]["file"]
            try:
                with open(path, encoding="utf-8") as lines:
                    examples = [parse_json(line) for line in lines]
                if not all(isinstance(example, dict) for example in examples):
                    raise ValueError("expected a JSON object in each line")
                _check_rows(path.name, examples, shard)
            except (OSError, ValueError) as error:
                raise ModelFileError(f"{path} is damaged: {error}.") from error
            yield examples

    def block_arrays(self, *, verify: bool = False) -> Iterator[dict[str, Array]]:
        """The arrays of each block in turn; with ``verify``, the digests of its files are checked first.

        All blocks have the same arrays, each with one dtype and one row shape.
        """
        expected: dict[str, Any] | None = None
        for shard in self.manifest["shards"]:
            if verify:
                self._check(shard, with_digest=True)
            path = self.directory / shard["states"]["file"]
            try:
                with safe_open(path, framework="pt") as archive:
                    arrays = {key: archive.get_tensor(key).numpy() for key in archive.keys()}  # noqa: SIM118
                for key, array in arrays.items():
                    _check_rows(key, array, shard)
                found = {key: (str(array.dtype), *array.shape[1:]) for key, array in arrays.items()}
                if found != (expected := expected or found):
                    raise ValueError(f"it has {found}, but the first block has {expected}")
            except (SafetensorError, OSError, TypeError, ValueError) as error:  # TypeError: a type that NumPy lacks
                raise ModelFileError(f"{path} is damaged and cannot be read: {error}.") from error
            yield arrays

    def arrays(self) -> dict[str, Array]:
        """The arrays of all rows, joined."""
        joined: dict[str, Array] = {}
        start = 0
        for shard, arrays in zip(self.manifest["shards"], self.block_arrays(), strict=True):
            for key, block in arrays.items():
                if key not in joined:
                    joined[key] = np.empty((self.n_finished_rows, *block.shape[1:]), dtype=block.dtype)
                joined[key][start : start + len(block)] = block
            start += int(shard["rows"])
        return joined


def begun_folder(directory: Path) -> StatesFolder | None:
    """The folder of a run, whose blocks are not looked at; None if nothing was written to it yet."""
    path = directory / MANIFEST_NAME
    return StatesFolder(directory, _read_manifest(path)) if path.exists() else None


def _check_rows(what: str, values: Sized, shard: Mapping[str, Any]) -> None:
    if len(values) != shard["rows"]:
        raise ValueError(f"{what} has {len(values)} rows, not {shard['rows']}")


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing: {path.parent} contains no hidden states.") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged: {error}. Remove the directory to start over.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ModelFileError(f"{path} is not a torchsdm states manifest; left untouched.")
    if manifest.get("format_version") != _FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {manifest.get('format_version')!r}; this torchsdm reads {_FORMAT_VERSION}."
        )
    if not _is_manifest(manifest):
        raise ModelFileError(f"{path} is damaged: entries are missing or invalid. Remove the directory to start over.")
    return manifest


def _is_manifest(manifest: dict[str, Any]) -> bool:
    """Whether all that is read of a manifest is there, and of its type."""
    try:
        StatesOrigin.from_json(manifest["origin"])
        shards = manifest["shards"]
        numbers = [manifest["n_rows"], manifest["shard_size"], *(shard["rows"] for shard in shards)]
        return (
            isinstance(manifest["origin"]["documents"]["fingerprint"], str)
            and isinstance(shards, list)
            and all(isinstance(number, int) for number in numbers)
            and all(isinstance(shard["counts"], dict) for shard in shards)
            and all(is_file_entry(shard[kind]) for shard in shards for kind in ("states", "examples"))
        )
    except (KeyError, TypeError, InvalidInputError):
        return False
