#!/usr/bin/env python3
"""A simulated PUF for `linewarden device enroll command`. Its bits are derived from the challenge and from the command-line
argument, which names the chip. In each reading, about one bit in 200 is wrong, because enrollment rejects a PUF without bit
errors: such a PUF could be a file.

Reads a line `CHALLENGE BITS` from standard input, as described in `linewarden-agent config example`. Prints hexadecimal
digits.
"""

import hashlib
import secrets
import sys

BITS_PER_ERROR = 200


def read(chip: str, challenge: bytes | None, count: int) -> bytes:
    seed = chip.encode() + (challenge or b"")
    reading = bytearray(hashlib.shake_256(seed).digest((count + 7) // 8))
    for _ in range(count // BITS_PER_ERROR):
        bit = secrets.randbelow(count)
        reading[bit // 8] ^= 1 << bit % 8
    return bytes(reading)


if __name__ == "__main__":
    challenge, count = sys.stdin.readline().split()
    print(read(sys.argv[1], None if challenge == "-" else bytes.fromhex(challenge), int(count)).hex())
