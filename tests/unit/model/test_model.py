"""One fitted model: its examples, its calibration, and what updates change and leave alone."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import numpy as np
import pytest
import torch

import reference
from small import quiet, small_settings
from torchsdm import SDMClassifier, SupportSet
from torchsdm.errors import CertificateWarning, InvalidInputError, RegionWarning
from torchsdm.model import directory
from torchsdm.model import examples as stored_examples
from torchsdm.model import model as model_module
from torchsdm.model.calibration import Calibration
from torchsdm.model.examples import Examples
from torchsdm.model.model import Points

# --- Examples --------------------------------------------------------------------------------------------------------


def test_examples_in_memory():
    examples = Examples.of(["a", 7, "c"], ["x", None, "z"])
    assert examples.rows([2, 0]) == [("c", "z"), ("a", "x")]
    assert examples.all() == (["a", 7, "c"], ["x", None, "z"])
    assert examples.positions([7, "none", "a"]) == [1, None, 0]
    assert examples.take([2, 1]).all() == (["c", 7], ["z", None])
    assert examples.without({0, 2}).all() == ([7], [None])
    assert Examples.of(np.array([1, 2])).all() == ([1, 2], [None, None])


def test_added_examples_follow():
    examples = Examples.of(["a", 7], ["x", "y"])
    assert examples.with_added(Examples.of(["n", 8], ["new", None])).all() == (
        ["a", 7, "n", 8],
        ["x", "y", "new", None],
    )
    assert examples.all() == (["a", 7], ["x", "y"])  # unchanged


def test_examples_in_parts_are_as_good_as_in_one_list():
    names, texts = [*range(55), "a", "b"], [f"text {i % 50}" if i % 7 else None for i in range(57)]
    whole, parted = Examples.of(names, texts), Examples.of(names[:40], texts[:40])
    for start, stop in ((40, 40), (40, 52), (52, 56), (56, 57)):
        before = list(parted.ids())
        more = parted.with_added(Examples.of(names[start:stop], texts[start:stop]))
        assert parted.ids() == before  # unchanged
        parted = more
    assert len(parted.parts) == 4 and len(parted) == len(whole) == 57
    assert parted.all() == whole.all() and parted.ids() == names
    everywhere = [56, 0, 39, 40, 51, 52, 55]
    assert parted.rows(everywhere) == whole.rows(everywhere)
    wanted = ["b", 55, 0, 53, 40, "c"]
    assert parted.positions(wanted) == whole.positions(wanted) == [56, None, 0, 53, 40, None]
    wanted = ["text 1", "text 3", "text 45", "text 5", "none"]
    assert parted.positions_of_texts(wanted) == whole.positions_of_texts(wanted) == [51, 53, 45, 55, None]
    assert parted.largest_number() == whole.largest_number() == 54
    for gone in ({0}, {56}, set(range(40)), {3, 41, 53}, set(range(1, 57))):
        assert parted.without(gone).all() == whole.without(gone).all()
    assert len(parted) == 57
    assert Examples.of(["a"]).largest_number() == -1


def test_examples_on_disk_are_as_good(fitted, insects, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    for here, there in (
        (fitted.model_.examples, loaded.model_.examples),
        (fitted.model_.calibration.known.examples, loaded.model_.calibration.known.examples),
    ):
        assert there.all() == here.all()
        assert there.rows([5, 0]) == here.rows([5, 0])
        ids = here.all()[0]
        assert there.positions([ids[3], "none", ids[0]]) == [3, None, 0]
        assert there.take([4, 2]).all() == here.take([4, 2]).all()
        assert there.without({0}).all() == here.without({0}).all()
        assert there.with_added(Examples.of(["n"])).all() == here.with_added(Examples.of(["n"])).all()
        texts = here.all()[1]
        wanted = [texts[3], "none", texts[0]]
        assert there.positions_of_texts(wanted) == here.positions_of_texts(wanted) == [3, None, 0]
        assert len(there) == len(here) and there.largest_number() == here.largest_number()


def test_a_text_on_disk_is_found_where_it_was_last_and_among_equal_hashes(tmp_path, monkeypatch):
    path, texts = tmp_path / "examples.sqlite", ["x", None, "y", "x", "z"]
    rows = zip(["a", 7, "b", 12, "c"], ["label"] * 5, texts, strict=True)
    directory._write_table(path, rows)
    stored = Examples.stored(path)
    assert stored.positions_of_texts(["x", "y", "none"]) == [3, 2, None] and stored.positions_of_texts([]) == []
    assert stored.largest_number() == 12 and len(stored) == 5
    monkeypatch.setattr(stored_examples, "_hashes", lambda texts, n: np.zeros(len(list(texts)), dtype=np.int64))
    assert Examples.stored(path).positions_of_texts(["x", "y", "none", "z"]) == [3, 2, None, 4]
    directory._write_table(tmp_path / "words.sqlite", [("a", 0, "x"), ("10", 0, "y")])
    assert Examples.stored(tmp_path / "words.sqlite").largest_number() == -1  # "10" is not a number


# --- Calibration -----------------------------------------------------------------------------------------------------


def naive_calibration(model):
    """q', probabilities of the calibration set against the support, by the loops."""
    calibration, support = model.calibration, model.support
    logits, labels = calibration.logits.tolist(), calibration.labels.tolist()
    predictions = [row.index(max(row)) for row in logits]
    matches = reference.match(
        calibration.known.points.exemplars.tolist(),
        predictions,
        support.exemplars.tolist(),
        support.labels.tolist(),
        support.predictions.tolist(),
    )
    lists = reference.class_distances(matches.nearest_distance, matches.similarity, labels, len(logits[0]))
    d = [reference.distance_quantile(x, lists) for x in matches.nearest_distance]
    p = [reference.sdm_activation(*row) for row in zip(logits, matches.similarity, d, strict=True)]
    rescaled = [
        reference.rescaled_similarity(q, row[y]) for q, row, y in zip(matches.similarity, p, predictions, strict=True)
    ]
    return matches, d, p, rescaled


