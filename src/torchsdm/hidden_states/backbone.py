"""The frozen language model: loading it, and running it on token ids. The only module that imports transformers."""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchsdm.errors import BackboneError, InvalidInputError, MissingExtraError
from torchsdm.hidden_states.model_source import ModelSource, converted, find_model
from torchsdm.validation import check_device

_logger = logging.getLogger(__name__)
_LARGEST_LIMIT = 1 << 20  # tokenizers write "no limit" as a number larger than any
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelOutput:
    """What a language model gives for a padded batch of B sequences."""

    states: Tensor
    """(B, L, H): the states of the chosen layer at every position."""
    logits: Tensor | None
    """(B, K, V): the logits over the vocabulary at the positions asked for, if any."""


class Backbone:
    """A frozen language model with its tokenizer.

    Made by ``Backbone.load``, or from a model and a tokenizer that are loaded already.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model, with its output layer or without, or an encoder.
    tokenizer : a fast tokenizer of transformers
    source : ModelSource, optional
        Where it comes from.
    max_tokens : int, optional
        The longest sequence; by default what model and tokenizer state.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, source: ModelSource | None = None, max_tokens: int | None = None
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise BackboneError(
                f"{type(tokenizer).__name__} does not tell where in a text its tokens are; a fast tokenizer is needed."
            )
        if model.config.is_encoder_decoder:
            raise BackboneError(
                f"{type(model).__name__} is an encoder with a decoder. Use a causal language model or an encoder."
            )
        self.model, self.tokenizer, self.source = model.eval(), tokenizer, source
        self.is_decoder = _is_decoder(model)
        """Whether a position sees only what is before it, so that the last one has seen everything."""
        self.max_tokens = max_tokens or _stated_limit(model.config, tokenizer)
        self._fingerprint: str | None = None
        self._lock = threading.Lock()  # the output layer is told its positions through the module, one run at a time

    @classmethod
    def load(
        cls,
        reference: str | Path,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
    ) -> Backbone:
        """Load a language model.

        Parameters
        ----------
        reference : str or path
            A directory, a ``.gguf`` file, ``package:NAME`` for a model inside an installed package, or a name on the
            Hugging Face hub. Models of sentence-transformers are taken too.
        revision : str, optional
            Branch, tag or commit on the hub.
        device : str, optional
            A torch device; None is the CPU.
        dtype : {'float32', 'bfloat16', 'float16'}, optional
            By default float32 on the CPU and bfloat16 elsewhere.
        trust_remote_code : bool
            Whether code that comes with the model may be run. Only for sources that you trust.
        """
        transformers = _import_transformers()
        name = check_device(device, "Backbone.load")
        number_type = _DTYPES[resolve_dtype(dtype, device)]
        source = find_model(str(reference), revision)
        options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        try:
            with _quiet(transformers):
                directory = converted(source, _convert_gguf)
                config = transformers.AutoConfig.from_pretrained(directory, **options)
                loader = transformers.AutoModelForCausalLM if _wants_head(config) else transformers.AutoModel
                model = loader.from_pretrained(directory, config=config, dtype=number_type, **options).to(name)
                tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **options)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            if isinstance(error, BackboneError):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise BackboneError(f"The language model {str(reference)!r} cannot be loaded: {reason}") from error
        return cls(model, tokenizer, source=source, max_tokens=source.max_tokens)

    @property
    def name(self) -> str:
        """What the model is called: the reference it was loaded by, or its class."""
        return self.source.reference if self.source is not None else type(self.model).__name__

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device(self.model.device)

    @property
    def hidden_size(self) -> int:
        """H, the width of a state."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def has_output_layer(self) -> bool:
        """Whether it has a layer that gives logits over the vocabulary."""
        return self.is_decoder and self.model.get_output_embeddings() is not None

    @property
    def has_chat_template(self) -> bool:
        """Whether its tokenizer has one."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def fingerprint(self) -> str:
        """By which a classifier knows the model it was fitted on."""
        if self._fingerprint is None:
            self._fingerprint = self.source.fingerprint() if self.source is not None else _parameter_digest(self)
        return self._fingerprint

    @torch.inference_mode()
    def run(
        self, sequences: Sequence[Sequence[int]], *, layer: int = -1, logits_at: Sequence[Sequence[int]] | None = None
    ) -> ModelOutput:
        """Run the model on token ids, padded on the right.

        Parameters
        ----------
        sequences : (B,) lists of token ids
        layer : int
            Which states: -1 are those of the last layer as the output layer gets them; 0 are the embeddings, k those
            after block k, and negative numbers count from the end.
        logits_at : (B, K), optional
            Positions at which the logits over the vocabulary are wanted. They are computed nowhere else.
        """
        lengths = [len(sequence) for sequence in sequences]
        padding = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        ids = torch.full((len(sequences), max(lengths)), padding, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : lengths[row]] = torch.tensor(sequence)
            mask[row, : lengths[row]] = 1
        inputs = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
        options: dict[str, Any] = {"output_hidden_states": True} if layer != -1 else {}
        if self.is_decoder:
            options["use_cache"] = False
        if not self.has_output_layer:
            output = self.model(**inputs, **options)
            return ModelOutput(_layer(output, layer, output.last_hidden_state), None)
        positions = torch.tensor(logits_at if logits_at is not None else [[]] * len(sequences), dtype=torch.int64)
        with self._lock, _output_layer_at(self.model, positions.to(self.device)) as seen:
            output = self.model(**inputs, **options)
        return ModelOutput(_layer(output, layer, seen[0]), output.logits if logits_at is not None else None)


def resolve_dtype(dtype: str | None, device: str | None) -> str:
    """The number type that a model is run in: that asked for, or float32 on the CPU and bfloat16 elsewhere."""
    if dtype is None:
        return "float32" if torch.device(device or "cpu").type == "cpu" else "bfloat16"
    if dtype not in _DTYPES:
        raise InvalidInputError(f"'dtype' must be one of {', '.join(_DTYPES)}, or None. Got {dtype!r}.")
    return dtype


@contextmanager
def _output_layer_at(model: Any, positions: Tensor) -> Iterator[list[Tensor]]:
    """Let the output layer see only some positions (B, K) of each sequence, and keep all that it would have seen.

    What it would have seen, (B, L, H), is the paper's final-layer hidden state. That the logits come from the model
    itself, scaled or capped as it does, makes them those of the untouched model.
    """
    seen: list[Tensor] = []

    def only_positions(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        states = arguments[0]  # (B, L, H)
        seen.append(states)
        chosen = positions.unsqueeze(-1).expand(-1, -1, states.shape[-1])
        return (states.gather(1, chosen), *arguments[1:])  # (B, K, H)

    handle = model.get_output_embeddings().register_forward_pre_hook(only_positions)
    try:
        yield seen
    finally:
        handle.remove()


def _layer(output: Any, layer: int, last: Tensor) -> Tensor:
    if layer == -1:
        return last
    states = output.hidden_states
    if not -len(states) <= layer < len(states):
        raise InvalidInputError(
            f"'layer' must be one of {-len(states)} to {len(states) - 1} for this model. Got {layer}."
        )
    chosen: Tensor = states[layer]
    return chosen


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf", "Running a language model") from error
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars of loading, and no notices below an error."""
    logging = transformers.utils.logging
    verbosity, is_shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if is_shown:
            logging.enable_progress_bar()


