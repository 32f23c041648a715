//! State shared by all request handlers.

use std::sync::Arc;

use linewarden_controller::Controller;
use linewarden_registry::Registry;
use opentelemetry_sdk::trace::SdkTracer;

use crate::api::DeviceCountsCache;
use crate::auth::LoginCache;
use crate::fleet::Fleet;
use crate::health::ReadinessCache;
use crate::limits::Limits;
use crate::metrics::ApiCounters;
use crate::nats::NatsCounts;
use crate::stream::EventStream;
use crate::telemetry::TraceCounts;

/// Shared state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) name: Arc<str>,
    pub(crate) registry: Registry,
    pub(crate) controller: Controller,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) stream: Arc<EventStream>,
    pub(crate) nats_counters: Option<Arc<NatsCounts>>,
    pub(crate) tracer: Option<SdkTracer>,
    pub(crate) trace_counters: Option<Arc<TraceCounts>>,
    pub(crate) limits: Limits,
    pub(crate) login_cache: Arc<LoginCache>,
    pub(crate) api_counters: Arc<ApiCounters>,
    pub(crate) device_counts: Arc<DeviceCountsCache>,
    pub(crate) readiness: Arc<ReadinessCache>,
}
