"""The input of a round: settings, rows of hidden states, and the split of each round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import TrainingError
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.validation import Array


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; the defaults are the paper's."""

    n_classes: int
    n_filters: int = 1000
    max_epochs: int = 200
    batch_size: int = 50
    learning_rate: float = 1e-5
    patience: int | None = None
    """Epochs without a better calibration loss after which a round ends; None runs all epochs."""
    adaptor: str = "filters"
    standardization: str = "scalar"
    calibration_size: float = 0.5
    block_size: int = DEFAULT_BLOCK_SIZE
    device: str = "cpu"
    class_weights: tuple[float, ...] | None = None
    """What a point of each class counts in the loss (C,); None: the same."""

    @property
    def device_type(self) -> str:
        """The kind of device, without its number."""
        return torch.device(self.device).type

    def divergence(self, what: str) -> TrainingError:
        """The error of a training that diverged."""
        return TrainingError(f"{what} Lower learning_rate (now {self.learning_rate:g}).")


@dataclass(frozen=True)
class TrainingData:
    """Hidden states with class numbers, and the calibration set if it is given rather than split off."""

    hidden_states: Tensor
    labels: Tensor
    calibration: Part | None = None
    rows: Tensor | None = None
    """The rows that the rounds may use, ascending; None: all. The others are held out to certify."""
    groups: Tensor | None = None
    """The number of the group of every row (N,), if some belong together: no two parts share a group."""

    def groups_of(self, rows: Tensor) -> Array | None:
        """The group numbers of some rows; None if each is alone."""
        return None if self.groups is None else self.groups[rows].numpy()

    def hold_out(self, rows: Tensor) -> TrainingData:
        """The same without some rows."""
        is_kept = torch.ones(len(self.labels), dtype=torch.bool)
        is_kept[rows] = False
        return replace(self, rows=torch.nonzero(is_kept).squeeze(1))

    @property
    def usable(self) -> Part:
        """All points that may be trained on."""
        rows = torch.arange(len(self.labels)) if self.rows is None else self.rows
        return Part(self.hidden_states, self.labels[rows], rows)

    def fingerprint_of_parts(self, training: str) -> str:
        """The fingerprint of the training data, with those of a given calibration set and of the rows in use."""
        parts = [training]
        if self.calibration is not None:
            parts.append(fingerprint(self.calibration.hidden_states, self.calibration.labels.numpy()))
        if self.rows is not None:
            parts.append(hashlib.sha256(self.rows.numpy().tobytes()).hexdigest())
        if self.groups is not None:
            parts.append(hashlib.sha256(self.groups.numpy().tobytes()).hexdigest())
        return "".join(parts)


@dataclass(frozen=True)
class Part:
    """Rows of hidden states with the class numbers of those rows; the states are never copied whole."""

    hidden_states: Tensor
    labels: Tensor
    rows: Tensor

    @classmethod
    def whole(cls, hidden_states: Tensor, labels: Tensor) -> Part:
        """All rows of hidden states."""
        return cls(hidden_states, labels, torch.arange(len(labels)))

    def __len__(self) -> int:
        return len(self.rows)

    def states(self, positions: Tensor | slice) -> Tensor:
        """Hidden states at positions of this part."""
        return self.hidden_states[self.rows[positions]].float()

    def blocks(self) -> Iterator[Tensor]:
        """The hidden states of this part, a block of rows at a time."""
        return (self.states(positions) for positions in torch.arange(len(self)).split(DEFAULT_BLOCK_SIZE))


class Use(IntEnum):
    """What randomness is used for within a round; each use has its own stream."""

    SPLIT = 0
    WEIGHTS = 1
    SHUFFLE = 2
    VBLL_WEIGHTS = 3
    VBLL_SHUFFLE = 4
    VBLL_DRAWS = 5
    CERTIFICATION = 6
    FOLDS = 7


def random_generator(seed: int, number: int, use: Use, epoch: int = 0) -> np.random.Generator:
    """The stream of one use of randomness; the same arguments give the same stream."""
    return np.random.default_rng([seed, number, use, epoch])


def split_of_round(data: TrainingData, settings: TrainingSettings, seed: int, number: int) -> tuple[Part, Part]:
    """The training and calibration part of a round; the same for every learner with the same seed."""
    usable = data.usable
    if data.calibration is not None:
        return usable, data.calibration
    rng = random_generator(seed, number, Use.SPLIT)
    groups = data.groups_of(usable.rows)
    parts = stratified_split(usable.labels.numpy(), settings.calibration_size, rng, groups)
    rows = (usable.rows[torch.from_numpy(part)] for part in parts)
    train, calibration = (Part(data.hidden_states, data.labels[part], part) for part in rows)
    return train, calibration


