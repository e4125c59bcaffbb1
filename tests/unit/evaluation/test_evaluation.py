"""Comparing estimators: rules over one adaptor, the paper's entrants, the evaluation and its page."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.base import clone

from conftest import make_blobs
from small import quiet, quietly, small_settings, two_groups
from torchsdm import LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.baselines.base import SelectiveClassifier
from torchsdm.baselines.certified import CertifiedScore
from torchsdm.baselines.cross_entropy import CrossEntropyLearner, RoundsClassifier
from torchsdm.baselines.logistic import TunedLogisticModel
from torchsdm.baselines.neighbors import CalibratedThreshold, NearestNeighborThreshold
from torchsdm.baselines.sdm_rules import RULES, SDMRule
from torchsdm.baselines.softmax import NoReject, SoftmaxThreshold, TemperatureScaling
from torchsdm.baselines.vbll import VBLLLearner
from torchsdm.core import Decisions, decide
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError
from torchsdm.evaluation import AlphaDisplay, RiskCoverageDisplay
from torchsdm.evaluation.entrants import GROUPS, SDM_RULES, Entrant, classifier_entrants, paper_entrants
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import aurc, ood_auroc, possible_label_errors
from torchsdm.evaluation.report import MAX_TEXT, _admitted, _of_alphas, displays_of, render_report, write_report
from torchsdm.evaluation.tables import UNLISTED, Basis, EstimatorKey, Rule, share_text
from torchsdm.model.model import SDMModel
from torchsdm.training.data import TrainingData, TrainingSettings, split_of_round
from torchsdm.training.learner import Learner
from torchsdm.wording import EVERY_LEVEL

OWN = RULES[:-1]  # rules over any certified model; the last one takes windows
SMALL = small_settings(alpha=0.9, n_rounds=2, max_epochs=6, random_state=3)
SMALL |= {"standardization": "scalar", "patience": None}
TRAIN, TEST = make_blobs(seed=1, n=500, distance=3.0), make_blobs(seed=2, n=300, distance=3.0)
NAMES = np.array(["no <b>", "yes & so"])  # what must be escaped in a page
CERTIFIED = (Rule.CERTIFIED, Rule.CERTIFIED_SOFTMAX, Rule.CERTIFIED_TEMPERATURE, Rule.CERTIFIED_ENERGY)


def labelled(blobs, shift=0.0, **others):
    return LabelledStates(blobs.X + np.float32(shift), NAMES[blobs.y], **others)


@pytest.fixture(scope="module")
def classifier():
    with quiet():
        texts = [f"<script>text {i}</script> " + "long " * 200 for i in range(500)]
        return SDMClassifier(**SMALL).fit(labelled(TRAIN, texts=texts), keep_rounds=True)


@pytest.fixture(scope="module")
def certified():
    """A classifier with both a certificate and a region."""
    blobs = make_blobs(seed=5, n=1600, distance=3.0)
    with quiet():
        fitted = SDMClassifier(**{**SMALL, "n_rounds": 1}).fit(labelled(blobs))
    assert fitted.certificate_.found and fitted.region_.found
    return fitted


@pytest.fixture(scope="module")
def evaluation(classifier):
    entrants = [Entrant("SDM", rule, SDMRule(classifier, rule).fit()) for rule in OWN]
    entrants.append(Entrant("SDM", "softmax over it", SoftmaxThreshold(0.9, classifier).fit(None)))
    data = {
        "inside": labelled(TEST, texts=["a & b"] * 300, ids=[f"i{i}" for i in range(300)]),
        "far": labelled(TEST, 40.0),
    }
    return Evaluation(entrants, data, 0.9, settings={"purpose": "a test"})


# --- Rules over one adaptor ------------------------------------------------------------------------------------------


def softmax_row(z):
    weights = np.exp(np.asarray(z, dtype=np.float64) - max(z))
    return weights / weights.sum()


def test_rules_differ_in_admission_alone(classifier):
    own = classifier.decide(TEST.X)
    for rule in OWN:
        decisions = SDMRule(classifier, rule).fit().decide(TEST.X)
        np.testing.assert_array_equal(decisions.predictions, own.predictions)
        np.testing.assert_array_equal(decisions.logits, own.logits)
        if rule in ("sdm", "region", "region lower"):
            np.testing.assert_array_equal(decisions.similarity, own.similarity)
    by_rule = {rule: SDMRule(classifier, rule).fit().decide(TEST.X) for rule in OWN}
    assert by_rule["no reject"].admitted.all()
    in_region = [
        classifier.region_.admits(*map(torch.from_numpy, (q, y_hat, confidence))).item()
        for q, y_hat, confidence in zip(
            own.rescaled_similarity[:, None], own.logits.argmax(axis=1)[:, None], own.confidence[:, None], strict=True
        )
    ]
    np.testing.assert_array_equal(by_rule["region"].admitted, in_region)
    np.testing.assert_array_equal(by_rule["region lower"].admitted, own.admitted_lower)
    np.testing.assert_array_equal(by_rule["region"].score, own.rescaled_similarity)
    np.testing.assert_array_equal(by_rule["certified"].admitted, own.certified)
    np.testing.assert_array_equal(by_rule["certified"].score, own.score)
    assert by_rule["sdm"].score is None  # its own order is that of its confidence
    for rule in OWN[:-1]:
        assert by_rule[rule].lane is None and by_rule[rule].certificate is None
    for row in range(0, 300, 7):
        z, d, y_hat = own.logits[row], own.distance_quantile[row], own.logits[row].argmax()
        expected = {
            "softmax": softmax_row(z)[y_hat],
            "softmax of d·z": softmax_row(d * z)[y_hat],
            "sdm": softmax_row(np.log(2 + own.similarity[row]) * d * z)[y_hat],
        }
        assert not hasattr(by_rule["softmax"], "confidence_lower")
        for rule, confidence in expected.items():
            assert by_rule[rule].confidence[row] == pytest.approx(confidence, rel=1e-6)
            assert by_rule[rule].admitted[row] == (by_rule[rule].confidence[row] >= 0.9)


def test_the_rule_of_every_level_admits_what_is_trusted(classifier):
    with pytest.raises(InvalidInputError, match="may be 'every level' only for a model that is certified so"):
        SDMRule(classifier, "every level").fit()
    X, y = two_groups(3000, 0, [0, 1], distance=4.0)
    leveled = quietly(lambda: SDMClassifier(0.9, random_state=0).fit(X, y))
    own, rule = leveled.decide(X), SDMRule(leveled, "every level").fit()
    np.testing.assert_array_equal(rule.decide(X).admitted, own.lane == "trusted")
    assert 0 < rule.decide(X).admitted.sum() < own.admitted.sum()
    assert [one.key.rule for one in classifier_entrants(leveled) if one.group == "certified"][:2] == [
        Rule.CERTIFIED,
        Rule.EVERY_LEVEL,
    ]
    leveled.remove_exemplars(leveled.support_.ids[:1])
    assert not rule.decide(X).admitted.any()  # by the region alone, which promises nothing


def test_rules_over_one_model_share_what_it_decides(classifier, monkeypatch):
    asked, decide = [], SDMClassifier.decide
    entrants, data = classifier_entrants(classifier), {"one": labelled(TEST), "two": labelled(TEST, 1.0)}
    apart = [entrant.decide(part).admitted for part in data.values() for entrant in entrants]
    monkeypatch.setattr(SDMClassifier, "decide", lambda self, X: asked.append(len(X)) or decide(self, X))
    monkeypatch.setattr("torchsdm.evaluation.evaluation.ROWS_AT_ONCE", 200)
    together = Evaluation(entrants, data, 0.9).decisions
    assert sorted(asked) == [100, 100, 200, 200]  # not once for each rule
    for name, part in zip(data, (apart[: len(entrants)], apart[len(entrants) :]), strict=True):
        for position, admitted in enumerate(part):
            np.testing.assert_array_equal(together[position, name].admitted, admitted)


def test_rules_over_the_logits_of_one_model_share_them(certified, monkeypatch):
    encoded, encode = [], SDMModel._encoded_blocks
    monkeypatch.setattr(SDMModel, "_encoded_blocks", lambda self, h: encoded.append(len(h)) or encode(self, h))
    entrants = classifier_entrants(certified)
    apart = [entrant.decide(labelled(TEST)) for entrant in entrants]
    assert len(encoded) == len(entrants)
    encoded.clear()
    for together in (entrants, entrants[2:5]):  # with the model's decisions, and temperature, APS and RAPS alone
        found = Evaluation(together, {"t": labelled(TEST)}, 0.9).decisions
        for position, entrant in enumerate(together):
            alone = apart[entrants.index(entrant)]
            for name in ("predictions", "admitted", "confidence"):
                np.testing.assert_array_equal(getattr(found[position, "t"], name), getattr(alone, name))
    assert encoded == [300, 300]


def test_scores_of_one_estimator_ask_it_once(certified, monkeypatch):
    asked, decide = [], CalibratedThreshold.decide
    monkeypatch.setattr(CalibratedThreshold, "decide", lambda self, X: asked.append(len(X)) or decide(self, X))
    threshold = NearestNeighborThreshold(0.9).fit(TRAIN.X, NAMES[TRAIN.y], labelled(TEST))
    samples = [(threshold.decide(one.X), NAMES[one.y]) for one in (TEST, TRAIN)]
    scores = [CertifiedScore(threshold, score, 0.9).fit(*samples) for score in ("odds", "own")]
    apart = [one.decide(TEST.X).admitted for one in (threshold, *scores)]
    asked.clear()
    entrants = [Entrant("m", str(number), one) for number, one in enumerate((threshold, *scores))]
    together = Evaluation(entrants, {"t": labelled(TEST)}, 0.9).decisions
    assert asked == [300]
    for position, admitted in enumerate(apart):
        np.testing.assert_array_equal(together[position, "t"].admitted, admitted)


def test_the_policy_of_the_classifier_changes_no_rule(certified):
    # The two policies admit other inputs, so that a rule that read 'admitted' would be found out.
    other = copy.copy(certified)
    other.policy = "trusted"
    own = certified.decide(TEST.X)
    assert (other.decide(TEST.X).admitted != own.admitted).any() and (own.admitted != own.admitted_at[:, 0]).any()
    for rule in OWN:
        ours, theirs = (SDMRule(one, rule).fit().decide(TEST.X) for one in (certified, other))
        np.testing.assert_array_equal(ours.admitted_at, theirs.admitted_at)
        np.testing.assert_array_equal(ours.admitted, theirs.admitted)


def test_a_certified_rule_promises_its_alpha_and_every_smaller_one(certified, classifier):
    several = copy.copy(certified)
    with quiet():
        several.recalibrate([0.9, 0.7, 0.95])  # the first has the certificate
    decisions = SDMRule(several, "certified").fit().decide(TEST.X)
    admitted = several.decide(TEST.X).certified
    assert admitted.any() and several.certificate_.looks == 1 and decisions.alphas.tolist() == [0.7, 0.9, 0.95]
    np.testing.assert_array_equal(decisions.admitted_at, np.stack([admitted, admitted, 0 * admitted], axis=1))
    np.testing.assert_array_equal(decisions.admitted, admitted)
    plain = copy.copy(certified)
    plain.certificate_ = None
    for model in (plain, SDMEnsemble.from_classifier(classifier)):
        with pytest.raises(InvalidInputError, match="only for a model that is certified so"):
            SDMRule(model, "certified").fit()


def test_a_rule_fits_a_model_that_is_not_fitted_and_leaves_a_fitted_one(classifier):
    with quiet():
        rule = SDMRule(SDMClassifier(**SMALL), "sdm").fit(TRAIN.X, TRAIN.y)
    assert rule.classes_.tolist() == [0, 1] and rule.predict(TEST.X[:3]).shape == (3,)
    assert not hasattr(rule.model, "classes_") and SDMRule(classifier).fit().fitted_model_ is classifier
    with pytest.raises(NotFittedError, match="call fit before decide"):
        SDMRule(classifier).decide(TEST.X)
    with pytest.raises(NotFittedError, match="pass X and y"):
        SDMRule(SDMClassifier(**SMALL)).fit()
    with pytest.raises(InvalidInputError, match="'rule' of SDMRule must be one of"):
        SDMRule(classifier, "median").fit()


def test_several_alphas_each_have_their_column(classifier):
    other = SDMEnsemble.from_classifier(classifier)
    with quiet():
        other.recalibrate([0.7, 0.95])
    rule = SDMRule(other, "softmax").fit()
    decisions = rule.decide(TEST.X)
    np.testing.assert_array_equal(decisions.admitted_at, decisions.confidence[:, None] >= [0.7, 0.95])
    strict = Evaluation([Entrant("e", "r", rule)], {"inside": labelled(TEST)}, 0.95).decisions[0, "inside"]
    np.testing.assert_array_equal(strict.admitted, decisions.admitted_at[:, 1])
    assert strict.alphas.tolist() == [0.95] and set(strict.admitted_alpha[strict.admitted]) == {0.95}


# --- Evaluation ------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_data_set_and_entrant(evaluation):
    rows = evaluation.table.rows
    assert [(row.dataset, row.estimator) for row in rows[:2]] == [("inside", "no reject"), ("inside", "softmax")]
    assert len(rows) == 16
    everything = rows[0].accuracy.marginal
    right = (evaluation.decisions[0, "inside"].predictions == NAMES[TEST.y]).sum()
    assert (everything.n_admitted, everything.n_correct) == (300, right)
    assert rows[-4].estimator == "region" and rows[-4].accuracy.marginal.accuracy is None  # far: all rejected


def test_each_entrant_comes_with_its_rows(classifier):
    # Two of the same name are told apart by what they are, and rows carry the key of their entrant.
    keys = [EstimatorKey(Basis.SDM, rule) for rule in (Rule.NO_REJECT, Rule.SDM)]
    rules = [SDMRule(classifier, rule).fit() for rule in ("no reject", "sdm")]
    entrants = [Entrant("m", "same", rule, key=key) for rule, key in zip(rules, keys, strict=True)]
    evaluation = Evaluation(entrants, {"inside": labelled(TEST), "far": labelled(TEST, 40.0)}, 0.9)
    results = evaluation.results()
    assert [(entrant.key, row.dataset) for entrant, row in results] == [
        (key, name) for name in ("inside", "far") for key in keys
    ]
    for entrant, row in results:
        assert row.key == entrant.key
        admitted = entrant.decide(evaluation.data_sets[row.dataset]).admitted
        assert row.accuracy.marginal.n_admitted == admitted.sum()
    assert [row for _, row in results] == evaluation.table.rows


def test_summaries_are_those_of_the_metrics(evaluation):
    records = evaluation.summaries()
    decisions, outside = evaluation.decisions[3, "inside"], evaluation.decisions[3, "far"]
    correct = decisions.predictions == NAMES[TEST.y]
    inside = next(r for r in records if (r["dataset"], r["estimator"]) == ("inside", "sdm"))
    far = next(r for r in records if (r["dataset"], r["estimator"]) == ("far", "sdm"))
    assert inside["aurc"] == aurc(decisions.confidence, correct) and inside["ood_auroc"] is None
    assert far["ood_auroc"] == ood_auroc(decisions.confidence, outside.confidence) > 0.9
    assert far["risk"] is None and far["coverage"] == 0.0 and far["rejected_correct"] + far["rejected_wrong"] == 300
    assert inside["coverage"] == decisions.admitted.mean()


class ManyClasses:
    """An entrant with C classes, which records how many rows it is asked about at once."""

    def __init__(self, n_classes):
        self.classes_, self.asked = np.arange(n_classes), []

    def decide(self, X):
        self.asked.append(len(X))
        logits = np.sin(np.outer(np.asarray(X)[:, 0], np.arange(1, 1 + len(self.classes_))))
        odds = np.exp(logits)
        return Decisions.of_probabilities(
            self.classes_, [0.9], logits, odds / odds.sum(axis=1, keepdims=True), logits.max(axis=1)[:, None] > 0.9
        )


def test_memory_for_an_input_does_not_grow_with_the_classes(monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.evaluation.ROWS_AT_ONCE", 64)
    kept = []
    for n_classes in (3, 120):
        entrant = ManyClasses(n_classes)
        data = LabelledStates(TEST.X, entrant.decide(TEST.X).predictions)
        entrant.asked.clear()
        found = Evaluation([Entrant("many", "classes", entrant)], {"t": data}, 0.9)
        assert entrant.asked == [64, 64, 64, 64, 44]
        decisions, whole = found.decisions[0, "t"], entrant.decide(TEST.X)
        for name in ("predictions", "admitted", "admitted_at", "confidence"):
            assert np.array_equal(getattr(decisions, name), getattr(whole, name))
        columns = [value for value in vars(decisions).values() if isinstance(value, np.ndarray)]
        kept.append(sum(one.nbytes for one in columns) - decisions.classes.nbytes)
        assert found.against_argmax[0, "t"].shape == (300,) and not found.against_argmax[0, "t"].any()
    assert kept[0] == kept[1] < 64 * len(TEST.X)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_classifier_s_own_decisions_are_kept_without_values_per_class(certified, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.evaluation.ROWS_AT_ONCE", 64)
    several = copy.copy(certified).recalibrate([0.9, 0.7])
    for one in (certified, several):
        evaluation = Evaluation([Entrant("m", "r", SDMRule(one).fit())], {"t": labelled(TEST)}, 0.9, {}, one)
        whole = one.decide(TEST.X)
        own = evaluation.own_decisions(one, "t")
        for name, values in whole._columns():
            if name not in ("probabilities", "logits", "effective_sample_sizes"):
                np.testing.assert_array_equal(getattr(own, name), values)
            assert len(values.shape) == 1 or name.endswith("_at") or getattr(own, name).shape == (300, 1)
        np.testing.assert_array_equal(own.magnitude, whole.magnitude)
        np.testing.assert_array_equal(own.min_sample_size, whole.min_sample_size)
        np.testing.assert_array_equal(_admitted(own, 0.9), whole.at(0.9).admitted)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.set_params(policy="trusted"),
        lambda one: one.add_exemplars(TEST.X[:40], NAMES[1 - TEST.y[:40]], ids=[f"new-{i}" for i in range(40)]),
        lambda one: one.recalibrate(min_class_count=10**6),
        lambda one: one.recertify(alpha=0.8),
    ],
)
def test_a_classifier_that_was_changed_decides_again(certified, change):
    one = copy.copy(certified)
    evaluation = Evaluation([Entrant("m", "r", SDMRule(one).fit())], {"t": labelled(TEST)}, 0.9, {}, one)
    before = evaluation.own_decisions(one, "t")
    assert evaluation.own_decisions(one, "t") is before
    change(one)
    now, expected = evaluation.own_decisions(one, "t"), one.decide(TEST.X)
    assert now is not before and evaluation.own_decisions(certified, "t") is not before
    for name in ("lane", "reason", "admitted", "nearest_distance"):
        np.testing.assert_array_equal(getattr(now, name), getattr(expected, name))


def test_facts_lead_back_to_data_seed_and_settings(evaluation, classifier):
    facts = json.loads(json.dumps(evaluation.facts(), allow_nan=False))
    assert facts["data"]["inside"]["n"] == 300 and len(facts["data"]["inside"]["fingerprint"]) == 64
    assert facts["data"]["inside"]["fingerprint"] != facts["data"]["far"]["fingerprint"]
    region = facts["entrants"][4]
    assert region["seed"] == classifier.random_seed_ and region["model_settings"]["max_epochs"] == 6
    assert facts["settings"] == {"purpose": "a test"} and facts["torch"]


def test_label_errors_are_rows_to_look_at(evaluation):
    decisions = evaluation.decisions[1, "inside"]
    rows = possible_label_errors(decisions, evaluation.data_sets["inside"].labels)
    assert (decisions.predictions[rows] != NAMES[TEST.y][rows]).all() and decisions.admitted[rows].all()
    assert (np.diff(decisions.confidence[rows]) <= 0).all()


def test_what_cannot_be_evaluated(classifier):
    entrant = Entrant("SDM", "region", SDMRule(classifier).fit())
    with pytest.raises(InvalidInputError, match="at least one entrant"):
        Evaluation([], {"a": labelled(TEST)}, 0.9)
    with pytest.raises(InvalidInputError, match="'a' of Evaluation must not be empty"):
        Evaluation([entrant], {"a": LabelledStates(TEST.X[:0], None)}, 0.9)
    with pytest.raises(InvalidInputError, match="a, row 3: a label must be"):
        Evaluation([entrant], {"a": LabelledStates(TEST.X[:4], [*NAMES, None, "no <b>"])}, 0.9)
    with pytest.raises(InvalidInputError, match="alpha is target accuracy"):
        Evaluation([entrant], {"a": labelled(TEST)}, 0.05)
    with pytest.raises(InvalidInputError, match="reads label logits"):
        Evaluation([Entrant("LM", "softmax", None, "label_logits")], {"a": labelled(TEST)}, 0.9)


def test_label_logits_are_put_in_the_order_of_the_classes():
    words = ("yes & so", "no <b>")  # not the sorted order
    logits = np.stack([TEST.X[:, 0], -TEST.X[:, 0]], axis=1)  # "yes" first
    data = LabelledStates(TEST.X, NAMES[TEST.y], label_logits=logits, logit_labels=words)
    np.testing.assert_array_equal(data.label_logits_of(["no <b>", "yes & so"]), logits[:, ::-1])
    softmax = SoftmaxThreshold(0.9).fit(data.label_logits_of(["no <b>", "yes & so"]), NAMES[TEST.y])
    evaluation = Evaluation([Entrant("LM", "softmax", softmax, "label_logits")], {"test": data}, 0.9)
    assert evaluation.summaries()[0]["accuracy"] > 0.9
    with pytest.raises(InvalidInputError, match="cannot be compared"):
        data.label_logits_of(["no", "yes"])


def test_facts_hold_what_json_cannot_as_text(classifier):
    entrant = Entrant("SDM", "region", SDMRule(classifier).fit())
    settings = {"n": np.int64(3), "when": np.datetime64("2026-01-01"), "inf": float("inf")}
    first, second = (
        Evaluation([entrant], {"a": labelled(TEST, label_logits=logits, logit_labels=range(2))}, 0.9, settings).facts()
        for logits in (TEST.X, -TEST.X)
    )
    assert json.loads(json.dumps(first, allow_nan=False))["settings"]["n"] == 3
    assert first["data"]["a"]["fingerprint"] != second["data"]["a"]["fingerprint"]


def test_facts_name_models_by_class_and_not_by_address():
    tuned = NoReject(0.9, TunedLogisticModel().fit(TEST.X, NAMES[TEST.y])).fit()
    facts = Evaluation([Entrant("m", "all", tuned)], {"a": labelled(TEST)}, 0.9).facts()
    assert facts["entrants"][0]["settings"]["model"] == "TunedLogisticModel"
    assert facts["entrants"][0]["model_settings"] == {"class_weight": None} and " at 0x" not in json.dumps(facts)


# --- The paper's entrants --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_all_of_the_papers_estimators_can_be_fitted_and_decide(classifier):
    logits = np.stack([-TRAIN.X[:, 0], TRAIN.X[:, 0]], axis=1)
    training = LabelledStates(TRAIN.X, NAMES[TRAIN.y], label_logits=logits, logit_labels=NAMES)
    swapped = np.stack([TEST.X[:, 0], -TEST.X[:, 0]], axis=1)  # other data may have its columns in another order
    test = LabelledStates(TEST.X, NAMES[TEST.y], label_logits=swapped, logit_labels=NAMES[::-1])
    entrants = paper_entrants(training, classifier, regularization_factors=(1.0,), n_hidden=32)
    models = [entrant.model for entrant in entrants]
    assert models.count("LM") == 6 and models.count("LM + CNN") == 5
    assert models.count("LM + SDM") == len(OWN) + len(CERTIFIED) - 1 + 1
    assert sum("VBLL" in model for model in models) == 2 and "LM + SDM, 2 rounds" in models
    assert {entrant.name for entrant in entrants} >= {
        "APS",
        "RAPS",
        "Mahalanobis",
        "Mahalanobis, 95 % kept",
        "vote",
        "MAPIE risk control",
    }
    groups = (*GROUPS[:4], "certified", "today")
    sizes = dict(zip(groups, (6, 5, 2, len(SDM_RULES) + 1, len(CERTIFIED), 9), strict=True))
    assert [entrant.group for entrant in entrants] == [group for group in groups for _ in range(sizes[group])]
    by_logits = [Rule.NO_REJECT, Rule.SOFTMAX, Rule.TEMPERATURE, Rule.APS, Rule.RAPS]
    over_sdm = [Rule.NO_REJECT, Rule.ADAPTOR_SOFTMAX, Rule.DISTANCE_SOFTMAX, Rule.SDM, Rule.REGION, Rule.REGION_LOWER]
    assert [entrant.key for entrant in entrants] == [
        *(EstimatorKey(Basis.LANGUAGE_MODEL, rule) for rule in (*by_logits, Rule.CERTIFIED_SOFTMAX)),
        *(EstimatorKey(Basis.CNN, rule) for rule in by_logits),
        *(EstimatorKey(basis, Rule.VBLL, 1.0) for basis in (Basis.DISCRIMINATIVE_VBLL, Basis.GENERATIVE_VBLL)),
        *(EstimatorKey(Basis.SDM, rule) for rule in over_sdm),
        EstimatorKey(Basis.ALL_ROUNDS, Rule.REGION_LOWER),
        *(EstimatorKey(Basis.SDM, rule) for rule in CERTIFIED),
        *[UNLISTED] * 9,
    ]
    ensemble = "SDM_HR lower, all agree"
    assert all(one.name in (str(one.key.rule), ensemble) for one in entrants if one.key != UNLISTED)
    evaluation = Evaluation(entrants, {"test": test}, 0.9)
    for row in evaluation.table.rows:
        marginal = row.accuracy.marginal
        assert marginal.n_admitted < 30 or marginal.accuracy > 0.8, row  # blobs at distance 3: 0.93 without rejecting
        if row.estimator == "no reject":
            assert marginal.share == 1.0
    assert all(np.isfinite(record["aurc"]) for record in evaluation.summaries())


ROWS = np.arange(len(TRAIN.y))
LOGITS = np.stack([-TRAIN.X[:, 0], TRAIN.X[:, 0] + ROWS], axis=1)  # different in every row


class Rows:
    """Which rows of the training data an estimator was shown: by their states, or by their label logits."""

    def __init__(self, monkeypatch, of_rounds, calibration):
        self.learned, self.calibrated, self.certified = {}, {}, {}
        self.of_rounds, self.calibration = of_rounds, calibration
        self._of = {tuple(row): number for values in (TRAIN.X, LOGITS) for number, row in enumerate(values.tolist())}
        assert len(self._of) == 2 * len(ROWS)
        self._watch(monkeypatch, CalibratedThreshold, "fit", self._threshold)
        self._watch(monkeypatch, SelectiveClassifier, "_calibrate", self._rule, everywhere=True)
        self._watch(monkeypatch, CertifiedScore, "fit", self._score)

    def _watch(self, monkeypatch, kind, method, seen, everywhere=False):
        kinds = [one for one in every_subclass(kind) if method in vars(one)] if everywhere else [kind]
        for one in kinds:
            original = getattr(one, method)

            def watched(estimator, *arguments, original=original, **others):
                seen(estimator, *arguments)
                return original(estimator, *arguments, **others)

            monkeypatch.setattr(one, method, watched)

    def numbers(self, values):
        return sorted(self._of[tuple(row)] for row in np.asarray(values).tolist())

    def _threshold(self, estimator, X, y, calibration):
        self.learned[id(estimator)] = self.numbers(X)
        self.calibrated[id(estimator)] = self.numbers(calibration.hidden_states)

    def _rule(self, estimator, logits, labels):
        if estimator.model is None:
            self.calibrated[id(estimator)] = self.numbers(logits)

    def _score(self, estimator, calibration, certification):
        """By what the estimator says of every row: of different rows it says different things."""
        reads_logits = isinstance(estimator.estimator, NoReject) and estimator.estimator.model is None
        inputs = LOGITS if reads_logits else TRAIN.X
        logits = estimator.estimator.decide(inputs).probabilities
        own = estimator.estimator.decide(inputs).score
        of_row = logits[:, 0] if own is None else own
        for seen, (decisions, labels) in ((self.calibrated, calibration), (self.certified, certification)):
            said = decisions.probabilities[:, 0] if own is None else decisions.score
            seen[id(estimator)] = [
                [row for row in ROWS if of_row[row] == value and NAMES[TRAIN.y[row]] == label]
                for value, label in zip(said, labels, strict=True)
            ]

    def of(self, entrant):
        """Training rows (None where nothing is trained) and calibration rows of an entrant."""
        estimator = entrant.estimator
        if id(estimator) in self.calibrated:
            return self.learned.get(id(estimator)), self.calibrated[id(estimator)]
        fitted = getattr(estimator, "fitted_model_", estimator)
        assert isinstance(fitted, (RoundsClassifier, SDMClassifier)), entrant
        ours = ROWS if isinstance(fitted, SDMClassifier) else self.of_rounds  # networks are shown these alone
        calibration = ours if self.calibration is None else self.calibration
        return ours[fitted.training_rows_].tolist(), calibration[fitted.calibration_rows_].tolist()


def every_subclass(kind):
    return [kind, *(one for child in kind.__subclasses__() for one in every_subclass(child))]


def part_of(rows):
    return LabelledStates(TRAIN.X[rows], NAMES[TRAIN.y[rows]], label_logits=LOGITS[rows], logit_labels=NAMES)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
@pytest.mark.parametrize("given", [(), ("calibration",), ("certification",), ("calibration", "certification"), None])
def test_every_entrant_sees_the_rows_of_the_classifier(monkeypatch, given, tmp_path):
    """Whatever was given to ``fit`` rather than split off; None for the paper's protocol, without a certificate."""
    rows = {"calibration": ROWS[250:400], "certification": ROWS[400:]}
    sets = {name: part_of(rows[name]) for name in given or ()}
    pool = ROWS[:250] if "calibration" in sets else ROWS[:400] if "certification" in sets else ROWS
    training = part_of(pool)
    settings = {**SMALL, "n_rounds": 1} | ({"certification_size": None} if given is None else {})
    fitted = SDMClassifier(**settings).fit(training, **sets)
    fitted.save(tmp_path / "model")
    held_out = pool[fitted.certification_rows_]
    assert len(held_out) == (125 if given == () else 0)
    is_certified = len(held_out) > 0 or "certification" in sets
    of_rounds = np.setdiff1d(pool, held_out)
    for classifier in (fitted, SDMClassifier.load(tmp_path / "model")):
        seen = Rows(monkeypatch, of_rounds, rows["calibration"] if "calibration" in sets else None)
        entrants = paper_entrants(training, classifier, **sets, n_hidden=8)
        learned = classifier.training_rows_
        calibrated = rows["calibration"] if "calibration" in sets else classifier.calibration_rows_
        certified = rows["certification"] if "certification" in sets else held_out
        assert sorted([*learned, *calibrated]) == sorted({*of_rounds, *calibrated})
        assert not {*certified} & {*learned, *calibrated}
        for entrant in entrants:
            if entrant.group == "today" and entrant.name == "certified softmax":  # out of fold, over all rows
                assert len(seen.calibrated[id(entrant.estimator)]) == len(of_rounds)
                found = seen.certified[id(entrant.estimator)]
                assert all(row in rows for row, rows in zip(certified, found, strict=True))
            elif isinstance(entrant.estimator, CertifiedScore):
                # Votes of few neighbours are alike, so that a row may be one of several.
                for expected, found in (
                    (calibrated, seen.calibrated[id(entrant.estimator)]),
                    (certified, seen.certified[id(entrant.estimator)]),
                ):
                    assert len(found) == len(expected), entrant
                    assert all(row in rows for row, rows in zip(expected, found, strict=True)), entrant
            else:
                shown = seen.of(entrant)
                assert shown[1] == calibrated.tolist(), entrant
                assert shown[0] == (None if entrant.group == "language model" else learned.tolist()), entrant
        assert {entrant.group for entrant in entrants} == {*GROUPS} | ({"certified"} if is_certified else set())
        names = [entrant.name for entrant in entrants if entrant.name.startswith("certified")]
        assert len(names) == (len(CERTIFIED) + 4 if is_certified else 0)


