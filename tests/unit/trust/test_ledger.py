"""The ledger of looks: rows are known again, whoever asks, and different ones are not confused."""

from __future__ import annotations

import threading

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from conftest import make_blobs
from small import quiet
from torchsdm import CertifiedClassifier, SDMClassifier
from torchsdm.errors import InvalidInputError
from torchsdm.trust import Ledger, Look, current_ledger, keys_of, ledger, separate_ledger

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(2000, 64)).astype(np.float32)
KEYS = keys_of(STATES)


# --- Keys ------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_embeddings_have_as_many_keys():
    rows = np.random.default_rng(1).normal(size=(100_000, 32)).astype(np.float32)
    assert len(np.unique(keys_of(rows))) == len(rows)
    narrow = 5 * RNG.normal(size=32) + 0.15 * rows  # all in nearly the same direction: cosines of 0.999
    assert len(np.unique(keys_of(narrow))) == len(rows)


def test_keys_survive_order_subset_type_and_noise():
    order = RNG.permutation(2000)[:700]
    np.testing.assert_array_equal(keys_of(STATES[order].astype(np.float64)), KEYS[order])
    np.testing.assert_array_equal(keys_of(csr_array(STATES)), KEYS)
    np.testing.assert_array_equal(keys_of(pd.DataFrame(STATES)), KEYS)
    assert (keys_of(STATES + 1e-6 * RNG.normal(size=STATES.shape)) == KEYS).mean() > 0.95


def test_rows_that_differ_in_one_value_differ():
    people = np.column_stack([1e4 * np.arange(1, 2001) ** 0.5, np.arange(2000) % 70, np.arange(2000) % 2])
    older = people + np.array([0, 1, 0])
    assert not np.isin(keys_of(older), keys_of(people)).any()
    flags = (RNG.random((2000, 20)) < 0.5).astype(float)
    assert len(np.unique(keys_of(flags))) == len(np.unique(flags, axis=0))
    one = np.array([[1.0, np.nan], [1.0, 0.0], [np.nan, 1.0], [1.0, np.nan]])
    assert len(np.unique(keys_of(one))) == 3


def test_texts_are_the_same_whatever_their_states_are():
    texts = [f"This is text {row}." for row in range(2000)]
    shouted = [f"  {text.upper()} " for text in texts]
    here, there = keys_of(STATES, texts), keys_of(RNG.normal(size=(2000, 8)), shouted)
    assert np.isin(here, there).any(axis=1).all()
    np.testing.assert_array_equal(keys_of(texts)[:, 0], here[:, 1])
    table = pd.DataFrame({"text": texts, "n": np.arange(2000)})
    np.testing.assert_array_equal(keys_of(table)[5:9], keys_of(table[5:9]))


# --- Looks -----------------------------------------------------------------------------------------------------------


def test_looks_at_samples_that_share_rows_are_counted_and_the_same_question_is_none():
    book = Ledger()
    assert book.ask(Look(KEYS[:1000], "a", 0.1)) == {}
    assert book.ask(Look(KEYS[1000:], "b", 0.1)) == {}
    assert book.ask(Look(KEYS[990:1100], "c", 0.05)) == {"a": 0.1, "b": 0.1}
    assert book.ask(Look(KEYS[:1000][::-1], "a", 0.1)) == {"c": 0.05}
    assert book.ask(Look(KEYS[:1000], "d", 0.1), {"e": 0.2}) == {"a": 0.1, "c": 0.05, "e": 0.2}
    assert book.spent(KEYS[:20]) == {"a": 0.1, "d": 0.1, "e": 0.2}


def test_a_row_in_common_by_accident_is_none():
    book = Ledger()
    book.ask(Look(KEYS[:1000], "a", 0.1))
    assert book.spent(KEYS[999:1030]) == {}  # a single row
    assert book.spent(KEYS[998:1029]) == {"a": 0.1}
    assert book.spent(KEYS[991:]) == {} and book.spent(KEYS[989:]) == {"a": 0.1}  # 9 and 11 of 1000


def test_old_samples_are_forgotten_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(ledger, "MOST_KEYS", 1000)
    book = Ledger()
    for start in (0, 500, 1000):
        book.ask(Look(KEYS[start : start + 500], str(start), 0.1))
    assert [set(book.spent(KEYS[start : start + 500])) for start in (0, 500, 1000)] == [set(), {"500"}, {"1000"}]


def test_threads_share_the_ledger_of_the_process_and_lose_nothing():
    def ask(number):
        for turn in range(20):
            current_ledger().ask(Look(KEYS, f"{number} {turn}", 0.01))

    with separate_ledger() as own:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert own.spent(KEYS) == {}  # of this thread alone
    assert len(ledger._of_process.spent(KEYS)) == 80


# --- Whoever asks ----------------------------------------------------------------------------------------------------

BLOBS = make_blobs(seed=0, n=2000, distance=3.0, n_inputs=8)
FRESH = make_blobs(seed=1, n=2000, distance=3.0, n_inputs=8)


def certified(estimator=None, **settings):
    estimator = LogisticRegression() if estimator is None else estimator
    with quiet():
        return CertifiedClassifier(estimator, **{"alpha": 0.9, "random_state": 0, **settings}).fit(BLOBS.X, BLOBS.y)


