//! Multicast groups, between two network namespaces.

use std::path::Path;

use nix::sys::signal::Signal;

use super::keygen;
use crate::support::{Namespace, Process, TEST_TIMEOUT};

/// Creates a network namespace for the sender and a network namespace for the receivers, with two links between them.
fn create_namespaces(directory_path: &Path) -> [Namespace; 2] {
    let (sender_namespace, receiver_namespace) = (Namespace::require(), Namespace::require());
    for link in [0, 1] {
        add_link(directory_path, link, [&sender_namespace, &receiver_namespace]);
    }
    [sender_namespace, receiver_namespace]
}

/// Links interface `vN` in the sender's namespace with interface `wN` in the receivers' namespace, where N is `link`. Waits until
/// both interfaces have their addresses.
fn add_link(directory_path: &Path, link: u8, [sender_namespace, receiver_namespace]: [&Namespace; 2]) {
    let peer = receiver_namespace.pid();
    sender_namespace.run(
        directory_path,
        &format!("ip link add v{link} type veth peer name w{link} netns {peer}"),
    );
    let interfaces = [
        (sender_namespace, format!("v{link}"), 1),
        (receiver_namespace, format!("w{link}"), 2),
    ];
    for (namespace, name, host) in &interfaces {
        // Without duplicate address detection, an IPv6 address is usable immediately.
        namespace.run(
            directory_path,
            &format!("sysctl -q net.ipv6.conf.{name}.accept_dad=0"),
        );
        namespace.run(
            directory_path,
            &format!("ip address add 10.7.{link}.{host}/24 dev {name}"),
        );
        namespace.run(directory_path, &format!("ip link set {name} up"));
    }
    // The kernel notices with a delay that both interfaces are up. Until then, IPv6 addresses are tentative.
    let started_at = std::time::Instant::now();
    for (namespace, name, _) in &interfaces {
        let arguments = format!("ip -6 -o address show dev {name} scope link -tentative");
        while namespace.run(directory_path, &arguments).is_empty() {
            assert!(started_at.elapsed() < TEST_TIMEOUT, "{name} has no address");
            std::thread::yield_now();
        }
    }
}

/// Starts a receiver that joins a group on an interface.
fn start_member(
    receiver_namespace: &Namespace,
    directory_path: &Path,
    group: &str,
    interface: &str,
) -> Process {
    let arguments = format!(
        "linewarden signed receive --listen {group} --interface {interface} --signers plain/signer.json --output json"
    );
    let receiver = receiver_namespace.start(directory_path, &arguments);
    receiver.event("listening");
    receiver
}

/// Messages to a group reach only the receivers that have joined this group on the link of the messages.
#[test]
fn a_group_reaches_its_receivers() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let [sender_namespace, receiver_namespace] = create_namespaces(directory_path);
    keygen(directory_path, "--scheme ed25519 --out plain");
    for group in ["239.0.0.7:7447", "[ff02::7447]:7447", "[ff15::7447]:7447"] {
        let join = |interface: &str| start_member(&receiver_namespace, directory_path, group, interface);
        let receivers = [join("w0"), join("w0"), join("w1")];
        for (interface, text) in [("v0", "by the first"), ("v1", "by the second")] {
            std::fs::write(directory_path.join("line"), format!("{text}\n")).unwrap();
            let command_line =
                format!("linewarden signed send plain --to {group} --interface {interface} --input line");
            sender_namespace.run(directory_path, &command_line);
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
    let directory_path = directory.path();
    let [sender_namespace, receiver_namespace] = create_namespaces(directory_path);
    keygen(directory_path, "--scheme ed25519 --out plain");
    let groups = ["239.0.0.7:7447", "[ff02::7447]:7447"];
    let receivers = groups.map(|group| start_member(&receiver_namespace, directory_path, group, "w0"));
    receiver_namespace.run(directory_path, "ip link delete w0");
    for receiver in &receivers {
        let removal = receiver.event("interface");
        assert!(
            removal["joined"] == false && removal["problem"].is_string(),
            "{removal}"
        );
    }
    add_link(directory_path, 0, [&sender_namespace, &receiver_namespace]);
    for (receiver, group) in receivers.into_iter().zip(groups) {
        receiver.wait_for("the restored interface", |line| {
            line["event"] == "interface" && line["joined"] == true
        });
        std::fs::write(directory_path.join("line"), format!("{group}\n")).unwrap();
        let command_line = format!("linewarden signed send plain --to {group} --interface v0 --input line");
        sender_namespace.run(directory_path, &command_line);
        assert_eq!(receiver.event("verified")["payload"]["text"], group);
        receiver.terminate();
    }
}

/// Messages that the sender's network rejects are lost and counted. Later messages are sent after the recovery of the network.
#[test]
fn a_sender_continues_after_its_interface_returns() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let [sender_namespace, receiver_namespace] = create_namespaces(directory_path);
    keygen(directory_path, "--scheme ed25519 --out plain");
    std::fs::write(directory_path.join("line"), "on\n").unwrap();
    for group in ["239.0.0.7:7447", "[ff02::7447]:7447"] {
        let receiver = start_member(&receiver_namespace, directory_path, group, "w0");
        let arguments = format!(
            "linewarden signed send plain --to {group} --interface v0 --input line --count 1000000 --rate 50 --output json"
        );
        let sender = sender_namespace.start(directory_path, &arguments);
        receiver.event("verified");
        sender_namespace.run(directory_path, "ip link delete v0");
        let unsent = || {
            sender.signal(Signal::SIGUSR1);
            sender.event("counters")["unsent"].as_u64().unwrap()
        };
        while unsent() == 0 {}
        add_link(directory_path, 0, [&sender_namespace, &receiver_namespace]);
        receiver.wait_for("the restored interface", |line| {
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
