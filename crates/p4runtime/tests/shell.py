"""Typical operations with p4runtime-shell. Usage: shell.py HOST:PORT DIRECTORY [CA CERTIFICATE KEY]
DIRECTORY contains everything.p4info.txtpb and everything.json. With certificate files, the connection uses TLS.

p4runtime-shell itself checks little, so this program reads and compares every written entity.
"""

import os
import sys
import threading

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeException, P4RuntimeWriteException, SSLOptions

address, data, *certificates = sys.argv[1:]
sh.setup(
    device_id=1,
    grpc_addr=address,
    election_id=(0, 1),
    config=sh.FwdPipeConfig(os.path.join(data, "everything.p4info.txtpb"), os.path.join(data, "everything.json")),
    ssl_options=SSLOptions(False, *certificates) if certificates else None,
    verbose=False,
)


def expect_error(code, operation):
    """Returns the error message of a write or read that must fail."""
    try:
        operation()
    except P4RuntimeWriteException as error:
        assert str(error).count(code) == 1, error
        return str(error)
    except P4RuntimeException as error:
        assert code in str(error), error
        return str(error)
    raise AssertionError(f"expected {code}")


def tables():
    entry = sh.TableEntry("In.mac")(action="In.forward")
    entry.match["hdr.ethernet.dst"] = "00:00:00:00:00:0a"
    entry.match["std.ingress_port"] = "300"
    entry.action["port"] = "7"
    entry.idle_timeout_ns = 5_000_000_000
    entry.insert()
    assert "ALREADY_EXISTS" in expect_error("ALREADY_EXISTS", entry.insert)
    (read,) = sh.TableEntry("In.mac").read()
    assert read.match["hdr.ethernet.dst"].exact.value == b"\x0a", "the value must be canonical"
    assert read.match["std.ingress_port"].exact.value == b"\x01\x2c"
    assert read.action["port"].value == b"\x07" and read.idle_timeout_ns == 5_000_000_000
    entry.action["port"] = "8"
    entry.modify()
    (read,) = sh.TableEntry("In.mac").read()
    assert read.action["port"].value == b"\x08"

    acl = sh.TableEntry("In.acl")(action="In.deny")
    acl.match["hdr.ipv4.src"] = "10.0.0.0&&&255.0.0.0"
    acl.match["hdr.ipv4.total_len"] = "64..1500"
    acl.match["std.ingress_port"] = "1"
    expect_error("INVALID_ARGUMENT", acl.insert)  # no priority
    acl.priority = 10
    acl.counter_data.packet_count = 4
    acl.insert()
    query = sh.TableEntry("In.acl")
    query.counter_data  # this access adds a request for counter data to the query
    (read,) = query.read()
    assert read.priority == 10 and read.counter_data.packet_count == 4
    counter = sh.DirectCounterEntry("In.acl_hits")
    counter.table_entry.match["hdr.ipv4.src"] = "10.0.0.0&&&255.0.0.0"
    counter.table_entry.match["hdr.ipv4.total_len"] = "64..1500"
    counter.table_entry.match["std.ingress_port"] = "1"
    counter.table_entry.priority = 10
    counter.data.byte_count = 77
    counter.modify()
    (read,) = counter.read()
    assert read.data.byte_count == 77
    meter = sh.DirectMeterEntry("In.acl_rate")
    meter.table_entry.match["hdr.ipv4.src"] = "10.0.0.0&&&255.0.0.0"
    meter.table_entry.match["hdr.ipv4.total_len"] = "64..1500"
    meter.table_entry.match["std.ingress_port"] = "1"
    meter.table_entry.priority = 10
    meter.config.cir, meter.config.cburst, meter.config.pir, meter.config.pburst = 1, 2, 3, 4
    meter.modify()
    (read,) = meter.read()
    assert (read.config.cir, read.config.pburst) == (1, 4)
    acl.delete()
    assert list(sh.TableEntry("In.acl").read()) == []
    expect_error("NOT_FOUND", acl.delete)

    default = sh.TableEntry("In.everywhere")(action="In.forward", is_default=True)
    default.action["port"] = "1"
    default.modify()
    (read,) = sh.TableEntry("In.everywhere")(is_default=True).read()
    assert read.action["port"].value == b"\x01"
    assert len(list(sh.TableEntry("In.vrf_of_port").read())) == 2, "initial entries of the program"


