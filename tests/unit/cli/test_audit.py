"""``sdm audit`` on states and on texts: what it prints, what it writes, and what it refuses before it embeds."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from torchsdm import audit_labels, read_states
from torchsdm.cli.command import sdm
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import HiddenStateExtractor

WRONG = [4, 31, 77]


def run(*words):
    return CliRunner().invoke(sdm, ["audit", *map(str, words)], catch_exceptions=False)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A file of states of two classes, three of them with the wrong label."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    X = (rng.normal(size=(120, 5)) + 5 * y[:, None]).astype(np.float32)
    y[WRONG] = 1 - y[WRONG]
    path = tmp_path_factory.mktemp("audit") / "states.npz"
    np.savez(path, hidden_states=X, labels=y, ids=np.array([f"s{row}" for row in range(120)]))
    return path


def test_it_prints_the_wrong_labels_and_what_to_do(states):
    said = run(states, "--top", 3).stdout
    assert said.startswith("30 rows set aside, to certify with. 90 rows judged")
    judged = set(WRONG) - set(audit_labels(read_states(states)).set_aside.tolist())
    assert len(judged) == 2 and all(f"row {row + 1}, id 's{row}': " in said for row in judged)
    assert said.count("contradiction") == 2 and "is a suspicion" in said and "'label' in DATA" in said


def test_json_is_the_library_s_audit(states):
    result = json.loads(run(states, "--json", "--top", 2, "-k", 9, "--folds", 4, "--seed", 5).stdout)
    audit = audit_labels(read_states(states), n_neighbors=9, n_folds=4, random_state=5)
    assert result["rows"] == [one.to_dict() for one in audit.contradicted[:2]]
    expected = {
        "judged": 90,
        "set_aside": 30,
        "contradicted": len(audit.contradicted),
        "k": 9,
        "folds": 4,
        "seed": 5,
        "output": None,
    }
    assert {name: result[name] for name in expected} == expected


def test_a_file_has_all_rows_most_contradicted_first(states, tmp_path, monkeypatch):
    monkeypatch.setattr("torchsdm.application.audit._ROWS_AT_ONCE", 50)
    said = run(states, "-o", tmp_path / "all.jsonl").stdout
    audit = audit_labels(read_states(states))
    lines = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[:90] == [{**one.to_dict(), "set_aside": False} for one in audit.rows]
    assert [(row["row"], row["set_aside"], row["suggested"]) for row in rows[90:]] == [
        (row, True, None) for row in audit.set_aside.tolist()
    ]
    assert f"{tmp_path / 'all.jsonl'} has all rows" in said
    run(states, "-o", tmp_path / "all.csv")
    with open(tmp_path / "all.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table[:90]] == [one.id for one in audit.rows] and len(table) == 120
    assert json.loads(table[0]["neighbors"]) == audit.rows[0].to_dict()["neighbors"]


def test_texts_are_checked_before_they_are_embedded(tmp_path, monkeypatch):
    rows = [{"text": f"text {row}", "label": "rare" if row < 3 else "common"} for row in range(40)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def embed(*_, **__):
        raise AssertionError("embedded")

    monkeypatch.setattr(HiddenStateExtractor, "labelled_states", embed)
    with pytest.raises(InvalidInputError, match="Got 3 of class 'rare'"):
        run(path, "-m", "package:anything")
    with pytest.raises(InvalidInputError, match="must end in one of"):
        run(path, "-m", "package:anything", "-o", tmp_path / "list.txt")
    rows = [{**row, "label": number % 2} for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(AssertionError, match="embedded"):
        run(path, "-m", "package:anything")


@pytest.mark.parametrize("option", [("--folds", 1), ("--top", 0), ("--k", 0)])
def test_a_number_out_of_range_is_a_wrong_command_line(states, option):
    assert run(states, *option).exit_code == 2
