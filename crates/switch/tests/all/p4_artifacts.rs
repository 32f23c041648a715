//! Checks that the compiled P4 programs match the current sources. Unlike a compilation, this check does not require p4c.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};

const HOW_TO_FIX: &str = "run `make p4` and commit the files that it writes";

fn p4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4")
}

fn read(file: &str) -> Vec<u8> {
    fs::read(p4().join(file)).unwrap_or_else(|error| panic!("p4/{file}: {error}; {HOW_TO_FIX}"))
}

fn text(file: &str) -> String {
    String::from_utf8(read(file)).unwrap()
}

/// A program in the file `p4/programs`: name, source file, and the complete line of that file.
struct Program {
    name: String,
    source: String,
    line: String,
}

fn programs() -> Vec<Program> {
    let list = text("programs");
    let lines = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let programs: Vec<_> = lines
        .map(|line| {
            let mut words = line.split(' ');
            Program {
                name: words.next().unwrap().into(),
                source: words.next().expect("NAME SOURCE OPTIONS").into(),
                line: line.into(),
            }
        })
        .collect();
    assert!(!programs.is_empty());
    programs
}

/// Source file and all files that it includes with quotes, relative to p4/.
fn sources(source: &str) -> BTreeSet<String> {
    let mut sources_found = BTreeSet::new();
    let mut pending = vec![source.to_owned()];
    while let Some(file) = pending.pop() {
        let folder = Path::new(&file).parent().unwrap().to_owned();
        let text = text(&file);
        let included = text
            .lines()
            .filter_map(|line| line.strip_prefix("#include \"")?.split('"').next());
        for name in included {
            let path = without_parent_components(&folder.join(name));
            if !sources_found.contains(&path) {
                pending.push(path);
            }
        }
        sources_found.insert(file);
    }
    sources_found
}

/// Path without `..`.
fn without_parent_components(path: &Path) -> String {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            part => parts.push(part.as_os_str().to_str().unwrap()),
        }
    }
    parts.join("/")
}

fn hash(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[test]
fn compiled_programs_match_sources() {
    for Program { name, source, line } in programs() {
        let sums = text(&format!("compiled/{name}.sources"));
        let recorded: BTreeMap<&str, &str> = sums
            .lines()
            .map(|line| line.split_once("  ").expect("SHA-256, two blanks, FILE"))
            .map(|(sum, file)| (file, sum))
            .collect();
        let mut files = sources(&source);
        files.extend(["json", "p4info.txtpb"].map(|kind| format!("compiled/{name}.{kind}")));
        let mut expected: BTreeMap<String, String> = files
            .into_iter()
            .map(|file| (file.clone(), hash(&read(&file))))
            .collect();
        expected.insert(format!("programs: {name}"), hash(format!("{line}\n").as_bytes()));
        for (file, sum) in &expected {
            assert!(
                recorded.get(file.as_str()) == Some(&sum.as_str()),
                "{name}: {file} has changed since p4/compiled/{name}.json was compiled; {HOW_TO_FIX}"
            );
        }
        let unused: Vec<_> = recorded
            .keys()
            .filter(|file| !expected.contains_key(**file))
            .collect();
        assert!(
            unused.is_empty(),
            "{name}: {unused:?} are no longer sources; {HOW_TO_FIX}"
        );
    }
}

#[test]
fn removed_programs_leave_no_files() {
    let names: BTreeSet<String> = programs().into_iter().map(|program| program.name).collect();
    for entry in fs::read_dir(p4().join("compiled")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let (name, kind) = file.split_once('.').unwrap();
        assert!(
            names.contains(name),
            "p4/compiled/{file}: no such program in p4/programs; remove it"
        );
        assert!(
            ["json", "p4info.txtpb", "sources"].contains(&kind),
            "p4/compiled/{file}"
        );
    }
}

#[test]
fn every_packet_test_belongs_to_a_program() {
    let names: Vec<String> = programs().into_iter().map(|program| program.name).collect();
    let mut tested = BTreeSet::new();
    for entry in fs::read_dir(p4().join("tests")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let program = names.iter().find(|name| file.starts_with(&format!("{name}-")));
        let program = program.unwrap_or_else(|| panic!("p4/tests/{file}: no program has this prefix"));
        let content = text(&format!("tests/{file}"));
        assert!(
            content.starts_with(&format!("# {program}: ")),
            "p4/tests/{file}: the first line names another program"
        );
        tested.insert(program);
    }
    let untested: Vec<_> = names.iter().filter(|name| !tested.contains(name)).collect();
    assert!(untested.is_empty(), "no packet test: {untested:?}");
}

#[test]
fn compiled_programs_contain_no_local_paths() {
    for Program { name, .. } in programs() {
        let json = text(&format!("compiled/{name}.json"));
        assert!(!json.contains("source_info"), "{name}: {HOW_TO_FIX}");
        assert!(!json.contains("\"/"), "{name}: an absolute path; {HOW_TO_FIX}");
    }
}
