//! XDP program that redirects the frames of an interface to a socket: six instructions, assembled here so that no eBPF
//! compiler is needed.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// `struct bpf_insn` (linux/bpf.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset,
        immediate,
    }
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS)`: redirects a frame to the socket of the queue. Without a
/// socket the frame passes to the network stack.
fn redirect(map: &OwnedFd) -> [Instruction; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_MAP: u8 = 0x18;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 0x12, RX_QUEUE_INDEX, 0),
        instruction(LOAD_MAP, 0x11, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0),
        instruction(MOVE, 0x03, 0, XDP_PASS),
        instruction(CALL, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0),
    ]
}

/// Used members of `union bpf_attr` for `BPF_MAP_CREATE`; the kernel treats the other members as zero.
#[repr(C)]
struct CreateMap {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// Attribute of `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct UpdateMap {
    map: RawFd,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Attribute of `BPF_PROG_LOAD`.
#[repr(C)]
struct LoadProgram {
    program_type: u32,
    instructions: u32,
    first_instruction: u64,
    license: u64,
}

/// Attribute of `BPF_LINK_CREATE`.
#[repr(C)]
struct CreateLink {
    program: RawFd,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `T` is the attribute of the command, and its pointers are valid.
unsafe fn bpf<T>(command: libc::c_int, attribute: &T) -> io::Result<libc::c_int> {
    // SAFETY: the attribute lives through the call and its size is passed; the caller guarantees the other requirements.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attribute),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(result).map_err(io::Error::other)
}

/// Same as [`bpf`] for commands that return a descriptor.
///
/// # Safety
/// The requirements of [`bpf`], and the command returns a descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attribute: &T) -> io::Result<OwnedFd> {
    // SAFETY: guaranteed by the caller.
    let fd = unsafe { bpf(command, attribute) }?;
    // SAFETY: the kernel has just created this descriptor, so there is no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Loads the program for a socket on queue 0 and attaches it to an interface. The program is detached when the returned
/// descriptor is closed or the process ends.
///
/// # Errors
/// The failed step and the error of the kernel; `EBUSY` if another program is attached.
pub(super) fn attach(interface: u32, socket: &OwnedFd) -> Result<OwnedFd, (&'static str, io::Error)> {
    const MAP_CREATE: libc::c_int = 0;
    const MAP_UPDATE: libc::c_int = 2;
    const PROGRAM_LOAD: libc::c_int = 5;
    const LINK_CREATE: libc::c_int = 28;
    const XSKMAP: u32 = 17;
    const PROGRAM_XDP: u32 = 6;
    const ATTACH_XDP: u32 = 37;
    let map = CreateMap {
        map_type: XSKMAP,
        key_bytes: 4,
        value_bytes: 4,
        entries: 1,
        flags: 0,
    };
    // SAFETY: the command's attribute, without pointers.
    let map = unsafe { bpf_fd(MAP_CREATE, &map) }.map_err(|error| ("create an XSKMAP", error))?;
    let (key, value) = (0u32, socket.as_raw_fd());
    let update = UpdateMap {
        map: map.as_raw_fd(),
        padding: 0,
        key: (&raw const key) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    // SAFETY: the command's attribute; key and value have the map's sizes and live through the call.
    unsafe { bpf(MAP_UPDATE, &update) }.map_err(|error| ("put the socket into the XSKMAP", error))?;
    let instructions = redirect(&map);
    let program = LoadProgram {
        program_type: PROGRAM_XDP,
        instructions: instructions.len() as u32,
        first_instruction: instructions.as_ptr() as u64,
        license: c"Dual BSD/GPL".as_ptr() as u64,
    };
    // SAFETY: the command's attribute; the instructions and the string live through the call.
    let program =
        unsafe { bpf_fd(PROGRAM_LOAD, &program) }.map_err(|error| ("load the XDP program", error))?;
    let link = CreateLink {
        program: program.as_raw_fd(),
        interface,
        attach_type: ATTACH_XDP,
        flags: 0,
    };
    // SAFETY: the command's attribute, without pointers.
    unsafe { bpf_fd(LINK_CREATE, &link) }.map_err(|error| ("attach the XDP program", error))
}
