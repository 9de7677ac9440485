"""Plain-Python twins of C functions: slow, and short enough to check by reading. Tests hold the two equal."""

from __future__ import annotations

from tickwheel_native import Buffer

POLYNOMIAL = 0x82F63B78
"""CRC-32C's polynomial (Castagnoli), its bits reversed because the lowest bit comes first."""


def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC-32C of ``data``, bit by bit; ``seed`` is the CRC of what came before it."""
    crc = seed ^ 0xFFFFFFFF
    for byte in bytes(data):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
