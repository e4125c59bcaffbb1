"""The review queue: inputs are decided on, labelled, tried, added and taken back, and nothing is forgotten."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tiny_models
from small import quiet, small_settings, two_groups
from torchsdm import SDMClassifier
from torchsdm.application import LiveModel, ReviewQueue, calibration_map, signal_histograms
from torchsdm.application.review import contradiction
from torchsdm.data import Documents
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMTextClassifier

RNG = np.random.default_rng(0)
TEXTS = [
    f"the {''.join(RNG.choice(list('abcdefghij'), 12))} was {'great and lovely' if number % 2 else 'awful and dull'}"
    for number in range(90)
]
ROWS = [{"id": f"n{n}", "text": "great " * (n + 2) + "and dull", "label": n % 2} for n in range(6)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("review")
    language_model = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    small = SDMClassifier(0.8, **small_settings())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SDMTextClassifier(language_model, classifier=small).fit(TEXTS[:80], [n % 2 for n in range(80)]).save(
            folder / "model"
        )
    return folder / "model"


@pytest.fixture
def live(trained, tmp_path):
    import shutil

    with LiveModel.open(shutil.copytree(trained, tmp_path / "model"), who="test", exclusive=False) as opened:
        yield opened


@pytest.fixture
def queue(live):
    opened = ReviewQueue(live)
    yield opened
    opened.close()


def work(queue):
    while queue.work():
        pass


def test_a_file_is_decided_on_as_the_library_does(queue, live, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("id,text,label\n" + "".join(f"{r['id']},{r['text']},{r['label']}\n" for r in ROWS) + "x,,1\n")
    assert queue.put_file(file, "rows.csv") == {"added": 6, "known": 0, "unreadable": 1}
    assert queue.put_file(file, "rows.csv")["known"] == 6
    work(queue)
    expected = live.snapshot.saved.text_classifier.decide([row["text"] for row in ROWS])
    rows = queue.store.rows()
    assert [row["decision"]["prediction"] for row in rows] == expected.predictions.tolist()
    assert [row["decision"]["lane"] for row in rows] == expected.lane.tolist()
    assert [row["given"] for row in rows] == [row["label"] for row in ROWS]  # classes, not strings
    for row in rows:
        assert row["contradiction"] == pytest.approx(contradiction(row["decision"], row["given"]))


def test_an_input_that_cannot_be_read_does_not_hold_up_the_others(queue, monkeypatch):
    import torchsdm.application.review as module

    whole = module.given_block

    def fails_for_one(saved, *, texts, answers, bad):
        if any("beta" in text for text in texts):
            raise InvalidInputError("too long")
        return whole(saved, texts=texts, answers=answers, bad=bad)

    monkeypatch.setattr(module, "given_block", fails_for_one)
    queue.put([{"text": "alpha was great"}, {"text": "beta was dull"}, {"text": "gamma was dull"}], "sent")
    work(queue)
    lanes = [row["decision"]["lane"] for row in queue.store.rows()]
    assert lanes[1] == "rejected" and "rejected" not in (lanes[0], lanes[2])
    assert queue.store.rows()[1]["decision"]["reason"] == "too long"


def test_what_is_labelled_is_tried_then_added_then_taken_back(queue, live):
    queue.put(ROWS, "sent")
    work(queue)
    for row in (1, 2):
        queue.label(row, row % 2, "ada")
    n_support = len(live.snapshot.saved.classifier.models_[0].support)
    effect = queue.preview()
    assert effect["n"] == 2 and effect["after"]["n_support"] == n_support + 2
    assert sum(one["n"] for one in effect["lanes"]) == 4  # the other inputs
    assert live.snapshot.version == 0 and live.changes() == []
    added = queue.add("ada", "looked at")
    assert [one.what for one in added] == ["add", "recalibrate"] and added[0].who == "ada"
    assert len(live.snapshot.saved.classifier.models_[0].support) == n_support + 2
    expected = {(one["before"], one["after"]): one["n"] for one in effect["lanes"]}
    before = {row["row"]: row["decision"]["lane"] for row in queue.store.rows()}
    work(queue)  # decides again, with the new version
    moved: dict = {}
    for row in queue.store.rows():
        if row["row"] not in (1, 2):
            pair = (before[row["row"]], row["decision"]["lane"])
            moved[pair] = moved.get(pair, 0) + 1
        assert row["version"] == live.snapshot.version
    assert moved == expected  # the preview told the truth
    assert queue.store.counts()["status"]["added"] == 2
    queue.undo(added[0].version, "ada", "a mistake")
    assert len(live.snapshot.saved.classifier.models_[0].support) == n_support
    assert queue.store.counts()["status"]["labelled"] == 2
    assert {one.version for one in live.changes() if one.undone_by} == {one.version for one in added}


def test_a_process_killed_while_adding_finds_out_what_happened(queue, live, monkeypatch):
    queue.put(ROWS, "sent")
    work(queue)
    queue.label(1, 1, "ada")

    def killed():
        raise KeyboardInterrupt

    monkeypatch.setattr(queue, "_settle", killed)  # the change is made, its note is not
    with pytest.raises(KeyboardInterrupt):
        queue.add("ada", "looked at")
    assert queue.store.counts()["status"]["labelled"] == 1
    again = ReviewQueue(live)
    assert again.store.rows(status="added")[0]["added"] == 1
    again.close()


def test_two_people_who_add_at_once_add_once(live):
    entered = threading.Event()

    def slowly(function):
        entered.set()
        time.sleep(0.2)
        return function()

    queue = ReviewQueue(live, writing=slowly)
    queue.put(ROWS, "sent")
    work(queue)
    for row in (1, 2, 3):
        queue.label(row, 1, "eve")
    first = threading.Thread(target=lambda: queue.add("eve", "looked at", recalibrate=False))
    first.start()
    entered.wait()
    with pytest.raises(InvalidInputError, match="Nothing is labelled"):
        queue.add("ada", "looked at", recalibrate=False)
    first.join()
    assert queue.store.counts()["status"]["added"] == 3
    assert [change.who for change in live.changes()] == ["eve"]
    queue.close()


def test_what_was_undone_elsewhere_is_labelled_as_before(queue, live):
    queue.put(ROWS, "sent")
    work(queue)
    queue.label(1, 1, "eve")
    (change,) = queue.add("eve", "looked at", recalibrate=False)
    live.undo(change.version, who="ada", why="by another way")
    work(queue)
    assert queue.store.counts()["status"] == {"open": 5, "labelled": 1, "skipped": 0, "added": 0}


def test_what_the_model_has_already_is_left_out(queue, live):
    queue.put([{"text": TEXTS[0]}, {"text": ROWS[0]["text"], "label": 1}, {"text": ROWS[1]["text"]}], "sent")
    work(queue)
    queue.label(1, 0, "ada")
    with pytest.raises(InvalidInputError, match="in the model already"):
        queue.preview()
    queue.label(2, 0, "ada")
    assert (queue.preview()["n"], queue.preview()["known"]) == (1, 1)
    queue.add("ada", "looked at", recalibrate=False)
    assert [row["status"] for row in queue.store.rows()] == ["labelled", "added", "open"]
    assert [row["given"] for row in queue.store.rows()] == [None, 1, None]  # labels may be missing


def test_nothing_to_add_and_nobody_to_add_it_are_refused(queue):
    queue.put(ROWS, "sent")
    work(queue)
    with pytest.raises(InvalidInputError, match="Nothing is labelled"):
        queue.preview()
    with pytest.raises(InvalidInputError, match="not a class"):
        queue.label(1, "neither", "ada")
    with pytest.raises(InvalidInputError, match="'who' is required"):
        queue.label(1, 1, " ")
    with pytest.raises(InvalidInputError, match="Row 0"):
        queue.put([{"txt": "a"}], "sent")


def test_what_people_decided_is_exported_as_the_command_reads_it(queue, tmp_path):
    queue.put(ROWS, "sent")
    queue.put([{"text": 'one without an id, "quoted"\nand with two lines'}], "sent")
    work(queue)
    for row in (2, 7):
        queue.label(row, 1, "ada")
    named = {row["id"] for row in ROWS}
    for ending in ("jsonl", "csv"):
        file = tmp_path / f"out.{ending}"
        file.write_text("".join(queue.export(ending)), newline="")
        documents = list(Documents(file))
        assert [str(one.label) for one in documents] == ["1", "1"]
        assert documents[0].id == "n1" and documents[1].id == "review-7" not in named
        assert documents[1].text.endswith("and with two lines")
    assert json.loads(next(iter(queue.export("jsonl"))))["given_label"] == 1
    assert next(csv.DictReader(io.StringIO("".join(queue.export("csv")))))["who"] == "ada"


def test_another_model_at_the_path_decides_anew_from_the_texts(queue, live, trained):
    queue.put([{"text": row["text"]} for row in ROWS], "rows")
    work(queue)
    queue.label(1, 0, "ada")
    before = [row["decision"]["logits"] for row in queue.store.rows()]
    other = SDMClassifier(0.8, **small_settings(n_filters=4, max_epochs=2, random_state=1))
    model = SDMTextClassifier(str(trained.parent / "bert"), "A film: {document}", classifier=other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(TEXTS[:80], [n % 2 for n in range(80)]).save(live.path)
    live.refresh()
    work(queue)
    after = [row["decision"]["logits"] for row in queue.store.rows()]
    expected = live.snapshot.saved.text_classifier.decide([row["text"] for row in ROWS]).to_dicts()
    assert after == [row["logits"] for row in expected] != before
    assert queue.store.rows()[0]["label"] == 0  # what people said stays


def test_contradiction_is_the_odds_against_a_label():
    decision = {"probabilities": {"0": 0.99, "1": 0.01}}
    assert contradiction(decision, 1) == pytest.approx(np.log10(99)) == -contradiction(decision, 0)
    assert contradiction(decision, "new") is None and contradiction(decision, None) is None
    assert contradiction({"lane": "rejected"}, 1) is None


def test_the_map_admits_what_the_region_admits():
    with quiet():
        classifier = SDMClassifier(0.8, **small_settings()).fit(*two_groups(80, 0, names=[0, 1]))
    drawn, calibration = calibration_map(classifier), classifier.models_[0].calibration
    alphas = [one["alpha"] for one in drawn["regions"]]
    assert alphas == sorted(alphas) and 0.8 in alphas
    points = {name: np.array(values) for name, values in json.loads(json.dumps(drawn["points"])).items()}
    for region, mine in zip(calibration.with_regions(alphas, 0).regions, drawn["regions"], strict=True):
        assert mine["found"] == region.found
        if region.found:
            admitted = (points["rescaled_similarity"] >= mine["min_rescaled_similarity"]) & (
                points["confidence"] >= np.array(mine["thresholds"], dtype=float)[points["predictions"]]
            )
            expected = region.admits(calibration.rescaled_similarity, calibration.predictions, calibration.confidence)
            assert admitted.tolist() == expected.tolist()
    assert any(one["found"] for one in drawn["regions"])


def test_histograms_count_every_calibration_point(live):
    classifier = live.snapshot.saved.classifier
    drawn = signal_histograms(classifier)
    for name in drawn["edges"]:
        n = sum(sum(one[name]["right"]) + sum(one[name]["wrong"]) for one in drawn["predictions"])
        assert n == len(classifier.models_[0].calibration.labels), name


def test_who_adds_the_same_at_the_same_time_finds_it_added(queue, monkeypatch):
    queue.put(ROWS[:2], "test")
    work(queue)
    for row in (1, 2):
        queue.label(row, 1, "Ada")
    ticks = iter(range(100))
    monkeypatch.setattr("torchsdm.application.review._now", lambda: str(next(ticks)))  # each in a second of its own
    both_have_read, make = threading.Barrier(2), queue._labelled

    def read_together(recalibrate):
        read = make(recalibrate)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.5)
        return read

    monkeypatch.setattr(queue, "_labelled", read_together)
    with ThreadPoolExecutor(2) as pool:
        added = [pool.submit(queue.add, name, "checked", recalibrate=False) for name in ("Ada", "Bob")]
    failures = [one.exception() for one in added]
    assert [type(one) for one in failures if one is not None] == [InvalidInputError]
    assert "Nothing is labelled" in str(next(one for one in failures if one is not None))
    assert queue.store.counts()["status"]["added"] == 2
