"""Model directories, their logs of changes, review queues, checkpoints, drift guards and exports."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.torch import load

from tools.chaos.harness import OUTSIDE, Case, Link, Target, Wrong, files_of
from tools.chaos.mutations import any_text, any_value, changed_bytes, changed_safetensors, changed_values, json_bytes
from tools.chaos.seeds import SMALL, points
from tools.chaos.targets_files import signed_entry
from torchsdm import SDMClassifier
from torchsdm.application import LiveModel, SavedModel
from torchsdm.errors import TorchSDMError
from torchsdm.estimators import load_classifier
from torchsdm.model.changes import CHANGES, COLUMNS, head_line, read_history, row_digest
from torchsdm.model.directory import _config_digest
from torchsdm.model.review import NewInput, ReviewStore
from torchsdm.training.callbacks import Checkpointing, _digest, stored_epochs, stored_seed
from torchsdm.training.history import EpochRecord
from torchsdm.trust import DriftGuard

_LINKS = (f"../{OUTSIDE}", f"../../{OUTSIDE}", "/dev/zero", "..", "missing", "config.json")


def bytes_of(files: Case, name: str) -> bytes:
    content = files[name]
    assert isinstance(content, bytes)
    return content


def signed(files: Case, config: dict[str, Any]) -> Case:
    """A model directory whose config has the digests of its files as they are, and its own."""
    for entry in config["files"].values():
        if isinstance(files.get(entry["file"]), bytes):
            entry |= signed_entry(entry["file"], files)
    with suppress(TypeError, ValueError, RecursionError):  # who writes a number that is none cannot sign it
        config["sha256"] = _config_digest(config)
    return {**files, "config.json": json.dumps(config).encode()}


class _Directory(Target):
    """A model directory."""

    directory = "model"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.kinds = [files_of(seeds / name) for name in self.directory.split()]
        self.X, _ = points()

    def read(self, folder: Path) -> None:
        self.use(load_classifier(folder))

    def use(self, classifier: Any) -> None:
        decisions = classifier.decide(self.X[:5])
        if len(decisions) != 5 or not np.isfinite(decisions.confidence).all():
            raise Wrong("decisions that are none")
        classifier.explain(self.X[:2], 2)


class DamagedModel(_Directory):
    """A directory on a bad disk: what was not written is refused, and never other numbers."""

    name = "model-damaged"
    directory = "model ensemble"

    def case(self, random: Random) -> Case:
        files = dict(random.choice(self.kinds))
        name = random.choice(sorted(set(files) - {"README.md"}))
        if random.random() < 0.08:
            files[name] = Link(random.choice(_LINKS))
        elif random.random() < 0.1:
            del files[name]
        elif name == "config.json" and random.random() < 0.6:
            files[name] = json_bytes(random, changed_values(random, json.loads(bytes_of(files, name))))
        else:
            files[name] = changed_bytes(random, bytes_of(files, name), bytes_of(files, "config.json"))
        if files == self.kinds[0] or files == self.kinds[-1]:
            del files[name]
        return files

    def read(self, folder: Path) -> None:
        super().read(folder)
        kept = files_of(folder)
        if not any(
            {name: one for name, one in kept.items() if name != "README.md"}.items() <= known.items()
            or json.loads(bytes_of(kept, "config.json")) == json.loads(bytes_of(known, "config.json"))
            for known in self.kinds
        ):
            raise Wrong("a damaged model was read")


class StrangersModel(_Directory):
    """A directory that somebody made on purpose, with digests that fit."""

    name = "model-stranger"
    directory = "model ensemble text-model"

    def case(self, random: Random) -> Case:
        files = dict(random.choice(self.kinds))
        config = json.loads(bytes_of(files, "config.json"))
        tensors = sorted(name for name in files if name.endswith(".safetensors"))
        if random.random() < 0.5:
            for name in random.sample(tensors, random.choice([1, 1, 2])):
                files[name] = changed_safetensors(random, bytes_of(files, name))
            return signed(files, config)
        ours = {name: config[name] for name in ("format", "files")}
        rest = {name: value for name, value in config.items() if name not in (*ours, "sha256")}
        if random.random() < 0.1:
            ours["files"] = changed_values(random, ours["files"])
            return {**files, "config.json": json_bytes(random, {**rest, **ours})}
        key = random.choice([*sorted(rest), "models", "parameters", "certificate", "classes", "states_origin"])
        return signed(files, {**rest, **ours, key: changed_values(random, rest[key])})

    def read(self, folder: Path) -> None:
        saved = SavedModel.load(folder)
        width = min(int(saved.classifier.n_features_in_), 1000)
        self.X = np.zeros((5, *([1] * (saved.classifier.input_ndim_ - 2)), width), dtype=np.float32)
        self.use(saved.classifier)
        saved.classifier.model_card()
        if len(saved.classifier.models_) == 1:
            DriftGuard.from_classifier(saved.classifier)
        with tempfile.TemporaryDirectory(dir=folder) as copy:
            saved.classifier.save(Path(copy) / "copy")


#: What a stranger's database may have in place of, or beside, our tables.
SCHEMAS = (
    "CREATE VIEW examples AS WITH RECURSIVE c(position) AS (SELECT 0 UNION ALL SELECT position + 1 FROM c) "
    "SELECT position, position AS id, 0 AS label, 'x' AS text FROM c",
    "CREATE VIEW examples AS SELECT 0 AS position, 'a' AS id, 0 AS label, printf('%.*c', 900000000, 'x') AS text",
    "CREATE VIEW examples AS SELECT 0 AS position, 'a' AS id, 0 AS label, load_extension('/tmp/x.so') AS text",
    "CREATE VIEW examples AS SELECT 0 AS position, 'a' AS id, 0 AS label, readfile('/proc/version') AS text",
    "CREATE VIEW examples AS SELECT rowid - 1 AS position, rootpage AS id, 0 AS label, sql AS text FROM sqlite_master",
    "CREATE TABLE examples (position INTEGER PRIMARY KEY, id, label, text TEXT AS (hex(zeroblob(400000000))))",
    "CREATE TABLE examples (position TEXT, id, label, text BLOB)",
    "CREATE TABLE examples (id, text)",
    "CREATE VIRTUAL TABLE examples USING fts5(position, id, label, text)",
    "CREATE TABLE examples (position INTEGER PRIMARY KEY, id, label, text TEXT) WITHOUT ROWID",
    "CREATE TABLE other (a)",
)
TRIGGERS = (
    "CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END",
    "CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER t AFTER DELETE ON {table} BEGIN INSERT INTO {table} DEFAULT VALUES; END",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE INDEX i ON {table} (hex(zeroblob(1000)))",
)


def changed_database(content: bytes, statements: Any, path: Path) -> bytes:
    """An SQLite file after some statements; those that fail are left out."""
    path.write_bytes(content)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        for statement, values in statements:
            try:
                connection.execute(statement, values)
            except (sqlite3.Error, UnicodeEncodeError, OverflowError):
                continue
    finally:
        connection.close()
    return path.read_bytes()


def sql_value(random: Random) -> Any:
    """A value of a cell that nobody expects there."""
    value = any_value(random)
    if isinstance(value, list | dict):
        return json.dumps(value, default=repr)
    return random.choice([value, b"\xff\x00", any_text(random).encode("utf-8", "surrogatepass"), "a" * 100_000])


class StrangersExamples(_Directory):
    """The SQLite files of a model directory with views, triggers, virtual tables, wrong columns and strange cells."""

    name = "model-sqlite"

    def case(self, random: Random) -> Case:
        files = dict(self.kinds[0])
        name = random.choice(sorted(name for name in files if name.endswith(".sqlite")))
        how = random.randrange(4)
        statements: list[tuple[str, tuple[Any, ...]]] = []
        if how == 0:
            statements += [("DROP TABLE examples", ()), (random.choice(SCHEMAS), ())]
            statements += [("INSERT INTO examples VALUES (?, ?, 0, 'a')", (n, n)) for n in range(10)]
        elif how == 1:
            column = random.choice(["position", "id", "label", "text"])
            statements.append(
                (f"UPDATE examples SET {column} = ? WHERE position < ?", (sql_value(random), random.choice([1, 99])))
            )
            statements.append(("DELETE FROM examples WHERE position = ?", (random.randrange(-5, 10),)))
            statements.append(("INSERT INTO examples VALUES (?, 1, 1, 'a')", (random.choice([-1, 2**62, 10**6, 50]),)))
        elif how == 2:
            statements.append((random.choice(TRIGGERS).format(table="examples"), ()))
        content = bytes_of(files, name)
        with tempfile.TemporaryDirectory() as folder:
            content = changed_database(content, statements, Path(folder) / "x.sqlite")
        files[name] = changed_bytes(random, content) if how == 3 else content
        return signed(files, json.loads(bytes_of(files, "config.json")))

    def use(self, classifier: Any) -> None:
        super().use(classifier)
        for model in classifier.models_:
            sets = [model.examples, model.calibration.known.examples]
            sets += [] if model.certification is None else [model.certification.examples]
            for examples in sets:
                examples.all()
                examples.positions(["s1", 3, "é"])
                examples.positions_of_texts(["one"])
                examples.largest_number()
        classifier.add_exemplars(self.X[:2], [0, 1])


class _Log(_Directory):
    """A model with a log of changes; what was acknowledged is there, or the log is refused."""

    directory = "changed"
    writes = True  # who opens it for writing leaves SQLite's files beside it

    def read(self, folder: Path) -> None:
        before = files_of(folder)
        try:
            history = read_history(folder)
            super().read(folder)
        except TorchSDMError:
            self._is_not_written(folder, before)
            raise
        self.check(history)
        n = len(history)
        with LiveModel.open(folder, who="Ada") as live:
            live.remove(["s3", "s5"][:1], who="Ada", why="to go on")
        again = read_history(folder)
        if [one.to_dict() for one in again[:n]] != [one.to_dict() for one in history] or len(again) != n + 1:
            raise Wrong(f"{n} changes, and after one more {len(again)}")

    def check(self, history: Any) -> None:
        """What must hold of a log that could be read."""

    def _is_not_written(self, folder: Path, before: Case) -> None:
        """Who opens a damaged log for writing is refused, and its files stay for whoever restores them."""
        try:
            with LiveModel.open(folder, who="Ada") as live:
                live.remove(["s3"], who="Ada", why="to go on")
        except TorchSDMError:
            names = ("log.sqlite", "config.json")
            after = files_of(folder)
            for name, content in before.items():
                if name.endswith(names) and after.get(name) != content and not name.endswith("log.sqlite"):
                    raise Wrong(f"{name} was changed by a writer that was refused") from None
        else:
            raise Wrong("a log that readers refuse was written to")


class DamagedLog(_Log):
    """A log on a bad disk."""

    name = "log-damaged"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.n_changes = len(read_history(seeds / "changed"))

    def case(self, random: Random) -> Case:
        files = dict(self.kinds[0])
        name = random.choice(sorted(name for name in files if name.startswith(CHANGES)))
        files[name] = changed_bytes(random, bytes_of(files, name))
        if random.random() < 0.1:
            del files[name]
        elif random.random() < 0.05:
            files[name] = Link(random.choice(_LINKS))
        if random.random() < 0.1:
            files[f"{CHANGES}/log.sqlite-wal"] = random.randbytes(200)
        return files

    def check(self, history: Any) -> None:
        if len(history) != self.n_changes:
            raise Wrong(f"{len(history)} changes of {self.n_changes}")


class StrangersLog(_Log):
    """A log that somebody made on purpose, with a chain of digests that fits."""

    name = "log-stranger"

    def case(self, random: Random) -> Case:
        files = dict(self.kinds[0])
        name = f"{CHANGES}/log.sqlite"
        statements: list[tuple[str, tuple[Any, ...]]] = []
        how = random.randrange(3)
        table = random.choice(["changes", "points", "rows", "facts", "outcomes"])
        if how == 0:
            statements.append((random.choice(TRIGGERS).format(table=table), ()))
        elif how == 1:
            column = random.choice(COLUMNS[1:])
            value = random.choice([sql_value(random), json.dumps(any_value(random)), random.choice([0, 1, -1, 10**9])])
            statements.append((f"UPDATE changes SET {column} = ? WHERE version = ?", (value, random.randrange(1, 6))))
        else:
            table, column = random.choice(
                [("points", "id"), ("points", "label"), ("points", "text"), ("points", "row"), ("outcomes", "content"),
                 ("outcomes", "sequence"), ("facts", "value"), ("points", "version"),
                 ("rows", "content"), ("rows", "part"), ("rows", "version")]
            )  # fmt: skip
            statements.append(
                (
                    f"UPDATE {table} SET {column} = ?",
                    (random.choice([sql_value(random), json.dumps(any_value(random))]),),
                )
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.sqlite"
            changed_database(bytes_of(files, name), statements, path)
            head = _rechained(path)
            files[name] = path.read_bytes()
        if head is not None:
            files[f"{CHANGES}/head"] = head
        return files


def _rechained(path: Path) -> bytes | None:
    """Give every change of a log the digests that belong to it; the line of the head."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        previous, version = "", 0
        for row in connection.execute(f"SELECT {', '.join(COLUMNS)} FROM changes ORDER BY version").fetchall():
            found = dict(zip(COLUMNS, row, strict=True))
            version = found["version"]
            listed = connection.execute("SELECT id, label, text FROM points WHERE version = ? ORDER BY row", (version,))
            found["points_digest"] = hashlib.sha256(json.dumps([list(one) for one in listed]).encode()).hexdigest()
            previous = row_digest(found, previous)
            values = (found["points_digest"], previous, version)
            connection.execute("UPDATE changes SET points_digest = ?, digest = ? WHERE version = ?", values)
        for sequence, content in connection.execute("SELECT sequence, content FROM outcomes").fetchall():
            if isinstance(content, bytes):
                sha256 = hashlib.sha256(content).hexdigest()
                connection.execute("UPDATE outcomes SET sha256 = ? WHERE sequence = ?", (sha256, sequence))
        return head_line(version, previous)
    except (sqlite3.Error, TypeError, ValueError):  # a cell of bytes has no digest: left as it is
        return None
    finally:
        connection.close()


