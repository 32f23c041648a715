//! Session reports of gateways: an older session of a device ends at another gateway (LAP/1 1.4.11).

use std::collections::HashSet;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, Message, Response};
use linewarden_registry::{ActiveDevice, BootTimestamp, ProvenSession, RegistryError, SessionOrder};

use crate::link::Link;
use crate::message::{RefusalReason, SessionReport, SessionReportResult};

/// The result of checking a report, before a write.
enum ReportCheck {
    /// The session is the device's.
    Valid(ProvenSession),
    /// The device is not enrolled or has other credentials. The gateway ends the session when it reads the change.
    Ignored,
    /// The report proves no session.
    Rejected(&'static str),
}

impl Link {
    /// Records sessions that were opened at this gateway. The results are in the order of the reports. `now` is the
    /// controller's clock.
    ///
    /// Each report is verified with the key of its row at this gateway. Of a device without leases at other gateways
    /// nothing else is read, and nothing is written.
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
        let (mut results, mut proven) = (Vec::with_capacity(reports.len()), Vec::new());
        for (at, (report, response)) in reports.iter().zip(responses).enumerate() {
            let proof = match response {
                None => ReportCheck::Rejected("message is no RESPONSE"),
                Some(response) => {
                    self.check_report(report, response, &leased_elsewhere, now)
                        .await?
                }
            };
            results.push(match proof {
                ReportCheck::Rejected(reason) => SessionReportResult::Rejected(reason),
                ReportCheck::Ignored => SessionReportResult::Newest,
                ReportCheck::Valid(opened) => {
                    proven.push((at, opened));
                    SessionReportResult::Newest
                }
            });
        }
        if proven.is_empty() {
            return Ok(results);
        }
        let sessions: Vec<ProvenSession> = proven.iter().map(|(_, opened)| *opened).collect();
        let orders = self
            .registry()
            .record_sessions(self.fencing_token(), &sessions, now)
            .await?;
        for ((at, _), order) in proven.iter().zip(orders) {
            if let (
                Some(result),
                SessionOrder::Older {
                    gateway,
                    started: began,
                },
            ) = (results.get_mut(*at), order)
                && let Some(age_ns) = began.age_ns(now)
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
        let found = match self.registry().load(device).await {
            Ok(found) => found,
            Err(error) => return RefusalReason::from_registry_error(error).map(|_| ReportCheck::Ignored),
        };
        let leases = match self.registry().leases_of(device).await {
            Ok(leases) => leases,
            Err(error) => return RefusalReason::from_registry_error(error).map(|_| ReportCheck::Ignored),
        };
        let lease = leases
            .iter()
            .find(|lease| lease.gateway == self.gateway() && lease.epoch == found.info.epoch);
        let Some(lease) = lease else {
            return Ok(ReportCheck::Ignored);
        };
        // Rows from the end of the lease on are not leased to this gateway; in key mode the index is only a counter.
        if found.info.mode == Mode::Pool && response.idx.get() >= lease.rows.end {
            return Ok(ReportCheck::Rejected("row is not leased to this gateway"));
        }
        if !self.has_valid_tag(&found, report, response) {
            return Ok(ReportCheck::Rejected("tag does not verify"));
        }
        let began = now.earlier_by(report.age_ns);
        Ok(ReportCheck::Valid(ProvenSession {
            device,
            started: began,
        }))
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
