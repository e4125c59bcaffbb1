"""The page of results: whole tables, links that lead somewhere, verdicts as they were, and what cannot be read."""

from __future__ import annotations

import copy
import json
import re
from urllib.parse import unquote

import pytest

from research.experiments.results_page import read_results, results_page, write_results_page
from torchsdm.errors import InvalidInputError

CLAIMS = {"a": "held", "b": "not held", "d": "not evaluated"}


def made_up(accuracy=0.9, q_min=20.0, alpha=0.95, title="Truth of statements", **changes):
    """A result as ``run_experiment`` writes it."""
    result = {
        "torchsdm": "0.1.0",
        "experiment": "factcheck",
        "title": title,
        "variant": "full",
        "model": {"name": "LM|7b", "reference": "package:lm", "in_paper": False},
        "command": "python -m research factcheck -m package:lm",
        "alpha": alpha,
        "classes": {"0": "false", "1": "true"},
        "seed": 209652396,
        "settings": {
            "training": {"n_rounds": 4, "max_epochs": 40, "alpha": alpha, "n_filters": 1000, "random_state": 0},
            "extraction": {},
            "studies": ["estimators", "alphas"],
            "groups": ["cnn", "sdm"],
            "n_hidden": 795,
            "alphas": [0.9],
            "updates": {"data": None, "share": 0.5},
        },
        "prompt": {"template": "{document}"},
        "data": [
            {"name": "pool", "role": "pool", "source": "x", "n": 6015, "remark": "without <70> | copies"},
            {"name": "Factcheck", "role": "shifted", "source": "y", "n": 245, "remark": ""},
        ],
        "states": {"documents": 6260, "tokens": 123456, "documents_cut": 3, "seconds": 60.0, "dimensions": 1152},
        "region": {
            "found": q_min is not None,
            "min_rescaled_similarity": q_min,
            "class_counts": [10, 10],
            "calibration_accuracy": accuracy,
            "n_support": 3007,
            "n_calibration": 3008,
            "explanation": None if q_min is not None else "No high-reliability region at alpha=0.95.",
        },
        "sections": [
            {
                "study": study,
                "title": name,
                "text": "A sentence." if name == "Calibration set" else "",
                "on_page": name != "All estimators",
                "columns": ["dataset", "y=a|b", "share"],
                "rows": [["Factcheck", "0.95", "<0.01"], ["Fact\ncheck", "R", "0.00"]],
            }
            for study, name in (
                ("estimators", "Main table"),
                ("estimators", "Calibration set"),
                ("estimators", "All estimators"),
                ("alphas", "Regions"),
                ("paper", "Compared with the paper"),
            )
        ],
        "claims": [
            {
                "key": key,
                "statement": f"Statement of {key} | more.",
                "held": {"held": True, "not held": False}.get(verdict),
                "verdict": verdict,
                "evidence": [f"evidence of {key}", "and more"],
            }
            for key, verdict in CLAIMS.items()
        ],
        "seconds": {"hidden states": 600.0, "training": 1200.0, "estimators": 90.0, "report": 30.0},
        "machine": {"python": "3.12.0", "torch": "2.9.0", "threads": 2, "processor": "x86_64", "device": "cpu"},
    }
    return json.loads(json.dumps({**result, **changes}))


@pytest.fixture
def results():
    features = made_up(0.8, None, title="By features", states=None, command="")
    features["claims"][1] |= {"held": True, "verdict": "held"}
    features["claims"].append(
        {"key": "e", "statement": "Argmax.", "held": True, "verdict": "held", "evidence": ["0 differ"]}
    )
    return {
        "factcheck-Phi-3.5_mini-full": made_up(),
        "features-full": features,
        "sentiment-LM-quick": made_up(0.95, 10.0, alpha=0.9, title="Sentiment"),
    }


@pytest.fixture
def page(results):
    return results_page(results, {"features-full": "results/features-full.html"})


def cells(line):
    """Cells of a line of a table in Markdown."""
    assert line.startswith("| ") and line.endswith(" |"), line
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(page):
    """Tables by the heading they stand under; every one is checked to be a table."""
    found, heading, block = [], "", []
    for line in [*page.splitlines(), ""]:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("|"):
            block.append(cells(line))
        elif block:
            assert len({len(row) for row in block}) == 1, (heading, block)
            assert set(block[1]) == {"---"} and len(block) > 2, heading
            found.append((heading, block[0], block[2:]))
            block = []
    return found


