"""One fitted model as tensors, tables and settings, and back: the contents of a model directory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from torchsdm.core import ClassEcdfs, Encoded, HighReliabilityRegion, IdentityAdaptor, restore_adaptor
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError
from torchsdm.labels import LabelCodes
from torchsdm.matching import SupportSet
from torchsdm.model.calibration import Calibration, EncodedPoints
from torchsdm.model.directory import (
    CONFIG_NAME,
    ExampleRow,
    StoredModel,
    mapped_tensors,
    number_or_none,
)
from torchsdm.model.examples import Examples
from torchsdm.model.model import CALIBRATION, CERTIFICATION, SUPPORT, Certification, SDMModel
from torchsdm.settings import check_fields
from torchsdm.validation import check_alpha, check_finite, check_positive, check_same_length, check_shape

_SIGNALS = ("similarity", "nearest_distance", "rescaled_similarity")  # of the calibration points
_PENDING = "next-calibration"  # files of calibration points that the next calibration will use
ABOUT_CERTIFICATION = ("n_given_back", "fingerprint", "n_corrected", "u", "n_left_out")  #: fields kept as facts


def take_apart(
    model: SDMModel,
    codes: LabelCodes,
    prefix: str,
    tensors: dict[str, dict[str, Tensor]],
    tables: dict[str, Iterator[ExampleRow]],
) -> dict[str, Any]:
    """Put the tensors and tables of a model under names that begin with the prefix; returns its settings."""
    adaptor, support, certification = model.adaptor, model.support, model.certification
    facts = ("labels", "predictions", "centre", "squared_norms")
    tensors[f"{prefix}adaptor"] = dict(adaptor.state_dict())
    tensors[f"{prefix}support"] = {name: getattr(support, name) for name in facts}
    tensors[f"{prefix}support-exemplars"] = {"exemplars": support.exemplars}
    tables[f"{prefix}support-examples"] = _rows(model.examples, codes.decode(support.labels))
    sets = {CALIBRATION: model.calibration.known, CERTIFICATION: certification, _PENDING: model.next_calibration}
    for name, held in sets.items():
        if held is None:
            continue
        points = held.points
        tensors[f"{prefix}{name}"] = {
            "logits": points.logits,
            **({"is_background": points.is_background} if bool(points.is_background.any()) else {}),
            "labels": held.labels,
            **({} if held.places is None else {"places": held.places}),
        }
        tensors[f"{prefix}{name}-exemplars"] = {"exemplars": points.exemplars}
        tables[f"{prefix}{name}-examples"] = _rows(held.examples, codes.decode(held.labels))
    tensors[f"{prefix}calibration"] |= {name: getattr(model.calibration, name) for name in _SIGNALS}
    about = {} if certification is None else {name: getattr(certification, name) for name in ABOUT_CERTIFICATION}
    return {
        "adaptor": "identity" if isinstance(adaptor, IdentityAdaptor) else "filters",
        "n_inputs": adaptor.n_inputs,
        "n_classes": adaptor.n_classes,
        "n_filters": adaptor.n_filters,
        "support_changed": model.outdated,  # as earlier formats call it
        "has_background": model.has_background,
        "min_class_count": model.calibration.min_class_count,
        "regions": [region_to_json(region) for region in model.calibration.regions],
        **({"certification": about} if about else {}),
    }


def put_together(
    stored: StoredModel, settings: dict[str, Any], codes: LabelCodes, block_size: int, device: str, prefix: str
) -> SDMModel:
    """The model again; its support stays memory-mapped on the CPU."""

    def tensors_of(name: str) -> dict[str, Tensor]:
        paths = [stored.files[f"{prefix}{name}"], stored.files[f"{prefix}{name}-exemplars"]]
        return {key: tensor.to(device) for path in paths for key, tensor in mapped_tensors(path).items()}

    try:
        sizes = (settings["n_inputs"], settings["n_classes"], settings["n_filters"])
        weights = mapped_tensors(stored.files[f"{prefix}adaptor"])
        adaptor = restore_adaptor(settings["adaptor"], *sizes, weights).to(device)
        support = SupportSet.restore(**tensors_of("support"), block_size=block_size)
        names = [name for name in (CALIBRATION, CERTIFICATION, _PENDING) if f"{prefix}{name}" in stored.files]
        tensors, sets, certification = {name: tensors_of(name) for name in names}, dict[str, EncodedPoints](), None
        for name, own in tensors.items():
            nowhere = torch.zeros(len(own["logits"]), dtype=torch.bool, device=device)
            points = Encoded(own["exemplars"], own["logits"], own.get("is_background", nowhere))
            examples = Examples.stored(stored.files[f"{prefix}{name}-examples"])
            sets[name] = EncodedPoints(points, own["labels"], examples, places=own.get("places"))
        calibration = _calibration(sets[CALIBRATION], tensors[CALIBRATION], settings)
        if CERTIFICATION in sets:
            about = {
                "n_corrected": 0,
                "u": 1.0,
                "n_left_out": 0,
                **settings["certification"],
            }  # earlier models lack some
            known = {name: about[name] for name in ABOUT_CERTIFICATION}
            certification = Certification(**vars(sets[CERTIFICATION]), **known)
        model = SDMModel(
            adaptor,
            support,
            Examples.stored(stored.files[f"{prefix}support-examples"]),
            calibration,
            codes.classes,
            settings["support_changed"],
            certification,
            settings.get("has_background", False),
            sets.get(_PENDING),
        )
        _check(model, support, sets, codes)
        return model
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        path = stored.directory / CONFIG_NAME
        raise ModelFileError(f"{path} and the files it names do not match: {error!r}.") from error


def _calibration(known: EncodedPoints, signals: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Calibration:
    """A calibration as it came out before; its eCDFs follow from its signals."""
    signals = {name: signals[name].to(known.labels.device) for name in _SIGNALS}
    distances, n_classes = signals["nearest_distance"], known.points.logits.shape[1]
    return Calibration(
        known,
        **signals,
        ecdfs=ClassEcdfs.fit(distances, signals["similarity"], known.labels, n_classes, warn=False),
        regions=tuple(_region_from_json(region) for region in facts["regions"]),
        min_class_count=facts["min_class_count"],
    )


def _check(model: SDMModel, support: SupportSet, sets: Mapping[str, EncodedPoints], codes: LabelCodes) -> None:
    """Require what a stranger's files may lack: shapes, types and values that fit each other."""
    n_classes, calibration = len(codes.classes), model.calibration
    flags = model.outdated, model.has_background
    if not all(isinstance(flag, bool) for flag in flags):
        raise InvalidTypeError(f"'support_changed' and 'has_background' must be true or false. Got {flags}.")
    _check_numbers("support", "labels", support.labels, torch.int64, n_classes + len(codes.outside))
    _check_numbers("support", "predictions", support.predictions, torch.int64, n_classes + 1)
    _check_numbers("support", "squared_norms", support.squared_norms)
    _check_numbers("support", "centre", support.centre)
    check_same_length(len(support.labels), model.examples, "examples", "support")
    exemplars = [(SUPPORT, part.points.points) for part in support.parts]
    for name, held in sets.items():
        n, points = len(held.labels), held.points
        check_same_length(n, points.exemplars, "exemplars", name)
        check_same_length(n, held.examples, "examples", name)
        check_shape(points.logits, (n, n_classes), "logits", name)
        check_shape(points.is_background, (n,), "is_background", name)
        _check_numbers(name, "logits", points.logits, torch.float32)
        n_labels = n_classes + (len(codes.outside) if name == CERTIFICATION else 0)  # a point may have none
        _check_numbers(name, "labels", held.labels, torch.int64, n_labels)
        if held.places is not None:
            check_shape(held.places, (n,), "places", name)
            _check_numbers(name, "places", held.places + 1, torch.int64, len(support.labels) + 1)
        exemplars.append((name, points.exemplars))
    for name, rows in exemplars:  # by shape and type alone: they may be large, and stay on disk
        check_shape(rows, (None, model.adaptor.n_filters), "exemplars", name)
        if rows.dtype != torch.float32:
            raise InvalidTypeError(f"'exemplars' of {name} must be float32. Got {rows.dtype}.")
    for name in _SIGNALS:
        check_shape(getattr(calibration, name), (len(calibration.labels),), name, CALIBRATION)
    _check_numbers(CALIBRATION, "similarity", calibration.similarity, torch.int64, 1 << 62)
    _check_numbers(CALIBRATION, "rescaled_similarity", calibration.rescaled_similarity)
    if bool((calibration.nearest_distance.double().isnan() | (calibration.nearest_distance < 0)).any()):
        raise InvalidInputError("'nearest_distance' of calibration must be distances.")
    check_positive(calibration.min_class_count, "min_class_count", CALIBRATION, integer=True, zero=True)
    if not calibration.regions:
        raise InvalidInputError("'regions' of calibration must have at least one. Got none.")
    for region in calibration.regions:
        check_fields(region, apart=("thresholds", "class_counts"))
        for counts in (region.thresholds, region.class_counts):
            check_shape(counts, (n_classes,), "thresholds and class_counts", "a region")
        for alpha in (region.alpha, *region.class_alphas):
            check_alpha(alpha, "a region")
        if len(region.class_alphas) not in (0, n_classes) or not all(0 <= c < n_classes for c in region.failed_classes):
            raise InvalidInputError(f"A region is of other classes than the {n_classes} of the model.")


