//! `[evidence]`: keys of signed evidence and of evidence in packets.

use linewarden_cli::evidence;
use linewarden_evidence::inband::MasterKey as PacketKey;
use linewarden_evidence::keys::Signer as EvidenceSigner;

use super::fields::GatewayConfig;
use crate::file::ConfigFile;
use crate::problem::Problem;

/// Checks the prerequisites for signed evidence.
pub(super) fn check_evidence(file: &ConfigFile<GatewayConfig>) -> Vec<Problem> {
    let Some(section) = &file.value.evidence else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    problems.extend(read_evidence_signer(file).err());
    problems.extend(read_packet_key(file).err());
    let paths = [
        ("boot_count", Some(&section.boot_count)),
        ("socket", section.socket.as_ref()),
    ];
    for (field, path) in paths {
        let directory = path.and_then(|path| path.parent());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            let problem = format!(
                "directory {} does not exist; create the directory",
                directory.display()
            );
            problems.push(file.problem(&["evidence", field], &problem));
        }
    }
    problems
}

/// Reads the key that signs evidence, if evidence is configured.
///
/// # Errors
/// The key cannot be read, is not a key, belongs to another TPM, or other users can read it.
pub fn read_evidence_signer(
    file: &ConfigFile<GatewayConfig>,
) -> Result<Option<Box<dyn EvidenceSigner + Send>>, Problem> {
    let Some(section) = &file.value.evidence else {
        return Ok(None);
    };
    match evidence::read_signer(&section.key, section.tpm.as_deref()) {
        Ok(signer) => Ok(Some(signer)),
        Err(failure) => Err(file
            .problem(&["evidence", "key"], &failure.to_string())
            .with_code(failure.code())),
    }
}

/// Reads the secret for the tags of in-packet evidence. Returns a key of zeros if no secret is configured: packets then
/// carry no evidence.
///
/// # Errors
/// The secret cannot be read, is malformed, or other users can read it.
pub fn read_packet_key(file: &ConfigFile<GatewayConfig>) -> Result<PacketKey, Problem> {
    let path = file
        .value
        .evidence
        .as_ref()
        .and_then(|section| section.packet_key_file.as_ref());
    let Some(path) = path else {
        return Ok(PacketKey::new([0; 16]));
    };
    evidence::packet_key(path).map_err(|failure| {
        file.problem(&["evidence", "packet_key_file"], &failure.to_string())
            .with_code(failure.code())
    })
}
