//! What came of a demonstration, for tables and, serialised, for machines.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use linewarden_dataplane::Counters;
use serde::Serialize;

use super::{Backend, Options, cast};
use crate::attackers::{AttackError, AttackReport, JUNK_PROOFS};

/// A whole demonstration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Honest devices.
    pub devices: u64,
    /// Thereof with a session, by the gateway's line and the device's own state.
    pub authenticated: u64,
    /// Whatever was accepted without being entitled: attacks that succeeded, lines that nobody's device explains,
    /// datagrams at the service that should not have reached it. What two judges see counts twice; only 0 is good.
    pub false_accepts: u64,
    /// Whatever honest devices were refused: a session, a way through the gate, an answer.
    pub false_rejects: u64,
    /// Messages and handshakes that attackers tried, over all attacks.
    pub attack_attempts: u64,
    /// Attacks that could not be carried out, so that they prove nothing.
    pub inconclusive: u64,
    /// The data plane of the main run.
    pub dataplane: &'static str,
    /// A complete authentication in the main run, attackers and the fleet's concurrency included: both round trips on
    /// the network and in the gateway, without the device's PUF.
    pub latency_us: Quantiles,
    /// The same with everything that a device waits for: its PUF, error correction, and the fleet's own queue.
    pub latency_with_puf_us: Quantiles,
    /// Complete authentications per second while attackers worked.
    pub auth_per_s: f64,
    /// Each attack.
    pub attacks: Vec<AttackOutcome>,
    /// The gateway's lines, compared with the devices.
    pub audit: Audit,
    /// The service behind the gate; `None` where the data plane has no gate.
    pub service: Option<ServiceReport>,
    /// Devices that prove what they run.
    pub attestation: Option<AttestationReport>,
    /// The device that was revoked.
    pub revocation: Option<RevocationReport>,
    /// Latency with one device at a time and no attackers, by data plane.
    pub comparison: Vec<LatencyPass>,
    /// Packets by verdict in the main run.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// What is needed to run the same again.
    pub parameters: Parameters,
    /// What this run did not show, and why.
    pub left_out: Vec<String>,
    /// What went wrong, in words.
    pub findings: Vec<String>,
    /// Nothing unauthorised was accepted, nobody honest refused, nothing left unproven.
    pub passed: bool,
}

/// Two quantiles of a latency, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half are faster.
    pub p50: f64,
    /// One in a hundred is slower.
    pub p99: f64,
}

impl Quantiles {
    pub(super) fn of_ns(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

/// What came of an attack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AttackOutcome {
    /// Its name.
    pub name: &'static str,
    /// Messages or handshakes with which it was tried.
    pub attempts: u64,
    /// How many did what the attacker wanted, by the attack's judge.
    pub successes: u64,
    /// A line that it changed, if it is lines that tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// Why it was left out, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Why it proves nothing, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inconclusive: Option<String>,
}

impl From<AttackReport> for AttackOutcome {
    fn from(report: AttackReport) -> Self {
        Self {
            name: report.name,
            attempts: report.attempts,
            successes: report.successes,
            change: report.change.map(|change| change.to_string()),
            skipped: report.skipped.map(str::to_owned),
            inconclusive: None,
        }
    }
}

impl AttackOutcome {
    pub(super) fn inconclusive(name: &'static str, error: &AttackError) -> Self {
        Self {
            name,
            inconclusive: Some(error.to_string()),
            ..Self::default()
        }
    }

    /// Of its success, as a finding.
    #[must_use]
    pub fn told(&self) -> String {
        let what = self.change.as_deref().map(|change| format!(" ({change})"));
        format!("attack succeeded: {}{}", self.name, what.unwrap_or_default())
    }

    /// Whether its success would shut honest devices out instead of letting somebody in.
    fn denies_service(&self) -> bool {
        DENIALS.contains(&self.name)
    }
}

/// Attacks whose success is a loss of honest packets or handshakes.
const DENIALS: [&str; 4] = [
    JUNK_PROOFS,
    "honest short datagrams lost",
    "honest datagrams 00… and 02… lost",
    "LAP: REQUEST over a running handshake",
];

/// The gateway's lines, compared with what the devices hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Lines looked at.
    pub lines: u64,
    /// Lines with a row spent, or a session open, that their device knows nothing of.
    pub unexplained: u64,
    /// Honest devices without a session at the gateway or of their own.
    pub refused: u64,
}

