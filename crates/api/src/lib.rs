//! Types of requests and responses of the controller's API v1, shared by service and client.
//!
//! | module | contents |
//! |---|---|
//! | `devices` | [`Device`], its details, leases and pairs, the query of devices, revocation of many devices |
//! | `enrollment` | [`NewDevice`] with its credentials, import |
//! | `gateways` | [`Gateway`], its latency and evidence |
//! | `attestation` | [`AttestationResult`], [`Round`], [`Group`] and their queries |
//! | `signers` | [`Signer`] of broadcast messages |
//! | `users` | [`UserInfo`], [`Identity`], creation and deletion of users |
//! | `events` | [`EventRecord`], [`AuditRecord`] and their queries |
//! | `lists` | [`List`], a page of any list |
//! | `writes` | [`Reason`] of an action, lifetime of an idempotency key |
//! | `errors` | [`ErrorBody`] of every error response |
//!
//! The crate contains only data: the service validates requests and converts them to records of its registry. Names of
//! states, roles and modes are texts, so that a client also reads the names of a newer controller. Types that only the
//! service uses, such as the request to log in, are not in this crate.
//!
//! The feature `openapi` derives the schemas of the OpenAPI description (`utoipa`).
//!
//! # Example
//! ```
//! use linewarden_api::{ErrorBody, NewGateway};
//!
//! let request = NewGateway {
//!     id: 7,
//!     name: "hall 3".to_owned(),
//!     reason: "new hall".to_owned(),
//! };
//! assert_eq!(
//!     serde_json::to_string(&request)?,
//!     r#"{"id":7,"name":"hall 3","reason":"new hall"}"#
//! );
//!
//! let response = r#"{"error":{"code":"invalid","message":"expected 1 to 1000","field":"limit"}}"#;
//! let response: ErrorBody = serde_json::from_str(response)?;
//! assert_eq!(response.error.field.as_deref(), Some("limit"));
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

mod attestation;
mod devices;
mod enrollment;
mod errors;
mod events;
mod gateways;
mod lists;
mod signers;
mod users;
mod writes;

pub use attestation::{
    Attestation, AttestationResult, ChangedGroup, Group, GroupChange, GroupQuery, Location, NewRollOut,
    ResultQuery, RollOut, Round, RoundQuery, SignedResults,
};
pub use devices::{
    ChangedPair, Device, DeviceDetails, DeviceQuery, Lease, Pair, RevokeRequest, RevokeResult,
};
pub use enrollment::{
    CHUNK_BYTES, CHUNK_DEVICES, ImportQuery, ImportResult, NewCredentials, NewDevice, Restriction,
};
pub use errors::{ErrorBody, ErrorDetail};
pub use events::{AuditQuery, AuditRecord, EventHistoryQuery, EventRecord};
pub use gateways::{Evidence, Gateway, GatewayEvidence, Latency, NewGateway};
pub use lists::{List, PageQuery};
pub use signers::{NewSigner, Signer};
pub use users::{CreatedUser, Identity, NewUser, ReasonQuery, UserInfo};
pub use writes::{ABANDONED_AFTER_S, Reason};
