"""Runs the inputs in p4/features on BMv2's simple_switch and writes its outputs as STF packet tests.

Usage: bmv2.py SIMPLE_SWITCH SIMPLE_SWITCH_CLI P4_DIRECTORY [NAME..], in its own network namespace (scripts/bmv2-outputs).

features/NAME.inputs is a packet test (crates/switch/src/stf) without results. This program adds the results: `expect` after every
packet, `expect_digest` at the end, and the values of `check_counter` and `expect_register`. It also checks `expect_idle`. An
additional command `packets COUNT PORT HEX` sends COUNT packets, with pseudorandom digits for `?` in HEX, the same in every run.
Ternary keys are written with `&&&`. Packets have at least 14 bytes and no VLAN tag: this program cannot send other packets.
"""

import hashlib
import json
import pathlib
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time

PORTS = range(8)
# Seconds without output after which a packet is considered processed.
QUIET_S = 0.08
# Maximum wait for an idle entry: BMv2 searches for idle entries once a second.
SWEEP_S = 3.5
# BMv2 buffers digests for a second, or until it has 16.
DIGEST_S = 2
PROMPT = "RuntimeCmd: "
VLAN_TYPES = ("8100", "88a8", "9100")


class Ports:
    """One veth pair per port: `sN` is the end of the switch, `hN` the end of the test."""

    def __init__(self):
        subprocess.run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"], check=True)
        self.sockets = []
        for port in PORTS:
            ends = [f"h{port}", f"s{port}"]
            subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
            for end in ends:
                subprocess.run(["ip", "link", "set", end, "mtu", "9000", "up"], check=True)
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            end.bind((ends[0], 0))
            self.sockets.append(end)

    def drain(self, quiet_s: float) -> list[tuple[int, bytes]]:
        """Receives frames from the switch until none arrives for `quiet_s`. Returns their ports and bytes, sorted by port."""
        out = []
        while ready := select.select(self.sockets, [], [], quiet_s)[0]:
            for end in ready:
                frame, address = end.recvfrom(65536)
                if address[2] != socket.PACKET_OUTGOING:
                    out.append((self.sockets.index(end), frame))
        return sorted(out, key=lambda sent: sent[0])


class Notifications:
    """Digests and idle entries, received from BMv2's nanomsg publisher over a socket with nanomsg's wire protocol."""

    def __init__(self, address: str):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(address)
        self.socket.sendall(b"\0SP\0\0\x21\0\0")
        assert self.exactly(8)[:4] == b"\0SP\0"
        self.digests, self.idle = [], set()

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            assert chunk, "the switch closed its notifications"
            data += chunk
        return data

    def receive(self):
        """Reads pending notifications."""
        while select.select([self.socket], [], [], 0)[0]:
            _, length = struct.unpack(">BQ", self.exactly(9))
            message = self.exactly(length)
            if message.startswith(b"LEA|"):
                _, _, _, number, buffer, count = struct.unpack("<4sQIiQI", message[:32])
                self.digests.append((number, buffer, count, message[32:]))
            elif message.startswith(b"AGE|"):
                _, _, _, _, table, count = struct.unpack("<4sQIQiI", message[:32])
                self.idle.update((table, handle) for handle in struct.unpack(f"<{count}I", message[32:]))


