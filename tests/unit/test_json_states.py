"""States read from JSON without an object for each number are those of the strict parser, to the bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from torchsdm._json_states import states_from_json
from torchsdm.service.routes.access import strict_json

RNG = np.random.default_rng(0)


def body(*numbers):
    return f'{{"hidden_states": [[{", ".join(numbers)}]]}}'.encode()


def strictly(given):
    with np.errstate(over="ignore"):
        return np.array(strict_json(given)["hidden_states"], dtype=np.float64).astype(np.float32)


def check(given):
    """What is read at once is the same; returns whether it was."""
    states = states_from_json(given)
    if states is not None:
        expected = strictly(given)
        assert states.shape == expected.shape and states.tobytes() == expected.tobytes()
    return states is not None


@pytest.mark.parametrize("blank", ["\v", "\f", "\u00a0"])
def test_only_the_blanks_of_json_are_blanks(blank):
    assert states_from_json(f'{blank}{{"hidden_states": [[1]]}}'.encode()) is None
    assert states_from_json(b' {\t"hidden_states"\r:\n[[1]] } ').tolist() == [[1.0]]


def test_states_as_clients_write_them_are_read_at_once():
    states = RNG.normal(size=(3, 500)).astype(np.float32)
    for written in (states.tolist(), states.astype(np.float64).round(4).tolist(), (100 * states).astype(int).tolist()):
        for layout in ({}, {"separators": (",", ":")}, {"indent": 1}):
            assert check(json.dumps({"hidden_states": written}, **layout).encode())
    assert check(body(*(f"{number:.25f}" for number in RNG.normal(size=500))))  # more digits than a float64 has
    assert check(body(*(f"{number:.9e}" for number in RNG.normal(size=500) * 10.0 ** RNG.integers(-30, 30, 500))))
    assert check(b' {"hidden_states" :\n[ [1, 2.5E+3 ] ,[ -3e-2,0.0] ]} \n')


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_floats_are_those_of_the_strict_parser(numbers):
    check(body(*map(repr, numbers)))


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_whatever_json_calls_a_number_is_the_strict_parser_s(number):
    check(body(number))


@pytest.mark.parametrize("ulps", range(-40, 41))
def test_near_a_midpoint_of_two_floats_the_strict_parser_decides(ulps):
    """Where one unit in the last place of a float64 would make another float32 of it."""
    for low in RNG.normal(size=20).astype(np.float32):
        middle = (np.float64(low) + np.float64(np.nextafter(low, np.float32(np.inf)))) / 2
        was_read = check(body(repr(float(middle + ulps * np.spacing(middle)))))
        assert was_read == (abs(ulps) > 16) or abs(abs(ulps) - 16) <= 3


@pytest.mark.parametrize(
    "unusual",
    [
        *("[]", "[[]]", "[1]", "[[[1]]]", "[[1],]", "[[1,]]", "[[,1]]", "[[1] [2]]", "[[1 2]]", "[[1], [2, 3]]"),
        *("[[1]", "[[1", "[[1]]]", "[[01]]", "[[1.]]", "[[.1]]", "[[-]]", "[[+1]]", "[[1e]]", "[[1e+]]", "[[-0]]"),
        *("[[NaN]]", "[[null]]", '[["1"]]', "[[true]]", "[[1e39]]", "[[1e-39]]", "[[1e400]]", "[[12345678", "null"),
        *("[[9007199254740993]]", "[[123456789012345678901]]", '[[1]], "k": 3', '[[1]], "hidden_states": [[2]]'),
    ],
)
def test_anything_unusual_is_left_to_the_strict_parser(unusual):
    assert states_from_json(f'{{"hidden_states": {unusual}}}'.encode()) is None


@pytest.mark.parametrize(
    "other", [b"", b"{", b"}", b"[[1]]", b'{"texts": ["[[1]]"]}', b'}{"hidden_states": [[1', b"\xff"]
)
def test_another_body_is_left_to_the_strict_parser(other):
    assert states_from_json(other) is None


@given(st.integers(0, 60), st.binary(max_size=3))
def test_no_body_is_read_beyond_its_end(cut, tail):
    whole = b'{"hidden_states": [[1.25, -2.5e3], [0.000123456789, 7]]}'
    given = whole[:cut] + tail
    assert states_from_json(given) is None or check(given)
