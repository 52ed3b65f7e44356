"""The self-test: what is installed here, which profiles can run, and whether every bit comes back.

`python -m s4core.selftest [--require-gpu] [--json]` ends with 0 if all is well. Every dtype
is taken through hostile patterns: on the CPU always, and on each GPU crosswise with the
CPU: encoded on either side, the bytes must be the same, and each side decodes the other's.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from s4core import digests, dtypes, kernels
from s4core.codecs import native
from s4core.dtypes import DType, Layout
from s4core.errors import S4Error
from s4core.kernels import DecodeItem, DeviceItem, nvcomp
from s4core.pipeline.host import decode_chunk, encode_chunk

__all__ = ["ProfileReport", "Report", "main", "run"]

_PACKAGES: Final = (
    *("s4weights", "torch", "numpy", "xxhash", "zstandard"),
    *("cupy-cuda12x", "cupy-cuda13x", "nvidia-libnvcomp-cu12", "nvidia-libnvcomp-cu13"),
)
# Words: both sides of a group of lanes and of the exact histogram's limit, and two chunks.
_SIZES: Final = (0, 1, 1031, 65_536, 300_001)
_NVCOMP_DTYPES: Final = ("bfloat16", "float16", "float32")


@dataclass
class ProfileReport:
    """What became of one profile.

    Attributes:
        ok: it can run here, and every case passed.
        cases: round trips made.
        mismatches: those that did not come back, or were not the other side's bytes.
        why: why it cannot run here; empty if it can.
    """

    ok: bool = False
    cases: int = 0
    mismatches: int = 0
    why: str = ""


@dataclass
class Report:
    """The outcome of a self-test.

    Attributes:
        ok: no mismatch, and a GPU if one was demanded.
        gpu: name of the first GPU; empty if there is none.
        gpus: names of all GPUs.
        native: whether the CPU codec is the native extension.
        versions: of the packages that matter, by name; those that are installed.
        cpu: the CPU codec alone.
        profiles: on GPUs, by name.
        dtypes: that were taken through.
        problems: what went wrong, a sentence each.
    """

    ok: bool = False
    gpu: str = ""
    gpus: list[str] = field(default_factory=list)
    native: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    cpu: ProfileReport = field(default_factory=ProfileReport)
    profiles: dict[str, ProfileReport] = field(default_factory=dict)
    dtypes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Case:
    """One array, on the CPU: uint8 words of `dtype`, and a base of the same size."""

    name: str
    dtype: DType
    layout: Layout
    words: Tensor
    base: Tensor | None
    delta: str | None

    @property
    def count(self) -> int:
        return self.words.numel() // self.dtype.word_bytes


def _fills(dtype: DType, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of `count` words, as bytes, by name."""
    rng = np.random.default_rng(count)
    size, kind = count * dtype.word_bytes, f"<u{dtype.word_bytes}"
    yield "noise", rng.integers(0, 256, size, dtype=np.uint8)
    yield "zeros", np.zeros(size, np.uint8)
    # All words of one and two bytes; above, words whose top varies like an exponent's.
    ramp = np.arange(count, dtype=np.uint64) << np.uint64(
        8 * dtype.word_bytes - 16 if dtype.word_bytes > 2 else 0
    )
    yield "every top", ramp.astype(kind).view(np.uint8)
    hill = (rng.standard_normal(count) * 300 + 15_000).astype(np.uint64)
    low = rng.integers(0, 1 << 62, count, dtype=np.uint64)
    shift = np.uint64(max(0, 8 * dtype.word_bytes - 16))
    yield (
        "hill",
        (hill << shift | low & ((np.uint64(1) << shift) - np.uint64(1)))
        .astype(kind)
        .view(np.uint8),
    )


def _cases(profile: str) -> Iterator[_Case]:
    for dtype in dtypes.BY_NAME.values():
        if profile == "nvcomp" and dtype.name not in _NVCOMP_DTYPES:
            continue
        for count in _SIZES:
            yield from _cases_of(dtype, count, profile)


def _cases_of(dtype: DType, count: int, profile: str) -> Iterator[_Case]:
    layout = dtypes.layout_of(dtype, count, profile=profile)
    base = torch.from_numpy(next(_fills(dtype, count))[1])
    for fill, data in _fills(dtype, count):
        words = torch.from_numpy(data.copy())
        yield _Case(f"{dtype.name} {fill} {count}", dtype, layout, words, None, None)
        if fill != "hill":
            continue
        yield _Case(f"{dtype.name} xor {count}", dtype, layout, words, base, "xor")
        if profile == "open":
            other = layout if layout is Layout.WORDS else Layout.BYTES
            yield _Case(f"{dtype.name} zigzag {count}", dtype, other, words, base, "zigzag")


_Rows = list[tuple[int, int, int, int]]


def _encode_on_cpu(case: _Case) -> tuple[_Rows, bytes]:
    cut = dtypes.chunking(case.count)
    step = cut.chunk_words * case.dtype.word_bytes
    rows: _Rows = []
    blobs: list[bytes] = []
    for start in range(0, case.words.numel(), step):
        part = slice(start, start + step)
        base = None if case.base is None else case.base[part].numpy()
        encoded = encode_chunk(
            case.words[part].numpy(),
            *(case.dtype, case.layout, cut.sub_block),
            base=base,
            kind=case.delta,
        )
        for plane in encoded:
            data = bytes(plane.data)
            rows.append((digests.checksum(data), len(data), int(plane.codec), plane.param))
            blobs.append(data)
    return rows, b"".join(blobs)


