"""torchsdm: which answers of a language model may be acted on.

Similarity-Distance-Magnitude activations over frozen hidden states. Start with ``SDMTextClassifier`` for texts, with
``SDMClassifier`` for hidden states of your own.
"""

from torchsdm._version import __version__
from torchsdm.activation import (
    SDMActivation,
    SDMLogActivation,
    SDMLoss,
    rescaled_similarity,
    sdm_activation,
    sdm_log_activation,
    sdm_loss,
)
from torchsdm.adaptor import ExemplarAdaptor, IdentityAdaptor
from torchsdm.data import LabelledStates
from torchsdm.decision import Decisions
from torchsdm.documents import Documents
from torchsdm.ecdf import ClassEcdfs
from torchsdm.ensemble import SDMEnsemble
from torchsdm.estimator import SDMClassifier
from torchsdm.explanation import Explanation
from torchsdm.hidden_states.backbone import Backbone
from torchsdm.hidden_states.extractor import HiddenStateExtractor
from torchsdm.hidden_states.prompts import TaskPrompt, register_prompt
from torchsdm.history import History
from torchsdm.region import HighReliabilityRegion, find_high_reliability_region
from torchsdm.sample_size import dkw_epsilon, effective_sample_sizes
from torchsdm.state_files import read_states, state_blocks
from torchsdm.support import SupportSet
from torchsdm.text_classifier import SDMTextClassifier

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
