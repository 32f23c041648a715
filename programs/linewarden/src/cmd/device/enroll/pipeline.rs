//! Enrollment of many devices. Worker threads read the PUFs, one transaction stores each chunk of devices, and a bar shows
//! the progress.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::{now_s, random_u64};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use linewarden_client::Client;
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_registry::{
    BulkOptions, DeviceError, DeviceRecord, NewDevice, OnConflict, Progress, RegistryError,
};

use super::CommonArgs;
use super::enroller::Enroller;
use super::files::{DeviceFiles, GatewayRoute};
use crate::access::enroll_devices;

/// Number of devices per transaction.
const CHUNK_DEVICES: usize = 500;
/// Maximum number of chips that are replaced for one device. If even the next chip is refused, the parameters are
/// probably wrong.
const REPLACED_CHIPS_PER_DEVICE_MAX: u32 = 5;

/// State that all worker threads share.
struct EnrollmentJob<'a> {
    common: &'a CommonArgs,
    enroller: &'a Enroller,
    enrolled_at_s: u64,
    /// First row of the pool: 0, or the row after the rows that are already leased.
    first_idx: RowIndex,
    /// Index of the next device to enroll.
    next_index: AtomicU64,
    /// Number of refused chips that were replaced.
    replaced_chips: AtomicU64,
    /// Devices whose files were written, at least in part.
    devices_with_files: Mutex<Vec<DeviceId>>,
    /// Whether the worker threads must stop.
    stop: AtomicBool,
}

/// Enrolls all devices and stores them.
pub fn run(common: &CommonArgs, enroller: &Enroller, output: Output) -> Result<(), Failure> {
    common.access.with(async |client| {
        let job = EnrollmentJob {
            common,
            enroller,
            enrolled_at_s: now_s()?,
            first_idx: first_idx(client, common).await?,
            next_index: AtomicU64::new(0),
            replaced_chips: AtomicU64::new(0),
            devices_with_files: Mutex::default(),
            stop: AtomicBool::new(false),
        };
        let devices = enroll_all(client, &job, output).await?;
        print_devices(output, common, &devices)?;
        match job.replaced_chips.load(Ordering::Relaxed) {
            0 => Ok(()),
            count => output.line(format_args!(
                "replaced {}, which had too little min-entropy or failed a health test",
                counted(count, "chip")
            )),
        }
    })
}

/// Returns the first row of the pool. Rejects, before any PUF is read, an enrollment that the registry would reject.
async fn first_idx(client: &Client, common: &CommonArgs) -> Result<RowIndex, Failure> {
    let Some(device) = common.device else {
        return Ok(RowIndex(0));
    };
    let known = match client.device(&device.to_string()).await {
        Err(error) if error.code() == Some("unknown_device") => None,
        result => Some(result?),
    };
    match (known, common.replace) {
        (Some(known), _) if known.status == "revoked" => {
            Err(RegistryError::Device(DeviceError::Revoked { device }).into())
        }
        (Some(known), true) => Ok(RowIndex(known.idx_floor)),
        (Some(_), false) => Err(RegistryError::Device(DeviceError::AlreadyEnrolled { device }).into()),
        (None, false) => Ok(RowIndex(0)),
        (None, true) => Err(RegistryError::Device(DeviceError::UnknownDevice { device }).into()),
    }
}

async fn enroll_all(
    client: &Client,
    job: &EnrollmentJob<'_>,
    output: Output,
) -> Result<Vec<DeviceId>, Failure> {
    let total = job.enroller.count();
    let threads = available_parallelism().map_or(1, usize::from);
    let bar = output.progress(total, "enrolling");
    let (sender, receiver) = sync_channel(2 * threads);
    let options = BulkOptions {
        chunk_devices: CHUNK_DEVICES,
        on_conflict: if job.common.replace {
            OnConflict::Replace
        } else {
            OnConflict::Refuse
        },
    };
    // The devices in the order in which the registry receives them, and the number of stored devices.
    let (devices, stored) = (RefCell::new(Vec::new()), Cell::new(0));
    let (mut enroll_failure, mut commit_failure) = (None, None);
    let result = std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(total).unwrap_or(threads)) {
            let sender = sender.clone();
            scope.spawn(move || run_worker(job, &sender));
        }
        drop(sender);
        let records = receive_records(receiver, &mut enroll_failure, |device| {
            devices.borrow_mut().push(device);
            bar.inc(1);
        });
        let on_stored = |progress: Progress| {
            let done = usize::try_from(progress.done).unwrap_or(usize::MAX);
            for device in devices.borrow().iter().take(done).skip(stored.get()) {
                if let Err(failure) = DeviceFiles::new(&job.common.out, *device).commit() {
                    commit_failure.get_or_insert(failure);
                }
            }
            stored.set(done);
        };
        let reason = &job.common.reason.reason;
        let result = block_in_place_on(enroll_devices(client, records, options, reason, on_stored));
        // The worker threads must stop also after an error.
        job.stop.store(true, Ordering::Release);
        result
    });
    bar.finish_and_clear();
    let mut devices = devices.into_inner();
    devices.truncate(stored.get());
    discard_unstored(job, &devices);
    result?;
    match commit_failure.or(enroll_failure) {
        None => Ok(devices),
        Some(failure) => Err(failure.with_detail(format_args!(
            "enrolled before the failure: {}",
            counted(devices.len() as u64, "device")
        ))),
    }
}

