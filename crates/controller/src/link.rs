//! The requests of a gateway to its controller, each under the gateway's fencing token.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    FencingToken, LeaseRequest, LeasedStream, NewestSession, Registry, RegistryError, SealedChunk,
};
use linewarden_types::{
    BootTimestamp, Changes, LeaseChunk, LeasedCursor, NewerSession, ProcessId, Provision, Revision,
    RowRefusal, RowRequest, UnusedRows,
};

use crate::attest::{EvidenceInbox, Signer};
use crate::denial::{Denial, refusal_reason};
use crate::keys::Keys;
use crate::trust::{TrustMemory, TrustTable};

/// Maximum number of devices in one read from the registry.
const CHUNK_DEVICES_MAX: u32 = 500;
/// Maximum number of changes in one read from the registry.
const CHANGES_MAX: u32 = 4096;

/// Maximum number of rows of one device, counted from its current row, that can be leased to a gateway at once.
pub const ROWS_HELD_MAX: u32 = 1024;

/// The lease policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rows leased with a device's first authentication at a gateway.
    pub lease_rows: u32,
    /// Number of leased rows that the gateway may spend before the controller moves the mark. This number limits the loss
    /// of rows if the gateway loses its memory (LAP/1 1.4.6).
    pub mark_block: u32,
}

impl Default for Policy {
    /// 16 rows; 4 rows may be spent before the mark is moved.
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
    /// Creates a controller that owns `registry`.
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

    /// Sets [`Policy::mark_block`] for all first authentications from now on.
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
        // The trust table is consistent at every moment, so a poisoned lock is usable.
        self.trust_table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a gateway that has just started. Requests with the fencing token of an earlier process are rejected
    /// from then on. A trusted gateway is unproven until it submits new evidence.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn register(&self, gateway: GatewayId, now_s: u64) -> Result<Link, RegistryError> {
        let fencing_token = self.registry.register_gateway(gateway, now_s).await?;
        self.begin_registration(gateway);
        Ok(self.link(fencing_token))
    }

    /// Registers a process, unless it is registered already. Returns its fencing token, and whether the token is new. A
    /// caller that gets a new token calls [`Controller::begin_registration`].
    ///
    /// # Errors
    /// As [`Controller::register`].
    pub async fn register_process(
        &self,
        gateway: GatewayId,
        process: ProcessId,
        now_s: u64,
    ) -> Result<(FencingToken, bool), RegistryError> {
        self.registry.register_process(gateway, process, now_s).await
    }

    /// Resets the trust state of a gateway that has a new fencing token: a trusted gateway is unproven until it submits
    /// new evidence.
    pub fn begin_registration(&self, gateway: GatewayId) {
        self.trust_table().restart(gateway);
    }

    /// Returns the registration with this fencing token. Each request verifies that the token is the newest.
    #[must_use]
    pub fn link(&self, fencing_token: FencingToken) -> Link {
        Link {
            controller: self.clone(),
            fencing_token,
        }
    }

    /// Discards the evidence that a gateway has submitted over an earlier connection or to another controller. `memory` is
    /// the state that the other controller has stored. The gateway must submit evidence again.
    pub fn restart_trust(&self, gateway: GatewayId, memory: Option<TrustMemory>) {
        self.trust_table().resume(gateway, memory);
    }

    /// Returns the current time, as [`Registry::session_clock`].
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn session_clock(
        &self,
        local_clock: Option<BootTimestamp>,
    ) -> Result<Option<BootTimestamp>, RegistryError> {
        self.registry.session_clock(local_clock).await
    }

    /// Returns the registration of a gateway that kept running while its controller was restarted. Each request verifies
    /// that the registration is the newest.
    #[must_use]
    pub fn reconnect(&self, previous: &Link) -> Link {
        self.link(previous.fencing_token)
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

    /// Returns the next part of the leases; the last part has [`LeaseChunk::is_last`].
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
                cursor: self.cursor(),
            });
        };
        Ok(self.open(sealed))
    }

    /// Reads the next part of the leases from the registry, still encrypted; `None` at the end.
    ///
    /// # Errors
    /// As [`LeaseReader::next_chunk`], which calls this function and [`LeaseReader::open`].
    pub async fn read(&mut self) -> Result<Option<SealedChunk>, Denial> {
        self.link.check_trust()?;
        Ok(self.stream.next_sealed().await?)
    }

    /// Decrypts a part of the leases and derives this gateway's keys.
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
            cursor: self.cursor(),
        }
    }
}

impl Link {
    /// The gateway.
    #[must_use]
    pub fn gateway(&self) -> GatewayId {
        self.fencing_token.gateway()
    }

    /// The number of this registration's fencing token: higher than the numbers of all earlier tokens of the gateway.
    #[must_use]
    pub fn token_number(&self) -> u64 {
        self.fencing_token.number()
    }

