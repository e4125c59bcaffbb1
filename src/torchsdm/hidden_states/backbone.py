"""The frozen language model: loading it, and running it on token ids. The only module that imports transformers."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from torchsdm.errors import BackboneError, InvalidInputError, MissingExtraError, TorchSDMError
from torchsdm.hidden_states.model_source import ModelSource, converted, find_model, weight_files, without_volatile
from torchsdm.hidden_states.onnx_model import OnnxModel, first_line
from torchsdm.validation import check_device

_logger = logging.getLogger(__name__)
_NO_LIMIT = 1 << 30
# Changes by a later token or padding that count as none, in standard deviations of the states.
_SAME = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1, torch.float64: 1e-3}
Layer: TypeAlias = int | tuple[int, ...]  # which layer's states, or several side by side
# What the configuration of a stranger's model may ask for.
_COUNTS = re.compile("layers|blocks|experts|depth")  # in the name of what a model has many of
_MOST = 2048  # of them: ten times as many as the largest models have
_WEIGHTS_PER_BYTE = 16  # of one bit, each used twice
_SMALL = 10_000_000  # weights that any file may lack, such as those of a layer that is not stored
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelOutput:
    """What a language model returns for a padded batch of B sequences."""

    states: Tensor  # (B, L, H): the states of the chosen layer at every position; of several layers, side by side
    logits: Tensor  # (B, K, V): the logits over the vocabulary at the K requested positions; K may be 0


@dataclass(frozen=True)
class Beginning:
    """Tokens that sequences begin with, run once for all of them."""

    ids: list[int]
    states: Tensor  # (1, P, H): as in ``ModelOutput``
    cache: Any  # keys and values of its positions in every layer, as transformers keeps them


class Backbone:
    """A frozen language model with its tokenizer.

    Make one with ``Backbone.load``, or from a loaded model and tokenizer.

    Parameters
    ----------
    model : transformers.PreTrainedModel or OnnxModel
        A causal language model, with its output layer or without, or an encoder.
    tokenizer : a fast tokenizer of transformers
    source : ModelSource, optional
        Where it comes from.

    Attributes
    ----------
    is_decoder : bool
        Whether a position sees only earlier ones, so that the last one has seen everything. Found by trial.
    is_padding_neutral : bool
        Whether padding leaves the states of a sequence unchanged; with some encoders it does not. Also found by trial.
    shares_beginnings : bool
        Whether tokens that sequences begin with can be run once for all of them: decoders with a cache. Found by trial.
    max_tokens : int
        The longest sequence stated by sentence-transformers, its tokenizer or its configuration.
    position_limit : int
        The longest sequence that it can take.
    hidden_size : int
        H, the width of a state.
    device : torch.device
    dtype : torch.dtype
        Where the model is, and the number type it runs in.
    has_output_layer : bool
        Whether it is a decoder with a layer that gives logits over the vocabulary for the next token.
    """

    # Loaded models that are still in use somewhere, so that clones of an extractor share one.
    _in_use: ClassVar[WeakValueDictionary[tuple[Any, ...], Backbone]] = WeakValueDictionary()

    def __init__(self, model: Any, tokenizer: Any, *, source: ModelSource | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise BackboneError(
                f"{type(tokenizer).__name__} does not give the offsets of its tokens in a text. Use a fast tokenizer."
            )
        if model.config.is_encoder_decoder:
            raise BackboneError(
                f"{type(model).__name__} is an encoder-decoder. Use a causal language model or an encoder."
            )
        self.model, self.tokenizer, self.source = model.eval(), tokenizer, source
        self.device, self.dtype = torch.device(model.device), model.dtype
        stated = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        limits = [stated] if isinstance(stated, int) and stated > 0 else []
        for name, module in model.named_modules():
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                limits.append(module.num_embeddings - module.padding_idx - 1)  # in the RoBERTa family
        self.position_limit = min(limits, default=_NO_LIMIT)
        shorter = (None if source is None else source.max_tokens, getattr(tokenizer, "model_max_length", None))
        self.max_tokens = int(min(limit for limit in (*shorter, self.position_limit) if limit is not None))
        self._fingerprint: str | None = None
        self._lock = threading.Lock()  # a hook tells the output layer its positions, one run at a time
        self._try_out()

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
            A directory, a ``.gguf`` file, an encoder's ``.onnx`` file, ``package:NAME`` for a model inside an installed
            package, or a name on the Hugging Face hub. sentence-transformers models work too.
        revision : str, optional
            Branch, tag or commit on the hub.
        device : str, optional
            A torch device; None is the CPU.
        dtype : {'float32', 'bfloat16', 'float16'}, optional
            By default float32 on the CPU and bfloat16 elsewhere; an ONNX file has only its own.
        trust_remote_code : bool
            Whether code that comes with the model may be run. Only for sources that you trust.
        """
        with _quiet_transformers() as transformers:
            name = check_device(device, "Backbone.load")
            number_type = _DTYPES[resolve_dtype(dtype, device)]
            source = find_model(str(reference), revision)
            key = (source.fingerprint(), source, name, number_type, trust_remote_code)
            if (loaded := cls._in_use.get(key)) is not None:
                return loaded
            options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
            with _explained(f"The language model {str(reference)!r} cannot be loaded"):
                directory = converted(source, _convert_gguf)
                config = transformers.AutoConfig.from_pretrained(directory, **options)
                absent: set[Any] = set()
                if source.onnx_file is None:
                    loader = _loader(config, transformers)
                    weigh = None if trust_remote_code else partial(loader.from_config, config)
                    _check_size(config, weigh, weight_files(directory))
                    model, info = loader.from_pretrained(
                        directory, config=config, dtype=number_type, output_loading_info=True, **options
                    )
                    absent = {*info["missing_keys"], *info["mismatched_keys"]}
                    model = model.to(name)
                else:
                    _check_size(config)
                    with torch.device("meta"):  # without weights, which are in the file
                        skeleton = transformers.AutoModel.from_config(config, trust_remote_code=trust_remote_code)
                    model = OnnxModel(source.onnx_file, skeleton, device=name, dtype=dtype)
                tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **options)
            missing = sorted(str(weight) for weight in absent if "pooler" not in str(weight))
            if missing:  # transformers would continue with random numbers in their place
                raise BackboneError(
                    f"The weights of the language model {str(reference)!r} are incomplete: {len(missing)} are missing "
                    f"or have the wrong shape, such as {missing[0]}."
                )
            with _explained(f"The language model {str(reference)!r} cannot be run"):
                backbone = cls(model, tokenizer, source=source)
        cls._in_use[key] = backbone
        return backbone

    @property
    def name(self) -> str:
        """The model's name: the reference it was loaded by, or its class."""
        return self.source.reference if self.source is not None else type(self.model).__name__

    @property
    def n_layers(self) -> int | None:
        """How many layers it has; None if its configuration does not say."""
        return getattr(self.model.config.get_text_config(), "num_hidden_layers", None)

    @property
    def has_chat_template(self) -> bool:
        """Whether its tokenizer has one."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def fingerprint(self) -> str:
        """The digest by which a classifier recognises the model it was fitted on."""
        if self._fingerprint is None:
            self._fingerprint = self.source.fingerprint() if self.source is not None else _parameter_digest(self)
        return self._fingerprint

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        layer: Layer = -1,
        logits_at: Sequence[Sequence[int]] | None = None,
        beginning: Beginning | None = None,
    ) -> ModelOutput:
        """Run the model on token ids, padded on the right.

        Parameters
        ----------
        sequences : (B,) lists of token ids
        layer : int or tuple of int
            Which states: -1 are those of the last layer as the output layer gets them; 0 are the embeddings, k those
            after block k, and negative numbers count from the end. Several are put side by side.
        logits_at : (B, K), optional
            Positions at which the logits over the vocabulary are wanted. They are computed nowhere else.
        beginning : Beginning, optional
            What ``begin`` gave for the tokens that all sequences begin with: these are not run again. Each sequence has
            at least one token more, and logits are wanted only after it.
        """
        n_before = 0 if beginning is None else len(beginning.ids)
        rests = [sequence[n_before:] for sequence in sequences]
        ids = torch.full((len(rests), max(map(len, rests))), self.tokenizer.pad_token_id or 0, dtype=torch.int64)
        mask = torch.zeros(len(rests), n_before + ids.shape[1], dtype=torch.int64)
        for row, rest in enumerate(rests):
            ids[row, : len(rest)] = torch.tensor(rest)
            mask[row, : n_before + len(rest)] = 1
        positions = torch.tensor(logits_at if logits_at is not None else [[]] * len(rests), dtype=torch.int64)
        cache = None
        if beginning is not None:
            cache = copy.deepcopy(beginning.cache)  # the model appends to it
            cache.batch_repeat_interleave(len(rests))
        states, logits, _ = self._pass(ids, mask, layer, positions - n_before, cache=cache)
        if beginning is not None:
            states = torch.cat([beginning.states.expand(len(rests), -1, -1), states], dim=1)
        return ModelOutput(states, logits)

    def begin(self, ids: Sequence[int], *, layer: Layer = -1) -> Beginning | None:
        """Run the tokens that sequences begin with, for ``run``; None if the model keeps no cache for it."""
        tokens = torch.tensor([list(ids)])
        nowhere = torch.empty(1, 0, dtype=torch.int64)
        states, _, cache = self._pass(tokens, torch.ones_like(tokens), layer, nowhere, keeps_cache=True)
        return Beginning(list(ids), states, cache) if hasattr(cache, "batch_repeat_interleave") else None

    @torch.inference_mode()
    def _pass(
        self,
        ids: Tensor,
        mask: Tensor,
        layer: Layer,
        logits_at: Tensor,
        *,
        cache: Any = None,
        keeps_cache: bool = False,
    ) -> tuple[Tensor, Tensor, Any]:
        """States (B, L, H), logits (B, K, V) and cache of padded tokens (B, L), which may follow those of a cache."""
        inputs = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
        options: dict[str, Any] = {"output_hidden_states": True} if layer != -1 else {}
        if self.is_decoder and hasattr(self.model.config.get_text_config(), "use_cache"):
            options["use_cache"] = keeps_cache or cache is not None
        if cache is not None:
            options["past_key_values"] = cache
        try:
            if not self.has_output_layer:
                model = self.model.base_model  # without a head, such as that of a masked language model
                output = model(**inputs, **options)
                last, logits = output.last_hidden_state, torch.empty(len(ids), 0, 0)
            else:
                with self._lock, _output_layer_at(self.model, logits_at.to(self.device)) as seen:
                    output = self.model(**inputs, **options)
                last, logits = seen[0], output.logits
        except IndexError as error:  # a token that the model has no embedding for
            raise BackboneError(
                f"The language model {self.name!r} cannot read its tokenizer's tokens: {error}."
            ) from error
        chosen = []
        for number in layer if isinstance(layer, tuple) else (layer,):
            states = (last,) if number == -1 else output.hidden_states
            if not -len(states) <= number < len(states):
                raise InvalidInputError(
                    f"'layer' must be in {-len(states)}..{len(states) - 1} for this model. Got {number}."
                )
            chosen.append(states[number])
        chosen_states = chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)
        return chosen_states, logits, getattr(output, "past_key_values", None)

    def _try_out(self) -> None:
        """Find out whether positions ignore later tokens and padding, and whether a beginning can be run once."""
        numbers = (number for number in range(len(self.tokenizer)) if number not in self.tokenizer.all_special_ids)
        sequence = list(islice(numbers, 8))
        self.is_decoder = self.has_output_layer = False  # for now: run the model below its output layer
        alone = self.run([sequence]).states[0]
        self.hidden_size = int(alone.shape[-1])
        tolerance = _SAME[alone.dtype]
        changed = self.run([[*sequence[:-1], sequence[0]]]).states[0]
        padded = self.run([sequence, [*sequence, *sequence]]).states[0, : len(sequence)]
        largest = tolerance * float(alone.float().std())
        self.is_decoder = bool((alone[:-1] - changed[:-1]).abs().max() <= largest)
        self.has_output_layer = self.is_decoder and self.model.get_output_embeddings() is not None
        self.is_padding_neutral = bool((alone - padded).abs().max() <= largest)
        self.shares_beginnings = False
        beginning = self.begin(sequence[:4]) if self.is_decoder else None
        if beginning is not None:
            shared = self.run([sequence], beginning=beginning).states[0]
            self.shares_beginnings = bool((alone - shared).norm() <= tolerance * alone.norm())

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbone:
        return self  # frozen: a copy would only take memory

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def resolve_dtype(dtype: str | None, device: str | None) -> str:
    """The number type to run a model in: the one requested, or float32 on the CPU and bfloat16 elsewhere."""
    if dtype is None:
        return "float32" if torch.device(device or "cpu").type == "cpu" else "bfloat16"
    if dtype not in _DTYPES:
        raise InvalidInputError(f"'dtype' must be one of {', '.join(_DTYPES)}, or None. Got {dtype!r}.")
    return dtype


@contextmanager
def _output_layer_at(model: Any, positions: Tensor) -> Iterator[list[Tensor]]:
    """Let the output layer see only some positions (B, K) of each sequence, and keep its whole input.

    That input, (B, L, H), is the paper's final-layer hidden state. The model itself computes the logits, and scales or
    caps them, so they are those of the untouched model.
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


@contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """transformers, without its progress bars and its messages below errors."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf", "Running a language model") from error
    logging: Any = transformers.utils.logging
    verbosity, is_shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if is_shown:
            logging.enable_progress_bar()


def _check_size(config: Any, make: Callable[[], nn.Module] | None = None, weights: Sequence[Path] = ()) -> None:
    """Refuse a model with so many layers that making them takes minutes, or more weights than its files can hold.

    ``make`` makes the model, which is done without memory.
    """
    settings = [config.to_dict()]
    for one in settings:  # and those within it, as they are found
        for name, value in one.items():
            if isinstance(value, dict):
                settings.append(value)
            elif isinstance(value, int) and value > _MOST and _COUNTS.search(str(name)):
                raise ValueError(f"its configuration has {name} = {value:,}; more than {_MOST:,} are not loaded.")
    if make is None:
        return
    with torch.device("meta"):
        n_weights = sum(weight.numel() for weight in make().parameters())
    n_bytes = sum(path.stat().st_size for path in weights)
    if n_weights > _WEIGHTS_PER_BYTE * n_bytes + _SMALL:
        raise ValueError(f"its configuration describes {n_weights:,} weights, but its files have {n_bytes:,} bytes.")


def _loader(config: Any, transformers: Any) -> Any:
    """The class of transformers that loads a model with its output layer, if its weights have one."""
    name = (getattr(config, "architectures", None) or [""])[0]
    auto = transformers.models.auto.modeling_auto
    is_causal_type = type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if name.endswith("ForConditionalGeneration") and not config.is_encoder_decoder and not is_causal_type:
        return transformers.AutoModelForImageTextToText
    if name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
        return transformers.AutoModelForCausalLM if is_causal_type else transformers.AutoModel
    if not name and is_causal_type and type(config) not in auto.MODEL_FOR_MASKED_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Say what went wrong: damaged or strange files make transformers and its readers raise anything."""
    try:
        yield
    except TorchSDMError:
        raise
    except Exception as error:
        raise BackboneError(f"{problem}: {first_line(error) or type(error).__name__}") from error


