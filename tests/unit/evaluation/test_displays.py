"""The displays: what they compute, against plain loops, and that they draw it where they should."""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchsdm import ClassEcdfs, Decisions, SDMClassifier, SDMEnsemble, SDMTextClassifier
from torchsdm.core import SDMDecisions
from torchsdm.core.region import HighReliabilityRegion
from torchsdm.errors import InvalidInputError, InvalidTypeError, MissingExtraError, NotFittedError
from torchsdm.evaluation import (
    AlphaDisplay,
    CostDisplay,
    DistanceDisplay,
    PartitionDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    TrainingHistoryDisplay,
)
from torchsdm.evaluation.metrics import aurc
from torchsdm.training import History
from torchsdm.training.history import EpochRecord

plt = pytest.importorskip("matplotlib.pyplot")

OF_LABELLED = [PartitionDisplay, RiskCoverageDisplay, ReliabilityDisplay, DistanceDisplay, AlphaDisplay]
ALL = [*OF_LABELLED, TrainingHistoryDisplay]
SEVERAL_PANELS = {PartitionDisplay: 3, ReliabilityDisplay: 2, AlphaDisplay: 2, TrainingHistoryDisplay: 3}


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def labelled(insects):
    """Fresh inputs with true labels, some of them hard."""
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 3, 150)
    X = (3.5 * np.eye(3, 4)[numbers] + 1.4 * rng.standard_normal((150, 4))).astype(np.float32)
    X[:4] += 100
    return X, np.array(["ant", "bee", "cat"])[numbers]


def needed(display, classifier):
    """What from_predictions of a display needs beside decisions and labels."""
    if display is PartitionDisplay:
        return {"region": classifier.region_}
    return {"ecdfs": classifier.model_.calibration.ecdfs} if display is DistanceDisplay else {}


def made_of(display, classifier, X, y):
    return display.from_predictions(classifier.decide(X), y, **needed(display, classifier))


