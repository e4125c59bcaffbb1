"""Files of arrays with one row per input: NPZ and safetensors."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from safetensors import safe_open

from torchsdm.data._request import Request
from torchsdm.data.document import Place
from torchsdm.data.labelled import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.validation import Array, ArrayLike, check_same_length

_BUFFER_BYTES = 1 << 20
_MOST_TIMES = 1032  # that DEFLATE makes of its input


@dataclass(frozen=True)
class _ArrayInFile:
    name: str
    shape: tuple[int, ...]
    read: Callable[[int, int], ArrayLike]
    """Reads the rows from start to before stop. Called for all rows in order."""

    def __len__(self) -> int:
        return self.shape[0]


def _array_blocks(request: Request, arrays: Sequence[_ArrayInFile | None]) -> Iterator[LabelledStates]:
    """Blocks of arrays that have one row per input each; the first has the states."""
    if arrays[0] is None:
        raise request.missing(request.names[0])
    for array in arrays:
        if array is not None and not array.shape:
            raise InvalidInputError(f"{request.source.name}: {array.name!r} is a single number, not one row per input.")
        if array is not None:
            check_same_length(len(arrays[0]), array, array.name, request.source.name)
    n_rows = len(arrays[0])
    for start in [0] if request.size is None else range(0, n_rows, request.size):
        stop = n_rows if request.size is None else min(start + request.size, n_rows)
        columns: list[Any] = [None if array is None else array.read(start, stop) for array in arrays]
        places = [Place.of(f"row {number + 1}", number + 1) for number in range(start, stop)]
        yield replace(LabelledStates(*columns), places=places, numbers=range(start, stop))


def safetensors_blocks(request: Request) -> Iterator[LabelledStates]:
    with safe_open(request.source.files[0], framework="pt") as archive:
        present = set(archive.keys())

        def tensor(name: str) -> _ArrayInFile:
            rows = archive.get_slice(name)
            return _ArrayInFile(name, tuple(rows.get_shape()), lambda start, stop: rows[start:stop])

        yield from _array_blocks(request, [tensor(name) if name in present else None for name in request.names])


def npz_blocks(request: Request) -> Iterator[LabelledStates]:
    with ExitStack() as opened:
        archive = opened.enter_context(zipfile.ZipFile(request.source.files[0]))
        members = {info.filename: info for info in archive.infolist()}

        def array(name: str) -> _ArrayInFile | None:
            info = members.get(f"{name}.npy")
            return None if info is None else _npy_array(request, name, info, opened.enter_context(archive.open(info)))

        yield from _array_blocks(request, [array(name) for name in request.names])


_NPY_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def _npy_array(request: Request, name: str, info: zipfile.ZipInfo, stream: IO[bytes]) -> _ArrayInFile:
    """An array in .npy format; its header is read and checked now, its rows later."""
    version = npy_format.read_magic(stream)
    if version not in _NPY_HEADERS:
        raise ValueError(f"{name!r} uses version {version} of the .npy format, which is not supported")
    try:
        shape, is_fortran, dtype = _NPY_HEADERS[version](stream)
    except (TokenError, SyntaxError, TypeError, RecursionError) as error:  # what NumPy's parser comes to
        raise ValueError(f"the header of {name!r} cannot be read ({error})") from error
    if dtype.hasobject:
        raise ValueError(f"{name!r} contains Python objects, which are not read")
    if info.file_size > _MOST_TIMES * max(info.compress_size, 1):
        raise ValueError(f"{name!r} claims {info.file_size} bytes, more than its {info.compress_size} can unpack to")
    n_bytes = info.file_size - stream.tell()
    if n_bytes != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"{name!r} has {n_bytes} bytes, which does not match its shape {shape}")
    if is_fortran and request.size is not None and shape[0] > request.size:
        raise InvalidInputError(
            f"{request.source.name}: {name!r} is stored column by column (in Fortran order) and cannot be read in "
            "blocks of rows. Store numpy.ascontiguousarray of it instead."
        )

    def read(start: int, stop: int) -> Array:
        wanted = (stop - start, *shape[1:])
        buffer = np.empty(math.prod(wanted) * dtype.itemsize, dtype=np.uint8)
        n_read = 0
        while n_read < len(buffer):  # a little at a time, because the stream copies what it reads
            part = stream.read(min(len(buffer) - n_read, _BUFFER_BYTES))
            if not part:
                raise EOFError(f"{name!r} ends too early")
            buffer.data[n_read : n_read + len(part)] = part
            n_read += len(part)
        return buffer.view(dtype).reshape(wanted, order="F" if is_fortran else "C")

    return _ArrayInFile(name, shape, read)
