"""The data of a fit: checked, and kept apart, so that who judges has not learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import Target, check_targets, linked, one_of_each
from torchsdm.data import LabelledStates, StatesOrigin
from torchsdm.errors import (
    CopiesWarning,
    DataWarning,
    InvalidInputError,
    InvalidTypeError,
    OverlapWarning,
    Remedy,
    warn_user,
)
from torchsdm.labels import BACKGROUND, NO_LABEL, LabelCodes, count_classes, warn_of_lookalikes
from torchsdm.matching import DEFAULT_BLOCK_SIZE, IndexedRows, check_ids, next_ids
from torchsdm.model import CALIBRATION, CERTIFICATION, Examples, Points, Set, same_points
from torchsdm.training import Part, TrainingData, fingerprint
from torchsdm.trust import keys_of
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_list,
    check_groups,
    check_hidden_states,
    check_label_array,
    check_same_length,
    is_storable_text,
)

if TYPE_CHECKING:
    from torchsdm.estimators._base import BaseSDMClassifier

_FEWEST_BACKGROUND = 2  # one to train on and one to judge by
_OTHER_SCALE = 3.0  # times as wide or narrow, or standard deviations away: more than other proportions of classes make
_FEW = 10  # points whose spread says little


@dataclass(frozen=True)
class FitData:
    """The checked input of a fit."""

    points: TrainingData
    n_rows: int
    """Of X; in ``points``, background examples that are trained on come after them, as a further class."""
    classes: Array
    alphas: tuple[Target, ...]
    examples: Examples
    calibration_examples: Examples
    """Those of the given calibration set, or the same as ``examples``."""
    fingerprint: str
    """Of the states and labels of X."""
    background_fingerprint: str
    """Of the background examples and of what they are for."""
    states_origin: StatesOrigin | None
    keys: Array
    """Of the rows of X (N, K), by which they are known again."""
    certification: Points | None = None
    """Labelled points that nothing but the certificate sees: given, or held out of X."""
    n_given_back: int = 0
    """Points that were drawn to be held out, but are needed to train."""
    background: Background | None = None


@dataclass(frozen=True)
class Background:
    """Examples of what belongs to no class."""

    states: Tensor
    labels: Tensor
    """C, the number after the classes, for each."""
    examples: Examples
    is_trained: bool
    """Whether the adaptor learns to tell them from the classes, or they are put into the support afterwards."""


def given_states(X: Any, y: Any, ids: Any, texts: Any, caller: str) -> LabelledStates:
    """What a caller was given as X, y, ids and texts; LabelledStates have their own of all these."""
    if not isinstance(X, LabelledStates):
        return LabelledStates(X, y, ids, texts)
    if not (y is None and ids is None and texts is None):
        raise InvalidInputError(f"{caller} takes no y, ids or texts with LabelledStates, which have their own.")
    return X


def given_part(part: Any, name: str, caller: str) -> LabelledStates:
    """A further set that a caller was given as LabelledStates or (X, y)."""
    if isinstance(part, LabelledStates):
        return part
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise InvalidTypeError(f"'{name}' of {caller} must be LabelledStates or (X, y). Got {type(part).__name__}.")
    return LabelledStates(*part)


def check_data(
    estimator: BaseSDMClassifier,
    X: ArrayLike | LabelledStates,
    y: ArrayLike | None,
    ids: Sequence[Any] | Array | None,
    texts: Sequence[str] | Array | None,
    calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None,
    certification: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
    background_states: LabelledStates | ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> FitData:
    """Check the parameters and the arguments of ``fit``."""
    caller = f"{type(estimator).__name__}.fit"
    estimator._check_parameters(caller)
    given = given_states(X, y, ids, texts, caller)
    states = check_hidden_states(estimator, given.hidden_states, caller, reset=True)
    labels = check_label_array(given.labels, caller, len(states))
    classes, class_numbers = count_classes(labels, f"'y' of {caller}")
    warn_of_lookalikes(labels, f"'y' of {caller}")
    alphas = check_targets(estimator.alpha, classes, caller)
    named = None if groups is None else check_groups(groups, len(states), caller)
    examples, codes = check_examples(given.ids, given.texts, len(states), caller), LabelCodes(classes)
    whole = states, examples
    sets: dict[str, Set] = {"training": whole}
    parts: dict[str, tuple[Tensor, Tensor, Examples]] = {}
    for name, part in ((CALIBRATION, calibration), (CERTIFICATION, certification)):
        if part is not None:
            parts[name] = own, _, own_examples = check_part(estimator, part, name, codes, given.origin, caller, sets)
            sets[name] = own, own_examples
    for name, (own, *_) in parts.items():
        warn_of_other_scale(own, *_mean_and_scale(states), f"'{name}' of {caller}")
    background = _check_background(estimator, background_states, classes, given.origin, caller, sets)
    print_of_x, print_of_background, n_rows = fingerprint(states, labels), "", len(states)
    numbers = torch.from_numpy(class_numbers.astype(np.int64))
    if background is not None:
        uses = np.full(len(background.states), int(background.is_trained), dtype=np.int64)
        print_of_background = fingerprint(background.states, uses)
        if background.is_trained:
            states = torch.cat([states, background.states.to(states.dtype)])
            numbers = torch.cat([numbers, background.labels])
            examples = examples.with_added(background.examples)
    keys = row_keys(whole[0], whole[1].all()[1], given.origin)
    together = _belonging_together(keys, named, class_numbers, f"'X' of {caller}")
    if together is not None:
        beyond = int(together.max()) + 1
        together = np.concatenate([together, np.arange(beyond, beyond + len(states) - n_rows)])
    calibrating, certifying = parts.get(CALIBRATION), parts.get(CERTIFICATION)
    return FitData(
        TrainingData(
            states,
            numbers,
            None if calibrating is None else Part.whole(*calibrating[:2]),
            groups=None if together is None else torch.from_numpy(together),
        ),
        n_rows,
        classes,
        alphas,
        examples,
        examples if calibrating is None else calibrating[2],
        print_of_x,
        print_of_background,
        given.origin,
        keys,
        None if certifying is None else to_certify(*certifying, given.origin),
        background=background,
    )


def check_part(
    estimator: BaseSDMClassifier,
    part: Any,
    name: str,
    codes: LabelCodes,
    origin: StatesOrigin | None,
    caller: str,
    sets: Mapping[str, Set],
    *,
    may_lack_labels: bool = False,
) -> tuple[Tensor, Tensor, Examples]:
    """States, class numbers and examples of the user's calibration or certification set, apart from other sets.

    Labels may be None only if they ``may_lack_labels``.
    """
    part = given_part(part, name, caller)
    estimator._check_alike(part, name, origin, caller)
    where = f"{caller} ({name})"
    states = check_hidden_states(estimator, part.hidden_states, where, reset=False)
    class_numbers = _check_labels(part.labels, codes, where, len(states), may_lack=may_lack_labels)
    taken = [one for _, known in sets.values() for one in known.ids()]
    ids = next_ids(taken, len(states)) if part.ids is None else part.ids
    examples = check_examples(ids, part.texts, len(states), caller)
    keep_apart((states, examples), sets, caller, to=name, by_text=origin is not None)
    return states, class_numbers, examples


def _check_labels(labels: Any, codes: LabelCodes, where: str, n: int, *, may_lack: bool) -> Tensor:
    """Class numbers of labels."""
    if may_lack and NO_LABEL in codes.outside:
        values = as_list(labels, "y", where)
        check_same_length(n, values, "y", where)
        return codes.encode_known(values, where)
    return codes.encode(check_label_array(labels, where, n), where)


def row_keys(states: Tensor, texts: Sequence[str | None], origin: StatesOrigin | None) -> Array:
    """Keys of points; texts count if the states were made from them, and from nothing else."""
    is_made_of_texts = origin is not None and "{answer}" not in origin.prompt.template
    return keys_of(states, texts if is_made_of_texts else None)


def _belonging_together(keys: Array, named: Array | None, labels: Array, what: str) -> Array | None:
    """The group of each row (N,): copies, and rows of a group that the user names; None if each row is alone."""
    copies = linked(list(keys.T))
    if copies is None:
        return None if named is None else linked([named])
    n, n_copies = len(copies), len(copies) - int(copies.max()) - 1
    n_labels = np.bincount(np.unique(np.stack([copies, labels]), axis=1)[0])
    n_contradicting = int((n_labels[copies] > 1).sum())
    if n_contradicting:
        said = f"{n_contradicting:,} of the {n:,} rows of {what} have copies with another label."
        warn_user(said, CopiesWarning, Remedy.AUDIT_LABELS)
    if n_copies > FEW * n:
        said = f"{n_copies:,} of the {n:,} rows of {what} are copies of others; of copies only one is certified with."
        warn_user(said, CopiesWarning, Remedy.DROP_REPEATED)
    if copies.max() == 0:
        return None  # one row over and over: there is nothing to keep apart
    return copies if named is None else linked([copies, named])


def to_certify(
    states: Tensor, labels: Tensor, examples: Examples, origin: StatesOrigin | None, groups: Array | None = None
) -> Points:
    """Points to certify with: of copies, and of the rows of a group, one, drawn at random; the others are left out."""
    keys = row_keys(states, examples.all()[1], origin)
    together = linked([*keys.T, *([] if groups is None else [groups])])
    if together is None:
        return Points(states.split(DEFAULT_BLOCK_SIZE), labels, examples, keys)
    rows = one_of_each(together, np.random.default_rng(0))
    kept = Part(states, labels[torch.from_numpy(rows)], torch.from_numpy(rows))
    n_left_out = len(labels) - len(rows)
    return Points(kept.blocks(), kept.labels, examples.take(rows.tolist()), keys[rows], n_left_out)


def _check_background(
    estimator: BaseSDMClassifier,
    given: Any,
    classes: Array,
    origin: StatesOrigin | None,
    caller: str,
    sets: Mapping[str, Set],
) -> Background | None:
    """The user's examples of what belongs to no class, apart from other sets; labels they may have are ignored."""
    if given is None:
        return None
    if isinstance(given, tuple):
        raise InvalidTypeError(f"'background' of {caller} takes hidden states alone. Got a tuple; pass X without y.")
    if BACKGROUND in classes.tolist():
        raise InvalidInputError(f"{BACKGROUND!r} is the label of background examples. Rename the class.")
    part = given if isinstance(given, LabelledStates) else LabelledStates(given, None)
    estimator._check_alike(part, "background", origin, caller)
    states = check_hidden_states(estimator, part.hidden_states, f"{caller} (background)", reset=False)
    if len(states) < _FEWEST_BACKGROUND:
        raise InvalidInputError(
            f"'background' of {caller} must have at least {_FEWEST_BACKGROUND} examples. Got {len(states)}."
        )
    shape = tuple(sets["training"][0].shape[1:])
    if tuple(states.shape[1:]) != shape:
        raise InvalidInputError(
            f"'background' of {caller} must have states of shape {shape}, like X. Got {tuple(states.shape[1:])}."
        )
    examples = check_examples(part.ids, part.texts, len(states), caller)
    ids, texts = examples.all()
    named = Examples.of([f"background:{name}" for name in ids], texts)
    keep_apart((states, named), sets, caller, to="background", by_text=origin is not None)
    labels = torch.full((len(states),), len(classes), dtype=torch.int64)
    return Background(states, labels, named, estimator.background_as == "class")


