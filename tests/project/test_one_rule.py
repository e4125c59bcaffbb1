"""One rule, everywhere: the command, Python, HTTP, the page and agents have the same defaults and the same checks.

Each row of the tables is a default or a check, with its value at each door, read from the code.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchsdm.cli
from torchsdm import (
    CertifiedClassifier,
    DriftGuard,
    HiddenStateExtractor,
    SDMClassifier,
    SDMEnsemble,
    SDMTextClassifier,
    SpotCheck,
    audit_labels,
    write_report,
)
from torchsdm.application import (
    AnswerRequest,
    LiveModel,
    ModelChange,
    ModelChecks,
    ReviewQueue,
    SavedModel,
    audit_data,
    certify_model,
    change_requests,
    check_model,
    choose_alpha,
    evaluate_model,
    recalibrate_model,
    report_model,
    run_demo,
    train_model,
    update_model,
)
from torchsdm.application.answers import answer_rows
from torchsdm.cli.command import sdm
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import Add, Certify, Recalibrate, Relabel
from torchsdm.evaluation import AdmittedShareScorer
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, POLICIES, TRAININGS

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
from torchsdm.service import MEGABYTE, ServiceSettings, inspector, schemas, tools

LONGEST = 40  # lines of a verb's body
REQUIRED = "required"


# --- A verb parses, calls and prints ---------------------------------------------------------------------------------


def bodies():
    for path in sorted(Path(torchsdm.cli.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(".command" in ast.unparse(one) for one in node.decorator_list):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                yield node.name, body[-1].end_lineno - body[0].lineno + 1


def test_a_verb_parses_calls_and_prints():
    found = dict(bodies())
    assert set(found) == set(sdm.list_commands(None))
    assert {name: length for name, length in found.items() if length > LONGEST} == {}


# --- Defaults --------------------------------------------------------------------------------------------------------


def parameter(function: Any, name: str) -> Any:
    default = inspect.signature(function).parameters[name].default
    return REQUIRED if default is inspect.Parameter.empty else default


def option(verb: str, spelling: str) -> Any:
    (one,) = (one for one in sdm.get_command(None, verb).params if spelling in one.opts)
    return one.to_info_dict()["default"]


def field(schema: Any, name: str) -> Any:
    found = schema.model_fields[name]
    return REQUIRED if found.is_required() else found.default


def tool(name: str, parameter: str) -> Any:
    """Of a tool of agents, which is a function within a function."""
    code = ast.parse(Path(tools.__file__).read_text(encoding="utf-8"))
    (function,) = (one for one in ast.walk(code) if isinstance(one, ast.FunctionDef) and one.name == name)
    arguments, defaults = [one.arg for one in function.args.args], function.args.defaults
    named = dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    return ast.literal_eval(named[parameter]) if parameter in named else REQUIRED


CHANGED = ("update", "recalibrate", "certify", "choose")
OF_MODELS = ("predict", "explain", "evaluate", "report", "update", "certify", "choose", "serve", "mcp")
DEFAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "labels outside the classes": (
        False,
        {
            "add_exemplars": parameter(SDMClassifier.add_exemplars, "allow_new_labels"),
            "relabel": parameter(SDMClassifier.relabel, "allow_new_labels"),
            "relabel_exemplars": parameter(SDMClassifier.relabel_exemplars, "allow_new_labels"),
            "texts: add_exemplars": parameter(SDMTextClassifier.add_exemplars, "allow_new_labels"),
            "texts: relabel": parameter(SDMTextClassifier.relabel, "allow_new_labels"),
            "texts: relabel_exemplars": parameter(SDMTextClassifier.relabel_exemplars, "allow_new_labels"),
            "LiveModel.add": parameter(LiveModel.add, "allow_new_labels"),
            "LiveModel.relabel": parameter(LiveModel.relabel, "allow_new_labels"),
            "Add": parameter(Add, "allow_new_labels"),
            "Relabel": parameter(Relabel, "allow_new_labels"),
            "update_model": parameter(update_model, "allow_new_labels"),
            "sdm update": option("update", "--allow-new-labels"),
            "HTTP, add": field(schemas.Add, "allow_new_labels"),
            "HTTP, relabel": field(schemas.Relabel, "allow_new_labels"),
            "agents": tool("add_example", "allow_new_label"),
        },
    ),
    "points that the model has already": (
        False,
        {
            "add_exemplars": parameter(SDMClassifier.add_exemplars, "repeated") == "keep",
            "add_calibration": parameter(SDMClassifier.add_calibration, "repeated") == "keep",
            "texts: add_exemplars": parameter(SDMTextClassifier.add_exemplars, "repeated") == "keep",
            "texts: add_calibration": parameter(SDMTextClassifier.add_calibration, "repeated") == "keep",
            "LiveModel.add": parameter(LiveModel.add, "repeated") == "keep",
            "Add": parameter(Add, "repeated") == "keep",
            "update_model": parameter(update_model, "keep_repeated"),
            "sdm update": option("update", "--keep-repeated"),
            "HTTP, add": field(schemas.Add, "keep_repeated"),
            "HTTP, add_calibration": field(schemas.AddCalibration, "keep_repeated"),
        },
    ),
    **{
        f"recalibrate: {name}": (
            None,
            {
                "recalibrate": None if name == "policy" else parameter(SDMClassifier.recalibrate, name),
                "LiveModel": parameter(LiveModel.recalibrate, name),
                "Recalibrate": parameter(Recalibrate, name),
                "recalibrate_model": parameter(recalibrate_model, name),
                "HTTP": field(schemas.RecalibrateRequest, name),
                "HTTP, among changes": field(schemas.Recalibrate, name),
            }
            | {"sdm recalibrate": option("recalibrate", f"--{name.replace('_', '-')}")},
        )
        for name in ("alpha", "min_class_count", "policy")
    },
    **{
        f"certify: {name}": (
            None,
            {
                "LiveModel": parameter(LiveModel.certify, name),
                "Certify": parameter(Certify, name),
                "certify_model": parameter(certify_model, name),
            }
            | {"sdm certify": option("certify", f"--{name}")},
        )
        for name in ("alpha", "delta", "control")
    },
    **{
        f"{name} of a certificate": (
            parameter(SDMClassifier, name),
            {"SDMEnsemble": parameter(SDMEnsemble, name), "CertifiedClassifier": parameter(CertifiedClassifier, name)},
        )
        for name in ("alpha", "delta", "control")
    },
    "recalibrate after an update of files or of the queue": (
        True,
        {
            "sdm update": option("update", "--recalibrate"),
            "update_model": parameter(update_model, "recalibrate"),
            "review queue": parameter(ReviewQueue.add, "recalibrate"),
            "review queue, preview": parameter(ReviewQueue.preview, "recalibrate"),
            "page": parameter(inspector.add, "recalibrate"),
            "page, preview": parameter(inspector.preview, "recalibrate"),
        },
    ),
    "write what admits less than half": (
        False,
        {"sdm update": option("update", "--force"), "update_model": parameter(update_model, "force")},
    ),
    "replace a model": (
        False,
        {"train_model": parameter(train_model, "overwrite"), "ModelChange": parameter(ModelChange, "overwrite")}
        | {f"sdm {verb}": option(verb, "--overwrite") for verb in ("train", *CHANGED)},
    ),
    "write nothing": (
        False,
        {"ModelChange": parameter(ModelChange, "dry_run"), "choose_alpha": parameter(choose_alpha, "dry_run")}
        | {f"sdm {verb}": option(verb, "--dry-run") for verb in ("update", "choose", "undo")},
    ),
    "examples of an explanation": (
        5,
        {
            "SDMClassifier": parameter(SDMClassifier.explain, "k"),
            "SDMEnsemble": parameter(SDMEnsemble.explain, "k"),
            "SDMTextClassifier": parameter(SDMTextClassifier.explain, "k"),
            "sdm explain": option("explain", "--exemplars"),
            "HTTP": field(schemas.ExplainRequest, "k"),
            "agents": tool("explain", "k"),
        },
    ),
    "texts of training examples": (
        False,
        {
            "answer_rows": parameter(answer_rows, "texts"),
            "service": parameter(ServiceSettings, "texts"),
            "agents": parameter(tools.create_tools, "texts"),
            **{f"sdm {verb}": option(verb, "--texts") for verb in ("predict", "serve", "mcp")},
        },
    ),
    "texts in a report": (
        True,
        {
            "write_report": parameter(write_report, "texts"),
            "report_model": parameter(report_model, "texts"),
            "sdm report": not option("report", "--no-texts"),
        },
    ),
    "tokens per batch": (
        parameter(HiddenStateExtractor, "batch_tokens"),
        {
            "SavedModel": parameter(SavedModel.load, "batch_tokens"),
            "LiveModel": parameter(LiveModel.open, "batch_tokens"),
            **{f"sdm {verb}": option(verb, "--batch-tokens") for verb in ("embed", *OF_MODELS)},
        },
    ),
    "segments": (parameter(HiddenStateExtractor, "n_segments"), {"sdm embed": option("embed", "--n-segments")}),
    "documents per file": (
        parameter(HiddenStateExtractor.extract_to, "shard_size"),
        {"sdm embed": option("embed", "--shard-size")},
    ),
    **{
        f"audit: {name}": (
            parameter(audit_labels, name),
            {"audit_data": parameter(audit_data, name), "sdm audit": option("audit", spelling)},
        )
        for name, spelling in (("n_neighbors", "-k"), ("n_folds", "--folds"), ("random_state", "--seed"))
    },
    "alpha of an evaluation": (None, {"sdm evaluate": option("evaluate", "--alpha")}),
    **{
        f"spot checks: {name}": (
            parameter(SpotCheck, name),
            {
                "ModelChecks": parameter(ModelChecks.draw, name),
                "check_model": parameter(check_model, name),
                "SpotCheck.draw_at": parameter(SpotCheck.draw_at, name),
                "sdm check": option("check", f"--{name.replace('_', '-')}"),
            },
        )
        for name in ("rate", "per_week")
    },
    "spot checks: false alarms": (
        parameter(DriftGuard, "false_alarm"),
        {"SpotCheck": parameter(SpotCheck, "false_alarm")},
    ),
    "estimators that are trained to compare": (
        option("evaluate", "--groups"),
        {"sdm report": option("report", "--groups")},
    ),
    "seed of the demo": (parameter(run_demo, "seed"), {"sdm demo": option("demo", "--seed")}),
    **{
        f"service: {name}": (
            parameter(ServiceSettings, name),
            {"sdm serve": option("serve", f"--{name.replace('_', '-')}")},
        )
        for name in (
            "host",
            "port",
            "watch",
            "check_rate",
            "check_per_week",
            "max_inputs",
            "max_waiting",
            "batch_rows",
            "body_seconds",
            "drain_seconds",
        )
    },
    "service: bytes of a body": (
        parameter(ServiceSettings, "max_body"),
        {"sdm serve": MEGABYTE * option("serve", "--max-megabytes")},
    ),
    "inputs at once": (parameter(ServiceSettings, "max_inputs"), {"agents": tools.MOST_INPUTS}),
    "examples of an explanation, at most": (
        tools.MOST_EXAMPLES,
        {"HTTP": next(one.le for one in schemas.ExplainRequest.model_fields["k"].metadata if hasattr(one, "le"))},
    ),
    "who makes a change, and why": (
        REQUIRED,
        {
            "LiveModel, who": parameter(LiveModel.make, "who"),
            "LiveModel, why": parameter(LiveModel.make, "why"),
            "HTTP, who": field(schemas.ExemplarsRequest, "who"),
            "HTTP, why": field(schemas.ExemplarsRequest, "why"),
            "HTTP, recalibrate, who": field(schemas.RecalibrateRequest, "who"),
            "page, who": parameter(inspector.add, "who"),
            "page, why": parameter(inspector.add, "why"),
            "agents, why": tool("add_example", "why"),
        },
    ),
}


@pytest.mark.parametrize("rule", DEFAULTS)
def test_every_door_has_the_same_default(rule):
    expected, doors = DEFAULTS[rule]
    assert doors == dict.fromkeys(doors, expected)


OF_TRAINING = {name: one.default for name, one in inspect.signature(SDMClassifier).parameters.items()}
NOT_OPTIONS = {  # parameters of the constructor that sdm train gives in its own words
    "alpha": "several --alpha make a list, or a mapping; without any the constructor's default holds",
    "class_weight": "as alpha",
    "verbose": "the command always shows progress, on a terminal",
    "block_size": "changes no answer",
    "checkpoint": "the command resumes by default, from a folder beside the model",
}


def test_training_has_the_defaults_of_the_constructor():
    options = {one.name: one.to_info_dict()["default"] for one in sdm.get_command(None, "train").params}
    shared = {name: value for name, value in OF_TRAINING.items() if name not in NOT_OPTIONS}
    assert {name: options.get(name, "missing") for name in shared} == shared
    assert {name: one.default for name, one in inspect.signature(SDMEnsemble).parameters.items()} == OF_TRAINING


@pytest.mark.parametrize(
    ("verb", "function", "own"),
    [
        ("train", train_model, {"as_json"} | OF_TRAINING.keys()),
        ("update", update_model, {"as_json"}),
        ("recalibrate", recalibrate_model, {"as_json"}),
        ("certify", certify_model, {"ask", "seed", "as_json"}),  # two of ask_labels
        ("choose", choose_alpha, {"as_json"}),
        ("audit", audit_data, {"top", "as_json"}),
        ("check", check_model, {"as_json"}),
        ("evaluate", evaluate_model, {"model", "strict", "form", "intervals", "wide", "backend", "as_json"}),
    ],
)
def test_an_option_is_an_argument_of_what_the_verb_calls(verb, function, own):
    """What the command can ask for, Python can; options of columns, language models and logs have rows of their own."""
    bundled = {"text", "label", "id", "answer", "states", "language_model", "device", "batch_tokens", "prompt"}
    bundled |= {"prompt_file", "label_words", "system", "max_tokens", "revision", "trust_remote_code"}
    taken = inspect.signature(function).parameters.keys() | inspect.signature(ModelChange).parameters.keys()
    assert {one.name for one in sdm.get_command(None, verb).params} - bundled - own <= taken


@pytest.mark.parametrize(
    ("name", "choices", "options"),
    [
        ("control", [*CONTROLS, AUTO], [("train", "--control"), ("certify", "--control")]),
        ("policy", POLICIES, [("train", "--policy"), ("recalibrate", "--policy")]),
        ("training", TRAININGS, [("train", "--training")]),
        ("background_as", BACKGROUNDS, [("train", "--background-as")]),
        ("standardization", ["scalar", "per_dimension"], [("train", "--standardization")]),
        ("adaptor", ["filters", "identity"], [("train", "--adaptor")]),
    ],
)
def test_what_may_be_chosen_is_the_same(name, choices, options):
    for verb, spelling in options:
        (one,) = (one for one in sdm.get_command(None, verb).params if spelling in one.opts)
        assert list(one.type.choices) == list(choices)
    with pytest.raises(InvalidInputError, match="|".join(map(repr, choices))):
        SDMClassifier(n_filters=4, **{name: "nonsense"}).fit(X, y)


DIFFERENCES = {  # of defaults, each with its reason
    "examples of a decision": (
        "a row of the command stands alone in a file, while over HTTP and for agents there is a question for it",
        {"sdm predict": option("predict", "--exemplars"), "HTTP": parameter(AnswerRequest, "k")},
        {"sdm predict": 3, "HTTP": 0},
    ),
    "who makes a change": (
        "a person at a terminal has logged in; an agent is what the command that started it says",
        {verb: option(verb, "--who") for verb in (*CHANGED, "undo", "compact")},
        dict.fromkeys((*CHANGED, "undo", "compact")),
    ),
    "who resets the guard": (
        "an alarm may be answered by whoever sees it; the reason is what counts, and is required",
        {"HTTP, who": field(schemas.GuardReset, "who"), "HTTP, why": field(schemas.GuardReset, "reason")},
        {"HTTP, who": "unknown", "HTTP, why": REQUIRED},
    ),
    "alpha of a scorer": (
        "it ranks models by what they admit, and promises nothing",
        {"AdmittedShareScorer": parameter(AdmittedShareScorer, "alpha")},
        {"AdmittedShareScorer": 0.9},
    ),
    "title of a report": (
        "the command knows the model's path",
        {"write_report": parameter(write_report, "title"), "sdm report": option("report", "--title")},
        {"write_report": "Evaluation", "sdm report": None},
    ),
}


@pytest.mark.parametrize("rule", DIFFERENCES)
def test_where_doors_differ_there_is_a_reason(rule):
    reason, found, expected = DIFFERENCES[rule]
    assert reason and found == expected


# --- One check of labels ---------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
y = np.array(["World", "Sports"])[np.arange(240) % 2]
X = (RNG.normal(size=(240, 4)) + 4.0 * (np.arange(240) % 2)[:, None]).astype(np.float32)
NEW = (RNG.normal(size=(2, 4)) + 50).astype(np.float32)
ME = {"who": "me", "why": "a test"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("one rule") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SDMClassifier(0.8, n_filters=4, training="sdm", max_epochs=2, random_state=0).fit(
            X, y, ids=[f"x{i}" for i in range(240)]
        ).save(path)
    return path


def plain(what, model, **change):
    rows = {"ids": ["x0"]} if what == "relabel" else {"hidden_states": NEW.tolist()}
    return change_requests(SavedModel.load(model), [{"what": what, **rows, **change}])


def live(model, name, *values, **allowed):
    with LiveModel.open(model) as opened:
        return getattr(opened, name)(*values, **allowed, **ME)


def supported(model):
    loaded = SDMClassifier.load(model)
    return loaded, next(str(one) for one in loaded.support_.ids)


DOORS = {  # what adds a new label, what allows it, and the set that it is for
    "add_exemplars": lambda m, f, s, **a: SDMClassifier.load(m).add_exemplars(NEW, s, **a),
    "relabel": lambda m, f, s, **a: supported(m)[0].relabel([supported(m)[1]], s[:1], **a),
    "relabel_exemplars": lambda m, f, s, **a: supported(m)[0].relabel_exemplars([supported(m)[1]], s[:1], **a),
    "LiveModel.add": lambda m, f, s, **a: live(m, "add", LabelledStates(NEW, s), **a),
    "LiveModel.relabel": lambda m, f, s, **a: live(m, "relabel", [supported(m)[1]], s[:1], **a),
    "update_model, add": lambda m, f, s, **a: update_model(m, add=str(f), force=True, output=f.parent / "added", **a),
    "update_model, relabel": lambda m, f, s, **a: update_model(
        m, relabel={supported(m)[1]: s[0]}, force=True, output=f.parent / "relabelled", **a
    ),
    "HTTP, add": lambda m, f, s, **a: plain("add", m, labels=s, **a),
    "HTTP, relabel": lambda m, f, s, **a: plain("relabel", m, labels=s[:1], **a),
}
NEVER = {  # where no label may be new
    "add_calibration": lambda m, f, s: SDMClassifier.load(m).add_calibration(NEW, s),
    "recertify": lambda m, f, s: SDMClassifier.load(m).recertify(NEW, s),
    "LiveModel.add": lambda m, f, s: live(m, "add", LabelledStates(NEW, s), to="calibration", allow_new_labels=True),
    "update_model": lambda m, f, s: update_model(m, add_calibration=str(f), allow_new_labels=True),
    "certify_model": lambda m, f, s: certify_model(m, str(f)),
    "HTTP": lambda m, f, s: plain("add_calibration", m, labels=s, allow_new_labels=True),
    "page": lambda m, f, s: ReviewQueue(LiveModel.open(m, writable=False)).label(1, s[0], "me"),
}


@pytest.fixture(params=[("spam", ""), ("Wrold", "; 'World' is")], ids=["another", "a slip"])
def strange(request, tmp_path):
    label, hint = request.param
    np.savez(tmp_path / "new.npz", hidden_states=NEW, labels=np.array([label] * 2))
    return tmp_path / "new.npz", [label] * 2, hint


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_new_label_is_refused_unless_it_is_allowed(door, strange, model):
    file, labels, hint = strange
    with pytest.raises(InvalidInputError, match=rf"'{labels[0]}' \(\d examples?\) is not a class of the model{hint}."):
        DOORS[door](model, file, labels)
    if not door.startswith("LiveModel"):  # the model stays as it is
        DOORS[door](model, file, labels, allow_new_labels=True)


@pytest.mark.parametrize("door", NEVER)
def test_a_new_label_is_never_allowed_outside_the_support(door, strange, model):
    file, labels, _ = strange
    with pytest.raises(InvalidInputError, match=f"'{labels[0]}'"):
        NEVER[door](model, file, labels)
