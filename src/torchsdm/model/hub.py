"""Sharing models: huggingface_hub's mixin over our directory format, and a card for each model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from torchsdm import __version__
from torchsdm.core import HighReliabilityRegion
from torchsdm.data import StatesOrigin
from torchsdm.errors import ModelFileError
from torchsdm.model.model import SDMModel
from torchsdm.trust import Certificate
from torchsdm.wording import ADMITS, described, limits, promise_or_why

TAGS = ("torchsdm", "selective-classification", "uncertainty-estimation", "text-classification")

_USE_STATES = """from torchsdm import {kind}

model = {kind}.from_pretrained(".")
decisions = model.decide({example})  # give hidden states {shape} instead, made as in training"""

_USE_TEXTS = """from torchsdm import SDMTextClassifier

model = SDMTextClassifier.from_pretrained("."{moved})  # refuses any language model but the one above
decisions = model.decide({example})"""

_SHOWN_CLASSES = 50  # rows of the table of classes


def model_card(estimator: Any) -> str:
    """Describe a fitted ``SDMClassifier`` or ``SDMEnsemble`` in Markdown."""
    kind, models, n_inputs = type(estimator).__name__, estimator.models_, estimator.n_features_in_
    certificate, states_origin = estimator.certificate_, estimator.states_origin_
    names = [str(name) for name in models[0].classes.tolist()]
    regions = [
        (f"### Round {number}\n\n" if len(models) > 1 else "") + _describe_region(model, region, names)
        for number, model in enumerate(models)
        for region in model.calibration.regions
    ]
    certification = [model.certification for model in models if model.certification is not None]
    source, counts = _describe_data(models, names, estimator.data_source_)
    template = files("torchsdm.model").joinpath("model_card.md").read_text(encoding="utf-8")
    return template.format(
        tags="\n".join(f"- {tag}" for tag in TAGS),
        title=f"torchsdm {kind} for {len(names)} classes",
        version=__version__,
        classes=", ".join(names[:20]) + (", ..." if len(names) > 20 else ""),
        input=_describe_input(n_inputs, states_origin),
        n_support=", ".join(str(len(model.support)) for model in models),
        n_calibration=", ".join(str(len(model.calibration.labels)) for model in models),
        n_certification=", ".join(str(len(one.labels)) for one in certification) or "none",
        fingerprint=estimator.data_fingerprint_,
        source=source,
        counts=counts,
        promise=_describe_promise(certificate, names, is_current=not models[0].outdated, is_ensemble=len(models) > 1),
        limits="\n".join(f"- {limit}" for limit in limits(None if certificate is None else certificate.promise(names))),
        policy=estimator.policy,
        admits=ADMITS[estimator.policy],
        warnings="\n".join(f"- Warning: {warning}" for warning in estimator.warnings()) or "There are no warnings.",
        regions="\n\n".join(regions),
        use=_use(kind, n_inputs, estimator.input_ndim_, states_origin),
    )


def _describe_input(n_inputs: int, states_origin: StatesOrigin | None) -> str:
    if states_origin is None:
        return f"hidden states of width {n_inputs}"
    model, prompt = states_origin.model, states_origin.prompt
    # A file path is no use to a reader, and reveals something about the writer.
    name = "a local model" if Path(model.reference or "/").is_absolute() else f"`{model.reference}`"
    revision = f" at `{model.revision}`" if model.revision else ""
    template = prompt.template.replace("\n", " ").replace("|", "\\|")
    return f"texts, through {name}{revision} (fingerprint `{model.fingerprint[:16]}`) under the prompt `{template}`"


def _use(kind: str, n_inputs: int, input_ndim: int, states_origin: StatesOrigin | None) -> str:
    """Three lines that run: on an input of zeros, or on texts where the language model is still to be found."""
    if states_origin is not None:
        asks_for_answers = "{answer}" in states_origin.prompt.template
        return _USE_TEXTS.format(
            moved="" if states_origin.model.reference is not None else ', model="path of the language model"',
            example='["a question"], answers=["its answer"]' if asks_for_answers else '["a text", "another"]',
        )
    example, shape = f"[[0.0] * {n_inputs}]", f"(N, {n_inputs})"
    if input_ndim == 3:
        example, shape = f"[{example}]", f"(N, positions, {n_inputs})"
    return _USE_STATES.format(kind=kind, example=example, shape=shape)


