//! `linewarden-switch run` over TLS, and `linewarden-switch evidence` as its client.

use serde_json::Value;

use super::{compiled, expect_failure};
use crate::support::capture::capture;
use crate::support::{Namespace, authority, key_file};

#[test]
fn evidence_requires_a_client_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let namespace = Namespace::require();
    namespace.run(directory_path, "ip link set dev lo up");
    namespace.run(directory_path, "ip link add name h0 type veth peer name p0");
    namespace.run(directory_path, "ip link set dev h0 up");
    namespace.run(directory_path, "ip link set dev p0 up");
    authority(
        directory_path,
        "ca",
        &[("switch", "switch.example"), ("me", "controller")],
    );
    authority(directory_path, "other", &[("unknown", "controller")]);
    let arguments = format!(
        "linewarden-switch run --output json {} -i 0@p0 --grpc-server-addr 127.0.0.1:0 --switch-id 9 --boot-count boots \
         --grpc-server-ssl --grpc-server-cert switch.crt --grpc-server-key switch.key \
         --grpc-server-cacert ca.crt --grpc-server-with-client-auth",
        compiled("router").display()
    );
    let switch = namespace.start(directory_path, &arguments);
    let server_line = switch.wait_for("server", |line| line["p4runtime"].is_string());
    assert_eq!(server_line["tls"], "mutual");
    let address = server_line["p4runtime"].as_str().unwrap();
    let request = |arguments: &str| {
        namespace.start(
            directory_path,
            &format!("linewarden-switch evidence show --output json --grpc-addr {address} {arguments}"),
        )
    };
    let credentials = "--ca ca.crt --domain switch.example --cert me.crt --key-file me.key";
    let evidence: Value = request(credentials).wait_for_success().last().unwrap().clone();
    assert_eq!(evidence["switch_id"], 9);
    for (arguments, cause) in [
        ("", "use --ca"),
        ("--ca ca.crt --domain switch.example", "use --cert and --key-file"),
        (
            "--ca ca.crt --cert me.crt --key-file me.key",
            "not valid for name",
        ),
        (
            "--ca other.crt --domain switch.example --cert me.crt --key-file me.key",
            "UnknownIssuer",
        ),
        (
            "--ca ca.crt --domain switch.example --cert unknown.crt --key-file unknown.key",
            "be of another CA",
        ),
    ] {
        let command_line = format!("linewarden-switch evidence show --grpc-addr {address} {arguments}");
        let errors = namespace
            .inside()
            .run(|| expect_failure(directory_path, &command_line, 1))
            .unwrap();
        assert!(errors.contains(cause), "{arguments}: {errors}");
    }
    switch.terminate();
}

#[test]
fn invalid_tls_options_and_files_are_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    authority(
        directory_path,
        "ca",
        &[("switch", "127.0.0.1"), ("other", "127.0.0.1")],
    );
    let switch_key = std::fs::read_to_string(directory_path.join("switch.key")).unwrap();
    key_file(directory_path, "open", &switch_key, 0o644);
    std::fs::write(directory_path.join("p0_in.pcap"), capture(&[])).unwrap();
    for (arguments, code, cause) in [
        ("cert switch.crt", 2, "--grpc-server-key"),
        ("key switch.key", 2, "--grpc-server-cert"),
        ("cacert ca.crt", 2, "--grpc-server-cert"),
        ("ssl", 2, "--grpc-server-cert"),
        (
            "cert switch.crt --grpc-server-key switch.key --grpc-server-with-client-auth",
            2,
            "--grpc-server-cacert",
        ),
        (
            "cert switch.crt --grpc-server-key other.key",
            2,
            "other.key: does not match the first certificate",
        ),
        ("cert switch.crt --grpc-server-key open.key", 4, "open.key"),
        (
            "cert switch.key --grpc-server-key switch.key",
            2,
            "switch.key: no certificate",
        ),
        ("cert none.crt --grpc-server-key switch.key", 2, "none.crt: "),
        ("cert switch.crt --grpc-server-key none.key", 2, "none.key: "),
        (
            "cert switch.crt --grpc-server-key switch.key --grpc-server-cacert switch.key",
            2,
            "switch.key: no certificate",
        ),
    ] {
        let arguments =
            format!("linewarden-switch run --no-p4 --use-files 0 -i 0@p0 --grpc-server-{arguments}");
        let errors = expect_failure(directory_path, &arguments, code);
        assert!(errors.contains(cause), "{arguments}: {errors}");
    }
    for (arguments, code, cause) in [
        ("--domain switch.example", 2, "--ca"),
        ("--cert switch.crt --key-file switch.key", 2, "--ca"),
        ("--ca ca.crt --cert switch.crt", 2, "--key-file"),
        ("--ca ca.crt --key-file switch.key", 2, "--cert"),
        ("--ca switch.key", 2, "switch.key: no certificate"),
        ("--ca ca.crt --cert switch.crt --key-file open.key", 4, "open.key"),
        (
            "--ca ca.crt --cert switch.crt --key-file other.key",
            2,
            "other.key: does not match",
        ),
        ("--ca ca.crt --domain ..", 2, "--domain: "),
    ] {
        let errors = expect_failure(
            directory_path,
            &format!("linewarden-switch evidence show {arguments}"),
            code,
        );
        assert!(errors.contains(cause), "{arguments}: {errors}");
    }
}