/// The service behind the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServiceReport {
    /// Datagrams sent before anybody had authenticated.
    pub tried_before: u64,
    /// How many of them reached it: must be 0.
    pub reached_before: u64,
    /// Authenticated devices that reached it and got their echo.
    pub reached: u64,
    /// Authenticated devices that did not.
    pub unreached: u64,
    /// Datagrams of strangers and attackers that reached it: must be 0.
    pub strangers: u64,
}

/// Devices that prove what they run, and the one that was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AttestationReport {
    /// Devices that were asked.
    pub provers: u64,
    /// Rounds.
    pub rounds: u64,
    /// Whether all proved themselves in rounds before anything was changed.
    pub all_proved: bool,
    /// From a round's beginning to its last proof, in rounds in which nobody was silent, ms: half are faster.
    pub last_proof_ms: u32,
    /// The slowest of them, ms.
    pub last_proof_max_ms: u32,
    /// Rounds from the change to the first in which the changed device was silent; those of the period that ran count.
    pub found_after_rounds: u64,
    /// Whether it was quarantined: must be.
    pub quarantined: bool,
    /// Rounds from the change to its quarantine.
    pub quarantined_after_rounds: u64,
    /// The same as a time, s.
    pub quarantined_after_s: f64,
    /// Its datagrams that reached the service then: must be 0; nothing without a gate.
    pub reached_after: Option<u64>,
    /// Whether it got a session then: must not.
    pub authenticated_after: bool,
    /// Whether it was let in after it had been put right: must be.
    pub readmitted: bool,
    /// How long that took, s.
    pub readmitted_after_s: f64,
    /// Whether it has a session again, and reaches the service: must.
    pub back_in: bool,
    /// Devices that ran what they shall and were quarantined: must be 0.
    pub wrongly_quarantined: u64,
    /// Requests that the attacker heard.
    pub requests_heard: u64,
    /// PROOFs that he sent in others' names.
    pub junk_sent: u64,
    /// PROOFs that counted.
    pub proofs_ok: u64,
    /// PROOFs that did not verify; those of the changed device among them.
    pub drop_proof: u64,
    /// PROOFs of another round, or under another nonce.
    pub drop_round: u64,
    /// PROOFs of devices that had proven themselves in that round.
    pub drop_proved: u64,
    /// PROOFs of a round that was over.
    pub drop_late: u64,
}

impl AttestationReport {
    /// What must not be: accepted, refused.
    fn judge(&self, accepts: &mut Vec<(u64, String)>, rejects: &mut Vec<(u64, String)>) {
        let found = self.quarantined;
        for (is_wrong, what) in [
            (self.all_proved && !found, "a changed device was not found"),
            (self.authenticated_after, "a quarantined device authenticated"),
        ] {
            accepts.push((is_wrong.into(), what.to_owned()));
        }
        let through = self.reached_after.unwrap_or(0);
        accepts.push((
            through,
            "datagrams of a quarantined device passed the gate".to_owned(),
        ));
        for (is_wrong, what) in [
            (!self.all_proved, "not all devices could prove what they run"),
            (
                found && !self.readmitted,
                "a device that runs what it shall again was not let in",
            ),
            (
                self.readmitted && !self.back_in,
                "a device that was let in again does not get through",
            ),
        ] {
            rejects.push((is_wrong.into(), what.to_owned()));
        }
        rejects.push((
            self.wrongly_quarantined,
            "devices that run what they shall were quarantined".to_owned(),
        ));
    }
}

/// The revoked device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RevocationReport {
    /// From the registry's commit until the data plane had it, ms.
    pub took_ms: f64,
    /// Its datagrams that reached the service afterwards: must be 0.
    pub reached_after: u64,
    /// Whether it got a new session: must not.
    pub authenticated_after: bool,
    /// Other devices that authenticated anew at the same time.
    pub others_authenticated: u64,
    /// Other devices that did not.
    pub others_refused: u64,
}

/// Latency of complete authentications, one device at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyPass {
    /// The data plane.
    pub dataplane: &'static str,
    /// Devices that authenticated.
    pub devices: u64,
    /// Both round trips, without the PUF.
    pub latency_us: Quantiles,
    /// The whole distribution: (µs, share of authentications at most that long).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

