"""Requests that are answered together get the answers that each would get alone."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import tiny_models
from small import small_settings
from torchsdm import DriftGuard, SDMClassifier
from torchsdm.application import AnswerRequest, SavedModel, answer_requests
from torchsdm.application import requests as requests_module
from torchsdm.errors import BackboneError, InvalidInputError
from torchsdm.estimators import SDMTextClassifier
from torchsdm.trust import SourceGuards

RNG = np.random.default_rng(0)
LABELS = np.arange(300) % 2
STATES = (RNG.normal(size=(300, 4)) + 2.0 * LABELS[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "model"
    classifier = SDMClassifier(0.8, **small_settings())
    classifier.fit(STATES, LABELS).save(path)
    return SavedModel.load(path)


def asked(rows, k=0):
    return AnswerRequest(hidden_states=rows.tolist() if isinstance(rows, np.ndarray) else rows, k=k)


def as_json(rows):
    return json.dumps(rows)


def test_decisions_are_the_library_s_however_requests_are_joined(saved):
    expected = [
        {"id": number, "line": None, **row}
        for number, row in enumerate(saved.classifier.decide(STATES[:60]).to_dicts())
    ]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        cuts = np.sort(rng.choice(np.arange(1, 60), 9, replace=False))
        parts = np.split(np.arange(60), cuts)
        answers = answer_requests(saved, [asked(STATES[part]) for part in parts])
        for part, rows in zip(parts, answers, strict=True):
            assert as_json(rows) == as_json([{**expected[n], "id": i} for i, n in enumerate(part)])


def test_explanations_among_decisions_are_the_library_s(saved):
    answers = answer_requests(saved, [asked(STATES[:2]), asked(STATES[2:4], k=3), asked(STATES[4:5])])
    explained = [one.to_dict(texts=False) for one in saved.classifier.explain(STATES[2:4], 3)]
    assert as_json(answers[1]) == as_json([{"id": n, "line": None, **row} for n, row in enumerate(explained)])
    assert [len(rows) for rows in answers] == [2, 2, 1]
    assert as_json(answers[2]) == as_json(
        [{"id": 0, "line": None, **saved.classifier.decide(STATES[4:5]).to_dicts()[0]}]
    )


def test_the_guard_sees_what_is_decided_on_in_order_and_not_what_is_explained(saved):
    fresh = DriftGuard.from_classifier(saved.classifier)
    alone, together = copy.copy(fresh), copy.copy(fresh)
    far = STATES[:30] + 9
    requests = [asked(STATES[:20]), asked(far, k=1), asked(far), asked(STATES[20:40]), asked(STATES[:1], k=1)]
    answers = answer_requests(saved, requests, guard=together)
    one_by_one = [answer_requests(saved, [request], guard=alone)[0] for request in requests]
    assert as_json(answers) == as_json(one_by_one)
    assert together.to_json() == alone.to_json() and together.n_seen == 70 and together.raised
    assert not any(row["admitted"] and row["lane"] != "trusted" for row in answers[3] + answers[4])


def test_an_explanation_s_own_inputs_do_not_raise_the_alarm_for_the_next(saved):
    guard, far = DriftGuard.from_classifier(saved.classifier), STATES[:40] + 9
    calm = answer_requests(saved, [asked(STATES[:20], k=1)], guard=guard)[0]
    after = answer_requests(saved, [asked(far, k=1), asked(STATES[:20], k=1)], guard=guard)[1]
    assert as_json(after) == as_json(calm) and guard.n_seen == 0


def test_guards_by_source_demote_the_answers_to_their_source_alone(saved):
    guards = SourceGuards.from_classifier(saved.classifier, seed=0)

    def ask(rows, sources, k=0):
        return AnswerRequest(hidden_states=rows.tolist(), k=k, sources=sources)

    calm, far = STATES[:20], STATES[:30] + 9
    before = answer_requests(saved, [ask(calm, None)])[0]
    assert "certified" in {row["lane"] for row in before}
    answer_requests(saved, [ask(calm, ["mail"] * 20), ask(far, ["forum"] * 30)], guard=guards)
    assert guards.raised_sources == ("forum",)
    sources = ["forum", "mail", None, "mail"] * 5
    requests = [ask(calm, sources), ask(calm, sources, k=1), ask(calm, None)]
    for rows, own in zip(answer_requests(saved, requests, guard=guards), (sources, sources, [None] * 20), strict=True):
        for row, usual, source in zip(rows, before, own, strict=True):
            assert row["admitted"] == (usual["lane"] == "trusted" if source == "forum" else usual["admitted"])
    assert {name: stream.n_seen for name, stream in guards.streams.items()} == {"mail": 30, "forum": 35, "": 25}
    broken = AnswerRequest(hidden_states=[["x"], *calm[:2].tolist()], sources=["new", "mail", "mail"])
    answer_requests(saved, [broken], guard=guards)
    assert guards.streams["mail"].n_seen == 32 and "new" not in guards.streams  # nobody saw the row that is broken


def test_a_bad_row_is_rejected_and_a_bad_request_is_nobody_else_s(saved):
    answers = answer_requests(
        saved,
        [asked([[1, 2, 3, 4], "x", [1, 2], [4, 3, 2, 1]]), asked(["x"]), asked([]), asked(STATES[:1]), asked([[1, 2]])],
    )
    assert [row["lane"] == "rejected" for row in answers[0]] == [False, True, True, False]
    assert [row["id"] for row in answers[0]] == [0, 1, 2, 3]
    assert "numeric" in answers[0][1]["reason"] and "shape (2,)" in answers[0][2]["reason"]
    assert isinstance(answers[1], InvalidInputError) and isinstance(answers[4], InvalidInputError)
    assert answers[2] == [] and answers[3][0]["lane"] != "rejected"


def test_arrays_are_taken_as_lists_are(saved):
    array, lists = answer_requests(saved, [AnswerRequest(hidden_states=STATES[:3]), asked(STATES[:3])])
    assert as_json(array) == as_json(lists)
    with_nan = STATES[:3].copy()
    with_nan[1, 2] = np.nan
    (rows,) = answer_requests(saved, [AnswerRequest(hidden_states=with_nan)])
    assert [row["lane"] == "rejected" for row in rows] == [False, True, False] and "NaN" in rows[1]["reason"]


# --- Texts -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A model that reads each text alone, so that its states are the same to the bit."""
    folder = tmp_path_factory.mktemp("texts")
    language_model = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    texts = [f"the {number} film was {'great' if number % 2 else 'awful'}" for number in range(60)]
    classifier = SDMClassifier(0.8, n_filters=8, n_rounds=1, training="sdm", max_epochs=2, random_state=0)
    SDMTextClassifier(language_model, classifier=classifier).fit(texts, [n % 2 for n in range(60)]).save(
        folder / "model"
    )
    return SavedModel.load(folder / "model", batch_tokens=1)


