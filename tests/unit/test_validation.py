"""Checks of user input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

from torchsdm.errors import InvalidInputError, InvalidTypeError, TorchSDMError, TrainingError
from torchsdm.validation import (
    as_tensor,
    check_alpha,
    check_alphas,
    check_choice,
    check_finite,
    check_hidden_states,
    check_label_array,
    check_positive,
    check_same_length,
    check_shape,
    is_storable_text,
    scikit_learn_errors,
)

# --- Tensors ---------------------------------------------------------------------------------------------------------


def test_arrays_share_memory():
    array = np.arange(6.0).reshape(2, 3)
    assert as_tensor(array, "x", "f").data_ptr() == array.ctypes.data
    array.flags.writeable = False
    assert as_tensor(array, "x", "f").data_ptr() == array.ctypes.data
    tensor = torch.arange(3)
    assert as_tensor(tensor, "x", "f") is tensor


def test_read_only_arrays_give_no_warning(recwarn):
    array = np.arange(6.0)
    array.flags.writeable = False
    assert as_tensor(array, "x", "f").tolist() == array.tolist()
    assert len(recwarn) == 0


def test_reversed_and_strided_arrays():
    array = np.arange(6).reshape(2, 3)
    assert as_tensor(array[::-1, ::-1], "x", "f").tolist() == [[5, 4, 3], [2, 1, 0]]
    assert as_tensor(array[:, ::2], "x", "f").tolist() == [[0, 2], [3, 5]]


def test_a_number_keeps_its_value():
    assert as_tensor(0.1, "x", "f").item() == 0.1  # float32 has no 0.1
    assert as_tensor(np.float64(0.1), "x", "f").item() == 0.1
    assert as_tensor(7, "x", "f").item() == 7


@pytest.mark.parametrize("value", ["text", [[1, 2], [3]], ["a", "b"], [None], {"a": 1}, object()])
def test_what_is_no_numeric_array_is_refused(value):
    with pytest.raises(InvalidTypeError, match=r"'x' of f must be a numeric array or tensor. Got "):
        as_tensor(value, "x", "f")


def test_float_tensors():
    for dtype in (torch.float32, torch.float64):
        tensor = torch.ones(2, dtype=dtype)
        assert as_tensor(tensor, "x", "f", kind="real") is tensor
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool):
        assert as_tensor(torch.ones(2, dtype=dtype), "x", "f", kind="real").dtype == torch.float32
    with pytest.raises(InvalidTypeError, match="'x' of f must be real"):
        as_tensor(np.array([1j]), "x", "f", kind="real")


def test_integer_tensors():
    assert as_tensor([1.0, -2.0], "x", "f", kind="integer").tolist() == [1, -2]
    assert as_tensor(np.array([True, False]), "x", "f", kind="integer").tolist() == [1, 0]
    assert as_tensor(np.array([3], dtype=np.int8), "x", "f", kind="integer").dtype == torch.int64
    for bad in ([0.5], [math.nan], [math.inf]):
        with pytest.raises(InvalidInputError, match=r"'x' of f must be integers. Got fractions or non-finite"):
            as_tensor(bad, "x", "f", kind="integer")


def test_shapes():
    check_shape(torch.zeros(2, 3), (None, 3), "x", "f")
    check_shape(torch.zeros(0), (None,), "x", "f")
    for shape, got, text in (
        ((None, 3), (2, 4), r"\(any, 3\). Got \(2, 4\)"),
        ((5,), (4,), r"\(5,\). Got \(4,\)"),
        ((None,), (4, 1), r"\(any,\). Got \(4, 1\)"),
        ((None, None), (), r"\(any, any\). Got \(\)"),
    ):
        with pytest.raises(InvalidInputError, match=f"'x' of f must have shape {text}"):
            check_shape(torch.zeros(got), shape, "x", "f")


# --- Finiteness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [0, 5, 4095, 4096, 9999])
@pytest.mark.parametrize(("value", "kind"), [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")])
def test_the_first_row_that_is_not_finite_is_named(row, value, kind):
    tensor = torch.zeros(10_000, 2)
    tensor[row:, 1] = value
    with pytest.raises(
        InvalidInputError, match=rf"'x' of f must be finite. Got {kind}.*, first in row {row}; remove or"
    ):
        check_finite(tensor, "x", "f")


def test_opposite_infinities_are_seen():
    with pytest.raises(InvalidInputError, match=r"infinity .*first in row 1"):
        check_finite(torch.tensor([[1.0, 1.0], [math.inf, -math.inf]]), "x", "f")


def test_positions_belong_to_their_row():
    states = torch.zeros(4, 3, 2)
    states[2, 1, 0] = math.nan
    with pytest.raises(InvalidInputError, match="first in row 2;"):
        check_finite(states, "x", "f")


def test_large_values_whose_sum_overflows_are_finite():
    check_finite(torch.full((4, 4), 3e38), "x", "f")
    check_finite(torch.empty(0, 3), "x", "f")


def test_what_float32_cannot_hold_is_infinite_to_us():
    with pytest.raises(InvalidInputError, match=r"Got infinity .*first in row 1"):
        check_finite(torch.tensor([[1.0], [1e39]], dtype=torch.float64), "x", "f")


# --- Numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.500001, 0.95, 1.0, 1, np.float32(0.75)])
def test_alphas_in_range(alpha):
    assert check_alpha(alpha, "f") == float(alpha)


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0, -0.9, 1.0000001, 95, math.nan, math.inf])
def test_alphas_out_of_range(alpha):
    message = r"'alpha' of f must be in \(0.5, 1\]. Got .*; alpha is target accuracy, not miscoverage"
    with pytest.raises(InvalidInputError, match=message):
        check_alpha(alpha, "f")
    with pytest.raises(InvalidInputError, match=message):
        check_alphas([0.9, alpha], "f")


@pytest.mark.parametrize("alpha", [None, "high", "0.9", [0.9], {}, True, np.array([0.9]), 0.9j])
def test_alphas_that_are_no_numbers(alpha):
    with pytest.raises(InvalidTypeError, match=r"'alpha' of f must be a number in \(0.5, 1\]"):
        check_alpha(alpha, "f")


def test_several_alphas_keep_their_order_without_repeats():
    assert check_alphas([0.9, 0.7, 0.9, 0.8], "f") == (0.9, 0.7, 0.8)
    assert check_alphas(np.array([0.6, 1.0]), "f") == (0.6, 1.0)
    assert check_alphas(0.9, "f") == (0.9,)
    with pytest.raises(InvalidInputError, match=r"'alpha' of f must have at least one value. Got an empty sequence"):
        check_alphas([], "f")


@pytest.mark.parametrize("alpha", [np.array(0.9), torch.tensor(0.9, dtype=torch.float64)])
def test_one_alpha_as_an_array_without_axes(alpha):
    assert check_alphas(alpha, "f") == (0.9,)


def test_positive_numbers():
    check_positive(3, "k", "f", integer=True)
    check_positive(np.int32(3), "k", "f", integer=True)
    check_positive(1e-9, "lr", "f")
    check_positive(0, "k", "f", integer=True, zero=True)
    for value in (0, -1, 0.0, math.nan, math.inf):
        with pytest.raises(InvalidInputError, match=f"'lr' of f must be positive. Got {value!r}"):
            check_positive(value, "lr", "f")
    with pytest.raises(InvalidInputError, match=r"'k' of f must be at least 0. Got -1"):
        check_positive(-1, "k", "f", integer=True, zero=True)
    for value in (2.0, "3", None, True):
        with pytest.raises(InvalidTypeError, match=f"'k' of f must be an integer. Got {value!r}"):
            check_positive(value, "k", "f", integer=True)
    with pytest.raises(InvalidTypeError, match=r"'lr' of f must be a number. Got '1'"):
        check_positive("1", "lr", "f")


def test_choices():
    check_choice("a", ("a", "b"), "kind", "f")
    with pytest.raises(InvalidInputError, match=r"'kind' of f must be one of 'a', 'b'. Got 'c'"):
        check_choice("c", ("a", "b"), "kind", "f")


def test_lengths():
    check_same_length(2, "ab", "texts", "f")
    with pytest.raises(InvalidInputError, match=r"'texts' of f must have one value for each of 3 inputs. Got 2"):
        check_same_length(3, "ab", "texts", "f")


# --- Hidden states and labels ----------------------------------------------------------------------------------------


def hidden_states(X, width=None):
    estimator = BaseEstimator()
    if width is not None:
        estimator.n_features_in_ = width
    states = check_hidden_states(estimator, X, "fit", reset=width is None)
    return states, estimator


def test_states_of_any_kind(tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for X in (array, array.tolist(), torch.from_numpy(array), torch.from_numpy(array).requires_grad_(), mapped):
        states, estimator = hidden_states(X)
        assert np.array_equal(states.numpy(), array) and estimator.n_features_in_ == 3
    assert hidden_states(mapped)[0].data_ptr() == mapped.ctypes.data  # still mapped
    assert hidden_states(array)[0].data_ptr() == array.ctypes.data
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int32):
        assert hidden_states(torch.from_numpy(array).to(dtype))[0].tolist() == array.tolist()


def test_states_with_positions():
    X = np.arange(24.0).reshape(2, 4, 3)
    states, estimator = hidden_states(X)
    assert np.array_equal(states.numpy(), X) and estimator.n_features_in_ == 3
    assert torch.equal(hidden_states(torch.from_numpy(X), width=3)[0], states)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((0, 3)), r"0 sample\(s\)"),
        (np.zeros((3, 0)), r"0 feature\(s\)"),
        (np.zeros((2, 0, 3)), r"'X' of fit must not be empty. Got shape \(2, 0, 3\)"),
        (np.zeros(3), "Expected 2D array, got 1D array"),
        (np.zeros((1, 1, 1, 1)), r"must have shape \(N, D\) or \(N, positions, D\)"),
        ([["a", "b"]], "a"),
        ([[1.0, 2.0], [3.0]], "inhomogeneous"),
        (np.zeros((2, 3)) * 1j, "Complex data not supported"),
        (np.zeros((2, 2, 3)) * 1j, "[Cc]omplex"),
        ([[1.0, math.nan]], "'X' of fit must be finite. Got NaN, first in row 0"),
        (np.full((2, 2, 2), math.inf), "'X' of fit must be finite. Got infinity"),
    ],
)
def test_bad_states_are_refused(X, message):
    with pytest.raises(TorchSDMError, match=message):
        hidden_states(X)


@pytest.mark.parametrize("shape", [(2, 4), (2, 2, 4)])
def test_another_width_is_refused(shape):
    with pytest.raises(InvalidInputError, match="X has 4 features, but BaseEstimator is expecting 3 features"):
        hidden_states(np.zeros(shape), width=3)


def test_labels_of_any_kind():
    for y in (["b", "a"], np.array([1, 0]), torch.tensor([1, 0]), [True, False], np.array(["x", "y"], dtype=object)):
        expected = y.tolist() if isinstance(y, (np.ndarray, torch.Tensor)) else y
        assert check_label_array(y, "fit").tolist() == expected


@pytest.mark.parametrize("y", [None, [0.5, 1.25], [[1, 0], [0, 1]], np.array([1, "a"], dtype=object), [1.0, math.nan]])
def test_bad_labels_are_refused(y):
    with pytest.raises(InvalidInputError):
        check_label_array(y, "fit")


def test_a_missing_label_is_said_to_be_missing():
    with pytest.raises(TorchSDMError, match=r"(?i)'y' of fit.*None|missing|unlabelled"):
        check_label_array(np.array(["a", None, "b"], dtype=object), "fit")


def test_texts_that_a_file_can_hold():
    assert is_storable_text("Grüße, 世界 🙂") and is_storable_text("")
    for value in ("\ud800", b"bytes", 3, None):
        assert not is_storable_text(value)


def test_sparse_tensors_are_refused_with_a_remedy():
    with pytest.raises(InvalidTypeError, match=r"'X' of fit must be a dense tensor.*to_dense"):
        hidden_states(torch.eye(3).to_sparse())


def test_nested_lists_with_positions():
    X = np.arange(24.0).reshape(2, 4, 3)
    assert np.array_equal(hidden_states(X.tolist())[0].numpy(), X)


def test_scikit_learns_errors_become_ours():
    for theirs, ours in ((ValueError, InvalidInputError), (TypeError, InvalidTypeError)):
        with pytest.raises(ours, match="what it said") as caught, scikit_learn_errors():
            raise theirs("what it said")
        assert isinstance(caught.value.__cause__, theirs)
    with pytest.raises(TrainingError), scikit_learn_errors():
        raise TrainingError
    with pytest.raises(KeyError), scikit_learn_errors():
        raise KeyError


def test_an_estimator_need_not_know_the_shape_of_its_fit():
    estimator = BaseEstimator()
    estimator.n_features_in_ = 3
    assert check_hidden_states(estimator, np.zeros((1, 2, 3)), "decide", reset=False).shape == (1, 2, 3)
