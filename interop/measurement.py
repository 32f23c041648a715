"""Configurations of devices and their hash h, written from docs/measurement.md, section 3.

As a program, this module prints the content of docs/vectors/measurement.json."""

import hashlib
import json
import struct

BANKS = {"sha256": 0x000B, "sha384": 0x000C, "sha512": 0x000D}
KINDS = {"absent": 0, "file": 1, "link": 2, "directory": 3, "fifo": 4, "socket": 5, "character_device": 6, "block_device": 7}


def with_length(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def entry(fields: dict) -> bytes:
    body = bytes([KINDS[fields["kind"]]])
    if "mode" in fields:
        body += struct.pack(">H", fields["mode"])
    if "content" in fields:
        body += bytes.fromhex(fields["content"])
    if "target" in fields:
        body += with_length(bytes.fromhex(fields["target"]))
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
    return out + b"".join(with_length(path) + entry(fields) for path, fields in files)


def h(configuration: dict) -> bytes:
    return hashlib.sha256(encode(configuration)).digest()


def digest(bank: str, text: str) -> str:
    return hashlib.new(bank, text.encode()).hexdigest()


def configurations() -> list[dict]:
    """Returns four configurations: empty; only PCRs; every kind of file entry; PCRs of another bank and a file entry."""
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
    sha384_pcrs = {str(index): digest("sha384", f"PCR {index}") for index in [0, 4]}
    return [
        {"bank": "sha256", "pcrs": {}, "files": {}},
        {"bank": "sha256", "pcrs": pcrs, "files": {}},
        {"bank": "sha256", "pcrs": {}, "files": files},
        {"bank": "sha384", "pcrs": sha384_pcrs, "files": {b"/a".hex(): {"kind": "absent"}}},
    ]


def invalid_encodings() -> list[dict]:
    """Returns invalid encodings that are similar to valid encodings."""
    head = b"linewarden configuration"
    bank_without_pcrs, no_files = struct.pack(">HB", BANKS["sha256"], 0), struct.pack(">I", 0)
    one_pcr, two_pcrs = struct.pack(">HB", BANKS["sha256"], 1), struct.pack(">HB", BANKS["sha256"], 2)
    absent = [with_length(path) + b"\0" for path in [b"/a", b"/b"]]

    def with_files(*files: bytes) -> bytes:
        return head + b"\1" + bank_without_pcrs + struct.pack(">I", len(files)) + b"".join(files)

    cases = {
        "another domain": b"linewarden Configuration" + b"\1" + bank_without_pcrs + no_files,
        "another version": head + b"\2" + bank_without_pcrs + no_files,
        "the bank of SHA-1": head + b"\1" + struct.pack(">HB", 4, 0) + no_files,
        "an unknown bank": head + b"\1" + struct.pack(">HB", 0x12, 0) + no_files,
        "PCR 24": head + b"\1" + one_pcr + b"\x18" + bytes(32) + no_files,
        "PCRs out of order": head + b"\1" + two_pcrs + b"\1" + bytes(32) + b"\0" + bytes(32) + no_files,
        "a PCR twice": head + b"\1" + two_pcrs + b"\1" + bytes(32) + b"\1" + bytes(32) + no_files,
        "a value that is too short": head + b"\1" + one_pcr + b"\0" + bytes(20),
        "paths out of order": with_files(absent[1], absent[0]),
        "a path twice": with_files(absent[0], absent[0]),
        "a path with a final /": with_files(with_length(b"/a/") + b"\0"),
        "a relative path": with_files(with_length(b"a") + b"\0"),
        "a path with ..": with_files(with_length(b"/a/../b") + b"\0"),
        "a mode of thirteen bits": with_files(with_length(b"/a") + b"\3\x10\0"),
        "a link without a text": with_files(with_length(b"/a") + b"\2\0\0"),
        "an unknown kind": with_files(with_length(b"/a") + b"\x08"),
        "fewer files than counted": head + b"\1" + bank_without_pcrs + struct.pack(">I", 2) + absent[0],
        "a byte too much": head + b"\1" + bank_without_pcrs + no_files + b"\0",
        "a byte too few": (head + b"\1" + bank_without_pcrs + no_files)[:-1],
        "nothing": b"",
    }
    return [{"reason": reason, "encoding": encoding.hex()} for reason, encoding in cases.items()]


def vectors() -> dict:
    return {
        "about": "Configurations and h, docs/measurement.md 3. Byte strings and paths are hex. Made by "
        "interop/measurement.py, checked by crates/measurement/tests.",
        "configurations": [case | {"encoding": encode(case).hex(), "h": h(case).hex()} for case in configurations()],
        "refused": invalid_encodings(),
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=2))
