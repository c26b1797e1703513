"""How many programs a piece of code makes, those from a cache included."""

from contextlib import contextmanager

from jax import monitoring

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def counted_compilations():
    """A list with one entry for each program made inside the block so far."""
    made = []

    def listen(event, duration_secs, **_):
        if event == COMPILED:
            made.append(duration_secs)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield made
    finally:
        monitoring.unregister_event_duration_listener(listen)
