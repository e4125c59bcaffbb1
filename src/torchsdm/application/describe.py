"""Describe in plain values what is installed, a model, and what the page draws of it."""

from __future__ import annotations

import math
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchsdm import __version__
from torchsdm.application.saved_model import SavedModel
from torchsdm.arithmetic import compile_loops, loops_in_use
from torchsdm.core import GroupAccuracy, HighReliabilityRegion
from torchsdm.errors import CopiesWarning, DataWarning, SDMWarning, TorchSDMError, installed_version
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.hidden_states import cache_directory, find_model
from torchsdm.model import Calibration, SDMModel, number_or_none
from torchsdm.validation import Array

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)[^;]*;.*extra == ['\"](?P<extra>\w+)['\"]")
_FOR_USERS = ("hf", "baselines", "report", "serve", "ray")  # extras; the others are for developers


def describe_installation() -> dict[str, Any]:
    """Versions, devices, compiled loops, extras and the cache."""
    cache = cache_directory()
    return {
        "torchsdm": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: installed_version(name) for name in ("torch", "numpy", "scikit-learn", "safetensors")},
        "compiled_loops": loops_in_use(),
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "extras": {name: extra(name) for name in _FOR_USERS},
        "cache": {
            "directory": str(cache),
            "bytes": sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()),
        },
    }


def describe_model(path: str) -> dict[str, Any]:
    """A model directory, with every file checked, and whether its language model is unchanged."""
    saved = SavedModel.load(path, verify=True)
    origin = saved.classifier.states_origin_
    parameters = {name: value for name, value in saved.classifier.get_params().items() if name != "checkpoint"}
    facts = {**summary(saved.classifier, Path(path)), "settings": parameters}
    if origin is None:
        return {**facts, "language_model": None}
    reference = origin.model.reference
    try:
        is_same = find_model(str(reference), origin.model.revision).fingerprint() == origin.model.fingerprint
        state = "unchanged" if is_same else "CHANGED: decisions on texts will be refused"
    except TorchSDMError as error:
        state = f"not found: {error}"
    return {**facts, "language_model": {"reference": reference, "state": state, "prompt": origin.prompt.template}}


def compile_here() -> None:
    """Compile the loops into the installed package."""
    try:
        libraries = compile_loops()
    except OSError as error:
        raise TorchSDMError(f"The loops could not be compiled: {error}.") from error
    if not libraries:
        raise TorchSDMError("No C compiler was found: install one, or name it in the environment variable CC.")


