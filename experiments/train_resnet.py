"""Train ResNet-56 on labelled images: `python -m experiments.train_resnet --images FILE`.

The paper puts a ResNet-56 that was trained on CIFAR-100 in front of CIFAR-100 streams. A
network trained with labels of the stream's classes has learned what the stream is to teach, so
results on its features are optimistic; train it on other classes for honest ones.

The recipe is that of He et al. (2016), section 4.2: SGD with momentum 0.9 and weight decay 1e-4,
a learning rate of 0.1 cut tenfold after half and three quarters of the epochs, random shifts of
up to 4 pixels and mirror images. One epoch of 50,000 images takes about a quarter of an hour on 2
cores; an accelerator does all 200 in about an hour.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from rvfl_jax.core.progress import track
from rvfl_jax.encoders import ResNet, save_checkpoint
from rvfl_jax.encoders.resnet import CIFAR_DEVIATION, CIFAR_MEAN


@dataclass(frozen=True)
class Config:
    """What to train, and on what.

    Attributes:
        images: .npz with X_train (n, 32, 32, 3) uint8 and y_train, columns from 0 on.
        out: checkpoint to write after every epoch.
        depth: 6 n + 2.
        epochs: passes over the images.
        batch_size: images a step.
        learning_rate: of the first half.
        classes: train on images of classes below this only; all when None.
        seed: of weights, order and augmentation.
    """

    images: Path
    out: Path = Path("resnet56.npz")
    depth: int = 56
    epochs: int = 200
    batch_size: int = 128
    learning_rate: float = 0.1
    classes: int | None = None
    seed: int = 0


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes."""

    params: Any
    batch_stats: Any
    optimiser: Any


def optimiser_for(config: Config, steps: int) -> optax.GradientTransformation:
    """SGD with momentum, weight decay on kernels, and the two cuts of the learning rate."""
    schedule = optax.piecewise_constant_schedule(
        config.learning_rate, {steps // 2: 0.1, 3 * steps // 4: 0.1}
    )
    kernels = partial(jax.tree.map, lambda leaf: leaf.ndim > 1)
    return optax.chain(
        optax.add_decayed_weights(1e-4, mask=kernels),
        optax.sgd(schedule, momentum=0.9, nesterov=True),
    )


def augmented(key: Any, images: Any) -> Any:
    """Each image shifted by up to 4 pixels and mirrored half of the time."""
    n, height, width, _ = images.shape
    shift_key, mirror_key = jax.random.split(key)
    padded = jnp.pad(images, [(0, 0), (4, 4), (4, 4), (0, 0)], mode="reflect")
    corners = jax.random.randint(shift_key, (n, 2), 0, 9)

    def cut(image: Any, corner: Any) -> Any:
        return jax.lax.dynamic_slice(image, (*corner, 0), (height, width, image.shape[-1]))

    shifted = jax.vmap(cut)(padded, corners)
    mirrored = jax.random.bernoulli(mirror_key, shape=(n, 1, 1, 1))
    return jnp.where(mirrored, shifted[:, :, ::-1], shifted)


def standardised(images: Any) -> Any:
    """uint8 images as the encoder sees them."""
    scaled = jnp.asarray(images, jnp.float32) / 255
    return (scaled - jnp.asarray(CIFAR_MEAN)) / jnp.asarray(CIFAR_DEVIATION)


def make_step(network: ResNet, optimiser: optax.GradientTransformation) -> Any:
    """`(state, key, images, labels) -> (state, loss, share of right answers)`, compiled."""

    def loss_of(params: Any, batch_stats: Any, x: Any, y: Any) -> Any:
        logits, changed = network.apply(
            {"params": params, "batch_stats": batch_stats}, x, train=True, mutable=["batch_stats"]
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return loss, (changed["batch_stats"], jnp.mean(logits.argmax(-1) == y))

    @partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, key: Any, images: Any, y: Any) -> Any:
        x = augmented(key, standardised(images))
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (stats, right)), slope = gradient(state.params, state.batch_stats, x, y)
        updates, inner = optimiser.update(slope, state.optimiser, state.params)
        return TrainState(optax.apply_updates(state.params, updates), stats, inner), loss, right

    return step


def batches(rng: np.random.Generator, rows: int, size: int) -> Iterator[np.ndarray]:
    """Row numbers of an epoch, whole batches only."""
    order = rng.permutation(rows)
    yield from np.split(order[: rows - rows % size], rows // size)


def main(config: Config) -> None:
    """Train and write a checkpoint after every epoch."""
    with np.load(config.images) as file:
        X, y = file["X_train"], file["y_train"].astype(np.int32)
    if config.classes is not None:
        X, y = X[y < config.classes], y[y < config.classes]
    size = min(config.batch_size, len(X))
    network = ResNet(config.depth, num_classes=int(y.max()) + 1)
    key, rng = jax.random.key(config.seed), np.random.default_rng(config.seed)
    variables = jax.jit(network.init)(key, standardised(X[:1]))
    per_epoch = len(X) // size
    optimiser = optimiser_for(config, config.epochs * per_epoch)
    params = variables["params"]
    state = TrainState(params, variables["batch_stats"], optimiser.init(params))
    step = make_step(network, optimiser)
    for epoch in range(config.epochs):
        losses, right = [], []
        with track(per_epoch, True, f"epoch {epoch + 1} of {config.epochs}") as advance:
            for done, rows in enumerate(batches(rng, len(X), size), start=1):
                key, own = jax.random.split(key)
                state, loss, share = step(state, own, X[rows], y[rows])
                losses.append(float(loss))
                right.append(float(share))
                advance(done)
        save_checkpoint(config.out, {"params": state.params, "batch_stats": state.batch_stats})
        print(
            f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, right {np.mean(right):.4f};"
            f" wrote {config.out}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main(tyro.cli(Config))
