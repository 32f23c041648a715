//! Continues parsing after a mistake, to find further mistakes.

use std::borrow::Cow;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use crate::file::{Problem, element_index, field_at, position};
use crate::messages;

/// Parses a text; returns `None` if parsing cannot continue. Adds each mistake to `problems`, and each missing or skipped
/// field to `skipped`.
pub(crate) fn parse<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    problems: &mut Vec<Problem>,
    skipped: &mut Vec<Vec<String>>,
) -> Option<T> {
    let (mut root, errors) = DeTable::parse_recoverable(text);
    let problem = |error: &toml::de::Error, names: &[String]| {
        let start = error.span().map(|span| position(text, span.start));
        let field = (!names.is_empty()).then(|| names.join("."));
        let value_text = error.span().and_then(|span| text.get(span));
        Problem::new(path, start, field, messages::rewrite(error.message(), value_text))
    };
    if !errors.is_empty() {
        problems.extend(errors.iter().map(|error| problem(error, &[])));
        return None;
    }
    let mut placeholders = Placeholders::default();
    loop {
        let error = match T::deserialize(Deserializer::from(root.clone())) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        // An error of the whole file has the span of the root table, which may be the span of the header of the first
        // table.
        let span = error.span().filter(|span| *span != root.span());
        let names = span.map_or(Vec::new(), |span| field_at(root.get_ref(), &span));
        let field = match error.message().strip_prefix("missing field `") {
            Some(missing) => {
                let missing = missing.trim_end_matches('`').to_owned();
                let field: Vec<String> = names.iter().cloned().chain([missing]).collect();
                // A skipped field, or a field in a missing table, is already reported.
                if !is_skipped(skipped, &field) {
                    problems.push(problem(&error, &names));
                    skipped.push(field.clone());
                }
                field
            }
            None if placeholders.contains(&names) => names,
            None => {
                problems.push(problem(&error, &names));
                if !remove_field(root.get_mut(), &names) {
                    return None;
                }
                skipped.push(names);
                continue;
            }
        };
        let placeholder = placeholders.next(&field, error.message(), text.len())?;
        insert_field(root.get_mut(), &field, placeholder)?;
    }
}

/// Whether `field`, or a table that contains `field`, is in `skipped`.
pub(crate) fn is_skipped(skipped: &[Vec<String>], field: &[impl AsRef<str>]) -> bool {
    let contains_field = |names: &[String]| {
        names.len() <= field.len() && names.iter().zip(field).all(|(a, b)| a == b.as_ref())
    };
    skipped.iter().any(|names| contains_field(names))
}

/// Placeholders of missing fields. The type of a field is found by trial.
#[derive(Default)]
struct Placeholders {
    /// Each missing field, and the number of values in [`PLACEHOLDER_VALUES`] that were tried for the field.
    fields: Vec<(Vec<String>, usize)>,
    /// Number of placeholders so far.
    count: usize,
}

/// Values that are tried for a missing field: a text or path, a number, a table, and an address with a port. No program
/// listens on port 0.
const PLACEHOLDER_VALUES: [&str; 4] = ["\"\"", "1", "{}", "\"127.0.0.1:0\""];

impl Placeholders {
    fn contains(&self, field: &[String]) -> bool {
        self.fields.iter().any(|(names, _)| names == field)
    }

    /// Returns the next placeholder of a field. `message` is the error for the previous placeholder, or for the missing
    /// field. The span of the placeholder is unique and after the end of the text.
    fn next<'i>(
        &mut self,
        field: &[String],
        message: &str,
        text_bytes: usize,
    ) -> Option<Spanned<DeValue<'i>>> {
        let index = self.fields.iter().position(|(names, _)| names == field);
        let index = index.unwrap_or_else(|| {
            self.fields.push((field.to_owned(), 0));
            self.fields.len() - 1
        });
        let (_, tried_count) = self.fields.get_mut(index)?;
        let value = match messages::first_variant(message) {
            Some(variant) => DeValue::String(Cow::Owned(variant.to_owned())),
            None => {
                let value = PLACEHOLDER_VALUES.get(*tried_count)?;
                *tried_count += 1;
                DeValue::parse(value).ok()?.into_inner()
            }
        };
        self.count += 1;
        let start = text_bytes + 2 * self.count;
        Some(Spanned::new(start..start + 1, value))
    }
}

/// Inserts or replaces a field; returns `None` if the table of the field does not exist.
fn insert_field<'i>(table: &mut DeTable<'i>, names: &[String], value: Spanned<DeValue<'i>>) -> Option<()> {
    let (name, tables) = names.split_last()?;
    let table = table_at(table, tables)?;
    table.remove(name.as_str());
    table.insert(Spanned::new(value.span(), Cow::Owned(name.clone())), value);
    Some(())
}

/// Removes a field; returns whether the field existed.
fn remove_field(table: &mut DeTable<'_>, names: &[String]) -> bool {
    let Some((name, tables)) = names.split_last() else {
        return false;
    };
    table_at(table, tables).is_some_and(|table| table.remove(name.as_str()).is_some())
}

/// Returns the table at a path of names. The name of an array element is its number.
fn table_at<'t, 'i>(table: &'t mut DeTable<'i>, names: &[String]) -> Option<&'t mut DeTable<'i>> {
    let [name, inner_names @ ..] = names else {
        return Some(table);
    };
    match table.get_mut(name.as_str()).map(Spanned::get_mut)? {
        DeValue::Table(table) => table_at(table, inner_names),
        DeValue::Array(array) => table_in_array(array, inner_names),
        _ => None,
    }
}

fn table_in_array<'t, 'i>(array: &'t mut DeArray<'i>, names: &[String]) -> Option<&'t mut DeTable<'i>> {
    let [number, inner_names @ ..] = names else {
        return None;
    };
    match array.get_mut(element_index(number)?)?.get_mut() {
        DeValue::Table(table) => table_at(table, inner_names),
        _ => None,
    }
}
