"""Drift guards by source: streams, shares of the promise, the cap, alarms, resets, saving."""

from __future__ import annotations

import copy
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.trust import DriftGuard, SourceGuards, SourceReset, load_guard
from torchsdm.trust.guard import SIGNALS


def draw(rng, n, shift=0.0):
    distance = (rng.gamma(3, 1, n) + shift).round(1)
    confidence = (1 / (1 + np.exp(distance - 3 + rng.normal(size=n)))).round(1)
    return SimpleNamespace(nearest_distance=distance, confidence=confidence, similarity=rng.poisson(3, n))


def rows(decisions, chosen):
    return SimpleNamespace(**{name: values[chosen] for name, values in vars(decisions).items()})


KNOWN = draw(np.random.default_rng(1), 60)
POINTS = DriftGuard(*(getattr(KNOWN, name) for name in SIGNALS), false_alarm=0.01, seed=0)


@pytest.fixture
def guards():
    return SourceGuards(POINTS, n_kept=3, seed=5)


@pytest.fixture
def mixed():
    """60 calm comments between 60 posts that turn after 20."""
    rng = np.random.default_rng(2)
    comments, calm, strange = draw(rng, 60), draw(rng, 20), draw(rng, 40, shift=4.0)
    sources = np.array(["comments", "forum"] * 60)
    decisions = SimpleNamespace(**{name: np.empty(120) for name in SIGNALS})
    for name in SIGNALS:
        getattr(decisions, name)[::2] = getattr(comments, name)
        getattr(decisions, name)[1::2] = np.concatenate([getattr(calm, name), getattr(strange, name)])
    return decisions, sources


def test_each_source_has_the_stream_of_a_guard_of_its_own(guards, mixed):
    decisions, sources = mixed
    values = guards.update(decisions, sources)
    assert list(guards.streams) == ["comments", "forum"] and guards.raised_sources == ("forum",)
    for name, k in (("comments", 1), ("forum", 2)):
        own = sources == name
        stream = guards.streams[name]
        alone = POINTS.beside(0.01 / (k * (k + 1)), stream.seed)
        np.testing.assert_array_equal(alone.update(rows(decisions, own)), values[own])
        assert alone.to_json() == stream.to_json() and stream.n_known == 60
    assert 20 < guards.streams["forum"].raised_at < 40
    assert (guards.n_seen, guards.n_sources, guards.raised) == (120, 2, True)


@pytest.mark.parametrize("size", [1, 7])
def test_blocks_change_nothing(mixed, size):
    decisions, sources = mixed
    whole, parts = (SourceGuards(POINTS, n_kept=1, seed=5) for _ in range(2))
    values = whole.update(decisions, sources)
    found = [parts.update(rows(decisions, slice(i, i + size)), sources[i : i + size]) for i in range(0, 120, size)]
    np.testing.assert_array_equal(np.concatenate(found), values)
    assert parts.to_json() == whole.to_json() and whole.n_sources == 1 and None in whole.streams


@pytest.mark.parametrize("n_kept", [1, 3, 100])
def test_the_shares_add_up_to_the_whole_however_many_sources_turn_up(n_kept):
    guards = SourceGuards(POINTS, n_kept=n_kept, seed=5)
    n = 5 * n_kept
    guards.update(draw(np.random.default_rng(3), n), [f"s{number}" for number in range(n)])
    shares = [stream.false_alarm for stream in guards.streams.values()]
    assert len(shares) == n_kept + 1 and guards.n_sources == n_kept and list(guards.streams)[-1] is None
    assert math.fsum(shares) == pytest.approx(0.01, rel=1e-12) and shares[0] == 0.005
    assert guards.streams[None].n_seen == n - n_kept
    assert len({stream.seed for stream in guards.streams.values()}) == n_kept + 1


def test_names_are_text_of_bounded_length_and_no_name_is_one_too(guards):
    names = [None, "", 7, "7", "x" * 300, "x" * 200 + "y", "\ud800"]
    guards = SourceGuards(POINTS, seed=5)
    guards.update(draw(np.random.default_rng(3), 7), names)
    assert list(guards.streams) == ["", "7", "x" * 200, "?"]
    assert SourceGuards.from_json(guards.to_json()).to_json() == guards.to_json()
    guards.update(draw(np.random.default_rng(3), 7))
    assert guards.streams[""].n_seen == 9


def test_sources_known_in_advance_keep_their_streams():
    guards = SourceGuards(POINTS, n_kept=2, sources=["comments", "mail", "comments"], seed=5)
    guards.update(draw(np.random.default_rng(3), 40), [*map(str, range(39)), "mail"])
    assert [stream.n_seen for stream in guards.streams.values()] == [0, 1, 39]
    with pytest.raises(InvalidInputError, match=r"'sources' of SourceGuards must be at most 2 \('n_kept'\)\. Got 3"):
        SourceGuards(POINTS, n_kept=2, sources="abc")


