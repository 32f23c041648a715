//! Reading, writing and comparing the vector files in docs/vectors.

use std::path::PathBuf;

use serde_json::Value;

/// Environment variable: if set, the files are written before they are compared.
const WRITE_VARIABLE: &str = "LINEWARDEN_WRITE_VECTORS";

/// Compares a vector file with the output of the crate, or writes it. Returns the contents.
pub fn compare_or_write(name: &str, output: &Value) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/vectors")
        .join(name);
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        let text = serde_json::to_string_pretty(output).unwrap() + "\n";
        std::fs::write(&path, text).unwrap();
    }
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("docs/vectors/{name}: {error}; write it with {WRITE_VARIABLE}=1"));
    let stored: Value = serde_json::from_str(&text).unwrap();
    assert!(
        stored == *output,
        "docs/vectors/{name} differs from the output of the crate; if the change is intended, rewrite it with {WRITE_VARIABLE}=1"
    );
    stored
}

/// The bytes of a hex field.
pub fn hex_of(value: &Value, field: &str) -> Vec<u8> {
    let text = value[field]
        .as_str()
        .unwrap_or_else(|| panic!("no hex field {field} in {value}"));
    hex::decode(text).unwrap()
}

/// The bytes of a hex field of fixed length.
pub fn array_of<const N: usize>(value: &Value, field: &str) -> [u8; N] {
    hex_of(value, field).try_into().unwrap()
}

/// An integer field.
pub fn number_of(value: &Value, field: &str) -> u64 {
    value[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {field} in {value}"))
}
