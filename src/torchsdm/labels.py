"""Labels of any type as class numbers and back, with room for labels outside the classes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import DataWarning, InvalidInputError, InvalidTypeError, Remedy, warn_user
from torchsdm.validation import Array, check_choice, check_positive, is_storable_label
from torchsdm.wording import counted, is_one_edit_away, listed

_SHORTEST_WORD = 3  # of which one letter may be a slip; of a shorter one it is another word

BACKGROUND = "(background)"  #: the label of background examples, which belong to no class
NO_LABEL = "(no label)"  #: the label of certification points that nobody has labelled


@dataclass(frozen=True)
class LabelCodes:
    """Classes are numbered 0..C-1; labels outside the classes, which only the support may have, come after."""

    classes: Array
    outside: tuple[Any, ...] = ()

    def encode(self, labels: Iterable[Any], caller: str, *, with_outside: bool = False) -> Tensor:
        """Numbers of labels that must be classes or, ``with_outside``, known labels outside them (``extended``)."""
        values = [*self.classes.tolist(), *(self.outside if with_outside else ())]
        number = {value: position for position, value in enumerate(values)}
        labels = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
        unseen = {repr(label): label for label in labels if label not in number}
        if unseen:
            first = listed([unseen[shown] for shown in sorted(unseen)])
            raise InvalidInputError(
                f"'y' of {caller} must contain only labels seen in fit ({listed(values, 10)}). Got {first}."
            )
        return torch.tensor([number[label] for label in labels], dtype=torch.int64)

    def encode_known(self, labels: Sequence[Any], caller: str) -> Tensor:
        """Numbers of labels that must be classes, or None, as which the codes must know ``NO_LABEL``."""
        known = self.encode([label for label in labels if label is not None], caller)
        numbers = torch.full((len(labels),), len(self.classes) + self.outside.index(NO_LABEL))
        numbers[[row for row, label in enumerate(labels) if label is not None]] = known
        return numbers

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


def as_label_array(labels: Sequence[Any]) -> Array:
    """Labels as an array that keeps the type of each; numpy turns 1 beside 'a' into '1'."""
    is_mixed = len({isinstance(label, str) for label in labels}) > 1
    return np.array(labels, dtype=object if is_mixed else None)


def label_array(labels: Sequence[Any], caller: str) -> Array:
    """The same for labels that are all given, and that need not be classes."""
    for row, label in enumerate(labels):
        if not is_storable_label(label):
            raise InvalidInputError(
                f"{caller}, row {row + 1}: a label must be a string, a finite number or a boolean. Got {label!r}; put "
                "rows without labels in a data set of their own."
            )
    return as_label_array(labels)


def check_pools(pools: Mapping[str, Sequence[Any]], classes: Array, caller: str) -> Array:
    """The number of the pool of each class (C,), from lists of classes by the name of a pool."""
    number: dict[Any, int] = {}
    for position, (pool, names) in enumerate(pools.items()):
        if isinstance(names, str):
            raise InvalidInputError(f"'pools' of {caller} must be lists of classes. Got {names!r} for {pool!r}.")
        for name in names:
            if name in number:
                raise InvalidInputError(f"'pools' of {caller} must have a class in one pool. Got {name!r} in two.")
            number[name] = position
    return np.array(by_class(number, classes, "pools", caller))


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
    split = "; ".join(" and ".join(names) for names in alike.values() if len(names) > 1)
    if split:
        warn_user(
            f"{what} has classes whose names differ only in case or white space: {split}. If they are one class, give "
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


def check_known_labels(
    labels: Sequence[Any], classes: Array, where: str, *, to: str = "support", allow_new: bool = False
) -> None:
    """Refuse labels outside the classes. Only the support may have them, and only if that is asked for."""
    known = set(classes.tolist())
    strange = [label for label in labels if not is_storable_label(label) or label not in known]
    if not strange or (allow_new and to == "support"):
        return
    alike = near_miss(strange[0], classes.tolist())
    raise InvalidInputError(
        f"{where}: {strange[0]!r} ({counted(strange.count(strange[0]), 'example')}) is not a class of the model"
        + ("." if alike is None else f"; {alike!r} is."),
        remedy=Remedy.ALLOW_NEW_LABELS if to == "support" else None,
    )


def near_miss(label: Any, classes: Iterable[Any]) -> Any | None:
    """The class that a label looks like: probably a slip.

    They differ in type, case or white space alone, or are one edit away, digits apart: 'topic-2' is not a misspelt
    'topic-1'.
    """
    label = _plain(label)
    for one in classes:
        name = _plain(one)
        is_long = min(len(label), len(name)) >= _SHORTEST_WORD
        if label == name or (is_long and _digits(label) == _digits(name) and is_one_edit_away(label, name)):
            return one
    return None


def _plain(label: Any) -> str:
    return " ".join(str(label).casefold().split())


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def class_weights(
    given: str | Mapping[Any, float] | None, class_numbers: Array, classes: Array, caller: str
) -> tuple[float, ...] | None:
    """What a point of each class counts, as scikit-learn's ``class_weight`` says; None: the same.

    'balanced' is n / (C n_c), so that every class counts as much as any other. Classes that a mapping does not name
    count 1, and so does what is numbered after the classes.
    """
    if given is None:
        return None
    if isinstance(given, str):
        check_choice(given, ("balanced",), "class_weight", caller)
        counts = np.maximum(np.bincount(class_numbers, minlength=len(classes)), 1)
        return tuple((len(class_numbers) / (len(counts) * counts)).tolist())
    if not isinstance(given, Mapping):
        raise InvalidTypeError(
            f"'class_weight' of {caller} must be None, 'balanced' or a mapping of class to weight. Got {given!r}."
        )
    for weight in given.values():
        check_positive(weight, "class_weight", caller)
    named = {str(key) for key in given}
    others = {label: 1.0 for label in classes.tolist() if str(label) not in named}
    n_outside = max(0, int(class_numbers.max()) + 1 - len(classes))
    return (*map(float, by_class({**given, **others}, classes, "class_weight", caller)), *[1.0] * n_outside)


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
        raise InvalidInputError(
            f"'{name}' of {caller} must name classes: {listed(labels, 10)}. Got {unknown!r}, which is not one.{meant}"
        )
    missing = [label for label in labels if label not in given and str(label) not in given]
    if missing:
        raise InvalidInputError(f"'{name}' of {caller} must name every class. Nothing was given for {listed(missing)}.")
    return tuple(given[label] if label in given else given[str(label)] for label in labels)
