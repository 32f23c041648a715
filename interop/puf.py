#!/usr/bin/env python3
"""A simulated PUF for `linewarden device enroll command`: its bits are derived from the argument, and one bit in
200 is wrong in each reading (enrollment refuses a PUF without errors, because it may be a file).

Reads `CHALLENGE BITS` as described in `linewarden config example agent`, and prints hexadecimal digits.
"""

import hashlib
import secrets
import sys

ERROR_EVERY = 200


def read(chip: str, challenge: bytes | None, count: int) -> bytes:
    seed = chip.encode() + (challenge or b"")
    reading = bytearray(hashlib.shake_256(seed).digest((count + 7) // 8))
    for _ in range(count // ERROR_EVERY):
        bit = secrets.randbelow(count)
        reading[bit // 8] ^= 1 << bit % 8
    return bytes(reading)


if __name__ == "__main__":
    challenge, count = sys.stdin.readline().split()
    print(read(sys.argv[1], None if challenge == "-" else bytes.fromhex(challenge), int(count)).hex())
