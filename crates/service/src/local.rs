//! Local administration: the routes of the API over a registry that this process opens, without network.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use linewarden_api::ErrorBody;
use linewarden_controller::attest::Signer;
use linewarden_controller::{Controller, Policy};
use linewarden_registry::{Action, NewEvent, Registry, RegistryError};
use tokio::sync::OnceCell;
use tower::Service;

use crate::api;
use crate::auth::Principal;
use crate::error::{ApiError, RegistryFailure, Result};
use crate::fleet::Fleet;
use crate::idempotency::KEY as IDEMPOTENCY_KEY;
use crate::state::App;
use crate::stream::EventStream;

/// Maximum size of the body of an error response, bytes.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// The API over a local registry, as a service for a client in the same process. The caller of each request is the user of the
/// operating system, with the role admin. Writes are recorded in the registry audit log with this user; they need no reason
/// and no idempotency key. An error contains its cause, also if a controller would only log the cause.
#[derive(Clone)]
pub struct LocalApi {
    router: Router,
}

impl LocalApi {
    /// Creates the API over a registry. `signer` signs attestation results. The caller closes the registry after the last
    /// request.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn new(registry: Registry, signer: Option<Signer>) -> std::result::Result<Self, RegistryError> {
        let name: Arc<str> = "local".into();
        let stream = EventStream::new();
        // Without gateways that are connected to this process, the fleet has no tasks.
        let (fleet, _) = Fleet::new(Arc::clone(&name), Arc::clone(&stream));
        fleet.read_remote(&registry).await?;
        let mut controller = Controller::new(registry.clone(), Policy::default());
        if let Some(signer) = signer {
            controller = controller.with_signer(signer);
        }
        let app = App::new(name, registry, controller, fleet, stream);
        let caller = LocalCaller {
            app: app.clone(),
            follows: Arc::default(),
        };
        Ok(Self {
            router: api::local_router(&app)
                .layer(middleware::from_fn_with_state(caller, call_as_local_user))
                .layer(middleware::map_response(show_failure)),
        })
    }
}

impl<B> Service<axum::http::Request<B>> for LocalApi
where
    Router: Service<axum::http::Request<B>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = <Router as Service<axum::http::Request<B>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        self.router.poll_ready(context)
    }

    fn call(&mut self, request: axum::http::Request<B>) -> Self::Future {
        self.router.call(request)
    }
}

/// The action of a local command that changes a registry directly, for [`Registry::with_action`].
#[must_use]
pub fn local_action(reason: &str, event: NewEvent) -> Action {
    Principal::local().action(reason, event)
}

#[derive(Clone)]
struct LocalCaller {
    app: App,
    /// Set once the process reads new entries of the event log.
    follows: Arc<OnceCell<()>>,
}

/// Adds the local user to a request. The first event stream also starts to read the event log.
async fn call_as_local_user(
    State(caller): State<LocalCaller>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    if request.uri().path().ends_with("/events") {
        caller
            .follows
            .get_or_try_init(|| start_to_follow(&caller.app))
            .await?;
    }
    // A local request is not repeated: an import need not search the event log for its earlier attempt.
    request.headers_mut().remove(IDEMPOTENCY_KEY);
    request.extensions_mut().insert(Principal::local());
    Ok(next.run(request).await)
}

/// The position is determined before the stream begins, so that no event is missed.
async fn start_to_follow(app: &App) -> Result<(), ApiError> {
    let newest = app.registry.newest_authentic_event().await?;
    tokio::spawn(Arc::clone(&app.stream).follow(app.registry.clone(), Some(newest)));
    Ok(())
}

/// Replaces the message of an error response by the failure of the registry that caused the error.
async fn show_failure(response: Response) -> Response {
    let Some(RegistryFailure(failure)) = response.extensions().get().cloned() else {
        return response;
    };
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
    let Ok(mut error) = serde_json::from_slice::<ErrorBody>(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    error.error.message = failure.into();
    (parts.status, axum::Json(error)).into_response()
}
