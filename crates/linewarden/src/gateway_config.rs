//! A gateway's configuration with all its mistakes, and what this machine lacks for it: for `check` and `serve`.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use linewarden_controller::attest::Signer;
use linewarden_controller::trust::TrustPolicy;
use linewarden_dataplane::capability::{self, Capability};
use linewarden_dataplane::{ethtool, xdp};
use linewarden_evidence::inband::MasterKey as PacketKey;
use linewarden_evidence::keys::Signer as EvidenceSigner;
use linewarden_evidence::statement::Kind;
use linewarden_files::check_regular;
use linewarden_gateway::config::{Backend, FieldError, Gate, GatewayConfig, Resolved};
use linewarden_link::{Client, ClientOptions};
use linewarden_protocol::ids::GatewayId;

use crate::config_file::{ConfigFile, Problem, read_text, refuse_other_role};
use crate::failure::Failure;
use crate::{evidence_key, log, registry, secret_file, tls, trust_config};

/// The oldest kernel that the eBPF program is meant for.
const KERNEL_MIN: (u32, u32) = (6, 1);

/// Reads a gateway's configuration, its paths made absolute.
///
/// # Errors
/// All mistakes in it.
pub fn read(path: &Path) -> Result<ConfigFile<GatewayConfig>, Failure> {
    let text = read_text(path)?;
    refuse_other_role::<GatewayConfig>(path, &text)?;
    match parse(path, text) {
        (Some(file), problems) if problems.is_empty() => Ok(file),
        (_, problems) => Err(Failure::all(&problems)),
    }
}

/// What a release needs of a configuration, which may be wrong in all else: number, interfaces, directory. The value has stand-ins for
/// fields that cannot be used; these are returned beside it.
///
/// # Errors
/// The needed fields cannot be read.
pub fn read_for_release(path: &Path) -> Result<(ConfigFile<GatewayConfig>, Vec<Problem>), Failure> {
    let text = read_text(path)?;
    refuse_other_role::<GatewayConfig>(path, &text)?;
    let mut parsed = ConfigFile::<GatewayConfig>::parse(path, text);
    let needed = ["id", "interfaces", "pin_directory"];
    let is_whole = !needed.iter().any(|field| parsed.lacks(&["gateway", field]));
    match parsed.file.take() {
        Some(mut file) if is_whole => {
            let directory = file.directory();
            file.value.resolve_paths(&directory);
            Ok((file, parsed.problems))
        }
        _ => Err(Failure::all(&parsed.problems)),
    }
}

/// Likewise from its text: what is right in it, and all that is not.
pub fn parse(path: &Path, text: String) -> (Option<ConfigFile<GatewayConfig>>, Vec<Problem>) {
    let mut parsed = ConfigFile::<GatewayConfig>::parse(path, text);
    let mut problems = std::mem::take(&mut parsed.problems);
    let Some(mut file) = parsed.file.take() else {
        return (None, problems);
    };
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    let errors = file.value.check().err().unwrap_or_default();
    // What is wrong only because a field was left out is no mistake of the file.
    let errors = errors.iter().filter(|error| !parsed.lacks(&error.path));
    problems.extend(errors.map(|error| placed(&file, error)));
    if let Some(level) = &file.value.log.level
        && let Err(problem) = log::filter(level)
    {
        problems.push(file.problem(&["log", "level"], &problem));
    }
    problems.sort_by_key(Problem::place);
    (Some(file), problems)
}

/// Fields as problems with their places.
pub fn places(file: &ConfigFile<GatewayConfig>, errors: &[FieldError]) -> Vec<Problem> {
    errors.iter().map(|error| placed(file, error)).collect()
}

fn placed(file: &ConfigFile<GatewayConfig>, error: &FieldError) -> Problem {
    let problem = file.problem(&error.path, &error.problem);
    match error.is_unsafe {
        true => problem.with_code(4),
        false => problem,
    }
}

/// Interfaces of a machine at rest without a subnet where `device_prefixes` is not set. A start goes on: they can get their address later.
pub fn without_subnet(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let resolved = file.value.resolve([0; 2], 0);
    resolved.map_or_else(|_| Vec::new(), |resolved| places(file, &resolved.without_subnet))
}

