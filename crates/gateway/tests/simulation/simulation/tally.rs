//! Coverage of the runs.

macro_rules! tally {
    ($name:ident, $($(#[$doc:meta])* $counter:ident,)*) => {
        /// Coverage of runs.
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            pub(super) runs: u64,
            $($(#[$doc])* pub(super) $counter: u64,)*
        }

        impl $name {
            pub fn add(&mut self, other: &Self) {
                self.runs += other.runs;
                $(self.$counter += other.$counter;)*
            }

            /// Asserts that each event happened at least once in 20 runs on average, except the events in `except`.
            pub fn assert_all_covered(&self, except: &[&str]) {
                $(
                    let is_excepted = except.contains(&stringify!($counter));
                    assert!(is_excepted || self.$counter >= self.runs / 20, "{}: {self:?}", stringify!($counter));
                )*
            }
        }
    };
}

tally! {
    Tally,
    /// Accepted RESPONSEs.
    accepted,
    /// RESPONSEs accepted while the controller was down or its disk had a fault.
    accepted_alone,
    kills,
    stops,
    replacements,
    /// Replaced processes that were restarted on their memory.
    restarted,
    /// Starts on the memory of a killed process.
    adopted,
    evicted,
    /// Sessions closed for newer ones at other gateways.
    closed,
    admitted,
    rows_returned,
    /// RESPONSEs dropped because the mark was reached.
    at_mark,
    replays,
    forged_challenges,
    forged_statements,
    link_failures,
    /// Requests that were processed after their process had abandoned them.
    late_requests,
    late_requests_refused,
    /// Requests that the registry could not serve.
    failed_responses,
    revoked,
    reloads,
    suspends,
    clock_jumps,
    controller_stops,
    controller_kills,
    power_losses,
    backups,
    /// Restores of the registry from a backup.
    restores,
    full_disks,
    failing_disks,
}

tally! {
    FleetTally,
    /// Outcomes of rounds.
    ok,
    late,
    missed,
    /// Forged proofs.
    forged,
    /// Changes of allowed configurations.
    reference_changes,
    /// Devices that received the rolled-out configuration.
    updated,
    tampered,
    remediated,
    quarantined,
    released,
}
