"""The frozen language model: states and logits as by a plain pass, loading, refusals, fingerprints."""

from __future__ import annotations

import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tiny_models import (
    ARCHITECTURES,
    DECODERS,
    DECODERS_WITH_HEAD,
    ENCODERS,
    HIDDEN_SIZE,
    MAX_POSITIONS,
    N_LAYERS,
    bert,
    byte_level_tokenizer,
    convbert,
    gpt2,
    phi3,
    plain_logits,
    plain_states,
    roberta,
    save_model,
    sentencepiece_tokenizer,
    tiny_backbone,
)
from torchsdm.errors import BackboneError, InvalidInputError, MissingExtraError
from torchsdm.hidden_states import Backbone

SEQUENCES = [[11, 60, 70, 12], [99, 150, 33, 12, 18, 44, 71, 11, 120, 90, 17, 200], [45], [12, 70, 60, 11, 45, 45, 45]]

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
with_output_layer = pytest.mark.parametrize("name", DECODERS_WITH_HEAD)


def assert_close(got, expected):
    """Equal but for the rounding of float32: within 1e-5 of the largest number expected."""
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


# --- States ----------------------------------------------------------------------------------------------------------


@every_architecture
def test_states_of_a_batch_are_those_of_a_plain_pass(name):
    backbone = tiny_backbone(name)
    for layer in (-1, *range(N_LAYERS + 1), -2, -1 - N_LAYERS):
        states = backbone.run(SEQUENCES, layer=layer).states
        assert states.shape == (4, 12, HIDDEN_SIZE)
        for row, ids in enumerate(SEQUENCES):
            assert_close(states[row, : len(ids)], plain_states(backbone, ids, layer))


@every_architecture
def test_every_layer_has_states_of_its_own(name):
    backbone = tiny_backbone(name)
    states = [backbone.run(SEQUENCES[1:2], layer=layer).states for layer in range(N_LAYERS + 1)]
    assert torch.equal(states[-1], backbone.run(SEQUENCES[1:2], layer=-1).states)
    assert all((states[k] - states[k + 1]).abs().max() > 0.1 for k in range(N_LAYERS))


@with_output_layer
def test_the_final_states_are_what_the_output_layer_gets(name):
    backbone = tiny_backbone(name)
    seen = []
    layer = backbone.model.get_output_embeddings()
    handle = layer.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    plain_logits(backbone, SEQUENCES[1])
    handle.remove()
    assert_close(backbone.run([SEQUENCES[1]]).states[0], seen[0][0])


@every_architecture
def test_a_layer_that_is_not_there_is_refused(name):
    for layer in (3, -4, 100):
        with pytest.raises(InvalidInputError, match=rf"'layer' must be in -3\.\.2 for this model. Got {layer}"):
            tiny_backbone(name).run(SEQUENCES, layer=layer)


@every_architecture
def test_what_padding_is_made_of_makes_no_difference(name):
    """The same batch, padded with another token."""
    model, tokenizer = ARCHITECTURES[name]()
    before = Backbone(model, tokenizer).run(SEQUENCES).states
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(90)
    after = Backbone(model, tokenizer).run(SEQUENCES).states
    for row, ids in enumerate(SEQUENCES):
        assert_close(after[row, : len(ids)], before[row, : len(ids)])


# --- Logits ----------------------------------------------------------------------------------------------------------


@with_output_layer
def test_logits_are_the_untouched_models_own(name):
    backbone = tiny_backbone(name)
    positions = [[3, 0], [11, 5], [0, 0], [6, 2]]
    logits = backbone.run(SEQUENCES, logits_at=positions).logits
    for row, ids in enumerate(SEQUENCES):
        assert_close(logits[row], plain_logits(backbone, ids)[positions[row]])


def test_capped_logits_stay_capped():
    """Gemma 2 caps at 2 here: without the cap the logits would be far larger."""
    backbone = tiny_backbone("gemma2")
    output = backbone.run([SEQUENCES[1]], logits_at=[[11]])
    with torch.no_grad():
        uncapped = output.states[0, 11].clone() @ backbone.model.get_output_embeddings().weight.T
    assert uncapped.abs().max() > 3 and output.logits.abs().max() < 2
    torch.testing.assert_close(output.logits[0, 0], 2 * torch.tanh(uncapped / 2), rtol=0, atol=1e-5)


