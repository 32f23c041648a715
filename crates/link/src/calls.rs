//! The requests and responses of a gateway as messages.

use linewarden_protocol::ids::DeviceId;
use linewarden_types::{
    AdmissionResponse, AdmitDevices, AppraiseRound, Call, Changes, ExtendLeases, GetPlan, LeaseChunk,
    ListChanges, ListProverIds, ListProvers, Plan, ProverIds, Provers, Provision, RelayTicket,
    ReportSessions, ReportStatus, ReportUnusedRows, ResumeLeases, Revision, RoundAppraisal, RowRefusal,
    SessionReportResult, StatusReport, SubmitEvidence, TicketResponse, TrustStatus,
};

use crate::convert::{self, Malformed};
use crate::proto;

/// A message that carries a registration.
pub trait RegisteredMessage: prost::Message + Default + 'static {
    /// The registration.
    fn registration(&self) -> Option<&proto::Registration>;
}

/// A request whose content and response can be sent as messages.
///
/// `now_ns` is the boot-time clock of the machine that encodes or decodes: ages grow between two attempts to send a request,
/// and while a controller handles it.
pub trait MessageCall: Call + Sized {
    /// The request on the wire.
    type RequestMessage: RegisteredMessage;
    /// The response on the wire.
    type ResponseMessage: prost::Message + Default + 'static;

    /// Encodes the request.
    fn encode(&self, registration: Option<proto::Registration>, now_ns: u64) -> Self::RequestMessage;

    /// Decodes the request.
    ///
    /// # Errors
    /// An invalid content.
    fn decode(message: Self::RequestMessage, now_ns: u64) -> Result<Self, Malformed>;

    /// Encodes the response.
    fn encode_response(response: &Self::Response) -> Self::ResponseMessage;

    /// Decodes the response to this request.
    ///
    /// # Errors
    /// An invalid content.
    fn decode_response(&self, message: Self::ResponseMessage) -> Result<Self::Response, Malformed>;
}

macro_rules! registered_messages {
    ($($message:ident),*) => {
        $(impl RegisteredMessage for proto::$message {
            fn registration(&self) -> Option<&proto::Registration> {
                self.registration.as_ref()
            }
        })*
    };
}

registered_messages!(
    ResumeLeasesRequest,
    ExtendLeasesRequest,
    AdmitDevicesRequest,
    ReportUnusedRowsRequest,
    ReportSessionsRequest,
    ListChangesRequest,
    SubmitEvidenceRequest,
    GetPlanRequest,
    ListProversRequest,
    AppraiseRoundRequest,
    ListProverIdsRequest,
    RelayTicketRequest,
    ReportStatusRequest
);

impl MessageCall for ResumeLeases {
    type RequestMessage = proto::ResumeLeasesRequest;
    type ResponseMessage = proto::ResumeLeasesResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ResumeLeasesRequest {
        proto::ResumeLeasesRequest {
            registration,
            cursor: convert::cursor_to_wire(self.cursor),
        }
    }

    fn decode(message: proto::ResumeLeasesRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self {
            cursor: convert::cursor_from_wire(&message.cursor)?,
        })
    }

    fn encode_response(chunk: &LeaseChunk) -> proto::ResumeLeasesResponse {
        proto::ResumeLeasesResponse {
            provisions: chunk.provisions.iter().map(convert::provision_to_wire).collect(),
            damaged: chunk.damaged.clone(),
            done: chunk.progress.0,
            total: chunk.progress.1,
            is_last: chunk.is_last,
            cursor: convert::cursor_to_wire(chunk.cursor),
        }
    }

    fn decode_response(&self, message: proto::ResumeLeasesResponse) -> Result<LeaseChunk, Malformed> {
        Ok(LeaseChunk {
            provisions: convert::provisions_from_wire(message.provisions)?,
            damaged: message.damaged,
            progress: (message.done, message.total),
            is_last: message.is_last,
            cursor: convert::cursor_from_wire(&message.cursor)?,
        })
    }
}

impl MessageCall for ExtendLeases {
    type RequestMessage = proto::ExtendLeasesRequest;
    type ResponseMessage = proto::ExtendLeasesResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ExtendLeasesRequest {
        proto::ExtendLeasesRequest {
            registration,
            requests: self.0.iter().map(convert::row_request_to_wire).collect(),
        }
    }

