"""Feature extractors F in front of a learner, frozen before the stream begins.

Each is an `Encoder(fit, apply, description)`; `encode_stream` puts one in front of a stream,
`leak_guard` proves that no test row's prediction depends on the others.
"""

from rvfl_jax.encoders.embedding import embed_images
from rvfl_jax.encoders.encoder import Encoder, encode
from rvfl_jax.encoders.image_models import ImageModel, load_image_model
from rvfl_jax.encoders.images import open_images
from rvfl_jax.encoders.leak_guard import LeakError, leak_guard
from rvfl_jax.encoders.protocol import EncodedStream, LeakWarning, encode_stream
from rvfl_jax.encoders.random_patches import random_patches
from rvfl_jax.encoders.resnet import ResNet, load_checkpoint, resnet, save_checkpoint
from rvfl_jax.encoders.sparse_autoencoder import sparse_autoencoder

__all__ = [
    "EncodedStream",
    "Encoder",
    "ImageModel",
    "LeakError",
    "LeakWarning",
    "ResNet",
    "embed_images",
    "encode",
    "encode_stream",
    "leak_guard",
    "load_checkpoint",
    "load_image_model",
    "open_images",
    "random_patches",
    "resnet",
    "save_checkpoint",
    "sparse_autoencoder",
]
