"""Describe a model in plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.estimators import SDMClassifier, SDMEnsemble


def summary(classifier: SDMClassifier | SDMEnsemble, path: Path) -> dict[str, Any]:
    """Kind, classes, sizes, accuracy, seed and regions of a model."""
    model = classifier.models_[0]
    calibration = model.calibration
    return {
        "model": str(path),
        "kind": type(classifier).__name__,
        "classes": classifier.classes_.tolist(),
        "n_support": len(model.support),
        "n_calibration": len(calibration.labels),
        "calibration_accuracy": float((calibration.predictions == calibration.labels).double().mean()),
        "seed": classifier.random_state if isinstance(classifier.random_state, int) else classifier.random_seed_,
        "regions": [_region(classifier, region) for region in calibration.regions],
    }


def _region(classifier: SDMClassifier | SDMEnsemble, region: Any) -> dict[str, Any]:
    warning = region.warning(classifier.classes_.tolist())
    return {
        "alpha": region.alpha,
        "found": region.found,
        "min_rescaled_similarity": region.min_rescaled_similarity if region.found else None,
        "class_counts": [int(count) for count in region.class_counts],
        "admitted_share": _admitted_share(classifier, region),
        "explanation": None if warning is None else warning.what,
        "remedy": None if warning is None or warning.remedy is None else warning.remedy.name,
    }


def _admitted_share(classifier: SDMClassifier | SDMEnsemble, region: Any) -> float:
    """The share of the first model's calibration set that one of its regions admits."""
    calibration = classifier.models_[0].calibration
    admitted = region.admits(calibration.rescaled_similarity, calibration.predictions, calibration.confidence)
    return float(np.mean(admitted.cpu().numpy()))
