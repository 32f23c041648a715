"""Recomputes docs/vectors/pair.json with the Python device."""

import json
from pathlib import Path

import ticket

VECTORS = json.loads((Path(__file__).parents[1] / "docs/vectors/pair.json").read_text())


def raw(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name])


def test_pair():
    ids, pair_id, key = raw("initiator") + raw("responder"), raw("pair_id"), raw("key")
    hello, welcome = raw("hello"), raw("welcome")
    nonce_i, nonce_r = hello[32:48], welcome[32:48]
    k_hello = ticket.hkdf(key, pair_id, b"lap1 pair\x01" + ids, 32)
    assert ticket.pair_handshake(k_hello, ticket.pair_head(1, 1, pair_id, 0), nonce_i) == hello
    session_keys = ticket.hkdf(key, nonce_i + nonce_r, b"lap1 pair\x02" + ids, 64)
    keys = {1: session_keys[:32], 2: session_keys[32:]}
    assert ticket.pair_handshake(keys[2], ticket.pair_head(2, 2, pair_id, 0), nonce_r) == welcome
    sequence_numbers = {1: 0, 2: 0}
    for case in VECTORS["data"]:
        role = case["role"]
        sequence_numbers[role] += 1
        head = ticket.pair_head(3, role, pair_id, sequence_numbers[role])
        message = ticket.pair_data(keys[role], head, bytes.fromhex(case["payload"]))
        assert message.hex() == case["message"]
