//! Capture format (draft-ietf-opsawg-pcap): a file header of 24 bytes and 16 bytes before each packet. The first four
//! bytes determine byte order and time unit.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::{FormatError, PcapError};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
/// `MAXIMUM_SNAPLEN` of libpcap.
const PACKET_BYTES_MAX: u32 = 262_144;
const LINK_TYPE_ETHERNET: u32 = 1;
const READ_BYTES: usize = 64 << 10;

/// Packet in a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Capture time since 1970.
    pub time: Duration,
    /// Frame.
    pub frame: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Format {
    big_endian: bool,
    /// Unit of the fraction of a second, ns.
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

/// Reader of a capture; supports non-blocking sources such as pipes (`WouldBlock`).
#[derive(Debug)]
pub struct CaptureReader<R> {
    source: R,
    path: PathBuf,
    format: Option<Format>,
    /// Data from the source; unparsed data starts at `parsed`.
    bytes: Vec<u8>,
    parsed: usize,
    /// Offset of `bytes[parsed]` in the file.
    offset: u64,
}

/// Result of reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ReadResult {
    Packet(Packet),
    /// The source has no data now.
    Pending,
    /// The source has ended.
    End,
}

impl<R: Read> CaptureReader<R> {
    /// Creates a reader; the path is used in messages.
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

    /// Next packet; `None` at the end or if the source has no data now.
    ///
    /// # Errors
    /// The source cannot be read or its content is malformed.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        match self.poll()? {
            ReadResult::Packet(packet) => Ok(Some(packet)),
            ReadResult::Pending => Ok(None),
            ReadResult::End => self.end().map(|()| None),
        }
    }

    /// Same as [`Self::next_packet`], but distinguishes the end of the source from a source without data. At the end, the
    /// caller must call [`Self::end`] to check that the source ends between packets: a pipe without a writer also reports
    /// an end.
    pub(super) fn poll(&mut self) -> Result<ReadResult, PcapError> {
        loop {
            if self.format.is_none() {
                self.parse_file_header()?;
            }
            if let Some(format) = self.format
                && let Some(packet) = self.parse_packet(format)?
            {
                return Ok(ReadResult::Packet(packet));
            }
            match self.read_more() {
                Ok(0) => return Ok(ReadResult::End),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadResult::Pending),
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

    /// Checks that the source ends between packets.
    ///
    /// # Errors
    /// The file ends inside of a header or packet.
    pub(super) fn end(&self) -> Result<(), PcapError> {
        let available_bytes = self.unparsed().len();
        let (element, expected_bytes) = match (self.format, available_bytes) {
            (None, _) => ("the file header", FILE_HEADER_BYTES),
            (Some(_), 0) => return Ok(()),
            (Some(format), _) => match self.unparsed().first_chunk::<PACKET_HEADER_BYTES>() {
                None => ("a packet header", PACKET_HEADER_BYTES),
                Some(header) => ("a packet and its header", {
                    PACKET_HEADER_BYTES + captured_bytes(format, header) as usize
                }),
            },
        };
        Err(self.malformed(
            0,
            FormatError::Truncated {
                element,
                actual_bytes: available_bytes,
                expected_bytes,
            },
        ))
    }

    /// Returns the source; its descriptor can be polled.
    pub(super) fn source(&self) -> &R {
        &self.source
    }

    fn unparsed(&self) -> &[u8] {
        self.bytes.get(self.parsed..).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        self.parsed += bytes;
        self.offset += bytes as u64;
    }

    fn malformed(&self, relative_offset: u64, fault: FormatError) -> PcapError {
        PcapError::Malformed {
            path: self.path.clone(),
            offset: self.offset + relative_offset,
            fault,
        }
    }

    fn read_more(&mut self) -> io::Result<usize> {
        self.bytes.drain(..self.parsed);
        self.parsed = 0;
        let length_before = self.bytes.len();
        self.bytes.resize(length_before + READ_BYTES, 0);
        let result = loop {
            match self
                .source
                .read(self.bytes.get_mut(length_before..).unwrap_or_default())
            {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.bytes
            .truncate(length_before + result.as_ref().map_or(0, |result| *result));
        result
    }

    fn parse_file_header(&mut self) -> Result<(), PcapError> {
        let Some([m0, m1, m2, m3, v0, v1, _, _, .., l0, l1, l2, l3]) =
            self.unparsed().first_chunk::<FILE_HEADER_BYTES>().copied()
        else {
            return Ok(());
        };
        let magic = [m0, m1, m2, m3];
        let (big_endian, fraction_ns) = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (MAGIC_MICROSECONDS, _) => (false, 1000),
            (MAGIC_NANOSECONDS, _) => (false, 1),
            (_, MAGIC_MICROSECONDS) => (true, 1000),
            (_, MAGIC_NANOSECONDS) => (true, 1),
            (_, magic) => return Err(self.malformed(0, FormatError::Magic(magic))),
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
            return Err(self.malformed(4, FormatError::Version(version)));
        }
        // The upper bits describe a frame check sequence, which is then part of the packets (section 4 of the draft).
        let link_type = format.number([l0, l1, l2, l3]) & 0xffff;
        if link_type != LINK_TYPE_ETHERNET && link_type != 0 {
            return Err(self.malformed(20, FormatError::LinkType(link_type)));
        }
        self.format = Some(format);
        self.consume(FILE_HEADER_BYTES);
        Ok(())
    }

    /// Parses a packet; `None` if the packet is not complete yet.
    fn parse_packet(&mut self, format: Format) -> Result<Option<Packet>, PcapError> {
        let Some(header) = self.unparsed().first_chunk::<PACKET_HEADER_BYTES>() else {
            return Ok(None);
        };
        let [s0, s1, s2, s3, f0, f1, f2, f3, .., o0, o1, o2, o3] = *header;
        let captured = captured_bytes(format, header);
        let original = format.number([o0, o1, o2, o3]);
        if captured > PACKET_BYTES_MAX {
            return Err(self.malformed(8, FormatError::PacketTooLong(captured)));
        }
        if captured != original {
            return Err(self.malformed(8, FormatError::Incomplete { captured, original }));
        }
        let end = PACKET_HEADER_BYTES + captured as usize;
        let Some(frame) = self.unparsed().get(PACKET_HEADER_BYTES..end) else {
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

/// Writer of a capture of Ethernet frames with nanosecond timestamps.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    sink: W,
    path: PathBuf,
    record: Vec<u8>,
}

impl<W: Write> CaptureWriter<W> {
    /// Creates a writer and writes the file header; the path is used in messages.
    ///
    /// # Errors
    /// The file cannot be written.
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

    /// Writes a packet, given in two parts, with its capture time since 1970. Each packet is one write call, so a concurrent
    /// reader finds complete packets.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, time: Duration, headers: &[u8], payload: &[u8]) -> Result<(), PcapError> {
        let length = u32::try_from(headers.len() + payload.len()).unwrap_or(u32::MAX);
        // Seconds have 32 bits in this format, which overflow in 2106.
        let words = [time.as_secs() as u32, time.subsec_nanos(), length, length];
        self.record.clear();
        self.record
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.record.extend_from_slice(headers);
        self.record.extend_from_slice(payload);
        self.write_record()
    }

    fn write_record(&mut self) -> Result<(), PcapError> {
        let result = self.sink.write_all(&self.record);
        result
            .and_then(|()| self.sink.flush())
            .map_err(|source| PcapError::Io {
                path: self.path.clone(),
                action: "write",
                source,
            })
    }
}
