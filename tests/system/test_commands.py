"""``sdm`` as a person runs it: every verb on every kind of input, in pipes, killed, and given nonsense."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
import transformers
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import tiny_models
import warm_process
from sdm_command import call, good, refused
from small import contents, write_jsonl
from torchsdm import DriftGuard, SDMClassifier, read_states
from torchsdm.application import saved_model
from torchsdm.cli.command import sdm
from torchsdm.estimators.text_classifier import SDMTextClassifier
from torchsdm.evaluation.entrants import classifier_entrants
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.model import sdm_numpy
from warm_process import ONE_THREAD, SDM, Done, WarmProcess, strict

QUICK = ("--rounds", 1, "--epochs", 20, "--filters", 16, "--learning-rate", 0.01, "--seed", 0)
WORDS = {"pos": ["great", "lovely", "superb", "bright", "funny"], "neg": ["awful", "dull", "poor", "weak", "sad"]}
THINGS = ["film", "plot", "actor", "scene", "score"]

LETTERS = list("abcdefghijklmnopqrstuvwxyz")


def sentence(label, rng):
    """A sentence that has no near copy: at a distance of almost 0 the last bits of states would decide."""
    praise, blame = (" and ".join(rng.choice(WORDS[name], 5)) for name in ("pos", "neg"))
    name = "".join(rng.choice(LETTERS, 4))
    return f"the {rng.choice(THINGS)} {name} was {praise if label == 'pos' else blame}"


def language_model(directory):
    """A tiny encoder whose vocabulary is given: a trained one would differ from run to run, and the states with it."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*WORDS["pos"], *WORDS["neg"], *THINGS, "the", "was", "and"]
    vocabulary = [*specials, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    names = {f"{name.lower()[1:-1]}_token": name for name in specials}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertModel(config).eval()
    return tiny_models.save_model(directory, model, fast)


@dataclass(frozen=True)
class World:
    folder: Path
    language_model: Path

    def __truediv__(self, name):
        return self.folder / name


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Reviews and states in every format, a model over texts and one over states."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    labels = ["pos", "neg"] * 100
    rows = [{"id": f"r{i}", "text": sentence(label, rng), "label": label} for i, label in enumerate(labels)]
    write_jsonl(folder / "train.jsonl", rows[:160])
    test = rows[160:]
    write_jsonl(folder / "test.jsonl", test)
    (folder / "test.jsonl.gz").write_bytes(gzip.compress((folder / "test.jsonl").read_bytes()))
    write_jsonl(folder / "unlabelled.jsonl", [{"id": row["id"], "text": row["text"]} for row in test])
    for name, delimiter in (("test.csv", ","), ("test.tsv", "\t")):
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["id", "text", "label"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(test)
    y = np.arange(200) % 2
    x = (rng.normal(size=(200, 6)) + 2.0 * y[:, None]).astype(np.float32)
    ids = np.arange(1000, 1200)
    np.savez(folder / "train.npz", hidden_states=x[:160], labels=y[:160], ids=ids[:160])
    np.savez(folder / "test.npz", hidden_states=x[160:], labels=y[160:], ids=ids[160:])
    save_file({"hidden_states": x[160:], "labels": y[160:], "ids": ids[160:]}, folder / "test.safetensors")
    write_jsonl(
        folder / "states.jsonl",
        [
            {"id": int(i), "hidden_states": row.tolist(), "label": int(label)}
            for i, row, label in zip(ids[160:], x[160:], y[160:], strict=True)
        ],
    )
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(test), folder / "test.parquet")
    states = {"id": ids[160:], "hidden_states": list(x[160:]), "label": y[160:]}
    parquet.write_table(pyarrow.table(states), folder / "states.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSDM_CACHE", str(folder / "cache"))
        bert = language_model(folder / "bert")
        good("train", folder / "train.jsonl", "-o", folder / "texts", "-m", bert, "-a", 0.8, *QUICK)
        good("train", folder / "train.npz", "-o", folder / "states", "-a", 0.8, *QUICK, "--certification-size", 0)
        good("embed", folder / "test.jsonl", "-o", folder / "shards", "-m", bert)
        yield World(folder, bert)


TEXTS = ["test.jsonl", "test.jsonl.gz", "test.csv", "test.tsv", "test.parquet", "shards"]
STATES = ["test.npz", "test.safetensors", "states.jsonl", "states.parquet"]
EVERY_INPUT = [("texts", name) for name in TEXTS] + [("states", name) for name in STATES]


def decisions(world, model):
    """What the library decides on the test set."""
    if model == "states":
        return SDMClassifier.load(world / model).decide(np.load(world / "test.npz")["hidden_states"])
    texts = [strict(line)["text"] for line in (world / "test.jsonl").read_text().splitlines()]
    return SDMTextClassifier.load(world / model).decide(texts)


# --- predict ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "source"), EVERY_INPUT)
def test_predict_gives_what_the_library_decides_in_input_order(world, model, source):
    rows = good("predict", world / model, world / source).rows
    expected = decisions(world, model).to_dicts()
    assert [row["id"] for row in rows] == (
        [*range(1160, 1200)] if model == "states" else [f"r{i}" for i in range(160, 200)]
    )
    for row, one in zip(rows, expected, strict=True):
        assert set(row) == {"id", "line", "exemplars", *one}
        for name, value in one.items():
            is_number = isinstance(value, (float, dict))
            assert row[name] == (pytest.approx(value, rel=1e-4, abs=1e-5) if is_number else value), name
        distances = [point["distance"] for point in row["exemplars"]]
        assert len(distances) == 3 and distances == sorted(distances)
    assert sum(row["admitted"] for row in rows) > 0, "nothing admitted: the test says little"
    if source != "shards":  # several files
        first = 2 if source.endswith(("csv", "tsv")) else 1
        assert [row["line"] for row in rows] == list(range(first, first + 40))


@pytest.mark.parametrize(("model", "source"), [("texts", "test.jsonl"), *(("states", name) for name in STATES)])
def test_the_size_of_blocks_changes_nothing(world, model, source, monkeypatch):
    whole = good("predict", world / model, world / source).rows
    monkeypatch.setattr(saved_model, "BLOCK", 7)
    blocks = good("predict", world / model, world / source).rows
    assert [(row["id"], row["prediction"], row["admitted"]) for row in blocks] == [
        (row["id"], row["prediction"], row["admitted"]) for row in whole
    ]
    for row, other in zip(blocks, whole, strict=True):
        assert row["magnitude"] == pytest.approx(other["magnitude"], rel=1e-4)
        if model == "states":  # the last bits of a text's states depend on its batch, and near copies tell them apart
            assert row["confidence"] == pytest.approx(other["confidence"], rel=1e-4)
            assert [one["id"] for one in row["exemplars"]] == [one["id"] for one in other["exemplars"]]


def test_predict_writes_a_file_in_one_step_and_says_how_many(world, tmp_path):
    target = tmp_path / "decisions.jsonl"
    target.write_text("old")
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    bad = write_jsonl(tmp_path / "bad.jsonl", [{"hidden_states": [0.0] * 6}, {"hidden_states": [0.0] * 5}])
    assert call("predict", world / "states", bad, "-o", target, "--strict").returncode == 1
    assert target.read_text() == "old"
    (summary,) = good("predict", world / "states", world / "test.npz", "-o", link, "--json").rows
    rows = [strict(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert summary["guard"]["n_seen"] == 40 and summary["lanes"] == Counter(row["lane"] for row in rows)
    del summary["guard"], summary["lanes"]
    assert summary == {"inputs": 40, "admitted": sum(row["admitted"] for row in rows), "output": str(link)}
    assert link.is_symlink() and sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.jsonl",
        "decisions.jsonl",
        "link.jsonl",
    ]


@pytest.mark.parametrize("ending", ["json", "csv", "tsv", "parquet"])
def test_predict_writes_the_format_that_the_file_name_asks_for(world, ending, tmp_path):
    output = tmp_path / f"decisions.{ending}"
    good("predict", world / "states", world / "test.npz", "-o", output)
    lines = good("predict", world / "states", world / "test.npz").rows
    if ending == "json":
        assert strict(output.read_text()) == lines
        return
    read = {"csv": pandas.read_csv, "tsv": lambda path: pandas.read_csv(path, sep="\t"), "parquet": pandas.read_parquet}
    table = read[ending](output)
    assert table["id"].tolist() == list(range(1160, 1200)) and table["line"].tolist() == list(range(1, 41))
    assert [strict(text) for text in table["exemplars"]] == [row["exemplars"] for row in lines]
    expected = decisions(world, "states").to_pandas()
    assert table.columns.tolist() == ["id", "line", *expected.columns, "exemplars"]
    assert table.pop("certificate").isna().all() and expected.pop("certificate").isna().all()  # there is none
    for name in expected.columns:
        assert table[name].tolist() == pytest.approx(expected[name].tolist(), nan_ok=True), name


def test_predict_refuses_an_output_it_cannot_write_before_the_model_is_opened(world, tmp_path, monkeypatch):
    monkeypatch.setattr(SDMClassifier, "load", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name, expected in (
        ("p.xlsx", ".jsonl, .json, .csv, .tsv, .parquet. Got 'p.xlsx'"),
        ("p.parquet", "pip install"),
    ):
        refused(call("predict", world / "states", world / "test.npz", "-o", tmp_path / name), expected)


def test_predict_gives_texts_and_exemplars_only_as_asked(world):
    none = good("predict", world / "texts", world / "test.csv", "-k", 0).rows
    assert all("exemplars" not in row for row in none)
    some = good("predict", world / "texts", world / "test.csv", "-k", 2, "--texts").rows
    assert all(len(row["exemplars"]) == 2 and "the" in row["exemplars"][0]["text"] for row in some)
    assert [row["text"] for row in some] == [strict(line)["text"] for line in (world / "test.jsonl").open()]
    assert [row["confidence"] for row in none] == pytest.approx([row["confidence"] for row in some])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_standard_input_is_read_in_a_real_pipe_and_a_closed_one_ends_quietly(world, tmp_path):
    content = (world / "states.jsonl").read_bytes()
    into, out_of = tmp_path / "into", tmp_path / "out"
    os.mkfifo(into)
    whole = WarmProcess(SDM, "predict", world / "states", "-", stdin=into)
    into.write_bytes(content)
    assert whole.wait() == 0 and whole.stderr == ""  # no progress either
    assert [strict(line)["id"] for line in whole.stdout.splitlines()] == list(range(1160, 1200))
    os.mkfifo(out_of)
    reader = os.open(out_of, os.O_RDONLY | os.O_NONBLOCK)
    closed = WarmProcess(SDM, "predict", world / "states", "-", "-k", 100, stdin=into, stdout=out_of)
    with open(into, "wb") as pipe:  # it has begun
        os.close(reader)  # as head -1 does
        pipe.write(content)
    assert closed.wait() == 1 and closed.stderr == ""


# --- the other verbs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "source"), EVERY_INPUT)
def test_evaluate_prints_the_table_of_the_library(world, model, source):
    done = good("evaluate", world / model, f"held={world / source}", "--json")
    classifier = SDMClassifier.load(world / model)
    held = read_states(world / ("test.npz" if model == "states" else "shards"))
    name = "states" if model == "states" else "bert"
    expected = Evaluation(classifier_entrants(classifier, name=name), {"held": held}, 0.8).table
    assert strict(done.stdout) == strict(expected.to_json())
    if source in ("test.npz", "test.jsonl"):
        chosen = ("--estimator", "SDM_HR", "--estimator", "softmax(z")
        rows = [
            line
            for line in good("evaluate", world / model, world / source, *chosen, "--wide").stdout.splitlines()
            if name in line
        ]
        assert len(rows) == 3  # SDM_HR, its lower bound, softmax
        for form, sign in (("markdown", "|"), ("latex", "&"), ("csv", ",")):
            assert sign in good("evaluate", world / model, world / source, "--format", form, "--intervals").stdout


def test_evaluate_takes_another_alpha_and_leaves_the_model(world):
    before = contents(world / "states")
    assert "0.95" not in good("evaluate", world / "states", world / "test.npz", "--json").stdout
    rows = strict(good("evaluate", world / "states", world / "test.npz", "--alpha", 0.95, "--json").stdout)
    assert rows != strict(good("evaluate", world / "states", world / "test.npz", "--json").stdout)
    assert contents(world / "states") == before


def test_evaluate_takes_strangers_and_what_the_model_has_seen(world, tmp_path):
    data = dict(np.load(world / "test.npz"))
    np.savez(tmp_path / "bare.npz", hidden_states=data["hidden_states"])
    np.savez(tmp_path / "mixed.npz", hidden_states=data["hidden_states"], labels=np.arange(40) % 4)
    done = good("evaluate", world / "states", tmp_path / "mixed.npz", tmp_path / "bare.npz", world / "train.npz")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "mixed: 20 inputs, states + SDM" in done.stdout
    assert "mixed, strangers: 20 inputs with labels outside the classes, states + SDM" in done.stdout
    assert "bare: 40 inputs without labels, states + SDM" in done.stdout
    said = " ".join(done.stdout.split())
    assert "20 of 40 labels of mixed are not classes of the model (2, 3)" in said and "bare has no labels" in said
    assert "Warning: 160 of 160 inputs of train equal points that the model was made with" in said
    files = (tmp_path / "mixed.npz", tmp_path / "bare.npz")
    done = good("evaluate", world / "states", *files, "--json", "--estimator", "no reject")
    assert "sdm: 20 of 40 labels of mixed" in done.stderr and "sdm: bare has no labels" in done.stderr
    whole, *overviews = (
        [one for one in strict(done.stdout) if one["stratum"] in ("all", "overview") and one["dataset"] == name]
        for name in ("mixed", "mixed, strangers", "bare")
    )
    assert [(one["labels"], one["n_total"], one["n_correct"] is None) for one in whole] == [("classes", 20, False)]
    for (table, overview), (labels, n) in zip(overviews, (("outside", 20), ("none", 40)), strict=True):
        assert (table["labels"], table["n_total"], table["n_admitted"], table["accuracy"]) == (labels, n, n, None)
        assert overview["labels"] == labels and sum(overview["lanes"].values()) == overview["n_total"] == n
        assert sum(overview["predictions"].values()) == n and set(overview["guard"]) == {"raised_at", "raised_by"}


@pytest.mark.parametrize(("model", "source"), EVERY_INPUT)
def test_explain_is_the_library_s_explanation(world, model, source):
    wanted = "r161" if model == "texts" else "1161"
    (row,) = good("explain", world / model, world / source, "--only", wanted, "-k", 2, "--json").rows
    assert str(row["id"]) == wanted and len(row["exemplars"]) == 2
    if model == "states":
        state = np.load(world / "test.npz")["hidden_states"][1:2]
        (expected,) = SDMClassifier.load(world / model).explain(state, 2)
        assert [one["id"] for one in row["exemplars"]] == [one.id for one in expected.exemplars]
    shown = good("explain", world / model, world / source, "--first", 3).stdout
    assert shown.count("\nid ") + shown.startswith("id ") == 3


def test_explain_takes_a_text_from_the_command_line(world):
    (row,) = good("explain", world / "texts", "--say", "the film was great", "--json").rows
    (expected,) = SDMTextClassifier.load(world / "texts").explain(["the film was great"])
    assert row["exemplars"][0]["text"] == expected.exemplars[0].text and row["text"] == "the film was great"
    shown = good("explain", world / "texts", "--say", f"the film\nwas {'great ' * 80}").stdout.splitlines()[0]
    assert shown.startswith("id 0 the film was great great") and len(shown) == 300 and shown.endswith("…")


@pytest.mark.parametrize(("model", "source"), EVERY_INPUT)
def test_update_adds_what_the_library_adds(world, model, source, tmp_path):
    before = contents(world / model)
    (summary,) = good("update", world / model, "--add", world / source, "-o", tmp_path / "more", "--json").rows
    assert contents(world / model) == before
    expected = SDMClassifier.load(world / model)
    assert (summary["added"], summary["n_support"]) == (40, 40 + len(expected.support_))
    held = read_states(world / ("test.npz" if model == "states" else "shards"))
    expected.add_exemplars(held.hidden_states, held.labels, ids=list(np.asarray(held.ids).tolist())).recalibrate()
    states = np.load(world / "test.npz")["hidden_states"] if model == "states" else held.hidden_states
    changed = SDMClassifier.load(tmp_path / "more").decide(states)
    assert changed.similarity.tolist() == expected.decide(states).similarity.tolist()
    assert changed.admitted.tolist() == expected.decide(states).admitted.tolist()


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_update_numbers_rows_anew_where_a_calibration_point_has_their_number(world, tmp_path):
    held = np.load(world / "test.npz")
    small = SDMClassifier(0.8, n_filters=8, n_rounds=1, training="sdm", max_epochs=1, random_state=0)
    small.fit(held["hidden_states"], held["labels"])
    ids = np.roll(np.arange(40), small.calibration_rows_[0])  # a calibration point is number 0
    small.fit(held["hidden_states"], held["labels"], ids=ids.tolist()).save(tmp_path / "model")
    assert 0 in small.model_.calibration.known.examples.ids()
    np.savez(tmp_path / "one.npz", hidden_states=held["hidden_states"][:1] + 1, labels=held["labels"][:1])
    (summary,) = good("update", tmp_path / "model", "--add", tmp_path / "one.npz", "--json", "--force").rows
    assert (summary["added"], summary["n_support"]) == (1, len(small.training_rows_) + 1)


@pytest.mark.parametrize(
    "words", [("--add", "'Pos' (1 example) is not a class"), ("--add-calibration", "'Pos' (1"), ("--add", "'r0'")]
)
def test_labels_and_ids_are_checked_before_a_language_model_is_needed(world, tmp_path, words):
    option, expected = words
    row = {"id": "new", "text": "the film was great", "label": "Pos"}
    row = row if "Pos" in expected else {**row, "id": "r0", "label": "pos"}
    write_jsonl(tmp_path / "more.jsonl", [row])
    refused(call("update", world / "texts", option, tmp_path / "more.jsonl", "-m", tmp_path / "nowhere"), expected)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_texts_come_back_into_both_sets(world, tmp_path):
    rows = [strict(line) for line in (world / "test.jsonl").read_text().splitlines()]
    for name, part in (("some", rows[:20]), ("others", rows[20:])):
        write_jsonl(tmp_path / f"{name}.jsonl", part)
    files = ("--add", tmp_path / "some.jsonl", "--add-calibration", tmp_path / "others.jsonl")
    (summary,) = good("update", world / "texts", *files, "-o", tmp_path / "more", "--json", "--force").rows
    assert (summary["added"], summary["added_calibration"]) == (20, 20)
    loaded = SDMTextClassifier.load(tmp_path / "more").classifier_
    assert loaded.model_.calibration.known.examples.ids()[-20:] == [row["id"] for row in rows[20:]]
    nameless = write_jsonl(
        tmp_path / "again.jsonl", [{"text": row["text"], "label": row["label"]} for row in rows[:20]]
    )
    refused(call("update", tmp_path / "more", "--add-calibration", nameless), "20 of the 20 points")


@pytest.mark.parametrize("file", ["nowhere/guard", "notes", "other"])
def test_a_guard_file_that_cannot_be_used_is_told_before_anything_is_written(world, tmp_path, file):
    (tmp_path / "notes").write_text("notes")
    DriftGuard([1.0], [1.0], [1.0]).save(tmp_path / "other")
    decisions = tmp_path / "decisions.jsonl"
    done = call("predict", world / "states", world / "test.npz", "-o", decisions, "--guard", tmp_path / file)
    refused(done, str(tmp_path / file))
    assert not decisions.exists()


def test_a_guard_is_kept_only_if_all_inputs_were_decided(world, tmp_path):
    guard = tmp_path / "guard"
    good("predict", world / "states", world / "test.npz", "-o", tmp_path / "one.jsonl", "--guard", guard)
    before = guard.read_bytes()
    np.savez(tmp_path / "bad.npz", hidden_states=np.full((3, 2), np.nan), labels=[0, 1, 0])
    done = call("predict", world / "states", tmp_path / "bad.npz", "-o", tmp_path / "two.jsonl", "--guard", guard)
    assert done.returncode == 1 and guard.read_bytes() == before
    good("predict", world / "states", world / "test.npz", "-o", tmp_path / "two.jsonl", "--guard", guard)
    assert DriftGuard.load(guard).n_seen == 80


def test_each_source_has_a_guard_of_its_own_and_is_reset_alone(world, tmp_path):
    file, guards, decisions = tmp_path / "new.jsonl", tmp_path / "guards", tmp_path / "decisions.jsonl"
    states = read_states(world / "test.npz").hidden_states
    given = [*((row, "mail") for row in states), *((row, "forum") for row in (*states[:10], *(states[10:] + 9)))]
    write_jsonl(file, [{"hidden_states": row.tolist(), "source": source} for row, source in given])
    predict = ("predict", world / "states", file, "-o", decisions, "--guard", guards, "--guard-by", "source")
    (summary,) = good(*predict, "--json").rows
    raised = {one["source"]: one["raised"] for one in summary["guard"]["sources"]}
    assert raised == {"mail": False, "forum": True} and summary["guard"]["n_raised"] == 1
    said = good("guard", guards).stdout
    assert "only trusted answers to these are admitted: 'forum', raised at input" in said
    assert f"sdm guard {guards} --source NAME --reset REASON" in said and "'mail', calm after 40" in said
    refused(call("predict", world / "states", file, "-o", decisions, "--guard", guards), "keeps one for each source")
    refused(call("guard", guards, "--source", "forum"), "--source NAME needs --reset REASON")
    refused(call("guard", guards, "--source", "news", "--reset", "why"), "must have a stream. Got 'news'")
    said = good("guard", guards, "--source", "forum", "--reset", "cleaned").stdout
    assert "calm after 40 inputs from 2 sources" in said and "raised at" in said and ", of 'forum': cleaned" in said
    refused(call("predict", world / "states", file, "--no-guard", "--guard-by", "source"), "not both")


def test_the_card_of_a_trained_model_names_its_file_and_runs(world, tmp_path):
    good("train", world / "train.npz", "-o", tmp_path / "model", *QUICK)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "| trained on | 160 labelled examples of `train.npz` |" in card and str(world / "train.npz") not in card
    rows = (b'{"hidden_states": [%d, 1], "label": %d}\n' % (i % 2 * 9 + i, i % 2) for i in range(40))
    good("train", "-", "-o", tmp_path / "piped", *QUICK, stdin=b"".join(rows))
    assert "40 labelled examples of `standard input` |" in (tmp_path / "piped" / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    (tmp_path / "lines.py").write_text(lines)
    done = warm_process.run(tmp_path / "lines.py", cwd=tmp_path / "model")
    assert done.returncode == 0 and "vouch" in done.stdout, done.stderr


def test_an_export_decides_alike(world, tmp_path):
    done = good("export", world / "states", "-o", tmp_path / "out" / "exported")
    assert done.stdout.startswith(str(tmp_path / "out" / "exported"))
    assert done.stdout.endswith(" MB in sdm_model.npz and sdm_numpy.py, to copy to where it decides.\n")
    (result,) = good("export", world / "states", "-o", tmp_path / "out" / "exported", "--json").rows
    assert set(result["bytes"]) == {"sdm_model.npz", "sdm_numpy.py"}
    states = np.load(world / "test.npz")["hidden_states"]
    found = sdm_numpy.load(tmp_path / "out" / "exported").decide(states)
    assert found.lane.tolist() == SDMClassifier.load(world / "states").decide(states).lane.tolist()


def test_an_ensemble_is_not_exported(world, tmp_path):
    good("train", world / "train.npz", "-o", tmp_path / "all", "--ensemble", *QUICK)
    refused(call("export", tmp_path / "all", "-o", tmp_path / "out"), "is an ensemble, which cannot be exported")
    assert not (tmp_path / "out").exists()
    refused(call("export", tmp_path, "-o", tmp_path / "out"), "contains no torchsdm model")


def test_update_removes_and_relabels_in_place(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world / "states", model)
    expected = SDMClassifier.load(model)
    first, second, *_ = expected.models_[0].examples.all()[0]
    old = dict(zip(*expected.models_[0].examples.all(), strict=True))
    (summary,) = good("update", model, "--remove", first, "--remove", first, "--relabel", f"{second}=1", "--json").rows
    assert (summary["removed"], summary["relabelled"], summary["n_support"]) == (1, 1, len(old) - 1)
    expected.remove_exemplars([first]).relabel_exemplars([second], [1]).recalibrate()
    states = np.load(world / "test.npz")["hidden_states"]
    assert SDMClassifier.load(model).decide(states).to_dicts() == expected.decide(states).to_dicts()
    assert call("update", model, "--remove", first).returncode == 1  # it is gone


def test_recalibrate_is_the_library_s_and_leaves_the_model_with_output(world, tmp_path):
    before = contents(world / "states")
    (summary,) = good("recalibrate", world / "states", "-a", 0.7, "-a", 0.9, "-o", tmp_path / "new", "--json").rows
    assert contents(world / "states") == before
    expected = SDMClassifier.load(world / "states").recalibrate([0.7, 0.9])
    for one, region in zip(summary["regions"], expected.models_[0].calibration.regions, strict=True):
        assert (one["alpha"], one["found"]) == (region.alpha, region.found)
    states = np.load(world / "test.npz")["hidden_states"]
    assert SDMClassifier.load(tmp_path / "new").decide(states).to_dicts() == expected.decide(states).to_dicts()


def test_report_is_one_page_and_quotes_no_text_if_asked(world, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    texts = [strict(line)["text"] for name in ("train", "test") for line in (world / f"{name}.jsonl").open()]
    page, quiet = tmp_path / "page.html", tmp_path / "quiet.html"
    (summary,) = good("report", world / "texts", world / "test.jsonl", "-o", page, "--json").rows
    assert summary == {"report": str(page), "inputs": {"test": 40}, "unread": {"test": 0}}
    assert any(text in page.read_text(encoding="utf-8") for text in texts)
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))  # once is enough
    good("report", world / "texts", f"held={world / 'shards'}", "-o", quiet, "--no-texts")
    assert not any(text in quiet.read_text(encoding="utf-8") for text in texts)


def test_doctor_names_versions_and_extras_and_finds_damage(world, tmp_path):
    found = strict(good("doctor", world / "texts", "--json").stdout)
    assert {"torchsdm", "python", "devices", "extras"} <= set(found)
    assert found["model"]["settings"]["alpha"] == 0.8 and found["model"]["settings"]["n_filters"] == 16
    assert found["model"]["language_model"]["state"] == "unchanged"
    assert "intact" in good("doctor", world / "states").stdout
    for damage in ("cut", "flipped", "gone"):
        model = tmp_path / damage
        shutil.copytree(world / "states", model)
        file = next(model.glob("support-exemplars-*"))
        content = file.read_bytes()
        file.unlink()
        if damage != "gone":
            file.write_bytes(content[:-9] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
        done = call("doctor", model)
        assert done.returncode == 1 and file.name in done.stderr and done.stderr.count("\n") == 1


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", TEXTS + STATES)
def test_train_takes_every_format(world, source, tmp_path):
    model = ("-m", world.language_model) if source in TEXTS and source != "shards" else ()
    (summary,) = good("train", world / source, "-o", tmp_path / "model", *model, *QUICK, "--json").rows
    assert summary["n_support"] + summary["n_calibration"] == 40 and summary["seed"] == 0
    assert not (tmp_path / "model.training").exists()
    reader = world / ("test.npz" if source in STATES else "shards")
    good("predict", tmp_path / "model", reader)


def test_train_reads_standard_input_and_embed_too(world, tmp_path):
    content = (world / "test.jsonl").read_bytes()
    good("embed", "-", "-o", tmp_path / "shards", "-m", world.language_model, stdin=content)
    assert np.array_equal(read_states(tmp_path / "shards").hidden_states, read_states(world / "shards").hidden_states)
    good("train", "-", "-o", tmp_path / "model", "-m", world.language_model, *QUICK, stdin=content)
    rows = good("predict", tmp_path / "model", "-", stdin=(world / "unlabelled.jsonl").read_bytes()).rows
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(160, 200)]


def test_train_imports_no_more_than_it_needs_where_all_states_are_cached(world, tmp_path):
    unneeded = {"transformers", "tokenizers", "datasets", "matplotlib", "onnxruntime", "ray", "torch._dynamo"}
    unneeded |= {"sklearn.linear_model", "sklearn.model_selection", "torchsdm.baselines", "torchsdm.evaluation"}
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {SDM}"
    words = ["train", world / "train.jsonl", "-o", tmp_path / "model", "-m", world.language_model, "--filters", 16]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"torch", "sklearn", "torchsdm.estimators"} <= imported and not unneeded & imported


def test_audit_finds_the_review_with_the_wrong_label(world, tmp_path):
    rows = [json.loads(line) for line in (world / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    words = ["-m", world.language_model, "--certification-size", 0]
    good("audit", world / "train.jsonl", *words, "-o", tmp_path / "before.jsonl")
    surest = strict((tmp_path / "before.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    wrong = rows[surest["row"]]
    wrong["label"] = {"pos": "neg", "neg": "pos"}[wrong["label"]]
    file = write_jsonl(tmp_path / "reviews.jsonl", rows)
    done = good("audit", file, *words, "--top", 1)
    score = f"contradiction {-surest['contradiction']:.1f}"  # of two classes, seen from the other side
    assert f"line {surest['row'] + 1}, id {wrong['id']!r}: {wrong['label']!r} -> " in done.stdout
    assert score in done.stdout and wrong["text"] in done.stdout and done.stdout.startswith("160 rows judged")


def test_training_killed_goes_on_to_the_same_model(world, tmp_path):
    settings = ("--rounds", 2, "--epochs", 20, "--filters", 16, "--learning-rate", 0.01, "--seed", 3)
    good("train", world / "train.npz", "-o", tmp_path / "whole", *settings)
    broken, checkpoint = tmp_path / "broken", tmp_path / "broken.training"
    running = WarmProcess(SDM, "train", world / "train.npz", "-o", broken, *settings, env={**os.environ, **ONE_THREAD})
    until = time.monotonic() + 60
    while running.poll() is None and not any(checkpoint.glob("*")) and time.monotonic() < until:
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL and any(checkpoint.glob("*")) and not broken.exists()
    good("train", world / "train.npz", "-o", broken, *settings)
    assert not checkpoint.exists()
    whole, resumed = contents(tmp_path / "whole"), contents(broken)
    assert [name for name in whole if name.endswith(".safetensors")] == [
        name for name in resumed if name.endswith(".safetensors")
    ]
    assert {name: whole[name] for name in whole if "config" not in name} == {
        name: resumed[name] for name in resumed if "config" not in name
    }


def test_an_option_goes_before_the_config_file_and_that_before_the_default(world, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text(
        "[train]\nalpha = 0.7\nfilters = 8\nrounds = 1\nepochs = 2\nseed = 5\n\n[predict]\nexemplars = 1\n"
    )
    model = tmp_path / "model"
    good("--config", config, "train", world / "train.npz", "-o", model, "--filters", 12)
    stored = SDMClassifier.load(model).get_params()
    names = ("alpha", "n_filters", "n_rounds", "max_epochs", "random_state", "batch_size")
    assert [stored[name] for name in names] == [0.7, 12, 1, 2, 5, 50]
    config.write_text("[train]\nalpha = [0.7, 0.8]\nrounds = 1\nepochs = 2\n[predict]\nexemplars = 1\n")
    good("--config", config, "train", world / "train.npz", "-o", model, "--overwrite")
    assert SDMClassifier.load(model).get_params()["alpha"] == [0.7, 0.8]
    for more, expected in (((), 1), (("-k", 2), 2)):
        rows = good("--config", config, "predict", model, world / "test.npz", *more).rows
        assert {len(row["exemplars"]) for row in rows} == {expected}


# --- help and completion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", sdm.list_commands(None))
def test_the_help_of_every_verb_has_an_example(verb):
    done = good(verb, "--help")
    assert "Example" in done.stdout and f"sdm {verb}" in done.stdout


def test_completion_is_printed():
    done = warm_process.run(SDM, env={**os.environ, "_SDM_COMPLETE": "bash_source"})
    assert done.returncode == 0 and "_SDM_COMPLETE=bash_complete" in done.stdout


# --- nonsense --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad(world):
    """Files and folders that nothing can be made of."""
    folder = world / "bad"
    folder.mkdir()
    lines = (world / "train.jsonl").read_text().splitlines()
    (folder / "garbage.npz").write_bytes(np.random.default_rng(1).bytes(300))
    (folder / "broken.jsonl").write_text("\n".join([*lines[:2], '{"text": bro', *lines[3:6]]))
    (folder / "unlabelled.jsonl").write_text("\n".join([lines[0], '{"id": "x", "text": "fine"}', *lines[2:6]]))
    (folder / "bare.jsonl").write_text('{"text": "fine"}\n')
    (folder / "another.jsonl").write_text('{"text": "fine", "label": "maybe"}\n')
    (folder / "twice.jsonl").write_text("\n".join([lines[0], lines[0]]))
    (folder / "notes.txt").write_text("fine")
    (folder / "no-model").mkdir()
    data = dict(np.load(world / "train.npz"))
    states = data["hidden_states"]
    holed = states.copy()
    holed[30, 2] = np.nan
    for name, changed in {
        "narrow": {"hidden_states": states[:, :4]},
        "holed": {"hidden_states": holed},
        "none": {"hidden_states": states[:0], "labels": data["labels"][:0], "ids": data["ids"][:0]},
        "unknown": {"labels": data["labels"] + 7},
        "wide-ids": {"ids": np.ones((160, 2), int)},
    }.items():
        np.savez(folder / f"{name}.npz", **{**data, **changed})
    (folder / "half.jsonl").write_text(
        '{"hidden_states": [0, 1, 2, 3, 4, 5], "label": 1}\n{"hidden_states": [0, 1, 2, 3, 4, 5], "label": null}\n'
    )
    for name, content in {
        "verb": "[fly]\na = 1\n",
        "option": "[train]\nwings = 2\n",
        "type": "[train]\nrounds = 'many'\n",
        "list": "[train]\nrounds = [1, 2]\n",
        "part": "[train]\nrounds = 1.5\n",
        "syntax": "[train\n",
    }.items():
        (folder / f"{name}.toml").write_text(content)
    shutil.copytree(world / "states", folder / "cut")
    config = folder / "cut" / "config.json"
    config.write_bytes(config.read_bytes()[:500])
    return folder


VERBS = {  # without --strict, bad rows are rejected: tests/system/test_bad_rows.py
    "embed": ("embed", "FILE", "-o", "OUT", "-m", "BERT"),
    "train": ("train", "FILE", "-o", "OUT", "-m", "BERT", *QUICK),
    "audit": ("audit", "FILE", "-m", "BERT"),
    "predict": ("predict", "TEXTS", "FILE", "--strict"),
    "evaluate": ("evaluate", "TEXTS", "FILE", "--strict"),
    "explain": ("explain", "TEXTS", "FILE"),
    "update": ("update", "TEXTS", "--add", "FILE", "-o", "OUT"),
    "report": ("report", "TEXTS", "FILE", "-o", "PAGE", "--strict"),
}


def run_bad(world, folder, arguments, file="", **options):
    places = {
        "FILE": file,
        "OUT": folder / "out",
        "PAGE": folder / "page.html",
        "BERT": world.language_model,
        "TEXTS": world / "texts",
        "STATES": world / "states",
        "TRAIN": world / "train.npz",
        "REVIEWS": world / "train.jsonl",
        "BAD": world / "bad",
    }
    done = call(
        *[
            Path(str(one).replace("BAD", str(places["BAD"]))) if "BAD/" in str(one) else places.get(one, one)
            for one in arguments
        ],
        **options,
    )
    assert not (folder / "out").exists() and not (folder / "page.html").exists()
    return done


# What is wrong with a file is tested in tests/unit/application/test_inputs.py; here, that every verb says it.


@pytest.mark.parametrize("verb", VERBS)
def test_bad_files_and_standard_input_are_one_sentence_in_every_verb(verb, world, bad, tmp_path):
    for file, expected in {
        "nowhere.jsonl": "nowhere.jsonl",
        "notes.txt": "notes.txt",
        "broken.jsonl": "broken.jsonl, line 3",
        "garbage.npz": "garbage",
    }.items():
        refused(run_bad(world, tmp_path, VERBS[verb], bad / file), expected)
    contents = {b"": "standard input is empty", b'{"text": "a", "label": 1}\n{': "line 2"}
    if verb == "predict":  # no rows, no decisions
        del contents[b""]
    for content, expected in contents.items():
        done = run_bad(world, tmp_path, VERBS[verb], "-", stdin=content)
        refused(done, expected)
        assert "/tmp" not in done.stderr


@pytest.mark.parametrize("verb", ["train", "audit", "predict", "evaluate", "explain", "update", "report"])
def test_bad_states_are_one_sentence_in_every_verb(verb, world, bad, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "BLOCK", 7)  # rows are counted over all blocks
    arguments = [{"TEXTS": "STATES"}.get(one, one) for one in VERBS[verb] if one not in ("-m", "BERT")]
    for file, expected in {
        "holed.npz": "row 31: the states contain NaN",
        "wide-ids.npz": "ids must have one value per row",
        "none.npz": "",
        "narrow.npz": "4 features",  # not those of the model, which training and audit do not have
    }.items():
        if (verb, file) not in (("train", "narrow.npz"), ("audit", "narrow.npz"), ("predict", "none.npz")):
            done = run_bad(world, tmp_path, arguments, bad / file)
            refused(Done(done.returncode, "", done.stderr), expected)  # the rows before may have been written


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("train", "BAD/unlabelled.jsonl", "-o", "OUT", "-m", "BERT"), "no label: line 2"),
        (("audit", "BAD/unlabelled.jsonl", "-m", "BERT"), "no label: line 2"),
        (("audit", "REVIEWS"), "Name a language model to read them: --language-model"),
        (("audit", "BAD/another.jsonl", "-m", "BERT"), "at least two classes"),
        (("audit", "TRAIN", "--folds", 60), "fewer folds (at least 2): --folds"),
        (("evaluate", "TEXTS", "BAD/unlabelled.jsonl"), "no label: line 2"),
        (("evaluate", "STATES", "BAD/half.jsonl"), "line 2: no label"),
        (("evaluate", "TEXTS", "BAD/another.jsonl", "--training", "BAD/bare.jsonl"), "bare.jsonl has no labels. Name"),
        (("evaluate", "TEXTS", "BAD/another.jsonl", "--estimator", "zz"), "No estimator has 'zz' in its name"),
        (("train", "REVIEWS", "-o", "OUT"), "Name a language model to read them: --language-model"),
        (("train", "TRAIN", "-o", "OUT", "-m", "BERT"), "already contains states. Leave out --language-model."),
        (("train", "TRAIN", "-o", "OUT", "--alpha", 2), "(0.5, 1]"),
        (("train", "TRAIN", "-o", "OUT", "--label", "zz"), "'zz'"),
        (("train", "TRAIN", "-o", "OUT", "--id", "zz"), "'zz' for the ids"),
        (("train", "REVIEWS", "-o", "OUT", "-m", "BERT", "--text", "zz"), "no column 'zz'"),
        (("train", "TRAIN", "-o", "BAD/notes.txt"), "--output must be a directory"),
        (("train", "TRAIN", "-o", "BAD/notes.txt/model"), "cannot be written"),
        (("train", "TRAIN", "-o", ""), "--output must be a directory"),
        (("predict", "BAD/no-model", "TRAIN"), "contains no torchsdm model"),
        (("predict", "BAD/notes.txt", "TRAIN"), "is not a directory"),
        (("predict", "BAD/cut", "TRAIN"), "is damaged"),
        (
            ("predict", "STATES", "REVIEWS"),
            "was trained on states only. Extract their states with the same language model: sdm embed.",
        ),
        (("predict", "STATES", "TRAIN", "-k", -1), "--exemplars"),
        (("predict", "STATES", "TRAIN", "--label", "zz"), "'zz' for the labels"),
        (("predict", "STATES", "TRAIN", "--states", "zz"), "--states"),
        (("predict", "STATES", "TRAIN", "-o", "BAD/no-model"), "--output must be a file"),
        (("predict", "STATES", "TRAIN", "-o", "BAD/nowhere/file"), "cannot be written"),
        (("report", "STATES", "TRAIN", "-o", "BAD/nowhere/page.html"), "cannot be written"),
        (("explain", "STATES", "--say", "fine"), "cannot read texts. Give states as INPUT"),
        (("explain", "STATES", "TRAIN", "--only", "zz"), "no input with the id 'zz'"),
        (("explain", "STATES", "TRAIN", "--only", "zz", "--first", 3), "no input with the id 'zz'"),
        (("explain", "STATES", "TRAIN", "-k", 0), "at least 1"),
        (("explain", "STATES"), "Give either"),
        (("evaluate", "STATES", "TRAIN", "TRAIN"), "the same name"),
        (("evaluate", "STATES", "TRAIN", "--alpha", 2), "(0.5, 1]"),
        (("evaluate", "STATES", "TRAIN", "--training", "TRAIN", "--groups", "zz"), "no group 'zz'"),
        (("update", "STATES"), "Nothing to do"),
        (("update", "STATES", "--remove", "zz", "-o", "OUT"), "'zz'"),
        (("update", "STATES", "--relabel", "zz", "-o", "OUT"), "ID=LABEL"),
        (("update", "STATES", "--relabel", "1=0", "--relabel", "1=1", "-o", "OUT"), "twice"),
        (("update", "TEXTS", "--add", "BAD/twice.jsonl", "-o", "OUT"), "line 2"),
        (("update", "TEXTS", "--add", "REVIEWS", "-o", "OUT"), "'ids'"),
        (("recalibrate", "STATES", "--alpha", 2, "-o", "OUT"), "(0.5, 1]"),
        (("--config", "BAD/verb.toml", "train", "TRAIN", "-o", "OUT"), "no verb 'fly'"),
        (("--config", "BAD/option.toml", "train", "TRAIN", "-o", "OUT"), "no option 'wings'"),
        (("--config", "BAD/type.toml", "train", "TRAIN", "-o", "OUT"), "'many' is not a valid integer"),
        (("--config", "BAD/list.toml", "train", "TRAIN", "-o", "OUT"), "[1, 2] is not one value"),
        (("--config", "BAD/part.toml", "train", "TRAIN", "-o", "OUT"), "'1.5' is not a valid integer"),
        (("--config", "BAD/syntax.toml", "doctor"), "not valid TOML"),
        (("--config", "BAD/nowhere.toml", "doctor"), "cannot be read"),
        (("doctor", "BAD/no-model"), "contains no torchsdm model"),
        (("demo", "-o", "BAD/notes.txt"), "--output must be a directory"),
    ],
)
def test_nonsense_is_one_sentence(arguments, expected, world, bad, tmp_path):
    before = contents(world / "states")
    refused(run_bad(world, tmp_path, arguments), expected)
    assert contents(world / "states") == before


def test_states_of_another_language_model_are_refused(world, tmp_path):
    other = tiny_models.save_model(tmp_path / "other", *tiny_models.bert(seed=1))
    good("embed", world / "test.jsonl", "-o", tmp_path / "shards", "-m", other)
    refused(call("predict", world / "texts", tmp_path / "shards"), "states of a different model")
    refused(call("predict", world / "texts", world / "test.jsonl", "-m", other), "fitted with a different")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_not_replaced_by_one(world, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for verb in ("predict", "report"):
        refused(call(verb, world / "states", world / "test.npz", "-o", pipe), "--output must be a file")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "arguments", [("fly",), ("predict",), ("predict", "a", "b", "--wings"), ("recalibrate", "a", "--alpha", "x")]
)
def test_a_wrong_command_line_ends_with_2(arguments):
    done = call(*arguments)
    assert done.returncode == 2 and "Error: " in done.stderr and "Traceback" not in done.stderr


def test_an_error_that_nobody_foresaw_is_one_sentence_too(world, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("so\nit goes")

    monkeypatch.setattr(SDMClassifier, "explain", fail)
    refused(call("predict", world / "states", world / "test.npz"), "ZeroDivisionError: so it goes. ")
    with pytest.raises(ZeroDivisionError):
        call("--debug", "predict", world / "states", world / "test.npz")


@pytest.mark.parametrize("ask", [lambda: np.empty(1 << 50), lambda: torch.empty(1 << 50)], ids=["numpy", "torch"])
def test_too_little_memory_is_one_sentence(ask, world, monkeypatch):
    monkeypatch.setattr(SDMClassifier, "explain", lambda *_, **__: ask())
    refused(call("predict", world / "states", world / "test.npz"), "There is not enough memory.")


def test_examples_in_the_help_stand_line_by_line():
    assert "  sdm predict model new.jsonl -o decisions.jsonl\n" in good("predict", "--help").stdout
    assert "\\b" not in good("--help").stdout
