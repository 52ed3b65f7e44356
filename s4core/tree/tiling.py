"""Whether boxes tile a tensor: every element in exactly one of them.

Take each box as a function that is 1 inside it and 0 outside. Boxes tile the tensor iff
their functions add up to the tensor's. Mixed differences tell functions of finite support
apart, and that of a box is +1 or -1 at each of its corners, by the parity of the corner,
and 0 elsewhere. So it is enough to add up the signed corners: exact, and linear in the
number of boxes, however a hostile file lays them out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Final

__all__ = ["MAX_CUT_DIMENSIONS", "Box", "tiles"]

# Offsets and sizes, one number for each dimension.
Box = tuple[Sequence[int], Sequence[int]]

# A box has 2^d corners in the d dimensions that are cut; meshes have fewer.
MAX_CUT_DIMENSIONS: Final = 8


def tiles(size: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether `boxes` cover a tensor of `size` completely and nothing twice or outside.

    Boxes without elements are allowed anywhere. False too where boxes have another number
    of dimensions, or cut more than `MAX_CUT_DIMENSIONS` of them.
    """
    if any(not len(size) == len(offsets) == len(sizes) for offsets, sizes in boxes):
        return False
    full = [box for box in boxes if 0 not in box[1]]
    if 0 in size:
        return not full
    whole = ((0,) * len(size), size)
    cut = [
        dim
        for dim in range(len(size))
        if any((offsets[dim], sizes[dim]) != (0, size[dim]) for offsets, sizes in full)
    ]
    if len(cut) > MAX_CUT_DIMENSIONS:
        return False
    corners: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for sign, box in [(1, box) for box in full] + [(-1, whole)]:
        _add_corners(corners, sign, box, cut)
    return not any(corners.values())


def _add_corners(
    corners: defaultdict[tuple[int, ...], int], sign: int, box: Box, dims: Sequence[int]
) -> None:
    offsets, sizes = box
    for far in product((0, 1), repeat=len(dims)):
        corner = tuple(offsets[d] + f * sizes[d] for d, f in zip(dims, far, strict=True))
        corners[corner] += sign * (-1) ** sum(far)
