"""Write docs/licences.md from what is installed: make licences

The licence of a package is what its metadata says: the SPDX expression, else the classifiers, else the field.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

from tools.release.pins import CONSTRAINTS, REPOSITORY, read_pins

PAGE = REPOSITORY / "docs" / "licences.md"
COPYLEFT = re.compile(r"\b(A?GPL|LGPL|MPL|EPL|EUPL|CDDL|GNU|Mozilla)", re.IGNORECASE)
UNKNOWN = "unknown"

# Why a dependency with a copyleft or unstated licence is no obstacle to using torchsdm under Apache-2.0.
ARGUED = {
    "certifi": "file-level copyleft over a list of certificates, which we neither change nor pass on.",
    "hypothesis": "runs our tests; not installed with the library.",
    "pathspec": "needed by tools of development (mypy, mkdocs, hatchling); not installed with the library.",
    "pywin32": "only on Windows, for the extra `mcp`; nothing of ours uses the part under LGPL.",
    "tqdm": "file-level copyleft over parts of it; we import it unchanged, which asks for nothing.",
    "vbll": "its wheel states none. It is only in the extra `baselines`, for comparison; ask its authors before you "
    "pass it on.",
}
# Pinned for other systems or Pythons, so that they cannot be read where this page is written.
ELSEWHERE = {
    "coloredlogs": "MIT License",
    "exceptiongroup": "MIT License",
    "humanfriendly": "MIT License",
    "pyreadline3": "BSD License",
    "pytz": "MIT License",
    "pywin32": "Python Software Foundation License, LGPL (adodbapi)",
    "six": "MIT License",
}
HEAD = """\
# Licences of dependencies

What `constraints.txt` pins, as the metadata of each package states its licence. torchsdm itself is Apache-2.0 and
contains none of these packages; it installs and imports them. The page of the service contains preact (MIT) and htm
(Apache-2.0), with their licences. `make licences` writes this page.

"""


def stated(facts: PackageMetadata) -> str:
    """The licence in one line; 'unknown' if the metadata says nothing usable."""
    expression = facts.get("License-Expression")
    if expression:
        return str(expression)
    classified = [
        line.rpartition(" :: ")[2] for line in facts.get_all("Classifier") or [] if line.startswith("License")
    ]
    named = [name for name in classified if name != "OSI Approved"]
    if named:
        return ", ".join(named)
    field = str(facts.get("License") or "").strip().partition("\n")[0]
    return field if 0 < len(field) <= 60 else UNKNOWN


def rows() -> list[tuple[str, str, str]]:
    """Name, versions and licence of each pinned package."""
    versions: dict[str, list[str]] = {}
    for pin in read_pins(CONSTRAINTS):
        versions.setdefault(pin.name, []).append(pin.version)
    return [(name, ", ".join(pinned), licence(name)) for name, pinned in versions.items()]


def licence(name: str) -> str:
    """The licence of a package, installed or not."""
    try:
        return stated(metadata(name))
    except PackageNotFoundError:
        return ELSEWHERE.get(name, UNKNOWN)


def needs_argument(licence: str) -> bool:
    """Whether a licence is unknown, or asks for more than to be named."""
    return licence == UNKNOWN or COPYLEFT.search(licence) is not None


def page() -> str:
    """The whole page."""
    found = rows()
    special = [(name, licence) for name, _, licence in found if needs_argument(licence)]
    missing = [f"{name} ({licence})" for name, licence in special if name not in ARGUED]
    if missing:
        raise SystemExit(f"Say in ARGUED of tools/release/licences.py why these may be used: {', '.join(missing)}.")
    argued = "".join(f"- **{name}** ({licence}): {ARGUED[name]}\n" for name, licence in special)
    table = "".join(f"| {name} | {pinned} | {licence} |\n" for name, pinned, licence in found)
    return (
        f"{HEAD}## Copyleft or unstated\n\n{argued}\n## All\n\n| package | version | licence |\n|---|---|---|\n{table}"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(Path.cwd())}: {len(rows())} packages, {len(ARGUED)} argued", file=sys.stderr)
