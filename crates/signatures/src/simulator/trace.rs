//! Traces: arrivals of messages, as a list that can be written and read.

use std::io::{self, BufRead, Write};

use crate::scheduler::{Class, Priority, Source};

/// Maximum number of records to read.
pub const RECORDS_MAX: usize = 1 << 26;
/// The first line of a trace file.
pub const HEADER: &str = "arrival_us,source,signer,priority,class,valid,bytes,work";

/// One arriving message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Microseconds after the beginning of the trace.
    pub arrival_us: u64,
    /// The claimed source.
    pub source: Source,
    /// The claimed signer.
    pub signer: u64,
    /// The claimed priority.
    pub priority: Priority,
    /// The operation.
    pub class: Class,
    /// Whether the signature is valid.
    pub valid: bool,
    /// Length of the message.
    pub bytes: u32,
    /// Lane time ([`Meta::work`](crate::scheduler::Meta::work)).
    pub work: u32,
}

impl Record {
    /// The sender: source and signer together.
    pub(super) fn sender(&self) -> Source {
        // The factor is odd, so that different signers of one source give different senders.
        Source(self.source.0 ^ self.signer.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading the file failed.
    #[error("trace: {0}")]
    Io(#[from] io::Error),
    /// The first line is not the header.
    #[error("trace, line 1: found {found:?}; expected \"{HEADER}\"")]
    InvalidHeader {
        /// The line.
        found: String,
    },
    /// A line has a wrong number of fields.
    #[error("trace, line {line}: {found} fields found; expected 8")]
    FieldCount {
        /// Line number, from 1.
        line: usize,
        /// Number of fields.
        found: usize,
    },
    /// A field is not a number in its range.
    #[error("trace, line {line}: {field} is {value:?}; expected a number in its range")]
    InvalidField {
        /// Line number, from 1.
        line: usize,
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: String,
    },
    /// A record arrives before the previous one.
    #[error("trace, line {line}: arrives before the previous line; sort by arrival_us")]
    NotSorted {
        /// Line number, from 1.
        line: usize,
    },
    /// The trace has too many records.
    #[error("trace: more than {RECORDS_MAX} records; split the trace")]
    TooLong,
}

/// Writes a trace.
///
/// # Errors
/// An error of the writer.
pub fn write(trace: &[Record], mut target: impl Write) -> io::Result<()> {
    writeln!(target, "{HEADER}")?;
    for Record {
        arrival_us,
        source,
        signer,
        priority,
        class,
        valid,
        bytes,
        work,
    } in trace
    {
        let (source, priority) = (source.0, priority.number());
        let (class, valid) = (class.number(), u8::from(*valid));
        writeln!(
            target,
            "{arrival_us},{source},{signer},{priority},{class},{valid},{bytes},{work}"
        )?;
    }
    Ok(())
}

/// Reads a trace; lines must be sorted by arrival.
///
/// # Errors
/// See [`TraceError`].
pub fn read(source: impl BufRead) -> Result<Vec<Record>, TraceError> {
    let mut trace: Vec<Record> = Vec::new();
    let mut lines = source.lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    if first != HEADER {
        return Err(TraceError::InvalidHeader { found: first });
    }
    for (line, text) in lines.enumerate().map(|(index, text)| (index + 2, text)) {
        let record = parse(line, &text?)?;
        if trace
            .last()
            .is_some_and(|last| last.arrival_us > record.arrival_us)
        {
            return Err(TraceError::NotSorted { line });
        }
        if trace.len() == RECORDS_MAX {
            return Err(TraceError::TooLong);
        }
        trace.push(record);
    }
    Ok(trace)
}

fn parse(line: usize, text: &str) -> Result<Record, TraceError> {
    let fields: Vec<&str> = text.split(',').collect();
    let &[arrival_us, source, signer, priority, class, valid, bytes, work] = fields.as_slice() else {
        return Err(TraceError::FieldCount {
            line,
            found: fields.len(),
        });
    };
    let number = |field, value: &str, max: u64| {
        let parsed = value.parse().ok().filter(|parsed: &u64| *parsed <= max);
        parsed.ok_or_else(|| TraceError::InvalidField {
            line,
            field,
            value: value.to_owned(),
        })
    };
    let class_number = number("class", class, Class::COUNT as u64 - 1)? as u8;
    let invalid_class = || TraceError::InvalidField {
        line,
        field: "class",
        value: class.to_owned(),
    };
    Ok(Record {
        arrival_us: number("arrival_us", arrival_us, u64::MAX / 1_000)?,
        source: Source(number("source", source, u64::MAX)?),
        signer: number("signer", signer, u64::MAX)?,
        priority: Priority::new(number("priority", priority, u64::from(Priority::LEAST.number()))? as u8),
        class: Class::new(class_number).ok_or_else(invalid_class)?,
        valid: number("valid", valid, 1)? == 1,
        bytes: number("bytes", bytes, u64::from(u32::MAX))? as u32,
        work: number("work", work, u64::from(u32::MAX))? as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Record>, String> {
        read(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn written_traces_are_read() {
        let record = |arrival_us, valid| Record {
            arrival_us,
            source: Source(u64::MAX),
            signer: 5,
            priority: Priority::LEAST,
            class: Class::RA_VERIFY,
            valid,
            bytes: 288,
            work: 8_400,
        };
        let trace = [record(0, true), record(0, false), record(u64::MAX / 1_000, true)];
        let mut text = Vec::new();
        write(&trace, &mut text).unwrap();
        assert_eq!(read(text.as_slice()).unwrap(), trace);
        assert!(
            String::from_utf8(text)
                .unwrap()
                .contains("\n0,18446744073709551615,5,7,2,0,288,8400\n")
        );
    }

    #[test]
    fn invalid_traces_are_reported() {
        for (rows, message) in [
            ("1,2,3,4,1", "line 2: 5 fields"),
            ("1,2,3,4,1,5,6", "line 2: 7 fields"),
            ("", "line 2: 1 fields"),
            ("1,2,0,8,4,1,5,1000", "line 2: priority is \"8\""),
            ("1,2,0,7,20,1,5,1000", "line 2: class is \"20\""),
            ("1,2,0,7,4,2,5,1000", "line 2: valid is \"2\""),
            ("1,2,0,7,4,1,4294967296,1000", "line 2: bytes is"),
            ("-1,2,0,7,4,1,5,1000", "line 2: arrival_us is \"-1\""),
            ("2,2,0,7,4,1,5,1000\n1,2,0,7,4,1,5,1000", "line 3: arrives before"),
        ] {
            let error = read_text(&format!("{HEADER}\n{rows}\n")).unwrap_err();
            assert!(error.contains(message), "{rows:?}: {error}");
        }
        assert!(read_text("").unwrap_err().contains("expected"));
        assert!(
            read_text("time,source\n")
                .unwrap_err()
                .contains("\"time,source\"")
        );
        assert_eq!(read_text(HEADER), Ok(Vec::new()));
    }
}
