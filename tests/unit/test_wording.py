"""The sentences: one for each value, and no more promised than is; long texts, and slips of the keyboard."""

from __future__ import annotations

import itertools
import string
from dataclasses import replace

import pytest

from torchsdm.settings import CONTROLS, LANES, POLICIES, REJECTED
from torchsdm.wording import (
    ADMITS,
    FOR_WHOM,
    LANE_MEANS,
    REASONS,
    STANDINGS,
    STEPS,
    UNPROMISED,
    Promise,
    counted,
    described,
    group_name,
    is_one_edit_away,
    limits,
    listed,
    neighbours,
    of_100,
    often,
    percent,
    promise_or_why,
    shortened,
    threshold_reason,
    verdict,
)

PROMISE = Promise(
    found=True,
    target=0.9,
    control="groups",
    delta=0.1,
    confidence=0.9,
    looks=1,
    n_certification=200,
    n_admitted=148,
    n_corrected=0,
    classes=["ham", "spam"],
    never_admitted=[],
    answered_wrongly=[],
    pools=[],
    weakest=None,
    fewest=22,
    largest_alpha=None,
    n_needed=None,
    windows={},
)
REFUSED = replace(PROMISE, found=False, n_admitted=0, weakest=("class 'spam'", 84, 17, 22))


# --- One sentence for each value -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [FOR_WHOM, UNPROMISED, LANE_MEANS, ADMITS, REASONS, STANDINGS, STEPS])
def test_no_two_values_have_the_same_sentence(table):
    assert len(set(table.values())) == len(table)


def test_every_control_lane_and_policy_has_its_words():
    assert set(FOR_WHOM) == {*CONTROLS, "only pools"}
    assert list(LANE_MEANS) == [*LANES, REJECTED] and set(ADMITS) == set(POLICIES)


@pytest.mark.parametrize("control", CONTROLS)
def test_each_control_promises_what_it_covers_and_says_what_it_does_not(control):
    promise = replace(PROMISE, control=control, pools=[["ham"]] if control == "pooled" else [])
    assert f"right at least 90 % of the time, {FOR_WHOM[control]}, on data like the 200" in promise.sentence
    alone = [limit for limit in limits(promise) if "on its own: it may be right less often than alpha" in limit]
    assert len(alone) == (control != "groups")


def test_true_classes_that_pay_for_a_promise_are_named_the_worst_first():
    promise = replace(PROMISE, answered_wrongly=[("ham", 3, 20), ("spam", 28, 57)])
    said = "Of the certification points, it admits wrong answers to 28 of 57 points of class 'spam', 3 of 20 points"
    assert f"{said} of class 'ham'." in promise.sentence and PROMISE.left_out == ""
    many = replace(PROMISE, answered_wrongly=[(n, 5, 10) for n in range(7)])
    assert many.left_out.endswith("of class 2, and too many of 4 more.")


@pytest.mark.parametrize("found", [True, False])
def test_windows_promise_what_the_average_does_not(found):
    plain = PROMISE if found else REFUSED
    promise = replace(plain, windows={"ham": 3, "spam": 1})
    assert promise.sentence.startswith(plain.sentence)
    assert "trusted answers are right at least 90 % of the time in every window" in promise.at_every_level
    assert "(3 windows of 'ham', 1 window of 'spam')" in promise.at_every_level
    assert ("hold together with probability at least 0.8" in promise.sentence) == found
    assert promise_or_why(promise, policy="trusted") == (promise.at_every_level if found else promise.sentence)
    assert promise_or_why(promise, is_current=False) == UNPROMISED["changed"]
    assert any("true class" in limit for limit in limits(promise)) and plain.at_every_level == ""
    many = replace(promise, windows=dict.fromkeys(range(9), 2))
    assert "2 windows of 4, and of 4 more)" in many.at_every_level


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_is_filled_from_values(name):
    names = [field for _, field, _, _ in string.Formatter().parse(REASONS[name]) if field]
    said = REASONS[name].format(
        **{one: "ant" if one in ("label", "what", "score_name", "reaches") else 3 for one in names}
    )
    assert "{" not in said and not said.endswith(".")


