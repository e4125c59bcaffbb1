"""The texts of an experiment: from a folder or the hub, drawn, relabelled, or with their words shuffled."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from research.experiments.specification import ROLES_WITHOUT_LABELS, DataSet, Experiment, HubData
from torchsdm.data import Document, Documents, LabelledStates, read_states
from torchsdm.errors import InvalidInputError, MissingExtraError
from torchsdm.evaluation import explain_labels
from torchsdm.labels import label_array
from torchsdm.validation import (
    Array,
    as_list,
    as_tensor,
    check_finite,
    check_label_array,
    check_path,
    check_same_length,
)

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "TORCHSDM_DATA"  #: environment variable for the folder of data sets
_ENDINGS = ("", ".jsonl.gz", ".jsonl", ".csv", ".tsv", ".parquet")
_STATES_ENDINGS = ("", ".jsonl.gz", ".jsonl", ".npz", ".safetensors", ".parquet")
_Answer: TypeAlias = str | Literal[False]  # the column with another model's answers, if the prompt has one
_SEED = 0  # of drawing and shuffling: the same documents for every model and variant


@dataclass(frozen=True)
class Texts:
    """The documents of a data set, and where they come from."""

    data: DataSet
    documents: tuple[Document, ...]
    source: str
    n_dropped: int = 0
    """Duplicate texts left out of a pool."""

    @property
    def labels(self) -> list[Any] | None:
        """The labels; None if there are none."""
        labels = [document.label for document in self.documents]
        return None if None in labels else labels

    def facts(self) -> dict[str, Any]:
        """What a result says about the data."""
        counts = Counter(str(document.label) for document in self.documents if document.label is not None)
        return {
            "name": self.data.name,
            "role": self.data.role,
            "source": self.source,
            "n": len(self.documents),
            "labels": dict(sorted(counts.items())),
            "copies_left_out": self.n_dropped,
            "remark": self.data.remark,
        }


def read_texts(experiment: Experiment, folder: str | Path | None = None) -> dict[str, Texts]:
    """The texts of the pool and of each test set, by name.

    Parameters
    ----------
    experiment : Experiment
    folder : path, optional
        Where the data sets are; by default ``TORCHSDM_DATA``, and the hub for anything not there.
    """
    folders = data_folders(experiment, folder)
    has_answers = "answer" in experiment.prompt.fields
    read = [data for data in (experiment.pool, *experiment.tests) if data.shuffle is None]
    texts = {data.name: _read(data, folders, data.answer if has_answers else False) for data in read}
    for data in experiment.tests:
        if data.shuffle is not None:
            base = texts[data.shuffle]
            documents = _relabelled(shuffled_words(base.documents), data)
            texts[data.name] = Texts(data, documents, f"{base.source}, words shuffled")
    drawn = {name: replace(one, documents=_drawn(one.documents, one.data)) for name, one in texts.items()}
    _check_labels(drawn, experiment)
    return {data.name: drawn[data.name] for data in (experiment.pool, *experiment.tests)}


def read_computed_states(data: DataSet, folders: Sequence[Path]) -> tuple[LabelledStates, str]:
    """States of a data set that were computed elsewhere, and the file they come from."""
    path = _find(data, folders, _STATES_ENDINGS)
    if path is None:
        raise InvalidInputError(_missing(data, folders, _STATES_ENDINGS))
    names = {"states": str(data.states), "labels": data.label or "label", "ids": "id", "texts": data.text}
    read = read_states(path, **names, needs_labels=_label_name(data) is not None)
    states = as_tensor(read.hidden_states, str(data.states), str(path), kind="real").float()
    check_finite(states, str(data.states), str(path))
    rows = _draw(len(states), data).tolist()

    def drawn(values: Any, name: str) -> list[Any]:
        values = as_list(values, name, str(path))
        check_same_length(len(states), values, name, str(path))
        return [values[row] for row in rows]

    given: list[Any] | None = None
    if data.relabel is not None:
        given = [data.relabel] * len(rows)
    elif read.labels is not None:
        given = drawn(read.labels, names["labels"])
    if data.role == "pool":
        labels: Array | None = check_label_array(given, str(path))
    else:
        labels = None if given is None else label_array(given, str(path))
    ids = rows if read.ids is None else drawn(read.ids, "id")
    texts = None if read.texts is None else drawn(read.texts, data.text)
    return LabelledStates(states.numpy()[rows], labels, ids, texts), str(path)


def data_folders(experiment: Experiment, folder: str | Path | None) -> list[Path]:
    """Where to look for data: the given or configured folder, then next to a user's own file."""
    chosen = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    folders = [] if chosen is None else [check_path(chosen, "data", "an experiment").expanduser()]
    for path in folders:
        if not path.is_dir():
            raise InvalidInputError(
                f"{path} is not a folder of data sets. Choose another with --data or {FOLDER_VARIABLE}."
            )
    return [*folders, *experiment.folders]


