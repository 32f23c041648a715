//! Commented examples of configurations, generated from their schemas.
//!
//! A description becomes a comment. Required fields, and fields with the keyword [`ENABLED`], are set; other fields are
//! commented out, and show their default, or an example if there is none.

use std::fmt::Write as _;

use serde_json::Value;

use crate::schema::{Node, toml_text};

/// Keyword of a schema: the example sets this field, although the field is not required.
pub const ENABLED: &str = "x-enabled";
/// Maximum length of a line with a comment, characters.
const LINE_CHARACTERS_MAX: usize = 100;

/// Returns the example of a configuration.
#[must_use]
pub fn example(schema: &Value) -> String {
    Example::render(schema, false)
}

/// Returns the example with all fields set, for tests of the example.
#[must_use]
pub fn example_with_all_fields(schema: &Value) -> String {
    Example::render(schema, true)
}

struct Example {
    text: String,
    sets_all_fields: bool,
}

impl Example {
    fn render(schema: &Value, sets_all_fields: bool) -> String {
        let mut example = Self {
            text: String::new(),
            sets_all_fields,
        };
        example.comment(Node(schema));
        example.fields(Node(schema), &[], true);
        example.text
    }

    fn line(&mut self, is_set: bool, line: &str) {
        let start = if is_set || self.sets_all_fields { "" } else { "# " };
        let _ = writeln!(self.text, "{start}{line}");
    }

    /// Writes the description of a field, and the descriptions of its accepted values.
    fn comment(&mut self, node: Node<'_>) {
        let variants = node
            .variants()
            .filter_map(|(name, description)| Some(format!("{name:?}: {}", description?)));
        let range = node
            .range()
            .map(|range| format!(" Range: {range}."))
            .unwrap_or_default();
        let description = node
            .description()
            .map(|description| format!("{description}{range}"))
            .unwrap_or_default();
        for paragraph in description.lines().map(str::to_owned).chain(variants) {
            let mut line = "#".to_owned();
            for word in paragraph.split(' ') {
                if line.chars().count() + 1 + word.chars().count() > LINE_CHARACTERS_MAX {
                    let _ = writeln!(self.text, "{line}");
                    "#".clone_into(&mut line);
                }
                let _ = write!(line, " {word}");
            }
            let _ = writeln!(self.text, "{line}");
        }
    }

    /// Writes the fields of a table: first values, then tables, because a header ends the table before.
    fn fields(&mut self, table: Node<'_>, path: &[&str], is_set: bool) {
        let is_table = |node: Node<'_>| {
            node.kind() == "object" || node.items().is_some_and(|items| items.kind() == "object")
        };
        let is_field_set = |name: &str, node: Node<'_>| {
            let is_enabled = node.0.get(ENABLED) == Some(&Value::Bool(true));
            is_set && (is_enabled || table.required().any(|required| required == name))
        };
        for (name, node) in table.fields().filter(|(_, node)| !is_table(*node)) {
            self.comment(node);
            self.line(
                is_field_set(name, node),
                &format!("{name} = {}", toml_text(&node.sample())),
            );
        }
        for (name, node) in table.fields().filter(|(_, node)| is_table(*node)) {
            let path: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
            let _ = writeln!(self.text);
            self.comment(node);
            self.table(node, &path, is_field_set(name, node));
        }
    }

    fn table(&mut self, node: Node<'_>, path: &[&str], is_set: bool) {
        let name = path.join(".");
        if let Some(items) = node.items() {
            self.line(is_set, &format!("[[{name}]]"));
            return self.fields(items, path, is_set);
        }
        if let Some(values) = node.values() {
            let key = node.key_sample();
            let path: Vec<&str> = path.iter().copied().chain([key]).collect();
            return self.table(values, &path, is_set);
        }
        // A table that only contains tables needs no header.
        if node.fields().any(|(_, field)| field.kind() != "object") {
            self.line(is_set, &format!("[{name}]"));
        }
        self.fields(node, path, is_set);
    }
}
