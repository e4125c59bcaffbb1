"""Labelled hidden states: holding them, keeping them on disk, and reading them from files."""

from torchsdm.states.formats import has_states, read_states, state_blocks
from torchsdm.states.labelled import LabelledStates, join_states
from torchsdm.states.store import ShardWriter, differences, shortened, stored_origin

__all__ = [
    "LabelledStates",
    "ShardWriter",
    "differences",
    "has_states",
    "join_states",
    "read_states",
    "shortened",
    "state_blocks",
    "stored_origin",
]
