"""Feature extractors F in front of a learner, frozen before the stream begins.

Each is an `Encoder(fit, apply, description)`; `encode_stream` puts one in front of a stream,
`leak_guard` proves that no test row's prediction depends on the others.

```python
import jax
import rvfl_jax
from rvfl_jax import encoders
from rvfl_jax.data import load_dataset

data = load_dataset("digits")
stream = rvfl_jax.class_incremental_stream(
    data.X_train, data.y_train, num_tasks=5, num_batches=50, seed=0
)
encoder = encoders.random_patches((8, 8), 64, patch_size=4, pooling=2)
encoded = encoders.encode_stream(encoder, stream, key=jax.random.key(0), fit_on="first_batch")
learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=64, ridge=10.0, k=0.0)
test = (encoded.encode_test(data.X_test), data.y_test)
run = rvfl_jax.run_stream(learner, encoded.stream, key=jax.random.key(0), test=test)
encoders.leak_guard(lambda X: learner.predict(run.state, encoded.encode_test(X)), data.X_test)
print(rvfl_jax.metrics.average_accuracy(run.history.R["class_incremental"]))
```

An encoder is fitted before the stream begins, without labels, and frozen; `fit_on` says on what:
the first batch (which a task-free learner has at hand), the first task, or all training inputs.
`leak_guard` permutes, mixes and splits the test rows and fails if any prediction changes.

- `random_patches`: whitened patches of the fitted images as filters, rectified and pooled.
- `sparse_autoencoder`: the encoder of the paper, with the constants of its predecessor's public
  code. `protocol="refit_per_task"` does as that code does and fits it anew on each task, *test rows
  included*: so 98 % on Fashion-MNIST come about, it warns, and the guard fails.
- `resnet`: ResNet-56 in flax from a checkpoint; `python -m experiments.train_resnet` trains one.
- `rvfl-jax embed --model timm:NAME --images FOLDER --out features.npz`: any timm or Hugging Face
  image model (`pip install -e ".[embed]"`), block by block, so that a killed job goes on. FOLDER has a folder for
  each class, or only new images, whose names are kept as `files`.
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
