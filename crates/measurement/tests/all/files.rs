//! Sets of files: contents of entries, limits, and files that change while they are read.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use linewarden_harness::{skip, skip_part};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::files::{
    ContentHash, FileEntry, FilePath, FilesError, Limits, LinkTarget, Mode, measure,
};
use rustix::fs::{FileType, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use tempfile::TempDir;

fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

fn mode(bits: u16) -> Mode {
    Mode::new(bits).unwrap()
}

fn file(bits: u16, content: &[u8]) -> FileEntry {
    let content = HashAlgorithm::Sha256.digest(&[content]);
    FileEntry::File {
        mode: mode(bits),
        content: ContentHash(content.as_bytes().try_into().unwrap()),
    }
}

fn link(target: &str) -> FileEntry {
    FileEntry::Link {
        target: LinkTarget::new(target).unwrap(),
    }
}

/// A small tree in place of a device's root.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.file("etc/a.conf", b"a", 0o644);
        tree.file("etc/d/b.conf", b"b", 0o600);
        tree.file("usr/bin/tool", b"tool", 0o4755);
        tree
    }

    /// The path of a file of the tree in the file system of the test.
    fn host_path(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }

    fn file(&self, path: &str, content: &[u8], bits: u32) {
        let path = self.host_path(path);
        for directory in path
            .parent()
            .unwrap()
            .ancestors()
            .take_while(|directory| *directory != self.0.path())
        {
            fs::create_dir_all(directory).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
    }

    fn measure(&self, paths: &[&str]) -> Result<BTreeMap<FilePath, FileEntry>, FilesError> {
        self.measure_within(paths, Limits::default())
    }

    fn measure_within(
        &self,
        paths: &[&str],
        limits: Limits,
    ) -> Result<BTreeMap<FilePath, FileEntry>, FilesError> {
        let paths: Vec<_> = paths.iter().map(|text| path(text)).collect();
        measure(self.0.path(), &paths, limits)
    }
}

#[test]
fn directories_are_measured_with_all_their_entries() {
    let tree = Tree::new();
    fs::create_dir(tree.host_path("etc/empty")).unwrap();
    fs::set_permissions(tree.host_path("etc/empty"), Permissions::from_mode(0o1777)).unwrap();
    let expected = BTreeMap::from([
        (path("/etc"), FileEntry::Directory { mode: mode(0o755) }),
        (path("/etc/a.conf"), file(0o644, b"a")),
        (path("/etc/d"), FileEntry::Directory { mode: mode(0o755) }),
        (path("/etc/d/b.conf"), file(0o600, b"b")),
        (path("/etc/empty"), FileEntry::Directory { mode: mode(0o1777) }),
        (path("/usr/bin/tool"), file(0o4755, b"tool")),
    ]);
    assert_eq!(tree.measure(&["/etc", "/usr/bin/tool"]).unwrap(), expected);
    // Order and duplicates in the list have no effect.
    assert_eq!(
        tree.measure(&["/usr/bin/tool", "/etc/d", "/etc/a.conf", "/etc", "/etc"])
            .unwrap(),
        expected
    );
}

#[test]
fn owners_and_times_are_not_measured() {
    let (tree, other_tree) = (Tree::new(), Tree::new());
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options()
        .write(true)
        .open(other_tree.host_path("etc/a.conf"))
        .unwrap()
        .set_modified(epoch)
        .unwrap();
    if std::os::unix::fs::chown(other_tree.host_path("etc/a.conf"), Some(12345), None).is_err() {
        skip_part!("changing the owner requires root");
    }
    assert_eq!(
        tree.measure(&["/etc"]).unwrap(),
        other_tree.measure(&["/etc"]).unwrap()
    );
}

#[test]
fn absent_paths_are_measured_as_absent() {
    let tree = Tree::new();
    let measured = tree
        .measure(&["/etc/none", "/none/at/all", "/etc/a.conf/below"])
        .unwrap();
    assert_eq!(measured.values().collect::<Vec<_>>(), [&FileEntry::Absent; 3]);
}

#[test]
fn links_are_measured_by_their_text() {
    let tree = Tree::new();
    symlink("a.conf", tree.host_path("etc/link")).unwrap();
    symlink("nowhere", tree.host_path("etc/dangling")).unwrap();
    symlink("/usr/bin", tree.host_path("bin")).unwrap();
    symlink("../../../..", tree.host_path("up")).unwrap();
    let measured = tree
        .measure(&[
            "/etc/link",
            "/etc/dangling",
            "/bin",
            "/bin/tool",
            "/up/etc/a.conf",
        ])
        .unwrap();
    assert_eq!(measured[&path("/etc/link")], link("a.conf"));
    assert_eq!(measured[&path("/etc/dangling")], link("nowhere"));
    assert_eq!(measured[&path("/bin")], link("/usr/bin"));
    // Links before the last component are followed, and never lead outside the root.
    assert_eq!(measured[&path("/bin/tool")], file(0o4755, b"tool"));
    assert_eq!(measured[&path("/up/etc/a.conf")], file(0o644, b"a"));
    assert_eq!(measured.len(), 5);
    symlink("loop", tree.host_path("loop")).unwrap();
    assert_eq!(tree.measure(&["/loop"]).unwrap()[&path("/loop")], link("loop"));
    assert!(matches!(tree.measure(&["/loop/x"]), Err(FilesError::Io { .. })));
}

