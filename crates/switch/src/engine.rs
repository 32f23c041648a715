//! Packet engine of one worker: runs each packet through parser, ingress, egress and deparser to completion.
//!
//! The traffic manager between ingress and egress follows simple_switch: clones, resubmitted and recirculated
//! packets, multicast and drops, in the same order. Copies wait in queues of this worker and finish before the next
//! packet starts, so packets of one port leave in the order of arrival.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::exec::{
    Context, Environment, Fault, Machine, RandomSource, Requests, Scratch, get, set, set_optional,
};
use crate::executable::Executable;
use crate::program::FieldList;
use crate::program::ids::FieldRef;

/// Maximum number of resubmitted and recirculated passes of one received packet and its copies. A cipher that
/// recirculates for each quarter round needs 160.
pub const PASSES_MAX: u32 = 4096;
/// Maximum number of egress passes of one received packet. No other limit bounds clones of clones.
pub const COPIES_MAX: u32 = 65_536;
/// Maximum number of packets in the queue for another pass, as in BMv2.
pub const WAITING_MAX: usize = 1024;

/// `instance_type` of simple_switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instance {
    /// Packet as received.
    Normal = 0,
    /// Ingress clone: the packet as received.
    IngressClone = 1,
    /// Egress clone: the packet as sent.
    EgressClone = 2,
    /// Recirculated packet.
    Recirculated = 4,
    /// Replica of a multicast packet.
    Replication = 5,
    /// Resubmitted packet.
    Resubmitted = 6,
}

/// Receiver of packets, digests and drop events.
pub trait Sink {
    /// Sends a packet: deparsed headers followed by the payload.
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]);
    /// Emits a digest: the id in the JSON, and the field values.
    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>);
    /// Reports a packet that the switch dropped because of a fault.
    fn fault(&mut self, fault: Fault);
    /// Reports a packet that the program dropped.
    fn dropped(&mut self);
    /// Reports a resubmitted or recirculated packet.
    fn extra_pass(&mut self) {}
}

/// Bytes of a packet: received, or produced by an earlier pass.
#[derive(Clone, Debug)]
enum Bytes<'f> {
    Received(&'f [u8]),
    Produced(Arc<[u8]>),
}

impl Bytes<'_> {
    fn get(&self) -> &[u8] {
        match self {
            Self::Received(bytes) => bytes,
            Self::Produced(bytes) => bytes,
        }
    }
}

/// Packet that waits for the parser and ingress.
struct Pass<'f> {
    context: Box<Context>,
    bytes: Bytes<'f>,
}

/// Packet that waits for egress to this port.
struct EgressPacket<'f> {
    context: Box<Context>,
    bytes: Bytes<'f>,
    port: u32,
}

/// Reusable memory of a worker.
#[derive(Debug, Default)]
pub struct Engine {
    scratch: Scratch,
    /// The contexts are boxed, so a move between queues copies only a pointer.
    #[allow(clippy::vec_box)]
    free_contexts: Vec<Box<Context>>,
    /// Deparsed headers of the current packet.
    out: Vec<u8>,
}

/// Environment of a batch, constant while the batch runs.
pub struct Batch<'a> {
    /// Program, forwarding state, externs, time.
    pub environment: Environment<'a>,
    /// Number of priority queues of a port. Packets whose priority has no queue are dropped.
    pub priority_queues: u64,
}

impl Engine {
    /// Processes one packet.
    pub fn process(
        &mut self,
        batch: &Batch<'_>,
        random: &mut dyn RandomSource,
        port: u32,
        frame: &[u8],
        sink: &mut dyn Sink,
    ) {
        let executable = batch.environment.executable;
        let mut context = self.free_contexts.pop().unwrap_or_default();
        context.reset(executable.layout.bytes as usize);
        receive(&mut context, batch, port, frame.len());
        let mut run = Run {
            engine: self,
            batch,
            random,
            sink,
            ingress_queue: VecDeque::new(),
            first_egress: None,
            egress_queue: VecDeque::new(),
            extra_passes: 0,
            egress_passes: 0,
        };
        run.ingress(Pass {
            context,
            bytes: Bytes::Received(frame),
        });
        run.finish();
    }
}

fn receive(context: &mut Context, batch: &Batch<'_>, port: u32, length: usize) {
    let standard = &batch.environment.executable.standard_metadata;
    context.ingress_port = port;
    context.ingress_length = length as u64;
    context.length = i64::try_from(length).unwrap_or(i64::MAX);
    let arena = &mut context.arena;
    set_optional(arena, standard.ingress_port, u64::from(port));
    set_optional(arena, standard.packet_length, length as u64);
    set_optional(arena, standard.ingress_global_timestamp, batch.environment.now_us);
}

