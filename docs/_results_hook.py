"""For MkDocs: every result file becomes a page with all of its tables, in the site alone.

The page of results links to the files, which is right where Markdown is read as it is; on the site, the links lead to
these pages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from research.publish_results import read_results, whole_page


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    for name, result in read_results().items():
        page = File.generated(config, f"results/{name}.md", content=whole_page(result))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to result files lead to their pages."""
    if page.file.src_uri != "results.md":
        return markdown
    for name in read_results():
        markdown = markdown.replace(f"(../research/results/{name}.json)", f"(results/{name}.md)")
    return markdown
