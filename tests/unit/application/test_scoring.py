"""Decisions block by block, kept and resumed: what is left of an interrupted job, and what it notices.

The cluster itself is in tests/cluster; here the blocks are answered by this process.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import chain

import numpy as np
import pandas
import pytest

from small import small_settings
from torchsdm import DriftGuard, SDMClassifier
from torchsdm.application import SavedModel, saved_model, scoring
from torchsdm.application.scoring import Scores, remove_finished, score_blocks
from torchsdm.data import Columns
from torchsdm.errors import CheckpointError, InvalidInputError
from torchsdm.trust import SourceGuards

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

N, WIDTH = 50, 6
LABELS = np.arange(N) % 2
STATES = (np.random.default_rng(0).normal(size=(N, WIDTH)) + 2.0 * LABELS[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    quick = small_settings(alpha=0.6, n_filters=4, max_epochs=2)
    SDMClassifier(**quick).fit(STATES, LABELS).save(path)
    return SavedModel.load(path)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Blocks of eight rows, answered by this process; the numbers of those that were are kept."""
    answered = []

    def in_order(backend, make, pieces, *, device=None):
        answer = make()
        for piece in pieces:
            answered.append(piece.numbers)
            yield answer(piece)

    monkeypatch.setattr(scoring, "map_in_order", in_order)
    monkeypatch.setattr(saved_model, "BLOCK", 8)
    return answered


def lines(first, stop):
    rows = ({"id": f"r{row}", "hidden_states": STATES[row].tolist()} for row in range(first, stop))
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.fixture
def data(tmp_path):
    """Fifty rows in four files, the third with two rows more that cannot be used."""
    folder = tmp_path / "data"
    (folder / "day=2").mkdir(parents=True)
    (folder / "a.jsonl").write_text(lines(10, 23), encoding="utf-8")
    (folder / "b.jsonl").write_text(lines(23, 24), encoding="utf-8")
    (folder / "c.jsonl").write_text("{broken\n" + lines(24, 40) + lines(12, 13), encoding="utf-8")
    (folder / "day=2" / "d.jsonl").write_text(lines(40, N), encoding="utf-8")
    (folder / "0.jsonl").write_text(lines(0, 10), encoding="utf-8")
    (folder / "_SUCCESS").touch()
    return folder


def score(model, source, folder=None, cluster="here", **settings):
    scores = Scores()
    options = {"k": 1, "backend": cluster, "folder": folder, **settings}
    return list(chain.from_iterable(score_blocks(model, str(source), Columns(), scores, **options))), scores.bad


def alone(model, source, **settings):
    rows, bad = score(model, source, cluster=None, **settings)
    return json.loads(json.dumps(rows)), bad


def interrupted(model, source, folder, n_blocks):
    """A job that ends after some blocks."""
    rows = score_blocks(model, str(source), Columns(), Scores(), k=1, backend="here", folder=folder)
    for _ in range(n_blocks):
        next(rows)
    rows.close()
    assert len(list(folder.glob("block-*.jsonl"))) == n_blocks


def test_a_folder_is_scored_like_one_file(model, data, tmp_path, here):
    rows, bad = score(model, data)
    assert [row["id"] for row in rows if row["lane"] != "rejected"] == [f"r{number}" for number in range(N)]
    assert [(row["id"], row["line"]) for row in rows[22:26]] == [("r22", 13), ("r23", 1), (24, 1), ("r24", 2)]
    assert {number: str(one) for number, one in bad.items()} == {
        24: "c.jsonl line 1: not valid JSON (Expecting property name enclosed in double quotes)",
        41: "c.jsonl line 18: duplicate id",
    }
    assert (rows, bad) == alone(model, data) == score(model, data / "**" / "*.jsonl")
    assert [len(numbers) for numbers in here[:7]] == [8, 8, 8, 8, 8, 8, 2]  # files do not cut blocks
    parts = [data / name for name in ("0.jsonl", "a.jsonl", "b.jsonl", "c.jsonl", "day=2/d.jsonl")]
    (tmp_path / "one.jsonl").write_bytes(b"".join(path.read_bytes() for path in parts))
    without_places = [
        [{**row, "line": 0, "reason": row["reason"].rpartition(": ")[2]} for row in one]
        for one in (score(model, tmp_path / "one.jsonl")[0], rows)
    ]
    assert without_places[0] == without_places[1]


