//! Differential test: random programs and packets run in the reference interpreter and in the switch.
//!
//! `LINEWARDEN_DIFFERENTIAL_CASES` sets the number of cases, `LINEWARDEN_DIFFERENTIAL_SEED` the first seed.
//! A failing case is minimized and printed with its seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod case;
mod endless;
mod expression;
mod parser;
mod pipeline;
mod run;
mod shape;
mod source;
mod statement;

use self::case::Case;
use self::run::Verdict;
use self::source::Source;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Maximum number of printed failures; these often have different causes.
const FAILURES_MAX: usize = 5;

fn describe(seed: u64, (difference, choices, case): &(String, Vec<u64>, Case)) -> String {
    format!(
        "seed {seed}, {} choices\n{}ops {:?}\nrates {:?}\npackets {:?}\n{difference}",
        choices.len(),
        program(&case.program),
        case.ops,
        case.rates,
        case.packets
    )
}

/// Failure of the case made from these choices, and the choices used.
fn failure(mut source: Source) -> Option<(String, Vec<u64>, Case)> {
    let case = Case::of(&mut source)?;
    match run::compare(&case) {
        Verdict::Different(difference) => Some((difference, source.into_choices(), case)),
        Verdict::Same | Verdict::Refused => None,
    }
}

/// Minimizes a failing case: removes and shrinks choices while the case still fails.
fn minimize(mut found: (String, Vec<u64>, Case)) -> (String, Vec<u64>, Case) {
    let mut tries = setting("LINEWARDEN_DIFFERENTIAL_TRIES", 60_000);
    let mut better = |choices: Vec<u64>, found: &mut (String, Vec<u64>, Case)| {
        tries = tries.saturating_sub(1);
        if tries == 0 {
            return false;
        }
        let Some(smaller) = failure(Source::recorded(choices)) else {
            return false;
        };
        let size = |choices: &[u64]| {
            (
                choices.len(),
                choices.iter().copied().map(u128::from).sum::<u128>(),
            )
        };
        let smaller_now = size(&smaller.1) < size(&found.1);
        if smaller_now {
            *found = smaller;
        }
        smaller_now
    };
    loop {
        let mut progress = false;
        for block in [256, 64, 16, 4, 2, 1] {
            let mut at = 0;
            while at < found.1.len() {
                let end = (at + block).min(found.1.len());
                let mut shorter = found.1.clone();
                shorter.drain(at..end);
                let mut zeroed = found.1.clone();
                zeroed[at..end].fill(0);
                if better(shorter, &mut found)
                    || (found
                        .1
                        .get(at..end)
                        .is_some_and(|part| part.iter().any(|choice| *choice != 0))
                        && better(zeroed, &mut found))
                {
                    progress = true;
                } else {
                    at += block;
                }
            }
        }
        for at in 0..found.1.len() {
            while found.1.get(at).is_some_and(|choice| *choice > 0) {
                let mut less = found.1.clone();
                less[at] /= 2;
                if !better(less, &mut found) {
                    break;
                }
                progress = true;
            }
        }
        for at in 0..found.1.len() {
            for block in [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64] {
                if found.1.get(at).is_none_or(|choice| *choice == 0) || at + 1 + block > found.1.len() {
                    break;
                }
                let mut fewer = found.1.clone();
                fewer[at] -= 1;
                fewer.drain(at + 1..at + 1 + block);
                progress |= better(fewer, &mut found);
            }
        }
        if !progress {
            return found;
        }
    }
}

#[test]
fn switch_matches_reference_interpreter() {
    let first = setting("LINEWARDEN_DIFFERENTIAL_SEED", 1);
    let cases = setting("LINEWARDEN_DIFFERENTIAL_CASES", 2_000);
    let (mut same, mut refused, mut sent) = (0, 0, 0);
    let mut failures = Vec::new();
    for seed in first..first + cases {
        let mut source = Source::seeded(seed);
        let Some(case) = Case::of(&mut source) else {
            refused += 1;
            continue;
        };
        match run::compare(&case) {
            Verdict::Same => {
                same += 1;
                sent += run::by_reference(&case)
                    .0
                    .iter()
                    .map(run::PacketOutcome::packets)
                    .sum::<usize>();
            }
            Verdict::Refused => refused += 1,
            Verdict::Different(difference) => {
                let found = minimize((difference, source.into_choices(), case));
                failures.push(describe(seed, &found));
                if failures.len() >= FAILURES_MAX {
                    break;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{same} cases agree, {refused} cannot be run, {sent} packets sent");
    assert!(refused * 10 <= cases, "{refused} of {cases} cases cannot be run");
    assert!(sent as u64 >= cases / 4, "only {sent} packets were sent");
}

/// Prints the parts of a program that matter to a case.
fn program(program: &linewarden_switch::program::Program) -> String {
    let mut text = String::new();
    for (at, known) in program.types.iter().enumerate().skip(1) {
        let fields = known.fields.iter().map(|field| {
            let (signed, saturating) = (
                ["", "s"][usize::from(field.signed)],
                ["", "!"][usize::from(field.saturating)],
            );
            format!(
                "{}{signed}{saturating}{}",
                field.bits,
                ["", "*"][usize::from(field.variable)]
            )
        });
        let fields: Vec<String> = fields.collect();
        text += &format!(
            "type {at}: {} {:?} max {}\n",
            fields.join(" "),
            known.variable_bits,
            known.max_bytes
        );
    }
    for (at, header) in program.headers.iter().enumerate().skip(2) {
        text += &format!("header {at}: {} type {}\n", header.name, header.header_type.0);
    }
    text += &format!("parser {:?}\n", program.parser.init);
    for (at, state) in program.parser.states.iter().enumerate() {
        text += &format!("state {at} {state:?}\n");
    }
    for (at, action) in program.actions.iter().enumerate() {
        let params: Vec<u32> = action.params.iter().map(|param| param.bits).collect();
        text += &format!("action {at} {params:?}\n");
        if action.name.starts_with("show") {
            continue;
        }
        for (at, statement) in action.body.iter().enumerate() {
            text += &format!("    {at} {statement:?}\n");
        }
    }
    for table in &program.tables {
        text += &format!("{table:?}\n");
    }
    text += &format!("ingress {:?}\negress {:?}\n", program.ingress, program.egress);
    text += &format!(
        "deparser {:?}\nchecksums {:?}\n",
        program.deparser, program.checksums
    );
    text += &format!(
        "calculations {:?}\nregisters {:?}\n",
        program.calculations, program.registers
    );
    text += &format!(
        "field lists {:?}\nvalue sets {:?}\n",
        program.field_lists, program.value_sets
    );
    text
}
