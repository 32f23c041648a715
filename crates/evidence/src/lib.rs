//! What a data plane runs, who says so, and whether that is what it should run (RATS, RFC 9334).

pub mod encoding;
pub mod lthash;
