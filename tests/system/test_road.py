"""One road for one text: ``sdm predict`` opens its input once, and parses and tokenises every text once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.road import TEXTS, prepare, walk


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_an_input_is_opened_once_and_every_text_parsed_and_tokenised_once(tmp_path: Path) -> None:
    prepare(tmp_path)
    road = walk(tmp_path)
    assert road.opens == 1
    assert sorted(road.parses.values()) == [1] * len(TEXTS)
    assert dict(road.tokenisations) == dict.fromkeys(TEXTS, 1)