class Review(Target):
    """The queue of the page."""

    name = "review-queue"
    writes = True

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.content = (seeds / "review.sqlite").read_bytes()

    def case(self, random: Random) -> Case:
        how = random.randrange(3)
        if how == 0:
            return {"review.sqlite": changed_bytes(random, self.content)}
        statements: list[tuple[str, tuple[Any, ...]]] = []
        if how == 1:
            column = random.choice(
                ["id", "text", "given", "decision", "version", "contradiction", "state", "added", "at"]
            )
            value = random.choice([sql_value(random), json.dumps(any_value(random))])
            statements.append((f"UPDATE inputs SET {column} = ?", (value,)))
            statements.append(("UPDATE marks SET label = ?", (random.choice([sql_value(random), "1"]),)))
        else:
            table = random.choice(["inputs", "marks"])
            statements.append((random.choice(TRIGGERS).format(table=table), ()))
            statements.append((random.choice(["DROP VIEW queue", "DROP TABLE marks", "CREATE TABLE queue2 (a)"]), ()))
            statements.append((random.choice(["CREATE TABLE queue (a)", "CREATE TABLE deciding2 (a)"]), ()))
        with tempfile.TemporaryDirectory() as folder:
            return {"review.sqlite": changed_database(self.content, statements, Path(folder) / "x.sqlite")}

    def read(self, folder: Path) -> None:
        store = ReviewStore(folder / "review.sqlite")
        try:
            n = store.count()
            store.rows(limit=5)
            store.counts()
            store.columns(("lane",))
            store.put([NewInput("a new one")], "sent", "2026-01-02T00:00:00Z")
            if store.count() != n + 1:
                raise Wrong(f"{n} inputs, and after one more {store.count()}")
            last = max(row["row"] for row in store.rows(limit=500))
            store.mark(last, 1, "Ada", "2026-01-02T00:00:00Z")
            store.unmark("Ada")
        finally:
            store.close()


