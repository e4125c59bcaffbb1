"""``SDMClassifier``: hidden states and labels in, decisions out, by scikit-learn's contract."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from torchsdm.core import HighReliabilityRegion, SDMDecisions, Target, check_control, check_targets
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, Remedy, import_extra, warn_user
from torchsdm.estimators._base import BaseSDMClassifier
from torchsdm.estimators._data import check_data, check_part, given_states, keep_apart, to_certify, warn_of_other_scale
from torchsdm.estimators._fitting import Terms, alpha_curve, certified, hold_out, label_floor, reaching
from torchsdm.estimators.asking import LabelRequest, draw_rows
from torchsdm.labels import NO_LABEL, LabelCodes, by_class, check_pools
from torchsdm.matching import DEFAULT_BLOCK_SIZE, Support
from torchsdm.model import (
    CERTIFICATION,
    Certification,
    Explanation,
    KnownSample,
    Points,
    SDMModel,
    explain,
    write_numpy_export,
)
from torchsdm.settings import AUTO
from torchsdm.training import History, best_round, seed_of_fit
from torchsdm.trust import AlphaChoice, AlphaCurve, Floor, Prices, Watcher, current_ledger, share_rows
from torchsdm.validation import Array, ArrayLike, check_groups, check_path, check_positive, require_fitted

Self = TypeVar("Self", bound="SDMClassifier")


class SDMClassifier(BaseSDMClassifier):
    """A classifier over frozen hidden states that admits an answer or rejects it.

    1. ``fit`` holds out a random part of the data, which nothing sees but the certificate;
    2. trains an adaptor on the rest: its logits are a penalised logistic regression, and every point is judged out of
       fold; or, with ``training='sdm'``, in J rounds with the SDM loss, of which the best is kept (section 3.1);
    3. matches the calibration points against the training points and estimates the high-reliability region
       (Algorithm 1);
    4. certifies a rule on the part held out: ``certificate_.holds_for()`` says what is promised;
    5. ``decide`` answers every input with a label, whether it is admitted, its lane, and the reason;
    6. ``explain`` shows the training examples behind a decision;
    7. ``add_exemplars``, ``remove_exemplars``, ``relabel_exemplars``, ``recalibrate`` and ``recertify`` change it
       without training.

    With ``certification_size=None`` this is the paper's protocol: no certificate, and the region admits.
    ``SDMClassifier.paper()`` has its training settings, too; the defaults take seconds where they take half an hour.

    Parameters
    ----------
    alpha : float, sequence of float, or mapping of class to float, default=0.95
        Target accuracy in (0.5, 1]. The certificate promises it, for those whom ``control`` names; the paper's region
        estimates where each true class reaches it on the calibration set. With several, each has a region, and the
        first is certified. A mapping names a target for every class: its true points and its predictions are held to
        it. A single number that stands for them, such as ``region_.alpha``, is then the smallest.
    n_filters : int, default=500
        M, the width of an exemplar; in linear training at least two for each class.
    n_rounds : int, default=2
        J, rounds of SDM training, each with its own split and initial weights.
    max_epochs : int, default=50
        Epochs per round; the model of the best one is kept.
    batch_size : int, default=50
        Points per step of SDM training.
    learning_rate : float, default=1e-4
        Of Adam, without weight decay.
    random_state : int, RandomState, Generator or None
        The same seed gives the same model.
    device : str or None
        A torch device; None is the CPU.
    adaptor : {'filters', 'identity'}
        'identity' matches hidden states directly and trains only the output layer (the paper's ablation).
    standardization : {'per_dimension', 'scalar'}
        One mean and standard deviation per dimension, or, as in the paper, one over all entries.
    calibration_size : float, default=0.5
        Share of X that each round of SDM training calibrates on; in linear training all of it does, out of fold.
    patience : int or None, default=5
        End a round after this many epochs without a better calibration loss; None never does.
    min_class_count : int, default=0
        Regions based on fewer calibration points of some class are refused.
    checkpoint : path or None
        A directory where SDM training saves its state after every epoch. An interrupted ``fit`` called again with the
        same data and settings resumes from there, with identical results.
    block_size : int
        Rows per block in matching; it limits memory and changes no answer.
    verbose : bool
        Show a progress bar.
    certification_size : float or None, default=0.25
        Share of X held out at random to certify with; None for the paper's protocol. Nothing is held out where there
        are too few points for any certificate.
    delta : float, default=0.1
        Probability with which the promise may fail.
    control : {'groups', 'pooled', 'predictions', 'all', 'auto'}
        For whom the promise holds: every class and every prediction; the same, but those with too few points only
        pooled, for many classes with few examples each; every prediction; or all admitted answers together. 'auto' is
        the strongest of them that will probably be certified, by the calibration points alone;
        ``certificate_.control`` says which, ``certificate_.chances`` how probable each was.
    pools : mapping of name to classes, optional
        With control 'pooled' or 'auto', which classes belong together, such as the intents of a domain: those that have
        too few points of their own are pooled within it first. By default all of them are.
    familiarity : float, default=0.05
        Share of the calibration points with a prediction, the least familiar ones (``torchsdm.core.signals``),
        below which an input with that prediction is unfamiliar: it is never certified. About as many ordinary inputs
        are lost. A change takes effect with the next ``fit`` or ``recertify``, since the certificate is for the rule
        with the old one.
    policy : {'certified', 'trusted'}
        Which lanes are admitted: trusted and certified, or only trusted. Without a certificate only trusted ones are.
        It takes effect at once and is saved with the model.
    background_as : {'class', 'exemplars'}
        What ``fit(background=)`` makes of examples that belong to no class: a further class, which the adaptor learns
        to tell from the others and nobody is answered with; or exemplars of the support alone, without training.
    backend : str, RayBackend or None
        Where the rounds of SDM training run: in this process, or, one beside the other, on a Ray cluster ('auto' or
        HOST:PORT); the model is the same. Not saved.
    training : {'linear', 'sdm'}
        'linear': the logits are those of a multinomial logistic regression whose penalty is chosen by cross-validation,
        every point trains, is in the support and calibrates, and it takes seconds. 'sdm': the paper's training, in
        rounds, on a part of the data each. States of several positions are always trained in rounds.
    class_weight : None, 'balanced' or mapping of class to float
        What an example of each class counts in training, as in scikit-learn.

    Attributes
    ----------
    classes_ : (C,)
    certificate_ : Certificate or None
        The promise, or why there is none; None for the paper's protocol.
    region_ : HighReliabilityRegion
        Of the first alpha; ``regions_`` has one per alpha.
    history_ : History
        Losses, accuracies and signals of every epoch.
    support_ : Support
    n_features_in_ : int
    data_fingerprint_ : str
        SHA-256 of the training data.
    random_seed_ : int
        The seed that was used; ``fit(..., seed=random_seed_)`` of another estimator uses the same splits.
    training_rows_, calibration_rows_ : arrays
        The rows that the model was trained and calibrated on: of X, or of the calibration set given to ``fit``.
    certification_rows_ : array
        The rows of X that were held out to certify; empty if none were.
    certification_ : SDMDecisions or None
        The decisions on the certification points.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(400, n_features=8, centers=2, random_state=0)
    >>> clf = SDMClassifier(alpha=0.9, n_filters=16, n_rounds=1, max_epochs=5, learning_rate=1e-2, random_state=0)
    >>> decisions = clf.fit(X, y).decide(X[:3])
    >>> len(decisions), decisions.predictions.shape
    (3, (3,))
    """

    round_models_: tuple[SDMModel, ...]

    def fit(
        self: Self,
        X: ArrayLike | LabelledStates,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
        certification: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
        background: LabelledStates | ArrayLike | None = None,
        groups: ArrayLike | None = None,
        seed: int | None = None,
        keep_rounds: bool = False,
    ) -> Self:
        """Hold out a part to certify, train the rounds on the rest, keep the best, calibrate it and certify it.

        Parameters
        ----------
        X : (N, D), or (N, positions, D); or LabelledStates
            Hidden states: an array, a memory-mapped array or a tensor. They are used as float32. LabelledStates, as
            ``read_states`` returns them, include labels, ids and texts.
        y : (N,)
            Labels of any type that scikit-learn accepts.
        ids, texts : (N,), optional
            Names (unique; by default the row numbers of X) and texts of the examples, returned by ``explain``.
        calibration : LabelledStates or (X, y), optional
            Your own calibration set; all of X is then trained on. By default each round splits X.
        certification : LabelledStates or (X, y), optional
            Your own certification set, which nothing else may have seen. By default a random part of X is held out;
            with your own calibration set nothing is, and nothing certified.
        background : LabelledStates or (M, D), optional
            Examples of what belongs to no class, such as film reviews at a news desk; labels are ignored. Inputs that
            resemble them are never admitted. ``background_as`` says how they are used.
        groups : (N,), optional
            The group of each row, such as its patient, thread or document. Rows of a group fall into one part, and of
            each group that is held out one row is certified with: the promise is about a random input of a random
            group. Copies, rows with the same states or text, are a group without being named.
        seed : int, optional
            The seed itself, such as another estimator's ``random_seed_``, instead of one drawn from ``random_state``:
            estimators with the same seed have the same splits.
        keep_rounds : bool, default=False
            Keep the models of all rounds in ``round_models_``, for ``SDMEnsemble.from_classifier``, until the first
            update. They are not saved; save the ensemble.
        """
        caller = "SDMClassifier.fit"
        with self._unchanged_on_error():
            data = check_data(self, X, y, ids, texts, calibration, certification, background, groups)
            is_linear = self.training == "linear" and data.points.hidden_states.ndim == 2
            if is_linear and keep_rounds:
                raise InvalidInputError(
                    f"'keep_rounds' of {caller} is for training='sdm': linear training has no rounds."
                )
            self.random_seed_ = seed_of_fit(seed, self.random_state, self.checkpoint, type(self).__name__)
            was_split = data.points.calibration is not None
            certifies = data.certification is not None or not (self.certification_size is None or was_split)
            if certifies:
                check_control(data.alphas[0], self.control, caller)
                self._terms(data.classes)  # refused before hours of training
            data, self.certification_rows_ = hold_out(self, data)
            for name in ("round_models_", "certificate_", "reliability_"):
                self.__dict__.pop(name, None)
            builder = self._begin(data)
            if is_linear:
                model, self.training_rows_, self.calibration_rows_, record = builder.linear()
                self.history_ = History((record,))
            else:
                training, rounds = self._train(builder)
                best = best_round(rounds)
                model, self.training_rows_, self.calibration_rows_ = builder.of_round(best, training)
                if keep_rounds:
                    others = (model if one is best else builder.of_round(one, training)[0] for one in rounds)
                    self.round_models_ = tuple(others)
            self.measures_familiarity_ = True
            if data.certification is not None:
                self._take_sample(model, data.certification, data.n_given_back)
            if certifies:
                self._certify(model, data.alphas[0])
            self.models_ = (model,)
            self._warn_of_regions()
        return self

    def recertify(
        self: Self,
        X: ArrayLike | LabelledStates | LabelRequest | None = None,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        groups: ArrayLike | None = None,
        alpha: float | Mapping[Any, float] | None = None,
    ) -> Self:
        """Certify again: with new labelled data at any time, or on the same sample for another alpha.

        X may be what ``ask_labels`` asked for: y are then the labels of its ``ids``, and alpha is its own. A label may
        be None, if nobody can tell: wherever such a point is admitted it counts as an error.

        A second certificate on one sample is a second chance to be wrong; ``certificate_.looks`` and ``delta_spent``
        count, and a warning says so. Samples are recognised by their rows, whoever asked before: another estimator, a
        refit, or this one with a part of them (``torchsdm.trust.Ledger``); the same question asked again costs nothing.
        The alpha must not be chosen by what an earlier certificate found. With new data that nothing else saw, the
        whole promise is there again; points of the support or the calibration set are refused, and so is a part or a
        mixture of the certification sample. Of copies, and of the rows of a group if ``groups`` (N,) are given, one is
        certified with.
        """
        caller = self._caller("recertify")
        if isinstance(X, LabelRequest):
            X.warn_of_change(self.label_request(X.drawn, X.rows, Floor(X.floor, len(X.rows))))
            alpha = X.alpha if alpha is None else alpha
            X = X.answered([] if y is None else y)
        wanted = self._target(alpha, caller)
        with self._updated_models() as models:
            model = models[0]
            if X is not None:
                given = X if isinstance(X, LabelledStates) else LabelledStates(X, y, ids, texts)
                named = None if groups is None else check_groups(groups, len(given), caller)
                self._codes = self._certify_with(model, given, caller, named)
                self.certification_rows_ = np.array([], dtype=np.int64)
            if model.certification is None:
                raise InvalidInputError(
                    "This model was fitted without a certification set.", remedy=Remedy.GIVE_LABELLED
                )
            was_changed = model.outdated
            if was_changed:
                model.recalibrate()
            self._certify(model, wanted)
        if was_changed:
            self._warn_of_regions()
        return self

    def ask_labels(
        self,
        X: ArrayLike | LabelledStates,
        n: int = 200,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        alpha: float | Mapping[Any, float] | None = None,
        random_state: int | None = None,
    ) -> LabelRequest:
        """Draw from a pool what to label for a new certificate, leaving out what could not be admitted anyway.

        A random part of X is drawn, so large that about ``n`` of its points could be admitted by a rule that has a
        chance, estimated on the calibration set. Only these need a label: ``recertify(request, labels)`` takes them,
        and the certificate is that of the whole part. ``torchsdm.trust.asking`` has the proof. The model is not
        changed; if it is changed before the labels come, the promise holds all the same, but admits less.

        Parameters
        ----------
        X : (N, D), or (N, positions, D); or LabelledStates
            The pool: inputs like those to come, which nothing else has seen. Labels are ignored.
        n : int
            About how many points to label; the fewer, the less can be certified.
        ids, texts : (N,), optional
            Of the points of X; by default labels are asked for by row number.
        alpha : float or mapping of class to float, optional
            To certify; by default as last certified.
        random_state : int, optional
            The same seed draws the same points.
        """
        caller = self._caller("ask_labels")
        given = replace(given_states(X, None, ids, texts, caller), labels=None)
        rows, floor = self.plan_labels(n, len(given), alpha=alpha, random_state=random_state)
        return self.label_request(given.take(rows), rows, floor, alpha=alpha)

    def plan_labels(
        self,
        n: int,
        n_pool: int,
        *,
        alpha: float | Mapping[Any, float] | None = None,
        random_state: int | None = None,
    ) -> tuple[Array, Floor]:
        """Which rows of a pool ``ask_labels`` draws, and its floor: for pools that are read only in part."""
        caller = self._caller("ask_labels")
        for name, value in (("n", n), ("size of 'X'", n_pool)):
            check_positive(value, name, caller, integer=True)
        model = self._calibrated()
        floor = label_floor(model, self._target(alpha, caller), self._terms(model.classes), n, n_pool)
        return draw_rows(floor, n_pool, random_state), floor

    def label_request(
        self, drawn: LabelledStates, rows: Array, floor: Floor, *, alpha: float | Mapping[Any, float] | None = None
    ) -> LabelRequest:
        """What is to be labelled of the rows that were drawn; refused if ``recertify`` would refuse the points."""
        model = self._calibrated()
        nobody_knows = replace(drawn, labels=[None] * len(drawn))
        self._certify_with(model, nobody_knows, self._caller("ask_labels"), is_asked=True)
        wanted = (self.certificate_ or self.region_).target if alpha is None else alpha
        if isinstance(wanted, tuple):
            wanted = dict(zip(self.classes_.tolist(), wanted, strict=True))
        asked = reaching(model, floor, self._terms(model.classes).familiarity)
        return LabelRequest(drawn, rows, asked, floor.thresholds, wanted, float(self.delta), self.control)

    def _target(self, alpha: float | Mapping[Any, float] | None, caller: str) -> Target:
        """What to certify: by default as last time."""
        wanted = (self.certificate_ or self.region_).target
        if alpha is not None:
            wanted = check_targets(alpha, self.classes_, caller)[0]
        check_control(wanted, self.control, caller)
        return wanted

    def _calibrated(self) -> SDMModel:
        """A copy of the model as ``recertify`` will have it."""
        model = copy.copy(self.model_)
        if model.outdated:
            model.recalibrate()
        return model

    def _certify_with(
        self,
        model: SDMModel,
        given: LabelledStates,
        caller: str,
        groups: Array | None = None,
        *,
        is_asked: bool = False,
    ) -> LabelCodes:
        """Let a model certify with other points, apart from its other sets; the codes of their labels.

        Where labels are only asked for (``is_asked``), every copy of a point is kept, and nothing is remembered.
        """
        others = {name: one for name, one in model.sets().items() if name != CERTIFICATION}
        if given.ids is None:
            first = 1 + model.largest_number()
            given = replace(given, ids=list(range(first, first + len(given))))
        codes = self._codes
        if isinstance(given.labels, list) and None in given.labels:
            codes = codes.extended([NO_LABEL], caller)
        part = check_part(
            self, given, CERTIFICATION, codes, self.states_origin_, caller, {}, may_lack_labels=codes is not self._codes
        )
        warn_of_other_scale(part[0], model.adaptor.mean, model.adaptor.scale, f"'X' of {caller}")
        earlier = model.certification
        if is_asked:
            is_same = model.certify_with(Points(part[0].split(DEFAULT_BLOCK_SIZE), *part[1:]))
        else:
            is_same = self._take_sample(model, to_certify(*part, self.states_origin_, groups))
        if earlier is not None and not is_same:
            others[CERTIFICATION] = (earlier.points.exemplars, earlier.examples)
        by_text = self.states_origin_ is not None
        keep_apart(model.sets()[CERTIFICATION], others, caller, to=CERTIFICATION, by_text=by_text)
        return codes

    def _certify_again(self, model: SDMModel, was_changed: bool, *, is_asked: bool) -> None:
        before = self.certificate_
        if before is None:
            return
        wanted = model.calibration.regions[0].target if is_asked else before.target
        if was_changed or wanted != before.target:
            check_control(wanted, self.control, "SDMClassifier.recalibrate")
            self._certify(model, wanted)

    def choose_alpha(
        self, *, cost_error: float | Mapping[Any, float], cost_review: float, n_certification: int | None = None
    ) -> AlphaChoice:
        """The alpha of least expected cost per input, estimated on the calibration set; the model is not changed.

        The certification set is not looked at, only counted, so the alpha can be certified on it afterwards:
        ``recertify(alpha=choice.alpha)``.

        Parameters
        ----------
        cost_error : float, or mapping of class to float
            Price of a wrong answer that is acted on; or one for each true class.
        cost_review : float
            Price of a person's look at an answer that is not admitted.
        n_certification : int, optional
            How many points will be certified on, if not the model's own.
        """
        caller = self._caller("choose_alpha")
        error: Any = cost_error
        if isinstance(cost_error, Mapping):
            error = by_class(cost_error, self.classes_, "cost_error", caller)
        prices = Prices.of(error, cost_review, len(self.classes_), caller)
        return self.alpha_curve(n_certification=n_certification).choose(prices)

    def alpha_curve(self, *, n_certification: int | None = None) -> AlphaCurve:
        """What would be admitted at each alpha and how much of it be wrong, estimated on the calibration set.

        ``n_certification`` is as in ``choose_alpha``.
        """
        require_fitted(self, "models_", "alpha_curve")
        points = self.model_.certification
        n = n_certification if n_certification is not None else 0 if points is None else len(points.labels)
        if n_certification is None and n == 0:
            raise InvalidInputError(
                "This model was fitted without a certification set.", remedy=Remedy.COUNT_CERTIFICATION
            )
        model = self._calibrated()
        control = self.control
        if control == AUTO:  # as it was chosen for the certificate
            control = "all" if self.certificate_ is None else self.certificate_.control
        return alpha_curve(model, replace(self._terms(model.classes), control=control), n)

    def _take_sample(self, model: SDMModel, points: Points, n_given_back: int = 0) -> bool:
        """Certify with points from now on; whether they are those that the model has already, given again.

        What is known of a sample holds for every other that shares rows with it.
        """
        earlier = model.certification
        if earlier is not None:
            self._remember(earlier)
        is_same = model.certify_with(points, n_given_back)
        now = model.certification
        if now is None or points.keys is None:
            return is_same
        again, keys = self.samples_.get(now.fingerprint), points.keys
        known = [one for one in self.samples_.values() if one is again or share_rows(keys, one.keys)]
        n_inspected = int(current_ledger().inspected(keys).sum())  # by an audit: as good as corrected
        model.certification = now = replace(
            now,
            n_given_back=max([now.n_given_back, *(one.n_given_back for one in known)]),
            n_corrected=max([now.n_corrected, n_inspected, *(one.n_corrected for one in known)]),
            u=now.u if again is None else again.u,
        )
        self._remember(now, keys)
        return is_same

    def _remember(self, sample: Certification, keys: Array | None = None) -> None:
        """Keep what is known of a sample when another takes its place."""
        if keys is None:
            before = self.samples_.get(sample.fingerprint)
            keys = np.empty((0, 1), dtype=np.uint64) if before is None else before.keys
        known = KnownSample(keys, sample.n_given_back, sample.n_corrected, sample.u)
        self.samples_ = {**self.samples_, sample.fingerprint: known}

    def _certify(self, model: SDMModel, alpha: Target) -> None:
        """Certify a model, if it has certification points; warns if no rule is found."""
        terms, points = self._terms(model.classes), model.certification
        spent: Mapping[str, float] = {}
        keys: Array | None = None
        if points is not None:
            known = self.samples_.get(points.fingerprint)
            spent, keys = self.deltas_spent_.get(points.fingerprint, {}), None if known is None else known.keys
        self.certificate_, reliability, asked = certified(model, alpha, terms, spent, keys)
        self.familiarity_, self.measures_familiarity_ = terms.familiarity, True
        if points is not None and reliability is not None:
            self.reliability_ = reliability
            self.deltas_spent_ = {**self.deltas_spent_, points.fingerprint: asked}
        warning = self.certificate_.warning(model.classes.tolist())
        if warning is not None:
            warn_user(warning)

    def _terms(self, classes: Array) -> Terms:
        families = None if self.pools is None else check_pools(self.pools, classes, "SDMClassifier")
        return Terms(float(self.delta), self.control, float(self.familiarity), families)

    @property
    def certification_(self) -> SDMDecisions | None:
        """The decisions on the certification points, as they would be made now; None without such points."""
        points = self.model_.certification
        return None if points is None else self.lane_rule_.apply(self.model_.decide_encoded(points.points))

    @property
    def model_(self) -> SDMModel:
        """The fitted model: adaptor, support, calibration set and regions."""
        require_fitted(self, "models_", "model_")
        return self.models_[0]

    @property
    def is_cross_fitted_(self) -> bool:
        """Whether training points calibrate it, each by a model that has not seen it."""
        return self.model_.calibration.known.places is not None

    @property
    def support_(self) -> Support:
        """The support set, with the ids of its examples."""
        return self.model_.support

    @property
    def regions_(self) -> tuple[HighReliabilityRegion, ...]:
        """One region per alpha, in the order the alphas were given."""
        return self.model_.calibration.regions

    @property
    def region_(self) -> HighReliabilityRegion:
        """The region of the first alpha."""
        return self.regions_[0]

    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which are admitted."""
        states = self._check_input(X, "predict")
        return self.classes_[self.model_.predict(states).numpy()]

    def decide(self, X: ArrayLike, *, guard: Watcher | None = None) -> SDMDecisions:
        """Decide on each input: the label, whether it is admitted, its lane, the reason, and the numbers behind it.

        A row does not depend on what else is in X. With a ``guard``, the inputs are the next ones of its stream, in
        their order, and once it is raised only trusted answers are admitted.
        """
        states = self._check_input(X, "decide")
        decisions = self.lane_rule_.apply(self.model_.decide(states))
        return decisions if guard is None else guard.watch(decisions)

    def logits(self, X: ArrayLike) -> Array:
        """z' of each input (N, C), classes in the order of ``classes_``."""
        return self.model_.logits(self._check_input(X, "logits")).numpy()

    def calibration_logits(self) -> tuple[Array, Array]:
        """z' (M, C) and class numbers (M,) of the calibration set, for other estimators over the same adaptor."""
        calibration = self.model_.calibration
        return calibration.logits.cpu().numpy(), calibration.labels.cpu().numpy()

    def explain(self, X: ArrayLike, k: int = 5, *, guard: Watcher | None = None) -> list[Explanation]:
        """For each input its decision, the k nearest training examples, and the calibration points of its partition.

        A ``guard`` is used as in ``decide``.
        """
        states = self._check_input(X, "explain")
        check_positive(k, "k", "SDMClassifier.explain", integer=True)
        return explain(self.model_, self._codes, states, k, self.lane_rule_, guard)

    def export_support(self, path: str | Path) -> None:
        """Write the support's ids, labels, predictions, texts and exemplars to a Parquet file."""
        caller = "SDMClassifier.export_support"
        pa, pq = (import_extra(name, "report", caller) for name in ("pyarrow", "pyarrow.parquet"))
        path = check_path(path, "path", caller)
        if path.suffix != ".parquet":
            raise InvalidInputError(f"'path' of SDMClassifier.export_support must end in .parquet. Got {path.name!r}.")
        ids, texts = self.model_.examples.all()
        columns = {
            "id": [str(name) for name in ids],
            "label": [str(label) for label in self._codes.decode(self.support_.labels)],
            "prediction": [str(label) for label in self._codes.decode(self.support_.predictions)],
            "text": texts,
            "exemplar": pa.FixedSizeListArray.from_arrays(
                pa.array(self.support_.exemplars.cpu().numpy().ravel()), self.support_.exemplars.shape[1]
            ),
        }
        pq.write_table(pa.table(columns), path)

    def export_numpy(self, path: str | Path) -> None:
        """Write a folder that decides on hidden states with NumPy alone, without torch and torchsdm.

        ``sdm_numpy.load(folder).decide(X)`` there, in the module ``sdm_numpy.py`` that is written with it, gives the
        decisions of this model as it is now; ``torchsdm.model.sdm_numpy`` says what may differ. Left out are drift
        guard, explanations, updates, and the ids and texts of training examples.
        """
        folder = check_path(path, "path", self._caller("export_numpy"))
        write_numpy_export(folder, self.model_, self.lane_rule_, input_ndim=self.input_ndim_)
