"""Tickets (LAP/1 1.7), written from docs/protocols.md: XChaCha20-Poly1305 in plain Python, and the message format."""

import hashlib
import hmac
import struct

import lap1

LABEL = b"lap1 ticket v1"
HEAD_BYTES = 64


# ---- RFC 8439 and draft-irtf-cfrg-xchacha-03 ----


def rounds(state: list[int]) -> list[int]:
    x = list(state)

    def quarter(a, b, c, d):
        for p, q, r, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) & 0xFFFFFFFF
            mixed = x[r] ^ x[p]
            x[r] = (mixed << shift | mixed >> (32 - shift)) & 0xFFFFFFFF

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return x


def initial_state(key: bytes, counter_and_nonce: bytes) -> list[int]:
    return list(struct.unpack("<16I", b"expand 32-byte k" + key + counter_and_nonce))


def hchacha20(key: bytes, nonce: bytes) -> bytes:
    x = rounds(initial_state(key, nonce))
    return struct.pack("<8I", *x[:4], *x[12:])


def chacha20(key: bytes, nonce: bytes, counter: int, data: bytes) -> bytes:
    out = b""
    for block, offset in enumerate(range(0, len(data), 64)):
        state = initial_state(key, struct.pack("<I", counter + block) + nonce)
        stream = struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(rounds(state), state)))
        out += bytes(a ^ b for a, b in zip(data[offset : offset + 64], stream))
    return out


def poly1305(key: bytes, message: bytes) -> bytes:
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for offset in range(0, len(message), 16):
        total = (total + int.from_bytes(message[offset : offset + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(key[16:], "little")) % 2**128).to_bytes(16, "little")


def pad_to_16(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def seal(key: bytes, nonce: bytes, aad: bytes, body: bytes) -> bytes:
    """XChaCha20-Poly1305: returns the ciphertext, followed by the tag."""
    subkey, inner_nonce = hchacha20(key, nonce[:16]), bytes(4) + nonce[16:]
    sealed = chacha20(subkey, inner_nonce, 1, body)
    lengths = struct.pack("<QQ", len(aad), len(sealed))
    one_time_key = chacha20(subkey, inner_nonce, 0, bytes(32))
    return sealed + poly1305(one_time_key, pad_to_16(aad) + pad_to_16(sealed) + lengths)


# ---- 1.7 ----


def root(row_key: bytes, response_tag: bytes, device: bytes, idx: int, gateway: int) -> bytes:
    """Returns the key of the tickets of a session."""
    info = b"lap1 ticket" + bytes([lap1.SUITE]) + device + struct.pack(">II", idx, gateway)
    return lap1.hkdf_sha256(row_key, response_tag, info, 32)


def response(key: bytes, head: bytes, aead_nonce: bytes, body: bytes) -> bytes:
    """Returns a ticket of the controller."""
    assert len(head) == HEAD_BYTES
    return head + aead_nonce + seal(key, aead_nonce, LABEL + head, body)


def request(key: bytes, head: bytes, aead_nonce: bytes, body: bytes, session_key: bytes, serial: int) -> bytes:
    """Returns a ticket of the device: sealed for the controller, and with a tag for the gateway."""
    content = response(key, head, aead_nonce, body) + struct.pack(">Q", serial)
    return content + lap1.siphash128(session_key, lap1.label(3) + content + bytes(-len(content) % 8))


# ---- 1.7.5 ----


def hkdf(ikm: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF (RFC 5869) for output of any length."""
    prk, out, block = hmac.new(salt, ikm, hashlib.sha256).digest(), b"", b""
    while len(out) < length:
        block = hmac.new(prk, block + info + bytes([len(out) // 32 + 1]), hashlib.sha256).digest()
        out += block
    return out[:length]


def pair_head(kind: int, role: int, pair_id: bytes, seq: int) -> bytes:
    return struct.pack(">HBBB3x16sQ", 0x4C50, 1, kind, role, pair_id, seq)


def pair_handshake(key: bytes, head: bytes, nonce: bytes) -> bytes:
    return head + nonce + seal(key, nonce + bytes(8), head, b"")


def pair_data(key: bytes, head: bytes, payload: bytes) -> bytes:
    return head + seal(key, bytes(16) + head[-8:], head, payload)