class Switch:
    """A simple_switch process with a program, and a simple_switch_CLI process that controls the switch."""

    def __init__(self, command: str, cli: str, program: pathlib.Path, folder: str):
        self.port = port = 9000 + int(hashlib.sha256(program.name.encode()).hexdigest(), 16) % 900
        notifications = f"{folder}/{program.stem}.ipc"
        interfaces = [word for number in PORTS for word in ("-i", f"{number}@s{number}")]
        common = [command, *interfaces, "--thrift-port", str(port), "--log-file", f"{folder}/{program.stem}", "-L", "off"]
        has_notifications = "--notifications-addr" in subprocess.run([command, "--help"], capture_output=True, text=True).stdout
        options = ["--notifications-addr", f"ipc://{notifications}"] if has_notifications else []
        self.process = subprocess.Popen([*common, *options, str(program)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None, "simple_switch did not start"
                time.sleep(0.05)
        self.notifications = Notifications(notifications) if has_notifications else None
        self.cli = subprocess.Popen(
            [cli, "--thrift-port", str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={"PYTHONUNBUFFERED": "1"},
        )
        self.response()

    def response(self) -> str:
        text = ""
        while not text.endswith(PROMPT):
            data = self.cli.stdout.read1(65536)
            assert data, f"simple_switch_CLI exited: {text}"
            text += data.decode()
        return text.removesuffix(PROMPT)

    def execute(self, line: str, pattern: str = "") -> str:
        """Executes a command and returns the part of its output that matches the group in `pattern`."""
        self.cli.stdin.write(f"{line}\n".encode())
        self.cli.stdin.flush()
        response = self.response()
        match = re.search(pattern, response)
        if not match or re.search(r"Invalid|Error|error|unknown|Unknown", response):
            raise RuntimeError(f"{line}\n{response}")
        return match.group(1) if match.groups() else ""

    def value_set_add(self, name: str, value: bytes):
        """Adds a value over Thrift: the CLI command pads the value with one byte too many."""

        def text(data: bytes) -> bytes:
            return struct.pack(">i", len(data)) + data

        call = struct.pack(">I", 0x80010001) + text(b"standard:bm_parse_vset_add") + struct.pack(">i", 0)
        call += struct.pack(">bhi", 8, 1, 0) + struct.pack(">bh", 11, 2) + text(name.encode())
        call += struct.pack(">bh", 11, 3) + text(value) + b"\0"
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(call)
            response = connection.recv(4096)
        assert response[3] == 2 and response.endswith(b"\0\0\0\0\0"), f"{name}: {response}"

    def stop(self):
        for process in (self.cli, self.process):
            process.kill()
            process.wait()


class Program:
    """Compiled program, which resolves the names in a test."""

    def __init__(self, path: pathlib.Path):
        self.json = json.loads(path.read_text())
        self.tables = {table["name"]: table for pipeline in self.json["pipelines"] for table in pipeline["tables"]}
        self.actions = {action["id"]: action for action in self.json["actions"]}

    @staticmethod
    def full_name(name: str, names) -> str:
        """Name in `names` that is equal to `name` or ends with it after a dot."""
        matches = [full for full in names if full == name] or [full for full in names if full.endswith(f".{name}")]
        if len(matches) != 1:
            raise RuntimeError(f"name {name} has {len(matches)} matches in {sorted(names)}, expected 1")
        return matches[0]

    def table(self, name: str) -> dict:
        return self.tables[self.full_name(name, self.tables)]

    def call(self, text: str, ids) -> tuple[str, list[str]]:
        """Parses `ACTION(NAME:NUMBER, ..)` into the name and the arguments in order."""
        name, arguments = re.fullmatch(r"([\w.$]+)\((.*)\)", text).groups()
        allowed = {self.actions[number]["name"]: self.actions[number] for number in ids}
        action = allowed[self.full_name(name, allowed)]
        values = dict(re.findall(r"(\w+)\s*:\s*(\w+)", arguments))
        return action["name"], [values[parameter["name"]] for parameter in action["runtime_data"]]

    def keys(self, table: dict, words: list[str]) -> str:
        """Key of an entry in the syntax of the CLI."""
        names = [key["name"] for key in table["key"]]
        by_name = {self.full_name(name, names): value for name, value in (key.rsplit(":", 1) for key in words)}
        values = []
        for key in table["key"]:
            value = by_name[key["name"]]
            assert (key["match_type"] == "ternary") == ("&&&" in value), f"value {value} does not fit a key field of type {key['match_type']}"
            values.append(value)
        return " ".join(values)

    def digest(self, number: int, sample: bytes) -> tuple[int, list[str]]:
        """Length in bytes of the first sample, and the name of the digest followed by the fields of the sample."""
        learn = next(learn for learn in self.json["learn_lists"] if learn["id"] == number)
        types = {kind["name"]: dict(field[:2] for field in kind["fields"]) for kind in self.json["header_types"]}
        headers = {header["name"]: types[header["header_type"]] for header in self.json["headers"]}
        offset, values = 0, []
        for element in learn["elements"]:
            header, field = element["value"]
            size = (headers[header][field] + 7) // 8
            values.append(int.from_bytes(sample[offset : offset + size], "big"))
            offset += size
        return offset, [learn["name"], *map(hex, values)]


class Run:
    """Runs one inputs file on one switch."""

    def __init__(self, name: str, switch: Switch, program: Program, ports: Ports):
        self.name, self.switch, self.program, self.ports = name, switch, program, ports
        self.entries, self.members, self.groups, self.out = {}, {}, {}, []

    def line(self, text: str):
        words = text.split("#")[0].split()
        handler = getattr(self, f"do_{words[0]}", None) if words else None
        if words and words[0] == "packets":
            for number in range(int(words[1])):
                self.packet(int(words[2]), self.filled("".join(words[3:]), f"{text} {number}"))
            return
        if not words or words[0] not in ("packet", "check_counter", "expect_register"):
            self.out.append(text)
        if handler:
            handler(words[1:], text)
        elif words:
            # All other commands are commands of the CLI.
            self.switch.execute(" ".join(words))

    def filled(self, template: str, seed: str) -> str:
        """Replaces each `?` by a pseudorandom hexadecimal digit."""
        digits = iter(hashlib.shake_256(f"{self.name} {seed}".encode()).hexdigest(len(template)))
        return "".join(next(digits) if digit == "?" else digit for digit in template)

    def do_packet(self, words, _text):
        self.packet(int(words[0]), "".join(words[1:]))

    def packet(self, port: int, digits: str):
        assert len(digits) >= 28 and digits[24:28].lower() not in VLAN_TYPES, f"cannot send packet {digits}"
        self.out.append(f"packet {port} {digits}")
        self.ports.sockets[port].send(bytes.fromhex(digits))
        for egress_port, frame in self.ports.drain(QUIET_S):
            self.out.append(f"expect {egress_port} {frame.hex()}$")
        assert self.switch.process.poll() is None, f"simple_switch exited at packet {digits}"

    def digests(self):
        """Adds the received digests at the end, because BMv2 batches them."""
        if not self.program.json["learn_lists"]:
            return
        assert self.switch.notifications, "digests require a simple_switch with nanomsg"
        time.sleep(DIGEST_S)
        self.switch.notifications.receive()
        for number, buffer, count, samples in self.switch.notifications.digests:
            for _ in range(count):
                size, (name, *values) = self.program.digest(number, samples)
                self.out.append(f"expect_digest {name} {' '.join(values)}")
                samples = samples[size:]
        self.out.append("no_digest")

    def entry(self, words: list[str], verb: str, target):
        name = words[words.index("=") + 1] if "=" in words else None
        words = words[: words.index("=")] if "=" in words else words
        table = self.program.table(words[0])
        priority = ""
        if words[1].isdigit():
            priority = f" {10000 - int(words.pop(1))}" if table["match_type"] in ("ternary", "range") else ""
        count = len(table["key"])
        head, tail = target(table, words[1 + count :])
        keys = self.program.keys(table, words[1 : 1 + count])
        handle = self.switch.execute(f"{verb} {table['name']}{head} {keys} => {tail}{priority}", r"added with handle (\d+)")
        if name:
            self.entries[name] = (table, int(handle))

    def do_add(self, words, _text):
        def target(table, rest):
            action, arguments = self.program.call("".join(rest), table["action_ids"])
            return f" {action}", " ".join(arguments)

        self.entry(words, "table_add", target)

    def do_add_member(self, words, _text):
        self.entry(words, "table_indirect_add", lambda table, rest: ("", str(self.members[self.profile(table), rest[0]])))

    def do_add_group(self, words, _text):
        def target(table, rest):
            return "", str(self.groups[self.profile(table), rest[0]])

        self.entry(words, "table_indirect_add_with_group", target)

    @staticmethod
    def profile(table: dict) -> str:
        return table["action_profile"]

    def do_setdefault(self, words, _text):
        table = self.program.table(words[0])
        action, arguments = self.program.call("".join(words[1:]), table["action_ids"])
        self.switch.execute(f"table_set_default {table['name']} {action} {' '.join(arguments)}")

    def full_profile_name(self, name: str) -> str:
        pipelines = self.program.json["pipelines"]
        names = [profile["name"] for pipeline in pipelines for profile in pipeline["action_profiles"]]
        return self.program.full_name(name, names)

    def do_member_add(self, words, _text):
        profile = self.full_profile_name(words[0])
        tables = [table for table in self.program.tables.values() if table.get("action_profile") == profile]
        action, arguments = self.program.call("".join(words[2:]), tables[0]["action_ids"])
        command = f"act_prof_create_member {profile} {action} {' '.join(arguments)}"
        self.members[profile, words[1]] = self.switch.execute(command, r"created with handle (\d+)")

    def do_group_add(self, words, _text):
        profile = self.full_profile_name(words[0])
        handle = self.switch.execute(f"act_prof_create_group {profile}", r"created with handle (\d+)")
        self.groups[profile, words[1]] = handle

    def do_group_add_member(self, words, _text):
        profile = self.full_profile_name(words[0])
        member, group = self.members[profile, words[2]], self.groups[profile, words[1]]
        self.switch.execute(f"act_prof_add_member_to_group {profile} {member} {group}")

    def do_vset_add(self, words, _text):
        widths = {value_set["name"]: value_set["compressed_bitwidth"] for value_set in self.program.json["parse_vsets"]}
        name = self.program.full_name(words[0], widths)
        self.switch.value_set_add(name, int(words[1], 0).to_bytes((widths[name] + 7) // 8, "big"))

    def full_array_name(self, kind: str, name: str) -> str:
        return self.program.full_name(name, [array["name"] for array in self.program.json[kind]])

    def do_register_write(self, words, _text):
        name, value = self.full_array_name("register_arrays", words[0]), int(words[2], 0)
        self.switch.execute(f"register_write {name} {words[1]} {value}")

    def do_register_reset(self, words, _text):
        self.switch.execute(f"register_reset {self.full_array_name('register_arrays', words[0])}")

    def do_counter_write(self, words, _text):
        self.switch.execute(" ".join(["counter_write", self.full_array_name("counter_arrays", words[0]), *words[1:]]))

    def do_meter_set_rates(self, words, _text):
        self.switch.execute(" ".join(["meter_set_rates", self.full_array_name("meter_arrays", words[0]), *words[1:]]))

    def do_meter_array_set_rates(self, words, _text):
        self.switch.execute(" ".join(["meter_array_set_rates", self.full_array_name("meter_arrays", words[0]), *words[1:]]))

    def do_entry_rates(self, words, _text):
        table, handle = self.entries[words[0]]
        self.switch.execute(" ".join(["meter_set_rates", table["direct_meters"], str(handle), *words[1:]]))

    def do_check_counter(self, words, text):
        short_name, cell = re.fullmatch(r"([\w.]+)\((\$?\w+)\)", words[0]).groups()
        name = self.full_array_name("counter_arrays", short_name)
        index = self.entries[cell[1:]][1] if cell.startswith("$") else cell
        counts = self.switch.execute(f"counter_read {name} {index}", r"(\d+ bytes, \d+ packets)")
        for count, unit in re.findall(r"(\d+) (\w+)", counts):
            self.out.append(f"check_counter {words[0]} {unit} == {count}")

    def do_expect_register(self, words, _text):
        name = self.full_array_name("register_arrays", words[0])
        bits = next(array["bitwidth"] for array in self.program.json["register_arrays"] if array["name"] == name)
        assert bits < 64, f"{name}: BMv2 returns at most 63 bits of a cell: read it with a packet instead"
        value = int(self.switch.execute(f"register_read {name} {words[1]}", r"\]= *(-?\d+)")) % (1 << bits)
        self.out.append(f"expect_register {words[0]} {words[1]} {value:#x}")

    def do_timeout(self, words, _text):
        assert self.switch.notifications, "idle timeouts require a simple_switch with nanomsg"
        table, handle = self.entries[words[0]]
        self.switch.execute(f"table_set_timeout {table['name']} {handle} {int(words[1]) // 1000}")

    def do_advance_us(self, words, _text):
        time.sleep(int(words[0]) / 1e6)

    def do_expect_idle(self, words, _text):
        table, handle = self.entries[words[0]]
        deadline = time.monotonic() + SWEEP_S
        while (table["id"], handle) not in self.switch.notifications.idle:
            assert time.monotonic() < deadline, f"{words[0]} is not idle"
            time.sleep(0.1)
            self.switch.notifications.receive()
        # The next check needs a new notification.
        self.switch.notifications.idle.discard((table["id"], handle))

    def do_expect_used(self, words, _text):
        table, handle = self.entries[words[0]]
        self.switch.notifications.receive()
        assert (table["id"], handle) not in self.switch.notifications.idle, f"{words[0]} is idle"


def main():
    command, cli, folder, *selected = sys.argv[1:]
    p4 = pathlib.Path(folder)
    ports = Ports()
    inputs = sorted((p4 / "features").glob("*.inputs"))
    for path in inputs:
        name = path.stem
        if selected and name not in selected:
            continue
        text = path.read_text()
        compiled = p4 / "compiled" / f"feature-{name}.json"
        with tempfile.TemporaryDirectory() as scratch:
            switch = Switch(command, cli, compiled, scratch)
            try:
                run = Run(name, switch, Program(compiled), ports)
                ports.drain(0.3)
                for number, line in enumerate(text.splitlines(), 1):
                    try:
                        run.line(line)
                    except Exception as error:
                        raise RuntimeError(f"{path.name}:{number}: {line}") from error
                run.digests()
            finally:
                switch.stop()
        head = f"# feature-{name}: outputs of BMv2 for p4/features/{name}.inputs, generated by scripts/bmv2-outputs.\n"
        head += f"# SHA-256 of the inputs: {hashlib.sha256(text.encode()).hexdigest()}\n"
        test = p4 / "tests" / f"feature-{name}-bmv2.stf"
        test.write_text(head + "\n".join(run.out) + "\n")
        print(f"p4/tests/{test.name}")


main()
