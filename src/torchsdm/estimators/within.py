"""``decide`` and ``explain`` where a classifier is part of a scikit-learn pipeline or search."""

from __future__ import annotations

from typing import Any

from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.model import Explanation


def decide_with(estimator: Any, X: Any, **options: Any) -> Decisions:
    """``decide`` of the classifier in an estimator, on inputs as the estimator takes them.

    A function, not a pipeline class of ours: it works on the pipelines and searches that you already have, and leaves
    ``clone``, ``get_params``, ``set_output`` and every search to scikit-learn's own ``Pipeline``.

    Parameters
    ----------
    estimator : fitted estimator
        A ``Pipeline``, a search such as ``GridSearchCV`` (its ``best_estimator_``), a ``FrozenEstimator``, any nesting
        of them, or a classifier with ``decide`` itself: ``SDMClassifier``, ``SDMEnsemble``, ``SDMTextClassifier``,
        ``CertifiedClassifier``, the baselines.
    X : inputs
        A pipeline transforms them first.
    **options
        For ``decide``, such as ``guard``.

    Notes
    -----
    A pipeline transforms X and nothing else. What ``fit`` is given as ``sdmclassifier__calibration`` or
    ``sdmclassifier__certification`` must be transformed already; states on another scale than X get a warning.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from torchsdm import SDMClassifier
    >>> X, y = make_blobs(400, n_features=8, centers=2, random_state=0)
    >>> small = SDMClassifier(0.8, n_filters=16, n_rounds=1, max_epochs=5, learning_rate=1e-2, random_state=0)
    >>> pipeline = make_pipeline(StandardScaler(), small).fit(X, y)
    >>> len(decide_with(pipeline, X[:3]))
    3
    """
    classifier, inputs = _classifier(estimator, X, "decide")
    return classifier.decide(inputs, **options)


def explain_with(estimator: Any, X: Any, k: int = 5, **options: Any) -> list[Explanation]:
    """``explain`` of the classifier in an estimator; see ``decide_with``."""
    classifier, inputs = _classifier(estimator, X, "explain")
    return classifier.explain(inputs, k, **options)


def _classifier(estimator: Any, X: Any, method: str) -> tuple[Any, Any]:
    """The classifier at the end of pipelines and searches, and its inputs."""
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline

    if isinstance(estimator, FrozenEstimator):
        return _classifier(estimator.estimator, X, method)
    if isinstance(estimator, Pipeline):
        for _, step in estimator.steps[:-1]:
            if step not in (None, "passthrough"):
                X = step.transform(X)
        return _classifier(estimator.steps[-1][1], X, method)
    if hasattr(estimator, "best_estimator_"):
        return _classifier(estimator.best_estimator_, X, method)
    if hasattr(estimator, "refit"):  # a search
        raise InvalidInputError(
            f"This {type(estimator).__name__} has no best_estimator_ to {method} with: fit it, with refit=True."
        )
    if not hasattr(estimator, method):
        raise InvalidTypeError(
            f"'estimator' of {method}_with must be a classifier with {method}, or a pipeline or search that ends in "
            f"one. Got {type(estimator).__name__}."
        )
    return estimator, X
