"""``sdm certify --ask``: a file to fill in, and the certificate that comes of it."""

from __future__ import annotations

import csv
import itertools
import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

import tiny_models
from small import quiet, small_settings, two_groups, write_jsonl
from torchsdm import SDMClassifier, SDMTextClassifier
from torchsdm.cli.command import sdm
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import HiddenStateExtractor
from torchsdm.model import read_history

draw = partial(two_groups, names=["ham", "spam"], distance=1.9)
POOL, TRUTH = draw(3000, 1)


def run(*words):
    with quiet():
        return CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ask")
    with quiet():
        SDMClassifier(alpha=0.9, **small_settings(n_filters=16)).fit(*draw(2400, 0)).save(folder / "model")
    np.savez(folder / "pool.npz", hidden_states=POOL, ids=[f"in-{row}" for row in range(len(POOL))])
    np.savez(folder / "numbered.npz", hidden_states=POOL)
    return folder


def ask(folder, output, *more, pool="pool.npz", n=300):
    return run("certify", folder / "model", folder / pool, "--ask", n, "--seed", 0, "-o", output, *more)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def filled(rows):
    return [{**row, "label": str(TRUTH[int(str(row["id"]).removeprefix("in-"))])} for row in rows]


def test_ask_fill_in_certify(folder, tmp_path):
    said = ask(folder, tmp_path / "to-label.jsonl")
    rows = rows_of(tmp_path / "to-label.jsonl")
    plan = SDMClassifier.load(folder / "model").ask_labels(POOL, 300, random_state=0)
    assert f"{len(rows)} inputs to label, of {len(plan.rows)} inputs drawn" in said
    assert [row["id"] for row in rows] == [f"in-{row}" for row in plan.ids]
    assert all(set(row) == {"id", "label", "request"} and row["label"] == "" for row in rows)  # and no prediction
    write_jsonl(tmp_path / "labelled.jsonl", filled(rows)[::-1])  # renamed, and in another order
    result = json.loads(
        run("certify", folder / "model", tmp_path / "labelled.jsonl", "-o", tmp_path / "certified", "--json")
    )
    expected = SDMClassifier.load(folder / "model")
    with quiet():
        expected.recertify(plan, TRUTH[plan.rows_to_label])
    assert result["certificate"]["found"] and result["certificate"]["identity"] == expected.certificate_.identity
    assert result["n_certification"] == len(plan.rows) > len(rows)
    assert result["certificate"]["n_unlabelled"] == len(plan.rows) - len(rows)


