"""The paper's estimators (section 4.4 and appendix A.8), and what a user would pick today instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from torchsdm.baselines import (
    APS,
    RAPS,
    CertifiedScore,
    CosineNeighborVote,
    CrossEntropyClassifier,
    LogitModel,
    MahalanobisThreshold,
    NearestNeighborThreshold,
    NoReject,
    RiskControlledAbstention,
    SDMRule,
    SelectiveClassifier,
    SoftmaxThreshold,
    TemperatureScaling,
    TunedLogisticModel,
    VBLLClassifier,
)
from torchsdm.core import Decisions, SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.tables import UNLISTED, Basis, EstimatorKey, Rule
from torchsdm.labels import check_pools
from torchsdm.training import stratified_split
from torchsdm.trust import Certificate
from torchsdm.validation import Array, check_choice, check_path

_Network = TypeVar("_Network", CrossEntropyClassifier, VBLLClassifier)

INPUTS = ("hidden_states", "label_logits")  #: what an estimator may read from labelled states


@dataclass(frozen=True)
class Entrant:
    """A fitted estimator with its names in tables."""

    model: str
    """What makes the predictions, such as a language model alone or with an adaptor."""
    name: str
    """The estimator over it."""
    estimator: Any
    """Anything fitted with a method ``decide``."""
    reads: str = "hidden_states"
    """Its input: hidden states, or the language model's own label logits."""
    group: str = ""
    """The group of estimators it belongs to: one of ``GROUPS``, or any other name."""
    key: EstimatorKey = UNLISTED
    """Identifies the estimator in code; the names above are for readers."""

    def decide(self, data: LabelledStates, asked: Asked | None = None) -> Decisions:
        """Its decisions on labelled states; ``asked`` is shared by entrants that decide on the same ones."""
        check_choice(self.reads, INPUTS, "reads", "Entrant")
        if self.reads == "hidden_states":
            return (asked or Asked()).answers(self.estimator, data.hidden_states)
        logits = None if data.label_logits is None else data.label_logits_of(self.estimator.classes_.tolist())
        if logits is None:
            raise InvalidInputError(f"{self.model}, {self.name} reads label logits, but the data have none.")
        return self.estimator.decide(logits)


class Asked:
    """What estimators answer to the same hidden states: a model that several of them are rules over is asked once."""

    def __init__(self) -> None:
        self._decisions: dict[int, SDMDecisions] = {}  # by id of the model
        self._logits: dict[int, Array] = {}
        self._last: tuple[Any, Decisions] | None = None  # the scores of an estimator come after it

    def answers(self, estimator: Any, states: Any) -> Decisions:
        """What a fitted estimator decides."""
        model = getattr(estimator, "fitted_model_", None)
        if isinstance(estimator, CertifiedScore) and model is not None:
            return estimator.applied(self.answers(model, states))
        if isinstance(estimator, SDMRule) and model is not None:
            if id(model) not in self._decisions:
                self._decisions[id(model)] = model.decide(states)
            return estimator.applied(self._decisions[id(model)])
        if isinstance(estimator, SelectiveClassifier) and model is not None:
            if id(model) not in self._logits:
                decided = self.decided_by(model)
                self._logits[id(model)] = model.logits(states) if decided is None else decided.logits
            return estimator.decide_logits(self._logits[id(model)])
        if self._last is None or self._last[0] is not estimator:
            self._last = estimator, estimator.decide(states)
        return self._last[1]

    def decided_by(self, model: Any) -> SDMDecisions | None:
        """What an SDM model decided, if any of its rules was asked."""
        return self._decisions.get(id(model))


GROUPS = ("language model", "cnn", "vbll", "sdm", "today")  #: that ``paper_entrants`` can fit
_TRAINING = (
    *("n_rounds", "max_epochs", "batch_size", "learning_rate", "device"),
    *("standardization", "calibration_size", "patience", "verbose"),
)
_KEPT = 0.95  # share of calibration points that the literature on distance thresholds keeps


