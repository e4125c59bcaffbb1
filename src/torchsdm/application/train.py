"""Train a model: read, check, fit, save, and say what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchsdm.application.describe import told_once
from torchsdm.application.summaries import summary
from torchsdm.application.training import TRAINING, read_training_parts
from torchsdm.application.update import check_model_output
from torchsdm.cluster import Backend, extract_on
from torchsdm.core import check_control, check_targets
from torchsdm.data import STANDARD_INPUT, Columns
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble, Strength
from torchsdm.hidden_states import HiddenStateExtractor, default_store
from torchsdm.labels import check_pools
from torchsdm.settings import AUTO, PAPER
from torchsdm.training import remove_checkpoint, stored_epochs
from torchsdm.validation import Array
from torchsdm.wording import counted

_OF_ROUNDS = ("n_rounds", "max_epochs", "batch_size", "learning_rate", "patience", "calibration_size")


def train_model(
    data: str,
    output: Path,
    *,
    overwrite: bool = False,
    preset: str = "default",
    ensemble: bool = False,
    calibration: str | None = None,
    certification: str | None = None,
    background: str | None = None,
    pools: Path | None = None,
    checkpoint: Path | None = None,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    extractor: HiddenStateExtractor | None = None,
    backend: Backend = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train on labelled data and write a model directory; returns its summary, with the ``strength`` of a classifier.

    An interruption names what is kept: ``KeyboardInterrupt.args``. The same call then resumes.

    ``settings`` are parameters of ``SDMClassifier``; those of rounds alone choose that training, and what is not given
    is the preset's. ``pools`` is a JSON file of lists of classes by name. By default checkpoints are in a folder beside
    ``output``, which is removed at the end. ``extractor`` reads texts; ``backend`` is where that and rounds run.
    """
    if ensemble and certification is not None:
        raise InvalidInputError("An ensemble is not certified. Leave out the certification set.")
    check_model_output(output, overwrite)
    folder = checkpoint or output.with_name(f"{output.name}.training")
    chosen = training_settings(settings, preset)
    kind = SDMEnsemble if ensemble else SDMClassifier
    classifier = kind(**chosen, checkpoint=folder, verbose=True, backend=backend)
    classifier.pools = None if pools is None else _read_pools(pools, classifier.control)
    holds_out = classifier.certification_size is not None and calibration is None
    is_certified = not ensemble and (holds_out or certification is not None)

    def check(classes: Array) -> None:
        (first, *_) = check_targets(classifier.alpha, classes, "training")
        if is_certified:
            check_control(first, classifier.control, "training")
        if classifier.pools is not None:
            check_pools(classifier.pools, classes, "training")

    store = default_store()
    files = {TRAINING: data, "calibration": calibration, "certification": certification, "background": background}
    given = {part: file for part, file in files.items() if file is not None}
    try:
        elsewhere = extract_on(backend, "training")
        parts: dict[str, Any] = dict(read_training_parts(given, columns, extractor, store, elsewhere, check))
        training = parts.pop(TRAINING)
        with told_once(classifier):
            classifier.fit(training, **parts)
        classifier.data_source_ = "standard input" if data == STANDARD_INPUT else Path(data).name  # not the whole path
        classifier.save(output)
    except KeyboardInterrupt:
        n_epochs, n_texts = stored_epochs(folder), store.counts.n_documents
        kept = [f"{counted(n_epochs, 'epoch')} in {folder}"] if n_epochs else []
        raise KeyboardInterrupt(
            *kept, *([f"{counted(n_texts, 'embedded text')} in the cache"] * bool(n_texts))
        ) from None
    if checkpoint is None:
        remove_checkpoint(folder)  # the model has all that matters of it
    result = summary(classifier, output)
    if isinstance(classifier, SDMClassifier):
        strength = Strength.of(classifier, training)
        result["strength"] = None if strength is None else asdict(strength)
    return result


def training_settings(given: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """The parameters of a classifier: those that are given, and the preset's; some of them are only of rounds."""
    chosen = {**(PAPER if preset == "paper" else {}), **given}
    if "training" not in given and any(name in given for name in _OF_ROUNDS):
        chosen["training"] = "sdm"
    return chosen


def _read_pools(path: Path, control: str) -> dict[str, list[Any]]:
    """The pools of a file: lists of classes by name."""
    if control not in ("pooled", AUTO):
        raise InvalidInputError(f"'pools' are for control 'pooled' or 'auto'. Got control {control!r}.")
    try:
        pools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(pools, dict) or not all(isinstance(names, list) for names in pools.values()):
        raise InvalidInputError(f'{path} must have lists of classes by name, as in {{"money": ["pay", "balance"]}}.')
    return pools
