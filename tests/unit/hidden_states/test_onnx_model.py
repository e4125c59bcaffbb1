"""Encoders in ONNX files: found, run and refused; the states are those of the torch weights and of no other batch."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic

from tiny_models import (
    HIDDEN_SIZE,
    MAX_POSITIONS,
    N_LAYERS,
    bert,
    convbert,
    export_onnx,
    mistral_without_head,
    plain_states,
    roberta,
    save_model,
)
from torchsdm import HiddenStateExtractor
from torchsdm.data import StatesStore
from torchsdm.errors import BackboneError, InvalidInputError, MissingExtraError
from torchsdm.hidden_states import Backbone
from torchsdm.hidden_states.model_source import find_model
from torchsdm.hidden_states.onnx_model import OnnxModel

MODELS = {"bert": bert, "roberta": roberta, "convbert": convbert, "mistral": mistral_without_head}
SEQUENCES = [[11, 60, 70, 12], [99, 150, 33, 12, 18, 44, 71, 11, 120, 90, 17, 20], [45], [12, 70, 60, 11, 45, 45, 45]]
TEXTS = ["A dull film.", "Was it good? Yes. Was it long? No. It rains, it pours; the hero left early.", "The end", "No"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For each model: its torch directory, and beside it the same as an ONNX file alone."""
    root = tmp_path_factory.mktemp("onnx")
    for name, make in MODELS.items():
        model, tokenizer = make()
        save_model(root / name / "torch", model, tokenizer)
        shutil.copytree(root / name / "torch", root / name / "onnx")
        (root / name / "onnx" / "model.safetensors").unlink()
        export_onnx(root / name / "onnx" / "model.onnx", model.eval())
    quantised = shutil.copytree(root / "bert" / "onnx", root / "int8")
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # advice of the quantiser
    quantize_dynamic(quantised / "model.onnx", quantised / "model_quantized.onnx")
    logger.setLevel(level)
    (quantised / "model.onnx").unlink()
    return root


@pytest.fixture
def directory(saved, tmp_path):
    """A BERT with a model.onnx beside its configuration; each test has its own copy."""
    return Path(shutil.copytree(saved / "bert" / "onnx", tmp_path / "bert"))


def edited(file, edit):
    """Change the graph of a file."""
    model = onnx.load(file)
    edit(model.graph)
    onnx.save(model, file)


def loads_onnx(reference):
    return isinstance(Backbone.load(reference).model, OnnxModel)