def paper_entrants(
    training: LabelledStates,
    classifier: SDMClassifier,
    *,
    calibration: LabelledStates | None = None,
    certification: LabelledStates | None = None,
    groups: Sequence[str] = GROUPS,
    name: str = "LM",
    regularization_factors: Sequence[float] = (1.0, 50.0),
    n_hidden: int = 795,
    checkpoint: str | Path | None = None,
) -> list[Entrant]:
    """Fit the paper's estimators on the rows that a classifier was fitted on, with its training settings.

    All estimators see the same rows. Networks of J rounds have the classifier's seed, and so its split in every round;
    each keeps its own best round. Estimators that learn or calibrate once use the rows of the classifier's best round:
    ``training_rows_`` and ``calibration_rows_``. The rows that the classifier held out to certify are used for that
    alone: if it has a certificate, scores of its logits and of the hidden states are certified the same way, with the
    same calibration and certification points, alpha, delta and control.

    Parameters
    ----------
    training : LabelledStates
        What the classifier was fitted on, in the same order. The group 'language model' needs ``label_logits``, and is
        left out without them.
    classifier : SDMClassifier
        Fitted with one alpha; with ``fit(..., keep_rounds=True)`` its ensemble is compared too.
    calibration : LabelledStates, optional
        The calibration set that the classifier was given in ``fit(..., calibration=...)``; required then.
    certification : LabelledStates, optional
        The certification set that the classifier was given in ``fit`` or ``recertify``. Without it, estimators over
        hidden states are certified only if the classifier held rows of ``training`` out.
    groups : sequence of str
        'language model': no-reject, softmax, temperature, APS and RAPS over the language model's own label logits.
        Nothing is trained, so the training rows could be used for calibration too; they are not, so that no rule has
        more calibration points than the others. 'cnn': the same over an adaptor trained with cross-entropy; 'vbll':
        Bayesian last layers; 'sdm': the rules over the classifier, and its certified rule beside softmax, temperature
        and energy of its logits certified alike; 'today': distance thresholds (chosen for accuracy, and keeping 95 % of
        the calibration points as in their literature), a vote of neighbours, MAPIE's risk control over the classifier's
        softmax, and a logistic regression, the distance and the vote certified like the classifier. The logistic
        regression has its penalty by cross-validation over all rows but those held out, and is calibrated out of fold.
        APS, RAPS and risk
        control over a network are calibrated on the rows that chose its epoch, so what they guarantee holds only
        approximately; certified rules are tested on rows that nothing else saw.
    name : str
        Name of the language model.
    regularization_factors : sequence of float
        Factors of the KL term of the Bayesian last layers.
    n_hidden : int
        Width of their network; the paper's 795 has about as many weights as its adaptors with 1,000 filters.
    checkpoint : path or None
        A directory in which each trained network gets its own checkpoint directory: 'cnn', 'vbll-discriminative-1' and
        so on, where the number is the factor of the KL term. Called again after an interruption with the same data and
        settings, training resumes after the last finished epoch.
    """
    for group in groups:
        check_choice(group, GROUPS, "groups", "paper_entrants")
    if len(classifier.regions_) != 1:
        raise InvalidInputError("'classifier' of paper_entrants must have one alpha. Call recalibrate with one first.")
    directory = None if checkpoint is None else check_path(checkpoint, "checkpoint", "paper_entrants")
    parts = FittedParts.of(training, classifier, calibration, certification)
    calibrated = parts.calibrated
    alpha, seed = classifier.region_.alpha, classifier.random_seed_
    settings = {key: getattr(classifier, key) for key in _TRAINING}

    def fitted(network: _Network, folder: str) -> _Network:
        network.set_params(checkpoint=None if directory is None else directory / folder, **settings)
        network.fit(parts.of_rounds.hidden_states, parts.of_rounds.labels, calibration, seed=seed)
        return network

    entrants: list[Entrant] = []
    if "language model" in groups and calibrated.label_logits is not None:
        label_logits = calibrated.label_logits_of(classifier.classes_.tolist())
        for estimator, rule in _rules(alpha, None, seed):
            estimator.fit(label_logits, calibrated.labels)
            entrants.append(_listed(name, estimator, "language model", Basis.LANGUAGE_MODEL, rule))
        entrants += _certified_language_model(classifier, parts, name)
    if "cnn" in groups:
        cnn = fitted(CrossEntropyClassifier(classifier.n_filters), "cnn")
        for estimator, rule in _rules(alpha, cnn, seed):
            entrants.append(_listed(f"{name} + CNN", estimator.fit(), "cnn", Basis.CNN, rule))
    if "vbll" in groups:
        for kind, basis in (("discriminative", Basis.DISCRIMINATIVE_VBLL), ("generative", Basis.GENERATIVE_VBLL)):
            for factor in regularization_factors:
                vbll = fitted(VBLLClassifier(kind, alpha, factor, n_hidden), f"vbll-{kind}-{factor:g}")
                model = f"{name} + {kind} VBLL, KL × {factor:g}"
                entrants.append(_listed(model, vbll, "vbll", basis, Rule.VBLL, float(factor)))
    if "sdm" in groups:
        entrants += _sdm_entrants(classifier, f"{name} + SDM")
        if hasattr(classifier, "round_models_"):
            ensemble = SDMEnsemble.from_classifier(classifier)
            entrants.append(_all_agree(ensemble, f"{name} + SDM, {classifier.n_rounds} rounds"))
        entrants += _certified_entrants(classifier, f"{name} + SDM")
    if "today" in groups:
        entrants += _entrants_of_today(classifier, parts, name)
    return entrants


