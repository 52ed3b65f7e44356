"""Whole states on a GPU: saved there, loaded anywhere, bit for bit; the training never harmed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state

import s4weights
from s4core import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not kernels.available(), reason=f"no GPU codec: {kernels.why_unavailable()}"
    ),
]


def weights(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    random = torch.Generator(device="cuda").manual_seed(seed)
    return (0.02 * torch.randn(count, device="cuda", generator=random)).to(dtype)


def mixed_state(scale: int = 1) -> dict[str, Any]:
    master = weights(300_000 * scale, torch.float32)
    return {
        "model": {"w": master.bfloat16(), "h": master[:1000].half(), "tied": None},
        "master": master,
        "optimizer": {
            "m": weights(300_000 * scale, torch.float32, 1) * 1e-3,
            "v": weights(300_000 * scale, torch.float32, 2) ** 2,
            "step": torch.tensor(7.0),
        },
        "ids": torch.arange(50_000, device="cuda"),
        "mask": torch.arange(9000, device="cuda") % 3 == 0,
        "double": torch.linspace(0, 1, 5000, device="cuda", dtype=torch.float64),
        "complex": torch.randn(3000, device="cuda", dtype=torch.complex64),
        "host": torch.randn(4000),
        "view": master[100:200],
        "transposed": weights(6000, torch.bfloat16).reshape(60, 100).t(),
        "rng": torch.get_rng_state(),
    }


def on_cpu(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()  # a copy also of what is on the CPU already
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    return state


def stored(state: Any) -> bytes:
    out = io.BytesIO()
    s4weights.save(state, out)
    return out.getvalue()


def test_a_state_on_the_gpu_comes_back_to_the_gpu() -> None:
    state = mixed_state()
    assert_same_state(state, s4weights.load(io.BytesIO(stored(state))))


def test_what_the_gpu_wrote_is_read_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    state = mixed_state()
    data = stored(state)
    assert_same_state(on_cpu(state), s4weights.load(io.BytesIO(data), map_location="cpu"))


def test_gpu_and_cpu_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = mixed_state()
    there = stored(state)
    monkeypatch.setattr(kernels, "why_unavailable", lambda: "switched off by the test")
    assert stored(state) == there


def test_a_chain_on_the_gpu_loads_at_every_link(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path, max_depth=3)
    state, saved = mixed_state(), {}
    for step in range(6):
        for tensor in (state["master"], state["optimizer"]["v"]):
            tensor.mul_(1 + 1e-5)
        state["model"]["w"].copy_(state["master"])
        info = run.save(state, step, wait=bool(step % 2)).result()
        saved[step] = on_cpu(state)
        assert info.depth == step % 4
    for step, wanted in saved.items():
        assert_same_state(
            wanted, s4weights.load_checkpoint(tmp_path, step=step, map_location="cpu")
        )
        assert_same_state(wanted, on_cpu(s4weights.load_checkpoint(tmp_path, step=step)))


def test_a_mutation_right_after_return_changes_nothing_stored(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    state = mixed_state(scale=20)
    wanted = on_cpu(state)
    handle = run.save(state, 1, wait=False)
    for tensor in (state["master"], state["optimizer"]["m"], state["host"], state["ids"]):
        tensor.zero_()
    handle.result()
    assert_same_state(wanted, s4weights.load_checkpoint(tmp_path, map_location="cpu"))


def test_work_on_a_side_stream_is_what_is_saved(tmp_path: Path) -> None:
    tensor = torch.zeros(50_000_000, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(200):
            tensor += 1
        s4weights.save({"t": tensor}, tmp_path / "x.s4")
    found = s4weights.load(tmp_path / "x.s4", map_location="cpu")
    assert_same_state({"t": torch.full((50_000_000,), 200.0)}, found)


def test_a_nearly_full_gpu_saves_without_an_out_of_memory(tmp_path: Path) -> None:
    state = {"w": weights(30_000_000, torch.bfloat16)}
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = [torch.empty(free - (48 << 20), dtype=torch.uint8, device="cuda")]
    try:
        s4weights.save(state, tmp_path / "x.s4")
    finally:
        hog.clear()
        torch.cuda.empty_cache()
    assert_same_state(on_cpu(state), s4weights.load(tmp_path / "x.s4", map_location="cpu"))


def test_damage_is_found_before_the_gpu_sees_it(tmp_path: Path) -> None:
    data = bytearray(stored({"w": weights(40_000, torch.bfloat16)}))
    for place in range(16, len(data) - 700, 501):
        data[place] ^= 1
        with pytest.raises(s4weights.S4Error):
            s4weights.load(io.BytesIO(bytes(data)))
        data[place] ^= 1


def test_keys_and_map_location_reach_the_gpu(tmp_path: Path) -> None:
    s4weights.save(mixed_state(), tmp_path / "x.s4")
    found = s4weights.load(tmp_path / "x.s4", map_location="cuda:0", keys=["host", "rng", "master"])
    assert {k: t.device.type for k, t in found.items()} == {
        "host": "cuda",
        "rng": "cpu",
        "master": "cuda",
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the packages around Lightning
def test_lightning_saves_from_the_gpu(tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
    from pytorch_lightning.demos.boring_classes import BoringModel

    from s4_lightning import S4CheckpointIO

    model = BoringModel()
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        plugins=[S4CheckpointIO()],
        accelerator="gpu",
        devices=1,
        max_epochs=2,
        limit_train_batches=2,
        limit_val_batches=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model)
    path = trainer.checkpoint_callback.best_model_path
    found = s4weights.load(path, map_location="cpu", weights_only=False)
    assert_same_state(on_cpu(dict(model.state_dict())), on_cpu(dict(found["state_dict"])))