def shuffled_words(documents: Sequence[Document]) -> tuple[Document, ...]:
    """The documents with the words of each in a different order, if it has one."""
    generator = random.Random(_SEED)
    return tuple(
        replace(document, id=f"{document.id}-shuf", text=_shuffled(document.text, generator)) for document in documents
    )


def _shuffled(text: str, generator: random.Random) -> str:
    words = text.split()
    order = list(words)
    while len(set(words)) > 1 and order == words:
        generator.shuffle(order)
    return " ".join(order)


def _read(data: DataSet, folders: Sequence[Path], answer: _Answer) -> Texts:
    path = _find(data, folders, _ENDINGS)
    is_pool = data.role == "pool"  # duplicates would be in both training and calibration sets
    repeated = "drop" if is_pool else "keep"
    if path is not None:
        documents = Documents(path, text=data.text, label=_label_name(data), answer=answer, repeated=repeated)
    elif data.hub is not None:
        rows = _hub_rows(data, data.hub, folders, answer)
        documents = Documents(rows, answer=answer, repeated=repeated)
        documents.name = _hub_name(data.hub)
    else:
        raise InvalidInputError(_missing(data, folders, _ENDINGS))
    n_dropped = len(documents.report.repeated) if is_pool else 0
    return Texts(data, _relabelled(tuple(documents), data), documents.name, n_dropped)


def _label_name(data: DataSet) -> str | None:
    """The column of the labels, which must be there; None if they are used only if they are."""
    is_optional = data.role in ROLES_WITHOUT_LABELS or data.relabel is not None
    return data.label if data.label is not None or is_optional else "label"


def _find(data: DataSet, folders: Sequence[Path], endings: Sequence[str]) -> Path | None:
    if data.file is None:
        return None
    candidates = (folder / f"{data.file}{ending}" for folder in _places(data.file, folders) for ending in endings)
    return next((path for path in candidates if path.is_file()), None)


def _missing(data: DataSet, folders: Sequence[Path], endings: Sequence[str]) -> str:
    """Where we looked for the file of a data set, and what to do."""
    places = " or ".join(str(folder) for folder in _places(str(data.file), folders))
    looked = f"{data.file} is not in {places}" if places else f"no folder is given for {data.file}"
    listed = ", ".join(ending for ending in endings if ending)
    return (
        f"The data set {data.name!r} was not found: {looked} (as {listed}). Name a folder that has it with --data or "
        f"{FOLDER_VARIABLE}; each line has id, {data.states or data.text} and {data.label or 'label'}."
    )


def _places(file: str, folders: Sequence[Path]) -> Sequence[Path]:
    """The folders that may contain a file; an absolute path has just one."""
    return [Path(file).parent] if Path(file).is_absolute() else folders


def _relabelled(documents: tuple[Document, ...], data: DataSet) -> tuple[Document, ...]:
    if data.relabel is None:
        return documents
    return tuple(replace(document, label=data.relabel) for document in documents)


def _drawn(documents: tuple[Document, ...], data: DataSet) -> tuple[Document, ...]:
    """The documents wanted, in random order; a smaller draw is the start of a larger one."""
    return tuple(documents[row] for row in _draw(len(documents), data))


def _draw(n: int, data: DataSet) -> Any:
    """Row numbers in a random order that is always the same: those wanted, at most so many."""
    if data.rows is not None and data.rows[1] > n:
        raise InvalidInputError(f"The data set {data.name!r} has {n} rows. Got rows = {data.rows!r}.")
    return np.random.default_rng(_SEED).permutation(n)[slice(*data.rows or (None,))][: data.n]


def _check_labels(texts: Mapping[str, Texts], experiment: Experiment) -> None:
    """Refuse labels that cannot be trained on or compared, before running any language model."""
    where = f"experiment {experiment.name}"
    pool = texts["pool"]
    known = sorted({document.label for document in pool.documents}, key=repr)
    if len(known) < 2 or len({isinstance(label, str) for label in known}) > 1:
        raise InvalidInputError(
            f"{where}: the pool must have two or more labels, all strings or all numbers. "
            f"Got {known!r} in {len(pool.documents)} documents of {pool.source}."
        )
    if experiment.own_answers:  # what is judged is known once the language model has answered
        return
    check_test_labels(experiment, {one.name: texts[one.name].labels for one in experiment.tests}, np.array(known))
    words = experiment.prompt.words
    is_compared = "estimators" in experiment.studies and "language model" in experiment.groups
    if words and is_compared and sorted(map(repr, words)) != list(map(repr, known)):
        raise InvalidInputError(
            f"{where}: the prompt has words for the labels {list(words)!r}, but the pool has {known!r}. Give words for "
            "these, or none, or leave 'language model' out of groups."
        )