    fn decode(message: proto::ExtendLeasesRequest, _: u64) -> Result<Self, Malformed> {
        let requests = convert::entries(&message.requests)?.map(convert::row_request_from_wire);
        Ok(Self(requests.collect()))
    }

    fn encode_response((provisions, refusals): &Self::Response) -> proto::ExtendLeasesResponse {
        proto::ExtendLeasesResponse {
            provisions: provisions.iter().map(convert::provision_to_wire).collect(),
            refusals: refusals.iter().map(convert::refusal_to_wire).collect(),
        }
    }

    fn decode_response(
        &self,
        message: proto::ExtendLeasesResponse,
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), Malformed> {
        let refusals = message.refusals.into_iter().map(convert::refusal_from_wire);
        Ok((
            convert::provisions_from_wire(message.provisions)?,
            refusals.collect::<Result<_, _>>()?,
        ))
    }
}

impl MessageCall for AdmitDevices {
    type RequestMessage = proto::AdmitDevicesRequest;
    type ResponseMessage = proto::AdmitDevicesResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::AdmitDevicesRequest {
        let requests = self.requests.iter().map(convert::admission_request_to_wire);
        proto::AdmitDevicesRequest {
            registration,
            requests: requests.collect(),
            fresh: self.fresh.to_vec(),
        }
    }

    fn decode(message: proto::AdmitDevicesRequest, _: u64) -> Result<Self, Malformed> {
        let requests = convert::entries(&message.requests)?.map(convert::admission_request_from_wire);
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            fresh: convert::exact_bytes(&message.fresh, "fresh value of a wrong length")?,
        })
    }

    fn encode_response(responses: &Vec<AdmissionResponse>) -> proto::AdmitDevicesResponse {
        let responses = responses.iter().map(convert::admission_response_to_wire);
        proto::AdmitDevicesResponse {
            responses: responses.collect(),
        }
    }

    fn decode_response(
        &self,
        message: proto::AdmitDevicesResponse,
    ) -> Result<Vec<AdmissionResponse>, Malformed> {
        if message.responses.len() != self.requests.len() {
            return Err(Malformed(
                "number of admission responses is not the number of requests",
            ));
        }
        let responses = message.responses.into_iter();
        responses.map(convert::admission_response_from_wire).collect()
    }
}

impl MessageCall for ReportUnusedRows {
    type RequestMessage = proto::ReportUnusedRowsRequest;
    type ResponseMessage = proto::ReportUnusedRowsResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ReportUnusedRowsRequest {
        proto::ReportUnusedRowsRequest {
            registration,
            unused: self.0.iter().map(convert::unused_rows_to_wire).collect(),
        }
    }

    fn decode(message: proto::ReportUnusedRowsRequest, _: u64) -> Result<Self, Malformed> {
        let unused_rows = convert::entries(&message.unused)?.map(convert::unused_rows_from_wire);
        Ok(Self(unused_rows.collect()))
    }

    fn encode_response(rows_returned: &u64) -> proto::ReportUnusedRowsResponse {
        proto::ReportUnusedRowsResponse {
            rows_returned: *rows_returned,
        }
    }

    fn decode_response(&self, message: proto::ReportUnusedRowsResponse) -> Result<u64, Malformed> {
        Ok(message.rows_returned)
    }
}

impl MessageCall for ReportSessions {
    type RequestMessage = proto::ReportSessionsRequest;
    type ResponseMessage = proto::ReportSessionsResponse;

    fn encode(&self, registration: Option<proto::Registration>, now_ns: u64) -> proto::ReportSessionsRequest {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        let reports = self.reports.iter();
        proto::ReportSessionsRequest {
            registration,
            reports: reports
                .map(|report| convert::report_to_wire(report, elapsed_ns))
                .collect(),
        }
    }

    fn decode(message: proto::ReportSessionsRequest, now_ns: u64) -> Result<Self, Malformed> {
        let reports = convert::entries(&message.reports)?.map(convert::report_from_wire);
        Ok(Self {
            reports: reports.collect::<Result<_, _>>()?,
            at_ns: now_ns,
        })
    }

    fn encode_response(results: &Vec<SessionReportResult>) -> proto::ReportSessionsResponse {
        let results = results.iter().copied().map(convert::report_result_to_wire);
        proto::ReportSessionsResponse {
            results: results.collect(),
        }
    }

