//! One-line display of entries.

use std::fmt;

use super::entry::{
    Action, ActionRef, BpfAttachment, BpfMapEntry, CloneSession, MeterCell, PortSetting, ProfileGroup,
    Replica, Replicas, Unit,
};
use super::escaped_text::EscapedText;
use super::{Entry, KeyField};

/// Bytes in hexadecimal, truncated after 64 bytes.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BYTES_MAX: usize = 64;
        self.0
            .iter()
            .take(BYTES_MAX)
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(if self.0.len() > BYTES_MAX { "…" } else { "" })
    }
}

/// `name=match` of all fields.
struct Key<'a>(&'a [KeyField]);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}={}", EscapedText(&field.name), field.matches)?;
        }
        Ok(())
    }
}

struct Copies<'a>(&'a Replicas);

impl fmt::Display for Copies<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("copies to")?;
        if self.0.is_empty() {
            return f.write_str(" no port");
        }
        for (Replica { port, instance }, copies) in self.0 {
            write!(f, " {port}")?;
            if *instance != 0 {
                write!(f, ":{instance}")?;
            }
            if *copies != 1 {
                write!(f, "×{copies}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", EscapedText(&self.name))?;
        for (index, value) in self.data.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{value}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for ActionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action(action) => write!(f, "{action}"),
            Self::Member(member) => write!(f, "member {member}"),
            Self::Group(group) => write!(f, "group {group}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Both => "packets and bytes",
        })
    }
}

/// The name of the entry within its object.
pub(crate) struct EntryName<'a>(pub &'a Entry);

/// The content of the entry.
pub(crate) struct EntryContent<'a>(pub &'a Entry);

impl Entry {
    /// The name of the entry within its object, for display.
    #[must_use]
    pub fn entry_name(&self) -> String {
        EntryName(self).to_string()
    }

    /// The content of the entry, for display.
    #[must_use]
    pub fn content_text(&self) -> String {
        EntryContent(self).to_string()
    }
}

impl fmt::Display for EntryName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Entry::RegisterCell(cell) => write!(f, "cell {}", cell.index),
            Entry::TableEntry(entry) => {
                write!(f, "entry {}", Key(&entry.key))?;
                match entry.priority {
                    0 => Ok(()),
                    priority => write!(f, " priority {priority}"),
                }
            }
            Entry::DefaultAction(_) => f.write_str("default action"),
            Entry::ProfileMember(member) => write!(f, "member {}", member.member),
            Entry::ProfileGroup(ProfileGroup { group, .. }) => write!(f, "group {group}"),
            Entry::MulticastGroup(group) => write!(f, "group {}", group.group),
            Entry::CloneSession(CloneSession { session, .. }) => write!(f, "session {session}"),
            Entry::ValueSetMember(member) => write!(f, "member {}", Key(&member.key)),
            Entry::MeterConfig(meter) => match &meter.cell {
                MeterCell::Index(index) => write!(f, "meter {index}"),
                MeterCell::Entry { key, priority } => write!(f, "meter of {} priority {priority}", Key(key)),
            },
            Entry::CounterConfig(_) => f.write_str("unit and size"),
            Entry::Calculation(_) => f.write_str("algorithm"),
            Entry::PortSetting(PortSetting {
                port, queue, name, ..
            }) => {
                write!(f, "port {port}")?;
                if let Some(queue) = queue {
                    write!(f, " queue {queue}")?;
                }
                write!(f, " {}", EscapedText(name))
            }
            Entry::BpfProgram(program) => write!(f, "program {}", EscapedText(&program.name)),
            Entry::BpfMap(_) => f.write_str("definition"),
            Entry::BpfMapEntry(BpfMapEntry { key, .. }) => write!(f, "entry {}", Hex(key)),
            Entry::BpfAttachment(BpfAttachment { interface, hook, .. }) => {
                write!(f, "{} of interface {}", EscapedText(hook), EscapedText(interface))
            }
        }
    }
}

impl fmt::Display for EntryContent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Entry::RegisterCell(cell) => write!(f, "{} of {} bits", cell.value, cell.value.width()),
            Entry::TableEntry(entry) => {
                write!(f, "{}", entry.action)?;
                match entry.idle_timeout_ns {
                    0 => Ok(()),
                    timeout_ns => write!(f, ", idle after {timeout_ns} ns"),
                }
            }
            Entry::DefaultAction(default) => {
                match &default.action {
                    None => f.write_str("nothing")?,
                    Some(action) => write!(f, "{action}")?,
                }
                f.write_str(if default.is_const { ", const" } else { "" })
            }
            Entry::ProfileMember(member) => write!(f, "{}", member.action),
            Entry::ProfileGroup(group) => {
                write!(
                    f,
                    "maximum size {} (0: that of the selector), members:",
                    group.size_max
                )?;
                for (member, settings) in &group.members {
                    write!(f, " {member}×{}", settings.weight)?;
                    if !settings.watch_port.is_empty() {
                        write!(f, " while port {} is up", Hex(&settings.watch_port))?;
                    }
                }
                Ok(())
            }
            Entry::MulticastGroup(group) => write!(f, "{}", Copies(&group.replicas)),
            Entry::CloneSession(session) => {
                if let Some(port) = session.port {
                    write!(f, "port {port}, ")?;
                }
                if let Some(group) = session.multicast_group {
                    write!(f, "multicast group {group}, ")?;
                }
                let CloneSession {
                    class_of_service,
                    truncate_bytes,
                    ..
                } = session;
                write!(
                    f,
                    "{}, class {class_of_service}, truncated to {truncate_bytes} bytes (0: not truncated)",
                    Copies(&session.replicas)
                )
            }
            Entry::ValueSetMember(_) => f.write_str("present"),
            Entry::MeterConfig(meter) => {
                write!(f, "{}", meter.unit)?;
                meter
                    .rates
                    .iter()
                    .try_for_each(|rate| write!(f, ", {}/s burst {}", rate.rate_per_s, rate.burst))
            }
            Entry::CounterConfig(counter) => write!(f, "{}, {} cells", counter.unit, counter.size),
            Entry::Calculation(calculation) => {
                f.write_str(&calculation.algorithm.escape_debug().to_string())?;
                calculation
                    .parameters
                    .iter()
                    .try_for_each(|(name, value)| write!(f, ", {}={value}", EscapedText(name)))
            }
            Entry::PortSetting(setting) => write!(f, "{}", setting.value),
            Entry::BpfProgram(program) => write!(f, "instructions {}", Hex(&program.instructions)),
            Entry::BpfMap(map) => write!(
                f,
                "type {}, {} bytes to {} bytes, {} entries, flags {:#x}",
                map.map_type, map.key_bytes, map.value_bytes, map.entries_max, map.flags
            ),
            Entry::BpfMapEntry(entry) => write!(f, "{}", Hex(&entry.value)),
            Entry::BpfAttachment(attachment) => write!(f, "program {}", EscapedText(&attachment.program)),
        }
    }
}