def table(page, heading):
    return next((columns, rows) for name, columns, rows in tables(page) if name == heading)


# --- The page ---------------------------------------------------------------------------------------------------------


def test_every_table_is_whole_and_set_apart(page):
    assert len(tables(page)) == 2 + 3 * (1 + 4)
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|") and not lines[number - 1].startswith("|"):
            assert lines[number - 1] == "", "a table needs an empty line before it"
    assert "\n\n\n" not in page and page.endswith("\n") and page.startswith("# Results\n")


def github_anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def mkdocs_anchor(heading):
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@pytest.mark.parametrize("anchor", [github_anchor, mkdocs_anchor])
@pytest.mark.parametrize("run", ["factcheck-Phi-3.5_mini-full", "features-full", "A.B_c", "my run (2), v1.1"])
def test_links_lead_to_headings(run, anchor):
    page = results_page({"before": made_up(), run: made_up()}, {})
    headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    (link,) = [re.fullmatch(r"\[.*\]\(#(.*)\)", row[0])[1] for row in table(page, "Runs")[1] if f"[{run}]" in row[0]]
    assert [name for name in headings if anchor(name) == link] == [f"Run {run}"]


@pytest.mark.parametrize("run", ["Claims", "Runs", "Results", "Main table"])
def test_a_run_may_be_called_as_a_part_of_the_page(run):
    page = results_page({run: made_up()}, {})
    headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    (link,) = [re.fullmatch(r"\[.*\]\(#(.*)\)", row[0])[1] for row in table(page, "Runs")[1]]
    assert [name for name in headings if mkdocs_anchor(name) == link] == [f"Run {run}"]


def test_runs_are_told_apart_by_their_numbers(page):
    columns, rows = table(page, "Runs")
    assert columns[:7] == ["run", "model", "pool", "rounds × epochs", "α", "calibration accuracy", "q′_min"]
    first, second, third = rows
    assert first == [
        "[factcheck-Phi-3.5_mini-full](#run-factcheck-phi-35_mini-full)",
        *("LM\\|7b", "6,015", "4 × 40", "0.95", "0.900", "20", "10.0", "20.0", "2.0", "–"),
    ]
    assert second[5:7] == ["0.800", "∞"] and second[-1] == "[report](results/features-full.html)"
    assert third[4:7] == ["0.9", "0.950", "10"]


def test_verdicts_are_those_of_the_runs(page, results):
    columns, rows = table(page, "Claims")
    assert columns == ["claim", *results]
    assert [row[0] for row in rows] == [*(f"({key}) Statement of {key} \\| more." for key in CLAIMS), "(e) Argmax."]
    assert [row[1:] for row in rows] == [
        ["held", "held", "held"],
        ["**not held**", "held", "**not held**"],
        ["–", "–", "–"],
        ["–", "held", "–"],
    ]
    assert page.count("(b) Statement of b | more. **not held**\n\n- evidence of b\n- and more\n") == 2


def test_each_run_has_its_part(page):
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[3:]
    assert [part.partition("\n")[0] for part in parts] == [
        "Run factcheck-Phi-3.5_mini-full",
        "Run features-full",
        "Run sentiment-LM-quick",
    ]
    first, second, _ = parts
    assert "```\npython -m research factcheck -m package:lm\n```" in first and "```" not in second
    assert "States with 1,152 dimensions from 123,456 tokens; 3 of 6,260 texts" in first and "dimensions" not in second
    assert "No high-reliability region" in second and "No high-reliability region" not in first
    shown = re.findall(r"^### (.*)$", first, flags=re.MULTILINE)
    assert shown == ["Main table", "Calibration set", "Regions", "Compared with the paper"]
    assert (
        "### Calibration set\n\nA sentence.\n\n|" in first
        and "&lt;0.01" in first
        and "without &lt;70> \\| copies" in first
    )
    assert "[report](results/features-full.html)" in second and "[report]" not in first