def check_examples(
    ids: Sequence[Any] | Array | None, texts: Sequence[str] | Array | None, n: int, caller: str
) -> Examples:
    """Ids and texts of n points; without ids the points are numbered."""
    names = check_ids(range(n) if ids is None else ids, n, caller)
    if texts is None:
        return Examples.of(names)
    lines = as_list(texts, "texts", caller)
    check_same_length(n, lines, "texts", caller)
    strange = next((text for text in lines if text is not None and not is_storable_text(text)), None)
    if strange is not None:
        raise InvalidTypeError(f"'texts' of {caller} must be strings or None. Got {strange!r}.")
    return Examples.of(names, lines)


def warn_of_other_scale(states: Tensor, mean: Tensor, scale: Tensor, what: str) -> None:
    """Warn of states that were not made like X, such as those that a pipeline did not transform.

    In units of the scale of X, its own spread is 1 and its mean is at 0.
    """
    if len(states) < _FEW:
        return
    entries = (states.to(mean.device).float() - mean) / scale
    centre = entries.reshape(-1, entries.shape[-1]).mean(dim=0)  # (D,)
    spread, offset = (float(one.square().mean().sqrt()) for one in (entries - centre, centre))
    if not 1 / _OTHER_SCALE < spread < _OTHER_SCALE or offset > _OTHER_SCALE:
        warn_user(
            f"{what} has states on another scale than the training data: {spread:.2g} times as wide, around a mean "
            f"that is {offset:.2g} standard deviations away.",
            DataWarning,
            Remedy.SAME_STATES,
        )