# --- States ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_states_are_those_of_the_torch_weights(name, saved):
    torch_model, onnx_model = Backbone.load(saved / name / "torch"), Backbone.load(saved / name / "onnx")
    assert isinstance(onnx_model.model, OnnxModel) and not onnx_model.model.runs_alone
    for what in (
        "is_decoder",
        "is_padding_neutral",
        "position_limit",
        "max_tokens",
        "hidden_size",
        "has_chat_template",
    ):
        assert getattr(onnx_model, what) == getattr(torch_model, what), what
    assert not onnx_model.has_output_layer
    assert onnx_model.run(SEQUENCES).states.shape == (4, 12, HIDDEN_SIZE)
    for ids in SEQUENCES:
        expected = plain_states(torch_model, ids)
        got = onnx_model.run([ids]).states[0]
        assert (got - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("parts", [("first", "mean"), ("final",)])
def test_pooled_states_are_those_of_the_torch_weights_in_any_batch(saved, parts):
    expected = HiddenStateExtractor(saved / "bert" / "torch", parts=parts).extract(TEXTS).hidden_states
    for batch_tokens in (1, 30, 4096):
        extractor = HiddenStateExtractor(saved / "bert" / "onnx", parts=parts, batch_tokens=batch_tokens)
        got = extractor.extract(TEXTS).hidden_states
        assert got.dtype == np.float32 and np.abs(got - expected).max() < 1e-5 * expected.std()


def test_activations_in_8_bits_do_not_depend_on_the_batch(saved):
    """Run together they do: the range of the whole batch is divided into 256 steps."""
    backbone = Backbone.load(saved / "int8")
    model = backbone.model
    ids = np.array([[11, 60, 70, 12], [99, 150, 33, 12]])
    (together,), (alone,) = (run(ids, np.ones_like(ids), [model._last]) for run in (model._together, model._each_alone))
    assert np.abs(together - alone).max() > 0.01 * alone.std()
    assert model.runs_alone and backbone.is_padding_neutral
    batch = backbone.run(SEQUENCES).states
    for row, sequence in enumerate(SEQUENCES):
        assert torch.equal(batch[row, : len(sequence)], backbone.run([sequence]).states[0])
        assert not batch[row, len(sequence) :].any()


def test_states_in_8_bits_are_close_to_those_in_full_precision(saved):
    rough, exact = (HiddenStateExtractor(saved / name).extract(TEXTS).hidden_states for name in ("int8", "bert/onnx"))
    assert 1e-3 < np.abs(rough - exact).mean() / exact.std() < 0.1


def test_other_layers_are_there_if_the_file_has_them(directory, saved):
    with pytest.raises(InvalidInputError, match=r"'layer' must be -1 for .*model\.onnx, which has no other layer's"):
        Backbone.load(directory).run(SEQUENCES, layer=1)
    export_onnx(directory / "model.onnx", bert()[0].eval(), with_layers=True)
    backbone, torch_model = Backbone.load(directory), Backbone.load(saved / "bert" / "torch")
    for layer in (-1, *range(N_LAYERS + 1), -2):
        expected = plain_states(torch_model, SEQUENCES[1], layer)
        got = backbone.run([SEQUENCES[1]], layer=layer).states[0]
        assert (got - expected).abs().max() < 1e-5 * expected.abs().max()
    with pytest.raises(InvalidInputError, match=r"'layer' must be in -3\.\.2 for this model. Got 3"):
        backbone.run(SEQUENCES, layer=3)


def test_other_inputs_and_number_types_of_exports(directory):
    """Positions, token types, masks in floating point and tokens in int32 are given as the file wants them."""
    before = Backbone.load(directory).run(SEQUENCES).states

    def edit(graph):
        for value in graph.input:
            kind = onnx.TensorProto.INT32 if value.name == "input_ids" else onnx.TensorProto.FLOAT
            old, value.type.tensor_type.elem_type = value.name, kind
            for node in graph.node:
                node.input[:] = [f"{old}_int64" if name == old else name for name in node.input]
            cast = onnx.helper.make_node("Cast", [old], [f"{old}_int64"], to=onnx.TensorProto.INT64)
            graph.node.insert(0, cast)
        for name in ("token_type_ids", "position_ids"):
            graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "sequence"]))

    edited(directory / "model.onnx", edit)
    assert torch.equal(Backbone.load(directory).run(SEQUENCES).states, before)


@pytest.mark.parametrize("name", ["token_embeddings", "output_0"])
def test_states_under_another_name_are_found(directory, name):
    before = Backbone.load(directory).run(SEQUENCES).states

    def edit(graph):
        for node in graph.node:
            node.output[:] = [name if output == "last_hidden_state" else output for output in node.output]
        graph.output[0].CopyFrom(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "sequence", HIDDEN_SIZE])
        )
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
        graph.output.append(onnx.helper.make_tensor_value_info("pooled", onnx.TensorProto.FLOAT, ["batch", "width"]))
        graph.node.append(onnx.helper.make_node("ReduceSum", [name, "axis"], ["pooled"], keepdims=0))

    edited(directory / "model.onnx", edit)
    assert torch.equal(Backbone.load(directory).run(SEQUENCES).states, before)


def test_the_longest_sequence_can_be_run(saved, capfd):
    """RoBERTa has two positions more than it can use."""
    backbone = Backbone.load(saved / "roberta" / "onnx")
    assert backbone.max_tokens == MAX_POSITIONS == backbone.run([[11] * MAX_POSITIONS]).states.shape[1]
    with pytest.raises(BackboneError, match=r"model\.onnx cannot be run: .*") as caught:
        backbone.run([[11] * (MAX_POSITIONS + 1)])
    assert "\n" not in str(caught.value) and capfd.readouterr().err == ""


