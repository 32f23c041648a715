//! Configuration fields that can change while the gateway runs, and fields that need a restart.

use linewarden_dataplane::LiveSettings;
use linewarden_gateway::audit::AuditOptions;

use super::fields::{AttestSection, AuditSection, GatewayConfig, GatewaySection};
use super::resolve::ResolvedGateway;
use crate::problem::FieldError;

impl GatewayConfig {
    /// Returns the fields that differ in `next` and cannot change while a gateway runs.
    #[must_use]
    pub fn needing_restart(&self, next: &Self) -> Vec<FieldError> {
        // Each field is named, so a new field does not compile until it is handled.
        let Self {
            gateway,
            controller,
            attest,
            p4,
            evidence,
            log: _,
            audit: _,
        } = self;
        let mut errors = gateway.needing_restart(&next.gateway);
        if *controller != next.controller {
            errors.push(needs_restart(&["controller"]));
        }
        match (attest, &next.attest) {
            (Some(attest), Some(next)) => errors.extend(attest.needing_restart(next)),
            (None, None) => {}
            _ => errors.push(needs_restart(&["attest"])),
        }
        if *p4 != next.p4 {
            errors.push(needs_restart(&["p4"]));
        }
        if *evidence != next.evidence {
            errors.push(needs_restart(&["evidence"]));
        }
        errors
    }
}

impl GatewaySection {
    fn needing_restart(&self, next: &Self) -> Vec<FieldError> {
        let Self {
            id,
            dataplane,
            interfaces,
            addresses,
            port,
            ticket_port,
            gate,
            always_pass,
            dhcp_servers,
            gate_on_exit,
            pin_directory,
            slots,
            ring,
            threads,
            forward_to: _,
            device_prefixes: _,
            session_lifetime_s: _,
            low_rows: _,
            mark_block: _,
            offline_limit_s: _,
            nak_per_s: _,
            alarm_per_s: _,
            miss_per_s: _,
            feed_poll_ms: _,
        } = self;
        let differs = [
            ("id", *id != next.id),
            ("dataplane", *dataplane != next.dataplane),
            ("interfaces", *interfaces != next.interfaces),
            ("addresses", *addresses != next.addresses),
            ("port", *port != next.port),
            ("ticket_port", *ticket_port != next.ticket_port),
            ("gate", *gate != next.gate),
            ("always_pass", *always_pass != next.always_pass),
            ("dhcp_servers", *dhcp_servers != next.dhcp_servers),
            ("gate_on_exit", *gate_on_exit != next.gate_on_exit),
            ("pin_directory", *pin_directory != next.pin_directory),
            ("slots", *slots != next.slots),
            ("ring", *ring != next.ring),
            ("threads", *threads != next.threads),
        ];
        let changed = differs.into_iter().filter(|(_, differs)| *differs);
        changed
            .map(|(field, _)| needs_restart(&["gateway", field]))
            .collect()
    }
}

impl AttestSection {
    fn needing_restart(&self, next: &Self) -> Vec<FieldError> {
        let Self { provers, period_s: _ } = self;
        let differs = *provers != next.provers;
        differs
            .then(|| needs_restart(&["attest", "provers"]))
            .into_iter()
            .collect()
    }
}

fn needs_restart(path: &[&'static str]) -> FieldError {
    FieldError::new(
        path,
        "differs from the running value; restart the gateway, or restore the value",
    )
}

impl ResolvedGateway {
    /// The settings that a running data plane applies.
    #[must_use]
    pub fn live(&self) -> LiveSettings {
        LiveSettings {
            forward_to: self.forward_to.clone(),
            ..self.config.live_settings()
        }
    }
}

impl AuditSection {
    /// Options of the audit file.
    #[must_use]
    pub fn options(&self) -> AuditOptions {
        AuditOptions {
            path: self.path.clone(),
            bytes_max: self.bytes_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[gateway]\nid = 1\ninterfaces = [\"lo\"]\n[controller]\nsocket = \"s\"\n";

    fn parse(text: &str) -> GatewayConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn fields_that_need_a_restart_are_reported() {
        let config = parse(TEXT);
        let live = "session_lifetime_s = 7\nmark_block = 9\nlow_rows = 1\noffline_limit_s = 3\nnak_per_s = 1\nalarm_per_s = 1\n\
                    miss_per_s = 0\nfeed_poll_ms = 1\nforward_to = [\"lo\"]\ndevice_prefixes = [\"10.0.0.0/8\"]\n[log]\nlevel = \"debug\"\n[audit]\npath = \"a\"\n[controller]";
        let next = parse(&TEXT.replace("[controller]", live));
        assert_eq!(config.needing_restart(&next), []);
        let text = TEXT
            .replace("id = 1", "id = 2\nring = 3\nport = 4")
            .replace("\"s\"", "\"other\"");
        let fields: Vec<String> = config
            .needing_restart(&parse(&text))
            .iter()
            .map(|error| error.path.join("."))
            .collect();
        assert_eq!(
            fields,
            ["gateway.id", "gateway.port", "gateway.ring", "controller"]
        );
    }
}