def test_networks_of_several_rounds_share_the_split_of_each_round(classifier):
    entrants = paper_entrants(labelled(TRAIN), classifier, groups=("cnn", "vbll"), n_hidden=8)
    networks = [getattr(entrant.estimator, "fitted_model_", entrant.estimator) for entrant in entrants]
    rows = np.setdiff1d(ROWS, classifier.certification_rows_)
    assert len(rows) == 375
    data = TrainingData(torch.from_numpy(TRAIN.X[rows]), torch.from_numpy(TRAIN.y[rows]))
    splits = [split_of_round(data, TrainingSettings(2), classifier.random_seed_, number) for number in (0, 1)]
    best = classifier.history_.best.round
    np.testing.assert_array_equal(classifier.calibration_rows_, rows[splits[best][1].rows])
    assert not torch.equal(splits[0][1].rows, splits[1][1].rows)
    for network in networks:
        train, calibration = splits[network.best_round_]
        np.testing.assert_array_equal(network.training_rows_, train.rows)
        np.testing.assert_array_equal(network.calibration_rows_, calibration.rows)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_entrants_want_the_data_of_the_classifier(classifier):
    other = LabelledStates(TRAIN.X, NAMES[1 - TRAIN.y])
    for training in (labelled(TEST), LabelledStates(TRAIN.X[:-1], NAMES[TRAIN.y[:-1]]), other):
        with pytest.raises(InvalidInputError, match="must be what the classifier was fitted on, in the same order"):
            paper_entrants(training, classifier, groups=["today"])
    with pytest.raises(InvalidInputError, match=r"must be None: the classifier split X\. Got 300 rows"):
        paper_entrants(labelled(TRAIN), classifier, calibration=labelled(TEST))
    given = SDMClassifier(**{**SMALL, "n_rounds": 1}).fit(labelled(TRAIN), calibration=labelled(TEST))
    with pytest.raises(
        InvalidInputError, match=r"must be what the classifier was given in fit\(calibration=…\). Got None"
    ):
        paper_entrants(labelled(TRAIN), given)
    certified = SDMClassifier(**{**SMALL, "n_rounds": 1}).fit(labelled(TRAIN), certification=labelled(TEST))
    for wrong in (labelled(TRAIN), LabelledStates(TEST.X, NAMES[1 - TEST.y])):
        with pytest.raises(InvalidInputError, match="must be what the classifier was certified with"):
            paper_entrants(labelled(TRAIN), certified, certification=wrong, groups=["today"])
    unknown = copy.copy(classifier)
    del unknown.training_rows_
    with pytest.raises(InvalidInputError, match="does not know the rows it was trained on"):
        paper_entrants(labelled(TRAIN), unknown)


