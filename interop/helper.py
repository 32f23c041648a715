"""Helper data (crates/puf, `extractor`) for a PUF without noise: the copies of each bit are all equal, so the outer code has nothing to
correct."""

import hashlib
import struct

# Message bits of BCH(255, k, t), of the two default profiles.
MESSAGE_BITS = {9: 187, 14: 147}


def bits(data: bytes, count: int) -> list[int]:
    """Bits, from the least significant bit of each byte."""
    return [data[i // 8] >> i % 8 & 1 for i in range(count)]


def packed(values: list[int]) -> bytes:
    out = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        out[i // 8] |= value << i % 8
    return bytes(out)


def secret(profile: int, offset: list[int], reading: list[int]) -> bytes:
    """R: the last k bits of each block, because the code is systematic."""
    degree, errors, repetition, blocks = profile.to_bytes(4, "big")
    n, k = (1 << degree) - 1, MESSAGE_BITS[errors]
    noisy = [a ^ b for a, b in zip(offset, reading, strict=True)]
    copies = [noisy[c * blocks * n : (c + 1) * blocks * n] for c in range(repetition)]
    codeword = [int(sum(votes) > repetition // 2) for votes in zip(*copies, strict=True)]
    return packed([bit for b in range(blocks) for bit in codeword[b * n + n - k : (b + 1) * n]])


class PoolHelper:
    def __init__(self, data: bytes):
        assert data[:8] == b"LWHP\x01\0\0\0"
        self.profile, self.first, count = struct.unpack(">III", data[8:20])
        _, _, repetition, blocks = self.profile.to_bytes(4, "big")
        self.response_bits = 255 * repetition * blocks
        size = 8 + (self.response_bits + 7) // 8
        assert len(data) == 20 + count * size
        self.rows = [data[20 + i * size : 20 + (i + 1) * size] for i in range(count)]

    def r_and_digest(self, idx: int, challenge: bytes, read) -> tuple[bytes, bytes]:
        row = self.rows[idx - self.first]
        assert row[:8] == challenge, "a challenge that was never enrolled is not evaluated"
        offset = bits(row[8:], self.response_bits)
        reading = bits(read(challenge, self.response_bits), self.response_bits)
        salt = hashlib.sha256(b"LWHR\x01" + struct.pack(">II", self.profile, idx) + row).digest()
        return secret(self.profile, offset, reading), salt


class KeyHelper:
    def __init__(self, data: bytes):
        assert data[:8] == b"LWHK\x01\0\0\0"
        self.profile, self.readout_bits, count = struct.unpack(">III", data[8:20])
        _, _, repetition, blocks = self.profile.to_bytes(4, "big")
        self.used = 255 * repetition * blocks
        self.cells = list(struct.unpack(f">{count}I", data[20 : 20 + 4 * count])) or list(range(self.used))
        self.offset = bits(data[20 + 4 * count :], self.used)
        self.salt = hashlib.sha256(data).digest()

    def r_and_digest(self, _idx: int, _challenge: bytes, read) -> tuple[bytes, bytes]:
        cells = bits(read(None, self.readout_bits), self.readout_bits)
        return secret(self.profile, self.offset, [cells[cell] for cell in self.cells]), self.salt
