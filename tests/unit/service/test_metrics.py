"""What came in lately: counted by minute, and forgotten after a day."""

from __future__ import annotations

from torchsdm.service.metrics import Recent


def row(lane="review", d=0.5, q=1):
    return {"lane": lane, "class_distance_quantile": d, "similarity": q}


def test_rows_are_counted_by_minute():
    now = [6000.0]
    recent = Recent(lambda: now[0])
    recent.record([row(), row("trusted", 1.0), row("unfamiliar", 0.0, 0)])
    now[0] += 59
    recent.record([row(), {"lane": "rejected"}])
    now[0] += 60
    recent.record([row()])
    first, second = recent.to_dict()["minutes"]
    assert first["at"] == 6000 and second["at"] == 6060
    assert first["lanes"] == {"review": 2, "trusted": 1, "unfamiliar": 1, "rejected": 1}
    assert (first["distances"][0], first["distances"][10], first["distances"][19]) == (1, 2, 1)
    assert sum(first["distances"]) == 4 and first["no_similarity"] == 1


def test_a_day_is_kept():
    now = [0.0]
    recent = Recent(lambda: now[0])
    for minute in range(3000):
        now[0] = 60.0 * minute
        recent.record([row()])
    minutes = recent.to_dict()["minutes"]
    assert len(minutes) == 1440 and minutes[-1]["at"] == 60 * 2999
    now[0] += 60 * 1430
    assert len(recent.to_dict()["minutes"]) == 10
