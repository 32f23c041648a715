//! Reading on after a mistake, so that the next one is found as well.

use std::borrow::Cow;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::{Problem, index, names_at, place, words};

/// Reads a text; `None` if there is no reading on.
pub(super) fn parse<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    problems: &mut Vec<Problem>,
    left_out: &mut Vec<Vec<String>>,
) -> Option<T> {
    let (mut root, errors) = DeTable::parse_recoverable(text);
    let tell = |error: &toml::de::Error, names: &[String]| {
        let at = error.span().map(|span| place(text, span.start));
        let field = (!names.is_empty()).then(|| names.join("."));
        let written = error.span().and_then(|span| text.get(span));
        Problem::new(path, at, field, words::plain(error.message(), written))
    };
    if !errors.is_empty() {
        problems.extend(errors.iter().map(|error| tell(error, &[])));
        return None;
    }
    let mut stand_ins = StandIns::default();
    loop {
        let error = match T::deserialize(Deserializer::from(root.clone())) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        // What the file lacks itself has the place of the whole, which may be that of its first table's header.
        let span = error.span().filter(|span| *span != root.span());
        let names = span.map_or(Vec::new(), |span| names_at(root.get_ref(), &span));
        let field = match error.message().strip_prefix("missing field `") {
            Some(missing) => {
                let missing = missing.trim_end_matches('`').to_owned();
                let field: Vec<String> = names.iter().cloned().chain([missing]).collect();
                // One that was left out, or lies in what is missing, has been told of.
                if !is_left_out(left_out, &field) {
                    problems.push(tell(&error, &names));
                    left_out.push(field.clone());
                }
                field
            }
            None if stand_ins.have(&names) => names,
            None => {
                problems.push(tell(&error, &names));
                if !remove(root.get_mut(), &names) {
                    return None;
                }
                left_out.push(names);
                continue;
            }
        };
        let next = stand_ins.next(&field, error.message(), text.len())?;
        put(root.get_mut(), &field, next)?;
    }
}

/// Whether a field, or what it lies in, is among them.
pub(super) fn is_left_out(left_out: &[Vec<String>], field: &[impl AsRef<str>]) -> bool {
    let is_of = |left_out: &[String]| {
        left_out.len() <= field.len() && left_out.iter().zip(field).all(|(a, b)| a == b.as_ref())
    };
    left_out.iter().any(|left_out| is_of(left_out))
}

/// What stands for fields that are missing. Which type they have is found out by trying.
#[derive(Default)]
struct StandIns {
    /// How many were tried for each.
    tried: Vec<(Vec<String>, usize)>,
    /// How many there were.
    count: usize,
}

/// A text or path, a number, a table, an address with a port. Nothing is listened on at port 0, and nothing is twice.
const VALUES: [&str; 4] = ["\"\"", "1", "{}", "\"127.0.0.1:0\""];

impl StandIns {
    fn have(&self, field: &[String]) -> bool {
        self.tried.iter().any(|(tried, _)| tried == field)
    }

    /// Another one for a field, after this message about the one before; it lies behind the text, each at a place of its own.
    fn next<'i>(
        &mut self,
        field: &[String],
        message: &str,
        text_bytes: usize,
    ) -> Option<Spanned<DeValue<'i>>> {
        let known = self.tried.iter().position(|(tried, _)| tried == field);
        let known = known.unwrap_or_else(|| {
            self.tried.push((field.to_owned(), 0));
            self.tried.len() - 1
        });
        let (_, tried) = self.tried.get_mut(known)?;
        let value = match words::first_variant(message) {
            Some(variant) => DeValue::String(Cow::Owned(variant.to_owned())),
            None => {
                let value = VALUES.get(*tried)?;
                *tried += 1;
                DeValue::parse(value).ok()?.into_inner()
            }
        };
        self.count += 1;
        let at = text_bytes + 2 * self.count;
        Some(Spanned::new(at..at + 1, value))
    }
}

/// Puts a field in, in the place of what is there.
fn put<'i>(table: &mut DeTable<'i>, names: &[String], value: Spanned<DeValue<'i>>) -> Option<()> {
    let (name, tables) = names.split_last()?;
    let table = innermost(table, tables)?;
    table.remove(name.as_str());
    table.insert(Spanned::new(value.span(), Cow::Owned(name.clone())), value);
    Some(())
}

/// Takes a field out; says whether it was there.
fn remove(table: &mut DeTable<'_>, names: &[String]) -> bool {
    let Some((name, tables)) = names.split_last() else {
        return false;
    };
    innermost(table, tables).is_some_and(|table| table.remove(name.as_str()).is_some())
}

/// The table of these names, a number among them for one of several.
fn innermost<'t, 'i>(table: &'t mut DeTable<'i>, names: &[String]) -> Option<&'t mut DeTable<'i>> {
    let [name, inner @ ..] = names else {
        return Some(table);
    };
    match table.get_mut(name.as_str()).map(Spanned::get_mut)? {
        DeValue::Table(table) => innermost(table, inner),
        DeValue::Array(array) => innermost_of(array, inner),
        _ => None,
    }
}

fn innermost_of<'t, 'i>(array: &'t mut DeArray<'i>, names: &[String]) -> Option<&'t mut DeTable<'i>> {
    let [number, inner @ ..] = names else {
        return None;
    };
    match array.get_mut(index(number)?)?.get_mut() {
        DeValue::Table(table) => innermost(table, inner),
        _ => None,
    }
}
