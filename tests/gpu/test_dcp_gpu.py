"""Distributed checkpoints of a training on a GPU: encoded there, loaded there, and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from bits import assert_same_bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import s4core.dcp as s4dcp
import s4weights


@pytest.fixture(autouse=True, scope="module")
def group_of_one() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    mesh = init_device_mesh("cuda", (1,))
    weight = torch.randn(1000, 300, device="cuda")
    weight.view(torch.int32)[0, :3] = torch.tensor([0x7FA00001, -0x80000000, 1])
    return {
        "weight": distribute_tensor(weight, mesh, [Shard(0)]),
        "half": torch.randn(70_001, device="cuda").bfloat16(),
        "ints": torch.arange(5000, device="cuda"),
        "step": torch.ones((), device="cuda"),
        "host": torch.randn(100),
    }


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


@pytest.mark.parametrize("behind", [False, True])
def test_a_state_on_a_gpu_comes_back(tmp_path: Path, behind: bool) -> None:
    saved = state()
    expected = {name: on_host(tensor).clone() for name, tensor in saved.items()}
    if behind:
        saving = s4dcp.async_save(saved, tmp_path / "x")
        for tensor in saved.values():
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
        saving.result(60)
    else:
        s4dcp.save(saved, tmp_path / "x")
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    s4dcp.load(loaded, tmp_path / "x")
    elsewhere = s4weights.load(tmp_path / "x", map_location="cpu")
    for name, tensor in expected.items():
        assert loaded[name].device.type == saved[name].device.type
        assert_same_bits(tensor, on_host(loaded[name]), where=name)
        assert_same_bits(tensor, elsewhere[name], where=name)
