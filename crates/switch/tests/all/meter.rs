//! Compares meters with BMv2's own test and with a second implementation of BMv2's formula.

use linewarden_switch::meter::{Color, Meter, MeterConfig, MeterError, MeterKind, Rate};
use proptest::prelude::*;

use Color::{Green, Red, Yellow};

const COMMITTED: Rate = Rate {
    units_per_us: 0.000_002,
    burst: 3,
};
const PEAK: Rate = Rate {
    units_per_us: 0.000_01,
    burst: 1,
};

fn two_rates(rates: [Rate; 2]) -> Meter {
    let mut meter = Meter::new();
    meter.set_rates(2, &rates).unwrap();
    meter
}

#[test]
fn two_rates_mark_three_colors_like_bmv2() {
    let mut meter = two_rates([COMMITTED, PEAK]);
    let times_ms = [0, 90, 180, 270, 360, 450, 540, 630, 720, 810, 820, 830, 1040];
    let colors = times_ms.map(|ms| meter.execute(MeterKind::Packets, ms * 1000, 128, Green));
    let expected = [
        Green, Red, Green, Green, Yellow, Yellow, Green, Yellow, Yellow, Yellow, Red, Red, Green,
    ];
    assert_eq!(colors, expected);
    assert_eq!(meter.rates().collect::<Vec<_>>(), [COMMITTED, PEAK]);
}

#[test]
fn single_rate_charges_precolored_packets() {
    let mut meter = Meter::new();
    meter.set_rates(1, &[COMMITTED]).unwrap();
    let mut run = |input_color| meter.execute(MeterKind::Packets, 0, 128, input_color);
    assert_eq!(
        [run(Green), run(Yellow), run(Green), run(Green), run(Red)],
        [Green, Yellow, Green, Yellow, Red]
    );
}

#[test]
fn unconfigured_meter_marks_all_packets_green() {
    let mut meter = Meter::new();
    assert_eq!(meter.execute(MeterKind::Bytes, 7, u64::MAX, Red), Green);
    meter.set_rates(2, &[COMMITTED, PEAK]).unwrap();
    meter.reset();
    assert_eq!(meter.execute(MeterKind::Packets, u64::MAX, 1, Red), Green);
    assert_eq!(meter.rates().count(), 0);
}

#[test]
fn zero_configuration_passes_no_packet() {
    let rates = MeterConfig {
        cir: 0,
        cburst: 0,
        pir: 0,
        pburst: 0,
    }
    .rates()
    .unwrap();
    let mut meter = two_rates(rates);
    assert_eq!(meter.execute(MeterKind::Packets, u64::MAX, 100, Green), Red);
    assert_eq!(meter.execute(MeterKind::Bytes, u64::MAX, 1, Green), Red);
    assert_eq!(meter.execute(MeterKind::Bytes, u64::MAX, 0, Green), Green);
}

#[test]
fn rejected_rates_leave_the_meter_unchanged() {
    let mut meter = two_rates([COMMITTED, PEAK]);
    let invalid_rates: [(&[Rate], &str); 4] = [
        (&[PEAK, COMMITTED], "lowest rate first"),
        (&[PEAK], "expected 2, found 1"),
        (
            &[
                Rate {
                    units_per_us: f64::NAN,
                    burst: 1,
                },
                PEAK,
            ],
            "invalid rate NaN",
        ),
        (
            &[
                Rate {
                    units_per_us: -1.0,
                    burst: 1,
                },
                PEAK,
            ],
            "invalid rate -1",
        ),
    ];
    for (rates, expected) in invalid_rates {
        let error = meter.set_rates(2, rates).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(meter.rates().collect::<Vec<_>>(), [COMMITTED, PEAK]);
    }
    let negative = MeterConfig {
        cir: 1,
        cburst: -1,
        pir: 2,
        pburst: 0,
    };
    assert_eq!(
        negative.rates(),
        Err(MeterError::Negative {
            name: "cburst",
            value: -1
        })
    );
}

#[test]
fn cell_size_is_small() {
    assert!(size_of::<Meter>() <= 72, "{}", size_of::<Meter>());
}

