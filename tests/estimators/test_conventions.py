"""scikit-learn's own checks of estimators; every one of them costs a compilation or two."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor

SMALL = {"num_layers": 1, "num_nodes": 12, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore")


@parametrize_with_checks([EdRVFLClassifier(**SMALL)])
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([EdRVFLClassifier(**SMALL, k=1.0), EdRVFLRegressor(**SMALL)])
def test_conventions_of_scikit_learn_by_the_others(estimator, check):
    check(estimator)