fn discard_unstored(job: &EnrollmentJob<'_>, stored: &[DeviceId]) {
    let stored: HashSet<DeviceId> = stored.iter().copied().collect();
    let devices = job
        .devices_with_files
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    for device in devices.iter().filter(|device| !stored.contains(device)) {
        DeviceFiles::new(&job.common.out, *device).discard();
    }
}

/// Blocks this thread until `future` has ended. Meanwhile, the worker threads produce records, and the database uses its
/// own threads.
fn block_in_place_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// Returns the records up to the first failure, which is stored in `enroll_failure`.
fn receive_records(
    receiver: Receiver<Result<NewDevice, Failure>>,
    enroll_failure: &mut Option<Failure>,
    mut on_record: impl FnMut(DeviceId),
) -> impl Iterator<Item = NewDevice> {
    receiver.into_iter().map_while(move |enrolled| match enrolled {
        Ok(record) => {
            on_record(record.record.device);
            Some(record)
        }
        Err(failure) => {
            enroll_failure.get_or_insert(failure);
            None
        }
    })
}

fn run_worker(job: &EnrollmentJob<'_>, sender: &SyncSender<Result<NewDevice, Failure>>) {
    while !job.stop.load(Ordering::Acquire) {
        let index = job.next_index.fetch_add(1, Ordering::Relaxed);
        if index >= job.enroller.count() {
            return;
        }
        let enrolled = enroll_one(job, index);
        let failed = enrolled.is_err();
        if sender.send(enrolled).is_err() || failed {
            return;
        }
    }
}

/// Enrolls a device. An unfit simulated chip is replaced by another chip, as in a factory.
fn enroll_one(job: &EnrollmentJob<'_>, index: u64) -> Result<NewDevice, Failure> {
    let device = match job.common.device {
        Some(device) => device,
        None => random_device()?,
    };
    let existing_chip = match job.enroller.has_more_chips() {
        true => DeviceFiles::new(&job.common.out, device).existing_chip()?,
        false => Some(0),
    };
    let mut chip = existing_chip.unwrap_or(0);
    loop {
        match enroll_chip(job, index, device, chip) {
            Err(failure)
                if failure.is_unsafe() && existing_chip.is_none() && chip < REPLACED_CHIPS_PER_DEVICE_MAX =>
            {
                chip += 1;
                job.replaced_chips.fetch_add(1, Ordering::Relaxed);
            }
            result => return result,
        }
    }
}

fn enroll_chip(
    job: &EnrollmentJob<'_>,
    index: u64,
    device: DeviceId,
    chip: u32,
) -> Result<NewDevice, Failure> {
    let files = DeviceFiles::new(&job.common.out, device);
    if !job.common.replace {
        files.check_absent()?;
    }
    let enrolled = job.enroller.enroll(device, job.first_idx, chip)?;
    let route = GatewayRoute {
        address: job.common.gateway.as_deref(),
        interface: job.common.interface.as_deref(),
    };
    let write_result = files.write(device, &enrolled.helper, route, &enrolled.puf_section);
    job.devices_with_files
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(device);
    write_result?;
    let name = match (job.enroller.count(), job.common.name.as_str()) {
        (1, name) => name.to_owned(),
        (_, "") => String::new(),
        (_, prefix) => format!("{prefix} {}", index + 1),
    };
    let record = DeviceRecord {
        device,
        name,
        suite: Suite::SipHash128,
        enrolled_at_s: job.enrolled_at_s,
        puf_profile: enrolled.profile,
        credentials: enrolled.credentials,
    };
    Ok(NewDevice {
        fingerprint: enrolled.fingerprint,
        ..record.into()
    })
}

/// Returns a random ID. IDs are sparse, so that an attacker cannot guess an ID; the registry refuses duplicates.
fn random_device() -> Result<DeviceId, Failure> {
    loop {
        let id = random_u64()?;
        if id != 0 {
            return Ok(DeviceId(id));
        }
    }
}

fn print_devices(output: Output, common: &CommonArgs, devices: &[DeviceId]) -> Result<(), Failure> {
    for device in devices {
        let files = DeviceFiles::new(&common.out, *device);
        output.object(&serde_json::json!({
            "device_id": device.to_string(), "helper": files.helper, "agent_config": files.config,
        }))?;
    }
    if let [device] = devices {
        let files = DeviceFiles::new(&common.out, *device);
        return output.line(format_args!(
            "enrolled device {device}; copy to the device: {} and {}",
            files.helper.display(),
            files.config.display()
        ));
    }
    output.line(format_args!(
        "enrolled {}; their files are in {}",
        counted(devices.len() as u64, "device"),
        common.out.display()
    ))
}