def _decode_on_cpu(case: _Case, rows: _Rows, payload: bytes) -> Tensor:
    planes = dtypes.plane_count(case.layout, case.dtype.word_bytes, case.dtype.exponent_bits)
    step = dtypes.chunking(case.count).chunk_words * case.dtype.word_bytes
    out = torch.full_like(case.words, 0x5A)
    at, encoded = 0, []
    for _, length, codec, param in rows:
        encoded.append((codec, param, memoryview(payload)[at : at + length]))
        at += length
    for chunk, start in enumerate(range(0, out.numel(), step)):
        part = slice(start, start + step)
        base = None if case.base is None else case.base[part].numpy()
        own = encoded[chunk * planes : (chunk + 1) * planes]
        into = out[part].numpy()
        decode_chunk(own, case.dtype, case.layout, into, base=base, kind=case.delta)
    return out


def _check_cpu(report: Report) -> None:
    report.cpu.ok = True
    for case in _cases("open"):
        report.cpu.cases += 1
        rows, payload = _encode_on_cpu(case)
        if not torch.equal(_decode_on_cpu(case, rows, payload), case.words):
            _mismatch(report, report.cpu, f"CPU: {case.name} did not come back")


def _mismatch(report: Report, profile: ProfileReport, problem: str) -> None:
    profile.mismatches += 1
    profile.ok = False
    report.problems.append(problem)


def _device_item(case: _Case, device: torch.device) -> DeviceItem:
    cut = dtypes.chunking(case.count)
    base = None if case.base is None else case.base.to(device)
    return DeviceItem(
        case.name,
        case.words.to(device),
        *(case.dtype, case.layout, cut.chunk_words, cut.sub_block),
        base=base,
        delta=case.delta,
    )


def _check_gpu(report: Report, name: str, device: torch.device) -> None:
    """Take all cases of a profile through one GPU, crosswise with the CPU where it can."""
    profile = report.profiles[name]
    cases = list(_cases(name))
    items = [_device_item(case, device) for case in cases]
    done = kernels.encode(items)
    outs = [torch.full_like(item.words, 0x5A) for item in items]
    kernels.decode(
        [
            DecodeItem(
                name=i.name,
                rows=d.rows,
                payload=d.payload,
                words=out,
                dtype=i.dtype,
                layout=i.layout,
                chunk_words=i.chunk_words,
                base=i.base,
                delta=i.delta,
            )
            for i, d, out in zip(items, done, outs, strict=True)
        ]
    )
    for case, encoded, out in zip(cases, done, outs, strict=True):
        profile.cases += 1
        if not torch.equal(out.cpu(), case.words):
            _mismatch(report, profile, f"{device}: {case.name} did not come back")
        if encoded.digest != digests.digest(case.words.numpy()):
            _mismatch(report, profile, f"{device}: {case.name} has another digest than on the CPU")
        if name == "open":
            _cross(report, profile, case, encoded, device)


def _cross(
    report: Report,
    profile: ProfileReport,
    case: _Case,
    encoded: kernels.EncodedItem,
    device: torch.device,
) -> None:
    names = ("checksum", "length", "codec", "param")
    rows: _Rows = [tuple(int(row[n]) for n in names) for row in encoded.rows]  # type: ignore[misc]
    payload = encoded.payload.tobytes()
    # Integers are encoded on the host, where zstd is tried too; elsewhere the bytes are the same.
    if case.dtype.is_float and (rows, payload) != _encode_on_cpu(case):
        _mismatch(report, profile, f"{device}: {case.name}: not the bytes that the CPU writes")
    if not torch.equal(_decode_on_cpu(case, rows, payload), case.words):
        _mismatch(report, profile, f"{device}: {case.name}: the CPU does not read it back")


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _check_profile(report: Report, name: str, why: str) -> None:
    profile = report.profiles[name] = ProfileReport(ok=not why, why=why)
    if why:
        return
    for index in range(len(report.gpus)):
        try:
            _check_gpu(report, name, torch.device("cuda", index))
        except S4Error as error:
            _mismatch(report, profile, f"cuda:{index}: profile {name}: {error}")


def run(*, require_gpu: bool = False) -> Report:
    """Test this machine.

    Args:
        require_gpu: a machine without a GPU on which both profiles run is not ok.
    """
    report = Report(native=native.available, versions=_versions())
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    report.gpus = [torch.cuda.get_device_name(index) for index in range(count)]
    report.gpu = report.gpus[0] if report.gpus else ""
    report.dtypes = list(dtypes.BY_NAME)
    _check_cpu(report)
    reason = kernels.why_unavailable()
    _check_profile(report, "open", reason)
    _check_profile(report, "nvcomp", reason or nvcomp.why_unavailable())
    if require_gpu:
        for name, profile in report.profiles.items():
            if profile.why:
                report.problems.append(f"profile {name} cannot run on a GPU here: {profile.why}")
    report.ok = not report.problems
    return report


def _text(report: Report) -> str:
    gpus = ", ".join(report.gpus) or "none"
    lines = [f"GPUs: {gpus}", f"native CPU codec: {'yes' if report.native else 'no'}"]
    lines += [f"{name} {version}" for name, version in report.versions.items()]
    for name, profile in {"CPU codec": report.cpu, **report.profiles}.items():
        state = profile.why or f"{profile.cases} round trips, {profile.mismatches} mismatches"
        lines.append(f"{name}: {state}")
    return "\n".join([*lines, *report.problems, "ok" if report.ok else "NOT OK"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the self-test and print its report; 0 if all is well."""
    parser = argparse.ArgumentParser(prog="s4core.selftest", description="Test this machine.")
    parser.add_argument("--require-gpu", action="store_true", help="fail without a usable GPU")
    parser.add_argument("--json", action="store_true", help="print the report as one line of JSON")
    args = parser.parse_args(argv)
    report = run(require_gpu=args.require_gpu)
    sys.stdout.write((json.dumps(asdict(report)) if args.json else _text(report)) + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