    fn decode_response(
        &self,
        message: proto::ReportSessionsResponse,
    ) -> Result<Vec<SessionReportResult>, Malformed> {
        if message.results.len() != self.reports.len() {
            return Err(Malformed(
                "number of session report results is not the number of reports",
            ));
        }
        let results = message.results.into_iter();
        Ok(results.map(convert::report_result_from_wire).collect())
    }
}

impl MessageCall for ListChanges {
    type RequestMessage = proto::ListChangesRequest;
    type ResponseMessage = proto::ListChangesResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ListChangesRequest {
        proto::ListChangesRequest {
            registration,
            since: self.since.0,
        }
    }

    fn decode(message: proto::ListChangesRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self {
            since: Revision(message.since),
        })
    }

    fn encode_response((changes, trust_status): &Self::Response) -> proto::ListChangesResponse {
        proto::ListChangesResponse {
            trust: trust_status.as_ref().map(convert::trust_to_wire),
            ..convert::changes_to_wire(changes)
        }
    }

    fn decode_response(
        &self,
        mut message: proto::ListChangesResponse,
    ) -> Result<(Changes, Option<TrustStatus>), Malformed> {
        let trust_status = message.trust.take().map(convert::trust_from_wire).transpose()?;
        Ok((convert::changes_from_wire(&message), trust_status))
    }
}

impl MessageCall for SubmitEvidence {
    type RequestMessage = proto::SubmitEvidenceRequest;
    type ResponseMessage = proto::SubmitEvidenceResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::SubmitEvidenceRequest {
        proto::SubmitEvidenceRequest {
            registration,
            statement: self.statement.clone(),
            inventory: self.inventory.clone(),
        }
    }

    fn decode(message: proto::SubmitEvidenceRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self {
            statement: message.statement,
            inventory: message.inventory,
        })
    }

    fn encode_response(trust_status: &TrustStatus) -> proto::SubmitEvidenceResponse {
        proto::SubmitEvidenceResponse {
            trust: Some(convert::trust_to_wire(trust_status)),
        }
    }

    fn decode_response(&self, message: proto::SubmitEvidenceResponse) -> Result<TrustStatus, Malformed> {
        convert::trust_from_wire(message.trust.ok_or(Malformed("no trust status"))?)
    }
}

impl MessageCall for GetPlan {
    type RequestMessage = proto::GetPlanRequest;
    type ResponseMessage = proto::GetPlanResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::GetPlanRequest {
        proto::GetPlanRequest {
            registration,
            ..convert::plan_request_to_wire(&self.0)
        }
    }

    fn decode(message: proto::GetPlanRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self(convert::plan_request_from_wire(&message)))
    }

    fn encode_response(plan: &Option<Plan>) -> proto::GetPlanResponse {
        convert::plan_to_wire(plan.as_ref())
    }

    fn decode_response(&self, message: proto::GetPlanResponse) -> Result<Option<Plan>, Malformed> {
        convert::plan_from_wire(message)
    }
}

impl MessageCall for ListProvers {
    type RequestMessage = proto::ListProversRequest;
    type ResponseMessage = proto::ListProversResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ListProversRequest {
        proto::ListProversRequest {
            registration,
            start: Some(convert::start_to_wire(&self.start)),
            since: self.since,
        }
    }

    fn decode(message: proto::ListProversRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self {
            start: convert::start_from_wire(message.start)?,
            since: message.since,
        })
    }

    fn encode_response(provers: &Provers) -> proto::ListProversResponse {
        convert::provers_to_wire(provers)
    }

    fn decode_response(&self, message: proto::ListProversResponse) -> Result<Provers, Malformed> {
        convert::provers_from_wire(message)
    }
}

impl MessageCall for AppraiseRound {
    type RequestMessage = proto::AppraiseRoundRequest;
    type ResponseMessage = proto::AppraiseRoundResponse;

    fn encode(&self, registration: Option<proto::Registration>, now_ns: u64) -> proto::AppraiseRoundRequest {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        proto::AppraiseRoundRequest {
            registration,
            ..convert::round_to_wire(&self.round, self.age_ns.saturating_add(elapsed_ns))
        }
    }

    fn decode(message: proto::AppraiseRoundRequest, now_ns: u64) -> Result<Self, Malformed> {
        Ok(Self {
            age_ns: message.age_ns,
            at_ns: now_ns,
            round: Box::new(convert::round_from_wire(message)?),
        })
    }

