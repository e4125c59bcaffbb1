"""What a classifier itself decides on a data set: signals, lanes and reasons, kept without values per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchsdm.core import Decisions, SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.estimators import SDMClassifier, SDMEnsemble

ROWS_AT_ONCE = 8192  #: inputs whose decisions are in memory with all values per class


def blocks_of(data: LabelledStates) -> Iterator[LabelledStates]:
    """The rows of a data set, some at a time."""
    for start in range(0, len(data), ROWS_AT_ONCE):
        rows = range(start, min(start + ROWS_AT_ONCE, len(data)))
        yield data if len(rows) == len(data) else data.take(rows)


@dataclass(frozen=True)
class OwnDecisions:
    """A classifier's decisions on a data set.

    Fields per class have one column, that of the prediction; of sample sizes, the smallest. So ``magnitude`` and
    ``min_sample_size`` are what they were, and a row takes the same memory for any number of classes.
    """

    by_policy: SDMDecisions
    """Admitted by the policy of the classifier, with lanes and reasons."""
    at_alpha: SDMDecisions
    """At one alpha; the same object if the classifier has no other."""

    @classmethod
    def of(cls, classifier: SDMClassifier | SDMEnsemble, data: LabelledStates, alpha: float) -> OwnDecisions:
        """Decide on a data set, a block of rows at a time."""
        blocks = (classifier.decide(block.hidden_states) for block in blocks_of(data))
        return cls.concatenate([cls.condensed(decisions, alpha) for decisions in blocks])

    @classmethod
    def condensed(cls, decisions: SDMDecisions, alpha: float) -> OwnDecisions:
        """What is kept of decisions."""
        at_alpha, kept = decisions.at(alpha), _condensed(decisions)
        return cls(kept, kept if at_alpha is decisions else _condensed(at_alpha))

    @classmethod
    def concatenate(cls, parts: Sequence[OwnDecisions]) -> OwnDecisions:
        """The rows of several, one after the other."""
        by_policy = Decisions.concatenate([part.by_policy for part in parts])
        if parts[0].at_alpha is parts[0].by_policy:
            return cls(by_policy, by_policy)
        return cls(by_policy, Decisions.concatenate([part.at_alpha for part in parts]))


def _condensed(decisions: SDMDecisions) -> SDMDecisions:
    return replace(
        decisions,
        probabilities=decisions.confidence[:, None],
        logits=decisions.magnitude[:, None],
        effective_sample_sizes=decisions.min_sample_size[:, None],
    )
