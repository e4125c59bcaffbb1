"""The house: which room may use which, what crosses a wall, and what must not be anywhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchsdm

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "torchsdm"

# Each room and the rooms it may use, in order: a room uses only rooms above it. Every room may use the modules that
# lie beside the rooms ("base"). docs/decisions/0016-rooms.md says why.
ROOMS: dict[str, set[str]] = {
    "arithmetic": set(),
    "matching": {"arithmetic"},
    "core": {"arithmetic", "matching"},
    "training": {"matching", "core"},
    "trust": {"arithmetic", "core"},
    "data": set(),
    "hidden_states": {"data"},
    "model": {"matching", "core", "trust", "data"},
    "cluster": {"matching", "training", "data", "hidden_states", "model"},
    "estimators": {"matching", "core", "training", "trust", "data", "hidden_states", "model", "cluster"},
    "baselines": {"arithmetic", "matching", "core", "training", "trust", "data", "cluster", "estimators"},
    "evaluation": {"matching", "core", "training", "trust", "data", "estimators", "baselines"},
    "application": {
        *("arithmetic", "core", "training", "model", "trust", "data", "hidden_states", "cluster"),
        *("estimators", "evaluation"),
    },
    "service": {"application"},
    "cli": {
        *("trust", "data", "hidden_states", "model", "cluster", "estimators", "application"),
        "service",  # sdm serve and sdm mcp start it; no other verb knows it
    },
}
EXTRAS = {"pandas", "matplotlib", "pyarrow", "transformers", "accelerate", "datasets", "gguf", "vbll", "mapie"}
EXTRAS |= {"fastapi", "uvicorn", "starlette", "pydantic", "prometheus_client", "ray", "onnxruntime", "mcp"}
PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def module_name(path: Path) -> str:
    """'hidden_states.tokens' for hidden_states/tokens.py, 'hidden_states' for hidden_states/__init__.py."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
MODULES = [name for name in TREES if name != "__init__"]


def room_of(module: str) -> str | None:
    """The room of a module; None for a module beside the rooms."""
    return module.partition(".")[0] if module.partition(".")[0] in ROOMS else None


def imports_of(module: str) -> list[tuple[str, str]]:
    """(module of ours, name) of each import, anywhere in a module: also inside functions and for types alone."""
    return imports_in(TREES[module])


def imports_in(code: ast.AST) -> list[tuple[str, str]]:
    found = []
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            found += [(str(node.module), alias.name) for alias in node.names]
    ours = ((name.removeprefix("torchsdm").lstrip("."), what) for name, what in found if name.startswith("torchsdm"))
    return [(what, "") if not name else (name, what) for name, what in ours]  # from torchsdm import errors


# --- What lies beside the package -----------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "research", "tools"])
def test_what_is_imported_from_the_package_is_there(folder):
    """Also where nothing runs it with the tests."""
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torchsdm":
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names):
                    is_module = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{name}")
                    assert hasattr(module, name) or is_module, f"{path.name}: {node.module} has no {name}"


# --- Rooms -----------------------------------------------------------------------------------------------------------


def test_every_room_has_its_place():
    assert sorted(ROOMS) == sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    for position, (room, used) in enumerate(ROOMS.items()):
        assert used <= set(list(ROOMS)[:position]), f"{room} uses a room below it"


def test_rooms_use_only_what_other_rooms_give_out():
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module in MODULES:
        for name, what in imports_of(module):
            mine, other = room_of(module), room_of(name)
            if other is None or other == mine:
                continue
            assert mine is not None, f"{module}, which every room may use, imports {other}"
            assert mine is None or other in ROOMS[mine], f"{module} imports the room {other}"
            assert name == other, f"{module} reaches through the wall of {other}: {name}.{what}"
            assert what in importlib.import_module(f"torchsdm.{other}").__all__, f"{other} does not give out {what}"
            if mine is not None:
                used[mine].add(other)
    assert used == ROOMS, "a room no longer uses what ROOMS says"


