//! What comes with a question, read as axum reads it and refused as everything here is: in one form of JSON.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::ApiError;

/// A body, or an answer, in JSON.
pub(crate) struct Json<T>(pub(crate) T);

/// Parts of the path.
pub(crate) struct Path<T>(pub(crate) T);

/// What stands behind the path.
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
            Err(rejection) => Err(ApiError::unread(rejection.status(), rejection.body_text())),
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
            Err(rejection) => Err(ApiError::unread(rejection.status(), rejection.body_text())),
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
            Err(rejection) => Err(ApiError::unread(rejection.status(), rejection.body_text())),
        }
    }
}

/// Refuses what no text may hold: databases end one there, or refuse it as their own failure.
pub(crate) async fn without_null(
    request: Request,
    next: axum::middleware::Next,
) -> Result<Response, ApiError> {
    match request.uri().to_string().contains("%00") {
        true => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "bad_request",
            "a path or query holds the character NUL (%00), which no text here has",
        )),
        false => Ok(next.run(request).await),
    }
}
