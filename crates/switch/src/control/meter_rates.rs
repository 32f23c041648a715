//! Rates of meters, as controllers write and read them.

use linewarden_p4runtime::entity::MeterConfig;
use linewarden_p4runtime::error::EntityError;

use super::write::UpdateResult;
use crate::meter::{self, Meter, RATES_MAX};

/// Sets the rates of a meter and fills its buckets.
pub(super) fn set_rates(meter: &mut Meter, rate_count: u32, config: &MeterConfig) -> UpdateResult {
    if config.excess_burst != 0 {
        return Err(EntityError::unimplemented(
            "eburst is not supported: meters have two rates; set eburst to 0",
        ));
    }
    let signed = |value: u64, name: &str| {
        i64::try_from(value).map_err(|_| EntityError::out_of_range(format!("{name} {value} is out of range")))
    };
    let meter_config = meter::MeterConfig {
        cir: signed(config.committed_rate, "cir")?,
        cburst: signed(config.committed_burst, "cburst")?,
        pir: signed(config.peak_rate, "pir")?,
        pburst: signed(config.peak_burst, "pburst")?,
    };
    let wrong = |error: meter::MeterError| EntityError::invalid(error.to_string());
    let rates = meter_config.rates().map_err(wrong)?;
    let count = (rate_count as usize).min(RATES_MAX);
    let rates = rates.get(..count).unwrap_or_default();
    meter.set_rates(count, rates).map_err(wrong)
}

/// Rates of a meter; `None` if the meter is always green.
pub(super) fn rates(meter: &Meter) -> Option<MeterConfig> {
    let mut rates = meter.rates();
    let committed = rates.next()?;
    let peak = rates.next().unwrap_or(committed);
    let config = meter::MeterConfig::from_rates([committed, peak]);
    Some(MeterConfig {
        committed_rate: config.cir.cast_unsigned(),
        committed_burst: config.cburst.cast_unsigned(),
        peak_rate: config.pir.cast_unsigned(),
        peak_burst: config.pburst.cast_unsigned(),
        excess_burst: 0,
    })
}
