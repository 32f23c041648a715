//! The benches run small, so that they cannot rot; what they measure is not judged here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod common;

use common::skipped;
use linewarden_lab::bench::scale::Size;
use linewarden_lab::bench::{self, Scale, figures};
use linewarden_lab::capability::FOR_LOAD_GENERATOR;

#[test]
fn every_row_and_every_picture_comes_out() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
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
    let drawn = figures::draw(&report, directory.path()).unwrap();
    assert_eq!(drawn.len(), 4);
    for path in drawn {
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_small_fleet_goes_through_the_scale_bench_and_every_row_is_where_it_belongs() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let report = bench::scale::run(&Size::QUICK, &mut |_, _| {}).unwrap();
    for name in [
        "enroll.devices_per_s",
        "restart.load_s",
        "install.rows_per_s",
        "resident.bytes_per_row",
        "xdp.auth_ns.1e7_over_1e4",
        "sealed.packet_ns.64",
        "sealed.packet_ns.1300",
    ] {
        let value = report.value(name).unwrap_or_else(|| panic!("no row {name}"));
        assert!(value.is_finite() && value > 0.0, "{name} = {value}");
    }
}
