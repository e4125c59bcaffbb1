"""From text to hidden state: prompts, tokens, language models, pooling. The only room that imports transformers."""

from torchsdm.hidden_states.backbone import Backbone
from torchsdm.hidden_states.extraction import Progress, judge_own_answers
from torchsdm.hidden_states.extractor import BlockReader, Elsewhere, HiddenStateExtractor, NumberedBlocks
from torchsdm.hidden_states.model_source import cache_directory, default_store, find_model
from torchsdm.hidden_states.prompts import PROMPTS, TaskPrompt, register_prompt, task_prompt

__all__ = [
    "PROMPTS",
    "Backbone",
    "BlockReader",
    "Elsewhere",
    "HiddenStateExtractor",
    "NumberedBlocks",
    "Progress",
    "TaskPrompt",
    "cache_directory",
    "default_store",
    "find_model",
    "judge_own_answers",
    "register_prompt",
    "task_prompt",
]