@with_output_layer
def test_the_output_layer_is_run_on_the_wanted_positions_only(name):
    backbone = tiny_backbone(name)
    for layer, logits_at in itertools.product(
        (-1, 1), (None, [[3], [11], [0], [6]], [[0, 1], [4, 11], [0, 0], [5, 6]])
    ):
        n_positions = []
        handle = backbone.model.get_output_embeddings().register_forward_hook(
            lambda module, arguments, output, seen=n_positions: seen.append(arguments[0].shape[:-1].numel())
        )
        backbone.run(SEQUENCES, layer=layer, logits_at=logits_at)
        handle.remove()
        assert sum(n_positions) == (0 if logits_at is None else sum(len(at) for at in logits_at))


@with_output_layer
def test_the_model_is_left_as_it_was(name):
    backbone = tiny_backbone(name)
    before = plain_logits(backbone, SEQUENCES[1])
    backbone.run(SEQUENCES, logits_at=[[0]] * 4)
    with pytest.raises(InvalidInputError):
        backbone.run(SEQUENCES, layer=77)
    with pytest.raises(BackboneError, match="cannot read its tokenizer"):
        backbone.run([[10**6]])  # fails inside of the model
    assert torch.equal(plain_logits(backbone, SEQUENCES[1]), before)
    assert not backbone.model.get_output_embeddings()._forward_pre_hooks


def test_threads_do_not_get_each_others_logits():
    backbone = tiny_backbone("phi3")
    jobs = [(SEQUENCES[k % 4], k % len(SEQUENCES[k % 4])) for k in range(40)]
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda job: backbone.run([job[0]], logits_at=[[job[1]]]), jobs))
    for (ids, position), output in zip(jobs, outputs, strict=True):
        assert_close(output.logits[0, 0], plain_logits(backbone, ids)[position])
        assert_close(output.states[0], plain_states(backbone, ids))


def test_no_gradients_are_kept():
    assert not tiny_backbone("phi3").run(SEQUENCES, logits_at=[[0]] * 4).logits.requires_grad
    model, tokenizer = phi3()
    assert not Backbone(model.train(), tokenizer).model.training


# --- What a model is -------------------------------------------------------------------------------------------------


@every_architecture
def test_decoders_and_encoders_are_told_apart(name):
    backbone = tiny_backbone(name)
    assert backbone.is_decoder == (name in DECODERS) != (name in ENCODERS)
    assert backbone.has_output_layer == (name in DECODERS_WITH_HEAD)
    assert backbone.has_chat_template == (name in ("phi3", "llama", "gemma2"))
    first = plain_states(backbone, [11, 12, 13])[0]
    sees_what_follows = not torch.allclose(first, plain_states(backbone, [11, 12, 90])[0], atol=1e-5)  # beyond rounding
    assert sees_what_follows != backbone.is_decoder


def bidirectional(config_class, model_class, **options):
    tokenizer = byte_level_tokenizer()
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model_class(config), tokenizer


def test_a_decoder_that_was_made_to_look_both_ways_is_an_encoder():
    model, tokenizer = bidirectional(transformers.LlamaConfig, transformers.LlamaModel, is_causal=False)
    assert not Backbone(model, tokenizer).is_decoder


def test_a_gemma_that_looks_both_ways_is_an_encoder():
    """EmbeddingGemma is a Gemma 3 with bidirectional attention: its last token is no summary of the others."""
    model, tokenizer = bidirectional(
        transformers.Gemma3TextConfig, transformers.Gemma3TextModel, use_bidirectional_attention=True
    )
    backbone = Backbone(model, tokenizer)
    assert not torch.allclose(plain_states(backbone, [11, 12])[0], plain_states(backbone, [11, 90])[0])
    assert not backbone.is_decoder


@every_architecture
def test_padding_leaves_the_states_of_these_models_as_they_are(name):
    assert tiny_backbone(name).is_padding_neutral


def test_an_encoder_that_sees_padding_is_found_out():
    """ConvBERT's convolutions reach over the end of a sequence into its padding."""
    backbone = Backbone(*convbert())
    alone, padded = (backbone.run(batch).states[0, :4] for batch in ([SEQUENCES[0]], [SEQUENCES[0], SEQUENCES[1]]))
    assert (alone - padded).abs().max() > 0.1
    assert not backbone.is_padding_neutral and not backbone.is_decoder