def test_each_network_of_the_entrants_has_a_checkpoint_of_its_own(classifier, tmp_path, monkeypatch):
    def entrants(checkpoint):
        return paper_entrants(
            labelled(TRAIN), classifier, groups=("cnn", "vbll", "sdm"), n_hidden=8, checkpoint=checkpoint
        )

    plain, first = entrants(None), entrants(str(tmp_path / "c"))
    folders = {path.name: sorted(file.name for file in path.iterdir()) for path in (tmp_path / "c").iterdir()}
    vbll = [f"vbll-{kind}-{factor}" for kind in ("discriminative", "generative") for factor in (1, 50)]
    files = ["round-000.safetensors", "round-001.safetensors"]
    assert folders == dict.fromkeys(("cnn", *vbll), files)
    monkeypatch.setattr(Learner, "restore", lambda *_: pytest.fail("trained again"))
    for kind in (CrossEntropyLearner, VBLLLearner):
        monkeypatch.setattr(kind, "epoch", lambda *_: pytest.fail("trained again"))
    again = entrants(tmp_path / "c")
    data = labelled(TEST)
    for one, two, three in zip(plain, first, again, strict=True):
        assert (one.model, one.name) == (two.model, two.name) == (three.model, three.name)
        expected = one.decide(data).probabilities
        np.testing.assert_array_equal(two.decide(data).probabilities, expected)
        np.testing.assert_array_equal(three.decide(data).probabilities, expected)
    with pytest.raises(InvalidTypeError, match="'checkpoint' of paper_entrants must be a path"):
        entrants(3)


