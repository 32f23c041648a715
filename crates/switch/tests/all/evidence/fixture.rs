//! Test fixture: a switch with a program from `p4/compiled`, and packets for it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use linewarden_evidence::inband::MasterKey;
use linewarden_evidence::state::Snapshot;
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_switch::engine::Sink;
use linewarden_switch::evidence::{Attester, Carrier, EvidenceSettings, Identity, InBand};
use linewarden_switch::exec::{Fault, RandomSource};
use linewarden_switch::forwarding::ForwardingOp;
use linewarden_switch::program::ids::{ActionId, RegisterId, TableId};
use linewarden_switch::program::pipeline::ActionEntry;
use linewarden_switch::setup::action_call;
use linewarden_switch::switch::{Settings, Slot, Switch, Worker};
use linewarden_switch::tables::{
    EntryHandle, FieldMatch, HashSeed, NewEntry, Priority, TableChange, TableOp, TableSetChange, TableSetOp,
    Target,
};
use num_bigint::BigUint;

pub const SWITCH: SwitchId = SwitchId(0x5117);
pub const BOOT: BootCount = BootCount(3);

pub fn master() -> MasterKey {
    MasterKey::new([0x42; 16])
}

pub fn settings(in_band: Option<Carrier>) -> EvidenceSettings {
    EvidenceSettings {
        identity: Identity::new(SWITCH, BOOT),
        in_band: in_band.map(|carrier| InBand {
            carrier,
            key: master().key(SWITCH, BOOT),
        }),
        cpu_port: Some(510),
        volatile_registers: BTreeSet::new(),
    }
}

pub fn program(name: &str) -> Vec<u8> {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/compiled");
    std::fs::read(compiled.join(format!("{name}.json"))).unwrap()
}

pub struct NoRandom;

impl RandomSource for NoRandom {
    fn between(&mut self, low: u64, _high: u64) -> u64 {
        low
    }
}

#[derive(Default)]
pub struct RecordingSink(pub Vec<(u32, Vec<u8>)>);

impl Sink for RecordingSink {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        self.0.push((port, [headers, payload].concat()));
    }

    fn digest(&mut self, _number: u32, _values: Vec<Vec<u8>>) {}

    fn fault(&mut self, fault: Fault) {
        panic!("the switch stopped processing a packet: {fault:?}");
    }

    fn dropped(&mut self) {}
}

pub struct SwitchFixture {
    pub switch: Switch,
    pub slot: Slot,
    pub worker: Worker,
}

impl SwitchFixture {
    /// Switch with evidence that writes the requested content into packets.
    pub fn new(name: &str, in_band: Option<Carrier>) -> Self {
        let mut fixture = Self::plain(name);
        fixture.switch.start_attestation(settings(in_band), None).unwrap();
        fixture.slot.run(&fixture.switch);
        fixture
    }

    /// Switch without evidence.
    pub fn plain(name: &str) -> Self {
        let switch = Switch::new(&program(name), Settings::default(), &HashSeed::new([1; 4])).unwrap();
        let slot = Slot::default();
        slot.run(&switch);
        let worker = slot.worker();
        Self { switch, slot, worker }
    }

    pub fn attester(&self) -> &Arc<Attester> {
        self.switch.attester().unwrap()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.attester().snapshot().unwrap()
    }

    /// Processes a frame and returns the frames that the switch sends, with their ports.
    pub fn send(&mut self, port: u32, frame: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut sent = RecordingSink::default();
        self.worker
            .batch(1000, |batch| batch.packet(port, frame, &mut NoRandom, &mut sent));
        sent.0
    }

    /// Processes a frame and returns the only frame that the switch sends.
    pub fn send_one(&mut self, port: u32, frame: &[u8]) -> Vec<u8> {
        let [(_, frame)] = self.send(port, frame).try_into().unwrap();
        frame
    }

    pub fn table(&self, name: &str) -> TableId {
        let tables = &self.switch.executable().program.tables;
        TableId(tables.iter().position(|table| table.name == name).unwrap() as u32)
    }

    pub fn register(&self, name: &str) -> RegisterId {
        let registers = &self.switch.executable().program.registers;
        RegisterId(registers.iter().position(|array| array.name == name).unwrap() as u32)
    }

    /// Action with arguments.
    pub fn action(&self, name: &str, args: &[u128]) -> Target {
        let program = &self.switch.executable().program;
        let action = program
            .actions
            .iter()
            .position(|action| action.name == name)
            .unwrap();
        let args = args.iter().map(|arg| BigUint::from(*arg)).collect();
        let action = ActionId(action as u32);
        Target::Action(action_call(program, &ActionEntry { action, args }))
    }

    /// Inserts an entry without a priority.
    pub fn insert(&mut self, table: &str, matches: &[FieldMatch], target: Target) -> EntryHandle {
        let id = self.table(table);
        let key = {
            let forwarding = self.switch.forwarding();
            let spec = forwarding.tables().table(id).unwrap().spec();
            let canonical = matches.iter().cloned().zip(spec.key.fields());
            let canonical: Vec<_> = canonical
                .map(|(matches, field)| matches.canonical(field))
                .collect();
            spec.key.key(&canonical, Priority::default()).unwrap()
        };
        let new_entry = NewEntry {
            key,
            target,
            state: None,
            constant: false,
        };
        match self.change(table, TableOp::Insert(new_entry)) {
            TableChange::Inserted(entry) => entry.handle(),
            change => panic!("unexpected change by an insertion: {change:?}"),
        }
    }

    pub fn change(&mut self, table: &str, op: TableOp) -> TableChange {
        let id = self.table(table);
        let op = ForwardingOp::Tables(TableSetOp::Table(id, op));
        match self.switch.change(op).unwrap() {
            linewarden_switch::forwarding::ForwardingChange::Tables(TableSetChange::Table(_, change)) => {
                change
            }
            other => panic!("unexpected change by a table operation: {other:?}"),
        }
    }
}

/// Match field of a route in program `router`.
pub fn route(address: u32, prefix_bits: u32) -> FieldMatch {
    FieldMatch::Lpm {
        value: address.to_be_bytes().to_vec(),
        prefix_bits,
    }
}

/// Destination address of the packets of [`ipv6`].
pub const ADDRESS: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// IPv6 packet in an Ethernet frame.
pub fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 7]);
    frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend([next_header, 64]);
    frame.extend([0x11; 16]);
    frame.extend(ADDRESS);
    frame.extend(payload);
    frame
}

/// Request to program `evidence`.
#[derive(Clone, Copy)]
pub enum ProgramRequest {
    Nothing = 0,
    WriteSmall = 1,
    WriteLarge = 2,
    WriteWide = 3,
    WriteDigest = 4,
    SendAsEvidence = 5,
}

pub fn request_frame(request: ProgramRequest, index: u32, value: u32) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xb5, request as u8]);
    frame.extend(index.to_be_bytes());
    frame.extend(value.to_be_bytes());
    frame.extend([0; 48]);
    frame.extend(b"payload");
    frame
}

/// The digests that the program has read and written into a frame: registers, tables, program.
pub fn read_by_program(frame: &[u8]) -> [[u8; 16]; 3] {
    let digests = &frame[23..71];
    [0, 16, 32].map(|offset| digests[offset..offset + 16].try_into().unwrap())
}

pub fn short_digests(snapshot: &Snapshot) -> [[u8; 16]; 3] {
    let digests = &snapshot.digests;
    [digests.registers, digests.tables, digests.program].map(|digest| digest.short())
}
