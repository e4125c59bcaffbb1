"""Decisions of an exported torchsdm model, with NumPy and nothing else.

``SDMClassifier.export_numpy`` and ``sdm export`` put a copy of this file beside ``sdm_model.npz``::

    import sdm_numpy

    model = sdm_numpy.load("folder")
    decisions = model.decide(hidden_states)
    decisions.predictions, decisions.admitted, decisions.lane, decisions.reason

It decides as the classifier did when it was exported. Exemplars, logits, neighbours, q and d are the same to the bit:
they are defined by float64 operations in NumPy's order (``torchsdm.arithmetic``). Probabilities and scores may differ
in their last bits, because torch and SciPy have their own exp and log; so a value counts as reaching a threshold from a
few bits below. Only an input that is that close to a threshold can be decided otherwise.

There is no drift guard, no explanation and no update here, and nothing checks that hidden states are made as in
training: the same language model, prompt and settings.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

Array = np.ndarray[Any, Any]

FORMAT = "torchsdm-numpy"
FORMAT_VERSION = 3  # 1 had no measure of familiarity, 2 no windows
MODEL_NAME = "sdm_model.npz"
TRUSTED, CERTIFIED, REVIEW, UNFAMILIAR = "trusted", "certified", "review", "unfamiliar"

# What reading a damaged file comes to; a header that lies asks for memory that is not there.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, SyntaxError, BadZipFile, zlib.error),
    *(MemoryError, RecursionError, NotImplementedError),  # the last: a compression that nobody uses
    *(TypeError, TokenError),  # one array instead of several, a header that is no Python
)
_ELEMENTS = 1 << 22  # float64 numbers in memory at once (32 MB)
_ROUNDOFF = 2.0**-53
_TIE = 2.0**-46  # relative; more than the last bits of exp and log


@dataclass(frozen=True)
class Decisions:
    """One row per input; the fields are those of ``torchsdm.core.SDMDecisions``."""

    predictions: Array
    """Predicted label (N,), whether admitted or not."""
    admitted: Array
    """Whether it may be acted on (N,)."""
    lane: Array
    """'trusted', 'certified', 'review' or 'unfamiliar' (N,)."""
    reason: Array
    """Why, in words (N,)."""
    certified: Array
    """Whether the certified rule admits it (N,)."""
    score: Array
    """Estimated probability of being right, which the certified rule is set on (N,); NaN without a certificate."""
    confidence: Array
    """Probability of the predicted label (N,)."""
    probabilities: Array
    """(N, C), in the order of ``Model.classes``."""
    logits: Array
    """(N, C)"""
    similarity: Array
    """q (N,): how many consecutive nearest training examples are right and predicted alike."""
    rescaled_similarity: Array
    """q' (N,)."""
    distance_quantile: Array
    """d (N,)."""
    class_distance_quantile: Array
    """d within the predicted class (N,)."""
    nearest_distance: Array
    nearest_index: Array
    """Position of the nearest training example in the support (N,)."""
    background: Array
    """Whether it resembles the background, which belongs to no class (N,); nowhere if the model was shown none."""

    def __len__(self) -> int:
        return len(self.predictions)