def test_research_uses_only_what_rooms_give_out():
    scripts = [path for path in (REPOSITORY / "research").rglob("*.py") if "tests" not in path.parts]
    assert scripts
    for path in scripts:
        for name, what in imports_in(ast.parse(path.read_text(encoding="utf-8"))):
            room, place = room_of(name), f"{path.relative_to(REPOSITORY)} imports {name}.{what}"
            if room is not None:
                assert name == room and what in importlib.import_module(f"torchsdm.{room}").__all__, place
            else:  # of the package itself, or of a module beside the rooms
                assert name in (*torchsdm.__all__, "__version__", *MODULES), place


def test_nothing_of_the_package_knows_what_is_made_with_it():
    made_with_it = {"research", "tools", "examples", "benchmarks"}
    assert not {module for module, code in TREES.items() if third_party(code) & made_with_it}


def test_only_the_verbs_serve_and_mcp_know_the_service():
    assert {module for module in MODULES if room_of(module) == "cli" for name, _ in imports_of(module)
            if name == "service"} == {"cli.serve"}  # fmt: skip


def test_the_mathematics_touches_no_files_and_no_clock():
    outside = {"io", "json", "os", "pathlib", "random", "shutil", "sqlite3", "tempfile", "time"}
    for module, code in TREES.items():
        if room_of(module) in ("core", "matching"):
            assert not third_party(code) & outside, module
            assert not {"files", "settings"} & {name for name, _ in imports_of(module)}, module