def _convert_gguf(file: Path, directory: Path) -> None:
    """Write the model of a GGUF file as a directory in float32."""
    import transformers

    _logger.info("converting %s, which takes a few seconds the first time", file)
    form = {"gguf_file": file.name}
    try:
        with redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            config = transformers.AutoConfig.from_pretrained(file.parent, **form)
            _check_size(config, partial(transformers.AutoModelForCausalLM.from_config, config), [file])
            tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **form)
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **form, dtype=torch.float32)
    except ImportError as error:
        raise MissingExtraError("gguf", "hf", "Reading a GGUF file") from error
    # The weights are plain numbers now; while model and config say otherwise, they cannot be saved.
    model.hf_quantizer, model.is_quantized = None, False
    for owner, name in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _parameter_digest(backbone: Backbone) -> str:
    """Fingerprint of a model loaded elsewhere: its configuration, its tokenizer and samples of every weight."""
    tokenizer = json.loads(backbone.tokenizer.backend_tokenizer.to_str())
    settings = [backbone.model.config.to_dict(), tokenizer, getattr(backbone.tokenizer, "chat_template", None)]
    plain = json.dumps([without_volatile(value) for value in settings], sort_keys=True, default=str)
    digest = hashlib.sha256(plain.encode())
    for name, parameter in backbone.model.named_parameters():
        flat = parameter.detach().reshape(-1)
        chosen = flat[:: max(1, len(flat) // 4096)].float().cpu()
        digest.update(name.encode() + chosen.numpy().tobytes())
    return digest.hexdigest()
