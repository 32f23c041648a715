//! A gateway at work is watched until it is time to stop.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use linewarden_dataplane::Counters;
use linewarden_gateway::{Gateway, LinkState, Status};

use super::reload::Reloader;
use super::told::{Told, tell_counters, tell_status};
use crate::failure::Failure;
use crate::output::Output;
use crate::service_manager;
use crate::signals::{Signals, Told as Signal};

/// Between two looks at the addresses of the machine's interfaces.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// A gateway at work, and what has been told of it.
pub struct Watch<'a> {
    output: Output,
    gateway: &'a Gateway,
    reloader: Reloader,
    every: Duration,
    /// When the interfaces' addresses are looked at again.
    follow_at: Instant,
    last: Option<(Status, Counters)>,
    /// Of what is loaded.
    bar: Option<ProgressBar>,
}

impl<'a> Watch<'a> {
    pub fn new(output: Output, gateway: &'a Gateway, reloader: Reloader, every: Duration) -> Self {
        Self {
            output,
            gateway,
            reloader,
            every,
            follow_at: Instant::now(),
            last: None,
            bar: None,
        }
    }

    /// Prints the state whenever it has changed, and does what it is told, until it is time to stop.
    pub fn run(&mut self, signals: &Signals) -> Result<(), Failure> {
        let mut next = Instant::now();
        loop {
            let status = self.gateway.status();
            if let Some(failure) = status.plane_failure {
                return Err(Failure::failed(format!("the data plane has ended: {failure}")));
            }
            if status.replaced {
                return Err(Failure::failed(replaced(&status.link)));
            }
            self.show_loading(&status);
            if self.is_urgent(&status) || Instant::now() >= next {
                self.tell_changes(status)?;
                next = Instant::now() + self.every;
            }
            if Instant::now() >= self.follow_at {
                self.reloader.follow_addresses(self.gateway)?;
                self.follow_at = Instant::now() + FOLLOW_EVERY;
            }
            match signals.wait(Duration::from_millis(100))? {
                None => {}
                Some(Signal::Stop) => return Ok(()),
                Some(Signal::Count) => self.tell_all()?,
                Some(Signal::Reload) => self.reload(),
            }
        }
    }

    /// The end of loading, the registry's coming and going, and whether anything is answered, are told at once.
    fn is_urgent(&self, status: &Status) -> bool {
        (status.loaded || status.trust.is_some())
            && self.last.as_ref().is_none_or(|(before, _)| {
                before.loaded != status.loaded
                    || before.link != status.link
                    || before.lapsed != status.lapsed
                    || before.trust != status.trust
            })
    }

    fn show_loading(&mut self, status: &Status) {
        let (done, all) = status.resumed;
        if status.loaded {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
        } else if all > 0 {
            let bar = self
                .bar
                .get_or_insert_with(|| self.output.progress(all, "loading"));
            bar.set_length(all);
            bar.set_position(done);
        }
    }

    fn tell_changes(&mut self, status: Status) -> Result<(), Failure> {
        let counters = self.gateway.counters()?;
        let is_new = self
            .last
            .as_ref()
            .is_none_or(|before| before.0 != status || before.1 != counters);
        if is_new {
            // A full disk under the output is no reason to stop serving.
            if let Err(failure) = tell_status(self.output, &status, &counters) {
                tracing::warn!(%failure, "cannot print the state");
            }
            self.last = Some((status, counters));
        }
        Ok(())
    }

    fn tell_all(&mut self) -> Result<(), Failure> {
        let (status, counters) = (self.gateway.status(), self.gateway.counters()?);
        let told = tell_status(self.output, &status, &counters)
            .and_then(|()| tell_counters(self.output, &status, &counters));
        if let Err(failure) = told {
            tracing::warn!(%failure, "cannot print the counters");
        }
        Ok(())
    }

    fn reload(&mut self) {
        service_manager::tell(&service_manager::reloading());
        let told = match self.reloader.reload(self.gateway) {
            Ok(()) => {
                tracing::info!("another configuration is in force");
                self.output.object(&Told::Reloaded)
            }
            Err(failure) => {
                let errors = failure.messages();
                for error in &errors {
                    tracing::error!("{}", crate::output::printable(error));
                }
                tracing::error!("the configuration was refused; the old one stays in force");
                let told = self.output.object(&Told::ReloadRefused { errors: &errors });
                self.gateway.refuse_change(errors);
                told
            }
        };
        if let Err(failure) = told {
            tracing::warn!(%failure, "cannot print what became of the configuration");
        }
        service_manager::tell(service_manager::READY);
    }
}

/// Why a process that was replaced ends: another has its number, or nobody has it any more.
fn replaced(link: &LinkState) -> String {
    match link {
        LinkState::Lost { error } => format!("nothing is served under this number any more: {error}"),
        _ => "another process has registered as this gateway; give each its own `id`".to_owned(),
    }
}
