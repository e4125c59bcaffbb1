"""What a model is, in plain values and in a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.estimators import SDMClassifier, SDMEnsemble


def summary(classifier: SDMClassifier | SDMEnsemble, path: Path) -> dict[str, Any]:
    """What a model is, in plain values."""
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
        "regions": [
            {
                "alpha": region.alpha,
                "found": region.found,
                "min_rescaled_similarity": region.min_rescaled_similarity if region.found else None,
                "class_counts": [int(count) for count in region.class_counts],
                "admitted_share": _admitted_share(classifier, region),
                "explanation": region.explain(classifier.classes_.tolist()),
            }
            for region in calibration.regions
        ],
    }


def region_lines(result: dict[str, Any]) -> list[str]:
    """A line on each region of a summary."""
    return [
        f"alpha = {region['alpha']:g}: "
        + (
            f"the region admits {region['admitted_share']:.1%} of the calibration set (q' at least "
            f"{region['min_rescaled_similarity']:.4g})."
            if region["found"]
            else f"no region; everything is rejected. {region['explanation']}"
        )
        for region in result["regions"]
    ]


def _admitted_share(classifier: SDMClassifier | SDMEnsemble, region: Any) -> float:
    """The share of the calibration set of the first model that a region of it admits."""
    calibration = classifier.models_[0].calibration
    admitted = region.admits(calibration.rescaled_similarity, calibration.predictions, calibration.confidence)
    return float(np.mean(admitted.cpu().numpy()))
