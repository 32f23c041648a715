//! The gateways that must show what they run, and what their standing does to their links.

use std::collections::BTreeMap;
use std::sync::Arc;

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Fence, RegistryError};

use super::{Memory, Report, Scrutiny, Standing, Trust, TrustPolicy, Unbelieved};
use crate::link::{Controller, Link};
use crate::message::Denial;

/// When something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// By a clock that only goes forward, ns.
    pub now_ns: u64,
    /// Seconds since 1970-01-01 UTC.
    pub now_s: u64,
}

/// What came of a look.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What is wanted, and how the gateway stands.
    pub scrutiny: Scrutiny,
    /// The fence was raised: the gateway's leases are taken away, and this is its link from now on.
    pub link: Option<Link>,
}

/// A fence that was raised because its gateway was not trusted any more: all these registrations are one process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Raised {
    /// The number of the first.
    from: u64,
    /// And of the one that is the newest from then on.
    to: u64,
}

impl Raised {
    /// Whether an old fence is this process's.
    fn explains(&self, error: &RegistryError) -> bool {
        let RegistryError::OldFence { shown, newest, .. } = error else {
            return false;
        };
        (self.from..self.to).contains(shown) && self.to == *newest
    }
}

/// What is known of all of them.
#[derive(Debug, Default)]
pub(crate) struct Book {
    gateways: BTreeMap<GatewayId, Page>,
    now_ns: u64,
}

#[derive(Debug)]
struct Page {
    trust: Trust,
    /// The registration that is distrusted, whose fence has not been raised for it yet.
    due: Option<u64>,
    /// How it was raised last.
    raised: Option<Raised>,
    /// Another controller may have given it rows since its fence was raised.
    may_hold: bool,
    /// Held while one of its statements is judged: of each gateway one at a time.
    judging: Arc<tokio::sync::Mutex<()>>,
    /// When it has shown something last, seconds since 1970-01-01 UTC.
    shown_at_s: u64,
}

impl Page {
    fn report(&self) -> Report {
        let policy = self.trust.policy();
        Report {
            standing: self.trust.standing().clone(),
            shown: self.trust.shown().map(|shown| (shown, self.shown_at_s)),
            memory: Memory {
                key: policy.key.fingerprint(),
                seen: self.trust.seen(),
            },
            reference: policy.reference.name.clone(),
            good_for_ns: policy.every_ns.saturating_add(policy.answer_ns),
        }
    }

    /// What `change` does to the standing of a registration; a gateway that becomes distrusted loses its leases, and one that is found so
    /// once more those that it has got elsewhere.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut Trust) -> T) -> T {
        let was_distrusted = is_distrusted(&self.trust);
        let before = self.trust.distrusted;
        let result = change(&mut self.trust);
        let is_found = self.trust.distrusted > before;
        if is_found && (!was_distrusted || self.may_hold) {
            self.due = Some(number);
        }
        result
    }
}

fn is_distrusted(trust: &Trust) -> bool {
    matches!(trust.standing(), Standing::Distrusted { .. })
}

impl Book {
    /// The gateway was registered anew.
    pub(crate) fn begin(&mut self, gateway: GatewayId) {
        if let Some(page) = self.gateways.get_mut(&gateway) {
            page.trust.begin();
            // The registration has raised it.
            page.due = None;
            page.may_hold = false;
        }
    }

    /// The gateway goes on, over another connection or from another controller, which has left this. A fence that is due stays so.
    pub(crate) fn go_on(&mut self, gateway: GatewayId, memory: Option<Memory>) {
        if let Some(page) = self.gateways.get_mut(&gateway) {
            page.trust.begin();
            page.may_hold = true;
            if let Some(memory) = memory {
                page.trust.recall(&memory);
            }
        }
    }
}

