//! SetForwardingPipelineConfig and GetForwardingPipelineConfig (14, 14.1).

use std::sync::Arc;

use tonic::Status;

use super::status::task_failed;
use super::write::sync_digest_configs;
use super::{Programs, Shared};
use crate::p4info::P4Info;
use crate::proto::v1;
use crate::target::{Pipeline, Target};
use v1::forwarding_pipeline_config::Cookie;
use v1::get_forwarding_pipeline_config_request::ResponseType;
use v1::set_forwarding_pipeline_config_request::Action;

pub(super) async fn set<T: Target>(
    shared: &Arc<Shared<T>>,
    request: v1::SetForwardingPipelineConfigRequest,
) -> Result<v1::SetForwardingPipelineConfigResponse, Status> {
    let mut programs = shared.programs.clone().write_owned().await;
    #[allow(deprecated, reason = "read only to reject the deprecated field")]
    let role_id = request.role_id;
    shared.check_primary(request.device_id, &request.role, role_id, request.election_id)?;
    let shared = shared.clone();
    let task = tokio::task::spawn_blocking(move || apply(&shared, &mut programs, request));
    task.await
        .map_err(|error| task_failed(&error))?
        .map(|()| v1::SetForwardingPipelineConfigResponse {})
}

fn apply<T: Target>(
    shared: &Shared<T>,
    programs: &mut Programs,
    request: v1::SetForwardingPipelineConfigRequest,
) -> Result<(), Status> {
    let target = &*shared.target;
    match request.action() {
        Action::Unspecified => {
            return Err(Status::invalid_argument(format!(
                "unknown action {}: not defined by P4Runtime 1.5",
                request.action
            )));
        }
        Action::Verify => return Ok(target.verify(&*pipeline_of(request.config)?)?),
        Action::VerifyAndSave => {
            let pipeline = pipeline_of(request.config)?;
            target.save(&pipeline)?;
            programs.saved = Some(pipeline);
            return Ok(());
        }
        Action::VerifyAndCommit => {
            let pipeline = pipeline_of(request.config)?;
            target.save(&pipeline)?;
            programs.saved = Some(pipeline);
            target.commit()?;
            programs.running = programs.saved.take();
        }
        Action::Commit => {
            if request.config.is_some() {
                return Err(Status::invalid_argument(
                    "COMMIT applies to the saved pipeline: omit config",
                ));
            }
            if programs.saved.is_none() {
                return Err(Status::not_found("no saved pipeline: send VERIFY_AND_SAVE first"));
            }
            target.commit()?;
            programs.running = programs.saved.take();
        }
        Action::ReconcileAndCommit => {
            let pipeline = pipeline_of(request.config)?;
            target.reconcile(&pipeline)?;
            *programs = Programs {
                running: Some(pipeline),
                saved: None,
            };
        }
    }
    shared.running().clone_from(&programs.running);
    shared.digests().clear();
    if let Some(running) = &programs.running {
        sync_digest_configs(shared, &running.info);
    }
    Ok(())
}

fn pipeline_of(config: Option<v1::ForwardingPipelineConfig>) -> Result<Arc<Pipeline>, Status> {
    let config = config.ok_or_else(|| Status::invalid_argument("config is missing"))?;
    let info = config
        .p4info
        .ok_or_else(|| Status::invalid_argument("p4info is missing in config"))?;
    let info = P4Info::new(info).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(Arc::new(Pipeline {
        info: Arc::new(info),
        device_config: config.p4_device_config.into(),
        cookie: config.cookie.map(|cookie| cookie.cookie),
    }))
}

pub(super) async fn get<T: Target>(
    shared: &Shared<T>,
    request: &v1::GetForwardingPipelineConfigRequest,
) -> Result<v1::GetForwardingPipelineConfigResponse, Status> {
    shared.check_device(request.device_id)?;
    let response_type = ResponseType::try_from(request.response_type);
    let (with_info, with_program) = match response_type {
        Ok(ResponseType::All) => (true, true),
        Ok(ResponseType::CookieOnly) => (false, false),
        Ok(ResponseType::P4infoAndCookie) => (true, false),
        Ok(ResponseType::DeviceConfigAndCookie) => (false, true),
        Err(_) => {
            let message = format!(
                "unknown response_type {}: not defined by P4Runtime 1.5",
                request.response_type
            );
            return Err(Status::invalid_argument(message));
        }
    };
    let programs = shared.programs.read().await;
    // Writes and reads refer to this pipeline, so a client needs its ids.
    let config = programs
        .target_pipeline()
        .ok()
        .map(|pipeline| v1::ForwardingPipelineConfig {
            p4info: with_info.then(|| pipeline.info.message().clone()),
            p4_device_config: if with_program {
                pipeline.device_config.to_vec()
            } else {
                Vec::new()
            },
            cookie: pipeline.cookie.map(|cookie| Cookie { cookie }),
        });
    Ok(v1::GetForwardingPipelineConfigResponse { config })
}
