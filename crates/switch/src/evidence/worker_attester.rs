//! Evidence in packets: stamps the packets that a worker sends, and publishes the digests to the program.

use std::sync::Arc;

use linewarden_evidence::inband::{Stamper, is_clone, read_option, resembles_evidence};
use linewarden_evidence::state::Snapshot;

use super::{Attester, Carrier};
use crate::engine::Sink;
use crate::exec::Fault;
use crate::forwarding::Forwarding;
use crate::tables::{Reader, Snapshot as PublishedState};

/// Number of payload bytes that are copied together with the headers to stamp a packet. These bytes usually contain
/// options and a transport header. If these bytes do not suffice, the whole packet is copied.
const FRONT_BYTES: usize = 64;

/// View of an attester for one worker.
#[derive(Debug)]
pub struct WorkerAttester {
    attester: Arc<Attester>,
    /// Version of the forwarding state of `snapshot`.
    version: u64,
    /// Change count at the time of `snapshot`.
    change_count: u64,
    /// `None` after the measurement has failed.
    snapshot: Option<Snapshot>,
    stamper: Option<Stamper>,
    /// Buffer for the packet to stamp.
    frame: Vec<u8>,
    /// Buffer for the stamped bytes or the clone frame.
    out: Vec<u8>,
}

impl WorkerAttester {
    /// Creates the view for one program. Returns the view and the forwarding state of the first batch.
    pub(crate) fn new(
        attester: &Arc<Attester>,
        reader: &Reader<Forwarding>,
    ) -> (Self, PublishedState<Forwarding>) {
        let change_count = attester.changed_arrays.change_count();
        let (forwarding, snapshot) = attester.current_state(reader);
        let in_band = attester.settings.in_band.as_ref();
        let stamper = in_band
            .zip(snapshot.as_ref())
            .map(|(in_band, snapshot)| Stamper::new(in_band.key.clone(), snapshot));
        let worker = Self {
            attester: Arc::clone(attester),
            version: forwarding.version(),
            change_count,
            snapshot,
            stamper,
            frame: Vec::new(),
            out: Vec::new(),
        };
        worker.publish_digests();
        (worker, forwarding)
    }

    /// Whether the view belongs to this attester.
    pub(crate) fn belongs_to(&self, attester: &Arc<Attester>) -> bool {
        Arc::ptr_eq(&self.attester, attester)
    }

    /// Starts a batch: returns the forwarding state and updates the snapshot to the same version.
    pub(crate) fn begin(&mut self, reader: &Reader<Forwarding>) -> PublishedState<Forwarding> {
        let forwarding = reader.snapshot();
        if forwarding.version() == self.version {
            return forwarding;
        }
        drop(forwarding);
        self.change_count = self.attester.changed_arrays.change_count();
        let (forwarding, snapshot) = self.attester.current_state(reader);
        self.version = forwarding.version();
        self.set_snapshot(snapshot);
        forwarding
    }

    /// Updates the snapshot with the register writes of packets.
    #[inline]
    fn refresh(&mut self) {
        let change_count = self.attester.changed_arrays.change_count();
        if change_count != self.change_count {
            self.change_count = change_count;
            let tables = self.snapshot.map(|snapshot| snapshot.digests.tables);
            let snapshot = tables.and_then(|tables| self.attester.snapshot_for_batch(self.version, tables));
            self.set_snapshot(snapshot);
        }
    }

    fn set_snapshot(&mut self, snapshot: Option<Snapshot>) {
        self.snapshot = snapshot;
        match (&mut self.stamper, &snapshot) {
            (Some(stamper), Some(snapshot)) => stamper.update(snapshot),
            _ => self.stamper = None,
        }
        self.publish_digests();
    }

    /// Writes the digests to the register that the program reads.
    fn publish_digests(&self) {
        let cells = self
            .attester
            .digest_register
            .and_then(|id| self.attester.externs.registers(id));
        let (Some(mut cells), Some(snapshot)) = (cells, &self.snapshot) else {
            return;
        };
        let digests = &snapshot.digests;
        for (index, digest) in (0u64..).zip([digests.registers, digests.tables, digests.program]) {
            cells.set_digest(index, &digest.0);
        }
    }