impl Controller {
    /// The same, which gives a gateway rows only while it shows what it runs.
    #[must_use]
    pub fn trusting(self, gateway: GatewayId, policy: TrustPolicy) -> Self {
        let page = Page {
            trust: Trust::new(policy),
            due: None,
            raised: None,
            may_hold: true,
            judging: Arc::default(),
            shown_at_s: 0,
        };
        self.trust().gateways.insert(gateway, page);
        self
    }

    /// It is this late now: whoever owes a statement for too long gets nothing any more. To be told before each question is answered.
    pub fn pass_time(&self, now_ns: u64) {
        let mut book = self.trust();
        book.now_ns = book.now_ns.max(now_ns);
    }

    /// Whether an old fence is old because the gateway lost its leases, and not because another process has registered.
    #[must_use]
    pub fn has_distrusted(&self, error: &RegistryError) -> bool {
        let RegistryError::OldFence { gateway, shown, .. } = error else {
            return false;
        };
        let book = self.trust();
        let page = book.gateways.get(gateway);
        page.is_some_and(|page| {
            page.due == Some(*shown) || page.raised.is_some_and(|raised| raised.explains(error))
        })
    }

    /// Whether a gateway has to show what it runs.
    #[must_use]
    pub fn scrutinizes(&self, gateway: GatewayId) -> bool {
        self.trust().gateways.contains_key(&gateway)
    }

    /// How a gateway stands that has to show what it runs, for who notes it and who shows it.
    #[must_use]
    pub fn report(&self, gateway: GatewayId) -> Option<Report> {
        self.trust().gateways.get(&gateway).map(Page::report)
    }
}

impl Link {
    /// Refuses a gateway that has to show what it runs, and does not.
    ///
    /// # Errors
    /// [`Denial::Untrusted`].
    pub(crate) fn check_trust(&self) -> Result<(), Denial> {
        let book = self.controller.trust();
        let Some(page) = book.gateways.get(&self.gateway()) else {
            return Ok(());
        };
        if page.trust.gives_rows(book.now_ns) {
            return Ok(());
        }
        Err(Denial::Untrusted {
            gateway: self.gateway(),
            why: match page.trust.standing() {
                Standing::Distrusted { why } => why.clone(),
                Standing::Unproven => "it has not shown yet what it runs".to_owned(),
                Standing::Trusted => "its statement is overdue".to_owned(),
            },
        })
    }

    /// This registration's link from now on, if it has lost its leases and did not hear of it.
    async fn raised(&self) -> Result<Option<Self>, RegistryError> {
        let error = match self.registry().verify_fence(self.fence()).await {
            Ok(()) => return Ok(None),
            Err(error) => error,
        };
        let mut book = self.controller.trust();
        let Some(page) = book.gateways.get_mut(&self.gateway()) else {
            return Err(error);
        };
        match page.raised.filter(|raised| raised.explains(&error)) {
            Some(Raised { to, .. }) => Ok(Some(self.controller.link(self.gateway(), to))),
            None => {
                // Of this one nothing is left to be taken away, be it that the answer to the raise was lost: it is to hear that it is over.
                page.due = page.due.filter(|due| *due != self.number());
                Err(error)
            }
        }
    }

    /// What is wanted of this gateway now; nothing where nobody asks for its evidence. `random` as in [`Trust::look`].
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn look(
        &self,
        times: Times,
        random: &mut (dyn FnMut() -> Option<[u8; 32]> + Send),
    ) -> Result<Option<Verdict>, RegistryError> {
        if !self.controller.scrutinizes(self.gateway()) {
            return Ok(None);
        }
        // Of a process that was replaced nothing is wanted, and what it leaves undone is not the newer one's.
        let raised = self.raised().await?;
        let link = raised.as_ref().unwrap_or(self);
        let scrutiny = {
            let mut book = self.controller.trust();
            let Some(page) = book.gateways.get_mut(&self.gateway()) else {
                return Ok(None);
            };
            page.change(link.number(), |trust| trust.look(times.now_ns, random))
        };
        let verdict = link.conclude(scrutiny, times).await?;
        Ok(Some(Verdict {
            link: verdict.link.or(raised),
            ..verdict
        }))
    }

