"""The studies' own arithmetic, and the documentation's figures against the results they were written from."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from research.studies import audit, certificate, fewer_labels, guard, hidden_state, loop, spot_check
from small import small_settings

STUDIES = Path(audit.__file__).parent


@pytest.fixture(scope="module")
def results():
    return json.loads(guard.RESULTS.read_text(encoding="utf-8"))


def points(rng, n, shift=0.0):
    distance = rng.gamma(3, 1, n) + shift
    return SimpleNamespace(nearest_distance=distance, confidence=1 / (1 + distance), similarity=rng.poisson(3, n))


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.json")))
def test_the_page_says_what_the_results_say(name):
    study = importlib.import_module(f"research.studies.{name}")
    page = study.PAGE.read_text(encoding="utf-8")
    written = page.partition(study.BEGIN)[2].partition(study.END)[0]
    assert written.strip() == study.section(json.loads(study.RESULTS.read_text(encoding="utf-8"))).strip()


def test_what_is_within_reach_is_the_largest_share_that_is_right_often_enough():
    reach = hidden_state.share_within_reach
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    assert reach(np.array([True, True, False, True, True]), confidence, 0.8) == 1.0  # 4 of 5, though 2 of 3 is less
    assert reach(np.array([True, True, False, False, True]), confidence, 0.8) == 2 / 5
    assert reach(np.array([False, True, True, True, True]), confidence[::-1], 0.9) == 4 / 5
    assert reach(np.array([False, False, False, False, True]), confidence, 0.8) == 0.0


def test_a_form_of_h_is_cut_out_of_all_layers_and_parts():
    states = np.arange(2 * 3 * 2 * 4 * 5).reshape(2, 3, 2, 4, 5)  # texts, positions, parts, layers, width
    layers = (6, 8, 10, -1)
    last = hidden_state.Form().of(states, layers)
    assert last.tolist() == [[*states[i, 0, 0, 3], *states[i, 0, 1, 3]] for i in range(2)]
    assert hidden_state.Form(layers=(8, -1), parts=(1,)).of(states, layers).tolist() == [
        [*states[i, 0, 1, 1], *states[i, 0, 1, 3]] for i in range(2)
    ]
    assert hidden_state.Form(takes_segments=True).of(states, layers).shape == (2, 3, 10)


def test_a_line_has_the_means_over_the_seeds():
    def fit(share, accuracy):
        cell = {"share": share, "accuracy": accuracy, "lowest_group": accuracy}
        return {"test": cell, "shifted": {**cell, "by_prediction": {"no": [10, 4], "yes": [int(20 * share), 0]}}}

    line = certificate.line("rule", [fit(0.5, 0.9), fit(0.1, 0.8), fit(0.0, None)])
    assert line == "| rule | 0.200 | 0.000 | 1 | 0.850 | 0.850 | 0.2000 | 0.850 | no: 0.40 of 10; yes: 0.00 of 4 |"


def test_every_rule_is_measured_on_both_sets(tmp_path):
    """On small data: the shares are those of the classifier's own decisions."""
    from torchsdm import LabelledStates, SDMClassifier

    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    X = rng.standard_normal((1200, 3)).astype(np.float32) + 1.5 * y[:, None]
    pool, test = LabelledStates(X[:900], y[:900]), LabelledStates(X[900:], y[900:])
    shifted = LabelledStates(X[900:] + 9, y[900:])
    settings = small_settings(max_epochs=4)
    classifier = SDMClassifier(alpha=0.8, **settings).fit(pool)
    found = certificate.rules(pool, classifier, {"test": test, "shifted": shifted})
    assert set(found) == set(certificate.RULES.values())
    own = classifier.decide(test.hidden_states)
    assert found["**SDM, certified**"]["test"]["share"] == own.certified.mean() > 0
    assert found["**SDM, certified at every level**"]["test"]["share"] == (own.lane == "trusted").mean() > 0
    right = own.predictions == test.labels
    assert found["**SDM, certified**"]["test"]["by_prediction"] == {
        str(label): [int(chosen.sum()), int(right[chosen].sum())]
        for label in (0, 1)
        for chosen in [own.certified & (own.predictions == label)]
    }
    assert found["the paper's region"]["test"]["share"] == own.admitted_at.mean()
    assert found["**SDM, certified**"]["shifted"]["share"] < own.certified.mean()