def test_what_neighbours_say():
    assert [neighbours(q, is_admitted) for is_admitted in (True, False) for q in (0, 1, 4)] == [
        REASONS["contradicted"],
        "1 neighbour vouches for it",
        "4 neighbours vouch for it",
        REASONS["contradicted"],
        "the nearest example agrees, the next does not",
        "the 4 nearest examples agree, the next does not",
    ]


@pytest.mark.parametrize(
    ("score", "threshold", "changes", "expected"),
    [
        (0.9, 0.8, {}, "reliability 0.9000 reaches 0.8000, the certified threshold of 'ham'"),
        (0.8, 0.8, {"score_name": "score"}, "score 0.8000 reaches 0.8000, the certified threshold of 'ham'"),
        (0.7, 0.8, {"n_pooled": 2}, "is below 0.8000, the certified threshold of 'ham', pooled with 2 others"),
        (0.9, 0.8, {"in_window": True}, "reaches 0.8000, down to which 'ham' is certified at every level of evidence"),
        (0.9, float("inf"), {}, "predictions of 'ham' are not certified"),
    ],
)
def test_how_a_score_stands_to_its_threshold(score, threshold, changes, expected):
    assert threshold_reason(score, threshold, "ham", **changes).endswith(expected)


# --- The promise -----------------------------------------------------------------------------------------------------


def test_the_promise_and_what_belongs_to_it():
    assert PROMISE.sentence == (
        "With probability at least 0.9, the answers that the rule admits are right at least 90 % of the time, for "
        "every true class and every predicted class, on data like the 200 certification points, of which it admits "
        "74 %."
    )
    spent = replace(PROMISE, looks=2, confidence=0.75, n_corrected=3, never_admitted=["spam"])
    assert spent.sentence.startswith("With probability at least 0.75 for all 2 certificates on this sample, the")
    assert spent.sentence.endswith(
        "74 %, if its corrections (3) were made without regard to the decisions. It never admits 'spam'."
    )
    assert "3 certification points relabelled or removed" in spent.lost and PROMISE.lost == ""
    everyone = replace(PROMISE, control="pooled", pools=[["ham", "spam"]])
    assert FOR_WHOM["only pools"] in everyone.sentence and "in one pool: any of 2 ('ham', 'spam')." in everyone.sentence
    assert replace(PROMISE, control="pooled").sentence == PROMISE.sentence


@pytest.mark.parametrize("alpha", [0.9995, 0.57, 0.95])
def test_no_more_is_promised_than_alpha(alpha):
    assert float(often(alpha).split()[2]) == pytest.approx(100 * alpha) and often(alpha).split()[2] != "100"
    assert described(alpha) == str(alpha)
    assert replace(PROMISE, confidence=0.9996).sentence.startswith("With probability at least 0.9996,")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "even the strictest rule is wrong on 17 of the 84 points that it admits (class 'spam')"),
        (
            {"weakest": ("class 'spam'", 20, 0, 22)},
            "only 20 certification points can be admitted (class 'spam'",
        ),
        ({"weakest": None}, "no calibration point may be admitted at all"),
        ({"n_certification": 0}, "no labelled points were held out, and it takes at least 22 of each class"),
        ({"n_certification": 0, "control": "predictions"}, "it takes at least 22 of one class"),
        ({"n_certification": 0, "control": "all"}, "it takes at least 22."),
        ({"target": 1.0, "fewest": None}, "no sample can show that nothing is ever wrong"),
    ],
)
def test_why_nothing_is_certified(changes, why):
    refused = replace(REFUSED, **changes)
    assert refused.why_not.startswith("Not certified at alpha ") and why in refused.why_not
    assert refused.sentence.startswith(refused.why_not)


def test_what_calibration_says_would_do():
    assert "no alpha above 0.5 would hold; how many more examples would help cannot be told." in REFUSED.sentence
    would = replace(REFUSED, largest_alpha=0.85, n_needed=1600).sentence
    assert "about 0.85 could be certified, at the cost of another delta; it takes about 1,600 certification" in would
    assert "targets limited to about 0.85" in replace(REFUSED, target=(0.9, 0.95), largest_alpha=0.85).sentence


