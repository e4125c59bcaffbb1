"""An experiment as a small TOML file: which texts, which question, how to train, what to study.

The file has everything that affects the result, so anyone with the texts and the language model can repeat it. Unknown
keys are refused, with a list of the known ones: a misspelt setting is never silently ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from research.experiments.settings import as_table, filled, refuse_unknown
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators import SDMClassifier
from torchsdm.evaluation import GROUPS
from torchsdm.files import strict_json
from torchsdm.hidden_states import HiddenStateExtractor, TaskPrompt, task_prompt
from torchsdm.settings import PRESETS, parse_toml, read_settings
from torchsdm.validation import check_alpha, check_choice, check_positive, check_share, draw_seed

FULL = "full"  #: the variant without changes: as in the paper
ROLES = ("in distribution", "shifted", "shuffled", "strangers", "background")  #: of a test set: what to expect on it
ROLES_WITHOUT_LABELS = ("shuffled", "strangers", "background")  #: whose sets need no labels of the pool
STUDIES = ("estimators", "strangers", "ablation", "sample size", "ensemble", "updatability", "alphas")  #: of a file
_FOLDER = Path(__file__).parent / "files"


@dataclass(frozen=True)
class HubData:
    """Rows of a data set on the Hugging Face hub."""

    name: str
    split: str | list[str]
    """One split, or several to concatenate."""
    config: str | None = None
    text: str = "text"
    label: str = "label"
    labels: Mapping[str, int | str] | None = None
    """New labels by old ones, written as strings; rows with other labels are left out."""
    balance: bool = False
    """Take the first rows of each label, as many as the rarest has."""
    seed: int | None = None
    """Shuffles the rows before any are taken."""
    rows: list[int] | None = None
    """First row, and one past the last."""


@dataclass(frozen=True)
class DataSet:
    """Texts, or states that were computed elsewhere; labelled, unless they are strangers."""

    name: str
    role: str = "pool"
    file: str | None = None
    """Path in the data folder, such as ``sentiment/pool``, with or without its ending; or next to the experiment."""
    hub: HubData | None = None
    """Where the texts are on the hub, if they are not in the folder."""
    shuffle: str | None = None
    """The test set whose texts these are, with their words shuffled."""
    relabel: int | str | None = None
    """One label for all, replacing the given ones."""
    text: str = "text"
    answer: str = "answer"
    """Column or key of another model's answer, if the prompt has a place for one."""
    label: str | None = None
    """Column or key of the label; by default 'label', if there is one."""
    rows: list[int] | None = None
    """First row, and one past the last, in a random order that is always the same: so one file can be divided."""
    states: str | None = None
    """The key of hidden states in the file; no language model is then needed."""
    n: int | None = None
    """Use at most this many, drawn at random; smaller draws are part of larger ones."""
    remark: str = ""
    """How the data differ from the paper's."""


@dataclass(frozen=True)
class Updates:
    """Settings of the study 'updatability'."""

    data: str | None = None
    """The test set of which a part is added to the support; by default the first shifted one."""
    share: float = 0.5
    """The part to add; the rest is decided on before and after."""


@dataclass(frozen=True)
class Experiment:
    """One experiment with all of its settings."""

    name: str
    title: str
    pool: DataSet
    """The texts that training and calibration sets are drawn from."""
    tests: tuple[DataSet, ...]
    prompt: TaskPrompt
    own_answers: bool = False
    """Whether the labels of the texts are the right answers, and what is judged is the language model's own answer:
    class 1 if it is right and 0 if not."""
    models: tuple[str, ...] = ()
    """The paper's language models, by their names on the hub."""
    studies: tuple[str, ...] = ("estimators",)
    groups: tuple[str, ...] = GROUPS
    """The groups of estimators to compare."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """What the labels mean."""
    preset: str = "paper"
    """Whose settings ``training`` and ``extraction`` change: the paper's, with which nothing is held out to certify and
    h is taken from the last layer, or the defaults of ``SDMClassifier`` and ``HiddenStateExtractor``."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of ``SDMClassifier``; the networks it is compared with are trained the same way."""
    extraction: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of ``HiddenStateExtractor``."""
    n_hidden: int = 795
    """Width of the Bayesian networks in the comparison."""
    alphas: tuple[float, ...] = ()
    """For the study 'alphas'."""
    updates: Updates = field(default_factory=Updates)
    variant: str = FULL
    folders: tuple[Path, ...] = ()
    """Folders of the file and of its task's, if they are the user's; data are looked for there too."""

    @property
    def alpha(self) -> float:
        """The target accuracy."""
        return float(self.training.get("alpha", 0.95))

    def classifier(self, **changes: Any) -> SDMClassifier:
        """The classifier of the experiment, not fitted."""
        make = SDMClassifier.paper if self.preset == "paper" else SDMClassifier
        return make(**{**self.training, **changes})

    def extractor(self, model: Any, **changes: Any) -> HiddenStateExtractor:
        """What makes the experiment's hidden states, with a language model."""
        of_preset = {"layer": -1} if self.preset == "paper" else {}
        return HiddenStateExtractor(model, self.prompt, **{**of_preset, **self.extraction, **changes})

    def test(self, role: str) -> list[DataSet]:
        """The test sets with a role."""
        return [data for data in self.tests if data.role == role]


