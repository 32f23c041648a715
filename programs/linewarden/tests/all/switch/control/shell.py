"""Operations of p4runtime-shell on a switch. Usage: shell.py HOST:PORT DIRECTORY with packets.p4info.txtpb and .json

The script sends and receives frames on the interfaces h0 to h3, which are connected to the switch's ports.
"""

import os
import socket
import sys
import threading

import p4runtime_sh.shell as sh
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeException, P4RuntimeWriteException

address, data = sys.argv[1:]
INFO, JSON = (os.path.join(data, name) for name in ("packets.p4info.txtpb", "packets.json"))
TEST_TIMEOUT_S = 60
ETHER_TYPE = 0x1234
CPU = 510
BROADCAST = "ff:ff:ff:ff:ff:ff"


def open_port(number):
    port_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHER_TYPE))
    port_socket.bind((f"h{number}", ETHER_TYPE))
    port_socket.settimeout(TEST_TIMEOUT_S)
    return port_socket


ports = [open_port(number) for number in range(4)]


def frame(dst, payload):
    address = bytes(int(part, 16) for part in dst.split(":"))
    return address + b"\x02\x00\x00\x00\x00\xaa" + ETHER_TYPE.to_bytes(2, "big") + payload


def assert_received(number, sent):
    received = ports[number].recv(2048)
    assert received == sent, (number, received, sent)


def assert_no_frames():
    for number, port_socket in enumerate(ports):
        port_socket.setblocking(False)
        try:
            raise AssertionError((number, port_socket.recv(2048)))
        except BlockingIOError:
            port_socket.settimeout(TEST_TIMEOUT_S)


def flow(dst, action, **params):
    entry = sh.TableEntry("In.flows")(action=action)
    entry.match["dst"] = dst
    for name, value in params.items():
        entry.action[name] = str(value)
    return entry


def assert_error(code, operation):
    try:
        operation()
    except (P4RuntimeWriteException, P4RuntimeException) as error:
        assert code in str(error), error
        return
    raise AssertionError(f"expected {code}")


def check_tables():
    entry = flow("02:00:00:00:00:01", "In.to_port", port=1)
    entry.insert()
    assert_error("ALREADY_EXISTS", entry.insert)
    sent = frame("02:00:00:00:00:01", b"to port 1")
    ports[0].send(sent)
    assert_received(1, sent)
    entry.action["port"] = "2"
    entry.modify()
    ports[0].send(sent)
    assert_received(2, sent)
    query = sh.TableEntry("In.flows")
    query.counter_data
    (read,) = query.read()
    assert read.action["port"].value == b"\x02"
    assert read.counter_data.packet_count == 2 and read.counter_data.byte_count == 2 * len(sent)
    default = sh.TableEntry("In.flows")(action="In.to_port", is_default=True)
    default.action["port"] = "3"
    default.modify()
    unknown = frame("02:00:00:00:00:99", b"to the default")
    ports[0].send(unknown)
    assert_received(3, unknown)
    entry.delete()
    assert_error("NOT_FOUND", entry.delete)
    ports[0].send(sent)
    assert_received(3, sent)
    drop_default = sh.TableEntry("In.flows")(action="In.drop", is_default=True)
    drop_default.modify()


def check_counters():
    counter = sh.CounterEntry("In.received")
    counter.index = 0
    (read,) = counter.read()
    assert read.data.packet_count == 4, read
    counter.data.packet_count, counter.data.byte_count = 100, 1000
    counter.modify()
    entry = flow("02:00:00:00:00:01", "In.to_port", port=1)
    entry.insert()
    sent = frame("02:00:00:00:00:01", b"counted")
    ports[0].send(sent)
    assert_received(1, sent)
    (read,) = counter.read()
    assert (read.data.packet_count, read.data.byte_count) == (101, 1000 + len(sent)), read
    entry.delete()


def check_meters():
    meter = sh.MeterEntry("In.rates")
    meter.index = 3
    meter.config.cir, meter.config.cburst, meter.config.pir, meter.config.pburst = 0, 1, 0, 1
    meter.modify()
    (read,) = meter.read()
    assert (read.config.cir, read.config.pburst) == (0, 1)
    policed = flow("02:00:00:00:00:01", "In.police", port=1)
    policed.insert()
    for payload in (b"green", b"red"):
        ports[3].send(frame("02:00:00:00:00:01", payload))
    ports[2].send(frame("02:00:00:00:00:01", b"by a port without rates"))
    arrived = {ports[1].recv(2048)[14:] for _ in range(2)}
    assert arrived == {b"green", b"by a port without rates"}, arrived
    policed.delete()