def test_why_nothing_is_promised():
    assert promise_or_why(None) == UNPROMISED["uncertified"]
    assert promise_or_why(None, is_ensemble=True) == UNPROMISED["ensemble"]
    assert promise_or_why(PROMISE, is_current=False) == UNPROMISED["changed"]
    assert promise_or_why(PROMISE, policy="trusted") == UNPROMISED["trusted"]
    assert promise_or_why(PROMISE) == PROMISE.sentence
    assert promise_or_why(REFUSED, is_current=False, policy="trusted") == REFUSED.sentence
    nothing_left = replace(PROMISE, looks=10, confidence=0.0)
    assert promise_or_why(nothing_left, policy="trusted").startswith("No promise is left: 10 certificates")


@pytest.mark.parametrize("standing", STANDINGS)
@pytest.mark.parametrize("n_admitted", [0, 1, 60, 100])
def test_only_the_promised_are_promised_anything(standing, n_admitted):
    said = verdict(standing, n_admitted, 100, PROMISE, is_labelled=True)
    assert ("such answers are right" in said) == (standing == "promised" and n_admitted > 0)
    assert ("can be answered unattended" in said) == (
        standing == "promised" or (standing == "unpromised" and not n_admitted)
    )
    assert of_100(n_admitted, 100).lower() in said.lower() and said.endswith(".")
    assert ("each a mistake" in said) == (standing == "outsiders" and n_admitted > 0)


# --- Texts and slips of the keyboard ---------------------------------------------------------------------------------


def test_long_texts_are_shortened_to_one_line():
    assert shortened("a\n b   c") == "a b c"
    assert shortened("x" * 100, 100) == "x" * 100
    assert shortened("x" * 101, 100) == "x" * 99 + "…"
    assert len(shortened("x" * 101)) == 80


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Wrold", "World"),
        ("World", "Worlds"),
        ("World", "orld"),
        ("World", "Wor1d"),
        ("ab", "ba"),
        ("a", ""),
        ("aab", "ab"),
        ("abcd", "abdc"),
    ],
)
def test_one_edit(a, b):
    assert is_one_edit_away(a, b) and is_one_edit_away(b, a)


@pytest.mark.parametrize(
    ("a", "b"), [("abc", "abc"), ("", ""), ("abcd", "badc"), ("abc", "cba"), ("a", "abc"), ("ab", "cd")]
)
def test_none_or_two_edits(a, b):
    assert not is_one_edit_away(a, b) and not is_one_edit_away(b, a)


def test_one_edit_is_what_making_every_edit_finds():
    letters = "ab"
    words = ["".join(word) for n in range(5) for word in itertools.product(letters, repeat=n)]
    for a in words:
        places, cuts = range(len(a)), range(len(a) + 1)
        made = {a[:i] + a[i + 1 :] for i in places} | {a[:i] + x + a[i:] for i in cuts for x in letters}
        made |= {a[:i] + x + a[i + 1 :] for i in places for x in letters}
        made |= {a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1)}
        assert {b for b in words if is_one_edit_away(a, b)} == made & set(words) - {a}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (shortened("one  line,\nand another", 12), "one line, a…"),
        (counted(1, "example"), "1 example"),
        (counted(1200, "example"), "1,200 examples"),
        (percent(0.9), "90 %"),
        (percent(0.98666), "98.7 %"),
        (listed(["ham", "spam"]), "'ham', 'spam'"),
        (listed(range(9)), "0, 1, 2, 3, 4 and 4 more"),
        (of_100(3, 60), "3 of 60 inputs"),
        (of_100(730, 1000), "73 of 100 inputs"),
        (of_100(2, 1000), "2 of 1,000 inputs"),
        (of_100(0, 1000), "none of the 1,000 inputs"),
        (described(0.95), "0.95"),
        (described((0.9, 0.99), ["ham", "spam"]), "0.9 for 'ham', 0.99 for 'spam'"),
        (often(0.9), "at least 90 % of the time"),
        (often((0.9, 0.99), ["ham", "spam"]), "at least as often as asked (0.9 for 'ham', 0.99 for 'spam')"),
        (group_name("class", ["ham"]), "class 'ham'"),
        (group_name("prediction", range(4)), "prediction any of 4 (0, 1, 2, ...)"),
        (group_name("all", []), "all together"),
    ],
)
def test_numbers_and_names_as_people_say_them(said, expected):
    assert said == expected