def test_an_entrant_has_no_group_unless_it_is_given_one(evaluation):
    assert evaluation.entrants[0].group == "" and Entrant("m", "r", None, group="mine").group == "mine"


def test_entrants_want_one_alpha_and_known_groups(classifier):
    several = SDMClassifier(**SMALL)
    several.__dict__.update(classifier.__dict__)
    with quiet():
        several.recalibrate([0.8, 0.9])
    with pytest.raises(InvalidInputError, match="must have one alpha"):
        paper_entrants(labelled(TRAIN), several)
    with pytest.raises(InvalidInputError, match="'groups' of paper_entrants"):
        paper_entrants(labelled(TRAIN), classifier, groups=["knn"])
    assert (
        paper_entrants(labelled(TRAIN), classifier, groups=["language model"]) == []
    )  # these data have no label logits


# --- The page --------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects tags, checks that they nest, and what the page would fetch."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.fetched, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [v for k, v in attributes if k in ("src", "href") and not v.startswith(("data:", "#"))]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> where {self.open[-3:]} are open"
        self.open.pop()

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(evaluation, classifier):
    return render_report(evaluation, classifier, title="Blobs & <more>")


def test_the_page_is_whole_and_needs_no_network(page):
    parsed = Page(page)
    assert parsed.fetched == [] and "script" not in parsed.tags and "link" not in parsed.tags
    assert parsed.tags.count("img") == 1 + 1 + 2 * 5 + 1 and "Blobs & <more>" in parsed.text
    assert not re.search(r"https?://", page.replace("http://www.w3.org", ""))