struct Run<'r, 'f> {
    engine: &'r mut Engine,
    batch: &'r Batch<'r>,
    random: &'r mut dyn RandomSource,
    sink: &'r mut dyn Sink,
    ingress_queue: VecDeque<Pass<'f>>,
    /// First packet for egress. Most packets have no copies and need no queue.
    first_egress: Option<EgressPacket<'f>>,
    egress_queue: VecDeque<EgressPacket<'f>>,
    /// Number of resubmitted and recirculated passes.
    extra_passes: u32,
    egress_passes: u32,
}

impl<'f> Run<'_, 'f> {
    fn finish(&mut self) {
        loop {
            if let Some(packet) = self.first_egress.take().or_else(|| self.egress_queue.pop_front()) {
                self.egress(packet);
            } else if let Some(pass) = self.ingress_queue.pop_front() {
                self.ingress(pass);
            } else {
                return;
            }
        }
    }

    fn recycle(&mut self, context: Box<Context>) {
        if self.engine.free_contexts.len() < 64 {
            self.engine.free_contexts.push(context);
        }
    }

    fn fault(&mut self, fault: Fault, context: Box<Context>) {
        self.sink.fault(fault);
        self.recycle(context);
    }

    fn machine<'m>(
        batch: &'m Batch<'_>,
        scratch: &'m mut Scratch,
        random: &'m mut dyn RandomSource,
        context: &'m mut Context,
        bytes: &'m [u8],
    ) -> Machine<'m> {
        Machine::new(&batch.environment, context, scratch, bytes, random)
    }

    fn ingress(&mut self, pass: Pass<'f>) {
        let executable = self.batch.environment.executable;
        let Pass { mut context, bytes } = pass;
        let received_length = context.length;
        let mut machine = Self::machine(
            self.batch,
            &mut self.engine.scratch,
            self.random,
            &mut context,
            bytes.get(),
        );
        machine.parse();
        machine.store_parser_errors();
        // An exit in the parser skips the pipeline.
        if !machine.has_ended() {
            machine.run(executable.ingress);
        }
        drop(machine);
        context.exit = false;
        if let Some(fault) = context.fault {
            return self.fault(fault, context);
        }
        let requests = context.requests;
        if let Some((session, list)) = requests.clone {
            context.requests.clone = None;
            self.clone_ingress(&context, &bytes, session, list, received_length);
        }
        if requests.digest != 0 {
            self.send_digest(&context, requests.digest);
        }
        if requests.resubmit != 0 {
            return self.resubmit(context, bytes, requests.resubmit, received_length);
        }
        self.forward(context, bytes);
    }

    /// End of ingress: multicast, drop, or unicast.
    fn forward(&mut self, mut context: Box<Context>, bytes: Bytes<'f>) {
        let standard = self.batch.environment.executable.standard_metadata;
        let group = standard.mcast_grp.map_or(0, |field| get(&context.arena, field));
        if group != 0 {
            set_optional(
                &mut context.arena,
                standard.instance_type,
                Instance::Replication as u64,
            );
            self.multicast(
                &mut context,
                &bytes,
                u32::try_from(group).unwrap_or(u32::MAX),
                usize::MAX,
            );
            return self.recycle(context);
        }
        let port = get(&context.arena, standard.egress_spec) as u32;
        if port == self.batch.environment.drop_port {
            self.sink.dropped();
            return self.recycle(context);
        }
        set_optional(
            &mut context.arena,
            standard.instance_type,
            Instance::Normal as u64,
        );
        self.enqueue(context, bytes, port);
    }

    fn enqueue(&mut self, mut context: Box<Context>, bytes: Bytes<'f>, port: u32) {
        let standard = self.batch.environment.executable.standard_metadata;
        let priority = standard.priority.map_or(0, |field| get(&context.arena, field));
        if priority >= self.batch.priority_queues {
            return self.fault(Fault::QueueFull, context);
        }
        if self.egress_passes >= COPIES_MAX {
            return self.fault(Fault::CopyLimit, context);
        }
        self.egress_passes += 1;
        let arena = &mut context.arena;
        set_optional(arena, standard.enq_timestamp, self.batch.environment.now_us);
        // Queues are always empty: packets are processed immediately.
        set_optional(arena, standard.enq_qdepth, 0);
        let packet = EgressPacket { context, bytes, port };
        if self.first_egress.is_none() && self.egress_queue.is_empty() {
            self.first_egress = Some(packet);
        } else {
            self.egress_queue.push_back(packet);
        }
    }

    fn copy_of(&mut self, context: &Context) -> Box<Context> {
        let mut copy = self.engine.free_contexts.pop().unwrap_or_default();
        Context::clone_from(&mut copy, context);
        copy.requests = Requests::default();
        copy.exit = false;
        // Copies in BMv2 discard the truncation length.
        copy.bytes_max = usize::MAX;
        copy
    }

    /// Replicates a packet for each member of a group. As in BMv2, the original packet then has the `egress_rid` of the
    /// last replica.
    fn multicast(&mut self, context: &mut Context, bytes: &Bytes<'f>, group: u32, bytes_max: usize) {
        let Some(replicas) = self.batch.environment.forwarding.group(group).cloned() else {
            return;
        };
        let standard = self.batch.environment.executable.standard_metadata;
        for replica in replicas.iter() {
            set_optional(&mut context.arena, standard.egress_rid, u64::from(replica.rid));
            let mut copy = self.copy_of(context);
            copy.bytes_max = bytes_max;
            self.enqueue(copy, bytes.clone(), replica.port);
        }
    }

    /// Clones the packet as received: the clone is parsed again and keeps the fields of the list.
    fn clone_ingress(
        &mut self,
        context: &Context,
        bytes: &Bytes<'f>,
        session: u16,
        list: u16,
        received_length: i64,
    ) {
        let Some(session) = self
            .batch
            .environment
            .forwarding
            .clone_session(u32::from(session))
        else {
            return;
        };
        let executable = self.batch.environment.executable;
        let mut copy = self.new_context(context, received_length);
        set_optional(
            &mut copy.arena,
            executable.standard_metadata.ingress_port,
            u64::from(context.ingress_port),
        );
        Self::machine(
            self.batch,
            &mut self.engine.scratch,
            self.random,
            &mut copy,
            bytes.get(),
        )
        .parse();
        if let Some(fault) = copy.fault {
            return self.fault(fault, copy);
        }
        // As in BMv2, the clone keeps only the parsed headers, not the metadata.
        clear_metadata(executable, &mut copy);
        copy_field_list(executable, &mut copy, context, list, Instance::IngressClone);
        self.enqueue_clone(copy, bytes, session);
    }

    fn enqueue_clone(
        &mut self,
        mut copy: Box<Context>,
        bytes: &Bytes<'f>,
        session: crate::forwarding::CloneSession,
    ) {
        if session.bytes_max != 0 {
            copy.bytes_max = session.bytes_max as usize;
        }
        if let Some(group) = session.group {
            let bytes_max = copy.bytes_max;
            self.multicast(&mut copy, bytes, group, bytes_max);
        }
        match session.port {
            Some(port) => self.enqueue(copy, bytes.clone(), port),
            None => self.recycle(copy),
        }
    }

    /// Creates the context of a packet that is parsed again.
    fn new_context(&mut self, from: &Context, length: i64) -> Box<Context> {
        let mut copy = self.engine.free_contexts.pop().unwrap_or_default();
        copy.reset(self.batch.environment.executable.layout.bytes as usize);
        copy.ingress_port = from.ingress_port;
        copy.ingress_length = from.ingress_length;
        copy.length = length;
        copy
    }

    fn send_digest(&mut self, context: &Context, number: u16) {
        let executable = self.batch.environment.executable;
        let digests = &executable.program.digests;
        let Some(digest) = digests.iter().find(|digest| digest.json_id == u32::from(number)) else {
            return;
        };
        let values = digest
            .fields
            .iter()
            .map(|field| field_bytes(executable, context, *field))
            .collect();
        self.sink.digest(digest.json_id, values);
    }

    fn resubmit(&mut self, context: Box<Context>, bytes: Bytes<'f>, list: u16, received_length: i64) {
        let executable = self.batch.environment.executable;
        let mut copy = self.new_context(&context, received_length);
        copy_field_list(executable, &mut copy, &context, list, Instance::Resubmitted);
        let length = u64::try_from(received_length).unwrap_or(0);
        set_optional(
            &mut copy.arena,
            executable.standard_metadata.packet_length,
            length,
        );
        self.recycle(context);
        self.start_extra_pass(copy, bytes);
    }

    fn start_extra_pass(&mut self, context: Box<Context>, bytes: Bytes<'f>) {
        if self.extra_passes >= PASSES_MAX {
            return self.fault(Fault::PassLimit, context);
        }
        if self.ingress_queue.len() >= WAITING_MAX {
            return self.fault(Fault::QueueFull, context);
        }
        self.extra_passes += 1;
        self.sink.extra_pass();
        self.ingress_queue.push_back(Pass { context, bytes });
    }

    fn egress(&mut self, packet: EgressPacket<'f>) {
        let EgressPacket {
            mut context,
            bytes,
            port,
        } = packet;
        self.begin_egress(&mut context, port);
        let executable = self.batch.environment.executable;
        if !context.exit {
            let start = executable.egress;
            Self::machine(
                self.batch,
                &mut self.engine.scratch,
                self.random,
                &mut context,
                bytes.get(),
            )
            .run(start);
        }
        // The exit flag needs no reset: the deparser ignores the flag, and copies reset it.
        if let Some(fault) = context.fault {
            return self.fault(fault, context);
        }
        if let Some((session, list)) = context.requests.clone {
            context.requests.clone = None;
            self.clone_egress(&context, &bytes, session, list);
        }
        if get(&context.arena, executable.standard_metadata.egress_spec) as u32
            == self.batch.environment.drop_port
        {
            self.sink.dropped();
            return self.recycle(context);
        }
        let mut out = std::mem::take(&mut self.engine.out);
        out.clear();
        Self::machine(
            self.batch,
            &mut self.engine.scratch,
            self.random,
            &mut context,
            bytes.get(),
        )
        .deparse(&mut out);
        if let Some(fault) = context.fault {
            self.engine.out = out;
            return self.fault(fault, context);
        }
        let payload = bytes.get().get(context.parsed..).unwrap_or(&[]);
        if context.requests.recirculate != 0 {
            self.recirculate(&context, &out, payload);
        } else {
            let bytes_max = context.bytes_max;
            let headers = out.get(..bytes_max.min(out.len())).unwrap_or(&[]);
            let rest = payload
                .get(..(bytes_max - headers.len()).min(payload.len()))
                .unwrap_or(&[]);
            self.sink.send(port, headers, rest);
        }
        self.engine.out = out;
        self.recycle(context);
    }

    fn begin_egress(&mut self, context: &mut Context, port: u32) {
        let environment = &self.batch.environment;
        let standard = &environment.executable.standard_metadata;
        let length = u64::try_from(context.length).unwrap_or(0);
        let arena = &mut context.arena;
        set_optional(arena, standard.egress_global_timestamp, environment.now_us);
        set_optional(arena, standard.deq_timedelta, 0);
        set_optional(arena, standard.deq_qdepth, 0);
        if let Some(qid) = standard.qid {
            let priority = standard.priority.map_or(0, |field| get(arena, field));
            set(arena, qid, priority);
        }
        set_optional(arena, standard.egress_port, u64::from(port));
        set(arena, standard.egress_spec, u64::from(environment.drop_port) + 1);
        set_optional(arena, standard.packet_length, length);
    }

    /// Clones the packet with the headers and metadata at the end of egress.
    fn clone_egress(&mut self, context: &Context, bytes: &Bytes<'f>, session: u16, list: u16) {
        let Some(session) = self
            .batch
            .environment
            .forwarding
            .clone_session(u32::from(session))
        else {
            return;
        };
        let executable = self.batch.environment.executable;
        let mut copy = self.copy_of(context);
        clear_metadata(executable, &mut copy);
        copy_field_list(executable, &mut copy, context, list, Instance::EgressClone);
        self.enqueue_clone(copy, bytes, session);
    }

    fn recirculate(&mut self, context: &Context, headers: &[u8], payload: &[u8]) {
        let executable = self.batch.environment.executable;
        let frame: Arc<[u8]> = [headers, payload].concat().into();
        let length = frame.len() as u64;
        let mut copy = self.new_context(context, i64::try_from(length).unwrap_or(i64::MAX));
        copy_field_list(
            executable,
            &mut copy,
            context,
            context.requests.recirculate,
            Instance::Recirculated,
        );
        set_optional(
            &mut copy.arena,
            executable.standard_metadata.packet_length,
            length,
        );
        copy.ingress_length = length;
        self.start_extra_pass(copy, Bytes::Produced(frame));
    }
}

