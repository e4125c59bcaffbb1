"""Write the hidden states of texts to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchsdm.cluster import Backend, extract_on
from torchsdm.data import Columns, Documents, Source
from torchsdm.hidden_states import HiddenStateExtractor


def embed_documents(
    extractor: HiddenStateExtractor,
    source: str,
    columns: Columns,
    output: Path,
    *,
    skip_problems: bool = False,
    drop_repeated: bool = False,
    shard_size: int = 1024,
    backend: Backend = None,
) -> dict[str, Any]:
    """Extract the hidden states of an input of texts to a folder, or what is left of them to do.

    Documents that cannot be used are an error, or left out if ``skip_problems``. A ``backend`` is a cluster to extract
    on. Returns what ``extract_to`` does, with the number of documents ``skipped`` and their ``problems`` in words.
    """
    opened = Source.open(source, again=True)
    with opened.errors():
        documents = Documents(
            opened,
            text=columns.text,
            label=columns.label,
            id=columns.id,
            answer=columns.answer,
            problems="skip" if skip_problems else "raise",
            repeated="drop" if drop_repeated else "keep",
        )
        elsewhere = extract_on(backend, "embed_documents")
        counts = extractor.extract_to(output, documents, shard_size=shard_size, elsewhere=elsewhere)
    report = documents.report
    return {**counts, "skipped": report.n_problems, "problems": report.explain()}
