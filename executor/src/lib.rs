//! Runs schedules: engines, transports, data input, evaluation and reports; the library behind fsx.
