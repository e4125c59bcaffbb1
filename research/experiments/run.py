"""Run an experiment: states, training, studies, report and result, all in one folder.

Each step saves its work, so an interrupted run resumes when it is called again: hidden states by block, the classifier
and the networks it is compared with by epoch.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from research.experiments.beside_paper import beside_paper
from research.experiments.claims import Claim
from research.experiments.paper import paper_model
from research.experiments.sources import check_test_labels, data_folders, read_computed_states, read_texts
from research.experiments.specification import Experiment
from research.experiments.studies import FUNCTIONS, Findings, Prepared, Section
from torchsdm import __version__
from torchsdm.data import LabelledStates
from torchsdm.errors import CheckpointError, InvalidInputError
from torchsdm.estimators import SDMClassifier
from torchsdm.evaluation import ResultTable, csv_text, split_strangers, write_report
from torchsdm.files import replace_file, strict_json
from torchsdm.hidden_states import default_store, judge_own_answers
from torchsdm.labels import label_array
from torchsdm.trust import separate_ledger
from torchsdm.validation import check_label_array

logger = logging.getLogger(__name__)

RESULT_NAME = "result.json"
_TIMES_NAME = "times.json"


@dataclass
class Stopwatch:
    """Seconds of each step, summed over interrupted runs, in a file."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.seconds = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a first run
            self.seconds = {}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Time a step, even if it is interrupted."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - begin
            replace_file(self.path, strict_json(self.seconds).encode())


@dataclass(frozen=True)
class Run:
    """What is run, how, and how long its steps take; see the parameters of ``run_experiment``."""

    experiment: Experiment
    model: str | None
    name: str
    directory: Path
    data: str | Path | None
    command: str
    texts: bool
    verbose: bool
    watch: Stopwatch


def run_experiment(
    experiment: Experiment,
    model: str | None,
    directory: str | Path,
    *,
    data: str | Path | None = None,
    name: str | None = None,
    command: str = "",
    texts: bool = True,
    verbose: bool = False,
) -> dict[str, Any]:
    """Run an experiment with a language model and write the results to a folder.

    Parameters
    ----------
    experiment : Experiment
    model : str, optional
        The language model, as for ``HiddenStateExtractor``; not needed if the data are states.
    directory : path
        Only for this run. An interrupted run resumes from what is there.
    data : path, optional
        The folder of data sets; by default ``TORCHSDM_DATA``, then the hub.
    name : str, optional
        Name of the language model in tables.
    command : str
        The command that repeats the run, for the record.
    texts : bool
        Whether the report quotes texts.
    verbose : bool
        Show progress on a terminal.

    Returns
    -------
    dict
        The contents of ``result.json``: settings, data, sections of tables, claims, seconds.
    """
    folder = _prepared_folder(directory)
    called, watch = name or model_name(model), Stopwatch(folder / _TIMES_NAME)
    run = Run(experiment, model, called, folder, data, command, texts, verbose, watch)
    states, facts = _states(run)
    with _own_checkpoints(run):
        classifier = _train(run, states["pool"])
        findings = _study(run, states, classifier)
    classifier.save(folder / "model")
    _report(run, findings, classifier)
    sections = [(study, section) for study, found in findings.items() for section in found.sections]
    printed = beside_paper((section for _, section in sections), model, experiment)
    sections += [("paper", printed)] if printed is not None else []
    claims = [claim for found in findings.values() for claim in found.claims]
    result = _result(run, facts, classifier, sections, claims)
    _write(folder, result, sections)
    return result


def model_name(reference: str | None) -> str:
    """The name of a language model, from its reference."""
    if reference is None:
        return "features"
    return Path(reference.rpartition(":")[2]).name.removesuffix(".gguf") or "LM"


def run_name(experiment: Experiment, model: str | None) -> str:
    """The name of a run's folder."""
    parts = [experiment.name, re.sub(r"[^\w.]+", "-", model_name(model)), experiment.variant]
    return "-".join(part for part in parts if part)


# --- Steps -----------------------------------------------------------------------------------------------------------


def _prepared_folder(directory: str | Path) -> Path:
    """The folder of a run, without the report of an earlier one, which may have had other studies."""
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error}.") from error
    (directory / "report.html").unlink(missing_ok=True)
    return directory