def experiment_names() -> list[str]:
    """The experiments that come with torchsdm."""
    return sorted(entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml"))


def experiment_source(name: str) -> str:
    """The file of an experiment, by name or path."""
    path = Path(name)
    if path.suffix == ".toml":
        return read_settings(path)
    if name not in experiment_names():
        known = ", ".join(experiment_names())
        raise InvalidInputError(f"There is no experiment {name!r}. Choose one of {known}, or give your own .toml file.")
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def load_experiment(
    name: str, *, variant: str = FULL, task: str | None = None, changes: Mapping[str, Any] | None = None
) -> Experiment:
    """Read an experiment.

    Parameters
    ----------
    name : str
        One of ``experiment_names()``, or the path of a ``.toml`` file.
    variant : str
        'full', or one of the variants that the file defines.
    task : str, optional
        The experiment whose data, prompt and training to use, instead of the one that the file names.
    changes : mapping, optional
        Settings by dotted key, such as ``{"training.alpha": 0.9}``, which override those of the file and variant.
    """
    table, folders = _with_task(name, task)
    variants = as_table(table.pop("variants", {}), f"{name}: variants")
    if FULL in variants:
        raise InvalidInputError(f"{name}: {FULL!r} is the experiment without a variant. Use another name.")
    if variant != FULL:
        check_choice(variant, [FULL, *variants], "variant", f"experiment {name}")
        table = _changed(table, variants[variant], f"{name}: variants.{variant}")
    for key, value in (changes or {}).items():
        table = _changed(table, _nested(key.split("."), value), name)
    try:
        strict_json(table)  # settings are stored as JSON with the results
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"{name} may only have strings, finite numbers, true and false: {error}. Put dates in quotes."
        ) from error
    return _experiment(Path(name).stem, table, variant, folders)


# --- Merging tables --------------------------------------------------------------------------------------------------


def _read(name: str) -> dict[str, Any]:
    table = parse_toml(experiment_source(name), name)
    refuse_unknown(table, {*_SETTINGS, "task", "variants"}, name)
    return table


def _with_task(name: str, task: str | None) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """The table, merged over that of the experiment that its task names, if any, and the folders of a user's files."""
    table = _read(name)
    own = table.pop("task", None)
    if not isinstance(own, str | None):
        raise InvalidTypeError(f"{name}: 'task' must be the name of an experiment, or a .toml file. Got {own!r}.")
    if task is not None and own is None and "pool" in table:
        raise InvalidInputError(f"{name} has its own data and cannot use those of {task!r}.")
    if own is not None and own.endswith(".toml"):
        own = str(Path(name).parent / own)
    base = task if task is not None else own
    if base is None:
        return table, _folders(name)
    inherited = _read(base)
    if "task" in inherited:
        raise InvalidInputError(
            f"{name} has the task {base}, which itself has the task {inherited['task']!r}. Name one with its own data."
        )
    return _merged(inherited, table), _folders(name, base)


