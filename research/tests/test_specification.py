"""Experiments as files: that ours load, what goes before what, and what a misspelt or senseless setting is answered."""

from __future__ import annotations

import datetime

import pytest

from research.experiments.settings import parse_value
from research.experiments.specification import (
    FULL,
    ROLES,
    STUDIES,
    experiment_names,
    experiment_source,
    load_experiment,
)
from torchsdm import SDMClassifier
from torchsdm.errors import InvalidInputError, InvalidTypeError, TorchSDMError
from torchsdm.hidden_states.prompts import PROMPTS
from torchsdm.settings import tomllib

OURS = {name: tomllib.loads(experiment_source(name)) for name in experiment_names()}
TASKS = [name for name, table in OURS.items() if "task" not in table]
STUDIES_OF_A_TASK = [name for name, table in OURS.items() if "task" in table]
VARIANTS = [(name, variant) for name in TASKS for variant in (FULL, *OURS[name].get("variants", {}))]

WHOLE = """
title = "Urgent or not"
prompt = "Is this urgent? {document}"

[pool]
file = "pool"

[tests.now]
role = "in distribution"
file = "now"

[tests.later]
role = "shifted"
file = "later"
"""


@pytest.fixture
def write(tmp_path):
    """Write a file of a user's own and give back its path, as a command line would."""

    def writing(text, name="mine.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return writing


@pytest.fixture
def load(write):
    """Load a whole experiment with some text after it, or with changes."""

    def loading(more="", /, **options):
        return load_experiment(write(WHOLE + more), **options)

    return loading


# --- Ours ------------------------------------------------------------------------------------------------------------


def test_the_experiments_of_the_paper_are_there():
    ours = {"own-answers", "halueval", "clinc150"}
    assert set(TASKS) == {"sentiment", "factcheck", "factcheck-features", "agnews", "newsgroups"} | ours
    assert set(STUDIES_OF_A_TASK) == {"ablation", "alphas", "ensemble", "sample-size", "updatability"}
    shown = {study for name in OURS for study in load_experiment(name).studies}
    assert shown == set(STUDIES)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_task_loads_in_every_variant(name, variant):
    experiment = load_experiment(name, variant=variant)
    table = OURS[name]
    changes = table.get("variants", {}).get(variant, {})
    assert (experiment.name, experiment.title, experiment.variant) == (name, table["title"], variant)
    assert [data.name for data in experiment.tests] == list(table["tests"])
    assert experiment.pool.file == table["pool"]["file"] and experiment.pool.n == changes.get("pool")
    assert {data.n for data in experiment.tests} == {changes.get("tests")}
    assert experiment.training == {**table["training"], **changes.get("training", {})}
    assert experiment.n_hidden == changes.get("n_hidden", 795)
    assert experiment.alpha == table["training"]["alpha"] == (0.95 if experiment.preset == "paper" else 0.9)
    assert experiment.folders == ()
    for data in experiment.tests:
        assert data.role == table["tests"][data.name]["role"] in ROLES
        assert experiment.test(data.role).count(data) == 1


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("study", STUDIES_OF_A_TASK)
def test_every_study_loads_with_every_task_that_it_makes_sense_for(study, task):
    if study == "updatability" and not any(one["role"] == "shifted" for one in OURS[task]["tests"].values()):
        with pytest.raises(InvalidInputError, match=r"needs a 'shifted' test set, or updates\.data"):
            load_experiment(study, task=task)
        return
    for variant in (FULL, *OURS[task].get("variants", {})):
        experiment, of_task = load_experiment(study, task=task, variant=variant), load_experiment(task, variant=variant)
        assert (experiment.name, experiment.title) == (study, OURS[study]["title"])
        assert experiment.studies == tuple(OURS[study]["studies"])
        for field in ("pool", "tests", "prompt", "training", "n_hidden", "models", "classes"):
            assert getattr(experiment, field) == getattr(of_task, field), field


def test_the_task_that_a_file_names_is_the_default():
    assert load_experiment("ablation") == load_experiment("ablation", task="factcheck")
    assert load_experiment("updatability").updates.share == 0.5
    assert load_experiment("alphas").alphas == (0.8, 0.85, 0.9, 0.94, 0.95, 0.99)


@pytest.mark.parametrize("name", TASKS)
def test_an_experiment_with_data_of_its_own_takes_no_task(name):
    """Else the data of both would be mixed: the one's rows of the other's data set."""
    with pytest.raises(InvalidInputError, match=f"{name} has its own data and cannot use those of 'sentiment'"):
        load_experiment(name, task="sentiment")


@pytest.mark.parametrize("task", STUDIES_OF_A_TASK)
def test_a_task_has_no_task_itself(task):
    with pytest.raises(InvalidInputError, match=f"has the task {task}, which itself has the task 'factcheck'"):
        load_experiment("ablation", task=task)


def test_the_papers_settings():
    sentiment = load_experiment("sentiment")
    assert sentiment.prompt == PROMPTS["sentiment"] and len(sentiment.models) == 2
    assert sentiment.pool.hub.rows == [0, 18000] and sentiment.tests[0].hub.rows == [18000, 18000 + 1583]
    assert sentiment.tests[1].hub.labels == {"0": 0, "2": 1} and sentiment.tests[1].hub.balance
    assert [data.shuffle for data in sentiment.tests] == [None, None, "Sentiment", "SentimentOOD"]
    assert load_experiment("factcheck").tests[1].relabel == 0
    assert list(load_experiment("agnews").prompt.words) == [0, 1, 2, 3]
    assert load_experiment("factcheck-features").pool.states == "attributes"


# --- What goes before what -------------------------------------------------------------------------------------------


TASK = """
title = "task"
n_hidden = 1
prompt = "factcheck"
models = ["task"]
[pool]
file = "task/pool"
n = 1
[tests.one]
role = "shifted"
file = "task/one"
[training]
n_rounds = 1
max_epochs = 1
batch_size = 1
n_filters = 1
[variants.small]
n_hidden = 3
training = { max_epochs = 3, batch_size = 3 }
tests = 30
"""
FILE = """
title = "file"
task = "task.toml"
n_hidden = 2
[training]
n_rounds = 2
max_epochs = 2
batch_size = 2
[tests.two]
role = "in distribution"
file = "own/two"
[variants.small]
pool = 300
[variants.other]
title = "other"
"""


def test_changes_go_before_the_variant_before_the_file_before_the_task(write):
    write(TASK, "task.toml")
    path = write(FILE)
    plain = load_experiment(path)
    assert (plain.name, plain.title, plain.n_hidden, plain.models) == ("mine", "file", 2, ("task",))
    assert plain.prompt == PROMPTS["factcheck"]
    assert plain.training == {"n_filters": 1, "n_rounds": 2, "max_epochs": 2, "batch_size": 2}
    assert {data.name: data.file for data in plain.tests} == {"one": "task/one", "two": "own/two"}
    assert plain.pool.n == 1
    small = load_experiment(path, variant="small")
    assert (small.title, small.n_hidden, small.pool.n) == ("file", 3, 300)
    assert small.training == {"n_filters": 1, "n_rounds": 2, "max_epochs": 3, "batch_size": 3}
    assert [data.n for data in small.tests] == [30, 30]  # of the task's and of the file's own
    changes = {"training.batch_size": 4, "tests.two.n": 40, "title": "change", "updates": {"share": 0.25}}
    changed = load_experiment(path, variant="small", changes=changes)
    assert changed.training == {"n_filters": 1, "n_rounds": 2, "max_epochs": 3, "batch_size": 4}
    assert [data.n for data in changed.tests] == [30, 40]
    assert (changed.title, changed.n_hidden, changed.updates.share) == ("change", 3, 0.25)
    assert load_experiment(path, variant="other").title == "other"


def test_numbers_of_documents_can_be_changed_as_in_a_variant(load):
    experiment = load(changes={"pool": 500, "tests": 20, "tests.later.n": 10})
    assert (experiment.pool.n, [data.n for data in experiment.tests]) == (500, [20, 10])


def test_other_texts_are_never_partly_those_that_they_replace(write):
    """A file that is not there must not lead to the task's texts on the hub, nor a hub's to the task's file."""
    path = write('title = "mine"\ntask = "sentiment"\n[pool]\nfile = "mine/pool"\n')
    pool = load_experiment(path).pool
    assert pool.file == "mine/pool" and pool.hub is None
    path = write('title = "mine"\ntask = "sentiment"\n[pool]\nhub = { name = "me/mine", split = "all" }\n')
    pool = load_experiment(path).pool
    assert pool.file is None and (pool.hub.name, pool.hub.split) == ("me/mine", "all")
    assert pool.hub.rows is None and pool.hub.seed is None
    changed = load_experiment("sentiment", changes={"tests.Sentiment.file": "x", "pool.hub.rows": [0, 9], "pool.n": 5})
    assert changed.tests[0].hub is None and changed.tests[0].role == "in distribution"
    assert (changed.pool.file, changed.pool.hub.rows, changed.pool.hub.seed) == ("sentiment/pool", [0, 9], 0)


def test_a_users_own_files(write, tmp_path, monkeypatch):
    """The task and the data are looked for beside the file that names them, wherever one stands."""
    write(WHOLE, "tasks/task.toml")
    path = write('title = "mine"\ntask = "./tasks/task.toml"\n')
    (tmp_path / "factcheck").write_text("a file that is called as an experiment is")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "task.toml").write_text("nonsense")
    experiment = load_experiment(path)
    assert (experiment.title, experiment.pool.file) == ("mine", "pool")
    assert experiment.folders == (tmp_path, tmp_path / "tasks")
    beside = load_experiment(write(WHOLE + '\n[updates]\ndata = "now"\n', "whole.toml"))
    assert beside.folders == (tmp_path,) and beside.updates.data == "now"
    named = load_experiment(write('title = "x"\ntask = "factcheck"\n', "named.toml"))
    assert named.pool == load_experiment("factcheck").pool and named.folders == (tmp_path,)
    given = load_experiment("ablation", task="../tasks/task.toml")
    assert given.folders == (tmp_path / "elsewhere" / ".." / "tasks",) and given.studies == ("ablation",)
    assert load_experiment(path, task="factcheck").folders == (tmp_path,)
    monkeypatch.chdir(tmp_path)
    assert load_experiment("mine.toml").folders == (tmp_path, tmp_path / "tasks")


