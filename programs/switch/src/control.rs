//! `linewarden-switch run`: the P4Runtime server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use linewarden_cli::failure::Failure;
use linewarden_files::read_text_bounded;
use linewarden_p4runtime::arbitration::Limits;
use linewarden_p4runtime::p4info::P4Info;
use linewarden_p4runtime::server::Options;
use linewarden_p4runtime::target::{Pipeline, Target as _, events};
use linewarden_switch::clock::Clock;
use linewarden_switch::control::server::{Server, ServerError};
use linewarden_switch::control::{Control, ControllerChannel};
use linewarden_switch::ports::{PortId, PortSet};
use linewarden_switch::switch::{Settings, Slot, Switch};
use linewarden_switch::tables::HashSeed;
use linewarden_tls::ServerTls;
use serde::Serialize;

use crate::PROGRAM_BYTES_MAX;
use crate::attest::AttestArgs;
use crate::tls::ServerTlsArgs;

/// Default address: the port of simple_switch_grpc, on loopback only.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9559);
/// Maximum number of queued packet-ins, digests and notifications.
const EVENTS_MAX: usize = 4096;

/// Options of the P4Runtime server. Each of these options starts the server.
#[derive(Args, Debug)]
pub struct ControlArgs {
    /// Start without a program: drop all packets until a controller installs a program (flag)
    #[arg(long)]
    no_p4: bool,
    /// P4Info of the program, text format; without P4Info, controllers can only install another program (path)
    #[arg(long, value_name = "FILE", conflicts_with = "no_p4")]
    p4info: Option<PathBuf>,
    /// Address of the P4Runtime server (ADDRESS:PORT) [default: 127.0.0.1:9559]
    #[arg(long, value_name = "ADDRESS:PORT")]
    grpc_server_addr: Option<SocketAddr>,
    /// P4Runtime device ID of this switch (integer) [default: 0]
    #[arg(long, value_name = "NUMBER")]
    device_id: Option<u64>,
    /// Port through which controllers send and receive packets (integer)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(..512))]
    cpu_port: Option<u16>,
    #[command(flatten)]
    tls: ServerTlsArgs,
}

impl ControlArgs {
    /// Whether the P4Runtime server is enabled.
    pub fn is_requested(&self) -> bool {
        self.no_p4
            || self.p4info.is_some()
            || self.grpc_server_addr.is_some()
            || self.device_id.is_some()
            || self.cpu_port.is_some()
            || self.tls.is_requested()
    }

    /// The CPU port.
    pub fn cpu_port(&self) -> Option<PortId> {
        self.cpu_port.and_then(PortId::new)
    }
}

/// The P4Runtime server, as printed at the start.
#[derive(Serialize)]
pub struct ServerInfo {
    /// Address of the server.
    pub p4runtime: SocketAddr,
    /// P4Runtime device ID.
    pub device_id: u64,
    /// Protection of the connections.
    pub tls: TlsMode,
}

/// Protection of the connections by TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// No TLS.
    None,
    /// TLS with a server certificate.
    Server,
    /// TLS with certificates of server and clients.
    Mutual,
}

impl TlsMode {
    fn of_server(tls: Option<&ServerTls>) -> Self {
        match tls {
            None => Self::None,
            Some(tls) if tls.authenticates_clients() => Self::Mutual,
            Some(_) => Self::Server,
        }
    }

    /// Description for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "no TLS",
            Self::Server => "TLS",
            Self::Mutual => "mutual TLS",
        }
    }

    /// Warns if other machines can connect to the address without a client certificate.
    fn warn_if_exposed(self, address: SocketAddr) {
        let weakness = match self {
            _ if address.ip().is_loopback() => return,
            Self::Mutual => return,
            Self::None => "connections are not encrypted and not authenticated",
            Self::Server => "clients need no certificate (--grpc-server-cacert)",
        };
        tracing::warn!(%address, action = "set --grpc-server-cert, --grpc-server-key and --grpc-server-cacert", "P4Runtime is exposed: {weakness}");
    }
}

/// A running P4Runtime server.
pub struct ControlServer {
    control: Arc<Control>,
    server: Server,
    device_id: u64,
    tls: TlsMode,
}

