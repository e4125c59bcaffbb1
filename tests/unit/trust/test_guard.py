"""The drift guard against a slow loop version, and its life: blocks, alarm, reset, saving, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest

from small import small_settings
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError, NotFittedError
from torchsdm.trust import DriftGuard, GuardReset
from torchsdm.trust.guard import SIGNALS, _bet, _digest, _strangeness

N_CALIBRATION = 60


def draw(rng, n, shift=0.0):
    """Decisions with many ties: distances and confidences of one decimal, q often 0."""
    distance = (rng.gamma(3, 1, n) + shift).round(1)
    confidence = (1 / (1 + np.exp(distance - 3 + rng.normal(size=n)))).round(1)
    return SimpleNamespace(nearest_distance=distance, confidence=confidence, similarity=rng.poisson(3, n))


def rows(decisions, chosen):
    return SimpleNamespace(**{name: values[chosen] for name, values in vars(decisions).items()})


def make_guard(known, seed=0, **settings):
    return DriftGuard(known.nearest_distance, known.confidence, known.similarity, seed=seed, **settings)


@pytest.fixture
def known():
    return draw(np.random.default_rng(1), N_CALIBRATION)


@pytest.fixture
def stream():
    """150 calm inputs, then 150 that are farther away."""
    rng = np.random.default_rng(2)
    calm, strange = draw(rng, 150), draw(rng, 150, shift=3.0)
    return SimpleNamespace(
        **{name: np.concatenate([getattr(calm, name), getattr(strange, name)]) for name in vars(calm)}
    )


@pytest.fixture
def raised(known, stream):
    guard = make_guard(known)
    guard.update(stream)
    return guard


def state_of(guard):
    return json.loads(guard.to_json())


# --- Against the definition ------------------------------------------------------------------------------------------


def reference_p_values(known, stream, uniforms):
    """One input after the other, every earlier score looked at."""
    scores = [lambda d: d.nearest_distance, lambda d: -d.confidence, lambda d: 1.0 * (np.asarray(d.similarity) == 0)]
    p = np.empty((3, len(stream.similarity)))
    for signal, score in enumerate(scores):
        bag = list(score(known))
        for t, z in enumerate(score(stream)):
            bag.append(z)
            p[signal, t] = (sum(x > z for x in bag) + uniforms[t, signal] * sum(x == z for x in bag)) / len(bag)
    return p


def reference_martingale(p):
    """M_t of one signal as the double sum over bets and turning points, in plain numbers."""

    def reserve(t):
        return 0.5 * (t + 1) ** -0.2 if t else 1.0

    bets = [lambda x, a=a: a * x ** (a - 1) for a in (0.25, 0.5, 0.75)]
    bets += [lambda x, b=b: b * (1 - x) ** (b - 1) for b in (2, 4)]
    values = []
    for t in range(1, len(p) + 1):
        total = reserve(t)
        for bet in bets:
            for s in range(1, t + 1):
                gains = [0.05 + 0.95 * bet(x) for x in p[s - 1 : t]]
                total += (reserve(s - 1) - reserve(s)) / len(bets) * math.prod(gains)
        values.append(total)
    return np.array(values)


def test_p_values_and_martingale_are_those_of_the_definition(known, stream):
    first = rows(stream, slice(100, 190))
    guard = make_guard(known, seed=5)
    values = guard.update(first)
    p = reference_p_values(known, first, 1 - np.random.default_rng(np.random.PCG64(5)).random((90, 3)))
    martingales = np.array([reference_martingale(row) for row in p])
    np.testing.assert_allclose(values, np.log(martingales.max(axis=0) / 3), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(list(guard.log_martingales.values()), np.log(martingales[:, -1]), rtol=1e-10)
    assert list(guard.log_martingales) == ["nearest_distance", "confidence", "similarity"]
    assert guard.log_martingale == values[-1]


def test_p_values_of_later_blocks_count_earlier_ones(known, stream):
    guard = make_guard(known, seed=5)
    guard.update(rows(stream, slice(0, 200)))
    p = guard._p_values(np.array([[4.0, 2.0], [-0.3, -0.5], [0.0, 1.0]]))
    uniforms = 1 - np.random.default_rng(np.random.PCG64(5)).random((202, 3))
    two = SimpleNamespace(nearest_distance=[4.0, 2.0], confidence=[0.3, 0.5], similarity=[2, 0])
    joined = SimpleNamespace(**{n: np.append(getattr(stream, n)[:200], getattr(two, n)) for n in vars(two)})
    np.testing.assert_allclose(p, reference_p_values(known, joined, uniforms)[:, 200:], rtol=1e-14)


@pytest.mark.parametrize("n_seen", [0, 1, 10_000])
def test_a_step_is_fair(n_seen):
    """The mean over a uniform p of what one step leaves is what was there: the integral, with p = v^8 for the pole."""
    v = (np.arange(20_000) + 0.5) / 20_000
    money = np.zeros(5) if n_seen == 0 else np.array([0.3, 2.0, 0.01, 0.5, 7.0])
    with np.errstate(divide="ignore"):
        log_bets = np.log(np.tile(money, (len(v), 1)))
    log_martingales = np.empty((len(v), 1))
    _bet(v[:, None] ** 8, n_seen, log_bets, log_martingales)
    reserve = 0.5 * (n_seen + 1) ** -0.2 if n_seen else 1.0
    mean = (np.exp(log_martingales[:, 0]) * 8 * v**7).mean()
    assert mean == pytest.approx(reserve + money.sum(), rel=1e-6)


def test_every_order_of_calibration_is_the_same_guard(known, stream):
    turned = make_guard(rows(known, np.random.default_rng(0).permutation(N_CALIBRATION)))
    guard = make_guard(known)
    np.testing.assert_array_equal(turned.update(stream), guard.update(stream))
    assert turned.fingerprint == guard.fingerprint


def test_by_default_no_two_guards_break_ties_alike_and_a_saved_one_goes_on_as_it_would(known, stream):
    one, other = (DriftGuard(*(getattr(known, name) for name in SIGNALS)) for _ in range(2))
    assert one.seed != other.seed and max(one.seed, other.seed) < 2**53
    one.update(rows(stream, slice(0, 100)))
    restored = DriftGuard.from_json(one.to_json())
    rest = rows(stream, slice(100, 200))
    np.testing.assert_array_equal(restored.update(rest), one.update(rest))


def test_without_points_inputs_are_ranked_among_themselves(stream):
    nothing = SimpleNamespace(**dict.fromkeys(SIGNALS, np.empty(0)))
    first = rows(stream, slice(100, 190))
    guard = make_guard(nothing)
    values = guard.update(first)
    p = reference_p_values(nothing, first, 1 - np.random.default_rng(np.random.PCG64(0)).random((90, 3)))
    expected = np.max([reference_martingale(row) for row in p], axis=0)
    np.testing.assert_allclose(values, np.log(expected / 3), rtol=1e-10, atol=1e-10)
    assert guard.n_known == 0


def test_the_seed_breaks_ties(known, stream):
    one, same, other = (make_guard(known, seed=seed).update(stream) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# --- The stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 64])
def test_blocks_change_nothing(known, stream, raised, size):
    whole = make_guard(known)
    values = whole.update(stream)
    guard = make_guard(known)
    parts = [guard.update(rows(stream, slice(start, start + size))) for start in range(0, 300, size)]
    np.testing.assert_array_equal(np.concatenate(parts), values)
    assert guard.to_json() == whole.to_json() == raised.to_json()


def test_a_stream_of_single_inputs_is_kept_in_few_runs(known, stream):
    """Then an input costs about as much after a million others as at the start."""
    guard = make_guard(known)
    for start in range(300):
        guard.update(rows(stream, slice(start, start + 1)))
    lengths = [run.shape[1] for run in guard._runs]
    assert sum(lengths) == 300 and len(lengths) > 1  # not all sorted again for every input
    assert all(longer > 2 * shorter for longer, shorter in pairwise(lengths))


def test_an_empty_block_changes_nothing(known, stream, raised):
    before = raised.to_json()
    assert raised.update(rows(stream, slice(0, 0))).shape == (0,)
    assert raised.to_json() == before
    fresh = make_guard(known)
    assert fresh.update(rows(stream, slice(0, 0))).shape == (0,)
    assert (fresh.n_seen, fresh.raised) == (0, False)


def test_the_alarm_stays(known, stream):
    guard = make_guard(known, false_alarm=0.02)
    assert guard.log_threshold == pytest.approx(math.log(50))
    values = guard.update(stream)
    first = int(np.flatnonzero(values >= math.log(50))[0]) + 1
    assert 150 < first < 200
    assert (guard.raised, guard.raised_at, guard.n_seen) == (True, first, 300)
    assert guard.raised_by == "nearest_distance"
    rng = np.random.default_rng(3)
    later = guard.update(draw(rng, 3000))
    assert later[-1] < math.log(50)  # calm again, but nobody has reset it
    assert (guard.raised, guard.raised_at, guard.n_seen) == (True, first, 3300)
    assert "raised at input" in repr(guard)


@pytest.mark.parametrize(
    ("signal", "strange"), [("nearest_distance", 30.0), ("confidence", 0.001), ("similarity", 0)]
)  # fmt: skip
def test_each_signal_can_raise_it(known, signal, strange):
    known.similarity = np.maximum(known.similarity, 1)
    guard = make_guard(known)
    calm = draw(np.random.default_rng(4), 30)
    calm.similarity = np.maximum(calm.similarity, 1)
    guard.update(calm)
    assert not guard.raised
    setattr(calm, signal, np.full(30, strange))
    guard.update(calm)
    assert guard.raised_by == signal


@pytest.mark.parametrize(
    ("signal", "ordinary"), [("nearest_distance", 0.0), ("confidence", 1.0), ("similarity", 1000)]
)  # fmt: skip
def test_ordinary_inputs_do_not_raise_it(known, signal, ordinary):
    guard = make_guard(known)
    calm = draw(np.random.default_rng(5), 200)
    setattr(calm, signal, np.full(200, ordinary))
    guard.update(calm)
    assert guard.log_martingales[signal] < 0


def test_a_reset_starts_an_empty_stream(known, stream, raised):
    raised_at = raised.raised_at
    raised.reset("the new source was added to the training data")
    assert raised.resets == (GuardReset("the new source was added to the training data", 300, raised_at),)
    assert (raised.raised, raised.raised_at, raised.raised_by, raised.n_seen) == (False, None, None, 0)
    assert raised.log_martingale == pytest.approx(-math.log(3))
    again = raised.update(stream)
    assert raised.raised
    first_time = make_guard(known).update(stream)
    assert (again != first_time).any()  # new random numbers
    uniforms = 1 - np.random.default_rng(np.random.PCG64(0)).random((310, 3))[300:]
    p = reference_p_values(known, rows(stream, slice(0, 10)), uniforms)
    expected = np.max([reference_martingale(row) for row in p], axis=0)
    np.testing.assert_allclose(again[:10], np.log(expected / 3), rtol=1e-10, atol=1e-10)
    raised.reset("once more")
    assert [reset.reason for reset in raised.resets][1:] == ["once more"]


@pytest.mark.parametrize("reason", ["", "  ", None, 3])
def test_a_reset_needs_a_reason(raised, reason):
    with pytest.raises(InvalidInputError, match="'reason' of DriftGuard"):
        raised.reset(reason)
    assert raised.raised


def test_no_overflow_however_strange_or_long():
    rng = np.random.default_rng(6)
    n = 200_000
    guard = make_guard(draw(rng, 1000))
    endless = SimpleNamespace(
        nearest_distance=10 + np.arange(n), confidence=1 / (2 + np.arange(n)), similarity=np.ones(n)
    )
    values = guard.update(endless)
    assert np.isfinite(values).all() and values[-1] > 1e6
    dull = SimpleNamespace(nearest_distance=np.zeros(n), confidence=np.ones(n), similarity=np.ones(n))
    assert np.isfinite(guard.update(dull)).all()
    assert DriftGuard.from_json(guard.to_json()).to_json() == guard.to_json()


# --- Saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 40, 170])
def test_a_restored_guard_continues_to_the_bit(known, stream, stop, tmp_path):
    whole = make_guard(known, seed=9, false_alarm=0.05)
    whole.update(rows(stream, slice(0, 33)))
    whole.reset("a trial")
    guard = DriftGuard.from_json(whole.to_json())
    values = whole.update(stream)
    before = guard.update(rows(stream, slice(0, stop)))
    guard.save(tmp_path / "guard.json")
    restored = DriftGuard.load(tmp_path / "guard.json", fingerprint=guard.fingerprint)
    assert restored.to_json() == guard.to_json()
    assert (restored.n_seen, restored.raised_at, restored.resets) == (stop, guard.raised_at, whole.resets)
    assert restored.log_martingale == guard.log_martingale
    np.testing.assert_array_equal(np.append(before, restored.update(rows(stream, slice(stop, None)))), values)
    assert restored.to_json() == whole.to_json()
    restored.reset("done")
    whole.reset("done")
    assert restored.to_json() == whole.to_json()


def test_saving_replaces_the_file_in_one_step(raised, tmp_path):
    path = tmp_path / "guard.json"
    raised.save(path)
    first = path.read_text(encoding="utf-8")
    raised.reset("all is well")
    raised.save(path)
    assert path.read_text(encoding="utf-8") != first
    assert [entry.name for entry in tmp_path.iterdir()] == ["guard.json"]
    with pytest.raises(ModelFileError, match="cannot be written"):
        raised.save(tmp_path / "nowhere" / "guard.json")


def test_the_json_is_strict(known):
    json.loads(make_guard(known).to_json(), parse_constant=pytest.fail)


def test_a_damaged_file_is_refused(raised, tmp_path):
    path = tmp_path / "guard.json"
    text = raised.to_json()
    for broken in (text[: len(text) // 2], "", "[]", "{}", "\udcff"):
        path.write_text(broken, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(ModelFileError, match=r"guard\.json"):
            DriftGuard.load(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        DriftGuard.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raised_at": None}, "damaged"),
        ({"false_alarm": 0.5}, "damaged"),
        ({"seed": float("nan")}, "damaged: Out of range float values are not JSON"),
        ({"kind": "torchsdm model"}, "not a torchsdm drift guard"),
        ({"format": 2}, "has format 2; this version of torchsdm reads 1"),
    ],
)
def test_a_changed_file_is_refused(raised, change, message):
    with pytest.raises(ModelFileError, match=message):
        DriftGuard.from_json(json.dumps(state_of(raised) | change))


def test_points_of_another_name_are_refused(raised):
    state = {**state_of(raised), "fingerprint": "0" * 64}
    state.pop("digest")
    with pytest.raises(ModelFileError, match="its fingerprint is not that of its points"):
        DriftGuard.from_json(json.dumps({**state, "digest": _digest(state)}), "0" * 64)


def test_a_file_of_another_calibration_set_is_refused(known, raised, tmp_path):
    known.confidence[0] += 0.05
    other = make_guard(known)
    assert other.fingerprint != raised.fingerprint
    raised.save(tmp_path / "guard.json")
    with pytest.raises(ModelFileError, match="other scores"):
        DriftGuard.load(tmp_path / "guard.json", fingerprint=other.fingerprint)


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"nearest_distance": [1.0, math.nan]}, InvalidInputError, "'nearest_distance' .* Got NaN, first in row 1"),
        ({"confidence": [math.inf, 0.5]}, InvalidInputError, "'confidence' of DriftGuard.update must be finite"),
        ({"confidence": [0.5]}, InvalidInputError, "'confidence' .* one value for each of 2 inputs. Got 1"),
        ({"similarity": [[1, 2]]}, InvalidInputError, "'similarity' .* must have shape"),
        ({"similarity": None}, InvalidTypeError, "without 'similarity'"),
        ({"nearest_distance": ["a", "b"]}, InvalidTypeError, "'nearest_distance' .* numeric"),
    ],
)
def test_bad_decisions_are_refused_and_leave_the_guard_alone(raised, change, error, message):
    before = raised.to_json()
    good = {"nearest_distance": [1.0, 2.0], "confidence": [0.5, 0.6], "similarity": [1, 0]}
    with pytest.raises(error, match=message):
        raised.update(SimpleNamespace(**(good | change)))
    assert raised.to_json() == before


def test_distances_beyond_float32_are_the_strangest_not_refused(known):
    guard = make_guard(known)
    far = SimpleNamespace(nearest_distance=[1e39, math.inf], confidence=[0.9, 0.9], similarity=[3, 3])
    p = guard._p_values(_strangeness(vars(far), "a test"))[0]
    n_ranked = N_CALIBRATION + np.array([1, 2])
    np.testing.assert_allclose(p, (1 - np.random.default_rng(0).random((2, 3))[:, 0]) / n_ranked, rtol=1e-14)
    guard.update(far)
    assert DriftGuard.from_json(guard.to_json()).to_json() == guard.to_json()


def test_what_is_no_decision_is_refused(raised):
    with pytest.raises(InvalidTypeError, match="needs decisions of an SDM estimator"):
        raised.update(np.ones((3, 4)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], [0.5, 0.5], [1]), InvalidInputError, "'calibration_confidence' of DriftGuard must have one value"),
        (([math.nan], [0.5], [1]), InvalidInputError, "'calibration_distance' of DriftGuard must be finite"),
        (([1.0], [0.5], [1], 0.0), InvalidInputError, "'false_alarm' of DriftGuard must be positive"),
        (([1.0], [0.5], [1], 1.0), InvalidInputError, r"'false_alarm' of DriftGuard must be in \(0, 1\)"),
        (([1.0], [0.5], [1], "0.1"), InvalidTypeError, "'false_alarm'"),
        (([1.0], [0.5], [1], 0.1, -1), InvalidInputError, "'seed' of DriftGuard"),
        (([1.0], [0.5], [1], 0.1, 0.5), InvalidTypeError, "'seed' of DriftGuard must be an integer"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        DriftGuard(*arguments)


# --- From a classifier -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 3)) + 2 * y[:, None]
    settings = small_settings(n_filters=4, n_rounds=2, max_epochs=3)
    return SDMClassifier(alpha=0.8, certification_size=None, **settings).fit(X, y, keep_rounds=True)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
class TestFromClassifier:
    def test_it_compares_with_no_points_that_something_else_saw(self, classifier):
        """Calibration chose the epoch; its scores only name the model."""
        guard = DriftGuard.from_classifier(classifier, false_alarm=0.2, seed=3)
        assert "compared with 0 points and each other" in repr(guard)
        assert guard.n_known == 0 and (guard.false_alarm, guard.seed) == (0.2, 3)
        assert guard.fingerprint == make_guard(classifier.model_.calibration).fingerprint
        assert DriftGuard.from_json(guard.to_json(), guard.fingerprint).to_json() == guard.to_json()
        rng = np.random.default_rng(1)
        assert guard.update(classifier.decide(rng.normal(size=(200, 3)) + 1)).shape == (200,) and not guard.raised
        guard.update(classifier.decide(rng.normal(size=(50, 3)) + 40))
        assert guard.raised and 200 < guard.raised_at <= 220

    @pytest.mark.parametrize("is_loaded", [False, True])
    def test_a_known_point_decided_again_ties_with_itself(self, is_loaded, tmp_path):
        """To the bit: else inputs of the stream would rank before or after points that are equal to them."""
        rng = np.random.default_rng(3)
        y = rng.integers(0, 2, 400)
        X = (rng.normal(size=(400, 3)) + 3 * y[:, None]).astype(np.float32)
        settings = small_settings(n_filters=4)
        clf = SDMClassifier(alpha=0.8, certification_size=None, **settings)
        clf.fit(X[:200], y[:200], certification=(X[200:], y[200:]))
        guard = DriftGuard.from_classifier(clf)
        if is_loaded:
            clf.save(tmp_path / "model")
            clf = SDMClassifier.load(tmp_path / "model")
        decided = [clf.decide(X[start : start + 50]) for start in range(200, 400, 50)]
        again = {name: np.concatenate([getattr(block, name) for block in decided]) for name in SIGNALS}
        np.testing.assert_array_equal(np.sort(_strangeness(again, "a test")), guard._calibration)
        assert DriftGuard.from_classifier(clf).fingerprint == guard.fingerprint

    def test_certified_answers_go_to_review_from_the_alarm_on(self):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 2, 1600)
        X = rng.normal(size=(1600, 8)) + np.where(y == 1, 2.0, -2.0)[:, None] * np.eye(8)[0]
        settings = small_settings(n_filters=16, max_epochs=10)
        clf = SDMClassifier(alpha=0.9, **settings).fit(X[:1000], y[:1000])
        drifting = X[1000:] + np.where(np.arange(600) < 300, 0, 3)[:, None] * np.eye(8)[1]
        decided = clf.decide(drifting)
        guard = DriftGuard.from_classifier(clf, seed=0)
        watched = guard.watch(decided)
        calm, strange = slice(0, guard.raised_at - 1), slice(guard.raised_at - 1, None)
        assert 300 < guard.raised_at < 400
        for part in (calm, strange):
            assert (decided.lane[part] == "certified").any() and decided.admitted[part].any()
        np.testing.assert_array_equal(watched.lane[calm], decided.lane[calm])
        np.testing.assert_array_equal(watched.admitted[calm], decided.admitted[calm])
        falls = decided.lane[strange] == "certified"
        np.testing.assert_array_equal(watched.lane[strange], np.where(falls, "review", decided.lane[strange]))
        np.testing.assert_array_equal(watched.admitted[strange], decided.admitted[strange] & ~falls)
        later = clf.decide(X[:100])
        assert (later.lane == "certified").any() and "certified" not in guard.watch(later).lane
        number, all_certified = np.arange(1, 601), np.full(600, "certified", dtype=object)
        every = replace(decided, lane=all_certified, certified=np.ones(600, bool), admitted=np.ones(600, bool))
        watched = DriftGuard.from_classifier(clf, seed=0).watch(every)
        np.testing.assert_array_equal(watched.admitted, number < guard.raised_at)  # the alarm's own input falls

    def test_every_input_that_is_decided_can_be_watched(self, classifier):
        far = classifier.decide(3e38 * np.array(list(product([-1, 1], repeat=3))))
        assert far.nearest_distance.max() > np.finfo(np.float32).max
        assert DriftGuard.from_classifier(classifier).update(far).shape == (8,)

    def test_a_text_classifier_is_looked_into(self, classifier):
        wrapped = SimpleNamespace(classifier_=classifier)
        assert DriftGuard.from_classifier(wrapped).fingerprint == DriftGuard.from_classifier(classifier).fingerprint

    def test_the_certification_set_is_preferred(self, classifier, known):
        certified = SimpleNamespace(model_=classifier.model_, certification_=known)
        assert DriftGuard.from_classifier(certified).fingerprint == make_guard(known).fingerprint

    @pytest.mark.parametrize("is_certified", [False, True])
    def test_after_an_update_the_points_are_decided_again(self, classifier, is_certified, tmp_path):
        rng = np.random.default_rng(2)
        classifier.save(tmp_path / "model")
        before = SDMClassifier.load(tmp_path / "model")
        if is_certified:
            before.recertify(rng.normal(size=(60, 3)) + 1, rng.integers(0, 2, 60))
        before.save(tmp_path / "before")
        updated = SDMClassifier.load(tmp_path / "before")
        updated.add_exemplars(rng.normal(size=(40, 3)), np.zeros(40, dtype=int))
        guard, earlier = DriftGuard.from_classifier(updated), DriftGuard.from_classifier(before)
        assert guard.fingerprint != earlier.fingerprint and guard.n_known == earlier.n_known == 60 * is_certified
        if is_certified:
            known = updated.model_.certification.points.exemplars
            nearest = updated.support_.neighbors(known, 1)[0][:, 0].numpy()
            np.testing.assert_array_equal(guard._calibration[0], np.sort(nearest))
            assert (guard._calibration[1] != earlier._calibration[1]).any()

    def test_other_things_are_refused(self, classifier):
        with pytest.raises(InvalidTypeError, match="Got SDMEnsemble; an ensemble has no certification set of its own"):
            DriftGuard.from_classifier(SDMEnsemble.from_classifier(classifier))
        with pytest.raises(NotFittedError):
            DriftGuard.from_classifier(SDMClassifier())
