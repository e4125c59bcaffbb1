"""One fitted model as tensors, tables and settings, and back: the contents of a model directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from torchsdm.core import Adaptor, ClassEcdfs, Encoded, HighReliabilityRegion, IdentityAdaptor, restore_adaptor
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError
from torchsdm.labels import LabelCodes
from torchsdm.matching import SupportSet
from torchsdm.model.calibration import Calibration
from torchsdm.model.directory import CONFIG_NAME, ExampleRow, StoredModel, number_or_infinity, number_or_none
from torchsdm.model.examples import Examples
from torchsdm.model.model import Certification, EncodedPoints, SDMModel
from torchsdm.settings import check_fields
from torchsdm.validation import check_alpha, check_finite, check_positive, check_same_length, check_shape

_SIGNALS = ("similarity", "nearest_distance", "rescaled_similarity")  # of the calibration points
_PENDING = "next-calibration"  # files of calibration points that the next calibration will use


@dataclass(frozen=True)
class ModelParts:
    """What a model is stored as."""

    settings: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    tables: dict[str, Iterator[ExampleRow]]


def model_parts(model: SDMModel, codes: LabelCodes, prefix: str = "") -> ModelParts:
    """Take a model apart; the names of its files begin with the prefix."""
    adaptor, calibration = model.adaptor, model.calibration
    settings: dict[str, Any] = {
        "adaptor": "identity" if isinstance(adaptor, IdentityAdaptor) else "filters",
        "n_inputs": adaptor.n_inputs,
        "n_classes": adaptor.n_classes,
        "n_filters": adaptor.n_filters,
        "support_changed": model.outdated,  # as earlier formats call it
        "has_background": model.has_background,
        "min_class_count": calibration.min_class_count,
        "regions": [region_to_json(region) for region in calibration.regions],
    }
    tensors = {
        f"{prefix}adaptor": dict(adaptor.state_dict()),
        f"{prefix}support": {
            "labels": model.support.labels,
            "predictions": model.support.predictions,
            "centre": model.support.centre,
            "squared_norms": model.support.squared_norms,
        },
        f"{prefix}support-exemplars": {"exemplars": model.support.exemplars},
    }
    tables = {f"{prefix}support-examples": _rows(model.examples, codes.decode(model.support.labels))}
    certification = model.certification
    for name, held, examples in (
        ("calibration", calibration, model.calibration_examples),
        ("certification", certification, None if certification is None else certification.examples),
        (_PENDING, model.next_calibration, None if model.next_calibration is None else model.next_calibration.examples),
    ):
        if held is None or examples is None:
            continue
        places = None if held is certification else held.places
        tensors[f"{prefix}{name}"] = {
            **_encoded_to_tensors(held.points),
            "labels": held.labels,
            **({} if places is None else {"places": places}),
        }
        tensors[f"{prefix}{name}-exemplars"] = {"exemplars": held.points.exemplars}
        tables[f"{prefix}{name}-examples"] = _rows(examples, codes.decode(held.labels))
    tensors[f"{prefix}calibration"] |= {name: getattr(calibration, name) for name in _SIGNALS}
    if certification is not None:
        facts = ("n_given_back", "fingerprint", "n_corrected", "u")
        settings["certification"] = {name: getattr(certification, name) for name in facts}
    return ModelParts(settings, tensors, tables)


def load_model_parts(
    stored: StoredModel,
    settings: dict[str, Any],
    codes: LabelCodes,
    block_size: int,
    device: str,
    prefix: str = "",
) -> SDMModel:
    """Put a model together; its support stays memory-mapped on the CPU."""
    try:
        adaptor = restore_adaptor(
            settings["adaptor"],
            settings["n_inputs"],
            settings["n_classes"],
            settings["n_filters"],
            stored.tensors(f"{prefix}adaptor"),
        ).to(device)

        def held(name: str) -> dict[str, Tensor]:
            values = {**stored.tensors(f"{prefix}{name}"), **stored.tensors(f"{prefix}{name}-exemplars")}
            return {key: tensor.to(device) for key, tensor in values.items()}

        support = SupportSet.restore(**held("support"), block_size=block_size)
        points = held("calibration")
        calibration = Calibration(
            _encoded_from_tensors(points),
            **points,
            ecdfs=_ecdfs(points, points["labels"], len(codes.classes)),
            regions=tuple(_region_from_json(region) for region in settings["regions"]),
            min_class_count=settings["min_class_count"],
        )
        certification = None
        if f"{prefix}certification" in stored.config["files"]:
            names = Examples.stored(stored.path(f"{prefix}certification-examples"))
            about = settings["certification"]
            points = held("certification")
            certification = Certification(
                _encoded_from_tensors(points),
                **points,
                examples=names,
                n_given_back=about["n_given_back"],
                fingerprint=about["fingerprint"],
                n_corrected=about.get("n_corrected", 0),  # formats 1 and 2 lack it
                u=about.get("u", 1.0),  # models that were saved before there was one lack it
            )
        pending = None
        if f"{prefix}{_PENDING}" in stored.config["files"]:
            names = Examples.stored(stored.path(f"{prefix}{_PENDING}-examples"))
            points = held(_PENDING)
            pending = EncodedPoints(_encoded_from_tensors(points), **points, examples=names)
        examples, calibration_examples = (
            Examples.stored(stored.path(f"{prefix}{name}-examples")) for name in ("support", "calibration")
        )
        flags = settings["support_changed"], settings.get("has_background", False)
        if not all(isinstance(flag, bool) for flag in flags):
            raise InvalidTypeError(f"'support_changed' and 'has_background' must be true or false. Got {flags}.")
        _check_numbers("support", {"labels": support.labels}, torch.int64, len(codes.classes) + len(codes.outside))
        _check_numbers("support", {"predictions": support.predictions}, torch.int64, len(codes.classes) + 1)
        _check_numbers("support", {"squared_norms": support.squared_norms, "centre": support.centre}, None)
        for part in support.parts:
            _check_exemplars("support", part.points.points, adaptor)
        for name, one, theirs in (
            ("calibration", calibration, calibration_examples),
            ("certification", certification, None if certification is None else certification.examples),
            (_PENDING, pending, None if pending is None else pending.examples),
        ):
            if one is not None and theirs is not None:
                _check_points(name, one.points, one.labels, adaptor, codes)
                _check_places(name, one.places, len(one.labels), len(support.labels))
                check_same_length(len(one.labels), theirs, "examples", name)
        _check_calibration(calibration, codes)
        check_same_length(len(support.labels), examples, "examples", "support")
        return SDMModel(
            adaptor,
            support,
            examples,
            calibration,
            calibration_examples,
            codes.classes,
            flags[0],
            certification,
            flags[1],
            pending,
        )
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        path = stored.directory / CONFIG_NAME
        raise ModelFileError(f"{path} and the files it names do not match: {error!r}.") from error


def _check_points(name: str, points: Encoded, labels: Tensor, adaptor: Adaptor, codes: LabelCodes) -> None:
    """Require exemplars (N, M), logits (N, C) and labels (N,) that fit each other and the model."""
    n, n_classes = len(labels), len(codes.classes)
    check_same_length(n, points.exemplars, "exemplars", name)
    check_shape(points.logits, (n, n_classes), "logits", name)
    check_shape(points.is_background, (n,), "is_background", name)
    _check_exemplars(name, points.exemplars, adaptor)
    _check_numbers(name, {"logits": points.logits}, torch.float32)
    _check_numbers(name, {"labels": labels}, torch.int64, n_classes)


def _check_places(name: str, places: Tensor | None, n: int, n_support: int) -> None:
    """Require places (N,) in the support, or -1."""
    if places is not None:
        check_shape(places, (n,), "places", name)
        _check_numbers(name, {"places": places + 1}, torch.int64, n_support + 1)


def _check_exemplars(name: str, exemplars: Tensor, adaptor: Adaptor) -> None:
    """By shape and type alone: they may be large, and stay on disk."""
    check_shape(exemplars, (None, adaptor.n_filters), "exemplars", name)
    if exemplars.dtype != torch.float32:
        raise InvalidTypeError(f"'exemplars' of {name} must be float32. Got {exemplars.dtype}.")


def _check_calibration(calibration: Calibration, codes: LabelCodes) -> None:
    """Require signals (N,) of the calibration points, and regions of the model's classes."""
    n, n_classes = len(calibration.labels), len(codes.classes)
    for name in _SIGNALS:
        check_shape(getattr(calibration, name), (n,), name, "calibration")
    _check_numbers("calibration", {"similarity": calibration.similarity}, torch.int64, 1 << 62)
    _check_numbers("calibration", {"rescaled_similarity": calibration.rescaled_similarity}, None)
    if bool((calibration.nearest_distance.double().isnan() | (calibration.nearest_distance < 0)).any()):
        raise InvalidInputError("'nearest_distance' of calibration must be distances.")
    check_positive(calibration.min_class_count, "min_class_count", "calibration", integer=True, zero=True)
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
    where: str, tensors: Mapping[str, Tensor], dtype: torch.dtype | None, below: int | None = None
) -> None:
    """Require finite numbers of a type and, of class numbers, in 0..below-1."""
    for name, tensor in tensors.items():
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
            known = model.calibration_points
            signals = {name: tensors[f"{number}.{name}"].to(known.labels.device) for name in _SIGNALS}
            model.calibrated(
                Calibration(
                    known.points,
                    known.labels,
                    **signals,
                    ecdfs=_ecdfs(signals, known.labels, len(model.classes)),
                    regions=tuple(_region_from_json(region) for region in facts["regions"][number]),
                    min_class_count=facts["min_class_counts"][number],
                    places=known.places,
                )
            )
        learned: dict[str, Any] = facts["learned"]
        return learned
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFileError(f"The log of changes has an outcome that does not fit the model: {error!r}.") from error


