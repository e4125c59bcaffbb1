"""The paper's experiments, and your own, from raw text to tables and claims: small files, one command."""

from torchsdm.experiments.demonstration import tell_story
from torchsdm.experiments.own_answers import judge_own_answers
from torchsdm.experiments.results_page import write_results_page
from torchsdm.experiments.run import run_experiment, run_name
from torchsdm.experiments.specification import FULL, experiment_names, experiment_source, load_experiment

__all__ = [
    "FULL",
    "experiment_names",
    "experiment_source",
    "judge_own_answers",
    "load_experiment",
    "run_experiment",
    "run_name",
    "tell_story",
    "write_results_page",
]
