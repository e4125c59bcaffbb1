"""Texts of an experiment: words shuffled as others did, draws, copies, labels, the hub, and states made elsewhere."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from research.experiments.sources import (
    FOLDER_VARIABLE,
    chosen_rows,
    data_folders,
    read_computed_states,
    read_texts,
    shuffled_words,
)
from research.experiments.specification import DataSet, HubData, load_experiment
from small import write_jsonl
from torchsdm import Documents
from torchsdm.errors import InvalidInputError, InvalidTypeError, MissingExtraError, TorchSDMError

EXPERIMENT = """
title = "Urgent or not"
prompt = "Is this urgent? {document}"

[pool]
file = "pool"

[tests.now]
role = "in distribution"
file = "now"

[tests.mixed]
role = "shuffled"
shuffle = "now"
"""


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)


def rows_of(n, prefix="text", labels=(0, 1)):
    return [
        {"id": f"{prefix}-{i}", "text": f"{prefix} {i} has a few words", "label": labels[i % len(labels)]}
        for i in range(n)
    ]


@pytest.fixture
def folder(tmp_path):
    """A folder with a pool of 40 and a test set of 30."""
    write_jsonl(tmp_path / "pool.jsonl", rows_of(40, "pool"))
    write_jsonl(tmp_path / "now.jsonl", rows_of(30, "now"))
    (tmp_path / "mine.toml").write_text(EXPERIMENT, encoding="utf-8")
    return tmp_path


@pytest.fixture
def experiment(folder):
    """The experiment beside that data, with changes."""

    def loading(**changes):
        return load_experiment(
            str(folder / "mine.toml"), changes={key.replace("__", "."): value for key, value in changes.items()}
        )

    return loading


def ids(texts):
    return [document.id for document in texts.documents]


# --- Parts of a file -------------------------------------------------------------------------------------------------


def test_rows_divide_one_file_without_overlap(experiment):
    whole = read_texts(experiment(tests__now__file="pool"))["now"]
    texts = read_texts(experiment(pool__rows=[0, 25], tests={"now": {"file": "pool", "rows": [25, 40]}}))
    assert [*ids(texts["pool"]), *ids(texts["now"])] == ids(whole) and len(texts["now"].documents) == 15
    fewer = read_texts(experiment(pool__rows=[10, 25], pool__n=12))["pool"]
    assert ids(fewer) == ids(whole)[10:22]
    with pytest.raises(InvalidInputError, match=r"The data set 'pool' has 40 rows\. Got rows = \[30, 41\]"):
        read_texts(experiment(pool__rows=[30, 41]))
    with pytest.raises(InvalidInputError, match=r"pool: 'rows' must be the first row and one past the last"):
        experiment(pool__rows=[9, 3])


def test_the_column_of_answers_can_be_named(folder, experiment):
    rows = [{**row, "reply": f"answer to {row['id']}"} for row in rows_of(10, "now")]
    write_jsonl(folder / "now.jsonl", rows)
    write_jsonl(folder / "pool.jsonl", rows)
    made = experiment(prompt="verify-answer", pool__answer="reply", tests={"now": {"answer": "reply"}})
    (now, pool) = (read_texts(replace(made, tests=made.tests[:1]))[name].documents for name in ("now", "pool"))
    assert all(document.answer == f"answer to {document.id}" for document in (*now, *pool))
    with pytest.raises(InvalidInputError, match="answer"):
        read_texts(experiment(prompt="verify-answer"))


# --- Shuffled words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "twins"),
    [
        ("sentiment", {"SentimentShuffled": "sentiment_shuffled", "SentimentOODShuffled": "sentiment_ood_shuffled"}),
        ("factcheck", {"FactcheckShuffled": "factcheck_shuffled"}),
    ],
)
def test_shuffled_sets_are_those_that_others_made(name, twins, shared_data):
    texts = read_texts(load_experiment(name, changes={"pool": 100}), shared_data)
    for test, folder in twins.items():
        documents = Documents(shared_data / folder / "test.jsonl.gz", repeated="keep")
        expected = {document.id: (document.text, document.label) for document in documents}
        ours = {document.id: (document.text, document.label) for document in texts[test].documents}
        assert ours == expected and all(one.endswith("-shuf") for one in ours)
        assert len(texts[test].documents) == len(expected) == len(texts[test.removesuffix("Shuffled")].documents)
        assert {label for _, label in ours.values()} == ({0} if name == "factcheck" else {0, 1})
        assert texts[test].source.endswith("test.jsonl.gz, words shuffled")


def test_shuffled_words_are_the_same_words_in_another_order():
    documents = tuple(Documents([f"a b  c\nd e{i}" for i in range(50)] + ["one", "same same", "x y"], repeated="keep"))
    shuffled = shuffled_words(documents)
    for before, after in zip(documents, shuffled, strict=True):
        assert sorted(after.text.split()) == sorted(before.text.split())
        assert after.id == f"{before.id}-shuf" and after.label == before.label and after.place == before.place
    assert all(
        after.text != " ".join(before.text.split()) for before, after in zip(documents[:50], shuffled, strict=False)
    )
    assert [after.text for after in shuffled[50:]] == ["one", "same same", "y x"]
    assert len({tuple(after.text.split().index(word) for word in "abcd") for after in shuffled[:50]}) > 20
    assert shuffled_words(documents) == shuffled
    generator = random.Random(0)  # by hand: one generator over the whole set
    words = documents[0].text.split()
    generator.shuffle(words)
    assert shuffled[0].text == " ".join(words)
    words = documents[1].text.split()
    generator.shuffle(words)
    assert shuffled[1].text == " ".join(words)


# --- Drawing ---------------------------------------------------------------------------------------------------------


def test_smaller_draws_begin_larger_ones(experiment):
    whole = read_texts(experiment())
    assert sorted(ids(whole["pool"])) == sorted(row["id"] for row in rows_of(40, "pool"))
    assert ids(whole["pool"]) != [row["id"] for row in rows_of(40, "pool")]
    for n in (6, 17, 39, 40, 1000):
        drawn = read_texts(experiment(pool=n, tests=n))
        assert drawn["pool"].documents == whole["pool"].documents[:n]
        assert drawn["now"].documents == whole["now"].documents[:n]
    assert read_texts(experiment())["pool"].documents == whole["pool"].documents


def test_a_set_and_its_shuffled_twin_are_of_the_same_documents(experiment):
    for n in (5, 30):
        drawn = read_texts(experiment(tests=n))
        assert ids(drawn["mixed"]) == [f"{name}-shuf" for name in ids(drawn["now"])] and len(ids(drawn["now"])) == n
    alone = read_texts(experiment(tests__mixed__n=5))
    assert ids(alone["mixed"]) == [f"{name}-shuf" for name in ids(alone["now"])[:5]]
    texts = {document.id: document.text for document in read_texts(experiment())["mixed"].documents}
    assert all(document.text == texts[document.id] for document in alone["mixed"].documents)


def test_the_order_is_that_of_the_experiment_with_the_pool_first(experiment, folder):
    write_jsonl(folder / "later.jsonl", rows_of(4, "later"))
    changes = {"tests__after": {"role": "shifted", "file": "later"}}
    texts = read_texts(experiment(**changes))
    assert list(texts) == ["pool", "now", "mixed", "after"]
    facts = texts["after"].facts()
    assert (facts["name"], facts["role"], facts["n"]) == ("after", "shifted", 4)
    assert facts["labels"] == {"0": 2, "1": 2} and facts["source"] == str(folder / "later.jsonl")


# --- Copies and labels -----------------------------------------------------------------------------------------------


def test_copies_are_dropped_from_a_pool_and_counted_and_kept_in_a_test_set(experiment, folder):
    pool, now = rows_of(40, "pool"), rows_of(30, "now")
    copies = [{**pool[3], "id": "copy"}, {**pool[3], "id": "another"}, {**pool[4], "id": "third", "label": 1}]
    write_jsonl(folder / "pool.jsonl", pool + copies)
    write_jsonl(folder / "now.jsonl", [*now, {**now[3], "id": "copy"}])
    texts = read_texts(experiment())
    assert sorted(ids(texts["pool"])) == sorted(row["id"] for row in pool)
    assert texts["pool"].n_dropped == texts["pool"].facts()["copies_left_out"] == 3
    assert len(ids(texts["now"])) == len(ids(texts["mixed"])) == 31
    assert texts["now"].n_dropped == texts["mixed"].n_dropped == 0


def test_labels_that_the_pool_does_not_know_are_said_before_anything_is_embedded(experiment, folder, caplog):
    caplog.set_level("INFO", logger="research.experiments.sources")
    now = rows_of(30, "now")
    now[16]["label"], now[17]["label"] = 2, "1"  # a string is not a number
    write_jsonl(folder / "now.jsonl", now)
    assert read_texts(experiment())["now"].labels.count(2) == 1
    assert "2 of 30 labels of now are not classes of the model" in caplog.text
    assert "Look at the labels: '1' is text, the class 1 a number." in caplog.text
    caplog.clear()
    assert read_texts(experiment(tests__now__relabel=1))["now"].labels == [1] * 30 and not caplog.text


def test_a_set_without_any_label_of_the_pool_must_be_one_of_strangers(experiment, folder):
    write_jsonl(folder / "now.jsonl", rows_of(30, "now", ("pos", "neg")))
    with pytest.raises(
        InvalidInputError, match=r"tests\.now has no label of the pool; is its role 'strangers'\? 30 of"
    ):
        read_texts(experiment())
    assert set(read_texts(experiment(tests__now__role="strangers"))["now"].labels) == {"pos", "neg"}
    write_jsonl(folder / "now.jsonl", [{"id": row["id"], "text": row["text"]} for row in rows_of(30, "now")])
    with pytest.raises(InvalidInputError, match="has no column 'label' for the label"):
        read_texts(experiment())
    texts = read_texts(experiment(tests__now__role="strangers"))
    assert texts["now"].labels is None and texts["now"].facts()["labels"] == {}
    assert texts["mixed"].labels is None  # its words shuffled
    with pytest.raises(InvalidInputError, match="has no column 'kind' for the label"):
        read_texts(experiment(tests__now__role="strangers", tests__now__label="kind"))
    changes = {"studies": ["updatability"], "updates__data": "now", "tests__now__role": "strangers"}
    with pytest.raises(InvalidInputError, match=r"tests\.now has no labels, so the study 'updatability' cannot"):
        read_texts(experiment(**changes))


def test_strangers_have_no_label_of_the_pool(experiment):
    with pytest.raises(InvalidInputError, match=r"tests\.now has the label \d, a class of the pool, but its role is"):
        read_texts(experiment(tests__now__role="strangers"))
    texts = read_texts(experiment(tests__now__role="strangers", tests__now__relabel="other"))
    assert texts["now"].labels == ["other"] * 30


def test_one_label_for_all(experiment):
    texts = read_texts(experiment(tests__mixed__relabel=0, tests__now__relabel=1))
    assert {document.label for document in texts["now"].documents} == {1}
    assert {document.label for document in texts["mixed"].documents} == {0}
    with pytest.raises(InvalidInputError, match=r"tests\.now has no label of the pool"):
        read_texts(experiment(tests__now__relabel=7))


@pytest.mark.parametrize("labels", [(1,), (0, "1"), (0, "0")])
def test_labels_that_cannot_be_trained_on_are_refused(labels, experiment, folder):
    write_jsonl(folder / "pool.jsonl", rows_of(40, "pool", labels))
    with pytest.raises(InvalidInputError, match="the pool must have two or more labels, all strings or all numbers"):
        read_texts(experiment())


def test_words_for_other_labels_than_the_pools_are_refused_where_they_are_compared(experiment, folder):
    """At once, and not after the language model was run over all of the texts."""
    for name in ("pool", "now"):
        write_jsonl(folder / f"{name}.jsonl", rows_of(20, name, ("no", "yes")))
    with pytest.raises(InvalidInputError) as raised:
        read_texts(experiment(prompt="sentiment"))
    assert "words for the labels [0, 1], but the pool has ['no', 'yes']" in str(raised.value)
    read_texts(experiment(prompt="sentiment", groups=["cnn", "sdm"]))
    read_texts(experiment(prompt="sentiment", studies=["ensemble"]))
    words = {"template": "{document}", "label_words": {"yes": "Yes", "no": "No"}}
    read_texts(experiment(prompt=words))


def test_answers_are_read_where_the_prompt_asks_for_them(experiment, folder):
    def rows(name):
        return [{**row, "text": "The same question?", "answer": f"answer {row['id']}"} for row in rows_of(20, name)]

    for name in ("pool", "now"):
        write_jsonl(folder / f"{name}.jsonl", rows(name))
    texts = read_texts(experiment(prompt="verify-answer"))
    assert len(ids(texts["pool"])) == 20 and texts["pool"].n_dropped == 0
    assert all(document.answer == f"answer {document.id}" for document in texts["pool"].documents)
    with pytest.raises(InvalidInputError, match="two or more labels"):  # without answers, all are copies of one
        read_texts(experiment())
    write_jsonl(folder / "now.jsonl", [{**row, "answer": None} for row in rows("now")[:1]] + rows("now")[1:])
    with pytest.raises(InvalidInputError, match=r"now\.jsonl has 1 document that cannot be used\. no answer: line 1"):
        read_texts(experiment(prompt="verify-answer"))


# --- Folders ---------------------------------------------------------------------------------------------------------


def test_data_are_looked_for_in_the_folder_given_then_set_then_beside(
    experiment, folder, tmp_path_factory, monkeypatch
):
    given, named = tmp_path_factory.mktemp("given"), tmp_path_factory.mktemp("named")
    write_jsonl(named / "pool.jsonl", rows_of(10, "named"))
    write_jsonl(given / "pool.csv", [])
    (given / "pool.csv").write_text("id,text,label\n1,first,0\n2,second,1\n")
    assert len(ids(read_texts(experiment())["pool"])) == 40
    monkeypatch.setenv(FOLDER_VARIABLE, str(named))
    assert len(ids(read_texts(experiment())["pool"])) == 10
    assert len(ids(read_texts(experiment(), given)["pool"])) == 2
    assert data_folders(experiment(), given) == [given, folder]
    assert data_folders(load_experiment("factcheck"), given) == [given]
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert data_folders(load_experiment("factcheck"), None) == []
    monkeypatch.setenv("HOME", str(given.parent))
    monkeypatch.setenv(FOLDER_VARIABLE, f"~/{given.name}")
    assert data_folders(load_experiment("factcheck"), None) == [given]


def test_data_beside_a_task_are_found(folder, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine") / "study.toml"
    mine.write_text(f'title = "x"\nstudies = ["ensemble"]\ntask = "{folder / "mine.toml"}"\n')
    assert read_texts(load_experiment(str(mine)))["pool"].source == str(folder / "pool.jsonl")
    assert read_texts(load_experiment("ensemble", task=str(folder / "mine.toml")))["now"].source.startswith(str(folder))


@pytest.mark.parametrize("ending", ["", ".jsonl", ".jsonl.gz", ".tsv", ".parquet"])
def test_a_file_is_named_with_or_without_its_ending(ending, experiment, folder):
    rows = rows_of(12, "other")
    table = pd.DataFrame(rows)
    path = folder / "parts" / f"other{ending or '.csv'}"
    path.parent.mkdir()
    if ending == ".parquet":
        table.to_parquet(path)
    elif ending.startswith(".jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if ending == ".jsonl.gz" else content)
    else:
        table.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    for file in ("parts/other", f"parts/other{ending or '.csv'}", str(path)):
        texts = read_texts(experiment(tests__now__file=file))["now"]
        assert sorted(ids(texts)) == sorted(row["id"] for row in rows) and texts.source == str(path)
        assert {document.label for document in texts.documents} == {0, 1}


def test_other_columns(experiment, folder):
    rows = [{"id": i, "review": f"review {i}", "stars": i % 2, "text": "no", "label": "no"} for i in range(6)]
    write_jsonl(folder / "now.jsonl", rows)
    texts = read_texts(experiment(tests__now__text="review", tests__now__label="stars"))["now"]
    assert {document.text for document in texts.documents} == {f"review {i}" for i in range(6)}
    assert {document.label for document in texts.documents} == {0, 1}
    with pytest.raises(InvalidInputError, match=r"now\.jsonl has no column 'rating' for the label. Got 'id', 'review'"):
        read_texts(experiment(tests__now__label="rating"))


def test_what_is_not_there_is_said_with_where_it_was_looked_for(experiment, folder, tmp_path_factory, monkeypatch):
    (folder / "now.jsonl").unlink()
    (folder / "now.jsonl").mkdir()
    with pytest.raises(InvalidInputError) as raised:
        read_texts(experiment())
    assert f"The data set 'now' was not found: now is not in {folder} (as .jsonl.gz, " in str(raised.value)
    assert "--data or TORCHSDM_DATA; each line has id, text and label." in str(raised.value)
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(InvalidInputError) as raised:
        read_texts(experiment(), other)
    assert f"now is not in {other} or {folder}" in str(raised.value)
    with pytest.raises(InvalidInputError, match=r"/nowhere/now is not in /nowhere \(as"):
        read_texts(experiment(tests__now__file="/nowhere/now"))
    with pytest.raises(InvalidInputError, match="no folder is given for newsgroups/pool"):
        read_texts(load_experiment("newsgroups"))
    with pytest.raises(InvalidInputError, match=r"nowhere is not a folder of data sets. Choose another with --data"):
        read_texts(experiment(), folder / "nowhere")
    with pytest.raises(InvalidTypeError, match=r"'data' of an experiment must be a path. Got 3"):
        read_texts(experiment(), 3)
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "nowhere"))
    with pytest.raises(InvalidInputError, match="is not a folder of data sets"):
        read_texts(experiment())


# --- The hub ---------------------------------------------------------------------------------------------------------


def hub_rows(labels):
    return [{"id": i, "text": f"text {i}", "label": label} for i, label in enumerate(labels)]


def numbers(rows):
    return [row["id"] for row in rows]


def test_rows_as_they_are():
    rows = hub_rows([0, 1, 1])
    assert chosen_rows(rows, HubData("a/b", "train")) == rows


def test_rows_with_new_labels():
    rows = hub_rows([0, 1, 2, 1, 0, 2])
    chosen = chosen_rows(rows, HubData("a/b", "train", labels={"0": 0, "2": 1}))
    assert numbers(chosen) == [0, 2, 4, 5] and [row["label"] for row in chosen] == [0, 1, 0, 1]
    assert [row["label"] for row in rows] == [0, 1, 2, 1, 0, 2]
    names = chosen_rows(hub_rows(["neg", "pos"]), HubData("a/b", "train", labels={"pos": "good", "neg": "bad"}))
    assert [row["label"] for row in names] == ["bad", "good"]
    with pytest.raises(InvalidInputError) as raised:
        chosen_rows(rows, HubData("a/b", "train", labels={"0": 0, "positive": 1}))
    assert str(raised.value).startswith("a/b on the hub (train) has the labels ['0', '1', '2']. Got ['0', 'positive']")


def test_rows_shuffled_then_balanced_then_cut():
    labels = [0] * 30 + [1] * 10 + [2] * 20
    rows = hub_rows(labels)
    shuffled = chosen_rows(rows, HubData("a/b", "train", seed=3))
    assert numbers(shuffled) == np.random.default_rng(3).permutation(60).tolist()
    assert numbers(chosen_rows(rows, HubData("a/b", "train", seed=4))) != numbers(shuffled)
    first = chosen_rows(rows, HubData("a/b", "train", balance=True))
    assert numbers(first) == [*range(10), *range(30, 40), *range(40, 50)]
    balanced = chosen_rows(rows, HubData("a/b", "train", balance=True, seed=3))
    assert Counter(row["label"] for row in balanced) == {0: 10, 1: 10, 2: 10}
    of_zero = [row for row in shuffled if row["label"] == 0]
    assert [row for row in balanced if row["label"] == 0] == of_zero[:10]
    assert [row for row in shuffled if row in balanced] == balanced
    cut = chosen_rows(rows, HubData("a/b", "train", balance=True, seed=3, rows=[5, 9]))
    assert cut == balanced[5:9]
    two = chosen_rows(rows, HubData("a/b", "train", balance=True, labels={"1": 0, "2": 1}))
    assert Counter(row["label"] for row in two) == {0: 10, 1: 10}


def test_rows_that_are_not_there_are_refused():
    rows = hub_rows([0, 1] * 5)
    assert len(chosen_rows(rows, HubData("a/b", "train", rows=[4, 10]))) == 6
    with pytest.raises(InvalidInputError, match=r"a/b on the hub \(train\) has 10 such rows. Got rows = \[4, 11\]"):
        chosen_rows(rows, HubData("a/b", "train", rows=[4, 11]))


@pytest.fixture
def hub(monkeypatch):
    """A hub with one data set, of which the network alone is not real."""
    splits = {
        "cities": [("Bern is a city.", 1), ("Bern is a cat.", 0), ("Rome is old.", 1)],
        "animals": [("A cat is an animal.", 1), ("Bern is a city.", 1), ("A cat is a plant.", 0)],
        "generated": [("Cats bark loudly.", 0), ("Dogs bark loudly.", 1)],
        "empty": [("", 0), ("x", 1)],
    }
    asked = []

    def load_dataset(name, config=None, *, split):
        asked.append((name, config, split))
        statements, labels = zip(*splits[split], strict=True)
        features = datasets.Features(
            {"statement": datasets.Value("string"), "label": datasets.ClassLabel(names=["false", "true"])}
        )
        return datasets.Dataset.from_dict({"statement": list(statements), "label": list(labels)}, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


HUB = {
    "pool__hub": {"name": "me/true-false", "split": ["cities", "animals"], "text": "statement"},
    "tests__now__hub": {"name": "me/true-false", "split": "generated", "text": "statement", "config": "small"},
}


def test_texts_from_the_hub(hub, experiment, folder):
    texts = read_texts(experiment(**HUB))
    assert hub == [
        ("me/true-false", None, "cities"),
        ("me/true-false", None, "animals"),
        ("me/true-false", "small", "generated"),
    ]
    pool = {document.id: (document.text, document.label) for document in texts["pool"].documents}
    assert pool == {
        "cities-0": ("Bern is a city.", 1),
        "cities-1": ("Bern is a cat.", 0),
        "cities-2": ("Rome is old.", 1),
        "animals-0": ("A cat is an animal.", 1),
        "animals-2": ("A cat is a plant.", 0),
    }
    assert texts["pool"].n_dropped == 1
    assert texts["pool"].source == "me/true-false on the hub (cities, animals)"
    assert sorted(ids(texts["mixed"])) == ["generated-0-shuf", "generated-1-shuf"]
    assert texts["mixed"].source == "me/true-false on the hub (generated), words shuffled"


def test_a_file_goes_before_the_hub(hub, experiment, folder):
    changes = {"pool": {"file": "pool", **{"hub": HUB["pool__hub"]}}}
    assert len(ids(read_texts(experiment(**changes))["pool"])) == 40 and not hub
    (folder / "pool.jsonl").unlink()
    assert len(ids(read_texts(experiment(**changes))["pool"])) == 5 and hub


def test_what_is_wrong_with_texts_of_the_hub_is_said_of_it(hub, experiment):
    wrong = {"name": "me/true-false", "split": "empty", "text": "statement"}
    with pytest.raises(
        InvalidInputError, match=r"me/true-false on the hub \(empty\) has 1 document that cannot be used. empty text"
    ):
        read_texts(experiment(tests__now__hub=wrong))
    wrong = {"name": "me/true-false", "split": "cities"}
    with pytest.raises(InvalidInputError) as raised:
        read_texts(experiment(tests__now__hub=wrong))
    assert str(raised.value) == "me/true-false on the hub (cities) has no column 'text'. Got statement, label."
    with pytest.raises(InvalidInputError, match="has no column 'answer'"):
        read_texts(
            experiment(
                tests__now__hub={**wrong, "text": "statement"},
                prompt="{document} {answer}",
                **{"pool__hub": HUB["pool__hub"]},
            )
        )
    none = {"name": "me/true-false", "split": "cities", "text": "statement", "labels": {}}
    with pytest.raises(InvalidInputError, match=r"\(cities\) has 3 rows, but none of those wanted"):
        read_texts(experiment(tests__now__hub=none))


def test_a_hub_that_gives_nothing_is_one_sentence_with_both_places(experiment, folder, monkeypatch):
    reason = "Couldn't reach 'me/true-false' on the Hub (LocalEntryNotFoundError)"
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError(f"{reason}\nand more\nlines")))
    both = {"tests__now": {"role": "shifted", "file": "elsewhere/now", "hub": {"name": "me/true-false", "split": "x"}}}
    with pytest.raises(InvalidInputError) as raised:
        read_texts(experiment(**both))
    message = str(raised.value)
    assert f"elsewhere/now is not in {folder}" in message and "\n" not in message
    assert message.endswith(f"The hub does not provide me/true-false for 'now': {reason}")
    with pytest.raises(InvalidInputError) as raised:  # there is no file to speak of
        read_texts(experiment(tests__now__hub={"name": "me/true-false", "split": "x"}))
    assert str(raised.value).startswith("The hub does not provide me/true-false for 'now': Couldn't reach")
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=TimeoutError))
    with pytest.raises(InvalidInputError, match=r"for 'now': TimeoutError$"):
        read_texts(experiment(**both))


def test_the_real_hub_cannot_be_reached_from_a_test(experiment, folder):
    """HF_HUB_OFFLINE is set: what the real library says of it is passed on."""
    with pytest.raises(
        InvalidInputError, match=r"elsewhere is not in .* The hub does not provide me/no-such-set for 'now': \S"
    ):
        read_texts(
            experiment(
                tests__now={"role": "shifted", "file": "elsewhere", "hub": {"name": "me/no-such-set", "split": "x"}}
            )
        )


def test_without_the_extra_the_pip_line_is_given(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchsdm\[hf\]'"):
        read_texts(experiment(tests__now__hub={"name": "me/true-false", "split": "x"}))


# --- States made elsewhere -------------------------------------------------------------------------------------------


def states_rows(n=20, width=3):
    rng = np.random.default_rng(0)
    return [
        {"id": f"s{i}", "label": i % 2, "attributes": rng.standard_normal(width).tolist(), "text": f"text {i}"}
        for i in range(n)
    ]


def states_of(path, **settings):
    return DataSet("pool", file=path.stem.removesuffix(".jsonl"), states="attributes", **settings)


def test_computed_states_of_the_paper_s_author(shared_data):
    experiment = load_experiment("factcheck-features", changes={"pool": 500})
    states, source = read_computed_states(experiment.pool, [shared_data])
    assert states.hidden_states.shape == (500, 32) and states.hidden_states.dtype == np.float32
    assert source == str(shared_data / "factcheck/mixtral32_pool.jsonl.gz")
    documents = {document.id: document.label for document in Documents(shared_data / "factcheck/pool.jsonl.gz")}
    assert [documents[name] for name in states.ids] == states.labels.tolist()
    whole, _ = read_computed_states(load_experiment("factcheck-features").pool, [shared_data])
    assert len(whole) == 6015 and np.array_equal(whole.hidden_states[:500], states.hidden_states)


@pytest.mark.parametrize("kind", ["jsonl", "npz", "safetensors"])
def test_computed_states_are_drawn_with_labels_ids_and_texts(kind, tmp_path):
    rows = states_rows()
    arrays = {
        "attributes": np.array([row["attributes"] for row in rows]),
        "label": np.array([i % 2 for i in range(20)]),
    }
    arrays["id"] = np.arange(100, 120)
    path = tmp_path / f"pool.{kind}"
    if kind == "jsonl":
        write_jsonl(path, [{**row, "id": 100 + i} for i, row in enumerate(rows)])
    elif kind == "npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    whole, source = read_computed_states(states_of(path), [tmp_path])
    assert source == str(path) and sorted(whole.ids) == list(range(100, 120)) and whole.ids != list(range(100, 120))
    for state, label, name in zip(whole.hidden_states, whole.labels, whole.ids, strict=True):
        assert type(name) is int and label == (name - 100) % 2
        assert np.array_equal(state, arrays["attributes"][name - 100].astype(np.float32))
    assert whole.texts == ([f"text {name - 100}" for name in whole.ids] if kind == "jsonl" else None)
    some, _ = read_computed_states(states_of(path, n=7), [tmp_path])
    assert some.ids == whole.ids[:7] and np.array_equal(some.hidden_states, whole.hidden_states[:7])
    relabelled, _ = read_computed_states(states_of(path, relabel=1), [tmp_path])
    assert relabelled.labels.tolist() == [1] * 20 and relabelled.ids == whole.ids


def test_computed_states_of_strangers_need_no_labels(tmp_path):
    path = tmp_path / "now.npz"
    np.savez(path, attributes=np.eye(3))
    data = DataSet("now", "strangers", file="now", states="attributes")
    assert read_computed_states(data, [tmp_path])[0].labels is None
    assert read_computed_states(replace(data, relabel="x"), [tmp_path])[0].labels.tolist() == ["x"] * 3
    for needed in (replace(data, role="shifted"), replace(data, label="kind")):
        with pytest.raises(InvalidInputError, match=rf"no '{needed.label or 'label'}' found"):
            read_computed_states(needed, [tmp_path])
    rows = [{"attributes": [0, 1], "label": label} for label in (1, "1", "pos")]
    write_jsonl(tmp_path / "mixed.jsonl", rows)
    mixed, _ = read_computed_states(DataSet("mixed", "shifted", file="mixed", states="attributes"), [tmp_path])
    assert set(mixed.labels.tolist()) == {1, "1", "pos"}


def test_states_without_ids_are_numbered_by_their_rows(tmp_path):
    rows = states_rows()
    path = write_jsonl(tmp_path / "pool.jsonl", [{key: row[key] for key in ("label", "attributes")} for row in rows])
    states, _ = read_computed_states(states_of(path), [tmp_path])
    for number, state in zip(states.ids, states.hidden_states, strict=True):
        assert np.array_equal(state, np.float32(rows[number]["attributes"]))


def test_bad_states_are_refused_with_their_file(tmp_path):
    def refused(rows, match, **settings):
        path = write_jsonl(tmp_path / "pool.jsonl", rows)
        with pytest.raises(TorchSDMError, match=match):
            read_computed_states(states_of(path, **settings), [tmp_path])

    rows = states_rows()
    refused(
        [{**rows[0], "attributes": ["a", "b", "c"]}, *rows[1:]], r"pool\.jsonl, line 1: 'attributes' must be a numeric"
    )
    refused(
        [*rows[:5], {**rows[5], "attributes": [0, float("nan"), 1]}], r"pool\.jsonl must be finite\. Got NaN.* row 5"
    )
    refused([{**rows[0], "label": "0"}, *rows[1:]], r"'y' of .*pool\.jsonl must be strings or numbers, not both")
    refused([{**row, "label": None} for row in rows], r"must contain labels. Got None")
    refused(rows, r"pool\.jsonl: no 'stars' found", label="stars")
    with pytest.raises(
        InvalidInputError, match=r"'pool' was not found: away is not in .*\.npz.* id, attributes and label"
    ):
        read_computed_states(DataSet("pool", file="away", states="attributes"), [tmp_path])
    np.savez(tmp_path / "short.npz", attributes=np.zeros((4, 2)), label=np.zeros(3), id=np.arange(4))
    with pytest.raises(
        InvalidInputError, match=r"'label' of .*short\.npz must have one value for each of 4 inputs. Got 3"
    ):
        read_computed_states(DataSet("pool", file="short", states="attributes"), [tmp_path])
    np.savez(tmp_path / "ids.npz", attributes=np.zeros((4, 2)), label=np.zeros(4), id=np.arange(2))
    with pytest.raises(InvalidInputError, match=r"'id' of .*ids\.npz must have one value for each of 4 inputs. Got 2"):
        read_computed_states(DataSet("pool", file="ids", states="attributes"), [tmp_path])
