"""The one exception that is also scikit-learn's, kept here so that ``torchsdm.errors`` does not import scikit-learn."""

from __future__ import annotations

import sklearn.exceptions

from torchsdm.errors import TorchSDMError


class NotFittedError(TorchSDMError, sklearn.exceptions.NotFittedError):
    """A method that needs a fitted estimator was called before ``fit``."""

    __module__ = "torchsdm.errors"  # where users import it from