def test_as_many_threads_as_torch_has(saved):
    options = Backbone.load(saved / "bert" / "onnx").model._session.get_session_options()
    assert options.intra_op_num_threads == torch.get_num_threads()


def test_a_model_survives_pickling(saved):
    backbone = Backbone.load(saved / "int8")
    again = pickle.loads(pickle.dumps(backbone))
    assert torch.equal(again.run(SEQUENCES).states, backbone.run(SEQUENCES).states)


# --- Number types ----------------------------------------------------------------------------------------------------


def test_the_number_type_is_the_files_own(directory):
    assert Backbone.load(directory, dtype="float32").run(SEQUENCES).states.dtype == torch.float32
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(
            InvalidInputError, match=rf"of an ONNX model is that of its file: .* float32. Got '{dtype}'"
        ):
            Backbone.load(directory, dtype=dtype)
    half = onnx.TensorProto.FLOAT16

    def edit(graph):
        for node in graph.node:
            node.output[:] = ["exact" if output == "last_hidden_state" else output for output in node.output]
        graph.node.append(onnx.helper.make_node("Cast", ["exact"], ["last_hidden_state"], to=half))
        graph.output[0].type.tensor_type.elem_type = half

    edited(directory / "model.onnx", edit)
    for dtype in (None, "float16"):
        backbone = Backbone.load(directory, dtype=dtype)
        assert backbone.run(SEQUENCES).states.dtype == torch.float16
        assert HiddenStateExtractor(backbone).origin().model.dtype == "float16"
    with pytest.raises(InvalidInputError, match=r"are float16. Got 'float32'"):
        Backbone.load(directory, dtype="float32")


def test_an_extractor_is_made_again_from_its_origin(saved, tmp_path, monkeypatch):
    store = StatesStore(tmp_path)
    extractor = HiddenStateExtractor(saved / "int8", "Is this a review? {document}")
    data = extractor.labelled_states(TEXTS, store=store)
    assert data.origin.model.dtype == "float32" and data.origin.model.reference == str(saved / "int8")
    again = HiddenStateExtractor.from_origin(data.origin)
    assert again.origin().difference(data.origin) is None
    assert np.array_equal(again.extract(TEXTS).hidden_states, data.hidden_states)
    monkeypatch.setattr(OnnxModel, "__call__", None)  # stored states need no model
    fresh = HiddenStateExtractor(saved / "int8", "Is this a review? {document}")
    assert np.array_equal(fresh.labelled_states(TEXTS, store=store).hidden_states, data.hidden_states)


# --- Where files are -------------------------------------------------------------------------------------------------


def in_folder(directory):
    """As transformers.js has it: the file in the folder onnx."""
    (directory / "onnx").mkdir()
    for file in directory.glob("*.onnx*"):
        file.rename(directory / "onnx" / file.name)
    return directory


def as_sentence_transformer(directory):
    """With modules.json; the transformer is the folder itself."""
    in_folder(directory)
    (directory / "modules.json").write_text(json.dumps([{"path": "", "type": "Transformer"}]))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 77}))
    return directory


def as_old_sentence_transformer(directory):
    """The transformer in a folder of its own."""
    inner = directory.parent / "outer" / "0_Transformer"
    inner.parent.mkdir()
    directory.rename(inner)
    in_folder(inner)
    (inner.parent / "modules.json").write_text(json.dumps([{"path": "0_Transformer", "type": "Transformer"}]))
    (inner / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 77}))
    return inner.parent


@pytest.mark.parametrize(
    ("layout", "limit"),
    [
        (lambda directory: directory, MAX_POSITIONS),
        (in_folder, MAX_POSITIONS),
        (as_sentence_transformer, 77),
        (as_old_sentence_transformer, 77),
    ],
    ids=["beside", "folder", "sentence-transformers", "old sentence-transformers"],
)
def test_a_file_is_found_as_people_lay_it_out(directory, layout, limit, saved):
    top = layout(directory)
    (file,) = top.rglob("model.onnx")
    expected = Backbone.load(saved / "bert" / "onnx")
    for reference in (top, top.parent, file, *([file.parent] if file.parent.name == "onnx" else [])):
        source = find_model(str(reference))
        assert source.onnx_file == file and source.max_tokens in (None, limit)
        assert source.fingerprint() == expected.fingerprint()
        backbone = Backbone.load(reference)
        assert backbone.max_tokens == limit and backbone.name == str(reference)
        assert torch.equal(backbone.run(SEQUENCES).states, expected.run(SEQUENCES).states)


