"""``SDMClassifier.choose_alpha``: what it looks at, what it leaves alone, and the certificate afterwards."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest

from small import quiet, small_settings, two_groups
from torchsdm import SDMClassifier
from torchsdm.errors import CertificateWarning, InvalidInputError
from torchsdm.estimators._fitting import scored_samples
from torchsdm.trust import AlphaCurve, Prices

draw = partial(two_groups, names=["ant", "bee"], distance=2.0)
SETTINGS = small_settings(n_filters=16, random_state=3)
PRICES = {"cost_error": 6.0, "cost_review": 1.0}


@pytest.fixture(scope="module")
def _fitted():
    with quiet():
        return SDMClassifier(alpha=0.95, **SETTINGS).fit(*draw(2400, 0))


@pytest.fixture
def clf(_fitted):
    return copy.copy(_fitted)


def test_it_is_the_choice_on_the_scored_calibration_points(clf):
    calibration, certification, _ = scored_samples(clf.model_, clf.model_.certification, clf.familiarity_)
    prices = Prices.of(*PRICES.values(), 2, "choose_alpha")
    expected = AlphaCurve.of(calibration, 2, len(certification)).choose(prices)
    choice = clf.choose_alpha(**PRICES)
    assert choice.to_json() == expected.to_json() and choice.pays and 0.6 < choice.alpha < 0.99


def test_it_changes_nothing(clf):
    before = dict(clf.__dict__)
    clf.choose_alpha(**PRICES)
    assert clf.__dict__ == before


def test_the_certification_sample_is_counted_but_not_looked_at(clf):
    choice, points = clf.choose_alpha(**PRICES), clf.model_.certification
    model = copy.copy(clf.model_)
    spoilt = replace(points.points, logits=-points.points.logits, exemplars=-points.points.exemplars)
    model.certification = replace(points, labels=1 - points.labels, points=spoilt)
    clf.models_ = (model,)
    assert clf.choose_alpha(**PRICES).to_json() == choice.to_json()
    fewer = clf.choose_alpha(**PRICES, n_certification=150)
    assert fewer.curve.n_certification == 150 and fewer.costs != choice.costs


def test_the_chosen_alpha_is_certified_afterwards_and_the_look_is_counted(clf):
    choice = clf.choose_alpha(**PRICES)
    with pytest.warns(CertificateWarning, match="certificate 2 on the same"):
        clf.recertify(alpha=choice.alpha)
    assert clf.certificate_.found and clf.certificate_.alpha == choice.alpha and clf.certificate_.looks == 2
    admitted = clf.decide(draw(3000, 1)[0]).admitted
    assert abs(admitted.mean() - choice.admitted_share) < 0.12
    new = draw(600, 2)
    clf.recertify(*new, alpha=clf.choose_alpha(**PRICES, n_certification=600).alpha)
    assert clf.certificate_.looks == 1


def test_prices_by_class(clf):
    by_class = clf.choose_alpha(cost_error={"bee": 12.0, "ant": 2.0}, cost_review=1.0)
    assert by_class.prices.error == (2.0, 12.0)
    with pytest.raises(InvalidInputError, match=r"Got 'aunt', which is not one. Did you mean 'ant'\?"):
        clf.choose_alpha(cost_error={"bee": 12.0, "aunt": 2.0}, cost_review=1.0)
    with pytest.raises(InvalidInputError, match=r"must name every class. Nothing was given for 'ant'"):
        clf.choose_alpha(cost_error={"bee": 12.0}, cost_review=1.0)


def test_after_an_update_the_calibration_points_are_matched_again(clf):
    clf.remove_exemplars(clf.model_.examples.ids()[:300])
    with quiet():
        choice = clf.choose_alpha(**PRICES)
        assert clf.model_.outdated
        clf.recalibrate()
        assert clf.choose_alpha(**PRICES).to_json() == choice.to_json()


def test_without_a_certification_set_its_size_must_be_said():
    with quiet():
        paper = SDMClassifier(alpha=0.9, certification_size=None, **SETTINGS).fit(*draw(800, 0))
    with pytest.raises(InvalidInputError, match=r"without a certification set. Say what you will"):
        paper.choose_alpha(**PRICES)
    choice = paper.choose_alpha(**PRICES, n_certification=400)
    assert choice.pays and paper.reliability_ is None
