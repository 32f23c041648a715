//! The system calls with which SQLite writes, redirected to a [`Disk`](super::Disk).
//!
//! SQLite's `unix` VFS allows replacing its system calls, except `fsync`. The linker takes `fsync` from this file for
//! the whole test program. Calls for files that are not on a simulated disk go to the kernel.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};

use libsqlite3_sys::{sqlite3_syscall_ptr, sqlite3_vfs_find};

use super::{Disk, Drive, OpenFile};

/// Descriptors on simulated disks.
static OPEN_FILES: Mutex<BTreeMap<c_int, (Arc<Drive>, OpenFile)>> = Mutex::new(BTreeMap::new());

fn find(descriptor: c_int) -> Option<(Arc<Drive>, OpenFile)> {
    let open = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    open.get(&descriptor).cloned()
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library gives each thread a valid place for its error number.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Redirects SQLite's writes to this module.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the name ends with a zero byte; SQLite never frees its VFS objects.
        let unix = unsafe { sqlite3_vfs_find(c"unix".as_ptr()) };
        // SAFETY: as above, and no thread writes to the VFS object.
        let set_call = unsafe { unix.as_ref() }
            .and_then(|unix| unix.xSetSystemCall)
            .unwrap();
        let exchange = |name: &CStr, call: *const ()| {
            // SAFETY: SQLite calls each function with the type that the function has in this file.
            let call: sqlite3_syscall_ptr = unsafe { std::mem::transmute(call) };
            // SAFETY: `unix` is a file system that SQLite gave out; no connection is open yet.
            assert_eq!(unsafe { set_call(unix, name.as_ptr(), call) }, 0, "{name:?}");
        };
        exchange(c"open", open as *const ());
        exchange(c"close", close as *const ());
        exchange(c"write", write as *const ());
        exchange(c"pwrite", pwrite as *const ());
        exchange(c"pwrite64", pwrite as *const ());
        exchange(c"ftruncate", ftruncate as *const ());
        exchange(c"unlink", unlink as *const ());
        exchange(c"openDirectory", open_directory as *const ());
    });
}

/// Returns the disk of a path, and the file name.
///
/// # Safety
/// `path` points to a string that ends in a zero byte.
unsafe fn locate(path: *const c_char) -> Option<(Arc<Drive>, Vec<u8>)> {
    // SAFETY: guaranteed by the caller.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let drive = Disk::of(path.parent()?)?;
    Some((drive, path.file_name()?.as_bytes().to_vec()))
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: SQLite gives a string that ends in a zero byte.
    let location = unsafe { locate(path) };
    // Shared-memory files need not survive a power loss.
    let location = location.filter(|(_, name)| !name.ends_with(b"-shm"));
    if let Some((drive, name)) = &location
        && let Err(errno) = drive.may_open(name, flags & libc::O_CREAT != 0)
    {
        return fail(errno);
    }
    // SAFETY: as above.
    let descriptor = unsafe { libc::open(path, flags, mode) };
    if descriptor >= 0
        && let Some((drive, name)) = location
    {
        let open_file = drive.open_file(name);
        let mut open = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(descriptor, (drive, open_file));
    }
    descriptor
}

unsafe extern "C" fn open_directory(path: *const c_char, out: *mut c_int) -> c_int {
    let mut directory = std::path::PathBuf::new();
    // SAFETY: SQLite gives the path of a file in the directory; the path ends in a zero byte.
    if let Some(parent) = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())).parent() {
        directory.push(parent);
    }
    let Ok(name) = std::ffi::CString::new(directory.as_os_str().as_bytes()) else {
        return libsqlite3_sys::SQLITE_CANTOPEN;
    };
    // SAFETY: the name ends in a zero byte.
    let descriptor = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    // SAFETY: SQLite gives a valid place for the descriptor.
    unsafe { *out = descriptor };
    if descriptor < 0 {
        return libsqlite3_sys::SQLITE_CANTOPEN;
    }
    if let Some(drive) = Disk::of(&directory) {
        let mut open = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(descriptor, (drive, OpenFile::Directory));
    }
    libsqlite3_sys::SQLITE_OK
}

extern "C" fn close(descriptor: c_int) -> c_int {
    OPEN_FILES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&descriptor);
    // SAFETY: the call touches no memory; SQLite closes only descriptors that it has opened.
    unsafe { libc::close(descriptor) }
}

unsafe extern "C" fn write(descriptor: c_int, bytes: *const c_void, length: usize) -> isize {
    // SAFETY: reads a descriptor's state; touches no memory.
    let offset = unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) };
    // SAFETY: SQLite's buffer has that length.
    let allowed = unsafe { allowed(descriptor, bytes, length, offset) };
    match allowed {
        // SAFETY: as above; the new length is not greater than the buffer's length.
        Ok(length) => unsafe { libc::write(descriptor, bytes, length) },
        Err(errno) => fail(errno) as isize,
    }
}

unsafe extern "C" fn pwrite(descriptor: c_int, bytes: *const c_void, length: usize, offset: i64) -> isize {
    // SAFETY: SQLite's buffer has that length.
    let allowed = unsafe { allowed(descriptor, bytes, length, offset) };
    match allowed {
        // SAFETY: as above; the new length is not greater than the buffer's length.
        Ok(length) => unsafe { libc::pwrite(descriptor, bytes, length, offset) },
        Err(errno) => fail(errno) as isize,
    }
}

/// Returns how many bytes the disk accepts, or the error number with which the call fails.
///
/// # Safety
/// `bytes` points to `length` bytes.
unsafe fn allowed(
    descriptor: c_int,
    bytes: *const c_void,
    length: usize,
    offset: i64,
) -> Result<usize, c_int> {
    let Some((drive, OpenFile::File(file))) = find(descriptor) else {
        return Ok(length);
    };
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    drive.write(file, u64::try_from(offset).map_err(|_| libc::EINVAL)?, bytes)
}

extern "C" fn ftruncate(descriptor: c_int, length: i64) -> c_int {
    if let Some((drive, OpenFile::File(file))) = find(descriptor)
        && let Err(errno) = drive.truncate(file, u64::try_from(length).unwrap_or_default())
    {
        return fail(errno);
    }
    // SAFETY: the call touches no memory.
    unsafe { libc::ftruncate(descriptor, length) }
}

unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: SQLite gives a string that ends in a zero byte.
    if let Some((drive, name)) = unsafe { locate(path) }
        && let Err(errno) = drive.unlink(&name)
    {
        return fail(errno);
    }
    // SAFETY: as above.
    unsafe { libc::unlink(path) }
}

/// Replaces the function of the C library.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    match find(descriptor) {
        // Simulated disks need no real sync.
        Some((drive, open_file)) => drive.sync(open_file).map_or_else(fail, |()| 0),
        // SAFETY: the call touches no memory.
        None => unsafe { libc::syscall(libc::SYS_fsync, descriptor) as c_int },
    }
}
