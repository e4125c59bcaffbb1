"""torchsdm: which answers of a language model may be acted on.

Similarity-Distance-Magnitude activations over frozen hidden states. Start with ``SDMTextClassifier`` for texts, with
``SDMClassifier`` for hidden states of your own.
"""

from torchsdm._version import __version__
from torchsdm.core import (
    ClassEcdfs,
    Decisions,
    ExemplarAdaptor,
    HighReliabilityRegion,
    IdentityAdaptor,
    SDMActivation,
    SDMLogActivation,
    SDMLoss,
    dkw_epsilon,
    effective_sample_sizes,
    find_high_reliability_region,
    rescaled_similarity,
    sdm_activation,
    sdm_log_activation,
    sdm_loss,
)
from torchsdm.documents import Documents
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier
from torchsdm.hidden_states import Backbone, HiddenStateExtractor, TaskPrompt, register_prompt
from torchsdm.matching import SupportSet
from torchsdm.model import Explanation
from torchsdm.states import LabelledStates, StatesOrigin, read_states, state_blocks
from torchsdm.training import History

__all__ = [
    "Backbone",
    "ClassEcdfs",
    "Decisions",
    "Documents",
    "ExemplarAdaptor",
    "Explanation",
    "HiddenStateExtractor",
    "HighReliabilityRegion",
    "History",
    "IdentityAdaptor",
    "LabelledStates",
    "SDMActivation",
    "SDMClassifier",
    "SDMEnsemble",
    "SDMLogActivation",
    "SDMLoss",
    "SDMTextClassifier",
    "StatesOrigin",
    "SupportSet",
    "TaskPrompt",
    "__version__",
    "dkw_epsilon",
    "effective_sample_sizes",
    "find_high_reliability_region",
    "read_states",
    "register_prompt",
    "rescaled_similarity",
    "sdm_activation",
    "sdm_log_activation",
    "sdm_loss",
    "state_blocks",
]
