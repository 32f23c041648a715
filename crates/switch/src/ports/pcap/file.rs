//! The capture format (draft-ietf-opsawg-pcap): a header of 24 bytes, then 16 bytes before each packet, all in the byte
//! order and time unit that the first four bytes tell.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::{Fault, PcapError};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
/// `MAXIMUM_SNAPLEN` of libpcap, and what it writes as the longest packet.
const PACKET_BYTES_MAX: u32 = 262_144;
const LINK_TYPE_ETHERNET: u32 = 1;
const READ_BYTES: usize = 64 << 10;

/// A packet in a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When it was captured, since 1970.
    pub time: Duration,
    /// The frame.
    pub frame: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Format {
    big_endian: bool,
    /// Nanoseconds in the unit of a packet's fraction of a second.
    fraction_ns: u32,
}

impl Format {
    fn number(self, bytes: [u8; 4]) -> u32 {
        if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }
}

/// Reads a capture, from a source that may have nothing for now (`WouldBlock`, a pipe) too.
#[derive(Debug)]
pub struct CaptureReader<R> {
    source: R,
    path: PathBuf,
    format: Option<Format>,
    /// What was read and not parsed yet begins at `parsed`.
    bytes: Vec<u8>,
    parsed: usize,
    /// Place of `bytes[parsed]` in the file.
    offset: u64,
}

/// What a reader has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Have {
    Packet(Packet),
    /// The source has nothing for now.
    Nothing,
    /// The source says that it has ended.
    End,
}

impl<R: Read> CaptureReader<R> {
    /// Reads from a source; the path is for messages.
    pub fn new(source: R, path: impl Into<PathBuf>) -> Self {
        Self {
            source,
            path: path.into(),
            format: None,
            bytes: Vec::new(),
            parsed: 0,
            offset: 0,
        }
    }

    /// The next packet; `None` at the end, or when the source has nothing for now.
    ///
    /// # Errors
    /// When the source cannot be read or its content is damaged.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        match self.poll()? {
            Have::Packet(packet) => Ok(Some(packet)),
            Have::Nothing => Ok(None),
            Have::End => self.end().map(|()| None),
        }
    }

    /// As [`Self::next_packet`], but tells the two cases apart. That an end is no end of a packet is for the caller to
    /// ask by [`Self::end`]: a pipe whose writer has not come yet ends too.
    pub(super) fn poll(&mut self) -> Result<Have, PcapError> {
        loop {
            if self.format.is_none() {
                self.parse_file_header()?;
            }
            if let Some(format) = self.format
                && let Some(packet) = self.parse_packet(format)?
            {
                return Ok(Have::Packet(packet));
            }
            match self.read_more() {
                Ok(0) => return Ok(Have::End),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Have::Nothing),
                Err(source) => {
                    return Err(PcapError::Io {
                        path: self.path.clone(),
                        action: "read",
                        source,
                    });
                }
            }
        }
    }

    /// Nothing will follow.
    ///
    /// # Errors
    /// When the file ends inside something.
    pub(super) fn end(&self) -> Result<(), PcapError> {
        let found = self.rest().len();
        let (what, wanted) = match (self.format, found) {
            (None, _) => ("the file's header", FILE_HEADER_BYTES),
            (Some(_), 0) => return Ok(()),
            (Some(format), _) => match self.rest().first_chunk::<PACKET_HEADER_BYTES>() {
                None => ("a packet's header", PACKET_HEADER_BYTES),
                Some(header) => ("a packet and its header", {
                    PACKET_HEADER_BYTES + captured_bytes(format, header) as usize
                }),
            },
        };
        Err(self.damaged(0, Fault::CutOff { what, found, wanted }))
    }

    /// What is read from, for its descriptor.
    pub(super) fn source(&self) -> &R {
        &self.source
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.parsed..).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        self.parsed += bytes;
        self.offset += bytes as u64;
    }

    fn damaged(&self, further: u64, fault: Fault) -> PcapError {
        PcapError::Damaged {
            path: self.path.clone(),
            offset: self.offset + further,
            fault,
        }
    }

    fn read_more(&mut self) -> io::Result<usize> {
        self.bytes.drain(..self.parsed);
        self.parsed = 0;
        let had = self.bytes.len();
        self.bytes.resize(had + READ_BYTES, 0);
        let read = loop {
            match self.source.read(self.bytes.get_mut(had..).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.bytes.truncate(had + read.as_ref().map_or(0, |read| *read));
        read
    }

    fn parse_file_header(&mut self) -> Result<(), PcapError> {
        let Some([m0, m1, m2, m3, v0, v1, _, _, .., l0, l1, l2, l3]) =
            self.rest().first_chunk::<FILE_HEADER_BYTES>().copied()
        else {
            return Ok(());
        };
        let magic = [m0, m1, m2, m3];
        let (big_endian, fraction_ns) = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (MAGIC_MICROSECONDS, _) => (false, 1000),
            (MAGIC_NANOSECONDS, _) => (false, 1),
            (_, MAGIC_MICROSECONDS) => (true, 1000),
            (_, MAGIC_NANOSECONDS) => (true, 1),
            (_, magic) => return Err(self.damaged(0, Fault::Magic(magic))),
        };
        let format = Format {
            big_endian,
            fraction_ns,
        };
        let version = [v0, v1];
        let version = if big_endian {
            u16::from_be_bytes(version)
        } else {
            u16::from_le_bytes(version)
        };
        if version != 2 {
            return Err(self.damaged(4, Fault::Version(version)));
        }
        // The upper bits tell of a frame check sequence, which is then part of the packets (section 4 of the draft).
        let link_type = format.number([l0, l1, l2, l3]) & 0xffff;
        if link_type != LINK_TYPE_ETHERNET && link_type != 0 {
            return Err(self.damaged(20, Fault::LinkType(link_type)));
        }
        self.format = Some(format);
        self.consume(FILE_HEADER_BYTES);
        Ok(())
    }

    /// `None` when it is not all there yet.
    fn parse_packet(&mut self, format: Format) -> Result<Option<Packet>, PcapError> {
        let Some(header) = self.rest().first_chunk::<PACKET_HEADER_BYTES>() else {
            return Ok(None);
        };
        let [s0, s1, s2, s3, f0, f1, f2, f3, .., o0, o1, o2, o3] = *header;
        let captured = captured_bytes(format, header);
        let original = format.number([o0, o1, o2, o3]);
        if captured > PACKET_BYTES_MAX {
            return Err(self.damaged(8, Fault::Length(captured)));
        }
        if captured != original {
            return Err(self.damaged(8, Fault::Incomplete { captured, original }));
        }
        let end = PACKET_HEADER_BYTES + captured as usize;
        let Some(frame) = self.rest().get(PACKET_HEADER_BYTES..end) else {
            return Ok(None);
        };
        let fraction = u64::from(format.number([f0, f1, f2, f3])) * u64::from(format.fraction_ns);
        let packet = Packet {
            time: Duration::from_secs(format.number([s0, s1, s2, s3]).into())
                + Duration::from_nanos(fraction),
            frame: frame.to_vec(),
        };
        self.consume(end);
        Ok(Some(packet))
    }
}

