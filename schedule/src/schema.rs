//! The JSON Schema of schedule.json, derived from the types. docs/schedule.schema.json is its copy for readers.

/// The schema as pretty JSON with a final newline.
pub fn text() -> String {
    let schema = schemars::schema_for!(crate::Schedule);
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
