//! Properties of PCRs that an operator should know before using them as reference values. No decision depends on
//! them.

use std::fmt;

use serde::Serialize;

use super::event_type::EventType;
use super::replay::{ReplayedEvent, ReplayedLog};
use crate::pcr::{PcrIndex, PcrSelection};

/// The platform's configuration (PFP 3.3.4.2), which contains serial numbers, boot options or addresses on most
/// machines.
const PLATFORM_CONFIGURATION: u32 = 1;

/// A notice, not an error. `Display` prints one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// No log shows how the PCR values came about.
    NoLog {
        /// Why there is no log.
        reason: String,
        /// The PCRs.
        pcrs: PcrSelection,
    },
    /// Events whose type requires a digest of the data, but whose digest does not match.
    Unexplained {
        /// Number of these events.
        events: usize,
        /// The first of these events.
        first: ReplayedEvent,
    },
    /// The PCR differs between devices with the same software.
    MachineSpecific {
        /// The PCR.
        pcr: PcrIndex,
        /// The first event with machine-specific data; `None` if only the purpose of the PCR indicates such data.
        event: Option<ReplayedEvent>,
    },
}

/// All notices on these PCRs. `log` is the log that replays to their values, or the reason why there is no log.
pub fn notices(selection: PcrSelection, log: Result<&ReplayedLog, &str>) -> Vec<Notice> {
    if selection.is_empty() {
        return Vec::new();
    }
    let mut notices = Vec::new();
    match log {
        Err(reason) => notices.push(Notice::NoLog {
            reason: reason.to_owned(),
            pcrs: selection,
        }),
        Ok(log) => notices.extend(log.unexplained().next().map(|first| Notice::Unexplained {
            events: log.unexplained().count(),
            first: first.clone(),
        })),
    }
    for pcr in selection.iter() {
        let events = log.ok().into_iter().flat_map(ReplayedLog::events);
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

/// Types whose data identify one machine: serial numbers in tables (SMBIOS), detected devices, boot options with disk
/// GUIDs, the partition table.
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
            Self::NoLog { reason, pcrs } => write!(
                f,
                "{reason}: PCRs {pcrs} are appraised by their values alone, without an event log"
            ),
            Self::Unexplained { events, first } => {
                let count = match events {
                    1 => "1 event".to_owned(),
                    count => format!("{count} events"),
                };
                write!(
                    f,
                    "{count} with data that the digest does not cover, appraised by digest alone; the first: {first}"
                )
            }
            Self::MachineSpecific { pcr, event } => {
                match event {
                    Some(event) => write!(f, "PCR {pcr} contains data of this machine only ({event})")?,
                    None => write!(f, "PCR {pcr} contains machine-specific data on most hardware")?,
                }
                f.write_str("; it differs between devices with the same software: remove it from `pcrs`")
            }
        }
    }
}
