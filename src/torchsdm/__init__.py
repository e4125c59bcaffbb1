"""torchsdm: decide which answers of a language model you can act on.

Similarity-Distance-Magnitude activations over frozen hidden states. Start with ``SDMTextClassifier`` for texts, with
``SDMClassifier`` for your own hidden states.

``load`` opens what any of them saved. The names here are those that most people need; the rest is in the rooms, such
as ``torchsdm.core``.

``import torchsdm`` is fast: torch and scikit-learn are imported with the first name that needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers and editors; a test checks that these are the names below
    from torchsdm.core import ClassEcdfs as ClassEcdfs
    from torchsdm.core import Decisions as Decisions
    from torchsdm.core import ExemplarAdaptor as ExemplarAdaptor
    from torchsdm.core import find_high_reliability_region as find_high_reliability_region
    from torchsdm.core import rescaled_similarity as rescaled_similarity
    from torchsdm.core import sdm_activation as sdm_activation
    from torchsdm.core import sdm_log_activation as sdm_log_activation
    from torchsdm.core import sdm_loss as sdm_loss
    from torchsdm.data import Documents as Documents
    from torchsdm.data import LabelledStates as LabelledStates
    from torchsdm.data import read_states as read_states
    from torchsdm.errors import TorchSDMError as TorchSDMError
    from torchsdm.estimators import SDMClassifier as SDMClassifier
    from torchsdm.estimators import SDMEnsemble as SDMEnsemble
    from torchsdm.estimators import SDMTextClassifier as SDMTextClassifier
    from torchsdm.estimators import load as load
    from torchsdm.evaluation import Evaluation as Evaluation
    from torchsdm.evaluation import audit_labels as audit_labels
    from torchsdm.evaluation import write_report as write_report
    from torchsdm.hidden_states import HiddenStateExtractor as HiddenStateExtractor
    from torchsdm.hidden_states import TaskPrompt as TaskPrompt
    from torchsdm.matching import SupportSet as SupportSet
    from torchsdm.trust import CertifiedClassifier as CertifiedClassifier
    from torchsdm.trust import DriftGuard as DriftGuard
    from torchsdm.trust import SpotCheck as SpotCheck

_NAMES = {
    "core": (
        *("ClassEcdfs", "Decisions", "ExemplarAdaptor", "find_high_reliability_region", "rescaled_similarity"),
        *("sdm_activation", "sdm_log_activation", "sdm_loss"),
    ),
    "data": ("Documents", "LabelledStates", "read_states"),
    "errors": ("TorchSDMError",),
    "estimators": ("SDMClassifier", "SDMEnsemble", "SDMTextClassifier", "load"),
    "evaluation": ("Evaluation", "audit_labels", "write_report"),
    "hidden_states": ("HiddenStateExtractor", "TaskPrompt"),
    "matching": ("SupportSet",),
    "trust": ("CertifiedClassifier", "DriftGuard", "SpotCheck"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name or a module of the package on first use."""
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _modules():
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_modules()})


def _modules() -> list[str]:
    """The rooms, and the modules next to them."""
    from pkgutil import iter_modules

    return [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]
