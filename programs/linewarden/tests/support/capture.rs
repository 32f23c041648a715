//! Capture files of a switch, and frames for these files.

use std::path::Path;

/// The content of a pcap capture file (Ethernet) with these frames.
pub fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = vec![
        0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
    ];
    for frame in frames {
        let length = (frame.len() as u32).to_le_bytes();
        file.extend([0; 8]);
        file.extend(length);
        file.extend(length);
        file.extend(frame);
    }
    file
}

/// Reads the frames in a pcap capture file.
pub fn read_capture(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + length].to_vec());
        rest = &rest[16 + length..];
    }
    frames
}

/// An Ethernet frame with an IPv6 header and this payload.
pub fn ipv6(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 7]);
    frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend([17, 64]);
    frame.extend([0x11; 32]);
    frame.extend(payload);
    frame
}
