//! Who is not let in, who is not believed, and that it is said whose fault it is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rcgen::{CertificateParams, Issuer, KeyPair};

use crate::office::Office;

#[test]
fn who_is_nobody_or_too_small_is_told_so() {
    let office = Office::new();
    office.token("nobody", "lw_0000000000000000");
    let said = office.as_user("nobody", "device list").refused(3);
    assert!(said.contains("knows no user by this token"), "{said}");
    let said = office
        .as_user("vic", "device revoke d1 --reason stolen")
        .refused(2);
    assert!(said.contains("is not enrolled"), "{said}");
    let said = office
        .as_user("vic", "gateway enter 1 --name a --reason new")
        .refused(3);
    assert!(
        said.contains("may not do that") && said.contains("admin"),
        "{said}"
    );
    let said = office.as_user("olga", "audit").refused(3);
    assert!(said.contains("needs the role admin"), "{said}");
    // A secret that others may read is none.
    fs::set_permissions(office.path("vic.token"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = office.as_user("vic", "device list").refused(4);
    assert!(said.contains("vic.token"), "{said}");
    let said = office.run(&format!("device list {}", office.server())).refused(2);
    assert!(said.contains("as whom?"), "{said}");
    fs::write(office.path("empty.token"), "\n").unwrap();
    fs::set_permissions(office.path("empty.token"), fs::Permissions::from_mode(0o600)).unwrap();
    let said = office.as_user("empty", "device list").refused(2);
    assert!(said.contains("holds no token"), "{said}");
}

#[test]
fn the_environment_says_the_same_as_flags() {
    let office = Office::new();
    let mut command = office.command("device list --json");
    command
        .env("LINEWARDEN_SERVER", format!("https://127.0.0.1:{}", office.port))
        .env("LINEWARDEN_SERVER_CA", "pki/ca.pem")
        .env("LINEWARDEN_TOKEN_FILE", "vic.token");
    assert!(command.output().unwrap().status.success());
    // What is named counts before it.
    let mut command = office.command("user list --json --config controller.toml");
    command.env("LINEWARDEN_SERVER", "https://127.0.0.1:1");
    let listed = command.output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 3);
}

/// A certificate of the office's CA, or of none, made as the test wants it.
fn certificate(office: &Office, out: &str, ca: &str, change: impl FnOnce(&mut CertificateParams)) {
    let read = |name: &str| fs::read_to_string(office.path(name)).unwrap();
    let key = KeyPair::from_pem(&read(&format!("{ca}/ca.key"))).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read(&format!("{ca}/ca.pem")), key).unwrap();
    let mut parameters = CertificateParams::default();
    parameters.use_authority_key_identifier_extension = true;
    change(&mut parameters);
    let key = KeyPair::generate().unwrap();
    let made = parameters.signed_by(&key, &issuer).unwrap();
    for (end, text) in [("pem", made.pem()), ("key", key.serialize_pem())] {
        let path = office.path(&format!("{out}.{end}"));
        let _ = fs::remove_file(&path);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn is_over(parameters: &mut CertificateParams) {
    parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
}

#[test]
fn certificates_let_in_whom_they_name_while_they_are_good() {
    let office = Office::new();
    office
        .run("user add build --role operator --certificate --config controller.toml")
        .ok();
    office
        .run("certificate user --ca pki --name build --out build")
        .ok();
    let by = |cert: &str| {
        let way = format!("--client-cert {cert}.pem --client-key {cert}.key --patience 0");
        office.run(&format!("device list --json {} {way}", office.server()))
    };
    by("build").ok();
    office
        .run("certificate user --ca pki --name stranger --out stranger")
        .ok();
    let said = by("stranger").refused(3);
    assert!(said.contains("knows no user"), "{said}");
    let uri = |name: &str| {
        let uri = format!("urn:linewarden:user:{name}").try_into().unwrap();
        vec![rcgen::SanType::URI(uri)]
    };
    certificate(&office, "over", "pki", |parameters| {
        parameters.subject_alt_names = uri("build");
        is_over(parameters);
    });
    let said = by("over").refused(3);
    assert!(
        said.contains("does not take the certificate") && said.contains("expired"),
        "{said}"
    );
    office.run("certificate ca --out other").ok();
    office
        .run("certificate user --ca other --name build --out foreign")
        .ok();
    let said = by("foreign").refused(3);
    assert!(said.contains("does not take the certificate"), "{said}");
    let said = office
        .run(&format!(
            "device list {} --client-cert build.pem --client-key over.key",
            office.server()
        ))
        .refused(2);
    assert!(said.contains("over.key"), "{said}");
}

#[test]
fn a_controller_that_is_another_one_or_none_is_not_believed() {
    let mut office = Office::new();
    office.run("certificate ca --out other").ok();
    let at = |server: &str, ca: &str| {
        office.run(&format!(
            "device list --server {server} --server-ca {ca} --token-file vic.token --patience 0"
        ))
    };
    let here = format!("https://127.0.0.1:{}", office.port);
    let said = at(&here, "other/ca.pem").refused(1);
    assert!(
        said.contains("is not believed") && said.contains("of no CA"),
        "{said}"
    );
    let said = at(&format!("https://localhost:{}", office.port), "pki/ca.pem").refused(1);
    assert!(said.contains("for another name"), "{said}");
    let said = at("https://127.0.0.1:9", "pki/ca.pem").refused(1);
    assert!(said.contains("no controller answers"), "{said}");
    let said = at(&format!("http://127.0.0.1:{}", office.port), "pki/ca.pem").refused(2);
    assert!(said.contains("only https://"), "{said}");
    let said = at(&here, "vic.token").refused(2);
    assert!(said.contains("vic.token: holds no certificate"), "{said}");

    let name = || vec![rcgen::SanType::IpAddress("127.0.0.1".parse().unwrap())];
    certificate(&office, "ctl", "pki", |parameters| {
        parameters.subject_alt_names = name();
        is_over(parameters);
    });
    // Whoever looks before the start hears it as well.
    let said = office.run("check --machine controller.toml").refused(2);
    assert!(
        said.contains("controller.toml:5:1: tls.cert") && said.contains("expired"),
        "{said}"
    );
    office.kill();
    office.start();
    let said = office.as_user("vic", "device list").refused(1);
    assert!(said.contains("its certificate has expired"), "{said}");
}

/// All that a controller's configuration names is looked at.
#[test]
fn a_controllers_configuration_is_checked_with_what_it_names() {
    let office = Office::new();
    office.run("check --machine controller.toml").ok();
    let text = fs::read_to_string(office.path("controller.toml")).unwrap();
    let check = |from: &str, to: &str, more: &str| {
        assert!(text.contains(from));
        fs::write(office.path("changed.toml"), text.replace(from, to)).unwrap();
        office.run(&format!("check {more} changed.toml"))
    };
    let said = check("master_key_file = \"master.key\"", "", "").refused(2);
    assert!(said.contains("registry.master_key_file: is missing"), "{said}");
    let said = check(
        "[tls]",
        "[rows]\nmark_block = 0\n[log]\nlevel = \"loud\"\n[tls]",
        "",
    )
    .refused(2);
    assert!(
        said.contains("rows.mark_block") && said.contains("log.level"),
        "{said}"
    );
    let said = check("ctl.key", "none.key", "--machine").refused(2);
    assert!(
        said.contains("changed.toml:6:1: tls.key") && said.contains("none.key"),
        "{said}"
    );
    let said = check("pki/ca.pem", "master.key", "--machine").refused(2);
    assert!(
        said.contains("tls.ca") && said.contains("holds no certificate"),
        "{said}"
    );
    let said = check("fleet.registry", "none.registry", "--machine").refused(2);
    assert!(
        said.contains("registry.path") && said.contains("no registry"),
        "{said}"
    );
    fs::copy(office.path("master.key"), office.path("open.key")).unwrap();
    fs::set_permissions(office.path("open.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = check("master.key", "open.key", "--machine").refused(4);
    assert!(said.contains("registry.master_key_file"), "{said}");
    // Of a database that is away it is said of the database.
    let away = "postgres://u:secret@127.0.0.1:9/fleet";
    let said = check("fleet.registry", away, "--machine").refused(1);
    assert!(
        said.contains("database") && !said.contains("secret") && !said.contains("SQLite"),
        "{said}"
    );
}
