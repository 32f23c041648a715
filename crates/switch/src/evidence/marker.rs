//! One worker's hand: puts evidence into what leaves, and lets the program read it.

use std::sync::Arc;

use linewarden_evidence::inband::{Content, Form, Route, Stamper, is_clone, read_option, resembles_evidence};
use linewarden_evidence::state::Snapshot;

use super::{Attester, Carrier};
use crate::engine::Sink;
use crate::exec::Fault;
use crate::forwarding::Forwarding;
use crate::tables::{Reader, Snapshot as InForce};

/// Bytes of what the program has not parsed that are copied behind its headers before a packet is stamped: options and a transport's header,
/// as a rule. Where they do not do, everything is copied.
const FRONT_BYTES: usize = 64;

/// A worker's view of an attester.
#[derive(Debug)]
pub struct Marker {
    attester: Arc<Attester>,
    /// The version of the forwarding state that `snapshot` was taken with.
    version: u64,
    /// What was new when `snapshot` was taken.
    news: u64,
    /// None once the measurement is not believed any more.
    snapshot: Option<Snapshot>,
    stamper: Option<Stamper>,
    frame: Vec<u8>,
    out: Vec<u8>,
}

impl Marker {
    /// For one program; the forwarding state is the one to begin with.
    pub(crate) fn new(attester: &Arc<Attester>, reader: &Reader<Forwarding>) -> (Self, InForce<Forwarding>) {
        let news = attester.touched.news();
        let (in_force, snapshot) = attester.in_force(reader);
        let in_band = attester.settings.in_band.as_ref();
        let stamper = in_band
            .zip(snapshot.as_ref())
            .map(|(in_band, snapshot)| Stamper::new(in_band.key.clone(), in_band.form, snapshot));
        let marker = Self {
            attester: Arc::clone(attester),
            version: in_force.version(),
            news,
            snapshot,
            stamper,
            frame: Vec::new(),
            out: Vec::new(),
        };
        marker.show();
        (marker, in_force)
    }

    /// Whether it is of this attester.
    pub(crate) fn is_of(&self, attester: &Arc<Attester>) -> bool {
        Arc::ptr_eq(&self.attester, attester)
    }

    /// The forwarding state for a batch, with the measurement that belongs to it.
    pub(crate) fn begin(&mut self, reader: &Reader<Forwarding>) -> InForce<Forwarding> {
        let in_force = reader.snapshot();
        if in_force.version() == self.version {
            return in_force;
        }
        drop(in_force);
        self.news = self.attester.touched.news();
        let (in_force, snapshot) = self.attester.in_force(reader);
        self.version = in_force.version();
        self.set(snapshot);
        in_force
    }

    /// Takes up what packets have written.
    #[inline]
    fn refresh(&mut self) {
        let news = self.attester.touched.news();
        if news != self.news {
            self.news = news;
            let tables = self.snapshot.map(|snapshot| snapshot.digests.tables);
            let snapshot = tables.and_then(|tables| self.attester.within_batch(self.version, tables));
            self.set(snapshot);
        }
    }

    fn set(&mut self, snapshot: Option<Snapshot>) {
        self.snapshot = snapshot;
        match (&mut self.stamper, &snapshot) {
            (Some(stamper), Some(snapshot)) => stamper.update(snapshot),
            _ => self.stamper = None,
        }
        self.show();
    }

    /// Writes the digests where the program reads them.
    fn show(&self) {
        let cells = self
            .attester
            .shown
            .and_then(|id| self.attester.externs.registers(id));
        let (Some(mut cells), Some(snapshot)) = (cells, &self.snapshot) else {
            return;
        };
        let digests = &snapshot.digests;
        for (index, digest) in (0u64..).zip([digests.registers, digests.tables, digests.program]) {
            cells.show(index, &digest.0);
        }
    }

    /// Before a packet is taken: the program reads the digests as they are now.
    #[inline]
    pub(crate) fn before_packet(&mut self) {
        if self.attester.shown.is_some() {
            self.refresh();
        }
    }

