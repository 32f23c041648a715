//! The messages of libbpf.

use libbpf_rs::PrintLevel;

/// libbpf's messages go to the log, not to standard error.
pub(crate) fn redirect() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |level, text| match level {
        // The error itself is returned. A missing or existing qdisc is not an error.
        PrintLevel::Warn if text.contains("Kernel error message") => {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        }
        PrintLevel::Warn => tracing::warn!(target: "libbpf", "{}", text.trim_end()),
        _ => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
    })));
}
