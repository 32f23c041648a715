//! A process killed at any moment never causes a row to be leased twice or a round number to be reserved twice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{BufRead as _, BufReader, PipeWriter, Write as _};
use std::process::{Child, Command, Stdio};

use crate::support::attestation::{NOW_S, appraisal, group, prover, round, with_enrollment};
use crate::support::{lease_request, master_key, pool_device, unused_location};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_registry::{BulkOptions, LeaseGrant, Location, Registry};
use linewarden_types::UnusedRows;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const DEVICES: u64 = 6;
const KILLS: u64 = 40;
const PATH_VARIABLE: &str = "LINEWARDEN_TEST_CRASH_PATH";
const SEED_VARIABLE: &str = "LINEWARDEN_TEST_CRASH_SEED";

/// Two gateways lease rows of the same devices and report them; both are killed with SIGKILL after a random number of
/// responses. No row is leased twice over all kills.
#[test]
async fn no_row_is_leased_twice_across_kills() {
    let (_directory, path) = unused_location();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    let pools = (1..=DEVICES).map(|id| pool_device(id, 20_000));
    registry
        .enroll_bulk(pools, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    registry.close().await;

    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut held_rows: HashSet<(u64, u32)> = HashSet::new();
    let mut reports = 0;
    for kill in 0..KILLS {
        reports += run_two_children(&path, &mut rng, &mut held_rows);
        let registry = Registry::open(&path, &master_key()).await.unwrap();
        assert!(
            registry.check().await.unwrap().is_empty(),
            "seed {seed}, kill {kill}"
        );
        for id in 1..=DEVICES {
            let floor = registry.get(DeviceId(id)).await.unwrap().idx_floor.0;
            let highest = held_rows
                .iter()
                .filter(|(device, _)| *device == id)
                .map(|(_, idx)| *idx)
                .max();
            assert!(
                highest.is_none_or(|idx| idx < floor),
                "seed {seed}, kill {kill}, device {id}"
            );
        }
        registry.close().await;
    }
    assert!(reports >= KILLS, "the children leased nothing");
}

/// Location of the parent's registry; `None` if this process is not a child of a test in this file.
fn registry_location() -> Option<Location> {
    std::env::var(PATH_VARIABLE).ok()?.parse().ok()
}

fn run_two_children(path: &Location, rng: &mut ChaCha8Rng, held_rows: &mut HashSet<(u64, u32)>) -> u64 {
    // Both children share one pipe, so that its order is the order of events.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut children = [
        spawn(path, rng.next_u64(), &writer),
        spawn(path, rng.next_u64(), &writer),
    ];
    drop(writer);
    let kill_after = rng.next_u64() % 60;
    let mut reports = 0;
    let mut reader = BufReader::new(reader);
    let mut killed = false;
    loop {
        if reports >= kill_after && !killed {
            killed = true;
            for child in &mut children {
                child.kill().unwrap();
            }
        }
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            break;
        }
        // A panic message starts with an empty line.
        if line == "\n" {
            std::io::Read::read_to_string(&mut reader, &mut line).unwrap();
            panic!("a child failed: {line}");
        }
        update_held_rows(line.trim_end(), held_rows);
        reports += 1;
    }
    for mut child in children {
        let status = child.wait().unwrap();
        assert_eq!(status.code(), None, "the child ended by itself: {status}");
    }
    reports
}

/// Updates the held rows. A child writes "taken DEVICE START END" after a lease returned, and "leave DEVICE START END"
/// before it returns rows.
fn update_held_rows(line: &str, held_rows: &mut HashSet<(u64, u32)>) {
    let fields: Vec<&str> = line.split(' ').collect();
    let [event, device, start, end] = fields[..] else {
        panic!("unexpected output of a child: {line}")
    };
    let device: u64 = device.parse().unwrap();
    for idx in start.parse::<u32>().unwrap()..end.parse().unwrap() {
        match event {
            "taken" => assert!(
                held_rows.insert((device, idx)),
                "row {idx} of device {device} was leased twice"
            ),
            "leave" => assert!(
                held_rows.remove(&(device, idx)),
                "row {idx} of device {device} was not held"
            ),
            _ => panic!("unexpected output of a child: {line}"),
        }
    }
}

fn spawn(path: &Location, seed: u64, writer: &PipeWriter) -> Child {
    spawn_test("child_leases_until_it_is_killed", path, seed, writer)
}

fn spawn_test(name: &str, path: &Location, seed: u64, writer: &PipeWriter) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg(format!("crash::{name}"))
        .env(PATH_VARIABLE, path.to_string())
        .env(SEED_VARIABLE, seed.to_string())
        .stdout(Stdio::null())
        .stderr(writer.try_clone().unwrap())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the child process of no_row_is_leased_twice_across_kills"]
