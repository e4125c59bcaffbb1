"""Changes from plain values, as a service gets them."""

from __future__ import annotations

import numpy as np
import pytest

from torchsdm.application import SavedModel, change_requests
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import Add, Recalibrate, Relabel, Remove

STATES = [[0.0] * 4, [1.0] * 4]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    from torchsdm import SDMClassifier

    rng, labels = np.random.default_rng(0), np.arange(120) % 2
    X = (rng.normal(size=(120, 4)) + 2.0 * labels[:, None]).astype(np.float32)
    path = tmp_path_factory.mktemp("plain") / "model"
    SDMClassifier(0.8, n_filters=4, n_rounds=1, training="sdm", max_epochs=2, random_state=0).fit(X, labels).save(path)
    return SavedModel.load(path)


def test_each_kind_of_change(saved):
    add, calibration, relabel, remove, recalibrate = change_requests(
        saved,
        [
            {"what": "add", "hidden_states": STATES, "labels": [0, 1], "ids": ["a", "b"], "keep_repeated": True},
            {"what": "add_calibration", "hidden_states": STATES[:1], "labels": [1]},
            {"what": "relabel", "ids": ["a"], "labels": [1]},
            {"what": "remove", "ids": ["b"]},
            {"what": "recalibrate", "alpha": {"0": 0.8, "1": 0.9}, "min_class_count": 3},
        ],
    )
    assert isinstance(add, Add) and (add.to, add.repeated) == ("support", "keep")
    assert np.array_equal(add.data.hidden_states, STATES) and (add.data.labels, add.data.ids) == ([0, 1], ["a", "b"])
    assert isinstance(calibration, Add) and (calibration.to, calibration.repeated) == ("calibration", "refuse")
    assert calibration.data.ids is None
    assert relabel == Relabel(["a"], [1]) and remove == Remove(["b"])
    assert recalibrate == Recalibrate({"0": 0.8, "1": 0.9}, 3, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"what": "explode"}, "'what' must be"),
        ({"what": "add", "hidden_states": STATES, "labels": [0]}, "labels: there must be 2"),
        ({"what": "add", "hidden_states": STATES, "labels": [0, 1], "ids": ["a"]}, "ids: there must be 2"),
        (
            {"what": "add", "hidden_states": STATES, "labels": [0, 9]},
            r"9 \(1 example\) is not a class of the model. To allow it: allow_new_labels=True",
        ),
        (
            {"what": "add", "hidden_states": STATES, "labels": [0, "1"]},
            r"'1' \(1 example\) is not a class of the model; 1 is.",
        ),
        (
            {"what": "add_calibration", "hidden_states": STATES, "labels": [0, 9], "allow_new_labels": True},
            r"9 \(1 example\) is not a class of the model\.$",
        ),
        ({"what": "relabel", "ids": ["a"], "labels": ["x"]}, r"'x' \(1 example\) is not a class"),
        ({"what": "add", "hidden_states": [[1.0, np.inf, 0.0, 0.0]], "labels": [0]}, "NaN or infinity"),
        ({"what": "add", "texts": ["a"], "labels": [0]}, "trained on states only"),
    ],
)
def test_what_cannot_be_meant_is_refused(saved, change, said):
    with pytest.raises(InvalidInputError, match=said):
        change_requests(saved, [change])


def test_a_label_outside_the_classes_can_be_meant(saved):
    change = {"what": "add", "hidden_states": STATES, "labels": [0, "spam"], "allow_new_labels": True}
    (add,) = change_requests(saved, [change])
    assert add.data.labels == [0, "spam"]
