//! The receiver's socket, which joins its multicast group again after the interface was removed and recreated.

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
/// Minimum interval between two reports of the same state of the flood filter.
const FILTER_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The receiver's socket; with --interface, also the multicast group that was joined on the interface.
pub struct Listener {
    socket: UdpReceiver,
    address: SocketAddr,
    joined_group: Option<JoinedGroup>,
    filter: FloodFilter,
    filter_reports: FilterReports,
}

struct JoinedGroup {
    interface: String,
    /// Index of the interface on which the group is joined; 0 while the group is not joined.
    index: u32,
    /// Time of the next check of the interface.
    check_at: Instant,
    /// The present problem, which is already reported.
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
        let index = super::interface_index(interface)?;
        let socket = UdpReceiver::open(address, index, POLL_TIMEOUT)
            .map_err(|error| Failure::failed(format!("{address}: {error}")))?;
        let joined_group = interface.map(|interface| JoinedGroup {
            interface: interface.to_owned(),
            index,
            check_at: Instant::now() + INTERFACE_CHECK_INTERVAL,
            problem: None,
        });
        Ok(Self {
            socket,
            address,
            joined_group,
            filter: FloodFilter::Detached,
            filter_reports: FilterReports::default(),
        })
    }

    /// Size of the receive buffer, bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.socket.buffer_bytes()
    }

    /// Counts the datagrams that the kernel dropped while a filter was attached, for the service's next report. Returns
    /// the number of all other datagrams that the kernel dropped.
    pub fn count_drops(&mut self, service: &mut Service) -> Result<u64, Failure> {
        service
            .count_filtered(&mut self.socket)
            .map_err(Failure::failed)?;
        self.socket.dropped().map_err(Failure::failed)
    }

    /// Updates the flood filter, and reports changes.
    pub fn update_filter(&mut self, service: &mut Service, outputs: &Outputs) -> Result<(), Failure> {
        let change = service
            .update_flood_filter(&mut self.socket)
            .map_err(Failure::failed)?;
        if let Some(filter) = change {
            self.filter = filter;
        }
        self.filter_reports.report(&self.filter, outputs);
        Ok(())
    }

    /// The local address of the socket.
    pub fn local_address(&self) -> Result<SocketAddr, Failure> {
        self.socket.address().map_err(Failure::failed)
    }

    /// Waits for datagrams, at most for [`POLL_TIMEOUT`], and passes each datagram to `on_datagram`.
    ///
    /// When an interface is removed, the kernel drops the membership without an error. This function joins the group
    /// again on a new interface of the same name.
    pub fn receive(
        &mut self,
        outputs: &Outputs,
        on_datagram: impl FnMut(Datagram<'_>),
    ) -> Result<(), Failure> {
        if let Some(group) = &mut self.joined_group
            && group.check_at <= Instant::now()
        {
            group.check_at = Instant::now() + INTERFACE_CHECK_INTERVAL;
            if let Some(socket) = group.rejoin_if_changed(self.address, outputs) {
                self.socket.replace(socket).map_err(Failure::failed)?;
                // Before the first datagram, the caller must update the flood filter: the new socket has no filter.
                return Ok(());
            }
        }
        let result = self.socket.receive(on_datagram);
        result.map_err(|error| Failure::failed(format!("{}: {error}", self.address)))?;
        Ok(())
    }
}

/// Reports of the flood filter.
#[derive(Default)]
struct FilterReports {
    /// The latest reported state; `None` without a filter.
    state: Option<&'static str>,
    /// Time of the latest report of each state.
    reported_at: HashMap<&'static str, Instant>,
}

impl FilterReports {
    /// Reports a changed state: the end of a flood immediately, and each other state at most once per
    /// [`FILTER_REPORT_INTERVAL`].
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
        let attached_filter = match filter {
            FloodFilter::Attached(attached_filter) => Some(attached_filter),
            _ => None,
        };
        outputs.event(&serde_json::json!({
            "event": "flood_filter",
            "state": filter.name(),
            "sample_one_in": attached_filter.map(|attached_filter| attached_filter.sample_one_in),
            "known_senders": attached_filter.and_then(|attached_filter| attached_filter.known_senders),
            "error": match filter {
                FloodFilter::Rejected(error) => Some(error.to_string()),
                _ => None,
            },
        }));
        outputs.print(filter);
    }
}

impl JoinedGroup {
    /// Opens a new socket if the interface has a new index, which shows that the interface was recreated. Reports new
    /// problems.
    fn rejoin_if_changed(&mut self, group: SocketAddr, outputs: &Outputs) -> Option<UdpReceiver> {
        let current_index = if_nametoindex(self.interface.as_str());
        if current_index == Ok(self.index) {
            return None;
        }
        let opened = current_index
            .map_err(std::io::Error::from)
            .and_then(|index| Ok((index, UdpReceiver::open(group, index, POLL_TIMEOUT)?)));
        let (problem, socket) = match opened {
            Ok((index, socket)) => {
                self.index = index;
                (None, Some(socket))
            }
            Err(error) => {
                self.index = 0;
                (Some(error.to_string()), None)
            }
        };
        if socket.is_some() || problem != self.problem {
            outputs.event(&serde_json::json!({
                "event": "interface", "interface": self.interface, "joined": socket.is_some(), "problem": problem,
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
        socket
    }
}
