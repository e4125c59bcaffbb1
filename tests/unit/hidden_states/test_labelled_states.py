"""Labelled states of documents: nothing of a document is lost on the way, and a store changes nothing but the time."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

import tiny_models
from clock import Clock, open_terminal, remaining
from torchsdm import Documents, HiddenStateExtractor, TaskPrompt
from torchsdm.data import Document, StatesStore
from torchsdm.data import store as store_module
from torchsdm.errors import BackboneError, CheckpointError, InvalidInputError
from torchsdm.hidden_states import Backbone, cache_directory, default_store
from torchsdm.hidden_states import extractor as extractor_module
from torchsdm.hidden_states.extraction import Extraction

PROMPT = TaskPrompt("Is it good? {document} ", ["No", "Yes"])
WORDS = tiny_models.TEXT.split()
BLOCK = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A decoder with a chat template, as a directory."""
    return tiny_models.save_model(tmp_path_factory.mktemp("model"), *tiny_models.phi3())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(extractor_module, "BLOCK", BLOCK)


class Stored:
    """An extractor with a store, and what the store counted."""

    def __init__(self, extractor, directory):
        self.extractor, self.store = extractor, StatesStore(directory)

    def states(self, documents):
        return self.extractor.labelled_states(documents, store=self.store)

    def __getattr__(self, name):
        return getattr(self.store.counts, name)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache" / "states"


@pytest.fixture
def cache(model, directory):
    def making(prompt=PROMPT, *, model=model, **options):
        return Stored(HiddenStateExtractor(str(model), prompt, **options), directory)

    return making


@pytest.fixture
def no_model(monkeypatch):
    """From here on, no language model can be loaded."""

    def forbid():
        def load(*arguments, **options):
            raise AssertionError("a language model was loaded")

        monkeypatch.setattr(Backbone, "load", load)

    return forbid


def documents_of(n, start=0):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 20))) for _ in range(start + n)][start:]
    return [Document(text, f"id-{i}", i % 2, None, f"line {i + 1}") for i, text in enumerate(texts, start=start)]


def blocks_of(directory):
    return sorted(path.name for path in directory.glob("*.safetensors"))


def expected_of(extractor, documents):
    """Each block by the extractor itself."""
    starts = range(0, len(documents), BLOCK)
    return [extractor.extract([one.text for one in documents[start : start + BLOCK]]) for start in starts]


def assert_same(states, others):
    assert np.array_equal(states.hidden_states, others.hidden_states)
    assert (states.label_logits is None) == (others.label_logits is None)
    assert states.label_logits is None or np.array_equal(states.label_logits, others.label_logits)
    assert states.labels.tolist() == others.labels.tolist()
    assert states.ids == others.ids and states.texts == others.texts and states.origin == others.origin


# --- The same states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "max_tokens"), [("phi3", 40), ("gpt2", 25), ("bert", 20)])
def test_states_are_those_of_the_extractor_to_the_bit(name, max_tokens, directory, tmp_path):
    path = tiny_models.save_model(tmp_path / name, *tiny_models.ARCHITECTURES[name]())
    documents = documents_of(10)
    cache = Stored(HiddenStateExtractor(str(path), PROMPT, max_tokens=max_tokens), directory)
    states = cache.states(documents)
    blocks = expected_of(HiddenStateExtractor(str(path), PROMPT, max_tokens=max_tokens), documents)
    assert np.array_equal(states.hidden_states, np.concatenate([block.hidden_states for block in blocks]))
    if name == "bert":
        assert states.label_logits is None
    else:
        assert np.array_equal(states.label_logits, np.concatenate([block.label_logits for block in blocks]))
        assert np.array_equal(states.label_logits_of([1, 0]), states.label_logits[:, ::-1])
    assert states.labels.tolist() == [0, 1] * 5 and states.ids == [f"id-{i}" for i in range(10)]
    assert states.texts == [document.text for document in documents]
    assert states.origin == cache.extractor.origin() and states.origin.model.reference == str(path)
    assert (cache.n_documents, cache.n_extracted) == (10, 10) and len(blocks_of(directory)) == 3
    assert cache.n_tokens == sum(block.n_tokens.sum() for block in blocks)
    assert cache.n_cut == sum((block.n_cut > 0).sum() for block in blocks) > 0
    assert cache.seconds > 0


