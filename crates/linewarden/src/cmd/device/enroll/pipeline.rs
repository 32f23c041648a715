//! Enrollment of many devices: worker threads enroll, one transaction per chunk stores, and a bar shows progress.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_registry::{BulkOptions, DeviceRecord, NewDevice, OnConflict, RegistryError};

use super::CommonArgs;
use super::enroller::Enroller;
use super::files::{DeviceFiles, GatewayRoute};
use crate::cmd::{now_s, random_u64};
use crate::registry_access::RegistryAccess;

/// Devices per transaction.
const CHUNK_DEVICES: usize = 500;
/// Maximum number of refused chips in a row; more indicate wrong parameters.
const REJECTED_IN_A_ROW_MAX: u32 = 5;

/// State that all worker threads share.
struct EnrollmentJob<'a> {
    common: &'a CommonArgs,
    enroller: &'a Enroller,
    enrolled_at_s: u64,
    /// First row of the pool: 0, or the row after those already leased.
    first_idx: RowIndex,
    started: AtomicU64,
    /// Number of refused chips that were replaced by others.
    rejected: AtomicU64,
    /// Devices whose files are written.
    written: Mutex<Vec<DeviceId>>,
    stop: AtomicBool,
}

/// Enrolls all devices and stores them.
pub fn run(common: &CommonArgs, maker: &Enroller, output: Output) -> Result<(), Failure> {
    common.access.with(async |site| {
        let work = EnrollmentJob {
            common,
            enroller: maker,
            enrolled_at_s: now_s()?,
            first_idx: first_idx(site, common).await?,
            started: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            written: Mutex::default(),
            stop: AtomicBool::new(false),
        };
        let devices = enroll_all(site, &work, output).await?;
        print_devices(output, common, &devices)?;
        match work.rejected.load(Ordering::Relaxed) {
            0 => Ok(()),
            rejected => output.line(format_args!(
                "replaced {} with too little min-entropy or a failed health test",
                counted(rejected, "chip")
            )),
        }
    })
}

/// Rejects early an enrollment that the registry would reject, and determines the first row of a replaced pool.
async fn first_idx(site: &RegistryAccess, common: &CommonArgs) -> Result<RowIndex, Failure> {
    let Some(device) = common.device else {
        return Ok(RowIndex(0));
    };
    match (site.find(device).await?, common.replace) {
        (Some(known), _) if known.status == "revoked" => Err(RegistryError::Revoked { device }.into()),
        (Some(known), true) => Ok(RowIndex(known.idx_floor)),
        (Some(_), false) => Err(RegistryError::AlreadyEnrolled { device }.into()),
        (None, false) => Ok(RowIndex(0)),
        (None, true) => Err(RegistryError::UnknownDevice { device }.into()),
    }
}

async fn enroll_all(
    site: &RegistryAccess,
    work: &EnrollmentJob<'_>,
    output: Output,
) -> Result<Vec<DeviceId>, Failure> {
    let total = work.enroller.count();
    let threads = available_parallelism().map_or(1, usize::from);
    let bar = output.progress(total, "enrolling");
    let (sender, receiver) = sync_channel(2 * threads);
    let options = BulkOptions {
        chunk_devices: CHUNK_DEVICES,
        on_conflict: if work.common.replace {
            OnConflict::Replace
        } else {
            OnConflict::Refuse
        },
    };
    // The devices in the order of the registry's chunks, and how many of them are stored.
    let (devices, stored) = (RefCell::new(Vec::new()), Cell::new(0));
    let (mut broken, mut misplaced) = (None, None);
    let result = std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(total).unwrap_or(threads)) {
            let sender = sender.clone();
            scope.spawn(move || enroll_some(work, &sender));
        }
        drop(sender);
        let records = receive_records(receiver, &mut broken, |device| {
            devices.borrow_mut().push(device);
            bar.inc(1);
        });
        let result =
            block_in_place_on(
                site.enroll_bulk(records, options, &work.common.reason.reason, |progress| {
                    let done = usize::try_from(progress.done).unwrap_or(usize::MAX);
                    for device in devices.borrow().iter().take(done).skip(stored.get()) {
                        if let Err(failure) = DeviceFiles::new(&work.common.out, *device).commit() {
                            misplaced.get_or_insert(failure);
                        }
                    }
                    stored.set(done);
                }),
            );
        // Always stops the worker threads.
        work.stop.store(true, Ordering::Release);
        result
    });
    bar.finish_and_clear();
    let mut devices = devices.into_inner();
    devices.truncate(stored.get());
    discard_unstored(work, &devices);
    result?;
    match misplaced.or(broken) {
        None => Ok(devices),
        Some(failure) => Err(failure.with_detail(format_args!(
            "enrolled before the failure: {}",
            counted(devices.len() as u64, "device")
        ))),
    }
}

