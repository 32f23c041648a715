//! Prerequisites of a gateway on its machine.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use linewarden_cli::failure::Failure;
use linewarden_dataplane::capability::{self, Capability};
use linewarden_dataplane::{ethtool, xdp};
use linewarden_files::check_regular;

use super::evidence::check_evidence;
use super::fields::{Backend, Gate, GatewayConfig};
use super::resolve::ResolvedGateway;
use crate::file::{ConfigFile, Validated};
use crate::problem::{Problem, failure};
use crate::program::Program;

/// Oldest kernel that supports the eBPF program: major and minor version.
const KERNEL_MIN: (u32, u32) = (6, 1);

impl ConfigFile<GatewayConfig> {
    /// Reads the fields that the removal of gates needs: ID, interfaces, pin directory. Other fields may be wrong: a wrong
    /// field gets a placeholder, and the mistakes are returned.
    ///
    /// # Errors
    /// A required field is missing or wrong.
    pub fn read_for_gate_removal(path: &Path) -> Result<(Self, Vec<Problem>), Failure> {
        let mut parsed = Self::parse(path, Program::Gateway.read(path)?);
        let required = ["id", "interfaces", "pin_directory"];
        let is_complete = !required
            .iter()
            .any(|field| parsed.is_missing(&["gateway", field]));
        match parsed.file.take() {
            Some(file) if is_complete => Ok((file, parsed.problems)),
            _ => Err(failure(&parsed.problems)),
        }
    }
}

impl Validated<GatewayConfig> {
    /// Checks whether this machine meets the prerequisites of a start; changes nothing. Warnings have exit code 0.
    pub fn machine_problems(&self) -> Vec<Problem> {
        let file = &self.file;
        let mut problems = Vec::new();
        match self.resolve([0; 2]) {
            Ok(resolved) => {
                problems.extend(check_gates(file, &resolved));
                let upper_subnets = resolved.upper_subnets.iter();
                problems.extend(upper_subnets.map(|warning| file.field_problem(warning).with_code(0)));
            }
            Err(errors) => problems.extend(file.field_problems(&errors)),
        }
        problems.extend(check_veths(file));
        problems.extend(check_privileges(file));
        problems.extend(check_kernel(file));
        problems.extend(check_pin_directory(file));
        problems.extend(check_audit(file));
        problems.extend(check_evidence(file));
        problems.extend(self.controller_client().err());
        problems
    }
}

/// Returns a problem for each interface without a subnet, if `device_prefixes` is not set. Only `check` reports these
/// problems: a start continues, because an interface may get an address later.
pub(super) fn interfaces_without_subnet(config: &Validated<GatewayConfig>) -> Vec<Problem> {
    let resolved = config.resolve([0; 2]);
    resolved.map_or_else(
        |_| Vec::new(),
        |resolved| config.file.field_problems(&resolved.without_subnet),
    )
}

fn check_privileges(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    if file.value.gateway.dataplane != Backend::Xdp {
        return Vec::new();
    }
    let mut needed = vec![
        Capability::Bpf,
        Capability::Perfmon,
        Capability::NetAdmin,
        Capability::NetRaw,
    ];
    if file.value.evidence.is_some() {
        // The kernel lists loaded programs only to privileged processes.
        needed.push(Capability::SysAdmin);
    }
    let missing: Vec<&str> = capability::missing(&needed)
        .iter()
        .map(|missing| missing.name())
        .collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let problem = format!(
        "missing privileges for the xdp data plane: {0}; run as root, or grant {0}; the host data plane (`dataplane = \"host\"`) needs no \
         privilege, and has no gate",
        missing.join(", ")
    );
    vec![file.problem(&["gateway", "dataplane"], &problem).with_code(3)]
}

fn check_kernel(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    if file.value.gateway.dataplane != Backend::Xdp {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    let mut warn =
        |problem: String| warnings.push(file.problem(&["gateway", "dataplane"], &problem).with_code(0));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(str::parse::<u32>);
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) < KERNEL_MIN
    {
        warn(format!(
            "Linux {major}.{minor} is not supported, and the kernel may reject the eBPF program; use Linux 6.1 or later"
        ));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        warn(
            "the kernel provides no BTF (CONFIG_DEBUG_INFO_BTF), and the eBPF program is loaded without BTF; no action is needed if the gateway starts"
                .to_owned(),
        );
    }
    warnings
}

