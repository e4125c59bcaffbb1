"""Labels as class numbers and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchsdm.errors import DataWarning, InvalidInputError
from torchsdm.labels import (
    LabelCodes,
    check_known_labels,
    check_pools,
    count_classes,
    label_array,
    near_miss,
    stripped_labels,
    warn_of_lookalikes,
)


@pytest.mark.parametrize(
    "classes",
    [np.array(["ant", "bee", "cat"]), np.array([-3, 0, 7]), np.array([0.5, 1.5, 2.0]), np.array([False, True])],
    ids=["strings", "integers", "floats", "booleans"],
)
def test_encoding_and_decoding_are_each_others_reverse(classes):
    codes = LabelCodes(classes)
    labels = classes[[1, 0, 1, -1]]
    numbers = codes.encode(labels, "fit")
    assert numbers.dtype == torch.int64
    assert numbers.tolist() == [1, 0, 1, len(classes) - 1]
    decoded = codes.decode(numbers)
    assert decoded == labels.tolist() and type(decoded[0]) is type(classes.tolist()[0])


def test_labels_outside_the_classes_follow_on():
    codes = LabelCodes(np.array(["ant", "bee"]))
    extended = codes.extended(["zoo", "ant", "yak", "zoo"], "add")
    assert extended.outside == ("zoo", "yak") and codes.outside == ()
    assert extended.extended(["yak", "elk"], "add").outside == ("zoo", "yak", "elk")  # known ones keep their number
    numbers = extended.encode(np.array(["yak", "bee", "zoo", "ant"]), "add", with_outside=True)
    assert numbers.tolist() == [3, 1, 2, 0]
    assert extended.decode(numbers) == ["yak", "bee", "zoo", "ant"]


def test_outside_labels_are_no_classes():
    codes = LabelCodes(np.array(["ant", "bee"])).extended(["zoo"], "add")
    with pytest.raises(
        InvalidInputError, match=r"'y' of fit must contain only labels seen in fit \('ant', 'bee'\). Got 'zoo'"
    ):
        codes.encode(np.array(["ant", "zoo"]), "fit")


def test_unseen_labels_are_listed_but_not_all_of_many():
    codes = LabelCodes(np.arange(20))
    with pytest.raises(InvalidInputError) as caught:
        codes.encode(np.arange(18, 30), "decide")
    assert "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more). Got 20, 21, 22, 23, 24 and 5 more." in str(caught.value)
    with pytest.raises(InvalidInputError, match="Got 99"):
        codes.encode(np.array([99]), "add", with_outside=True)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_label_is_no_label_outside_the_classes(missing):
    codes = LabelCodes(np.array([0.0, 1.0]))
    with pytest.raises(InvalidInputError, match=r"'y' of add must .*Got (None|nan); leave unlabelled"):
        codes.extended([0.0, missing], "add")


def test_classes_are_sorted_and_numbered():
    classes, numbers = count_classes(np.array(["b", "a", "c", "b", "c", "a"]), "fit")
    assert classes.tolist() == ["a", "b", "c"] and numbers.tolist() == [1, 0, 2, 1, 2, 0]


def test_one_class_is_too_few():
    with pytest.raises(InvalidInputError, match=r"'y' of fit must have at least two classes. Got one class only: 'a'"):
        count_classes(np.array(["a", "a"]), "'y' of fit")


def test_one_example_of_a_class_is_too_few():
    with pytest.raises(
        InvalidInputError, match=r"at least two examples of each class.*Got 1 of class .*'b'.*add examples"
    ):
        count_classes(np.array(["a", "a", "b", "c", "c"]), "fit")


def test_labels_beside_each_other_keep_their_types():
    assert label_array([1, "a", 2], "here").tolist() == [1, "a", 2]
    assert label_array([1, 2], "here").dtype.kind == "i" and label_array(["a", "b"], "here").dtype.kind == "U"
    for nothing in (None, float("nan"), [1]):
        with pytest.raises(InvalidInputError, match=r"here, row 2: a label must be"):
            label_array([1, nothing], "here")


@pytest.mark.parametrize(
    "labels", [["World", "world"], ["New York", "NewYork"], ["World", "World "], ["straße", "STRASSE"]]
)
def test_names_that_differ_only_in_case_or_white_space_are_told_with_their_counts(labels):
    one, other = labels
    with pytest.warns(DataWarning) as told:
        warn_of_lookalikes(np.array([one] * 1200 + [other] * 3 + ["else"]), "train.csv")
    (warning,) = told
    said = str(warning.message)
    assert said.startswith("train.csv has classes whose names differ only in case or white space: ")
    assert f"{one!r} (1,200 examples)" in said and f"{other!r} (3 examples)" in said and "else" not in said


@pytest.mark.parametrize("labels", [["World", "word"], [0, 1], [1.0, 1.5], [True, False]])
def test_other_names_are_not_told(labels, recwarn):
    warn_of_lookalikes(np.array(labels), "train.csv")
    assert not recwarn


def test_labels_of_a_file_lose_surrounding_white_space():
    assert stripped_labels([" a b\t", 1, None]) == ["a b", 1, None]
    assert stripped_labels(np.array(["a ", "a"])).tolist() == ["a", "a"]
    numbers = np.array([1, 2])
    assert stripped_labels(numbers) is numbers and stripped_labels(None) is None


@pytest.mark.parametrize(
    ("label", "classes", "alike"),
    [
        ("Wrold", ["World", "Sports"], "World"),
        ("sports", ["World", "Sports"], "Sports"),
        ("WORLD ", ["World", "Sports"], "World"),
        ("science  fiction", ["Science fiction", "Sports"], "Science fiction"),
        ("1", [0, 1], 1),
        ("True", [False, True], True),
        ("spam", ["World", "Sports"], None),
        ("topic-2", ["topic-1", "topic-3"], None),
        ("11", ["1", "2"], None),
        ("es", ["en", "de"], None),
        (2, [0, 1], None),
    ],
)
def test_labels_that_look_like_a_class(label, classes, alike):
    assert near_miss(label, classes) == alike


def test_a_label_outside_the_classes_is_refused_with_the_class_that_it_looks_like():
    said = r"^new.jsonl: 'Wrold' \(1 example\) is not a class of the model; 'World' is\.$"
    with pytest.raises(InvalidInputError, match=said):
        check_known_labels(["World", "Wrold"], np.array(["Sports", "World"]), "new.jsonl", to="calibration")


def test_pools_are_numbered_by_class():
    pools = {"money": ["pay", "balance"], "travel": ["book"]}
    assert check_pools(pools, np.array(["balance", "book", "pay"]), "fit").tolist() == [0, 1, 0]