@pytest.mark.parametrize("n_blocks", [1, 3, 6])
def test_an_interrupted_job_goes_on_with_what_is_missing(n_blocks, model, data, tmp_path, here):
    parts = tmp_path / "out.parts"
    interrupted(model, data, parts, n_blocks)
    here.clear()
    assert score(model, data, parts) == alone(model, data)
    assert len(here) == 7 - n_blocks  # nothing is decided twice
    remove_finished(parts)
    assert not parts.exists()


def test_what_a_replica_rejected_stays_rejected_after_an_interruption(model, tmp_path):
    """Whether states can be decided on is found out where they are decided on: a finished block has to keep it."""
    states, parts = STATES.copy(), tmp_path / "out.parts"
    states[[3, 7, 20]] = np.nan
    np.savez(tmp_path / "new.npz", hidden_states=states)
    interrupted(model, tmp_path / "new.npz", parts, 2)
    rows, bad = score(model, tmp_path / "new.npz", parts)
    assert (rows, bad) == alone(model, tmp_path / "new.npz") and sorted(bad) == [3, 7, 20]
    assert [row["lane"] == "rejected" for row in rows] == [number in bad for number in range(N)]


CHANGES = {
    "added": (lambda data: (data / "new.jsonl").write_text(lines(0, 1)), "new: new.jsonl"),
    "deeper": (lambda data: (data / "day=2" / "e.jsonl").write_text(""), "new: day=2/e.jsonl"),
    "removed": (lambda data: (data / "b.jsonl").unlink(), "missing: b.jsonl"),
    "changed": (lambda data: (data / "c.jsonl").write_text(lines(24, 40)), "changed: c.jsonl"),
    "renamed": (lambda data: (data / "b.jsonl").rename(data / "bb.jsonl"), "new: bb.jsonl; missing: b.jsonl"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_job_notices_that_its_files_are_not_the_same(change, model, data, tmp_path, here):
    act, said = CHANGES[change]
    parts, untouched = tmp_path / "out.parts", tmp_path / "untouched"
    shutil.copytree(data, untouched)
    interrupted(model, data, parts, 2)
    act(data)
    here.clear()
    with pytest.raises(CheckpointError) as raised:
        score(model, data, parts)
    expected = f"the input has changed since ({said}). Remove it to start over."
    assert str(raised.value) == f"{parts} has the decisions of another job: {expected}"
    assert here == []
    assert score(model, untouched, parts)[0] == alone(model, untouched)[0]  # names and contents count, not the folder


def test_what_does_not_belong_to_the_input_may_change(model, data, tmp_path):
    parts = tmp_path / "out.parts"
    interrupted(model, data, parts, 2)
    (data / "_SUCCESS").unlink()
    (data / ".a.jsonl.crc").touch()
    assert score(model, data, parts) == alone(model, data)


def test_other_differences_are_said_as_such(model, data, tmp_path):
    parts, one = tmp_path / "out.parts", data / "a.jsonl"
    interrupted(model, one, parts, 1)
    one.write_text(lines(10, 22), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"another job: the input has changed since\. Remove it to start over\.$"):
        score(model, one, parts)
    one.write_text(lines(10, 23), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"another job: the model, the input or the settings were different\."):
        score(model, one, parts, k=2)
    (parts / "job.json").write_text('{"input": "0123"}', encoding="utf-8")  # of an earlier version
    with pytest.raises(CheckpointError, match=r"another job: the model, the input or the settings were different\."):
        score(model, one, parts)


def test_a_folder_of_nothing_starts_no_job(model, tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(InvalidInputError, match="data has no files"):
        score(model, tmp_path / "data", tmp_path / "out.parts")
    assert not (tmp_path / "out.parts").exists()


def test_a_guard_sees_the_decisions_of_a_cluster_as_those_of_one_process(model, data, tmp_path):
    """Also those of blocks that were finished before."""
    interrupted(model, data, tmp_path / "out.parts", 3)
    guards = [DriftGuard.from_classifier(model.classifier, false_alarm=0.9, seed=0) for _ in range(3)]
    expected = alone(model, data, guard=guards[0])
    assert score(model, data, guard=guards[1]) == expected
    assert score(model, data, tmp_path / "out.parts", guard=guards[2]) == expected
    assert guards[0].to_json() == guards[1].to_json() == guards[2].to_json()
    assert guards[0].n_seen == N


def test_guards_by_source_find_the_source_of_every_row_that_can_be_decided_on(model, tmp_path):
    """Also past rows that cannot be read, on a cluster, and where blocks were finished before."""
    sources = [("mail", "forum", None)[row % 3] for row in range(N)]
    states = [STATES[row].tolist() for row in range(N)]
    rows = [{"id": f"r{row}", "hidden_states": states[row], "from": sources[row]} for row in range(N)]
    texts = [json.dumps(row) for row in rows]
    texts[7], texts[11] = "{broken", json.dumps({**rows[11], "hidden_states": ["x"]})
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(texts), encoding="utf-8")
    interrupted(model, file, tmp_path / "out.parts", 3)
    guards = [SourceGuards.from_classifier(model.classifier, seed=0) for _ in range(3)]
    expected = alone(model, file, guard=guards[0], guard_by="from")
    assert score(model, file, guard=guards[1], guard_by="from") == expected
    assert score(model, file, tmp_path / "out.parts", guard=guards[2], guard_by="from") == expected
    assert guards[0].to_json() == guards[1].to_json() == guards[2].to_json()
    seen = Counter(source or "" for row, source in enumerate(sources) if row not in (7, 11))
    assert {name: stream.n_seen for name, stream in guards[0].streams.items()} == seen
    table, again = tmp_path / "data.parquet", SourceGuards.from_classifier(model.classifier, seed=0)
    good = [row for number, row in enumerate(rows) if number not in (7, 11)]
    pandas.DataFrame(good).to_parquet(table)
    alone(model, table, guard=again, guard_by="from")
    assert again.to_json() == guards[0].to_json()


def test_a_column_of_sources_that_is_not_there_is_told_before_anything_is_decided(model, data, here, tmp_path):
    guards = SourceGuards.from_classifier(model.classifier, seed=0)
    with pytest.raises(InvalidInputError, match=r"has no column 'source' for the source\. Got 'id', 'hidden_states'"):
        alone(model, data, guard=guards, guard_by="source")
    np.savez(tmp_path / "states.npz", hidden_states=STATES)
    with pytest.raises(InvalidInputError, match=r"states\.npz has no columns, so none for the source"):
        alone(model, tmp_path / "states.npz", guard=guards, guard_by="source")
    assert not here and not guards.n_seen


def test_rows_that_were_decided_elsewhere_are_watched_in_the_same_way():
    rng = np.random.default_rng(4)
    labels = rng.integers(2, size=600)
    classifier = SDMClassifier(0.8, **small_settings(max_epochs=4))
    classifier.fit(rng.normal(size=(600, 4)) + 2 * labels[:, None], labels)
    X = np.concatenate([rng.normal(size=(60, 4)) + 2 * rng.integers(2, size=(60, 1)), rng.normal(size=(90, 4)) * 3])
    here, there = (DriftGuard.from_classifier(classifier, seed=0) for _ in range(2))
    expected = [row for part in (X[:40], X[40:]) for row in here.watch(classifier.decide(part)).to_dicts()]
    plain = [json.loads(json.dumps(row)) for row in classifier.decide(X).to_dicts()]
    assert scoring._watched(there, plain[:70]) + scoring._watched(there, plain[70:]) == expected
    assert here.raised and there.to_json() == here.to_json()
    assert expected != plain  # some certified ones went to review
