//! From a checked model through the IR dialects to a schedule; the library behind fsc.