def test_a_loop_labels_what_it_says_and_puts_it_where_it_says(monkeypatch):
    from torchsdm import LabelledStates, SDMClassifier

    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    X = rng.standard_normal((1200, 3)).astype(np.float32) + 1.2 * y[:, None]
    pool, test = LabelledStates(X[:900], y[:900]), LabelledStates(X[900:], y[900:])
    for name, value in (("N_START", 500), ("N_HUNDREDS", 2), ("N_FRESH", 200), ("EVERY", 1)):
        monkeypatch.setattr(loop, name, value)
    settings = {"n_filters": 8, "n_rounds": 1, "training": "sdm", "max_epochs": 4, "learning_rate": 1e-2}
    runs = {run["way"]: run for run in loop.loop(pool, test, 0.8, 0, **settings)}
    assert list(runs) == [*loop.WAYS, *loop.RETRAINED]
    assert [one["looks"] for one in runs["rejected ones, half each"]["over_time"]] == [1, 2, 3]
    assert len({str(run["over_time"][0]) for name, run in runs.items() if name in loop.WAYS}) == 1  # one beginning
    assert runs["no updates"]["n_labelled"] == 0 and len(runs["no updates"]["over_time"]) == 1
    own = SDMClassifier(alpha=0.8, control=loop.CONTROL, random_state=0, **settings)
    own.fit(pool.take(np.random.default_rng(0).permutation(900)[:500]))
    decisions = own.decide(test.hidden_states)
    right = (decisions.predictions == test.labels)[decisions.certified].mean()
    expected = [round(decisions.certified.mean(), 4), round(right, 4)]
    assert runs["no updates"]["over_time"][0]["certified"] == expected and expected[0] > 0
    sizes = [len(rows) for rows, _ in own.model_.sets().values()]
    hundred = np.arange(500, 600)
    is_rejected = ~own.decide(X[hundred]).admitted
    chosen = loop.update(own, pool, hundred, loop.Way(loop.rejected, 0.25), np.random.default_rng(0))
    n = round(0.25 * len(chosen))
    assert sorted(chosen) == hundred[is_rejected].tolist() and n > 0
    grown = [len(rows) for rows, _ in own.model_.sets().values()]
    assert grown == [sizes[0] + n, sizes[1] + len(chosen) - n, sizes[2]]


def test_a_line_of_the_loop_has_its_means():
    def run(shares, right, fresh, n_labelled=100):
        states = [{"certified": [share, right], "region": [0.1, None], "looks": 3} for share in shares]
        return {"n_labelled": n_labelled, "over_time": states, "fresh": {"certified": fresh}}

    runs = [run([0.1, 0.2, 0.3, 0.4, 0.5], 0.85, [0.4, 0.95]), run([0.3, 0.4, 0.5, 0.6, 0.7], 0.95, [0.0, None])]
    assert loop.cells(runs) == ["100", "0.200", "0.400", "0.600", "0.900", "0.100", "–", "0.200", "0.950"]
    assert loop.cells([run([0.5], 0.8, [0.5, 0.8])])[1:5] == ["", "", "0.500", "0.800"]  # trained at the end
    assert loop.cells([run([0.5], 0.8, [0.5, 0.8], 0)])[1:5] == ["0.500", "0.500", "0.500", "0.800"]
    assert "1 of 2 certified rules at the end, 0 of 1 on fresh texts" in loop.broken(runs, 0.9)
    assert "up to 3 certificates" in loop.broken(runs, 0.9)


