"""Rules over one fitted ``SDMClassifier``: the softmax of its logits, its region (section 4.4), its certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from sklearn.base import clone

from torchsdm.baselines.base import DecidingClassifier
from torchsdm.baselines.softmax import softmax
from torchsdm.core import Decisions, SDMDecisions
from torchsdm.errors import InvalidInputError, NotFittedError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.settings import LANES
from torchsdm.trust import Certificate
from torchsdm.validation import Array, ArrayLike, check_choice, require_fitted

Self = TypeVar("Self", bound="SDMRule")

RULES = ("no reject", "softmax", "softmax of d·z", "sdm", "region", "region lower", "certified", "every level")
_PROMISED = RULES[-2:]  # by the certificate


@dataclass(eq=False, repr=False)
class SDMRule(DecidingClassifier):
    """One of the paper's estimators over an SDM adaptor, or its certified rule.

    All share its logits; only confidence and admission differ. The policy of the model has no influence.

    Parameters
    ----------
    model : SDMClassifier or SDMEnsemble
        A fitted model is used as is.
    rule : str
        - 'no reject': admit everything;
        - 'softmax': softmax(z')_ŷ ≥ alpha;
        - 'softmax of d·z': softmax(d · z')_ŷ ≥ alpha, the distance as inverse temperature;
        - 'sdm': sdm(z')_ŷ ≥ alpha;
        - 'region': the high-reliability region, Eq. 9;
        - 'region lower': its lower estimator; an ensemble always uses this one;
        - 'certified': the model's certificate, which promises its alpha and so every smaller one;
        - 'every level': what the same certificate promises in every window of the score.

        None promises anything: the region estimates the accuracy of true classes, the others are thresholds.

    Attributes
    ----------
    fitted_model_ : SDMClassifier or SDMEnsemble
    certificate_ : Certificate or None
        The model's; None for the other rules.
    """

    model: SDMClassifier | SDMEnsemble
    rule: str = "region"

    def fit(self: Self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Fit the model if it is not fitted yet; the rule itself learns nothing."""
        check_choice(self.rule, RULES, "rule", "SDMRule")
        is_fitted = hasattr(self.model, "models_")
        if not is_fitted and X is None:
            raise NotFittedError("'model' of SDMRule is not fitted: pass X and y to fit.")
        self.fitted_model_ = self.model if is_fitted else clone(self.model, safe=False).fit(X, y)
        self.classes_ = self.fitted_model_.classes_
        certificate = self.certificate_
        if self.rule in _PROMISED and (certificate is None or not (self.rule == "certified" or certificate.windows)):
            raise InvalidInputError(
                f"'rule' of SDMRule may be {self.rule!r} only for a model that is certified so. Got one that is not; "
                "fit an SDMClassifier with certification_size."
            )
        return self

    @property
    def certificate_(self) -> Certificate | None:
        """The certificate that admits."""
        require_fitted(self, "fitted_model_")
        return self.fitted_model_.certificate_ if self.rule in _PROMISED else None

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input by the rule; ``probabilities`` and ``confidence`` are those that the rule uses.

        The decisions have SDM's signals only for the rules that use them: 'sdm', the two of the region and the two of
        the certificate, which alone have lanes.
        """
        require_fitted(self, "fitted_model_")
        return self.applied(self.fitted_model_.decide(X))

    def applied(self, decisions: SDMDecisions) -> Decisions:
        """The same for what the model decided on inputs, so that several rules over it need not ask it again."""
        if self.certificate_ is not None and decisions.certified is not None:
            promised = decisions.alphas <= self.certificate_.alpha + 1e-9  # (A,)
            admitted = decisions.certified
            if self.rule == "every level":
                is_its = np.asarray(decisions.certificate == self.certificate_.identity)
                admitted = is_its & (decisions.lane == LANES[0])
            return decisions.with_admission(admitted[:, None] & promised)
        decisions = replace(decisions, score=None, certified=None, certificate=None, lane=None, reason=None)
        regions = {"region": decisions.admitted_at, "region lower": decisions.admitted_lower_at}
        if self.rule in regions:
            return replace(decisions.with_admission(regions[self.rule]), score=decisions.rescaled_similarity)
        probabilities = _PROBABILITIES[self.rule](decisions)
        y_hat = decisions.logits.argmax(axis=1)[:, None]
        confidence = np.take_along_axis(probabilities, y_hat, axis=1)[:, 0]
        is_high = confidence[:, None] >= decisions.alphas  # (N, A)
        admitted_at = np.ones_like(is_high) if self.rule == "no reject" else is_high
        if self.rule == "sdm":
            return decisions.with_admission(admitted_at)
        return Decisions.of_probabilities(
            decisions.classes, decisions.alphas, decisions.logits, probabilities, admitted_at, member=decisions.member
        )


_PROBABILITIES: dict[str, Callable[[SDMDecisions], Array]] = {
    "no reject": lambda decisions: softmax(decisions.logits),
    "softmax": lambda decisions: softmax(decisions.logits),
    "softmax of d·z": lambda decisions: softmax(decisions.distance_quantile[:, None] * decisions.logits),
    "sdm": lambda decisions: decisions.probabilities,
}
