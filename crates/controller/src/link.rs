//! A gateway's link to its controller: everything that it can ask, under its fence.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::Statement;
use linewarden_registry::{
    Fence, LeaseRequest, LeasedPlace, LeasedStream, Moment, Registry, RegistryError, Revision, Roamed,
    SealedChunk, Settlement,
};

use crate::attest::{Inbox, Signer};
use crate::keys::Keys;
use crate::message::{Changes, Chunk, Denial, Elsewhere, Provision, Refusal, Refused, Want};
use crate::trust::{Book, Memory};

/// Devices read from the registry at once.
const CHUNK_DEVICES: u32 = 500;
/// Changes read from the registry at once.
const CHANGES_MAX: u32 = 4096;

/// Rows of one device, from its current one on, that a gateway holds at most by its own asking.
pub const ROWS_HELD_MAX: u32 = 1024;

/// How rows are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rows that are leased with a device's first authentication at a gateway.
    pub lease_rows: u32,
    /// How many of them may be spent at once: what a loss of the gateway's memory costs at most (LAP/1 1.4.6).
    pub mark_block: u32,
}

impl Default for Policy {
    /// 16 rows, 4 of them to be spent.
    fn default() -> Self {
        Self {
            lease_rows: 16,
            mark_block: 4,
        }
    }
}

/// Owns the registry and the policy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Controller {
    registry: Registry,
    lease_rows: u32,
    /// Clones share it: it may change.
    mark_block: Arc<AtomicU32>,
    /// Signs results of attestation.
    signer: Option<Arc<Signer>>,
    /// Evidence on its way in.
    inbox: Arc<Mutex<Inbox>>,
    /// Gateways that must show what they run.
    trust: Arc<Mutex<Book>>,
}

impl Controller {
    /// A controller over that registry.
    #[must_use]
    pub fn new(registry: Registry, policy: Policy) -> Self {
        Self {
            registry,
            lease_rows: policy.lease_rows,
            mark_block: Arc::new(AtomicU32::new(policy.mark_block)),
            signer: None,
            inbox: Arc::default(),
            trust: Arc::default(),
        }
    }

    /// The same, over [a registry that is read apart](Registry::apart).
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            registry: self.registry.apart(),
            ..self.clone()
        }
    }

    /// The same, which signs results of attestation.
    #[must_use]
    pub fn signing(mut self, signer: Signer) -> Self {
        self.signer = Some(Arc::new(signer));
        self
    }

    /// What signs results of attestation.
    #[must_use]
    pub fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    /// How rows are given out.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            lease_rows: self.lease_rows,
            mark_block: self.mark_block.load(Relaxed),
        }
    }

    /// From the next first authentication on, so many rows may be spent at once.
    pub fn set_mark_block(&self, rows: u32) {
        self.mark_block.store(rows, Relaxed);
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Whole at every moment, whoever panicked.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trust(&self) -> MutexGuard<'_, Book> {
        // Likewise.
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a gateway, which has just started: whoever was connected under that id gets nothing from now on. It has shown nothing
    /// yet of what it runs.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn connect(&self, gateway: GatewayId, now_s: u64) -> Result<Link, RegistryError> {
        let fence = self.registry.register_gateway(gateway, now_s).await?;
        self.trust().begin(gateway);
        Ok(Link {
            controller: self.clone(),
            fence,
        })
    }

    /// A gateway by the registration that it shows; whether that is the newest is found with each question.
    #[must_use]
    pub fn link(&self, gateway: GatewayId, number: u64) -> Link {
        Link {
            controller: self.clone(),
            fence: Fence::shown(gateway, number),
        }
    }

    /// What a gateway has shown of what it runs was to another controller, which has left that `memory`, or over another connection: it
    /// has to show itself anew.
    pub fn begin_trust(&self, gateway: GatewayId, memory: Option<Memory>) {
        self.trust().go_on(gateway, memory);
    }

    /// Now, as [`Registry::moment`].
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn moment(&self, own: Option<Moment>) -> Result<Option<Moment>, RegistryError> {
        self.registry.moment(own).await
    }

    /// The registration of a gateway that went on while its controller was started again. Whether it is the newest is
    /// found with each question, as ever.
    #[must_use]
    pub fn reconnect(&self, before: &Link) -> Link {
        Link {
            controller: self.clone(),
            fence: before.fence,
        }
    }
}

