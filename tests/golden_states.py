"""The states inside the golden files, made from integers alone, so that they never change.

numpy promises that the streams of RandomState are frozen; no floating point function is used.
"""

from __future__ import annotations

import datetime
import warnings
from collections import OrderedDict, defaultdict
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch

from s4core import dtypes

__all__ = ["FILES", "MOMENT_STEPS", "RUN_STEPS", "moments_state", "run_state"]


def _bytes(seed: int, count: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, count).astype(np.uint8)


def _tensor(words: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(words.view(np.uint8).copy()).view(dtype)


def weights(seed: int, count: int) -> torch.Tensor:
    """bfloat16 words with the exponents of trained weights."""
    random = np.random.RandomState(seed)
    exponent = 120 - np.minimum(random.randint(1, 1 << 16, count), 15) % 13
    exponent -= (random.randint(0, 200, count) == 0) * 40
    words = (random.randint(0, 2, count) << 15) | (exponent << 7) | random.randint(0, 128, count)
    return _tensor(words.astype("<u2"), torch.bfloat16)


def every_dtype() -> dict[str, torch.Tensor]:
    """300 elements of random bits of every dtype, NaN payloads and all."""
    state = {}
    for number, dtype in enumerate(sorted(dtypes.BY_NAME)):
        torch_dtype = getattr(torch, dtype)
        if dtype.startswith(("q", "complex32")):
            continue
        data = _bytes(number, 300 * dtypes.BY_NAME[dtype].itemsize)
        if dtype == "bool":
            data &= 1
        state[dtype] = torch.from_numpy(data).view(torch_dtype)
    ints = torch.from_numpy(_bytes(99, 60).view(np.int8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has deprecated the dtype; old checkpoints have it
        state["qint8"] = torch._make_per_tensor_quantized_tensor(ints, 0.5, 3)
    return state


def every_codec() -> dict[str, torch.Tensor]:
    """Arrays that make the writer choose each codec of the profile `open`."""
    count = 70_000
    born_small = (weights(5, count).view(torch.int16).to(torch.int32) << 16).view(torch.float32)
    positive = _tensor(_bytes(6, 4 * count).view("<u4") & np.uint32(0x7FFFFFFF), torch.float32)
    return {
        "const": torch.full((count,), 1.5, dtype=torch.float32),
        "bitpack": positive,
        "rans": weights(7, count),
        "born small": born_small,
        "raw": torch.from_numpy(_bytes(8, count)),
        "zstd": torch.arange(count // 4) // 3,
        "tiny": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }


def every_node() -> dict[str, Any]:
    """One of each kind of Python value that needs no opt-in."""
    tied = torch.from_numpy(_bytes(20, 2000))
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, -1, 2**70],
        "floats": [0.0, -0.0, 1e300, float("inf"), float("-inf"), float("nan")],
        "text": ["", "ü/€", "\ud800"],
        "bytes": [b"", b"\x00\xff", bytes(range(256)) * 8, bytearray(b"ab")],
        "complex": 1.5 - 2j,
        "tuple": (1, (2,), []),
        "sets": [{1, 2}, frozenset({"a"})],
        "keys": {1: "int", None: "none", 2.5: "float", (1, "a"): "tuple", False: "bool"},
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
        "default": defaultdict(list, {"x": [1]}),
        "numpy": [np.float32(1.5), np.int64(-3), np.arange(6).reshape(2, 3), np.array(7)],
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda", 1)],
        "path": PurePosixPath("a/b"),
        "time": datetime.datetime(2026, 12, 1, 15, 31, tzinfo=datetime.timezone.utc),
        "tied": [tied, tied, tied[100:200]],
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "gaps": torch.arange(1000)[::2],
        "expanded": torch.ones(1, 3).expand(5, 3),
        "parameter": torch.nn.Parameter(torch.arange(4.0)),
        "meta": torch.empty(3, 4, device="meta"),
        "sparse": torch.sparse_coo_tensor(
            [[0, 2], [1, 0]], [1.5, 2.5], (3, 2), check_invariants=True
        ).coalesce(),
    }


RUN_STEPS = (1, 2, 3, 4)


def run_state(step: int) -> dict[str, Any]:
    """The state of the golden run at `step`: small drifts, flipped bits, a frozen part."""
    count = 5000
    drift = weights(30, count).view(torch.int16).clone()
    flips = weights(31, count).view(torch.int16).clone()
    for past in range(2, step + 1):
        drift += torch.from_numpy(_bytes(40 + past, count).astype(np.int16) % 5 - 2)
        flips ^= torch.from_numpy((_bytes(50 + past, count).astype(np.int16) & 1) << 6)
    return {
        "drift": drift.view(torch.bfloat16),
        "flips": flips.view(torch.bfloat16),
        "frozen": weights(32, count),
        "noise": torch.from_numpy(_bytes(60 + step, 3000)),
        "step": torch.tensor(step),
    }


def every_derivation() -> dict[str, torch.Tensor]:
    """float32 words, what they round to, with exceptions, and a copy."""
    count = 3000
    random = np.random.RandomState(70)
    high = weights(71, count).view(torch.int16).numpy().view("<u2").astype("<u4")
    words = high << 16 | random.randint(0, 1 << 16, count).astype("<u4")
    rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype("<u2")
    rounded[[5, 2999]] = 0x7FFF, 0x8000
    master = _tensor(words, torch.float32)
    # Exponents of float16's normal numbers, mantissas that fit: no rounding.
    normal = (words & np.uint32(0x807FE000)) | np.uint32(0x3A800000)
    half = ((normal >> 16 & 0x8000) | ((normal & 0x7FFFFFFF) - 0x38000000) >> 13).astype("<u2")
    return {
        "bfloat16": _tensor(rounded, torch.bfloat16),
        "master": master,
        "copy": master.clone(),
        "normal": _tensor(normal, torch.float32),
        "float16": _tensor(half, torch.float16),
    }


MOMENT_STEPS = (1, 2)


def moments_state(step: int) -> dict[str, Any]:
    """Weights that drift by their exponents, and two moments with scales of rows and columns."""
    rows, columns = 150, 140
    count = rows * columns
    random = np.random.RandomState(80)
    scale = random.randint(0, 12, (rows, 1)) + random.randint(0, 12, columns)
    second = (70 + scale).ravel() + random.randint(0, 2, count)
    first = (95 + second // 2) + random.randint(0, 2, count)
    drift = weights(81, count).view(torch.int16).numpy().view("<u2").astype("<i8")
    for past in range(2, step + 1):
        step_size = 1 << (120 - (drift >> 7 & 0xFF)).clip(0, 6)
        drift += (_bytes(80 + past, count).astype("<i8") % 5 - 2) * step_size // 8
    mantissa = _bytes(90, 2 * count).astype("<u2") & 0x7F
    sign = (_bytes(91, count).astype("<u2") & 1) << 15
    return {
        "w": _tensor(drift.astype("<u2"), torch.bfloat16).view(rows, columns),
        "exp_avg": _tensor(
            (sign | first << 7 | mantissa[:count]).astype("<u2"), torch.bfloat16
        ).view(rows, columns),
        "exp_avg_sq": _tensor((second << 7 | mantissa[count:]).astype("<u2"), torch.bfloat16).view(
            rows, columns
        ),
    }


FILES = {
    "dtypes.s4": every_dtype,
    "codecs.s4": every_codec,
    "nodes.s4": every_node,
    "derived.s4": every_derivation,
}
