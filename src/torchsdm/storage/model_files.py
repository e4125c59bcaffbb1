"""One fitted model as tensors, tables and settings, and back: the contents of a model directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsdm.core import ClassEcdfs, Encoded, HighReliabilityRegion, IdentityAdaptor, restore_adaptor
from torchsdm.errors import ModelFileError
from torchsdm.labels import LabelCodes
from torchsdm.matching import SupportSet
from torchsdm.model import Calibration, Certification, EncodedPoints, Examples, SDMModel
from torchsdm.storage.directory import CONFIG_NAME, ExampleRow, StoredModel, number_or_infinity, number_or_none
from torchsdm.storage.examples import StoredExamples

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
        f"{prefix}calibration": {
            **_encoded_to_tensors(calibration.points),
            "labels": calibration.labels,
            "similarity": calibration.similarity,
            "nearest_distance": calibration.nearest_distance,
            "rescaled_similarity": calibration.rescaled_similarity,
        },
        f"{prefix}calibration-exemplars": {"exemplars": calibration.points.exemplars},
    }
    certification = model.certification
    if certification is not None:
        tensors[f"{prefix}certification"] = {
            **_encoded_to_tensors(certification.points),
            "labels": certification.labels,
        }
        tensors[f"{prefix}certification-exemplars"] = {"exemplars": certification.points.exemplars}
        settings["certification"] = {
            "n_given_back": certification.n_given_back,
            "fingerprint": certification.fingerprint,
            "n_corrected": certification.n_corrected,
        }
    pending = model.next_calibration
    if pending is not None:
        tensors[f"{prefix}{_PENDING}"] = {**_encoded_to_tensors(pending.points), "labels": pending.labels}
        tensors[f"{prefix}{_PENDING}-exemplars"] = {"exemplars": pending.points.exemplars}
    tables = {
        f"{prefix}support-examples": _rows(model.examples, codes.decode(model.support.labels)),
        f"{prefix}calibration-examples": _rows(model.calibration_examples, codes.decode(calibration.labels)),
    }
    if certification is not None:
        rows = _rows(certification.examples, codes.decode(certification.labels))
        tables[f"{prefix}certification-examples"] = rows
    if pending is not None:
        tables[f"{prefix}{_PENDING}-examples"] = _rows(pending.examples, codes.decode(pending.labels))
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
        n_classes = len(codes.classes)
        calibration = Calibration(
            _encoded_from_tensors(points),
            **points,
            ecdfs=ClassEcdfs.fit(
                points["nearest_distance"], points["similarity"], points["labels"], n_classes, warn=False
            ),
            regions=tuple(_region_from_json(region) for region in settings["regions"]),
            min_class_count=settings["min_class_count"],
        )
        certification = None
        if f"{prefix}certification" in stored.config["files"]:
            names = StoredExamples(stored.path(f"{prefix}certification-examples"))
            about = settings["certification"]
            points = held("certification")
            certification = Certification(
                _encoded_from_tensors(points),
                **points,
                examples=names,
                n_given_back=about["n_given_back"],
                fingerprint=about["fingerprint"],
                n_corrected=about.get("n_corrected", 0),  # formats 1 and 2 lack it
            )
        pending = None
        if f"{prefix}{_PENDING}" in stored.config["files"]:
            names = StoredExamples(stored.path(f"{prefix}{_PENDING}-examples"))
            points = held(_PENDING)
            pending = EncodedPoints(_encoded_from_tensors(points), **points, examples=names)
        return SDMModel(
            adaptor,
            support,
            StoredExamples(stored.path(f"{prefix}support-examples")),
            calibration,
            StoredExamples(stored.path(f"{prefix}calibration-examples")),
            codes.classes,
            settings["support_changed"],
            certification,
            settings.get("has_background", False),
            pending,
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        path = stored.directory / CONFIG_NAME
        raise ModelFileError(f"{path} and the files it names do not match: {error!r}.") from error


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
