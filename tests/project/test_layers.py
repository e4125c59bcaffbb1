"""The shape of the code: import order, public names, and what must not be anywhere."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchsdm

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "torchsdm"

# A module imports only from modules before it. docs/reference/index.md shows such an order too.
ORDER = [
    "_version",
    *("errors", "validation", "numerics", "compilation", "files", "settings"),
    *("shards", "lines", "data", "state_files", "labels", "document_sources", "documents"),
    "hidden_states",
    *(f"hidden_states.{name}" for name in ("prompts", "segments", "tokens", "batches", "pooling", "model_source")),
    *(f"hidden_states.{name}" for name in ("backbone", "extraction", "extractor", "states_cache")),
    "adaptor",
    *("tiles", "kernels", "tensor_kernels", "bounds", "matching", "support"),
    *("ecdf", "signals"),
    "activation",
    *("history", "training"),
    *("candidates", "region", "sample_size"),
    *("decision", "persistence", "checkpoint", "rounds", "model", "explanation", "model_files", "model_card"),
    *("hub", "fitted", "updates", "saving", "base", "estimator", "ensemble", "text_classifier"),
    *(f"baselines.{name}" for name in ("base", "softmax", "temperature", "conformal", "cross_entropy", "vbll")),
    *(f"baselines.{name}" for name in ("neighbors", "risk_control", "sdm_rules")),
    "baselines",
    *("metrics", "tables"),
    *(f"plots.{name}" for name in ("drawing", "inputs", "partition", "risk_coverage", "reliability")),
    *(f"plots.{name}" for name in ("training_history", "distance", "alpha")),
    "plots",
    *("evaluation", "comparison", "report"),
    "experiments",
    *(f"experiments.{name}" for name in ("specification", "sources", "paper", "claims", "studies", "run")),
    "experiments.results_page",
    "demonstration",
    *(f"commands.{name}" for name in ("options", "inputs", "training_data", "embed", "train", "predict", "evaluate")),
    *(f"commands.{name}" for name in ("explain", "update", "report", "reproduce", "demo", "doctor")),
    *("web", "web.service", "commands.serve", "commands"),
    "cli",
    "__init__",
]


def module_name(path):
    """'hidden_states.tokens' for hidden_states/tokens.py, 'hidden_states' for hidden_states/__init__.py."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in SOURCE.rglob("*.py")}
MODULES = sorted(FILES)


