//! The receiver's socket, which joins its multicast group again after the interface was removed and created again.

use linewarden_cli::failure::Failure;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linewarden_signatures::service::{FloodFilter, Service};
use linewarden_signatures::udp::{Datagram, UdpReceiver};
use nix::net::if_::if_nametoindex;

use super::outputs::Outputs;

/// Timeout of a wait for datagrams.
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// Interval at which the interface is checked.
const INTERFACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const FILTER_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The receiver's socket; with --interface, also the multicast group that was joined on the interface.
pub struct Listener {
    inbox: UdpReceiver,
    address: SocketAddr,
    group: Option<JoinedGroup>,
    filter: FloodFilter,
    filter_reports: FilterReports,
}

struct JoinedGroup {
    interface: String,
    /// Index of the interface on which the group is joined; 0 while the interface does not exist.
    index: u32,
    check_at: Instant,
    /// The last reported problem: each problem is reported once.
    problem: Option<String>,
}

impl Listener {
    /// Opens the socket. Joins a multicast group on the named interface, or on an interface that the kernel chooses.
    pub fn open(address: SocketAddr, interface: Option<&str>) -> Result<Self, Failure> {
        if interface.is_some() && !address.ip().is_multicast() {
            return Err(Failure::input(format!(
                "--interface conflicts with --listen: {} is not a multicast group",
                address.ip()
            )));
        }
        let index = super::interface(interface)?;
        let inbox = UdpReceiver::open(address, index, POLL_TIMEOUT)
            .map_err(|error| Failure::failed(format!("{address}: {error}")))?;
        let joined = interface.map(|interface| JoinedGroup {
            interface: interface.to_owned(),
            index,
            check_at: Instant::now() + INTERFACE_CHECK_INTERVAL,
            problem: None,
        });
        Ok(Self {
            inbox,
            address,
            group: joined,
            filter: FloodFilter::Detached,
            filter_reports: FilterReports::default(),
        })
    }

    /// Size of the receive buffer, bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.inbox.buffer_bytes()
    }

    /// Counts the datagrams that the kernel dropped while a filter was attached, for the service's next report. Returns the number of all
    /// other datagrams that the kernel dropped.
    pub fn count_drops(&mut self, service: &mut Service) -> Result<u64, Failure> {
        service.count_filtered(&mut self.inbox).map_err(Failure::failed)?;
        self.inbox.dropped().map_err(Failure::failed)
    }

    /// Updates the flood filter, and reports changes.
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

    /// The local address of the socket.
    pub fn bound(&self) -> Result<SocketAddr, Failure> {
        self.inbox.address().map_err(Failure::failed)
    }

    /// Waits for datagrams, at most for [`POLL_TIMEOUT`], and passes each to `each`. The kernel drops the membership when an interface is
    /// removed, without an error: the group is joined again on a new interface of the same name.
    pub fn receive(&mut self, outputs: &Outputs, each: impl FnMut(Datagram<'_>)) -> Result<(), Failure> {
        if let Some(joined) = &mut self.group
            && joined.check_at <= Instant::now()
        {
            joined.check_at = Instant::now() + INTERFACE_CHECK_INTERVAL;
            if let Some(inbox) = joined.rejoin_if_changed(self.address, outputs) {
                self.inbox.replace(inbox).map_err(Failure::failed)?;
                // The service must first learn that the new socket has no filter.
                return Ok(());
            }
        }
        let received = self.inbox.receive(each);
        received.map_err(|error| Failure::failed(format!("{}: {error}", self.address)))?;
        Ok(())
    }
}

/// Reports of the flood filter.
#[derive(Default)]
struct FilterReports {
    /// The last reported state. `None`: no filter.
    state: Option<&'static str>,
    /// Time of the last report of each state.
    reported_at: HashMap<&'static str, Instant>,
}

impl FilterReports {
    /// Reports a changed state: the end of a flood at once, and each other state at most once a minute.
    fn report(&mut self, filter: &FloodFilter, outputs: &Outputs) {
        let is_end = matches!(filter, FloodFilter::Detached);
        let state = (!is_end).then(|| filter.name());
        if state == self.state {
            return;
        }
        if let Some(state) = state {
            let is_recent = |at: &Instant| at.elapsed() < FILTER_REPORT_INTERVAL;
            if self.reported_at.get(state).is_some_and(is_recent) {
                return;
            }
            self.reported_at.insert(state, Instant::now());
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
        outputs.print(filter);
    }
}

impl JoinedGroup {
    /// Opens a new socket if the interface has a new index, because the interface was created a second time.
    fn rejoin_if_changed(&mut self, group: SocketAddr, outputs: &Outputs) -> Option<UdpReceiver> {
        let current_index = if_nametoindex(self.interface.as_str());
        if current_index == Ok(self.index) {
            return None;
        }
        let opened = current_index
            .map_err(std::io::Error::from)
            .and_then(|index| Ok((index, UdpReceiver::open(group, index, POLL_TIMEOUT)?)));
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
            outputs.print(match &problem {
                None => format!("--interface {}: joined again", self.interface),
                Some(problem) => format!(
                    "--interface {}: {problem}; waiting for the interface",
                    self.interface
                ),
            });
        }
        self.problem = problem;
        inbox
    }
}
