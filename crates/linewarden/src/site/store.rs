//! Devices in numbers.

use linewarden_client::Client;
use linewarden_registry::{BulkOptions, Credentials, ExportFile, ExportKey, NewDevice, OnConflict, Progress};
use linewarden_service::wire::{How, NewDevice as WireDevice};

use super::{Site, acting, note, wanted};
use crate::failure::Failure;

/// What is sent in one question: a controller stores it in one transaction, and it is kept until that is known.
const CHUNK_BYTES: usize = 4 << 20;
/// Of a device without its rows, and of one row, as it is sent.
const DEVICE_BYTES: usize = 512;
const ROW_BYTES: usize = 60;
/// Of a band of a fingerprint.
const BAND_BYTES: usize = 10;

impl Site {
    /// Enrols devices, a chunk at a time, with `progress` after each; how many were stored.
    pub async fn enrol_bulk(
        &self,
        devices: impl IntoIterator<Item = NewDevice>,
        options: BulkOptions,
        reason: &str,
        progress: impl FnMut(Progress),
    ) -> Result<u64, Failure> {
        match self {
            Self::Local(registry) => {
                let acting = acting(registry, reason, note("enrolled", "devices enrolled here"))?;
                Ok(acting.enrol_bulk(devices, options, progress).await?)
            }
            Self::Remote(client) => {
                let devices = devices.into_iter().map(Ok);
                send(client, devices, None, options, wanted(reason)?, progress).await
            }
        }
    }

    /// Takes an export file in, which is checked as a whole before anything is stored.
    pub async fn import_file(
        &self,
        path: &std::path::Path,
        key: &ExportKey,
        options: BulkOptions,
        reason: &str,
        progress: impl FnMut(Progress),
    ) -> Result<u64, Failure> {
        match self {
            Self::Local(registry) => {
                let acting = acting(registry, reason, note("enrolled", "devices imported here"))?;
                Ok(acting.import_file(path, key, options, progress).await?)
            }
            Self::Remote(client) => {
                let reason = wanted(reason)?;
                let mut file = ExportFile::check(path, key)?;
                let total = Some(file.devices());
                let devices = file.read(key)?.map(|device| device.map_err(Failure::from));
                send(client, devices, total, options, reason, progress).await
            }
        }
    }
}

fn bytes_of(device: &NewDevice) -> usize {
    let rows = match &device.record.credentials {
        Credentials::Key(_) => 1,
        Credentials::Pool { rows, .. } => rows.len(),
    };
    let shut_out = device.record.puf_profile.len().saturating_add(DEVICE_BYTES);
    let bands = device.fingerprint.as_ref().map_or(0, |found| found.bands().len());
    rows.saturating_mul(ROW_BYTES)
        .saturating_add(shut_out)
        .saturating_add(bands * BAND_BYTES)
}

async fn send(
    client: &Client,
    devices: impl Iterator<Item = Result<NewDevice, Failure>>,
    total: Option<u64>,
    options: BulkOptions,
    reason: &str,
    mut progress: impl FnMut(Progress),
) -> Result<u64, Failure> {
    let how = How {
        on_conflict: Some(
            match options.on_conflict {
                OnConflict::Refuse => "refuse",
                OnConflict::Replace => "replace",
            }
            .to_owned(),
        ),
    };
    let (mut chunk, mut bytes, mut done) = (Vec::new(), 0, 0);
    let mut devices = devices.peekable();
    while let Some(device) = devices.next() {
        let device = device.map_err(|failure| after(failure, done))?;
        bytes += bytes_of(&device);
        chunk.push(WireDevice::from(&device));
        if chunk.len() < options.chunk_devices && bytes < CHUNK_BYTES && devices.peek().is_some() {
            continue;
        }
        let stored = client.import(&chunk, &how, reason).await;
        stored.map_err(|error| after(error.into(), done))?;
        done += chunk.len() as u64;
        progress(Progress { done, total });
        (chunk, bytes) = (Vec::new(), 0);
    }
    Ok(done)
}

/// What is there already is said: the rest can be sent once more.
fn after(failure: Failure, done: u64) -> Failure {
    match done {
        0 => failure,
        done => failure.and(format_args!(
            "stored before: {}",
            crate::output::counted(done, "device")
        )),
    }
}
