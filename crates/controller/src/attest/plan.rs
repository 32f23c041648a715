//! The attestation plan of a gateway: periods, groups and round numbers.

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::Period;
use linewarden_registry::{PeriodRecord, Registry, RegistryError};
use linewarden_types::PlanRequest;

/// Number of round numbers that one request reserves. Reserved numbers that are unused when the gateway process ends are
/// lost.
pub(super) const ROUNDS_RESERVED: u32 = 256;

/// 2026-01-01 UTC in seconds since 1970: the time from which the minimum numbers are counted.
const EPOCH_S: u64 = 1_767_225_600;

/// Returns the minimum of the next round number: the number of seconds since [`EPOCH_S`]. Devices remember the highest
/// round number, and would ignore the lower numbers that a restored registry would assign.
pub(super) fn rounds_floor(now_s: u64) -> u32 {
    u32::try_from(now_s.saturating_sub(EPOCH_S)).unwrap_or(0)
}

/// Returns the minimum number of the next period: the number of periods since [`EPOCH_S`], less one.
fn periods_floor(now_s: u64, period_s: u32) -> Period {
    let periods = now_s.saturating_sub(EPOCH_S) / u64::from(period_s.max(1));
    Period(periods.saturating_sub(1))
}

/// Returns the running and the next period, and creates them if they do not exist. `random` returns 8 random bytes; if
/// `random` returns `None`, the result is `None`.
///
/// Of the two period numbers, one is even and one is odd: a data plane stores the keys of even and of odd periods
/// separately.
pub(super) async fn periods(
    registry: &Registry,
    plan_request: &PlanRequest,
    now_s: u64,
    random: &mut (dyn FnMut() -> Option<[u8; 8]> + Send),
) -> Result<Option<(PeriodRecord, PeriodRecord)>, RegistryError> {
    let (Some(first_salt), Some(next_salt)) = (random(), random()) else {
        return Ok(None);
    };
    let running = match (plan_request.start_period, registry.newest_started_period().await?) {
        (Some(period), Some(newest)) if period > newest.number => {
            registry.start_period(period, now_s).await?
        }
        (_, Some(newest)) => newest,
        (_, None) => {
            let after = Some(periods_floor(now_s, plan_request.period_s));
            let first = registry.create_period(after, first_salt, now_s).await?;
            registry.start_period(first.number, now_s).await?
        }
    };
    // All gateways use the same next period, which the first gateway creates.
    let mut after = running.number.max(periods_floor(now_s, plan_request.period_s));
    let next = loop {
        let next = registry.create_period(Some(after), next_salt, now_s).await?;
        if (next.number.0 ^ running.number.0) & 1 == 1 {
            break next;
        }
        // A number with the wrong parity is skipped. That period never starts, so its salt is unused.
        after = next.number;
    };
    Ok(Some((running, next)))
}

pub(super) fn period_start(period: &PeriodRecord) -> PeriodStart {
    PeriodStart {
        period: period.number,
        salt: period.salt,
    }
}