def devices() -> list[str]:
    """Torch devices available here, and whether the processor has instructions for bfloat16."""
    abilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
    has_bfloat16 = any(abilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    names = ["cpu (bfloat16)" if has_bfloat16 else "cpu"]
    names += [f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(torch.cuda.device_count())]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def extra(name: str) -> dict[str, Any]:
    """The packages of an extra with their versions; None if missing."""
    found = (_REQUIREMENT.match(one) for one in requires("torchsdm") or [])
    packages = {match["name"]: installed_version(match["name"]) for match in found if match and match["extra"] == name}
    is_complete = all(value is not None for value in packages.values())
    return {"packages": packages, "install": None if is_complete else f"pip install 'torchsdm[{name}]'"}


@contextmanager
def told_once(classifier: SDMClassifier | SDMEnsemble) -> Iterator[None]:
    """Hold back the warnings that the ``summary`` of a classifier has, and those about data that were given before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", DataWarning)
        warnings.simplefilter("always", CopiesWarning)  # said by the fit alone
        yield
    later = {(type(warning), warning.what) for warning in classifier.warnings()}
    for one in caught:
        if (one.category, getattr(one.message, "what", None)) not in later:
            warnings.showwarning(one.message, one.category, one.filename, one.lineno)


_OF_CERTIFICATE = (
    *("found", "alpha", "delta", "delta_spent", "control", "chances", "n_certification", "n_admitted", "looks"),
    *("largest_alpha", "n_needed", "n_left_out", "n_unlabelled"),
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
        "is_cross_fitted": model.calibration.known.places is not None,
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
    held = [] if model.certification is None else [model.certification.labels]
    apart = model.calibration.labels_apart
    labels = np.concatenate([one.cpu().numpy() for one in (model.support.labels, apart, *held)])
    return [int(n) for n in np.bincount(labels, minlength=len(model.classes))[: len(model.classes)]]


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
        "region_share": float(np.mean(model.calibration.admitted(model.calibration.regions[0]))),
        "admitted_share": None if decided is None else float(np.mean(decided.admitted)),
    }


def _certificate(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any] | None:
    certificate = classifier.certificate_
    if certificate is None:
        return None
    names, share = classifier.classes_.tolist(), classifier.certification_size
    promise = certificate.promise(names)
    return {
        **{name: getattr(certificate, name) for name in _OF_CERTIFICATE},
        "identity": certificate.identity if certificate.is_any else None,
        "holds": certificate.is_any and classifier.lane_rule_.certificate is not None,
        "holds_for": promise.sentence,
        "why_not": None if certificate.found else promise.why_not,
        "class_alphas": _by_name(certificate.class_alphas, names),
        "never_admitted": promise.never_admitted,
        "answered_wrongly": [{"label": name, "n": n, "n_wrong": k} for name, k, n in promise.answered_wrongly],
        "groups": [{**_group(group, names), "lower_bound": group.lower_bound} for group in certificate.groups],
        "windows": [
            {**_group(one, names), "lower_bound": one.lower_bound, "from": one.lower, "below": one.upper}
            for one in certificate.windows
        ],
        "weakest": None if certificate.weakest is None else _group(certificate.weakest, names),
        "fewest": None
        if promise.fewest is None
        else {"held_out": promise.fewest, "in_all": None if share is None else math.ceil(promise.fewest / share)},
    }


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
        "admitted_share": float(np.mean(calibration.admitted(region))),
        "groups": [_group(group, names) for group in calibration.groups(region)],
        "failed_classes": [names[c] for c in region.failed_classes],
        "largest_alpha": region.largest_alpha,
        "explanation": None if warning is None else warning.what,
        "remedy": None if warning is None else _warning(warning)["remedy"],
    }


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
        "region": _thresholds_of(region),
        "certificate": None
        if certificate is None or not certificate.found
        else {
            "alpha": certificate.alpha,
            "delta": certificate.delta,
            "thresholds": [number_or_none(threshold) for threshold in certificate.thresholds.tolist()],
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
    regions = [_thresholds_of(one) for one in calibration.with_regions(alphas, calibration.min_class_count).regions]
    if own.class_alphas:
        regions.append({**_thresholds_of(own), "class_alphas": list(own.class_alphas)})
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
    rows = classifier.models_[0].calibration.known.examples.rows(positions)
    return [{"id": name, "text": text if texts else None} for name, text in rows]


def signal_histograms(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """How the calibration points of each prediction are spread over each signal, the right and the wrong ones.

    Similarity is binned as log2(1 + q); ``edges`` are in the units of the signal. See also ``rule_of``.
    """
    calibration = classifier.models_[0].calibration
    sample = calibration.sample()
    predictions, right = sample.predictions, sample.predictions == sample.labels
    signals = {
        "similarity": sample.similarity,
        "distance_quantile": sample.distance_quantile,
        "magnitude": sample.logits.max(axis=1),
        "confidence": calibration.confidence.cpu().numpy(),
    }
    score = _certified(classifier, calibration).get("score")
    signals |= {} if score is None else {"score": np.array(score)}
    edges = {name: _edges(name, values) for name, values in signals.items()}

    return {
        **rule_of(classifier),
        "edges": {name: bins.tolist() for name, bins in edges.items()},
        "predictions": [
            {
                name: {
                    what: np.histogram(values[(predictions == c) & chosen], edges[name])[0].tolist()
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
    sample = calibration.sample(measured=lanes.measure is not None)
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


def _thresholds_of(region: HighReliabilityRegion) -> dict[str, Any]:
    return {
        "alpha": region.alpha,
        "found": region.found,
        "min_rescaled_similarity": number_or_none(region.min_rescaled_similarity),
        "thresholds": [number_or_none(threshold) for threshold in region.thresholds.tolist()],
    }