def test_states_of_segments(cache, no_model):
    documents = documents_of(6)
    states = cache(segments="sentences", n_segments=2).states(documents)
    assert states.hidden_states.shape == (6, 3, 2 * tiny_models.HIDDEN_SIZE)
    no_model()
    assert_same(cache(segments="sentences", n_segments=2).states(documents), states)


def test_a_model_that_is_loaded_already(directory):
    backbone = Backbone(*tiny_models.phi3())
    documents = documents_of(6)
    first, second = (Stored(HiddenStateExtractor(backbone, PROMPT), directory) for _ in range(2))
    states = first.states(documents)
    assert_same(second.states(documents), states)
    assert (first.n_extracted, second.n_extracted) == (6, 0)
    other = Stored(HiddenStateExtractor(Backbone(*tiny_models.phi3(seed=1)), PROMPT), directory)
    other.states(documents)
    assert other.n_extracted == 6


def test_answers_are_run_and_make_a_difference(cache):
    prompt = TaskPrompt("{document} Answer: {answer}", ["No", "Yes"])
    documents = [replace(document, answer=f"Yes {i}") for i, document in enumerate(documents_of(6))]
    first = cache(prompt)
    states = first.states(documents)
    answers = [document.answer for document in documents]
    expected = first.extractor.extract([document.text for document in documents[:BLOCK]], answers=answers[:BLOCK])
    assert np.array_equal(states.hidden_states[:BLOCK], expected.hidden_states)
    second = cache(prompt)
    other = second.states([*documents[:5], replace(documents[5], answer="No")])
    assert second.n_extracted == 2
    assert np.array_equal(other.hidden_states[:5], states.hidden_states[:5])
    assert not np.array_equal(other.hidden_states[5], states.hidden_states[5])
    with pytest.raises(InvalidInputError, match=r"asks for an \{answer\}, but the documents have none"):
        cache(prompt).states(documents_of(6))


def test_the_default_store_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "elsewhere"))
    assert default_store().directory == cache_directory() / "states" == tmp_path / "elsewhere" / "states"


# --- Found again -----------------------------------------------------------------------------------------------------


def test_a_second_call_extracts_nothing_and_loads_no_language_model(cache, no_model):
    documents = documents_of(10)
    first = cache()
    states = first.states(documents)
    no_model()
    second = cache()
    assert_same(second.states(documents), states)
    assert (second.n_extracted, second.n_documents) == (0, 10)
    assert (second.n_tokens, second.n_cut) == (first.n_tokens, first.n_cut)
    assert second.seconds == pytest.approx(first.seconds)  # what it took when it was stored
    with pytest.raises(AssertionError, match="a language model was loaded"):
        cache().states([*documents[:9], replace(documents[9], text="Another text.")])


def test_a_larger_draw_begins_with_the_full_blocks_of_a_smaller_one(cache, directory):
    documents = documents_of(15)
    small = cache().states(documents[:10])
    before = blocks_of(directory)
    large = cache()
    states = large.states(documents)
    assert large.n_extracted == 15 - 8 and len(blocks_of(directory)) == len(before) + 2
    assert np.array_equal(states.hidden_states[:8], small.hidden_states[:8])
    assert states.ids == [document.id for document in documents]
    again = cache()
    assert_same(again.states(documents[:10]), small)
    assert again.n_extracted == 0


def test_labels_ids_and_places_are_not_part_of_what_is_kept(cache, no_model):
    documents = documents_of(10)
    states = cache().states(documents)
    no_model()
    others = [replace(one, label=f"label {i}", id=i, place="row 1") for i, one in enumerate(documents)]
    renamed = cache().states(others)
    assert np.array_equal(renamed.hidden_states, states.hidden_states)
    assert renamed.labels.tolist() == [f"label {i}" for i in range(10)] and renamed.ids == list(range(10))


def test_the_same_model_elsewhere_is_the_same_model(cache, model, tmp_path):
    documents = documents_of(6)
    states = cache().states(documents)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(model, elsewhere)
    moved = cache(model=elsewhere)
    again = moved.states(documents)
    assert moved.n_extracted == 0 and np.array_equal(again.hidden_states, states.hidden_states)
    assert again.origin.model.reference == str(elsewhere)  # and not where it was