def _ecdfs(signals: Mapping[str, Tensor], labels: Tensor, n_classes: int) -> ClassEcdfs:
    return ClassEcdfs.fit(signals["nearest_distance"], signals["similarity"], labels, n_classes, warn=False)


def _encoded_to_tensors(points: Encoded) -> dict[str, Tensor]:
    """All but the exemplars, which have a file of their own."""
    tensors = {"logits": points.logits}
    return {**tensors, "is_background": points.is_background} if bool(points.is_background.any()) else tensors


def _encoded_from_tensors(tensors: dict[str, Tensor]) -> Encoded:
    """The same back, taken out of the tensors of a part."""
    logits = tensors.pop("logits")
    nowhere = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    return Encoded(tensors.pop("exemplars"), logits, tensors.pop("is_background", nowhere))


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
    return HighReliabilityRegion(
        alpha=float(stored["alpha"]),
        min_rescaled_similarity=number_or_infinity(stored["min_rescaled_similarity"]),
        thresholds=torch.tensor([number_or_infinity(value) for value in stored["thresholds"]], dtype=torch.float64),
        class_counts=torch.tensor(stored["class_counts"], dtype=torch.int64),
        failed_classes=tuple(stored["failed_classes"]),
        largest_alpha=stored["largest_alpha"],
        largest_alpha_counts=tuple(stored["largest_alpha_counts"]),
        class_alphas=tuple(stored.get("class_alphas", ())),  # where they differ; earlier models had one alpha
    )
