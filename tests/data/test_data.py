"""Loaders: what they return, and how they fail."""

import gzip
import hashlib
import io
from urllib.error import URLError

import numpy as np
import pytest

from rvfl_jax.data import fashion_mnist, load_dataset


def test_digits():
    data = load_dataset("digits")
    assert data.X_train.shape == (1347, 64)
    assert data.X_test.shape == (450, 64)
    assert data.X_train.min() == 0
    assert data.X_train.max() == 1
    assert np.bincount(data.y_test).min() >= 43
    again, other = load_dataset("digits", seed=0), load_dataset("digits", seed=1)
    assert np.array_equal(again.X_train, data.X_train)
    assert not np.array_equal(other.X_train, data.X_train)


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


X = np.arange(24.0).reshape(8, 3)
Y = np.array([0, 1] * 4)


@pytest.mark.parametrize("prefix", ["X", "f"])
def test_npz_with_a_split(tmp_path, prefix):
    arrays = {f"{prefix}_train": X, "y_train": Y, f"{prefix}_test": X[:2], "y_test": Y[:2]}
    data = load_dataset(write_npz(tmp_path / "mine.npz", **arrays))
    assert data.name == "mine"
    assert np.array_equal(data.X_train, X)
    assert np.array_equal(data.y_test, Y[:2])


def test_npz_without_a_split(tmp_path):
    data = load_dataset(write_npz(tmp_path / "mine.npz", X=X, y=Y))
    assert sorted(map(tuple, np.vstack([data.X_train, data.X_test]))) == sorted(map(tuple, X))
    assert len(data.X_test) == 2


def test_csv(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "a,kind,b\n" + "".join(f"{i},{'cat' if i % 2 else 'dog'},{-i}\n" for i in range(8))
    )
    data = load_dataset(str(path), label="kind")
    assert data.X_train.shape == (6, 2)
    assert np.array_equal(data.X_train[:, 0], -data.X_train[:, 1])
    assert set(data.y_train) == {"cat", "dog"}
    assert all(
        (x[0] % 2 == 1) == (y == "cat") for x, y in zip(data.X_train, data.y_train, strict=True)
    )


def test_csv_with_integer_labels(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("label,a\n" + "3,1.5\n250,2\n" * 3)
    assert set(load_dataset(str(path)).y_train.tolist()) == {3, 250}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "mine.csv: expected a column 'label', got a, b"),
        ("", "mine.csv: expected a header and rows, got an empty file"),
        ("label,a\n0,1\n1\n", "mine.csv, line 3: expected 2 fields, got 1"),
        ("label,a\n0,1\n1,two\n", "mine.csv, line 3: expected a finite number in column 'a'"),
        ("label,a\n0,nan\n1,2\n", "mine.csv, line 2: expected a finite number in column 'a'"),
        ("label,a\n,1\n1,2\n", "mine.csv, line 2: expected a label, got nothing"),
        ("label,a\n0.5,1\n1,2\n", "mine.csv: y: expected integral numbers"),
        ("label,a\n", "mine.csv: expected at least one row"),
        ("label,a\n0,1\n0,2\n1,3\n", "mine: expected at least 2 rows of each class, got 1"),
    ],
)
def test_bad_csv(tmp_path, content, message):
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_dataset(str(path))


def test_bad_names_and_files(tmp_path):
    with pytest.raises(ValueError, match=r"expected one of digits, fashion-mnist or a path"):
        load_dataset("mnits")
    with pytest.raises(ValueError, match="expected a file at"):
        load_dataset(str(tmp_path / "none.npz"))
    (tmp_path / "broken.npz").write_bytes(b"PK not a zip")
    with pytest.raises(ValueError, match=r"broken\.npz: expected a readable"):
        load_dataset(str(tmp_path / "broken.npz"))
    with pytest.raises(ValueError, match=r"mine.npz: expected arrays X and y.*got Z"):
        load_dataset(write_npz(tmp_path / "mine.npz", Z=X))
    with pytest.raises(ValueError, match="y: expected 8 labels"):
        load_dataset(write_npz(tmp_path / "mine.npz", X=X, y=Y[:3]))


@pytest.fixture
def tiny_fashion(tmp_path, monkeypatch):
    """Files of the right form with 4 and 2 images, and their checksums."""
    rng = np.random.default_rng(0)
    files = {}
    for name, rows in (("train", 4), ("t10k", 2)):
        files[f"{name}-images-idx3-ubyte"] = bytes(16) + rng.bytes(784 * rows)
        files[f"{name}-labels-idx1-ubyte"] = bytes(8) + bytes(range(rows))
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(fashion_mnist, "CHECKSUMS", sums)
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "debian")
    monkeypatch.setenv("RVFL_JAX_CACHE", str(tmp_path / "cache"))
    return {name: gzip.compress(content) for name, content in files.items()}


def check_tiny(data):
    assert data.X_train.shape == (4, 784)
    assert data.y_train.tolist() == [0, 1, 2, 3]
    assert data.y_test.tolist() == [0, 1]
    assert data.X_train.max() <= 1


def test_fashion_from_debians_folder(tiny_fashion, tmp_path):
    (tmp_path / "debian").mkdir()
    for name, packed in tiny_fashion.items():
        (tmp_path / "debian" / f"{name}.gz").write_bytes(packed)
    check_tiny(load_dataset("fashion-mnist"))


def test_fashion_is_downloaded_once(tiny_fashion, tmp_path, monkeypatch):
    asked = []

    def urlopen(url, timeout):
        asked.append(url)
        return io.BytesIO(tiny_fashion[url.rsplit("/", 1)[1].removesuffix(".gz")])

    monkeypatch.setattr(fashion_mnist, "urlopen", urlopen)
    check_tiny(load_dataset("fashion-mnist"))
    check_tiny(load_dataset("fashion-mnist"))
    assert len(asked) == 4
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_fashion_offline(tiny_fashion, monkeypatch):
    def urlopen(url, timeout):
        raise URLError("no network")

    monkeypatch.setattr(fashion_mnist, "urlopen", urlopen)
    with pytest.raises(ValueError, match=r"cannot be reached.*no network.*dataset-fashion-mnist"):
        load_dataset("fashion-mnist")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda packed: packed[:-20], "is damaged"),
        (lambda packed: b"nothing", "is damaged"),
        (lambda packed: gzip.compress(b"something else"), "expected SHA-256"),
    ],
)
def test_fashion_files_are_checked(tiny_fashion, tmp_path, spoil, message):
    (tmp_path / "debian").mkdir()
    for name, packed in tiny_fashion.items():
        (tmp_path / "debian" / f"{name}.gz").write_bytes(spoil(packed))
    with pytest.raises(ValueError, match=message):
        load_dataset("fashion-mnist")


def test_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("RVFL_JAX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fashion_mnist.cache_folder() == tmp_path / "rvfl_jax"


@pytest.mark.slow
@pytest.mark.skipif(not fashion_mnist.DEBIAN_FOLDER.is_dir(), reason="Debian's package is absent")
def test_the_real_fashion_mnist():
    data = load_dataset("fashion-mnist")
    assert data.X_train.shape == (60_000, 784)
    assert np.bincount(data.y_test).tolist() == [1000] * 10