def test_torch_weights_come_first_unless_the_file_or_its_folder_is_named(directory, saved):
    in_folder(directory)
    shutil.copy(saved / "bert" / "torch" / "model.safetensors", directory)
    assert not loads_onnx(directory) and not loads_onnx(directory.parent)
    assert loads_onnx(directory / "onnx") and loads_onnx(directory / "onnx" / "model.onnx")
    shutil.copy(directory / "config.json", directory / "onnx")  # as some exports have it
    assert not loads_onnx(directory.parent)


def test_the_exact_file_comes_first_and_any_can_be_named(directory, saved):
    shutil.copy(saved / "int8" / "model_quantized.onnx", directory)
    assert find_model(str(directory)).onnx_file == directory / "model.onnx"
    assert Backbone.load(directory / "model_quantized.onnx").model.runs_alone
    (directory / "model.onnx").rename(directory / "model_b.onnx")
    assert find_model(str(directory)).onnx_file == directory / "model_quantized.onnx"
    (directory / "model_quantized.onnx").rename(directory / "model_a.onnx")
    with pytest.raises(BackboneError, match=r"has several ONNX files: model_a\.onnx, model_b\.onnx\. Give the path"):
        find_model(str(directory))


def test_models_inside_a_package_are_found(directory, saved, monkeypatch):
    package = directory.parent / "site" / "tiny_onnx_models"
    shutil.copytree(directory, package / "_models" / "one")
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    monkeypatch.syspath_prepend(package.parent)
    assert find_model("package:tiny_onnx_models").onnx_file == package / "_models" / "one" / "model.onnx"
    assert loads_onnx("package:tiny-onnx-models")
    shutil.copytree(saved / "int8", package / "_models" / "two")
    with pytest.raises(BackboneError, match=r"Got _models/one, _models/two; .*package:tiny_onnx_models/_models/one"):
        find_model("package:tiny_onnx_models")
    source = find_model("package:tiny_onnx_models/_models/two")
    assert (
        source.reference == "package:tiny_onnx_models/_models/two" and source.directory == package / "_models" / "two"
    )
    assert source.fingerprint() == find_model(str(saved / "int8")).fingerprint()
    assert find_model("package:tiny_onnx_models/_models/one/model.onnx").directory == package / "_models" / "one"
    with pytest.raises(BackboneError, match=r"The package 'tiny_onnx_models' is installed, but has no _models/three"):
        find_model("package:tiny_onnx_models/_models/three")


def test_a_hub_repository_with_only_an_onnx_file_is_loaded(directory, monkeypatch):
    from huggingface_hub import constants

    repository = directory.parent / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    shutil.copytree(in_folder(directory), repository / "snapshots" / ("1" * 40))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory.parent / "hub"))
    source = find_model("org/tiny")
    assert source.onnx_file is not None and source.revision == "1" * 40 and loads_onnx("org/tiny")


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(reference):
    return find_model(str(reference)).fingerprint()


def test_graph_configuration_and_tokenizer_make_the_fingerprint(directory):
    seen = {fingerprint(directory)}
    file = directory / "model.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    seen.add(fingerprint(directory))
    for name in ("config.json", "tokenizer.json"):
        settings = json.loads((directory / name).read_text(encoding="utf-8"))
        (directory / name).write_text(json.dumps({**settings, "more": 1}), encoding="utf-8")
        seen.add(fingerprint(directory))
    assert len(seen) == 4
    (directory / "README.md").write_text("A card")
    (directory / "model_quantized.onnx").write_bytes(b"another model")
    assert fingerprint(directory) in seen


