//! What an operator should know of PCRs before fixing them as a reference value. Nothing is decided by it.

use std::fmt;

use serde::Serialize;

use super::kind::EventType;
use super::replay::{Replayed, ReplayedEvent};
use crate::pcr::{PcrIndex, PcrSelection};

/// The platform's configuration (PFP 3.3.4.2), in which most machines have serial numbers, boot options or addresses.
const PLATFORM_CONFIGURATION: u32 = 1;

/// Something that is no error. `Display` gives one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// No log says how the values came about.
    NoLog {
        /// Why there is none.
        why: String,
        /// The PCRs.
        pcrs: PcrSelection,
    },
    /// Events whose data are not what their digest is of, though their type says so.
    Unexplained {
        /// How many.
        events: usize,
        /// The first of them.
        first: ReplayedEvent,
    },
    /// Devices that run the same differ in this PCR.
    MachineSpecific {
        /// Which.
        pcr: PcrIndex,
        /// The first event with such data; nothing where only the PCR's purpose says so.
        event: Option<ReplayedEvent>,
    },
}

/// All notices on these PCRs. `log` is the log that replays to their values, or why there is none.
pub fn notices(selection: PcrSelection, log: Result<&Replayed, &str>) -> Vec<Notice> {
    if selection.is_empty() {
        return Vec::new();
    }
    let mut notices = Vec::new();
    match log {
        Err(why) => notices.push(Notice::NoLog {
            why: why.to_owned(),
            pcrs: selection,
        }),
        Ok(log) => notices.extend(log.unexplained().next().map(|first| Notice::Unexplained {
            events: log.unexplained().count(),
            first: first.clone(),
        })),
    }
    for pcr in selection.iter() {
        let events = log.ok().into_iter().flat_map(Replayed::events);
        let event = events
            .filter(|event| event.pcr == pcr)
            .find(|event| is_machine_specific(event.kind));
        if event.is_some() || pcr.get() == PLATFORM_CONFIGURATION {
            let event = event.cloned();
            notices.push(Notice::MachineSpecific { pcr, event });
        }
    }
    notices
}

/// Types whose data name one machine: serial numbers in tables (SMBIOS), devices found, boot options with the GUIDs of its disks,
/// its partition table.
const fn is_machine_specific(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::EV_TABLE_OF_DEVICES
            | EventType::EV_PLATFORM_CONFIG_FLAGS
            | EventType::EV_EFI_HANDOFF_TABLES
            | EventType::EV_EFI_HANDOFF_TABLES2
            | EventType::EV_EFI_VARIABLE_BOOT
            | EventType::EV_EFI_VARIABLE_BOOT2
            | EventType::EV_EFI_GPT_EVENT
    )
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLog { why, pcrs } => write!(
                f,
                "{why}: PCRs {pcrs} are appraised by their values alone, and no event says how these came about"
            ),
            Self::Unexplained { events, first } => {
                let count = match events {
                    1 => "1 event".to_owned(),
                    many => format!("{many} events"),
                };
                write!(
                    f,
                    "{count} of the log with data that the digest is not of, appraised by digest alone; the first: {first}"
                )
            }
            Self::MachineSpecific { pcr, event } => {
                match event {
                    Some(event) => write!(f, "PCR {pcr} holds data of this machine alone ({event})")?,
                    None => write!(f, "PCR {pcr} holds data of the machine alone on most hardware")?,
                }
                f.write_str("; devices that run the same differ in it: leave it out of `pcrs`")
            }
        }
    }
}
