//! Runs of a program on a frame in memory (`BPF_PROG_TEST_RUN`).

/// The result of one run of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// `XDP_PASS`, `XDP_TX`, `XDP_DROP`, … by number.
    pub action: u32,
    /// The frame after the run.
    pub frame: Vec<u8>,
}

/// `struct xdp_md` for a test run: the first `linear_bytes` of the frame are visible to the program, and the frame
/// arrived on queue 0 of an interface.
pub(crate) fn test_context(linear_bytes: usize, ingress: u32) -> Vec<u8> {
    let length = u32::try_from(linear_bytes).unwrap_or(u32::MAX);
    // data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
    [0, length, 0, ingress, 0, 0]
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect()
}
