"""Recomputes docs/vectors/ticket.json with the Python device."""

import json
import struct
from pathlib import Path

import pytest

import ticket

VECTORS = json.loads((Path(__file__).parents[1] / "docs/vectors/ticket.json").read_text())


def test_xchacha20_poly1305():
    """The test vector of draft-irtf-cfrg-xchacha-03, A.3.1."""
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    aad = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = ticket.seal(bytes(range(0x80, 0xA0)), bytes(range(0x40, 0x58)), aad, text)
    assert sealed[:16].hex() == "bd6d179d3e83d43b9576579493c0e939"
    assert sealed[-16:].hex() == "c0875924c1c7987947deafd8780acf49"


@pytest.mark.parametrize("case", VECTORS["messages"])
def test_messages(case):
    expected = bytes.fromhex(case["message"])
    magic, version, kind, suite, direction, length = struct.unpack(">HBBBBH", expected[:8])
    assert (magic, version, kind, suite) == (0x4C54, 1, case["kind"], 1)
    assert (direction, length) == (case["direction"], len(expected))
    device, (gateway, idx) = expected[8:16], struct.unpack(">II", expected[16:24])
    key = ticket.root(bytes.fromhex(VECTORS["row_key"]), expected[24:40], device, idx, gateway)
    assert key.hex() == VECTORS["root"]
    body, nonce = bytes.fromhex(case["body"]), expected[64:88]
    if direction == 2:
        sealed_message = ticket.response(key, expected[:64], nonce, body)
    else:
        session_key = bytes.fromhex(VECTORS["session_key"])
        sealed_message = ticket.request(key, expected[:64], nonce, body, session_key, VECTORS["serial"])
    assert sealed_message == expected
