//! Switch with four in-memory ports and one controller.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linewarden_evidence::keys::Ed25519Signer;
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_p4runtime::arbitration::ArbitrationStatus;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::client::{Client, ClientIdentity, Events, StreamEvent};
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::{Code, EntityError};
use linewarden_p4runtime::ids::TableId;
use linewarden_p4runtime::p4info::{Format, P4Info};
use linewarden_p4runtime::target::Pipeline;
use linewarden_switch::control::{AttestationConfig, Control};
use linewarden_switch::evidence::{EvidenceSettings, Identity, Rescan};
use linewarden_switch::host::{HostOptions, HostedSwitch};
use linewarden_switch::ports::memory::{MemoryPeer, memory_port};
use linewarden_switch::ports::{PortId, PortSet};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

/// Timeout that only failing tests reach.
pub const LONG: Duration = Duration::from_secs(60);
const DEVICE: u64 = 3;
pub const CPU: u16 = 510;
const PORTS: u16 = 4;
pub const SWITCH: SwitchId = SwitchId(0x5117);
pub const BOOT: BootCount = BootCount(4);
/// Private key of RFC 8032, 7.1, test 1.
pub const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";

pub fn pipeline_of(directory: &str, name: &str) -> Pipeline {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let info = std::fs::read_to_string(directory.join(format!("{name}.p4info.txtpb"))).unwrap();
    Pipeline {
        info: Arc::new(P4Info::from_text(&info).unwrap()),
        device_config: std::fs::read(directory.join(format!("{name}.json")))
            .unwrap()
            .into(),
        cookie: Some(1),
    }
}

/// Program with packet-ins, packet-outs, digests and clones.
pub fn packets() -> Pipeline {
    pipeline_of("tests/control/data", "packets")
}

/// Evidence is enabled for every program, so each test ends with a check of the measurement.
fn attestation_config() -> AttestationConfig {
    let settings = EvidenceSettings {
        identity: Identity::new(SWITCH, BOOT),
        in_band: None,
        cpu_port: None,
        volatile_registers: Default::default(),
    };
    AttestationConfig::new(
        settings,
        "test",
        Some(Box::new(Ed25519Signer::from_pem(KEY).unwrap())),
    )
}

/// Program with all P4Runtime features.
pub fn everything() -> Pipeline {
    pipeline_of("../p4runtime/tests/data", "everything")
}

pub struct SwitchFixture {
    pub runtime: Runtime,
    pub control: Arc<Control>,
    host: HostedSwitch,
    peers: Vec<MemoryPeer>,
}

impl SwitchFixture {
    pub fn start() -> Self {
        let mut ports = PortSet::new().unwrap().with_spin_rounds(0);
        let mut peers = Vec::new();
        for port in 0..PORTS {
            let (memory, peer) = memory_port(4096).unwrap();
            ports.add(PortId::new(port).unwrap(), memory).unwrap();
            peers.push(peer);
        }
        let options = HostOptions {
            address: "127.0.0.1:0".parse().unwrap(),
            device_id: DEVICE,
            cpu_port: PortId::new(CPU).unwrap(),
            evidence: Some(attestation_config()),
            tls: None,
        };
        let hosted = HostedSwitch::start(ports, options).unwrap();
        Self {
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
            control: Arc::clone(hosted.control()),
            host: hosted,
            peers,
        }
    }

    /// Starts with this program and returns the controller.
    pub fn with(pipeline: &Pipeline) -> (Self, Controller) {
        let fixture = Self::start();
        let mut controller = fixture.controller();
        controller.set(pipeline);
        (fixture, controller)
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.host.address()
    }

    /// Connects the primary controller.
    pub fn controller(&self) -> Controller {
        let address = self.address();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let identity = ClientIdentity {
            device_id: DEVICE,
            role: String::new(),
            election_id: 1,
        };
        let connected = self.runtime.block_on(Client::connect(endpoint, identity));
        let (client, events, status) = connected.unwrap();
        assert_eq!(status, ArbitrationStatus::Primary);
        Controller {
            handle: self.runtime.handle().clone(),
            client,
            events,
        }
    }

