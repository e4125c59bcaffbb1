"""A support on shards gives the answers of one machine bit for bit, also while shards and nodes are lost."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import threading
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch

from served import server
from small import labelled_points, quiet, small_settings
from torchsdm import SDMClassifier, SDMEnsemble, SupportSet
from torchsdm.application import LiveModel, standing
from torchsdm.cluster import RayBackend, ShardedSupport, Shards
from torchsdm.cluster import blocks as cluster_blocks
from torchsdm.errors import ClusterError, InvalidInputError
from torchsdm.estimators import Add, Remove

N_SHARDS = 3


@pytest.fixture(scope="module")
def backend(ray, nodes):
    return RayBackend(nodes.address, shards=N_SHARDS, threads=1)


@pytest.fixture(scope="module")
def shards(backend):
    return Shards.of(backend)


def first(shards, n):
    """The first n of the shards; of more than there are, some share a process."""
    chosen = copy.copy(shards)
    chosen.actors = [shards.actors[shard % len(shards)] for shard in range(n)]
    chosen._dropped = [deque() for _ in range(n)]
    return chosen


class Problem:
    """Points on a grid, so that ties and duplicates abound, or in general position."""

    def __init__(self, n=700, n_queries=300, dtype=torch.float32, grid=True, n_filters=5, seed=0):
        g = torch.Generator().manual_seed(seed)

        def points(n):
            if grid:
                return torch.randint(0, 4, (n, n_filters), generator=g).to(dtype)
            return torch.randn(n, n_filters, generator=g, dtype=torch.float64).to(dtype)

        self.points, self.queries, self.new = points(n), points(n_queries), points(40)
        self.labels = torch.randint(0, 3, (n,), generator=g)
        is_wrong = torch.rand(n, generator=g) < 0.2
        self.predictions = torch.where(is_wrong, (self.labels + 1) % 3, self.labels)
        self.asked = torch.randint(0, 3, (n_queries,), generator=g)
        self.exclude = torch.randint(-1, max(1, n - 50), (n_queries,), generator=g)

    def alone(self):
        return SupportSet(self.points, self.labels, self.predictions)

    def same(self, alone, spread):
        """Whether all answers of two supports are equal, to the bit."""
        for exclude, k in ((None, 0), (self.exclude, 7)):
            asked = self.queries, self.asked, exclude
            equal(alone.match(*asked, k=k), spread.match(*asked, k=k))
        for one, other in zip(alone.neighbors(self.queries, 4), spread.neighbors(self.queries, 4), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(alone.labels, spread.labels)
        assert torch.equal(alone.predictions, spread.predictions)
        assert torch.equal(alone.exemplars, spread.exemplars)
        assert len(alone) == len(spread)


def equal(one, other):
    for name, values in vars(one).items():
        assert torch.equal(values, getattr(other, name)), name


# --- The same answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 6))
def test_any_number_of_shards(shards, n, monkeypatch):
    monkeypatch.setattr(cluster_blocks, "BLOCK_ROWS", 97)  # several blocks a shard
    problem = Problem(seed=n)
    alone = problem.alone()
    spread = ShardedSupport.of(alone, first(shards, n))
    problem.same(alone, spread)
    equal(alone.match_self(), spread.match_self())


@pytest.mark.parametrize("kind", [{"dtype": torch.float64, "grid": False}, {"n": 3, "n_queries": 1}, {"grid": False}])
def test_any_kind_of_points(shards, kind):
    problem = Problem(**kind)
    alone = problem.alone()
    spread = ShardedSupport.of(alone, first(shards, 5))
    asked = problem.queries, problem.asked
    equal(alone.match(*asked, problem.exclude, k=3), spread.match(*asked, problem.exclude, k=3))
    assert spread.dtype == alone.dtype


def test_no_queries(shards):
    problem = Problem()
    alone = problem.alone()
    spread = ShardedSupport.of(alone, shards)
    nothing = problem.queries[:0], problem.asked[:0]
    equal(alone.match(*nothing, k=2), spread.match(*nothing, k=2))


def test_batches_change_nothing(shards, monkeypatch):
    problem = Problem()
    alone = problem.alone()
    spread = ShardedSupport.of(alone, first(shards, 2))
    spread._state.__dict__["rows_at_once"] = 7  # 43 batches, three in flight
    problem.same(alone, spread)


def test_answers_in_any_order_of_arrival(shards, monkeypatch):
    problem = Problem()
    alone = problem.alone()
    turned = first(shards, 4)
    answers = Shards.gathered
    turned.gathered = lambda asked: answers(turned, list(reversed(asked)))
    problem.same(alone, ShardedSupport.of(alone, turned))


def test_input_is_checked_as_on_one_machine(shards):
    spread = ShardedSupport.of(Problem().alone(), shards)
    with pytest.raises(InvalidInputError, match=r"'exclude' of ShardedSupport.match must be in -1..699. Got 0..700."):
        spread.match(torch.zeros(2, 5), [0, 0], [0, 700])
    with pytest.raises(InvalidInputError, match="must leave at least one point"):
        spread.remove(range(700))


# --- Changes ---------------------------------------------------------------------------------------------------------


def test_changes_give_the_same_support(shards, monkeypatch):
    monkeypatch.setattr(cluster_blocks, "BLOCK_ROWS", 97)
    problem, rng = Problem(), np.random.default_rng(0)
    alone = problem.alone()
    spread = ShardedSupport.of(alone, first(shards, 3))
    for step in range(12):
        n = int(rng.integers(1, 40))
        labels, predictions = rng.integers(0, 4, n), rng.integers(0, 3, n)
        gone, changed = rng.choice(600, 5, replace=False), rng.choice(600, 6, replace=False)
        for support in (alone, spread):
            support.add(problem.new[:n], labels, predictions)
            support.remove(gone)
            support.relabel(changed, np.arange(6) % 4)
        if step % 4 == 3:
            problem.same(alone, spread)
    wanted = SupportSet(problem.queries, problem.asked, problem.asked).rows
    assert spread.rows.find(wanted) == alone.rows.find(wanted)
    assert spread.rows.shape == alone.rows.shape


def test_a_copy_is_a_support_of_its_own(shards):
    problem = Problem()
    alone = problem.alone()
    before = ShardedSupport.of(alone, shards)
    left, right = copy.copy(before), copy.copy(before)
    left.remove([0, 300]), right.relabel([0, 300], [2, 2])
    problem.same(alone, before)
    problem.same(problem.alone().remove([0, 300]), left)
    problem.same(problem.alone().relabel([0, 300], [2, 2]), right)


def test_small_additions_are_joined_and_large_ones_cut(shards, monkeypatch):
    monkeypatch.setattr("torchsdm.cluster.support.BLOCK_ROWS", 97)
    monkeypatch.setattr(cluster_blocks, "BLOCK_ROWS", 97)
    problem = Problem()
    alone = problem.alone()
    spread = ShardedSupport.of(alone, first(shards, 3))
    n_before = len(spread._state.blocks)
    for row in range(64):
        for support in (alone, spread):
            support.add(problem.queries[row : row + 1], [row % 3], [0])
    assert len(spread._state.blocks) - n_before <= 7
    for support in (alone, spread):
        support.add(problem.queries, problem.asked, problem.asked)
    assert max(map(len, spread._state.blocks)) <= 97
    problem.same(alone, spread)


def test_states_that_nobody_has_are_dropped(shards):
    problem = Problem()
    spread = ShardedSupport.of(problem.alone(), first(shards, 2))

    def n_states():
        return kept(shards, 0)

    spread.match(problem.queries, problem.asked)
    before = n_states()
    for _ in range(5):
        spread.remove([0])
        spread.match(problem.queries, problem.asked)
    assert n_states() <= before + 1


def kept(shards, shard):
    ask = shards.actors[shard].__ray_call__
    return shards._ray.get(ask.remote(lambda actor: len(actor.states)))


# --- Losses ----------------------------------------------------------------------------------------------------------


def place_of(shards, shard):
    """The process and the node of a shard."""

    def here(actor):
        from torchsdm.cluster.backend import import_ray

        return os.getpid(), import_ray().get_runtime_context().get_node_id()

    return shards._ray.get(shards.actors[shard].__ray_call__.remote(here))


def after_the_first_answers(shards, lose):
    """The same shards; something is lost when the first of them have answered, and the others are at work."""
    unsteady, answers = copy.copy(shards), Shards.gathered
    is_lost = threading.Event()

    def gathered(asked):
        found = answers(unsteady, asked)
        if not is_lost.is_set():
            is_lost.set()
            lose()
        return found

    unsteady.gathered = gathered
    return unsteady, is_lost


def test_a_killed_shard_in_the_middle_of_matching(shards):
    problem = Problem(n=5_000, n_queries=900)
    alone = problem.alone()
    process, _ = place_of(shards, 1)
    unsteady, is_lost = after_the_first_answers(shards, lambda: os.kill(process, signal.SIGKILL))
    spread = ShardedSupport.of(alone, unsteady)
    spread._state.__dict__["rows_at_once"] = 50
    problem.same(alone, spread)
    assert is_lost.is_set()
    assert place_of(shards, 1)[0] != process


def test_a_lost_node_in_the_middle_of_matching(shards, nodes):
    problem = Problem(n=5_000, n_queries=900)
    alone = problem.alone()
    process, place = place_of(shards, 2)
    (node,) = [node for node in nodes.workers if node.node_id == place]
    unsteady, is_lost = after_the_first_answers(shards, lambda: nodes.lose(node))
    spread = ShardedSupport.of(alone, unsteady)
    spread._state.__dict__["rows_at_once"] = 50
    problem.same(alone, spread)
    assert is_lost.is_set()
    assert place_of(shards, 2) != (process, place)


def test_a_killed_shard_in_the_middle_of_an_update(shards):
    """It is asked for equal rows, as every update does, and then for answers that depend on all changes."""
    problem = Problem()
    alone = problem.alone()
    process, _ = place_of(shards, 0)
    unsteady, is_lost = after_the_first_answers(shards, lambda: os.kill(process, signal.SIGKILL))
    spread = ShardedSupport.of(alone, unsteady)
    wanted = SupportSet(problem.new, problem.asked[:40], problem.asked[:40]).rows
    for support in (alone, spread):
        support.add(problem.new, problem.asked[:40], problem.asked[:40])
        support.remove([1, 200, 710])
    assert spread.rows.find(wanted) == alone.rows.find(wanted)
    assert is_lost.is_set()
    for support in (alone, spread):
        support.relabel([0, 650], [1, 1])
    problem.same(alone, spread)


def test_a_shard_that_cannot_come_back_is_not_waited_for(shards, monkeypatch):
    with pytest.raises(ClusterError, match=r"of 40 shards did not answer within 1 seconds.*Add nodes"):
        Shards(40, patience=1)


# --- Saved models ----------------------------------------------------------------------------------------------------

NAMES = np.array(["World", "Sports"])
ME = {"who": "me", "why": "a test"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A saved model with background, a certificate and a calibration set."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2, 400)
    X = (rng.standard_normal((400, 4)) + 2.4 * (numbers[:, None] - 0.5) * np.array([1, 1, 0, 0])).astype(np.float32)
    path = tmp_path_factory.mktemp("base") / "model"
    with quiet():
        classifier = SDMClassifier(0.8, **small_settings(max_epochs=3, random_state=3))
        classifier.fit(X, NAMES[numbers], background=5 + rng.standard_normal((40, 4)).astype(np.float32)).save(path)
    return path


@pytest.fixture
def twins(base, tmp_path):
    """Two copies of the model: one for this process alone, one for the cluster."""
    return [shutil.copytree(base, tmp_path / name) for name in ("alone", "spread")]


def same_decisions(alone, spread):
    """Whether two classifiers decide and explain alike, to the bit."""
    assert isinstance(spread.support_, ShardedSupport)
    X = labelled_points(99, 200).hidden_states
    ours, theirs = alone.decide(X), spread.decide(X)
    for name, values in vars(ours).items():
        np.testing.assert_array_equal(values, getattr(theirs, name), err_msg=name)
    assert [str(one) for one in alone.explain(X[:20], 4)] == [str(one) for one in spread.explain(X[:20], 4)]
    assert standing(alone) == standing(spread)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_saved_model_decides_alike(twins, backend, shards):
    alone, spread = SDMClassifier.load(twins[0]), SDMClassifier.load(twins[1], backend=backend)
    same_decisions(alone, spread)
    for classifier in (alone, spread):
        more = labelled_points(1)
        classifier.add_exemplars(more.hidden_states, more.labels, ids=more.ids)
        classifier.remove_exemplars(["1-3"]).relabel_exemplars(["1-4"], ["spam"], allow_new_labels=True)
        classifier.recalibrate(alpha=0.75)
    same_decisions(alone, spread)
    with pytest.raises(InvalidInputError, match="Already in the support set"):
        spread.add_exemplars(more.hidden_states[5:9], more.labels[5:9])
    spread.save(twins[1])
    same_decisions(SDMClassifier.load(twins[1]), spread)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_an_ensemble_shares_its_shards(tmp_path, backend, shards):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((200, 4)).astype(np.float32), rng.choice(NAMES, 200)
    alone = SDMEnsemble(0.8, n_filters=6, n_rounds=2, training="sdm", max_epochs=1, random_state=0).fit(X, y)
    alone.save(tmp_path)
    spread = SDMEnsemble.load(tmp_path, backend=backend)
    assert {id(model.support.shards) for model in spread.models_} == {id(shards)}
    for name, values in vars(alone.decide(X)).items():
        np.testing.assert_array_equal(values, getattr(spread.decide(X), name), err_msg=name)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_live_model_through_its_log(twins, backend, shards):
    with LiveModel.open(twins[0]) as alone, LiveModel.open(twins[1], backend=backend) as spread:
        for live in (alone, spread):
            live.add(labelled_points(1), **ME)
            live.add(labelled_points(2), **ME)
            live.remove(["1-0", "2-5"], **ME)
            live.relabel(["1-1"], ["spam"], allow_new_labels=True, **ME)
            live.recalibrate(0.75, **ME)
        classifiers = [live.snapshot.saved.classifier for live in (alone, spread)]
        same_decisions(*classifiers)
        assert alone.preview([Remove(["1-2"])]) == spread.preview([Remove(["1-2"])])
        same_decisions(*classifiers)  # what was tried changed nothing
        for live in (alone, spread):
            live.undo_all([5, 4], **ME)
            live.undo(live.undo(3, **ME).version, **ME)
        same_decisions(*(live.snapshot.saved.classifier for live in (alone, spread)))
        rows = [one.source for one in spread.snapshot.saved.classifier.support_._state.blocks]
        assert {type(one).__name__ for one in rows} == {"StoredSupport", "HeldRows"}
    same_decisions(SDMClassifier.load(twins[0]), SDMClassifier.load(twins[1], backend=backend))


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_lost_shard_is_rebuilt_with_what_was_added(twins, backend, shards):
    """Every shard is killed in the middle of an update; what was acknowledged is there all the same."""
    with LiveModel.open(twins[0]) as alone, LiveModel.open(twins[1], backend=backend) as spread:
        for live in (alone, spread):
            live.add(labelled_points(1), **ME)
        places = [place_of(shards, shard) for shard in range(len(shards))]
        answers, is_lost = Shards.gathered, threading.Event()

        def gathered(asked):
            if not is_lost.is_set():
                is_lost.set()
                for process, _ in places:
                    os.kill(process, signal.SIGKILL)
            return answers(shards, asked)

        shards.gathered = gathered
        try:
            for live in (alone, spread):
                live.make([Add(labelled_points(2)), Remove(["1-7"])], **ME)
        finally:
            del shards.gathered
        assert is_lost.is_set()
        same_decisions(*(live.snapshot.saved.classifier for live in (alone, spread)))


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_service_of_a_model_on_shards(twins, nodes):
    more, X = labelled_points(1), labelled_points(99, 50).hidden_states
    given = {"hidden_states": more.hidden_states.tolist(), "labels": more.labels.tolist(), "ids": more.ids}
    with server(twins[1], "--ray", nodes.address) as running:
        status, answer = running.ask("/v1/exemplars", {"changes": [{"what": "add", **given}], **ME})
        assert status == 200, answer
        status, answer = running.ask("/v1/decide", {"hidden_states": X.tolist()})
    with LiveModel.open(twins[0]) as alone:
        alone.add(replace(more, texts=None), **ME)
        rows = alone.snapshot.saved.classifier.decide(X).to_dicts()
    assert answer["decisions"] == [{"id": number, "line": None, **row} for number, row in enumerate(rows)]


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_the_device_of_a_sharded_support(twins, backend, monkeypatch):
    monkeypatch.setattr("torchsdm.estimators._saving.check_device", lambda device, caller: device)
    with pytest.raises(
        InvalidInputError, match=r"'device' of SDMClassifier.load must be 'cpu' with a backend. Got 'x'"
    ):
        SDMClassifier.load(twins[1], device="x", backend=backend)
