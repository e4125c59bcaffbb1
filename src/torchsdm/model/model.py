"""One fitted model: adaptor, support, calibration set and region, and the decisions they give.

This is the whole method for class numbers and tensors; ``SDMClassifier`` adds labels and
scikit-learn's contract, ``SDMEnsemble`` combines several.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import Adaptor, Decisions, Encoded, SDMDecisions, Target, decide
from torchsdm.errors import InvalidInputError
from torchsdm.matching import DEFAULT_BLOCK_SIZE, IndexedRows, Match, Support, SupportSet
from torchsdm.model.calibration import Calibration, EncodedPoints
from torchsdm.model.examples import Examples, Set, same_points
from torchsdm.trust import row_digests, uniform_of
from torchsdm.validation import Array, check_finite

SUPPORT, CALIBRATION, CERTIFICATION = "support", "calibration", "certification"  #: the three sets of a model
_ROWS_AT_ONCE = 8192  # inputs whose exemplars are in memory at once while deciding


@dataclass(frozen=True)
class Points:
    """Labelled points to build a model from: their states in blocks, class numbers, ids and texts."""

    state_blocks: Iterable[Tensor]
    labels: Tensor
    examples: Examples
    keys: Array | None = None
    """By which points to certify with are known again (N, K)."""
    n_left_out: int = 0
    """Rows that belong together with these, and are left out for it."""


@dataclass(frozen=True)
class Certification(EncodedPoints):
    """Labelled points that neither training nor calibration saw."""

    n_given_back: int = 0
    """Points drawn with these, but given back to training for the sake of their class."""
    fingerprint: str = ""
    """SHA-256 of the hidden states as they were given, by which a sample is recognised when it is used again."""
    n_corrected: int = 0
    """Points that were relabelled or removed since."""
    u: float = 1.0
    """Of the randomised test: drawn from the hidden states as they were given, whatever their order. Samples that were
    stored before there was one keep the plain test, 1: what they were asked has been answered with it."""
    n_left_out: int = 0
    """Rows that were drawn with these and left out, because they belong together with one that is here."""


@dataclass(frozen=True)
class KnownSample:
    """What stays known of a certification sample when another takes its place."""

    keys: Array
    """Of its rows (N, K); of a sample from before there were any, no row."""
    n_given_back: int
    n_corrected: int
    u: float

    def to_json(self) -> dict[str, Any]:
        """Plain values that ``from_json`` reads."""
        content = base64.b64encode(self.keys.astype("<u8").tobytes()).decode()
        return {**vars(self), "keys": content, "n_keys": self.keys.shape[1]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> KnownSample:
        """The reverse of ``to_json``."""
        numbers = np.frombuffer(base64.b64decode(stored["keys"], validate=True), dtype="<u8").astype(np.uint64)
        counts = int(stored["n_given_back"]), int(stored["n_corrected"])
        if min(counts) < 0 or not 0 < float(stored["u"]) <= 1:
            raise ValueError(f"a certification sample has {counts} points given back and corrected, u {stored['u']!r}")
        return cls(numbers.reshape(-1, int(stored["n_keys"])), *counts, float(stored["u"]))


@dataclass
class SDMModel:
    """A model that can decide, be updated and be recalibrated."""

    adaptor: Adaptor
    support: Support
    examples: Examples
    calibration: Calibration
    classes: Array
    outdated: bool = False
    """Whether the support, the calibration set or the certification set was changed since the calibration."""
    certification: Certification | None = None
    has_background: bool = False
    """Whether class number C, the first after the classes, stands for background examples in the support."""
    next_calibration: EncodedPoints | None = None
    """The points that the next calibration will use, if they were changed; until then decisions use the old ones."""

    def __post_init__(self) -> None:
        self.support.named_by(self.examples.ids)

    @classmethod
    def build(
        cls,
        adaptor: Adaptor,
        training: Points,
        calibration: Points | None,
        classes: Array,
        alphas: Sequence[Target],
        *,
        out_of_fold: Tensor | None = None,
        min_class_count: int = 0,
        block_size: int = DEFAULT_BLOCK_SIZE,
    ) -> SDMModel:
        """The model of a trained adaptor: its support, and the regions found on the calibration points.

        Training points with class number C, beyond the classes, are background. With logits ``out_of_fold`` (N, C) or
        (N, C + 1), the training points are predicted by them, and if there are no calibration points, the training
        points calibrate, too: each against all others, with the exemplar that it would have if it had not been seen.
        """
        n_classes = len(classes)

        def encode(blocks: Iterable[Tensor]) -> Iterator[Encoded]:
            return (Encoded.of(*adaptor.encode_exactly(block), n_classes=n_classes) for block in blocks)

        trained = ((one.exemplars, one.recognised_as) for one in encode(training.state_blocks))  # logits are not kept
        exemplars, recognised = map(torch.cat, zip(*trained, strict=True))
        predicted: Encoded | None = None
        if out_of_fold is not None:
            predicted = Encoded.of(exemplars, out_of_fold.to(exemplars.device), n_classes)
            recognised = predicted.recognised_as
        support = SupportSet(exemplars, training.labels, recognised, block_size=block_size)
        if calibration is not None:
            points, labels = Encoded.concatenate(list(encode(calibration.state_blocks))), calibration.labels
            known = EncodedPoints(points, labels.to(support.device), calibration.examples)
        elif predicted is not None and out_of_fold is not None:
            places = torch.nonzero(training.labels < n_classes).squeeze(1)
            unseen = adaptor.answering(exemplars, out_of_fold.to(exemplars.device))
            points, labels = replace(predicted, exemplars=unseen)[places.tolist()], training.labels[places]
            examples = training.examples.take(places.tolist())
            known = EncodedPoints(points, labels.to(support.device), examples, places=places)
        else:
            raise InvalidInputError("SDMModel.build needs calibration points, or logits out of fold.")
        found = Calibration.of(known, support, alphas, min_class_count)
        has_background = bool((training.labels == n_classes).any())
        return cls(adaptor, support, training.examples, found, classes, has_background=has_background)

    @property
    def calibration_points(self) -> EncodedPoints:
        """The calibration set as it is now, with the changes that the next calibration will use."""
        return self.next_calibration or self.calibration.known

    def held_out(self) -> dict[str, EncodedPoints]:
        """The calibration set and, if there is one, the certification set, by name."""
        certification = {} if self.certification is None else {CERTIFICATION: self.certification}
        return {CALIBRATION: self.calibration_points, **certification}

    def sets(self) -> dict[str, Set]:
        """Exemplars, with an index, and examples of each set that the model has, by name."""
        held_out = {name: (IndexedRows([one.points.row_index]), one.examples) for name, one in self.held_out().items()}
        return {SUPPORT: (self.support.rows, self.examples), **held_out}

    def known_ids(self) -> list[Any]:
        """The ids of support, calibration and certification set."""
        return [name for _, examples in self.sets().values() for name in examples.ids()]

    def largest_number(self) -> int:
        """The largest id of any set that is a number; -1 if none is."""
        return max(examples.largest_number() for _, examples in self.sets().values())

    def has_points(self, hidden_states: Tensor, texts: Sequence[str | None] | Array | None = None) -> dict[str, Array]:
        """Which inputs (N,) are points of each set that the model has: same exemplar or same text."""
        rows = torch.cat([block.exemplars for block in self._encoded_blocks(hidden_states)])
        inputs = (IndexedRows.of(rows), Examples.of(range(len(rows)), texts))
        has = {}
        for name, known in self.sets().items():
            has[name] = np.zeros(len(rows), dtype=bool)
            has[name][list(same_points(inputs, known, by_text=texts is not None))] = True
        return has

    def certify_with(self, points: Points, n_given_back: int = 0) -> bool:
        """Keep points to certify with; whether they are those that it has already, given again."""
        earlier = self.certification
        digest, of_rows, encoded = hashlib.sha256(), list[bytes](), []
        for block in points.state_blocks:
            states = block.to("cpu", torch.float32).contiguous().numpy()
            digest.update(states.tobytes())
            of_rows += row_digests(states)
            encoded.append(Encoded.of(*self.adaptor.encode_exactly(block), n_classes=len(self.classes)))
        self.certification = Certification(
            Encoded.concatenate(encoded),
            points.labels.to(self.support.device),
            points.examples,
            n_given_back=n_given_back,
            fingerprint=digest.hexdigest(),
            u=uniform_of(of_rows),
            n_left_out=points.n_left_out,
        )
        return earlier is not None and self.takes_up(earlier)

    def takes_up(self, earlier: Certification) -> bool:
        """Whether the certification sample is an earlier one, given again: what is known of that one holds for it."""
        now = self.certification
        if now is None or now.fingerprint != earlier.fingerprint:
            return False
        n_relabelled = int((now.labels != earlier.labels).sum()) if len(now.labels) == len(earlier.labels) else 0
        n_corrected = earlier.n_corrected + n_relabelled
        self.certification = replace(now, n_given_back=earlier.n_given_back, n_corrected=n_corrected, u=earlier.u)
        return True

    def decide_encoded(self, points: Encoded) -> SDMDecisions:
        """Decide on points that are encoded already, such as those of calibration or certification."""
        return Decisions.concatenate([decisions for decisions, _ in self._decide(points.split(_ROWS_AT_ONCE))])

    def decide(self, hidden_states: Tensor) -> SDMDecisions:
        """Decide on hidden states (N, D) or (N, positions, D)."""
        blocks = self._encoded_blocks(hidden_states)
        return Decisions.concatenate([decisions for decisions, _ in self._decide(blocks)])

    def decide_with_neighbors(self, hidden_states: Tensor, k: int) -> tuple[SDMDecisions, Tensor, Tensor]:
        """Decisions, and the distances and indices (N, k) of the nearest support points."""
        decisions, matches = zip(*self._decide(self._encoded_blocks(hidden_states), k), strict=True)
        distances = torch.cat([match.neighbor_distances for match in matches])
        return Decisions.concatenate(decisions), distances, torch.cat([match.neighbor_indices for match in matches])

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Logits (N, C)."""
        return torch.cat([block.logits for block in self._encoded_blocks(hidden_states)]).cpu()

    def predict(self, hidden_states: Tensor) -> Tensor:
        """Predicted class numbers (N,), from the logits only."""
        return self.logits(hidden_states).argmax(dim=1)

    def recalibrate(self, alphas: Sequence[Target] | None = None, min_class_count: int | None = None) -> None:
        """Recompute the regions, by default for the same alphas, and, if a set has changed, the signals and eCDFs."""
        alphas = [region.target for region in self.calibration.regions] if alphas is None else alphas
        min_class_count = self.calibration.min_class_count if min_class_count is None else min_class_count
        if self.outdated:
            self.calibrated(Calibration.of(self.calibration_points, self.support, alphas, min_class_count))
        else:
            self.calibration = self.calibration.with_regions(alphas, min_class_count)

    def calibrated(self, calibration: Calibration) -> None:
        """Adopt a calibration that was made with the calibration points as they are now."""
        self.calibration, self.next_calibration, self.outdated = calibration, None, False

    def encoded(self, hidden_states: Tensor, labels: Tensor, examples: Examples) -> EncodedPoints:
        """Points as the adaptor sees them, to add."""
        points = Encoded.concatenate(list(self._encoded_blocks(hidden_states)))
        return EncodedPoints(points, labels.to(points.exemplars.device), examples)

    def add(self, points: EncodedPoints, *, to: str = SUPPORT) -> None:
        """Append points to the support or the calibration set; weights, eCDFs and region stay as they are."""
        if to == SUPPORT:
            encoded = points.points
            self.support.add(encoded.exemplars, points.labels, encoded.recognised_as)
            self._keep(self.examples.with_added(points.examples))
        else:
            self._replace(self.calibration_points.with_added(points))

    def remove(self, positions: Sequence[int], *, of: str = SUPPORT) -> None:
        """Drop points from a set."""
        if of == SUPPORT:
            examples = self.examples.without(set(positions))
            gone = torch.tensor(positions, dtype=torch.int64)
            known = self.calibration_points
            if known.places is not None:
                self.next_calibration = replace(known, places=_places_without(known.places, gone))
            self.support.remove(gone)
            self._keep(examples)
        else:
            self._replace(self.held_out()[of].without(positions), len(set(positions)))

    def relabel(self, positions: Sequence[int], labels: Tensor, *, of: str = SUPPORT) -> None:
        """Give points of a set new labels."""
        if of == SUPPORT:
            self.support.relabel(torch.tensor(positions, dtype=torch.int64), labels)
            self.outdated = True
        else:
            points = self.held_out()[of]
            changed = points.labels.clone()
            changed[list(positions)] = labels.to(changed.device)
            n_changed = int((changed != points.labels).sum())
            if n_changed:  # the label it has already is no correction
                self._replace(replace(points, labels=changed), n_changed)

    def _keep(self, examples: Examples) -> None:
        """Adopt the examples of a changed support."""
        self.examples, self.outdated = examples, True
        self.support.named_by(examples.ids)

    def _replace(self, points: EncodedPoints, n_corrected: int = 0) -> None:
        """Adopt changed calibration or certification points."""
        if isinstance(points, Certification):
            self.certification = replace(points, n_corrected=points.n_corrected + n_corrected)
        else:
            self.next_calibration = points
        self.outdated = True

    def _encoded_blocks(self, hidden_states: Tensor) -> Iterator[Encoded]:
        for block in hidden_states.split(_ROWS_AT_ONCE):
            points = Encoded.of(*self.adaptor.encode_exactly(block), n_classes=len(self.classes))
            check_finite(points.exemplars, "exemplars", "the adaptor, made from X,")
            yield points

    def _decide(self, blocks: Iterable[Encoded], k: int = 0) -> Iterator[tuple[SDMDecisions, Match]]:
        known = self.calibration
        for points in blocks:
            match = points.unvouched(self.support.match(points.exemplars, points.predictions, k=k))
            calibrated = known.ecdfs, known.rescaled_similarity, known.labels, known.regions
            decisions = decide(points.logits, match, *calibrated, self.classes)
            if self.has_background:
                is_nearest = self.support.labels[match.nearest_index] == len(self.classes)
                decisions = replace(decisions, background=(points.is_background | is_nearest).cpu().numpy())
            yield decisions, match


