"""A few faults of each kind; ``make chaos`` tries hundreds."""

from __future__ import annotations

import pytest

from tools.chaos import faults
from tools.chaos.works import works

KILLED = ["train", "train over a model", "embed", "update", "recalibrate", "compact", "predict"]
OTHERS = [
    *[("full disk", name) for name in ("train", "embed", "update")],
    *[("read-only", name) for name in ("update", "predict")],
    *[("two at once", name) for name in ("train", "update")],
    ("little memory", "train"),
    ("a reader meanwhile", "train over a model"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def chosen(place):
    return {work.name: work for work in works(place) if not work.real}


@pytest.fixture(scope="module")
def straight(place, chosen):
    """Runs that nobody disturbs, made when they are first asked for."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = faults.run_straight(chosen[name], place)
        return made[name]

    return of


@pytest.mark.parametrize(("fault", "name"), [*[("kill -9", name) for name in KILLED], *OTHERS])
def test_after_a_fault_all_is_well(fault, name, place, chosen, straight):
    if fault in faults.unable():
        pytest.skip(faults.unable()[fault])
    tally = faults.Tally()
    faults.trial(fault, chosen[name], straight(name), place, 1, tally)
    assert tally.broken == [] and tally.count(fault) >= 1


def test_what_breaks_is_found(place, chosen, straight, monkeypatch):
    """A model that is replaced file by file, not as a whole, does not go unnoticed."""
    work = chosen["train over a model"]
    usual = straight(work.name)

    def half(work, folder, rng, _):
        weights = next((folder / "model").glob("adaptor-*"))
        weights.write_bytes(weights.read_bytes()[:-1])
        return "died"

    monkeypatch.setitem(faults.FAULTS, "kill -9", half)
    tally = faults.Tally()
    faults.trial("kill -9", work, usual, place, 0, tally)
    assert "after the fault" in tally.broken[0]["what"] and "adaptor-" in tally.broken[0]["what"]