class Checkpoints(Target):
    """Checkpoints of an interrupted training; what is resumed, is resumed to the same end."""

    name = "checkpoint"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.files = files_of(seeds / "checkpoint")
        facts = _facts(bytes_of(self.files, "round-000.safetensors"))
        self.fingerprint, self.seed = facts["fingerprint"], facts["seed"]

    def case(self, random: Random) -> Case:
        files = dict(self.files)
        name = random.choice(sorted(files))
        content = bytes_of(files, name)
        if random.random() < 0.4:
            files[name] = changed_bytes(random, content)
        elif random.random() < 0.5:
            files[name] = changed_safetensors(random, content)
        else:
            files[name] = _with_facts(content, self._signed(content, changed_values(random, _facts(content))))
        return files

    def _signed(self, content: bytes, facts: Any) -> Any:
        """Facts with a digest that fits."""
        if isinstance(facts, dict):
            facts["sha256"] = _digest(facts, load(content))
        return facts

    def read(self, folder: Path) -> None:
        try:
            stored_seed(folder)
            stored_epochs(folder)
        finally:
            store = Checkpointing(folder, self.fingerprint, self.seed, EpochRecord)
            for number in range(2):
                store.restore(number)


class ResumedTraining(Checkpoints):
    """Damaged ones, and training goes on from them: to the same model, or it is refused."""

    name = "checkpoint-resumed"
    writes = True

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.expected: Any = None

    def _signed(self, content: bytes, facts: Any) -> Any:
        return facts

    def read(self, folder: Path) -> None:
        X, y = points()
        two: dict[str, Any] = {**SMALL, "n_rounds": 2}
        if self.expected is None:
            self.expected = SDMClassifier(0.8, **two).fit(X, y).decide(X).logits
        classifier = SDMClassifier(0.8, **two, checkpoint=folder).fit(X, y)
        if not np.array_equal(classifier.decide(X).logits, self.expected):
            raise Wrong("training went on to other numbers")


