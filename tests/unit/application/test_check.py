"""The spot checks of a saved model, from files and through the command: drawn, judged, and demoted at every door."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest

from sdm_command import call, good, refused
from small import quietly, small_settings, two_groups, write_jsonl
from torchsdm import SDMClassifier, SDMEnsemble, SpotCheck
from torchsdm.application import AnswerRequest, LiveModel, ModelChecks, SavedModel, answer_requests, check_model
from torchsdm.errors import InvalidInputError
from torchsdm.model import Offered
from torchsdm.wording import REASONS, check_line

NAMES = ["ham", "spam"]
X, Y = two_groups(200, 1, NAMES, distance=4.0)
SPAM = REASONS["checks of one"].format(label="spam")
WHO = {"who": "ada"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check")
    states, labels = two_groups(900, 0, NAMES, distance=4.0)
    quietly(lambda: SDMClassifier(0.85, **small_settings()).fit(states, labels)).save(folder / "model")
    rows = [{"id": f"n{i}", "hidden_states": x.tolist()} for i, x in enumerate(X)]
    new = write_jsonl(folder / "new.jsonl", rows)
    for ending in ("jsonl", "csv"):
        good("predict", folder / "model", new, "-o", folder / f"decisions.{ending}", "--no-guard")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "here")


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file]


def admitted(folder):
    return [row for row in table(folder / "decisions.jsonl") if row["admitted"]]


def spoil(folder, wrong=("spam",), **names):
    """Draw everything and say that all of some answers are wrong."""
    check_model(folder / "model", str(folder / "decisions.jsonl"), rate=1.0, output=folder / "all.jsonl", **WHO)
    rows = [{**row, "right": row["prediction"] not in wrong} for row in table(folder / "all.jsonl")]
    return check_model(folder / "model", verdicts=str(write_jsonl(folder / "checked.jsonl", rows)), **WHO)


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_what_is_drawn_is_written_and_offered_once(folder, ending):
    answers = admitted(folder)
    given = (folder / "model", folder / f"decisions.{ending}", "--rate", 0.2, "-o", folder / f"to-check.{ending}")
    (told,) = good("check", *given, "--json").rows
    drawn = table(folder / f"to-check.{ending}")
    assert (told["offered"], told["before"]) == (len(answers), 0) and 0 < told["drawn"] < len(answers)
    assert len(drawn) == told["drawn"] == told["checks"]["n_waiting"] == told["checks"]["n_drawn"]
    by_id = {row["id"]: row for row in answers}
    for number, row in enumerate(drawn, 1):
        one = by_id[row["id"]]
        assert (int(row["check"]), row["prediction"], row["right"] or None) == (number, one["prediction"], None)
        assert float(row["probability"]) == one["probabilities"][one["prediction"]]
    # The other file has the same decisions.
    other = folder / ("decisions.csv" if ending == "jsonl" else "decisions.jsonl")
    (again,) = good("check", folder / "model", other, "--rate", 1, "--json").rows
    assert (again["offered"], again["drawn"], again["before"]) == (0, 0, len(answers))


def test_the_seed_is_secret_and_every_model_has_its_own(folder):
    states = [ModelChecks(path) for path in (folder / "model", shutil.copytree(folder / "model", folder / "other"))]
    classifier = SDMClassifier.load(folder / "model")
    for checks in states:
        checks.draw(classifier, [Offered("ham")], "sent")
    from torchsdm.model import read_checks

    seeds = [read_checks(checks.path)[0].checks.seed for checks in states]
    assert len(set(seeds)) == 2 and min(seeds) > 2**64


def test_verdicts_may_be_words_or_labels_and_what_is_blank_waits(folder):
    good("check", folder / "model", folder / "decisions.jsonl", "--rate", 1, "-o", folder / "all.csv")
    rows = table(folder / "all.csv")
    other = {"ham": "spam", "spam": "ham"}
    cells = [{"right": "TRUE"}, {"right": "false"}, {"right": ""}, {"label": rows[3]["prediction"]}]
    cells += [{"label": other[rows[4]["prediction"]]}, {"right": " ", "label": ""}]
    given = [{"right": "", "label": "", "check": row["check"], **cell} for row, cell in zip(rows, cells, strict=False)]
    with (folder / "checked.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["check", "right", "label"])
        writer.writeheader()
        writer.writerows(given)
    result = check_model(folder / "model", verdicts=str(folder / "checked.csv"), **WHO)
    checks = result["checks"]
    assert (result["taken"], checks["n_checked"], checks["n_wrong"]) == (4, 4, 2)
    assert checks["n_waiting"] == len(rows) - 4
    left = check_model(folder / "model", output=folder / "left.jsonl", **WHO)
    assert [row["check"] for row in table(folder / "left.jsonl")[:2]] == [3, 6] and left["checks"] == checks


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"check": "one", "right": True}, "needs the number"),
        ({"check": True, "right": True}, "needs the number"),
        ({"check": 2**63, "right": True}, "needs the number"),
        ({"right": True}, "needs the number"),
        ({"check": 7000, "right": True}, "No answer was drawn under the number 7000"),
        ({"check": 1, "right": "perhaps"}, "'right' must be true or false"),
        ({"check": 1, "right": 1}, "'right' must be true or false"),
        ({"check": 1, "label": "spma"}, "'spma' is not a class"),
    ],
)
def test_a_verdict_that_cannot_be_used_is_told_and_none_is_taken(folder, row, said):
    good("check", folder / "model", folder / "decisions.jsonl", "--rate", 1)
    file = write_jsonl(folder / "checked.jsonl", [{"check": 2, "right": True}, row])
    refused(call("check", folder / "model", "--verdicts", file), said)
    assert good("check", folder / "model", "--json").rows[0]["checks"]["n_checked"] == 0


def test_right_and_label_must_not_contradict_each_other(folder):
    good("check", folder / "model", folder / "decisions.jsonl", "--rate", 1, "-o", folder / "all.jsonl")
    (first, *_) = table(folder / "all.jsonl")
    file = write_jsonl(folder / "checked.jsonl", [{"check": 1, "right": False, "label": first["prediction"]}])
    refused(call("check", folder / "model", "--verdicts", file), "contradict each other")


def test_the_figures_are_those_of_the_library(folder):
    result = spoil(folder)
    answers = [row["prediction"] for row in admitted(folder)]
    plain = SpotCheck(0.85, NAMES)
    plain.update(answers, [label == "ham" for label in answers])
    for told, group in zip(result["checks"]["groups"], plain.groups, strict=True):
        assert {**vars(group), "name": group.name}.items() <= told.items()
        assert told["accuracy"] == group.accuracy
    assert result["raised"][0] in ("prediction 'spam'", "all together") and "prediction 'spam'" in result["raised"]


def test_an_alarm_demotes_at_every_door_until_it_is_reset(folder):
    before = {row["id"]: row for row in table(folder / "decisions.jsonl")}
    spoil(folder)
    spam = next(i for i, x in enumerate(X) if before[f"n{i}"]["prediction"] == "spam" and before[f"n{i}"]["admitted"])

    said = good("predict", folder / "model", folder / "new.jsonl", "-o", folder / "after.jsonl", "--no-guard")
    assert "the spot checks were raised at verdict" in said.stderr.lower() and "'spam'" in said.stderr
    after = {row["id"]: row for row in table(folder / "after.jsonl")}
    for name, row in before.items():
        if row["prediction"] == "spam" and row["admitted"]:
            changed = {"admitted": False, "lane": "review", "certified": False, "reason": SPAM}
            assert after[name] == {**row, **changed}
    assert not any(row["admitted"] for row in after.values() if row["prediction"] == "spam")

    one = ("explain", folder / "model", folder / "new.jsonl", "--only", f"n{spam}")
    assert SPAM in good(*one).stdout and good(*one, "--json").rows[0]["admitted"] is False

    checks, saved = ModelChecks(folder / "model"), SavedModel.load(folder / "model")
    (rows,) = answer_requests(saved, [AnswerRequest(hidden_states=X[spam : spam + 1].tolist())])
    assert rows[0]["admitted"] and not checks.demote(rows)[0]["admitted"]

    told = good("check", folder / "model", "--reset", "the rule changed", "--who", "eve").stdout
    assert "calm after 0 verdicts" in told and "the rule changed" in told and "raised at" in told
    good("predict", folder / "model", folder / "new.jsonl", "-o", folder / "again.jsonl", "--no-guard")
    assert table(folder / "again.jsonl") == table(folder / "decisions.jsonl")


def test_an_alarm_over_all_demotes_certified_answers_only(folder):
    spoil(folder, wrong=("ham", "spam"))
    checks = ModelChecks(folder / "model")
    alarm = checks.alarm()
    rows = [{"prediction": "eggs", "lane": lane, "reason": "", "certified": True, "admitted": True} for lane in
            ("trusted", "certified")]  # fmt: skip
    assert None in alarm.raised_by
    assert [row["lane"] for row in checks.demote(rows)] == ["trusted", "review"]


def test_a_new_certificate_ends_the_stream_and_the_alarm_stays(folder):
    spoil(folder)
    quietly(lambda: good("recalibrate", folder / "model", "--alpha", "0.8"))
    state = good("check", folder / "model", "--json").rows[0]["checks"]
    assert (state["raised"], state["raised_at"], state["n_checked"], state["n_waiting"]) == (True, 0, 0, 0)
    assert "before the model was changed" in good("check", folder / "model").stdout
    refused(call("check", folder / "model", folder / "decisions.jsonl"), "under another certificate")
    good("predict", folder / "model", folder / "new.jsonl", "-o", folder / "after.jsonl", "--no-guard")
    assert not any(row["admitted"] for row in table(folder / "after.jsonl") if row["prediction"] == "spam")
    good("check", folder / "model", "--reset", "certified again")
    old, new = X, two_groups(50, 2, NAMES, distance=4.0)[0]
    for states, is_new in ((old, False), (new, True)):  # what somebody has judged is no news under any certificate
        rows = [{"id": f"n{i}", "hidden_states": x.tolist()} for i, x in enumerate(states)]
        given = (write_jsonl(folder / "more.jsonl", rows), "-o", folder / "after.jsonl", "--no-guard")
        good("predict", folder / "model", *given)
        (told,) = good("check", folder / "model", folder / "after.jsonl", "--rate", 1, "--json").rows
        assert (told["drawn"] > 0) == (told["before"] == 0) == is_new
    assert told["checks"]["groups"][-1]["target"] == 0.8


def test_a_change_that_leaves_the_certificate_leaves_the_stream(folder):
    spoil(folder, wrong=())
    with LiveModel.open(folder / "model") as live:
        from torchsdm.trust import GuardReset

        live.guard_reset(GuardReset("looked at", 0, None), who="ada")
    state = good("check", folder / "model", "--json").rows[0]["checks"]
    assert state["n_checked"] == len(admitted(folder)) and not state["resets"]


def test_what_was_drawn_waits_though_no_file_was_written(folder):
    """As when the process is killed between the draw and the file."""
    (drawn,) = good("check", folder / "model", folder / "decisions.jsonl", "--rate", 1, "--json").rows
    (told,) = good("check", folder / "model", folder / "decisions.jsonl", "-o", folder / "c.jsonl", "--json").rows
    assert (told["drawn"], told["before"]) == (0, drawn["drawn"])
    assert len(table(folder / "c.jsonl")) == drawn["drawn"] > 0


def test_an_empty_list_has_its_columns(folder):
    good("check", folder / "model", "-o", folder / "none.csv")
    assert (folder / "none.csv").read_text().split() == ["check,id,text,prediction,probability,right"]
    assert not (folder / "model" / "changes").exists()  # looking writes nothing


def test_what_cannot_be_checked_is_told(folder, tmp_path):
    refused(call("check", folder / "model", folder / "new.jsonl"), "sdm predict MODEL INPUT -o DECISIONS")
    refused(call("check", folder / "model", folder / "decisions.jsonl", "--rate", 2), "'rate'")
    refused(call("check", folder / "model", folder / "decisions.jsonl", "--verdicts", "x"), "one of them")
    refused(call("check", folder / "model", folder / "decisions.jsonl", "-o", folder / "x.txt"), "must end in")
    refused(call("check", folder / "model", folder / "nothing.jsonl"), "There is no file")
    np.savez(folder / "x.npz", a=np.zeros(3))
    refused(call("check", folder / "model", folder / "x.npz"), "must end in")
    refused(call("check", folder / "model", "--reset", " "), "must say why")
    with pytest.raises(InvalidInputError, match="'who' is required"):
        check_model(folder / "model", reason="because", who=" ")
    states, labels = two_groups(200, 0, NAMES, distance=4.0)
    quietly(lambda: SDMEnsemble(0.8, **small_settings(n_rounds=2)).fit(states, labels)).save(tmp_path / "ensemble")
    refused(call("check", tmp_path / "ensemble"), "An ensemble is not certified. Spot checks test a promise")


def test_the_sentences():
    group = {"raised": True, "prediction": "spam"}
    state = {"raised": True, "raised_at": 1200, "groups": [group, {"raised": True, "prediction": None}]}
    assert check_line(state) == (
        "The spot checks were raised at verdict 1,200: answers 'spam' and certified answers need review."
    )
    assert check_line({**state, "groups": [group]}, "m").endswith(
        "need review. Look into it, then: sdm check m --reset REASON."
    )
    assert check_line({"raised": False, "n_checked": 1}) == "The spot checks are calm after 1 verdict."
