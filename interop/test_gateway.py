"""The Python device against `linewarden serve` on the loopback interface."""

import json
import os
import secrets
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import helper
import lap1
import puf

HERE = Path(__file__).parent
PROGRAM = os.environ.get("LINEWARDEN_PROGRAM", HERE.parent / "target/debug/linewarden")
GATEWAY_ID = 7
SESSION_LIFETIME_S = 300
# An address has at most one live session, so each device has its own address.
ADDRESSES = {"pool": "127.0.0.1", "key": "127.0.0.2"}
# Timeout of the first attempt; doubled for each further one (1.5).
TIMEOUT_S, TRIES = 0.02, 8

CONFIG = f"""
[gateway]
id = {GATEWAY_ID}
dataplane = "host"
addresses = ["127.0.0.1"]
port = PORT
session_lifetime_s = {SESSION_LIFETIME_S}
threads = 1
slots = 100
[registry]
path = "fleet.registry"
master_key_file = "master.key"
"""


def linewarden(directory: Path, *words: str) -> dict:
    result = subprocess.run([PROGRAM, *words], cwd=directory, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]) if "--json" in words else {}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A registry with a device of each mode, and a gateway."""
    directory = tmp_path_factory.mktemp("site")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (directory / "gateway.toml").write_text(CONFIG.replace("PORT", str(port)))
    linewarden(directory, "registry", "create", "--registry", "fleet.registry", "--key-file", "master.key")
    for mode, device in (("pool", "d1"), ("key", "d2")):
        linewarden(
            directory, "device", "enroll", "command", "--mode", mode, "--device", device, "--out", "devices",
            "--config", "gateway.toml", "--", sys.executable, str(HERE / "puf.py"), device,
        )  # fmt: skip
    serve = subprocess.Popen(
        [PROGRAM, "serve", "--config", "gateway.toml", "--json"], cwd=directory, stdout=subprocess.PIPE, text=True
    )
    try:
        for line in serve.stdout:
            if json.loads(line).get("loaded"):
                break
        else:
            pytest.fail("the gateway ended before it was ready")
        yield directory, port
    finally:
        serve.terminate()
        serve.wait(30)


def device(site, mode: str, chip: str, enrolled_as: str | None = None) -> lap1.Device:
    directory, _ = site
    number = int(enrolled_as or chip, 16).to_bytes(8, "big")
    kind = helper.PoolHelper if mode == "pool" else helper.KeyHelper
    data = kind((directory / "devices" / f"{number.hex()}.helper").read_bytes())

    def keys(idx: int, challenge: bytes) -> bytes:
        r, digest = data.r_and_digest(idx, challenge, lambda c, count: puf.read(chip, c, count))
        return lap1.row_key(r, digest, number, idx if mode == "pool" else None)

    return lap1.Device(number, mode, keys, ADDRESSES[mode])


class Wire:
    """A device's socket. Retransmits as in 1.5, so a lost datagram does not fail a test."""

    def __init__(self, site, mode: str = "pool"):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ADDRESSES[mode], 0))
        self.socket.connect(("127.0.0.1", site[1]))

    def exchange(self, message: bytes, tries: int = TRIES) -> bytes | None:
        for attempt in range(tries):
            self.socket.send(message)
            if select.select([self.socket], [], [], TIMEOUT_S * 2**attempt)[0]:
                return self.socket.recv(2048)
        return None


@pytest.mark.parametrize(("mode", "chip"), [("pool", "d1"), ("key", "d2")])
def test_a_device_authenticates_repeatedly(site, mode, chip):
    wire, client, sessions = Wire(site, mode), device(site, mode, chip), set()
    for _ in range(3):
        response = client.respond(wire.exchange(client.begin(secrets.token_bytes(16))))
        session_id, _, lifetime_s = client.finish(wire.exchange(response))
        assert lifetime_s == SESSION_LIFETIME_S
        sessions.add(session_id)
    assert len(sessions) == 3


def test_the_same_request_gets_the_same_challenge_and_the_same_response_the_same_ack(site):
    wire, client = Wire(site), device(site, "pool", "d1")
    request = client.begin(secrets.token_bytes(16))
    challenge = wire.exchange(request)
    # Unless `fresh` has changed, which happens every 8 s.
    assert wire.exchange(request)[:32] == challenge[:32]
    response = client.respond(challenge)
    ack = wire.exchange(response)
    assert wire.exchange(response) == ack


def test_only_the_devices_own_response_gets_a_reply(site):
    wire, client = Wire(site), device(site, "pool", "d1")
    challenge = wire.exchange(client.begin(secrets.token_bytes(16)))
    response = client.respond(challenge)
    for byte in range(64):
        altered = bytearray(response)
        altered[byte] ^= 1 << secrets.randbelow(8)
        wire.socket.send(altered)
    other_address = Wire(site)
    client.finish(wire.exchange(response))
    # A reply to an earlier message would have arrived before the ACK.
    assert not select.select([wire.socket], [], [], 0)[0]
    assert other_address.exchange(response, tries=1) is None, "the accepted response from another address"


def test_a_clone_with_another_puf_rejects_the_challenge(site):
    clone = device(site, "key", "another chip", enrolled_as="d2")
    challenge = Wire(site, "key").exchange(clone.begin(secrets.token_bytes(16)))
    with pytest.raises(lap1.Refused, match="a wrong tag"):
        clone.respond(challenge)


def test_a_live_session_keeps_its_address(site):
    """1.4.3: the key-mode device uses the address at which the pool-mode device has its session."""
    holder, claimant = device(site, "pool", "d1"), device(site, "key", "d2")
    wire = Wire(site)
    holder.finish(wire.exchange(holder.respond(wire.exchange(holder.begin(secrets.token_bytes(16))))))
    assert wire.exchange(claimant.respond(wire.exchange(claimant.begin(secrets.token_bytes(16)))), tries=2) is None


def test_an_unknown_device_gets_no_reply(site):
    assert Wire(site).exchange(lap1.request((0xFF).to_bytes(8, "big"), bytes(16)), tries=2) is None