def stratified_split(
    labels: Array, calibration_size: float, rng: np.random.Generator, groups: Array | None = None
) -> tuple[Array, Array]:
    """Row numbers of a training and a calibration part, stratified by class, with at least one point of each in both.

    Rows are ascending. Rounding errors of one class are made up for in the next. With ``groups`` (N,) whole groups are
    drawn, but for a class that has only one (``as_groups``).
    """
    if groups is not None:
        labels_of_groups, numbers = as_groups(labels, groups)
        train, chosen = stratified_split(labels_of_groups, calibration_size, rng)
        return np.flatnonzero(np.isin(numbers, train)), np.flatnonzero(np.isin(numbers, chosen))
    calibration: list[Array] = []
    carry = 0.0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        wanted = len(rows) * calibration_size + carry
        rounded = int(np.floor(wanted + 0.5))
        carry = wanted - rounded
        calibration.append(rows[: min(max(1, rounded), len(rows) - 1)])
    chosen = np.sort(np.concatenate(calibration))
    return np.setdiff1d(np.arange(len(labels)), chosen, assume_unique=True), chosen


def as_groups(labels: Array, groups: Array) -> tuple[Array, Array]:
    """A label for each of G groups, to stratify them by, and the number of each row's group (N,), in 0..G-1.

    Of the labels in a group it is the rarest in the data, so that this class is spread over the parts, too. If it is so
    in one group alone, the rows of this group count as if they were alone: a part without a class learns nothing of it.
    """
    names, of_row, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rarest_first = np.argsort(counts, kind="stable")
    rank = np.argsort(rarest_first)[of_row]
    found, numbers = np.unique(groups, return_inverse=True)
    rarest = np.full(len(found), len(names))
    np.minimum.at(rarest, numbers, rank)
    is_only = (np.bincount(rarest) == 1)[rarest] & (np.bincount(numbers) > 1)
    if is_only.any():
        beyond = len(found) + np.arange(len(labels))
        return as_groups(labels, np.where(is_only[numbers], beyond, numbers))
    return names[rarest_first[rarest]], numbers


def certification_split(
    labels: Array,
    certification_size: float,
    seed: int,
    groups: Array | None = None,
    excluded: Array | None = None,
) -> tuple[Array, int]:
    """Row numbers of the part held out to certify, ascending: a plain random sample, as its test assumes.

    Not stratified. Only a class that would be left with fewer than two points takes its points back; how many points
    went back comes second. Who certifies without them must count them as errors.

    With ``groups`` (N,) it is a sample of groups, whole ones, and groups are what is counted. A group of which a row is
    ``excluded`` (N,), such as by an audit, is not drawn; there may then be fewer than wanted.
    """
    group = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(group.max(initial=-1)) + 1
    order = random_generator(seed, 0, Use.CERTIFICATION).permutation(n_groups)
    if excluded is not None:
        order = order[~np.isin(order, group[excluded])]
    is_held = np.zeros(n_groups, dtype=bool)
    is_held[order[: int(np.floor(n_groups * certification_size + 0.5))]] = True
    held = is_held[group]
    names, of_row = np.unique(labels, return_inverse=True)
    in_group = of_row * n_groups + group  # one number for each class of each group
    n_left, n_all = (
        np.bincount(np.unique(pairs) // n_groups, minlength=len(names)) for pairs in (in_group[~held], in_group)
    )
    is_bare = (n_left < 2) & (n_all > n_left)
    goes_back = np.unique(group[held & is_bare[of_row]])
    is_held[goes_back] = False
    return np.flatnonzero(is_held[group]), len(goes_back)


def fingerprint(hidden_states: Tensor, labels: Array) -> str:
    """SHA-256 of states and labels, which identifies the data that a model was trained on."""
    digest = hashlib.sha256(f"{tuple(hidden_states.shape)}".encode())
    for block in hidden_states.split(DEFAULT_BLOCK_SIZE):
        digest.update(block.to("cpu", torch.float32).contiguous().numpy().tobytes())
    digest.update("\0".join(repr(label) for label in labels.tolist()).encode())  # repr tells 2 from '2'
    return digest.hexdigest()
