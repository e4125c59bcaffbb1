"""One bad row among many is one rejected row with its reason, in every verb that decides and in the service."""

from __future__ import annotations

import csv
import json
import math
from contextlib import ExitStack

import numpy as np
import pytest

import tiny_models
from json_schema import problems
from sdm_command import call, good, refused
from small import small_settings, write_jsonl
from torchsdm import DriftGuard, SDMClassifier, SDMTextClassifier
from torchsdm.application import decision_schema, saved_model
from torchsdm.errors import TorchSDMError
from torchsdm.hidden_states import extraction

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

N, WIDTH = 60, 6
LABELS = np.arange(N) % 2
STATES = (np.random.default_rng(0).normal(size=(N, WIDTH)) + 2.0 * LABELS[:, None]).astype(np.float32)
WORDS = tiny_models.TEXT.split()
TEXTS = [" ".join(WORDS[row : row + 5]) for row in range(N)]
GOOD = [{"id": f"r{row}", "text": TEXTS[row], "label": int(LABELS[row])} for row in range(6)]
QUICK = small_settings(alpha=0.6, n_filters=4, max_epochs=2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model over texts, one over texts with answers, and one over states."""
    folder = tmp_path_factory.mktemp("world")
    bert = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    for name, prompt in (("texts", None), ("answers", "{document} {answer}")):
        answers = None if prompt is None else TEXTS[::-1]
        model = SDMTextClassifier(bert, prompt, classifier=SDMClassifier(**QUICK), cache=False)
        model.fit(TEXTS, LABELS, answers=answers).save(folder / name)
    SDMClassifier(**QUICK).fit(STATES, LABELS).save(folder / "states")
    return folder


def predicted(model, path, *options):
    """The rows of ``sdm predict``, all of the schema, and its warnings.

    Every document is run alone, so that equal means equal.
    """
    done = good("predict", model, path, "-k", 1, "--batch-tokens", 1, *options)
    schema = decision_schema()
    assert not any(problems(row, schema) for row in done.rows)
    return done.rows, "".join(line for line in done.stderr.splitlines(True) if line.startswith("sdm: warning: "))


def lines_of(rows):
    return [json.dumps(row).encode() for row in rows]


def is_rejected(row):
    nothing = {"prediction": None, "admitted": False, "certified": False, "confidence": None, "exemplars": []}
    return row["lane"] == "rejected" and {name: row[name] for name in nothing} == nothing


def check_one_bad(model, folder, lines, wrong, reason, name=None):
    """A bad line among good ones, first, in the middle and last: it alone is rejected, the others are as before."""
    expected, quiet = predicted(model, write_jsonl(folder / "good.jsonl", lines))
    assert quiet == ""
    for position in (0, 3, len(lines)):
        path = write_jsonl(folder / "bad.jsonl", [*lines[:position], wrong, *lines[position:]])
        rows, said = predicted(model, path)
        assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
        bad = rows.pop(position)
        place = f"line {position + 1}"
        assert is_rejected(bad) and bad["reason"].startswith(f"{place}: ") and reason in bad["reason"]
        assert bad["id"] == (position if name is None else name)
        assert [{**row, "line": 0} for row in rows] == [{**row, "line": 0} for row in expected]
        assert f"bad.jsonl: 1 of {len(lines) + 1} rows could not be read and is rejected. {place}: " in said
        assert reason in said and said.count("\n") == 1
        first_tells = position == 0  # strictly, the first row says what the others should have
        none = folder / "none.jsonl"
        refused(call("predict", model, path, "--strict", "-o", none), "" if first_tells else place)
        assert not none.exists()


# --- Texts -----------------------------------------------------------------------------------------------------------

BAD_TEXTS = {
    "broken": (b'{"id": "x", "text": bro', "not valid JSON", None),
    "cut": (b'{"id": "x", "text": "a fi', "not valid JSON", None),
    "list": (b'["a film"]', "expected a JSON object. Got list", None),
    "word": (b'"a film"', "expected a JSON object. Got str", None),
    "not UTF-8": (b'{"id": "x", "text": "Gru\xdf"}', "not UTF-8", None),
    "no text": (b'{"id": "x"}', "no text", "x"),
    "null": (b'{"id": "x", "text": null}', "no text", "x"),
    "empty": (b'{"id": "x", "text": ""}', "empty text", "x"),
    "blank": (b'{"id": "x", "text": " \\n"}', "empty text", "x"),
    "number": (b'{"id": "x", "text": 7}', "text that is not a string", "x"),
    "object": (b'{"id": "x", "text": {"text": "a"}}', "text that is not a string", "x"),
    "half a pair": (b'{"id": "x", "text": "\\ud83d"}', "text that UTF-8 cannot encode", "x"),
    "no id": (b'{"text": "a film"}', "no id", None),
    "null id": (b'{"id": null, "text": "a film"}', "no id", None),
    "id of halves": (b'{"id": 0.5, "text": "a film"}', "id that is neither text nor an integer", None),
    "empty object": (b"{}", "no text", None),
}


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_a_bad_text_alone_is_rejected(kind, world, tmp_path):
    check_one_bad(world / "texts", tmp_path, lines_of(GOOD), *BAD_TEXTS[kind])


def test_a_text_without_tokens_is_rejected_before_the_language_model_runs(world, tmp_path, monkeypatch):
    lines = [*lines_of(GOOD), b'{"id": "x", "text": "\\u0000\\u0001"}']
    rows, _ = predicted(world / "texts", write_jsonl(tmp_path / "bad.jsonl", lines))
    assert is_rejected(rows[-1]) and rows[-1]["reason"] == "line 7: the tokenizer makes no tokens of the text"
    assert [is_rejected(row) for row in rows[:-1]] == [False] * 6 and rows[-1]["id"] == "x"

    def fail(*_, **__):
        raise AssertionError("the language model was run")

    monkeypatch.setattr("torchsdm.hidden_states.extraction.Extraction.run", fail)
    only = write_jsonl(tmp_path / "only.jsonl", lines[-1:])
    refused(
        call("predict", world / "texts", only), "only.jsonl has no row that can be decided on. line 1: the tokenizer"
    )


def test_a_duplicate_id_is_rejected_and_the_first_is_decided(world, tmp_path):
    lines = [*lines_of(GOOD), b'{"id": "r2", "text": "a film"}']
    rows, _ = predicted(world / "texts", write_jsonl(tmp_path / "bad.jsonl", lines))
    assert [row["id"] for row in rows] == [*(f"r{row}" for row in range(6)), "r2"]
    assert [is_rejected(row) for row in rows] == [False] * 6 + [True]
    assert rows[-1]["reason"] == "line 7: duplicate id"


def test_texts_without_ids_keep_the_numbers_of_their_rows(world, tmp_path):
    lines = [b'{"text": "A dull film."}', b"", b"{", b'{"text": "Was it good?"}', b'{"text": "It rains.", "id": "x"}']
    rows, said = predicted(world / "texts", write_jsonl(tmp_path / "bad.jsonl", lines))
    assert [row["id"] for row in rows] == [0, 1, 2, 3]
    assert [is_rejected(row) for row in rows] == [False, True, False, True]
    assert [rows[1]["reason"], rows[3]["reason"]] == [
        "line 3: not valid JSON (Expecting property name enclosed in double quotes)",
        "line 5: id where other documents have none",
    ]
    assert "2 of 4 rows could not be read and are rejected" in said


def test_a_bad_row_of_csv_or_parquet_alone_is_rejected(world, tmp_path):
    content = b"id,text\na,A dull film.\nb,One, two\nc,Gru\xdf\nd,\n,It rains.\na,It pours.\ne,Was it good?\n"
    (tmp_path / "bad.csv").write_bytes(content)
    rows, _ = predicted(world / "texts", tmp_path / "bad.csv")
    assert [row["id"] for row in rows] == ["a", 1, 2, "d", 4, "a", "e"]
    assert [row["reason"] if is_rejected(row) else None for row in rows] == [
        None,
        "line 3: more than 2 values; quote the text",
        "line 4: not UTF-8 (invalid continuation byte)",
        "line 5: empty text",
        "line 6: no id",
        "line 7: duplicate id",
        None,
    ]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"id": ["a", None, "c"], "text": ["A dull film.", "It rains.", None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "bad.parquet")
    rows, _ = predicted(world / "texts", tmp_path / "bad.parquet")
    assert [row["reason"] for row in rows if is_rejected(row)] == ["row 2: no id", "row 3: no text"]


def test_a_missing_answer_is_rejected(world, tmp_path):
    rows = [{"text": "Was it good?", "answer": "Yes."}, {"text": "Was it long?"}, {"text": "Was it?", "answer": 3}]
    rows += [{"text": "Was it dull?", "answer": "No."}]
    found, _ = predicted(world / "answers", write_jsonl(tmp_path / "bad.jsonl", lines_of(rows)))
    reasons = ["line 2: no answer", "line 3: answer that is not a string"]
    assert [row["reason"] for row in found if is_rejected(row)] == reasons


def test_states_of_a_text_that_are_not_finite_are_rejected(world, tmp_path, monkeypatch):
    path, made = write_jsonl(tmp_path / "good.jsonl", lines_of(GOOD)), []

    def pool(*arguments):
        made.append(extraction_pool(*arguments))
        return made[-1] * (math.nan if len(made) == 3 else 1)

    extraction_pool = extraction.pool
    monkeypatch.setattr(extraction, "pool", pool)
    rows, said = predicted(world / "texts", path)
    assert len(made) == 6 and sum(map(is_rejected, rows)) == 1
    assert ": the states contain NaN or infinity." in said
    made.clear()
    refused(call("predict", world / "texts", path, "--strict", "--batch-tokens", 1), "states that are not finite")


# --- States ----------------------------------------------------------------------------------------------------------


def of_states(number, **changed):
    row = {"id": f"s{number}", "hidden_states": STATES[number].tolist(), "label": int(LABELS[number]), **changed}
    return json.dumps(row).encode()


BAD_STATES = {
    "NaN": ([0, math.nan, 0, 0, 0, 0], "the states contain NaN or infinity"),
    "infinity": ([0, -math.inf, 0, 0, 0, 0], "the states contain NaN or infinity"),
    "beyond float32": ([0, 1e300, 0, 0, 0, 0], "the states contain NaN or infinity"),
    "short": ([0, 0, 0, 0, 0], "'hidden_states' has shape (5,) instead of (6,)"),
    "empty": ([], "'hidden_states' has shape (0,) instead of (6,)"),
    "nested": ([[0] * 6], "'hidden_states' has shape (1, 6) instead of (6,)"),
    "ragged": ([[0], [0, 1]], "'hidden_states' must be a numeric array"),
    "null": (None, "'hidden_states' must be a numeric array. Got None"),
    "a null": ([0, None, 0, 0, 0, 0], "'hidden_states' must be a numeric array"),
    "words": (["a"] * 6, "'hidden_states' must be a numeric array"),
}


@pytest.mark.parametrize("block", [2, 1024])
@pytest.mark.parametrize("kind", BAD_STATES)
def test_bad_states_alone_are_rejected(kind, block, world, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "BLOCK", block)
    states, reason = BAD_STATES[kind]
    wrong = of_states(9, hidden_states=states)
    check_one_bad(world / "states", tmp_path, [of_states(row) for row in range(5)], wrong, reason, "s9")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"{", "not valid JSON"),
        (b'{"id": "x", "label": 1}', "'hidden_states' is missing"),
        (json.dumps({"hidden_states": [0] * 6}).encode(), "'id' is missing"),
        (of_states(9, id=None), "an id must be text or an integer. Got None"),
        (of_states(9, id=[1]), "an id must be text or an integer. Got [1]"),
    ],
)
def test_a_line_of_states_that_cannot_be_read_alone_is_rejected(wrong, reason, world, tmp_path):
    name = "x" if b'"x"' in wrong else None
    check_one_bad(world / "states", tmp_path, [of_states(row) for row in range(5)], wrong, reason, name)


def test_states_without_a_label_are_decided_on_all_the_same(world, tmp_path):
    lines = [of_states(0), b'{"id": "x", "hidden_states": [0, 0, 0, 0, 0, 0]}', of_states(2)]
    rows, said = predicted(world / "states", write_jsonl(tmp_path / "bad.jsonl", lines))
    assert not any(map(is_rejected, rows)) and said == ""


def test_bad_rows_of_parquet_and_arrays_alone_are_rejected(world, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    states = STATES[:5].tolist()
    states[1][3], states[2], states[3] = math.nan, [0.0], None
    parquet.write_table(pyarrow.table({"hidden_states": states}), tmp_path / "bad.parquet")
    rows, _ = predicted(world / "states", tmp_path / "bad.parquet")
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
    assert [is_rejected(row) for row in rows] == [False, True, True, True, False]
    assert rows[2]["reason"] == "row 3: 'hidden_states' has shape (1,) instead of (6,)"
    holed = STATES[:5].copy()
    holed[3, 0] = np.nan
    np.savez(tmp_path / "bad.npz", hidden_states=holed, ids=np.arange(10, 15))
    rows, _ = predicted(world / "states", tmp_path / "bad.npz")
    assert [(row["id"], is_rejected(row)) for row in rows] == [(10 + row, row == 3) for row in range(5)]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_one_bad_row_among_ten_thousand(ending, world, tmp_path):
    states = (np.random.default_rng(1).normal(size=(10_000, WIDTH)) + 1).astype(np.float32)
    states[4321, 2] = np.nan
    np.savez(tmp_path / "many.npz", hidden_states=states)
    output, guard = tmp_path / f"decisions.{ending}", tmp_path / "guard"
    done = good("predict", world / "states", tmp_path / "many.npz", "-o", output, "-k", 0, "--guard", guard, "--json")
    summary = json.loads(done.stdout)
    assert summary["inputs"] == sum(summary["lanes"].values()) == 10_000 and summary["lanes"]["rejected"] == 1
    assert "1 of 10,000 rows could not be read and is rejected. row 4322: the states contain NaN" in done.stderr
    assert DriftGuard.load(guard).n_seen == 9_999
    if ending == "parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(output).to_pylist()
    else:
        with open(output, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file)) if ending == "csv" else [json.loads(line) for line in file]
    assert [int(row["id"]) for row in rows] == list(range(10_000)) and len({tuple(row) for row in rows}) == 1
    (bad,) = [row for row in rows if row["lane"] == "rejected"]
    assert int(bad["id"]) == 4321 and not bad["prediction"] and str(bad["admitted"]) == "False"
    assert bad["reason"] == "row 4322: the states contain NaN or infinity"


# --- What is said, and what stays an error ---------------------------------------------------------------------------


def test_the_first_bad_rows_are_listed_and_the_others_counted(world, tmp_path):
    path = write_jsonl(tmp_path / "bad.jsonl", [b"{", *lines_of(GOOD), *[b'{"id": "x"}'] * 7, b"["])
    done = good("predict", world / "texts", path, "-o", tmp_path / "decisions.csv")
    assert "9 of 15 rows could not be read and are rejected. line 1: not valid JSON" in done.stderr
    assert done.stderr.endswith("line 8: no text; line 9: no text; line 10: no text; line 11: no text; and 4 more.\n")
    assert " of 15 inputs admitted (" in done.stdout and ", 9 rejected);" in done.stdout


def test_standard_input_is_read_with_the_same_care(world):
    lines = b"".join(line + b"\n" for line in [*lines_of(GOOD), b"{"])
    done = good("predict", world / "texts", "-", stdin=lines)
    assert is_rejected(json.loads(done.stdout.splitlines()[-1]))
    assert "standard input: 1 of 7 rows could not be read and is rejected. line 7: " in done.stderr


WHOLLY_WRONG = {
    "broken": (b"{\n[\n", "has no row that can be read. line 1: not valid JSON"),
    "no texts": (b'{"text": ""}\n{"text": null}\n', "can be used: empty text: line 1; no text: line 2"),
    "other columns": (b'{"body": "a film"}\n' * 3, "has no column 'text' for the text. Got 'body'"),
    "states": (b'{"hidden_states": [NaN, 1]}\n' * 2, "no row that can be decided on. line 1: the states contain NaN"),
    "narrow": (b'{"hidden_states": [0, 1]}\n' * 2, "2 features"),
    "bytes": (b"\xff\xfe\x00", "not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLLY_WRONG)
def test_a_file_that_is_wholly_wrong_is_an_error(kind, world, tmp_path):
    content, expected = WHOLLY_WRONG[kind]
    (tmp_path / "wrong.jsonl").write_bytes(content)
    for name in ("decisions.jsonl", "decisions.parquet"):
        refused(call("predict", world / "texts", tmp_path / "wrong.jsonl", "-o", tmp_path / name), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.jsonl"]


def test_csv_whose_rows_cannot_be_told_apart_is_an_error(world, tmp_path):
    for content, expected in {
        'text\nA film.\n"never closed\nIt rains.\n': "line 3: cannot be read as CSV",
        "tex\ufffdt\nA film.\n": "has no column 'text'",
    }.items():
        (tmp_path / "wrong.csv").write_text(content, encoding="utf-8")
        refused(call("predict", world / "texts", tmp_path / "wrong.csv"), expected)


# --- Evaluating ------------------------------------------------------------------------------------------------------


def test_evaluate_counts_bad_rows_as_rejected(world, tmp_path):
    path = write_jsonl(tmp_path / "test.jsonl", lines_of(GOOD))
    lines = [b'{"id": "x", "text": "", "label": 1}', *lines_of(GOOD), b"{"]
    bad = write_jsonl(tmp_path / "bad.jsonl", lines)
    tables = {
        one: json.loads(good("evaluate", world / "texts", f"a={one}", "--json", "--batch-tokens", 1).stdout)
        for one in (path, bad)
    }
    assert tables[path] != tables[bad]
    for before, after in zip(tables[path], tables[bad], strict=True):
        more = 2 if before["stratum"] == "all" else 0
        assert after["n_total"] == before["n_total"] + more
        assert after["share"] == pytest.approx(before["share"] * 6 / 8)
        changed = {"n_total", "share"}
        assert {k: v for k, v in after.items() if k not in changed} == {
            k: v for k, v in before.items() if k not in changed
        }
    done = good("evaluate", world / "texts", bad)
    assert "bad: 2 of 8 inputs could not be read and count as rejected." in " ".join(done.stdout.split())
    assert "bad: 2 of 8 rows could not be read and are rejected. line 1: empty text; line 8: not valid" in done.stderr
    assert "could not be read" not in good("evaluate", world / "texts", path).stdout
    refused(call("evaluate", world / "texts", bad, "--strict"), "line 8: not valid JSON")


def test_evaluate_of_states_does_too_and_a_missing_label_stays_an_error(world, tmp_path):
    lines = [of_states(row) for row in range(6)]
    bad = write_jsonl(tmp_path / "bad.jsonl", [*lines, of_states(9, hidden_states=[math.nan] * 6)])
    done = good("evaluate", world / "states", bad)
    assert "bad: 1 of 7 inputs could not be read and counts as rejected." in " ".join(done.stdout.split())
    bad = write_jsonl(tmp_path / "bad.jsonl", [*lines, of_states(9, label=None)])
    refused(call("evaluate", world / "states", bad), "line 7: no label")
    bad = write_jsonl(tmp_path / "bad.jsonl", [*lines_of(GOOD), b'{"id": "x", "text": "a film", "label": null}'])
    refused(call("evaluate", world / "texts", bad), "has 1 document that cannot be used. no label: line 7")


def test_a_report_counts_bad_rows_as_rejected(world, tmp_path, monkeypatch):
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))
    bad = write_jsonl(tmp_path / "bad.jsonl", [*lines_of(GOOD), b"{"])
    done = good("report", world / "texts", bad, "-o", tmp_path / "page.html", "--json")
    assert json.loads(done.stdout)["inputs"] == {"bad": 7} and json.loads(done.stdout)["unread"] == {"bad": 1}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "bad: 1 of 7 inputs could not be read and counts as rejected." in page
    assert "7 inputs, 1 of them unread" in page and "<td>rejected</td><td>1</td><td>0.14</td>" in page
    assert "bad: 1 of 7 rows could not be read" in done.stderr
    refused(call("report", world / "texts", bad, "-o", tmp_path / "other.html", "--strict"), "line 7")


# --- The service -----------------------------------------------------------------------------------------------------


@pytest.fixture
def service(world):
    client = pytest.importorskip("fastapi.testclient").TestClient
    from torchsdm.service import ServiceSettings, create_app

    with ExitStack() as running:

        def start(model):
            app = create_app(world / model, ServiceSettings(), batch_tokens=1)
            return running.enter_context(client(app, base_url="http://127.0.0.1"))

        yield start


def asked(client, route, **body):
    content = json.dumps(body)  # NaN is written as the services of others may write it
    answer = client.post(route, content=content, headers={"content-type": "application/json"})
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (None, "no text"),
        ("", "empty text"),
        (" \n", "empty text"),
        (7, "text that is not a string"),
        ({"text": "a film"}, "text that is not a string"),
        (["a film"], "text that is not a string"),
        ("\x00", "the tokenizer makes no tokens of the text"),
    ],
)
def test_the_service_rejects_one_bad_text_and_decides_on_the_others(wrong, reason, service):
    client = service("texts")
    _, expected = asked(client, "/v1/decide", texts=TEXTS[:3])
    status, answer = asked(client, "/v1/decide", texts=[TEXTS[0], wrong, *TEXTS[1:3]])
    rows = answer["decisions"]
    assert status == 200 and [row["id"] for row in rows] == [0, 1, 2, 3]
    bad = rows.pop(1)
    assert bad["lane"] == "rejected" and bad["admitted"] is False and bad["prediction"] is None
    assert bad["reason"] == reason and problems(bad, decision_schema()) == []
    assert [{**row, "id": None} for row in rows] == [{**row, "id": None} for row in expected["decisions"]]
    assert client.get("/v1/guard").json()["guard"]["n_seen"] == 6
    status, answer = asked(client, "/v1/explain", texts=[wrong, TEXTS[0]], k=2)
    assert status == 200 and [row["lane"] == "rejected" for row in answer["explanations"]] == [True, False]
    assert problems(answer["explanations"][0], decision_schema()) == []
    status, answer = asked(client, "/v1/decide", texts=[wrong])
    assert status == 422 and list(answer) == ["error"] and "\n" not in answer["error"]


def test_the_service_rejects_a_missing_answer(service):
    client = service("answers")
    status, answer = asked(client, "/v1/decide", texts=["Was it good?", "Was it long?"], answers=["Yes.", None])
    assert status == 200 and [row["reason"] for row in answer["decisions"]][1] == "no answer"
    for body in ({"answers": ["Yes."]}, {"answers": "Yes."}, {}):
        assert asked(client, "/v1/decide", texts=["Was it good?", "Was it long?"], **body)[0] == 422


@pytest.mark.parametrize("kind", [kind for kind in BAD_STATES if kind not in ("NaN", "infinity")])
def test_the_service_rejects_one_bad_state_and_decides_on_the_others(kind, service):
    wrong, reason = BAD_STATES[kind]
    client, states = service("states"), STATES[:3].tolist()
    expected = asked(client, "/v1/decide", hidden_states=states)[1]["decisions"]
    status, answer = asked(client, "/v1/decide", hidden_states=[wrong, *states])
    rows = answer["decisions"]
    assert status == 200 and rows[0]["lane"] == "rejected" and reason.replace("'", "") in rows[0]["reason"]
    assert [row["id"] for row in rows] == [0, 1, 2, 3]
    assert [{**row, "id": None} for row in rows[1:]] == [{**row, "id": None} for row in expected]
    assert client.get("/v1/guard").json()["guard"]["n_seen"] == 6
    assert asked(client, "/v1/decide", hidden_states=[wrong])[0] == 422


def test_the_service_takes_only_what_json_can_say(service):
    client = service("states")
    for wrong in (math.nan, math.inf, "half \ud83d"):
        status, answer = asked(client, "/v1/decide", hidden_states=[[0, wrong, 0, 0, 0, 0]])
        assert status == 422 and list(answer) == ["error"] and "column" in answer["error"]


# --- The Python API --------------------------------------------------------------------------------------------------


def test_in_python_a_bad_input_is_an_error_that_names_it(world):
    states = STATES.copy()
    states[30, 2] = np.nan
    with pytest.raises(TorchSDMError, match="first in row 30"):
        SDMClassifier.load(world / "states").decide(states)
    with pytest.raises(TorchSDMError, match=r"no text: row 2\."):
        SDMTextClassifier.load(world / "texts").decide(["a film", None])
