"""Strangers, inputs with a label outside the classes of the model, and inputs without any label.

The accuracy of the model on either is not known. Every stranger that is admitted is a mistake, whatever was predicted;
an input without a label may be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchsdm.data import LabelledStates
from torchsdm.labels import LabelCodes, label_array
from torchsdm.validation import Array, ArrayLike, as_list, check_same_length
from torchsdm.wording import is_one_edit_away

CLASSES, OUTSIDE, NONE = LABELS = ("classes", "outside", "none")  #: what the labels of a data set are
_SHOWN = 3  # labels in a sentence
_SHORTEST = 3  # characters of a label that can be misspelt: among shorter ones, all are alike


def strangers_of(name: str) -> str:
    """What the strangers among a data set are called."""
    return f"{name}, strangers"


def split_strangers(name: str, data: LabelledStates, classes: Array) -> dict[str, LabelledStates]:
    """A data set by name; rows whose label is not a class, if some are and some are not, become 'NAME, strangers'.

    Each part has labels that all are classes, or all are not; or no labels.
    """
    if data.labels is None:
        return {name: data}
    listed = as_list(data.labels, "labels", name)
    check_same_length(len(data), listed, "labels", name)
    data, is_class = replace(data, labels=label_array(listed, name)), _are_classes(listed, classes)
    if not is_class.any():
        return {name: data}
    known = data if is_class.all() else data.take(np.flatnonzero(is_class))
    numbers = LabelCodes(classes).encode(as_list(known.labels, "labels", name), name)
    parts = {name: replace(known, labels=classes[numbers.numpy()])}  # of the type of the classes
    return parts if is_class.all() else {**parts, strangers_of(name): data.take(np.flatnonzero(~is_class))}


def kind_of_labels(labels: ArrayLike | None, classes: Array) -> str:
    """'classes' if any label is one, 'outside' if there are only others, 'none' if there are no labels."""
    if labels is None:
        return NONE
    listed = as_list(labels, "labels", "kind_of_labels")
    return CLASSES if not listed or _are_classes(listed, classes).any() else OUTSIDE


def explain_labels(name: str, labels: ArrayLike | Sequence[Any] | None, classes: Array) -> str | None:
    """What is done with the strangers of a data set, and whether a label looks misspelt; None without strangers."""
    if labels is None:
        return (
            f"{name} has no labels: what is admitted is shown, not whether it is right. If the labels are in another "
            "column, name that column."
        )
    listed = as_list(labels, "labels", name)
    outside = Counter(label for label, one in zip(listed, _are_classes(listed, classes), strict=True) if not one)
    if not outside:
        return None
    common = [label for label, _ in outside.most_common(_SHOWN)]
    shown = ", ".join(map(repr, common)) + (", ..." if len(outside) > len(common) else "")
    slips = list(_slips(outside, classes.tolist()))
    asked = f" Look at the labels: {'; '.join(slips[:_SHOWN])}." if slips else ""
    return (
        f"{outside.total():,} of {len(listed):,} labels of {name} are not classes of the model ({shown}): these rows "
        f"are strangers, shown without accuracy; each one that is admitted is a mistake.{asked}"
    )


def _slips(outside: Counter[Any], classes: Sequence[Any]) -> Iterator[str]:
    """Labels that look like a class written in another way."""
    for label, count in outside.items():
        for known in classes:
            if str(label) == str(known):
                yield f"{label!r} is {_type(label)}, the class {known!r} {_type(known)}"
            elif isinstance(label, str) and isinstance(known, str) and _is_slip(label, known):
                yield f"{label!r} ({count:,}) may be a typo for {known!r}"


def _is_slip(label: str, known: str) -> bool:
    is_near = max(len(label), len(known)) >= _SHORTEST and is_one_edit_away(label, known)
    return is_near or label.strip().casefold() == known.strip().casefold()


def _type(label: Any) -> str:
    return "text" if isinstance(label, str) else "a number"


def _are_classes(labels: Sequence[Any], classes: Array) -> Array:
    known = set(classes.tolist())
    return np.array([label in known for label in labels], dtype=bool)