def test_it_goes_into_the_log_and_comes_out_of_it(folder, tmp_path):
    model = tmp_path / "model"
    SDMClassifier.load(folder / "model").save(model)
    run("certify", model, folder / "numbered.npz", "--ask", 200, "--alpha", 0.85, "-o", tmp_path / "ask.csv")
    with open(tmp_path / "ask.csv", newline="") as file:
        rows = filled(list(csv.DictReader(file)))
    rows[0]["label"] = "?"
    with open(tmp_path / "ask.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    result = json.loads(run("certify", model, tmp_path / "ask.csv", "--json"))
    certificate = SDMClassifier.load(model).certificate_
    assert certificate.alpha == 0.85 and certificate.n_unlabelled == result["certificate"]["n_unlabelled"]
    assert certificate.n_unlabelled == certificate.n_certification - len(rows) + 1
    assert [change.what for change in read_history(model)] == ["certify"]


def test_what_is_refused(folder, tmp_path):
    asked = tmp_path / "asked.jsonl"
    ask(folder, asked, n=100)
    rows = filled(rows_of(asked))

    def refused(message, changed):
        write_jsonl(tmp_path / "changed.jsonl", changed)
        with pytest.raises(InvalidInputError, match=message):
            run("certify", folder / "model", tmp_path / "changed.jsonl", "-o", tmp_path / "certified")

    refused("2 rows without a label: ", [*rows[:-2], *({**row, "label": ""} for row in rows[-2:])])
    refused("1 are missing: .*Label all", rows[1:])
    refused("No label was asked for 'else'", [*rows, {**rows[0], "id": "else"}])
    refused("twice", [*rows, rows[0]])
    refused("is not a class of the model; 'spam' is", [{**rows[0], "label": "spma"}, *rows[1:]])
    (tmp_path / "asked.jsonl.request").rename(tmp_path / "elsewhere")
    refused("asked.jsonl.request is missing", rows)
    with pytest.raises(InvalidInputError, match="exists already, and may have labels"):
        ask(folder, asked)
    with pytest.raises(InvalidInputError, match="give DATA, and --output FILE"):
        run("certify", folder / "model", "--ask", 100, "-o", tmp_path / "x.jsonl")
    with pytest.raises(InvalidInputError, match="labels would certify nothing"):
        ask(folder, tmp_path / "x.jsonl", "--alpha", 0.9999, n=10)
    assert not (tmp_path / "certified").exists() and not (tmp_path / "x.jsonl").exists()


def test_a_model_that_was_changed_says_so(folder, tmp_path):
    model = tmp_path / "model"
    classifier = SDMClassifier.load(folder / "model")
    classifier.save(model)
    ask(folder, tmp_path / "asked.jsonl")
    write_jsonl(tmp_path / "asked.jsonl", filled(rows_of(tmp_path / "asked.jsonl")))
    X, y = draw(1500, 9)
    with quiet():
        SDMClassifier(alpha=0.9, **small_settings(n_filters=16, random_state=5)).fit(X, y).save(model)
    with pytest.warns(match="The model was changed after these labels were asked for"):
        CliRunner().invoke(sdm, ["certify", str(model), str(tmp_path / "asked.jsonl")], catch_exceptions=False)


@pytest.mark.parametrize("with_ids", [True, False])
def test_of_texts_only_those_that_are_drawn_are_read(with_ids, tmp_path, monkeypatch):
    directory = tiny_models.save_model(tmp_path / "bert", *tiny_models.bert())
    things = ("film", "plot", "cast", "music", "end")
    said = [" ".join(words) for words in itertools.product(things, things, ("was", "the"), ("good", "bad"), things)]
    said = np.random.default_rng(0).permutation(said)[:400].tolist()
    texts, held, new = said[:120], said[120:200], said[200:]
    labels, held_labels = (["bad" if "bad" in text else "good" for text in part] for part in (texts, held))
    with quiet():
        classifier = SDMClassifier(alpha=0.6, control="all", **small_settings())
        held_out = (held, held_labels)
        SDMTextClassifier(str(directory), classifier=classifier, cache=False).fit(
            texts, labels, certification=held_out
        ).save(tmp_path / "model")
    names = [{"id": f"t{n}"} if with_ids else {} for n in range(200)]
    pool = [{**name, "text": text} for name, text in zip(names, new, strict=True)]
    write_jsonl(tmp_path / "pool.jsonl", pool)
    words = ("certify", tmp_path / "model", tmp_path / "pool.jsonl", "--ask", 30, "--seed", 1, "--json")
    read = []
    whole = HiddenStateExtractor.labelled_states
    monkeypatch.setattr(
        HiddenStateExtractor, "labelled_states", lambda self, X, **more: read.append(len(X)) or whole(self, X, **more)
    )
    asked = json.loads(run(*words, "-o", tmp_path / "ask.jsonl"))
    assert read == [asked["n_drawn"]] and 0 < asked["n_to_label"] <= asked["n_drawn"] < 200
    rows = rows_of(tmp_path / "ask.jsonl")
    assert [row["text"] for row in rows] == [pool[row]["text"] for row in asked["rows"]]
    assert [row["id"] for row in rows] == [f"t{row}" if with_ids else row for row in asked["rows"]]
    write_jsonl(tmp_path / "ask.jsonl", [{**row, "label": "bad" if "bad" in row["text"] else "good"} for row in rows])
    result = json.loads(run("certify", tmp_path / "model", tmp_path / "ask.jsonl", "--json"))
    assert read == [asked["n_drawn"]] and result["n_certification"] == asked["n_drawn"]
    assert result["certificate"]["n_unlabelled"] == asked["n_drawn"] - asked["n_to_label"]
