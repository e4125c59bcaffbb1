"""Which scores tell strangers from inputs that belong: those of a classifier beside the usual ones, on the same rows.

The higher a score, the more an input belongs. Of the classifier, with z the logits of its adaptor:

- q', q' lower: the rescaled similarity (Eq. 8), and that of the lower estimator;
- SDM confidence, lower: sdm(z)_yhat (Eq. 6), and that of the lower estimator;
- SDM confidence, one eCDF: the same with d = 1 - #{x < d_nearest} / n over the calibration points of all classes
  together. d itself is a minimum over classes, and with many small ones it is 0 for many inputs that belong;
- nearest distance: -d_nearest;
- reliability: what the certified rule sets its thresholds on, 0 for an input that it calls unfamiliar.

Over the hidden states h, learned from the rows that the classifier was trained on:

- largest probability: max_c softmax(w_c h + b_c) of a logistic regression (Hendrycks and Gimpel, 2017);
- energy: log sum_c exp(w_c h + b_c) of the same one (Liu et al., 2020);
- Mahalanobis: -min_c sqrt((h - mu_c)' S^-1 (h - mu_c)), S shared by the classes (Lee et al., 2018);
- k-th neighbour: minus the distance to the tenth nearest training state, all of length 1 (Sun et al., 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torchsdm.baselines import MahalanobisThreshold, NearestNeighborThreshold, negative_energy
from torchsdm.core import ClassEcdfs, SDMDecisions, sdm_activation
from torchsdm.data import LabelledStates
from torchsdm.estimators import SDMClassifier
from torchsdm.evaluation import FittedParts, ood_auroc, ood_fpr_at_95, ordering_score
from torchsdm.settings import LANES
from torchsdm.validation import Array


@dataclass(frozen=True)
class StrangerScore:
    """How well one score tells strangers from inputs that belong."""

    name: str
    of: str
    """'classifier', or 'hidden states'."""
    auroc: float
    """Probability that an input that belongs scores higher than a stranger; ties count half."""
    fpr_at_95: float
    """Share of strangers that pass the threshold that 95 % of the inputs that belong reach."""


def stranger_scores(
    classifier: SDMClassifier,
    training: LabelledStates,
    inside: LabelledStates,
    outside: LabelledStates,
    *,
    calibration: LabelledStates | None = None,
) -> list[StrangerScore]:
    """Compare scores on inputs that belong (``inside``) and strangers (``outside``).

    Parameters
    ----------
    classifier : SDMClassifier
    training : LabelledStates
        What it was fitted on, in the same order.
    inside, outside : LabelledStates
        That it has not seen; labels are not used.
    calibration : LabelledStates, optional
        The calibration set that it was given in ``fit``, if any.
    """
    parts = FittedParts.of(training, classifier, calibration, None)
    found = []
    for kind, (scores_in, scores_out) in {
        "classifier": [_of_classifier(classifier, data) for data in (inside, outside)],
        "hidden states": _of_states(parts, inside, outside),
    }.items():
        for name in scores_in:
            pair = scores_in[name], scores_out[name]
            found.append(StrangerScore(name, kind, ood_auroc(*pair), ood_fpr_at_95(*pair)))
    return found


def _of_classifier(classifier: SDMClassifier, data: LabelledStates) -> dict[str, Array]:
    """The scores of the classifier for each input (N,)."""
    decisions = classifier.decide(data.hidden_states)
    scores = {
        "q′": decisions.rescaled_similarity,
        "q′, lower": decisions.rescaled_similarity_lower,
        "SDM confidence": decisions.confidence,
        "SDM confidence, lower": decisions.confidence_lower,
        "SDM confidence, one eCDF": _confidence_with_one_ecdf(classifier, decisions),
        "nearest distance": -decisions.nearest_distance,
    }
    if decisions.score is not None:
        scores["reliability"] = np.where(decisions.lane == LANES[-1], 0.0, decisions.score)
    return scores


def _confidence_with_one_ecdf(classifier: SDMClassifier, decisions: SDMDecisions) -> Array:
    """sdm(z)_yhat with d ranked among the calibration points of all classes together."""
    distances = classifier.model_.calibration.ecdfs.sorted_distances
    together = ClassEcdfs((torch.cat([one.cpu() for one in distances]).sort().values,))
    d = together.distance_quantile(decisions.nearest_distance)
    probabilities = sdm_activation(decisions.logits, decisions.similarity, d).numpy()
    confidence: Array = np.take_along_axis(probabilities, decisions.logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    return confidence


def _of_states(parts: FittedParts, *data: LabelledStates) -> list[dict[str, Array]]:
    """The scores of estimators that were learned from the same rows, for each data set."""
    learned = parts.learned.hidden_states, parts.learned.labels, parts.calibrated
    mahalanobis = MahalanobisThreshold(keep=0.95).fit(*learned)
    neighbours = NearestNeighborThreshold(keep=0.95, model=mahalanobis.fitted_model_).fit(*learned)

    def scores(states: Array) -> dict[str, Array]:
        answers = mahalanobis.decide(states)
        return {
            "largest probability": answers.probabilities.max(axis=1),
            "energy": negative_energy(answers.logits),
            "Mahalanobis": ordering_score(answers),
            "k-th neighbour": ordering_score(neighbours.decide(states)),
        }

    return [scores(np.asarray(one.hidden_states)) for one in data]
