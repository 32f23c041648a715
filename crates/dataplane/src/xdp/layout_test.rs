//! Compares `layout.rs` with the types that libbpf generates from the program's BTF: sizes and offsets must be equal.

use std::mem::{offset_of, size_of};

use linewarden_protocol::commit;
use linewarden_protocol::gateway::DROPPED_TYPES;
use linewarden_protocol::sources::{EXCLUDED_MAX, PREFIXES_MAX};

use super::skeleton::gateway::types;
use super::stamp::{StampCell, StampingCell};
use crate::event::{EVENT_BYTES, SESSION_EVENT_BYTES};
use crate::handling_time::{HANDLING_BUCKETS, SAMPLE_INTERVAL};
use crate::layout::{
    ALTERNATE, ALWAYS_MAX, AlternateKey, BOUND, Bucket, Control, DroppedTypeCells, ELAPSED_MAX,
    EXPECTED_RESPONSES, FILTER_WORDS, FilterBlock, HOME_WAYS, Line, LiveCells, Note, OpenRounds, PORT_MACS,
    PORTS, PROVED, Port, ProgramConfig, ProverLine, ROUND_BITS_SHIFT, RingRow, Round, SOURCE_CELLS, Session,
    SourceBank, SourcePrefix, Sources, VLAN_SERVICE, VLAN_TAGGED, WAITING_FREE, WAITING_FULL, WAITING_TAKEN,
    WAYS, WaitingProof,
};

/// Lists every field of the C type: the pattern does not compile if one is missing.
macro_rules! same {
    ($rust:ty, $c:ident: $($field:ident),+ $(; only in C: $($padding:ident),+)?) => {
        let _ = |all: types::$c| {
            let types::$c { $($field: _,)+ $($($padding: _,)+)? } = all;
        };
        assert_eq!(size_of::<$rust>(), size_of::<types::$c>(), "size of {}", stringify!($c));
        $(assert_eq!(
            offset_of!($rust, $field),
            offset_of!(types::$c, $field),
            concat!(stringify!($c), ".", stringify!($field)),
        );)+
    };
}

#[test]
fn the_rust_layout_equals_the_c_layout() {
    same!(Line, lw_line: device_id, commit, window, session_id, challenge, auth_key, session_until_s, slot);
    same!(Session, lw_session: session_key, tag, addr, ingress, port, mac, vlan);
    same!(RingRow, lw_row: challenge, auth_key);
    same!(Bucket, lw_bucket: entry);
    same!(
        Control,
        lw_control: fresh_current, fresh_previous, fresh_at_ns, stopping, listening, filtering, ip4_prefix, ip4_refused, live, owner, identity,
        source_bank, sources, port
    );
    same!(Port, lw_port: ifindex, mac);
    same!(SourcePrefix, lw_prefix: net, mask);
    same!(Sources, lw_sources: is_simple, loopback, prefixes, refused, prefix, address);
    same!(SourceBank, lw_source_bank: family);
    same!(
        LiveCells,
        lw_live: session_lifetime_s, session_lifetime_min_s, session_lifetime_from_s, low_rows, low_credit, nak_per_s, alarm_per_s, miss_per_s
    );
    same!(Note, lw_note: end, mark, epoch, ticket);
    same!(FilterBlock, lw_filter_block: word);
    same!(ProverLine, lw_prover: device_id, proved, key, slot, pad);
    same!(
        WaitingProof,
        lw_waiting: state, line, before, after, addr, ingress, pad, device_id, r, nonce, proof, settled_counts, reserved
    );
    same!(AlternateKey, lw_prover_key: word);
    same!(Round, lw_round: r, nonce, started_ns, until_ns, number, key_lane, elapsed_shift, pad);
    same!(OpenRounds, lw_rounds: lane);
    same!(
        ProgramConfig,
        lw_config: hash_seed, local6, dhcp6, always, local4, dhcp4, local4_count, local6_count, dhcp4_count, dhcp6_count, always_count, gateway_id, slots, ring,
        home_mask, index_mask, bucket_mask, filter_mask, provers, prover_places, prover_all, prover_index_mask, lap_port,
        gate, strong_order, count_work, stamp, frags, pad
    );
    same!(StampCell, lw_stamp: number, until_ns, option, midstate, pad);
    same!(StampingCell, lw_stamping: slot, current, pad, counter, room);
    assert_eq!(size_of::<types::lw_home>(), HOME_WAYS * size_of::<Line>());
    assert_eq!(size_of::<types::lw_bucket>(), WAYS * 8);
    assert_eq!(
        size_of::<types::lw_dropped_types>(),
        size_of::<DroppedTypeCells>()
    );
    assert_eq!(size_of::<types::lw_dropped>(), (DROPPED_TYPES + 1) * 8);
}

