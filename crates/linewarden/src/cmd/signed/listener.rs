//! Where messages come in, and comes in again when its interface has been away.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linewarden_signatures::service::{FloodFilter, Service};
use linewarden_signatures::udp::{Datagram, Inbox};
use nix::net::if_::if_nametoindex;

use super::outputs::Outputs;
use crate::failure::Failure;

/// How long a datagram is waited for before there is something else to look after.
const NAP: Duration = Duration::from_millis(50);
/// How often an interface is looked for.
const LOOK: Duration = Duration::from_secs(1);
const FILTER_REPORTED_EVERY: Duration = Duration::from_secs(60);

/// An inbox; of a group that was joined on an interface, with the interface.
pub struct Listener {
    inbox: Inbox,
    address: SocketAddr,
    joined: Option<Joined>,
    filter: FloodFilter,
    filter_reports: FilterReports,
}

struct Joined {
    interface: String,
    /// The kernel's number of the interface on which the group is joined; 0 while it is away.
    index: u32,
    look_at: Instant,
    /// What was said of it last, so that it is said once.
    problem: Option<String>,
}

impl Listener {
    /// Listens, and joins a group on the interface of this name, or on the one that the kernel chooses.
    pub fn open(address: SocketAddr, interface: Option<&str>) -> Result<Self, Failure> {
        if interface.is_some() && !address.ip().is_multicast() {
            return Err(Failure::input(format!(
                "--interface: {} is no multicast group, which alone is joined on an interface",
                address.ip()
            )));
        }
        let index = super::interface(interface)?;
        let inbox = Inbox::open(address, index, NAP)
            .map_err(|error| Failure::failed(format!("{address}: {error}")))?;
        let joined = interface.map(|interface| Joined {
            interface: interface.to_owned(),
            index,
            look_at: Instant::now() + LOOK,
            problem: None,
        });
        Ok(Self {
            inbox,
            address,
            joined,
            filter: FloodFilter::Detached,
            filter_reports: FilterReports::default(),
        })
    }

    /// What the kernel keeps while this program is busy, in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.inbox.buffer_bytes()
    }

    /// Adds the kernel's drops while a filter was attached to the service's next report. Returns the number of all other kernel drops.
    pub fn count_drops(&mut self, service: &mut Service) -> Result<u64, Failure> {
        service.count_filtered(&mut self.inbox).map_err(Failure::failed)?;
        self.inbox.lost().map_err(Failure::failed)
    }

    /// Has the kernel drop most of a flood, and reports it.
    pub fn filter(&mut self, service: &mut Service, outputs: &Outputs) -> Result<(), Failure> {
        let change = service
            .update_flood_filter(&mut self.inbox)
            .map_err(Failure::failed)?;
        if let Some(change) = change {
            self.filter = change;
        }
        self.filter_reports.report(&self.filter, outputs);
        Ok(())
    }

    /// Where the kernel says that it listens.
    pub fn bound(&self) -> Result<SocketAddr, Failure> {
        self.inbox.address().map_err(Failure::failed)
    }

    /// Waits for datagrams for a moment, and hands each to `each`. The kernel forgets who had joined a group on an interface
    /// that goes, and tells nobody: the group is joined anew on the one of the same name that comes.
    pub fn receive(&mut self, outputs: &Outputs, each: impl FnMut(Datagram<'_>)) -> Result<(), Failure> {
        if let Some(joined) = &mut self.joined
            && joined.look_at <= Instant::now()
        {
            joined.look_at = Instant::now() + LOOK;
            if let Some(inbox) = joined.look(self.address, outputs) {
                self.inbox.replace(inbox).map_err(Failure::failed)?;
                // The service has to see first that the new one has no filter.
                return Ok(());
            }
        }
        let received = self.inbox.receive(each);
        received.map_err(|error| Failure::failed(format!("{}: {error}", self.address)))?;
        Ok(())
    }
}

/// What was reported of the flood filter.
#[derive(Default)]
struct FilterReports {
    /// The state that was reported last. `None`: no filter.
    state: Option<&'static str>,
    /// When each state was reported last.
    at: HashMap<&'static str, Instant>,
}

impl FilterReports {
    /// Reports a state that was not the last one: the end of a flood at once, and each other state at most once a minute.
    fn report(&mut self, filter: &FloodFilter, outputs: &Outputs) {
        let is_end = matches!(filter, FloodFilter::Detached);
        let state = (!is_end).then(|| filter.name());
        if state == self.state {
            return;
        }
        if let Some(state) = state {
            let is_recent = |at: &Instant| at.elapsed() < FILTER_REPORTED_EVERY;
            if self.at.get(state).is_some_and(is_recent) {
                return;
            }
            self.at.insert(state, Instant::now());
        }
        self.state = state;
        let filtering = match filter {
            FloodFilter::Attached(filtering) => Some(filtering),
            _ => None,
        };
        outputs.event(&serde_json::json!({
            "event": "flood_filter",
            "state": filter.name(),
            "sample_one_in": filtering.map(|filtering| filtering.sample_one_in),
            "known_senders": filtering.and_then(|filtering| filtering.known_senders),
            "error": match filter {
                FloodFilter::Rejected(error) => Some(error.to_string()),
                _ => None,
            },
        }));
        outputs.tell(filter);
    }
}

impl Joined {
    /// A new inbox if another interface has the name now.
    fn look(&mut self, group: SocketAddr, outputs: &Outputs) -> Option<Inbox> {
        let found = if_nametoindex(self.interface.as_str());
        if found == Ok(self.index) {
            return None;
        }
        let opened = found
            .map_err(std::io::Error::from)
            .and_then(|index| Ok((index, Inbox::open(group, index, NAP)?)));
        let (problem, inbox) = match opened {
            Ok((index, inbox)) => {
                self.index = index;
                (None, Some(inbox))
            }
            Err(error) => {
                self.index = 0;
                (Some(error.to_string()), None)
            }
        };
        if inbox.is_some() || problem != self.problem {
            outputs.event(&serde_json::json!({
                "event": "interface", "interface": self.interface, "joined": inbox.is_some(), "problem": problem,
            }));
            outputs.tell(match &problem {
                None => format!("--interface {}: joined again", self.interface),
                Some(problem) => format!("--interface {}: {problem}; waiting for it", self.interface),
            });
        }
        self.problem = problem;
        inbox
    }
}
