//! Additions to all paths of the OpenAPI description: authentication, headers of writes, error responses. Refuses query
//! parameters that the description does not contain.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response as HttpResponse;
use utoipa::Modify;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::Response;
use utoipa::openapi::schema::{Components, Object, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Required};

use crate::auth::COOKIE;
use crate::error::{ApiError, Result};

const TOKEN: &str = "token";
const SESSION: &str = "session";
const CERTIFICATE: &str = "certificate";

/// The conventions that apply to all paths, as a modifier of the description.
pub(super) struct Conventions;

impl Modify for Conventions {
    fn modify(&self, api: &mut OpenApi) {
        let components = api.components.get_or_insert_with(Components::new);
        for (name, scheme) in security_schemes() {
            components.add_security_scheme(name, scheme);
        }
        let requirement = |name: &str| SecurityRequirement::new(name, Vec::<String>::new());
        api.security = Some([TOKEN, SESSION, CERTIFICATE].map(requirement).to_vec());
        for (path, item) in &mut api.paths.paths {
            let is_login = path.ends_with("/login") || path.ends_with("/logout");
            for (operation, is_write) in [
                (&mut item.get, false),
                (&mut item.put, true),
                (&mut item.post, true),
                (&mut item.delete, true),
            ] {
                let Some(operation) = operation else { continue };
                add_error_responses(operation);
                match (is_login, is_write) {
                    (true, _) => operation.security = Some(Vec::new()),
                    (false, true) => add_write_headers(operation, path.ends_with("/import")),
                    (false, false) if path.ends_with("/events") => add_parameter(
                        operation,
                        header(
                            "Last-Event-ID",
                            "The number of an event: the stream continues after this event.",
                            false,
                        ),
                    ),
                    (false, false) => {}
                }
            }
        }
    }
}

fn security_schemes() -> [(&'static str, SecurityScheme); 3] {
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of `linewarden user create`."))
        .build();
    let session = ApiKeyValue::with_description(
        COOKIE,
        "The session of a browser, from /login. Writes also need the header `X-Linewarden: 1`.",
    );
    let certificate = SecurityScheme::MutualTls {
        description: Some(
            "A client certificate of the fleet's CA that names a user without a token.".to_owned(),
        ),
        deprecated: None,
        extensions: None,
    };
    [
        (TOKEN, SecurityScheme::Http(token)),
        (SESSION, SecurityScheme::ApiKey(ApiKey::Cookie(session))),
        (CERTIFICATE, certificate),
    ]
}

fn header(name: &str, description: &str, is_required: bool) -> Parameter {
    let required = match is_required {
        true => Required::True,
        false => Required::False,
    };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .description(Some(description))
        .required(required)
        .schema(Some(Object::with_type(Type::String)))
        .build()
}

fn add_parameter(operation: &mut Operation, parameter: Parameter) {
    operation
        .parameters
        .get_or_insert_default()
        .push(RefOr::T(parameter));
}

fn add_write_headers(operation: &mut Operation, is_import: bool) {
    add_parameter(
        operation,
        header(
            "Idempotency-Key",
            "A unique key, for example a UUID: a repeated request with the same key is carried out once.",
            !is_import,
        ),
    );
    if is_import {
        add_parameter(
            operation,
            header(
                "X-Reason",
                "The reason, stored in the registry audit log. UTF-8.",
                true,
            ),
        );
    }
}

/// Adds the error responses that are common to all paths.
fn add_error_responses(operation: &mut Operation) {
    let retry_after = || {
        let mut header = Header::new(Object::with_type(Type::Integer));
        header.description = Some("Time after which the request may be repeated, seconds.".to_owned());
        header
    };
    let body = || {
        Content::new(Some(RefOr::<utoipa::openapi::Schema>::Ref(
            Ref::from_schema_name("ErrorBody"),
        )))
    };
    let response = |description: &str| {
        utoipa::openapi::ResponseBuilder::new()
            .description(description)
            .content("application/json", body())
    };
    let error_responses: [(&str, Response); 6] = [
        ("400", response("The request is malformed").build()),
        ("401", response("The request is not authenticated").build()),
        (
            "403",
            response("The user's role does not permit the request").build(),
        ),
        (
            "429",
            response("Too many requests")
                .header("Retry-After", retry_after())
                .build(),
        ),
        (
            "503",
            response("The registry is unavailable")
                .header("Retry-After", retry_after())
                .build(),
        ),
        ("default", response("Another error").build()),
    ];
    for (status, response) in error_responses {
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert(RefOr::T(response));
    }
}

/// The query parameters of each request. The keys are method and path, such as `GET /api/v1/devices`.
pub(super) type Parameters = BTreeMap<String, BTreeSet<String>>;

/// The query parameters in a description.
pub(super) fn described_parameters(api: OpenApi) -> Parameters {
    let mut described = Parameters::new();
    for (path, item) in api.paths.paths {
        for (method, operation) in [
            ("GET", item.get),
            ("PUT", item.put),
            ("POST", item.post),
            ("DELETE", item.delete),
        ] {
            let Some(operation) = operation else { continue };
            let parameters = operation.parameters.unwrap_or_default().into_iter();
            let names = parameters.filter_map(|parameter| match parameter {
                RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => Some(parameter.name),
                _ => None,
            });
            described.insert(format!("{method} {path}"), names.collect());
        }
    }
    described
}

/// Refuses a request with a query parameter that the description does not contain: a misspelled filter would otherwise return
/// all items, and a misspelled option would be ignored.
pub(super) async fn refuse_unknown_parameters(
    State(described): State<&'static Parameters>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Result<HttpResponse> {
    let method = match *request.method() {
        Method::HEAD => Method::GET,
        _ => request.method().clone(),
    };
    let known = path.and_then(|path| described.get(&format!("{method} {}", path.as_str())));
    // The description contains all paths and methods; other requests get the response of the fallback.
    let (Some(known), Some(_)) = (known, request.uri().query()) else {
        return Ok(next.run(request).await);
    };
    let parameters = Query::<Vec<(String, String)>>::try_from_uri(request.uri());
    let parameters =
        parameters.map_err(|rejection| ApiError::unreadable(rejection.status(), rejection.body_text()))?;
    match parameters.0.iter().find(|(name, _)| !known.contains(name)) {
        Some((name, _)) => Err(ApiError::invalid(name, unknown_parameter_message(known))),
        None => Ok(next.run(request).await),
    }
}

fn unknown_parameter_message(known: &BTreeSet<String>) -> String {
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    match names.is_empty() {
        true => "unknown parameter; the request has no parameters".to_owned(),
        false => format!(
            "unknown parameter; the request has the parameters {}",
            names.join(", ")
        ),
    }
}