def profiles():
    for number in (1, 2):
        member = sh.ActionProfileMember("In.next_hops")(member_id=number, action="In.route")
        member.action["next"], member.action["port"] = f"00:00:00:00:00:0{number}", str(number)
        member.insert()
    assert len(list(sh.ActionProfileMember("In.next_hops").read())) == 2
    group = sh.ActionProfileGroup("In.next_hops")(group_id=1)
    group.add(1, weight=2)
    group.add(2, weight=1)
    group.insert()
    (read,) = sh.ActionProfileGroup("In.next_hops").read()
    assert [(member.member_id, member.weight) for member in read.members] == [(1, 2), (2, 1)]
    route = sh.TableEntry("In.routes")(group_id=1)
    route.match["meta.vrf"] = "10"
    route.match["hdr.ipv4.dst"] = "10.1.0.0/16"
    route.insert()
    (read,) = sh.TableEntry("In.routes").read()
    assert read.group_id == 1 and read.match["hdr.ipv4.dst"].lpm.prefix_len == 16
    expect_error("FAILED_PRECONDITION", group.delete)
    route.delete()
    group.delete()
    for number in (1, 2):
        sh.ActionProfileMember("In.next_hops")(member_id=number, action="In.drop").delete()
    oneshot = sh.Oneshot("In.routes")
    for port in (1, 2):
        action = sh.Action("In.route")
        action["next"], action["port"] = "00:00:00:00:00:01", str(port)
        oneshot.add(action, weight=port)
    route = sh.TableEntry("In.routes")(oneshot=oneshot)
    route.match["meta.vrf"] = "10"
    route.insert()
    (read,) = sh.TableEntry("In.routes").read()
    assert [action.weight for action in read.oneshot.msg().action_profile_actions] == [1, 2]


def arrays():
    counter = sh.CounterEntry("In.seen_by_port")
    counter.index = 3
    counter.data.packet_count = 9
    counter.modify()
    cells = list(sh.CounterEntry("In.seen_by_port").read())
    assert [cell.data.packet_count for cell in cells] == [0, 0, 0, 9, 0, 0, 0, 0]
    counter.index = 8
    expect_error("OUT_OF_RANGE", counter.modify)
    meter = sh.MeterEntry("In.rate_by_port")
    meter.index = 0
    meter.config.cir, meter.config.cburst, meter.config.pir, meter.config.pburst = 1, 2, 3, 4
    meter.modify()
    (read,) = meter.read()
    assert (read.config.cir, read.config.cburst, read.config.pir, read.config.pburst) == (1, 2, 3, 4)


def replication():
    group = sh.MulticastGroupEntry(1)
    group.add(1, 1).add(2, 1).add(2, 2)
    group.insert()
    (read,) = sh.MulticastGroupEntry().read()
    assert [(replica.egress_port, replica.instance) for replica in read.replicas] == [(1, 1), (2, 1), (2, 2)]
    group.add(2, 2)
    expect_error("INVALID_ARGUMENT", group.modify)
    session = sh.CloneSessionEntry(100)
    session.add(5, 0)
    session.cos, session.packet_length_bytes = 1, 128
    session.insert()
    (read,) = sh.CloneSessionEntry(100).read()
    assert (read.cos, read.packet_length_bytes, read.replicas[0].egress_port) == (1, 128, 5)
    session.delete()
    assert list(sh.CloneSessionEntry().read()) == []


def send(payload, port="5"):
    packet = sh.PacketOut(payload)
    packet.metadata["egress_port"], packet.metadata["submit"], packet.metadata["unused"] = port, "1", "0"
    packet.send()


def stream():
    digest = sh.DigestEntry("learned_t")
    digest.max_list_size, digest.max_timeout_ns, digest.ack_timeout_ns = 1, 10**9, 10**12
    digest.insert()
    (read,) = sh.DigestEntry("learned_t").read()
    assert read.ack_timeout_ns == 10**12
    send(b"hello", "300")
    packet = sh.client.get_stream_packet("packet", timeout=10).packet
    assert packet.payload == b"hello"
    assert {field.metadata_id: field.value for field in packet.metadata} == {1: b"\x01\x2c", 2: b"\x00"}
    send(b"learn")
    learned = sh.client.get_stream_packet("digest", timeout=10).digest
    assert [member.bitstring for member in learned.data[0].struct.members][:2] == [b"\xaa", b"\x03"]
    send(b"idle")
    idle = sh.client.get_stream_packet("idle_timeout_notification", timeout=10).idle_timeout_notification
    assert idle.table_entry[0].idle_timeout_ns == 5_000_000_000


assert sh.APIVersion() == "1.5.0"
try:
    tables()
    profiles()
    arrays()
    replication()
    stream()
finally:
    sh.teardown()
assert threading.active_count() == 1
print("all operations succeeded")
