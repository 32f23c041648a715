//! The dashboard's files, as they lie in `dashboard/`: part of the program, nothing is installed or built for them.

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Name, kind, content.
type Asset = (&'static str, &'static str, &'static [u8]);

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Nothing but our own files, and nobody frames them.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(crate) async fn index() -> Response {
    asset("index.html")
}

/// One of its files.
pub(crate) async fn file(Path(path): Path<String>) -> Response {
    asset(&format!("assets/{path}"))
}

fn asset(name: &str) -> Response {
    let Some((_, kind, content)) = ASSETS.iter().find(|(known, ..)| *known == name) else {
        return (StatusCode::NOT_FOUND, "there is no such page\n").into_response();
    };
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // An upgraded controller shows its own dashboard.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, *content).into_response()
}