def test_settings_that_make_no_difference(cache, no_model):
    documents = documents_of(6)
    states = cache().states(documents)
    no_model()
    assert_same(cache(batch_tokens=77, verbose=True).states(documents), states)


# --- Made anew -------------------------------------------------------------------------------------------------------


def test_a_changed_text_changes_its_block_alone(cache):
    documents = documents_of(12)
    states = cache().states(documents)
    changed = [*documents[:5], replace(documents[5], text=documents[5].text + " Yes."), *documents[6:]]
    second = cache()
    others = second.states(changed)
    assert second.n_extracted == BLOCK
    same = [np.array_equal(a, b) for a, b in zip(states.hidden_states, others.hidden_states, strict=True)]
    assert all(same[:4]) and not same[5] and all(same[8:])
    swapped = cache()
    swapped.states([documents[1], documents[0], *documents[2:]])
    assert swapped.n_extracted == BLOCK


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": TaskPrompt("Is it bad? {document} ", ["No", "Yes"])},
        {"prompt": TaskPrompt("Is it good? {document} ", ["Yes", "No"])},
        {"prompt": TaskPrompt("Is it good? {document} ", ["No", "Yes"], system="Be brief.")},
        {"prompt": None},
        {"max_tokens": 30},
        {"layer": 1},
        {"parts": ["mean"]},
        {"use_chat": False},
        {"segments": "sentences", "n_segments": 2},
        {"dtype": "bfloat16"},
    ],
    ids=lambda change: ", ".join(f"{name}={str(value)[:40]}" for name, value in change.items()),
)
def test_another_prompt_or_setting_leads_elsewhere(change, cache):
    documents = documents_of(6)
    states = cache().states(documents)
    second = cache(**change)
    others = second.states(documents)
    assert second.n_extracted == 6 and others.origin != states.origin
    direct = expected_of(second.extractor, documents)
    assert np.array_equal(others.hidden_states, np.concatenate([block.hidden_states for block in direct]))
    again = cache()
    assert_same(again.states(documents), states)
    assert again.n_extracted == 0


def test_other_weights_lead_elsewhere(cache, model, tmp_path):
    documents = documents_of(6)
    moving = tmp_path / "moving"
    shutil.copytree(model, moving)
    states = cache(model=moving).states(documents)
    tiny_models.save_model(moving, *tiny_models.phi3(seed=1))
    second = cache(model=moving)
    others = second.states(documents)
    assert second.n_extracted == 6 and not np.array_equal(others.hidden_states, states.hidden_states)


def test_a_prompt_that_was_rendered_on_another_day_stays_as_it_was(tmp_path, directory):
    """Else one run would hold two prompts, and a run on the next day would begin anew."""
    model, tokenizer = tiny_models.phi3()
    tokenizer.chat_template = "{{ strftime_now('%H:%M:%S.%f') }} " + tokenizer.chat_template
    path = tiny_models.save_model(tmp_path / "clock", model, tokenizer)
    documents = documents_of(10)
    first = Stored(HiddenStateExtractor(str(path), PROMPT), directory)
    states = first.states(documents)
    rendered = states.origin.prompt.rendered
    assert first.extractor.origin().prompt.rendered == rendered  # and so it was for each block
    fresh = HiddenStateExtractor(str(path), PROMPT)
    assert fresh.origin().prompt.rendered != rendered
    second = Stored(fresh, directory)
    assert_same(second.states(documents), states)
    assert second.n_extracted == 0
    later = second.states(documents_of(6, start=10))
    assert later.origin.prompt.rendered == rendered
    fresh.keep_prompt(states.origin)
    assert np.array_equal(later.hidden_states[:BLOCK], expected_of(fresh, documents_of(6, start=10))[0].hidden_states)


# --- Damage ----------------------------------------------------------------------------------------------------------


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def empty(path):
    path.write_bytes(b"")


def overwrite(path):
    path.write_bytes(b"nonsense" * 100)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def with_other_arrays(path):
    save_file({"something": np.zeros(3)}, path, {"seconds": "1"})


def without_facts(path):
    with safe_open(path, framework="np") as archive:
        arrays = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    save_file(arrays, path)


