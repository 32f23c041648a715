//! Evidence that the agent sends to the controller, and how often.

use linewarden_agent::AgentEvent;
use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::verdict::Verdict;
use linewarden_tpm::Protection;
use linewarden_tpm::enroll::from_json;
use linewarden_tpm::evidence::Evidence;

use crate::site::{Home, Running, Site, Tag, h, round, start, state};

fn taken(reports: &[AgentEvent]) -> usize {
    let is_taken = |report: &&AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { quote: false, .. });
    reports.iter().filter(is_taken).count()
}

#[test]
fn evidence_is_sent_once_in_several_pieces() {
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let mut options = home.options();
    options.send_log = true;
    // Several chunks.
    for n in 0..40 {
        let name = format!("{n:0>40}");
        home.write(&name, "");
        options.scope.files.push(home.file(&name));
    }
    let port = options.port;
    let mut agent = Running::start(&site, options.clone());
    site.serve(&mut agent, |site, _| site.sessions > 0);
    let prove = |site: &mut Site, agent: &mut Running, period: u64, number: u32| {
        site.expect(start(period), h(&options));
        let verdict = site.verdict(agent, round(period, number), Tag::Session, port);
        assert_eq!(verdict, Verdict::ProofOk);
    };
    prove(&mut site, &mut agent, 5, 1);
    let is_taken = |report: &AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { period: 5, .. });
    site.serve(&mut agent, |_, agent| agent.has(is_taken));
    assert!(site.pieces > 3, "{} pieces", site.pieces);
    let evidence: Evidence = from_json(&site.documents[0]).unwrap();
    assert_eq!((evidence.period, evidence.protection), (5, Protection::Software));
    assert_eq!((evidence.event_log, evidence.quote), (None, None));
    let sent_configuration = Configuration::decode(&evidence.configuration).unwrap();
    assert_eq!(sent_configuration, options.scope.measure().unwrap().configuration);
    // In the next period nothing has changed, also for a restarted agent.
    prove(&mut site, &mut agent, 6, 2);
    assert_eq!(taken(&agent.end()), 1);
    assert_eq!(state(&options.state)["accepted"], h(&options).to_string());
    let sessions = site.sessions;
    let mut agent = Running::start(&site, options.clone());
    site.serve(&mut agent, |site, _| site.sessions > sessions);
    prove(&mut site, &mut agent, 7, 3);
    home.write("sensord", "other");
    prove(&mut site, &mut agent, 8, 4);
    let is_taken = |report: &AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { period: 8, .. });
    site.serve(&mut agent, |_, agent| agent.has(is_taken));
    assert_eq!(taken(&agent.end()), 1);
    assert_eq!(site.documents.len(), 2);
}
