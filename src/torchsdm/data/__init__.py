"""Texts and hidden states with their labels: read from files, checked, in memory and stored on disk."""

from torchsdm.data._rows import Place, Unreadable
from torchsdm.data.documents import BadRow, BadRows, Document, Documents
from torchsdm.data.labelled import (
    ExtractedStates,
    LabelledStates,
    ModelOrigin,
    PoolingOrigin,
    PromptOrigin,
    StatesOrigin,
    join_states,
)
from torchsdm.data.source import STANDARD_INPUT, TEXT_KINDS, Source, is_states_folder
from torchsdm.data.states import USUAL_NAMES, read_states, state_blocks, state_of, states_of, usual_shape
from torchsdm.data.store import FolderWriter, StatesStore, begun_folder, digest
from torchsdm.settings import Columns

__all__ = [
    "STANDARD_INPUT",
    "TEXT_KINDS",
    "USUAL_NAMES",
    "BadRow",
    "BadRows",
    "Columns",
    "Document",
    "Documents",
    "ExtractedStates",
    "FolderWriter",
    "LabelledStates",
    "ModelOrigin",
    "Place",
    "PoolingOrigin",
    "PromptOrigin",
    "Source",
    "StatesOrigin",
    "StatesStore",
    "Unreadable",
    "begun_folder",
    "digest",
    "is_states_folder",
    "join_states",
    "read_states",
    "state_blocks",
    "state_of",
    "states_of",
    "usual_shape",
]
