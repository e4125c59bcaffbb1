"""Checks of user input: shape, dtype, finiteness, labels and alpha.

Every message has one form: the parameter and its caller, what is expected, what was got, what to do.
"""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError, TorchSDMError

Array: TypeAlias = "np.ndarray[Any, Any]"
ArrayLike: TypeAlias = "Array | Tensor | Sequence[Any]"
Shape: TypeAlias = "tuple[int | None, ...]"  # None stands for any length
RandomState: TypeAlias = "int | np.random.RandomState | np.random.Generator | None"

_ROWS_PER_CHECK = 4096


def as_tensor(
    value: ArrayLike | float,
    name: str,
    caller: str,
    *,
    kind: Literal["any", "real", "integer"] = "any",
    shape: Shape | None = None,
    like: Tensor | None = None,
) -> Tensor:
    """Turn an array, a tensor or a nested sequence into a tensor without copying where possible.

    'real' keeps float32 and float64, and every other numeric dtype becomes float32; 'integer' is for class numbers and
    indices, as int64: fractions are refused, not truncated. With a ``shape``, that is required; with ``like``, the
    result is where that tensor is.
    """
    tensor = value if isinstance(value, Tensor) else _from_array(value, name, caller)
    if shape is not None:
        check_shape(tensor, shape, name, caller)
    if kind == "real":
        if tensor.dtype.is_complex:
            raise InvalidTypeError(
                f"'{name}' of {caller} must be real. Complex data not supported: got {tensor.dtype}."
            )
        tensor = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    elif kind == "integer":
        whole = tensor.to(torch.int64)
        if (tensor.is_floating_point() or tensor.is_complex()) and not torch.equal(whole.to(tensor.dtype), tensor):
            raise InvalidInputError(f"'{name}' of {caller} must be integers. Got fractions or non-finite values.")
        tensor = whole
    return tensor if like is None else tensor.to(like.device)


def _from_array(value: Any, name: str, caller: str) -> Tensor:
    try:
        array = np.asarray(value)
        if array.ndim == 0:
            return torch.tensor(array.item(), dtype=torch.float64 if array.dtype.kind == "f" else None)
        if any(stride < 0 for stride in array.strides):
            array = array.copy()  # torch does not support negative strides
        if array.flags.writeable:
            return torch.from_numpy(array)
        with warnings.catch_warnings():  # read-only memory maps stay mapped: nothing here writes to its input
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"'{name}' of {caller} must be a numeric array or tensor. Got {type(value).__name__}: {error}"
        ) from error


def check_shape(tensor: Tensor, shape: Shape, name: str, caller: str) -> None:
    """Require a shape."""
    if tensor.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, tensor.shape, strict=True)):
        return
    expected = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
    raise InvalidInputError(f"'{name}' of {caller} must have shape {expected}. Got {tuple(tensor.shape)}.")


def check_range(tensor: Tensor, lowest: int, largest: int, name: str, caller: str) -> None:
    """Require integers from the lowest to the largest."""
    if len(tensor) and not lowest <= int(tensor.min()) <= int(tensor.max()) <= largest:
        got = f"{int(tensor.min())}..{int(tensor.max())}"
        raise InvalidInputError(f"'{name}' of {caller} must be in {lowest}..{largest}. Got {got}.")


def check_finite(tensor: Tensor, name: str, caller: str) -> None:
    """Require finite values; the error names the first bad row."""
    for start in range(0, len(tensor), _ROWS_PER_CHECK):
        block = tensor[start : start + _ROWS_PER_CHECK].float()  # values beyond float32 count as infinite
        if bool(torch.isfinite(block.sum())):
            continue  # a sum is finite only if every term is; it may overflow, so the rows decide
        finite = torch.isfinite(block.reshape(len(block), -1)).all(dim=1)
        if bool(finite.all()):
            continue
        row = start + int(torch.nonzero(~finite)[0])
        kind = "NaN" if bool(torch.isnan(block[row - start]).any()) else "infinity (inf)"
        raise InvalidInputError(
            f"'{name}' of {caller} must be finite. Got {kind}, first in row {row}; remove or repair such rows."
        )


def check_alpha(alpha: Any, caller: str) -> float:
    """Require a target accuracy in (0.5, 1]."""
    if isinstance(alpha, (np.ndarray, Tensor)) and alpha.ndim == 0:
        alpha = alpha.item()
    if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
        raise InvalidTypeError(f"'alpha' of {caller} must be a number in (0.5, 1]. Got {alpha!r}.")
    value = float(alpha)
    if not 0.5 < value <= 1.0:
        raise InvalidInputError(
            f"'alpha' of {caller} must be in (0.5, 1]. Got {alpha!r}; alpha is target accuracy, not miscoverage."
        )
    return value


