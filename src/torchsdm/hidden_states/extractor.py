"""``HiddenStateExtractor``: documents in, hidden states h and the language model's own label logits out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from itertools import islice, tee
from pathlib import Path
from typing import Any, TypeAlias

import torch
from sklearn.base import BaseEstimator, TransformerMixin

from torchsdm import __version__
from torchsdm.data import (
    BadRows,
    Document,
    Documents,
    ExtractedStates,
    FolderWriter,
    LabelledStates,
    PromptOrigin,
    StatesOrigin,
    StatesStore,
    begun_folder,
    digest,
    join_states,
)
from torchsdm.errors import BackboneError, InvalidInputError, InvalidTypeError
from torchsdm.hidden_states._tokens import PromptEncoder
from torchsdm.hidden_states.backbone import Backbone, Layer, resolve_dtype
from torchsdm.hidden_states.extraction import DECODER_PARTS, ENCODER_PARTS, PARTS, Extraction, Progress
from torchsdm.hidden_states.model_source import find_model
from torchsdm.hidden_states.prompts import TaskPrompt, task_prompt
from torchsdm.labels import as_label_array
from torchsdm.settings import SEGMENTS
from torchsdm.validation import Array, check_choice, check_device, check_path, check_positive
from torchsdm.wording import shortened

DECODER_DEPTH = 0.75  #: of a decoder's layers, where h is taken unless a layer is named
BLOCK = 512  #: documents that are tokenized, sorted by length, extracted and stored together
_SHARD_SIZE = 1024

Keep = Callable[[Sequence[Document], Callable[[], ExtractedStates]], ExtractedStates]  # of a block, stored or made
NumberedBlocks: TypeAlias = "Iterator[tuple[int, Sequence[Document]]]"
Elsewhere: TypeAlias = "Callable[[BlockReader, NumberedBlocks], Iterator[tuple[int, ExtractedStates]]]"
"""Who extracts blocks in place of this process: the states of each, under its number, in order."""


@dataclass(eq=False, repr=False)
class HiddenStateExtractor(TransformerMixin, BaseEstimator):
    """Hidden states of documents under a prompt, by a frozen language model.

    h is a layer's state at the final position, followed by the mean of its states over all positions, prompt included.
    The paper takes the final layer (``layer=-1``), whose state is the input of the output layer; a layer at three
    quarters of a decoder's depth knows more of whether something is true, and is the default. For encoders h is the
    final layer's state of the first token, then the mean. The extractor is also a scikit-learn transformer, from texts
    to states.

    1. the model is loaded when it is first needed;
    2. documents are tokenized under the prompt, cut if they are too long, and batched by length;
    3. ``labelled_states`` returns states with labels, ids, texts and origin, cached if a store is given; ``extract``
       returns only the states; ``extract_to`` writes them to a folder and resumes where it was interrupted.

    Parameters
    ----------
    model : str, path or Backbone
        A directory, a ``.gguf`` or ``.onnx`` file, ``package:NAME`` for a model inside an installed package, or a name
        on the Hugging Face hub, sentence-transformers models included; or a loaded model, which keeps its device,
        number type and revision.
    prompt : str, TaskPrompt or None
        The name of a prompt ('sentiment', 'factcheck', 'verify-answer'), a template with ``{document}``, or None for
        just the document.
    parts : sequence of {'first', 'final', 'mean'}, optional
        What h is made of. By default final and mean for decoders, first and mean for encoders.
    layer : int or sequence of int, optional
        -1 is the final layer; 0 the embeddings, k the k-th layer's output. The states of several are put side by side.
        By default the final layer of encoders, and of decoders the one at three quarters of their depth.
    segments : {'sentences', 'paragraphs', 'fields'}, optional
        Also summarise segments of each document, as positions for an adaptor that takes the maximum over positions.
        'fields' are the fields of the prompt: document and answer.
    n_segments : int
        How many; if there are more, neighbours are joined.
    max_tokens : int, optional
        Longest sequence, prompt included; by default the model's limit. Longer documents lose their end, the prompt
        never does; ``n_cut`` counts lost tokens.
    use_chat : bool, optional
        Whether to put the prompt into the model's chat template. By default, if there is a prompt and a chat template.
    chat_options : mapping, optional
        Variables for the chat template, such as ``{"enable_thinking": False}``.
    batch_tokens : int
        Tokens to run at once, padding included. With 1, every document is run alone: then its state does not depend on
        the others even in the last bits.
    device, dtype : str, optional
        Where and in which number type ('float32', 'bfloat16', 'float16') to run the model; by default float32 on the
        CPU and bfloat16 elsewhere.
    revision : str, optional
        Branch, tag or commit on the hub.
    trust_remote_code : bool
        Whether code that comes with the model may be run. Only for sources that you trust.
    verbose : bool
        Show progress, with rate and remaining time.

    Notes
    -----
    In float32, the states of a document differ between batches only by rounding: by less than 1e-4 of the states'
    standard deviation. In bfloat16, whose rounding is 65,536 times as coarse, they may differ by more.
    """

    model: str | Path | Backbone
    prompt: str | TaskPrompt | None = None
    _: KW_ONLY
    parts: Sequence[str] | None = None
    layer: int | Sequence[int] | None = None
    segments: str | None = None
    n_segments: int = 8
    max_tokens: int | None = None
    use_chat: bool | None = None
    chat_options: Mapping[str, Any] | None = None
    batch_tokens: int = 4096
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    verbose: bool = False

    # ---------------------------------------------------------------- extracting

    def extract(self, documents: Any, *, answers: Any = None) -> ExtractedStates:
        """Only the states of documents: a list of strings or of ``Document``, a table, a path or ``Documents``."""
        documents = self.as_documents(documents, answers)
        len(documents)  # checks all of them before the model is loaded
        blocks = self._blocks(BlockReader(self, self.origin(), documents.name), documents, BLOCK)
        return ExtractedStates.concatenate([states for _, states in blocks])

    def labelled_states(
        self,
        documents: Any,
        *,
        answers: Any = None,
        store: StatesStore | None = None,
        description: str = "hidden states",
        elsewhere: Elsewhere | None = None,
    ) -> LabelledStates:
        """The states of documents with all that is known about them: labels, ids, texts, label logits, origin, places.

        Parameters
        ----------
        documents : Documents, or what Documents takes
        answers : sequence of str, optional
            For a sequence of strings, under a prompt with ``{answer}``.
        store : StatesStore, optional
            Where states are cached: stored ones are not extracted again, and if all are stored, no model is loaded.
        description : str
            Title of the progress bar.
        elsewhere : callable, optional
            Who extracts what is not stored, such as ``torchsdm.cluster.extract_on``; by default this process does.

        Notes
        -----
        The prompt stays as the first call rendered it: a chat template may write the date.
        """
        settings: dict[str, Any] = {"store": store, "description": description, "elsewhere": elsewhere}
        return join_states(list(self.labelled_blocks(documents, answers=answers, **settings)))

    def labelled_blocks(
        self,
        documents: Any,
        *,
        answers: Any = None,
        store: StatesStore | None = None,
        description: str = "hidden states",
        elsewhere: Elsewhere | None = None,
    ) -> Iterator[LabelledStates]:
        """``labelled_states`` in blocks, for states that do not fit in memory."""
        documents = self.as_documents(documents, answers)
        len(documents)  # checks all of them before the model is loaded
        origin = self.origin() if store is None else self._stored_origin(store)
        self.keep_prompt(origin)
        reader = BlockReader(self, origin, documents.name, documents.has_labels)
        stored: dict[str, Any] = {}
        if store is not None:
            stored = {"keep": partial(store.block, origin), "has": partial(store.has, origin)}
        blocks = self._blocks(reader, documents, BLOCK, elsewhere, description=description, **stored)
        yield from (reader.labelled(block, states) for block, states in blocks)

    def unread_blocks(
        self, documents: Documents, bad: BadRows | None = None
    ) -> tuple[BlockReader, Iterator[list[Document]]]:
        """The blocks of ``labelled_blocks`` before they are extracted, and what reads each.

        If ``bad`` is given, documents that cannot be used are left out and noted there, before the block that follows
        them: those that ``Documents(..., problems="reject")`` finds, and those that the tokenizer cannot fit or makes
        no tokens of, which the reader notes. Documents without labels are then read once, in passing.
        """
        in_passing = bad is not None and not documents.has_labels
        if not in_passing:
            documents = self.as_documents(documents, None, "raise" if bad is None else "reject")
            len(documents)  # checks all of them before the first is used
            if bad is not None:
                bad.update(documents.report.bad_rows)
        reader = BlockReader(self, self.origin(), documents.name, documents.has_labels)
        return reader, documents.blocks(BLOCK, bad if in_passing else None)

    def extract_to(
        self,
        directory: str | Path,
        documents: Any,
        *,
        answers: Any = None,
        shard_size: int = _SHARD_SIZE,
        elsewhere: Elsewhere | None = None,
    ) -> dict[str, int]:
        """Write the states of documents to a directory that ``torchsdm.read_states`` reads.

        If a call is killed, at any moment, the next one resumes where it stopped. A directory made with a different
        model, prompt, setting or set of documents is refused. ``elsewhere`` is as in ``labelled_states``.

        Returns
        -------
        dict
            Counts of documents, of those extracted by this call, and of documents and tokens that were cut.
        """
        directory = check_path(directory, "directory", "HiddenStateExtractor.extract_to")
        check_positive(shard_size, "shard_size", "HiddenStateExtractor.extract_to", integer=True)
        documents = self.as_documents(documents, answers)
        report = documents.report  # before the model is loaded: problems with the documents show at once
        earlier = begun_folder(directory)
        origin = self._prepare(None if earlier is None else earlier.origin.prompt).origin
        facts = {
            "torchsdm": __version__,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "documents": documents.name,
        }
        with FolderWriter(directory, origin, report.fingerprint, len(documents), shard_size, facts) as folder:
            reader = BlockReader(self, origin, documents.name)
            for _ in self._blocks(
                reader,
                documents,
                folder.shard_size,
                elsewhere,
                keep=folder.add,
                has=folder.has,
                skip=folder.n_finished,
            ):
                pass  # each block is on disk now
            return {
                "documents": report.n_documents,
                "extracted": folder.n_extracted,
                "documents_cut": folder.counted("documents_cut"),
                "tokens_cut": folder.counted("tokens_cut"),
            }

    def fit(self, X: Any = None, y: Any = None) -> HiddenStateExtractor:
        """Nothing is learned: the language model is frozen."""
        return self

    def transform(self, X: Any) -> Array:
        """The hidden states of texts, for scikit-learn's pipelines."""
        return self.extract(X).hidden_states

    # ---------------------------------------------------------------- the model

    @property
    def backbone(self) -> Backbone:
        """The language model; loaded on first use."""
        return self._prepare().backbone

    def origin(self) -> StatesOrigin:
        """Everything that affects the states; if it differs, states must not be mixed.

        ``from_origin`` makes an equal extractor from it and the language model.
        """
        return self._prepare().origin

    def _stored_origin(self, store: StatesStore) -> StatesOrigin:
        """The origin; known without loading the language model once it is in the store."""
        if isinstance(self.model, Backbone):
            return self.origin()
        source = find_model(str(self.model), self.revision)
        ignored = ("model", "prompt", "verbose", "batch_tokens")
        settings = {name: value for name, value in self.get_params().items() if name not in ignored}
        prompt = task_prompt(self.prompt, "HiddenStateExtractor").to_json()
        known = {"model": [source.reference, source.fingerprint()], "prompt": prompt, "settings": settings}
        return store.origin(digest(known), self.origin)

    def keep_prompt(self, origin: StatesOrigin) -> None:
        """From now on, use the prompt as rendered for an origin; a chat template may write the date."""
        self._kept_prompt = origin.prompt

    @classmethod
    def from_origin(
        cls, origin: StatesOrigin, *, model: str | Path | Backbone | None = None, **options: Any
    ) -> HiddenStateExtractor:
        """The extractor that states were made with, from their ``origin``.

        ``model`` says where the same language model is now, if it has moved; ``options`` are settings that do not
        affect the states, such as ``device`` and ``batch_tokens``.
        """
        made_with, prompt, pooling = origin.model, origin.prompt, origin.pooling
        if model is None and made_with.reference is None:
            raise BackboneError(
                "The origin does not say where the language model came from, because it was passed as an object. "
                "Pass it again: model=..."
            )
        extractor = cls(
            str(made_with.reference) if model is None else model,
            TaskPrompt(prompt.template, dict(prompt.label_words), prompt.system),
            parts=pooling.parts,
            layer=pooling.layer,
            segments=pooling.segments,
            n_segments=pooling.n_segments or 1,
            max_tokens=pooling.max_tokens,
            use_chat=prompt.use_chat,
            chat_options=prompt.chat_options,
            dtype=None if isinstance(model, Backbone) else made_with.dtype,
            revision=made_with.revision if model is None else None,
            **options,
        )
        extractor.keep_prompt(origin)
        return extractor

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_resolved"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    # ---------------------------------------------------------------- inside

    def _prepare(self, earlier: PromptOrigin | None = None) -> Extraction:
        """All settings resolved, again only if one has changed. A prompt that was rendered before stays as it was."""
        settings = repr(self.get_params(deep=False))
        earlier = earlier or getattr(self, "_kept_prompt", None)
        resolved: tuple[str, PromptOrigin | None, Extraction] | None = getattr(self, "_resolved", None)
        if (
            resolved is None
            or settings != resolved[0]
            or earlier not in (None, resolved[1], resolved[2].encoder.origin)
        ):
            resolved = self._resolved = settings, earlier, self._resolve(earlier)
        return resolved[2]

    def _resolve(self, earlier: PromptOrigin | None) -> Extraction:
        caller = "HiddenStateExtractor"
        prompt = task_prompt(self.prompt, caller)
        if self.parts is not None:
            if not isinstance(self.parts, (list, tuple)) or not self.parts:
                raise InvalidTypeError(f"'parts' of {caller} must be a list of names. Got {self.parts!r}.")
            for part in self.parts:
                check_choice(part, PARTS, "parts", caller)
        check_choice(self.segments, (None, *SEGMENTS), "segments", caller)
        check_positive(self.batch_tokens, "batch_tokens", caller, integer=True)
        check_positive(self.n_segments, "n_segments", caller, integer=True)
        layers = self.layer if isinstance(self.layer, (list, tuple)) else (self.layer,)
        if self.layer is not None and (not layers or any(type(layer) is not int for layer in layers)):
            raise InvalidTypeError(f"'layer' of {caller} must be an integer or a list of them. Got {self.layer!r}.")
        check_device(self.device, caller)
        resolve_dtype(self.dtype, self.device)
        if self.max_tokens is not None:
            check_positive(self.max_tokens, "max_tokens", caller, integer=True)
        backbone = self.model
        if not isinstance(backbone, Backbone):
            if not isinstance(backbone, (str, Path)):
                raise InvalidTypeError(f"'model' of {caller} must be a name, a path or a Backbone. Got {backbone!r}.")
            names = ("revision", "device", "dtype", "trust_remote_code")
            backbone = Backbone.load(backbone, **{name: getattr(self, name) for name in names})
        has_prompt = prompt.template != "{document}" or prompt.system is not None
        use_chat = self.use_chat if self.use_chat is not None else has_prompt and backbone.has_chat_template
        if use_chat and not backbone.has_chat_template:
            raise InvalidInputError(f"'use_chat' of {caller} needs a chat template, but {backbone.name} has none.")
        if self.max_tokens is not None and self.max_tokens > backbone.position_limit:
            raise InvalidInputError(
                f"'max_tokens' of {caller} must be at most {backbone.position_limit}, the limit of {backbone.name}. "
                f"Got {self.max_tokens}."
            )
        encoder = PromptEncoder(
            backbone.tokenizer,
            prompt,
            use_chat=use_chat,
            max_tokens=self.max_tokens or backbone.max_tokens,
            position_limit=backbone.position_limit,
            scores_words=backbone.has_output_layer,
            segments=self.segments,
            n_segments=self.n_segments if self.segments is not None else 0,
            chat_options=self.chat_options,
            earlier=earlier,
        )
        parts = tuple(self.parts or (DECODER_PARTS if backbone.is_decoder else ENCODER_PARTS))
        layer: Layer = layers[0] if len(layers) == 1 else tuple(layers)
        if self.layer is None:  # as the study of hidden states advises
            n_layers = backbone.n_layers or 0
            depth = round(DECODER_DEPTH * n_layers) if backbone.is_decoder else 0
            layer = depth if 0 < depth < n_layers else -1
        return Extraction(backbone, encoder, parts, layer, int(self.batch_tokens))

    @property
    def asks_for_answers(self) -> bool:
        """Whether the prompt has a place for another model's answer."""
        return "answer" in task_prompt(self.prompt, "HiddenStateExtractor").fields

    def as_documents(self, documents: Any, answers: Any, problems: str = "raise") -> Documents:
        """What ``Documents`` takes as documents, with answers if the prompt asks for them."""
        if answers is not None and isinstance(documents, Documents):
            raise InvalidInputError("'answers' must not be given with Documents, which have their own.")
        if answers is not None and not self.asks_for_answers:
            raise InvalidInputError("Answers are given, but the prompt has no place for them: write {answer} in it.")
        given = (
            documents
            if isinstance(documents, Documents)
            else Documents(documents, answers=answers, problems=problems, repeated="keep")
        )
        if self.asks_for_answers:
            if not given.has_answers:
                raise InvalidInputError("The prompt asks for an {answer}, but the documents have none: give answers.")
            for place in given.report.unanswered if problems == "raise" else ():
                raise InvalidInputError(
                    f"{given.name}, {place}: the prompt asks for an answer, but there is none. Give it one."
                )
        return given

    def _blocks(
        self,
        reader: BlockReader,
        documents: Documents,
        size: int,
        elsewhere: Elsewhere | None = None,
        *,
        keep: Keep = lambda _, make: make(),
        has: Callable[[Sequence[Document]], bool] = lambda _: False,
        skip: int = 0,
        description: str = "hidden states",
    ) -> Iterator[tuple[Sequence[Document], ExtractedStates]]:
        """Blocks of documents after the first ``skip``, each with its states, kept or made now: elsewhere, or here.

        What is not kept is extracted elsewhere ahead of whoever asks for the blocks in order.
        """
        n_done = min(skip * size, len(documents))
        hidden = None if self.verbose else True
        with Progress(desc=description, total=len(documents), unit="doc", disable=hidden) as progress:
            progress.skip(n_done)
            blocks: NumberedBlocks = enumerate(islice(documents.blocks(size), skip, None))
            made: Iterator[tuple[float, ExtractedStates | None]] = iter(())
            if elsewhere is not None:
                blocks, watched = tee(blocks)
                made = elsewhere(reader, ((number, block) for number, block in watched if not has(block)))
            latest: tuple[float, ExtractedStates | None] = (-1, None)  # that was made elsewhere
            for number, block in blocks:

                def make(number: int = number, block: Sequence[Document] = block) -> ExtractedStates:
                    nonlocal latest
                    while latest[0] < number:
                        latest = next(made, (math.inf, None))
                    if latest[0] != number or latest[1] is None:  # here, or it seemed to be kept and is damaged
                        sequences = reader.extraction.encoder.encode(block)
                        return reader.extraction.run(sequences, progress.update, documents.name)
                    progress.update(len(latest[1]))
                    return latest[1]

                yield block, keep(block, make)
                n_done += len(block)
                progress.skip(n_done - progress.n)  # documents that were kept already


