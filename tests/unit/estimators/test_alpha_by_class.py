"""``alpha`` as a mapping: regions, certificate, decisions, saving and updates with a target for each class."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest

import reference
from small import quietly, small_settings, two_groups
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.core import dkw_epsilon, log_activation
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation import Evaluation, classifier_entrants, write_report

draw = partial(two_groups, names=["ham", "spam"], distance=1.9)
ALPHA = {"spam": 0.92, "ham": 0.8}
SETTINGS = small_settings(n_filters=16, random_state=3)


@pytest.fixture(scope="module")
def _fitted():
    return quietly(lambda: SDMClassifier(alpha=ALPHA, **SETTINGS).fit(*draw(2000, 0)))


@pytest.fixture
def clf(_fitted):
    return copy.copy(_fitted)


def test_region_and_certificate_have_the_targets(clf):
    assert clf.region_.target == clf.certificate_.target == (0.8, 0.92)
    assert clf.region_.alpha == clf.certificate_.alpha == 0.8
    calibration = clf.model_.calibration
    p = log_activation(calibration.logits.double(), calibration.similarity, calibration.distance_quantile).exp()
    expected = reference.find_high_reliability_region(
        calibration.rescaled_similarity.tolist(), p.tolist(), calibration.labels.tolist(), (0.8, 0.92)
    )
    assert clf.region_.found and clf.region_.thresholds.tolist() == pytest.approx(expected.thresholds)
    assert clf.region_.min_rescaled_similarity == pytest.approx(expected.min_rescaled_similarity)


def test_the_promise_is_kept_by_class_and_by_prediction(clf):
    assert clf.certificate_.found
    X, y = draw(6000, 1)
    decisions = clf.decide(X)
    right = decisions.predictions == y
    for name, alpha in ALPHA.items():
        for of_group in (y == name, decisions.predictions == name):
            assert right[decisions.certified & of_group].mean() > alpha - 0.01
    lenient = quietly(lambda: copy.copy(clf).recertify(alpha=0.8))
    assert lenient.decide(X).certified.mean() > decisions.certified.mean()


def test_the_band_is_that_of_the_prediction(clf):
    decisions = clf.decide(draw(200, 2)[0])
    for name, alpha in ALPHA.items():
        rows = decisions.predictions == name
        expected = dkw_epsilon(decisions.effective_sample_sizes[rows], alpha)
        np.testing.assert_array_equal(decisions.dkw_epsilon[rows], expected.numpy())


def test_it_is_saved_and_loaded(clf, tmp_path):
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.alpha == ALPHA and loaded.region_.target == (0.8, 0.92)
    assert loaded.certificate_.identity == clf.certificate_.identity
    X = draw(50, 3)[0]
    assert loaded.decide(X).to_dicts() == clf.decide(X).to_dicts()
    quietly(loaded.recalibrate)
    assert loaded.region_.target == (0.8, 0.92)
    assert "alpha = 0.8 for 'ham', 0.92 for 'spam'" in loaded.model_card()


def test_numbers_as_classes_are_saved_and_loaded(tmp_path):
    fit = lambda: SDMClassifier(alpha={1: 0.9, 0: 0.8}, **SETTINGS).fit(*draw(600, 0, names=[0, 1]))  # noqa: E731
    quietly(fit).save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.alpha == {"1": 0.9, "0": 0.8}
    again = quietly(lambda: SDMClassifier(**loaded.get_params()).fit(*draw(600, 0, names=[0, 1])))
    assert again.region_.target == loaded.region_.target == (0.8, 0.9)


def test_other_targets_afterwards(clf):
    looks = clf.certificate_.looks
    quietly(lambda: clf.recalibrate({"ham": 0.75, "spam": 0.9}))
    assert clf.region_.target == clf.certificate_.target == (0.75, 0.9) and clf.certificate_.looks == looks + 1
    quietly(lambda: clf.recertify(alpha={"ham": 0.7, "spam": 0.9}))
    assert clf.certificate_.target == (0.7, 0.9) and clf.region_.target == (0.75, 0.9)
    quietly(lambda: clf.recertify(*draw(500, 5)))
    assert clf.certificate_.target == (0.7, 0.9) and clf.certificate_.looks == 1
    quietly(lambda: clf.recalibrate(0.85))
    assert clf.region_.target == clf.certificate_.target == 0.85


def test_equal_targets_are_one_alpha():
    one, mapped = (
        quietly(lambda alpha=alpha: SDMClassifier(alpha=alpha, **SETTINGS).fit(*draw(800, 0)))
        for alpha in (0.85, {"ham": 0.85, "spam": 0.85})
    )
    assert mapped.certificate_.identity == one.certificate_.identity and mapped.region_.target == 0.85


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": {"ham": 0.9, "span": 0.9}}, r"Did you mean 'spam'\?"),
        ({"alpha": {"ham": 0.9}}, "must name every class"),
        ({"alpha": {"ham": (0.9, 0.95), "spam": 0.9}}, "not both"),
        ({"alpha": ALPHA, "control": "all"}, "must be one number with control 'all'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_training(settings, words):
    clf = SDMClassifier(**{**SETTINGS, **settings, "max_epochs": 10**6})
    with pytest.raises(InvalidInputError, match=words):
        clf.fit(*draw(400, 0))


def test_all_together_is_refused_later_too(clf):
    clf.set_params(control="all")
    for change in (lambda: clf.recertify(), lambda: clf.recalibrate({"ham": 0.7, "spam": 0.9})):
        with pytest.raises(InvalidInputError, match="control 'all'"):
            quietly(change)
    assert clf.certificate_.target == (0.8, 0.92)


def test_an_ensemble_and_the_papers_protocol_have_targets_too():
    ensemble = quietly(lambda: SDMEnsemble(alpha=ALPHA, **{**SETTINGS, "n_rounds": 2}).fit(*draw(600, 0)))
    assert [model.calibration.regions[0].target for model in ensemble.models_] == [(0.8, 0.92)] * 2
    plain = SDMClassifier(alpha=ALPHA, certification_size=None, control="all", **SETTINGS)
    paper = quietly(lambda: plain.fit(*draw(600, 0)))
    assert paper.certificate_ is None and paper.region_.target == (0.8, 0.92)


def test_others_are_certified_alike_and_the_report_says_it(clf, tmp_path):
    pytest.importorskip("matplotlib")
    entrants = classifier_entrants(clf)
    certified = [one.estimator.certificate_ for one in entrants if getattr(one.estimator, "certificate_", None)]
    assert len(certified) == 5 and {one.target for one in certified} == {(0.8, 0.92)}
    evaluation = Evaluation(entrants, {"new": LabelledStates(*draw(300, 7))}, 0.8)
    assert "right at least as often as asked (0.8 for 'ham', 0.92 for 'spam')" in evaluation.table.note
    write_report(tmp_path / "report.html", evaluation, clf)
    assert "α = 0.8 for &#39;ham&#39;, 0.92 for &#39;spam&#39;" in (tmp_path / "report.html").read_text("utf-8")