def check_alphas(alpha: Any, caller: str) -> tuple[float, ...]:
    """Turn one alpha or several into a tuple, in the order given, without repeats."""
    if isinstance(alpha, Mapping):
        raise InvalidTypeError(
            f"'alpha' of {caller} must be one number or several. Got one for each class, which only SDMClassifier and "
            "SDMEnsemble take."
        )
    if isinstance(alpha, Iterable) and not isinstance(alpha, str) and getattr(alpha, "ndim", 1) == 1:
        values = tuple(dict.fromkeys(check_alpha(a, caller) for a in alpha))
        if not values:
            raise InvalidInputError(f"'alpha' of {caller} must have at least one value. Got an empty sequence.")
        return values
    return (check_alpha(alpha, caller),)


def check_positive(value: Any, name: str, caller: str, *, integer: bool = False, zero: bool = False) -> None:
    """Require a positive number, or an integer if asked; ``zero`` also allows 0."""
    kinds = numbers.Integral if integer else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "an integer" if integer else "a number"
        raise InvalidTypeError(f"'{name}' of {caller} must be {kind}. Got {value!r}.")
    number: Any = value
    if not (0 < number <= sys.float_info.max or (zero and number == 0)):  # NaN is neither
        bound = "at least 0" if zero else "positive"
        raise InvalidInputError(f"'{name}' of {caller} must be {bound}. Got {value!r}.")


def check_share(value: Any, name: str, caller: str) -> None:
    """Require a share or a probability in (0, 1)."""
    check_positive(value, name, caller)
    if value >= 1:
        raise InvalidInputError(
            f"'{name}' of {caller} must be in (0, 1). Got {value!r}; it is a share or a probability."
        )


def draw_seed(random_state: RandomState, name: str) -> int:
    """A seed from a scikit-learn ``random_state``; the same number gives every estimator the same seed."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"'random_state' of {name} must be a seed or a random number generator: {error}."
        ) from error


def check_device(device: Any, caller: str) -> str:
    """A torch device that this machine has; None means the CPU."""
    name = "cpu" if device is None else str(device)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise InvalidInputError(
            f"'device' of {caller} must be a torch device on this machine. Got {device!r}: {reason}"
        ) from error
    return name


def check_path(path: Any, name: str, caller: str) -> Path:
    """A path, given as a string or a ``Path``."""
    if not isinstance(path, (str, Path)):
        raise InvalidTypeError(f"'{name}' of {caller} must be a path. Got {path!r}.")
    return Path(path)


def check_choice(value: Any, choices: Sequence[Any], name: str, caller: str) -> None:
    """Require one of a few values."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInputError(f"'{name}' of {caller} must be one of {listed}. Got {value!r}.")


def check_hidden_states(
    estimator: Any, X: Any, caller: str, *, reset: bool, empty: bool = False, pooled: bool = False
) -> Tensor:
    """Hidden states (N, D) or, unless ``pooled``, (N, positions, D) as a finite tensor that shares memory if possible.

    With ``reset`` the estimator stores the width (``n_features_in_``); without, X must have it. With ``empty``, X may
    have no rows; an empty list is then as good as an array (0, D).
    """
    if empty and ((isinstance(X, (list, tuple)) and not X) or getattr(X, "shape", None) == (0,)):
        X = no_states(estimator)
    if isinstance(X, Tensor):
        if X.layout != torch.strided:
            raise InvalidTypeError(
                f"'X' of {caller} must be a dense tensor: sparse data was passed. Call X.to_dense()."
            )
        X = X.detach().cpu()
        X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    _refuse_text(X, caller)
    with scikit_learn_errors():
        if isinstance(X, (list, tuple)):
            X = np.asarray(X)
        n_axes = getattr(X, "ndim", 2)
        if n_axes > 3:
            raise InvalidInputError(
                f"'X' of {caller} must have shape (N, D) or (N, positions, D). Got {tuple(X.shape)}."
            )
        options: Any = {"dtype": "numeric", "ensure_all_finite": False, "ensure_min_samples": 0 if empty else 1}
        if n_axes == 3:
            states = as_tensor(np.asarray(X), "X", caller)
            as_tensor(states[:1], "X", caller, kind="real")  # refuses complex values
            if min(states.shape[empty:]) == 0:
                raise InvalidInputError(f"'X' of {caller} must not be empty. Got shape {tuple(states.shape)}.")
            validate_data(estimator, states[:, 0].numpy(), reset=reset, **options)
        else:
            states = as_tensor(validate_data(estimator, X, reset=reset, **options), "X", caller)
    check_finite(states, "X", caller)
    if pooled and states.ndim != 2:
        raise InvalidInputError(
            f"'X' of {caller} must have shape (N, D). Got {tuple(states.shape)}; pool the positions first."
        )
    if reset:
        estimator.input_ndim_ = states.ndim
    elif states.ndim != getattr(estimator, "input_ndim_", states.ndim):
        shapes = {2: "(N, D)", 3: "(N, positions, D)"}
        raise InvalidInputError(
            f"'X' of {caller} must have the shape used in fit, {shapes[estimator.input_ndim_]}. "
            f"Got {tuple(states.shape)}."
        )
    return states


