"""Background examples: never answered, never admitted, and no class of ``classes_``."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from small import quiet, small_settings
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.cli.command import sdm
from torchsdm.data import LabelledStates
from torchsdm.errors import CheckpointError, InvalidInputError, InvalidTypeError

SETTINGS = small_settings(alpha=0.9, n_filters=16, n_rounds=2, max_epochs=12)
CENTRES = np.array([[3.0, 0, 0, 0], [-3.0, 0, 0, 0], [7.0, 0, 0, 0]])  # two classes, and what does not belong


def draw(n, seed, of=(0, 1)):
    rng = np.random.default_rng(seed)
    numbers = rng.choice(of, n)
    return (rng.standard_normal((n, 4)) + CENTRES[numbers]).astype(np.float32), np.array(["ant", "bee", "no"])[numbers]


def fit(kind=SDMClassifier, X=None, y=None, background=None, **changes):
    X, y = draw(800, 0) if X is None else (X, y)
    with quiet():
        return kind(**{**SETTINGS, **changes}).fit(X, y, background=background)


STRANGE, _ = draw(80, 1, of=(2,))
MORE_STRANGE, _ = draw(300, 2, of=(2,))
NEW, NEW_LABELS = draw(300, 3)


@pytest.fixture(scope="module", params=["class", "exemplars"])
def clf(request):
    return fit(background=STRANGE, background_as=request.param)


def test_it_keeps_strangers_out_and_the_others_in(clf):
    without = fit().decide(MORE_STRANGE)
    assert without.admitted.mean() > 0.15
    decisions = clf.decide(MORE_STRANGE)
    assert decisions.admitted.mean() < 0.06
    assert decisions.background.mean() > 0.9
    assert not decisions.admitted[decisions.background].any()
    assert (decisions.similarity[decisions.background] == 0).all()
    assert (decisions.lane[decisions.background] == "unfamiliar").all()
    assert all("background" in reason for reason in decisions.reason[decisions.background])
    known = clf.decide(NEW)
    assert known.admitted.mean() > 0.85
    assert known.background.mean() < 0.05
    assert (known.predictions == NEW_LABELS).mean() > 0.98


def test_it_is_no_class(clf):
    assert clf.classes_.tolist() == ["ant", "bee"]
    assert set(clf.predict(MORE_STRANGE)) <= {"ant", "bee"}
    probabilities = clf.predict_proba(MORE_STRANGE)
    assert probabilities.shape == (300, 2)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert clf.logits(MORE_STRANGE).shape == (300, 2)
    assert len(clf.certificate_.thresholds) == 2
    assert len(clf.region_.thresholds) == 2


def test_all_of_it_is_in_the_support_and_none_elsewhere(clf):
    model = clf.model_
    names = [f"background:{number}" for number in range(80)]
    assert sorted(set(model.examples.ids()) & set(names)) == sorted(names)
    assert not set(names) & {*model.calibration.known.examples.ids(), *model.certification.examples.ids()}
    assert int(model.calibration.labels.max()) == int(model.certification.labels.max()) == 1
    assert (model.support.labels == 2).sum() == 80
    rows = np.concatenate([clf.training_rows_, clf.calibration_rows_, clf.certification_rows_])
    assert np.array_equal(np.sort(rows), np.arange(800))  # rows of X
    nearest = clf.explain(MORE_STRANGE[:1])[0].exemplars[0]
    assert nearest.label == "(background)"
    assert str(nearest.id).startswith("background:")


def test_only_a_trained_one_is_recognised():
    trained, untrained = (fit(background=STRANGE, background_as=mode) for mode in ("class", "exemplars"))
    of_background = [one.model_.support.predictions[one.model_.support.labels == 2] for one in (trained, untrained)]
    assert (of_background[0] == 2).float().mean() > 0.8
    assert (of_background[1] < 2).all()
    # Exemplars alone leave weights, and with them predictions, as they were.
    assert np.array_equal(untrained.logits(NEW), fit().logits(NEW))
    assert not np.array_equal(trained.logits(NEW), fit().logits(NEW))


def test_it_survives_saving_updates_and_a_new_certificate(clf, tmp_path):
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    for inputs in (MORE_STRANGE, NEW):
        mine, theirs = clf.decide(inputs).to_dicts(), loaded.decide(inputs).to_dicts()
        assert mine == theirs
    assert loaded.background_as == clf.background_as
    before = loaded.decide(MORE_STRANGE)
    loaded.add_exemplars(*draw(20, 5)).recalibrate()  # the signals of calibration and certification anew
    loaded.recertify(*draw(400, 6))
    after = loaded.decide(MORE_STRANGE)
    assert not after.admitted[after.background].any()
    assert (after.background != before.background).mean() < 0.05  # a new example may be the nearest now
    more = loaded.add_exemplars(NEW[:1] + 50, ["(background)"], allow_new_labels=True).decide(NEW[:1] + 50)
    assert more.background.all()


def test_a_calibration_set_of_ones_own():
    X, y = draw(800, 0)
    with quiet():
        clf = SDMClassifier(**SETTINGS).fit(X[:400], y[:400], calibration=(X[400:], y[400:]), background=STRANGE)
    assert np.array_equal(clf.training_rows_, np.arange(400))
    assert np.array_equal(clf.calibration_rows_, np.arange(400))
    assert (clf.model_.support.labels == 2).sum() == 80
    decisions = clf.decide(MORE_STRANGE)
    assert decisions.background.mean() > 0.9
    assert not decisions.admitted[decisions.background].any()


def test_an_ensemble_takes_it():
    ensemble = fit(SDMEnsemble, background=STRANGE)
    decisions = ensemble.decide(MORE_STRANGE)
    assert decisions.background.mean() > 0.9
    assert not decisions.admitted[decisions.background].any()


def test_without_background_the_field_is_absent():
    clf = fit()
    assert clf.decide(NEW).background is None
    assert "background" not in clf.decide(NEW).to_dicts()[0]


def test_the_same_fit_with_another_background_is_not_resumed(tmp_path):
    first = fit(background=STRANGE, checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointError, match="other data"):
        fit(background=MORE_STRANGE, checkpoint=tmp_path / "c")
    again = fit(background=STRANGE, checkpoint=tmp_path / "c")
    assert np.array_equal(first.logits(NEW), again.logits(NEW))


@pytest.mark.parametrize(
    ("background", "error", "words"),
    [
        (STRANGE[:, :3], InvalidInputError, "background"),
        (STRANGE[:1], InvalidInputError, "at least 2"),
        ((STRANGE, ["no"] * 80), InvalidTypeError, "alone"),
        (np.full((5, 4), np.nan), InvalidInputError, "background"),
    ],
)
def test_wrong_backgrounds_are_refused(background, error, words):
    with pytest.raises(error, match=words):
        fit(background=background)


def test_a_class_of_that_name_is_refused():
    X, y = draw(100, 0)
    with pytest.raises(InvalidInputError, match="Rename the class"):
        fit(X=X, y=np.where(y == "ant", "(background)", y), background=STRANGE)


def test_its_labels_are_ignored():
    labelled = LabelledStates(STRANGE, ["ant"] * 80, [f"r{number}" for number in range(80)])
    assert "background:r7" in fit(background=labelled).model_.examples.ids()


def test_the_command_takes_a_file(tmp_path):
    X, y = draw(800, 0)
    np.savez(tmp_path / "known.npz", hidden_states=X, labels=y)
    np.savez(tmp_path / "strange.npz", hidden_states=STRANGE)
    options = ["--alpha", "0.9", "--filters", "16", "--epochs", "12", "--learning-rate", "1e-2", "--seed", "0"]
    train = [
        *("train", str(tmp_path / "known.npz"), "-o", str(tmp_path / "model")),
        *("--background", str(tmp_path / "strange.npz")),
    ]
    trained = CliRunner().invoke(sdm, [*train, *options])
    assert trained.exit_code == 0, trained.output
    clf = SDMClassifier.load(tmp_path / "model")
    assert clf.model_.has_background
    assert clf.decide(MORE_STRANGE).background.mean() > 0.9


@pytest.mark.parametrize("how", ["class", "exemplars"])
def test_background_is_apart_from_all_other_sets(how):
    """Rows of X as background would keep their copies, held out to certify, from being admitted and counted wrong."""
    X, y = draw(800, 0)
    with pytest.raises(
        InvalidInputError, match=r"Already in the training set: 40 of the 40 points .*the background set"
    ):
        fit(X=X, y=y, background=X[:40], background_as=how)
    held_out = draw(200, 5)
    with pytest.raises(InvalidInputError, match="Already in the certification set: 40 of the 40 points"):
        SDMClassifier(background_as=how, **SETTINGS).fit(X, y, certification=held_out, background=held_out[0][:40])


def test_background_has_the_shape_of_x():
    X, y = draw(80, 0)
    with pytest.raises(InvalidInputError, match=r"'background' of .* shape \(2, 4\), like X. Got \(3, 4\)"):
        fit(X=np.stack([X] * 2, axis=1), y=y, background=np.stack([STRANGE] * 3, axis=1))
