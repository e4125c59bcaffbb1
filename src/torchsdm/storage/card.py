"""The model card that goes with a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchsdm._version import __version__
from torchsdm.core import HighReliabilityRegion
from torchsdm.model import SDMModel
from torchsdm.states import StatesOrigin

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
| training data fingerprint (SHA-256) | `{fingerprint}` |

## High-reliability region

{regions}

A point is admitted if its rescaled similarity and its confidence reach the values above. alpha is a target for each
true class, on the calibration set. The region estimates where it is met; it guarantees no accuracy on new data or for
each prediction, and says nothing about data whose labels follow a different rule.

## Use

```python
{use}
decisions.to_pandas()[["predictions", "admitted", "confidence", "similarity"]]
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


def model_card(
    kind: str,
    models: Sequence[SDMModel],
    n_inputs: int,
    fingerprint: str,
    states_origin: StatesOrigin | None = None,
) -> str:
    """Describe fitted models (one, or the rounds of an ensemble) in Markdown."""
    names = [str(name) for name in models[0].classes.tolist()]
    regions = [
        (f"### Round {number}\n\n" if len(models) > 1 else "") + _describe_region(region, names)
        for number, model in enumerate(models)
        for region in model.calibration.regions
    ]
    return _TEMPLATE.format(
        tags="\n".join(f"- {tag}" for tag in TAGS),
        title=f"torchsdm {kind} for {len(names)} classes",
        version=__version__,
        paper=PAPER,
        classes=", ".join(names[:20]) + (", ..." if len(names) > 20 else ""),
        input=_describe_input(n_inputs, states_origin),
        n_support=", ".join(str(len(model.support)) for model in models),
        n_calibration=", ".join(str(len(model.calibration.labels)) for model in models),
        fingerprint=fingerprint,
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


def _describe_region(region: HighReliabilityRegion, names: Sequence[str]) -> str:
    warning = region.explain(names)
    if not region.found:
        return f"**alpha = {region.alpha:g}**: none. {warning}"
    rows = "\n".join(
        f"| {name} | {float(threshold):.4f} | {int(count)} |"
        for name, threshold, count in zip(names, region.thresholds, region.class_counts, strict=True)
    )
    table = f"| class | confidence at least | calibration points |\n|---|---|---|\n{rows}"
    return (
        f"**alpha = {region.alpha:g}**: rescaled similarity at least {region.min_rescaled_similarity:.4g}, and "
        f"confidence at least the threshold of the predicted class:\n\n{table}" + (f"\n\n{warning}" if warning else "")
    )
