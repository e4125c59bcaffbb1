"""Decisions: the selection rule with its bands, several alphas, and what they look like as JSON and as a table."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch

import reference
from torchsdm.core.decision import Decisions, SDMDecisions, decide
from torchsdm.core.region import HighReliabilityRegion
from torchsdm.core.signals import ClassEcdfs
from torchsdm.errors import InvalidInputError, MissingSignalError
from torchsdm.matching.search import Match

CLASSES = np.array(["ant", "bee", "cat"])
N, N_CALIBRATION = 120, 150


class Case:
    """Random logits and signals against random calibration scores, with regions at three alphas, given unsorted."""

    def __init__(self, seed=0, alphas=(0.8, 0.95, 0.7)):
        rng = np.random.default_rng(seed)
        self.logits = torch.from_numpy((rng.standard_normal((N, 3)) * 3).astype(np.float32))
        self.q = torch.from_numpy(rng.integers(0, 60, N) * (rng.random(N) < 0.9))
        self.distance = torch.from_numpy(rng.integers(0, 40, N) / 10.0)
        self.index = torch.from_numpy(rng.integers(0, 99, N))
        distances, labels = rng.integers(0, 35, N_CALIBRATION) / 10.0, rng.integers(0, 3, N_CALIBRATION)
        self.ecdfs = ClassEcdfs.fit(distances, np.ones(N_CALIBRATION), labels, 3)
        self.scores = torch.from_numpy(rng.integers(0, 40, N_CALIBRATION) / 2.0), torch.from_numpy(labels)
        # The nearer 1, the smaller the region; at 0.8 it lies partly outside that at 0.7.
        self.regions = [
            HighReliabilityRegion(
                alpha,
                4.0 + 30 * max(0.0, alpha - 0.75),
                torch.from_numpy(np.array([alpha, 1 - (1 - alpha) / 2, alpha + 0.01])),
                torch.tensor([9, 9, 9]),
            )
            for alpha in alphas
        ]
        self.regions[0] = dataclasses.replace(self.regions[0], min_rescaled_similarity=2.0)

    def decide(self, rows=slice(None), regions=None, classes=CLASSES):
        match = Match(self.q[rows], self.distance[rows], self.index[rows])
        return decide(self.logits[rows], match, self.ecdfs, *self.scores, regions or self.regions, classes)

    def expected(self, row, region):
        return reference.answer(
            self.logits[row].tolist(),
            int(self.q[row]),
            float(self.distance[row]),
            [values.tolist() for values in self.ecdfs.sorted_distances],
            *(scores.tolist() for scores in self.scores),
            region,
            region.alpha,
        )


@pytest.fixture(scope="module")
def case():
    return Case()


@pytest.fixture(scope="module")
def decisions(case):
    return case.decide()


# --- Equations -------------------------------------------------------------------------------------------------------


def test_what_does_not_depend_on_alpha_equals_the_reference(case, decisions):
    for row in range(N):
        expected = case.expected(row, case.regions[0])
        assert decisions.predictions[row] == CLASSES[expected.prediction]
        assert decisions.probabilities[row] == pytest.approx(expected.probabilities, abs=1e-12)
        assert decisions.confidence[row] == pytest.approx(expected.confidence, abs=1e-12)
        assert decisions.distance_quantile[row] == expected.distance_quantile
        assert decisions.rescaled_similarity[row] == pytest.approx(expected.rescaled_similarity, rel=1e-12)
        assert decisions.effective_sample_sizes[row].tolist() == expected.effective_sample_sizes
        assert decisions.out_of_distribution[row] == (case.q[row] == 0 or expected.distance_quantile == 0)
    assert decisions.similarity.tolist() == case.q.tolist()
    assert decisions.nearest_distance.tolist() == case.distance.tolist()
    assert decisions.nearest_index.tolist() == case.index.tolist()
    assert np.array_equal(decisions.logits, case.logits.numpy())
    assert decisions.alphas.tolist() == [0.7, 0.8, 0.95]


def test_admission_at_each_alpha_equals_the_reference(case, decisions):
    regions = sorted(case.regions, key=lambda region: region.alpha)
    for row in range(N):
        answers = [case.expected(row, region) for region in regions]
        assert decisions.admitted_at[row].tolist() == [answer.admitted for answer in answers]
        assert decisions.admitted_lower_at[row].tolist() == [answer.admitted_lower for answer in answers]
    for column in decisions.admitted_at.T:
        assert 3 < column.sum() < N - 3
    assert decisions.admitted_lower_at.any()


def test_the_largest_alpha_that_admits(decisions):
    for row in range(N):
        for at, alpha, admitted in (
            (decisions.admitted_at, decisions.admitted_alpha, decisions.admitted),
            (decisions.admitted_lower_at, decisions.admitted_lower_alpha, decisions.admitted_lower),
        ):
            holding = [a for a, holds in zip((0.7, 0.8, 0.95), at[row], strict=True) if holds]
            assert admitted[row] == bool(holding)
            assert alpha[row] == max(holding) if holding else math.isnan(alpha[row])
    # not a chain: some points are in the region of 0.8 but not in that of 0.7
    assert (decisions.admitted_at[:, 1] & ~decisions.admitted_at[:, 0]).any()
    assert len(set(decisions.admitted_alpha[decisions.admitted])) == 3


def test_bands_are_those_of_the_alpha_that_admits_or_of_the_smallest(case, decisions):
    by_alpha = {region.alpha: region for region in case.regions}
    for row in range(N):
        shown = (decisions.admitted_lower_alpha[row], decisions.admitted_alpha[row], 0.7)
        alpha = next(value for value in shown if not math.isnan(value))
        expected = case.expected(row, by_alpha[float(alpha)])
        assert decisions.dkw_epsilon[row] == pytest.approx(expected.dkw_epsilon, rel=1e-12)
        assert decisions.distance_quantile_lower[row] == pytest.approx(expected.distance_quantile_lower, abs=1e-12)
        assert decisions.distance_quantile_upper[row] == pytest.approx(expected.distance_quantile_upper, abs=1e-12)
        assert decisions.rescaled_similarity_lower[row] == pytest.approx(expected.rescaled_similarity_lower, rel=1e-11)
        own = expected.prediction
        assert decisions.confidence_lower[row] == pytest.approx(expected.probabilities_lower[own], abs=1e-11)
        assert decisions.confidence_upper[row] == pytest.approx(expected.probabilities_upper[own], abs=1e-11)
    assert (decisions.confidence_lower <= decisions.confidence).all()
    assert (decisions.confidence <= decisions.confidence_upper).all()


def test_the_quantile_within_the_predicted_class_is_that_of_a_loop():
    case = Case()
    decisions = case.decide()
    for row in range(N):
        c = int(case.logits[row].argmax())
        distances = case.ecdfs.sorted_distances[c].tolist()
        expected = 1 - sum(x < float(case.distance[row]) for x in distances) / len(distances)
        assert decisions.class_distance_quantile[row] == pytest.approx(expected, abs=1e-12)
    assert (decisions.class_distance_quantile >= decisions.distance_quantile).all()
    without = ClassEcdfs((torch.tensor([1.0]), torch.tensor([])))
    assert without.class_distance_quantile(torch.zeros(2), torch.tensor([0, 1])).tolist() == [1.0, 0.0]


def test_one_alpha_by_hand():
    # q = 7, d = 3/4 from eCDF (1, 2, 2, 3) at 2; logits differ by 4/3: 9^(3/4 * 4/3) = 9 : 1
    ecdfs = ClassEcdfs.fit([1.0, 2.0, 2.0, 3.0], [1] * 4, [0] * 4, 1)
    match = Match(torch.tensor([7]), torch.tensor([2.0], dtype=torch.float64), torch.tensor([5]))
    scores = torch.arange(100).double() / 100, torch.arange(100) % 2  # all below q'
    region = HighReliabilityRegion(0.8, 7.0, torch.tensor([0.9, 0.95], dtype=torch.float64), torch.tensor([9, 9]))
    logits = torch.tensor([[4 / 3, 0.0]], dtype=torch.float64)
    row = decide(logits, match, ecdfs, *scores, [region], np.array([10, 20]))
    assert row.predictions.tolist() == [10] and row.confidence[0] == pytest.approx(0.9, rel=1e-12)
    assert row.rescaled_similarity[0] == 7.0  # min(7, 9^0.9 = 7.22)
    assert row.class_distance_quantile[0] == 0.75
    assert row.effective_sample_sizes.tolist() == [[50, 50]]
    epsilon = math.sqrt(math.log(2 / 0.2) / 100)
    assert row.dkw_epsilon[0] == pytest.approx(epsilon)
    assert row.distance_quantile_lower[0] == pytest.approx(0.75 - epsilon)
    assert row.distance_quantile_upper[0] == pytest.approx(0.75 + epsilon)
    lower = 9 ** ((0.75 - epsilon) * 4 / 3)
    assert row.confidence_lower[0] == pytest.approx(lower / (1 + lower))
    assert row.rescaled_similarity_lower[0] == pytest.approx(9 ** (lower / (1 + lower)))
    assert not row.admitted_lower[0] and not row.out_of_distribution[0]


def test_the_lower_estimator_must_reach_the_region_in_both_ways():
    # d = 1, logits 1 : 0, effective sizes 50: epsilon = sqrt(ln 10 / 100) = 0.1517, d_lower = 0.8483
    ecdfs = ClassEcdfs.fit([1.0, 2.0], [1, 1], [0, 0], 1)
    match = Match(torch.tensor([98]), torch.tensor([0.0], dtype=torch.float64), torch.tensor([0]))
    scores = torch.arange(100).double() / 100, torch.arange(100) % 2
    lower = 100**0.8482573 / (1 + 100**0.8482573)  # 0.9803, where the confidence is 100/101 = 0.9901
    assert 100**lower == pytest.approx(91.3, abs=0.05)  # q'_lower, where q' is 95.5

    def admits(min_rescaled_similarity, threshold):
        thresholds = torch.tensor([threshold, 1.0], dtype=torch.float64)
        region = HighReliabilityRegion(0.8, min_rescaled_similarity, thresholds, torch.tensor([9, 9]))
        logits = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        row = decide(logits, match, ecdfs, *scores, [region], np.array([10, 20]))
        return row.admitted.tolist(), row.admitted_lower.tolist()

    assert admits(90.0, 0.98) == ([True], [True])
    assert admits(94.0, 0.98) == ([True], [False])  # q'_lower is too small
    assert admits(90.0, 0.985) == ([True], [False])  # the lower confidence is
    assert admits(96.0, 0.98) == ([False], [False])


def test_the_prediction_is_the_argmax_of_the_logits_even_where_the_probabilities_tie():
    ecdfs = ClassEcdfs.fit([1.0], [1], [0], 1)
    far = Match(torch.tensor([3]), torch.tensor([50.0], dtype=torch.float64), torch.tensor([0]))
    scores = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    region = HighReliabilityRegion(0.9, 1.0, torch.full((3,), 0.3, dtype=torch.float64), torch.ones(3))
    row = decide(torch.tensor([[0.0, 1.0, 5.0]]), far, ecdfs, *scores, [region], CLASSES)
    assert row.predictions.tolist() == ["cat"] and row.out_of_distribution.tolist() == [True]
    assert row.probabilities[0] == pytest.approx([1 / 3] * 3)


def test_without_a_region_everything_is_rejected(case):
    nothing = HighReliabilityRegion(0.9, math.inf, torch.full((3,), torch.inf, dtype=torch.float64), torch.zeros(3))
    rejected = case.decide(regions=[nothing])
    assert not rejected.admitted.any() and not rejected.admitted_lower.any()
    assert np.isnan(rejected.admitted_alpha).all() and rejected.admitted_at.shape == (N, 1)


def test_a_row_does_not_depend_on_its_batch(case, decisions):
    for rows in (slice(0, 1), slice(5, 12), slice(23, 120), slice(119, 120)):
        part = case.decide(rows)
        for name, value in part._columns():
            np.testing.assert_array_equal(value, getattr(decisions, name)[rows], err_msg=name)


# --- Shapes of the answer --------------------------------------------------------------------------------------------


def strict(value):
    return json.loads(json.dumps(value, allow_nan=False))


def test_dictionaries_are_strict_json_and_hold_every_value(decisions):
    rows = strict(decisions.to_dicts())
    assert len(rows) == N
    names = {field.name for field in dataclasses.fields(SDMDecisions)} - {"classes", "alphas"} | {"magnitude"}
    names = names - {"predictions"} | {"prediction"}  # a row holds one
    names -= {"score", "set_sizes", "member"}  # of other estimators
    names -= {"certified", "certificate", "lane", "reason", "familiarity"}  # added by torchsdm.trust
    names -= {"background"}  # only where a model was shown some
    for number, row in enumerate(rows):
        assert set(row) == names
        assert row["prediction"] == decisions.predictions[number]
        assert row["confidence"] == decisions.confidence[number]
        assert row["similarity"] == decisions.similarity[number]
        assert row["magnitude"] == max(row["logits"].values())
        assert row["admitted"] is bool(decisions.admitted[number])
        assert row["probabilities"] == dict(zip(CLASSES, decisions.probabilities[number], strict=True))
        assert row["effective_sample_sizes"] == dict(
            zip(CLASSES, decisions.effective_sample_sizes[number], strict=True)
        )
        assert row["admitted_at"] == dict(zip(["0.7", "0.8", "0.95"], decisions.admitted_at[number], strict=True))
        expected = decisions.admitted_alpha[number]
        assert row["admitted_alpha"] == (None if math.isnan(expected) else expected)


def test_infinite_distances_become_null(decisions):
    endless = dataclasses.replace(decisions, nearest_distance=np.full(N, np.inf))
    assert {row["nearest_distance"] for row in strict(endless.to_dicts())} == {None}


def test_labels_keep_their_type(case):
    for classes, kind in ((np.array([3, 5, 8]), int), (np.array([0.5, 1.5, 2.5]), float)):
        decided = case.decide(classes=classes)
        rows = decided.to_dicts()
        assert {type(row["prediction"]) for row in rows} == {kind}
        assert list(rows[0]["probabilities"]) == [str(label) for label in classes.tolist()]


def test_table_has_a_column_per_class_and_per_alpha(decisions):
    table = decisions.to_pandas()
    assert len(table) == N
    assert table["prediction"].tolist() == decisions.predictions.tolist()
    for c, name in enumerate(CLASSES):
        assert table[f"probabilities[{name}]"].tolist() == decisions.probabilities[:, c].tolist()
        assert table[f"logits[{name}]"].tolist() == decisions.logits[:, c].tolist()
        assert table[f"effective_sample_sizes[{name}]"].tolist() == decisions.effective_sample_sizes[:, c].tolist()
    for a, alpha in enumerate(("0.7", "0.8", "0.95")):
        assert table[f"admitted_at[{alpha}]"].tolist() == decisions.admitted_at[:, a].tolist()
        assert table[f"admitted_lower_at[{alpha}]"].tolist() == decisions.admitted_lower_at[:, a].tolist()
    one_dimensional = {name for name, value in decisions._columns() if value.ndim == 1}
    assert one_dimensional - {"predictions"} | {"prediction", "magnitude"} <= set(table.columns)
    assert len(table.columns) == len(one_dimensional) + 1 + 3 * 3 + 2 * 3
    assert int(table["admitted"].sum()) == int(decisions.admitted.sum())


def test_rows_can_be_chosen(decisions):
    for rows, positions in (
        (4, [4]),
        (np.int64(4), [4]),
        (-1, [N - 1]),
        (slice(2, 9, 3), [2, 5, 8]),
        ([7, 7, 1], [7, 7, 1]),
        (decisions.admitted, np.flatnonzero(decisions.admitted).tolist()),
    ):
        chosen = decisions[rows]
        assert len(chosen) == len(positions)
        for name, value in chosen._columns():
            np.testing.assert_array_equal(value, getattr(decisions, name)[positions])
        assert chosen.classes is decisions.classes and chosen.alphas is decisions.alphas


def test_rows_can_be_joined(decisions):
    joined = Decisions.concatenate([decisions[:50], decisions[50:51], decisions[51:]])
    assert type(joined) is SDMDecisions
    for name, value in joined._columns():
        np.testing.assert_array_equal(value, getattr(decisions, name))
    assert joined.alphas.tolist() == decisions.alphas.tolist()


def test_admission_can_be_replaced(decisions):
    at = np.zeros((N, 3), dtype=bool)
    at[0, 0] = at[1, 0] = at[1, 2] = True
    other = decisions.with_admission(at)
    assert np.flatnonzero(other.admitted).tolist() == [0, 1] and other.admitted_alpha[:2].tolist() == [0.7, 0.95]
    assert other.admitted_at is at and np.array_equal(other.admitted_lower_at, decisions.admitted_lower_at)


def test_the_rows_of_an_ensemble_are_admitted_by_all_rounds(decisions):
    at = np.zeros((N, 3), dtype=bool)
    at[0, 0] = at[1, 0] = at[1, 2] = True
    member = np.arange(N) % 2
    replaced = decisions.of_rounds(at, member)
    assert np.flatnonzero(replaced.admitted).tolist() == np.flatnonzero(replaced.admitted_lower).tolist() == [0, 1]
    assert replaced.admitted_alpha[:2].tolist() == replaced.admitted_lower_alpha[:2].tolist() == [0.7, 0.95]
    assert replaced.member is member and np.array_equal(replaced.confidence, decisions.confidence)
    assert strict(replaced.to_dicts())[1]["member"] == 1


def test_representation_counts_the_admitted(decisions):
    assert repr(decisions) == f"SDMDecisions({N} inputs, {int(decisions.admitted.sum())} admitted)"


# --- The two kinds ---------------------------------------------------------------------------------------------------


def other_estimator():
    return Decisions.of_probabilities(
        CLASSES, [0.7, 0.9], np.eye(3), 0.4 * np.eye(3) + 0.2, np.array([[1, 1], [1, 0], [0, 0]], dtype=bool)
    )


def test_other_estimators_have_no_signals_and_say_so():
    others = other_estimator()
    assert isinstance(others, Decisions) and not isinstance(others, SDMDecisions)
    assert others.score is None and "score" not in others.to_dicts()[0] and "similarity" not in others.to_dicts()[0]
    with pytest.raises(MissingSignalError, match=r"These decisions have no 'similarity': it is a signal of SDM, "):
        _ = others.similarity
    with pytest.raises(AttributeError, match=r"'Decisions' object has no attribute 'wings'"):
        _ = others.wings
    assert not hasattr(others, "dkw_epsilon") and copy.copy(others).admitted.tolist() == [True, True, False]


def test_one_of_several_alphas(case, decisions):
    """What is cut out of the answer for several alphas is the answer for one, to the last bit."""
    for region in case.regions:
        alone = case.decide(regions=[region])
        cut = decisions[::-1].at(region.alpha)[::-1]
        assert cut.alphas.tolist() == [region.alpha] and type(cut) is SDMDecisions
        for name, value in alone._columns():
            np.testing.assert_array_equal(getattr(cut, name), value, err_msg=name)
        assert cut.at(region.alpha) is cut
    with pytest.raises(InvalidInputError, match=r"must be one of those requested, 0.7, 0.8, 0.95. Got 0.9"):
        decisions.at(0.9)


def test_one_of_several_alphas_of_another_estimator():
    others = dataclasses.replace(other_estimator(), set_sizes=np.array([1, 2, 2]))
    cut = others.at(0.9)
    assert cut.admitted.tolist() == [True, False, False] and cut.set_sizes is None
    assert cut.admitted_alpha[0] == 0.9 and np.isnan(cut.admitted_alpha[1:]).all()
