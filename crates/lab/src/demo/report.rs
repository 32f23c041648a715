//! The result of a demonstration, for tables and for serialization.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use linewarden_dataplane::Counters;
use serde::Serialize;

use super::{DataPlaneKind, Options, participants};
use crate::attackers::{AttackError, AttackReport, FORGED_PROOFS};

/// The result of a demonstration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Legitimate devices.
    pub devices: u64,
    /// Devices with a session, by the gateway's line and the device's own state.
    pub authenticated: u64,
    /// Unauthorized accepts: attacks that succeeded, lines whose state no device explains, unauthorized datagrams at
    /// the service. A case that two checks detect counts twice; only 0 is good.
    pub false_accepts: u64,
    /// Rejects of legitimate devices: a refused session, a datagram that was not forwarded, a missing reply.
    pub false_rejects: u64,
    /// Messages and handshakes of all attacks.
    pub attack_attempts: u64,
    /// Attacks that could not be carried out and prove nothing.
    pub inconclusive_attacks: u64,
    /// The data plane of the main run.
    pub dataplane: &'static str,
    /// Latency of a complete authentication in the main run, under attack and concurrency: both round trips on the
    /// network and in the gateway, without the device's PUF.
    pub latency_us: Quantiles,
    /// The latency `latency_us` plus the time for PUF reading, error correction and the fleet's own queue.
    pub latency_with_puf_us: Quantiles,
    /// Complete authentications per second under attack.
    pub auth_per_s: f64,
    /// The outcome of each attack.
    pub attacks: Vec<AttackOutcome>,
    /// The gateway's lines, compared with the devices.
    pub line_check: LineCheck,
    /// The service behind the gate; `None` where the data plane has no gate.
    pub service: Option<ServiceReport>,
    /// The attested devices.
    pub attestation: Option<AttestationReport>,
    /// The device that was revoked.
    pub revocation: Option<RevocationReport>,
    /// Latency with one device at a time, by data plane; without attackers, except on loopback, where the attacks run at
    /// the same time.
    pub comparison: Vec<LatencyPass>,
    /// Packets by verdict in the main run.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// The parameters that reproduce the run.
    pub parameters: Parameters,
    /// Checks that this run skipped, each with the reason.
    pub skipped_checks: Vec<String>,
    /// Failed checks, as text.
    pub findings: Vec<String>,
    /// No unauthorized accept, no rejected legitimate device and no inconclusive attack.
    pub passed: bool,
}

/// Two quantiles of a latency, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Quantiles {
    pub(super) fn of_ns(histogram: &Histogram<u64>) -> Self {
        let quantile_us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            p50: quantile_us(0.5),
            p99: quantile_us(0.99),
        }
    }
}

/// Maximum number of outcomes that wait for the demonstration. The attackers wait while the queue is full.
pub(super) const OUTCOMES_MAX: usize = 64;

/// The outcome of an attack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AttackOutcome {
    /// Name of the attack.
    pub name: &'static str,
    /// Messages or handshakes that the attacker tried.
    pub attempts: u64,
    /// Attempts that succeeded, by the check of the attack.
    pub successes: u64,
    /// One changed line, if changed lines decide about success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_change: Option<String>,
    /// Why the attack was skipped; `None` if the attack ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Why the outcome is inconclusive; `None` if it is conclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inconclusive: Option<String>,
}

impl From<AttackReport> for AttackOutcome {
    fn from(report: AttackReport) -> Self {
        Self {
            name: report.name,
            attempts: report.attempts,
            successes: report.successes,
            line_change: report.line_change.map(|change| change.to_string()),
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

    /// The text of a finding about a successful attack.
    #[must_use]
    pub fn success_message(&self) -> String {
        let detail = self.line_change.as_deref().map(|change| format!(" ({change})"));
        format!("attack succeeded: {}{}", self.name, detail.unwrap_or_default())
    }

    /// Whether success means a denial of service instead of unauthorized access.
    fn denies_service(&self) -> bool {
        DENIAL_OF_SERVICE_ATTACKS.contains(&self.name)
    }
}

/// Attacks whose success is a loss of legitimate packets or handshakes.
const DENIAL_OF_SERVICE_ATTACKS: [&str; 4] = [
    FORGED_PROOFS,
    "loss of short legitimate datagrams",
    "loss of legitimate datagrams by first byte",
    "published: REQUEST during a running handshake",
];

/// The gateway's lines, compared with the devices' state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineCheck {
    /// Compared lines.
    pub lines: u64,
    /// Lines with a spent row or an open session that their device does not have.
    pub unexplained: u64,
    /// Legitimate devices without a session at the gateway or in their own state.
    pub without_session: u64,
}

/// The service behind the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServiceReport {
    /// Datagrams sent before any device had authenticated.
    pub sent_before_authentication: u64,
    /// Number of these datagrams that reached the service: must be 0.
    pub delivered_before_authentication: u64,
    /// Authenticated devices that reached the service and received the echo.
    pub devices_with_echo: u64,
    /// Authenticated devices that did not reach the service or received no echo.
    pub devices_without_echo: u64,
    /// Datagrams of unknown senders and attackers that reached the service: must be 0.
    pub unauthorized_datagrams: u64,
}

