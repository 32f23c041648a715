//! Rejected users and servers, and the cause in the error message.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rcgen::{CertificateParams, Issuer, KeyPair};

use super::controller::TestController;

#[test]
fn unknown_users_and_insufficient_roles_are_reported() {
    let controller = TestController::new();
    controller.write_token("eve", "lw_0000000000000000");
    let error = controller.as_user("eve", "device list").refused(3);
    assert!(error.contains("the token or certificate is unknown"), "{error}");
    let error = controller
        .as_user("vic", "device revoke d1 --reason stolen")
        .refused(2);
    assert!(error.contains("is not enrolled"), "{error}");
    let error = controller
        .as_user("vic", "gateway create 1 --name a --reason new")
        .refused(3);
    assert!(
        error.contains("permission denied") && error.contains("admin"),
        "{error}"
    );
    let error = controller.as_user("olga", "audit list").refused(3);
    assert!(error.contains("requires the role admin"), "{error}");
    // A token file that other users can read is rejected.
    fs::set_permissions(controller.path("vic.token"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = controller.as_user("vic", "device list").refused(4);
    assert!(error.contains("vic.token"), "{error}");
    let error = controller
        .run(&format!("linewarden device list {}", controller.server_options()))
        .refused(2);
    assert!(error.contains("no API credential given"), "{error}");
    fs::write(controller.path("empty.token"), "\n").unwrap();
    fs::set_permissions(controller.path("empty.token"), fs::Permissions::from_mode(0o600)).unwrap();
    let error = controller.as_user("empty", "device list").refused(2);
    assert!(error.contains("not a token"), "{error}");
}

#[test]
fn environment_variables_can_replace_options() {
    let controller = TestController::new();
    let mut command = controller.command("linewarden device list --output json");
    command
        .env(
            "LINEWARDEN_SERVER",
            format!("https://127.0.0.1:{}", controller.port),
        )
        .env("LINEWARDEN_SERVER_CA", "pki/ca.pem")
        .env("LINEWARDEN_TOKEN_FILE", "vic.token");
    assert!(command.output().unwrap().status.success());
    // Options override the environment.
    let mut command = controller.command("linewarden user list --output json --config controller.toml");
    command.env("LINEWARDEN_SERVER", "https://127.0.0.1:1");
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 3);
}

/// Writes a certificate and its key. The CA `ca` signs the certificate, and `change` sets its parameters.
fn write_certificate(
    controller: &TestController,
    out: &str,
    ca: &str,
    change: impl FnOnce(&mut CertificateParams),
) {
    let read = |name: &str| fs::read_to_string(controller.path(name)).unwrap();
    let key = KeyPair::from_pem(&read(&format!("{ca}/ca.key"))).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read(&format!("{ca}/ca.pem")), key).unwrap();
    let mut parameters = CertificateParams::default();
    parameters.use_authority_key_identifier_extension = true;
    change(&mut parameters);
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    for (extension, text) in [("pem", certificate.pem()), ("key", key.serialize_pem())] {
        let path = controller.path(&format!("{out}.{extension}"));
        let _ = fs::remove_file(&path);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn expire(parameters: &mut CertificateParams) {
    parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
}

#[test]
fn valid_certificates_authenticate_their_users() {
    let controller = TestController::new();
    controller
        .run("linewarden user create build --role operator --certificate --config controller.toml")
        .ok();
    controller
        .run("linewarden certificate user --ca pki --name build --out build")
        .ok();
    let run_with = |cert: &str| {
        let credentials = format!("--client-cert {cert}.pem --client-key {cert}.key");
        controller.run(&format!(
            "linewarden device list --output json {} {credentials}",
            controller.server_options()
        ))
    };
    run_with("build").ok();
    controller
        .run("linewarden certificate user --ca pki --name unknown --out unknown")
        .ok();
    let error = run_with("unknown").refused(3);
    assert!(error.contains("the token or certificate is unknown"), "{error}");
    let uri = |name: &str| {
        let uri = format!("urn:linewarden:user:{name}").try_into().unwrap();
        vec![rcgen::SanType::URI(uri)]
    };
    write_certificate(&controller, "over", "pki", |parameters| {
        parameters.subject_alt_names = uri("build");
        expire(parameters);
    });
    let error = run_with("over").refused(3);
    assert!(
        error.contains("rejected the client certificate") && error.contains("expired"),
        "{error}"
    );
    controller.run("linewarden certificate ca --out other").ok();
    controller
        .run("linewarden certificate user --ca other --name build --out foreign")
        .ok();
    let error = run_with("foreign").refused(3);
    assert!(error.contains("rejected the client certificate"), "{error}");
    let error = controller
        .run(&format!(
            "linewarden device list {} --client-cert build.pem --client-key over.key",
            controller.server_options()
        ))
        .refused(2);
    assert!(error.contains("over.key"), "{error}");
}

#[test]
fn a_wrong_controller_certificate_is_rejected() {
    let mut controller = TestController::new();
    controller.run("linewarden certificate ca --out other").ok();
    let list_devices = |server: &str, ca: &str| {
        controller.run(&format!(
            "linewarden device list --server {server} --server-ca {ca} --token-file vic.token --retry-for 0"
        ))
    };
    let server = format!("https://127.0.0.1:{}", controller.port);
    let error = list_devices(&server, "other/ca.pem").refused(1);
    assert!(
        error.contains("is not trusted") && error.contains("unknown CA"),
        "{error}"
    );
    let error = list_devices(&format!("https://localhost:{}", controller.port), "pki/ca.pem").refused(1);
    assert!(error.contains("it is for another name"), "{error}");
    let error = list_devices("https://127.0.0.1:9", "pki/ca.pem").refused(1);
    assert!(error.contains("is unreachable"), "{error}");
    let error = list_devices(&format!("http://127.0.0.1:{}", controller.port), "pki/ca.pem").refused(2);
    assert!(error.contains("only https://"), "{error}");
    let error = list_devices(&server, "vic.token").refused(2);
    assert!(error.contains("vic.token: no certificate"), "{error}");

    let name = || vec![rcgen::SanType::IpAddress("127.0.0.1".parse().unwrap())];
    write_certificate(&controller, "ctl", "pki", |parameters| {
        parameters.subject_alt_names = name();
        expire(parameters);
    });
    // `check` also reports the expired certificate.
    let error = controller
        .run("linewarden-controller check --machine controller.toml")
        .refused(2);
    assert!(
        error.contains("controller.toml:5:1: tls.cert") && error.contains("expired"),
        "{error}"
    );
    controller.kill();
    controller.start();
    let error = controller.as_user("vic", "device list").refused(1);
    assert!(error.contains("it has expired"), "{error}");
}

/// All files that a controller's configuration names are checked.
#[test]
fn a_controllers_configuration_is_checked_with_its_files() {
    let controller = TestController::new();
    controller
        .run("linewarden-controller check --machine controller.toml")
        .ok();
    let text = fs::read_to_string(controller.path("controller.toml")).unwrap();
    let check = |from: &str, to: &str, options: &str| {
        assert!(text.contains(from));
        fs::write(controller.path("changed.toml"), text.replace(from, to)).unwrap();
        controller.run(&format!("linewarden-controller check {options} changed.toml"))
    };
    let error = check("master_key_file = \"master.key\"", "", "").refused(2);
    assert!(error.contains("registry.master_key_file: is missing"), "{error}");
    let error = check(
        "[tls]",
        "[rows]\nmark_block = 0\n[log]\nlevel = \"loud\"\n[tls]",
        "",
    )
    .refused(2);
    assert!(
        error.contains("rows.mark_block") && error.contains("log.level"),
        "{error}"
    );
    let error = check("ctl.key", "none.key", "--machine").refused(2);
    assert!(
        error.contains("changed.toml:6:1: tls.key") && error.contains("none.key"),
        "{error}"
    );
    let error = check("pki/ca.pem", "master.key", "--machine").refused(2);
    assert!(
        error.contains("tls.ca") && error.contains("no certificate in PEM"),
        "{error}"
    );
    let error = check("fleet.registry", "none.registry", "--machine").refused(2);
    assert!(
        error.contains("registry.path") && error.contains("no registry"),
        "{error}"
    );
    fs::copy(controller.path("master.key"), controller.path("open.key")).unwrap();
    fs::set_permissions(controller.path("open.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = check("master.key", "open.key", "--machine").refused(4);
    assert!(error.contains("registry.master_key_file"), "{error}");
    // An unavailable database is reported as unavailable.
    let database = "postgres://u:secret@127.0.0.1:9/fleet";
    let error = check("fleet.registry", database, "--machine").refused(1);
    assert!(
        error.contains("database") && !error.contains("secret") && !error.contains("SQLite"),
        "{error}"
    );
}
