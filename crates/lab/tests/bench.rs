//! Small runs of the benchmarks that need all CPUs, which is why they are a program of their own. Each run must complete and
//! report its values; the tests expect no particular speed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

#[path = "all/common.rs"]
#[allow(dead_code, reason = "the other program uses all items")]
mod common;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{assert_positive, assert_svgs, require};
use linewarden_harness::skip;
use linewarden_lab::bench::scale::{Part, Size};
use linewarden_lab::bench::{self, Scale, attest, figures, switch};
use linewarden_lab::capability::FOR_LOAD_GENERATOR;

/// Locked by the running benchmark. Benchmarks must not run concurrently: each one pins high-priority threads to all CPUs.
static MACHINE: Mutex<()> = Mutex::new(());

fn lock_machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_auth_bench_reports_values_and_draws_charts() {
    require(FOR_LOAD_GENERATOR);
    let _machine = lock_machine();
    let report = bench::auth(&Scale::QUICK, &mut |_| {}).unwrap();
    for name in [
        "xdp.request_ns.hot",
        "xdp.response_ns.hot",
        "xdp.request_over_floor",
        "xdp.response_over_floor",
        "xdp.request_ns.1m_random",
        "xdp.response_ns.1m_random",
        "xdp_over_host.auth_rate",
        "xdp_over_host.latency_p99",
        "xdp.classic256_over_classic64",
        "loadgen.idle_sink_over_measured",
    ] {
        let value = report.value(name).unwrap_or_else(|| panic!("no row {name}"));
        assert!(value.is_finite(), "{name} = {value}");
    }
    let directory = tempfile::tempdir().unwrap();
    let chart_paths = figures::draw(&report, directory.path()).unwrap();
    assert_svgs(&chart_paths, 4);
}

#[test]
fn the_scale_bench_measures_a_small_fleet() {
    require(FOR_LOAD_GENERATOR);
    let _machine = lock_machine();
    let parts = [Part::Fleet, Part::Memory, Part::Sealed, Part::Latency];
    let report = bench::scale::run(&Size::QUICK, &parts, &mut |_, _| {}).unwrap();
    let rows = [
        "enroll.devices_per_s",
        "restart.load_s",
        "install.rows_per_s",
        "resident.bytes_per_row",
        "xdp.auth_ns.1e7_over_1e4",
        "sealed.packet_ns.64",
        "sealed.packet_ns.1300",
        "revoke.p99_ms",
        "refill.p99_over_baseline",
        "slowpath.first_auth_ms.p99",
    ];
    assert_positive(&report, &rows);
    let directory = tempfile::tempdir().unwrap();
    let chart_paths = bench::scale::figures::draw(&report, directory.path()).unwrap();
    assert_svgs(&chart_paths, 1);
}

#[test]
fn the_attest_bench_measures_ciphers_and_rounds() {
    require(FOR_LOAD_GENERATOR);
    let _machine = lock_machine();
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        skip!("the sender and the measured program need two CPUs");
    }
    let report = attest::run(&attest::Size::QUICK, &attest::Part::ALL, &mut |_, _| {}).unwrap();
    let rows = [
        "cipher.step_ns",
        "cipher.forro14.x1.block_ns",
        "cipher.forro14.x4.block_ns",
        "cipher.chacha20.x1.block_ns",
        "cipher.forro6.1408.packets_per_s",
        "cipher.aead.xforro14poly1305.1024.packet_ns",
        "cipher.aead.chacha20poly1305.64.packets_per_s",
        "cipher.aead.xforro14poly1305.stack_bytes",
        "cipher.forro14.insns",
        "cipher.forro14.core_per_gbit",
        "cipher.map_bytes",
        "cipher.rate.forro14.100k.in",
        "cipher.rate.forro14.100k.out",
        "cipher.rate.none.max",
        "p4dra_classic.xdp.proof_ns",
        "p4dra_classic.xdp.harness_ns",
        "p4dra_classic.simd.proof_ns",
        "xdp.proof_rate",
        "socket.proof_rate",
        "ring.proof_rate",
        "xdp_over_socket.proof_rate",
        "xdp.attest_ms.2",
        "socket.attest_ms.2000",
        "simd.attest_ms.2000",
        "round.provers",
        "round.requests",
        "round.complete",
        "forro14_over_chacha20.throughput",
        "forro14_over_chacha20.operations_limit",
    ];
    assert_positive(&report, &rows);
    let directory = tempfile::tempdir().unwrap();
    let chart_paths = attest::figures::draw(&report, directory.path()).unwrap();
    assert_svgs(&chart_paths, 4);
}

#[test]
fn the_switch_bench_measures_forwarding_ciphers_and_proofs() {
    require(FOR_LOAD_GENERATOR);
    let _machine = lock_machine();
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        skip!("sender and switch need two CPUs");
    }
    let p4 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4");
    let report = switch::run(&switch::Size::QUICK, &p4, &switch::Part::ALL, &mut |_, _| {}).unwrap();
    let rows = [
        "router.ns_per_packet",
        "router.ipv6.ns_per_packet",
        "router.copy_ns",
        "router.lookups_ns",
        "router.af_packet_pps",
        "forwarder.af_packet_pps",
        "evidence_over_plain.rate",
        "evidence_over_plain.in_memory",
        "evidence_over_plain.loss_free",
        "plain.loss_free_mbit_s",
        "evidence.loss_free_mbit_s",
        "register_write.ns",
        "register_write.cost_65536_over_16",
        "register_write.fold_ns",
        "lap.ns_per_message",
        "p4dra.ns_per_proof",
        "p4dra.recirculations",
        "p4dra.one_pass.ns_per_proof",
        "p4.forro14.quarter-round.block_ns",
        "p4.chacha20.round.block_ns",
        "p4.rate.forro14.quarter-round.10k.out",
        "p4.rate.chacha20.round.max",
        "ports.forro.quarter-round.28x1.measured",
        "ports.chacha.round.10x1.computed",
        "ports.max_deviation",
    ];
    assert_positive(&report, &rows);
    let directory = tempfile::tempdir().unwrap();
    let chart_paths = switch::figures::draw(&report, directory.path()).unwrap();
    assert_svgs(&chart_paths, 2);
}

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
