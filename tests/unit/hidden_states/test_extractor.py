"""HiddenStateExtractor: h and label logits as by plain passes, settings, scikit-learn, origins, shards."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from small import quiet, small_settings
from tiny_models import (
    ARCHITECTURES,
    DECODERS,
    DECODERS_WITH_HEAD,
    HIDDEN_SIZE,
    MAX_POSITIONS,
    chat_ids,
    convbert,
    llama,
    phi3,
    plain_ids,
    plain_logits,
    plain_states,
    save_model,
    tiny_backbone,
)
from torchsdm import Documents, HiddenStateExtractor, SDMClassifier, TaskPrompt, read_states
from torchsdm.data import StatesOrigin
from torchsdm.errors import BackboneError, CheckpointError, InvalidInputError, InvalidTypeError
from torchsdm.hidden_states import Backbone
from torchsdm.hidden_states.prompts import PROMPTS

TEXTS = [
    "A dull film.",
    "The film is a fine piece of work: well played, well lit, and never dull! Nobody left early.",
    "No",
    "Was it good? Yes.\n\nWas it long? No.",
    "It rains. It pours. The hero meets the villain.",
    "漢字 and ü and \U0001f600.",
    "Say {document} or {answer}.",
    "The end came late, and the reviewer left early. " * 3,
    "x y z",
]
PROMPT = TaskPrompt("Here is a review. <review> {document} </review> Is it good? ", ["No", "Yes"])

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
with_output_layer = pytest.mark.parametrize("name", DECODERS_WITH_HEAD)


def extractor(name, prompt=None, **options):
    return HiddenStateExtractor(tiny_backbone(name), prompt, **options)


def ids_by_hand(backbone, prompt, text):
    """Prompt and text as one string, in the chat template where there is one and a prompt, tokenized at once."""
    if prompt is None:
        return plain_ids(backbone.tokenizer, text)
    if backbone.tokenizer.chat_template is not None:
        return chat_ids(backbone.tokenizer, prompt.fill(document=text))
    return plain_ids(backbone.tokenizer, prompt.fill(document=text))


def h_by_hand(backbone, ids, parts, layer=-1):
    states = plain_states(backbone, ids, layer)
    pools = {"first": states[0], "final": states[-1], "mean": states.mean(dim=0)}
    return torch.cat([pools[part] for part in parts]).numpy()


def assert_close(got, expected):
    """Equal but for the rounding of float32: within 1e-5 of the largest number expected."""
    expected = np.asarray(expected)
    assert got.dtype == np.float32 and got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@contextmanager
def inputs_of(backbone):
    """What the language model is given, pass by pass."""
    inputs = []
    handle = backbone.model.register_forward_pre_hook(
        lambda module, arguments, options: inputs.append(options), with_kwargs=True
    )
    try:
        yield inputs
    finally:
        handle.remove()


# --- h ---------------------------------------------------------------------------------------------------------------


@every_architecture
@pytest.mark.parametrize("prompt", [None, PROMPT], ids=["alone", "prompt"])
def test_h_is_that_of_a_plain_pass_in_batches_of_any_size(name, prompt):
    backbone = tiny_backbone(name)
    parts = ("final", "mean") if name in DECODERS else ("first", "mean")
    ids = [ids_by_hand(backbone, prompt, text) for text in TEXTS]
    expected = [h_by_hand(backbone, each, parts) for each in ids]
    for batch_tokens in (1, 60, 10**6):
        extracted = extractor(name, prompt, batch_tokens=batch_tokens).extract(TEXTS)
        assert_close(extracted.hidden_states, expected)
        assert extracted.hidden_states.shape == (len(TEXTS), 2 * HIDDEN_SIZE)
        assert extracted.n_tokens.tolist() == [len(each) for each in ids]
        assert extracted.n_cut.tolist() == [0] * len(TEXTS) and len(extracted) == len(TEXTS)


@every_architecture
def test_batches_are_padded_and_within_the_budget(name):
    """Else the test above would say nothing about padding, nor about batches."""
    backbone = tiny_backbone(name)
    for budget in (1, 200, 10**6):
        with inputs_of(backbone) as inputs:
            extractor(name, PROMPT, batch_tokens=budget).extract(TEXTS)
        batches = inputs[1:] if name in DECODERS else inputs  # a decoder first runs what all have in common
        masks = [each["attention_mask"] for each in batches]
        assert all(len(each["input_ids"]) == 1 or each["input_ids"].numel() <= budget for each in batches)
        assert sum(map(len, masks)) == len(TEXTS) and (len(masks) == len(TEXTS)) == (budget == 1)
        assert any((mask == 0).any() for mask in masks) == (budget > 1)


@pytest.mark.parametrize("name", DECODERS)
def test_what_stands_before_every_document_is_run_once(name):
    backbone = tiny_backbone(name)
    whole = [len(ids_by_hand(backbone, PROMPT, text)) for text in TEXTS]
    made = extractor(name, PROMPT, batch_tokens=1)
    with inputs_of(backbone) as inputs:
        for _ in range(2):
            made.extract(TEXTS)
    first, *rest = [each["input_ids"].shape for each in inputs]
    assert first[0] == 1 and first[1] > 5
    assert sorted(n_tokens for _, n_tokens in rest) == sorted(n_tokens - first[1] for n_tokens in 2 * whole)


def test_a_document_that_is_joined_with_the_prompts_beginning_is_run_whole():
    """The tokenizer makes one token of 'review', so that a prompt that ends inside the word has others."""
    prompt = TaskPrompt("Is the sentiment of the movie revi{document}?")
    backbone = tiny_backbone("phi3")
    texts = ["ew good", "x", "ew", "ts", "ew positive"]
    ids = [plain_ids(backbone.tokenizer, prompt.fill(document=text)) for text in texts]
    made = extractor("phi3", prompt, use_chat=False)
    n = len(beginning := made._prepare().encoder.beginning)
    assert [each[:n] == beginning for each in ids] == [False, True, False, True, False]
    with inputs_of(backbone) as inputs:
        states = made.extract(texts).hidden_states
    assert sum(len(each["input_ids"]) for each in inputs) == 1 + len(texts)
    assert_close(states, [h_by_hand(backbone, each, ("final", "mean")) for each in ids])


@every_architecture
def test_states_of_several_layers_are_side_by_side(name):
    single = [extractor(name, PROMPT, layer=layer).extract(TEXTS).hidden_states for layer in (0, 1, -1)]
    several = extractor(name, PROMPT, layer=[0, 1, -1]).extract(TEXTS).hidden_states  # parts x layers x H
    parts = [np.split(states, 2, axis=1) for states in single]
    assert_close(several, np.concatenate([parts[layer][part] for part in (0, 1) for layer in range(3)], axis=1))


def test_several_layers_are_another_origin_and_can_be_made_again():
    made = extractor("phi3", PROMPT, layer=[1, -1])
    origin = made.origin()
    assert origin.pooling.layer == (1, -1) and origin != extractor("phi3", PROMPT).origin()
    stored = StatesOrigin.from_json(json.loads(json.dumps(origin.to_json())))
    assert stored == origin
    again = HiddenStateExtractor.from_origin(stored, model=tiny_backbone("phi3"))
    assert_close(again.transform(TEXTS), made.transform(TEXTS))


@every_architecture
def test_the_order_of_documents_makes_no_difference(name):
    forward = extractor(name, PROMPT).extract(TEXTS)
    backward = extractor(name, PROMPT).extract(TEXTS[::-1])
    assert_close(backward.hidden_states[::-1], forward.hidden_states)
    assert backward.n_tokens[::-1].tolist() == forward.n_tokens.tolist()
    if forward.label_logits is not None:
        assert_close(backward.label_logits[::-1], forward.label_logits)


@every_architecture
def test_a_document_run_alone_has_the_same_bits_in_any_company(name):
    alone = extractor(name, PROMPT, batch_tokens=1)
    together = alone.extract(TEXTS)
    for row in (0, 1, 5):
        single = alone.extract([TEXTS[row]])
        assert np.array_equal(single.hidden_states[0], together.hidden_states[row])


def test_documents_are_not_padded_for_an_encoder_that_sees_padding():
    backbone = Backbone(*convbert())
    extracted = HiddenStateExtractor(backbone, PROMPT).extract(TEXTS)
    expected = [h_by_hand(backbone, ids_by_hand(backbone, PROMPT, text), ("first", "mean")) for text in TEXTS]
    assert_close(extracted.hidden_states, expected)


def test_states_that_are_not_finite_are_refused_with_their_place():
    model, tokenizer = phi3()
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids("z")] = float("nan")
    made = HiddenStateExtractor(Backbone(model, tokenizer))
    assert np.isfinite(made.transform(["A dull film.", "No"])).all()
    with pytest.raises(BackboneError, match="row 2: the language model gave states that are not finite"):
        made.transform(["A dull film.", "x y z", "No"])


def test_many_documents_are_extracted_block_by_block(monkeypatch):
    monkeypatch.setattr("torchsdm.hidden_states.extractor.BLOCK", 4)
    whole = extractor("phi3", PROMPT).extract(TEXTS)
    monkeypatch.undo()
    expected = extractor("phi3", PROMPT).extract(TEXTS)
    assert_close(whole.hidden_states, expected.hidden_states)
    assert_close(whole.label_logits, expected.label_logits)
    assert whole.n_tokens.tolist() == expected.n_tokens.tolist()


@pytest.mark.parametrize("name", ["phi3", "gpt2", "mistral-without-head", "bert", "roberta"])
def test_other_layers(name):
    backbone = tiny_backbone(name)
    ids = [ids_by_hand(backbone, PROMPT, text) for text in TEXTS]
    for layer in (0, 1, 2, -2):
        extracted = extractor(name, PROMPT, layer=layer, parts=["first", "final"]).extract(TEXTS)
        assert_close(extracted.hidden_states, [h_by_hand(backbone, each, ("first", "final"), layer) for each in ids])


@pytest.mark.parametrize("name", ["phi3", "bert"])
def test_h_is_made_of_the_parts_in_their_order(name):
    backbone = tiny_backbone(name)
    ids = [ids_by_hand(backbone, PROMPT, text) for text in TEXTS]
    for parts in [p for n in (1, 2, 3) for p in itertools.permutations(("first", "final", "mean"), n)]:
        extracted = extractor(name, PROMPT, parts=list(parts)).extract(TEXTS)
        assert_close(extracted.hidden_states, [h_by_hand(backbone, each, parts) for each in ids])


def test_the_chat_template_is_used_as_told():
    backbone = tiny_backbone("phi3")
    template = PROMPT.template.replace("{document}", "{}")
    plain = extractor("phi3", PROMPT, use_chat=False).extract(TEXTS)
    assert_close(
        plain.hidden_states,
        [h_by_hand(backbone, plain_ids(backbone.tokenizer, template.format(t)), ("final", "mean")) for t in TEXTS],
    )
    alone = extractor("phi3", None, use_chat=True).extract(TEXTS)
    assert_close(
        alone.hidden_states, [h_by_hand(backbone, chat_ids(backbone.tokenizer, t), ("final", "mean")) for t in TEXTS]
    )


def test_the_system_message_is_used():
    backbone = tiny_backbone("phi3")
    prompt = TaskPrompt("Is it good? {document}", system="Be brief.")
    ids = [chat_ids(backbone.tokenizer, f"Is it good? {text}", system="Be brief.") for text in TEXTS]
    assert_close(
        extractor("phi3", prompt).extract(TEXTS).hidden_states,
        [h_by_hand(backbone, each, ("final", "mean")) for each in ids],
    )


def test_a_system_message_alone_is_a_prompt():
    backbone = tiny_backbone("phi3")
    ids = chat_ids(backbone.tokenizer, "A dull film.", system="Be brief.")
    extracted = extractor("phi3", TaskPrompt("{document}", system="Be brief.")).extract(["A dull film."])
    assert_close(extracted.hidden_states[0], h_by_hand(backbone, ids, ("final", "mean")))


def test_answers_are_put_into_the_prompt():
    backbone = tiny_backbone("phi3")
    answers = [f"Answer {number}." for number in range(len(TEXTS))]
    extracted = extractor("phi3", "verify-answer").extract(TEXTS, answers=answers)
    filled = [
        PROMPTS["verify-answer"].fill(document=text, answer=answer) for text, answer in zip(TEXTS, answers, strict=True)
    ]
    expected = [h_by_hand(backbone, chat_ids(backbone.tokenizer, each), ("final", "mean")) for each in filled]
    assert_close(extracted.hidden_states, expected)
    documents = Documents(TEXTS, answers=answers)
    assert np.array_equal(extractor("phi3", "verify-answer").extract(documents).hidden_states, extracted.hidden_states)
    with pytest.raises(InvalidInputError, match=r"The prompt asks for an \{answer\}, but the documents have none"):
        extractor("phi3", "verify-answer").extract(TEXTS)
    with pytest.raises(InvalidInputError, match="Answers are given, but the prompt has no place for them"):
        extractor("phi3", PROMPT).extract(TEXTS, answers=answers)


def test_answers_beside_documents_that_are_checked_already_are_refused():
    with pytest.raises(InvalidInputError, match="'answers'"):
        extractor("phi3", "verify-answer").extract(Documents(TEXTS), answers=["Yes."] * len(TEXTS))


def test_half_precision_gives_nearly_the_same_in_float32(saved):
    exact = HiddenStateExtractor(saved, PROMPT).extract(TEXTS)
    rough = HiddenStateExtractor(saved, PROMPT, dtype="bfloat16").extract(TEXTS)
    assert rough.hidden_states.dtype == rough.label_logits.dtype == np.float32
    difference = np.abs(rough.hidden_states - exact.hidden_states)
    assert 1e-4 < difference.max() < 0.5 and difference.mean() < 0.05


# --- Segments --------------------------------------------------------------------------------------------------------

STORY = "It rains. The hero meets Nobody!\n\nWas it good? Yes.\nThe end came late, and he left."
SENTENCES = ["It rains.", "The hero meets Nobody!", "Was it good?", "Yes.", "The end came late, and he left."]
PARAGRAPHS = ["It rains. The hero meets Nobody!", "Was it good? Yes.\nThe end came late, and he left."]


def positions_by_hand(backbone, template, text, segments):
    """The token positions of each segment: every token that has a character of it, searched one by one."""
    filled = template.replace("{document}", text)
    offsets = backbone.tokenizer(filled, return_offsets_mapping=True)["offset_mapping"]
    found, start = [], template.index("{document}")
    for segment in segments:
        start = filled.index(segment, start)
        end = start + len(segment)
        found.append([k for k, (left, right) in enumerate(offsets) if left < right and left < end and right > start])
        start = end
    return found


@pytest.mark.parametrize("name", ["phi3", "mixtral", "bert", "roberta"])
@pytest.mark.parametrize(
    ("segments", "of_story", "of_short"),
    [
        ("sentences", SENTENCES, ["A dull film."]),
        ("paragraphs", PARAGRAPHS, ["A dull film."]),
        ("fields", [STORY], ["A dull film."]),
    ],
)
def test_segments_are_summarised_as_by_a_loop(name, segments, of_story, of_short):
    backbone, n_segments = tiny_backbone(name), 6
    prompt = TaskPrompt("Here is a review. <review> {document} </review> Is it good?")
    extracted = extractor(name, prompt, segments=segments, n_segments=n_segments, use_chat=False).extract(
        [STORY, "A dull film."]
    )
    edge = -1 if name in DECODERS else 0
    expected = np.empty((2, 1 + n_segments, 2 * HIDDEN_SIZE))
    for row, (text, parts) in enumerate([(STORY, of_story), ("A dull film.", of_short)]):
        states = plain_states(backbone, plain_ids(backbone.tokenizer, prompt.fill(document=text))).double().numpy()
        whole = np.concatenate([states[edge], states.mean(axis=0)])
        expected[row] = whole
        for number, positions in enumerate(positions_by_hand(backbone, prompt.template, text, parts), start=1):
            chosen = states[positions[0] : positions[-1] + 1]
            expected[row, number] = np.concatenate([chosen[edge], chosen.mean(axis=0)])
    assert_close(extracted.hidden_states, expected)
    for row, parts in enumerate((of_story, of_short)):
        for number in range(1 + len(parts), 1 + n_segments):  # places that are not needed hold the whole, to the bit
            assert np.array_equal(extracted.hidden_states[row, number], extracted.hidden_states[row, 0])


def test_the_fields_of_a_prompt_are_segments():
    backbone = tiny_backbone("phi3")
    prompt = TaskPrompt("Q: {document} A: {answer} Good?")
    extracted = extractor("phi3", prompt, segments="fields", n_segments=2, use_chat=False, parts=["mean"]).extract(
        ["Was it good?"], answers=["Nobody laughed."]
    )
    text = "Q: Was it good? A: Nobody laughed. Good?"
    states = plain_states(backbone, plain_ids(backbone.tokenizer, text)).numpy()
    question, answer = (
        positions_by_hand(backbone, text.replace(part, "{document}"), part, [part])[0]
        for part in ("Was it good?", "Nobody laughed.")
    )
    assert_close(
        extracted.hidden_states[0], [states.mean(axis=0), states[question].mean(axis=0), states[answer].mean(axis=0)]
    )


def test_segments_leave_the_first_position_as_it_is_without():
    with_segments = extractor("phi3", PROMPT, segments="sentences", n_segments=3).extract(TEXTS)
    without = extractor("phi3", PROMPT).extract(TEXTS)
    assert with_segments.hidden_states.shape == (len(TEXTS), 4, 2 * HIDDEN_SIZE)
    assert np.array_equal(with_segments.hidden_states[:, 0], without.hidden_states)
    assert np.array_equal(with_segments.label_logits, without.label_logits)


# --- Label logits ----------------------------------------------------------------------------------------------------


def word_tokens(backbone, words):
    """All words with a space before them or all without, whichever takes fewer tokens in all.

    Of equal ones, without: every prompt here is in a chat, or ends with a space.
    """
    forms = [
        [list(backbone.tokenizer(space + word, add_special_tokens=False)["input_ids"]) for word in words]
        for space in ("", " ")
    ]
    return min(forms, key=lambda form: sum(map(len, form)))


def label_logit_by_hand(backbone, ids, word):
    """Logit of the first token, and log p of each later one after a pass over all before it."""
    logit = plain_logits(backbone, ids)[-1, word[0]].double()
    for k in range(1, len(word)):
        logit += plain_logits(backbone, [*ids, *word[:k]])[-1].double().log_softmax(dim=-1)[word[k]]
    return float(logit)


def log_p_by_hand(backbone, ids, word):
    """Log-probability of a word as a sequence of tokens."""
    return sum(
        float(plain_logits(backbone, [*ids, *word[:k]])[-1].double().log_softmax(dim=-1)[word[k]])
        for k in range(len(word))
    )


@with_output_layer
@pytest.mark.parametrize("batch_tokens", [1, 10**6])
def test_label_logits_are_the_models_own(name, batch_tokens):
    backbone = tiny_backbone(name)
    words = word_tokens(backbone, ["No", "Yes"])
    assert [len(word) for word in words] == [1, 1]
    extracted = extractor(name, PROMPT, batch_tokens=batch_tokens).extract(TEXTS)
    logits = [plain_logits(backbone, ids_by_hand(backbone, PROMPT, text))[-1] for text in TEXTS]
    assert_close(extracted.label_logits, [[float(each[word[0]]) for word in words] for each in logits])


@with_output_layer
@pytest.mark.parametrize("batch_tokens", [1, 100, 10**6])
def test_label_logits_of_longer_words(name, batch_tokens):
    """Words of one and of several tokens, two of them with the first token in common."""
    backbone = tiny_backbone(name)
    prompt = TaskPrompt(PROMPT.template, {"a": "Yes", "b": "Nothing happened", "c": "Nothing came", "d": "positive"})
    words = word_tokens(backbone, prompt.words.values())
    assert len(words[0]) == 1 and min(map(len, words[1:])) >= 2
    assert words[1][0] == words[2][0] and words[1] != words[2]
    extracted = extractor(name, prompt, batch_tokens=batch_tokens).extract(TEXTS)
    ids = [ids_by_hand(backbone, prompt, text) for text in TEXTS]
    assert_close(
        extracted.label_logits, [[label_logit_by_hand(backbone, each, word) for word in words] for each in ids]
    )
    parts = ("final", "mean")
    assert_close(extracted.hidden_states, [h_by_hand(backbone, each, parts) for each in ids])  # not of the longer ones


@with_output_layer
def test_softmax_of_label_logits_is_the_probability_of_a_word_given_one_of_them(name):
    backbone = tiny_backbone(name)
    prompt = TaskPrompt(PROMPT.template, ["Yes", "Nothing came", "Nothing happened", "positive"])
    words = word_tokens(backbone, prompt.words.values())
    logits = torch.from_numpy(extractor(name, prompt).extract(TEXTS).label_logits)
    for row, text in enumerate(TEXTS):
        ids = ids_by_hand(backbone, prompt, text)
        p = np.exp([log_p_by_hand(backbone, ids, word) for word in words])
        np.testing.assert_allclose(logits[row].double().softmax(dim=0).numpy(), p / p.sum(), rtol=1e-4)


def test_label_logits_are_in_the_order_of_the_prompt():
    forward = extractor("phi3", TaskPrompt(PROMPT.template, {0: "No", 1: "Yes"})).extract(TEXTS).label_logits
    backward = extractor("phi3", TaskPrompt(PROMPT.template, {1: "Yes", 0: "No"})).extract(TEXTS).label_logits
    assert np.array_equal(forward, backward[:, ::-1]) and not np.allclose(forward, backward)


@pytest.mark.parametrize(("n_layers", "layer"), [(8, 6), (4, 3), (28, 21), (2, -1), (1, -1)])
def test_a_decoder_is_asked_at_three_quarters_of_its_depth(n_layers, layer, monkeypatch):
    monkeypatch.setattr(Backbone, "n_layers", n_layers)
    made, encoder = extractor("phi3", PROMPT), extractor("bert")
    assert made.origin().pooling.layer == layer
    assert encoder.origin().pooling.layer == -1


def test_the_default_layer_is_the_one_in_the_origin():
    deep = Backbone(*llama(n_layers=4))
    made = HiddenStateExtractor(deep, PROMPT)
    assert made.origin().pooling.layer == 3
    named = HiddenStateExtractor(deep, PROMPT, layer=3)
    assert_close(made.transform(TEXTS), named.transform(TEXTS))
    assert not np.allclose(made.transform(TEXTS), HiddenStateExtractor(deep, PROMPT, layer=-1).transform(TEXTS))


@pytest.mark.parametrize("layer", [0, 1])
def test_label_logits_are_of_the_last_layer_whatever_the_states_are_of(layer):
    prompt = TaskPrompt(PROMPT.template, ["Yes", "Nothing"])
    other, last = (extractor("phi3", prompt, layer=each).extract(TEXTS) for each in (layer, -1))
    assert_close(other.label_logits, last.label_logits)
    assert not np.allclose(other.hidden_states, last.hidden_states)


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - set(DECODERS_WITH_HEAD)))
def test_without_an_output_layer_there_are_no_label_logits(name):
    assert extractor(name, PROMPT).extract(TEXTS).label_logits is None


@with_output_layer
def test_without_label_words_there_are_no_label_logits(name):
    assert extractor(name, "Is it good? {document}").extract(TEXTS).label_logits is None


@with_output_layer
@pytest.mark.parametrize(
    "words", [[], ["No", "Yes"], ["Yes", "Nothing happened", "positive"]], ids=["none", "single", "longer"]
)
def test_the_output_layer_is_run_on_the_positions_of_the_words_only(name, words):
    backbone = tiny_backbone(name)
    n_positions = []
    handle = backbone.model.get_output_embeddings().register_forward_hook(
        lambda module, arguments, output: n_positions.append(output.shape[:-1].numel())
    )
    extractor(name, TaskPrompt(PROMPT.template, words)).extract(TEXTS)
    handle.remove()
    n_later = sum(len(word) - 1 for word in word_tokens(backbone, words))
    assert sum(n_positions) == len(TEXTS) * (bool(words) + n_later)


# --- Documents that are too long -------------------------------------------------------------------------------------

LONG = ("The film is a fine piece of work: well played, well lit, and never dull! " * 60).strip()


@every_architecture
def test_a_long_document_is_cut_to_what_the_model_takes(name):
    """Two documents that differ in their last token alone tell how many tokens come after them."""
    backbone = tiny_backbone(name)
    whole, other = (ids_by_hand(backbone, PROMPT, LONG + mark) for mark in ("!", "?"))
    n_tail = next(k for k in range(len(whole)) if whole[-1 - k] != other[-1 - k])
    assert n_tail > 5 and len(whole) > 2 * MAX_POSITIONS
    extracted = extractor(name, PROMPT).extract(["A dull film.", LONG + "!"])
    assert extracted.n_tokens[1] == MAX_POSITIONS
    assert extracted.n_cut.tolist() == [0, len(whole) - MAX_POSITIONS]
    kept = whole[: MAX_POSITIONS - n_tail] + whole[-n_tail:]
    parts = ("final", "mean") if name in DECODERS else ("first", "mean")
    short = ids_by_hand(backbone, PROMPT, "A dull film.")
    assert_close(extracted.hidden_states, [h_by_hand(backbone, ids, parts) for ids in (short, kept)])


def test_the_states_of_a_cut_document_are_those_of_its_tokens():
    backbone = tiny_backbone("gpt2")
    head, tail = plain_ids(backbone.tokenizer, "Here: <review>"), plain_ids(backbone.tokenizer, " </review> Good?")
    middle = plain_ids(backbone.tokenizer, f" {LONG}")
    extracted = extractor("gpt2", "Here: <review> {document} </review> Good?", max_tokens=40).extract([LONG])
    ids = [*head, *middle[: 40 - len(head) - len(tail)], *tail]
    assert_close(extracted.hidden_states[0], h_by_hand(backbone, ids, ("final", "mean")))
    assert extracted.n_tokens.tolist() == [40] and extracted.n_cut.tolist() == [
        len(head) + len(middle) + len(tail) - 40
    ]


@with_output_layer
def test_longer_label_words_find_room_after_the_longest_document(name):
    """GPT-2 has no position after its last one, so a document must leave room for the words."""
    prompt = TaskPrompt(PROMPT.template, ["Yes", "Nothing happened"])
    with inputs_of(tiny_backbone(name)) as inputs:
        extracted = extractor(name, prompt).extract([LONG, "A dull film."])
    assert np.isfinite(extracted.label_logits).all() and extracted.n_cut[0] > 0
    assert max(each["input_ids"].shape[1] for each in inputs) <= MAX_POSITIONS


def test_a_limit_above_the_models_own_is_refused():
    with pytest.raises(InvalidInputError, match=rf"'max_tokens' .* must be at most {MAX_POSITIONS}, .* Got 10000"):
        extractor("gpt2", PROMPT, max_tokens=10000).extract([LONG])


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(
        InvalidInputError, match=r"The prompt alone takes \d+ tokens, but max_tokens is 10: nothing is left"
    ):
        extractor("phi3", PROMPT, max_tokens=10).extract(TEXTS)


# --- Settings that cannot be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"parts": "mean"}, InvalidTypeError, "'parts' of HiddenStateExtractor must be a list of names. Got 'mean'"),
        ({"parts": []}, InvalidTypeError, r"'parts' of HiddenStateExtractor must be a list of names. Got \[\]"),
        ({"parts": ["last"]}, InvalidInputError, "'parts' .* must be one of 'first', 'final', 'mean'. Got 'last'"),
        ({"segments": "words"}, InvalidInputError, "'segments' .* must be one of None, 'sentences', .* Got 'words'"),
        ({"n_segments": 0}, InvalidInputError, "'n_segments' of HiddenStateExtractor must be positive. Got 0"),
        ({"n_segments": 2.5}, InvalidTypeError, "'n_segments' of HiddenStateExtractor must be an integer. Got 2.5"),
        ({"batch_tokens": 0}, InvalidInputError, "'batch_tokens' of HiddenStateExtractor must be positive. Got 0"),
        ({"batch_tokens": None}, InvalidTypeError, "'batch_tokens' of HiddenStateExtractor must be an integer"),
        ({"max_tokens": -1}, InvalidInputError, "'max_tokens' of HiddenStateExtractor must be positive. Got -1"),
        ({"max_tokens": "9"}, InvalidTypeError, "'max_tokens' of HiddenStateExtractor must be an integer. Got '9'"),
        (
            {"layer": 1.0},
            InvalidTypeError,
            "'layer' of HiddenStateExtractor must be an integer or a list of them. Got 1.0",
        ),
        ({"layer": True}, InvalidTypeError, "'layer' of HiddenStateExtractor must be an integer or a list of them"),
        ({"layer": []}, InvalidTypeError, "'layer' of HiddenStateExtractor must be an integer or a list of them"),
        ({"layer": [1, "2"]}, InvalidTypeError, "'layer' of HiddenStateExtractor must be an integer or a list of them"),
        ({"layer": 3}, InvalidInputError, r"'layer' must be in -3\.\.2 for this model. Got 3"),
        ({"dtype": "fp16"}, InvalidInputError, "'dtype' must be one of float32, .*, or None. Got 'fp16'"),
        ({"device": "nonsense"}, InvalidInputError, "'device' of .* must be a torch device on this machine"),
        ({"prompt": "no field"}, InvalidInputError, "'prompt' of HiddenStateExtractor must be one of 'sentiment'"),
        ({"prompt": 3}, InvalidTypeError, "'prompt' of HiddenStateExtractor must be a name, a template or"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(options, error, message):
    options = {"model": tiny_backbone("phi3"), **options}
    with pytest.raises(error, match=message):
        HiddenStateExtractor(**options).extract(TEXTS)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_chat_needs_a_template(name):
    with pytest.raises(
        InvalidInputError, match=r"'use_chat' of HiddenStateExtractor needs a chat template, but \w+ has none"
    ):
        extractor(name, PROMPT, use_chat=True).extract(TEXTS)


@pytest.mark.parametrize("model", [None, 3, b"model"])
def test_a_model_is_a_name_a_path_or_a_backbone(model):
    with pytest.raises(InvalidTypeError, match="'model' of HiddenStateExtractor must be a name, a path or a Backbone"):
        HiddenStateExtractor(model).extract(TEXTS)


@pytest.mark.parametrize("documents", [[], ["A film.", ""], ["A film.", None], [3]])
def test_documents_are_looked_at_before_the_model_is_loaded(documents):
    with pytest.raises((InvalidInputError, InvalidTypeError)) as caught:
        HiddenStateExtractor("/no/such/model").extract(documents)
    assert "model" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"dtype": "fp16"}, {"batch_tokens": -1}, {"parts": ["x"]}, {"prompt": "x"}, {"layer": "x"}]
)
def test_settings_are_looked_at_before_the_model_is_loaded(options):
    with pytest.raises((InvalidInputError, InvalidTypeError)):
        HiddenStateExtractor(**{"model": "/no/such/model", **options}).extract(TEXTS)


# --- scikit-learn ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with the decoder 'phi3'."""
    return save_model(tmp_path_factory.mktemp("models") / "phi3", *phi3())