def test_the_page_shows_what_the_table_says(page, evaluation, classifier):
    text = Page(page).text
    for row in evaluation.table.rows:
        assert row.estimator in text
    assert classifier.data_fingerprint_ in text and "a test" in text and "no <b>" in text
    assert "<script>text" in text  # as text; that no such tag is there is tested above
    assert "class='below'" in page  # predictions without rejection are below 0.9 on far data


def test_the_page_says_what_is_promised_and_why_each_input_is_in_its_lane(certified):
    texts = [f"text of {i}" for i in range(300)]
    data = {"inside": labelled(TEST, texts=texts), "far": labelled(TEST, 40.0, texts=texts)}
    small = Evaluation(classifier_entrants(certified), data, 0.9)
    page = render_report(small, certified, title="t")
    text = Page(page).text
    names, certificate = certified.classes_.tolist(), certified.certificate_
    assert certificate.holds_for(names) in text
    assert [group.kind for group in certificate.groups] == ["class", "class", "prediction", "prediction"]
    for group in certificate.groups:
        shown = f"{group.name(names)}{group.n_admitted}{group.accuracy:.3f}{group.lower_bound:.3f}"
        assert shown in text
    for group in certified.model_.calibration.groups(certified.region_):
        low, high = group.interval
        assert f"{group.name(names)}{group.n_admitted}{group.accuracy:.3f}{low:.3f}–{high:.3f}" in text
    for name, states in data.items():
        decisions = certified.decide(states.hidden_states)
        of_set = text.partition("Lanes")[2].partition("What may be done")[2].partition(name)[2]
        for lane in ("trusted", "certified", "review", "unfamiliar"):
            rows = np.flatnonzero(decisions.lane == lane)
            right = (decisions.predictions[rows] == np.asarray(states.labels)[rows]).mean() if len(rows) else None
            assert f"{lane}{len(rows)}{share_text(len(rows) / 300)}{'-' if right is None else f'{right:.3f}'}" in of_set
            for row in rows[:3]:
                given = states.labels[row]
                shown = f"{decisions.predictions[row]}, given label {given}, id {row}: {decisions.reason[row]}."
                assert f"{shown} “text of {row}”" in of_set
    assert "text of" not in Page(render_report(small, certified, title="t", texts=False)).text


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_the_page_says_why_nothing_is_promised(certified, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))
    data = {"inside": labelled(TEST)}

    def promised(one):
        small = Evaluation(classifier_entrants(one), data, 0.9)
        return Page(render_report(small, one, title="t")).text.partition("Results")[2].partition("Results")[0]

    updated = copy.copy(certified)
    updated.add_exemplars(TEST.X[:5], NAMES[TEST.y[:5]], ids=[f"new-{i}" for i in range(5)])
    text = promised(updated)
    assert "the certificate no longer holds" in text and certified.certificate_.holds_for(NAMES.tolist()) not in text
    paper = SDMClassifier(**{**SMALL, "n_rounds": 1, "certification_size": None}).fit(labelled(TRAIN))
    assert "Nothing was held out to certify with." in promised(paper)
    strict = copy.copy(certified)
    strict.recertify(alpha=0.999)
    text = promised(strict)
    assert strict.certificate_.holds_for(NAMES.tolist()) in text and "of the safest rule" in text
    assert all(str(warning) in text for warning in strict.warnings()) and len(strict.warnings()) > 0