    fn encode_response(appraisal: &RoundAppraisal) -> proto::AppraiseRoundResponse {
        convert::appraisal_to_wire(appraisal)
    }

    fn decode_response(&self, message: proto::AppraiseRoundResponse) -> Result<RoundAppraisal, Malformed> {
        Ok(convert::appraisal_from_wire(message))
    }
}

impl MessageCall for ListProverIds {
    type RequestMessage = proto::ListProverIdsRequest;
    type ResponseMessage = proto::ListProverIdsResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ListProverIdsRequest {
        proto::ListProverIdsRequest {
            registration,
            since: self.since,
        }
    }

    fn decode(message: proto::ListProverIdsRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self { since: message.since })
    }

    fn encode_response(ids: &ProverIds) -> proto::ListProverIdsResponse {
        convert::prover_ids_to_wire(ids)
    }

    fn decode_response(&self, message: proto::ListProverIdsResponse) -> Result<ProverIds, Malformed> {
        Ok(convert::prover_ids_from_wire(message))
    }
}

impl MessageCall for RelayTicket {
    type RequestMessage = proto::RelayTicketRequest;
    type ResponseMessage = proto::RelayTicketResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::RelayTicketRequest {
        let address = self.location.and_then(|(_, address)| address);
        proto::RelayTicketRequest {
            registration,
            message: self.message.clone(),
            located_device: self.location.map(|(device, _)| device.0),
            address: address.map_or_else(Vec::new, |address| address.to_vec()),
        }
    }

    fn decode(message: proto::RelayTicketRequest, _: u64) -> Result<Self, Malformed> {
        let address = convert::optional_bytes(&message.address, "address of a wrong length")?;
        Ok(Self {
            message: message.message,
            location: message.located_device.map(|device| (DeviceId(device), address)),
        })
    }

    fn encode_response(response: &TicketResponse) -> proto::RelayTicketResponse {
        use proto::relay_ticket_response::Outcome;
        proto::RelayTicketResponse {
            outcome: match response {
                TicketResponse::None => None,
                TicketResponse::Sealed(message) => Some(Outcome::Response(message.clone())),
                TicketResponse::Locate(device) => Some(Outcome::Locate(device.0)),
            },
        }
    }

    fn decode_response(&self, message: proto::RelayTicketResponse) -> Result<TicketResponse, Malformed> {
        use proto::relay_ticket_response::Outcome;
        Ok(match message.outcome {
            None => TicketResponse::None,
            Some(Outcome::Response(message)) => TicketResponse::Sealed(message),
            Some(Outcome::Locate(device)) => TicketResponse::Locate(DeviceId(device)),
        })
    }
}

impl MessageCall for ReportStatus {
    type RequestMessage = proto::ReportStatusRequest;
    type ResponseMessage = proto::ReportStatusResponse;

    fn encode(&self, registration: Option<proto::Registration>, _: u64) -> proto::ReportStatusRequest {
        let report = self.0.clone();
        proto::ReportStatusRequest {
            registration,
            data_plane: report.data_plane,
            devices: report.devices,
            slots: report.slots,
            sessions: report.sessions,
            authentications_per_s: report.authentications_per_s,
            latency_us_p50: report.latency_us_p50,
            latency_us_p99: report.latency_us_p99,
            verdicts: report.verdicts,
            dropped_types: report.dropped_types,
            kernel_drops: report.kernel_drops,
            tickets: report.tickets,
        }
    }

    fn decode(message: proto::ReportStatusRequest, _: u64) -> Result<Self, Malformed> {
        Ok(Self(StatusReport {
            data_plane: message.data_plane,
            devices: message.devices,
            slots: message.slots,
            sessions: message.sessions,
            authentications_per_s: message.authentications_per_s,
            latency_us_p50: message.latency_us_p50,
            latency_us_p99: message.latency_us_p99,
            verdicts: message.verdicts,
            dropped_types: message.dropped_types,
            kernel_drops: message.kernel_drops,
            tickets: message.tickets,
        }))
    }

    fn encode_response((): &()) -> proto::ReportStatusResponse {
        proto::ReportStatusResponse {}
    }

    fn decode_response(&self, _: proto::ReportStatusResponse) -> Result<(), Malformed> {
        Ok(())
    }
}
