//! What all answers rest on.

use std::sync::Arc;

use linewarden_controller::Controller;
use linewarden_registry::Registry;
use opentelemetry_sdk::trace::SdkTracer;

use crate::api::LastCounted;
use crate::auth::Known;
use crate::fleet::Fleet;
use crate::health::LastReady;
use crate::limits::Limits;
use crate::metrics::Counts;
use crate::nats::NatsCounts;
use crate::stream::Stream;
use crate::telemetry::TraceCounts;

/// Shared by all questions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) name: Arc<str>,
    pub(crate) registry: Registry,
    pub(crate) controller: Controller,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) stream: Arc<Stream>,
    pub(crate) nats: Option<Arc<NatsCounts>>,
    pub(crate) tracer: Option<SdkTracer>,
    pub(crate) traces: Option<Arc<TraceCounts>>,
    pub(crate) limits: Limits,
    pub(crate) known: Arc<Known>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) counted: Arc<LastCounted>,
    pub(crate) ready: Arc<LastReady>,
}
