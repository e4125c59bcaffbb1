"""What a report opens with: sentences that promise what the certificate does and no more, and commands that exist."""

from __future__ import annotations

import copy
import html
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from conftest import make_blobs
from small import quiet, small_settings
from torchsdm import LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.application import summary
from torchsdm.cli._words import trust_lines
from torchsdm.cli.command import sdm
from torchsdm.evaluation import Evaluation, classifier_entrants
from torchsdm.evaluation._opening import next_steps, verdicts
from torchsdm.evaluation.report import render_report
from torchsdm.model import sdm_numpy
from torchsdm.wording import STEPS, of_100

NAMES = np.array(["bad", "good"])
TEST = make_blobs(seed=6, n=300, distance=3.0)


@pytest.fixture(scope="module")
def certified():
    blobs = make_blobs(seed=5, n=1600, distance=3.0)
    settings = small_settings(max_epochs=6)
    with quiet():
        fitted = SDMClassifier(alpha=0.9, **settings).fit(blobs.X, NAMES[blobs.y])
    assert fitted.certificate_.found and fitted.region_.found
    return fitted


def opened(classifier, data, **settings):
    """The verdicts on data sets, by name, and what to do next."""
    with quiet():
        alpha = classifier.models_[0].calibration.regions[0].alpha
        evaluation = Evaluation(classifier_entrants(classifier), data, alpha, **settings)
        decided = {name: classifier.decide(part.hidden_states) for name, part in evaluation.data_sets.items()}
        found = verdicts(evaluation, classifier, decided)
    return {one.name: one for one in found}, next_steps(found, classifier, "my model")


def inside(labels=None, rows=slice(None)):
    return LabelledStates(TEST.X[rows], NAMES[TEST.y][rows] if labels is None else labels)


def with_certificate(classifier, **changes):
    changed = copy.copy(classifier)
    changed.certificate_ = replace(classifier.certificate_, **changes)
    return changed


def test_a_data_set_like_the_certification_set_has_the_promise_and_what_was_seen(certified):
    found, steps = opened(certified, {"test": inside()})
    decisions = certified.decide(TEST.X)
    right = int((decisions.predictions == NAMES[TEST.y])[decisions.admitted].sum())
    n = int(decisions.admitted.sum())
    one = found["test"]
    assert one.standing == "promised" and 0 < n < 300
    assert one.sentence == (
        f"{round(n / 3)} of 100 inputs can be answered unattended. With probability at least 0.9, such answers are "
        "right at least 90 % of the time, for every true class and every predicted class."
    )
    assert one.detail.startswith(f"Seen here: {right} of {n} admitted were right ({100 * right / n:.3g} %).")
    assert f"like the {certified.certificate_.n_certification} certification points" in one.detail
    assert one.lanes == {lane: int((decisions.lane == lane).sum()) for lane in one.lanes if lane != "rejected"} | {
        "rejected": 0
    }
    assert steps[0][1] == "sdm predict 'my model' new.jsonl -o decisions.jsonl --guard 'my model'.guard"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"control": "predictions"}, "are right at least 90 % of the time, for every predicted class."),
        ({"control": "all"}, "are right at least 90 % of the time, taken together."),
        ({"looks": 2, "delta_spent": 0.25}, "With probability at least 0.75 for all 2 certificates on this sample, "),
        ({"class_alphas": (0.9, 0.95)}, "at least as often as asked (0.9 for 'bad', 0.95 for 'good'), for every true"),
        ({"n_corrected": 4}, "predicted class, if its corrections (4) were made without regard to the decisions."),
    ],
)
def test_the_sentence_says_what_this_certificate_promises(certified, changes, words):
    found, _ = opened(with_certificate(certified, **changes), {"test": inside()})
    assert words in found["test"].sentence


def test_inputs_of_another_kind_have_no_promise_in_whatever_order_they_come(certified):
    moved = LabelledStates(TEST.X + 6.0, NAMES[TEST.y])
    order = np.argsort(-certified.decide(TEST.X).nearest_distance)  # the strangest first
    found, steps = opened(certified, {"test": inside(), "sorted": inside(rows=order), "moved": moved})
    assert [one.standing for one in found.values()] == ["promised", "promised", "drifted"]
    one = found["moved"]
    assert "not the kind of input that the promise is about" in one.sentence
    assert "unattended" not in one.sentence and "of the time" not in one.sentence
    assert "inputs of moved differ" in steps[1][0] and steps[1][1].startswith("sdm explain")