    pub fn send(&self, port: usize, frame: &[u8]) {
        assert!(self.peers[port].send(frame));
    }

    /// Next packet sent to a port.
    pub fn receive(&self, port: usize) -> Vec<u8> {
        let frame = self.peers[port].receive(LONG);
        frame.unwrap_or_else(|| panic!("port {port} sends no frame"))
    }

    /// Takes a packet sent to a port; returns whether there was one.
    pub fn try_receive(&self, port: usize) -> bool {
        self.peers[port].try_receive().is_some()
    }

    /// Whether all sent packets have been read.
    pub fn is_silent(&self) -> bool {
        self.peers.iter().all(|peer| peer.try_receive().is_none())
    }

    /// Stops the server as a signal does.
    pub fn stop_server(&mut self) {
        self.host.stop_server().unwrap();
    }
}

impl Drop for SwitchFixture {
    fn drop(&mut self) {
        let result = self.host.stop_worker();
        if !std::thread::panicking() {
            result.unwrap();
            let rescan = self.control.rescan().unwrap();
            let is_clean = rescan.as_ref().is_none_or(Rescan::is_clean);
            assert!(is_clean, "unmeasured changes by controllers: {rescan:#?}");
        }
    }
}

/// Synchronous controller.
pub struct Controller {
    handle: tokio::runtime::Handle,
    pub client: Client,
    pub events: Events,
}

pub use linewarden_p4runtime::client::ClientError;
pub use linewarden_p4runtime::target::Atomicity;
pub use linewarden_p4runtime::translate::{EntryFilter, Read};

impl Controller {
    pub fn set(&mut self, pipeline: &Pipeline) {
        self.handle.block_on(self.client.set_pipeline(pipeline)).unwrap();
    }

    pub fn try_set(&mut self, pipeline: &Pipeline) -> Result<(), ClientError> {
        self.handle.block_on(self.client.set_pipeline(pipeline))
    }

    pub fn reconcile(&mut self, pipeline: &Pipeline) -> Result<(), ClientError> {
        self.handle.block_on(self.client.reconcile_pipeline(pipeline))
    }

    pub fn info(&self) -> Arc<P4Info> {
        self.client.info().unwrap()
    }

    pub fn write(&mut self, updates: &[Update]) {
        self.try_write(updates, Atomicity::ContinueOnError).unwrap();
    }

    pub fn try_write(&mut self, updates: &[Update], atomicity: Atomicity) -> Result<(), ClientError> {
        self.handle.block_on(self.client.write(updates, atomicity))
    }

    /// Error of a single rejected update.
    pub fn expect_write_error(&mut self, update: Update) -> EntityError {
        match self.try_write(std::slice::from_ref(&update), Atomicity::ContinueOnError) {
            Err(ClientError::BatchFailed(results)) => results.into_iter().next().unwrap().unwrap_err(),
            other => panic!("{update:?}: {other:?}"),
        }
    }

