"""An exported model decides as the library does, with NumPy alone."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.arithmetic.exact import invariant_linear
from torchsdm.errors import ModelFileError, NotFittedError
from torchsdm.model import sdm_numpy
from torchsdm.wording import UNPROMISED

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

EXACT = ("predictions", "admitted", "lane", "reason", "certified", "logits", "similarity", "nearest_distance")
EXACT += ("nearest_index", "distance_quantile", "class_distance_quantile")
REAL = ("confidence", "probabilities", "rescaled_similarity", "score")
QUICK = {"n_filters": 12, "n_rounds": 1, "training": "sdm", "max_epochs": 8, "learning_rate": 1e-2, "random_state": 0}


def exported(classifier, folder):
    classifier.export_numpy(folder)
    return sdm_numpy.load(folder)


def assert_same(found, expected):
    """Bit by bit what is defined to the bit, and the rest to a relative 1e-13; decisions must not differ."""
    assert len(found) == len(expected) > 0
    for name in EXACT:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        assert getattr(found, name).dtype.kind == getattr(expected, name).dtype.kind, name
    for name in REAL:
        value = getattr(expected, name)
        value = np.full(len(expected), np.nan) if value is None else value
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-13, atol=0, err_msg=name)


@pytest.fixture(scope="module")
def digits():
    """1,797 small pictures; their labels are words."""
    X, y = load_digits(return_X_y=True)
    return X, np.array(["even", "odd"])[y % 2], np.array([f"digit {n}" for n in y])


@pytest.fixture(scope="module")
def certified(digits):
    X, y, _ = digits
    classifier = SDMClassifier(0.9, **QUICK).fit(X[:1200], y[:1200])
    assert classifier.certificate_.found and classifier.region_.found
    return classifier


def test_classes_that_share_a_threshold_say_so(certified, digits, tmp_path):
    groups = tuple(replace(g, class_number=None, classes=(0, 1)) for g in certified.certificate_.groups[:1])
    pooled = copy.copy(certified)
    pooled.certificate_ = replace(certified.certificate_, groups=groups)
    found, expected = (one.decide(digits[0][1200:1300]).reason for one in (exported(pooled, tmp_path), pooled))
    assert found.tolist() == expected.tolist() and any("pooled with 1 other" in one for one in found)


def strangers(X, seed=0):
    """Random pictures, pictures with noise, and pictures far away."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.3, X.shape)
    return np.concatenate([rng.uniform(0, 16, (1000, X.shape[1])), X * (1 + noise), X[:50] + 1000])


# --- Equal decisions -------------------------------------------------------------------------------------------------


def test_thousands_of_real_and_random_inputs(certified, digits, tmp_path):
    model, X = exported(certified, tmp_path / "out"), digits[0]
    assert_same(model.decide(X), certified.decide(X))
    others = strangers(X)
    found = model.decide(others)
    assert_same(found, certified.decide(others))
    assert set(found.lane) == {"trusted", "certified", "review", "unfamiliar"}  # so that all of them are compared
    assert len(X) + len(others) > 4500


@pytest.mark.parametrize("mode", ["class", "exemplars"])
def test_a_model_that_was_shown_background(digits, tmp_path, mode):
    X, y, _ = digits
    background = np.random.default_rng(0).uniform(0, 16, (100, X.shape[1]))
    classifier = SDMClassifier(0.9, background_as=mode, **QUICK).fit(X[:1200], y[:1200], background=background)
    model, others = exported(classifier, tmp_path / "out"), strangers(X)
    found, expected = model.decide(others), classifier.decide(others)
    assert_same(found, expected)
    np.testing.assert_array_equal(found.background, expected.background)
    assert 0.2 < found.background.mean() < 0.9


def test_ten_classes_of_which_some_have_no_calibration_points(digits, tmp_path):
    X, _, y = digits
    classifier = SDMClassifier((0.7, 0.6), control="predictions", **{**QUICK, "learning_rate": 1e-4}).fit(
        X[:600], y[:600]
    )
    model = exported(classifier, tmp_path)
    assert not model.arrays["ecdf_sizes"].all()
    assert_same(model.decide(X), classifier.decide(X))


@pytest.mark.parametrize(
    "settings",
    [
        {"adaptor": "identity", "learning_rate": 0.1},
        {"standardization": "scalar", "policy": "trusted"},
        {"control": "predictions", "alpha": (0.95, 0.85)},
        {"control": "all", "alpha": 0.8, "familiarity": 0.3},
        {"certification_size": None},  # the paper's protocol
        {"certification_size": None, "min_class_count": 400},  # without a region
        {"alpha": 0.999},  # without a certificate
        {"alpha": 0.7, "delta": 0.3},  # windows
    ],
    ids=str,
)
def test_every_kind_of_rule(digits, tmp_path, settings):
    X, y, _ = digits
    classifier = SDMClassifier(**{"alpha": 0.9, **QUICK, **settings}).fit(X[:600], y[:600])
    inputs = np.concatenate([X, strangers(X, seed=1)[::3]])
    assert_same(exported(classifier, tmp_path).decide(inputs), classifier.decide(inputs))


