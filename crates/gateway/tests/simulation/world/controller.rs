//! The way to the controller: questions and answers may be lost, and it may not be there.

use linewarden_controller::{Knock, Link, Reception, Reported, Want};
use linewarden_gateway::{Answer, Ask, LinkError};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_registry::RegistryError;
use rand::RngExt as _;

use super::process::Process;
use super::{MARK_BLOCK, Rule, World, roaming};

fn lost() -> LinkError {
    LinkError::Failed("lost".to_owned())
}

pub(super) fn failed(ask: &Ask, error: LinkError) -> Answer {
    match ask {
        Ask::Enter => Answer::Entered(Err(error)),
        Ask::Resume => Answer::Chunk(Err(error)),
        Ask::Lease(_) => Answer::Rows(Err(error)),
        Ask::Receive { .. } => Answer::Receptions(Err(error)),
        Ask::Settle(_) => Answer::Settled(Err(error)),
        Ask::Report(_) => Answer::Reported {
            result: Err(error),
            at_ns: 0,
        },
        Ask::Changes { .. } => Answer::Changes {
            result: Err(error),
            at_ns: 0,
            scrutiny: None,
        },
        Ask::Evidence { .. } => Answer::Judged(Err(error)),
        Ask::Plan(_) => Answer::Plan(Err(error)),
        Ask::Provers { .. } => Answer::Provers(Err(error)),
        Ask::Appraise(_) => Answer::Appraised(Err(error)),
        Ask::ProverIds { .. } => Answer::ProverIds(Err(error)),
    }
}

fn is_failure(answer: &Answer) -> bool {
    matches!(answer.error(), Some(LinkError::Failed(_)))
}

fn is_restored(answer: &Answer) -> bool {
    matches!(answer.error(), Some(LinkError::Restored(_)))
}

/// Who wants to be admitted.
fn knocking(ask: &Ask) -> Vec<DeviceId> {
    match ask {
        Ask::Receive { knocks, .. } => devices_of(knocks),
        _ => Vec::new(),
    }
}

fn devices_of(knocks: &[Knock]) -> Vec<DeviceId> {
    let device = |knock: &Knock| knock.message[8..16].try_into().map(u64::from_be_bytes);
    knocks
        .iter()
        .map(|knock| DeviceId(device(knock).unwrap()))
        .collect()
}

/// Who is admitted, and how many rows may be spent: so many are lost if the process ends before it hears of it.
pub(super) fn admitted(answer: &Answer) -> Vec<(DeviceId, u32)> {
    let Answer::Receptions(Ok(receptions)) = answer else {
        return Vec::new();
    };
    receptions
        .iter()
        .filter_map(|reception| match reception {
            Reception::Admit(given) => Some((given.device, given.mark.0.saturating_sub(given.first.0))),
            _ => None,
        })
        .collect()
}

impl World {
    /// Rows that nobody may ever spend.
    pub(super) fn leave_behind(&mut self, rows: impl IntoIterator<Item = (DeviceId, u32)>) {
        for (device, rows) in rows {
            *self.left_behind.entry(device).or_default() += rows;
        }
    }

    /// The controller answers, or the question or the answer is lost.
    pub(super) fn ask(&mut self, at: usize, ask: Ask) -> Answer {
        let fate = match self.calm {
            true => 9,
            false => self.rng.random_range(0..12),
        };
        if fate < 2 {
            self.tally.link_failures += 1;
        }
        if fate == 0 || !self.office.is_open {
            return failed(&ask, lost());
        }
        let link = match self.link(at) {
            Ok(link) => link,
            Err(error) => return failed(&ask, error.into()),
        };
        // A chunk that is lost would be gone: the link brings it or fails before.
        let is_lost = fate == 1 && ask != Ask::Resume;
        let loss = is_lost.then(|| failed(&ask, lost()));
        let devices = knocking(&ask);
        let answer = self.answer(at, &link, ask);
        if loss.is_none() && is_restored(&answer) {
            // The next question registers it anew. Who has not heard the answer shows the old registration again.
            let process = &mut self.processes[at];
            (process.link, process.leases, process.verifier) = (None, None, None);
        }
        if is_failure(&answer) && !self.office.is_well() {
            self.tally.failed_answers += 1;
            // It may be durable all the same.
            self.leave_behind(devices.into_iter().map(|device| (device, MARK_BLOCK)));
        }
        match loss {
            Some(loss) => {
                self.leave_behind(admitted(&answer));
                loss
            }
            None => answer,
        }
    }

    /// Registers the process with its first question. A controller that was started since knows it by its number.
    fn link(&mut self, at: usize) -> Result<Link, RegistryError> {
        let wall_s = self.wall_s();
        let (office, process) = (&self.office, &mut self.processes[at]);
        let link = match &process.link {
            None => {
                let gateway = process.id();
                self.runtime
                    .block_on(office.controller.connect(gateway, wall_s))?
            }
            Some(link) if process.linked_to == office.started => link.clone(),
            Some(link) => {
                // What was being read is read from the beginning.
                process.leases = None;
                process.verifier = None;
                office.controller.reconnect(link)
            }
        };
        process.linked_to = office.started;
        process.link = Some(link.clone());
        if self.without == Some(Rule::Fence) {
            return Ok(self.newest_link(at).unwrap_or(link));
        }
        Ok(link)
    }