fn clear_metadata(executable: &Executable, context: &mut Context) {
    let metadata = executable.layout.metadata.start as usize..executable.layout.metadata.end as usize;
    if let Some(bytes) = context.arena.get_mut(metadata) {
        bytes.fill(0);
    }
}

/// Copies the fields of the list and sets the instance type.
fn copy_field_list(executable: &Executable, to: &mut Context, from: &Context, list: u16, instance: Instance) {
    let lists = &executable.program.field_lists;
    let field_list: Option<&FieldList> = lists
        .iter()
        .find(|candidate| candidate.json_id == u32::from(list));
    for field in field_list.map_or(&[][..], |list| list.fields.as_slice()) {
        let Some(layout) = executable.layout.field(*field) else {
            continue;
        };
        let start = layout.end as usize * 8 - usize::from(layout.shift) - layout.bits as usize;
        let value = crate::exec::read_bits(&from.arena, start, layout.bits as usize);
        crate::exec::write_bits(&mut to.arena, start, layout.bits as usize, &value);
    }
    set_optional(
        &mut to.arena,
        executable.standard_metadata.instance_type,
        instance as u64,
    );
}

fn field_bytes(executable: &Executable, context: &Context, field: FieldRef) -> Vec<u8> {
    let Some(layout) = executable.layout.field(field) else {
        return Vec::new();
    };
    let start = layout.end as usize * 8 - usize::from(layout.shift) - layout.bits as usize;
    crate::exec::read_bits(&context.arena, start, layout.bits as usize)
}
