"""Explanations: neighbours and partitions computed again, naively."""

from __future__ import annotations

import json

import pytest
import torch

import reference
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.model.explanation import PARTITION_WIDTH

K = 3


@pytest.fixture
def explanations(fitted, insects):
    return fitted.explain(insects.fresh, k=K)


def test_the_decision_is_that_of_decide(fitted, insects, explanations):
    assert [explanation.decision for explanation in explanations] == fitted.decide(insects.fresh).to_dicts()


def test_exemplars_are_the_nearest_training_examples(fitted, insects, explanations):
    model = fitted.model_
    exemplars, _ = model.adaptor.encode_exactly(torch.from_numpy(insects.fresh))
    support = model.support.exemplars.tolist()
    ids, texts = model.examples.all()
    position = {name: row for row, name in enumerate(insects.ids)}
    for query, explanation in zip(exemplars.tolist(), explanations, strict=True):
        distances, indices = reference.neighbors(query, support, K)
        assert [point.index for point in explanation.exemplars] == indices
        assert [point.distance for point in explanation.exemplars] == pytest.approx(distances, rel=1e-12)
        for point in explanation.exemplars:
            row = position[point.id]  # of X
            assert point.id == ids[point.index] and point.text == texts[point.index] == insects.texts[row]
            assert point.label == insects.y[row]
            assert point.prediction == fitted.predict(insects.X[row : row + 1])[0]
            prediction = explanation.decision["prediction"]
            assert point.vouches == (point.label == point.prediction == prediction)


def test_leading_matches_are_the_similarity(explanations):
    for explanation in explanations:
        run = 0
        while run < K and explanation.exemplars[run].vouches:
            run += 1
        assert run == min(K, explanation.decision["similarity"])


def naive_partition(fitted, decision):
    """Calibration points of the same prediction, whose q' (as a mid-rank among them) and d differ by at most 0.1."""
    calibration = fitted.model_.calibration
    lists = reference.class_distances(
        calibration.nearest_distance.tolist(), calibration.similarity.tolist(), calibration.labels.tolist(), 3
    )
    quantiles = [reference.distance_quantile(x, lists) for x in calibration.nearest_distance.tolist()]
    number = fitted.classes_.tolist().index(decision["prediction"])
    same = [i for i, row in enumerate(calibration.logits.tolist()) if row.index(max(row)) == number]
    values = calibration.rescaled_similarity.tolist()

    def rank(value):
        return sum((values[i] < value) + (values[i] <= value) for i in same) / (2 * len(same))

    own = rank(decision["rescaled_similarity"])
    difference = {i: max(abs(rank(values[i]) - own), abs(quantiles[i] - decision["distance_quantile"])) for i in same}
    inside = sorted((i for i in same if difference[i] <= PARTITION_WIDTH), key=lambda i: difference[i])
    correct = [calibration.labels[i].item() == number for i in inside]
    return inside, (sum(correct) / len(correct) if correct else None), quantiles


def test_partition_is_that_of_the_naive_search(fitted, insects, explanations):
    ids, texts = fitted.model_.calibration.known.examples.all()
    calibration = fitted.model_.calibration
    sizes = set()
    for explanation in explanations:
        inside, accuracy, quantiles = naive_partition(fitted, explanation.decision)
        assert explanation.partition_size == len(inside)
        assert explanation.partition_accuracy == pytest.approx(accuracy)
        assert [point.index for point in explanation.calibration_points] == inside[:K]
        for point in explanation.calibration_points:
            i = point.index
            assert (point.id, point.text) == (ids[i], texts[i])
            assert point.label == insects.y[insects.ids.index(point.id)] == fitted.classes_[calibration.labels[i]]
            assert point.prediction == explanation.decision["prediction"]
            assert point.rescaled_similarity == calibration.rescaled_similarity[i].item()
            assert point.distance_quantile == quantiles[i]
        sizes.add(len(inside))
    assert max(sizes) > K and len(sizes) > 3


def test_calibration_points_are_not_in_the_support(fitted):
    assert not set(fitted.model_.calibration.known.examples.all()[0]) & set(fitted.model_.examples.all()[0])


def test_an_empty_partition(fitted, insects):
    far = fitted.explain(insects.fresh[-3:], k=2)
    for explanation in far:
        inside, accuracy, _ = naive_partition(fitted, explanation.decision)
        assert explanation.partition_size == len(inside) and explanation.partition_accuracy == accuracy
    model = fitted.model_
    predicted = model.calibration.predictions
    number = fitted.classes_.tolist().index(far[0].decision["prediction"])
    model.calibration.logits[predicted == number] = model.calibration.logits[predicted == number].roll(1, dims=1)
    explanation = fitted.explain(insects.fresh[-3:-2])[0]  # no calibration point has its prediction any more
    assert explanation.calibration_points == () and explanation.partition_size == 0
    assert explanation.partition_accuracy is None
    assert "no calibration point shares its partition" in str(explanation)


def test_more_neighbours_than_points_are_all_points(fitted, insects):
    explanation = fitted.explain(insects.fresh[:1], k=10_000)[0]
    assert len(explanation.exemplars) == len(fitted.support_)
    assert len(explanation.calibration_points) == explanation.partition_size


def test_dictionary_is_strict_json(explanations):
    for explanation in explanations:
        back = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
        assert {name: back[name] for name in explanation.decision} == explanation.decision
        assert [point["id"] for point in back["exemplars"]] == [point.id for point in explanation.exemplars]
        assert [point["vouches"] for point in back["exemplars"]] == [point.vouches for point in explanation.exemplars]
        assert back["partition_size"] == explanation.partition_size


def test_dictionary_holds_no_more_than_was_asked_for(explanations):
    for explanation in explanations:
        whole, less = explanation.to_dict(), explanation.to_dict(calibration=False, texts=False)
        assert set(whole) - set(less) == {"calibration_points", "partition_size", "partition_accuracy"}
        for point, quiet in zip(whole["exemplars"], less["exemplars"], strict=True):
            assert point == {**quiet, "text": point["text"]} and point["text"].startswith("text ")
            assert "text" not in quiet
        for point in explanation.to_dict(texts=False)["calibration_points"]:
            assert "text" not in point


def test_text_says_what_the_decision_rests_on(explanations):
    admitted = next(e for e in explanations if e.decision["admitted"])
    far = explanations[-1]
    text = str(admitted)
    assert text.startswith(f"{admitted.decision['prediction']!r}: admitted, trusted: {admitted.decision['reason']}\n")
    assert f"similarity q {admitted.decision['similarity']}" in text
    for point in admitted.exemplars:
        assert f"{'+' if point.vouches else '-'} id {point.id!r}: label {point.label!r}" in text and point.text in text
    assert f"{admitted.partition_size} calibration points share its partition, " in text
    assert f"{admitted.partition_accuracy:.1%} of them correct" in text
    assert f": rejected, unfamiliar: {far.decision['reason']}\n" in str(far)


def test_k_must_be_a_positive_integer(fitted, insects):
    with pytest.raises(InvalidInputError, match=r"'k' of SDMClassifier.explain must be positive. Got 0"):
        fitted.explain(insects.fresh, k=0)
    with pytest.raises(InvalidTypeError, match=r"'k' of SDMClassifier.explain must be an integer. Got 2.5"):
        fitted.explain(insects.fresh, k=2.5)
