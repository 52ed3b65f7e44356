"""The codec on CUDA devices: the same bytes as `s4core.codecs`, made where the tensors are.

Map of the package:

- `items`: what goes in and what comes out
- `encoder`, `decoder`, `hashes`: the three things that can be asked for
- `fields`, `nvcomp`: profile `nvcomp`, and the one file that loads that library
- `landing`: where blobs come to lie in host memory
- `batches`, `tables`: which chunks travel together, and the records that describe them
- `staging`, `pinned`, `payload`: memory on the device, page-locked, and of the caller
- `runtime`: the one place that imports CuPy
- `faults`: what the device can find wrong
- `*.cu`, `*.cuh`: the kernels, compiled at first use; `words` (planes and deltas), `choice`
  (which codec), `encode`, `decode` (also verifies), `seal` (compact copy, checksums, digests)
"""

from __future__ import annotations

from s4core.kernels.decoder import decodable, decode
from s4core.kernels.encoder import encode
from s4core.kernels.hashes import digests
from s4core.kernels.items import DecodeItem, DeviceItem, EncodedItem
from s4core.kernels.runtime import available, why_unavailable

__all__ = [
    "DecodeItem",
    "DeviceItem",
    "EncodedItem",
    "available",
    "decodable",
    "decode",
    "digests",
    "encode",
    "why_unavailable",
]
