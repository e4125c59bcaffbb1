"""Copies and groups: rows that belong together fall into one part, and one of them is certified with."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from conftest import make_blobs
from sdm_command import call as sdm
from sdm_command import good, refused
from small import quiet, small_settings, write_jsonl
from torchsdm import LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.data import ModelOrigin, PoolingOrigin, PromptOrigin, StatesOrigin
from torchsdm.errors import CopiesWarning, DataWarning, InvalidInputError
from torchsdm.training import certification_split, stratified_split
from torchsdm.training.linear import folds_of
from torchsdm.training.rounds import Training

BLOBS = make_blobs(seed=0, n=1200, distance=3.0, n_inputs=8)
GROUPS = np.random.default_rng(0).integers(0, 300, 1200)
SETTINGS = {"alpha": 0.8, "random_state": 0}
ROUNDS = small_settings(n_rounds=2, max_epochs=2)


# --- Splits ----------------------------------------------------------------------------------------------------------


def test_no_split_shares_a_group_among_its_parts():
    labels = np.random.default_rng(1).integers(0, 3, 1200)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        train, calibration = stratified_split(labels, 0.4, rng, GROUPS)
        assert sorted([*train, *calibration]) == list(range(1200)) and 0.35 < len(calibration) / 1200 < 0.45
        assert not set(GROUPS[train]) & set(GROUPS[calibration])
        folds = folds_of(labels, 5, rng, GROUPS)
        assert all(len(set(folds[group == GROUPS])) == 1 for group in np.unique(GROUPS)) and set(folds) == set(range(5))
        held, _ = certification_split(labels, 0.25, seed, GROUPS)
        assert len(set(GROUPS[held])) == round(len(set(GROUPS)) / 4) and set(GROUPS[held]).isdisjoint(
            np.delete(GROUPS, held)
        )


def test_rows_that_are_alone_are_split_as_ever():
    labels, alone = np.random.default_rng(1).integers(0, 3, 500), np.random.default_rng(2).permutation(500)
    np.testing.assert_array_equal(certification_split(labels, 0.3, 5)[0], certification_split(labels, 0.3, 5, None)[0])
    plain, grouped = (
        stratified_split(labels, 0.5, np.random.default_rng(0), groups)[1] for groups in (None, np.arange(500))
    )
    np.testing.assert_array_equal(plain, grouped)
    with quiet():
        one, other = (
            SDMClassifier(**SETTINGS).fit(BLOBS.X, BLOBS.y, groups=groups) for groups in (None, np.arange(1200))
        )
    np.testing.assert_array_equal(one.certification_rows_, other.certification_rows_)
    assert torch.equal(one.model_.adaptor.filters.weight, other.model_.adaptor.filters.weight) and len(alone) == 500
    assert one.certificate_.identity == other.certificate_.identity and other.certificate_.n_left_out == 0


def test_a_rare_class_is_in_both_parts_although_it_shares_groups():
    labels, groups = np.zeros(100, dtype=int), np.arange(100) // 5
    labels[::25] = 1  # four groups of five have one point of it
    for seed in range(20):
        train, calibration = stratified_split(labels, 0.5, np.random.default_rng(seed), groups)
        assert labels[train].sum() == labels[calibration].sum() == 2


def test_groups_are_given_back_and_counted_as_wholes():
    labels, groups = np.ones(400, dtype=int), np.arange(400) // 4
    labels[:8] = 0  # two groups: if one is held out, it goes back
    n_back = {seed: certification_split(labels, 0.5, seed, groups)[1] for seed in range(20)}
    assert set(n_back.values()) == {0, 1, 2}
    for seed, n in n_back.items():
        held, _ = certification_split(labels, 0.5, seed, groups)
        assert len(held) == 4 * (50 - n) and not np.isin(held, np.arange(8)).any()


# --- Fits ------------------------------------------------------------------------------------------------------------


def parts_of(clf, groups):
    """The groups of the rows that a classifier was trained on, and certified with."""
    return set(groups[clf.training_rows_]), groups[clf.certification_rows_]


@pytest.mark.parametrize("settings", [{}, ROUNDS])
def test_groups_stay_together_and_one_row_of_each_is_certified_with(settings):
    with quiet():
        clf = SDMClassifier(**{**SETTINGS, **settings}).fit(BLOBS.X, BLOBS.y, groups=[f"p{one}" for one in GROUPS])
    learned, certified = parts_of(clf, GROUPS)
    assert len(set(certified)) == len(certified) and learned.isdisjoint(certified)
    if settings:
        assert learned.isdisjoint(GROUPS[clf.calibration_rows_])
    certificate, n_used = clf.certificate_, len({*clf.training_rows_, *clf.calibration_rows_})
    assert certificate.n_left_out == 1200 - n_used - len(certified) > 100
    assert (
        f"({certificate.n_left_out} left out): it is about a random input of a random group" in certificate.holds_for()
    )


def test_copies_are_a_group_without_being_named(tmp_path):
    X, y = np.tile(BLOBS.X[:600], (2, 1)), np.tile(BLOBS.y[:600], 2)
    X[600:] += np.float32(1e-7) * np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)  # but for noise
    of = np.arange(1200) % 600
    with pytest.warns(CopiesWarning, match=r"(59\d|600) of the 1,200 rows of 'X' of SDMClassifier.fit are copies"):
        clf = SDMClassifier(**SETTINGS).fit(X, y)
    learned, certified = parts_of(clf, of)
    assert len(learned & set(certified)) <= 8  # noise has moved a few keys
    X[600:] = X[:600]
    y[600:610] = 1 - y[:10]
    with pytest.warns(CopiesWarning, match="20 of the 1,200 rows of .* have copies with another label"):
        clf.fit(X, y)
    learned, certified = parts_of(clf, of)
    assert learned.isdisjoint(certified) and clf.certificate_.n_left_out == 150
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    with quiet():
        assert loaded.recertify(alpha=0.75).certificate_.n_left_out == 150
        assert loaded.recertify(*[np.tile(one, reps) for one, reps in ((X[:300] + 1, (2, 1)), (y[:300], 2))])
    assert loaded.certificate_.n_left_out == 300 == loaded.certificate_.n_certification
    named = np.arange(300) // 3
    with quiet():
        assert loaded.recertify(X[:300] + 2, y[:300], groups=named).certificate_.n_certification == 100


def test_a_few_copies_with_one_label_are_no_reason_to_warn():
    X, y = BLOBS.X.copy(), BLOBS.y.copy()
    X[1], y[1] = X[0], y[0]
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        clf = SDMClassifier(**SETTINGS).fit(X, y)
    assert (0 in clf.training_rows_) == (1 in clf.training_rows_)


def origin(template):
    return StatesOrigin(
        ModelOrigin(None, None, "f", "float32"),
        PromptOrigin(template, (), None, False, {}, template),
        PoolingOrigin(("mean",), -1, None, 1, 512),
    )


def test_texts_that_are_the_same_are_copies_unless_answers_tell_them_apart():
    texts = [f"text {row // 2}" for row in range(1200)]
    for template, n_groups in (("{document}", 600), ("{document} {answer}", 1200)):
        data = LabelledStates(BLOBS.X, BLOBS.y, None, texts, origin=origin(template))
        with quiet():
            clf = SDMClassifier(**SETTINGS).fit(data)
        assert clf.certificate_.n_certification == n_groups // 4


def test_every_round_of_an_ensemble_keeps_groups_together(monkeypatch):
    seen = []
    begin = Training.begin

    def spied(self, number, state=None):
        seen.append([GROUPS[part.rows.numpy()] for part in self.parts(number)])
        return begin(self, number, state)

    monkeypatch.setattr(Training, "begin", spied)
    with quiet():
        SDMEnsemble(**ROUNDS).fit(BLOBS.X, BLOBS.y, groups=GROUPS)
    assert len(seen) == 2 and all(set(train).isdisjoint(calibration) for train, calibration in seen)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (np.zeros(1200), "must name at least two groups"),
        (GROUPS[:5], "one value for each of 1200 inputs"),
        ([float("nan")] + [1.0] * 1199, "must name a group for every row. Got nan"),
    ],
)
def test_groups_that_cannot_be_used_are_refused(groups, expected):
    with pytest.raises(InvalidInputError, match=expected):
        SDMClassifier(**SETTINGS).fit(BLOBS.X, BLOBS.y, groups=groups)


# --- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "npz"])
def test_the_command_reads_groups_from_a_column(tmp_path, kind):
    if kind == "jsonl":
        rows = zip(BLOBS.X.tolist(), BLOBS.y.tolist(), GROUPS.tolist(), strict=True)
        data = write_jsonl(
            tmp_path / "data.jsonl",
            [{"hidden_states": x, "label": y, "patient": f"p{group}"} for x, y, group in rows],
        )
    else:
        data = tmp_path / "data.npz"
        np.savez(data, hidden_states=BLOBS.X, labels=BLOBS.y, patient=GROUPS)
    asked = ("train", data, "-o", tmp_path / "model", "--alpha", "0.8", "--seed", "0", "--json")
    result = json.loads(good(*asked, "--groups", "patient").stdout)
    with quiet():
        expected = SDMClassifier(**SETTINGS).fit(BLOBS.X, BLOBS.y, groups=GROUPS).certificate_
    assert result["certificate"]["n_left_out"] == expected.n_left_out > 100
    assert SDMClassifier.load(tmp_path / "model").certificate_.identity == expected.identity
    refused(sdm(*asked, "--overwrite", "--groups", "doctor"), "has no 'doctor' for the groups")


def test_two_rows_over_and_over_are_fitted_and_certify_nothing():
    X, y = np.repeat(np.eye(2, 8, dtype=np.float32), 60, axis=0), np.repeat([0, 1], 60)
    for settings in ({}, ROUNDS):
        with quiet():
            clf = SDMClassifier(**{**SETTINGS, **settings}).fit(X, y)
        assert (clf.predict(X) == y).all() and len(clf.certification_rows_) == 0 and not clf.certificate_.is_any