/// What this machine lacks; nothing is changed. Warnings have exit code 0.
pub async fn examine(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let mut problems = Vec::new();
    match file.value.resolve([0; 2], 0) {
        Ok(resolved) => {
            problems.extend(gates(file, &resolved));
            let upper_subnets = resolved.upper_subnets.iter();
            problems.extend(upper_subnets.map(|warning| placed(file, warning).with_code(0)));
        }
        Err(errors) => problems.extend(places(file, &errors)),
    }
    problems.extend(veths(file));
    problems.extend(privileges(file));
    problems.extend(kernel(file));
    problems.extend(pin_directory(file));
    problems.extend(audit(file));
    problems.extend(signer(file).err());
    problems.extend(evidence(file));
    problems.extend(trust(file).err());
    problems.extend(registry(file).await);
    problems.extend(controller(file).err());
    problems
}

fn privileges(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    if file.value.gateway.dataplane == Backend::P4 {
        return Vec::new();
    }
    if file.value.gateway.dataplane != Backend::Xdp {
        let is_raw = file.value.p4dra_classic.is_some();
        if !is_raw || capability::missing(&[Capability::NetRaw]).is_empty() {
            return Vec::new();
        }
        let problem = format!(
            "needs {0}: run as root, or give it {0}; all else of the host data plane needs none",
            Capability::NetRaw.name()
        );
        return vec![file.problem(&["p4dra_classic"], &problem).with_code(3)];
    }
    let mut needed = vec![
        Capability::Bpf,
        Capability::Perfmon,
        Capability::NetAdmin,
        Capability::NetRaw,
    ];
    if file.value.evidence.is_some() {
        // The kernel tells nobody else which programs there are.
        needed.push(Capability::SysAdmin);
    }
    let missing: Vec<&str> = capability::missing(&needed)
        .iter()
        .map(|missing| missing.name())
        .collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let host_needs = match &file.value.p4dra_classic {
        Some(_) => format!("only {}, for [p4dra_classic]", Capability::NetRaw.name()),
        None => "none".to_owned(),
    };
    let problem = format!(
        "the xdp data plane needs {}: run as root, or use the host data plane (`dataplane = \"host\"`), which needs \
         {host_needs}",
        missing.join(", ")
    );
    vec![file.problem(&["gateway", "dataplane"], &problem).with_code(3)]
}

fn kernel(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    if file.value.gateway.dataplane != Backend::Xdp {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut warn =
        |problem: String| found.push(file.problem(&["gateway", "dataplane"], &problem).with_code(0));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(str::parse::<u32>);
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) < KERNEL_MIN
    {
        warn(format!(
            "Linux {major}.{minor} is older than 6.1, which the eBPF program is meant for"
        ));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        warn(
            "the kernel has no BTF of its own (CONFIG_DEBUG_INFO_BTF); the program may be loaded without"
                .to_owned(),
        );
    }
    found
}

/// Gates on the interfaces that other starts have left shut: those that this one does not take the place of, and those
/// of other gateways, which it does.
fn gates(file: &ConfigFile<GatewayConfig>, resolved: &Resolved) -> Vec<Problem> {
    let section = &file.value.gateway;
    let problem = |name: &String, gate: xdp::Held| {
        let whose = match gate.gateway_id {
            Some(id) => format!("gateway {id}'s gate"),
            None => "an earlier gateway's gate".to_owned(),
        };
        let shut = format!(
            "{whose} is still shut on {name} (kept in {})",
            gate.place.display()
        );
        if section.pins().is_none() {
            let field = match (section.dataplane, section.gate) {
                (Backend::Host | Backend::P4, _) => "dataplane",
                (Backend::Xdp, Gate::Off) => "gate",
                (Backend::Xdp, _) => "when_gone",
            };
            let path = file.path().display();
            let remedy = match section.interfaces.contains(name) {
                true => format!("`linewarden serve --config {path} --release` lets it go"),
                false => {
                    "`linewarden serve --release` with a configuration that names it lets it go".to_owned()
                }
            };
            let problem = format!("{shut}, and would go on beside this gateway: {remedy}");
            return Some(file.problem(&["gateway", field], &problem).with_code(1));
        }
        let other = gate.gateway_id.filter(|id| *id != section.id)?;
        let problem = format!(
            "{shut}: gateway {} takes its place, and sessions of gateway {other} pass no more; its memory stays until \
             `serve --release` with its configuration",
            section.id
        );
        Some(file.problem(&["gateway", "interfaces"], &problem).with_code(0))
    };
    let interfaces = section
        .interfaces
        .iter()
        .cloned()
        .zip(resolved.interfaces.iter().copied());
    // Those that it does not name stay shut as well; a start that takes places tells of them itself.
    let strays = match section.pins() {
        Some(_) => Vec::new(),
        None => xdp::strays(&section.pin_directory, &resolved.interfaces),
    };
    let strays = strays
        .into_iter()
        .map(|index| (format!("interface {index}"), index));
    let held = interfaces
        .chain(strays)
        .filter_map(|(name, index)| problem(&name, xdp::held(&section.pin_directory, index)?));
    held.collect()
}

