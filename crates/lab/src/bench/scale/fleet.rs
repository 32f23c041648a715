//! A fleet from enrollment to the data plane, including the load after a restart.

use std::sync::Arc;
use std::time::Instant;

use linewarden_controller::{Controller, Link, Policy};
use linewarden_dataplane::store::{Regions, wire_word};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, Geometry};
use linewarden_gateway::{Clock, Node, Settings};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, halves};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    BulkOptions, Credentials, DeviceRecord, LeaseRequest, MasterKey, PoolRow, Registry, RegistryError,
};
use linewarden_types::ControllerResponse;

use super::{Progress, Size};
use crate::bench::keys::{self, GATEWAY_ID};
use crate::bench::{BenchError, Row, io};
use crate::fleet::device_id;

/// Target: rows per second that a restart installs.
const INSTALL_TARGET_PER_S: f64 = 5e6;
/// Target: bytes per row, all memory included.
const MEMORY_TARGET_BYTES: f64 = 32.0;
/// Devices per lease request.
const LEASE_DEVICES: usize = 5_000;

/// Enrolls a fleet, leases its rows, restarts, loads the fleet and checks every row.
///
/// # Errors
/// An error of the registry or of the data plane, or a row with a wrong value.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io("start the async runtime"))?;
    runtime.block_on(measure(size, progress, rows))
}

