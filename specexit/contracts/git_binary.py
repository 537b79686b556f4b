"""The data of a `GIT binary patch`."""

from __future__ import annotations

import zlib
from base64 import b85decode


def inflates(lines: list[str], size: int) -> bool:
    """Whether base85 lines (a length letter each) hold a zlib stream of `size` bytes."""
    data = b""
    for line in lines:
        length = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".find(line[0]) + 1
        if not length or len(line) != 1 + (length + 3) // 4 * 5:
            return False
        try:
            data += b85decode(line[1:])[:length]
        except ValueError:
            return False
    try:
        inflated = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error:
        return False
    return len(inflated) == size
