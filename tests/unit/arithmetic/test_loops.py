"""The compiled loops: which are loaded, that all of them give the same bits, and what takes their place."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from torchsdm.arithmetic import _build, loops
from torchsdm.core.region import best_candidates, best_candidates_plain
from torchsdm.errors import InvalidInputError
from torchsdm.matching import _tiles as tiles
from torchsdm.matching.rows import RowIndex
from torchsdm.trust import guard

needs_loops = pytest.mark.skipif(not loops.has_loops(), reason="this package was built without a compiler")


@pytest.fixture
def without_loops(monkeypatch):
    """As if the package had been built without a compiler."""
    monkeypatch.setattr(loops, "_load", lambda name: None)
    loops.loops_in_use.cache_clear()
    yield
    monkeypatch.undo()
    loops.loops_in_use.cache_clear()


def possible_levels():
    return [name for name in loops.LEVELS if loops.LEVELS.index(name) <= loops.LEVELS.index(loops.loops_in_use())]


# --- The same bits with every library, and without one ---------------------------------------------------------------

_DECIDE = """
import hashlib, sys, warnings
import numpy as np, torch
from torchsdm import SDMClassifier, DriftGuard
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 240)
X = (rng.normal(size=(240, 20)) + y[:, None]).astype(np.float32)
classifier = SDMClassifier(0.8, n_filters=70, n_rounds=1, training="sdm", max_epochs=4, batch_size=20,
                           learning_rate=1e-3, random_state=0).fit(X, y)
decisions = classifier.decide(X + 0.1)
guard = DriftGuard.from_classifier(classifier, seed=0)
guard.update(decisions)
digest = hashlib.sha256()
for name, values in vars(decisions).items():
    if isinstance(values, np.ndarray) and values.dtype.kind in "fib":
        digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
