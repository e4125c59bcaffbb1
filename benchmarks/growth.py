"""How the cost of matching grows with the support, the classes and the filters, as ratios to the plain product."""

from __future__ import annotations

from collections.abc import Iterator

from measure import Figure, compare
from problems import clouds, support_of

SUPPORTS = (1_000, 10_000, 100_000, 1_000_000)
CLASSES = (2, 10, 100, 1_000)
FILTERS = (64, 128, 256, 512, 1_024, 2_048)
SERIES = {"support": "points in the support", "classes": "classes", "filters": "filters"}


def run() -> Iterator[Figure]:
    """1,000 queries against supports of several sizes; 9,000 against 9,000 for classes and filters."""
    for n in SUPPORTS:
        yield _matching(1_000, n, 256, 2, "support", n)
    for n_classes in CLASSES:
        yield _matching(9_000, 9_000, 256, n_classes, "classes", n_classes)
    for n_filters in FILTERS:
        yield _matching(9_000, 9_000, n_filters, 2, "filters", n_filters)


def _matching(n_queries: int, n_support: int, n_filters: int, n_classes: int, series: str, value: int) -> Figure:
    points, labels = clouds(n_support, n_filters, n_classes)
    queries, predictions = clouds(n_queries, n_filters, n_classes, seed=1)
    support = support_of(points, labels)

    def product() -> None:
        for part in queries.split(128) if n_support > 100_000 else (queries,):
            part @ points.T

    return compare(
        f"{series}: {value:,}",
        lambda: support.match(queries, predictions),
        f"product {n_queries:,} × {n_support:,}, M = {n_filters:,}, {n_classes:,} classes",
        product,
        repeats=3,
    )


def plot(figures: list[dict[str, object]], path: str) -> None:
    """One panel per series: the ratio, and the time on the right axis."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SERIES), figsize=(11, 3.6), layout="constrained")
    for panel, (series, title) in zip(panels, SERIES.items(), strict=True):
        chosen = [one for one in figures if str(one["work"]).startswith(f"{series}:")]
        values = [int(str(one["work"]).split(": ")[1].replace(",", "")) for one in chosen]
        panel.plot(values, [one["ratio"] for one in chosen], "o-", color="#1b6ca8", label="matching / product")
        panel.set(xscale="log", xlabel=title, ylim=(0, 1.15 * max(float(str(one["ratio"])) for one in chosen)))
        panel.axhline(1, color="#999999", linewidth=0.8)
        times = panel.twinx()
        times.plot(values, [one["work_seconds"] for one in chosen], "s--", color="#c1651c", markersize=4)
        times.set(yscale="log", ylim=(0.005, 20))
        times.tick_params(axis="y", colors="#c1651c")
    panels[0].set_ylabel("time of matching / time of the product", color="#1b6ca8")
    times.set_ylabel("seconds (dashed)", color="#c1651c")
    figure.savefig(path)
    plt.close(figure)
