"""Spot checks against a slow loop version, and their life: draws, verdicts, alarms, bounds, reset, saving, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq

from small import small_settings
from torchsdm import SDMClassifier, SpotCheck
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError
from torchsdm.trust import GuardReset
from torchsdm.wording import REASONS

TILTS = [4, 2, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]
DAY = 24 * 3600.0


def verdicts(rng, n, accuracy=0.9, labels=("ham", "spam", "eggs")):
    return rng.choice(labels, n).tolist(), (rng.random(n) < accuracy).tolist()


def make(target=0.9, **settings):
    return SpotCheck(target, ["ham", "spam", "eggs"], **settings)


def plain_state(checks):
    """The state as it comes back from a file."""
    return json.loads(json.dumps(checks.to_dict(), allow_nan=False))


def admitted(*values):
    return SimpleNamespace(admitted=np.array(values, dtype=bool))


# --- Against the definition ------------------------------------------------------------------------------------------


def reference_evidence(alpha, is_right):
    """M_t after every verdict as the double sum over tilts and turning points, in plain numbers."""

    def reserve(t):
        return 0.5 * (t + 1) ** -0.2 if t else 1.0

    values = []
    for t in range(1, len(is_right) + 1):
        total = reserve(t)
        for tilt in TILTS:
            mean = alpha * math.exp(-tilt) + 1 - alpha
            for s in range(1, t + 1):
                money = (reserve(s - 1) - reserve(s)) / len(TILTS)
                for right in is_right[s - 1 : t]:
                    money *= (math.exp(-tilt) if right else 1.0) / mean
                total += money
        values.append(total)
    return values


@pytest.mark.parametrize(("alpha", "accuracy"), [(0.9, 0.9), (0.95, 0.7), (0.6, 0.99)])
def test_the_evidence_is_what_the_docstring_defines(alpha, accuracy):
    labels, is_right = verdicts(np.random.default_rng(0), 60, accuracy)
    checks = make(alpha)
    for label, right in zip(labels, is_right, strict=True):
        checks.update([label], [right])
    for group in checks.groups:
        own = [right for label, right in zip(labels, is_right, strict=True) if group.prediction in (label, None)]
        assert (group.n_checked, group.n_wrong) == (len(own), len(own) - sum(own))
        assert group.accuracy == pytest.approx(sum(own) / len(own))
        assert group.log_evidence == pytest.approx(math.log(reference_evidence(alpha, own)[-1]), abs=1e-11)
    assert checks.n_checked == 60 and checks.n_wrong == 60 - sum(is_right)


def test_the_alarm_is_raised_by_the_first_verdict_that_reaches_the_share_of_a_group():
    labels, is_right = verdicts(np.random.default_rng(1), 80, 0.6)
    checks = make(0.9, false_alarm=0.04)
    raised = checks.update(labels, is_right)
    expected = {}
    for label, share in {"ham": 1 / 6, "spam": 1 / 6, "eggs": 1 / 6, None: 1 / 2}.items():
        rows = [row for row, one in enumerate(labels) if label in (one, None)]
        values = reference_evidence(0.9, [is_right[row] for row in rows])
        crossing = next((at for at, value in enumerate(values) if value >= 1 / (0.04 * share)), None)
        expected[label] = None if crossing is None else rows[crossing] + 1
    assert {group.prediction: group.raised_at for group in checks.groups} == expected
    assert [group.raised_at for group in raised] == sorted(at for at in expected.values() if at is not None)
    assert checks.raised_at == raised[0].raised_at and len(raised) > 1
    assert set(checks.raised_by) == {group.prediction for group in raised}
    assert all(group.log_threshold == pytest.approx(-math.log(0.04 / 6)) for group in checks.groups[:-1])
    assert checks.overall.log_threshold == pytest.approx(-math.log(0.02))
    assert checks.update(["ham"] * 5, [False] * 5) == () or "ham" not in expected  # an alarm is told once


@pytest.mark.parametrize(("n", "n_wrong"), [(1, 0), (1, 1), (40, 0), (40, 3), (40, 40), (3000, 150)])
def test_bounds_are_the_roots_of_the_mean_over_tilts(n, n_wrong):
    checks = make(0.9, confidence=0.9)
    checks.update(["spam"] * n, [False] * n_wrong + [True] * (n - n_wrong))

    def root(hits, level):
        def log_mean(a):
            return np.logaddexp.reduce([t * hits - n * math.log(1 + a * math.expm1(t)) for t in TILTS]) - math.log(8)

        return 0.0 if log_mean(0.0) < level else brentq(lambda a: log_mean(a) - level, 0, 1, xtol=1e-15)

    for group, share in ((checks.groups[1], 1 / 6), (checks.overall, 1 / 2)):
        level = -math.log(0.1 * share / 2)
        assert group.lower_bound == pytest.approx(root(n - n_wrong, level), abs=1e-12)
        assert group.upper_bound == pytest.approx(1 - root(n_wrong, level), abs=1e-12)
        assert 0 <= group.lower_bound <= group.accuracy <= group.upper_bound <= 1
    assert checks.groups[0].lower_bound == 0 and checks.groups[0].upper_bound == 1


def test_each_class_is_held_to_its_own_target_and_all_together_to_the_smallest():
    checks = make((0.99, 0.6, 0.9))
    assert [group.target for group in checks.groups] == [0.99, 0.6, 0.9, 0.6]
    checks.update(["ham", "spam"] * 30, [True, True, True, True, False, False] * 10)  # a third is wrong
    assert checks.raised_by == ("ham",)
    assert [group.name for group in checks.groups] == [
        *("prediction 'ham'", "prediction 'spam'", "prediction 'eggs'"),
        "all together",
    ]


# --- Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 250, 999])
def test_how_verdicts_are_cut_changes_nothing_to_the_bit(cut, monkeypatch):
    labels, is_right = verdicts(np.random.default_rng(2), 1000, 0.87)
    whole, cut_up = make(), make()
    raised = whole.update(labels, is_right)
    monkeypatch.setattr("torchsdm.trust.spot_check._BLOCK", 64)
    found = [
        group for at in range(0, 1000, cut) for group in cut_up.update(labels[at : at + cut], is_right[at : at + cut])
    ]
    assert cut_up.to_dict() == whole.to_dict() and cut_up.groups == whole.groups
    assert [group.raised_at for group in found] == [group.raised_at for group in raised] != []


def test_many_good_answers_do_not_hide_bad_ones_and_nothing_overflows():
    checks = make()
    checks.update(["ham"] * 1_000_000, np.arange(1_000_000) % 40 > 0)
    assert not checks.raised and checks.overall.log_evidence > -4
    assert 0.974 < checks.overall.lower_bound < 0.975 < checks.overall.upper_bound < 0.976
    checks.update(["ham"] * 100, [True, False] * 50)
    assert 1_000_000 < checks.raised_at <= 1_000_100
    checks.update(["ham"] * 100_000, np.zeros(100_000, dtype=bool))
    assert math.isfinite(checks.overall.log_evidence) and checks.overall.log_evidence > 1e5
    assert checks.overall.accuracy == pytest.approx(975_050 / 1_100_100)


def test_an_alarm_stays_until_somebody_resets_it():
    checks = make()
    assert "calm" in repr(checks)
    checks.update(["ham"] * 10, [False] * 10)
    at = checks.raised_at
    checks.update(["ham"] * 5000, [True] * 5000)
    assert checks.raised and checks.raised_at == at and "raised at verdict" in repr(checks)
    draws = checks.draw(admitted(*[True] * 200))
    checks.reset("the rule book had changed; certified again")
    assert checks.resets == (GuardReset("the rule book had changed; certified again", 5010, at),)
    assert (checks.raised, checks.raised_at, checks.raised_by, checks.n_checked) == (False, None, (), 0)
    assert checks.groups == make().groups
    assert (checks.draw(admitted(*[True] * 200)) != draws).any()  # the draws go on
    assert (checks.n_admitted, checks.n_drawn) == (400, make().draw(admitted(*[True] * 400)).sum())
    for reason in ("", "  ", None):
        with pytest.raises(InvalidInputError, match=r"'reason' of SpotCheck\.reset must say why the spot check"):
            checks.reset(reason)


# --- Drawing ---------------------------------------------------------------------------------------------------------


def test_only_admitted_answers_are_drawn_and_others_cost_no_number():
    rng = np.random.default_rng(3)
    mixed = rng.random(5000) < 0.5
    drawn, dense = make(rate=0.1).draw(admitted(*mixed)), make(rate=0.1).draw(admitted(*[True] * int(mixed.sum())))
    assert not drawn[~mixed].any()
    np.testing.assert_array_equal(drawn[mixed], dense)
    assert drawn.sum() == pytest.approx(250, abs=50)
    assert make(rate=1.0).draw(admitted(*mixed)).tolist() == mixed.tolist()
    assert (make(rate=0.1, seed=1).draw(admitted(*mixed)) != drawn).any()


@pytest.mark.parametrize("settings", [{"rate": 0.3}, {"per_week": 40}])
def test_how_decisions_are_cut_changes_no_draw(settings):
    mixed = np.random.default_rng(4).random(600) < 0.7
    days = np.repeat([0.0, DAY, 3 * DAY], 200)
    whole, cut_up = make(**settings), make(**settings)
    drawn = [whole.draw(admitted(*mixed[days == day]), day) for day in np.unique(days)]
    one_by_one = [cut_up.draw(admitted(one), day)[0] for one, day in zip(mixed, days, strict=True)]
    np.testing.assert_array_equal(np.concatenate(drawn), one_by_one)
    assert cut_up.to_dict() == whole.to_dict() and any(one_by_one)


@pytest.mark.parametrize("a_day", [[700] * 7, [0, 0, 4900, 0, 0, 0, 0], [2400, 0, 100, 0, 0, 2400, 0]])
def test_the_rate_follows_the_traffic_so_that_so_many_are_drawn_in_a_week(a_day):
    checks = make(per_week=50, rate=0.5)
    n_weeks, drawn, traffic = 60, [], 50 / 0.5
    for day in range(7 * n_weeks):
        drawn.append(checks.draw(admitted(*[True] * a_day[day % 7]), day * DAY).sum())
        traffic = traffic * math.exp(-1 / 7 if day else 0) + a_day[day % 7]
        assert checks.rate == pytest.approx(min(1.0, 50 / (traffic + 1)))
    most = 50 * (n_weeks + math.log(traffic / 100))
    assert sum(drawn) == pytest.approx(most, rel=0.06)
    assert sum(drawn[-28 * 7 :]) == pytest.approx(28 * 50, rel=0.08)


def test_with_few_answers_all_are_drawn_and_a_clock_that_is_set_back_is_no_matter():
    checks = make(per_week=50, rate=0.5)
    drawn = [checks.draw(admitted(*[True] * 3), week * 7 * DAY).sum() for week in range(12)]
    assert drawn[4:] == [3] * 8
    before = checks.to_dict()
    checks.draw(admitted(True), 0.0)
    assert checks.to_dict()["at"] == before["at"]
    for at in (None, math.nan):
        with pytest.raises(InvalidInputError, match=r"'at' of SpotCheck\.draw must be the time in seconds"):
            checks.draw(admitted(True), at)


# --- Demotion --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decisions():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1600)
    X = rng.normal(size=(1600, 8)) + np.where(y == 1, 2.0, -2.0)[:, None] * np.eye(8)[0]
    clf = SDMClassifier(alpha=0.9, **small_settings(n_filters=16, max_epochs=10)).fit(X[:1000], y[:1000])
    decided = clf.decide(X[1000:])
    lanes = np.array(["trusted", "certified", "review", "unfamiliar"], dtype=object)[np.arange(600) % 4]
    return replace(
        decided, lane=lanes, certified=np.isin(lanes, ["trusted", "certified"]), admitted=np.arange(600) % 4 < 2
    )


@pytest.mark.parametrize(("wrong", "lanes_of_1", "lanes_of_0"), [
    ([], {"trusted", "certified"}, {"trusted", "certified"}),
    ([1], set(), {"trusted", "certified"}),
    ([1, None], set(), {"trusted"}),
])  # fmt: skip
def test_an_alarm_takes_admission_from_what_it_is_about(decisions, wrong, lanes_of_1, lanes_of_0):
    checks = SpotCheck(0.9, [0, 1])
    if 1 in wrong:
        checks.update([0] * 400, [True] * 400)
        checks.update([1] * 20, [False] * 20)
        checks._raised_at[-1] = 420 if None in wrong else None
    assert checks.raised_by == tuple(wrong)
    after = checks.demote(decisions)
    for label, lanes in ((1, lanes_of_1), (0, lanes_of_0)):
        own = decisions.predictions == label
        assert set(after.lane[own & after.admitted]) == lanes
        assert set(after.lane[own & after.certified]) == (set() if None in wrong else lanes)  # it was an average
        assert set(after.lane[own]) == {"review", "unfamiliar"} | lanes
    fell = decisions.admitted & ~after.admitted
    assert set(after.lane[fell]) <= {"review"} and (after.reason[~fell] == decisions.reason[~fell]).all()
    of_one = REASONS["checks of one"].format(label=1)
    assert set(after.reason[fell]) == {of_one if label == 1 else REASONS["checks"] for label in wrong}
    without_lanes = replace(decisions, lane=None)
    assert checks.demote(without_lanes) is without_lanes


# --- Saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 150, 400])
@pytest.mark.parametrize("settings", [{}, {"per_week": 30, "seed": 5, "rate": 0.9, "confidence": 0.8}])
def test_restored_checks_continue_to_the_bit(stop, settings):
    labels, is_right = verdicts(np.random.default_rng(5), 400, 0.8)
    whole = make((0.9, 0.8, 0.95), **settings)
    whole.update(labels[:9], is_right[:9])
    whole.reset("a trial")
    checks = SpotCheck.from_dict(plain_state(whole))
    for one in (whole, checks):
        one.draw(admitted(*[True] * 30), 10.0)
    whole.update(labels, is_right)
    checks.update(labels[:stop], is_right[:stop])
    restored = SpotCheck.from_dict(plain_state(checks))
    assert restored.to_dict() == checks.to_dict() and restored.groups == checks.groups
    restored.update(labels[stop:], is_right[stop:])
    assert restored.to_dict() == whole.to_dict()
    more = admitted(*[True] * 500)
    np.testing.assert_array_equal(restored.draw(more, 5 * DAY), whole.draw(more, 5 * DAY))
    assert restored.resets == whole.resets and plain_state(restored) == plain_state(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "torchsdm drift guard"}, "not a torchsdm spot check"),
        ({"format": 2}, "has format 2; this version of torchsdm reads 1"),
        ({"classes": ["ham"]}, "not what was written"),
        ({"rate": "0.1"}, "'rate'"),
        ({"n_drawn": "3"}, "'n_drawn'"),
        ({"groups": []}, "not what was written"),
        ({"surplus": 1}, "surplus"),
        ({"resets": [{"reason": 3, "n_seen": 1, "raised_at": None}]}, "'reason'"),
    ],
)
def test_a_changed_state_is_refused(change, message):
    checks = make()
    checks.update(["ham"], [True])
    with pytest.raises(ModelFileError, match=message):
        SpotCheck.from_dict(plain_state(checks) | change)


@pytest.mark.parametrize("change", [{"n_checked": 7}, {"n_wrong": -1}, {"log_staked": [0.5]}, {"raised_at": "x"}])
def test_changed_counts_are_refused(change):
    checks = make()
    checks.update(["ham"] * 3, [True] * 3)
    state = plain_state(checks)
    state["groups"][0].update(change)
    with pytest.raises(ModelFileError, match="not what was written"):
        SpotCheck.from_dict(state)


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predictions", "is_right", "error", "message"),
    [
        (["ham", "jam"], [True, True], InvalidInputError, "labels that were admitted .* Got 'jam'"),
        ([["ham"]], [True], InvalidInputError, r"Got \['ham'\]"),
        ("ham", [True], InvalidTypeError, "'predictions' of SpotCheck.update must be a one-dimensional"),
        (["ham"], [1], InvalidTypeError, "'is_right' of SpotCheck.update must be booleans"),
        (["ham"], ["spam"], InvalidTypeError, "'is_right' of SpotCheck.update must be booleans"),
        (["ham"], True, InvalidTypeError, "'is_right' of SpotCheck.update must be booleans"),
        (["ham"], [True, False], InvalidInputError, "one value for each of 1 inputs. Got 2"),
    ],
)
def test_bad_verdicts_are_refused_and_change_nothing(predictions, is_right, error, message):
    checks = make()
    before = checks.to_dict()
    with pytest.raises(error, match=message):
        checks.update(predictions, is_right)
    assert checks.to_dict() == before
    assert checks.update([], []) == ()
    assert checks.to_dict() == before


@pytest.mark.parametrize(
    "decisions", [np.ones(3, dtype=bool), SimpleNamespace(admitted=[0.5]), admitted(True).admitted]
)
def test_what_is_no_decision_is_refused(decisions):
    with pytest.raises(InvalidTypeError, match="needs decisions with 'admitted'"):
        make().draw(decisions)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target": 0.4}, InvalidInputError, r"'alpha' of SpotCheck must be in \(0.5, 1\]"),
        ({"target": 1.0}, InvalidInputError, "'target' of SpotCheck must be below 1"),
        ({"target": (0.9, 0.8)}, InvalidInputError, "one per class, 3. Got 2"),
        ({"classes": []}, InvalidInputError, "'classes' of SpotCheck"),
        ({"classes": ["a", "a"]}, InvalidInputError, "each once"),
        ({"classes": [["a"]]}, InvalidInputError, "'classes' of SpotCheck"),
        ({"false_alarm": 0.0}, InvalidInputError, "'false_alarm' of SpotCheck"),
        ({"confidence": 95}, InvalidInputError, r"'confidence' of SpotCheck must be in \(0, 1\)"),
        ({"rate": 50}, InvalidInputError, "for a number of answers, give 'per_week'"),
        ({"rate": 0}, InvalidInputError, "'rate' of SpotCheck"),
        ({"per_week": 0}, InvalidInputError, "'per_week' of SpotCheck"),
        ({"seed": 0.5}, InvalidTypeError, "'seed' of SpotCheck must be an integer"),
    ],
)
def test_bad_settings_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SpotCheck(**({"target": 0.9, "classes": ["ham", "spam", "eggs"]} | arguments))


# --- While a model changes -------------------------------------------------------------------------------------------


def test_a_successor_goes_on_drawing_and_keeps_alarms_until_a_reset():
    old = make(rate=0.3, seed=5)
    old.draw(admitted(*[True] * 40))
    old.update(["spam"] * 30 + ["ham"] * 30, [False] * 30 + [True] * 30)
    new = SpotCheck(0.8, ["eggs", "spam"], rate=0.9).succeed(old, "version 2")
    assert new.raised_by == ("spam", None) == old.raised_by and (new.raised_at, new.n_checked) == (0, 0)
    assert new.resets == (GuardReset("version 2", 60, old.raised_at),) and new.target == 0.8
    again = SpotCheck.from_dict(plain_state(new))
    more = admitted(*[True] * 60)
    assert again.draw(more).tolist() == new.draw(more).tolist() == old.draw(more).tolist()
    assert new.update(["spam"] * 20, [False] * 20) == ()  # it is raised already
    new.reset("looked at")
    assert not new.raised


def test_another_rate_holds_from_the_next_answer_on():
    checks, same = make(rate=0.2), make(rate=0.2)
    some = admitted(*[True] * 50)
    checks.draw(some), same.draw(some)
    checks.draw_at(0.9)
    u = np.random.default_rng(np.random.PCG64(0)).random(100)[50:]
    assert checks.draw(some).tolist() == (u < 0.9).tolist() and checks.rate == 0.9
    checks.draw_at(0.5, per_week=10)
    assert checks.rate == pytest.approx(10 / 21)  # it begins with as much traffic as 10 are half of
    checks.draw(some, DAY)
    traffic = checks.to_dict()["traffic"]
    checks.draw_at(0.5, per_week=20)
    assert checks.to_dict()["traffic"] == traffic and checks.rate == pytest.approx(20 / 71)
    with pytest.raises(InvalidInputError, match="'rate'"):
        checks.draw_at(2.0)
