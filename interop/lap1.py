"""The device role of LAP/1, suite 1, written from docs/protocols.md and RFC 5869 with Python's standard library.

The module shows that the specification is sufficient to build a device, and shares no code with the product. It performs one
handshake at a time and holds keys in plain Python objects; do not use it in a real device.
"""

import hashlib
import hmac
import struct

PORT = 20550
MAGIC, VERSION, SUITE = 0x4C57, 1, 1
REQUEST, CHALLENGE, RESPONSE, ACK, NAK, DATA_UP, DATA_DOWN = range(1, 8)
BOUND = 0x01
U64_MAX = (1 << 64) - 1


def siphash128(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128-bit output (Aumasson, Bernstein 2012, and the authors' reference code)."""

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) & U64_MAX

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = v[0] + v[1] & U64_MAX
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = v[2] + v[3] & U64_MAX
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & U64_MAX
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & U64_MAX
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    k0, k1 = struct.unpack("<QQ", key)
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    tail = len(message) % 8
    padded = message[len(message) - tail :].ljust(7, b"\0") + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", message[: len(message) - tail] + padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def hkdf_sha256(ikm: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF (RFC 5869) for at most 32 bytes of output."""
    assert length <= 32
    prk = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()[:length]


# ---- 1.1, 1.2: keys ----


def row_key(r: bytes, helper_digest: bytes, device: bytes, idx: int | None) -> bytes:
    """Returns the key of a row in pool mode; with `idx` None, the key of a device in key mode."""
    if idx is None:
        info = b"lap1 device" + bytes([SUITE]) + device
    else:
        info = b"lap1 row" + bytes([SUITE]) + device + struct.pack(">I", idx)
    return hkdf_sha256(r, helper_digest, info, 16)


def label(number: int) -> bytes:
    return bytes([0, 0, 1, number, SUITE, 0, 0, 0])


def auth_key(key: bytes, idx: int, gateway: int) -> bytes:
    return siphash128(key, label(1) + struct.pack(">II", idx, gateway))


def session_key(key: bytes, response_tag: bytes) -> bytes:
    return siphash128(key, label(2) + response_tag)


# ---- 1.3: messages ----


def header(kind: int, device: bytes, flags: int = 0, length: int = 64) -> bytes:
    return struct.pack(">HBBBBH", MAGIC, VERSION, kind, SUITE, flags, length) + device


def request(device: bytes, nonce: bytes) -> bytes:
    return header(REQUEST, device) + nonce + bytes(32)


def challenge_tag(key: bytes, message: bytes, nonce: bytes) -> bytes:
    ig, challenge, fresh = message[16:24], message[24:32], message[32:40]
    return siphash128(key, message[:16] + nonce + ig + challenge + fresh)


def response(key: bytes, device: bytes, nonce: bytes, ig: bytes, fresh: bytes, mac: bytes | None) -> bytes:
    loc = bytes(8) if mac is None else mac + bytes(2)
    head = header(RESPONSE, device, 0 if mac is None else BOUND)
    return head + nonce + ig + fresh + siphash128(key, head + nonce + ig + fresh + loc)


def ack_tag(key: bytes, message: bytes) -> bytes:
    h0, idx_lifetime, session_id, seen_ip = message[:8], message[16:24], message[24:32], message[48:64]
    return siphash128(key, h0 + idx_lifetime + session_id + seen_ip)


def data_tag(key: bytes, message: bytes, source_port: int, peer: bytes) -> bytes:
    h0, seq, port, payload = message[:8], message[24:32], message[32:34], message[56:]
    padded = payload + bytes(-len(payload) % 8)
    return siphash128(key, h0 + seq + port + struct.pack(">H", source_port) + bytes(4) + peer + padded)


def ipv4_mapped(ipv4: str) -> bytes:
    """Returns the IPv4 address as the IPv6 address ::ffff:a.b.c.d."""
    return bytes(10) + b"\xff\xff" + bytes(int(part) for part in ipv4.split("."))


class IgnoredMessage(Exception):
    """A message that the device ignores (1.5)."""


def with_row_statement(nonce: bytes, unanswered_from: int, has_refused: bool) -> bytes:
    """Returns the nonce of a REQUEST in pool mode: the given nonce with the row statement in bytes 8 to 11 (1.3)."""
    return nonce[:8] + struct.pack(">I", unanswered_from | has_refused << 31) + nonce[12:]


class Device:
    """A device that performs one handshake at a time, for sessions that are not bound to a MAC address.

    `keys(idx, challenge)` reads the PUF and returns the row_key.
    """

    def __init__(self, device: bytes, mode: str, keys, address: str):
        self.device, self.mode, self.keys, self.address = device, mode, keys, address
        self.nonce = self.key = self.response = None
        # For pool mode. `unanswered_from`: the highest row that the device has answered, plus 1; a real device stores this number
        # (1.5). `has_refused`: whether the device has refused a row since the last verified ACK. `accepted`: the rows with a
        # verified ACK.
        self.unanswered_from, self.has_refused, self.accepted = 0, False, set()

    def begin(self, nonce: bytes) -> bytes:
        """Starts a handshake; returns a REQUEST."""
        if self.mode == "pool":
            nonce = with_row_statement(nonce, self.unanswered_from, self.has_refused)
        self.nonce, self.key, self.response = nonce, None, None
        return request(self.device, nonce)

    def respond(self, message: bytes) -> bytes:
        """Processes a CHALLENGE; returns a RESPONSE."""
        if len(message) != 64 or message[:16] != header(CHALLENGE, self.device):
            raise IgnoredMessage("not a CHALLENGE for this device")
        if message[40:48] != self.nonce[:8]:
            raise IgnoredMessage("the nonce is not the nonce of the pending REQUEST")
        idx, gateway = struct.unpack(">II", message[16:24])
        if idx in self.accepted:
            self.has_refused = True
            raise IgnoredMessage("the row is already spent")
        key = auth_key(self.keys(idx, message[24:32]), idx if self.mode == "pool" else 0, gateway)
        if not hmac.compare_digest(challenge_tag(key, message, self.nonce), message[48:64]):
            raise IgnoredMessage("a wrong tag")
        self.key = key
        if self.mode == "pool":
            self.unanswered_from = max(self.unanswered_from, idx + 1)
        self.response = response(key, self.device, self.nonce, message[16:24], message[32:40], None)
        return self.response

    def finish(self, message: bytes) -> tuple[bytes, bytes, int]:
        """Processes an ACK; returns session ID, session key and lifetime in seconds."""
        if len(message) != 64 or message[:16] != header(ACK, self.device):
            raise IgnoredMessage("not an ACK for this device")
        key = session_key(self.key, self.response[48:64])
        if not hmac.compare_digest(ack_tag(key, message), message[32:48]):
            raise IgnoredMessage("a wrong tag")
        if message[24:32] != self.response[48:56] or message[16:20] != self.response[32:36]:
            raise IgnoredMessage("an ACK for another RESPONSE")
        if self.mode == "pool":
            self.accepted.add(struct.unpack(">I", message[16:20])[0])
            self.has_refused = False
        if message[48:64] != ipv4_mapped(self.address):
            raise IgnoredMessage("the gateway received another source address")
        return message[24:32], key, struct.unpack(">I", message[20:24])[0]