    /// Without the fence an old process is served like the new one.
    fn newest_link(&self, at: usize) -> Option<Link> {
        let gateway = self.processes[at].gateway;
        let links = self.processes.iter().filter(|other| other.gateway == gateway);
        let newest = links
            .filter_map(|other| other.link.as_ref())
            .max_by_key(|link| link.number())?;
        Some(self.office.controller.reconnect(newest))
    }

    fn answer(&mut self, at: usize, link: &Link, ask: Ask) -> Answer {
        let (runtime, office) = (&self.runtime, &mut self.office);
        let process: &mut Process = &mut self.processes[at];
        let gateway: GatewayId = process.id();
        let (now, boot_ns) = (
            office.moment(self.now_ms),
            process.clock.clock(self.now_ms).boot_ns,
        );
        match ask {
            // Memory is taken up whoever was the gateway in between.
            Ask::Enter if self.without == Some(Rule::Owner) && process.left_by > 0 => {
                Answer::Entered(Ok(process.left_by + 1))
            }
            Ask::Enter => Answer::Entered(Ok(link.number())),
            Ask::Plan(_) | Ask::Provers { .. } | Ask::Appraise(_) => self.attest(at, link, ask),
            Ask::ProverIds { since } => {
                Answer::ProverIds(runtime.block_on(link.prover_ids(since)).map_err(Into::into))
            }
            Ask::Resume => {
                let leases = process.leases.get_or_insert_with(|| link.held());
                Answer::Chunk(runtime.block_on(leases.next_chunk()).map_err(Into::into))
            }
            Ask::Lease(wants) => {
                let answer = runtime.block_on(link.lease(&wants));
                if let Ok((provisions, _)) = &answer {
                    office.promise(gateway, provisions);
                }
                let jumped = |want: &&Want| match &answer {
                    Ok((provisions, _)) => provisions
                        .iter()
                        .any(|given| given.device == want.device && given.first > want.received),
                    // It may be durable all the same.
                    Err(_) => true,
                };
                let left = |want: &Want| want.received.0.saturating_sub(want.from.0);
                let left: Vec<_> = wants
                    .iter()
                    .filter(jumped)
                    .map(|want| (want.device, left(want)))
                    .collect();
                let answer = Answer::Rows(answer.map_err(Into::into));
                self.leave_behind(left);
                answer
            }
            Ask::Receive { knocks, fresh } => {
                let floor = |device: DeviceId| {
                    let info = runtime.block_on(office.registry().get(device));
                    info.map_or(0, |info| info.idx_floor.0)
                };
                let floors: Vec<u32> = devices_of(&knocks).into_iter().map(floor).collect();
                let answer = runtime.block_on(link.receive(&knocks, fresh));
                // Rows between what was leased and what the device says to have answered are passed over.
                let passed_over = answer.iter().flatten().zip(floors);
                let passed_over: Vec<(DeviceId, u32)> = passed_over
                    .filter_map(|(reception, floor)| match reception {
                        Reception::Admit(given) if given.mode == Mode::Pool => {
                            Some((given.device, given.first.0.saturating_sub(floor)))
                        }
                        _ => None,
                    })
                    .collect();
                let admitted = answer.iter().flatten().filter_map(|reception| match reception {
                    Reception::Admit(provision) => Some(provision),
                    _ => None,
                });
                office.promise(gateway, admitted);
                self.leave_behind(passed_over);
                Answer::Receptions(answer.map_err(Into::into))
            }
            Ask::Settle(_) if self.without == Some(Rule::Settling) => Answer::Settled(Ok(0)),
            Ask::Settle(settlements) => {
                for settlement in &settlements {
                    office.release(gateway, settlement.device);
                }
                let answer = runtime.block_on(link.settle(&settlements));
                Answer::Settled(answer.map_err(Into::into))
            }
            Ask::Report(openings) if self.without == Some(Rule::Report) => Answer::Reported {
                result: Ok(vec![Reported::Newest; openings.len()]),
                at_ns: boot_ns,
            },
            Ask::Report(openings) => {
                let reports = roaming::reports(&openings, boot_ns, self.without);
                let answer = runtime.block_on(link.report(&reports, now));
                Answer::Reported {
                    result: answer.map_err(Into::into),
                    at_ns: boot_ns,
                }
            }
            // Nobody asks for evidence here.
            Ask::Evidence { .. } => Answer::Judged(Err(lost())),
            Ask::Changes { since } => Answer::Changes {
                result: runtime
                    .block_on(link.changes(since, Some(now)))
                    .map_err(Into::into),
                at_ns: boot_ns,
                scrutiny: None,
            },
        }
    }
}