def test_a_file_as_windows_writes_it(write, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE.replace("\n", "\r\n").encode())
    assert load_experiment(str(path)) == load_experiment(write(WHOLE, "mine.toml"))
    assert experiment_source(str(path)).lstrip().startswith("title")


def test_defaults_of_a_whole_experiment(load):
    experiment = load()
    assert (experiment.studies, experiment.variant, experiment.alpha) == (("estimators",), FULL, 0.95)
    assert experiment.prompt.template == "Is this urgent? {document}" and not experiment.prompt.words
    assert experiment.updates.data is None and experiment.alphas == () and experiment.n_hidden == 795
    assert experiment.pool.role == "pool" and len(experiment.test("shifted")) == 1


def test_label_words_of_a_table_are_of_numbers_where_they_look_like_them(load):
    template = {"template": "{document}?"}
    words = load(changes={"prompt": {**template, "label_words": {"0": "No", "1": "Yes"}}}).prompt.words
    assert words == {0: "No", 1: "Yes"}
    words = load(changes={"prompt": {**template, "label_words": {"low": "No", "high": "Yes"}}}).prompt.words
    assert words == {"low": "No", "high": "Yes"}
    words = load(changes={"prompt": {**template, "label_words": {0: "No", 1: "Yes"}}}).prompt.words  # from Python
    assert words == {0: "No", 1: "Yes"}
    prompt = load(changes={"prompt": {**template, "label_words": ["No", "Yes"], "system": "Be brief."}}).prompt
    assert prompt.words == {0: "No", 1: "Yes"} and prompt.system == "Be brief."


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "place", "known"),
    [
        ("epochs", "mine", "alphas, classes, extraction, groups, models, n_hidden, own_answers, pool, preset, prompt"),
        ("task", "mine", "studies, tests, title, training, updates"),
        ("name", "mine", "alphas, classes"),
        ("pool.fil", "mine: pool", "answer, file, hub, label, n, relabel, remark, rows, states, text"),
        ("pool.role", "mine: pool", "answer, file, hub"),
        ("pool.name", "mine: pool", "answer, file, hub"),
        ("pool.shuffle", "mine: pool", "answer, file, hub"),
        (
            "tests.now.name",
            "mine: tests.now",
            "answer, file, hub, label, n, relabel, remark, role, rows, shuffle, states, text",
        ),
        (
            "tests.now.hub.subset",
            "mine: tests.now.hub",
            "balance, config, label, labels, name, rows, seed, split, text",
        ),
        ("training.n_epochs", "mine: training", "adaptor, alpha, backend, background_as, batch_size"),
        ("training.checkpoint", "mine: training", "adaptor, alpha, backend, background_as, batch_size"),
        ("training.keep_rounds", "mine: training", "adaptor, alpha, backend, background_as, batch_size"),
        ("extraction.models", "mine: extraction", "batch_tokens, chat_options, device"),
        ("extraction.verbose", "mine: extraction", "batch_tokens, chat_options, device"),
        ("extraction.prompt", "mine: extraction", "batch_tokens, chat_options, device"),
        ("updates.part", "mine: updates", "data, share"),
        ("prompt.words", "experiment mine: prompt", "label_words, system, template"),
    ],
)
def test_an_unknown_setting_is_refused_with_those_that_are_known(key, place, known, load):
    with pytest.raises(InvalidInputError) as raised:
        load(changes={key: "x"})
    last = key.rpartition(".")[2]
    assert str(raised.value).startswith(f"{place}: there is no setting {last!r}. Use one of ")
    listed = str(raised.value).partition("Use one of ")[2].rstrip(".").split(", ")
    assert known in ", ".join(listed) and last not in listed


