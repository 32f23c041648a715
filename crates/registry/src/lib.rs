//! The registry: which devices there are, what proves them, and which gateway may use which of their rows.
//!
//! One SQLite file, or one schema of PostgreSQL, holds one record per device (not per row): its state in a small row that changes often, its
//! credentials in a big one that is written once, sealed with XChaCha20-Poly1305 under a key derived from a
//! [`MasterKey`] that is never in the file. A sealed blob is bound to its device, mode, suite, epoch and row
//! numbers, so one that was damaged, moved or exchanged does not open.
//!
//! ```
//! use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
//! use linewarden_protocol::keys::RowKey;
//! use linewarden_registry::{
//!     Credentials, DeviceRecord, LeaseRequest, MasterKey, PoolRow, Registry, RegistryError,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let key = MasterKey::generate_file(directory.path().join("master.key"))?;
//! let registry = Registry::create(directory.path().join("fleet.registry"), &key).await?;
//!
//! let rows = (1..=8).map(|n| PoolRow { challenge: [n; 8], row_key: RowKey::from_bytes([n; 16]) }).collect();
//! let device = DeviceId(0xd1);
//! registry
//!     .enrol(DeviceRecord {
//!         device,
//!         name: "pump 7".to_owned(),
//!         suite: Suite::SipHash128,
//!         enrolled_at_s: 1_790_000_000,
//!         puf_profile: "arbiter 64, 4-xor".to_owned(),
//!         credentials: Credentials::pool(rows),
//!     })
//!     .await?;
//!
//! // Rows go to one gateway each, in increasing order, also across crashes.
//! let fence = registry.register_gateway(GatewayId(1), 1_790_000_000).await?;
//! let wish = LeaseRequest { device, epoch: 0, from: RowIndex(0), received: RowIndex(0), hold: 6, ahead: 4,
//!     stated: Default::default() };
//! let granted = registry.lease(&fence, &[wish]).await?.remove(0)?;
//! assert_eq!((granted.rows, granted.mark), (0..6, RowIndex(4)));
//!
//! // The same gateway, started again: whoever it was before gets nothing.
//! let newer = registry.register_gateway(GatewayId(1), 1_790_000_060).await?;
//! let refused = registry.lease(&fence, &[wish]).await;
//! assert!(matches!(refused, Err(RegistryError::OldFence { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! What it does not do: it opens no socket, reads no clock (times are arguments), derives no key for a gateway
//! (`linewarden_protocol::keys::AuthKey` does, from a row key), and does not protect against somebody who puts an
//! old copy of the whole file back: marks and revocations since then are lost with it.
//!
//! Nonces and keys come from the operating system and not from the caller, because a repeated one would open
//! what it seals.
#![forbid(unsafe_code)]

mod attest;
mod column;
mod copy;
mod credentials;
mod device;
mod enrol;
mod error;
mod feed;
mod fingerprint;
mod gateway;
mod import;
mod key;
mod lease;
mod location;
mod migrations;
mod pair;
mod place;
mod postgres;
mod quarantine;
mod query;
mod record_mac;
mod renew;
mod revoke;
mod roaming;
mod row;
mod service;
mod sql;
mod sqlite;
mod storage;
mod store;
mod transfer;
mod walk;
mod watch;

pub use attest::{
    Appraisal, AppraisalPage, BINDING_BYTES_MAX, EVIDENCE_BYTES_MAX, EnrolledAt, Group, GroupList, GroupName,
    GroupNameError, GroupPolicy, Home, LOST_NUMBERS, NewGroup, NewProver, NoRoundPlace, OVERLAY_BYTES_MAX,
    PERIODS_KEPT, PeriodRecord, Protection, ProverIdPage, ProverPage, ProverRecord, ROUNDS_KEPT, Reopen,
    ReservedRounds, RollOut, RoundPage, RoundPlace, RoundRecord, SILENCES_MAX, State,
};
pub use copy::Copied;
pub use credentials::{Credentials, POOL_ROW_BYTES, POOL_ROWS_MAX, PoolRow};
pub use device::{DeviceInfo, DeviceRecord, NAME_BYTES_MAX, Quarantine, Revision, Status, TEXT_BYTES_MAX};
pub use enrol::{BulkOptions, NewDevice, OnConflict, Progress, SealedDevices};
pub use error::{LineMistake, RegistryError, Result};
pub use feed::{Change, Changes};
pub use fingerprint::{BANDS_MAX, Band, Fingerprint};
pub use gateway::Fence;
pub use import::ExportFile;
pub use key::{ExportKey, KEY_BYTES, MasterKey};
pub use lease::{
    Granted, Lease, LeaseRequest, LeasedChunk, LeasedDevice, LeasedPlace, LeasedStream, SealedChunk,
    Settlement,
};
pub use linewarden_files::seal::SEAL_OVERHEAD_BYTES;
pub use location::{Location, LocationError, PostgresAddress};
pub use pair::{PAIR_LIFETIME_S, PairKey};
pub use quarantine::{ShutOut, Suspect};
pub use query::{Filter, Page, ids_beginning};
pub use renew::{Enrolment, Renewal, RenewalResult};
pub use roaming::{BootId, Moment, Opened, Roamed, Standing};
pub use service::{
    ANSWERS_KEPT_S, Act, Actor, Answered, Entry, Follower, GatewayEntry, GatewayState, JournalFilter,
    JournalPage, Kept, NOTED_AHEAD_MS, Note, Role, SignerEntry, User,
};
pub use store::{Options, Registry};
pub use transfer::{DeviceLine, Exported, OnDamage};
pub use walk::ActiveDevice;
pub use watch::{Watch, Watched};