/// Checks for gates that ended gateways left on the interfaces. A gate that this gateway would not replace is an error. A gate of
/// another gateway that this gateway would replace is a warning.
fn check_gates(file: &ConfigFile<GatewayConfig>, resolved: &ResolvedGateway) -> Vec<Problem> {
    let section = &file.value.gateway;
    let problem = |name: &String, gate: xdp::OrphanedGate| {
        let owner = match gate.gateway_id {
            Some(id) => format!("the gate that gateway {id} left"),
            None => "the gate that an ended gateway left".to_owned(),
        };
        let finding = format!(
            "{owner} is still on {name} (pinned in {})",
            gate.pin_path.display()
        );
        if section.pin_directory_if_kept().is_none() {
            let field = match (section.dataplane, section.gate) {
                (Backend::Host | Backend::P4, _) => "dataplane",
                (Backend::Xdp, Gate::Off) => "gate",
                (Backend::Xdp, _) => "gate_on_exit",
            };
            let path = file.path().display();
            let remedy = match section.interfaces.contains(name) {
                true => format!("remove the gate with `linewarden-gateway remove-gate --config {path}`"),
                false => {
                    "remove the gate with `linewarden-gateway remove-gate --config FILE`, where FILE names the interface in `interfaces`"
                        .to_owned()
                }
            };
            let problem = format!("{finding}, and would stay active beside this gateway: {remedy}");
            return Some(file.problem(&["gateway", field], &problem).with_code(1));
        }
        let previous_id = gate.gateway_id.filter(|id| *id != section.id)?;
        let problem = format!(
            "{finding}: gateway {} replaces the gate, and sessions of gateway {previous_id} end; the memory of gateway {previous_id} stays pinned until \
             `linewarden-gateway remove-gate --config FILE` runs with the configuration of gateway {previous_id}",
            section.id
        );
        Some(file.problem(&["gateway", "interfaces"], &problem).with_code(0))
    };
    let interfaces = section
        .interfaces
        .iter()
        .cloned()
        .zip(resolved.interfaces.iter().copied());
    // Gates can also be on interfaces that are not in the configuration. A start that replaces gates reports these gates itself.
    let orphans = match section.pin_directory_if_kept() {
        Some(_) => Vec::new(),
        None => xdp::orphaned_interfaces(&section.pin_directory, &resolved.interfaces),
    };
    let orphans = orphans
        .into_iter()
        .map(|index| (format!("interface {index}"), index));
    let gates = interfaces
        .chain(orphans)
        .filter_map(|(name, index)| problem(&name, xdp::orphaned_gate(&section.pin_directory, index)?));
    gates.collect()
}

/// Warns about veth interfaces. Frames that an XDP program sends into a veth are lost if the other end is not prepared. This
/// process cannot check the other end, which may be in another network namespace.
pub fn check_veths(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let section = &file.value.gateway;
    if section.dataplane != Backend::Xdp {
        return Vec::new();
    }
    let warn = |field: &str, names: &[String], requirement: &str| {
        let is_veth = |name: &&String| ethtool::driver(name).is_ok_and(|driver| driver == "veth");
        let warning = |name: &String| {
            let problem = format!(
                "{name} is a veth: {requirement}; otherwise frames that the gateway sends by XDP are lost without a log message; on the other end run \
                 `ip link set OTHER-END xdpdrv obj pass.o sec xdp`, see \"On a veth\" in docs/operations/interfaces.md"
            );
            file.problem(&["gateway", field], &problem).with_code(0)
        };
        names.iter().filter(is_veth).map(warning).collect::<Vec<_>>()
    };
    let mut problems = warn(
        "interfaces",
        &section.interfaces,
        "the other end needs an XDP program; GRO is not sufficient",
    );
    problems.extend(warn(
        "forward_to",
        &section.forward_to,
        "the other end needs an XDP program or GRO",
    ));
    problems
}

/// Checks that the pin directory is secure and on a BPF filesystem. Gates that stay on the interfaces after the gateway has
/// ended are pinned there.
fn check_pin_directory(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(directory) = file.value.gateway.pin_directory_if_kept() else {
        return Vec::new();
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // The innermost mount that contains the directory. The escapes for spaces in mount points do not matter for a BPF filesystem.
    let innermost = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((PathBuf::from(fields.next()?), fields.next()?))
        })
        .filter(|(mount_point, _)| directory.starts_with(mount_point))
        .max_by_key(|(mount_point, _)| mount_point.components().count());
    match innermost {
        Some((_, "bpf")) => {
            let insecure = xdp::pin_directory_problem(directory);
            let problem = |insecure: xdp::InsecureDirectory| {
                file.problem(&["gateway", "pin_directory"], &insecure.to_string()).with_code(4)
            };
            insecure.into_iter().map(problem).collect()
        }
        _ => vec![file.problem(
            &["gateway", "pin_directory"],
            "not on a BPF filesystem: run `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`; or set gate_on_exit = \"remove\", which removes the gate when \
             the gateway ends, so that all traffic passes and sessions end",
        )],
    }
}

/// Permission bits of users outside owner and group; a group may collect logs.
const OTHER_PERMISSIONS: u32 = 0o006;

/// Checks the audit log file: its type, its permissions, and the directory if the file does not exist.
fn check_audit(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(audit) = &file.value.audit else {
        return Vec::new();
    };
    let problem = match audit.path.metadata() {
        Ok(metadata) if metadata.is_file() => {
            let public_bits = OTHER_PERMISSIONS & metadata.mode();
            let problem = format!(
                "other users can read or write the file (mode {:04o}): run `chmod o= {}`",
                metadata.mode() & 0o7777,
                audit.path.display()
            );
            let warning = (public_bits != 0).then(|| file.problem(&["audit", "path"], &problem).with_code(0));
            return warning.into_iter().collect();
        }
        Ok(_) => match check_regular(&audit.path) {
            Ok(()) => return Vec::new(),
            Err(error) => format!("{}: {error}", audit.path.display()),
        },
        Err(error) if error.kind() != ErrorKind::NotFound => format!("{}: {error}", audit.path.display()),
        Err(_) => match audit.path.parent().map(Path::metadata) {
            Some(Ok(directory)) if directory.is_dir() => return Vec::new(),
            Some(Err(error)) => format!(
                "reading the directory of the file failed: {error}; create the directory, or correct the path {}",
                audit.path.display()
            ),
            _ => format!(
                "the parent of the file is not a directory; correct the path {}",
                audit.path.display()
            ),
        },
    };
    vec![file.problem(&["audit", "path"], &problem)]
}