/// Opens the path with the kernel's resolution, within the root of the tree and without links of processes. Returns
/// the file type and the mode, or an error if openat2 is not permitted.
fn open_with_kernel_resolution(tree: &Tree, path: &str) -> Result<(FileType, u32), Errno> {
    let root = fs::File::open(tree.host_path("")).unwrap();
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat2(&root, path, flags, rustix::fs::Mode::empty(), resolve)?;
    let mode = fstat(&file)?.st_mode;
    Ok((FileType::from_raw_mode(mode), mode & 0o7777))
}

#[test]
fn paths_resolve_as_in_the_kernel() {
    let tree = Tree::new();
    // Each file has its own mode, which identifies the target of a path.
    for (n, directory) in ["a", "a/b", "a/b/c", "d", "d/e", "etc", "etc/d", ""]
        .into_iter()
        .enumerate()
    {
        fs::create_dir_all(tree.host_path(directory)).unwrap();
        fs::set_permissions(
            tree.host_path(directory),
            Permissions::from_mode(0o700 + n as u32),
        )
        .unwrap();
    }
    let links = [
        ("a/up", ".."),
        ("a/b/far", "../../../../../../d"),
        ("a/b/c/top", "/"),
        ("a/b/c/around", "/a/../d/./e//"),
        ("d/e/back", "../../a/b/c/around"),
        ("d/chain", "e/back/back"),
        ("d/loop", "loop/x"),
        ("d/none", "/a/none/../b"),
        ("d/file", "/etc/a.conf"),
        ("d/through", "file/x"),
        ("a/b/c/self", "."),
        ("d/many", "../d/../d/../d/../d/e"),
    ];
    for (link, text) in links {
        symlink(text, tree.host_path(link)).unwrap();
    }
    for n in 0..45 {
        symlink(format!("n{}", n + 1), tree.host_path(&format!("n{n}"))).unwrap();
    }
    symlink("d", tree.host_path("n45")).unwrap();
    let suffixes = [
        "",
        "/e",
        "/a.conf",
        "/b",
        "/top",
        "/file",
        "/around/back",
        "/etc/a.conf",
        "/chain/back",
        "/x/y",
    ];
    let prefixes = links.iter().map(|(link, _)| format!("/{link}"));
    let prefixes: Vec<String> = prefixes.chain([0, 5, 6, 7].map(|n| format!("/n{n}"))).collect();
    let mut compared_counts = [0; 2];
    for joined in prefixes
        .iter()
        .flat_map(|prefix| suffixes.iter().map(move |suffix| format!("{prefix}{suffix}")))
    {
        let kernel = match open_with_kernel_resolution(&tree, &joined) {
            Err(Errno::NOSYS | Errno::PERM) => skip!("openat2 is not permitted here"),
            kernel => kernel,
        };
        match (tree.measure(&[&joined]), kernel) {
            (Ok(measured), Err(Errno::NOENT | Errno::NOTDIR)) => {
                assert_eq!(measured[&path(&joined)], FileEntry::Absent, "{joined}");
                compared_counts[0] += 1;
            }
            (Ok(measured), Ok((kind, bits))) => {
                match &measured[&path(&joined)] {
                    FileEntry::Link { .. } => assert_eq!(kind, FileType::Symlink, "{joined}"),
                    entry => assert_eq!(
                        entry.mode().map(Mode::get),
                        Some(bits as u16),
                        "{joined}: {entry}"
                    ),
                }
                compared_counts[1] += 1;
            }
            (Err(FilesError::Io { .. }), Err(Errno::LOOP)) => {}
            (measured, kernel) => panic!("{joined}: {measured:?}, the kernel gives {kernel:?}"),
        }
    }
    assert!(
        compared_counts.iter().all(|count| *count > 20),
        "{compared_counts:?}"
    );
}

#[test]
fn links_of_processes_and_of_other_users_are_not_followed() {
    let measure_path = |text: &str| measure(Path::new("/"), &[path(text)], Limits::default());
    // /proc/self is a plain link. A link in the directory of a process has a text that differs from its target.
    assert!(matches!(
        measure_path("/proc/self/exe").unwrap()[&path("/proc/self/exe")],
        FileEntry::Link { .. }
    ));
    for link_path in [
        "/proc/self/root/etc/hostname",
        "/proc/self/cwd/Cargo.toml",
        "/proc/thread-self/fd/0/x",
    ] {
        let error = measure_path(link_path).unwrap_err();
        assert!(
            error.to_string().contains("Too many levels of symbolic links"),
            "{link_path}: {error}"
        );
    }
    let tree = Tree::new();
    let shared = tree.host_path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    symlink("/etc", shared.join("link")).unwrap();
    assert_eq!(tree.measure(&["/shared/link/a.conf"]).unwrap().len(), 1);
    match lchown(shared.join("link"), Some(12_345), None) {
        Err(error) => skip_part!("cannot create a link of another user: {error}"),
        Ok(()) => {
            let error = tree.measure(&["/shared/link/a.conf"]).unwrap_err();
            assert!(error.to_string().contains("Permission denied"), "{error}");
        }
    }
}