/// Installs the program, if there is a program, and starts the server.
pub fn start(
    args: &ControlArgs,
    attest: &AttestArgs,
    program: Option<(&Path, Vec<u8>)>,
    (slot, settings, clock): (&Slot, Settings, Clock),
    ports: &mut PortSet,
) -> Result<ControlServer, Failure> {
    let tls = args.tls.read()?;
    let (sender, receiver) = events(EVENTS_MAX);
    let mut control = Control::new(slot.clone(), settings, Box::new(move || clock.now_us()), sender);
    if let Some(attestation) = attest.build(args.cpu_port)? {
        control = control.with_evidence(attestation);
    }
    let control = Arc::new(control);
    let pipeline = match program {
        None => None,
        Some((path, json)) => install(args, &control, settings, path, json)?,
    };
    if let Some(port) = args.cpu_port() {
        let cpu_port = control.cpu_port().map_err(Failure::failed)?;
        ports.add(port, cpu_port).map_err(Failure::input)?;
    }
    let address = args.grpc_server_addr.unwrap_or(ADDRESS);
    let tls_mode = TlsMode::of_server(tls.as_ref());
    tls_mode.warn_if_exposed(address);
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
    Ok(ControlServer {
        control,
        server,
        device_id,
        tls: tls_mode,
    })
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; stop the other switch, or use another --grpc-server-addr",
        std::io::ErrorKind::AddrNotAvailable => "; no interface has the address of --grpc-server-addr",
        _ => "",
    }
}

/// Installs a program. With `--p4info`, returns the pipeline, which controllers can use immediately.
fn install(
    args: &ControlArgs,
    control: &Control,
    settings: Settings,
    path: &Path,
    json: Vec<u8>,
) -> Result<Option<Pipeline>, Failure> {
    let input_failure = |path: &Path, reason: &dyn std::fmt::Display| {
        Failure::input(format_args!("{}: {reason}", path.display()))
    };
    let Some(info_path) = &args.p4info else {
        let switch =
            Switch::new(&json, settings, &HashSeed::random()).map_err(|error| input_failure(path, &error))?;
        control
            .run_without_p4info(switch)
            .map_err(|error| input_failure(path, &error))?;
        return Ok(None);
    };
    let text =
        read_text_bounded(info_path, PROGRAM_BYTES_MAX).map_err(|error| input_failure(info_path, &error))?;
    let info = P4Info::from_text(&text).map_err(|error| input_failure(info_path, &error))?;
    let pipeline = Pipeline {
        info: Arc::new(info),
        device_config: json.into(),
        cookie: None,
    };
    let result = control.save(&pipeline).and_then(|()| control.commit());
    result.map_err(|error| input_failure(path, &error))?;
    Ok(Some(pipeline))
}

impl ControlServer {
    /// Compares memory with the measurement. A difference is logged, and the switch stops providing evidence.
    pub fn rescan(&self) {
        match self.control.rescan() {
            Ok(rescan) => {
                if let Some(rescan) = rescan.filter(|rescan| !rescan.is_clean()) {
                    tracing::error!(
                        reason = %rescan,
                        action = "treat the switch as compromised or its memory as defective: examine the machine, then restart the switch",
                        "memory of the switch differs from its measurement; the switch provides no evidence until its restart"
                    );
                }
            }
            Err(error) => {
                tracing::error!(%error, action = "restart the switch if the error persists", "comparing the memory of the switch with its measurement failed; retrying")
            }
        }
    }

    /// The control object, which outlives the server.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// The channel through which worker threads send digests to controllers.
    pub fn digest_channel(&self) -> Arc<ControllerChannel> {
        Arc::clone(self.control.channel())
    }

    /// Whether the server has failed.
    pub fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    /// Address, device ID and protection.
    pub fn info(&self) -> ServerInfo {
        ServerInfo {
            p4runtime: self.server.address(),
            device_id: self.device_id,
            tls: self.tls,
        }
    }

    /// Ends all streams, and stops the server.
    pub fn stop(self) -> Result<(), Failure> {
        self.server.stop().map_err(Failure::failed)
    }
}
