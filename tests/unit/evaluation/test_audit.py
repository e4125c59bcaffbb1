"""The label audit: wrong labels come first, and no label has a say in its own judgement."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
import torch

from small import quiet
from torchsdm import LabelledStates, SDMClassifier
from torchsdm import audit_labels as audit_part
from torchsdm.baselines import LogisticModel
from torchsdm.errors import CertificateWarning, InvalidInputError, InvalidTypeError
from torchsdm.evaluation import audit as audit_module
from torchsdm.trust import separate_ledger

audit_labels = partial(audit_part, certification_size=None)  # all rows, but where the part set aside is tested
CLASSES = np.array(["ant", "bee", "wasp"])
WRONG = [3, 50, 101, 177]


@pytest.fixture(scope="module")
def data():
    """Three blobs, true class numbers, and labels of which four are wrong."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 240)
    X = (rng.normal(size=(240, 6)) + 4 * np.eye(6)[truth]).astype(np.float32)
    given = truth.copy()
    given[WRONG] = (truth[WRONG] + 1) % 3
    return X, CLASSES[truth], CLASSES[given]


@pytest.fixture(scope="module")
def audit(data):
    return audit_labels(data[0], data[2])


def test_wrong_labels_come_first_with_their_true_class(data, audit):
    _, truth, given = data
    first = audit.rows[: len(WRONG)]
    assert sorted(one.row for one in first) == WRONG
    assert [one.suggested for one in first] == [truth[one.row] for one in first]
    assert [one.label for one in first] == [given[one.row] for one in first]
    assert set(first) <= set(audit.contradicted)
    assert all(one.suggested != one.label for one in audit.contradicted)
    assert sorted(one.row for one in audit.rows) == list(range(240))
    scores = [one.contradiction for one in audit.rows]
    assert scores == sorted(scores, reverse=True)


def plain_audit(X, y, k, seed, n_folds=5):
    """The equation of the module's docstring, row by row, with scikit-learn's parts."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    classes = sorted(set(y.tolist()))
    fold = np.random.default_rng(seed).permutation(len(X)) % n_folds
    directions = StandardScaler().fit_transform(X.astype(np.float64))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    result = []
    for i in range(len(X)):
        seen = fold != fold[i]
        scaler = StandardScaler().fit(X[seen])
        model = LogisticRegression(C=0.01, max_iter=1000).fit(scaler.transform(X[seen]), y[seen])
        p = model.predict_proba(scaler.transform(X[i : i + 1]))[0]
        distance = np.linalg.norm(directions - directions[i], axis=1)
        distance[i] = np.inf
        nearest = np.argsort(distance, kind="stable")[:k]
        v = np.array([(np.sum(y[nearest] == c) + 1) / (k + len(classes)) for c in classes])
        own = classes.index(y[i])
        result.append(np.log10(np.delete(p * v, own).sum() / (p[own] * v[own])))
    return np.array(result)


def test_the_score_is_that_of_the_equation(data):
    X, _, given = data
    rows = np.arange(60)
    audit = audit_labels(X[rows], given[rows], n_neighbors=7, random_state=3)
    expected = plain_audit(X[rows], given[rows], k=7, seed=audit.seed)
    found = {one.row: one.contradiction for one in audit.rows}
    np.testing.assert_allclose([found[row] for row in rows], expected, atol=1e-4)


def whole_tables(X, y, k, seed, n_folds=5):
    """The same equation on (N, C) tables of all rows, with the audit's own regression and neighbours."""
    classes, labels = np.unique(y, return_inverse=True)
    nearest = audit_module._neighbors(X, k)[1]
    votes = np.stack([(labels[nearest] == c).sum(axis=1) for c in range(len(classes))], axis=1)
    fold, log_p = np.random.default_rng(seed).permutation(len(X)) % n_folds, np.empty(votes.shape)
    for one in range(n_folds):
        model = LogisticModel(audit_module.PENALTY).fit(X[fold != one], labels[fold != one])
        log_p[fold == one] = torch.from_numpy(model.logits(X[fold == one])).double().log_softmax(dim=1)
    evidence = torch.from_numpy(log_p + np.log((votes + 1) / (k + len(classes)))).log_softmax(dim=1)
    given = torch.from_numpy(labels[:, None] == np.arange(len(classes)))
    contradiction = (evidence.masked_fill(given, -torch.inf).logsumexp(dim=1) - evidence[given]) / math.log(10)
    judged = zip(
        contradiction.tolist(),
        classes[evidence.argmax(dim=1)].tolist(),
        [math.exp(value) for value in log_p[given.numpy()]],
        votes[given.numpy()].tolist(),
        strict=True,
    )
    return dict(enumerate(judged)), evidence.exp().numpy()