/// One registration of one gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) controller: Controller,
    pub(crate) fence: Fence,
}

/// A walk over what a gateway held when it stopped; made by [`Link::held`].
#[derive(Debug)]
pub struct Leases {
    link: Link,
    stream: LeasedStream,
}

impl Leases {
    /// Where the walk stands.
    #[must_use]
    pub fn place(&self) -> LeasedPlace {
        self.stream.place()
    }

    /// The next part, until [`Chunk::last`].
    ///
    /// # Errors
    /// An old fence, a failure of the database, or a gateway that is not trusted: ask again.
    pub async fn next_chunk(&mut self) -> Result<Chunk, Denial> {
        let Some(sealed) = self.read().await? else {
            let end = self.stream.feed_from().0;
            return Ok(Chunk {
                provisions: Vec::new(),
                damaged: Vec::new(),
                progress: (end, end),
                last: true,
            });
        };
        Ok(self.open(sealed))
    }

    /// Reads the next part from the registry, as it lies there; `None` at the end.
    ///
    /// # Errors
    /// As [`Leases::next_chunk`], of which this is the one half.
    pub async fn read(&mut self) -> Result<Option<SealedChunk>, Denial> {
        self.link.check_trust()?;
        Ok(self.stream.next_sealed().await?)
    }

    /// Opens a part and derives this gateway's keys.
    #[must_use]
    pub fn open(&self, sealed: SealedChunk) -> Chunk {
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
        Chunk {
            provisions: provisions.collect(),
            damaged: leased.damaged.iter().map(ToString::to_string).collect(),
            progress: leased.progress,
            last: false,
        }
    }
}

impl Link {
    /// The gateway.
    #[must_use]
    pub fn gateway(&self) -> GatewayId {
        self.fence.gateway()
    }