def test_parameters_are_kept_as_given():
    options = {
        "prompt": PROMPT,
        "parts": ["mean"],
        "layer": 1,
        "segments": "fields",
        "n_segments": 3,
        "max_tokens": 50,
        "use_chat": False,
        "chat_options": {"enable_thinking": False},
        "batch_tokens": 7,
        "device": "cpu",
        "dtype": "bfloat16",
        "revision": "main",
        "trust_remote_code": False,
        "verbose": True,
    }
    made = HiddenStateExtractor("org/name", **options)
    assert made.get_params() == {"model": "org/name", **options}
    assert clone(made).get_params() == made.get_params() and repr(made).startswith("HiddenStateExtractor(")
    assert made.set_params(layer=0).layer == 0


def test_a_clone_gives_the_same_states(saved):
    original = HiddenStateExtractor(saved, PROMPT)
    expected = original.transform(TEXTS)
    for copied in (clone(original), pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert np.array_equal(copied.transform(TEXTS), expected)


def test_a_model_that_is_loaded_already_can_be_cloned():
    """Pipelines, grid search and cross-validation clone what they are given."""
    original = extractor("phi3", PROMPT)
    assert np.array_equal(clone(original).transform(TEXTS), original.transform(TEXTS))


def test_an_extractor_with_a_loaded_model_can_be_copied_and_pickled():
    original = HiddenStateExtractor(Backbone(*phi3()), PROMPT)
    for copied in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert np.array_equal(copied.transform(TEXTS), original.transform(TEXTS))


def test_what_is_pickled_holds_no_weights(saved):
    original = HiddenStateExtractor(saved, PROMPT)
    original.transform(TEXTS)
    assert len(pickle.dumps(original)) < 5000 < (saved / "model.safetensors").stat().st_size


def test_a_changed_setting_is_used_at_once(saved, tmp_path):
    made = HiddenStateExtractor(saved)
    before = made.transform(TEXTS)
    assert not np.allclose(made.set_params(prompt=PROMPT).transform(TEXTS), before)
    assert not np.array_equal(made.set_params(prompt=None, dtype="bfloat16").transform(TEXTS), before)
    other = save_model(tmp_path / "other", *phi3(seed=1))
    assert not np.allclose(made.set_params(dtype=None, model=other).transform(TEXTS), before)
    assert np.array_equal(made.set_params(model=saved).transform(TEXTS), before)


def test_the_model_is_loaded_once(saved, monkeypatch):
    loads = []
    load = Backbone.load
    monkeypatch.setattr(Backbone, "load", lambda *args, **options: loads.append(args) or load(*args, **options))
    made = HiddenStateExtractor(saved, PROMPT)
    assert loads == []
    made.extract(TEXTS)
    made.origin()
    made.transform(TEXTS)
    assert len(loads) == 1


def test_texts_are_classified_in_a_pipeline(saved):
    rng = np.random.default_rng(0)
    words = {0: ["dull", "late", "false"], 1: ["fine", "well", "true"]}
    y = np.repeat([0, 1], 40)
    texts = [f"The film {number} is {' '.join(rng.choice(words[label], 4))}." for number, label in enumerate(y)]
    classifier = SDMClassifier(batch_size=20, **small_settings(max_epochs=4))
    with quiet():
        pipeline = clone(make_pipeline(HiddenStateExtractor(saved, "sentiment"), classifier)).fit(texts, y)
        by_hand = clone(classifier).fit(HiddenStateExtractor(saved, "sentiment").extract(texts).hidden_states, y)
        fresh = [f"The film {number} is {' '.join(rng.choice(words[number % 2], 4))}!" for number in range(10)]
        states = HiddenStateExtractor(saved, "sentiment").transform(fresh)
        np.testing.assert_array_equal(pipeline.predict_proba(fresh), by_hand.predict_proba(states))
        assert pipeline.predict(fresh).tolist() == by_hand.predict(states).tolist()


def test_tables_lists_and_arrays_of_texts_are_taken(saved):
    pandas = pytest.importorskip("pandas")
    made = extractor("phi3", PROMPT)
    expected = made.extract(TEXTS).hidden_states
    for texts in (tuple(TEXTS), np.array(TEXTS), [{"text": text} for text in TEXTS], pandas.DataFrame({"text": TEXTS})):
        assert np.array_equal(made.transform(texts), expected)


# --- Origins ---------------------------------------------------------------------------------------------------------


def stored_and_read(origin):
    return StatesOrigin.from_json(json.loads(json.dumps(origin.to_json(), allow_nan=False)))


def test_an_origin_says_what_the_states_were_made_with(saved):
    origin = HiddenStateExtractor(saved, PROMPT).origin()
    assert stored_and_read(origin) == origin
    assert origin.model.reference == str(saved.resolve()) and origin.model.dtype == "float32"
    assert origin.pooling.parts == ("final", "mean") and origin.pooling.max_tokens == MAX_POSITIONS
    assert origin.prompt.template == PROMPT.template and origin.prompt.use_chat is True
    assert origin.prompt.labels == (0, 1)


OPTIONS = [
    {},
    {"prompt": None},
    {"prompt": "sentiment", "use_chat": False},
    {"prompt": TaskPrompt("{{}} {document}", {"pos": "Yes", "neg": "No"}, system="Be brief.")},
    {"parts": ["mean", "first"]},
    {"layer": 1},
    {"segments": "sentences"},
    {"segments": "fields", "n_segments": 2},
    {"max_tokens": 100},
    {"dtype": "bfloat16"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
def test_from_its_origin_an_equal_extractor_is_made(saved, options):
    original = HiddenStateExtractor(**{"model": saved, "prompt": PROMPT, **options})
    origin = stored_and_read(original.origin())
    again = HiddenStateExtractor.from_origin(origin, batch_tokens=512)
    assert again.origin() == origin and again.batch_tokens == 512
    original.batch_tokens = 512
    first, second = original.extract(TEXTS), again.extract(TEXTS)
    assert np.array_equal(first.hidden_states, second.hidden_states)
    assert (first.label_logits is None) == (second.label_logits is None)
    assert first.label_logits is None or np.array_equal(first.label_logits, second.label_logits)


def test_an_origin_changes_with_all_that_makes_a_difference(saved, tmp_path):
    settings = [
        *OPTIONS,
        {"prompt": TaskPrompt(PROMPT.template)},
        {"prompt": TaskPrompt(PROMPT.template, ["No", "Yes"], system="Be brief.")},
        {"prompt": TaskPrompt(PROMPT.template, ["Yes", "No"])},
        {"use_chat": False},
        {"parts": ["first", "mean"]},
        {"layer": 0},
        {"segments": "paragraphs"},
        {"segments": "sentences", "n_segments": 3},
        {"max_tokens": 101},
        {"model": save_model(tmp_path / "other", *phi3(seed=1))},
    ]
    origins = [HiddenStateExtractor(**{"model": saved, "prompt": PROMPT, **each}).origin() for each in settings]
    for one, other in itertools.combinations(range(len(settings)), 2):
        assert origins[one].difference(origins[other]) is not None, (settings[one], settings[other])


def test_what_makes_no_difference_is_no_part_of_an_origin(saved):
    origin = HiddenStateExtractor(saved, PROMPT).origin()
    for options in (
        {"batch_tokens": 1},
        {"device": "cpu"},
        {"verbose": True},
        {"dtype": "float32"},
        {"n_segments": 3},
        {"use_chat": True},
        {"parts": ("final", "mean")},
        {"max_tokens": MAX_POSITIONS},
        {"chat_options": {}},
    ):
        assert HiddenStateExtractor(saved, PROMPT, **options).origin() == origin


def test_a_model_that_was_moved_is_named_anew(saved, tmp_path):
    origin = HiddenStateExtractor(saved, PROMPT).origin()
    moved = shutil.copytree(saved, tmp_path / "moved")
    again = HiddenStateExtractor.from_origin(origin, model=moved)
    assert again.origin() != origin and again.origin().difference(origin) is None
    assert np.array_equal(again.transform(TEXTS), HiddenStateExtractor(saved, PROMPT).transform(TEXTS))


def test_a_model_that_was_given_as_an_object_must_be_given_again():
    origin = extractor("phi3", PROMPT).origin()
    assert origin.model.reference is None
    with pytest.raises(BackboneError, match=r"does not say where the language model came from.* Pass it again: model="):
        HiddenStateExtractor.from_origin(origin)
    again = HiddenStateExtractor.from_origin(origin, model=tiny_backbone("phi3"))
    assert again.origin() == origin


def test_a_model_of_double_precision_that_was_given_as_an_object_can_be_given_again():
    model, tokenizer = phi3()
    backbone = Backbone(model.double(), tokenizer)
    origin = HiddenStateExtractor(backbone, PROMPT).origin()
    assert HiddenStateExtractor.from_origin(origin, model=backbone).origin() == origin


# --- Shards ----------------------------------------------------------------------------------------------------------

LABELS = [f"label {number % 2}" for number in range(len(TEXTS))]


def labelled():
    return Documents(TEXTS, labels=LABELS, ids=[f"id-{number}" for number in range(len(TEXTS))])


def contents(directory):
    """Every file of a directory but the lock, by name."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.name != ".lock"}


@pytest.mark.parametrize("options", [{}, {"segments": "sentences", "n_segments": 2}], ids=["h", "segments"])
def test_states_on_disk_are_those_in_memory(tmp_path, options):
    made = extractor("phi3", PROMPT, batch_tokens=1, **options)
    report = made.extract_to(tmp_path / "states", labelled(), shard_size=4)
    assert report == {"documents": len(TEXTS), "extracted": len(TEXTS), "documents_cut": 0, "tokens_cut": 0}
    states, expected = read_states(tmp_path / "states"), made.extract(TEXTS)
    assert np.array_equal(states.hidden_states, expected.hidden_states)
    assert np.array_equal(states.label_logits, expected.label_logits)
    assert states.labels.tolist() == LABELS and states.texts == TEXTS
    assert states.ids == [f"id-{number}" for number in range(len(TEXTS))]
    assert states.origin == made.origin() and states.logit_labels == (0, 1)


def test_states_on_disk_differ_by_rounding_alone_where_shards_make_other_batches(tmp_path):
    made = extractor("mixtral", PROMPT)
    made.extract_to(tmp_path / "states", TEXTS, shard_size=2)
    assert_close(read_states(tmp_path / "states").hidden_states, made.extract(TEXTS).hidden_states)


def test_without_an_output_layer_no_label_logits_are_written(tmp_path):
    extractor("bert", PROMPT).extract_to(tmp_path, TEXTS, shard_size=5)
    states = read_states(tmp_path)
    assert states.label_logits is None and states.labels is None
    assert states.ids == list(range(len(TEXTS)))


def test_what_was_cut_is_counted(tmp_path):
    texts = [LONG, "A dull film.", f"{LONG} Yes."]
    made = extractor("phi3", PROMPT)
    n_cut = made.extract(texts).n_cut
    report = made.extract_to(tmp_path, texts, shard_size=1)
    assert report["documents_cut"] == 2 and report["tokens_cut"] == n_cut.sum() > 500


DATED = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %} Today is {{ strftime_now('%H:%M:%S.%f') }}."
    "{% if brief %} Be brief.{% endif %}"
)


def dated(seed=0):
    """A model whose chat template writes the time, to the microsecond."""
    model, tokenizer = phi3(seed)
    tokenizer.chat_template = DATED
    return Backbone(model, tokenizer)


def test_a_date_in_the_chat_template_is_that_of_the_origin():
    backbone = dated()
    origin = HiddenStateExtractor(backbone, PROMPT).origin()
    assert HiddenStateExtractor(backbone, PROMPT).origin() != origin
    again = HiddenStateExtractor.from_origin(stored_and_read(origin), model=backbone)
    assert again.origin() == origin == pickle.loads(pickle.dumps(again)).origin()
    assert np.array_equal(again.extract(TEXTS).hidden_states, again.extract(TEXTS).hidden_states)


def test_a_run_goes_on_with_the_date_it_was_begun_with(tmp_path):
    made = HiddenStateExtractor(dated(), PROMPT, batch_tokens=1)
    run_until(tmp_path, 5, made, TEXTS, shard_size=2)
    assert made.extract_to(tmp_path, TEXTS)["extracted"] == len(TEXTS) - 4
    states = read_states(tmp_path)
    again = HiddenStateExtractor.from_origin(states.origin, model=made.model, batch_tokens=1)
    assert np.array_equal(again.extract(TEXTS).hidden_states, states.hidden_states)


def test_another_option_of_the_chat_template_is_another_run(tmp_path):
    backbone = dated()
    backbone.tokenizer.chat_template = DATED.replace(" Today is {{ strftime_now('%H:%M:%S.%f') }}.", "")
    made = [HiddenStateExtractor(backbone, PROMPT, chat_options={"brief": brief}) for brief in (False, True)]
    assert made[0].origin() != made[1].origin()
    assert not np.allclose(made[0].transform(TEXTS), made[1].transform(TEXTS))
    made[0].extract_to(tmp_path, TEXTS)
    with pytest.raises(CheckpointError, match="was made with a different prompt"):
        made[1].extract_to(tmp_path, TEXTS)


class Stopped(BaseException):
    """As if the process were killed."""


def run_until(directory, n_passes, made, documents, **options):
    """Extract, and stop inside of the language model after so many passes."""
    passes = itertools.count()

    def count(*_):
        if next(passes) == n_passes:
            raise Stopped

    handle = made.backbone.model.register_forward_pre_hook(count)
    try:
        with pytest.raises(Stopped):
            made.extract_to(directory, documents, **options)
    finally:
        handle.remove()


@pytest.mark.parametrize("n_passes", [0, 1, 3, 5, 8])
def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path, n_passes):
    made = extractor("phi3", PROMPT, batch_tokens=1)
    made.extract_to(tmp_path / "whole", labelled(), shard_size=2)
    run_until(tmp_path / "parts", n_passes, made, labelled(), shard_size=2)
    n_done = n_passes // 2 * 2  # a pass for each document, the beginning has been run; half shards are redone
    report = made.extract_to(tmp_path / "parts", labelled(), shard_size=2)
    assert report["documents"] == len(TEXTS) and report["extracted"] == len(TEXTS) - n_done
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    again = made.extract_to(tmp_path / "parts", labelled(), shard_size=2)
    assert again["extracted"] == 0 and contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_a_run_that_is_interrupted_again_and_again_ends_too(tmp_path):
    made = extractor("gemma2", PROMPT, batch_tokens=1)
    made.extract_to(tmp_path / "whole", TEXTS, shard_size=3)
    for _ in range(2):  # a shard, and a document of the next
        run_until(tmp_path / "parts", 4, made, TEXTS, shard_size=3)
    assert made.extract_to(tmp_path / "parts", TEXTS, shard_size=3)["extracted"] == len(TEXTS) - 6
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_a_run_goes_on_with_the_shards_it_was_begun_with(tmp_path):
    made = extractor("phi3", PROMPT, batch_tokens=1)
    made.extract_to(tmp_path / "whole", TEXTS, shard_size=2)
    run_until(tmp_path / "parts", 5, made, TEXTS, shard_size=2)
    made.extract_to(tmp_path / "parts", TEXTS, shard_size=1000)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_a_run_goes_on_with_a_copy_of_the_model(saved, tmp_path):
    made = HiddenStateExtractor(saved, PROMPT, batch_tokens=1)
    run_until(tmp_path / "parts", 5, made, TEXTS, shard_size=2)
    moved = shutil.copytree(saved, tmp_path / "moved")
    report = HiddenStateExtractor(moved, PROMPT, batch_tokens=1).extract_to(tmp_path / "parts", TEXTS)
    assert report["extracted"] == len(TEXTS) - 4
    assert np.array_equal(read_states(tmp_path / "parts").hidden_states, made.extract(TEXTS).hidden_states)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"prompt": "factcheck"}, "prompt template"),
        ({"prompt": TaskPrompt(PROMPT.template, ["Yes", "No"])}, "prompt label_words"),
        ({"use_chat": False}, "prompt use_chat"),
        ({"model": "gemma2"}, "model fingerprint"),
        ({"layer": 1}, "states layer"),
        ({"parts": ["mean", "final"]}, "states parts"),
        ({"segments": "fields"}, "states segments"),
        ({"max_tokens": 99}, "states max_tokens"),
        ({"texts": [*TEXTS[:-1], "x y"]}, "documents fingerprint"),
        ({"texts": TEXTS[::-1]}, "documents fingerprint"),
        ({"texts": TEXTS[:-1]}, "documents fingerprint"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_another_run_is_not_mixed_in(tmp_path, change, what):
    run_until(tmp_path, 3, extractor("phi3", PROMPT, batch_tokens=1), TEXTS, shard_size=2)
    before = contents(tmp_path)
    texts, name = change.pop("texts", TEXTS), change.pop("model", "phi3")
    other = extractor(name, change.pop("prompt", PROMPT), **change)
    with pytest.raises(
        CheckpointError, match=f"was made with a different {what}: .* then, .* now. Use another directory"
    ):
        other.extract_to(tmp_path, texts, shard_size=2)
    assert contents(tmp_path) == before


def test_a_directory_of_unfinished_states_is_not_read(tmp_path):
    run_until(tmp_path, 5, extractor("phi3", PROMPT, batch_tokens=1), TEXTS, shard_size=2)
    with pytest.raises(OSError, match=f"not finished: 4 of {len(TEXTS)} rows"):
        read_states(tmp_path)


def test_where_states_are_written_is_a_path_and_shards_have_a_size(tmp_path):
    with pytest.raises(
        InvalidTypeError, match=r"'directory' of HiddenStateExtractor\.extract_to must be a path. Got 3"
    ):
        extractor("phi3").extract_to(3, TEXTS)
    with pytest.raises(InvalidInputError, match=r"'shard_size' of HiddenStateExtractor\.extract_to must be positive"):
        extractor("phi3").extract_to(tmp_path, TEXTS, shard_size=0)
