"""The ensemble: how J decisions become one."""

from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np
import pytest

from small import quiet
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.core import SDMDecisions
from torchsdm.errors import InvalidInputError, NoRegionWarning
from torchsdm.estimators.ensemble import _most_frequent, combine
from torchsdm.labels import LabelCodes

CLASSES = np.array(["ant", "bee", "cat"])
CODES = LabelCodes(CLASSES)


def member(predictions, confidence, lower_at, alphas=(0.8,)):
    """Decisions of one round; numbers that do not matter tell the round and the row apart."""
    n, names = len(predictions), {field.name for field in dataclasses.fields(SDMDecisions)}
    at = np.asarray(lower_at, dtype=bool).reshape(n, len(alphas))
    columns = {name: np.asarray(confidence) * 100 for name in names - {"classes", "alphas", "member"}}
    columns |= {
        "predictions": np.array(predictions),
        "confidence": np.asarray(confidence),
        "admitted_lower_at": at,
        "admitted_at": np.ones_like(at),
        "probabilities": np.tile(np.asarray(confidence)[:, None], (1, 3)),
    }
    return SDMDecisions(classes=CLASSES, alphas=np.array(alphas), **columns)


def test_most_frequent_and_of_several_the_smallest():
    votes = np.array([[0, 2, 1, 2], [0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 2, 0]])
    assert _most_frequent(votes, 3).tolist() == [0, 2, 1, 2]


def test_all_must_agree_and_all_must_admit():
    #          agree, admit   agree, one rejects   one disagrees   tie
    members = [
        member(["ant", "bee", "cat", "cat"], [0.9, 0.9, 0.9, 0.9], [1, 1, 1, 1]),
        member(["ant", "bee", "cat", "bee"], [0.7, 0.8, 0.6, 0.5], [1, 0, 1, 1]),
        member(["ant", "bee", "ant", "ant"], [0.8, 0.7, 0.1, 0.4], [1, 1, 1, 1]),
    ]
    joined = combine(members, CODES)
    assert joined.predictions.tolist() == ["ant", "bee", "cat", "ant"]  # three ways: the smallest label
    assert joined.admitted.tolist() == joined.admitted_lower.tolist() == [True, False, False, False]
    assert joined.admitted_alpha[0] == 0.8 and np.isnan(joined.admitted_alpha[1:]).all()
    # the smallest confidence among the rounds that agree: 0.1 of the third round does not count for row 2
    assert joined.confidence.tolist() == [0.7, 0.7, 0.6, 0.4]
    assert joined.member.tolist() == [1, 2, 1, 2]
    assert joined.nearest_distance.tolist() == pytest.approx([70, 70, 60, 40])  # the row is of one round, whole
    assert joined.probabilities[:, 0].tolist() == [0.7, 0.7, 0.6, 0.4]


def test_several_alphas_are_admitted_each_for_itself():
    members = [
        member(["ant", "ant"], [0.9, 0.8], [[1, 1, 0], [1, 1, 1]], alphas=(0.7, 0.8, 0.9)),
        member(["ant", "ant"], [0.7, 0.9], [[1, 1, 1], [0, 0, 1]], alphas=(0.7, 0.8, 0.9)),
    ]
    joined = combine(members, CODES)
    assert joined.admitted_at.tolist() == [[True, True, False], [False, False, True]]
    assert joined.admitted_alpha.tolist() == [0.8, 0.9]


@pytest.fixture
def ensemble(fitted):
    return SDMEnsemble.from_classifier(fitted)


def test_an_ensemble_of_a_classifier_has_its_rounds(fitted, ensemble, insects):
    joined = ensemble.decide(insects.fresh)
    rounds = [model.decide(ensemble._check_input(insects.fresh, "decide")) for model in fitted.round_models_]
    for row in range(len(joined)):
        votes = [decisions.predictions[row] for decisions in rounds]
        winner = max(sorted(set(votes)), key=votes.count)
        agreeing = [j for j, vote in enumerate(votes) if vote == winner]
        witness = min(agreeing, key=lambda j: rounds[j].confidence[row])
        assert joined.predictions[row] == winner and joined.member[row] == witness
        assert joined.confidence[row] == rounds[witness].confidence[row]
        at = [
            len(agreeing) == len(rounds) and all(decisions.admitted_lower_at[row, a] for decisions in rounds)
            for a in range(2)
        ]
        assert joined.admitted_at[row].tolist() == at
    assert joined.admitted.any() and not joined.admitted.all()
    assert ensemble.predict(insects.fresh).tolist() == joined.predictions.tolist()
    assert joined.alphas.tolist() == [0.8, 0.9]


