"""Texts and hidden states with their labels: read from files, checked, in memory and stored on disk."""

from torchsdm.data._data_files import DataFiles, is_data
from torchsdm.data._lines import Unreadable
from torchsdm.data._row_files import state_of, usual_shape
from torchsdm.data._sources import csv_rows
from torchsdm.data.document import BadRow, BadRows, Document
from torchsdm.data.documents import Documents
from torchsdm.data.extracted import ExtractedStates
from torchsdm.data.folder import FolderWriter, folder_origin, n_stored_rows
from torchsdm.data.formats import has_states, input_files, is_states_folder, read_states, state_blocks
from torchsdm.data.labelled import LabelledStates, join_states
from torchsdm.data.origin import Difference, ModelOrigin, PoolingOrigin, PromptOrigin, StatesOrigin
from torchsdm.data.store import ExtractionCounts, StatesStore, digest

__all__ = [
    "BadRow",
    "BadRows",
    "DataFiles",
    "Difference",
    "Document",
    "Documents",
    "ExtractedStates",
    "ExtractionCounts",
    "FolderWriter",
    "LabelledStates",
    "ModelOrigin",
    "PoolingOrigin",
    "PromptOrigin",
    "StatesOrigin",
    "StatesStore",
    "Unreadable",
    "csv_rows",
    "digest",
    "folder_origin",
    "has_states",
    "input_files",
    "is_data",
    "is_states_folder",
    "join_states",
    "n_stored_rows",
    "read_states",
    "state_blocks",
    "state_of",
    "usual_shape",
]