#[test]
fn colors_match_bmv2_code() {
    let mut meters = 0;
    let mut meter = Meter::new();
    let mut kind = MeterKind::Packets;
    for line in include_str!("../data/bmv2_meters.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let rate = |index: usize| Rate {
            units_per_us: words[index].parse().unwrap(),
            burst: number(index + 1),
        };
        if words[0] == "M" {
            meters += 1;
            meter = Meter::new();
            let count = number(1) as usize;
            meter.set_rates(count, &[rate(3), rate(5)][..count]).unwrap();
            kind = if number(2) == 1 {
                MeterKind::Bytes
            } else {
                MeterKind::Packets
            };
        } else {
            let color = meter.execute(kind, number(1), number(2), Color::from_value(number(3)));
            assert_eq!(u64::from(color.value()), number(4), "meter {meters}: {line}");
        }
    }
    assert_eq!(meters, 20);
}

/// BMv2's `Meter::execute` step by step, buckets from the highest rate to the lowest.
struct ReferenceMeter {
    /// For each rate: tokens per microsecond, maximum tokens, current tokens, tokens generated before the latest packet,
    /// and the color of a packet without enough tokens.
    rates: Vec<(f64, u64, u64, u64, u32)>,
}

impl ReferenceMeter {
    fn new(rates: &[Rate]) -> Self {
        let mut rates: Vec<_> = (1..)
            .zip(rates)
            .map(|(color, rate)| (rate.units_per_us, rate.burst, rate.burst, 0, color))
            .collect();
        rates.reverse();
        Self { rates }
    }

    fn execute(&mut self, now_us: i64, input: u64, input_color: u32) -> u32 {
        let mut packet_color = 0;
        for (info_rate, burst, tokens, tokens_last, color) in &mut self.rates {
            let since_init = (now_us as f64 * *info_rate) as u64;
            let new_tokens = since_init - *tokens_last;
            *tokens_last = since_init;
            *tokens = (*tokens + new_tokens).min(*burst);
            if *tokens < input {
                packet_color = *color;
                break;
            }
            *tokens -= input;
        }
        input_color.max(packet_color)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn colors_match_bmv2_formula(
        lower in 0.0..2.0_f64,
        difference in 0.0..20.0_f64,
        bursts in prop::array::uniform2(0..5_000_u64),
        only_one: bool,
        bytes: bool,
        packets in prop::collection::vec((0..4_000_u64, 0..1_600_u64, 0..3_u64), 1..200),
    ) {
        let both_rates = [
            Rate { units_per_us: lower, burst: bursts[0] },
            Rate { units_per_us: lower + difference, burst: bursts[1] },
        ];
        let rates = if only_one { &both_rates[..1] } else { &both_rates[..] };
        let mut meter = Meter::new();
        meter.set_rates(rates.len(), rates).unwrap();
        let mut reference = ReferenceMeter::new(rates);
        let kind = if bytes { MeterKind::Bytes } else { MeterKind::Packets };
        let mut now_us = 0;
        for (pause_us, length, input_color) in packets {
            now_us += pause_us;
            let expected = reference.execute(now_us as i64, if bytes { length } else { 1 }, input_color as u32);
            let color = meter.execute(kind, now_us, length, Color::from_value(input_color));
            prop_assert_eq!(u32::from(color.value()), expected, "at {} us", now_us);
        }
    }

    #[test]
    fn p4runtime_reads_the_written_rates(
        cir in 0..1_i64 << 40, above in 0..1_i64 << 40, cburst in 0..i64::MAX, pburst in 0..i64::MAX,
    ) {
        let config = MeterConfig { cir, cburst, pir: cir + above, pburst };
        let meter = two_rates(config.rates().unwrap());
        let rates_read: Vec<_> = meter.rates().collect();
        prop_assert_eq!(MeterConfig::from_rates([rates_read[0], rates_read[1]]), config);
    }

    #[test]
    fn equal_rates_agree_for_any_time_and_length(
        steps in prop::collection::vec((any::<u64>(), any::<u64>()), 1..50),
        rate in 0.0..f64::MAX,
        burst: u64,
    ) {
        let mut meter = two_rates([Rate { units_per_us: rate, burst }; 2]);
        for (now_us, length) in steps {
            prop_assert_ne!(meter.execute(MeterKind::Bytes, now_us, length, Green), Yellow);
        }
    }
}