def test_the_longest_sequence_is_the_smaller_limit_of_model_and_tokenizer():
    model, tokenizer = phi3()
    assert Backbone(model, tokenizer).max_tokens == MAX_POSITIONS
    tokenizer.model_max_length = 99
    backbone = Backbone(model, tokenizer)
    assert backbone.max_tokens == 99 and backbone.position_limit == MAX_POSITIONS


@every_architecture
def test_the_longest_sequence_can_be_run(name):
    """RoBERTa has two positions more than it can use."""
    backbone = tiny_backbone(name)
    assert backbone.run([[11] * backbone.max_tokens]).states.shape[1] == MAX_POSITIONS


# --- Refusals --------------------------------------------------------------------------------------------------------


def test_an_encoder_with_a_decoder_is_refused(tmp_path):
    tokenizer = sentencepiece_tokenizer()
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(BackboneError, match=r"T5ForConditionalGeneration is an encoder-decoder. Use a causal"):
        Backbone(model, tokenizer)
    save_model(tmp_path, model, tokenizer)
    with pytest.raises(BackboneError, match=r"T5\w+ is an encoder-decoder"):
        Backbone.load(tmp_path)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(BackboneError, match=r"ByT5Tokenizer does not give the offsets .* Use a fast tokenizer"):
        Backbone(phi3()[0], transformers.ByT5Tokenizer())


@pytest.mark.parametrize(
    ("make", "kind"),
    [(bert, "BertForMaskedLM"), (phi3, "Phi3ForSequenceClassification"), (bert, "BertForTokenClassification")],
)
def test_a_model_with_another_head_is_run_or_refused_in_our_words(make, kind):
    base, tokenizer = make()
    model = getattr(transformers, kind)(base.config)
    try:
        backbone = Backbone(model, tokenizer)
        states = backbone.run([SEQUENCES[1]]).states[0]
    except BackboneError:
        return
    assert_close(states, plain_states(backbone, SEQUENCES[1]))


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device, tmp_path):
    with pytest.raises(InvalidInputError, match=f"'device' of Backbone.load must be a torch device .* Got '{device}'"):
        Backbone.load(tmp_path, device=device)


@pytest.mark.parametrize("dtype", ["float8", "int8", "fp16", torch.float32])
def test_another_number_type_is_refused(dtype, tmp_path):
    with pytest.raises(InvalidInputError, match=r"'dtype' must be one of float32, .*, or None. Got"):
        Backbone.load(tmp_path, dtype=dtype)


def test_without_transformers_the_pip_line_is_given(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchsdm\[hf\]'"):
        Backbone.load(tmp_path)


# --- Loading ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of all architectures."""
    root = tmp_path_factory.mktemp("models")
    return {name: save_model(root / name, *make()) for name, make in ARCHITECTURES.items()}


@every_architecture
def test_a_loaded_model_gives_the_states_of_the_saved_one(name, saved, capsys):
    original, loaded = tiny_backbone(name), Backbone.load(saved[name])
    assert type(loaded.model) is type(original.model) and loaded.device.type == "cpu"
    assert loaded.name == str(saved[name].resolve()) and original.name == type(original.model).__name__
    assert (loaded.is_decoder, loaded.has_output_layer) == (original.is_decoder, original.has_output_layer)
    for row, ids in enumerate(SEQUENCES):
        assert_close(loaded.run(SEQUENCES).states[row, : len(ids)], plain_states(original, ids))
    text = "The film </s> is <|im_end|> dull. [SEP]"
    assert loaded.tokenizer(text)["input_ids"] == original.tokenizer(text)["input_ids"]
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""  # no progress bars, no notices


def test_the_number_type_is_float32_or_the_one_asked_for(saved):
    assert next(Backbone.load(saved["phi3"]).model.parameters()).dtype == torch.float32
    half = Backbone.load(saved["phi3"], dtype="bfloat16")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    expected = plain_states(tiny_backbone("phi3"), SEQUENCES[1])
    assert 1e-4 < (half.run([SEQUENCES[1]]).states[0].float() - expected).abs().max() < 0.2


def test_a_model_of_half_precision_on_disk_is_run_in_float32(tmp_path):
    model, tokenizer = phi3()
    save_model(tmp_path, model.to(torch.bfloat16), tokenizer)
    loaded = Backbone.load(tmp_path)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_a_config_without_an_architecture_is_enough(saved, tmp_path):
    """GGUF and old files name none: then the kind of model says whether there is an output layer."""
    for name in ("phi3", "bert"):
        directory = save_model(tmp_path / name, *ARCHITECTURES[name]())
        config = json.loads((directory / "config.json").read_text())
        del config["architectures"]
        (directory / "config.json").write_text(json.dumps(config))
        assert type(Backbone.load(directory).model) is type(tiny_backbone(name).model)


@pytest.fixture
def broken(tmp_path):
    return save_model(tmp_path / "broken", *phi3())


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "nonsense"}'])
def test_a_damaged_config_is_refused_in_one_line(broken, content):
    (broken / "config.json").write_text(content)
    with pytest.raises(BackboneError) as caught:
        Backbone.load(broken)
    assert str(broken) in str(caught.value) and "cannot be" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_refused(broken, name):
    (broken / name).unlink()
    with pytest.raises(BackboneError, match=r"cannot be loaded: .+"):
        Backbone.load(broken)


