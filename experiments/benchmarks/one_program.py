"""Sweeps, gradients and devices: `python -m experiments.benchmarks.one_program --out DIR`.

Times are medians of rounds in turns in one warm process. Peak memory is that of a process of
its own, since a process never gives back what it once had. Scaling pins each process to one
core, so that two processes have twice the cores of one.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.benchmarks.machine import describe_machine

WIDTH, ROWS, CLASSES, BATCHES = 1024, 64, 10, 20
NUM_FEATURES = 64


def stream_of(T: int, b: int, s: int = NUM_FEATURES, m: int = CLASSES) -> Any:
    import numpy as np

    import rvfl_jax

    rng = np.random.default_rng(0)
    X = rng.normal(size=(T, b, s)).astype(np.float32)
    y = rng.integers(0, m, (T, b)).astype(np.int32)
    ones = np.ones((T, b), np.float32)
    return rvfl_jax.Stream(X, y, ones, np.arange(m), np.zeros(T, int), np.zeros(m, int))


def _make(k: Any) -> Any:
    import rvfl_jax

    return rvfl_jax.edrvfl(num_layers=1, num_nodes=WIDTH - NUM_FEATURES, ridge=1.0, k=k)


def _make_reusing(kappa: Any, sigma: Any) -> Any:
    import rvfl_jax

    return _make(rvfl_jax.adaptive_k(kappa, sigma, reuse_k=True))


def _make_printed(kappa: Any, sigma: Any) -> Any:
    import rvfl_jax

    return _make(rvfl_jax.adaptive_k(kappa, sigma))


def _contenders(precision: str) -> dict[str, Callable[[], Any]]:
    import jax
    import numpy as np

    import rvfl_jax

    stream, key = stream_of(BATCHES, ROWS), jax.random.key(0)
    constant = _make(1.0)
    reusing, printed = _make_reusing(1.0, 1e-3), _make_printed(1.0, 1e-3)
    strengths = np.linspace(0.0, 3.0, 64)
    scales = {"kappa": np.logspace(-1, 1, 8), "sigma": np.logspace(-4, 0, 8)}

    def run(learner: Any) -> Any:
        return rvfl_jax.run_stream(learner, stream, key=key, precision=precision)

    def sweep(make: Any, grid: Any) -> Any:
        return rvfl_jax.sweep(make, stream, grid, key=key, precision=precision)

    return {
        "one run": lambda: run(constant),
        "64 k": lambda: sweep(_make, {"k": strengths}),
        "one run, reused k": lambda: run(reusing),
        "kappa x sigma, 64, reused k": lambda: sweep(_make_reusing, scales),
        "one run, Algorithm 2 as printed": lambda: run(printed),
        "kappa x sigma, 64, as printed": lambda: sweep(_make_printed, scales),
        "10 seeds x 64 k": lambda: sweep(_make, {"seed": np.arange(10), "k": strengths}),
    }


def peak_megabytes() -> float:
    # Not ru_maxrss: a process inherits what the one that started it had reached.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_sweeps(repeats: int) -> dict[str, Any]:
    from experiments.benchmarks.timing import interleaved

    found: dict[str, Any] = {"width": WIDTH, "rows": ROWS, "batches": BATCHES, "classes": CLASSES}
    for precision in ("double", "single"):
        calls = _contenders(precision)
        found[precision] = interleaved(calls, repeats, _say)[0]
        medians = {name: statistics.median(s) for name, s in found[precision].items()}
        found[f"{precision} ratios"] = {
            "64 k / one run": medians["64 k"] / medians["one run"],
            "kappa x sigma / one run, reused k": medians["kappa x sigma, 64, reused k"]
            / medians["one run, reused k"],
            "kappa x sigma / one run, as printed": medians["kappa x sigma, 64, as printed"]
            / medians["one run, Algorithm 2 as printed"],
            "10 seeds x 64 k / 64 k": medians["10 seeds x 64 k"] / medians["64 k"],
        }
    memory = {name: _alone("memory-of", name)["peak"] for name in ("one run", "64 k")}
    found["peak megabytes"] = memory
    found["extra megabytes of 64 k"] = memory["64 k"] - memory["one run"]
    return found


def memory_of(name: str) -> dict[str, Any]:
    call = _contenders("double")[name]
    for _ in range(2):
        call()
    return {"peak": peak_megabytes()}


def measure_gradients(repeats: int) -> dict[str, Any]:
    return _alone("gradient", str(repeats))


def gradient(repeats: str) -> dict[str, Any]:
    """d loss / d(log k, log lambda, log scale) through 2,000 steps."""
    import jax
    import jax.numpy as jnp

    import rvfl_jax

    T, b = 2000, 16
    stream, key = stream_of(T, b), jax.random.key(0)

    def loss(log: Any) -> Any:
        learner = rvfl_jax.edrvfl(
            num_layers=1,
            num_nodes=WIDTH - NUM_FEATURES,
            ridge=jnp.exp(log[1]),
            k=jnp.exp(log[0]),
            weight_scale=jnp.exp(log[2]),
        )
        return rvfl_jax.prequential_loss(learner, stream, key=key)

    seconds: dict[str, list[float]] = {"forward": [], "value and gradient": []}
    with jax.enable_x64(True):
        log = jnp.zeros(3)
        both = jax.jit(jax.value_and_grad(loss))
        value, slope = jax.block_until_ready(both(log))
        peak = peak_megabytes()
        alone = jax.jit(loss)
        jax.block_until_ready(alone(log))
        for turn in range(int(repeats)):
            _say(f"gradient, {turn + 1} of {repeats}")
            for name, call in (("forward", alone), ("value and gradient", both)):
                start = time.perf_counter()
                jax.block_until_ready(call(log))
                seconds[name].append(time.perf_counter() - start)
        step = 1e-3 * jnp.array([1.0, 0.0, 0.0])
        ends = [float(alone(log + place * step)) for place in (-2, -1, 1, 2)]
    difference = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / 12e-3
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "steps": T,
        "width": WIDTH,
        "rows": b,
        "peak megabytes": peak,
        "carries alone, megabytes": T * WIDTH**2 * 8 / 2**20,
        "seconds": seconds,
        "gradient / forward": medians["value and gradient"] / medians["forward"],
        "loss": float(value),
        "slopes": [float(entry) for entry in slope],
        "error of d log k against differences": abs(float(slope[0]) / difference - 1),
    }


def measure_scaling(repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in ("rows", "eta_dagger", "sweep"):
        _say(f"scaling, {case}")
        one = _processes(case, 1, repeats)
        two = _processes(case, 2, repeats)
        found[case] = {
            "one process": one,
            "two processes": two,
            "speed-up": statistics.median(one) / statistics.median(two),
        }
    return found | {"model": [model(layout) for layout in ("rows", "eta_dagger")]}


def _processes(case: str, count: int, repeats: int) -> list[float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parts = [
        _start("scale", case, str(number), str(count), str(port), str(repeats))
        for number in range(count)
    ]
    answers = [_answer(part) for part in parts]
    return answers[0]["seconds"]


def scale(case: str, number: str, count: str, port: str, repeats: str) -> dict[str, Any]:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(number)]})
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if int(count) > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(number))
    import numpy as np
    from jax.sharding import Mesh

    import rvfl_jax

    mesh = Mesh(np.array(jax.devices()), ("devices",))
    key = jax.random.key(0)
    rows = stream_of(6, 4096)
    short = stream_of(BATCHES, ROWS)
    information = rvfl_jax.edrvfl(
        num_layers=1, num_nodes=WIDTH - NUM_FEATURES, ridge=1.0, k=1.0, solver="information"
    )
    covariance = rvfl_jax.edrvfl(
        num_layers=1, num_nodes=WIDTH - NUM_FEATURES, ridge=1.0, k=1.0, solver="covariance"
    )
    calls: dict[str, Callable[[], Any]] = {
        "rows": lambda: rvfl_jax.run_stream(information, rows, key=key, mesh=mesh),
        "eta_dagger": lambda: rvfl_jax.run_stream(
            covariance, short, key=key, mesh=mesh, layout="eta_dagger"
        ),
        "sweep": lambda: rvfl_jax.sweep(
            _make, short, {"seed": np.arange(8), "k": [1.0]}, key=key, mesh=mesh
        ),
    }
    call = calls[case]
    call()
    seconds = []
    for _ in range(int(repeats)):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def model(
    layout: str,
    d: int = 8192,
    b: int = 4096,
    m: int = 100,
    devices: int = 8,
    flops: float = 5e13,
    bytes_a_second: float = 4e11,
) -> dict[str, Any]:
    """A step on paper: flops and bytes of each device, nothing overlapped.

    The defaults are round numbers for eight accelerators of 50 Tflop/s in float64 products
    that reach each other at 400 GB/s; a ring sends each number of an all-reduce twice.
    """
    ring = (devices - 1) / devices
    if layout == "rows":
        shared, alike = d * d * b, d**3 / 3
        sent = 2 * ring * (d * d / 2 + d * m)
    else:
        b = 512
        shared, alike = 4 * d * d * b, 2 * b**3
        sent = ring * (2 * b * d + 2 * (b * d + b * (b + m)))
    work = (shared / devices + alike) / flops
    alone = (shared + alike) / flops
    travel = 8 * sent / bytes_a_second
    return {
        "layout": layout,
        "d": d,
        "b": b,
        "m": m,
        "devices": devices,
        "megabytes sent a step": 8 * sent / 1e6,
        "milliseconds of work": 1e3 * work,
        "milliseconds of travel": 1e3 * travel,
        "speed-up": alone / (work + travel),
    }


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.benchmarks.one_program", "--part", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a part failed with status {process.returncode}")
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return answer


def _alone(*arguments: str) -> dict[str, Any]:
    return _answer(_start(*arguments))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "memory-of": memory_of,
    "gradient": gradient,
    "scale": scale,
}
CASES = {"sweeps": measure_sweeps, "gradients": measure_gradients, "devices": measure_scaling}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.one_program")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--only", choices=CASES, help="one case")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part[0]](*args.part[1:])))
        return
    if args.out is None:
        parser.error("--out: expected a folder")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, measure in CASES.items():
        if args.only in (None, name):
            found = {"machine": describe_machine()} | measure(args.repeats)
            path = args.out / f"one_program_{name}.json"
            path.write_text(json.dumps(found, indent=1) + "\n")
            shown = {key: value for key, value in found.items() if key != "machine"}
            print(name, json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