def test_a_promise_that_is_not_kept_is_not_repeated(certified):
    flipped = NAMES[np.where(np.arange(300) % 3 == 0, 1 - TEST.y, TEST.y)]  # the states look as ever
    one = opened(certified, {"test": inside(flipped)})[0]["test"]
    assert one.standing == "missed" and "fewer of the answers were right than promised" in one.sentence
    group = re.match(r"Of those in (?:class|prediction) '(?:bad|good)', (\d+) of (\d+) admitted were right", one.detail)
    assert (
        group is not None
        and int(group[1]) / int(group[2]) < 0.8
        and "promised: at least 90 % of the time." in one.detail
    )


def test_a_class_is_held_to_its_own_target(certified):
    decisions = certified.decide(TEST.X)
    chosen = np.flatnonzero(decisions.certified & (decisions.predictions == "good"))
    wrong = chosen[::12]  # one in twelve is enough for 0.9, and not for 0.99
    labels = NAMES[TEST.y].copy()
    labels[chosen], labels[wrong] = "good", "bad"
    standings = [
        opened(with_certificate(certified, control="predictions", class_alphas=alphas), {"test": inside(labels)})[0]
        for alphas in ((), (0.9, 0.99))
    ]
    assert [one["test"].standing for one in standings] == ["promised", "missed"]
    assert "Of those in prediction 'good'" in standings[1]["test"].detail
    assert "promised: at least 99 % of the time" in standings[1]["test"].detail


