"""No object in a state makes `save` raise but `StateError`, or store what cannot be loaded."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from forging import load, saved

from s4core import digests
from s4core.errors import S4Error, StateError
from s4core.tree import flatten

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


class _Raises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class _RaisingProperty:
    @property
    def state_dict(self) -> Any:
        raise RuntimeError("never asked")


def _claims(claimed: Any) -> Any:
    def lie(_: Any) -> Any:
        if isinstance(claimed, Exception):
            raise claimed
        return claimed

    return type("Liar", (), {"__class__": property(lie)})()


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(name)


class _OfMeta(metaclass=_Meta):
    pass


@pytest.mark.parametrize(
    "make",
    [
        _Raises,
        _RaisingProperty,
        _OfMeta,
        lambda: _claims(RuntimeError("never asked")),
        lambda: _claims(torch.Tensor),  # once a segmentation fault
        lambda: _claims(np.dtype),
        lambda: _claims(np.float32),
        lambda: _claims(tuple),
    ],
)
def test_an_object_that_lies_or_raises_is_a_state_error(make: Callable[[], Any]) -> None:
    with pytest.raises(StateError, match=r"'a/0': a .* cannot be stored"):
        saved({"a": [make()]})


Plain = namedtuple("Plain", "a b")


class Lying(Plain):
    def __iter__(self) -> Any:
        return iter([1, 2, 3])


def test_a_namedtuple_is_what_lies_in_it() -> None:
    assert tuple.__eq__(load(saved(Lying(7, 8))), (7, 8))


def test_fields_that_rename_made_are_read_again() -> None:
    renamed = namedtuple("Renamed", ["class", "a", "a"], rename=True)
    assert renamed._fields == ("_0", "a", "_2")
    found = load(saved(renamed(1, 2, 3)))
    assert (type(found).__name__, found._fields, tuple(found)) == (
        "Renamed",
        ("_0", "a", "_2"),
        (1, 2, 3),
    )


@pytest.mark.parametrize("fields", [("a", "a"), ("def", "a"), ("_1", "_0"), ("fi", "\ufb01")])
def test_fields_that_could_not_be_read_are_not_stored(fields: tuple[str, str]) -> None:
    odd = type("Odd", (tuple,), {"_fields": fields})
    with pytest.raises(StateError, match="Odd with fields .* cannot be stored"):
        saved({"x": odd((1, 2))})


def _csr(columns: list[int]) -> torch.Tensor:
    parts = torch.tensor([0, 2]), torch.tensor(columns), torch.tensor([1.0, 2.0])
    return torch.sparse_csr_tensor(*parts, size=(1, 2), check_invariants=False)


def _coo(indices: list[int], **more: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([indices]), torch.ones(len(indices)), (2,), check_invariants=False, **more
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: _csr([1, 0]),
        lambda: _csr([1, 1]),
        lambda: _coo([9]),
        lambda: _coo([1, 0], is_coalesced=True),
    ],
)
def test_a_sparse_tensor_that_would_not_load_is_not_stored(make: Callable[[], Any]) -> None:
    with pytest.raises(StateError, match=r"'s': this tensor breaks its layout's rules"):
        saved({"s": make()})


def _deeper(frames: int, do: Callable[[], Any]) -> Any:
    return do() if not frames else _deeper(frames - 1, do)


@pytest.mark.parametrize("frames", [0, 300, 600])
def test_what_was_saved_loads_from_the_same_depth_of_the_stack(frames: int) -> None:
    for levels in range(20, 127, 15):
        state: Any = functools.reduce(lambda inner, _: (inner,), range(levels), 0)
        try:
            file = _deeper(frames, lambda state=state: saved(state))
        except StateError:
            return
        found, depth = _deeper(frames, lambda file=file: load(file)), 0
        while found != 0:
            found, depth = found[0], depth + 1
        assert depth == levels


def test_many_keys_that_look_alike_take_no_quadratic_time() -> None:
    # Half an hour, when the number after each was sought from the first one on.
    assert len(flatten({(n, n): 0 for n in range(60_000)}).tree["items"]) == 60_000


def test_a_view_too_large_to_copy_is_a_sentence() -> None:
    huge = np.broadcast_to(np.zeros(1, dtype=">f4"), (1 << 50,))
    with pytest.raises(StateError, match="no memory for a copy of a part of the state"):
        saved({"x": huge})


def test_words_changed_between_comparison_and_digest_do_not_make_a_bad_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, pieces = torch.arange(300_000.0), digests.pieces

    def changing(chunk: Any) -> list[int]:
        words.add_(1)  # as another thread may
        return pieces(chunk)

    monkeypatch.setattr(digests, "pieces", changing)
    try:
        file = saved({"w": words})
    except S4Error:
        return
    monkeypatch.undo()
    load(file)
