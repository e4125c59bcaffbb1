"""The paper's estimators side by side (section 4.4 and appendix A.8), and what a user would pick today instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchsdm.baselines import (
    APS,
    RAPS,
    CosineNeighborVote,
    CrossEntropyClassifier,
    MahalanobisThreshold,
    NearestNeighborThreshold,
    NoReject,
    RiskControlledAbstention,
    SDMRule,
    SoftmaxThreshold,
    TemperatureScaling,
    VBLLClassifier,
)
from torchsdm.baselines.base import LogitModel, SelectiveClassifier
from torchsdm.baselines.sdm_rules import RULES
from torchsdm.data import LabelledStates
from torchsdm.ensemble import SDMEnsemble
from torchsdm.errors import InvalidInputError
from torchsdm.estimator import SDMClassifier
from torchsdm.evaluation import Entrant
from torchsdm.validation import check_choice

GROUPS = ("language model", "cnn", "vbll", "sdm", "today")  #: of estimators that ``paper_entrants`` can fit
_TRAINING = (
    *("n_rounds", "max_epochs", "batch_size", "learning_rate", "device"),
    *("standardization", "calibration_size", "patience"),
)


def paper_entrants(
    training: LabelledStates,
    classifier: SDMClassifier,
    *,
    groups: Sequence[str] = GROUPS,
    name: str = "LM",
    regularization_factors: Sequence[float] = (1.0, 50.0),
    n_hidden: int = 795,
) -> list[Entrant]:
    """Fit the paper's estimators on the data that a classifier was fitted on, with its settings of training.

    Parameters
    ----------
    training : LabelledStates
        With ``label_logits`` for the group 'language model', which is left out without them.
    classifier : SDMClassifier
        Fitted on ``training`` with one alpha; with ``keep_rounds=True`` its ensemble is compared, too.
    groups : sequence of str
        'language model': no-reject, softmax, temperature, APS and RAPS over the language model's own label logits
        (nothing is trained, so that all of the data calibrate); 'cnn': the same over an adaptor trained with
        cross-entropy; 'vbll': Bayesian last layers; 'sdm': the rules over the classifier; 'today': distance thresholds,
        a vote of neighbours, and MAPIE's risk control over the classifier's softmax.
    name : str
        What the language model is called.
    regularization_factors : sequence of float
        Of the KL term of the Bayesian last layers.
    n_hidden : int
        Width of their network; the paper's 795 has about as many weights as its adaptors of 1,000 filters.
    """
    for group in groups:
        check_choice(group, GROUPS, "groups", "paper_entrants")
    if len(classifier.regions_) != 1:
        raise InvalidInputError("'classifier' of paper_entrants must have one alpha. Call recalibrate with one first.")
    alpha = classifier.region_.alpha
    seed = classifier.random_seed_
    settings = {key: getattr(classifier, key) for key in _TRAINING}
    X, y = training.hidden_states, training.labels
    entrants: list[Entrant] = []
    if "language model" in groups and training.label_logits is not None:
        for estimator, rule in _rules(alpha, None, seed):
            estimator.fit(training.label_logits_of(classifier.classes_.tolist()), y)
            entrants.append(Entrant(name, rule, estimator, "label_logits"))
    if "cnn" in groups:
        cnn = CrossEntropyClassifier(n_filters=classifier.n_filters, random_state=seed, **settings).fit(X, y)
        entrants += [
            Entrant(f"{name} + CNN", rule, estimator.fit(X, y)) for estimator, rule in _rules(alpha, cnn, seed)
        ]
    if "vbll" in groups:
        for kind in ("discriminative", "generative"):
            for factor in regularization_factors:
                vbll = VBLLClassifier(kind, alpha, factor, n_hidden, random_state=seed, **settings).fit(X, y)
                entrants.append(Entrant(f"{name} + {kind} VBLL, KL × {factor:g}", "VBLL ≥ α", vbll))
    if "sdm" in groups:
        entrants += [Entrant(f"{name} + SDM", _LABELS[rule], SDMRule(classifier, rule).fit()) for rule in RULES]
        if hasattr(classifier, "round_models_"):
            ensemble = SDMRule(SDMEnsemble.from_classifier(classifier), "region lower").fit()
            entrants.append(Entrant(f"{name} + SDM, {classifier.n_rounds} rounds", "SDM_HR lower, all agree", ensemble))
    if "today" in groups:
        entrants += [
            Entrant(f"{name} + {model}", rule, fitted) for model, rule, fitted in _today(training, classifier, seed)
        ]
    return entrants


_LABELS = {
    "no reject": "no reject",
    "softmax": "softmax(z′) ≥ α",
    "softmax of d·z": "softmax(d·z′) ≥ α",
    "sdm": "sdm(z′) ≥ α",
    "region": "SDM_HR",
    "region lower": "SDM_HR lower",
}


def _rules(alpha: float, model: LogitModel | None, seed: int) -> Iterator[tuple[SelectiveClassifier, str]]:
    """The estimators that stand on logits alone."""
    yield NoReject(alpha, model), "no reject"
    yield SoftmaxThreshold(alpha, model), "softmax ≥ α"
    yield TemperatureScaling(alpha, model), "temperature ≥ α"
    yield APS(alpha, model, reference=True, random_state=seed), "APS"
    yield RAPS(alpha, model, reference=True, random_state=seed), "RAPS"


def _today(training: LabelledStates, classifier: SDMClassifier, seed: int) -> Iterator[tuple[str, str, Any]]:
    X, y, alpha = training.hidden_states, training.labels, classifier.region_.alpha
    yield "logistic regression", "Mahalanobis", MahalanobisThreshold(alpha, random_state=seed).fit(X, y)
    yield "logistic regression", "k-th neighbour", NearestNeighborThreshold(alpha, random_state=seed).fit(X, y)
    yield "cosine neighbours", "vote", CosineNeighborVote(alpha, random_state=seed).fit(X, y)
    if alpha < 1:  # no finite sample can show that everything is right
        yield "SDM", "MAPIE risk control", RiskControlledAbstention(alpha, classifier).fit(X, y)