/// The attested devices and the modified device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AttestationReport {
    /// Attested devices.
    pub provers: u64,
    /// Attestation rounds.
    pub rounds: u64,
    /// Whether all devices were proven in the rounds before the modification.
    pub all_proved_initially: bool,
    /// Time from the start of a round to its last proof in complete rounds, median, ms.
    pub last_proof_median_ms: u32,
    /// Time from the start of a round to its last proof in complete rounds, maximum, ms.
    pub last_proof_max_ms: u32,
    /// Rounds from the modification to the first round without a valid proof, including the rounds of the current
    /// period.
    pub detected_after_rounds: u64,
    /// Whether the modified device was quarantined: must be true.
    pub quarantined: bool,
    /// Rounds from the modification to the quarantine.
    pub quarantined_after_rounds: u64,
    /// Time from the modification to the quarantine, s.
    pub quarantined_after_s: f64,
    /// Datagrams of the quarantined device that reached the service: must be 0; `None` without a gate.
    pub delivered_in_quarantine: Option<u64>,
    /// Whether the quarantined device got a session: must be false.
    pub authenticated_in_quarantine: bool,
    /// Whether the device was released after its remediation: must be true.
    pub released: bool,
    /// Time from the remediation to the release, s.
    pub released_after_s: f64,
    /// Whether the released device got a session and reaches the service: must be true.
    pub access_restored: bool,
    /// Compliant devices that were quarantined: must be 0.
    pub wrongly_quarantined: u64,
    /// Requests that the attacker overheard.
    pub requests_overheard: u64,
    /// PROOFs that the attacker sent in other devices' names.
    pub forged_proofs_sent: u64,
    /// Accepted PROOFs.
    pub proofs_accepted: u64,
    /// PROOFs that did not verify, including PROOFs of the modified device.
    pub drop_proof: u64,
    /// PROOFs of another round or with another nonce.
    pub drop_round: u64,
    /// PROOFs of devices that were already proven in that round.
    pub drop_proved: u64,
    /// PROOFs of a round that had ended.
    pub drop_late: u64,
}

impl AttestationReport {
    /// Adds each check with its number of failures to `accepts` or `rejects`.
    fn check(&self, accepts: &mut Vec<(u64, String)>, rejects: &mut Vec<(u64, String)>) {
        let detected = self.quarantined;
        for (is_wrong, description) in [
            (
                self.all_proved_initially && !detected,
                "a modified device was not quarantined",
            ),
            (
                self.authenticated_in_quarantine,
                "a quarantined device authenticated",
            ),
        ] {
            accepts.push((is_wrong.into(), description.to_owned()));
        }
        let delivered = self.delivered_in_quarantine.unwrap_or(0);
        accepts.push((
            delivered,
            "datagrams of a quarantined device reached the service".to_owned(),
        ));
        for (is_wrong, description) in [
            (
                !self.all_proved_initially,
                "not all devices were proven before the modification",
            ),
            (detected && !self.released, "a remediated device was not released"),
            (
                self.released && !self.access_restored,
                "a released device has no access to the service",
            ),
        ] {
            rejects.push((is_wrong.into(), description.to_owned()));
        }
        rejects.push((
            self.wrongly_quarantined,
            "compliant devices were quarantined".to_owned(),
        ));
    }
}

/// The revoked device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RevocationReport {
    /// Time from the registry's commit to the data plane, ms.
    pub propagation_ms: f64,
    /// Datagrams of the revoked device that reached the service afterwards: must be 0.
    pub delivered_after: u64,
    /// Whether the revoked device got a new session: must be false.
    pub authenticated_after: bool,
    /// Other devices that authenticated again at the same time.
    pub others_authenticated: u64,
    /// Other devices that got no new session.
    pub others_refused: u64,
}

