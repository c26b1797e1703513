"""Images to feature files: what is read, what a killed job keeps, what is refused."""

import importlib.util
import io
import os
import sys
import time
import warnings
from urllib.error import HTTPError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rvfl_jax import encoders
from rvfl_jax.cli import main as cli
from rvfl_jax.data import load_dataset
from rvfl_jax.data.tables import read_parts
from rvfl_jax.encoders import hub
from rvfl_jax.encoders.embedding import fingerprint_of


@pytest.fixture
def arrays(tmp_path):
    """An .npz of 13 training and 5 test images of 32 x 32 in two classes."""
    rng = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    np.savez(
        path,
        X_train=rng.integers(0, 256, (13, 32, 32, 3), np.uint8),
        y_train=np.arange(13) % 2,
        X_test=rng.integers(0, 256, (5, 32, 32, 3), np.uint8),
        y_test=np.arange(5) % 2,
    )
    return path


def counting_model(fail_after=None, fingerprint="model"):
    """Mean colour of each image; says how many images it was given."""
    seen = []

    def embed(images):
        if fail_after is not None and len(seen) >= fail_after:
            raise KeyboardInterrupt
        seen.extend(images)
        return np.stack([image.mean(axis=(0, 1)) for image in images])

    return encoders.ImageModel(embed, "mean colour", fingerprint), seen


def test_features_come_in_the_order_of_the_images(arrays, tmp_path):
    out = tmp_path / "features.npz"
    model, _ = counting_model()
    assert encoders.embed_images(model, encoders.open_images(arrays), out, batch_size=4)
    data = load_dataset(str(out))
    with np.load(arrays) as file:
        np.testing.assert_allclose(data.X_train, file["X_train"].mean(axis=(1, 2)), rtol=1e-6)
        np.testing.assert_allclose(data.X_test, file["X_test"].mean(axis=(1, 2)), rtol=1e-6)
        np.testing.assert_array_equal(data.y_train, file["y_train"])
    with np.load(out) as file:
        assert str(file["encoder"]) == "mean colour"


def test_a_killed_job_goes_on_where_it_was(arrays, tmp_path):
    out, images = tmp_path / "features.npz", encoders.open_images(arrays)
    killed, seen = counting_model(fail_after=8)
    with pytest.raises(KeyboardInterrupt):
        encoders.embed_images(killed, images, out, batch_size=4)
    assert not out.exists()
    assert len(seen) == 8
    model, rest = counting_model()
    encoders.embed_images(model, images, out, batch_size=4)
    assert len(rest) == 18 - 8
    whole, _ = counting_model()
    other = tmp_path / "other.npz"
    encoders.embed_images(whole, images, other, batch_size=4)
    with np.load(out) as one, np.load(other) as two:
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_complete_file_is_left_alone_and_another_model_replaces_it(arrays, tmp_path):
    out, images = tmp_path / "features.npz", encoders.open_images(arrays)
    encoders.embed_images(counting_model()[0], images, out)
    again, seen = counting_model()
    assert not encoders.embed_images(again, images, out)
    assert seen == []
    other, seen = counting_model(fingerprint="another")
    mark = fingerprint_of(out)
    assert encoders.embed_images(other, images, out)
    assert len(seen) == 18
    assert fingerprint_of(out) != mark


def test_progress_is_told(arrays, tmp_path):
    told = []
    encoders.embed_images(
        counting_model()[0],
        encoders.open_images(arrays),
        tmp_path / "features.npz",
        batch_size=7,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(7, 18), (14, 18), (18, 18)]


def test_folders_name_classes(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("cat", 3), ("dog", 2)):
        (tmp_path / name).mkdir()
        for i in range(count):
            pixels = rng.integers(0, 256, (6, 5, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "dog" / "grey.png")
    images = encoders.open_images(tmp_path)
    assert images.labels.tolist() == ["cat"] * 3 + ["dog"] * 3
    assert [image.shape for image in images.read(range(4, 6))] == [(6, 5, 3), (4, 4, 3)]
    before = images.fingerprint
    (tmp_path / "cat" / "0.png").unlink()
    assert encoders.open_images(tmp_path).fingerprint != before


def test_split_folders(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "one").mkdir(parents=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / split / "one" / "a.jpg")
    assert encoders.open_images(tmp_path).split.tolist() == ["train", "test"]


def test_unusable_images_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"a folder or an \.npz"):
        encoders.open_images(tmp_path / "none")
    with pytest.raises(ValueError, match="expected images or class folders"):
        encoders.open_images(tmp_path)
    path = tmp_path / "images.npz"
    for arrays, message in (
        ({"X_train": np.zeros((2, 4, 4), np.uint8)}, "missing y_train, X_test, y_test"),
        ({"X": np.zeros((2, 4, 4)), "y": np.arange(2)}, "uint8"),
        ({"X": np.zeros((2, 4, 4, 2), np.uint8), "y": np.arange(2)}, "uint8"),
        ({"X": np.zeros((2, 4, 4), np.uint8), "y": np.arange(3)}, "expected 2 labels"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=message):
            encoders.open_images(path)
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match="readable"):
        encoders.open_images(path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"broken\.png cannot be read"):
        encoders.open_images(tmp_path).read(range(1))


