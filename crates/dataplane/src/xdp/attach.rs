//! Attaches the program to interfaces, and keeps it attached.
//!
//! A link that is not pinned is detached when the process ends for any reason; then every frame passes. A link that is
//! *pinned* in the BPF filesystem stays attached. The program then runs without new freshness values: after 16 s it stops
//! answering, and a gate forwards only live sessions until they expire. Behind a sealed gate, answering during these 16 s
//! needs a pinned table of programs ([`programs`]). The next gateway takes over the link and replaces the program
//! without a gap.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapHandle, ProgramMut};

use super::{libbpf_log, pin_security, programs};
use crate::error::DataPlaneError;
use crate::ethtool::{self, Offload};
use crate::links::{self, Interface};

/// The program on an interface.
#[derive(Debug)]
pub(crate) struct Attachment {
    link: Link,
    /// Lock on the pin directory, held until this value is dropped.
    _lock: Option<File>,
}

impl Attachment {
    /// Attaches the program until this process ends.
    pub(crate) fn for_process_lifetime(
        program: &ProgramMut<'_>,
        ifindex: u32,
    ) -> Result<Self, DataPlaneError> {
        Ok(Self {
            link: attach(program, ifindex)?,
            _lock: None,
        })
    }

    /// Attaches the program, and the table of programs that it calls, beyond the end of this process; see
    /// [`super::Xdp::attach_pinned`].
    pub(super) fn pinned(
        program: &ProgramMut<'_>,
        program_table: Option<MapHandle>,
        ifindex: u32,
        directory: &Path,
        gateway_id: u32,
    ) -> Result<Self, DataPlaneError> {
        let pin_directory = PinDirectory::of(directory, ifindex)?;
        let lock = pin_directory.lock(Purpose::Pin)?;
        // The table is pinned before the program that calls into it is attached. Once the program is attached, the
        // table of the earlier process is no longer used.
        let table = program_table
            .map(|mut table| programs::pin(&mut table, &pin_directory.path))
            .transpose()?;
        let link = pin_directory
            .attach_or_take_over(program, ifindex)
            .inspect_err(|_| {
                // The program on the interface keeps using its own table. The next gateway removes the new table.
                let _ = table.as_ref().map(std::fs::remove_file);
            })?;
        programs::remove_others(table.as_deref(), &pin_directory.path)?;
        pin_directory.record_owner(Some(gateway_id))?;
        Ok(Self {
            link,
            _lock: Some(lock),
        })
    }

    /// Whether the interface no longer exists.
    pub(super) fn is_detached(&self) -> bool {
        interface_of(&self.link) == Some(0)
    }
}

/// Releases an interface whose gateway has ended but whose gate is still pinned below `directory`. Returns `false` if
/// no gate is pinned.
///
/// # Errors
/// A running gateway uses the interface; errors of the system.
pub fn remove_gate(directory: &Path, ifindex: u32) -> Result<bool, DataPlaneError> {
    let pin_directory = PinDirectory::of(directory, ifindex)?;
    if !pin_directory.path.exists() {
        return Ok(false);
    }
    let directory = pin_directory.lock(Purpose::Remove)?;
    libbpf_log::redirect();
    // The directory is accessed by descriptor: another user may own the directory and could replace it in the meantime.
    let opened_directory = PinDirectory {
        path: pin_security::path_of(&directory),
    };
    let pin = opened_directory.link();
    let was_pinned = is_pin(&pin);
    // Without the detach, the kernel would remove the program some time after the removal of the pin.
    if let Err(error) = detach(&pin, ifindex) {
        tracing::debug!(%error, interface = ifindex, "xdp: no program to detach");
    }
    let has_program = links::links()
        .map_err(|error| DataPlaneError::kernel("listing the interfaces", error))?
        .iter()
        .any(|link| link.ifindex == ifindex && link.has_program);
    // A remaining program belongs to another gateway, and so does the egress filter.
    if !has_program {
        super::seal::remove(ifindex);
    }
    let removal = match pin.symlink_metadata() {
        Ok(_) => std::fs::remove_file(&pin),
        Err(_) => Ok(()),
    };
    programs::remove_others(None, &opened_directory.path)?;
    opened_directory.record_owner(None)?;
    removal
        .and_then(|()| std::fs::remove_dir(&pin_directory.path))
        .map_err(|error| {
            DataPlaneError::kernel(format!("removing {}", pin_directory.path.display()), error)
        })?;
    Ok(was_pinned)
}