async fn measure(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let directory = tempfile::tempdir().map_err(io("create a directory"))?;
    let path = directory.path().join("fleet.registry");
    let key = MasterKey::from_bytes([0x42; 32]);
    let registry = Registry::create(&path, &key).await?;

    let started = Instant::now();
    let options = BulkOptions::default();
    let report = |done: linewarden_registry::Progress| {
        progress(
            "enrolling (rows from a seeded generator)",
            Some((done.done, size.devices.into())),
        );
    };
    let fleet = (0..size.devices).map(|device| record(device, size.rows));
    registry.enroll_bulk(fleet, options, report).await?;
    let devices = f64::from(size.devices);
    rows.push(Row::higher(
        "enroll.devices_per_s",
        devices / started.elapsed().as_secs_f64(),
        "1/s",
        None,
    ));

    let started = Instant::now();
    lease_all(size, &registry, progress).await?;
    rows.push(Row::higher(
        "lease.devices_per_s",
        devices / started.elapsed().as_secs_f64(),
        "1/s",
        None,
    ));
    registry.close().await;

    // The gateway restarts with no device in memory.
    let started = Instant::now();
    let registry = Registry::open(&path, &key).await?;
    let controller = Controller::new(registry, policy(size));
    let link = controller.register(GATEWAY_ID, 2).await?;
    let config = config(size);
    let xdp = Xdp::load(&config)?;
    let regions = Arc::clone(xdp.store().regions());
    let mut node =
        Node::new(Box::new(xdp), Settings::for_data_plane(&config)).map_err(invalid_measurement)?;
    let installed = load(size, &link, &mut node, progress).await?;
    let total = devices * f64::from(size.rows);
    rows.extend([
        Row::lower("restart.load_s", started.elapsed().as_secs_f64(), "s", None),
        Row::higher(
            "install.rows_per_s",
            total / installed.busy_s,
            "1/s",
            Some(INSTALL_TARGET_PER_S),
        ),
    ]);
    let (maps, user) = resident_bytes()?;
    rows.push(Row::fact("resident.maps_bytes", maps as f64, "B"));
    rows.push(Row::fact("resident.user_bytes", user as f64, "B"));
    rows.push(Row::lower(
        "resident.bytes_per_row",
        (maps + user) as f64 / total,
        "B",
        Some(MEMORY_TARGET_BYTES),
    ));
    for gib in super::MEMORY_SIZES_GIB {
        let devices = f64::from(gib) * f64::from(1 << 30) / ((maps + user) as f64 / devices);
        rows.push(Row::fact(
            format!("resident.devices.{gib}_gib"),
            devices.floor(),
            "devices",
        ));
    }
    progress("checking every row", None);
    check_rows(size, &regions, &config.geometry)?;
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

/// The seeded generator of rows.
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

/// Leases the rows of all devices, as if every device had authenticated once.
async fn lease_all(size: &Size, registry: &Registry, progress: Progress<'_>) -> Result<(), BenchError> {
    let fencing_token = registry.register_gateway(GATEWAY_ID, 1).await?;
    let devices: Vec<DeviceId> = (0..size.devices).map(device_id).collect();
    let mut done = 0;
    for batch in devices.chunks(LEASE_DEVICES) {
        let requests: Vec<LeaseRequest> = batch
            .iter()
            .map(|device| LeaseRequest {
                device: *device,
                epoch: 0,
                from: RowIndex(0),
                received: RowIndex(0),
                hold_rows: size.rows,
                spendable_rows: 0,
                statement: RowStatement::default(),
            })
            .collect();
        for lease in registry.lease(&fencing_token, &requests).await? {
            drop(lease?);
        }
        done += batch.len() as u64;
        progress("leasing", Some((done, size.devices.into())));
    }
    Ok(())
}

/// Time for decryption, key derivation and installation, without reading the file.
struct LoadTime {
    busy_s: f64,
}

async fn load(
    size: &Size,
    link: &Link,
    node: &mut Node,
    progress: Progress<'_>,
) -> Result<LoadTime, BenchError> {
    let mut leases = link.leases();
    let mut busy_s = 0.0;
    while let Some(sealed) = leases.read().await? {
        let started = Instant::now();
        let chunk = leases.open(sealed);
        node.handle_response(ControllerResponse::ResumeLeases(Ok(chunk)), Clock::now(), 0);
        busy_s += started.elapsed().as_secs_f64();
        let done = node.status().devices;
        progress("loading after the restart", Some((done, size.devices.into())));
    }
    let done = node.status().devices;
    if done != u64::from(size.devices) {
        return Err(invalid_measurement(format!(
            "only {done} of {} devices were loaded after the restart",
            size.devices
        )));
    }
    Ok(LoadTime { busy_s })
}

fn invalid_measurement(reason: impl std::fmt::Display) -> BenchError {
    BenchError::InvalidMeasurement(reason.to_string())
}

/// Checks that every row is in the line or the ring of its device, with the key of this gateway.
fn check_rows(size: &Size, regions: &Regions, geometry: &Geometry) -> Result<(), BenchError> {
    let order = std::sync::atomic::Ordering::Acquire;
    for device in 0..size.devices {
        let differs = || {
            invalid_measurement(format!(
                "the rows of device {device} differ from the enrolled rows"
            ))
        };
        let id = wire_word(device_id(device).0.to_be_bytes());
        let (line, _) = regions.find(geometry, id).ok_or_else(differs)?;
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
            let (challenge, auth_key) = if idx == 0 {
                (&line.challenge, &line.auth_key)
            } else {
                let ring = geometry.ring;
                let cell_index = slot * ring as usize + (idx % ring) as usize;
                let cell = regions.rows.get(cell_index).ok_or_else(differs)?;
                (&cell.challenge, &cell.auth_key)
            };
            let is_equal = challenge.load(order) == u64::from_ne_bytes(expected.challenge)
                && auth_key.each_ref().map(|half| half.load(order))
                    == halves(key.as_bytes()).map(u64::from_ne_bytes);
            if !is_equal {
                return Err(differs());
            }
        }
    }
    Ok(())
}

/// The memory of all BPF maps of this process by the kernel's accounting, and the memory of the process, bytes.
fn resident_bytes() -> Result<(u64, u64), BenchError> {
    let number = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let mut maps = 0;
    let entries = std::fs::read_dir("/proc/self/fdinfo").map_err(io("read /proc/self/fdinfo"))?;
    let mut counted_ids = Vec::new();
    for entry in entries.flatten() {
        // The descriptor of the directory itself is closed.
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        let map = number(&text, "map_id:").zip(number(&text, "memlock:"));
        if let Some((id, bytes)) = map.filter(|(id, _)| !counted_ids.contains(id)) {
            counted_ids.push(id);
            maps += bytes;
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").map_err(io("read /proc/self/status"))?;
    let user = number(&status, "RssAnon:").unwrap_or_default() * 1024;
    Ok((maps, user))
}

impl From<RegistryError> for BenchError {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}
