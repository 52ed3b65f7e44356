"""Mode ``meter-usage``: an hourly record of MeterUsage, accepted by AWS.

AWS takes one record for each dimension, hour and instance. The hour is the record's time
and the quantity is fixed in the image, so asking again in the same hour repeats the same
record and costs nothing. The answer is not signed: what protects it is TLS to an address
compiled in, with the machine's own certificate authorities.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from s4core.runner.exits import DeniedError
from s4core.runner.grant import Grant
from s4core.runner.image import ImageSettings
from s4core.runner.metering_api import MeteringApi

__all__ = ["MeterUsage"]

MODE = "meter-usage"
HOUR_SECONDS = 3600


class MeterUsage:
    """The mode.

    Args:
        image: Product code, dimension and quantity.
        api: Carries the call.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, image: ImageSettings, api: MeteringApi, clock: Callable[[], float] = time.time
    ) -> None:
        self._image = image
        self._api = api
        self._clock = clock

    def ask(self) -> Grant:
        """See `Entitlement.ask`."""
        now = self._clock()
        hour = int(now) // HOUR_SECONDS * HOUR_SECONDS
        return Grant(
            MODE,
            f"record {self._record(hour)} of hour {hour}",
            renew_seconds=hour + HOUR_SECONDS - now + 1,
        )

    def _record(self, hour: int) -> str:
        fields = {
            "ProductCode": self._image.product_code,
            "Timestamp": hour,
            "UsageDimension": self._image.usage_dimension,
            "UsageQuantity": self._image.usage_quantity,
            "DryRun": False,
        }
        try:
            record = self._api.call("MeterUsage", fields).get("MeteringRecordId")
        except DeniedError as error:
            if error.kind == "DuplicateRequestException":  # this hour is paid for
                return "accepted before"
            raise
        if not isinstance(record, str) or not record:
            raise DeniedError("MeterUsage: the answer holds no MeteringRecordId")
        return record