@pytest.fixture(scope="module", params=[2, 3, 40])
def overlapping(request):
    """Points of so many classes that overlap."""
    rng, n = np.random.default_rng(1), 30 * request.param
    y = np.arange(n) % request.param
    return (rng.normal(size=(n, 6)) + 2 * rng.normal(size=(request.param, 6))[y]).astype(np.float32), y


@pytest.mark.parametrize("values_at_once", [1, 50, 1 << 20])
def test_rows_in_blocks_have_the_bits_of_whole_tables(overlapping, monkeypatch, values_at_once):
    monkeypatch.setattr(audit_module, "_VALUES_AT_ONCE", values_at_once)
    audit = audit_labels(*overlapping, n_neighbors=9, random_state=2)
    expected, evidence = whole_tables(*overlapping, k=9, seed=audit.seed)
    found = {one.row: (one.contradiction, one.suggested, one.probability, one.n_agreeing) for one in audit.rows}
    assert found == expected
    np.testing.assert_array_equal(audit.evidence, evidence)


def test_no_table_has_all_rows_and_classes(overlapping, monkeypatch):
    audit = audit_labels(*overlapping)
    n_classes = len(audit.classes)
    monkeypatch.setattr(audit_module, "_VALUES_AT_ONCE", 7 * n_classes)
    blocks = list(audit._witnesses.heard())
    assert {table.shape[1] for _, *tables in blocks for table in tables} == {n_classes}
    assert max(len(votes) for _, _, votes, _ in blocks) == 7
    assert sorted(row for rows, *_ in blocks for row in rows.tolist()) == list(range(len(audit.rows)))


@pytest.mark.parametrize("row", [3, 20, 101])
def test_a_label_has_no_say_in_its_own_judgement(data, audit, row):
    X, _, given = data
    changed = given.copy()
    changed[row] = CLASSES[(CLASSES.tolist().index(given[row]) + 1) % 3]
    other = audit_labels(X, changed)
    np.testing.assert_array_equal(other.evidence[row], audit.evidence[row])
    assert not np.array_equal(other.evidence, audit.evidence)  # but in that of others


def test_the_same_seed_gives_the_same_audit(data, audit):
    X, _, given = data
    again = audit_labels(X, given, random_state=0)
    assert again.rows == audit.rows and again.seed == audit.seed
    assert audit_labels(X, given, random_state=1).rows != audit.rows


def test_rows_are_told_with_ids_texts_places_and_the_nearest_that_contradict(data):
    X, _, given = data
    ids, texts = [f"i{row}" for row in range(240)], [f"text {row}" for row in range(240)]
    places = [f"line {row + 1}" for row in range(240)]
    labelled = LabelledStates(X, given, ids, texts, places=places)
    audit = audit_labels(labelled, n_neighbors=15, n_shown=2)
    first = audit.rows[0]
    assert (first.id, first.text, first.place) == (f"i{first.row}", f"text {first.row}", f"line {first.row + 1}")
    assert (first.n_neighbors, audit.n_neighbors) == (15, 15)
    assert len(first.neighbors) == 2 and first.neighbors[0].distance <= first.neighbors[1].distance
    for one in first.neighbors:
        assert one.label == given[one.row] != first.label
        assert (one.id, one.text, one.place) == (ids[one.row], texts[one.row], places[one.row])
    told = str(first)
    assert told.startswith(f"line {first.row + 1}, id 'i{first.row}': {first.label!r} -> {first.suggested!r}")
    assert f"{first.n_agreeing} of 15 neighbours agree" in told and told.count("\n") == 3
    assert json.loads(json.dumps(first.to_dict(), allow_nan=False))["neighbors"][1]["id"] == first.neighbors[1].id
    agreeing = sum(given[row] == first.label for row in nearest(X, first.row, 15))
    assert agreeing == first.n_agreeing