@pytest.mark.parametrize("is_known", [True, False])
def test_tables_overviews_and_a_page_decide_on_each_input_once(certified, monkeypatch, is_known):
    decided = []
    monkeypatch.setattr("torchsdm.model.model.decide", lambda z, *rest: decided.append(len(z)) or decide(z, *rest))
    monkeypatch.setattr("torchsdm.evaluation.report._image", lambda _: "")
    data = {
        "inside": labelled(TEST),
        "bare": LabelledStates(TEST.X[:200], None),
        "outside": LabelledStates(TEST.X[:100] + np.float32(9), ["else"] * 100),
    }
    evaluation = Evaluation(classifier_entrants(certified), data, 0.9, {}, certified if is_known else None)
    assert decided == [300, 200, 100]
    n_certification = certified.certificate_.n_certification
    evaluation.table, evaluation.summaries()
    assert len(evaluation.overviews()) == (2 if is_known else 0)
    assert decided[3:] == ([n_certification] if is_known else [])  # for the guard
    decided.clear()
    render_report(evaluation, certified, title="t")
    explained = [n for n in decided if n <= 15]
    others = [n for n in decided if n > 15]
    assert others == ([] if is_known else [300, 200, 100]) + [n_certification] and len(explained) == len(data)


def test_a_hostile_text_is_shown_and_does_nothing(certified, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.report._image", lambda _: "")
    hostile = "<script>alert(1)</script>'\"></p><img src='http://x'>{{ 7 * 7 }}{% raw %}&amp;"
    data = LabelledStates(TEST.X, [*NAMES[TEST.y[:-1]], hostile], [hostile] * 300, [hostile] * 300)
    entrants = [Entrant(hostile, hostile, SDMRule(certified, rule).fit()) for rule in OWN]
    evaluation = Evaluation(entrants, {hostile: data}, 0.9, {"model": hostile, hostile: hostile}, certified)
    page = render_report(evaluation, certified, title=hostile)
    parsed = Page(page)
    assert parsed.fetched == [] and not {"script", "raw"} & {*parsed.tags}
    n_plots = page.count("<figcaption>") - 1  # that of the lanes is no image
    assert parsed.tags.count("img") == n_plots and "{{ 7 * 7 }}{% raw %}&amp;" in parsed.text
    assert page.count(hostile) == 0 and parsed.text.count(hostile[:40]) > 30


def test_texts_are_shortened_and_the_page_is_bounded(page):
    assert max(len(part) for part in re.findall(r"<blockquote>(.*?)</blockquote>", page)) <= 6 * MAX_TEXT
    assert len(page) < 3_000_000


def test_the_page_is_written_in_one_step(evaluation, classifier, tmp_path):
    write_report(tmp_path / "report.html", evaluation, classifier)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InvalidTypeError, match="must be a fitted SDMClassifier"):
        write_report(tmp_path / "other.html", evaluation, object())