def check_test_labels(experiment: Experiment, labels: Mapping[str, Sequence[Any] | None], classes: Array) -> None:
    """Refuse labels of test sets that do not fit their role; say which inputs are strangers."""
    known = set(classes.tolist())
    for data in experiment.tests:
        where, given = f"experiment {experiment.name}: tests.{data.name}", labels[data.name]
        if given is None and experiment.updates.data == data.name and "updatability" in experiment.studies:
            raise InvalidInputError(f"{where} has no labels, so the study 'updatability' cannot add it to the support.")
        inside = [label for label in given or () if label in known]
        if data.role in ("strangers", "background") and inside:
            raise InvalidInputError(
                f"{where} has the label {inside[0]!r}, a class of the pool, but its role is {data.role!r}. Choose "
                'another role, or, if it means something else there, relabel the set: relabel = "other".'
            )
        said = explain_labels(data.name, given, classes)
        if not inside and data.role not in ROLES_WITHOUT_LABELS:
            raise InvalidInputError(f"{where} has no label of the pool; is its role 'strangers'? {said}")
        if said is not None:
            logger.info(said)


# --- The hub ---------------------------------------------------------------------------------------------------------


def _hub_rows(data: DataSet, hub: HubData, folders: Sequence[Path], answer: _Answer) -> list[dict[str, Any]]:
    """The rows of a data set on the hub, as the experiment wants them."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtraError("datasets", "hf", "Reading a data set from the hub") from error
    try:
        loaded = [(split, load_dataset(hub.name, hub.config, split=split)) for split in _splits(hub)]
    except Exception as error:  # anything the layers below raise: no network, no such name, offline mode
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        looked = f"{_missing(data, folders, _ENDINGS)} " if data.file is not None else ""
        raise InvalidInputError(f"{looked}The hub does not provide {hub.name} for {data.name!r}: {reason}") from error
    columns = {"text": hub.text, "label": hub.label, **({"answer": answer} if answer else {})}
    is_used = hub.labels is not None or hub.balance or _label_name(data) is not None
    if not is_used and not all(hub.label in dataset.column_names for _, dataset in loaded):
        del columns["label"]  # strangers
    for split, dataset in loaded:
        for column in columns.values():
            if column not in dataset.column_names:
                raise InvalidInputError(
                    f"{hub.name} on the hub ({split}) has no column {column!r}. Got {', '.join(dataset.column_names)}."
                )
    rows = [
        {"id": f"{split}-{number}", **{part: row[column] for part, column in columns.items()}}
        for split, dataset in loaded
        for number, row in enumerate(dataset)
    ]
    chosen = chosen_rows(rows, hub)
    if not chosen:
        raise InvalidInputError(f"{_hub_name(hub)} has {len(rows)} rows, but none of those wanted.")
    return chosen


def _splits(hub: HubData) -> list[str]:
    return [hub.split] if isinstance(hub.split, str) else hub.split


def _hub_name(hub: HubData) -> str:
    return f"{hub.name} on the hub ({', '.join(_splits(hub))})"


def chosen_rows(rows: list[dict[str, Any]], hub: HubData) -> list[dict[str, Any]]:
    """Rows of a data set on the hub, relabelled, shuffled, balanced and cut as configured."""
    if hub.labels is not None:
        there = {str(row["label"]) for row in rows}
        if not there.issuperset(hub.labels):
            raise InvalidInputError(
                f"{_hub_name(hub)} has the labels {sorted(there)!r}. Got {sorted(hub.labels)!r} to rename."
            )
        rows = [{**row, "label": hub.labels[str(row["label"])]} for row in rows if str(row["label"]) in hub.labels]
    if hub.seed is not None:
        rows = [rows[number] for number in np.random.default_rng(hub.seed).permutation(len(rows))]
    if hub.balance:
        fewest = min(Counter(row["label"] for row in rows).values(), default=0)
        seen: Counter[Any] = Counter()
        balanced = []
        for row in rows:
            seen[row["label"]] += 1
            if seen[row["label"]] <= fewest:
                balanced.append(row)
        rows = balanced
    if hub.rows is None:
        return rows
    first, end = hub.rows
    if end > len(rows):
        raise InvalidInputError(f"{_hub_name(hub)} has {len(rows)} such rows. Got rows = {hub.rows!r}.")
    return rows[first:end]
