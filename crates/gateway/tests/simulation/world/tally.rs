//! What the runs did.

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What runs did.
        #[derive(Clone, Debug, Default)]
        pub struct Tally {
            pub(super) runs: u64,
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl Tally {
            pub fn add(&mut self, other: &Self) {
                self.runs += other.runs;
                $(self.$name += other.$name;)*
            }

            /// Each of them in at least one run of twenty.
            pub fn assert_everything_happened(&self) {
                $(assert!(self.$name >= self.runs / 20, "{}: {self:?}", stringify!($name));)*
            }
        }
    };
}

tally! {
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
    full_disks,
    failing_disks,
}
