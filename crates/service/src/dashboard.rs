//! Serves the dashboard files from `dashboard/`, which are compiled into the program.

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Name, content type, content.
type Asset = (&'static str, &'static str, &'static [u8]);

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The content security policy: the page loads only files of this server, and no site may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves `index.html`.
pub(crate) async fn index() -> Response {
    asset("index.html")
}

/// Serves one file of `assets/`; `path` is relative to that directory.
pub(crate) async fn file(Path(path): Path<String>) -> Response {
    asset(&format!("assets/{path}"))
}

fn asset(name: &str) -> Response {
    let Some((_, content_type, content)) = ASSETS.iter().find(|(asset_name, ..)| *asset_name == name) else {
        return (StatusCode::NOT_FOUND, "page not found\n").into_response();
    };
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Browsers must revalidate, so that they load the new dashboard after an upgrade.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, *content).into_response()
}