@dataclass(frozen=True)
class Model:
    """A fitted model: weights, training examples as exemplars, distances of calibration points, and rules."""

    classes: Array
    """The labels (C,)."""
    arrays: dict[str, Array]
    settings: dict[str, Any]

    @property
    def promise(self) -> str:
        """What the certificate promises, or why there is none."""
        return str(self.settings["promise"])

    def decide(self, hidden_states: Any) -> Decisions:
        """Decide on hidden states (N, D), or (N, positions, D) if the model was trained on such."""
        states = self._checked(hidden_states)
        rows = max(1, _ELEMENTS // max(states[0].size, len(self.arrays["exemplars"]), 1))
        blocks = [self._decide(states[start : start + rows]) for start in range(0, len(states), rows)]
        return Decisions(*(np.concatenate([getattr(one, field.name) for one in blocks]) for field in fields(Decisions)))

    def _checked(self, hidden_states: Any) -> Array:
        states = np.asarray(hidden_states)
        n_axes, width = self.settings["input_ndim"], self.settings["n_inputs"]
        if states.ndim != n_axes or states.shape[-1] != width or not states.size:
            shape = f"(N, {width})" if n_axes == 2 else f"(N, positions, {width})"
            raise ValueError(f"'hidden_states' of decide must have shape {shape}. Got {states.shape}.")
        with np.errstate(over="ignore"):
            states = states.astype(np.float32)
        if not np.isfinite(states).all():
            raise ValueError("'hidden_states' of decide must be finite in float32. Got NaN or infinity.")
        return states

    def _decide(self, states: Array) -> Decisions:
        """Signals, activation and region (section 3 of the paper), then certified rule and lanes."""
        exemplars, logits = self._encode(states)
        logits, z_background = np.split(logits, [len(self.classes)], axis=1)
        y_hat = logits.argmax(axis=1)
        q, nearest_distance, nearest_index = self._match(exemplars, y_hat)
        is_background = (z_background > logits.max(axis=1, keepdims=True)).any(axis=1)
        q = np.where(is_background, 0, q)
        background = is_background | self.arrays["is_background"][nearest_index]
        d, d_class = self._distance_quantiles(nearest_distance, y_hat)

        z, base = logits.astype(np.float64), np.log(2.0 + q)
        scaled = (base * d)[:, None] * (z - z.max(axis=1, keepdims=True))  # softmax(ln(2 + q) d z')
        probabilities = np.exp(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)))
        confidence = np.take_along_axis(probabilities, y_hat[:, None], axis=1)[:, 0]
        q_rescaled = np.minimum(q, np.exp(confidence * base))

        in_region = np.zeros(len(z), dtype=bool)
        for region in self.settings["regions"]:
            psi = _with_infinity(region["thresholds"])[y_hat]
            least = _with_infinity([region["min_rescaled_similarity"]])
            in_region |= _reaches(q_rescaled, least) & _reaches(confidence, psi)
        has_measure = "familiar_sizes" in self.arrays
        familiarity = self._familiarity(nearest_distance, logits) if has_measure else np.where(q > 0, d_class, 0.0)
        familiarity = np.where(background, 0.0, familiarity)
        familiar = (familiarity > 0) & (familiarity >= self.settings["familiarity"])
        score, certified, in_window = self._certified(z, q, d, y_hat, familiar)
        trusted = in_region & certified if self._holds("thresholds") else in_region
        trusted = in_window if self._holds("window_thresholds") else trusted
        lane = np.select([trusted, certified, familiar], [TRUSTED, CERTIFIED, REVIEW], UNFAMILIAR)
        admitted = trusted | certified if self.settings["policy"] == "certified" else trusted
        columns = (lane, background, q, familiarity, d_class, y_hat, score, q_rescaled, confidence)
        reasons = [self._reason(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        return Decisions(
            predictions=self.classes[y_hat],
            admitted=admitted,
            lane=lane,
            reason=np.array(reasons, dtype=object),
            certified=certified,
            score=score,
            confidence=confidence,
            probabilities=probabilities,
            logits=logits,
            similarity=q,
            rescaled_similarity=q_rescaled,
            distance_quantile=d,
            class_distance_quantile=d_class,
            nearest_distance=nearest_distance,
            nearest_index=nearest_index,
            background=background,
        )

    # ---------------------------------------------------------------- exemplars

    def _encode(self, states: Array) -> tuple[Array, Array]:
        """Exemplars (N, M) and logits (N, C), or (N, C + 1) with a trained background, float32."""
        mean, scale = (self.arrays[name].astype(np.float64) for name in ("mean", "scale"))
        standardised = (states.astype(np.float64) - mean) / scale
        if "filters.weight" in self.arrays:
            rows = standardised.reshape(-1, standardised.shape[-1])  # (N * positions, D)
            values = _linear(rows, self.arrays["filters.weight"], self.arrays["filters.bias"])
            values = values.reshape(*standardised.shape[:-1], -1)
            exemplars = values.max(axis=1) if values.ndim == 3 else values  # each filter at its best position
        else:
            exemplars = standardised.astype(np.float32)
        if not np.isfinite(exemplars).all():
            raise ValueError("'hidden_states' of decide are too large: exemplars made from them are not finite.")
        return exemplars, _linear(exemplars, self.arrays["output.weight"], self.arrays["output.bias"])

    # ---------------------------------------------------------------- neighbours

    def _match(self, exemplars: Array, y_hat: Array) -> tuple[Array, Array, Array]:
        """q, distance and index of the nearest support point, in the order (distance, index).

        A float64 product bounds every squared distance; what the bounds leave open is computed.
        """
        support, groups = self.arrays["exemplars"], self.arrays["groups"]
        a, (b, support_norms) = exemplars.astype(np.float64), self._support
        norms = (a * a).sum(axis=1)[:, None] + support_norms  # (N, S)
        squared = norms - 2 * (a @ b.T)
        slack = 8 * (a.shape[1] + 8) * _ROUNDOFF * norms
        low, high = squared - slack, squared + slack
        everything = np.ones(len(b), dtype=bool)
        nearest_distance, nearest_index = self._first(exemplars, low, high, everything)

        is_match = groups == y_hat[:, None]
        boundary, boundary_index = self._first(exemplars, low, high, ~is_match)
        limit = (boundary * boundary)[:, None]
        is_before = is_match & (high < limit * (1 - 8 * _ROUNDOFF))
        rows, columns = np.nonzero(is_match & ~is_before & (low <= limit * (1 + 8 * _ROUNDOFF)))
        for part in _parts(len(rows), a.shape[1]):
            r, c = rows[part], columns[part]
            distance = _distances(exemplars[r], support[c])
            is_before[r, c] = (distance < boundary[r]) | ((distance == boundary[r]) & (c < boundary_index[r]))
        return is_before.sum(axis=1), nearest_distance, nearest_index

    @cached_property
    def _support(self) -> tuple[Array, Array]:
        """The support points (S, M) in float64, and their squared norms (S,)."""
        points = self.arrays["exemplars"].astype(np.float64)
        return points, (points * points).sum(axis=1)

    def _first(self, exemplars: Array, low: Array, high: Array, among: Array) -> tuple[Array, Array]:
        """Distance and index (N,) of the first among some support points; infinite if there are none."""
        nearest = np.where(among, high, np.inf).min(axis=1, keepdims=True)
        rows, columns = np.nonzero(among & (low <= nearest))
        distance = np.full(len(rows), np.inf)
        for part in _parts(len(rows), exemplars.shape[1]):
            distance[part] = _distances(exemplars[rows[part]], self.arrays["exemplars"][columns[part]])
        order = np.lexsort((columns, distance, rows))
        found, first = np.unique(rows[order], return_index=True)
        distances, indices = np.full(len(low), np.inf), np.full(len(low), -1)
        distances[found], indices[found] = distance[order][first], columns[order][first]
        return distances, indices

    def _distance_quantiles(self, nearest_distance: Array, y_hat: Array) -> tuple[Array, Array]:
        """d, the minimum over classes c of 1 - #{x in c : x < nearest} / n_c; and that of the predicted class."""
        sizes, distances = self.arrays["ecdf_sizes"], self.arrays["ecdf_distances"]
        by_class = np.zeros((len(nearest_distance), len(sizes)))
        for c, (size, ecdf) in enumerate(zip(sizes.tolist(), np.split(distances, sizes.cumsum()[:-1]), strict=True)):
            if size:
                by_class[:, c] = (size - np.searchsorted(ecdf, nearest_distance)) / size
        return by_class.min(axis=1), np.take_along_axis(by_class, y_hat[:, None], axis=1)[:, 0]

    def _familiarity(self, nearest_distance: Array, logits: Array) -> Array:
        """How familiar inputs are among the calibration points with the same prediction, as ``core.Familiarity``."""
        odds, y_hat, ends = _log_odds(logits), logits.argmax(axis=1), self.arrays["familiar_sizes"].cumsum()[:-1]
        names = ("distances", "odds", "products")
        distances, known_odds, products = (np.split(self.arrays[f"familiar_{name}"], ends) for name in names)
        familiarity = np.ones(len(y_hat))
        for c in np.unique(y_hat).tolist():
            rows, group = np.flatnonzero(y_hat == c), c if len(products[c]) else -1
            n = len(products[group])
            d = (n - np.searchsorted(distances[group], nearest_distance[rows])) / n
            o = (1 + np.searchsorted(known_odds[group], odds[rows], side="right")) / (1 + n)
            no_larger = np.searchsorted(products[group], d**2 * o, side="right")
            familiarity[rows] = (d > 0) * (1 + no_larger) / (1 + n)
        return familiarity

    # ---------------------------------------------------------------- rules

    def _holds(self, thresholds: str) -> bool:
        """Whether something is certified on average ('thresholds') or at every level ('window_thresholds')."""
        certificate = self.settings["certificate"] or {}
        is_asked = self.settings["reliability"] is not None and (thresholds != "thresholds" or certificate.get("found"))
        return bool(is_asked) and any(one is not None for one in certificate.get(thresholds, ()))

    def _certified(self, z: Array, q: Array, d: Array, y_hat: Array, familiar: Array) -> tuple[Array, Array, Array]:
        """Score, which inputs the certified rule admits, and which are in a window that is certified."""
        certificate, reliability = self.settings["certificate"], self.settings["reliability"]
        score, nobody = np.full(len(z), np.nan), np.zeros(len(z), dtype=bool)
        if certificate is None or reliability is None:
            return score, nobody, nobody
        top = np.partition(z, -2, axis=1)[:, -2:]
        margin = top[:, 1] - top[:, 0]
        x = np.log1p(np.stack([q.astype(np.float64), margin, d * np.log(2.0 + q) * margin], axis=1))
        total = np.full(len(z), float(reliability["intercept"]))
        for column, weight in zip([*x.T, _log_odds(z)], reliability["weights"], strict=False):  # version 1 had three
            total = total + weight * column
        score = 1 / (1 + np.exp(-total))
        certified, in_window = (
            familiar & _reaches(score, _with_infinity(certificate[name])[y_hat]) if self._holds(name) else nobody
            for name in ("thresholds", "window_thresholds")
        )
        return score, certified, in_window

    def _reason(
        self,
        lane: str,
        background: bool,
        q: int,
        familiarity: float,
        d: float,
        c: int,
        score: float,
        rescaled: float,
        confidence: float,
    ) -> str:
        """Why a decision is in its lane, as ``torchsdm.trust.LaneRule`` words it."""
        label, certificate, region = self.classes.tolist()[c], self.settings["certificate"], self.settings["regions"][0]
        if lane == UNFAMILIAR:
            if background:
                return "nearest to the background: it looks like what does not belong to any class"
            if "familiar_sizes" in self.arrays and familiarity:
                few = f"only {familiarity:.1%} of the calibration points of {label!r} are less familiar"
                return f"too far for how sure it is: {few}"
            if not q and "familiar_sizes" not in self.arrays:
                return "no neighbour vouches: the nearest training example contradicts it"
            nearer = "all" if d == 0 or "familiar_sizes" in self.arrays else f"{1 - d:.1%} of the"
            return f"too far: {nearer} calibration points of {label!r} are nearer to the training data"
        vouching = f"{q} neighbours vouch for it" if q != 1 else "1 neighbour vouches for it"
        agreeing = f"the {q} nearest examples agree" if q != 1 else "the nearest example agrees"
        begin = f"{agreeing}, the next does not; " if lane == REVIEW else f"{vouching}; "
        begin = "the nearest training example contradicts it; " if q == 0 else begin
        in_window = self._holds("window_thresholds") and (lane == TRUSTED or not self._holds("thresholds"))
        if certificate is not None and (in_window or self._holds("thresholds")):
            threshold = certificate["window_thresholds" if in_window else "thresholds"][c]
            if threshold is None:
                return f"{begin}predictions of {label!r} are not certified"
            side = "is below" if lane == REVIEW else "reaches"
            if in_window:
                levels = f"down to which {label!r} is certified at every level of evidence"
                return f"{begin}reliability {score:.4f} {side} {threshold:.4f}, {levels}"
            also = ", and the paper's region admits it" if lane == TRUSTED else ""
            others = next((len(g["classes"]) - 1 for g in certificate["groups"] if c in g.get("classes", ())), 0)
            pooled = f", pooled with {others} other{'s' * (others != 1)}" if others else ""
            known = f"{threshold:.4f}, the certified threshold of {label!r}{pooled}"
            return f"{begin}reliability {score:.4f} {side} {known}{also}"
        if lane == TRUSTED:
            return f"{begin}the paper's region admits it: q' {rescaled:.4g}, confidence {confidence:.4f}"
        least = region["min_rescaled_similarity"]
        if least is None:
            return f"{begin}there is neither a certificate nor a region at alpha {region['alpha']:g}"
        if not _reaches(rescaled, least):
            return f"{begin}q' {rescaled:.4g} is below {least:.4g}, where the paper's region begins"
        threshold = _with_infinity(region["thresholds"])[c]
        return f"{begin}confidence {confidence:.4f} is below {threshold:.4f}, the threshold of {label!r}"


def load(folder: Any) -> Model:
    """The model in a folder that ``SDMClassifier.export_numpy`` or ``sdm export`` wrote."""
    path = Path(folder) / MODEL_NAME
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        settings = json.loads(str(arrays.pop("settings", "{}")))
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged: {error!r}. Export it again.") from error
    if settings.get("format") != FORMAT or settings.get("format_version") not in (1, 2, FORMAT_VERSION):
        raise ValueError(
            f"{path} is not an export of version {FORMAT_VERSION}. Read it with the sdm_numpy.py written beside it."
        )
    labels = settings["classes"]
    classes = np.empty(len(labels["values"]), dtype=np.dtype(labels["dtype"]))
    classes[:] = labels["values"]
    return Model(classes, arrays, settings)


def _log_odds(logits: Array) -> Array:
    """The log-odds of the prediction (N,) by the softmax: z_yhat - log sum of the other exp z_c."""
    z = np.sort(logits.astype(np.float64), axis=1)
    return z[:, -1] - z[:, -2] - np.log(np.exp(z[:, :-1] - z[:, -2:-1]).sum(axis=1))


def _reaches(value: Any, threshold: Any) -> Any:
    """Whether a positive value is at least a threshold; the last bits of exp and log make no difference."""
    return value >= threshold * (1 - _TIE)


def _with_infinity(values: list[float | None]) -> Array:
    """JSON has no infinity: it is written as null."""
    return np.array([np.inf if value is None else value for value in values])


def _parts(n: int, width: int) -> Iterator[slice]:
    """Slices of n rows that fit into memory."""
    rows = max(1, _ELEMENTS // max(1, width))
    return (slice(start, start + rows) for start in range(0, n, rows))


def _distances(a: Array, b: Array) -> Array:
    """Euclidean distances (P,) of pairs of rows, in float64."""
    difference = a.astype(np.float64) - b.astype(np.float64)
    return np.sqrt((difference * difference).sum(axis=-1))


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    """``x @ weight.T + bias`` (N, K) in float32: the float64 sum of the products in NumPy's order, rounded.

    A matrix product is within ``bound`` of it. Where both ends of that interval round alike, that is the value.
    """
    x, weight, bias = (values.astype(np.float64) for values in (x, weight, bias))
    product = x @ weight.T + bias
    scale = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weight, axis=1) + np.abs(bias)
    error = (x.shape[1] + 2) * _ROUNDOFF
    bound = 2.1 * error / (1 - error) * scale + np.finfo(np.float64).tiny
    with np.errstate(over="ignore"):
        result: Array = (product - bound).astype(np.float32)
        rows, columns = np.nonzero(result != (product + bound).astype(np.float32))
    for part in _parts(len(rows), x.shape[1]):
        r, c = rows[part], columns[part]
        result[r, c] = ((x[r] * weight[c]).sum(axis=-1) + bias[c]).astype(np.float32)
    return result