#[test]
fn only_regular_files_are_opened() {
    let tree = Tree::new();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.host_path("etc/fifo"),
        FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let _listener = UnixListener::bind(tree.host_path("etc/socket")).unwrap();
    let measured = tree.measure(&["/etc"]).unwrap();
    assert_eq!(
        measured[&path("/etc/fifo")],
        FileEntry::Fifo { mode: mode(0o600) }
    );
    assert!(matches!(measured[&path("/etc/socket")], FileEntry::Socket { .. }));
    let null = measure(Path::new("/"), &[path("/dev/null")], Limits::default()).unwrap();
    assert!(
        matches!(
            null[&path("/dev/null")],
            FileEntry::CharacterDevice { device: (1, 3), .. }
        ),
        "{null:?}"
    );
}

#[test]
fn number_and_size_of_files_are_bounded() {
    let tree = Tree::new();
    let measure_within = |entries_max, bytes_max| {
        tree.measure_within(
            &["/etc", "/usr/bin/tool"],
            Limits {
                entries_max,
                bytes_max,
            },
        )
        .map_err(|error| error.to_string())
    };
    assert!(measure_within(5, 6).is_ok());
    assert!(
        measure_within(4, 6)
            .unwrap_err()
            .starts_with("too many files and directories: the limit of 4 was exceeded at /etc/d/b.conf")
    );
    assert!(
        measure_within(1, 6)
            .unwrap_err()
            .starts_with("too many files and directories")
    );
    assert!(
        measure_within(5, 5)
            .unwrap_err()
            .starts_with("too many bytes: the limit of 5 for all files was exceeded at /usr/bin/tool")
    );
}

#[test]
fn errors_name_the_unreadable_path() {
    // Even root cannot read the memory of a process at address 0.
    let memory = measure(Path::new("/proc/self"), &[path("/mem")], Limits::default()).unwrap_err();
    assert!(
        memory
            .to_string()
            .starts_with("/mem cannot be read: Input/output error"),
        "{memory}"
    );
    let root = measure(Path::new("nowhere/at/all"), &[], Limits::default()).unwrap_err();
    assert!(
        root.to_string()
            .starts_with("root directory nowhere/at/all cannot be opened: No such file"),
        "{root}"
    );
}

#[test]
fn the_error_names_a_file_that_changes_during_each_read() {
    const ATTEMPTS_MAX: usize = 1_000;
    let tree = Tree::new();
    tree.file("busy", b"", 0o600);
    // A sparse file of 64 MiB: the kernel's clock ticks while the file is read.
    let busy = fs::File::options()
        .write(true)
        .open(tree.host_path("busy"))
        .unwrap();
    busy.set_len(64 << 20).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for bits in [0o600, 0o640].into_iter().cycle() {
                busy.set_permissions(Permissions::from_mode(bits)).unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let changed_while_read = (0..ATTEMPTS_MAX).map(|_| tree.measure(&["/busy"])).find(
            |measured| matches!(measured, Err(FilesError::ChangedWhileRead { path }) if *path == self::path("/busy")),
        );
        stop.store(true, Ordering::Relaxed);
        assert!(
            changed_while_read.is_some(),
            "no change was seen in {ATTEMPTS_MAX} attempts"
        );
    });
    // Without further changes, the file can be measured.
    assert!(tree.measure(&["/busy"]).is_ok());
}

#[test]
fn paths_that_are_not_canonical_are_refused() {
    for text in ["/", "/a", "/a/b.c", "/...", "/a b/\u{e9}", "/.a"] {
        assert_eq!(path(text).to_string(), text);
    }
    for text in [
        "", "a", "//", "/a/", "/a//b", "/.", "/a/..", "/a/./b", "/a\0b", "./a",
    ] {
        assert!(FilePath::new(text).is_err(), "{text:?}");
    }
    assert!(FilePath::new([b"/", &[b'x'; 4094][..]].concat()).is_ok());
    assert!(FilePath::new([b"/", &[b'x'; 4095][..]].concat()).is_err());
    // Control characters of terminals and bytes that are not UTF-8 are escaped.
    assert_eq!(
        FilePath::new(*b"/a\x1b[2J\xff\n").unwrap().to_string(),
        "/a\\u{1b}[2J\\xff\\n"
    );
}

#[test]
fn names_that_are_not_utf_8_are_measured() {
    let tree = Tree::new();
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(tree.host_path("etc/d").join(name), b"x").unwrap();
    fs::set_permissions(tree.host_path("etc/d").join(name), Permissions::from_mode(0o644)).unwrap();
    let measured = tree.measure(&["/etc/d"]).unwrap();
    assert_eq!(
        measured[&FilePath::new(*b"/etc/d/\xff\xfe").unwrap()],
        file(0o644, b"x")
    );
}
