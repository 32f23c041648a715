//! `linewarden switch run`: control by P4Runtime.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use linewarden_files::read_text_bounded;
use linewarden_p4runtime::arbitration::Limits;
use linewarden_p4runtime::p4info::P4Info;
use linewarden_p4runtime::server::Options;
use linewarden_p4runtime::target::{Pipeline, Target as _, events};
use linewarden_switch::clock::Clock;
use linewarden_switch::control::server::{Server, ServerError};
use linewarden_switch::control::{Control, Wire};
use linewarden_switch::ports::{PortId, PortSet};
use linewarden_switch::switch::{Settings, Slot, Switch};
use linewarden_switch::tables::HashSeed;
use linewarden_tls::ServerTls;
use serde::Serialize;

use super::PROGRAM_BYTES_MAX;
use super::attest::AttestArgs;
use super::tls::ServerTlsArgs;
use crate::failure::Failure;

/// Where the server listens if nothing else is asked for: simple_switch_grpc's port, from this machine only.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9559);
/// Packet-ins, digests and notifications that wait for the server.
const EVENTS: usize = 4096;

/// Control by P4Runtime. Any of these starts the server.
#[derive(Args, Debug)]
pub struct ControlArgs {
    /// Start without a program: drop everything until a controller sends one
    #[arg(long)]
    no_p4: bool,
    /// The program's P4Info (text format); without it controllers can do nothing but send another program
    #[arg(long, value_name = "FILE", conflicts_with = "no_p4")]
    p4info: Option<PathBuf>,
    /// Serve P4Runtime here [default: 127.0.0.1:9559]
    #[arg(long, value_name = "ADDRESS:PORT")]
    grpc_server_addr: Option<SocketAddr>,
    /// The number that controllers know this switch by [default: 0]
    #[arg(long, value_name = "NUMBER")]
    device_id: Option<u64>,
    /// The port through which controllers send and receive packets
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(..512))]
    cpu_port: Option<u16>,
    #[command(flatten)]
    tls: ServerTlsArgs,
}

impl ControlArgs {
    /// Whether controllers are to be served.
    pub fn is_asked_for(&self) -> bool {
        self.no_p4
            || self.p4info.is_some()
            || self.grpc_server_addr.is_some()
            || self.device_id.is_some()
            || self.cpu_port.is_some()
            || self.tls.is_asked_for()
    }

    /// The CPU port.
    pub fn cpu_port(&self) -> Option<PortId> {
        self.cpu_port.and_then(PortId::new)
    }
}

/// Where controllers find a switch.
#[derive(Serialize)]
pub struct Serving {
    /// The server's address.
    pub p4runtime: SocketAddr,
    /// The switch's number.
    pub device_id: u64,
    /// How the connection is protected.
    pub tls: Tls,
}

/// How much of TLS there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tls {
    /// In the clear.
    None,
    /// The switch shows a certificate.
    Server,
    /// Controllers too.
    Mutual,
}

impl Tls {
    fn of(tls: Option<&ServerTls>) -> Self {
        match tls {
            None => Self::None,
            Some(tls) if tls.authenticates_clients() => Self::Mutual,
            Some(_) => Self::Server,
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::None => "in the clear",
            Self::Server => "TLS",
            Self::Mutual => "mutual TLS",
        }
    }

    /// Nothing but the network keeps others from an address like this.
    fn warn_of(self, address: SocketAddr) {
        let lacks = match self {
            _ if address.ip().is_loopback() => return,
            Self::Mutual => return,
            Self::None => "is neither encrypted nor authenticated",
            Self::Server => "asks controllers for no certificate (--grpc-server-cacert)",
        };
        tracing::warn!("P4Runtime on {address} {lacks}: whoever reaches it controls the switch");
    }
}

/// Control that runs.
pub struct Controlled {
    control: Arc<Control>,
    server: Server,
    device_id: u64,
    tls: Tls,
}

