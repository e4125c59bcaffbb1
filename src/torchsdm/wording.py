"""The sentences of torchsdm: promises, lanes, reasons, standings and advice, each made once, from plain values.

Python, the model card, the report, the command and the service all say what is said here. Whoever decides something
passes values; no sentence is taken apart again. Remedies of errors and warnings are in ``torchsdm.errors``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAMED = 3  # classes of a pool, pools, or classes that lack examples: the first of them, in a sentence
_LISTED = 5  # classes in a list
_TARGETS = 6  # classes, above which targets are described by their range

# --- Texts and counts ------------------------------------------------------------------------------------------------


def shortened(text: str, length: int = 80) -> str:
    """A text on one line, cut to at most ``length`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


def is_one_edit_away(a: str, b: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbouring letters makes b of a."""
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    x, y = a[first:], b[first:]  # they differ from their first letter on
    if len(x) != len(y):
        return x[1:] == y if len(x) > len(y) else x == y[1:]
    return x[1:] == y[1:] or (x[:2] == y[:2][::-1] and x[2:] == y[2:])


def counted(n: int, what: str) -> str:
    """A number of things."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def percent(share: float) -> str:
    """A share to three digits."""
    return f"{100 * share:.3g} %"


def listed(names: Sequence[Any], most: int = _LISTED) -> str:
    """The first of some names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def of_100(n: int, n_total: int) -> str:
    """A count of inputs as people say it: of all, or of 100; never none or all unless it is exactly that."""
    if n in (0, n_total):
        return f"{'none' if n == 0 else 'all'} of the {n_total:,} inputs"
    hundredths = round(100 * n / n_total)
    if n_total <= 100 or not 0 < hundredths < 100:
        return f"{n:,} of {n_total:,} inputs"
    return f"{hundredths} of 100 inputs"


# --- Targets and groups ----------------------------------------------------------------------------------------------


def described(target: float | tuple[float, ...], class_names: Sequence[Any] | None = None) -> str:
    """A target: alpha, or the alpha of each class."""
    if not isinstance(target, tuple):
        return f"{target:g}"
    if len(target) > _TARGETS:
        return f"{min(target):g} to {max(target):g}, by class"
    names = range(len(target)) if class_names is None else class_names
    return ", ".join(f"{one:g} for {name!r}" for one, name in zip(target, names, strict=True))


def often(target: float | tuple[float, ...], class_names: Sequence[Any] | None = None) -> str:
    """How often answers are right that reach a target."""
    if isinstance(target, tuple):
        return f"at least as often as asked ({described(target, class_names)})"
    return f"at least {100 * target:.6g} % of the time"


def group_name(kind: str, classes: Sequence[Any]) -> str:
    """A group by its kind, 'class', 'prediction' or 'all', and the names of its classes."""
    if not classes:
        return "all together"
    return f"{kind} {classes[0]!r}" if len(classes) == 1 else f"{kind} {_any_of(classes)}"


def _any_of(names: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    return f"any of {len(names)} ({shown})"


# --- The promise -----------------------------------------------------------------------------------------------------

FOR_WHOM = {
    "groups": "for every true class and every predicted class",
    "pooled": "for every true class and every predicted class, those with few points only pooled",
    "only pools": "for every pool of true classes and of predicted classes",
    "predictions": "for every predicted class",
    "all": "taken together",
}  #: what a promise covers, by control; "only pools" is "pooled" where all classes are
UNPROMISED = {
    "ensemble": "An ensemble is not certified.",
    "uncertified": "Nothing was held out to certify with.",
    "none": "No certificate holds for this model.",
    "changed": "The model was changed after it was certified, so the certificate no longer holds.",
    "trusted": "The policy 'trusted' admits only part of what is certified, and the promise is about the whole.",
}  #: why nothing is promised, where that is not for the certificate to say
_ALONE = {"pooled": "one of the pooled classes", "predictions": "a class", "all": "a class or prediction"}
_OF_EACH = {"groups": " of each class", "predictions": " of one class"}


@dataclass(frozen=True)
class Promise:
    """What a certificate comes to, in plain values (``torchsdm.trust.Certificate.promise``), and how it is said."""

    found: bool
    target: float | tuple[float, ...]
    control: str
    delta: float
    confidence: float
    """The probability with which all certificates on the sample hold together, at least."""
    looks: int
    n_certification: int
    n_admitted: int
    n_corrected: int
    classes: Sequence[Any]
    """The names of the classes."""
    never_admitted: Sequence[Any]
    answered_wrongly: Sequence[tuple[Any, int, int]]
    """True classes of whose certification points more get a wrong answer than alpha allows: name, how many, of how
    many."""
    pools: Sequence[Sequence[Any]]
    """The classes of each pool, the largest pool first."""
    weakest: tuple[str, int, int, int] | None
    """The group that failed: its name, admitted points, errors, and the fewest points that a test of it takes."""
    fewest: int | None
    """The fewest points that a certificate takes; None where no number would do."""
    largest_alpha: float | None
    n_needed: int | None
    windows: Mapping[Any, int]
    """By class, how many windows of the score hold for its predictions; without those that have none."""
    n_left_out: int = 0
    """Rows that belong together with a certification point, and were not tested for it."""
    n_unlabelled: int = 0

    @property
    def is_any(self) -> bool:
        """Whether anything was certified, on average or at every level of evidence."""
        return self.found or bool(self.windows)

    @property
    def sentence(self) -> str:
        """What is promised, and who pays for it; or why nothing is."""
        return " ".join(filter(None, [self._on_average, self.at_every_level, self.left_out, self.tested_once]))

    @property
    def tested_once(self) -> str:
        """What it means that of rows that belong together one was tested; empty if every row is alone."""
        if not self.n_left_out or not self.is_any:
            return ""
        return (
            f"Of rows that belong together one was tested ({self.n_left_out:,} left out): it is about a random input "
            "of a random group."
        )

    @property
    def left_out(self) -> str:
        """The true classes that a promise about predictions or about all answers passes over; empty without any."""
        worst = sorted(self.answered_wrongly, key=lambda one: one[1] / one[2], reverse=True)
        said = ", ".join(f"{k} of {counted(n, 'point')} of class {name!r}" for name, k, n in worst[:_NAMED])
        more = f", and too many of {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
        return f"Of the certification points, it admits wrong answers to {said}{more}." if said else ""

    @property
    def at_every_level(self) -> str:
        """What is promised of trusted answers, by the windows of the score; empty if nothing is."""
        if not self.windows or self.confidence <= 0:
            return ""
        held = ", ".join(f"{counted(n, 'window')} of {name!r}" for name, n in list(self.windows.items())[:_LISTED])
        more = f", and of {len(self.windows) - _LISTED} more" if len(self.windows) > _LISTED else ""
        both = ""
        if self.found and self.confidence > 0.5:
            both = (
                " As both promises rest on the same points, they hold together with probability at least "
                f"{2 * self.confidence - 1:.6g}."
            )
        return (
            f"With probability at least {self.confidence:.6g}, trusted answers are right "
            f"{often(self.target, self.classes)} in every window of the score ({held}{more}), and so in "
            "any mixture of windows: also where harder inputs become more frequent, as long as answers within a window "
            f"are right as often as before.{both}"
        )

    @property
    def _on_average(self) -> str:
        if not self.found:
            return self.why_not + self._estimate
        if self.confidence <= 0:
            return f"No promise is left: {self.looks} certificates were made on one certification sample."
        share = percent(self.n_admitted / max(self.n_certification, 1))
        never = f" It never admits {listed(self.never_admitted)}." if self.never_admitted else ""
        return (
            f"{self.about('the answers that the rule admits')}, on data like the {self.sample}, of which it admits "
            f"{share}{self._proviso}.{self._pooling}{never}"
        )

    @property
    def _proviso(self) -> str:
        corrected = f", if its corrections ({self.n_corrected}) were made without regard to the decisions"
        return corrected if self.n_corrected else ""

    def about(self, answers: str) -> str:
        """What is promised about the admitted answers, called as in 'such answers'."""
        spent = "" if self.looks <= 1 else f" for all {self.looks} certificates on this sample"
        control, n_pooled = self.control, sum(map(len, self.pools))
        if control == "pooled" and n_pooled in (0, len(self.classes)):
            control = "only pools" if n_pooled else "groups"
        return promised(self.target, self.confidence, answers, control, self.classes, spent)

    @property
    def sample(self) -> str:
        """The points that the promise is about the likes of."""
        labelled = f" ({self.n_certification - self.n_unlabelled:,} of them labelled)" if self.n_unlabelled else ""
        return counted(self.n_certification, "certification point") + labelled

    @property
    def why_not(self) -> str:
        """Why nothing is certified."""
        return f"Not certified at alpha {described(self.target, self.classes)}: {self._obstacle}."

    @property
    def _obstacle(self) -> str:
        if self.fewest is None:
            return "no sample can show that nothing is ever wrong"
        of_each = _OF_EACH.get(self.control, "")
        if not self.n_certification:
            return f"no labelled points were held out, and it takes at least {self.fewest}{of_each}"
        if self.weakest is None:
            return "no calibration point may be admitted at all"
        name, n_admitted, n_errors, needed = self.weakest
        if n_admitted < needed:
            return f"only {n_admitted} certification points can be admitted ({name}), and it takes {needed}"
        return f"even the strictest rule is wrong on {n_errors} of the {n_admitted} points that it admits ({name})"

    @property
    def _estimate(self) -> str:
        """What would do, as far as calibration can tell."""
        if self.weakest is None or self.fewest is None:
            return ""
        lower = "no alpha above 0.5 would hold"
        if self.largest_alpha is not None:
            limited = "targets limited to about" if isinstance(self.target, tuple) else "about"
            lower = f"{limited} {self.largest_alpha:.2g} could be certified, at the cost of another delta"
        more = "how many more examples would help cannot be told"
        if self.n_needed is not None:
            more = f"it takes about {self.n_needed:,} certification points, and as many to calibrate"
        return f" Estimated on calibration: {lower}; {more}."

    @property
    def _pooling(self) -> str:
        if not self.pools:
            return ""
        pools = "; ".join(map(_any_of, self.pools[:_NAMED]))
        more = f"; and {len(self.pools) - _NAMED} more pools" if len(self.pools) > _NAMED else ""
        where = f"in {len(self.pools)} pools" if len(self.pools) > 1 else "in one pool"
        return (
            f" Of the {len(self.classes)} classes, {sum(map(len, self.pools))} have too few points for a promise of "
            f"their own and are taken together, {where}: {pools}{more}. One of them alone may be right less often."
        )

    @property
    def lost(self) -> str:
        """What corrections and other certificates on the same sample cost; empty if nothing is lost."""
        costs = []
        if self.looks > 1:
            costs.append(
                f"This is certificate {self.looks} on the same certification sample: all of them hold together with "
                f"probability at least {self.confidence:.6g}, not {1 - self.delta:.6g}."
            )
        if self.n_corrected:
            costs.append(
                f"{counted(self.n_corrected, 'certification point')} relabelled or removed: the promise holds only if "
                "they were chosen without regard to the decisions on them (all points checked, or a random part)."
            )
        return " ".join([*costs, "Certify with new labelled data to have the full promise."] if costs else [])


EVERY_LEVEL = (
    "The rule 'every level' promises it in every window of its score, for every predicted class, so also for other "
    "mixtures of inputs; it promises nothing for true classes."
)  #: beside ``promised``, in a table


def promised(
    target: float | tuple[float, ...],
    confidence: float,
    answers: str,
    control: str,
    class_names: Sequence[Any] | None = None,
    spent: str = "",
) -> str:
    """The promise, without what it is about."""
    right = f"right {often(target, class_names)}, {FOR_WHOM[control]}"
    return f"With probability at least {confidence:.6g}{spent}, {answers} are {right}"


def promise_or_why(
    promise: Promise | None, *, is_current: bool = True, is_ensemble: bool = False, policy: str = "certified"
) -> str:
    """What is promised about the answers that a model admits, or why nothing is."""
    if promise is None:
        return UNPROMISED["ensemble" if is_ensemble else "uncertified"]
    if promise.is_any and not is_current:
        return UNPROMISED["changed"]
    if promise.found and promise.confidence > 0 and policy == "trusted":
        return promise.at_every_level or UNPROMISED["trusted"]
    return promise.sentence


def limits(promise: Promise | None) -> list[str]:
    """What must not be read into a promise."""
    single = (
        "Any single answer: accuracy is that of many answers. An answer that is not admitted may be right or wrong."
    )
    if promise is None or not promise.is_any:
        return [single, "An accuracy on new data: nothing is certified. The paper's region below is an estimate."]
    is_trusted = bool(promise.windows)
    alone = None if promise.control == "pooled" and not promise.pools else _ALONE.get(promise.control)
    return [
        single,
        f"Certainty: with probability up to {1 - promise.confidence:.6g} it fails.",
        *([f"Anything for {alone} on its own: it may be right less often than alpha."] if alone else []),
        "Anything of certified answers on data unlike the certification points. Inputs change: a `DriftGuard` watches.",
        *(
            ["Of trusted answers: anything for a true class, or if a window is right less often than it was."]
            * is_trusted
        ),
        "Anything after the support is changed, until it is certified again: `recertify`.",
    ]


# --- Lanes, reasons and the guard ------------------------------------------------------------------------------------

LANE_MEANS = {
    "trusted": "act",
    "certified": "act while the drift guard is calm",
    "review": "a person decides",
    "unfamiliar": "unlike the training examples: do not act",
    "rejected": "could not be read",
}  #: what to do with the answers of each lane
ADMITS = {
    "certified": "what the certified rule admits; where nothing is certified, what the paper's region admits",
    "trusted": "what is certified at every level of evidence; where nothing is, what the paper's region admits, "
    "and the certified rule, if there is one, too",
}  #: by policy
REASONS = {
    "background": "nearest to the background: it looks like what does not belong to any class",
    "uncertain": "too far for how sure it is: only {familiarity:.1%} of the calibration points of {label!r} are less "
    "familiar",
    "beyond": "too far: all calibration points of {label!r} are nearer to the training data",
    "far": "too far: {nearer:.1%} of the calibration points of {label!r} are nearer to the training data",
    "alone": "no neighbour vouches: the nearest training example contradicts it",
    "contradicted": "the nearest training example contradicts it",
    "one agrees": "the nearest example agrees, the next does not",
    "some agree": "the {q} nearest examples agree, the next does not",
    "one vouches": "1 neighbour vouches for it",
    "some vouch": "{q} neighbours vouch for it",
    "ineligible": "not eligible",
    "uncertified": "predictions of {label!r} are not certified",
    "below": "{score_name} {score:.4f} is below {threshold:.4f}, {what}",
    "reaches": "{score_name} {score:.4f} reaches {threshold:.4f}, {what}",
    "threshold": "the certified threshold of {label!r}",
    "levels": "down to which {label!r} is certified at every level of evidence",
    "region too": "{reaches}, and the paper's region admits it",
    "region": "the paper's region admits it: q' {rescaled:.4g}, confidence {confidence:.4f}",
    "rounds": "not all rounds agree and admit it",
    "no rule": "there is neither a certificate nor a region at alpha {alpha:g}",
    "outside": "q' {rescaled:.4g} is below {least:.4g}, where the paper's region begins",
    "unsure": "confidence {confidence:.4f} is below {least:.4f}, the threshold of {label!r}",
    "drift": "the drift guard is raised: certified answers need review until it is reset",
    "checks": "spot checks found too many wrong answers: certified answers need review until the checks are reset",
    "checks of one": "spot checks found too many answers {label!r} wrong: they need review until the checks are reset",
}  #: why a decision is in its lane, to be filled in


def neighbours(q: int, is_admitted: bool) -> str:
    """What the nearest training examples say."""
    if q == 0:
        return REASONS["contradicted"]
    one, some = ("one vouches", "some vouch") if is_admitted else ("one agrees", "some agree")
    return REASONS[one if q == 1 else some].format(q=q)


def threshold_reason(
    score: float,
    threshold: float,
    label: Any,
    *,
    score_name: str = "reliability",
    n_pooled: int = 0,
    in_window: bool = False,
) -> str:
    """How a score stands to the certified threshold of a label, which it may share with others.

    With ``in_window`` it is the one down to which every level of evidence is certified.
    """
    if not math.isfinite(threshold):
        return REASONS["uncertified"].format(label=label)
    pooled = f", pooled with {counted(n_pooled, 'other')}" if n_pooled else ""
    what = REASONS["levels" if in_window else "threshold"].format(label=label) + pooled
    given = {"score_name": score_name, "score": score, "threshold": threshold, "what": what}
    return REASONS["reaches" if score >= threshold else "below"].format(**given)


_COMPARED_WITH_EACH_OTHER = (
    " It compares them only with each other, since the model has no certification points: it does not notice inputs "
    "that are strange from the first on."
)


def guard_line(state: dict[str, Any], path: object = None) -> str:
    """The status of a guard (``torchsdm.application.guard_state``), and how to reset one that is kept in a file."""
    sources = state.get("sources")
    if not state["raised"]:
        of_all = "" if sources is None else f" from {counted(len(sources), 'source')}"
        alone = "" if state["n_known"] else _COMPARED_WITH_EACH_OTHER
        return f"The drift guard is calm after {state['n_seen']:,} inputs{of_all}.{alone}"
    if sources is not None:
        raised = "; ".join(source_line(one) for one in sources if one["raised"])
        after = "" if path is None else f" Look into it, then: sdm guard {path} --source NAME --reset REASON."
        return f"The drift guard was raised: from there on only trusted answers to these are admitted: {raised}.{after}"
    after = "" if path is None else f" Look into it, then: sdm guard {path} --reset REASON."
    return f"The drift guard was raised at {_alarm(state)}: from there on only trusted answers are admitted.{after}"


def source_line(state: dict[str, Any]) -> str:
    """The status of the guard of one source."""
    name = state["source"]
    source = "all other sources together" if name is None else repr(name) if name else "inputs without a source"
    return f"{source}, raised at {_alarm(state)}" if state["raised"] else f"{source}, calm after {state['n_seen']:,}"


def _alarm(state: dict[str, Any]) -> str:
    return f"input {state['raised_at']:,} ({state['raised_by'].replace('_', ' ')})"


def check_line(state: Mapping[str, Any], model: object = None) -> str:
    """The status of the spot checks of a model (``torchsdm.application.check_state``), and how to reset them."""
    if not state["raised"]:
        return f"The spot checks are calm after {counted(state['n_checked'], 'verdict')}."
    at = f"at verdict {state['raised_at']:,}" if state["raised_at"] else "before the model was changed"
    about = [group for group in state["groups"] if group["raised"]]
    labels = [group["prediction"] for group in about if group["prediction"] is not None]
    every = [f"answers {listed(labels)}"] if labels else []
    all_together = ["certified answers"] if len(labels) < len(about) else []
    after = "" if model is None else f" Look into it, then: sdm check {model} --reset REASON."
    return f"The spot checks were raised {at}: {' and '.join(every + all_together)} need review.{after}"


# --- Standings: how a data set stands to the promise ------------------------------------------------------------------

STANDINGS = {
    "promised": "{Count} {can} be answered unattended.",
    "drifted": "The model admits {count}; they are not the kind of input that the promise is about.",
    "missed": "The model admits {count}, but fewer of the answers were right than promised. Do not rely on them.",
    "outsiders": "The model admits {count}{mistakes}; they belong to no class, and no promise is about them.",
    "unpromised": "Nothing is promised, but the model admits {count}.",
}  #: certified and alike, unlike, alike but less often right, of no class, not certified


def verdict(standing: str, n_admitted: int, n_total: int, promise: Promise | None, *, is_labelled: bool) -> str:
    """How a model stands to a data set, in a sentence or two."""
    count = of_100(n_admitted, n_total)
    if standing == "unpromised" and not n_admitted:
        return f"Nothing is promised, and {count} can be answered unattended."
    said = STANDINGS[standing].format(
        count=count,
        Count=count[0].upper() + count[1:],
        can="can" if is_labelled else "would",
        mistakes=", each a mistake" if n_admitted else "",
    )
    if standing != "promised" or promise is None or not n_admitted:
        return said
    alike = "" if is_labelled else f", if the inputs are like the {promise.sample}"
    return f"{said} {promise.about('such answers')}{promise._proviso}{alike}."


STEPS = {
    "single": ("Train a single classifier, which can be certified.", "sdm train DATA -o new-model"),
    "admit": ("Admit all that is certified.", "sdm recalibrate {model} --policy certified"),
    "certify": ("Certify it with random labelled inputs that nothing else has seen.", "sdm certify {model} NEW"),
    "less": (
        "Ask for less: about alpha {alpha:.2g} could be certified, with new labelled inputs.",
        "sdm certify {model} NEW --alpha {alpha:.2g}",
    ),
    "more": ("Or train with {more}, or with a stronger language model.", "sdm train DATA -o new-model"),
    "answer": (
        "Answer new inputs, and let the drift guard watch them. Act on what is admitted; people decide on the rest.",
        "sdm predict {model} new.jsonl -o decisions.jsonl --guard {model}.guard",
    ),
    "compare": (
        "See how inputs of {name} differ from the training examples. If they are part of the task, label some and "
        "train with them.",
        "sdm explain {model} DATA --first 10",
    ),
    "keep out": (
        "Show the model inputs that belong to no class, so that it keeps them out.",
        "sdm train DATA -o new-model --background OTHERS",
    ),
    "label": (
        "Have people label what was not admitted, add it to the examples, and certify again with other labelled "
        "inputs.",
        "sdm update {model} --add CHECKED && sdm certify {model} NEW",
    ),
}  #: what to do next, and the command that does it
