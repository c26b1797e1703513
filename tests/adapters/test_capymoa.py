"""CapyMOA's own loops with the classifier, where it, PyTorch and Java are there."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
try:
    from capymoa.base import SKClassifier
    from capymoa.evaluation import prequential_evaluation
    from capymoa.ocl.evaluation import ocl_train_eval_loop
    from capymoa.stream import NumpyStream
except Exception as error:  # Without Java it is no ImportError.
    pytest.skip(f"CapyMOA is not to be had: {error}", allow_module_level=True)

from rvfl_jax import EdRVFLClassifier
from rvfl_jax.adapters.capymoa import CapyMOAClassifier
from tests import tolerances
from tests.estimators.test_estimator import SMALL, assert_close, blobs

X, LABELS = blobs(num_rows=240, num_classes=4, num_features=5)
X32 = X.astype(np.float32)


def schema():
    return NumpyStream(X32, LABELS).get_schema()


def loader(rows, size=20):
    tensors = torch.as_tensor(X32[rows]), torch.as_tensor(LABELS[rows])
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), size)


def test_the_loop_of_online_continual_learning_gives_the_readout_of_one_fit():
    rows, task_of = np.arange(len(X)), LABELS // 2
    tasks = [np.flatnonzero((task_of == task) & (rows < 180)) for task in range(2)]
    tests = [np.flatnonzero((task_of == task) & (rows >= 180)) for task in range(2)]
    learner = CapyMOAClassifier(schema(), EdRVFLClassifier(**SMALL))
    results = ocl_train_eval_loop(
        learner, [loader(task) for task in tasks], [loader(test) for test in tests]
    )
    plain = EdRVFLClassifier(**SMALL).fit(X32[:180], LABELS[:180])
    scores = learner.model.decision_function(X32)
    assert_close(scores, plain.decision_function(X32), tolerances.CLOSED_FORM)
    # Their accuracy is the mean over tasks.
    each = [np.mean(plain.predict(X32[test]) == LABELS[test]) for test in tests]
    assert results.accuracy_final == pytest.approx(np.mean(each))


def test_batches_of_a_stream_are_learned_as_by_the_estimator():
    learner = CapyMOAClassifier(schema(), EdRVFLClassifier(**SMALL))
    prequential_evaluation(NumpyStream(X32, LABELS), learner, batch_size=60)
    plain = EdRVFLClassifier(**SMALL)
    for start in range(0, 240, 60):
        plain.partial_fit(X32[start : start + 60], LABELS[start : start + 60])
    found = learner.batch_predict_proba(torch.as_tensor(X32))
    np.testing.assert_array_equal(found, plain.predict_proba(X32).astype(np.float32))


def test_classes_not_seen_have_no_probability():
    learner = CapyMOAClassifier(schema(), EdRVFLClassifier(**SMALL))
    x = torch.as_tensor(X32)
    assert learner.batch_predict_proba(x).unique().tolist() == [0.25]
    some = np.flatnonzero(np.isin(LABELS, [1, 3]))
    learner.batch_train(x[some], torch.as_tensor(LABELS[some]))
    found = learner.batch_predict_proba(x)
    assert not found[:, [0, 2]].any()
    assert found.sum(axis=1).numpy() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="y: expected indices from 0 to 3, got 4"):
        learner.batch_train(x[:1], torch.tensor([4]))


def test_its_own_wrapper_takes_the_estimator_as_it_is():
    stream = NumpyStream(X32, LABELS)
    learner = SKClassifier(EdRVFLClassifier(**SMALL), stream.get_schema())
    results = prequential_evaluation(stream, learner, max_instances=120)
    assert results.cumulative.accuracy() > 70