def test_an_ensemble_without_a_region_has_a_page_too(classifier, evaluation):
    ensemble = SDMEnsemble.from_classifier(classifier)
    with quiet():
        ensemble.recalibrate(1.0)
    entrant = Entrant("e", "r", SDMRule(ensemble, "region lower").fit())
    with pytest.raises(InvalidInputError, match="must be one of those requested"):
        Evaluation([entrant], {"inside": labelled(TEST)}, 0.9)
    small = Evaluation([entrant], {"inside": labelled(TEST)}, 1.0)
    assert "Round 1" in Page(render_report(small, ensemble, title="t")).text
    with pytest.raises(InvalidInputError, match=r"must have a region for the evaluation's alpha, 0\.9\. Got 1"):
        render_report(evaluation, ensemble, title="t")


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_page_of_several_alphas_half_precision_and_dollars(monkeypatch):
    names = np.array(["$0-$50", "$_$"])
    several = SDMClassifier(**{**SMALL, "alpha": (0.7, 0.95)}).fit(TRAIN.X, names[TRAIN.y])
    data = LabelledStates(torch.from_numpy(TEST.X).bfloat16(), names[TEST.y])
    rule = SDMRule(several).fit()
    evaluation = Evaluation([Entrant("m $x$", "r", rule)], {"d $y$": data}, 0.95)
    monkeypatch.setattr("torchsdm.evaluation.report._PICTURE_ROWS", 100)
    text = Page(render_report(evaluation, several, title="t")).text
    decisions = rule.decide(data.hidden_states).at(0.95)
    wrong = int((decisions.admitted & (decisions.predictions != names[TEST.y])).sum())
    assert f"{wrong} admitted against their given label" in text and "100 of 300 inputs, drawn at random" in text


def test_estimators_over_a_classifier_alone_are_calibrated_on_its_calibration_set(classifier):
    entrants = {entrant.name: entrant for entrant in classifier_entrants(classifier, name="LM")}
    assert list(entrants) == [
        *("no reject", "softmax(z′) ≥ α", "temperature ≥ α", "APS", "RAPS"),
        *("softmax(d·z′) ≥ α", "sdm(z′) ≥ α", "SDM_HR", "SDM_HR lower"),
        *("certified", "certified softmax", "certified temp.", "certified energy"),
    ]
    assert max(map(len, entrants)) == len("softmax(d·z′) ≥ α")  # certified rules make no table wider
    logits, labels = classifier.calibration_logits()
    blobs = make_blobs(seed=8, n=50, distance=3.0)
    alone = TemperatureScaling(classifier.region_.alpha).fit(logits, classifier.classes_[labels])
    ours = entrants["temperature ≥ α"].estimator.decide(blobs.X)
    np.testing.assert_allclose(ours.probabilities, alone.decide(classifier.logits(blobs.X)).probabilities)
    np.testing.assert_array_equal(
        entrants["SDM_HR"].estimator.decide(blobs.X).admitted, classifier.decide(blobs.X).admitted_at[:, 0]
    )
    ensemble = SDMEnsemble.from_classifier(classifier)
    of_rounds = classifier_entrants(ensemble)
    assert [entrant.name for entrant in of_rounds] == ["no reject", "SDM_HR lower, all agree"]
    np.testing.assert_array_equal(of_rounds[1].decide(labelled(blobs)).admitted, ensemble.decide(blobs.X).admitted)


