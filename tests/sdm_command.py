"""The command ``sdm`` in the process of a test, and what it said."""

from __future__ import annotations

import io
import sys

import pytest

from torchsdm.cli.command import main
from warm_process import Done


def call(*arguments, stdin=b"", name="sdm", main=main):
    """The command in this process, which spares the seconds that imports take; it ends as the real one does."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            main()
            status = 0
        except SystemExit as leaving:
            status = int(leaving.code or 0)
    return Done(status, out.getvalue(), err.getvalue())


def good(*arguments, **options):
    done = call(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def refused(done, expected):
    assert done.returncode == 1, done.stdout
    assert expected in done.stderr and done.stderr.startswith("sdm: ")
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr and done.stdout == ""
