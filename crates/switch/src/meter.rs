//! Meters: two rates, three colours (RFC 2698).
