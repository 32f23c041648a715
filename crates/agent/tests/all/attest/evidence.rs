//! Content and frequency of the evidence that the agent sends to the controller.

use linewarden_agent::AgentEvent;
use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::verdict::Verdict;
use linewarden_tpm::Protection;
use linewarden_tpm::enroll::from_json;
use linewarden_tpm::evidence::Evidence;

use crate::attest::site::{DeviceDirectory, RunningAgent, Site, TagKey, h, period_start, round, state};

fn count_accepted_without_quote(reports: &[AgentEvent]) -> usize {
    let is_accepted =
        |report: &&AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { quote: false, .. });
    reports.iter().filter(is_accepted).count()
}

#[test]
fn evidence_is_sent_once_per_configuration_in_several_chunks() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let mut options = directory.options();
    options.send_log = true;
    // With 40 more files, the evidence needs several chunks.
    for n in 0..40 {
        let name = format!("{n:0>40}");
        directory.write(&name, "");
        options.scope.files.push(directory.file(&name));
    }
    let port = options.port;
    let mut agent = RunningAgent::start(&site, options.clone());
    site.serve(&mut agent, |site, _| site.sessions > 0);
    let prove = |site: &mut Site, agent: &mut RunningAgent, period: u64, number: u32| {
        site.expect(period_start(period), h(&options));
        let verdict = site.verdict(agent, round(period, number), TagKey::Session, port);
        assert_eq!(verdict, Verdict::ProofOk);
    };
    prove(&mut site, &mut agent, 5, 1);
    let is_accepted = |report: &AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { period: 5, .. });
    site.serve(&mut agent, |_, agent| agent.has(is_accepted));
    assert!(site.chunk_count > 3, "{} chunks", site.chunk_count);
    let evidence: Evidence = from_json(&site.documents[0]).unwrap();
    assert_eq!((evidence.period, evidence.protection), (5, Protection::Software));
    assert_eq!((evidence.event_log, evidence.quote), (None, None));
    let sent_configuration = Configuration::decode(&evidence.configuration).unwrap();
    assert_eq!(sent_configuration, options.scope.measure().unwrap().configuration);
    // The configuration does not change in the next period: the agent sends no evidence, even after a restart.
    prove(&mut site, &mut agent, 6, 2);
    assert_eq!(count_accepted_without_quote(&agent.end()), 1);
    assert_eq!(state(&options.state)["accepted"], h(&options).to_string());
    let sessions = site.sessions;
    let mut agent = RunningAgent::start(&site, options.clone());
    site.serve(&mut agent, |site, _| site.sessions > sessions);
    prove(&mut site, &mut agent, 7, 3);
    directory.write("sensord", "other");
    prove(&mut site, &mut agent, 8, 4);
    let is_accepted = |report: &AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { period: 8, .. });
    site.serve(&mut agent, |_, agent| agent.has(is_accepted));
    assert_eq!(count_accepted_without_quote(&agent.end()), 1);
    assert_eq!(site.documents.len(), 2);
}
