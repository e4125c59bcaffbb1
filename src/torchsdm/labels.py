"""Labels of any type as class numbers and back, with room for labels outside the classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import DataWarning, InvalidInputError, warn_user
from torchsdm.validation import Array, is_storable_label
from torchsdm.wording import counted


@dataclass(frozen=True)
class LabelCodes:
    """Classes are numbered 0..C-1; labels outside the classes, which only the support may have, come after."""

    classes: Array
    outside: tuple[Any, ...] = ()

    def encode(self, labels: Iterable[Any], caller: str) -> Tensor:
        """Class numbers of labels that must all be classes."""
        return self._numbers(labels, self.classes.tolist(), caller)

    def encode_with_outside(self, labels: Iterable[Any], caller: str) -> Tensor:
        """Numbers of labels that may be outside the classes but must be known (see ``extended``)."""
        return self._numbers(labels, [*self.classes.tolist(), *self.outside], caller)

    def extended(self, labels: Sequence[Any], caller: str) -> LabelCodes:
        """The same codes, with new numbers for labels that have none yet."""
        for label in labels:
            if not is_storable_label(label):
                raise InvalidInputError(
                    f"'y' of {caller} must be strings, finite numbers or booleans. Got {label!r}; "
                    "leave unlabelled points out, or give them a label outside the classes."
                )
        known = {*self.classes.tolist(), *self.outside}
        new = tuple(dict.fromkeys(label for label in labels if label not in known))
        return LabelCodes(self.classes, self.outside + new)

    def decode(self, numbers: Tensor) -> list[Any]:
        """Labels of class numbers, as plain Python values."""
        values = [*self.classes.tolist(), *self.outside]
        return [values[number] for number in numbers.tolist()]

    def _numbers(self, labels: Iterable[Any], values: list[Any], caller: str) -> Tensor:
        number = {value: position for position, value in enumerate(values)}
        labels = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
        unseen = sorted({repr(label) for label in labels if label not in number})
        if unseen:
            shown = ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else "")
            expected = ", ".join(repr(value) for value in values[:10]) + (", ..." if len(values) > 10 else "")
            raise InvalidInputError(f"'y' of {caller} must contain only labels seen in fit ({expected}). Got {shown}.")
        return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def count_classes(labels: Array, what: str) -> tuple[Array, Array]:
    """Classes and numbers of labels; at least two classes with at least two examples each.

    ``what`` names the labels in messages: "'y' of SDMClassifier.fit", or a file.
    """
    classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InvalidInputError(f"{what} must have at least two classes. Got one class only: {classes.tolist()[0]!r}.")
    if counts.min() < 2:
        rare = classes.tolist()[int(counts.argmin())]
        raise InvalidInputError(
            f"{what} must have at least two examples of each class. "
            f"Got {int(counts.min())} of class {rare!r}; add examples or leave the class out."
        )
    return classes, numbers


def warn_of_lookalikes(labels: Array, what: str) -> None:
    """Warn of classes whose names differ only in case or white space: probably one class, split by a typing error."""
    alike: dict[str, list[str]] = {}
    for name, count in zip(*(values.tolist() for values in np.unique(labels, return_counts=True)), strict=True):
        alike.setdefault("".join(str(name).split()).casefold(), []).append(f"{name!r} ({counted(count, 'example')})")
    listed = "; ".join(" and ".join(names) for names in alike.values() if len(names) > 1)
    if listed:
        warn_user(
            f"{what} has classes whose names differ only in case or white space: {listed}. If they are one class, give "
            "them one name.",
            DataWarning,
        )


def stripped_label(label: Any) -> Any:
    """A label as read from a file: a string without surrounding white space, so that 'World ' is 'World'."""
    return label.strip() if isinstance(label, str) else label


def stripped_labels(labels: Any) -> Any:
    """The same for a list or an array of labels; tensors have no strings."""
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "U":
        return np.char.strip(labels)
    return [stripped_label(label) for label in labels] if isinstance(labels, list) else labels
