"""Labelled hidden states and their origin: in memory, stored on disk, and read from files."""

from torchsdm.states._row_files import state_of, usual_shape
from torchsdm.states.extracted import ExtractedStates
from torchsdm.states.folder import FolderWriter, folder_origin, n_stored_rows
from torchsdm.states.formats import has_states, input_files, is_states_folder, read_states, state_blocks
from torchsdm.states.labelled import LabelledStates, join_states
from torchsdm.states.origin import Difference, ModelOrigin, PoolingOrigin, PromptOrigin, StatesOrigin
from torchsdm.states.store import ExtractionCounts, StatesStore, digest

__all__ = [
    "Difference",
    "ExtractedStates",
    "ExtractionCounts",
    "FolderWriter",
    "LabelledStates",
    "ModelOrigin",
    "PoolingOrigin",
    "PromptOrigin",
    "StatesOrigin",
    "StatesStore",
    "digest",
    "folder_origin",
    "has_states",
    "input_files",
    "is_states_folder",
    "join_states",
    "n_stored_rows",
    "read_states",
    "state_blocks",
    "state_of",
    "usual_shape",
]
