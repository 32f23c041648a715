//! Killed at any moment, the registry never leases a row twice, and never gives the number of a round twice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{BufRead as _, BufReader, PipeWriter, Write as _};
use std::process::{Child, Command, Stdio};

use crate::support::attestation::{NOW_S, appraisal, group, prover, round, told};
use crate::support::{master_key, nowhere, pool_device, wish};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_registry::{BulkOptions, Granted, Location, Registry, Settlement};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const DEVICES: u64 = 6;
const ROUNDS: u64 = 40;
const PATH: &str = "LINEWARDEN_TEST_CRASH_PATH";
const SEED: &str = "LINEWARDEN_TEST_CRASH_SEED";

/// Two gateways lease rows of the same devices and tell what they were given; both are killed with SIGKILL after
/// a random number of answers, at whatever they are doing then. Over all rounds no row is given twice.
#[tokio::test]
async fn no_row_is_leased_twice_across_kills() {
    let (_directory, path) = nowhere();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    let pools = (1..=DEVICES).map(|id| pool_device(id, 20_000));
    registry
        .enrol_bulk(pools, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    registry.close().await;

    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut held: HashSet<(u64, u32)> = HashSet::new();
    let mut answers = 0;
    for round in 0..ROUNDS {
        answers += round_of_two(&path, &mut rng, &mut held);
        let registry = Registry::open(&path, &master_key()).await.unwrap();
        assert!(
            registry.check().await.unwrap().is_empty(),
            "seed {seed}, round {round}"
        );
        for id in 1..=DEVICES {
            let floor = registry.get(DeviceId(id)).await.unwrap().idx_floor.0;
            let highest = held
                .iter()
                .filter(|(device, _)| *device == id)
                .map(|(_, idx)| *idx)
                .max();
            assert!(
                highest.is_none_or(|idx| idx < floor),
                "seed {seed}, round {round}, device {id}"
            );
        }
        registry.close().await;
    }
    assert!(answers >= ROUNDS, "the children leased nothing");
}

/// Where the parent process has its registry.
fn place() -> Option<Location> {
    std::env::var(PATH).ok()?.parse().ok()
}

fn round_of_two(path: &Location, rng: &mut ChaCha8Rng, held: &mut HashSet<(u64, u32)>) -> u64 {
    // One pipe for both, so that its order is the order in which things happened.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut children = [
        spawn(path, rng.next_u64(), &writer),
        spawn(path, rng.next_u64(), &writer),
    ];
    drop(writer);
    let kill_after = rng.next_u64() % 60;
    let mut answers = 0;
    let mut reader = BufReader::new(reader);
    let mut killed = false;
    loop {
        if answers >= kill_after && !killed {
            killed = true;
            for child in &mut children {
                child.kill().unwrap();
            }
        }
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            break;
        }
        // A panic's message begins with an empty line.
        if line == "\n" {
            std::io::Read::read_to_string(&mut reader, &mut line).unwrap();
            panic!("a child failed: {line}");
        }
        account(line.trim_end(), held);
        answers += 1;
    }
    for mut child in children {
        let status = child.wait().unwrap();
        assert_eq!(status.code(), None, "the child ended by itself: {status}");
    }
    answers
}