def test_features_that_are_no_numbers_are_refused(arrays, tmp_path):
    out = tmp_path / "features.npz"
    broken = encoders.ImageModel(lambda images: np.full((len(images), 2), np.nan), "", "")
    with pytest.raises(ValueError, match="finite features"):
        encoders.embed_images(broken, encoders.open_images(arrays), out)
    assert not out.exists()
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        encoders.embed_images(broken, encoders.open_images(arrays), tmp_path / "features.csv")


def test_unknown_models_are_named(capsys, arrays, tmp_path):
    for name in ("vit", "torch:vit", "timm:"):
        with pytest.raises(ValueError, match="timm:NAME, hf:NAME or resnet56:FILE"):
            encoders.load_image_model(name)
    status = cli.main(
        ["embed", "--model", "vit", "--images", str(arrays), "--out", str(tmp_path / "f.npz")]
    )
    assert status == 2
    assert capsys.readouterr().err.startswith("rvfl-jax: model: expected")


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_a_missing_package_is_one_line():
    with pytest.raises(ValueError, match=r"pip install 'rvfl-jax\[embed\]'"):
        encoders.load_image_model("timm:resnet10t")


@pytest.mark.slow
def test_command_embeds_with_resnet56(capsys, arrays, tmp_path):
    network = encoders.ResNet(56, num_classes=0)
    x = jnp.zeros((1, 32, 32, 3))
    checkpoint, out = tmp_path / "resnet.npz", tmp_path / "features.npz"
    encoders.save_checkpoint(checkpoint, jax.jit(network.init)(jax.random.key(0), x))
    command = ["embed", "--model", f"resnet56:{checkpoint}", "--images", str(arrays)]
    command += ["--out", str(out), "--quiet", "--batch-size", "9"]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith("Wrote features of 18 images, resnet-56")
    assert load_dataset(str(out)).X_train.shape == (13, 64)
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith("Nothing to do")


