//! The content of the packages, without installing them: files, fields, examples, and the confinement of the units.

use std::path::Path;
use std::process::Command;

use linewarden_harness::skip;

use crate::support::{program, run};
use crate::{ROLES, ROOT, build};

#[test]
fn the_packages_contain_the_expected_files() {
    let directory = tempfile::tempdir().unwrap();
    for package in build("0.1.0-1", directory.path()) {
        let file_name = package.file_name().unwrap().to_str().unwrap();
        let (name, _) = file_name.split_once('_').unwrap();
        inspect(&package, name, directory.path());
    }
}

fn run_on_package(program: &str, arguments: &[&str], package: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).arg(package);
    run(command)
}

/// Files of a package, besides the files that all packages have.
fn expected_files(name: &str) -> &'static [&'static str] {
    match name {
        "linewarden" => &[
            "/usr/share/doc/linewarden/operations/README.md",
            "/usr/share/doc/linewarden/examples/linewarden.rules.yml",
            "/usr/share/man/man1/linewarden-registry-create.1.gz",
        ],
        "linewarden-controller" => &[
            "/usr/lib/systemd/system/linewarden-controller.service",
            "/usr/share/doc/linewarden-controller/examples/controller-local.toml",
            "/usr/share/man/man1/linewarden-controller-run.1.gz",
            "/usr/share/man/man5/linewarden-controller.toml.5.gz",
        ],
        "linewarden-gateway" => &[
            "/etc/logrotate.d/linewarden-gateway",
            "/usr/lib/systemd/system/linewarden-gateway.service",
            "/usr/lib/systemd/system/linewarden-controller.service.d/linewarden-gateway.conf",
            "/usr/share/doc/linewarden-gateway/examples/gateway.toml",
            "/usr/share/man/man1/linewarden-gateway-run.1.gz",
            "/usr/share/man/man5/linewarden-gateway.toml.5.gz",
        ],
        "linewarden-agent" => &[
            "/usr/lib/systemd/system/linewarden-agent.service",
            "/usr/share/doc/linewarden-agent/examples/agent.toml",
            "/usr/share/man/man1/linewarden-agent-run.1.gz",
            "/usr/share/man/man5/linewarden-agent.toml.5.gz",
        ],
        "linewarden-switch" => &["/usr/share/man/man1/linewarden-switch-run.1.gz"],
        "linewarden-lab" => &["/usr/share/man/man1/linewarden-lab-demo.1.gz"],
        other => panic!("unexpected package {other}"),
    }
}

/// Performs the relevant checks of lintian.
fn inspect(package: &Path, name: &str, directory_path: &Path) {
    let has_service = ROLES.iter().any(|role| name == format!("linewarden-{role}"));
    let control = run_on_package("dpkg-deb", &["--field"], package);
    let package_field = format!("Package: {name}\n");
    for field in [package_field.as_str(), "Version: 0.1.0-1\n", "Section: net\n"] {
        assert!(control.contains(field), "{control}");
    }
    let depends = control
        .lines()
        .find(|line| line.starts_with("Depends: "))
        .unwrap();
    let libraries: &[_] = match name {
        "linewarden-gateway" => &["libelf1", "zlib1g", "libtss2-esys"],
        "linewarden-agent" => &["libtss2-esys"],
        _ => &[],
    };
    for library in libraries.iter().chain(&["libc6 (>= "]) {
        assert!(depends.contains(library), "{name}: {depends}");
    }
    assert_eq!(depends.contains("adduser"), has_service, "{name}: {depends}");
    let contents = run_on_package("dpkg-deb", &["--contents"], package);
    for line in contents.lines() {
        assert!(line[10..].starts_with(" root/root "), "{line}");
        let mode = &line[1..10];
        assert!(["rwxr-xr-x", "rw-r--r--"].contains(&mode), "{line}");
        let path = line.rsplit(' ').next().unwrap();
        assert!(
            path.starts_with("./usr/")
                || path.starts_with("./etc/")
                || ["./", "./usr/", "./etc/"].contains(&path)
        );
    }
    let common_files = [
        format!("/usr/bin/{name}"),
        format!("/usr/share/doc/{name}/copyright"),
        format!("/usr/share/doc/{name}/changelog.Debian.gz"),
        format!("/usr/share/man/man1/{name}.1.gz"),
        format!("/usr/share/bash-completion/completions/{name}"),
    ];
    let files = common_files.iter().map(String::as_str);
    for file in files.chain(expected_files(name).iter().copied()) {
        assert!(contents.contains(&format!(".{file}\n")), "no {file}:\n{contents}");
    }
    let tree = directory_path.join(name);
    run({
        let mut command = Command::new("dpkg-deb");
        command.arg("--raw-extract").arg(package).arg(&tree);
        command
    });
    run({
        let mut command = Command::new("md5sum");
        command
            .args(["--check", "--quiet", "DEBIAN/md5sums"])
            .current_dir(&tree);
        command
    });
    let conffiles = std::fs::read_to_string(tree.join("DEBIAN/conffiles")).unwrap_or_default();
    let expected_conffiles = match name {
        "linewarden-gateway" => "/etc/logrotate.d/linewarden-gateway\n",
        _ => "",
    };
    assert_eq!(conffiles, expected_conffiles, "{name}");
    for script in ["postinst", "prerm", "postrm"] {
        let path = tree.join("DEBIAN").join(script);
        assert_eq!(path.exists(), has_service, "{name}: {script}");
        if has_service {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains('@'), "{name}: {script}: {text}");
            let mut command = Command::new("sh");
            command.arg("-n").arg(path);
            run(command);
        }
    }
}

#[test]
fn the_examples_are_valid_configurations() {
    let directory = format!("{ROOT}/deploy/examples");
    let mut example_count = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let role = ROLES.iter().find(|role| name.starts_with(**role)).unwrap();
        let mut command = Command::new(program(&format!("linewarden-{role}")));
        command.arg("check").arg(&path);
        assert!(run(command).contains(": valid"), "{}", path.display());
        example_count += 1;
    }
    assert_eq!(example_count, 5);
}

/// Maximum exposure level of each unit by `systemd-analyze security`, from 0 (best) to 10.
/// The level of the controller includes the drop-in for a gateway on the same machine; without the drop-in, the level is 1.2.
const EXPOSURE_MAX: [(&str, f64); 3] = [("controller", 1.6), ("gateway", 2.5), ("agent", 2.0)];

#[test]
fn the_exposure_levels_of_the_units_are_low() {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        skip!("no systemd-analyze");
    }
    for (service, exposure_max) in EXPOSURE_MAX {
        let unit = format!("{ROOT}/deploy/systemd/linewarden-{service}.service");
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", &unit]);
        let text = run(command);
        let overall = text
            .lines()
            .find(|line| line.contains("Overall exposure level"))
            .unwrap();
        println!("{overall}");
        let exposure: f64 = overall
            .rsplit(": ")
            .next()
            .and_then(|exposure| exposure.split(' ').next())
            .unwrap()
            .parse()
            .unwrap();
        assert!(exposure <= exposure_max, "{text}");
    }
}
