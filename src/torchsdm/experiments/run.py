"""Running an experiment: texts, hidden states, training, studies, and everything that is found in one folder.

Each step keeps what it made, so that a run that is interrupted, at whatever moment, goes on from there when it is
called again: hidden states by block, the classifier by epoch, the networks it is compared with by round.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchsdm._version import __version__
from torchsdm.errors import CheckpointError, InvalidInputError
from torchsdm.estimators import SDMClassifier
from torchsdm.evaluation import Grid, ResultRow, ResultTable, accuracy_text, csv_text, share_text, strata, write_report
from torchsdm.experiments.claims import REGION
from torchsdm.experiments.paper import paper_model, printed_rows
from torchsdm.experiments.sources import data_folders, read_computed_states, read_texts
from torchsdm.experiments.specification import FULL, Experiment
from torchsdm.experiments.studies import FUNCTIONS, Findings, Prepared, Section
from torchsdm.files import replace_file, strict_json
from torchsdm.hidden_states import HiddenStateExtractor, default_store
from torchsdm.states import LabelledStates

logger = logging.getLogger(__name__)

RESULT_NAME = "result.json"
_TIMES_NAME = "times.json"


@dataclass
class Stopwatch:
    """Seconds of each step, added up over the runs that it took, in a file."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.seconds = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a first run
            self.seconds = {}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Time a step, also one that is interrupted."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - begin
            replace_file(self.path, strict_json(self.seconds).encode())


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
    """Run an experiment with a language model and write what it finds to a folder.

    Parameters
    ----------
    experiment : Experiment
    model : str, optional
        The language model, as ``HiddenStateExtractor`` takes it; not needed where the data are states.
    directory : path
        For this run alone. An interrupted run goes on from what is there.
    data : path, optional
        The folder of data sets; by default what ``TORCHSDM_DATA`` says, then the hub.
    name : str, optional
        What the language model is called in tables.
    command : str
        How the run can be repeated, for the record.
    texts : bool
        Whether the report quotes texts.
    verbose : bool
        Show progress on a terminal.

    Returns
    -------
    dict
        What is in ``result.json``: settings, data, sections of tables, claims, seconds.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error}.") from error
    (directory / "report.html").unlink(missing_ok=True)  # of an earlier run, perhaps with other studies
    watch = Stopwatch(directory / _TIMES_NAME)
    called = name or model_name(model)
    states, facts = _states(experiment, model, data, watch, verbose)
    pool, tests = states["pool"], {name: one for name, one in states.items() if name != "pool"}
    try:
        with watch.timed("training"):
            classifier = SDMClassifier(
                **experiment.training, keep_rounds=True, verbose=verbose, checkpoint=directory / "training"
            )
            logger.info("Training %s rounds on %s points", classifier.n_rounds, len(pool))
            classifier.fit(pool)
        prepared = Prepared(experiment, called, pool, tests, classifier, directory)
        findings: dict[str, Findings] = {}
        for study in experiment.studies:
            logger.info("Study: %s", study)
            with watch.timed(study):
                findings[study] = FUNCTIONS[study](prepared)
    except CheckpointError as error:
        raise CheckpointError(
            f"{directory} holds a run on other data or with other settings, or a damaged one. Remove it, or give this "
            f"run a folder of its own: --run NAME. ({error})"
        ) from error
    classifier.save(directory / "model")
    for study, found in findings.items():
        if found.evaluation is not None:
            logger.info("Writing the report")
            with watch.timed("report"):
                title = f"{experiment.title}: {called} ({study})"
                write_report(directory / "report.html", found.evaluation, classifier, title=title, texts=texts)
    sections = [(study, section) for study, found in findings.items() for section in found.sections]
    sections += [("paper", section) for section in _beside_paper(sections, model, experiment)]
    result = {
        "torchsdm": __version__,
        "experiment": experiment.name,
        "title": experiment.title,
        "variant": experiment.variant,
        "model": {"name": called, "reference": model, "is_paper's": paper_model(model or "") is not None},
        "command": command,
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
        "claims": [{**asdict(claim), "verdict": claim.verdict} for one in findings.values() for claim in one.claims],
        "seconds": {step: round(seconds, 1) for step, seconds in watch.seconds.items()},
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": platform.machine(),
            "device": str(classifier.device or "cpu"),
        },
    }
    _write(directory, result, sections)
    return result


def model_name(reference: str | None) -> str:
    """What a language model is called after where it is from."""
    if reference is None:
        return "features"
    return Path(reference.rpartition(":")[2]).name.removesuffix(".gguf") or "LM"


def run_name(experiment: Experiment, model: str | None) -> str:
    """The name of a run's folder."""
    parts = [experiment.name, re.sub(r"[^\w.]+", "-", model_name(model)), experiment.variant]
    return "-".join(part for part in parts if part)


