//! Bulk enrollment and import.

use linewarden_api::ImportQuery;
use linewarden_cli::failure::Failure;
use linewarden_client::Client;
use linewarden_registry::{BulkOptions, Credentials, ExportFile, ExportKey, NewDevice, OnConflict, Progress};
use linewarden_service::convert;

/// A chunk is sent when its estimated size reaches this number of bytes. The API stores the chunk in one
/// transaction, and the client keeps the chunk until the response.
const CHUNK_BYTES: usize = 4 << 20;
/// Estimated size of a device in a request, without rows, bands and PUF description.
const DEVICE_BYTES: usize = 512;
/// Estimated size of a row in a request.
const ROW_BYTES: usize = 60;
/// Estimated size of one band of a fingerprint.
const BAND_BYTES: usize = 10;

/// Enrolls devices in chunks, and calls `progress` after each chunk; returns the number of stored devices.
pub async fn enroll_devices(
    client: &Client,
    devices: impl IntoIterator<Item = NewDevice>,
    options: BulkOptions,
    reason: &str,
    progress: impl FnMut(Progress),
) -> Result<u64, Failure> {
    let devices = devices.into_iter().map(Ok);
    send_chunks(client, devices, None, options, reason, progress).await
}

/// Imports an export file; returns the number of stored devices. The whole file is verified before the first device is
/// stored.
pub async fn import_file(
    client: &Client,
    path: &std::path::Path,
    key: &ExportKey,
    options: BulkOptions,
    reason: &str,
    progress: impl FnMut(Progress),
) -> Result<u64, Failure> {
    let mut file = ExportFile::check(path, key)?;
    let total = Some(file.devices());
    let devices = file.read(key)?.map(|device| device.map_err(Failure::from));
    send_chunks(client, devices, total, options, reason, progress).await
}

fn estimated_bytes(device: &NewDevice) -> usize {
    let rows = match &device.record.credentials {
        Credentials::Key(_) => 1,
        Credentials::Pool { rows, .. } => rows.len(),
    };
    let fixed_bytes = device.record.puf_profile.len().saturating_add(DEVICE_BYTES);
    let bands = device
        .fingerprint
        .as_ref()
        .map_or(0, |fingerprint| fingerprint.bands().len());
    rows.saturating_mul(ROW_BYTES)
        .saturating_add(fixed_bytes)
        .saturating_add(bands * BAND_BYTES)
}

/// Sends devices to the API in chunks; returns the number of stored devices.
async fn send_chunks(
    client: &Client,
    devices: impl Iterator<Item = Result<NewDevice, Failure>>,
    total: Option<u64>,
    options: BulkOptions,
    reason: &str,
    mut progress: impl FnMut(Progress),
) -> Result<u64, Failure> {
    let query = ImportQuery {
        on_conflict: Some(
            match options.on_conflict {
                OnConflict::Refuse => "refuse",
                OnConflict::Replace => "replace",
            }
            .to_owned(),
        ),
    };
    let (mut chunk, mut chunk_bytes, mut done) = (Vec::new(), 0, 0);
    let mut devices = devices.peekable();
    while let Some(device) = devices.next() {
        let device = device.map_err(|failure| with_stored_count(failure, done))?;
        chunk_bytes += estimated_bytes(&device);
        chunk.push(convert::new_device_from_record(&device));
        if chunk.len() < options.chunk_devices && chunk_bytes < CHUNK_BYTES && devices.peek().is_some() {
            continue;
        }
        let result = client.import_devices(&chunk, &query, reason).await;
        result.map_err(|error| with_stored_count(error.into(), done))?;
        done += chunk.len() as u64;
        progress(Progress { done, total });
        (chunk, chunk_bytes) = (Vec::new(), 0);
    }
    Ok(done)
}

/// Adds the number of stored devices to a failure, so that the operator can continue with the remaining devices.
fn with_stored_count(failure: Failure, done: u64) -> Failure {
    match done {
        0 => failure,
        done => failure.with_detail(format_args!(
            "stored before the failure: {}",
            linewarden_cli::output::counted(done, "device")
        )),
    }
}