@pytest.mark.parametrize("damage", [truncate, empty, overwrite, flip_a_bit, with_other_arrays, without_facts])
def test_a_damaged_block_is_made_anew(damage, cache, directory):
    documents = documents_of(10)
    states = cache().states(documents)
    before = {name: (directory / name).read_bytes() for name in blocks_of(directory)}
    damaged = sorted(before)[1]
    n_rows = len(store_module.read_block(directory / damaged)[0])
    damage(directory / damaged)
    second = cache()
    assert_same(second.states(documents), states)
    assert second.n_extracted == n_rows and blocks_of(directory) == sorted(before)
    assert all((directory / name).read_bytes() == before[name] for name in before if name != damaged)
    third = cache()
    assert_same(third.states(documents), states)
    assert third.n_extracted == 0


def test_blocks_that_lack_a_digest_are_made_anew(cache, directory):
    states = cache().states(documents_of(3))
    path = directory / blocks_of(directory)[0]
    with safe_open(path, framework="np") as archive:
        arrays = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    save_file(arrays, path, {"seconds": "2.5"})
    second = cache()
    assert_same(second.states(documents_of(3)), states)
    assert second.n_extracted == 3


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", '{"model": 3, "prompt": 4, "states": 5}', "\xff"])
def test_a_damaged_origin_is_made_anew(content, cache, directory):
    documents = documents_of(3)
    states = cache().states(documents)
    (path,) = directory.glob("origin-*.json")
    before = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(content, encoding="latin-1")
    second = cache()
    assert_same(second.states(documents), states)
    assert second.n_extracted == 0 and json.loads(path.read_text(encoding="utf-8")) == before == states.origin.to_json()


def test_what_a_killed_writer_left_is_no_hindrance(cache, directory):
    documents = documents_of(3)
    states = cache().states(documents)
    path = directory / blocks_of(directory)[0]
    path.rename(path.with_name(f".writing-{path.name}"))
    second = cache()
    assert_same(second.states(documents), states)
    assert second.n_extracted == 3 and not list(directory.glob(".writing-*"))


def test_a_cache_that_cannot_be_written_is_refused_before_anything_is_run(cache, directory, monkeypatch):
    monkeypatch.setattr(Extraction, "run", lambda *arguments: pytest.fail("states were extracted"))
    directory.parent.write_bytes(b"a file where the folder should be")
    with pytest.raises(CheckpointError) as raised:
        cache().states(documents_of(3))
    assert str(raised.value).startswith(f"{directory} cannot be written: ") and "TORCHSDM_CACHE" in str(raised.value)


def test_a_cache_that_can_only_be_read_gives_what_is_in_it(cache, directory, monkeypatch):
    states = cache().states(documents_of(6))

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store_module, "replace_file", refuse)
    monkeypatch.setattr(store_module, "FileLock", refuse)
    assert_same(cache().states(documents_of(6)), states)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*Permission denied"):
        cache().states(documents_of(7))


def test_a_disk_that_fills_up_leaves_what_was_finished(cache, monkeypatch):
    n_written = 0

    def replace_file(path, content):
        nonlocal n_written
        n_written += 1
        if n_written > 3:
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(store_module, "replace_file", replace_file)
    with pytest.raises(CheckpointError, match="No space left on device"):
        cache().states(documents_of(20))
    monkeypatch.undo()
    monkeypatch.setattr(extractor_module, "BLOCK", BLOCK)
    second = cache()
    second.states(documents_of(20))
    assert second.n_extracted == 20 - 2 * BLOCK  # the first write was the origin


def test_no_documents_are_refused(cache):
    with pytest.raises(InvalidInputError, match="the list is empty: it contains no document"):
        cache().states([])


# --- Two at once -----------------------------------------------------------------------------------------------------


def test_two_at_once_extract_each_block_once(model, directory, monkeypatch):
    """Two runs that want the same states share the work; neither finds the other's file half written."""
    documents = documents_of(40)
    HiddenStateExtractor(str(model), PROMPT).extract(["warm up"])
    caches = [Stored(HiddenStateExtractor(str(model), PROMPT), directory) for _ in range(2)]
    found = {}

    def run(number):
        found[number] = caches[number].states(documents)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert_same(found[0], found[1])
    assert sum(cache.n_extracted for cache in caches) == 40
    assert len(blocks_of(directory)) == 10 and not list(directory.glob(".writing-*"))


# --- Nothing of a document is lost ------------------------------------------------------------------------------------


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


