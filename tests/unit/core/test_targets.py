"""Targets: one alpha, several, or one for each class."""

from __future__ import annotations

import numpy as np
import pytest

from torchsdm.core.targets import (
    by_number,
    capped,
    check_alpha_setting,
    check_target,
    check_targets,
    largest,
    smallest,
    target_of,
)
from torchsdm.errors import InvalidInputError, InvalidTypeError, TorchSDMError
from torchsdm.validation import check_alphas

NAMES = np.array(["ham", "spam"])


def test_a_mapping_is_one_target_in_the_order_of_the_classes():
    assert check_targets({"spam": 0.99, "ham": 0.9}, NAMES, "fit") == ((0.9, 0.99),)
    assert check_targets({"spam": 0.9, "ham": 0.9}, NAMES, "fit") == (0.9,)
    assert check_targets((0.9, 0.95), NAMES, "fit") == (0.9, 0.95)
    assert check_targets(0.9, NAMES, "fit") == (0.9,)


def test_classes_may_be_named_by_their_text():
    assert check_targets({"0": 0.9, "1": 0.8}, np.array([0, 1]), "fit") == ((0.9, 0.8),)
    assert check_targets({0: 0.9, 1: 0.8}, np.array([0, 1]), "fit") == ((0.9, 0.8),)


@pytest.mark.parametrize(
    ("alpha", "words"),
    [
        ({"ham": 0.9, "spma": 0.99}, r"Got 'spma', which is not one. Did you mean 'spam'\?"),
        ({"ham": 0.9}, "must name every class. Nothing was given for 'spam'"),
        ({}, "must name every class"),
        ({"ham": 0.9, "spam": 0.3}, "must be in"),
        ({"ham": 0.9, "spam": "high"}, "must be a number"),
    ],
)
def test_a_mapping_names_every_class_and_no_other(alpha, words):
    with pytest.raises(TorchSDMError, match=words):
        check_targets(alpha, NAMES, "fit")


def test_several_alphas_and_a_mapping_do_not_mix():
    with pytest.raises(InvalidInputError, match="several numbers or one for each class, not both"):
        check_alpha_setting({"ham": (0.9, 0.95), "spam": 0.9}, "fit")
    with pytest.raises(InvalidTypeError, match="must be a number"):
        check_alpha_setting([{"ham": 0.9}, 0.95], "fit")
    with pytest.raises(InvalidTypeError, match="only SDMClassifier and SDMEnsemble take"):
        check_alphas({"ham": 0.9, "spam": 0.95}, "APS.fit")


def test_a_sequence_has_one_for_each_class():
    assert check_target([0.9, 0.8], 2, "f") == (0.9, 0.8)
    assert check_target(np.array([0.9, 0.9]), 2, "f") == 0.9
    with pytest.raises(InvalidInputError, match="one per class, 2"):
        check_target([0.9, 0.8, 0.7], 2, "f")


def test_what_stands_for_a_target():
    target = (0.9, 0.99)
    assert (smallest(target), largest(target), smallest(0.8), largest(0.8)) == (0.9, 0.99, 0.8, 0.8)
    assert (target_of(target, 1), target_of(target, None), target_of(0.8, 1)) == (0.99, 0.9, 0.8)
    assert by_number(target, 2).tolist() == [0.9, 0.99] and by_number(0.8, 3).tolist() == [0.8] * 3
    assert capped(target, 0.95) == (0.9, 0.95) and capped(0.8, 0.95) == 0.8
