//! The methods of the gRPC service.

use linewarden_link::{MessageCall, convert, proto};
use linewarden_registry::FencingToken;
use linewarden_types::ProcessId;
use tonic::{Request, Response, Status};

use super::{Server, check_connection_id, peer_gateway};

macro_rules! link_service {
    ($($call:ident $method:ident $name:literal $response:ty;)*) => {
        #[tonic::async_trait]
        impl proto::link_server::Link for Server {
            async fn register(
                &self,
                request: Request<proto::RegisterRequest>,
            ) -> Result<Response<proto::RegisterResponse>, Status> {
                self.register_process(request).await
            }

            $(async fn $method(
                &self,
                request: Request<<linewarden_types::$call as MessageCall>::RequestMessage>,
            ) -> Result<Response<<linewarden_types::$call as MessageCall>::ResponseMessage>, Status> {
                self.serve::<linewarden_types::$call>(request).await
            })*
        }
    };
}

linewarden_types::for_each_call!(link_service);

impl Server {
    /// Registers the gateway's process, unless it is registered.
    async fn register_process(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::RegisterResponse>, Status> {
        let gateway = peer_gateway(&request)?;
        let proto::RegisterRequest {
            connection_id: connection,
            version,
            process_id,
            abandoned_requests,
        } = request.into_inner();
        check_connection_id(&connection)?;
        let process = convert::exact_bytes(&process_id, "process id of a wrong length")?;
        let timestamps = self.inner.environment.timestamps();
        self.inner.controller.advance_time(timestamps.now_ns);
        // A token that is not new: the process is registered already, and the request is repeated or late.
        let (registered, is_new) = self
            .inner
            .controller
            .register_process(gateway, ProcessId(process), timestamps.now_s)
            .await
            .map_err(|error| self.denial_to_status(error))?;
        let fencing_token = registered.number();
        let presented = FencingToken::presented(gateway, fencing_token, abandoned_requests);
        if is_new {
            self.inner
                .observer
                .gateway_registered(gateway, fencing_token, &version);
        }
        self.accept_connection(&connection, presented).await?;
        if is_new {
            self.inner.controller.begin_registration(gateway);
        }
        self.record_position(presented);
        let observer = &*self.inner.observer;
        self.inner.controller.report_trust(gateway, observer);
        Ok(Response::new(proto::RegisterResponse { fencing_token }))
    }
}
