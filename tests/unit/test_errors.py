"""The trees of exceptions and warnings, and remedies as values."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import pytest
import sklearn.exceptions

from torchsdm import errors
from torchsdm.errors import DataWarning, InvalidInputError, ModelFileError, Remedy, TorchSDMError, warn_user


def test_every_exception_and_warning_is_of_one_tree():
    raised = (c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, BaseException))
    classes = [c for c in raised if not c.__name__.startswith("_")]
    assert len(classes) >= 10
    for c in classes:
        assert issubclass(c, TorchSDMError) != issubclass(c, errors.SDMWarning), c
        assert c.__doc__


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (errors.InvalidInputError, ValueError),
        (errors.InvalidTypeError, TypeError),
        (errors.NotFittedError, sklearn.exceptions.NotFittedError),
        (errors.TrainingError, RuntimeError),
        (errors.CheckpointError, RuntimeError),
        (errors.ModelFileError, OSError),
        (errors.MissingExtraError, ImportError),
        (errors.SDMWarning, UserWarning),
    ],
)
def test_our_exceptions_are_also_the_usual_ones(ours, theirs):
    assert issubclass(ours, theirs)


def test_a_missing_extra_gives_the_pip_line():
    text = str(errors.MissingExtraError("pandas", "report", "Drawing"))
    assert text == "Drawing needs pandas, which is not installed. Run: pip install 'torchsdm[report]'"


@pytest.mark.parametrize("kind", [TorchSDMError, InvalidInputError, ModelFileError, errors.NotFittedError, DataWarning])
def test_the_text_ends_with_the_remedy(kind):
    plain, advising = kind("What."), kind("What.", remedy=Remedy.SKIP_PROBLEMS)
    assert (str(plain), plain.what, plain.remedy) == ("What.", "What.", None)
    assert str(advising) == f"What. {Remedy.SKIP_PROBLEMS.python}"
    assert (advising.what, advising.remedy) == ("What.", Remedy.SKIP_PROBLEMS)
    for again in (copy.copy(advising), pickle.loads(pickle.dumps(advising))):
        assert (type(again), str(again), again.remedy) == (kind, str(advising), advising.remedy)


def test_a_warning_keeps_its_remedy():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user("What.", DataWarning, Remedy.DROP_REPEATED)
        warn_user("What.", DataWarning)
    assert [one.message.remedy for one in caught] == [Remedy.DROP_REPEATED, None]
    assert all(one.filename == __file__ and one.category is DataWarning for one in caught)


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match=r"'torchsdm.errors' has no attribute 'FitError'"):
        errors.FitError  # noqa: B018
    assert errors.NotFittedError is errors.NotFittedError
    assert errors.NotFittedError.__module__ == "torchsdm.errors"
