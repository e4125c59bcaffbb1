"""The certificate: which answers a rule admits, and a promise about them that holds with probability 1 - delta.

The rule admits an input that is *eligible* and whose score reaches the threshold of its predicted class. Two samples of
labelled points are needed:

1. *calibration* gives a path of threshold vectors, from safe to lenient (``_path``). It may be reused: training, eCDFs
   and the score may have seen it.
2. *certification* is used for one thing: walk the path from its safest element and stop at the first that fails. An
   element holds if for every group g, with n_g admitted points and k_g errors among them,

       p_g = max(P(X < k_g) + u P(X = k_g), alpha^n_g)  <=  delta,    X ~ Binomial(n_g, 1 - alpha).

The randomised test. u, uniform on (0, 1], is drawn once for all groups and all elements, from the *inputs* of the
certification sample by SHA-256: neither their labels nor their order matter, and who asks again gets the same u. With
u = 1 it is the plain exact test, which uses less of delta than it may, because X is a whole number. alpha^n_g is the
plain p-value of no error: no certificate rests on fewer points than the plain test needs.

Why this is a promise. p_g is an exact p-value of "the accuracy of group g is below alpha": given n_g, errors are
binomial and u has nothing to do with them, so it is at most delta with probability at most delta. An element is called
safe only if *every* group passes, so a wrong element (one with some group below alpha) passes with probability at most
delta, that of this one group: an intersection-union test. The path is fixed before the certification
sample is seen, and testing stops at the first failure; to certify any wrong element, the first wrong one on the path
must pass, which has probability at most delta. So with probability at least 1 - delta over the certification sample,
every group that the certified rule admits is right at least alpha of the time, on data drawn like the sample. Each of
these steps is about one p-value at a time, so all may share one u; but the path may not depend on it: where a path is
made for a known u, the test of its elements is laxer than delta more often than stricter. None of this needs the same
alpha in every group: classes may have their own, for their true points and their predictions.

Control of predictions alone. Predictions do not depend on each other: the threshold of one admits no point of another.
So each has a path and a walk of its own, at level delta / m where m predictions are tried; by the union bound the
promise fails for any of them with probability at most delta. Given how many certification points have each prediction,
the paths are fixed before their labels are seen. A prediction that cannot be certified is never admitted. Which ones
are tried is decided on calibration.

A walk that comes to the end of its path has no more use for its level: it passes it on, in equal shares, to the walks
that have stopped. These walk on at the larger level, until nothing changes (a graphical procedure; Bretz, Maurer,
Brannath and Posch, 2009). Why the promise stays: say w of the m paths have a wrong element. Until the first wrong
element is certified, only paths without any were walked to their end, so each of the w walks has at most the level that
it would have if all of those had passed theirs on, delta / w. One of the w first wrong elements passes with probability
at most delta / w each, delta in all.

Control of pools. Classes with too few points for a test of their own share a group: the points whose true class, or
whose prediction, is any of them. Which ones do is decided by how many points they have on calibration (``_pools``), so
that the groups, too, are fixed before the certification sample is seen, and all of the above holds for them. The
promise is then for the pool: one of its classes may be right less often, if the others make up for it.

Points without a label. Not every certification point needs one (``asking``). Where a point without a label is
admitted, it counts as an error of its prediction and of every true class, the worst that it could be. So let (n, k) be
the counts that a group would have with all labels and (n + m, k + m') those that it has, m <= m': since Binomial(n + m)
is at most Binomial(n) + m, P(X < k) + u P(X = k) does not fall. By this exact p-value no element passes, no walk comes
to its end, and none is passed a level, that would not with all labels: something wrong is certified only where it would
have been with all labels, with probability at most delta. Which labels are missing does not matter, nor why, as long as
the number of points that were *drawn* was fixed beforehand.

At every level of evidence. All of this is about averages over what is admitted. A second promise, for every window of
the score, is made with the same certification points by the same test (``_windows``). Each of the two fails with
probability at most delta, so both hold together with probability at least 1 - 2 delta.

The fine print. Points must be drawn independently: rows of one patient or copies of one text are one point. Inputs must
differ from sample to sample, or u would not: where all have the same few scores, ask for u = 1. The promise
is for one rule and one alpha, chosen before the result is seen. A second certificate on the same sample is a second
chance to be wrong: if its alpha was chosen beforehand, both hold with probability 1 - 2 delta (``looks`` and
``delta_spent`` count). So is one on the same sample with corrected labels or without some points, and it holds only if
these were chosen without regard to the decisions (``n_corrected`` counts). New samples cost delta each, too, if you go
on until something is certified. On data of another kind nothing is promised.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from torchsdm.core import (
    GroupCounts,
    Target,
    by_number,
    capped,
    check_control,
    check_target,
    largest,
    smallest,
    target_of,
)
from torchsdm.errors import CertificateWarning, InvalidInputError, InvalidTypeError, NoCertificateWarning, Remedy
from torchsdm.settings import AUTO, CONTROLS, check_fields
from torchsdm.trust._path import (
    POWER,
    UNLABELLED,
    ThresholdPath,
    by_group,
    group_counts,
    of_prediction,
    points_needed,
    pools_of,
    predictions_to_try,
)
from torchsdm.trust._walk import GroupCheck, Walk, share_delta
from torchsdm.trust._windows import WindowCheck, certified_windows
from torchsdm.trust.control import choose_control, weakest_control
from torchsdm.trust.draws import row_digests, uniform_of
from torchsdm.validation import Array, check_choice, check_share
from torchsdm.wording import Promise, threshold_reason

_LATER = (
    "class_alphas",
    "chances",
    "windows",
    "class_errors",
    "n_left_out",
    "n_unlabelled",
)  # fields that are stored only if there is anything
_MOST_GROWTH = 64  # times the sample at hand, up to which more examples are considered


@dataclass(frozen=True)
class ScoredSample:
    """Labelled points as a certificate sees them: plain arrays, one entry per point."""

    labels: Array
    """True class numbers. On certification, -1 stands for a class that is never predicted: always an error; and
    ``UNLABELLED`` (-2) for a label that nobody has given: an error of every group wherever it is admitted."""
    predictions: Array
    """Predicted class numbers."""
    score: Array
    """The higher, the more reliable."""
    eligible: Array
    """Whether the point may be admitted at all."""

    def __post_init__(self) -> None:
        lengths = {name: np.shape(getattr(self, name)) for name in ("labels", "predictions", "score", "eligible")}
        if any(len(shape) != 1 or shape != np.shape(self.labels) for shape in lengths.values()):
            raise InvalidInputError(f"The arrays of a ScoredSample must have one entry per point. Got {lengths}.")
        if np.asarray(self.eligible).dtype != bool or not all(
            np.issubdtype(np.asarray(values).dtype, np.integer) for values in (self.labels, self.predictions)
        ):
            raise InvalidTypeError("'eligible' of a ScoredSample must be boolean, labels and predictions integers.")
        if len(self) and not np.isfinite(self.score[self.eligible]).all():
            raise InvalidInputError("'score' of a ScoredSample must be finite where a point is eligible.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Array) -> ScoredSample:
        return ScoredSample(self.labels[rows], self.predictions[rows], self.score[rows], self.eligible[rows])

    def digest(self) -> str:
        """A name by which a sample is recognised when it is used again."""
        content = hashlib.sha256()
        for values in (self.labels, self.predictions, self.score, self.eligible):
            content.update(np.ascontiguousarray(values).tobytes())
        return content.hexdigest()

    @property
    def u(self) -> float:
        """The number in (0, 1] that a randomised test uses: from predictions, score and eligibility, in any order."""
        return uniform_of(row_digests(np.column_stack([self.predictions, self.score, self.eligible]).astype(float)))

    def admitted_by(self, thresholds: Array) -> Array:
        """Which points a rule with these thresholds admits (N,)."""
        return self.eligible & (self.score >= thresholds[self.predictions])


@dataclass(frozen=True)
class Certificate:
    """A rule with its promise, or the reason why there is none.

    Attributes
    ----------
    thresholds : (C,)
        By predicted class; infinite everywhere if nothing could be certified.
    groups : tuple of GroupCheck
        Of the certified rule; if there is none, of the safest rule on the path, which failed.
    """

    alpha: float
    """The target; the smallest, if classes have different ones."""
    delta: float
    control: str
    thresholds: Array
    found: bool
    groups: tuple[GroupCheck, ...]
    n_certification: int
    n_admitted: int
    """Points of the certification sample that the rule admits."""
    looks: int = 1
    """How many certificates this certification sample is known to have served, this one included."""
    delta_spent: float = 0.0
    """The deltas of all of them together."""
    n_corrected: int = 0
    """Certification points that were relabelled or removed since the sample was drawn."""
    largest_alpha: float | None = None
    """Where nothing holds: an alpha that would probably hold, by calibration; None if none above 0.5 would."""
    n_needed: int | None = None
    """Where nothing holds: about how many certification points would be needed in all, estimated on calibration; None
    if that cannot be told."""
    class_alphas: tuple[float, ...] = ()
    """The target of each class (C,), for its true points and for its predictions, if they differ."""
    u: float = 1.0
    """Of the randomised test; 1 is the plain exact test, which certificates had before there was a u."""
    chances: dict[str, float] = field(default_factory=dict)
    """By control, the chance of a certificate that calibration estimated, if the control was chosen by it ('auto')."""
    windows: tuple[WindowCheck, ...] = ()
    """What is certified at every level of evidence: of each prediction the windows that hold, the surest first."""
    class_errors: tuple[tuple[int, int], ...] = ()
    """Of each true class, its certification points, and on how many of them a wrong answer is admitted; empty where
    points have no label, as nobody knows of which class those are."""
    n_left_out: int = 0
    """Rows that were not tested, because they belong together with one that was, such as copies of it."""
    n_unlabelled: int = 0
    """Certification points without a label: errors wherever they are admitted."""

    @property
    def target(self) -> Target:
        """What is promised: alpha, or the alpha of each class."""
        return self.class_alphas or self.alpha

    @classmethod
    def without_test(
        cls, alpha: Target, delta: float, control: str, n_classes: int, *, looks: int = 0, delta_spent: float = 0.0
    ) -> Certificate:
        """No certificate, and no look at a sample: alpha is 1, or there were too few points to hold any out."""
        nothing = np.full(n_classes, np.inf)
        control = weakest_control(alpha) if control == AUTO else control
        counted: dict[str, Any] = {"looks": looks, "delta_spent": delta_spent}
        return cls(smallest(alpha), delta, control, nothing, False, (), 0, 0, **counted, **_differing(alpha))

    @property
    def confidence(self) -> float:
        """The probability with which all certificates on this sample hold together, at least; 0 if nothing is left."""
        return max(0.0, 1 - max(self.delta_spent, self.delta))

    @property
    def identity(self) -> str:
        """A short name by which a batch of decisions can say which promise it was made under."""
        content = [self.target, self.delta, self.control, self.thresholds.tolist(), self.n_certification, self.looks]
        content += [[g.kind, g.classes or g.class_number, g.n_admitted, g.n_errors] for g in self.groups]
        content += [[window.class_number, window.lower] for window in self.windows]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    @property
    def fewest(self) -> int | None:
        """The fewest points that any certificate takes; None where no number would do."""
        most = largest(self.target)
        return None if most == 1 else points_needed(most, self.delta)

    @property
    def pools(self) -> tuple[tuple[int, ...], ...]:
        """The class numbers of each pool: of these classes, only taken together, something is promised."""
        return tuple(dict.fromkeys(group.classes for group in self.groups if group.classes))

    @property
    def weakest(self) -> GroupCheck | None:
        """The group that is the least sure to reach alpha; None without groups."""
        return max(self.groups, key=lambda group: group.p_value, default=None)

    def admits(self, predictions: Array, score: Array, eligible: Array) -> Array:
        """Which points the certified rule admits (N,); none without a certificate."""
        return eligible & np.isfinite(score) & (score >= self.thresholds[predictions])

    @property
    def is_any(self) -> bool:
        """Whether anything is certified, on average or at every level of evidence."""
        return self.found or bool(self.windows)

    @cached_property
    def window_thresholds(self) -> Array:
        """By predicted class (C,), where the lowest window ends that holds; infinite where none does.

        Windows that reach below what is certified on average are left out, and whole: the promise is about windows.
        """
        lowest = np.full(len(self.thresholds), np.inf)
        for window in self.windows:
            c = window.numbers[0]
            if not self.found or window.lower >= self.thresholds[c]:
                lowest[c] = min(lowest[c], window.lower)
        return lowest

    def trusts(self, predictions: Array, score: Array, eligible: Array) -> Array:
        """Which points are in a window that holds (N,)."""
        return eligible & np.isfinite(score) & (score >= self.window_thresholds[predictions])

    def reason(self, c: int, score: float, label: Any, *, is_trusted: bool, score_name: str = "reliability") -> str:
        """How a score stands to the threshold that decides on prediction c."""
        in_window = bool(self.windows) and (is_trusted or not self.found)
        threshold = float((self.window_thresholds if in_window else self.thresholds)[c])
        n_pooled = 0 if in_window else next((len(pool) - 1 for pool in self.pools if c in pool), 0)
        return threshold_reason(score, threshold, label, score_name=score_name, n_pooled=n_pooled, in_window=in_window)

    def promise(self, class_names: Sequence[Any] | None = None) -> Promise:
        """What it comes to in plain values, with the names of the classes."""
        names = range(len(self.thresholds)) if class_names is None else class_names
        by_name: dict[str, Any] = {
            "classes": names,
            "never_admitted": [names[c] for c in np.flatnonzero(np.isinf(self.thresholds)).tolist()],
            "pools": [[names[c] for c in pool] for pool in sorted(self.pools, key=len, reverse=True)],
            "weakest": self._weakest(class_names),
            "answered_wrongly": [
                (name, k, n)
                for name, (n, k), alpha in zip(
                    names, self.class_errors, by_number(self.target, len(self.thresholds)), strict=False
                )
                if k > (1 - alpha) * n
            ],
            "windows": {
                names[c]: sum(one.class_number == c and one.lower >= lowest for one in self.windows)
                for c, lowest in enumerate(self.window_thresholds.tolist())
                if np.isfinite(lowest)
            },
        }
        same = {one.name: getattr(self, one.name) for one in fields(Promise) if one.name not in by_name}
        return Promise(**same, **by_name)

    def _weakest(self, class_names: Sequence[Any] | None) -> tuple[str, int, int, int] | None:
        """Name, admitted points and errors of the weakest group, and the fewest points that its test takes."""
        group = self.weakest
        if group is None or self.fewest is None:
            return None
        needed = points_needed(target_of(self.target, group.class_number), self.delta)
        return group.name(class_names), group.n_admitted, group.n_errors, needed

    def holds_for(self, class_names: Sequence[Any] | None = None) -> str:
        """The promise, or why there is none, in a sentence or two."""
        return self.promise(class_names).sentence

    def warning(self, class_names: Sequence[Any] | None = None) -> CertificateWarning | None:
        """Why there is no promise, or what is lost of it; None if there is nothing to say."""
        if self.found:
            lost = self.promise(class_names).lost
            return CertificateWarning(lost) if lost else None
        can_be_coarser = self.control != "all" and not self.class_alphas and self.alpha < 1
        coarser = Remedy.POOLED_CONTROL if self.control == "groups" else Remedy.COARSER_CONTROL
        return NoCertificateWarning(self.holds_for(class_names), remedy=coarser if can_be_coarser else None)

    def to_json(self) -> dict[str, Any]:
        """Plain values for strict JSON: an infinite threshold is null."""
        thresholds = [float(value) if np.isfinite(value) else None for value in self.thresholds]
        checks = {name: [_group_json(check) for check in getattr(self, name)] for name in ("groups", "windows")}
        plain = {**asdict(self), "thresholds": thresholds, **checks}
        return {name: plain[name] for name in plain if plain[name] or name not in _LATER}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Certificate:
        """The reverse of ``to_json``."""
        thresholds = [np.inf if value is None else float(value) for value in stored["thresholds"]]
        checks: dict[str, Any] = {
            name: tuple(of(**{**one, "classes": tuple(one.get("classes", ()))}) for one in stored.get(name, ()))
            for name, of in (("groups", GroupCheck), ("windows", WindowCheck))
        }
        alphas = tuple(stored.get("class_alphas", ()))
        checks["class_errors"] = tuple(map(tuple, stored.get("class_errors", ())))
        found = cls(**{**stored, "thresholds": np.array(thresholds), **checks, "class_alphas": alphas})
        for one in (check_fields(found, apart=("thresholds",)), *map(check_fields, (*found.groups, *found.windows))):
            counts = [value for name, value in vars(one).items() if name.startswith("n_") and value is not None]
            if any(count < 0 for count in (*counts, *itertools.chain(*found.class_errors))):
                raise InvalidInputError(f"A count of a certificate must not be negative. Got {one}.")
        if not 0 < found.u <= 1:
            raise InvalidInputError(f"'u' of a certificate must be in (0, 1]. Got {found.u!r}.")
        if not (0 < found.delta < 1 and all(0.5 < alpha <= 1 for alpha in (found.alpha, *alphas))):
            raise InvalidInputError(f"A certificate must have an alpha in (0.5, 1] and a delta in (0, 1). Got {found}.")
        check_choice(found.control, CONTROLS, "control", "a certificate")
        return found


def can_certify(class_counts: Array, *, alpha: Target, delta: float, control: str) -> bool:
    """Whether a certification sample with so many points of each class (C,) could pass at all."""
    if largest(alpha) == 1:
        return False
    control = weakest_control(alpha) if control == AUTO else control
    needed = np.array([points_needed(one, delta) for one in by_number(alpha, len(class_counts))])
    if control in ("pooled", "all"):
        return bool(class_counts.sum() >= needed[0])
    enough = class_counts >= needed
    return bool(enough.all() if control == "groups" else enough.any())


def certify(
    calibration: ScoredSample,
    certification: ScoredSample,
    n_classes: int,
    *,
    alpha: float | Sequence[float],
    delta: float = 0.1,
    control: str = "groups",
    families: Array | None = None,
    looks: int = 1,
    delta_spent: float = 0.0,
    n_errors: int = 0,
    u: float | None = None,
    advice: bool = True,
) -> Certificate:
    """Find a path on calibration, walk it on certification, and return the most lenient rule that holds.

    Parameters
    ----------
    calibration, certification : ScoredSample
        Disjoint. Nothing that shaped the model, the score or the path may have seen the second.
    n_classes : int
    alpha : float or (C,)
        Accuracy to promise, in (0.5, 1); or one for each class, which its true points and its predictions are held to.
    delta : float
        Probability with which the promise may fail.
    control : {'groups', 'pooled', 'predictions', 'all', 'auto'}
        What the promise covers: every true class and every prediction; the same, but those with too few points only
        pooled; every prediction (precision); or all admitted points taken together. 'auto' is the strongest of them
        that will probably be certified, by calibration alone (``choose_control``).
    families : (C,), optional
        With control 'pooled' or 'auto', the number of the family of each class, such as the domain of an intent:
        classes are pooled within their family first.
    looks : int
        How many certificates the certification sample has served, this one included.
    delta_spent : float
        The deltas of those before this one.
    n_errors : int
        Points that were drawn with the certification sample but cannot be tested. They count as admitted and wrong in
        every group, which is the worst that they could be: the promise holds as if they had been tested.
    u : float, optional
        Of the randomised test, in (0, 1]; 1 is the plain exact test. It must be fixed before any label is seen. By
        default it is ``certification.u``, which depends neither on labels nor on the order of points.
    advice : bool
        Whether to estimate, where nothing holds, what would: another alpha, or more examples.
    """
    target = check_target(alpha, n_classes, "certify")
    if largest(target) == 1:
        raise InvalidInputError("'alpha' of certify must be below 1: no sample can show that nothing is ever wrong.")
    check_share(delta, "delta", "certify")
    check_choice(control, (*CONTROLS, AUTO), "control", "certify")
    check_control(target, control, "certify")
    if u is not None and not 0 < u <= 1:
        raise InvalidInputError(f"'u' of certify must be in (0, 1]. Got {u!r}.")
    chances: dict[str, float] = {}
    if control == AUTO:
        choice = choose_control(
            *(calibration, n_classes, len(certification)), alpha=target, delta=delta, families=families
        )
        control, chances = choice.control, choice.chances
    asked: dict[str, Any] = {"alpha": target, "delta": delta, "control": control}
    pools = pools_of(calibration, n_classes, len(certification), **asked, families=families)
    terms = _Terms(n_classes, target, delta, control, n_errors, certification.u if u is None else float(u), pools)
    walk = _walk_predictions if control == "predictions" else _walk
    thresholds, groups = walk(calibration, certification, terms)
    windows = certified_windows(
        calibration, certification, n_classes, alpha=target, delta=delta, n_errors=n_errors, u=terms.u
    )
    certificate = Certificate(
        alpha=smallest(target),
        delta=float(delta),
        control=control,
        thresholds=thresholds,
        found=bool(np.isfinite(thresholds).any()),
        groups=groups,
        n_certification=len(certification),
        n_admitted=int(certification.admitted_by(thresholds).sum()),
        n_unlabelled=int((certification.labels == UNLABELLED).sum()),
        looks=looks,
        delta_spent=delta_spent + float(delta),
        u=terms.u,
        chances=chances,
        windows=windows,
        **_differing(target),
    )
    lowest = certificate.window_thresholds
    certificate = replace(
        certificate,
        windows=tuple(window for window in windows if window.lower >= lowest[window.numbers[0]]),
        class_errors=_class_errors(certificate, certification),
    )
    return _with_advice(certificate, calibration, terms) if advice and not certificate.found else certificate


def _class_errors(certificate: Certificate, sample: ScoredSample) -> tuple[tuple[int, int], ...]:
    if certificate.n_unlabelled:
        return ()
    asked = sample.predictions, sample.score, sample.eligible
    admitted = certificate.admits(*asked) | certificate.trusts(*asked)
    wrong, known = admitted & (sample.labels != sample.predictions), sample.labels >= 0
    n, k = (np.bincount(sample.labels[of], minlength=len(certificate.thresholds)) for of in (known, known & wrong))
    return tuple(zip(n.tolist(), k.tolist(), strict=True)) if admitted.any() else ()


@dataclass(frozen=True)
class _Terms:
    """What is to be certified; the fields are parameters of ``certify``."""

    n_classes: int
    alpha: Target
    delta: float
    control: str
    n_errors: int
    u: float
    pools: Array | None = None
    """Of the classes (C,), if some share a group."""

    def path(self, calibration: ScoredSample, n_certification: int, *, growth: int = 1) -> ThresholdPath:
        """The path that calibration gives for them; ``growth`` is as in ``ThresholdPath.of``."""
        asked: dict[str, Any] = {"alpha": self.alpha, "delta": self.delta, "control": self.control}
        return ThresholdPath.of(calibration, self.n_classes, n_certification, **asked, pools=self.pools, growth=growth)


def _differing(target: Target) -> dict[str, Any]:
    """The field of a certificate for targets that differ by class."""
    return {"class_alphas": target} if isinstance(target, tuple) else {}


def _walk_along_path(calibration: ScoredSample, certification: ScoredSample, terms: _Terms) -> Walk:
    """A walk over the threshold vectors of the path that calibration gives."""
    path = terms.path(calibration, len(certification)).thresholds

    def count(thresholds: Array) -> GroupCounts:
        admitted = certification.admitted_by(thresholds)
        return group_counts(certification, admitted, terms.n_classes, terms.control, terms.pools)

    return Walk(
        path, count, by_group(terms.alpha, terms.n_classes, terms.control, terms.pools), terms.u, terms.n_errors
    )


def _walk_end(walk: Walk, n_classes: int) -> tuple[Array, tuple[GroupCheck, ...]]:
    """The thresholds that hold, and their groups; without any, the groups of the safest element."""
    shown = (walk.passed or walk.steps[:1])[-1:]
    checks = walk.checks(shown[0]) if shown else ()
    return walk.passed[-1] if walk.passed else np.full(n_classes, np.inf), checks


def _walk(
    calibration: ScoredSample, certification: ScoredSample, terms: _Terms
) -> tuple[Array, tuple[GroupCheck, ...]]:
    """The thresholds that hold for every group at once, and the groups; without any, those of the safest element."""
    walk = _walk_along_path(calibration, certification, terms)
    walk.go_on(terms.delta)
    thresholds, checks = _walk_end(walk, terms.n_classes)
    return thresholds, checks if terms.pools is None else tuple(_named(check, terms.pools) for check in checks)


def _named(check: GroupCheck, pools: Array) -> GroupCheck:
    """The check of a pool with the classes that are in it; one class alone is a group like any other."""
    classes = tuple(np.flatnonzero(pools == check.class_number).tolist())
    return (
        replace(check, class_number=classes[0])
        if len(classes) == 1
        else replace(check, class_number=None, classes=classes)
    )


def _group_json(check: GroupCheck) -> dict[str, Any]:
    """Plain values of a group; ``classes`` only if several share it."""
    plain = asdict(check)
    return plain if check.classes else {name: plain[name] for name in plain if name != "classes"}


def _walk_predictions(
    calibration: ScoredSample, certification: ScoredSample, terms: _Terms
) -> tuple[Array, tuple[GroupCheck, ...]]:
    """The thresholds that hold for each prediction on its own, at a share of delta."""
    n_classes, delta = terms.n_classes, terms.delta
    tried = predictions_to_try(calibration, n_classes, len(certification), alpha=terms.alpha, delta=delta)
    walks = {}
    for c in tried:
        own = target_of(terms.alpha, c)
        of_one = replace(terms, n_classes=2, alpha=own, delta=delta / len(tried), control="all")  # right or wrong
        walks[c] = _walk_along_path(of_prediction(calibration, c), of_prediction(certification, c), of_one)
    share_delta(list(walks.values()), delta)
    thresholds, groups = np.full(n_classes, np.inf), []
    for c, walk in walks.items():
        certified, checks = _walk_end(walk, 2)
        thresholds[c] = certified[0]
        groups += [replace(check, kind="prediction", class_number=c) for check in checks]
    if np.isfinite(thresholds).any():  # the failed ones are not part of the rule
        groups = [check for check in groups if np.isfinite(thresholds[check.class_number])]
    return thresholds, tuple(groups)


def _with_advice(certificate: Certificate, calibration: ScoredSample, terms: _Terms) -> Certificate:
    """The same with what calibration alone says would work; the certification sample is not looked at again."""
    n = max(certificate.n_certification, 1)
    control = certificate.control
    if control == "predictions":  # the nearest that is cheap
        control = "groups" if certificate.class_alphas else "all"

    def power(alpha: Target, growth: int = 1) -> float:
        return replace(terms, alpha=alpha, control=control).path(calibration, n, growth=growth).power

    below, above = 50, round(100 * largest(certificate.target))  # in hundredths; power falls as alpha rises
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if power(capped(certificate.target, middle / 100)) >= POWER else (below, middle)
    growth = 2
    while growth <= _MOST_GROWTH and power(certificate.target, growth) < POWER:
        growth *= 2
    return replace(
        certificate,
        largest_alpha=below / 100 if below > 50 else None,
        n_needed=growth * n if growth <= _MOST_GROWTH else None,
    )
