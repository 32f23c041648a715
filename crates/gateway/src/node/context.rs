//! The state that all components of a node share: the data plane, the audit records, the settings, the time, and the connection to the
//! controller.

use linewarden_dataplane::DataPlane;
use linewarden_types::LinkError;

use super::channel::Channel;
use super::settings::Settings;
use super::status::{LinkState, Status};
use crate::audit::{AuditBuffer, AuditEvent};
use crate::time::Clock;

/// Returns 8 random bytes, or `None` if the source of random numbers fails.
pub(super) type RandomSource<'a> = &'a mut dyn FnMut() -> Option<[u8; 8]>;

/// The shared part of a node.
pub(super) struct Context {
    pub(super) data_plane: Box<dyn DataPlane>,
    /// Audit records that the caller has not taken yet.
    pub(super) audit: AuditBuffer,
    pub(super) settings: Settings,
    /// The time of the tick or of the response that is being handled.
    pub(super) clock: Clock,
    /// The random number for the response that is being handled: selects the delay of a retry.
    pub(super) retry_random: u64,
    pub(super) connection: Connection,
}

impl Context {
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns
    }

    /// The boot-time clock, s.
    pub(super) fn boot_s(&self) -> u64 {
        self.clock.boot_ns / 1_000_000_000
    }

    /// Returns the content of the response to the request in flight on the channel; `None` if the request has failed or the
    /// response is void. Updates the time of the next request, the connection and the log.
    pub(super) fn receive<T>(&mut self, channel: &mut Channel, result: Result<T, LinkError>) -> Option<T> {
        if !channel.accept_response() {
            return None;
        }
        let (request, now_ns, random) = (channel.name(), self.clock.monotonic_ns, self.retry_random);
        let error = match result {
            Ok(content) => {
                if channel.retry.succeed() {
                    tracing::info!(request, "request succeeds again");
                }
                self.connection.state = LinkState::Reachable;
                return Some(content);
            }
            Err(error) => error,
        };
        match error {
            LinkError::Failed(error) => {
                if channel.retry.fail(now_ns, random) {
                    tracing::error!(
                        request,
                        error,
                        action = "check the controller that the error names, its registry, and the network",
                        "request failed; retrying; the gateway uses its leases and sessions until the offline limit"
                    );
                }
                self.connection.state = LinkState::Lost { error };
            }
            LinkError::RegistryRestored(error) => {
                // The registry may lease the rows in the data plane to other gateways, so the data plane sends no reply from
                // here on, even before the response is handled.
                self.data_plane.set_fresh([0; 8], 0);
                self.connection.restored = Some(error);
            }
            // The trust status contains the reason.
            LinkError::Untrusted(_) => {
                channel.retry.fail(now_ns, random);
            }
            LinkError::Replaced(error) => self.end_registration(error),
        }
        None
    }

    /// Records whether the gateway sends no replies, because it was replaced or the controller has not responded for too long.
    pub(super) fn set_offline_limit_reached(&mut self, is_reached: bool) {
        let was_reached = std::mem::replace(&mut self.connection.is_offline_limit_reached, is_reached);
        if is_reached != was_reached && !self.connection.is_replaced {
            self.audit.record(match is_reached {
                true => AuditEvent::OfflineLimitReached,
                false => AuditEvent::Resumed,
            });
        }
    }

    /// Ends the service: the registration of this process is no longer valid.
    fn end_registration(&mut self, error: String) {
        if !std::mem::replace(&mut self.connection.is_replaced, true) {
            self.audit.record(AuditEvent::Replaced);
            tracing::error!(
                error,
                action = "give each gateway its own `id`; a gateway with a revoked ID needs a new `id` and certificate",
                "registration of this gateway is no longer valid; the process stops serving"
            );
            self.data_plane.set_stopping(true);
        }
        self.connection.state = LinkState::Lost { error };
    }
}

/// The connection to the controller, as the results of requests show it.
///
/// ```text
///  Reachable ◄────────► Lost        any state ──► replaced (final)
/// ```
#[derive(Debug, Default)]
pub(super) struct Connection {
    state: LinkState,
    is_replaced: bool,
    is_offline_limit_reached: bool,
    /// The error that shows that the registry was restored, until the node has handled it.
    restored: Option<String>,
}

impl Connection {
    pub(super) fn is_reachable(&self) -> bool {
        self.state == LinkState::Reachable
    }

    /// Whether the registration of this process is no longer valid.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Takes the error that shows that the registry was restored to an earlier state.
    pub(super) fn take_restored(&mut self) -> Option<String> {
        self.restored.take()
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.link.clone_from(&self.state);
        status.replaced = self.is_replaced;
        status.offline_limit_reached = self.is_offline_limit_reached;
    }
}

#[cfg(test)]
mod tests {
    use linewarden_types::Kind;

    use super::*;
    use crate::node::test_support;

    /// The state after a response: whether the content was returned, and the connection.
    type Outcome = (bool, bool, bool, bool);

    #[test]
    fn each_result_leads_to_the_documented_state() {
        let text = || "reason".to_owned();
        let cases: [(Result<(), LinkError>, Outcome); 5] = [
            // (content, reachable, replaced, restored)
            (Ok(()), (true, true, false, false)),
            (Err(LinkError::Failed(text())), (false, false, false, false)),
            (Err(LinkError::Untrusted(text())), (false, true, false, false)),
            (
                Err(LinkError::RegistryRestored(text())),
                (false, true, false, true),
            ),
            (Err(LinkError::Replaced(text())), (false, false, true, false)),
        ];
        for (result, expected) in cases {
            let case = format!("{result:?}");
            let (mut context, mut channel) = (test_support::context(), Channel::new(Kind::ListChanges));
            assert!(channel.try_send(context.clock));
            let content = context.receive(&mut channel, result);
            let connection = &mut context.connection;
            let outcome = (
                content.is_some(),
                connection.is_reachable(),
                connection.is_replaced(),
                connection.take_restored().is_some(),
            );
            assert_eq!(outcome, expected, "{case}");
            assert_eq!(connection.take_restored(), None);
            let must_wait = case.contains("Failed") || case.contains("Untrusted");
            assert_eq!(channel.is_free(context.now_ns()), !must_wait, "{case}");
        }
    }

    #[test]
    fn a_void_response_changes_nothing() {
        let (mut context, mut channel) = (test_support::context(), Channel::new(Kind::ListChanges));
        assert!(channel.try_send(context.clock));
        channel.invalidate();
        let error = Err::<(), _>(LinkError::Replaced("reason".to_owned()));
        assert_eq!(context.receive(&mut channel, error), None);
        assert!(context.connection.is_reachable() && !context.connection.is_replaced());
        assert!(channel.is_free(context.now_ns()));
    }
}