@pytest.mark.parametrize("name", ["model.onnx_data", "w" * 200])
def test_weights_in_another_file_belong_to_the_fingerprint(directory, name):
    """A long name has its length in two bytes."""
    model = onnx.load(directory / "model.onnx")
    before = Backbone.load(directory).run(SEQUENCES).states
    onnx.save(model, directory / "model.onnx", save_as_external_data=True, location=name, size_threshold=0)
    first = fingerprint(directory)
    assert torch.equal(Backbone.load(directory).run(SEQUENCES).states, before)
    weights = directory / name
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert fingerprint(directory) != first
    weights.unlink()
    with pytest.raises(BackboneError, match=rf"The weights of .*model\.onnx are incomplete: .*{name} is missing"):
        Backbone.load(directory)


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x" * 5000, "half"], ids=["empty", "another", "truncated"])
def test_a_damaged_file_is_refused_in_one_line(directory, content, capfd):
    file = directory / "model.onnx"
    file.write_bytes(file.read_bytes()[:-20_000] if content == "half" else content)
    with pytest.raises(BackboneError, match=r"model\.onnx cannot be loaded: .+") as caught:
        Backbone.load(directory)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_without_its_companions_is_refused(directory, name):
    (directory / name).unlink()
    with pytest.raises(BackboneError, match=r"(needs a config\.json and a tokenizer, in)|(cannot be loaded: .+)"):
        Backbone.load(directory / "model.onnx")


def with_input(name, shape=("batch", "sequence")):
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape)
    return lambda graph: graph.input.append(value)


def with_only(name, shape):
    """Instead of its states, a file gives something else."""

    def edit(graph):
        graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        graph.node.append(onnx.helper.make_node("ReduceMax", ["last_hidden_state"], [name], keepdims=len(shape) - 2))

    return edit


def with_shape(n_rows, n_tokens):
    def edit(graph):
        for value in graph.input:
            for dimension, size in zip(value.type.tensor_type.shape.dim, (n_rows, n_tokens), strict=True):
                dimension.Clear()
                dimension.dim_value = size

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (with_input("past_key_values.0.key"), r"is a decoder exported to write text: it wants past_key_values\.0\.key"),
        (with_input("pixel_values"), r"is not an encoder of text: it wants pixel_values"),
        (with_input("decoder_input_ids"), r"is not an encoder of text: it wants decoder_input_ids"),
        (with_only("logits", ["batch", "sequence", 420]), r"not give the states of tokens: its outputs are logits"),
        (with_only("sentence_embedding", ["batch", 24]), r"its outputs are sentence_embedding. Export them: optimum"),
        (with_shape(2, 12), r"takes only batches of 2 x 12 tokens. Export it with dynamic axes"),
        (with_shape(1, 12), r"takes only batches of 1 x 12 tokens"),
    ],
)
def test_what_is_no_encoder_of_tokens_is_refused(directory, edit, message):
    edited(directory / "model.onnx", edit)
    with pytest.raises(BackboneError, match=message):
        Backbone.load(directory)


def test_a_file_for_one_sequence_at_a_time_is_run(directory):
    before = Backbone.load(directory)

    def edit(graph):
        for value in graph.input:
            value.type.tensor_type.shape.dim[0].Clear()
            value.type.tensor_type.shape.dim[0].dim_value = 1

    edited(directory / "model.onnx", edit)
    after = Backbone.load(directory)
    assert after.model.runs_alone
    for row, ids in enumerate(SEQUENCES):
        got = after.run(SEQUENCES).states[row, : len(ids)]
        assert (got - before.run([ids]).states[0]).abs().max() < 1e-5


def test_without_onnxruntime_the_pip_line_is_given(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"Running an ONNX model needs .* pip install 'torchsdm\[onnx\]'"):
        Backbone.load(directory)


def test_another_device_is_refused(saved):
    model = bert()[0]
    with pytest.raises(InvalidInputError, match=r"'device' of an ONNX model must be cpu or cuda. Got 'mps'"):
        OnnxModel(saved / "bert" / "onnx" / "model.onnx", model, device="mps")
    with pytest.raises(BackboneError, match=r"runs on the CPU only. Install onnxruntime-gpu in its place"):
        OnnxModel(saved / "bert" / "onnx" / "model.onnx", model, device="cuda")
