"""The paper's claims on evaluations made by hand: held, not held, not evaluated, and the evidence for it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations

import numpy as np
import pytest

from research.experiments.claims import (
    Claim,
    all_hold,
    argmax_unchanged,
    in_distribution_accurate,
    paper_claims,
    shifted_others_fall,
    shifted_region_accurate,
    shuffled_rejected,
    similarity_rises,
)
from torchsdm import Decisions, LabelledStates
from torchsdm.core import wilson_interval
from torchsdm.evaluation.entrants import Entrant
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.tables import UNLISTED, Basis, EstimatorKey, Rule

CLASSES = np.array([0, 1])
FALLING = (Rule.SOFTMAX, Rule.TEMPERATURE, Rule.APS, Rule.RAPS, Rule.VBLL)
IN, SHIFTED, SHUFFLED = "in distribution", "shifted", "shuffled"


class Answers:
    """An estimator that gives the answers it was made with.

    Of each data set a string with a character for each input: 0 and 1 are predictions that are admitted, a and b are
    the same two predictions, rejected. The argmax is changed by o and i: label 0 or 1 is predicted, and has the larger
    probability, though the other has the larger logit; and by p and q: the same labels are predicted by their logits,
    and the other has the larger probability. Of = the label is 0, and both have the same probability. A round is given
    where they are those of an ensemble.
    """

    classes_ = CLASSES

    def __init__(self, answers, alpha, member=None):
        self.answers, self.alpha, self.member = answers, alpha, member

    def decide(self, X):
        text = "".join(self.answers[int(number)][int(row)] for number, row in X)
        predictions = np.array([one in "1biq" for one in text]).astype(int)
        by_logits = np.where([one in "oi" for one in text], 1 - predictions, predictions)
        by_probability = np.where([one in "pq" for one in text], 1 - predictions, predictions)
        admitted = np.array([one not in "ab" for one in text])[:, None]
        logits = np.where(by_logits[:, None] == CLASSES, 2.0, 0.0)
        probabilities = np.where(by_probability[:, None] == CLASSES, 0.9, 0.1)
        probabilities[[one == "=" for one in text]] = 0.5
        decisions = Decisions.of_probabilities(CLASSES, [self.alpha], logits, probabilities, admitted)
        member = None if self.member is None else np.full(len(text), self.member)
        return replace(decisions, predictions=CLASSES[predictions], member=member)


def evaluate(truths, *entrants, alpha=0.95):
    """An evaluation over data sets {name: truths} of entrants (model, rule, group, answers to each data set).

    A text in place of a rule is the name of an estimator that none of the claims knows.
    """
    data = {
        name: LabelledStates(
            np.array([(number, row) for row in range(len(text))], dtype=np.float32), np.array([int(y) for y in text])
        )
        for number, (name, text) in enumerate(truths.items())
    }
    made = [
        Entrant(model, str(rule), Answers(answers, alpha), group=group, key=key_of(rule))
        for model, rule, group, *answers in map(tuple, entrants)
    ]
    return Evaluation(made, data, alpha)


def key_of(rule):
    return EstimatorKey(rule=rule) if isinstance(rule, Rule) else UNLISTED


def region(*answers, model="LM + SDM"):
    return (model, Rule.REGION, "sdm", *answers)


RIGHT = "admits 100.0%, of which 100.0% are right"  # the selection of an estimator that is never wrong


def holding(chosen, selection=RIGHT):
    """The evidence for estimators that hold on the data set t."""
    return tuple(f"t, {model}, {name} holds: {selection}" for model, name, _ in chosen)


# --- A claim ---------------------------------------------------------------------------------------------------------


def test_verdicts_in_words():
    words = [Claim("x", "s", held, ()).verdict for held in (True, False, None)]
    assert words == ["held", "not held", "not evaluated"]


def test_all_claims_in_the_order_of_the_paper():
    evaluation = evaluate({"in": "01", "shift": "01", "mix": "01"}, region("01", "ab", "ab"))
    roles = {"in": IN, "shift": SHIFTED, "mix": SHUFFLED}
    claims = paper_claims(evaluation, roles, [("round 1", 0.9, 3.0)])
    assert [claim.key for claim in claims] == ["a", "b", "b′", "c", "d", "e"]
    assert [claim.held for claim in claims] == [True, True, None, True, None, True]
    assert all(claim.statement.endswith((".", ").")) and claim.evidence for claim in claims)


def test_estimators_are_known_by_their_key_and_not_by_their_name():
    named = evaluate({"t": "0011"}, ("LM + SDM", "SDM_HR", "sdm", "1100"), ("LM", "softmax ≥ α", "cnn", "0011"))
    assert shifted_region_accurate(named, {"t": SHIFTED}).held is None
    assert shuffled_rejected(named, {"t": SHUFFLED}).held is None
    assert shifted_others_fall(named, {"t": SHIFTED}).held is None
    rules = (Rule.REGION, Rule.NO_REJECT)
    renamed = [replace(one, name="mine", key=key_of(rule)) for one, rule in zip(named.entrants, rules, strict=True)]
    keyed = Evaluation(renamed, named.data_sets, 0.95)
    assert shifted_region_accurate(keyed, {"t": SHIFTED}).evidence[0].startswith("t, LM + SDM, mine: ")
    claim = in_distribution_accurate(keyed, {"t": IN})
    assert claim.held is False and len(claim.evidence) == 1  # of the two, one rejects nothing by its rule


# --- (a): in distribution, every estimator over an adaptor -----------------------------------------------------------

ADAPTORS = (
    ("LM + CNN", Rule.SOFTMAX, "cnn"),
    ("LM + discriminative VBLL, KL × 1", Rule.VBLL, "vbll"),
    ("LM + SDM", Rule.SDM, "sdm"),
    ("LM + SDM", Rule.REGION, "sdm"),
)
TWENTY = "0" * 20 + "1" * 20


def test_a_held_when_every_estimator_over_an_adaptor_is():
    evaluation = evaluate({"t": TWENTY}, *((*one, TWENTY) for one in ADAPTORS))
    claim = in_distribution_accurate(evaluation, {"t": IN})
    assert claim.held and claim.evidence == holding(ADAPTORS)


@pytest.mark.parametrize("wrong", range(4))
def test_a_not_held_when_one_is_not(wrong):
    answers = [TWENTY] * 4
    answers[wrong] = "0" * 18 + "11" + "1" * 20
    evaluation = evaluate({"t": TWENTY}, *((*one, answer) for one, answer in zip(ADAPTORS, answers, strict=True)))
    claim = in_distribution_accurate(evaluation, {"t": IN})
    model, name, _ = ADAPTORS[wrong]
    low, high = wilson_interval(18, 20)
    assert claim.held is False
    assert claim.evidence == (
        f"t, {model}, {name}: admits 100.0%, of which 95.0% are right; lowest y=0: 18 of 20 right "
        f"(95 % interval {low:.2f} to {high:.2f}, contains α)",
        *holding(one for number, one in enumerate(ADAPTORS) if number != wrong),
    )


BOUNDARIES = [(0.95, 19, 20), (0.9, 9, 10), (0.94, 47, 50), (0.7, 7, 10), (0.99, 99, 100), (2 / 3, 2, 3)]


@pytest.mark.parametrize(("alpha", "right", "n"), BOUNDARIES)
def test_accuracy_equal_to_alpha_holds_and_one_answer_less_does_not(alpha, right, n):
    assert right / n == alpha

    def claim(right, *, of_prediction):
        """y = 0 or ŷ = 0 has so many right of n; all that is left has so many inputs that it holds."""
        many = 50 * n
        truth, answers = "0" * n + "1" * many, "0" * right + "1" * (n - right) + "1" * many
        truth, answers = (answers, truth) if of_prediction else (truth, answers)
        return in_distribution_accurate(evaluate({"t": truth}, region(answers), alpha=alpha), {"t": IN})

    for of_prediction, name in ((False, "y=0"), (True, "ŷ=0")):
        assert claim(right, of_prediction=of_prediction).held
        below = claim(right - 1, of_prediction=of_prediction)
        assert below.held is False and f"lowest {name}: {right - 1} of {n} right" in below.evidence[0]


def test_language_model_unfiltered_and_neighbours_are_not_part_of_a():
    bad = "1" * 20 + "0" * 20
    evaluation = evaluate(
        {"t": TWENTY},
        ("LM", Rule.SOFTMAX, "language model", bad),
        ("LM + CNN", Rule.NO_REJECT, "cnn", bad),
        ("LM + SDM", Rule.NO_REJECT, "sdm", bad),
        ("LM + cosine neighbours", "vote", "today", bad),
        region(TWENTY),
    )
    assert in_distribution_accurate(evaluation, {"t": IN}).held


def test_a_looks_at_sets_in_distribution_alone():
    evaluation = evaluate({"in": TWENTY, "out": TWENTY}, region(TWENTY, "1" * 20 + "0" * 20))
    assert in_distribution_accurate(evaluation, {"in": IN, "out": SHIFTED}).held
    assert in_distribution_accurate(evaluation, {"in": SHIFTED, "out": IN}).held is False
    absent = in_distribution_accurate(evaluation, {"in": SHIFTED, "out": SHUFFLED})
    assert absent.held is None and absent.evidence == ("no test set is in distribution",)
    nowhere = in_distribution_accurate(evaluation, {})
    assert nowhere.held is None and nowhere.evidence == ("no test set is in distribution",)


def test_where_everything_is_rejected_a_says_so():
    # Nothing was admitted, so nothing was at or above alpha: it must not look like a success.
    evaluation = evaluate({"t": TWENTY}, *((*one, "a" * 20 + "b" * 20) for one in ADAPTORS))
    claim = in_distribution_accurate(evaluation, {"t": IN})
    assert claim.evidence == holding(ADAPTORS, "rejects all")


# --- (b): on shifted data, the region ---------------------------------------------------------------------------------


def of_region(truth, answers):
    """Claim (b) on one shifted set."""
    return shifted_region_accurate(evaluate({"t": truth}, region(answers)), {"t": SHIFTED})


@pytest.mark.parametrize(
    ("truth", "answers", "selection"),
    [
        ("0011", "0b1b", "admits 50.0%, of which 100.0% are right"),
        ("0011", "bbaa", "rejects all"),
        ("0000", "00aa", "admits 50.0%, of which 100.0% are right"),  # no input of class 1 at all, none predicted 1
        *(  # a share of few is not rounded to nothing or all
            ("0" * 10_000, "0" * n + "a" * (10_000 - n), f"admits {told}, of which 100.0% are right")
            for n, told in ((1, "0.01%"), (9_999, "99.99%"), (10_000, "100.0%"))
        ),
    ],
)
def test_b_held_by_accuracy_or_by_rejecting_all(truth, answers, selection):
    claim = of_region(truth, answers)
    assert claim.held and claim.evidence == (f"t, LM + SDM, SDM_HR holds: {selection}",)


@pytest.mark.parametrize(
    ("truth", "answers", "lowest"),
    [
        # All: 39 of 40; ŷ = 1: 39 of 40; but the one input of class 0 that is admitted is wrong.
        ("0" + "1" * 39, "1" + "1" * 39, "of which 97.5% are right; lowest y=0: 0 of 1 right"),
        # Class 0 is admitted once and wrong, class 1 absent: both y = 0 and ŷ = 1 have 0 of 1, and all.
        ("0000", "1aaa", "lowest y=0: 0 of 1 right"),
        # y=0: 8/10; y=1: 9/10; ŷ=0: 8/9; ŷ=1: 9/11; all: 17/20. Lowest is y=0, though ŷ=1 comes close.
        ("0" * 10 + "1" * 10, "0" * 8 + "11" + "1" * 9 + "0", "lowest y=0: 8 of 10 right"),
        # y=0: 18/20; y=1: 4/4; ŷ=0: 18/18; ŷ=1: 4/6.
        ("0" * 20 + "1" * 4, "0" * 18 + "11" + "1111", "lowest ŷ=1: 4 of 6 right"),
    ],
)
def test_b_not_held_by_one_stratum_which_is_named_with_its_counts(truth, answers, lowest):
    claim = of_region(truth, answers)
    right, n = map(int, re.search(r"(\d+) of (\d+) right", lowest).groups())
    low, high = wilson_interval(right, n)
    contains = ", contains α" if high >= 0.95 else ""
    assert claim.held is False and len(claim.evidence) == 1
    assert claim.evidence[0].startswith("t, LM + SDM, SDM_HR: admits ")
    assert claim.evidence[0].endswith(f"{lowest} (95 % interval {low:.2f} to {high:.2f}{contains})")


def test_b_is_about_the_region_alone():
    evaluation = evaluate(
        {"t": "0011"},
        ("LM + SDM", Rule.SDM, "sdm", "1100"),
        ("LM + SDM", Rule.REGION_LOWER, "sdm", "1100"),
        region("0011"),
    )
    assert shifted_region_accurate(evaluation, {"t": SHIFTED}).held


def test_b_needs_every_shifted_set():
    evaluation = evaluate({"one": "0011", "two": "0011"}, region("0011", "0010"))
    claim = shifted_region_accurate(evaluation, {"one": SHIFTED, "two": SHIFTED})
    assert claim.held is False and claim.evidence[0].startswith("two, LM + SDM, SDM_HR: admits 100.0%, of which 75.0%")
    assert claim.evidence[1:] == (f"one, LM + SDM, SDM_HR holds: {RIGHT}",)
    assert shifted_region_accurate(evaluation, {"one": SHIFTED, "two": IN}).held
    assert shifted_region_accurate(evaluation, {"one": IN}).held is None


def test_b_of_several_sets_gives_the_numbers_of_each():
    evaluation = evaluate({"one": "0011", "two": "0011"}, region("0b11", "aabb"))
    claim = shifted_region_accurate(evaluation, {"one": SHIFTED, "two": SHIFTED})
    assert claim.held and claim.evidence == (
        "one, LM + SDM, SDM_HR holds: admits 75.0%, of which 100.0% are right",
        "two, LM + SDM, SDM_HR holds: rejects all",
    )


def test_alpha_is_said_to_lie_in_the_interval_only_where_it_does():
    for right, n in ((18, 20), (0, 1), (10, 20), (85, 100), (92, 100)):
        answers = "0" * right + "1" * (n - right) + "1" * 50 * n
        claim = of_region("0" * n + "1" * 50 * n, answers)
        high = wilson_interval(right, n)[1]
        assert claim.evidence[0].endswith(f"to {high:.2f}, contains α)" if high >= 0.95 else f"to {high:.2f})")


def test_an_accuracy_is_not_rounded_onto_the_alpha_that_it_misses():
    # What is at or above alpha may be rounded down to it.
    n = 100_000
    for right, told in (
        (94_940, "94.9%"),
        (94_960, "94.96%"),
        (94_996, "94.996%"),
        (95_000, "95.0%"),
        (95_004, "95.0%"),
        (99_999, "99.999%"),
    ):
        claim = of_region("0" * n, "0" * right + "1" * (n - right))
        assert f"admits 100.0%, of which {told} are right" in claim.evidence[0]


@pytest.mark.parametrize("alpha", [0.7, 0.8, 0.9, 0.95, 0.99])  # 1 − α is a little more than it should be, or less
def test_a_share_is_not_rounded_onto_the_limit_that_it_exceeds(alpha):
    n = 20_000
    at_limit = round((1 - alpha) * n)
    for admitted in (at_limit - 1, at_limit, at_limit + 1):
        answers = "0" * admitted + "a" * (n - admitted)
        claim = shuffled_rejected(evaluate({"t": "0" * n}, region(answers), alpha=alpha), {"t": SHUFFLED})
        told = re.fullmatch(r"t: admits (.*)%, of which 100.0% are right", claim.evidence[0])[1]
        assert claim.held is (admitted <= at_limit) is (Fraction(told) <= Fraction(100 * at_limit, n)), claim.evidence


@pytest.mark.parametrize(
    ("claim", "role"),
    [
        (shifted_region_accurate, SHIFTED),
        (shifted_others_fall, SHIFTED),
        (shuffled_rejected, SHUFFLED),
        (in_distribution_accurate, IN),
    ],
)
def test_the_reason_for_not_looking_is_the_true_one(claim, role):
    evaluation = evaluate({"t": "0011"}, ("LM", "other", "language model", "0011"))
    found = claim(evaluation, {"t": role})
    assert found.held is None and found.evidence == ("no such estimator was compared",)
    other = SHUFFLED if role != SHUFFLED else IN
    absent = claim(evaluation, {"t": other})
    assert absent.held is None and absent.evidence == (f"no test set is {role}",)


# --- (b′): on shifted data, the others --------------------------------------------------------------------------------


def others(*answers):
    return [("LM + CNN", name, "cnn", answer) for name, answer in zip(FALLING, answers, strict=True)]


def of_others(*entrants, truth="0011"):
    """Claim (b′) on one shifted set."""
    return shifted_others_fall(evaluate({"t": truth}, *entrants), {"t": SHIFTED})


def test_others_held_when_each_falls_below():
    claim = of_others(*others(*["0010"] * 5), region("0011"))
    assert claim.held and claim.evidence[0] == "5 of 5 fall below" and len(claim.evidence) == 6
    assert claim.evidence[1].startswith("t, LM + CNN, softmax ≥ α: admits 100.0%, of which 75.0% are right; lowest ")


@pytest.mark.parametrize("holding", ["0011", "aabb", "0abb"])
def test_others_not_held_when_one_keeps_alpha_or_rejects_all(holding):
    claim = of_others(*others("0010", "0010", holding, "0010", "0010"))
    selection = {
        "0011": "admits 100.0%, of which 100.0% are right",
        "aabb": "rejects all",
        "0abb": "admits 25.0%, of which 100.0% are right",
    }[holding]
    assert claim.held is False
    assert claim.evidence[:2] == ("4 of 5 fall below", f"t, LM + CNN, APS does not: {selection}")
    assert len(claim.evidence) == 6


def test_others_fall_by_one_class_though_the_whole_holds():
    claim = of_others(*others(*["1" * 40] * 5), truth="0" + "1" * 39)
    assert claim.held and "lowest y=0: 0 of 1 right" in claim.evidence[1]


def test_others_leave_out_what_is_not_said_to_fall():
    kept = [("LM + SDM", name, "sdm", "0011") for name in (Rule.NO_REJECT, Rule.SDM, Rule.REGION_LOWER)]
    kept += [("LM + CNN", Rule.NO_REJECT, "cnn", "0011"), ("LM + SDM", "MAPIE risk control", "today", "0011")]
    assert of_others(*others(*["0010"] * 5), *kept).held


def test_others_of_every_group_count():
    claim = of_others(*others(*["0010"] * 5), ("LM", Rule.TEMPERATURE, "language model", "0011"), region("0011"))
    assert claim.held is False and claim.evidence[0] == "5 of 6 fall below"
    assert claim.evidence[1] == "t, LM, temperature ≥ α does not: admits 100.0%, of which 100.0% are right"


def test_others_not_looked_at():
    assert of_others(region("0011")).held is None
    evaluation = evaluate({"t": "0011"}, *others(*["0010"] * 5))
    assert shifted_others_fall(evaluation, {"t": IN}).held is None


def test_others_that_were_not_compared_are_not_taken_for_fallen():
    claim = of_others(("LM + CNN", Rule.SOFTMAX, "cnn", "0010"))
    assert claim.evidence[:2] == ("1 of 1 fall below", "not compared: temperature ≥ α, APS, RAPS, VBLL ≥ α")
    assert claim.held and len(claim.evidence) == 3 and claim.evidence[2].startswith("t, LM + CNN, softmax ≥ α: admits ")
    claim = of_others(*others(*["0010"] * 4, "0011")[1:])
    assert claim.held is False
    assert claim.evidence[:3] == (
        "3 of 4 fall below",
        "not compared: softmax ≥ α",
        f"t, LM + CNN, VBLL ≥ α does not: {RIGHT}",
    )


# --- (c): shuffled words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "n", "admitted", "held"),
    [
        *((0.95, 20, admitted, admitted <= 1) for admitted in (0, 1, 2, 20)),
        *((0.9, 10, admitted, admitted <= 1) for admitted in (1, 2)),
        *((0.9, 30, admitted, admitted <= 3) for admitted in (3, 4)),
        *((0.99, 100, admitted, admitted <= 1) for admitted in (1, 2)),
        *((1.0, 10, admitted, admitted == 0) for admitted in (0, 1)),
    ],
)
def test_c_held_by_the_share_that_is_admitted_right_or_wrong(alpha, n, admitted, held):
    for truth in "01":  # whether those admitted are right does not matter
        evaluation = evaluate({"t": truth * n}, region("0" * admitted + "a" * (n - admitted)), alpha=alpha)
        claim = shuffled_rejected(evaluation, {"t": SHUFFLED})
        assert claim.held is held
        assert claim.statement == "SDM_HR admits at most 1 − α of inputs with shuffled words."  # for any alpha
        right = "100.0%" if truth == "0" else "0.0%"
        expected = f"admits {admitted / n:.1%}, of which {right} are right" if admitted else "rejects all"
        assert claim.evidence == (f"t: {expected}",)


def test_c_needs_every_shuffled_set_and_the_region():
    evaluation = evaluate(
        {"one": "0" * 20, "two": "0" * 20},
        region("a" * 20, "0" * 20),
        ("LM + SDM", Rule.SDM, "sdm", "0" * 20, "0" * 20),
    )
    both = shuffled_rejected(evaluation, {"one": SHUFFLED, "two": SHUFFLED})
    assert both.held is False
    assert both.evidence == ("one: rejects all", f"two: {RIGHT}")
    one = shuffled_rejected(evaluation, {"one": SHUFFLED, "two": SHIFTED})
    assert one.held and one.evidence == ("one: rejects all",)
    assert shuffled_rejected(evaluation, {"one": IN}).held is None


# --- (d): q′_min rises as accuracy falls ------------------------------------------------------------------------------


def kendall(accuracies, similarities):
    """Concordant less discordant pairs, over all pairs, by comparing."""
    total = 0
    pairs = list(combinations(range(len(accuracies)), 2))
    for i, j in pairs:
        if accuracies[i] == accuracies[j] or similarities[i] == similarities[j]:
            continue
        total += 1 if (accuracies[i] < accuracies[j]) == (similarities[i] < similarities[j]) else -1
    return total / len(pairs)


def chance(accuracies, similarities):
    """The share of all orders in which tau is no larger, tied values counted as often as they can be put in order."""
    n = len(accuracies)
    taus = [kendall(accuracies, [similarities[place] for place in order]) for order in permutations(range(n))]
    return sum(tau <= kendall(accuracies, similarities) for tau in taus) / math.factorial(n)


def points(accuracies, similarities):
    return [
        (f"round {number}", accuracy, q)
        for number, (accuracy, q) in enumerate(zip(accuracies, similarities, strict=True), start=1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "similarities", "tau"),
    [
        ((0.9, 0.8, 0.7, 0.6), (1.0, 2.0, 3.0, 4.0), -1.0),
        ((0.9, 0.8, 0.7, 0.6), (4.0, 3.0, 2.0, 1.0), 1.0),
        ((0.9, 0.8, 0.7, 0.6), (1.0, 2.0, math.inf, math.inf), -5 / 6),  # two infinities are equal
        ((0.9, 0.8, 0.7, 0.6), (math.inf, 1.0, 2.0, 3.0), 0.0),  # three pairs for, three against
        ((0.9, 0.8, 0.7, 0.6), (math.inf, math.inf, 3.0, 2.0), 5 / 6),
        ((0.9, 0.9, 0.8, 0.8), (1.0, 2.0, 3.0, 4.0), -4 / 6),  # ties of accuracy
        ((0.9, 0.8, 0.8, 0.7), (2.0, 2.0, 2.0, 3.0), -3 / 6),
        ((0.9, 0.8, 0.7, 0.6, 0.5), (1.0, 1e300, 1e308, math.inf, 0.0), -2 / 10),  # large is not infinite
    ],
)
def test_d_is_the_sign_of_kendalls_tau(accuracies, similarities, tau):
    assert kendall(accuracies, similarities) == pytest.approx(tau)
    claim = similarity_rises(points(accuracies, similarities))
    assert claim.held is (tau < 0)
    assert claim.evidence[:2] == (
        f"τ = {tau:.2f} over {len(accuracies)}",
        f"in {chance(accuracies, similarities):.0%} of all orders τ is no larger",
    )
    assert len(claim.evidence) == 2 + len(accuracies)


@pytest.mark.parametrize("n", range(4, 9))
def test_d_against_random_rounds_with_ties_and_infinities(n):
    rng = np.random.default_rng(n)
    for _ in range(25):
        accuracies = rng.choice([0.7, 0.8, 0.85, 0.9], n).tolist()
        similarities = rng.choice([0.0, 1.0, 5.0, 50.0, math.inf], n).tolist()
        if len(set(accuracies)) == 1 or len(set(similarities)) == 1:
            continue  # tau is undefined
        tau = kendall(accuracies, similarities)
        claim = similarity_rises(points(accuracies, similarities))
        assert claim.held is (tau < 0) and claim.evidence[0] == f"τ = {tau:.2f} over {n}"
        if n < 6:  # how often chance does as well
            assert claim.evidence[1] == f"in {chance(accuracies, similarities):.0%} of all orders τ is no larger"


@pytest.mark.parametrize(
    ("accuracies", "similarities", "share"),
    [
        ((0.9, 0.8, 0.7, 0.6), (1.0, 2.0, 3.0, 4.0), 1 / 24),
        ((0.9, 0.8, 0.7, 0.6), (4.0, 3.0, 2.0, 1.0), 1.0),
        ((0.9, 0.8, 0.7, 0.6), (2.0, 1.0, 3.0, 4.0), 4 / 24),  # none or one of six pairs the other way: 1 + 3 orders
        ((0.9, 0.8, 0.7, 0.6), (1.0, 2.0, math.inf, math.inf), 2 / 24),  # the two that are equal may change places
        ((0.9, 0.9, 0.8, 0.8), (1.0, 2.0, 3.0, 4.0), 4 / 24),  # and so may those of the same accuracy
        ((0.9, 0.8, 0.7, 0.6, 0.5), (1.0, 2.0, 3.0, 4.0, 5.0), 1 / 120),
    ],
)
def test_d_chance_counted_by_hand(accuracies, similarities, share):
    assert chance(accuracies, similarities) == pytest.approx(share)
    evidence = similarity_rises(points(accuracies, similarities)).evidence
    assert evidence[1] == f"in {share:.0%} of all orders τ is no larger"


def test_d_draws_orders_of_many_rounds_which_is_the_same_every_time():
    accuracies, similarities = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], [3.0, 1.0, 2.0, 6.0, 4.0, 5.0, 0.0]
    claim, again = (similarity_rises(points(accuracies, similarities)) for _ in range(2))
    told = int(re.fullmatch(r"in (\d+)% of 2,000 random orders τ is no larger", claim.evidence[1])[1]) / 100
    assert claim == again
    assert abs(told - chance(accuracies, similarities)) < 0.005 + 4 * math.sqrt(0.25 / 2000)  # rounded, and drawn


def test_d_shows_every_round():
    claim = similarity_rises(points((0.91234, 0.8, 0.7, 0.6), (1.0, 22.71828, math.inf, 1e6)))
    assert claim.evidence[2:] == (
        "round 1: accuracy 0.9123, q′_min 1",
        "round 2: accuracy 0.8000, q′_min 22.72",
        "round 3: accuracy 0.7000, q′_min ∞",
        "round 4: accuracy 0.6000, q′_min 1e+06",
    )


@pytest.mark.parametrize("n", range(4))
def test_d_is_not_judged_by_fewer_than_four(n):
    claim = similarity_rises(points([0.9, 0.8, 0.7][:n], [1.0, 2.0, 3.0][:n]))
    assert claim.held is None and claim.evidence[0] == f"needs 4 rounds or runs, has {n}"
    assert len(claim.evidence) == 1 + n


@pytest.mark.parametrize(
    ("accuracies", "similarities", "what"),
    [
        ((0.9, 0.8, 0.7, 0.6), (math.inf,) * 4, "q′_min"),
        ((0.9, 0.8, 0.7, 0.6), (5.0,) * 4, "q′_min"),
        ((0.9,) * 4, (1.0, 2.0, 3.0, 4.0), "the accuracy"),
    ],
)
def test_d_cannot_be_judged_where_one_of_the_two_never_changes(accuracies, similarities, what):
    # Kendall's tau is then undefined: with no region in any round, q′_min can neither rise nor fall.
    claim = similarity_rises(points(accuracies, similarities))
    assert claim.held is None and claim.verdict == "not evaluated"
    assert claim.evidence[0] == f"{what} is the same in all, so no trend can be seen"
    assert [line.partition(":")[0] for line in claim.evidence[1:]] == [f"round {number}" for number in range(1, 5)]


# --- (e): the argmax --------------------------------------------------------------------------------------------------


def test_e_held_where_all_predict_alike_admitted_or_not():
    evaluation = evaluate(
        {"one": "0011", "two": "01"},
        ("LM + SDM", Rule.NO_REJECT, "sdm", "0110", "10"),
        ("LM + SDM", Rule.SDM, "sdm", "0b1a", "ba"),
        region("abba", "1a"),
    )
    claim = argmax_unchanged(evaluation)
    assert claim.held and claim.evidence == ("one: 0 of 4 differ", "two: 0 of 2 differ")


def test_e_says_what_is_meant():
    assert argmax_unchanged(evaluate({"t": "01"}, region("01"))).statement == (
        "SDM never changes the argmax: the label that each rule over the adaptor predicts has the largest logit, and "
        "at least the probability of any other."
    )


@pytest.mark.parametrize("changed", ["oi", "pq"])  # another label than the logits say, or a more probable one
def test_e_not_held_where_one_estimator_changes_the_argmax(changed):
    zero, one = changed
    evaluation = evaluate(
        {"one": "0011", "two": "01"}, ("LM + SDM", Rule.NO_REJECT, "sdm", "0110", "10"), region(f"a{zero}1{one}", "1a")
    )
    claim = argmax_unchanged(evaluation)
    assert claim.held is False and claim.evidence == ("one: 2 of 4 differ", "two: 0 of 2 differ")


def test_e_labels_of_the_same_probability_are_not_changed():
    # Where d = 0, sdm(z′) is uniform: no other label has more.
    claim = argmax_unchanged(evaluate({"t": "0000"}, region("====")))
    assert claim.held and claim.evidence == ("t: 0 of 4 differ",)


def test_e_counts_inputs_and_not_inputs_times_estimators():
    evaluation = evaluate(
        {"t": "0011"}, *(("LM + SDM", name, "sdm", a) for name, a in zip("xyz", ("oo11", "o011", "00p1"), strict=True))
    )
    claim = argmax_unchanged(evaluation)
    assert claim.held is False and claim.evidence == ("t: 3 of 4 differ",)


def test_e_is_about_one_adaptor_and_leaves_out_others_and_the_ensemble():
    evaluation = evaluate(
        {"t": "0011"},
        ("LM", Rule.SOFTMAX, "language model", "oooo"),
        ("LM + CNN", Rule.SOFTMAX, "cnn", "pppp"),
        ("LM + cosine neighbours", "vote", "today", "iiii"),
        region("0011"),
    )
    own = argmax_unchanged(evaluation)
    assert own.held and own.evidence == ("t: 0 of 4 differ",)
    key = EstimatorKey(Basis.ALL_ROUNDS, Rule.REGION_LOWER)
    answers = Answers(["oopp"], 0.95, member=1)
    together = Entrant("LM + SDM, 2 rounds", "SDM_HR lower, all agree", answers, group="sdm", key=key)
    with_rounds = Evaluation([*evaluation.entrants, together], evaluation.data_sets, 0.95)
    assert argmax_unchanged(with_rounds) == own
    alone = argmax_unchanged(Evaluation([together], evaluation.data_sets, 0.95))
    assert alone.held is None and alone.evidence == ("no estimator over the SDM adaptor was compared",)


def test_e_not_looked_at_without_an_sdm_adaptor():
    evaluation = evaluate({"t": "0011"}, ("LM + CNN", Rule.SOFTMAX, "cnn", "0011"))
    claim = argmax_unchanged(evaluation)
    assert claim.held is None and claim.evidence == ("no estimator over the SDM adaptor was compared",)


def test_e_looks_at_any_language_model_whatever_it_is_called():
    assert argmax_unchanged(evaluate({"t": "0011"}, region("0011", model="playgrounds-7b + SDM"))).held


# --- The claim that nothing falls below -------------------------------------------------------------------------------


def rows(*answers, truth="0011", alpha=0.95):
    made = [(f"m{number}", "e", "", answer) for number, answer in enumerate(answers)]
    return evaluate({"t": truth}, *made, alpha=alpha).table.rows


def test_all_hold_names_what_fails_first_and_then_the_rest():
    claim = all_hold("k", "s", rows("0011", "0010", "aabb", "1100"))
    assert (claim.key, claim.statement, claim.held) == ("k", "s", False)
    assert [line.partition(":")[0] for line in claim.evidence[:2]] == ["t, m1, e", "t, m3, e"]
    assert claim.evidence[2:] == (f"t, m0, e holds: {RIGHT}", "t, m2, e holds: rejects all")


def test_all_hold_counts_what_holds_where_it_is_more_than_eight():
    eight = all_hold("k", "s", rows(*["0011"] * 7, "aabb", "0010"))
    assert eight.held is False and eight.evidence[0].startswith("t, m8, e: admits 100.0%, of which 75.0% are right; ")
    assert eight.evidence[1:] == (
        *(f"t, m{number}, e holds: {RIGHT}" for number in range(7)),
        "t, m7, e holds: rejects all",
    )
    nine = all_hold("k", "s", rows(*["0011"] * 7, "aabb", "bbaa", "0010"))
    assert nine.held is False and nine.evidence[0].startswith("t, m9, e: admits 100.0%")
    assert nine.evidence[1:] == ("9 of 10 hold, 2 of them by rejecting all",)
    assert all_hold("k", "s", rows(*["0011"] * 9)).evidence == ("9 of 9 hold",)


def test_all_hold_without_rows_is_not_looked_at():
    assert all_hold("k", "s", []) == Claim("k", "s", None, ("there are no results",))
    assert all_hold("k", "s", [], "why").evidence == ("why",)


def test_all_hold_judges_each_row_by_its_own_alpha():
    low, high = rows("0" * 9 + "1" + "1" * 90, truth="0" * 10 + "1" * 90, alpha=0.9)[0], rows("0011", alpha=0.99)[0]
    assert all_hold("k", "s", [low, high]).held
    strict = rows("0" * 9 + "1" + "1" * 90, truth="0" * 10 + "1" * 90, alpha=0.95)[0]
    claim = all_hold("k", "s", [low, strict])
    assert claim.held is False and "lowest y=0: 9 of 10" in claim.evidence[0]
    assert claim.evidence[1:] == ("t, m0, e holds: admits 100.0%, of which 99.0% are right",)