/// Runs the program, if there is one, and serves controllers.
pub fn start(
    args: &ControlArgs,
    attest: &AttestArgs,
    program: Option<(&Path, Vec<u8>)>,
    (slot, settings, clock): (&Slot, Settings, Clock),
    ports: &mut PortSet,
) -> Result<Controlled, Failure> {
    let tls = args.tls.read()?;
    let (sender, receiver) = events(EVENTS);
    let mut control = Control::new(slot.clone(), settings, Box::new(move || clock.now_us()), sender);
    if let Some(attesting) = attest.attesting(args.cpu_port)? {
        control = control.with_evidence(attesting);
    }
    let control = Arc::new(control);
    let pipeline = match program {
        None => None,
        Some((path, json)) => install(args, &control, settings, path, json)?,
    };
    if let Some(port) = args.cpu_port() {
        let cpu = control.cpu_port().map_err(Failure::failed)?;
        ports.add(port, cpu).map_err(Failure::input)?;
    }
    let address = args.grpc_server_addr.unwrap_or(ADDRESS);
    let protection = Tls::of(tls.as_ref());
    protection.warn_of(address);
    let device_id = args.device_id.unwrap_or(0);
    let options = Options {
        device_id,
        limits: Limits::default(),
        pipeline,
    };
    let server = Server::start(address, tls, &control, receiver, options).map_err(|error| match error {
        ServerError::Listen { ref source, .. } => {
            Failure::input(format_args!("{error}{}", listen_hint(source)))
        }
        _ => Failure::failed(error),
    })?;
    Ok(Controlled {
        control,
        server,
        device_id,
        tls: protection,
    })
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; stop the other switch, or choose another --grpc-server-addr",
        std::io::ErrorKind::AddrNotAvailable => "; no interface has this address (--grpc-server-addr)",
        _ => "",
    }
}

/// Has packets go through a program; with its P4Info controllers can use it at once.
fn install(
    args: &ControlArgs,
    control: &Control,
    settings: Settings,
    path: &Path,
    json: Vec<u8>,
) -> Result<Option<Pipeline>, Failure> {
    let wrong = |path: &Path, what: &dyn std::fmt::Display| {
        Failure::input(format_args!("{}: {what}", path.display()))
    };
    let Some(info_path) = &args.p4info else {
        let switch =
            Switch::new(&json, settings, &HashSeed::random()).map_err(|error| wrong(path, &error))?;
        control.run_bare(switch).map_err(|error| wrong(path, &error))?;
        return Ok(None);
    };
    let text = read_text_bounded(info_path, PROGRAM_BYTES_MAX).map_err(|error| wrong(info_path, &error))?;
    let info = P4Info::from_text(&text).map_err(|error| wrong(info_path, &error))?;
    let pipeline = Pipeline {
        info: Arc::new(info),
        device_config: json.into(),
        cookie: None,
    };
    let committed = control.save(&pipeline).and_then(|()| control.commit());
    committed.map_err(|error| wrong(path, &error))?;
    Ok(Some(pipeline))
}

impl Controlled {
    /// Compares memory with what was measured. What differs is logged; the switch gives no evidence from then on.
    pub fn rescan(&self) {
        match self.control.rescan() {
            Ok(rescan) => {
                if let Some(rescan) = rescan.filter(|rescan| !rescan.is_clean()) {
                    tracing::error!("no evidence is given any more: {rescan}");
                }
            }
            Err(error) => tracing::error!("memory cannot be compared with what was measured: {error}"),
        }
    }

    /// What is controlled, beyond the server's end.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Where workers hand over digests.
    pub fn wire(&self) -> Arc<Wire> {
        Arc::clone(self.control.wire())
    }

    /// Whether the server has broken off.
    pub fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    /// Where controllers find it.
    pub fn serving(&self) -> Serving {
        Serving {
            p4runtime: self.server.address(),
            device_id: self.device_id,
            tls: self.tls,
        }
    }

    /// Ends all streams, and the server.
    pub fn stop(self) -> Result<(), Failure> {
        self.server.stop().map_err(Failure::failed)
    }
}