#[test]
fn per_cpu_counters_are_at_the_expected_offsets() {
    let words = offset_of!(types::lw_percpu, handled) / 8;
    assert_eq!(words, super::config::PERCPU_HANDLED_WORD);
    assert_eq!(size_of::<types::lw_percpu>(), (words + HANDLING_BUCKETS) * 8);
    assert_eq!(
        offset_of!(types::lw_percpu, events_lost),
        linewarden_protocol::verdict::VERDICT_SLOTS * 8
    );
}

/// Macros and ring-buffer structures are not in BTF; they are read from the header.
#[test]
fn the_constants_equal_those_of_the_header() {
    let header = include_str!("bpf/lw_layout.h");
    let defines = |name: &str, value: String| {
        let line = format!("#define {name} {value}");
        assert!(header.lines().any(|text| text.starts_with(&line)), "{line}");
    };
    defines("LW_VLAN_TAGGED", format!("{VLAN_TAGGED:#x}"));
    defines("LW_VLAN_SERVICE", format!("{VLAN_SERVICE:#x}"));
    defines("LW_ALWAYS_MAX", ALWAYS_MAX.to_string());
    defines("LW_DROPPED_TYPES", DROPPED_TYPES.to_string());
    defines("LW_BOUND", format!("{BOUND:#x}"));
    defines("LW_PORTS", PORTS.to_string());
    defines("LW_PORT_MACS", PORT_MACS.to_string());
    defines("LW_PREFIXES", PREFIXES_MAX.to_string());
    defines("LW_REFUSED", EXCLUDED_MAX.to_string());
    defines("LW_WAYS", WAYS.to_string());
    defines("LW_FILTER_WORDS", FILTER_WORDS.to_string());
    defines("LW_EXPECTED", EXPECTED_RESPONSES.to_string());
    defines("LW_SOURCES", SOURCE_CELLS.to_string());
    defines("LW_SAMPLE_INTERVAL", SAMPLE_INTERVAL.to_string());
    defines("LW_ROUND_BITS_SHIFT", ROUND_BITS_SHIFT.to_string());
    defines("LW_PROVED", format!("(1U << {})", PROVED.trailing_zeros()));
    defines("LW_ALTERNATE", format!("(1U << {})", ALTERNATE.trailing_zeros()));
    defines("LW_ELAPSED_MAX", format!("{ELAPSED_MAX:#x}U"));
    defines("LW_WAITING_FREE", WAITING_FREE.to_string());
    defines("LW_WAITING_FULL", WAITING_FULL.to_string());
    defines("LW_WAITING_TAKEN", WAITING_TAKEN.to_string());
    defines("LW_VALID", "0x01ULL".to_owned());
    defines("LW_BUSY", "0x02ULL".to_owned());
    defines("LW_REVOKED", "0x04ULL".to_owned());
    defines("LW_KEY", "0x08ULL".to_owned());
    defines("LW_CREDIT", format!("{:#x}ULL", commit::CREDIT));
    let bytes_of = |name: &str| {
        let body = header.split(&format!("struct {name} {{")).nth(1).unwrap();
        let bytes = body
            .split("};")
            .next()
            .unwrap()
            .lines()
            .map(|line| match line.trim() {
                line if line.starts_with("struct lw_event event;") => EVENT_BYTES,
                line if line.starts_with("__u32") => 4,
                line if line.starts_with("__u64 addr[2]") => 16,
                line if line.starts_with("__u64 response[8]") => 64,
                line if line.starts_with("__u64") => 8,
                _ => 0,
            });
        bytes.sum::<usize>()
    };
    assert_eq!(bytes_of("lw_event"), EVENT_BYTES);
    assert_eq!(bytes_of("lw_session_event"), SESSION_EVENT_BYTES);
}

/// A process may adopt the memory of another version only if both versions interpret it in the same way.
#[test]
fn a_change_to_the_layout_needs_a_decision_about_its_version() {
    let header = include_str!("bpf/lw_layout.h");
    // FNV-1a of the text; no protection against forgery is needed.
    let digest = header.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let known = (8, 0x9c0c_b36a_0144_6e01_u64);
    assert_eq!(
        (crate::store::adopt::LAYOUT_VERSION, format!("{digest:#x}")),
        (known.0, format!("{:#x}", known.1)),
        "if the meaning of memory has changed, increment LAYOUT_VERSION; then set both values here"
    );
}