impl LatencyPass {
    pub(super) fn new(backend: Backend, histogram: &Histogram<u64>) -> Self {
        let total = histogram.len().max(1) as f64;
        let mut below = 0;
        let cdf = histogram
            .iter_recorded()
            .map(|step| {
                below += step.count_since_last_iteration();
                (step.value_iterated_to() as f64 / 1e3, below as f64 / total)
            })
            .collect();
        Self {
            dataplane: backend.name(),
            devices: histogram.len(),
            latency_us: Quantiles::of_ns(histogram),
            cdf,
        }
    }
}

/// What a run was made with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Decides chips, noise, enrolment and the attackers' draws.
    pub seed: u64,
    /// What the fleet is made of.
    pub fleet: String,
    /// Rows of a pool-mode device.
    pub rows: u32,
    /// Share of wrong bits in a reading.
    pub bit_error_rate: f64,
    /// Devices in a handshake at once.
    pub window: usize,
    /// Messages per flood and guess.
    pub effort: u32,
    /// Threads that play the fleet.
    pub workers: usize,
}

impl Report {
    pub(super) fn new(options: &Options, workers: usize) -> Self {
        Self {
            devices: u64::from(options.devices),
            authenticated: 0,
            false_accepts: 0,
            false_rejects: 0,
            attack_attempts: 0,
            inconclusive: 0,
            dataplane: options.backend.name(),
            latency_us: Quantiles::default(),
            latency_with_puf_us: Quantiles::default(),
            auth_per_s: 0.0,
            attacks: Vec::new(),
            audit: Audit::default(),
            service: None,
            attestation: None,
            revocation: None,
            comparison: Vec::new(),
            verdicts: BTreeMap::new(),
            parameters: Parameters {
                seed: options.seed,
                fleet: cast::describe(options),
                rows: options.rows,
                bit_error_rate: options.bit_error_rate,
                window: options.window,
                effort: options.effort,
                workers,
            },
            left_out: Vec::new(),
            findings: Vec::new(),
            passed: false,
        }
    }

    pub(super) fn count_verdicts(&mut self, counters: &Counters) {
        self.verdicts = counters
            .nonzero()
            .map(|(verdict, count)| (verdict.name(), count))
            .collect();
    }

    /// Adds everything up. Everything that is not as it must be is a finding as well.
    pub(super) fn conclude(mut self) -> Self {
        let mut accepts = Vec::new();
        let mut rejects = Vec::new();
        for attack in &self.attacks {
            self.attack_attempts += attack.attempts;
            self.inconclusive += u64::from(attack.inconclusive.is_some());
            if let Some(reason) = &attack.inconclusive {
                self.findings
                    .push(format!("{}: proves nothing: {reason}", attack.name));
            }
            let side = if attack.denies_service() {
                &mut rejects
            } else {
                &mut accepts
            };
            side.push((attack.successes, attack.told()));
        }
        let audit = &self.audit;
        accepts.push((
            audit.unexplained,
            "lines with a row spent or a session open that no device explains".to_owned(),
        ));
        rejects.push((audit.refused, "honest devices have no session".to_owned()));
        if let Some(service) = &self.service {
            let before = "datagrams passed the gate before their senders had authenticated";
            accepts.push((service.reached_before, before.to_owned()));
            accepts.push((
                service.strangers,
                "datagrams of strangers reached the service".to_owned(),
            ));
            rejects.push((
                service.unreached,
                "authenticated devices do not reach the service".to_owned(),
            ));
        }
        if let Some(attestation) = &self.attestation {
            attestation.judge(&mut accepts, &mut rejects);
        }
        if let Some(revocation) = &self.revocation {
            accepts.push((
                revocation.reached_after,
                "datagrams of a revoked device passed the gate".to_owned(),
            ));
            accepts.push((
                revocation.authenticated_after.into(),
                "a revoked device authenticated".to_owned(),
            ));
            rejects.push((
                revocation.others_refused,
                "devices were refused beside the revoked one".to_owned(),
            ));
        }
        self.false_accepts += self.sum(&accepts);
        self.false_rejects += self.sum(&rejects);
        self.passed = self.findings.is_empty();
        self
    }

