"""One rank of a sharded training that saves and loads; started by test_dcp_ranks.py.

dcp_ranks.py done action@url[@file] ...     the file `done` gets a line for each action that
                                            went as it must; exit code 0: all did

The state is that of a model under FSDP2 with uneven shards, its AdamW after two steps,
and values. `save` also writes the full state to `file`, by torch; `load` compares with it.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from bits import assert_same_state
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

import s4core.dcp as s4dcp
from s4core.repository import Repository
from s4weights import KeyNotFoundError, StateError, StoreError

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Net(nn.Module):
    """5, 3 and 2 rows on 2 or 3 ranks: uneven shards, and empty ones."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(33, 5)
        self.second = nn.Linear(5, 3, dtype=torch.bfloat16)
        self.last = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(self.second(self.first(x).bfloat16()).float())


class Training:
    def __init__(self, seed: int = 0) -> None:
        self.net = Net(seed)
        for layer in (self.net.first, self.net.second, self.net.last):
            fully_shard(layer)
        fully_shard(self.net)
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=1e-2)

    def steps(self, count: int) -> None:
        torch.manual_seed(7)
        for _ in range(count):
            self.net(torch.randn(4, 33)).square().sum().backward()
            self.adam.step()
            self.adam.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.net, self.adam)
        rank = {f"r{dist.get_rank()}": torch.arange(3) + dist.get_rank()}
        values = {"epoch": 3, "name": "a/b", "at": (1, None, float("nan")), "none": {}}
        return {"model": model, "optimizer": optimizer, "rng": rank, "values": values}

    def full(self) -> dict[str, Any]:
        """The whole state, on rank 0."""
        model, optimizer = get_state_dict(self.net, self.adam, options=FULL)
        # Copies: what is not sharded shares the training's memory.
        return copy.deepcopy({"model": model, "optimizer": optimizer})

    def restore(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.net,
            self.adam,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def poisoned(tensor: Tensor) -> None:
    """Give a tensor bits that arithmetic would not keep."""
    local = tensor.to_local()
    if local.numel() > 3:
        local.view(torch.int32)[0, :3] = torch.tensor([0x7FA00001, -0x80000000, 1])


def save(url: str, file: str) -> None:
    training = Training()
    training.steps(2)
    poisoned(training.net.first.weight)
    info = s4dcp.save(training.state(), url, step=2)
    assert (info is not None) == (dist.get_rank() == 0)
    full = training.full()
    if dist.get_rank() == 0:
        torch.save(full, file)


def load(url: str, file: str) -> None:
    training = Training(seed=9)
    training.steps(1)
    state = training.state()
    del state["rng"]
    s4dcp.load(state, url)
    assert state["values"]["at"][:2] == (1, None)
    training.restore(state)
    full = training.full()
    if dist.get_rank() == 0:
        assert_same_state(torch.load(file), full, stride=False)


def replicated(url: str, _: str) -> None:
    """Plain tensors that all ranks have are written once, by some rank."""
    torch.manual_seed(3)
    state = {f"w{n}": torch.randn(40, 40) for n in range(4)} | {"tied": torch.randn(9, 9)}
    state["also"] = state["tied"]
    s4dcp.save(state, url)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    s4dcp.load(loaded, url)
    assert_same_state(state, loaded)


def behind(url: str, file: str) -> None:
    """The training goes on, and talks over its own group, while it is saved."""
    training = Training()
    training.steps(2)
    full = training.full()
    saving = s4dcp.async_save(training.state(), url)
    training.steps(20)
    saving.result(60)
    second = s4dcp.async_save(training.state(), url + "-2")
    with torch.no_grad():
        for tensor in training.net.parameters():
            tensor.zero_()
    second.result(60)
    if dist.get_rank() == 0:
        torch.save(full, file)
    dist.barrier()
    load(url, file)


def stock(url: str, file: str) -> None:
    """The same through torch's own functions."""
    training = Training()
    training.steps(2)
    full = training.full()
    group = dist.new_group(backend="gloo")
    writer = s4dcp.S4StorageWriter("memory://elsewhere/x")
    saving = dcp.async_save(
        training.state(), checkpoint_id=url, storage_writer=writer, process_group=group
    )
    with torch.no_grad():
        for tensor in training.net.parameters():
            tensor.zero_()
    saving.result()
    state = Training(seed=5).state()
    dcp.load(state, storage_reader=s4dcp.S4StorageReader(url))
    if dist.get_rank() == 0:
        torch.save(full, file)
    dist.barrier()
    load(url, file)


def failing(url: str, _: str) -> None:
    """A rank that fails: an error on all ranks, and no checkpoint; the name keeps its old one."""
    state = {f"w{n}": torch.full((64, 64), float(n)) for n in range(4)}
    s4dcp.save(state, url)
    put = Repository.put_shard
    if dist.get_rank() == 1:
        Repository.put_shard = _refuse  # type: ignore[method-assign,assignment]
    for other in (url, url + "-new"):
        changed = {name: tensor + 1 for name, tensor in state.items()}
        with pytest.raises(StoreError, match="rank 1: the disk is full"):
            s4dcp.save(changed, other)
        with pytest.raises(StoreError, match="rank 1: the disk is full"):
            s4dcp.async_save(changed, other).result(60)
    Repository.put_shard = put  # type: ignore[method-assign]
    mine = {"odd": torch.eye(3).to_sparse()} if dist.get_rank() == 1 else {}
    with pytest.raises(StateError, match="rank 1: odd: a sparse tensor"):
        s4dcp.save(state | mine, url + "-new")
    with pytest.raises(StateError, match="rank 1: odd: a sparse tensor"):
        s4dcp.async_save(state | mine, url + "-new").result(60)
    with pytest.raises(KeyNotFoundError, match="nothing is stored there"):
        s4dcp.load(state, url + "-new")
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    s4dcp.load(loaded, url)
    assert_same_state(state, loaded)


def _refuse(*_: Any) -> None:
    raise StoreError("the disk is full")


def killed(url: str, _: str) -> None:
    """Rank 1 dies while it uploads: rank 0 is told, and commits nothing."""
    state = {f"w{n}": torch.full((64, 64), float(n)) for n in range(4)}
    s4dcp.save(state, url)
    if dist.get_rank() == 1:
        Repository.put_shard = _die  # type: ignore[method-assign,assignment]
    with pytest.raises(BaseException, match=r"[Cc]onnection|peer|reset"):
        s4dcp.save(state, url + "-new")


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ACTIONS: dict[str, Callable[[str, str], None]] = {
    action.__name__: action for action in (save, load, replicated, behind, stock, failing, killed)
}


def main(done: str, *asked: str) -> None:
    dist.init_process_group("gloo")
    for action in asked:
        name, url, *file = action.split("@")
        ACTIONS[name](url, file[0] if file else "")
        if dist.get_rank() == 0:
            with Path(done).open("a") as lines:
                lines.write(f"{action}\n")
        if name == "killed":
            return
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*sys.argv[1:])
