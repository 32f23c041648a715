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

            /// Asserts that each event happened in at least one run of twenty.
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
    accepted,
    /// While the controller was down or its disk had a fault.
    accepted_alone,
    kills,
    stops,
    replacements,
    /// Replaced processes that were restarted on their memory.
    restarted,
    adopted,
    evicted,
    /// Sessions closed for newer ones at other gateways.
    closed,
    admitted,
    rows_returned,
    at_mark,
    replays,
    forged_challenges,
    forged_statements,
    link_failures,
    /// The registry could not serve the request.
    failed_responses,
    revoked,
    reloads,
    suspends,
    clock_jumps,
    controller_stops,
    controller_kills,
    power_losses,
    backups,
    /// The registry was restored from a backup.
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
    ordered,
    updated,
    tampered,
    remediated,
    quarantined,
    released,
}
