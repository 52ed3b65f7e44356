"""Every kind of tensor comes back as it was: class, flags, parts, aliasing, bits."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
from bits import assert_same_bits, assert_same_state
from torch import Tensor, nn
from trips import flat_trip, round_trip

from s4core.errors import StateError
from s4core.tree import flatten

pytestmark = [
    # Torch speaks up at the birth of these; they are tested all the same.
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC)"),
    pytest.mark.filterwarnings("ignore:Sparse invariant"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


class Scaled(Tensor):
    """A wrapper of the kind that torchao and Transformer Engine use: no storage of its own."""

    payload: Tensor
    scale: Tensor
    note: Any

    @staticmethod
    def __new__(cls, payload: Tensor, scale: Tensor, note: Any = None) -> Scaled:
        made: Scaled = Tensor._make_wrapper_subclass(cls, payload.shape, dtype=torch.float32)
        made.payload, made.scale, made.note = payload, scale, note
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["payload", "scale"], {"note": self.note}

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, Tensor], ctx: Any, size: Any, _: Any) -> Any:
        assert tuple(parts["payload"].shape) == tuple(size)
        return cls(parts["payload"], parts["scale"], ctx["note"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].payload, args[0].scale, args[0].note)
        raise NotImplementedError(func)


class Named(Tensor):
    """A subclass with a storage, and nothing that says how to take it apart."""


def scaled(note: Any = None) -> Scaled:
    return Scaled(torch.arange(6, dtype=torch.int8).view(2, 3), torch.rand(1), note)


def test_parameters_keep_class_and_gradient_flag() -> None:
    state = {
        "p": nn.Parameter(torch.randn(3)),
        "frozen": nn.Parameter(torch.randn(3), requires_grad=False),
        "ints": nn.Parameter(torch.arange(3), requires_grad=False),
        "leaf": torch.randn(2, requires_grad=True),
        "result": torch.randn(2, requires_grad=True) * 2,
    }
    loaded = round_trip(state)
    assert_same_state(state, loaded)
    assert all(value.is_leaf for value in loaded.values())


def test_tied_weights_are_one_object_and_views_share_memory() -> None:
    weight = nn.Parameter(torch.randn(4, 3))
    base = torch.randn(4, 3)
    state = {
        "embed": weight,
        "head": weight,
        "data": weight.data,
        "a": base,
        "b": base[1:],
        "c": base.t(),
    }
    flat = flatten(state)
    assert len(flat.leaves) == 5
    loaded = flat_trip(flat)
    assert_same_state(state, loaded, aliasing=True)
    with torch.no_grad():
        loaded["head"].fill_(7)
    assert loaded["embed"][0, 0] == loaded["data"][3, 2] == 7


def test_every_path_of_a_tied_object_is_known() -> None:
    weight, wrapper = torch.ones(2), scaled()
    leaves = flatten({"a": weight, "b": [weight, wrapper], "c": {"d": wrapper}, "e": weight}).leaves
    assert [(leaf.path, leaf.also) for leaf in leaves] == [
        ("a", ["b/0", "e"]),
        ("b/1/payload", ["c/d/payload"]),
        ("b/1/scale", ["c/d/scale"]),
    ]


def test_conjugate_and_negative_views_keep_bits_and_flags() -> None:
    base = torch.randn(4, dtype=torch.complex64)
    state = {
        "base": base,
        "conj": base.conj(),
        "neg": base.conj().imag,
        "both": base[1:].conj().t(),
    }
    loaded = round_trip(state)
    assert_same_state(state, loaded, aliasing=True)
    assert loaded["conj"].is_conj()
    assert loaded["neg"].is_neg()


def test_attributes_of_a_tensor_are_kept() -> None:
    state: dict[str, Any] = {"b": nn.Buffer(torch.ones(2)), "t": torch.zeros(1)}
    state["t"].tensor_parallel = {"dim": torch.ones(1)}
    state["t"]._dynamo_static_input_type = "unguarded"
    loaded = round_trip(state)
    assert vars(loaded["b"]) == vars(state["b"])
    assert_same_state({"tensor_parallel": {"dim": torch.ones(1)}}, vars(loaded["t"]))
    state["t"].sum = 3
    with pytest.raises(StateError, match=r"'t': attribute 'sum' hides one of Tensor's own"):
        flatten(state)


def sparse() -> list[Tensor]:
    eye, none = torch.eye(4), torch.zeros(2, 0, dtype=torch.int64)
    return [
        eye.to_sparse(),
        torch.sparse_coo_tensor(
            torch.tensor([[0, 0, 2]]), torch.randn(3, 2), (4, 2)
        ),  # not coalesced
        torch.sparse_coo_tensor(none, torch.zeros(0), (4, 2)),
        eye.bfloat16().to_sparse_csr(),
        eye.to_sparse_csc(),
        eye.to_sparse_bsr((2, 2)),
        eye.to_sparse_bsc((2, 1)),
    ]


@pytest.mark.parametrize("number", range(7))
def test_sparse_tensors_come_back(number: int) -> None:
    tensor = sparse()[number]
    loaded = round_trip({"a": tensor, "b": tensor})
    assert_same_bits(tensor, loaded["a"])
    assert loaded["a"] is loaded["b"]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_come_back(layout: torch.layout) -> None:
    parts = [torch.randn(2, 3), torch.randn(0, 3), torch.randn(4, 3)]
    tensor = torch.nested.nested_tensor(parts, layout=layout)
    loaded = round_trip({"n": tensor})["n"]
    assert_same_bits(tensor, loaded)
    for part, found in zip(parts, loaded.unbind(), strict=True):
        assert_same_bits(part, found)


def test_jagged_tensors_with_lengths_and_gradients_come_back() -> None:
    make = torch.nested.nested_tensor_from_jagged
    values, offsets = torch.randn(2, 9), torch.tensor([0, 4, 9])
    for tensor in (
        make(values, offsets, jagged_dim=2),
        make(values.t().contiguous(), offsets, torch.tensor([2, 5]), min_seqlen=2, max_seqlen=5),
    ):
        assert_same_bits(tensor, round_trip(tensor))
    tracked = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged, requires_grad=True)
    assert round_trip(tracked).requires_grad


def quantized() -> list[Tensor]:
    values, scales = torch.randn(4, 6), torch.rand(4, dtype=torch.float64)
    per_tensor = [
        torch.quantize_per_tensor(values, 0.1, 3, dtype)
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
    ]
    zeros = torch.arange(4)
    channel = torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8)
    packed = [
        torch.quantize_per_channel(torch.randn(3, 7), torch.rand(3), torch.rand(3), 0, dtype)
        for dtype in (torch.quint4x2, torch.quint2x4)
    ]
    return [*per_tensor, per_tensor[0].t(), per_tensor[1][1:3], channel, *packed]


@pytest.mark.parametrize("number", range(8))
def test_quantized_tensors_come_back(number: int) -> None:
    tensor = quantized()[number]
    loaded = round_trip([tensor])[0]
    assert_same_bits(tensor, loaded)
    assert loaded.stride() == tensor.stride()


def test_a_wrapper_without_storage_comes_back_by_its_parts() -> None:
    state = {"w": scaled("x"), "p": nn.Parameter(scaled(), requires_grad=True)}
    flat = flatten(state)
    assert [leaf.path for leaf in flat.leaves] == ["w/payload", "w/scale", "p/payload", "p/scale"]
    loaded = flat_trip(flat, weights_only=False)
    assert_same_state(state, loaded)
    assert isinstance(loaded["p"], nn.Parameter)
    with pytest.raises(StateError, match=r"'w': the tensor subclass .*:Scaled is loaded only with"):
        flat_trip(flat)


def test_a_wrapper_of_torch_itself_needs_no_trust_once_imported() -> None:
    two_tensor = importlib.import_module("torch.testing._internal.two_tensor")
    tensor = two_tensor.TwoTensor(torch.ones(2), torch.zeros(2))
    flat = flatten([tensor])
    assert_same_bits(tensor, flat_trip(flat)[0])
    flat.tree[0]["class"] = "torch.utils.bottleneck.__main__:main"
    with pytest.raises(StateError, match="could not be imported; import its module first"):
        flat_trip(flat)
    assert "torch.utils.bottleneck.__main__" not in sys.modules


def test_a_subclass_that_cannot_be_taken_apart_is_a_foreign_class() -> None:
    tensor = torch.ones(2).as_subclass(Named)
    with pytest.raises(StateError, match=r"'n': a .*:Named cannot be stored"):
        flatten({"n": tensor})
    loaded = round_trip({"n": tensor}, allow_pickle=True, weights_only=False)["n"]
    assert type(loaded) is Named


def test_generator_states_stay_on_the_host() -> None:
    state = {
        "a": torch.get_rng_state(),
        "cuda_rng": torch.zeros(16, dtype=torch.uint8),
        "image": torch.zeros(16, dtype=torch.uint8),
        "step": torch.tensor(3.0),
        "model": {"step": nn.Parameter(torch.tensor(3.0))},
    }
    assert [leaf.host for leaf in flatten(state).leaves] == [True, True, False, True, False]


def test_flattening_copies_and_changes_nothing() -> None:
    weight = nn.Parameter(torch.randn(3))
    flat = flatten({"w": weight, "v": weight.detach()[::2]})
    assert flat.leaves[0].tensor.data_ptr() == weight.data_ptr()
    assert not flat.leaves[0].tensor.requires_grad
    assert type(flat.leaves[0].tensor) is Tensor
    assert weight.requires_grad


def freed() -> Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def batched() -> Tensor:
    found: list[Tensor] = []

    def keep(row: Tensor) -> Tensor:
        found.append(row)
        return row

    torch.vmap(keep)(torch.ones(2, 3))
    return found[0]


def packed_view() -> Tensor:
    packed = quantized()[6]
    packed.set_(packed.untyped_storage(), 7, (2, 7), (7, 1))
    return packed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: torch.zeros(2, dtype=torch.uint8).view(vars(torch)["uint4"]),
            "dtype uint4 cannot",
        ),
        (freed, r"storage of this tensor was freed: it has 0 bytes for shape \(3,\)"),
        (fake, "FakeTensor inside a function transform has no bits"),
        (batched, "inside a function transform has no bits"),
        (lambda: nn.UninitializedParameter(), "UninitializedParameter: run the model once"),
        (lambda: torch._efficientzerotensor(3), "store a dense copy"),
        (lambda: torch.ones(3, 3).to_mkldnn(), "store a dense copy"),
        (packed_view, "a view of a torch.quint4x2 tensor"),
    ],
)
def test_a_tensor_without_bits_is_refused_by_path(make: Any, message: str) -> None:
    with pytest.raises(StateError, match=rf"'a/0': .*{message}"):
        flatten({"a": [make()]})


def test_a_distributed_tensor_is_sent_to_dcp(tmp_path: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        sharded = DTensor.from_local(torch.ones(2), mesh)
        with pytest.raises(StateError, match=r"'w': a DTensor .*through s4core\.dcp"):
            flatten({"w": sharded})
    finally:
        torch.distributed.destroy_process_group()
