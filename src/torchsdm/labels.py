"""Labels of any type as class numbers and back, with room for labels outside the classes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import InvalidInputError
from torchsdm.validation import Array, is_storable_label


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


def count_classes(labels: Array, caller: str) -> tuple[Array, Array]:
    """Classes and numbers of labels; at least two classes with at least two examples each."""
    classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InvalidInputError(
            f"'y' of {caller} must have at least two classes. Got one class only: {classes.tolist()[0]!r}."
        )
    if counts.min() < 2:
        rare = classes.tolist()[int(counts.argmin())]
        raise InvalidInputError(
            f"'y' of {caller} must have at least two examples of each class. "
            f"Got {int(counts.min())} of class {rare!r}; add examples or leave the class out."
        )
    return classes, numbers


def by_class(values: Mapping[Any, Any], classes: Array, name: str, caller: str) -> tuple[Any, ...]:
    """A value for every class, in the order of the classes, from a mapping that names them all.

    A class may be named by its text, as a command line or a file has to.
    """
    labels = classes.tolist()
    given = {**{str(key): value for key, value in values.items()}, **values}
    known = {*labels, *map(str, labels)}
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        near = difflib.get_close_matches(str(unknown), [str(label) for label in labels], n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(repr(label) for label in labels[:10]) + (", ..." if len(labels) > 10 else "")
        raise InvalidInputError(
            f"'{name}' of {caller} must name classes: {listed}. Got {unknown!r}, which is not one.{meant}"
        )
    missing = [label for label in labels if label not in given and str(label) not in given]
    if missing:
        shown = ", ".join(repr(label) for label in missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise InvalidInputError(f"'{name}' of {caller} must name every class. Nothing was given for {shown}.")
    return tuple(given[label] if label in given else given[str(label)] for label in labels)