@dataclass(frozen=True)
class BlockReader:
    """Extracts blocks of documents as an extractor does, in this process or, sent there, in another one."""

    extractor: HiddenStateExtractor
    origin: StatesOrigin
    source: str
    """Where the documents come from, for messages."""
    has_labels: bool = False

    @cached_property
    def extraction(self) -> Extraction:
        """What runs the language model; refused if it would make other states here than where we are from.

        The states of a document differ in their last bits with what else is in its block, so a block is never cut.
        """
        extraction = self.extractor._prepare(self.origin.prompt)
        difference = self.origin.difference(extraction.origin)
        if difference is not None:
            raise BackboneError(
                f"The language model has a different {difference.what} on another machine: "
                f"{shortened(repr(difference.theirs))}, not {shortened(repr(difference.ours))}."
            )
        return extraction

    def read(self, block: Sequence[Document], bad: BadRows | None) -> LabelledStates | None:
        """The states of a block; documents that cannot be run are an error, or are noted in ``bad`` and left out."""
        sequences = self.extraction.encoder.encode(block, bad)
        if not sequences:
            return None
        states = self.extraction.run(sequences, source=self.source if bad is None else None)
        return self.labelled([sequence.document for sequence in sequences], states)

    def labelled(self, block: Sequence[Document], states: ExtractedStates) -> LabelledStates:
        """The states of a block with all that is known about its documents."""
        asks = self.extractor.asks_for_answers
        return LabelledStates(
            states.hidden_states,
            as_label_array([document.label for document in block]) if self.has_labels else None,
            [document.id for document in block],
            [f"{document.text}\n[answer] {document.answer}" if asks else document.text for document in block],
            states.label_logits,
            self.origin.prompt.labels,
            self.origin,
            [document.place for document in block],
            [document.number for document in block],
        )
