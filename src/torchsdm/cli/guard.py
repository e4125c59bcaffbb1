"""``sdm guard``: the state of a drift guard, and its reset."""

from __future__ import annotations

from pathlib import Path

import click

from torchsdm.cli._options import json_option, say
from torchsdm.wording import guard_line


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--reset", "reason", metavar="REASON", help="Start again with an empty stream, and remember why.")
@json_option
def guard(file: Path, reason: str | None, as_json: bool) -> None:
    r"""Show the drift guard that sdm predict or sdm serve keeps in FILE, or reset it after an alarm.

    \b
    Examples:
      sdm guard model.guard
      sdm guard model.guard --reset "new product names, certified again"
    """
    from torchsdm.application import guard_state
    from torchsdm.trust import DriftGuard

    watching = DriftGuard.load(file)
    if reason is not None:
        watching.reset(reason)
        watching.save(file)
    state = guard_state(watching)
    earlier = [
        f"Reset after {one['n_seen']:,} inputs"
        + ("" if one["raised_at"] is None else f", raised at {one['raised_at']:,}")
        + f": {one['reason']}"
        for one in state["resets"]
    ]
    say(state, "\n".join([guard_line(state, file), *earlier]), as_json)