/// "taken DEVICE START END" after a lease returned; "leave DEVICE START END" before rows are given back.
fn account(line: &str, held: &mut HashSet<(u64, u32)>) {
    let words: Vec<&str> = line.split(' ').collect();
    let [what, device, start, end] = words[..] else {
        panic!("a child said: {line}")
    };
    let device: u64 = device.parse().unwrap();
    for idx in start.parse::<u32>().unwrap()..end.parse().unwrap() {
        match what {
            "taken" => assert!(
                held.insert((device, idx)),
                "row {idx} of device {device} was leased twice"
            ),
            "leave" => assert!(
                held.remove(&(device, idx)),
                "row {idx} of device {device} was not held"
            ),
            _ => panic!("a child said: {line}"),
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
        .env(PATH, path.to_string())
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(writer.try_clone().unwrap())
        .spawn()
        .unwrap()
}

#[tokio::test]
#[ignore = "the child process of no_row_is_leased_twice_across_kills"]
async fn child_leases_until_it_is_killed() {
    let Some(path) = place() else {
        return;
    };
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let registry = Registry::open(path, &master_key()).await.unwrap();
    // Never the id of a gateway before: what that held is lost.
    let gateway = GatewayId(seed as u32);
    let fence = registry.register_gateway(gateway, 0).await.unwrap();
    let mut next: HashMap<DeviceId, u32> = HashMap::new();
    loop {
        let mut device = || DeviceId(1 + rng.next_u64() % DEVICES);
        let devices: BTreeSet<DeviceId> = [device(), device(), device()].into();
        let wishes: Vec<_> = devices
            .into_iter()
            .map(|device| wish(device, next.get(&device).copied().unwrap_or_default(), 4))
            .collect();
        for answer in registry.lease(&fence, &wishes).await.unwrap() {
            let Granted { device, rows, .. } = answer.unwrap();
            say("taken", device, &rows);
            let mut end = rows.end;
            if rng.next_u32().is_multiple_of(3) {
                // Spare rows may come in smaller pieces than asked for.
                let unused_from = RowIndex(rows.start + rng.next_u32() % rows.len() as u32);
                // Before, because afterwards they may be somebody else's at once.
                say("leave", device, &(unused_from.0..rows.end));
                let settlement = Settlement {
                    device,
                    epoch: 0,
                    unused_from,
                    keep: false,
                };
                let back = registry.settle(&fence, &[settlement]).await.unwrap().remove(0);
                assert_eq!(back.unwrap(), rows.end - unused_from.0);
                end = unused_from.0;
            }
            next.insert(device, end);
        }
    }
}

fn say(what: &str, device: DeviceId, rows: &std::ops::Range<u32>) {
    // One write per line: two processes share the pipe.
    let line = format!("{what} {} {} {}\n", device.0, rows.start, rows.end);
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Reserves numbers and records rounds until it is killed; every number that it was given, and every round that was
/// recorded, is told. Over all rounds of killing none is given twice, and what was recorded is there, with its appraisals.
#[tokio::test]
async fn no_round_has_the_number_of_another_across_kills() {
    let (_directory, path) = nowhere();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    let devices = (1..=DEVICES).map(|id| pool_device(id, 2));
    registry
        .enrol_bulk(devices, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    registry.set_group(&group("pumps"), 0).await.unwrap();
    for id in 1..=DEVICES {
        registry.enrol_prover(prover(id), NOW_S).await.unwrap();
    }
    registry.close().await;
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut given, mut recorded) = (BTreeSet::new(), 0);
    for _ in 0..ROUNDS {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child = spawn_test("child_records_rounds_until_it_is_killed", &path, 0, &writer);
        drop(writer);
        let kill_after = rng.next_u64() % 40;
        for (count, line) in (0..).zip(BufReader::new(reader).lines()) {
            let line = line.unwrap();
            let Some((what, number)) = line.split_once(' ') else {
                panic!("seed {seed}: the child failed: {line:?}")
            };
            let number: u32 = number.parse().unwrap();
            match what {
                "given" => assert!(given.insert(number), "seed {seed}: number {number} came twice"),
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
            let found = registry.appraisal(DeviceId(id)).await.unwrap();
            // A round and what it has changed are one.
            assert_eq!(found.map_or(0, |found| found.since_round), newest, "seed {seed}");
        }
        registry.close().await;
    }
    assert!(recorded > 0, "the children recorded nothing");
}

#[tokio::test]
#[ignore = "the child process of no_round_has_the_number_of_another_across_kills"]
async fn child_records_rounds_until_it_is_killed() {
    let Some(path) = place() else {
        return;
    };
    let registry = Registry::open(path, &master_key()).await.unwrap();
    let fence = registry.register_gateway(GatewayId(1), 0).await.unwrap();
    let tell = |what: &str, number: u32| {
        let line = format!("{what} {number}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    };
    loop {
        for number in registry.reserve_rounds(&fence, 2, 0).await.unwrap().numbers {
            tell("given", number);
            let told = told((1..=DEVICES).map(|id| appraisal(id, number)));
            registry
                .record_round(&fence, &round(1, number), &told)
                .await
                .unwrap();
            tell("recorded", number);
        }
    }
}