def _mean_and_scale(states: Tensor) -> tuple[Tensor, Tensor]:
    """Of each dimension (D,); a constant one has the scale 1."""
    scale, mean = torch.std_mean(states.reshape(-1, states.shape[-1]).float(), dim=0)
    return mean, torch.where(scale > 0, scale, 1.0)


FEW = 0.05  #: up to this share of the smaller set, points in common pass as natural duplicates, with a warning


def keep_apart(
    points: Set,
    sets: Mapping[str, Set],
    caller: str,
    *,
    to: str,
    by_text: bool,
    is_repeated_kept: bool = False,
    remedy: Remedy | None = None,
) -> None:
    """Refuse points for a set that are in one of the sets already.

    An id that is in use is always refused. So are points that are the same (``same_points``), but a few of those among
    many are natural duplicates: they pass with a warning. ``is_repeated_kept`` lets all of them pass, but no more than
    a few of the certification set: a certificate would test what was learned from it.
    """
    points, names = (IndexedRows.of(points[0]), points[1]), points[1].ids()
    for where, known in sets.items():
        clash = [name for name, place in zip(names, known[1].positions(names), strict=True) if place is not None]
        if clash:
            raise InvalidInputError(f"'ids' of {caller} must be new. Got {clash[0]!r}, which is in the {where} set.")
        is_kept = is_repeated_kept and where != CERTIFICATION
        same = {} if is_kept else same_points(points, known, by_text=by_text)
        if not same:
            continue
        n, row = len(points[0]), min(same)
        ((name, _),) = known[1].rows([same[row]])
        found = (
            f"Already in the {where} set: {len(same)} of the {n} points that {caller} got for the {to} set; row {row} "
            f"equals point {name!r}."
        )
        if len(same) > FEW * (len(known[0]) if is_repeated_kept else min(n, len(known[0]))):
            reason = "A point in two sets, or twice in one, vouches for itself: leave such points out."
            raise InvalidInputError(f"{found} {reason}", remedy=None if is_repeated_kept else remedy)
        warn_user(
            f"{found} If that is no natural duplicate, leave it out.",
            OverlapWarning if CERTIFICATION in (to, where) else DataWarning,
        )
