"""The exceptions and warnings of torchsdm: one tree each, so that one ``except`` or filter catches all.

Advice is a value, a ``Remedy``: Python names arguments, the command ``sdm`` names options.
"""

from __future__ import annotations

import sys
import warnings
from enum import Enum
from importlib import import_module, metadata
from typing import Any

_LONGEST = 2000  # characters of a text


class Remedy(Enum):
    """What the user can do about an error or a warning, then how: in Python, and with the command."""

    SKIP_PROBLEMS = "Fix or skip them:", "Documents(..., problems='skip')", "sdm embed --skip-problems, or no --strict"
    DROP_REPEATED = "Drop duplicates:", "Documents(..., repeated='drop'), or 'keep'", "sdm embed --drop-repeated"
    KEEP_REPEATED = "To keep them on purpose:", "repeated='keep'", "--keep-repeated"
    NAME_ARRAYS = "Name the right one:", "states= or labels=", "--states or --label"
    LOWER_ALPHA = "To accept it:", "recalibrate(alpha=...)", "sdm recalibrate MODEL --alpha ALPHA"
    COARSER_CONTROL = "With few examples, promise alpha over all answers:", "control='all'", "--control all"
    POOLED_CONTROL = "With few examples, pool small classes:", "control='pooled'", "--control pooled"
    GIVE_LABELLED = "Give labelled", "X and y", "DATA"
    COUNT_CERTIFICATION = "Say what you will certify with:", "n_certification labelled points", "labelled DATA"
    CERTIFY_AGAIN = "Certify it again:", "recertify(X, y), or recalibrate()", "sdm certify or sdm recalibrate"
    DECIDE_AGAIN = "Decide with the model as it is:", "SDMClassifier.decide", "sdm predict MODEL INPUT -o DECISIONS"
    SAME_STATES = "Make all states in the same way:", "a scikit-learn Pipeline transforms X alone", "sdm embed"
    FEWER_FOLDS = "Add examples, leave the class out, or use fewer folds (at least 2):", "n_folds", "--folds"
    OTHER_FOLDS = "Draw other folds, or more:", "random_state, n_folds", "--seed, --folds"
    MORE_CALIBRATION = "Use more calibration data, or reject such regions:", "min_class_count", "--min-class-count"
    GIVE_STATES = "Give", "hidden_states instead", "states as INPUT instead"
    EXTRACT_STATES = "Extract their states with the same language model:", "HiddenStateExtractor", "sdm embed"
    NAME_LABELS = "Name their column:", "Columns(label=...)", "--label NAME"
    NAME_LANGUAGE_MODEL = "Name a language model to read them:", "an extractor", "--language-model NAME"
    NO_LANGUAGE_MODEL = "Leave out", "the language model", "--language-model"
    ALLOW_NEW_LABELS = "To allow it:", "allow_new_labels=True", "--allow-new-labels"
    AUDIT_LABELS = "See which of them are probably wrong:", "audit_labels(X, y)", "sdm audit DATA"
    CERTIFY_NEW = "Certify with labelled data that nothing else has seen:", "recertify(X, y)", "sdm certify MODEL DATA"
    REPLACE_MODEL = "To replace it:", "overwrite=True", "--overwrite"
    WRITE_ANYWAY = "To write it anyway:", "force=True", "--force"

    def __init__(self, what: str, python: str, shell: str) -> None:
        self.python, self.shell = f"{what} {python}.", f"{what} {shell}."


class _Advising(Exception):
    """What exceptions and warnings share: a text and, optionally, a remedy."""

    def __init__(self, *args: object, remedy: Remedy | None = None) -> None:
        super().__init__(*args)
        self.remedy = remedy

    @property
    def what(self) -> str:
        """The text without the remedy; of one that quotes very long input, the beginning and the end."""
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} […] {text[-_LONGEST // 2 :]}"

    def __str__(self) -> str:
        return self.what if self.remedy is None else f"{self.what} {self.remedy.python}"


class TorchSDMError(_Advising):
    """Base of every exception that torchsdm raises on purpose."""


class InvalidInputError(TorchSDMError, ValueError):
    """A value cannot be used; the message says which, what was got, and what to do."""


class EmptyInputError(InvalidInputError):
    """A file or a list has no rows."""


class InvalidTypeError(TorchSDMError, TypeError):
    """An argument is of a type that cannot be used."""


class TrainingError(TorchSDMError, RuntimeError):
    """Training cannot continue, for example because the loss is no longer finite."""


class CheckpointError(TorchSDMError, RuntimeError):
    """A checkpoint cannot be resumed: it is damaged, or belongs to different data or settings."""


class ModelFileError(TorchSDMError, OSError):
    """A saved model is missing, damaged, truncated or not ours; the message names the file."""


class ModelInUseError(TorchSDMError, RuntimeError):
    """Somebody else is changing a saved model; the message says who, since when, and in which process."""


class BackboneError(TorchSDMError, RuntimeError):
    """A language model cannot be found, loaded or used, or is not the one that a classifier was fitted on."""


class ClusterError(TorchSDMError, RuntimeError):
    """A cluster cannot be reached, or lost more than it could make up for."""


class MissingSignalError(TorchSDMError, AttributeError):
    """A signal of SDM was requested from the decisions of another estimator."""


class MissingExtraError(TorchSDMError, ImportError):
    """An optional dependency is not installed; the message gives the pip line."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed. Run: pip install 'torchsdm[{extra}]'")


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """A module that an extra installs; without it, an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.partition(".")[0], extra, purpose) from error


def installed_version(package: str) -> str | None:
    """The version of a package; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class SDMWarning(_Advising, UserWarning):
    """Base of every warning that torchsdm issues."""


class DataWarning(SDMWarning):
    """Documents can be used, but something about them deserves a look, such as duplicate texts."""


class CopiesWarning(DataWarning):
    """Rows of the data are copies of others: many of them, or with other labels."""


class RegionWarning(SDMWarning):
    """There is no high-reliability region, or it is based on too few calibration points."""


class NoRegionWarning(RegionWarning):
    """No high-reliability region was found."""


class CertificateWarning(SDMWarning):
    """A certificate no longer holds, or promises less than it says."""


class NoCertificateWarning(CertificateWarning):
    """No rule could be certified."""


class OverlapWarning(CertificateWarning):
    """A few certification points are in another set, too."""


class EmptyClassWarning(SDMWarning):
    """A class has no calibration points to build its distance eCDF from: every distance quantile is 0."""


def worded(said: Exception | str) -> str:
    """An error or a warning with its remedy as options of the command."""
    if isinstance(said, _Advising) and said.remedy is not None:
        return f"{said.what} {said.remedy.shell}"
    return str(said)


def warn_user(said: str | SDMWarning, category: type[SDMWarning] = SDMWarning, remedy: Remedy | None = None) -> None:
    """Warn at the line of the user's code that led here, however deep in the library we are."""
    depth = 1
    while sys._getframe(depth).f_globals.get("__name__", "").partition(".")[0] == "torchsdm":
        depth += 1
    warnings.warn(category(said, remedy=remedy) if isinstance(said, str) else said, stacklevel=depth + 1)


NotFittedError: type[TorchSDMError]


def __getattr__(name: str) -> Any:
    """The one exception that is also scikit-learn's, made when first used: scikit-learn takes seconds to import."""
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sklearn.exceptions

    class NotFittedError(TorchSDMError, sklearn.exceptions.NotFittedError):
        """A method that needs a fitted estimator was called before ``fit``."""

    NotFittedError.__qualname__ = name  # so that it can be pickled by name
    return globals().setdefault(name, NotFittedError)