def test_an_unknown_setting_is_refused_in_the_file_that_has_it(write):
    path = write('title = "x"\ntask = "task.toml"\n')
    write(WHOLE + "\n[variant.small]\npool = 3\n", "task.toml")
    with pytest.raises(InvalidInputError, match=r"task.toml: there is no setting 'variant'. Use one of .*variants"):
        load_experiment(path)
    with pytest.raises(InvalidInputError, match=r"mine: training: there is no setting 'rounds'"):
        load_experiment(write(WHOLE + "\n[variants.small]\ntraining = { rounds = 3 }\n"), variant="small")


WRONG_TYPES = [
    ("title", 3, "mine: 'title' must be a string. Got 3."),
    ("studies", "estimators", "mine: 'studies' must be a list of strings. Got 'estimators'."),
    ("studies", [1], "mine: 'studies' must be a list of strings. Got [1]."),
    ("models", "gpt2", "mine: 'models' must be a list of strings"),
    ("groups", "sdm", "mine: 'groups' must be a list of strings"),
    ("classes", 3, "mine: 'classes' must be a table of strings. Got 3."),
    ("classes", {"0": 1}, "mine: 'classes' must be a table of strings"),
    ("alphas", 0.9, "mine: 'alphas' must be a list of numbers. Got 0.9."),
    ("alphas", ["x"], "mine: 'alphas' must be a list of numbers"),
    ("alphas", [True], "mine: 'alphas' must be a list of numbers"),
    ("n_hidden", "x", "mine: 'n_hidden' must be an integer. Got 'x'."),
    ("n_hidden", 7.5, "mine: 'n_hidden' must be an integer"),
    ("n_hidden", True, "mine: 'n_hidden' must be an integer"),
    ("pool", "pool.csv", "mine: pool must be a table. Got 'pool.csv'."),
    ("pool", True, "mine: pool: 'n' must be an integer. Got True."),
    ("pool.n", "x", "mine: pool: 'n' must be an integer. Got 'x'."),
    ("pool.file", 3, "mine: pool: 'file' must be a string"),
    ("pool.text", ["text"], "mine: pool: 'text' must be a string"),
    ("tests", "now", "mine: tests must be a table. Got 'now'."),
    ("tests.now", "now.csv", "mine: tests.now must be a table. Got 'now.csv'."),
    ("tests.now.relabel", 1.5, "mine: tests.now: 'relabel' must be an integer or a string. Got 1.5."),
    ("tests.now.relabel", True, "mine: tests.now: 'relabel' must be an integer or a string"),
    ("tests.now.hub", "imdb", "mine: tests.now.hub must be a table. Got 'imdb'."),
    ("training", 3, "mine: training must be a table"),
    ("training.n_rounds", "x", "'n_rounds' of experiment mine must be an integer. Got 'x'."),
    ("training.alpha", "x", "'alpha' of experiment mine must be a number in (0.5, 1]. Got 'x'."),
    ("training.alpha", [0.9, 0.95], "'alpha' of experiment mine must be a number in (0.5, 1]"),
    ("extraction", ["device"], "mine: extraction must be a table"),
    ("updates", 0.5, "mine: updates must be a table"),
    ("updates.share", "half", "mine: updates: 'share' must be a number. Got 'half'."),
    ("updates.data", 3, "mine: updates: 'data' must be a string"),
    ("prompt", 3, "'prompt' of experiment mine must be a name, a template or a TaskPrompt. Got 3."),
    ("prompt", {"template": 3}, "'prompt' of experiment mine must be a name, a template or a TaskPrompt. Got 3"),
    ("extraction.chat_options", {"day": datetime.date(2024, 7, 26)}, "Put dates in quotes."),
]
SENSELESS = [
    ("studies", ["estimator"], "'studies' of experiment mine must be one of 'estimators', 'strangers'"),
    ("studies", [], "mine: 'studies' must list at least one value, each once. Got []."),
    ("studies", ["ensemble", "ensemble"], "mine: 'studies' must list at least one value, each once"),
    ("groups", ["vblll"], "'groups' of experiment mine must be one of 'language model'"),
    ("groups", [], "mine: 'groups' must list at least one value"),
    ("alphas", [0.9, 0.9], "mine: 'alphas' must list at least one value, each once"),
    ("alphas", [0.9, 0.05], "'alpha' of experiment mine must be in (0.5, 1]. Got 0.05"),
    ("studies", ["alphas"], "has the study 'alphas' but no alphas. Add alphas = [0.9, 0.95]."),
    ("n_hidden", 0, "'n_hidden' of experiment mine must be positive. Got 0."),
    ("pool.n", 0, "'n' of mine: pool must be positive. Got 0."),
    ("pool", -3, "'n' of mine: pool must be positive. Got -3."),
    ("pool", {"file": "x", "states": "h", "hub": {"name": "a", "split": "b"}}, "'states' must be in a 'file', not"),
    ("tests.new", {"role": "shifted"}, "mine: tests.new: no 'file', 'hub' or 'shuffle' says where the texts are."),
    ("tests.new", {"file": "x"}, "'role' of mine: tests.new must be one of 'in distribution', 'shifted', "),
    ("tests.now.role", "out", "'role' of mine: tests.now must be one of 'in distribution', 'shifted', "),
    ("tests.now.role", ["shifted"], "'role' of mine: tests.now must be one of"),
    ("tests.now.role", "pool", "'role' of mine: tests.now must be one of"),
    ("tests.pool", {"role": "shifted", "file": "x"}, "mine needs a test set that is not called 'pool'"),
    ("training.alpha", 0.05, "'alpha' of experiment mine must be in (0.5, 1]. Got 0.05"),
    ("training.n_rounds", 0, "'n_rounds' of experiment mine must be positive"),
    ("training.adaptor", "linear", "'adaptor' of experiment mine must be one of 'filters', 'identity'"),
    ("training.random_state", "x", "'random_state' of experiment mine must be a seed"),
    ("training.device", "cuda:7", "'device' of experiment mine must be a torch device on this machine"),
    ("updates.share", 1, "'updates.share' of experiment mine must be in (0, 1). Got 1"),
    ("updates.share", 0.0, "'updates.share' of experiment mine must be positive"),
    ("updates.data", "never", "'updates.data' of experiment mine must be one of 'now', 'later'. Got 'never'."),
    ("prompt", "sentimental", "'prompt' of experiment mine must be one of 'sentiment', 'factcheck'"),
    ("prompt", "{document} {text}", "Got {text}"),
    ("prompt", {"system": "x"}, "experiment mine: 'prompt.template' is missing."),
]
HUB = {"name": "a/b", "split": "x"}
HUBS = [
    ({"split": "train"}, "pool.hub: 'name' is missing."),
    ({"name": "a/b"}, "pool.hub: 'split' is missing."),
    ({"name": 3, "split": "train"}, "pool.hub: 'name' must be a string. Got 3."),
    ({"name": "a/b", "split": 3}, "pool.hub: 'split' must be a string or a list of strings. Got 3."),
    ({"name": "a/b", "split": [3]}, "pool.hub: 'split' must be a string or a list of strings"),
    ({"name": "a/b", "split": []}, "pool.hub: 'split' must list at least one value, each once. Got []."),
    ({"name": "a/b", "split": ["x", "x"]}, "pool.hub: 'split' must list at least one value, each once"),
    ({**HUB, "rows": [5]}, "'rows' must be the first row and one past the last. Got [5]."),
    ({**HUB, "rows": [5, 3]}, "'rows' must be the first row and one past the last"),
    ({**HUB, "rows": [-5, 3]}, "'rows' must be the first row and one past the last"),
    ({**HUB, "rows": [0, 1, 2]}, "'rows' must be the first row and one past the last"),
    ({**HUB, "rows": 5}, "pool.hub: 'rows' must be a list of integers. Got 5."),
    ({**HUB, "rows": ["0", "5"]}, "pool.hub: 'rows' must be a list of integers"),
    ({**HUB, "seed": "x"}, "pool.hub: 'seed' must be an integer. Got 'x'."),
    ({**HUB, "seed": -1}, "'seed' of mine: pool.hub must be at least 0. Got -1."),
    ({**HUB, "balance": 1}, "pool.hub: 'balance' must be true or false. Got 1."),
    ({**HUB, "labels": [0, 1]}, "'labels' must be a table of integers or strings"),
    ({**HUB, "labels": {"0": 0.5}}, "'labels' must be a table of integers or strings"),
]
SHUFFLED = [
    ({"shuffle": "never"}, "'tests.new.shuffle' of experiment mine must be one of 'now', 'later'. Got 'never'."),
    ({"shuffle": "new"}, "'tests.new.shuffle' of experiment mine must be one of 'now', 'later'. Got 'new'."),
    ({"shuffle": "pool"}, "'tests.new.shuffle' of experiment mine must be one of 'now', 'later'"),
    ({"shuffle": ["now"]}, "mine: tests.new: 'shuffle' must be a string"),
    ({"shuffle": "now", "file": "x"}, "which shuffles 'now': there is no setting 'file'. Use one of n, relabel, "),
    ({"shuffle": "now", "text": "x"}, "which shuffles 'now': there is no setting 'text'"),
    ({"shuffle": "now", "states": "x"}, "which shuffles 'now': there is no setting 'states'"),
]


