"""What bad input once broke: one test for each defect that ``fuzz.py`` found, worst first."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sqlite3
import zipfile
from contextlib import ExitStack

import numpy as np
import pytest

import tiny_models
from tools.chaos import seeds as good
from tools.chaos.harness import files_of, write_case
from tools.chaos.mutations import safetensors_bytes, safetensors_parts
from tools.chaos.targets_language_models import TEMPLATES
from tools.chaos.targets_models import SCHEMAS, signed
from torchsdm import HiddenStateExtractor, SDMClassifier, SDMEnsemble, read_states
from torchsdm.application import LiveModel
from torchsdm.data import Documents, LabelledStates, _rows
from torchsdm.errors import BackboneError, CheckpointError, InvalidInputError, ModelFileError
from torchsdm.files import parse_json, replace_file, usual_mode, whole_file
from torchsdm.hidden_states import Backbone
from torchsdm.hidden_states._bounds import bounded_text
from torchsdm.model.review import NewInput, ReviewStore
from torchsdm.settings import parse_toml
from torchsdm.trust import DriftGuard

X, Y = good.points()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mended")
    good._models(folder)
    return folder


@pytest.fixture
def folder(once, tmp_path):
    return shutil.copytree(once, tmp_path / "seeds")


# --- Writing where a link leads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["head", "writer.lock", "log.sqlite", "log.sqlite-wal"])
def test_changes_are_not_written_through_a_link(name, folder, tmp_path):
    outside = tmp_path / "outside"
    path = folder / "changed" / "changes" / name
    outside.write_bytes(path.read_bytes() if path.exists() else b"mine")
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    before = outside.read_bytes()
    with pytest.raises(ModelFileError, match=rf"{name} is a link"), LiveModel.open(folder / "changed") as live:
        live.add(LabelledStates(X[:1] + 9, [1], ["new"], ["new"]), who="Ada", why="new")
    assert outside.read_bytes() == before


def test_a_folder_of_changes_elsewhere_is_not_written(folder, tmp_path):
    (folder / "model" / "changes").symlink_to(tmp_path)
    with pytest.raises(ModelFileError, match=r"changes is a link"):
        LiveModel.open(folder / "model")
    with pytest.raises(ModelFileError, match=r"it is a link"):
        ReviewStore(folder / "model" / "changes" / "review.sqlite")
    assert not (tmp_path / "writer.lock").exists()


def test_unfinished_files_that_are_links_are_replaced_and_not_followed(tmp_path):
    outside, path = tmp_path / "outside", tmp_path / "file"
    outside.write_text("mine")
    for name in ("file", "mode"):
        (tmp_path / f".writing-{name}").symlink_to(outside)
    usual_mode(tmp_path)
    replace_file(path, b"new")
    assert outside.read_text() == "mine" and path.read_bytes() == b"new" and not path.is_symlink()
    (tmp_path / ".writing-file").symlink_to(outside)
    with whole_file(path) as temporary:
        temporary.write_text("newer")
    assert outside.read_text() == "mine" and path.read_text() == "newer"


# --- Programs in data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", SCHEMAS[:-1])
def test_a_stranger_s_tables_hold_rows_and_nothing_that_runs(schema, folder):
    """The first view never ends, the second fills the memory."""
    model = folder / "model"
    path = next(model.glob("support-examples-*.sqlite"))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE examples")
        connection.execute(schema)
    connection.close()
    write_case(signed(files_of(model), json.loads((model / "config.json").read_bytes())), model)
    with pytest.raises(ModelFileError, match=r"is not as torchsdm makes it"):
        SDMClassifier.load(model)


def test_a_trigger_cannot_take_away_what_is_added(folder):
    path = folder / "changed" / "changes" / "log.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON changes BEGIN DELETE FROM points; END")
    connection.close()
    with pytest.raises(ModelFileError, match=r"trigger 't' is not as torchsdm makes it"):
        LiveModel.open(folder / "changed")
    with sqlite3.connect(folder / "review.sqlite") as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON inputs BEGIN DELETE FROM marks; END")
    connection.close()
    with pytest.raises(ModelFileError, match=r"trigger 't' is not as torchsdm makes it"):
        ReviewStore(folder / "review.sqlite").put([NewInput("a")], "sent", "now")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes more than"),
        ("{{ 'a' * 10 ** 10 }}", "takes more than"),
        ("{{ '%9999999999d' % 1 }}", "takes more than"),
        ("{% for i in range(60000) %}{{ 'a' * 100 }}{% endfor %}", "more than 1,000,000 characters"),
        ("{{ 1 // 0 }}", "refuses the prompt"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses the prompt"),
        (TEMPLATES[1], "refuses the prompt"),
        (TEMPLATES[2], "refuses the prompt"),
    ],
)
def test_a_chat_template_ends_within_bounds(template, said, monkeypatch):
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    monkeypatch.setattr("torchsdm.hidden_states._bounds.SECONDS", 1)
    made = ImmutableSandboxedEnvironment()
    with pytest.raises(InvalidInputError, match=said):  # jinja computes constants while it compiles
        bounded_text(lambda: made.from_string(template).render(), "The template")


def test_a_chat_template_within_bounds_is_rendered():
    assert bounded_text(lambda: "a text \ue000", "The template") == "a text \ue000"


def test_a_process_with_over_a_thousand_open_files_renders_templates():
    with ExitStack() as opened:
        for _ in range(1100):
            opened.enter_context(open(os.devnull, "rb"))
        assert bounded_text(lambda: "a text", "The template") == "a text"


# --- Other numbers, without a word ----------------------------------------------------------------------------------


def test_a_damaged_checkpoint_does_not_train_on_to_another_model(folder):
    path = folder / "checkpoint" / "current-001.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # of a weight
    path.write_bytes(content)
    settings = {**good.SMALL, "n_rounds": 2}
    with pytest.raises(CheckpointError, match=r"its contents are not what was written"):
        SDMClassifier(0.8, **settings, checkpoint=folder / "checkpoint").fit(X, Y)


# --- Memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["texts.jsonl.gz", "texts.csv.gz"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(name, tmp_path, monkeypatch):
    monkeypatch.setattr(_rows, "LONGEST_LINE", 1000)
    head = b"text\n" if "csv" in name else b""
    (tmp_path / name).write_bytes(gzip.compress(head + b"a" * 100_000))
    with pytest.raises(InvalidInputError, match=r"line \d: longer than 1,000 characters"):
        list(Documents(tmp_path / name))


def test_an_archive_that_claims_more_than_it_can_unpack_to_is_refused(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4), }\n"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    path = tmp_path / "states.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hidden_states.npy", member)
    size = (2**44 + len(member)).to_bytes(8, "little")
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = size[:4]  # what the directory says that the member unpacks to
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"hidden_states"):
        read_states(path, needs_labels=False)


def test_the_width_of_labels_is_not_taken_from_a_stranger(folder):
    model = folder / "model"
    config = json.loads((model / "config.json").read_bytes())
    config["classes"]["dtype"] = "<U100000000"
    write_case(signed(files_of(model), config), model)
    with pytest.raises(ModelFileError, match=r"are none that are stored"):
        SDMClassifier.load(model)


def test_the_size_of_an_adaptor_is_not_taken_from_a_stranger(folder):
    model = folder / "model"
    config = json.loads((model / "config.json").read_bytes())
    config["models"][0]["n_filters"] = 2**31
    write_case(signed(files_of(model), config), model)
    with pytest.raises(ModelFileError, match=r"do not match"):
        SDMClassifier.load(model)


# --- Exceptions of others -------------------------------------------------------------------------------------------

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, "NaN", "-Infinity", "1e999", '"\\ud800"', '{"a": "\\udfff"}', "", "{", "\x00"])
def test_what_cannot_be_written_as_json_is_not_read_as_json(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_json('{"a": ["\\ud83d\\ude00", 1e300, null]}') == {"a": ["\U0001f600", 1e300, None]}


@pytest.mark.parametrize("change", [DEEP.encode(), b'{"a": 1e999}'])
def test_a_config_that_is_no_json_of_ours_is_damaged(change, folder):
    (folder / "model" / "config.json").write_bytes(change)
    with pytest.raises(ModelFileError, match=r"config.json is damaged"):
        SDMClassifier.load(folder / "model")


def test_a_config_that_leads_to_itself_cannot_be_read(folder):
    path = folder / "model" / "config.json"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(ModelFileError, match=r"config.json cannot be read"):
        SDMClassifier.load(folder / "model")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("deltas_spent", True),
        ("deltas_spent", {"a": {"b": []}}),
        ("history", [{"round": "one"}]),
        ("classes", {"dtype": "<i8", "values": [0, 0]}),
        ("input_ndim", 7),
        ("n_features_in", 3),
        ("models", []),
        ("training_rows", [2**70]),
        ("familiarity", None),
        ("certificate", {"alpha": 2}),
    ],
)
def test_a_stranger_s_config_is_checked_value_by_value(key, value, folder):
    model = folder / "model"
    config = json.loads((model / "config.json").read_bytes())
    write_case(signed(files_of(model), {**config, key: value}), model)
    with pytest.raises(ModelFileError, match=r"config.json"):
        SDMClassifier.load(model)


@pytest.mark.parametrize(
    ("file", "tensor", "change"),
    [
        ("support", "labels", {"dtype": "F64"}),
        ("support", "predictions", {"dtype": "F64"}),
        ("calibration", "logits", {"dtype": "I32"}),
        ("calibration", "labels", {"dtype": "F64"}),
        ("calibration", "similarity", {"dtype": "F64"}),
        ("calibration-exemplars", "exemplars", {"dtype": "I32"}),
        ("support-exemplars", "exemplars", {"dtype": "I32"}),
    ],
)
def test_tensors_of_a_stranger_have_our_types(file, tensor, change, folder):
    model = folder / "model"
    config = json.loads((model / "config.json").read_bytes())
    path = model / config["files"][file]["file"]
    header, data = safetensors_parts(path.read_bytes())
    header[tensor] |= change
    path.write_bytes(safetensors_bytes(header, data))
    write_case(signed(files_of(model), config), model)
    with pytest.raises(ModelFileError, match=rf"do not match: .*{tensor}"):
        SDMClassifier.load(model)


def test_labels_of_a_stranger_are_classes(folder):
    model = folder / "model"
    config = json.loads((model / "config.json").read_bytes())
    path = model / config["files"]["support"]["file"]
    header, data = safetensors_parts(path.read_bytes())
    start, end = header["labels"]["data_offsets"]
    path.write_bytes(safetensors_bytes(header, data[:start] + b"\x63" * (end - start) + data[end:]))
    write_case(signed(files_of(model), config), model)
    with pytest.raises(ModelFileError, match=r"'labels' of support must be in"):
        SDMClassifier.load(model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("calibration", {"shape": [2, 0], "base64": ""}),
        ("log_bets", {"shape": [15], "base64": "AAAA" * 40}),
        ("false_alarm", 2),
        ("seed", "0"),
        ("raised_at", "yesterday"),
        ("resets", [{"reason": 1}]),
        ("stream", None),
    ],
)
def test_a_guard_whose_digest_fits_is_still_checked(key, value, folder):
    from torchsdm.trust.guard import _digest

    state = json.loads((folder / "guard.json").read_text())
    state.pop("digest")
    state[key] = value
    (folder / "guard.json").write_text(json.dumps({**state, "digest": _digest(state)}))
    with pytest.raises(ModelFileError, match=r"is not what a drift guard writes"):
        DriftGuard.load(folder / "guard.json")


@pytest.mark.parametrize("header", ["(" * 5000, "{'descr': '<f4'", "{'descr': [], 'fortran_order': 1, 'shape': ''}"])
def test_a_header_that_numpy_cannot_parse_is_told(header, tmp_path):
    with zipfile.ZipFile(tmp_path / "states.npz", "w") as archive:
        text = header.encode()
        archive.writestr("hidden_states.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(InvalidInputError, match=r"states\.npz cannot be read"):
        read_states(tmp_path / "states.npz", needs_labels=False)


def test_metadata_of_a_parquet_file_that_is_too_deep_is_none(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": ["a", "b"], "label": [0, 1]}).replace_schema_metadata({"huggingface": DEEP})
    pq.write_table(table, tmp_path / "texts.parquet")
    assert [one.label for one in Documents(tmp_path / "texts.parquet")] == [0, 1]


def test_an_export_that_is_damaged_says_so(folder):
    from torchsdm.model import sdm_numpy

    path = folder / "exported" / "sdm_model.npz"
    content = path.read_bytes()
    for spoilt in (content[:-40], content[:100], b"", content[:30] + b"\xff" * 40 + content[70:]):
        path.write_bytes(spoilt)
        with pytest.raises(ValueError, match=r"sdm_model\.npz is damaged|is not an export"):
            sdm_numpy.load(folder / "exported")


def test_a_message_about_long_input_is_short():
    error = InvalidInputError(f"Got {'a' * 100_000}; give less.")
    assert len(str(error)) < 2100 and str(error).startswith("Got aaa") and str(error).endswith("; give less.")


def test_whatever_transformers_makes_of_a_file_is_told(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "quantization_config": true}')
    (tmp_path / "model.safetensors").write_bytes(io.BytesIO(b"\x08" + b"\x00" * 7 + b"{}      ").getvalue())
    with pytest.raises(BackboneError, match=r"cannot be loaded|are incomplete"):
        Backbone.load(tmp_path)


def test_rows_that_are_missing_from_a_table_are_told(folder):
    model = folder / "model"
    path = next(model.glob("support-examples-*.sqlite"))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM examples WHERE position = 2")
    connection.close()
    write_case(signed(files_of(model), json.loads((model / "config.json").read_bytes())), model)
    with pytest.raises(ModelFileError, match=r"rows are missing or are no examples"):
        SDMClassifier.load(model).models_[0].examples.all()


def test_numbers_beyond_floats_are_told():
    with pytest.raises(InvalidInputError, match=r"'n_filters' .* must be positive"):
        SDMClassifier(n_filters=10**400).fit(X, Y)
    assert np.isfinite(X).all()


def test_parquet_whose_texts_are_no_texts_is_told(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": pa.array([b"a film", b"\xff\xfe"]).view(pa.string())}), tmp_path / "bad.parquet")
    with pytest.raises(InvalidInputError, match=r"bad\.parquet cannot be read as Parquet"):
        list(Documents(tmp_path / "bad.parquet"))


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000])
def test_settings_without_end_are_told(text):
    with pytest.raises(InvalidInputError, match=r"it is not valid TOML"):
        parse_toml(text, "it")


def test_a_config_that_is_a_device_is_told(folder):
    (folder / "model" / "config.json").unlink()
    (folder / "model" / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ModelFileError, match=r"is not a file"):
        SDMClassifier.load(folder / "model")


def test_rounds_of_different_alphas_are_told(folder):
    model = folder / "ensemble"
    config = json.loads((model / "config.json").read_bytes())
    config["models"][1]["regions"] *= 2
    write_case(signed(files_of(model), config), model)
    with pytest.raises(ModelFileError, match=r"its rounds have different alphas"):
        SDMEnsemble.load(model)


@pytest.mark.parametrize("path", ["/", "/page/api.js"])
@pytest.mark.parametrize("ranges", ["; drop table", "bytes=9999999999-", "bytes=0-1"])
def test_ranges_of_the_page_are_answered_with_the_whole(path, ranges, folder):
    from fastapi.testclient import TestClient

    from torchsdm.service import ServiceSettings, create_app

    with TestClient(create_app(folder / "model", ServiceSettings()), base_url="http://127.0.0.1") as client:
        whole = client.get(path)
        assert client.get(path, headers={"range": ranges}).content == whole.content
    assert whole.status_code == 200 and len(whole.content) > 2


# --- Language models that promise more than they hold ---------------------------------------------------------------


@pytest.fixture(scope="module")
def language_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language-models")
    tiny_models.save_model(folder / "encoder", *tiny_models.bert())
    good._gguf(folder / "tiny.gguf")
    return folder


@pytest.mark.parametrize(
    ("promised", "said"),
    [
        ({"num_hidden_layers": 8_388_609}, "num_hidden_layers = 8,388,609; more than 2,048"),
        ({"intermediate_size": 2**31}, "weights, but its files have"),
    ],
)
def test_a_language_model_that_promises_more_than_its_files_hold_is_told(promised, said, language_models, tmp_path):
    folder = shutil.copytree(language_models / "encoder", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **promised}))
    with pytest.raises(BackboneError, match=said):
        Backbone.load(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (b"llama.block_count", "num_hidden_layers = 8,388,609"),
        (b"llama.feed_forward_length", "weights, but its files have"),
    ],
)
def test_a_gguf_file_with_millions_of_layers_or_filters_is_told(name, said, language_models, tmp_path):
    content = (language_models / "tiny.gguf").read_bytes()
    at = content.index(name) + len(name) + 4  # after its type
    file = tmp_path / "many.gguf"
    file.write_bytes(content[:at] + (8_388_609).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(BackboneError, match=said):
        Backbone.load(file)


def test_weights_behind_a_link_that_leads_nowhere_are_told(language_models, tmp_path):
    folder = shutil.copytree(language_models / "encoder", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("missing")
    with pytest.raises(BackboneError, match=r"model\.safetensors cannot be read"):
        Backbone.load(folder)


def test_a_tokenizer_without_a_word_for_unknown_words_is_told(language_models, tmp_path):
    folder = shutil.copytree(language_models / "encoder", tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"]["[UNK]"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BackboneError, match="tokenizer"):
        HiddenStateExtractor(Backbone.load(folder)).transform(["a word with \u2603 in it"])


@pytest.mark.parametrize("name", ["config.json", "modules.json", "sentence_bert_config.json"])
def test_a_language_model_whose_files_nest_without_end_is_told(name, language_models, tmp_path):
    folder = shutil.copytree(language_models / "encoder", tmp_path / "model")
    (folder / "modules.json").write_text('[{"path": ""}]')
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(BackboneError, match=f"{name} cannot be read"):
        Backbone.load(folder)


@pytest.mark.parametrize("path", ["../elsewhere", "/proc", "no/such/folder", "x" * 5000, "a\x00b"])
def test_a_transformer_in_another_folder_is_told(path, language_models, tmp_path):
    shutil.copytree(language_models / "encoder", tmp_path / "elsewhere")
    folder = shutil.copytree(language_models / "encoder", tmp_path / "model")
    (folder / "modules.json").write_text(json.dumps([{"path": path}]))
    with pytest.raises(BackboneError, match=r"modules\.json cannot be read") as caught:
        Backbone.load(folder)
    assert len(str(caught.value)) < 1000
