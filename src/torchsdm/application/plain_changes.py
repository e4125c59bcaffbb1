"""Changes to a model from plain values, as they come over a wire: what to add, relabel, remove or recalibrate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchsdm.application.answers import given_block
from torchsdm.application.saved_model import SavedModel
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import Add, Recalibrate, Relabel, Remove, Request
from torchsdm.labels import check_known_labels
from torchsdm.model import CALIBRATION, SUPPORT

_SETS = {"add": SUPPORT, "add_calibration": CALIBRATION}


def change_requests(saved: SavedModel, changes: Sequence[Mapping[str, Any]]) -> list[Request]:
    """What ``LiveModel.make`` takes, from mappings with the key ``what`` and the values that go with it.

    - ``add`` and ``add_calibration``: ``labels``, ``texts`` (with ``answers``, if those are judged) or
      ``hidden_states``, and, if wanted, ``ids``, ``allow_new_labels`` and ``keep_repeated``;
    - ``relabel``: ``ids`` and ``labels``, and, if wanted, ``allow_new_labels``;
    - ``remove``: ``ids``;
    - ``recalibrate``: ``alpha``, ``min_class_count`` and ``policy``, if wanted.

    Labels are checked before a language model reads any text.
    """
    for change in changes:
        to, labels = _SETS.get(change["what"], SUPPORT), change.get("labels") or []
        allow_new = bool(change.get("allow_new_labels"))
        check_known_labels(labels, saved.classifier.classes_, "labels", to=to, allow_new=allow_new)
    return [_request(saved, change) for change in changes]


def _request(saved: SavedModel, change: Mapping[str, Any]) -> Request:
    what, allow_new = change["what"], bool(change.get("allow_new_labels"))
    if what in _SETS:
        repeated = "keep" if change.get("keep_repeated") else "refuse"
        return Add(_points(saved, change), _SETS[what], repeated, allow_new)
    if what == "relabel":
        return Relabel(change["ids"], change["labels"], allow_new)
    if what == "remove":
        return Remove(change["ids"])
    if what == "recalibrate":
        return Recalibrate(change.get("alpha"), change.get("min_class_count"), change.get("policy"))
    raise InvalidInputError(f"'what' must be add, add_calibration, relabel, remove or recalibrate. Got {what!r}.")


def _points(saved: SavedModel, change: Mapping[str, Any]) -> LabelledStates:
    """The points to add: all of them can be used, or it is an error."""
    texts, labels, ids = change.get("texts"), change["labels"], change.get("ids")
    if texts is not None and saved.text_classifier is not None:
        if any(not isinstance(text, str) for text in texts):
            raise InvalidInputError("texts: examples must be strings.")
        read = saved.text_classifier.checked_extractor().labelled_states(texts, answers=change.get("answers"))
    else:
        read = given_block(saved, texts=texts, hidden_states=change.get("hidden_states"))
    for name, values in (("labels", labels), ("ids", ids)):
        if values is not None and len(values) != len(read):
            raise InvalidInputError(f"{name}: there must be {len(read)}, one for each example. Got {len(values)}.")
    if not np.isfinite(read.hidden_states).all():
        raise InvalidInputError("hidden_states: the states contain NaN or infinity.")
    return replace(read, labels=labels, ids=ids)
