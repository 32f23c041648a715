//! The lease client: the registration of this process, and its requests for the leases of devices.
//!
//! ```text
//!  Registering ──────► Resuming ──────────────► Ready ───┐ one request each in flight: rows, admissions, unused rows
//!       ▲     token       │  ▲  │ last part of     ▲     │
//!       │                 │  └──┘ the leases       └─────┘
//!       └─────────────────┴────────────────────────┘
//!          leases dropped, registry restored: responses in flight are void
//! ```
//!
//! While leases are resumed, rows are requested and devices are admitted, but no unused rows are reported.

use std::collections::HashSet;

use linewarden_dataplane::Miss;
use linewarden_protocol::ids::DeviceId;
use linewarden_types::{
    AdmissionResponse, AdmitDevices, ControllerRequest, ExtendLeases, Kind, LeaseChunk, LeasedCursor,
    LinkError, Provision, ReportUnusedRows, ResumeLeases, RowRefusal,
};

use super::admission_queue::{self, AdmissionQueue};
use super::channel::Channel;
use super::context::Context;
use super::devices::DeviceCache;
use super::status::Status;

/// Maximum number of devices in a request for rows or a report of unused rows: thousands of devices may be revoked and
/// wiped together, and one transaction for all of them would delay other requests.
const DEVICES_PER_REQUEST: usize = 256;

/// Registration and leases of this process.
#[derive(Debug)]
pub(super) struct LeaseClient {
    register: Channel,
    resume: Channel,
    extend: Channel,
    admit: Channel,
    report_unused: Channel,
    /// Messages of devices that are not in the data plane.
    admission_queue: AdmissionQueue,
    /// Devices whose RESPONSE was sent to the controller before all leases were resumed. Their number is limited, because
    /// the data plane already drops most messages of devices that are not enrolled.
    responded_while_resuming: HashSet<DeviceId>,
    /// The position of the next part of the leases.
    cursor: LeasedCursor,
    /// Progress of resuming: the registry revision reached, and the revision at which resuming ends.
    progress: (u64, u64),
    /// Whether all leases of the previous process have been resumed at least once.
    is_loaded: bool,
    counts: Counts,
}

/// Counts in the [`Status`].
#[derive(Debug, Default)]
struct Counts {
    admissions_dropped: u64,
    rows_returned: u64,
    damaged: u64,
}

impl Default for LeaseClient {
    fn default() -> Self {
        Self {
            register: Channel::new(Kind::Register),
            resume: Channel::new(Kind::ResumeLeases),
            extend: Channel::new(Kind::ExtendLeases),
            admit: Channel::new(Kind::AdmitDevices),
            report_unused: Channel::new(Kind::ReportUnusedRows),
            admission_queue: AdmissionQueue::default(),
            responded_while_resuming: HashSet::new(),
            cursor: LeasedCursor::default(),
            progress: (0, 0),
            is_loaded: false,
            counts: Counts::default(),
        }
    }
}

impl LeaseClient {
    pub(super) fn is_registered(&self) -> bool {
        self.register.done
    }

    /// Whether a response that is still to come may contain rows of new devices.
    pub(super) fn may_receive_devices(&self, has_read_feed: bool) -> bool {
        // The requests for such rows are sent only after the first complete read of the feed.
        self.admit.in_flight || has_read_feed && !self.resume.done
    }

    pub(super) fn is_reporting_unused_rows(&self) -> bool {
        self.report_unused.in_flight
    }

    /// Queues a message of an unknown device. When the queue is full, the message replaces another message.
    pub(super) fn queue_message(&mut self, miss: Miss, context: &mut Context) {
        if let Some(replaced) = self.admission_queue.push(miss) {
            self.drop_message(&replaced, context);
        }
    }

    /// Drops a message; the device retries the message.
    fn drop_message(&mut self, miss: &Miss, context: &mut Context) {
        self.counts.admissions_dropped += 1;
        if admission_queue::is_response(miss) {
            context.data_plane.expect_response(miss);
        }
    }

