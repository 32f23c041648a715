"""The Python device against `linewarden-gateway run` on the loopback interface."""

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
PROGRAMS = Path(os.environ.get("LINEWARDEN_PROGRAMS", HERE.parent / "target/debug"))
GATEWAY_ID = 7
SESSION_LIFETIME_S = 300
# An address has at most one live session, so each device has its own address.
ADDRESSES = {"pool": "127.0.0.1", "key": "127.0.0.2"}
# The timeout of the first attempt. Each further attempt has twice the timeout of the previous attempt (1.5).
TIMEOUT_S, ATTEMPTS = 0.02, 8

CONFIG = f"""
[gateway]
id = {GATEWAY_ID}
dataplane = "host"
addresses = ["127.0.0.1"]
port = PORT
session_lifetime_s = {SESSION_LIFETIME_S}
threads = 1
slots = 100
[controller]
socket = "controller.sock"
"""
CONTROLLER = """
[service]
socket = "controller.sock"
[registry]
path = "fleet.registry"
master_key_file = "master.key"
"""


def linewarden(directory: Path, *arguments: str) -> dict:
    """Runs the program for administration; with --output json, returns the last line of its output."""
    result = subprocess.run([PROGRAMS / "linewarden", *arguments], cwd=directory, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]) if "--output=json" in arguments else {}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A gateway, and a controller with one device of each mode. Yields the directory of the files and the gateway's port."""
    directory = tmp_path_factory.mktemp("site")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (directory / "gateway.toml").write_text(CONFIG.replace("PORT", str(port)))
    (directory / "controller.toml").write_text(CONTROLLER)
    linewarden(directory, "registry", "create", "--registry", "fleet.registry", "--key-file", "master.key")
    for mode, device in (("pool", "d1"), ("key", "d2")):
        linewarden(
            directory, "device", "enroll", "command", "--mode", mode, "--device", device, "--out", "devices",
            "--config", "controller.toml", "--", sys.executable, str(HERE / "puf.py"), device,
        )  # fmt: skip
    controller = start(directory, "controller")
    try:
        wait_for_line(controller, lambda line: line.get("event") == "started")
        gateway = start(directory, "gateway")
        try:
            wait_for_line(gateway, lambda line: line.get("loaded"))
            yield directory, port
        finally:
            stop(gateway)
    finally:
        stop(controller)


def start(directory: Path, role: str) -> subprocess.Popen:
    """Starts the gateway or the controller."""
    command = [PROGRAMS / f"linewarden-{role}", "run", "--config", f"{role}.toml", "--output=json"]
    return subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)


def wait_for_line(process: subprocess.Popen, condition) -> None:
    """Waits for a line of JSON that satisfies the condition."""
    for line in process.stdout:
        if condition(json.loads(line)):
            return
    pytest.fail(f"{process.args} ended before it was ready")


def stop(process: subprocess.Popen) -> None:
    """Ends a process as a service manager does."""
    process.terminate()
    process.wait(30)


def create_device(site, mode: str, chip: str, enrolled_as: str | None = None) -> lap1.Device:
    """Returns a device with the PUF of this chip. Its device ID is `enrolled_as`, or the name of the chip."""
    directory, _ = site
    device_id = int(enrolled_as or chip, 16).to_bytes(8, "big")
    helper_class = helper.PoolHelper if mode == "pool" else helper.KeyHelper
    helper_data = helper_class((directory / "devices" / f"{device_id.hex()}.helper").read_bytes())

    def keys(idx: int, challenge: bytes) -> bytes:
        r, digest = helper_data.r_and_digest(idx, challenge, lambda c, count: puf.read(chip, c, count))
        return lap1.row_key(r, digest, device_id, idx if mode == "pool" else None)

    return lap1.Device(device_id, mode, keys, ADDRESSES[mode])


class DeviceSocket:
    """A device's UDP socket."""

    def __init__(self, site, mode: str = "pool"):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ADDRESSES[mode], 0))
        self.socket.connect(("127.0.0.1", site[1]))

    def exchange(self, message: bytes, attempts: int = ATTEMPTS) -> bytes | None:
        """Sends the message until a reply arrives, so a lost datagram does not fail a test (1.5). Returns the reply, or None."""
        for attempt in range(attempts):
            self.socket.send(message)
            if select.select([self.socket], [], [], TIMEOUT_S * 2**attempt)[0]:
                return self.socket.recv(2048)
        return None


@pytest.mark.parametrize(("mode", "chip"), [("pool", "d1"), ("key", "d2")])
def test_a_device_authenticates_repeatedly(site, mode, chip):
    device_socket, client, sessions = DeviceSocket(site, mode), create_device(site, mode, chip), set()
    for _ in range(3):
        response = client.respond(device_socket.exchange(client.begin(secrets.token_bytes(16))))
        session_id, _, lifetime_s = client.finish(device_socket.exchange(response))
        assert lifetime_s == SESSION_LIFETIME_S
        sessions.add(session_id)
    assert len(sessions) == 3


def test_a_repeated_request_gets_the_same_challenge_and_a_repeated_response_gets_the_same_ack(site):
    device_socket, client = DeviceSocket(site), create_device(site, "pool", "d1")
    request = client.begin(secrets.token_bytes(16))
    challenge = device_socket.exchange(request)
    # Compares the bytes before `fresh`, because `fresh` changes every 8 s.
    assert device_socket.exchange(request)[:32] == challenge[:32]
    response = client.respond(challenge)
    ack = device_socket.exchange(response)
    assert device_socket.exchange(response) == ack


def test_altered_responses_and_a_response_from_another_port_get_no_reply(site):
    device_socket, client = DeviceSocket(site), create_device(site, "pool", "d1")
    challenge = device_socket.exchange(client.begin(secrets.token_bytes(16)))
    response = client.respond(challenge)
    for byte in range(64):
        altered = bytearray(response)
        altered[byte] ^= 1 << secrets.randbelow(8)
        device_socket.socket.send(altered)
    other_port = DeviceSocket(site)
    client.finish(device_socket.exchange(response))
    # A reply to an earlier message would have arrived before the ACK.
    assert not select.select([device_socket.socket], [], [], 0)[0]
    assert other_port.exchange(response, attempts=1) is None, "an accepted response was sent from another UDP port"


def test_a_clone_with_another_puf_rejects_the_challenge(site):
    clone = create_device(site, "key", "another chip", enrolled_as="d2")
    challenge = DeviceSocket(site, "key").exchange(clone.begin(secrets.token_bytes(16)))
    with pytest.raises(lap1.IgnoredMessage, match="a wrong tag"):
        clone.respond(challenge)


def test_another_device_gets_no_session_at_the_address_of_a_live_session(site):
    """1.4.3: the key-mode device sends from the IP address of the pool-mode device's session."""
    holder, claimant = create_device(site, "pool", "d1"), create_device(site, "key", "d2")
    device_socket = DeviceSocket(site)
    holder.finish(device_socket.exchange(holder.respond(device_socket.exchange(holder.begin(secrets.token_bytes(16))))))
    response = claimant.respond(device_socket.exchange(claimant.begin(secrets.token_bytes(16))))
    assert device_socket.exchange(response, attempts=2) is None


def test_an_unknown_device_gets_no_reply(site):
    assert DeviceSocket(site).exchange(lap1.request((0xFF).to_bytes(8, "big"), bytes(16)), attempts=2) is None
