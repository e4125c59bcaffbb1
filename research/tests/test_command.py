"""``python -m research`` as a person runs it: a small experiment, killed, resumed, shown, given nonsense."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import shutil
import signal
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tiny_models
import warm_process
from research.__main__ import main
from research.experiments.specification import STUDIES as ALL_STUDIES
from research.experiments.specification import experiment_names, load_experiment
from sdm_command import call
from small import write_jsonl
from torchsdm import HiddenStateExtractor, SDMClassifier
from torchsdm.evaluation.entrants import GROUPS
from warm_process import ONE_THREAD, WarmProcess, strict

STUDIES = [study for study in ALL_STUDIES if study != "strangers"]  # there are none here

RESEARCH = "from research.__main__ import main; main()"
ALPHA = 0.7
EXPERIMENT = f"""\
title = "Tiny"
prompt = "sentiment"
studies = {json.dumps(STUDIES)}
groups = {json.dumps(GROUPS)}
alphas = [0.6, 0.7]
n_hidden = 8

[pool]
file = "pool" # .jsonl

[classes]
0 = "bad"
1 = "good"

[tests.Later]
role = "shifted"
file = "later.jsonl"

[tests.Now]
role = "in distribution"
file = "now"
remark = "Made up."

[tests.Mixed]
role = "shuffled"
shuffle = "Now"

[training]
alpha = {ALPHA}
n_filters = 16
n_rounds = 2
max_epochs = 3
batch_size = 10
learning_rate = 1e-2
random_state = 0

