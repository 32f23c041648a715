//! Measures what the kernel runs for this gateway
//! ([rationale](../../../../../docs/adr/0027-measurement-of-ebpf-programs-and-maps.md)).
//!
//! A loaded program cannot change, so its instructions are known from loading; the kernel's tag must match. Which
//! programs run, where, and with which maps and settings can be changed by other processes. This information is
//! therefore read from the kernel.

mod contents;
mod filters;
mod instructions;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::skel::Skel as _;
use libbpf_rs::{Map, MapCore as _, MapInfo, Program, ProgramHandle, XdpFlags};
use linewarden_evidence::encoding::{BpfAttachment, BpfMap, BpfProgram, Entry};
use linewarden_evidence::statement::DataPlaneKind;
use sha2::{Digest as _, Sha256};

use self::contents::interface_name;
use super::Xdp;
use crate::error::DataPlaneError;
use crate::measurement::Measurement;

/// Prefix of the hash input for a foreign program.
const FOREIGN_LABEL: &[u8] = b"linewarden foreign eBPF program 1\0";

/// Programs of this gateway, and foreign programs at its interfaces or in its maps.
#[derive(Default)]
struct Programs {
    /// Names by kernel id.
    names: BTreeMap<u32, String>,
    /// Each distinct program.
    entries: Vec<BpfProgram>,
}

impl Programs {
    /// The name of a program. A foreign program gets its kernel name with a prefix, and never the name of a
    /// program of this gateway.
    fn name(&mut self, id: u32) -> Result<String, DataPlaneError> {
        if let Some(name) = self.names.get(&id) {
            return Ok(name.clone());
        }
        let kernel = ProgramHandle::from_prog_id(id)
            .map_err(|error| measure_error(&format!("program {id}"), error))?;
        let tag = kernel.tag();
        let name = format!("foreign {}, tag {}", kernel.name().to_string_lossy(), hex(&tag));
        let instructions = Sha256::new()
            .chain_update(FOREIGN_LABEL)
            .chain_update(tag)
            .finalize();
        if !self.names.values().any(|known| *known == name) {
            self.entries.push(BpfProgram {
                name: name.clone(),
                instructions: instructions.into(),
            });
        }
        self.names.insert(id, name.clone());
        Ok(name)
    }
}

impl Xdp {
    /// Measures what the kernel runs for this gateway, from the network namespace of its interfaces.
    ///
    /// # Errors
    /// Errors of the kernel, or the tag of a running program differs from the tag of the loaded program.
    pub fn measure(&self) -> Result<Measurement, DataPlaneError> {
        let object = self.skeleton.object();
        let maps: BTreeMap<i32, String> = object
            .maps()
            .map(|map| (map.as_fd().as_raw_fd(), map_name(&map)))
            .collect();
        let mut programs = Programs::default();
        for program in object.progs().filter(|program| program.autoload()) {
            own_program(&program, &maps, &mut programs)?;
        }
        let mut entries = Vec::new();
        for ifindex in &self.interfaces.device_ports {
            let attachments = self.attachments_of(*ifindex, &mut programs)?;
            entries.extend(attachments.into_iter().map(Entry::from));
        }
        for map in object.maps() {
            let name = map_name(&map);
            entries.push(definition(&map, &name)?.into());
            let contents = match name.as_str() {
                "control" => contents::control_entries(&map, &self.sources, &self.interfaces.macs)?,
                _ => contents::entries_of(&map, &name, &mut |id| programs.name(id))?,
            };
            entries.extend(contents.into_iter().map(Entry::from));
        }
        entries.extend(programs.entries.iter().cloned().map(Entry::from));
        Ok(Measurement {
            kind: DataPlaneKind::Xdp,
            programs: programs.entries,
            entries,
            exclusions: contents::EXCLUSIONS.map(str::to_owned).to_vec(),
        })
    }

    fn attachments_of(
        &self,
        ifindex: u32,
        programs: &mut Programs,
    ) -> Result<Vec<BpfAttachment>, DataPlaneError> {
        let name = interface_name(ifindex);
        let attachment = |hook: String, program: String| BpfAttachment {
            interface: name.clone(),
            hook,
            program,
        };
        let mut attachments = Vec::new();
        let hook = libbpf_rs::Xdp::new(self.program().as_fd())
            .query(ifindex.cast_signed(), XdpFlags::NONE)
            .map_err(|error| measure_error(&format!("the XDP programs of {name}"), error))?;
        for (mode, id) in [
            ("xdp-driver", hook.drv_prog_id),
            ("xdp-generic", hook.skb_prog_id),
            ("xdp-hardware", hook.hw_prog_id),
        ] {
            if id != 0 {
                attachments.push(attachment(mode.to_owned(), programs.name(id)?));
            }
        }
        let filters = filters::filters_at(ifindex)
            .map_err(|error| measure_error(&format!("the filters of {name}"), error))?;
        for filter in filters {
            let program = match filter.program {
                Some(id) => programs.name(id)?,
                None => filter.kind,
            };
            attachments.push(attachment(filter.hook, program));
        }
        Ok(attachments)
    }
}

fn own_program(
    program: &Program<'_>,
    maps: &BTreeMap<i32, String>,
    programs: &mut Programs,
) -> Result<(), DataPlaneError> {
    let name = program.name().to_string_lossy().into_owned();
    let subject = || format!("program {name}");
    let id = Program::id_from_fd(program.as_fd()).map_err(|error| measure_error(&subject(), error))?;
    let kernel = ProgramHandle::from_prog_id(id).map_err(|error| measure_error(&subject(), error))?;
    if !instructions::is_tag(kernel.tag(), program.insns()) {
        return Err(measure_error(
            &subject(),
            format!(
                "the kernel's tag {} differs from that of the loaded program",
                hex(&kernel.tag())
            ),
        ));
    }
    let digest = instructions::digest(program.insns(), maps).ok_or_else(|| {
        measure_error(
            &subject(),
            "the program uses a map that does not belong to the gateway",
        )
    })?;
    programs.entries.push(BpfProgram {
        name: name.clone(),
        instructions: digest,
    });
    programs.names.insert(id, name);
    Ok(())
}

/// The definition of a map, as the kernel reports it.
fn definition(map: &Map<'_>, name: &str) -> Result<BpfMap, DataPlaneError> {
    let kernel = MapInfo::new(map.as_fd()).map_err(|error| measure_error(&format!("map {name}"), error))?;
    Ok(BpfMap {
        name: name.to_owned(),
        map_type: kernel.info.type_,
        key_bytes: kernel.info.key_size,
        value_bytes: kernel.info.value_size,
        entries_max: kernel.info.max_entries,
        flags: kernel.info.map_flags,
    })
}

/// The name of a map. The object's name, which precedes the name of a compiler section, is removed.
fn map_name(map: &Map<'_>) -> String {
    let name = map.name().to_string_lossy().into_owned();
    match name.rsplit_once('.') {
        Some((_, section)) => format!(".{section}"),
        None => name,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn measure_error(
    subject: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> DataPlaneError {
    DataPlaneError::kernel(format!("measuring {subject}"), error)
}
