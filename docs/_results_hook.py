"""For MkDocs: every result file becomes a page with all of its tables, in the site alone.

The page of results links to the files, which is right where Markdown is read as it is; on the site, the links lead to
these pages.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

_SCRIPT = Path(__file__).resolve().parents[1] / "examples/publish_results.py"
_SPEC = importlib.util.spec_from_file_location("publish_results", _SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
publish_results = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(publish_results)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    for name, result in publish_results.read_results().items():
        page = File.generated(config, f"results/{name}.md", content=publish_results.whole_page(result))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to result files lead to their pages."""
    if page.file.src_uri != "results.md":
        return markdown
    for name in publish_results.read_results():
        markdown = markdown.replace(f"(results/{name}.json)", f"(results/{name}.md)")
    return markdown
