//! One API request: send, retry, and parse the response.

use std::time::Duration;

use linewarden_api::ErrorBody;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::Client;
use crate::error::ClientError;
use crate::retry::RetryTimer;

/// Maximum time from sending a request to the end of its response. Streams have no such limit.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-reason");

pub(crate) type Result<T> = std::result::Result<T, ClientError>;

/// A request.
pub(crate) struct ApiRequest {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl ApiRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Vec::new(),
        }
    }

    /// Creates a request that changes data, with a new idempotency key.
    pub(crate) fn mutation(method: Method, path: impl Into<String>) -> Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(ClientError::Entropy)?;
        let mut request = Self {
            method,
            ..Self::get(path)
        };
        request.header(IDEMPOTENCY_KEY, &hex::encode(key))?;
        Ok(request)
    }

    pub(crate) fn header(&mut self, name: HeaderName, value: &str) -> Result<()> {
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            ClientError::InvalidRequest(format!(
                "{name}: {value:?} contains a character that HTTP headers do not allow"
            ))
        })?;
        self.headers.insert(name, value);
        Ok(())
    }

    /// Adds the fields that are not null to the query.
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
        self.body =
            serde_json::to_vec(body).map_err(|error| ClientError::InvalidRequest(error.to_string()))?;
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    pub(crate) fn ndjson(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        self
    }
}

impl Client {
    pub(crate) fn url(&self, path: &str) -> Result<Url> {
        self.base_url
            .join(path)
            .map_err(|error| ClientError::InvalidAddress {
                server: self.server().to_owned(),
                reason: error.to_string(),
            })
    }

    fn request_builder(&self, api_request: &ApiRequest) -> Result<RequestBuilder> {
        let url = self.url(&api_request.path)?;
        let mut request = self
            .http
            .request(api_request.method.clone(), url)
            .headers(api_request.headers.clone())
            .timeout(RESPONSE_TIMEOUT);
        if !api_request.query.is_empty() {
            request = request.query(&api_request.query);
        }
        self.authorized(request.body(api_request.body.clone()))
    }

    /// Adds the token, if the client has a token. (A client certificate belongs to the TLS connection.)
    pub(crate) fn authorized(&self, request: RequestBuilder) -> Result<RequestBuilder> {
        let Some(token) = &self.token else {
            return Ok(request);
        };
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.as_str())).map_err(|_| {
            ClientError::InvalidRequest(
                "invalid token: it contains a character that HTTP headers do not allow".to_owned(),
            )
        })?;
        value.set_sensitive(true);
        Ok(request.header(AUTHORIZATION, value))
    }

    /// Sends the request without retries; returns the status, headers and body of the response.
    async fn send_once(&self, request: &ApiRequest) -> Result<(StatusCode, HeaderMap, Vec<u8>)> {
        let transport_error = |error: reqwest::Error| ClientError::from_transport(self.server(), &error);
        let response = self.execute(self.request_builder(request)?).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok((
            status,
            headers,
            response.bytes().await.map_err(transport_error)?.to_vec(),
        ))
    }

    /// Sends the request with retries; returns the body of a successful response.
    pub(crate) async fn fetch_body(&self, request: &ApiRequest) -> Result<Vec<u8>> {
        let mut retry_timer = RetryTimer::new(self.retry_timeout);
        loop {
            let error = match self.send_once(request).await {
                Ok((status, _, body)) if status.is_success() => return Ok(body),
                Ok((status, headers, body)) => {
                    self.error_from_response(status, retry_after(&headers), &request.path, &body)
                }
                Err(error) => error,
            };
            retry_timer.wait_or_fail(error).await?;
        }
    }

    pub(crate) async fn fetch_json<T: DeserializeOwned>(&self, request: &ApiRequest) -> Result<T> {
        let body = self.fetch_body(request).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::InvalidResponse {
            server: self.server().to_owned(),
            reason: format!("response to {} cannot be parsed: {error}", request.path),
        })
    }

    /// The error that an unsuccessful response describes.
    fn error_from_response(
        &self,
        status: StatusCode,
        retry_after: Option<Duration>,
        path: &str,
        body: &[u8],
    ) -> ClientError {
        let server = self.server().to_owned();
        if let (StatusCode::TOO_MANY_REQUESTS, Some(retry_after)) = (status, retry_after) {
            return ClientError::RateLimited { server, retry_after };
        }
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) if matches!(&*body.error.code, "unknown_path" | "method_not_allowed") => {
                ClientError::UnsupportedPath {
                    server,
                    path: path.to_owned(),
                }
            }
            Ok(body) => ClientError::Refused {
                status: status.as_u16(),
                detail: body.error,
                retry_after,
            },
            Err(_) => ClientError::InvalidResponse {
                server,
                reason: format!("unexpected status {status} for {path}"),
            },
        }
    }

    /// Returns the error of a stream request that was not successful.
    pub(crate) async fn stream_error(&self, path: &str, response: Response) -> ClientError {
        let (status, delay) = (response.status(), retry_after(response.headers()));
        let body = response
            .bytes()
            .await
            .map(|body| body.to_vec())
            .unwrap_or_default();
        self.error_from_response(status, delay, path, &body)
    }
}

/// Parses the header `Retry-After`. Controllers send this header only in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