def classifier_entrants(classifier: SDMClassifier | SDMEnsemble, *, name: str = "LM") -> list[Entrant]:
    """Estimators that need only a fitted classifier, such as a loaded one: nothing is trained.

    The rules over it; temperature scaling, APS and RAPS over its logits, calibrated on its calibration set; and, if it
    has a certificate, its certified rule beside softmax, temperature and energy of its logits certified the same way. A
    certificate for another alpha than the region's, or for a support that was changed since, is left out. For an
    ensemble, which has no logits, only its rule.

    Parameters
    ----------
    classifier : SDMClassifier or SDMEnsemble
        With one alpha.
    name : str
        Name of the language model.
    """
    model = f"{name} + SDM"
    if isinstance(classifier, SDMEnsemble):
        everything = SDMRule(classifier, "no reject").fit()
        return [
            _listed(model, everything, "sdm", Basis.ALL_ROUNDS, Rule.NO_REJECT),
            _all_agree(classifier, model),
        ]
    alpha, seed = classifier.region_.alpha, classifier.random_seed_
    entrants = _sdm_entrants(classifier, model)
    calibrated = [
        _listed(model, estimator.fit(), "logits", Basis.SDM, rule)
        for estimator, rule in _rules(alpha, classifier, seed)
        if rule not in (Rule.NO_REJECT, Rule.SOFTMAX)  # SDMRule has these too
    ]
    return [*entrants[:2], *calibrated, *entrants[2:], *_certified_entrants(classifier, model)]


#: The ``Rule`` of each of the paper's rules of ``SDMRule``.
SDM_RULES = {
    "no reject": Rule.NO_REJECT,
    "softmax": Rule.ADAPTOR_SOFTMAX,
    "softmax of d·z": Rule.DISTANCE_SOFTMAX,
    "sdm": Rule.SDM,
    "region": Rule.REGION,
    "region lower": Rule.REGION_LOWER,
}


def _listed(
    model: str, estimator: Any, group: str, basis: Basis, rule: Rule, kl_factor: float | None = None
) -> Entrant:
    """An entrant with a key, called like its rule."""
    reads = "label_logits" if basis is Basis.LANGUAGE_MODEL else "hidden_states"
    return Entrant(model, str(rule), estimator, reads, group, EstimatorKey(basis, rule, kl_factor))


def _sdm_entrants(classifier: SDMClassifier, model: str) -> list[Entrant]:
    return [_listed(model, SDMRule(classifier, name).fit(), "sdm", Basis.SDM, rule) for name, rule in SDM_RULES.items()]


def _all_agree(ensemble: SDMEnsemble, model: str) -> Entrant:
    rule = SDMRule(ensemble, "region lower").fit()
    entrant = _listed(model, rule, "sdm", Basis.ALL_ROUNDS, Rule.REGION_LOWER)
    return replace(entrant, name=f"{entrant.name}, all agree")


def _certificate(classifier: SDMClassifier) -> Certificate | None:
    """The certificate that others can be certified like; None if there is none that holds for the region's alpha."""
    certificate = classifier.lane_rule_.certificate
    if certificate is None or classifier.model_.certification is None or certificate.n_unlabelled:
        return None  # which points need no label is a matter of the classifier's own score
    return certificate if np.allclose(certificate.target, classifier.region_.target, rtol=0, atol=1e-9) else None


def _certified(
    estimator: Any, score: str, classifier: SDMClassifier, certificate: Certificate, *samples: Any
) -> CertifiedScore:
    """A score of an estimator, certified with its decisions on the calibration and the certification points."""
    alpha, delta, control = certificate.target, certificate.delta, certificate.control
    held_out = classifier.model_.certification
    n_errors = 0 if held_out is None else held_out.n_given_back
    families = None if classifier.pools is None else check_pools(classifier.pools, classifier.classes_, "entrants")
    certified = CertifiedScore(estimator, score, alpha, delta=delta, control=control, families=families)
    return certified.fit(*samples, n_errors=n_errors)