def locate(
    models: Sequence[SDMModel], ids: Sequence[Any], names: Sequence[str], kind: str, method: str
) -> list[tuple[SDMModel, str, list[int], list[int]]]:
    """Where the ids are in sets of these names: model, set, positions in it, and which of the ids those are.

    Every id must be in some model. In one model it may be in one set only, unless it is the same point of both.
    """
    found: list[tuple[SDMModel, str, list[int], list[int]]] = []
    seen: set[int] = set()
    for model in models:
        taken: dict[int, str] = {}
        in_support: Sequence[int | None] = [None] * len(ids)
        for name, (_, examples) in model.sets().items():
            places = examples.positions(ids) if name in names else []
            rows = [row for row, place in enumerate(places) if place is not None]
            if name == SUPPORT:
                in_support = places or in_support
            own = model.calibration_points.places if name == CALIBRATION else None
            is_same = {row for row in rows if own is not None and own[places[row]] == in_support[row]}
            twice = next((row for row in rows if row in taken and row not in is_same), None)
            if twice is not None:
                raise InvalidInputError(
                    f"'ids' of {kind}.{method}: {ids[twice]!r} names a point of the {taken[twice]} set and one of the "
                    f"{name} set. For the support use {method}_exemplars."
                )
            taken |= dict.fromkeys(rows, name)
            if rows:
                found.append((model, name, [place for place in places if place is not None], rows))
        seen |= taken.keys()
    missing = next((name for row, name in enumerate(ids) if row not in seen), None)
    if missing is not None:
        what, other = "the model", ""
        if tuple(names) == (SUPPORT,):
            what, other = "the support", " (calibration points are not part of the support)"
        raise InvalidInputError(
            f"'ids' of {kind}.{method} must name points of {what}. Got {missing!r}, which is not one{other}."
        )
    return found


def _places_without(places: Tensor, gone: Tensor) -> Tensor:
    """Places (N,) in a support from which some points are removed."""
    gone = gone.unique()
    left = places - torch.searchsorted(gone, places)
    return left.masked_fill(torch.isin(places, gone) | (places < 0), -1)