def assert_calibrated(model):
    calibration = model.calibration
    matches, d, p, rescaled = naive_calibration(model)
    assert calibration.similarity.tolist() == matches.similarity
    assert calibration.nearest_distance.tolist() == pytest.approx(matches.nearest_distance, rel=1e-12)
    assert calibration.distance_quantile.tolist() == d
    assert calibration.rescaled_similarity.tolist() == pytest.approx(rescaled, rel=1e-12)
    for region in calibration.regions:
        expected = reference.find_high_reliability_region(
            calibration.rescaled_similarity.tolist(), p, calibration.labels.tolist(), region.alpha
        )
        assert region.found == expected.found
        assert region.min_rescaled_similarity == pytest.approx(expected.min_rescaled_similarity)
        assert region.thresholds.tolist() == pytest.approx(expected.thresholds, rel=1e-10)
        assert region.class_counts.tolist() == expected.class_counts


def test_calibration_equals_the_loops(fitted):
    assert_calibrated(fitted.model_)
    assert [region.alpha for region in fitted.regions_] == [0.9, 0.8]


def test_new_alphas_change_the_regions_alone(fitted):
    model = fitted.model_
    before = model.calibration
    model.recalibrate([0.7, 0.99], 0)
    assert any("alpha=0.99" in warning.what for warning in model.calibration.warnings())
    after = model.calibration
    assert [(region.alpha, region.found) for region in after.regions] == [(0.7, True), (0.99, False)]
    assert after.ecdfs is before.ecdfs and after.rescaled_similarity is before.rescaled_similarity
    assert_calibrated(model)


def test_weak_regions_are_told(fitted):
    with pytest.warns(RegionWarning, match="No high-reliability region at alpha=0.9; everything is rejected. Class '"):
        fitted.recalibrate(0.9, min_class_count=1000)
    calibration = fitted.model_.calibration
    assert not calibration.regions[0].found and calibration.min_class_count == 1000
    (told,) = calibration.warnings(certified=True)
    assert "region at alpha=0.9; no answer is trusted, but the certificate admits." in told.what
    with pytest.warns(RegionWarning, match=r"is based on few calibration points of class '.*fewer than 10"):
        fitted.recalibrate(0.9, min_class_count=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CertificateWarning)  # which there never was
        warnings.simplefilter("error", RegionWarning)
        fitted.recalibrate(0.7)  # nothing to say


def test_a_calibration_set_of_ones_own(insects):
    with quiet():
        classifier = SDMClassifier(alpha=0.7, **small_settings(n_filters=6, max_epochs=3))
        classifier.fit(insects.X[:150], insects.y[:150], calibration=(insects.X[150:], insects.y[150:]))
    model = classifier.model_
    assert len(model.support) == 150 and len(model.calibration.labels) == 90
    assert classifier.classes_[model.calibration.labels.numpy()].tolist() == insects.y[150:].tolist()
    assert_calibrated(model)