    /// The number of this registration: one more than that of the process before.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.fence.number()
    }

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.controller.registry
    }

    /// What a device gets at its first authentication, with what it states itself.
    pub(crate) fn admission(&self, device: DeviceId, epoch: u32, stated: Statement) -> LeaseRequest {
        LeaseRequest {
            device,
            epoch,
            from: RowIndex(0),
            received: RowIndex(0),
            hold: self.controller.policy().lease_rows,
            ahead: self.controller.policy().mark_block,
            stated,
        }
    }

    /// Whether this registration is the newest.
    ///
    /// # Errors
    /// An old fence, or a failure of the database.
    pub async fn check(&self) -> Result<(), RegistryError> {
        self.registry().verify_fence(&self.fence).await
    }

    /// Of these devices, those that the gateway may say something of, as [`Registry::known_at`].
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn known(&self, devices: &[DeviceId]) -> Result<HashSet<DeviceId>, RegistryError> {
        self.registry().known_at(self.gateway(), devices).await
    }

    /// What the gateway held when it stopped.
    #[must_use]
    pub fn held(&self) -> Leases {
        self.held_from(LeasedPlace::default())
    }

    /// The same walk, from where another one stood.
    #[must_use]
    pub fn held_from(&self, place: LeasedPlace) -> Leases {
        Leases {
            link: self.clone(),
            stream: self
                .registry()
                .stream_leased_from(self.fence, CHUNK_DEVICES, place),
        }
    }

    /// More rows, and marks moved ahead, for devices that the gateway holds; at most [`ROWS_HELD_MAX`] of each. Of others it gets
    /// nothing: a first lease begins with [`Link::receive`].
    ///
    /// # Errors
    /// An old fence, a failure of the database, or a gateway that is not trusted: ask again.
    pub async fn lease(&self, wants: &[Want]) -> Result<(Vec<Provision>, Vec<Refused>), Denial> {
        self.check_trust()?;
        let requests: Vec<LeaseRequest> = wants
            .iter()
            .map(|want| LeaseRequest {
                device: want.device,
                epoch: want.epoch,
                from: want.from,
                received: want.received,
                hold: want.hold.min(ROWS_HELD_MAX),
                ahead: want.ahead.min(ROWS_HELD_MAX),
                stated: Statement::default(),
            })
            .collect();
        let answers = self.registry().extend_leases(&self.fence, &requests).await?;
        let (mut provisions, mut refused) = (Vec::new(), Vec::new());
        for (want, answer) in wants.iter().zip(answers) {
            let provision = match answer {
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
                    .load(want.device)
                    .await
                    .map(|found| self.keys(&found).provision(granted.rows, granted.mark)),
                Err(error) => Err(error),
            };
            match provision {
                Ok(provision) => provisions.push(provision),
                Err(error) => refused.push(Refused {
                    device: want.device,
                    why: Refusal::of(error)?,
                }),
            }
        }
        Ok((provisions, refused))
    }

    /// Where the gateway stands with devices that left its data plane; returns how many rows went back to their pools.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<u64, RegistryError> {
        let mut back = 0;
        for answer in self.registry().settle(&self.fence, settlements).await? {
            match answer {
                Ok(rows) => back += u64::from(rows),
                // Of a device that is gone, or whose record cannot be used, nothing can be given back.
                Err(error) => drop(Refusal::of(error)),
            }
        }
        Ok(back)
    }

    /// What has changed since a revision, or all if the registry counts fewer changes; `own` is now by the clock of the controller's
    /// machine ([`Registry::moment`]). A device whose record does not authenticate is
    /// told as one that is shut out, and logged.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn changes(&self, since: Revision, own: Option<Moment>) -> Result<Changes, RegistryError> {
        // Two small rows, most of the time.
        self.registry().verify_fence(&self.fence).await?;
        let newest = self.registry().revision().await?;
        if newest == since {
            return Ok(Changes {
                changes: Vec::new(),
                elsewhere: Vec::new(),
                upto: since,
                more: false,
            });
        }
        let since = if newest < since {
            // What comes now takes numbers that were passed already.
            tracing::error!(
                gateway = %self.gateway(),
                heard = since.0,
                count = newest.0,
                "somebody has put back the registry's count of changes; all is told anew"
            );
            Revision::ZERO
        } else {
            since
        };
        let found = self.registry().changes_since(since, CHANGES_MAX).await?;
        for record in &found.damaged {
            tracing::error!(record, "its device is shut out");
        }
        let now = match found.roamed.is_empty() {
            true => None,
            false => self.registry().moment(own).await?,
        };
        let elsewhere = |roamed: Roamed| {
            // Of an earlier start of the controller's machine nobody knows how it lies to sessions of now.
            let age_ns = roamed.began.age_ns(now?)?;
            (roamed.gateway != self.gateway()).then_some(Elsewhere {
                device: roamed.device,
                gateway: roamed.gateway,
                age_ns,
            })
        };
        Ok(Changes {
            changes: found.changes,
            elsewhere: found.roamed.into_iter().filter_map(elsewhere).collect(),
            upto: found.upto,
            more: found.more,
        })
    }
}

impl Refusal {
    /// What concerns one device only; everything else is the whole question's failure.
    pub(crate) fn of(error: RegistryError) -> Result<Self, RegistryError> {
        match error {
            RegistryError::RowsExhausted { .. } => Ok(Self::Exhausted),
            RegistryError::NotHeld { .. } => Ok(Self::NotHeld),
            RegistryError::Revoked { .. }
            | RegistryError::Quarantined { .. }
            | RegistryError::UnknownDevice { .. } => Ok(Self::Gone),
            RegistryError::DamagedRecord { .. } | RegistryError::NotLeased { .. } => {
                Ok(Self::Damaged(error.to_string()))
            }
            other => Err(other),
        }
    }
}
