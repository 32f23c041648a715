"""Configurations of devices and their hash h, written from docs/measurement.md, section 3.

As a program it prints docs/vectors/measurement.json."""

import hashlib
import json
import struct

BANKS = {"sha256": 0x000B, "sha384": 0x000C, "sha512": 0x000D}
KINDS = {"absent": 0, "file": 1, "link": 2, "directory": 3, "fifo": 4, "socket": 5, "character_device": 6, "block_device": 7}


def sized(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def entry(fields: dict) -> bytes:
    body = bytes([KINDS[fields["kind"]]])
    if "mode" in fields:
        body += struct.pack(">H", fields["mode"])
    if "content" in fields:
        body += bytes.fromhex(fields["content"])
    if "target" in fields:
        body += sized(bytes.fromhex(fields["target"]))
    if "device" in fields:
        body += struct.pack(">II", *fields["device"])
    return body


def encode(configuration: dict) -> bytes:
    pcrs = sorted((int(index), bytes.fromhex(value)) for index, value in configuration["pcrs"].items())
    files = sorted((bytes.fromhex(path), fields) for path, fields in configuration["files"].items())
    out = b"linewarden configuration" + bytes([1])
    out += struct.pack(">HB", BANKS[configuration["bank"]], len(pcrs))
    out += b"".join(bytes([index]) + value for index, value in pcrs)
    out += struct.pack(">I", len(files))
    return out + b"".join(sized(path) + entry(fields) for path, fields in files)


def h(configuration: dict) -> bytes:
    return hashlib.sha256(encode(configuration)).digest()


def digest(bank: str, text: str) -> str:
    return hashlib.new(bank, text.encode()).hexdigest()


def configurations() -> list[dict]:
    """Configurations: empty, PCRs only, every kind of entry, and both in another bank."""
    pcrs = {str(index): digest("sha256", f"PCR {index}") for index in [0, 1, 2, 3, 4, 7, 11, 23]}
    files = {
        b"/": {"kind": "directory", "mode": 0o755},
        b"/bin": {"kind": "link", "target": b"usr/bin".hex()},
        b"/bin/tool": {"kind": "file", "mode": 0o4755, "content": digest("sha256", "tool")},
        b"/bin0": {"kind": "file", "mode": 0, "content": digest("sha256", "")},
        b"/dev/null": {"kind": "character_device", "mode": 0o666, "device": [1, 3]},
        b"/dev/sda": {"kind": "block_device", "mode": 0o660, "device": [8, 0]},
        b"/etc/none": {"kind": "absent"},
        b"/run/\xff": {"kind": "fifo", "mode": 0o600},
        b"/run/socket": {"kind": "socket", "mode": 0o7777},
    }
    files = {path.hex(): fields for path, fields in files.items()}
    wide = {str(index): digest("sha384", f"PCR {index}") for index in [0, 4]}
    return [
        {"bank": "sha256", "pcrs": {}, "files": {}},
        {"bank": "sha256", "pcrs": pcrs, "files": {}},
        {"bank": "sha256", "pcrs": {}, "files": files},
        {"bank": "sha384", "pcrs": wide, "files": {b"/a".hex(): {"kind": "absent"}}},
    ]


def refused() -> list[dict]:
    """Invalid encodings that are similar to valid ones."""
    head = b"linewarden configuration"
    bank, none = struct.pack(">HB", BANKS["sha256"], 0), struct.pack(">I", 0)
    one, two = struct.pack(">HB", BANKS["sha256"], 1), struct.pack(">HB", BANKS["sha256"], 2)
    absent = [sized(path) + b"\0" for path in [b"/a", b"/b"]]

    def with_files(*files: bytes) -> bytes:
        return head + b"\1" + bank + struct.pack(">I", len(files)) + b"".join(files)

    cases = {
        "another domain": b"linewarden Configuration" + b"\1" + bank + none,
        "another version": head + b"\2" + bank + none,
        "the bank of SHA-1": head + b"\1" + struct.pack(">HB", 4, 0) + none,
        "an unknown bank": head + b"\1" + struct.pack(">HB", 0x12, 0) + none,
        "PCR 24": head + b"\1" + one + b"\x18" + bytes(32) + none,
        "PCRs out of order": head + b"\1" + two + b"\1" + bytes(32) + b"\0" + bytes(32) + none,
        "a PCR twice": head + b"\1" + two + b"\1" + bytes(32) + b"\1" + bytes(32) + none,
        "a value that is too short": head + b"\1" + one + b"\0" + bytes(20),
        "paths out of order": with_files(absent[1], absent[0]),
        "a path twice": with_files(absent[0], absent[0]),
        "a path with a final /": with_files(sized(b"/a/") + b"\0"),
        "a relative path": with_files(sized(b"a") + b"\0"),
        "a path with ..": with_files(sized(b"/a/../b") + b"\0"),
        "a mode of thirteen bits": with_files(sized(b"/a") + b"\3\x10\0"),
        "a link without a text": with_files(sized(b"/a") + b"\2\0\0"),
        "an unknown kind": with_files(sized(b"/a") + b"\x08"),
        "fewer files than counted": head + b"\1" + bank + struct.pack(">I", 2) + absent[0],
        "a byte too much": head + b"\1" + bank + none + b"\0",
        "a byte too few": (head + b"\1" + bank + none)[:-1],
        "nothing": b"",
    }
    return [{"reason": reason, "encoding": encoding.hex()} for reason, encoding in cases.items()]


def vectors() -> dict:
    return {
        "about": "Configurations and h, docs/measurement.md 3. Byte strings and paths are hex. Made by "
        "interop/measurement.py, checked by crates/measurement/tests.",
        "configurations": [case | {"encoding": encode(case).hex(), "h": h(case).hex()} for case in configurations()],
        "refused": refused(),
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=2))