# --- Asking ----------------------------------------------------------------------------------------------------------


def test_support_and_calibration_are_encoded_as_decisions_are(fitted, insects):
    model = fitted.model_
    for points, labels, examples in (
        (model.support.exemplars, model.support.labels, model.examples),
        (model.calibration.known.points.exemplars, model.calibration.labels, model.calibration.known.examples),
    ):
        rows = [insects.ids.index(name) for name in examples.all()[0]]
        exemplars, _ = model.adaptor.encode_exactly(torch.from_numpy(insects.X[rows]))
        assert torch.equal(points, exemplars)
        assert fitted.classes_[labels.numpy()].tolist() == insects.y[rows].tolist()


def test_decide_in_blocks_is_decide(fitted, insects, monkeypatch):
    states = torch.from_numpy(insects.fresh)
    whole, *neighbors = fitted.model_.decide_with_neighbors(states, 3)
    exemplars, _ = fitted.model_.adaptor.encode_exactly(states)
    for got, expected in zip(neighbors, fitted.support_.neighbors(exemplars, 3), strict=True):
        assert torch.equal(got, expected)
    monkeypatch.setattr(model_module, "_ROWS_AT_ONCE", 7)
    again, *blocks = fitted.model_.decide_with_neighbors(states, 3)
    assert all(torch.equal(a, b) for a, b in zip(blocks, neighbors, strict=True))
    for name, value in whole._columns():
        np.testing.assert_array_equal(value, getattr(again, name), err_msg=name)
    assert fitted.model_.predict(states).tolist() == whole.logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_decision_does_not_depend_on_its_batch(fitted, insects, threads):
    whole = fitted.decide(insects.fresh)
    torch.set_num_threads(threads)
    for size in (1, 7):
        for start in range(0, 40, 13):
            part = fitted.decide(insects.fresh[start : start + size])
            for name, value in part._columns():
                np.testing.assert_array_equal(value, getattr(whole, name)[start : start + size], err_msg=name)


# --- Updates ---------------------------------------------------------------------------------------------------------


def untouched(model):
    calibration = model.calibration
    return [*model.adaptor.state_dict().values(), calibration.rescaled_similarity, *calibration.ecdfs.sorted_distances]


def test_updates_leave_weights_ecdfs_and_region(fitted, insects):
    model = copy.deepcopy(fitted.model_)
    before = copy.deepcopy(untouched(model))
    regions = model.calibration.regions
    model.add(model.encoded(torch.from_numpy(insects.fresh), torch.full((40,), 3), Examples.of(range(40))))
    assert len(model.support) == 160 and model.outdated
    model.relabel([0, 5], torch.tensor([2, 9]))
    model.remove([1, 2])
    assert all(torch.equal(a, b) for a, b in zip(untouched(model), before, strict=True))
    assert model.calibration.regions == regions


def test_recalibration_after_updates_is_calibration_against_the_new_support(fitted, insects):
    model = fitted.model_
    model.add(model.encoded(torch.from_numpy(insects.fresh[:20]), torch.full((20,), 3), Examples.of(range(20))))
    model.relabel([0, 5, 7], torch.tensor([2, 9, 1]))
    model.remove([1, 2])
    with quiet():
        model.recalibrate([0.9, 0.8], 0)
    assert not model.outdated
    assert_calibrated(model)
    fresh = SupportSet(model.support.exemplars, model.support.labels, model.support.predictions)
    known = model.calibration
    with quiet():
        anew = Calibration.of(known.known, fresh, [0.9, 0.8], 0)
    for field in dataclasses.fields(anew):
        if isinstance(getattr(anew, field.name), torch.Tensor):
            assert torch.equal(getattr(anew, field.name), getattr(known, field.name)), field.name


def test_added_points_are_found_and_shorten_similarity(fitted, insects):
    model = fitted.model_
    states = torch.from_numpy(insects.fresh[:1])
    before = model.decide(states)
    assert before.similarity[0] > 0
    odd = Examples.of(["odd"], ["a stranger"])
    model.add(model.encoded(states, torch.tensor([3]), odd))  # a label outside the classes, at distance 0
    after = model.decide(states)
    assert after.similarity[0] == 0 and after.nearest_distance[0] == 0.0 and after.nearest_index[0] == 120
    assert model.examples.rows([120]) == [("odd", "a stranger")]
    model.remove([120])
    again = model.decide(states)
    assert again.similarity[0] == before.similarity[0] and again.nearest_index[0] == before.nearest_index[0]


