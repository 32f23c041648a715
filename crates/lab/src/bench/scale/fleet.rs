//! A fleet's way from enrolment to the data plane, and again after a restart.

use std::sync::Arc;
use std::time::Instant;

use linewarden_controller::{Controller, Link, Policy};
use linewarden_dataplane::store::{Regions, wire_word};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, Geometry};
use linewarden_gateway::{Answer, Clock, Node, Settings};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, halves};
use linewarden_protocol::nonce::Statement;
use linewarden_registry::{
    BulkOptions, Credentials, DeviceRecord, LeaseRequest, MasterKey, PoolRow, Registry, RegistryError,
};

use super::{Progress, Size};
use crate::bench::keys::{self, GATEWAY_ID};
use crate::bench::{BenchError, Row, io};
use crate::fleet::device_id;

/// Rows a second that a restart must install.
const INSTALL_BAR: f64 = 5e6;
/// Bytes a row may take, everything counted.
const MEMORY_BAR: f64 = 32.0;
/// Devices whose rows are leased in one question.
const LEASE_DEVICES: usize = 5_000;

/// Enrols, leases, restarts, loads and compares.
///
/// # Errors
/// The registry's, the data plane's, or a row that is not where it belongs.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io("starting a runtime"))?;
    runtime.block_on(story(size, progress, rows))
}

async fn story(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let directory = tempfile::tempdir().map_err(io("making a directory"))?;
    let path = directory.path().join("fleet.registry");
    let key = MasterKey::from_bytes([0x42; 32]);
    let registry = Registry::create(&path, &key).await?;

    let began = Instant::now();
    let options = BulkOptions::default();
    let told = |done: linewarden_registry::Progress| {
        progress(
            "enrolling (rows from a seeded generator)",
            Some((done.done, size.devices.into())),
        );
    };
    let fleet = (0..size.devices).map(|device| record(device, size.rows));
    registry.enrol_bulk(fleet, options, told).await?;
    let devices = f64::from(size.devices);
    rows.push(Row::higher(
        "enroll.devices_per_s",
        devices / began.elapsed().as_secs_f64(),
        "1/s",
        None,
    ));

    let began = Instant::now();
    lease_all(size, &registry, progress).await?;
    rows.push(Row::higher(
        "lease.devices_per_s",
        devices / began.elapsed().as_secs_f64(),
        "1/s",
        None,
    ));
    registry.close().await;

    // The restart: nothing of the fleet is in memory.
    let began = Instant::now();
    let registry = Registry::open(&path, &key).await?;
    let controller = Controller::new(registry, policy(size));
    let link = controller.connect(GATEWAY_ID, 2).await?;
    let config = config(size);
    let xdp = Xdp::load(&config)?;
    let regions = Arc::clone(xdp.store().regions());
    let mut node = Node::new(Box::new(xdp), Settings::for_plane(&config)).map_err(contradiction)?;
    let installed = load(size, &link, &mut node, progress).await?;
    let total = devices * f64::from(size.rows);
    rows.extend([
        Row::lower("restart.load_s", began.elapsed().as_secs_f64(), "s", None),
        Row::higher(
            "install.rows_per_s",
            total / installed.busy_s,
            "1/s",
            Some(INSTALL_BAR),
        ),
    ]);
    let (maps, user) = resident_bytes()?;
    rows.push(Row::fact("resident.maps_bytes", maps as f64, "B"));
    rows.push(Row::fact("resident.user_bytes", user as f64, "B"));
    rows.push(Row::lower(
        "resident.bytes_per_row",
        (maps + user) as f64 / total,
        "B",
        Some(MEMORY_BAR),
    ));
    for gib in super::MEMORIES_GIB {
        let devices = f64::from(gib) * f64::from(1 << 30) / ((maps + user) as f64 / devices);
        rows.push(Row::fact(
            format!("resident.devices.{gib}_gib"),
            devices.floor(),
            "devices",
        ));
    }
    progress("reading every row back", None);
    compare(size, &regions, &config.geometry)?;
    drop(node);
    rows.push(Row::fact("resident.rows", total, "rows"));
    Ok(())
}

fn config(size: &Size) -> Config {
    keys::config(size.devices, size.rows - 1)
}

fn policy(size: &Size) -> Policy {
    Policy {
        lease_rows: size.rows,
        mark_block: 4,
    }
}

/// The generator: half of a word per row, mixed.
fn row(device: u32, idx: u32) -> PoolRow {
    let mix = |salt: u64| {
        let mut word = (u64::from(device) << 32 | u64::from(idx)) ^ salt;
        word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        (word ^ (word >> 33)).to_be_bytes()
    };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(0x6b65_795f));
    key[8..].copy_from_slice(&mix(0x726f_775f));
    PoolRow {
        challenge: mix(0x6368_616c),
        row_key: RowKey::from_bytes(key),
    }
}