    fn sum(&mut self, counts: &[(u64, String)]) -> u64 {
        for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
            self.findings.push(format!("{what}: {count}"));
        }
        counts.iter().map(|(count, _)| count).sum()
    }

    /// Notes honest devices that a pass beside the main run refused.
    pub(super) fn refused(&mut self, count: u64, what: &str) {
        if count > 0 {
            self.false_rejects += count;
            self.findings.push(format!("{what}: {count}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attackers::ALL;

    fn report() -> Report {
        Report::new(&Options::new(64, Backend::Xdp, 1), 1)
    }

    #[test]
    fn every_denial_is_an_attack() {
        for name in DENIALS {
            let is_known = ALL.iter().any(|attack| attack.name == name) || name == JUNK_PROOFS;
            assert!(is_known, "{name}");
        }
    }

    #[test]
    fn a_success_is_told_with_the_line_that_it_changed() {
        let mut outcome = AttackOutcome {
            name: "x",
            ..Default::default()
        };
        assert_eq!(outcome.told(), "attack succeeded: x");
        outcome.change = Some("device 1 had a; it has b".to_owned());
        assert_eq!(outcome.told(), "attack succeeded: x (device 1 had a; it has b)");
    }

    #[test]
    fn a_run_without_findings_passes() {
        assert!(report().conclude().passed);
    }

    #[test]
    fn every_way_to_fail_is_a_finding_and_counts_on_its_side() {
        let attack = |name, successes| AttackOutcome {
            name,
            attempts: 9,
            successes,
            ..Default::default()
        };
        type Spoil = fn(&mut Report);
        // A good one, to be spoilt.
        fn attested(report: &mut Report) -> &mut AttestationReport {
            report.attestation.insert(AttestationReport {
                all_proved: true,
                quarantined: true,
                readmitted: true,
                back_in: true,
                ..Default::default()
            })
        }
        let accepts: [Spoil; 8] = [
            |report| attested(report).quarantined = false,
            |report| attested(report).reached_after = Some(1),
            |report| attested(report).authenticated_after = true,
            |report| report.audit.unexplained = 1,
            |report| {
                report.service = Some(ServiceReport {
                    reached_before: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.service = Some(ServiceReport {
                    strangers: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.revocation = Some(RevocationReport {
                    reached_after: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.revocation = Some(RevocationReport {
                    authenticated_after: true,
                    ..Default::default()
                });
            },
        ];
        let rejects: [Spoil; 8] = [
            |report| attested(report).all_proved = false,
            |report| attested(report).readmitted = false,
            |report| attested(report).back_in = false,
            |report| attested(report).wrongly_quarantined = 1,
            |report| report.audit.refused = 1,
            |report| {
                report.service = Some(ServiceReport {
                    unreached: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.revocation = Some(RevocationReport {
                    others_refused: 1,
                    ..Default::default()
                })
            },
            |report| report.refused(1, "refused"),
        ];
        for (spoil, expected) in accepts
            .map(|spoil| (spoil, (1, 0)))
            .into_iter()
            .chain(rejects.map(|spoil| (spoil, (0, 1))))
        {
            let mut spoilt = report();
            spoil(&mut spoilt);
            let spoilt = spoilt.conclude();
            assert_eq!((spoilt.false_accepts, spoilt.false_rejects), expected);
            assert!(
                !spoilt.passed && spoilt.findings.len() == 1,
                "{:?}",
                spoilt.findings
            );
        }
        for (name, expected) in [(ALL[0].name, (2, 0)), (DENIALS[0], (0, 2))] {
            let mut spoilt = report();
            spoilt.attacks.push(attack(name, 2));
            let spoilt = spoilt.conclude();
            assert_eq!((spoilt.false_accepts, spoilt.false_rejects), expected);
            assert_eq!(spoilt.attack_attempts, 9);
            assert!(!spoilt.passed);
        }
        let mut unproven = report();
        unproven
            .attacks
            .push(AttackOutcome::inconclusive("x", &AttackError::Control("broken")));
        let unproven = unproven.conclude();
        assert!(!unproven.passed && unproven.inconclusive == 1);
    }

    #[test]
    fn a_distribution_ends_at_one() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 1_000_000, 3).unwrap();
        for value in [10_000, 20_000, 20_000, 400_000] {
            histogram.record(value).unwrap();
        }
        let pass = LatencyPass::new(Backend::Host, &histogram);
        let shares: Vec<f64> = pass.cdf.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [0.25, 0.75, 1.0]);
        assert_eq!(pass.devices, 4);
        assert!((pass.latency_us.p50 - 20.0).abs() < 0.1);
    }
}
