"""A scorer for scikit-learn's searches: the share of inputs admitted, if their accuracy holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom

from torchsdm.estimators import decide_with
from torchsdm.validation import check_alpha, check_label_array, check_same_length, check_share


@dataclass(frozen=True)
class AdmittedShareScorer:
    """``scoring=`` of ``GridSearchCV`` or ``cross_val_score``: how much is admitted at an accuracy that holds.

    With n inputs of a fold, a of them admitted and k of those wrong, the score is

        a / n               unless the errors are too many for alpha: P(Binomial(a, 1 - alpha) >= k) < level,
        (a - k) / a - alpha  if they are, below 0: the accuracy that is missing.

    So every setting that holds alpha comes before every one that does not, and admitting nothing (0) lies between. A
    rule that is right alpha of the time fails with probability below ``level`` in a fold, where a plain comparison
    would fail it in about half of them.

    It is for choosing settings. The same folds cannot also show how good the chosen ones are: that takes other data,
    or the certificate of the chosen model.

    Parameters
    ----------
    alpha : float, default=0.9
        Accuracy that admitted answers must have, all together; in (0.5, 1].
    level : float, default=0.05
        Probability below which that many errors are too many.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import cross_val_score
    >>> from torchsdm import CertifiedClassifier
    >>> X, y = make_blobs(3000, centers=[[0, 0], [2, 2]], random_state=0)
    >>> clf = CertifiedClassifier(LogisticRegression(), alpha=0.95, random_state=0)
    >>> scores = cross_val_score(clf, X, y, scoring=AdmittedShareScorer(alpha=0.95), cv=3)
    >>> bool(scores.min() > 0.5)
    True
    """

    alpha: float = 0.9
    level: float = 0.05

    def __post_init__(self) -> None:
        check_alpha(self.alpha, "AdmittedShareScorer")
        check_share(self.level, "level", "AdmittedShareScorer")

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """The score of a fitted estimator that ``decide_with`` takes; a label that it does not know is an error."""
        decisions = decide_with(estimator, X)
        labels = check_label_array(y, "AdmittedShareScorer")
        check_same_length(len(decisions), labels, "y", "AdmittedShareScorer")
        n_admitted = int(decisions.admitted.sum())
        n_wrong = int(np.sum(decisions.admitted & (decisions.predictions != labels)))
        if n_admitted and binom.sf(n_wrong - 1, n_admitted, 1 - self.alpha) < self.level:
            return (n_admitted - n_wrong) / n_admitted - self.alpha
        return n_admitted / len(labels)
