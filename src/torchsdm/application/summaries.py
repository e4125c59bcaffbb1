"""Describe a model in plain values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.core import GroupAccuracy, HighReliabilityRegion
from torchsdm.errors import SDMWarning
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.model import Calibration, SDMModel

_OF_CERTIFICATE = (
    *("found", "alpha", "delta", "delta_spent", "control", "chances", "n_certification", "n_admitted", "looks"),
    *("largest_alpha", "n_needed"),
)


def summary(classifier: SDMClassifier | SDMEnsemble, path: Path) -> dict[str, Any]:
    """Kind, classes, sizes, accuracy, seed, certificate, policy, regions and warnings of a model.

    An ensemble has a region and a calibration accuracy per round; none of them is the ensemble's own.
    """
    model, models = classifier.models_[0], classifier.models_
    return {
        "model": str(path),
        "kind": type(classifier).__name__,
        "classes": classifier.classes_.tolist(),
        "class_counts": _class_counts(model),
        "n_rounds": len(models),
        "n_support": len(model.support),
        "n_background": int((model.support.labels == len(model.classes)).sum()) if model.has_background else 0,
        "n_calibration": len(model.calibration.labels),
        "is_cross_fitted": model.calibration.places is not None,
        "n_certification": 0 if model.certification is None else len(model.certification.labels),
        "calibration_accuracy": _accuracy(model) if len(models) == 1 else None,
        "calibration_accuracies": [_accuracy(one) for one in models],
        "seed": classifier.random_state if isinstance(classifier.random_state, int) else classifier.random_seed_,
        "policy": classifier.policy,
        "certificate": _certificate(classifier),
        "regions": [
            _region(classifier, number, region)
            for number, one in enumerate(models)
            for region in one.calibration.regions
        ],
        "warnings": [_warning(one) for one in classifier.warnings()],
    }


def _class_counts(model: SDMModel) -> list[int]:
    """Examples of each class in support, calibration and certification set together."""
    held = [] if model.certification is None else [model.certification.labels]
    apart = model.calibration.labels_apart
    labels = np.concatenate([one.cpu().numpy() for one in (model.support.labels, apart, *held)])
    counts: list[int] = np.bincount(labels, minlength=len(model.classes))[: len(model.classes)].tolist()
    return counts


def _accuracy(model: SDMModel) -> float:
    calibration = model.calibration
    return float((calibration.predictions == calibration.labels).double().mean())


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
        "region_share": _share_in(model.calibration.regions[0], model.calibration),
        "admitted_share": None if decided is None else float(np.mean(decided.admitted)),
    }


def _certificate(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any] | None:
    certificate = classifier.certificate_
    if certificate is None:
        return None
    names, promise = classifier.classes_.tolist(), certificate.promise(classifier.classes_.tolist())
    return {
        **{name: getattr(certificate, name) for name in _OF_CERTIFICATE},
        "identity": certificate.identity if certificate.found else None,
        "holds": certificate.found and classifier.lane_rule_.certificate is not None,
        "holds_for": promise.sentence,
        "why_not": None if certificate.found else promise.why_not,
        "class_alphas": _by_name(certificate.class_alphas, names),
        "never_admitted": promise.never_admitted,
        "groups": [{**_group(group, names), "lower_bound": group.lower_bound} for group in certificate.groups],
        "weakest": None if certificate.weakest is None else _group(certificate.weakest, names),
        "fewest": None if promise.fewest is None else _fewest(promise.fewest, classifier.certification_size),
    }


def _fewest(held_out: int, share: float | None) -> dict[str, Any]:
    """The fewest examples that any certificate takes: held out, and to have so many held out."""
    return {"held_out": held_out, "in_all": None if share is None else math.ceil(held_out / share)}


def _group(group: GroupAccuracy, names: list[Any]) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "name": group.name(names),
        "labels": [names[c] for c in group.classes] or None,
        "label": None if group.class_number is None else names[group.class_number],
        "n_admitted": group.n_admitted,
        "n_errors": group.n_errors,
        "accuracy": group.accuracy,
        "interval": None if group.interval is None else list(group.interval),
    }


def _by_name(alphas: tuple[float, ...], names: list[Any]) -> list[dict[str, Any]] | None:
    """The targets of the classes, where they differ."""
    return [{"label": name, "alpha": alpha} for name, alpha in zip(names, alphas, strict=True)] if alphas else None


def _warning(one: SDMWarning) -> dict[str, Any]:
    return {"kind": type(one).__name__, "what": one.what, "remedy": None if one.remedy is None else one.remedy.name}


def _region(classifier: SDMClassifier | SDMEnsemble, number: int, region: HighReliabilityRegion) -> dict[str, Any]:
    names, calibration = classifier.classes_.tolist(), classifier.models_[number].calibration
    certificate = classifier.lane_rule_.certificate
    warning = region.warning(names, certified=certificate is not None and certificate.found)
    return {
        "round": number + 1 if len(classifier.models_) > 1 else None,
        "alpha": region.alpha,
        "class_alphas": _by_name(region.class_alphas, names),
        "found": region.found,
        "min_rescaled_similarity": region.min_rescaled_similarity if region.found else None,
        "class_counts": [int(count) for count in region.class_counts],
        "admitted_share": _share_in(region, calibration),
        "groups": [_group(group, names) for group in calibration.groups(region)],
        "failed_classes": [names[c] for c in region.failed_classes],
        "largest_alpha": region.largest_alpha,
        "explanation": None if warning is None else warning.what,
        "remedy": None if warning is None else _warning(warning)["remedy"],
    }


def _share_in(region: HighReliabilityRegion, calibration: Calibration) -> float:
    """The share of the calibration set that a region admits."""
    admitted = region.admits(calibration.rescaled_similarity, calibration.predictions, calibration.confidence)
    return float(np.mean(admitted.cpu().numpy()))