@pytest.mark.parametrize(
    ("error", "key", "value", "expected"),
    [
        *((InvalidTypeError, *case) for case in WRONG_TYPES),
        *((InvalidInputError, *case) for case in SENSELESS),
        *((TorchSDMError, "pool.hub", *case) for case in HUBS),
        *((TorchSDMError, "tests.new", {"role": "shuffled", **settings}, said) for settings, said in SHUFFLED),
    ],
)
def test_a_senseless_value_is_refused(error, key, value, expected, load):
    with pytest.raises(error) as raised:
        load(changes={key: value})
    assert expected in str(raised.value)


def test_what_is_shuffled_must_have_texts(load):
    again = {"tests.a": {"role": "shuffled", "shuffle": "now"}, "tests.b": {"role": "shuffled", "shuffle": "a"}}
    with pytest.raises(InvalidInputError, match=r"'tests.b.shuffle' .* must be one of 'now', 'later'. Got 'a'"):
        load(changes=again)
    states = {"tests.now.states": "h", "tests.b": {"role": "shuffled", "shuffle": "now"}}
    with pytest.raises(InvalidInputError, match=r"'tests.b.shuffle' .* must be one of 'later'. Got 'now'"):
        load(changes=states)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "needs a test set that is not called 'pool'. Add a table [tests.NAME]."),
        ("tests = 3", "mine: tests must be a table. Got 3."),
        ("[tests]", "needs a test set"),
        ('[tests.x]\nrole = "shifted"\nfile = "x"', "mine: pool: no 'file', 'hub' or 'shuffle' says where"),
        ('[pool]\nfile = "x"\n[tests.x]\nrole = "shifted"\nfile = "x"', "mine: 'title' is missing."),
        ("title = 'x'\ntitle = 'y'", "mine.toml is not valid TOML: Cannot overwrite a value"),
        ("[tests.x]\n[tests.x]", "mine.toml is not valid TOML"),
        ("title = urgent", "mine.toml is not valid TOML"),
        ("variants = 3", "variants must be a table. Got 3."),
        (WHOLE + "[variants.full]\npool = 3", "'full' is the experiment without a variant"),
        ("task = 3", "mine.toml: 'task' must be the name of an experiment, or a .toml file. Got 3."),
        ("task = 'sentimental'", "There is no experiment 'sentimental'. Choose one of ablation, agnews"),
        ("task = 'mine.toml'", "which itself has the task 'mine.toml'. Name one with its own data."),
        ("task = 'nowhere.toml'", "nowhere.toml cannot be read as settings"),
        (WHOLE + "[training]\nlearning_rate = nan", "may only have strings, finite numbers"),
        (WHOLE + "[extraction.chat_options]\ndate = 2024-07-26", "Put dates in quotes."),
    ],
)
def test_a_senseless_file_is_refused(text, expected, write):
    with pytest.raises(TorchSDMError) as raised:
        load_experiment(write(text))
    assert expected in str(raised.value)


