//! One question: sent, sent again while that can help, and its answer read.

use std::time::Duration;

use linewarden_service::wire::ErrorBody;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::Client;
use crate::error::ClientError;
use crate::patience::Patience;

/// Longest time to an answer that is no stream.
const ANSWER_MAX: Duration = Duration::from_secs(60);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-reason");

pub(crate) type Result<T> = std::result::Result<T, ClientError>;

/// A question.
pub(crate) struct Question {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Question {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Vec::new(),
        }
    }

    /// What changes something, under a key of its own.
    pub(crate) fn write(method: Method, path: impl Into<String>) -> Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(ClientError::Entropy)?;
        let mut question = Self {
            method,
            ..Self::get(path)
        };
        question.header(IDEMPOTENCY_KEY, &hex::encode(key))?;
        Ok(question)
    }

    pub(crate) fn header(&mut self, name: HeaderName, value: &str) -> Result<()> {
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| ClientError::Header(format!("{name}: {value:?} holds what no header may")))?;
        self.headers.insert(name, value);
        Ok(())
    }

    /// The fields of this that are there.
    pub(crate) fn query(mut self, fields: &impl Serialize) -> Self {
        let fields = serde_json::to_value(fields).unwrap_or_default();
        for (name, value) in fields.as_object().into_iter().flatten() {
            let text = match value {
                serde_json::Value::Null => continue,
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            self.query.push((name.clone(), text));
        }
        self
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self> {
        self.body = serde_json::to_vec(body).map_err(|error| ClientError::Header(error.to_string()))?;
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    pub(crate) fn lines(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        self
    }
}

impl Client {
    pub(crate) fn url(&self, path: &str) -> Result<Url> {
        self.base.join(path).map_err(|error| ClientError::Address {
            server: self.server().to_owned(),
            why: error.to_string(),
        })
    }

    fn request(&self, question: &Question) -> Result<RequestBuilder> {
        let url = self.url(&question.path)?;
        let mut request = self
            .http
            .request(question.method.clone(), url)
            .headers(question.headers.clone())
            .timeout(ANSWER_MAX);
        if !question.query.is_empty() {
            request = request.query(&question.query);
        }
        self.authorized(request.body(question.body.clone()))
    }

    /// As who one is.
    pub(crate) fn authorized(&self, request: RequestBuilder) -> Result<RequestBuilder> {
        let Some(token) = &self.token else {
            return Ok(request);
        };
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.as_str()))
            .map_err(|_| ClientError::Header("the token holds what no token has".to_owned()))?;
        value.set_sensitive(true);
        Ok(request.header(AUTHORIZATION, value))
    }

    async fn once(&self, question: &Question) -> Result<(StatusCode, HeaderMap, Vec<u8>)> {
        let unanswered = |error: reqwest::Error| ClientError::unanswered(self.server(), &error);
        let response = self.request(question)?.send().await.map_err(unanswered)?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok((
            status,
            headers,
            response.bytes().await.map_err(unanswered)?.to_vec(),
        ))
    }

    /// The body of the answer, if it is one.
    pub(crate) async fn bytes(&self, question: &Question) -> Result<Vec<u8>> {
        let mut patience = Patience::new(self.patience);
        loop {
            let error = match self.once(question).await {
                Ok((status, _, body)) if status.is_success() => return Ok(body),
                Ok((status, headers, body)) => {
                    self.refused(status, retry_after(&headers), &question.path, &body)
                }
                Err(error) => error,
            };
            patience.bear(error).await?;
        }
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&self, question: &Question) -> Result<T> {
        let body = self.bytes(question).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::NoController {
            server: self.server().to_owned(),
            why: format!("its answer to {} cannot be read: {error}", question.path),
        })
    }

    /// What an answer says that is none.
    fn refused(&self, status: StatusCode, wait: Option<Duration>, path: &str, body: &[u8]) -> ClientError {
        let server = self.server().to_owned();
        if let (StatusCode::TOO_MANY_REQUESTS, Some(wait)) = (status, wait) {
            return ClientError::RateLimited { server, wait };
        }
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(told) if matches!(&*told.error.code, "unknown_path" | "method_not_allowed") => {
                ClientError::TooOld {
                    server,
                    path: path.to_owned(),
                }
            }
            Ok(told) => ClientError::Refused {
                status: status.as_u16(),
                detail: told.error,
                wait,
            },
            Err(_) => ClientError::NoController {
                server,
                why: format!("it answers {path} with {status}"),
            },
        }
    }

    /// A refusal of a stream's beginning.
    pub(crate) async fn refusal(&self, path: &str, response: Response) -> ClientError {
        let (status, wait) = (response.status(), retry_after(response.headers()));
        let body = response
            .bytes()
            .await
            .map(|body| body.to_vec())
            .unwrap_or_default();
        self.refused(status, wait, path, &body)
    }
}

/// As seconds; a controller says nothing else.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
