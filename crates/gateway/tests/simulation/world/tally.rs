//! What the runs did.

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub(super) runs: u64,
    pub(super) accepted: u64,
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) zombies: u64,
    pub(super) evicted: u64,
    pub(super) admitted: u64,
    pub(super) given_back: u64,
    pub(super) replays: u64,
    pub(super) link_failures: u64,
    pub(super) revoked: u64,
    pub(super) at_mark: u64,
    pub(super) taken_up: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.accepted += other.accepted;
        self.kills += other.kills;
        self.stops += other.stops;
        self.zombies += other.zombies;
        self.evicted += other.evicted;
        self.admitted += other.admitted;
        self.given_back += other.given_back;
        self.replays += other.replays;
        self.link_failures += other.link_failures;
        self.revoked += other.revoked;
        self.at_mark += other.at_mark;
        self.taken_up += other.taken_up;
    }

    pub fn assert_everything_happened(&self) {
        let Self {
            runs,
            accepted,
            kills,
            stops,
            zombies,
            evicted,
            admitted,
            given_back,
            replays,
            link_failures,
            revoked,
            at_mark,
            taken_up,
        } = *self;
        let least = [
            accepted,
            kills,
            stops,
            zombies,
            evicted,
            admitted,
            given_back,
            replays,
            link_failures,
        ]
        .into_iter()
        .chain([revoked, at_mark, taken_up])
        .min();
        assert!(least >= Some(runs / 20), "{self:?}");
    }
}