def test_labels_are_spoiled_as_said_and_methods_rank_them():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    X = rng.standard_normal((400, 5)) + 6 * np.eye(5)[y]
    states, given, is_wrong = audit.spoiled(X, y, seed=1, n_rows=300, n_wrong=12)
    assert states.shape == (300, 5) and is_wrong.sum() == 12
    for method in (audit.audit, audit.regression(1.0), audit.neighbours):
        first = np.argsort(-method(states, given, 1))[:12]
        assert is_wrong[first].sum() >= 11, method


def test_a_line_of_the_audit_has_ratios_to_logistic_regression():
    runs = [
        {"it": {"found": a, "seconds": 1.0}, audit.REFERENCE: {"found": b, "seconds": 1.0}}
        for a, b in ((60, 50), (66, 60))
    ]
    assert audit.line("it", runs) == "| it | 63.0 | 60 | 66 | 1.15 | 1.10 | 1.0 |"


def test_the_picture_shows_the_turn_and_the_alarm(results, tmp_path):
    turn, n_before = results["turn"], results["n_before_turn"]
    largest = np.max(list(turn["log10_martingale_third"].values()), axis=0)
    assert np.flatnonzero(largest >= 2)[0] + 1 == turn["raised_at"] > n_before
    guard.draw(results, tmp_path / "guard.svg")
    assert f"alarm at input {turn['raised_at']}" in (tmp_path / "guard.svg").read_text(encoding="utf-8")


def test_streams_that_never_raise_count_as_infinitely_late():
    found = guard.delays([(3, "confidence"), (None, None), (3, "similarity"), (2, "confidence")])
    assert found["raised_by"] == {"confidence": 2, "similarity": 1}
    delays = guard.all_delays([{"kind": json.loads(json.dumps(found))}], "kind")
    assert delays == [2, 3, 3, math.inf]
    assert [guard.quantile(delays, share) for share in (0.5, 0.75, 0.9)] == [3, 3, math.inf]


def test_delays_are_counted_from_the_turn():
    rng = np.random.default_rng(0)
    sets = [points(rng, 300), points(rng, 250), points(rng, 60, shift=50.0), points(rng, 300)]
    ends = guard.streams(*sets, seed=0, n_streams=5)
    for kind in ("after_shift", "after_turn"):
        delays = guard.all_delays([ends], kind)
        assert len(delays) == 5 and 1 <= delays[0] <= delays[-1] < 20
    assert [ends[kind]["n_inputs"] for kind in ("before_turn", "calm", "simulated", "calibration_reused")] == [
        *(200, 250, 10_000, 550)
    ]
    assert {ends[kind]["alarms"] for kind in ("before_turn", "calm", "simulated", "calibration_reused")} == {0}
    turn = guard.one_turn(*sets[:3], seed=0)
    assert turn["raised_at"] - guard.N_BEFORE_TURN in guard.all_delays([ends], "after_turn")


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("guard", "mixtral32_pool"),
        ("certificate", "factcheck/"),
        ("defaults", "newsgroups/"),
        ("loop", "newsgroups/"),
        ("audit", "newsgroups/"),
    ],
)
def test_without_data_the_study_says_what_it_needs(name, needs, monkeypatch, capsys, tmp_path):
    study = importlib.import_module(f"research.studies.{name}")
    monkeypatch.delenv("TORCHSDM_DATA", raising=False)
    monkeypatch.setattr(study, "RESULTS", tmp_path / "none.json")  # nothing is known yet
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit) as leaving:
        study.main()
    assert leaving.value.code == 2 and needs in capsys.readouterr().err


# --- Spot checks -----------------------------------------------------------------------------------------------------


