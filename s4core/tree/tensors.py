"""Nodes of tensors: the plain ones here, all others by their parts.

A plain tensor is strided, has a storage and a dtype that S4 stores. Its node holds
what its bits do not say: that it is a Parameter, wants a gradient, is a conjugate or
negative view, has attributes of its own. The rest (dtype, shape, strides, device) is
in the manifest's record of it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from s4core.dtypes import BY_NAME
from s4core.errors import StateError
from s4core.tree import paths
from s4core.tree.classes import write_foreign
from s4core.tree.composites import write_jagged, write_nested, write_quantized, write_sparse
from s4core.tree.containers import may_be_attribute, write_attributes
from s4core.tree.geometry import covers_storage
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.subclasses import write_subclass
from s4core.tree.writing import Node, Write, Writer

__all__ = ["READERS", "SHARED", "write_tensor"]

SHARED: Final = frozenset({"tensor"})
_SPARSE: Final = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
# Hints that torch's compiler leaves on tensors; they are about this process.
_COMPILER: Final = "_dynamo"
# The state of torch's generator on the CPU is that long.
_CPU_GENERATOR_BYTES: Final = 5056
_GENERATOR_WORDS: Final = ("rng", "seed", "generator", "random")


def write_tensor(writer: Writer, value: Tensor, path: str) -> Node:
    """The node of any tensor.

    Raises:
        StateError: it has no bits of its own, or S4 cannot rebuild it.
    """
    _refuse_without_bits(value, path)
    if value.layout is torch.jagged:
        return writer.once(value, path, lambda: write_jagged(writer, value, path))
    if type(value) not in (Tensor, nn.Parameter):
        if not hasattr(value, "__tensor_flatten__"):
            return write_foreign(writer, value, path)
        return writer.once(value, path, lambda: write_subclass(writer, value, path))
    write = _writer_for(value, path)
    return writer.once(value, path, lambda: write(writer, value, path))


def _writer_for(value: Tensor, path: str) -> Write:
    if value.layout in _SPARSE:
        return write_sparse
    if value.is_nested:
        return write_nested
    name = str(value.dtype).removeprefix("torch.")
    if name not in BY_NAME:
        raise StateError(
            f"{paths.shown(path)}: dtype {name} cannot be stored: torch has no kernels for it; "
            "view the tensor as uint8"
        )
    if value.is_quantized:
        return write_quantized
    _check_storage(value, path)
    return _write_plain


def _refuse_without_bits(value: Tensor, path: str) -> None:
    where, module = paths.shown(path), type(value).__module__
    if module.startswith("torch.distributed"):
        raise StateError(
            f"{where}: a {type(value).__name__} holds one rank's part only: "
            "save distributed state through s4core.dcp"
        )
    if is_lazy(value):
        raise StateError(f"{where}: {type(value).__name__}: run the model once before saving")
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
    if module.startswith("torch._subclasses") or wrapped or torch._is_functional_tensor(value):
        raise StateError(
            f"{where}: a {type(value).__name__} inside a function transform has no bits of its "
            "own: save outside of it"
        )


def _check_storage(value: Tensor, path: str) -> None:
    if value.layout is not torch.strided or value._is_zerotensor():
        raise StateError(
            f"{paths.shown(path)}: a tensor of layout {value.layout} that torch alone "
            "understands cannot be stored: store a dense copy"
        )
    if not value.is_meta and not covers_storage(value):
        raise StateError(
            f"{paths.shown(path)}: the storage of this tensor was freed: it has "
            f"{value.untyped_storage().nbytes()} bytes for shape {tuple(value.shape)}; gather "
            "sharded parameters first"
        )


def _write_plain(writer: Writer, value: Tensor, path: str) -> Node:
    plain = value.detach()
    flags = {"conj": plain.is_conj(), "neg": plain.is_neg()}
    plain = plain.conj() if flags["conj"] else plain
    plain = torch._neg_view(plain) if flags["neg"] else plain
    flags |= {"param": type(value) is nn.Parameter, "grad": value.requires_grad}
    node = {"$": "tensor", "t": writer.leaf(plain, path, host=_stays_on_host(value, path))}
    node |= {name: True for name, flag in flags.items() if flag}
    own = {k: v for k, v in vars(value).items() if not k.startswith(_COMPILER)}
    return node | write_attributes(writer, own, Tensor, path)


def _stays_on_host(value: Tensor, path: str) -> bool:
    """Whether a tensor must be on the CPU wherever the rest is loaded to.

    States of random number generators: `set_rng_state` accepts no other. Step counters:
    optimizers keep them on the CPU and move them themselves where they want them.
    """
    if value.device.type != "cpu" or type(value) is not Tensor:
        return False
    words = path.lower().split("/")
    if value.dtype is torch.uint8 and value.dim() == 1:
        named = any(word in part for part in words for word in _GENERATOR_WORDS)
        return named or value.numel() == _CPU_GENERATOR_BYTES
    return words[-1] == "step" and value.dim() == 0


def _read_plain(reader: Reader, fields: Fields) -> Tensor:
    tensor = reader.tensor(fields)
    flags = {name: fields.flag(name) for name in ("conj", "neg", "param", "grad")}
    attributes = reader.named(fields, "attrs") if fields.has("attrs") else {}
    try:
        tensor = _dressed(tensor, flags, anew=bool(attributes))
    except RuntimeError as error:
        raise fields.fail(f"torch refused a {tensor.dtype}: {error}") from None
    for name, value in attributes.items():
        if not may_be_attribute(name, Tensor):
            raise fields.fail(f"attribute {name!r} would hide one of Tensor's own")
        vars(tensor)[name] = value
    return tensor


def _dressed(tensor: Tensor, flags: dict[str, bool], *, anew: bool) -> Tensor:
    if flags["conj"]:
        tensor = tensor.conj()
    if flags["neg"]:
        tensor = torch._neg_view(tensor)
    if flags["param"]:
        return nn.Parameter(tensor, requires_grad=flags["grad"])
    if flags["grad"]:
        return tensor.detach().requires_grad_()
    return tensor.detach() if anew else tensor


READERS: Final[dict[str, Read]] = {"tensor": _read_plain}