@pytest.mark.parametrize("how", ["truncated", "garbage"])
def test_damaged_weights_are_refused(broken, how):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000] if how == "truncated" else b"x" * 5000)
    with pytest.raises(BackboneError, match="cannot be loaded"):
        Backbone.load(broken)


@pytest.mark.parametrize("missing", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_weights_that_lack_a_tensor_are_refused(broken, missing):
    """What is not on disk would be random numbers, other ones with every load."""
    path = broken / "model.safetensors"
    tensors = load_file(path)
    del tensors[missing]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(BackboneError, match=rf"are incomplete: 1 are missing .* such as {missing}"):
        Backbone.load(broken)


def test_a_pooler_that_is_not_on_disk_is_not_missed(tmp_path):
    """Weights of masked language models have none, and we do not use it."""
    model, tokenizer = bert()
    masked = transformers.BertForMaskedLM(model.config)
    save_model(tmp_path, masked, tokenizer)
    loaded = Backbone.load(tmp_path)
    expected = masked.eval().bert(input_ids=torch.tensor([SEQUENCES[1]])).last_hidden_state[0]
    assert type(loaded.model).__name__ == "BertModel"
    assert_close(loaded.run([SEQUENCES[1]]).states[0], expected.detach())


def test_the_same_model_is_loaded_once(saved, tmp_path):
    """Clones of an extractor share one model; another number type, place or content is another model."""
    first = Backbone.load(saved["phi3"])
    assert Backbone.load(str(saved["phi3"])) is first
    assert Backbone.load(saved["phi3"], dtype="bfloat16") is not first
    directory = save_model(tmp_path / "changing", *phi3())
    before = Backbone.load(directory)
    states = before.run([SEQUENCES[0]]).states  # now: the weights may be mapped from the file that is written next
    save_model(directory, *phi3(seed=1))
    after = Backbone.load(directory)
    assert after is not before
    assert not torch.allclose(after.run([SEQUENCES[0]]).states, states)


# --- Fingerprints of models that were loaded elsewhere ---------------------------------------------------------------


def test_the_same_model_has_the_same_fingerprint():
    assert Backbone(*phi3()).fingerprint() == Backbone(*phi3()).fingerprint()
    assert len({Backbone(*make()).fingerprint() for make in (phi3, gpt2, bert, roberta)}) == 4
    assert Backbone(*phi3(seed=1)).fingerprint() != Backbone(*phi3(seed=2)).fingerprint()


def test_training_any_tensor_changes_the_fingerprint():
    model, tokenizer = phi3()
    seen = {Backbone(model, tokenizer).fingerprint()}
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.mul_(1.001)
        seen.add(Backbone(model, tokenizer).fingerprint())
    assert len(seen) == 1 + len(list(model.parameters()))


def test_tokenizer_chat_template_and_config_are_part_of_the_fingerprint():
    prints = [Backbone(*phi3()).fingerprint()]
    model, tokenizer = phi3()
    tokenizer.chat_template += " "
    prints.append(Backbone(model, tokenizer).fingerprint())
    model, tokenizer = phi3()
    tokenizer.add_tokens(["<more>"])
    prints.append(Backbone(model, tokenizer).fingerprint())
    model, tokenizer = phi3()
    model.config.rms_norm_eps = 1e-3
    prints.append(Backbone(model, tokenizer).fingerprint())
    assert len(set(prints)) == 4


def test_what_the_tokenizer_was_used_for_is_no_part_of_the_fingerprint():
    model, tokenizer = phi3()
    tokenizer(["a film", "b"], padding=True, truncation=True, max_length=5)
    assert Backbone(model, tokenizer).fingerprint() == Backbone(*phi3()).fingerprint()