/// Whether the path is a pin and not a symbolic link.
fn is_pin(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|status| status.is_file())
}

/// Detaches the program that a pin holds, if it is attached to this interface. A symbolic link is not followed.
fn detach(pin: &Path, ifindex: u32) -> io::Result<()> {
    let pin_file = pin_security::open_pin(pin)?;
    let link = Link::open(pin_security::path_of(&pin_file)).map_err(io::Error::other)?;
    if interface_of(&link) != Some(ifindex) {
        return Err(io::Error::other("the pin belongs to another interface"));
    }
    link.detach().map_err(io::Error::other)
}

fn namespace() -> Result<u64, DataPlaneError> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/thread-self/ns/net")
        .map(|status| status.ino())
        .map_err(|error| DataPlaneError::kernel("finding the network namespace", error))
}

/// Interval between two attempts to lock a pin directory: longer than a check holds the lock.
const LOCK_RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);
const LOCK_RETRIES_MAX: usize = 10;

/// A gate that stays closed on an interface although its gateway has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedGate {
    /// Path of the pin directory.
    pub pin_path: PathBuf,
    /// The gateway that pinned the gate; `None` if the directory does not record the gateway.
    pub gateway_id: Option<u32>,
}

/// The gate that an ended gateway left below `directory` on this interface of the calling thread's network namespace.
/// `None` also if the gateway still runs.
#[must_use]
pub fn orphaned_gate(directory: &Path, ifindex: u32) -> Option<OrphanedGate> {
    let pin_directory = PinDirectory::of(directory, ifindex).ok()?;
    let is_orphaned = is_pin(&pin_directory.link()) && pin_directory.try_lock(Purpose::Remove).is_ok();
    is_orphaned.then(|| OrphanedGate {
        gateway_id: pin_directory.owner(),
        pin_path: pin_directory.path,
    })
}

/// Interfaces of the calling thread's network namespace, other than `interfaces`, whose gate an ended gateway left below
/// `directory`. The program of such a gate uses memory that another process may have adopted, and no process monitors
/// these interfaces.
#[must_use]
pub fn orphaned_interfaces(directory: &Path, interfaces: &[u32]) -> Vec<u32> {
    let Ok(prefix) = namespace().map(|namespace| format!("net-{namespace}-if-")) else {
        return Vec::new();
    };
    let orphaned = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let ifindex: u32 = name.strip_prefix(&prefix)?.parse().ok()?;
        let pin_directory = PinDirectory { path: entry.path() };
        let is_orphaned = !interfaces.contains(&ifindex)
            && is_pin(&pin_directory.link())
            && pin_directory.try_lock(Purpose::Remove).is_ok();
        is_orphaned.then_some(ifindex)
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.flatten().filter_map(orphaned).collect()
}

/// The purpose for which a pin directory is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To adopt the directory's pins and to add pins: only this user may have write access.
    Pin,
    /// To inspect the directory or to remove its pins. No pin is executed, so owner and mode of the directory do not
    /// matter: a gate that cannot be removed would stay closed.
    Remove,
}

/// The pin directory of an interface in the BPF filesystem. The name of the directory contains the number of the
/// network namespace, because two namespaces may have interfaces with the same index.
pub(super) struct PinDirectory {
    pub(super) path: PathBuf,
}

impl PinDirectory {
    fn of(directory: &Path, ifindex: u32) -> Result<Self, DataPlaneError> {
        let namespace = namespace()?;
        Ok(Self {
            path: resolve_symlinks(directory).join(format!("net-{namespace}-if-{ifindex}")),
        })
    }

    /// The pin directory of a gateway's maps.
    pub(super) fn of_memory(directory: &Path, gateway_id: u32) -> Result<Self, DataPlaneError> {
        let namespace = namespace()?;
        Ok(Self {
            path: resolve_symlinks(directory).join(format!("net-{namespace}-gateway-{gateway_id}")),
        })
    }

    fn link(&self) -> PathBuf {
        self.path.join("link")
    }

    /// The BPF filesystem has no regular files, so the owner is recorded as the name of a directory.
    const OWNER_PREFIX: &str = "of-gateway-";

    /// The gateway that most recently attached its program.
    fn owner(&self) -> Option<u32> {
        let entries = std::fs::read_dir(&self.path).ok()?;
        let number = |name: &str| name.strip_prefix(Self::OWNER_PREFIX)?.parse().ok();
        entries
            .flatten()
            .find_map(|entry| number(entry.file_name().to_str()?))
    }