def _states(
    experiment: Experiment, model: str | None, data: str | Path | None, watch: Stopwatch, verbose: bool
) -> tuple[dict[str, LabelledStates], dict[str, Any]]:
    """The labelled states of pool and tests, the tests that are in distribution first, and facts about them."""
    order = sorted(experiment.tests, key=lambda one: one.role != "in distribution")
    computed = [one.name for one in (experiment.pool, *order) if one.states is not None]
    if computed:
        if len(computed) != 1 + len(order):
            raise InvalidInputError(
                f"experiment {experiment.name}: {', '.join(computed)} are states and the others texts. Give all as one."
            )
        folders = data_folders(experiment, data)
        read = {one.name: read_computed_states(one, folders) for one in (experiment.pool, *order)}
        described = [
            {"name": name, "role": one.role, "source": read[name][1], "n": len(read[name][0]), "remark": one.remark}
            for one in (experiment.pool, *order)
            for name in [one.name]
        ]
        return {name: states for name, (states, _) in read.items()}, {"data": described, "states": None}
    if model is None:
        listed = f" The paper used {' and '.join(experiment.models)}." if experiment.models else ""
        raise InvalidInputError(f"experiment {experiment.name} needs a language model: --model NAME.{listed}")
    texts = read_texts(experiment, data)
    extractor = HiddenStateExtractor(model, experiment.prompt, verbose=verbose, **experiment.extraction)
    store = default_store()
    states = {}
    for name in ("pool", *(one.name for one in order)):
        logger.info("Hidden states of %s (%s documents)", name, len(texts[name].documents))
        states[name] = extractor.labelled_states(texts[name].documents, store=store, description=name)
    if store.counts.n_extracted:
        watch.seconds["hidden states"] = store.counts.seconds
    else:
        watch.seconds.setdefault("hidden states", store.counts.seconds)
    in_pool = {document.text for document in texts["pool"].documents}
    described = [
        {**one.facts(), "also_in_pool": sum(document.text in in_pool for document in one.documents)}
        for one in texts.values()
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


def _training(classifier: SDMClassifier) -> dict[str, Any]:
    """The settings of training, those left to their defaults included."""
    of_the_run = ("checkpoint", "verbose", "keep_rounds")
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
    facts: dict[str, Any] = {"study": study, "title": section.title, "text": section.text}
    facts |= {"columns": list(grid.columns), "rows": [list(row) for row in grid.rows]}
    if isinstance(table, ResultTable):
        facts["records"] = table.to_dicts()
    return facts


def _beside_paper(
    sections: list[tuple[str, Section]], model: str | None, experiment: Experiment | None = None
) -> list[Section]:
    """Our accuracies and shares beside the printed ones, where the language model is one of the paper's."""
    printed_model = paper_model(model or "")
    if printed_model is None:
        return []
    rows = [row for _, section in sections if isinstance(section.table, ResultTable) for row in section.table.rows]
    lines = []
    for row in {(row.dataset, row.model, row.estimator, row.alpha): row for row in rows}.values():
        lines += _printed_lines(row, printed_model)
    columns = ["dataset", "model", "estimator", "stratum", "ours", "paper", "our share", "paper's share"]
    text = "Accuracy among the admitted, and their share of all inputs; printed values as they stand in the paper."
    if experiment is not None:
        remarks = [f"{one.name}: {one.remark}" for one in (experiment.pool, *experiment.tests) if one.remark]
        smaller = (
            [] if experiment.variant == FULL else [f"This is the variant {experiment.variant!r}, not the paper's run."]
        )
        text = " ".join([text, *smaller, *remarks])
    return [Section("Beside the paper", Grid(columns, lines), text)] if lines else []


_TAILS = {  # how the names of our models end, and the paper's; the language model alone comes last
    " + CNN": "+CNN",
    " + SDM": "+SDM",
    " + SDM, learned g": "+SDM",
    " + SDM, g = identity": "+identity+SDM",
    **{
        f" + {kind} VBLL, KL × {factor}": f"+{kind} VBLL, KL × {factor}"
        for kind in ("discriminative", "generative")
        for factor in (1, 50)
    },
    "": "",
}


def _printed_lines(row: ResultRow, printed_model: str) -> list[list[str]]:
    printed_tail = next(theirs for ours, theirs in _TAILS.items() if row.model.endswith(ours))
    model = f"{printed_model}{printed_tail}"
    estimator = REGION if row.estimator.startswith((f"{REGION}, q′_min", f"{REGION}, α")) else row.estimator
    found = printed_rows(dataset=row.dataset, model=model, estimator=estimator, alpha=row.alpha)
    if not found:
        return []
    printed = found[0].cells
    return [
        [
            *(row.dataset, row.model, row.estimator, stratum.name),
            *(accuracy_text(stratum.cell, row.alpha), printed[stratum.kind, stratum.label].accuracy),
            *(share_text(stratum.cell.share), printed[stratum.kind, stratum.label].share),
        ]
        for stratum in strata(row)
        if (stratum.kind, stratum.label) in printed
    ]


def _write(directory: Path, result: dict[str, Any], sections: list[tuple[str, Section]]) -> None:
    """The result as JSON, and its tables in Markdown, LaTeX and CSV."""
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
