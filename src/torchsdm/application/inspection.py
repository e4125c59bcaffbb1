"""What the page draws of a model: its calibration points, its rule, and the regions of a grid of alphas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchsdm.core import HighReliabilityRegion
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.model import Calibration
from torchsdm.trust import SignalSample
from torchsdm.validation import Array

ALPHAS = (*(percent / 100 for percent in range(55, 100)), 0.995)  #: of the regions that are drawn
_N_BINS = 24


def rule_of(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """The rule that admits: region and certificate with their thresholds, one per class; of an ensemble's first round.

    A threshold that nothing reaches is None. The certificate's thresholds are on the reliability.
    """
    region, lanes = classifier.models_[0].calibration.regions[0], classifier.lane_rule_
    certificate = lanes.certificate
    return {
        "classes": classifier.classes_.tolist(),
        "n_rounds": len(classifier.models_),
        "policy": classifier.policy,
        "familiarity": lanes.familiarity,
        "region": _region(region),
        "certificate": None
        if certificate is None or not certificate.found
        else {
            "alpha": certificate.alpha,
            "delta": certificate.delta,
            "thresholds": [_finite(threshold) for threshold in certificate.thresholds.tolist()],
        },
    }


def calibration_map(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """Every calibration point as columns of numbers, and the region of each alpha of a grid; see ``rule_of``.

    Labels and predictions are class numbers. Numbers are exact: a threshold is the value of one of the points.
    ``certified`` says which points the certificate admits: it belongs to one alpha, and is not made again for others.
    """
    calibration = classifier.models_[0].calibration
    own = calibration.regions[0]
    alphas = sorted({*ALPHAS, *([] if own.class_alphas else [own.alpha])})
    regions = [_region(one) for one in calibration.with_regions(alphas, calibration.min_class_count).regions]
    if own.class_alphas:
        regions.append({**_region(own), "class_alphas": list(own.class_alphas)})
    points = {
        "labels": calibration.labels.tolist(),
        "predictions": calibration.predictions.tolist(),
        "confidence": calibration.confidence.tolist(),
        "rescaled_similarity": calibration.rescaled_similarity.tolist(),
        **_certified(classifier, calibration),
    }
    return {**rule_of(classifier), "regions": regions, "points": points}


def calibration_examples(
    classifier: SDMClassifier | SDMEnsemble, positions: list[int], *, texts: bool
) -> list[dict[str, Any]]:
    """Id and, if texts may be given, text of calibration points."""
    rows = classifier.models_[0].calibration_examples.rows(positions)
    return [{"id": name, "text": text if texts else None} for name, text in rows]


def signal_histograms(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """How the calibration points of each prediction are spread over each signal, the right and the wrong ones.

    Similarity is binned as log2(1 + q); ``edges`` are in the units of the signal. See also ``rule_of``.
    """
    calibration = classifier.models_[0].calibration
    predictions = calibration.predictions.cpu().numpy()
    right = predictions == calibration.labels.cpu().numpy()
    signals = {
        "similarity": calibration.similarity.cpu().numpy(),
        "distance_quantile": calibration.distance_quantile.cpu().numpy(),
        "magnitude": calibration.logits.amax(dim=1).cpu().numpy(),
        "confidence": calibration.confidence.cpu().numpy(),
    }
    score = _certified(classifier, calibration).get("score")
    signals |= {} if score is None else {"score": np.array(score)}
    edges = {name: _edges(name, values) for name, values in signals.items()}

    def counted(values: Array, bins: Array) -> list[int]:
        counts: list[int] = np.histogram(values, bins)[0].tolist()
        return counts

    return {
        **rule_of(classifier),
        "edges": {name: bins.tolist() for name, bins in edges.items()},
        "predictions": [
            {
                name: {
                    what: counted(values[(predictions == c) & chosen], edges[name])
                    for what, chosen in (("right", right), ("wrong", ~right))
                }
                for name, values in signals.items()
            }
            for c in range(len(classifier.classes_))
        ],
    }


def _certified(classifier: SDMClassifier | SDMEnsemble, calibration: Calibration) -> dict[str, Any]:
    """Reliability of the calibration points, and whether the certificate admits them; nothing without one."""
    lanes = classifier.lane_rule_
    if lanes.certificate is None or lanes.reliability is None or not lanes.certificate.found:
        return {}
    sample = SignalSample(
        labels=calibration.labels.cpu().numpy(),
        logits=calibration.logits.cpu().numpy(),
        similarity=calibration.similarity.cpu().numpy(),
        distance_quantile=calibration.distance_quantile.cpu().numpy(),
        familiarity=calibration.familiarities(lanes.measure is not None),
    )
    scored = sample.scored(lanes.reliability, lanes.familiarity)
    admitted = lanes.certificate.admits(scored.predictions, scored.score, scored.eligible)
    return {"score": scored.score.tolist(), "certified": admitted.astype(int).tolist()}


def _edges(name: str, values: Array) -> Array:
    """The edges of the bins of a signal (24 + 1,); shares are in [0, 1]."""
    if name in ("distance_quantile", "confidence", "score"):
        return np.linspace(0, 1, _N_BINS + 1)
    if name == "similarity":
        most = max(float(values.max(initial=0)), 1.0)
        edges: Array = np.exp2(np.linspace(0, math.log2(1 + most), _N_BINS + 1)) - 1
        edges[-1] = most  # which rounding may miss
        return edges
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    return np.linspace(low, high if high > low else low + 1, _N_BINS + 1)


def _region(region: HighReliabilityRegion) -> dict[str, Any]:
    return {
        "alpha": region.alpha,
        "found": region.found,
        "min_rescaled_similarity": _finite(region.min_rescaled_similarity),
        "thresholds": [_finite(threshold) for threshold in region.thresholds.tolist()],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