def _describe_data(models: Sequence[SDMModel], names: Sequence[str], source: str | None) -> tuple[str, str]:
    """How many labelled examples there are and of what; and a table of them by class, in all and in each part."""
    calibration, certification, n_classes = models[0].calibration, models[0].certification, len(names)
    parts = {"training": models[0].support.labels}
    if len(calibration.labels_apart):
        parts["calibration"] = calibration.labels_apart
    if certification is not None:
        parts["certification"] = certification.labels
    numbers = [np.minimum(labels.cpu().numpy(), n_classes) for labels in parts.values()]
    counts = [np.bincount(own, minlength=n_classes + 1) for own in numbers]
    *table, no_class = np.stack([np.sum(counts, axis=0), *counts], axis=1).tolist()  # C rows of (parts + 1)
    rows = list(zip(names, table, strict=True))[:_SHOWN_CLASSES]
    if any(no_class):  # background, or what was added to the support
        rows.append(("no class", no_class))
    lines = [f"| class | examples | {' | '.join(parts)} |", f"|---|---|{'---|' * len(parts)}"]
    lines += [f"| {name} | {' | '.join(map(str, row))} |" for name, row in rows]
    if n_classes > _SHOWN_CLASSES:
        lines.append(f"\n... and {n_classes - _SHOWN_CLASSES} more classes.")
    if len(models) > 1:
        lines.append("\nThe parts are those of round 0; each round splits the same examples differently.")
    name = "" if source is None else f" of `{source}`".replace("|", "\\|")
    outside = f", and {no_class[0]:,} that belong to no class" if no_class[0] else ""
    return f"{sum(row[0] for row in table):,} labelled examples{name}{outside}", "\n".join(lines)


def _describe_promise(
    certificate: Certificate | None, names: Sequence[str], *, is_current: bool, is_ensemble: bool
) -> str:
    promise = None if certificate is None else certificate.promise(names)
    sentence = promise_or_why(promise, is_current=is_current, is_ensemble=is_ensemble)
    if certificate is None or not certificate.is_any or not is_current:
        return sentence
    rows = "\n".join(
        f"| {one.name(names)} | {one.n_admitted} | {one.n_errors} | {one.accuracy:.4f} | {one.lower_bound:.4f} |"
        for one in (*(certificate.groups if certificate.found else ()), *certificate.windows)
    )
    thresholds = "; to be trusted: ".join(
        ", ".join(
            f"{name} {threshold:.4f}" if np.isfinite(threshold) else f"{name} never"
            for name, threshold in zip(names, of, strict=True)
        )
        for of in (certificate.thresholds, *([certificate.window_thresholds] if certificate.windows else []))
    )
    return (
        f"{sentence} Certificate `{certificate.identity}`.\n\n"
        "| group | admitted certification points | errors | accuracy | lower bound |\n|---|---|---|---|---|\n"
        f"{rows}\n\nReliability must reach, by prediction: {thresholds}."
    )


def _describe_region(model: SDMModel, region: HighReliabilityRegion, names: Sequence[str]) -> str:
    asked = described(region.target, names)
    if not region.found:
        return f"**alpha = {asked}**: none. {region.explain(names)}"
    rows = "\n".join(
        f"| {name} | {float(threshold):.4f} | {int(count)} |"
        for name, threshold, count in zip(names, region.thresholds, region.class_counts, strict=True)
    )
    table = f"| class | confidence at least | calibration points |\n|---|---|---|\n{rows}"
    groups = "\n".join(f"- {group.described(names)}" for group in model.calibration.groups(region))
    return (
        f"**alpha = {asked}**: rescaled similarity at least {region.min_rescaled_similarity:.4g}, and "
        f"confidence at least the threshold of the predicted class:\n\n{table}\n\nOn the calibration set:\n\n{groups}"
    )


T = TypeVar("T", bound="HubModel")


class HubModel(ModelHubMixin, ABC, library_name="torchsdm", tags=list(TAGS)):
    """``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` for a class that has ``save`` and ``load``.

    The mixin's own ``save_pretrained`` removes ``config.json`` before writing, so a crash would leave half a model;
    ours writes through ``save``, which replaces it atomically.
    """

    _hub_mixin_config: Any = {}  # noqa: RUF012  (set so that the mixin records no constructor arguments)

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the model to a directory."""

    @classmethod
    @abstractmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Read a model from a directory."""

    @abstractmethod
    def model_card(self) -> str:
        """Describe the model in Markdown."""

    def save_pretrained(
        self, save_directory: str | Path, *, push_to_hub: bool = False, repo_id: str | None = None, **kwargs: Any
    ) -> str | None:
        """Write the model to a directory and, if asked, push it to a hub repository (by default named like it)."""
        self.save(save_directory)
        if not push_to_hub:
            return None
        kwargs.pop("config", None), kwargs.pop("model_card_kwargs", None)
        return str(self.push_to_hub(repo_id or Path(save_directory).name, **kwargs))

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Upload the model as one commit; files of an older version are removed with it."""
        kwargs.setdefault("delete_patterns", ["*.safetensors", "*.sqlite"])
        return str(super().push_to_hub(repo_id, **kwargs))

    @classmethod
    def from_pretrained(
        cls: type[T],
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        **model_kwargs: Any,
    ) -> T:
        """Load a model from a directory, or from a hub repository by its name."""
        path = Path(pretrained_model_name_or_path)
        if not path.is_dir():
            try:
                path = Path(
                    snapshot_download(
                        str(pretrained_model_name_or_path),
                        revision=revision,
                        cache_dir=cache_dir,
                        force_download=force_download,
                        token=token,
                        local_files_only=local_files_only,
                    )
                )
            except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
                raise ModelFileError(
                    f"{pretrained_model_name_or_path} is not a directory and cannot be loaded from the hub: {error}"
                ) from error
        return cls.load(path, **model_kwargs)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model card as a huggingface_hub object."""
        return ModelCard(self.model_card())
