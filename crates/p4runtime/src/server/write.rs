//! The Write RPC (12).

use std::sync::Arc;

use tonic::Status;

use super::status::{broken, of_batch};
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
    #[allow(deprecated, reason = "only to say that it is not taken any more")]
    let role_id = request.role_id;
    shared.check_primary(request.device_id, &request.role, role_id, request.election_id)?;
    let pipeline = programs.meant()?;
    let atomicity = atomicity_of(request.atomicity)?;
    let shared = shared.clone();
    // The lock goes along: a client that gives up ends neither the write nor its exclusion.
    let batch = tokio::task::spawn_blocking(move || {
        let results = write_batch(&*shared.target, &pipeline.info, &request.updates, atomicity);
        if request.updates.iter().any(is_of_digest) {
            follow_digests(&shared, &pipeline.info);
        }
        drop::<tokio::sync::OwnedRwLockWriteGuard<Programs>>(programs);
        results
    });
    let results = batch.await.map_err(|error| broken(&error))??;
    of_batch(&results, "updates").map(|()| v1::WriteResponse {})
}

fn atomicity_of(number: i32) -> Result<Atomicity, Status> {
    use v1::write_request::Atomicity as Message;
    match Message::try_from(number) {
        Ok(Message::ContinueOnError) => Ok(Atomicity::ContinueOnError),
        Ok(Message::RollbackOnError) => Ok(Atomicity::RollbackOnError),
        Ok(Message::DataplaneAtomic) => Ok(Atomicity::DataplaneAtomic),
        Err(_) => Err(Status::unimplemented(format!(
            "atomicity {number} is none of P4Runtime 1.5"
        ))),
    }
}

/// One result for each update.
fn write_batch<T: Target>(
    target: &T,
    info: &P4Info,
    updates: &[v1::Update],
    atomicity: Atomicity,
) -> Result<Vec<Result<(), EntityError>>, EntityError> {
    let translator = Translator::new(info);
    let mut valid: Vec<Update> = Vec::with_capacity(updates.len());
    let mut results: Vec<Result<(), EntityError>> = Vec::with_capacity(updates.len());
    for update in updates {
        results.push(translator.decode_update(update).map(|update| valid.push(update)));
    }
    let all_or_none = atomicity != Atomicity::ContinueOnError;
    let hopeless = all_or_none && valid.len() < updates.len();
    if !hopeless && !valid.is_empty() {
        let mut written = target.write(&valid, atomicity)?.into_iter();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = written.next().unwrap_or_else(|| {
                Err(EntityError::new(
                    Code::Internal,
                    "the switch does not say what became of this update",
                ))
            });
        }
    }
    if all_or_none && let Some(failed) = results.iter().position(Result::is_err) {
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            let message = format!("not carried out, because update {failed} of the batch failed");
            *result = Err(EntityError::new(Code::Aborted, message));
        }
    }
    Ok(results)
}

fn is_of_digest(update: &v1::Update) -> bool {
    let entity = update.entity.as_ref().and_then(|entity| entity.entity.as_ref());
    matches!(entity, Some(v1::entity::Entity::DigestEntry(_)))
}

/// Gathers digests as the target now has them set: only it knows what a batch has really changed.
pub(super) fn follow_digests<T: Target>(shared: &Shared<T>, info: &P4Info) {
    let mut digests = shared.digests();
    for digest in info.digests().iter() {
        let mut config = None;
        let read = shared.target.read(&Query::Digest(digest.id), &mut |found| {
            if let Entity::Digest(found) = found {
                config = Some(found.config);
            }
        });
        if read.is_ok() {
            digests.configure(digest.id, config);
        }
    }
    shared.digests_changed.notify_one();
}