def of_texts(*texts, **more):
    return AnswerRequest(texts=list(texts), **more)


def outcome(answer):
    return str(answer) if isinstance(answer, InvalidInputError) else as_json(answer)


def test_texts_that_are_read_together_are_answered_as_if_alone(reader):
    states = reader.text_classifier.states(["a film of states"])
    requests = [
        of_texts("a fine film", "", "a dull one", None),
        of_texts("the end came late"),
        asked(states),
        of_texts(""),  # nothing in it can be read
        of_texts("", "", "nobody laughed", k=2),
        of_texts("one", answers=["two"]),  # the prompt has no place for answers
        of_texts(),
        of_texts(3, "the hero and the villain"),
    ]
    together = answer_requests(reader, requests)
    alone = [answer_requests(reader, [request])[0] for request in requests]
    assert list(map(outcome, together)) == list(map(outcome, alone))
    assert [row["lane"] == "rejected" for row in together[0]] == [False, True, False, True]
    assert isinstance(together[3], InvalidInputError) and isinstance(together[5], InvalidInputError)
    assert [row["id"] for row in together[4]] == [0, 1, 2] and len(together[4][2]["exemplars"]) == 2


def test_a_bad_request_among_good_ones_is_found_by_reading_one_by_one(reader, monkeypatch):
    sizes = []
    whole = requests_module.given_block

    def noted(saved, *, texts=None, **more):
        sizes.append(len(texts))
        return whole(saved, texts=texts, **more)

    monkeypatch.setattr(requests_module, "given_block", noted)
    answer_requests(reader, [of_texts("one film"), of_texts("two films", "three films")])
    assert sizes == [3]  # in one go
    sizes.clear()
    answers = answer_requests(reader, [of_texts(""), of_texts(None)])
    assert sizes == [2, 1, 1] and all(isinstance(answer, InvalidInputError) for answer in answers)


def test_a_missing_language_model_is_no_request_s_fault(reader, monkeypatch):
    calls = []

    def fail(*_, **__):
        calls.append(1)
        raise BackboneError("gone")

    monkeypatch.setattr(requests_module, "given_block", fail)
    answers = answer_requests(reader, [of_texts("one"), of_texts("two"), of_texts("three")])
    assert [str(answer) for answer in answers] == ["gone"] * 3 and len(calls) == 1
