//! Reads a text into a type, and collects all mistakes.
//!
//! ```text
//!   text ─► TOML tables with positions ─► checked by the schema ─► deserialized ─► value
//! ```
//! The schema finds unknown and missing fields and values of a wrong type or outside of their range. Deserialization finds
//! values of a wrong format. A field with a mistake is removed, and reading continues.

use std::ops::Range;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, ValueDeserializer};

use crate::problem::Problem;
use crate::schema::{Node, schema_of, toml_text};
use crate::text::{directory, element_index, key_and_value, position};

/// Minimum similarity of a suggested name to the name in the file.
const SIMILARITY_MIN: f64 = 0.75;
/// Maximum length of a value that a message repeats, characters.
const VALUE_CHARACTERS_MAX: usize = 60;

/// What a reader finds in a file.
pub(crate) struct Reader<'t> {
    path: &'t Path,
    text: &'t str,
    /// The mistakes.
    pub(crate) problems: Vec<Problem>,
    /// Fields that are missing, or that were skipped because of a mistake.
    pub(crate) skipped: Vec<Vec<String>>,
}

impl<'t> Reader<'t> {
    pub(crate) fn new(path: &'t Path, text: &'t str) -> Self {
        Self {
            path,
            text,
            problems: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Reads the text; returns `None` if it is not TOML, or if no placeholder is possible for a field.
    pub(crate) fn read<T: DeserializeOwned + JsonSchema>(&mut self) -> Option<T> {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            let message = error.message().lines().collect::<Vec<_>>().join(" ");
            self.add(error.span(), &[], message, None);
        }
        if !errors.is_empty() {
            return None;
        }
        let schema = schema_of::<T>();
        let schema = Node(&schema);
        let mut content = self.table(schema, root.get_ref(), root.span(), &mut Vec::new());
        loop {
            let error = match serde_path_to_error::deserialize(toml::Value::Table(content.clone())) {
                Ok(value) => return Some(value),
                Err(error) => error,
            };
            let (names, element) = names_of(error.path(), &content);
            // Deserialization refuses a placeholder.
            if names.is_empty() || is_skipped(&self.skipped, &names) {
                return None;
            }
            let node = node_at(schema, &names)?;
            let span = key_and_value(root.get_ref(), &names, element).map(|(_, value)| value);
            self.refuse_format(node, span, &names, error.into_inner().message());
            replace(&mut content, schema, &names)?;
            self.skipped.push(names);
        }
    }

    fn add(&mut self, span: Option<Range<usize>>, names: &[String], problem: String, remedy: Option<String>) {
        let start = span.as_ref().map(|span| position(self.text, span.start));
        let field = (!names.is_empty()).then(|| names.join("."));
        let problem = Problem::new(self.path, start, field, problem);
        self.problems.push(Problem {
            remedy: remedy.map(String::into_boxed_str),
            ..problem.with_span(span)
        });
    }

    /// Adds the mistake that a type has found in a text.
    fn refuse_format(&mut self, node: Node<'_>, span: Option<Range<usize>>, names: &[String], message: &str) {
        let node = node.items().unwrap_or(node);
        let problem = match (node.expected_format(), &span) {
            (Some(expected), Some(span)) => self.with_value(span, &format!("expected {expected}")),
            _ => message.to_owned(),
        };
        self.add(span, names, problem, None);
    }

    /// A message that starts with the value in the file, if this is short.
    fn with_value(&self, span: &Range<usize>, message: &str) -> String {
        let value = self.text.get(span.clone()).unwrap_or_default();
        match value.contains('\n') || value.chars().count() > VALUE_CHARACTERS_MAX {
            true => message.to_owned(),
            false => format!("{value}: {message}"),
        }
    }

    /// The content of a table without wrong fields, and with placeholders for missing fields.
    fn table(
        &mut self,
        schema: Node<'_>,
        table: &DeTable<'_>,
        span: Range<usize>,
        names: &mut Vec<String>,
    ) -> toml::Table {
        let mut content = toml::Table::new();
        for (key, value) in table {
            let name = key.get_ref().to_string();
            names.push(name.clone());
            match schema.field(&name) {
                Some(field) => match self.value(field, value, key.span(), names) {
                    Some(value) => drop(content.insert(name, value)),
                    None => self.skipped.push(names.clone()),
                },
                None if schema.refuses_unknown_fields() => {
                    let known: Vec<&str> = schema.fields().map(|(name, _)| name.as_str()).collect();
                    let (problem, remedy) = unknown_field(&name, &known);
                    self.add(Some(key.span()), names, problem, remedy);
                }
                None => {}
            }
            names.pop();
        }
        for name in schema
            .required()
            .filter(|name| !table.iter().any(|(key, _)| key.get_ref() == name))
        {
            let path = names.iter().map(String::as_str).chain([name]);
            let remedy = schema.field(name).map(|field| match field.kind() {
                "object" => format!("add the table [{}]", path.collect::<Vec<_>>().join(".")),
                _ => format!("add the field, such as `{name} = {}`", toml_text(&field.sample())),
            });
            self.add(
                Some(span.clone()),
                names,
                format!("missing field `{name}`"),
                remedy,
            );
            self.skipped
                .push(names.iter().cloned().chain([name.to_owned()]).collect());
        }
        for name in schema.required() {
            insert_placeholder(&mut content, schema, name);
        }
        content
    }

    /// The content of a field; `None` if the value is wrong.
    fn value(
        &mut self,
        schema: Node<'_>,
        value: &Spanned<DeValue<'_>>,
        key: Range<usize>,
        names: &mut Vec<String>,
    ) -> Option<toml::Value> {
        match (schema.kind(), value.get_ref(), schema.items()) {
            ("object", DeValue::Table(table), _) => {
                Some(toml::Value::Table(self.table(schema, table, value.span(), names)))
            }
            ("array", DeValue::Array(array), Some(items)) => self.list(items, array, names),
            _ => {
                let content = toml::Value::deserialize(ValueDeserializer::from(value.clone())).ok();
                let content = content.filter(|content| schema.accepts(content));
                if content.is_none() {
                    let problem = self.with_value(&value.span(), &format!("expected {}", schema.expected()));
                    self.add(Some(value.span()), names, problem, None);
                }
                match content {
                    Some(toml::Value::String(path)) if schema.is_path(&path) => {
                        Some(self.path(path, key, names))
                    }
                    content => content,
                }
            }
        }
    }

    /// Makes a path absolute, based on the directory of the file.
    fn path(&mut self, path: String, key: Range<usize>, names: &[String]) -> toml::Value {
        let absolute = directory(self.path).join(&path).into_os_string().into_string();
        let problem = match absolute {
            Ok(absolute) if !path.is_empty() => return toml::Value::String(absolute),
            Ok(_) => "\"\": set a path".to_owned(),
            Err(_) => format!("{path:?}: name of the file's directory is not UTF-8; set an absolute path"),
        };
        self.add(Some(key), names, problem, None);
        // The field stays set, but no further mistake of the field is reported.
        self.skipped.push(names.to_owned());
        toml::Value::String(path)
    }

    /// The elements of a list. Tables have their number in the path of their fields; other elements have no path.
    fn list(&mut self, items: Node<'_>, array: &DeArray<'_>, names: &mut Vec<String>) -> Option<toml::Value> {
        let mut content = Vec::new();
        for (number, element) in (1_usize..).zip(array) {
            let is_table = element.get_ref().is_table();
            if is_table {
                names.push(number.to_string());
            }
            content.push(self.value(items, element, element.span(), names));
            if is_table {
                names.pop();
            }
        }
        let content: Option<Vec<_>> = content.into_iter().collect();
        content.map(toml::Value::Array)
    }
}

/// Problem and remedy of an unknown field.
fn unknown_field(name: &str, known: &[&str]) -> (String, Option<String>) {
    let similarity = |known: &str| strsim::jaro_winkler(name, known);
    let most_similar = known
        .iter()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let problem = format!("unknown field `{name}`");
    let quoted = |name: &&str| format!("`{name}`");
    match most_similar.filter(|known| similarity(known) >= SIMILARITY_MIN) {
        Some(known) => (problem, Some(format!("did you mean `{known}`?"))),
        None => {
            let known: Vec<String> = known.iter().map(quoted).collect();
            (format!("{problem}, expected one of {}", known.join(", ")), None)
        }
    }
}

/// Names of the field that deserialization refuses, and the index of the element of a list. A table in a list is named by its
/// number, from 1.
fn names_of(path: &serde_path_to_error::Path, content: &toml::Table) -> (Vec<String>, Option<usize>) {
    let mut names = Vec::new();
    let mut value = None;
    for segment in path {
        match segment {
            Segment::Map { key } => {
                let table = value.map_or(Some(content), toml::Value::as_table);
                value = table.and_then(|table| table.get(key));
                names.push(key.clone());
            }
            Segment::Seq { index } => {
                value = value
                    .and_then(toml::Value::as_array)
                    .and_then(|array| array.get(*index));
                if !value.is_some_and(toml::Value::is_table) {
                    return (names, Some(*index));
                }
                names.push((index + 1).to_string());
            }
            Segment::Enum { .. } | Segment::Unknown => break,
        }
    }
    (names, None)
}

/// The schema of a field.
fn node_at<'s>(schema: Node<'s>, names: &[String]) -> Option<Node<'s>> {
    names
        .iter()
        .try_fold(schema, |node, name| node.items().or_else(|| node.field(name)))
}

