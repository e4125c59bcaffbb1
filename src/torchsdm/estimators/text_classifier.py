"""``SDMTextClassifier``: texts in, decisions out; and opening any model that was saved."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from torchsdm.cluster import Backend, extract_on
from torchsdm.core import SDMDecisions, check_targets
from torchsdm.data import Documents, StatesStore
from torchsdm.errors import BackboneError, DataWarning, InvalidInputError, ModelFileError, Remedy
from torchsdm.estimators._saving import read_estimator
from torchsdm.estimators.changes import replay
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.estimators.ensemble import SDMEnsemble
from torchsdm.hidden_states import Backbone, HiddenStateExtractor, TaskPrompt, default_store
from torchsdm.labels import LabelCodes, count_classes, warn_of_lookalikes
from torchsdm.model import Explanation, HubModel, ReadLog
from torchsdm.trust import AlphaChoice, Watcher
from torchsdm.validation import Array, check_path, no_states, require_fitted
from torchsdm.wording import shortened

Self = TypeVar("Self", bound="SDMTextClassifier")
_Arguments = ParamSpec("_Arguments")


def _passed_on(method: Callable[Concatenate[Any, _Arguments], Any]) -> Callable[Concatenate[Self, _Arguments], Self]:
    """An update of the classifier that takes no texts, as one of the text classifier."""

    def update(self: Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Self:
        getattr(self._fitted(method.__name__), method.__name__)(*args, **kwargs)
        return self

    update_wrapper(update, method)
    return update


@dataclass(eq=False, repr=False)
class SDMTextClassifier(HubModel, ClassifierMixin, BaseEstimator):
    """A classifier of texts that admits an answer or rejects it.

    1. ``fit`` runs the language model over the texts and fits an ``SDMClassifier`` on its hidden states;
    2. ``decide`` answers every text with a label, whether it is admitted, its lane, and the reason;
    3. calling the object returns the same as dictionaries, like a transformers pipeline;
    4. ``classifier_.certificate_.holds_for()`` says what is promised, ``recertify`` certifies with new texts;
    5. ``save_pretrained`` saves the classifier and what it needs to know about the language model, not its weights.

    For answers of a model that exposes no hidden states, use a prompt with ``{answer}`` and pass ``answers``: the texts
    are then the questions, and the classifier decides whether the answer is right.

    Parameters
    ----------
    model : str, path, Backbone or HiddenStateExtractor
        The language model, as ``HiddenStateExtractor`` takes it; or an extractor, for other settings.
    prompt : str, TaskPrompt or None
        The prompt, if ``model`` is not an extractor, which has its own.
    classifier : SDMClassifier or SDMEnsemble, optional
        The classifier over hidden states, not yet fitted; by default ``SDMClassifier()``.
    cache : bool or path
        Whether ``fit`` caches the hidden states of its texts, so that another ``fit`` on the same texts, even in
        another process or after an interruption, does not run the language model on them again. True: in the cache
        folder (``TORCHSDM_CACHE``), as ``sdm train`` does; a path: in that folder. Only ``fit`` writes to it.
    backend : str, RayBackend or None
        Where ``fit`` extracts hidden states and, unless the classifier has a backend of its own, trains: in this
        process, or on a Ray cluster ('auto' or HOST:PORT); the model is the same. Not saved.

    Attributes
    ----------
    classifier_ : SDMClassifier or SDMEnsemble
        The fitted classifier.
    extractor_ : HiddenStateExtractor
    classes_ : (C,)

    Notes
    -----
    It refuses any language model, prompt or setting other than those it was fitted with: decisions on other hidden
    states would be meaningless without looking so.
    """

    model: str | Path | Backbone | HiddenStateExtractor
    prompt: str | TaskPrompt | None = None
    classifier: SDMClassifier | SDMEnsemble | None = None
    _: KW_ONLY
    cache: bool | str | Path = True
    backend: Backend = None

    # ---------------------------------------------------------------- fitting

    def fit(
        self: Self,
        X: Any,
        y: Any = None,
        *,
        ids: Any = None,
        answers: Any = None,
        calibration: Any = None,
        certification: Any = None,
        background: Any = None,
        groups: Any = None,
    ) -> Self:
        """Extract hidden states, then fit the classifier.

        Parameters
        ----------
        X : sequence of str, or Documents
            Texts; or documents with their own labels and ids, from a file, a table or a dataset. A ``datasets.Dataset``
            itself is read as Documents are, with the names of its classes.
        y : (N,), optional
            Labels, if X is a sequence of strings.
        ids, answers : (N,), optional
            Ids and answers, if X is a sequence of strings.
        calibration : (texts, labels), (texts, labels, answers) or Documents, optional
            Your own calibration set. By default each round splits X.
        certification : like calibration, optional
            Your own certification set, which nothing else may have seen; see ``SDMClassifier.fit``. An ensemble is not
            certified.
        background : sequence of str, or Documents, optional
            Texts that belong to no class; see ``SDMClassifier.fit``.
        groups : (N,), optional
            The group of each text, such as its thread; see ``SDMClassifier.fit``.
        """
        caller = "SDMTextClassifier.fit"
        documents = _labelled_documents(X, caller, labels=y, ids=ids, answers=answers)
        given = {"calibration": calibration, "certification": certification}
        held_out = {name: _held_out(part, name, caller) for name, part in given.items() if part is not None}
        classifier = SDMClassifier() if self.classifier is None else clone(self.classifier)
        if certification is not None and isinstance(classifier, SDMEnsemble):
            raise InvalidInputError(f"'certification' of {caller} must be None: an ensemble is not certified.")
        _check_labels(documents, held_out, caller, classifier)
        if background is not None:
            held_out["background"] = _documents(background, f"{caller} (background)")
        elsewhere, store = extract_on(self.backend, caller), default_store() if self.cache is True else None
        if not isinstance(self.cache, bool):
            store = StatesStore(check_path(self.cache, "cache", caller))
        if isinstance(self.model, HiddenStateExtractor) and self.prompt is not None:
            raise InvalidInputError("'prompt' of SDMTextClassifier must be None if 'model' is an extractor.")
        extractor = self.model
        if not isinstance(extractor, HiddenStateExtractor):
            extractor = HiddenStateExtractor(extractor, self.prompt)
        training = extractor.labelled_states(documents, store=store, elsewhere=elsewhere)
        parts: dict[str, Any] = {}
        for name, one in held_out.items():
            states = extractor.labelled_states(one, store=store, elsewhere=elsewhere)
            parts[name] = states if one.has_ids else replace(states, ids=None)  # numbered on from X
        if classifier.backend is None:
            classifier.set_params(backend=self.backend)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # _check_labels warned before anything was extracted
            classifier.fit(training, groups=groups, **parts)
        self.extractor_, self.classifier_ = extractor, classifier
        return self

    # ---------------------------------------------------------------- asking

    def decide(self, X: Any, *, answers: Any = None, guard: Watcher | None = None) -> SDMDecisions:
        """Decide on each text: the label, whether it is admitted, its lane, the reason, and the numbers behind it.

        A ``guard`` is used as in ``SDMClassifier.decide``.
        """
        watched = self._watched("decide", guard)
        return self._fitted("decide").decide(self._states(X, answers, "decide"), **watched)

    def predict(self, X: Any, *, answers: Any = None) -> Array:
        """The predicted label of each text, admitted or not; ``decide`` says which are admitted."""
        return self._fitted("predict").predict(self._states(X, answers, "predict"))

    def predict_proba(self, X: Any, *, answers: Any = None) -> Array:
        """sdm(z') of each text (N, C), classes in the order of ``classes_``."""
        return self._fitted("predict_proba").predict_proba(self._states(X, answers, "predict_proba"))

    def explain(self, X: Any, k: int = 5, *, answers: Any = None, guard: Watcher | None = None) -> list[Explanation]:
        """For each text its decision, the k nearest training texts, and the calibration points of its partition.

        A ``guard`` is used as in ``SDMClassifier.decide``.
        """
        watched = self._watched("explain", guard)
        return self._fitted("explain").explain(self._states(X, answers, "explain"), k, **watched)

    def __call__(self, inputs: Any, *, answers: Any = None, guard: Watcher | None = None) -> list[dict[str, Any]]:
        """One dictionary of plain values per text, even for a single text: the rows of ``decide(...).to_dicts()``."""
        if isinstance(inputs, str):
            inputs, answers = [inputs], [answers] if isinstance(answers, str) else answers
        return self.decide(inputs, answers=answers, guard=guard).to_dicts()

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the columns of ``predict_proba``."""
        return self._fitted("classes_").classes_

    # ---------------------------------------------------------------- updating

    def add_exemplars(
        self: Self,
        X: Any,
        y: Any = None,
        *,
        ids: Any = None,
        answers: Any = None,
        repeated: str = "refuse",
        allow_new_labels: bool = False,
    ) -> Self:
        """Add labelled texts to the support; see ``SDMClassifier.add_exemplars``."""
        more = {"repeated": repeated, "allow_new_labels": allow_new_labels}
        return self._update("add_exemplars", X, y, ids, answers, **more)

    def add_calibration(
        self: Self, X: Any, y: Any = None, *, ids: Any = None, answers: Any = None, repeated: str = "refuse"
    ) -> Self:
        """Add labelled texts to the calibration set; see ``SDMClassifier.add_calibration``."""
        return self._update("add_calibration", X, y, ids, answers, repeated=repeated)

    remove = _passed_on(SDMClassifier.remove)
    """Remove texts, by id, from whichever set has them; see ``SDMClassifier.remove``."""

    relabel = _passed_on(SDMClassifier.relabel)
    """Relabel texts, by id, in whichever set has them; see ``SDMClassifier.relabel``."""

    remove_exemplars = _passed_on(SDMClassifier.remove_exemplars)
    """Remove texts from the support, by id."""

    relabel_exemplars = _passed_on(SDMClassifier.relabel_exemplars)
    """Relabel texts of the support, by id."""

    recalibrate = _passed_on(SDMClassifier.recalibrate)
    """Recompute the region, for another alpha or after updates; see ``SDMClassifier.recalibrate``."""

    def recertify(
        self: Self, X: Any = None, y: Any = None, *, ids: Any = None, answers: Any = None, alpha: Any = None
    ) -> Self:
        """Certify again, with new labelled texts or on the same sample; see ``SDMClassifier.recertify``."""
        classifier = self._certified("recertify")
        if X is not None:
            return self._update("recertify", X, y, ids, answers, alpha=alpha)
        classifier.recertify(alpha=alpha)
        return self

    def choose_alpha(
        self, *, cost_error: float | Mapping[Any, float], cost_review: float, n_certification: int | None = None
    ) -> AlphaChoice:
        """The alpha of least expected cost per input; see ``SDMClassifier.choose_alpha``."""
        classifier = self._certified("choose_alpha")
        return classifier.choose_alpha(cost_error=cost_error, cost_review=cost_review, n_certification=n_certification)

    # ---------------------------------------------------------------- saving

    def save(self, path: str | Path) -> None:
        """Write classifier and settings to a directory; the language model's weights stay where they are."""
        self._fitted("save").save(path)

    @classmethod
    def load(
        cls: type[Self],
        path: str | Path,
        *,
        model: str | Path | Backbone | None = None,
        device: str | None = None,
        verify: bool | None = None,
        backend: Backend = None,
        **options: Any,
    ) -> Self:
        """Read a classifier that ``save`` wrote.

        Parameters
        ----------
        path : path
        model : optional
            Where the language model is now, if it has moved. It is loaded when it is first needed, and refused if it is
            not the one that the classifier was fitted on.
        device : str, optional
            For the language model and the classifier.
        verify, backend : optional
            As for ``SDMClassifier.load``.
        **options
            Settings of the extractor that do not affect the states: ``batch_tokens``, ``trust_remote_code``,
            ``verbose``.
        """
        directory = check_path(path, "path", "SDMTextClassifier.load")
        classifier = load_classifier(directory, device=device, verify=verify, backend=backend)
        if classifier.states_origin_ is None:
            raise ModelFileError(
                f"{directory} contains a classifier of hidden states that does not know its language model. "
                f"Load it with {type(classifier).__name__}.load."
            )
        return cls.around(classifier, model=model, device=device, **options)

    @classmethod
    def around(
        cls: type[Self],
        classifier: SDMClassifier | SDMEnsemble,
        *,
        model: str | Path | Backbone | None = None,
        device: str | None = None,
        **options: Any,
    ) -> Self:
        """A text classifier around one that was fitted on states and knows the language model they came from."""
        if classifier.states_origin_ is None:
            raise InvalidInputError(
                "'classifier' of SDMTextClassifier.around must know its language model. Got one that does not."
            )
        extractor = HiddenStateExtractor.from_origin(classifier.states_origin_, model=model, device=device, **options)
        made = cls(extractor, classifier=clone(classifier))
        made.extractor_, made.classifier_ = extractor, classifier
        return made

    def model_card(self) -> str:
        """A model card for this model, in Markdown."""
        return self._fitted("model_card").model_card()

    # ---------------------------------------------------------------- inside

    def _fitted(self, method: str) -> SDMClassifier | SDMEnsemble:
        require_fitted(self, "classifier_", method)
        return self.classifier_

    def _certified(self, method: str) -> SDMClassifier:
        classifier = self._fitted(method)
        if isinstance(classifier, SDMEnsemble):
            raise InvalidInputError(f"SDMTextClassifier.{method} needs an SDMClassifier: an ensemble is not certified.")
        return classifier

    def _watched(self, method: str, guard: Watcher | None) -> dict[str, Any]:
        """The option of a method of the classifier for a guard; an ensemble takes none."""
        if guard is not None and isinstance(self._fitted(method), SDMEnsemble):
            raise InvalidInputError(f"'guard' of SDMTextClassifier.{method} must be None: an ensemble has no guard.")
        return {} if guard is None else {"guard": guard}

    def _update(self: Self, method: str, X: Any, y: Any, ids: Any, answers: Any, **more: Any) -> Self:
        """Call a method of the classifier with the states, labels, texts and, if they have any, ids of documents."""
        classifier = self._fitted(method)
        documents = _labelled_documents(X, f"SDMTextClassifier.{method}", labels=y, ids=ids, answers=answers)
        states = self.checked_extractor().labelled_states(documents)
        names = {"ids": states.ids if documents.has_ids else None, "texts": states.texts}
        getattr(classifier, method)(states.hidden_states, states.labels, **names, **more)
        return self

    def states(self, X: Any, *, answers: Any = None) -> Array:
        """The hidden states of texts, as the classifier takes them."""
        return self._states(X, answers, "states")

    def _states(self, X: Any, answers: Any, method: str) -> Array:
        if isinstance(X, (Sequence, np.ndarray)) and not isinstance(X, str) and len(X) == 0:
            return no_states(self._fitted(method))
        documents = _documents(X, f"SDMTextClassifier.{method}", answers=answers, label=False, repeated="keep")
        return self.checked_extractor().extract(documents).hidden_states

    def checked_extractor(self) -> HiddenStateExtractor:
        """The extractor, if it still makes the hidden states that the classifier was fitted on."""
        origin = self.classifier_.states_origin_
        difference = None if origin is None else origin.difference(self.extractor_.origin())
        if difference is not None:
            raise BackboneError(
                f"This classifier was fitted with a different {difference.what}: {shortened(repr(difference.ours))} "
                f"then, {shortened(repr(difference.theirs))} now. Its decisions would mean nothing; give it the "
                "language model it was fitted on, or fit it again."
            )
        return self.extractor_


def load(
    path: str | Path,
    *,
    model: str | Path | Backbone | None = None,
    device: str | None = None,
    verify: bool | None = None,
    backend: Backend = None,
) -> SDMClassifier | SDMEnsemble | SDMTextClassifier:
    """Open a model directory, whichever kind of model was saved there.

    A classifier that knows the language model of its hidden states is opened as an ``SDMTextClassifier``, which takes
    texts; its ``classifier_`` takes hidden states. Any other is the ``SDMClassifier`` or ``SDMEnsemble`` itself.

    Parameters
    ----------
    path : path
    model : optional
        Where the language model is now, if it has moved; for a classifier of texts alone.
    device, verify, backend : optional
        As for ``SDMClassifier.load``.
    """
    directory = check_path(path, "path", "load")
    classifier = load_classifier(directory, device=device, verify=verify, backend=backend)
    if classifier.states_origin_ is not None:
        return SDMTextClassifier.around(classifier, model=model, device=device)
    if model is not None:
        raise InvalidInputError(f"{directory} was trained on states only.", remedy=Remedy.NO_LANGUAGE_MODEL)
    return classifier


def _documents(source: Any, caller: str, **columns: Any) -> Documents:
    given = {name: values for name, values in columns.items() if values is not None}
    if isinstance(source, Documents):
        for name in given.keys() - {"repeated", "label"}:
            raise InvalidInputError(f"'{name}' of {caller} must not be given with Documents, which have their own.")
        return source
    if isinstance(source, (str, Path)):
        raise InvalidInputError(
            f"'X' of {caller} must be a sequence of texts or Documents. Got {str(source)[:60]!r}; write [text] for one "
            "text, Documents(path) for a file."
        )
    return Documents(source, **given)


def _held_out(part: Any, name: str, caller: str) -> Documents:
    where = f"{caller} ({name})"
    if isinstance(part, tuple) and len(part) not in (2, 3):
        raise InvalidInputError(f"'{name}' of {where} must be (texts, labels[, answers]) or Documents.")
    texts, *columns = part if isinstance(part, tuple) else (part,)
    return _labelled_documents(texts, where, **dict(zip(("labels", "answers"), columns, strict=False)))


def _labelled_documents(source: Any, caller: str, **columns: Any) -> Documents:
    documents = _documents(source, caller, **columns)
    if not documents.has_labels:
        raise InvalidInputError(f"{caller} needs labels: pass y, or documents that have them.")
    return documents


def _check_labels(
    documents: Documents, held_out: Mapping[str, Documents], caller: str, classifier: SDMClassifier | SDMEnsemble
) -> None:
    """Check labels as the classifier will, and the classes that its alpha names, before anything is extracted."""
    labels = documents.label_array()
    classes, _ = count_classes(labels, f"'y' of {caller}")
    warn_of_lookalikes(labels, f"'y' of {caller}")
    check_targets(classifier.alpha, classes, caller)
    for name, part in held_out.items():
        LabelCodes(classes).encode(part.label_array(), f"{caller} ({name})")


_KINDS: dict[str, type[SDMClassifier | SDMEnsemble]] = {"SDMClassifier": SDMClassifier, "SDMEnsemble": SDMEnsemble}


def load_classifier(
    directory: Path, *, device: str | None = None, verify: bool | None = None, backend: Backend = None
) -> SDMClassifier | SDMEnsemble:
    """The classifier or ensemble over hidden states in a directory; see ``SDMClassifier.load``."""
    return replay(*read_estimator(directory, _KINDS, device, verify, backend))


def load_base(
    directory: Path, *, device: str | None = None, verify: bool | None = None, backend: Backend = None
) -> tuple[SDMClassifier | SDMEnsemble, ReadLog]:
    """The same without the changes that were logged, and the log of them."""
    return read_estimator(directory, _KINDS, device, verify, backend)
