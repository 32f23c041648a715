//! What a gateway is to attest, and with which numbers.

use std::ops::Range;

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::Period;
use linewarden_registry::{GroupName, GroupPolicy, PeriodRecord, Registry, RegistryError};

/// Round numbers that are reserved at a time: as many are lost at most when a gateway ends.
pub(super) const ROUNDS_RESERVED: u32 = 256;

/// 2026-01-01 UTC, from which floors of numbers count, seconds since 1970.
const EPOCH_S: u64 = 1_767_225_600;

/// Where round numbers go on at least: one for each second. Devices remember the highest number that they have seen, and
/// would be silent for as long as an older copy of the registry gives lower ones.
pub(super) fn rounds_floor(now_s: u64) -> u32 {
    u32::try_from(now_s.saturating_sub(EPOCH_S)).unwrap_or(0)
}

/// Likewise after which period the next one comes at least: one for each that there could have been.
fn periods_floor(now_s: u64, period_s: u32) -> Period {
    let periods = now_s.saturating_sub(EPOCH_S) / u64::from(period_s.max(1));
    Period(periods.saturating_sub(1))
}

/// What a gateway wants of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanWish {
    /// This period is to begin: the running one has lasted long enough, and its keys are in place.
    pub begin: Option<Period>,
    /// How long the gateway lets a period last, seconds.
    pub period_s: u32,
    /// Whether more round numbers are wanted.
    pub numbers: bool,
}

/// What a gateway is to attest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The period that runs.
    pub running: PeriodStart,
    /// How long it has been running, in seconds of the controller's clock.
    pub age_s: u64,
    /// The one after it. Its salt must not be told to anybody before it begins.
    pub next: PeriodStart,
    /// The newest change to provers and groups.
    pub revision: u64,
    /// Another number after each change of what groups may prove, the same for the same: where it is another one all keys are made
    /// anew.
    pub references: u64,
    /// The groups.
    pub groups: Vec<GroupPlan>,
    /// Numbers of rounds that this gateway alone may open; none unless wanted.
    pub rounds: Range<u32>,
}

/// A group as a gateway knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub name: GroupName,
    /// How it is attested.
    pub policy: GroupPolicy,
    /// Counts the rounds that were ordered by command.
    pub rounds_wanted: u64,
}

/// The period that runs and the one after it, drawn where nobody has before. `random` gives 8 random bytes; without any
/// there is no answer.
///
/// One of the two is even and the other odd: data planes keep the keys of both, by just that.
pub(super) async fn periods(
    registry: &Registry,
    wish: &PlanWish,
    now_s: u64,
    random: &mut (dyn FnMut() -> Option<[u8; 8]> + Send),
) -> Result<Option<(PeriodRecord, PeriodRecord)>, RegistryError> {
    let (Some(first_salt), Some(next_salt)) = (random(), random()) else {
        return Ok(None);
    };
    let running = match (wish.begin, registry.newest_begun_period().await?) {
        (Some(period), Some(begun)) if period > begun.number => registry.begin_period(period, now_s).await?,
        (_, Some(begun)) => begun,
        (_, None) => {
            let after = Some(periods_floor(now_s, wish.period_s));
            let first = registry.draw_period(after, first_salt, now_s).await?;
            registry.begin_period(first.number, now_s).await?
        }
    };
    // All gateways go on to the same one, whoever draws it.
    let mut after = running.number.max(periods_floor(now_s, wish.period_s));
    let next = loop {
        let next = registry.draw_period(Some(after), next_salt, now_s).await?;
        if (next.number.0 ^ running.number.0) & 1 == 1 {
            break next;
        }
        // Numbers have been left out. This one is too: it never begins, so its salt is nobody's.
        after = next.number;
    };
    Ok(Some((running, next)))
}

pub(super) fn start(period: &PeriodRecord) -> PeriodStart {
    PeriodStart {
        period: period.number,
        salt: period.salt,
    }
}