def no_states(estimator: Any) -> Array:
    """The hidden states of no inputs, in the shape that an estimator was fitted on."""
    return np.empty((0, *(1,) * (estimator.input_ndim_ - 2), estimator.n_features_in_), dtype=np.float32)


def _refuse_text(X: Any, caller: str) -> None:
    """Tell a user who passes texts, a path or a table with a text column what X should be."""
    if isinstance(X, (str, Path)):
        raise InvalidTypeError(
            f"'X' of {caller} must be a matrix of hidden states. Got the path or text {str(X)!r}; read a file with "
            "numpy.load or torchsdm.read_states first."
        )
    if isinstance(X, (list, tuple)) and X and isinstance(X[0], str):
        raise InvalidTypeError(
            f"'X' of {caller} must be hidden states, one row of numbers per input. Got texts, first {X[0][:60]!r}; "
            "run them through a language model first."
        )
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        for name in X.columns:
            values = X[name].to_numpy()
            if values.dtype == object and any(isinstance(value, str) for value in values):
                raise InvalidTypeError(f"'X' of {caller} must be numbers. Got texts in column {name!r}; drop it.")


def check_label_array(y: Any, caller: str, n: int | None = None) -> Array:
    """Labels of any type that scikit-learn accepts, as a one-dimensional array; one for each of n inputs, if given."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if y is None:
        raise InvalidInputError(
            f"'y' of {caller} must contain labels: {caller} requires y to be passed, but the target y is None."
        )
    with scikit_learn_errors():
        is_loose = isinstance(y, (list, tuple)) or (isinstance(y, np.ndarray) and y.dtype.kind == "O")
        if is_loose and len({isinstance(label, str) for label in y if label is not None}) == 2:
            raise InvalidInputError(f"'y' of {caller} must be strings or numbers, not both. Got a mixture.")
        labels: Array = column_or_1d(y, warn=True)
        if labels.dtype == object and None in labels.tolist():
            row = labels.tolist().index(None)
            raise InvalidInputError(
                f"'y' of {caller} must contain labels. Got None, first in row {row}; leave unlabelled points out."
            )
        assert_all_finite(labels, estimator_name=caller, input_name="y")
        check_classification_targets(labels)
    if n is not None:
        check_same_length(n, labels, "y", caller)
    return labels


def is_storable_text(text: Any) -> bool:
    """Whether a value is a string that UTF-8 can encode (a lone surrogate is not)."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


def check_person(who: Any) -> str:
    """The name of the person who decides, which is required."""
    if not is_storable_text(who) or not who.strip():
        raise InvalidInputError("'who' is required: name the person who decides.")
    return str(who.strip())


def is_storable_id(name: Any) -> bool:
    """Whether a value can name a point: a string that UTF-8 can encode, or a 64-bit integer."""
    if isinstance(name, str):
        return is_storable_text(name)
    return isinstance(name, int) and not isinstance(name, bool) and abs(name) < 2**63


def is_storable_label(label: Any) -> bool:
    """Whether a value can be a label: a string that UTF-8 can encode, a finite number or a boolean."""
    if isinstance(label, str):
        return is_storable_text(label)
    return isinstance(label, int) or (isinstance(label, float) and math.isfinite(label))


def as_list(values: Any, name: str, caller: str) -> list[Any]:
    """A list of plain Python values, each keeping its own type."""
    if isinstance(values, (list, tuple, range)):
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise InvalidTypeError(f"'{name}' of {caller} must be a one-dimensional sequence. Got {values!r}.")
    return list(array.tolist())


def check_same_length(n: int, values: Any, name: str, caller: str) -> None:
    """Require one value per input."""
    if len(values) != n:
        raise InvalidInputError(f"'{name}' of {caller} must have one value for each of {n} inputs. Got {len(values)}.")


def require_fitted(estimator: Any, learned: str, method: str = "decide") -> None:
    """Require that an estimator has learned something before a method is called."""
    if not hasattr(estimator, learned):
        raise NotFittedError(f"This {type(estimator).__name__} is not fitted yet: call fit before {method}.")


def check_groups(groups: Any, n: int, caller: str) -> Array:
    """The number of the group of each row (N,), from names of any type that can be compared."""
    names = as_list(groups, "groups", caller)
    check_same_length(n, names, "groups", caller)
    missing = [row for row, name in enumerate(names) if name is None or name != name]  # NaN is unlike itself
    if missing:
        raise InvalidInputError(f"'groups' of {caller} must name a group for every row. Got {names[missing[0]]!r}.")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if len(numbers) < 2:
        raise InvalidInputError(f"'groups' of {caller} must name at least two groups. Got {len(numbers)}.")
    return np.array([numbers[name] for name in names], dtype=np.int64)


@contextmanager
def scikit_learn_errors() -> Iterator[None]:
    """Re-raise scikit-learn's errors in our exception tree, message unchanged."""
    try:
        yield
    except TorchSDMError:
        raise
    except TypeError as error:
        raise InvalidTypeError(str(error)) from error
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
