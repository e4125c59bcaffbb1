"""``SDMTextClassifier`` over a tiny random language model: what it asks of it, keeps of it and refuses."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
from sklearn.base import clone

import tiny_models
from small import quietly, small_settings
from torchsdm import (
    Documents,
    DriftGuard,
    HiddenStateExtractor,
    SDMClassifier,
    SDMEnsemble,
    SDMTextClassifier,
    TaskPrompt,
    load,
)
from torchsdm.errors import (
    BackboneError,
    InvalidInputError,
    InvalidTypeError,
    ModelFileError,
    NotFittedError,
)
from torchsdm.hidden_states import Backbone
from torchsdm.trust import separate_ledger

SMALL = small_settings(alpha=0.7, n_rounds=2, max_epochs=4)
GOOD, BAD = ["good", "funny", "fine"], ["bad", "sad", "long"]
THINGS = ["film", "plot", "cast", "music", "end"]
TEXTS = [f"the {thing} was {word} {extra}" for word in [*GOOD, *BAD] for thing in THINGS for extra in ("", "indeed")]
LABELS = ["good"] * 30 + ["bad"] * 30


@pytest.fixture(scope="module", autouse=True)
def cache_of_its_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSDM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_models.save_model(tmp_path_factory.mktemp("model"), *tiny_models.bert())


@pytest.fixture(scope="module")
def fitted(directory):
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(**SMALL))
    return quietly(lambda: classifier.fit(TEXTS, LABELS, ids=[f"t{i}" for i in range(60)]))


def test_it_is_the_classifier_over_the_extractors_states(fitted, directory):
    states = HiddenStateExtractor(str(directory)).extract(TEXTS).hidden_states
    by_hand = quietly(lambda: SDMClassifier(**SMALL).fit(states, LABELS))
    queries = ["the music was fine", "a sad sad end"]
    expected = by_hand.decide(HiddenStateExtractor(str(directory)).extract(queries).hidden_states)
    decisions = fitted.decide(queries)
    np.testing.assert_array_equal(decisions.probabilities, expected.probabilities)
    np.testing.assert_array_equal(fitted.predict(queries), expected.predictions)
    assert fitted.predict_proba(queries).shape == (2, 2) and fitted.classes_.tolist() == ["bad", "good"]


def test_a_dataset_keeps_the_names_of_its_classes(fitted, directory):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    numbers = [["bad", "good"].index(label) for label in LABELS]
    training = Dataset.from_dict({"text": TEXTS, "label": numbers}, features=features)
    unlabelled = Dataset.from_dict({"text": TEXTS[:4], "label": [-1] * 4}, features=features)
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(**SMALL))
    for data in ((training,), (training["text"], training["label"])):
        quietly(lambda data=data: classifier.fit(*data))
        assert classifier.classes_.tolist() == ["bad", "good"]
        np.testing.assert_array_equal(classifier.decide(unlabelled).predictions, fitted.predict(TEXTS[:4]))


def test_a_call_gives_one_dictionary_per_text(fitted):
    one, two = fitted("the plot was fine"), fitted(["the plot was fine", "the end was bad"])
    assert len(one) == 1 and one[0] == two[0] and len(two) == 2
    decisions = fitted.decide(["the plot was fine"])
    assert one == decisions[:1].to_dicts()
    assert one[0]["admitted"] is bool(decisions.admitted[0]) and json.dumps(one)


def test_explanations_show_training_texts(fitted):
    explanation = fitted.explain(["the film was good"], k=3)[0]
    assert len(explanation.exemplars) == 3
    for exemplar in explanation.exemplars:
        assert exemplar.text == TEXTS[int(exemplar.id[1:])]


def test_saved_and_loaded_it_answers_alike(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    again = SDMTextClassifier.from_pretrained(tmp_path / "model")
    assert again(TEXTS[:5]) == fitted(TEXTS[:5])
    over_states = SDMClassifier.load(tmp_path / "model")  # the same directory, for who has hidden states
    assert over_states.states_origin_.model.fingerprint == fitted.extractor_.backbone.fingerprint()
    again.save(tmp_path / "copy")
    assert SDMTextClassifier.load(tmp_path / "copy")(TEXTS[:5]) == fitted(TEXTS[:5])
    whichever = load(tmp_path / "copy")
    assert isinstance(whichever, SDMTextClassifier) and whichever(TEXTS[:5]) == fitted(TEXTS[:5])


def test_the_language_model_may_move_but_not_change(fitted, directory, tmp_path):
    fitted.save(tmp_path / "model")
    shutil.copytree(directory, tmp_path / "elsewhere")
    moved = SDMTextClassifier.load(tmp_path / "model", model=tmp_path / "elsewhere")
    assert moved(TEXTS[:3]) == fitted(TEXTS[:3])
    other = tiny_models.save_model(tmp_path / "retrained", *tiny_models.bert(seed=1))
    changed = SDMTextClassifier.load(tmp_path / "model", model=other)
    for ask in (changed.decide, changed.predict, changed.explain, changed):
        with pytest.raises(BackboneError, match="fitted with a different model fingerprint"):
            ask(TEXTS[:1])
    gone = SDMTextClassifier.load(tmp_path / "model", model=tmp_path / "nowhere")
    with pytest.raises(BackboneError, match="nowhere"):
        gone.decide(TEXTS[:1])


def test_settings_of_the_extractor_are_kept_with_the_model(directory, tmp_path):
    extractor = HiddenStateExtractor(
        str(directory), "Review: {document}", parts=["mean"], segments="sentences", n_segments=2
    )
    classifier = SDMTextClassifier(extractor, classifier=SDMClassifier(**SMALL))
    quietly(lambda: classifier.fit(TEXTS, LABELS))
    classifier.save(tmp_path / "model")
    again = SDMTextClassifier.load(tmp_path / "model")
    assert again.extractor_.origin() == extractor.origin() and again(TEXTS[:4]) == classifier(TEXTS[:4])
    extractor.parts = ["first"]
    with pytest.raises(BackboneError, match="a different states parts"):
        classifier.decide(TEXTS[:1])


def test_a_chat_template_that_writes_the_time_is_rendered_once(tmp_path):
    model, tokenizer = tiny_models.phi3()
    tokenizer.chat_template = "{{ strftime_now('%H:%M:%S.%f') }}: {{ messages[0]['content'] }}"
    backbone = str(tiny_models.save_model(tmp_path / "lm", model, tokenizer))
    classifier = SDMTextClassifier(backbone, "Is it good? {document}", SDMClassifier(**SMALL))
    quietly(lambda: classifier.fit(TEXTS, LABELS))
    first = classifier(TEXTS[:3])
    assert classifier(TEXTS[:3]) == first
    classifier.save(tmp_path / "model")
    assert SDMTextClassifier.load(tmp_path / "model")(TEXTS[:3]) == first
    one, other = (HiddenStateExtractor(backbone, "Is it good? {document}") for _ in range(2))
    assert one.origin() == one.origin() != other.origin()  # else this test would say nothing


def test_updates_by_text(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    classifier = SDMTextClassifier.load(tmp_path / "model")
    before = len(classifier.classifier_.support_)
    classifier.add_exemplars(
        ["win money now", "cheap pills"], ["spam", "spam"], ids=["s0", "s1"], allow_new_labels=True
    )
    classifier.add_exemplars(["the cast was quite fine"], ["good"])
    assert len(classifier.classifier_.support_) == before + 3
    assert classifier.explain(["cheap pills"], k=1)[0].exemplars[0].id == "s1"
    classifier.relabel_exemplars(["s0"], ["bad"]).remove_exemplars(["s1"])
    quietly(lambda: classifier.recalibrate(alpha=0.75))
    assert classifier.classifier_.region_.alpha == 0.75 and len(classifier.classifier_.support_) == before + 2


def test_answers_are_judged_beside_what_was_asked(directory):
    prompt = TaskPrompt("asked: {document} answered: {answer}")
    classifier = SDMTextClassifier(str(directory), prompt, SDMClassifier(**SMALL))
    answers = ["good" if i % 2 else "bad" for i in range(60)]
    quietly(lambda: classifier.fit(TEXTS, [i % 2 for i in range(60)], answers=answers))
    one, other = classifier.decide([TEXTS[0], TEXTS[0]], answers=["good", "bad"]).logits
    assert not np.array_equal(one, other)
    assert "[answer]" in classifier.explain([TEXTS[0]], answers=["good"])[0].exemplars[0].text
    with pytest.raises(InvalidInputError, match=r"asks for an \{answer\}"):
        classifier.decide([TEXTS[0]])
    documents = Documents([{"text": TEXTS[0], "answer": "good"}])
    np.testing.assert_allclose(classifier.decide(documents).logits[0], one, rtol=1e-4)  # of another batch


def test_documents_bring_labels_and_ids(directory, tmp_path):
    path = tmp_path / "reviews.jsonl"
    rows = [
        {"key": f"k{i}", "review": text, "stars": label}
        for i, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    documents = Documents(path, text="review", label="stars", id="key")
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(**SMALL))
    quietly(lambda: classifier.fit(documents))
    assert classifier.explain([TEXTS[0]], k=1)[0].exemplars[0].id.startswith("k")


@pytest.fixture
def batches(monkeypatch):
    """Each batch that the language model runs, as its number of texts."""
    run, counted = Backbone.run, []

    def counting(self, sequences, **options):
        counted.append(len(sequences))
        return run(self, sequences, **options)

    monkeypatch.setattr(Backbone, "run", counting)
    return counted


def fit_with(directory, cache, **options):
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(**SMALL), cache=cache)
    calibration = (TEXTS[1::2], LABELS[1::2])
    return quietly(lambda: classifier.fit(TEXTS[::2], LABELS[::2], calibration=calibration, **options))


def files_of(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_own", [True, False])
def test_a_second_fit_does_not_run_the_language_model(directory, is_own, tmp_path, monkeypatch, batches):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    cache = tmp_path / "mine" if is_own else True
    first = fit_with(directory, cache)
    assert sum(batches) >= 60
    kept = files_of(tmp_path / ("mine" if is_own else "cache"))
    assert kept and (tmp_path / "cache").exists() != is_own
    batches.clear()
    monkeypatch.setattr(Backbone, "load", lambda *arguments, **options: pytest.fail("a language model was loaded"))
    second = fit_with(directory, cache)
    assert batches == [] and files_of(tmp_path / ("mine" if is_own else "cache")) == kept
    monkeypatch.undo()
    np.testing.assert_array_equal(second.decide(TEXTS).probabilities, first.decide(TEXTS).probabilities)
    assert second.classifier_.states_origin_ == first.classifier_.states_origin_


def test_without_a_cache_nothing_is_kept(directory, tmp_path, monkeypatch, batches):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    fit_with(directory, False)
    n_runs = sum(batches)
    fit_with(directory, False)
    assert sum(batches) >= n_runs + 60 and not (tmp_path / "cache").exists()
    with pytest.raises(InvalidTypeError, match=r"'cache' of SDMTextClassifier\.fit must be a path. Got 3"):
        fit_with(directory, 3)


def test_only_fit_writes_to_the_cache(directory, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    classifier = fit_with(directory, True)
    kept = files_of(tmp_path / "cache")
    for ask in (classifier.decide, classifier.predict, classifier.predict_proba, classifier.explain, classifier):
        ask(["a new text"])
    classifier.add_exemplars(["another new text"], ["good"])
    assert files_of(tmp_path / "cache") == kept


def test_a_calibration_set_of_ones_own(directory):
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(**SMALL))
    quietly(lambda: classifier.fit(TEXTS[::2], LABELS[::2], calibration=(TEXTS[1::2], LABELS[1::2])))
    assert len(classifier.classifier_.support_) == 30 and len(classifier.classifier_.model_.calibration.labels) == 30


def test_an_ensemble_is_kept_as_one(directory, tmp_path):
    classifier = SDMTextClassifier(str(directory), classifier=SDMEnsemble(**SMALL))
    quietly(lambda: classifier.fit(TEXTS, LABELS))
    classifier.save(tmp_path / "model")
    again = SDMTextClassifier.load(tmp_path / "model")
    assert isinstance(again.classifier_, SDMEnsemble) and again(TEXTS[:3]) == classifier(TEXTS[:3])


def test_it_can_be_cloned_and_its_classifier_set(directory):
    classifier = clone(SDMTextClassifier(str(directory), "document", SDMClassifier(**SMALL)))
    classifier.set_params(classifier__alpha=0.8)
    assert classifier.classifier.alpha == 0.8 and not hasattr(classifier, "classifier_")
    extractor = HiddenStateExtractor(str(directory))
    assert len(extractor.extract(["a film"])) == 1
    assert "_backbone" not in vars(pickle.loads(pickle.dumps(extractor)))  # weights do not travel in a pickle


def test_what_it_refuses(directory, tmp_path, fitted):
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(**SMALL))
    with pytest.raises(NotFittedError, match="call fit before decide"):
        classifier.decide(["a text"])
    with pytest.raises(InvalidInputError, match="needs labels"):
        classifier.fit(TEXTS)
    with pytest.raises(InvalidInputError, match="one value for each"):
        classifier.fit(TEXTS, LABELS[:5])
    with pytest.raises(InvalidInputError, match=r"write \[text\] for one"):
        fitted.decide("a text")
    with pytest.raises(InvalidInputError, match="empty text: row 2"):
        fitted.decide(["a text", " "])
    with pytest.raises(InvalidInputError, match="must be None if 'model' is an extractor"):
        SDMTextClassifier(HiddenStateExtractor(str(directory)), "document").fit(TEXTS, LABELS)
    quietly(lambda: SDMClassifier(**SMALL).fit(np.random.default_rng(0).normal(size=(60, 4)), LABELS)).save(
        tmp_path / "m"
    )
    with pytest.raises(ModelFileError, match="does not know its language model"):
        SDMTextClassifier.load(tmp_path / "m")
    with pytest.raises(ModelFileError, match="missing"):
        SDMTextClassifier.load(tmp_path)


def test_around_a_classifier_that_knows_its_language_model(fitted, directory):
    made = SDMTextClassifier.around(fitted.classifier_, batch_tokens=64)
    queries = ["the music was fine", "a sad sad end"]
    np.testing.assert_array_equal(made.states(queries), fitted.states(queries))
    np.testing.assert_array_equal(made.decide(queries).admitted, fitted.decide(queries).admitted)
    assert made.extractor_.batch_tokens == 64 and made.classifier_ is fitted.classifier_
    stranger = quietly(lambda: SDMClassifier(**SMALL).fit(np.eye(60), LABELS))
    with pytest.raises(InvalidInputError, match="must know its language model"):
        SDMTextClassifier.around(stranger)


# --- Certificate and guard -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certified(directory):
    classifier = SDMTextClassifier(str(directory), classifier=SDMClassifier(control="all", **SMALL))
    with separate_ledger():  # other fixtures certify with some of these texts
        return quietly(lambda: classifier.fit(TEXTS[::2], LABELS[::2], certification=(TEXTS[1::2], LABELS[1::2])))


def test_an_own_certification_set_of_texts(certified, directory):
    extractor = HiddenStateExtractor(str(directory))  # apart, as in fit: the last bits of states depend on the batch
    states, held_out = (extractor.extract(texts).hidden_states for texts in (TEXTS[::2], TEXTS[1::2]))
    parts = {"certification": (held_out, LABELS[1::2])}
    by_hand = quietly(lambda: SDMClassifier(control="all", **SMALL).fit(states, LABELS[::2], **parts))
    assert certified.classifier_.certificate_.n_certification == 30
    assert certified.classifier_.certificate_.identity == by_hand.certificate_.identity
    with pytest.raises(InvalidInputError, match=r"fit \(certification\)"):
        certified.fit(TEXTS, LABELS, certification=(TEXTS,))
    ensemble = SDMTextClassifier(str(directory), classifier=SDMEnsemble(**SMALL))
    with pytest.raises(InvalidInputError, match="an ensemble is not certified"):
        ensemble.fit(TEXTS, LABELS, certification=(TEXTS, LABELS))


def test_texts_certify_again(certified, tmp_path):
    certified.save(tmp_path / "model")
    again = SDMTextClassifier.load(tmp_path / "model")
    quietly(lambda: again.recertify(alpha=0.6))
    assert (again.classifier_.certificate_.alpha, again.classifier_.certificate_.looks) == (0.6, 2)
    new = [f"{text} again" for text in TEXTS]
    quietly(lambda: again.recertify(new, LABELS, ids=[f"n{row}" for row in range(60)]))
    assert (again.classifier_.certificate_.n_certification, again.classifier_.certificate_.looks) == (60, 1)
    assert again.classifier_.model_.certification.examples.ids()[:2] == ["n0", "n1"]
    with pytest.raises(InvalidInputError, match="Already in the certification set: 40 of the 40"):
        again.recertify(new[:40], LABELS[:40])
    quietly(lambda: again.recertify([f"{text} once more" for text in TEXTS[:40]], LABELS[:40]))
    assert len(set(again.classifier_.model_.known_ids())) == 30 + 40
    with pytest.raises(InvalidInputError, match="recertify needs labels"):
        again.recertify(TEXTS)


def test_a_guard_watches_texts(certified):
    by_hand, texts = (DriftGuard.from_classifier(certified, seed=0) for _ in range(2))
    parts = TEXTS[:20], TEXTS[20:40], TEXTS[40:]
    expected = [certified.classifier_.decide(certified.states(part), guard=by_hand).to_dicts() for part in parts]
    assert certified.decide(parts[0], guard=texts).to_dicts() == expected[0]
    assert certified(parts[1], guard=texts) == expected[1]
    assert [one.decision for one in certified.explain(parts[2], guard=texts)] == expected[2]
    assert texts.to_json() == by_hand.to_json() and texts.n_seen == 60


def test_an_ensemble_of_texts_has_neither(directory):
    classifier = SDMTextClassifier(str(directory), classifier=SDMEnsemble(**SMALL))
    quietly(lambda: classifier.fit(TEXTS, LABELS))
    guard = DriftGuard([1.0], [1.0], [1.0])
    with pytest.raises(InvalidInputError, match=r"'guard' of SDMTextClassifier.explain"):
        classifier.explain(TEXTS, guard=guard)
    with pytest.raises(InvalidInputError, match=r"'guard' of SDMTextClassifier.decide"):
        classifier(TEXTS, guard=guard)
    with pytest.raises(InvalidInputError, match="an ensemble is not certified"):
        classifier.recertify(TEXTS, LABELS)
