//! A gateway's link to its controller: all requests, under the gateway's fencing token.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    BootTimestamp, FencingToken, LeaseRequest, LeasedCursor, LeasedStream, NewestSession, Registry,
    RegistryError, Revision, SealedChunk, UnusedRows,
};

use crate::attest::{EvidenceInbox, Signer};
use crate::keys::Keys;
use crate::message::{
    Changes, Denial, LeaseChunk, NewerSession, Provision, RefusalReason, RowRefusal, RowRequest,
};
use crate::trust::{TrustMemory, TrustTable};

/// Devices read from the registry at once.
const CHUNK_DEVICES_MAX: u32 = 500;
/// Changes read from the registry at once.
const CHANGES_MAX: u32 = 4096;

/// Maximum number of rows of one device, from its current one on, that a gateway can lease.
pub const ROWS_HELD_MAX: u32 = 1024;

/// The lease policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rows leased with a device's first authentication at a gateway.
    pub lease_rows: u32,
    /// Number of these rows that may be spent at once. It bounds the loss if the gateway loses its memory (LAP/1
    /// 1.4.6).
    pub mark_block: u32,
}

impl Default for Policy {
    /// 16 rows, 4 of which may be spent at once.
    fn default() -> Self {
        Self {
            lease_rows: 16,
            mark_block: 4,
        }
    }
}

/// Owns the registry and the policy. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Controller {
    registry: Registry,
    lease_rows: u32,
    /// Shared by clones, because it can change.
    mark_block: Arc<AtomicU32>,
    /// Signs attestation results.
    signer: Option<Arc<Signer>>,
    /// Evidence documents that are being received.
    evidence_inbox: Arc<Mutex<EvidenceInbox>>,
    /// Gateways that must submit evidence.
    trust_table: Arc<Mutex<TrustTable>>,
}

impl Controller {
    /// Creates a controller over that registry.
    #[must_use]
    pub fn new(registry: Registry, policy: Policy) -> Self {
        Self {
            registry,
            lease_rows: policy.lease_rows,
            mark_block: Arc::new(AtomicU32::new(policy.mark_block)),
            signer: None,
            evidence_inbox: Arc::default(),
            trust_table: Arc::default(),
        }
    }

    /// Returns the controller with [a separate reader](Registry::with_separate_reader) of the registry.
    #[must_use]
    pub fn with_separate_reader(&self) -> Self {
        Self {
            registry: self.registry.with_separate_reader(),
            ..self.clone()
        }
    }

    /// Returns the controller with a signer of attestation results.
    #[must_use]
    pub fn with_signer(mut self, signer: Signer) -> Self {
        self.signer = Some(Arc::new(signer));
        self
    }

    /// The signer of attestation results.
    #[must_use]
    pub fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    /// The lease policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            lease_rows: self.lease_rows,
            mark_block: self.mark_block.load(Relaxed),
        }
    }

    /// Sets how many rows may be spent at once, from the next first authentication on.
    pub fn set_mark_block(&self, rows: u32) {
        self.mark_block.store(rows, Relaxed);
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn evidence_inbox(&self) -> MutexGuard<'_, EvidenceInbox> {
        // The state is consistent at every moment, so a poisoned lock is usable.
        self.evidence_inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trust_table(&self) -> MutexGuard<'_, TrustTable> {
        // As above.
        self.trust_table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a gateway that has just started. Requests with the fencing token of an earlier process are rejected
    /// from then on. The gateway's evidence is unproven.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn register(&self, gateway: GatewayId, now_s: u64) -> Result<Link, RegistryError> {
        let fencing_token = self.registry.register_gateway(gateway, now_s).await?;
        self.trust_table().restart(gateway);
        Ok(Link {
            controller: self.clone(),
            fencing_token,
        })
    }

    /// Returns the link of a registration. Each request verifies that the registration is the newest.
    #[must_use]
    pub fn link(&self, gateway: GatewayId, number: u64) -> Link {
        Link {
            controller: self.clone(),
            fencing_token: FencingToken::presented(gateway, number),
        }
    }

    /// Discards the evidence that a gateway has submitted to another controller, which has stored `memory`, or over
    /// another connection: the gateway must submit evidence again.
    pub fn restart_trust(&self, gateway: GatewayId, memory: Option<TrustMemory>) {
        self.trust_table().resume(gateway, memory);
    }

    /// Returns the current time, as [`Registry::session_clock`].
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn session_clock(
        &self,
        own: Option<BootTimestamp>,
    ) -> Result<Option<BootTimestamp>, RegistryError> {
        self.registry.session_clock(own).await
    }

    /// Returns the link of a gateway that kept running while its controller was restarted. Each request verifies that
    /// the registration is the newest.
    #[must_use]
    pub fn reconnect(&self, before: &Link) -> Link {
        Link {
            controller: self.clone(),
            fencing_token: before.fencing_token,
        }
    }
}