    pub(super) fn register_request(&mut self, context: &Context) -> Option<ControllerRequest> {
        self.register
            .try_send(context.clock)
            .then_some(ControllerRequest::Register)
    }

    /// Returns the requests about leases to send now. Without a fresh value, no device can be admitted.
    pub(super) fn requests(
        &mut self,
        devices: &mut DeviceCache,
        fresh: Option<[u8; 8]>,
        context: &mut Context,
    ) -> Vec<ControllerRequest> {
        let resume = self
            .resume
            .try_send(context.clock)
            .then(|| ResumeLeases { cursor: self.cursor }.into());
        let unused_rows = self.unused_rows_request(devices, context);
        let rows = self.rows_request(devices, context);
        let admission = fresh.and_then(|fresh| self.admission_request(devices, fresh, context));
        [resume, unused_rows, rows, admission]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the next report of unused rows. No report is sent before all leases are resumed, or while an admission
    /// of the device is in flight: the response to the admission may contain rows of the device whose lease the report
    /// would end.
    fn unused_rows_request(
        &mut self,
        devices: &mut DeviceCache,
        context: &Context,
    ) -> Option<ControllerRequest> {
        if !self.resume.done || !self.report_unused.is_free(context.now_ns()) {
            return None;
        }
        let queue = &self.admission_queue;
        let unused_rows = devices.next_unused_rows(DEVICES_PER_REQUEST, |device| !queue.is_in_flight(device));
        (!unused_rows.is_empty() && self.report_unused.try_send(context.clock))
            .then(|| ReportUnusedRows(unused_rows).into())
    }

    fn rows_request(
        &mut self,
        devices: &mut DeviceCache,
        context: &mut Context,
    ) -> Option<ControllerRequest> {
        if !self.extend.is_free(context.now_ns()) {
            return None;
        }
        let requests = devices.next_row_requests(DEVICES_PER_REQUEST, context);
        (!requests.is_empty() && self.extend.try_send(context.clock)).then(|| ExtendLeases(requests).into())
    }

    fn admission_request(
        &mut self,
        devices: &DeviceCache,
        fresh: [u8; 8],
        context: &Context,
    ) -> Option<ControllerRequest> {
        if self.admission_queue.is_empty() || !self.admit.is_free(context.now_ns()) {
            return None;
        }
        let requests = self
            .admission_queue
            .next_requests(|device| devices.contains(device));
        if requests.is_empty() || !self.admit.try_send(context.clock) {
            return None;
        }
        if !self.resume.done {
            self.responded_while_resuming
                .extend(self.admission_queue.responses_in_flight());
        }
        Some(AdmitDevices { requests, fresh }.into())
    }

    /// Handles the response to a registration; returns the fencing token.
    pub(super) fn accept_registration(
        &mut self,
        result: Result<u64, LinkError>,
        context: &mut Context,
    ) -> Option<u64> {
        let fencing_token = context.receive(&mut self.register, result)?;
        self.register.done = true;
        Some(fencing_token)
    }

    /// Handles a part of the leases of the previous process. Returns the part without the devices that have sent a RESPONSE
    /// meanwhile. Leases that the controller has revoked (`is_trusted` is false) are ignored.
    pub(super) fn accept_leases(
        &mut self,
        result: Result<LeaseChunk, LinkError>,
        is_trusted: bool,
        context: &mut Context,
    ) -> Option<LeaseChunk> {
        let chunk = context.receive(&mut self.resume, result);
        let mut chunk = chunk.filter(|_| is_trusted)?;
        for damaged in &chunk.damaged {
            tracing::error!(
                error = damaged,
                action = "run `linewarden registry check`; restore a backup, or revoke the device and enroll the device under another ID",
                "damaged device record skipped; the device cannot authenticate"
            );
        }
        self.counts.damaged += chunk.damaged.len() as u64;
        self.progress = chunk.progress;
        self.cursor = chunk.cursor;
        // The controller may have handled the device's RESPONSE after it read this chunk, and moved the lease to other
        // rows. The rows in the chunk may then be leased to another gateway. The device's rows come with its admission.
        let responded = &self.responded_while_resuming;
        chunk
            .provisions
            .retain(|provision| !responded.contains(&provision.device));
        if chunk.is_last {
            self.resume.done = true;
            self.is_loaded = true;
            self.responded_while_resuming = HashSet::new();
        }
        Some(chunk)
    }

    /// Handles the response to a request for rows.
    pub(super) fn accept_rows(
        &mut self,
        result: Result<(Vec<Provision>, Vec<RowRefusal>), LinkError>,
        devices: &mut DeviceCache,
        context: &mut Context,
    ) {
        match context.receive(&mut self.extend, result) {
            Some((provisions, refusals)) => devices.accept_row_response(provisions, &refusals, context),
            None => devices.repeat_row_request(),
        }
    }

    /// Handles the response to an admission request; returns the messages of the request with their responses.
    pub(super) fn accept_admissions(
        &mut self,
        result: Result<Vec<AdmissionResponse>, LinkError>,
        context: &mut Context,
    ) -> Vec<(Miss, AdmissionResponse)> {
        let requested = self.admission_queue.take_in_flight();
        match context.receive(&mut self.admit, result) {
            Some(admissions) => requested.into_iter().zip(admissions).collect(),
            None => {
                requested.iter().for_each(|miss| self.drop_message(miss, context));
                Vec::new()
            }
        }
    }

    /// Handles the response to a report of unused rows.
    pub(super) fn accept_unused_rows(
        &mut self,
        result: Result<u64, LinkError>,
        devices: &mut DeviceCache,
        context: &mut Context,
    ) {
        match context.receive(&mut self.report_unused, result) {
            Some(rows_returned) => {
                self.counts.rows_returned += rows_returned;
                devices.accept_unused_rows_response(context);
            }
            None => devices.repeat_unused_rows(),
        }
    }

    /// Begins again like a new process, after all leases were dropped. Responses in flight may contain rows of the dropped
    /// leases, so they are void. The registration in flight stays valid.
    pub(super) fn restart(&mut self) {
        self.register.done = false;
        for channel in [
            &mut self.resume,
            &mut self.extend,
            &mut self.admit,
            &mut self.report_unused,
        ] {
            channel.invalidate();
        }
        self.cursor = LeasedCursor::default();
        // The controller may handle these RESPONSEs after it has read the first part of the leases.
        self.responded_while_resuming = self.admission_queue.responses_in_flight().collect();
    }

    /// Invalidates a registration in flight after a restore of the registry.
    pub(super) fn invalidate_registration(&mut self) {
        self.register.invalidate();
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.loaded = self.is_loaded;
        status.resumed = self.progress;
        status.admissions_dropped = self.counts.admissions_dropped;
        status.rows_returned = self.counts.rows_returned;
        status.damaged += self.counts.damaged;
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::Mode;
    use linewarden_protocol::wire::message_type;

    use super::*;
    use crate::node::eviction::Eviction;
    use crate::node::test_support::{DEVICE, context, provision};

    fn chunk(is_last: bool) -> LeaseChunk {
        LeaseChunk {
            provisions: vec![provision(DEVICE, Mode::Pool)],
            damaged: Vec::new(),
            progress: (1, 1),
            is_last,
            cursor: LeasedCursor::default(),
        }
    }

    fn message(kind: u8) -> Miss {
        let mut message = [0; 64];
        message[3] = kind;
        message[8..16].copy_from_slice(&DEVICE.0.to_be_bytes());
        Miss::new(message, [10, 0, 0, 1].into(), [0; 8])
    }

    /// The kinds of the requests to send now.
    fn kinds(
        client: &mut LeaseClient,
        devices: &mut DeviceCache,
        context: &mut Context,
    ) -> Vec<&'static str> {
        let requests = client.requests(devices, Some([1; 8]), context);
        let kind = |request: &ControllerRequest| match request {
            ControllerRequest::ResumeLeases(_) => "resume",
            ControllerRequest::ExtendLeases(_) => "extend",
            ControllerRequest::AdmitDevices(_) => "admit",
            ControllerRequest::ReportUnusedRows(_) => "report",
            _ => "other",
        };
        requests.iter().map(kind).collect()
    }

    #[test]
    fn leases_are_resumed_in_parts_before_unused_rows_are_reported() {
        let (mut client, mut context) = (LeaseClient::default(), context());
        let mut devices = DeviceCache::new(Eviction::default());
        assert!(!client.is_registered());
        assert_eq!(
            client.register_request(&context),
            Some(ControllerRequest::Register)
        );
        assert_eq!(client.register_request(&context), None, "in flight");
        assert_eq!(client.accept_registration(Ok(3), &mut context), Some(3));
        assert!(client.is_registered());
        assert_eq!(client.register_request(&context), None, "done");
        devices.admit(provision(DEVICE, Mode::Pool), &mut context);
        devices.remove(DEVICE, true, &mut context);
        for is_last in [false, true] {
            assert!(client.may_receive_devices(true));
            assert_eq!(kinds(&mut client, &mut devices, &mut context), ["resume"]);
            assert_eq!(
                kinds(&mut client, &mut devices, &mut context),
                [""; 0],
                "in flight"
            );
            let part = client.accept_leases(Ok(chunk(is_last)), true, &mut context);
            assert_eq!(part.map(|part| part.provisions.len()), Some(1));
        }
        assert!(!client.may_receive_devices(true));
        assert_eq!(kinds(&mut client, &mut devices, &mut context), ["report"]);
        assert!(client.is_reporting_unused_rows());
    }

    /// The controller may have moved the lease to other rows after it read the part.
    #[test]
    fn resumed_leases_exclude_a_device_that_has_sent_a_response_meanwhile() {
        for (kind, admitted) in [(message_type::REQUEST, 1), (message_type::RESPONSE, 0)] {
            let (mut client, mut context) = (LeaseClient::default(), context());
            let mut devices = DeviceCache::new(Eviction::default());
            client.queue_message(message(kind), &mut context);
            assert_eq!(
                kinds(&mut client, &mut devices, &mut context),
                ["resume", "admit"]
            );
            let part = client.accept_leases(Ok(chunk(true)), true, &mut context);
            assert_eq!(part.map(|part| part.provisions.len()), Some(admitted));
        }
    }

    #[test]
    fn after_a_restart_responses_in_flight_are_void_and_leases_are_resumed_again() {
        let (mut client, mut context) = (LeaseClient::default(), context());
        let mut devices = DeviceCache::new(Eviction::default());
        client.register_request(&context);
        client.accept_registration(Ok(3), &mut context);
        client.queue_message(message(message_type::RESPONSE), &mut context);
        assert_eq!(
            kinds(&mut client, &mut devices, &mut context),
            ["resume", "admit"]
        );
        client.restart();
        assert!(!client.is_registered());
        assert!(
            client
                .accept_leases(Ok(chunk(true)), true, &mut context)
                .is_none()
        );
        let admission = AdmissionResponse::Admit(provision(DEVICE, Mode::Pool));
        assert!(
            client
                .accept_admissions(Ok(vec![admission]), &mut context)
                .is_empty()
        );
        assert_eq!(kinds(&mut client, &mut devices, &mut context), ["resume"]);
    }

    #[test]
    fn leases_are_ignored_while_the_gateway_is_not_trusted() {
        let (mut client, mut context) = (LeaseClient::default(), context());
        let mut devices = DeviceCache::new(Eviction::default());
        assert_eq!(kinds(&mut client, &mut devices, &mut context), ["resume"]);
        assert!(
            client
                .accept_leases(Ok(chunk(true)), false, &mut context)
                .is_none()
        );
        assert_eq!(kinds(&mut client, &mut devices, &mut context), ["resume"]);
    }
}