def _check_numbers(
    where: str, name: str, tensor: Tensor, dtype: torch.dtype | None = None, below: int | None = None
) -> None:
    """Require finite numbers of a type and, of class numbers, in 0..below-1."""
    if tensor.dtype != dtype and (dtype is not None or not tensor.is_floating_point()):
        raise InvalidTypeError(f"'{name}' of {where} must be {dtype or 'numbers'}. Got {tensor.dtype}.")
    if below is not None and len(tensor) and not 0 <= int(tensor.min()) <= int(tensor.max()) < below:
        raise InvalidInputError(f"'{name}' of {where} must be in 0..{below - 1}. Got {int(tensor.max())}.")
    if below is None:
        check_finite(tensor, name, where)


def outcome_to_bytes(models: Sequence[SDMModel], learned: Mapping[str, Any]) -> bytes:
    """What calibrating models came to, and what else was learned with it, to be kept in a log of changes."""
    tensors = {
        f"{number}.{name}": getattr(model.calibration, name).contiguous()
        for number, model in enumerate(models)
        for name in _SIGNALS
    }
    regions = [[region_to_json(region) for region in model.calibration.regions] for model in models]
    counts = [model.calibration.min_class_count for model in models]
    facts = {"regions": regions, "min_class_counts": counts, "learned": dict(learned)}
    return save(tensors, {"facts": json.dumps(facts, allow_nan=False)})


