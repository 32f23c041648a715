//! Monitors a running gateway until a signal stops it.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::service_manager;
use linewarden_cli::signals::{SignalRequest as Signal, Signals};
use linewarden_dataplane::Counters;
use linewarden_gateway::{Gateway, LinkState, Status};

use super::output::{ServeOutput, print_counters, print_status};
use super::reload::Reloader;

/// Interval at which the addresses of the machine's interfaces are checked.
const ADDRESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Prints the status of a running gateway, and handles signals.
pub struct GatewayMonitor<'a> {
    output: Output,
    gateway: &'a Gateway,
    reloader: Reloader,
    interval: Duration,
    /// Time of the next check of the addresses.
    address_check_at: Instant,
    /// The latest status and counters that were printed.
    last_printed: Option<(Status, Counters)>,
    /// Progress bar of loading devices.
    bar: Option<ProgressBar>,
}

impl<'a> GatewayMonitor<'a> {
    pub fn new(output: Output, gateway: &'a Gateway, reloader: Reloader, interval: Duration) -> Self {
        Self {
            output,
            gateway,
            reloader,
            interval,
            address_check_at: Instant::now(),
            last_printed: None,
            bar: None,
        }
    }

    /// Prints the status on change and handles signals, until a signal stops the gateway.
    pub fn run(&mut self, signals: &Signals) -> Result<(), Failure> {
        let mut next_print_at = Instant::now();
        loop {
            let status = self.gateway.status();
            if let Some(failure) = status.data_plane_failure {
                return Err(Failure::failed(format!("data plane failed: {failure}")));
            }
            if status.replaced {
                return Err(Failure::failed(replaced_reason(&status.link)));
            }
            self.show_loading(&status);
            if self.must_print_now(&status) || Instant::now() >= next_print_at {
                self.print_changes(status)?;
                next_print_at = Instant::now() + self.interval;
            }
            if Instant::now() >= self.address_check_at {
                self.reloader
                    .follow_addresses(self.gateway)
                    .map_err(Failure::failed)?;
                self.address_check_at = Instant::now() + ADDRESS_CHECK_INTERVAL;
            }
            match signals.wait(Duration::from_millis(100))? {
                None => {}
                Some(Signal::Stop) => return Ok(()),
                Some(Signal::PrintCounters) => self.print_all()?,
                Some(Signal::Reload) => self.reload(),
            }
        }
    }

    /// Whether the status must be printed immediately: loading has ended, the gateway has reached or left its offline
    /// limit, or the link to the controller or the trust state has changed.
    fn must_print_now(&self, status: &Status) -> bool {
        (status.loaded || status.trust.is_some())
            && self.last_printed.as_ref().is_none_or(|(last_status, _)| {
                last_status.loaded != status.loaded
                    || last_status.link != status.link
                    || last_status.offline_limit_reached != status.offline_limit_reached
                    || last_status.trust != status.trust
            })
    }

    fn show_loading(&mut self, status: &Status) {
        let (done, total) = status.resumed;
        if status.loaded {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
        } else if total > 0 {
            let bar = self
                .bar
                .get_or_insert_with(|| self.output.progress(total, "loading"));
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn print_changes(&mut self, status: Status) -> Result<(), Failure> {
        let counters = self.gateway.counters().map_err(Failure::failed)?;
        let is_new = self
            .last_printed
            .as_ref()
            .is_none_or(|(last_status, last_counters)| *last_status != status || *last_counters != counters);
        if is_new {
            // A write error, such as a full disk, must not stop the gateway.
            if let Err(failure) = print_status(self.output, &status, &counters) {
                tracing::warn!(error = %failure, "printing the status failed");
            }
            self.last_printed = Some((status, counters));
        }
        Ok(())
    }

    fn print_all(&mut self) -> Result<(), Failure> {
        let (status, counters) = (
            self.gateway.status(),
            self.gateway.counters().map_err(Failure::failed)?,
        );
        let result = print_status(self.output, &status, &counters)
            .and_then(|()| print_counters(self.output, &status, &counters));
        if let Err(failure) = result {
            tracing::warn!(error = %failure, "printing the counters failed");
        }
        Ok(())
    }

    fn reload(&mut self) {
        service_manager::notify(&service_manager::reloading());
        let result = match self.reloader.reload(self.gateway) {
            Ok(()) => {
                tracing::info!("configuration reloaded");
                self.output.object(&ServeOutput::Reloaded)
            }
            Err(failure) => {
                let errors = failure.messages();
                for error in &errors {
                    tracing::error!(error = linewarden_cli::output::printable(error), "reload refused");
                }
                tracing::error!(
                    action = "correct the file and reload, or restart the gateway",
                    "reload refused; the previous configuration stays in force"
                );
                let result = self
                    .output
                    .object(&ServeOutput::ReloadRefused { errors: &errors });
                self.gateway.record_refused_config(errors);
                result
            }
        };
        if let Err(failure) = result {
            tracing::warn!(error = %failure, "printing the result of the reload failed");
        }
        service_manager::notify(service_manager::READY);
    }
}

/// The reason why a replaced process ends: another process registered under the same gateway ID, or the ID was revoked.
fn replaced_reason(link: &LinkState) -> String {
    match link {
        LinkState::Lost { error } => format!("registration of this gateway is no longer valid: {error}"),
        _ => "another process has registered with this gateway ID: give each gateway its own `id`".to_owned(),
    }
}