def test_unit_tests_mirror_the_rooms():
    folders = {path.name for path in (REPOSITORY / "tests" / "unit").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(ROOMS)


def test_a_module_says_what_it_is_for():
    silent = [module for module, code in TREES.items() if not ast.get_docstring(code)]
    assert not silent


def test_transformers_is_imported_in_one_place():
    importing = {module for module, code in TREES.items() if "transformers" in third_party(code)}
    assert importing == {"hidden_states.backbone"}


def test_onnxruntime_is_imported_in_one_place():
    importing = {module for module, code in TREES.items() if "onnxruntime" in third_party(code)}
    assert importing == {"hidden_states.onnx_model"}


def third_party(code: ast.AST) -> set[str]:
    """The packages that a piece of code imports."""
    names = [alias.name for node in ast.walk(code) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(code) if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_ray_is_imported_in_one_place():
    importing = {module for module, code in TREES.items() if "ray" in third_party(code)}
    assert importing == {"cluster.backend"}


def test_extras_are_imported_inside_functions():
    for module, code in TREES.items():
        if module.startswith("service."):  # which functions of the room's __init__ import, if the extra is there
            continue
        functions = [node for node in ast.walk(code) if isinstance(node, ast.FunctionDef)]
        inside = {id(node) for function in functions for node in ast.walk(function)}
        for node in ast.walk(code):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in inside:
                assert not third_party(node) & EXTRAS, f"{module}: line {node.lineno}"


def test_the_library_is_imported_without_the_extras():
    # scikit-learn loads pandas where it finds it, so the extras are hidden rather than looked for afterwards.
    hidden = f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRAS)})); import torchsdm"
    names = "print(len([getattr(torchsdm, name) for name in torchsdm.__all__]))"
    done = subprocess.run([sys.executable, "-c", f"{hidden}; {names}"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(torchsdm.__all__)


def test_nothing_of_ray_is_imported_without_a_backend():
    code = """
import sys, numpy as np
from torchsdm import SDMClassifier
import torchsdm.cluster, torchsdm.application, torchsdm.cli.command
X = np.random.default_rng(0).normal(size=(80, 3))
SDMClassifier(n_filters=2, n_rounds=1, training="sdm", max_epochs=1, backend=None).fit(X, X[:, 0] > 0).decide(X[:1])
print(sorted(name for name in sys.modules if name.partition(".")[0] == "ray"))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


# --- Public names ----------------------------------------------------------------------------------------------------

PUBLIC = torchsdm.__all__


def test_public_names_are_sorted():
    assert torchsdm.__all__ == sorted(torchsdm.__all__)


def test_the_version_is_the_same_everywhere():
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^version = "(.+)"$', text, flags=re.MULTILINE)
    assert declared and declared[1] == torchsdm.__version__


def test_a_public_name_has_a_docstring_of_its_own():
    for name in PUBLIC:
        value = getattr(torchsdm, name)
        assert value.__doc__ and value.__doc__.strip(), name
        assert value.__module__.startswith("torchsdm."), name
        if isinstance(value, type):
            bases = [base.__doc__ for base in value.__mro__[1:]]
            assert value.__doc__ not in bases, name
            assert not value.__doc__.startswith(f"{name}("), name  # what @dataclass writes where nobody did
            for method, member in vars(value).items():
                if not method.startswith("_") and callable(getattr(member, "__func__", member)):
                    assert (getattr(member, "__func__", member).__doc__ or "").strip(), f"{name}.{method}"


def documented_modules() -> set[str]:
    pages = (REPOSITORY / "docs" / "reference").rglob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"^::: torchsdm\.([\w.]*)", text, flags=re.MULTILINE))


def test_the_reference_documents_what_is_public_and_little_else():
    documented = documented_modules()
    assert len(documented) <= 50
    for module in documented:
        assert module in MODULES and not any(part.startswith("_") for part in module.split(".")), module
    for name in PUBLIC:
        assert getattr(torchsdm, name).__module__.removeprefix("torchsdm.") in documented, name


def test_the_interface_is_there():
    owners = {
        torchsdm.SupportSet: "match match_self neighbors add remove relabel",
        torchsdm.ClassEcdfs: "fit distance_quantile",
        torchsdm.SDMClassifier: "fit predict predict_proba decide explain recalibrate add_exemplars remove_exemplars "
        "relabel_exemplars save load save_pretrained from_pretrained push_to_hub",
        torchsdm.Decisions: "to_pandas to_dicts",
    }
    for owner, names in owners.items():
        for name in names.split():
            assert callable(getattr(owner, name)), name
    assert torchsdm.ExemplarAdaptor(3, 2).n_filters == 1000
    expected = {
        "alpha": 0.95,
        "n_filters": 1000,
        "n_rounds": 10,
        "training": "sdm",
        "max_epochs": 200,
        "batch_size": 50,
    }
    expected |= {"learning_rate": 1e-5, "random_state": None, "device": None, "patience": None, "min_class_count": 0}
    expected |= {"standardization": "scalar", "certification_size": None}
    defaults = torchsdm.SDMClassifier.paper().get_params()
    assert {name: defaults[name] for name in expected} == expected
    assert set(torchsdm.core.SDMDecisions.__dataclass_fields__) >= {
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
        parts = [REPOSITORY / name for name in ("src", "tests", "docs", "examples", "research", "tools")]
        paths = [*REPOSITORY.glob("*"), *(path for part in parts for path in part.rglob("*"))]
    for path in paths:
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_nothing_but_conftest_looks_beside_the_repository():
    beside = "../" + "shared"
    texts = dict(repository_files())
    assert len(texts) > 50
    assert {path.relative_to(REPOSITORY).as_posix() for path, text in texts.items() if beside in text} <= {
        "tests/conftest.py"
    }


def test_there_is_no_pickle():
    for module, code in TREES.items():
        assert not third_party(code) & PICKLING, module
        for node in ast.walk(code):
            if isinstance(node, ast.Call):
                called, place = ast.unparse(node.func), f"{module}: line {node.lineno}"
                assert called not in ("torch.load", "torch.save", "eval", "exec"), place
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert options.get("allow_pickle", "False") == "False", place
                assert called not in ("np.load", "numpy.load") or "allow_pickle" in options, place
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.name not in ("__reduce__", "__reduce_ex__"), module


def test_library_code_neither_prints_nor_asserts_nor_catches_everything():
    for module, code in TREES.items():
        for node in ast.walk(code):
            place = f"{module}: line {getattr(node, 'lineno', 0)}"
            assert not isinstance(node, ast.Assert), place
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), place
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), place
