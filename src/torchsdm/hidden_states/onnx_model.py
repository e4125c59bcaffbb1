"""Encoders in ONNX files, run by onnxruntime. The only module that imports it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchsdm.errors import BackboneError, InvalidInputError, MissingExtraError
from torchsdm.validation import Array

_STATES = ("last_hidden_state", "token_embeddings")  # as Optimum calls the states, for transformers and for sentences
_LAYER = re.compile(r"hidden_states\D?(\d+)")
_NUMBERS = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
_DTYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}
# Changes by the rest of a batch that count as none, in standard deviations of the states.
_SAME = {torch.float32: 1e-4, torch.float16: 0.1}
_EXPORT = "optimum-cli export onnx --task feature-extraction"


class OnnxOutput(NamedTuple):
    """What an ONNX model returns for a padded batch, named as transformers names it."""

    last_hidden_state: Tensor  # (B, L, H)
    hidden_states: tuple[Tensor, ...] | None
    """The states of every layer, embeddings first, if the file has them and they were requested."""


class OnnxModel(nn.Module):
    """An encoder in an ONNX file, which ``Backbone`` runs as it runs a model of transformers.

    ``skeleton`` is the architecture without its weights, which knows its configuration and its positions. With
    ``dtype`` the file must have states of this number type. A CUDA ``device`` needs an onnxruntime installed for it.

    Weights in int8 are mostly multiplied with activations that are rounded to 8 bits by the range of the whole batch,
    so a state would depend on the other sequences. Where that is found by trial, each runs alone (``runs_alone``).
    """

    device = torch.device("cpu")  # where inputs and states are, wherever it runs

    def __init__(self, file: Path, skeleton: Any, *, device: str = "cpu", dtype: str | None = None) -> None:
        super().__init__()
        self.file, self.config, self._skeleton, self._place = file, skeleton.config, skeleton, torch.device(device)
        self._open()
        number_type = self._types[self._last]
        if number_type not in _DTYPES:
            raise BackboneError(f"{file} gives states as {number_type}. Export it with states in float32 or float16.")
        self.dtype = _DTYPES[number_type]
        mine = str(self.dtype).removeprefix("torch.")
        if dtype not in (None, mine):
            raise InvalidInputError(
                f"'dtype' of an ONNX model is that of its file: the states of {file} are {mine}. Got {dtype!r}; leave "
                "it out, name another .onnx file, or use the model's torch weights."
            )
        self.runs_alone = self._has_one_row or self._depends_on_its_batch()

    def forward(
        self, *, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False, **_: Any
    ) -> OnnxOutput:
        """The states of a batch of padded token ids (B, L)."""
        if output_hidden_states and not self._layers:
            raise InvalidInputError(
                f"'layer' must be -1 for {self.file}, which has no other layer's states. Export it with "
                "output_hidden_states, or use the model's torch weights."
            )
        names = [self._last, *(self._layers if output_hidden_states else ())]
        run = self._each_alone if self.runs_alone else self._together
        last, *layers = (torch.from_numpy(value) for value in run(input_ids.numpy(), attention_mask.numpy(), names))
        return OnnxOutput(last, tuple(layers) or None)

    @property
    def base_model(self) -> OnnxModel:
        """Itself: there is no head."""
        return self

    def get_output_embeddings(self) -> None:
        """There is no output layer."""

    # ---------------------------------------------------------------- inside

    def _open(self) -> None:
        """Open the file, and find out what it takes and gives."""
        self._session, self._errors = _open_session(self.file, self._place)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self._inputs = {value.name: _NUMBERS.get(value.type, np.int64) for value in inputs}
        self._types = {value.name: value.type for value in outputs}
        self._check_inputs(inputs)
        self._last = self._states_output(outputs)
        found = ((_LAYER.fullmatch(name), name) for name in self._types)
        self._layers = [name for _, name in sorted((int(match[1]), name) for match, name in found if match)]

    def _check_inputs(self, inputs: Iterable[Any]) -> None:
        """Refuse a file that wants more than tokens."""
        cached = [name for name in self._inputs if name.startswith(("past_key_values", "past."))]
        if cached:
            raise BackboneError(
                f"{self.file} is a decoder exported to write text: it wants {cached[0]}. Use the model's torch weights "
                f"or a .gguf file, or export its states: {_EXPORT}"
            )
        unknown = sorted(set(self._inputs) - {"input_ids", "attention_mask", "token_type_ids", "position_ids"})
        if unknown or "input_ids" not in self._inputs:
            wanted = ", ".join(unknown) or "no input_ids"
            raise BackboneError(f"{self.file} is not an encoder of text: it wants {wanted}.")
        n_rows, n_tokens = next(value.shape for value in inputs if value.name == "input_ids")
        if isinstance(n_tokens, int) or (isinstance(n_rows, int) and n_rows != 1):
            raise BackboneError(
                f"{self.file} takes only batches of {n_rows} x {n_tokens} tokens. Export it with dynamic axes: "
                f"{_EXPORT}"
            )
        self._has_one_row = n_rows == 1

    def _states_output(self, outputs: Iterable[Any]) -> str:
        """The output with the last layer's state of every token: by its name, or by its shape (B, L, H)."""
        width = getattr(self.config, "hidden_size", None)
        by_name = [name for name in _STATES if name in self._types]
        by_shape = [value.name for value in outputs if len(value.shape) == 3 and value.shape[-1] == width]
        plain = [name for name in by_shape if not _LAYER.fullmatch(name)]
        if not by_name and len(plain) != 1:
            raise BackboneError(
                f"{self.file} does not give the states of tokens: its outputs are {', '.join(self._types)}. Export "
                f"them: {_EXPORT}"
            )
        return (by_name or plain)[0]

    def _depends_on_its_batch(self) -> bool:
        """Whether either of two sequences of equal length has other states together than alone."""
        ids = np.arange(16).reshape(2, 8) * (int(self.config.get_text_config().vocab_size) // 16)
        mask = np.ones_like(ids)
        (together,), (alone,) = (run(ids, mask, [self._last]) for run in (self._together, self._each_alone))
        return bool(np.abs(together - alone).max() > _SAME[self.dtype] * alone.astype(np.float32).std())

    def _together(self, ids: Array, mask: Array, names: list[str]) -> list[Array]:
        """The named outputs (B, L, H) of a batch."""
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        values["position_ids"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        given: dict[str, Array] = {
            name: np.ascontiguousarray(values[name], dtype=kind) for name, kind in self._inputs.items()
        }
        try:
            return list(self._session.run(names, given))
        except self._errors as error:
            raise BackboneError(f"{self.file} cannot be run: {first_line(error)}") from error

    def _each_alone(self, ids: Array, mask: Array, names: list[str]) -> list[Array]:
        """The same, each sequence run without the others and without padding; states of padding are 0."""
        lengths = mask.sum(axis=1)
        rows = [self._together(ids[[b], :n], mask[[b], :n], names) for b, n in enumerate(lengths)]
        batch = [np.zeros((*ids.shape, value.shape[-1]), dtype=value.dtype) for value in rows[0]]
        for b, n in enumerate(lengths):
            for whole, value in zip(batch, rows[b], strict=True):
                whole[b, :n] = value[0]  # (1, n, H) -> (L, H)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_session", "_errors")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _open_session(file: Path, device: torch.device) -> tuple[Any, tuple[type[Exception], ...]]:
    """A session of onnxruntime on a file, and the errors that onnxruntime raises."""
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx", "Running an ONNX model") from error
    errors = tuple(
        kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)
    )  # they have no base of their own
    if device.type not in ("cpu", "cuda"):
        raise InvalidInputError(f"'device' of an ONNX model must be cpu or cuda. Got {str(device)!r}.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what is wrong with a file is in the error
    # Threads that wait for work spin by default and take the processor from others, torch's among them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.type == "cuda":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise BackboneError(
                "This onnxruntime runs on the CPU only. Install onnxruntime-gpu in its place, or use device='cpu'."
            )
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers), errors
    except errors as error:
        raise BackboneError(f"{file} cannot be loaded: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Its message, without what a library adds."""
    return str(error).strip().partition("\n")[0]
