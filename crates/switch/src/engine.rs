//! One worker: takes packets one by one through parser, ingress, egress and deparser, to completion.
//!
//! What happens between ingress and egress is simple_switch's traffic manager: clones, resubmitted and recirculated
//! packets, multicast, drops, in its order. Copies wait in queues of this worker and are finished before the next
//! packet is taken, so that packets of one port leave in the order in which they came.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::exec::{Context, Fault, Machine, RandomSource, Requests, Scratch, World, get, put, set};
use crate::lower::Executable;
use crate::program::FieldList;
use crate::program::ids::FieldRef;

/// Most passes that one received packet and its copies are given: resubmitted and recirculated. A cipher that
/// recirculates for each quarter round needs 160.
pub const PASSES_MAX: u32 = 4096;
/// Most passes through egress that one received packet leads to. A clone that is cloned again has no other end.
pub const COPIES_MAX: u32 = 65_536;
/// Most packets that wait for another pass, as in BMv2.
pub const WAITING_MAX: usize = 1024;

/// `instance_type` of simple_switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instance {
    /// As received.
    Normal = 0,
    /// A clone of the packet as received.
    IngressClone = 1,
    /// A clone of the packet as sent.
    EgressClone = 2,
    /// Sent back to the parser.
    Recirculated = 4,
    /// A copy of a multicast packet.
    Replication = 5,
    /// Started again as received.
    Resubmitted = 6,
}

/// Where packets and digests go.
pub trait Sink {
    /// A packet leaves: first the headers that were sent, then the payload.
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]);
    /// A program tells values to the control plane: the digest's number in the JSON, and its fields.
    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>);
    /// The switch drops a packet for a reason of its own.
    fn fault(&mut self, fault: Fault);
    /// A program drops a packet.
    fn dropped(&mut self);
    /// A packet begins another pass: it was resubmitted or recirculated.
    fn again(&mut self) {}
}

/// The bytes of a packet: those that were received, or those that a pass produced.
#[derive(Clone, Debug)]
enum Bytes<'f> {
    Received(&'f [u8]),
    Made(Arc<[u8]>),
}

impl Bytes<'_> {
    fn get(&self) -> &[u8] {
        match self {
            Self::Received(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

struct Pass<'f> {
    context: Box<Context>,
    bytes: Bytes<'f>,
}

struct Leaving<'f> {
    context: Box<Context>,
    bytes: Bytes<'f>,
    port: u32,
}

/// A worker's memory.
#[derive(Debug, Default)]
pub struct Engine {
    scratch: Scratch,
    /// Boxed, because contexts move between queues: a pointer moves, not the context.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Context>>,
    out: Vec<u8>,
}

/// What does not change while a worker's batch runs.
pub struct Batch<'a> {
    /// Program, tables, registers, time.
    pub world: World<'a>,
    /// Number of priority queues of a port; packets with a higher priority are dropped.
    pub queues: u64,
}

impl Engine {
    /// Takes one packet through the switch.
    pub fn process(
        &mut self,
        batch: &Batch<'_>,
        random: &mut dyn RandomSource,
        port: u32,
        frame: &[u8],
        sink: &mut dyn Sink,
    ) {
        let executable = batch.world.executable;
        let mut context = self.spare.pop().unwrap_or_default();
        context.reset(executable.layout.bytes as usize);
        receive(&mut context, batch, port, frame.len());
        let mut run = Run {
            engine: self,
            batch,
            random,
            sink,
            waiting: VecDeque::new(),
            next: None,
            leaving: VecDeque::new(),
            passes: 0,
            copies: 0,
        };
        run.ingress(Pass {
            context,
            bytes: Bytes::Received(frame),
        });
        run.finish();
    }
}

