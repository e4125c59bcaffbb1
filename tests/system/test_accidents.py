"""Everyday accidents around ``sdm train``: what a person would expect happens, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import numpy as np
import pandas
import pytest

import tiny_models
from sdm_command import call, good, refused
from small import contents, write_jsonl
from torchsdm import Documents, SDMClassifier, SDMTextClassifier, read_states
from torchsdm.errors import DataWarning, InvalidInputError
from torchsdm.hidden_states.extraction import Extraction
from torchsdm.training import stored_epochs
from torchsdm.wording import counted
from warm_process import SDM, WarmProcess

QUICK = ("--rounds", 1, "--epochs", 3, "--filters", 8, "--learning-rate", 0.01, "--seed", 0, "--alpha", 0.8)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Labelled states of two classes, in a file."""
    path = tmp_path_factory.mktemp("states") / "train.npz"
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    np.savez(path, hidden_states=(rng.normal(size=(200, 6)) + 3.0 * labels[:, None]).astype("float32"), labels=labels)
    return path


@pytest.fixture(scope="module")
def trained(states, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    good("train", states, "-o", path, *QUICK)
    return path


# --- where a model is written ----------------------------------------------------------------------------------------


def test_a_model_is_replaced_only_if_asked_to_and_that_is_said_before_anything_is_read(trained, states, tmp_path):
    model = shutil.copytree(trained, tmp_path / "model")
    before = contents(model)
    refused(
        call("train", tmp_path / "nowhere.npz", "-o", model, *QUICK),
        f"{model} already has a model. To replace it: --overwrite.",
    )
    assert contents(model) == before
    good("train", states, "-o", model, "--overwrite", *QUICK, "--filters", 9)
    assert SDMClassifier.load(model).n_filters == 9


def test_a_folder_of_something_else_is_never_written_to(trained, states, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"sun")
    (folder / ".writing-diary").write_bytes(b"half a page")
    before = contents(folder)
    for arguments in (
        ("train", states, *QUICK),
        ("train", states, "--overwrite", *QUICK),
        ("recalibrate", trained, "--overwrite"),
    ):
        refused(call(*arguments, "-o", folder), "something other than a model, such as 'holiday.jpg'; left untouched")
    assert contents(folder) == before


def test_an_empty_folder_is_fine_and_one_that_an_interrupted_save_left(states, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "adaptor-0123456789ab.safetensors").write_bytes(b"half")
    (tmp_path / "model" / ".DS_Store").write_bytes(b"")
    good("train", states, "-o", tmp_path / "model", *QUICK)
    assert SDMClassifier.load(tmp_path / "model").classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    "change", [("update", "--remove"), ("recalibrate", "--alpha", 0.7), ("certify", "--alpha", 0.7)]
)
def test_a_changed_model_replaces_itself_but_no_other(change, trained, tmp_path):
    model, other = (shutil.copytree(trained, tmp_path / name) for name in ("model", "other"))
    verb, *options = change
    removed = [SDMClassifier.load(model).model_.examples.ids()[0]] if verb == "update" else []
    before = contents(other)
    refused(call(verb, model, *options, *removed, "-o", other), f"{other} already has a model")
    assert contents(other) == before
    good(verb, model, *options, *removed, "-o", other, "--overwrite")
    assert contents(other) != before
    good(verb, model, *options, *removed, "-o", os.path.relpath(model))  # itself, by another name
    assert contents(model) != before
    good("recalibrate", model, "--alpha", 0.75)


