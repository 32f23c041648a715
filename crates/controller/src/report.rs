//! Session reports of gateways. When a device opens a session at one gateway, its older sessions at other gateways end
//! (LAP/1 1.4.11).

use crate::denial::refusal_reason;
use std::collections::HashSet;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, Message, Response};
use linewarden_registry::{ActiveDevice, ProvenSession, RegistryError, SessionOrder};
use linewarden_types::{BootTimestamp, SessionReport, SessionReportResult};

use crate::link::Link;

/// The result of checking a report.
enum ReportCheck {
    /// The report proves this session.
    Valid(ProvenSession),
    /// The report is not recorded: the device has no lease at another gateway, has a damaged record, is not active, or
    /// has other credentials. If the device is not active or has other credentials, the gateway ends the session as soon
    /// as it reads that change.
    Ignored,
    /// The report proves no session.
    Rejected(&'static str),
}

impl Link {
    /// Records sessions that were opened at this gateway. The results are in the order of the reports. `now` is the
    /// controller's clock.
    ///
    /// Each report is verified with the key of its row at this gateway. A device without leases at other gateways
    /// causes no further reads and no writes.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn report_sessions(
        &self,
        reports: &[SessionReport],
        now: BootTimestamp,
    ) -> Result<Vec<SessionReportResult>, RegistryError> {
        let responses: Vec<Option<&Response>> = reports.iter().map(response_of).collect();
        let devices: Vec<DeviceId> = responses
            .iter()
            .flatten()
            .map(|response| response.header.device())
            .collect();
        let leased_elsewhere = self
            .registry()
            .leased_elsewhere(self.fencing_token(), &devices)
            .await?;
        let (mut results, mut valid_sessions) = (Vec::with_capacity(reports.len()), Vec::new());
        for (index, (report, response)) in reports.iter().zip(responses).enumerate() {
            let check = match response {
                None => ReportCheck::Rejected("message is no RESPONSE"),
                Some(response) => {
                    self.check_report(report, response, &leased_elsewhere, now)
                        .await?
                }
            };
            results.push(match check {
                ReportCheck::Rejected(reason) => SessionReportResult::Rejected(reason),
                ReportCheck::Ignored => SessionReportResult::Newest,
                ReportCheck::Valid(session) => {
                    valid_sessions.push((index, session));
                    SessionReportResult::Newest
                }
            });
        }
        if valid_sessions.is_empty() {
            return Ok(results);
        }
        let sessions: Vec<ProvenSession> = valid_sessions.iter().map(|(_, session)| *session).collect();
        let orders = self
            .registry()
            .record_sessions(self.fencing_token(), &sessions, now)
            .await?;
        for ((index, _), order) in valid_sessions.iter().zip(orders) {
            if let (Some(result), SessionOrder::Older { gateway, started }) = (results.get_mut(*index), order)
                && let Some(age_ns) = started.age_ns(now)
            {
                *result = SessionReportResult::Superseded { by: gateway, age_ns };
            }
        }
        Ok(results)
    }

    async fn check_report(
        &self,
        report: &SessionReport,
        response: &Response,
        leased_elsewhere: &HashSet<DeviceId>,
        now: BootTimestamp,
    ) -> Result<ReportCheck, RegistryError> {
        let device = response.header.device();
        if response.gateway_id.get() != self.gateway().0 {
            return Ok(ReportCheck::Rejected("RESPONSE names another gateway"));
        }
        if !leased_elsewhere.contains(&device) {
            return Ok(ReportCheck::Ignored);
        }
        let active_device = match self.registry().load(device).await {
            Ok(active_device) => active_device,
            Err(error) => return refusal_reason(error).map(|_| ReportCheck::Ignored),
        };
        let leases = match self.registry().leases_of(device).await {
            Ok(leases) => leases,
            Err(error) => return refusal_reason(error).map(|_| ReportCheck::Ignored),
        };
        let lease = leases
            .iter()
            .find(|lease| lease.gateway == self.gateway() && lease.epoch == active_device.info.epoch);
        let Some(lease) = lease else {
            return Ok(ReportCheck::Ignored);
        };
        // Rows from the end of the lease on are not leased to this gateway; in key mode the index is only a counter.
        if active_device.info.mode == Mode::Pool && response.idx.get() >= lease.rows.end {
            return Ok(ReportCheck::Rejected("row is not leased to this gateway"));
        }
        if !self.has_valid_tag(&active_device, report, response) {
            return Ok(ReportCheck::Rejected("tag does not verify"));
        }
        let started = now.earlier_by(report.age_ns);
        Ok(ReportCheck::Valid(ProvenSession { device, started }))
    }

    fn has_valid_tag(&self, device: &ActiveDevice, report: &SessionReport, response: &Response) -> bool {
        let row = self.keys(device).row(RowIndex(response.idx.get()));
        response.header.suite == device.info.suite.number()
            && row.is_some_and(|row| {
                let expected = tag::response(&row.auth_key, response, &report.loc);
                tag::verify(&expected, &response.tag).is_some()
            })
    }
}

fn response_of(report: &SessionReport) -> Option<&Response> {
    match wire::parse(&report.message) {
        Ok(Message::Response(response)) => Some(response),
        _ => None,
    }
}
