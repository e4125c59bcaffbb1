"""Extraction into a store, killed in the middle: what was finished is used, and the states are the same."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import tiny_models
from torchsdm import Documents, HiddenStateExtractor
from torchsdm.data import StatesStore
from torchsdm.hidden_states import extractor as extractor_module
from warm_process import ONE_THREAD, WarmProcess

N_DOCUMENTS, BLOCK = 200, 8
PROGRAM = f"""
import sys
from pathlib import Path
from torchsdm import Documents, HiddenStateExtractor
from torchsdm.hidden_states import extractor
from torchsdm.data import StatesStore

extractor.BLOCK = {BLOCK}
model, texts, directory = sys.argv[1:]
documents = Documents(Path(texts).read_text().splitlines(), repeated="keep")
HiddenStateExtractor(model, "sentiment").labelled_states(documents, store=StatesStore(directory))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_killed_in_the_middle_it_goes_on_with_the_finished_blocks(tmp_path, monkeypatch):
    model = str(tiny_models.save_model(tmp_path / "model", *tiny_models.phi3()))
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(tiny_models.TEXT.split(), 20)) for _ in range(N_DOCUMENTS)]
    (tmp_path / "texts").write_text("\n".join(texts))
    broken, whole = tmp_path / "broken", tmp_path / "whole"

    killed = WarmProcess(PROGRAM, model, tmp_path / "texts", broken, env={**os.environ, **ONE_THREAD})
    while killed.poll() is None and len(list(broken.glob("[!.]*.safetensors"))) < 3:
        time.sleep(0.0005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    finished = {path.name: path.read_bytes() for path in broken.glob("[!.]*.safetensors")}
    assert killed.poll() == -signal.SIGKILL, killed.stderr
    assert 3 <= len(finished) < N_DOCUMENTS // BLOCK, "it was never interrupted"

    monkeypatch.setattr(extractor_module, "BLOCK", BLOCK)
    documents = tuple(Documents(texts, repeated="keep"))
    resumed, fresh = StatesStore(broken), StatesStore(whole)
    states, expected = (
        HiddenStateExtractor(model, "sentiment").labelled_states(documents, store=store) for store in (resumed, fresh)
    )
    assert fresh.counts.n_extracted == N_DOCUMENTS
    assert resumed.counts.n_extracted == N_DOCUMENTS - BLOCK * len(finished)
    assert np.array_equal(states.hidden_states, expected.hidden_states)
    assert np.array_equal(states.label_logits, expected.label_logits)
    assert states.ids == expected.ids and states.origin == expected.origin
    assert all((broken / name).read_bytes() == content for name, content in finished.items())
    assert {path.name for path in broken.iterdir()} == {path.name for path in whole.iterdir()}
