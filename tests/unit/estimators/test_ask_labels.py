"""``SDMClassifier.ask_labels``: what is asked, what the labels come to, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from small import quiet, quietly, small_settings, two_groups
from torchsdm import LabelledStates, SDMClassifier
from torchsdm.core import GroupCounts
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import Certify, LabelRequest
from torchsdm.estimators._fitting import scored_samples
from torchsdm.labels import NO_LABEL
from torchsdm.model import Certification
from torchsdm.trust import separate_ledger

draw = partial(two_groups, names=["ant", "bee"], distance=1.9)
POOL, TRUTH = draw(4000, 1)


@pytest.fixture(scope="module")
def _fitted():
    with quiet():
        return SDMClassifier(alpha=0.9, **small_settings(n_filters=16)).fit(*draw(2400, 0))


@pytest.fixture
def clf(_fitted):
    return copy.copy(_fitted)


@pytest.fixture
def request_(clf):
    return clf.ask_labels(POOL, 300, random_state=0)


def test_the_certificate_is_that_of_all_points_that_were_drawn(clf, request_):
    plain = copy.copy(clf)
    quietly(lambda: clf.recertify(request_, TRUTH[request_.rows_to_label]))
    with separate_ledger():  # or it would be a second look at the same rows
        quietly(lambda: plain.recertify(POOL[request_.rows], TRUTH[request_.rows]))
    asked, full = clf.certificate_, plain.certificate_
    assert full.found and (full.thresholds >= request_.floor).all()
    assert asked.identity == full.identity and asked.groups == full.groups and asked.u == full.u
    assert asked.n_certification == len(request_.rows) and not full.n_unlabelled
    assert asked.n_unlabelled == len(request_.rows) - len(request_.ids) > 20
    assert f"({len(request_.ids)} of them labelled)" in asked.holds_for()
    np.testing.assert_array_equal(clf.decide(POOL[:200]).admitted, plain.decide(POOL[:200]).admitted)


def test_what_is_asked_is_what_reaches_the_floor(clf, request_):
    assert request_.rows.tolist() == np.random.default_rng(0).permutation(4000)[: len(request_.rows)].tolist()
    decisions = clf.decide(POOL[request_.rows])
    reaches = decisions.score >= request_.floor[np.unique(decisions.predictions, return_inverse=True)[1]]
    assert request_.needs_label.tolist() == (reaches & (decisions.lane != "unfamiliar")).tolist()
    assert len(request_.ids) == pytest.approx(300, abs=40)
    plain = request_.to_dict()
    assert plain["n_to_label"] == len(plain["ids"]) and plain["n_drawn"] == len(request_.rows) and plain["alpha"] == 0.9


def test_asking_changes_nothing_and_looks_at_no_certification_label(clf, request_):
    before = dict(clf.__dict__)
    same = clf.ask_labels(LabelledStates(POOL, TRUTH), 300, random_state=0)
    assert clf.__dict__ == before and same.ids == request_.ids
    model = copy.copy(clf.model_)
    points = vars(model.certification)
    model.certification = Certification(**{**points, "labels": 1 - points["labels"]})
    clf.models_ = (model,)
    assert clf.ask_labels(POOL, 300, random_state=0).to_dict() == request_.to_dict()
    assert clf.ask_labels(POOL, 300, random_state=1).ids != request_.ids


def test_a_label_that_nobody_can_give_is_an_error(clf, request_):
    plain = copy.copy(clf)
    labels = TRUTH[request_.rows_to_label].tolist()
    quietly(lambda: plain.recertify(request_, labels))
    scores = scored_samples(plain.model_, plain.model_.certification, 0.05)[1].score[request_.needs_label]
    labels[int(np.argmax(scores))] = None
    quietly(lambda: clf.recertify(request_, labels))
    assert clf.certificate_.n_unlabelled == plain.certificate_.n_unlabelled + 1
    assert (clf.certificate_.thresholds >= plain.certificate_.thresholds).all()  # it weighs on both
    asked = replace(plain.certificate_, thresholds=clf.certificate_.thresholds)
    _, sample, _ = scored_samples(plain.model_, plain.model_.certification, 0.05)
    admitted = asked.admits(sample.predictions, sample.score, sample.eligible)
    before = GroupCounts.of(sample.labels, sample.predictions, admitted, 2)
    more = [group.n_errors - k for group, k in zip(clf.certificate_.groups, before.k.tolist(), strict=True)]
    assert sorted(more[:2]) == [1, 1] and sorted(more[2:]) == [0, 1]  # of both true classes, and of its prediction


def test_it_survives_saving_and_the_log(clf, request_, tmp_path):
    given = request_.answered(TRUTH[request_.rows_to_label])
    entry = quietly(lambda: Certify(given, request_.alpha).apply(clf))
    assert entry.labels.count(NO_LABEL) == clf.certificate_.n_unlabelled > 0
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.certificate_.to_json() == clf.certificate_.to_json()
    quietly(lambda: loaded.recertify(alpha=0.8))
    assert loaded.certificate_.n_unlabelled == clf.certificate_.n_unlabelled and loaded.certificate_.looks == 2
    assert "ant" in loaded.model_card()


def test_a_changed_model_takes_the_labels_and_admits_no_more_than_it_may(clf, request_):
    """Points that the new model could admit and that have no label count as errors."""
    clf.add_exemplars(*draw(900, 7))
    plain = copy.copy(clf)
    quietly(lambda: clf.recertify(request_, TRUTH[request_.rows_to_label]))
    quietly(lambda: plain.recertify(POOL[request_.rows], TRUTH[request_.rows]))
    assert (clf.certificate_.thresholds >= plain.certificate_.thresholds).all()


def test_a_request_survives_storage(request_, tmp_path):
    request_.save(tmp_path / "request")
    again = LabelRequest.load(tmp_path / "request")
    assert again.to_dict() == request_.to_dict()
    np.testing.assert_array_equal(again.drawn.hidden_states, request_.drawn.hidden_states)
    (tmp_path / "other").write_bytes(b"{}")
    with pytest.raises(InvalidInputError, match="no request for labels that can be read"):
        LabelRequest.load(tmp_path / "other")


def test_what_is_refused(clf, request_):
    labels = TRUTH[request_.rows_to_label].tolist()
    by_id = dict(zip(request_.ids, labels, strict=True))
    with pytest.raises(InvalidInputError, match="must have one"):
        clf.recertify(request_, labels[1:])
    with pytest.raises(InvalidInputError, match=r"2 are missing: .*Label all"):
        request_.answered(dict(list(by_id.items())[2:]))
    with pytest.raises(InvalidInputError, match="No label was asked for 'x'"):
        request_.answered({**by_id, "x": "ant"})
    with pytest.raises(InvalidInputError, match="only labels seen in fit"):
        clf.recertify(request_, ["wasp", *labels[1:]])
    with pytest.raises(InvalidInputError, match=r"'n' of SDMClassifier\.ask_labels must be"):
        clf.ask_labels(POOL, 0)
    with pytest.raises(InvalidInputError, match="Already in the"):
        clf.ask_labels(draw(2400, 0)[0], 100, random_state=0)
    assert NO_LABEL not in clf._codes.outside


def test_copies_in_the_pool_are_asked_about_and_tested_once(clf):
    pool, truth = np.concatenate([POOL[:1500]] * 2), np.concatenate([TRUTH[:1500]] * 2)
    before = dict(clf.__dict__)
    request = clf.ask_labels(pool, 2000, random_state=0)
    assert clf.__dict__ == before and len(request.needs_label) == len(request.rows)
    quietly(lambda: clf.recertify(request, truth[request.rows_to_label]))
    n_different = len(np.unique(request.rows % 1500))
    assert n_different < len(request.rows)
    assert clf.certificate_.n_certification == n_different
    assert clf.certificate_.n_left_out == len(request.rows) - n_different
