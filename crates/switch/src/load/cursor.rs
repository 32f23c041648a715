//! A place in a JSON document that knows how it was reached, so that every complaint names its element.

use std::fmt;

use serde_json::Value;

/// What is wrong with a program, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct LoadError {
    /// The element, as `pipelines[0].tables[2] (ipv4_lpm).key`.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

/// A place in the document.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    value: &'a Value,
    at: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a Node<'a>, &'a str),
    Item(&'a Node<'a>, usize),
}

/// A result of reading a program.
pub type Loaded<T> = Result<T, LoadError>;

impl<'a> Node<'a> {
    /// The whole document.
    pub fn root(value: &'a Value) -> Self {
        Self {
            value,
            at: Step::Root,
        }
    }

    /// A complaint about this place.
    pub fn error(&self, what: impl fmt::Display) -> LoadError {
        let mut place = String::new();
        self.describe(&mut place);
        LoadError {
            place: if place.is_empty() {
                "the program".to_owned()
            } else {
                place
            },
            what: what.to_string(),
        }
    }

    fn describe(&self, place: &mut String) {
        match self.at {
            Step::Root => return,
            Step::Field(parent, name) => {
                parent.describe(place);
                if !place.is_empty() {
                    place.push('.');
                }
                place.push_str(name);
            }
            Step::Item(parent, at) => {
                parent.describe(place);
                place.push_str(&format!("[{at}]"));
            }
        }
        if let Some(name) = self.value.get("name").and_then(Value::as_str) {
            place.push_str(&format!(" ({name})"));
        }
    }

    /// A member that must be there.
    pub fn field(&'a self, name: &'a str) -> Loaded<Self> {
        let value = self
            .value
            .get(name)
            .ok_or_else(|| self.error(format_args!("{name:?} is missing")))?;
        Ok(Self {
            value,
            at: Step::Field(self, name),
        })
    }

    /// A member, unless it is missing or null.
    pub fn optional(&'a self, name: &'a str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Self {
            value,
            at: Step::Field(self, name),
        })
    }

    /// The items of a list.
    pub fn items(&'a self) -> Loaded<impl Iterator<Item = Node<'a>>> {
        let list = self.value.as_array().ok_or_else(|| self.error("is not a list"))?;
        Ok(list.iter().enumerate().map(|(at, value)| Node {
            value,
            at: Step::Item(self, at),
        }))
    }

    /// The item at that position of a list.
    pub fn item(&'a self, at: usize) -> Loaded<Node<'a>> {
        let value = self
            .value
            .get(at)
            .ok_or_else(|| self.error(format_args!("has no item {at}")))?;
        Ok(Node {
            value,
            at: Step::Item(self, at),
        })
    }

    /// Number of items; 0 of what is no list.
    pub fn len(&self) -> usize {
        self.value.as_array().map_or(0, Vec::len)
    }

    /// A string.
    pub fn str(&self) -> Loaded<&'a str> {
        self.value.as_str().ok_or_else(|| self.error("is not a string"))
    }

    /// A number from 0 to 2^32-1.
    pub fn u32(&self) -> Loaded<u32> {
        self.value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| {
                self.error(format_args!(
                    "{} is not a number from 0 to 4294967295",
                    self.value
                ))
            })
    }

    /// True or false.
    pub fn bool(&self) -> Loaded<bool> {
        self.value
            .as_bool()
            .ok_or_else(|| self.error("is neither true nor false"))
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        self.value.is_null()
    }

    /// The value itself.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// A member that is a string.
    pub fn str_at(&self, name: &str) -> Loaded<&'a str> {
        let node = self
            .value
            .get(name)
            .ok_or_else(|| self.error(format_args!("{name:?} is missing")))?;
        node.as_str()
            .ok_or_else(|| self.error(format_args!("{name:?} is not a string")))
    }

    /// A member that is a number from 0 to 2^32-1.
    pub fn u32_at(&self, name: &str) -> Loaded<u32> {
        let node = self
            .value
            .get(name)
            .ok_or_else(|| self.error(format_args!("{name:?} is missing")))?;
        node.as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| {
                self.error(format_args!(
                    "{name:?} is {node}, not a number from 0 to 4294967295"
                ))
            })
    }

    /// A member that is true or false; false where it is missing.
    pub fn flag(&self, name: &str) -> Loaded<bool> {
        match self.value.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(format_args!("{name:?} is {other}, neither true nor false"))),
        }
    }
}