def test_mapies_bound_for_all_streams_at_once_is_the_one_of_its_class():
    """Of some streams that raise early, late and never."""
    from mapie.exchangeability_testing import RiskMonitoring

    is_wrong, is_second = spot_check.verdicts(np.repeat([0.97, 0.5], [30, 120]), 4, [1])
    is_wrong[3] = False
    ends = spot_check.mapie(is_wrong, is_second, 0.9)
    for wrong, end in zip(is_wrong, ends, strict=True):
        monitor = RiskMonitoring("accuracy", test_level=2 * spot_check.FALSE_ALARM, threshold=1 - 0.9, warn=False)
        monitor.update(np.zeros(len(wrong), dtype=int), wrong.astype(int))
        above = monitor.online_risk_lower_bound_sequence_history > monitor.threshold
        assert (np.flatnonzero(above)[0] + 1 if above.any() else math.inf) == end
    assert np.isfinite(ends).tolist() == [True] * 3 + [False] and len(set(ends)) > 2


def test_the_tests_by_hand_are_binomial_tests_of_200_answers():
    from scipy.stats import binomtest

    k = spot_check.most_errors(0.9)
    p = [binomtest(errors, 200, 1 - 0.9, alternative="greater").pvalue for errors in (k - 1, k)]
    assert p[0] > spot_check.FALSE_ALARM >= p[1]
    is_wrong = np.zeros((2, 600), dtype=bool)
    is_wrong[0, 250 : 250 + k] = True  # within one window from its last error on, and within the second block
    assert spot_check.last_answers(is_wrong, is_wrong, 0.9).tolist() == [250 + k, math.inf]
    assert spot_check.new_blocks(is_wrong, is_wrong, 0.9).tolist() == [400, math.inf]


def test_spot_checks_in_chunks_are_raised_where_they_are_in_one_piece(monkeypatch):
    is_wrong, is_second = spot_check.verdicts(np.repeat([0.95, 0.7], [100, 400]), 3, [2])
    ends = spot_check.spot_check(is_wrong, is_second, 0.9)
    monkeypatch.setattr(spot_check, "CHUNK", 17)
    assert spot_check.spot_check(is_wrong, is_second, 0.9).tolist() == ends.tolist()
    assert np.isfinite(ends).all()


def test_delays_of_spot_checks_are_counted_from_the_fall_and_without_earlier_alarms():
    found = spot_check.delays(np.array([150.0, 210, 230, 260, math.inf]), 200)
    assert found == {"median": 30, "late": None, "alarms_before": 1, "never": 1}
    assert spot_check._cell(found, 5, 0.1) == "30 / over 5,000"
    assert spot_check._cell(spot_check.delays(np.array([3.0, 7.0]), 200), 2, 0.1) == "all raised before"


def test_the_study_of_spot_checks_goes_through_all_kinds_of_streams(monkeypatch):
    monkeypatch.setattr(spot_check, "LONGEST", {0.1: 300})
    monkeypatch.setattr(spot_check, "N_CALM", 400)
    results = spot_check.study(3, 2)
    assert len(results["falls"]) == 8 and len(results["calm"]) == 4
    assert all(set(spot_check.METHODS) < set(one) for one in (*results["falls"], *results["calm"]))
    assert spot_check.section(json.loads(json.dumps(results))).count("\n| 0.9") == 12


def test_the_study_of_fewer_labels_compares_certificates_of_the_same_points(monkeypatch):
    monkeypatch.setattr(fewer_labels, "SHAPES", {"simulated, hard": (0.6, 0.6)})
    monkeypatch.setattr(fewer_labels, "TERMS", (("all", 0.9),))
    ((problem, right, *_, found),) = fewer_labels.simulated(3)
    assert problem == "simulated, hard" and right == 0.75
    assert all(one["n_labels"] < one["n_drawn"] and one["admitted"] <= one["admitted_full"] for one in found)
    assert all(one["admitted"] == one["admitted_full"] for one in found if one["same"]) and any(
        o["same"] for o in found
    )


def test_the_figures_of_fewer_labels_are_those_of_the_page():
    results = json.loads(fewer_labels.RESULTS.read_text(encoding="utf-8"))
    assert fewer_labels.section(results) in fewer_labels.PAGE.read_text(encoding="utf-8")