def take_outcome(content: bytes, models: Sequence[SDMModel]) -> dict[str, Any]:
    """Calibrate models as it came out before; returns what else was learned with it."""
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(header["__metadata__"]["facts"])
        for number, model in enumerate(models):
            signals = {name: tensors[f"{number}.{name}"] for name in _SIGNALS}
            of_it = {"regions": facts["regions"][number], "min_class_count": facts["min_class_counts"][number]}
            model.calibrated(_calibration(model.calibration_points, signals, of_it))
        return facts["learned"]
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFileError(f"The log of changes has an outcome that does not fit the model: {error!r}.") from error


def _rows(examples: Examples, labels: list[Any]) -> Iterator[ExampleRow]:
    ids, texts = examples.all()
    return iter(zip(ids, labels, texts, strict=True))


def region_to_json(region: HighReliabilityRegion) -> dict[str, Any]:
    """Plain values for strict JSON: infinity is null."""
    return {
        "alpha": region.alpha,
        "min_rescaled_similarity": number_or_none(region.min_rescaled_similarity),
        "thresholds": [number_or_none(value) for value in region.thresholds.tolist()],
        "class_counts": region.class_counts.tolist(),
        "failed_classes": list(region.failed_classes),
        "largest_alpha": region.largest_alpha,
        "largest_alpha_counts": list(region.largest_alpha_counts),
        **({"class_alphas": list(region.class_alphas)} if region.class_alphas else {}),
    }


def _region_from_json(stored: dict[str, Any]) -> HighReliabilityRegion:
    numbers = stored["min_rescaled_similarity"], *stored["thresholds"]
    min_rescaled_similarity, *thresholds = (math.inf if value is None else float(value) for value in numbers)
    return HighReliabilityRegion(
        alpha=float(stored["alpha"]),
        min_rescaled_similarity=min_rescaled_similarity,
        thresholds=torch.tensor(thresholds, dtype=torch.float64),
        class_counts=torch.tensor(stored["class_counts"], dtype=torch.int64),
        failed_classes=tuple(stored["failed_classes"]),
        largest_alpha=stored["largest_alpha"],
        largest_alpha_counts=tuple(stored["largest_alpha_counts"]),
        class_alphas=tuple(stored.get("class_alphas", ())),  # where they differ; earlier models had one alpha
    )