@pytest.mark.slow
def test_small_timm_model(arrays, tmp_path):
    """Runs where the extra "embed" is installed."""
    pytest.importorskip("timm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = encoders.load_image_model("timm:resnet10t", random_weights=True)
        again = encoders.load_image_model("timm:resnet10t", random_weights=True)
        out = tmp_path / "features.npz"
        encoders.embed_images(model, encoders.open_images(arrays), out)
    assert model.fingerprint == again.fingerprint
    assert load_dataset(str(out)).X_train.shape == (13, 512)
    with pytest.raises(ValueError, match="timm has no"):
        encoders.load_image_model("timm:no_such_model", random_weights=True)


@pytest.mark.slow
def test_small_hugging_face_model(arrays, tmp_path):
    """Runs where the extra "embed" is installed."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.ViTConfig(
            hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
            image_size=32, patch_size=8,
        )  # fmt: skip
        folder = tmp_path / "vit"
        transformers.ViTModel(config).save_pretrained(folder)
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
        model = encoders.load_image_model(f"hf:{folder}")
        out = tmp_path / "features.npz"
        encoders.embed_images(model, encoders.open_images(arrays), out)
    assert load_dataset(str(out)).X_train.shape == (13, 24)


def pictures(folder, names):
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).save(folder / name)


def test_new_images_need_no_class_folders(tmp_path):
    pictures(tmp_path / "new", ["b.png", "A.PNG", "ü.jpg"])
    (tmp_path / "new" / "notes.txt").write_text("no image")
    images = encoders.open_images(tmp_path / "new")
    assert images.labels is None
    out = tmp_path / "f.npz"
    assert encoders.embed_images(counting_model()[0], images, out, batch_size=2)
    with np.load(out) as file:
        assert set(file.files) == {"X", "files", "fingerprint", "encoder"}
        assert file["files"].tolist() == ["A.PNG", "b.png", "ü.jpg"]
        expected = [
            np.asarray(Image.open(tmp_path / "new" / f)).mean((0, 1)) for f in file["files"]
        ]
        np.testing.assert_allclose(file["X"], expected, rtol=1e-6)
    (part,) = read_parts(str(out), rows=9)
    assert part.X.shape == (3, 3)
    with pytest.raises(ValueError, match=r"f\.npz: expected arrays X and y"):
        load_dataset(str(out))


def test_files_are_named_by_class_and_split(tmp_path):
    pictures(tmp_path, ["train/cat/1.png", "train/dog/x/2.png", "test/cat/3.png"])
    out = tmp_path / "f.npz"
    encoders.embed_images(counting_model()[0], encoders.open_images(tmp_path), out)
    with np.load(out) as file:
        assert file["files_train"].tolist() == ["train/cat/1.png", "train/dog/x/2.png"]
        assert file["files_test"].tolist() == ["test/cat/3.png"]
    assert load_dataset(str(out)).y_train.tolist() == ["cat", "dog"]


def test_new_images_as_an_array(tmp_path):
    with (tmp_path / "images.NPZ").open("wb") as file:
        np.savez(file, X=np.zeros((3, 4, 4), np.uint8))
    images = encoders.open_images(tmp_path / "images.NPZ")
    assert images.labels is None
    assert encoders.embed_images(counting_model()[0], images, tmp_path / "f.npz")
    with np.load(tmp_path / "f.npz") as file:
        assert {"X"} == {name for name in file.files if name[0] in "Xyf" and name != "fingerprint"}


@pytest.mark.parametrize("names", [["cat/1.png", "2.png"], ["train/cat/1.png", "test/2.png"]])
def test_images_beside_class_folders_are_not_passed_over(tmp_path, names):
    pictures(tmp_path, names)
    with pytest.raises(ValueError, match=rf"got {names[1]} beside folders"):
        encoders.open_images(tmp_path)


@pytest.mark.parametrize("out", ["f.csv", "file/f.npz", "folder.npz"])
def test_where_features_cannot_go_is_told_at_once(arrays, tmp_path, monkeypatch, capsys, out):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.npz").mkdir()
    monkeypatch.setattr(encoders, "load_image_model", None)
    command = ["embed", "--model", "timm:x", "--images", str(arrays), "--out", str(tmp_path / out)]
    assert cli.main(command) == 2
    assert capsys.readouterr().err.startswith("rvfl-jax: out: expected a f")


class Offline:
    """timm or transformers where no hub is to be reached: patient, unless told to be offline."""

    def __init__(self):
        self.__spec__ = None
        self.AutoImageProcessor = self.AutoConfig = self.AutoModel = self

    def create_model(self, name, pretrained, num_classes):
        if pretrained:
            self.from_pretrained(name)
        raise RuntimeError(f"Unknown model ({name})")

    def from_pretrained(self, name):
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        raise ConnectionError("offline mode is enabled\nand so on")


@pytest.mark.parametrize("source", ["timm", "hf"])
def test_without_a_network_one_line_comes_at_once(arrays, tmp_path, monkeypatch, capsys, source):
    for name in ("timm", "transformers", "torch"):
        module = Offline()
        module.manual_seed = lambda seed: None
        monkeypatch.setitem(sys.modules, name, module)
    # Nothing listens there.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    command = ["embed", "--model", f"{source}:resnet10t", "--images", str(arrays)]
    command += ["--out", str(tmp_path / "f.npz"), "--quiet"]
    begun = time.monotonic()
    assert cli.main(command) == 2
    assert time.monotonic() - begun < 5
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'resnet10t' to load: offline mode is enabled" in said
    assert "(http://127.0.0.1:9 cannot be reached)" in said
    assert ("--random-weights" in said) == (source == "timm")
    assert "HF_HUB_OFFLINE" not in os.environ
    if source == "timm":
        assert cli.main([*command, "--random-weights"]) == 2
        said = capsys.readouterr().err
        assert (
            said == "rvfl-jax: model: timm has no 'resnet10t' to load: Unknown model (resnet10t)\n"
        )


def test_who_has_asked_to_be_offline_is(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub, "reachable", None)
    with hub.downloads_or_cache():
        assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_package_that_does_not_fit_is_one_line(tmp_path, monkeypatch):
    """torchvision built for another torch raises a RuntimeError where it is imported."""
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ValueError, match="timm cannot be imported: operator nms does not exist"):
        encoders.load_image_model("timm:x", random_weights=True)


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hub, "WAIT_S", 0.1)
    monkeypatch.setattr(hub, "urlopen", lambda *_, **__: time.sleep(1) or io.BytesIO())
    begun = time.monotonic()
    assert not hub.reachable("http://nowhere")
    assert time.monotonic() - begun < 0.9


@pytest.mark.parametrize("status", [200, 403])
def test_any_answer_of_a_hub_will_do(monkeypatch, status):
    def urlopen(address, timeout):
        if status == 200:
            return io.BytesIO()
        raise HTTPError(address, status, "no", {}, None)

    monkeypatch.setattr(hub, "urlopen", urlopen)
    assert hub.reachable("http://somewhere")
