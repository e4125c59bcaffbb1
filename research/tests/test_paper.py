"""The paper's printed values: against its LaTeX, against one another, and under our names."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from research.experiments import paper
from research.experiments.paper import PrintedCell, paper_model, printed_rows
from torchsdm.evaluation.tables import Basis, EstimatorKey, Rule

N_ROWS = {
    "calibration": 22,
    "sentiment": 60,
    "factcheck": 32,
    "factcheck shuffled": 32,
    "vbll factcheck": 48,
    "agnews": 4,
    "ablation": 10,
}
VBLL = (Basis.DISCRIMINATIVE_VBLL, Basis.GENERATIVE_VBLL)
PHI, MIXTRAL = "Phi3.5", "Mixtral8x7B"
ALL = ("all", None)
ROWS = printed_rows()
WITH_STRATA = [row for row in ROWS if row.source != "ablation"]
WITHOUT_REJECTION = [row for row in ROWS if row.key.rule is Rule.NO_REJECT]


def name(row):
    factor = "" if row.key.kl_factor is None else f" KL × {row.key.kl_factor:g}"
    return f"{row.dataset}, {row.language_model}, {row.key.basis}{factor}, {row.key.rule}"


def strata(row, stratum):
    return [cell for (of, _), cell in row.cells.items() if of == stratum]


def only(dataset, language_model, basis, rule, alpha=0.95):
    """The row of an estimator; a Bayesian last layer is given with the factor of its KL term."""
    basis, factor = basis if isinstance(basis, tuple) else (basis, None)
    key = EstimatorKey(basis, rule, factor)
    (row,) = printed_rows(dataset=dataset, language_model=language_model, key=key, alpha=alpha)
    return row


# --- What is there ---------------------------------------------------------------------------------------------------


def test_rows_of_each_source():
    assert Counter(row.source for row in ROWS) == N_ROWS


def test_every_line_of_the_file_is_a_cell():
    lines = Path(paper.__file__).with_name("paper_values.csv").read_text(encoding="utf-8").split("\n")
    assert lines[-1] == "" and len(lines) - 2 == sum(len(row.cells) for row in ROWS)


def test_every_row_has_all_strata_once():
    for row in ROWS:
        n_classes = {"ablation": 0, "agnews": 4}.get(row.source, 2)
        labels = range(n_classes)
        expected = [*(("class", y) for y in labels), *(("prediction", y) for y in labels), ALL]
        assert list(row.cells) == expected, name(row)


def test_a_row_is_known_by_data_language_model_estimator_and_alpha():
    values = [(row.dataset, row.language_model, row.key, row.alpha) for row in ROWS]
    assert len(set(values)) == len(values)


def test_rules_are_only_where_they_belong():
    over_logits = {Rule.SOFTMAX, Rule.TEMPERATURE, Rule.APS, Rule.RAPS}
    over_sdm = {Rule.ADAPTOR_SOFTMAX, Rule.DISTANCE_SOFTMAX, Rule.SDM, Rule.REGION}
    found = {basis: {row.key.rule for row in ROWS if row.key.basis is basis} for basis in Basis}
    assert found == {
        Basis.LANGUAGE_MODEL: over_logits | {Rule.NO_REJECT},
        Basis.CNN: over_logits | {Rule.NO_REJECT},
        Basis.DISCRIMINATIVE_VBLL: {Rule.VBLL, Rule.NO_REJECT},
        Basis.GENERATIVE_VBLL: {Rule.VBLL, Rule.NO_REJECT},
        Basis.SDM: over_sdm | {Rule.NO_REJECT},
        Basis.IDENTITY_SDM: {Rule.REGION},
        Basis.ALL_ROUNDS: set(),
    }


def test_data_sets_models_and_factors():
    tests = {"Sentiment", "SentimentOOD", "Factcheck", "FactcheckShuffled", "AGNews"}
    assert {row.dataset for row in ROWS} == tests | {f"{d} calibration" for d in ("Sentiment", "Factcheck", "AGNews")}
    for language_model in (PHI, MIXTRAL):
        bases = {(row.key.basis, row.key.kl_factor) for row in printed_rows(language_model=language_model)}
        others = (Basis.LANGUAGE_MODEL, Basis.CNN, Basis.SDM, Basis.IDENTITY_SDM)
        assert bases == {(basis, None) for basis in others} | {(basis, factor) for basis in VBLL for factor in (1, 50)}
    assert {row.language_model for row in ROWS} == {PHI, MIXTRAL}


def test_rows_are_chosen_by_every_value():
    assert len(printed_rows(source="factcheck", alpha=0.94)) == 2
    region = EstimatorKey(Basis.SDM, Rule.REGION)
    assert len(printed_rows(dataset="Factcheck", language_model=MIXTRAL, key=region)) == 2
    assert printed_rows(key=EstimatorKey(Basis.SDM, Rule.REGION_LOWER)) == []
    assert printed_rows(key=EstimatorKey(Basis.GENERATIVE_VBLL, Rule.VBLL)) == []  # without its factor


def test_models_are_known_by_their_exact_name_alone():
    assert paper_model("microsoft/Phi-3.5-mini-instruct") == PHI
    assert paper_model("mistralai/Mixtral-8x7B-Instruct-v0.1") == MIXTRAL
    assert paper_model("/models/Phi-3.5-mini-instruct") is None


# --- Read off by eye -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "language_model", "basis", "rule", "alpha", "stratum", "accuracy", "share"),
    [
        ("SentimentOOD", MIXTRAL, Basis.SDM, Rule.REGION, 0.95, ("class", 0), "0.9487", "0.01"),
        ("SentimentOOD", MIXTRAL, Basis.SDM, Rule.REGION, 0.95, ("prediction", 0), "0.9487", "0.01"),
        ("SentimentOOD", MIXTRAL, Basis.SDM, Rule.REGION, 0.95, ALL, "0.95", "0.02"),
        ("SentimentOOD", MIXTRAL, Basis.SDM, Rule.DISTANCE_SOFTMAX, 0.95, ("prediction", 0), "0.78", "<0.01"),
        ("Sentiment", MIXTRAL, Basis.LANGUAGE_MODEL, Rule.SOFTMAX, 0.95, ALL, "0.93", "1.00"),
        ("Sentiment", MIXTRAL, Basis.LANGUAGE_MODEL, Rule.NO_REJECT, 0.95, ALL, "0.93", "1."),
        ("Factcheck", PHI, Basis.SDM, Rule.ADAPTOR_SOFTMAX, 0.95, ("prediction", 1), "0.85", "0.43"),
        ("Factcheck", PHI, Basis.SDM, Rule.REGION, 0.95, ("class", 0), "R", "0."),
        ("Factcheck", MIXTRAL, Basis.SDM, Rule.DISTANCE_SOFTMAX, 0.95, ("prediction", 0), "0.", "0.01"),
        ("Factcheck", MIXTRAL, Basis.SDM, Rule.REGION, 0.95, ALL, "R", "0."),
        ("Factcheck", MIXTRAL, Basis.SDM, Rule.REGION, 0.94, ("prediction", 0), "0.80", "0.04"),
        ("FactcheckShuffled", PHI, Basis.CNN, Rule.TEMPERATURE, 0.95, ("class", 1), "-", "0."),
        ("FactcheckShuffled", MIXTRAL, Basis.LANGUAGE_MODEL, Rule.APS, 0.95, ("prediction", 1), "0.", "<0.01"),
        ("Factcheck calibration", MIXTRAL, Basis.SDM, Rule.SDM, 0.94, ("prediction", 1), "0.95", "0.32"),
        ("Factcheck", PHI, (VBLL[0], 1.0), Rule.VBLL, 0.95, ("class", 0), "0.35", "0.07"),
        ("FactcheckShuffled", PHI, (VBLL[0], 50.0), Rule.NO_REJECT, 0.95, ("class", 1), "R", "0."),
        ("AGNews calibration", PHI, Basis.SDM, Rule.REGION, 0.95, ("prediction", 3), "0.97", "0.09"),
        ("AGNews", PHI, Basis.SDM, Rule.NO_REJECT, 0.95, ("class", 2), "0.85", "0.25"),
        ("SentimentOOD", MIXTRAL, Basis.IDENTITY_SDM, Rule.REGION, 0.95, ALL, "1.0", "0.0006"),
        ("SentimentOOD", PHI, Basis.IDENTITY_SDM, Rule.REGION, 0.95, ALL, "R", "0.0"),
    ],
)
def test_cells(dataset, language_model, basis, rule, alpha, stratum, accuracy, share):
    assert only(dataset, language_model, basis, rule, alpha).cells[stratum] == PrintedCell(accuracy, share)


def test_min_rescaled_similarity_is_there_where_printed():
    printed = {
        (row.dataset, row.language_model, row.alpha): row.min_rescaled_similarity
        for row in ROWS
        if row.min_rescaled_similarity is not None
    }
    assert all(row.key == EstimatorKey(Basis.SDM, Rule.REGION) for row in ROWS if row.min_rescaled_similarity)
    assert printed == {
        ("Sentiment calibration", PHI, 0.95): 52.2,
        ("Sentiment calibration", MIXTRAL, 0.95): 63.0,
        ("Factcheck calibration", PHI, 0.95): 95.0,
        ("Factcheck calibration", MIXTRAL, 0.95): math.inf,
        ("Factcheck calibration", MIXTRAL, 0.94): 134.0,
        ("AGNews calibration", PHI, 0.95): 22.7,
    }


# --- Against one another ---------------------------------------------------------------------------------------------


def bounds(text):
    """What a printed number may be: half of its last digit off, where '1.' and '0.' stand for two digits."""
    if text in ("R", "-"):
        return 0.0, 0.0
    if text.startswith("<"):
        return 0.0, float(text[1:])
    off = 0.5 * 10.0 ** -max(2, len(text.partition(".")[2]))
    return max(0.0, float(text) - off), float(text) + off


def overlap(some, others):
    return some[0] <= others[1] + 1e-9 and others[0] <= some[1] + 1e-9


def test_values_are_numbers_or_known_marks():
    for row in ROWS:
        for cell in row.cells.values():
            assert re.fullmatch(r"R|-|[01]\.\d*", cell.accuracy), name(row)
            assert re.fullmatch(r"<0\.01|[01]\.\d*", cell.share), name(row)
            assert cell.accuracy not in "R-" or float(cell.share) == 0, name(row)


@pytest.mark.parametrize("stratum", ["class", "prediction"])
def test_shares_of_the_strata_add_up(stratum):
    for row in WITH_STRATA:
        low, high = zip(*(bounds(cell.share) for cell in strata(row, stratum)), strict=True)
        assert overlap((sum(low), sum(high)), bounds(row.cells[ALL].share)), name(row)


def test_without_rejection_everything_is_admitted():
    for row in WITHOUT_REJECTION:
        assert row.cells[ALL].share == "1.", name(row)
        for stratum in ("class", "prediction"):
            shares = [float(cell.share) for cell in strata(row, stratum)]
            assert sum(shares) == pytest.approx(1.0, abs=1e-9), name(row)


def test_marginal_accuracy_is_that_of_the_classes_by_share():
    # Each accuracy is rounded, and so are the shares that weigh them: the latter matter as accuracies differ.
    assert len(WITHOUT_REJECTION) > 50
    for row in WITHOUT_REJECTION:
        cells = [cell for cell in strata(row, "class") if cell.accuracy not in "R-"]
        accuracies, shares = [float(cell.accuracy) for cell in cells], [float(cell.share) for cell in cells]
        weighted = sum(accuracy * share for accuracy, share in zip(accuracies, shares, strict=True))
        slack = 0.005 + 0.005 + 0.005 * (max(accuracies) - min(accuracies)) * len(cells) / 2
        assert abs(weighted - float(row.cells[ALL].accuracy)) <= slack + 1e-9, name(row)


def test_right_answers_of_a_class_are_those_of_its_prediction():
    # y = ŷ = c is counted in both strata: accuracy times share must agree.
    def n_right(cell):
        return [accuracy * share for accuracy, share in zip(bounds(cell.accuracy), bounds(cell.share), strict=True)]

    for row in WITH_STRATA:
        for own, predicted in zip(strata(row, "class"), strata(row, "prediction"), strict=True):
            assert overlap(n_right(own), n_right(predicted)), name(row)


def test_the_region_admits_no_more_than_its_probability_does():
    for row in printed_rows(key=EstimatorKey(Basis.SDM, Rule.REGION)):
        key = EstimatorKey(Basis.SDM, Rule.SDM)
        for other in printed_rows(dataset=row.dataset, language_model=row.language_model, key=key, alpha=row.alpha):
            assert float(row.cells[ALL].share) <= float(other.cells[ALL].share), name(row)


# --- Against the LaTeX -----------------------------------------------------------------------------------------------

LABELS = {
    "calibration": "tab:experiments-classification-over-calibration-set",
    "sentiment": "tab:experiments-sentiment",
    "factcheck": "tab:experiments-factcheck",
    "factcheck shuffled": "tab:experiments-factcheck-shuffled",
    "vbll factcheck": "tab:experiments-factcheck-additional",
}


@pytest.fixture(scope="module")
def latex(shared_paper):
    """Data rows of the paper's tables by the label of the table: lists of cells, white space removed."""
    path = shared_paper / "sdm_activations.tex.txt"
    tables = re.findall(r"\\begin\{table\*\}(.*?)\\end\{table\*\}", path.read_text(encoding="utf-8"), re.DOTALL)
    rows = {}
    for table in tables:
        body = "".join(re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", table, re.DOTALL))
        lines = [re.sub(r"\s|\\midrule", "", line).split("&") for line in body.split("\\\\") if "\\colorbox" in line]
        rows[re.search(r"\\label\{(.*?)\}", table)[1]] = lines
    return rows


def test_no_row_of_the_latex_is_missing(latex):
    counts = {label: len(rows) for label, rows in latex.items() if rows}
    assert counts == {label: N_ROWS[source] for source, label in LABELS.items()}


@pytest.mark.parametrize("source", LABELS)
def test_all_values_are_those_of_the_latex_in_its_order(source, latex):
    rows = printed_rows(source=source)
    for row, (_, _, _, *values) in zip(rows, latex[LABELS[source]], strict=True):
        plain = [re.sub(r"\\colorbox\{\w+\}\{(.*)\}", r"\1", value) for value in values]
        printed = [text for cell in row.cells.values() for text in (cell.accuracy, cell.share)]
        assert printed == [value.replace("\\allRejected", "R") for value in plain], name(row)


@pytest.mark.parametrize("source", LABELS)
def test_names_are_those_of_the_latex(source, latex):
    for row, (dataset, model, estimator, *_) in zip(printed_rows(source=source), latex[LABELS[source]], strict=True):
        shown = dataset.replace("$", "").replace("\\dataset", "").replace("\\calibrationSplit", " calibration")
        assert shown == row.dataset
        assert ("Mixtral" in model) == (row.language_model == MIXTRAL), name(row)
        bases = {"CNN": Basis.CNN, "Disc": VBLL[0], "Gen": VBLL[1], "SDM": Basis.SDM}
        of_model = [basis for macro, basis in bases.items() if macro in model] or [Basis.LANGUAGE_MODEL]
        assert of_model == [row.key.basis], name(row)
        assert row.key.kl_factor == ((50 if "Fifty" in model else 1) if row.key.basis in VBLL else None), name(row)
        assert ("\\alpha=0.94" in estimator) == (row.alpha == 0.94), name(row)
        macros = {
            "NoReject": Rule.NO_REJECT,
            "DistanceMagnitude": Rule.DISTANCE_SOFTMAX,
            "Softmax": Rule.ADAPTOR_SOFTMAX if "SDM" in model else Rule.SOFTMAX,
            "Temp": Rule.TEMPERATURE,
            "RAPS": Rule.RAPS,
            "APS": Rule.APS,
            "VBLL": Rule.VBLL,
            "sdmAtAlpha": Rule.SDM,
            "sdmHR": Rule.REGION,
        }
        assert next(rule for macro, rule in macros.items() if macro in estimator) is row.key.rule
