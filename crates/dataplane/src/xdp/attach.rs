//! Where the program hangs, and what holds it there.
//!
//! A link alone lets go when the process ends, however it ends, and then every frame passes. A link that is *pinned* in
//! the BPF filesystem stays: the program goes on without anybody to renew its freshness value, so that after 16 s it
//! answers nothing, and a gate lets through only what has a live session, until its lease ends. A pinned table of programs
//! ([`programs`]) goes on answering for these 16 s behind a sealed gate. The next gateway takes the link over, and puts its own
//! program in without a gap.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapHandle, ProgramMut};

use super::{programs, secure};
use crate::DataPlaneError;
use crate::ethtool::{self, Offload};
use crate::links::{self, Interface};

/// The program on an interface.
#[derive(Debug)]
pub(super) struct Attachment {
    link: Link,
    /// Held while a gateway lives.
    _owner: Option<File>,
}

impl Attachment {
    /// Until this process ends.
    pub(super) fn while_alive(program: &ProgramMut<'_>, ifindex: u32) -> Result<Self, DataPlaneError> {
        Ok(Self {
            link: attach(program, ifindex)?,
            _owner: None,
        })
    }

    /// Beyond the end of this process, with the table of the programs that it calls then; see [`super::Xdp::attach_pinned`].
    pub(super) fn pinned(
        program: &ProgramMut<'_>,
        called: Option<MapHandle>,
        ifindex: u32,
        directory: &Path,
        gateway_id: u32,
    ) -> Result<Self, DataPlaneError> {
        let place = Place::of(directory, ifindex)?;
        let owner = place.lock(Purpose::Keep)?;
        // Before the program that calls it; after that one is on the interface, that of the process before is not called any more.
        let table = called
            .map(|mut table| programs::pin(&mut table, &place.path))
            .transpose()?;
        let link = place.hold(program, ifindex).inspect_err(|_| {
            // The program that is on the interface goes on with its own. What stays is removed by the next gateway.
            let _ = table.as_ref().map(std::fs::remove_file);
        })?;
        programs::remove_but(table.as_deref(), &place.path)?;
        place.note_owner(Some(gateway_id))?;
        Ok(Self {
            link,
            _owner: Some(owner),
        })
    }

    /// Whether the interface is gone.
    pub(super) fn is_loose(&self) -> bool {
        interface_of(&self.link) == Some(0)
    }
}

/// Lets go of an interface that a gateway which has ended holds pinned below `directory`; `false`: none does.
///
/// # Errors
/// A gateway still lives on it; the system's.
pub fn release(directory: &Path, ifindex: u32) -> Result<bool, DataPlaneError> {
    let place = Place::of(directory, ifindex)?;
    if !place.path.exists() {
        return Ok(false);
    }
    let directory = place.lock(Purpose::Remove)?;
    super::quiet_libbpf();
    // By the descriptor: the directory may belong to another user, who could put another one into its place meanwhile.
    let opened = Place {
        path: secure::path_of(&directory),
    };
    let pin = opened.link();
    let held = is_pin(&pin);
    // Without it the kernel would take the program off some time after the pin is gone.
    if let Err(error) = detach(&pin, ifindex) {
        tracing::debug!(%error, ifindex, "no program to take off");
    }
    let has_program = links::links()
        .map_err(|error| DataPlaneError::kernel("listing the interfaces", error))?
        .iter()
        .any(|link| link.ifindex == ifindex && link.has_program);
    // Where a program is left it is another gateway's, and so is the filter of the way out.
    if !has_program {
        super::seal::remove(ifindex);
    }
    let removed = match pin.symlink_metadata() {
        Ok(_) => std::fs::remove_file(&pin),
        Err(_) => Ok(()),
    };
    programs::remove_but(None, &opened.path)?;
    opened.note_owner(None)?;
    removed
        .and_then(|()| std::fs::remove_dir(&place.path))
        .map_err(|error| DataPlaneError::kernel(format!("removing {}", place.path.display()), error))?;
    Ok(held)
}

/// Whether a pin is there, and no symbolic link in its place.
fn is_pin(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|status| status.is_file())
}