    /// Judges a statement of this gateway, with the entries behind it if they came along.
    ///
    /// # Errors
    /// It is not believed: then nothing has changed. An old fence, or a failure of the database: ask again.
    pub async fn judge(
        &self,
        statement: Vec<u8>,
        inventory: Option<Vec<u8>>,
        times: Times,
    ) -> Result<Result<Verdict, Unbelieved>, RegistryError> {
        // A process of before has the same key, and must not speak for this one.
        self.registry().verify_fence(self.fence()).await?;
        match self.judged(statement, inventory, times).await {
            Ok(scrutiny) => Ok(Ok(self.conclude(scrutiny, times).await?)),
            Err(error) => {
                tracing::error!(gateway = %self.gateway(), %error, "a statement was refused");
                Ok(Err(error))
            }
        }
    }

    /// The book is not held while the statement is judged: everybody's questions look into it.
    async fn judged(
        &self,
        statement: Vec<u8>,
        inventory: Option<Vec<u8>>,
        times: Times,
    ) -> Result<Scrutiny, Unbelieved> {
        let judging = {
            let book = self.controller.trust();
            let page = book.gateways.get(&self.gateway()).ok_or(Unbelieved::Unasked)?;
            Arc::clone(&page.judging)
        };
        let turn = judging.lock_owned().await;
        let question = {
            let book = self.controller.trust();
            let page = book.gateways.get(&self.gateway()).ok_or(Unbelieved::Unasked)?;
            page.trust.question(times.now_ns)?
        };
        let nonce = question.nonce();
        let judge = move || {
            // To the end, though nobody may wait for it by then.
            let _turn = turn;
            question.judge(&statement, inventory.as_deref())
        };
        let found = tokio::task::spawn_blocking(judge).await;
        let found = found.unwrap_or(Err(Unbelieved::Stopping));
        let mut book = self.controller.trust();
        let page = book
            .gateways
            .get_mut(&self.gateway())
            .ok_or(Unbelieved::Unasked)?;
        page.change(self.number(), |trust| trust.settle(nonce, found, times.now_ns))?;
        page.shown_at_s = times.now_s;
        Ok(Scrutiny {
            nonce: None,
            standing: page.trust.standing().clone(),
        })
    }

    /// Takes the leases away from a gateway that has become distrusted: what its link asked for before comes to nothing.
    async fn conclude(&self, scrutiny: Scrutiny, times: Times) -> Result<Verdict, RegistryError> {
        let gateway = self.gateway();
        // That of another process is none of this one's.
        let is_due = |page: &Page| page.due == Some(self.number());
        if !self.controller.trust().gateways.get(&gateway).is_some_and(is_due) {
            return Ok(Verdict { scrutiny, link: None });
        }
        let fence = self.raise(times.now_s).await?;
        if let Standing::Distrusted { why } = &scrutiny.standing {
            tracing::error!(%gateway, why, "the gateway is not trusted any more, and loses its leases");
        }
        Ok(Verdict {
            scrutiny,
            link: Some(Self {
                controller: self.controller.clone(),
                fence,
            }),
        })
    }

    async fn raise(&self, now_s: u64) -> Result<Fence, RegistryError> {
        let raised = self.registry().raise_fence(self.fence(), now_s).await;
        let is_over = match &raised {
            Ok(_) => true,
            // Of a registration that is over nothing more can be taken away, and another process's must stay.
            Err(error) => matches!(error, RegistryError::OldFence { .. }),
        };
        if let Some(page) = self.controller.trust().gateways.get_mut(&self.gateway()) {
            page.due = page.due.filter(|_| !is_over);
            if let Ok(fence) = &raised {
                page.may_hold = false;
                let before = page.raised.filter(|before| before.to == self.number());
                page.raised = Some(Raised {
                    from: before.map_or(self.number(), |before| before.from),
                    to: fence.number(),
                });
            }
        }
        raised
    }
}
