"""What ``SDMClassifier`` and ``SDMEnsemble`` share: training the rounds of a fit, and probabilities."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from torch import Tensor

from torchsdm.cluster import run_rounds, spread_on
from torchsdm.core import SDMDecisions, check_targets
from torchsdm.estimators._data import FitData
from torchsdm.estimators._fitting import ModelBuilder
from torchsdm.estimators._saving import Saveable
from torchsdm.estimators._updates import Updatable
from torchsdm.labels import BACKGROUND, LabelCodes, class_weights
from torchsdm.training import History, Round, SDMLearner, Training, seed_of_fit, train_rounds
from torchsdm.validation import Array, ArrayLike, check_hidden_states


class BaseSDMClassifier(Saveable, Updatable):
    """What the single classifier and the ensemble share.

    ``fit`` of each reads from top to bottom: check the data, train the rounds, build the models that are wanted.
    """

    @abstractmethod
    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which are admitted."""

    @abstractmethod
    def decide(self, X: ArrayLike) -> SDMDecisions:
        """Decide on each input: the label, whether it is admitted, and the numbers behind it."""

    def predict_proba(self, X: ArrayLike) -> Array:
        """sdm(z') of each input (N, C), classes in the order of ``classes_``.

        If the distance quantile is 0 the distribution is uniform; the predicted class is then raised by one unit in
        the last place, so that argmax agrees with ``predict``, as scikit-learn expects.
        """
        decisions = self.decide(X)
        probabilities = decisions.probabilities
        predicted = self._codes.encode(decisions.predictions, "predict_proba").numpy()
        tied = np.flatnonzero(probabilities.argmax(axis=1) != predicted)
        probabilities[tied, predicted[tied]] = np.nextafter(probabilities[tied].max(axis=1), 1.0)
        return probabilities

    def _check_input(self, X: ArrayLike, method: str) -> Tensor:
        self._check_is_fitted(method)
        return check_hidden_states(self, X, f"{type(self).__name__}.{method}", reset=False, empty=True)

    def _draw_seed(self, seed: int | None) -> None:
        """Fix the seed of a fit: the given one, or one drawn from ``random_state``."""
        self.random_seed_ = seed_of_fit(seed, self.random_state, self.checkpoint, type(self).__name__)

    def _begin(self, data: FitData) -> ModelBuilder:
        """Set what does not depend on how the model is trained; what models are built of."""
        caller = f"{type(self).__name__}.fit"
        self.data_fingerprint_, self.data_source_ = data.fingerprint, None
        self._home, self.version_ = None, 0  # another model than the one that was loaded
        self.classes_, self.states_origin_ = data.classes, data.states_origin
        self._codes = LabelCodes(data.classes, () if data.background is None else (BACKGROUND,))
        data = data.with_background()
        weights = class_weights(self.class_weight, data.points.usable.labels.numpy(), data.classes, caller)
        settings = self._training_settings(data.n_trained_classes, weights)
        alphas = check_targets(self.alpha, data.classes, caller)
        return ModelBuilder(data, settings, self.random_seed_, alphas, int(self.min_class_count))

    def _train(self, builder: ModelBuilder) -> tuple[Training, list[Round]]:
        """Train the rounds, and keep their history."""
        data, caller = builder.data, f"{type(self).__name__}.fit"
        spread = spread_on(self.backend, caller)
        training = Training(SDMLearner, data.points, builder.settings, builder.seed, spread=spread)
        rounds = train_rounds(
            training,
            self.n_rounds,
            checkpoint=self.checkpoint,
            data_fingerprint=data.fingerprint_of_parts,
            verbose=self.verbose,
            run=run_rounds(self.backend, caller),
        )
        self.history_ = History(record for one in rounds for record in one.records)
        return training, rounds