fn captured_bytes(format: Format, header: &[u8; PACKET_HEADER_BYTES]) -> u32 {
    let [_, _, _, _, _, _, _, _, c0, c1, c2, c3, ..] = *header;
    format.number([c0, c1, c2, c3])
}

/// Writes a capture of Ethernet frames, with nanoseconds.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    sink: W,
    path: PathBuf,
    record: Vec<u8>,
}

impl<W: Write> CaptureWriter<W> {
    /// Writes the file's header; the path is for messages.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(sink: W, path: impl Into<PathBuf>) -> Result<Self, PcapError> {
        let mut writer = Self {
            sink,
            path: path.into(),
            record: Vec::new(),
        };
        let words = [
            MAGIC_NANOSECONDS,
            4 << 16 | 2,
            0,
            0,
            PACKET_BYTES_MAX,
            LINK_TYPE_ETHERNET,
        ];
        writer
            .record
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
        writer.write_record()?;
        Ok(writer)
    }

    /// Writes a packet, given in two parts, captured at a time since 1970; one call of the sink for each, so that who
    /// reads the file meanwhile finds whole packets.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, time: Duration, headers: &[u8], payload: &[u8]) -> Result<(), PcapError> {
        let length = u32::try_from(headers.len() + payload.len()).unwrap_or(u32::MAX);
        // Seconds have 32 bits in this format: it ends in 2106.
        let words = [time.as_secs() as u32, time.subsec_nanos(), length, length];
        self.record.clear();
        self.record
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.record.extend_from_slice(headers);
        self.record.extend_from_slice(payload);
        self.write_record()
    }

    fn write_record(&mut self) -> Result<(), PcapError> {
        let written = self.sink.write_all(&self.record);
        written
            .and_then(|()| self.sink.flush())
            .map_err(|source| PcapError::Io {
                path: self.path.clone(),
                action: "write",
                source,
            })
    }
}
