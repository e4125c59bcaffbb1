"""Plots of an estimator in the style of scikit-learn: each display computes arrays first, then draws them.

    display = ReliabilityDisplay.from_estimator(classifier, X, y)  # or from_predictions(decisions, y)
    display.accuracy  # what will be drawn
    display.plot()  # needs matplotlib; sets display.figure_, display.ax_ and, of several panels, display.axes_

Only ``plot`` needs matplotlib: the arrays are available without it.
"""
