"""The review queue on disk: what was acknowledged is there, what was undone is not."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from torchsdm.errors import InvalidInputError
from torchsdm.model import Judged, NewInput, ReviewStore

AT = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def store(tmp_path):
    with_rows = ReviewStore(tmp_path / "changes" / "review.sqlite")
    inputs = [NewInput(f"text {n}", id=f"n{n}", label="a" if n else None) for n in range(4)]
    assert with_rows.put(inputs, "file.jsonl", AT) == 4
    return with_rows


def decided(row, lane="review", contradiction=None, version=0, key="prediction"):
    decision = {"lane": lane, "confidence": row / 10, key: "a"}
    return Judged(row, decision, version, contradiction, np.full(3, row, dtype=np.float32))


def texts(rows):
    return [row["text"] for row in rows]


def test_what_is_sent_twice_is_one_input(store):
    assert store.put([NewInput("text 1", id="n1", label="a"), NewInput("text 1", id="other")], "again", AT) == 1
    assert store.count() == 5


def test_another_process_finds_everything(store):
    store.judge([decided(1), decided(2, "trusted", 2.5)])
    store.mark(2, "b", "ada", AT)
    again = ReviewStore(store.path)  # the first is not even closed
    row = again.rows(status="labelled")[0]
    assert (row["name"], row["label"], row["given"], row["who"]) == ("n1", "b", "a", "ada")
    assert row["decision"]["lane"] == "trusted" and row["contradiction"] == 2.5
    rows, states = again.states()
    assert rows == [1, 2] and states.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_what_people_say_goes_to_the_directory_that_was_put_in_place(store, tmp_path):
    folder = store.path.parent
    shutil.copytree(folder, tmp_path / "copy")
    folder.rename(tmp_path / "old")
    (tmp_path / "copy").rename(folder)
    store.mark(2, "b", "ada", AT)
    assert [row["row"] for row in ReviewStore(store.path).rows(status="labelled")] == [2]


def test_rows_are_filtered_searched_and_sorted(store):
    store.judge([decided(1, "trusted", 0.1), decided(2, "review", 3.0), decided(3, "review", -1.0)])
    assert texts(store.rows(lane="review")) == ["text 1", "text 2"]
    assert texts(store.rows(search="TEXT 3")) == ["text 3"] and texts(store.rows(search="n2")) == ["text 2"]
    assert texts(store.rows(search="%")) == []
    assert texts(store.rows(order="contradiction")) == ["text 1", "text 0", "text 2", "text 3"]  # unknown ones last
    assert texts(store.rows(order="confidence", limit=2, offset=1)) == ["text 1", "text 2"]
    assert store.counts()["lane"] == {"trusted": 1, "review": 2} and store.counts()["undecided"] == 1
    assert store.columns(["lane"])["lane"] == ["trusted", "review", "review"]


def test_a_queue_written_when_the_key_was_predictions_is_read(store):
    store.judge([decided(1, key="predictions"), decided(2)])
    decisions = [row["decision"] for row in store.rows(chosen=[1, 2])]
    assert decisions == [{"lane": "review", "confidence": row / 10, "prediction": "a"} for row in (1, 2)]
    assert store.columns(["prediction"])["prediction"] == ["a", "a"]


def test_the_last_mark_counts_and_undoing_brings_back_the_one_before(store):
    store.mark(1, "a", "ada", AT)
    store.mark(1, None, "ada", AT)
    store.mark(2, "b", "bob", AT)
    assert store.counts()["status"] == {"open": 2, "labelled": 1, "skipped": 1, "added": 0}
    assert store.unmark("ada") == 1 and store.rows(chosen=[1])[0]["label"] == "a"
    assert store.unmark("ada") == 1 and store.rows(chosen=[1])[0]["status"] == "open"
    assert store.unmark("ada") is None and store.rows(chosen=[2])[0]["label"] == "b"


def test_what_was_added_is_kept_until_its_change_is_undone(store):
    store.mark(1, "a", "ada", AT)
    store.start_adding([1], "key")
    store.settle({"key": 7, "another": 8}, [])
    assert store.rows(status="added")[0]["added"] == 7
    with pytest.raises(InvalidInputError, match="Undo that first"):
        store.mark(1, "b", "ada", AT)
    assert store.unmark("ada") is None
    assert store.clear() == 3 and store.count() == 1
    store.settle({"another": 8}, [7])
    assert texts(store.rows(status="labelled")) == ["text 0"]


def test_what_was_never_added_is_labelled_as_before(store):
    store.mark(1, "a", "ada", AT)
    store.start_adding([1], "key")  # and then the process is killed
    again = ReviewStore(store.path)
    again.settle({}, [])
    again.settle({"key": 7}, [])
    assert again.rows(chosen=[1])[0]["status"] == "labelled"


def test_another_version_decides_again_and_keeps_the_state(store):
    store.judge([decided(1), decided(2)])
    assert [row["row"] for row in store.outdated(3, 10)] == [1, 2]
    store.judge([Judged(1, {"lane": "trusted"}, 3)])
    assert [row["row"] for row in store.outdated(3, 10)] == [2] and store.states([1])[1].tolist() == [[1, 1, 1]]


def test_a_row_that_is_not_there_is_refused(store):
    with pytest.raises(InvalidInputError, match="no row 99"):
        store.mark(99, "a", "ada", AT)
    assert store.count(status="labelled") == 0
