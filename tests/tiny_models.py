"""Tiny language models with random weights and tokenizers trained on a page of text: no network, no hub.

Every function gives the same again: weights are seeded, tokenizers are trained on the same text.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from torchsdm.hidden_states import Backbone

TEXT = """Here is a movie review. Is the sentiment of the movie review positive? Answer Yes or No.
Start your response with Yes or No. The film is a fine piece of work: well played, well lit, and never dull!
A dull film. Nobody laughed. Nothing happened. The end came late, and the reviewer left early.
Was it good? Yes. Was it long? No. (It was "quite" short, he's sure; she isn't.)

The second part is better. It rains, it pours; the hero and the villain meet at the old bridge.
Yes Yes Yes No No No Yes No yes no. The statement is true. The statement is false. The answer is correct.
"""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = "{{ bos_token }}{% for message in messages %}[INST] {{ message['content'] }} [/INST]{% endfor %}"

N_LAYERS = 2
HIDDEN_SIZE = 24
MAX_POSITIONS = 256


# --- Tokenizers ------------------------------------------------------------------------------------------------------


@cache
def _byte_level(specials: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return str(tokenizer.to_str())


@cache
def _sentencepiece() -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False)
    tokenizer.train_from_iterator([TEXT.replace("\n", " ")], trainer)
    # The bytes are ordinary tokens: only the first three are special.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return str(tokenizer.to_str())


@cache
def _wordpiece() -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        initial_alphabet=list("[]<>|/"),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return str(tokenizer.to_str())


def byte_level_tokenizer(*, chat: bool = True, extra: tuple[AddedToken, ...] = ()) -> Any:
    """A byte-level BPE with ChatML's special tokens, as Qwen has it; ``extra`` are added tokens more."""
    tokenizer = Tokenizer.from_str(_byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>")))
    tokenizer.add_tokens(list(extra))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>" if chat else "<|endoftext|>",
        pad_token="<|endoftext|>" if chat else None,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=CHATML if chat else None,
        clean_up_tokenization_spaces=False,
    )


def roberta_tokenizer() -> Any:
    """A byte-level BPE that leaves white space out of its offsets, with <s>, </s> and a mask, as RoBERTa has it."""
    tokenizer = Tokenizer.from_str(_byte_level(("<s>", "<pad>", "</s>", "<unk>")))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token=AddedToken("<mask>", lstrip=True),
        clean_up_tokenization_spaces=False,
    )


def sentencepiece_tokenizer(*, chat: bool = False) -> Any:
    """A BPE over text whose spaces are "▁", one put before it, with bytes for the unknown, as Llama 2 has it."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_sentencepiece()),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=INST if chat else None,
        clean_up_tokenization_spaces=False,
    )


def wordpiece_tokenizer() -> Any:
    """A WordPiece of lower-cased words with [CLS] and [SEP], as BERT has it."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_wordpiece()),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


# --- Models ----------------------------------------------------------------------------------------------------------


def _seeded(kind: Any, config: Any, seed: int) -> Any:
    """A model with seeded weights that are large enough for every layer, norm and bias to matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms start at one and biases at zero
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def _sizes(tokenizer: Any, **others: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 32,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.3,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **others,
    }


def phi3(seed: int = 0) -> tuple[Any, Any]:
    """A decoder with its output layer and a chat template."""
    tokenizer = byte_level_tokenizer()
    config = transformers.Phi3Config(**_sizes(tokenizer, num_key_value_heads=2))
    return _seeded(transformers.Phi3ForCausalLM, config, seed), tokenizer


def mixtral(seed: int = 0) -> tuple[Any, Any]:
    """A mixture of experts without a chat template."""
    tokenizer = sentencepiece_tokenizer()
    config = transformers.MixtralConfig(
        **_sizes(tokenizer, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    )
    return _seeded(transformers.MixtralForCausalLM, config, seed), tokenizer


def llama(seed: int = 0, n_layers: int = N_LAYERS) -> tuple[Any, Any]:
    """A decoder whose chat template writes the <s> itself."""
    tokenizer = sentencepiece_tokenizer(chat=True)
    config = transformers.LlamaConfig(**_sizes(tokenizer, num_key_value_heads=4, num_hidden_layers=n_layers))
    return _seeded(transformers.LlamaForCausalLM, config, seed), tokenizer


def gpt2(seed: int = 0) -> tuple[Any, Any]:
    """A decoder with learned positions, whose tokenizer has no padding token."""
    tokenizer = byte_level_tokenizer(chat=False)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=HIDDEN_SIZE,
        n_layer=N_LAYERS,
        n_head=4,
        n_positions=MAX_POSITIONS,
        initializer_range=0.3,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return _seeded(transformers.GPT2LMHeadModel, config, seed), tokenizer


def gemma2(seed: int = 0) -> tuple[Any, Any]:
    """A decoder that caps its logits, with weights that put them near the cap."""
    tokenizer = byte_level_tokenizer()
    config = transformers.Gemma2Config(
        **_sizes(tokenizer, num_key_value_heads=2, head_dim=8, final_logit_softcapping=2.0, sliding_window=16)
    )
    return _seeded(transformers.Gemma2ForCausalLM, config, seed), tokenizer


def mistral_without_head(seed: int = 0) -> tuple[Any, Any]:
    """A decoder without an output layer."""
    tokenizer = sentencepiece_tokenizer()
    config = transformers.MistralConfig(**_sizes(tokenizer, num_key_value_heads=2, head_dim=8, sliding_window=None))
    return _seeded(transformers.MistralModel, config, seed), tokenizer


def bert(seed: int = 0) -> tuple[Any, Any]:
    """An encoder."""
    tokenizer = wordpiece_tokenizer()
    config = transformers.BertConfig(**_sizes(tokenizer))
    return _seeded(transformers.BertModel, config, seed), tokenizer


def roberta(seed: int = 0) -> tuple[Any, Any]:
    """An encoder whose positions start after the padding token's number, so that it takes two tokens less."""
    tokenizer = roberta_tokenizer()
    config = transformers.RobertaConfig(**_sizes(tokenizer, max_position_embeddings=MAX_POSITIONS + 2))
    return _seeded(transformers.RobertaModel, config, seed), tokenizer


