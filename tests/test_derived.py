"""Arrays that follow from others: found, proven on every word, and read back from the proof."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bits import assert_same_state
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import array, manifest

import s4weights
from s4core import dtypes
from s4core.checkpoint import Reader, open_reader
from s4core.checkpoint.relations import Array, Kin, columns_of, find_derivations
from s4core.manifest import ArrayEntry, TensorEntry, dump, parse
from s4core.pipeline import derive, exceptions_of
from s4weights import ChecksumError, CodecError, FormatError, VersionError

F32, BF16, F16 = (dtypes.lookup(name) for name in ("float32", "bfloat16", "float16"))
TARGETS = {BF16: torch.bfloat16, F16: torch.float16}


def patterns(seed: int) -> torch.Tensor:
    """float32 words near every kind of border, and random ones."""
    rng = np.random.default_rng(seed)
    borders = np.array(
        [0x00000000, 0x00800000, 0x33000000, 0x33800000, 0x38000000, 0x38800000, 0x477FE000,
         0x477FF000, 0x47800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF],
        dtype=np.int64,
    )  # fmt: skip
    near = (borders[:, None] + np.arange(-40, 41)).clip(0, 0x7FFFFFFF).ravel()
    steps = rng.integers(0, 0x8000, 30_000) << 16 | rng.choice([0, 0x7FFF, 0x8000, 0x8001], 30_000)
    halves = rng.integers(0x330, 0x480, 30_000) << 20 | rng.choice(
        [0x0FFF, 0x1000, 0x1001, 0x3000, 0x8000], 30_000
    )
    any_ = rng.integers(0, 1 << 31, 30_000)
    words = np.concatenate([near, steps, halves, any_])
    words = np.concatenate([words, words | 1 << 31]).astype(np.uint32)
    return torch.from_numpy(words.view(np.int32)).view(torch.float32)


@pytest.mark.parametrize("dtype", TARGETS, ids=lambda dtype: dtype.name)
def test_rounding_by_integers_is_the_cast_of_torch(dtype: dtypes.DType) -> None:
    # What a NaN becomes differs from device to device: those are exceptions.
    source = patterns(1)
    source = source[~source.isnan()]
    cast = source.to(TARGETS[dtype])
    assert exceptions_of("rne", source, cast, F32, dtype, 0) == b""
    out = torch.empty_like(cast)
    derive("rne", source, out, F32, dtype, b"")
    assert torch.equal(out.view(torch.int16), cast.view(torch.int16))


@given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(-(1 << 15), (1 << 15) - 1)), max_size=20)
)
@settings(max_examples=60, deadline=None)
def test_derive_undoes_whatever_exceptions_of_found(changes: list[tuple[int, int]]) -> None:
    source = torch.linspace(-3, 3, 1000)
    target = source.bfloat16()
    for at, word in changes:
        target.view(torch.int16)[at] = word
    found = exceptions_of("rne", source, target, F32, BF16, 1000)
    assert found is not None
    assert len(found) <= 10 * len(changes)
    out = torch.empty_like(target)
    derive("rne", source, out, F32, BF16, found)
    assert torch.equal(out.view(torch.int16), target.view(torch.int16))


def test_too_many_exceptions_are_no_derivation() -> None:
    source = torch.linspace(-3, 3, 1000)
    target = source.bfloat16()
    target.view(torch.int16)[::100] ^= 1
    assert exceptions_of("rne", source, target, F32, BF16, 9) is None
    assert exceptions_of("rne", source, target, F32, BF16, 10) is not None
    with pytest.raises(CodecError, match="no derivation rne from bfloat16 to float16"):
        derive("rne", target, source.half(), BF16, F16, b"")


def mixed(seed: int = 0, rows: int = 200) -> dict[str, Any]:
    """A training state in mixed precision, with a copy and a few NaN."""
    random = torch.Generator().manual_seed(seed)
    master = {f"layer.{n}": 0.02 * torch.randn(rows, 300, generator=random) for n in range(3)}
    master["layer.1"][3, 5:9] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42])
    weights = {name: tensor.bfloat16() for name, tensor in master.items()}
    weights["layer.1"].view(torch.int16)[3, 5] = 0x7FFF  # how a GPU rounds NaN
    return {
        "model": weights,
        "half": master["layer.0"].half(),
        "master": master,
        "ema": {"layer.2": master["layer.2"].clone()},
        "step": seed,
    }


def entries(reader: Reader) -> dict[str, ArrayEntry]:
    m = reader.manifest
    return {t.path: m.arrays[t.array] for t in m.tensors if t.array is not None}


def stored(state: Any) -> bytes:
    out = io.BytesIO()
    s4weights.save(state, out)
    return out.getvalue()


def test_casts_and_copies_cost_nothing_and_come_back(tmp_path: Path) -> None:
    state = mixed()
    s4weights.save(state, tmp_path / "x.s4")
    found = entries(open_reader(tmp_path / "x.s4"))
    paths = list(found)
    for path, entry in found.items():
        if path.startswith(("model/", "half")):
            name = "layer.0" if path == "half" else path.removeprefix("model/")
            assert (entry.derived, paths[entry.of or 0]) == ("rne", f"master/{name}"), path
        else:
            assert entry.derived == ("copy" if path == "ema/layer.2" else None), path
    assert len(found["model/layer.1"].exceptions) == 10
    assert_same_state(state, s4weights.load(tmp_path / "x.s4"))
    size = (tmp_path / "x.s4").stat().st_size
    assert size < 0.88 * 3 * 4 * 60_000


def test_a_derived_tensor_alone_is_read_through_its_source(tmp_path: Path) -> None:
    state = mixed()
    s4weights.save(state, tmp_path / "x.s4")
    found = s4weights.load(tmp_path / "x.s4", keys=["model/layer.1", "ema/*"])
    expected = {"model/layer.1": state["model"]["layer.1"], "ema/layer.2": state["ema"]["layer.2"]}
    assert_same_state(expected, found)
    assert s4weights.load(tmp_path / "x.s4", map_location="meta")["half"].device.type == "meta"


def test_almost_casts_are_stored_for_themselves() -> None:
    state = mixed()
    noise = torch.rand(200, 300, generator=torch.Generator().manual_seed(1)) < 0.05
    state["model"]["layer.2"].view(torch.int16)[noise] ^= 1
    reader_state = s4weights.load(io.BytesIO(stored(state)))
    assert_same_state(state, reader_state)


@given(st.integers(0, 1000), st.integers(0, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_mixed_state_comes_back(seed: int, flips: int, doubled: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (3000,), generator=random)
    master = words.to(torch.int32).view(torch.float32)
    weights = master.to(torch.float16 if seed % 2 else torch.bfloat16)
    weights.view(torch.int16)[torch.randint(0, 3000, (flips,), generator=random)] ^= 0x101
    state = {"w": weights, "master": master, "again": weights.clone() if doubled else None}
    assert_same_state(state, s4weights.load(io.BytesIO(stored(state))))


def drift(state: dict[str, Any], seed: int) -> dict[str, Any]:
    """The state one step later; layer 0 is frozen."""
    random = torch.Generator().manual_seed(seed)
    master = {
        name: t if name == "layer.0" else t + 1e-5 * torch.randn(t.shape, generator=random)
        for name, t in state["master"].items()
    }
    weights = {name: t.bfloat16() for name, t in master.items()}
    ema = {"layer.2": master["layer.2"].clone()}
    return {**state, "model": weights, "master": master, "ema": ema, "step": seed}


def test_a_chain_of_derived_deltas_and_references_loads_at_every_step(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path, max_depth=2)
    states = {1: mixed()}
    run.save(states[1], 1)
    for step in range(2, 7):
        states[step] = drift(states[step - 1], step)
        run.save(states[step], step)
    fresh = s4weights.open(tmp_path)
    assert [fresh.reader(step).manifest.depth for step in states] == [0, 1, 2, 0, 1, 2]
    for step, state in states.items():
        assert_same_state(state, fresh.load(step))
    found = entries(fresh.reader(3))
    assert found["model/layer.2"].derived == "rne"
    assert found["model/layer.2"].depth == found["master/layer.2"].depth == 2
    assert found["master/layer.0"].same is not None
    assert found["model/layer.0"].derived == "rne"
    assert all(finding.ok for finding in run.verify(full=True))


def test_a_tensor_that_was_derived_may_become_a_tensor_of_its_own(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    first = mixed()
    second = {**first, "model": {name: -t for name, t in first["model"].items()}}
    for step, state in enumerate((first, second, first)):
        run.save(state, step)
    assert entries(run.reader(1))["model/layer.2"].at is not None
    for step, state in enumerate((first, second, first)):
        assert_same_state(state, s4weights.load_checkpoint(tmp_path, step=step))


def test_an_unchanged_state_costs_a_manifest_only(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    run.save(mixed(), 1)
    info = run.save({**mixed(), "note": "again"}, 2).result()
    assert run.reader(2).manifest.shards == ()
    assert info.stored_bytes < 6000


def test_older_checkpoints_may_go_when_nothing_needs_them(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path, max_depth=8, grace_seconds=0)
    states = {1: mixed()}
    run.save(states[1], 1)
    for step in (2, 3):
        states[step] = drift(states[step - 1], step)
        run.save(states[step], step)
    run.remove(1)
    run.gc()
    assert_same_state(states[3], s4weights.load_checkpoint(tmp_path, step=3))


def test_exports_derive_again_what_was_derived(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path / "run")
    state = mixed()
    run.save(state, 1)
    reader = run.reader(1)
    from s4core.checkpoint import export_state

    export_state(reader, tmp_path / "x.s4", weights_only=True)
    assert entries(open_reader(tmp_path / "x.s4"))["half"].derived == "rne"
    assert_same_state(state, s4weights.load(tmp_path / "x.s4"))


def test_moments_are_coded_under_each_other_and_come_back(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(5)
    scale = torch.exp(
        3 * torch.randn(300, 1, generator=random) + torch.randn(200, generator=random)
    )
    state = {
        "state": {
            0: {
                "exp_avg": 1e-3 * scale * torch.randn(300, 200, generator=random),
                "exp_avg_sq": 1e-6 * (scale * (1 + torch.rand(300, 200, generator=random))) ** 2,
            }
        }
    }
    run = s4weights.open(tmp_path)
    states = {}
    for step in range(3):
        run.save(state, step)
        states[step] = state
        inner = {k: t * (1 + 1e-6 * step) for k, t in state["state"][0].items()}
        state = {"state": {0: inner}}
    manifest_ = run.reader(0).manifest
    assert {"codec:rans.ctx", "codec:rans.grid", "context:exponent"} <= set(manifest_.requires)
    assert entries(run.reader(0))["state/0/exp_avg"].context == 1
    for step, saved in states.items():
        assert_same_state(saved, s4weights.load_checkpoint(tmp_path, step=step))
    alone = s4weights.load(run.directory.url_of("step-00000000.ckpt"), keys=["*/exp_avg"])
    expected = states[0]["state"][0]["exp_avg"]
    assert_same_state({"state/0/exp_avg": expected}, alone)
    assert all(finding.ok for finding in run.verify(full=False))


def test_contexts_and_grids_reach_over_several_chunks(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(6)
    scale = torch.exp(
        2 * torch.randn(700, 1, generator=random) + torch.randn(501, generator=random)
    )
    second = (1e-6 * scale * (1 + torch.rand(700, 501, generator=random))).bfloat16()
    first = (second.float().sqrt() * torch.randn(700, 501, generator=random)).bfloat16()
    weights = 0.02 * torch.randn(700, 501, generator=random)
    run = s4weights.open(tmp_path)
    states = [
        {"w": (weights + 1e-4 * step).bfloat16(), "exp_avg": first, "exp_avg_sq": second + step}
        for step in range(2)
    ]
    for step, state in enumerate(states):
        run.save(state, step)
    assert {"codec:rans.ctx", "codec:rans.grid"} <= set(run.reader(0).manifest.requires)
    assert "codec:rans.ctx" in run.reader(1).manifest.requires
    for step, state in enumerate(states):
        assert_same_state(state, s4weights.load_checkpoint(tmp_path, step=step))
    part = run.reader(1).slice("w", 300_000, 300_100)
    assert torch.equal(part, states[1]["w"].view(-1)[300_000:300_100])
    part = run.reader(0).slice("exp_avg", 300_000, 300_100)
    assert torch.equal(part, first.view(-1)[300_000:300_100])


def kin(*tensors: torch.Tensor) -> Kin:
    return Kin(
        [
            Array(f"t/{n}", dtypes.lookup(str(t.dtype)), t.numel(), lambda t=t: t)
            for n, t in enumerate(tensors)
        ]
    )


def test_constants_and_small_arrays_are_not_searched_for_copies() -> None:
    twice = torch.ones(5000), torch.ones(5000), torch.arange(500.0), torch.arange(500.0)
    assert find_derivations(kin(*twice), range(4)) == {}
    large = torch.arange(5000.0)
    assert find_derivations(kin(large, large.clone()), range(2))[1].of == 0


def test_no_array_is_derived_from_a_derived_one() -> None:
    master = torch.linspace(-1, 1, 4000)
    found = find_derivations(
        kin(master.bfloat16(), master.clone(), master, master.bfloat16()), range(4)
    )
    assert set(found) == {0, 2, 3}
    assert {derivation.of for derivation in found.values()} == {1}


def test_the_width_of_a_matrix_is_that_of_its_rows_as_they_lie() -> None:
    arrays = kin(torch.zeros(12), torch.zeros(12), torch.zeros(12), torch.zeros(12)).arrays
    places = [((3, 4), (4, 1)), ((4, 3), (1, 4)), ((12,), (1,)), ((2, 3, 2), (6, 2, 1))]
    tensors = [
        TensorEntry(f"t{n}", "float32", shape, stride, n, 0, "cpu")
        for n, (shape, stride) in enumerate(places)
    ]
    assert columns_of(tensors, arrays) == {0: 4, 1: 4, 3: 6}


def test_a_state_that_changes_while_it_is_saved_is_not_written(tmp_path: Path) -> None:
    from s4core.checkpoint.snapshot import take_snapshot
    from s4core.checkpoint.writer import Writer

    state = mixed()
    writer = Writer(take_snapshot(state))
    state["master"]["layer.0"].add_(1)
    with pytest.raises(CodecError, match="layer.0: the tensor was changed while it was"):
        b"".join(writer.shard(lambda: dump(writer.manifest())))


D = "0123456789abcdef" * 2
SOURCE = array()
CAST = array(dtype="bfloat16", at=None, derived="rne", of=0)
PLAIN = array(at=None, derived="copy", of=0)
BAD: dict[str, tuple[ArrayEntry, ...]] = {
    "exactly one of at, same, data and derived": (SOURCE, replace(CAST, at=(0, 0))),
    "derived and of: expected both or neither": (SOURCE, replace(CAST, of=None)),
    "exceptions of an array that is not derived": (SOURCE, array(exceptions=bytes(10))),
    "stands on array 7: there are 2": (SOURCE, replace(CAST, of=7)),
    r"arrays\[0\]: array 1.* is itself read with another": (replace(PLAIN, of=1), PLAIN),
    r"arrays\[1\]: array 1.* is itself read with another": (SOURCE, replace(PLAIN, of=1)),
    "has 100 words: expected 99": (SOURCE, replace(CAST, words=99)),
    "has depth 0: expected 1, its own": (SOURCE, replace(CAST, depth=1)),
    "no float16 is derived from it by copy": (SOURCE, replace(PLAIN, dtype="float16")),
    "no float64 is derived from it by rne": (SOURCE, replace(CAST, dtype="float64")),
    "exceptions of 9 bytes": (SOURCE, replace(CAST, exceptions=bytes(9))),
    "exception at word 0: expected rising": (SOURCE, replace(CAST, exceptions=bytes(20))),
    "exception at word 100": (SOURCE, replace(CAST, exceptions=b"\x64" + bytes(9))),
    "a context needs at and no delta": (SOURCE, replace(CAST, context=0)),
    "array 1.* is itself read with another one": (array(context=1), array(context=0)),
    "is int32 for float32: expected floating point": (array(dtype="int32"), array(context=0)),
    "has 5 words: expected 100": (array(words=5, at=None, data=bytes(20)), array(context=0)),
}


@pytest.mark.parametrize("message", BAD)
def test_arrays_that_cannot_be_read_with_each_other_are_refused(message: str) -> None:
    arrays = BAD[message]
    bad = manifest(arrays=arrays, depth=max(a.depth for a in arrays))
    with pytest.raises(FormatError, match=message):
        dump(bad)


def test_an_unknown_derivation_asks_for_an_upgrade() -> None:
    with pytest.raises(VersionError, match="derivation 'ceil' is not known; upgrade"):
        dump(manifest(arrays=(SOURCE, replace(CAST, derived="ceil"))))


def test_derived_and_context_entries_survive_dump_and_parse() -> None:
    exceptions = (3).to_bytes(8, "little") + b"\x01\x02"
    m = manifest(arrays=(SOURCE, replace(CAST, exceptions=exceptions), PLAIN, array(context=0)))
    assert parse(dump(m), "m") == m


def test_a_wrong_exception_is_a_wrong_digest(tmp_path: Path) -> None:
    s4weights.save_checkpoint(mixed(), tmp_path, step=1)
    run = s4weights.open(tmp_path)
    reader = run.reader(1)
    m = reader.manifest
    number = next(n for n, a in enumerate(m.arrays) if a.exceptions)
    entry = m.arrays[number]
    wrong = replace(entry, exceptions=entry.exceptions[:-1] + b"\x12")
    arrays = (*m.arrays[:number], wrong, *m.arrays[number + 1 :])
    broken = Reader(replace(m, arrays=arrays), type(reader.chain)(
        replace(m, arrays=arrays), run.repository.manifest_bytes
    ), reader.shard_of, "x")  # fmt: skip
    with pytest.raises(ChecksumError, match=r"array \d+: the words derived from array \d+ have"):
        broken.state()