def _entrants_of_today(classifier: SDMClassifier, parts: FittedParts, name: str) -> Iterator[Entrant]:
    """What a user would pick today, also certified on the points that the classifier is certified on."""
    alpha, certificate, held_out = classifier.region_.alpha, _certificate(classifier), parts.certified
    regression, rows = f"{name} + logistic regression", parts.of_rounds
    if certificate is not None and held_out is not None:
        tuned = TunedLogisticModel().fit(np.asarray(rows.hidden_states), np.asarray(rows.labels))
        softmax = NoReject(certificate.alpha, tuned).fit()
        calibration = softmax.decide_logits(tuned.out_of_fold_), rows.labels
        certification = softmax.decide(held_out.hidden_states), held_out.labels
        certified = _certified(softmax, "odds", classifier, certificate, calibration, certification)
        yield Entrant(regression, "certified softmax", certified, group="today")
    for model, label, threshold, certified_as in (
        (regression, "Mahalanobis", MahalanobisThreshold(alpha), ""),
        (regression, "Mahalanobis, 95 % kept", MahalanobisThreshold(alpha, keep=_KEPT), ""),
        (regression, "k-th neighbour", NearestNeighborThreshold(alpha), "certified k-th neighbour"),
        (regression, "k-th neighbour, 95 % kept", NearestNeighborThreshold(alpha, keep=_KEPT), ""),
        (f"{name} + cosine neighbours", "vote", CosineNeighborVote(alpha), "certified vote"),
    ):
        threshold.fit(parts.learned.hidden_states, parts.learned.labels, parts.calibrated)
        yield Entrant(model, label, threshold, group="today")
        if certified_as and certificate is not None and held_out is not None:
            samples = [(threshold.decide(part.hidden_states), part.labels) for part in (parts.calibrated, held_out)]
            certified = _certified(threshold, "own", classifier, certificate, *samples)
            yield Entrant(model, certified_as, certified, group="today")
    if alpha < 1:  # no finite sample can show that everything is right
        yield Entrant(
            f"{name} + SDM", "MAPIE risk control", RiskControlledAbstention(alpha, classifier).fit(), group="today"
        )


def _certified_entrants(classifier: SDMClassifier, model: str) -> list[Entrant]:
    """The certified rule of a classifier, and scores of its logits certified the same way; needs no training data."""
    certificate, held_out = _certificate(classifier), classifier.model_.certification
    if certificate is None or held_out is None:
        return []
    softmax = NoReject(certificate.alpha, classifier).fit()
    temperature = TemperatureScaling(certificate.alpha, classifier).fit()
    samples = [classifier.calibration_logits(), (held_out.points.logits.cpu().numpy(), held_out.labels.cpu().numpy())]
    own = {"certified": Rule.CERTIFIED, **({"every level": Rule.EVERY_LEVEL} if certificate.windows else {})}
    entrants = [
        _listed(model, SDMRule(classifier, name).fit(), "certified", Basis.SDM, rule) for name, rule in own.items()
    ]
    for estimator, score, rule in (
        (softmax, "odds", Rule.CERTIFIED_SOFTMAX),
        (temperature, "odds", Rule.CERTIFIED_TEMPERATURE),
        (softmax, "energy", Rule.CERTIFIED_ENERGY),
    ):
        decided = ((estimator.decide_logits(logits), classifier.classes_[labels]) for logits, labels in samples)
        certified = _certified(estimator, score, classifier, certificate, *decided)
        entrants.append(_listed(model, certified, "certified", Basis.SDM, rule))
    return entrants


def _certified_language_model(classifier: SDMClassifier, parts: FittedParts, name: str) -> list[Entrant]:
    certificate, classes = _certificate(classifier), classifier.classes_.tolist()
    samples = [
        (logits, part.labels)
        for part in (parts.calibrated, parts.certified)
        if part is not None and part.labels is not None and (logits := part.label_logits_of(classes)) is not None
    ]
    if certificate is None or len(samples) < 2:
        return []
    own = NoReject(certificate.alpha).fit(*samples[0])
    decided = [(own.decide(logits), labels) for logits, labels in samples]
    certified = _certified(own, "odds", classifier, certificate, *decided)
    return [_listed(name, certified, "language model", Basis.LANGUAGE_MODEL, Rule.CERTIFIED_SOFTMAX)]


