//! A controller in the process of the gateway.

use async_trait::async_trait;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::FencingToken;
use linewarden_types::{ControllerRequest, ControllerResponse, LinkError, RegisteredLink, Transport};

use crate::denial::Denial;
use crate::environment::{Environment as _, MachineEnvironment};
use crate::link::Controller;
use crate::serve::{RequestObserver, Serve, ServeContext, VerifierSlot};

/// A controller in the process of the gateway. Registers the gateway with the first request.
pub type InProcessController = RegisteredLink<InProcess>;

/// Serves the requests of one gateway in its process.
pub struct InProcess {
    controller: Controller,
    gateway: GatewayId,
    environment: MachineEnvironment,
    verifier: VerifierSlot,
}

struct NoObserver;

impl RequestObserver for NoObserver {}

impl InProcess {
    /// Returns a link of the gateway to this controller.
    #[must_use]
    pub fn link(controller: Controller, gateway: GatewayId) -> InProcessController {
        InProcessController::from(Self {
            controller,
            gateway,
            environment: MachineEnvironment::new(),
            verifier: VerifierSlot::default(),
        })
    }

    async fn serve<C: Serve>(&self, fencing_token: u64, call: C) -> Result<C::Response, LinkError> {
        let now_ns = self.environment.timestamps().now_ns;
        self.controller.advance_time(now_ns);
        let fencing_token = FencingToken::presented(self.gateway, fencing_token, 0);
        let context = ServeContext {
            environment: &self.environment,
            observer: &NoObserver,
            verifier: &|| VerifierSlot::clone(&self.verifier),
        };
        let response = call.serve(self.controller.link(fencing_token), &context).await;
        response.map_err(|denial| self.link_error(denial))
    }

    /// Converts an error. A stale fencing token means that another process has registered, unless the controller has
    /// replaced the token because this gateway became untrusted.
    fn link_error(&self, denial: Denial) -> LinkError {
        match &denial {
            Denial::Registry(error) if self.controller.is_stale_through_distrust(error) => {
                LinkError::Untrusted(error.to_string())
            }
            _ => denial.into(),
        }
    }
}

#[async_trait(?Send)]
impl Transport for InProcess {
    async fn register(&self) -> Result<u64, LinkError> {
        let timestamps = self.environment.timestamps();
        self.controller.advance_time(timestamps.now_ns);
        let registration = self.controller.register(self.gateway, timestamps.now_s).await;
        registration.map_or_else(
            |error| Err(self.link_error(error.into())),
            |link| Ok(link.token_number()),
        )
    }

    async fn send(&self, fencing_token: u64, request: ControllerRequest) -> ControllerResponse {
        macro_rules! serve {
            ($($call:ident $method:ident $name:literal $response:ty;)*) => {
                match request {
                    ControllerRequest::Register => ControllerResponse::Register(self.register().await),
                    $(ControllerRequest::$call(call) => {
                        ControllerResponse::$call(self.serve(fencing_token, call).await)
                    })*
                }
            };
        }
        linewarden_types::for_each_call!(serve)
    }
}