def _folders(*names: str) -> tuple[Path, ...]:
    paths = [Path(name) for name in names]
    return tuple(dict.fromkeys(path.parent.absolute() for path in paths if path.suffix == ".toml"))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, where the second overrides the first; the source of texts is replaced as a whole."""
    hub = over.get("hub")
    is_elsewhere = "file" in over or "shuffle" in over or (isinstance(hub, Mapping) and "name" in hub)
    merged = {key: value for key, value in base.items() if not (is_elsewhere and key in ("file", "hub", "shuffle"))}
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both_tables else value
    return merged


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    return {keys[0]: value if len(keys) == 1 else _nested(keys[1:], value)}


def _changed(table: Mapping[str, Any], changes: Any, where: str) -> dict[str, Any]:
    """The table with changes; ``pool = 500`` and ``tests = 200`` in them are numbers of documents."""
    changes = as_table(changes, where)
    if isinstance(changes.get("pool"), int):
        changes["pool"] = {"n": changes["pool"]}
    if isinstance(changes.get("tests"), int):
        changes["tests"] = {
            name: {"n": changes["tests"]} for name in as_table(table.get("tests", {}), f"{where}: tests")
        }
    return _merged(table, changes)


# --- From table to experiment ----------------------------------------------------------------------------------------

_SETTINGS = {one.name for one in fields(Experiment)} - {"name", "variant", "folders"}
_OF_THE_RUN = {"model", "prompt", "verbose", "checkpoint"}  # parameters that an experiment cannot set


def _experiment(name: str, table: dict[str, Any], variant: str, folders: tuple[Path, ...]) -> Experiment:
    refuse_unknown(table, _SETTINGS, name)
    tests = as_table(table.get("tests", {}), f"{name}: tests")
    if not tests or "pool" in tests:
        raise InvalidInputError(f"{name} needs a test set that is not called 'pool'. Add a table [tests.NAME].")
    for key, kind in (("training", SDMClassifier), ("extraction", HiddenStateExtractor)):
        known = set(inspect.signature(kind).parameters) - _OF_THE_RUN
        refuse_unknown(as_table(table.get(key, {}), f"{name}: {key}"), known, f"{name}: {key}")
    made = {
        "pool": _pool(table.get("pool", {}), f"{name}: pool"),
        "tests": tuple(_test(key, value, f"{name}: tests.{key}") for key, value in tests.items()),
        "prompt": _prompt(table.get("prompt"), f"experiment {name}"),
        "updates": filled(Updates, table.get("updates", {}), f"{name}: updates"),
    }
    plain = {key: value for key, value in table.items() if key not in made}
    experiment = filled(Experiment, plain, name, name=name, variant=variant, folders=folders, **made)
    _check(experiment)
    return experiment


def _check(experiment: Experiment) -> None:
    """Refuse settings that would fail, or mean nothing, after hours of work."""
    where = f"experiment {experiment.name}"
    check_choice(experiment.preset, PRESETS, "preset", where)
    if experiment.own_answers and not experiment.prompt.words:
        raise InvalidInputError(f"{where} is about own answers: give the prompt 'label_words', one per answer.")
    for alpha in (experiment.training.get("alpha", 0.95), *experiment.alphas):
        check_alpha(alpha, where)
    experiment.classifier()._check_parameters(where)
    draw_seed(experiment.training.get("random_state"), where)
    check_positive(experiment.n_hidden, "n_hidden", where, integer=True)
    for study in experiment.studies:
        check_choice(study, STUDIES, "studies", where)
    for group in experiment.groups:
        check_choice(group, GROUPS, "groups", where)
    with_texts = [data.name for data in experiment.tests if data.shuffle is None and data.states is None]
    for data in experiment.tests:
        if data.shuffle is not None:
            check_choice(data.shuffle, with_texts, f"tests.{data.name}.shuffle", where)
    if experiment.updates.data is not None:
        check_choice(experiment.updates.data, [data.name for data in experiment.tests], "updates.data", where)
    check_share(experiment.updates.share, "updates.share", where)
    if "updatability" in experiment.studies and experiment.updates.data is None and not experiment.test("shifted"):
        raise InvalidInputError(
            f"{where} has the study 'updatability', which needs a 'shifted' test set, or updates.data."
        )
    if "strangers" in experiment.studies and not (experiment.test("strangers") and experiment.test("in distribution")):
        raise InvalidInputError(
            f"{where} has the study 'strangers', which needs a test set of strangers and one in distribution."
        )
    if "alphas" in experiment.studies and not experiment.alphas:
        raise InvalidInputError(f"{where} has the study 'alphas' but no alphas. Add alphas = [0.9, 0.95].")


def _pool(table: Any, where: str) -> DataSet:
    return _data_set(table, where, name="pool", role="pool", shuffle=None)


def _test(name: str, table: Any, where: str) -> DataSet:
    values = as_table(table, where)
    check_choice(values.get("role"), ROLES, "role", where)
    if "shuffle" in values:
        kept = {"role", "shuffle", "relabel", "n", "remark"}  # the rest comes from the set that is shuffled
        refuse_unknown(values, kept, f"{where}, which shuffles {values['shuffle']!r}")
    return _data_set(values, where, name=name)


def _data_set(table: Any, where: str, **ours: Any) -> DataSet:
    values = as_table(table, where)
    if "hub" in values:
        values["hub"] = _hub_data(values["hub"], f"{where}.hub")
    data = filled(DataSet, values, where, **ours)
    if data.file is None and data.hub is None and data.shuffle is None:
        raise InvalidInputError(f"{where}: no 'file', 'hub' or 'shuffle' says where the texts are.")
    if data.states is not None and (data.file is None or data.hub is not None):
        raise InvalidInputError(f"{where}: 'states' must be in a 'file', not on the hub.")
    _check_rows(data.rows, where)
    if data.n is not None:
        check_positive(data.n, "n", where, integer=True)
    return data


def _hub_data(table: Any, where: str) -> HubData:
    hub = filled(HubData, table, where)
    _check_rows(hub.rows, where)
    if hub.seed is not None:
        check_positive(hub.seed, "seed", where, integer=True, zero=True)
    return hub


def _check_rows(rows: list[int] | None, where: str) -> None:
    if rows is not None and not (len(rows) == 2 and 0 <= rows[0] < rows[1]):
        raise InvalidInputError(f"{where}: 'rows' must be the first row and one past the last. Got {rows!r}.")


def _prompt(prompt: Any, where: str) -> TaskPrompt:
    """A prompt as a name, a template, or a table of template (or the name of a prompt), label words and system."""
    if not isinstance(prompt, Mapping):
        return task_prompt(prompt, where)
    refuse_unknown(prompt, {"template", "label_words", "system"}, f"{where}: prompt")
    if "template" not in prompt:
        raise InvalidInputError(f"{where}: 'prompt.template' is missing.")
    words = prompt.get("label_words", {})
    if isinstance(words, Mapping):  # TOML keys are strings, but most labels are numbers
        words = {int(label) if str(label).isdecimal() else label: word for label, word in words.items()}
    return TaskPrompt(task_prompt(prompt["template"], where).template, words, prompt.get("system"))