    /// Records the owner of the program. `None` removes the record.
    fn record_owner(&self, gateway_id: Option<u32>) -> Result<(), DataPlaneError> {
        let error = |error| {
            DataPlaneError::kernel(
                format!("recording the owner of the gate in {}", self.path.display()),
                error,
            )
        };
        let previous = self.owner();
        if previous == gateway_id {
            return Ok(());
        }
        let owner_path = |owner: u32| self.path.join(format!("{}{owner}", Self::OWNER_PREFIX));
        if let Some(previous) = previous {
            std::fs::remove_dir(owner_path(previous)).map_err(error)?;
        }
        match gateway_id {
            Some(owner) => std::fs::create_dir(owner_path(owner)).map_err(error),
            None => Ok(()),
        }
    }

    /// As [`PinDirectory::try_lock`], but retries, because another process may hold the lock for a short check.
    pub(super) fn lock(&self, purpose: Purpose) -> Result<File, DataPlaneError> {
        for _ in 0..LOCK_RETRIES_MAX {
            if let Ok(lock) = self.try_lock(purpose) {
                return Ok(lock);
            }
            std::thread::sleep(LOCK_RETRY_INTERVAL);
        }
        self.try_lock(purpose)
    }

    /// Creates and locks the directory. The lock excludes other gateways until the file is closed.
    fn try_lock(&self, purpose: Purpose) -> Result<File, DataPlaneError> {
        let operation = || format!("pinning the program in {}", self.path.display());
        let to_error = |error: io::Error| {
            let hint = "mount a BPF filesystem there with `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`, or set when_gone = \"open\"";
            DataPlaneError::kernel(operation(), format!("{error}; {hint}"))
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(to_error)?;
        let directory = pin_security::open_directory(&self.path).map_err(to_error)?;
        if !pin_security::is_on_bpf_filesystem(&directory).map_err(to_error)? {
            // If this fails, an empty directory remains.
            std::fs::remove_dir(&self.path).ok();
            return Err(to_error(io::ErrorKind::Unsupported.into()));
        }
        if purpose == Purpose::Pin {
            pin_security::check(&directory, &self.path)
                .map_err(|error| DataPlaneError::kernel(operation(), error))?;
        }
        match directory.try_lock() {
            Ok(()) => Ok(directory),
            Err(TryLockError::WouldBlock) => Err(DataPlaneError::kernel(
                operation(),
                "another gateway uses this directory",
            )),
            Err(TryLockError::Error(error)) => Err(to_error(error)),
        }
    }

    /// Attaches the program to the interface. Replaces the program of an earlier gateway if there is one.
    fn attach_or_take_over(&self, program: &ProgramMut<'_>, ifindex: u32) -> Result<Link, DataPlaneError> {
        if let Some(link) = self.take_over(program, ifindex)? {
            return Ok(link);
        }
        let mut link = attach(program, ifindex)?;
        let pin = self.link();
        link.pin(&pin)
            .map_err(|error| DataPlaneError::kernel(format!("pinning {}", pin.display()), error))?;
        Ok(link)
    }

    /// The link of an earlier gateway, updated to this program. `None`: no earlier gateway left a link to this interface.
    fn take_over(&self, program: &ProgramMut<'_>, ifindex: u32) -> Result<Option<Link>, DataPlaneError> {
        let pin = self.link();
        if !pin.exists() {
            return Ok(None);
        }
        let error = |error| DataPlaneError::kernel(format!("taking over {}", pin.display()), error);
        let mut link = Link::open(&pin).map_err(error)?;
        if interface_of(&link) == Some(ifindex) {
            disable_vlan_stripping(ifindex);
            link.update_prog(program).map_err(error)?;
            return Ok(Some(link));
        }
        // The interface was removed, and another interface has its index now.
        std::fs::remove_file(&pin).map_err(|error| {
            DataPlaneError::kernel(
                format!("removing the link of a removed interface, {}", pin.display()),
                error,
            )
        })?;
        Ok(None)
    }
}

/// The canonical path of the directory, if it exists, so that symbolic links are resolved only one time.
fn resolve_symlinks(directory: &Path) -> PathBuf {
    directory.canonicalize().unwrap_or_else(|_| directory.to_owned())
}

/// If the interface strips VLAN tags, tagged frames look untagged: the gate would confuse senders with the same MAC
/// address in different VLANs, and a reply would lack its tag.
fn disable_vlan_stripping(ifindex: u32) {
    let Some(name) = ethtool::name_of(ifindex) else {
        return;
    };
    // An interface without the offload strips no tags.
    if !ethtool::is_on(&name, Offload::ReceiveVlan).unwrap_or(false) {
        return;
    }
    match ethtool::set(&name, Offload::ReceiveVlan, false) {
        Ok(()) => tracing::info!(
            interface = name,
            "xdp: disabled rxvlan so that the program sees VLAN tags"
        ),
        Err(error) => {
            tracing::warn!(%error, action = "use no VLANs on this interface", "xdp: disabling rxvlan failed; the gate sees no VLAN tags")
        }
    }
}

fn attach(program: &ProgramMut<'_>, ifindex: u32) -> Result<Link, DataPlaneError> {
    disable_vlan_stripping(ifindex);
    let index = i32::try_from(ifindex)
        .map_err(|error| DataPlaneError::kernel(format!("interface index {ifindex}"), error))?;
    let result = program.attach_xdp(index);
    let link = result.map_err(|error| DataPlaneError::kernel(attach_failure(ifindex), error))?;
    warn_of_hidden_headers(ifindex);
    Ok(link)
}

/// Drivers that put frames of a large MTU entirely into fragments by default, so that the program sees no header. The
/// kernel attaches the program nevertheless.
const HEADER_SPLIT_DRIVERS: [&str; 1] = ["mlx5_core"];

fn warn_of_hidden_headers(ifindex: u32) {
    let name = ethtool::display_name(ifindex);
    let splits_headers = |driver: String| HEADER_SPLIT_DRIVERS.contains(&driver.as_str());
    if has_large_frames(&[ifindex]) && ethtool::driver(&name).is_ok_and(splits_headers) {
        tracing::warn!(
            interface = name,
            action = format!("ethtool --set-priv-flags {name} rx_striding_rq off"),
            "xdp: the driver may deliver frames without headers in the first buffer; such frames count as drop_truncated"
        );
    }
}

/// Describes a failed attachment of a program. Names the reason if the state of the interface shows it.
fn attach_failure(ifindex: u32) -> String {
    let name = ethtool::display_name(ifindex);
    let interfaces = links::links().unwrap_or_default();
    let link = interfaces.into_iter().find(|link| link.ifindex == ifindex);
    match link {
        Some(Interface {
            has_program: true, ..
        }) => format!(
            "attaching to interface {name} failed, it already has an XDP program (of a running gateway, or of an ended \
             one whose gate is pinned in another pin_directory: remove the gate with `linewarden-gateway remove-gate` and the \
             configuration of that gateway)"
        ),
        Some(Interface { mtu, .. }) if mtu > ONE_BUFFER_MTU => format!(
            "attaching to interface {name} failed: with MTU {mtu}, its driver ({}) supports this XDP program only if \
             a frame fits one buffer (a sealed gate and in-band evidence need the whole packet in \
             one buffer); set the MTU to {PAGE_MTU} or less with `ip link set dev {name} mtu {PAGE_MTU}`",
            ethtool::driver(&name).unwrap_or_else(|_| "unknown".to_owned())
        ),
        _ => format!("attaching to interface {name}"),
    }
}

/// Up to this MTU every driver holds a frame in one buffer.
const ONE_BUFFER_MTU: u32 = 2000;
/// The largest MTU at which a frame with two VLAN tags fits a page in addition to what XDP and the kernel need there.
const PAGE_MTU: u32 = 3498;

/// Whether one of these interfaces, of the calling thread's network namespace, has such a large MTU that drivers
/// deliver frames in fragments, see [`Config::fragments`](crate::Config::fragments).
#[must_use]
pub fn has_large_frames(interfaces: &[u32]) -> bool {
    let all_links = links::links().unwrap_or_default();
    let is_large = |link: &Interface| {
        link.is_ethernet && link.mtu > ONE_BUFFER_MTU && interfaces.contains(&link.ifindex)
    };
    all_links.iter().any(is_large)
}

/// Index of the interface to which a link is attached; 0 if the interface no longer exists. `None` if the kernel does not
/// report the index.
fn interface_of(link: &Link) -> Option<u32> {
    match link.info().ok()?.info {
        LinkTypeInfo::Xdp(xdp) => Some(xdp.ifindex),
        _ => None,
    }
}