def test_an_ensemble_trained_on_its_own_is_the_same(ensemble, insects):
    parameters = ensemble.get_params()
    with quiet():
        trained = SDMEnsemble(**parameters).fit(insects.X, insects.y, ids=insects.ids)
    first, again = ensemble.decide(insects.fresh), trained.decide(insects.fresh)
    assert np.array_equal(first.confidence, again.confidence) and np.array_equal(first.admitted, again.admitted)


def test_explanations_are_of_the_round_that_the_row_has(ensemble, insects):
    decisions = ensemble.decide(insects.fresh)
    rows = decisions.to_dicts()
    explanations = ensemble.explain(insects.fresh, k=2)
    assert [explanation.decision for explanation in explanations] == rows
    assert len(set(decisions.member.tolist())) == 2
    for row, explanation in zip(rows, explanations, strict=True):
        model = ensemble.models_[row["member"]]
        nearest = explanation.exemplars[0]
        assert nearest.index == row["nearest_index"] and nearest.distance == row["nearest_distance"]
        assert nearest.id == model.examples.rows([nearest.index])[0][0]


def test_updates_reach_every_round(ensemble, insects):
    ensemble.add_exemplars(insects.fresh[:2], ["wasp", "ant"], ids=["odd", "new"], allow_new_labels=True)
    assert [len(model.support) for model in ensemble.models_] == [122, 122]
    assert (ensemble.decide(insects.fresh[:1]).nearest_distance == 0).all()
    ensemble.remove_exemplars(["odd"])
    assert [len(model.support) for model in ensemble.models_] == [121, 121]
    with pytest.raises(InvalidInputError, match="Got 'odd', which is not one"):
        ensemble.remove_exemplars(["odd"])


def test_an_added_point_has_one_number_in_all_rounds(insects):
    with quiet():
        ensemble = SDMEnsemble(alpha=0.7, n_filters=4, n_rounds=4, training="sdm", max_epochs=1, random_state=0)
        ensemble.fit(insects.X[:40], insects.y[:40])  # ids are row numbers
    ensemble.add_exemplars(insects.X[40:42], insects.y[40:42])
    added = {tuple(model.examples.all()[0][-2:]) for model in ensemble.models_}
    assert len(added) == 1 and not set(added.pop()) & set(range(40))


def test_a_training_point_is_updated_in_the_rounds_that_have_it(ensemble):
    first, second = (set(model.examples.all()[0]) for model in ensemble.models_)
    only_first = sorted(first - second)[0]
    ensemble.remove_exemplars([only_first])
    assert [len(model.support) for model in ensemble.models_] == [119, 120]


def test_a_classifier_without_its_rounds_is_refused(insects, fitted):
    with pytest.raises(InvalidInputError, match=r"must be fitted with keep_rounds=True.* Got one without its rounds"):
        SDMEnsemble.from_classifier(SDMClassifier())
    with quiet():
        fitted.set_params(max_epochs=1, n_rounds=1).fit(insects.X, insects.y)
    with pytest.raises(InvalidInputError, match=r"must be fitted with keep_rounds=True"):
        SDMEnsemble.from_classifier(fitted)  # the rounds of the fit before are not those of this one


def test_far_points_are_rejected(ensemble, insects):
    far = ensemble.decide(insects.fresh[-3:])
    assert not far.admitted.any() and far.out_of_distribution.all()
    assert all(math.isnan(alpha) for alpha in far.admitted_alpha)


def told_by(call):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    return [(type(one.message), one.message.what) for one in told]


WEAK = {
    "alpha": 0.9,
    "min_class_count": 1000,
    "n_filters": 6,
    "n_rounds": 3,
    "training": "sdm",
    "max_epochs": 4,
    "learning_rate": 1e-2,
}


def test_a_matter_of_several_rounds_is_told_once(insects):
    ensemble = SDMEnsemble(**WEAK, random_state=0)
    ((kind, said),) = told_by(lambda: ensemble.fit(insects.X, insects.y))
    assert kind is NoRegionWarning and [one.what for one in ensemble.warnings()] == [said]
    assert said.startswith("Round 1, and likewise 2 of the others: No high-reliability region at alpha=0.9; everything")
    assert told_by(lambda: ensemble.recalibrate()) == [(kind, said)]


def test_rounds_that_are_only_kept_say_nothing(insects):
    alone, kept = (SDMClassifier(**WEAK, certification_size=None, random_state=0) for _ in range(2))
    told = told_by(lambda: alone.fit(insects.X, insects.y))
    assert len(told) == 1 and told_by(lambda: kept.fit(insects.X, insects.y, keep_rounds=True)) == told
