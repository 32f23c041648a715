//! JSON Schemas of configurations. Messages about values, examples and placeholders are derived from the schema.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Formats of text: the name in the schema, a description, and a value without effect. The reader handles the formats `path`
/// and `program`.
const FORMATS: [(&str, &str, &str); 3] = [
    (
        "ip",
        "an address, such as \"192.0.2.1\" or \"2001:db8::1\"",
        "127.0.0.1",
    ),
    (
        "mac",
        "a MAC address, such as \"08:00:00:00:01:01\"",
        "02:00:00:00:00:00",
    ),
    (
        "socket-address",
        "an address and a port, such as \"127.0.0.1:5683\" or \"[::1]:5683\"",
        // No program listens on port 0.
        "127.0.0.1:0",
    ),
];

/// Returns the JSON Schema of a configuration, without references.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    schema
}

/// Removes the value null, which TOML does not have, adds the bounds of 32-bit numbers, and joins the lines of descriptions.
fn simplify(value: &mut Value) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(simplify),
        Value::Object(schema) => {
            schema.values_mut().for_each(simplify);
            simplify_object(schema);
        }
        _ => {}
    }
}

fn simplify_object(schema: &mut Map<String, Value>) {
    let is_null = |schema: &Value| schema.get("type").and_then(Value::as_str) == Some("null");
    if let Some(Value::Array(alternatives)) = schema.get("anyOf")
        && let [only] = &*alternatives
            .iter()
            .filter(|schema| !is_null(schema))
            .collect::<Vec<_>>()
        && let Value::Object(only) = (*only).clone()
    {
        schema.remove("anyOf");
        for (keyword, value) in only {
            schema.entry(keyword).or_insert(value);
        }
    }
    if let Some(kind) = schema.get_mut("type")
        && let [only] = &*kind
            .as_array()
            .into_iter()
            .flatten()
            .filter(|kind| *kind != "null")
            .collect::<Vec<_>>()
    {
        *kind = (*only).clone();
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if schema.get("format").and_then(Value::as_str) == Some("uint32") {
        schema.entry("maximum").or_insert(json!(u32::MAX));
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        let paragraphs = description.split("\n\n");
        let paragraphs = paragraphs.map(|paragraph| paragraph.lines().collect::<Vec<_>>().join(" "));
        *description = paragraphs.collect::<Vec<_>>().join("\n");
    }
}

/// Formats a value as TOML on one line.
pub(crate) fn toml_text(value: &Value) -> String {
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}

/// The schema of a field or of a table.
#[derive(Clone, Copy)]
pub(crate) struct Node<'s>(pub(crate) &'s Value);