def _states(run: Run) -> tuple[dict[str, LabelledStates], dict[str, Any]]:
    """The labelled states of pool and tests, tests in distribution first, and facts about them."""
    experiment, watch = run.experiment, run.watch
    order = sorted(experiment.tests, key=lambda one: one.role != "in distribution")
    computed = [one.name for one in (experiment.pool, *order) if one.states is not None]
    if computed:
        if len(computed) != 1 + len(order):
            raise InvalidInputError(
                f"experiment {experiment.name}: {', '.join(computed)} are states and the others texts. Use one kind."
            )
        folders = data_folders(experiment, run.data)
        read = {one.name: read_computed_states(one, folders) for one in (experiment.pool, *order)}
        labels = {name: None if one.labels is None else list(one.labels) for name, (one, _) in read.items()}
        check_test_labels(experiment, labels, np.unique(check_label_array(labels["pool"], "pool")))
        described = [
            {"name": name, "role": one.role, "source": read[name][1], "n": len(read[name][0]), "remark": one.remark}
            for one in (experiment.pool, *order)
            for name in [one.name]
        ]
        return {name: states for name, (states, _) in read.items()}, {"data": described, "states": None}
    if run.model is None:
        listed = f" The paper used {' and '.join(experiment.models)}." if experiment.models else ""
        raise InvalidInputError(f"experiment {experiment.name} needs a language model: --language-model NAME.{listed}")
    texts = read_texts(experiment, run.data)
    extractor = experiment.extractor(run.model, verbose=run.verbose)
    store = default_store()
    states = {}
    for name in ("pool", *(one.name for one in order)):
        logger.info("Hidden states of %s (%s documents)", name, len(texts[name].documents))
        extracted = extractor.labelled_states(texts[name].documents, store=store, description=name)
        given = texts[name].labels
        labelled = replace(extracted, labels=None if given is None else label_array(given, name))
        states[name] = judge_own_answers(labelled) if experiment.own_answers else labelled
    if store.counts.n_extracted:
        watch.seconds["hidden states"] = store.counts.seconds
    else:
        watch.seconds.setdefault("hidden states", store.counts.seconds)
    in_pool = {document.text for document in texts["pool"].documents}
    described = [
        {
            **one.facts(),
            **({"labels": _counts(states[name].labels)} if experiment.own_answers else {}),
            "also_in_pool": sum(document.text in in_pool for document in one.documents),
        }
        for name, one in texts.items()
    ]
    counts = {
        "origin": None if states["pool"].origin is None else states["pool"].origin.to_json(),
        "documents": store.counts.n_documents,
        "tokens": store.counts.n_tokens,
        "documents_cut": store.counts.n_cut,
        "seconds": round(store.counts.seconds, 1),
        "dimensions": int(np.shape(states["pool"].hidden_states)[-1]),
    }
    return states, {"data": described, "states": counts}


