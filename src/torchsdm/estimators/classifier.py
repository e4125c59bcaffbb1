"""``SDMClassifier``: hidden states and labels in, decisions out, by scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torchsdm.core import HighReliabilityRegion, SDMDecisions
from torchsdm.errors import InvalidInputError, MissingExtraError
from torchsdm.estimators._base import BaseSDMClassifier
from torchsdm.matching import SupportSet
from torchsdm.model import Explanation, SDMModel, explain
from torchsdm.states import LabelledStates
from torchsdm.training import best_round
from torchsdm.validation import Array, ArrayLike, check_path, check_positive

Self = TypeVar("Self", bound="SDMClassifier")


class SDMClassifier(BaseSDMClassifier):
    """A classifier over frozen hidden states that admits an answer or rejects it.

    1. ``fit`` trains J rounds of an adaptor with the SDM loss and keeps the best (section 3.1 of the paper);
    2. matches the calibration set against the training set and estimates the high-reliability region (Algorithm 1);
    3. ``decide`` answers every input with a label, whether it is admitted, and the numbers behind it;
    4. ``explain`` shows the training examples behind a decision;
    5. ``add_exemplars``, ``remove_exemplars``, ``relabel_exemplars`` and ``recalibrate`` adapt it without training.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Target accuracy in (0.5, 1] for each true class, on the calibration set. The region estimates where it is met;
        it does not guarantee it. With several, each has a region, and a point gets the largest that admits it.
    n_filters : int, default=1000
        M, the width of an exemplar.
    n_rounds : int, default=10
        J, rounds of training, each with its own split and initial weights.
    max_epochs : int, default=200
        Epochs per round; the model of the best one is kept.
    batch_size : int, default=50
        Points per training step.
    learning_rate : float, default=1e-5
        Of Adam, without weight decay.
    random_state : int, RandomState, Generator or None
        The same seed gives the same model.
    device : str or None
        A torch device; None is the CPU.
    adaptor : {'filters', 'identity'}
        'identity' matches hidden states directly and trains only the output layer (the paper's ablation).
    standardization : {'scalar', 'per_dimension'}
        One mean and standard deviation over all entries, or one per dimension.
    calibration_size : float, default=0.5
        Share of X that each round calibrates on.
    patience : int or None
        End a round after this many epochs without a better calibration loss; None never does.
    min_class_count : int, default=0
        Regions based on fewer calibration points of some class are refused.
    checkpoint : path or None
        A directory where training saves its state after every epoch. An interrupted ``fit`` called again with the
        same data and settings resumes from there, with identical results.
    block_size : int
        Rows per block in matching; it limits memory and changes no answer.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    classes_ : (C,)
    region_ : HighReliabilityRegion
        Of the first alpha; ``regions_`` has one per alpha.
    history_ : History
        Losses, accuracies and signals of every epoch.
    support_ : SupportSet
    n_features_in_ : int
    data_fingerprint_ : str
        SHA-256 of the training data.
    random_seed_ : int
        The seed that was used; ``fit(..., seed=random_seed_)`` of another estimator uses the same splits.
    training_rows_, calibration_rows_ : arrays
        The rows that the model was trained and calibrated on: of X, or of the calibration set given to ``fit``.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(400, n_features=8, centers=2, random_state=0)
    >>> clf = SDMClassifier(alpha=0.9, n_filters=16, n_rounds=1, max_epochs=5, learning_rate=1e-2, random_state=0)
    >>> decisions = clf.fit(X, y).decide(X[:3])
    >>> len(decisions), decisions.predictions.shape
    (3, (3,))
    """

    round_models_: tuple[SDMModel, ...]

    def fit(
        self: Self,
        X: ArrayLike | LabelledStates,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
        seed: int | None = None,
        keep_rounds: bool = False,
    ) -> Self:
        """Train the rounds, keep the best, and calibrate it.

        Parameters
        ----------
        X : (N, D), or (N, positions, D); or LabelledStates
            Hidden states: an array, a memory-mapped array or a tensor. They are used as float32. LabelledStates, as
            ``read_states`` returns them, include labels, ids and texts.
        y : (N,)
            Labels of any type that scikit-learn accepts.
        ids, texts : (N,), optional
            Names (unique; by default the row numbers of X) and texts of the examples, returned by ``explain``.
        calibration : LabelledStates or (X, y), optional
            Your own calibration set; all of X is then trained on. By default each round splits X.
        seed : int, optional
            The seed itself, such as another estimator's ``random_seed_``, instead of one drawn from ``random_state``:
            estimators with the same seed have the same splits.
        keep_rounds : bool, default=False
            Keep the models of all rounds in ``round_models_``, for ``SDMEnsemble.from_classifier``, until the first
            update. They are not saved; save the ensemble.
        """
        with self._unchanged_on_error():
            data = self._check_data(X, y, ids, texts, calibration)
            trained = self._train(data, seed)
            best = best_round(trained.rounds)
            self.__dict__.pop("round_models_", None)
            if keep_rounds:
                self.round_models_ = tuple(trained.model_of(one) for one in trained.rounds)
            self.models_ = (self.round_models_[best.number] if keep_rounds else trained.model_of(best),)
            self.training_rows_, self.calibration_rows_ = trained.rows_of(best)
        return self

    @contextmanager
    def _updated_models(self) -> Iterator[tuple[SDMModel, ...]]:
        with super()._updated_models() as models:
            yield models
        self.__dict__.pop("round_models_", None)  # they lack the update

    @property
    def model_(self) -> SDMModel:
        """The fitted model: adaptor, support, calibration set and regions."""
        self._check_is_fitted("model_")
        models: tuple[SDMModel, ...] = self.models_
        return models[0]

    @property
    def support_(self) -> SupportSet:
        """The support set, with the ids of its examples."""
        return self.model_.support

    @property
    def regions_(self) -> tuple[HighReliabilityRegion, ...]:
        """One region per alpha, in the order the alphas were given."""
        return self.model_.calibration.regions

    @property
    def region_(self) -> HighReliabilityRegion:
        """The region of the first alpha."""
        return self.regions_[0]

    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which are admitted."""
        states = self._check_input(X, "predict")
        labels: Array = self.classes_[self.model_.predict(states).numpy()]
        return labels

    def decide(self, X: ArrayLike) -> SDMDecisions:
        """Decide on each input: the label, whether it is admitted, and the numbers behind it.

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