fn record(device: u32, rows: u32) -> DeviceRecord {
    DeviceRecord {
        device: device_id(device),
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: "seeded generator".to_owned(),
        credentials: Credentials::pool((0..rows).map(|idx| row(device, idx)).collect()),
    }
}

/// As if every device had authenticated once.
async fn lease_all(size: &Size, registry: &Registry, progress: Progress<'_>) -> Result<(), BenchError> {
    let fence = registry.register_gateway(GATEWAY_ID, 1).await?;
    let all: Vec<DeviceId> = (0..size.devices).map(device_id).collect();
    let mut done = 0;
    for part in all.chunks(LEASE_DEVICES) {
        let wishes: Vec<LeaseRequest> = part
            .iter()
            .map(|device| LeaseRequest {
                device: *device,
                epoch: 0,
                from: RowIndex(0),
                received: RowIndex(0),
                hold: size.rows,
                ahead: 0,
                stated: Statement::default(),
            })
            .collect();
        for granted in registry.lease(&fence, &wishes).await? {
            drop(granted?);
        }
        done += part.len() as u64;
        progress("leasing", Some((done, size.devices.into())));
    }
    Ok(())
}

/// How long opening, deriving and installing took; reading the file is not in it.
struct Installed {
    busy_s: f64,
}

async fn load(
    size: &Size,
    link: &Link,
    node: &mut Node,
    progress: Progress<'_>,
) -> Result<Installed, BenchError> {
    let mut leases = link.held();
    let mut busy_s = 0.0;
    while let Some(sealed) = leases.read().await? {
        let began = Instant::now();
        let chunk = leases.open(sealed);
        node.answer(Answer::Chunk(Ok(chunk)), Clock::now());
        busy_s += began.elapsed().as_secs_f64();
        let done = node.status().devices;
        progress("loading after the restart", Some((done, size.devices.into())));
    }
    let done = node.status().devices;
    if done != u64::from(size.devices) {
        return Err(contradiction(format!(
            "{done} of {} devices came back",
            size.devices
        )));
    }
    Ok(Installed { busy_s })
}

fn contradiction(what: impl std::fmt::Display) -> BenchError {
    BenchError::Contradiction(what.to_string())
}

/// Every row is in the line or the ring of its device, with the key of this gateway.
fn compare(size: &Size, regions: &Regions, geometry: &Geometry) -> Result<(), BenchError> {
    let order = std::sync::atomic::Ordering::Acquire;
    for device in 0..size.devices {
        let missing = || contradiction(format!("device {device}'s rows are not as enrolled"));
        let id = wire_word(device_id(device).0.to_be_bytes());
        let (line, _) = regions.find(geometry, id).ok_or_else(missing)?;
        let slot = line.slot.load(order) as usize;
        for idx in 0..size.rows {
            let expected = row(device, idx);
            let key = AuthKey::derive(
                &expected.row_key,
                Suite::SipHash128,
                Mode::Pool,
                RowIndex(idx),
                GATEWAY_ID,
            );
            let (challenge, found) = if idx == 0 {
                (&line.challenge, &line.auth_key)
            } else {
                let ring = geometry.ring;
                let at = slot * ring as usize + (idx % ring) as usize;
                let cell = regions.rows.get(at).ok_or_else(missing)?;
                (&cell.challenge, &cell.auth_key)
            };
            let is_there = challenge.load(order) == u64::from_ne_bytes(expected.challenge)
                && found.each_ref().map(|half| half.load(order))
                    == halves(key.as_bytes()).map(u64::from_ne_bytes);
            if !is_there {
                return Err(missing());
            }
        }
    }
    Ok(())
}

/// What the kernel says of every BPF map of this process, and the process's own memory, bytes.
fn resident_bytes() -> Result<(u64, u64), BenchError> {
    let number = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let mut maps = 0;
    let entries = std::fs::read_dir("/proc/self/fdinfo").map_err(io("reading /proc/self/fdinfo"))?;
    let mut seen = Vec::new();
    for entry in entries.flatten() {
        // Closed since: the directory's own.
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        let map = number(&text, "map_id:").zip(number(&text, "memlock:"));
        if let Some((id, bytes)) = map.filter(|(id, _)| !seen.contains(id)) {
            seen.push(id);
            maps += bytes;
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").map_err(io("reading /proc/self/status"))?;
    let user = number(&status, "RssAnon:").unwrap_or_default() * 1024;
    Ok((maps, user))
}

impl From<RegistryError> for BenchError {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}
