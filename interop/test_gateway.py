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
LEASE_S = 300
# An address has one live session: each device has its own.
ADDRESSES = {"pool": "127.0.0.1", "key": "127.0.0.2"}
# Of the first try; doubled for each further one (1.5).
TIMEOUT_S, TRIES = 0.02, 8

CONFIG = f"""
[gateway]
id = {GATEWAY_ID}
dataplane = "host"
addresses = ["127.0.0.1"]
port = PORT
lease_s = {LEASE_S}
threads = 1
slots = 100
[registry]
path = "fleet.registry"
master_key_file = "master.key"
"""


def linewarden(directory: Path, *words: str) -> dict:
    done = subprocess.run([PROGRAM, *words], cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if "--json" in words else {}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A registry with a device of each mode, and a gateway that serves it."""
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
    """A device's socket. Retransmits as 1.5 has it, so a lost datagram does not fail a test."""

    def __init__(self, site, mode: str = "pool"):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ADDRESSES[mode], 0))
        self.socket.connect(("127.0.0.1", site[1]))

    def ask(self, message: bytes, tries: int = TRIES) -> bytes | None:
        for attempt in range(tries):
            self.socket.send(message)
            if select.select([self.socket], [], [], TIMEOUT_S * 2**attempt)[0]:
                return self.socket.recv(2048)
        return None


@pytest.mark.parametrize(("mode", "chip"), [("pool", "d1"), ("key", "d2")])
def test_a_device_authenticates_again_and_again(site, mode, chip):
    wire, one, sessions = Wire(site, mode), device(site, mode, chip), set()
    for _ in range(3):
        answer = one.answer(wire.ask(one.begin(secrets.token_bytes(16))))
        session_id, _, lease_s = one.finish(wire.ask(answer))
        assert lease_s == LEASE_S
        sessions.add(session_id)
    assert len(sessions) == 3


def test_the_same_request_gets_the_same_challenge_and_the_same_response_the_same_ack(site):
    wire, one = Wire(site), device(site, "pool", "d1")
    begun = one.begin(secrets.token_bytes(16))
    challenge = wire.ask(begun)
    # Unless `fresh` was drawn anew in between, which happens every 8 s.
    assert wire.ask(begun)[:32] == challenge[:32]
    answer = one.answer(challenge)
    ack = wire.ask(answer)
    assert wire.ask(answer) == ack


def test_nothing_but_the_devices_own_response_is_answered(site):
    wire, one = Wire(site), device(site, "pool", "d1")
    challenge = wire.ask(one.begin(secrets.token_bytes(16)))
    answer = one.answer(challenge)
    for byte in range(64):
        altered = bytearray(answer)
        altered[byte] ^= 1 << secrets.randbelow(8)
        wire.socket.send(altered)
    elsewhere = Wire(site)
    one.finish(wire.ask(answer))
    # Whatever was answered before the true one would have come before its ACK.
    assert not select.select([wire.socket], [], [], 0)[0]
    assert elsewhere.ask(answer, tries=1) is None, "the winner's message from another address"


def test_a_clone_learns_that_its_puf_is_another(site):
    clone = device(site, "key", "another chip", enrolled_as="d2")
    challenge = Wire(site, "key").ask(clone.begin(secrets.token_bytes(16)))
    with pytest.raises(lap1.Refused, match="a wrong tag"):
        clone.answer(challenge)


def test_a_live_session_keeps_its_address(site):
    """1.4.3: the key-mode device comes from where the pool-mode device has its session."""
    holder, guest = device(site, "pool", "d1"), device(site, "key", "d2")
    wire = Wire(site)
    holder.finish(wire.ask(holder.answer(wire.ask(holder.begin(secrets.token_bytes(16))))))
    assert wire.ask(guest.answer(wire.ask(guest.begin(secrets.token_bytes(16)))), tries=2) is None


def test_an_unknown_device_meets_silence(site):
    assert Wire(site).ask(lap1.request((0xFF).to_bytes(8, "big"), bytes(16)), tries=2) is None
