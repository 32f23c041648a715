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
use crate::reference_limits::GroupPermits;
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
    pub(crate) group_permits: Arc<GroupPermits>,
}

impl App {
    /// The state without NATS and telemetry.
    pub(crate) fn new(
        name: Arc<str>,
        registry: Registry,
        controller: Controller,
        fleet: Arc<Fleet>,
        stream: Arc<EventStream>,
    ) -> Self {
        Self {
            name,
            registry,
            controller,
            fleet,
            stream,
            nats_counters: None,
            tracer: None,
            trace_counters: None,
            limits: Limits::new(),
            login_cache: Arc::default(),
            api_counters: Arc::default(),
            device_counts: Arc::default(),
            readiness: Arc::default(),
            group_permits: Arc::default(),
        }
    }
}