def same(a, b):
    """Whether two values of a display are equal, to the last bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and not isinstance(a, str):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    if isinstance(a, np.ndarray) and a.dtype.kind == "U":
        return a.tolist() == b.tolist()
    return np.array_equal(a, b, equal_nan=not isinstance(a, str))


def without_region(classifier):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return copy.copy(classifier).recalibrate(0.9, min_class_count=10**6)


def decisions_of(confidence, correct, alphas=(0.9,), admitted=None, score=None):
    """Two classes; the prediction is always 'no', the label too where it is correct."""
    confidence = np.asarray(confidence, dtype=float)
    n = len(confidence)
    admitted_at = np.zeros((n, len(alphas)), dtype=bool) if admitted is None else np.asarray(admitted).reshape(n, -1)
    others = {} if score is None else {"score": np.asarray(score, dtype=float)}
    decisions = Decisions.of_probabilities(
        np.array(["no", "yes"]),
        alphas,
        np.tile([1.0, 0.0], (n, 1)),
        np.stack([confidence, 1 - confidence], axis=1),
        admitted_at,
        **others,
    )
    return decisions, np.where(correct, "no", "yes")


# --- What every display does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("display", OF_LABELLED)
def test_from_estimator_equals_from_predictions(display, fitted, labelled):
    X, y = labelled
    if display is AlphaDisplay:
        one = display.from_estimator(fitted, X, y, alphas=(0.9, 0.8))
    else:
        one = display.from_estimator(fitted, X, y)
    other = made_of(display, fitted, X, y)
    if display is RiskCoverageDisplay:
        other = display.from_predictions(fitted.decide(X), y, name="SDMClassifier")
    fields = [name for name in display.__dataclass_fields__ if not name.endswith("_")]
    assert len(fields) >= 2
    for name in fields:
        assert same(getattr(one, name), getattr(other, name)), name


def of_any(display, classifier, X, y):
    if display is TrainingHistoryDisplay:
        return display.from_estimator(classifier)
    return made_of(display, classifier, X, y)


@pytest.mark.parametrize("display", ALL)
def test_plot_draws_on_the_axes_given(display, fitted, labelled):
    figure, (other, ax) = plt.subplots(1, 2, layout="constrained", figsize=(12, 4))
    drawing = of_any(display, fitted, *labelled)
    assert not hasattr(drawing, "ax_")
    assert drawing.plot(ax=ax) is drawing
    assert drawing.ax_ is ax and drawing.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    assert not other.lines and not other.get_xlabel()
    figure.canvas.draw()
    if display in SEVERAL_PANELS:
        assert len(drawing.axes_) == SEVERAL_PANELS[display]
        for panel in drawing.axes_:  # all of them in the right half, where the axes were
            assert panel.figure is figure and panel.get_position().x0 > other.get_position().x1
            assert panel.has_data()
    else:
        assert ax.has_data()


@pytest.mark.parametrize("display", ALL)
def test_plot_makes_a_figure_of_its_own_in_which_nothing_is_cut(display, fitted, labelled):
    drawing = of_any(display, fitted, *labelled).plot()
    figure = drawing.figure_
    figure.canvas.draw()
    width, height = figure.get_size_inches()
    assert width <= 8 and height <= 5.5  # to be read at the width of a page
    needed_box = figure.get_tightbbox()
    assert needed_box.x0 > -0.05 and needed_box.y0 > -0.05
    assert needed_box.x1 < width + 0.05 and needed_box.y1 < height + 0.05
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(lambda a: hasattr(a, "get_fontsize")))


@pytest.mark.parametrize("display", SEVERAL_PANELS)
def test_axes_put_somewhere_by_hand_are_filled_too(display, fitted, labelled):
    figure = plt.figure()
    ax = figure.add_axes((0.5, 0.4, 0.4, 0.5))
    drawing = of_any(display, fitted, *labelled).plot(ax)
    figure.canvas.draw()
    for panel in drawing.axes_:
        assert panel.get_position().x0 >= 0.49 and panel.get_position().y0 >= 0.39


@pytest.mark.parametrize("display", ALL)
def test_without_a_region_nothing_is_admitted_and_everything_can_be_drawn(display, fitted, labelled):
    drawing = of_any(display, without_region(fitted), *labelled).plot()
    drawing.figure_.canvas.draw()
    if display is PartitionDisplay:
        assert not drawing.admitted.any() and np.isinf(drawing.min_rescaled_similarity)
        assert not drawing.axes_[0].patches and not drawing.axes_[0].collections  # no region is shaded
    if display is RiskCoverageDisplay:
        assert drawing.curves[0].admitted_share == 0 and np.isnan(drawing.curves[0].admitted_risk)
        assert any("nothing admitted" in text.get_text() for text in drawing.ax_.get_legend().get_texts())
    if display is AlphaDisplay:
        assert drawing.admitted_share.tolist() == [0.0] and np.isnan(drawing.lowest_class_accuracy).all()


@pytest.mark.parametrize("display", OF_LABELLED)
def test_a_class_absent_from_y(display, fitted, labelled):
    X, y = labelled
    kept = y != "bee"
    drawing = made_of(display, fitted, X[kept], y[kept]).plot()
    drawing.figure_.canvas.draw()
    if display is PartitionDisplay:
        assert len(drawing.axes_) == 3 and drawing.similarity_counts[1].sum() == 0
        assert "no inputs" in [text.get_text() for text in drawing.axes_[1].texts]
    if display is AlphaDisplay:
        assert np.isnan(drawing.class_accuracy[:, 1]).all() and not np.isnan(drawing.lowest_class_accuracy).any()


@pytest.mark.parametrize("display", ALL)
def test_axes_that_are_none_are_refused(display, fitted, labelled):
    with pytest.raises(InvalidTypeError, match=rf"'ax' of {display.__name__}.plot must be matplotlib axes.*Got list"):
        of_any(display, fitted, *labelled).plot(ax=[1])


@pytest.mark.parametrize("display", ALL)
def test_without_matplotlib_there_are_arrays_and_a_pip_line(display, fitted, labelled, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    drawing = of_any(display, fitted, *labelled)
    with pytest.raises(
        MissingExtraError, match=rf"{display.__name__}.plot needs matplotlib.*pip install 'torchsdm\[report\]'"
    ):
        drawing.plot()


@pytest.mark.parametrize("display", OF_LABELLED)
def test_wrong_input_is_refused_in_a_sentence(display, fitted, labelled):
    X, y = labelled
    others = needed(display, fitted)
    decisions = fitted.decide(X)
    with pytest.raises(InvalidTypeError, match=r"must be Decisions, as returned by decide. Got ndarray"):
        display.from_predictions(decisions.confidence, y, **others)
    with pytest.raises(InvalidInputError, match="must have at least one input"):
        display.from_predictions(decisions[[]], y[:0], **others)
    with pytest.raises(NotFittedError):
        display.from_estimator(SDMClassifier(), X, y)
    with pytest.raises(InvalidTypeError, match=rf"'estimator' of {display.__name__}.from_estimator must.*Got str"):
        display.from_estimator("classifier", X, y)
    if display is DistanceDisplay:
        return  # needs no labels
    with pytest.raises(InvalidInputError, match=r"'y' of .* one value for each of 150 inputs. Got 149"):
        display.from_predictions(decisions, y[1:], **others)
    with pytest.raises(InvalidInputError, match=r"must contain only labels seen in fit .*Got 'dog'"):
        display.from_predictions(decisions, np.where(y == "bee", "dog", y), **others)
    with pytest.raises(InvalidInputError, match="requires y to be passed"):
        display.from_predictions(decisions, None, **others)


@pytest.mark.parametrize("display", [PartitionDisplay, DistanceDisplay])
def test_what_needs_signals_or_one_calibration_set_says_so(display, fitted, labelled):
    X, y = labelled
    plain, labels = decisions_of([0.9, 0.8], [True, False])
    extra = {"region": fitted.region_} if display is PartitionDisplay else {"ecdfs": ClassEcdfs((torch.ones(1),) * 2)}
    with pytest.raises(InvalidInputError, match="must be from an SDM estimator"):
        display.from_predictions(plain, labels, **extra)
    with pytest.raises(InvalidTypeError, match="Got SDMEnsemble, which has one calibration set per round"):
        display.from_estimator(SDMEnsemble.from_classifier(fitted), X, y)
    with pytest.raises(NotFittedError, match="SDMTextClassifier is not fitted"):
        display.from_estimator(SDMTextClassifier("nowhere"), ["a"], ["b"])
    with pytest.raises(InvalidTypeError, match=r"Got int"):
        display.from_predictions(fitted.decide(X), y, **dict.fromkeys(extra, 3))
    two = (
        HighReliabilityRegion(0.9, 1.0, torch.ones(2), torch.ones(2)) if display is PartitionDisplay else extra["ecdfs"]
    )
    with pytest.raises(InvalidInputError, match=r"the 3 classes of the decisions. Got 2"):
        display.from_predictions(fitted.decide(X), y, **dict.fromkeys(extra, two))


# --- PartitionDisplay ------------------------------------------------------------------------------------------------


def test_partition_arrays_against_loops(fitted, labelled):
    X, y = labelled
    display = PartitionDisplay.from_estimator(fitted, X, y)
    decisions = fitted.decide(X)
    region = fitted.region_
    names = fitted.classes_.tolist()
    assert region.alpha == 0.9 == display.alpha and display.thresholds.tolist() == region.thresholds.tolist()
    for row in range(len(y)):
        predicted = names.index(decisions.predictions[row])
        admits = (
            decisions.rescaled_similarity[row] >= region.min_rescaled_similarity
            and decisions.confidence[row] >= region.thresholds[predicted]
        )
        assert display.admitted[row] == admits
        assert display.labels[row] == names.index(y[row]) and display.correct[row] == (
            decisions.predictions[row] == y[row]
        )
    assert (display.admitted == decisions.admitted_at[:, 1]).all()  # alphas ascending: 0.8, 0.9
    for values, edges, counts in (
        (decisions.rescaled_similarity, display.similarity_edges, display.similarity_counts),
        (decisions.confidence, display.confidence_edges, display.confidence_counts),
    ):
        expected = np.zeros_like(counts)
        for value, label, right in zip(values, display.labels, display.correct, strict=True):
            for b in range(len(edges) - 1):
                last = b == len(edges) - 2
                if edges[b] <= value < edges[b + 1] or (last and value == edges[-1]):
                    expected[label, 0 if right else 1, b] += 1
        assert (counts == expected).all() and counts.sum() == len(y)
    assert display.similarity_counts[:, :, 0].sum() == (decisions.rescaled_similarity == 0).sum() > 0
    assert display.similarity_counts[:, :, 1].sum() == 0  # there is no q' between 0 and 1


def test_partition_of_another_alpha(fitted, labelled):
    X, y = labelled
    display = PartitionDisplay.from_estimator(fitted, X, y, alpha=0.8)
    assert display.alpha == 0.8 and (display.admitted == fitted.decide(X).admitted_at[:, 0]).all()
    with pytest.raises(InvalidInputError, match=r"one of the estimator's own, 0.9, 0.8. Got 0.7"):
        PartitionDisplay.from_estimator(fitted, X, y, alpha=0.7)
    with pytest.raises(InvalidInputError, match="alpha is target accuracy"):
        PartitionDisplay.from_estimator(fitted, X, y, alpha=0.1)


def test_partition_draws_points_thresholds_and_region(fitted, labelled):
    display = PartitionDisplay.from_estimator(fitted, *labelled).plot()
    for c, panel in enumerate(display.axes_):
        drawn = {
            line.get_label(): np.column_stack(line.get_data()) for line in panel.lines if line.get_linestyle() == "None"
        }
        own = display.labels == c
        groups = {
            "correct": own & display.correct,
            "wrong, rejected": own & ~display.correct & ~display.admitted,
            "wrong, admitted": own & ~display.correct & display.admitted,
        }
        for name, rows in groups.items():
            expected = np.column_stack([display.rescaled_similarity, display.confidence])[rows]
            assert np.array_equal(drawn[name], expected), name
        lines = [line for line in panel.lines if line.get_linestyle() in ("--", ":")]
        assert set(lines[0].get_xdata()) == {display.min_rescaled_similarity}
        assert set(lines[1].get_ydata()) == {display.thresholds[c]}
        corners = panel.collections[0].get_paths()[0].vertices
        assert corners.min(axis=0).tolist() == [display.min_rescaled_similarity, display.thresholds[c]]
        left, right = panel.get_xlim()
        assert left < 0 and right > display.rescaled_similarity.max()
        bottom, top = panel.get_ylim()
        assert bottom < display.confidence.min() and top > 1


def synthetic(n, n_classes, seed=0):
    """Decisions whose signals are made up, with a region at alpha 0.9."""
    rng = np.random.default_rng(seed)
    predicted, labels = rng.integers(0, n_classes, n), rng.integers(0, n_classes, n)
    labels = np.where(rng.random(n) < 0.9, predicted, labels)
    logits = np.eye(n_classes)[predicted]
    confidence = 1 - 10.0 ** -rng.uniform(0.2, 7, n)
    probabilities = np.full((n, n_classes), (1 - confidence[:, None]) / (n_classes - 1))
    probabilities[np.arange(n), predicted] = confidence
    q_rescaled = np.where(rng.random(n) < 0.1, 0.0, np.exp(rng.uniform(0, 8, n)))
    region = HighReliabilityRegion(
        0.9, 20.0, torch.linspace(0.9, 0.999, n_classes, dtype=torch.float64), torch.full((n_classes,), 50)
    )
    admitted = region.admits(q_rescaled, predicted, confidence).numpy()
    plain = Decisions.of_probabilities(np.arange(n_classes), (0.9,), logits, probabilities, admitted[:, None])
    signals = dict.fromkeys(SDMDecisions.__dataclass_fields__.keys() - Decisions.__dataclass_fields__.keys())
    return SDMDecisions(**{**vars(plain), **signals, "rescaled_similarity": q_rescaled}), labels, region


@pytest.mark.parametrize("n_classes", [2, 4, 7, 10])
def test_partition_has_a_panel_for_each_of_many_classes(n_classes):
    decisions, labels, region = synthetic(500, n_classes)
    display = PartitionDisplay.from_predictions(decisions, labels, region=region).plot()
    display.figure_.canvas.draw()
    assert len(display.axes_) == n_classes
    boxes = [panel.get_position() for panel in display.axes_]
    for first in range(n_classes):
        for second in range(first):
            assert not boxes[first].overlaps(boxes[second])
    assert max(display.figure_.get_size_inches()) <= 10


def test_partition_of_many_points_draws_some_of_them_always_the_same_and_says_so():
    decisions, labels, region = synthetic(100_000, 3)
    display = PartitionDisplay.from_predictions(decisions, labels, region=region).plot()
    assert len(display.drawn_) == len(set(display.drawn_)) == 5000
    assert display.similarity_counts.sum() == display.confidence_counts.sum() == 100_000
    drawn = sum(
        len(line.get_xdata()) for panel in display.axes_ for line in panel.lines if line.get_linestyle() == "None"
    )
    assert drawn == 5000
    # by lot: errors are as frequent among the points drawn as among all
    assert display.correct[display.drawn_].mean() == pytest.approx(display.correct.mean(), abs=0.02)
    titles = [text.get_text() for text in display.figure_.findobj(plt.Text)]
    assert any("5,000 of 100,000 points drawn; numbers and histograms include all" in title for title in titles)
    first = display.drawn_
    assert np.array_equal(display.plot().drawn_, first)
    assert len(display.plot(max_points=7).drawn_) == 7
    with pytest.raises(InvalidInputError, match=r"'max_points' of PartitionDisplay.plot must be positive"):
        display.plot(max_points=0)


# --- RiskCoverageDisplay ---------------------------------------------------------------------------------------------


def slow_curve(score, correct):
    points = []
    for threshold in sorted(set(score), reverse=True):
        answered = [right for value, right in zip(score, correct, strict=True) if value >= threshold]
        points.append((len(answered) / len(score), sum(not right for right in answered) / len(answered)))
    return tuple(np.array(points).T)


@pytest.mark.parametrize("with_score", [False, True])
def test_risk_coverage_against_loops_with_ties(with_score):
    rng = np.random.default_rng(0)
    correct = rng.random(200) < 0.8
    confidence = rng.integers(50, 60, 200) / 64
    score = rng.integers(0, 9, 200) if with_score else None
    admitted = rng.random(200) < 0.4
    decisions, y = decisions_of(confidence, correct, admitted=admitted, score=score)
    display = RiskCoverageDisplay.from_predictions(decisions, y)
    (curve,) = display.curves
    coverage, risk = slow_curve(confidence if score is None else score, correct)
    assert np.allclose(curve.coverage, coverage, rtol=0, atol=1e-15) and np.allclose(
        curve.risk, risk, rtol=0, atol=1e-15
    )
    assert curve.admitted_share == admitted.sum() / 200
    assert curve.admitted_risk == pytest.approx((admitted & ~correct).sum() / admitted.sum(), abs=1e-15)
    assert display.alpha == 0.9


def test_risk_coverage_draws_steps_whose_area_is_aurc():
    rng = np.random.default_rng(1)
    correct, confidence = rng.random(60) < 0.7, rng.integers(33, 60, 60) / 64
    decisions, y = decisions_of(confidence, correct, admitted=confidence > 0.7)
    display = RiskCoverageDisplay.from_predictions(decisions, y).plot()
    steps, _, point, target = display.ax_.lines
    assert steps.get_drawstyle() == "steps-pre"
    x, risk = steps.get_data()
    assert (x[0], x[-1]) == (0, 1)
    assert (np.diff(x) * risk[1:]).sum() == pytest.approx(aurc(confidence, correct), abs=1e-12)
    (curve,) = display.curves
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (curve.admitted_share, curve.admitted_risk)
    assert set(target.get_ydata()) == {1 - 0.9}


def test_risk_coverage_of_several_estimators(fitted, labelled):
    X, y = labelled
    ensemble = SDMEnsemble.from_classifier(fitted)
    display = RiskCoverageDisplay.from_estimator({"one": fitted, "all": ensemble}, X, y, alpha=0.9).plot()
    assert [curve.name for curve in display.curves] == ["one", "all"] and display.alpha == 0.9
    admitted = ensemble.decide(X).admitted_at[:, 1]
    assert display.curves[1].admitted_share == admitted.mean()
    styles = {(line.get_linestyle(), line.get_color()) for line in display.ax_.lines if len(line.get_xdata()) > 2}
    assert len(styles) == 2 and len({line for line, _ in styles}) == 2  # told apart in grey too
    smallest = RiskCoverageDisplay.from_estimator(fitted, X, y)
    assert smallest.alpha == 0.8 and smallest.curves[0].name == "SDMClassifier"


def test_risk_coverage_refuses_what_does_not_fit_together():
    first, y = decisions_of([0.9, 0.8], [True, False])
    second, _ = decisions_of([0.9, 0.8], [True, False], alphas=(0.8,))
    with pytest.raises(InvalidInputError, match=r"'alpha' of .* must be given .* Got 0.9, 0.8"):
        RiskCoverageDisplay.from_predictions({"a": first, "b": second}, y)
    with pytest.raises(InvalidInputError, match=r"one of those requested, 0.9. Got 0.95"):
        RiskCoverageDisplay.from_predictions(first, y, alpha=0.95)
    with pytest.raises(InvalidInputError, match="those of at least one estimator"):
        RiskCoverageDisplay.from_predictions({}, y)
    with pytest.raises(InvalidInputError, match=r"'name' of .* must be None if a mapping"):
        RiskCoverageDisplay.from_predictions({"a": first}, y, name="a")


def test_a_first_answer_that_is_wrong_does_not_set_the_scale():
    correct = np.arange(400) > 0
    decisions, y = decisions_of(np.linspace(1, 0.5, 400), correct)
    display = RiskCoverageDisplay.from_predictions(decisions, y).plot()
    assert display.curves[0].risk[0] == 1 and display.ax_.get_ylim()[1] < 0.2
    perfect, y = decisions_of([0.9, 0.8], [True, True], alphas=(1.0,))
    assert RiskCoverageDisplay.from_predictions(perfect, y).plot().ax_.get_ylim()[1] > 0


# --- ReliabilityDisplay ----------------------------------------------------------------------------------------------


def slow_wilson(k, n, z):
    p = k / n
    roots = np.roots([1 + z * z / n, -(2 * p + z * z / n), p * p])  # of (p - x)^2 = z^2 x (1 - x) / n
    return min(roots), max(roots)


@pytest.mark.parametrize("n_bins", [1, 4, 16])
def test_reliability_against_loops(n_bins):
    rng = np.random.default_rng(2)
    confidence = np.concatenate([rng.integers(32, 65, 150) / 64, rng.random(150)])  # many on the edges of bins
    correct = rng.random(300) < confidence
    decisions, y = decisions_of(confidence, correct)
    display = ReliabilityDisplay.from_predictions(decisions, y, n_bins=n_bins, alpha=0.75)
    place = 0
    for b in range(n_bins):
        low, high = b / n_bins, (b + 1) / n_bins
        rows = [i for i in range(300) if low < confidence[i] <= high or (b == 0 and confidence[i] == 0)]
        if not rows:
            continue
        k = int(correct[rows].sum())
        assert display.edges[place].tolist() == [low, high] and display.counts[place] == len(rows)
        assert display.accuracy[place] == pytest.approx(k / len(rows))
        assert display.confidence[place] == pytest.approx(confidence[rows].mean())
        expected = slow_wilson(k, len(rows), 1.959963984540054)
        assert (display.accuracy_lower[place], display.accuracy_upper[place]) == pytest.approx(expected, abs=1e-9)
        place += 1
    assert place == len(display.counts)
    top = [i for i in range(300) if confidence[i] >= 0.75]
    assert display.top_count == len(top) and display.top_accuracy == pytest.approx(correct[top].mean())
    assert display.top_confidence == pytest.approx(confidence[top].mean())
    expected = slow_wilson(correct[top].sum(), len(top), 1.959963984540054)
    assert (display.top_accuracy_lower, display.top_accuracy_upper) == pytest.approx(expected, abs=1e-9)


def test_reliability_draws_bins_counts_and_the_single_bin():
    rng = np.random.default_rng(4)
    confidence = rng.random(200)
    decisions, y = decisions_of(confidence, rng.random(200) < confidence)
    display = ReliabilityDisplay.from_predictions(decisions, y, n_bins=5).plot()
    accuracy, counts = display.axes_
    drawn = [container.lines[0].get_data() for container in accuracy.containers]
    assert np.array_equal(drawn[0], [display.confidence, display.accuracy])
    assert drawn[1][1] == [display.top_accuracy] and drawn[1][0] == [0.95]
    assert [bar.get_height() for bar in counts.containers[0]] == display.counts.tolist()
    assert [bar.get_x() for bar in counts.containers[0]] == display.edges[:, 0].tolist()
    assert (counts.get_xlabel(), accuracy.get_ylabel()) == ("confidence", "accuracy")


def test_reliability_where_nobody_is_confident():
    decisions, y = decisions_of([0.5, 0.6, 0.55], [True, False, True])
    display = ReliabilityDisplay.from_predictions(decisions, y).plot()
    assert display.top_count == 0 and np.isnan(display.top_accuracy) and np.isnan(display.top_accuracy_upper)
    texts = [text.get_text() for text in display.figure_.findobj(plt.Text)]
    assert "[0.9, 1]: no inputs this confident" in texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "'n_bins' of .* must be positive"),
        ({"level": 1.5}, r"'level' of .* must be in \(0, 1\). Got 1.5"),
        ({"alpha": 0.3}, "'alpha' of .* must be in"),
    ],
)
def test_reliability_refuses_wrong_settings(options, message):
    decisions, y = decisions_of([0.5, 0.6], [True, False])
    with pytest.raises(InvalidInputError, match=message):
        ReliabilityDisplay.from_predictions(decisions, y, **options)


# --- TrainingHistoryDisplay ------------------------------------------------------------------------------------------


def test_history_arrays_are_the_records(fitted):
    display = TrainingHistoryDisplay.from_estimator(fitted)
    records = list(fitted.history_)
    assert len(records) == 16
    for position, record in enumerate(records):
        assert (display.rounds[position], display.epochs[position]) == (record.round, record.epoch)
        for name in ("balanced_loss", "balanced_accuracy", "mean_similarity"):
            assert display.train[name][position] == getattr(record, f"train_{name}")
            assert display.calibration[name][position] == getattr(record, f"calibration_{name}")
    assert records[display.chosen] == fitted.history_.best


def test_history_is_drawn_round_by_round_with_the_chosen_epoch(fitted):
    display = TrainingHistoryDisplay.from_history(fitted.history_).plot()
    for panel, name in zip(display.axes_, ("balanced_loss", "balanced_accuracy", "mean_similarity"), strict=True):
        lines = [line for line in panel.lines if len(line.get_xdata()) == 8]
        assert [line.get_linestyle() for line in lines] == ["--", "-", "--", "-"]
        for line, values in zip(lines, (display.train, display.calibration) * 2, strict=True):
            own = slice(0, 8) if line in lines[:2] else slice(8, 16)
            assert np.array_equal(line.get_ydata(), values[name][own])
        assert lines[2].get_xdata().tolist() == list(range(9, 17))
        (star,) = [line for line in panel.lines if line.get_marker() == "*"]
        assert star.get_xdata()[0] == display.chosen + 1
        assert star.get_ydata()[0] == display.calibration[name][display.chosen]


def test_history_of_one_epoch_and_of_none():
    values = dict.fromkeys(EpochRecord.__dataclass_fields__, 0.5)
    one = TrainingHistoryDisplay.from_history(History((EpochRecord(**values | {"round": 0, "epoch": 1}),))).plot()
    assert one.chosen == 0 and one.axes_[0].lines[0].get_marker() == "."
    none = TrainingHistoryDisplay.from_history(History()).plot()
    none.figure_.canvas.draw()
    assert none.chosen is None and len(none.epochs) == 0 and not none.axes_[0].lines


def test_history_of_something_else_is_refused():
    with pytest.raises(NotFittedError, match="This SDMClassifier has no history_: call fit"):
        TrainingHistoryDisplay.from_estimator(SDMClassifier())
    with pytest.raises(InvalidTypeError, match=r"must be a History.*Got list"):
        TrainingHistoryDisplay.from_history([])


# --- DistanceDisplay -------------------------------------------------------------------------------------------------


def test_distances_against_loops(fitted, labelled):
    X, _ = labelled
    display = DistanceDisplay.from_estimator(fitted, X, name="fresh")
    decisions = fitted.decide(X)
    calibration = fitted.model_.calibration
    for c, values in enumerate(display.calibration_distances):
        expected = sorted(
            float(distance)
            for distance, q, label in zip(
                calibration.nearest_distance, calibration.similarity, calibration.labels, strict=True
            )
            if q > 0 and label == c
        )
        assert values.tolist() == expected
    ends = [max(values) for values in display.calibration_distances]
    assert (display.largest_distance, display.rejection_distance) == (max(ends), min(ends))
    beyond = [distance > max(ends) for distance in decisions.nearest_distance]
    rejected = [any(distance > end for end in ends) for distance in decisions.nearest_distance]
    assert display.share_beyond == sum(beyond) / len(X) >= 4 / 150
    assert display.share_rejected == sum(rejected) / len(X) == (decisions.distance_quantile == 0).mean()
    assert display.distances.tolist() == sorted(decisions.nearest_distance.tolist())
    assert display.similar_distances.tolist() == sorted(decisions.nearest_distance[decisions.similarity > 0].tolist())


def test_distances_are_drawn_and_the_share_beyond_is_written(fitted, labelled):
    X, _ = labelled
    display = DistanceDisplay.from_estimator(fitted, X, name="fresh").plot()
    assert display.ax_.get_xscale() == "log"  # four inputs are far away
    assert f"fresh, beyond every calibration point: {display.share_beyond:.1%}" in display.ax_.get_title(loc="left")
    curves = {line.get_label(): line.get_data() for line in display.ax_.lines}
    x, share = curves["fresh, all"]
    assert np.array_equal(x[1:], display.distances) and np.allclose(share[1:], np.arange(1, 151) / 150)
    for label, values in zip(["ant", "bee", "cat"], display.calibration_distances, strict=True):
        assert np.array_equal(curves[f"class {label}"][0][1:], values)
    assert curves["beyond every class"][0] == [display.largest_distance] * 2
    near = DistanceDisplay.from_estimator(fitted, X[4:]).plot()
    assert near.ax_.get_xscale() == "linear" and near.ax_.get_xlim()[0] == 0


def with_distances(distances, n_classes, similarity=1):
    n = len(distances)
    decisions, _, _ = synthetic(n, n_classes)
    return replace(decisions, nearest_distance=np.asarray(distances, dtype=float), similarity=np.full(n, similarity))


def test_distances_where_classes_have_no_points():
    one_empty = ClassEcdfs((torch.tensor([1.0, 2.0]).double(), torch.empty(0).double()))
    display = DistanceDisplay.from_predictions(with_distances([0.5, 3.0], 2), ecdfs=one_empty).plot()
    assert (display.share_beyond, display.share_rejected) == (0.5, 1.0) and np.isnan(display.rejection_distance)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert "class 1: no points" in labels
    all_empty = ClassEcdfs((torch.empty(0).double(),) * 2)
    display = DistanceDisplay.from_predictions(with_distances([0.0, 0.0], 2, similarity=0), ecdfs=all_empty).plot()
    display.figure_.canvas.draw()
    assert (display.share_beyond, display.share_rejected) == (1.0, 1.0) and len(display.similar_distances) == 0


def test_distances_of_many_classes_are_not_named_one_by_one():
    ecdfs = ClassEcdfs(tuple(torch.arange(1.0, 5.0).double() + c for c in range(30)))
    display = DistanceDisplay.from_predictions(with_distances([0.5, 3.0], 30), ecdfs=ecdfs).plot()
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert "each of 30 classes" in labels and len(labels) == 5


# --- AlphaDisplay ----------------------------------------------------------------------------------------------------


def test_alphas_against_recalibrating_one_by_one_and_the_estimator_is_left_alone(fitted, labelled):
    X, y = labelled
    before = fitted.models_, dict(fitted.__dict__), fitted.decide(X)
    alphas = [0.95, 0.6, 0.75, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that an alpha has no region is not worth a warning here
        display = AlphaDisplay.from_estimator(fitted, X, y, alphas=alphas)
    assert fitted.models_ is before[0] and fitted.__dict__ == before[1]
    assert same(fitted.decide(X).admitted_at, before[2].admitted_at)
    assert display.alphas.tolist() == sorted(alphas)
    for position, alpha in enumerate(sorted(alphas)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = copy.deepcopy(fitted)
            other.certificate_ = None  # the region alone
            decisions = other.recalibrate(alpha).decide(X)
        correct = decisions.predictions == y
        assert display.admitted_share[position] == decisions.admitted.sum() / len(X)
        if not decisions.admitted.any():
            assert np.isnan(display.marginal_accuracy[position])
            continue
        assert display.marginal_accuracy[position] == pytest.approx(correct[decisions.admitted].mean(), abs=1e-15)
        accuracies = []
        for c, label in enumerate(fitted.classes_):
            rows = decisions.admitted & (y == label)
            if rows.any():
                accuracies.append(correct[rows].mean())
                assert display.class_accuracy[position, c] == pytest.approx(accuracies[-1], abs=1e-15)
            else:
                assert np.isnan(display.class_accuracy[position, c])
        assert display.lowest_class_accuracy[position] == pytest.approx(min(accuracies), abs=1e-15)


def test_alphas_of_an_ensemble_and_of_texts(fitted, labelled):
    X, y = labelled
    ensemble = SDMEnsemble.from_classifier(fitted)
    models = ensemble.models_
    display = AlphaDisplay.from_estimator(ensemble, X, y, alphas=(0.7, 0.8))
    assert ensemble.models_ is models
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = copy.copy(ensemble).recalibrate((0.7, 0.8)).decide(X).admitted_at.mean(axis=0)
    assert np.array_equal(display.admitted_share, expected)

    class OfStates(SDMTextClassifier):  # takes hidden states where texts would be
        def _states(self, X, answers, method):
            return X

    texts = OfStates("nowhere")
    texts.classifier_ = fitted
    models = fitted.models_
    display = AlphaDisplay.from_estimator(texts, X, y, alphas=(0.7, 0.8))
    assert texts.classifier_ is fitted and fitted.models_ is models
    assert same(display.admitted_share, AlphaDisplay.from_estimator(fitted, X, y, alphas=(0.7, 0.8)).admitted_share)
    partition = PartitionDisplay.from_estimator(texts, X, y)
    assert same(partition.admitted, PartitionDisplay.from_estimator(fitted, X, y).admitted)


def test_alphas_by_default_and_in_the_picture(fitted, labelled):
    display = AlphaDisplay.from_estimator(fitted, *labelled).plot()
    assert display.alphas[0] == 0.6 and display.alphas[-1] == 0.99 and len(display.alphas) == 40
    accuracy, share = display.axes_
    drawn = {line.get_label(): line.get_ydata() for line in accuracy.lines}
    assert np.array_equal(drawn["all admitted"], display.marginal_accuracy, equal_nan=True)
    assert np.array_equal(drawn["lowest of any class"], display.lowest_class_accuracy, equal_nan=True)
    assert drawn["target: accuracy = α"].tolist() == [0.6, 0.99]
    assert np.array_equal(share.lines[0].get_ydata(), display.admitted_share)
    assert share.get_ylabel() == "share admitted"


def test_alphas_that_cannot_be(fitted, labelled):
    with pytest.raises(InvalidInputError, match="alpha is target accuracy, not miscoverage"):
        AlphaDisplay.from_estimator(fitted, *labelled, alphas=(0.05, 0.1))
    with pytest.raises(InvalidInputError, match="at least one value"):
        AlphaDisplay.from_estimator(fitted, *labelled, alphas=())


# --- CostDisplay -----------------------------------------------------------------------------------------------------


def test_costs_are_the_curve_and_the_choice(fitted):
    choice = fitted.choose_alpha(cost_error=4, cost_review=1, n_certification=500)
    display = CostDisplay.from_curve(choice, fitted.certificate_)
    assert display.alphas.tolist() == [point.alpha for point in choice.curve.points]
    assert display.costs.tolist() == list(choice.costs) and display.choice is choice
    expected = 4 * display.error_share + 1 - display.admitted_share
    np.testing.assert_allclose(display.costs, expected)
    display.plot()
    assert len(display.axes_) == 2 and display.axes_[1].get_ylabel() == "cost per input"
    words = [text.get_text() for text in display.figure_.findobj(plt.Text)]
    assert f"α = {choice.alpha:g}: about {choice.expected_cost:.3g}" in words
    assert "review everything: 1" in words


def test_costs_without_prices_are_a_curve_and_the_certified_point(fitted):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 3, 600)
    fitted.recertify(
        3.5 * np.eye(3, 4)[numbers] + rng.standard_normal((600, 4)), np.array(["ant", "bee", "cat"])[numbers]
    )
    certificate = fitted.certificate_
    assert certificate.found
    display = CostDisplay.from_estimator(fitted)
    assert display.costs is None and display.choice is None and len(display.plot().axes_) == 1
    assert display.certified == (certificate.alpha, certificate.n_admitted / 600)
    curve = fitted.alpha_curve()
    assert curve.n_certification == 600
    assert display.admitted_share.tolist() == [point.admitted_share for point in curve.points]


def test_costs_that_cannot_be(fitted):
    with pytest.raises(InvalidInputError, match="together"):
        CostDisplay.from_estimator(fitted, cost_error=3)
    with pytest.raises(InvalidTypeError, match="no alpha to choose"):
        CostDisplay.from_estimator(SDMEnsemble.from_classifier(fitted))
