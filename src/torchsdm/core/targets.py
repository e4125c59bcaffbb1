"""Target accuracies: one alpha for every class, or one for each.

A target is a float, or a tuple with a number for every class. Where a single number must stand for the tuple it is the
smallest, which all classes are held to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from torchsdm.errors import InvalidInputError
from torchsdm.labels import by_class
from torchsdm.validation import Array, check_alpha, check_alphas

Target: TypeAlias = "float | tuple[float, ...]"


def check_target(alpha: Any, n_classes: int, caller: str) -> Target:
    """One alpha, or a sequence with one for each class; equal ones are one."""
    if np.ndim(alpha) == 0:
        return check_alpha(alpha, caller)
    values = tuple(check_alpha(one, caller) for one in alpha)
    if len(values) != n_classes:
        raise InvalidInputError(
            f"'alpha' of {caller} must be one number or one per class, {n_classes}. Got {len(values)}."
        )
    return values if len(set(values)) > 1 else values[0]


def check_targets(alpha: Any, classes: Array, caller: str) -> tuple[Target, ...]:
    """The targets that an estimator's ``alpha`` stands for: one alpha, several, or a mapping of classes to alphas.

    Examples
    --------
    >>> check_targets({"spam": 0.99, "ham": 0.9}, np.array(["ham", "spam"]), "fit")
    ((0.9, 0.99),)
    >>> check_targets([0.9, 0.95], np.array(["ham", "spam"]), "fit")
    (0.9, 0.95)
    """
    if not isinstance(alpha, Mapping):
        return check_alphas(alpha, caller)
    return (check_target(by_class(alpha, classes, "alpha", caller), len(classes), caller),)


def check_alpha_setting(alpha: Any, caller: str) -> None:
    """What can be checked of an estimator's ``alpha`` before its classes are known."""
    if isinstance(alpha, Mapping):
        for value in alpha.values():
            if np.ndim(value):
                raise InvalidInputError(
                    f"'alpha' of {caller} must be several numbers or one for each class, not both. Got {value!r} for "
                    "a class."
                )
        check_alphas(list(alpha.values()), caller)
        return
    check_alphas(alpha, caller)


def check_control(target: Target, control: str, caller: str) -> None:
    """Refuse a target for each class where classes are taken together."""
    if isinstance(target, tuple) and control in ("pooled", "all"):
        together = "all answers" if control == "all" else "classes with few points"
        raise InvalidInputError(
            f"'alpha' of {caller} must be one number with control {control!r}, which takes {together} together. Got "
            "one for each class; ask for control 'groups' or 'predictions', or for one alpha."
        )


def by_number(target: Target, n_classes: int) -> Array:
    """The target of each class (C,)."""
    return np.broadcast_to(np.asarray(target, dtype=np.float64), (n_classes,))


def target_of(target: Target, class_number: int | None) -> float:
    """The target of one class; None stands for all of them together."""
    return target[class_number] if isinstance(target, tuple) and class_number is not None else smallest(target)


def smallest(target: Target) -> float:
    """The number that stands for a target."""
    return min(target) if isinstance(target, tuple) else target


def largest(target: Target) -> float:
    """The most that is asked of any class."""
    return max(target) if isinstance(target, tuple) else target


def capped(target: Target, cap: float) -> Target:
    """The same with no class above a cap.

    Examples
    --------
    >>> capped((0.9, 0.99), 0.95), capped(0.99, 0.95)
    ((0.9, 0.95), 0.95)
    """
    return tuple(min(one, cap) for one in target) if isinstance(target, tuple) else min(target, cap)