    pub fn read(&mut self, request: Read) -> Vec<Entity> {
        self.handle
            .block_on(self.client.read(std::slice::from_ref(&request)))
            .unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    /// Entries of a table with counters and meters.
    pub fn entries(&mut self, table: &str) -> Vec<TableEntry> {
        let table = Some(self.table(table));
        let options = ReadOptions {
            counter: true,
            meter: true,
            ..ReadOptions::default()
        };
        let read = self.read(Read::TableEntries {
            table,
            key: None,
            filter: EntryFilter::default(),
            options,
        });
        read.into_iter()
            .filter_map(|entity| match entity {
                Entity::TableEntry(entry) => Some(*entry),
                _ => None,
            })
            .collect()
    }

    /// All entities except digests. Direct counters and meters are read with their entries.
    pub fn read_all(&mut self) -> Vec<Entity> {
        let options = ReadOptions {
            counter: true,
            meter: true,
            ..ReadOptions::default()
        };
        let requests = [
            Read::TableEntries {
                table: None,
                key: None,
                filter: EntryFilter::default(),
                options,
            },
            Read::DefaultEntries { table: None, options },
            Read::Members {
                profile: None,
                member: None,
            },
            Read::Groups {
                profile: None,
                group: None,
            },
            Read::Counters {
                id: None,
                index: None,
            },
            Read::Meters {
                id: None,
                index: None,
                counters: false,
            },
            Read::Registers {
                id: None,
                index: None,
            },
            Read::MulticastGroups(None),
            Read::CloneSessions(None),
            Read::ValueSets(None),
        ];
        requests
            .into_iter()
            .flat_map(|request| self.read(request))
            .collect()
    }

    /// Next stream event.
    pub fn next_event(&mut self) -> StreamEvent {
        let Self { handle, events, .. } = self;
        let event = handle.block_on(async { tokio::time::timeout(LONG, events.next()).await });
        event
            .unwrap_or_else(|_| panic!("no event from the switch"))
            .unwrap()
    }

    pub fn packet_out(&mut self, port: u16, payload: &[u8]) {
        let metadata = [bits(9, port.into()), bits(7, 0)];
        let sending = self.client.packet_out(&metadata, payload.to_vec());
        self.handle.block_on(sending).unwrap();
    }

    pub fn table(&self, name: &str) -> TableId {
        self.info().tables().by_name_or_alias(name).unwrap().id
    }

    /// Action with arguments in the widths of its parameters.
    pub fn action(&self, name: &str, args: &[u128]) -> Action {
        let info = self.info();
        let action = info.actions().by_name_or_alias(name).unwrap();
        assert_eq!(action.params.len(), args.len(), "{name}");
        let value = |(param, value): (&linewarden_p4runtime::p4info::Param, &u128)| match param.format {
            Format::Bits(width) => bits(width, *value),
            Format::Unwritable => panic!("{name}"),
        };
        Action {
            id: action.id,
            params: action.params.iter().zip(args).map(value).collect(),
        }
    }

    pub fn entry(&self, table: &str, fields: Vec<FieldMatch>, action: EntryAction) -> TableEntry {
        let key = EntryKey {
            table: self.table(table),
            fields,
            priority: 0,
        };
        TableEntry::new(key, action)
    }

    /// Entry of table `flows` of program `packets`.
    pub fn flow(&self, dst: u64, action: &str, args: &[u128]) -> TableEntry {
        let action = EntryAction::Action(self.action(action, args));
        self.entry("In.flows", vec![exact(48, dst.into())], action)
    }
}

pub fn insert(entry: TableEntry) -> Update {
    Update::TableEntry(Box::new(Change::Insert(entry)))
}

pub fn modify(entry: TableEntry) -> Update {
    Update::TableEntry(Box::new(Change::Modify(entry)))
}

pub fn delete(entry: &TableEntry) -> Update {
    Update::TableEntry(Box::new(Change::Delete(entry.key.clone())))
}

pub fn bits(width: u32, value: u128) -> Bits {
    Bits::from_u128(width, value).unwrap()
}

pub fn exact(width: u32, value: u128) -> FieldMatch {
    FieldMatch::Exact(bits(width, value))
}

pub fn port(number: u32) -> Port {
    Port {
        number,
        deprecated_field: false,
    }
}

/// Frame to this address, from address 0xaa.
pub fn frame(dst: u64, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let address = |value: u64| value.to_be_bytes()[2..].to_vec();
    [
        address(dst),
        address(0xaa),
        ether_type.to_be_bytes().to_vec(),
        payload.to_vec(),
    ]
    .concat()
}

/// An IPv4 frame.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], protocol: u8) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 64, 0, 0, 0, 0, 64, protocol, 0, 0];
    header.extend(src);
    header.extend(dst);
    header.extend([7; 44]);
    frame(1, 0x0800, &header)
}

/// Result codes of a failed batch.
pub fn codes(result: Result<(), ClientError>) -> Vec<Code> {
    let Err(ClientError::BatchFailed(results)) = result else {
        panic!("{result:?}");
    };
    let code = |result: Result<(), EntityError>| result.err().map_or(Code::Ok, |error| error.code);
    results.into_iter().map(code).collect()
}
