//! Read RPC (13).

use std::sync::Arc;

use prost::Message;
use tonic::Status;

use super::Shared;
use super::status::{batch_status, task_failed};
use crate::error::EntityError;
use crate::p4info::P4Info;
use crate::proto::v1;
use crate::target::Target;
use crate::translate::Translator;

/// Messages of the response: entities, then the status of failed requests.
pub(super) type Responses = tokio_stream::Iter<std::vec::IntoIter<Result<v1::ReadResponse, Status>>>;

/// Size of the entities at which a message is completed, bytes; far below the limit of clients.
const RESPONSE_BYTES: usize = 256 << 10;

pub(super) async fn read<T: Target>(
    shared: &Arc<Shared<T>>,
    request: v1::ReadRequest,
) -> Result<Responses, Status> {
    shared.check_device(request.device_id)?;
    let programs = shared.programs.clone().read_owned().await;
    let pipeline = programs.target_pipeline()?;
    let target = shared.target.clone();
    // The whole response is built under the lock, so that it shows one state. The response is sent after the lock is
    // released, so that a slow client does not block writes.
    let task = tokio::task::spawn_blocking(move || {
        let response = respond(&*target, &pipeline.info, &request.entities);
        drop(programs);
        response
    });
    let (responses, results) = task.await.map_err(|error| task_failed(&error))?;
    let mut messages: Vec<_> = responses.into_iter().map(Ok).collect();
    if let Err(status) = batch_status(&results, "requests") {
        messages.push(Err(status));
    }
    Ok(tokio_stream::iter(messages))
}

fn respond<T: Target>(
    target: &T,
    info: &P4Info,
    requests: &[v1::Entity],
) -> (Vec<v1::ReadResponse>, Vec<Result<(), EntityError>>) {
    let mut chunks = Chunks::default();
    let results = requests
        .iter()
        .map(|request| respond_to_one(target, info, request, &mut chunks))
        .collect();
    (chunks.finish(), results)
}

fn respond_to_one<T: Target>(
    target: &T,
    info: &P4Info,
    request: &v1::Entity,
    chunks: &mut Chunks,
) -> Result<(), EntityError> {
    let translator = Translator::new(info);
    let selection = translator.decode_read(request)?;
    let mut has_match = false;
    for query in translator.queries(&selection) {
        target.read(&query, &mut |candidate| {
            if let Some(entity) = selection.select(candidate) {
                has_match = true;
                chunks.push(translator.encode_entity(&entity));
            }
        })?;
    }
    if selection.must_match() && !has_match {
        return Err(EntityError::not_found("table entry not found"));
    }
    Ok(())
}

/// Entities of a read, divided into responses of limited size.
#[derive(Default)]
struct Chunks {
    responses: Vec<v1::ReadResponse>,
    /// Entities of the next response.
    pending_entities: Vec<v1::Entity>,
    pending_bytes: usize,
}

impl Chunks {
    fn push(&mut self, entity: v1::Entity) {
        self.pending_bytes += entity.encoded_len();
        self.pending_entities.push(entity);
        if self.pending_bytes > RESPONSE_BYTES {
            self.pending_bytes = 0;
            self.responses.push(v1::ReadResponse {
                entities: std::mem::take(&mut self.pending_entities),
            });
        }
    }

    fn finish(mut self) -> Vec<v1::ReadResponse> {
        if !self.pending_entities.is_empty() {
            self.responses.push(v1::ReadResponse {
                entities: self.pending_entities,
            });
        }
        self.responses
    }
}
