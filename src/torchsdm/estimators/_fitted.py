"""What an estimator knows once it is fitted, and how a failed call leaves it unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from torchsdm.data import StatesOrigin
from torchsdm.errors import InvalidTypeError, NotFittedError
from torchsdm.labels import LabelCodes
from torchsdm.matching import check_ids
from torchsdm.model import ListedExamples, SDMModel
from torchsdm.training import History
from torchsdm.trust import Certificate, Reliability
from torchsdm.validation import Array, as_list, check_same_length, is_storable_text


class FittedState:
    """The learned attributes of ``SDMClassifier`` and ``SDMEnsemble``."""

    models_: tuple[SDMModel, ...]
    classes_: Array
    n_features_in_: int
    input_ndim_: int
    history_: History
    data_fingerprint_: str
    random_seed_: int
    training_rows_: Array
    calibration_rows_: Array
    certification_rows_: Array
    certificate_: Certificate | None = None
    reliability_: Reliability | None = None
    familiarity_: float
    """The familiarity that the certificate was made with."""
    measures_familiarity_: bool = False
    """Whether lanes go by ``torchsdm.core.Familiarity``; ensembles and models from before it do not."""
    deltas_spent_: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """What each certification sample was asked, by its fingerprint, and the delta of every answer; a refit or a new
    sample does not forget."""
    states_origin_: StatesOrigin | None
    """The language model and prompt that the hidden states were made with, if known."""
    data_source_: str | None = None
    """What the training data is called, such as the name of its file; for the model card."""
    version_: int = 0
    """The version of a loaded model: how many changes of it were logged; 0 for one that was fitted."""
    _codes: LabelCodes

    def _check_is_fitted(self, method: str) -> None:
        if not hasattr(self, "models_"):
            name = type(self).__name__
            raise NotFittedError(f"This {name} is not fitted yet: call fit before {method}.")

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Restore what was learned before if a call fails or is interrupted."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise


def check_examples(
    ids: Sequence[Any] | Array | None, texts: Sequence[str] | Array | None, n: int, caller: str
) -> ListedExamples:
    """Ids and texts of n points; without ids the points are numbered."""
    names = check_ids(range(n) if ids is None else ids, n, caller)
    if texts is None:
        return ListedExamples(names)
    lines = as_list(texts, "texts", caller)
    check_same_length(n, lines, "texts", caller)
    strange = next((text for text in lines if text is not None and not is_storable_text(text)), None)
    if strange is not None:
        raise InvalidTypeError(f"'texts' of {caller} must be strings or None. Got {strange!r}.")
    return ListedExamples(names, lines)
