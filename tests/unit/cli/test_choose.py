"""``sdm choose``: a table, a choice, a certificate; and what it refuses."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from small import quiet, small_settings, two_groups
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.cli.command import sdm
from torchsdm.errors import InvalidInputError

draw = partial(two_groups, names=["ham", "spam"], distance=2.0)
SETTINGS = small_settings(n_filters=16)
PRICES = ("--cost-error", 6, "--cost-review", 1)


def run(*words):
    with quiet():
        return CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choose")
    with quiet():
        SDMClassifier(alpha=0.95, **SETTINGS).fit(*draw(2400, 0)).save(folder / "model")
        SDMEnsemble(alpha=0.9, **SETTINGS).fit(*draw(400, 0)).save(folder / "ensemble")
    X, y = draw(700, 1)
    np.savez(folder / "new.npz", hidden_states=X, labels=y)
    return folder


def test_it_prints_the_curve_and_certifies_what_it_chose(folder, tmp_path):
    said = run("choose", folder / "model", *PRICES, "-o", tmp_path / "chosen")
    expected = SDMClassifier.load(folder / "model").choose_alpha(cost_error=6, cost_review=1)
    chosen = SDMClassifier.load(tmp_path / "chosen").certificate_
    assert chosen.alpha == expected.alpha and chosen.found and chosen.looks == 2
    assert expected.explain() in said and "certificate 2 on the same certification sample" in said
    assert f"the answers that the rule admits are right at least {100 * expected.alpha:g} %" in said
    table = said.splitlines()[: said.splitlines().index("")]
    assert max(map(len, table)) <= 100 and sum(line.startswith(">") for line in table) == 1
    row = next(line.split() for line in table if line.startswith(">"))
    assert row[1:3] == [f"{expected.alpha:.3g}", f"{expected.admitted_share:.1%}"]
    assert SDMClassifier.load(folder / "model").certificate_.alpha == 0.95


def test_new_data_has_the_whole_promise(folder, tmp_path):
    result = json.loads(run("choose", folder / "model", folder / "new.npz", *PRICES, "-o", tmp_path / "new", "--json"))
    assert result["written"] and result["choice"]["n_certification"] == 700
    assert result["certificate"]["looks"] == 1 and result["certificate"]["alpha"] == result["choice"]["alpha"]
    assert len(result["choice"]["curve"]) > 20


def test_prices_by_class(folder):
    prices = ("--cost-error", "spam=3", "--cost-error", "ham=20", "--cost-review", 1, "--dry-run", "--json")
    assert json.loads(run("choose", folder / "model", *prices))["choice"]["prices"]["error"] == [20, 3]


@pytest.mark.parametrize("given", [(*PRICES, "--dry-run"), ("--cost-error", 5000, "--cost-review", 1)])
def test_the_model_stays_as_it_is(folder, given):
    before = {path.name: path.read_bytes() for path in sorted((folder / "model").iterdir())}
    said = run("choose", folder / "model", *given)
    assert ("Nothing was certified." if "--dry-run" in given else "is unchanged.") in said
    assert {path.name: path.read_bytes() for path in sorted((folder / "model").iterdir())} == before
    assert json.loads(run("choose", folder / "model", *given, "--json"))["written"] is False


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--cost-error", 0, "--cost-review", 1), "must be positive"),
        (("--cost-error", -3, "--cost-review", 1), "must be positive"),
        (("--cost-error", 3, "--cost-review", -1), "must be positive"),
        (("--cost-error", 1, "--cost-review", 2), "reviewing never pays"),
        (("--cost-error", 3, "--cost-error", 4, "--cost-review", 1), "takes one number, or CLASS=NUMBER"),
        (("--cost-error", 3, "--cost-error", "ham=4", "--cost-review", 1), "not both"),
        (("--cost-error", "ham=3", "--cost-error", "ham=4", "--cost-review", 1), "CLASS=NUMBER once"),
        (("--cost-error", "hamm=3", "--cost-error", "spam=4", "--cost-review", 1), "Did you mean 'ham'"),
        (("--cost-error", "ham=3", "--cost-review", 1), "Nothing was given for 'spam'"),
    ],
)
def test_bad_prices_are_refused_in_one_sentence(folder, given, words):
    with pytest.raises(InvalidInputError, match=words):
        run("choose", folder / "model", *given)


@pytest.mark.parametrize(
    ("given", "missing"), [((), "error"), (("--cost-error", 5), "review"), (("--cost-review", 5), "error")]
)
def test_both_prices_are_required(folder, given, missing, tmp_path):
    words = [str(folder / "model"), *map(str, given)]
    done = CliRunner().invoke(sdm, ["choose", *words])
    assert done.exit_code == 2 and f"Missing option '--cost-{missing}'" in done.output
    if given:
        with pytest.raises(InvalidInputError, match="give both, or neither"):
            run("report", folder / "model", folder / "new.npz", *given, "-o", tmp_path / "report.html")


def test_a_price_that_is_no_number_is_refused(folder):
    done = CliRunner().invoke(sdm, ["choose", str(folder / "model"), "--cost-error", "ham=dear", "--cost-review", "1"])
    assert done.exit_code == 2 and "'ham=dear' is neither a number nor CLASS=NUMBER" in done.output


def test_an_ensemble_is_refused(folder):
    with pytest.raises(InvalidInputError, match="is an ensemble, which is not certified"):
        run("choose", folder / "ensemble", *PRICES)
    with pytest.raises(InvalidInputError, match="is an ensemble, which has no alpha to choose"):
        run("report", folder / "ensemble", folder / "new.npz", *PRICES, "-o", folder / "r.html")


def test_the_report_shows_what_alpha_costs(folder, tmp_path):
    pytest.importorskip("matplotlib")
    run("report", folder / "model", folder / "new.npz", *PRICES, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    choice = SDMClassifier.load(folder / "model").choose_alpha(cost_error=6, cost_review=1)
    assert "What alpha costs</h2>" in page and choice.explain() in page
    run("report", folder / "model", folder / "new.npz", "-o", tmp_path / "plain.html")
    page = (tmp_path / "plain.html").read_text(encoding="utf-8")
    assert "What would be admitted at each α." in page and "costs about" not in page


def test_prices_in_a_settings_file(folder, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text('[choose]\ncost-error = ["ham=6", "spam=6"]\ncost-review = 1\n', encoding="utf-8")
    result = json.loads(run("--config", settings, "choose", folder / "model", "--dry-run", "--json"))
    assert result["choice"]["prices"] == {"error": [6, 6], "review": 1}
