"""Task prompts: templates, label words, names, JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsdm import TaskPrompt
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.hidden_states import register_prompt
from torchsdm.hidden_states.prompts import _PROMPTS, PROMPTS, task_prompt

# --- Templates -------------------------------------------------------------------------------------------------------


@given(document=st.text(), answer=st.text())
def test_a_document_is_put_in_as_it_is(document, answer):
    prompt = TaskPrompt("Q: {document} A: {answer}!")
    assert prompt.fill(document=document, answer=answer) == "Q: " + document + " A: " + answer + "!"


@pytest.mark.parametrize(
    "document", ["{", "}", "{}", "{document}", "{answer}", "{{document}}", "{0}", "{x!r:>10}", "%s", "\\n", "{" * 9]
)
def test_braces_in_a_document_are_plain_text(document):
    assert TaskPrompt("<{document}>").fill(document=document) == f"<{document}>"
    assert TaskPrompt("<{answer}|{document}>").fill(document=document, answer="{document}") == "<{document}|" + (
        f"{document}>"
    )


def test_doubled_braces_in_a_template_are_single_ones():
    prompt = TaskPrompt('{{"text": "{document}"}} {{document}} {{}}')
    assert prompt.fill(document="x") == '{"text": "x"} {document} {}'
    assert prompt.fields == ("document",)


@given(literal=st.text())
def test_any_text_can_stand_in_a_template_with_its_braces_doubled(literal):
    doubled = literal.replace("{", "{{").replace("}", "}}")
    assert TaskPrompt(doubled + "{document}" + doubled).fill(document="D") == f"{literal}D{literal}"


def test_fields_are_in_the_order_of_the_template():
    assert TaskPrompt("{document} {answer}").fields == ("document", "answer")
    assert TaskPrompt("{answer} {document}").fields == ("answer", "document")
    assert TaskPrompt("{document}").pieces == [("", "document")]
    assert TaskPrompt("a {document} b").pieces == [("a ", "document"), (" b", None)]


@pytest.mark.parametrize("template", ["No field.", "", "{answer}", "{{document}}", "{{}}"])
def test_a_template_without_the_document_is_refused(template):
    with pytest.raises(InvalidInputError, match=r"'template' of TaskPrompt must contain \{document\} once"):
        TaskPrompt(template)


@pytest.mark.parametrize("template", ["{document}{document}", "{document} {answer} {answer}"])
def test_a_repeated_field_is_refused(template):
    with pytest.raises(InvalidInputError, match=r"\{document\} once, and \{answer\} at most once. Got '\{document\}"):
        TaskPrompt(template)


@pytest.mark.parametrize("name", ["text", "", "0", "document.text", "document[0]", "Document", " document"])
def test_an_unknown_field_is_refused_by_name(name):
    with pytest.raises(InvalidInputError) as caught:
        TaskPrompt(f"{{document}} {{{name}}}")
    assert f"may contain {{document}} or {{answer}}. Got {{{name}}}; double a literal brace" in str(caught.value)


@pytest.mark.parametrize("field", ["document!r", "document:>10", "document!s:x", "document:{answer}"])
def test_a_format_of_a_field_is_refused(field):
    with pytest.raises(InvalidInputError, match=r"must not format fields. Got a format in \{document\}"):
        TaskPrompt(f"{{{field}}}")


@pytest.mark.parametrize("template", ["{document", "document}", "{document} {", "{document} } x", "{document}}"])
def test_a_lone_brace_is_refused(template):
    with pytest.raises(
        InvalidInputError, match=r"'template' of TaskPrompt has a single brace: .* Double a literal brace"
    ):
        TaskPrompt(template)


@pytest.mark.parametrize("template", [None, 3, b"{document}", ["{document}"]])
def test_a_template_is_a_string(template):
    with pytest.raises(InvalidTypeError, match="'template' of TaskPrompt must be a string"):
        TaskPrompt(template)


def test_a_system_message_is_a_string_or_none():
    assert TaskPrompt("{document}", system="Be brief.").system == "Be brief."
    with pytest.raises(InvalidTypeError, match=r"'system' of TaskPrompt must be a string or None. Got 3"):
        TaskPrompt("{document}", system=3)


# --- Label words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_words", "expected"),
    [
        (["No", "Yes"], {0: "No", 1: "Yes"}),
        (("No", "Yes", "Perhaps"), {0: "No", 1: "Yes", 2: "Perhaps"}),
        ({"neg": "No", "pos": "Yes"}, {"neg": "No", "pos": "Yes"}),
        ({1: "Yes", 0: "No"}, {1: "Yes", 0: "No"}),
        ({True: "Yes", False: "No"}, {True: "Yes", False: "No"}),
        ({0.5: "half", 1.5: "more"}, {0.5: "half", 1.5: "more"}),
        ({}, {}),
        ([], {}),
    ],
)
def test_label_words_are_a_mapping_or_a_list(given_words, expected):
    words = TaskPrompt("{document}", label_words=given_words).words
    assert list(words.items()) == list(expected.items())


def test_the_words_of_a_prompt_are_its_own():
    given_words = {"a": "Yes", "b": "No"}
    prompt = TaskPrompt("{document}", label_words=given_words)
    given_words["a"] = "Perhaps"
    prompt.words["b"] = "Never"
    assert prompt.words == {"a": "Yes", "b": "No"}


@pytest.mark.parametrize("words", ["Yes", 3, None, {"Yes", "No"}])
def test_label_words_of_another_form_are_refused(words):
    with pytest.raises(InvalidTypeError, match="'label_words' of TaskPrompt must map labels to words, or list words"):
        TaskPrompt("{document}", label_words=words)


@pytest.mark.parametrize("word", ["", "  ", None, 3])
def test_a_word_that_is_none_is_refused(word):
    with pytest.raises(InvalidInputError, match=r"must be words. Got .* for label 1"):
        TaskPrompt("{document}", label_words=["No", word])


def test_labels_are_plain_values():
    with pytest.raises(InvalidTypeError, match=r"must have plain values as labels. Got \(1, 2\)"):
        TaskPrompt("{document}", label_words={(1, 2): "Yes", 0: "No"})


def test_one_word_or_the_same_word_twice_is_refused():
    with pytest.raises(InvalidInputError, match=r"at least two labels, or none. Got one"):
        TaskPrompt("{document}", label_words=["Yes"])
    with pytest.raises(InvalidInputError, match=r"must differ. Got \['Yes', 'Yes'\]"):
        TaskPrompt("{document}", label_words=["Yes", "Yes"])


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        *PROMPTS.values(),
        TaskPrompt("{{{document}}} ü\n{answer}", {"pos": "Yes", "neg": "No"}, "Be brief {x}."),
        TaskPrompt("{document}", {2: "two", 1: "one"}),
        TaskPrompt("{document}", {True: "Yes", False: "No"}),
        TaskPrompt("{document}", {"1": "one", 1: "a", 1.5: "b"}),
    ],
)
def test_json_gives_the_same_prompt_back(prompt):
    back = TaskPrompt.from_json(json.loads(json.dumps(prompt.to_json())))
    assert back == prompt
    assert [(type(label), word) for label, word in back.words.items()] == [
        (type(label), word) for label, word in prompt.words.items()
    ]


# --- Names -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry():
    """What a test registers is forgotten after it."""
    known = dict(_PROMPTS)
    yield
    _PROMPTS.clear()
    _PROMPTS.update(known)


def test_the_papers_prompts_have_names():
    review = PROMPTS["sentiment"].fill(document="A film.")
    assert review == (
        "Here is a movie review. <review> A film. </review> Is the sentiment of the movie review positive? Answer Yes "
        "if the sentiment is positive. Answer No if the sentiment is negative. Start your response with Yes or No."
    )
    statement = PROMPTS["factcheck"].fill(document="It rains.")
    assert statement == (
        "Here is a statement that may contain errors. <statement> It rains. </statement> Is the statement true? Answer "
        "Yes if the statement is true. Answer No if the statement is false. Start your response with Yes or No."
    )
    assert PROMPTS["sentiment"].words == PROMPTS["factcheck"].words == {0: "No", 1: "Yes"}
    assert PROMPTS["verify-answer"].fields == ("document", "answer")


def test_a_prompt_is_known_by_name_template_or_itself():
    assert task_prompt("sentiment", "f") is PROMPTS["sentiment"]
    assert task_prompt("Is {document} good?", "f") == TaskPrompt("Is {document} good?")
    mine = TaskPrompt("{document}", ["a", "b"])
    assert task_prompt(mine, "f") is mine
    assert task_prompt(None, "f").fill(document="as it is {") == "as it is {"


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInputError) as caught:
        task_prompt("sentimnt", "embed")
    message = str(caught.value)
    assert message.startswith("'prompt' of embed must be one of 'sentiment', 'factcheck', 'verify-answer', 'document'")
    assert message.endswith("or a template with {document}. Got 'sentimnt'.")
    with pytest.raises(InvalidTypeError, match=r"'prompt' of embed must be a name, a template or a TaskPrompt. Got 3"):
        task_prompt(3, "embed")


@pytest.mark.usefixtures("registry")
def test_a_registered_prompt_is_known_by_its_name():
    prompt = TaskPrompt("Is this spam? {document}", ["No", "Yes"])
    register_prompt("spam", prompt)
    assert task_prompt("spam", "f") is prompt
    register_prompt("spam", TaskPrompt("Is this spam? {document}", ["No", "Yes"]))  # the same again does no harm
    with pytest.raises(InvalidInputError, match=r"'name' of register_prompt must be new. Got 'spam'"):
        register_prompt("spam", TaskPrompt("Spam? {document}"))
    with pytest.raises(InvalidInputError, match=r"must be new. Got 'sentiment'"):
        register_prompt("sentiment", prompt)
    assert task_prompt("spam", "f") == prompt and task_prompt("sentiment", "f") == PROMPTS["sentiment"]


@pytest.mark.usefixtures("registry")
def test_the_prompts_are_changed_by_registering_alone():
    before = [*PROMPTS]
    register_prompt("spam", TaskPrompt("Is this spam? {document}"))
    assert [*PROMPTS] == [*before, "spam"]
    with pytest.raises(TypeError):
        PROMPTS["spam"] = PROMPTS["sentiment"]


@pytest.mark.usefixtures("registry")
def test_only_task_prompts_are_registered():
    with pytest.raises(InvalidTypeError, match=r"'prompt' of register_prompt must be a TaskPrompt. Got str"):
        register_prompt("mine", "{document}")
