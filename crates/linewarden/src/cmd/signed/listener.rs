//! Where messages come in, and comes in again when its interface has been away.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linewarden_signatures::service::Service;
use linewarden_signatures::udp::{Datagram, Inbox};
use nix::net::if_::if_nametoindex;

use super::outputs::Outputs;
use crate::failure::Failure;

/// How long a datagram is waited for before there is something else to look after.
const NAP: Duration = Duration::from_millis(50);
/// How often an interface is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// An inbox; of a group that was joined on an interface, with the interface.
pub struct Listener {
    inbox: Inbox,
    address: SocketAddr,
    joined: Option<Joined>,
    /// What the kernel had dropped of inboxes before this one.
    dropped_before: u64,
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
            dropped_before: 0,
        })
    }

    /// What the kernel keeps while this program is busy, in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.inbox.buffer_bytes()
    }

    /// Datagrams that the kernel has dropped, for want of room in that buffer.
    pub fn kernel_drops(&mut self) -> Result<u64, Failure> {
        let dropped = self.inbox.lost().map_err(Failure::failed)?;
        Ok(self.dropped_before + dropped)
    }

    /// Has the kernel drop strangers' datagrams during a flood.
    pub fn filter(&mut self, service: &mut Service) -> Result<(), Failure> {
        service.filter(&mut self.inbox).map_err(Failure::failed)
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
                self.dropped_before += self.inbox.lost().unwrap_or(0);
                self.inbox = inbox;
            }
        }
        let received = self.inbox.receive(each);
        received.map_err(|error| Failure::failed(format!("{}: {error}", self.address)))?;
        Ok(())
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
