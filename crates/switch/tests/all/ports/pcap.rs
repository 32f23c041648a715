//! Capture files, read and written as simple_switch reads and writes them with `--use-files`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use linewarden_switch::ports::pcap::{self, CaptureReader, CaptureWriter, FormatError, Packet, PcapError};
use linewarden_switch::ports::{PortError, PortSet, PortSetError, PortSpec};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::ports::net::id;

/// Content of a capture file.
fn capture(big_endian: bool, nanoseconds: bool, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let word = |word: u32| {
        if big_endian {
            word.to_be_bytes()
        } else {
            word.to_le_bytes()
        }
    };
    let half = |half: u16| {
        if big_endian {
            half.to_be_bytes()
        } else {
            half.to_le_bytes()
        }
    };
    let mut bytes = word(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
    bytes.extend([half(2), half(4)].concat());
    bytes.extend([0, 0, 65_535, 1].map(word).concat());
    for (seconds, fraction, frame) in packets {
        let length = frame.len() as u32;
        bytes.extend([*seconds, *fraction, length, length].map(word).concat());
        bytes.extend_from_slice(frame);
    }
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Packet>, PcapError> {
    let mut reader = CaptureReader::new(bytes, "in.pcap");
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet()? {
        packets.push(packet);
    }
    Ok(packets)
}

#[test]
fn all_four_formats_are_read() {
    for big_endian in [false, true] {
        for (nanoseconds, unit) in [(false, 1000), (true, 1)] {
            let bytes = capture(big_endian, nanoseconds, &[(3, 5, b"first"), (4, 999_999, b"")]);
            let expected = [(3, 5, "first"), (4, 999_999, "")].map(|(seconds, fraction, frame)| Packet {
                time: Duration::new(seconds, fraction * unit),
                frame: frame.into(),
            });
            assert_eq!(read(&bytes).unwrap(), expected);
        }
    }
}

#[test]
fn damage_is_reported_with_offset() {
    let intact = capture(false, false, &[(1, 2, b"one"), (3, 4, b"two")]);
    let damaged_at = |position: usize, bytes: &[u8]| {
        let mut damaged = intact.clone();
        damaged[position..position + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let second_packet = 24 + 16 + 3;
    let truncated = |element, actual_bytes, expected_bytes| FormatError::Truncated {
        element,
        actual_bytes,
        expected_bytes,
    };
    for (bytes, expected_offset, expected) in [
        (
            damaged_at(0, &0x0a0d_0d0a_u32.to_be_bytes()),
            0,
            FormatError::Magic(0x0a0d_0d0a),
        ),
        (damaged_at(4, &[3]), 4, FormatError::Version(3)),
        (damaged_at(20, &[101]), 20, FormatError::LinkType(101)),
        (
            damaged_at(second_packet + 8, &[0xff; 4]),
            second_packet + 8,
            FormatError::PacketTooLong(u32::MAX),
        ),
        (
            damaged_at(second_packet + 12, &[200]),
            second_packet + 8,
            FormatError::Incomplete {
                captured: 3,
                original: 200,
            },
        ),
        (intact[..10].to_vec(), 0, truncated("the file header", 10, 24)),
        (Vec::new(), 0, truncated("the file header", 0, 24)),
        (
            intact[..second_packet + 5].to_vec(),
            second_packet,
            truncated("a packet header", 5, 16),
        ),
        (
            intact[..second_packet + 18].to_vec(),
            second_packet,
            truncated("a packet and its header", 18, 19),
        ),
    ] {
        match read(&bytes) {
            Err(PcapError::Malformed { path, offset, fault }) => {
                assert_eq!(
                    (path.as_path(), offset, fault),
                    (Path::new("in.pcap"), expected_offset as u64, expected)
                );
            }
            other => panic!("{expected:?}: {other:?}"),
        }
    }
    let message = read(&intact[..second_packet + 18]).unwrap_err().to_string();
    assert_eq!(
        message,
        "malformed capture file in.pcap at byte 43: file ends after 18 of 19 bytes of a packet and its header"
    );
}

proptest! {
    #[test]
    fn written_captures_can_be_read(frames in vec((any::<u32>(), 0u32..1_000_000_000, vec(any::<u8>(), 0..3000)), 0..20)) {
        let mut bytes = Vec::new();
        let mut writer = CaptureWriter::new(&mut bytes, "out.pcap").unwrap();
        for (seconds, nanoseconds, frame) in &frames {
            let (headers, payload) = frame.split_at(frame.len() / 2);
            writer.write(Duration::new((*seconds).into(), *nanoseconds), headers, payload).unwrap();
        }
        let packets: Vec<_> = frames
            .into_iter()
            .map(|(seconds, nanoseconds, frame)| Packet { time: Duration::new(seconds.into(), nanoseconds), frame })
            .collect();
        prop_assert_eq!(read(&bytes).unwrap(), packets);
    }

    #[test]
    fn damaged_captures_are_read_or_rejected(
        frames in vec(vec(any::<u8>(), 0..60), 0..6),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
    ) {
        let packets: Vec<_> = frames.iter().map(|frame| (1, 2, frame.as_slice())).collect();
        let mut bytes = capture(true, false, &packets);
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        bytes.truncate(length.index(bytes.len() + 1));
        if let Ok(packets) = read(&bytes) {
            let packet_bytes: usize = packets.iter().map(|packet| packet.frame.len() + 16).sum();
            prop_assert_eq!(24 + packet_bytes, bytes.len());
        }
    }
}

fn specs(names: &[&str]) -> Vec<PortSpec> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn open(directory: &Path, names: &[&str], start: Instant) -> PortSet {
    let mut set = PortSet::new().unwrap();
    for (id, port) in pcap::open(directory, &specs(names), start).unwrap() {
        set.add(id, port).unwrap();
    }
    set
}

/// Runs until all files end, sends every frame to the other port, and returns the received frames.
fn serve_to_the_end(set: &mut PortSet) -> Vec<(u16, Vec<u8>)> {
    let mut received = Vec::new();
    while !set.ended() {
        set.serve(None, |port, frame, senders| {
            received.push((port.get(), frame.to_vec()));
            senders.send(id(1 - port.get()), frame, &[]);
        })
        .unwrap();
    }
    received
}

#[test]
fn files_are_merged_by_time_and_written_immediately() {
    let directory = tempfile::tempdir().unwrap();
    let first_capture = capture(
        false,
        false,
        &[(1, 0, b"a"), (2, 5, b"c"), (2, 5, b"d"), (9, 0, b"g")],
    );
    let second_capture = capture(true, true, &[(1, 500, b"b"), (2, 5000, b"e"), (3, 0, b"f")]);
    fs::write(directory.path().join("pcap0_in.pcap"), first_capture).unwrap();
    fs::write(directory.path().join("x_in.pcap"), second_capture).unwrap();
    let start = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut set = open(directory.path(), &["0@pcap0", "1@x"], Instant::now());

    let received = serve_to_the_end(&mut set);
    let expected = [
        (0, "a"),
        (1, "b"),
        (0, "c"),
        (0, "d"),
        (1, "e"),
        (1, "f"),
        (0, "g"),
    ];
    assert_eq!(received, expected.map(|(port, frame)| (port, frame.into())));

    // The output files are still open, but already complete.
    for (name, frames) in [("pcap0_out.pcap", "bef"), ("x_out.pcap", "acdg")] {
        let packets = read(&fs::read(directory.path().join(name)).unwrap()).unwrap();
        let content: Vec<u8> = packets.iter().flat_map(|packet| packet.frame.clone()).collect();
        assert_eq!(content, frames.as_bytes());
        assert!(packets.iter().all(|packet| packet.time >= start));
    }
    assert_eq!(set.counters(id(0)).unwrap().rx.frames, 4);
    assert_eq!(set.counters(id(0)).unwrap().tx.frames, 3);
}

#[test]
fn no_frame_is_read_before_the_start() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("a_in.pcap"),
        capture(false, false, &[(1, 0, b"a")]),
    )
    .unwrap();
    let mut set = open(
        directory.path(),
        &["0@a"],
        Instant::now() + Duration::from_secs(3600),
    );
    assert_eq!(
        set.serve(Some(Duration::from_millis(1)), |_, _, _| {}).unwrap(),
        0
    );
    assert!(!set.ended());

    let start = Instant::now() + Duration::from_millis(50);
    let mut set = open(directory.path(), &["0@a"], start);
    while set.serve(None, |_, _, _| {}).unwrap() == 0 {}
    assert!(Instant::now() >= start);
}

/// p4c's test runner opens the pipes in any order and sends packets one by one, with table changes between them.
#[test]
fn pipes_are_read_without_waiting_for_their_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = |number: u16| directory.path().join(format!("pcap{number}_in.pcap"));
    for number in 0..3 {
        assert!(
            Command::new("mkfifo")
                .arg(path(number))
                .status()
                .unwrap()
                .success()
        );
    }
    let mut set = open(
        directory.path(),
        &["0@pcap0", "1@pcap1", "2@pcap2"],
        Instant::now(),
    );
    assert_eq!(
        set.serve(Some(Duration::from_millis(1)), |_, _, _| {}).unwrap(),
        0
    );
    assert!(!set.ended(), "no writer has opened the pipes yet");

    let mut writers: Vec<_> = [2, 0, 1]
        .map(|number| (number, File::options().write(true).open(path(number)).unwrap()))
        .into();
    writers.sort_by_key(|(number, _)| *number);
    for (_, writer) in &mut writers {
        writer.write_all(&capture(false, false, &[])).unwrap();
    }
    let mut received = Vec::new();
    let mut time = 0;
    let mut send = |writers: &mut Vec<(u16, File)>, port: usize, frame: &[u8]| {
        time += 1;
        let bytes = capture(false, false, &[(1, time, frame)]);
        writers[port].1.write_all(&bytes[24..]).unwrap();
    };
    for round in 0..20u8 {
        // One pipe sends a packet while the other pipes send none; then all three send.
        send(&mut writers, 1, &[round]);
        while received.len() % 4 == 0 {
            set.serve(None, |port, frame, _| received.push((port.get(), frame.to_vec())))
                .unwrap();
        }
        for port in [2, 0, 1] {
            send(&mut writers, port, &[round, port as u8]);
        }
        while received.len() % 4 != 0 {
            set.serve(None, |port, frame, _| received.push((port.get(), frame.to_vec())))
                .unwrap();
        }
        let this_round = &received[received.len() - 4..];
        let expected = [
            (1, vec![round]),
            (2, vec![round, 2]),
            (0, vec![round, 0]),
            (1, vec![round, 1]),
        ];
        assert_eq!(this_round, expected);
    }
    drop(writers);
    while !set.ended() {
        assert_eq!(set.serve(None, |_, _, _| {}).unwrap(), 0);
    }
}

#[test]
fn damaged_input_loses_only_its_port() {
    let directory = tempfile::tempdir().unwrap();
    let mut damaged = capture(false, false, &[(1, 0, b"first"), (2, 0, b"second")]);
    damaged.truncate(damaged.len() - 1);
    fs::write(directory.path().join("a_in.pcap"), damaged).unwrap();
    let content = capture(false, false, &[(1, 1, b"x"), (7, 0, b"y")]);
    fs::write(directory.path().join("b_in.pcap"), content).unwrap();
    let mut set = open(directory.path(), &["0@a", "1@b"], Instant::now());
    let (mut received, mut errors) = (Vec::new(), Vec::new());
    while !set.ended() {
        let mut take = |_, frame: &[u8], _: &mut _| received.push(frame.to_vec());
        if let Err(error) = set.serve(None, &mut take) {
            errors.push(error);
        }
    }
    assert_eq!(received, [b"first".as_slice(), b"x", b"y"]);
    let [
        PortSetError::PortFailed {
            port,
            source: PortError::Pcap(source),
        },
    ] = errors.as_slice()
    else {
        panic!("{errors:?}");
    };
    assert_eq!(*port, id(0));
    let expected = "a_in.pcap at byte 45: file ends after 21 of 22 bytes of a packet and its header";
    assert!(source.to_string().ends_with(expected), "{source}");
}

#[test]
fn missing_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let error = pcap::open(directory.path(), &specs(&["0@nothing"]), Instant::now()).unwrap_err();
    assert!(
        error.to_string().contains("nothing_in.pcap: No such file"),
        "{error}"
    );
}