@pytest.mark.parametrize("found", [True, False])
def test_windows_decide_what_is_trusted(digits, tmp_path, found):
    X, y, _ = digits
    classifier = SDMClassifier(0.7, delta=0.3, **QUICK).fit(X[:1200], y[:1200])
    assert classifier.certificate_.windows
    nowhere = np.full(2, np.inf)
    classifier.certificate_ = replace(
        classifier.certificate_, found=found, **({} if found else {"thresholds": nowhere})
    )
    expected = classifier.decide(X)
    assert_same(exported(classifier, tmp_path).decide(X), expected)
    assert ("certified" in expected.lane) == found
    assert any("at every level of evidence" in one for one in expected.reason[expected.lane == "trusted"])


def test_points_on_a_threshold(certified, digits, tmp_path):
    """Thresholds are values of calibration points, which the last bits of exp and log must not turn away."""
    X = digits[0][:1200]
    rows = np.setdiff1d(np.arange(1200), certified.certification_rows_)
    expected = certified.decide(X[rows])
    made = certified.certificate_
    thresholds = [*made.thresholds, *made.window_thresholds, *certified.region_.thresholds.tolist()]
    values = np.concatenate([expected.score, expected.confidence])
    assert np.isin(thresholds, values).any()
    assert_same(exported(certified, tmp_path).decide(X[rows]), expected)


def test_the_last_bits_below_a_threshold_make_no_difference():
    for threshold in (0.9, 1.0, 37.5):
        below = np.nextafter(np.nextafter(threshold, 0), 0)
        assert sdm_numpy._reaches(threshold, threshold) and sdm_numpy._reaches(below, threshold)
        assert not sdm_numpy._reaches(threshold * (1 - 1e-13), threshold)
    assert not sdm_numpy._reaches(1e300, np.inf)


def test_inputs_at_the_edge_of_the_familiar(digits, tmp_path):
    X, y, _ = digits
    classifier = SDMClassifier(0.9, certification_size=None, **QUICK).fit(X[:600], y[:600])
    quantiles = classifier.decide(X).class_distance_quantile
    classifier.familiarity = float(np.quantile(quantiles, 0.4, method="nearest"))
    assert (quantiles == classifier.familiarity).any()
    assert_same(exported(classifier, tmp_path).decide(X), classifier.decide(X))


def test_sums_half_way_between_two_numbers_are_rounded_as_in_the_library():
    half_way = 2.0**-24 * np.array([1, 3, -1, 5, 7])
    x, weight = np.stack([np.ones(5), half_way], axis=1), np.array([[1.0, 1.0], [-1.0, 1.0], [0.5, 0.5]])
    bias = np.array([0.0, 0.0, 2.0**-25])
    expected = invariant_linear(*(torch.from_numpy(values) for values in (x, weight, bias))).numpy()
    np.testing.assert_array_equal(sdm_numpy._linear(x, weight, bias), expected)
    assert expected[:2, 0].tolist() == [1, 1 + 2**-22]  # to even


