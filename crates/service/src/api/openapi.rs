//! What holds for all paths of the description, said once: how one comes in, the headers of writes, and how one is refused.

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

const TOKEN: &str = "token";
const SESSION: &str = "session";
const CERTIFICATE: &str = "certificate";

/// Adds it.
pub(super) struct Conventions;

impl Modify for Conventions {
    fn modify(&self, api: &mut OpenApi) {
        let components = api.components.get_or_insert_with(Components::new);
        for (name, scheme) in schemes() {
            components.add_security_scheme(name, scheme);
        }
        let way = |name: &str| SecurityRequirement::new(name, Vec::<String>::new());
        api.security = Some([TOKEN, SESSION, CERTIFICATE].map(way).to_vec());
        for (path, item) in &mut api.paths.paths {
            let is_entrance = path.ends_with("/login") || path.ends_with("/logout");
            for (operation, is_write) in [
                (&mut item.get, false),
                (&mut item.put, true),
                (&mut item.post, true),
                (&mut item.delete, true),
            ] {
                let Some(operation) = operation else { continue };
                refusals(operation);
                match (is_entrance, is_write) {
                    (true, _) => operation.security = Some(Vec::new()),
                    (false, true) => headers_of_write(operation, path.ends_with("/import")),
                    (false, false) if path.ends_with("/events") => add(
                        operation,
                        header("Last-Event-ID", "Goes on behind this one.", false),
                    ),
                    (false, false) => {}
                }
            }
        }
    }
}

fn schemes() -> [(&'static str, SecurityScheme); 3] {
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of `linewarden user add`."))
        .build();
    let session = ApiKeyValue::with_description(
        COOKIE,
        "Of a browser, from /login. Writes by it need the header `X-Linewarden: 1` too.",
    );
    let certificate = SecurityScheme::MutualTls {
        description: Some("A certificate of the fleet's CA that names a user who has no token.".to_owned()),
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

fn add(operation: &mut Operation, parameter: Parameter) {
    operation
        .parameters
        .get_or_insert_default()
        .push(RefOr::T(parameter));
}

fn headers_of_write(operation: &mut Operation, is_import: bool) {
    add(
        operation,
        header(
            "Idempotency-Key",
            "Of the caller's own, such as a UUID: repeated with it, nothing is done twice.",
            !is_import,
        ),
    );
    if is_import {
        add(
            operation,
            header("X-Reason", "Why; kept with what is done. UTF-8.", true),
        );
    }
}

/// How each question may be refused, beside what is its own.
fn refusals(operation: &mut Operation) {
    let wait = || {
        let mut header = Header::new(Object::with_type(Type::Integer));
        header.description = Some("Seconds after which the same may be asked again.".to_owned());
        header
    };
    let body = || {
        Content::new(Some(RefOr::<utoipa::openapi::Schema>::Ref(
            Ref::from_schema_name("ErrorBody"),
        )))
    };
    let refused = |description: &str| {
        utoipa::openapi::ResponseBuilder::new()
            .description(description)
            .content("application/json", body())
    };
    let all: [(&str, Response); 6] = [
        ("400", refused("The question cannot be read").build()),
        ("401", refused("Nobody known asks").build()),
        ("403", refused("This role may not").build()),
        (
            "429",
            refused("Too many questions")
                .header("Retry-After", wait())
                .build(),
        ),
        (
            "503",
            refused("The registry does not answer")
                .header("Retry-After", wait())
                .build(),
        ),
        ("default", refused("Anything else").build()),
    ];
    for (status, response) in all {
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert(RefOr::T(response));
    }
}