FILES = {
    "blank.jsonl": (
        '\n{"id": "a", "text": "first", "label": "x"}\n\n\n{"id": "b", "text": "second", "label": "y"}\n',
        [2, 5],
    ),
    "long.csv": ('id,text,label\n\na,"first\n\nparagraphs",x\nb,second,y\n', [3, 6]),
    "long.tsv": ('id\ttext\tlabel\na\t"fir\nst"\tx\n\nb\tsecond\ty\n', [2, 5]),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("is_stored", [True, False])
def test_documents_of_a_file_keep_their_lines(name, is_stored, model, directory, tmp_path):
    text, lines = FILES[name]
    documents = Documents(write(tmp_path / name, text))
    extractor, store = HiddenStateExtractor(str(model), PROMPT), StatesStore(directory) if is_stored else None
    for given in (documents, list(documents)):
        states = extractor.labelled_states(given, store=store)
        assert states.places == [f"line {line}" for line in lines]
        assert states.ids == ["a", "b"] and states.labels.tolist() == ["x", "y"]
        assert states.texts == [document.text for document in documents]
        assert states.logit_labels == (0, 1) and states.origin == extractor.origin()
    assert (store is None) != directory.exists()


def test_the_remaining_time_is_that_of_documents_extracted_now(cache, monkeypatch):
    documents = documents_of(16)
    cache().states(documents[: 2 * BLOCK])  # stored from now on
    clock, screen, original = Clock(monkeypatch), open_terminal(monkeypatch), Extraction._batch

    def batch(self, sequences, beginning):
        clock.now += 10 * len(sequences)
        return original(self, sequences, beginning)

    monkeypatch.setattr(Extraction, "_batch", batch)
    cache(verbose=True).states(documents)
    assert remaining(screen)[12] == pytest.approx(40, abs=1)


def test_blocks_are_the_whole(cache):
    documents = documents_of(10)
    blocks = list(cache().extractor.labelled_blocks(documents))
    assert [len(block) for block in blocks] == [4, 4, 2] and blocks[1].places == [f"line {i}" for i in range(5, 9)]
    whole = cache().states(documents)
    assert np.array_equal(np.concatenate([block.hidden_states for block in blocks]), whole.hidden_states)
    assert whole.places == [f"line {i + 1}" for i in range(10)]


def test_a_missing_answer_is_named_by_file_and_line(cache, no_model, tmp_path):
    rows = ['{"text": "a", "answer": "Yes"}', "", '{"text": "b"}', '{"text": "c", "answer": null}']
    path = write(tmp_path / "asked.jsonl", "\n".join(rows))
    no_model()  # it is noticed before
    with pytest.raises(InvalidInputError, match=r"asked\.jsonl, line 3: the prompt asks for an answer"):
        cache(TaskPrompt("{document} Answer: {answer}")).states(Documents(path))


def test_states_that_are_not_finite_are_named_by_file_and_line(directory, tmp_path):
    model, tokenizer = tiny_models.phi3()
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids("z")] = float("nan")
    extractor = HiddenStateExtractor(Backbone(model, tokenizer))
    path = write(tmp_path / "some.csv", 'text\n"two\nlines"\n\nx y z\n')
    for store in (None, StatesStore(directory)):
        with pytest.raises(BackboneError, match=r"some\.csv, line 5: the language model gave states that are not fin"):
            extractor.labelled_states(Documents(path), store=store)


def test_answers_are_shown_where_they_are_judged(cache):
    documents = [replace(document, answer="Yes") for document in documents_of(2)]
    judged = cache(TaskPrompt("{document} Answer: {answer}")).states(documents)
    assert judged.texts == [f"{document.text}\n[answer] Yes" for document in documents]
    assert cache().states(documents).texts == [document.text for document in documents]


def test_documents_without_labels_have_none(cache):
    states = cache().states([replace(document, label=None) for document in documents_of(3)])
    assert states.labels is None and states.ids == ["id-0", "id-1", "id-2"]


def test_what_is_wrong_with_a_document_is_named_by_its_place(cache, no_model):
    no_model()
    first, second = documents_of(2)
    with pytest.raises(InvalidInputError, match="empty text: line 2"):
        cache().states([first, replace(second, text=" ")])
    with pytest.raises(InvalidInputError, match="no label: line 2"):
        cache().states([first, replace(second, label=None)])
