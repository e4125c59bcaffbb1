"""The paper's experiments, and your own, from raw text to tables and claims: small files, one command."""

from research.experiments.results_page import write_results_page
from research.experiments.run import run_experiment, run_name
from research.experiments.settings import parse_value
from research.experiments.sources import read_texts
from research.experiments.specification import FULL, experiment_names, experiment_source, load_experiment

__all__ = [
    "FULL",
    "experiment_names",
    "experiment_source",
    "load_experiment",
    "parse_value",
    "read_texts",
    "run_experiment",
    "run_name",
    "write_results_page",
]