def nearest(X, row, k):
    directions = (X - X.mean(axis=0)) / X.std(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    order = np.argsort(np.linalg.norm(directions - directions[row], axis=1))
    return [other for other in order if other != row][:k]


def test_few_rows_have_all_others_as_neighbours_and_none_need_be_shown(data):
    X, truth, _ = data
    rows = np.concatenate([np.flatnonzero(truth == name)[:4] for name in CLASSES[:2]])
    audit = audit_labels(X[rows], truth[rows], n_folds=2, n_shown=0, random_state=1)
    assert audit.n_neighbors == 7 and not any(one.neighbors for one in audit.rows)
    assert [one.id for one in audit.rows] == [one.row for one in audit.rows]


def test_a_class_with_too_few_examples_is_named(data):
    X, truth, _ = data
    rows = np.concatenate([np.flatnonzero(truth == "ant"), np.flatnonzero(truth == "bee")[:7]])
    with pytest.raises(
        InvalidInputError, match=r"5 folds needs at least 10 .* Got 7 of class 'bee'\..* fewer .* n_folds"
    ):
        audit_labels(X[rows], truth[rows])
    audit_labels(X[rows], truth[rows], n_folds=3)


def test_a_class_that_falls_into_one_fold_is_named():
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    seed = audit_labels(X, y, n_folds=2).seed
    first_fold = np.flatnonzero(np.random.default_rng(seed).permutation(40) % 2 == 0)
    with pytest.raises(InvalidInputError, match=r"All examples of class 1 fell into one fold\..* random_state"):
        audit_labels(X, np.isin(np.arange(40), first_fold[:4]).astype(int), n_folds=2)


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [
        ({"n_folds": 1}, InvalidInputError, "'n_folds' of audit_labels must be at least 2"),
        ({"n_neighbors": 0}, InvalidInputError, "'n_neighbors' of audit_labels must be positive"),
        ({"n_shown": -1}, InvalidInputError, "'n_shown' of audit_labels must be at least 0"),
        ({"n_neighbors": 2.5}, InvalidTypeError, "'n_neighbors' of audit_labels must be an integer"),
        ({"y": None}, InvalidInputError, "'y' of audit_labels must contain labels"),
        ({"y": ["ant"] * 240}, InvalidInputError, "at least two classes"),
        ({"y": ["ant", "bee"] * 100}, InvalidInputError, "'y' of audit_labels must have one value for each of 240"),
        ({"ids": ["a"]}, InvalidInputError, "'ids' of audit_labels must have one value for each of 240"),
        ({"texts": ["a"]}, InvalidInputError, "'texts' of audit_labels must have one value"),
        ({"X": np.zeros((240, 2, 3))}, InvalidInputError, "pool the positions first"),
        ({"X": np.full((240, 3), np.nan)}, InvalidInputError, "must be finite"),
        ({"X": LabelledStates(np.eye(240), None)}, InvalidInputError, "takes no y, ids or texts"),
    ],
)
def test_wrong_arguments_are_refused(data, change, error, expected):
    arguments = {"X": data[0], "y": data[2], **change}
    with pytest.raises(error, match=expected):
        audit_labels(**arguments)


def test_a_part_is_set_aside_that_neither_is_judged_nor_judges(data):
    X, _, given = data
    texts, places = [f"text {row}" for row in range(240)], [f"line {row + 2}" for row in range(240)]
    pool = LabelledStates(X, given, [f"id {row}" for row in range(240)], texts, places=places)
    found = audit_part(pool, random_state=4)
    apart = found.set_aside
    assert len(apart) == 60 and sorted([*apart.tolist(), *(one.row for one in found.rows)]) == list(range(240))
    assert all((one.id, one.place, one.text) == (f"id {one.row}", f"line {one.row + 2}", f"text {one.row}")
               and one.label == given[one.row] for one in found.rows)  # fmt: skip
    assert not {other.row for one in found.rows for other in one.neighbors} & set(apart.tolist())
    changed = given.copy()
    changed[apart] = np.roll(given[apart], 7)
    again = audit_part(X, changed, random_state=4)
    np.testing.assert_array_equal(again.set_aside, apart)
    np.testing.assert_array_equal(again.evidence, found.evidence)
    alone = audit_labels(np.delete(X, apart, axis=0), np.delete(given, apart), random_state=4)
    np.testing.assert_array_equal(alone.evidence, found.evidence)


def test_a_later_fit_certifies_with_the_rows_that_were_set_aside(data):
    X, _, given = data
    apart = audit_part(X, given, random_state=4).set_aside
    settings = {"alpha": 0.7, "control": "all", "random_state": 9}
    with quiet():
        again = SDMClassifier(**settings).fit(X, given)
    np.testing.assert_array_equal(again.certification_rows_, apart)
    with pytest.warns(CertificateWarning, match="An audit has looked at 180 of the 240 rows, so only 60 can be held"):
        SDMClassifier(certification_size=0.5, **settings).fit(X, given)
    with quiet():
        given_too = SDMClassifier(**settings).fit(X[:100], given[:100], certification=(X[100:], given[100:]))
    assert given_too.certificate_.n_corrected == 140 - int((apart >= 100).sum()) > 50
    with separate_ledger(), quiet():
        other = SDMClassifier(**settings).fit(X, given)
    assert not np.array_equal(other.certification_rows_, apart)
