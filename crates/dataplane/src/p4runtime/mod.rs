//! The `p4runtime` data plane: the program `lap` on a P4 switch, controlled by P4Runtime.
//!
//! ```text
//!  gateway ── DataPlane ──► P4Runtime ── writes, reads ──► rows · keys · registers · meters ──► packets
//!                              ▲  └── packet-out ────────► clock_us                              │
//!                              └─ digests: sessions, wrong tags and proofs; packet-ins: unknown devices ◄───┘
//! ```
//!
//! The switch holds what the [`Store`](crate::Store) holds for other backends; this side knows which rows it was given, and
//! no key. What the program leaves out (docs/switch.md) is refused when the data plane starts.
//!
//! *Loss of the switch*: it restarts without rows, or the stream breaks, or it refuses something. Then nobody here knows what
//! was spent, and [`crate::DataPlane::failure`] says so, as when any data plane ends: a gateway that starts anew has the switch
//! forget everything and asks for new rows. A switch that nobody controls answers nothing once the fresh value is 16 s old.

mod asking;
mod book;
mod clock;
mod device;
mod error;
mod events;
mod link;
mod options;
mod plane;
mod program;
mod provers;
mod setup;
mod slow;
mod sources;

use std::sync::Mutex;

pub use self::error::SwitchError;
pub use self::options::{Neighbour, P4Options, Place};
pub use self::program::{DEVICES, PROVERS, changing_objects};

use self::book::Book;
use self::clock::Reading;
use self::link::Link;
use self::provers::ProverBook;
use self::slow::SlowPath;
use crate::config::{Config, Live};
use crate::event::Event;
use crate::store::StoreError;
use crate::{Capabilities, DataPlaneError};
use linewarden_protocol::ids::DeviceId;

/// The `p4runtime` data plane.
#[derive(Debug)]
pub struct P4Runtime {
    link: Link,
    config: Config,
    live: Live,
    stopping: bool,
    book: Book,
    provers: ProverBook,
    clock: Reading,
    slow: SlowPath,
    /// When it last looked through all devices, on the monotonic clock.
    looked_ns: Option<u64>,
    /// Devices that were found to lack rows.
    low: Vec<Event>,
    wins_told: u64,
    /// The current one, as it is on the wire.
    fresh: u64,
    /// The first; what the switch holds since is not known.
    failure: Mutex<Option<String>>,
}

impl P4Runtime {
    /// What of it this data plane serves. `lap` has a sealed gate too, for short payloads, which is not joined to this yet.
    pub const CAPABILITIES: Capabilities = Capabilities {
        gate: true,
        sealed: false,
        attest: true,
        p4dra: false,
        classic: false,
        // The switch stamps by itself, as it is told at its start.
        in_packets: false,
    };

    /// Takes hold of the switch: it forgets what it ran, runs `lap` with this configuration, and answers nothing until there is a
    /// fresh value.
    ///
    /// # Errors
    /// A configuration that asks for what `lap` has not; a switch that cannot be reached, is held by another controller, has no
    /// CPU port, or refuses.
    pub fn connect(config: &Config, options: &P4Options) -> Result<Self, DataPlaneError> {
        options.check(config)?;
        let link = Link::open(options)?;
        let clock = Reading::take(&link, None)?;
        let plane = Self {
            book: Book::new(config.geometry.slots),
            provers: ProverBook::new(config.provers),
            live: config.live(),
            config: config.clone(),
            stopping: false,
            clock,
            slow: SlowPath::default(),
            looked_ns: None,
            low: Vec::new(),
            wins_told: 0,
            fresh: 0,
            failure: Mutex::default(),
            link,
        };
        plane.set_up(options)?;
        Ok(plane)
    }

    /// RESPONSEs that have won and that the switch has told of so far: a moment after they have, or never where that is lost.
    #[must_use]
    pub fn wins_told(&self) -> u64 {
        self.wins_told
    }

    fn failed(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Notes that what the switch holds is not known any more.
    fn note<T>(&self, result: Result<T, SwitchError>) -> Result<T, SwitchError> {
        if let Err(error) = &result {
            self.failed().get_or_insert_with(|| match error {
                SwitchError::Lost(why) => why.clone(),
                error => error.to_string(),
            });
        }
        result
    }

    /// Nothing is done once something has failed.
    fn check(&self) -> Result<(), SwitchError> {
        let lost = self.failed().clone().or_else(|| self.link.ended());
        lost.map_or(Ok(()), |why| Err(SwitchError::Lost(why)))
    }

    fn of_device<T>(&self, device: DeviceId, result: Result<T, SwitchError>) -> Result<T, StoreError> {
        self.note(result).map_err(|error| {
            tracing::error!(%device, %error, "the switch did not do what it was to");
            StoreError::Switch(device)
        })
    }
}