/// One registration of one gateway. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) controller: Controller,
    pub(crate) fencing_token: FencingToken,
}

/// Reads the leases that a gateway had when it stopped; created by [`Link::leases`].
#[derive(Debug)]
pub struct LeaseReader {
    link: Link,
    stream: LeasedStream,
}

impl LeaseReader {
    /// The position of the reader.
    #[must_use]
    pub fn cursor(&self) -> LeasedCursor {
        self.stream.cursor()
    }

    /// Returns the next part; the last one has [`LeaseChunk::is_last`].
    ///
    /// # Errors
    /// A stale fencing token, a failure of the database, or an untrusted gateway; the request can be retried.
    pub async fn next_chunk(&mut self) -> Result<LeaseChunk, Denial> {
        let Some(sealed) = self.read().await? else {
            let end = self.stream.feed_from().0;
            return Ok(LeaseChunk {
                provisions: Vec::new(),
                damaged: Vec::new(),
                progress: (end, end),
                is_last: true,
            });
        };
        Ok(self.open(sealed))
    }

    /// Reads the next part from the registry, still encrypted; `None` at the end.
    ///
    /// # Errors
    /// As [`LeaseReader::next_chunk`], which calls this function and [`LeaseReader::open`].
    pub async fn read(&mut self) -> Result<Option<SealedChunk>, Denial> {
        self.link.check_trust()?;
        Ok(self.stream.next_sealed().await?)
    }

    /// Opens a part and derives this gateway's keys.
    #[must_use]
    pub fn open(&self, sealed: SealedChunk) -> LeaseChunk {
        let leased = self.stream.open(sealed);
        let provisions = leased.devices.iter().map(|device| {
            let keys = Keys {
                info: &device.info,
                credentials: &device.credentials,
                gateway: self.link.gateway(),
            };
            let lease = &device.lease;
            keys.provision(lease.mark.0..lease.rows.end, lease.mark)
        });
        LeaseChunk {
            provisions: provisions.collect(),
            damaged: leased.damaged.iter().map(ToString::to_string).collect(),
            progress: leased.progress,
            is_last: false,
        }
    }
}

impl Link {
    /// The gateway.
    #[must_use]
    pub fn gateway(&self) -> GatewayId {
        self.fencing_token.gateway()
    }

    /// The fencing token of this registration: one more than that of the previous process.
    #[must_use]
    pub fn token_number(&self) -> u64 {
        self.fencing_token.number()
    }

    pub(crate) fn fencing_token(&self) -> &FencingToken {
        &self.fencing_token
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.controller.registry
    }

    /// Returns the lease request for a device's first authentication, with the device's statement.
    pub(crate) fn first_lease_request(
        &self,
        device: DeviceId,
        epoch: u32,
        stated: RowStatement,
    ) -> LeaseRequest {
        LeaseRequest {
            device,
            epoch,
            from: RowIndex(0),
            received: RowIndex(0),
            hold_rows: self.controller.policy().lease_rows,
            spendable_rows: self.controller.policy().mark_block,
            statement: stated,
        }
    }

    /// Verifies that this registration is the newest.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database.
    pub async fn verify_registration(&self) -> Result<(), RegistryError> {
        self.registry().verify_fencing_token(&self.fencing_token).await
    }

    /// Returns those of the devices that the gateway may report, as [`Registry::reportable_devices`].
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn known_devices(&self, devices: &[DeviceId]) -> Result<HashSet<DeviceId>, RegistryError> {
        self.registry().reportable_devices(self.gateway(), devices).await
    }

    /// Reads the leases that the gateway had when it stopped.
    #[must_use]
    pub fn leases(&self) -> LeaseReader {
        self.leases_from(LeasedCursor::default())
    }

    /// The same, from a cursor on.
    #[must_use]
    pub fn leases_from(&self, place: LeasedCursor) -> LeaseReader {
        LeaseReader {
            link: self.clone(),
            stream: self
                .registry()
                .stream_leased_from(self.fencing_token, CHUNK_DEVICES_MAX, place),
        }
    }