def check_registers():
    """The shell has no command for registers, so this check sends the messages with the shell's client."""
    (register,) = (known for known in sh.client.get_p4info().registers if known.preamble.name == "In.words")
    word = 0x0123456789ABCDEFFFFFFFFF

    def entity(message):
        message.register_entry.register_id = register.preamble.id
        message.register_entry.index.index = 5
        return message.register_entry

    update = p4runtime_pb2.Update()
    update.type = p4runtime_pb2.Update.MODIFY
    entity(update.entity).data.bitstring = word.to_bytes(12, "big")
    sh.client.write_update(update)
    add = flow("02:00:00:00:00:01", "In.add_word", addend=1, place=5)
    add.insert()
    sent = frame("02:00:00:00:00:01", b"add")
    ports[2].send(sent)
    assert_received(2, sent)
    query = p4runtime_pb2.Entity()
    entity(query)
    (response,) = sh.client.read_one(query)
    (cell,) = response.entities
    assert int.from_bytes(cell.register_entry.data.bitstring, "big") == word + 1
    add.delete()


def check_packets():
    entry = flow("02:00:00:00:00:01", "In.to_controller", reason=9)
    entry.insert()
    sent = frame("02:00:00:00:00:01", b"hello")
    ports[2].send(sent)
    packet = sh.client.get_stream_packet("packet", timeout=TEST_TIMEOUT_S).packet
    assert packet.payload == sent
    assert {field.metadata_id: field.value for field in packet.metadata} == {1: b"\x02", 2: b"\x09"}
    for number in (3, 0):
        out = sh.PacketOut(sent)
        out.metadata["egress_port"], out.metadata["unused"] = str(number), "0"
        out.send()
        assert_received(number, sent)
    entry.delete()


def check_replication():
    group = sh.MulticastGroupEntry(1)
    group.add(1, 1).add(2, 1).add(2, 2)
    group.insert()
    broadcast_flow = flow(BROADCAST, "In.to_group", group=1)
    broadcast_flow.insert()
    sent = frame(BROADCAST, b"to all")
    ports[0].send(sent)
    for number in (1, 2, 2):
        assert_received(number, sent)
    group.delete()
    broadcast_flow.delete()

    session = sh.CloneSessionEntry(100)
    session.add(CPU, 0)
    session.insert()
    copied = flow("02:00:00:00:00:01", "In.copy", port=3, session=100)
    copied.insert()
    sent = frame("02:00:00:00:00:01", b"twice")
    ports[1].send(sent)
    assert_received(3, sent)
    assert sh.client.get_stream_packet("packet", timeout=TEST_TIMEOUT_S).packet.payload == sent
    copied.delete()
    session.delete()


def check_digests():
    digest = sh.DigestEntry("seen_t")
    digest.max_list_size, digest.ack_timeout_ns = 1, 10**12
    digest.insert()
    learned = flow("02:00:00:00:00:01", "In.learn", port=3)
    learned.insert()
    sent = frame("02:00:00:00:00:01", b"who am I")
    ports[1].send(sent)
    assert_received(3, sent)
    message = sh.client.get_stream_packet("digest", timeout=TEST_TIMEOUT_S).digest
    src, port, broadcast = message.data[0].struct.members
    assert (src.bitstring, port.bitstring, broadcast.bool) == (b"\x02\x00\x00\x00\x00\xaa", b"\x01", False)
    learned.delete()


def check_idle_timeout():
    entry = flow("02:00:00:00:00:01", "In.drop")
    entry.idle_timeout_ns = 20_000_000
    entry.insert()
    message = sh.client.get_stream_packet("idle_timeout_notification", timeout=TEST_TIMEOUT_S)
    (idle,) = message.idle_timeout_notification.table_entry
    assert idle.idle_timeout_ns == 20_000_000
    entry.delete()


def check_new_program():
    entry = flow("02:00:00:00:00:01", "In.to_port", port=1)
    entry.insert()
    sh.client.set_fwd_pipe_config(INFO, JSON)
    assert list(sh.TableEntry("In.flows").read()) == [], "a new program has no entries"
    entry.insert()
    sent = frame("02:00:00:00:00:01", b"through the other program")
    ports[0].send(sent)
    assert_received(1, sent)


sh.setup(
    device_id=5,
    grpc_addr=address,
    election_id=(0, 1),
    config=sh.FwdPipeConfig(INFO, JSON),
    verbose=False,
)
assert sh.APIVersion() == "1.5.0"
try:
    for check in (
        check_tables,
        check_counters,
        check_meters,
        check_registers,
        check_packets,
        check_replication,
        check_digests,
        check_idle_timeout,
        check_new_program,
    ):
        check()
        assert_no_frames()
        print(check.__name__, flush=True)
finally:
    sh.teardown()
assert threading.active_count() == 1
print("all packets arrived at the expected ports")
