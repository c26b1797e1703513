"""`python -m rvfl_jax` is `rvfl-jax`."""

import sys

from rvfl_jax.cli import main

sys.exit(main())
