"""The page of results says what the result files say, and the site shows all of their tables."""

from __future__ import annotations

import json
import re

import pytest

from research import publish_results as publish


def test_the_page_and_its_picture_say_what_the_files_say():
    results = publish.read_results()
    page = publish.PAGE.read_text(encoding="utf-8")
    assert results and page == publish.filled(page, results)
    assert publish.PICTURE.read_text(encoding="utf-8") == publish.draw(results)
    named = re.findall(r"<!-- result: (\S+) -->", page)
    assert sorted(named) == sorted(results)


def test_files_are_small_and_say_how_they_are_made():
    for path in publish.FOLDER.iterdir():
        assert path.suffix == ".json" and path.stat().st_size < 100_000, path
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["command"].startswith(("sdm ", "make ", "python ")) and result["machine"]
        sets = {one["name"] for one in result["data"]}
        assert {point["dataset"] for point in result["points"]} <= sets
        assert set(result.get("shown", [])) <= {point["rule"] for point in result["points"]}


def test_a_new_result_needs_a_place_on_the_page():
    results = publish.read_results()
    with pytest.raises(SystemExit, match="has no section for mine"):
        publish.filled(publish.PAGE.read_text(encoding="utf-8"), {"mine": next(iter(results.values()))})


@pytest.fixture
def run():
    """A run as result.json has it: two classes, two rules, one of which admits nothing."""

    def record(estimator, model, stratum, label, n_total, n_admitted, n_correct):
        accuracy = n_correct / n_admitted if n_admitted else None
        share = n_admitted / 200
        names = {"dataset": "News", "model": model, "estimator": estimator, "alpha": 0.9}
        return {**names, "stratum": stratum, "label": label, "share": share, "accuracy": accuracy, "n_total": n_total}

    records = [
        record("softmax ≥ α", "LM + CNN", "class", 0, 120, 60, 57),
        record("softmax ≥ α", "LM + CNN", "class", 1, 80, 40, 30),
        record("softmax ≥ α", "LM + CNN", "all", None, 200, 100, 87),
        record("SDM_HR", "LM + SDM", "all", None, 200, 0, 0),
        record("temperature ≥ α", "LM + CNN", "all", None, 200, 1, 1),
    ]
    table = {"title": "Main table", "text": "", "columns": ["a|b"], "rows": [["<0.01"]], "on_page": True}
    hidden = {"title": "Hidden", "text": "", "columns": ["x"], "rows": [["1"]], "on_page": False, "records": []}
    return {
        "torchsdm": "1.0",
        "title": "Posts",
        "model": {"name": "LM", "reference": "package:lm"},
        "alpha": 0.9,
        "command": "python -m research posts",
        "machine": {"threads": 1, "processor": "x86_64", "torch": "2", "python": "3.12"},
        "region": {"explanation": "No region."},
        "states": {"dimensions": 384, "tokens": 1000, "documents": 50, "documents_cut": 3},
        "seconds": {"training": 90.0},
        "data": [
            {"name": "pool", "role": "pool", "n": 500, "remark": "", "source": "x"},
            {"name": "News", "role": "shifted", "n": 200, "remark": "new", "source": "y"},
        ],
        "claims": [
            {"key": "a", "statement": "It holds.", "held": True, "evidence": ["1 < 2"], "verdict": "held"},
            {"key": "b", "statement": "It fails.", "held": False, "evidence": [], "verdict": "not held"},
        ],
        "sections": [{**table, "records": records}, hidden],
    }


def test_a_command_says_nothing_of_the_machine(run):
    run["command"] = "python -m research posts -m /models/big/lm.gguf --run a -o /home/me/runs --no-texts"
    run["model"]["reference"] = "/models/big/lm.gguf"
    assert publish.kept(run)["command"] == "python -m research posts -m lm.gguf --run a --no-texts"


def test_certified_rules_are_shown_by_their_names(run):
    (table, *_) = run["sections"]
    certified = {**table["records"][-1], "model": "LM + SDM", "estimator": "certified"}
    table["records"] += [certified, {**certified, "model": "LM", "estimator": "certified softmax"}]
    section = publish.section("posts", publish.kept(run))
    assert "| the paper's region | own probability, certified | SDM, certified |" in section


def test_a_run_becomes_a_file_a_section_and_a_page(run):
    result = json.loads(json.dumps(publish.kept(run)))
    assert result["points"][0] == {
        "dataset": "News",
        "rule": "CNN: softmax ≥ α",
        "share": 0.5,
        "accuracy": 0.87,
        "lowest": 0.75,
    }
    section = publish.section("posts", result)
    row = "| News, shifted | 200 | 50 %; 0.87, lowest 0.75 | &lt; 1 %; 1.00, lowest 1.00 | admits nothing |"
    assert row in section and "python -m research posts" in section and "1 held; not held: (b)." in section
    assert "| pool" not in section and "(../research/results/posts.json)" in section
    page = publish.whole_page(result)
    assert "| a\\|b |" in page and "| &lt;0.01 |" in page and "Hidden" not in page
    assert "(b) It fails. **not held**" in page and "- 1 &lt; 2" in page and "training 1.5" in page
    assert "3 of 50 texts" in page and "No region." in page
    picture = publish.draw({"posts": result})
    assert picture.count("<circle") == 2 + 3 and "News, LM (shifted)" in picture  # admitting rules, and the legend
