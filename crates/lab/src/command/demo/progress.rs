//! Progress of the demonstration: a bar on a terminal, otherwise a line per stage.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linewarden_lab::attackers;
use linewarden_lab::demo::{AttackOutcome, Event, Stage};

use super::table::{count, micros};
use linewarden_cli::output::print_error;

/// Prints progress on standard error.
pub struct ProgressDisplay {
    bar: ProgressBar,
    is_terminal: bool,
    devices: u64,
    attacks: u64,
    attempts: u64,
    fleet_status: String,
}

impl ProgressDisplay {
    /// Starts the display for a number of devices.
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
            fleet_status: String::new(),
        }
    }

    /// Handles an event of the run.
    pub fn handle(&mut self, event: &Event) {
        match event {
            Event::Stage(stage) => self.start_stage(*stage),
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
                self.fleet_status = format!("{}/s, {}", count(*per_s as u64), micros(*latency_us));
                self.update_message();
            }
            Event::Attack(outcome) => self.record_attack(outcome),
        }
    }

    /// Removes the bar at the end of the run.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn start_stage(&mut self, stage: Stage) {
        let description = match stage {
            Stage::Building => "building the network",
            Stage::Enrolling => "enrolling devices",
            Stage::Registering => "filling the registry",
            Stage::Loading => "loading the gateway",
            Stage::Authenticating => "authenticating",
            Stage::Attacking => "waiting for the attackers",
            Stage::AccessingService => "testing the gate",
            Stage::Attesting => "attesting devices",
            Stage::Revoking => "revoking a device",
            Stage::Measuring(_) => "measuring latency",
        };
        if !self.is_terminal {
            print_error(format_args!("demo: {description}"));
        }
        self.bar.set_prefix(description);
        self.bar.set_message("");
        if stage == Stage::Attacking {
            self.bar.set_length(attackers::ATTACKS.len() as u64);
            self.bar.set_position(self.attacks);
        } else {
            self.bar.set_length(self.devices);
            self.bar.set_position(0);
        }
    }

    fn record_attack(&mut self, outcome: &AttackOutcome) {
        self.attacks += 1;
        self.attempts += outcome.attempts;
        if outcome.successes > 0 {
            let line = outcome.success_message();
            if self.is_terminal {
                self.bar.println(line);
            } else {
                print_error(format_args!("demo: {line}"));
            }
        }
        self.update_message();
    }

    fn update_message(&self) {
        self.bar.set_message(format!(
            "{}  {} attacks, {} attempts",
            self.fleet_status,
            self.attacks,
            count(self.attempts)
        ));
    }
}