[variants.small]
pool = 60
tests = 20
studies = ["sample size"]
"""
WORDS = (["dull", "late", "early", "false", "short"], ["fine", "good", "better", "well played", "sure"])
THINGS = ["film", "hero", "villain", "bridge", "review", "end", "reviewer", "part"]
SETS = {
    "pool": (110, "The {thing} number {i} is {words}."),
    "now": (60, "The {thing} number 9{i} is {words}."),
    "later": (40, "{words}! No {thing} was like {i}."),
}


def made_up(name):
    rng = np.random.default_rng(len(name))
    n, template = SETS[name]
    rows = []
    for i in range(n):
        label = int(rng.integers(2))
        words = " and ".join(rng.choice(WORDS[label], 2))
        rows.append(
            {"id": f"{name}-{i}", "text": template.format(thing=rng.choice(THINGS), words=words, i=i), "label": label}
        )
    return rows


@dataclass(frozen=True)
class Place:
    """A folder with an experiment, its data and a language model."""

    folder: Path

    @property
    def file(self):
        return self.folder / "tiny.toml"

    def arguments(self, *more):
        return [str(self.file), "-m", str(self.folder / "tiny-model"), *map(str, more)]

    def environment(self, cache):
        return {**os.environ, **ONE_THREAD, "TORCHSDM_CACHE": str(cache)}

    def texts(self):
        return [row["text"] for name in SETS for row in made_up(name)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    (folder / "tiny.toml").write_text(EXPERIMENT, encoding="utf-8")
    for name in SETS:
        write_jsonl(folder / f"{name}.jsonl", made_up(name))
    tiny_models.save_model(folder / "tiny-model", *tiny_models.phi3())
    return Place(folder)


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """A run from beginning to end in a process of its own: where it was started, and how it ended."""
    home = tmp_path_factory.mktemp("whole")
    return home, warm_process.run(RESEARCH, *place.arguments(), cwd=home, env=place.environment(home / "cache"))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The command in this process, in a folder of its own, which spares the seconds that imports take."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHSDM_DATA", raising=False)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets it, and the handlers
    loggers = [logging.getLogger(name) for name in ("research", "torchsdm")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]

    yield partial(call, name="research", main=main)
    for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
        one.handlers, one.propagate, one.level = handlers, propagate, level


@pytest.fixture
def no_pictures(monkeypatch):
    """Reports without their pictures, which take most of the time; those of the whole run are looked at."""
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))


def read_result(folder):
    return strict((folder / "result.json").read_text(encoding="utf-8"))


def without_times(result, *, command=True):
    """A result but for the seconds it took and, where asked, the command."""
    kept = {key: value for key, value in result.items() if key != "seconds" and (command or key != "command")}
    return {**kept, "states": {key: value for key, value in result["states"].items() if key != "seconds"}}


# --- From texts to claims ---------------------------------------------------------------------------------------------


def test_a_run_ends_well_and_leaves_its_files(whole):
    home, done = whole
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    folder = home / "runs" / "tiny-tiny-model-full"
    files = {path.name for path in folder.iterdir()}
    assert files >= {"result.json", "tables.md", "tables.tex", "tables.csv", "report.html", "model"}
    assert not list(folder.rglob(".writing-*"))
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert len(report) > 100_000 and report.count("<img") > 5
    assert SDMClassifier.load(folder / "model").classes_.tolist() == [0, 1]


def test_texts_of_strangers_need_no_labels(place, run, no_pictures, tmp_path):
    bare = [{"id": row["id"], "text": row["text"]} for row in made_up("later")]
    write_jsonl(tmp_path / "bare.jsonl", bare)
    changes = [f"tests.Later.file={tmp_path / 'bare.jsonl'}", "tests.Later.role=strangers", "tests.Later.n=15"]
    changes += ['studies=["estimators"]', 'groups=["sdm"]']
    settings = [word for change in changes for word in ("--set", change)]
    done = run(*place.arguments("--variant", "small", "--run", "strange", *settings))
    assert done.returncode == 0, done.stderr
    assert done.stderr.index("Later has no labels") < done.stderr.index("Hidden states of pool")
    (section,) = [one for one in read_result(Path("runs/strange"))["sections"] if one["title"] == "Strangers"]
    (row,) = section["rows"]
    assert row[0] == "Later" and sum(map(int, re.findall(r"(\d+)(?: \(|,|$)", row[2]))) == 15
    assert "## Strangers\n" in Path("runs/strange/tables.md").read_text(encoding="utf-8")


def test_the_result_is_strict_json_and_complete(whole, place):
    home, _ = whole
    result = read_result(home / "runs" / "tiny-tiny-model-full")
    assert (result["experiment"], result["title"], result["variant"], result["alpha"]) == (
        "tiny",
        "Tiny",
        "full",
        ALPHA,
    )
    assert result["model"] == {"name": "tiny-model", "reference": str(place.folder / "tiny-model"), "in_paper": False}
    assert result["command"] == " ".join(["python -m research", *place.arguments()])
    described = {one["name"]: one for one in result["data"]}
    assert {name: (one["role"], one["n"]) for name, one in described.items()} == {
        "pool": ("pool", 110),
        "Later": ("shifted", 40),
        "Now": ("in distribution", 60),
        "Mixed": ("shuffled", 60),
    }
    labels = [row["label"] for row in made_up("now")]
    assert described["Now"]["labels"] == described["Mixed"]["labels"] == {"0": labels.count(0), "1": labels.count(1)}
    assert described["Now"]["remark"] == "Made up." and described["Now"]["also_in_pool"] == 0
    assert (
        result["states"]["documents"] == 270
        and result["region"]["n_support"] + result["region"]["n_calibration"] == 110
    )
    assert result["classes"] == {"0": "bad", "1": "good"} and result["machine"]["device"] == "cpu"
    assert result["machine"]["threads"] == 1
    settings = result["settings"]
    assert {key: settings[key] for key in settings if key != "training"} == {
        "extraction": {},
        "studies": list(STUDIES),
        "groups": list(GROUPS),
        "n_hidden": 8,
        "alphas": [0.6, 0.7],
        "updates": {"data": None, "share": 0.5},
    }
    given = {"alpha": ALPHA, "n_filters": 16, "n_rounds": 2, "training": "sdm", "max_epochs": 3, "batch_size": 10}
    given |= {"learning_rate": 1e-2, "random_state": 0, "certification_size": None}  # the paper's protocol
    of_the_run = ("checkpoint", "verbose")
    defaults = {key: value for key, value in SDMClassifier.paper().get_params().items() if key not in of_the_run}
    assert settings["training"] == {**defaults, **given} and len(defaults) > len(given)
    loaded = SDMClassifier.load(home / "runs" / "tiny-tiny-model-full" / "model")
    assert result["seed"] == loaded.random_seed_
    studies = [section["study"] for section in result["sections"]]
    assert set(studies) == set(STUDIES)  # and no printed values: this is none of the paper's models
    assert [section["title"] for section in result["sections"]][:6] == [
        *("Main table", "Calibration set", "All estimators", "Words shuffled", "Bayesian last layers"),
        "What you would pick today",
    ]
    for section in result["sections"]:
        assert section["rows"] and {len(row) for row in section["rows"]} == {len(section["columns"])}, section["title"]
    assert {claim["key"] for claim in result["claims"]} >= {
        "a",
        "b",
        "b′",
        "c",
        "d",
        "e",
        "ablation",
        "update″",
        "alphas",
    }
    assert set(result["seconds"]) == {"hidden states", "training", "report", *STUDIES}


def test_claims_follow_from_the_records(whole):
    home, _ = whole
    result = read_result(home / "runs" / "tiny-tiny-model-full")
    verdicts = {claim["key"]: claim["held"] for claim in result["claims"]}
    records = [
        record
        for section in result["sections"]
        if section["study"] == "estimators" and section["title"] not in ("Main table", "Calibration set")
        for record in section["records"]
    ]

    def below(dataset, chosen):
        rows = [record for record in records if record["dataset"] == dataset and chosen(record)]
        assert rows
        return {
            (record["model"], record["estimator"])
            for record in rows
            if record["n_admitted"] and record["n_correct"] / record["n_admitted"] < ALPHA
        }

    def is_adapted(record):
        of_adaptor = re.match(r"tiny-model \+ (CNN|SDM|\w+ VBLL)", record["model"])
        return of_adaptor and record["estimator"] not in ("no reject", "MAPIE risk control")

    assert verdicts["a"] is (not below("Now", is_adapted))
    assert verdicts["b"] is (not below("Later", lambda one: one["estimator"] == "SDM_HR"))
    (mixed,) = [
        record
        for record in records
        if (record["dataset"], record["estimator"], record["stratum"]) == ("Mixed", "SDM_HR", "all")
    ]
    assert verdicts["c"] is (mixed["n_admitted"] / 60 <= 1 - ALPHA)
    assert verdicts["d"] is None and verdicts["e"] is True  # two rounds are too few


def test_the_tables_on_disk_are_those_of_the_result(whole):
    home, done = whole
    folder = home / "runs" / "tiny-tiny-model-full"
    result = read_result(folder)
    markdown = (folder / "tables.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", markdown, flags=re.MULTILINE) == [one["title"] for one in result["sections"]]
    n_lines = sum(line.startswith("|") for line in markdown.splitlines())
    assert n_lines == sum(len(one["rows"]) + 2 for one in result["sections"])
    lines = list(csv.DictReader(io.StringIO((folder / "tables.csv").read_text(encoding="utf-8"))))
    records = [record for one in result["sections"] for record in one.get("records", [])]
    assert len(lines) == len(records)
    for line, record in zip(lines, records, strict=True):
        assert {key: line[key] for key in record} == {
            key: "" if value is None else str(value) for key, value in record.items()
        }
    tex = (folder / "tables.tex").read_text(encoding="utf-8")
    n_tables = sum("records" in one for one in result["sections"])
    assert tex.count("\\begin{tabular}") == tex.count("\\end{tabular}") == n_tables
    for claim in result["claims"]:  # what is printed
        assert f"({claim['key']}) {claim['verdict'].upper()}: {claim['statement']}" in done.stdout


def test_again_it_extracts_and_trains_nothing_and_says_the_same(whole, place, run, no_pictures, tmp_path, monkeypatch):
    straight, _ = whole
    home = shutil.copytree(straight, tmp_path / "again")  # the whole run stays as it was
    folder = home / "runs" / "tiny-tiny-model-full"
    first = read_result(folder)
    quoting = (folder / "report.html").read_text(encoding="utf-8")
    assert any(text in quoting for text in place.texts())
    monkeypatch.chdir(home)
    monkeypatch.setenv("TORCHSDM_CACHE", str(home / "cache"))
    monkeypatch.setattr(HiddenStateExtractor, "extract", lambda *_, **__: pytest.fail("extracted again"))
    monkeypatch.setattr("torchsdm.training.learner.SDMLearner._steps", lambda *_, **__: pytest.fail("trained again"))
    done = run(*place.arguments("--json", "--no-texts"))
    assert done.returncode == 0, done.stderr
    printed = strict(done.stdout)
    assert printed == read_result(folder)
    assert without_times(printed, command=False) == without_times(first, command=False)
    assert printed["seconds"]["hidden states"] == first["seconds"]["hidden states"]
    silent = (folder / "report.html").read_text(encoding="utf-8")
    assert [text for text in place.texts() if text in silent] == []
    assert "pool-1" in silent and len(silent) > 10_000  # ids are there


def test_killed_at_any_moment_it_goes_on_to_the_same_result(whole, place, run, no_pictures, tmp_path):
    home, _ = whole
    folder = tmp_path / "runs" / "tiny-tiny-model-full"
    moments = [
        (folder / "training" / "current-000.safetensors", folder / "training" / "round-001.safetensors"),
        (folder / "networks" / "vbll-discriminative-1" / "round-000.safetensors", folder / "result.json"),
    ]
    for begun, finished in moments:
        running = WarmProcess(RESEARCH, *place.arguments(), cwd=tmp_path, env=place.environment(tmp_path / "cache"))
        while running.poll() is None and not begun.exists():
            time.sleep(0.0005)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        assert begun.exists() and not finished.exists(), "it was not interrupted where it should be"
    done = run(*place.arguments())  # in another process than those that were killed
    assert done.returncode == 0, done.stderr
    straight = home / "runs" / "tiny-tiny-model-full"
    assert without_times(read_result(folder), command=False) == without_times(read_result(straight), command=False)
    for name in ("tables.md", "tables.tex", "tables.csv"):
        assert (folder / name).read_bytes() == (straight / name).read_bytes(), name
    a, b = (SDMClassifier.load(path / "model") for path in (folder, straight))
    np.testing.assert_array_equal(a.support_.exemplars, b.support_.exemplars)


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_settings_variants_and_names(run, place, tmp_path):
    more = ("--variant", "small", "--set", "training.alpha=0.8", "--set", 'studies=["sample size", "alphas"]')
    done = run(*place.arguments(*more, "--name", "My model", "--json"))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == read_result(tmp_path / "runs" / "tiny-tiny-model-small")
    assert (result["alpha"], result["settings"]["training"]["alpha"], result["variant"]) == (0.8, 0.8, "small")
    assert [one["n"] for one in result["data"]] == [60, 20, 20, 20]
    assert {one["study"] for one in result["sections"]} == {"sample size", "alphas"}
    assert {record["model"] for one in result["sections"] for record in one.get("records", [])} == {"My model + SDM"}
    assert not (tmp_path / "runs" / "tiny-tiny-model-small" / "report.html").exists()
    # Fewer of the same documents are the first of more, so that nothing but the rest is extracted for these.
    fewer = run(*place.arguments("--variant", "small", "-o", "elsewhere", "--run", "mine", "--set", "tests.Now.n=10"))
    assert fewer.returncode == 0, fewer.stderr
    described = {one["name"]: one["n"] for one in read_result(tmp_path / "elsewhere" / "mine")["data"]}
    assert described == {"pool": 60, "Now": 10, "Later": 20, "Mixed": 20}
    # A page on the runs in a folder, those of one's own names too.
    page = run("--page", "page.md", "-o", "runs")
    assert page.returncode == 0 and page.stdout == ""
    assert "\n## Run tiny-tiny-model-small\n" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_a_page_on_a_run_with_its_report(whole, run, tmp_path):
    home, _ = whole
    done = run("--page", tmp_path / "docs" / "results.md", "-o", home / "runs")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    result = read_result(home / "runs" / "tiny-tiny-model-full")
    assert "[report](results/tiny-tiny-model-full.html)" in text
    assert (tmp_path / "docs" / "results" / "tiny-tiny-model-full.html").stat().st_size > 100_000
    for claim in result["claims"]:
        assert f"({claim['key']}) {claim['statement']} **{claim['verdict']}**" in text
    tables = [block for block in re.split(r"\n\n", text) if block.startswith("|")]
    assert len(tables) > 10
    for block in tables:
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_a_report_of_an_earlier_run_does_not_pass_for_that_of_this_one(run, place, tmp_path):
    # Another alpha or other studies go on in the same folder; a run without the study of estimators has no report.
    folder = tmp_path / "runs" / "tiny-tiny-model-small"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<p>at another alpha</p>", encoding="utf-8")
    assert run(*place.arguments("--variant", "small", "--page", "page.md")).returncode == 0
    assert "[report]" not in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_the_list_has_every_experiment(run):
    done = run("--list")
    assert done.returncode == 0
    for name in experiment_names():
        assert re.search(rf"^{name} +\w", done.stdout, flags=re.MULTILINE), name


def test_what_is_shown_is_the_experiment(run, tmp_path):
    for name in experiment_names():
        done = run("--show", name)
        assert done.returncode == 0 and done.stderr == ""
        path = tmp_path / f"{name}.toml"
        path.write_text(done.stdout, encoding="utf-8")
        mine = load_experiment(str(path))
        assert replace(mine, folders=()) == load_experiment(name)


def test_what_is_shown_runs_as_a_file_of_ones_own(run, place, tmp_path):
    (tmp_path / "mine.toml").write_text(run("--show", "factcheck").stdout, encoding="utf-8")
    for name, file in (("pool", "pool"), ("test", "later")):
        write_jsonl(tmp_path / "factcheck" / f"{name}.jsonl", made_up(file))
    settings = {"n_filters": 8, "n_rounds": 1, "training": "sdm", "max_epochs": 1, "learning_rate": 1e-2}
    more = [part for key, value in settings.items() for part in ("--set", f"training.{key}={value}")]
    more += ["--set", 'studies=["sample size"]']
    done = run("mine.toml", "-m", place.folder / "tiny-model", *more)
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "runs" / "mine-tiny-model-full")
    assert {one["name"]: one["n"] for one in result["data"]} == {"pool": 110, "Factcheck": 40, "FactcheckShuffled": 40}
    (shuffled,) = [one for one in result["data"] if one["name"] == "FactcheckShuffled"]
    assert shuffled["labels"] == {"0": 40}


# --- What is wrong ----------------------------------------------------------------------------------------------------


def test_an_unknown_experiment_in_a_process_of_its_own(tmp_path):
    done = warm_process.run(RESEARCH, "facts", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("research: There is no experiment 'facts'. Choose one of ablation, ")
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Name an experiment"),
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["BROKEN"], "is not valid TOML"),
        (["TINY"], "needs a language model: --language-model NAME"),
        (["TINY", "-m", "no/such-model"], "'no/such-model' is neither a directory"),
        (["TINY", "-m", "MODEL", "--variant", "tiny"], "'variant' of experiment"),
        (["TINY", "-m", "MODEL", "--set", "training.alfa=0.9"], "there is no setting 'alfa'"),
        (["TINY", "-m", "MODEL", "--set", "training.alpha"], "--set takes KEY=VALUE"),
        (["TINY", "-m", "MODEL", "--set", "training.alpha=0.05"], "alpha is target accuracy"),
        (["TINY", "-m", "MODEL", "--data", "nowhere"], "nowhere is not a folder of data sets"),
        (
            ["TINY", "-m", "MODEL", "--set", "tests.Later.file=none"],
            "The data set 'Later' was not found: none is not in",
        ),
        (["TINY", "-m", "MODEL", "--set", "tests.Later.relabel=7"], "tests.Later has no label of the pool"),
        (["TINY", "-m", "MODEL", "-o", "FILE"], "file/tiny-tiny-model-full cannot be written"),
        (["--page", "page.md"], "has no finished run"),
        (["--show"], "Name"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, expected, run, place, tmp_path):
    (tmp_path / "broken.toml").write_text("title = ", encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    named = {"TINY": place.file, "MODEL": place.folder / "tiny-model", "BROKEN": "broken.toml", "FILE": "file"}
    done = run(*(named.get(argument, argument) for argument in arguments))
    assert done.returncode == 1 and done.stdout == ""
    assert expected in done.stderr and done.stderr.startswith("research: ")
    steps = [line for line in done.stderr.splitlines() if line.startswith("research: Hidden states of ")]
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1 + len(steps), done.stderr


def test_nothing_to_add_is_said_in_words_of_the_experiment(run, place):
    more = ("--variant", "small", "--set", 'studies=["updatability"]', "--set", "updates.share=0.01")
    done = run(*place.arguments(*more))
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "research: updates.share = 0.01 of 20 adds 0."


def test_a_folder_of_another_fit_is_refused_with_the_option_that_helps(run, place):
    small = ("--variant", "small")
    assert run(*place.arguments(*small)).returncode == 0
    done = run(*place.arguments(*small, "--set", "training.n_filters=8"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "research: runs/tiny-tiny-model-small has a run with other data or settings, or a damaged one. "
        "Remove it, or give this run its own folder: --run NAME. ("
    )
    helped = run(*place.arguments(*small, "--set", "training.n_filters=8", "--run", "other"))
    assert helped.returncode == 0, helped.stderr


def test_without_data_and_network_the_message_is_clear_and_quick(run, place):
    begin = time.monotonic()
    done = run("factcheck", "-m", place.folder / "tiny-model")
    assert time.monotonic() - begin < 20
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "The data set 'pool' was not found" in done.stderr and "--data or TORCHSDM_DATA" in done.stderr
    assert "pminervini/true-false" in done.stderr and "Traceback" not in done.stderr
