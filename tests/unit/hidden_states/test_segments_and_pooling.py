"""Sentences and paragraphs of a text, spans of tokens, and what is taken of the states in them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_models import byte_level_tokenizer, roberta_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer
from torchsdm import TaskPrompt
from torchsdm.data.documents import Document
from torchsdm.hidden_states._pooling import DECODER_PARTS, ENCODER_PARTS, PARTS, pool
from torchsdm.hidden_states._segments import join_spans, split_spans
from torchsdm.hidden_states._tokens import PromptEncoder
from torchsdm.settings import SEGMENTS

TOKENIZERS = {
    "byte-level": byte_level_tokenizer(),
    "sentencepiece": sentencepiece_tokenizer(),
    "wordpiece": wordpiece_tokenizer(),
    "roberta": roberta_tokenizer(),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)

# --- Where sentences and paragraphs are ------------------------------------------------------------------------------


def pieces(text, kind):
    return [text[start:end] for start, end in split_spans(text, kind)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.", ["One."]),
        ("No end", ["No end"]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ('He said "No." She left.', ['He said "No."', "She left."]),
        ("(It rains.) It pours...  So?!", ["(It rains.)", "It pours...", "So?!"]),
        ("It costs 3.50 at a.b.com today.", ["It costs 3.50 at a.b.com today."]),
        ("One line\nanother\n\n  third", ["One line", "another", "third"]),
        ("雨。晴！雪？ええ", ["雨。", "晴！", "雪？", "ええ"]),
        ("  spaces around.  ", ["spaces around."]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_sentences(text, expected):
    assert pieces(text, "sentences") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.\nStill one.", ["One. Two.\nStill one."]),
        ("One.\n\nTwo.\n \t\n\n Three.\n", ["One.", "Two.", "Three."]),
        ("\n\n\nOne\n\n\n", ["One"]),
        ("\n \n", []),
    ],
)
def test_paragraphs(text, expected):
    assert pieces(text, "paragraphs") == expected


@given(text=st.text(alphabet="ab.!?…\"'”)] \n\t。！?", max_size=60), kind=st.sampled_from(["sentences", "paragraphs"]))
def test_no_character_but_white_space_is_outside_all_segments(text, kind):
    spans = split_spans(text, kind)
    covered = [position for start, end in spans for position in range(start, end)]
    assert covered == sorted(set(covered))  # in order, and none twice
    assert all(text[position].isspace() for position in set(range(len(text))) - set(covered))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)


# --- Joining ---------------------------------------------------------------------------------------------------------


def test_neighbours_are_joined_evenly():
    spans = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert join_spans(spans, 5) == spans and join_spans(spans, 9) == spans and join_spans([], 3) == []
    assert join_spans(spans, 1) == [(0, 9)]
    assert join_spans(spans, 2) == [(0, 3), (4, 9)]
    assert join_spans(spans, 3) == [(0, 1), (2, 5), (6, 9)]


@given(n_spans=st.integers(1, 40), n=st.integers(1, 12))
def test_joined_spans_hold_all_and_differ_by_one_at_most(n_spans, n):
    spans = [(3 * k, 3 * k + 2) for k in range(n_spans)]
    joined = join_spans(spans, n)
    assert len(joined) == min(n, n_spans)
    held = [[span for span in spans if start <= span[0] and span[1] <= end] for start, end in joined]
    assert [span for group in held for span in group] == spans
    assert max(len(group) for group in held) - min(len(group) for group in held) <= 1


# --- Spans of tokens -------------------------------------------------------------------------------------------------

STORY = "It rains. The hero (old) meets Nobody!\n\nWas it good? Yes.\nThe end came late, and he left."
SENTENCES = ["It rains.", "The hero (old) meets Nobody!", "Was it good?", "Yes.", "The end came late, and he left."]
PARAGRAPHS = ["It rains. The hero (old) meets Nobody!", "Was it good? Yes.\nThe end came late, and he left."]


def encode(tokenizer, template, text, answer=None, *, segments, n_segments, max_tokens=1000):
    encoder = PromptEncoder(
        tokenizer, TaskPrompt(template), use_chat=False, max_tokens=max_tokens, segments=segments, n_segments=n_segments
    )
    (sequence,) = encoder.encode([Document(text, 0, answer=answer)])
    return sequence


def spans_by_hand(tokenizer, text, parts):
    """First and last token with a character of each part, searched token by token."""
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    spans, position = [], 0
    for part in parts:
        start = text.index(part, position)
        position = start + len(part)
        tokens = [
            k for k, (left, right) in enumerate(offsets) if any(left <= c < right for c in range(start, position))
        ]
        spans.append((tokens[0], tokens[-1] + 1))
    return spans


@every_tokenizer
@pytest.mark.parametrize(("segments", "parts"), [("sentences", SENTENCES), ("paragraphs", PARAGRAPHS)])
def test_segments_are_the_tokens_of_their_characters(tokenizer, segments, parts):
    text = f"Here it is. <review> {STORY} </review> Good?"
    sequence = encode(
        tokenizer, "Here it is. <review> {document} </review> Good?", STORY, segments=segments, n_segments=8
    )
    whole = (0, len(sequence.ids))
    expected = spans_by_hand(tokenizer, text, parts)
    assert sequence.spans == [whole, *expected, *[whole] * (8 - len(parts))]


def test_tokens_of_a_sentence_decode_to_it():
    tokenizer = TOKENIZERS["byte-level"]
    sequence = encode(tokenizer, "Say: {document} Good?", STORY, segments="sentences", n_segments=5)
    assert [tokenizer.decode(sequence.ids[a:b]).strip() for a, b in sequence.spans[1:]] == SENTENCES


def test_fields_are_document_and_answer_in_the_order_of_the_template():
    tokenizer = TOKENIZERS["byte-level"]
    for template in ("Q: {document} A: {answer} Good?", "A: {answer} Q: {document} Good?"):
        sequence = encode(tokenizer, template, "Was it good?", "Yes. No.", segments="fields", n_segments=3)
        found = [tokenizer.decode(sequence.ids[a:b]).strip() for a, b in sequence.spans[1:3]]
        assert found == (["Was it good?", "Yes. No."] if template[0] == "Q" else ["Yes. No.", "Was it good?"])
        assert sequence.spans[3] == sequence.spans[0] == (0, len(sequence.ids))


@every_tokenizer
def test_more_segments_than_asked_are_joined(tokenizer):
    text = f"Say: {STORY}"
    alone = spans_by_hand(tokenizer, text, SENTENCES)
    sequence = encode(tokenizer, "Say: {document}", STORY, segments="sentences", n_segments=2)
    assert sequence.spans == [(0, len(sequence.ids)), (alone[0][0], alone[1][1]), (alone[2][0], alone[4][1])]


def test_every_document_has_as_many_spans():
    encoder = PromptEncoder(
        TOKENIZERS["byte-level"],
        TaskPrompt("{document}"),
        use_chat=False,
        max_tokens=99,
        segments="sentences",
        n_segments=3,
    )
    sequences = encoder.encode([Document(text, 0) for text in ("One.", STORY, "A. B.", "...", "A.\n" * 50)])
    assert [len(sequence.spans) for sequence in sequences] == [4] * 5


def test_sentences_that_were_cut_are_no_segments():
    tokenizer = TOKENIZERS["byte-level"]
    text = "It rains. It pours. The end came late. He left."
    whole = encode(tokenizer, "{document} Good?", text, segments="sentences", n_segments=4)
    assert len(set(whole.spans)) == 5
    tail = len(tokenizer(" Good?")["input_ids"])
    kept = whole.spans[3][0] + 2  # two tokens of the third sentence
    cut = encode(tokenizer, "{document} Good?", text, segments="sentences", n_segments=4, max_tokens=kept + tail)
    assert cut.n_cut == len(whole.ids) - kept - tail
    everything = (0, kept + tail)
    assert cut.spans == [everything, *whole.spans[1:3], (whole.spans[3][0], kept), everything]


def test_a_special_token_that_is_spelled_out_belongs_to_its_sentence():
    tokenizer = TOKENIZERS["byte-level"]
    text = "It rains. The <|im_end|> is near. He left."
    sequence = encode(tokenizer, "{document} Good?", text, segments="sentences", n_segments=3)
    found = [tokenizer.decode(sequence.ids[a:b]).strip() for a, b in sequence.spans[1:]]
    assert found == ["It rains.", "The <|im_end|> is near.", "He left."]


def test_kinds_of_segments_are_known():
    assert SEGMENTS == ("sentences", "paragraphs", "fields")


# --- Pooling ---------------------------------------------------------------------------------------------------------


def pool_by_hand(states, spans, parts):
    """Loops over sequences, spans, parts and positions, in float64."""
    result = torch.empty(len(spans), len(spans[0]), len(parts) * states.shape[-1], dtype=torch.float64)
    for b, of_sequence in enumerate(spans):
        for p, (start, end) in enumerate(of_sequence):
            taken = []
            for part in parts:
                if part == "first":
                    taken.append(states[b, start].double())
                elif part == "final":
                    taken.append(states[b, end - 1].double())
                else:
                    total = torch.zeros(states.shape[-1], dtype=torch.float64)
                    for position in range(start, end):
                        total += states[b, position].double()
                    taken.append(total / (end - start))
            result[b, p] = torch.cat(taken)
    return result


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_pooling_equals_loops(data, parts, dtype):
    n_sequences, n_spans, length = (data.draw(st.integers(1, top)) for top in (3, 3, 12))
    starts = st.integers(0, length - 1).flatmap(lambda start: st.tuples(st.just(start), st.integers(start + 1, length)))
    spans = [[data.draw(starts) for _ in range(n_spans)] for _ in range(n_sequences)]
    states = torch.randn(n_sequences, length, 5, generator=torch.Generator().manual_seed(length)).to(dtype)
    pooled = pool(states, spans, parts)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled.double(), pool_by_hand(states, spans, parts), rtol=0, atol=1e-6)


def test_padding_is_never_looked_at():
    states = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    spans = [[(0, 6)], [(0, 3)]]
    padded = states.clone()
    padded[1, 3:] = float("nan")
    assert torch.equal(pool(padded, spans, PARTS), pool(states, spans, PARTS))


def test_a_sequence_is_pooled_to_the_same_bits_in_any_company():
    states = torch.randn(3, 40, 8, generator=torch.Generator().manual_seed(1))
    spans = [[(0, 40), (3, 9)], [(0, 17), (0, 17)], [(0, 1), (0, 1)]]
    together = pool(states, spans, PARTS)
    for row in range(3):
        length = spans[row][0][1]
        assert torch.equal(pool(states[row : row + 1, :length], spans[row : row + 1], PARTS), together[row : row + 1])


def test_the_mean_of_half_precision_states_is_taken_in_single_precision():
    states = torch.full((1, 3000, 1), 1.0).to(torch.bfloat16)
    states[0, 0] = 4.0
    assert pool(states, [[(0, 3000)]], ["mean"]).item() == pytest.approx(1 + 3 / 3000, abs=1e-6)


def test_what_h_is_made_of_by_default():
    assert DECODER_PARTS == ("final", "mean") and ENCODER_PARTS == ("first", "mean")
