"""Requests that are answered together get the answers that each would get alone."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from torchsdm import DriftGuard, SDMClassifier
from torchsdm.application import AnswerRequest, SavedModel, answer_requests
from torchsdm.errors import InvalidInputError

RNG = np.random.default_rng(0)
LABELS = np.arange(300) % 2
STATES = (RNG.normal(size=(300, 4)) + 2.0 * LABELS[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "model"
    classifier = SDMClassifier(0.8, n_filters=8, n_rounds=1, max_epochs=5, learning_rate=0.01, random_state=0)
    classifier.fit(STATES, LABELS).save(path)
    return SavedModel.load(path)


def asked(rows, k=0):
    return AnswerRequest(hidden_states=rows.tolist() if isinstance(rows, np.ndarray) else rows, k=k)


def as_json(rows):
    return json.dumps(rows)


def test_decisions_are_the_library_s_however_requests_are_joined(saved):
    expected = [{"id": number, **row} for number, row in enumerate(saved.classifier.decide(STATES[:60]).to_dicts())]
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
    assert as_json(answers[1]) == as_json([{"id": n, **row} for n, row in enumerate(explained)])
    assert [len(rows) for rows in answers] == [2, 2, 1]
    assert as_json(answers[2]) == as_json([{"id": 0, **saved.classifier.decide(STATES[4:5]).to_dicts()[0]}])


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
