"""ASN.1 in BER, as far as a CMS signature of AWS uses it; a strict reader of untrusted bytes.

Definite and indefinite lengths and constructed octet strings are read, since Java's CMS
writers use them; tags above 30, lengths above the data and nesting above `MAX_DEPTH` are
errors. Source: ITU-T X.690.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Node", "parse_ber"]

MAX_DEPTH = 24
CONSTRUCTED = 0x20


@dataclass(frozen=True)
class Node:
    """One value.

    Attributes:
        tag: The identifier octet: class, constructed bit and number.
        content: The bytes between length and end.
        definite: Whether the length stood in front.
        children: Of a constructed value, in order; else none.
    """

    tag: int
    content: bytes
    definite: bool
    children: tuple[Node, ...]

    def octets(self) -> bytes:
        """The bytes of an octet string, whose pieces may be values of their own."""
        if not self.tag & CONSTRUCTED:
            return self.content
        return b"".join(child.octets() for child in self.children)

    def child(self, index: int, tag: int) -> Node:
        """The child at `index`, which must have `tag`.

        Raises:
            ValueError: There is none, or it has another tag.
        """
        if index >= len(self.children) or self.children[index].tag != tag:
            raise ValueError(f"BER: expected tag {tag:#04x} at place {index} of {self.tag:#04x}")
        return self.children[index]


def parse_ber(data: bytes) -> Node:
    """The one value in `data`.

    Raises:
        ValueError: It is not well-formed, or something follows it.
    """
    node, end = _value(data, 0, len(data), MAX_DEPTH)
    if end != len(data):
        raise ValueError(f"BER: {len(data) - end} bytes after the value")
    return node


def _value(data: bytes, start: int, end: int, depth: int) -> tuple[Node, int]:
    if depth == 0:
        raise ValueError(f"BER: nested deeper than {MAX_DEPTH}")
    if end - start < 2:
        raise ValueError("BER: cut short")
    tag = data[start]
    if tag & 0x1F == 0x1F:
        raise ValueError("BER: tags above 30 are not used here")
    length, begin = _length(data, start + 1, end)
    if length is None:
        return _indefinite(data, tag, begin, end, depth)
    stop = begin + length
    if stop > end:
        raise ValueError(f"BER: a length of {length} passes the end")
    children = _children(data, begin, stop, depth) if tag & CONSTRUCTED else ()
    return Node(tag, data[begin:stop], True, children), stop


def _length(data: bytes, at: int, end: int) -> tuple[int | None, int]:
    first = data[at]
    if first < 0x80:
        return first, at + 1
    if first == 0x80:
        return None, at + 1
    count = first & 0x7F
    if count > 4 or at + 1 + count > end:
        raise ValueError("BER: a length that is too long or cut short")
    return int.from_bytes(data[at + 1 : at + 1 + count], "big"), at + 1 + count


def _children(data: bytes, at: int, stop: int, depth: int) -> tuple[Node, ...]:
    found = []
    while at < stop:
        child, at = _value(data, at, stop, depth - 1)
        found.append(child)
    return tuple(found)


def _indefinite(data: bytes, tag: int, at: int, end: int, depth: int) -> tuple[Node, int]:
    if not tag & CONSTRUCTED:
        raise ValueError("BER: an indefinite length on a primitive value")
    begin, found = at, []
    while data[at : at + 2] != b"\0\0" or at + 2 > end:  # the end mark
        child, at = _value(data, at, end, depth - 1)
        found.append(child)
    return Node(tag, data[begin:at], False, tuple(found)), at + 2
