"""Fashion-MNIST from Debian's package, a local cache, or a checksummed download.

H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
Machine Learning Algorithms", 2017.
"""

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
TIMEOUT_S = 30

# SHA-256 of the unpacked files: Debian and the authors compress the same bytes differently.
CHECKSUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def cache_folder() -> Path:
    """`$RVFL_JAX_CACHE`, else `rvfl_jax` in the user's cache folder."""
    own = os.environ.get("RVFL_JAX_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(own) if own else Path(shared) / "rvfl_jax"


def load_fashion_mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X_train (60000, 784), y_train, X_test (10000, 784), y_test; float32 in 0 .. 1.

    Raises:
        ValueError: if the files are nowhere, cannot be downloaded, or are not the
            published ones.
    """
    parts = [_unpack(name) for name in CHECKSUMS]
    X_train, X_test = (_images(parts[i]) for i in (0, 2))
    y_train, y_test = (np.frombuffer(parts[i], np.uint8, offset=8).astype(int) for i in (1, 3))
    return X_train, y_train, X_test, y_test


def _images(content: bytes) -> np.ndarray:
    pixels = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 784)
    return pixels.astype(np.float32) / 255


def _unpack(name: str) -> bytes:
    cache = cache_folder() / "fashion-mnist"
    for folder in (DEBIAN_FOLDER, cache):
        path = folder / f"{name}.gz"
        if path.is_file():
            return _verify(name, path.read_bytes(), str(path))
    packed = _download(name)
    content = _verify(name, packed, URL)
    cache.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that an interrupted download is never taken for the file.
    partial = cache / f"{name}.gz.part"
    partial.write_bytes(packed)
    partial.replace(cache / f"{name}.gz")
    return content


def _download(name: str) -> bytes:
    try:
        with urlopen(f"{URL}{name}.gz", timeout=TIMEOUT_S) as answer:
            packed: bytes = answer.read()
            return packed
    except (URLError, OSError) as error:
        raise ValueError(
            f"fashion-mnist: {name}.gz is neither in {DEBIAN_FOLDER} nor in the cache, and"
            f" {URL} cannot be reached ({error}). Install Debian's dataset-fashion-mnist,"
            f" or put the four .gz files into {cache_folder() / 'fashion-mnist'}."
        ) from error


def _verify(name: str, packed: bytes, source: str) -> bytes:
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"fashion-mnist: {name}.gz from {source} is damaged: {error}") from error
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != CHECKSUMS[name]:
        raise ValueError(
            f"fashion-mnist: expected SHA-256 {CHECKSUMS[name]} for {name} from {source},"
            f" got {checksum}"
        )
    return content