fn discard_unstored(work: &EnrollmentJob<'_>, stored: &[DeviceId]) {
    let stored: HashSet<DeviceId> = stored.iter().copied().collect();
    let written = work.written.lock().unwrap_or_else(PoisonError::into_inner);
    for device in written.iter().filter(|device| !stored.contains(device)) {
        DeviceFiles::new(&work.common.out, *device).discard();
    }
}

/// Blocks on the present runtime: the records come from other threads, and the database uses its own.
fn block_in_place_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// The records up to the first failure, which is stored in `broken`.
fn receive_records(
    receiver: Receiver<Result<NewDevice, Failure>>,
    broken: &mut Option<Failure>,
    mut taken: impl FnMut(DeviceId),
) -> impl Iterator<Item = NewDevice> {
    receiver.into_iter().map_while(move |made| match made {
        Ok(record) => {
            taken(record.record.device);
            Some(record)
        }
        Err(failure) => {
            broken.get_or_insert(failure);
            None
        }
    })
}

fn enroll_some(work: &EnrollmentJob<'_>, sender: &SyncSender<Result<NewDevice, Failure>>) {
    while !work.stop.load(Ordering::Acquire) {
        let index = work.started.fetch_add(1, Ordering::Relaxed);
        if index >= work.enroller.count() {
            return;
        }
        let made = enroll_one(work, index);
        let failed = made.is_err();
        if sender.send(made).is_err() || failed {
            return;
        }
    }
}

/// Enrolls a device. An unfit simulated chip is replaced by another one, as in a factory.
fn enroll_one(work: &EnrollmentJob<'_>, index: u64) -> Result<NewDevice, Failure> {
    let device = match work.common.device {
        Some(device) => device,
        None => random_device()?,
    };
    let kept = match work.enroller.has_more_chips() {
        true => DeviceFiles::new(&work.common.out, device).existing_chip()?,
        false => Some(0),
    };
    let mut chip = kept.unwrap_or(0);
    loop {
        match enroll_chip(work, index, device, chip) {
            Err(failure) if failure.is_unsafe() && kept.is_none() && chip < REJECTED_IN_A_ROW_MAX => {
                chip += 1;
                work.rejected.fetch_add(1, Ordering::Relaxed);
            }
            result => return result,
        }
    }
}

fn enroll_chip(
    work: &EnrollmentJob<'_>,
    index: u64,
    device: DeviceId,
    chip: u32,
) -> Result<NewDevice, Failure> {
    let files = DeviceFiles::new(&work.common.out, device);
    if !work.common.replace {
        files.check_absent()?;
    }
    let made = work.enroller.enroll(device, work.first_idx, chip)?;
    let route = GatewayRoute {
        address: work.common.gateway.as_deref(),
        interface: work.common.interface.as_deref(),
    };
    let written = files.write(device, &made.helper, route, &made.puf_section);
    work.written
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(device);
    written?;
    let name = match (work.enroller.count(), work.common.name.as_str()) {
        (1, name) => name.to_owned(),
        (_, "") => String::new(),
        (_, prefix) => format!("{prefix} {}", index + 1),
    };
    let record = DeviceRecord {
        device,
        name,
        suite: Suite::SipHash128,
        enrolled_at_s: work.enrolled_at_s,
        puf_profile: made.profile,
        credentials: made.credentials,
    };
    Ok(NewDevice {
        fingerprint: made.fingerprint,
        ..record.into()
    })
}

/// A random ID: IDs are sparse, so that guessing finds none; the registry refuses duplicates.
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
