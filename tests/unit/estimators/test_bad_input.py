"""Bad input to the classifier: an error of ours that says what, what was got and what to do, and nothing is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchsdm import DriftGuard, LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError, TorchSDMError, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

QUICK = {"n_filters": 4, "n_rounds": 1, "training": "sdm", "max_epochs": 1, "random_state": 0, "learning_rate": 1e-2}


def states(n=20, width=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


LABELS = np.array(["ant", "bee"] * 10)


def spoiled(row, value, n=20):
    X = states(n)
    X[row:, 2] = value
    return X


def snapshot(classifier, X):
    """All that a fitted classifier says and knows."""
    said = {name: value.copy() for name, value in classifier.decide(X)._columns()}
    known = {
        "classes": classifier.classes_.tolist(),
        "width": classifier.n_features_in_,
        "fingerprint": classifier.data_fingerprint_,
        "support": len(classifier.support_),
        "labels": classifier.support_.labels.tolist(),
        "ids": classifier.model_.examples.all()[0],
        "outside": classifier._codes.outside,
        "history": len(classifier.history_),
        "alphas": [region.alpha for region in classifier.regions_],
        "attributes": sorted(vars(classifier)),
    }
    return said, known


@pytest.fixture
def unchanged(fitted, insects):
    """A fitted classifier that must be the same afterwards."""
    said, known = snapshot(fitted, insects.fresh)
    yield fitted
    said_after, known_after = snapshot(fitted, insects.fresh)
    for name, value in said.items():
        np.testing.assert_array_equal(value, said_after[name], err_msg=name)
    assert known == known_after


# --- Hidden states ---------------------------------------------------------------------------------------------------

BAD_STATES = [
    pytest.param(spoiled(3, math.nan), r"must be finite. Got NaN, first in row 3; remove or repair", id="NaN"),
    pytest.param(spoiled(19, math.inf), r"must be finite. Got infinity .*first in row 19; remove", id="infinity"),
    pytest.param(spoiled(0, -math.inf), r"must be finite. Got infinity .*first in row 0; remove", id="minus infinity"),
    pytest.param(torch.from_numpy(spoiled(5, math.nan)), r"Got NaN, first in row 5;", id="NaN in a tensor"),
    pytest.param(spoiled(7, math.nan).tolist(), r"Got NaN, first in row 7;", id="NaN in a list"),
    pytest.param(spoiled(2, math.nan)[:, None, :].repeat(3, 1), r"Got NaN, first in row 2;", id="NaN with positions"),
    pytest.param(states().astype(np.float64) * 1e300, r"Got infinity .*first in row 0;", id="beyond float32"),
    pytest.param(np.empty((20, 0), dtype=np.float32), r"0 feature\(s\)", id="no columns"),
    pytest.param(states()[:, 0], r"Expected 2D array, got 1D array", id="one axis"),
    pytest.param(np.zeros((20, 2, 2, 4)), r"must have shape \(N, D\) or \(N, positions, D\)", id="four axes"),
    pytest.param([["a", "b", "c", "d"]] * 20, None, id="strings"),
    pytest.param(None, None, id="None"),
    pytest.param(states() + 1j, r"Complex data not supported", id="complex"),
]


NO_STATES = [
    pytest.param(np.empty((0, 4), dtype=np.float32), r"0 sample\(s\).*minimum of 1", id="no rows"),
    pytest.param(np.empty((0, 3, 4)), r"must not be empty. Got shape \(0, 3, 4\)", id="no rows with positions"),
    pytest.param([], None, id="an empty list"),
]


@pytest.mark.parametrize(("X", "message"), BAD_STATES + NO_STATES)
def test_fit_refuses_bad_states(X, message):
    with pytest.raises(TorchSDMError, match=message):
        SDMClassifier(**QUICK).fit(X, LABELS)


@pytest.mark.parametrize(("X", "message"), BAD_STATES + NO_STATES)
def test_refitting_on_bad_states_loses_nothing(unchanged, X, message):
    with pytest.raises(TorchSDMError, match=message):
        unchanged.fit(X, LABELS)


@pytest.mark.parametrize(("X", "message"), BAD_STATES)
def test_asking_with_bad_states(unchanged, X, message):
    for ask in (unchanged.decide, unchanged.predict, unchanged.predict_proba, unchanged.explain):
        with pytest.raises(TorchSDMError, match=message):
            ask(X)


@pytest.mark.parametrize("kind", [SDMClassifier, SDMEnsemble])
@pytest.mark.parametrize("positions", [(), (2,)])
def test_no_inputs_have_no_decisions_of_the_right_kind(kind, positions):
    X = np.broadcast_to(states().reshape(20, *(1,) * len(positions), 4), (20, *positions, 4))
    fitted = kind(**QUICK).fit(X, LABELS)
    some = fitted.decide(X)
    for nothing in ([], np.array([]), torch.empty(0), X[:0]):
        decisions = fitted.decide(nothing)
        assert len(decisions) == 0 and decisions.to_dicts() == [] and fitted.explain(nothing) == []
        for (name, empty), (_, column) in zip(decisions._columns(), some._columns(), strict=True):
            assert empty.dtype == column.dtype and empty.shape == (0, *column.shape[1:]), name
        labels, probabilities = fitted.predict(nothing), fitted.predict_proba(nothing)
        assert labels.shape == (0,) and labels.dtype == fitted.predict(X).dtype
        assert probabilities.shape == (0, len(fitted.classes_)) and probabilities.dtype == np.float64
    with pytest.raises(InvalidInputError, match="X has 5 features"):
        fitted.decide(np.empty((0, *positions, 5)))


def test_no_inputs_leave_a_guard_as_it_is(unchanged):
    guard = DriftGuard.from_classifier(unchanged)
    assert len(unchanged.decide([], guard=guard)) == 0 and guard.n_seen == 0


@pytest.mark.parametrize("method", ["decide", "predict", "predict_proba", "explain"])
@pytest.mark.parametrize("shape", [(3, 5), (3, 3), (3, 2, 5)])
def test_another_width_says_both(unchanged, method, shape):
    message = rf"X has {shape[-1]} features, but SDMClassifier is expecting 4 features as input"
    with pytest.raises(InvalidInputError, match=message):
        getattr(unchanged, method)(np.zeros(shape, dtype=np.float32))


def test_the_message_names_parameter_and_caller(unchanged):
    for method in ("decide", "predict", "explain"):
        with pytest.raises(InvalidInputError, match=rf"^'X' of SDMClassifier\.{method} must be finite"):
            getattr(unchanged, method)(spoiled(3, math.nan))
    with pytest.raises(InvalidInputError, match=r"^'X' of SDMClassifier\.fit must be finite"):
        unchanged.fit(spoiled(3, math.nan), LABELS)
    with pytest.raises(InvalidInputError, match=r"^'X' of SDMEnsemble\.fit must be finite"):
        SDMEnsemble(**QUICK).fit(spoiled(3, math.nan), LABELS)


# --- Labels ----------------------------------------------------------------------------------------------------------

BAD_LABELS = [
    pytest.param(["ant"] * 20, r"at least two classes. Got one class only: 'ant'", id="one class"),
    pytest.param(
        ["ant"] * 19 + ["bee"],
        r"at least two examples of each class.*Got 1 of class .*bee.*add examples",
        id="one example",
    ),
    pytest.param(
        ["ant", "bee"] * 9, r"'y' of SDMClassifier.fit must have one value for each of 20 inputs. Got 18", id="too few"
    ),
    pytest.param(["ant", "bee"] * 11, r"one value for each of 20 inputs. Got 22", id="too many"),
    pytest.param([], None, id="none"),
    pytest.param(None, r"'y' of SDMClassifier.fit must contain labels", id="None"),
    pytest.param(np.linspace(0, 1, 20), r"(?i)continuous", id="a regression target"),
    pytest.param([0.0, math.nan] * 10, r"NaN", id="NaN"),
    pytest.param(np.eye(20)[:, :2], r"1d array", id="two axes"),
    pytest.param(np.array(["ant", None] * 10, dtype=object), None, id="None among strings"),
    pytest.param(np.array(["ant", 3] * 10, dtype=object), None, id="strings and numbers"),
]


@pytest.mark.parametrize(("y", "message"), BAD_LABELS)
def test_fit_refuses_bad_labels(unchanged, y, message):
    with pytest.raises(TorchSDMError, match=message):
        unchanged.fit(states(), y)


# --- Alpha and other parameters --------------------------------------------------------------------------------------

BAD_ALPHAS = [0.5, 0.05, 0.0, -0.9, 1.01, 95, math.nan, [0.9, 0.3], (), [0.9, math.nan]]


@pytest.mark.parametrize("alpha", BAD_ALPHAS)
def test_alpha_outside_its_range(unchanged, alpha):
    message = r"'alpha' of SDMClassifier.{} must (be in \(0.5, 1\]. Got .*; alpha is target accuracy|have at least one)"
    with pytest.raises(InvalidInputError, match=message.format("recalibrate")):
        unchanged.recalibrate(alpha)
    with pytest.raises(InvalidInputError, match=message.format("fit")):
        SDMClassifier(**QUICK, alpha=alpha).fit(states(), LABELS)


@pytest.mark.parametrize("alpha", ["high", [0.9, None], [[0.9]]])
def test_alpha_that_is_no_number(unchanged, alpha):
    with pytest.raises(InvalidTypeError, match=r"'alpha' of SDMClassifier.recalibrate must be a number"):
        unchanged.recalibrate(alpha)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_filters": 0}, "'n_filters' of SDMClassifier.fit must be positive. Got 0"),
        ({"n_filters": 2.5}, "'n_filters' of SDMClassifier.fit must be an integer. Got 2.5"),
        ({"n_rounds": 0}, "'n_rounds' of SDMClassifier.fit must be positive. Got 0"),
        ({"max_epochs": -1}, "'max_epochs' of SDMClassifier.fit must be positive. Got -1"),
        ({"batch_size": "all"}, "'batch_size' of SDMClassifier.fit must be an integer. Got 'all'"),
        ({"block_size": 0}, "'block_size' of SDMClassifier.fit must be positive. Got 0"),
        ({"learning_rate": 0.0}, "'learning_rate' of SDMClassifier.fit must be positive. Got 0.0"),
        ({"learning_rate": math.inf}, "'learning_rate' of SDMClassifier.fit must be positive. Got inf"),
        ({"patience": -1}, "'patience' of SDMClassifier.fit must be positive. Got -1"),
        ({"min_class_count": -1}, "'min_class_count' of SDMClassifier.fit must be"),
        ({"min_class_count": 1.5}, "'min_class_count' of SDMClassifier.fit must be an integer. Got 1.5"),
        (
            {"calibration_size": 1.0},
            r"'calibration_size' of SDMClassifier.fit must be in \(0, 1\). Got 1.0; it is a share",
        ),
        ({"calibration_size": 0.0}, "'calibration_size' of SDMClassifier.fit must be"),
        ({"adaptor": "cnn"}, "'adaptor' of SDMClassifier.fit must be one of 'filters', 'identity'. Got 'cnn'"),
        ({"standardization": True}, "'standardization' of SDMClassifier.fit must be one of 'scalar', 'per_dimension'"),
        ({"device": "banana"}, "'device' of SDMClassifier.fit must be a torch device.* Got 'banana'"),
    ],
)
def test_bad_parameters(unchanged, change, message):
    before = unchanged.get_params()
    with pytest.raises(TorchSDMError, match=message):
        SDMClassifier(**{**QUICK, **change}).fit(states(), LABELS)
    unchanged.set_params(**change)
    with pytest.raises(TorchSDMError, match=message):
        unchanged.fit(states(), LABELS)
    unchanged.set_params(**before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(unchanged):
    before = unchanged.get_params()
    unchanged.set_params(device="cuda")
    with pytest.raises(TorchSDMError, match=r"'device' of SDMClassifier.fit"):
        unchanged.fit(states(), LABELS)
    unchanged.set_params(**before)


def test_a_failed_training_loses_nothing(unchanged, insects):
    before = unchanged.get_params()
    unchanged.set_params(learning_rate=1e30)
    with pytest.raises(TrainingError, match="Lower learning_rate"):
        unchanged.fit(insects.X, insects.y)
    unchanged.set_params(**before)


def test_an_interrupted_fit_loses_nothing(unchanged, insects, monkeypatch):
    from torchsdm.estimators import _base as base

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "train_rounds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unchanged.fit(insects.X[:, :3], insects.y)


# --- Ids, texts, calibration set -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": list(range(19))}, "'ids' of SDMClassifier.fit must name each of 20 points. Got 19 names"),
        ({"ids": [0] * 20}, "'ids' of SDMClassifier.fit must be unique. Got 0 more than once"),
        ({"ids": [0.5, *range(19)]}, "'ids' of SDMClassifier.fit must be strings or 64-bit integers. Got 0.5"),
        ({"ids": [None, *range(19)]}, "'ids' of SDMClassifier.fit must be strings or 64-bit integers. Got None"),
        ({"texts": ["a"] * 3}, "'texts' of SDMClassifier.fit must have one value for each of 20 inputs. Got 3"),
    ],
)
def test_bad_ids_and_texts(unchanged, options, message):
    with pytest.raises(TorchSDMError, match=message):
        unchanged.fit(states(), LABELS, **options)


def test_ids_of_numpys_kind_are_integers_too(insects):
    classifier = SDMClassifier(**QUICK).fit(states(), LABELS, ids=[np.int64(i + 5) for i in range(20)])
    assert set(classifier.model_.examples.all()[0]) < set(range(5, 25))


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (
            (states(6), ["ant", "bee", "wasp"] * 2),
            r"calibration.* must contain only labels seen in fit \('ant', 'bee'\). Got 'wasp'",
        ),
        ((states(6), [0, 1] * 3), r"must contain only labels seen in fit .*Got 0, 1"),
        ((states(6, width=5), ["ant", "bee"] * 3), "must have states of width 4, like X. Got 5"),
        ((spoiled(2, math.nan, n=6), ["ant", "bee"] * 3), r"calibration.* must be finite. Got NaN, first in row 2"),
        ((states(6), ["ant", "bee"]), "must have one value for each of 6 inputs. Got 2"),
        ((states(0), []), r"0 sample\(s\)"),
        ((states(6),), "'calibration' of SDMClassifier.fit must be LabelledStates or"),
        (7, "'calibration' of SDMClassifier.fit must be LabelledStates or"),
        (LabelledStates(states(6), ["ant", "wasp"] * 3), "Got 'wasp'"),
        (
            LabelledStates(states(6), ["ant", "bee"] * 3, ids=["a"] * 6),
            "'ids' of .* must be unique. Got 'a' more than once",
        ),
    ],
)
def test_bad_calibration_sets(unchanged, calibration, message):
    with pytest.raises(TorchSDMError, match=message):
        unchanged.fit(states(), LABELS, calibration=calibration)


# --- Before fit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SDMClassifier, SDMEnsemble])
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("decide", (states(),)),
        ("predict", (states(),)),
        ("predict_proba", (states(),)),
        ("explain", (states(),)),
        ("recalibrate", (0.9,)),
        ("add_exemplars", (states(), LABELS)),
        ("remove_exemplars", ([0],)),
        ("relabel_exemplars", ([0], ["ant"])),
        ("save", ("nowhere",)),
    ],
)
def test_before_fit(kind, method, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFittedError, match=rf"This {kind.__name__} is not fitted yet: call fit before \w+") as caught:
        getattr(kind(), method)(*arguments)
    assert isinstance(caught.value, TorchSDMError)
    assert list(tmp_path.iterdir()) == []


def test_learned_attributes_before_fit():
    for name in ("region_", "regions_", "support_", "model_"):
        with pytest.raises(NotFittedError, match="call fit before"):
            getattr(SDMClassifier(), name)


def test_a_first_fit_that_fails_leaves_nothing():
    classifier = SDMClassifier(**QUICK)
    with pytest.raises(InvalidInputError):
        classifier.fit(states(), ["ant"] * 20)
    assert not [name for name in vars(classifier) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        classifier.decide(states())


# --- Updates ---------------------------------------------------------------------------------------------------------


def a_name(classifier):
    """The id of a point of the support."""
    return classifier.model_.examples.all()[0][0]


def another(classifier):
    """The id of a calibration point."""
    return classifier.model_.calibration.known.examples.all()[0][0]


PAIR = ["ant", "bee"]


@pytest.mark.parametrize(
    ("method", "call", "message"),
    [
        (
            "add_exemplars",
            lambda c: c(spoiled(3, math.nan), LABELS),
            "^'X' of {} must be finite. Got NaN, first in row 3",
        ),
        ("add_exemplars", lambda c: c(states(width=3), LABELS), "X has 3 features, but SDMClassifier is expecting 4"),
        ("add_exemplars", lambda c: c(np.empty((0, 4)), []), r"0 sample\(s\)"),
        ("add_exemplars", lambda c: c(states(), LABELS[:5]), "'y' of {} must have one value for each of 20"),
        ("add_exemplars", lambda c: c(states(2), ["wasp", None]), "'y' of {} must .*Got None; leave unlabelled"),
        ("add_exemplars", lambda c: c(states(2), [math.nan, 1.0]), "'y' of {} must .*Got nan; leave unlabelled"),
        ("add_exemplars", lambda c: c(states(2), [["ant"], ["bee"]]), "'y' of {}"),
        ("add_exemplars", lambda c: c(states(2), PAIR, ids=["a", "a"]), "'ids' of {} must be unique. Got 'a'"),
        ("add_exemplars", lambda c: c(states(2), PAIR, ids=[a_name(c.__self__), "b"]), "'ids'.* Got 'row-"),
        ("add_exemplars", lambda c: c(states(2), PAIR, texts=["a"]), "'texts' of {} must have one value"),
        ("remove_exemplars", lambda c: c(["none"]), "'ids' of {} must name points of the support. Got 'none'"),
        ("remove_exemplars", lambda c: c([another(c.__self__)]), "calibration points are not part"),
        ("remove_exemplars", lambda c: c(c.__self__.model_.examples.all()[0]), "must leave at least one point"),
        ("relabel_exemplars", lambda c: c([a_name(c.__self__), "none"], PAIR), "Got 'none', which is not one"),
        ("relabel_exemplars", lambda c: c([a_name(c.__self__)], PAIR), "'y' of {} must have one value for each of 1"),
        ("relabel_exemplars", lambda c: c([a_name(c.__self__)], [None]), "'y' of {} must .*Got None"),
        ("relabel_exemplars", lambda c: c([a_name(c.__self__)], 3), "'y' of {}"),
        ("recalibrate", lambda c: c(min_class_count=-1), "'min_class_count' of {} must be"),
        ("recalibrate", lambda c: c(min_class_count=1.5), "'min_class_count' of {} must be an integer. Got 1.5"),
        ("explain", lambda c: c(states(), k=0), "'k' of {} must be positive. Got 0"),
        ("save", lambda c: c(__file__), "is a file; a model needs a directory"),
    ],
)
def test_refused_updates_lose_nothing(unchanged, method, call, message):
    with pytest.raises(TorchSDMError, match=message.format(f"SDMClassifier.{method}")):
        call(getattr(unchanged, method))


def test_class_labels_and_labels_outside_may_be_mixed_in_one_call():
    classifier = SDMClassifier(**QUICK).fit(states(), [3, 7] * 10)
    n = len(classifier.support_)
    classifier.add_exemplars(states(3, seed=1), [3, "other", 7], allow_new_labels=True)
    assert classifier.support_.labels[n:].tolist() == [0, 2, 1]  # the 3 is the class 3, not a label "3"
    assert classifier._codes.decode(classifier.support_.labels)[n:] == [3, "other", 7]
