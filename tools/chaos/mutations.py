"""What a stranger or a broken disk makes of good input: changes of bytes, of plain values, and of known formats.

Every function draws from the ``random.Random`` that it is given, so a case can be made again from its seed.
"""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

#: Numbers at which sizes, offsets and counts go wrong.
NUMBERS = [0, 1, -1, 2, 7, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63]
NUMBERS += [2**64 - 1, 2**64, -(2**31), -(2**63), 10**30]
FLOATS = [0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]
#: Texts that have meant something to somebody's parser.
TEXTS = [
    *("", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\ufeff", "\u202e", "\ue000document\ue001", "é", "é" * 300),
    *("NaN", "null", "-1", "1e999", "9" * 5000, "0x10", "true", "a" * 70_000, "\n", "a\r\nb", '"', "'", "\\", "{}"),
    *("../outside", "/proc/version", "file:///proc/version", "..", ".", "~", "con", "a/b", "\\\\host\\share"),
    *(
        "__class__",
        "{0.__class__}",
        "{document.__class__}",
        "{{ 1 }}",
        "%s%n",
        "${HOME}",
        "$(id)",
        "`id`",
        "; drop table",
    ),
    *("float128", "object", "O", "V8", "<U4294967295", "datetime64[ns]", "i4,i4", "F32", "BF16", "I64"),
]
_DEEP = 2_000  # levels: beyond Python's limit of recursion


def any_text(random: Random) -> str:
    """One of the texts, or some characters from all over Unicode."""
    if random.random() < 0.8:
        return random.choice(TEXTS)
    return "".join(chr(random.choice([random.randrange(0x80), random.randrange(0x110000)])) for _ in range(9))


def any_value(random: Random) -> Any:
    """A value that JSON can hold (or that Python's JSON writes) and a reader may not expect."""
    kind = random.randrange(7)
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice(FLOATS)
    if kind == 2:
        return any_text(random)
    if kind == 3:
        return random.choice([None, True, False])
    if kind == 4:
        return [any_value(random) for _ in range(random.randrange(4))]
    if kind == 5:
        return {any_text(random): any_value(random) for _ in range(random.randrange(3))}
    nested: Any = random.choice([[], {}, 1])
    for _ in range(random.choice([1, 2, 40])):
        nested = [nested] if random.random() < 0.7 else {"a": nested}
    return nested


def changed_value(random: Random, value: Any) -> Any:
    """Plain values with one place changed; the value itself stays as it is."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(sorted(value, key=repr))
        return _changed_entry(random, dict(value), key)
    if isinstance(value, list) and value and random.random() < 0.85:
        copy = list(value)
        place = random.randrange(len(copy))
        how = random.randrange(6)
        if how == 0:
            del copy[place]
        elif how == 1:
            copy.insert(place, any_value(random))
        elif how == 2:
            copy[place] = random.choice(copy)
        elif how == 3:
            copy = copy * random.choice([0, 2, 50])
        else:
            copy[place] = changed_value(random, copy[place])
        return copy
    if isinstance(value, bool | None):
        return any_value(random)
    if isinstance(value, int | float) and random.random() < 0.6:
        near = [value + 1, value - 1, -value, value * 2, str(value), value + 0.5]
        return random.choice([*near, *NUMBERS, *FLOATS])
    if isinstance(value, str) and random.random() < 0.5:
        return random.choice([value + any_text(random), value[:-1], value.upper(), value * 2, any_text(random)])
    return any_value(random)


def _changed_entry(random: Random, copy: dict[Any, Any], key: Any) -> dict[Any, Any]:
    how = random.randrange(8)
    if how == 0:
        del copy[key]
    elif how == 1:
        copy[any_text(random)] = any_value(random)
    elif how == 2:
        copy[any_text(random)] = copy.pop(key)
    elif how == 3:
        copy[key] = copy[random.choice(sorted(copy, key=repr))]
    else:
        copy[key] = changed_value(random, copy[key])
    return copy


def changed_values(random: Random, value: Any) -> Any:
    """Plain values with one place changed or a few."""
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        value = changed_value(random, value)
    return value


def json_bytes(random: Random, value: Any) -> bytes:
    """JSON of a value, now and then with what only a writer by hand would write."""
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    how = random.randrange(24)
    if how == 0:
        text = "[" * _DEEP * 50 + text
    elif how == 1 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + ", " + text[1:]  # every key twice
    elif how == 2:
        text = text.replace("1", "1" * random.choice([20, 400, 5000]), 1)
    elif how == 3:
        text += random.choice(["}", "\x00", " garbage", "\n[]", ","])
    elif how == 4:
        text = "\ufeff" + text
    elif how == 5:
        return text.encode(random.choice(["utf-16", "utf-32", "latin-1"]), "replace")
    return text.encode("utf-8", "surrogatepass")


def changed_bytes(random: Random, content: bytes, other: bytes = b"") -> bytes:
    """Bytes with one change or a few: cut, flipped, overwritten, moved, repeated, mixed with others, oversized."""
    for _ in range(random.choice([1, 1, 2, 5])):
        content = random.choice(_BYTE_CHANGES)(random, content, other)
    return content


def _place(random: Random, content: bytes) -> int:
    """A place in bytes; headers and ends are liked best."""
    n = len(content)
    near = random.choice([n, min(n, 16), min(n, 300)])
    place = random.randrange(near + 1)
    return n - place if random.random() < 0.2 else place


def _truncated(random: Random, content: bytes, _: bytes) -> bytes:
    return content[: _place(random, content)]


def _flipped(random: Random, content: bytes, _: bytes) -> bytes:
    changed = bytearray(content)
    for _number in range(random.choice([1, 1, 3, 20]) if changed else 0):
        changed[min(_place(random, content), len(changed) - 1)] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwritten(random: Random, content: bytes, _: bytes) -> bytes:
    size = random.choice([1, 2, 4, 8])
    number = random.choice([*NUMBERS, random.getrandbits(64)]) % (1 << (8 * size))
    start = _place(random, content)
    return content[:start] + number.to_bytes(size, random.choice(["little", "big"])) + content[start + size :]


def _removed(random: Random, content: bytes, _: bytes) -> bytes:
    start = _place(random, content)
    return content[:start] + content[start + random.choice([1, 4, 64, 1000]) :]


def _repeated(random: Random, content: bytes, _: bytes) -> bytes:
    start = _place(random, content)
    part = content[start : start + random.choice([1, 8, 100])]
    return content[:start] + part * random.choice([2, 3, 1000]) + content[start:]


def _swapped(random: Random, content: bytes, _: bytes) -> bytes:
    first, second = sorted((_place(random, content), _place(random, content)))
    return content[second:] + content[first:second] + content[:first]


def _spliced(random: Random, content: bytes, other: bytes) -> bytes:
    return content[: _place(random, content)] + other[_place(random, other) :]


def _inserted(random: Random, content: bytes, _: bytes) -> bytes:
    start = _place(random, content)
    part = random.choice([random.randbytes(8), any_text(random).encode("utf-8", "surrogatepass"), b"\xff" * 40])
    return content[:start] + part + content[start:]


_BYTE_CHANGES = (
    *(_truncated, _flipped, _flipped, _overwritten, _overwritten, _removed),
    *(_repeated, _swapped, _spliced, _inserted),
)


# --- Known formats ---------------------------------------------------------------------------------------------------


def safetensors_parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes behind it."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def safetensors_bytes(header: Any, data: bytes, length: int | None = None) -> bytes:
    """The reverse; the length of the header may be a lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8", "surrogatepass")
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def changed_safetensors(random: Random, content: bytes) -> bytes:
    """A safetensors file whose header says something else: types, shapes, offsets that overlap or leave the file."""
    header, data = safetensors_parts(content)
    names = [name for name in header if name != "__metadata__"]
    how = random.randrange(9)
    name = random.choice(names)
    entry = dict(header[name])
    if how == 0:  # overlapping: two names for the same bytes
        header[name] = header[random.choice(names)]
    elif how == 1:
        shift = random.choice([1, -1, 4, 2**40, -(2**40), 2**63])
        entry["data_offsets"] = [max(0, one + shift) for one in entry["data_offsets"]]
    elif how == 2:
        entry["shape"] = random.choice([[-1], [2**62, 4], [0], [], [0, 2**60], entry["shape"][::-1], [2**63], [1] * 70])
    elif how == 3:
        entry["dtype"] = random.choice(["F64", "F16", "BF16", "I8", "U8", "BOOL", "I64", "I32", "F8_E4M3", "C64", "?"])
    elif how == 4:  # as many bytes, another shape and type
        size = entry["data_offsets"][1] - entry["data_offsets"][0]
        entry |= {"dtype": "U8", "shape": [size]}
    elif how == 5:
        header = changed_values(random, header)
        return safetensors_bytes(json_bytes(random, header), data)
    elif how == 6:
        return safetensors_bytes(header, data, random.choice([0, 1, 2**40, 2**63, 2**64 - 1, len(content)]))
    elif how == 7:
        return safetensors_bytes(header, changed_bytes(random, data))
    else:
        del header[name]
        return safetensors_bytes(header, data)
    if how in (1, 2, 3, 4):
        header[name] = entry
    return safetensors_bytes(header, data)


def bomb(random: Random, line: bytes) -> bytes:
    """A compressed file a thousand times larger than itself."""
    return gzip.compress(line * random.choice([1, 100, 20_000]) + b"a" * random.choice([0, 30_000_000]), 9)
