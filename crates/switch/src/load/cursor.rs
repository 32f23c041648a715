//! Position in a JSON document with its path, so that every error names the element.

use std::fmt;

use serde_json::Value;

/// Error in a program, with its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {problem}")]
pub struct LoadError {
    /// Element, such as `pipelines[0].tables[2] (ipv4_lpm).key`.
    pub location: String,
    /// Problem of the element.
    pub problem: String,
}

/// Position in the document.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    value: &'a Value,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a Node<'a>, &'a str),
    Item(&'a Node<'a>, usize),
}

/// Result of loading a program.
pub type LoadResult<T> = Result<T, LoadError>;

impl<'a> Node<'a> {
    /// Root of the document.
    pub fn root(value: &'a Value) -> Self {
        Self {
            value,
            step: Step::Root,
        }
    }

    /// Creates an error at this position.
    pub fn error(&self, problem: impl fmt::Display) -> LoadError {
        let mut location = String::new();
        self.describe(&mut location);
        LoadError {
            location: if location.is_empty() {
                "the program".to_owned()
            } else {
                location
            },
            problem: problem.to_string(),
        }
    }

    fn describe(&self, location: &mut String) {
        match self.step {
            Step::Root => return,
            Step::Field(parent, name) => {
                parent.describe(location);
                if !location.is_empty() {
                    location.push('.');
                }
                location.push_str(name);
            }
            Step::Item(parent, index) => {
                parent.describe(location);
                location.push_str(&format!("[{index}]"));
            }
        }
        if let Some(name) = self.value.get("name").and_then(Value::as_str) {
            location.push_str(&format!(" ({name})"));
        }
    }

    /// Required member.
    pub fn field(&'a self, name: &'a str) -> LoadResult<Self> {
        let value = self
            .value
            .get(name)
            .ok_or_else(|| self.error(format_args!("member {name:?} is missing")))?;
        Ok(Self {
            value,
            step: Step::Field(self, name),
        })
    }

    /// Optional member; `None` if missing or null.
    pub fn optional(&'a self, name: &'a str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Self {
            value,
            step: Step::Field(self, name),
        })
    }

    /// Items of a list.
    pub fn items(&'a self) -> LoadResult<impl Iterator<Item = Node<'a>>> {
        let list = self.value.as_array().ok_or_else(|| self.error("is not a list"))?;
        Ok(list.iter().enumerate().map(|(index, value)| Node {
            value,
            step: Step::Item(self, index),
        }))
    }

    /// Item of a list by index.
    pub fn item(&'a self, index: usize) -> LoadResult<Node<'a>> {
        let value = self
            .value
            .get(index)
            .ok_or_else(|| self.error(format_args!("item {index} is missing")))?;
        Ok(Node {
            value,
            step: Step::Item(self, index),
        })
    }

    /// Number of items; 0 if the value is not a list.
    pub fn len(&self) -> usize {
        self.value.as_array().map_or(0, Vec::len)
    }

    /// Value as a string.
    pub fn str(&self) -> LoadResult<&'a str> {
        self.value.as_str().ok_or_else(|| self.error("is not a string"))
    }

    /// Value as a number from 0 to 2^32-1.
    pub fn u32(&self) -> LoadResult<u32> {
        self.value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| {
                self.error(format_args!(
                    "{} is not an integer from 0 to 4294967295",
                    self.value
                ))
            })
    }

    /// Value as a boolean.
    pub fn bool(&self) -> LoadResult<bool> {
        self.value.as_bool().ok_or_else(|| self.error("is not a boolean"))
    }

    /// Whether the value is null.
    pub fn is_null(&self) -> bool {
        self.value.is_null()
    }

    /// The JSON value.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// String member.
    pub fn str_at(&self, name: &str) -> LoadResult<&'a str> {
        let node = self
            .value
            .get(name)
            .ok_or_else(|| self.error(format_args!("member {name:?} is missing")))?;
        node.as_str()
            .ok_or_else(|| self.error(format_args!("member {name:?} is not a string")))
    }

    /// Number member, from 0 to 2^32-1.
    pub fn u32_at(&self, name: &str) -> LoadResult<u32> {
        let node = self
            .value
            .get(name)
            .ok_or_else(|| self.error(format_args!("member {name:?} is missing")))?;
        node.as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| {
                self.error(format_args!(
                    "member {name:?} is {node}: expected an integer from 0 to 4294967295"
                ))
            })
    }

    /// Boolean member; false if missing.
    pub fn flag(&self, name: &str) -> LoadResult<bool> {
        match self.value.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(format_args!("member {name:?} is {other}: expected a boolean"))),
        }
    }
}