def _rules(alpha: float, model: LogitModel | None, seed: int) -> Iterator[tuple[SelectiveClassifier, Rule]]:
    yield NoReject(alpha, model), Rule.NO_REJECT
    yield SoftmaxThreshold(alpha, model), Rule.SOFTMAX
    yield TemperatureScaling(alpha, model), Rule.TEMPERATURE
    yield APS(alpha, model, reference=True, random_state=seed), Rule.APS
    yield RAPS(alpha, model, reference=True, random_state=seed), Rule.RAPS


_APART = 0.2  # of the rows of a cross-fitted classifier, for others to calibrate on


@dataclass(frozen=True)
class FittedParts:
    """What each step of a classifier's fit saw."""

    of_rounds: LabelledStates
    """All rows that its rounds could split, or train on; without those held out to certify."""
    learned: LabelledStates
    """The training rows of its best round; of a cross-fitted one, four fifths of its rows."""
    calibrated: LabelledStates
    """The calibration set of its best round; of a cross-fitted one, the other fifth."""
    certified: LabelledStates | None
    """The points that its certificate rests on; None if there are none or their states are not known."""

    @classmethod
    def of(
        cls,
        training: LabelledStates,
        classifier: SDMClassifier,
        calibration: LabelledStates | None,
        certification: LabelledStates | None,
    ) -> FittedParts:
        """The parts, checked against the labels that the classifier knows; parameters as in ``paper_entrants``."""
        if not hasattr(classifier, "training_rows_"):
            raise InvalidInputError(
                "'classifier' of paper_entrants does not know the rows it was trained on: it was saved by an earlier "
                "version. Fit it again."
            )
        rows, calibration_rows = classifier.training_rows_, classifier.calibration_rows_
        held_out = getattr(classifier, "certification_rows_", np.array([], dtype=np.int64))  # older models lack it
        is_crossed = classifier.is_cross_fitted_
        was_split = is_crossed or not np.isin(calibration_rows, [*rows, *held_out]).any()  # own sets have rows from 0
        if was_split != (calibration is None):
            own = "what the classifier was given in fit(calibration=…)"
            given = "None: the classifier split X" if was_split else own
            got = "None" if calibration is None else f"{len(calibration)} rows"
            raise InvalidInputError(f"'calibration' of paper_entrants must be {given}. Got {got}.")
        used = np.union1d(rows, calibration_rows) if was_split else rows
        points, source = classifier.model_.certification, training if calibration is None else calibration
        was_replaced = points is not None and not len(held_out)  # rows of an earlier certificate are forgotten
        n_left_out = 0 if points is None else points.n_left_out
        n_rows = len(used) + len(held_out) + n_left_out
        is_whole = len(training) > used.max() if was_replaced else len(training) == n_rows
        calibrated = source.take(calibration_rows) if calibration_rows.max() < len(source) else None
        known = classifier.calibration_logits()[1]
        if not is_whole or calibrated is None or not _has_labels(calibrated, classifier.classes_[known]):
            raise InvalidInputError(
                "'training' and 'calibration' of paper_entrants must be what the classifier was fitted on, in the same "
                f"order. Got {len(training)} training rows where it had {n_rows}, or other labels."
            )
        certified = training.take(held_out) if certification is None and len(held_out) else certification
        known = np.array([], dtype=np.int64) if points is None else points.labels.cpu().numpy()
        if (known >= len(classifier.classes_)).any():  # not all have a label: nothing is certified on them
            certified = None
        if certified is not None and not _has_labels(certified, classifier.classes_[known]):
            raise InvalidInputError(
                "'certification' of paper_entrants must be what the classifier was certified with, in the same order. "
                f"Got {len(certified)} rows where it had {len(known)}, or other labels."
            )
        of_rounds = training if len(used) == len(training) else training.take(used)
        if is_crossed:
            labels = np.unique(np.asarray(of_rounds.labels), return_inverse=True)[1]
            rng = np.random.default_rng(classifier.random_seed_)
            learned, apart = stratified_split(labels, _APART, rng)
            return cls(of_rounds, of_rounds.take(learned), of_rounds.take(apart), certified)
        return cls(of_rounds, training.take(rows), calibrated, certified)


def _has_labels(data: LabelledStates, labels: Array) -> bool:
    return np.array_equal(np.asarray(data.labels), labels)
