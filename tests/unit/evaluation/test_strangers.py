"""Strangers: inputs without a label, or with one outside the classes, and inputs that the model has seen."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest
import torch

from small import quiet
from torchsdm import LabelledStates, SDMEnsemble
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.entrants import classifier_entrants
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import ood_auroc, ordering_score, selective_accuracy
from torchsdm.evaluation.report import render_report
from torchsdm.evaluation.strangers import (
    FreshGuards,
    Overview,
    explain_labels,
    explain_seen,
    kind_of_labels,
    split_strangers,
)
from torchsdm.trust import DriftGuard

CLASSES = np.array(["ant", "bee", "cat"])
ALPHA = 0.9


@pytest.fixture
def one_alpha(fitted):
    with quiet():
        return copy.copy(fitted).recalibrate(ALPHA)


@pytest.fixture
def mixed(insects):
    """Forty inputs of which every fourth is a stranger."""
    labels = np.array(["ant", "bee", "cat", "dog"])[np.arange(40) % 4]
    return LabelledStates(
        insects.fresh, labels, [f"m{row}" for row in range(40)], [f"fresh {row}" for row in range(40)]
    )


# --- Labels ----------------------------------------------------------------------------------------------------------


def test_rows_outside_the_classes_become_a_set_of_their_own(mixed):
    parts = split_strangers("mixed", mixed, CLASSES)
    assert list(parts) == ["mixed", "mixed, strangers"]
    known, strangers = parts.values()
    assert known.labels.tolist() == ["ant", "bee", "cat"] * 10 and strangers.labels.tolist() == ["dog"] * 10
    assert strangers.ids == [f"m{row}" for row in range(3, 40, 4)] and known.texts[:4] == [
        f"fresh {i}" for i in (0, 1, 2, 4)
    ]
    np.testing.assert_array_equal(strangers.hidden_states, mixed.hidden_states[3::4])
    for whole in (mixed.take(range(3)), mixed.take([3, 7]), LabelledStates(mixed.hidden_states, None)):
        assert list(split_strangers("x", whole, CLASSES)) == ["x"]


def test_labels_of_two_types_stay_apart():
    data = LabelledStates(np.zeros((4, 2)), [1, "1", "pos", 0])
    known, strangers = split_strangers("x", data, np.array([0, 1])).values()
    assert known.labels.tolist() == [1, 0] and known.labels.dtype == np.int64
    assert strangers.labels.tolist() == ["1", "pos"]
    tensor = LabelledStates(np.zeros((3, 2)), torch.tensor([0, 1, 2]))
    assert [part.labels.tolist() for part in split_strangers("x", tensor, np.array([0, 1])).values()] == [[0, 1], [2]]


def test_what_the_labels_are():
    assert kind_of_labels(None, CLASSES) == "none"
    assert kind_of_labels(["dog"], CLASSES) == "outside"
    assert kind_of_labels(["dog", "bee"], CLASSES) == kind_of_labels(np.array(["bee"]), CLASSES) == "classes"


def test_one_sentence_says_what_is_done():
    assert explain_labels("x", ["ant", "bee"], CLASSES) is None
    assert explain_labels("x", None, CLASSES).startswith("x has no labels: what is admitted is shown, not whether")
    labels = ["ant", *["dog"] * 5, *["elk"] * 3, "fox", "gnu"]
    assert explain_labels("x", labels, CLASSES) == (
        "10 of 11 labels of x are not classes of the model ('dog', 'elk', 'fox', ...): these rows are strangers, shown "
        "without accuracy; each one that is admitted is a mistake."
    )


@pytest.mark.parametrize(
    ("label", "classes", "expected"),
    [
        ("ants", CLASSES, "'ants' (1) may be a typo for 'ant'"),
        ("BEE", CLASSES, "'BEE' (1) may be a typo for 'bee'"),
        (" cat ", CLASSES, "' cat ' (1) may be a typo for 'cat'"),
        ("1", np.array([0, 1]), "'1' is text, the class 1 a number"),
        (1, np.array(["0", "1"]), "1 is a number, the class '1' text"),
        ("dog", CLASSES, None),
        (2, np.array([0, 1]), None),  # all numbers of one digit are alike
        ("c", np.array(["a", "b"]), None),
    ],
)
def test_a_typo_is_asked_about(label, classes, expected):
    said = explain_labels("x", [label], classes)
    assert said.endswith("is a mistake." if expected is None else f"is a mistake. Look at the labels: {expected}.")


# --- Evaluation ------------------------------------------------------------------------------------------------------


def test_rows_with_a_class_are_evaluated_as_before_and_the_others_without_accuracy(one_alpha, mixed):
    entrants = classifier_entrants(one_alpha)
    found = Evaluation(entrants, {"mixed": mixed, "bare": LabelledStates(mixed.hidden_states, None)}, ALPHA)
    assert found.kinds == {"mixed": "classes", "mixed, strangers": "outside", "bare": "none"}
    known, strangers = mixed.take(np.flatnonzero(np.arange(40) % 4 < 3)), mixed.take(range(3, 40, 4))
    before = Evaluation(entrants, {"mixed": known}, ALPHA)
    rows = {name: [row for row in found.table.rows if row.dataset == name] for name in found.data_sets}
    assert rows["mixed"] == before.table.rows
    records = [one for one in found.summaries() if one["dataset"] == "mixed"]
    assert records == before.summaries()
    for name, data, labels in (("mixed, strangers", strangers, "outside"), ("bare", mixed, "none")):
        for position, row in enumerate(rows[name]):
            decisions = entrants[position].decide(data)
            cell = row.accuracy.marginal
            assert (cell.n_total, cell.n_admitted) == (len(data), decisions.admitted.sum())
            assert cell.accuracy is None and cell.interval() is None and row.accuracy.labels == labels
            assert all(one.is_absent for one in row.accuracy.by_class.values())
            assert {label: one.n_total for label, one in row.accuracy.by_prediction.items()} == {
                label: (decisions.predictions == label).sum() for label in CLASSES.tolist()
            }
            summary = next(
                one for one in found.summaries() if (one["dataset"], one["estimator"]) == (name, row.estimator)
            )
            assert summary["accuracy"] is summary["aurc"] is summary["risk"] is summary["admitted_correct"] is None
            assert summary["admitted_wrong"] == (None if labels == "none" else cell.n_admitted)
            inside = found.decisions[position, "mixed"]
            assert summary["ood_auroc"] == ood_auroc(ordering_score(inside), ordering_score(decisions))
    assert json.dumps(found.facts(), allow_nan=False) and found.facts()["data"]["bare"]["labels"] == "none"


def test_strangers_alone_can_be_evaluated(one_alpha, mixed):
    found = Evaluation(classifier_entrants(one_alpha), {"bare": LabelledStates(mixed.hidden_states, None)}, ALPHA)
    assert all(one["ood_auroc"] is None for one in found.summaries())
    assert "bare has no labels" in found.table.note
    everything = found.table.rows[0]
    assert everything.estimator == "no reject" and everything.accuracy.marginal.n_admitted == 40
    assert "?" in found.table.to_text() and "?" in found.table.to_markdown() and "?" in found.table.to_latex()
    narrow = found.table.to_narrow_text()
    assert re.search(r"no reject +1\.00 +40\n", narrow) and "accuracy" not in narrow.partition("\n\nbare has")[0]


def test_rows_that_could_not_be_read_are_counted_among_all_of_a_file(one_alpha, mixed):
    found = Evaluation(classifier_entrants(one_alpha), {"mixed": mixed}, ALPHA, unread={"mixed": 2})
    assert found.unread_note("mixed").startswith("mixed: 2 of 42 inputs could not be read")


def test_a_set_called_like_the_strangers_of_another_is_refused(one_alpha, mixed):
    with pytest.raises(InvalidInputError, match="Two data sets of Evaluation are called 'a, strangers'"):
        Evaluation(classifier_entrants(one_alpha), {"a, strangers": mixed.take([0]), "a": mixed}, ALPHA)


def test_labels_of_both_kinds_have_no_accuracy_together(one_alpha, mixed):
    decisions = one_alpha.decide(mixed.hidden_states)
    with pytest.raises(InvalidInputError, match="Got 'dog'"):
        selective_accuracy(decisions, mixed.labels)


# --- What the model does ---------------------------------------------------------------------------------------------


def test_an_overview_counts_lanes_reasons_and_predictions_and_asks_the_guard(fitted, one_alpha, insects):
    decisions = one_alpha.decide(np.concatenate([insects.fresh, insects.fresh + 50]))
    found = Overview.of(one_alpha, decisions)
    guard = DriftGuard.from_classifier(one_alpha, seed=0)
    guard.update(decisions)
    assert guard.raised and (found.raised_at, found.raised_by) == (guard.raised_at, guard.raised_by)
    assert found.n == 80 and found.n_admitted == decisions.admitted.sum() > 0
    assert found.lanes == {
        lane: list(decisions.lane).count(lane) for lane in ("trusted", "certified", "review", "unfamiliar")
    }
    reasons = [str(reason).partition(":")[0].partition(";")[0] for reason in decisions.reason]
    assert found.reasons == {
        "too far from the training data": sum(one.startswith("too far") for one in reasons),
        "the nearest training example contradicts": reasons.count("the nearest training example contradicts it"),
        "neighbours disagree, or below the threshold": sum("the next does not" in one for one in reasons),
    }
    assert sum(found.reasons.values()) == found.n - found.n_admitted and found.reasons["too far from the training data"]
    lines = found.lines("outside")
    assert lines["admitted"] == f"{found.n_admitted} ({found.n_admitted / 80:.1%}), each a mistake"
    assert "mistake" not in found.lines("none")["admitted"]
    assert lines["drift"] == f"the guard is raised at input {guard.raised_at} of 80 by the similarity"
    calm = Overview.of(one_alpha, one_alpha.decide(insects.fresh[:5]))
    assert calm.drift == "the guard stays calm over 5 inputs"
    ensemble = SDMEnsemble.from_classifier(fitted)
    assert Overview.of(ensemble, ensemble.decide(insects.fresh)).to_json()["guard"] is None


def test_each_new_guard_has_seen_nothing_but_what_it_is_shown(one_alpha, insects):
    guards, decisions = FreshGuards(one_alpha), one_alpha.decide(np.concatenate([insects.fresh, insects.fresh + 50]))
    alone = DriftGuard.from_classifier(one_alpha, seed=0)
    alone.update(decisions)
    for _ in range(2):
        assert guards.alarm(decisions) == (alone.raised_at, alone.raised_by) != (None, None)


def test_an_evaluation_has_overviews_of_strangers_alone(one_alpha, mixed):
    entrants = classifier_entrants(one_alpha)
    found = Evaluation(entrants, {"mixed": mixed}, ALPHA, classifier=one_alpha).overviews()
    assert list(found) == ["mixed, strangers"] and found["mixed, strangers"].n == 10
    assert Evaluation(entrants, {"mixed": mixed}, ALPHA).overviews() == {}


# --- What the model has seen -----------------------------------------------------------------------------------------


def test_a_warning_counts_what_the_model_was_made_with(one_alpha, insects):
    said = explain_seen("all", LabelledStates(insects.X, insects.y), one_alpha)
    assert said.startswith(
        "Warning: 240 of 240 inputs of all equal points that the model was made with (120 of its training, 120 of its "
        "calibration set). Figures for them are flattering"
    )
    assert explain_seen("fresh", LabelledStates(insects.fresh, None), one_alpha) is None


def test_few_natural_duplicates_are_no_reason_to_warn(one_alpha, insects):
    rng = np.random.default_rng(0)
    fresh = rng.standard_normal((300, 4)).astype(np.float32)
    for n_seen, is_warned in ((2, False), (3, True)):
        fresh[:n_seen] = insects.X[:n_seen]
        said = explain_seen("x", LabelledStates(fresh, None), one_alpha)
        assert (said is not None) is is_warned
    assert said.startswith("Warning: 3 of 300 inputs of x equal points")


def test_a_text_is_known_by_its_words_and_not_by_its_id(one_alpha, insects):
    ids = insects.ids[:40]
    others = LabelledStates(insects.fresh, None, ids, [f"new {row}" for row in range(40)])
    assert explain_seen("x", others, one_alpha) is None
    again = LabelledStates(insects.fresh, None, None, insects.texts[:40])  # states that differ in their last bits
    assert explain_seen("x", again, one_alpha).startswith("Warning: 40 of 40")


def test_a_point_that_any_round_of_an_ensemble_trained_on_counts_as_training(fitted, insects):
    said = explain_seen("x", LabelledStates(insects.X, None), SDMEnsemble.from_classifier(fitted))
    supports = [set(model.examples.ids()) for model in fitted.round_models_]
    trained = len(set.union(*supports))
    assert trained > max(map(len, supports))
    counts = f"({trained} of its training, {240 - trained} of its calibration set)"
    assert said.startswith(f"Warning: 240 of 240 inputs of x equal points that the model was made with {counts}.")


# --- The report ------------------------------------------------------------------------------------------------------


def test_a_report_shows_strangers_without_accuracy(one_alpha, mixed, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.report._image", lambda _: "")
    entrants = classifier_entrants(one_alpha)[:3]
    data = {
        "inside": mixed.take([0, 1, 2]),
        "bare": LabelledStates(mixed.hidden_states, None),
        "away": mixed.take([3, 7]),
    }
    page = render_report(Evaluation(entrants, data, ALPHA, classifier=one_alpha), one_alpha, title="T")
    bare, away = (page.split(f"<h3>{name} ")[1].partition("</table>")[0] for name in ("bare", "away"))
    assert "y=ant" in page and ">y=ant" not in bare and ">ŷ=ant" in bare and "class='band'" not in bare
    assert "<td title='40 in total'>40</td><td>1.00</td>" in bare and "<td title='2 in total'>2</td>" in away
    assert page.index("<th colspan=2>all</th>") < page.index("<th colspan=2>y=ant</th>")
    assert page.count("<b>drift:</b>") == page.count("<b>not admitted:</b>") == 2
    assert "2 of 2 labels of away are not classes of the model (&#39;dog&#39;)" in page and "bare has no labels" in page
    assert "given label dog" in page and "given label None" not in page
    assert page.count("<figcaption>Distance") == 3
    assert page.count("<figcaption>Accuracy against") == 1  # inside alone
