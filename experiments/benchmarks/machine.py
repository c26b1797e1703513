"""What the numbers depend on beside the code: processor, threads, versions."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "XLA_FLAGS")
PACKAGES = ("rvfl-jax", "jax", "jaxlib", "numpy", "scipy", "torch", "gfdl")


def describe_machine() -> dict[str, Any]:
    """Processor, load, threads and versions; None for packages that are not installed."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        # The run alone makes about as much as there are cores; more means other work.
        "load_at_end": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "environment": {name: os.environ.get(name) for name in THREAD_SETTINGS},
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