def test_another_estimator_a_copy_and_another_class_of_estimator_pay():
    certified()
    assert certified().certificate_.looks == 1  # the same question
    assert certified(HistGradientBoostingClassifier(max_iter=5)).certificate_.looks == 2
    assert certified(random_state=1).certificate_.looks == 3  # a quarter of the rows are the same
    with quiet():
        sdm = SDMClassifier(alpha=0.9, random_state=0).fit(BLOBS.X, BLOBS.y)
        assert sdm.certificate_.looks == 4 and sdm.certificate_.delta_spent == pytest.approx(0.4)
        assert sdm.certificate_.confidence == pytest.approx(0.6)
        assert clone(sdm).set_params(alpha=0.85).fit(BLOBS.X, BLOBS.y).certificate_.looks == 5
    with separate_ledger():
        assert certified().certificate_.looks == 1


@pytest.mark.parametrize("kind", [CertifiedClassifier, SDMClassifier])
def test_a_part_an_order_and_noise_are_the_same_sample(kind):
    first, second = make_blobs(5, 600, 3.0, 8), make_blobs(6, 600, 3.0, 8)
    order = np.random.default_rng(0).permutation(600)
    again = [
        (first.X[:400], first.y[:400]),
        (first.X[order], first.y[order]),
        (first.X + np.float32(1e-6), first.y),
    ]
    for X, y in again:
        with separate_ledger(), quiet():
            model = CertifiedClassifier(LogisticRegression()) if kind is CertifiedClassifier else SDMClassifier()
            model.set_params(alpha=0.9, random_state=0).fit(BLOBS.X, BLOBS.y)
            looks = [
                model.recertify(*sample).certificate_.looks for sample in ((first.X, first.y), (second.X, second.y))
            ]
            assert looks == [1, 1]
            assert model.recertify(X, y).certificate_.looks == 2


def test_points_given_back_are_remembered_when_another_sample_was_in_between(tmp_path):
    """A class of which most points are held out takes them back, and they count as errors ever after."""
    X, y = make_blobs(7, 400, 5.0, 8).X, (np.arange(400) >= 3).astype(int)
    X[:3] += 20
    for seed in range(200):
        with quiet(), separate_ledger():
            clf = SDMClassifier(alpha=0.9, control="all", certification_size=0.5, random_state=seed).fit(X, y)
        if clf.model_.certification.n_given_back:
            break
    given_back, rows = clf.model_.certification.n_given_back, clf.certification_rows_
    sample, other = (X[rows], y[rows]), (FRESH.X, np.ones(2000, dtype=int))
    with quiet():
        clf.recertify(*other)
        assert clf.model_.certification.n_given_back == 0
        clf.save(tmp_path / "model")
        for model in (clf, SDMClassifier.load(tmp_path / "model")):
            model.recertify(*sample)
            assert model.model_.certification.n_given_back == given_back > 0
            model.recertify(*other).recertify(sample[0][5:][::-1], sample[1][5:][::-1])
            assert model.model_.certification.n_given_back == given_back  # also of a part


# --- Copies and groups -----------------------------------------------------------------------------------------------


def test_certified_classifier_keeps_groups_and_copies_together():
    groups = np.arange(2000) // 4
    X = BLOBS.X.copy()
    X[1::4] = X[::4]  # copies, too
    seen = []

    class Spy(LogisticRegression):
        def fit(self, X, y):
            seen.append(X)
            return super().fit(X, y)

    def everyone(_, X):
        seen.append(X)
        return np.ones(len(X), dtype=bool)

    with quiet():
        clf = CertifiedClassifier(Spy(), alpha=0.8, eligibility=everyone, random_state=0).fit(X, BLOBS.y, groups=groups)
    assert [len(part) for part in seen] == [1000, 500, 125]  # trained on, calibrated on, one of each certified with
    row_of = {row.tobytes(): number for number, row in enumerate(X)}
    of_parts = [{groups[row_of[row.tobytes()]] for row in part} for part in seen]
    assert sum(map(len, of_parts)) == 500 == len(set.union(*of_parts))
    assert clf.certificate_.n_left_out == 375 and "one was tested (375 left out)" in clf.certificate_.holds_for()
    with quiet():
        assert clf.recertify(FRESH.X, FRESH.y, groups=groups).certificate_.n_left_out == 1500
    with pytest.raises(InvalidInputError, match=r"must name a group for every row\. Got None"):
        clf.fit(X, BLOBS.y, groups=[None, *groups[1:].tolist()])


def test_a_pipeline_is_certified_as_a_whole_with_its_groups():
    groups, told = np.arange(2000) // 2, []

    class Spy(SDMClassifier):
        def fit(self, X, y, *, groups=None):
            told.append(groups)
            return super().fit(X, y, groups=groups)

    inner = Spy(certification_size=None, random_state=0)
    pipeline = make_pipeline(FunctionTransformer(), inner)
    with quiet():
        clf = CertifiedClassifier(pipeline, alpha=0.8, random_state=0).fit(BLOBS.X, BLOBS.y, groups=groups)
    assert clf.certificate_.found and len(told[0]) == 1000 and len(set(told[0].tolist())) == 500
    texts = [f"{word} {row}" for row, word in enumerate(np.where(BLOBS.y == 1, "yes", "no"))]
    with quiet():
        of_texts = CertifiedClassifier(
            make_pipeline(TfidfVectorizer(), LogisticRegression()), alpha=0.9, random_state=0
        )
        assert of_texts.fit(texts, BLOBS.y).certificate_.found
