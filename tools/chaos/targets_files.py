"""Files of documents, hidden states and settings."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tools.chaos.harness import OUTSIDE, Case, Link, Target, Wrong, files_of
from tools.chaos.mutations import (
    NUMBERS,
    any_text,
    any_value,
    bomb,
    changed_bytes,
    changed_safetensors,
    changed_values,
    json_bytes,
)
from torchsdm import Documents, read_states
from torchsdm.data import Source, state_blocks
from torchsdm.data.store import begun_folder, read_block
from torchsdm.files import describe_file


class _File(Target):
    """One file; ``names`` are the seeds."""

    names: Sequence[str] = ()

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.contents = {name: (seeds / name).read_bytes() for name in self.names}

    def case(self, random: Random) -> Case:
        name = random.choice(sorted(self.contents))
        return {name: self.changed(random, name, self.contents[name])}

    def changed(self, random: Random, name: str, content: bytes) -> bytes:
        return changed_bytes(random, content, random.choice(sorted(self.contents.values())))

    def read(self, folder: Path) -> None:
        (path,) = (path for path in folder.iterdir() if path.name in self.contents)
        self.read_file(path)

    def read_file(self, path: Path) -> None:
        raise NotImplementedError


def _read_documents(path: Path) -> None:
    for problems in ("raise", "reject"):
        documents = Documents(path, problems=problems, repeated="keep")
        for document in documents:
            if not isinstance(document.text, str) or not isinstance(document.id, str | int):
                raise Wrong(f"a document has text {document.text!r} and id {document.id!r}")
        assert documents.report.n_documents >= 0


def _read_states(path: Path) -> None:
    Source.open(path).holds_states()
    Source.open(path).holds_states(text="text")
    try:
        whole = read_states(path, needs_labels=False)
        n = sum(len(block) for block in state_blocks(path, 7))
        if n != len(whole):
            raise Wrong(f"{len(whole)} rows at once, {n} in blocks")
    finally:
        bad: dict[int, Any] = {}
        for block in state_blocks(path, 16, bad=bad, width=4):
            assert len(block)


class CsvDocuments(_File):
    name = "documents-csv"
    names = ("texts.csv", "texts.csv.gz", "texts.tsv")

    def changed(self, random: Random, name: str, content: bytes) -> bytes:
        if name.endswith("gz") and random.random() < 0.05:
            return bomb(random, b"a,1\n")
        if random.random() < 0.3 and not name.endswith("gz"):
            cell = any_text(random).encode("utf-8", "surrogatepass")
            return content.replace(random.choice([b"text", b"d1", b"quoted", b"label", b"\n"]), cell, 1)
        return super().changed(random, name, content)

    def read_file(self, path: Path) -> None:
        _read_documents(path)


class JsonDocuments(_File):
    name = "documents-jsonl"
    names = ("texts.jsonl", "texts.jsonl.gz")
    read_one = staticmethod(_read_documents)

    def changed(self, random: Random, name: str, content: bytes) -> bytes:
        if name.endswith("gz"):
            if random.random() < 0.05:
                return bomb(random, random.choice([b'{"text": "a"}\n', b" "]))
            return super().changed(random, name, content)
        if random.random() < 0.3:
            return super().changed(random, name, content)
        lines = content.splitlines()
        for _ in range(random.choice([1, 1, 3])):
            place = random.choice([0, random.randrange(len(lines))])
            lines[place] = json_bytes(random, changed_values(random, json.loads(content.splitlines()[place])))
        return b"\n".join(lines)

    def read_file(self, path: Path) -> None:
        type(self).read_one(path)


class JsonStates(JsonDocuments):
    name = "states-jsonl"
    names = ("states.jsonl",)
    read_one = staticmethod(_read_states)


class ParquetDocuments(_File):
    name = "documents-parquet"
    names = ("texts.parquet",)

    def changed(self, random: Random, name: str, content: bytes) -> bytes:
        return _other_parquet(random) if random.random() < 0.3 else super().changed(random, name, content)

    def read_file(self, path: Path) -> None:
        _read_documents(path)


class ParquetStates(ParquetDocuments):
    name = "states-parquet"
    names = ("states.parquet",)

    def read_file(self, path: Path) -> None:
        _read_states(path)


def _other_parquet(random: Random) -> bytes:
    """A sound Parquet file with other types, and what others may write beside the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = random.choice([0, 1, 5])
    kinds = [
        *(pa.int64(), pa.uint8(), pa.float16(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
        *(pa.timestamp("ns"), pa.date32(), pa.decimal128(30, 2), pa.list_(pa.float32()), pa.list_(pa.list_(pa.int8()))),
        *(pa.list_(pa.float32(), 4), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int32()), pa.null()),
        *(pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string()), pa.duration("s"), pa.time64("us")),
    ]
    columns = {}
    for name in random.sample(["text", "hidden_states", "label", "labels", "id", "ids", "texts", "answer"], 4):
        kind = random.choice(kinds)
        try:
            columns[name] = pa.array([_arrow_value(random, kind) for _ in range(n)], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = pa.nulls(n, pa.string())
    table = pa.table(columns)
    if random.random() < 0.5:
        features = {
            "label": {"_type": "ClassLabel", "names": ["a", "b"]},
            "text": {"dtype": "string", "_type": "Value"},
        }
        about = changed_values(random, {"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": json_bytes(random, about)})
    out = io.BytesIO()
    pq.write_table(table, out, compression=random.choice(["NONE", "SNAPPY", "GZIP", "ZSTD"]))
    return out.getvalue()


def _arrow_value(random: Random, kind: Any) -> Any:
    import pyarrow as pa

    if random.random() < 0.2:
        return None
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        size = 4 if pa.types.is_fixed_size_list(kind) or random.random() < 0.7 else random.randrange(4)
        return [_arrow_value(random, kind.value_type) for _ in range(size)]
    if pa.types.is_struct(kind):
        return {"a": 1}
    if pa.types.is_map(kind):
        return [("a", 1)]
    return {**dict.fromkeys(("string", "large_string"), "text"), "binary": b"\xff\x00"}.get(str(kind), 1)


class NpzStates(_File):
    name = "states-npz"
    names = ("states.npz", "packed.npz")

    def changed(self, random: Random, name: str, content: bytes) -> bytes:
        if random.random() < 0.4:
            return super().changed(random, name, content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {one: archive.read(one) for one in archive.namelist()}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            for one, member in members.items():
                archive.writestr(one, self._member(random, member) if random.random() < 0.5 else member)
            if random.random() < 0.1:
                archive.writestr("../escaped.npy", b"")
        return out.getvalue()

    def _member(self, random: Random, member: bytes) -> bytes:
        """An array whose header says something else."""
        how = random.randrange(5)
        if how == 0:
            return changed_bytes(random, member)
        if how == 1:
            out = io.BytesIO()
            shape = random.choice([(40,), (40, 4), (40, 0), (0, 4), (40, 2, 4), (1 << 16, 4), ()])
            kind = random.choice(["f2", "f8", "c8", "i8", "U3", "S3", "?", "M8[s]", "V4"])
            values = np.zeros(shape, kind)
            np.save(out, values)
            return out.getvalue()
        end = 10 + int.from_bytes(member[8:10], "little")
        claimed = random.choice(
            ["(-1, 4)", "(40, -4)", f"({2**62}, 4)", "(40, 4.0)", "()", "4", f"({2**64},)", "(0, 4)"]
        )
        descr = random.choice(["'|O'", "'<f4'", "'<f16'", "[('a', '<f4')]", "'<U1000000000'", "__import__('os')", "''"])
        header = (
            f"{{'descr': {descr}, 'fortran_order': {random.choice(['True', 'False', '1'])}, 'shape': {claimed}, }}\n"
        )
        if how == 2:
            header = "(" * 5000 + header
        return member[:8] + (len(header) % 65536).to_bytes(2, "little") + header.encode() + member[end:]

    def read_file(self, path: Path) -> None:
        _read_states(path)


class SafetensorsStates(_File):
    name = "states-safetensors"
    names = ("states.safetensors",)

    def changed(self, random: Random, name: str, content: bytes) -> bytes:
        return changed_safetensors(random, content) if random.random() < 0.7 else super().changed(random, name, content)

    def read_file(self, path: Path) -> None:
        _read_states(path)


class StatesFolder(Target):
    """A folder of states, damaged or, half of the time, written by a stranger, who can compute digests."""

    name = "states-folder"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.files = files_of(seeds / "folder")

    def case(self, random: Random) -> Case:
        files = dict(self.files)
        name = random.choice(sorted(files))
        content = files[name]
        assert isinstance(content, bytes)
        if name == "manifest.json":
            files[name] = json_bytes(random, changed_values(random, json.loads(content)))
            return files
        if random.random() < 0.08:
            files[name] = Link(random.choice([f"../{OUTSIDE}", "/dev/zero", name, "..", "missing"]))
            return files
        is_table = name.endswith("jsonl")
        if random.random() < 0.5:
            files[name] = changed_bytes(random, content)
        elif is_table:
            lines = content.splitlines()
            place = random.randrange(len(lines))
            lines[place] = json_bytes(random, changed_values(random, json.loads(lines[place])))
            files[name] = b"\n".join(lines)
        else:
            files[name] = changed_safetensors(random, content)
        return self._signed(files) if random.random() < 0.6 else files

    def _signed(self, files: Case) -> Case:
        manifest_bytes = files["manifest.json"]
        assert isinstance(manifest_bytes, bytes)
        manifest = json.loads(manifest_bytes)
        for shard in manifest["shards"]:
            for kind in ("states", "examples"):
                shard[kind] = signed_entry(shard[kind]["file"], files)
        return {**files, "manifest.json": json.dumps(manifest).encode()}

    def read(self, folder: Path) -> None:
        try:
            if (begun := begun_folder(folder)) is not None:
                _ = begun.origin, begun.n_finished_rows
            read_states(folder, needs_labels=False)
        finally:
            for block in state_blocks(folder, 5):
                assert len(block)


def signed_entry(name: str, files: Case) -> dict[str, Any]:
    """What a manifest or config says of a file, after it was changed."""
    import hashlib

    content = files[name]
    assert isinstance(content, bytes)
    return {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


class CachedBlock(Target):
    """A block of the cache: whatever is in the file, it is read or made again."""

    name = "states-cache"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.content = next((seeds / "folder").glob("*.safetensors")).read_bytes()
        assert describe_file(next((seeds / "folder").glob("*.safetensors")))["bytes"] == len(self.content)

    def case(self, random: Random) -> Case:
        change = changed_safetensors if random.random() < 0.5 else changed_bytes
        return {"block.safetensors": change(random, self.content)}

    def read(self, folder: Path) -> None:
        read_block(folder / "block.safetensors")


class Settings(Target):
    """An experiment, and settings of the command."""

    name = "settings-toml"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        from research.experiments import experiment_names, experiment_source

        self.sources = [experiment_source(name) for name in experiment_names()]
        self.command = '[train]\nalpha = 0.9\n[predict]\nexemplars = 3\ntext = "review"\n'

    def case(self, random: Random) -> Case:
        source = random.choice(self.sources).encode()
        lines = source.splitlines()
        if random.random() < 0.6:
            place = random.randrange(len(lines))
            key, equals, _ = lines[place].partition(b"=")
            if equals:
                lines[place] = key + b"= " + self._value(random)
            else:
                lines.insert(
                    place,
                    random.choice([b"[training]", b"a.b.c = 1", b"[[tests]]", b"[tests.x]", b"x = " + b"[" * 3000]),
                )
            source = b"\n".join(lines)
        else:
            source = changed_bytes(random, source, self.command.encode())
        command = changed_bytes(random, self.command.encode(), source)
        return {"experiment.toml": source, "command.toml": command}

    def _value(self, random: Random) -> bytes:
        plain = json_bytes(random, any_value(random)).replace(b"null", b"1979-05-27")
        return random.choice(
            [plain, str(random.choice(NUMBERS)).encode(), b"nan", b"[1, 'a']", b"{a = {b = 1}}", b"''", b"9" * 5000]
        )

    def read(self, folder: Path) -> None:
        from research.experiments import load_experiment
        from torchsdm.cli.command import _settings

        try:
            load_experiment(str(folder / "experiment.toml"))
        finally:
            _settings(folder / "command.toml")


FILE_TARGETS: dict[type[Target], float] = {
    CsvDocuments: 14,
    JsonDocuments: 5,
    ParquetDocuments: 14,
    JsonStates: 12,
    NpzStates: 8,
    SafetensorsStates: 22,
    ParquetStates: 12,
    StatesFolder: 5,
    CachedBlock: 30,
    Settings: 10,
}
