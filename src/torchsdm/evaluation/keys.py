"""The key of the estimator in a row of results: its basis, and the rule by which it admits.

Tables show names, for readers. Code that depends on the estimator, such as which rows a claim covers, uses its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """How an estimator admits. The value, also its ``str``, is its name in tables."""

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
    CERTIFIED = "certified"
    """The certificate of the SDM classifier itself; the others below are scores of its logits, certified alike."""
    CERTIFIED_SOFTMAX = "certified softmax"
    CERTIFIED_TEMPERATURE = "certified temp."
    CERTIFIED_ENERGY = "certified energy"

    def __str__(self) -> str:
        return self.value


class Basis(Enum):
    """Where an estimator's logits come from: the language model itself, or a model trained on its hidden states."""

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
    """Basis and rule of an estimator; None if the estimator is not one of those listed."""

    basis: Basis | None = None
    rule: Rule | None = None
    kl_factor: float | None = None
    """The factor of the KL term of a Bayesian last layer."""


UNLISTED = EstimatorKey()  #: the key of any other estimator
