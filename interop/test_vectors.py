"""Recomputes docs/vectors/lap1.json with the Python device."""

import json
from pathlib import Path

import pytest

import lap1

VECTORS = json.loads((Path(__file__).parents[1] / "docs/vectors/lap1.json").read_text())
DEVICE = bytes.fromhex(VECTORS["device_id"])


def raw(case: dict, name: str) -> bytes:
    return bytes.fromhex(case[name])


@pytest.mark.parametrize("case", VECTORS["siphash"])
def test_siphash(case):
    message = b"".join(bytes.fromhex(word) for word in case["words"])
    assert lap1.siphash128(raw(case, "key"), message) == raw(case, "output")


def test_siphash_of_the_reference_code():
    """The last of the 64 vectors in `vectors_sip128` of the authors' code. The message has 63 bytes, not a multiple of 8."""
    tag = lap1.siphash128(bytes(range(16)), bytes(range(63)))
    assert tag.hex() == "5150d1772f50834a503e069a973fbd7c"


@pytest.mark.parametrize("case", VECTORS["keys"])
def test_keys(case):
    idx = case["idx"] if case["mode"] == "pool" else None
    key = lap1.row_key(raw(case, "r"), raw(case, "helper_digest"), DEVICE, idx)
    assert key == raw(case, "row_key")
    assert lap1.auth_key(key, idx or 0, VECTORS["gateway_id"]) == raw(case, "auth_key")


@pytest.mark.parametrize("case", VECTORS["handshakes"])
def test_handshakes(case):
    key, challenge, ack = raw(case, "auth_key"), raw(case, "challenge"), raw(case, "ack")
    nonce = raw(case, "request")[16:32]
    assert lap1.request(DEVICE, nonce) == raw(case, "request")
    assert lap1.challenge_tag(key, challenge, nonce) == challenge[48:64]
    mac = bytes.fromhex(case["source_mac"]) if case["source_mac"] else None
    if raw(case, "response")[5] != lap1.BOUND:
        mac = None
    response = lap1.response(key, DEVICE, nonce, challenge[16:24], challenge[32:40], mac)
    assert response == raw(case, "response")
    session = lap1.session_key(key, response[48:64])
    assert session == raw(case, "session_key")
    assert lap1.ack_tag(session, ack) == ack[32:48]
    assert ack[24:32] == response[48:56]


@pytest.mark.parametrize("case", VECTORS["data"])
def test_data(case):
    message = raw(case, "message")
    assert len(message) == 56 + case["payload_bytes"]
    tag = lap1.data_tag(raw(case, "session_key"), message, case["source_port"], raw(case, "peer"))
    assert tag == message[40:56]