def tree(module):
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def imports_of(module):
    """Modules of ours that a module imports, anywhere in it: also inside functions and for types alone."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            if node.module == "torchsdm":
                found |= {f"torchsdm.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    inside = (name.removeprefix("torchsdm.") for name in found if name.startswith("torchsdm."))
    return {name if name in FILES else name.rpartition(".")[0] for name in inside}


# --- Layers ----------------------------------------------------------------------------------------------------------


def test_every_module_has_its_place():
    assert sorted(ORDER) == MODULES, "give a new module its place in ORDER and in docs/reference/index.md"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_modules_before_it(module):
    before = set(ORDER[: ORDER.index(module)])
    assert imports_of(module) <= before, f"{module} imports {sorted(imports_of(module) - before)}"


def test_imports_are_seen():
    assert {"training", "files"} <= imports_of("checkpoint")  # else the tests above would say nothing
    assert {"hidden_states.backbone", "shards"} <= imports_of("hidden_states.extractor")
    assert "errors" in imports_of("validation") and "_version" in imports_of("model_card")


def test_there_is_no_cycle():
    graph = {module: imports_of(module) for module in MODULES}
    while graph:
        free = {module for module, needed in graph.items() if not needed & graph.keys()}
        assert free, f"a cycle among {sorted(graph)}"
        graph = {module: needed for module, needed in graph.items() if module not in free}


def test_the_order_that_the_documentation_shows_holds():
    page = (REPOSITORY / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    shown = re.findall(r"`([\w.]+)`", page.partition("Modules import only from modules above them")[2])
    assert sorted(shown) == [module for module in MODULES if not module.startswith("_")]
    for position, module in enumerate(shown):
        assert imports_of(module) <= {"_version", *shown[:position]}, module


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is(module):
    assert ast.get_docstring(tree(module)), module


def test_only_the_backbone_imports_transformers():
    importing = {module for module in MODULES if re.search(r"\bimport transformers\b", FILES[module].read_text())}
    assert importing == {"hidden_states.backbone"}


EXTRAS = {"pandas", "matplotlib", "pyarrow", "transformers", "accelerate", "datasets", "gguf", "vbll", "mapie"}
EXTRAS |= {"fastapi", "uvicorn", "ray"}


def test_the_library_is_imported_without_the_extras():
    # scikit-learn loads pandas where it finds it, so the extras are hidden rather than looked for afterwards.
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRAS)})); import torchsdm; print(torchsdm.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == torchsdm.__version__


@pytest.mark.parametrize("module", MODULES)
def test_extras_are_imported_only_where_they_are_used(module):
    code = tree(module)
    functions = [node for node in ast.walk(code) if isinstance(node, ast.FunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(code):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in inside:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            assert not {name.partition(".")[0] for name in names} & EXTRAS, f"{module}: line {node.lineno}"


# --- Public names ----------------------------------------------------------------------------------------------------

PUBLIC = [name for name in torchsdm.__all__ if name != "__version__"]


def test_public_names_are_sorted_and_there():
    assert torchsdm.__all__ == sorted(torchsdm.__all__)
    imported = {
        alias.name for node in tree("__init__").body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == set(torchsdm.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", torchsdm.__version__)


def test_the_version_is_the_same_everywhere():
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^version = "(.+)"$', text, flags=re.MULTILINE)
    assert declared and declared[1] == torchsdm.__version__


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring_of_its_own(name):
    value = getattr(torchsdm, name)
    assert value.__doc__ and value.__doc__.strip()
    assert value.__module__.startswith("torchsdm.")
    if isinstance(value, type):
        bases = [base.__doc__ for base in value.__mro__[1:]]
        assert value.__doc__ not in bases
        assert not value.__doc__.startswith(f"{name}(")  # what @dataclass writes where nobody did
        for method, member in vars(value).items():
            if not method.startswith("_") and callable(getattr(member, "__func__", member)):
                assert (getattr(member, "__func__", member).__doc__ or "").strip(), f"{name}.{method}"


def documented_modules():
    pages = (REPOSITORY / "docs" / "reference").rglob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"^::: (torchsdm[\w.]*)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_in_the_reference(name):
    value = getattr(torchsdm, name)
    assert {value.__module__, f"{value.__module__}.{name}"} & documented_modules()


def test_the_reference_documents_what_exists_and_all_of_it():
    documented = documented_modules()
    for name in documented:
        importlib.import_module(name)
    assert documented >= {f"torchsdm.{module}" for module in MODULES if not module.startswith("_")}


def test_the_designs_interface_is_there():
    adaptor = torchsdm.ExemplarAdaptor(3, 2)
    assert adaptor.n_filters == 1000
    for owner, names in {
        torchsdm.SupportSet: ("match", "match_self", "neighbors", "add", "remove", "relabel"),
        torchsdm.ClassEcdfs: ("fit", "distance_quantile"),
        torchsdm.SDMClassifier: (
            *("fit", "predict", "predict_proba", "decide", "explain", "recalibrate", "add_exemplars"),
            *(
                "remove_exemplars",
                "relabel_exemplars",
                "save",
                "load",
                "save_pretrained",
                "from_pretrained",
                "push_to_hub",
            ),
        ),
        torchsdm.Decisions: ("to_pandas", "to_dicts"),
    }.items():
        for name in names:
            assert callable(getattr(owner, name)), name
    defaults = torchsdm.SDMClassifier().get_params()
    expected = {"alpha": 0.95, "n_filters": 1000, "n_rounds": 10, "max_epochs": 200, "batch_size": 50}
    expected |= {"learning_rate": 1e-5, "random_state": None, "device": None, "patience": None, "min_class_count": 0}
    assert {name: defaults[name] for name in expected} == expected
    fields = set(torchsdm.Decisions.__dataclass_fields__)
    assert fields >= {
        *("predictions", "admitted", "admitted_lower", "admitted_alpha", "out_of_distribution", "probabilities"),
        *("confidence", "confidence_lower", "confidence_upper", "logits", "similarity", "nearest_distance"),
        *("nearest_index", "distance_quantile", "distance_quantile_lower", "distance_quantile_upper"),
        *("rescaled_similarity", "rescaled_similarity_lower", "effective_sample_sizes", "dkw_epsilon"),
    }


# --- What must not be ------------------------------------------------------------------------------------------------


def repository_files():
    """Every text file of the repository, tracked or about to be."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        paths = [REPOSITORY / name for name in done.stdout.splitlines()]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        parts = [REPOSITORY / name for name in ("src", "tests", "docs", "examples")]
        paths = [*REPOSITORY.glob("*"), *(path for part in parts for path in part.rglob("*"))]
    for path in paths:
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_nothing_but_conftest_looks_beside_the_repository():
    beside = "../" + "shared"
    found = {path.relative_to(REPOSITORY).as_posix() for path, text in repository_files() if beside in text}
    assert found <= {"tests/conftest.py"}
    assert len(list(repository_files())) > 50


PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@pytest.mark.parametrize("module", MODULES)
def test_there_is_no_pickle(module):
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & PICKLING
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in PICKLING
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "torch.save", "eval", "exec"), called
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert options.get("allow_pickle", "False") == "False"
            if called in ("np.load", "numpy.load"):
                assert options["allow_pickle"] == "False"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.name not in ("__reduce__", "__reduce_ex__")


@pytest.mark.parametrize("module", MODULES)
def test_library_code_neither_prints_nor_asserts_nor_catches_everything(module):
    for node in ast.walk(tree(module)):
        assert not isinstance(node, ast.Assert), f"{module}: line {node.lineno}"
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) != "print", f"{module}: line {node.lineno}"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{module}: line {node.lineno}"
