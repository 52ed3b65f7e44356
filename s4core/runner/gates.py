"""The two gates after the entitlement: the GPU gives back every bit, the store every byte."""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from s4core.errors import AccessDeniedError, S4Error, StoreUnavailableError
from s4core.runner.exits import ConfigurationError, SelfTestError, UnreachableError
from s4core.runner.objects import parse_object
from s4core.stores import Store, open_store

__all__ = ["check_store", "default_self_test", "self_test"]

logger = logging.getLogger(__name__)

# Kernels are compiled at the first run on a new image.
SELF_TEST_SECONDS = 300.0
# A new role or bucket policy can take minutes to hold everywhere.
STORE_SECONDS = 300.0
STORE_WAIT_SECONDS = 10.0
PROBE_BYTES = 1024
# A writer that was killed can have left parts of an upload, which cost money and show
# nowhere. Younger ones may belong to a writer that lives.
UNFINISHED_SECONDS = 24 * 3600.0


def default_self_test() -> tuple[str, ...]:
    """The built-in GPU self-test, in a process of its own: it imports torch."""
    isolated = ("-I",) if sys.flags.isolated else ()
    return (sys.executable, *isolated, "-m", "s4core.selftest", "--json", "--require-gpu")


def self_test(command: Sequence[str], seconds: float = SELF_TEST_SECONDS) -> str:
    """Run the GPU self-test and give one line about what it found.

    Args:
        command: Exits with 0 when every bit came back; its last line is a JSON object.
        seconds: After which it is killed.

    Raises:
        SelfTestError: It failed, hung, or could not be started.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SelfTestError(f"GPU self-test: no result after {seconds:g} s") from error
    except OSError as error:
        raise SelfTestError(f"GPU self-test: {command[0]} cannot be run: {error}") from error
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        said = (last or done.stderr.strip()[-300:]) or "no output"
        raise SelfTestError(f"GPU self-test failed with code {done.returncode}: {said[:500]}")
    try:
        parse_object(last)
    except ValueError as error:
        raise SelfTestError(
            f"GPU self-test: expected a JSON object as its last line, found {last[:200]!r}"
        ) from error
    return last[:500]


def check_store(
    url: str,
    tell: Callable[[str], None],
    *,
    seconds: float = STORE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write, read and delete a probe, until that works or the deadline; sweep what is unfinished.

    Args:
        url: Of the store.
        tell: Gets the reason of each failure.
        seconds: After which no other try begins.
        sleep: Waits between tries.
        clock: Seconds, monotonic.

    Raises:
        UnreachableError: The store did not answer until the deadline.
        ConfigurationError: The URL is wrong, or the store refuses, also at the deadline.
    """
    end = clock() + seconds
    try:
        store = open_store(url)
    except S4Error as error:
        raise ConfigurationError(f"S4_STORE: {error}") from error
    while True:
        try:
            _probe(store)
            return _sweep(store)
        except S4Error as error:
            tell(f"store check: {error}")
            if clock() + STORE_WAIT_SECONDS >= end:
                kind = UnreachableError if isinstance(error, StoreUnavailableError) else None
                raise (kind or ConfigurationError)(f"store check: {error}") from error
        sleep(STORE_WAIT_SECONDS)


def _probe(store: Store) -> None:
    key = f".s4/probes/{secrets.token_hex(16)}"
    written = secrets.token_bytes(PROBE_BYTES)
    store.put(key, written)
    try:
        found = store.get(key)
    finally:
        store.delete([key])
    if found != written:
        raise ConfigurationError(f"{store.url_of(key)}: what was read is not what was written")


def _sweep(store: Store) -> None:
    """End what killed writers left unfinished; not being allowed to is no reason to stop."""
    try:
        ended = store.sweep_unfinished(UNFINISHED_SECONDS)
    except AccessDeniedError as error:
        logger.warning("unfinished uploads stay until the bucket's lifecycle ends them: %s", error)
    else:
        logger.info("unfinished uploads ended: %d", ended)