def test_several_positions(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat([False, True], 150)
    X = rng.normal(size=(300, 3, 5)) + 2.5 * y[:, None, None]
    classifier = SDMClassifier(0.8, **QUICK).fit(X, y)
    model = exported(classifier, tmp_path)
    assert_same(model.decide(X), classifier.decide(X))
    with pytest.raises(ValueError, match=r"must have shape \(N, positions, 5\). Got \(300, 5\)"):
        model.decide(X[:, 0])


def test_neighbours_at_the_same_distance_are_taken_in_order(tmp_path):
    """On a grid of few integers every input has many neighbours at one distance, some of them itself."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (400, 3)).astype(float)
    y = (X.sum(axis=1) + rng.normal(size=400) > 4.5).astype(int)
    classifier = SDMClassifier(0.7, adaptor="identity", **{**QUICK, "learning_rate": 0.1}).fit(X, y)
    decisions = classifier.decide(X)
    assert_same(exported(classifier, tmp_path).decide(X), decisions)
    assert (decisions.nearest_distance == 0).any() and len(np.unique(decisions.similarity)) > 5


def test_a_row_does_not_depend_on_its_batch(certified, digits, tmp_path, monkeypatch):
    model, X = exported(certified, tmp_path), digits[0][1200:1400]
    whole = model.decide(X)
    monkeypatch.setattr(sdm_numpy, "_ELEMENTS", 5000)
    for field in ("similarity", "nearest_distance", "logits", "lane"):
        np.testing.assert_array_equal(getattr(model.decide(X), field), getattr(whole, field), err_msg=field)


def test_an_updated_model_is_exported_as_it_is(fitted, insects, tmp_path):
    fitted.relabel_exemplars([fitted.support_.ids[0], fitted.support_.ids[1]], ["moth", "ant"], allow_new_labels=True)
    fitted.remove_exemplars([fitted.support_.ids[2]])
    model = exported(fitted, tmp_path)
    assert_same(model.decide(insects.fresh), fitted.decide(insects.fresh))
    before = model.decide(insects.fresh)
    fitted.recalibrate()
    again = exported(fitted, tmp_path)  # over the first
    assert_same(again.decide(insects.fresh), fitted.decide(insects.fresh))
    assert (again.decide(insects.fresh).distance_quantile != before.distance_quantile).any()


def test_a_certificate_that_a_change_has_made_void_is_not_exported(certified, digits, tmp_path):
    certified.save(tmp_path / "model")
    changed = SDMClassifier.load(tmp_path / "model")
    changed.remove_exemplars(changed.support_.ids[:1])
    model = exported(changed, tmp_path / "out")
    assert_same(model.decide(digits[0]), changed.decide(digits[0]))
    assert model.promise == UNPROMISED["none"] and not model.decide(digits[0]).certified.any()


@pytest.mark.parametrize("labels", [[3, 7], [1.0, 2.0], [False, True], ["ja", "日本"]], ids=str)
def test_labels_keep_their_type(labels, tmp_path):
    rng = np.random.default_rng(0)
    numbers = np.repeat([0, 1], 40)
    X = rng.normal(size=(80, 3)) + 3 * numbers[:, None]
    for dtype in (None, object) if isinstance(labels[0], str) else (None,):
        y = np.array(labels, dtype=dtype)[numbers]
        classifier = SDMClassifier(0.8, **QUICK).fit(X, y)
        found = exported(classifier, tmp_path).decide(X).predictions
        assert found.tolist() == classifier.predict(X).tolist() and found.dtype == classifier.classes_.dtype


# --- Alone -----------------------------------------------------------------------------------------------------------

ALONE = """
import sys
from dataclasses import replace
from importlib.abc import MetaPathFinder

class OnlyNumpy(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"numpy", "sdm_numpy", *sys.stdlib_module_names}:
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, OnlyNumpy())
folder, inputs, output = sys.argv[1:]
sys.path.insert(0, folder)
import sdm_numpy
import numpy as np
model = sdm_numpy.load(folder)
found = model.decide(np.load(inputs))
np.savez(output, **{name: value.astype(str) if value.dtype == object else value for name, value in vars(found).items()})
print(model.promise)
assert not {"torch", "scipy", "torchsdm"} & set(sys.modules)
"""


def test_nothing_but_numpy_is_needed(certified, digits, tmp_path):
    certified.export_numpy(tmp_path / "exported")
    assert {path.name for path in (tmp_path / "exported").iterdir()} == {"sdm_model.npz", "sdm_numpy.py"}
    X = digits[0][1000:]
    np.save(tmp_path / "inputs.npy", X)
    words = [str(tmp_path / name) for name in ("exported", "inputs.npy", "output.npz")]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == certified.certificate_.holds_for(certified.classes_.tolist()) + "\n"
    output = np.load(tmp_path / "output.npz", allow_pickle=False)
    expected = certified.decide(X)
    for name in EXACT:
        np.testing.assert_array_equal(output[name], getattr(expected, name), err_msg=name)
    for name in REAL:
        np.testing.assert_allclose(output[name], getattr(expected, name), rtol=1e-13, err_msg=name)


def test_no_ids_and_no_texts_leave_the_house(fitted, tmp_path):
    fitted.export_numpy(tmp_path)
    content = (tmp_path / "sdm_model.npz").read_bytes()
    for secret in ("row-", "text "):
        assert secret.encode() not in content and secret.encode("utf-32-le") not in content
    settings = json.loads(str(np.load(tmp_path / "sdm_model.npz", allow_pickle=False)["settings"]))
    assert settings["classes"]["values"] == ["ant", "bee", "cat"]


# --- What is refused -------------------------------------------------------------------------------------------------


def test_inputs_of_another_kind_are_refused(certified, digits, tmp_path):
    model, X = exported(certified, tmp_path), digits[0][:3]
    for wrong in (X[:, :5], X[0], X[:0], X[None]):
        with pytest.raises(ValueError, match=r"must have shape \(N, 64\). Got"):
            model.decide(wrong)
    for value in (np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match="must be finite in float32"):
            model.decide(np.where(np.arange(64) == 3, value, X))
    with pytest.raises(ValueError, match="exemplars made from them are not finite"):
        model.decide(np.full((1, 64), 3e38))


def test_a_file_of_another_version_is_refused(certified, tmp_path, monkeypatch):
    certified.export_numpy(tmp_path)
    monkeypatch.setattr(sdm_numpy, "FORMAT_VERSION", 4)
    with pytest.raises(
        ValueError, match=r"is not an export of version 4. Read it with the sdm_numpy.py written beside"
    ):
        sdm_numpy.load(tmp_path)
    np.savez(tmp_path / "sdm_model.npz", X=np.zeros(3))
    with pytest.raises(ValueError, match="is not an export"):
        sdm_numpy.load(tmp_path)


def test_what_cannot_be_exported_says_so(certified, tmp_path):
    with pytest.raises(NotFittedError, match="call fit before export_numpy"):
        SDMClassifier().export_numpy(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ModelFileError, match="file cannot be written"):
        certified.export_numpy(tmp_path / "file")
    assert not hasattr(SDMEnsemble, "export_numpy")
