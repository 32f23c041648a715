//! What a registry consists of, in the order in which it can be filled.

use super::Kind::{Bytes, Integer, Text};
use super::Table;

/// Rows read at once where they are short.
const MANY: i64 = 1_000;
/// Where they may be as long as all rows of a device, or a document of megabytes.
const SOME: i64 = 100;
const FEW: i64 = 8;

/// A table in the order of its first columns.
const fn table(
    name: &'static str,
    key: &'static [&'static str],
    columns: &'static [(&'static str, super::Kind)],
) -> Table {
    Table {
        name,
        from: name,
        key,
        columns,
        page_rows: MANY,
    }
}

/// Everything but where the registry was moved to, and the places of rows, which each database gives itself.
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
        // As they lie in a registry that was filled one by one: gateways walk through them like this.
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
            ("mac", Bytes),
            ("quarantined_at_s", Integer),
            ("quarantined_reason", Text),
        ],
    ),
    Table {
        page_rows: SOME,
        from: "credential JOIN device ON device.device_id = credential.device_id",
        ..table(
            "credential",
            &["device.revision"],
            &[("device_id", Integer), ("sealed", Bytes)],
        )
    },
    Table {
        page_rows: SOME,
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
            ("fence", Integer),
            ("registered_at_s", Integer),
            ("mac", Bytes),
        ],
    ),
    table(
        "lease",
        &["gateway_id", "device_id"],
        &[
            ("gateway_id", Integer),
            ("device_id", Integer),
            ("fence", Integer),
            ("epoch", Integer),
            ("first_idx", Integer),
            ("end_idx", Integer),
            ("mark", Integer),
            ("mac", Bytes),
        ],
    ),
    table(
        "spare",
        &["device_id", "first_idx"],
        &[
            ("device_id", Integer),
            ("epoch", Integer),
            ("first_idx", Integer),
            ("end_idx", Integer),
            ("mac", Bytes),
        ],
    ),
    table(
        "ticket",
        &["device_id"],
        &[("device_id", Integer), ("number", Integer), ("mac", Bytes)],
    ),
    table(
        "pair",
        &["low_id", "high_id"],
        &[
            ("low_id", Integer),
            ("high_id", Integer),
            ("current", Bytes),
            ("mac", Bytes),
        ],
    ),
    table(
        "roaming",
        &["device_id"],
        &[
            ("device_id", Integer),
            ("gateway_id", Integer),
            ("boot", Bytes),
            ("began_ns", Integer),
            ("revision", Integer),
            ("mac", Bytes),
        ],
    ),
    Table {
        page_rows: FEW,
        ..table(
            "attest_group",
            &["name"],
            &[
                ("name", Text),
                ("every_s", Integer),
                ("jitter_s", Integer),
                ("answer_ms", Integer),
                ("silent", Integer),
                ("of_rounds", Integer),
                ("late_is_silent", Integer),
                ("reopen", Integer),
                ("reference", Bytes),
                ("roll_out", Bytes),
                ("roll_out_until_s", Integer),
                ("rounds_wanted", Integer),
                ("revision", Integer),
                ("mac", Bytes),
            ],
        )
    },
    Table {
        page_rows: SOME,
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
                ("home_gateway", Integer),
                ("home_address", Bytes),
                ("port", Integer),
                ("enrolled_at_s", Integer),
                ("enrolled_period", Integer),
                ("revision", Integer),
                ("removed", Integer),
                ("mac", Bytes),
            ],
        )
    },
    table(
        "period",
        &["number"],
        &[
            ("number", Integer),
            ("sealed", Bytes),
            ("drawn_at_s", Integer),
            ("begun_at_s", Integer),
            ("mac", Bytes),
        ],
    ),
    table(
        "round_number",
        &["gateway_id"],
        &[("gateway_id", Integer), ("next", Integer), ("mac", Bytes)],
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
            ("asked", Integer),
            ("ok", Integer),
            ("late", Integer),
            ("silent", Integer),
            ("last_verdict_ms", Integer),
            ("mac", Bytes),
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
            ("silences", Bytes),
            ("asked", Integer),
            ("mac", Bytes),
        ],
    ),
    Table {
        page_rows: FEW,
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
        "journal",
        &["number"],
        &[
            ("number", Integer),
            ("at_ms", Integer),
            ("kind", Text),
            ("gateway_id", Integer),
            ("device_id", Integer),
            ("detail", Text),
            ("who", Text),
            ("who_role", Integer),
            ("origin", Text),
            ("reason", Text),
            ("refused", Integer),
            ("mac", Bytes),
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
            ("mac", Bytes),
        ],
    ),
    table(
        "api_session",
        &["session_hash"],
        &[
            ("session_hash", Bytes),
            ("user_name", Text),
            ("expires_at_s", Integer),
            ("mac", Bytes),
        ],
    ),
    Table {
        page_rows: FEW,
        ..table(
            "api_answer",
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
        "gateway_book",
        &["gateway_id"],
        &[
            ("gateway_id", Integer),
            ("name", Text),
            ("created_at_s", Integer),
            ("retired_at_s", Integer),
            ("retired_reason", Text),
            ("mac", Bytes),
        ],
    ),
    table(
        "quarantine_order",
        &["device_id"],
        &[("device_id", Integer), ("at_s", Integer), ("mac", Bytes)],
    ),
    Table {
        page_rows: SOME,
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
                ("mac", Bytes),
            ],
        )
    },
];