    /// Leases more rows and moves marks for devices with a lease of the gateway; at most [`ROWS_HELD_MAX`] rows of
    /// each. A first lease starts with [`Link::admit_devices`].
    ///
    /// # Errors
    /// A stale fencing token, a failure of the database, or an untrusted gateway; the request can be retried.
    pub async fn extend_leases(
        &self,
        row_requests: &[RowRequest],
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), Denial> {
        self.check_trust()?;
        let requests: Vec<LeaseRequest> = row_requests
            .iter()
            .map(|row_request| LeaseRequest {
                device: row_request.device,
                epoch: row_request.epoch,
                from: row_request.from,
                received: row_request.received,
                hold_rows: row_request.hold_rows.min(ROWS_HELD_MAX),
                spendable_rows: row_request.spendable_rows.min(ROWS_HELD_MAX),
                statement: RowStatement::default(),
            })
            .collect();
        let leases = self
            .registry()
            .extend_leases(&self.fencing_token, &requests)
            .await?;
        let (mut provisions, mut refused) = (Vec::new(), Vec::new());
        for (row_request, lease) in row_requests.iter().zip(leases) {
            let provision = match lease {
                Ok(granted) if granted.rows.is_empty() => Ok(Provision {
                    device: granted.device,
                    mode: granted.mode,
                    epoch: granted.epoch,
                    first: RowIndex(granted.rows.start),
                    rows: Vec::new(),
                    mark: granted.mark,
                }),
                Ok(granted) => self
                    .registry()
                    .load(row_request.device)
                    .await
                    .map(|found| self.keys(&found).provision(granted.rows, granted.mark)),
                Err(error) => Err(error),
            };
            match provision {
                Ok(provision) => provisions.push(provision),
                Err(error) => refused.push(RowRefusal {
                    device: row_request.device,
                    reason: RefusalReason::from_registry_error(error)?,
                }),
            }
        }
        Ok((provisions, refused))
    }

    /// Records the unused rows of devices that left the gateway's data plane. Returns how many rows were returned to
    /// their pools.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn record_unused_rows(&self, unused_rows: &[UnusedRows]) -> Result<u64, RegistryError> {
        let mut back = 0;
        for result in self
            .registry()
            .record_unused_rows(&self.fencing_token, unused_rows)
            .await?
        {
            match result {
                Ok(rows) => back += u64::from(rows),
                // Rows of a device that is not enrolled or whose record is damaged cannot be returned.
                Err(error) => drop(RefusalReason::from_registry_error(error)),
            }
        }
        Ok(back)
    }

    /// Returns the changes since a revision, or all changes if the registry counts fewer. `own` is the boot-time
    /// clock of the controller's machine ([`Registry::session_clock`]). A device whose record does not authenticate
    /// is reported as revoked, and logged.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn changes_since(
        &self,
        since: Revision,
        own: Option<BootTimestamp>,
    ) -> Result<Changes, RegistryError> {
        // Usually two queries of one row.
        self.registry().verify_fencing_token(&self.fencing_token).await?;
        let newest = self.registry().revision().await?;
        if newest == since {
            return Ok(Changes {
                changes: Vec::new(),
                newer_sessions: Vec::new(),
                up_to_revision: since,
                has_more: false,
            });
        }
        let since = if newest < since {
            // New changes get revisions that the gateway has read already.
            tracing::error!(
                gateway_id = %self.gateway(),
                read_revision = since.0,
                revision = newest.0,
                "registry revision is lower than a gateway has read; sending all changes again"
            );
            Revision::ZERO
        } else {
            since
        };
        let found = self.registry().changes_since(since, CHANGES_MAX).await?;
        for record in &found.damaged {
            tracing::error!(
                error = record,
                "damaged device record; reporting the device as revoked"
            );
        }
        let now = match found.newest_sessions.is_empty() {
            true => None,
            false => self.registry().session_clock(own).await?,
        };
        let newer_session = |session: NewestSession| {
            // A session from an earlier boot of the controller's machine cannot be compared.
            let age_ns = session.started.age_ns(now?)?;
            (session.gateway != self.gateway()).then_some(NewerSession {
                device: session.device,
                gateway: session.gateway,
                age_ns,
            })
        };
        Ok(Changes {
            changes: found.changes,
            newer_sessions: found
                .newest_sessions
                .into_iter()
                .filter_map(newer_session)
                .collect(),
            up_to_revision: found.up_to_revision,
            has_more: found.has_more,
        })
    }
}

impl RefusalReason {
    /// Classifies an error of one device; every other error fails the whole request.
    pub(crate) fn from_registry_error(error: RegistryError) -> Result<Self, RegistryError> {
        match error {
            RegistryError::RowsExhausted { .. } => Ok(Self::Exhausted),
            RegistryError::NoLease { .. } => Ok(Self::NotHeld),
            RegistryError::Revoked { .. }
            | RegistryError::Quarantined { .. }
            | RegistryError::UnknownDevice { .. } => Ok(Self::Inactive),
            RegistryError::DamagedRecord { .. } | RegistryError::InvalidUnusedRows { .. } => {
                Ok(Self::Damaged(error.to_string()))
            }
            other => Err(other),
        }
    }
}