fn receive(context: &mut Context, batch: &Batch<'_>, port: u32, length: usize) {
    let standard = &batch.world.executable.standard;
    context.ingress_port = port;
    context.ingress_length = length as u64;
    context.length = i64::try_from(length).unwrap_or(i64::MAX);
    let arena = &mut context.arena;
    put(arena, standard.ingress_port, u64::from(port));
    put(arena, standard.packet_length, length as u64);
    put(arena, standard.ingress_global_timestamp, batch.world.now_us);
}

struct Run<'r, 'f> {
    engine: &'r mut Engine,
    batch: &'r Batch<'r>,
    random: &'r mut dyn RandomSource,
    sink: &'r mut dyn Sink,
    waiting: VecDeque<Pass<'f>>,
    /// The first of those that leave: most packets are the only one, and need no queue.
    next: Option<Leaving<'f>>,
    leaving: VecDeque<Leaving<'f>>,
    passes: u32,
    copies: u32,
}

impl<'f> Run<'_, 'f> {
    fn finish(&mut self) {
        loop {
            if let Some(leaving) = self.next.take().or_else(|| self.leaving.pop_front()) {
                self.egress(leaving);
            } else if let Some(pass) = self.waiting.pop_front() {
                self.ingress(pass);
            } else {
                return;
            }
        }
    }

    fn give_back(&mut self, context: Box<Context>) {
        if self.engine.spare.len() < 64 {
            self.engine.spare.push(context);
        }
    }

    fn fault(&mut self, fault: Fault, context: Box<Context>) {
        self.sink.fault(fault);
        self.give_back(context);
    }

    fn machine<'m>(
        batch: &'m Batch<'_>,
        scratch: &'m mut Scratch,
        random: &'m mut dyn RandomSource,
        context: &'m mut Context,
        bytes: &'m [u8],
    ) -> Machine<'m> {
        Machine::new(&batch.world, context, scratch, bytes, random)
    }

    fn ingress(&mut self, pass: Pass<'f>) {
        let executable = self.batch.world.executable;
        let Pass { mut context, bytes } = pass;
        let received = context.length;
        let mut machine = Self::machine(
            self.batch,
            &mut self.engine.scratch,
            self.random,
            &mut context,
            bytes.get(),
        );
        machine.parse();
        machine.tell_errors();
        // An exit in the parser leaves out the pipeline.
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
            self.clone_received(&context, &bytes, session, list, received);
        }
        if requests.digest != 0 {
            self.tell_digest(&context, requests.digest);
        }
        if requests.resubmit != 0 {
            return self.resubmit(context, bytes, requests.resubmit, received);
        }
        self.forward(context, bytes);
    }

    /// The rest of ingress: multicast, drop, or one port.
    fn forward(&mut self, mut context: Box<Context>, bytes: Bytes<'f>) {
        let standard = self.batch.world.executable.standard;
        let group = standard.mcast_grp.map_or(0, |place| get(&context.arena, place));
        if group != 0 {
            put(
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
            return self.give_back(context);
        }
        let port = get(&context.arena, standard.egress_spec) as u32;
        if port == self.batch.world.drop_port {
            self.sink.dropped();
            return self.give_back(context);
        }
        put(
            &mut context.arena,
            standard.instance_type,
            Instance::Normal as u64,
        );
        self.enqueue(context, bytes, port);
    }

    fn enqueue(&mut self, mut context: Box<Context>, bytes: Bytes<'f>, port: u32) {
        let standard = self.batch.world.executable.standard;
        let priority = standard.priority.map_or(0, |place| get(&context.arena, place));
        if priority >= self.batch.queues {
            return self.fault(Fault::Queue, context);
        }
        if self.copies >= COPIES_MAX {
            return self.fault(Fault::Copies, context);
        }
        self.copies += 1;
        let arena = &mut context.arena;
        put(arena, standard.enq_timestamp, self.batch.world.now_us);
        // Packets are finished at once: nothing ever waits before them.
        put(arena, standard.enq_qdepth, 0);
        let leaving = Leaving { context, bytes, port };
        if self.next.is_none() && self.leaving.is_empty() {
            self.next = Some(leaving);
        } else {
            self.leaving.push_back(leaving);
        }
    }

    fn copy_of(&mut self, context: &Context) -> Box<Context> {
        let mut copy = self.engine.spare.pop().unwrap_or_default();
        Context::clone_from(&mut copy, context);
        copy.requests = Requests::default();
        copy.exit = false;
        // BMv2's copies forget how short the packet was to become.
        copy.bytes_max = usize::MAX;
        copy
    }

    /// Copies a packet for each member of a group. As in BMv2, the packet itself has the last copy's `egress_rid`.
    fn multicast(&mut self, context: &mut Context, bytes: &Bytes<'f>, group: u32, bytes_max: usize) {
        let Some(replicas) = self.batch.world.forwarding.group(group).cloned() else {
            return;
        };
        let standard = self.batch.world.executable.standard;
        for replica in replicas.iter() {
            put(&mut context.arena, standard.egress_rid, u64::from(replica.rid));
            let mut copy = self.copy_of(context);
            copy.bytes_max = bytes_max;
            self.enqueue(copy, bytes.clone(), replica.port);
        }
    }

    /// A clone of the packet as it came in: parsed again, with the fields of the list.
    fn clone_received(
        &mut self,
        context: &Context,
        bytes: &Bytes<'f>,
        session: u16,
        list: u16,
        received: i64,
    ) {
        let Some(session) = self.batch.world.forwarding.mirror(u32::from(session)) else {
            return;
        };
        let executable = self.batch.world.executable;
        let mut copy = self.fresh(context, received);
        put(
            &mut copy.arena,
            executable.standard.ingress_port,
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
        // Of what the parser made, BMv2 keeps the headers only.
        clear_metadata(executable, &mut copy);
        keep(executable, &mut copy, context, list, Instance::IngressClone);
        self.mirror(copy, bytes, session);
    }

    fn mirror(
        &mut self,
        mut copy: Box<Context>,
        bytes: &Bytes<'f>,
        session: crate::forwarding::MirrorSession,
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
            None => self.give_back(copy),
        }
    }

    /// The context of a packet that begins again.
    fn fresh(&mut self, from: &Context, length: i64) -> Box<Context> {
        let mut copy = self.engine.spare.pop().unwrap_or_default();
        copy.reset(self.batch.world.executable.layout.bytes as usize);
        copy.ingress_port = from.ingress_port;
        copy.ingress_length = from.ingress_length;
        copy.length = length;
        copy
    }

    fn tell_digest(&mut self, context: &Context, number: u16) {
        let executable = self.batch.world.executable;
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

    fn resubmit(&mut self, context: Box<Context>, bytes: Bytes<'f>, list: u16, received: i64) {
        let executable = self.batch.world.executable;
        let mut copy = self.fresh(&context, received);
        keep(executable, &mut copy, &context, list, Instance::Resubmitted);
        let length = u64::try_from(received).unwrap_or(0);
        put(&mut copy.arena, executable.standard.packet_length, length);
        self.give_back(context);
        self.again(copy, bytes);
    }

    fn again(&mut self, context: Box<Context>, bytes: Bytes<'f>) {
        if self.passes >= PASSES_MAX {
            return self.fault(Fault::Passes, context);
        }
        if self.waiting.len() >= WAITING_MAX {
            return self.fault(Fault::Queue, context);
        }
        self.passes += 1;
        self.sink.again();
        self.waiting.push_back(Pass { context, bytes });
    }

    fn egress(&mut self, leaving: Leaving<'f>) {
        let Leaving {
            mut context,
            bytes,
            port,
        } = leaving;
        self.begin_egress(&mut context, port);
        let executable = self.batch.world.executable;
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
        // An exit in egress is not taken back: nothing comes after it.
        if let Some(fault) = context.fault {
            return self.fault(fault, context);
        }
        if let Some((session, list)) = context.requests.clone {
            context.requests.clone = None;
            self.clone_leaving(&context, &bytes, session, list);
        }
        if get(&context.arena, executable.standard.egress_spec) as u32 == self.batch.world.drop_port {
            self.sink.dropped();
            return self.give_back(context);
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
            let total = context.bytes_max;
            let headers = out.get(..total.min(out.len())).unwrap_or(&[]);
            let rest = payload
                .get(..(total - headers.len()).min(payload.len()))
                .unwrap_or(&[]);
            self.sink.send(port, headers, rest);
        }
        self.engine.out = out;
        self.give_back(context);
    }

    fn begin_egress(&mut self, context: &mut Context, port: u32) {
        let world = &self.batch.world;
        let standard = &world.executable.standard;
        let length = u64::try_from(context.length).unwrap_or(0);
        let arena = &mut context.arena;
        put(arena, standard.egress_global_timestamp, world.now_us);
        put(arena, standard.deq_timedelta, 0);
        put(arena, standard.deq_qdepth, 0);
        if let Some(qid) = standard.qid {
            let priority = standard.priority.map_or(0, |place| get(arena, place));
            set(arena, qid, priority);
        }
        put(arena, standard.egress_port, u64::from(port));
        set(arena, standard.egress_spec, u64::from(world.drop_port) + 1);
        put(arena, standard.packet_length, length);
    }

    /// A clone of the packet as it is at the end of egress.
    fn clone_leaving(&mut self, context: &Context, bytes: &Bytes<'f>, session: u16, list: u16) {
        let Some(session) = self.batch.world.forwarding.mirror(u32::from(session)) else {
            return;
        };
        let executable = self.batch.world.executable;
        let mut copy = self.copy_of(context);
        clear_metadata(executable, &mut copy);
        keep(executable, &mut copy, context, list, Instance::EgressClone);
        self.mirror(copy, bytes, session);
    }

    fn recirculate(&mut self, context: &Context, headers: &[u8], payload: &[u8]) {
        let executable = self.batch.world.executable;
        let whole: Arc<[u8]> = [headers, payload].concat().into();
        let length = whole.len() as u64;
        let mut copy = self.fresh(context, i64::try_from(length).unwrap_or(i64::MAX));
        keep(
            executable,
            &mut copy,
            context,
            context.requests.recirculate,
            Instance::Recirculated,
        );
        put(&mut copy.arena, executable.standard.packet_length, length);
        copy.ingress_length = length;
        self.again(copy, Bytes::Made(whole));
    }
}

fn clear_metadata(executable: &Executable, context: &mut Context) {
    let metadata = executable.layout.metadata.start as usize..executable.layout.metadata.end as usize;
    if let Some(bytes) = context.arena.get_mut(metadata) {
        bytes.fill(0);
    }
}

/// Copies the fields that a copy keeps, and says what it is.
fn keep(executable: &Executable, to: &mut Context, from: &Context, list: u16, instance: Instance) {
    let lists = &executable.program.field_lists;
    let found: Option<&FieldList> = lists.iter().find(|known| known.json_id == u32::from(list));
    for field in found.map_or(&[][..], |list| list.fields.as_slice()) {
        let Some(place) = executable.layout.field(*field) else {
            continue;
        };
        let start = place.end as usize * 8 - usize::from(place.shift) - place.bits as usize;
        let value = crate::exec::read_bits(&from.arena, start, place.bits as usize);
        crate::exec::write_bits(&mut to.arena, start, place.bits as usize, &value);
    }
    put(&mut to.arena, executable.standard.instance_type, instance as u64);
}

fn field_bytes(executable: &Executable, context: &Context, field: FieldRef) -> Vec<u8> {
    let Some(place) = executable.layout.field(field) else {
        return Vec::new();
    };
    let start = place.end as usize * 8 - usize::from(place.shift) - place.bits as usize;
    crate::exec::read_bits(&context.arena, start, place.bits as usize)
}
