//! JSON for people and programs: indented, and without the sign that a sum of nothing has.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

/// Writes a value.
pub(super) fn write(out: &mut dyn Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, Plain(PrettyFormatter::new())))
}

/// Indents, and writes 0 where a number is -0.
struct Plain(PrettyFormatter<'static>);

impl Formatter for Plain {
    fn write_f32<W: ?Sized + Write>(&mut self, out: &mut W, value: f32) -> io::Result<()> {
        // Adding 0 takes the sign of -0, and changes nothing else.
        self.0.write_f32(out, value + 0.0)
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        self.0.write_f64(out, value + 0.0)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_a_negative_zero() {
        let value = serde_json::json!({ "a": [-0.0, 0.0, -0.5, 1e-9], "b": {}, "c": [], "d": { "e": -0.0 } });
        let mut text = Vec::new();
        write(&mut text, &value).expect("into memory");
        let text = String::from_utf8(text).expect("text");
        assert!(!text.contains("-0.0"), "{text}");
        // Nothing else is other than it was.
        let indented = serde_json::to_string_pretty(&value).expect("JSON");
        assert_eq!(text, indented.replace("-0.0", "0.0"));
    }
}
