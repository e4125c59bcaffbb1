"""The paper's section 3 as pure functions of tensors: adaptor, signals, activation, region, decision.

Nothing here touches files, the clock or global random state.
"""

from torchsdm.core.activation import (
    SOFTMAX_DISTANCE_QUANTILE,
    SOFTMAX_SIMILARITY,
    SDMActivation,
    SDMLogActivation,
    SDMLoss,
    log_activation,
    rescaled_similarity,
    sdm_activation,
    sdm_log_activation,
    sdm_loss,
    sdm_losses,
)
from torchsdm.core.adaptor import Adaptor, Encoded, ExemplarAdaptor, IdentityAdaptor, make_adaptor, restore_adaptor
from torchsdm.core.decision import Decisions, SDMDecisions, decide
from torchsdm.core.groups import GroupAccuracy, GroupCounts, wilson_interval
from torchsdm.core.linked import linked, one_of_each
from torchsdm.core.region import (
    HighReliabilityRegion,
    Target,
    by_number,
    capped,
    check_alpha_setting,
    check_control,
    check_target,
    check_targets,
    find_high_reliability_region,
    largest,
    smallest,
    target_of,
)
from torchsdm.core.signals import ClassEcdfs, Familiarity, dkw_epsilon, effective_sample_sizes, log_odds

__all__ = [
    "SOFTMAX_DISTANCE_QUANTILE",
    "SOFTMAX_SIMILARITY",
    "Adaptor",
    "ClassEcdfs",
    "Decisions",
    "Encoded",
    "ExemplarAdaptor",
    "Familiarity",
    "GroupAccuracy",
    "GroupCounts",
    "HighReliabilityRegion",
    "IdentityAdaptor",
    "SDMActivation",
    "SDMDecisions",
    "SDMLogActivation",
    "SDMLoss",
    "Target",
    "by_number",
    "capped",
    "check_alpha_setting",
    "check_control",
    "check_target",
    "check_targets",
    "decide",
    "dkw_epsilon",
    "effective_sample_sizes",
    "find_high_reliability_region",
    "largest",
    "linked",
    "log_activation",
    "log_odds",
    "make_adaptor",
    "one_of_each",
    "rescaled_similarity",
    "restore_adaptor",
    "sdm_activation",
    "sdm_log_activation",
    "sdm_loss",
    "sdm_losses",
    "smallest",
    "target_of",
    "wilson_interval",
]
