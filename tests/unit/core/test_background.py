"""One logit more than classes: when it is highest, nothing vouches for a point."""

from __future__ import annotations

import numpy as np
import torch

from torchsdm.core import Encoded
from torchsdm.matching import SupportSet


def test_the_background_wins_only_with_the_highest_logit():
    logits = torch.tensor([[1.0, 2.0, 1.9], [1.0, 2.0, 2.1], [3.0, 2.0, 2.5], [1.0, 1.0, 1.0]])
    points = Encoded.of(torch.zeros(4, 2), logits, n_classes=2)
    assert points.is_background.tolist() == [False, True, False, False]  # a tie is the class's
    assert points.predictions.tolist() == [1, 1, 0, 0]
    assert points.recognised_as.tolist() == [1, 2, 0, 0]
    assert torch.equal(points.logits, logits[:, :2])


def test_without_a_further_logit_nothing_is_background():
    points = Encoded.of(torch.zeros(3, 2), torch.randn(3, 4), n_classes=4)
    assert not points.is_background.any()
    assert torch.equal(points.recognised_as, points.predictions)


def test_nothing_vouches_for_background():
    rng = np.random.default_rng(0)
    exemplars = torch.from_numpy(rng.normal(size=(30, 3)).astype(np.float32))
    labels = torch.zeros(30, dtype=torch.int64)
    support = SupportSet(exemplars, labels, labels)
    logits = torch.tensor([[2.0, 0.0, 1.0]] * 5 + [[2.0, 0.0, 3.0]] * 5)
    points = Encoded.of(exemplars[:10], logits, n_classes=2)
    found = support.match(points.exemplars, points.predictions)
    assert (found.similarity == 30).all()
    silenced = points.unvouched(found)
    assert silenced.similarity.tolist() == [30] * 5 + [0] * 5
    assert torch.equal(silenced.nearest_distance, found.nearest_distance)


def test_blocks_and_back():
    points = Encoded.of(torch.randn(7, 2), torch.randn(7, 3), n_classes=2)
    blocks = points.split(3)
    assert [len(block.logits) for block in blocks] == [3, 3, 1]
    joined = Encoded.concatenate(blocks)
    assert all(torch.equal(getattr(joined, name), getattr(points, name)) for name in Encoded.__dataclass_fields__)
