"""States in JSON, read several times faster than by a parser that makes an object of every number.

Eight states are a megabyte of decimal numbers. The usual body, ``{"hidden_states": [[...], ...]}`` with rows of equal
length, is read straight into float32. Anything else is left to the strict parser, which gives float32(float64(number)),
rounded to nearest twice.

Here the float64 is a product or a quotient of two floats, a few units in the last place from the strict parser's. Both
become the same float32, unless a midpoint between two float32 is about as near. Then the body is left to the strict
parser, too.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from torchsdm.compilation import compiled, inlined
from torchsdm.validation import Array

_BEFORE = re.compile(rb'\s*\{\s*"hidden_states"\s*:\s*')
_AFTER = re.compile(rb"\s*\}\s*")
_OPEN, _CLOSE, _COMMA, _POINT, _MINUS, _PLUS, _ZERO, _NINE, _E = (ord(one) for one in "[],.-+09e")

_POWERS = np.array([float(f"1e{exponent}") for exponent in range(61)])
_FULL = 10**17  # no digit is added to a number from here on: it has more than a float64
_EXACT = 2**53  # integers up to here are float64
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38  # between them float32 has all its digits
_BITS_LOST, _MIDPOINT = (1 << 29) - 1, 1 << 28  # of a float64 that becomes a float32
_NEAR = 16  # units in the last place of a float64, more than four roundings make
_UNUSUAL = -1


def states_from_json(body: bytes) -> Array | None:
    """The states (N, D) of ``{"hidden_states": [[...], ...]}``; None if the body is anything else."""
    before, last = _BEFORE.match(body), body.rfind(b"}")
    if before is None or last < 8:
        return None
    # Nothing in rows of numbers goes on behind a brace: whoever reads them stops at the last one.
    text = np.frombuffer(body, dtype=np.uint8, count=last + 1)
    eights = np.ndarray(last - 6, dtype="<u8", buffer=body, strides=(1,))  # the eight characters from each place on
    numbers = np.empty(len(body) // 2, dtype=np.float32)  # a number has a digit, and a comma or a bracket behind it
    end, n_rows, width = read_rows(text, eights, before.end(), _POWERS, numbers)
    if end == _UNUSUAL or _AFTER.fullmatch(body, end) is None:
        return None
    return numbers[: n_rows * width].reshape(n_rows, width)


@compiled
def read_rows(text: Array, eights: Array, at: int, powers: Array, numbers: Array) -> tuple[int, int, int]:
    """Read ``[[number, ...], ...]``: where it ends, how many rows there are, and how many numbers in each."""
    n, n_rows, width = 0, 0, 0
    while text[at] == (_COMMA if n_rows else _OPEN):  # before each row
        at, first = _skip_blanks(text, at + 1), n
        while text[at] == (_COMMA if n > first else _OPEN):  # before each number
            at, number = _read_number(text, eights, _skip_blanks(text, at + 1), powers)
            if at == _UNUSUAL:
                return _UNUSUAL, 0, 0
            numbers[n] = number
            n, at = n + 1, _skip_blanks(text, at)
        if n_rows == 0:
            width = n - first
        if text[at] != _CLOSE or n - first != width or width == 0:
            return _UNUSUAL, 0, 0
        n_rows, at = n_rows + 1, _skip_blanks(text, at + 1)
    return (at + 1 if n_rows and text[at] == _CLOSE else _UNUSUAL), n_rows, width


@inlined
def _read_number(text: Array, eights: Array, at: int, powers: Array) -> tuple[int, float]:
    """Read a number of JSON's grammar: where it ends, and its value, near enough to become the right float32."""
    is_negative, is_integer, exponent = text[at] == _MINUS, True, 0
    at += is_negative
    start, digits = at, 0
    while digits < _FULL and _is_digit(text[at]):
        digits, at = 10 * digits + (text[at] - _ZERO), at + 1
    if at == start or (text[start] == _ZERO and at > start + 1) or _is_digit(text[at]):
        return _UNUSUAL, 0.0
    if text[at] == _POINT:
        is_integer, start = False, at + 1
        at, digits = _read_fraction(text, eights, start, digits)
        exponent = start - at
        while _is_digit(text[at]):  # digits are full: these change less than a unit in the last place of a float64
            at += 1
        if at == start:
            return _UNUSUAL, 0.0
    if text[at] | 32 == _E:
        is_integer, at = False, at + 1
        sign = -1 if text[at] == _MINUS else 1
        at += text[at] == _MINUS or text[at] == _PLUS
        start, given = at, 0
        while given < len(powers) and _is_digit(text[at]):
            given, at = 10 * given + (text[at] - _ZERO), at + 1
        if at == start or _is_digit(text[at]):
            return _UNUSUAL, 0.0
        exponent += sign * given
    if abs(exponent) >= len(powers) or (is_integer and digits > _EXACT) or (is_negative and digits == 0):
        return _UNUSUAL, 0.0
    value = digits / powers[-exponent] if exponent < 0 else digits * powers[exponent]
    is_sure = _SMALLEST < value < _LARGEST and abs((np.float64(value).view(np.int64) & _BITS_LOST) - _MIDPOINT) > _NEAR
    if digits != 0 and not is_sure:
        return _UNUSUAL, 0.0
    return at, value * (1 - 2 * is_negative)


@inlined
def _read_fraction(text: Array, eights: Array, at: int, digits: int) -> tuple[int, int]:
    """Read digits, until they end or the number of all of them is full: where that is, and the number."""
    while digits < _FULL // 10**7 and at < len(eights) and _are_digits(eights[at]):
        digits, at = 10**8 * digits + _number_of(eights[at]), at + 8
    while digits < _FULL and _is_digit(text[at]):
        digits, at = 10 * digits + (text[at] - _ZERO), at + 1
    return at, digits


@inlined
def _are_digits(eight: Any) -> Any:
    """Whether eight characters are digits, 0x30 to 0x39: the upper half of each is 3, also when 6 is added."""
    upper = np.uint64(0xF0F0F0F0F0F0F0F0)
    threes = np.uint64(0x3030303030303030)
    return (eight & upper) == threes and ((eight + np.uint64(0x0606060606060606)) & upper) == threes


@inlined
def _number_of(eight: Any) -> Any:
    """The number that eight digits are: neighbours are joined to pairs, pairs to fours, and these to the number."""
    pairs = (eight & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64((10 << 8) + 1) >> np.uint64(8)
    fours = (pairs & np.uint64(0x00FF00FF00FF00FF)) * np.uint64((100 << 16) + 1) >> np.uint64(16)
    return np.int64((fours & np.uint64(0x0000FFFF0000FFFF)) * np.uint64((10_000 << 32) + 1) >> np.uint64(32))


@inlined
def _is_digit(character: int) -> bool:
    return _ZERO <= character <= _NINE


@inlined
def _skip_blanks(text: Array, at: int) -> int:
    while text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9:
        at += 1
    return at