/// Takes off what a pin holds, if it is a program on this interface. The pin is not followed if it is a symbolic link.
fn detach(pin: &Path, ifindex: u32) -> io::Result<()> {
    let opened = secure::open_pin(pin)?;
    let link = Link::open(secure::path_of(&opened)).map_err(io::Error::other)?;
    if interface_of(&link) != Some(ifindex) {
        return Err(io::Error::other("the pin is of another interface"));
    }
    link.detach().map_err(io::Error::other)
}

fn namespace() -> Result<u64, DataPlaneError> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/thread-self/ns/net")
        .map(|status| status.ino())
        .map_err(|error| DataPlaneError::kernel("finding the network namespace", error))
}

/// What `check` takes for its look, with much to spare.
const LOOK: std::time::Duration = std::time::Duration::from_millis(5);
const LOOKS_MAX: usize = 10;

/// A gate that stays shut on an interface though its gateway has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Where it is pinned.
    pub place: PathBuf,
    /// Whose it is; not known of versions that did not note it.
    pub gateway_id: Option<u32>,
}

/// The gate that a gateway which has ended holds below `directory` on this interface of the calling thread's network
/// namespace; `None` as well where one still lives.
#[must_use]
pub fn held(directory: &Path, ifindex: u32) -> Option<Held> {
    let place = Place::of(directory, ifindex).ok()?;
    let is_held = is_pin(&place.link()) && place.try_lock(Purpose::Remove).is_ok();
    is_held.then(|| Held {
        gateway_id: place.owner(),
        place: place.path,
    })
}

/// Interfaces of the calling thread's network namespace, other than these, that a gateway which has ended still holds
/// below `directory`: their program goes on with the memory of whoever takes it up, and nobody watches them.
#[must_use]
pub fn strays(directory: &Path, interfaces: &[u32]) -> Vec<u32> {
    let Ok(prefix) = namespace().map(|namespace| format!("net-{namespace}-if-")) else {
        return Vec::new();
    };
    let held = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let ifindex: u32 = name.strip_prefix(&prefix)?.parse().ok()?;
        let place = Place { path: entry.path() };
        let is_stray = !interfaces.contains(&ifindex)
            && is_pin(&place.link())
            && place.try_lock(Purpose::Remove).is_ok();
        is_stray.then_some(ifindex)
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.flatten().filter_map(held).collect()
}

/// What a place is locked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To take up what is pinned there, and to pin: only this user may be able to write there.
    Keep,
    /// To look, or to remove what is pinned there. Nothing of it is run, so the owner and the mode of the directory do not matter: a
    /// gate that cannot be released would stay shut.
    Remove,
}

/// A directory of the BPF filesystem for an interface. Its name holds the network namespace's number too: two
/// namespaces may well have interfaces of one number.
pub(super) struct Place {
    pub(super) path: PathBuf,
}

impl Place {
    fn of(directory: &Path, ifindex: u32) -> Result<Self, DataPlaneError> {
        let namespace = namespace()?;
        Ok(Self {
            path: without_links(directory).join(format!("net-{namespace}-if-{ifindex}")),
        })
    }

    /// Of a gateway's maps.
    pub(super) fn of_memory(directory: &Path, gateway_id: u32) -> Result<Self, DataPlaneError> {
        let namespace = namespace()?;
        Ok(Self {
            path: without_links(directory).join(format!("net-{namespace}-gateway-{gateway_id}")),
        })
    }

    fn link(&self) -> PathBuf {
        self.path.join("link")
    }

    /// The BPF filesystem holds no file with words in it: the owner is the name of a directory.
    const OWNER: &str = "of-gateway-";

    /// The gateway that has put its program in last.
    fn owner(&self) -> Option<u32> {
        let entries = std::fs::read_dir(&self.path).ok()?;
        let number = |name: &str| name.strip_prefix(Self::OWNER)?.parse().ok();
        entries
            .flatten()
            .find_map(|entry| number(entry.file_name().to_str()?))
    }

