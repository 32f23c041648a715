//! Bounds, atomic replacement, and the privacy of secret files. The tests of the registry's keys cover the reasons
//! for which a file is unsafe.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use linewarden_files::{
    CounterError, PrivateFileError, check_regular, create_private, next_count, read_bounded, read_private,
    read_text_bounded, replace, replace_private,
};

#[test]
fn no_more_is_read_than_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, b"12345").unwrap();
    assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
    let error = read_bounded(&path, 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    assert!(error.to_string().contains("4 bytes"), "{error}");
    // Kernel files report a size of 0.
    assert_eq!(fs::metadata("/proc/version").unwrap().len(), 0);
    assert!(!read_bounded("/proc/version", 1 << 16).unwrap().is_empty());
    fs::write(&path, [0xff]).unwrap();
    assert_eq!(
        read_text_bounded(&path, 9).unwrap_err().kind(),
        ErrorKind::InvalidData
    );
}

/// Opening a FIFO without a writer would block: the test would hang.
#[test]
fn only_regular_files_are_read_and_nothing_is_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let directory = tempfile::tempdir().unwrap();
    let path_of = |name: &str| directory.path().join(name);
    fs::write(path_of("f"), b"12345").unwrap();
    std::os::unix::fs::symlink("f", path_of("link")).unwrap();
    for name in ["f", "link"] {
        assert_eq!(read_bounded(path_of(name), 5).unwrap(), b"12345");
        check_regular(path_of(name)).unwrap();
    }
    mknodat(CWD, path_of("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path_of("socket")).unwrap();
    std::os::unix::fs::symlink("fifo", path_of("link to a FIFO")).unwrap();
    for (path, kind) in [
        (path_of("fifo"), "a FIFO"),
        (path_of("link to a FIFO"), "a FIFO"),
        (path_of("socket"), "a socket"),
        (directory.path().to_owned(), "a directory"),
        ("/dev/zero".into(), "a character device"),
    ] {
        let problem = format!("it is {kind}, not a regular file");
        for error in [
            read_bounded(&path, 5).unwrap_err(),
            check_regular(&path).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
            assert_eq!(error.to_string(), problem, "{}", path.display());
        }
        let error = read_private(&path, 5).unwrap_err().to_string();
        assert!(error.starts_with(&problem), "{error}");
    }
    std::os::unix::fs::symlink("loop", path_of("loop")).unwrap();
    let loop_error = read_bounded(path_of("loop"), 5).unwrap_err();
    assert!(loop_error.to_string().contains("symbolic links"), "{loop_error}");
}

#[test]
fn a_secret_is_private_whatever_was_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    replace(&path, b"public").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    replace_private(&path, b"secret").unwrap();
    assert_eq!(*read_private(&path, 64).unwrap(), b"secret");
}

#[test]
fn a_replaced_file_has_the_old_content_or_the_new_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    for content in ["first", "second"] {
        replace(&path, content.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    // A directory cannot be replaced by a file.
    let occupied = directory.path().join("d");
    fs::create_dir(&occupied).unwrap();
    replace(&occupied, b"x").unwrap_err();
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        2,
        "no draft file remains"
    );
    assert!(replace(Path::new("/nonexistent/f"), b"x").is_err());
}

#[test]
fn a_secret_is_readable_by_its_owner_only_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    create_private(&path, b"secret").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(*read_private(&path, 64).unwrap(), b"secret");
    assert!(matches!(
        read_private(&path, 5),
        Err(PrivateFileError::Io(error)) if error.kind() == ErrorKind::FileTooLarge
    ));
    assert_eq!(*read_private(&path, 6).unwrap(), b"secret");
    let error = create_private(&path, b"other").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(*read_private(&path, 64).unwrap(), b"secret");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(
        read_private(&path, 64),
        Err(PrivateFileError::Unsafe { .. })
    ));
}

#[test]
fn a_count_continues_and_a_damaged_count_is_refused_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("boot-count");
    for expected in 1..=3 {
        assert_eq!(next_count(&path).unwrap(), expected);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let damaged = text.replace('3', "2");
    std::fs::write(&path, &damaged).unwrap();
    let error = next_count(&path).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
    std::fs::write(&path, [0xff]).unwrap();
    assert!(matches!(next_count(&path), Err(CounterError::Damaged(_))));
    std::fs::write(&path, text).unwrap();
    assert_eq!(next_count(&path).unwrap(), 4);
    assert!(next_count(&directory.path().join("missing/boot-count")).is_err());
}

#[test]
fn simultaneous_starts_get_different_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("boot-count");
    let mut counts: Vec<u64> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..25).map(|_| next_count(&path).unwrap()).collect::<Vec<_>>()))
            .collect();
        starting
            .into_iter()
            .flat_map(|start| start.join().unwrap())
            .collect()
    });
    counts.sort_unstable();
    assert_eq!(counts, (1..=200).collect::<Vec<_>>());
}

/// Any user may lock a readable file.
#[test]
fn a_lock_on_the_directory_does_not_block_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let locked_directory = fs::File::open(directory.path()).unwrap();
    locked_directory.lock().unwrap();
    assert_eq!(next_count(&directory.path().join("boot-count")).unwrap(), 1);
    let lock = fs::metadata(directory.path().join("boot-count.lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o777, 0o600);
}