/// Frames that an XDP program sends into a veth are lost unless the other end is prepared, which may be in a namespace
/// that cannot be looked into.
pub fn veths(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let section = &file.value.gateway;
    if section.dataplane != Backend::Xdp {
        return Vec::new();
    }
    let warn = |field: &str, names: &[String], needs: &str| {
        let is_veth = |name: &&String| ethtool::driver(name).is_ok_and(|driver| driver == "veth");
        let warning = |name: &String| {
            let problem = format!(
                "{name} is a veth: {needs}, else what the gateway sends by XDP is lost without a trace in the log; \
                 on the other end `ip link set OTHER-END xdpdrv obj pass.o sec xdp`, see \"On a veth\" in docs/operations.md"
            );
            file.problem(&["gateway", field], &problem).with_code(0)
        };
        names.iter().filter(is_veth).map(warning).collect::<Vec<_>>()
    };
    let mut problems = warn(
        "interfaces",
        &section.interfaces,
        "its other end must have an XDP program of its own, GRO is not enough",
    );
    problems.extend(warn(
        "forward_to",
        &section.forward_to,
        "its other end must have an XDP program of its own or GRO on",
    ));
    problems
}

/// A gate that stays shut is kept on the BPF filesystem.
fn pin_directory(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(directory) = file.value.gateway.pins() else {
        return Vec::new();
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // The innermost mount that the directory lies in; spaces in names are escapes there, and seldom in this one.
    let innermost = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((PathBuf::from(words.next()?), words.next()?))
        })
        .filter(|(mounted, _)| directory.starts_with(mounted))
        .max_by_key(|(mounted, _)| mounted.components().count());
    match innermost {
        Some((_, "bpf")) => {
            let insecure = xdp::insecure(directory);
            let problem = |insecure: xdp::InsecureDirectory| {
                file.problem(&["gateway", "pin_directory"], &insecure.to_string()).with_code(4)
            };
            insecure.into_iter().map(problem).collect()
        }
        _ => vec![file.problem(
            &["gateway", "pin_directory"],
            "it is not on the BPF filesystem; `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`, or set when_gone = \"open\"",
        )],
    }
}

/// Reading and writing, of those who are neither the owner nor of the group, which may be that of who collects logs.
const OTHERS_MAY: u32 = 0o006;

fn audit(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(audit) = &file.value.audit else {
        return Vec::new();
    };
    let problem = match audit.path.metadata() {
        Ok(metadata) if metadata.is_file() => {
            let open = OTHERS_MAY & metadata.mode();
            let problem = format!(
                "everybody on this machine can read or write it (mode {:04o}); `chmod o=` closes it",
                metadata.mode() & 0o7777
            );
            let warning = (open != 0).then(|| file.problem(&["audit", "path"], &problem).with_code(0));
            return warning.into_iter().collect();
        }
        Ok(_) => match check_regular(&audit.path) {
            Ok(()) => return Vec::new(),
            Err(error) => format!("{}: {error}", audit.path.display()),
        },
        Err(error) if error.kind() != ErrorKind::NotFound => format!("{}: {error}", audit.path.display()),
        Err(_) => match audit.path.parent().map(Path::metadata) {
            Some(Ok(directory)) if directory.is_dir() => return Vec::new(),
            Some(Err(error)) => format!("its directory: {error}"),
            _ => "its directory is none".to_owned(),
        },
    };
    vec![file.problem(&["audit", "path"], &problem)]
}

/// The key that signs results of attestation, if one is named.
///
/// # Errors
/// It cannot be read, is no key, or others can read it.
pub fn signer(file: &ConfigFile<GatewayConfig>) -> Result<Option<Signer>, Problem> {
    let attest = file.value.attest.as_ref();
    let Some(path) = attest.and_then(|attest| attest.signing_key.as_ref()) else {
        return Ok(None);
    };
    match secret_file::signer(path) {
        Ok(signer) => Ok(Some(signer)),
        Err(failure) => Err(file
            .problem(&["attest", "signing_key"], &failure.to_string())
            .with_code(failure.code())),
    }
}

