"""Whether this machine may run the product: one check, three modes, fail closed.

The mode comes from the image (`image`), never from the customer. Every mode is an
`Entitlement`: its `ask` gives a `Grant` or raises, and nothing but a `Grant` opens
anything. `entitled` asks until a deadline.

Exit codes: 77 the answer was no or not to be trusted, 75 there was no answer until the
deadline, 78 the image's settings are wrong.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from s4core.runner.exits import UnreachableError
from s4core.runner.grant import Entitlement, Grant
from s4core.runner.image import ImageSettings
from s4core.runner.imds import Imds
from s4core.runner.instance_identity import InstanceIdentity
from s4core.runner.meter_usage import MeterUsage
from s4core.runner.metering_api import AwsMeteringApi, MeteringApi
from s4core.runner.register_usage import KeptAnswer, RegisterUsage

__all__ = ["DEADLINE_SECONDS", "entitled", "entitlement_of"]

logger = logging.getLogger(__name__)

# Long enough for a role's credentials to appear after boot (seconds) and for a throttled
# call to get through; three of them fit the unit's start limit.
DEADLINE_SECONDS = 90.0
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def entitlement_of(
    image: ImageSettings,
    directory: Path | None,
    *,
    imds: Imds | None = None,
    api: MeteringApi | None = None,
    boot_id: str | None = None,
) -> Entitlement:
    """The check that `image` asks for.

    Args:
        image: The product's settings.
        directory: Where a signed answer is kept for the rest of the boot; None for nowhere.
        imds: A stand-in for the metadata service; production code never gives it.
        api: A stand-in for the metering service; production code never gives it.
        boot_id: A stand-in for the kernel's; production code never gives it.
    """
    imds = imds or Imds()
    api = api or AwsMeteringApi(imds)
    if image.mode == "meter-usage":
        return MeterUsage(image, api)
    if image.mode == "instance-identity":
        return InstanceIdentity(image, imds)
    kept = KeptAnswer(directory / "entitlement.answer") if directory else None
    return RegisterUsage(image, api, boot_id or BOOT_ID.read_text().strip(), kept)


def entitled(
    entitlement: Entitlement,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Grant:
    """Ask until there is an answer, or the deadline.

    Args:
        entitlement: What is asked.
        deadline_seconds: After which no other try begins.
        sleep: Waits between tries; grows from half a second to ten, with jitter.
        clock: Seconds, monotonic.

    Raises:
        DeniedError: At once, at the first no.
        UnreachableError: There was no answer until the deadline.
        ConfigurationError: The image's settings are wrong.
    """
    end = clock() + deadline_seconds
    wait = FIRST_WAIT_SECONDS
    tries = 0
    while True:
        tries += 1
        try:
            return entitlement.ask()
        except UnreachableError as error:
            # Jitter, so that a fleet that booted together does not come back together.
            pause = wait * random.uniform(0.5, 1.5)
            if clock() + pause >= end:
                raise UnreachableError(
                    f"entitlement: no answer after {tries} tries in {deadline_seconds:g} s; the "
                    f"last: {error}"
                ) from error
            logger.info("entitlement: try %d: %s; next try in %.1f s", tries, error, pause)
        sleep(pause)
        wait = min(wait * 2, LONGEST_WAIT_SECONDS)
