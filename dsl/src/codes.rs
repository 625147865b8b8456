//! One table of every diagnostic code: its title and what it means.
//!
//! Codes are stable: a code is never reused for something else. The table also writes the section on
//! diagnostics of `docs/language.md`.

/// A diagnostic code, printed as `FS0001`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u16);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FS{:04}", self.0)
    }
}

/// What a code means.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The code.
    pub code: Code,
    /// A few words.
    pub title: &'static str,
    /// A paragraph: when it is reported and what to do.
    pub explanation: &'static str,
}

macro_rules! codes {
    ($($name:ident = $number:literal, $title:literal, $explanation:literal;)*) => {
        $(#[doc = $title] pub const $name: Code = Code($number);)*
        /// Every code in ascending order.
        pub const TABLE: &[Entry] = &[$(Entry { code: $name, title: $title, explanation: $explanation }),*];
    };
}

codes! {
    SYNTAX = 1, "syntax error", "The text does not follow the grammar at this place. The message lists what could stand there. Checking goes on with the next statement, so one run reports the other mistakes of the file too.";
    NESTING = 2, "nested too deeply", "Brackets and braces may be nested at most 64 deep, and so may calls of blocks in blocks; expressions, seen through the blocks that they call, 256 deep. Give inner parts a name with `let`, or move them to a block.";
    FILE_TOO_LARGE = 3, "file too large", "A source file may have at most 4 MiB. Data does not belong in it; name a data file in the `workload` block.";
    NUMBER_TOO_LARGE = 4, "number too large", "The number cannot be represented: whole numbers are exact up to 2^53, others are IEEE doubles.";
    TOO_LONG = 5, "word too long", "A name or number may have at most 255 characters, the text between two quotes at most 4096.";
    INVISIBLE = 6, "character that is not seen", "Control characters other than ends of lines and tabs, and characters that change the direction of a text or are not seen at all, hide what a text says, also in comments. Where an editor shows nothing, the message says which character it is. Write a path that has one under another name. A byte order mark at the start of a file is passed over.";
    UNREADABLE = 10, "file cannot be read", "The file, or a file that it imports, does not exist, is a directory or may not be read; an import may not be a pipe. Or whoever parses it has too small a stack, which the system limits (`ulimit -s`). Imports are relative to the file that contains them.";
    NOT_UTF8 = 11, "file is not UTF-8", "Source files are UTF-8 text. The message says at which byte the text stops being that, or that the file is UTF-16.";
    IMPORT_CYCLE = 12, "imports form a cycle", "A file imports itself, directly or through others. Move what they share into a third file.";
    EMPTY = 13, "nothing declared", "The file has no `model`, `block`, `train`, `workload` or `cluster`, so there is nothing to check.";
    UNKNOWN_NAME = 20, "unknown name", "No table, input, value or parameter of this name is visible here. Blocks see their parameters only: pass what they need as arguments.";
    UNKNOWN_FUNCTION = 21, "unknown primitive or block", "What is called is neither a primitive of the language nor a block of this file or its imports.";
    DUPLICATE_NAME = 22, "name declared twice", "Names are unique where they are visible. To give an existing value a new meaning, leave out `let`: `x = ...` carries the value on, also through the iterations of `repeat`.";
    UNKNOWN_ARGUMENT = 23, "unknown argument", "The primitive or block has no parameter of this name.";
    ARGUMENT_TWICE = 24, "argument given twice", "A parameter got two values, by position and by name, or by name twice.";
    TOO_MANY_ARGUMENTS = 25, "too many arguments", "There are more arguments without a name than parameters.";
    MISSING_ARGUMENT = 26, "missing argument", "A parameter without a default got no value.";
    UNKNOWN_SETTING = 27, "unknown setting", "The braces of this keyword know no such setting.";
    SETTING_TWICE = 28, "setting given twice", "A setting stands twice in the same braces.";
    MISSING_SETTING = 29, "missing setting", "A setting without a default is missing.";
    MISPLACED = 30, "statement not allowed here", "Tables, inputs and the loss stand directly in a model; `return` stands last in a block.";
    NOT_ASSIGNABLE = 31, "cannot be assigned", "`x = ...` gives a new value to a name that `let` has introduced. Tables, inputs and parameters of a block keep their meaning.";
    RECURSION = 32, "block calls itself", "Blocks are inlined and nothing in the language could end a recursion. Use `repeat`.";
    TOO_LARGE = 33, "program too large", "Unrolling `repeat` and inlining blocks gave more than 200,000 operations, or too much work to get there.";
    RETURN = 34, "block without a result", "A block ends with one `return`, followed by its results.";
    RESULT_COUNT = 35, "wrong number of results", "The number of names on the left differs from the number of results, or several results stand where one value is needed.";
    LAYER_NAME_TWICE = 36, "layer name used twice", "The parameters of two layers would get the same name. Give one of the layers another `name:`, or give the call of the block around it a `name:`, which prefixes all names inside.";
    WRONG_KIND = 40, "wrong kind of value", "Something else is needed here, for example a number where a value of the graph stands.";
    OUT_OF_RANGE = 41, "number out of range", "The number is not in the range that makes sense here.";
    UNKNOWN_UNIT = 42, "unknown unit", "The unit is not one of the language.";
    WRONG_UNIT = 43, "wrong unit", "The unit measures something else than what is needed here, or the unit is missing.";
    UNKNOWN_CHOICE = 44, "unknown choice", "Only the listed words can stand here.";
    UNKNOWN_PRESET = 45, "unknown cluster preset", "No cluster of this name comes with the compiler.";
    ROWS_DIFFER = 50, "values of different rows", "The operands have different rows: tokens of sequences with different lengths, or tokens and samples. Sequences share lengths only if an input says so with `like`.";
    COLUMNS_DIFFER = 51, "different numbers of columns", "The operands must have the same number of columns.";
    NOT_DIVISIBLE = 52, "columns do not divide", "The number of columns cannot be cut into equal parts of this number, or the sizes do not add up to it.";
    WRONG_ROWS = 53, "wrong rows", "The operation works on tokens of sequences, or on samples, and its operand has other rows.";
    TABLE_MISMATCH = 54, "input of another table", "The ids name rows of another table than the one given here.";
    NO_LOSS = 60, "model without a loss", "A model has exactly one `loss`.";
    SEVERAL_LOSSES = 61, "several losses", "A model has exactly one `loss`.";
    NOT_A_LOSS = 62, "not a loss", "`loss` is followed by a loss primitive, such as `bce_with_logits` or `sampled_softmax`.";
    SEVERAL = 63, "declared more than once", "A program has one `model`, one `train` and one `workload`, over all files.";
    CONFLICT = 64, "settings contradict each other", "Each setting is fine on its own, but they cannot hold together.";
    NO_MODEL = 65, "no model to compile", "The program has training settings, data or clusters, but no `model`.";
    NOT_BUILT = 70, "not built yet", "The language can say it, but the compiler cannot do it yet. The message says what to write instead.";
    PLACEMENT = 71, "table cannot be placed like this", "The sharding asked for does not go with the table's optimizer or size.";
    TOO_MANY_CLASSES = 72, "too many classes of rows", "Rows travel by class of reuse distance: one for each microbatch and each distance up to the lookahead, at most 255 in all.";
    UNUSED = 80, "never used", "The name is declared but nothing uses it. Start it with `_` if that is on purpose.";
    NO_EFFECT = 81, "does not reach the loss", "The value is computed, but the loss does not depend on it.";
    UNUSED_BLOCK = 82, "block never used", "No model calls the block.";
}

/// The entry of a code as printed, for example `FS0012`; upper and lower case are the same.
pub fn find(code: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|e| e.code.to_string().eq_ignore_ascii_case(code.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_ordered() {
        assert!(TABLE.windows(2).all(|w| w[0].code < w[1].code));
        assert_eq!(find("fs0001").map(|e| e.title), Some("syntax error"));
        assert!(find("FS9999").is_none());
    }
}
