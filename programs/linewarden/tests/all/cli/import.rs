//! Rejected imports: no line is stored, the errors name the lines, and the registry's files do not change.

use super::*;

/// Names and contents of the files of the destination registry, except the shared-memory file.
fn registry_files(site: &Site) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(site.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            let is_stored = name.starts_with("other.registry") && !name.ends_with("-shm");
            is_stored.then(|| (name, fs::read(&path).unwrap()))
        })
        .collect();
    files.sort();
    files
}

/// Creates a site with an export of six pool devices, and with a destination registry that has one device. Returns the site
/// and the lines of the export.
fn export_devices() -> (Site, Vec<String>) {
    let site = Site::new();
    site.on_registry("device enroll simulated --count 5 --rows 2 --out devices")
        .ok();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.on_registry("device export fleet.jsonl --export-key export.key")
        .ok();
    site.run("linewarden registry create --registry other.registry --key-file other.key")
        .ok();
    site.run("linewarden device enroll simulated --device e1 --rows 2 --out others --registry other.registry --key-file other.key")
        .ok();
    let text = fs::read_to_string(site.path("fleet.jsonl")).unwrap();
    let lines = text.lines().map(str::to_owned).collect();
    (site, lines)
}

const IMPORT: &str = "linewarden device import altered.jsonl --export-key export.key --registry other.registry --key-file other.key";

#[test]
fn a_rejected_import_changes_nothing_and_names_the_lines() {
    let (site, lines) = export_devices();
    let files_before = registry_files(&site);
    let altered = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = lines.clone();
        change(&mut lines);
        (lines.join("\n") + "\n").into_bytes()
    };
    let edit = |line: usize, from: &str, to: &str| {
        altered(&|lines| {
            assert!(lines[line - 1].contains(from), "{from}");
            lines[line - 1] = lines[line - 1].replacen(from, to, 1);
        })
    };
    let sealed = "\"sealed\":\"";
    let cases: Vec<(Vec<u8>, Vec<&str>)> = vec![
        (Vec::new(), vec!["altered.jsonl, line 1: the file is empty"]),
        (
            altered(&|lines| lines[4] = lines[1].clone()),
            vec!["line 5: field device_id", "already occurs on line 2"],
        ),
        (
            altered(&|lines| {
                lines[4] = lines[1].clone();
                lines[5] = lines[2].clone();
            }),
            vec![
                "error: altered.jsonl, line 5: field device_id",
                "\nerror: altered.jsonl, line 6: field device_id",
            ],
        ),
        (
            altered(&|lines| {
                let offset = lines[3].len() - 12;
                lines[3].replace_range(offset..offset + 2, "");
            }),
            vec!["line 4: field sealed"],
        ),
        (
            edit(3, "\"rows_total\":2", "\"rows_total\":1"),
            vec!["line 3: field sealed"],
        ),
        (edit(3, "\"suite\":1", "\"suite\":7"), vec!["line 3: field suite"]),
        (
            edit(3, "\"mode\":\"pool\"", "\"mode\":\"key\""),
            vec!["line 3: field sealed"],
        ),
        (
            altered(&|lines| {
                let (sealed_of_2, start_of_3) = (
                    lines[1].split(sealed).nth(1).unwrap(),
                    lines[2].split(sealed).next().unwrap(),
                );
                lines[2] = format!("{start_of_3}{sealed}{sealed_of_2}");
            }),
            vec!["line 3: field sealed: does not authenticate"],
        ),
        (edit(3, sealed, "\"sealed\":\"xy"), vec!["line 3: field sealed"]),
        (
            edit(3, "\"suite\":1", "\"suite\":1,\"gateway\":4"),
            vec!["line 3: unknown field `gateway`"],
        ),
        (edit(3, "{", "{\u{0}"), vec!["line 3: "]),
        (
            altered(&|lines| lines.insert(3, String::new())),
            vec!["line 4: the line is empty; remove it"],
        ),
        (
            altered(&|lines| lines[2].truncate(200)),
            vec!["line 3: the line ends after 200 B: it was truncated"],
        ),
        (
            altered(&|lines| lines[2] = lines[2].replacen(':', ";", 1)),
            vec!["line 3: expected `:` (column 13)"],
        ),
        (
            altered(&|lines| {
                for line in [1, 2, 3, 5] {
                    lines[line] = lines[line].replacen("\"suite\":1", "\"suite\":7", 1);
                }
            }),
            vec!["lines 2 to 4, 6: field suite"],
        ),
        (
            altered(&|lines| lines.truncate(4)),
            vec!["line 5: the file ends after 3 of 6 devices"],
        ),
        (lines.join("\n").into_bytes(), vec!["the line has no line feed"]),
        (vec![0; 100_000], vec!["line 1: "]),
        (
            [lines[0].as_bytes(), b"\n", &vec![b'x'; 70 << 20]].concat(),
            vec!["line 2: the line is longer than 67108864 B"],
        ),
    ];
    for (content, expected) in cases {
        fs::write(site.path("altered.jsonl"), content).unwrap();
        let error = site.run(IMPORT).refused(2);
        for part in expected.iter().chain(&[" nothing was imported"]) {
            assert!(error.contains(part), "{part}\n{error}");
        }
        assert!(!error.contains("at line 1"), "{error}");
        assert!(registry_files(&site) == files_before, "{expected:?}");
    }
    // CRLF line ends are accepted.
    fs::write(site.path("altered.jsonl"), lines.join("\r\n") + "\r\n").unwrap();
    site.run(IMPORT).ok();
    // All devices exist already.
    let files_before = registry_files(&site);
    let error = site.run(IMPORT).refused(2);
    assert!(
        error.contains("lines 2 to 7: the device is already enrolled") && error.contains("`--replace`"),
        "{error}"
    );
    assert!(registry_files(&site) == files_before);
    site.run(&format!("{IMPORT} --replace")).ok();
    // A device that is revoked in this registry, but not in the export, is not replaced.
    site.run("linewarden device revoke d1 --registry other.registry --key-file other.key")
        .ok();
    let files_before = registry_files(&site);
    let line = 1 + lines
        .iter()
        .position(|line| line.contains("00000000000000d1"))
        .unwrap();
    for replace in ["", " --replace"] {
        let error = site.run(&format!("{IMPORT}{replace}")).refused(2);
        let expected = format!("line {line}: the device is revoked in this registry permanently");
        assert!(error.contains(&expected), "{error}");
    }
    assert!(registry_files(&site) == files_before);
}

#[test]
fn a_wrong_key_changes_no_file() {
    let (site, _) = export_devices();
    let files_before = registry_files(&site);
    let error = site
        .run("linewarden device import fleet.jsonl --export-key export.key --registry other.registry --key-file master.key")
        .refused(1);
    assert!(error.contains("wrong master key for registry"), "{error}");
    let error = site
        .run(
            "linewarden device import fleet.jsonl --export-key other.key --registry other.registry --key-file other.key",
        )
        .refused(2);
    assert!(
        error.contains("fleet.jsonl, lines 2 to 7: field sealed: does not authenticate"),
        "{error}"
    );
    assert!(registry_files(&site) == files_before);
}
