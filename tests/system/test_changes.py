"""Changes of a saved model under real accidents: kill -9, a full disk, several processes, a read-only directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import textwrap
import time

import numpy as np
import pytest

import warm_process
from small import labelled_points, quiet, small_settings
from torchsdm import SDMClassifier
from torchsdm.application import LiveModel
from torchsdm.errors import ModelFileError, ModelInUseError
from warm_process import WarmProcess

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

NAMES = np.array(["World", "Sports"])
ME = {"who": "me", "why": "a test"}
N_KILLS = 30


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2, 300)
    X = rng.standard_normal((300, 4)) + 2.4 * (numbers[:, None] - 0.5) * np.array([1, 1, 0, 0])
    path = tmp_path_factory.mktemp("base") / "model"
    with quiet():
        classifier = SDMClassifier(0.8, **small_settings(max_epochs=3, random_state=3))
        classifier.fit(X.astype(np.float32), NAMES[numbers]).save(path)
    return path


@pytest.fixture
def model(base, tmp_path):
    return shutil.copytree(base, tmp_path / "model")


KILLING = """
    import json, os, random, shutil, signal, sys, time, traceback, warnings
    from pathlib import Path
    import numpy as np, torch
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from torchsdm import SDMClassifier
    from torchsdm.application import LiveModel
    from torchsdm.data import LabelledStates
    from torchsdm.model import read_changes, read_config

    base, root, n_kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

    def points(rng, name, n=16):
        X = (3 * rng.standard_normal((n, 4))).astype(np.float32)
        labels = rng.choice(["World", "Sports", "spam"], n)
        return LabelledStates(X, labels, [f"{name}-{i}" for i in range(n)], [f"text of {name}"] * n)

    def change(path, name, pipe):
        rng = np.random.default_rng(name)
        live = LiveModel.open(path, who="a child")
        since = max((one.version for one in live.changes() if one.what == "save"), default=0)
        os.write(pipe, b"ready\\n")
        for i in range(10**6):  # until killed
            made = {"who": "a child", "why": "a test", "key": f"{name}-{i}"}
            made_before = [one for one in live.changes(since) if one.what != "undo" and one.undone_by is None]
            kind = int(rng.integers(0, 20))
            if kind == 0 and made_before:
                done = live.recalibrate(**made)
            elif kind == 1 and made_before:
                done = live.undo(made_before[-1].version, **made)
            elif kind == 2:
                done = live.compact(who="a child", why="a test")
                since = live.snapshot.version
            else:
                done = live.add(points(rng, f"{name}-{i}"), allow_new_labels=True, **made)
            if done is not None:
                os.write(pipe, f"{done.version} {done.what} {done.key}\\n".encode())

    def killed(path, name, rng):
        "What a child acknowledged before it was killed."
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                change(path, name, writing)
            except BaseException:
                traceback.print_exc()
                os._exit(3)
        os.close(writing)
        told, wanted = b"", rng.choice([1, 1, 2, 2, 3, 6, 20])
        while told.count(b"\\n") < wanted:
            got = os.read(reading, 1 << 16)
            assert got, "the child ended"
            told += got
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        while got := os.read(reading, 1 << 16):
            told += got
        os.close(reading)
        return [line.split() for line in told.decode().split("\\n")[1:-1]]

    shutil.copytree(base, root / "warm")  # what is compiled and imported at first use, the children inherit
    with LiveModel.open(root / "warm") as live:
        live.add(points(np.random.default_rng(0), "warm"), who="me", why="", allow_new_labels=True)
        live.recalibrate(who="me", why="")
    rng, kinds, n_unacknowledged = random.Random(seed), {}, 0
    for number in range(n_kills):
        if number % 10 == 0:
            path, known = root / f"model-{number}", {}
            shutil.copytree(base, path)
        for version, what, key in killed(path, 10**6 * seed + number, rng):
            known[int(version)] = (what, None if key == "None" else key)
            kinds[what] = kinds.get(what, 0) + 1
        loaded = SDMClassifier.load(path, verify=True)
        log = read_changes(path, read_config(path))
        history = {one.version: (one.what, one.key) for one in log.history}
        if log.base > len(history):  # killed between saving and noting it in the log
            history[log.base] = ("save", None)
        assert {version: history.get(version) for version in known} == known, "an acknowledged change is lost"
        assert len(history) - len(known) in (0, 1), "more than the one that was under way"
        n_unacknowledged += len(history) - len(known)
        known, there = history, set(loaded.model_.examples.ids())
        for record in log.records:
            if record.change.what == "add":
                assert len(record.ids) == len(record.labels) == len(record.texts) == len(record.rows) == 16
                n_there = len(there & set(record.ids))
                assert n_there == (0 if record.change.undone_by else 16), "a change is there in part"
    print(json.dumps({"kinds": kinds, "unacknowledged": n_unacknowledged}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked, so that they start in milliseconds")
def test_kill_9_loses_nothing_that_was_acknowledged(base, tmp_path):
    done = warm_process.run(textwrap.dedent(KILLING), base, tmp_path, N_KILLS, 1)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kinds"]["add"] > N_KILLS and sum(told["kinds"].values()) > 2 * N_KILLS


# --- Several processes -----------------------------------------------------------------------------------------------

WRITING = """
    import sys, warnings
    import numpy as np
    warnings.simplefilter("ignore")
    from torchsdm.application import LiveModel
    from torchsdm.data import LabelledStates
    live = LiveModel.open(sys.argv[1], who="the other process")
    print("ready", flush=True)
    for i in range(int(sys.argv[2])):
        X = 3 * np.random.default_rng(i).standard_normal((16, 4)).astype(np.float32)
        live.add(LabelledStates(X, ["World"] * 16, [f"w{i}-{j}" for j in range(16)]), who="other", why="")
    print("done", flush=True)
    sys.stdin.read()
    import time
    time.sleep(600)
"""


def waited_for(process, word):
    while process.poll() is None and word not in process.stdout:
        time.sleep(0.002)
    assert word in process.stdout, process.stderr


def test_readers_see_whole_versions_while_another_process_writes(model):
    n_support = len(SDMClassifier.load(model).support_)
    process = WarmProcess(textwrap.dedent(WRITING), model, 40)
    waited_for(process, "ready")
    reader, versions = LiveModel.open(model, writable=False), []
    while "done" not in process.stdout:
        assert process.poll() is None, process.stderr
        loaded = SDMClassifier.load(model)
        assert len(loaded.support_) == n_support + 16 * loaded.version_
        assert len(loaded.model_.examples.ids()) == len(loaded.support_)
        reader.refresh()
        snapshot = reader.snapshot
        assert len(snapshot.saved.classifier.support_) == n_support + 16 * snapshot.version
        versions += [loaded.version_, snapshot.version]
    assert versions == sorted(versions) and len(set(versions)) > 3
    with pytest.raises(ModelInUseError, match=r"is being changed by the other process \(process \d+, since 20.*Z\)"):
        LiveModel.open(model)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with LiveModel.open(model) as live:  # the lock of a dead process is no obstacle
        assert live.snapshot.version == 40
        live.remove(["w0-0"], **ME)


def test_a_reader_does_not_wait_for_a_transaction(model):
    with LiveModel.open(model) as live:
        live.add(labelled_points(1), **ME)
        connection = sqlite3.connect(model / "changes" / "log.sqlite", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM points")
        start = time.monotonic()
        assert SDMClassifier.load(model).version_ == 1
        assert time.monotonic() - start < 5  # SQLite would wait for 10 seconds
        connection.execute("ROLLBACK")
        connection.close()


# --- Disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1.5 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)  # models that were loaded there may still be mapped


def test_a_full_disk_leaves_the_log_as_it_was(base, small_disk):
    model = small_disk / "model"
    shutil.copytree(base, model)
    fresh = labelled_points(99).hidden_states
    with LiveModel.open(model) as live:
        seed, refused = 0, 0
        (small_disk / "filler").write_bytes(b"x" * 300_000)
        while not refused:
            seed += 1
            try:
                live.add(labelled_points(seed, 200), **ME)
            except ModelFileError as error:
                refused = str(error)
        assert "Nothing was changed" in refused
        n_made, expected = seed - 1, live.snapshot.saved.classifier.decide(fresh).to_dicts()
        assert live.snapshot.version == len(live.changes()) == n_made > 3
        for _ in range(3):
            with pytest.raises(ModelFileError, match="Nothing was changed"):
                live.add(labelled_points(seed, 200), **ME)
        loaded = SDMClassifier.load(model)
        assert loaded.version_ == n_made and loaded.decide(fresh).to_dicts() == expected
        (small_disk / "filler").unlink()
        live.add(labelled_points(seed, 200), **ME)  # and with space again it goes on
        assert SDMClassifier.load(model).version_ == n_made + 1
    loaded = SDMClassifier.load(model, verify=True)
    assert loaded.version_ == n_made + 1 and f"{seed}-199" in loaded.model_.known_ids()


FILLING = """
    import resource, sys, warnings
    import numpy as np
    warnings.simplefilter("ignore")
    from torchsdm.application import LiveModel
    from torchsdm.errors import ModelFileError
    from torchsdm.data import LabelledStates
    live = LiveModel.open(sys.argv[1])
    def add(i, n):
        X = 3 * np.random.default_rng(i).standard_normal((n, 4)).astype(np.float32)
        return live.add(LabelledStates(X, ["World"] * n, [f"{i}-{j}" for j in range(n)]), who="me", why="")
    add(0, 16)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), limit[1]))
    for i in range(1, 100):
        try:
            add(i, 100)
        except ModelFileError as error:
            assert "Nothing was changed" in str(error), error
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert live.snapshot.version == i
    add(i, 100)
    print(i + 1)
"""


@pytest.mark.parametrize("limit", [20_000, 60_000], ids=["the log's", "the segment's"])
def test_a_file_that_may_not_grow_leaves_the_log_as_it_was(model, limit):
    pytest.importorskip("resource")
    done = warm_process.run(textwrap.dedent(FILLING), model, limit)
    assert done.returncode == 0, done.stderr
    loaded = SDMClassifier.load(model, verify=True)
    assert loaded.version_ == int(done.stdout) > 1


READING = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    from torchsdm import SDMClassifier
    from torchsdm.application import LiveModel
    from torchsdm.errors import ModelFileError
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    assert not os.access(sys.argv[1], os.W_OK)
    print(SDMClassifier.load(sys.argv[1]).version_, LiveModel.open(sys.argv[1], writable=False).snapshot.version)
    try:
        LiveModel.open(sys.argv[1])
    except ModelFileError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are those of POSIX")
@pytest.mark.parametrize("state", ["closed", "open", "without -shm"])
def test_a_directory_that_cannot_be_written_can_be_read(model, tmp_path_factory, state):
    """In WAL mode SQLite wants to write even to read; what waits in a -wal file must be seen all the same."""
    place = tmp_path_factory.mktemp("reading")
    with LiveModel.open(model) as live:
        live.add(labelled_points(1), **ME)
        live.recalibrate(**ME)
        if state != "closed":
            shutil.copytree(model, place / "model")
    if state == "closed":
        shutil.copytree(model, place / "model")
    if state == "without -shm":
        (place / "model" / "changes" / "log.sqlite-shm").unlink()
    names = sorted(path.name for path in (place / "model" / "changes").iterdir())
    assert ("log.sqlite-wal" in names) == (state != "closed")
    for path in place.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in (place, *place.parents):
        if parent.stat().st_uid == os.getuid() and parent != place.parents[-1]:
            parent.chmod(parent.stat().st_mode | 0o055)
    done = warm_process.run(textwrap.dedent(READING), place / "model")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "2 2" and "cannot be changed" in second
    assert sorted(path.name for path in (place / "model" / "changes").iterdir()) == names
    for path in place.rglob("*"):  # so that it can be removed
        path.chmod(0o755 if path.is_dir() else 0o644)