/// What this machine lacks to sign evidence with, and whether [trust] expects this very key.
fn evidence(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(section) = &file.value.evidence else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    match evidence_signer(file) {
        Err(problem) => problems.push(problem),
        Ok(None) => {}
        Ok(Some(signer)) => {
            if let Ok(Some(policy)) = trust(file)
                && policy.key != signer.public_key()
            {
                let problem = "it is not the public half of [evidence] key: nothing that this gateway signs would be believed";
                problems.push(file.problem(&["trust", "key"], problem));
            }
        }
    }
    problems.extend(packet_key(file).err());
    let places = [
        ("boot_count", Some(&section.boot_count)),
        ("socket", section.socket.as_ref()),
    ];
    for (field, path) in places {
        let directory = path.and_then(|path| path.parent());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            let problem = format!("{}: no such directory", directory.display());
            problems.push(file.problem(&["evidence", field], &problem));
        }
    }
    problems
}

/// The key that signs evidence, if there is to be any.
///
/// # Errors
/// It cannot be read, is no key, another TPM's, or others can read it.
pub fn evidence_signer(
    file: &ConfigFile<GatewayConfig>,
) -> Result<Option<Box<dyn EvidenceSigner + Send>>, Problem> {
    let Some(section) = &file.value.evidence else {
        return Ok(None);
    };
    match evidence_key::signer(&section.key, section.tpm.as_deref()) {
        Ok(signer) => Ok(Some(signer)),
        Err(failure) => Err(file
            .problem(&["evidence", "key"], &failure.to_string())
            .with_code(failure.code())),
    }
}

/// The secret of packets' tags, if they are to carry evidence; classic content has none.
///
/// # Errors
/// It cannot be read, is no key, or others can read it.
pub fn packet_key(file: &ConfigFile<GatewayConfig>) -> Result<PacketKey, Problem> {
    let path = file
        .value
        .evidence
        .as_ref()
        .and_then(|section| section.packet_key_file.as_ref());
    let Some(path) = path else {
        return Ok(PacketKey::new([0; 16]));
    };
    secret_file::packet_key(path).map_err(|failure| {
        file.problem(&["evidence", "packet_key_file"], &failure.to_string())
            .with_code(failure.code())
    })
}

/// What the gateway must show to get rows, if anything.
///
/// # Errors
/// Reference values or a key that cannot be read; reference values of another data plane.
pub fn trust(file: &ConfigFile<GatewayConfig>) -> Result<Option<TrustPolicy>, Problem> {
    let Some(section) = &file.value.trust else {
        return Ok(None);
    };
    let kind = match file.value.gateway.dataplane {
        Backend::P4 => Kind::P4,
        Backend::Xdp | Backend::Host => Kind::Xdp,
    };
    let gateway = GatewayId(file.value.gateway.id);
    let policy = trust_config::policy(section, gateway, Some(kind)).map_err(|(field, failure)| {
        file.problem(&["trust", field], &failure.to_string())
            .with_code(failure.code())
    })?;
    Ok(Some(policy))
}

/// What reaches the controllers; nothing if there are none elsewhere.
pub fn controller(file: &ConfigFile<GatewayConfig>) -> Result<Option<Client>, Problem> {
    let Some(section) = &file.value.controller else {
        return Ok(None);
    };
    let identities = tls::Files {
        ca: section.ca.clone(),
        cert: section.cert.clone(),
        key: section.key.clone(),
        domain: section.server_name.clone(),
    };
    let problem = |failure: Failure| {
        file.problem(&["controller"], &failure.to_string())
            .with_code(failure.code())
    };
    identities.read().map_err(problem)?;
    let named = tls::gateway_of(&section.cert).map_err(problem)?;
    if named != Some(file.value.gateway.id) {
        let text = match named {
            Some(other) => format!("is of gateway {other}, and this is gateway {}", file.value.gateway.id),
            None => "is no gateway's: it names no urn:linewarden:gateway:N; make one with `linewarden certificate gateway`".to_owned(),
        };
        return Err(file.problem(
            &["controller", "cert"],
            &format!("{}: {text}", section.cert.display()),
        ));
    }
    Ok(Some(Client::new(ClientOptions {
        controllers: section.addresses.clone(),
        identities: Arc::new(identities),
        connect_timeout: Duration::from_secs(2),
        answer_timeout: Duration::from_secs(5),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })))
}

async fn registry(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(section) = &file.value.registry else {
        return Vec::new();
    };
    match registry::examine(section).await {
        Ok(()) => Vec::new(),
        Err((field, failure)) => {
            let problem = file.problem(&["registry", field], &failure.to_string());
            vec![problem.with_code(failure.code())]
        }
    }
}