    /// Returns the link of the same process with a newer fencing token.
    #[must_use]
    pub fn with_token_number(&self, number: u64) -> Self {
        self.controller.link(self.fencing_token.with_number(number))
    }

    /// The fencing token.
    #[must_use]
    pub fn fencing_token(&self) -> &FencingToken {
        &self.fencing_token
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.controller.registry
    }

    /// Returns the lease request for a device's first authentication, with the device's row statement.
    pub(crate) fn first_lease_request(
        &self,
        device: DeviceId,
        epoch: u32,
        statement: RowStatement,
    ) -> LeaseRequest {
        LeaseRequest {
            device,
            epoch,
            from: RowIndex(0),
            received: RowIndex(0),
            hold_rows: self.controller.policy().lease_rows,
            spendable_rows: self.controller.policy().mark_block,
            statement,
        }
    }

    /// Records the number of requests that the gateway had abandoned before this request; they are refused from now on.
    /// Must precede the requests of which a late repetition would do harm.
    ///
    /// # Errors
    /// An outdated request, a stale fencing token, or a failure of the database.
    pub async fn record_abandoned_requests(&self) -> Result<(), RegistryError> {
        self.registry()
            .record_abandoned_requests(&self.fencing_token)
            .await
    }

    /// Verifies that this registration is the newest.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database.
    pub async fn verify_registration(&self) -> Result<(), RegistryError> {
        self.registry().verify_fencing_token(&self.fencing_token).await
    }

    /// Returns the subset of `devices` that the gateway may report, as [`Registry::reportable_devices`].
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

    /// Reads the leases that the gateway had when it stopped, starting at a cursor.
    #[must_use]
    pub fn leases_from(&self, cursor: LeasedCursor) -> LeaseReader {
        LeaseReader {
            link: self.clone(),
            stream: self
                .registry()
                .stream_leased_from(self.fencing_token, CHUNK_DEVICES_MAX, cursor),
        }
    }

    /// Leases more rows and moves marks for devices with a lease of the gateway; at most [`ROWS_HELD_MAX`] rows for
    /// each device. Returns the new rows, and the devices that got no rows. [`Link::admit_devices`] creates the first
    /// lease of a device.
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
        let (mut provisions, mut refusals) = (Vec::new(), Vec::new());
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
                    .map(|active_device| self.keys(&active_device).provision(granted.rows, granted.mark)),
                Err(error) => Err(error),
            };
            match provision {
                Ok(provision) => provisions.push(provision),
                Err(error) => refusals.push(RowRefusal {
                    device: row_request.device,
                    reason: refusal_reason(error)?,
                }),
            }
        }
        Ok((provisions, refusals))
    }

    /// Records the unused rows of devices that left the gateway's data plane. Returns how many rows were returned to
    /// their pools.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn record_unused_rows(&self, unused_rows: &[UnusedRows]) -> Result<u64, RegistryError> {
        let mut returned_rows = 0;
        for result in self
            .registry()
            .record_unused_rows(&self.fencing_token, unused_rows)
            .await?
        {
            match result {
                Ok(rows) => returned_rows += u64::from(rows),
                // Rows of a device that is not enrolled or whose record is damaged cannot be returned.
                Err(error) => drop(refusal_reason(error)),
            }
        }
        Ok(returned_rows)
    }

    /// Returns the changes since a revision, or all changes if the registry's revision is lower. `local_clock` is the boot-time
    /// clock of the controller's machine ([`Registry::session_clock`]). A device whose record does not authenticate
    /// is reported as revoked, and logged.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn changes_since(
        &self,
        since: Revision,
        local_clock: Option<BootTimestamp>,
    ) -> Result<Changes, RegistryError> {
        // Most calls end after these two short queries, because nothing has changed.
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
            // The registry was restored: new changes get revisions that the gateway has read already.
            tracing::error!(
                gateway_id = %self.gateway(),
                read_revision = since.0,
                revision = newest.0,
                "registry revision is lower than the revision that the gateway has read; sending all changes again"
            );
            Revision::ZERO
        } else {
            since
        };
        let batch = self.registry().changes_since(since, CHANGES_MAX).await?;
        for record in &batch.damaged {
            tracing::error!(
                error = record,
                "damaged device record; reporting the device as revoked"
            );
        }
        let now = match batch.newest_sessions.is_empty() {
            true => None,
            false => self.registry().session_clock(local_clock).await?,
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
            changes: batch.changes,
            newer_sessions: batch
                .newest_sessions
                .into_iter()
                .filter_map(newer_session)
                .collect(),
            up_to_revision: batch.up_to_revision,
            has_more: batch.has_more,
        })
    }
}
