//! What the runs did.

macro_rules! tally {
    ($name:ident, $($(#[$doc:meta])* $deed:ident,)*) => {
        /// What runs did.
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            pub(super) runs: u64,
            $($(#[$doc])* pub(super) $deed: u64,)*
        }

        impl $name {
            pub fn add(&mut self, other: &Self) {
                self.runs += other.runs;
                $(self.$deed += other.$deed;)*
            }

            /// Each of them in at least one run of twenty.
            pub fn assert_everything_happened(&self, except: &[&str]) {
                $(
                    let is_left_out = except.contains(&stringify!($deed));
                    assert!(is_left_out || self.$deed >= self.runs / 20, "{}: {self:?}", stringify!($deed));
                )*
            }
        }
    };
}

tally! {
    Tally,
    accepted,
    /// While the controller was away, or its disk in trouble.
    accepted_alone,
    kills,
    stops,
    zombies,
    /// Replaced, and started again on their memory.
    came_again,
    taken_up,
    evicted,
    /// Sessions, for newer ones elsewhere.
    closed,
    admitted,
    given_back,
    at_mark,
    replays,
    forged_challenges,
    forged_statements,
    link_failures,
    /// The registry could not do what was asked.
    failed_answers,
    revoked,
    reloads,
    suspends,
    clock_jumps,
    controller_stops,
    controller_kills,
    power_losses,
    backups,
    /// The registry was put back to one of them.
    restores,
    full_disks,
    failing_disks,
}

tally! {
    FleetTally,
    /// Verdicts of rounds.
    ok,
    late,
    silent,
    /// Proofs that nobody has made.
    forged,
    /// Changes of what devices are to run.
    ordered,
    updated,
    tampered,
    mended,
    quarantined,
    readmitted,
}
