//! Small runs of the benchmarks that need no CPU of their own. The others are in the program `bench`.

use linewarden_harness::stay_on_one_cpu;
use linewarden_lab::bench::{self, scale, signatures};

use crate::common::{assert_positive, assert_svgs};

#[test]
fn the_scale_bench_measures_eviction_policies() {
    stay_on_one_cpu();
    let report = scale::run(&scale::Size::QUICK, &[scale::Part::Eviction], &mut |_, _| {}).unwrap();
    let rows = [
        "eviction.hit_rate.mixed.s3_fifo",
        "eviction.hit_rate_over_lru.zipf",
    ];
    assert_positive(&report, &rows);
    let directory = tempfile::tempdir().unwrap();
    let chart_paths = scale::figures::draw(&report, directory.path()).unwrap();
    assert_svgs(&chart_paths, 1);
}

#[test]
fn the_signatures_bench_signs_verifies_and_schedules() {
    let parts = signatures::Part::ALL;
    let report = signatures::run(&signatures::Size::QUICK, &parts, &mut |_, _| {}).unwrap();
    let rows = [
        "rsa2048.verify.awslc_per_s",
        "rsa3072.sign.awslc_per_s",
        "p256.verify.awslc_per_s",
        "ed25519.sign.awslc_per_s",
        "ra1.verify.uncached_per_s",
        "ra1.offline.one_per_s",
        "end_to_end.p256_us",
        "end_to_end.ra1.half_masks_us",
        "stage.offline.batch.96",
        "stage.verify.threads.2",
        "sched.throughput_over_best_single",
        "sched.p0_p99_over_idle",
        "sched.engine.tau",
        "sched.engine.fixed_tau.p99_us",
        "sched.engine.adaptive.p99_us",
        "sched.adaptive_over_fixed_tau.low",
        "sched.adaptive_over_fixed_tau.burst",
        "sim.tau",
        "sim.bursts.p99_us",
        "sim.false_immediates.p99_us",
    ];
    assert_positive(&report, &rows);
    // Values that cannot be measured on this machine are in the report as pending, with a reason.
    let json = serde_json::to_value(&report).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let row_named = |name: &str| rows.iter().find(|row| row["name"] == name);
    assert!(
        row_named("gpu.rsa2048_verify_per_s").is_some() && row_named("rsa2048.verify.awslc_per_s").is_some()
    );
    for row in &report.pending {
        assert_eq!(row_named(&row.name).unwrap()["value"], "pending");
        assert!(!row.reason.is_empty());
    }
    let directory = tempfile::tempdir().unwrap();
    let chart_paths = signatures::figures::draw(&report, directory.path()).unwrap();
    assert_svgs(&chart_paths, 3);
    // The chart names the scheme of each bar.
    let table = chart_paths
        .iter()
        .find(|path| path.ends_with("haa-table1.svg"))
        .unwrap();
    let table = std::fs::read_to_string(table).unwrap();
    for name in ["thesis (2016): HAA-2048, K40c", "this machine, one core: Ed25519"] {
        assert!(table.contains(name), "{name}");
    }
    // With a GPU, the charts have a second line.
    let mut with_gpu = report;
    for row in std::mem::take(&mut with_gpu.pending) {
        if row.name.starts_with("stage.") {
            with_gpu.rows.push(bench::Row::higher(row.name, 1e6, "/s", None));
        }
    }
    let chart_paths = signatures::figures::draw(&with_gpu, directory.path()).unwrap();
    for (name, legend) in [
        ("haa-fig3-8.svg", "this machine, GPU"),
        ("haa-fig9-11.svg", "this machine, with a GPU"),
    ] {
        let picture = chart_paths.iter().find(|path| path.ends_with(name)).unwrap();
        let picture = std::fs::read_to_string(picture).unwrap();
        // The legend appears once per stage, and there are three stages.
        assert_eq!(picture.matches(legend).count(), 3, "{name}");
    }
}
