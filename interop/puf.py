#!/usr/bin/env python3
"""A quiet PUF behind `linewarden device enroll command`: bits that follow from a word given as argument, one in
200 of them wrong in each reading (enrolment refuses a PUF that never errs: it would be a file).

Reads `CHALLENGE BITS` as `linewarden config example agent` has it and prints hexadecimal digits.
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