def _architecture(config: Any) -> str:
    architectures = getattr(config, "architectures", None)
    return architectures[0] if architectures else ""


def _wants_head(config: Any) -> bool:
    """Whether the weights are of a causal language model with its output layer."""
    transformers = _import_transformers()
    name = _architecture(config)
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return True
    return not name and _is_causal_type(config, transformers)


def _is_decoder(model: Any) -> bool:
    config = model.config
    if getattr(config, "is_causal", None) is False:  # a decoder made to look both ways
        return False
    name = type(model).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return True
    return _is_causal_type(config, _import_transformers())


def _is_causal_type(config: Any, transformers: Any) -> bool:
    """Whether models of this kind read from left to right: they can write text and cannot fill in blanks."""
    auto = transformers.models.auto.modeling_auto
    kind = config.model_type
    return kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and (
        kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or bool(getattr(config, "is_decoder", False))
    )


def _stated_limit(config: Any, tokenizer: Any) -> int:
    limits = [
        getattr(config.get_text_config(), "max_position_embeddings", None),
        getattr(tokenizer, "model_max_length", None),
    ]
    stated = [int(limit) for limit in limits if limit is not None and 0 < limit <= _LARGEST_LIMIT]
    return min(stated, default=4096)


def _convert_gguf(file: Path, directory: Path) -> None:
    """Write the model of a GGUF file as a directory in float32."""
    transformers = _import_transformers()
    _logger.info("converting %s, which takes some seconds the first time", file)
    form = {"gguf_file": file.name}
    try:
        with redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **form)
            model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **form, dtype=torch.float32)
    except ImportError as error:
        raise MissingExtraError("gguf", "hf", "Reading a GGUF file") from error
    # The weights are plain numbers now; as long as model and config say otherwise they cannot be saved.
    model.hf_quantizer, model.is_quantized = None, False
    for owner, name in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _parameter_digest(backbone: Backbone) -> str:
    """Fingerprint of a model loaded elsewhere: of its configuration, its tokenizer and samples of its weights."""
    digest = hashlib.sha256(backbone.model.config.to_json_string().encode())
    digest.update(backbone.tokenizer.backend_tokenizer.to_str().encode())
    digest.update(str(getattr(backbone.tokenizer, "chat_template", None)).encode())
    for name, parameter in backbone.model.named_parameters():
        flat = parameter.detach().reshape(-1)
        chosen = flat[:: max(1, len(flat) // 64)].float().cpu()
        digest.update(name.encode() + chosen.numpy().tobytes())
    return digest.hexdigest()