def convbert(seed: int = 0) -> tuple[Any, Any]:
    """An encoder that sees its padding; not among the architectures below."""
    tokenizer = wordpiece_tokenizer()
    config = transformers.ConvBertConfig(**_sizes(tokenizer, embedding_size=HIDDEN_SIZE, head_ratio=2))
    return _seeded(transformers.ConvBertModel, config, seed), tokenizer


DECODERS_WITH_HEAD: dict[str, Callable[..., tuple[Any, Any]]] = {
    "phi3": phi3,
    "mixtral": mixtral,
    "llama": llama,
    "gpt2": gpt2,
    "gemma2": gemma2,
}
DECODERS = {**DECODERS_WITH_HEAD, "mistral-without-head": mistral_without_head}
ENCODERS: dict[str, Callable[..., tuple[Any, Any]]] = {"bert": bert, "roberta": roberta}
ARCHITECTURES = {**DECODERS, **ENCODERS}


@cache
def tiny_backbone(name: str) -> Backbone:
    """A backbone by its architecture's name, made once; tests must leave it as it is."""
    return Backbone(*ARCHITECTURES[name]())


def save_model(directory: str | Path, model: Any, tokenizer: Any) -> Path:
    """Write a model and its tokenizer as transformers does."""
    directory = Path(directory)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


class _States(torch.nn.Module):
    """A model as a function of two tensors: the last layer's states, then optionally those of every layer."""

    def __init__(self, model: Any, with_layers: bool) -> None:
        super().__init__()
        self.model, self.with_layers = model, with_layers

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if "use_cache" in self.model.config.to_dict():
            inputs["use_cache"] = False
        output = self.model(**inputs, output_hidden_states=self.with_layers)
        return (output.last_hidden_state, *(output.hidden_states if self.with_layers else ()))


def export_onnx(file: str | Path, model: Any, *, with_layers: bool = False) -> Path:
    """Write a model as an ONNX file, for batches of any shape."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    inputs, outputs = ["input_ids", "attention_mask"], ["last_hidden_state"]
    outputs += [f"hidden_states.{k}" for k in range(N_LAYERS + 1)] if with_layers else []
    ids = torch.arange(5, 19).reshape(2, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this way of exporting is old: the new one needs one more package
        torch.onnx.export(
            _States(model, with_layers).eval(),
            (ids, torch.ones_like(ids)),
            file,
            dynamo=False,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*inputs, *outputs)},
        )
    return file


# --- What the library is compared with -------------------------------------------------------------------------------


@torch.no_grad()
def plain_states(backbone: Backbone, ids: list[int], layer: int = -1) -> torch.Tensor:
    """The states (n, H) of one sequence, run alone: no batch, no padding, no mask, nothing hooked."""
    return backbone.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]


@torch.no_grad()
def plain_logits(backbone: Backbone, ids: list[int]) -> torch.Tensor:
    """The logits (n, V) of one sequence, run alone."""
    return backbone.model(input_ids=torch.tensor([ids])).logits[0]


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text by the tokenizer itself, with what it puts around a text."""
    return list(tokenizer(text)["input_ids"])


def chat_ids(tokenizer: Any, content: str, system: str | None = None) -> list[int]:
    """The tokens of a message by the tokenizer itself, rendered by its chat template and tokenized at once."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": content})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
