"""What a report opens with: one sentence per data set, how its inputs fall into lanes, and what to do next.

A sentence promises only what the certificate does. Where the inputs are of another kind, or nothing is certified, it
says what was seen instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import bdtrc

from torchsdm.core import SDMDecisions
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy, selective_accuracy
from torchsdm.evaluation.strangers import CLASSES, OUTSIDE, FreshGuards
from torchsdm.settings import LANES, REJECTED
from torchsdm.trust import Certificate
from torchsdm.wording import STANDINGS, STEPS, counted, group_name, often, percent, promise_or_why, verdict

PROMISED, DRIFTED, MISSED, OUTSIDERS, UNPROMISED = STANDINGS
_DOUBT = 0.01  # probability of finding a promise missed where it holds, over all of its groups


@dataclass(frozen=True)
class Verdict:
    """One data set in words, and in lanes."""

    name: str
    standing: str
    sentence: str
    detail: str
    lanes: dict[str, int]
    """How many inputs are in each lane; those that could not be read are ``rejected``."""
    n_admitted: int


def verdicts(
    evaluation: Evaluation,
    classifier: SDMClassifier | SDMEnsemble,
    decided: Mapping[str, SDMDecisions],
    guards: FreshGuards | None = None,
) -> list[Verdict]:
    """One verdict per data set, by what the classifier itself decides; ``guards`` are its."""
    guards = guards or FreshGuards(classifier)
    return [_verdict(evaluation, guards, name, decisions) for name, decisions in decided.items()]


def _verdict(evaluation: Evaluation, guards: FreshGuards, name: str, decisions: SDMDecisions) -> Verdict:
    classifier = guards.classifier
    certificate, kind = promise_of(classifier), evaluation.kinds[name]
    n_unread = evaluation.unread.get(name, 0)
    alphas = () if certificate is None else certificate.class_alphas
    accuracy = selective_accuracy(decisions, evaluation.data_sets[name].labels, n_unread, alphas)
    admitted, seen = accuracy.marginal, _seen(accuracy)
    if kind == OUTSIDE:
        standing, details = OUTSIDERS, [_counts(admitted)]
    elif certificate is None:
        standing, details = UNPROMISED, [promise_text(classifier, classifier.policy), seen]
    else:
        sample = counted(certificate.n_certification, "certification point")
        shuffled = np.random.default_rng(0).permutation(len(decisions))  # a data set is no stream
        if guards.alarm(decisions[shuffled])[0] is not None:
            standing, details = DRIFTED, [f"The drift guard tells them from the {sample}.", seen]
        elif kind == CLASSES and (below := _missed(accuracy, certificate)) is not None:
            standing, details = MISSED, [below, seen]
        else:
            standing, details = PROMISED, [seen]
            if kind == CLASSES:
                details.append(f"The promise is about inputs like the {sample}.")
            elif (at := guards.alarm(decisions)[0]) is not None:  # inputs without labels may well be a stream
                details.append(f"In the order of the file, the drift guard is raised at input {at:,}: look there.")
    promise = None if certificate is None else certificate.promise(classifier.classes_.tolist())
    sentence = verdict(standing, admitted.n_admitted, admitted.n_total, promise, is_labelled=kind == CLASSES)
    in_lanes = {lane: int(np.sum(decisions.lane == lane)) for lane in LANES} | {REJECTED: n_unread}
    return Verdict(name, standing, sentence, " ".join(filter(None, details)), in_lanes, admitted.n_admitted)


def promise_of(classifier: SDMClassifier | SDMEnsemble) -> Certificate | None:
    """The certificate if it holds for what is admitted; None if there is none, or nothing is left of it."""
    rule = classifier.lane_rule_
    certificate = rule.certificate
    if certificate is None or certificate.confidence <= 0:
        return None
    if certificate.found and rule.policy == "certified":
        return certificate
    if not certificate.windows:
        return None
    return replace(certificate, found=True, control="predictions", groups=())  # where every window holds, these do


def promise_text(classifier: SDMClassifier | SDMEnsemble, policy: str = "certified") -> str:
    """What is promised under a policy, or why nothing is."""
    made = classifier.certificate_
    return promise_or_why(
        None if made is None else made.promise(classifier.classes_.tolist()),
        is_current=classifier.lane_rule_.certificate is not None,
        is_ensemble=isinstance(classifier, SDMEnsemble),
        policy=policy,
    )


def _missed(accuracy: SelectiveAccuracy, certificate: Certificate) -> str | None:
    """A promised group with too many errors to be chance, in words; None if there is none.

    Of m groups with n admitted inputs and k errors each, one is missed if P(Binomial(n, 1 - alpha) >= k) <= 0.01 / m.
    """
    groups = _promised(accuracy, certificate)
    for name, cells in groups.items():
        n, target = sum(cell.n_admitted for cell in cells), cells[0].target(certificate.alpha)
        n_correct = sum(cell.n_correct or 0 for cell in cells)
        if n_correct < n and bdtrc(n - n_correct - 1, n, 1 - target) <= _DOUBT / len(groups):
            return f"Of {name}, {_right(n_correct, n)}; promised: {often(target)}."
    return None


def _promised(accuracy: SelectiveAccuracy, certificate: Certificate) -> dict[str, list[Cell]]:
    """The groups that a certificate is about, by what they are called; the cells of one have the same target."""
    by_kind = {"class": accuracy.by_class, "prediction": accuracy.by_prediction}
    if certificate.control == "all":
        return {"them": [accuracy.marginal]}
    if certificate.pools:
        names = list(accuracy.by_class)  # in the order of the classes
        groups = [(one.kind, [names[c] for c in one.numbers]) for one in certificate.groups]
    else:
        kinds = ("prediction",) if certificate.control == "predictions" else tuple(by_kind)
        groups = [(kind, [label]) for kind in kinds for label in by_kind[kind]]
    return {f"those in {group_name(kind, labels)}": [by_kind[kind][one] for one in labels] for kind, labels in groups}


def _seen(accuracy: SelectiveAccuracy) -> str:
    """What was seen of the admitted inputs."""
    cell = accuracy.marginal
    if not cell.n_admitted:
        return ""
    if accuracy.labels != CLASSES:
        return f"{_counts(cell)} Without labels nobody knows how many are right."
    return f"Seen here: {_right(cell.n_correct or 0, cell.n_admitted)}."


def _right(n_correct: int, n_admitted: int) -> str:
    share = f" ({percent(n_correct / n_admitted)})" if n_admitted > 100 else ""
    return f"{n_correct:,} of {n_admitted:,} admitted were right{share}"


def _counts(cell: Cell) -> str:
    return f"Admitted: {cell.n_admitted:,} of {cell.n_total:,}."


# --- What to do next -------------------------------------------------------------------------------------------------

MAX_STEPS = 3


def next_steps(
    found: Sequence[Verdict], classifier: SDMClassifier | SDMEnsemble, model: str | None = None
) -> list[tuple[str, str]]:
    """The two or three things to do first, each with its command; ``model`` is where it is saved, if that is known."""
    where = "MODEL" if model is None else shlex.quote(model)
    steps = ((*STEPS[kind], values) for kind, values in islice(_steps(found, classifier), MAX_STEPS))
    return [(what.format(**values), command.format(model=where, **values)) for what, command, values in steps]


def _steps(found: Sequence[Verdict], classifier: SDMClassifier | SDMEnsemble) -> Iterator[tuple[str, dict[str, Any]]]:
    """The names of steps in ``STEPS``, and what their texts are filled with."""
    made, rule = classifier.certificate_, classifier.lane_rule_
    if promise_of(classifier) is not None:
        pass
    elif isinstance(classifier, SDMEnsemble):
        yield "single", {}
    elif made is not None and made.found and rule.certificate is not None and made.confidence > 0:
        yield "admit", {}
    elif made is None or made.found or not made.groups:
        yield "certify", {}
    else:
        if made.largest_alpha is not None:
            yield "less", {"alpha": made.largest_alpha}
        n = "more" if made.n_needed is None else f"about {made.n_needed:,}"
        to_certify = "" if made.n_needed is None else " to certify"
        yield "more", {"more": f"{n} labelled inputs{to_certify}"}
    if any(one.standing == PROMISED and one.n_admitted for one in found):
        yield "answer", {}
    unlike = next((one.name for one in found if one.standing in (DRIFTED, MISSED)), None)
    if unlike is not None:
        yield "compare", {"name": unlike}
    if any(one.standing == OUTSIDERS and one.n_admitted for one in found):
        yield "keep out", {}
    if any(one.lanes["review"] or one.lanes["unfamiliar"] for one in found):
        yield "label", {}