/// Latency of complete authentications, one device at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyPass {
    /// The data plane.
    pub dataplane: &'static str,
    /// Devices that authenticated.
    pub devices: u64,
    /// Time of the two round trips, without the PUF.
    pub latency_us: Quantiles,
    /// The distribution: (µs, share of authentications that took at most this time).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

impl LatencyPass {
    pub(super) fn new(data_plane: DataPlaneKind, histogram: &Histogram<u64>) -> Self {
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
            dataplane: data_plane.name(),
            devices: histogram.len(),
            latency_us: Quantiles::of_ns(histogram),
            cdf,
        }
    }
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Seed of chips, noise, enrollment and the attackers' random numbers.
    pub seed: u64,
    /// Description of the fleet.
    pub fleet: String,
    /// Rows of a pool-mode device.
    pub rows: u32,
    /// Bit error rate of a PUF reading.
    pub bit_error_rate: f64,
    /// Concurrent handshakes of each worker.
    pub window: usize,
    /// Number of messages of an attack that sends many messages.
    pub messages_per_attack: u32,
    /// Worker threads of the fleet.
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
            inconclusive_attacks: 0,
            dataplane: options.data_plane.name(),
            latency_us: Quantiles::default(),
            latency_with_puf_us: Quantiles::default(),
            auth_per_s: 0.0,
            attacks: Vec::new(),
            line_check: LineCheck::default(),
            service: None,
            attestation: None,
            revocation: None,
            comparison: Vec::new(),
            verdicts: BTreeMap::new(),
            parameters: Parameters {
                seed: options.seed,
                fleet: participants::describe_fleet(options),
                rows: options.rows,
                bit_error_rate: options.bit_error_rate,
                window: options.window,
                messages_per_attack: options.messages_per_attack,
                workers,
            },
            skipped_checks: Vec::new(),
            findings: Vec::new(),
            passed: false,
        }
    }

    pub(super) fn record_verdicts(&mut self, counters: &Counters) {
        self.verdicts = counters
            .nonzero()
            .map(|(verdict, count)| (verdict.name(), count))
            .collect();
    }

    /// Computes the totals and adds a finding for every failed check.
    pub(super) fn conclude(mut self) -> Self {
        let mut accepts = Vec::new();
        let mut rejects = Vec::new();
        for attack in &self.attacks {
            self.attack_attempts += attack.attempts;
            self.inconclusive_attacks += u64::from(attack.inconclusive.is_some());
            if let Some(reason) = &attack.inconclusive {
                self.findings
                    .push(format!("attack inconclusive: {}: {reason}", attack.name));
            }
            let side = if attack.denies_service() {
                &mut rejects
            } else {
                &mut accepts
            };
            side.push((attack.successes, attack.success_message()));
        }
        let line_check = &self.line_check;
        accepts.push((
            line_check.unexplained,
            "lines with a spent row or an open session that no device has".to_owned(),
        ));
        rejects.push((
            line_check.without_session,
            "legitimate devices without a session".to_owned(),
        ));
        if let Some(service) = &self.service {
            let before = "datagrams reached the service before their senders had authenticated";
            accepts.push((service.delivered_before_authentication, before.to_owned()));
            accepts.push((
                service.unauthorized_datagrams,
                "unauthorized datagrams reached the service".to_owned(),
            ));
            rejects.push((
                service.devices_without_echo,
                "authenticated devices without access to the service".to_owned(),
            ));
        }
        if let Some(attestation) = &self.attestation {
            attestation.check(&mut accepts, &mut rejects);
        }
        if let Some(revocation) = &self.revocation {
            accepts.push((
                revocation.delivered_after,
                "datagrams of a revoked device reached the service".to_owned(),
            ));
            accepts.push((
                revocation.authenticated_after.into(),
                "a revoked device authenticated".to_owned(),
            ));
            rejects.push((
                revocation.others_refused,
                "other devices were refused after the revocation".to_owned(),
            ));
        }
        self.false_accepts += self.add_findings(&accepts);
        self.false_rejects += self.add_findings(&rejects);
        self.passed = self.findings.is_empty();
        self
    }

    fn add_findings(&mut self, counts: &[(u64, String)]) -> u64 {
        for (count, description) in counts.iter().filter(|(count, _)| *count > 0) {
            self.findings.push(format!("{description}: {count}"));
        }
        counts.iter().map(|(count, _)| count).sum()
    }

    /// Adds legitimate devices that were refused outside the main run.
    pub(super) fn add_refused_devices(&mut self, count: u64, description: &str) {
        if count > 0 {
            self.false_rejects += count;
            self.findings.push(format!("{description}: {count}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attackers::ATTACKS;

    fn report() -> Report {
        Report::new(&Options::new(64, DataPlaneKind::Xdp, 1), 1)
    }

    #[test]
    fn every_denial_of_service_attack_exists() {
        for name in DENIAL_OF_SERVICE_ATTACKS {
            let is_known = ATTACKS.iter().any(|attack| attack.name == name) || name == FORGED_PROOFS;
            assert!(is_known, "{name}");
        }
    }

    #[test]
    fn the_message_of_a_successful_attack_contains_the_changed_line() {
        let mut outcome = AttackOutcome {
            name: "x",
            ..Default::default()
        };
        assert_eq!(outcome.success_message(), "attack succeeded: x");
        outcome.line_change = Some("device 1: before a; after b".to_owned());
        assert_eq!(
            outcome.success_message(),
            "attack succeeded: x (device 1: before a; after b)"
        );
    }

    #[test]
    fn a_run_without_findings_passes() {
        assert!(report().conclude().passed);
    }

    #[test]
    fn every_failed_check_is_a_finding_and_counts_as_accept_or_reject() {
        let attack = |name, successes| AttackOutcome {
            name,
            attempts: 9,
            successes,
            ..Default::default()
        };
        type Change = fn(&mut Report);
        // A report of a successful attestation, to be changed.
        fn attested(report: &mut Report) -> &mut AttestationReport {
            report.attestation.insert(AttestationReport {
                all_proved_initially: true,
                quarantined: true,
                released: true,
                access_restored: true,
                ..Default::default()
            })
        }
        let accepts: [Change; 8] = [
            |report| attested(report).quarantined = false,
            |report| attested(report).delivered_in_quarantine = Some(1),
            |report| attested(report).authenticated_in_quarantine = true,
            |report| report.line_check.unexplained = 1,
            |report| {
                report.service = Some(ServiceReport {
                    delivered_before_authentication: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.service = Some(ServiceReport {
                    unauthorized_datagrams: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.revocation = Some(RevocationReport {
                    delivered_after: 1,
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
        let rejects: [Change; 8] = [
            |report| attested(report).all_proved_initially = false,
            |report| attested(report).released = false,
            |report| attested(report).access_restored = false,
            |report| attested(report).wrongly_quarantined = 1,
            |report| report.line_check.without_session = 1,
            |report| {
                report.service = Some(ServiceReport {
                    devices_without_echo: 1,
                    ..Default::default()
                })
            },
            |report| {
                report.revocation = Some(RevocationReport {
                    others_refused: 1,
                    ..Default::default()
                })
            },
            |report| report.add_refused_devices(1, "refused"),
        ];
        for (change, expected) in accepts
            .map(|change| (change, (1, 0)))
            .into_iter()
            .chain(rejects.map(|change| (change, (0, 1))))
        {
            let mut changed = report();
            change(&mut changed);
            let changed = changed.conclude();
            assert_eq!((changed.false_accepts, changed.false_rejects), expected);
            assert!(
                !changed.passed && changed.findings.len() == 1,
                "{:?}",
                changed.findings
            );
        }
        for (name, expected) in [(ATTACKS[0].name, (2, 0)), (DENIAL_OF_SERVICE_ATTACKS[0], (0, 2))] {
            let mut changed = report();
            changed.attacks.push(attack(name, 2));
            let changed = changed.conclude();
            assert_eq!((changed.false_accepts, changed.false_rejects), expected);
            assert_eq!(changed.attack_attempts, 9);
            assert!(!changed.passed);
        }
        let mut unproven = report();
        unproven.attacks.push(AttackOutcome::inconclusive(
            "x",
            &AttackError::ControlFailed("broken"),
        ));
        let unproven = unproven.conclude();
        assert!(!unproven.passed && unproven.inconclusive_attacks == 1);
    }

    #[test]
    fn a_distribution_ends_at_one() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 1_000_000, 3).unwrap();
        for value in [10_000, 20_000, 20_000, 400_000] {
            histogram.record(value).unwrap();
        }
        let pass = LatencyPass::new(DataPlaneKind::Host, &histogram);
        let shares: Vec<f64> = pass.cdf.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [0.25, 0.75, 1.0]);
        assert_eq!(pass.devices, 4);
        assert!((pass.latency_us.p50 - 20.0).abs() < 0.1);
    }
}
