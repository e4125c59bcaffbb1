"""A classifier within pipelines and searches of scikit-learn."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from small import small_settings
from torchsdm import CertifiedClassifier, DriftGuard, SDMClassifier
from torchsdm.baselines import SoftmaxThreshold
from torchsdm.errors import DataWarning, InvalidInputError, InvalidTypeError, NotFittedError
from torchsdm.estimators import decide_with, explain_with

QUICK = small_settings(alpha=0.8, max_epochs=6)
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::torchsdm.errors.{name}Warning")
    for name in ("Region", "Certificate", "EmptyClass")
]


@pytest.fixture(scope="module")
def pipeline(insects):
    return make_pipeline(StandardScaler(), SDMClassifier(**QUICK)).fit(insects.X + 20, insects.y)


def assert_same(decisions, expected):
    assert len(decisions) == len(expected) > 0
    for name, value in expected._columns():
        np.testing.assert_array_equal(getattr(decisions, name), value, err_msg=name)


def expected(pipeline, X):
    return pipeline[-1].decide(pipeline[0].transform(X))


def test_inputs_go_through_the_pipeline(pipeline, insects):
    fresh = insects.fresh + 20
    decisions = decide_with(pipeline, fresh)
    assert_same(decisions, expected(pipeline, fresh))
    assert decisions.predictions.tolist() == pipeline.predict(fresh).tolist()
    assert len(set(decisions.lane)) > 1


def test_explanations_go_through_it_too(pipeline, insects):
    fresh = insects.fresh[:3] + 20
    found = [one.to_dict() for one in explain_with(pipeline, fresh, k=2)]
    assert found == [one.to_dict() for one in pipeline[-1].explain(pipeline[0].transform(fresh), 2)]


def test_options_reach_the_classifier(pipeline, insects):
    guard = DriftGuard.from_classifier(pipeline[-1])
    decide_with(pipeline, insects.fresh + 20, guard=guard)
    explain_with(pipeline, insects.fresh[:3] + 20, guard=guard)
    assert guard.n_seen == len(insects.fresh) + 3


def test_a_classifier_alone_is_asked_itself(fitted, insects):
    assert_same(decide_with(fitted, insects.fresh), fitted.decide(insects.fresh))


@pytest.mark.parametrize("wrap", [FrozenEstimator, lambda p: FrozenEstimator(FrozenEstimator(p)),
                                  lambda p: Pipeline([("a", "passthrough"), ("b", None), ("c", p)]),
                                  lambda p: Pipeline([("only", p)])])  # fmt: skip
def test_wrappers_are_looked_through(pipeline, insects, wrap):
    fresh = insects.fresh + 20
    assert_same(decide_with(wrap(pipeline), fresh), expected(pipeline, fresh))


def test_steps_within_steps_are_all_applied(insects):
    shift = FunctionTransformer(lambda X: X + 3)
    nested = make_pipeline(shift, make_pipeline(StandardScaler(), PCA(2), SDMClassifier(**QUICK)))
    nested.fit(insects.X, insects.y)
    inner = nested[-1]
    states = inner[:-1].transform(insects.fresh + 3)
    assert_same(decide_with(nested, insects.fresh), inner[-1].decide(states))


def test_a_search_decides_with_its_best(insects):
    search = GridSearchCV(
        make_pipeline(StandardScaler(), SDMClassifier(**QUICK)), {"sdmclassifier__n_filters": [2, 8]}, cv=2
    )
    with pytest.raises(InvalidInputError, match="GridSearchCV has no best_estimator_ to decide with: fit it, with ref"):
        decide_with(search, insects.fresh)
    search.fit(insects.X, insects.y)
    assert_same(decide_with(search, insects.fresh), expected(search.best_estimator_, insects.fresh))
    frozen = FrozenEstimator(search)
    assert_same(decide_with(frozen, insects.fresh), decide_with(search, insects.fresh))


def test_tables_keep_their_columns(insects):
    table = pd.DataFrame(insects.X, columns=list("abcd"))
    pipeline = make_pipeline(StandardScaler(), SDMClassifier(**QUICK)).set_output(transform="pandas")
    pipeline.fit(table, insects.y)
    assert pipeline[-1].feature_names_in_.tolist() == list("abcd")
    fresh = pd.DataFrame(insects.fresh, columns=list("abcd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(decide_with(pipeline, fresh), expected(pipeline, fresh))


def test_a_clone_is_as_unfitted_as_any(pipeline, insects):
    copy = clone(pipeline)
    assert copy.get_params()["sdmclassifier__n_filters"] == 8
    with pytest.raises(Exception, match="not fitted yet"):
        decide_with(copy, insects.fresh)
    with pytest.raises(NotFittedError, match="call fit before decide"):
        decide_with(Pipeline([("only", SDMClassifier())]), insects.fresh)


def test_other_classifiers_that_decide(insects):
    scaled = make_pipeline(
        StandardScaler(), CertifiedClassifier(LogisticRegression(), alpha=0.7, control="all", random_state=0)
    )
    scaled.fit(insects.X, insects.y)
    assert_same(decide_with(scaled, insects.fresh), expected(scaled, insects.fresh))
    baseline = make_pipeline(StandardScaler(), SoftmaxThreshold(0.8, SDMClassifier(**QUICK)))
    baseline.fit(insects.X, insects.y)
    assert_same(decide_with(baseline, insects.fresh), expected(baseline, insects.fresh))
    with pytest.raises(InvalidTypeError, match=r"'estimator' of explain_with must .* Got SoftmaxThreshold"):
        explain_with(baseline, insects.fresh)


def test_a_classifier_that_cannot_decide_is_refused(insects):
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(insects.X, insects.y)
    with pytest.raises(InvalidTypeError, match=r"a classifier with decide, or .* Got LogisticRegression"):
        decide_with(plain, insects.fresh)


# --- What a pipeline does not transform ------------------------------------------------------------------------------


def test_an_untransformed_certification_set_is_not_silent(insects):
    X, held_out = insects.X[:160] * 10 + 20, insects.X[160:] * 10 + 20
    pipeline = make_pipeline(StandardScaler(), SDMClassifier(**QUICK))
    with pytest.warns(DataWarning) as caught:
        pipeline.fit(X, insects.y[:160], sdmclassifier__certification=(held_out, insects.y[160:]))
    (said,) = [str(one.message) for one in caught if isinstance(one.message, DataWarning)]
    assert said.startswith("'certification' of SDMClassifier.fit has states on another scale than the training data")
    assert said.endswith("Make all states in the same way: a scikit-learn Pipeline transforms X alone.")


@pytest.mark.parametrize("name", ["calibration", "certification"])
def test_a_transformed_one_is_welcome(insects, name):
    X, held_out = insects.X[:160] * 10 + 20, insects.X[160:] * 10 + 20
    scaler = StandardScaler().fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        make_pipeline(StandardScaler(), SDMClassifier(**QUICK)).fit(
            X, insects.y[:160], **{f"sdmclassifier__{name}": (scaler.transform(held_out), insects.y[160:])}
        )


@pytest.mark.parametrize("standardization", ["scalar", "per_dimension"])
def test_states_to_recertify_with_are_looked_at_alike(insects, standardization):
    classifier = SDMClassifier(**QUICK, standardization=standardization).fit(insects.X, insects.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        classifier.recertify(insects.X[:80] + 1e-3, insects.y[:80])
        classifier.recertify(insects.X[:9] * 100, insects.y[:9])  # too few to say
    strange = [insects.X[:80] * 0.01, insects.X[:80] * 100, insects.X[:80] + 100]
    for states in strange:
        with pytest.warns(DataWarning, match="'X' of SDMClassifier.recertify has states on another scale"):
            classifier.recertify(states, insects.y[:80])