def test_an_error_leaves_all_streams_alone(guards, mixed):
    guards.update(*mixed)
    before = guards.to_json()
    bad = draw(np.random.default_rng(3), 4)
    bad.nearest_distance[3] = np.nan
    for decisions, sources in ((bad, list("abcd")), (draw(np.random.default_rng(3), 4), ["a"])):
        with pytest.raises(InvalidInputError):
            guards.update(decisions, sources)
        assert guards.to_json() == before


def test_a_copy_looks_on(guards, mixed):
    guards.update(*mixed)
    before = guards.to_json()
    copy.copy(guards).update(*mixed)
    copy.copy(guards).reset("looked at")
    assert guards.to_json() == before


def test_one_source_is_reset_and_the_others_go_on(guards, mixed):
    guards.update(*mixed)
    raised_at, before = guards.streams["forum"].raised_at, guards.streams["comments"].to_json()
    made = guards.reset("its markup was cleaned", "forum")
    assert made == SourceReset("its markup was cleaned", 60, raised_at, "forum") and guards.resets == (made,)
    assert not guards.raised and guards.n_seen == 60 and guards.streams["comments"].to_json() == before
    for source, reason in (("nobody", "why"), ("forum", " ")):
        state = guards.to_json()
        with pytest.raises(InvalidInputError, match="must"):
            guards.reset(reason, source)
        assert guards.to_json() == state


def test_a_reset_of_everything_forgets_the_sources(guards, mixed):
    guards.update(*mixed)
    seeds = {stream.seed for stream in guards.streams.values()}
    guards.reset("its markup was cleaned", "forum")
    raised_at = guards.resets[0].raised_at
    guards.reset("a new year")
    assert not guards.streams and not guards.raised and guards.n_seen == 0
    assert guards.resets[1:] == (SourceReset("a new year", 60, None),) and guards.resets[0].raised_at == raised_at
    guards.update(*mixed)
    assert guards.streams["comments"].false_alarm == 0.005
    assert seeds.isdisjoint(stream.seed for stream in guards.streams.values())  # no number is used twice
    with pytest.raises(InvalidInputError, match="must say why"):
        guards.reset(" ")


def test_alarms_outlive_a_change_of_the_model(guards, mixed):
    guards.update(*mixed)
    other = draw(np.random.default_rng(9), 50)
    fresh = SourceGuards(DriftGuard(*(getattr(other, name) for name in SIGNALS)), n_kept=3)
    assert fresh.fingerprint != guards.fingerprint
    new = fresh.succeed(guards, "version 1 took its place")
    assert new.raised_sources == ("forum",) and new.n_seen == 0 and new.n_known == 50
    assert [one.source for one in new.resets] == ["comments", "forum"]
    assert [stream.false_alarm for stream in new.streams.values()] == [0.005, 0.01 / 6]


def test_saved_guards_go_on_to_the_bit(guards, mixed, tmp_path):
    decisions, sources = mixed
    guards.update(decisions, sources)
    guards.reset("its markup was cleaned", "forum")
    guards.update(draw(np.random.default_rng(4), 9), list("abcdefghi"))
    guards.save(tmp_path / "guards.json")
    again = load_guard(tmp_path / "guards.json", guards.fingerprint)
    assert isinstance(again, SourceGuards) and again.to_json() == guards.to_json()
    np.testing.assert_array_equal(again.update(decisions, sources), guards.update(decisions, sources))
    assert again.to_json() == guards.to_json() and again.resets == guards.resets
    POINTS.save(tmp_path / "guard.json")
    assert isinstance(load_guard(tmp_path / "guard.json"), DriftGuard)
    with pytest.raises(ModelFileError, match="other scores"):
        load_guard(tmp_path / "guards.json", "0" * 64)
    with pytest.raises(ModelFileError, match="is not a torchsdm drift guard by source"):
        SourceGuards.load(tmp_path / "guard.json")
    for broken in ("[]", "{", '{"kind": "torchsdm drift guard by source", "format": 1}'):
        (tmp_path / "broken.json").write_text(broken, encoding="utf-8")
        with pytest.raises(ModelFileError, match=r"broken\.json"):
            load_guard(tmp_path / "broken.json")


def test_a_file_grows_with_the_streams_and_has_the_points_once(guards):
    empty = len(guards.to_json())
    guards.update(draw(np.random.default_rng(3), 3), ["a", "b", "c"])
    per_source = (len(guards.to_json()) - empty) / 3
    assert json.loads(guards.to_json())["calibration"]["shape"] == [3, 60]
    assert per_source < len(json.dumps(json.loads(guards.to_json())["calibration"]))
