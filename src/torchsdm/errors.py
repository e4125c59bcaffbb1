"""The exceptions and warnings of torchsdm: one tree each, so that one ``except`` or filter catches all."""

from __future__ import annotations

import sys
import warnings

import sklearn.exceptions


class TorchSDMError(Exception):
    """Base of every exception that torchsdm raises on purpose."""


class InvalidInputError(TorchSDMError, ValueError):
    """A value cannot be used; the message says which, what was got, and what to do."""


class InvalidTypeError(TorchSDMError, TypeError):
    """An argument is of a type that cannot be used."""


class NotFittedError(TorchSDMError, sklearn.exceptions.NotFittedError):
    """A method that needs a fitted estimator was called before ``fit``."""


class TrainingError(TorchSDMError, RuntimeError):
    """Training cannot go on, for example because the loss is no longer finite."""


class CheckpointError(TorchSDMError, RuntimeError):
    """A checkpoint cannot be resumed: it is damaged, or belongs to other data or settings."""


class ModelFileError(TorchSDMError, OSError):
    """A saved model is missing, damaged, truncated or foreign; the message names the file."""


class BackboneError(TorchSDMError, RuntimeError):
    """A language model cannot be found, loaded or used, or is not the one that a classifier was fitted on."""


class MissingSignalError(TorchSDMError, AttributeError):
    """Decisions of an estimator that is not SDM were asked for a signal of SDM."""


class MissingExtraError(TorchSDMError, ImportError):
    """An optional dependency is not installed; the message gives the pip line."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed. Run: pip install 'torchsdm[{extra}]'")


class SDMWarning(UserWarning):
    """Base of every warning that torchsdm gives."""


class DataWarning(SDMWarning):
    """Documents can be used, but something about them deserves a look, such as copies of one text."""


class RegionWarning(SDMWarning):
    """No high-reliability region was found, or it rests on too few calibration points."""


class EmptyClassWarning(SDMWarning):
    """A class has no calibration points to build its distance eCDF from: every distance quantile is 0."""


def warn_user(message: str, category: type[SDMWarning]) -> None:
    """Warn at the line of the user's code that led here, however deep in the library we are."""
    depth = 1
    while sys._getframe(depth).f_globals.get("__name__", "").partition(".")[0] == "torchsdm":
        depth += 1
    warnings.warn(message, category, stacklevel=depth + 1)