async fn child_leases_until_it_is_killed() {
    let Some(path) = registry_location() else {
        return;
    };
    let seed: u64 = std::env::var(SEED_VARIABLE).unwrap().parse().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let registry = Registry::open(path, &master_key()).await.unwrap();
    // Gateway ids are never reused: leases of killed gateways are lost.
    let gateway = GatewayId(seed as u32);
    let fencing_token = registry.register_gateway(gateway, 0).await.unwrap();
    let mut next: HashMap<DeviceId, u32> = HashMap::new();
    loop {
        let mut device = || DeviceId(1 + rng.next_u64() % DEVICES);
        let devices: BTreeSet<DeviceId> = [device(), device(), device()].into();
        let requests: Vec<_> = devices
            .into_iter()
            .map(|device| lease_request(device, next.get(&device).copied().unwrap_or_default(), 4))
            .collect();
        for result in registry.lease(&fencing_token, &requests).await.unwrap() {
            let LeaseGrant { device, rows, .. } = result.unwrap();
            report("taken", device, &rows);
            let mut end = rows.end;
            if rng.next_u32().is_multiple_of(3) {
                // The lease may have fewer rows than requested, because an unleased range may be shorter.
                let unused_from = RowIndex(rows.start + rng.next_u32() % rows.len() as u32);
                // This report is before the return: after the return another gateway may receive the rows.
                report("leave", device, &(unused_from.0..rows.end));
                let unused_rows = UnusedRows {
                    device,
                    epoch: 0,
                    unused_from,
                    keep_leased: false,
                };
                let result = registry
                    .record_unused_rows(&fencing_token, &[unused_rows])
                    .await
                    .unwrap()
                    .remove(0);
                assert_eq!(result.unwrap(), rows.end - unused_from.0);
                end = unused_from.0;
            }
            next.insert(device, end);
        }
    }
}

fn report(event: &str, device: DeviceId, rows: &std::ops::Range<u32>) {
    // One write per line: two processes share the pipe.
    let line = format!("{event} {} {} {}\n", device.0, rows.start, rows.end);
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// A child reserves numbers, records rounds and reports each of them until it is killed. Over all kills no number is
/// reserved twice, and all recorded rounds exist with their appraisals.
#[test]
async fn no_round_has_the_number_of_another_across_kills() {
    let (_directory, path) = unused_location();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    let devices = (1..=DEVICES).map(|id| pool_device(id, 2));
    registry
        .enroll_bulk(devices, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    registry.set_group(&group("pumps"), 0).await.unwrap();
    for id in 1..=DEVICES {
        registry.enroll_prover(prover(id), NOW_S).await.unwrap();
    }
    registry.close().await;
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut reserved, mut recorded) = (BTreeSet::new(), 0);
    for _ in 0..KILLS {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child = spawn_test("child_records_rounds_until_it_is_killed", &path, 0, &writer);
        drop(writer);
        let kill_after = rng.next_u64() % 40;
        for (count, line) in (0..).zip(BufReader::new(reader).lines()) {
            let line = line.unwrap();
            let Some((event, number)) = line.split_once(' ') else {
                panic!("seed {seed}: the child failed: {line:?}")
            };
            let number: u32 = number.parse().unwrap();
            match event {
                "reserved" => assert!(
                    reserved.insert(number),
                    "seed {seed}: number {number} was used twice"
                ),
                _ => recorded = number,
            }
            if count == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let registry = Registry::open(&path, &master_key()).await.unwrap();
        assert!(registry.check().await.unwrap().is_empty(), "seed {seed}");
        let newest = registry.rounds(None, 1).await.unwrap();
        let newest = newest.first().map_or(0, |round| round.number);
        assert!(newest >= recorded, "seed {seed}: round {recorded} is lost");
        for id in 1..=DEVICES {
            let appraisal = registry.appraisal(DeviceId(id)).await.unwrap();
            // A round and its changes are stored atomically.
            assert_eq!(
                appraisal.map_or(0, |appraisal| appraisal.since_round),
                newest,
                "seed {seed}"
            );
        }
        registry.close().await;
    }
    assert!(recorded > 0, "the children recorded nothing");
}

#[test]
#[ignore = "the child process of no_round_has_the_number_of_another_across_kills"]
async fn child_records_rounds_until_it_is_killed() {
    let Some(path) = registry_location() else {
        return;
    };
    let registry = Registry::open(path, &master_key()).await.unwrap();
    let fencing_token = registry.register_gateway(GatewayId(1), 0).await.unwrap();
    let report = |what: &str, number: u32| {
        let line = format!("{what} {number}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    };
    loop {
        for number in registry
            .reserve_rounds(&fencing_token, 2, 0)
            .await
            .unwrap()
            .numbers
        {
            report("reserved", number);
            let appraisals = with_enrollment((1..=DEVICES).map(|id| appraisal(id, number)));
            registry
                .record_round(&fencing_token, &round(1, number), &appraisals)
                .await
                .unwrap();
            report("recorded", number);
        }
    }
}