def test_a_few_errors_more_than_promised_may_be_chance(certified):
    decisions = certified.decide(TEST.X)
    admitted = np.flatnonzero(decisions.admitted)
    labels = decisions.predictions.copy()
    wrong = admitted[:: len(admitted) // int(0.12 * len(admitted))]
    labels[wrong] = NAMES[1 - (labels[wrong] == "good").astype(int)]
    cell = opened(certified, {"test": inside(labels)})[0]["test"]
    assert (labels == decisions.predictions)[admitted].mean() < 0.9 and cell.standing == "promised"


def test_inputs_of_no_class_are_mistakes_and_those_without_labels_unknown(certified):
    data = {
        "others": inside(np.full(300, "ugly")),
        "unlabelled": LabelledStates(TEST.X, None),
        "far": LabelledStates(TEST.X + 40.0, np.full(300, "ugly")),
    }
    found, steps = opened(certified, data)
    assert [one.standing for one in found.values()] == ["outsiders", "promised", "outsiders"]
    assert "each a mistake; they belong to no class" in found["others"].sentence
    assert found["far"].sentence.startswith("The model admits none of the 300 inputs; they belong to no class")
    assert "Without labels nobody knows how many are right." in found["unlabelled"].detail
    assert "would be answered unattended. With probability at least 0.9, " in found["unlabelled"].sentence
    assert "every predicted class, if the inputs are like the" in found["unlabelled"].sentence
    assert any("--background" in command for _, command in steps)


def test_a_few_strange_inputs_at_the_end_of_a_file_are_pointed_at(certified):
    stream = np.concatenate([TEST.X, TEST.X[:6] + 40.0])
    one = opened(certified, {"new": LabelledStates(stream, None)})[0]["new"]
    at = int(
        re.search(r"In the order of the file, the drift guard is raised at input (\d+): look there", one.detail)[1]
    )
    assert one.standing == "promised" and 300 < at <= 306
    calm = opened(certified, {"new": LabelledStates(TEST.X, None)})[0]["new"]
    assert "drift guard" not in calm.detail


@pytest.mark.parametrize("changes", [{}, {"found": False, "thresholds": np.full(2, np.inf)}])
def test_what_every_level_promises_is_a_promise_for_predictions(certified, changes):
    alone = with_certificate(certified, control="groups", **changes)
    alone.set_params(policy="certified" if changes else "trusted")
    verdict = opened(alone, {"test": inside()})[0]["test"]
    assert verdict.standing == "promised" and verdict.n_admitted == verdict.lanes["trusted"] > 0
    assert "such answers are right at least 90 % of the time, for every predicted class." in verdict.sentence


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_without_a_certificate_nothing_is_promised_and_the_reason_is_given(certified):
    def one(classifier):
        found, steps = opened(classifier, {"test": inside()})
        assert found["test"].standing == "unpromised" and found["test"].sentence.startswith("Nothing is promised")
        assert "unattended. With" not in found["test"].sentence and "probability" not in found["test"].sentence
        return found["test"], steps[0][1]

    strict = copy.copy(certified)
    strict.recertify(alpha=0.999)
    verdict, command = one(strict)
    assert verdict.detail.startswith(strict.certificate_.holds_for(NAMES.tolist()))
    assert command == f"sdm certify 'my model' NEW --alpha {strict.certificate_.largest_alpha:.2g}"

    updated = copy.copy(certified)
    updated.add_exemplars(TEST.X[:5], NAMES[TEST.y[:5]], ids=[f"new-{i}" for i in range(5)])
    verdict, command = one(updated)
    assert "changed after it was certified" in verdict.detail and command == "sdm certify 'my model' NEW"

    cautious = with_certificate(certified, windows=())  # the region's answers, then
    cautious.set_params(policy="trusted")
    verdict, command = one(cautious)
    assert "only part of what is certified" in verdict.detail and "--policy certified" in command
    assert verdict.n_admitted == verdict.lanes["trusted"]

    verdict, command = one(with_certificate(certified, looks=10, delta_spent=1.0))
    assert "No promise is left" in verdict.detail and command == "sdm certify 'my model' NEW"

    ensemble = SDMEnsemble(alpha=0.9, **small_settings(n_rounds=2, max_epochs=4))
    verdict, _ = one(ensemble.fit(TEST.X, NAMES[TEST.y]))
    assert verdict.detail.startswith("An ensemble is not certified.")


def test_inputs_that_could_not_be_read_count(certified):
    one = opened(certified, {"test": inside()}, unread={"test": 300})[0]["test"]
    assert one.lanes["rejected"] == 300 and sum(one.lanes.values()) == 600
    assert one.sentence.startswith(f"{round(one.n_admitted / 6)} of 100 inputs")


def test_counts_are_said_as_people_say_them():
    assert [of_100(*pair) for pair in [(0, 50), (50, 50), (1, 50), (1, 900), (899, 900), (450, 900)]] == [
        *("none of the 50 inputs", "all of the 50 inputs", "1 of 50 inputs", "1 of 900 inputs"),
        *("899 of 900 inputs", "50 of 100 inputs"),
    ]


def commands():
    """Every command that an opening may name."""
    return sorted({command for _, command in STEPS.values()})


@pytest.mark.parametrize("command", commands())
def test_every_command_that_is_named_exists_with_its_options(command):
    for one in command.replace("{model}", "MODEL").split(" && "):
        _, verb, *arguments = shlex.split(re.sub(r"\{[^}]*\}", "0.9", one))
        known = {option for parameter in sdm.get_command(None, verb).params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= known


def test_python_card_report_command_and_export_say_the_same(certified, tmp_path, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))
    strict = copy.copy(certified)
    with quiet():
        strict.recertify(alpha=0.999)
    for classifier, alpha in ((certified, 0.9), (strict, 0.999)):
        sentence = classifier.certificate_.holds_for(NAMES.tolist())
        assert sentence in classifier.model_card()
        evaluation = Evaluation(classifier_entrants(classifier), {"test": inside()}, 0.9)
        assert sentence in html.unescape(render_report(evaluation, classifier, title="t"))
        facts = summary(classifier, tmp_path)
        assert facts["certificate"]["holds_for"] == sentence
        assert sentence.startswith(trust_lines(facts)[0]) and trust_lines(facts)[0].endswith(".")
        classifier.export_numpy(tmp_path / f"{alpha}")
        assert sdm_numpy.load(tmp_path / f"{alpha}").promise == sentence
    assert trust_lines(summary(certified, tmp_path))[0] == certified.certificate_.holds_for(NAMES.tolist())


def test_the_page_opens_with_it_before_any_table(certified, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))
    evaluation = Evaluation(classifier_entrants(certified), {"a & b": inside()}, 0.9, {"model": "kept"}, certified)
    page = render_report(evaluation, certified, title="t")
    opening, table, _ = page.partition("<table")
    (one,) = opened(certified, {"a & b": inside()})[0].values()
    assert table and "a &amp; b" in opening and one.sentence in opening and "What to do next" in opening
    assert "sdm predict kept new.jsonl" in opening
    widths = [float(width) for width in re.findall(r"<rect x='[\d.]+%' width='([\d.]+)%'", opening)]
    assert len(widths) == 5 and sum(widths) == pytest.approx(100, abs=0.05)
    assert widths[0] == pytest.approx(one.lanes["trusted"] / 3, abs=0.01)
    assert "<b>trusted</b> act<" in opening
    cautious = with_certificate(certified, windows=())
    cautious.set_params(policy="trusted")
    assert "<b>trusted</b> admitted, without a promise<" in render_report(evaluation, cautious, title="t")
