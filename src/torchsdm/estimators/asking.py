"""Fewer labels for a certificate: points are drawn from a pool, and of these only some need a label.

``torchsdm.trust.asking`` says which, and why the promise is that of all points that were drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from torchsdm.data import LabelledStates, StatesOrigin
from torchsdm.errors import CertificateWarning, InvalidInputError, warn_user
from torchsdm.files import replace_file, strict_json
from torchsdm.trust import Floor
from torchsdm.validation import Array, ArrayLike, as_list, as_tensor, check_same_length
from torchsdm.wording import counted, listed

_CALLER = "LabelRequest"
_TERMS = ("alpha", "delta", "control")


@dataclass(frozen=True)
class LabelRequest:
    """What ``SDMClassifier.ask_labels`` drew from a pool, and which of it needs a label.

    Attributes
    ----------
    drawn : LabelledStates
        All N points that were drawn, in random order, without labels.
    rows : (N,)
        Where they are in the pool.
    needs_label : (N,)
        Whether a rule with a chance may admit a point; the others need no label.
    floor : (C,)
        The lowest score of each prediction that may be admitted.
    """

    drawn: LabelledStates
    rows: Array
    needs_label: Array
    floor: Array
    alpha: float | Mapping[Any, float]
    """What will be certified, as ``recertify`` takes it."""
    delta: float
    control: str

    @property
    def ids(self) -> list[Any]:
        """The ids of the points to label; their rows in the pool, if that has no ids."""
        return [name for name, is_asked in zip(self._names, self.needs_label, strict=True) if is_asked]

    @property
    def rows_to_label(self) -> Array:
        """Where the points to label are in the pool."""
        return self.rows[self.needs_label]

    @property
    def _names(self) -> list[Any]:
        return as_list(self.rows if self.drawn.ids is None else self.drawn.ids, "ids", _CALLER)

    def answered(self, labels: ArrayLike | Mapping[Any, Any]) -> LabelledStates:
        """All points that were drawn, with the labels of those that need one, by id or in the order of ``ids``.

        A label that is None says that nobody can tell: the point counts as an error wherever it is admitted.
        """
        if not isinstance(labels, Mapping):
            given = as_list(labels, "y", f"{_CALLER}.answered")
            check_same_length(len(self.ids), given, "y", f"{_CALLER}.answered")
            labels = dict(zip(self.ids, given, strict=True))
        asked = dict.fromkeys(self.ids)
        missing = [name for name in asked if name not in labels]
        if missing:
            raise InvalidInputError(
                f"Of the {counted(len(asked), 'point')} to label, {len(missing)} are missing: {listed(missing)}. "
                "Label all: without the hard ones nothing would be certified about these."
            )
        strange = [name for name in labels if name not in asked]
        if strange:
            raise InvalidInputError(f"No label was asked for {listed(strange)}. Leave out what was not asked for.")
        return replace(self.drawn, labels=[labels.get(name) for name in self._names])

    def warn_of_change(self, now: LabelRequest) -> None:
        """Warn if the model has changed so that it would ask for other labels of the same points ``now``."""
        n = int((now.needs_label & ~self.needs_label).sum())
        if n:
            warn_user(
                f"The model was changed after these labels were asked for. Without a label are "
                f"{counted(n, 'point')} that it could now admit; wherever it does, they count as errors. The promise "
                "holds, but less may be certified than with labels that are asked for again.",
                CertificateWarning,
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the points: how many there are, and what is to be labelled."""
        floor = [value if np.isfinite(value) else None for value in self.floor.tolist()]
        counts = {"n_drawn": len(self.rows), "n_to_label": len(self.ids)}
        terms = {name: getattr(self, name) for name in _TERMS}
        return {**counts, **terms, "floor": floor, "ids": self.ids, "rows": self.rows_to_label.tolist()}

    def save(self, path: Path) -> None:
        """Write a file that ``load`` reads, with the states of all points."""
        drawn, origin = self.drawn, self.drawn.origin
        texts = None if drawn.texts is None else as_list(drawn.texts, "texts", _CALLER)
        about = {name: getattr(self, name) for name in _TERMS} | {
            "ids": None if drawn.ids is None else self._names,
            "texts": texts,
        }
        about["origin"] = None if origin is None else origin.to_json()
        states = as_tensor(drawn.hidden_states, "hidden_states", _CALLER).float().cpu().contiguous().numpy()
        arrays = {"hidden_states": states, "rows": self.rows, "needs_label": self.needs_label, "floor": self.floor}
        replace_file(path, save(arrays, {"request": strict_json(about)}))

    @classmethod
    def load(cls, path: Path) -> LabelRequest:
        """Read a request that ``save`` wrote."""
        try:
            with safe_open(path, framework="np") as archive:
                arrays: dict[str, Any] = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
                about = json.loads(archive.metadata()["request"])
            origin = None if about["origin"] is None else StatesOrigin.from_json(about["origin"])
            drawn = LabelledStates(arrays.pop("hidden_states"), None, about["ids"], about["texts"], origin=origin)
            request = cls(drawn, **arrays, **{name: about[name] for name in _TERMS})
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"{path} is no request for labels that can be read: {error!r}.") from error
        if any(len(one) != len(drawn) for one in (request.rows, request.needs_label, request._names)):
            raise InvalidInputError(f"{path} is no request for labels: its parts have different lengths.")
        return request


def draw_rows(floor: Floor, n_pool: int, seed: int | None) -> Array:
    """Random rows of a pool, as many as the floor was found for, in random order."""
    return np.random.default_rng(seed).permutation(n_pool)[: floor.n_drawn]