def test_relabelling_by_position_goes_to_the_named_example(fitted):
    names = fitted.model_.examples.all()[0]
    fitted.relabel_exemplars([names[4], names[9]], ["bee", "wasp"], allow_new_labels=True)
    labels = fitted._codes.decode(fitted.model_.support.labels)
    assert labels[4] == "bee" and labels[9] == "wasp"
    fitted.remove_exemplars([names[4]])
    assert names[4] not in fitted.model_.examples.all()[0]
    assert fitted._codes.decode(fitted.model_.support.labels)[8] == "wasp"


def test_a_refused_update_changes_nothing(fitted, insects):
    model = fitted.model_
    support, names = len(model.support), list(model.examples.all()[0])
    unlabelled = model.encoded(torch.from_numpy(insects.fresh[:2]), torch.tensor([0, -1]), Examples.of(["a", "b"]))
    with pytest.raises(InvalidInputError):
        model.add(unlabelled)
    with pytest.raises(InvalidInputError):
        model.remove(range(support))
    assert len(model.support) == support and model.examples.all()[0] == names and not model.outdated


def test_numbers_of_added_points_are_free_in_the_calibration_set_too(insects):
    with quiet():
        for seed in range(3):
            classifier = SDMClassifier(
                alpha=0.7, n_filters=4, n_rounds=1, training="sdm", max_epochs=1, random_state=seed
            )
            classifier.fit(insects.X[:40], insects.y[:40])
            classifier.add_exemplars(insects.X[40:42], insects.y[40:42])
            model = classifier.model_
            assert not set(model.examples.all()[0]) & set(model.calibration.known.examples.all()[0])


def test_a_loaded_model_still_explains_after_an_update_was_saved_over_it(fitted, insects, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    names = loaded.model_.examples.all()[0]
    loaded.relabel_exemplars([names[0]], ["wasp"], allow_new_labels=True)
    loaded.save(tmp_path / "model")
    expected = [point.id for point in fitted.explain(insects.fresh[:1])[0].exemplars]
    assert [point.id for point in loaded.explain(insects.fresh[:1])[0].exemplars] == expected


def test_ids_live_once(fitted, insects):
    classifier = fitted
    assert classifier.support_.ids.tolist() == classifier.model_.examples.ids()
    assert set(classifier.support_.ids) <= set(insects.ids)
    classifier.add_exemplars(insects.fresh[:2], ["ant", "bee"], ids=["new-0", "new-1"])
    assert classifier.support_.ids.tolist()[-2:] == ["new-0", "new-1"]
    classifier.remove_exemplars(["new-0"])
    assert classifier.support_.ids.tolist() == classifier.model_.examples.ids()
    assert len(classifier.support_.ids) == len(classifier.support_)


def test_ids_of_a_loaded_model_are_those_of_its_examples(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.support_.ids.tolist() == fitted.support_.ids.tolist()


# --- Points that a model knows ----------------------------------------------------------------------------------------


def test_a_model_knows_its_points_by_exemplar_and_by_text(fitted, insects, monkeypatch):
    monkeypatch.setattr(model_module, "_ROWS_AT_ONCE", 7)
    states, model = torch.from_numpy(insects.X), fitted.model_
    rows = {"support": fitted.training_rows_, "calibration": fitted.calibration_rows_}
    has = model.has_points(states)
    assert {name: np.flatnonzero(found).tolist() for name, found in has.items()} == {
        name: sorted(numbers.tolist()) for name, numbers in rows.items()
    }
    np.testing.assert_array_equal(has["support"], fitted.decide(insects.X).nearest_distance == 0)
    fresh, position = torch.from_numpy(insects.fresh[:3]), int(fitted.calibration_rows_[0])
    assert not any(found.any() for found in model.has_points(fresh).values())
    found = model.has_points(fresh, ["no", insects.texts[position], None])
    assert found["calibration"].tolist() == [False, True, False] and not found["support"].any()
    model.certify_with(Points([fresh[1:]], torch.tensor([0, 1]), Examples.of(["x", "y"], ["a", "no"])))
    assert model.has_points(fresh)["certification"].tolist() == [False, True, True]
    assert model.has_points(fresh, ["no", "b", "c"])["certification"].tolist() == [True, True, True]