def test_what_is_no_experiment_is_refused(write, tmp_path):
    with pytest.raises(
        InvalidInputError, match=r"There is no experiment 'imdb'. Choose one of .*sentiment.*\.toml file"
    ):
        load_experiment("imdb")
    with pytest.raises(InvalidInputError, match=r"nowhere\.toml cannot be read as settings"):
        experiment_source(str(tmp_path / "nowhere.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InvalidInputError, match=r"folder\.toml cannot be read as settings"):
        load_experiment(str(tmp_path / "folder.toml"))
    (tmp_path / "latin.toml").write_bytes("title = 'déjà vu'".encode("latin-1"))
    with pytest.raises(InvalidInputError, match=r"latin\.toml cannot be read as settings"):
        load_experiment(str(tmp_path / "latin.toml"))


def test_an_unknown_variant_is_refused(load):
    with pytest.raises(
        InvalidInputError, match="'variant' of experiment factcheck must be one of 'full', 'hour', 'quick'"
    ):
        load_experiment("factcheck", variant="qiuck")
    with pytest.raises(InvalidTypeError, match=r"mine.toml: variants.small must be a table. Got 3"):
        load("[variants]\nsmall = 3\n", variant="small")


# --- Values from a command line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.9", 0.9),
        ("500", 500),
        ("1e-5", 1e-5),
        ("true", True),
        ('"0.9"', "0.9"),
        ("'cuda'", "cuda"),
        ('["cnn", "sdm"]', ["cnn", "sdm"]),
        ("[0, 100]", [0, 100]),
        ("{ n = 3 }", {"n": 3}),
        ("cuda", "cuda"),
        ("document", "document"),
        ("Is it urgent? {document}", "Is it urgent? {document}"),
        ("True", "True"),
        ("", ""),
        ("1, 2", "1, 2"),
        ("5 # of them", "5 # of them"),
        ("5\nn = 6", "5\nn = 6"),
        ("[1", "[1"),
        ("a = 1", "a = 1"),
        ("2024-07-26", datetime.date(2024, 7, 26)),
    ],
)
def test_a_value_is_read_as_toml_or_taken_as_it_is(text, value):
    parsed = parse_value(text)
    assert parsed == value and type(parsed) is type(value)


