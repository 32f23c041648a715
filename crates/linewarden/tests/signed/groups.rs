//! Multicast groups, between two network namespaces.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::keygen;
use crate::support::{Namespace, PROGRAM, Process, TEST_TIMEOUT};

/// A sender and its receivers, each in a network namespace, with two links between them.
fn two_links(at: &Path) -> Option<[Namespace; 2]> {
    let (Some(here), Some(there)) = (Namespace::new(), Namespace::new()) else {
        println!("SKIPPED: needs root, and ip of iproute2");
        return None;
    };
    for link in [0, 1] {
        add_link(at, link, [&here, &there]);
    }
    Some([here, there])
}

/// Links `v` and this number in one namespace with `w` in the other, and waits until both have their addresses.
fn add_link(at: &Path, link: u8, [here, there]: [&Namespace; 2]) {
    let peer = there.pid();
    here.run(
        at,
        &format!("ip link add v{link} type veth peer name w{link} netns {peer}"),
    );
    let ends = [(here, format!("v{link}"), 1), (there, format!("w{link}"), 2)];
    for (namespace, name, host) in &ends {
        // An IPv6 address is usable at once, without duplicate address detection.
        namespace.run(at, &format!("sysctl -q net.ipv6.conf.{name}.accept_dad=0"));
        namespace.run(at, &format!("ip address add 10.7.{link}.{host}/24 dev {name}"));
        namespace.run(at, &format!("ip link set {name} up"));
    }
    // The kernel notices some time later that both ends are up, and IPv6 waits for that.
    let begin = std::time::Instant::now();
    for (namespace, name, _) in &ends {
        let arguments = format!("ip -6 -o address show dev {name} scope link -tentative");
        while namespace.run(at, &arguments).is_empty() {
            assert!(begin.elapsed() < TEST_TIMEOUT, "{name} has no address");
            std::thread::yield_now();
        }
    }
}

/// A receiver that has joined a group on an interface.
fn member(there: &Namespace, at: &Path, group: &str, interface: &str) -> Process {
    let arguments =
        format!("signed receive --listen {group} --interface {interface} --signers plain/signer.json --json");
    let receiver = there.start(at, &arguments);
    receiver.event("listening");
    receiver
}

/// A group's messages reach only the receivers that have joined it on the link of their arrival.
#[test]
fn a_group_reaches_its_receivers() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let Some([here, there]) = two_links(at) else {
        return;
    };
    keygen(at, "--scheme ed25519 --out plain");
    for group in ["239.0.0.7:7447", "[ff02::7447]:7447", "[ff15::7447]:7447"] {
        let join = |interface: &str| member(&there, at, group, interface);
        let receivers = [join("w0"), join("w0"), join("w1")];
        for (interface, text) in [("v0", "by the first"), ("v1", "by the second")] {
            std::fs::write(at.join("line"), format!("{text}\n")).unwrap();
            let arguments = format!(
                "{} signed send plain --to {group} --interface {interface} --input line",
                PROGRAM
            );
            here.run(at, &arguments);
        }
        for (receiver, text) in receivers
            .iter()
            .zip(["by the first", "by the first", "by the second"])
        {
            assert_eq!(receiver.event("verified")["payload"]["text"], text, "{group}");
        }
        for receiver in receivers {
            let ended = receiver.terminate();
            let counts = ended.iter().find(|line| line["event"] == "ended").unwrap();
            assert_eq!(counts["received"], 1, "{group}: {counts}");
        }
    }
}

/// The kernel drops group memberships when an interface is removed.
#[test]
fn a_group_is_joined_again_when_its_interface_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let Some([here, there]) = two_links(at) else {
        return;
    };
    keygen(at, "--scheme ed25519 --out plain");
    let groups = ["239.0.0.7:7447", "[ff02::7447]:7447"];
    let receivers = groups.map(|group| member(&there, at, group, "w0"));
    there.run(at, "ip link delete w0");
    for receiver in &receivers {
        let removal = receiver.event("interface");
        assert!(
            removal["joined"] == false && removal["problem"].is_string(),
            "{removal}"
        );
    }
    add_link(at, 0, [&here, &there]);
    for (receiver, group) in receivers.into_iter().zip(groups) {
        receiver.wait_for("its interface again", |line| {
            line["event"] == "interface" && line["joined"] == true
        });
        std::fs::write(at.join("line"), format!("{group}\n")).unwrap();
        let arguments = format!(
            "{} signed send plain --to {group} --interface v0 --input line",
            PROGRAM
        );
        here.run(at, &arguments);
        assert_eq!(receiver.event("verified")["payload"]["text"], group);
        receiver.terminate();
    }
}

/// Messages that a sender's network rejects are lost and counted; later ones are sent after its recovery.
#[test]
fn a_sender_continues_after_its_interface_returns() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let Some([here, there]) = two_links(at) else {
        return;
    };
    keygen(at, "--scheme ed25519 --out plain");
    std::fs::write(at.join("line"), "on\n").unwrap();
    for group in ["239.0.0.7:7447", "[ff02::7447]:7447"] {
        let receiver = member(&there, at, group, "w0");
        let arguments = format!(
            "signed send plain --to {group} --interface v0 --input line --count 1000000 --rate 50 --json"
        );
        let sender = here.start(at, &arguments);
        receiver.event("verified");
        here.run(at, "ip link delete v0");
        let unsent = || {
            sender.signal(Signal::SIGUSR1);
            sender.event("counters")["unsent"].as_u64().unwrap()
        };
        while unsent() == 0 {}
        add_link(at, 0, [&here, &there]);
        receiver.wait_for("its interface again", |line| {
            line["event"] == "interface" && line["joined"] == true
        });
        receiver.event("verified");
        sender.signal(Signal::SIGINT);
        let (code, events) = sender.wait_for_exit();
        let ended = events.iter().find(|line| line["event"] == "ended").unwrap();
        assert_eq!(code, 1, "{ended}");
        assert!(
            ended["unsent"].as_u64() > Some(0) && ended["sent"].as_u64() > Some(1),
            "{ended}"
        );
        receiver.terminate();
    }
}
