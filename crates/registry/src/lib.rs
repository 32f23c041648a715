//! The registry: the database of devices, their credentials, leases of rows to gateways, and attestation results.
//!
//! A registry is one SQLite file or one PostgreSQL schema. A device has two records. The record of its state is short
//! and changes often. The record of its credentials has all rows or the key, and changes only if the credentials are
//! renewed or replaced. The credentials are sealed with XChaCha20-Poly1305 under a key derived from a [`MasterKey`],
//! which is never stored in the database. Sealed credentials are bound to device, mode, suite, epoch and row numbers,
//! and do not open if they were damaged or moved to another record. A tag authenticates the record of the state.
//!
//! | module | contents |
//! |---|---|
//! | `store`, `sqlite`, `postgres`, `schema`, `sql` | opening and creating a registry, schema version, SQL for both databases |
//! | `device`, `credentials`, `enroll`, `renew`, `revoke`, `quarantine`, `query`, `walk` | device records and credentials |
//! | `gateway`, `lease`, `roaming`, `feed` | fencing tokens, leases of rows, newest sessions, change feed |
//! | `pair` | keys for pairs of devices |
//! | `attest` | groups, provers, periods, rounds, appraisals, evidence |
//! | `fingerprint` | detection of a PUF that is already enrolled |
//! | `service` | API users, event log, gateway records, signers, stored responses |
//! | `copy`, `storage`, `transfer`, `import` | backups and moves, detection of restores, export files |
//!
//! ```
//! use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
//! use linewarden_protocol::keys::RowKey;
//! use linewarden_registry::{
//!     Credentials, DeviceRecord, FencingError, LeaseRequest, MasterKey, PoolRow, Registry, RegistryError,
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
//!     .enroll(DeviceRecord {
//!         device,
//!         name: "pump 7".to_owned(),
//!         suite: Suite::SipHash128,
//!         enrolled_at_s: 1_790_000_000,
//!         puf_profile: "arbiter 64, 4-xor".to_owned(),
//!         credentials: Credentials::pool(rows),
//!     })
//!     .await?;
//!
//! // Each row is leased to one gateway only, in increasing order, even across crashes.
//! let token = registry.register_gateway(GatewayId(1), 1_790_000_000).await?;
//! let request = LeaseRequest { device, epoch: 0, from: RowIndex(0), received: RowIndex(0), hold_rows: 6,
//!     spendable_rows: 4, statement: Default::default() };
//! let grant = registry.lease(&token, &[request]).await?.remove(0)?;
//! assert_eq!((grant.rows, grant.mark), (0..6, RowIndex(4)));
//!
//! // The gateway restarts and registers again: requests with the earlier token are refused.
//! let newer = registry.register_gateway(GatewayId(1), 1_790_000_060).await?;
//! let refused = registry.lease(&token, &[request]).await;
//! assert!(matches!(refused, Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))));
//! # Ok(())
//! # }
//! ```
//!
//! The crate opens no socket except to PostgreSQL, takes the current time as an argument, and derives no keys for gateways
//! (`linewarden_protocol::keys::AuthKey` does). The crate detects most restores of an older database (module `storage`), but a
//! restore loses the revocations since the backup.
//!
//! The operating system, not the caller, supplies nonces and generated keys, because a repeated nonce would reveal sealed data.
#![forbid(unsafe_code)]

#[cfg(test)]
#[macro_use(test)]
extern crate linewarden_harness;

mod attest;
mod column;
mod conversion;
mod copy;
mod credentials;
mod device;
mod enroll;
mod error;
mod feed;
mod fingerprint;
mod gateway;
mod import;
mod key;
mod lease;
mod location;
mod monitor;
mod pair;
mod postgres;
mod quarantine;
mod query;
mod record_tag;
mod renew;
mod revoke;
mod roaming;
mod schema;
mod seal_context;
mod service;
mod sql;
mod sqlite;
mod storage;
mod store;
mod transfer;
mod walk;

pub use attest::{
    Appraisal, AppraisalPage, AttestationState, BINDING_BYTES_MAX, EVIDENCE_BYTES_MAX, Group, GroupList,
    InvalidRoundCursor, LOST_COUNTER_GAP, MISSED_ROUNDS_MAX, NewGroup, NewProver, OVERLAY_BYTES_MAX,
    PERIODS_MAX, PeriodRecord, Protection, ProverIdPage, ProverLocation, ProverPage, ProverRecord,
    ROUNDS_MAX, ReservedRounds, RollOut, RoundCursor, RoundPage, RoundRecord,
};
pub use copy::CopySummary;
pub use credentials::{Credentials, POOL_ROW_BYTES, POOL_ROWS_MAX, PoolRow};
pub use device::{DeviceInfo, DeviceRecord, NAME_BYTES_MAX, Quarantine, Status, TEXT_BYTES_MAX};
pub use enroll::{BulkOptions, NewDevice, OnConflict, Progress, SealedDevices};
pub use error::{
    AttestationError, BulkError, DatabaseError, DeviceError, FencingError, KeyError, LineProblem, OpenError,
    RegistryError, Result, ServiceError,
};
pub use feed::Changes;
pub use fingerprint::{BANDS_MAX, Band, Fingerprint};
pub use gateway::FencingToken;
pub use import::ExportFile;
pub use key::{ExportKey, KEY_BYTES, MasterKey};
pub use lease::{Lease, LeaseGrant, LeaseRequest, LeasedChunk, LeasedDevice, LeasedStream, SealedChunk};
pub use linewarden_files::seal::SEAL_OVERHEAD_BYTES;
pub use location::{Location, LocationError, PostgresAddress};
pub use monitor::{TransactionMonitor, TransactionObserver};
pub use pair::{PAIR_LIFETIME_S, PairKey};
pub use quarantine::{QuarantineRequest, QuarantineResult};
pub use query::{DeviceFilter, DevicePage, ids_with_prefix};
pub use renew::{Enrollment, Renewal, RenewalResult};
pub use roaming::{NewestSession, ProvenSession, SessionOrder};
pub use service::{
    Action, Actor, CLOCK_SKEW_MAX_MS, EventFilter, EventLogEntry, EventLogPage, EventLogReader,
    GatewayRecord, GatewayState, IdempotencyState, NewEvent, RESPONSES_KEPT_S, Role, SignerRecord,
    StoredResponse, User,
};
pub use store::{Options, Registry};
pub use transfer::{DeviceLine, ExportSummary, OnDamage};
pub use walk::ActiveDevice;

/// Runs the unit tests.
#[cfg(test)]
fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
