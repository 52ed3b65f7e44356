"""A third rANS encoder: FORMAT.md, section 4.2, symbol by symbol in plain Python.

It takes any k and any table, so that tests can make blobs that no writer chooses, and
shares nothing with the numpy reference.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

LOW = 1 << 15


@dataclass
class Block:
    states: list[int]
    words: list[int]
    patches: list[tuple[int, int]] = field(default_factory=list)


def encode_block(symbols: list[int], frequency: dict[int, int], k: int) -> Block:
    """Code one sub-block; every symbol has a frequency."""
    start, total = {}, 0
    for symbol in sorted(frequency):
        start[symbol] = total
        total += frequency[symbol]
    states, words = [LOW] * 32, []
    for group in range(0, len(symbols), 128):
        for j in range(4):
            for lane in range(32):
                at = group + 4 * lane + j
                if at >= len(symbols):
                    continue
                f, x = frequency[symbols[at]], states[lane]
                if x >= f << (31 - k):
                    words.append(x & 0xFFFF)
                    x >>= 16
                states[lane] = (x // f << k) + x % f + start[symbols[at]]
    return Block(states, words)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def pack(n: int, sub_block: int, k: int, frequency: dict[int, int], blocks: list[Block]) -> bytes:
    """Lay the blob out."""
    bitmap = sum(1 << symbol for symbol in frequency).to_bytes(32, "little")
    values = struct.pack(f"<{len(frequency)}H", *(frequency[s] for s in sorted(frequency)))
    entries = [len(block.words) | len(block.patches) << 24 for block in blocks]
    out = struct.pack("<BBBBIII", 2, k, len(blocks), 0, n, sub_block, 0)
    out += bitmap + padded(values) + padded(struct.pack(f"<{len(entries)}I", *entries))
    for block in blocks:
        out += struct.pack("<32I", *block.states)
        out += padded(struct.pack(f"<{len(block.words)}H", *block.words))
        patches = [position | symbol << 24 for position, symbol in block.patches]
        out += padded(struct.pack(f"<{len(patches)}I", *patches))
    return out


def encode(symbols: list[int], sub_block: int, k: int, frequency: dict[int, int]) -> bytes:
    """Code symbols that all have a frequency; no patches."""
    parts = [symbols[at : at + sub_block] for at in range(0, len(symbols), sub_block)]
    blocks = [encode_block(part, frequency, k) for part in parts]
    return pack(len(symbols), sub_block, k, frequency, blocks)
