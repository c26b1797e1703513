"""ResNet for images of 32 x 32 (depth 6 n + 2), in flax.

K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
section 4.2, with shortcuts without parameters (option A).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import Array
from rvfl_jax.encoders.encoder import Encoder
from rvfl_jax.files.npz import read_npz

WIDTHS = (16, 32, 64)
# Of the pixels of CIFAR-100's training images, scaled to 0 .. 1.
CIFAR_MEAN, CIFAR_DEVIATION = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """(n, h, w, c) to (n, h / stride, w / stride, width)."""
        shortcut = x[:, :: self.stride, :: self.stride]
        missing = self.width - x.shape[-1]
        shortcut = jnp.pad(shortcut, [(0, 0)] * 3 + [(missing // 2, missing - missing // 2)])
        x = nn.relu(_norm("norm1", train)(_conv(self.width, self.stride, "conv1")(x)))
        x = _norm("norm2", train)(_conv(self.width, 1, "conv2")(x))
        return nn.relu(x + shortcut)


class ResNet(nn.Module):
    """Depth 6 n + 2: three stages of n blocks, mean over places, and a linear head.

    Attributes:
        depth: 20, 32, 44, 56, 110, ...
        num_classes: outputs of the head; 0 for none, which gives the 64 features.
    """

    depth: int = 56
    num_classes: int = 100

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        """(n, h, w, c) standardised images to (n, num_classes) logits or (n, 64) features."""
        x = nn.relu(_norm("norm", train)(_conv(WIDTHS[0], 1, "conv")(x)))
        for stage, width in enumerate(WIDTHS):
            for number in range(_blocks(self.depth)):
                stride = 2 if stage > 0 and number == 0 else 1
                x = Block(width, stride, name=f"stage{stage + 1}_block{number + 1}")(x, train)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_classes, name="head")(x) if self.num_classes else x


def _blocks(depth: int) -> int:
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth: expected 6 n + 2 with n of at least 1, got {depth}")
    return blocks


def _conv(width: int, stride: int, name: str) -> nn.Conv:
    return nn.Conv(
        width,
        (3, 3),
        strides=stride,
        padding=1,
        use_bias=False,
        kernel_init=nn.initializers.he_normal(),
        name=name,
    )


def _norm(name: str, train: bool) -> nn.BatchNorm:
    return nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5, name=name)


def resnet(
    checkpoint: str | Path,
    *,
    depth: int = 56,
    image_shape: Sequence[int] = (32, 32, 3),
    mean: Sequence[float] = CIFAR_MEAN,
    deviation: Sequence[float] = CIFAR_DEVIATION,
) -> Encoder:
    """The 64 pooled features of a trained ResNet; ResNet-56 is the paper's for CIFAR-100.

    A network that was trained with labels of the stream's classes has seen what the stream is
    to teach: label results on its features as optimistic.

    Args:
        checkpoint: file that `save_checkpoint` wrote.
        depth: 6 n + 2, of the network in the file.
        image_shape: (height, width, channels) of a flattened row.
        mean: (channels,) subtracted from inputs scaled to 0 .. 1.
        deviation: (channels,) divided by.

    Raises:
        ValueError: if the file is missing, unreadable, or holds another network; lists every
            array that does not fit.
    """
    height, wide, channels = (positive_int("image_shape", side) for side in image_shape)
    network = ResNet(depth, num_classes=0)
    variables = load_checkpoint(checkpoint, depth=depth, image_shape=image_shape)
    centre, spread = np.asarray(mean, np.float32), np.asarray(deviation, np.float32)
    if centre.shape != (channels,) or spread.shape != (channels,) or not (spread > 0).all():
        raise ValueError(
            f"mean, deviation: expected {channels} numbers each, deviations greater than 0,"
            f" got {mean!r} and {deviation!r}"
        )

    def fit(key: Array, X: Any) -> Any:
        del key, X
        return variables

    def apply(params: Any, X: Any) -> Array:
        images = jnp.asarray(X, jnp.float32).reshape(-1, height, wide, channels)
        return jnp.asarray(network.apply(params, (images - centre) / spread))

    return Encoder(fit, apply, f"resnet-{depth} from {Path(checkpoint).name}")


def save_checkpoint(path: str | Path, variables: Any) -> None:
    """Write the variables of a `ResNet` as an .npz file of plain arrays."""
    flat = flatten_dict(jax.tree.map(np.asarray, variables), sep="/")
    with Path(path).open("wb") as file:
        np.savez(file, **flat)


def load_checkpoint(
    path: str | Path, *, depth: int = 56, image_shape: Sequence[int] = (32, 32, 3)
) -> Any:
    """Variables of a `ResNet` without its head, from a file that `save_checkpoint` wrote.

    Raises:
        ValueError: if the file is missing, unreadable, or holds another network.
    """
    try:
        flat = {name: a for name, a in read_npz(path).items() if "/head/" not in name}
    except ValueError as error:
        raise ValueError(f"checkpoint: {error}") from None
    network = ResNet(depth, num_classes=0)
    want = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, *image_shape)))
    shapes = {name: leaf.shape for name, leaf in flatten_dict(want, sep="/").items()}
    wrong = [
        f"{name}: expected {shapes.get(name, 'no such array')},"
        f" got {flat[name].shape if name in flat else 'none'}"
        for name in sorted(shapes.keys() | flat.keys())
        if name not in flat or name not in shapes or flat[name].shape != shapes[name]
    ]
    if wrong:
        raise ValueError(f"checkpoint: {path} is no resnet-{depth}:\n  " + "\n  ".join(wrong))
    return unflatten_dict(flat, sep="/")
