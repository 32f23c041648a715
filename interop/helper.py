"""Reads helper data (crates/puf, `extractor`) of a PUF with few bit errors.

A majority vote over the copies of each bit corrects all errors, so this module does not decode the outer code (BCH).
"""

import hashlib
import struct

# k by t: the number of message bits of BCH(255, k, t) in the two default profiles. The code corrects t errors.
MESSAGE_BITS = {9: 187, 14: 147}


def unpack_bits(data: bytes, count: int) -> list[int]:
    """Returns the first `count` bits of the data. The least significant bit of each byte is first."""
    return [data[i // 8] >> i % 8 & 1 for i in range(count)]


def pack_bits(values: list[int]) -> bytes:
    """The inverse of `unpack_bits`."""
    out = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        out[i // 8] |= value << i % 8
    return bytes(out)


def extract_r(profile: int, offset: list[int], reading: list[int]) -> bytes:
    """Returns R: the last k of the n bits of each block, because the code is systematic."""
    degree, errors, repetition, blocks = profile.to_bytes(4, "big")
    n, k = (1 << degree) - 1, MESSAGE_BITS[errors]
    noisy = [a ^ b for a, b in zip(offset, reading, strict=True)]
    copies = [noisy[c * blocks * n : (c + 1) * blocks * n] for c in range(repetition)]
    codeword = [int(sum(votes) > repetition // 2) for votes in zip(*copies, strict=True)]
    return pack_bits([bit for b in range(blocks) for bit in codeword[b * n + n - k : (b + 1) * n]])


class PoolHelper:
    """Helper data of the rows of a pool."""

    def __init__(self, data: bytes):
        assert data[:8] == b"LWHP\x01\0\0\0"
        self.profile, self.first_idx, count = struct.unpack(">III", data[8:20])
        _, _, repetition, blocks = self.profile.to_bytes(4, "big")
        self.response_bits = 255 * repetition * blocks
        size = 8 + (self.response_bits + 7) // 8
        assert len(data) == 20 + count * size
        self.rows = [data[20 + i * size : 20 + (i + 1) * size] for i in range(count)]

    def r_and_digest(self, idx: int, challenge: bytes, read) -> tuple[bytes, bytes]:
        row = self.rows[idx - self.first_idx]
        assert row[:8] == challenge, "the challenge is not the enrolled challenge of this row"
        offset = unpack_bits(row[8:], self.response_bits)
        reading = unpack_bits(read(challenge, self.response_bits), self.response_bits)
        salt = hashlib.sha256(b"LWHR\x01" + struct.pack(">II", self.profile, idx) + row).digest()
        return extract_r(self.profile, offset, reading), salt


class KeyHelper:
    """Helper data of a device in key mode."""

    def __init__(self, data: bytes):
        assert data[:8] == b"LWHK\x01\0\0\0"
        self.profile, self.readout_bits, count = struct.unpack(">III", data[8:20])
        _, _, repetition, blocks = self.profile.to_bytes(4, "big")
        self.used_bits = 255 * repetition * blocks
        self.cells = list(struct.unpack(f">{count}I", data[20 : 20 + 4 * count])) or list(range(self.used_bits))
        self.offset = unpack_bits(data[20 + 4 * count :], self.used_bits)
        self.salt = hashlib.sha256(data).digest()

    def r_and_digest(self, _idx: int, _challenge: bytes, read) -> tuple[bytes, bytes]:
        cells = unpack_bits(read(None, self.readout_bits), self.readout_bits)
        return extract_r(self.profile, self.offset, [cells[cell] for cell in self.cells]), self.salt
