"""The paper's estimators side by side (section 4.4 and appendix A.8), and what a user would pick today instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsdm.baselines import (
    APS,
    RAPS,
    RULES,
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
    VBLLClassifier,
)
from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.states import LabelledStates
from torchsdm.validation import check_choice, check_path

INPUTS = ("hidden_states", "label_logits")  #: what an estimator may read of labelled states


@dataclass(frozen=True)
class Entrant:
    """A fitted estimator under the names it has in a table."""

    model: str
    """What gives the predictions, such as a language model alone or with an adaptor."""
    name: str
    """The estimator over it."""
    estimator: Any
    """Anything fitted that has ``decide``."""
    reads: str = "hidden_states"
    """What it is given of the data: hidden states, or the language model's own label logits."""
    group: str = ""
    """The group of estimators it belongs to: one of ``comparison.GROUPS``, or a name of your own."""

    def decide(self, data: LabelledStates) -> Decisions:
        """Its decisions on labelled states."""
        check_choice(self.reads, INPUTS, "reads", "Entrant")
        if self.reads == "hidden_states":
            values: Any = data.hidden_states
        else:
            values = None if data.label_logits is None else data.label_logits_of(self.estimator.classes_.tolist())
        if values is None:
            raise InvalidInputError(f"{self.model}, {self.name} reads label logits, and the data have none.")
        decisions: Decisions = self.estimator.decide(values)
        return decisions


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
    checkpoint: str | Path | None = None,
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
    checkpoint : path or None
        A directory in which each network that is trained gets a checkpoint directory of its own: 'cnn',
        'vbll-discriminative-1' and so on, the number being the factor of the KL term. Called again after an
        interruption with the same data and settings, training goes on after the last finished round.
    """
    for group in groups:
        check_choice(group, GROUPS, "groups", "paper_entrants")
    if len(classifier.regions_) != 1:
        raise InvalidInputError("'classifier' of paper_entrants must have one alpha. Call recalibrate with one first.")
    directory = None if checkpoint is None else check_path(checkpoint, "checkpoint", "paper_entrants")
    alpha = classifier.region_.alpha
    seed = classifier.random_seed_
    settings = {key: getattr(classifier, key) for key in _TRAINING}
    X, y = training.hidden_states, training.labels
    entrants: list[Entrant] = []
    if "language model" in groups and training.label_logits is not None:
        for estimator, rule in _rules(alpha, None, seed):
            estimator.fit(training.label_logits_of(classifier.classes_.tolist()), y)
            entrants.append(Entrant(name, rule, estimator, "label_logits", group="language model"))
    if "cnn" in groups:
        folder = None if directory is None else directory / "cnn"
        cnn = CrossEntropyClassifier(classifier.n_filters, random_state=seed, checkpoint=folder, **settings).fit(X, y)
        entrants += [
            Entrant(f"{name} + CNN", rule, estimator.fit(X, y), group="cnn")
            for estimator, rule in _rules(alpha, cnn, seed)
        ]
    if "vbll" in groups:
        for kind in ("discriminative", "generative"):
            for factor in regularization_factors:
                folder = None if directory is None else directory / f"vbll-{kind}-{factor:g}"
                vbll = VBLLClassifier(
                    kind, alpha, factor, n_hidden, random_state=seed, checkpoint=folder, **settings
                ).fit(X, y)
                entrants.append(Entrant(f"{name} + {kind} VBLL, KL × {factor:g}", "VBLL ≥ α", vbll, group="vbll"))
    if "sdm" in groups:
        entrants += [
            Entrant(f"{name} + SDM", _LABELS[rule], SDMRule(classifier, rule).fit(), group="sdm") for rule in RULES
        ]
        if hasattr(classifier, "round_models_"):
            ensemble = SDMRule(SDMEnsemble.from_classifier(classifier), "region lower").fit()
            model = f"{name} + SDM, {classifier.n_rounds} rounds"
            entrants.append(Entrant(model, "SDM_HR lower, all agree", ensemble, group="sdm"))
    if "today" in groups:
        entrants += [
            Entrant(f"{name} + {model}", rule, fitted, group="today")
            for model, rule, fitted in _today(training, classifier, seed)
        ]
    return entrants


def classifier_entrants(classifier: SDMClassifier | SDMEnsemble, *, name: str = "LM") -> list[Entrant]:
    """Estimators that stand on a fitted classifier alone, such as one that was loaded: nothing is trained.

    The rules over it, and temperature scaling, APS and RAPS over its logits, calibrated on its calibration set. Of an
    ensemble, which has no logits of its own, its rule.

    Parameters
    ----------
    classifier : SDMClassifier or SDMEnsemble
        With one alpha.
    name : str
        What the language model is called.
    """
    model = f"{name} + SDM"
    if isinstance(classifier, SDMEnsemble):
        rules = {"no reject": "no reject", "region lower": "SDM_HR lower, all agree"}
        return [Entrant(model, label, SDMRule(classifier, rule).fit(), group="sdm") for rule, label in rules.items()]
    alpha, seed = classifier.region_.alpha, classifier.random_seed_
    entrants = [Entrant(model, label, SDMRule(classifier, rule).fit(), group="sdm") for rule, label in _LABELS.items()]
    over_logits = list(_rules(alpha, classifier, seed))[2:]  # the first two are rules of their own above
    calibrated = [Entrant(model, rule, estimator.fit(), group="logits") for estimator, rule in over_logits]
    return [*entrants[:2], *calibrated, *entrants[2:]]


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