def test_the_paper_s_protocol_is_used_unless_a_file_asks_for_a_certificate():
    assert SDMClassifier().certification_size is not None
    for name in experiment_names():
        experiment = load_experiment(name)
        assert (experiment.classifier().certification_size is None) == (experiment.preset == "paper")
    asked = load_experiment("sentiment", changes={"training.certification_size": 0.2})
    assert asked.classifier(adaptor="identity").get_params()["certification_size"] == 0.2


def test_a_preset_says_whose_settings_are_changed():
    paper, default = load_experiment("factcheck"), load_experiment("own-answers")
    assert paper.preset == "paper" and paper.classifier().certification_size is None
    ours = default.classifier().get_params()
    assert ours == {**SDMClassifier().get_params(), "alpha": 0.9, "control": "predictions", "random_state": 0}
    with pytest.raises(InvalidInputError, match="'preset'"):
        load_experiment("factcheck", changes={"preset": "fast"})


def test_a_table_may_name_a_prompt_and_give_it_other_words():
    prompt = load_experiment("halueval").prompt
    assert prompt.template == PROMPTS["verify-answer"].template and prompt.words == {0: "Yes", 1: "No"}


def test_own_answers_need_words_to_answer_with():
    with pytest.raises(InvalidInputError, match="own answers: give the prompt 'label_words'"):
        load_experiment("own-answers", changes={"prompt": "document"})


@pytest.mark.parametrize(
    ("name", "layer"), [("sentiment", -1), ("factcheck", -1), ("own-answers", None), ("halueval", None)]
)
def test_experiments_with_the_papers_settings_take_its_layer(name, layer):
    assert load_experiment(name).extractor("model").layer == layer
    assert load_experiment(name, changes={"extraction.layer": 3}).extractor("model").layer == 3