def test_evidence_is_text_and_not_markup():
    # Names of data sets and models are a user's own, and texts of the study may hold any character.
    result = made_up()
    result["claims"][0]["evidence"] = ["a|b, <script>alert(1)</script>: x", "two\nlines\n\n# no heading", "x < y"]
    page = results_page({"mine": result}, {})
    assert (
        "- a\\|b, &lt;script>alert(1)&lt;/script>: x\n- two lines # no heading\n- x &lt; y\n" in page
        and "<script" not in page
        and "\n# no heading" not in page
    )
    across = results_page({f"run <b>{n}|": made_up(0.9 - n / 10, 20.0 + n) for n in range(4)}, {})
    assert "- run &lt;b>3\\|: accuracy 0.6000, q′_min 23\n" in across


def across(page):
    """The verdict of claim (d) over runs and its evidence."""
    verdict, evidence = re.search(
        r"^Claim \(d\) across these runs: \*\*(.*)\*\*\.\n\n((?:- .*\n)+)", page, re.MULTILINE
    ).groups()
    return verdict, [line.removeprefix("- ") for line in evidence.splitlines()]


def test_claim_d_is_looked_at_across_runs():
    runs = {"one": made_up(0.9, 20.0), "two": made_up(0.8, None), "three": made_up(0.95, 10.0)}
    told = ["one: accuracy 0.9000, q′_min 20", "two: accuracy 0.8000, q′_min ∞", "three: accuracy 0.9500, q′_min 10"]
    assert across(results_page(runs, {})) == ("not evaluated", ["needs 4 rounds or runs, has 3", *told])
    page = results_page({**runs, "four": made_up(0.7, 90.0)}, {})  # of six pairs, one goes the other way
    chance = "in 17% of all orders τ is no larger"  # 4 of 24
    assert across(page) == ("held", ["τ = -0.67 over 4", chance, *told, "four: accuracy 0.7000, q′_min 90"])
    page = results_page({**runs, "four": made_up(0.99, 90.0), "five": made_up(0.999, 99.0)}, {})
    verdict, evidence = across(page)  # five pairs for it, five against it
    assert verdict == "not held" and evidence[0] == "τ = 0.00 over 5"


def test_the_same_classifier_under_several_names_is_one_point_of_claim_d():
    # ablation, alphas, ensemble, sample-size and updatability train the very classifier of factcheck.
    one = {name: made_up(0.9, 20.0) for name in ("factcheck-full", "ablation-full", "alphas-full", "ensemble-full")}
    page = results_page({**one, "sentiment-full": made_up(0.8, 30.0)}, {})
    assert across(page) == (
        "not evaluated",
        [
            "needs 4 rounds or runs, has 2",
            "factcheck-full: accuracy 0.9000, q′_min 20",
            "sentiment-full: accuracy 0.8000, q′_min 30",
        ],
    ), "two classifiers are not four"


def test_classifiers_without_a_region_are_told_apart_by_their_accuracy():
    page = results_page({"a": made_up(0.9, None), "b": made_up(0.8, None), "c": made_up(0.9, None)}, {})
    assert across(page)[1][0] == "needs 4 rounds or runs, has 2"


def test_claim_d_compares_runs_of_one_alpha():
    # q′_min of a smaller alpha is smaller by itself.
    of_most = {f"run {n}": made_up(0.9 - n / 10, 20.0 + n) for n in range(4)}
    others = {"low": made_up(0.1, 1.0, alpha=0.6), "lower": made_up(0.05, 0.5, alpha=0.5)}
    for runs in ({**others, **of_most}, {**of_most, **others}):
        verdict, evidence = across(results_page(runs, {}))
        assert verdict == "held" and evidence[0] == "τ = -1.00 over 4"
        assert [line.partition(":")[0] for line in evidence[2:]] == list(of_most)


def test_defaults_of_training_need_not_be_in_the_result():
    # A file of one's own may leave n_rounds or max_epochs to their defaults: result.json then has none.
    result = made_up()
    result["settings"]["training"] = {"alpha": 0.95}
    columns, rows = table(results_page({"mine": result}, {}), "Runs")
    assert len(rows[0]) == len(columns) and rows[0][3] == "? × ?"


