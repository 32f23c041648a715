//! A small run of `linewarden-lab bench service`. The run must complete and report its values; the test expects no particular
//! speed.

use linewarden_harness::skip_part;
use serde_json::Value;

use crate::support::{command, run};

#[test]
fn the_bench_measures_imports_requests_events_revocations_and_the_data_plane() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("service.json");
    let mut bench = command(
        directory.path(),
        "linewarden-lab bench service --quick --json service.json",
    );
    bench.env("TMPDIR", directory.path());
    run(bench);
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for name in [
        "floor.fsync_ms.p50",
        "floor.responses_per_s",
        "floor.enrolled_per_s.memory",
        "floor.enrolled_per_s.file",
        "floor.lookup_us",
        "import.devices_per_s",
        "import.devices_per_s.100_rows",
        "postgres_over_sqlite.import",
        "api.reads_per_s",
        "api.read_p99_ms",
        "api.read_p99_ms.device",
        "events.per_s",
        "events.delivery_ms.p99",
        "events.replayed_per_s",
        "revoke_fleet.p99_ms",
        "revoke_fleet.busy_p99_ms",
        "auth_rate.busy_over_idle",
    ] {
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.unwrap_or_else(|| panic!("no row {name}"));
        if row["value"] == "pending" {
            skip_part!("{name}: {}", row["reason"].as_str().unwrap());
            continue;
        }
        let value = row["value"].as_f64().unwrap_or_else(|| panic!("{row}"));
        assert!(value.is_finite() && value > 0.0, "{row}");
    }
}