def test_what_is_not_of_a_checkpoint_stays_in_its_folder(states, tmp_path):
    own = tmp_path / "model.training"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    good("train", states, "-o", tmp_path / "model", *QUICK)
    assert contents(own) == {"notes.txt": b"mine"}


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def interrupted(*arguments, when, environment=None):
    """The real command in a real process, sent a real SIGINT once something is so."""
    running = WarmProcess(SDM, *arguments, env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
    until = time.monotonic() + 120
    while running.poll() is None and not when() and time.monotonic() < until:
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    return running.wait(), running.stderr


def test_ctrl_c_while_training_says_what_is_kept_and_the_same_command_resumes(states, tmp_path):
    model, checkpoint = tmp_path / "model", tmp_path / "model.training"
    command = ("train", states, "-o", model, *QUICK, "--epochs", 100_000, "--patience", 0)
    status, said = interrupted(*command, when=lambda: (checkpoint / "current-000.safetensors").exists())
    n_epochs = stored_epochs(checkpoint)
    assert status == 130 and n_epochs > 0 and not model.exists()
    kept = counted(n_epochs, "epoch")
    assert said == f"sdm: Interrupted, with {kept} in {checkpoint} kept: the same command resumes.\n"
    status, _ = interrupted(*command, when=lambda: stored_epochs(checkpoint) > n_epochs)
    assert status == 130 and stored_epochs(checkpoint) > n_epochs  # it did resume, without --overwrite


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return tiny_models.save_model(tmp_path_factory.mktemp("bert"), *tiny_models.bert())


def write_reviews(path, labels):
    words = tiny_models.TEXT.split()
    rows = ({"text": " ".join(words[i % 7 : i % 7 + 5]) + f" {i}", "label": label} for i, label in enumerate(labels))
    return write_jsonl(path, rows)


def test_ctrl_c_while_embedding_says_how_many_texts_are_kept(language_model, tmp_path):
    reviews = write_reviews(tmp_path / "reviews.jsonl", ["pos", "neg"] * 20_000)
    cache, shards = tmp_path / "cache", tmp_path / "shards"

    def n_blocks():
        return len(list((cache / "states").glob("[!.]*.safetensors")))

    command = ("train", reviews, "-o", tmp_path / "model", "-m", language_model, *QUICK)
    status, said = interrupted(*command, when=lambda: n_blocks() > 1, environment={"TORCHSDM_CACHE": str(cache)})
    assert status == 130 and n_blocks() < 40_000 / 512
    kept = [  # the last block may have been stored, but not yet counted
        f"sdm: Interrupted, with {n:,} embedded texts in the cache kept: the same command resumes.\n"
        for n in (512 * n_blocks(), 512 * n_blocks() - 512)
    ]
    assert said in kept
    command = ("embed", reviews, "-o", shards, "-m", language_model, "--shard-size", 64)
    status, said = interrupted(*command, when=lambda: len(list(shards.glob("examples-*"))) > 1)
    n_kept = 64 * len(json.loads((shards / "manifest.json").read_text())["shards"])
    assert status == 130
    assert said == f"sdm: Interrupted, with {n_kept:,} documents in {shards} kept: the same command resumes.\n"


# --- labels ----------------------------------------------------------------------------------------------------------


def test_white_space_around_a_label_makes_no_class(states, tmp_path):
    data = np.load(states)
    labels = np.array(["World", "World ", "Sports", " Sports"])[np.arange(200) % 4]
    np.savez(tmp_path / "states.npz", hidden_states=data["hidden_states"], labels=labels)
    rows = [{"hidden_states": [float(i), 1.0], "label": label} for i, label in enumerate(labels)]
    write_jsonl(tmp_path / "states.jsonl", rows)
    for name in ("states.npz", "states.jsonl"):
        assert set(read_states(tmp_path / name).labels) == {"World", "Sports"}
    pandas.DataFrame({"text": [f"text {i}" for i in range(200)], "label": labels}).to_csv(tmp_path / "texts.csv")
    pandas.DataFrame({"text": [f"text {i}" for i in range(200)], "label": labels}).to_parquet(tmp_path / "t.parquet")
    write_reviews(tmp_path / "texts.jsonl", labels.tolist())
    for name in ("texts.csv", "t.parquet", "texts.jsonl"):
        assert Documents(tmp_path / name, repeated="keep").report.label_counts == {"World": 100, "Sports": 100}
    (tmp_path / "numbers.csv").write_text("text,label\na, 1\nb,1\nc,2 \n")
    assert Documents(tmp_path / "numbers.csv").report.label_counts == {1: 2, 2: 1}
    given = Documents(["a", "b"], labels=["World ", "World"])  # what Python passes stays as it is
    assert set(given.report.label_counts) == {"World ", "World"}


@pytest.fixture
def nothing_is_embedded(monkeypatch):
    def refuse(*_):
        raise AssertionError("a text was embedded")

    monkeypatch.setattr(Extraction, "run", refuse)


@pytest.mark.usefixtures("nothing_is_embedded")
def test_labels_that_training_would_refuse_are_refused_before_anything_is_embedded(language_model, tmp_path):
    good_file = write_reviews(tmp_path / "good.jsonl", ["pos", "neg"] * 20)
    one = write_reviews(tmp_path / "one.jsonl", ["pos"] * 20)
    rare = write_reviews(tmp_path / "rare.jsonl", ["pos", "neg"] * 20 + ["nge"])
    other = write_reviews(tmp_path / "other.jsonl", ["pos", "neg", "neutral", "neutral"])
    command = ("train", "-o", tmp_path / "model", "-m", language_model, *QUICK)
    refused(call(*command, one), f"{one} must have at least two classes. Got one class only: 'pos'.")
    refused(call(*command, rare), f"{rare} must have at least two examples of each class. Got 1 of class 'nge'; add")
    for part in ("--calibration", "--certification"):
        done = call(*command, good_file, part, other)
        refused(done, f"{other}: 'neutral' (2 examples) is not a class of the model.")
    refused(call(*command, "-", stdin=rare.read_bytes()), "standard input must have at least two examples of each")


@pytest.mark.usefixtures("nothing_is_embedded")
def test_python_refuses_and_warns_before_anything_is_embedded_too(language_model):
    classifier = SDMTextClassifier(str(language_model))
    texts = [f"text {i}" for i in range(40)]
    with pytest.raises(InvalidInputError, match=r"'y' of SDMTextClassifier\.fit must have at least two examples"):
        classifier.fit(texts, ["pos", "neg"] * 19 + ["pos", "nge"])
    with pytest.raises(InvalidInputError, match=r"fit \(calibration\) must contain only labels seen in fit.*'neutral'"):
        classifier.fit(texts, ["pos", "neg"] * 20, calibration=(["a", "b"], ["pos", "neutral"]))
    with pytest.warns(DataWarning, match=r"'neg' \(10 examples\)"), pytest.raises(AssertionError, match="embedded"):
        classifier.fit(texts, ["pos", "neg", "pos", "Neg"] * 10)


def test_classes_that_look_alike_are_told_once_and_before_anything_is_embedded(language_model, tmp_path, monkeypatch):
    told = []
    original = Extraction.run

    def run(*arguments):
        told.append("embedded")
        return original(*arguments)

    monkeypatch.setattr(Extraction, "run", run)
    monkeypatch.setattr("torchsdm.cli.command._show_warning", lambda message, *_: told.append(str(message)))
    reviews = write_reviews(tmp_path / "reviews.jsonl", ["pos", "neg", "pos", "Neg"] * 10)
    good("train", reviews, "-o", tmp_path / "model", "-m", language_model, *QUICK)
    alike = [what for what in told if "differ only" in what]
    assert told[0] == alike[0] and len(alike) == 1 and "embedded" in told
    assert "'Neg' (10 examples) and 'neg' (10 examples)" in alike[0]


# --- nothing ---------------------------------------------------------------------------------------------------------


EMPTY = {"empty.jsonl": "", "blank.jsonl": "\n\n", "header.csv": "id,text\n"}


@pytest.fixture(scope="module")
def text_model(language_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    reviews = write_reviews(folder / "reviews.jsonl", ["pos", "neg"] * 40)
    good("train", reviews, "-o", folder / "model", "-m", language_model, *QUICK)
    return folder / "model"


@pytest.mark.parametrize("name", [*EMPTY, "none.npz", "none.parquet", "-"])
def test_a_file_without_rows_has_an_empty_result(name, trained, text_model, tmp_path):
    model, source = (trained if name.startswith("none") else text_model), tmp_path / name
    if name == "none.npz":
        np.savez(source, hidden_states=np.empty((0, 6), dtype="float32"))
    elif name == "none.parquet":
        pandas.DataFrame({"hidden_states": [[0.0] * 6]})[:0].to_parquet(source)
    elif name == "-":
        source = name
    else:
        source.write_text(EMPTY[name])
    assert good("predict", model, source).stderr == f"sdm: 0 inputs: {source} is empty.\n"
    output = tmp_path / "decisions.csv"
    (summary,) = good("predict", model, source, "-o", output, "--json").rows
    assert (summary["inputs"], summary["admitted"]) == (0, 0)
    full = tmp_path / "full.csv"
    np.savez(tmp_path / "one.npz", hidden_states=np.zeros((1, 6), dtype="float32"))
    (tmp_path / "one.jsonl").write_text('{"text": "one"}\n')
    good("predict", model, tmp_path / ("one.npz" if model == trained else "one.jsonl"), "-o", full)
    assert pandas.read_csv(output).columns.tolist() == pandas.read_csv(full).columns.tolist()
    assert len(pandas.read_csv(output)) == 0
    assert "0 inputs: " in good("predict", model, source, "-o", tmp_path / "decisions.json").stdout
    assert json.loads((tmp_path / "decisions.json").read_text()) == []


@pytest.mark.parametrize("name", EMPTY)
def test_there_is_nothing_to_train_on_or_to_evaluate(name, text_model, language_model, tmp_path):
    (tmp_path / name).write_text(EMPTY[name])
    refused(call("train", tmp_path / name, "-o", tmp_path / "m", "-m", language_model, *QUICK), f"{name} is empty")
    refused(call("evaluate", text_model, tmp_path / name), f"{name} is empty")


def test_there_are_no_states_to_train_on(tmp_path):
    np.savez(tmp_path / "none.npz", hidden_states=np.empty((0, 6), dtype="float32"), labels=np.empty(0, dtype=int))
    refused(call("train", tmp_path / "none.npz", "-o", tmp_path / "m", *QUICK), "none.npz is empty.")


def test_a_binary_file_of_no_bytes_is_broken_and_not_empty(trained, tmp_path):
    (tmp_path / "cut.npz").write_bytes(b"")
    refused(call("predict", trained, tmp_path / "cut.npz"), "cut.npz is empty: it is not even .npz data")


def test_no_texts_have_no_decisions_and_need_no_language_model(text_model, monkeypatch):
    classifier = SDMTextClassifier.load(text_model)
    monkeypatch.setattr(Extraction, "run", None)
    assert len(classifier.decide([])) == 0 and classifier([]) == [] and classifier.explain([]) == []
    assert classifier.predict([]).dtype == classifier.classes_.dtype
    assert classifier.predict_proba([]).shape == (0, 2)


# --- what training did -----------------------------------------------------------------------------------------------


def test_what_training_did_is_said_once_and_in_names_of_classes(states, tmp_path):
    hopeless = ("train", states, "-o", tmp_path / "model", *QUICK[:-1], 0.99, "--min-class-count", 1000)
    done = good(*hopeless)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split(":")[0].split(",")[0] for line in lines] == [
        f"{tmp_path / 'model'}",
        "Right without rejection",
        "The logistic regression is better",  # than so few epochs
        "Not certified at alpha 0.99",
        "It admits nothing",
        "What may help",
    ]
    assert "of class 0" in done.stdout and f"{tmp_path / 'model'} --alpha" not in done.stdout
    (summary,) = good(*hopeless, "--overwrite", "--json").rows
    assert [one["remedy"] for one in summary["warnings"]] == [None, "POOLED_CONTROL"]
    done = good("train", states, "-o", tmp_path / "ensemble", *QUICK, "--rounds", 2, "--ensemble")
    assert done.stderr == "" and done.stdout.count("At alpha 0.8 its rounds admit ") == 1
    assert "Next: sdm predict " in done.stdout


def test_certification_points_that_training_saw_are_refused(states, tmp_path):
    done = call("train", states, "-o", tmp_path / "model", *QUICK, "--certification", states)
    refused(done, "Already in the training set: 200 of the 200 points")
