"""Hidden states kept by content: the same texts, prompt and language model are never run twice.

Documents go through the language model in blocks, and the states of a block are stored under the digest of all that
makes a difference to them. A larger draw of the same documents begins with the blocks of a smaller one, an interrupted
run goes on where it stopped, and a changed text, prompt, setting or model leads elsewhere by itself.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tqdm.auto import tqdm

from torchsdm.documents import Document, Documents
from torchsdm.errors import CheckpointError, InvalidInputError
from torchsdm.files import replace_file, strict_json
from torchsdm.hidden_states.backbone import Backbone
from torchsdm.hidden_states.extraction import ExtractedStates
from torchsdm.hidden_states.extractor import HiddenStateExtractor
from torchsdm.hidden_states.model_source import cache_directory, find_model
from torchsdm.hidden_states.prompts import TaskPrompt, task_prompt
from torchsdm.states import LabelledStates
from torchsdm.validation import Array

BLOCK = 512  #: documents that are extracted and stored together


@dataclass
class StatesCache:
    """Hidden states of documents by one extractor, from the cache where they are in it."""

    extractor: HiddenStateExtractor
    directory: Path = field(default_factory=lambda: cache_directory() / "states")
    seconds: float = 0.0
    """What extracting took, in this run or when the states were stored."""
    n_documents: int = 0
    n_extracted: int = 0
    """Documents that this run had to extract."""
    n_tokens: int = 0
    n_cut: int = 0
    """Documents that were too long."""

    def states(self, documents: Sequence[Document], *, description: str = "hidden states") -> LabelledStates:
        """The labelled states of documents."""
        if not documents:
            raise InvalidInputError("'documents' of StatesCache.states must not be empty.")
        origin = self.origin()
        blocks = [documents[start : start + BLOCK] for start in range(0, len(documents), BLOCK)]
        disable = None if self.extractor.verbose else True
        extracted = []
        with tqdm(total=len(documents), desc=description, unit="doc", disable=disable) as progress:
            for block in blocks:
                extracted.append(self._block(block, origin))
                progress.update(len(block))
        joined = ExtractedStates.concatenate(extracted)
        return LabelledStates(
            joined.hidden_states,
            np.array([document.label for document in documents]),
            [document.id for document in documents],
            [document.text for document in documents],
            joined.label_logits,
            origin,
        )

    def origin(self) -> dict[str, Any]:
        """What the states are made from; known without loading the language model if it was loaded once before."""
        origin = self.extractor.origin() if isinstance(self.extractor.model, Backbone) else self._stored_origin()
        self.extractor.keep_prompt(origin)  # also the first time: midnight may pass, and a chat template write the date
        return origin

    def _stored_origin(self) -> dict[str, Any]:
        name = f"origin-{self._settings_digest()}"
        path = self.directory / f"{name}.json"
        stored = _read_origin(path)
        if stored is None:
            with self._locked(name):
                stored = _read_origin(path) or self.extractor.origin()
                self._store(path, strict_json(stored).encode())
        return stored

    def _block(self, documents: Sequence[Document], origin: dict[str, Any]) -> ExtractedStates:
        content = [[document.text, document.answer] for document in documents]
        made_from = {"origin": _without_places(origin), "documents": content}
        path = self.directory / f"{_digest(made_from)}.safetensors"
        stored = _read(path)
        if stored is None:
            with self._locked(_digest(made_from["origin"])):
                stored = _read(path) or self._made(path, documents)
        extracted, seconds = stored
        self.seconds += seconds
        self.n_documents += len(documents)
        self.n_tokens += int(extracted.n_tokens.sum())
        self.n_cut += int((extracted.n_cut > 0).sum())
        return extracted

    def _made(self, path: Path, documents: Sequence[Document]) -> tuple[ExtractedStates, float]:
        """A block that is extracted and stored, and the seconds that took."""
        begin = time.perf_counter()
        extracted = self._extract(documents)
        seconds = time.perf_counter() - begin
        arrays = {name: array for name, array in vars(extracted).items() if array is not None}
        self._store(path, save(arrays, {"seconds": str(seconds), "sha256": _content_digest(arrays)}))
        self.n_extracted += len(documents)
        return extracted, seconds

    def _extract(self, documents: Sequence[Document]) -> ExtractedStates:
        asks = "answer" in self._prompt.fields
        texts = [document.text for document in documents]
        answers = [document.answer for document in documents] if asks else None
        is_verbose, self.extractor.verbose = self.extractor.verbose, False  # one bar is enough
        try:
            return self.extractor.extract(Documents(texts, answers=answers, repeated="keep"))
        finally:
            self.extractor.verbose = is_verbose

    @property
    def _prompt(self) -> TaskPrompt:
        return task_prompt(self.extractor.prompt, "StatesCache")

    def _settings_digest(self) -> str:
        """Of the model's files, where they lie, and the extractor's settings."""
        settings = self.extractor.get_params()
        source = find_model(str(self.extractor.model), self.extractor.revision)
        ignored = ("model", "prompt", "verbose", "batch_tokens")
        return _digest(
            {
                "model": [source.reference, source.fingerprint()],
                "prompt": self._prompt.to_json(),
                "settings": {name: value for name, value in settings.items() if name not in ignored},
            }
        )

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Alone with what has this name: another process that wants it waits, and then finds it stored."""
        with self._writing():
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / f".{name}.lock").acquire()  # the system lets go of it if we are killed
        with lock:
            yield

    def _store(self, path: Path, content: bytes) -> None:
        with self._writing():
            replace_file(path, content)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self.directory} cannot be written: {error}. Set TORCHSDM_CACHE to a folder that can."
            ) from error


def _read_origin(path: Path) -> dict[str, Any] | None:
    """A stored origin; None where it is absent or damaged."""
    try:
        origin: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return origin if all(isinstance(origin[part], dict) for part in ("model", "prompt", "states")) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> tuple[ExtractedStates, float] | None:
    """A stored block and the seconds it took; None where it is absent or damaged, and so to be made anew."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as archive:
            arrays: dict[str, Any] = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
            facts = archive.metadata()
        digest = _content_digest(arrays)
        if facts["sha256"] != digest:
            return None
        return ExtractedStates(**{"label_logits": None, **arrays}), float(facts["seconds"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _without_places(origin: dict[str, Any]) -> dict[str, Any]:
    model = {name: value for name, value in origin["model"].items() if name not in ("reference", "revision")}
    return {**origin, "model": model}


def _content_digest(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:32]
