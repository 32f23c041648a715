//! Extractors that wrap the extractors of axum and convert each rejection to the JSON format of API errors. An error about a
//! field or a parameter names the field or the parameter.

use std::error::Error;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::ApiError;

/// A request or response body in JSON.
pub(crate) struct Json<T>(pub(crate) T);

/// Path parameters.
pub(crate) struct Path<T>(pub(crate) T);

/// Query parameters.
pub(crate) struct Query<T>(pub(crate) T);

impl<S, T> FromRequest<S> for Json<T>
where
    axum::Json<T>: FromRequest<S, Rejection = JsonRejection>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match axum::Json::<T>::from_request(request, state).await {
            Ok(axum::Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(invalid_field::<serde_json::Error>(&rejection)
                .filter(|_| rejection.status() == StatusCode::UNPROCESSABLE_ENTITY)
                .unwrap_or_else(|| ApiError::unreadable(rejection.status(), rejection.body_text()))),
        }
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S, T> FromRequestParts<S> for Path<T>
where
    axum::extract::Path<T>: FromRequestParts<S, Rejection = PathRejection>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::unreadable(rejection.status(), rejection.body_text())),
        }
    }
}

impl<S, T> FromRequestParts<S> for Query<T>
where
    axum::extract::Query<T>: FromRequestParts<S, Rejection = QueryRejection>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(invalid_field::<serde::de::value::Error>(&rejection)
                .unwrap_or_else(|| ApiError::unreadable(rejection.status(), rejection.body_text()))),
        }
    }
}

/// The error response about a field, if the cause of the rejection is an error `E` of a deserializer.
fn invalid_field<E: Error + 'static>(rejection: &(dyn Error + 'static)) -> Option<ApiError> {
    let mut causes = std::iter::successors(Some(rejection), |error| (*error).source());
    let error = causes.find_map(|error| error.downcast_ref::<serde_path_to_error::Error<E>>())?;
    let message = error.inner().to_string();
    Some(ApiError::invalid(&field_name(error.path(), &message), message))
}

/// The name of the field with an error, such as `credentials.key`. The path of the deserializer ends at a value, or at the
/// object in which a field is missing; then only the message names the field.
pub(crate) fn field_name(path: &serde_path_to_error::Path, message: &str) -> String {
    let missing = message.strip_prefix("missing field `");
    let missing = missing.and_then(|name| name.split('`').next());
    match missing {
        Some(name) if path.iter().len() == 0 => name.to_owned(),
        Some(name) => format!("{path}.{name}"),
        None if path.iter().len() == 0 => "body".to_owned(),
        None => path.to_string(),
    }
}

/// Refuses requests with a NUL character in the path or query, because databases treat NUL as the end of a text or as an
/// error.
pub(crate) async fn refuse_null(
    request: Request,
    next: axum::middleware::Next,
) -> Result<Response, ApiError> {
    match request.uri().to_string().contains("%00") {
        true => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "bad_request",
            "path and query must not contain NUL (%00)",
        )),
        false => Ok(next.run(request).await),
    }
}
