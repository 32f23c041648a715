//! The `p4runtime` data plane: the program `lap` on a P4 switch, controlled by P4Runtime.
//!
//! ```text
//!  gateway ── DataPlane ──► P4Runtime ── writes, reads ──► rows · keys · registers · meters ──► packets
//!                              ▲  └── packet-out ────────► clock_us                              │
//!                              └──────── digests: sessions, wrong tags ◄─────────────────────────┘
//! ```
//!
//! The switch holds what the [`Store`](crate::Store) holds for other backends; this side knows which rows it was given, and
//! no key. What the program leaves out (docs/switch.md) is refused when the data plane starts. Sessions are told without
//! their RESPONSE, so that no other gateway can be shown them ([`EventKind::Unproven`](crate::EventKind::Unproven)).
//!
//! *Loss of the switch*: it restarts without rows, or the stream breaks, or it refuses something. Then nobody here knows what
//! was spent, and [`crate::DataPlane::failure`] says so, as when any data plane ends: a gateway that starts anew has the switch
//! forget everything and asks for new rows. A switch that nobody controls answers nothing once the fresh value is 16 s old.

mod book;
mod clock;
mod device;
mod error;
mod events;
mod link;
mod options;
mod plane;
mod program;
mod setup;

use std::sync::Mutex;

pub use self::error::SwitchError;
pub use self::options::{Neighbour, P4Options};

use self::book::Book;
use self::clock::Reading;
use self::link::Link;
use crate::DataPlaneError;
use crate::config::{Config, Live};
use crate::store::StoreError;
use linewarden_protocol::ids::DeviceId;

/// The `p4runtime` data plane.
#[derive(Debug)]
pub struct P4Runtime {
    link: Link,
    config: Config,
    live: Live,
    stopping: bool,
    book: Book,
    clock: Reading,
    /// The current one, as it is on the wire.
    fresh: u64,
    /// The first; what the switch holds since is not known.
    failure: Mutex<Option<String>>,
}

impl P4Runtime {
    /// Takes hold of the switch: it forgets what it ran, runs `lap` with this configuration, and answers nothing until there is a
    /// fresh value.
    ///
    /// # Errors
    /// A configuration that asks for what `lap` has not; a switch that cannot be reached, is held by another controller, has no
    /// CPU port, or refuses.
    pub fn connect(config: &Config, options: &P4Options) -> Result<Self, DataPlaneError> {
        options::check(config, options)?;
        let link = Link::open(&options.address, options.device_id, options.election_id)?;
        let clock = Reading::take(&link)?;
        let plane = Self {
            book: Book::new(config.geometry.slots),
            live: config.live(),
            config: config.clone(),
            stopping: false,
            clock,
            fresh: 0,
            failure: Mutex::default(),
            link,
        };
        plane.set_up(&options.bridge)?;
        Ok(plane)
    }

    fn failed(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Notes that what the switch holds is not known any more.
    fn note<T>(&self, result: Result<T, SwitchError>) -> Result<T, SwitchError> {
        if let Err(error) = &result {
            self.failed().get_or_insert_with(|| error.to_string());
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