    /// Updates the published digests before a packet, if the program reads them.
    #[inline]
    pub(crate) fn before_packet(&mut self) {
        if self.attester.digest_register.is_some() {
            self.refresh();
        }
    }

    /// Wraps a sink to stamp the packets that result from one received frame.
    pub(crate) fn attesting_sink<'a>(
        &'a mut self,
        received: &'a [u8],
        sink: &'a mut dyn Sink,
    ) -> AttestingSink<'a> {
        AttestingSink {
            worker_attester: self,
            received,
            sink,
        }
    }

    fn send(&mut self, port: u32, parts: [&[u8]; 2], received: &[u8], sink: &mut dyn Sink) {
        let [headers, payload] = parts;
        let settings = &self.attester.settings;
        if settings.cpu_port == Some(port) {
            return sink.send(port, headers, payload);
        }
        let in_band = settings.in_band.as_ref();
        let (front, remaining) = payload.split_at(payload.len().min(FRONT_BYTES));
        self.frame.clear();
        self.frame.extend_from_slice(headers);
        match front.first_chunk::<FRONT_BYTES>() {
            // A copy of constant length compiles to a few instructions.
            Some(front) => self.frame.extend_from_slice(front),
            None => self.frame.extend_from_slice(front),
        }
        if is_clone(&self.frame) {
            self.frame.extend_from_slice(remaining);
            // Evidence of another switch passes if it is unmodified. Modified data are from the program of this switch.
            if self.frame == received {
                return sink.send(port, headers, payload);
            }
            self.attester.count_forged();
            return sink.dropped();
        }
        let Some(in_band) = in_band else {
            return sink.send(port, headers, payload);
        };
        let (frame, out) = (&mut self.frame, &mut self.out);
        let mut stamper = self
            .stamper
            .as_mut()
            .map(|stamper| (stamper, self.attester.next_counter()));
        if in_band.carrier == Carrier::Option
            && let Some((stamper, counter)) = &mut stamper
        {
            if let Some(consumed) = stamper.stamp_front(frame, remaining.len(), *counter, out) {
                // Usually no program header remains, and the payload is sent without a copy.
                out.extend_from_slice(headers.get(consumed..).unwrap_or_default());
                let payload_consumed = consumed.saturating_sub(headers.len());
                return sink.send(port, out, payload.get(payload_consumed..).unwrap_or_default());
            }
            frame.extend_from_slice(remaining);
            if let Ok(consumed) = stamper.stamp(frame, *counter, out) {
                return sink.send(port, out, frame.get(consumed..).unwrap_or_default());
            }
        } else {
            frame.extend_from_slice(remaining);
        }
        // A packet that cannot be stamped is sent unchanged unless the program added data that resembles evidence.
        if contains_forged_evidence(frame, received) {
            self.attester.count_forged();
            return sink.dropped();
        }
        sink.send(port, headers, payload);
        if let (Carrier::Clone { port: clone_port }, Some((stamper, counter))) = (in_band.carrier, stamper)
            && stamper.clone_frame(frame, counter, out).is_ok()
        {
            sink.send(clone_port, out, &[]);
        }
    }
}

/// Sink between a program and the ports that stamps packets.
pub(crate) struct AttestingSink<'a> {
    worker_attester: &'a mut WorkerAttester,
    received: &'a [u8],
    sink: &'a mut dyn Sink,
}

impl Sink for AttestingSink<'_> {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        // Without evidence in packets the worker need not wait for the measurement.
        if self.worker_attester.attester.settings.in_band.is_some() {
            self.worker_attester.refresh();
        }
        self.worker_attester
            .send(port, [headers, payload], self.received, self.sink);
    }

    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>) {
        self.sink.digest(number, values);
    }

    fn fault(&mut self, fault: Fault) {
        self.sink.fault(fault);
    }

    fn dropped(&mut self) {
        self.sink.dropped();
    }

    fn extra_pass(&mut self) {
        self.sink.extra_pass();
    }
}

/// Whether a frame has data that resembles evidence and was not in the received frame.
fn contains_forged_evidence(frame: &[u8], received: &[u8]) -> bool {
    let content_of = |frame| read_option(frame).ok().flatten().map(|option| option.content);
    resembles_evidence(frame)
        && frame != received
        && content_of(frame).is_none_or(|content| content_of(received) != Some(content))
}