def _counts(labels: Any) -> dict[str, int]:
    values, counts = np.unique(labels, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


@contextmanager
def _own_checkpoints(run: Run) -> Iterator[None]:
    """Explain what to do if the checkpoints in the folder are not this run's."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f"{run.directory} has a run with other data or settings, or a damaged one. Remove it, or give this run its "
            f"own folder: --run NAME. ({error})"
        ) from error


def _train(run: Run, pool: LabelledStates) -> SDMClassifier:
    with run.watch.timed("training"):
        classifier = run.experiment.classifier(verbose=run.verbose, checkpoint=run.directory / "training")
        logger.info("Training on %s points", len(pool))
        with separate_ledger():  # a run may be repeated
            return classifier.fit(pool, keep_rounds=classifier.training == "sdm")


def _study(run: Run, states: Mapping[str, LabelledStates], classifier: SDMClassifier) -> dict[str, Findings]:
    """The findings of each study of the experiment."""
    shown = {one.name: states[one.name].hidden_states for one in run.experiment.test("background")}
    tests = {
        part: rows
        for name, one in states.items()
        if name != "pool" and name not in shown
        for part, rows in split_strangers(name, one, classifier.classes_).items()
    }
    background = np.concatenate([np.asarray(one) for one in shown.values()]) if shown else None
    prepared = Prepared(run.experiment, run.name, states["pool"], tests, classifier, run.directory, background)
    findings = {}
    for study in run.experiment.studies:
        logger.info("Study: %s", study)
        with run.watch.timed(study):
            findings[study] = FUNCTIONS[study](prepared)
    return findings


def _report(run: Run, findings: Mapping[str, Findings], classifier: SDMClassifier) -> None:
    """Write the HTML report of the study that compares estimators, if there is one."""
    for study, found in findings.items():
        if found.evaluation is not None:
            logger.info("Writing the report")
            with run.watch.timed("report"):
                title = f"{run.experiment.title}: {run.name} ({study})"
                path = run.directory / "report.html"
                write_report(path, found.evaluation, classifier, title=title, texts=run.texts)


# --- The result ------------------------------------------------------------------------------------------------------


def _result(
    run: Run,
    facts: Mapping[str, Any],
    classifier: SDMClassifier,
    sections: Sequence[tuple[str, Section]],
    claims: Sequence[Claim],
) -> dict[str, Any]:
    """The contents of ``result.json``."""
    experiment = run.experiment
    return {
        "torchsdm": __version__,
        "experiment": experiment.name,
        "title": experiment.title,
        "variant": experiment.variant,
        "model": {"name": run.name, "reference": run.model, "in_paper": paper_model(run.model or "") is not None},
        "command": run.command,
        "alpha": experiment.alpha,
        "classes": dict(experiment.classes),
        "seed": classifier.random_seed_,
        "settings": {
            "training": _training(classifier),
            "extraction": dict(experiment.extraction),
            "studies": list(experiment.studies),
            "groups": list(experiment.groups),
            "n_hidden": experiment.n_hidden,
            "alphas": list(experiment.alphas),
            "updates": asdict(experiment.updates),
        },
        "prompt": experiment.prompt.to_json(),
        "data": facts["data"],
        "states": facts["states"],
        "region": _region_facts(classifier),
        "sections": [_section_facts(study, section) for study, section in sections],
        "claims": [{**asdict(claim), "verdict": claim.verdict} for claim in claims],
        "seconds": {step: round(seconds, 1) for step, seconds in run.watch.seconds.items()},
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": platform.machine(),
            "device": str(classifier.device or "cpu"),
        },
    }


def _training(classifier: SDMClassifier) -> dict[str, Any]:
    """The training settings, including defaults."""
    of_the_run = ("checkpoint", "verbose")
    return {name: value for name, value in classifier.get_params().items() if name not in of_the_run}


def _region_facts(classifier: SDMClassifier) -> dict[str, Any]:
    region, calibration = classifier.region_, classifier.model_.calibration
    return {
        "found": region.found,
        "min_rescaled_similarity": region.min_rescaled_similarity if region.found else None,
        "class_counts": [int(count) for count in region.class_counts],
        "calibration_accuracy": float((calibration.predictions == calibration.labels).double().mean()),
        "n_support": len(classifier.support_),
        "n_calibration": len(calibration.labels),
        "explanation": region.explain(classifier.classes_.tolist()),
    }


def _section_facts(study: str, section: Section) -> dict[str, Any]:
    table = section.table
    grid = table.grid() if isinstance(table, ResultTable) else table
    facts: dict[str, Any] = {"study": study, "title": section.title, "text": section.text, "on_page": section.on_page}
    facts |= {"columns": list(grid.columns), "rows": [list(row) for row in grid.rows]}
    if isinstance(table, ResultTable):
        facts["records"] = table.to_dicts()
    return facts


def _write(directory: Path, result: Mapping[str, Any], sections: Sequence[tuple[str, Section]]) -> None:
    """Write the result as JSON, and its tables in Markdown, LaTeX and CSV."""
    markdown = [f"# {result['title']}: {result['model']['name']}"]
    latex: list[str] = []
    records: list[dict[str, Any]] = []
    for _, section in sections:
        table = section.table
        markdown.append(f"## {section.title}\n\n{section.text}\n\n{table.to_markdown()}".replace("\n\n\n\n", "\n\n"))
        if isinstance(table, ResultTable):
            latex.append(f"% {section.title}\n{table.to_latex()}")
            records += [{"section": section.title, **record} for record in table.to_dicts()]
    replace_file(directory / "tables.md", ("\n\n".join(markdown) + "\n").encode())
    replace_file(directory / "tables.tex", ("\n\n".join(latex) + "\n").encode())
    replace_file(directory / "tables.csv", csv_text(records).encode())
    replace_file(directory / RESULT_NAME, f"{strict_json(result)}\n".encode())
