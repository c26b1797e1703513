"""Whether the hub of pretrained models can be reached; where it cannot, nobody waits for it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from urllib.error import HTTPError
from urllib.request import urlopen

WAIT_S = 5.0
_SWITCH = "HF_HUB_OFFLINE"


@contextmanager
def downloads_or_cache() -> Iterator[None]:
    """Without a hub its packages look into their cache alone, at once, in place of trying again.

    Raises:
        ValueError: in place of any other error inside, if there is no hub.
    """
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get(_SWITCH) or reachable(address):
        yield
        return
    os.environ[_SWITCH] = "1"
    _set_constant(True)
    try:
        yield
    except (ImportError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise ValueError(f"{error} ({address} cannot be reached)") from None
    finally:
        del os.environ[_SWITCH]
        _set_constant(False)


def reachable(address: str) -> bool:
    """Whether anything answers there within a few seconds, through a proxy where there is one."""
    answered = Event()

    def ask() -> None:
        try:
            urlopen(address, timeout=WAIT_S).close()
        except HTTPError:
            pass
        except (OSError, ValueError):
            return
        answered.set()

    # A thread, as looking up a name knows no limit.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(WAIT_S)
    return answered.is_set()


def _set_constant(value: bool) -> None:
    # Packages that are imported have read the environment.
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        setattr(constants, _SWITCH, value)