    /// Notes whose program it is; nobody's, if the place is given up.
    fn note_owner(&self, gateway_id: Option<u32>) -> Result<(), DataPlaneError> {
        let error =
            |error| DataPlaneError::kernel(format!("noting whose gate {} is", self.path.display()), error);
        let before = self.owner();
        if before == gateway_id {
            return Ok(());
        }
        let of = |owner: u32| self.path.join(format!("{}{owner}", Self::OWNER));
        if let Some(before) = before {
            std::fs::remove_dir(of(before)).map_err(error)?;
        }
        match gateway_id {
            Some(owner) => std::fs::create_dir(of(owner)).map_err(error),
            None => Ok(()),
        }
    }

    /// As [`Place::try_lock`], but waits for somebody who only looks.
    pub(super) fn lock(&self, purpose: Purpose) -> Result<File, DataPlaneError> {
        for _ in 0..LOOKS_MAX {
            if let Ok(owner) = self.try_lock(purpose) {
                return Ok(owner);
            }
            std::thread::sleep(LOOK);
        }
        self.try_lock(purpose)
    }

    /// Makes the directory, and keeps every other gateway out for as long as the file is open.
    fn try_lock(&self, purpose: Purpose) -> Result<File, DataPlaneError> {
        let what = || format!("keeping the program in {}", self.path.display());
        let failed = |error: io::Error| {
            let hint = "it wants the BPF filesystem: `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`; or set when_gone = \"open\"";
            DataPlaneError::kernel(what(), format!("{error} ({hint})"))
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(failed)?;
        let directory = secure::open_directory(&self.path).map_err(failed)?;
        if !secure::is_on_bpf_filesystem(&directory).map_err(failed)? {
            // Best effort: what is left is an empty directory.
            std::fs::remove_dir(&self.path).ok();
            return Err(failed(io::ErrorKind::Unsupported.into()));
        }
        if purpose == Purpose::Keep {
            secure::check(&directory, &self.path).map_err(|error| DataPlaneError::kernel(what(), error))?;
        }
        match directory.try_lock() {
            Ok(()) => Ok(directory),
            Err(TryLockError::WouldBlock) => {
                Err(DataPlaneError::kernel(what(), "another gateway runs there"))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Puts the program on the interface, in the place of an earlier gateway's if there is one.
    fn hold(&self, program: &ProgramMut<'_>, ifindex: u32) -> Result<Link, DataPlaneError> {
        if let Some(link) = self.take_over(program, ifindex)? {
            return Ok(link);
        }
        let mut link = attach(program, ifindex)?;
        let pin = self.link();
        link.pin(&pin)
            .map_err(|error| DataPlaneError::kernel(format!("pinning {}", pin.display()), error))?;
        Ok(link)
    }

    /// The link that an earlier gateway left, with our program in it.
    fn take_over(&self, program: &ProgramMut<'_>, ifindex: u32) -> Result<Option<Link>, DataPlaneError> {
        let pin = self.link();
        if !pin.exists() {
            return Ok(None);
        }
        let error = |error| DataPlaneError::kernel(format!("taking over {}", pin.display()), error);
        let mut link = Link::open(&pin).map_err(error)?;
        if interface_of(&link) == Some(ifindex) {
            see_vlan_tags(ifindex);
            link.update_prog(program).map_err(error)?;
            return Ok(Some(link));
        }
        // Its interface is gone, and another one has got the number since.
        std::fs::remove_file(&pin).map_err(|error| {
            DataPlaneError::kernel(
                format!("removing the link to a lost interface, {}", pin.display()),
                error,
            )
        })?;
        Ok(None)
    }
}

/// The directory's own path, if it is there: what symbolic links on the way name is looked up once.
fn without_links(directory: &Path) -> PathBuf {
    directory.canonicalize().unwrap_or_else(|_| directory.to_owned())
}

/// Frames whose VLAN tag the interface has taken out would pass as untagged ones: the gate would take a sender of
/// one VLAN for its namesake in another, and a reply would leave without its tag.
fn see_vlan_tags(ifindex: u32) {
    let Some(name) = ethtool::name_of(ifindex) else {
        return;
    };
    // An interface that does not know the offload takes no tags out.
    if !ethtool::is_on(&name, Offload::ReceiveVlan).unwrap_or(false) {
        return;
    }
    match ethtool::set(&name, Offload::ReceiveVlan, false) {
        Ok(()) => tracing::info!(
            interface = name,
            "switched rxvlan off, so that VLAN tags are seen"
        ),
        Err(error) => {
            tracing::warn!(%error, "VLAN tags are taken out before the gate sees them: use no VLANs here")
        }
    }
}

fn attach(program: &ProgramMut<'_>, ifindex: u32) -> Result<Link, DataPlaneError> {
    see_vlan_tags(ifindex);
    let index = i32::try_from(ifindex)
        .map_err(|error| DataPlaneError::kernel(format!("interface index {ifindex}"), error))?;
    let attached = program.attach_xdp(index);
    let link = attached.map_err(|error| DataPlaneError::kernel(refusal(ifindex), error))?;
    warn_of_hidden_headers(ifindex);
    Ok(link)
}

/// Drivers that put whole frames of a large MTU into fragments by default: the program sees no header. The kernel attaches it all
/// the same.
const HIDING_DRIVERS: [&str; 1] = ["mlx5_core"];

fn warn_of_hidden_headers(ifindex: u32) {
    let name = ethtool::told_of(ifindex);
    let hides = |driver: String| HIDING_DRIVERS.contains(&driver.as_str());
    if has_large_frames(&[ifindex]) && ethtool::driver(&name).is_ok_and(hides) {
        tracing::warn!(
            interface = name,
            action = format!("ethtool --set-priv-flags {name} rx_striding_rq off"),
            "driver may deliver frames without headers in the first buffer; such frames count as drop_truncated"
        );
    }
}

/// What keeps the kernel from attaching a program to an interface, as far as the interface shows.
fn refusal(ifindex: u32) -> String {
    let name = ethtool::told_of(ifindex);
    let found = links::links().unwrap_or_default();
    let link = found.into_iter().find(|link| link.ifindex == ifindex);
    match link {
        Some(Interface {
            has_program: true, ..
        }) => format!(
            "attaching to interface {name}, which has an XDP program (it may be of a gateway that runs, or of one that has \
             ended and whose gate is kept in another pin_directory: then `serve --release` with the configuration that it \
             was started with lets it go)"
        ),
        Some(Interface { mtu, .. }) if mtu > ONE_BUFFER_MTU => format!(
            "attaching to interface {name}, which has an MTU of {mtu} and a driver ({}) that takes this XDP program only where \
             a frame fits one buffer (at a sealed gate, and where packets carry evidence, the program needs the whole packet in \
             one piece): set it to {PAGE_MTU} or less, `ip link set dev {name} mtu {PAGE_MTU}`",
            ethtool::driver(&name).unwrap_or_else(|_| "unknown".to_owned())
        ),
        _ => format!("attaching to interface {name}"),
    }
}

/// Up to this MTU every driver holds a frame in one buffer.
const ONE_BUFFER_MTU: u32 = 2000;
/// The largest MTU with which a frame of two VLAN tags fits a page beside what XDP and the kernel need there.
const PAGE_MTU: u32 = 3498;

/// Whether one of these interfaces, of the calling thread's network namespace, has so large an MTU that drivers deliver frames
/// in fragments, see [`Config::fragments`](crate::Config::fragments).
#[must_use]
pub fn has_large_frames(interfaces: &[u32]) -> bool {
    let found = links::links().unwrap_or_default();
    let is_large = |link: &Interface| {
        link.is_ethernet && link.mtu > ONE_BUFFER_MTU && interfaces.contains(&link.ifindex)
    };
    found.iter().any(is_large)
}

/// The index of the interface that a link attaches to, 0 once that is gone; `None` if the kernel does not say.
fn interface_of(link: &Link) -> Option<u32> {
    match link.info().ok()?.info {
        LinkTypeInfo::Xdp(xdp) => Some(xdp.ifindex),
        _ => None,
    }
}
