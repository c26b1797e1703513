"""Pretrained image models by name; PyTorch comes with the extra "embed" and only here."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.words import in_brief
from rvfl_jax.encoders.encoder import encode
from rvfl_jax.encoders.hub import downloads_or_cache
from rvfl_jax.encoders.resnet import resnet

SOURCES = ("timm", "hf", "resnet56")
INSTALL = "pip install 'rvfl-jax[embed]'"
UNTRAINED = "; --random-weights (random_weights=True) needs no download"


@in_brief
class ImageModel(NamedTuple):
    """A frozen model of images.

    Attributes:
        embed: list of (h, w, 3) uint8 images to (n, width) float32 features.
        description: the model in words.
        fingerprint: SHA-256 of its weights and of how it prepares images.
    """

    embed: Callable[[Sequence[np.ndarray]], np.ndarray]
    description: str
    fingerprint: str


def load_image_model(name: str, *, random_weights: bool = False) -> ImageModel:
    """A model by name: "timm:NAME", "hf:NAME", or "resnet56:FILE.npz" of `save_checkpoint`.

    A Hugging Face name may be a folder that holds a saved model. A timm model gives its
    pooled features, a Hugging Face model its pooled output, or its first token where it has
    none.

    Args:
        name: source and model.
        random_weights: draw weights with seed 0 instead of loading trained ones; for tests.

    Raises:
        ValueError: on an unknown source or model, if its package is not installed, or if it was
            not downloaded before and cannot be now.
    """
    source, _, model = name.partition(":")
    if source not in SOURCES or not model:
        raise ValueError(f"model: expected timm:NAME, hf:NAME or resnet56:FILE, got {name!r}")
    if source == "resnet56":
        return _resnet56(Path(model))
    load = _timm if source == "timm" else _hugging_face
    needs_hub = not Path(model).is_dir() and not (source == "timm" and random_weights)
    try:
        with downloads_or_cache() if needs_hub else nullcontext():
            return load(model, random_weights)
    except ImportError as error:
        raise ValueError(f"model: {name} needs more packages ({error}); {INSTALL}") from None


def _resnet56(path: Path) -> ImageModel:
    encoder = resnet(path)
    params = encoder.fit(None, None)  # type: ignore[arg-type]

    def embed(images: Sequence[np.ndarray]) -> np.ndarray:
        shapes = {image.shape for image in images}
        if shapes != {(32, 32, 3)}:
            raise ValueError(f"resnet56: expected images of 32 x 32 x 3, got {sorted(shapes)}")
        rows = np.stack(images).reshape(len(images), -1).astype(np.float32) / 255
        return encode(encoder, params, rows)

    return ImageModel(embed, encoder.description, hashlib.sha256(path.read_bytes()).hexdigest())


@contextmanager
def _named(what: str, remedy: str) -> Iterator[None]:
    """Whatever loading raises becomes one line, but for packages that are not installed."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        # Of an HTTP client, say, which the packages have changed before.
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"model: {what}: {why}{remedy}") from None


def _timm(name: str, random_weights: bool) -> ImageModel:
    with _named("timm cannot be imported", ""):
        import timm
        import torch
    from PIL import Image

    torch.manual_seed(0)
    with _named(f"timm has no {name!r} to load", "" if random_weights else UNTRAINED):
        model = timm.create_model(name, pretrained=not random_weights, num_classes=0)
    model.eval()
    settings = timm.data.resolve_model_data_config(model)
    prepare = timm.data.create_transform(**settings, is_training=False)

    def embed(images: Sequence[np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            batch = torch.stack([prepare(Image.fromarray(image)) for image in images])
            return model(batch).float().numpy()

    described = f"timm:{name}" + (" with random weights" if random_weights else "")
    return ImageModel(embed, described, _fingerprint(model, settings))


def _hugging_face(name: str, random_weights: bool) -> ImageModel:
    with _named("transformers cannot be imported", ""):
        import torch
        import transformers
    from PIL import Image

    torch.manual_seed(0)
    with _named(f"no image model {name!r} to load", ""):
        prepare = transformers.AutoImageProcessor.from_pretrained(name)
        if random_weights:
            config = transformers.AutoConfig.from_pretrained(name)
            model = transformers.AutoModel.from_config(config)
        else:
            model = transformers.AutoModel.from_pretrained(name)
    model.eval()

    def embed(images: Sequence[np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            inputs = prepare([Image.fromarray(image) for image in images], return_tensors="pt")
            outputs = model(**inputs)
            pooled = getattr(outputs, "pooler_output", None)
            features = outputs.last_hidden_state[:, 0] if pooled is None else pooled
            return features.flatten(1).float().numpy()

    described = f"hf:{name}" + (" with random weights" if random_weights else "")
    return ImageModel(embed, described, _fingerprint(model, prepare.to_dict()))


def _fingerprint(model: Any, settings: Any) -> str:
    digest = hashlib.sha256(repr(sorted(settings.items(), key=str)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        content = io.BytesIO()
        np.save(content, tensor.cpu().numpy())
        digest.update(name.encode() + content.getvalue())
    return digest.hexdigest()