/// Replaces a field with its placeholder, or removes the field if it is not required; returns `None` if there is no such field.
fn replace(content: &mut toml::Table, schema: Node<'_>, names: &[String]) -> Option<()> {
    let (name, tables) = names.split_last()?;
    let mut table = content;
    let mut tables = tables.iter();
    while let Some(name) = tables.next() {
        table = match table.get_mut(name)? {
            toml::Value::Table(table) => table,
            toml::Value::Array(array) => {
                let index = element_index(tables.next()?)?;
                array.get_mut(index)?.as_table_mut()?
            }
            _ => return None,
        };
    }
    table.remove(name)?;
    let (_, tables) = names.split_last()?;
    insert_placeholder(table, node_at(schema, tables)?, name);
    Some(())
}

/// Inserts a placeholder for a required field that is missing.
fn insert_placeholder(content: &mut toml::Table, schema: Node<'_>, name: &str) {
    if schema.required().any(|required| required == name)
        && !content.contains_key(name)
        && let Some(field) = schema.field(name)
        && let Ok(value) = toml::Value::try_from(field.placeholder())
    {
        content.insert(name.to_owned(), value);
    }
}

/// Whether `field`, or a table that contains `field`, is in `skipped`.
pub(crate) fn is_skipped(skipped: &[Vec<String>], field: &[impl AsRef<str>]) -> bool {
    let contains_field = |names: &[String]| {
        names.len() <= field.len() && names.iter().zip(field).all(|(a, b)| a == b.as_ref())
    };
    skipped.iter().any(|names| contains_field(names))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::file::ConfigFile;

    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    struct Paths {
        #[schemars(extend("format" = "path"))]
        file: PathBuf,
        #[schemars(extend("format" = "program"))]
        program: Option<PathBuf>,
        other: Option<PathBuf>,
    }

    #[test]
    fn paths_are_relative_to_the_file_and_programs_in_path_are_not() {
        let read =
            |text: &str| ConfigFile::<Paths>::parse_fields(Path::new("/etc/lw/f.toml"), text.to_owned());
        let file = read("file = \"a\"\nother = \"b\"\n").file.unwrap();
        assert_eq!(
            (file.value.file, file.value.other),
            ("/etc/lw/a".into(), Some("b".into()))
        );
        for (named, resolved) in [
            ("readpuf", "readpuf"),
            ("./readpuf", "/etc/lw/./readpuf"),
            ("/x/y", "/x/y"),
        ] {
            let file = read(&format!("file = \"a\"\nprogram = \"{named}\"\n"))
                .file
                .unwrap();
            assert_eq!(file.value.program.unwrap(), Path::new(resolved));
        }
        let parsed = read("file = \"\"\n");
        assert_eq!(
            parsed.problems.first().unwrap().to_string(),
            "/etc/lw/f.toml:1:1: file: \"\": set a path"
        );
        assert!(parsed.is_missing(&["file"]) && parsed.file.is_some());
    }

    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    struct Numbers {
        #[serde(default)]
        #[schemars(range(min = 1))]
        low: u32,
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        fraction: f64,
    }

    #[test]
    fn numbers_are_within_the_range_of_the_schema() {
        let text = "low = 0\nfraction = nan\n".to_owned();
        let parsed = ConfigFile::<Numbers>::parse_fields(Path::new("f"), text);
        let problems: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "f:1:7: low: 0: expected a whole number of 1 or more",
                "f:2:12: fraction: nan: expected a number from 0.0 to 1.0",
            ]
        );
        let text = "low = 4294967295\nfraction = 1\n".to_owned();
        assert_eq!(
            ConfigFile::<Numbers>::parse_fields(Path::new("f"), text).problems,
            []
        );
    }
}
