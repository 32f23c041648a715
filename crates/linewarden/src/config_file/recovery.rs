//! Continues parsing after a mistake, to find further mistakes.

use std::borrow::Cow;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::{Problem, element_index, field_at, messages, position};

/// Parses a text; `None` if parsing cannot continue.
pub(super) fn parse<T: DeserializeOwned>(
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
        // An error of the whole file has the span of the root table, which may be that of its first table's header.
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
        let next = placeholders.next(&field, error.message(), text.len())?;
        insert_field(root.get_mut(), &field, next)?;
    }
}

/// Whether a field, or a table that contains it, is in the list.
pub(super) fn is_skipped(skipped: &[Vec<String>], field: &[impl AsRef<str>]) -> bool {
    let contains_field = |skipped: &[String]| {
        skipped.len() <= field.len() && skipped.iter().zip(field).all(|(a, b)| a == b.as_ref())
    };
    skipped.iter().any(|skipped| contains_field(skipped))
}

/// Placeholders of missing fields. The type of a field is found by trial.
#[derive(Default)]
struct Placeholders {
    /// How many placeholders were tried for each field.
    tried: Vec<(Vec<String>, usize)>,
    /// Number of placeholders so far.
    count: usize,
}

/// A text or path, a number, a table, an address with port. Port 0 is never listened on, and no value occurs twice.
const VALUES: [&str; 4] = ["\"\"", "1", "{}", "\"127.0.0.1:0\""];

impl Placeholders {
    fn contains(&self, field: &[String]) -> bool {
        self.tried.iter().any(|(tried, _)| tried == field)
    }

    /// Returns the next placeholder of a field, given the error for the previous placeholder. The span of the placeholder is unique and after
    /// the end of the text.
    fn next<'i>(
        &mut self,
        field: &[String],
        message: &str,
        text_bytes: usize,
    ) -> Option<Spanned<DeValue<'i>>> {
        let index = self.tried.iter().position(|(tried, _)| tried == field);
        let index = index.unwrap_or_else(|| {
            self.tried.push((field.to_owned(), 0));
            self.tried.len() - 1
        });
        let (_, tried) = self.tried.get_mut(index)?;
        let value = match messages::first_variant(message) {
            Some(variant) => DeValue::String(Cow::Owned(variant.to_owned())),
            None => {
                let value = VALUES.get(*tried)?;
                *tried += 1;
                DeValue::parse(value).ok()?.into_inner()
            }
        };
        self.count += 1;
        let start = text_bytes + 2 * self.count;
        Some(Spanned::new(start..start + 1, value))
    }
}

/// Inserts a field, or replaces it.
fn insert_field<'i>(table: &mut DeTable<'i>, names: &[String], value: Spanned<DeValue<'i>>) -> Option<()> {
    let (name, tables) = names.split_last()?;
    let table = table_at(table, tables)?;
    table.remove(name.as_str());
    table.insert(Spanned::new(value.span(), Cow::Owned(name.clone())), value);
    Some(())
}

/// Removes a field; returns whether it existed.
fn remove_field(table: &mut DeTable<'_>, names: &[String]) -> bool {
    let Some((name, tables)) = names.split_last() else {
        return false;
    };
    table_at(table, tables).is_some_and(|table| table.remove(name.as_str()).is_some())
}

/// The table at a path; array elements are numbered.
fn table_at<'t, 'i>(table: &'t mut DeTable<'i>, names: &[String]) -> Option<&'t mut DeTable<'i>> {
    let [name, inner @ ..] = names else {
        return Some(table);
    };
    match table.get_mut(name.as_str()).map(Spanned::get_mut)? {
        DeValue::Table(table) => table_at(table, inner),
        DeValue::Array(array) => table_in_array(array, inner),
        _ => None,
    }
}

fn table_in_array<'t, 'i>(array: &'t mut DeArray<'i>, names: &[String]) -> Option<&'t mut DeTable<'i>> {
    let [number, inner @ ..] = names else {
        return None;
    };
    match array.get_mut(element_index(number)?)?.get_mut() {
        DeValue::Table(table) => table_at(table, inner),
        _ => None,
    }
}