    /// A sink for what becomes of one received frame.
    pub(crate) fn over<'a>(&'a mut self, received: &'a [u8], sink: &'a mut dyn Sink) -> Marking<'a> {
        Marking {
            marker: self,
            received,
            route: None,
            sink,
        }
    }

    fn send(
        &mut self,
        port: u32,
        parts: [&[u8]; 2],
        received: &[u8],
        route: Option<&Route>,
        sink: &mut dyn Sink,
    ) {
        let [headers, payload] = parts;
        let settings = &self.attester.settings;
        if settings.cpu_port == Some(port) {
            return sink.send(port, headers, payload);
        }
        let in_band = settings.in_band.as_ref();
        let (front, behind) = payload.split_at(payload.len().min(FRONT_BYTES));
        self.frame.clear();
        self.frame.extend_from_slice(headers);
        match front.first_chunk::<FRONT_BYTES>() {
            // A copy of known length is a few instructions.
            Some(front) => self.frame.extend_from_slice(front),
            None => self.frame.extend_from_slice(front),
        }
        if is_clone(&self.frame) {
            self.frame.extend_from_slice(behind);
            // Another switch's evidence passes as it came; what differs from it was made here, by the program.
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
            .map(|stamper| (stamper, self.attester.count()));
        if in_band.carrier == Carrier::Option
            && let Some((stamper, counter)) = &mut stamper
        {
            if let Some(taken) = stamper.stamp_front(frame, behind.len(), *counter, route, out) {
                // As a rule nothing of the program's headers is left, and the payload leaves from where it lies.
                out.extend_from_slice(headers.get(taken..).unwrap_or_default());
                let of_payload = taken.saturating_sub(headers.len());
                return sink.send(port, out, payload.get(of_payload..).unwrap_or_default());
            }
            frame.extend_from_slice(behind);
            if let Ok(taken) = stamper.stamp(frame, *counter, route, out) {
                return sink.send(port, out, frame.get(taken..).unwrap_or_default());
            }
        } else {
            frame.extend_from_slice(behind);
        }
        // What cannot be stamped leaves as it is, but with nothing of the program's that looks like evidence.
        if forges(frame, received) {
            self.attester.count_forged();
            return sink.dropped();
        }
        sink.send(port, headers, payload);
        if let (Carrier::Clone { port: to }, Some((stamper, counter))) = (in_band.carrier, stamper)
            && stamper.clone_frame(frame, counter, out).is_ok()
        {
            sink.send(to, out, &[]);
        }
    }

    fn is_classic(&self) -> bool {
        let in_band = self.attester.settings.in_band.as_ref();
        in_band.is_some_and(|in_band| in_band.form == Form::Classic && in_band.carrier == Carrier::Option)
    }
}

/// Stands between a program and the ports.
pub(crate) struct Marking<'a> {
    marker: &'a mut Marker,
    received: &'a [u8],
    /// What the switches before have written, read when it is needed first.
    route: Option<Option<Route>>,
    sink: &'a mut dyn Sink,
}

impl Sink for Marking<'_> {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        // Who carries nothing need not wait for those that measure.
        if self.marker.attester.settings.in_band.is_some() {
            self.marker.refresh();
        }
        if self.marker.is_classic() && self.route.is_none() {
            self.route = Some(route(self.received));
        }
        let route = self.route.as_ref().and_then(Option::as_ref);
        self.marker
            .send(port, [headers, payload], self.received, route, self.sink);
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

    fn again(&mut self) {
        self.sink.again();
    }
}

fn route(received: &[u8]) -> Option<Route> {
    match read_option(received).ok()??.content {
        Content::Classic { route, .. } => route,
        Content::Default(_) => None,
    }
}

/// Whether a frame has something that a careless reader would take for evidence, and that did not come in with it.
fn forges(frame: &[u8], received: &[u8]) -> bool {
    let option = |frame| read_option(frame).ok().flatten().map(|carried| carried.content);
    resembles_evidence(frame)
        && frame != received
        && option(frame).is_none_or(|content| option(received) != Some(content))
}
