"""Describe a model in plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.core import GroupAccuracy
from torchsdm.errors import Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble


def summary(classifier: SDMClassifier | SDMEnsemble, path: Path) -> dict[str, Any]:
    """Kind, classes, sizes, accuracy, seed, certificate, policy, regions and warnings of a model."""
    model = classifier.models_[0]
    calibration = model.calibration
    return {
        "model": str(path),
        "kind": type(classifier).__name__,
        "classes": classifier.classes_.tolist(),
        "n_support": len(model.support),
        "n_calibration": len(calibration.labels),
        "n_certification": 0 if model.certification is None else len(model.certification.labels),
        "calibration_accuracy": float((calibration.predictions == calibration.labels).double().mean()),
        "seed": classifier.random_state if isinstance(classifier.random_state, int) else classifier.random_seed_,
        "policy": classifier.policy,
        "certificate": _certificate(classifier),
        "regions": [_region(classifier, region) for region in calibration.regions],
        "warnings": [{"what": one.what, "remedy": _name(one.remedy)} for one in classifier.warnings()],
    }


def standing(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """What an update may change: how many points each set has, and which shares of them are admitted.

    ``region_share`` is that of the calibration set in the region of the first alpha, ``admitted_share`` that of the
    certification sample that is admitted; None without one.
    """
    model = classifier.models_[0]
    sizes = dict.fromkeys(("n_support", "n_calibration", "n_certification"), 0)
    sizes |= {f"n_{name}": len(exemplars) for name, (exemplars, _) in model.sets().items()}
    decided = classifier.certification_ if isinstance(classifier, SDMClassifier) else None
    return {
        **sizes,
        "region_share": _admitted_share(classifier, model.calibration.regions[0]),
        "admitted_share": None if decided is None else float(np.mean(decided.admitted)),
    }


def _certificate(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any] | None:
    certificate = classifier.certificate_
    if certificate is None:
        return None
    names = classifier.classes_.tolist()
    return {
        "identity": certificate.identity if certificate.found else None,
        "found": certificate.found,
        "holds_for": certificate.holds_for(names),
        "alpha": certificate.alpha,
        "delta": certificate.delta,
        "control": certificate.control,
        "n_certification": certificate.n_certification,
        "n_admitted": certificate.n_admitted,
        "looks": certificate.looks,
        "groups": [{**_group(group, names), "lower_bound": group.lower_bound} for group in certificate.groups],
    }


def _group(group: GroupAccuracy, names: list[Any]) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "label": None if group.class_number is None else names[group.class_number],
        "n_admitted": group.n_admitted,
        "n_errors": group.n_errors,
        "accuracy": group.accuracy,
        "interval": None if group.interval is None else list(group.interval),
    }


def _name(remedy: Remedy | None) -> str | None:
    return None if remedy is None else remedy.name


def _region(classifier: SDMClassifier | SDMEnsemble, region: Any) -> dict[str, Any]:
    names = classifier.classes_.tolist()
    warning = region.warning(names)
    return {
        "alpha": region.alpha,
        "found": region.found,
        "min_rescaled_similarity": region.min_rescaled_similarity if region.found else None,
        "class_counts": [int(count) for count in region.class_counts],
        "admitted_share": _admitted_share(classifier, region),
        "groups": [_group(group, names) for group in classifier.models_[0].calibration.groups(region)],
        "explanation": None if warning is None else warning.what,
        "remedy": None if warning is None else _name(warning.remedy),
    }


def _admitted_share(classifier: SDMClassifier | SDMEnsemble, region: Any) -> float:
    """The share of the first model's calibration set that one of its regions admits."""
    calibration = classifier.models_[0].calibration
    admitted = region.admits(calibration.rescaled_similarity, calibration.predictions, calibration.confidence)
    return float(np.mean(admitted.cpu().numpy()))
