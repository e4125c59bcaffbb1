"""``SDMClassifier``: hidden states and labels in, decisions out, by scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from torchsdm.core import HighReliabilityRegion, SDMDecisions
from torchsdm.errors import InvalidInputError, MissingExtraError
from torchsdm.estimators._base import BaseSDMClassifier
from torchsdm.matching import DEFAULT_BLOCK_SIZE, SupportSet
from torchsdm.model import Explanation, SDMModel, explain
from torchsdm.training import RoundResult, best_round
from torchsdm.validation import Array, ArrayLike, check_path, check_positive


class SDMClassifier(BaseSDMClassifier):
    """A classifier over frozen hidden states that admits an answer or rejects it.

    1. ``fit`` trains J rounds of an adaptor with the SDM loss and keeps the best (section 3.1 of the paper);
    2. matches the calibration set against the training set and finds the high-reliability region (Algorithm 1);
    3. ``decide`` answers every input with a label, whether it is admitted, and what that rests on;
    4. ``explain`` shows the training examples behind a decision;
    5. ``add_exemplars``, ``remove_exemplars``, ``relabel_exemplars`` and ``recalibrate`` adapt it without training.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Target accuracy in (0.5, 1] among admitted points, for each class and each prediction. With several, a region is
        found for each, and a point is given the one nearest 1 that admits it.
    n_filters : int, default=1000
        M, the width of an exemplar.
    n_rounds : int, default=10
        J, rounds of training, each with its own split and initial weights.
    max_epochs : int, default=200
        Epochs of a round; the model kept is that of the best one.
    batch_size : int, default=50
        Points of a training step.
    learning_rate : float, default=1e-5
        Of Adam, without weight decay.
    random_state : int, RandomState, Generator or None
        The same seed gives the same model.
    device : str or None
        A torch device; None is the CPU.
    adaptor : {'filters', 'identity'}
        'identity' matches hidden states directly and trains only the output layer (the paper's ablation).
    standardization : {'scalar', 'per_dimension'}
        One mean and standard deviation over all entries, or one for each dimension.
    calibration_size : float, default=0.5
        Share of X that each round calibrates on.
    patience : int or None
        End a round after so many epochs without a better calibration loss; None never does.
    min_class_count : int, default=0
        Regions that rest on fewer calibration points of some class are refused.
    checkpoint : path or None
        A directory in which training leaves its state after every epoch. An interrupted ``fit`` called again with the
        same data and settings goes on from there, with identical results.
    block_size : int
        Rows of the blocks that matching works on; it bounds memory and changes no answer.
    verbose : bool
        Show a progress bar.
    keep_rounds : bool, default=False
        Keep the models of all rounds, for ``SDMEnsemble.from_classifier``, until the first update. They are not
        saved; save the ensemble.

    Attributes
    ----------
    classes_ : (C,)
    region_ : HighReliabilityRegion
        Of the first alpha; ``regions_`` has one for each.
    history_ : History
        Losses, accuracies and signals of every epoch.
    support_ : SupportSet
    n_features_in_ : int
    data_fingerprint_ : str
        SHA-256 of the training data.
    random_seed_ : int
        The seed that was used.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(400, n_features=8, centers=2, random_state=0)
    >>> clf = SDMClassifier(alpha=0.9, n_filters=16, n_rounds=1, max_epochs=5, learning_rate=1e-2, random_state=0)
    >>> decisions = clf.fit(X, y).decide(X[:3])
    >>> len(decisions), decisions.predictions.shape
    (3, (3,))
    """

    def __init__(
        self,
        alpha: float | Sequence[float] = 0.95,
        n_filters: int = 1000,
        n_rounds: int = 10,
        max_epochs: int = 200,
        batch_size: int = 50,
        learning_rate: float = 1e-5,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        device: str | None = None,
        *,
        adaptor: str = "filters",
        standardization: str = "scalar",
        calibration_size: float = 0.5,
        patience: int | None = None,
        min_class_count: int = 0,
        checkpoint: str | Path | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
        verbose: bool = False,
        keep_rounds: bool = False,
    ) -> None:
        super().__init__(
            alpha,
            n_filters,
            n_rounds,
            max_epochs,
            batch_size,
            learning_rate,
            random_state,
            device,
            adaptor=adaptor,
            standardization=standardization,
            calibration_size=calibration_size,
            patience=patience,
            min_class_count=min_class_count,
            checkpoint=checkpoint,
            block_size=block_size,
            verbose=verbose,
        )
        self.keep_rounds = keep_rounds

    def _keep(self, results: list[RoundResult], build: Callable[[RoundResult], SDMModel]) -> None:
        chosen = best_round(results)
        self.__dict__.pop("round_models_", None)
        if self.keep_rounds:
            models = tuple(build(result) for result in results)
            self.round_models_ = models
            self.models_ = (models[chosen.number],)
        else:
            self.models_ = (build(chosen),)

    @contextmanager
    def _updated_models(self) -> Iterator[tuple[SDMModel, ...]]:
        with super()._updated_models() as models:
            yield models
        self.__dict__.pop("round_models_", None)  # they would not have the update

    @property
    def model_(self) -> SDMModel:
        """The fitted model: adaptor, support, calibration set and regions."""
        self._check_is_fitted("model_")
        models: tuple[SDMModel, ...] = self.models_
        return models[0]

    @property
    def support_(self) -> SupportSet:
        """The support set. Its own ids are row numbers; ``explain`` gives the ids of the examples."""
        return self.model_.support

    @property
    def regions_(self) -> tuple[HighReliabilityRegion, ...]:
        """One region for each alpha, in the order the alphas were given."""
        return self.model_.calibration.regions

    @property
    def region_(self) -> HighReliabilityRegion:
        """The region of the first alpha."""
        return self.regions_[0]

    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which may be acted on."""
        states = self._check_input(X, "predict")
        labels: Array = self.classes_[self.model_.predict(states).numpy()]
        return labels

    def decide(self, X: ArrayLike) -> SDMDecisions:
        """Decide on each input: the label, whether it is admitted, and all that this rests on.

        A row does not depend on what else is in X.
        """
        states = self._check_input(X, "decide")
        return self.model_.decide(states)

    def logits(self, X: ArrayLike) -> Array:
        """z' of each input (N, C), classes in the order of ``classes_``."""
        logits: Array = self.model_.logits(self._check_input(X, "logits")).numpy()
        return logits

    def calibration_logits(self) -> tuple[Array, Array]:
        """z' (M, C) and class numbers (M,) of the calibration set, for other estimators over the same adaptor."""
        calibration = self.model_.calibration
        return calibration.logits.cpu().numpy(), calibration.labels.cpu().numpy()

    def explain(self, X: ArrayLike, k: int = 5) -> list[Explanation]:
        """For each input its decision, the k nearest training examples, and the calibration points of its partition."""
        states = self._check_input(X, "explain")
        check_positive(k, "k", "SDMClassifier.explain", integer=True)
        return explain(self.model_, self._codes, states, k)

    def export_support(self, path: str | Path) -> None:
        """Write the support's ids, labels, predictions, texts and exemplars to a Parquet file."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("pyarrow", "report", "SDMClassifier.export_support") from error
        path = check_path(path, "path", "SDMClassifier.export_support")
        if path.suffix != ".parquet":
            raise InvalidInputError(f"'path' of SDMClassifier.export_support must end in .parquet. Got {path.name!r}.")
        ids, texts = self.model_.examples.all()
        columns = {
            "id": [str(name) for name in ids],
            "label": [str(label) for label in self._codes.decode(self.support_.labels)],
            "prediction": [str(label) for label in self._codes.decode(self.support_.predictions)],
            "text": texts,
            "exemplar": pa.FixedSizeListArray.from_arrays(
                pa.array(self.support_.exemplars.cpu().numpy().ravel()), self.support_.exemplars.shape[1]
            ),
        }
        pq.write_table(pa.table(columns), path)