def test_scores_of_logits_are_certified_like_the_classifier_also_where_it_was_loaded(certified, tmp_path):
    certified.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    held_out, (logits, labels) = certified.model_.certification, certified.calibration_logits()
    for classifier in (certified, loaded):
        own, every_level, *others = classifier_entrants(classifier)[-5:]
        trusted = certified.decide(TEST.X).lane == "trusted"
        np.testing.assert_array_equal(every_level.decide(labelled(TEST)).admitted, trusted)
        np.testing.assert_array_equal(own.decide(labelled(TEST)).admitted, certified.decide(TEST.X).certified)
        assert own.estimator.certificate_.identity == certified.certificate_.identity
        for entrant in others:
            made = entrant.estimator.certificate_
            assert (made.alpha, made.delta, made.control) == (0.9, 0.1, "groups") and made.n_certification == 400
            estimator = clone(entrant.estimator.estimator).set_params(model=None)
            estimator.fit(logits, classifier.classes_[labels])  # of the calibration points alone
            parts = [
                (estimator.decide(z), classifier.classes_[y])
                for z, y in ((logits, labels), (held_out.points.logits.numpy(), held_out.labels.numpy()))
            ]
            alone = CertifiedScore(estimator, entrant.estimator.score, 0.9).fit(*parts)
            assert alone.certificate_.identity == made.identity
            admitted = alone.decide(classifier.logits(TEST.X)).admitted
            np.testing.assert_array_equal(entrant.decide(labelled(TEST)).admitted, admitted)
            assert made.found and admitted.any()


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_without_a_certificate_that_holds_nothing_is_certified(certified, classifier):
    def names(one):
        return [entrant.name for entrant in classifier_entrants(one) if entrant.group == "certified"]

    noise = np.random.default_rng(0).permutation(TRAIN.y)
    failed = SDMClassifier(**{**SMALL, "n_rounds": 1}).fit(TRAIN.X, noise)
    assert len(names(failed)) == len(CERTIFIED)  # also where the attempt failed
    assert len(names(certified)) == len(CERTIFIED) + 1  # at every level, too
    assert not failed.certificate_.found
    paper = SDMClassifier(**{**SMALL, "n_rounds": 1, "certification_size": None}).fit(labelled(TRAIN))
    few = SDMClassifier(**{**SMALL, "n_rounds": 1}).fit(TRAIN.X[:60], TRAIN.y[:60])  # too few to hold any out
    assert few.certificate_ is not None and few.model_.certification is None
    other = copy.copy(certified)
    other.recertify(alpha=0.85)  # the region is still that of 0.9
    updated = copy.copy(certified)
    updated.add_exemplars(TEST.X[:5], NAMES[TEST.y[:5]], ids=[f"new-{i}" for i in range(5)])
    for one in (paper, few, other, updated):
        assert names(one) == []
    again = copy.copy(updated)
    again.recalibrate()
    assert len(names(again)) == len(CERTIFIED) + 1


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_after_a_new_certification_set_the_rows_are_still_known(certified):
    blobs = make_blobs(seed=5, n=1600, distance=3.0)
    new = make_blobs(seed=9, n=500, distance=3.0)
    other = copy.copy(certified)
    other.recertify(new.X, NAMES[new.y])
    without = paper_entrants(labelled(blobs), other, groups=["today", "cnn"])
    assert not any("certified" in entrant.name for entrant in without)  # their states are not known
    network = next(entrant for entrant in without if entrant.group == "cnn").estimator.fitted_model_
    assert len(network.training_rows_) + len(network.calibration_rows_) == 1200
    entrants = paper_entrants(labelled(blobs), other, certification=labelled(new), groups=["today"])
    found = [entrant.estimator.certificate_ for entrant in entrants if "certified" in entrant.name]
    assert [certificate.n_certification for certificate in found] == [500] * 3


def test_a_table_says_once_what_is_certified(certified):
    data = {"inside": labelled(TEST)}
    entrants = classifier_entrants(certified)
    table = Evaluation(entrants, data, 0.9).table
    lines = str(table).splitlines()
    note = " ".join(lines[len(entrants) + 3 :])
    assert note == table.note and lines[len(entrants) + 2] == ""
    assert note.startswith("With probability at least 0.9, the answers that a certified rule admits are right at least")
    assert "for every true class and every predicted class (δ = 0.1)" in note
    assert str(table).count("probability") == 1 and max(map(len, lines)) <= len(lines[1])
    assert note.endswith(EVERY_LEVEL)
    assert table.to_markdown().endswith(f"|\n\n{note}") and f"% {note}" in table.to_latex()
    plain = Evaluation(entrants[:-5], data, 0.9).table
    assert plain.note == "" and str(plain) == "\n".join(lines[: len(entrants) - 3])  # no wider for the others


def test_the_marker_of_a_curve_is_what_the_estimator_admits(certified):
    own = certified.decide(TEST.X)
    region = SDMRule(certified, "region").fit().decide(TEST.X)
    display = RiskCoverageDisplay.from_predictions({"own": own, "region": region}, NAMES[TEST.y])
    assert [curve.admitted_share for curve in display.curves] == [own.admitted.mean(), own.admitted_at.mean()]
    assert own.admitted.mean() != own.admitted_at.mean()


def test_entrants_of_the_same_name_each_have_a_curve(classifier):
    rules = [SDMRule(classifier, rule).fit() for rule in ("softmax", "sdm", "region")]
    entrants = [Entrant("m", name, rule) for name, rule in zip(("same", "same", "other"), rules, strict=True)]
    evaluation = Evaluation(entrants, {"inside": labelled(TEST)}, 0.9)
    _, display = next(displays_of(evaluation, classifier, "inside", classifier.decide(TEST.X)))
    assert [curve.name for curve in display.curves] == ["m, same (1)", "m, same (2)", "m, other"]


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
@pytest.mark.parametrize("kind", ["as fitted", "updated", "ensemble"])
def test_other_alphas_are_those_of_a_recalibrated_copy(classifier, kind):
    one = copy.copy(classifier) if kind != "ensemble" else SDMEnsemble.from_classifier(classifier)
    if kind == "updated":
        one.add_exemplars(TEST.X[:40], NAMES[TEST.y[:40]], ids=[f"new-{i}" for i in range(40)])
    truth = NAMES[TEST.y]
    found = _of_alphas(one, one.decide(TEST.X), TEST.X, truth)
    expected = AlphaDisplay.from_estimator(one, TEST.X, truth, alphas=found.alphas)
    assert found.admitted_share.max() > 0
    for name, values in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, name), values)


def test_a_page_without_texts_quotes_none(evaluation, classifier):
    assert "<blockquote>" in render_report(evaluation, classifier, title="with")
    without = render_report(evaluation, classifier, title="without", texts=False)
    assert "<blockquote>" not in without and "nearest" in without.lower()
