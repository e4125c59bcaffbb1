"""The linear start: the convex problem, its folds, and the adaptor that answers with its solution."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from torchsdm.core import make_adaptor
from torchsdm.training import Part, TrainingSettings, linear, solve_linear
from torchsdm.training.linear import LINEAR_SHARE, N_FOLDS, PENALTIES, folds_of


def problem(n=600, n_classes=3, width=6, seed=0, spread=1.5):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    X = 2.0 * np.eye(n_classes, width)[y] + spread * rng.standard_normal((n, width)) + 3
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y)


def solved(X, y, n_classes=3, kind="filters", n_filters=40, seed=0, **settings):
    settings = TrainingSettings(n_classes, n_filters=n_filters, adaptor=kind, **settings)
    part = Part(X, y, torch.arange(len(y)))
    adaptor = make_adaptor(kind, X.shape[1], n_classes, n_filters, torch.Generator().manual_seed(seed))
    adaptor.standardise(X, per_dimension=True)
    return solve_linear(part, adaptor, settings, seed), adaptor, part


def regression(X, y, penalty, weights=None):
    """scikit-learn's solution of the same problem, and the states as it sees them."""
    states = ((X - X.mean(dim=0)) / X.std(dim=0)).numpy()
    return LogisticRegression(C=1 / penalty, max_iter=5000, tol=1e-10).fit(states, y.numpy(), weights), states


def test_the_solution_is_that_of_scikit_learn(monkeypatch):
    monkeypatch.setattr(linear, "_PRECISION", 1e-9)
    X, y = problem()
    solution, _, _ = solved(X, y)
    plain, states = regression(X, y, solution.penalty)
    z = torch.tensor(states) @ solution.weights.T + solution.bias
    np.testing.assert_allclose(torch.softmax(z, 1), plain.predict_proba(states), atol=2e-4)


def test_logits_out_of_fold_are_those_of_a_regression_that_has_not_seen_the_point(monkeypatch):
    monkeypatch.setattr(linear, "_PRECISION", 1e-9)
    X, y = problem()
    solution, _, _ = solved(X, y)
    folds = folds_of(y.numpy(), N_FOLDS, np.random.default_rng([0, 0, 7, 0]))
    states = ((X - X.mean(dim=0)) / X.std(dim=0)).double().numpy()  # so that scikit-learn computes with them
    for fold in range(N_FOLDS):
        seen = folds != fold
        other = LogisticRegression(C=1 / solution.penalty, max_iter=5000, tol=1e-10).fit(states[seen], y.numpy()[seen])
        found = torch.softmax(solution.out_of_fold[torch.tensor(~seen)], 1)
        np.testing.assert_allclose(found, other.predict_proba(states[~seen]), atol=2e-4)


def test_the_penalty_is_the_one_with_the_smallest_loss_out_of_fold():
    X, y = problem(n=120, width=60, spread=2.0)
    solution, _, _ = solved(X, y)
    assert PENALTIES[-1] < solution.penalty < PENALTIES[0]
    log_p = torch.log_softmax(solution.out_of_fold.double(), 1)
    assert solution.loss == pytest.approx(-float(log_p[torch.arange(120), y].mean()))
    folds = folds_of(y.numpy(), N_FOLDS, np.random.default_rng([0, 0, 7, 0]))
    states = ((X - X.mean(dim=0)) / X.std(dim=0)).numpy()

    def loss(penalty):
        total = 0.0
        for fold in range(N_FOLDS):
            seen = folds != fold
            other = LogisticRegression(C=1 / penalty, max_iter=5000).fit(states[seen], y.numpy()[seen])
            p = other.predict_proba(states[~seen])
            total -= np.log(p[np.arange(len(p)), y.numpy()[~seen]]).sum()
        return total / len(y)

    place = PENALTIES.index(solution.penalty)
    assert loss(solution.penalty) < min(loss(PENALTIES[place - 2]), loss(PENALTIES[place + 2]))


def test_weights_of_classes_count_as_in_scikit_learn(monkeypatch):
    monkeypatch.setattr(linear, "_PRECISION", 1e-9)
    X, y = problem()
    solution, _, _ = solved(X, y, class_weights=(1.0, 5.0, 0.5))
    plain, states = regression(X, y, solution.penalty, np.array([1.0, 5.0, 0.5])[y.numpy()])
    z = torch.tensor(states) @ solution.weights.T + solution.bias
    np.testing.assert_allclose(torch.softmax(z, 1), plain.predict_proba(states), atol=5e-4)


@pytest.mark.parametrize("kind", ["filters", "identity"])
def test_an_adaptor_answers_with_the_solution(kind):
    X, y = problem()
    solution, adaptor, part = solved(X, y, kind=kind)
    solution.put_into(adaptor, part)
    exemplars, logits = adaptor.encode_exactly(X)
    expected = ((X - adaptor.mean) / adaptor.scale) @ solution.weights.T + solution.bias
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    if kind == "identity":
        torch.testing.assert_close(exemplars, (X - adaptor.mean) / adaptor.scale)
        return
    spread = exemplars.double().var(dim=0)
    own = spread[:3].sum() * solution.out_of_fold.double().var(dim=0).sum() / expected.double().var(dim=0).sum()
    assert float(own / spread[3:].sum()) == pytest.approx(LINEAR_SHARE, rel=1e-3)


def test_regressions_one_by_one_are_those_together(monkeypatch):
    X, y = problem(n=200)
    together, _, _ = solved(X, y)
    monkeypatch.setattr(linear, "_PARAMETERS", 1)
    one_by_one, _, _ = solved(X, y)
    assert one_by_one.penalty == together.penalty
    torch.testing.assert_close(
        torch.softmax(one_by_one.out_of_fold, 1), torch.softmax(together.out_of_fold, 1), atol=0.02, rtol=0
    )


def test_states_that_are_not_kept_give_the_same_bits(monkeypatch):
    X, y = problem(n=200)
    kept, _, _ = solved(X, y)
    monkeypatch.setattr(linear, "_KEPT_ENTRIES", 0)
    again, _, _ = solved(X, y)
    assert torch.equal(kept.out_of_fold, again.out_of_fold) and torch.equal(kept.weights, again.weights)


def test_one_thread_and_two_give_the_same_bits():
    X, y = problem(n=3000, width=96)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(solved(X, y)[0])
    torch.set_num_threads(before)
    assert torch.equal(found[0].weights, found[1].weights) and torch.equal(found[0].out_of_fold, found[1].out_of_fold)


@pytest.mark.parametrize("counts", [(50, 50), (7, 93), (2, 3, 40), (1, 9)])
def test_folds_have_as_many_of_each_class_as_can_be(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    folds = folds_of(labels, 5, np.random.default_rng(0))
    assert set(folds) <= set(range(5))
    for c, count in enumerate(counts):
        of_class = np.bincount(folds[labels == c], minlength=5)
        assert of_class.max() - of_class.min() <= 1 and of_class.sum() == count
    sizes = np.bincount(folds, minlength=5)
    assert sizes.max() - sizes.min() <= 1


def test_fitting_does_not_import_torch_s_compiler():  # the first optimiser of torch.optim does, for a second
    program = """
import sys, warnings
import numpy as np
from torchsdm import SDMClassifier

warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
SDMClassifier(0.8, 8, random_state=0).fit(X, X[:, 0] > 0).decide(X)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
