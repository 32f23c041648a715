//! Sessions that gateways report, and the older ones elsewhere that end for them (LAP/1 1.4.11).

use std::collections::HashSet;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, Message, Response};
use linewarden_registry::{ActiveDevice, Moment, Opened, RegistryError, Standing};

use crate::link::Link;
use crate::message::{Refusal, Reported, SessionReport};

/// What a report comes to before anything is noted.
enum Proof {
    /// The session is the device's.
    Of(Opened),
    /// The device is gone, or has other credentials by now: the feed ends the session, if anything need.
    Void,
    /// It does not prove what it says.
    Refused(&'static str),
}

impl Link {
    /// Takes note of sessions that were opened at this gateway; answers in their order. `now` is of the controller's clock.
    ///
    /// Each is verified with the key of its row at this gateway. Of a device that no other gateway has had rows of nothing
    /// is read but that, and nothing is written.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn report(
        &self,
        reports: &[SessionReport],
        now: Moment,
    ) -> Result<Vec<Reported>, RegistryError> {
        let responses: Vec<Option<&Response>> = reports.iter().map(response_of).collect();
        let devices: Vec<DeviceId> = responses
            .iter()
            .flatten()
            .map(|response| response.header.device())
            .collect();
        let elsewhere = self.registry().leased_elsewhere(self.fence(), &devices).await?;
        let (mut answers, mut proven) = (Vec::with_capacity(reports.len()), Vec::new());
        for (at, (report, response)) in reports.iter().zip(responses).enumerate() {
            let proof = match response {
                None => Proof::Refused("it holds no RESPONSE"),
                Some(response) => self.examine(report, response, &elsewhere, now).await?,
            };
            answers.push(match proof {
                Proof::Refused(why) => Reported::Refused(why),
                Proof::Void => Reported::Newest,
                Proof::Of(opened) => {
                    proven.push((at, opened));
                    Reported::Newest
                }
            });
        }
        if proven.is_empty() {
            return Ok(answers);
        }
        let sessions: Vec<Opened> = proven.iter().map(|(_, opened)| *opened).collect();
        let standings = self
            .registry()
            .note_sessions(self.fence(), &sessions, now)
            .await?;
        for ((at, _), standing) in proven.iter().zip(standings) {
            if let (Some(answer), Standing::Older { at: gateway, began }) = (answers.get_mut(*at), standing)
                && let Some(age_ns) = began.age_ns(now)
            {
                *answer = Reported::Older { at: gateway, age_ns };
            }
        }
        Ok(answers)
    }

    async fn examine(
        &self,
        report: &SessionReport,
        response: &Response,
        elsewhere: &HashSet<DeviceId>,
        now: Moment,
    ) -> Result<Proof, RegistryError> {
        let device = response.header.device();
        if response.gateway_id.get() != self.gateway().0 {
            return Ok(Proof::Refused("it is of another gateway"));
        }
        if !elsewhere.contains(&device) {
            return Ok(Proof::Void);
        }
        let found = match self.registry().load(device).await {
            Ok(found) => found,
            Err(error) => return Refusal::of(error).map(|_| Proof::Void),
        };
        let leases = match self.registry().leases_of(device).await {
            Ok(leases) => leases,
            Err(error) => return Refusal::of(error).map(|_| Proof::Void),
        };
        let lease = leases
            .iter()
            .find(|lease| lease.gateway == self.gateway() && lease.epoch == found.info.epoch);
        let Some(lease) = lease else {
            return Ok(Proof::Void);
        };
        // A pool row from the lease's end on was never this gateway's; in key mode idx only counts.
        if found.info.mode == Mode::Pool && response.idx.get() >= lease.rows.end {
            return Ok(Proof::Refused("its row is not leased to this gateway"));
        }
        if !self.is_proof(&found, report, response) {
            return Ok(Proof::Refused("its tag does not verify"));
        }
        let began = now.before(report.age_ns);
        Ok(Proof::Of(Opened { device, began }))
    }

    fn is_proof(&self, device: &ActiveDevice, report: &SessionReport, response: &Response) -> bool {
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
