//! The tables of a registry, in an order that satisfies the foreign keys.

use super::ColumnKind::{Bytes, Integer, Text};
use super::Table;

/// Records per query for tables with short records.
const SHORT_RECORDS_PER_PAGE: i64 = 1_000;
/// Records per query for tables with long records, such as all rows of a device.
const LONG_RECORDS_PER_PAGE: i64 = 100;
/// Records per query for tables with documents of up to megabytes.
const DOCUMENTS_PER_PAGE: i64 = 8;

/// A table with short records that is read by its key.
const fn table(
    name: &'static str,
    key: &'static [&'static str],
    columns: &'static [(&'static str, super::ColumnKind)],
) -> Table {
    Table {
        name,
        source: name,
        key,
        columns,
        page_records: SHORT_RECORDS_PER_PAGE,
    }
}

/// All tables and columns except the table `gateway_state`, the move state, the storage, and the positions of records, which
/// each database assigns.
pub(crate) const TABLES: [Table; 25] = [
    table(
        "registry",
        &["singleton"],
        &[
            ("singleton", Integer),
            ("registry_id", Bytes),
            ("key_check", Bytes),
            ("revision", Integer),
            ("attest_revision", Integer),
            ("incarnation", Integer),
        ],
    ),
    table(
        "device",
        // The order of enrollment, in which gateways read the devices.
        &["device.revision"],
        &[
            ("device_id", Integer),
            ("name", Text),
            ("mode", Integer),
            ("suite", Integer),
            ("status", Integer),
            ("enrolled_at_s", Integer),
            ("revoked_at_s", Integer),
            ("revoked_reason", Text),
            ("first_idx", Integer),
            ("rows_total", Integer),
            ("idx_floor", Integer),
            ("floor_version", Integer),
            ("epoch", Integer),
            ("revision", Integer),
            ("puf_profile", Text),
            ("tag", Bytes),
            ("quarantined_at_s", Integer),
            ("quarantined_reason", Text),
        ],
    ),
    Table {
        page_records: LONG_RECORDS_PER_PAGE,
        source: "credential JOIN device ON device.device_id = credential.device_id",
        ..table(
            "credential",
            &["device.revision"],
            &[("device_id", Integer), ("sealed", Bytes)],
        )
    },
    Table {
        page_records: LONG_RECORDS_PER_PAGE,
        ..table(
            "fingerprint",
            &["device_id"],
            &[("device_id", Integer), ("sealed", Bytes)],
        )
    },
    table(
        "fingerprint_band",
        &["hash", "device_id"],
        &[("hash", Integer), ("device_id", Integer)],
    ),
    table(
        "gateway",
        &["gateway_id"],
        &[
            ("gateway_id", Integer),
            ("fencing_token", Integer),
            ("registered_at_s", Integer),
            ("process_id", Bytes),
            ("abandoned_requests", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "lease",
        &["gateway_id", "device_id"],
        &[
            ("gateway_id", Integer),
            ("device_id", Integer),
            ("fencing_token", Integer),
            ("epoch", Integer),
            ("first_idx", Integer),
            ("end_idx", Integer),
            ("mark", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "unleased_range",
        &["device_id", "first_idx"],
        &[
            ("device_id", Integer),
            ("epoch", Integer),
            ("first_idx", Integer),
            ("end_idx", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "ticket",
        &["device_id"],
        &[("device_id", Integer), ("number", Integer), ("tag", Bytes)],
    ),
    table(
        "pair",
        &["low_id", "high_id"],
        &[
            ("low_id", Integer),
            ("high_id", Integer),
            ("sealed", Bytes),
            ("tag", Bytes),
        ],
    ),
    table(
        "newest_session",
        &["device_id"],
        &[
            ("device_id", Integer),
            ("gateway_id", Integer),
            ("boot_id", Bytes),
            ("started_ns", Integer),
            ("revision", Integer),
            ("tag", Bytes),
        ],
    ),
    Table {
        page_records: DOCUMENTS_PER_PAGE,
        ..table(
            "attest_group",
            &["name"],
            &[
                ("name", Text),
                ("every_s", Integer),
                ("jitter_s", Integer),
                ("proof_timeout_ms", Integer),
                ("missed_limit", Integer),
                ("window_rounds", Integer),
                ("late_is_missed", Integer),
                ("release_mode", Integer),
                ("reference", Bytes),
                ("roll_out", Bytes),
                ("roll_out_until_s", Integer),
                ("rounds_requested", Integer),
                ("revision", Integer),
                ("tag", Bytes),
            ],
        )
    },
    Table {
        page_records: LONG_RECORDS_PER_PAGE,
        ..table(
            "prover",
            &["device_id"],
            &[
                ("device_id", Integer),
                ("group_name", Text),
                ("sealed", Bytes),
                ("protection", Integer),
                ("binding", Bytes),
                ("overlay", Bytes),
                ("location_gateway_id", Integer),
                ("location_address", Bytes),
                ("port", Integer),
                ("enrolled_at_s", Integer),
                ("enrolled_period", Integer),
                ("revision", Integer),
                ("removed", Integer),
                ("tag", Bytes),
            ],
        )
    },
    table(
        "period",
        &["number"],
        &[
            ("number", Integer),
            ("sealed", Bytes),
            ("created_at_s", Integer),
            ("started_at_s", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "round_counter",
        &["gateway_id"],
        &[("gateway_id", Integer), ("next_number", Integer), ("tag", Bytes)],
    ),
    table(
        "attest_round",
        &["gateway_id", "number"],
        &[
            ("gateway_id", Integer),
            ("number", Integer),
            ("group_name", Text),
            ("period", Integer),
            ("started_at_s", Integer),
            ("ended_at_s", Integer),
            ("requested", Integer),
            ("ok", Integer),
            ("late", Integer),
            ("missed", Integer),
            ("last_proof_ms", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "appraisal",
        &["device_id"],
        &[
            ("device_id", Integer),
            ("gateway_id", Integer),
            ("address", Bytes),
            ("state", Integer),
            ("since_s", Integer),
            ("since_round", Integer),
            ("configuration", Integer),
            ("missed_rounds", Bytes),
            ("rounds_total", Integer),
            ("tag", Bytes),
        ],
    ),
    Table {
        page_records: DOCUMENTS_PER_PAGE,
        ..table(
            "evidence",
            &["device_id", "number"],
            &[
                ("device_id", Integer),
                ("number", Integer),
                ("at_s", Integer),
                ("sealed", Bytes),
            ],
        )
    },
    table(
        "event_log",
        &["number"],
        &[
            ("number", Integer),
            ("at_ms", Integer),
            ("kind", Text),
            ("gateway_id", Integer),
            ("device_id", Integer),
            ("detail", Text),
            ("actor", Text),
            ("actor_role", Integer),
            ("origin", Text),
            ("reason", Text),
            ("refused", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "api_user",
        &["name"],
        &[
            ("name", Text),
            ("role", Integer),
            ("token_hash", Bytes),
            ("created_at_s", Integer),
            ("expires_at_s", Integer),
            ("tag", Bytes),
        ],
    ),
    table(
        "api_session",
        &["session_hash"],
        &[
            ("session_hash", Bytes),
            ("user_name", Text),
            ("expires_at_s", Integer),
            ("tag", Bytes),
        ],
    ),
    Table {
        page_records: DOCUMENTS_PER_PAGE,
        ..table(
            "api_response",
            &["user_name", "key"],
            &[
                ("user_name", Text),
                ("key", Text),
                ("request", Bytes),
                ("status", Integer),
                ("body", Bytes),
                ("at_s", Integer),
            ],
        )
    },
    table(
        "gateway_record",
        &["gateway_id"],
        &[
            ("gateway_id", Integer),
            ("name", Text),
            ("created_at_s", Integer),
            ("revoked_at_s", Integer),
            ("revoked_reason", Text),
            ("tag", Bytes),
        ],
    ),
    table(
        "manual_quarantine",
        &["device_id"],
        &[("device_id", Integer), ("at_s", Integer), ("tag", Bytes)],
    ),
    Table {
        page_records: LONG_RECORDS_PER_PAGE,
        ..table(
            "signer",
            &["signer_id"],
            &[
                ("signer_id", Bytes),
                ("name", Text),
                ("scheme", Text),
                ("public_key", Bytes),
                ("added_at_s", Integer),
                ("revoked_at_s", Integer),
                ("tag", Bytes),
            ],
        )
    },
];