def _facts(content: bytes) -> dict[str, Any]:
    end = 8 + int.from_bytes(content[:8], "little")
    facts: dict[str, Any] = json.loads(json.loads(content[8:end])["__metadata__"]["facts"])
    return facts


def _with_facts(content: bytes, facts: Any) -> bytes:
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"]["facts"] = json.dumps(facts)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[end:]


class Guard(Target):
    """A drift guard in a file, damaged or with a digest that fits."""

    name = "guard"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.content = (seeds / "guard.json").read_bytes()
        self.classifier = SDMClassifier.load(seeds / "model")
        self.decisions = self.classifier.decide(points()[0][:5])

    def case(self, random: Random) -> Case:
        from torchsdm.trust.guard import _digest

        if random.random() < 0.3:
            return {"guard.json": changed_bytes(random, self.content)}
        state = json.loads(self.content)
        state.pop("digest")
        kind = {name: state[name] for name in ("kind", "format")}
        state = changed_values(random, state)
        if isinstance(state, dict):
            state |= kind
            with suppress(TypeError, ValueError, RecursionError):
                state["digest"] = _digest(state)
        return {"guard.json": json_bytes(random, state)}

    def read(self, folder: Path) -> None:
        guard = DriftGuard.load(folder / "guard.json")
        guard.update(self.decisions)
        guard.reset("to begin again")
        assert guard.n_seen >= 0 and guard.raised in (True, False)
        guard.to_json()


class Exported(Target):
    """An export for NumPy, which knows no exceptions but Python's ValueError."""

    name = "export-numpy"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.content = (seeds / "exported" / "sdm_model.npz").read_bytes()

    def case(self, random: Random) -> Case:
        return {"sdm_model.npz": changed_bytes(random, self.content)}

    def read(self, folder: Path) -> None:
        from torchsdm.model import sdm_numpy

        try:
            sdm_numpy.load(folder).decide(points()[0][:3])
        except ValueError as error:
            raise TorchSDMError(str(error)) from error


MODEL_TARGETS: dict[type[Target], float] = {
    DamagedModel: 4,
    StrangersModel: 1.5,
    StrangersExamples: 1.5,
    DamagedLog: 0.5,
    StrangersLog: 0.5,
    Review: 3,
    Checkpoints: 6,
    ResumedTraining: 0.3,
    Guard: 10,
    Exported: 14,
}