def test_several_machines_are_not_told_as_one(results):
    other = made_up(machine={"python": "3.13.1", "torch": "2.10.0", "threads": 64, "processor": "aarch64"})
    page = results_page({**results, "other": other}, {})
    first = "2 threads of x86_64, device cpu, torch 2.9.0, Python 3.12.0"
    assert f"\n\nRun on {first}; and on 64 threads of aarch64, device cpu, torch 2.10.0, Python 3.13.1.\n\n" in page
    assert f"\n\nRun on {first}.\n\n" in results_page(results, {})
    with_card = made_up(machine={**results["features-full"]["machine"], "device": "cuda:0"})
    assert "device cuda:0, torch 2.9.0" in results_page({"one": with_card}, {})


def test_results_of_earlier_versions_have_the_same_page(results, page):
    old = copy.deepcopy(results)
    for result in old.values():
        result["model"]["is_paper's"] = result["model"].pop("in_paper")
        for section in result["sections"]:
            del section["on_page"]
        for claim in result["claims"]:
            claim["verdict"] = claim["verdict"].replace("not evaluated", "not looked at")
    assert results_page(old, {"features-full": "results/features-full.html"}) == page


def test_a_section_says_itself_whether_it_is_on_the_page():
    result = made_up()
    for section in result["sections"]:
        section["on_page"] = not section["on_page"]
    shown = re.findall(r"^### (.*)$", results_page({"mine": result}, {}), flags=re.MULTILINE)
    assert shown == ["All estimators"]


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(results, tmp_path):
    folder = tmp_path / "runs"
    for run, result in results.items():
        (folder / run).mkdir(parents=True)
        (folder / run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (folder / "features-full" / "report.html").write_text("<p>report</p>", encoding="utf-8")
    (folder / "unfinished").mkdir()
    (folder / "note.txt").write_text("not a run", encoding="utf-8")
    return folder


def test_results_are_read_by_run(runs, results):
    assert read_results(runs) == results and list(read_results(runs)) == sorted(results)


def test_the_page_and_its_reports_are_written(runs, results, tmp_path):
    page = tmp_path / "docs" / "results.md"
    write_results_page(page, runs)
    assert sorted(path.name for path in (tmp_path / "docs").rglob("*")) == [
        "features-full.html",
        "results",
        "results.md",
    ]
    text = page.read_text(encoding="utf-8")
    assert text == results_page(read_results(runs), {"features-full": "results/features-full.html"})
    for link in re.findall(r"\[report\]\(([^)]*)\)", text):
        assert (page.parent / link).read_text(encoding="utf-8") == "<p>report</p>"
    write_results_page(page, runs)  # again, over itself
    assert page.read_text(encoding="utf-8") == text


def test_links_to_reports_are_quoted(runs, tmp_path):
    name = "my run (2) #1, 50 %?"
    (runs / "features-full").rename(runs / name)
    page = tmp_path / "all results.md"
    write_results_page(page, runs)
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\[report\]\(([^)]*)\)", text)
    assert links == ["all%20results/my%20run%20%282%29%20%231%2C%2050%20%25%3F.html"] * 2
    assert (tmp_path / unquote(links[0])).read_text(encoding="utf-8") == "<p>report</p>"


def test_a_folder_without_a_finished_run(tmp_path):
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    for folder in (tmp_path / "runs", tmp_path / "nowhere"):
        with pytest.raises(InvalidInputError, match=r"has no finished run: none of its folders has a result\.json"):
            read_results(folder)
        with pytest.raises(InvalidInputError, match="has no finished run"):
            write_results_page(tmp_path / "page.md", folder)
    assert not (tmp_path / "page.md").exists()


DAMAGED = [b'{"title": "cut', b"", b"\xff\xfe", b"[]", b"null", b"{}", b'{"title": "T", "machine": {}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_result_is_named(content, runs, tmp_path):
    (runs / "sentiment-LM-quick" / "result.json").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"sentiment-LM-quick/result\.json"):
        write_results_page(tmp_path / "page.md", runs)
    assert not (tmp_path / "page.md").exists()


def test_a_page_that_cannot_be_written_is_named(runs, tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"page\.md cannot be written"):
        write_results_page(tmp_path / "file" / "page.md", runs)


def test_results_are_not_changed_by_the_page(results):
    before = copy.deepcopy(results)
    results_page(results, {})
    assert results == before
