//! What one sees while the demonstration runs: a bar on a terminal, a line per stage elsewhere.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linewarden_lab::attackers;
use linewarden_lab::demo::{AttackOutcome, Event, Stage};

use super::table::{count, micros};
use crate::output::tell;

/// Shows events on standard error.
pub struct Watcher {
    bar: ProgressBar,
    is_terminal: bool,
    devices: u64,
    attacks: u64,
    attempts: u64,
    fleet: String,
}

impl Watcher {
    /// Of a run with so many devices.
    pub fn new(devices: u32) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let target = if is_terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {human_pos}/{human_len} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            bar,
            is_terminal,
            devices: devices.into(),
            attacks: 0,
            attempts: 0,
            fleet: String::new(),
        }
    }

    /// Something happened.
    pub fn on(&mut self, event: &Event) {
        match event {
            Event::Stage(stage) => self.begin(*stage),
            Event::Progress { done, total } => {
                self.bar.set_length(*total);
                self.bar.set_position(*done);
            }
            Event::Fleet {
                authenticated,
                devices,
                per_s,
                latency_us,
            } => {
                self.bar.set_length(*devices);
                self.bar.set_position(*authenticated);
                self.fleet = format!("{}/s, {}", count(*per_s as u64), micros(*latency_us));
                self.say();
            }
            Event::Attack(outcome) => self.note(outcome),
        }
    }

    /// The run is over.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn begin(&mut self, stage: Stage) {
        let what = match stage {
            Stage::Building => "building the network",
            Stage::Enrolling => "enrolling devices",
            Stage::Registering => "filling the registry",
            Stage::Loading => "loading the gateway",
            Stage::Authenticating => "authenticating",
            Stage::Attacking => "waiting for the attackers",
            Stage::Reaching => "through the gate",
            Stage::Attesting => "proving what devices run",
            Stage::Revoking => "revoking a device",
            Stage::Measuring(_) => "measuring latency",
        };
        if !self.is_terminal {
            tell(format_args!("demo: {what}"));
        }
        self.bar.set_prefix(what);
        self.bar.set_message("");
        if stage == Stage::Attacking {
            self.bar.set_length(attackers::ALL.len() as u64);
            self.bar.set_position(self.attacks);
        } else {
            self.bar.set_length(self.devices);
            self.bar.set_position(0);
        }
    }

    fn note(&mut self, outcome: &AttackOutcome) {
        self.attacks += 1;
        self.attempts += outcome.attempts;
        if outcome.successes > 0 {
            let line = outcome.told();
            if self.is_terminal {
                self.bar.println(line);
            } else {
                tell(format_args!("demo: {line}"));
            }
        }
        self.say();
    }

    fn say(&self) {
        self.bar.set_message(format!(
            "{}  {} attacks, {} attempts",
            self.fleet,
            self.attacks,
            count(self.attempts)
        ));
    }
}
