"""Option values, apart from the code behind them so that the command can list them without importing it."""

from __future__ import annotations

from typing import Any

SEGMENTS = ("sentences", "paragraphs", "fields")  #: kinds of segments to summarise states over
PROMPT_NAMES = ("sentiment", "factcheck", "verify-answer", "document")  #: prompts that come with the package
TRAININGS = ("linear", "sdm")  #: a penalised linear solution, or rounds of the paper's training
PAPER: dict[str, Any] = {
    "training": "sdm",
    "n_filters": 1000,
    "n_rounds": 10,
    "max_epochs": 200,
    "batch_size": 50,
    "learning_rate": 1e-5,
    "patience": None,
    "standardization": "scalar",
    "calibration_size": 0.5,
    "certification_size": None,
}  #: training as in the paper, without a certificate
PRESETS = ("default", "paper")  #: of ``sdm train``
LANES = ("trusted", "certified", "review", "unfamiliar")  #: of decisions, the most reliable first
REJECTED = "rejected"  #: the lane of inputs that could not be read, of which there is no decision
CONTROLS = ("groups", "pooled", "predictions", "all")  #: for whom a certificate holds, the strongest promise first
AUTO = "auto"  #: the strongest control that calibration says will be certified
BACKGROUNDS = ("class", "exemplars")  #: what background examples are: a class that is trained, or only of the support
POLICIES = ("certified", "trusted")  #: which lanes are admitted
