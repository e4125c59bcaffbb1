"""What ``SDMClassifier`` and ``SDMEnsemble`` share: what is learned, training rounds, saving, and updates."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from torchsdm.cluster import Backend, run_rounds, spread_on
from torchsdm.core import SDMDecisions, check_targets
from torchsdm.data import LabelledStates, StatesOrigin
from torchsdm.errors import (
    CertificateWarning,
    InvalidInputError,
    InvalidTypeError,
    Remedy,
    SDMWarning,
    warn_user,
)
from torchsdm.estimators._data import FitData, check_examples, keep_apart
from torchsdm.estimators._fitting import ModelBuilder
from torchsdm.estimators._parameters import Parameters, training_settings
from torchsdm.estimators._saving import read_estimator, write_estimator
from torchsdm.estimators.changes import replay
from torchsdm.labels import BACKGROUND, LabelCodes, check_known_labels, class_weights
from torchsdm.model import (
    CALIBRATION,
    CERTIFICATION,
    SUPPORT,
    EncodedPoints,
    HubModel,
    KnownSample,
    SDMModel,
    locate,
    model_card,
    saving,
)
from torchsdm.settings import POLICIES
from torchsdm.training import History, Round, SDMLearner, Training, train_rounds
from torchsdm.trust import Certificate, LaneRule, Reliability
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_list,
    check_choice,
    check_hidden_states,
    check_path,
    check_positive,
    check_same_length,
    is_storable_id,
    require_fitted,
)
from torchsdm.wording import UNPROMISED, shortened

Self = TypeVar("Self", bound="BaseSDMClassifier")
EVERYWHERE = (SUPPORT, CALIBRATION, CERTIFICATION)


class BaseSDMClassifier(Parameters, HubModel):  # in this order, or the signature is that of ModelHubMixin.__new__
    """What the single classifier and the ensemble share.

    ``fit`` of each reads from top to bottom: check the data, train the rounds, build the models that are wanted.
    Updates change the sets or the region of a fitted estimator without training; a failed call changes nothing.
    """

    models_: tuple[SDMModel, ...]
    classes_: Array
    n_features_in_: int
    input_ndim_: int
    history_: History
    data_fingerprint_: str
    random_seed_: int
    training_rows_: Array
    calibration_rows_: Array
    certification_rows_: Array
    certificate_: Certificate | None = None
    reliability_: Reliability | None = None
    familiarity_: float
    """The familiarity that the certificate was made with."""
    measures_familiarity_: bool = False
    """Whether lanes go by ``torchsdm.core.Familiarity``; ensembles and models from before it do not."""
    deltas_spent_: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """What each certification sample was asked, by its fingerprint, and the delta of every answer; a refit or a new
    sample does not forget."""
    samples_: Mapping[str, KnownSample] = MappingProxyType({})
    """What else is known of each certification sample, by its fingerprint."""
    states_origin_: StatesOrigin | None
    """The language model and prompt that the hidden states were made with, if known."""
    data_source_: str | None = None
    """What the training data is called, such as the name of its file; for the model card."""
    version_: int = 0
    """The version of a loaded model: how many changes of it were logged; 0 for one that was fitted."""
    _codes: LabelCodes
    _home: Path | None = None
    """The directory that it was loaded from."""

    @abstractmethod
    def decide(self, X: ArrayLike) -> SDMDecisions:
        """Decide on each input: the label, whether it is admitted, and the numbers behind it."""

    def predict_proba(self, X: ArrayLike) -> Array:
        """sdm(z') of each input (N, C), classes in the order of ``classes_``.

        If the distance quantile is 0 the distribution is uniform; the predicted class is then raised by one unit in
        the last place, so that argmax agrees with ``predict``, as scikit-learn expects.
        """
        decisions = self.decide(X)
        probabilities = decisions.probabilities
        predicted = self._codes.encode(decisions.predictions, "predict_proba").numpy()
        tied = np.flatnonzero(probabilities.argmax(axis=1) != predicted)
        probabilities[tied, predicted[tied]] = np.nextafter(probabilities[tied].max(axis=1), 1.0)
        return probabilities

    def _caller(self, method: str) -> str:
        """What messages call a method that needs a fitted estimator; it is refused before."""
        require_fitted(self, "models_", method)
        return f"{type(self).__name__}.{method}"

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Restore what was learned before if a call fails or is interrupted."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _check_alike(self, part: LabelledStates, name: str, origin: StatesOrigin | None, caller: str) -> None:
        """Refuse a part whose states have another width than those of X, or were made otherwise."""
        shape = np.shape(part.hidden_states)
        if shape and shape[-1] != self.n_features_in_:
            raise InvalidInputError(
                f"'{name}' of {caller} must have states of width {self.n_features_in_}, like X. Got {shape[-1]}."
            )
        difference = None if origin is None or part.origin is None else origin.difference(part.origin)
        if difference is not None:
            raise InvalidInputError(
                f"'{name}' of {caller} was made with a different {difference.what} than X: "
                f"{shortened(repr(difference.theirs))}, but X has {shortened(repr(difference.ours))}."
            )

    @property
    def lane_rule_(self) -> LaneRule:
        """What puts decisions into lanes. A certificate does not hold for a model that was updated since."""
        require_fitted(self, "models_", "lane_rule_")
        check_choice(self.policy, POLICIES, "policy", type(self).__name__)
        changed = any(model.outdated for model in self.models_)
        return LaneRule(
            None if changed else self.certificate_,
            self.reliability_,
            float(self.familiarity if self.certificate_ is None else self.familiarity_),
            self.policy,
            self.models_[0].calibration.regions[0] if len(self.models_) == 1 else None,
            self.models_[0].calibration.familiarity if self.measures_familiarity_ else None,
        )

    def warnings(self) -> list[SDMWarning]:
        """What a user should know before relying on the model; also in its card, its report and ``sdm doctor``."""
        require_fitted(self, "models_", "warnings")
        names, certificate = self.classes_.tolist(), self.certificate_
        found = self._region_warnings()
        if certificate is not None and (warning := certificate.warning(names)) is not None:
            found.append(warning)
        if certificate is not None and certificate.found and self.models_[0].outdated:
            found.append(CertificateWarning(UNPROMISED["changed"], remedy=Remedy.CERTIFY_AGAIN))
        return found

    def _region_warnings(self) -> list[SDMWarning]:
        """What the regions of the models warn of; where several rounds say the like, the first of them says it."""
        names, certificate = self.classes_.tolist(), self.lane_rule_.certificate
        certified = certificate is not None and certificate.found
        by_model = [model.calibration.warnings(names, certified=certified) for model in self.models_]
        if len(by_model) == 1:
            return by_model[0]
        alike: dict[Any, list[tuple[int, SDMWarning]]] = defaultdict(list)
        for number, warnings in enumerate(by_model, start=1):
            kinds = [(type(warning), warning.remedy) for warning in warnings]
            for place, warning in enumerate(warnings):
                alike[kinds[place], kinds[:place].count(kinds[place])].append((number, warning))
        told = []
        for (number, first), *others in alike.values():
            of = f"Round {number}" + (f", and likewise {len(others)} of the others" if others else "")
            told.append(type(first)(f"{of}: {first.what}", remedy=first.remedy))
        return told

    def _warn_of_regions(self) -> None:
        for warning in self._region_warnings():
            warn_user(warning)

    def _check_input(self, X: ArrayLike, method: str) -> Tensor:
        return check_hidden_states(self, X, self._caller(method), reset=False, empty=True)

    # --- Saving and loading ------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model to a directory atomically: a crash leaves the old model or the new one.

        Where the directory has a log of changes, the model takes its place: the points of the log are dropped, the
        history and the version numbers go on. Refused while somebody else changes the model there, and if it was
        changed after this one was loaded from it.
        """
        path = check_path(path, "path", self._caller("save"))
        with saving(path) as changes:
            write_estimator(self, path, changes)

    @classmethod
    def load(
        cls: type[Self],
        path: str | Path,
        *,
        device: str | None = None,
        verify: bool | None = None,
        changes: bool = True,
        backend: Backend = None,
    ) -> Self:
        """Read a model that ``save`` wrote, with the changes that were logged since. The exemplars are memory-mapped.

        Every file's presence and size is checked, and the digest of files up to 64 MB, so that opening does not read
        all of a large support; ``verify=True`` checks every digest, ``verify=False`` none. ``changes=False`` leaves the
        log of changes out. With a ``backend``, the support is spread over the
        shards of a Ray cluster, whose nodes must see the directory at the same path; the answers are the same.
        """
        directory, kinds = check_path(path, "path", f"{cls.__name__}.load"), {cls.__name__: cls}
        return replay(*read_estimator(directory, kinds, device, verify, backend, with_log=changes))

    def model_card(self) -> str:
        """A model card for this model, in Markdown."""
        require_fitted(self, "models_", "model_card")
        return model_card(self)

    # --- Fitting -----------------------------------------------------------------------------------------------------

    def _begin(self, data: FitData) -> ModelBuilder:
        """Set what does not depend on how the model is trained; what models are built of."""
        caller = f"{type(self).__name__}.fit"
        self.data_fingerprint_, self.data_source_ = data.fingerprint, None
        self._home, self.version_ = None, 0  # another model than the one that was loaded
        self.classes_, self.states_origin_ = data.classes, data.states_origin
        self._codes = LabelCodes(data.classes, () if data.background is None else (BACKGROUND,))
        weights = class_weights(self.class_weight, data.points.usable.labels.numpy(), data.classes, caller)
        settings = training_settings(
            self,
            len(data.classes) + (data.background is not None and data.background.is_trained),
            adaptor=self.adaptor,
            block_size=int(self.block_size),
            class_weights=weights,
        )
        return ModelBuilder(data, settings, self.random_seed_, int(self.min_class_count))

    def _train(self, builder: ModelBuilder) -> tuple[Training, list[Round]]:
        data, caller = builder.data, f"{type(self).__name__}.fit"
        spread = spread_on(self.backend, caller)
        training = Training(SDMLearner, data.points, builder.settings, builder.seed, spread=spread)
        rounds = train_rounds(
            training,
            self.n_rounds,
            checkpoint=self.checkpoint,
            data_fingerprint=data.points.fingerprint_of_parts(data.fingerprint + data.background_fingerprint),
            verbose=self.verbose,
            run=run_rounds(self.backend, caller),
        )
        self.history_ = History(tuple(record for one in rounds for record in one.records))
        return training, rounds

    # --- Updates -----------------------------------------------------------------------------------------------------

    def recalibrate(
        self: Self,
        alpha: float | Sequence[float] | Mapping[Any, float] | None = None,
        *,
        min_class_count: int | None = None,
    ) -> Self:
        """Recompute the region, for another alpha or after updates, without training.

        After updates, the calibration points are matched against the support again and the eCDFs recomputed. If there
        is a certificate, and the rule or its certification sample changes, the rule is also certified again on the same
        sample, for the first alpha that is given, or else for that of the certificate; ``recertify`` says what that
        costs.
        """
        caller = self._caller("recalibrate")
        was_changed, current = self.models_[0].outdated, self.models_[0].calibration
        alphas = tuple(region.target for region in current.regions)
        if alpha is not None:
            alphas = check_targets(alpha, self.classes_, caller)
        count = current.min_class_count if min_class_count is None else min_class_count
        check_positive(count, "min_class_count", caller, integer=True, zero=True)
        with self._unchanged_on_error():
            with self._updated_models() as models:
                for model in models:
                    model.recalibrate(alphas, count)
                self._certify_again(models[0], was_changed, is_asked=alpha is not None)
            self._warn_of_regions()
        return self

    def _certify_again(self, model: SDMModel, was_changed: bool, *, is_asked: bool) -> None:
        """Certify a recalibrated model if its rule or its sample has changed, or another alpha is asked for."""

    def add_exemplars(
        self: Self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        repeated: str = "refuse",
        allow_new_labels: bool = False,
    ) -> Self:
        """Add labelled points to the support.

        With ``allow_new_labels`` their labels may be outside the classes: inputs near them lose similarity. Weights,
        eCDFs and region stay as they are until ``recalibrate``.

        A point that the model has already, in any of its sets, is refused: a calibration point that is also in the
        support is its own nearest neighbour, and nothing is learned from it. A few among many pass with a warning.
        ``repeated='keep'`` adds them all the same; an id that is in use is always refused, and so is more than a few of
        the certification set.
        """
        self._add(SUPPORT, "add_exemplars", X, y, ids, texts, repeated, allow_new_labels)
        return self

    def add_calibration(
        self: Self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        repeated: str = "refuse",
    ) -> Self:
        """Add labelled points to the calibration set; in an ensemble, to that of every round.

        Labels must be classes. Decisions stay as they are until ``recalibrate``. Points that were chosen, such as
        rejected inputs alone, make the calibration set unlike the inputs: add a random part of what comes in.

        Points that the model has already are refused as in ``add_exemplars``.
        """
        self._add(CALIBRATION, "add_calibration", X, y, ids, texts, repeated)
        return self

    def remove(self: Self, ids: Sequence[Any] | Array) -> Self:
        """Remove points, by id, from whichever set has them: support, calibration or certification set.

        In an ensemble, whose rounds split the data differently, they are removed from every round. What depends on them
        is recomputed by ``recalibrate``; until then a certificate is suspended.

        Removing or relabelling certification points makes a new question of the old sample: it costs another delta, and
        the promise holds only if the points were chosen without regard to the decisions on them, such as all points
        that were checked, or a random part. Whoever removes or corrects just the wrong answers that were admitted
        certifies nothing. The certificate says how many points were corrected.
        """
        self._remove(ids, "remove", EVERYWHERE)
        return self

    def relabel(self: Self, ids: Sequence[Any] | Array, y: ArrayLike, *, allow_new_labels: bool = False) -> Self:
        """Relabel points, by id, in whichever set has them; ``remove`` says what that means for a certificate.

        With ``allow_new_labels``, labels of the support may be outside the classes.
        """
        self._relabel(ids, y, "relabel", EVERYWHERE, allow_new_labels)
        return self

    def remove_exemplars(self: Self, ids: Sequence[Any] | Array) -> Self:
        """Remove points from the support, by id; in an ensemble, from every round that has them in its support."""
        self._remove(ids, "remove_exemplars", (SUPPORT,))
        return self

    def relabel_exemplars(
        self: Self, ids: Sequence[Any] | Array, y: ArrayLike, *, allow_new_labels: bool = False
    ) -> Self:
        """Relabel points of the support, by id; with ``allow_new_labels`` labels may be outside the classes."""
        self._relabel(ids, y, "relabel_exemplars", (SUPPORT,), allow_new_labels)
        return self

    def _add(
        self, to: str, method: str, X: ArrayLike, y: ArrayLike, ids: Any, texts: Any, repeated: str, allow: bool = False
    ) -> list[EncodedPoints]:
        """Add points to a set of every model; returns them as each model sees them."""
        caller = self._caller(method)
        check_choice(repeated, ("refuse", "keep"), "repeated", caller)
        states = check_hidden_states(self, X, caller, reset=False)
        labels = as_list(y, "y", caller)
        check_same_length(len(states), labels, "y", caller)
        if ids is None:
            first = 1 + max(model.largest_number() for model in self.models_)
            ids = range(first, first + len(states))
        examples = check_examples(ids, texts, len(states), caller)
        codes = self._codes.extended(labels, caller)
        check_known_labels(labels, self.classes_, f"'y' of {caller}", to=to, allow_new=allow)
        numbers = codes.encode(labels, caller, with_outside=True)
        added = []
        with self._updated_models() as models:
            for model in models:
                points = model.encoded(states, numbers, examples)
                keep_apart(
                    (points.points.exemplars, examples),
                    model.sets(),
                    caller,
                    to=to,
                    by_text=self.states_origin_ is not None,
                    is_repeated_kept=repeated == "keep",
                    remedy=Remedy.KEEP_REPEATED,
                )
                model.add(points, to=to)
                added.append(points)
            self._codes = codes
        return added

    def _remove(self, ids: Sequence[Any] | Array, method: str, names: Sequence[str]) -> None:
        chosen = _names(ids, self._caller(method))
        with self._updated_models() as models:
            for model, name, positions, _ in locate(models, chosen, names, type(self).__name__, method):
                model.remove(positions, of=name)

    def _relabel(
        self, ids: Sequence[Any] | Array, y: ArrayLike, method: str, names: Sequence[str], allow: bool
    ) -> None:
        caller = self._caller(method)
        chosen, labels = _names(ids, caller), as_list(y, "y", caller)
        check_same_length(len(chosen), labels, "y", caller)
        if len(set(chosen)) < len(chosen):
            twice = next(name for row, name in enumerate(chosen) if name in chosen[:row])
            raise InvalidInputError(f"'ids' of {caller} must name each point once. Got {twice!r} more than once.")
        codes = self._codes.extended(labels, caller)
        check_known_labels(labels, self.classes_, f"'y' of {caller}", allow_new=allow)
        numbers = codes.encode(labels, caller, with_outside=True)
        with self._updated_models() as models:
            for model, name, positions, rows in locate(models, chosen, names, type(self).__name__, method):
                outside = [row for row in rows if numbers[row] >= len(codes.classes)]
                if name != SUPPORT and outside:
                    raise InvalidInputError(
                        f"'y' of {caller} must be a class for a point of the {name} set. Got "
                        f"{labels[outside[0]]!r} for {chosen[outside[0]]!r}."
                    )
                model.relabel(positions, numbers[rows], of=name)
            self._codes = codes

    @contextmanager
    def _updated_models(self) -> Iterator[tuple[SDMModel, ...]]:
        """Copies of the models to change; they replace the models only if all goes well.

        A copy is cheap: updates replace tensors, they do not write into them.
        """
        models = tuple(copy.copy(model) for model in self.models_)
        for model in models:
            model.support = copy.copy(model.support)
        with self._unchanged_on_error():
            yield models
            self.models_ = models
            self.__dict__.pop("round_models_", None)  # they lack the update


def _names(ids: Sequence[Any] | Array, caller: str) -> list[Any]:
    """Ids of points, each of which could name one."""
    names = as_list(ids, "ids", caller)
    strange = [name for name in names if not is_storable_id(name)]
    if strange:
        raise InvalidTypeError(f"'ids' of {caller} must be strings or 64-bit integers. Got {strange[0]!r}.")
    return names
