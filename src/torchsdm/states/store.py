"""Hidden states on disk in shards, written so that a run that is killed goes on where it stopped.

A directory holds one safetensors file and one JSONL file (ids, labels, texts) for each block of rows, and
``manifest.json``, which names every finished shard with its digest and says what the states were made from. The
manifest is replaced in one step after each shard, so it never names half a shard; and another run (another language
model, prompt or input) is refused, not mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from torchsdm.errors import CheckpointError, InvalidInputError, ModelFileError, TorchSDMError
from torchsdm.files import describe_file, file_problem, is_file_entry, remove_unfinished, replace_file, strict_json
from torchsdm.validation import Array

MANIFEST_NAME = "manifest.json"
_FORMAT = "torchsdm-states"
_FORMAT_VERSION = 1
_LOCK_NAME = ".lock"
_PLACES = ("reference", "revision")  # where a model was found; its fingerprint says which it is


class ShardWriter:
    """Writes the shards of one run, on from where an earlier run stopped. Use it as a context.

    Parameters
    ----------
    directory : path
        Made if it is not there.
    origin : mapping
        What the states are made from, as plain values; a directory made from anything else is refused.
    n_rows : int
        Rows of the whole run.
    shard_size : int
        Rows of a shard. A run is resumed with the size it was begun with.
    facts : mapping, optional
        What is worth keeping but makes no difference, such as versions.
    """

    def __init__(
        self,
        directory: str | Path,
        origin: Mapping[str, Any],
        n_rows: int,
        shard_size: int,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._fresh = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "origin": json.loads(strict_json(origin)),
            "facts": dict(facts or {}),
            "n_rows": n_rows,
            "shard_size": shard_size,
            "shards": [],
        }

    def __enter__(self) -> ShardWriter:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.directory / _LOCK_NAME)  # the system lets go of it if we are killed
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise CheckpointError(f"{self.directory} is being written by another process.") from error
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be written: {error}.") from error
        try:
            self._manifest = self._resume()
            remove_unfinished(self.directory)
            self._write_manifest(self._manifest)  # before any shard: what lies beside a manifest is ours
        except OSError as error:
            self._lock.release()
            if isinstance(error, TorchSDMError):
                raise
            raise CheckpointError(f"{self.directory} cannot be written: {error}.") from error
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    @property
    def shard_size(self) -> int:
        """Rows of a shard, as the run was begun."""
        return int(self._manifest["shard_size"])

    @property
    def n_finished(self) -> int:
        """Shards that are finished."""
        return len(self._manifest["shards"])

    def counted(self, name: str) -> int:
        """The sum of a count over all finished shards."""
        return sum(int(shard["counts"][name]) for shard in self._manifest["shards"])

    def write(
        self, tensors: Mapping[str, Tensor], examples: Iterable[Mapping[str, Any]], counts: Mapping[str, int]
    ) -> None:
        """Add the next shard: tensors of one row per example, the examples as plain values, and what was counted."""
        name = f"shard-{self.n_finished:05d}"
        examples = list(examples)
        if any(len(tensor) != len(examples) for tensor in tensors.values()):
            found = sorted({len(tensor) for tensor in tensors.values()})
            raise InvalidInputError(f"'tensors' of ShardWriter.write must have {len(examples)} rows each. Got {found}.")
        lines = [json.dumps(example, ensure_ascii=False, allow_nan=False) for example in examples]
        states, texts = self.directory / f"{name}.safetensors", self.directory / f"{name}.jsonl"
        try:
            replace_file(states, save({key: tensor.contiguous() for key, tensor in tensors.items()}))
            replace_file(texts, "".join(f"{line}\n" for line in lines).encode())
            shard = {
                "rows": len(lines),
                "counts": dict(counts),
                "states": describe_file(states),
                "examples": describe_file(texts),
            }
            manifest = {**self._manifest, "shards": [*self._manifest["shards"], shard]}
            self._write_manifest(manifest)
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be written: {error}. What is finished is kept.") from error
        self._manifest = manifest

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        replace_file(self.directory / MANIFEST_NAME, f"{strict_json(manifest)}\n".encode())

    def _resume(self) -> dict[str, Any]:
        """The manifest to go on from: a new one, or that of an earlier run up to its first damaged shard."""
        path = self.directory / MANIFEST_NAME
        if not path.exists():
            if any(self.directory.glob("[!.]*.safetensors")):
                raise CheckpointError(
                    f"{self.directory} holds safetensors files of something else. Use a directory of its own."
                )
            return dict(self._fresh)
        stored = StoredShards(self.directory, _read_manifest(path))
        for what, old, new in (
            *differences(stored.manifest["origin"], self._fresh["origin"]),
            *differences({"rows": stored.manifest["n_rows"]}, {"rows": self._fresh["n_rows"]}),
        ):
            raise CheckpointError(
                f"{self.directory} was made with another {what}: {shortened(old)} then, {shortened(new)} now. "
                "Use another directory, or remove this one to start anew."
            )
        sound = list(
            takewhile(lambda shard: stored.problem_of(shard, with_digest=True) is None, stored.manifest["shards"])
        )
        return {**stored.manifest, "shards": sound}


@dataclass(frozen=True)
class StoredShards:
    """A directory of shards, checked on opening."""

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = False) -> StoredShards:
        """Open a directory, checking that every finished shard is there and whole; with ``verify`` also digests."""
        directory = Path(directory)
        stored = cls(directory, _read_manifest(directory / MANIFEST_NAME))
        for shard in stored.manifest["shards"]:
            stored._check(shard, with_digest=verify)
        return stored

    def problem_of(self, shard: Mapping[str, Any], *, with_digest: bool = False) -> str | None:
        """What is wrong with the files of a shard, None if nothing."""
        problems = (
            file_problem(self.directory, shard[kind], with_digest=with_digest) for kind in ("states", "examples")
        )
        return next((problem for problem in problems if problem is not None), None)

    def _check(self, shard: Mapping[str, Any], *, with_digest: bool) -> None:
        problem = self.problem_of(shard, with_digest=with_digest)
        if problem is not None:
            raise ModelFileError(f"{problem} Run the extraction again: it goes on from the shard before.")

    @property
    def n_finished_rows(self) -> int:
        """Rows that are there."""
        return sum(int(shard["rows"]) for shard in self.manifest["shards"])

    def check_complete(self) -> None:
        """Refuse the shards of a run that has not ended."""
        if self.n_finished_rows != self.manifest["n_rows"]:
            raise ModelFileError(
                f"{self.directory} is not finished: {self.n_finished_rows} of {self.manifest['n_rows']} rows are "
                "there. Run the extraction again; it goes on where it stopped."
            )

    def shard_examples(self) -> Iterator[list[dict[str, Any]]]:
        """The examples of each shard in turn."""
        for shard in self.manifest["shards"]:
            path = self.directory / shard["examples"]["file"]
            try:
                with open(path, encoding="utf-8") as lines:
                    examples = [json.loads(line) for line in lines]
                _check_rows(path.name, examples, shard)
            except (OSError, ValueError) as error:
                raise ModelFileError(f"{path} is damaged: {error}.") from error
            yield examples

    def examples(self) -> Iterator[dict[str, Any]]:
        """The examples of all rows, in order."""
        return chain.from_iterable(self.shard_examples())

    def shard_tensors(self, *, verify: bool = False) -> Iterator[dict[str, Array]]:
        """The tensors of each shard in turn; with ``verify``, the digests of its files are checked first.

        All shards have the same tensors, each of one type and of rows of one shape.
        """
        expected: dict[str, Any] | None = None
        for shard in self.manifest["shards"]:
            if verify:
                self._check(shard, with_digest=True)
            path = self.directory / shard["states"]["file"]
            try:
                with safe_open(path, framework="pt") as archive:
                    tensors = {key: archive.get_tensor(key).numpy() for key in archive.keys()}  # noqa: SIM118
                for key, tensor in tensors.items():
                    _check_rows(key, tensor, shard)
                found = {key: (str(tensor.dtype), *tensor.shape[1:]) for key, tensor in tensors.items()}
                if found != (expected := expected or found):
                    raise ValueError(f"it holds {found} where the first shard holds {expected}")
            except (SafetensorError, OSError, TypeError, ValueError) as error:  # TypeError: a type that NumPy lacks
                raise ModelFileError(f"{path} is damaged and cannot be read: {error}.") from error
            yield tensors

    def tensors(self) -> dict[str, Array]:
        """The tensors of all rows, joined."""
        joined: dict[str, Array] = {}
        start = 0
        for shard, tensors in zip(self.manifest["shards"], self.shard_tensors(), strict=True):
            for key, block in tensors.items():
                if key not in joined:
                    joined[key] = np.empty((self.n_finished_rows, *block.shape[1:]), dtype=block.dtype)
                joined[key][start : start + len(block)] = block
            start += int(shard["rows"])
        return joined


def _check_rows(what: str, values: Sized, shard: Mapping[str, Any]) -> None:
    if len(values) != shard["rows"]:
        raise ValueError(f"{what} has {len(values)} rows, not {shard['rows']}")


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing: {path.parent} holds no hidden states.") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged: {error}. Remove the directory to start anew.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ModelFileError(f"{path} belongs to something else than hidden states; it is left alone.")
    if manifest.get("format_version") != _FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {manifest.get('format_version')!r}; this torchsdm reads {_FORMAT_VERSION}."
        )
    shards = manifest.get("shards")
    is_sound = all(isinstance(manifest.get(name), int) for name in ("n_rows", "shard_size"))
    is_sound = is_sound and isinstance(manifest.get("origin"), dict) and isinstance(shards, list)
    if not is_sound or not all(_is_shard(shard) for shard in shards or []):
        raise ModelFileError(f"{path} is damaged: it cannot be understood. Remove the directory to start anew.")
    return manifest


def stored_origin(directory: Path) -> dict[str, Any] | None:
    """What the states of a directory were made from, None where there are none yet."""
    path = directory / MANIFEST_NAME
    return dict(_read_manifest(path)["origin"]) if path.exists() else None


def _is_shard(shard: Any) -> bool:
    return (
        isinstance(shard, dict)
        and isinstance(shard.get("rows"), int)
        and isinstance(shard.get("counts"), dict)
        and is_file_entry(shard.get("states"))
        and is_file_entry(shard.get("examples"))
    )


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(what, old, new) of each value that differs between two origins; where a model lies makes no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [key for key in {**old, **new} if key not in _PLACES]:
            yield from differences(old.get(key), new.get(key), f"{where} {key}".strip())
    elif old != new:
        yield where, old, new


def shortened(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
