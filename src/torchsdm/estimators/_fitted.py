"""What an estimator knows once it is fitted: declared here, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from torchsdm.data import LabelledStates, StatesOrigin
from torchsdm.errors import CertificateWarning, InvalidInputError, NotFittedError, Remedy, SDMWarning, warn_user
from torchsdm.estimators._parameters import Parameters
from torchsdm.labels import LabelCodes
from torchsdm.model import SDMModel
from torchsdm.settings import POLICIES
from torchsdm.training import History
from torchsdm.trust import Certificate, LaneRule, Reliability
from torchsdm.validation import Array, check_choice
from torchsdm.wording import UNPROMISED, shortened


class FittedState(Parameters):
    """The learned attributes of ``SDMClassifier`` and ``SDMEnsemble``, and what follows from them alone."""

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
    _home: Path | None = None
    """The directory that it was loaded from."""

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

    def _check_alike(self, part: LabelledStates, name: str, origin: StatesOrigin | None, caller: str) -> None:
        """Refuse a part whose states have another width than those of X, or were made otherwise."""
        shape = np.shape(part.hidden_states)
        if shape and shape[-1] != self.n_features_in_:
            raise InvalidInputError(
                f"'{name}' of {caller} must have states of width {self.n_features_in_}, like X. Got {shape[-1]}."
            )
        difference = None if origin is None or part.origin is None else origin.difference(part.origin)
        if difference is not None:
            raise InvalidInputError(
                f"'{name}' of {caller} was made with a different {difference.what} than X: "
                f"{shortened(repr(difference.theirs))}, but X has {shortened(repr(difference.ours))}."
            )

    @property
    def lane_rule_(self) -> LaneRule:
        """What puts decisions into lanes. A certificate does not hold for a model that was updated since."""
        self._check_is_fitted("lane_rule_")
        check_choice(self.policy, POLICIES, "policy", type(self).__name__)
        changed = any(model.outdated for model in self.models_)
        return LaneRule(
            None if changed else self.certificate_,
            self.reliability_,
            float(self.familiarity if self.certificate_ is None else self.familiarity_),
            self.policy,
            self.models_[0].calibration.regions[0] if len(self.models_) == 1 else None,
            self.models_[0].calibration.familiarity if self.measures_familiarity_ else None,
        )

    def warnings(self) -> list[SDMWarning]:
        """What a user should know before relying on the model; also in its card, its report and ``sdm doctor``."""
        self._check_is_fitted("warnings")
        names, certificate = self.classes_.tolist(), self.certificate_
        found = self._region_warnings()
        if certificate is not None and (warning := certificate.warning(names)) is not None:
            found.append(warning)
        if certificate is not None and certificate.found and self.models_[0].outdated:
            found.append(CertificateWarning(UNPROMISED["changed"], remedy=Remedy.CERTIFY_AGAIN))
        return found

    def _region_warnings(self) -> list[SDMWarning]:
        """What a user should know about the regions, once for all rounds of an ensemble."""
        names, certificate = self.classes_.tolist(), self.lane_rule_.certificate
        certified = certificate is not None and certificate.found
        by_round = [model.calibration.warnings(names, certified=certified) for model in self.models_]
        return by_round[0] if len(by_round) == 1 else _told_once(by_round)

    def _warn_of_regions(self) -> None:
        for warning in self._region_warnings():
            warn_user(warning)


def _told_once(by_round: Sequence[Sequence[SDMWarning]]) -> list[SDMWarning]:
    """The warnings of several rounds: where several say the like, the first of them."""
    alike: dict[tuple[Any, ...], list[tuple[int, SDMWarning]]] = {}
    for number, warnings in enumerate(by_round, start=1):
        seen: Counter[tuple[Any, ...]] = Counter()
        for warning in warnings:
            kind = (type(warning), warning.remedy)
            alike.setdefault((*kind, seen[kind]), []).append((number, warning))
            seen[kind] += 1

    def told(number: int, warning: SDMWarning, n_rounds: int) -> SDMWarning:
        of = f"Round {number}" + (f", and likewise {n_rounds - 1} of the others" if n_rounds > 1 else "")
        return type(warning)(f"{of}: {warning.what}", remedy=warning.remedy)

    return [told(*rounds[0], len(rounds)) for rounds in alike.values()]
