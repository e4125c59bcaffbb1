"""One shape of a decision: the Python objects, the command and the service give the same rows, and the schema holds."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import make_blobs

from json_schema import problems
from torchsdm import Decisions, SDMClassifier, SDMEnsemble
from torchsdm.application import decision_schema
from torchsdm.cli.command import sdm
from torchsdm.core import SDMDecisions

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

ALPHAS = (0.7, 0.9)
EVIDENCE = {"exemplars", "calibration_points", "partition_size", "partition_accuracy"}


@pytest.fixture(scope="module", params=["classifier", "ensemble"])
def world(request, tmp_path_factory):
    """A saved model with ids and texts, and a file of states: some near, some far."""
    folder = tmp_path_factory.mktemp("world")
    X, y = make_blobs(1020, n_features=5, centers=3, cluster_std=1.0, random_state=0)
    X, names = X.astype(np.float32), np.array(["no", "yes", "später"])[y]
    texts = [f"text {number}" for number in range(1000)]
    model = SDMClassifier(
        ALPHAS, n_filters=8, training="sdm", max_epochs=5, learning_rate=2e-2, standardization="scalar", random_state=0
    ).fit(X[:1000], names[:1000], ids=[f"train-{number}" for number in range(1000)], texts=texts, keep_rounds=True)
    if request.param == "ensemble":
        model = SDMEnsemble.from_classifier(model)
    model.save(folder / "model")
    states = X[1000:] * np.repeat(np.float32([1, 20]), 10)[:, None]
    np.savez(folder / "new.npz", hidden_states=states, ids=np.arange(100, 120))
    decisions = model.decide(states)
    assert 0 < decisions.admitted.sum() < 20 and decisions.out_of_distribution.sum() > 0
    return folder, model, states


def ask(model, route, body, **settings):
    """The JSON that a service of the model answers."""
    client = pytest.importorskip("fastapi.testclient").TestClient
    from torchsdm.service import ServiceSettings, create_app

    with client(create_app(model, ServiceSettings(**settings)), base_url="http://127.0.0.1") as service:
        answer = service.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run(*arguments):
    done = CliRunner().invoke(sdm, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def everywhere(folder, model, states):
    """The rows of every place that gives decisions, and what each has beside the decision."""
    saved, body = folder / "model", {"hidden_states": states.tolist()}
    return {
        "Decisions.to_dicts": (model.decide(states).to_dicts(), set()),
        "Explanation.to_dict": ([one.to_dict() for one in model.explain(states)], EVIDENCE),
        "sdm predict": (run("predict", folder / "model", folder / "new.npz"), {"id", "line", "exemplars"}),
        "sdm predict -k 0": (run("predict", folder / "model", folder / "new.npz", "-k", 0), {"id", "line"}),
        "sdm predict --texts": (
            run("predict", folder / "model", folder / "new.npz", "--texts"),
            {"id", "line", "text", "exemplars"},
        ),
        "sdm explain --json": (
            run("explain", folder / "model", folder / "new.npz", "--json"),
            {"id", "line", "text", *EVIDENCE},
        ),
        "/explain": (ask(saved, "/v1/explain", body)["explanations"], {"id", "line", *EVIDENCE}),
        "/decide": (ask(saved, "/v1/decide", body)["decisions"], {"id", "line"}),
        "/explain with texts": (
            ask(saved, "/v1/explain", body, texts=True)["explanations"],
            {"id", "line", "text", *EVIDENCE},
        ),
    }


def test_every_place_gives_the_row_of_the_schema(world):
    folder, model, states = world
    schema = decision_schema()
    expected = model.decide(states).to_dicts()
    for place, (rows, beside) in everywhere(folder, model, states).items():
        assert len(rows) == len(expected), place
        for row, one in zip(rows, expected, strict=True):
            assert problems(row, schema) == [], place
            assert set(row) - set(one) == beside, place
            assert {name: row[name] for name in one} == one, place
            assert "id" not in row or next(iter(row)) == "id"
        exemplars = [point for row in rows for point in row.get("exemplars", [])]
        with_texts = "text" in beside or place == "Explanation.to_dict"
        assert all(("text" in point) == with_texts for point in exemplars), place
        if with_texts:
            assert all(point["text"].startswith("text ") for point in exemplars), place


def test_the_schema_lists_the_fields_of_decisions():
    names = {field.name for field in dataclasses.fields(SDMDecisions)} - {"classes", "alphas", "set_sizes"}
    schema, keys = decision_schema()["$defs"]["decision"], names - {"predictions"} | {"prediction", "magnitude"}
    assert set(schema["properties"]) == keys | {"id", "line", "text"} | EVIDENCE
    assert set(schema["required"]) == keys - {"member", "score", "background", "familiarity"}
    assert {field.name for field in dataclasses.fields(Decisions)} < names | {"classes", "alphas", "set_sizes"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"predictions": "no"}, "$ must not have 'predictions'"),
        ({"prediction": None}, "$.prediction is None"),
        ({"admitted": 1}, "$.admitted is 1, not boolean"),
        ({"lane": "sure"}, "$.lane is 'sure', not one of ['trusted', "),
        ({"similarity": True}, "$.similarity is True, not integer"),
        ({"similarity": -1}, "$.similarity is -1, out of range"),
        ({"confidence": 1.5}, "$.confidence is 1.5, out of range"),
        ({"nearest_distance": float("inf")}, "which is not JSON"),
        ({"logits": {"no": "3"}}, "$.logits.no is '3', not number"),
        ({"exemplars": [{"id": 1}]}, "$.exemplars[0] has no 'vouches'"),
        ({"exemplars": [{"is_match": True}]}, "$.exemplars[0] must not have 'is_match'"),
    ],
)
def test_the_validator_finds_what_is_wrong(change, expected):
    share = dict.fromkeys(decision_schema()["$defs"]["decision"]["required"], 0.5)
    words = {"prediction": "no", "lane": "review", "reason": "why", "certificate": None}
    words |= dict.fromkeys(("admitted", "admitted_lower", "certified", "out_of_distribution"), False)
    by_label = {"probabilities": {"no": 1.0}, "logits": {"no": 2.0}, "effective_sample_sizes": {"no": 9}}
    by_alpha = {"admitted_at": {"0.9": False}, "admitted_lower_at": {"0.9": False}}
    row = {**share, **words, **by_label, **by_alpha, "similarity": 3, "nearest_index": 7}
    assert problems(row, decision_schema()) == []
    assert any(expected in problem for problem in problems({**row, **change}, decision_schema()))
    del row["similarity"]
    assert problems(row, decision_schema()) == ["$ has no 'similarity'"]