matched = classifier.support_.match_self()
digest.update(matched.similarity.numpy().tobytes() + matched.nearest_distance.numpy().tobytes())
digest.update(classifier.support_.neighbors(classifier.support_.exemplars[:9], 7)[0].numpy().tobytes())
digest.update(repr(guard.log_martingale).encode())
print(digest.hexdigest())
"""


@needs_loops
def test_every_library_decides_the_same_to_the_bit():
    def decided(level):
        environment = {**os.environ, "TORCHSDM_LOOPS": level, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _DECIDE], env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout

    assert len({decided(level) for level in (*possible_levels(), "none")}) == 1


@needs_loops
def test_the_best_library_is_in_use_unless_another_is_wanted(monkeypatch):
    assert loops.loops_in_use() == possible_levels()[-1]
    for wanted in (*possible_levels(), "none"):
        monkeypatch.setenv("TORCHSDM_LOOPS", wanted)
        loops.loops_in_use.cache_clear()
        assert loops.loops_in_use() == wanted and loops.has_loops() == (wanted != "none")
    monkeypatch.setenv("TORCHSDM_LOOPS", "fast")
    loops.loops_in_use.cache_clear()
    with pytest.raises(InvalidInputError, match=r"TORCHSDM_LOOPS must be one of base, .*none\. Got 'fast'"):
        loops.has_loops()
    monkeypatch.delenv("TORCHSDM_LOOPS")
    loops.loops_in_use.cache_clear()


def test_a_library_that_the_processor_cannot_run_is_refused(monkeypatch):
    class Old:
        def level(self):
            return 0

    monkeypatch.setattr(loops, "_load", lambda name: Old())
    monkeypatch.setenv("TORCHSDM_LOOPS", "v4")
    loops.loops_in_use.cache_clear()
    with pytest.raises(InvalidInputError, match=r"must be one of base here\. Got 'v4'"):
        loops.loops_in_use()
    monkeypatch.undo()
    loops.loops_in_use.cache_clear()


def test_without_a_library_nothing_is_missing(without_loops):
    from torchsdm import SupportSet

    assert loops.loops_in_use() == "none"
    support = SupportSet([[0.0], [1.0], [2.0], [9.0]], labels=[0, 0, 1, 1], predictions=[0, 0, 1, 1])
    assert support.match([[0.4]], predictions=[0]).similarity.tolist() == [2]
    assert support.match_self().similarity.tolist() == [1, 1, 0, 1]


@needs_loops
def test_a_library_of_other_sources_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(_build, "source_digest", lambda: "of other sources")
    loops._load.cache_clear()
    assert loops._load("base") is None
    assert "was compiled from other sources and is not used: sdm doctor --compile" in caplog.text
    monkeypatch.undo()
    loops._load.cache_clear()


@needs_loops
def test_memory_that_is_not_there_is_an_error(monkeypatch):
    class Full:
        def find_first(self, *arguments):
            return -1

    loops.loops_in_use()  # is known before
    monkeypatch.setattr(loops, "_load", lambda name: Full())
    with pytest.raises(MemoryError, match="No memory for 'find_first'"):
        loops.call("find_first", 1)


# --- What Python says of the C ---------------------------------------------------------------------------------------

STRUCTURES = {
    "points_t": tiles._Points,
    "tile_t": tiles._Tile,
    "rows_t": tiles._Rows,
    "columns_t": tiles._Columns,
    "found_t": tiles._Found,
    "bound_terms_t": tiles.BoundTerms,
    "coarse_terms_t": tiles.CoarseTerms,
}


@pytest.fixture(scope="module")
def c_sources():
    texts = [path.read_text() for path in sorted(_build.FOLDER.glob("*.[ch]"))]
    return re.sub(r"/\*.*?\*/", "", "\n".join(texts), flags=re.DOTALL)


def test_every_function_is_declared_with_the_arguments_of_the_c(c_sources):
    def kind(argument):
        return "p" if "*" in argument else {"int64_t": "i", "double": "d"}[argument.split()[0]]

    found = re.findall(r"^(?!static|typedef)([\w ]+[ *])(\w+)\(([^)]*)\) \{", c_sources, flags=re.MULTILINE)
    assert {(returned, name) for returned, name, _ in found if returned != "int "} == {("const char *", "sources")}
    of_c = {name: "".join(map(kind, given.split(","))) if given != "void" else "" for _, name, given in found}
    assert of_c == {"sources": "", **loops._FUNCTIONS}


def test_structures_have_the_fields_of_the_c_in_its_order(c_sources):
    for name, structure in STRUCTURES.items():
        (body,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {name};", c_sources)
        of_c = [re.findall(r"\w+", one)[-1] for one in re.split("[,;]", body) if one.strip()]
        assert of_c == [field for field, _ in structure._fields_]


@pytest.mark.skipif(not _build.has_compiler(), reason="no C compiler")
def test_structures_lie_in_memory_as_in_the_c(tmp_path):
    expected, lines = [], []
    for name, structure in STRUCTURES.items():
        expected += [getattr(structure, field).offset for field, _ in structure._fields_] + [ctypes.sizeof(structure)]
        asked = [f"offsetof({name}, {field})" for field, _ in structure._fields_] + [f"sizeof({name})"]
        lines += [f'printf("%zu ", {one});' for one in asked]
    sources = [f'#include "{_build.FOLDER / name}"' for name in ("tiles.c", "bounds.c")]
    program = ["#include <stddef.h>", "#include <stdio.h>", *sources, "int main(void) {", *lines, "return 0; }"]
    (tmp_path / "layout.c").write_text("\n".join(program))
    command = [*_build._compiler(), "-std=gnu11", "-w", "layout.c", "-o", "layout", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    assert [int(number) for number in printed.split()] == expected


@needs_loops
@pytest.mark.parametrize("wrong", [(1, 3), (np.zeros(3), 3.0), (np.zeros(3), np.zeros(3))])
def test_arguments_of_another_kind_are_refused(wrong):
    with pytest.raises(ctypes.ArgumentError):
        loops.call("count_earlier", *wrong, np.zeros(3), np.zeros(3))


# --- The same as in Python -------------------------------------------------------------------------------------------


@needs_loops
@pytest.mark.parametrize("n_classes", [1, 2, 5])
def test_candidates_are_those_of_the_plain_loop(n_classes):
    found = set()
    for seed in range(60):
        rng = np.random.default_rng([seed, n_classes])
        n = int(rng.integers(1, 80))
        q = np.sort(rng.integers(0, 12, n).astype(float))[::-1].copy()
        truth, labels = 0.5 + 0.6 * rng.random(n), rng.integers(0, n_classes, n)
        arguments = q, truth, labels, rng.uniform(0.5, 0.9, n_classes), int(rng.integers(0, 4))
        assert best_candidates(*arguments) == best_candidates_plain(*arguments)
        found.add(best_candidates(*arguments)[0] > 0)
    assert found == {True, False}


@needs_loops
def test_the_guard_counts_and_bets_as_in_python():
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 7, 300):
        codes = rng.integers(0, max(1, n // 3), n)
        for ours, plain in zip(guard._count_earlier(codes), guard._count_earlier_plain(codes), strict=True):
            assert ours.tolist() == plain.tolist()
        p = rng.random((3, n)) ** 2
        played = []
        for play in (guard._bet, guard._bet_plain):
            log_bets, log_martingales = np.full((3, len(guard._BETS)), -np.inf), np.empty((3, n))
            play(p, 11, log_bets, log_martingales)
            played.append((log_bets.tolist(), log_martingales.tolist()))
        assert played[0] == played[1]  # to the bit


@needs_loops
def test_hashes_of_rows_are_those_of_numpy(monkeypatch):
    rows = torch.randn(50, 33, generator=torch.Generator().manual_seed(0))
    ours = RowIndex(rows).hashes
    monkeypatch.setattr("torchsdm.matching.rows.has_loops", lambda: False)
    assert ours.tolist() == RowIndex(rows).hashes.tolist()


@needs_loops
@pytest.mark.parametrize("width", [1, 7, 8, 9, 100])
def test_products_with_weights_are_those_of_numpy(width):
    rng = np.random.default_rng(width)
    x, weights = rng.normal(size=(3, width)), rng.normal(size=(10, width)).astype(np.float32)
    products, squared = np.full((3, 10), np.nan), np.full(10, np.nan)
    for begin, end in ((0, 4), (4, 10)):
        loops.call("products_and_norms", x, 3, weights, 10, width, products, squared, begin, end)
    assert products == pytest.approx(x @ weights.astype(float).T, rel=1e-13, abs=1e-13)
    assert squared == pytest.approx((weights.astype(float) ** 2).sum(axis=1), rel=1e-13)


# --- Compiling -------------------------------------------------------------------------------------------------------


@needs_loops
@pytest.mark.skipif(not _build.has_compiler(), reason="no C compiler here")
def test_the_loops_compile_without_a_warning(tmp_path, capfd):
    libraries = _build.compile_loops(tmp_path)
    assert libraries[0].name == "_loops-base.library" and all(path.exists() for path in libraries)
    assert sorted(tmp_path.iterdir()) == sorted(libraries)
    assert capfd.readouterr() == ("", "")


def test_without_a_compiler_nothing_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert _build.compile_loops(tmp_path) == [] and not list(tmp_path.iterdir())


def test_a_compiler_that_fails_leaves_everything_as_it_was(monkeypatch, tmp_path):
    earlier = tmp_path / "_loops-v4.library"
    earlier.write_text("works")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(ChildProcessError, match="'false' ended with status 1"):
        _build.compile_loops(tmp_path)
    assert list(tmp_path.iterdir()) == [earlier] and earlier.read_text() == "works"
