"""Hidden states extracted on a cluster: blocks of documents, one replica of the language model per worker or GPU.

The blocks are those that one process would cut, so the states are the same; whoever asked stores them as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from sklearn.base import clone

from torchsdm.cluster.backend import Backend, RayBackend, as_backend
from torchsdm.cluster.replicas import map_in_order
from torchsdm.data import Document, ExtractedStates
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import BlockReader, Elsewhere, NumberedBlocks


def extract_on(backend: Backend, caller: str) -> Elsewhere | None:
    """Who extracts blocks in place of this process on a backend; None for this process."""
    cluster = as_backend(backend, caller)
    return None if cluster is None else partial(_extract, cluster)


def _extract(backend: RayBackend, reader: BlockReader, blocks: NumberedBlocks) -> Iterator[tuple[int, ExtractedStates]]:
    sent = portable(reader)
    return map_in_order(backend, partial(_reading, sent), blocks, device_type=device_type(sent))


def portable(reader: BlockReader) -> BlockReader:
    """A reader that can be sent to a node, which must have the language model under the same name."""
    extractor = reader.extractor
    if not isinstance(extractor.model, (str, Path)):
        raise InvalidInputError(
            "A cluster needs the name or the path of the language model, which each node loads itself. Got a "
            f"{type(extractor.model).__name__}."
        )
    model = str(extractor.model)
    place = str(Path(model).resolve()) if Path(model).exists() else model  # a node works in another directory
    return replace(reader, extractor=clone(extractor).set_params(model=place))


def device_type(reader: BlockReader) -> str:
    """The kind of device that the language model runs on."""
    return torch.device(reader.extractor.device or "cpu").type


def _reading(
    reader: BlockReader,
) -> Callable[[tuple[int, Sequence[Document]]], tuple[int, ExtractedStates]]:
    """What a replica does."""
    extraction = reader.load()
    return lambda numbered: (numbered[0], extraction.extract(numbered[1], lambda _: None, reader.source))
