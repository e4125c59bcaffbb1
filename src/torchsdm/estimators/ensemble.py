"""``SDMEnsemble``: all J rounds must agree (appendix A.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from torchsdm.core import Decisions, SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.estimators._base import BaseSDMClassifier
from torchsdm.estimators._data import check_data
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.labels import LabelCodes
from torchsdm.model import Explanation, explain
from torchsdm.training import seed_of_fit
from torchsdm.validation import Array, ArrayLike, check_positive

Self = TypeVar("Self", bound="SDMEnsemble")

_OF_EVERY_ROUND = (
    *("classes_", "_codes", "n_features_in_", "input_ndim_", "feature_names_in_", "history_", "states_origin_"),
    *("data_source_", "data_fingerprint_", "random_seed_"),
)  # what a classifier learned that does not depend on the round it kept


class SDMEnsemble(BaseSDMClassifier):
    """The J rounds of ``SDMClassifier`` as one estimator.

    A point is admitted only if all rounds predict the same label and the lower estimator of every round admits it. The
    prediction is the most frequent one (on a tie, the smallest label). A row's numbers are those of the least confident
    round that agrees with it; ``member`` says which.

    Takes the parameters of ``SDMClassifier``. An ensemble is not certified: nothing is held out, ``certificate_`` is
    None, and its lanes are trusted, review and unfamiliar.
    """

    def fit(
        self: Self,
        X: ArrayLike | LabelledStates,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
        background: LabelledStates | ArrayLike | None = None,
        groups: ArrayLike | None = None,
        seed: int | None = None,
    ) -> Self:
        """Train the rounds, and calibrate each; the parameters are those of ``SDMClassifier.fit``."""
        with self._unchanged_on_error():
            data = check_data(self, X, y, ids, texts, calibration, background_states=background, groups=groups)
            self.random_seed_ = seed_of_fit(seed, self.random_state, self.checkpoint, type(self).__name__)
            builder = self._begin(data)
            training, rounds = self._train(builder)
            self.models_ = tuple(builder.of_round(one, training)[0] for one in rounds)
            self._warn_of_regions()
        return self

    @classmethod
    def from_classifier(cls, classifier: SDMClassifier) -> SDMEnsemble:
        """The ensemble of a classifier that was fitted with ``fit(..., keep_rounds=True)``, without training again."""
        if not hasattr(classifier, "round_models_"):
            raise InvalidInputError(
                "'classifier' of SDMEnsemble.from_classifier must be fitted with keep_rounds=True and "
                "neither updated nor loaded since. Got one without its rounds."
            )
        ensemble = cls(**classifier.get_params())
        for name in _OF_EVERY_ROUND:
            if hasattr(classifier, name):
                setattr(ensemble, name, getattr(classifier, name))
        ensemble.models_ = tuple(replace(model, certification=None) for model in classifier.round_models_)
        return ensemble

    def predict(self, X: ArrayLike) -> Array:
        """The label that most rounds predict."""
        states = self._check_input(X, "predict")
        votes = np.stack([model.predict(states).numpy() for model in self.models_])  # (J, N)
        return self.classes_[_most_frequent(votes, len(self.classes_))]

    def decide(self, X: ArrayLike) -> SDMDecisions:
        """Decide on each input with all rounds together."""
        states = self._check_input(X, "decide")
        return self.lane_rule_.apply(combine([model.decide(states) for model in self.models_], self._codes))

    def explain(self, X: ArrayLike, k: int = 5) -> list[Explanation]:
        """Explain each input by the round that its numbers come from."""
        states: Tensor = self._check_input(X, "explain")
        check_positive(k, "k", "SDMEnsemble.explain", integer=True)
        decisions = self.decide(X)
        by_row: dict[int, Explanation] = {}
        for member, model in enumerate(self.models_):
            chosen = np.flatnonzero(decisions.member == member)
            if len(chosen):
                by_row |= zip(chosen.tolist(), explain(model, self._codes, states[chosen], k), strict=True)
        return [replace(by_row[row], decision=decision) for row, decision in enumerate(decisions.to_dicts())]


def combine(members: Sequence[SDMDecisions], codes: LabelCodes) -> SDMDecisions:
    """Join the decisions of J rounds on the same inputs into one."""
    votes = np.stack([codes.encode(member.predictions, "SDMEnsemble").numpy() for member in members])  # (J, N)
    winner = _most_frequent(votes, len(codes.classes))
    confidence = np.stack([member.confidence for member in members])
    witness = np.where(votes == winner, confidence, np.inf).argmin(axis=0)  # (N,)
    unanimous = (votes == winner).all(axis=0)
    all_admit_at = np.stack([member.admitted_lower_at for member in members]).all(axis=0)  # (N, A)
    n = len(winner)
    rows = Decisions.concatenate(members)[witness * n + np.arange(n)]
    return rows.of_rounds(all_admit_at & unanimous[:, None], member=witness)


def _most_frequent(votes: Array, n_classes: int) -> Array:
    """The most frequent class of each column of votes (J, N); on a tie, the smallest."""
    counts = np.stack([(votes == c).sum(axis=0) for c in range(n_classes)])  # (C, N)
    return counts.argmax(axis=0)