impl<'s> Node<'s> {
    fn text(self, keyword: &str) -> Option<&'s str> {
        self.0.get(keyword)?.as_str()
    }

    /// The type; empty if the schema accepts all types.
    pub(crate) fn kind(self) -> &'s str {
        match self.text("type") {
            None if self.variants().next().is_some() => "string",
            kind => kind.unwrap_or_default(),
        }
    }

    pub(crate) fn description(self) -> Option<&'s str> {
        self.text("description")
    }

    /// Names and schemas of the fields of a table.
    pub(crate) fn fields(self) -> impl Iterator<Item = (&'s String, Node<'s>)> {
        let properties = self.0.get("properties").and_then(Value::as_object);
        let fields = properties.into_iter().flatten();
        fields.map(|(name, schema)| (name, Node(schema)))
    }

    /// The schema of the elements of a list.
    pub(crate) fn items(self) -> Option<Node<'s>> {
        self.0.get("items").map(Node)
    }

    /// The schema of the values of a table whose keys are not names of fields.
    pub(crate) fn values(self) -> Option<Node<'s>> {
        self.0
            .get("additionalProperties")
            .filter(|schema| schema.is_object())
            .map(Node)
    }

    /// A key of a table whose keys are not names of fields.
    pub(crate) fn key_sample(self) -> &'s str {
        let examples = self.0.pointer("/propertyNames/examples/0");
        examples.and_then(Value::as_str).unwrap_or("NAME")
    }

    pub(crate) fn field(self, name: &str) -> Option<Node<'s>> {
        let named = self
            .0
            .get("properties")
            .and_then(|properties| properties.get(name));
        named.map(Node).or_else(|| self.values())
    }

    pub(crate) fn refuses_unknown_fields(self) -> bool {
        self.0.get("additionalProperties") == Some(&Value::Bool(false))
    }

    pub(crate) fn required(self) -> impl Iterator<Item = &'s str> {
        let required = self.0.get("required").and_then(Value::as_array);
        required.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The accepted texts of an enumeration, with their descriptions.
    pub(crate) fn variants(self) -> impl Iterator<Item = (&'s str, Option<&'s str>)> {
        let alternatives = self.0.get("oneOf").and_then(Value::as_array);
        let alternatives = alternatives.map_or(std::slice::from_ref(self.0), Vec::as_slice);
        alternatives.iter().flat_map(|schema| {
            let several = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            let description = Node(schema)
                .text("description")
                .filter(|_| schema.get("const").is_some());
            let names = schema.get("const").into_iter().chain(several);
            names
                .filter_map(Value::as_str)
                .map(move |name| (name, description))
        })
    }

    /// Whether the schema accepts a value that is neither a table nor a list. The format of a text is not checked.
    pub(crate) fn accepts(self, value: &toml::Value) -> bool {
        let bound = |keyword: &str| self.0.get(keyword).and_then(Value::as_f64);
        let is_in_range = |number: f64| {
            bound("minimum").is_none_or(|minimum| minimum <= number)
                && bound("maximum").is_none_or(|maximum| number <= maximum)
        };
        match (self.kind(), value) {
            ("string", toml::Value::String(text)) => {
                let mut variants = self.variants().peekable();
                variants.peek().is_none() || variants.any(|(name, _)| name == text)
            }
            // Bounds and values above 2^53 lose precision, but no field has such a bound.
            #[allow(clippy::cast_precision_loss, reason = "see above")]
            ("integer" | "number", toml::Value::Integer(number)) => is_in_range(*number as f64),
            ("number", toml::Value::Float(number)) => is_in_range(*number),
            ("boolean", toml::Value::Boolean(_)) | ("", _) => true,
            _ => false,
        }
    }

    /// Whether a text is a path that is relative to the directory of the configuration. A program without a slash is searched
    /// in `PATH`.
    pub(crate) fn is_path(self, text: &str) -> bool {
        match self.text("format") {
            Some("path") => true,
            Some("program") => text.is_empty() || text.contains('/'),
            _ => false,
        }
    }

    fn format(self) -> Option<(&'static str, &'static str)> {
        let name = self.text("format")?;
        let (_, description, neutral) = FORMATS.into_iter().find(|(format, ..)| *format == name)?;
        Some((description, neutral))
    }

    /// Describes the format of a text; `None` if messages about the format come from the type of the field.
    pub(crate) fn expected_format(self) -> Option<&'static str> {
        self.format().map(|(description, _)| description)
    }

    /// Describes the accepted values.
    pub(crate) fn expected(self) -> String {
        let (minimum, maximum) = (self.0.get("minimum"), self.0.get("maximum"));
        // The maximum of a type is of interest only together with the minimum of the type.
        let maximum = maximum.filter(|_| minimum == Some(&json!(0)) || self.has_own_maximum());
        let range = |noun: &str| match (minimum, maximum) {
            (Some(minimum), Some(maximum)) => format!("{noun} from {minimum} to {maximum}"),
            (Some(minimum), None) => format!("{noun} of {minimum} or more"),
            (None, Some(maximum)) => format!("{noun} of {maximum} or less"),
            (None, None) => noun.to_owned(),
        };
        let names: Vec<String> = self.variants().map(|(name, _)| format!("{name:?}")).collect();
        match (self.kind(), self.format()) {
            ("string", Some((description, _))) => description.to_owned(),
            ("string", None) if !names.is_empty() => alternatives(&names),
            ("string", None) => "a string in quotes".to_owned(),
            ("integer", _) => range("a whole number"),
            ("number", _) => range("a number"),
            ("boolean", _) => "true or false".to_owned(),
            ("array", _) if self.items().is_some_and(|items| items.kind() == "object") => {
                "a list of tables".to_owned()
            }
            ("array", _) => format!("a list, such as {}", toml_text(&self.sample())),
            _ => "a table with fields".to_owned(),
        }
    }

    /// The accepted numbers, if they are fewer than those of the type.
    pub(crate) fn range(self) -> Option<String> {
        let maximum = self.0.get("maximum").filter(|_| self.has_own_maximum());
        match (self.0.get("minimum")?, maximum) {
            (minimum, Some(maximum)) => Some(format!("{minimum} to {maximum}")),
            (minimum, None) if *minimum == json!(0) => None,
            (minimum, None) => Some(format!("{minimum} or more")),
        }
    }

    /// Whether the maximum is lower than the maximum of the type.
    fn has_own_maximum(self) -> bool {
        let type_maximums = [u8::MAX.into(), u16::MAX.into(), u32::MAX].map(Value::from);
        self.0
            .get("maximum")
            .is_some_and(|maximum| !type_maximums.contains(maximum))
    }

    /// A value for examples.
    pub(crate) fn sample(self) -> Value {
        let examples = self.0.get("examples").and_then(|examples| examples.get(0));
        match examples.or_else(|| self.0.get("default").filter(|default| **default != json!([]))) {
            Some(value) => value.clone(),
            None if self.kind() == "array" => {
                Value::Array(self.items().map(Node::sample).into_iter().collect())
            }
            None => self.placeholder(),
        }
    }

    /// A value of the right type in place of a missing field. Errors of this value are not reported.
    pub(crate) fn placeholder(self) -> Value {
        let text = || {
            let variant = self.variants().next().map(|(name, _)| name);
            variant
                .or(self.format().map(|(_, neutral)| neutral))
                .unwrap_or_default()
        };
        match self.kind() {
            "string" => json!(text()),
            "integer" => json!(self.0.get("minimum").and_then(Value::as_u64).unwrap_or(0).max(1)),
            "number" => json!(1.0),
            "boolean" => json!(false),
            "array" => json!([]),
            _ => {
                let required = self.required();
                let fields =
                    required.filter_map(|name| Some((name.to_owned(), self.field(name)?.placeholder())));
                Value::Object(fields.collect())
            }
        }
    }
}

/// Joins names: `a, b or c`.
fn alternatives(names: &[String]) -> String {
    match names {
        [names @ .., last] if !names.is_empty() => format!("{} or {last}", names.join(", ")),
        _ => names.concat(),
    }
}
