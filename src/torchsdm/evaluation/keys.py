"""Which estimator a row of results is of, as values: what it stands on, and the rule by which it admits.

Tables show names, for readers. What depends on the estimator, such as which rows a claim is about, looks at its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """How an estimator admits. The value, which is also its ``str``, is what tables call it."""

    NO_REJECT = "no reject"
    SOFTMAX = "softmax ≥ α"
    TEMPERATURE = "temperature ≥ α"
    APS = "APS"
    RAPS = "RAPS"
    VBLL = "VBLL ≥ α"
    ADAPTOR_SOFTMAX = "softmax(z′) ≥ α"
    DISTANCE_SOFTMAX = "softmax(d·z′) ≥ α"
    SDM = "sdm(z′) ≥ α"
    REGION = "SDM_HR"
    REGION_LOWER = "SDM_HR lower"

    def __str__(self) -> str:
        return self.value


class Basis(Enum):
    """What gives an estimator its logits: the language model itself, or something trained over its hidden states."""

    LANGUAGE_MODEL = "language model"
    CNN = "CNN"
    DISCRIMINATIVE_VBLL = "discriminative VBLL"
    GENERATIVE_VBLL = "generative VBLL"
    SDM = "SDM"
    IDENTITY_SDM = "identity SDM"
    """SDM with the identity in place of the adaptor g."""
    ALL_ROUNDS = "all rounds of SDM"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class EstimatorKey:
    """Basis and rule of an estimator; None where the estimator is not one of those listed."""

    basis: Basis | None = None
    rule: Rule | None = None
    kl_factor: float | None = None
    """The factor of the KL term of a Bayesian last layer."""


UNLISTED = EstimatorKey()  #: the key of any other estimator
