"""A process forked while JAX is in use gets an error in place of a wait without end."""

import os
import subprocess
import sys

import jax
import pytest

BEGIN = """
import multiprocessing, os, sys, traceback, warnings
warnings.simplefilter("ignore")
import jax, numpy as np
import rvfl_jax

X = np.random.default_rng(0).normal(size=(24, 5))
y = np.arange(24) % 3
model = rvfl_jax.EdRVFLClassifier(num_layers=1, num_nodes=12, random_state=0)


def in_child(*calls):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        for call in calls:
            try:
                print("said", np.shape(call()), flush=True)
            except BaseException as error:
                print(type(error).__name__, error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""

FORKS = """
in_child(lambda: model.fit(X, y).predict(X))
assert not hasattr(model, "classes_")
model.fit(X, y)
key = jax.random.key(0)
learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=12, ridge=1.0, k=1.0)
state = learner.init(key, 5, 3)
Y = np.eye(3)[y]
in_child(
    lambda: model.predict(X),
    lambda: model.predict_proba(X),
    lambda: model.partial_fit(X, y),
    lambda: model.fit(X, y),
    lambda: learner.step(state, X, Y),
    lambda: learner.predict(state, X),
    lambda: learner.init(key, 5, 3),
    lambda: rvfl_jax.run_stream(learner, [(X, y)], key=key, classes=[0, 1, 2]),
    lambda: rvfl_jax.merge_states(state, state, ridge=1.0),
    lambda: rvfl_jax.sweep(lambda k: learner, [], {"k": [1.0]}, key=key),
)
print("parent", model.predict(X).shape)
with multiprocessing.get_context("fork").Pool(1) as pool:
    try:
        pool.map(model.predict, [X])
    except RuntimeError as error:
        print("pool", error)
"""

OTHERS = """
if __name__ == "__main__":
    model.fit(X, y)
    expected = model.predict(X)
    from joblib import Parallel, delayed
    found = Parallel(n_jobs=2)(delayed(model.predict)(X) for _ in range(3))
    print("loky", all((one == expected).all() for one in found))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawn", (pool.apply(model.predict, (X,)) == expected).all())
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print("forkserver", (pool.apply(model.predict, (X,)) == expected).all())
    import subprocess
    print("subprocess", subprocess.run([sys.executable, "-c", "import rvfl_jax"]).returncode)
"""


# What these processes compile is not what is tested.
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}


def printed(tmp_path, code):
    (tmp_path / "user.py").write_text(BEGIN + code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "user.py")],
        env={**os.environ, **CACHE, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="cannot fork")
def test_a_fork_after_use_is_an_error_that_names_a_remedy(tmp_path):
    before, *children, parent, pool = printed(tmp_path, FORKS)
    assert before == "said (24,)", "nothing was in use yet"
    assert len(children) == 10
    for line in children:
        assert line.startswith("RuntimeError rvfl_jax: expected a process of its own"), line
        assert "spawn" in line
        assert "loky" in line
    assert parent == "parent (24,)"
    assert "spawn" in pool


@pytest.mark.slow
def test_processes_that_begin_anew_go_on(tmp_path):
    assert printed(tmp_path, OTHERS) == [
        "loky True",
        "spawn True",
        "forkserver True",
        "subprocess 0",
    ]
