//! Write RPC (12).

use std::sync::Arc;

use tonic::Status;

use super::status::{batch_status, task_failed};
use super::{Programs, Shared};
use crate::entity::{Entity, Query, Update};
use crate::error::{Code, EntityError};
use crate::p4info::P4Info;
use crate::proto::v1;
use crate::target::{Atomicity, Target};
use crate::translate::Translator;

pub(super) async fn write<T: Target>(
    shared: &Arc<Shared<T>>,
    request: v1::WriteRequest,
) -> Result<v1::WriteResponse, Status> {
    let programs = shared.programs.clone().write_owned().await;
    #[allow(deprecated, reason = "read only to reject the deprecated field")]
    let role_id = request.role_id;
    shared.check_primary(request.device_id, &request.role, role_id, request.election_id)?;
    let pipeline = programs.target_pipeline()?;
    let atomicity = atomicity_of(request.atomicity)?;
    let shared = shared.clone();
    // The task owns the lock: if the client cancels, the write continues and stays exclusive.
    let task = tokio::task::spawn_blocking(move || {
        let results = write_batch(&*shared.target, &pipeline.info, &request.updates, atomicity);
        if request.updates.iter().any(is_digest_update) {
            sync_digest_configs(&shared, &pipeline.info);
        }
        drop::<tokio::sync::OwnedRwLockWriteGuard<Programs>>(programs);
        results
    });
    let results = task.await.map_err(|error| task_failed(&error))??;
    batch_status(&results, "updates").map(|()| v1::WriteResponse {})
}

fn atomicity_of(number: i32) -> Result<Atomicity, Status> {
    use v1::write_request::Atomicity as Message;
    match Message::try_from(number) {
        Ok(Message::ContinueOnError) => Ok(Atomicity::ContinueOnError),
        Ok(Message::RollbackOnError) => Ok(Atomicity::RollbackOnError),
        Ok(Message::DataplaneAtomic) => Ok(Atomicity::DataplaneAtomic),
        Err(_) => Err(Status::unimplemented(format!(
            "unknown atomicity {number}: not defined by P4Runtime 1.5"
        ))),
    }
}

/// Writes a batch; returns one result for each update.
fn write_batch<T: Target>(
    target: &T,
    info: &P4Info,
    updates: &[v1::Update],
    atomicity: Atomicity,
) -> Result<Vec<Result<(), EntityError>>, EntityError> {
    let translator = Translator::new(info);
    let mut valid_updates: Vec<Update> = Vec::with_capacity(updates.len());
    let mut results: Vec<Result<(), EntityError>> = Vec::with_capacity(updates.len());
    for update in updates {
        results.push(
            translator
                .decode_update(update)
                .map(|update| valid_updates.push(update)),
        );
    }
    let all_or_none = atomicity != Atomicity::ContinueOnError;
    let batch_fails = all_or_none && valid_updates.len() < updates.len();
    if !batch_fails && !valid_updates.is_empty() {
        let mut write_results = target.write(&valid_updates, atomicity)?.into_iter();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = write_results.next().unwrap_or_else(|| {
                Err(EntityError::new(
                    Code::Internal,
                    "target returned no result for this update",
                ))
            });
        }
    }
    if all_or_none && let Some(failed_index) = results.iter().position(Result::is_err) {
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            let message = format!("not applied: update {failed_index} of the batch failed");
            *result = Err(EntityError::new(Code::Aborted, message));
        }
    }
    Ok(results)
}

fn is_digest_update(update: &v1::Update) -> bool {
    let entity = update.entity.as_ref().and_then(|entity| entity.entity.as_ref());
    matches!(entity, Some(v1::entity::Entity::DigestEntry(_)))
}

/// Reads the digest configuration from the target: only the target knows which updates of a batch took effect.
pub(super) fn sync_digest_configs<T: Target>(shared: &Shared<T>, info: &P4Info) {
    let mut digests = shared.digests();
    for digest in info.digests().iter() {
        let mut config = None;
        let result = shared.target.read(&Query::Digest(digest.id), &mut |entity| {
            if let Entity::Digest(enabled) = entity {
                config = Some(enabled.config);
            }
        });
        if result.is_ok() {
            digests.configure(digest.id, config);
        }
    }
    shared.digests_changed.notify_one();
}
