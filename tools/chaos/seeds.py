"""Good input of every kind, made by the library itself, for ``targets`` to spoil."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import tiny_models
from torchsdm import HiddenStateExtractor, SDMClassifier, SDMEnsemble
from torchsdm.application import LiveModel
from torchsdm.data import LabelledStates
from torchsdm.errors import SDMWarning
from torchsdm.estimators.text_classifier import SDMTextClassifier
from torchsdm.model.review import NewInput, ReviewStore
from torchsdm.trust import DriftGuard

WIDTH = 4
TEXTS = [f"number {i} is {'great, and lovely' if i % 2 else 'awful'} é" for i in range(40)]
SMALL: dict[str, Any] = {
    "n_filters": 4,
    "n_rounds": 1,
    "training": "sdm",
    "max_epochs": 2,
    "learning_rate": 0.01,
    "random_state": 0,
}


def make_seeds(folder: Path) -> None:
    """Write all seeds into a folder, if they are not there."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)
        for make in (_documents, _states, _models, _language_models):
            make(folder)
    (folder / "done").touch()


def points(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Two blobs (n, 4) and their labels."""
    y = np.arange(n) % 2
    return (np.random.default_rng(0).normal(size=(n, WIDTH)) + 2.0 * y[:, None]).astype(np.float32), y


def _documents(folder: Path) -> None:
    rows = [
        {"id": f"d{i}", "text": text, "label": "good" if i % 2 else "bad", "answer": "so"}
        for i, text in enumerate(TEXTS)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    table = 'id,text,label\nd0,"a, ""quoted"" text",1\nd1,"of two\nlines",0\nd2,é,1\n'.encode()
    (folder / "texts.jsonl").write_bytes(lines)
    (folder / "texts.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "texts.csv").write_bytes(table)
    (folder / "texts.csv.gz").write_bytes(gzip.compress(table))
    (folder / "texts.tsv").write_bytes(table.replace(b",", b"\t"))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), folder / "texts.parquet")


def _states(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    X, y = points()
    ids = np.array([f"s{i}" for i in range(len(X))])
    np.savez(folder / "states.npz", hidden_states=X, labels=y, ids=ids)
    np.savez_compressed(folder / "packed.npz", hidden_states=X, labels=y)
    save_file({"hidden_states": X, "labels": y}, folder / "states.safetensors")
    rows = [
        {"id": f"s{i}", "hidden_states": x.tolist(), "label": int(c)} for i, (x, c) in enumerate(zip(X, y, strict=True))
    ]
    (folder / "states.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "states.parquet")


def _models(folder: Path) -> None:
    X, y = points()
    classifier = SDMClassifier(0.8, certification_size=0.25, **SMALL)
    classifier.fit(X, y, ids=[f"s{i}" for i in range(40)], texts=TEXTS)
    classifier.save(folder / "model")
    classifier.export_numpy(folder / "exported")
    SDMEnsemble(0.8, **{**SMALL, "n_rounds": 2}).fit(X, y).save(folder / "ensemble")
    DriftGuard.from_classifier(classifier).save(folder / "guard.json")
    shutil.copytree(folder / "model", folder / "changed")
    with LiveModel.open(folder / "changed", who="Ada") as live:
        added = LabelledStates(X[:3] + 0.5, np.array([0, 1, 1]), ["n0", "n1", "n2"], ["one", "two", "three"])
        live.add(added, who="Ada", why="new", key="k1")
        live.relabel(["n0"], [1], who="Bo", why="wrong")
        live.remove(["n1"], who="Bo", why="wrong")
        live.recalibrate(0.7, who="Ada", why="more")
        live.undo(4, who="Ada", why="too soon")
    with sqlite3.connect(folder / "changed" / "changes" / "log.sqlite") as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, so that what is changed is what is read
    connection.close()
    store = ReviewStore(folder / "review.sqlite")
    store.put([NewInput("a text", "r1", None, 1), NewInput("another")], "sent", "2026-01-01T00:00:00Z")
    store.mark(1, 0, "Ada", "2026-01-01T00:00:01Z")
    store.close()
    _checkpoint(folder, X, y)


class _Enough(Exception):
    """Training is stopped."""


def _checkpoint(folder: Path, X: np.ndarray, y: np.ndarray) -> None:
    """A fit that was interrupted, so that a finished and a running round are on disk."""
    from torchsdm.training.callbacks import Checkpointing

    def interrupted(self: Any, current: Any, state: Any, store: Any = Checkpointing.after_epoch) -> None:
        store(self, current, state)
        if current.number == 1:
            raise _Enough

    original, Checkpointing.after_epoch = Checkpointing.after_epoch, interrupted  # type: ignore[method-assign]
    try:
        SDMClassifier(0.8, **{**SMALL, "n_rounds": 2}, checkpoint=folder / "checkpoint").fit(X, y)
    except _Enough:
        pass
    finally:
        Checkpointing.after_epoch = original  # type: ignore[method-assign]


def _language_models(folder: Path) -> None:
    encoder = tiny_models.save_model(folder / "encoder", *tiny_models.bert())
    tiny_models.export_onnx(folder / "onnx" / "model.onnx", tiny_models.bert()[0])
    for path in encoder.glob("*.json"):
        shutil.copy(path, folder / "onnx" / path.name)
    tiny_models.save_model(folder / "decoder", *tiny_models.llama())
    HiddenStateExtractor(str(encoder)).extract_to(folder / "folder", folder / "texts.jsonl", shard_size=16)
    text_classifier = SDMTextClassifier(str(encoder), classifier=SDMClassifier(0.8, **SMALL))
    text_classifier.fit(TEXTS, ["bad", "good"] * 20).save(folder / "text-model")
    _gguf(folder / "tiny.gguf")


def _gguf(path: Path) -> None:
    """A llama of one layer with a tokenizer of a few tokens."""
    from gguf import GGUFWriter, TokenType

    rng, width, tokens = np.random.default_rng(0), 32, [*"abcdefg", "ab", "<s>", "</s>"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * 8 + [TokenType.CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(8)
    writer.add_eos_token_id(9)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    shapes = {"token_embd": (10, width), "output": (10, width), "output_norm": (width,)}
    shapes |= {f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (width, width) for name in ("gate", "up", "down")}
    shapes |= {"blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
