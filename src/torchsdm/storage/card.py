"""The model card that goes with a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchsdm._version import __version__
from torchsdm.core import HighReliabilityRegion
from torchsdm.model import SDMModel
from torchsdm.states import StatesOrigin
from torchsdm.trust import Certificate

PAPER = "Similarity-Distance-Magnitude Activations"
TAGS = ("torchsdm", "selective-classification", "uncertainty-estimation", "text-classification")

_TEMPLATE = """---
library_name: torchsdm
tags:
{tags}
---

# {title}

A classifier over frozen hidden states that admits an answer or rejects it, with the training examples behind it. Made
with torchsdm {version}, after the paper *{paper}*.

| | |
|---|---|
| classes | {classes} |
| input | {input} |
| support (training) points | {n_support} |
| calibration points | {n_calibration} |
| certification points | {n_certification} |
| training data fingerprint (SHA-256) | `{fingerprint}` |

## What it promises

{promise}

`admitted` follows the policy `{policy}`: {admits}.

{warnings}

## The paper's region

{regions}

A point is in the region if its rescaled similarity and its confidence reach the values above. alpha is a target for
each true class, on the calibration set. The region estimates where it is met, on points that training has used to
choose its epoch; it guarantees no accuracy on new data or for each prediction, and says nothing about data whose labels
follow a different rule.

## Use

```python
{use}
decisions.to_pandas()[["predictions", "admitted", "lane", "reason"]]
```

## Before you rely on it

- The support contains exemplars, ids and, if given, texts of the training data. Share it as you would share that data.
- Loading executes no code: tensors are safetensors, metadata is SQLite, settings are JSON.
"""


_USE_STATES = """from torchsdm import {kind}

model = {kind}.from_pretrained("path/or/name")
decisions = model.decide(hidden_states)  # (N, {n_inputs}), from the same language model and prompt as in training"""

_USE_TEXTS = """from torchsdm import SDMTextClassifier

model = SDMTextClassifier.from_pretrained("path/or/name")  # refuses any language model but the one above
decisions = model.decide(["a text", "another"])"""


_ADMITS = {
    "certified": "what the certified rule admits; where nothing is certified, what the paper's region admits",
    "trusted": "what the paper's region admits, and the certified rule, if there is one, too",
}


def model_card(
    kind: str,
    models: Sequence[SDMModel],
    n_inputs: int,
    fingerprint: str,
    states_origin: StatesOrigin | None = None,
    *,
    certificate: Certificate | None = None,
    policy: str = "certified",
    warnings: Sequence[str] = (),
) -> str:
    """Describe fitted models (one, or the rounds of an ensemble) in Markdown."""
    names = [str(name) for name in models[0].classes.tolist()]
    regions = [
        (f"### Round {number}\n\n" if len(models) > 1 else "") + _describe_region(model, region, names)
        for number, model in enumerate(models)
        for region in model.calibration.regions
    ]
    certification = [model.certification for model in models if model.certification is not None]
    return _TEMPLATE.format(
        tags="\n".join(f"- {tag}" for tag in TAGS),
        title=f"torchsdm {kind} for {len(names)} classes",
        version=__version__,
        paper=PAPER,
        classes=", ".join(names[:20]) + (", ..." if len(names) > 20 else ""),
        input=_describe_input(n_inputs, states_origin),
        n_support=", ".join(str(len(model.support)) for model in models),
        n_calibration=", ".join(str(len(model.calibration.labels)) for model in models),
        n_certification=", ".join(str(len(one.labels)) for one in certification) or "none",
        fingerprint=fingerprint,
        promise=_describe_promise(certificate, names),
        policy=policy,
        admits=_ADMITS[policy],
        warnings="\n".join(f"- Warning: {warning}" for warning in warnings) or "There are no warnings.",
        regions="\n\n".join(regions),
        use=_USE_TEXTS if states_origin is not None else _USE_STATES.format(kind=kind, n_inputs=n_inputs),
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


def _describe_promise(certificate: Certificate | None, names: Sequence[str]) -> str:
    if certificate is None:
        return "Nothing: it was not certified."
    sentence = certificate.holds_for(names)
    if not certificate.found:
        return sentence
    rows = "\n".join(
        f"| {one.name(names)} | {one.n_admitted} | {one.n_errors} | {one.accuracy:.4f} | {one.lower_bound:.4f} |"
        for one in certificate.groups
    )
    thresholds = ", ".join(
        f"{name} {threshold:.4f}" if np.isfinite(threshold) else f"{name} never"
        for name, threshold in zip(names, certificate.thresholds, strict=True)
    )
    return (
        f"{sentence} Certificate `{certificate.identity}`.\n\n"
        "| group | admitted certification points | errors | accuracy | lower bound |\n|---|---|---|---|---|\n"
        f"{rows}\n\nReliability must reach, by prediction: {thresholds}."
    )


def _describe_region(model: SDMModel, region: HighReliabilityRegion, names: Sequence[str]) -> str:
    if not region.found:
        return f"**alpha = {region.alpha:g}**: none. {region.explain(names)}"
    rows = "\n".join(
        f"| {name} | {float(threshold):.4f} | {int(count)} |"
        for name, threshold, count in zip(names, region.thresholds, region.class_counts, strict=True)
    )
    table = f"| class | confidence at least | calibration points |\n|---|---|---|\n{rows}"
    groups = "\n".join(f"- {group.described(names)}" for group in model.calibration.groups(region))
    return (
        f"**alpha = {region.alpha:g}**: rescaled similarity at least {region.min_rescaled_similarity:.4g}, and "
        f"confidence at least the threshold of the predicted class:\n\n{table}\n\nOn the calibration set:\n\n{groups}"
    )
