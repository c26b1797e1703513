"""The classifier as CapyMOA has its own: learned from batches of PyTorch, or instance by instance.

CapyMOA's `SKClassifier` takes an `EdRVFLClassifier` as it is, for its streams of instances.
`CapyMOAClassifier` is for what asks for batches: `capymoa.ocl.evaluation.ocl_train_eval_loop` and
`prequential_evaluation` with a `batch_size`.
"""

import numpy as np
import torch
from capymoa.base import BatchClassifier
from capymoa.stream import Schema
from sklearn.base import clone

from rvfl_jax.estimators.classifier import EdRVFLClassifier


class CapyMOAClassifier(BatchClassifier):  # type: ignore[misc]
    """`EdRVFLClassifier` as a strategy of online continual learning in CapyMOA.

        from capymoa.ocl.datasets import SplitMNIST
        from capymoa.ocl.evaluation import ocl_train_eval_loop

        scenario = SplitMNIST()
        learner = CapyMOAClassifier(scenario.schema)
        ocl_train_eval_loop(learner, scenario.train_loaders(32), scenario.test_loaders(32))

    Tasks and their boundaries are not looked at. Batches are learned in the precision that the
    estimator has, which is double unless told otherwise, and answers are float32 as CapyMOA asks.

    Args:
        schema: of the stream. Its classes need not all appear; those never seen have probability
            0, and before any was seen all have the same.
        estimator: says how to learn, and is not changed; None takes an `EdRVFLClassifier` with
            `random_seed` as its seed. Its `lookahead`, if k is not 0, announces batches as usual.
        random_seed: of CapyMOA's own shuffles, and of the default estimator.

    Attributes:
        model: the estimator that learns.
    """

    def __init__(
        self, schema: Schema, estimator: EdRVFLClassifier | None = None, random_seed: int = 1
    ) -> None:
        super().__init__(schema=schema, random_seed=random_seed)
        given = EdRVFLClassifier(random_state=random_seed) if estimator is None else estimator
        self.model = clone(given)

    def __str__(self) -> str:
        return str(self.model)

    def batch_train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Learn rows x (b, ...), which are made flat, and their labels y (b,), indices of classes.

        Raises:
            ValueError: on a value that is no finite number, or an index that is no class.
        """
        labels, classes = y.detach().cpu().numpy(), self.schema.get_num_classes()
        strange = labels[(labels < 0) | (labels >= classes)]
        if len(strange):
            raise ValueError(f"y: expected indices from 0 to {classes - 1}, got {strange[0]}")
        self.model.partial_fit(_flat(x), labels)

    def batch_predict_proba(self, x: torch.Tensor) -> torch.Tensor:
        """(b, classes) calibrated probabilities."""
        classes = self.schema.get_num_classes()
        if not self.model.__sklearn_is_fitted__():
            return torch.full((len(x), classes), 1.0 / classes, dtype=self.x_dtype)
        found = np.zeros((len(x), classes))
        found[:, self.model.classes_] = self.model.predict_proba(_flat(x))
        return torch.as_tensor(found, dtype=self.x_dtype)


def _flat(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().numpy().reshape(len(x), -1)
