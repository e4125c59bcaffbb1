"""What a report opens with: one sentence per data set, how its inputs fall into lanes, and what to do next.

A sentence promises only what the certificate does. Where the inputs are of another kind, or nothing is certified, it
says what was seen instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtrc

from torchsdm.core import SDMDecisions, described
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy, selective_accuracy
from torchsdm.evaluation.overview import FreshGuards
from torchsdm.evaluation.strangers import CLASSES, OUTSIDE
from torchsdm.settings import LANES, REJECTED
from torchsdm.trust import Certificate

PROMISED, DRIFTED, MISSED, OUTSIDERS, UNPROMISED = STANDINGS = (
    "promised",  # certified, and the inputs look like the certification set
    "drifted",  # the guard tells them from it
    "missed",  # they look like it, but fewer answers are right than promised
    "outsiders",  # they belong to no class
    "unpromised",  # there is no certificate
)  #: how the inputs of a data set stand to the promise
_DOUBT = 0.01  # probability of finding a promise missed where it holds, over all of its groups
_FOR_WHOM = {  # by control
    "groups": "in every class and for every answer",
    "pooled": "in every class and for every answer, those with few points taken together",
    "predictions": "for every answer that is given",
    "all": "all answers taken together",
}


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


@dataclass(frozen=True)
class NextStep:
    """What to do, and the command that does it."""

    what: str
    command: str


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
    count = _of_100(admitted.n_admitted, admitted.n_total)
    was = "was" if count.startswith("1 of") else "were"
    if kind == OUTSIDE:
        standing = OUTSIDERS
        mistakes = ", each a mistake" if admitted.n_admitted else ""
        sentence = f"{count} {was} admitted{mistakes}; these belong to no class, and no promise is about them."
        detail = _counts(admitted)
    elif certificate is None:
        standing, detail = UNPROMISED, _join(why_unpromised(classifier), seen)
        sentence = f"Nothing is promised. {count} {was} admitted all the same."
        if not admitted.n_admitted:
            sentence = f"Nothing is promised, and {_lower(count)} can be answered unattended."
    elif _drifted(guards, decisions):
        standing = DRIFTED
        sentence = f"{count} {was} admitted; these are not the kind of input that the promise is about."
        detail = _join(f"The drift guard tells them from the {_sample(certificate)}.", seen)
    elif (below := _missed(accuracy, certificate)) is not None:
        standing, detail = MISSED, _join(below, seen)
        sentence = f"{count} {was} admitted, but fewer of the answers were right than promised. Do not rely on them."
    else:
        standing = PROMISED
        promise = _promise(certificate, classifier.classes_.tolist())
        if kind == CLASSES:
            promised = f"{count} can be answered unattended; of those, {promise}."
        else:
            promised = f"{count} would be answered unattended; if they are like the {_sample(certificate)}, {promise}."
        sentence = promised if admitted.n_admitted else f"{count} can be answered unattended."
        about = f"The promise is about inputs like the {_sample(certificate)}."
        detail = _join(seen, about if kind == CLASSES else _in_their_order(guards, decisions))
    read = {lane: int((np.asarray(decisions.lane) == lane).sum()) for lane in LANES}
    return Verdict(name, standing, sentence, detail, {**read, REJECTED: n_unread}, admitted.n_admitted)


def promise_of(classifier: SDMClassifier | SDMEnsemble) -> Certificate | None:
    """The certificate if it holds for what is admitted; None if there is none, or nothing is left of it."""
    rule = classifier.lane_rule_
    certificate = rule.certificate
    holds = certificate is not None and certificate.found and certificate.confidence > 0
    return certificate if holds and rule.policy == "certified" else None


def why_unpromised(classifier: SDMClassifier | SDMEnsemble) -> str:
    """Why ``promise_of`` is None."""
    rule, made = classifier.lane_rule_, classifier.certificate_
    if isinstance(classifier, SDMEnsemble):
        return "An ensemble is not certified."
    if made is None:
        return "Nothing was held out to certify with."
    if rule.certificate is None:
        return "The model was updated after it was certified."
    if made.found and made.confidence > 0:
        return "The policy 'trusted' admits only a part of what is certified, and the promise is about the whole."
    return made.holds_for(classifier.classes_.tolist())


def _promise(certificate: Certificate, names: Sequence[Any]) -> str:
    """What is promised of the answers, with the confidence that is left."""
    often = f"at least {100 * certificate.alpha:.4g} in 100 are right"
    if certificate.class_alphas:
        often = f"as many are right as asked ({described(certificate.target, names)})"
    promise = f"{often}, {_FOR_WHOM[certificate.control]}, with {100 * certificate.confidence:.3g} % confidence"
    if certificate.n_corrected:
        promise += f", if its corrections ({certificate.n_corrected}) were made without regard to the decisions"
    return promise


def _drifted(guards: FreshGuards, decisions: SDMDecisions) -> bool:
    """Whether a guard is raised by the inputs. A data set is no stream: it is shown in a random order."""
    shuffled = np.random.default_rng(0).permutation(len(decisions))
    return _raised_at(guards, decisions[shuffled]) is not None


def _in_their_order(guards: FreshGuards, decisions: SDMDecisions) -> str:
    """What the guard says of inputs without labels, which may well be a stream; empty if it stays calm."""
    at = _raised_at(guards, decisions)
    return "" if at is None else f"In the order of the file, the drift guard is raised at input {at:,}: look there."


def _raised_at(guards: FreshGuards, decisions: SDMDecisions) -> int | None:
    guard = guards.after(decisions)
    return None if guard is None else guard.raised_at


def _missed(accuracy: SelectiveAccuracy, certificate: Certificate) -> str | None:
    """A promised group with too many errors to be chance, in words; None if there is none.

    Of m groups with n admitted inputs and k errors each, one is missed if P(Binomial(n, 1 - alpha) >= k) <= 0.01 / m.
    """
    groups = _promised(accuracy, certificate)
    for whom, cell in groups.items():
        n_errors, target = cell.n_admitted - (cell.n_correct or 0), cell.target(certificate.alpha)
        known = cell.n_correct is not None and n_errors > 0
        if known and bdtrc(n_errors - 1, cell.n_admitted, 1 - target) <= _DOUBT / len(groups):
            of_them = f"Of those {whom}" if whom else "Of them"
            return f"{of_them}, {_right(cell)}; promised are {100 * target:.4g} in 100."
    return None


def _promised(accuracy: SelectiveAccuracy, certificate: Certificate) -> dict[str, Cell]:
    """The groups that a certificate is about, by what they are called."""
    predicted = {f"predicted {label!r}": cell for label, cell in accuracy.by_prediction.items()}
    if certificate.control == "all":
        return {"": accuracy.marginal}
    if certificate.control == "predictions":
        return predicted
    if not certificate.pools:
        return {f"of class {label!r}": cell for label, cell in accuracy.by_class.items()} | predicted
    names = list(accuracy.by_class)  # in the order of the classes
    groups = {}
    for group in certificate.groups:
        cells = accuracy.by_class if group.kind == "class" else accuracy.by_prediction
        numbers = [number for number in group.classes or (group.class_number,) if number is not None]
        groups[f"in {group.name(names)}"] = _together([cells[names[number]] for number in numbers])
    return groups


def _together(cells: Sequence[Cell]) -> Cell:
    """Several strata as one."""
    known = [cell.n_correct for cell in cells if cell.n_correct is not None]
    n_correct = sum(known) if len(known) == len(cells) else None
    n_total, n_admitted = sum(cell.n_total for cell in cells), sum(cell.n_admitted for cell in cells)
    return Cell(n_total, n_admitted, n_correct, sum(cell.share for cell in cells))


def _seen(accuracy: SelectiveAccuracy) -> str:
    """What was seen of the admitted inputs."""
    cell = accuracy.marginal
    if not cell.n_admitted:
        return ""
    if accuracy.labels != CLASSES:
        return f"{_counts(cell)} Without labels nobody knows how many are right."
    return f"Seen here: {_right(cell)}."


def _right(cell: Cell) -> str:
    percent = f" ({100 * (cell.accuracy or 0):.3g} %)" if cell.n_admitted > 100 else ""
    return f"{cell.n_correct:,} of {cell.n_admitted:,} admitted were right{percent}"


def _counts(cell: Cell) -> str:
    return f"Admitted: {cell.n_admitted:,} of {cell.n_total:,}."


def _sample(certificate: Certificate) -> str:
    return f"{certificate.n_certification:,} certification points"


def _of_100(n: int, n_total: int) -> str:
    """A count of inputs as people say it: of all, or of 100; never none or all unless it is exactly that.

    Examples
    --------
    >>> _of_100(3, 60), _of_100(730, 1000), _of_100(2, 1000), _of_100(0, 1000)
    ('3 of 60 inputs', '73 of 100 inputs', '2 of 1,000 inputs', 'None of the 1,000 inputs')
    """
    if n in (0, n_total):
        return f"{'None' if n == 0 else 'All'} of the {n_total:,} inputs"
    hundredths = round(100 * n / n_total)
    if n_total <= 100 or not 0 < hundredths < 100:
        return f"{n:,} of {n_total:,} inputs"
    return f"{hundredths} of 100 inputs"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


# --- What to do next -------------------------------------------------------------------------------------------------

MAX_STEPS = 3


def next_steps(
    found: Sequence[Verdict], classifier: SDMClassifier | SDMEnsemble, model: str | None = None
) -> list[NextStep]:
    """The two or three things to do first, with their commands; ``model`` is where it is saved, if that is known."""
    where = "MODEL" if model is None else shlex.quote(model)
    steps = list(_steps(found, classifier, where))
    return steps[:MAX_STEPS]


def _steps(found: Sequence[Verdict], classifier: SDMClassifier | SDMEnsemble, where: str) -> Iterator[NextStep]:
    if promise_of(classifier) is None:
        yield from _to_a_promise(classifier, where)
    admitting = [one for one in found if one.standing == PROMISED and one.n_admitted]
    if admitting:
        yield NextStep(
            "Answer new inputs, and let the drift guard watch them. Act on what is admitted; people look at the rest.",
            f"sdm predict {where} new.jsonl -o decisions.jsonl --guard {where}.guard",
        )
    for one in found:
        if one.standing in (DRIFTED, MISSED):
            yield NextStep(
                f"See how inputs of {one.name} differ from the training examples. If they are part of the task, label "
                "some and train with them.",
                f"sdm explain {where} DATA --first 10",
            )
            break
    if any(one.standing == OUTSIDERS and one.n_admitted for one in found):
        yield NextStep(
            "Show the model inputs that belong to no class, so that it keeps them out.",
            "sdm train DATA -o new-model --background OTHERS",
        )
    if any(one.lanes["review"] or one.lanes["unfamiliar"] for one in found):
        yield NextStep(
            "Have people label what was not admitted, add it to the examples, and certify again with other labelled "
            "inputs.",
            f"sdm update {where} --add CHECKED && sdm certify {where} NEW",
        )


def _to_a_promise(classifier: SDMClassifier | SDMEnsemble, where: str) -> Iterator[NextStep]:
    """How a model without a promise could have one."""
    made, rule = classifier.certificate_, classifier.lane_rule_
    if isinstance(classifier, SDMEnsemble):
        yield NextStep("Train a single classifier, which can be certified.", "sdm train DATA -o new-model")
    elif made is not None and made.found and rule.certificate is not None and made.confidence > 0:
        yield NextStep("Admit all that is certified.", f"sdm recalibrate {where} --policy certified")
    elif made is None or made.found or not made.groups:
        yield NextStep(
            "Certify it with labelled inputs that nothing else has seen, drawn at random.", f"sdm certify {where} NEW"
        )
    else:
        if made.largest_alpha is not None:
            yield NextStep(
                f"Ask for less: at about {100 * made.largest_alpha:.2g} in 100 there would probably be a certificate. "
                "Certify it with new labelled inputs.",
                f"sdm certify {where} NEW --alpha {made.largest_alpha:.2g}",
            )
        more = (
            "more labelled inputs" if made.n_needed is None else f"about {made.n_needed:,} labelled inputs to certify"
        )
        yield NextStep(f"Or train with {more}, or with a stronger language model.", "sdm train DATA -o new-model")
