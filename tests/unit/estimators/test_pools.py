"""``control="pooled"`` of the classifier: what it promises, says and saves."""

from __future__ import annotations

import numpy as np
import pytest

from small import quiet
from torchsdm import SDMClassifier
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, SDMWarning
from torchsdm.evaluation import classifier_entrants, write_report
from torchsdm.evaluation.evaluation import Evaluation

NAMES = np.array([f"intent {number:02d}" for number in range(12)])
POOLS = {"even": NAMES[::2].tolist(), "odd": NAMES[1::2].tolist()}
QUICK = {"n_filters": 32, "n_rounds": 1, "training": "sdm", "max_epochs": 12, "learning_rate": 1e-2, "random_state": 0}


def blobs(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 12, n)
    return (5 * np.eye(12)[y] + rng.standard_normal((n, 12))).astype(np.float32), NAMES[y]


def fitted(**settings):
    with quiet():
        return SDMClassifier(0.9, **QUICK, **settings).fit(*blobs(2400, 0))


@pytest.fixture(scope="module")
def clf():
    return fitted(control="pooled", pools=POOLS)


def test_small_classes_are_certified_in_their_pools(clf):
    assert clf.certificate_.found
    assert clf.certificate_.pools == (tuple(range(0, 12, 2)), tuple(range(1, 12, 2)))
    sentence = clf.certificate_.holds_for(clf.classes_.tolist())
    assert "12 have too few points for a promise of their own and are taken together, in 2 pools" in sentence
    assert "any of 6 ('intent 00', 'intent 02', 'intent 04', ...)" in sentence
    decisions = clf.decide(blobs(300, 1)[0])
    reasons = decisions.reason[decisions.admitted].tolist()
    assert reasons and all("', pooled with 5 others" in text for text in reasons)
    assert "Anything for one of the pooled classes on its own" in clf.model_card()


def test_where_groups_cannot_be_certified_the_warning_names_pools():
    with pytest.warns(SDMWarning, match="pool small classes: control='pooled'"):
        SDMClassifier(0.9, **QUICK).fit(*blobs(1200, 0))


def test_without_pools_all_small_classes_are_one():
    certificate = fitted(control="pooled").certificate_
    assert certificate.found and certificate.pools == (tuple(range(12)),)


def test_pools_are_saved_and_used_again(clf, tmp_path):
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.pools == POOLS and loaded.certificate_.identity == clf.certificate_.identity
    assert loaded.certificate_.groups == clf.certificate_.groups
    X = blobs(200, 2)[0]
    assert loaded.decide(X).reason.tolist() == clf.decide(X).reason.tolist()
    loaded.recertify(*blobs(900, 3))
    assert loaded.certificate_.looks == 1 and loaded.certificate_.pools == clf.certificate_.pools


def test_other_pools_on_the_same_sample_are_another_look(clf, tmp_path):
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    loaded.recertify()
    assert loaded.certificate_.looks == 1  # the same question
    loaded.set_params(pools={"first": NAMES[:6].tolist(), "last": NAMES[6:].tolist()})
    with pytest.warns(SDMWarning, match="certificate 2 on the same"):
        loaded.recertify()
    assert loaded.certificate_.pools == (tuple(range(6)), tuple(range(6, 12)))


def test_others_are_certified_in_the_same_pools_and_the_report_says_so(clf, tmp_path):
    entrants = classifier_entrants(clf)
    certified = [one.estimator.certificate_ for one in entrants if one.name.startswith("certified")]
    assert any(one.pools == clf.certificate_.pools for one in certified)
    test = LabelledStates(*blobs(120, 4))
    write_report(tmp_path / "report.html", Evaluation(entrants, {"test": test}, 0.9), clf, title="Pools")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "prediction any of 6" in page and "taken together, in 2 pools" in page


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pools": POOLS}, "'pools' of .* are for control 'pooled'"),
        ({"control": "pooled", "pools": {"even": POOLS["even"]}}, "must name every class"),
        ({"control": "pooled", "pools": {**POOLS, "more": ["intent 03"]}}, "'intent 03' in two"),
        ({"control": "pooled", "pools": {"all": [*NAMES, "intent 99"]}}, "'intent 99', which is not one"),
        ({"control": "pooled", "pools": {"all": "intent 01"}}, "must be lists of classes"),
    ],
)
def test_pools_that_do_not_fit_the_classes_are_refused_before_training(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        SDMClassifier(0.9, n_rounds=1000, training="sdm", max_epochs=1000, **settings).fit(*blobs(400, 0))
